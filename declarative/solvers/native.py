"""Iterations of the Newton method by the compiled kernels, with the same results as in torch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..linear import DenseLayout
from ..linear.machine import INSTALLED
from ..problem import Batch
from .newton_step import Model, Scales, State

if TYPE_CHECKING:
    from .newton_kernel import Changed, There, Trial

LARGEST = 64  # unknowns: beyond that, the library's own factorisations are faster
OF_MODEL = ("objective", "gradient", "values", "jacobian", "hessian")
OF_STATE = ("u", "s", "y", "shift", "weight", "largest", "last")
OF_SCALES = ("start", "objective", "rows")
CHANGED = ("barrier", "filter", "stored")


def usable(batch: Batch, u: Tensor) -> bool:
    """Whether there are kernels for these problems: small, dense, in double precision, on the CPU."""
    small = isinstance(batch.layout, DenseLayout) and batch.m <= LARGEST
    return INSTALLED and small and u.dtype == torch.float64 and u.device.type == "cpu"


class Native:
    """A batch in the arrays of the kernels: tensors are made of them only where something does not go as hoped."""

    def __init__(self, batch: Batch, scales: Scales, model: Model, state: State) -> None:
        from .newton_kernel import Changed, Here

        self.batch, self.state, self.layout = batch, state, model.layout
        groups = ((model, OF_MODEL), (state, OF_STATE), (scales, OF_SCALES))
        self.here = Here(*(_array(getattr(part, name)) for part, names in groups for name in names))
        self.before = Changed(*(_array(getattr(state, name)) for name in CHANGED))
        self.changed: Changed = self.before
        self.trial: Trial | None = None
        self.there: There | None = None

    def iterate(self, limits: tuple[float, ...]) -> Any:  # (4, batch)
        """One iteration from where it is; its flags are solved, factored, accepted, faint."""
        from .newton_kernel import Changed, Found, Limits, There, Trial, ahead, judge

        here, count = self.here, len(self.here.u)
        flags = np.empty((4, count), dtype=bool)
        changed = Changed(*_each(np.copy, self.before))
        places = _each(np.empty_like, (here.u, here.s, here.y, here.y))
        trial = Trial(*[*places, *np.empty((2, count)), flags[0], flags[1], flags[3]])
        ahead(here, Limits(*limits), changed, trial)
        found = self.batch.expand(_tensor(trial.u), _tensor(trial.multipliers))
        parts = (found.objective, found.gradient, found.values, found.jacobian, found.curvature)
        after = (*here[:5], changed.filter, changed.stored, here.shift)
        there = There(*[*_each(np.empty_like, after), flags[2]])
        judge(here, Found(*_each(_array, parts)), changed, trial, there)
        self.changed, self.trial, self.there = changed, trial, there
        return flags

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
        parts: dict[str, Any] = dict(zip(OF_MODEL, _each(_tensor, values), strict=True))
        return Model(**parts, **points, layout=self.layout)


def _each(function: Any, parts: Any) -> list[Any]:
    return [function(part) for part in parts]


def _array(x: Tensor) -> Any:
    return x.contiguous().numpy()


def _tensor(x: Any) -> Tensor:
    return torch.from_numpy(x)
