"""The linear systems of back-propagation: factor once, solve many.

For a batch of problems with Hessian H, constraint Jacobian A and a mask D = diag(active) of the constraints that hold
with equality, the system is symmetric and has the same shape whatever is active:

    [ H      A' D    ] [z]   [r]
    [ D A   -(I - D) ] [s] = [D t]        so that s_i = 0 for an inactive constraint.

How it is solved is decided per problem: by Cholesky and the Schur complement D A H^-1 A' D where H is positive
definite, by LU of the whole matrix where it is not, and by the least-norm solution where the matrix is singular.
"""

from __future__ import annotations

import abc
import warnings
from collections.abc import Callable
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from .errors import NumericalWarning

Pair = tuple[Tensor, Tensor]
Solve = Callable[[Tensor, Tensor], Pair]

CORRECTIONS = 3  # of a solution by a nearby factorisation; each gains as many digits as the two matrices share


def full_precision(like: Tensor) -> torch.autocast:
    """Switch autocast off: whoever differentiates may be inside of it, and a gradient needs all of its digits."""
    return torch.autocast(like.device.type, enabled=False)


class System(abc.ABC):
    """A symmetric linear system, one per problem of the batch, as a function of tensors (its operands).

    A structured system says how it multiplies and how it is solved. Derivatives of the solution, to any order, forward
    and reverse, follow from these two.
    """

    def __init__(self, *operands: Tensor) -> None:
        self.operands = operands

    @abc.abstractmethod
    def multiply(self, z: Tensor, s: Tensor) -> Pair:  # (batch, m), (batch, k)
        """The matrix times (z, s), differentiable in the operands."""

    @abc.abstractmethod
    def factorise(self) -> Solve:
        """Return the function (r, t) -> (z, s). Called without gradients, on plain tensors, batch first."""

    def solve(self, r: Tensor, t: Tensor) -> Pair:
        """(z, s) for the right-hand side (r, t), differentiable in both and in the operands."""
        return _apply(type(self), r, t, *self.operands)


class _Solve(torch.autograd.Function):
    """x = K^-1 b with K symmetric: dx = K^-1 (db - dK x), and the transpose of that."""

    @staticmethod
    def forward(kind: type[System], r: Tensor, t: Tensor, *operands: Tensor) -> Pair:
        return kind(*operands).factorise()(r, t)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Pair) -> None:
        kind, _, _, *operands = inputs
        ctx.kind = kind
        ctx.save_for_backward(*output, *operands)
        ctx.save_for_forward(*output, *operands)
        ctx.set_materialize_grads(True)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        with full_precision(cotangents[0]):
            return _Solve._backward(ctx, *cotangents)

    @staticmethod
    def _backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        z, s, *operands = ctx.saved_tensors
        r, t = ctx.kind(*operands).solve(*cotangents)
        moving = [i for i, x in enumerate(operands) if ctx.needs_input_grad[3 + i]]
        grads: list[Tensor | None] = [None] * len(operands)
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
    def vmap(info: Any, in_dims: tuple[Any, ...], kind: type[System], *tensors: Tensor) -> tuple[Pair, Any]:
        """Fold the mapped dimension into the batch."""
        count = info.batch_size
        folded = []
        for x, dim in zip(tensors, in_dims[1:], strict=True):
            moved = x.unsqueeze(0).expand(count, *x.shape) if dim is None else x.movedim(dim, 0)
            folded.append(moved.reshape(count * moved.shape[1], *moved.shape[2:]))
        z, s = _apply(kind, *folded)
        size = len(z) // max(count, 1)
        return (z.unflatten(0, (count, size)), s.unflatten(0, (count, size))), (0, 0)


def _apply(kind: type[System], *tensors: Tensor) -> Pair:
    result: Pair = _Solve.apply(kind, *tensors)  # type: ignore[no-untyped-call]
    return result


def _product(
    kind: type[System], operands: list[Tensor], moving: list[int], z: Tensor, s: Tensor
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


class DenseSystem(System):
    """The system assembled from H (batch, m, m), A (batch, k, m) and active (batch, k)."""

    def __init__(self, hessian: Tensor, jacobian: Tensor, active: Tensor) -> None:
        super().__init__(hessian, jacobian, active)
        self.hessian = hessian
        self.jacobian = jacobian
        self.active = active

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        mask = self.active.to(z.dtype)
        rows = self.jacobian * mask.unsqueeze(-1)
        top = times(self.hessian, z) + times(rows.mT, s)
        return top, times(rows, z) - (1 - mask) * s

    def factorise(self) -> Solve:
        return factorise_dense(self.hessian, self.jacobian, self.active, "the KKT matrix")


class HessianSystem(System):
    """H z = r without constraint rows, for the approximate rules; s = 0.

    A singular H is not an accident here (for an eigenvector, the Lagrangian's Hessian always is): the rules that use
    this system are defined by the pseudo-inverse.
    """

    def __init__(self, hessian: Tensor) -> None:
        super().__init__(hessian)
        self.hessian = hessian

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        return times(self.hessian, z), s

    def factorise(self) -> Solve:
        none = self.hessian.new_zeros(self.hessian.shape[0], 0)
        inner = factorise_dense(
            self.hessian, none.unsqueeze(-1).expand(-1, 0, self.hessian.shape[-1]), none.bool(), None
        )

        def solve(r: Tensor, t: Tensor) -> Pair:
            return inner(r, t[:, :0])[0], torch.zeros_like(t)

        return solve


class Prepared(Protocol):
    """The factorisation of a system close to the wanted one, that a forward solver has left."""

    def solve_system(self, r: Tensor, t: Tensor) -> Pair:
        """(z, s) for its own matrix."""

    def take(self, rows: Tensor) -> Self:
        """That of the problems at these positions."""


class PreparedSystem(System):
    """A system solved by what a solver has left, and corrected with the true matrix until nothing is left to correct.

    The matrix itself is neither assembled nor factored: for m unknowns that saves m reverse passes and O(m^3). The
    solution is not differentiable. Where the corrections do not converge, ``instead`` is solved.
    """

    def __init__(
        self, factor: Prepared, product: Callable[[Tensor, Tensor], Pair], instead: Callable[[], System]
    ) -> None:
        super().__init__()
        self.factor = factor
        self.product = product
        self.instead = instead

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        return self.product(z, s)

    def factorise(self) -> Solve:
        def solve(r: Tensor, t: Tensor) -> Pair:
            z, s = self.factor.solve_system(r, t)
            eps = torch.finfo(r.dtype).eps
            for _ in range(CORRECTIONS):
                top, bottom = self.product(z, s)
                change_z, change_s = self.factor.solve_system(r - top, t - bottom)
                z, s = z + change_z, s + change_s
                if _settled(change_z, z, eps) and _settled(change_s, s, eps):
                    return z, s
            return self.instead().solve(r, t)

        return solve

    def solve(self, r: Tensor, t: Tensor) -> Pair:
        return self.factorise()(r, t)


def _settled(change: Tensor, value: Tensor, eps: float) -> bool:
    """Whether a correction has changed no problem by more than rounding errors."""
    if not value.shape[-1]:
        return True
    return bool((change.abs().amax(-1) <= 100 * eps * value.abs().amax(-1)).all())


def times(matrix: Tensor, vector: Tensor) -> Tensor:
    """A batch of matrices times a batch of vectors."""
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def rank_tolerance(matrix: Tensor) -> float:
    """Eigenvalues below this fraction of the largest are zero to working precision."""
    return 10 * matrix.shape[-1] * torch.finfo(matrix.dtype).eps


def factorise_dense(hessian: Tensor, jacobian: Tensor, active: Tensor, name: str | None) -> Solve:
    """Factor the dense system of every problem by the cheapest way that is safe for it.

    Rows of A are brought to unit length and H to unit size first, so that what counts as singular does not depend on
    the units of objective and constraints. Both scalings treat all of u alike: the least-norm z stays the least-norm z.

    Args:
        name: what a warning calls the matrix where it is singular; None for no warning.
    """
    eps = torch.finfo(hessian.dtype).eps
    mask = active.to(hessian.dtype)  # (batch, k)
    size = or_one(hessian.abs().amax((-2, -1)))  # (batch,)
    length = or_one(torch.linalg.vector_norm(jacobian, dim=-1))  # (batch, k)
    scaled = hessian / size[:, None, None]
    rows = jacobian * (mask / length).unsqueeze(-1)
    finite = scaled.isfinite().all(-1).all(-1) & rows.isfinite().all(-1).all(-1)
    if not finite.all():
        scaled = torch.where(
            finite[:, None, None], scaled, torch.eye(scaled.shape[-1], dtype=scaled.dtype, device=scaled.device)
        )
        rows = torch.where(finite[:, None, None], rows, 0.0)
        mask = mask * finite.unsqueeze(-1)
        _warn(~finite, "a derivative is not finite", "their gradient is NaN")

    schur, definite = _factorise_schur(scaled, rows, mask, eps)
    rest = ~definite
    whole = _factorise_whole(scaled[rest], rows[rest], mask[rest], name) if rest.any() else None

    def solve_scaled(r: Tensor, t: Tensor) -> Pair:
        if whole is None:
            return schur(r, t)
        z, s = schur(r, t)
        z[rest], s[rest] = whole(r[rest], t[rest])
        return z, s

    def solve(r: Tensor, t: Tensor) -> Pair:
        r, t = r / size[:, None], t * mask / length
        z, s = solve_scaled(r, t)
        # One step of iterative refinement costs two products and removes what the Schur complement lost.
        change_z, change_s = solve_scaled(r - times(scaled, z) - times(rows.mT, s), t - times(rows, z) + (1 - mask) * s)
        z, s = z + change_z, s + change_s
        if not finite.all():
            z = torch.where(finite[:, None], z, torch.nan)
        return z, s * size[:, None] / length * mask

    return solve


def _factorise_schur(hessian: Tensor, rows: Tensor, mask: Tensor, eps: float) -> tuple[Solve, Tensor]:
    """z = H^-1 (r - A' s) with (A H^-1 A') s = A H^-1 r - t, and for which problems this is accurate."""
    factor, info = torch.linalg.cholesky_ex(hessian)
    definite = (info == 0) & _well_conditioned(factor, eps)
    identity = torch.eye(hessian.shape[-1], dtype=hessian.dtype, device=hessian.device)
    factor = torch.where(definite[:, None, None], factor, identity)
    half = torch.linalg.solve_triangular(factor, rows.mT, upper=False)  # L^-1 A', (batch, m, k)
    complement = half.mT @ half + torch.diag_embed(1 - mask)
    small, info = torch.linalg.cholesky_ex(complement)
    definite = definite & (info == 0) & _well_conditioned(small, eps)
    identity = torch.eye(mask.shape[-1], dtype=hessian.dtype, device=hessian.device)
    small = torch.where(definite[:, None, None], small, identity)

    def solve(r: Tensor, t: Tensor) -> Pair:
        first = torch.linalg.solve_triangular(factor, r.unsqueeze(-1), upper=False)
        s = torch.cholesky_solve(half.mT @ first - t.unsqueeze(-1), small)
        z = torch.linalg.solve_triangular(factor.mT, first - half @ s, upper=True)
        return z.squeeze(-1), s.squeeze(-1)

    return solve, definite


def _well_conditioned(factor: Tensor, eps: float) -> Tensor:
    """Whether a Cholesky factor leaves half of the digits: past that, the whole matrix is the safer way."""
    diagonal = torch.diagonal(factor, dim1=-2, dim2=-1)
    if not diagonal.shape[-1]:
        return torch.ones(diagonal.shape[:-1], dtype=torch.bool, device=diagonal.device)
    ratio = (diagonal.amin(-1) / diagonal.amax(-1)).square()
    result: Tensor = ratio > eps**0.5
    return result


def _factorise_whole(hessian: Tensor, rows: Tensor, mask: Tensor, name: str | None) -> Solve:
    """LU where the pivots say that the matrix is regular, its spectrum where they do not."""
    m = hessian.shape[-1]
    matrix = kkt_matrix(hessian, rows, mask)
    factor, pivots, info = torch.linalg.lu_factor_ex(matrix)
    diagonal = torch.diagonal(factor, dim1=-2, dim2=-1).abs()
    doubtful = ~((info == 0) & (diagonal.amin(-1) > torch.finfo(matrix.dtype).eps ** (2 / 3) * diagonal.amax(-1)))
    spectral = _factorise_spectral(matrix[doubtful], name) if doubtful.any() else None
    if spectral is not None:
        factor[doubtful] = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)

    def solve(r: Tensor, t: Tensor) -> Pair:
        right = torch.cat([r, t], -1).unsqueeze(-1)
        result = torch.linalg.lu_solve(factor, pivots, right)
        if spectral is not None:
            result[doubtful] = spectral(right[doubtful])
        return result[:, :m, 0], result[:, m:, 0]

    return solve


def _factorise_spectral(matrix: Tensor, name: str | None) -> Callable[[Tensor], Tensor]:
    values, vectors = torch.linalg.eigh(matrix)
    size = values.abs()
    regular = size > rank_tolerance(matrix) * size.amax(-1, keepdim=True)
    inverse = torch.where(regular, 1 / torch.where(regular, values, 1.0), 0.0)
    if name is not None and not regular.all():
        _warn(
            ~regular.all(-1),
            f"{name} is singular (redundant constraints, a repeated eigenvalue, a flat objective or a kink)",
            "the least-norm solution was used; check(node, x) tells more",
        )

    def solve(right: Tensor) -> Tensor:
        result: Tensor = vectors @ (inverse.unsqueeze(-1) * (vectors.mT @ right))
        return result

    return solve


def kkt_matrix(hessian: Tensor, rows: Tensor, mask: Tensor) -> Tensor:  # (batch, m + k, m + k)
    """[H, A' D; D A, -(I - D)], with the mask already applied to the rows."""
    top = torch.cat([hessian, rows.mT], -1)
    bottom = torch.cat([rows, -torch.diag_embed(1 - mask)], -1)
    return torch.cat([top, bottom], -2)


def or_one(size: Tensor) -> Tensor:
    """A scale to divide by: 1 where it is zero or not finite."""
    return torch.where((size > 0) & size.isfinite(), size, 1.0)


def _warn(which: Tensor, why: str, so: str) -> None:
    warnings.warn(f"{int(which.sum())} problem(s) of the batch: {why}; {so}.", NumericalWarning, stacklevel=2)
