"""What the ready-made layers have in common."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, TypedDict

import torch
from torch import Tensor, nn

from declarative import DeclarativeNode, Rule, Solver
from declarative.problem import Function
from declarative.recording import Sizes

from .formula import StructuredSolver
from .inputs import Bound, Inputs, ScalarParameter, arrange


class Options(TypedDict, total=False):
    """What every ready-made layer takes besides its own settings.

    Attributes:
        gradient: the rule by which it is differentiated; by default ``"exact"``.
        on_failure: ``"raise"`` or ``"mask"``, as in :class:`DeclarativeNode`.
    """

    gradient: str | Rule
    on_failure: Literal["raise", "mask"]


class Layer(DeclarativeNode):
    """A node that states a particular problem and adds fast paths: a solver, a structured linear
    system, and a formula for the last step of back-propagation.

    Everything that a node can do (``solve``, ``derivatives``, ``with_gradient``, ...) a ready-made layer can do too. A
    subclass consists of its statement and of the names of its inputs; it has no state but its configuration.

    Every ready-made layer takes the options ``gradient=`` and ``on_failure=`` of a node. Its inputs have a batch
    dimension first; one whose batch is 1, or missing, is shared by all the problems. A setting such as a radius is a
    number, or a tensor, one number for all the problems or one for each: given to the constructor, or after the other
    inputs of a call. A tensor is an input of the problem, and has a gradient.

    Example:
        >>> import torch
        >>> from problems import Layer
        >>> class Mean(Layer):
        ...     "The mean, as the number with the least sum of squared distances."
        ...     def __init__(self, **options):
        ...         super().__init__(lambda x, u: (u - x).square().sum(), start=(), **options,
        ...                          solver=lambda x: x.mean(-1))
        >>> mean, x = Mean(), torch.tensor([[1.0, 2.0, 6.0]])
        >>> mean(x), mean.generic()(x)
        (tensor([3.]), tensor([3.]))
    """

    required: ClassVar[tuple[str, ...]] = ()  # the inputs, by their names in the table of dimensions
    optional: ClassVar[tuple[str, ...]] = ()  # a scalar parameter comes last
    pure: ClassVar[bool] = False  # whether its functions, of one unknown, depend on their arguments alone
    empty: ClassVar[str] = ""  # dimensions that may have no entries
    generic_solver: str | Solver | None = None  # None: what a node without a solver uses
    scalar: ScalarParameter | None = None

    def __init__(
        self,
        objective: Function,
        *constraints: Callable[..., Any] | None,  # which may return several tensors, nested
        solver: str | Solver | Callable[..., Tensor] | None = None,
        pullback: Callable[..., Inputs] | None = None,  # (xs, u, multipliers, z, s) -> -(B' z + C' s), for the batch
        scalar: ScalarParameter | None = None,
        **options: Any,
    ) -> None:
        if isinstance(solver, StructuredSolver):
            scalar, pullback, options["system"] = solver.scalar, solver.pullback, solver.system
        functions = [f if f is None or scalar is None else Bound(f, scalar) for f in (objective, *constraints)]
        super().__init__(*functions, solver=solver, **options)
        plan = self.spec.plan
        sizes = Sizes(one_unknown=True) if self.pure else plan.sizes
        plan = dataclasses.replace(plan, problem=dataclasses.replace(plan.problem, pullback=pullback), sizes=sizes)
        self.spec = dataclasses.replace(self.spec, plan=plan)
        self.scalar = scalar
        if scalar is not None and isinstance(scalar.value, Tensor):  # where .to() and .parameters() find it
            if isinstance(scalar.value, nn.Parameter):
                self.register_parameter(scalar.name, scalar.value)
            else:
                self.register_buffer(scalar.name, scalar.value, persistent=False)

    def prepare(self, *xs: Tensor) -> Inputs:
        """Check the inputs of a call, and complete them; differentiable."""
        if not self.required:
            return xs
        scalar = self.scalar
        last = None if scalar is None else getattr(self, scalar.name, None)
        found: list[Any] = arrange(type(self).__name__, self.required, self.optional, xs, self.empty, last)
        if scalar is None or found[-1] is None:
            return self.complete(*found)
        scalar.check(found[-1])
        return *self.complete(*found), found[-1].to(found[0].dtype)

    def complete(self, *xs: Any) -> Inputs:
        """The inputs of the problem but for the scalar parameter, from all those of a call; None was left out."""
        return xs if self.scalar is None else xs[:-1]

    def blank(self, *xs: Any) -> Tensor | None:  # noqa: ARG002
        """Where the solution is zero because the inputs of a call leave it out, such as a score of -inf."""
        return None

    def present(self, y: Tensor, xs: Sequence[Tensor]) -> Tensor:
        """The solutions, zero where they are blank."""
        where = self.blank(*xs)
        return y if where is None else torch.where(where, 0.0, y)

    def generic(self) -> Layer:
        """The same problem without its fast paths: solved by a general solver, with the dense linear system."""
        plan, problem = self.spec.plan, self.spec.plan.problem
        other = copy.copy(self)
        other.spec = DeclarativeNode(
            problem.objective,
            problem.equality,
            problem.inequality,
            solver=self.generic_solver,
            gradient=self.gradient,
            start=plan.start,
            in_dims=plan.in_dims,
            on_failure=plan.on_failure,  # type: ignore[arg-type]
        ).spec
        return other

    def extra_repr(self) -> str:
        """How it is solved and differentiated, for ``print(layer)``."""
        return f"solver={type(self.spec.plan.solver).__name__}, gradient={type(self.gradient).__name__}"
