"""Two implementations of the same problems beside each other: how far are they apart, and who is right?"""

from __future__ import annotations

import html
from dataclasses import dataclass

import torch
from torch import Tensor

from ..optimality import optimality_tolerance
from ..theory.propositions import cosine
from .table import as_html, as_text

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


def gradient_floor(v: Tensor, y: Tensor, x: Tensor | None) -> float:
    """A gradient below a thousandth of abs(v) abs(y) / abs(x) is zero, as one at a vertex is, up to rounding."""
    v_size, y_size, x_size = (0.0 if t is None or not t.numel() else t.abs().max().item() for t in (v, y, x))
    return SMALL * v_size * y_size / x_size if x_size > 0 else 0.0


def _ratio(a: float, b: float) -> str:
    return f"{a / b:.3g}" if a == a and b == b else "n/a"
