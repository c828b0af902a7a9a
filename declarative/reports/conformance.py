"""Does a new solver, rule, linear system or layer keep to what the library promises? One line per promise."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError, gradcheck, gradgradcheck

from ..adaptive import Adaptive
from ..errors import NumericalWarning
from ..gradients import RULES, Rule
from ..linear.directions import irregular
from ..node import DeclarativeNode
from ..theory.descent import differentiated_inputs
from ..theory.matrices import random_like
from ..torchside import ordinary_mode
from .check import check
from .compare import batch_dims, compare
from .comparison import Difference, gradient_floor
from .result import CheckResult, Grade, Line, guarded, require_node

SAME = 1e-7  # two ways to the same number in double precision may differ by this much, relatively
SINGLE = 1e-3  # likewise if one of them is single precision
NONE = 1e-12  # what is below is rounding, and not worth a figure
FEW = 50  # entries of the inputs up to which whole Jacobians are compared with finite differences

Given = Sequence[Tensor | None]
Found = tuple[Grade, str]
Answer = list[Tensor]  # the solutions and the gradients of the wanted inputs


@dataclass(frozen=True)
class ConformanceResult(CheckResult):
    """The lines of :func:`conformance`, one per promise; ``raise_if_failed()`` is for tests."""

    @property
    def ok(self) -> bool:
        """Whether nothing failed; what could not be tested does not count."""
        return self.passed


def conformance(node: DeclarativeNode, *xs: Tensor | None, twin: DeclarativeNode | None = None) -> ConformanceResult:
    """Test a node, and with it its solver, its rule and its linear system, against everything that nodes promise.

    For the tests of who extends the library. Pass few and small problems at which everything is well posed, in float64:
    most lines compare with finite differences. What is differentiated are the inputs that require a gradient or, if
    none does, all floating-point inputs; an input that is confined to a set should not be among them.

    - the problems are solved, and the points are minima (``check``);
    - solutions, and gradients by every rule, are those of the twin; the node's own rule is symmetric;
    - reverse mode, forward mode, batched gradients and second derivatives are those of finite differences;
    - ``vmap``, float32, an empty batch, another memory layout, a second call and a pickled copy change nothing.

    Args:
        node: what to test.
        *xs: the inputs.
        twin: an independent node for the same problems. By default ``node.generic()`` if it has that, and otherwise the
            same functions with the default solver and the dense system.

    Example:
        >>> import torch
        >>> from declarative import DeclarativeNode, conformance
        >>> x = torch.tensor([[3.0, 4.0], [1.0, -1.0]], dtype=torch.float64)
        >>> def sphere(formula):
        ...     return DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda x, u: u.square().sum() - 1,
        ...                            solver=formula)
        >>> conformance(sphere(torch.nn.functional.normalize), x).ok
        True
        >>> conformance(sphere(lambda x: x / x.abs().amax(-1, keepdim=True)), x).ok
        False
    """
    require_node("node", node)
    if twin is not None:
        require_node("twin", twin)
    wanted = differentiated_inputs(xs)  # type: ignore[arg-type]
    tensors = tuple(x for x in xs if isinstance(x, Tensor))
    with ordinary_mode(tensors) as plain, torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)  # what they say has a line of its own
        rest = iter(x.detach().double() if x.is_floating_point() else x.detach() for x in plain)
        given = tuple(next(rest) if isinstance(x, Tensor) else x for x in xs)
        return ConformanceResult(tuple(_lines(node, given, wanted, twin)))


def _lines(node: DeclarativeNode, xs: Given, wanted: list[int], twin: DeclarativeNode | None) -> Iterator[Line]:
    try:
        solved = check(node, *xs)  # type: ignore[arg-type]
    except TypeError as error:  # a layer whose constraints are no smooth functions
        yield Line("check(node, *xs)", f"not tested: {error}", Grade.SKIP)
    else:
        failed = [line for line in solved.lines if line.grade is Grade.FAIL]
        advice = " ".join(line.advice for line in failed).strip()
        words = "; ".join(f"{line.name}: {line.value}" for line in failed) or f"all {len(solved.lines)} lines"
        yield Line("check(node, *xs)", words, Grade.FAIL if failed else Grade.PASS, advice)
        if any(line.name in ("callables", "captured parameters", "solved") for line in failed):
            return  # there is nothing to differentiate
    case = _Case(node, xs, wanted)
    _ = case.y  # which is refused if it is several
    for name, test in _tests(case, twin).items():
        yield from guarded(name, _line, name, test)


def _line(name: str, test: Callable[[], Found]) -> Line:
    grade, value = test()
    return Line(name, value, grade)


def _tests(case: _Case, twin: DeclarativeNode | None) -> dict[str, Callable[[], Found]]:
    """Every promise by name, with the function that tests it."""
    rules: dict[str, str | Rule] = {name: name for name in RULES}
    if case.rule not in RULES.values():
        rules[type(case.rule).__name__] = case.rule
    tests: dict[str, Callable[[], Found]] = {"solution: twin": partial(case.against_twin, twin, "exact", 0)}
    for name, rule in rules.items():
        tests[f"{name} gradient: twin"] = partial(case.against_twin, twin, rule, 1)
        tests[f"{name} gradient: symmetric"] = partial(case.symmetric, rule)
    return tests | {
        "reverse mode": partial(case.finite_differences, gradcheck),
        "forward mode": partial(case.finite_differences, gradcheck, check_forward_ad=True, check_backward_ad=False),
        "batched gradients": partial(case.finite_differences, gradcheck, check_batched_grad=True),
        "second derivatives": partial(case.finite_differences, gradgradcheck),
        "vmap": case.mapped,
        "float32": case.single,
        "empty batch": case.empty,
        "another memory layout": case.strided,
        "a second call": case.again,
        "pickling": case.pickled,
    }


@dataclass(frozen=True)
class _Case:
    """A node at its inputs, in double precision. Each test returns how it ended, and a figure."""

    node: DeclarativeNode
    xs: Given
    wanted: Sequence[int]

    @property
    def rule(self) -> Rule:
        """That of the node; the exact one for a rule that decides by what it has seen."""
        return RULES["exact"] if isinstance(self.node.gradient, Adaptive) else self.node.gradient

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Those that are differentiated, as leaves."""
        return tuple(self.xs[i].clone().requires_grad_() for i in self.wanted)  # type: ignore[union-attr]

    @cached_property
    def y(self) -> Tensor:
        y = self.node(*self.xs)
        if not isinstance(y, Tensor):
            raise ValueError(
                "conformance is for nodes with one unknown: this one has several unknowns. State the same functions of "
                "one vector, start=n, and take its parts in them."
            )
        return y.detach()

    @cached_property
    def dims(self) -> list[int | None]:
        """The batch dimension of each input."""
        with torch.no_grad():
            return batch_dims(self.node, self.xs, self.node.evaluate(self.xs).inputs)  # type: ignore[arg-type]

    def function(self, rule: str | Rule) -> Callable[..., Tensor]:
        """The node as a function of the wanted inputs."""
        node = self.node.with_gradient(rule)

        def of_wanted(*inputs: Tensor) -> Tensor:
            replaced = list(self.xs)
            for i, x in zip(self.wanted, inputs, strict=True):
                replaced[i] = x
            return node(*replaced)  # type: ignore[no-any-return]

        return of_wanted

    def answer(self, node: DeclarativeNode, change: Callable[[Tensor], Tensor] = lambda x: x) -> Answer:
        """What a node returns for inputs that have been changed."""
        xs = [None if x is None else change(x).detach() for x in self.xs]
        leaves = [xs[i].requires_grad_() for i in self.wanted]  # type: ignore[union-attr]
        y = node.with_gradient(self.rule)(*xs)
        return [y.detach(), *torch.autograd.grad(y, leaves, random_like(y), materialize_grads=True)]

    def _generic(self) -> DeclarativeNode:
        """The same problem through the default solver and the dense system."""
        if hasattr(self.node, "generic"):
            generic: DeclarativeNode = self.node.generic()  # type: ignore[operator]
            return generic
        plan, batched = self.node.spec.plan, any(dim is not None for dim in self.dims)
        start = plan.start if plan.start is not None else self.y.shape[batched:]
        functions = (plan.problem.objective, plan.problem.equality, plan.problem.inequality)
        return DeclarativeNode(*functions, start=start, in_dims=plan.in_dims, structure="dense")

    # The tests.

    def against_twin(self, twin: DeclarativeNode | None, rule: str | Rule, first: int) -> Found:
        """Solutions (from 0) or gradients (from 1) against the twin's, which starts near the solution."""
        near = {"start": self.y * (1 + 0.01 * irregular(self.y.reshape(1, -1)).view(self.y.shape))}
        other = self._generic() if twin is None else twin
        reference = partial(other.with_gradient(rule), **({} if twin is not None else near))
        xs = list(self.xs)
        for i, x in zip(self.wanted, self.inputs, strict=True):
            xs[i] = x
        report = compare(self.node.with_gradient(rule), reference, *xs, timing=False)
        return _judge(report.differences[first : 1 if first == 0 else None])

    def symmetric(self, rule: str | Rule) -> Found:
        """v'(J dx) by forward mode and (J'v)'dx by reverse mode, which a rule gives by the same map."""
        function, inputs = self.function(rule), self.inputs
        v, directions = random_like(self.y), tuple(random_like(x, 1) for x in inputs)
        grads = torch.autograd.grad(function(*inputs), inputs, v, materialize_grads=True)
        pushed = torch.func.jvp(function, tuple(x.detach() for x in inputs), directions)[1]
        one, other = (pushed * v).sum(), sum((g * dx).sum() for g, dx in zip(grads, directions, strict=True))
        size = 1e-3 * float(torch.linalg.vector_norm(pushed) * torch.linalg.vector_norm(v))
        return _judge([Difference.between("", one.reshape(1), torch.as_tensor(other).reshape(1), size)])

    def finite_differences(self, test: Callable[..., bool], **options: bool) -> Found:
        """First or second derivatives against finite differences, by torch's own test."""
        inputs = self.inputs
        count = sum(x.numel() for x in inputs)
        try:
            test(self.function("exact"), inputs, fast_mode=count > FEW, **options)
        except GradcheckError as error:
            return Grade.FAIL, " ".join(str(error).split())[:200]
        return Grade.PASS, f"as finite differences in {'random directions' if count > FEW else f'{count} directions'}"

    def mapped(self) -> Found:
        """``vmap`` over the batch and its reverse."""
        place = [i for i, x in enumerate(self.xs) if x is not None]
        turned = [x if x is None or d is None else x.flip(d) for x, d in zip(self.xs, self.dims, strict=True)]

        def of_tensors(*tensors: Tensor) -> Tensor:
            xs = dict(zip(place, tensors, strict=True))
            return self.node(*(xs.get(i) for i in range(len(self.xs))))  # type: ignore[no-any-return]

        both = torch.vmap(of_tensors)(*(torch.stack([self.xs[i], turned[i]]) for i in place))  # type: ignore[list-item]
        each = torch.stack([self.y, self.node(*turned)])
        return _judge([Difference.between("", each, both)])

    def single(self) -> Found:
        found = self.answer(self.node, lambda x: x.float() if x.is_floating_point() else x)
        others = [x.dtype for x in found if x.dtype != torch.float32]
        if others:
            return Grade.FAIL, f"returns {others[0]} for float32"
        return self._near(found, SINGLE)

    def empty(self) -> Found:
        if all(dim is None for dim in self.dims):
            return Grade.SKIP, "not tested: there is no batch"
        dims = {id(x): dim for x, dim in zip(self.xs, self.dims, strict=True) if dim is not None}
        y = self.answer(self.node, lambda x: x.narrow(dims[id(x)], 0, 0) if id(x) in dims else x)[0]
        expected = (0, *self.y.shape[1:])
        return Grade.PASS if y.shape == expected else Grade.FAIL, f"returns shape {tuple(y.shape)}"

    def strided(self) -> Found:
        return self._near(self.answer(self.node, lambda x: torch.stack([x, x], -1)[..., 0]), SAME)

    def again(self) -> Found:
        return self._same(self.answer(self.node))

    def pickled(self) -> Found:
        try:
            stored = pickle.dumps(self.node)
        except (pickle.PicklingError, AttributeError, TypeError):
            return Grade.SKIP, "not tested: the functions cannot be pickled, such as a lambda"
        return self._same(self.answer(pickle.loads(stored)))

    def _near(self, found: Answer, tolerance: float) -> Found:
        """Judge an answer that should be that of the node."""
        expected, v = self.answer(self.node), random_like(self.y)
        floors = [0.0, *(gradient_floor(v, self.y, x) for x in self.inputs)]
        pairs = zip(expected, found, floors, strict=True)
        return _judge([Difference.between("", a[None], b[None], floor) for a, b, floor in pairs], tolerance)

    def _same(self, found: Answer) -> Found:
        if all(torch.equal(a, b) for a, b in zip(self.answer(self.node), found, strict=True)):
            return Grade.PASS, "the same to the last bit"
        return Grade.FAIL, f"not the same: {self._near(found, 0.0)[1]}"


def _judge(differences: Sequence[Difference], tolerance: float = SAME) -> Found:
    if not differences:
        return Grade.SKIP, "not tested: the twin has no gradient"
    worst = max(difference.relative.nan_to_num(torch.inf).max().item() for difference in differences)
    good = all(difference.within(tolerance) for difference in differences)
    words = f"{worst:.1e}" if worst >= NONE else f"below {NONE:.0e}"
    return Grade.PASS if good else Grade.FAIL, f"relative difference {words}, tolerance {tolerance:.0e}"
