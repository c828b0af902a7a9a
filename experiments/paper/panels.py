"""The eight panels of the paper's experiments: what the network feeds to a layer, and what it shall learn.

All have m = 10, a batch of 10 problems, and a three-layer network that is as wide as its output. Losses and targets are
those of the paper's text; the published code has others in part, and :func:`as_published` gives these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from problems import Eigenvectors, Layer, OptimalTransport, SphereProjection

from ..shared.inputs import normal

M = 10  # the size of a problem
BATCH = 10
NARROW, WIDE = 5, 100  # the dimension of the data: it is easier to map many dimensions to arbitrary targets
DEFINITE = 1e-9  # keeps -UU' definite in float64 even if U loses rank on the way


@dataclass(frozen=True)
class Panel:
    """One experiment."""

    name: str  # for the command line
    title: str  # for readers
    family: str  # projection, transport or eigen
    data: int  # the dimension of the data that the network gets
    width: int  # of the network and of its output
    layer: Callable[[], Layer]
    layer_input: Callable[[Tensor], Tensor]  # of the output of the network, (batch, width)
    target: Callable[[torch.Generator], Tensor]  # draws those of one repeat, in float64
    loss: Callable[[Tensor, Tensor], Tensor]  # of y and target, (members, batch, ...): that of each batch, (members,)
    log_scale: bool  # has the learning curve a logarithmic axis?


# What the network feeds to the layer.


def _vector(x: Tensor) -> Tensor:
    return x


def _matrix(x: Tensor) -> Tensor:
    matrix: Tensor = x.unflatten(-1, (M, M))
    return matrix


def _negative_definite(x: Tensor) -> Tensor:
    U = _matrix(x)
    return -(U @ U.mT) - DEFINITE * torch.eye(M, dtype=x.dtype, device=x.device)


def _rank_one(x: Tensor) -> Tensor:
    u: Tensor = x.unflatten(-1, (M, 2))[..., :1]
    return u @ u.mT


def _rank_two(x: Tensor) -> Tensor:
    U: Tensor = x.unflatten(-1, (M, 2))
    return U @ U.mT


# Targets.


def _unit_vectors(generator: torch.Generator) -> Tensor:
    return normalize(normal(generator, BATCH, M), dim=-1)


def _plans(generator: torch.Generator) -> Tensor:
    plans: Tensor = OptimalTransport()(normal(generator, BATCH, M, M))
    return plans


def _all_eigenvectors(generator: torch.Generator) -> Tensor:
    X = normal(generator, BATCH, M, M)
    vectors: Tensor = torch.linalg.eigh((X + X.mT) / 2).eigenvectors
    return vectors


def _last_eigenvector(generator: torch.Generator) -> Tensor:
    return _all_eigenvectors(generator)[..., -1:]


def _positive_unit_vectors(generator: torch.Generator) -> Tensor:
    return normalize(_uniform(generator, BATCH, M), dim=-1)


def _eigenvectors_of_a_lower_half(generator: torch.Generator) -> Tensor:
    """As eigh reads an unsymmetric matrix: what is above its diagonal does not count."""
    X = _uniform(generator, BATCH, M, M)
    vectors: Tensor = torch.linalg.eigh(X.tril() + X.tril(-1).mT).eigenvectors
    return vectors


def _last_eigenvector_of_a_lower_half(generator: torch.Generator) -> Tensor:
    return _eigenvectors_of_a_lower_half(generator)[..., -1:]


def _uniform(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64)


# Losses.


def squared_distance(y: Tensor, target: Tensor) -> Tensor:
    """||y - y*||^2, averaged over a batch."""
    dims = tuple(range(2, y.dim()))  # after (members, batch)
    return (y - target).square().sum(dims).mean(-1)


def distance(y: Tensor, target: Tensor) -> Tensor:
    """||y - y*||, of a batch as one vector; its gradient does not fade as y comes near to y*."""
    found: Tensor = torch.linalg.vector_norm((y - target).flatten(1), dim=-1)
    return found


def squared_entry(y: Tensor, target: Tensor) -> Tensor:
    """(y - y*)^2, averaged over all entries of a batch."""
    found: Tensor = (y - target).square().flatten(1).mean(-1)
    return found


def misalignment(y: Tensor, target: Tensor) -> Tensor:
    """1 - |y' y*|, averaged over the eigenvectors of a batch; the sign of an eigenvector is arbitrary.

    It is written as a cosine of y and y*. For the unit vectors that come here the value is the same, but only the part
    of y* that turns y remains in the gradient: an approximate rule should not be blamed for a part that stretches y,
    which no loss on directions means.
    """
    return 1 - cosine_similarity(y, target, dim=-2).abs().mean((-2, -1))


def _projection(name: str, data: int, title: str) -> Panel:
    return Panel(
        name, title, "projection", data, M, SphereProjection, _vector, _unit_vectors, squared_distance, log_scale=True
    )


def _transport(name: str, data: int, title: str) -> Panel:
    return Panel(
        name, title, "transport", data, M * M, OptimalTransport, _matrix, _plans, squared_distance, log_scale=True
    )


def _eigen(
    name: str, title: str, layer_input: Callable[[Tensor], Tensor] = _matrix, k: int | None = 1, width: int = M * M
) -> Panel:
    target = _all_eigenvectors if k is None else _last_eigenvector
    return Panel(
        name, title, "eigen", NARROW, width, lambda: Eigenvectors(k), layer_input, target, misalignment, log_scale=False
    )


PANELS: dict[str, Panel] = {
    panel.name: panel
    for panel in (
        _projection("projection-under", NARROW, "Projection onto the sphere, under-parameterised"),
        _projection("projection-over", WIDE, "Projection onto the sphere, over-parameterised"),
        _transport("transport-under", NARROW, "Optimal transport, under-parameterised"),
        _transport("transport-over", WIDE, "Optimal transport, over-parameterised"),
        _eigen("eigen-all", "All eigenvectors, general X", k=None),
        _eigen("eigen-largest", "Eigenvector of the largest eigenvalue, general X"),
        _eigen("eigen-negative", "Eigenvector of the largest eigenvalue, X negative definite", _negative_definite),
        _eigen("eigen-rank2", "Eigenvector of the largest eigenvalue, X of rank 2", _rank_two, width=2 * M),
    )
}


# What the published code has instead, in words, for each family.
PUBLISHED = {
    "projection": "targets with positive entries, and a mean over entries",
    "transport": "the distance of the whole batch, not squared",
    "eigen": "targets from the lower half of a matrix of uniform numbers, and rank 1 where the text says 2",
}


def as_published(panel: Panel) -> Panel:
    """The panel with the loss, the targets and the rank of the published code."""
    if panel.family == "transport":
        return replace(panel, loss=distance)
    if panel.family == "projection":
        return replace(panel, loss=squared_entry, target=_positive_unit_vectors)
    target = _eigenvectors_of_a_lower_half if panel.name == "eigen-all" else _last_eigenvector_of_a_lower_half
    layer_input = _rank_one if panel.name == "eigen-rank2" else panel.layer_input
    return replace(panel, target=target, layer_input=layer_input)


def find_panels(names: Sequence[str]) -> list[Panel]:
    """The panels of these names, in the paper's order; ``all`` means every one.

    Raises:
        ValueError: a name is not that of a panel; the message lists those that are.
    """
    unknown = [name for name in names if name not in PANELS and name != "all"]
    if unknown:
        raise ValueError(f"there is no panel {', '.join(map(repr, unknown))}: choose from {', '.join(PANELS)}, or all.")
    return [panel for name, panel in PANELS.items() if name in names or "all" in names]
