"""Which derivatives can differ from zero: never too few, and exactly those where every operation has a rule."""

# ruff: noqa: ARG005 - all functions have the same arguments

import numpy as np
import pytest
import scipy.sparse
import torch
import torch.nn.functional as F  # noqa: N812

from declarative.linear.sparse import Entries, NoPattern, Pattern, find_pattern, pattern_of_slope
from tests.support.sparse_problems import DOUBLE, PROBLEMS, symmetric

FEW = torch.tensor([0, 2, 2])
SPARSE = torch.tensor([[1.0, 0, 0, 2, 0, 0], [0, 3, 0, 0, 0, 4], [0, 0, 0, 0, 0, 0]], dtype=DOUBLE)
TABLE = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0, 0.0], dtype=DOUBLE)
KERNEL = torch.tensor([[[1.0, 0.0, -2.0]]], dtype=DOUBLE)


class StraightThrough(torch.autograd.Function):
    """Rounds, and passes the gradient on as if it did not."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.round()

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Nothing is needed."""

    @staticmethod
    def backward(_, grad):
        return grad


def assembled(_, u):
    y = torch.zeros(8, dtype=u.dtype)
    y[1:7] = u
    y[7] = u[0] * u[5]
    y[2] += u[4]
    return y.square()


def window(u, a, b):
    return u.unfold(0, 3, 1)[a:b]


# Functions of x and u, each with six entries; those in WIDE have operations that are taken as wider than they are.
OPERATIONS = {
    "linear": lambda x, u: 3 * u - x,
    "functions": lambda x, u: u.sin() + u.exp() * x + (u + 2).log() + u.tanh() + u.sigmoid(),
    "powers": lambda x, u: u**3 + 2**u + u**1 + u**0 + (u + 2).sqrt() + 1 / (u + 2) + (u + 2) ** (x + 2),
    "binary": lambda x, u: torch.atan2(u[1:], u[:-1]) + torch.hypot(u[1:], x[:-1]) + torch.maximum(u[1:], x[1:]),
    "quotient": lambda x, u: u[1:] / (u[:-1] + 3) + x[1:] / (u[1:] + 3),
    "views": lambda x, u: u.view(2, 3).mT.reshape(-1).square() + u.view(3, 2).permute(1, 0).flatten() * x,
    "slices": lambda x, u: u[1:] * u[:-1] + u[::2].sum() * 0 + u[-1].square(),
    "select": lambda x, u: u[2] * u[3] + u.view(2, 3)[1, 0].sin(),
    "index": lambda x, u: u[FEW] * u[FEW + 1],
    "mask": lambda x, u: u[torch.tensor([True, False, True, False, False, True])].square(),
    "gather": lambda x, u: u.gather(0, FEW).square(),
    "index select": lambda x, u: u.index_select(0, FEW).square(),
    "cat": lambda x, u: torch.cat([u[:2].square(), x, u[4:] * u[:2]]),
    "stack": lambda x, u: torch.stack([u[0] * u[1], u[2].sin(), x[0]]),
    "roll": lambda x, u: (u * u.roll(1))[1:],
    "flip": lambda x, u: u.flip(0) * u,
    "pad": lambda x, u: F.pad(u, (1, 2), value=5.0).square(),
    "circular": lambda x, u: F.pad(u[None], (1, 1), mode="circular")[0].square(),
    "unbind": lambda x, u: sum(a * b for a, b in zip(u.unbind()[1:], u.unbind()[:-1], strict=True)),
    "split": lambda x, u: u.split(3)[0] * u.chunk(2)[1],
    "repeat": lambda x, u: u.repeat(2).square(),
    "expand": lambda x, u: (u[:, None].expand(6, 3) * x[:3]).square(),
    "unfold": lambda x, u: window(u, 0, 3).prod(-1),
    "diagonal": lambda x, u: torch.outer(u, u).diagonal() + torch.diag_embed(u).square().sum(1),
    "triangle": lambda x, u: torch.outer(u, u).triu(2).sum(1),
    "trace": lambda x, u: torch.trace(u[:4].view(2, 2)) ** 2,
    "sum": lambda x, u: u.view(2, 3).sum(1).square() + u.view(2, 3).mean(1) * x[:2],
    "prod": lambda x, u: u.view(2, 3).prod(1),
    "cumsum": lambda x, u: u[:3].cumsum(0).square(),
    "cumprod": lambda x, u: u[:3].cumprod(0),
    "norm": lambda x, u: torch.linalg.vector_norm(u.view(2, 3), dim=1) + u.view(2, 3).var(1),
    "softmax": lambda x, u: u.view(2, 3).softmax(1) + u.view(2, 3).log_softmax(1),
    "logsumexp": lambda x, u: u.view(3, 2).logsumexp(1),
    "constant matrix": lambda x, u: (SPARSE @ u).square() + (SPARSE @ u).sin(),
    "matrix product": lambda x, u: (u.view(2, 3) @ torch.eye(3, dtype=DOUBLE)).square(),
    "two matrices": lambda x, u: u.view(2, 3)[:, :2] @ torch.diag_embed(u[:2]),
    "quadratic form": lambda x, u: u[:3] @ SPARSE @ u,
    "inner product": lambda x, u: u @ u,
    "batched product": lambda x, u: torch.bmm(u.view(3, 1, 2), x.view(3, 2, 1)).square(),
    "einsum": lambda x, u: torch.einsum("ij,ij,j->i", u.view(2, 3), u.view(2, 3), x[:3]),
    "affine": lambda x, u: F.linear(u.view(2, 3), SPARSE[:2, :3], x[:2]).tanh(),
    "where": lambda x, u: torch.where(x > 0, u**2, 3 * u),
    "where known": lambda x, u: torch.where(torch.arange(6) < 2, u**2, u.flip(0)),
    "clamp": lambda x, u: u.clamp(-0.5, 0.5).square() + u.relu().square() + u.abs(),
    "masked": lambda x, u: u.masked_fill(torch.arange(6) > 2, 0.0).square(),
    "steps": lambda x, u: u * (u > x) + u.sign() * u.flip(0) + u.floor() * x,
    "hinges": lambda x, u: u.relu() * u.flip(0).relu() + F.relu(u - x),
    "scatter add": lambda x, u: torch.zeros(8, dtype=u.dtype).scatter_add(0, torch.tensor([0, 1, 1, 2, 3, 7]), u) ** 2,
    "index put": lambda x, u: torch.zeros(8, dtype=u.dtype).index_put((FEW,), u[:3], accumulate=True) ** 2,
    "overwritten": lambda x, u: u.square().index_put((FEW[:2],), x[:2] * u[5]),
    "index add": lambda x, u: torch.zeros(8, dtype=u.dtype).index_add(0, FEW, u[:3]) ** 2,
    "in place": assembled,
    "convolution": lambda x, u: F.conv1d(u[None, None], KERNEL, padding=1)[0, 0].square(),
    "losses": lambda x, u: F.huber_loss(u, x) + F.mse_loss(u, x) + F.smooth_l1_loss(u, x) + F.softplus(u).sum(),
    "cross": lambda x, u: torch.linalg.cross(u[:3], x[:3]).square(),
    "mapped": lambda x, u: torch.vmap(lambda a, b: (a * b).sin())(u, x),
    "gradient": lambda x, u: torch.func.grad(lambda v: (v**3 * x).sum())(u),
    "zero times": lambda x, u: u * torch.tensor([0.0, 1, 0, 1, 0, 0], dtype=DOUBLE) * u.flip(0),
    "straight through": lambda x, u: StraightThrough.apply(u) * x,
    "nothing": lambda x, u: x.sum(),
    "maximum": lambda x, u: u.max() ** 2 + u.view(2, 3).amax(1).sum(),
    "sort": lambda x, u: u.sort()[0] * x,
    "chosen by input": lambda x, u: u.gather(0, x.argsort()) * u[0],
    "indexed by input": lambda x, u: u[x.argsort()[:2]].square(),
    "looked up by input": lambda x, u: TABLE[x.argsort()] * u,
    "scattered by input": lambda x, u: u.scatter(0, x.argsort(), u * x).square(),
    "spectrum": lambda x, u: torch.fft.rfft(u).abs().square(),
    "inverse": lambda x, u: torch.linalg.inv(u[:4].view(2, 2) + 3 * torch.eye(2, dtype=DOUBLE)),
}
WIDE = {"maximum", "sort", "chosen by input", "indexed by input", "scattered by input", "cross"}


def seen(function, points=16):
    """Where the derivatives of objective and constraints, both this function, are not zero at some of many points."""
    generator = torch.Generator().manual_seed(0)
    hessian, jacobian = None, None
    for _ in range(points):
        x, u = torch.randn(2, 6, generator=generator, dtype=DOUBLE)
        weights = torch.rand(function(x, u).numel(), generator=generator, dtype=DOUBLE) + 0.5

        def slope(u, x=x, weights=weights):
            return torch.func.grad(lambda u: (weights * function(x, u).reshape(-1)).sum())(u)

        curved = torch.func.jacrev(slope)(u) != 0
        sloped = torch.func.jacrev(lambda u, x=x: function(x, u).reshape(-1))(u) != 0
        hessian, jacobian = (curved, sloped) if hessian is None else (hessian | curved, jacobian | sloped)
    return hessian.numpy(), jacobian.numpy()


def found(function, example):
    """The pattern, from an example of x and u."""
    pattern = find_pattern(lambda x, u: function(x, u).sum(), function, [example], example)
    return symmetric(pattern.hessian), pattern.jacobian.csr.toarray()


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_every_operation_reaches_what_its_derivatives_reach(name):
    hessian, jacobian = seen(OPERATIONS[name])
    examples = [torch.zeros(6, dtype=DOUBLE), torch.rand(6, dtype=DOUBLE)]  # of which only the shape may count
    for example in examples if name in list(OPERATIONS)[::4] else examples[:1]:
        curved, sloped = found(OPERATIONS[name], example)
        assert not (hessian & ~curved).any()
        assert not (jacobian & ~sloped).any()
        if name not in WIDE:
            assert (hessian == curved).all()
            assert (jacobian == sloped).all()


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_pattern_of_a_problem_is_exactly_that_of_its_derivatives(problem):
    pattern = problem.pattern()
    assert (symmetric(pattern.hessian) == problem.hessian).all()
    assert (pattern.jacobian.csr.toarray() == problem.jacobian).all()
    assert pattern.without_rule == ()
    hessian, jacobian = (
        sum((part != 0) for part in parts) for parts in zip(*map(problem.dense, range(8)), strict=True)
    )
    assert ((hessian.numpy() > 0) == problem.hessian).all()  # what the table states is true
    assert ((jacobian.numpy() > 0) == problem.jacobian).all()


def test_an_operation_without_a_rule_is_dense_and_named():
    pattern = find_pattern(
        lambda x, u: torch.cdist(u[:4].view(2, 2), x.view(2, 2)).sum() + u[4:].sum(),
        None,
        [torch.rand(4)],
        torch.rand(6),
    )
    assert pattern.without_rule == ("_cdist_backward", "_cdist_forward")
    assert symmetric(pattern.hessian)[:4, :4].all()
    assert not symmetric(pattern.hessian)[4:].any()


def test_zeros_of_constants_count_and_those_of_parameters_do_not():
    known, learnt = torch.eye(3), torch.nn.Parameter(torch.eye(3))
    x, u = torch.zeros(3), torch.zeros(3)
    for matrix, expected in ((known, np.eye(3)), (learnt, np.ones((3, 3)))):
        pattern = find_pattern(lambda x, u: (u * x).sum(), lambda x, u, matrix=matrix: matrix @ u, [x], u)
        assert (pattern.jacobian.csr.toarray() == expected).all()


def test_inputs_may_take_any_value():
    pattern = find_pattern(lambda x, u: u.sum(), lambda x, u: x.view(2, 3) @ u, [torch.zeros(6)], torch.zeros(3))
    assert pattern.jacobian.csr.toarray().all()


def test_a_factor_that_is_zero_in_the_example_is_not_zero_for_ever():
    for function in (lambda x, u: (u.square() - 1).relu().sum(), lambda x, u: ((u > x).double() * u.square()).sum()):
        pattern = find_pattern(function, None, [torch.ones(3, dtype=DOUBLE)], torch.zeros(3, dtype=DOUBLE))
        assert (symmetric(pattern.hessian) == np.eye(3)).all()


def test_what_only_one_of_two_twins_can_be_is_zero():
    pattern = pattern_of_slope(lambda u, _: torch.stack([u[0], u[0] * u[1]]), torch.zeros(2), torch.zeros(0), [])
    assert (symmetric(pattern.hessian) == np.eye(2)).all()


def test_u_has_a_shape_of_its_own():
    pattern = find_pattern(lambda x, u: (u[0] * u[1]).sum(), None, [torch.zeros(1)], torch.zeros(2, 3))
    expected = np.eye(6, k=3, dtype=bool) | np.eye(6, k=-3, dtype=bool)
    assert (symmetric(pattern.hessian) == expected).all()


def test_what_is_not_sparse_is_not_followed_to_the_end():
    with pytest.raises(NoPattern, match="not sparse"):
        find_pattern(lambda x, u: u.sum().square(), None, [torch.zeros(1)], torch.zeros(20_000))


def test_a_branch_on_values_has_no_pattern():
    with pytest.raises(NoPattern, match="cannot be traced"):
        find_pattern(lambda x, u: u.sum() if u[0] > 0 else u[0], None, [torch.zeros(1)], torch.zeros(3))


def test_many_unknowns_take_little_time():
    n = 30_000
    pattern = find_pattern(
        lambda x, u: (u - x).square().sum(),
        lambda x, u: torch.cat([u.diff() - 1, -u.diff() - 1]),
        [torch.zeros(n)],
        torch.zeros(n),
    )
    assert len(pattern.hessian) == n
    assert len(pattern.jacobian) == 4 * (n - 1)


GIVEN = np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1]], dtype=bool)


@pytest.mark.parametrize(
    "matrix",
    [
        GIVEN,
        np.tril(GIVEN),
        np.triu(GIVEN),
        torch.from_numpy(GIVEN),
        torch.from_numpy(GIVEN).double().to_sparse(),
        scipy.sparse.coo_array(GIVEN),
    ],
)
def test_a_given_pattern_may_come_in_many_forms(matrix):
    pattern = Pattern.given(matrix, np.ones((1, 3)), 3, 1)
    assert (symmetric(pattern.hessian) == GIVEN).all()
    assert (pattern.hessian.rows >= pattern.hessian.columns).all()
    assert pattern.jacobian.csr.toarray().tolist() == [[True] * 3]


def test_a_given_pattern_of_a_wrong_shape_is_refused():
    with pytest.raises(ValueError, match=r"jacobian has shape \(1, 3\); expected \(2, 3\)"):
        Pattern.given(GIVEN, np.ones((1, 3)), 3, 2)
    with pytest.raises(ValueError, match=r"hessian has shape \(3, 3\); expected \(4, 4\)"):
        Pattern.given(GIVEN, None, 4, 0)
    with pytest.raises(ValueError, match="1 dimensions"):
        Pattern.given(np.ones(3), None, 3, 0)


def test_entries_multiply_as_their_matrices():
    entries = Entries.of(np.random.default_rng(0).random((5, 7)) < 0.4)
    values, right, left = (
        torch.randn(3, len(entries)).double().requires_grad_(),
        torch.randn(3, 7).double(),
        torch.randn(3, 5).double(),
    )
    dense = entries.dense(values)
    torch.testing.assert_close(entries.multiply(values, right), (dense @ right.unsqueeze(-1)).squeeze(-1))
    torch.testing.assert_close(entries.multiply_transposed(values, left), (dense.mT @ left.unsqueeze(-1)).squeeze(-1))
    torch.testing.assert_close(entries.transposed().dense(values[:, entries.turned]), dense.mT)
    assert torch.autograd.gradcheck(entries.multiply, (values, right.requires_grad_()))
