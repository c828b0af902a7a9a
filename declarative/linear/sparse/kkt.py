"""The KKT matrices of a batch: one symbolic analysis and one factorisation for all, inertia, and accurate solutions.

    K = [ H + diag(primal)   A'          ]
        [ A                 -diag(dual)  ]

Pivots are chosen before any value is known, so a pivot may turn out to be zero. It is then replaced by a small one,
for that problem alone, and the solution is corrected with the true matrix. Where that does not converge, the problem
gets an order made for the entries that it has, kept for others like it; what is left even then is told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...kernels.library import available
from ...kernels.plan import Plan
from . import core_factor, torch_factor
from .entries import LowerTriangle
from .index_sets import NoPattern
from .ldl import LOST, BatchFactor
from .ordering import HEAVY
from .pattern import Pattern
from .symbolic import Preference, Symbolic, analyse

Kernel = Literal["core", "torch"]
PREFERS: dict[Kernel, Preference] = {"core": "fill", "torch": "depth"}
WORK = 50_000_000  # multiplications of a factorisation that are too many for plain torch
REMEMBERED = 1_000_000  # entries of factors whose orders are kept


class Solved(NamedTuple):
    """(z, s) with K [z; s] = [r; t], and how well each problem's equation holds."""

    z: Tensor  # like r
    s: Tensor  # like t
    error: Tensor  # the residual relative to the terms that it is left of, (batch,)


def choose_kernel(kernel: Kernel | None, device: torch.device) -> Kernel:
    """The compiled core on the CPU if it is there, else plain torch, which runs anywhere."""
    if kernel == "core" and not available():
        raise ValueError("kernel='core' needs the compiled core, which was not built: use kernel='torch'")
    return kernel or ("core" if device.type == "cpu" and available() else "torch")


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

        Raises:
            NoPattern: the factor would not be sparse.
        """
        kernel = choose_kernel(kernel, torch.device(device))
        k = pattern.jacobian.shape[0]
        firm = np.arange(k) < (k if equalities is None else equalities)
        sizes = None if strengths is None else strengths.detach().abs().double().cpu().numpy()
        symbolic = analyse(pattern, PREFERS[kernel], firm, sizes)
        if kernel == "torch" and symbolic.work > WORK:
            raise NoPattern(f"a factorisation takes {symbolic.work:,} multiplications; the compiled core is needed")
        return cls(symbolic, kernel)

    @property
    def m(self) -> int:
        """The number of unknowns."""
        return self.symbolic.pattern.hessian.shape[0]

    @cached_property
    def hessian_form(self) -> LowerTriangle:
        """How H is stored."""
        return LowerTriangle(self.symbolic.pattern.hessian)

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
    ) -> LdlFactorisation:
        """Factor the matrices of a batch; what is not given is zero. Not differentiable."""
        batch = len(hessian)
        primal = hessian.new_zeros(batch, self.m) if primal is None else primal
        dual = hessian.new_zeros(batch, self.k) if dual is None else dual
        parts = tuple(part.detach().double() for part in (hessian, jacobian, primal, -dual))
        if self.kernel == "torch":
            entries = torch.cat(parts, 1).T.contiguous()
            factor: BatchFactor = torch_factor.factorise(self._torch_plan(hessian.device), entries)
        else:
            parts = tuple(part.cpu() for part in parts)
            factor = core_factor.factorise_batch(self.plan, self._memory, parts)
        return LdlFactorisation(self, parts, hessian, factor)

    @cached_property
    def reordered_for(self) -> Callable[[bytes], Reordered | None]:
        """The order for problems of which certain entries are zero, kept for later; None: their factor is too large."""
        count = min(max(REMEMBERED // (self.symbolic.fill + 1), 2), REMEMBERED // 5000)
        return lru_cache(count)(partial(_order_for, self.symbolic.pattern, self.kernel))

    @cached_property
    def plan(self) -> Plan:
        """The arrays of the analysis, for the core."""
        symbolic = self.symbolic
        kinds = symbolic.pair, symbolic.is_constraint
        of_l = symbolic.starts, symbolic.rows, symbolic.columns
        return Plan(symbolic.place, symbolic.slots, *symbolic.coordinates, *kinds, *of_l, *symbolic.by_rows)

    @cached_property
    def _memory(self) -> core_factor.Memory:
        return core_factor.Memory()

    @cached_property
    def _torch_plan(self) -> Callable[[torch.device], torch_factor.Plan]:
        return lru_cache(partial(torch_factor.Plan.of, self.symbolic))


class Reordered(NamedTuple):
    """The analysis of those entries of a pattern that some problems have, in an order made for them."""

    kkt: SparseKKT
    hessian: Tensor  # which entries of H these are
    jacobian: Tensor  # and which of A


def _order_for(pattern: Pattern, kernel: Kernel, flags: bytes) -> Reordered | None:
    ends = np.cumsum([len(pattern.hessian), len(pattern.jacobian), pattern.jacobian.shape[0]])
    curved, sloped, firm, heavy = np.split(np.frombuffer(flags, bool), ends)
    curved, sloped = np.flatnonzero(curved), np.flatnonzero(sloped)
    entries = Pattern(pattern.hessian.take(curved), pattern.jacobian.take(sloped))
    try:
        symbolic = analyse(entries, PREFERS[kernel], firm, heavy[sloped].astype(float))
    except NoPattern:
        return None
    return Reordered(SparseKKT(symbolic, kernel), torch.from_numpy(curved), torch.from_numpy(sloped))


@dataclass(frozen=True, eq=False)
class LdlFactorisation:
    """The factored matrices of a batch."""

    kkt: SparseKKT
    parts: tuple[Tensor, ...]  # the values of H, A and the two diagonals
    like: Tensor  # a tensor of the type and on the device that results should have
    factor: BatchFactor

    def inertia(self) -> Tensor:  # (batch, 3)
        """How many eigenvalues of each matrix are above, below and at zero.

        The last number counts pivots that cannot be told from zero. One of these does not make the matrix singular: an
        order of pivots is chosen before their values are known, and a good one may not be good for all of them.
        """
        above, below, _, _ = self._counts.unbind(-1)
        return torch.stack([above, below, self.kkt.symbolic.size - above - below], -1)

    def convex(self) -> Tensor:  # (batch,)
        """Whether a matrix, with small numbers in place of pivots that are zero, has m eigenvalues above zero, k below.

        Then H is positive definite along the constraints: a step with it goes to a minimum. If the corrections of a
        solution converge in spite of replaced pivots, the same is true of the matrix itself.
        """
        return self._counts[:, 0] + self._counts[:, 2] == self.kkt.m  # above zero, and replaced by what is

    @cached_property
    def _counts(self) -> Tensor:
        return self.factor.counts().to(self.like.device)

    def solve(self, r: Tensor, t: Tensor, rescue: bool = True) -> Solved:  # (batch, m), (batch, k)
        """Solve for one right-hand side, or for several: (batch, m, count), (batch, k, count).

        Where the order of pivots does not suit the values of a problem, ``rescue`` finds another one for it.
        """
        x, error = self.solve_stacked(torch.cat([r, t], 1), rescue)
        return Solved(x[:, : self.kkt.m], x[:, self.kkt.m :], error)

    def solve_stacked(self, right: Tensor, rescue: bool = True) -> tuple[Tensor, Tensor]:
        """The same for [r; t]: [z; s] and the error."""
        single = right.dim() == 2
        right = right.detach().double()
        right = (right.unsqueeze(-1) if single else right).to(self.parts[0].device).contiguous()
        x, error = self.factor.solve(right)
        lost = error > LOST
        if rescue and bool(lost.any()):
            self._rescue(lost, right, x, error)
        return (x.squeeze(-1) if single else x).to(self.like), error.to(self.like)

    def _rescue(self, lost: Tensor, right: Tensor, x: Tensor, error: Tensor) -> None:
        """Solve these problems with orders made for their own values, in place, where that is any better."""
        self._reorder(lost)
        for rows, factor in self._reordered:
            if bool(lost[rows].any()):
                found, now = factor.solve(right[rows])
                better = lost[rows] & (now < error[rows])
                x[rows[better]], error[rows[better]] = found[better], now[better]

    @cached_property
    def _reordered(self) -> list[tuple[Tensor, BatchFactor]]:
        """Problems that needed an order of their own, and their factors: those that need the same one together."""
        return []

    def _reorder(self, lost: Tensor) -> None:
        """Factor those of these problems anew that have not been so before."""
        fresh = lost.clone()
        for rows, _ in self._reordered:
            fresh[rows] = False
        for flags, rows in self._alike(fresh.nonzero().flatten()):
            other = self.kkt.reordered_for(flags)
            if other is not None:
                hessian, jacobian, primal, dual = (part[rows] for part in self.parts)
                curved, sloped = other.hessian.to(rows.device), other.jacobian.to(rows.device)
                again = other.kkt.factorise(hessian[:, curved], jacobian[:, sloped], primal, -dual)
                self._reordered.append((rows, again.factor))

    def _alike(self, rows: Tensor) -> list[tuple[bytes, Tensor]]:
        """These problems by what their orders depend on: which entries are there, which are large, what is firm."""
        hessian, jacobian, primal, dual = (part[rows] for part in self.parts)
        form = self.kkt.symbolic.pattern.jacobian
        largest = form.largest_effect(jacobian, torch.ones_like(primal))
        heavy = jacobian.abs() >= HEAVY * form.scale_rows(torch.ones_like(jacobian), largest)
        alike: dict[bytes, list[int]] = {}
        for row, flags in enumerate(torch.cat([hessian != 0, jacobian != 0, dual == 0, heavy], 1).cpu().numpy()):
            alike.setdefault(flags.tobytes(), []).append(row)
        return [(flags, rows[same]) for flags, same in alike.items()]
