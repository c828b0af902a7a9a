"""The speed of nodes that are nothing but callables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import normalize

from declarative import DeclarativeNode
from problems import EqualityQP, QuadraticProgram, SphereProjection

from ..shared.inputs import Draw, normal
from .baselines import dense_node, kkt_matrix, kkt_solve
from .peers import TIGHT_PEER, Peers, cvxpylayers, qpth
from .rows import Comparison, Growth, Pair, Sides, Study, Target
from .timing import Side, both

JAX_SOLVERS = ("normal cg", "gmres")  # the KKT matrix is indefinite: conjugate gradients need its square
recorded = partial(DeclarativeNode, record=True)  # warm from the second call on, as it is in a training loop
COMPILED = "jaxopt runs one compiled program, while each of our calls is steps of torch and Python with checks"


def studies(quick: bool, peers: Peers) -> Iterator[Study]:
    """All of them, one after the other."""
    yield newton_against_scipy(8 if quick else 256)
    yield reused_factorisation(*(4, 10, 2) if quick else (64, 100, 20))
    sizes = ((5, 4), (8, 4)) if quick else ((10, 10), (10, 64), (32, 64), (100, 64), (250, 64), (500, 64))
    for n, batch in sizes:
        solvers = JAX_SOLVERS if not quick else JAX_SOLVERS[: n == 5]  # to start and compile takes seconds
        yield sphere(n, batch, quick or batch == 64, peers, solvers)
    yield Growth("sphere by callables: growth with n", "sphere by callables", "node")
    for n, batch in sizes:
        yield dense_hessian(n, batch, plotted=quick or batch == 64)
    yield equality_qp(*(4, 2, 4) if quick else (100, 20, 64))
    for batch in (4,) if quick else (10, 64):
        yield inequalities(batch, *(3, 2) if quick else (8, 6))


def newton_against_scipy(batch: int, m: int = 20, p: int = 5) -> Comparison:
    """A batch of nonlinear problems with nonlinear equality constraints; forward alone."""
    generator = torch.Generator().manual_seed(0)
    weights = normal(generator, p, m) / m**0.5
    x = normal(generator, batch, m)

    def objective(x: Tensor, u: Tensor) -> Tensor:
        return (u - x).square().sum() / 2 + u.pow(4).sum() / 10 + 0.3 * (u[1:] * u[:-1]).sin().sum()

    def equality(x: Tensor, u: Tensor) -> Tensor:
        residual: Tensor = weights @ u + 0.2 * (weights.flip(0) @ u).square() - 0.3 + 0.05 * x[:p]
        return residual

    def side(solver: str) -> Side:
        node = recorded(objective, equality, solver=solver, start=m)
        if solver == "newton":
            node(x)  # the call that records is no measure of the others
        return Side(lambda: (node(x),))

    claim = f"{batch} nonlinear problems, m = {m}, p = {p}, forward"
    pair = Pair(claim, "Newton", "SciPy", Target(at_least=50), "solutions compared")
    return Comparison({"Newton": partial(side, "newton"), "SciPy": partial(side, "scipy")}, [pair])


def reused_factorisation(batch: int, m: int, p: int) -> Comparison:
    """The backward pass with the factorisation that the solver has left, and with an assembled matrix."""
    draw = Draw(1, torch.Generator().manual_seed(0))
    matrix, rows, batched = draw.definite(m)[0], draw.normal(p, m)[0], Draw(batch, draw.generator)
    x, v = batched.normal(m).requires_grad_(), batched.normal(m)

    def objective(x: Tensor, u: Tensor) -> Tensor:
        return u @ matrix @ u / 2 - x @ u + u.pow(4).sum() / 100

    def equality(x: Tensor, u: Tensor) -> Tensor:  # noqa: ARG001
        return rows @ u - 1

    def side(reused: bool) -> Side:
        node = recorded(objective, equality, solver="newton", start=m)
        solution = node(x).detach()
        y = node(x) if reused else recorded(objective, equality, solver=lambda _: solution)(x)
        return Side(lambda: torch.autograd.grad(y, x, v, retain_graph=True))

    names = "solver's factorisation", "assembled and factored anew"
    pair = Pair(f"backward alone, batch {batch}, m = {m}, p = {p}", *names, Target(at_least=2))
    return Comparison({names[0]: partial(side, True), names[1]: partial(side, False)}, [pair])


# The nearest point of the unit sphere, by callables with a closed form.


def distance(x: Tensor, u: Tensor) -> Tensor:
    """||u - x||^2 / 2."""
    return (u - x).square().sum() / 2


def on_sphere(x: Tensor, u: Tensor) -> Tensor:  # noqa: ARG001
    """(||u||^2 - 1) / 2."""
    return (u.square().sum() - 1) / 2


def sphere(n: int, batch: int, plotted: bool, peers: Peers, solvers: Sequence[str]) -> Comparison:
    """A node, the same by dense torch.func, the ready-made layer, plain autograd, and jaxopt with its solvers."""
    draw = Draw(batch, torch.Generator().manual_seed(0))
    x, v = draw.normal(n).requires_grad_(), draw.normal(n)
    sides: Sides = {
        "node": both(recorded(distance, on_sphere, solver=normalize), (x,), v),
        "dense torch.func": both(dense_node(normalize, distance, on_sphere), (x,), v),
        "SphereProjection": both(SphereProjection(), (x,), v),
        "F.normalize, autograd": both(normalize, (x,), v),
        **{f"jaxopt, {solver}": partial(peers.jaxopt, x, v, solver) for solver in solvers},
    }
    shares = {(10, 10): 0.2, (100, 64): 0.15, (500, 64): 0.02}
    claim = f"sphere by callables, n = {n}, batch {batch}"
    pairs = [Pair(f"{claim}: dense", "node", "dense torch.func", Target(at_most=shares.get((n, batch))), share=True)]
    if plotted:
        reason = "F.normalize knows its derivative; the layer goes through the node, with its checks"
        pairs += [
            *(Pair(f"{claim}: jaxopt, {name}", "node", f"jaxopt, {name}", slower=COMPILED) for name in solvers),
            Pair(
                f"SphereProjection, n = {n}, batch {batch}", "SphereProjection", "F.normalize, autograd", slower=reason
            ),
        ]
    return Comparison(sides, pairs, "sphere by callables" if plotted else "", n)


# A dense Hessian on the sphere.


def dense_hessian(n: int, batch: int, plotted: bool) -> Comparison:
    """u' Q u / 2 - x' u + a quartic on the sphere, at a solution that is known, beside one factorisation.

    x is chosen such that y is the solution: Q y + y^3 - x = l y, with l < 0 so that H is positive definite.
    """
    draw = Draw(batch, torch.Generator().manual_seed(0))
    Q, y, v = Draw(1, draw.generator).definite(n)[0], normalize(draw.normal(n)), draw.normal(n)
    multiplier = -0.5 - draw.uniform(1)
    x = (y @ Q + y**3 - multiplier * y).requires_grad_()
    H = Q + torch.diag_embed(3 * y**2 - multiplier)
    matrix = kkt_matrix(H, y.unsqueeze(-2))
    right = torch.nn.functional.pad(v, (0, 1)).unsqueeze(-1)

    def objective(x: Tensor, u: Tensor) -> Tensor:
        return u @ Q @ u / 2 - x @ u + u.pow(4).sum() / 4

    sides = {
        "node": both(recorded(objective, on_sphere, solver=lambda _: y), (x,), v),
        "batched LU": lambda: Side(
            lambda: torch.linalg.lu_factor(matrix),
            check=lambda: (torch.linalg.solve(matrix, right).squeeze(-1)[:, :n],),
        ),
        "dense torch.func": both(dense_node(lambda _: y.clone(), objective, on_sphere), (x,), v),
    }
    claim = f"dense Hessian, n = {n}, batch {batch}"
    target = Target(at_most=3) if n in (100, 250, 500) else Target()
    note = "one factorisation of the KKT matrix, the least there is to do without structure"
    pairs = [
        Pair(f"{claim}: LU", "node", "batched LU", target, note, share=True),
        Pair(f"{claim}: dense", "node", "dense torch.func", share=True),
    ]
    return Comparison(sides, pairs, "dense Hessian on the sphere" if plotted else "", n)


# Quadratic programs by callables.


def quadratic(Q: Tensor, q: Tensor, *rest: Tensor) -> Tensor:
    """u' Q u / 2 + q' u."""
    return rest[-1] @ Q @ rest[-1] / 2 + q @ rest[-1]


def equality_qp(n: int, p: int, batch: int) -> Comparison:
    """Newton forward, exact backward; with all data as inputs, and with Q, A, b as constants."""
    draw = Draw(batch, torch.Generator().manual_seed(0))
    xs = draw.definite(n), draw.normal(n), draw.normal(p, n), draw.normal(p)
    v = draw.normal(n)
    Q, q, A, b = (x.requires_grad_() for x in xs)
    Q0, A0, b0 = (x[0].detach() for x in (Q, A, b))
    matrix = kkt_matrix(Q, A).detach()
    idle = torch.zeros(batch, 1, n, dtype=Q.dtype), torch.ones(batch, 1, dtype=Q.dtype)  # 0 <= 1

    all_inputs = recorded(quadratic, lambda Q, q, A, b, u: A @ u - b, solver="newton", start=n)  # noqa: ARG005
    constants = recorded(
        lambda q, u: quadratic(Q0, q, u),
        lambda q, u: A0 @ u - b0,  # noqa: ARG005
        solver="newton",
        start=n,
    )
    fixed = Q0.expand(batch, n, n), q, A0.expand(batch, p, n), b0.expand(batch, p)
    gradient = lambda: torch.autograd.grad(kkt_solve(*xs), xs, v)  # noqa: E731
    sides = {
        "node": both(all_inputs, xs, v),
        "node, only q an input": both(constants, (q,), v),
        "batched LU": lambda: Side(lambda: torch.linalg.lu_factor(matrix), check=gradient),
        "batched LU, shared data": lambda: Side(
            lambda: torch.linalg.lu_factor(matrix), check=lambda: torch.autograd.grad(kkt_solve(*fixed), q, v)
        ),
        "KKT solve, autograd": both(kkt_solve, xs, v),
        "EqualityQP": both(EqualityQP(), xs, v),
        "QuadraticProgram": both(QuadraticProgram(), xs, v),
        "qpth": lambda: qpth((*xs, *idle), v),
        "cvxpylayers": lambda: cvxpylayers(EqualityQP(), xs, v),
    }
    return Comparison(sides, _equality_pairs(f"n = {n}, p = {p}, batch {batch}"))


def _equality_pairs(size: str) -> list[Pair]:
    claim, layer = f"equality QP by callables, {size}", f"EqualityQP, {size}"
    limit = Target(at_most=3)
    return [
        Pair(f"{claim}: LU", "node", "batched LU", limit, "each problem its own data, all with gradients", share=True),
        Pair(
            f"{claim}: LU, shared Q and A", "node, only q an input", "batched LU, shared data", limit,
            "Q, A and b are constants", share=True,
        ),
        Pair(f"{claim}: KKT solve", "node", "KKT solve, autograd"),
        Pair(f"{claim}: qpth", "node", "qpth", Target(at_least=5), "qpth needs an inequality: it gets 0 <= 1"),
        Pair(f"{claim}: cvxpylayers", "node", "cvxpylayers", Target(at_least=50), TIGHT_PEER),
        Pair(f"{layer}: LU", "EqualityQP", "batched LU", limit, share=True),
        Pair(f"QuadraticProgram, {size}: LU", "QuadraticProgram", "batched LU", limit, share=True),
        Pair(f"{layer}: KKT solve", "EqualityQP", "KKT solve, autograd"),
        Pair(f"{layer}: qpth", "EqualityQP", "qpth"),
    ]  # fmt: skip


def inequalities(batch: int, m: int, count: int) -> Comparison:
    """A small quadratic program with inequalities through the generic solver and system."""
    draw = Draw(batch, torch.Generator().manual_seed(0))
    Q, q, _, _, G, h = draw.program(m, 0, count)
    Q, q, G, h = xs = tuple(x.requires_grad_() for x in (Q, 3 * q, G, h))
    v = draw.normal(m)
    node = recorded(quadratic, inequality=lambda Q, q, G, h, u: G @ u - h, start=m)  # noqa: ARG005
    sides = {
        "node": both(node, xs, v),
        "cvxpylayers": lambda: cvxpylayers(QuadraticProgram(), (Q, q, None, None, G, h), v),
    }
    claim = f"node with inequalities, m = {m}, {count} of them, batch {batch}"
    slower = "a call is many small steps of torch and Python, whatever the batch; cvxpylayers solves in compiled code"
    return Comparison(sides, [Pair(claim, "node", "cvxpylayers", note=TIGHT_PEER, slower=slower)])
