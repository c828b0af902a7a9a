"""What the ready-made layers have in common."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from declarative import DeclarativeNode, Solver
from declarative.inputs import check_devices, check_tensor, refuse_without_values
from declarative.problem import Function

Inputs = tuple[Tensor, ...]
Pullback = Callable[..., Inputs]  # (xs, u, multipliers, z, s)


class Layer(DeclarativeNode):
    """A node that states a particular problem and adds fast paths: a solver, a structured linear
    system, and a formula for the last step of back-propagation.

    Everything that a node can do (``solve``, ``derivatives``, ``with_gradient``, ...) a ready-made layer can do too. A
    subclass consists of its statement and of :meth:`prepare`; it has no state but its configuration.

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

    generic_solver: str | Solver | None = None  # None: what a node without a solver uses

    def __init__(self, *functions: Function | None, pullback: Pullback | None = None, **options: Any) -> None:
        super().__init__(*functions, **options)
        plan = self._spec.plan
        plan = dataclasses.replace(plan, problem=dataclasses.replace(plan.problem, pullback=pullback))
        self._spec = dataclasses.replace(self._spec, plan=plan)

    def prepare(self, *xs: Tensor) -> tuple[Tensor, ...]:
        """Check the inputs of a call, and complete them; differentiable."""
        return xs

    def generic(self) -> Layer:
        """The same problem without its fast paths: solved by a general solver, with the dense linear system."""
        plan, problem = self._spec.plan, self._spec.plan.problem
        other = copy.copy(self)
        other._spec = DeclarativeNode(
            problem.objective,
            problem.equality,
            problem.inequality,
            solver=self.generic_solver,
            gradient=self.gradient,
            start=plan.start,
            in_dims=plan.in_dims,
            on_failure=plan.on_failure,  # type: ignore[arg-type]
        )._spec
        return other

    def extra_repr(self) -> str:
        """How it is solved and differentiated, for ``print(layer)``."""
        return f"solver={type(self._spec.plan.solver).__name__}, gradient={type(self.gradient).__name__}"

    def _outline(self, xs: Sequence[Tensor]) -> Tensor:
        check_devices(xs)
        return super()._outline(self.prepare(*xs))

    def _solve(self, xs: Sequence[Tensor], *options: Any) -> Any:
        check_devices(xs)  # before prepare computes with them
        refuse_without_values(xs)
        return super()._solve(self.prepare(*xs), *options)


def require_floating(name: str, x: object, dims: Sequence[str]) -> None:
    """Refuse what is not a real floating-point tensor; its dimensions are for the message only.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor of shape ({', '.join(dims)}), but is {type(x).__name__}.")
    check_tensor(name, x)
    if not x.is_floating_point():
        raise TypeError(
            f"{name} must be a floating-point tensor, but is {x.dtype}: use {name}.to(torch.get_default_dtype())."
        )


def require_shape(name: str, x: object, dims: Sequence[str], *, empty: bool = False) -> None:
    """Refuse what is not a real floating-point tensor with these dimensions.

    Raises:
        TypeError: it is not a tensor, or not a floating-point one.
        ValueError: it has another number of dimensions, or none along one of those other than the batch.
    """
    require_floating(name, x, dims)
    expected = f"({', '.join(dims)})"
    assert isinstance(x, Tensor)  # which was required
    if x.dim() != len(dims):
        hint = f" Add a batch dimension: {name}.unsqueeze(0)." if x.dim() == len(dims) - 1 else ""
        raise ValueError(f"{name} must have shape {expected}, but has shape {tuple(x.shape)}.{hint}")
    if 0 in x.shape[1:] and not empty:
        raise ValueError(f"{name} must have shape {expected} with at least one entry, but has shape {tuple(x.shape)}.")


def only_input(name: str, xs: Sequence[Tensor], dims: Sequence[str]) -> Tensor:
    """The one input of a layer that has one."""
    if len(xs) != 1:
        raise TypeError(f"this layer takes one input, {name}, but was called with {len(xs)}.")
    require_shape(name, xs[0], dims)
    return xs[0]


def require_positive(**values: float) -> None:
    """Refuse parameters that are not finite positive numbers."""
    for name, value in values.items():
        if isinstance(value, Tensor) or not isinstance(value, int | float):
            raise TypeError(f"{name} must be a number, but is {type(value).__name__}.")
        if not 0 < value < float("inf"):
            raise ValueError(f"{name} must be positive and finite, but is {value}.")


def require_count(**values: int) -> None:
    """Refuse what is not a positive whole number that a computer could count to."""
    for name, value in values.items():
        if not isinstance(value, int) or not 1 <= value < 2**31:
            raise ValueError(f"{name} must be a positive int, but is {value!r}.")


def largest(x: Tensor) -> Tensor:  # (batch, ...) -> (batch,)
    """The largest absolute value of each problem; 1 where all are zero, so that one can divide by it."""
    size = x.reshape(x.shape[0], -1).abs().amax(-1)
    return torch.where(size > 0, size, 1.0)


def uniform_marginals(M: Tensor) -> tuple[Tensor, Tensor]:
    """1/m and 1/n for a matrix (m, n)."""
    m, n = M.shape
    return M.new_full((m,), 1 / m), M.new_full((n,), 1 / n)


def thin_product(matrix: Tensor, thin: Tensor) -> Tensor:  # (batch, m, n), (batch, n, k) -> (batch, m, k)
    """The matrix times few columns. A batch of these is several times faster with the columns as rows."""
    return (thin.mT @ matrix.mT).mT
