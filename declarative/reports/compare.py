"""A node against an independent implementation: the same solutions, the same gradients? And if not, who is right?"""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from ..functions import nesting_of
from ..inputs import Inputs, check_incoming, check_tensor
from ..node import DeclarativeNode
from ..optimality import assess, optimality_tolerance
from ..problem import Batch, flat
from ..table import as_html, as_text
from ..theory.assumptions import LARGE
from ..theory.descent import differentiated_inputs
from ..theory.propositions import cosine
from ..torchside import ordinary_mode

SECONDS = 0.3  # for which a call is repeated to find its shortest time
REPEATS = 20  # at most
LISTED = 20  # problems that get a line of their own
SMALL = 1e-3  # of the size that a gradient usually has; see gradient_floor
NOISE = 1e-9  # differences below this are none: a solution may be exactly zero


@dataclass(frozen=True)
class Difference:
    """How far two results are apart, one entry per problem; one in all for an input that the batch shares.

    Attributes:
        name: of what was compared.
        absolute: the largest difference of two entries.
        relative: the same over the largest entry of either, or over ``floor`` where that is larger.
        cosine: of the angle between them; 1 where both vanish, that is are far below the floor, 0 where one does.
    """

    name: str
    absolute: Tensor
    relative: Tensor
    cosine: Tensor

    @classmethod
    def between(cls, name: str, ours: Tensor, theirs: Tensor, floor: float = 0.0) -> Difference:  # (batch, ...) twice
        """Compare in double precision."""
        a, b = (x.detach().double().flatten(1) if x.dim() > 1 else x.detach().double()[:, None] for x in (ours, theirs))
        if not a.shape[-1]:  # an input without entries, such as a matrix of no constraints
            a = b = a.new_zeros(len(a), 1)
        absolute = (a - b).abs().amax(-1)
        sizes = [x.abs().amax(-1) for x in (a, b)]
        size = torch.maximum(*sizes).clamp(min=floor)
        relative = torch.where(size > 0, absolute / size, absolute)
        # The direction of a gradient that vanishes but for rounding means nothing.
        a, b = (torch.where((n < SMALL * floor)[:, None], 0.0, x) for x, n in zip((a, b), sizes, strict=True))
        return cls(name, absolute, relative, cosine(a, b))

    def within(self, tolerance: float) -> bool:
        """Whether every problem agrees; a NaN agrees with nothing."""
        return bool(((self.relative <= tolerance) | (self.absolute <= min(NOISE, tolerance))).all())

    def _cells(self) -> list[str]:
        worst = int(self.relative.nan_to_num(torch.inf).argmax())
        where = str(worst) if len(self.relative) > 1 else ""
        numbers = (self.absolute.max(), self.relative.max(), self.relative.median())
        return [self.name, *(f"{x:.1e}" for x in numbers), where, f"{self.cosine.min():.6g}"]


@dataclass(frozen=True)
class Side:
    """One of the two implementations: what it returned, and what the node's own functions say about it.

    Attributes:
        name: of the implementation.
        y: its solutions, (batch, *shape of u).
        gradients: by the position of the input, in the shape of the input; empty if it has none.
        objective: f(x, y), (batch,).
        violation: the largest of abs(h) and max(g, 0), (batch,).
        residual: of the optimality conditions, relative, as in ``node.solve(x).residual``; NaN where the problems are
            too large to tell, (batch,).
        forward: the shortest time of a call, in seconds; NaN if it was not taken.
        backward: likewise.
    """

    name: str
    y: Tensor
    gradients: dict[int, Tensor]
    objective: Tensor
    violation: Tensor
    residual: Tensor
    forward: float
    backward: float

    def _cells(self, other: Side) -> list[str]:
        return [
            self.name,
            f"{self.objective.mean():.10g}",
            *(f"{x.max():.1e}" for x in (self.violation, self.residual)),
            *("n/a" if time != time else f"{1e3 * time:.3g} ms" for time in (self.forward, self.backward)),
            f"{_ratio(other.forward, self.forward)} / {_ratio(other.backward, self.backward)}",
        ]


@dataclass(frozen=True)
class ComparisonReport:
    """Two implementations of the same problems beside each other. Prints as a table.

    Attributes:
        solution: the difference of the solutions.
        gradients: the differences of the gradients by the position of the input; empty if the reference has none.
        node: what the node returned, and took.
        reference: what the other one did.
        v: the incoming gradient.
        tolerance: what ``agrees()`` allows: half of the digits that a solution has.
    """

    solution: Difference
    gradients: dict[int, Difference]
    node: Side
    reference: Side
    v: Tensor
    tolerance: float

    @property
    def differences(self) -> tuple[Difference, ...]:
        """That of the solutions, then those of the gradients."""
        return self.solution, *self.gradients.values()

    @property
    def speed_up(self) -> tuple[float, float]:
        """How many times faster the node is, forward and backward; NaN backward if the reference has no gradient."""
        ours, theirs = self.node, self.reference
        return theirs.forward / ours.forward, theirs.backward / ours.backward

    def agrees(self, tolerance: float | None = None, *, gradients: bool = True) -> bool:
        """Whether all relative differences are within a tolerance.

        Args:
            tolerance: by default 1e-5 in double precision and 1e-3 in single.
            gradients: whether they must agree too; a reference without gradients then agrees with nothing.
        """
        limit = self.tolerance if tolerance is None else tolerance
        if not gradients:
            return self.solution.within(limit)
        return bool(self.gradients) and all(difference.within(limit) for difference in self.differences)

    def verdict(self) -> str:
        """One sentence: do they agree, and if not, who is right?"""
        if self.agrees():
            return f"They agree within {self.tolerance:.0e}."
        if not self.solution.within(self.tolerance):
            return f"The solutions differ by more than {self.tolerance:.0e}: {self._better()}"
        if not self.gradients:
            return "The solutions agree; the reference is not differentiable, so that gradients were not compared."
        names = [difference.name for difference in self.gradients.values() if not difference.within(self.tolerance)]
        words = f"The solutions agree, but not the {', '.join(names)} (beyond {self.tolerance:.0e})"
        return f"{words}: check(node, x) compares the exact gradient with finite differences."

    def _better(self) -> str:
        """Judged by the optimality conditions, and where those are not known by the constraints."""
        ours, theirs = self.node, self.reference
        known = bool((~ours.residual.isnan() & ~theirs.residual.isnan()).all())
        a, b = ((side.residual if known else side.violation).max().item() for side in (ours, theirs))
        words = "optimality conditions" if known else "constraints"
        limit = optimality_tolerance(torch.float64) ** 0.5
        if max(a, b) <= limit:
            return f"both satisfy the {words}, there is more than one solution."
        better, worse = (ours.name, theirs.name) if a < b else (theirs.name, ours.name)
        if min(a, b) > limit:
            return f"neither satisfies the {words} ({ours.name} {a:.1e}, {theirs.name} {b:.1e})."
        return f"{better} satisfies the {words} ({min(a, b):.1e}), {worse} does not ({max(a, b):.1e})."

    def _heading(self) -> str:
        problems = "1 problem" if len(self.solution.absolute) == 1 else f"{len(self.solution.absolute)} problems"
        return f"{self.node.name} and {self.reference.name} on {problems}"

    def _tables(self) -> list[tuple[list[str], list[list[str]]]]:
        head = ["difference", "absolute", "relative", "median", "worst problem", "lowest cosine"]
        sides = ["who is right?", "mean objective", "violation", "optimality", "forward", "backward", "times faster"]
        rows = [self.node._cells(self.reference), self.reference._cells(self.node)]
        tables = [(head, [difference._cells() for difference in self.differences]), (sides, rows)]
        return [*tables, self._problems()] if len(self.solution.absolute) > 1 else tables

    def _problems(self) -> tuple[list[str], list[list[str]]]:
        each = [difference for difference in self.differences if len(difference.relative) > 1]
        head = ["problem", *(f"{difference.name}, relative" for difference in each), "cosine", "objective of the node"]
        head += ["reference - node", "violation of the node", "of the reference"]
        rows = []
        for i in range(min(len(self.solution.absolute), LISTED)):
            ours, theirs = self.node, self.reference
            angle = min((difference.cosine[i].item() for difference in each[1:]), default=float("nan"))
            numbers = [f"{difference.relative[i]:.1e}" for difference in each]
            values = [f"{ours.objective[i]:.10g}", f"{theirs.objective[i] - ours.objective[i]:+.1e}"]
            violations = [f"{side.violation[i]:.1e}" for side in (ours, theirs)]
            rows.append([str(i), *numbers, f"{angle:.6g}", *values, *violations])
        return head, rows

    def _notes(self) -> list[str]:
        left = len(self.solution.absolute) - LISTED
        return [f"and {left} more problems.", self.verdict()] if left > 0 else [self.verdict()]

    def __str__(self) -> str:
        return "\n\n".join([self._heading(), *(as_text(*table) for table in self._tables()), *self._notes()])

    def _repr_html_(self) -> str:
        tables = "".join(as_html(*table) for table in self._tables())
        return f"<p>{html.escape(self._heading())}</p>{tables}<p>{html.escape(' '.join(self._notes()))}</p>"


def compare(
    node: DeclarativeNode,
    reference: Callable[..., object],
    *xs: Tensor | None,
    v: Tensor | None = None,
    seconds: float = SECONDS,
    timing: bool = True,
) -> ComparisonReport:
    """Run a node and another implementation on the same inputs, forward and backward, and compare all they return.

    The gradients are those of the inputs that require one or, if none does, of all floating-point inputs; the node's
    are by its own rule. Which of two different solutions is right is judged by the node's own functions. Differences
    are relative to the largest entry of a problem's solution or gradient; a gradient that vanishes but for rounding is
    compared with a thousandth of abs(v) abs(y) / abs(x).

    Args:
        node: a :class:`DeclarativeNode`, or a ready-made layer.
        reference: a ``CvxpyLayer``, a module or a function of the same inputs. It returns the solution or a tuple whose
            first entry is the solution, in any floating-point precision.
        *xs: the inputs.
        v: the incoming gradient, in the shape of the solution; by default random, the same in every call.
        seconds: how long to repeat each call for its shortest time; one that takes longer runs once.
        timing: whether to take the times at all, which is most of the work.

    Raises:
        TypeError, ValueError: the node is none, the reference returns no tensor or one of another shape, v has another
            shape, or there is no problem.
        SolverError: the node cannot solve a problem.

    Example:
        >>> import torch
        >>> from declarative import DeclarativeNode, compare
        >>> node = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda x, u: u.square().sum() - 1,
        ...                        start=lambda x: x)
        >>> x = torch.tensor([[3.0, 4.0], [1.0, -1.0]], dtype=torch.float64)
        >>> report = compare(node, torch.nn.functional.normalize, x)
        >>> report.agrees(1e-9)
        True
        >>> compare(node.with_gradient("unconstrained"), torch.nn.functional.normalize, x).agrees()
        False
    """
    if not isinstance(node, DeclarativeNode):
        raise TypeError(f"node must be a DeclarativeNode or a ready-made layer, but is {type(node).__name__}.")
    if not callable(reference):
        raise TypeError(f"reference must be a layer or a function of the inputs, but is {type(reference).__name__}.")
    given = [x for x in xs if x is not None]
    for i, x in enumerate(xs):
        if x is not None:
            check_tensor(f"input {i}", x)
    wanted = differentiated_inputs(xs)  # type: ignore[arg-type]
    with ordinary_mode(tuple(given)) as plain, torch.enable_grad():
        tensors = iter(x.detach() for x in plain)
        leaves = [None if x is None else next(tensors) for x in xs]
        for i in wanted:
            leaves[i].requires_grad_()  # type: ignore[union-attr]
        with torch.no_grad():
            found = node.evaluate(leaves)  # type: ignore[arg-type]
        inputs, y = found.inputs, found.solution.y
        if not inputs.size:
            raise ValueError("a batch of no problems cannot be compared.")
        if nesting_of(found.call.plan.problem.objective) is not None:
            raise ValueError(
                "compare is for nodes with one unknown: this one has several unknowns. State the same functions of one "
                "vector, start=n, and take its parts in them."
            )
        v = _cotangent(v, y if inputs.batched else y[0], inputs.dtype)
        runner = _Runner(leaves, wanted, v, seconds if timing else None)
        judge = _Judge(found.detached().batch.in_double(), inputs.batched)
        if timing:
            runner.backward(runner.forward(node)[0])  # the first call pays for what later ones find ready
        ours = judge.examine(f"node ({type(node.gradient).__name__.lower()})", runner, node)
        theirs = judge.examine("reference", runner, reference)
    dims = batch_dims(node, leaves, inputs)
    gradients = {}
    for i, theirs_i in theirs.gradients.items():
        mine, other = (_batch_first(grad, dims[i]) for grad in (ours.gradients[i], theirs_i))
        floor = gradient_floor(v, ours.y, leaves[i])
        gradients[i] = Difference.between(f"gradient of input {i}", mine, other, floor)
    tolerance = 1e-5 if inputs.dtype == torch.float64 else 1e-3
    return ComparisonReport(
        Difference.between("solution", ours.y, theirs.y), gradients, ours, theirs, v.detach(), tolerance
    )


# Running.

Result = TypeVar("Result")


@dataclass(frozen=True)
class _Runner:
    """Calls an implementation forward and backward."""

    leaves: Sequence[Tensor | None]
    wanted: Sequence[int]
    v: Tensor
    seconds: float | None  # None: times are not taken

    def forward(self, function: Callable[..., object]) -> tuple[Tensor, float]:
        result, taken = self._shortest(lambda: function(*self.leaves))
        y = result[0] if isinstance(result, tuple | list) and result else result
        if not isinstance(y, Tensor):
            raise TypeError(f"reference must return a tensor or a tuple that begins with one, but returned {type(y)}.")
        if _without_ones(y) != _without_ones(self.v):
            raise ValueError(
                f"reference must return solutions of shape {tuple(self.v.shape)} like the node, but returned "
                f"{tuple(y.shape)}: wrap it in a function that brings inputs and solution into the shapes of the node."
            )
        return y.reshape(self.v.shape), taken

    def backward(self, y: Tensor) -> tuple[dict[int, Tensor], float]:
        if not y.requires_grad:
            return {}, float("nan")
        inputs = [x for i, x in enumerate(self.leaves) if i in self.wanted and x is not None]
        v = self.v.to(y.dtype)
        grads, taken = self._shortest(
            lambda: torch.autograd.grad(y, inputs, v, retain_graph=True, materialize_grads=True)
        )
        return dict(zip(self.wanted, grads, strict=True)), taken

    def _shortest(self, function: Callable[[], Result]) -> tuple[Result, float]:
        """The first result, and the shortest time: other programs can only make a call longer."""
        if self.seconds is None:
            return function(), float("nan")
        times: list[float] = []
        results: list[Result] = []
        while not times or (sum(times) < self.seconds and len(times) < REPEATS):
            start = time.perf_counter()
            result = function()
            times.append(time.perf_counter() - start)
            results = results or [result]
        return results[0], min(times)


@dataclass(frozen=True)
class _Judge:
    """The node's own functions, at the points that the implementations return."""

    batch: Batch  # in double precision, if the functions can
    batched: bool

    def examine(self, name: str, runner: _Runner, function: Callable[..., object]) -> Side:
        y, forward = runner.forward(function)
        gradients, backward = runner.backward(y)
        y = y.detach() if self.batched else y.detach().unsqueeze(0)
        return Side(name, y, gradients, *self._measure(y), forward, backward)

    def _measure(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, p = self.batch, self.batch.p
        work = next(x.dtype for x in batch.xs if x.is_floating_point())
        u = flat(y).to(work)
        with torch.no_grad():
            objective, values = batch.objective(u), batch.constraints(u)
            missed = torch.cat([values[:, :p].abs(), values[:, p:].clamp(min=0.0)], -1)
            violation = missed.amax(-1) if batch.k else torch.zeros_like(objective)
            residual = assess(batch, u).residual if batch.m <= LARGE else torch.full_like(objective, torch.nan)
        return objective.detach(), violation, residual


def _cotangent(v: Tensor | None, y: Tensor, dtype: torch.dtype) -> Tensor:
    if v is None:
        v = torch.randn(y.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64, device="cpu")
    return check_incoming(v, y.shape).to(device=y.device, dtype=dtype)


def gradient_floor(v: Tensor, y: Tensor, x: Tensor | None) -> float:
    """A gradient below a thousandth of abs(v) abs(y) / abs(x) is zero, as one at a vertex is, up to rounding."""
    v_size, y_size, x_size = (0.0 if t is None or not t.numel() else t.abs().max().item() for t in (v, y, x))
    return SMALL * v_size * y_size / x_size if x_size > 0 else 0.0


def batch_dims(node: DeclarativeNode, leaves: Sequence[Tensor | None], inputs: Inputs) -> list[int | None]:
    """The batch dimension of each input as it was passed; None: shared, so that its gradient is a sum over the batch.

    A ready-made layer may expand an input that comes without a batch dimension.
    """
    given = node.spec.plan.in_dims
    dims = given if isinstance(given, tuple) else (given,) * len(leaves)
    return [
        None if dim is None or x is None or x.dim() < arranged.dim() else dim
        for x, dim, arranged in zip(leaves, dims, inputs.xs, strict=False)
    ]


def _batch_first(x: Tensor, dim: int | None) -> Tensor:
    return x.unsqueeze(0) if dim is None else x.movedim(dim, 0)


def _without_ones(x: Tensor) -> list[int]:
    return [n for n in x.shape if n != 1]


def _ratio(a: float, b: float) -> str:
    return f"{a / b:.3g}" if a == a and b == b else "n/a"
