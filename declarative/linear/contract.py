"""The contract of a linear system: multiply, factor once, solve many; its solution can be differentiated.

For a batch of problems with Hessian H, constraint Jacobian A and a mask D = diag(active) of the constraints that hold
with equality, the system is symmetric and has the same shape whatever is active:

    [ H      A' D    ] [z]   [r]
    [ D A   -(I - D) ] [s] = [D t]        so that s_i = 0 for an inactive constraint.

Here is what all such systems have in common: a solution that can be differentiated, and a residual that is looked at.
"""

from __future__ import annotations

import abc
import copy
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from ..errors import NumericalWarning
from ..torchside import transformed, value_is_hidden

SMALL = 400  # entries of a matrix: beyond that, torch multiplies rows with matrices several times faster than columns
Pair = tuple[Tensor, Tensor]
Solve = Callable[[Tensor, Tensor], Pair]  # (r, t) -> (z, s), batch first


def times(matrix: Tensor, vector: Tensor) -> Tensor:
    """A batch of matrices times a batch of vectors."""
    if matrix.dim() == 3 and vector.dim() == 2:  # what @ would do, without asking what there is to do
        if matrix.shape[1] * matrix.shape[2] > SMALL:
            return torch.bmm(vector.unsqueeze(-2), matrix.mT).squeeze(-2)
        return torch.bmm(matrix, vector.unsqueeze(-1)).squeeze(-1)
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def total(values: Tensor) -> Tensor:  # (batch,)
    """The sum of all entries of each problem: not finite if one of them is not."""
    return values.sum(tuple(range(1, values.dim())))


def by_rows(x: Tensor, like: Tensor) -> Tensor:  # (batch,)
    """A number or a flag of each problem, in a shape that goes with a tensor that has a row for each."""
    return x.view(-1, *(1,) * (like.dim() - 1))


def or_one(size: Tensor) -> Tensor:
    """A scale to divide by: 1 where it is zero or not finite."""
    return torch.where((size > 0) & (size < torch.inf), size, 1.0)


def rank_tolerance(matrix: Tensor) -> float:
    """Eigenvalues below this fraction of the largest are zero to working precision."""
    return 10 * matrix.shape[-1] * torch.finfo(matrix.dtype).eps


def warn_of(which: Tensor, why: str, so: str) -> None:
    """One warning for the problems of a batch that something is true of."""
    warnings.warn(f"{int(which.sum())} problem(s) of the batch: {why}; {so}.", NumericalWarning, stacklevel=2)


def full_precision(like: Tensor) -> AbstractContextManager[object]:
    """Switch autocast off: whoever differentiates may be inside of it, and a gradient needs all of its digits."""
    device = like.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


class Wanted(abc.ABC):
    """What the solution (z, s) of a system is wanted for, which says whether a doubt about it matters."""

    @abc.abstractmethod
    def is_affected(self, solution: Pair, usual: Pair, change: Pair, tolerance: float) -> Tensor | None:  # (batch,)
        """Whether it would change by more than the tolerance, relatively, with the solution; None: not known.

        ``usual`` has the size that a solution would have if nothing cancelled.
        """

    @abc.abstractmethod
    def is_turned(
        self, solution: Pair, usual: Pair, multipliers: Tensor, solve: Solve, tolerance: float
    ) -> Tensor | None:
        """Whether it would change if the multipliers (batch, k) that the matrix depends on changed; None: not known."""


class System(abc.ABC):
    """A symmetric linear system, one per problem of the batch, as a function of tensors (its operands).

    A structured system says how it multiplies and how it is solved. Derivatives of the solution, to any order, forward
    and reverse, follow from these two.
    """

    wanted: Wanted | None = None  # what a doubtful solution is judged by; None: by its own digits

    def __init__(self, *operands: Tensor) -> None:
        self.operands = operands

    def wanted_for(self, wanted: Wanted) -> Self:
        """The same, warning only where what its solution is wanted for is affected."""
        other = copy.copy(self)
        other.wanted = wanted
        return other

    @property
    def rebuild(self) -> Callable[..., System]:
        """A function of the operands that returns the system of their values."""
        return type(self)

    @abc.abstractmethod
    def multiply(self, z: Tensor, s: Tensor) -> Pair:  # (batch, m), (batch, k)
        """The matrix times (z, s), differentiable in the operands."""

    @abc.abstractmethod
    def factorise(self) -> Solve:
        """Return the function (r, t) -> (z, s). Called without gradients, on plain tensors, batch first."""

    def solve(self, r: Tensor, t: Tensor) -> Pair:
        """(z, s) for the right-hand side (r, t), differentiable in both and in the operands."""
        if torch.is_grad_enabled() or transformed() or value_is_hidden(r) or value_is_hidden(t):
            kind = self.rebuild if self.wanted is None else partial(_wanted_for, self.rebuild, self.wanted)
            return _apply(kind, r, t, *self.operands)
        return self.factorise()(r, t)  # nobody differentiates


class Factorisation(abc.ABC):
    """The factors of the KKT matrices of a batch: solutions, and how definite H is along the active constraints."""

    @abc.abstractmethod
    def __call__(self, r: Tensor, t: Tensor) -> Pair:  # (batch, m), (batch, k)
        """(z, s) for the right-hand side (r, t)."""

    @abc.abstractmethod
    def curvature(self) -> Tensor:  # (batch,)
        """Along the constraints: 1 where it is positive, 0 where it vanishes in some directions, -1 where negative."""

    @abc.abstractmethod
    def flat_directions(self) -> tuple[Tensor, Tensor]:  # (count,), (count, m)
        """The problems whose curvature vanishes in some directions, and one such direction for each entry."""


class KktSystem(System):
    """The system of H and A, whatever is stored of them: what the verdict on a point asks of it."""

    @abc.abstractmethod
    def factorise(self, warn: bool = True) -> Factorisation:
        """Factor once. Called without gradients; ``warn`` says whether a singular matrix is reported."""

    @abc.abstractmethod
    def with_active(self, active: Tensor) -> KktSystem:
        """The same with other active constraints."""

    @abc.abstractmethod
    def stored_hessian(self) -> Tensor | None:
        """What is stored of H, if anything is."""

    @abc.abstractmethod
    def diagonal_entries(self) -> Tensor:  # (batch, m)
        """The diagonal of H, or an estimate of it that is positive."""

    @abc.abstractmethod
    def magnitude(self, z: Tensor) -> Tensor:  # (batch, m)
        """|H| |z|, or about that; an entry that is not finite does not count."""

    @abc.abstractmethod
    def least_change(self, size: Tensor) -> Tensor:  # (batch, m)
        """The smallest change of each unknown that changes an entry of H u by its size; infinite if none does."""


class _Solve(torch.autograd.Function):
    """x = K^-1 b with K symmetric: dx = K^-1 (db - dK x), and the transpose of that."""

    @staticmethod
    def forward(kind: Callable[..., System], r: Tensor, t: Tensor, *operands: Tensor) -> Pair:
        z, s = kind(*operands).factorise()(r, t)
        return (z.clone() if z is r else z), (s.clone() if s is t else s)  # an input is no output of a Function

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Pair) -> None:
        kind, _, _, *operands = inputs
        ctx.kind = kind
        ctx.save_for_backward(*output, *operands)
        ctx.save_for_forward(*output, *operands)
        ctx.set_materialize_grads(True)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        z, s, *operands = ctx.saved_tensors
        moving = [i for i, x in enumerate(operands) if ctx.needs_input_grad[3 + i]]
        grads: list[Tensor | None] = [None] * len(operands)
        with full_precision(cotangents[0]):
            r, t = ctx.kind(*operands).solve(*cotangents)
            if moving:
                pull = torch.func.vjp(_product(ctx.kind, operands, moving, z, s), *(operands[i] for i in moving))[1]
                for i, grad in zip(moving, pull((-r, -t)), strict=True):
                    grads[i] = grad
        return None, r, t, *grads

    @staticmethod
    def jvp(ctx: Any, _: None, dr: Tensor | None, dt: Tensor | None, *tangents: Tensor | None) -> Pair:
        z, s, *operands = ctx.saved_tensors
        moving = [i for i, tangent in enumerate(tangents) if tangent is not None and operands[i].is_floating_point()]
        r = torch.zeros_like(z) if dr is None else dr
        t = torch.zeros_like(s) if dt is None else dt
        if moving:
            product = _product(ctx.kind, operands, moving, z, s)
            change_r, change_t = _push(product, [operands[i] for i in moving], [tangents[i] for i in moving], z, s)
            r, t = r - change_r, t - change_t
        result: Pair = ctx.kind(*operands).solve(r, t)
        return result

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], kind: Callable[..., System], *tensors: Tensor) -> tuple[Pair, Any]:
        """Fold the mapped dimension into the batch."""
        count = info.batch_size
        folded = []
        for x, dim in zip(tensors, in_dims[1:], strict=True):
            moved = x.unsqueeze(0).expand(count, *x.shape) if dim is None else x.movedim(dim, 0)
            folded.append(moved.reshape(count * moved.shape[1], *moved.shape[2:]))
        z, s = _apply(kind, *folded)
        size = len(z) // max(count, 1)
        return (z.unflatten(0, (count, size)), s.unflatten(0, (count, size))), (0, 0)


def _wanted_for(kind: Callable[..., System], wanted: Wanted, *operands: Tensor) -> System:
    return kind(*operands).wanted_for(wanted)


def _apply(kind: Callable[..., System], *tensors: Tensor) -> Pair:
    result: Pair = _Solve.apply(kind, *tensors)  # type: ignore[no-untyped-call]
    return result


def _product(
    kind: Callable[..., System], operands: list[Tensor], moving: list[int], z: Tensor, s: Tensor
) -> Callable[..., Pair]:
    def multiply(*values: Tensor) -> Pair:
        replaced = list(operands)
        for i, value in zip(moving, values, strict=True):
            replaced[i] = value
        return kind(*replaced).multiply(z, s)

    return multiply


def _push(function: Callable[..., Pair], at: list[Tensor], tangents: list[Any], *like: Tensor) -> Pair:
    """Forward mode as the transpose of reverse mode: forward levels cannot be nested, and this may run inside one."""

    def pull(*cotangents: Tensor) -> Any:
        return torch.func.vjp(function, *at)[1](cotangents)

    result: Pair = torch.func.vjp(pull, *(torch.zeros_like(x) for x in like))[1](tuple(tangents))
    return result
