"""Iterations of the Newton method by the compiled kernels, with the same results as in torch."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..linear import DenseLayout, Layout, StepMatrix
from ..linear.dense_kernel import LARGEST
from ..linear.jit import INSTALLED
from ..linear.simd import LANES
from ..linear.sparse import SparseLayout
from ..linear.sparse.layout import SOLVED
from ..linear.spectrum_kernel import LARGEST as LARGEST_TURNED
from ..problem import Batch
from .newton_step import BACKTRACKS, LOWERED, MODEL, Model, Scales, State

if TYPE_CHECKING:
    from .newton_kernel import Changed, Equations, Here, Limits, Places, Step, There, Trial
    from .newton_loop import Functions, Lanes, Memory

FAINT = 1e-6  # a pivot that cancels to less than this may belong to a flat direction
OF_STATE = ("u", "s", "y", "shift", "weight", "largest", "last")
OF_SCALES = ("start", "objective", "rows")


def usable(u: Tensor) -> bool:
    """Whether there are kernels for these problems: in double precision, on the CPU."""
    return INSTALLED and u.dtype == torch.float64 and u.device.type == "cpu"


class Native:
    """A batch in the arrays of the kernels: tensors are made of them only where something does not go as hoped."""

    def __init__(self, batch: Batch, scales: Scales, model: Model, state: State) -> None:
        from .newton_kernel import Changed, Here

        self.batch, self.state, self.layout = batch, state, model.layout
        self.shapes = (model.jacobian.shape, model.hessian.shape)
        self.places = _places(model.layout, batch.m, batch.k)
        groups = ((model, MODEL), (state, OF_STATE), (scales, OF_SCALES))
        arrays = [_array(getattr(part, name)) for part, names in groups for name in names]
        self.here = Here(*arrays[:3], *(x.reshape(len(x), -1) for x in arrays[3:5]), *arrays[5:])
        self.before = Changed(*(_array(getattr(state, name)) for name in LOWERED))
        self.changed: Changed = self.before
        self.trial: Trial | None = None
        self.there: There | None = None
        self.functions = self._functions()  # None: they are called, and Python is in every iteration

    def iterate(self, limits: tuple[float, ...], hopeful: Any = True) -> Any:  # (4, batch)
        """One iteration from where it is; its flags are solved, factored, accepted, faint.

        Steps that are no progress are corrected or shortened, of those problems that take ordinary ones (``hopeful``).
        """
        from .newton_kernel import Changed, Limits, prepare, scratch_for

        here, within, before = self.here, Limits(*limits), self.here
        changed = Changed(*_each(np.ndarray.copy, self.before))
        k = here.y.shape[1]
        scratch = scratch_for(here.u.shape[1], k, k - here.s.shape[1], self._solves_dense)
        lanes = self._lanes(here, changed, None)
        _, _, equations, _, trial, there, _ = lanes
        prepare(self.places, here, within, changed, equations, scratch)
        step = self._solved(here, equations, scratch)
        unsteady = ~(step.room > 0)
        if isinstance(self.layout, DenseLayout) and self.batch.m <= LARGEST_TURNED and unsteady.any():
            here = here._replace(hessian=here.hessian.copy(), shift=here.shift.copy(), weight=here.weight.copy())
            self._mend(here, within, changed, equations, step, scratch)
        lanes = lanes._replace(here=here, step=step)
        self._try(self.batch, lanes, within, 1.0, scratch)
        again = step.good & ~(there.accepted | trial.solved) & hopeful
        again &= isinstance(self.layout, DenseLayout) | (here.shift == 0)
        if again.any():
            self._search(lanes, np.flatnonzero(again), within, scratch)
        if here is not before:  # a shift has just been needed; what is refused is looked at again, as it was
            there.shift[unsteady] = here.shift[unsteady]
            for now, then in ((here.shift, before.shift), (here.weight, before.weight)):
                now[~there.accepted] = then[~there.accepted]
        self.here = here._replace(hessian=before.hessian)
        self.changed, self.trial, self.there = changed, trial, there
        return np.stack([trial.solved, step.good, there.accepted, ~(step.room > FAINT)])

    def _mend(
        self, here: Here, within: Limits, changed: Changed, equations: Equations, step: Step, scratch: Any
    ) -> None:
        """Steps with a positive definite H where it is not, which takes its place."""
        from ..linear.jit import address_of
        from .newton_curvature import kept_size, mend_all, mend_dense

        room, address = np.empty(kept_size(self.batch.m)), address_of(mend_dense)
        mend_all(self.places, here, within, changed.barrier, equations, step, room, scratch, address)

    def _try(self, batch: Batch, x: Lanes, within: Limits, share: float, scratch: Any) -> None:
        """See where the steps of these problems lead."""
        from .newton_kernel import move

        move(self.places, x.here, within, x.changed.barrier, x.equations, x.step, x.trial, share, scratch)
        self._judge(batch, x)

    def _judge(self, batch: Batch, x: Lanes) -> None:
        """Whether the trial points are progress, and the models there."""
        from .newton_kernel import Found, judge

        found = batch.expand(_tensor(x.trial.u), _tensor(x.trial.multipliers))
        parts = _each(_array, (found.objective, found.gradient, found.values))
        parts += [_array(part).reshape(batch.size, -1) for part in (found.jacobian, found.curvature)]
        judge(self.places, x.here, Found(*parts), x.changed, x.trial, x.there)

    def _try_values(self, batch: Batch, x: Lanes, within: Limits, share: float, scratch: Any) -> None:
        """Whether the steps of these problems are progress, for which values are enough: derivatives are blank."""
        from .newton_kernel import Found, judge, move

        move(self.places, x.here, within, x.changed.barrier, x.equations, x.step, x.trial, share, scratch)
        objective, values = _each(_array, batch.values(_tensor(x.trial.u)))
        blank = _each(np.zeros_like, (x.there.gradient, x.there.jacobian, x.there.hessian))
        judge(self.places, x.here, Found(objective, blank[0], values, *blank[1:]), x.changed, x.trial, x.there)

    def _search(self, lanes: Lanes, rows: Any, within: Limits, scratch: Any) -> None:
        """Steps of these problems that are no progress: corrected, or shortened, until they are."""
        x = _taken(lanes, rows)
        batch = self.batch.select(torch.from_numpy(rows))
        curved: Any = np.flatnonzero(np.isfinite(x.there.objective)) if x.here.y.shape[1] else ()
        if len(curved):  # where the objective is defined: nothing that is added up to a step would make it so
            part = self._corrected(_taken(x, curved), within, scratch)
            self._try_values(batch.select(torch.from_numpy(curved)), part, within, 1.0, scratch)
            _put(x, curved, part)
        for tried in range(BACKTRACKS):
            left = np.flatnonzero(~x.there.accepted)
            if not len(left):
                break
            part = _taken(x, left)
            self._try_values(batch.select(torch.from_numpy(left)), part, within, 0.5 ** (tried + 1), scratch)
            _put(x, left, part)
        self._judge(batch, x)
        x.there.shift[:] = x.here.shift  # which is not made smaller after such a step
        _put(lanes, rows, x)

    def _corrected(self, x: Lanes, within: Limits, scratch: Any) -> Lanes:
        """The steps with what the constraints came to along the first ones made up for."""
        from .newton_kernel import move

        here, q = x.here, x.here.s.shape[1]
        move(self.places, here, within, x.changed.barrier, x.equations, x.step, x.trial, 1.0, scratch)
        before, after = here.values.copy(), x.there.values.copy()
        if q:  # with the slacks of the step alone
            before[:, -q:] += here.s
            after[:, -q:] += x.trial.s
        total = x.trial.length[:, None] * before + np.where(np.isfinite(after), after, 0.0)
        equations = x.equations._replace(t=x.equations.t + before - total)
        return x._replace(equations=equations, step=self._solved(here, equations, scratch))

    def iterate_on(self, limits: tuple[float, ...], most: int, sure: bool, fates: Fates) -> Any:  # (4, batch)
        """Iterations for as long as they go as hoped, at most so many; what they were is written into the fates."""
        from .newton_kernel import Changed, Here, Limits
        from .newton_loop import Progress, iterate

        functions, count = self.functions, len(self.here.u)
        assert functions is not None
        self.here = here = Here(*[*_each(np.ndarray.copy, self.here[:10]), *self.here[10:]])
        self.before = self.changed = changed = Changed(*_each(np.ndarray.copy, self.before))
        batch = self._lanes(here, changed, functions.own)
        self.trial, self.there = batch.trial, batch.there
        flags = np.zeros((4, count), dtype=bool)
        width = min(count, LANES)
        memory, progress = _memory(self.layout, functions, batch, width), Progress(*fates, flags)
        iterate(self.places, Limits(*limits), functions, memory, batch, width, progress, most, sure, FAINT, SOLVED)
        return flags

    def _lanes(self, here: Here, changed: Changed, own: Any) -> Lanes:
        """With arrays for what an iteration makes of them; of problems that have ended nothing else will be known."""
        from .newton_kernel import Equations, Step, There, Trial
        from .newton_loop import Lanes

        count = len(here.u)
        flags = np.zeros((4, count), dtype=bool)
        u, s, y = here.u, here.s, here.y
        equations = Equations(*[*_each(np.empty_like, (u, y, u, y)), flags[0]])
        step = Step(np.empty_like(u), np.empty_like(y), flags[1], np.empty(count))
        places, after = _each(np.ndarray.copy, (u, s, y)), (*here[:5], *changed[1:], here.shift)
        trial = Trial(*[*places, np.empty_like(y), *np.empty((2, count)), flags[2]])
        return Lanes(here, changed, equations, step, trial, There(*[*_each(np.ndarray.copy, after), flags[3]]), own)

    def _functions(self) -> Functions | None:
        """How values and derivatives are evaluated without Python; None if they cannot be."""
        if isinstance(self.layout, DenseLayout) and self.here.u.shape[1] > LARGEST:
            return None
        if isinstance(self.layout, SparseLayout) and self.layout.kkt.kernel == "torch":
            return None
        from ..recording.tape.machine import kernel_for
        from .newton_loop import Functions

        u, multipliers = _tensor(self.here.u), _tensor(self.here.y)
        ready = self.batch.expansion_tape(u, multipliers)
        if ready is None:
            return None
        tensors = (u, multipliers, *self.batch.xs)
        own, shared = ready.inputs(tensors, len(u))
        kernel = kernel_for(1 if len(u) == 1 else LANES)
        return Functions(ready.program, kernel, own, shared, ready.begin_of(0), ready.begin_of(1))

    @property
    def _solves_dense(self) -> bool:
        """Whether steps are found by the kernel for dense problems."""
        return isinstance(self.layout, DenseLayout) and self.here.u.shape[1] <= LARGEST

    def _solved(self, here: Here, equations: Equations, scratch: Any) -> Step:
        from .newton_kernel import Step, solve_dense

        if self._solves_dense:
            step = Step(
                np.empty_like(here.u), np.empty_like(here.y), np.empty(len(here.u), bool), np.empty(len(here.u))
            )
            solve_dense(here, equations, step, scratch)
            return step
        primal, dual, r, t, _ = _each(_tensor, equations)
        jacobian, hessian = (
            _tensor(x).view(len(x), *shape[1:]) for x, shape in zip(here[3:5], self.shapes, strict=True)
        )
        p = here.y.shape[1] - here.s.shape[1]
        matrix = StepMatrix(hessian, jacobian, primal, dual, p, _tensor(here.weight))
        found = self.layout.solve_kkt(matrix, (r, t))
        good = found.convex & found.independent
        return Step(*_each(_array, (found.z, found.s, good, found.room)))

    def finite(self) -> Any:  # (batch,)
        """Whether all values and derivatives are numbers, where the iteration is from."""
        objective, *rest = self.here[:5]
        return np.isfinite(objective + sum(x.sum(-1) for x in rest))

    def is_beyond(self, limit: float) -> Any:  # (batch,)
        """Whether an unknown is further from its start than so many times its size there."""
        start = self.here.start
        return (np.abs(self.here.u - start) > limit * (1 + np.abs(start))).any(-1)

    def ends(self, accepted: Any) -> tuple[Any, Any]:
        """Where problems end that are solved: u, y; a last step that is no progress is not taken."""
        assert self.trial is not None
        chosen = accepted[:, None]
        return np.where(chosen, self.trial.u, self.here.u), np.where(chosen, self.trial.y, self.here.y)

    def go_on(self) -> None:
        """From the trial points."""
        from .newton_kernel import Changed, Here

        trial, there, here = self.trial, self.there, self.here
        assert trial is not None
        assert there is not None
        self.here = Here(*there[:5], trial.u, trial.s, trial.y, there.shift, *here[9:])
        self.before = Changed(self.changed.barrier, there.filter, there.stored)

    def tensors(self) -> tuple[State, Model, State]:
        """The states at the trial points, the models there, and the states that they are from."""
        trial, there = self.trial, self.there
        assert trial is not None
        assert there is not None
        own = {name: _tensor(getattr(self.here, name)) for name in OF_STATE}
        barrier, filter_, stored = map(_tensor, self.changed)
        before = replace(self.state, barrier=barrier, filter=filter_, stored=stored, **own)
        new = {name: _tensor(getattr(trial, name)) for name in ("u", "s", "y")}
        rest = {name: _tensor(getattr(there, name)) for name in ("filter", "stored", "shift")}
        return replace(before, **new, **rest), self._model(there[:5], new), before

    def model(self) -> Model:
        """The models at the points that the trial ones are from."""
        points = {name: _tensor(getattr(self.here, name)) for name in ("u", "s", "y")}
        return self._model(self.here[:5], points)

    def _model(self, values: Any, points: dict[str, Tensor]) -> Model:
        parts: dict[str, Any] = dict(zip(MODEL, _each(_tensor, values), strict=True))
        for name, shape in zip(MODEL[3:], self.shapes, strict=True):
            parts[name] = parts[name].view(shape)
        return Model(**parts, **points, layout=self.layout)


class Fates(NamedTuple):
    """How each problem fares, for the iterations without Python; what it means is said in ``newton_loop.py``."""

    running: Any
    hopeful: Any
    doubtful: Any
    settled: Any
    finished: Any
    iterations: Any
    u: Any
    y: Any


def _memory(layout: Layout, functions: Functions, batch: Lanes, width: int) -> Memory:
    """For so many problems side by side."""
    from ..linear.jit import address_of
    from ..linear.sparse.kernel_arrays import Plan, room_size
    from ..linear.sparse.substitution import Kernels
    from ..recording.tape.machine import registers_for
    from .newton_curvature import kept_size, mend_dense
    from .newton_kernel import scratch_for
    from .newton_loop import Memory, find_dense, find_sparse, lanes_size

    lanes, sparse = 1 if width == 1 else LANES, isinstance(layout, SparseLayout)
    plan = layout.kkt.plan if isinstance(layout, SparseLayout) else Plan.none()
    m, k = batch.here.u.shape[1], batch.here.y.shape[1]
    mended = isinstance(layout, DenseLayout) and m <= LARGEST_TURNED
    return Memory(
        plan,
        address_of(find_sparse if sparse else find_dense),
        Kernels.of(lanes) if sparse else Kernels.none(),
        np.empty(room_size(plan, lanes)),
        np.empty(len(plan.place), np.uint32),
        np.empty(width * lanes_size(batch)),
        np.empty((4, width), np.int64),
        np.empty((4, width), np.bool_),
        registers_for(functions.program, lanes),
        np.empty(width * int(functions.program.offsets[-1])),
        scratch_for(m, k, k - batch.here.s.shape[1], not sparse),
        np.empty(m + k),
        address_of(mend_dense) if mended else 0,
        np.empty(kept_size(m) if mended else 0),
    )


def _taken(x: Lanes, rows: Any) -> Lanes:
    """The problems at these places, with arrays of their own."""
    from .newton_loop import Lanes

    parts: list[Any] = [type(part)(*(array[rows] for array in part)) for part in x[:6]]
    return Lanes(*[*parts, x.own])


def _put(x: Lanes, rows: Any, part: Lanes) -> None:
    """Where these problems have come to."""
    for to, given in ((x.trial, part.trial), (x.there, part.there)):
        for array, new in zip(to, given, strict=True):
            array[rows] = new


@lru_cache(64)
def _places(layout: Layout, m: int, k: int) -> Places:
    from .newton_kernel import Places

    if not isinstance(layout, SparseLayout):
        return Places(*np.divmod(np.arange(k * m), max(m, 1)), np.arange(m) * (m + 1))
    jacobian, hessian = layout.pattern.jacobian, layout.pattern.hessian
    diagonal, there = np.full(m, -1), np.flatnonzero(hessian.rows == hessian.columns)
    diagonal[hessian.rows[there]] = there
    return Places(np.asarray(jacobian.rows, np.int64), np.asarray(jacobian.columns, np.int64), diagonal)


def _each(function: Any, parts: Any) -> list[Any]:
    return [function(part) for part in parts]


def _array(x: Tensor) -> Any:
    return x.contiguous().numpy(force=True)  # also of what torch knows to be zero


def _tensor(x: Any) -> Tensor:
    return torch.from_numpy(x)
