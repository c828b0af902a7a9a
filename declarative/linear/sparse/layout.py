"""The sparse layout: H and A by their entries, evaluated by colours, and one symbolic analysis for all KKT matrices."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..contract import Pair, or_one
from ..directions import irregular
from ..layout import ActiveSolution, KktSolution, Layout, Product, StepMatrix, products
from .compression import Compression, compress_hessian, compress_jacobian
from .entries import Entries, LowerTriangle
from .kkt import SparseKKT
from .ldl import LOST
from .pattern import Pattern
from .system import SparseSystem

_numbers = itertools.count()
_analyses: weakref.WeakValueDictionary[int, SparseKKT] = weakref.WeakValueDictionary()
SHIFTS = 40  # from the smallest to any, by factors of four
ITERATIONS, ROUGHLY = 12, 4  # towards the direction of least curvature
ROUGH_SHIFT = 1e-3  # the first one to try, if an order of magnitude is enough
SOLVED = 1e-8  # a relative residual above this: the matrix is singular, or as good as that


_library = torch.library.Library("declarative", "FRAGMENT")
_library.define(
    "solve_sparse_kkt(Tensor hessian, Tensor jacobian, Tensor primal, Tensor dual, Tensor r, Tensor t, int analysis) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)


def _solve_kkt(
    hessian: Tensor, jacobian: Tensor, primal: Tensor, dual: Tensor, r: Tensor, t: Tensor, analysis: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One operation for torch, so that a recording can contain it: [z; s], whether convex, the error, if it is regular.

    It is if no pivot had to be replaced, or a right-hand side without a pattern has a solution all the same.
    """
    factor = analysis_of(analysis).factorise(hessian, jacobian, primal, dual)
    right = torch.cat([r, t], 1)
    solution, error = factor.solve_stacked(right, rescue=False)
    regular = factor.inertia()[:, 2] == 0
    if not bool(regular.all()):
        regular = regular | (factor.solve_stacked(irregular(right), rescue=False)[1] <= LOST)
    return solution, factor.convex(), error, regular


_library.impl("solve_sparse_kkt", _solve_kkt, "CompositeExplicitAutograd")


def analysis_of(number: int) -> SparseKKT:
    """That of the layout with this number."""
    return _analyses[number]


def _shapes(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *_, r, t, _ = arguments
    flags = [r.new_empty(len(r), dtype=torch.bool) for _ in range(2)]
    return r.new_empty(len(r), r.shape[1] + t.shape[1]), flags[0], r.new_empty(len(r)), flags[1]


torch.library.register_fake("declarative::solve_sparse_kkt", _shapes, lib=_library)


@dataclass(frozen=True, eq=False)
class SparseLayout(Layout):
    """What all problems of one pattern have in common."""

    kkt: SparseKKT
    number: int = field(default_factory=lambda: next(_numbers))

    @classmethod
    def of(cls, pattern: Pattern, equalities: int, device: torch.device | str = "cpu") -> SparseLayout:
        """Analyse a pattern.

        Raises:
            NoPattern: the factor would not be sparse.
        """
        return cls(SparseKKT.of(pattern, equalities, device=device))

    def __post_init__(self) -> None:
        _analyses[self.number] = self.kkt
        self.hessian.prepare()
        self.jacobian.prepare()

    @property
    def pattern(self) -> Pattern:
        """Where H and A can differ from zero."""
        return self.kkt.symbolic.pattern

    @cached_property
    def hessian(self) -> LowerTriangle:  # type: ignore[override]
        return self.kkt.hessian_form

    @cached_property
    def jacobian(self) -> Entries:  # type: ignore[override]
        return self.pattern.jacobian

    @cached_property
    def hessian_recipe(self) -> Compression:
        """How H is evaluated."""
        return compress_hessian(self.pattern.hessian)

    @cached_property
    def jacobian_recipe(self) -> Compression:
        """How A is evaluated."""
        return compress_jacobian(self.pattern.jacobian)

    def hessian_values(self, pull: Product, u: Tensor) -> Tensor:
        recipe = self.hessian_recipe
        return recipe.recover(products(pull, recipe.reverse_seeds(u), u))

    def jacobian_values(self, pull: Product, transpose: Callable[[], Product], u: Tensor, k: int) -> Tensor:
        recipe = self.jacobian_recipe
        forward, reverse = u.new_zeros(*u.shape[:-1], 0, k), u.new_zeros(*u.shape[:-1], 0, u.shape[-1])
        if recipe.forward:
            forward = products(transpose(), recipe.forward_seeds(u), u)
        if recipe.reverse:
            reverse = products(pull, recipe.reverse_seeds(u), u)
        return recipe.recover(forward, reverse)

    def solve_kkt(self, matrix: StepMatrix, right: Pair) -> KktSolution:
        hessian, jacobian, primal, dual, p, _, damping = matrix  # nothing is gained by a weight
        if damping is not None and p:
            bend = or_one(self.hessian.diagonal(hessian).abs() + primal)
            size = self.jacobian.multiply(jacobian.square(), 1 / bend)[:, :p].amax(-1)
            equality = torch.arange(dual.shape[-1], device=dual.device) < p
            dual = torch.where(equality, (damping * size).unsqueeze(-1), dual)
        x, convex, error, _ = self._solve(hessian, jacobian, primal, dual, *right)
        z, s = x.split([self.kkt.m, self.kkt.k], 1)
        return KktSolution(z, s, convex, error <= SOLVED, convex.to(z.dtype))

    def solve_active(self, hessian: Tensor, jacobian: Tensor, active: Tensor, right: Pair) -> ActiveSolution:
        mask = active.to(hessian.dtype)
        rows, none = self.jacobian.scale_rows(jacobian, mask), torch.zeros_like(right[0])
        x, convex, error, regular = self._solve(hessian, rows, none, 1 - mask, right[0], right[1] * mask)
        z, s = x.split([self.kkt.m, self.kkt.k], 1)
        # Of a singular matrix, too, a right-hand side may have a solution: zero has one. More constraints than unknowns
        # make it singular, even if rounding errors of large numbers hide that.
        regular = regular & (mask.sum(-1) <= self.kkt.m)
        return ActiveSolution(z, s * mask, convex & regular & (error <= LOST))

    def _solve(self, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        found: tuple[Tensor, Tensor, Tensor, Tensor] = torch.ops.declarative.solve_sparse_kkt(*tensors, self.number)
        return found

    def least_curvature(
        self,
        hessian: Tensor,
        jacobian: Tensor,
        dual: Tensor,
        size: Tensor,
        p: int,  # noqa: ARG002
        rough: bool = False,
    ) -> Pair:
        """By inverse iteration, with a shift that is just large enough for a matrix without negative curvature."""
        shift = torch.zeros_like(hessian[:, 0])
        direction, none = irregular(size) / size.sqrt(), torch.zeros_like(dual)
        for _ in range(SHIFTS):
            factor = self.kkt.factorise(hessian, jacobian, shift.unsqueeze(-1) * size, dual)
            convex = factor.convex()
            if bool(convex.all()):
                break
            shift = torch.where(convex, shift, (4 * shift).clamp(min=ROUGH_SHIFT if rough else 1e-10))
        for _ in range(ROUGHLY if rough else ITERATIONS):
            found = factor.solve(size * direction, none, rescue=False).z
            direction = found / or_one(found.abs().amax(-1)).unsqueeze(-1)
        inverse = torch.where(dual > 0, 1 / torch.where(dual > 0, dual, 1.0), 0.0)
        bend = (direction * self.hessian.multiply(hessian, direction)).sum(-1)
        bend = bend + (inverse * self.jacobian.multiply(jacobian, direction).square()).sum(-1)
        return bend / or_one((size * direction.square()).sum(-1)), direction

    def least_norm(self, jacobian: Tensor) -> Callable[[Tensor], Tensor]:
        """From z + A' l = 0, A z = right."""
        empty = (self.jacobian.row_lengths(jacobian) == 0).to(jacobian.dtype)
        hessian = jacobian.new_zeros(len(jacobian), len(self.pattern.hessian))
        factor = self.kkt.factorise(hessian, jacobian, jacobian.new_ones(len(jacobian), self.kkt.m), empty)
        return lambda right: factor.solve(right.new_zeros(len(right), self.kkt.m), right * (1 - empty)).z

    def least_squares(self, jacobian: Tensor, right: Tensor) -> Tensor:
        """From z + A' l = right, A z = 0."""
        hessian = jacobian.new_zeros(len(jacobian), len(self.pattern.hessian))
        empty = (self.jacobian.row_lengths(jacobian) == 0).to(right.dtype)
        found, *_ = self._solve(hessian, jacobian, torch.ones_like(right), empty, right, torch.zeros_like(empty))
        return found[:, self.kkt.m :]

    quick_least_squares = least_squares

    def system(self, hessian: Tensor, jacobian: Tensor, active: Tensor) -> SparseSystem:
        return SparseSystem(self.kkt, hessian, jacobian, active)
