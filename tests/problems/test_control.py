"""Optimal control against recursions, simulations, finite differences and its dense twin."""

# ruff: noqa: ARG001, ARG005

import math

import pytest
import torch
from torch import nn

from problems import OptimalControl

DOUBLE = torch.float64
H = 0.1
STARTS = torch.tensor([[0.6, 0.0], [1.0, 0.3], [-0.4, 0.2]], dtype=DOUBLE)


def swing(x, u, *parameters):
    stiffness = parameters[0] if parameters else 9.81
    return torch.stack([x[0] + H * x[1], x[1] + H * (stiffness * x[0].sin() + u[0])])


def effort(x, u, *parameters):
    return x.square().sum() + 0.1 * u.square().sum()


def far(x, *parameters):
    return 10 * x.square().sum()


def pendulum(**options):
    return OptimalControl(swing, effort, far, **{"steps": 12, "controls": 1, "in_dims": (0, None)} | options)


STIFFNESS = torch.tensor(9.81, dtype=DOUBLE)


def assert_slope(value, step=1e-5):
    """The derivative at 0 is that of central differences."""
    zero = torch.tensor(0.0, dtype=DOUBLE, requires_grad=True)
    (ours,) = torch.autograd.grad(value(zero), zero)
    theirs = (value(zero.detach() + step) - value(zero.detach() - step)) / (2 * step)
    assert ours.item() != 0
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)


def riccati(A, B, Q, R, x, steps):
    """The controls of the linear-quadratic regulator, cost x'Qx + u'Ru and x'Qx at the end."""
    P, gains = Q, []
    for _ in range(steps):
        K = torch.linalg.solve(R + B.T @ P @ B, B.T @ P @ A)
        P = Q + A.T @ P @ (A - B @ K)
        gains.append(K)
    controls = []
    for K in reversed(gains):
        u = -(K @ x)
        x = A @ x + B @ u
        controls.append(u)
    return torch.stack(controls), x


@pytest.mark.parametrize("structure", ["sparse", "dense"])
@pytest.mark.parametrize("steps", [1, 25])
def test_a_linear_quadratic_problem_is_solved_by_the_riccati_recursion(structure, steps):
    generator = torch.Generator().manual_seed(0)
    A, B = (torch.randn(3, n, generator=generator, dtype=DOUBLE) for n in (3, 2))
    Q, R = torch.diag(torch.tensor([1.0, 2.0, 0.5], dtype=DOUBLE)), torch.diag(torch.tensor([0.3, 1.0], dtype=DOUBLE))
    layer = OptimalControl(
        lambda x, u: A @ x + B @ u,
        lambda x, u: x @ Q @ x + u @ R @ u,
        lambda x: x @ Q @ x,
        steps=steps,
        controls=2,
        structure=structure,
    )
    starts = torch.randn(4, 3, generator=generator, dtype=DOUBLE)
    y = layer(starts)
    for i, x in enumerate(starts):
        controls, last = riccati(A, B, Q, R, x, steps)
        assert torch.allclose(y["controls"][i], controls, atol=1e-10)
        assert torch.allclose(y["states"][i, -1], last, atol=1e-9)


def test_the_gradient_of_a_linear_quadratic_problem_is_that_of_the_recursion():
    A = torch.tensor([[1.0, 0.2], [0.0, 1.0]], dtype=DOUBLE, requires_grad=True)
    B, Q, R = torch.tensor([[0.0], [0.2]], dtype=DOUBLE), torch.eye(2, dtype=DOUBLE), torch.eye(1, dtype=DOUBLE)
    layer = OptimalControl(
        lambda x, u, A: A @ x + B @ u,
        lambda x, u, A: x @ x + u @ u,
        lambda x, A: x @ x,
        steps=15,
        controls=1,
        in_dims=(0, None),
    )
    ours = torch.autograd.grad(layer(STARTS[:1], A)["controls"].square().sum(), A)[0]
    theirs = torch.autograd.grad(riccati(A, B, Q, R, STARTS[0], 15)[0].square().sum(), A)[0]
    assert torch.allclose(ours, theirs, atol=1e-10)


def test_states_are_those_that_the_controls_lead_to():
    y = pendulum(control_bounds=(-5.0, 5.0))(STARTS, STIFFNESS)
    x = STARTS
    for t in range(12):
        x = torch.vmap(swing)(x, y["controls"][:, t])
        assert torch.allclose(y["states"][:, t], x, atol=1e-9)
    assert y["controls"].abs().amax() == 5.0


CASES = {
    "bounds": {"control_bounds": (-5.0, 5.0), "state_bounds": (torch.tensor([-math.inf, -1.5], dtype=DOUBLE), None)},
    "path": {"inequality": lambda x, u, k: u[0] * x[1] - 2.0},
    "end": {"end_equality": lambda x, k: x, "control_bounds": (-25.0, 25.0)},
}


@pytest.mark.parametrize("case", CASES)
def test_the_dense_twin_agrees(case):
    layer = pendulum(steps=8, structure="sparse", **CASES[case])
    found = []
    for one in (layer, layer.generic(), pendulum(steps=8, structure="sparse", record=True, **CASES[case])):
        starts, k = STARTS.clone().requires_grad_(), STIFFNESS.clone().requires_grad_()
        y = one(starts, k)
        gradients = torch.autograd.grad(y["controls"].sin().sum() + y["states"].cos().sum(), (starts, k))
        found.append((y["states"].detach(), y["controls"].detach(), *gradients))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert torch.allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_the_gradient_is_that_of_finite_differences(case):
    layer = pendulum(steps=6, structure="sparse", **CASES[case])

    def value(t):
        y = layer(STARTS[:2] + t * STARTS[1:], STIFFNESS + t)
        return y["controls"].sin().sum() + y["states"].cos().sum()

    assert_slope(value)


def test_a_path_inequality_holds_after_each_step_and_binds():
    y = pendulum(**CASES["path"])(STARTS, STIFFNESS)
    free = pendulum()(STARTS, STIFFNESS)
    power, freely = (one["controls"][..., 0] * one["states"][..., 1] for one in (y, free))
    assert power.amax() <= 2.0 + 1e-9
    assert power.amax() >= 2.0 - 1e-6
    assert freely.amax() > 2.1


def test_the_end_is_reached():
    layer = pendulum(**CASES["end"])
    solution = layer.solve(STARTS, STIFFNESS)
    assert solution.y["states"][:, -1].abs().amax() < 1e-10
    assert solution.multipliers["end"].shape == (3, 2)


def test_parameters_may_differ_between_problems():
    each = torch.tensor([9.81, 5.0, 1.0], dtype=DOUBLE)
    y = pendulum(in_dims=0)(STARTS, each)["controls"]
    for i, k in enumerate(each):
        assert torch.allclose(y[i], pendulum()(STARTS[i : i + 1], k)["controls"][0], atol=1e-9)


def test_a_parameter_may_have_an_entry_for_each_step():
    reference = torch.linspace(0, 1, 7, dtype=DOUBLE)
    layer = OptimalControl(
        lambda x, u, r: x + u,
        lambda x, u, r: 1e-9 * u.square().sum() + (x + u - r).square().sum(),  # where it is after the step
        lambda x, r: 3 * (x - r).square().sum(),
        steps=7,
        controls=1,
        per_step=[0],
        in_dims=(0, None),
    )
    y = layer(torch.zeros(2, 1, dtype=DOUBLE), reference)
    assert torch.allclose(y["states"][1, :, 0], reference, atol=1e-7)


def test_bounds_may_depend_on_the_inputs():
    layer = pendulum(steps=6, control_bounds=(lambda x, k: -k, lambda x, k: k))
    most = torch.tensor(4.0, dtype=DOUBLE)
    assert layer(STARTS[:2], most)["controls"].abs().amax().item() == pytest.approx(4.0, abs=1e-12)
    assert_slope(lambda t: layer(STARTS[:2], most + t)["states"].cos().sum())


def test_a_network_as_dynamics_gets_gradients():
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()

        def forward(self, x, u):
            return x + H * self.net(torch.cat([x, u]))

    model = Model()
    layer = OptimalControl(model, effort, far, steps=5, controls=1)
    weight = model.net[2].bias
    (name,) = (name for name, one in layer.named_parameters() if one is weight)
    assert_slope(lambda t: torch.func.functional_call(layer, {name: weight + t}, STARTS)["controls"].sum())


def test_a_long_horizon_is_sparse_and_a_failure_is_not_hidden():
    assert pendulum(steps=100).spec.plan.structure == "sparse"
    assert pendulum(steps=99).spec.plan.structure == "auto"
    with pytest.raises(ValueError, match="structure='sparse' cannot be had"):
        OptimalControl(
            lambda x, u, A: x @ torch.linalg.inv(A.outer(x) + A.diag()) + u.sum(),
            lambda x, u, A: x.square().sum(),
            steps=2000,
            controls=1,
            in_dims=(0, None),
        )(torch.ones(1, 3, dtype=DOUBLE), torch.ones(3, dtype=DOUBLE))


def test_options_of_a_layer_are_taken():
    layer = pendulum(gradient="curvature", on_failure="mask")
    assert type(layer.gradient).__name__ == "Curvature"
    assert layer.spec.plan.on_failure == "mask"
    assert type(layer.generic().gradient).__name__ == "Curvature"
    assert layer.generic().spec.plan.structure == "dense"


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"steps": 0}, ValueError, "steps must be a positive int"),
        ({"controls": 1.5}, ValueError, "controls must be a positive int"),
        ({"control_bounds": 3.0}, TypeError, r"control_bounds must be a pair \(lower, upper\)"),
        ({"inequality": 3.0}, TypeError, "inequality must be a function of one step, but is float"),
    ],
)
def test_misuse_is_an_error(options, error, words):
    with pytest.raises(error, match=words):
        pendulum(**options)


def test_wrong_shapes_are_told():
    with pytest.raises(ValueError, match="the initial state must be a vector for each problem"):
        pendulum()(torch.zeros(2, 2, 2), STIFFNESS)
    with pytest.raises(ValueError, match="per_step names parameter 1, but there are 1, from 0"):
        pendulum(per_step=[1])(STARTS, STIFFNESS)
    with pytest.raises(ValueError, match=r"step must return the next state, of shape \(2,\), but returned \(1,\)"):
        OptimalControl(lambda x, u: u, effort, steps=3, controls=1)(STARTS)
