"""One call of a node, carried out: what the reports work with."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from .forward import Call
from .implicit import Spec, without_failures
from .inputs import Inputs
from .problem import Batch, flat
from .solution import Solution
from .structure import Point


@dataclass(frozen=True)
class Evaluation:
    """The inputs of a call, what was done with them, and the solutions: flat, and batch first.

    Attributes:
        spec: the configuration of the node.
        inputs: those of the call, and the tensors of modules.
        call: how they were solved.
        solution: the solutions, differentiable like those of the node.
    """

    spec: Spec
    inputs: Inputs
    call: Call
    solution: Solution

    @property
    def batch(self) -> Batch:
        """The problems."""
        return self.call.batch(self.inputs.xs, self.solution)

    def point(self) -> Point:
        """The problems at their solutions."""
        return self.spec.point(self.call, self.inputs.xs, self.solution)

    def without_failures(self) -> Evaluation:
        """The same with a copy of a solved problem in the place of each failed one; there must be a solved one."""
        if bool(self.solution.converged.all()):
            return self
        xs, solution = without_failures(self.call, self.inputs.xs, self.solution)
        return dataclasses.replace(self, inputs=dataclasses.replace(self.inputs, xs=xs), solution=solution)

    def detached(self) -> Evaluation:
        """The same with inputs and solutions that nothing is differentiated through."""
        xs = tuple(x.detach() for x in self.inputs.xs)
        solution = dataclasses.replace(self.solution, y=self.solution.y.detach())
        return dataclasses.replace(self, inputs=dataclasses.replace(self.inputs, xs=xs), solution=solution)

    def objective(self) -> Tensor:  # (size,)
        """f at the solutions, differentiable; that of a masked problem is a constant."""
        if not self.inputs.size:
            return self.solution.residual
        if self.call.plan.on_failure == "raise":
            return self._objective()
        return torch.where(self.solution.converged, self.without_failures()._objective(), self.detached()._objective())

    def _objective(self) -> Tensor:
        return self.batch.objective(flat(self.solution.y))
