"""``python -m declarative.kernels`` builds the compiled core."""

from .build import build_for_this_machine

build_for_this_machine()
