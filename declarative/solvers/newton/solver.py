"""The solver: the method of this package, then polishing, and another try where a solution is not good enough."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ...arguments import require_counts, require_flags, require_tolerances
from ...problem import Batch
from ...solution import RawSolution, Status
from ..base import Solver
from ..polish import polish
from .loop import NewtonLoop
from .parameters import Tolerances
from .start import first_state, warm_state
from .state import Model, Scales, State, model_at

ROUGH = 1e-6  # on the gradient, for a Hessian that is not exact, before polishing
NEARBY = 0.1  # sizes of u, or of the way there: what is near a point
NEAR = 1e-6  # a problem whose next step is shorter than this, relative to u, is solved
FINER, FINAL = 1e-3, 30  # of the tolerance, and iterations more, for what seemed solved but is not good enough


@dataclass(frozen=True)
class Newton(Solver):
    """A batched Newton method for smooth problems, convex or not, with equalities and inequalities.

    Args:
        max_iterations: for each problem.
        stationarity_tolerance: on the scaled gradient of the Lagrangian; by default eps^0.6 of the precision worked in
            (4e-10 in double), as for the other two. What passes is then polished to the last digits.
        feasibility_tolerance: on the scaled constraints.
        complementarity_tolerance: on the products of slacks and multipliers.
        hessian: ``"exact"``, or ``"gauss-newton"`` for objectives that are stated by residuals: J'J, without the
            residuals' own curvature, on the way. Cheaper where they have many parts, never negative, and as fast where
            they become small. Polishing, the verdict and gradients use the exact one.
        keep_dtype: work in float32 for float32 inputs instead of in double precision: faster, and less robust.
        polish: finish each solution by Newton steps on the optimality conditions alone.

    Example:
        >>> import torch
        >>> from declarative import DeclarativeNode, Newton
        >>> node = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda x, u: u.prod() - 1,
        ...                        solver=Newton(), start=torch.ones(2))
        >>> node(torch.tensor([[1.0, 3.0], [2.0, 2.0]])).prod(-1)
        tensor([1.0000, 1.0000])
    """

    max_iterations: int = 300
    stationarity_tolerance: float | None = None
    feasibility_tolerance: float | None = None
    complementarity_tolerance: float | None = None
    keep_dtype: bool = False
    polish: bool = True
    hessian: Literal["exact", "gauss-newton"] = "exact"

    def __post_init__(self) -> None:
        if not isinstance(self.hessian, str) or self.hessian not in ("exact", "gauss-newton"):
            raise ValueError(f"hessian must be 'exact' or 'gauss-newton', but is {self.hessian!r}.")
        require_counts(max_iterations=self.max_iterations)
        names = ("stationarity_tolerance", "feasibility_tolerance", "complementarity_tolerance")
        require_tolerances(**{name: getattr(self, name) for name in names})
        require_flags(keep_dtype=self.keep_dtype, polish=self.polish)

    def solve(self, batch: Batch, start: Tensor) -> RawSolution:
        """Solve the batch, in double precision unless told otherwise."""
        inner, work = (batch, start.dtype) if self.keep_dtype else batch.in_double(start.dtype)
        first = start.to(work)
        if inner.guess is None:
            return self._finished(inner, first, start.dtype).to(start.dtype)
        raw = _polished_guess(inner, first, start.dtype)
        rows = (raw.codes != Status.CONVERGED).nonzero().flatten()
        if len(rows):
            raw = raw.put(rows, self._finished(inner.select(rows), first[rows], start.dtype))
        return raw.to(start.dtype)

    def _finished(self, batch: Batch, start: Tensor, dtype: torch.dtype) -> RawSolution:
        knowing = batch.with_constants(start)
        raw = self._polished(knowing, start, dtype)
        if knowing.constants is None or not bool(raw.codes.any()):
            return raw
        # A derivative may have been taken for constant wrongly, if a function hides what it does (TorchScript does).
        rows = (raw.codes.bool() & ~knowing.has_constants_at(raw.y)).nonzero().flatten()
        return raw.put(rows, self._polished(batch.select(rows), start[rows], dtype)) if len(rows) else raw

    def _polished(self, batch: Batch, start: Tensor, dtype: torch.dtype) -> RawSolution:
        if self.hessian == "exact":
            raw, may_be_saddle = self._solve(batch, start, sure=not self.polish)
        else:
            raw, may_be_saddle = self._roughly()._solve(batch.with_linear_residuals(), start, sure=not self.polish)
        if not self.polish:
            return raw
        raw = polish(batch, raw, start, dtype)
        if not bool(raw.codes.any()):  # all have converged, as nearly always
            return raw
        rows = ((raw.codes == Status.NOT_OPTIMAL) & may_be_saddle).nonzero().flatten()
        if len(rows):  # they may be saddle points
            part, first = batch.select(rows), start[rows]
            raw = raw.put(rows, polish(part, self._solve(part, first, sure=True)[0], first, dtype))
        rows = (raw.codes == Status.NOT_OPTIMAL).nonzero().flatten()
        return self._finer(batch, raw, start, dtype, rows) if len(rows) else raw

    def _finer(self, batch: Batch, raw: RawSolution, start: Tensor, dtype: torch.dtype, rows: Tensor) -> RawSolution:
        """Go on a little with what seemed to be solved but is not good enough, and keep what then is."""
        part, first = batch.select(rows), start[rows]
        eps = torch.finfo(first.dtype).eps
        finer = dataclasses.replace(self, stationarity_tolerance=FINER * eps**0.6, max_iterations=FINAL)
        again = polish(part, finer._solve(part, raw.y[rows], sure=True)[0], first, dtype)
        assert again.assessment is not None
        size = torch.maximum(raw.y[rows].abs(), (raw.y[rows] - first).abs())
        stayed = ((again.y - raw.y[rows]).abs() <= NEARBY * size.amax(-1, keepdim=True)).all(-1)  # not running away
        good = stayed & again.assessment.solved(dtype)
        taken = again.take(good.nonzero().flatten())
        solved = torch.full_like(taken.codes, int(Status.CONVERGED))
        return raw.put(rows[good], dataclasses.replace(taken, codes=solved)) if len(solved) else raw

    def _roughly(self) -> Newton:
        """For steps of Gauss and Newton, which are not the best ones near the end: the exact ones finish."""
        given = self.stationarity_tolerance is not None or not self.polish
        return self if given else dataclasses.replace(self, stationarity_tolerance=ROUGH)

    def centre(self, batch: Batch, start: Tensor, barrier: float) -> RawSolution:
        """Minimise f - barrier * sum(log(-g)) subject to h = 0: where slack times multiplier is the barrier."""
        scales, state, model = first_state(batch, start)
        last = barrier * scales.objective
        state = dataclasses.replace(state, barrier=torch.maximum(state.barrier, last), last_barrier=last.unsqueeze(-1))
        return self._run(batch, scales, state, model, sure=True)[0]

    def _solve(self, batch: Batch, start: Tensor, sure: bool) -> tuple[RawSolution, Tensor]:
        """Where the iterations end, and which of these points may be saddle points; none, if that is to be ``sure``."""
        scales, state, model = first_state(batch, start)
        if batch.guess is not None:
            state = warm_state(batch, scales, state)
            model = model_at(batch, scales, state.u, state.s, state.y)
        return self._run(batch, scales, state, model, sure)

    def _run(self, batch: Batch, scales: Scales, state: State, model: Model, sure: bool) -> tuple[RawSolution, Tensor]:
        eps = torch.finfo(state.u.dtype).eps
        given = (self.feasibility_tolerance, self.stationarity_tolerance, self.complementarity_tolerance)
        first, second, third = (eps**0.6 if one is None else one for one in given)
        tolerances = Tolerances(first, second, third, barrier=eps**0.75, step=NEAR)
        loop = NewtonLoop(batch, scales, state, model, tolerances, self.max_iterations, sure)
        while not loop.advance():
            pass
        return loop.result(), loop.ended.may_be_saddle


def _polished_guess(batch: Batch, start: Tensor, dtype: torch.dtype) -> RawSolution:
    """Solutions from multipliers of a problem nearby; the steps are iterations.

    Where nearly the same constraints are active, a few steps on the optimality conditions are all there is to do.
    """
    assert batch.guess is not None
    multipliers, messages = batch.guess.to(start.dtype), ("Newton",) * batch.size
    raw = dataclasses.replace(RawSolution.unsolved(start), multipliers=multipliers, messages=messages)
    return polish(batch, raw, start, dtype, counts=True)
