"""Layers with a formula of their own: projection onto the simplex, entropic transport, eigenvectors."""

from __future__ import annotations

from functools import partial

from ..cases import Case, Eigen, Simplex, Transport
from .family import Family, generator


def simplex(size: int, batch: int, seed: int) -> Case:
    """Normal numbers, a few of which stay positive."""
    draw = generator("simplex", size, batch, seed)
    x = draw.standard_normal((batch, size))
    return Case(Simplex(x), {"q": -x}, draw.standard_normal(x.shape))


def transport(gamma: float, size: int, batch: int, seed: int) -> Case:
    """Uniform costs, uniform marginals."""
    draw = generator("transport", size, batch, seed)
    M = draw.uniform(size=(batch, size, size))
    return Case(Transport(M, gamma), {"M": M}, draw.standard_normal((batch, size * size)))


def eigenvector(size: int, batch: int, seed: int) -> Case:
    """Of random symmetric matrices."""
    draw = generator("eigen", size, batch, seed)
    X = draw.standard_normal((batch, size, size))
    X = (X + X.mT) / 2
    return Case(Eigen(X), {"X": X}, draw.standard_normal((batch, size)))


TRANSPORT_SHAPES = ((10, 32), (50, 1), (50, 32), (200, 1), (200, 8), (500, 1))
FEWER_SHAPES = ((10, 32), (50, 32), (200, 8), (500, 1))  # at other values of gamma: the rest says nothing new
FAMILIES = (
    Family(
        "simplex", "Projection onto the simplex", "quadratic", "unknowns",
        "The nearest point of the probability simplex; truth: the closed form in extended precision.",
        simplex, ((100, 1), (100, 32), (1000, 1), (1000, 32), (10_000, 1), (100_000, 1)), ((20, 2),),
        layer=True, node=False,
    ),
    *(
        Family(
            f"transport-{gamma:g}", f"Entropic transport, gamma = {gamma:g}", "transport", "points on each side",
            "The plan between two uniform measures; truth: Newton's method on the dual, to rounding.",
            partial(transport, gamma),
            TRANSPORT_SHAPES if gamma == 10 else FEWER_SHAPES, ((8, 2),), layer=True, node=False,
        )
        for gamma in (1.0, 10.0, 100.0)
    ),
    Family(
        "eigenvector", "Largest eigenvector", "closed form", "rows",
        "Of a random symmetric matrix; truth: all eigenvectors, in double precision.",
        eigenvector, ((10, 32), (100, 1), (100, 32), (300, 1)), ((6, 2),), layer=True, node=False,
    ),
)  # fmt: skip
