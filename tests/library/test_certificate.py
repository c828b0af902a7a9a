"""Certificates of descent: never false, and no better than what is known."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from declarative import Adaptive, ClosedForm, DeclarativeNode, NumericalWarning
from declarative.theory.certificate import Certificate, QuadraticForms, decide
from declarative.theory.schur_complement import SchurComplement, floor_of_rows, probable_floor, schur_complement
from experiments.certificate.backward import Certified, backward
from experiments.certificate.nodes import BATCH, CHEAP, KINDS, definite, random_kinds, search
from experiments.certificate.transport import transport_complement
from experiments.shared.inputs import normal
from experiments.shared.rules import counted_warnings
from problems import OptimalTransport
from tests.support.helpers import DOUBLE, gradients

SEEDS = range(100, 103)


def explicit(S: Tensor, floor: Tensor | None = None) -> SchurComplement:
    """A complement with a matrix, of H = I."""
    root = torch.linalg.cholesky(S)
    lowest = torch.linalg.eigvalsh(S)[:, 0] if floor is None else floor
    return SchurComplement(
        lambda z: z,
        lambda z: (root @ z.unsqueeze(-1)).squeeze(-1),
        lambda s: (root.mT @ s.unsqueeze(-1)).squeeze(-1),
        lowest,
    )


def watch(node: DeclarativeNode, xs: Sequence[Tensor], v: Tensor, *how: Any, **options: Any) -> Certified:
    """The certificates of a batch for the incoming gradient v; the rest is that of :meth:`Certified.at`."""
    seen: list[Certified] = []
    backward(node, xs, v, lambda *place: seen.append(Certified.at(*place, *how, **options)))
    return seen[0]


def quadratic(S: Tensor, b: Tensor) -> Tensor:
    return (b * torch.linalg.solve(S, b)).sum(-1)


@pytest.fixture
def random() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_the_quadratic_form_is_between_the_bounds_which_close(random: torch.Generator) -> None:
    S, b = definite(random, 50, 9), normal(random, 50, 9)
    truth = quadratic(S, b)
    bounds = QuadraticForms(explicit(S, 0.9 * torch.linalg.eigvalsh(S)[:, 0]), b, b.norm(dim=-1))
    widths = []
    for _ in range(12):
        assert (bounds.lower <= truth * (1 + 1e-9)).all()
        assert (bounds.upper >= truth * (1 - 1e-9)).all()
        widths.append(bounds.upper - bounds.lower)
        bounds.step()
    assert all((after <= before * (1 + 1e-9)).all() for before, after in pairwise(widths[:9]))
    assert (widths[0] > 0.1 * truth).all()
    assert (widths[-1] < 1e-6 * truth).all()


def test_the_upper_bound_is_that_of_gauss_and_radau(random: torch.Generator) -> None:
    """Of the tridiagonal matrix of Lanczos' method, extended so that the floor is an eigenvalue."""
    S, b, k = definite(random, 1, 8), normal(random, 1, 8), 3
    floor = 0.7 * torch.linalg.eigvalsh(S)[:, 0]
    bounds = QuadraticForms(explicit(S, floor), b, b.norm(dim=-1))
    for _ in range(k):
        bounds.step()
    vectors = torch.linalg.qr(torch.stack([torch.linalg.matrix_power(S[0], i) @ b[0] for i in range(k + 1)], -1)).Q
    T = vectors.mT @ S[0] @ vectors
    inner, coupling = T[:k, :k], T[k, k - 1]
    unit = torch.eye(k, dtype=DOUBLE)
    last = floor + coupling.square() * torch.linalg.inv(inner - floor * unit)[-1, -1]
    T = T.tril(1).triu(-1)
    T[k, k] = last
    squared = b.square().sum()
    torch.testing.assert_close(bounds.lower[0], squared * torch.linalg.inv(inner)[0, 0], rtol=1e-7, atol=0)
    torch.testing.assert_close(bounds.upper[0], squared * torch.linalg.inv(T)[0, 0], rtol=1e-6, atol=0)


def test_never_false_on_random_nodes() -> None:
    """All kinds of constraints and all rules; ``python -m experiments certificate`` tries some ten thousand nodes."""
    rows, words = search(SEEDS[0], len(SEEDS), lambda _: None)
    nodes = KINDS * BATCH * len(SEEDS) * len(CHEAP)
    assert words == f"0 false of {nodes} certificates"
    assert sum(row["ascending"] for row in rows) > nodes // 20  # there is something to be found
    assert sum(row["decided"] for row in rows) > 0.9 * nodes
    assert 0.2 * nodes < sum(row["early"] for row in rows) < 0.9 * nodes


def test_bounds_and_the_share_of_the_promise() -> None:
    kind = next(random_kinds(SEEDS[0], 40))
    v = normal(torch.Generator().manual_seed(1), 40, kind.size)
    for share in (0.0, 0.3, 0.9):
        seen = watch(kind.node, kind.xs, v, "unconstrained", share=share)
        excess = seen.product - share * seen.g_hat.square().sum(-1)
        relative = excess / (v.norm(dim=-1) * seen.g_hat.norm(dim=-1))
        assert (seen.certificate.lower <= relative).all()
        assert (seen.certificate.upper >= relative).all()
        assert torch.equal(seen.certificate.descends, seen.certificate.lower > 0)
        assert torch.equal(seen.certificate.ascends, seen.certificate.upper < 0)
        assert seen.certificate.decided.all()
        assert torch.equal(seen.certificate.descends, excess > 0)
        assert seen.false(share) == 0


def test_a_count_of_false_ones_would_notice(random: torch.Generator) -> None:
    g = normal(random, 4, 3)
    yes, no = torch.ones(4, dtype=torch.bool), torch.zeros(4, dtype=torch.bool)
    numbers = (torch.zeros(4), torch.zeros(4), torch.zeros(4))
    assert Certified(Certificate(yes, no, *numbers), g, -g).false() == 4
    assert Certified(Certificate(no, yes, *numbers), g, g).false() == 4
    assert Certified(Certificate(no, yes, *numbers), g, -g).false() == 0


def test_without_a_floor_nothing_is_decided(random: torch.Generator) -> None:
    S, w, r = definite(random, 5, 4), normal(random, 5, 4), normal(random, 5, 4)
    known = torch.full((5,), 1e6, dtype=DOUBLE)
    assert decide(explicit(S), known, known, w, r).descends.all()
    assert not decide(explicit(S, torch.zeros(5, dtype=DOUBLE)), known, known, w, r).decided.any()


def test_a_floor_that_is_none_is_found_out_in_the_end(random: torch.Generator) -> None:
    S, b = definite(random, 20, 6), normal(random, 20, 6)
    bounds = QuadraticForms(explicit(S, 50 * torch.linalg.eigvalsh(S)[:, 0]), b, b.norm(dim=-1))
    for _ in range(6):
        bounds.step()
    assert bounds.upper.isinf().double().mean() > 0.7


def test_indefinite_curvature_is_not_certified() -> None:
    """A minimum where H is indefinite: S is too, and no bound holds."""
    node = DeclarativeNode(
        lambda x, u: u[0] ** 2 - u[1] ** 2 + x @ u,
        lambda x, u: u[1] - 0.5 * u[0],  # noqa: ARG005
        solver="newton",
        start=2,
    )
    x = torch.tensor([[0.3, 0.1], [1.0, -1.0]], dtype=DOUBLE)
    seen = watch(node, (x,), torch.ones_like(x), "curvature")
    assert not seen.certificate.decided.any()


def test_dependent_constraints_have_no_floor() -> None:
    rows = torch.tensor([[[1.0, 2.0, 0.0], [2.0, 4.0, 0.0]], [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]], dtype=DOUBLE)
    floors = floor_of_rows(rows)
    assert floors[0] < 1e-12
    torch.testing.assert_close(floors[1].item(), 1.0)
    assert floor_of_rows(rows[:, :0]).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("gamma", [1.0, 10.0, 40.0])
def test_the_floor_of_transport_is_one(gamma: float, random: torch.Generator) -> None:
    costs, n = torch.rand(6, 4, 5, generator=random, dtype=DOUBLE), 9
    r, c = (torch.rand(6, k, generator=random, dtype=DOUBLE) + 0.2 for k in (4, 5))
    r, c = r / r.sum(-1, keepdim=True), c / c.sum(-1, keepdim=True)
    found = []
    backward(OptimalTransport(gamma), (costs, r, c), normal(random, 6, 20), lambda point, *_: found.append(point))
    complement = transport_complement(found[0])
    S = torch.stack([complement(unit.expand(6, n)) for unit in torch.eye(n, dtype=DOUBLE)], -1)
    values = torch.linalg.eigvalsh(S)
    assert values[:, 0].abs().max() < 1e-9 * gamma
    assert (values[:, 1] >= complement.floor).all()
    assert (complement.floor > 0).all()


def test_transport_with_marginals_as_inputs(random: torch.Generator) -> None:
    costs = torch.rand(50, 4, 5, generator=random, dtype=DOUBLE)
    r, c = (torch.softmax(normal(random, 50, k), -1) for k in (4, 5))
    for rule in CHEAP:
        v = normal(random, 50, 20)
        seen = watch(OptimalTransport(5.0), (costs, r, c), v, rule, transport_complement)
        assert seen.false() == 0
        assert seen.certificate.decided.double().mean() > 0.9
        relative = seen.product / (v.norm(dim=-1) * seen.g_hat.norm(dim=-1))
        assert (seen.certificate.lower <= relative).all()
        assert (seen.certificate.upper >= relative).all()


def test_rounding_errors_of_the_right_hand_side_belong_to_the_bound() -> None:
    """b = (1, 0) may have been (1, 1e-16), and with an eigenvalue of 1e-32 that doubles b'S^-1 b."""
    S = torch.diag(torch.tensor([1.0, 1e-32], dtype=DOUBLE)).unsqueeze(0)
    b = torch.tensor([[1.0, 0.0]], dtype=DOUBLE)
    bounds = QuadraticForms(explicit(S), b, b.norm(dim=-1))
    for _ in range(3):
        bounds.step()
        assert bounds.lower.item() == pytest.approx(1.0)
        assert bounds.upper.item() > quadratic(S, b + torch.tensor([0.0, 1e-16], dtype=DOUBLE)).item()


def test_an_ill_conditioned_plan_is_not_certified_by_rounding_errors() -> None:
    """The spectrum of S begins at 1e-30, below what the residual has of rounding errors: nothing can be known."""
    random, false = torch.Generator().manual_seed(5), 0
    for _ in range(4):
        costs = torch.rand(400, 3, 4, generator=random, dtype=DOUBLE)
        for rule in ("unconstrained", "identity"):
            seen = watch(OptimalTransport(90.0), (costs,), normal(random, 400, 12), rule, transport_complement)
            false += seen.false()
    assert false == 0


@pytest.mark.parametrize(("dtype", "exponent"), [(DOUBLE, -548), (DOUBLE, 498), (torch.float32, -66)])
def test_the_size_of_the_incoming_gradient_does_not_matter(dtype: torch.dtype, exponent: int) -> None:
    """Though squares underflow, and quadratic forms with them: there was a false certificate in every tenth.

    A power of two rounds nothing, so that nothing may change. (With another size, roundings do, and what conjugate
    gradients have found when they are left depends on them by far more than a few digits.)
    """
    size = 2.0**exponent
    for kind in random_kinds(202, 60):
        xs = tuple(x.to(dtype) for x in kind.xs)
        v = normal(torch.Generator().manual_seed(202), 60, kind.size).to(dtype)
        for rule in CHEAP:
            with counted_warnings():  # of kinks
                usual, other = (watch(kind.node, xs, factor * v, rule, kind.complement) for factor in (1.0, size))
            for one in dataclasses.fields(Certificate):
                assert torch.equal(getattr(usual.certificate, one.name), getattr(other.certificate, one.name))
            assert torch.equal(usual.certificate.descends, usual.certificate.lower > 0)
            assert torch.equal(usual.certificate.ascends, usual.certificate.upper < 0)
            assert usual.false() == 0


def quadratic_node(H: Tensor, A: Tensor, y: Tensor, **options: Any) -> DeclarativeNode:
    """min u'Hu/2 + q'u subject to A u = A y, which y solves for a suitable q."""
    return DeclarativeNode(
        lambda q, u: u @ H @ u / 2 + q @ u,
        lambda q, u: A @ (u - y),  # noqa: ARG005
        solver=ClosedForm(lambda q: y.expand(q.shape), stationary=True),
        **options,
    )


def test_no_constraint_is_too_small_to_count(random: torch.Generator) -> None:
    """The squares of its entries underflow, but it is a constraint."""
    H, A, y, v = definite(random, 1, 5)[0], normal(random, 2, 5), normal(random, 5), normal(random, 40, 5)
    q = -(H @ y).expand(40, 5)
    usual, tiny = (watch(quadratic_node(H, size * A, y), (q,), v, "identity").certificate for size in (1.0, 1e-170))
    assert usual.decided.all()
    assert torch.equal(tiny.descends, usual.descends)
    torch.testing.assert_close(tiny.lower, usual.lower, rtol=1e-5, atol=0)


def test_pivots_do_not_tell_how_definite_a_matrix_is(random: torch.Generator) -> None:
    """Those of this one are all 1, and its smallest eigenvalue is 1e-14 of the largest."""
    m = 24
    root = torch.eye(m, dtype=DOUBLE) - torch.ones(m, m, dtype=DOUBLE).triu(1)
    A, y, v = normal(random, 3, m), torch.zeros(m, dtype=DOUBLE), normal(random, 20, m)
    floors = []
    for H in (root.mT @ root, root.mT @ root + torch.eye(m, dtype=DOUBLE)):
        node, look = quadratic_node(H, A, y), lambda point, *_: floors.append(schur_complement(point).floor)
        backward(node, (torch.zeros(20, m, dtype=DOUBLE),), v, look)
    assert not floors[0].any()
    assert floors[1].all()


def test_the_units_of_unknowns_do_not_matter(random: torch.Generator) -> None:
    """H of condition number 1e12 because of them alone is no obstacle."""
    basis, y, v = definite(random, 1, 6)[0], torch.zeros(6, dtype=DOUBLE), normal(random, 40, 6)
    units = torch.logspace(-3, 3, 6, dtype=DOUBLE)
    A = normal(random, 2, 6)
    plain, scaled = (
        watch(quadratic_node(H, rows, y), (torch.zeros(40, 6, dtype=DOUBLE),), w, "curvature").certificate
        for H, rows, w in ((basis, A, v), (units[:, None] * basis * units, A * units, v * units))
    )
    assert plain.decided.all()
    assert scaled.decided.double().mean() > 0.9


@pytest.mark.parametrize("structure", ["dense", "sparse", "matrix-free"])
def test_every_way_to_store_a_matrix(structure: Any, random: torch.Generator) -> None:
    """What is sparse is made dense."""
    node = DeclarativeNode(
        lambda x, u: (u - x).square().sum() + 0.1 * (u[1:] * u[:-1]).sum(),
        lambda x, u: u[::2] - 0.5 * u[1::2] + x[::2],
        start=8,
        structure=structure,
    )
    x, v = normal(random, 4, 8), normal(random, 4, 8)
    seen = watch(node, (x,), v, "curvature")
    assert seen.certificate.decided.all()
    assert seen.false() == 0
    rule = Adaptive("curvature", certified=True)
    x.requires_grad_()
    (given,) = gradients(node.with_gradient(rule)(x), (x,), v)
    torch.testing.assert_close(given, seen.g_hat if bool(seen.certificate.descends.all()) else seen.g)


def test_a_derivative_that_is_not_finite_proves_nothing() -> None:
    """And does not keep the others from being judged."""
    node = DeclarativeNode(
        lambda x, u: (u - x).square().sum() + torch.where(x[0] > 5, x[0] - 5, 1.0).log() * u[0] ** 2,
        lambda x, u: u.sum() - 1,  # noqa: ARG005
        solver=ClosedForm(lambda x: x - (x.sum(-1, keepdim=True) - 1) / 3, stationary=True),
        on_failure="mask",
    )
    x = torch.tensor([[0.1, 0.2, 0.3], [5.0 + 1e-300, torch.nan, 0.0]], dtype=DOUBLE, requires_grad=True)
    rule = Adaptive("curvature", certified=True)
    with pytest.warns(NumericalWarning):
        y = node.with_gradient(rule)(x)
    (given,) = torch.autograd.grad(y[0, 0], x)
    assert rule.cheap_calls == 1
    assert given.isfinite().all()
    assert not given[1].any()


def test_the_probable_floor(random: torch.Generator) -> None:
    """Below the spectrum, not far below with many steps, and zero rather than wrong with few."""
    basis = torch.linalg.qr(normal(random, 30, 60, 60)).Q
    values = 1 + 9 * torch.rand(30, 60, generator=random, dtype=DOUBLE)
    S = basis @ (values.unsqueeze(-1) * basis.mT)
    like, lowest = S[..., 0], values.amin(-1)
    found = probable_floor(explicit(S), like, 45, 1e-3)
    assert (found <= lowest).all()
    assert (found > 0.5 * lowest).all()
    assert not probable_floor(explicit(S), like, 4, 1e-3).any()


def test_the_probable_floor_is_wrong_as_often_as_it_says_for_every_matrix(random: torch.Generator) -> None:
    """Here the eigenvector of the lowest eigenvalue is at right angles to the random numbers of a fixed seed."""
    p = 30
    start = torch.randn(1, p, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    vectors = torch.linalg.qr(torch.cat([start, normal(random, p - 1, p)]).T).Q
    values = torch.linspace(0.5, 1.0, p, dtype=DOUBLE)
    values[-1] = 0.1
    S = (vectors @ values.diag() @ vectors.T).expand(20, p, p)
    state = torch.get_rng_state()
    for like in (S[:1, 0], S[..., 0]):
        found = [probable_floor(explicit(S[: len(like)]), like, 12, 1e-2) for _ in range(5)]
        assert all((floor <= 0.1).all() for floor in found)
    assert torch.equal(state, torch.get_rng_state())


def test_the_adaptive_rule_uses_what_is_proven() -> None:
    node = OptimalTransport(5.0)
    costs = torch.rand(8, 4, 4, generator=torch.Generator().manual_seed(0), dtype=DOUBLE).requires_grad_()
    v = normal(torch.Generator().manual_seed(3), 8, 16)
    products = watch(node, (costs,), v, "unconstrained", transport_complement).product
    good, bad = products > 0, products < 0
    assert good.any()
    for options in ({}, {"certified": transport_complement}):
        rule = Adaptive("unconstrained", **{"certified": True, **options})
        used = {}
        for name, which in (("good", good), ("all", good | True)):
            x = costs.detach()[which].requires_grad_()
            given = gradients(node.with_gradient(rule)(x), (x,), v[which].view(x.shape))[0]
            exact, cheap = (
                gradients(node.with_gradient(one)(x), (x,), v[which].view(x.shape))[0]
                for one in ("exact", "unconstrained")
            )
            used[name] = torch.equal(given, cheap)
            assert used[name] or torch.equal(given, exact)
        assert used == {"good": True, "all": not bad.any()}
        assert (rule.calls, rule.cheap_calls) == (2, sum(used.values()))
        assert rule.history == ()


def test_what_a_batch_shares_is_never_certified() -> None:
    """Problems that descend one by one prove nothing about the sum of their gradients."""
    node = DeclarativeNode(
        lambda x, shift, u: (u - x - shift).square().sum(),
        lambda x, shift, u: u.sum() - 1,  # noqa: ARG005
        start=3,
        in_dims=(0, None),
    )
    x, shift = (normal(torch.Generator().manual_seed(i), *s).requires_grad_() for i, s in enumerate(((5, 3), (3,))))
    rule = Adaptive(certified=True)
    layer = node.with_gradient(rule)
    layer(x, shift.detach()).square().sum().backward()
    assert (rule.calls, rule.cheap_calls) == (1, 1)
    layer(x.detach(), shift).square().sum().backward()
    assert (rule.calls, rule.cheap_calls) == (2, 1)
    torch.testing.assert_close(shift.grad, torch.autograd.grad(node(x, shift).square().sum(), shift)[0])


def test_what_the_rule_takes() -> None:
    with pytest.raises(TypeError, match="certified"):
        Adaptive(certified="yes")
    assert (Adaptive().threshold, Adaptive().fraction) == (0.9, 0.5)
    rule = Adaptive(certified=True)
    assert (rule.threshold, rule.fraction) == (0.0, 1.0)
    assert copy.deepcopy(rule).certified is True
