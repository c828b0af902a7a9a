"""A recorded function of one problem as a program of scalar instructions, run for all problems of a batch at once."""

from .lower import lowered
from .tape import Tape
from .writer import NotLowered

__all__ = ["NotLowered", "Tape", "lowered"]
