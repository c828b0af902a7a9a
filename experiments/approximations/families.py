"""The families of layers, each in several sizes, as tasks that can be learned.

A network turns data into the input x of a layer, whose solution shall match a target. In all of them the constraints do
not depend on x (C = 0), so that every gradient is -B'z with a choice of z; :mod:`methods` makes the choices with the
formulas that a family gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from declarative import ClosedForm, DeclarativeNode
from problems import (
    Eigenvectors,
    EntropicSimplex,
    EqualityQP,
    OptimalTransport,
    RotationProjection,
    SimplexProjection,
    SphereProjection,
)

from ..shared.inputs import normal
from ..shared.knapsack import Knapsack

Extent = Literal["smallest", "some", "all"]
EXTENTS: tuple[Extent, ...] = get_args(Extent)
Map = Callable[[Tensor, Tensor], Tensor]  # of the solutions u, and of what it is applied to; (batch, m) like all others


@dataclass(frozen=True)
class Elimination:
    """What it takes to find s from A H^-1 A' s = A H^-1 v, where H is positive definite."""

    inverse: Map  # H^-1 v, (batch, m)
    rows: Map  # A z, (batch, p)
    columns: Map  # A' s, (batch, m)


@dataclass(frozen=True)
class Iteration:
    """A solver that would get closer to the solution by z <- P (z + r (v - H z))."""

    project: Map  # P, onto the null space of A
    hessian: Callable[[Tensor, Tensor, Tensor], Tensor]  # H z of x, u and z
    rate: Map  # r of x and u, at most 1 / ||H||, (batch, 1)


@dataclass(frozen=True)
class Parts:
    """What it takes to drop an equality or the bounds, where H = curvature * I and there are no other constraints."""

    normal: Tensor  # of the equality, (m,)
    curvature: float
    inside: Callable[[Tensor], Tensor]  # of u: which entries are at no bound


@dataclass(frozen=True)
class Family:
    """A layer of some size."""

    name: str
    size: str
    node: DeclarativeNode
    shape: tuple[int, ...]  # of x, without the batch
    curved: bool = False  # have the constraints a curvature?
    flat: bool = False  # is the objective linear? Then the solution is a corner, and its derivative zero
    slope: float | None = None  # b, if x is in the objective as b x'u alone
    parts: Parts | None = None
    elimination: Elimination | None = None
    iteration: Iteration | None = None  # None: the solver is a formula, whose own derivative is the exact gradient
    apart: Map = lambda y, target: (y - target).flatten(1)  # how far a solution is from its target
    layer: Callable[[DeclarativeNode, Tensor], Tensor] = lambda node, x: node(x)

    @property
    def label(self) -> str:
        """For readers."""
        return f"{self.name}, {self.size}"


def families(extent: Extent) -> Iterator[Family]:
    """The smallest size of each, to see that it works; one that says something of each; or all sizes."""
    which = EXTENTS.index(extent)
    for n in ((10,), (100,), (10, 100, 1000))[which]:
        yield Family("sphere", f"n = {n}", SphereProjection(), (n,), curved=True, slope=-1.0)
    for n in ((10,), (100,), (10, 100, 1000))[which]:
        yield Family("softmax", f"n = {n}", EntropicSimplex(1.0), (n,), slope=-1.0)
    for n, gamma in (((4, 10.0),), ((10, 1.0),), ((10, 1.0), (10, 10.0), (50, 1.0), (50, 10.0)))[which]:
        yield transport(n, gamma)
    for n in ((5,), (10,), (10, 50))[which]:
        yield eigenvector(n)
    for n in ((3,), (), (3, 10))[which]:
        yield rotation(n)
    full = [(20, p, condition) for p in (2, 10, 18) for condition in (10.0, 1e4)]
    for m, p, condition in (((6, 3, 10.0),), ((20, 10, 10.0), (20, 10, 1e4)), (*full, (60, 30, 10.0)))[which]:
        yield from programs(m, p, condition, mapped=extent != "some")
    for steps in ((4,), (), (10, 40))[which]:
        yield control(steps)
    for n in ((5,), (20,), (20, 200))[which]:
        yield network(n)
    for n in ((5,), (20,), (20, 100))[which]:
        yield from knapsacks(n, smooth=extent != "some")
    for n in ((5,), (), (10, 100))[which]:
        yield choice(n)


def transport(n: int, gamma: float) -> Family:
    """Uniform marginals; H^-1 is diagonal."""

    def rows(_: Tensor, z: Tensor) -> Tensor:
        plan: Tensor = z.unflatten(-1, (n, n))
        return torch.cat([plan.sum(-1), plan.sum(-2)], -1)

    def columns(_: Tensor, s: Tensor) -> Tensor:
        r, c = s.split(n, -1)
        spread: Tensor = r.unsqueeze(-1) + c.unsqueeze(-2)
        return spread.flatten(1)

    formulas = Elimination(lambda u, v: gamma * u * v, rows, columns)
    node = OptimalTransport(gamma, tolerance=1e-8)  # half of the digits, which is what a gradient needs
    return Family("transport", f"n = {n}, γ = {gamma:g}", node, (n, n), elimination=formulas, slope=1.0)


def eigenvector(n: int) -> Family:
    """Of the largest eigenvalue; the iteration is that of the power method, shifted."""

    def hessian(X: Tensor, u: Tensor, z: Tensor) -> Tensor:
        products = (X + X.mT) @ torch.stack([u, z], -1) / 2
        return (u * products[..., 0]).sum(-1, keepdim=True) * z - products[..., 1]

    iteration = Iteration(
        lambda u, v: v - u * (u * v).sum(-1, keepdim=True),
        hessian,
        lambda X, _: 1 / (X + X.mT).abs().sum(-1).amax(-1, True),
    )

    def apart(y: Tensor, target: Tensor) -> Tensor:
        return y.squeeze(-1) - (target * (y * target).sum(-2, keepdim=True).sign()).squeeze(-1)  # its sign is arbitrary

    return Family("eigenvector", f"n = {n}", Eigenvectors(1), (n, n), True, iteration=iteration, apart=apart)


def rotation(d: int) -> Family:
    """The nearest rotation; in the iteration a step is projected back."""

    def square(x: Tensor) -> Tensor:
        return x.view(-1, d, d)

    def project(u: Tensor, v: Tensor) -> Tensor:
        inner = square(u).mT @ square(v)
        return (square(u) @ (inner - inner.mT)).flatten(1) / 2

    def hessian(X: Tensor, u: Tensor, z: Tensor) -> Tensor:
        inner = square(u).mT @ X
        return (square(z) @ (inner + inner.mT)).flatten(1) / 2

    iteration = Iteration(project, hessian, lambda X, _: 1 / torch.linalg.matrix_norm(X).unsqueeze(-1))
    return Family("rotation", f"d = {d}", RotationProjection(), (d, d), True, iteration=iteration, slope=-1.0)


def linear(A: Tensor, H: Tensor) -> tuple[Elimination, Iteration]:
    """The formulas where both are constant: everything is prepared once."""
    projection = torch.eye(len(H), dtype=A.dtype) - torch.linalg.pinv(A) @ A
    inverse, largest = torch.linalg.inv(H), torch.linalg.eigvalsh(H)[-1].item()
    return (
        Elimination(lambda _, v: v @ inverse, lambda _, z: z @ A.mT, lambda _, s: s @ A),
        Iteration(
            lambda _, v: v @ projection, lambda _, __, z: z @ H, lambda _, u: torch.full_like(u[:, :1], 1 / largest)
        ),
    )


def programs(m: int, p: int, condition: float, mapped: bool) -> Iterator[Family]:
    """Quadratic programs with p equalities: a layer that keeps its factorisation, and a node whose solver is a map."""
    generator = torch.Generator().manual_seed(0)
    root, A, b = normal(generator, m, m), normal(generator, p, m), normal(generator, p)
    basis, values = torch.linalg.qr(root).Q, condition ** -torch.linspace(0, 1, m, dtype=torch.float64)
    Q = basis @ (values.unsqueeze(-1) * basis.mT)
    Q = (Q + Q.mT) / 2
    size, (elimination, iteration) = f"m = {m}, p = {p}, κ = {condition:g}", linear(A, Q)
    common = partial(Family, size=size, shape=(m,), elimination=elimination, iteration=iteration, slope=1.0)
    yield common("QP", node=EqualityQP(), layer=lambda node, q: node(Q, q, A, b))
    if not mapped:
        return
    matrix = torch.cat([torch.cat([Q, A.mT], 1), torch.cat([A, A.new_zeros(p, p)], 1)])
    of_q, of_b = (part[:m] for part in torch.linalg.inv(matrix).split([m, p], 1))
    node = DeclarativeNode(
        lambda q, u: u @ Q @ u / 2 + q @ u,
        lambda q, u: A @ u - b,  # noqa: ARG005
        solver=lambda q: of_b @ b - q @ of_q,
        record=True,
    )
    yield common("QP by a map", node=node)


def control(steps: int) -> Family:
    """A mass shall follow a path: position, speed and force at each step; x is the linear term of the cost."""
    eye = torch.eye(2, dtype=torch.float64)
    before = torch.tensor([[1.0, 0.2, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)  # position and speed go on
    now = torch.cat([-eye, torch.tensor([[0.02], [0.2]], dtype=torch.float64)], 1)
    A = torch.kron(torch.eye(steps, dtype=torch.float64), now)
    A += torch.kron(torch.diag(torch.ones(steps - 1, dtype=torch.float64), -1), before)
    weights = torch.tensor([1.0, 0.1, 0.05], dtype=torch.float64).repeat(steps)
    node = DeclarativeNode(
        lambda x, u: (weights * u.square()).sum() / 2 + x @ u,
        lambda x, u: A @ u,  # noqa: ARG005
        solver="newton",
        start=3 * steps,
        record=True,
    )
    elimination, iteration = linear(A, torch.diag(weights))
    return Family(
        "control", f"T = {steps}", node, (3 * steps,), elimination=elimination, iteration=iteration, slope=1.0
    )


def network(n: int) -> Family:
    """A network with hard constraints: whatever it says is brought to the nearest shares of a whole."""
    parts = Parts(torch.ones(n, dtype=torch.float64), 1.0, lambda u: u > 0)
    return Family("hard constraints", f"n = {n}", SimplexProjection(), (n,), slope=-1.0, parts=parts)


def knapsacks(n: int, smooth: bool) -> Iterator[Family]:
    """Shares of items in a knapsack by their values: as a linear program, and with a penalty on large shares."""
    weights = 3 + 5 * torch.rand(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sack = Knapsack(weights)
    capacity = sack.capacity
    if smooth:
        parts = Parts(weights, 1.0, lambda u: (u > 0) & (u < 1))
        yield Family("knapsack", f"n = {n}", sack.layer(1.0), (n,), slope=-1.0, parts=parts)
    node = DeclarativeNode(
        lambda c, u: -(c @ u),
        lambda c, u: weights @ u - capacity,  # noqa: ARG005
        lambda c, u: torch.cat([u - 1, -u]),  # noqa: ARG005
        solver=ClosedForm(sack.choose),
        record=True,
    )
    yield Family("knapsack, linear", f"n = {n}", node, (n,), flat=True, slope=-1.0)


def choice(n: int) -> Family:
    """The best of n, as a linear program."""
    node = DeclarativeNode(
        lambda c, u: -(c @ u),
        lambda c, u: u.sum() - 1,  # noqa: ARG005
        lambda c, u: -u,  # noqa: ARG005
        solver=ClosedForm(lambda c: torch.nn.functional.one_hot(c.argmax(-1), n).to(c.dtype)),
        record=True,
    )
    return Family("choice, linear", f"n = {n}", node, (n,), flat=True, slope=-1.0)
