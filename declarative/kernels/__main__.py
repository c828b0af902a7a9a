"""``python -m declarative.kernels`` builds the compiled core."""

from .build import build

build()
