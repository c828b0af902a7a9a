"""The KKT matrices of a batch: one symbolic analysis, one factorisation for all, inertia, and solutions to the last digits.

    K = [ H + diag(primal)   A'          ]   with the inertia (m, k, 0) if and only if H + diag(primal), together with
        [ A                 -diag(dual)  ]   A' diag(dual)^-1 A, is positive definite where equalities leave freedom.

Pivots are chosen before any value is known, so a pivot may turn out to be zero. It is then replaced by a small one,
for that problem alone, and the solution is corrected with the true matrix. Where that does not converge the matrix is
factored by SuperLU, which chooses its pivots by value, for that problem alone; what is left is told.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.sparse
import torch
from scipy.sparse.linalg import splu
from torch import Tensor

from . import levels
from .pattern import Pattern
from .symbolic import Symbolic, analyse

Kernel = Literal["numba", "torch"]
LOST = 1e-10  # a relative residual above this is not what a correct pivot order leaves


class Solved(NamedTuple):
    """(z, s) with K [z; s] = [r; t], and how well each problem's equation holds."""

    z: Tensor  # like r
    s: Tensor  # like t
    error: Tensor  # the residual relative to the terms that it is left of, (batch,)


def choose_kernel(device: torch.device) -> Kernel:
    """Numba on the CPU if it is installed (the extra ``accelerate``), else plain torch, which runs anywhere."""
    return "numba" if device.type == "cpu" and importlib.util.find_spec("numba") is not None else "torch"


@dataclass(frozen=True, eq=False)
class SparseKKT:
    """All that the KKT matrices of one pattern have in common.

    Example:
        >>> import torch
        >>> from declarative.linear.sparse import Pattern, SparseKKT
        >>> kkt = SparseKKT.of(Pattern.given(torch.eye(3), torch.ones(1, 3), 3, 1))
        >>> factor = kkt.factorise(torch.ones(2, 3), torch.ones(2, 3))  # H = I, A = [1 1 1], twice
        >>> factor.inertia()
        tensor([[3, 1, 0],
                [3, 1, 0]])
        >>> factor.solve(torch.zeros(2, 3), torch.ones(2, 1)).z
        tensor([[0.3333, 0.3333, 0.3333],
                [0.3333, 0.3333, 0.3333]])
    """

    symbolic: Symbolic
    kernel: Kernel

    @classmethod
    def of(
        cls,
        pattern: Pattern,
        equalities: int | None = None,
        strengths: Tensor | None = None,
        kernel: Kernel | None = None,
        device: torch.device | str = "cpu",
    ) -> SparseKKT:
        """Analyse a pattern.

        Args:
            pattern: of H and A.
            equalities: how many constraints, the first ones, are equalities; all by default.
            strengths: the usual size of each entry of A, (nonzeros,), if known: large ones make better pivots.
            kernel: which implementation; by default the fastest that is there.
            device: where the values will be.
        """
        kernel = choose_kernel(torch.device(device)) if kernel is None else kernel
        sizes = None if strengths is None else strengths.detach().abs().double().cpu().numpy()
        return cls(analyse(pattern, "fill" if kernel == "numba" else "depth", equalities, sizes), kernel)

    @property
    def m(self) -> int:
        """The number of unknowns."""
        return self.symbolic.pattern.hessian.shape[0]

    @property
    def k(self) -> int:
        """The number of constraints."""
        return self.symbolic.pattern.jacobian.shape[0]

    def factorise(
        self,
        hessian: Tensor,  # (batch, nonzeros of the lower triangle)
        jacobian: Tensor,  # (batch, nonzeros)
        primal: Tensor | None = None,  # (batch, m)
        dual: Tensor | None = None,  # (batch, k)
    ) -> Factorisation:
        """Factor the matrices of a batch; what is not given is zero. Not differentiable."""
        batch = len(hessian)
        primal = hessian.new_zeros(batch, self.m) if primal is None else primal
        dual = hessian.new_zeros(batch, self.k) if dual is None else dual
        parts = tuple(part.detach().double() for part in (hessian, jacobian, primal, -dual))
        if self.kernel == "torch":
            plan = self._levels(hessian.device)
            return Factorisation(self, parts, hessian, levels.factorise(plan, torch.cat(parts, 1).T.contiguous()))
        from .groups import factorise_groups

        parts = tuple(part.cpu() for part in parts)
        return Factorisation(self, parts, hessian, factorise_groups(self.symbolic, self._plan, parts))

    def multiply(
        self, hessian: Tensor, jacobian: Tensor, primal: Tensor, dual: Tensor, z: Tensor, s: Tensor
    ) -> tuple[Tensor, Tensor]:
        """K [z; s], differentiable in everything; shapes as in :meth:`factorise`, (batch, m) and (batch, k)."""
        curved, sloped = self.symbolic.pattern.hessian, self.symbolic.pattern.jacobian
        top = curved.multiply_symmetric(hessian, z) + primal * z + sloped.multiply_transposed(jacobian, s)
        return top, sloped.multiply(jacobian, z) - dual * s

    @cached_property
    def _plan(self) -> Any:
        from .kernels import Plan

        return Plan.of(self.symbolic)

    @cached_property
    def _plans(self) -> dict[torch.device, levels.Plan]:
        return {}

    def _levels(self, device: torch.device) -> levels.Plan:
        if device not in self._plans:
            self._plans[device] = levels.Plan.of(self.symbolic, device)
        return self._plans[device]


@dataclass(frozen=True, eq=False)
class Factorisation:
    """The factored matrices of a batch."""

    kkt: SparseKKT
    parts: tuple[Tensor, ...]  # the values of H, A and the two diagonals
    like: Tensor  # a tensor of the type and on the device that results should have
    factor: Any

    def inertia(self) -> Tensor:  # (batch, 3)
        """How many eigenvalues of each matrix are above, below and at zero.

        The last number counts pivots that could not be told from zero. Where there are any, the other two are those of
        a matrix nearby.
        """
        inertia: Tensor = self.factor.inertia().to(self.like.device)
        return inertia

    def solve(self, r: Tensor, t: Tensor) -> Solved:  # (batch, m), (batch, k), or (batch, m, count), (batch, k, count)
        """Solve for one right-hand side, or for several."""
        single = r.dim() == 2
        right = torch.cat([r, t], 1).detach().double()
        right = (right.unsqueeze(-1) if single else right).to(self.parts[0].device)
        x, error = self.factor.solve(right)
        for problem in (error > LOST).nonzero().flatten().tolist():
            self._rescue(problem, right, x, error)
        x = (x.squeeze(-1) if single else x).to(self.like)
        return Solved(x[:, : self.kkt.m], x[:, self.kkt.m :], error.to(self.like))

    def _rescue(self, problem: int, right: Tensor, x: Tensor, error: Tensor) -> None:
        """Solve one problem with pivots chosen by value, in place, if that is any better."""
        matrix = self._matrix(problem)
        b = right[problem].cpu().numpy()
        try:
            found = splu(matrix).solve(b)
        except RuntimeError:  # exactly singular
            return
        total = abs(matrix) @ np.abs(found) + np.abs(b)
        residual = np.abs(b - matrix @ found)
        kinds = [part for part in (slice(0, self.kkt.m), slice(self.kkt.m, None)) if residual[part].size]
        now = max((residual[part].max(0) / np.maximum(total[part].max(0), 1e-300)).max() for part in kinds)
        if now < float(error[problem]):
            x[problem], error[problem] = torch.from_numpy(found).to(x), now

    def _matrix(self, problem: int) -> Any:
        """K, as SciPy's sparse matrix."""
        pattern, m = self.kkt.symbolic.pattern, self.kkt.m
        curved, sloped, primal, dual = (part[problem].cpu().numpy() for part in self.parts)
        below = scipy.sparse.csc_matrix((curved, (pattern.hessian.rows, pattern.hessian.columns)), (m, m))
        hessian = below + scipy.sparse.tril(below, -1).T + scipy.sparse.diags(primal)
        jacobian = scipy.sparse.csc_matrix((sloped, (pattern.jacobian.rows, pattern.jacobian.columns)), (self.kkt.k, m))
        return scipy.sparse.bmat([[hessian, jacobian.T], [jacobian, scipy.sparse.diags(dual, shape=(self.kkt.k,) * 2)]], "csc")
