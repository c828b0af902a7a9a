"""What a solver returns: one entry per problem of the batch, and how each problem ended."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .optimality import Assessment
from .torchside import map_tensors

NOTHING = torch.empty(0)
LISTED = 10  # failed problems named in a message; the others are counted


class Status(enum.IntEnum):
    """How the solution of one problem ended; ``advice`` says what to do about it.

    Example:
        >>> from declarative import Status
        >>> Status.ITERATION_LIMIT.advice
        'Raise max_iterations, start closer to the solution, or scale the problem.'
    """

    advice: str

    def __new__(cls, value: int, advice: str) -> Status:
        member = int.__new__(cls, value)
        member._value_ = value
        member.advice = advice
        return member

    CONVERGED = 0, "Nothing to do."
    ITERATION_LIMIT = 1, "Raise max_iterations, start closer to the solution, or scale the problem."
    INFEASIBLE = 2, "No point near here satisfies the constraints: relax them, or start elsewhere."
    UNBOUNDED = 3, "The objective falls without limit: add a constraint or a regularising term."
    NOT_FINITE = 4, "A NaN or an infinity appeared: look at the inputs, and at where the callables are undefined."
    SINGULAR = 5, "The linear system of a step could not be solved: look for redundant constraints or a flat objective."
    NOT_OPTIMAL = (
        6,
        (
            "The point is not stationary or not feasible: for a closed form, check its formula against the callables "
            "(one that is right to two or three digits can be finished by ClosedForm(..., polish=True)); for a solver, "
            "scale the problem so that its unknowns are of size 1, or start elsewhere."
        ),
    )
    STALLED = (
        7,
        (
            "No further progress was possible: check that the callables are smooth, scale the problem, or try several "
            "starts (start=[...])."
        ),
    )


@dataclass(frozen=True)
class Solution:
    """The solved batch. Everything has one entry per problem; an unbatched call has no batch dimension.

    The multipliers follow L = f - multipliers' h + inequality_multipliers' g, the second kind not negative.
    ``y``, ``objective`` and both kinds of multipliers are differentiable.

    Attributes:
        y: the solutions, shape (batch, *shape of u); if there are several unknowns, nested like these.
        multipliers: one per equality constraint, (batch, p); nested like what the function returns, if that is a dict
            or a tuple.
        inequality_multipliers: one per inequality constraint, (batch, q), zero where inactive; likewise.
        active: which constraints hold with equality: equalities, inequalities, lower and upper bounds, (batch, ...).
        codes: the statuses as integers, (batch,).
        iterations: of the forward solver; 0 for a closed form, (batch,).
        residual: the estimated distance to a solution, relative to the size of u, (batch,).
        byproduct: what a solver left for a structured linear system, (batch, ...); most leave nothing.
        objective: f(x, y), (batch,).
        lower_multipliers, upper_multipliers: of bounds, in the shape of u, not negative; None without bounds.
        messages: the solver's own words on each problem, often empty.
        rows: the multipliers of all constraints, of bounds too, in one row per problem as solvers have them: what a
            warm start from this solution starts with.

    Example:
        >>> import torch
        >>> from declarative import DeclarativeNode
        >>> node = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda x, u: u.sum() - 1, start=3)
        >>> solution = node.solve(torch.tensor([[0.0, 1.0, 3.0]]))
        >>> solution.status
        [<Status.CONVERGED: 0>]
        >>> solution.multipliers
        tensor([[-2.]])
    """

    y: Tensor
    multipliers: Tensor
    inequality_multipliers: Tensor
    active: Tensor
    codes: Tensor
    iterations: Tensor
    residual: Tensor
    byproduct: Tensor
    objective: Tensor = NOTHING
    lower_multipliers: Any = None
    upper_multipliers: Any = None
    messages: tuple[str, ...] = ()
    rows: Tensor | None = None

    @property
    def converged(self) -> Tensor:  # (batch,)
        """Which problems are solved."""
        return self.codes == Status.CONVERGED

    def stacked(self) -> Tensor:  # (batch, p + q)
        """The multipliers in the library's own convention, L = f - multipliers' c."""
        return torch.cat([self.multipliers, -self.inequality_multipliers], -1)

    def tensors(self) -> tuple[Tensor, ...]:
        """The fields that a solver finds, in order."""
        return tuple(vars(self).values())[:8]

    def take(self, rows: Tensor) -> Solution:
        """The problems at these positions."""
        taken: dict[str, Any] = map_tensors(lambda x: x[rows] if len(x) else x, dict(vars(self)))
        return replace(self, **taken)

    @property
    def status(self) -> list[Status]:
        """How each problem ended."""
        members = list(Status)
        return [members[code] for code in self.codes.flatten().tolist()]

    @property
    def solvers(self) -> list[str]:
        """Which solver each problem's solution is from."""
        return [message.split(":")[0] for message in self.messages]

    def as_given(self, dtype: torch.dtype, batched: bool) -> Solution:
        """The same in the precision of the inputs and, for an unbatched call, without the batch dimension."""

        def given(x: Tensor) -> Tensor:
            x = x.to(dtype) if x.is_floating_point() else x
            return x if batched else x[0]

        fields: dict[str, Any] = map_tensors(given, dict(vars(self)))
        return replace(self, **fields)

    def __repr__(self) -> str:
        counts = {kind.name.lower(): int((self.codes == kind).sum()) for kind in Status}
        counted = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        worst = self.residual.max().item() if self.residual.numel() else 0.0
        shapes = map_tensors(lambda x: tuple(x.shape), self.y)
        return f"Solution(y: {shapes}, {counted or 'empty'}, largest residual {worst:.1e})"


@dataclass(frozen=True)
class RawSolution:
    """What a solver hands to the node: flat, with one stacked row of multipliers per problem.

    The stacked multipliers belong to the constraints c = [h; g] and follow L = f - multipliers' c, so that those of
    inequalities are not positive here.
    """

    y: Tensor  # (batch, m)
    multipliers: Tensor | None  # (batch, k); None: to be estimated
    codes: Tensor  # (batch,)
    iterations: Tensor  # (batch,)
    messages: tuple[str, ...]
    byproduct: Tensor | None = None  # (batch, ...), what a structured system can use again
    factors: object | None = None  # for all problems, what a structured system can use again
    assessment: Assessment | None = None  # of these very points, if it has been made

    @classmethod
    def unsolved(cls, y: Tensor) -> RawSolution:
        """A candidate about which nothing is known yet."""
        codes = torch.zeros(y.shape[0], dtype=torch.int64, device=y.device)
        return cls(y, None, codes, codes.clone(), ("",) * y.shape[0])

    def check(self, size: int, m: int, k: int) -> None:
        """Refuse what is not one entry for each of the problems, with m unknowns and k constraints.

        Raises:
            TypeError, ValueError: a tensor is none or has another shape.
        """
        expected = {"y": (size, m), "multipliers": (size, k), "codes": (size,), "iterations": (size,)}
        for name, shape in expected.items():
            value: object = getattr(self, name)
            if value is None and name == "multipliers":
                continue
            if not isinstance(value, Tensor):
                raise TypeError(f"a solver must return a tensor as {name}, but returned {type(value).__name__}.")
            if tuple(value.shape) != shape:
                raise ValueError(
                    f"a solver must return {name} of shape {shape}, one row for each problem, but returned shape "
                    f"{tuple(value.shape)}."
                )
        if not self.y.is_floating_point():
            raise TypeError(f"a solver must return a floating-point y, but returned {self.y.dtype}.")
        if len(self.messages) != size:
            raise ValueError(f"a solver must return {size} messages, one for each problem, not {len(self.messages)}.")

    def to(self, dtype: torch.dtype) -> RawSolution:
        """The same in another precision."""
        multipliers = None if self.multipliers is None else self.multipliers.to(dtype)
        if dtype == self.y.dtype and (multipliers is None or multipliers is self.multipliers):
            return self
        assessment = None if self.assessment is None else self.assessment.to(dtype)
        return replace(self, y=self.y.to(dtype), multipliers=multipliers, factors=None, assessment=assessment)

    def take(self, rows: Tensor) -> RawSolution:
        """The problems at these positions (indices or a mask)."""
        rows = rows.nonzero().flatten() if rows.dtype == torch.bool else rows
        messages = tuple(self.messages[row] for row in rows.tolist())
        byproduct = None if self.byproduct is None else self.byproduct[rows]
        multipliers = None if self.multipliers is None else self.multipliers[rows]
        return RawSolution(self.y[rows], multipliers, self.codes[rows], self.iterations[rows], messages, byproduct)

    def put(self, rows: Tensor, part: RawSolution) -> RawSolution:
        """The same with the problems at these indices replaced; what is not known of both is forgotten."""
        messages = list(self.messages)
        for row, message in zip(rows.tolist(), part.messages, strict=True):
            messages[row] = message

        def merge(mine: Tensor | None, other: Tensor | None) -> Tensor | None:
            return None if mine is None or other is None else mine.index_copy(0, rows, other)

        return RawSolution(
            self.y.index_copy(0, rows, part.y),
            merge(self.multipliers, part.multipliers),
            self.codes.index_copy(0, rows, part.codes),
            self.iterations.index_copy(0, rows, part.iterations),
            tuple(messages),
            merge(self.byproduct, part.byproduct),
            assessment=None
            if not self.assessment or not part.assessment
            else self.assessment.put(rows, part.assessment),
        )


class SolverError(RuntimeError):
    """At least one problem of the batch was not solved.

    Attributes:
        solution: everything that was computed, the solved problems included.
        indices: the positions in the batch of the problems that failed.
        hint: what else there is to say about the failures, often empty.

    Example:
        >>> import torch
        >>> from declarative import DeclarativeNode, SolverError
        >>> node = DeclarativeNode(lambda x, u: x * u, solver="scipy", start=())
        >>> try:
        ...     node(torch.ones(1))
        ... except SolverError as error:
        ...     print(error.indices, error.solution.status[0].name)
        [0] UNBOUNDED
    """

    def __init__(self, solution: Solution, hint: str = "") -> None:
        self.solution = solution
        self.hint = hint
        self.indices: list[int] = (~solution.converged).nonzero().flatten().tolist()
        super().__init__(describe_failures(solution, self.indices, hint))

    def __reduce__(self) -> tuple[type[SolverError], tuple[Solution, str]]:
        return type(self), (self.solution, self.hint)


def describe_failures(solution: Solution, indices: list[int], hint: str = "") -> str:
    """Say in words which problems of a batch failed, how, and what to do."""
    residual = solution.residual.tolist()
    status = solution.status
    lines = [f"{len(indices)} of {len(residual)} problems were not solved:"]
    for i in indices[:LISTED]:
        message = f" ({solution.messages[i]})" if solution.messages[i] else ""
        lines.append(f"  problem {i}: {status[i].name.lower()}, residual {residual[i]:.1e}{message}")
    if len(indices) > LISTED:
        lines.append(f"  and {len(indices) - LISTED} more (see .solution.status)")
    advice = dict.fromkeys(status[i] for i in indices)
    lines += [f"{kind.name.lower()}: {kind.advice}" for kind in advice]
    return "\n".join([*lines, hint] if hint else lines)
