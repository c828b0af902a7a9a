"""Several unknowns and several constraints, by name: nested as the user writes them, flat inside."""

import copy
import pickle
from typing import NamedTuple

import pytest
import torch
from torch import nn

from declarative import DeclarativeNode, NumericalWarning, SolverError, check, compare, conformance
from tests.support.helpers import DOUBLE, RULES, relative

A = torch.tensor([[1.0, 0.5], [0.0, 1.0]], dtype=DOUBLE)
B = torch.tensor([[0.0], [0.5]], dtype=DOUBLE)
STEPS = 4


def cost(x0, z):  # noqa: ARG001
    return z["x"].square().sum() + 0.5 * z["u"].square().sum()


def dynamics(x0, z):
    before = torch.cat([x0[None], z["x"][:-1]])
    return {"motion": z["x"] - before @ A.mT.to(x0) - z["u"] @ B.mT.to(x0), "end": z["x"][-1, 0] - 0.5}


def limits(_, z):
    return (z["u"] - 0.8, -0.8 - z["u"])


SHAPES = {"x": (STEPS, 2), "u": (STEPS, 1)}


def flat_node(**options):
    """The same problem, as one had to write it with one unknown."""

    def parts(row):
        return {"x": row[: 2 * STEPS].view(STEPS, 2), "u": row[2 * STEPS :].view(STEPS, 1)}

    def equality(x0, row):
        values = dynamics(x0, parts(row))
        return torch.cat([values["motion"].reshape(-1), values["end"].reshape(1)])

    return DeclarativeNode(
        lambda x0, row: cost(x0, parts(row)),
        equality,
        lambda x0, row: torch.cat([part.reshape(-1) for part in limits(x0, parts(row))]),
        start=3 * STEPS,
        **options,
    )


def named_node(start=SHAPES, **options):
    return DeclarativeNode(cost, dynamics, limits, start=start, **options)


@pytest.fixture
def x0():
    return torch.tensor([[0.6, 0.2], [0.4, -0.3], [0.55, 0.0]], dtype=DOUBLE, requires_grad=True)


def joined(value):
    return torch.cat([value["x"].flatten(-2), value["u"].flatten(-2)], -1)


@pytest.mark.parametrize(("rule", "record"), [*((rule, False) for rule in RULES), ("exact", True)])
def test_named_and_flat_are_the_same_problem(x0, rule, record):
    node, twin = named_node(gradient=rule, record=record), flat_node(gradient=rule)
    for _ in range(2):
        y, expected = node(x0), twin(x0)
        assert {name: part.shape for name, part in y.items()} == {"x": (3, 4, 2), "u": (3, 4, 1)}
        assert relative(joined(y), expected) < 1e-9
        (g,) = torch.autograd.grad(y["x"].pow(3).sum() + y["u"].exp().sum(), x0)
        other = {"x": expected[:, : 2 * STEPS], "u": expected[:, 2 * STEPS :]}
        (truth,) = torch.autograd.grad(other["x"].pow(3).sum() + other["u"].exp().sum(), x0)
        assert relative(g, truth) < 1e-7


@pytest.mark.parametrize("record", [False, True])
def test_multipliers_have_the_names_of_the_constraints(x0, record):
    node = named_node(record=record)
    for _ in range(2):
        solution, twin = node.solve(x0), flat_node().solve(x0)
        assert solution.multipliers["motion"].shape == (3, STEPS, 2)
        assert solution.multipliers["end"].shape == (3,)
        upper, lower = solution.inequality_multipliers
        assert upper.shape == lower.shape == (3, STEPS, 1)
        stacked = torch.cat([solution.multipliers["motion"].flatten(1), solution.multipliers["end"][:, None]], -1)
        assert relative(stacked, twin.multipliers) < 1e-7
        assert relative(torch.cat([upper, lower], 1).flatten(1), twin.inequality_multipliers) < 1e-7
        assert solution.active.shape == (3, 9 + 8)
        (g,) = torch.autograd.grad(solution.multipliers["end"].sum(), x0)
        (truth,) = torch.autograd.grad(twin.multipliers[:, -1].sum(), x0)
        assert relative(g, truth) < 1e-6
    assert "'x': (3, 4, 2)" in repr(solution)
    assert solution.take(torch.tensor([2, 0])).y["u"].shape == (2, 4, 1)


def test_named_constraints_of_one_unknown(x0):
    node = DeclarativeNode(
        lambda x, u: (u - x).square().sum(), lambda x, u: {"sum": u.sum() - 1, "twice": [u[:1] - x[:1] - 0.1]}, start=2
    )
    solution = node.solve(x0)
    assert solution.y.shape == (3, 2)
    assert solution.multipliers["sum"].shape == (3,)
    assert solution.multipliers["twice"][0].shape == (3, 1)
    assert relative(solution.y[:, 0], x0[:, 0] + 0.1) < 1e-9
    none = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda *_: {}, start=2).solve(x0)
    assert none.multipliers == {}


def test_the_order_of_returned_constraints_does_not_matter(x0):
    turn = iter(range(10**6))

    def either(x, u):
        values = {"sum": u.sum() - 1, "first": u[:1] - x[:1]}
        return values if next(turn) % 2 else dict(reversed(values.items()))

    solution = DeclarativeNode(lambda x, u: (u - x).square().sum(), either, start=3).solve(
        torch.cat([x0, x0[:, :1]], -1)
    )
    assert relative(solution.y[:, 0], x0[:, 0]) < 1e-9
    assert set(solution.multipliers) == {"sum", "first"}


def test_a_batch_of_no_problems(x0):
    assert named_node().solve(x0[:0]).y["u"].shape == (0, STEPS, 1)


class Pair(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor


def nested_cost(x, z):
    a, (b, c) = z
    return (a - x).square().sum() + (b - a.sum()).square() + (c - 2 * b).square().sum()


def check_pair(node, x, kind):
    y = node(x)
    assert type(y) is kind
    assert relative(y[0], x) < 1e-9
    assert relative(y[1], 2 * x.sum(-1)) < 1e-9


def test_tuples_named_tuples_and_a_scalar_unknown(x0):
    def tied(x, z):
        return (z[0] - x).square().sum() + (z[1] - 2 * z[0].sum()).square()

    check_pair(DeclarativeNode(tied, start=((2,), ())), x0, tuple)
    check_pair(DeclarativeNode(tied, start=(2, ())), x0, tuple)
    check_pair(DeclarativeNode(tied, start=Pair((2,), ())), x0, Pair)
    check_pair(DeclarativeNode(tied, start=(torch.zeros(2), torch.tensor(1.0))), x0, tuple)
    y = DeclarativeNode(nested_cost, start=((2,), [(), (2, 3)]))(x0)
    assert type(y[1]) is list
    assert relative(y[1][1], (2 * x0.sum(-1))[:, None, None].expand(3, 2, 3)) < 1e-9
    one = DeclarativeNode(lambda x, z: (z["t"] - x.sum()).square(), start={"t": ()})(x0)
    assert relative(one["t"], x0.sum(-1)) < 1e-9


def test_what_was_one_unknown_still_is(x0):
    matrix = DeclarativeNode(lambda x, u: (u - x).square().sum(), start=(3, 2))(x0)
    assert matrix.shape == (3, 3, 2)
    several = DeclarativeNode(lambda x, u: (u - x).square().sum(), start=[torch.zeros(2), torch.ones(2)])(x0)
    assert several.shape == (3, 2)


# Starts


def point(x):
    return {"u": torch.zeros(STEPS, 1, dtype=DOUBLE), "x": x.expand(STEPS, 2)}


@pytest.mark.parametrize(
    "start",
    [
        {"x": torch.zeros(STEPS, 2), "u": (STEPS, 1)},
        {"x": torch.zeros(STEPS, 2, dtype=DOUBLE, requires_grad=True), "u": torch.ones(STEPS, 1, dtype=torch.int64)},
        point,
        [SHAPES, point, {"u": torch.ones(STEPS, 1), "x": torch.zeros(STEPS, 2)}],
    ],
    ids=["mixed", "tensors", "function", "several"],
)
def test_starts_of_every_kind(x0, start):
    expected = flat_node()(x0)
    y = named_node(start)(x0)
    assert relative(torch.cat([y["x"].flatten(1), y["u"].flatten(1)], -1), expected) < 1e-7
    assert named_node(start)(x0[:0])["x"].shape == (0, STEPS, 2)


def test_a_default_start_goes_to_where_logarithms_are_defined(x0):
    node = DeclarativeNode(
        lambda x, z: (z["a"] * z["a"].log()).sum() - x.sum() * z["b"].log() + z["b"], start={"a": 3, "b": ()}
    )
    y = node(x0.detach().abs())
    assert relative(y["b"], x0.detach().abs().sum(-1)) < 1e-6
    assert relative(y["a"], torch.full((3, 3), torch.e, dtype=DOUBLE).reciprocal()) < 1e-6


def test_a_warm_start_from_the_last_solution(x0):
    node = named_node()
    solution = node.solve(x0)
    moved = x0.detach() + 1e-3
    cold, warm, again = node.solve(moved), node.solve(moved, start=solution), node.solve(moved, start=solution.y)
    assert warm.iterations.sum() <= cold.iterations.sum()
    for one in (warm, again):
        assert relative(joined(one.y), joined(cold.y)) < 1e-7
    reordered = {"u": solution.y["u"], "x": solution.y["x"]}
    assert torch.equal(node.solve(moved, start=reordered).iterations, again.iterations)
    y = node(x0, start=solution)
    (g,) = torch.autograd.grad(y["u"].sum(), x0)
    (truth,) = torch.autograd.grad(node(x0)["u"].sum(), x0)
    assert relative(g, truth) < 1e-6
    single = DeclarativeNode(lambda x, u: (u - x).pow(4).sum() + u.exp().sum(), start=2)
    last = single.solve(x0)
    assert single.solve(x0, start=last).iterations.max() < last.iterations.min()


def test_a_closed_form_may_return_them_in_any_order(x0):
    def formula(x):
        return {"b": 2 * x.sum(-1), "a": x.clone()}

    node = DeclarativeNode(
        lambda x, z: (z["a"] - x).square().sum() + (z["b"] - 2 * z["a"].sum()).square(),
        solver=formula,
        start={"a": 2, "b": ()},
    )
    y = node(x0)
    assert list(y) == ["a", "b"]
    (g,) = torch.autograd.grad(y["b"].sum(), x0)
    assert relative(g, torch.full((3, 2), 2.0, dtype=DOUBLE)) < 1e-12


# Surroundings


def test_transforms_copies_and_reports(x0):
    node = named_node()
    of_u = lambda x: node(x)["u"]  # noqa: E731
    assert torch.autograd.gradcheck(of_u, x0[:1], check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda x: node(x)["x"][:, 1], x0[:1], fast_mode=True)
    mapped = torch.vmap(lambda x: node(x))(x0.detach()[:, None])
    assert relative(mapped["u"][:, 0], of_u(x0)) < 1e-9
    for other in (copy.deepcopy(node), pickle.loads(pickle.dumps(node))):
        assert relative(other(x0)["x"], node(x0)["x"]) < 1e-12
    one = named_node(in_dims=None)
    assert one(x0[0])["x"].shape == (STEPS, 2)
    assert one.solve(x0[0]).multipliers["motion"].shape == (STEPS, 2)
    assert relative(one(x0[0])["x"], node(x0)["x"][0]) < 1e-9
    assert check(named_node(record=True), x0).passed
    v = {"x": torch.ones(3, STEPS, 2, dtype=DOUBLE), "u": torch.zeros(3, STEPS, 1, dtype=DOUBLE)}
    (g,) = torch.autograd.grad(node(x0)["x"].sum(), x0)
    assert relative(node.descent(x0, v).g, g) < 1e-6
    assert node.derivatives(x0).B.shape == (3, 3 * STEPS, 2)
    outline = node(torch.empty(5, 2, device="meta", requires_grad=True))
    assert outline["x"].shape == (5, STEPS, 2)
    assert node(x0.detach().float())["u"].dtype == torch.float32
    assert node(x0[:0])["u"].shape == (0, STEPS, 1)


def test_modules_and_names_together(x0):
    class Cost(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([2.0, 3.0], dtype=DOUBLE))

        def forward(self, x, z):
            return (z["a"] - self.weight * x).square().sum() + (z["b"] - z["a"].sum()).square()

    node = DeclarativeNode(module := Cost(), start=lambda x: {"a": x, "b": x.sum()})
    y = node(x0)
    assert relative(y["b"], (module.weight * x0).sum(-1)) < 1e-9
    (g,) = torch.autograd.grad(y["b"].pow(2).sum(), module.weight)
    (truth,) = torch.autograd.grad((module.weight * x0).sum(-1).pow(2).sum(), module.weight)
    assert relative(g, truth) < 1e-9


def test_failures_come_back_with_names(x0):
    node = DeclarativeNode(
        lambda x, z: (z["a"] - x).square().sum(),
        inequality=lambda _, z: {"low": 1 + z["a"], "high": 2 - z["a"]},
        start={"a": 2},
    )
    with pytest.raises(SolverError) as caught:
        node(x0)
    assert caught.value.solution.y["a"].shape == (3, 2)
    assert caught.value.solution.inequality_multipliers["low"].shape == (3, 2)
    assert pickle.loads(pickle.dumps(caught.value)).solution.y["a"].shape == (3, 2)
    masked = DeclarativeNode(
        lambda x, z: (z["a"] - x).square().sum(),
        inequality=lambda x, z: x[0] - 0.5 + 0 * z["a"],
        start={"a": 2},
        on_failure="mask",
    )
    with pytest.warns(NumericalWarning, match="2 of 3"):
        y = masked(x0)
    (g,) = torch.autograd.grad(y["a"].sum(), x0)
    assert torch.equal(g, torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]], dtype=DOUBLE))


# Mistakes


@pytest.mark.parametrize(
    ("start", "error", "told"),
    [
        ({}, ValueError, "at least one unknown"),
        ({"x": (0, 3)}, ValueError, r"start\['x'\] has shape \(0, 3\)"),
        ({"x": "abc"}, TypeError, r"start\['x'\] must be the shape of an unknown.*but is 'abc'"),
        ({"x": None}, TypeError, r"start\['x'\] must be the shape"),
        ({"x": -1}, TypeError, r"start\['x'\] must be the shape"),
        ({"x": lambda x: x}, TypeError, r"one function for all unknowns, start=lambda x: \{...\}"),
        ({"x": {"y": 1.5}}, TypeError, r"start\['x'\]\['y'\] must be"),
        ({"x": torch.zeros(3, dtype=torch.complex64)}, TypeError, r"start\['x'\] is complex"),
        ((3.0, 2), TypeError, r"start\[0\] must be the shape"),
        ("abc", TypeError, "start must be the shape of u"),
    ],
)
def test_wrong_starts(start, error, told):
    with pytest.raises(error, match=told):
        named_node(start)


@pytest.mark.parametrize(
    ("start", "error", "told"),
    [
        (
            lambda x: {"x": x, "u": 1.0},
            TypeError,
            r"start must return .* dict or tuple of tensors, but \['u'\] is float",
        ),
        ([SHAPES, {"x": 3}], ValueError, "must be for the same unknowns"),
        ([SHAPES, lambda x: x], ValueError, "but are for .* and one unknown"),
    ],
)
def test_wrong_starts_that_a_call_finds(x0, start, error, told):
    with pytest.raises(error, match=told):
        named_node(start)(x0)


def test_a_start_for_each_problem_is_noticed(x0):
    with pytest.raises(RuntimeError) as caught:  # of the caller's own functions
        named_node({"x": torch.zeros(3, STEPS, 2), "u": torch.zeros(3, STEPS, 1)})(x0)
    assert "u of shape {'x': (3, 4, 2), 'u': (3, 4, 1)}" in caught.value.__notes__[0]
    node = DeclarativeNode(
        lambda x, z: (z["a"] - x).square().sum() + z["b"].square().sum(),
        start={"a": torch.zeros(3, 2), "b": torch.zeros(3)},
    )
    with pytest.raises(ValueError, match=r"start\['a'\] has shape \(3, 2\).*pass them with the call"):
        node(x0)


@pytest.mark.parametrize(
    ("start", "error", "told"),
    [
        ({"x": torch.zeros(3, STEPS, 2)}, ValueError, r"start must be nested like the unknowns, \{'x': \(4, 2\), 'u'"),
        (torch.zeros(3, 12), ValueError, r"nested like the unknowns, .* but is \(3, 12\)"),
        (
            {"x": torch.zeros(3, STEPS, 2), "u": torch.zeros(3, STEPS)},
            ValueError,
            r"start\['u'\] must have shape \(4, 1\)",
        ),
        ({"x": torch.zeros(3, STEPS, 2), "u": torch.zeros(STEPS, 1)}, ValueError, "different batch dimensions"),
        ({"x": torch.zeros(STEPS, 2), "u": torch.zeros(STEPS, 1)}, ValueError, "one point for each of the 3 problems"),
        ({"x": torch.zeros(3, STEPS, 2), "u": 0.0}, TypeError, r"start\['u'\] must be a tensor"),
    ],
)
def test_wrong_warm_starts(x0, start, error, told):
    with pytest.raises(error, match=told):
        named_node()(x0, start=start)


def test_wrong_functions(x0):
    with pytest.raises(TypeError, match="objective must return a tensor, but returned dict"):
        DeclarativeNode(lambda _, z: {"a": z["a"].sum()}, start={"a": 2})(x0)
    with pytest.raises(TypeError, match=r"equality must return .* but \['sum'\] is float"):
        DeclarativeNode(lambda _, z: z["a"].sum(), lambda *_: {"sum": 1.0}, start={"a": 2})(x0)
    with pytest.raises(
        TypeError, match="the closed form must return a tensor, but returned dict; for several unknowns"
    ):
        DeclarativeNode(lambda _, z: z["a"].sum(), solver=lambda x: {"a": x})(x0)
    with pytest.raises(ValueError, match="what the closed form returns must be nested like the unknowns"):
        DeclarativeNode(lambda _, z: z["a"].sum(), solver=lambda x: x, start={"a": 2})(x0)
    with pytest.raises(KeyError) as caught:
        DeclarativeNode(lambda _, z: z["b"].sum(), start={"a": 2})(x0)
    assert "u of shape {'a': (2,)}" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="several unknowns"):
        compare(named_node(), named_node(), x0)
    with pytest.raises(ValueError, match="v must be nested like the unknowns"):
        named_node().descent(x0, torch.ones(3, 12))


def test_reports_that_are_for_one_unknown_say_so():
    node = DeclarativeNode(lambda x, u: (u["a"] - x).square().sum() + u["b"].square(), start={"a": 2, "b": ()})
    x = torch.randn(2, 2, dtype=torch.float64)
    for report in (lambda: compare(node, node.with_gradient("exact"), x), lambda: conformance(node, x)):
        with pytest.raises(
            ValueError, match=r"one unknown: this one has several unknowns\. State the same functions of one"
        ):
            report()
