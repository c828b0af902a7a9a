"""A batch of problems in the arrays of the compiled kernels, and iterations there with the same results as in torch."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ....kernels.dense_systems import LARGEST
from ....kernels.library import array_address, available, call, lanes_for, threads
from ....kernels.machine import Machine
from ....linear import DenseLayout, Layout, Pair, StepMatrix
from ....linear.sparse import SparseLayout
from ....problem import Batch
from ..parameters import BACKTRACKS, FLAT, Tolerances
from ..state import DERIVATIVES, MOVED, Model, Scales, State
from .arrays import Flags, Iterate, Problems, Progress, Shape

LARGEST_REGULARISED = 32  # unknowns: beyond that, LAPACK is faster than plane rotations


def usable(u: Tensor) -> bool:
    """Whether the core works on these problems: in double precision, on the CPU."""
    return u.dtype == torch.float64 and u.device.type == "cpu" and available()


class Functions(NamedTuple):
    """How values and derivatives are evaluated without Python."""

    machine: Machine
    inputs: Tensor  # of each problem, of which u and the multipliers are written anew, (batch, entries)
    shared: Tensor
    at_u: int  # where these are among the entries; -1 if they do not matter
    at_multipliers: int


class CompiledBatch:
    """A batch in the arrays of the kernels: tensors are made of them only where something does not go as hoped."""

    def __init__(self, batch: Batch, scales: Scales, model: Model, state: State, tolerances: Tolerances) -> None:
        self.batch, self.state, self.layout = batch, state, model.layout
        self.shapes = (model.jacobian.shape[1:], model.hessian.shape[1:])
        self.solves_dense = isinstance(self.layout, DenseLayout) and batch.m <= LARGEST
        self.regularises = isinstance(self.layout, DenseLayout) and batch.m <= LARGEST_REGULARISED
        self.functions = self._functions(state)  # None: they are called, and Python is in every iteration
        self.problems = self._problems(scales, model, state, tolerances)

    def _problems(self, scales: Scales, model: Model, state: State, tolerances: Tolerances) -> Problems:
        """With room for what an iteration makes of them; of problems that have ended nothing else will be known."""
        count, functions = self.batch.size, self.functions
        shape = _shape_of(self.layout, self.batch.m, self.batch.k, self.batch.p)
        width = 0 if functions is None else functions.inputs.shape[1]
        x = Problems(shape, count, state.last_barrier.shape[1], width, tolerances)
        values = [_array(getattr(model, name)) for name in DERIVATIVES]
        values += [_array(getattr(state, name)) for name in MOVED]
        for to, value in zip(x.current, values, strict=True):
            to[:] = value.reshape(to.shape)
        for to, value in zip(x.trial, x.current, strict=True):
            to[:] = value
        rest = (state.barrier, state.weight, state.theta_max, state.last_barrier)
        for to, tensor in zip(x.fixed, (*rest, scales.start, scales.objective, scales.rows), strict=True):
            to[:] = _array(tensor)
        if functions is not None:
            x.inputs[:] = functions.inputs.numpy()
        return x

    def _functions(self, state: State) -> Functions | None:
        """How values and derivatives are evaluated without Python; None if they cannot be."""
        sparse = isinstance(self.layout, SparseLayout) and self.layout.kkt.kernel != "torch"
        ready = self.batch.expansion_tape(state.u, state.y) if self.solves_dense or sparse else None
        if ready is None:
            return None
        inputs = ready.inputs((state.u, state.y, *self.batch.xs), self.batch.size)
        return Functions(ready.machine, *inputs, ready.begin_of(0), ready.begin_of(1))

    def iterate(self, stepping: Any = True) -> Flags:  # (4, batch)
        """One iteration from where it is; its flags are solved, factored, accepted, flat.

        Steps that are no progress are corrected or shortened, of those problems that take Newton steps (``stepping``).
        """
        x = self.problems
        here, weight, outcome = x.current, x.fixed.weight, x.outcome
        call("newton_prepare", x.address, self.solves_dense)
        self._solve(x)
        indefinite = ~(x.system.pivot > 0)
        regularised = self.regularises and bool(indefinite.any())
        before = (here.hessian.copy(), here.shift.copy(), weight.copy()) if regularised else None
        if regularised:
            call("newton_regularise", x.address)
        call("newton_move", x.address, 1.0)
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
        matrix = StepMatrix(hessian, jacobian, primal, dual, self.batch.p, _tensor(x.fixed.weight))
        found = self.layout.solve_kkt(matrix, (r, t))
        solution = (found.z, found.s, found.room, found.convex & found.independent)
        for to, part in zip(x.system[4:], solution, strict=True):
            to[:] = _array(part)

    def _judge(self, batch: Batch, x: Problems) -> None:
        """Whether the trial points are progress, and the models there."""
        found = batch.expand(_tensor(x.trial.u), _tensor(x.outcome.multipliers))
        parts = found.objective, found.gradient, found.values, found.jacobian, found.curvature
        _judge(x, *map(_array, parts))

    def _try_values(self, batch: Batch, x: Problems, share: float) -> None:
        """Whether the steps of these problems are progress, for which values are enough: derivatives are blank."""
        call("newton_move", x.address, share)
        objective, values = map(_array, batch.values(_tensor(x.trial.u)))
        slope, jacobian, hessian = map(np.zeros_like, (x.trial.gradient, x.trial.jacobian, x.trial.hessian))
        _judge(x, objective, slope, values, jacobian, hessian)

    def _search(self, rows: Any) -> None:
        """Steps of these problems that are no progress: corrected, or shortened, until they are."""
        x, batch = self.problems.take(rows), self.batch.select(torch.from_numpy(rows))
        # Where the objective is undefined, nothing that is added up to a step would make it defined.
        defined: Any = np.flatnonzero(np.isfinite(x.trial.objective)) if self.batch.k else ()
        if len(defined):
            part = x.take(defined)
            call("newton_correct", part.address, self.solves_dense)
            self._solve(part)
            self._try_values(batch.select(torch.from_numpy(defined)), part, 1.0)
            x.put(defined, part)
        for tried in range(BACKTRACKS):
            left = np.flatnonzero(~x.outcome.accepted)
            if not len(left):
                break
            part = x.take(left)
            self._try_values(batch.select(torch.from_numpy(left)), part, 0.5 ** (tried + 1))
            x.put(left, part)
        self._judge(batch, x)
        x.trial.shift[:] = x.current.shift  # which is not made smaller after such a step
        self.problems.put(rows, x)

    def iterate_many(self, most: int, sure: bool, progress: Progress) -> None:
        """Iterations for as long as they go as hoped, at most so many; what they were is written into the progress."""
        assert self.functions is not None
        machine, _, shared, *places = self.functions
        plan = self.layout.kkt.plan.address if isinstance(self.layout, SparseLayout) else 0
        functions = machine.address, shared.data_ptr(), shared.numel(), *places, plan, self.regularises
        addresses = map(array_address, progress)
        limits = most, sure, lanes_for(self.batch.size), threads()
        call("newton_iterate", self.problems.address, *functions, *addresses, *limits)

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
        self.problems.swap()

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


def _judge(x: Problems, *found: Any) -> None:
    """Whether the trial points are progress, from values and derivatives there."""
    call("newton_judge", x.address, *map(array_address, found))


@lru_cache(64)
def _shape_of(layout: Layout, m: int, k: int, p: int) -> Shape:
    """Which entries of A are stored, by rows and columns, and where the diagonal of H is among its own."""
    if not isinstance(layout, SparseLayout):
        rows, columns = np.divmod(np.arange(k * m), max(m, 1))
        return Shape(m, k, p, rows, columns, np.arange(m) * (m + 1), m * m)
    jacobian, hessian = layout.pattern.jacobian, layout.pattern.hessian
    diagonal, there = np.full(m, -1), np.flatnonzero(hessian.rows == hessian.columns)
    diagonal[hessian.rows[there]] = there
    return Shape(m, k, p, jacobian.rows, jacobian.columns, diagonal, len(hessian))


def _array(x: Tensor) -> Any:
    return x.contiguous().numpy(force=True)  # also of what torch knows to be zero


def _tensor(x: Any) -> Tensor:
    return torch.from_numpy(x)
