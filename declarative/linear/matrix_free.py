"""The KKT system without its matrix: conjugate gradients on Hessian-vector products, along the constraints.

The solution is z = A'(AA')^-1 t plus something that the constraints leave free, and there the Hessian of a minimum is
positive definite: [H A'; A 0] is solved by conjugate gradients with the constraint preconditioner [D A'; A 0], where D
is an estimate of the diagonal of H. Every iterate meets the constraints; memory grows with k m, not with m^2.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from ..errors import NumericalWarning
from .contract import Factorisation, KktSystem, Pair, Solve, or_one, times
from .dense import DenseFactorisation, DenseSystem
from .diagonal import factorise_diagonal
from .directions import random_directions
from .forms import Full, kkt_product

PROBES = 8  # of the diagonal, by random signs
MAX_ITERATIONS = 1000  # iterations


class MatrixFreeSystem(KktSystem):
    """The system of A (batch, k, m) and a Hessian that is known by its products with vectors.

    The solution is not differentiable. Where the iteration does not converge the dense system is solved ``instead``;
    ``required`` says that this is against the user's wish, and is reported.
    """

    def __init__(
        self,
        curvature: Callable[[Tensor], Tensor],  # (batch, m) -> (batch, m)
        probe: Callable[[Tensor], Tensor],  # the same for several vectors, (batch, count, m)
        jacobian: Tensor,
        active: Tensor,
        instead: Callable[[], DenseSystem],
        required: bool,
    ) -> None:
        super().__init__()
        self.product = curvature
        self.probe = probe
        self.jacobian = jacobian
        self.active = active
        self.instead = instead
        self.required = required

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        mask = self.active.to(z.dtype)
        return kkt_product(self.product(z), Full(), self.jacobian * mask.unsqueeze(-1), 1 - mask, z, s)

    def factorise(self, warn: bool = True) -> MatrixFreeFactorisation:
        return MatrixFreeFactorisation(self, warn)

    def solve(self, r: Tensor, t: Tensor) -> Pair:
        return self.factorise()(r, t)

    def with_active(self, active: Tensor) -> MatrixFreeSystem:
        other = copy.copy(self)
        other.active = active
        return other

    def stored_hessian(self) -> Tensor | None:
        return None

    def diagonal_entries(self) -> Tensor:  # (batch, m)
        return self.estimate

    def magnitude(self, z: Tensor) -> Tensor:  # (batch, m)
        return torch.maximum(self.product(z).abs(), self.estimate * z.abs())

    def least_change(self, size: Tensor) -> Tensor:  # (batch, m)
        return size / self.estimate

    @functools.cached_property
    def estimate(self) -> Tensor:  # (batch, m)
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


class MatrixFreeFactorisation(Factorisation):
    """A preconditioner, and the iteration that it serves."""

    def __init__(self, system: MatrixFreeSystem, warn: bool) -> None:
        self.system = system
        self.warn = warn
        self.jacobian, self.active = system.jacobian, system.active
        self.curvature_times = system.product
        self._precondition = factorise_diagonal(system.estimate, self.jacobian, self.active, None)

    @functools.cached_property
    def _dense(self) -> DenseFactorisation:
        return self.system.instead().with_active(self.active).factorise(self.warn)

    def __call__(self, r: Tensor, t: Tensor) -> Pair:
        diagonal = self.system.estimate
        z, s, _ = self._iterate(self._precondition, r, t, diagonal)
        error = self._error(z, s, r, t, diagonal)
        if bool((error <= torch.finfo(r.dtype).eps ** 0.7).all()):
            return z, s
        if self.system.required and self.warn:
            warnings.warn(
                f"conjugate gradients left a relative residual of {float(error.amax()):.0e}: the Hessian is "
                "indefinite along the constraints or too ill-conditioned; the dense system was solved instead.",
                NumericalWarning,
                stacklevel=2,
            )
        return self._dense(r, t)

    def curvature(self) -> Tensor:  # (batch,)
        """Along the constraints: 1 if it is positive in the directions that the iteration tries, from a random one."""
        diagonal = self.system.estimate
        r = random_directions(len(diagonal), diagonal) * diagonal
        *_, positive = self._iterate(self._precondition, r, torch.zeros_like(self.active, dtype=r.dtype), diagonal)
        if bool(positive.all()):
            return torch.ones(len(diagonal), dtype=torch.int64, device=diagonal.device)
        return self._dense.curvature()

    def flat_directions(self) -> tuple[Tensor, Tensor]:  # (count,), (count, m)
        return self._dense.flat_directions()

    def _iterate(self, precondition: Solve, r: Tensor, t: Tensor, diagonal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(z, s), and whether all the directions that were tried have positive curvature, (batch,)."""
        eps = torch.finfo(r.dtype).eps
        z, s = precondition(torch.zeros_like(r), t)  # on the constraints
        residual = r - self.curvature_times(z)
        none = torch.zeros_like(t)
        whole = torch.maximum(r.abs(), residual.abs()).amax(-1, keepdim=True)
        direction = torch.zeros_like(r)
        for _ in range(2):  # the second time what rounding errors have left of the constraints in it
            direction, s = precondition(residual, none)
            residual = residual - self._pulled(s)
        step = direction
        reduced = (residual * direction).sum(-1, keepdim=True)
        # Below the rounding errors of what the constraints have taken up there is nothing to follow.
        noise = (eps * whole).square() / or_one(diagonal.amax(-1, keepdim=True))
        goal = torch.maximum(eps**1.8 * reduced.abs(), noise)
        positive = torch.ones_like(reduced, dtype=torch.bool)
        # Unless it was asked for, it must not cost more than a part of assembling the matrix.
        for _ in range(max(MAX_ITERATIONS, r.shape[-1]) if self.system.required else r.shape[-1] // 4):
            product = self.curvature_times(step)
            curved = (step * product).sum(-1, keepdim=True)
            running = (curved > 0) & (reduced > goal)
            positive = positive & ((curved > 0) | (reduced <= goal))
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
        return z, precondition(r - self.curvature_times(z), none)[1], positive.squeeze(-1)

    def _error(self, z: Tensor, s: Tensor, r: Tensor, t: Tensor, diagonal: Tensor) -> Tensor:  # (batch,)
        """The relative residual of both halves of the system."""
        left = r - self.curvature_times(z)
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
