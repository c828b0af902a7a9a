"""Good nodes conform; each way to break one is found out by a line of its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from declarative import Adaptive, DeclarativeNode, Rule, Solver, check, conformance
from declarative.linear.contract import Solve, System
from declarative.problem import Batch
from declarative.reports.check import CheckError, Grade
from declarative.reports.conformance import ConformanceResult
from declarative.solution import RawSolution
from tests.support.helpers import DOUBLE, half_square, normalise, unit
from tests.support.problem_table import TABLE, Case

X = torch.tensor([[0.3, -1.2], [1.1, 0.4]], dtype=DOUBLE)

# One of each kind. Eigenvectors other than that of the largest eigenvalue are saddle points, which a check refuses.
LAYERS = {type(case.layer): case for case in TABLE if case.name not in ("eigen", "eigen-smallest")}.values()


def sphere(**options) -> DeclarativeNode:
    return DeclarativeNode(half_square, unit, **{"solver": normalise, **options})


def failed(result: ConformanceResult) -> set[str]:
    return {line.name for line in result.lines if line.grade is Grade.FAIL}


def energy(x, u):
    return u.cosh().sum() - x @ u


def weighted(x, w, u):
    return (w * (u - x).square()).sum()


class Diagonal(System):
    """H = diag(d) of the energy, whose solution is asinh(x)."""

    def __init__(self, diagonal: Tensor) -> None:
        super().__init__(diagonal)
        self.diagonal = diagonal

    def multiply(self, z: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        return self.diagonal * z, s

    def factorise(self) -> Solve:
        return lambda r, t: (r / self.diagonal, torch.zeros_like(t))


def asinh(system: type[System]) -> DeclarativeNode:
    return DeclarativeNode(energy, solver=torch.asinh, system=lambda point, _: system(point.u.cosh()))


# Good ones


@pytest.mark.parametrize(
    ("node", "xs"),
    [
        (sphere(), (X,)),
        (sphere(solver="newton", start=lambda x: x), (X,)),
        (sphere(gradient=Adaptive()), (X,)),
        (sphere(in_dims=None), (X[0],)),
        (sphere(in_dims=1, solver=lambda x: normalise(x)), (X.mT,)),
        (DeclarativeNode(weighted, start=2, in_dims=(0, None)), (X, X[0].exp())),
        (asinh(Diagonal), (X,)),
    ],
    ids=["formula", "newton", "adaptive", "unbatched", "batch last", "shared", "system"],
)
def test_a_good_node_conforms(node, xs):
    result = conformance(node, *xs)
    assert result.ok, str(result)
    assert result.raise_if_failed() is result
    assert result["vmap"].grade is Grade.PASS
    assert {line.name for line in result.lines if line.grade is Grade.SKIP} <= {"empty batch", "pickling"}


def test_only_inputs_that_require_a_gradient_are_differentiated():
    result = conformance(DeclarativeNode(weighted, start=2, solver=lambda x, _: x), X.clone().requires_grad_(), X.exp())
    assert result.ok
    assert result["reverse mode"].value == "as finite differences in 4 directions"


def test_a_twin_of_ones_own():
    assert conformance(sphere(), X, twin=sphere(solver="newton", start=lambda x: x)).ok
    other = DeclarativeNode(half_square, lambda _, u: u.square().sum() - 4, start=lambda x: x)
    assert {"solution: twin", "exact gradient: twin"} <= failed(conformance(sphere(), X, twin=other))


def test_a_ready_made_layer_conforms():
    """One of them: each promise is tested for every layer elsewhere."""
    case = next(case for case in TABLE if case.name == "sphere")
    result = conformance(case.layer, *(x.detach() for x in case.inputs()))
    assert result.ok, str(result)
    assert result["pickling"].value == "the same to the last bit"


@pytest.mark.parametrize("case", LAYERS, ids=lambda case: case.name)
def test_every_layer_passes_its_check(case: Case):
    result = check(case.layer, *(x.detach() for x in case.inputs()))
    assert result.passed, str(result)


# Broken ones


def test_a_wrong_formula():
    result = conformance(sphere(solver=lambda x: x / x.abs().amax(-1, keepdim=True)), X)
    assert failed(result) == {"check(node, *xs)"}
    assert "solved: 0 of 2 problems" in result.lines[0].value
    with pytest.raises(CheckError, match="solved: 0 of 2"):
        result.raise_if_failed()


def test_a_formula_for_the_farthest_point():
    result = conformance(sphere(solver=lambda x: -normalise(x)), X)
    assert "check(node, *xs)" in failed(result)


def test_a_system_that_is_solved_wrongly():
    class Doubled(Diagonal):
        def factorise(self) -> Solve:
            return lambda r, t: (2 * r / self.diagonal, torch.zeros_like(t))

    found = failed(conformance(asinh(Doubled), X))
    assert {"check(node, *xs)", "exact gradient: twin", "reverse mode", "forward mode"} <= found
    assert "solution: twin" not in found


def test_a_system_that_multiplies_wrongly_shows_in_second_derivatives():
    class Doubled(Diagonal):
        def multiply(self, z: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
            return 2 * self.diagonal * z, s

    assert failed(conformance(asinh(Doubled), X)) == {"second derivatives"}


def test_a_rule_that_is_not_symmetric():
    class Shifted(Rule):
        def solve(self, point, v, w):  # noqa: ARG002
            return v.roll(1, -1), torch.zeros_like(w)

    x = torch.tensor([[0.3, -1.2, 0.7]], dtype=DOUBLE)
    assert failed(conformance(sphere(gradient=Shifted()), x)) == {"Shifted gradient: symmetric"}


class Restless(Solver):
    """Another answer in every call, all of them within the tolerance."""

    def __init__(self) -> None:
        self.calls = 0

    def solve(self, batch: Batch, start: Tensor) -> RawSolution:  # noqa: ARG002
        self.calls += 1
        return RawSolution.unsolved(batch.xs[0] * (1 + 1e-12 * self.calls))


def test_a_solver_that_remembers():
    found = failed(conformance(DeclarativeNode(half_square, solver=Restless(), start=2), X))
    assert "a second call" in found


class NoSingle(Solver):
    """Does not get to the solution in single precision."""

    def solve(self, batch: Batch, start: Tensor) -> RawSolution:
        error = 0.1 if start.dtype == torch.float32 else 0.0
        return RawSolution.unsolved(batch.xs[0] + error)


def test_a_solver_that_fails_in_single_precision():
    assert failed(conformance(DeclarativeNode(half_square, solver=NoSingle(), start=2), X)) == {"float32"}


def test_a_formula_that_needs_a_problem():
    node = sphere(solver=lambda x: x / x.square().sum(-1, keepdim=True).sqrt() + 0 * x.max())
    assert failed(conformance(node, X)) == {"empty batch"}


def test_a_formula_that_mixes_up_the_problems():
    """Right for this batch, but not for another order of its problems."""
    node = sphere(solver=lambda x: normalise(torch.where(x[:, :1].argmax() == 1, x, x.flip(0))))
    assert "vmap" in failed(conformance(node, X))


@pytest.mark.parametrize(("arguments", "word"), [(("node", X), "node"), ((sphere(), X), "twin")])
def test_what_is_not_a_node_is_refused(arguments, word):
    with pytest.raises(TypeError, match=f"{word} must be a DeclarativeNode"):
        conformance(*arguments, twin=normalise)
