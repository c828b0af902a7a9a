"""The compiled kernels of the Newton method against the same iteration in torch, step by step."""

import dataclasses
import warnings

import pytest
import torch

from declarative import DeclarativeNode, Newton, NumericalWarning, Smoothed
from declarative.kernels.library import available
from declarative.solvers.newton import filter as filter_
from declarative.solvers.newton import iteration, loop, regularisation, safeguards
from declarative.solvers.newton import state as states
from declarative.solvers.newton.compiled import batch as compiled
from tests.support.helpers import DOUBLE

pytestmark = pytest.mark.skipif(not available(), reason="there is no compiled core")
M = 6
SIDE = torch.randn(4, M, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))


def start(_):
    return torch.ones(M, dtype=DOUBLE) / 2


def bowl(x, u):
    return (u - x).pow(4).sum() + (u - x).square().sum() + u[0] * u[1] / 4


PROBLEMS = {
    "free": {"objective": bowl},
    "equalities": {"objective": bowl, "equality": lambda _, u: torch.stack([u.square().sum() - 1, u[0] - u[1]])},
    "inequalities": {"objective": bowl, "inequality": lambda _, u: SIDE @ u - 0.3},
    "both, and bounds": {
        "objective": bowl,
        "equality": lambda _, u: u.sum() - 1,
        "inequality": lambda _, u: SIDE @ u - 0.6,
        "bounds": (0.0, 0.4),
    },
    "not convex": {"objective": lambda x, u: (u * x).sin().sum() + u.square().sum() / 10, "bounds": (-3.0, 3.0)},
    "undefined in places": {
        "objective": lambda x, u: (u - u.log()).sum() + x @ u,
        "equality": lambda _, u: u.sum() - 2,
    },
}


def inputs(count=7):
    return torch.randn(count, M, dtype=DOUBLE, generator=torch.Generator().manual_seed(3))


def node_of(name, **options):
    return DeclarativeNode(**PROBLEMS[name], start=start, **{"solver": Newton(), "on_failure": "mask", **options})


def close(one, other):
    """Equal up to what rounding errors make of it, also where both are infinite or no numbers."""
    return torch.allclose(one.double(), other.double(), rtol=1e-7, atol=1e-9, equal_nan=True)


def before(batch):
    """The model, the state and the scales that an iteration of the kernels is from, in tensors of their own."""
    model, state, fixed = batch.model(), batch.tensors()[2], batch.problems.fixed
    copies = [
        dataclasses.replace(one, **{name: x.clone() for name, x in one.tensors().items()}) for one in (model, state)
    ]
    return *copies, states.Scales(*(torch.from_numpy(x) for x in (fixed.scale, fixed.rows, fixed.start)))


@pytest.fixture
def compared(monkeypatch):
    """Every iteration of the kernels is done in torch too; how many there were."""
    seen = []
    original = compiled.CompiledBatch.iterate

    def iterate(self, stepping=True):
        model, state, scales = before(self)
        flags = original(self, stepping)
        batch = dataclasses.replace(self.batch, evaluator=None)
        *expected, wanted = iteration.iterate_once(batch, scales, model, state, self.problems.tolerances)
        theta = filter_.merit(model.objective, model.residual, model.s, state.barrier)[0]
        clear = (theta > 1e-10) & ~wanted[:, 0]  # elsewhere rounding errors may decide what is progress
        found = torch.from_numpy(flags).T
        plain = (wanted[:, 1] | ~found[:, 1]) & (wanted[:, 2] | ~found[:, 2])  # others are mended at once
        for mine, theirs in zip(self.tensors(), expected, strict=True):
            for part, x in mine.tensors().items():
                rows = clear & plain if part in ("filter", "stored") else plain
                assert close(x[rows], getattr(theirs, part)[rows]), part
        agree = (wanted == torch.from_numpy(flags).T) | ~plain.unsqueeze(-1)
        agree[:, 2] |= ~clear
        agree[:, 3] |= ~wanted[:, 1]  # where there is no factor, nothing is left of any pivot
        assert bool(agree.all())
        seen.append(len(flags))
        return flags

    monkeypatch.setattr(compiled.CompiledBatch, "iterate", iterate)
    return seen


@pytest.mark.parametrize("structure", ["dense", "sparse"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_iteration_is_that_of_torch(compared, name, structure):
    solution = node_of(name, structure=structure).solve(inputs())
    assert solution.converged.any()
    assert len(compared) >= 3


def waves(x, u):
    return (u * x).sin().sum() * 3 + SIDE[0] @ u * (SIDE[1] @ u) / 5  # no two curvatures are equal


REGULARISED = {
    "turned": {"objective": lambda x, u: waves(x, u) + u.square().sum() / 10},
    "along a plane": {"objective": waves, "equality": lambda _, u: u.sum() - 3},
    "astray": {"objective": waves, "equality": lambda _, u: u.square().sum() - 9},
    "with slacks": {"objective": waves, "inequality": lambda _, u: SIDE @ u - 3},
    "with bounds": {"objective": waves, "bounds": (-1.0, 2.0)},
    "dependent": {"objective": waves, "equality": lambda _, u: torch.stack([u.sum() - 3, 2 * u.sum() - 6])},
}


@pytest.mark.parametrize("name", REGULARISED)
def test_a_regularised_step_is_that_of_torch(monkeypatch, name):
    """Where H curves down along the constraints."""
    seen, original = [], compiled.CompiledBatch.iterate

    def iterate(self, _):
        model, state, _ = before(self)
        flags = original(self, stepping=False)
        state = dataclasses.replace(state, barrier=torch.from_numpy(self.problems.fixed.barrier))
        plain = iteration.newton_step(model, state.shift, state.weight, state.barrier, model.residual)[1]
        wanted = ~plain.convex & torch.from_numpy(flags[1])
        start = torch.from_numpy(self.problems.fixed.start)
        reach = 3 * torch.maximum(model.u.abs(), (model.u - start).abs()).amax(-1)
        convex, state, _ = regularisation.regularised(model, state, wanted, reach)
        step, _ = iteration.newton_step(convex, state.shift, state.weight, state.barrier, model.residual)
        place = iteration.moved(state, step, iteration.length_to_boundary(state.s, step.s, state.barrier))
        for part in ("u", "y"):
            mine = torch.from_numpy(getattr(self.problems.trial, part))
            assert torch.allclose(mine[wanted], getattr(place, part)[wanted], rtol=1e-6, atol=1e-7), part
        seen.append(int(wanted.sum()))
        return flags

    monkeypatch.setattr(compiled.CompiledBatch, "iterate", iterate)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        DeclarativeNode(**REGULARISED[name], start=start, solver=Newton(), on_failure="mask").solve(inputs())
    assert (sum(seen) > 0) == (name != "dependent")


def test_every_iteration_towards_a_barrier_is_that_of_torch(compared):
    node_of("both, and bounds", gradient=Smoothed(0.05)).solve(inputs())
    assert len(compared) >= 3


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("name", PROBLEMS)
def test_without_the_kernels_solutions_are_the_same(monkeypatch, name, record):
    x = inputs()
    ours = node_of(name, record=record).solve(x)
    monkeypatch.setattr(loop, "usable", lambda _: False)
    theirs = node_of(name, record=record).solve(x)
    assert torch.equal(ours.converged, theirs.converged)
    assert torch.allclose(ours.y[ours.converged], theirs.y[ours.converged], rtol=1e-9, atol=1e-10)


def flat_far_out(x, u):
    return (1 + (u - x).square()).sqrt().sum()  # whose full steps lead further away


def around_a_circle(x, u):
    return 20 * (u.square().sum() - 1) - (2 + x[0]) * u[0]  # Maratos: full steps raise both objective and violation


REFUSED = {
    "shortened": {"objective": flat_far_out},
    "corrected": {"objective": around_a_circle, "equality": lambda _, u: u.square().sum() - 1},
    "with slacks": {"objective": flat_far_out, "inequality": lambda x, u: u.square().sum() - x.square().sum() / 2},
}


@pytest.mark.parametrize("structure", ["dense", "sparse"])
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("record", [True, False])
def test_a_refused_step_is_mended_by_kernels_as_in_torch(monkeypatch, name, structure, record):
    careful, original = [], safeguards.Safeguards.step

    def counted(*args):
        careful.append(args)
        return original(*args)

    monkeypatch.setattr(safeguards.Safeguards, "step", counted)
    far = torch.tensor([0.8, 0.6, 3.0, -3.0, 2.0, -2.0], dtype=DOUBLE)
    first = torch.eye(M, dtype=DOUBLE)[:2].sum(0) / 2**0.5 if name == "corrected" else far
    x, options = inputs() / 4, {"start": first, "solver": Newton(), "structure": structure}
    ours = DeclarativeNode(**REFUSED[name], **options, record=record).solve(x)
    assert not careful
    monkeypatch.setattr(loop, "usable", lambda _: False)
    theirs = DeclarativeNode(**REFUSED[name], **options).solve(x)
    assert careful
    assert torch.equal(ours.iterations, theirs.iterations)
    assert torch.allclose(ours.y, theirs.y, rtol=1e-9, atol=1e-10)


def test_a_large_dense_problem_is_factored_by_the_library_itself(monkeypatch):
    monkeypatch.setattr(compiled, "LARGEST", M - 1)
    x = inputs()
    small = node_of("both, and bounds").solve(x)
    monkeypatch.setattr(compiled, "LARGEST", M)
    assert torch.allclose(small.y, node_of("both, and bounds").solve(x).y, rtol=1e-10, atol=1e-11)


def test_functions_that_return_their_argument_are_not_overwritten():
    x = inputs().abs() + 0.1
    node = DeclarativeNode(lambda x, u: (u - x).square().sum(), inequality=lambda _, u: u, start=start, solver=Newton())
    assert torch.allclose(node(-x), -x)


def test_what_is_no_number_ends_in_a_status():
    def poisoned(x, u):
        return (u - x).square().sum() * torch.where(u[0] < 0.4, torch.nan, 1.0)

    x = torch.tensor([0.7, -0.7], dtype=DOUBLE).unsqueeze(-1).expand(-1, M)
    node = DeclarativeNode(poisoned, start=start, solver=Newton(max_iterations=50), on_failure="mask")
    with pytest.warns(NumericalWarning):
        solution = node.solve(x)
    assert solution.converged.tolist() == [True, False]
