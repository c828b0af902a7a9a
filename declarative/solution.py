"""What a solver returns: one entry per problem of the batch, and how each problem ended."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .linear.systems import Prepared

if TYPE_CHECKING:
    from .optimality import Assessment


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
        y: the solutions, shape (batch, *shape of u).
        multipliers: one per equality constraint, (batch, p).
        inequality_multipliers: one per inequality constraint, (batch, q), zero where inactive.
        objective: f(x, y), (batch,).
        converged: whether the status is ``Status.CONVERGED``, (batch,).
        iterations: of the forward solver; 0 for a closed form, (batch,).
        residual: the scaled residual of the optimality conditions, (batch,).
        codes: the statuses as integers, (batch,).
        messages: the solver's own words on each problem, often empty.

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
    objective: Tensor
    converged: Tensor
    iterations: Tensor
    residual: Tensor
    codes: Tensor
    messages: tuple[str, ...] = ()

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

        fields: dict[str, Any] = {name: given(x) for name, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, **fields)

    def __repr__(self) -> str:
        counts = {kind.name.lower(): int((self.codes == kind).sum()) for kind in Status}
        told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        worst = self.residual.max().item() if self.residual.numel() else 0.0
        return f"Solution(y: {tuple(self.y.shape)}, {told or 'empty'}, largest residual {worst:.1e})"


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
    extra: Tensor | None = None  # (batch, ...), what a structured system can use again
    factor: Prepared | None = None  # of the full system, for all problems, if the solver has come by one
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
        return replace(self, y=self.y.to(dtype), multipliers=multipliers, factor=None, assessment=None)

    def take(self, rows: Tensor) -> RawSolution:
        """The problems at these positions (indices or a mask)."""
        rows = rows.nonzero().flatten() if rows.dtype == torch.bool else rows
        messages = tuple(self.messages[row] for row in rows.tolist())
        extra = None if self.extra is None else self.extra[rows]
        multipliers = None if self.multipliers is None else self.multipliers[rows]
        factor = None if self.factor is None else self.factor.take(rows)
        return RawSolution(self.y[rows], multipliers, self.codes[rows], self.iterations[rows], messages, extra, factor)

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
            merge(self.extra, part.extra),
        )
