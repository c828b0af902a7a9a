"""Recorded functions as tapes: every instruction and every rule against torch, and what a tape may not do."""

import pytest
import torch

from declarative import DeclarativeNode, Newton, NumericalWarning
from declarative.kernels import kinds
from declarative.kernels.library import available, beside
from declarative.kernels.machine import Machine
from declarative.linear import DENSE
from declarative.linear.sparse import SparseLayout
from declarative.linear.sparse.entries import Entries
from declarative.linear.sparse.pattern import Pattern
from declarative.recording.tape import NotLowered, lowered
from declarative.recording.tape.writer import Writer
from declarative.recording.trace import trace
from declarative.structure import Point
from declarative.torchside import without_vmap_warnings
from tests.support.helpers import DOUBLE

pytestmark = pytest.mark.skipif(not available(), reason="tapes need the compiled core")
SPECIAL = torch.tensor(
    [0.0, -0.0, 1.0, -1.0, 0.3, -0.3, 2.5, -2.5, 1e-300, 1e300, torch.inf, -torch.inf, torch.nan], dtype=DOUBLE
)


def generator():
    return torch.Generator().manual_seed(0)


def tape_of(function, *arguments, own=None):
    """The tape of a function of a batch, from its first problem."""
    own = (True,) * len(arguments) if own is None else own
    one = [x[:1] if has else x for x, has in zip(arguments, own, strict=True)]
    return lowered(trace(function, one), own)


def same(found, expected, **tolerances):
    return torch.allclose(
        found.double(), expected.double(), equal_nan=True, **{"rtol": 1e-13, "atol": 0.0, **tolerances}
    )


UNARY = [
    *("neg", "abs", "sign", "sgn", "sqrt", "rsqrt", "square", "reciprocal", "floor", "ceil", "relu", "erf", "sinc"),
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sigmoid", "softmax", "log_softmax", "logsumexp"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
    *("isfinite", "isnan", "isinf", "logical_not", "nan_to_num"),
]
BINARY = [
    *("add", "sub", "mul", "div", "maximum", "minimum", "atan2", "pow", "lt", "le", "gt", "ge", "eq", "ne"),
    *("logical_and", "logical_or", "logical_xor"),
]


@pytest.mark.parametrize("name", UNARY)
def test_a_function_of_one_number_is_that_of_torch(name):
    dim = () if name not in ("softmax", "log_softmax", "logsumexp") else (-1,)
    function = getattr(torch, name)
    x = SPECIAL.repeat(3).unsqueeze(-1)
    tape = tape_of(lambda x: function(x, *dim), x)
    for count in (1, 2, len(x)):
        assert same(tape([x[:count]], count), function(x[:count], *dim))


@pytest.mark.parametrize("name", BINARY)
def test_a_function_of_two_numbers_is_that_of_torch(name):
    a, b = (x.reshape(-1, 1).contiguous() for x in torch.meshgrid(SPECIAL, SPECIAL, indexing="ij"))
    function = getattr(torch, name)
    assert same(tape_of(function, a, b)([a, b], len(a)), function(a, b))


M = torch.randn(5, 5, dtype=DOUBLE, generator=generator())
INDEX = torch.tensor([3, 0, 0, 4])
FUNCTIONS = {
    "sum": lambda x: x.sum(-1),
    "sum of all": lambda x: x.sum((1,), keepdim=True),
    "mean": lambda x: x.mean(-1),
    "amax": lambda x: x.amax(-1),
    "prod": lambda x: x.prod(-1),
    "any": lambda x: (x > 0).any(-1),
    "all": lambda x: (x > -1).all(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "matrix times vector": lambda x: x @ M,
    "outer product": lambda x: (x.unsqueeze(-1) * x.unsqueeze(-2)).flatten(1),
    "batched product": lambda x: torch.bmm(x.view(-1, 1, 5), x.view(-1, 5, 1)).view(-1),
    "einsum": lambda x: torch.einsum("bi,ij,bj->b", x, M, x),
    "indexed": lambda x: x[:, INDEX],
    "gathered": lambda x: x.gather(1, INDEX.expand(len(x), -1)),
    "index_add": lambda x: x.new_zeros(len(x), 5).index_add(1, INDEX, x[:, :4]),
    "scatter_reduce": lambda x: x.new_ones(len(x), 5).scatter_reduce(1, INDEX.expand(len(x), -1), x[:, :4], "amax"),
    "put": lambda x: x.index_put((torch.arange(len(x)).unsqueeze(-1), INDEX), x[:, :4], accumulate=True),
    "scattered": lambda x: x.scatter(1, torch.tensor([[2, 1]]).expand(len(x), -1), x[:, :2] * 3),
    "cat, stack, slices": lambda x: torch.stack([torch.cat([x[:, 1:], x[:, :1]], 1), x.flip(-1)], -1)[..., 1:, :],
    "diff and roll": lambda x: x.diff(dim=-1)[:, :3] * x.roll(1, -1)[:, :3],
    "pad": lambda x: torch.nn.functional.pad(x, (1, 2)),
    "where": lambda x: torch.where(x > 0, x, -2 * x),
    "clamp": lambda x: x.clamp(-0.5, 0.5) + x.clamp(min=0.1) + x.clamp(max=0.2),
    "powers": lambda x: x.abs() ** 1.7 + x**2 + x**3 + x.abs() ** -2 + 2**x + x.abs() ** x,
    "softplus, gelu, silu": lambda x: sum(getattr(torch.nn.functional, f)(x) for f in ("softplus", "gelu", "silu")),
    "smooth losses": lambda x: torch.nn.functional.huber_loss(x, torch.zeros_like(x), reduction="none"),
    "triangles": lambda x: (x.unsqueeze(-1) * M).tril().triu(-1).sum(-1),
    "diagonals": lambda x: torch.diag_embed(x).diagonal(dim1=-2, dim2=-1) + x,
    "std": lambda x: x.std(-1),
    "constants": lambda x: x * 0 + torch.eye(5, dtype=DOUBLE)[2] * 3 + 1,
    "no dependence": lambda x: torch.ones_like(x),
    "addmm": lambda x: torch.addmm(M[0], x, M, beta=2, alpha=0.5),
    "truth values are no numbers": lambda x: ((x > 0) + (x > -1)) * x + ((x > 0) | ~(x < 1)).double(),
    "counts": lambda x: x * (x > 0).sum(-1, keepdim=True) - (x.sign() == 1).double().mean(-1, keepdim=True),
    "two outputs": lambda x: (x.sin(), x.cos() > 0),
}


@pytest.mark.parametrize("count", [1, 2, 8, 11])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_tape_does_what_its_function_does(name, count):
    function = FUNCTIONS[name]
    x = torch.randn(11, 5, dtype=DOUBLE, generator=generator())
    found, expected = tape_of(function, x)([x[:count]], count), function(x[:count])
    for one, other in zip(found, expected, strict=True) if isinstance(expected, tuple) else [(found, expected)]:
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        assert same(one, other, rtol=1e-12, atol=1e-14)


def derivatives(function, x):
    def scalar(x):
        return function(x.unsqueeze(0)).square().sum()

    with without_vmap_warnings():
        return torch.vmap(torch.func.grad(scalar))(x), torch.vmap(torch.func.jacrev(torch.func.grad(scalar)))(x)


NO_DERIVATIVE = ("any", "all", "two outputs", "put", "prod")  # of truth values, or without a rule for the derivative


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in NO_DERIVATIVE])
def test_first_and_second_derivatives_are_written_too(name):
    x = torch.randn(9, 5, dtype=DOUBLE, generator=generator())
    tape = tape_of(lambda x: derivatives(FUNCTIONS[name], x), x)
    for found, expected in zip(tape([x], 9), derivatives(FUNCTIONS[name], x), strict=True):
        assert same(found, expected, rtol=1e-10, atol=1e-11)


def test_shared_inputs_and_truth_values():
    x, mask = torch.randn(10, 5, dtype=DOUBLE, generator=generator()), torch.tensor([True, False, True, True, False])

    def function(x, w, mask):
        return torch.where(mask, x * w, x).sum(-1)

    tape = tape_of(function, x, M[0], mask, own=(True, False, False))
    assert same(tape([x, M[0], mask], 10), function(x, M[0], mask))
    assert same(tape([x, M[1], ~mask], 10), function(x, M[1], ~mask))  # nothing of the example is left in it


def test_outputs_are_nobody_elses_memory():
    x = torch.randn(3, 5, dtype=DOUBLE, generator=generator())
    tape = tape_of(lambda x: (x, x + 0, torch.ones_like(x)), x)
    before = x.clone()
    for output in tape([x], 3):
        output.fill_(7.0)
    assert torch.equal(x, before)
    assert torch.equal(tape([x], 3)[2], torch.ones_like(x))


REFUSED = {
    "linear systems": lambda x: torch.linalg.solve(torch.eye(5, dtype=DOUBLE) + x.unsqueeze(-1) * M, x),
    "single precision": lambda x: x.float().sin().double(),
    "whole numbers": lambda x: x.argmax(-1),
    "sorting": lambda x: x.sort(-1).values,
    "bits": lambda x: x * ((x > 0).sum(-1, keepdim=True) & 1),
    "a division that rounds": lambda x: torch.div(x, 0.1, rounding_mode="floor"),
    "another type": lambda x: x * (x > 0).sum(-1, keepdim=True, dtype=torch.bool),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_rule_is_refused(name):
    x = torch.randn(2, 5, dtype=DOUBLE, generator=generator())
    with pytest.raises(NotLowered):
        tape_of(REFUSED[name], x)


def test_a_node_with_such_functions_is_replayed_as_it_was():
    x = torch.randn(4, 5, dtype=DOUBLE, generator=generator())

    def objective(x, u):
        return (u - x).square().sum() + torch.linalg.solve(M @ M.T + torch.eye(5, dtype=DOUBLE), u) @ u

    nodes = [DeclarativeNode(objective, start=5, record=record) for record in (False, True)]
    assert torch.allclose(nodes[0](x), nodes[1](x), rtol=1e-12, atol=1e-12)


def test_zero_times_what_is_not_finite_is_no_number_if_it_is_stated():
    """In the derivatives of a mapped function it is zero: they multiply by unit matrices. The order does not matter."""
    x = torch.tensor([[1.0, 2.0], [1.0, -2.0]], dtype=DOUBLE)
    for order in ([0, 1], [1, 0]):
        node = DeclarativeNode(
            lambda x, u: (u - 1).square().sum() + (torch.tensor([1.0, 0.0], dtype=DOUBLE) * x.log() * u).sum(),
            start=2,
            record=True,
            on_failure="mask",
        )
        with pytest.warns(NumericalWarning):
            assert node.solve(x[order]).converged.tolist() == [i == 0 for i in order]


def test_truth_values_of_other_problems_than_the_first():
    x = torch.tensor([[1.0, -1.0], [1.0, 1.0], [-1.0, -1.0]], dtype=DOUBLE)
    for function in (lambda x: (x[0] > 0) + (x[1] > 0), lambda x: (x > 0).sum() & 1, lambda x: (x > 0).sum() ^ 1):
        node = DeclarativeNode(lambda x, u, f=function: (u - f(x).double()).square(), start=(), record=True)
        assert torch.equal(node(x), torch.vmap(function)(x).double())


def test_inputs_in_any_memory():
    z = torch.complex(torch.zeros(3, dtype=DOUBLE), torch.ones(3, dtype=DOUBLE)).conj()
    node = DeclarativeNode(lambda x, w, u: (u - w * x).square().sum(), start=3, in_dims=(0, None), record=True)
    assert torch.allclose(node(torch.ones(2, 3, dtype=DOUBLE), z.imag), -torch.ones(2, 3, dtype=DOUBLE))


def test_one_tape_serves_batches_of_any_size():
    calls = []

    def objective(x, u):
        calls.append(1)
        return (u - x).square().sum() + u.cosh().sum()

    node = DeclarativeNode(objective, lambda _, u: u.sum() - 1, start=5, record=True)
    x = torch.randn(20, 5, dtype=DOUBLE, generator=generator())
    whole = node(x)
    for size in (1, 3, 20):
        before = len(calls)
        assert torch.allclose(node(x[:size]), whole[:size], rtol=1e-12, atol=1e-13)
        assert len(calls) <= before + 1  # the functions are looked at once per shape, and not traced again


def test_inputs_of_another_length_have_a_tape_of_their_own():
    node = DeclarativeNode(lambda x, u: (u - x.sum()).square(), start=(), record=True)
    for length in (3, 5, 2):
        x = torch.randn(4, length, dtype=DOUBLE, generator=generator())
        assert torch.allclose(node(x), x.sum(-1), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("count", [1, 3, 70])
@pytest.mark.parametrize("kind", ["equality", "bounds", "both", "nonlinear"])
def test_iterations_without_python_are_those_with(monkeypatch, kind, count):
    """A problem that ended gives its lane to another: none may see what another one has left there."""
    constraints = {
        "equality": {"equality": lambda _, u: u.square().sum() - 1},
        "bounds": {"bounds": (-0.2, lambda x: x.abs())},
        "both": {"equality": lambda _, u: u.sum() - 1, "inequality": lambda x, u: u - 0.5 - x.abs()},
        "nonlinear": {"inequality": lambda x, u: u.square().sum() - 0.1 - x[0].square()},
    }

    def node():
        return DeclarativeNode(
            lambda x, u: (u - x).pow(4).sum() + u.cosh().sum() * x[1].abs() + u[0] * u[1],
            **constraints[kind],
            start=torch.full((4,), 0.3, dtype=DOUBLE),
            solver=Newton(),
            record=True,
            on_failure="mask",
        )

    x = 2 * torch.randn(count, 4, dtype=DOUBLE, generator=generator())
    fast = node().solve(x)
    monkeypatch.setattr("declarative.solvers.newton.compiled.batch.CompiledBatch._functions", lambda *_: None)
    slow = node().solve(x)
    assert torch.equal(fast.iterations, slow.iterations)
    assert torch.equal(fast.codes, slow.codes)
    assert torch.allclose(fast.y, slow.y, rtol=1e-10, atol=1e-12)
    assert fast.converged.all()


# Systems of linear equations.


def dense_systems(count, m=4, k=3):
    g = generator()
    root = torch.randn(count, m, m, dtype=DOUBLE, generator=g)
    hessian = root @ root.mT + 0.1 * torch.eye(m, dtype=DOUBLE)
    jacobian = torch.randn(count, k, m, dtype=DOUBLE, generator=g)
    active = torch.rand(count, k, generator=g) < 0.6
    active[0], active[1:2] = True, False
    r, t = torch.randn(count, m, dtype=DOUBLE, generator=g), torch.randn(count, k, dtype=DOUBLE, generator=g)
    return hessian, jacobian, active, r, t


def residual(hessian, jacobian, active, r, t, z, s):
    """Of [H A'; A 0] [z; s] = [r; t] over the active rows."""
    rows = torch.where(active.unsqueeze(-1), jacobian, 0.0)
    first = (hessian @ z.unsqueeze(-1) + rows.mT @ s.unsqueeze(-1)).squeeze(-1) - r
    return torch.cat([first, (rows @ z.unsqueeze(-1)).squeeze(-1) - torch.where(active, t, 0.0)], -1)


@pytest.mark.parametrize("count", [1, 3, 8, 21])
def test_a_tape_solves_dense_systems(count):
    """By hand: the residual is zero, also where an operand of the system is used again after it."""
    given = dense_systems(count)

    def function(hessian, jacobian, active, r, t):
        z, s, trusted = DENSE.solve_active(2 * hessian, jacobian, active, (r + 1, t))
        again = DENSE.solve_active(2 * hessian, jacobian, active, (z, s))[0]
        return z, s, trusted, again, hessian.sum((-1, -2)) + r.sum(-1)

    tape = tape_of(function, *given)
    assert tape.machine.systems is not None
    z, s, trusted, again, total = tape(given, count)
    hessian, jacobian, active, r, t = given
    assert trusted.all()
    assert residual(2 * hessian, jacobian, active, r + 1, t, z, s).abs().max() < 1e-9
    assert not s[~active].any()
    assert same(total, hessian.sum((-1, -2)) + r.sum(-1))
    twice = [DENSE.solve_active(2 * hessian, jacobian, active, (z, s))[0]]
    assert same(again, twice[0], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("count", [1, 3, 21])
def test_a_tape_solves_sparse_systems(count):
    m, k = 9, 4
    rows = torch.arange(k).repeat_interleave(2)
    columns = torch.stack([2 * torch.arange(k), 2 * torch.arange(k) + 1], -1).flatten()
    below = torch.stack([torch.arange(1, m), torch.arange(m - 1)])
    diagonal = torch.arange(m)
    hessian_at = (torch.cat([diagonal, below[0]]).numpy(), torch.cat([diagonal, below[1]]).numpy())
    pattern = Pattern(Entries(*hessian_at, (m, m)), Entries(rows.numpy(), columns.numpy(), (k, m)))
    layout = SparseLayout.of(pattern, k)
    g = generator()
    sizes = [3 + torch.rand(count, m, dtype=DOUBLE, generator=g), torch.rand(count, m - 1, dtype=DOUBLE, generator=g)]
    curvature = torch.cat(sizes, -1)
    slopes = torch.randn(count, 2 * k, dtype=DOUBLE, generator=g)
    active = torch.rand(count, k, generator=g) < 0.7
    r, t = torch.randn(count, m, dtype=DOUBLE, generator=g), torch.randn(count, k, dtype=DOUBLE, generator=g)

    def function(hessian, jacobian, active, r, t):
        return layout.solve_active(hessian, jacobian, active, (2 * r, t))

    given = (curvature, slopes, active, r, t)
    z, s, trusted = tape_of(function, *given)(given, count)
    hessian = torch.zeros(count, m, m, dtype=DOUBLE)
    hessian[:, hessian_at[0], hessian_at[1]] = curvature
    hessian[:, hessian_at[1], hessian_at[0]] = curvature
    jacobian = torch.zeros(count, k, m, dtype=DOUBLE)
    jacobian[:, rows, columns] = slopes
    assert trusted.all()
    assert residual(hessian, jacobian, active, 2 * r, t, z, s).abs().max() < 1e-12


def test_a_system_that_is_not_definite_is_not_trusted():
    hessian, jacobian, active, r, t = dense_systems(7)
    hessian[6], active[6] = torch.eye(4, dtype=DOUBLE), False
    hessian[6, 0, 1] = hessian[6, 1, 0] = 1 - 2**-31  # nearly singular, though this side is solved without rounding
    r[6] = torch.tensor([1.0, -1.0, 0.0, 0.0], dtype=DOUBLE)
    hessian[2] = -hessian[2]  # curves down
    jacobian[3, 1] = jacobian[3, 0]  # depends
    active[3] = True
    hessian[4, 0, 0] = torch.nan
    given = (hessian, jacobian, active, r, t)

    def function(hessian, jacobian, active, r, t):
        return DENSE.solve_active(hessian, jacobian, active, (r, t))

    for z, s, trusted in (tape_of(function, *given)(given, 7), function(*given)):
        assert trusted.tolist() == [True, True, False, False, False, True, False]
        assert not z[~trusted].any()
        assert not s[~trusted].any()


def test_what_depends_on_no_problem_is_found_once():
    """Half of these instructions; and what they have found is there for every problem."""
    W = torch.randn(6, 6, dtype=DOUBLE, generator=generator())
    x = torch.randn(19, 6, dtype=DOUBLE, generator=generator())
    writer = Writer()
    own, shared = writer.fresh(6), writer.fresh(36).reshape(6, 6)
    squares = writer.emit(kinds.MUL, shared, shared)
    found = writer.reduce(kinds.ADD, writer.emit(kinds.MUL, squares, own), 1, 0.0)
    program = writer.finish(own, shared.reshape(-1), [found, squares])
    assert 0 < program.prologue < len(program.kinds)
    assert program.ends[program.prologue - 1] == 36
    for lanes in (1, beside()):
        flat = Machine(program).run(x, W.flatten(), lanes)
        torch.testing.assert_close(flat[: 19 * 6].reshape(19, 6), x @ W.square().mT)
        assert torch.equal(flat[19 * 6 :].reshape(19, 6, 6), W.square().expand(19, 6, 6))


def test_systems_of_two_sizes_have_no_tape():
    hessian, jacobian, active, r, t = dense_systems(1)

    def function(hessian, jacobian, active, r, t):
        first = DENSE.solve_active(hessian, jacobian, active, (r, t))[0]
        return first, DENSE.solve_active(hessian, jacobian[:, :1], active[:, :1], (r, t[:, :1]))[0]

    with pytest.raises(NotLowered, match="two kinds"):
        tape_of(function, hessian, jacobian, active, r, t)


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_a_gradient_in_one_function_is_that_of_the_system(monkeypatch, record, shared):
    node = DeclarativeNode(
        lambda x, w, u: (u - x).square().sum() + (w * u.pow(4)).sum(),
        lambda x, w, u: u.sum() - x[0],  # noqa: ARG005
        lambda x, w, u: -u,  # noqa: ARG005
        start=4,
        record=record,
        in_dims=(0, None) if shared else (0, 0),
    )
    x = torch.randn(5, 4, dtype=DOUBLE, generator=generator()).abs().requires_grad_()
    w = torch.rand(*(() if shared else (5,)), 4, dtype=DOUBLE, generator=generator()).requires_grad_()

    def loss():
        return (node(x, w) * torch.arange(4.0, dtype=DOUBLE)).sum()

    at_once = torch.autograd.grad(loss(), (x, w))
    monkeypatch.setattr(Point, "pullback_at_once", lambda *_: None)
    for one, other in zip(at_once, torch.autograd.grad(loss(), (x, w)), strict=True):
        assert torch.allclose(one, other, rtol=1e-11, atol=1e-12)
        assert one.abs().max() > 0.01


@pytest.mark.parametrize("record", [False, True])
def test_a_gradient_whose_system_is_not_easy_is_found_the_other_way(record):
    """A constraint that is stated twice: the projection onto a line, by hand. The gradient is the same for all of the
    multipliers, so that there is nothing to warn of."""
    node = DeclarativeNode(
        lambda x, u: (u - x).square().sum(),
        lambda x, u: torch.stack([u.sum() - 1, 2 * u.sum() - 2]),  # noqa: ARG005
        start=3,
        record=record,
    )
    x = torch.randn(4, 3, dtype=DOUBLE, generator=generator()).requires_grad_()
    jacobian = torch.autograd.grad(node(x)[:, 0].sum(), x)[0]
    expected = torch.tensor([2 / 3, -1 / 3, -1 / 3], dtype=DOUBLE).expand(4, -1)
    torch.testing.assert_close(jacobian, expected, rtol=1e-9, atol=1e-9)
