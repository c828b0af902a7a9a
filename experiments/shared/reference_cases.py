"""The problems on which the layers are compared with cvxpylayers, each stated twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import problems
from declarative import DeclarativeNode
from problems.reference import DEFAULT, TIGHT_EXPONENTIAL, Reference, Settings, Statement, load, reference

from .inputs import Draw

GAMMAS = (1.0, 10.0)
DEFAULTS_AT = 10  # the size at which transport is also compared with cvxpylayers as it comes
M = 8  # variables of the other problems


@dataclass(frozen=True)
class Case:
    """A batch of problems."""

    name: str
    node: DeclarativeNode  # ours
    xs: dict[str, Tensor]  # the inputs by name, all with a batch dimension
    build: Callable[[], Callable[..., Tensor]]  # makes the reference
    constrained: bool = True  # does the solution depend on constraints, so that leaving them out must be wrong?
    tight: bool = True  # has the reference the settings that make it accurate?

    @classmethod
    def ready_made(cls, name: str, layer: problems.Layer, constrained: bool = True, **xs: Tensor) -> Case:
        """A layer whose reference is known."""
        return cls(name, layer, xs, lambda: reference(layer, *xs.values()), constrained)

    @classmethod
    def own(cls, name: str, node: DeclarativeNode, state: Callable[..., Statement], **xs: Tensor) -> Case:
        """A node of callables, and a function of (cvxpy, *xs) for its reference."""
        return cls(name, node, xs, lambda: Reference(state(load()[0], *xs.values())))

    def with_settings(self, words: str, settings: Settings) -> Case:
        """Compared with other settings, for the record."""
        layer = self.node
        assert isinstance(layer, problems.Layer)
        build = lambda: reference(layer, *self.xs.values(), settings=settings)  # noqa: E731
        return dataclasses.replace(self, name=f"{self.name}, {words}", build=build, tight=False)


def all_cases(sizes: tuple[int, ...], batch: int, seed: int) -> Iterator[Case]:
    """Transport of these sizes, the other ready-made layers, and nodes that are nothing but callables."""
    draw = Draw(batch, torch.Generator().manual_seed(seed))
    for size in sizes:
        yield from transport_cases(size, draw)
    yield from layer_cases(draw)
    yield from node_cases(draw)


def transport_cases(size: int, draw: Draw) -> Iterator[Case]:
    """With uniform marginals as in the paper, and with marginals that are inputs."""
    cost, r, c = draw.uniform(size, size), draw.marginal(size), draw.marginal(size)
    for gamma in GAMMAS:
        layer, name = problems.OptimalTransport(gamma), f"transport {size} x {size}, gamma {gamma:g}"
        uniform = Case.ready_made(name, layer, M=cost)
        yield uniform
        yield Case.ready_made(f"{name}, marginals", layer, M=cost, r=r, c=c)
        if size == DEFAULTS_AT:
            yield uniform.with_settings("cvxpylayers' defaults", DEFAULT)


def layer_cases(draw: Draw) -> Iterator[Case]:
    """The other ready-made layers."""
    yield Case.ready_made("simplex", problems.SimplexProjection(), x=draw.normal(M))
    yield Case.ready_made("entropic simplex", problems.EntropicSimplex(0.7), x=draw.normal(M))
    points = draw.radii() * torch.nn.functional.normalize(draw.normal(M))
    yield Case.ready_made("ball", problems.BallProjection(), x=points)
    Q, q, A, b, G, h = draw.program(M, 3, 6)
    yield Case.ready_made("equality QP", problems.EqualityQP(), Q=Q, q=q, A=A, b=b)
    yield Case.ready_made("QP with inequalities", problems.QuadraticProgram(), Q=Q, q=q, A=A, b=b, G=G, h=h)
    rows, right = draw.normal(2 * M, M), draw.normal(2 * M)
    weights = draw.uniform(2 * M) + 0.2
    yield Case.ready_made("least squares", problems.LeastSquares(), constrained=False, A=rows, b=right, w=weights)


# Nodes that are given by nothing but callables, and solved by Newton's method.


def node_cases(draw: Draw) -> Iterator[Case]:
    """Each kind of constraint, with inputs in objective and constraints."""
    x, a, level = draw.normal(M), draw.normal(M), draw.normal()
    yield Case.own("node: plane", PLANE, state_plane, x=x, a=a, b=level)
    yield Case.own("node: moving ball", MOVING_BALL, state_moving_ball, x=2 * x, centre=a, radius=draw.uniform() + 0.5)
    yield Case.own("node: box", BOX, state_box, Q=draw.definite(M), q=3 * x, bound=draw.uniform(M) + 0.5)
    yield Case.own("node: entropy and moments", MOMENTS, state_moments, x=x, A=a)
    yield Case.own("node: logarithms", LOGARITHMS, state_logarithms, x=draw.uniform(M) + 0.5, w=draw.uniform(M) + 0.5)
    yield Case.own("node: log-sum-exp", SOFT_MAXIMUM, state_soft_maximum, x=x, A=draw.normal(2, M))


def _half_square(x: Tensor, *rest: Tensor) -> Tensor:
    return (rest[-1] - x).square().sum() / 2


PLANE = DeclarativeNode(_half_square, lambda x, a, b, u: a @ u - b, start=M)  # noqa: ARG005


def state_plane(cp: Any, *_: Tensor) -> Statement:
    """The nearest point of a plane."""
    u, x, a, b = cp.Variable(M), cp.Parameter(M), cp.Parameter(M), cp.Parameter()
    return Statement(cp.sum_squares(u - x) / 2, [a @ u == b], [x, a, b], u)


MOVING_BALL = DeclarativeNode(
    _half_square,
    inequality=lambda x, centre, radius, u: ((u - centre).square().sum() - radius**2) / 2,  # noqa: ARG005
    start=lambda x, centre, radius: centre + 0.1 * (x - centre) * radius,
)


def state_moving_ball(cp: Any, *_: Tensor) -> Statement:
    """The nearest point of a ball whose centre and radius are inputs."""
    u, x, centre, radius = cp.Variable(M), cp.Parameter(M), cp.Parameter(M), cp.Parameter()
    return Statement(cp.sum_squares(u - x) / 2, [cp.norm(u - centre, 2) <= radius], [x, centre, radius], u)


BOX = DeclarativeNode(
    lambda Q, q, bound, u: u @ Q @ u / 2 + q @ u,  # noqa: ARG005
    inequality=lambda Q, q, bound, u: torch.cat([u - bound, -u - bound]),  # noqa: ARG005
    start=lambda Q, q, bound: torch.zeros_like(q),  # noqa: ARG005
)


def state_box(cp: Any, *_: Tensor) -> Statement:
    """A quadratic function in a box."""
    u, root, q, bound = cp.Variable(M), cp.Parameter((M, M)), cp.Parameter(M), cp.Parameter(M)
    prepare = lambda Q, q, bound: (torch.linalg.cholesky((Q + Q.mT) / 2).mT, q, bound)  # noqa: E731
    objective, constraints = cp.sum_squares(root @ u) / 2 + q @ u, [u <= bound, -u <= bound]
    return Statement(objective, constraints, [root, q, bound], u, prepare=prepare)


MOMENTS = DeclarativeNode(
    lambda x, A, u: x @ u + (u * u.log()).sum(),  # noqa: ARG005
    lambda x, A, u: torch.stack([u.sum() - M, A @ u - A.sum() - 0.5]),  # noqa: ARG005
    start=lambda x, A: torch.ones_like(x),  # noqa: ARG005
)


def state_moments(cp: Any, *_: Tensor) -> Statement:
    """The largest entropy under two linear constraints, one of which has its coefficients as an input."""
    u, x, A, total = cp.Variable(M), cp.Parameter(M), cp.Parameter(M), cp.Parameter()
    objective = x @ u + cp.sum(cp.kl_div(u, 1))  # which is u log u - u + 1, and the sum of u is given
    constraints = [cp.sum(u) / M == 1, A @ u == total]
    return Statement(
        objective, constraints, [x, A, total], u, lambda x, A: (x, A, A.sum(-1) + 0.5), settings=TIGHT_EXPONENTIAL
    )


LOGARITHMS = DeclarativeNode(
    lambda x, w, u: -(w * u.log()).sum(),  # noqa: ARG005
    lambda x, w, u: x @ u - M,  # noqa: ARG005
    start=lambda x, w: torch.ones_like(x),  # noqa: ARG005
)


def state_logarithms(cp: Any, *_: Tensor) -> Statement:
    """A budget for goods with prices x and weights w: u_i = M w_i / (x_i sum(w))."""
    u, x, w = cp.Variable(M), cp.Parameter(M), cp.Parameter(M, nonneg=True)
    return Statement(-w @ cp.log(u), [x @ u == M], [x, w], u, settings=TIGHT_EXPONENTIAL)


SOFT_MAXIMUM = DeclarativeNode(
    lambda x, A, u: torch.logsumexp(u + x, 0) + u.square().sum() / 2,  # noqa: ARG005
    lambda x, A, u: A @ u - 1,  # noqa: ARG005
    start=M,
)


def state_soft_maximum(cp: Any, *_: Tensor) -> Statement:
    """A smooth maximum with a ridge, on a subspace."""
    u, x, A = cp.Variable(M), cp.Parameter(M), cp.Parameter((2, M))
    objective = cp.log_sum_exp(u + x) + cp.sum_squares(u) / 2
    return Statement(objective, [A @ u == 1], [x, A], u, settings=TIGHT_EXPONENTIAL)
