"""Corners as extra unknowns and inequalities, as the documentation states them: solutions and gradients."""

import pytest
import torch
from scipy.optimize import linprog

from declarative import DeclarativeNode, SolverError
from tests.support.helpers import DOUBLE, relative
from tests.support.verdicts import listening, solved

A = torch.randn(7, 3, dtype=DOUBLE, generator=torch.Generator().manual_seed(4))
SIDES = torch.tensor([[1.0, 0.2], [-0.4, 1.0], [-1.0, -0.3], [0.1, -1.0], [0.8, -0.7]], dtype=DOUBLE)
LABELS = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0, -1.0], dtype=DOUBLE)


def differences(function, x, step=1e-5):
    """Central differences of a function of a batch of problems, for the one problem x."""
    units = torch.eye(x.numel(), dtype=x.dtype).view(-1, *x.shape)
    ends = function(torch.cat([x + step * units, x - step * units]))
    return ((ends[: len(units)] - ends[len(units) :]) / (2 * step)).view(x.shape)


def matching(node, x, loss):
    """The gradient of a loss of the solution (one number for each problem) against differences."""
    x = x.requires_grad_()
    (found,) = torch.autograd.grad(loss(node(x)).sum(), x)
    for row, g in zip(x.detach(), found, strict=True):
        assert relative(g, differences(lambda x: loss(node(x)), row)) < 1e-6
    assert found.abs().max() > 1e-3


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def test_least_absolute_deviations():
    node = DeclarativeNode(
        lambda b, z: z["t"].sum(),  # noqa: ARG005
        inequality=lambda b, z: {"over": A @ z["w"] - b - z["t"], "under": b - A @ z["w"] - z["t"]},
        start={"w": 3, "t": 7},
    )
    b = random(3, 7)
    for one, w in zip(b, node(b)["w"], strict=True):
        eye = torch.eye(7, dtype=DOUBLE)
        rows, right = torch.cat([torch.cat([A, -eye], 1), torch.cat([-A, -eye], 1)]), torch.cat([one, -one])
        costs = torch.cat([torch.zeros(3), torch.ones(7)])
        best = linprog(costs.numpy(), rows.numpy(), right.numpy(), bounds=[(None, None)] * 10)
        assert relative(w, torch.from_numpy(best.x[:3])) < 1e-6
    matching(node, b, lambda y: y["w"].pow(2).sum(-1))


def soft(x, threshold):
    return x.sign() * (x.abs() - threshold).clamp(min=0)


def test_lasso():
    node = DeclarativeNode(
        lambda x, z: 0.5 * (z["w"] - x).square().sum() + 0.4 * z["t"].sum(),
        inequality=lambda _, z: {"over": z["w"] - z["t"], "under": -z["w"] - z["t"]},
        start={"w": 5, "t": 5},
    )
    x = random(3, 5)
    assert relative(node(x)["w"], soft(x, 0.4)) < 1e-7
    matching(node, x, lambda y: y["w"].pow(3).sum(-1))


def shrunk(x, threshold):
    size = x.norm(dim=-1, keepdim=True)
    return x * (1 - threshold / size).clamp(min=0)


def test_group_lasso_by_the_cone_away_from_its_tip():
    node = DeclarativeNode(
        lambda x, z: 0.5 * (z["w"] - x).square().sum() + 0.2 * (z["t"] + z["s"]).sum(),
        inequality=lambda _, z: {"cone": z["w"].square().sum(-1) - z["t"] * z["s"], "t": -z["t"], "s": -z["s"]},
        start={"w": (2, 2), "t": torch.ones(2), "s": torch.ones(2)},
    )
    x = torch.tensor([[[2.0, 1.0], [-1.0, 1.5]]], dtype=DOUBLE)
    assert relative(node(x)["w"], shrunk(x, 0.4)) < 1e-7
    matching(node, x, lambda y: y["w"].pow(3).sum((-2, -1)))


def test_group_lasso_by_its_dual_at_the_tip_too():
    node = DeclarativeNode(
        lambda x, z: 0.5 * (x - z["p"]).square().sum(),
        inequality=lambda _, z: z["p"].square().sum(-1) - 0.8**2,
        start={"p": (3, 2)},
    )
    x = torch.tensor([[[2.0, 1.0], [0.3, 0.2], [-1.0, 1.5]], [[0.1, 0.1], [3.0, 0.2], [-1.0, -0.5]]], dtype=DOUBLE)
    assert relative(x - node(x)["p"], shrunk(x, 0.8)) < 1e-7
    x.requires_grad_()
    (found,) = torch.autograd.grad((x - node(x)["p"]).pow(3).sum(), x)
    (truth,) = torch.autograd.grad(shrunk(x, 0.8).pow(3).sum(), x)
    assert relative(found, truth) < 1e-7


def test_hinge():
    node = DeclarativeNode(
        lambda x, z: 0.5 * z["w"].square().sum() + 2.0 * z["slack"].sum(),  # noqa: ARG005
        inequality=lambda x, z: {"margin": 1 - LABELS * (x @ z["w"] + z["b"]) - z["slack"], "slack": -z["slack"]},
        start={"w": 2, "b": (), "slack": 6},
    )
    x = random(2, 6, 2, seed=1) + LABELS[:, None] * 0.7
    y = node(x)
    margins = 1 - LABELS * ((x @ y["w"].unsqueeze(-1)).squeeze(-1) + y["b"][:, None])
    assert relative(y["slack"], margins.clamp(min=0)) < 1e-6
    matching(node, x, lambda y: y["w"].pow(2).sum(-1) + y["b"])


def test_total_variation():
    node = DeclarativeNode(
        lambda x, z: 0.5 * (z["y"] - x).square().sum() + 0.5 * z["t"].sum(),
        inequality=lambda _, z: (z["y"].diff() - z["t"], -z["y"].diff() - z["t"]),
        start={"y": 6, "t": 5},
    )
    x = torch.tensor([0.0, 0.0, 0.0, 2.0, 2.0, 2.0], dtype=DOUBLE) + 0.2 * random(2, 6)
    levels = node(x)["y"]
    low, high = x[:, :3].mean(-1) + 0.5 / 3, x[:, 3:].mean(-1) - 0.5 / 3  # each end is drawn to the other
    assert relative(levels, torch.stack([low] * 3 + [high] * 3, -1)) < 1e-6
    matching(node, x, lambda y: y["y"].pow(3).sum(-1))


def test_chebyshev_centre():
    node = DeclarativeNode(
        lambda b, z: -z["r"],  # noqa: ARG005
        inequality=lambda b, z: SIDES @ z["c"] + z["r"] * SIDES.norm(dim=-1) - b,
        start={"c": 2, "r": ()},
    )
    b = 1 + random(3, 5).abs()
    y = node(b)
    distances = (b - y["c"] @ SIDES.mT) / SIDES.norm(dim=-1)
    assert relative(distances.amin(-1), y["r"]) < 1e-8
    for one, r in zip(b, y["r"], strict=True):
        rows = torch.cat([SIDES, SIDES.norm(dim=-1, keepdim=True)], 1)
        best = linprog([0, 0, -1], rows.numpy(), one.numpy(), bounds=[(None, None)] * 3)
        assert relative(r, torch.tensor(best.x[2])) < 1e-7
    matching(node, b, lambda y: y["r"] + y["c"].pow(2).sum(-1))


def test_a_corner_that_is_not_restated_is_told_so():
    node = DeclarativeNode(lambda x, u: (u - x).abs() + 0.5 * u.abs(), solver="newton", start=())
    with pytest.raises(SolverError, match="State it with an extra unknown"):
        node(torch.ones(2, dtype=DOUBLE))


# Corners that are not restated: a point that looks like a solution by the slopes that torch has there


def loudly(node, x):
    """The solution, the gradient of its first entry, and what was said."""
    x = torch.tensor(x, dtype=DOUBLE).requires_grad_()
    with listening() as words:
        solution = node.solve(x)
    return solution, torch.autograd.grad(solution.y.flatten()[0], x)[0], words


def huber(x, u):
    gap = (u - x).abs()
    return torch.where(gap <= 0.5, gap.square() / 2, 0.5 * (gap - 0.25)).sum()


def prox_of_max(x):
    """By bisection over the level t that the largest entries are cut to: what is cut off sums up to a half."""
    low, high = x.amax(-1, keepdim=True) - 1, x.amax(-1, keepdim=True)
    for _ in range(60):
        t = (low + high) / 2
        cut = (x - t).clamp(min=0).sum(-1, keepdim=True)
        low, high = torch.where(cut > 0.5, t, low), torch.where(cut > 0.5, high, t)
    return x.minimum(high)


ON_CORNERS = {
    "lasso": (lambda x, u: (u - x).square().sum() + 0.5 * u.abs().sum(), lambda x: soft(x, 0.25), [[0.0, 2.0, -3.0]]),
    "max": (lambda x, u: (u - x).square().sum() + u.amax(), prox_of_max, [[1.5, 1.5, -0.1]]),
    "squared hinge": (
        lambda x, u: (u - x).square().sum() + u.relu().square().sum(),
        lambda x: x.clamp(max=0) + x.clamp(min=0) / 2,
        [[0.0, 2.0, -1.0]],
    ),
}


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("name", ON_CORNERS)
def test_a_wrong_gradient_on_a_corner_is_told(name, record):
    objective, formula, x = ON_CORNERS[name]
    node = DeclarativeNode(objective, start=3, record=record)
    solution, found, words = loudly(node, x)
    x = torch.tensor(x, dtype=DOUBLE)
    assert relative(solution.y, formula(x)) < 1e-9
    assert relative(found[0], differences(lambda x: formula(x)[:, 0], x[0])) > 0.1
    assert len(words) == 1
    assert "1 of 1 problems have a solution on a corner" in words[0]
    with listening() as words:
        node(x)  # of which no derivative will be taken
    assert not words


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize(
    ("objective", "start"),
    [
        (lambda x, u: u.square() - x * u.abs(), torch.tensor(0.0)),
        (lambda x, u: torch.where(u > x, (u - x) ** 2, 3 * (u - x) ** 2 - 5 * (u - x).abs()), torch.tensor(3.0)),
        (lambda x, u: torch.where(u > x, 1.0, -1.0) * (u - x).square() + 0 * u, torch.tensor(3.0)),
        (lambda x, u: u[0].square() - u[0].abs() + 20 * (u[1] - x).abs() + (u[1] - x) ** 2, torch.tensor([0.0, 1.0])),
    ],
    ids=["to both sides", "to the left", "by curvature", "along one unknown"],
)
def test_a_corner_that_the_objective_falls_from_is_no_solution(objective, start, record):
    x = torch.ones(1, dtype=DOUBLE)
    solution = solved(DeclarativeNode(objective, start=start, record=record, on_failure="mask"), x)
    if solution.converged.all():  # then nothing is lower nearby
        y = solution.y[0]
        axes = torch.eye(y.numel(), dtype=DOUBLE).view(-1, *y.shape)
        assert min(objective(x[0], y + side * axis) for axis in axes for side in (1e-3, -1e-3)) >= objective(x[0], y)


def test_a_start_that_ends_on_a_maximum_is_not_kept():
    def objective(x, u):
        return torch.where(u < 3, u.square() - u.abs(), (u - 5 * x).square() + 1)

    node = DeclarativeNode(objective, start=[torch.tensor(0.0), torch.tensor(4.0)], solver="newton")
    assert relative(node(torch.ones(2, dtype=DOUBLE)), 5 * torch.ones(2, dtype=DOUBLE)) < 1e-9


def test_zeros_without_memory_are_recorded():
    """The second derivative of an absolute value is such zeros, wherever it is taken."""
    x = torch.tensor([1.0, -3.0], dtype=DOUBLE)
    node = DeclarativeNode(lambda x, u: (u - x).abs(), start=lambda x: x, record=True)
    assert torch.equal(solved(node, x).y, x)


def test_the_edge_of_a_plateau_is_told_not_to_be_the_only_solution():
    solution, _, words = loudly(DeclarativeNode(huber, start=torch.tensor(0.2)), [[0.0, 10.0]])
    x = torch.tensor([0.0, 10.0], dtype=DOUBLE)
    assert huber(x, solution.y[0].detach()) == huber(x, torch.tensor(5.0))
    assert len(words) == 1
    assert "1 of them are not the only solution" in words[0]


W1, W2 = (torch.randn(n, m, dtype=DOUBLE, generator=torch.Generator().manual_seed(5)) for n, m in ((30, 4), (1, 30)))

OFF_CORNERS = {
    "lasso": (ON_CORNERS["lasso"][0], {"start": lambda x: x}),
    "max": (ON_CORNERS["max"][0], {"start": lambda x: x}),
    "huber": (lambda x, u: huber(x, u[0]) + 0.7 * (u - x).square().sum(), {"start": lambda x: x}),
    "network": (
        lambda x, u: (u - x).square().sum() + 0.01 * (W2 @ (W1 @ u).relu()).square().sum(),
        {"start": lambda x: x},
    ),
    "beyond a bound": (lambda x, u: (u - x).square().sum() + 0.5 * u.abs().sum(), {"start": 4, "bounds": (0, None)}),
    "beyond a constraint": (
        lambda x, u: (u - x).square().sum() + 0.5 * u.abs().sum(),
        {"start": 4, "inequality": lambda _, u: -u},
    ),
    "along a constraint": (
        lambda x, u: (u - x).square().sum() + u.clamp(min=-9).square().sum(),
        {"start": 4, "equality": lambda _, u: u.square().sum() - 4},
    ),
}


@pytest.mark.parametrize(
    ("name", "offset"),
    [*((name, 0.0) for name in OFF_CORNERS), *((name, 1e5) for name in ("lasso", "huber", "network"))],
)
def test_off_corners_nothing_is_said_and_gradients_are_right(name, offset):
    objective, options = OFF_CORNERS[name]
    node = DeclarativeNode(lambda x, u: objective(x - offset, u - offset), on_failure="mask", **options)
    x = (3 * random(20, 4, seed=2) + offset).requires_grad_()
    with listening() as words:
        solution = node.solve(x)
    assert not [word for word in words if "on a corner" in word]
    assert solution.converged.double().mean() > 0.5
    (found,) = torch.autograd.grad(solution.y[:, 0].sum(), x)
    for row in solution.converged.nonzero().flatten()[:4]:
        truth = differences(lambda x: solved(node, x).y[:, 0], x[row].detach())
        assert relative(found[row], truth) < 1e-4
