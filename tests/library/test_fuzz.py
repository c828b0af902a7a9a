"""Whatever is passed to the public names, only documented exceptions come out, raised on purpose and in words."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import declarative
import problems
from declarative import (
    Adaptive,
    Chain,
    ClosedForm,
    Curvature,
    DeclarativeNode,
    Exact,
    Identity,
    Newton,
    Scipy,
    Smoothed,
    Unconstrained,
    check,
    compare,
    conformance,
)
from problems import OptimalControl
from problems.layer import Options
from tests.support.fuzz_table import attempt, odd_objects, odd_tensors
from tests.support.helpers import half_square, normalise, unit
from tests.support.problem_table import TABLE, Case

X = torch.tensor([[0.3, -1.2, 0.7], [1.1, 0.4, -0.2]], dtype=torch.float64)
OF_FUNCTIONS = {"Layer", "OptimalControl", "ConeProgram", "Cones", "from_cvxpy"}  # made from what the user writes
ONE_EACH = list({type(case.layer): case for case in TABLE}.values())
METHODS: dict[str, Callable[..., Any]] = {
    "solve": lambda node, *xs: node.solve(*xs),
    "derivatives": lambda node, *xs: node.derivatives(*xs),
    "descent": lambda node, *xs: node.descent(*xs, torch.ones(2, 3, dtype=torch.float64)),
    "check": check,
    "compare": lambda node, *xs: compare(node, node, *xs, seconds=0),
}
# Results, which nobody but the library makes, and the bases of the caller's own classes.
NOT_CALLED = {"Derivatives", "Solution", "Status", "NumericalWarning", "SolverError", "Rule", "Solver"}
SOLVERS_AND_RULES = [Newton, Scipy, Chain, ClosedForm, Adaptive, Exact, Curvature, Unconstrained, Identity, Smoothed]


def odd(like: Tensor) -> Iterator[tuple[str, Any]]:
    yield from odd_objects().items()
    yield from ((f"tensor: {name}", value) for name, value in odd_tensors(like).items())


class Tally:
    """Counts calls and collects the faults, so that one run shows all of them."""

    def __init__(self) -> None:
        self.calls = self.returned = 0
        self.faults: list[str] = []

    def __call__(self, label: str, call: Callable[[], Any]) -> None:
        outcome = attempt(call)
        self.calls += 1
        self.returned += outcome.returned
        if outcome.fault:
            self.faults.append(f"{label}: {outcome.fault}")

    def no_faults(self, least: int) -> None:
        print(f"\n{self.calls} calls, {self.returned} returned a value")
        assert not self.faults, f"{len(self.faults)} of {self.calls}:\n" + "\n".join(self.faults[:40])
        assert self.calls >= least

    def verdict(self, least: int, share: float = 0.02) -> None:
        self.no_faults(least)
        # Both kinds of end must occur, or the table would test nothing.
        assert share * self.calls < self.returned < (1 - share) * self.calls


@pytest.mark.parametrize("case", ONE_EACH, ids=lambda case: case.name)
def test_every_input_of_every_layer(case: Case):
    tally, chance = Tally(), random.Random(case.name)
    xs = [x.detach() for x in case.inputs()]
    for i in range(len(xs)):
        for name, value in odd(xs[i]):
            arguments = [*xs[:i], value, *xs[i + 1 :]]
            tally(f"input {i} {name}", lambda arguments=arguments: case.layer(*arguments))
            method = chance.choice([m for m in METHODS if m != "check" or not isinstance(value, Tensor)])
            tally(f"{method} of input {i} {name}", lambda a=arguments, m=method: METHODS[m](case.layer, *a) and None)
    tally.verdict(90)


@pytest.mark.parametrize("case", ONE_EACH, ids=lambda case: case.name)
def test_incoming_gradients_and_starts_of_every_layer(case: Case):
    tally = Tally()
    xs = [x.detach() for x in case.inputs()]
    y = case.layer(*xs)
    for i, (name, value) in enumerate(odd(y)):
        if i % 2:
            tally(f"descent for v {name}", lambda value=value: case.layer.descent(*xs, value) and None)
        else:
            tally(
                f"compare for v {name}", lambda v=value: compare(case.layer, case.layer, *xs, v=v, seconds=0) and None
            )
        tally(f"start {name}", lambda value=value: case.layer(*xs, start=value))
    tally.verdict(90)


@pytest.mark.parametrize("solver", ["newton", "scipy", normalise], ids=["newton", "scipy", "formula"])
def test_inputs_and_starts_of_a_node(solver):
    tally = Tally()
    start = None if solver is normalise else torch.full((3,), 0.5)
    node = DeclarativeNode(half_square, unit, solver=solver, start=start)
    for name, value in odd(X):
        if name in ("tensor: huge", "tensor: largest"):  # which the caller's own functions would have to compute with
            continue
        tally(f"input {name}", lambda value=value: node(value))
        tally(f"second input {name}", lambda value=value: node(X, value))
        tally(f"start {name}", lambda value=value: node(X, start=value))
        if solver is normalise:
            tally(f"descent {name}", lambda value=value: node.descent(X, value) and None)
        if not isinstance(value, Tensor):  # what is wrong with a tensor is found on the same way as above
            tally(f"check {name}", lambda value=value: check(node, value) and None)
    tally.verdict(140)


def test_a_formula_without_unknowns_is_refused_in_words():
    outcome = attempt(lambda: DeclarativeNode(half_square, unit, solver=normalise)(X[:, :0]))
    assert outcome.fault is None


def test_the_arguments_of_a_node():
    tally = Tally()
    good = {"objective": half_square, "equality": unit, "inequality": None, "solver": "newton", "start": 3}
    for argument in inspect.signature(DeclarativeNode).parameters:
        for name, value in odd(X):
            if (argument, name) != ("start", "tensor: huge"):  # which is a start, for who has the memory
                given = {**good, argument: value}
                tally(f"{argument} {name}", lambda given=given: DeclarativeNode(**given)(X))
    for name, value in odd(X):
        node = DeclarativeNode(**good)
        tally(f"with_gradient {name}", lambda value=value, node=node: node.with_gradient(value)(X))
        tally(f"check of {name}", lambda value=value: check(value, X) and None)
        tally(f"conformance of {name}", lambda value=value: conformance(value, X) and None)
        if not isinstance(value, Tensor):
            tally(f"conformance for {name}", lambda value=value, node=node: conformance(node, value) and None)
        tally(f"compare of {name}", lambda value=value: compare(value, normalise, X, seconds=0) and None)
        if name != "class":  # a function that fails by itself
            tally(f"compare with {name}", lambda v=value, node=node: compare(node, v, X, seconds=0) and None)
    tally.verdict(500)


@pytest.mark.parametrize("kind", [getattr(problems, name) for name in problems.__all__ if name not in OF_FUNCTIONS])
def test_the_arguments_of_the_layers(kind):
    tally = Tally()
    xs = next([x.detach() for x in case.inputs()] for case in TABLE if type(case.layer) is kind)
    for argument in {*inspect.signature(kind).parameters, *Options.__annotations__} - {"options"}:
        for name, value in odd(X):
            tally(f"{argument} {name}", lambda a=argument, value=value: kind(**{a: value})(*xs))
    for right in ("exact", "identity"):
        tally(f"gradient {right}", lambda right=right: kind(gradient=right)(*xs))
    tally.verdict(80, share=0.001)


def test_the_arguments_of_control():
    tally = Tally()
    good = {"step": lambda x, u: x + u, "cost": lambda x, u: x.square().sum() + u.square().sum(), "steps": 2}
    for argument in {*inspect.signature(OptimalControl).parameters, *Options.__annotations__} - {"options"}:
        for name, value in odd(X):
            given = {**good, "controls": 3, argument: value}
            tally(f"{argument} {name}", lambda given=given: OptimalControl(**given)(X)["states"])
    tally.verdict(300, share=0.001)


@pytest.mark.parametrize("kind", SOLVERS_AND_RULES)
def test_the_arguments_of_solvers_and_rules(kind):
    tally = Tally()
    good: dict[str, Any] = {"function": normalise} if kind is ClosedForm else {}
    rule = kind in (Adaptive, Exact, Curvature, Unconstrained, Identity, Smoothed)
    arguments = [*inspect.signature(kind).parameters, "nonsense"]
    for argument in arguments:
        for name, value in odd(X):
            if kind is Newton and name not in ("None", "text", "list", "huge int", "float"):  # to save time
                continue
            given = {**good, argument: value}
            tally(f"{argument} {name}", lambda given=given: differentiate(kind(**given), rule))
    tally.no_faults(30)


def differentiate(part: Any, rule: bool) -> Tensor:
    options = {"gradient": part, "solver": normalise} if rule else {"solver": part, "start": torch.full((3,), 0.5)}
    x = X.clone().requires_grad_()
    return torch.autograd.grad(DeclarativeNode(half_square, unit, **options)(x).sum(), x)[0]


def test_the_state_of_an_adaptive_rule():
    tally = Tally()
    for name, value in odd(X):
        tally(f"state {name}", lambda value=value: Adaptive().load_state_dict(value))
        for key in Adaptive().state_dict():
            state = {**Adaptive().state_dict(), key: value}
            tally(f"{key} {name}", lambda state=state: Adaptive().load_state_dict(state))
    tally.no_faults(300)


def test_every_public_name_is_here():
    called = {kind.__name__ for kind in SOLVERS_AND_RULES} | {"DeclarativeNode", "check", "compare", "conformance"}
    assert called | NOT_CALLED == set(declarative.__all__)
    assert {type(case.layer).__name__ for case in ONE_EACH} | OF_FUNCTIONS == set(problems.__all__)
