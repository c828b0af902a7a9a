"""The KKT system without its matrix: conjugate gradients on Hessian-vector products, along the constraints.

The solution is z = A'(AA')^-1 t plus something that the constraints leave free, and there the Hessian of a minimum is
positive definite: [H A'; A 0] is solved by conjugate gradients with the constraint preconditioner [D A'; A 0], where D
is an estimate of the diagonal of H. Every iterate meets the constraints; memory grows with k m, not with m^2.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from ..errors import NumericalWarning
from .contract import System
from .dense import Pair, Solve, factorise_diagonal, or_one, times

PROBES = 8  # of the diagonal, by random signs
PATIENCE = 1000  # iterations


class MatrixFreeSystem(System):
    """The system of A (batch, k, m) and a Hessian that is known by its products with vectors.

    The solution is not differentiable. Where the iteration does not converge the dense system is solved ``instead``;
    ``required`` says that this is against the user's wish, and is told.
    """

    def __init__(
        self,
        curvature: Callable[[Tensor], Tensor],  # (batch, m) -> (batch, m)
        probe: Callable[[Tensor], Tensor],  # the same for several vectors, (batch, count, m)
        jacobian: Tensor,
        active: Tensor,
        instead: Callable[[], System],
        required: bool,
    ) -> None:
        super().__init__()
        self.curvature = curvature
        self.probe = probe
        self.jacobian = jacobian
        self.active = active
        self.instead = instead
        self.required = required

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        mask = self.active.to(z.dtype)
        rows = self.jacobian * mask.unsqueeze(-1)
        return self.curvature(z) + times(rows.mT, s), times(rows, z) - (1 - mask) * s

    def factorise(self) -> Solve:
        diagonal = self._diagonal()
        precondition = factorise_diagonal(diagonal, self.jacobian, self.active, None)

        def solve(r: Tensor, t: Tensor) -> Pair:
            z, s = self._iterate(precondition, r, t, diagonal)
            error = self._error(z, s, r, t, diagonal)
            if bool((error <= torch.finfo(r.dtype).eps ** 0.7).all()):
                return z, s
            if self.required:
                warnings.warn(
                    f"conjugate gradients left a relative residual of {float(error.amax()):.0e}: the Hessian is "
                    "indefinite along the constraints or too ill-conditioned; the dense system was solved instead.",
                    NumericalWarning,
                    stacklevel=2,
                )
            return self.instead().solve(r, t)

        return solve

    def solve(self, r: Tensor, t: Tensor) -> Pair:
        return self.factorise()(r, t)

    def _diagonal(self) -> Tensor:  # (batch, m)
        """An estimate of the Hessian's diagonal, positive: the mean of d * (H d) over random signs d."""
        size, _, m = self.jacobian.shape
        generator = torch.Generator().manual_seed(0)
        signs = 2.0 * torch.randint(2, (PROBES, m), generator=generator, device="cpu") - 1
        signs = signs.to(self.jacobian).expand(size, PROBES, m)
        samples = signs * self.probe(signs)
        estimate, mean = samples.mean(1).abs(), samples.mean((1, 2)).abs().unsqueeze(-1)
        # Where the off-diagonal entries make noise, no preconditioner is better than that.
        noise = (samples[:, ::2].mean(1) - samples[:, 1::2].mean(1)).abs().mean(-1, keepdim=True)
        estimate = torch.where(noise < 0.5 * mean, estimate, mean)
        return torch.maximum(estimate, 1e-3 * or_one(mean))

    def _iterate(self, precondition: Solve, r: Tensor, t: Tensor, diagonal: Tensor) -> Pair:
        eps = torch.finfo(r.dtype).eps
        z, s = precondition(torch.zeros_like(r), t)  # on the constraints
        residual = r - self.curvature(z)
        none = torch.zeros_like(t)
        whole = torch.maximum(r.abs(), residual.abs()).amax(-1, keepdim=True)
        for _ in range(2):  # the second time what rounding errors have left of the constraints in it
            direction, s = precondition(residual, none)
            residual = residual - self._pulled(s)
        step = direction
        reduced = (residual * direction).sum(-1, keepdim=True)
        # Below the rounding errors of what the constraints have taken up there is nothing to follow.
        noise = (eps * whole).square() / or_one(diagonal.amax(-1, keepdim=True))
        goal = torch.maximum(eps**1.8 * reduced.abs(), noise)
        # Unless it was asked for, it must not cost more than a part of assembling the matrix.
        for _ in range(max(PATIENCE, r.shape[-1]) if self.required else r.shape[-1] // 4):
            product = self.curvature(step)
            curved = (step * product).sum(-1, keepdim=True)
            running = (curved > 0) & (reduced > goal)
            if not bool(running.any()):
                break
            length = torch.where(running, reduced / torch.where(running, curved, 1.0), 0.0)
            z, residual = z + length * step, residual - length * product
            direction, s = precondition(residual, none)
            # What the constraints take up of the residual belongs to s; keeping it would only grow rounding errors.
            residual = residual - self._pulled(s)
            direction_reduced = (residual * direction).sum(-1, keepdim=True)
            step = direction + torch.where(running, direction_reduced / or_one(reduced), 0.0) * step
            reduced = torch.where(running, direction_reduced, reduced)
        return z, precondition(r - self.curvature(z), none)[1]

    def _error(self, z: Tensor, s: Tensor, r: Tensor, t: Tensor, diagonal: Tensor) -> Tensor:  # (batch,)
        """The relative residual of both halves of the system."""
        left = r - self.curvature(z)
        error = (left - self._pulled(s)).abs().amax(-1) / or_one(torch.maximum(r.abs(), left.abs()).amax(-1))
        mask = self.active.to(z.dtype)
        rows = self.jacobian * mask.unsqueeze(-1)
        if not rows.shape[1]:
            return error
        gap = (times(rows, z) - t * mask).abs().amax(-1)
        # Relative also to the step that r alone would make: a z that should vanish may be rounding errors of that.
        size = torch.maximum(times(rows.abs(), z.abs()) + t.abs() * mask, times(rows.abs(), r.abs() / diagonal))
        return torch.maximum(error, gap / or_one(size.amax(-1)))

    def _pulled(self, s: Tensor) -> Tensor:
        return times(self.jacobian.mT, s * self.active.to(s.dtype))
