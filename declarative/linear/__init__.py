"""One linear algebra, forward and backward: factor once, solve many, multiply, say how definite."""

from .contract import System, full_precision
from .dense import Pair, Solve, times

__all__ = ["Pair", "Solve", "System", "full_precision", "times"]
