"""What a family is: a formula for problems of any size and batch, and which of them are measured."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ..cases import Array, Case

Shape = tuple[int, int]  # size, batch


@dataclass(frozen=True)
class Family:
    """Problems by a formula."""

    name: str
    title: str
    kind: str  # quadratic, control, nonlinear, transport or closed form
    size: str  # what the size counts
    about: str  # the problem, and where the truth comes from
    make: Callable[[int, int, int], Case]  # of size, batch and seed
    shapes: tuple[Shape, ...]
    quick: tuple[Shape, ...]
    layer: bool = False  # have we a ready-made layer for it?
    node: bool = True  # is it worth stating it as a node too?
    compiled: tuple[Shape, ...] = ()  # where what can be compiled is compiled too, which takes minutes a shape
    ordered: bool = True  # is a problem of a larger size a larger problem?

    @property
    def source(self) -> Path:
        """The file with its formula."""
        function = self.make.func if isinstance(self.make, partial) else self.make
        return Path(str(sys.modules[function.__module__].__file__))

    def allows(self, library: str, variant: str, shape: Shape) -> bool:
        """Is this way to use a library measured here?"""
        if variant == "compiled":
            return shape in self.compiled
        if library != "ours":
            return True
        return self.layer if variant == "layer" else self.node


def generator(name: str, size: int, batch: int, seed: int) -> np.random.Generator:
    """The same numbers for the same problem, whoever asks."""
    return np.random.default_rng([*name.encode(), size, batch, seed])


def definite(draw: np.random.Generator, *shape: int) -> Array:
    """Random matrices (..., n, n) with eigenvalues from 0.1 to about 4."""
    n = shape[-1]
    root = draw.standard_normal((*shape, n))
    return root @ root.mT / n + 0.1 * np.eye(n)
