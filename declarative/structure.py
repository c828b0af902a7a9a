"""The linear system of a batch of problems at a point, as the structure of its Hessian suggests.

A diagonal Hessian is recognised, or declared, and never assembled; a large one is tried without a matrix first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .expansion import Expansion
from .inputs import first_problem
from .linear import (
    DENSE,
    DenseSystem,
    DiagonalHessianSystem,
    DiagonalSystem,
    HessianSystem,
    KktSystem,
    Layout,
    MatrixFreeSystem,
    System,
)
from .linear.correction import BALANCED, Equations, unsolved
from .linear.directions import random_directions
from .linear.sparse import NoPattern, SparseLayout, pattern_of_slope
from .problem import Batch
from .torchside import value_is_hidden

Kind = Literal["full", "curvature", "objective"]
SystemBuilder = Callable[["Point", Kind], System]
Structure = Literal["auto", "dense", "diagonal", "sparse", "matrix-free"]
MATRIX_FREE_FROM = 2000  # variables, from which a dense Hessian is the last resort
DIAGONAL_FROM = 32  # variables, from which it pays to look for a diagonal Hessian
SPARSE_FROM = 100  # unknowns and constraints, from which it pays to look for a sparse pattern
MAX_FILL = {"core": 0.25, "torch": 0.1}  # of the entries of a dense factor: with fewer, a sparse one is cheaper
LEAST_PART = 1e-3  # of the largest entry of a solution: less than that may be zero
PROBES = 2  # directions along which a diagonal Hessian has to behave like one


def stores_hessian(batch: Batch, structure: Structure) -> bool:
    """Whether H is stored in any case, by its layout, and no other way is looked for."""
    return batch.m < DIAGONAL_FROM or structure == "dense" or batch.layout is not DENSE


def structure_at(batch: Batch, u: Tensor, multipliers: Tensor | None, structure: Structure) -> Structure:
    """The structure, once it has been looked at: ``dense`` where H is to be stored since it is not diagonal."""
    if structure != "auto" or stores_hessian(batch, structure) or batch.m > MATRIX_FREE_FROM:
        return structure
    if torch.is_grad_enabled() or value_is_hidden(u):
        return structure
    given = u.new_ones(batch.size, batch.k) if multipliers is None else multipliers
    return structure if bool(_probe_diagonal(batch, u, given)[1]) else "dense"


@dataclass(frozen=True)
class Point:
    """A batch of problems at points, such as their solutions, with multipliers; linear systems come from here.

    Attributes:
        batch: the problems.
        u: the points, (batch, m).
        multipliers: stacked, following L = f - multipliers' c, (batch, k).
        active: which constraints hold with equality, (batch, k).
        structure: what is known of the Hessian: ``auto``, ``dense``, ``diagonal``, ``sparse`` or ``matrix-free``.
        jacobian: A, if it is known already, in the form of the batch.
        hessian: H, likewise, or its diagonal if that is all of it.
        builder: builds a structured system instead of the general ones.
        byproduct: what the solver left for the builder, (batch, ...); most leave nothing.
        factors: likewise, for a pass that is not itself differentiated.
    """

    batch: Batch
    u: Tensor
    multipliers: Tensor
    active: Tensor
    structure: Structure = "auto"
    jacobian: Tensor | None = None
    hessian: Tensor | None = None
    builder: SystemBuilder | None = None
    byproduct: Tensor | None = None
    factors: object | None = None

    def rows(self) -> Tensor:  # (batch, k, m)
        """A."""
        return self.batch.jacobian(self.u) if self.jacobian is None else self.jacobian

    def system(self, kind: Kind = "full") -> System:
        """The linear system of a rule: ``full`` has H and A, ``curvature`` H alone, ``objective`` H_hat alone."""
        if self.builder is not None:
            return self.builder(self, kind)
        if kind == "full":
            return self.full()
        multipliers = None if kind == "objective" else self.multipliers
        if isinstance(self.batch.layout, SparseLayout):
            values, rows = self.batch.hessian(self.u, multipliers), self.rows()
            return self.batch.layout.system(values, rows, torch.zeros_like(self.active))
        diagonal = self._diagonal(multipliers)
        if diagonal is not None:
            return DiagonalHessianSystem(diagonal)
        return HessianSystem(self.batch.hessian(self.u, multipliers))

    def full(self) -> KktSystem:
        """The system of H and A."""
        if isinstance(self.batch.layout, SparseLayout):
            values = self.batch.hessian(self.u, self.multipliers) if self.hessian is None else self.hessian
            return self.batch.layout.system(values, self.rows(), self.active)
        if self.hessian is not None and self.structure in ("auto", "dense"):
            kind = DiagonalSystem if self.hessian.shape == self.u.shape else DenseSystem
            return kind(self.hessian, self.rows(), self.active)
        diagonal = self._diagonal(self.multipliers)
        if diagonal is not None:
            return DiagonalSystem(diagonal, self.rows(), self.active)
        large = self.structure == "matrix-free" or (self.structure == "auto" and self.batch.m > MATRIX_FREE_FROM)
        return self._matrix_free() if large and self._is_plain() else self.dense()

    def pullback_at_once(self, v: Tensor, w: Tensor, wanted: Sequence[int]) -> tuple[Tensor, ...] | None:
        """-(B' z + C' s) with the solution (z, s) of the full system, in one function without a decision by values.

        None where there is more to it: H and A are not known, or not so that their system is easy.
        """
        batch, hessian, jacobian = self.batch, self.hessian, self.jacobian
        if self.builder is not None or hessian is None or jacobian is None or v.dtype != torch.float64:
            return None
        if self.structure not in ("auto", "dense", "sparse") or not self._is_plain():
            return None
        if batch.layout is DENSE and hessian.shape == self.u.shape:  # its diagonal
            return None

        def pulled(batch: Batch, u: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
            multipliers, active, hessian, jacobian, v, w = rest
            z, s, trusted = batch.layout.solve_active(hessian, jacobian, active, (v, w))
            rows = batch.layout.jacobian.scale_rows(jacobian, active.to(v.dtype))
            equations = Equations(batch.layout.hessian, hessian, batch.layout.jacobian, rows, (~active).to(v.dtype))
            right = v, torch.where(active, w, 0.0)
            # Where z is zero in truth, nothing is relative: it counts as a part of the largest entry, or of what v
            # makes of one, in the units of H.
            diagonal = batch.layout.hessian.diagonal(hessian).abs()
            unit = torch.where(diagonal > 0, diagonal, 1.0).rsqrt()
            least = LEAST_PART * unit * torch.maximum(z.abs() / unit, v.abs() * unit).amax(-1, keepdim=True)
            error = unsolved(equations.left(z, s, *right), equations.terms(z.abs() + least, s, *right))
            trusted = trusted & (error <= BALANCED * torch.finfo(v.dtype).eps)
            return trusted, *batch.pullback(u, multipliers, z, s, wanted)

        rows = (self.u, self.multipliers, self.active, hessian, jacobian, v, w)
        apart = all(batch.in_dims[i] is not None for i in wanted)  # a shared input gets the sum over the batch
        trusted, *grads = batch.evaluate(("pull", *wanted), pulled, *rows, compared=0, by_problem=apart)
        return tuple(grads) if bool(trusted.all()) else None

    def expanded(self) -> tuple[KktSystem, Expansion]:
        """The full system, and the values and first derivatives that go with it."""
        if stores_hessian(self.batch, self.structure):
            here = self.batch.expand(self.u, self.multipliers)
            return self.batch.layout.system(here.curvature, here.jacobian, self.active), here
        objective, gradient, values, jacobian = self.batch.slopes(self.u, self.multipliers)
        here = Expansion(objective, gradient, values, jacobian, gradient.new_zeros(0))
        return dataclasses.replace(self, jacobian=jacobian).full(), here

    def dense(self) -> DenseSystem:
        """The full system with its matrices assembled."""
        here = self.batch.expand(self.u, self.multipliers)
        return DenseSystem(here.curvature, here.jacobian, self.active)

    def _is_plain(self) -> bool:
        """Whether decisions may depend on values, and only the values of the solution count, not its derivatives."""
        return not torch.is_grad_enabled() and not value_is_hidden(self.u)

    def _may_be_diagonal(self) -> bool:
        """Whether it is worth while to look.

        That a Hessian is diagonal at a point says nothing about its derivative, so a pass that is itself differentiated
        takes the user's word or the dense matrix.
        """
        if self.structure != "auto":
            return self.structure == "diagonal"
        return self.batch.m >= DIAGONAL_FROM and self._is_plain()

    def _diagonal(self, multipliers: Tensor | None) -> Tensor | None:  # (batch, m)
        """The diagonal of the Hessian, if that is all of it."""
        if not self._may_be_diagonal():
            return None
        diagonal, regular = _probe_diagonal(self.batch, self.u, multipliers)
        if self._is_plain() and not bool(regular):
            if self.structure == "diagonal":
                raise ValueError("structure='diagonal' was declared, but the Hessian is not diagonal here.")
            return None
        return diagonal

    def _matrix_free(self) -> MatrixFreeSystem:
        def curvature(z: Tensor) -> Tensor:
            return self.batch.product(self.u, self.multipliers, z, torch.zeros_like(self.multipliers))

        def probe(directions: Tensor) -> Tensor:
            return self.batch.curvatures(self.u, self.multipliers, directions)

        required = self.structure == "matrix-free"
        return MatrixFreeSystem(curvature, probe, self.rows(), self.active, self.dense, required=required)


def _probe_diagonal(batch: Batch, u: Tensor, multipliers: Tensor | None) -> tuple[Tensor, Tensor]:  # (batch, m), ()
    """The Hessian times ones, and whether that is its diagonal: H r = (H 1) * r for directions r without a pattern."""
    directions = torch.cat([u.new_ones(1, batch.m), random_directions(PROBES, u)])
    products = batch.curvatures(u, multipliers, directions.expand(batch.size, *directions.shape))
    diagonal = products[:, 0]
    expected = diagonal.unsqueeze(1) * directions
    rounding = 50 * torch.finfo(u.dtype).eps * torch.maximum(expected.abs(), products.abs())
    return diagonal, ((products - expected).abs() <= rounding).all()


class Layouts:
    """How the derivatives of a node's problems are stored, by the shapes of one problem.

    A cache, not a state: copies and pickles of a node start with an empty one.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, Layout] = {}

    def find(self, batch: Batch, u: Tensor, structure: Structure) -> Layout:  # u: (size, m)
        """The layout that suits the problems, looked for once for each shape.

        Raises:
            ValueError: it has to be sparse, and cannot be.
        """
        if structure not in ("auto", "sparse") or (
            structure == "auto" and u.shape[-1] + batch.p + batch.q < SPARSE_FROM
        ):
            return DENSE
        key = shapes_of(batch)
        if key not in self._known:
            self._known[key] = _find_layout(batch, u, structure)
        return self._known[key]

    def known(self, batch: Batch) -> Layout:
        """The layout that was found in the forward pass."""
        return self._known.get(shapes_of(batch), DENSE)

    def forget(self, batch: Batch) -> None:
        """That a pattern does not hold: all entries from now on."""
        self._known[shapes_of(batch)] = DENSE

    def __deepcopy__(self, memo: object) -> Layouts:
        return Layouts()

    def __reduce__(self) -> tuple[type[Layouts], tuple[()]]:
        return Layouts, ()


def shapes_of(batch: Batch) -> Hashable:
    """What the pattern of a batch depends on: the shapes of one problem."""
    pairs = zip(batch.xs, batch.in_dims, strict=True)
    inputs = tuple((x.shape if dim is None else x.shape[1:], dim is None, x.device) for x, dim in pairs)
    return inputs, batch.shape, batch.p, batch.q


def _find_layout(batch: Batch, u: Tensor, structure: Structure) -> Layout:
    try:
        layout = sparse_layout(batch, u)
    except NoPattern as error:
        if structure == "sparse":
            raise ValueError(f"structure='sparse' cannot be had: {error}. Use structure='dense' or 'auto'.") from error
        return DENSE
    return layout if structure == "sparse" or fill_ratio(layout) < MAX_FILL[layout.kkt.kernel] else DENSE


def fill_ratio(layout: SparseLayout) -> float:
    """How many of the entries of a dense factor the sparse one has."""
    return 2 * layout.kkt.symbolic.fill / layout.kkt.symbolic.size**2


def sparse_layout(batch: Batch, u: Tensor) -> SparseLayout:  # u: (size, m)
    """Which entries of H and A can differ from zero, from the functions of one problem, analysed.

    Raises:
        NoPattern: they are not sparse, or the functions cannot be followed.
    """
    one = [x.detach() for x in first_problem(batch.xs, batch.in_dims)]
    pattern = pattern_of_slope(batch.slope_of_one, u[0].detach(), u.new_ones(batch.k), one)
    return SparseLayout.of(pattern, batch.p, u.device)


def holds(batch: Batch, u: Tensor, multipliers: Tensor, known: tuple[Tensor, Tensor] | None = None) -> bool:
    """Whether the entries that are stored are all of H and A, by a product with vectors that nobody can foresee.

    Args:
        batch: the problems.
        u: points, (batch, m).
        multipliers: stacked, (batch, k).
        known: the entries of H and A there, if they have been evaluated.
    """
    z, s = (random_directions(1, x).expand_as(x) for x in (u, multipliers))
    rows = (u, multipliers, z, s, *(known or ()))
    return not bool(batch.evaluate("misses", _has_other_entries, *rows, by_problem=True).any())


def _has_other_entries(
    batch: Batch, u: Tensor, multipliers: Tensor, z: Tensor, s: Tensor, *known: Tensor
) -> Tensor:  # (batch,)
    """Whether H z + A' s is something else by the entries that are stored."""
    if not known:
        here = batch.expand(u, multipliers)
        known = here.curvature, here.jacobian
    layout, (hessian, jacobian) = batch.layout, known
    found = layout.hessian.multiply(hessian, z) + layout.jacobian.multiply_transposed(jacobian, s)
    size = layout.hessian.multiply(hessian.abs(), z.abs())
    size = size + layout.jacobian.multiply_transposed(jacobian.abs(), s.abs())
    missed = (batch.product(u, multipliers, z, s) - found).abs()
    return (missed > 1e4 * torch.finfo(u.dtype).eps * size.amax(-1, keepdim=True)).any(-1)
