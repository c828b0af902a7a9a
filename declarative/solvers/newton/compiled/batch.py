"""A batch of problems in the arrays of the compiled kernels, and iterations there with the same results as in torch."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....linear import DenseLayout, Layout, Pair, StepMatrix
from ....linear.dense_kernel import LARGEST
from ....linear.jit import INSTALLED, address_of
from ....linear.simd import LANES
from ....linear.sparse import SparseLayout
from ....linear.sparse.kernel_arrays import room_size
from ....linear.sparse.substitution import Kernels
from ....linear.spectrum_kernel import LARGEST as LARGEST_REGULARISED
from ....problem import Batch
from ....recording.tape.machine import kernel_for, registers_for
from ..parameters import BACKTRACKS, FLAT, Tolerances
from ..state import DERIVATIVES, MOVED, Model, Scales, State
from .arrays import (
    COUNTS,
    FLAGS,
    Common,
    Counts,
    Expansion,
    Fixed,
    Flags,
    Iterate,
    Outcome,
    Problems,
    System,
    size_of_problem,
)
from .filter import judge_all
from .iteration import move_all, scratch_for
from .loop import Functions, Progress, Workspace, iterate
from .regularisation import regularisation_size, regularise_all, regularise_dense
from .steps import SparseWork, correct_all, prepare_all, solve_dense_steps, solve_sparse_steps


def usable(u: Tensor) -> bool:
    """Whether there are kernels for these problems: in double precision, on the CPU."""
    return INSTALLED and u.dtype == torch.float64 and u.device.type == "cpu"


class CompiledBatch:
    """A batch in the arrays of the kernels: tensors are made of them only where something does not go as hoped."""

    def __init__(self, batch: Batch, scales: Scales, model: Model, state: State, tolerances: Tolerances) -> None:
        self.batch, self.state, self.layout = batch, state, model.layout
        self.shapes = (model.jacobian.shape[1:], model.hessian.shape[1:])
        self.solves_dense = isinstance(self.layout, DenseLayout) and batch.m <= LARGEST
        self.regularises = isinstance(self.layout, DenseLayout) and batch.m <= LARGEST_REGULARISED
        scratch = scratch_for(batch.m, batch.k, batch.p, self.solves_dense)
        rows, columns, diagonal = _stored_entries(self.layout, batch.m, batch.k)
        self.common = Common(batch.p, rows, columns, diagonal, tolerances, scratch)
        self.functions = self._functions(state)  # None: they are called, and Python is in every iteration
        self.problems = self._problems(scales, model, state)

    def _problems(self, scales: Scales, model: Model, state: State) -> Problems:
        """With arrays for what an iteration makes of them; of problems that have ended nothing else will be known."""
        count, m, k = self.batch.size, self.batch.m, self.batch.k
        values = [_array(getattr(model, name)) for name in DERIVATIVES]
        values[3:] = [x.reshape(count, -1) for x in values[3:]]
        values += [_array(getattr(state, name)) for name in MOVED]
        current, trial = (Iterate(*(x.copy() for x in values)) for _ in range(2))
        rest = (state.theta_max, state.last_barrier, scales.start, scales.objective, scales.rows)
        fixed = Fixed(_array(state.barrier).copy(), _array(state.weight).copy(), *map(_array, rest))
        of_u, of_y = np.empty((3, count, m)), np.empty((4, count, k))
        scalars, flags = np.empty((3, count)), np.zeros((FLAGS, count), dtype=bool)
        system = System(of_u[0], of_y[0], of_u[1], of_y[1], of_u[2], of_y[2], flags[0], scalars[0])
        outcome = Outcome(of_y[3], *scalars[1:], *flags[1:])
        inputs = np.empty((count, 0)) if self.functions is None else self.functions.inputs
        return Problems(current, trial, fixed, system, outcome, inputs)

    def _functions(self, state: State) -> Functions | None:
        """How values and derivatives are evaluated without Python; None if they cannot be."""
        sparse = isinstance(self.layout, SparseLayout) and self.layout.kkt.kernel != "torch"
        ready = self.batch.expansion_tape(state.u, state.y) if self.solves_dense or sparse else None
        if ready is None:
            return None
        inputs, shared = ready.inputs((state.u, state.y, *self.batch.xs), self.batch.size)
        kernel = kernel_for(1 if self.batch.size == 1 else LANES)
        return Functions(ready.program, kernel, inputs, shared, ready.begin_of(0), ready.begin_of(1))

    def iterate(self, stepping: Any = True) -> Flags:  # (4, batch)
        """One iteration from where it is; its flags are solved, factored, accepted, flat.

        Steps that are no progress are corrected or shortened, of those problems that take Newton steps (``stepping``).
        """
        x, common = self.problems, self.common
        here, weight, outcome = x.current, x.fixed.weight, x.outcome
        prepare_all(x, common, self.solves_dense)
        self._solve(x)
        indefinite = ~(x.system.pivot > 0)
        regularised = self.regularises and bool(indefinite.any())
        before = (here.hessian.copy(), here.shift.copy(), weight.copy()) if regularised else None
        if regularised:
            regularise_all(x, common, np.empty(regularisation_size(self.batch.m)), address_of(regularise_dense))
        move_all(x, common, 1.0)
        self._judge(self.batch, x)
        again = x.system.factored & ~(outcome.accepted | outcome.solved) & stepping
        again &= isinstance(self.layout, DenseLayout) | (here.shift == 0)
        if again.any():
            self._search(np.flatnonzero(again))
        if before is not None:  # a shift has just been needed; what is refused is looked at again, as it was
            x.trial.shift[indefinite] = here.shift[indefinite]
            here.hessian[:], refused = before[0], ~outcome.accepted
            here.shift[refused], weight[refused] = before[1][refused], before[2][refused]
        return np.stack([outcome.solved, x.system.factored, outcome.accepted, ~(x.system.pivot > FLAT)])

    def _solve(self, x: Problems) -> None:
        """The steps of problems for which that is done in torch."""
        if self.solves_dense:
            return
        primal, dual, r, t = map(_tensor, x.system[:4])
        jacobian, hessian = self._matrices(x.current)
        matrix = StepMatrix(hessian, jacobian, primal, dual, self.common.p, _tensor(x.fixed.weight))
        found = self.layout.solve_kkt(matrix, (r, t))
        solution = (found.z, found.s, found.convex & found.independent, found.room)
        for to, part in zip(x.system[4:], solution, strict=True):
            to[:] = _array(part)

    def _judge(self, batch: Batch, x: Problems) -> None:
        """Whether the trial points are progress, and the models there."""
        found = batch.expand(_tensor(x.trial.u), _tensor(x.outcome.multipliers))
        parts = [_array(part) for part in (found.objective, found.gradient, found.values)]
        parts += [_array(part).reshape(batch.size, -1) for part in (found.jacobian, found.curvature)]
        judge_all(x, self.common, Expansion(*parts))

    def _try_values(self, batch: Batch, x: Problems, share: float) -> None:
        """Whether the steps of these problems are progress, for which values are enough: derivatives are blank."""
        move_all(x, self.common, share)
        objective, values = map(_array, batch.values(_tensor(x.trial.u)))
        slope, jacobian, hessian = map(np.zeros_like, (x.trial.gradient, x.trial.jacobian, x.trial.hessian))
        judge_all(x, self.common, Expansion(objective, slope, values, jacobian, hessian))

    def _search(self, rows: Any) -> None:
        """Steps of these problems that are no progress: corrected, or shortened, until they are."""
        x, batch = _taken(self.problems, rows), self.batch.select(torch.from_numpy(rows))
        # Where the objective is undefined, nothing that is added up to a step would make it defined.
        defined: Any = np.flatnonzero(np.isfinite(x.trial.objective)) if self.batch.k else ()
        if len(defined):
            part = _taken(x, defined)
            correct_all(part, self.common, self.solves_dense)
            self._solve(part)
            self._try_values(batch.select(torch.from_numpy(defined)), part, 1.0)
            _put(x, defined, part)
        for tried in range(BACKTRACKS):
            left = np.flatnonzero(~x.outcome.accepted)
            if not len(left):
                break
            part = _taken(x, left)
            self._try_values(batch.select(torch.from_numpy(left)), part, 0.5 ** (tried + 1))
            _put(x, left, part)
        self._judge(batch, x)
        x.trial.shift[:] = x.current.shift  # which is not made smaller after such a step
        _put(self.problems, rows, x)

    def iterate_many(self, most: int, sure: bool, progress: Progress) -> None:
        """Iterations for as long as they go as hoped, at most so many; what they were is written into the progress."""
        assert self.functions is not None
        width = min(self.batch.size, LANES)
        iterate(self._workspace(self.functions, width), self.problems, width, progress, most, sure)

    def _workspace(self, functions: Functions, width: int) -> Workspace:
        """For so many problems side by side."""
        m, k, lanes, program = self.batch.m, self.batch.k, 1 if width == 1 else LANES, functions.program
        solve, sparse = solve_dense_steps, SparseWork.none()
        if isinstance(self.layout, SparseLayout):
            plan = self.layout.kkt.plan
            numbers, where = np.empty(room_size(plan, lanes)), np.empty(len(plan.place), np.uint32)
            solve, sparse = solve_sparse_steps, SparseWork(plan, Kernels.of(lanes), numbers, where, lanes)
        return Workspace(
            self.common,
            functions,
            address_of(solve),
            sparse,
            np.empty(width * size_of_problem(self.problems)),
            np.empty((COUNTS + 2, width), np.int64),
            np.empty((FLAGS, width), np.bool_),
            registers_for(program, lanes),
            np.empty(width * int(program.offsets[-1])),
            np.empty(m + k),
            address_of(regularise_dense) if self.regularises else 0,
            np.empty(regularisation_size(m) if self.regularises else 0),
        )

    def finite(self) -> Any:  # (batch,)
        """Whether all values and derivatives are numbers, where the iteration is from."""
        objective, *rest = self.problems.current[: len(DERIVATIVES)]
        return np.isfinite(objective + sum(x.sum(-1) for x in rest))

    def is_beyond(self, limit: float) -> Any:  # (batch,)
        """Whether an unknown is further from its start than so many times its size there."""
        start = self.problems.fixed.start
        return (np.abs(self.problems.current.u - start) > limit * (1 + np.abs(start))).any(-1)

    def ends(self, accepted: Flags) -> tuple[Any, Any]:
        """Where problems end that are solved: u, y; a last step that is no progress is not taken."""
        chosen, here, there = accepted[:, None], self.problems.current, self.problems.trial
        return np.where(chosen, there.u, here.u), np.where(chosen, there.y, here.y)

    def accept(self) -> None:
        """Go on from the trial points."""
        self.problems = self.problems._replace(current=self.problems.trial, trial=self.problems.current)

    def tensors(self) -> tuple[State, Model, State]:
        """The states at the trial points, the models there, and the states that they are from."""
        x = self.problems
        here, there = ({name: _tensor(getattr(one, name)) for name in MOVED} for one in (x.current, x.trial))
        before = replace(self.state, barrier=_tensor(x.fixed.barrier), weight=_tensor(x.fixed.weight), **here)
        return replace(before, **there), self._model(x.trial), before

    def model(self) -> Model:
        """The models at the points that the trial ones are from."""
        return self._model(self.problems.current)

    def _model(self, x: Iterate) -> Model:
        objective, gradient, values, u, s, y = map(_tensor, (*x[:3], *x[5:8]))
        return Model.of((objective, gradient, values, *self._matrices(x)), u, s, y, self.layout)

    def _matrices(self, x: Iterate) -> Pair:
        """A and H in the forms of the layout."""
        jacobian, hessian = _tensor(x.jacobian), _tensor(x.hessian)
        return jacobian.view(len(jacobian), *self.shapes[0]), hessian.view(len(hessian), *self.shapes[1])


def _taken(x: Problems, rows: Any) -> Problems:
    """The problems at these places, with arrays of their own."""
    parts: list[Any] = [type(part)(*(array[rows] for array in part)) for part in x[:-1]]
    return Problems(*[*parts, x.inputs])


def _put(x: Problems, rows: Any, part: Problems) -> None:
    """Where these problems have come to."""
    for array, new in zip((*x.trial, *x.outcome), (*part.trial, *part.outcome), strict=True):
        array[rows] = new


@lru_cache(64)
def _stored_entries(layout: Layout, m: int, k: int) -> tuple[Counts, Counts, Counts]:
    """Which entries of A are stored, by rows and columns, and where the diagonal of H is among its own."""
    if not isinstance(layout, SparseLayout):
        rows, columns = np.divmod(np.arange(k * m), max(m, 1))
        return rows, columns, np.arange(m) * (m + 1)
    jacobian, hessian = layout.pattern.jacobian, layout.pattern.hessian
    diagonal, there = np.full(m, -1), np.flatnonzero(hessian.rows == hessian.columns)
    diagonal[hessian.rows[there]] = there
    return np.asarray(jacobian.rows, np.int64), np.asarray(jacobian.columns, np.int64), diagonal


def _array(x: Tensor) -> Any:
    return x.contiguous().numpy(force=True)  # also of what torch knows to be zero


def _tensor(x: Any) -> Tensor:
    return torch.from_numpy(x)
