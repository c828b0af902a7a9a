"""Eigenvectors of symmetric matrices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Unpack

import torch
from torch import Tensor

from declarative import ClosedForm
from declarative.linear import Pair, Solve, System, rank_tolerance, warn_of
from declarative.optimality import Assessment
from declarative.problem import Batch
from declarative.solution import RawSolution
from declarative.structure import Kind, Point

from .formula import StructuredSolver, assessment
from .inputs import Inputs
from .layer import Layer, Options
from .systems import StructuredSystem, largest_or_one, pseudo_reciprocal, symmetric_part


def rayleigh(X: Tensor, U: Tensor) -> Tensor:
    """-sum_j u_j' X u_j / 2; only the symmetric part of X counts."""
    return -(U * (X @ U)).sum() / 2


def unit_columns(X: Tensor, U: Tensor) -> Tensor:  # noqa: ARG001
    """(u_j' u_j - 1) / 2 for each column."""
    return (U.square().sum(0) - 1) / 2


class Eigenvectors(Layer):
    """Eigenvectors of the symmetric part of X. Each is a stationary point of the same problem:

        minimise -u' X u / 2   subject to   (u' u - 1) / 2 = 0,

    with multiplier minus its eigenvalue t and H = t I - X. H is singular along u, the KKT matrix is not as long as t is
    simple. One eigendecomposition, that of the forward pass, serves all the eigenvectors and all the rules:

        exact, curvature   z = sum over the other eigenvectors w of w (w' v) / (t - t_w)   (here they are the same)
        unconstrained      z = -X^+ v.

    The gradient is symmetric. The sign of an eigenvector is arbitrary, as in ``torch.linalg.eigh``.

    Shapes: X (batch, m, m) -> (batch, m, k), columns ordered by ascending eigenvalue.

    Degenerate: the eigenvectors of a repeated eigenvalue are not a function of X. Their gradient leaves out the
    directions within the eigenspace, so that it stays finite, and there is a :class:`NumericalWarning`. Those of
    eigenvalues with a gap that is small beside X, below the square root of the precision, are functions of X that have
    lost as many digits as rounding errors of X are smaller than the gap: so has a gradient that depends on the gap, and
    another warning says how many are left.

    Args:
        k: how many; by default all.
        largest: the k of the largest eigenvalues, or else of the smallest.
        **options: see :class:`Layer`.

    Example:
        >>> import torch
        >>> from problems import Eigenvectors
        >>> X = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]], requires_grad=True)
        >>> u = Eigenvectors(k=1)(X)
        >>> u.detach().abs().squeeze(-1)
        tensor([[1., 0.]])
        >>> torch.autograd.grad(u[0, 1, 0] * u[0, 0, 0].sign().detach(), X)[0]
        tensor([[[0.0000, 0.5000],
                 [0.5000, 0.0000]]])
    """

    pure = True
    required = ("X",)

    def __init__(self, k: int | None = None, *, largest: bool = True, **options: Unpack[Options]) -> None:
        if k is not None and (not isinstance(k, int) or isinstance(k, bool)):
            raise TypeError(f"k must be an int or None, but is {type(k).__name__}.")
        if k is not None and k < 1:
            raise ValueError(f"k must be at least 1, but is {k}.")
        solver = Eigh(k, largest)
        # They are saddle points, which a minimiser would leave: the general way is Newton's method on the same formula.
        self.generic_solver = ClosedForm(solver.vectors, polish=True, stationary=True)
        self.k = k
        super().__init__(rayleigh, unit_columns, solver=solver, start=solver.blank, **options)

    def complete(self, X: Tensor) -> Inputs:
        if self.k is not None and self.k > X.shape[-1]:
            raise ValueError(f"k is {self.k}, but X of shape {tuple(X.shape)} has only {X.shape[-1]} eigenvectors.")
        return (X,)


@dataclass(frozen=True)
class Eigh(StructuredSolver):
    """``torch.linalg.eigh``; the whole decomposition is left to the backward pass."""

    k: int | None
    largest: bool

    def chosen(self, m: int) -> slice:
        """Which columns of the whole decomposition are wanted."""
        if self.k is None:
            return slice(m)
        return slice(m - self.k, m) if self.largest else slice(self.k)

    def blank(self, X: Tensor) -> Tensor:
        """Something of the shape of one problem's solution."""
        return torch.zeros_like(X[:, self.chosen(X.shape[-1])])

    def vectors(self, X: Tensor) -> Tensor:
        """The wanted eigenvectors."""
        vectors: Tensor = torch.linalg.eigh(symmetric_part(X))[1]
        return vectors[..., self.chosen(X.shape[-1])]

    def solve(self, batch: Batch, start: Tensor) -> RawSolution:
        (X,) = self.arguments(batch, start)
        values, vectors = torch.linalg.eigh(symmetric_part(X))
        chosen = self.chosen(X.shape[-1])
        raw = RawSolution.unsolved(vectors[..., chosen].flatten(1))
        decomposition = torch.cat([vectors, values.unsqueeze(-2)], -2)
        return replace(raw, multipliers=-values[:, chosen], byproduct=decomposition)

    def assess(self, batch: Batch, raw: RawSolution) -> Assessment | None:
        if raw.multipliers is None:
            return None
        X, U = symmetric_part(*self.arguments(batch, raw.y)), raw.y.view(batch.size, *batch.shape)
        slope = (X @ U + U * raw.multipliers.unsqueeze(-2)) / largest_or_one(X)[:, None, None]
        violation = (torch.linalg.vector_norm(U, dim=-2) - 1).abs().amax(-1)
        return assessment(raw.multipliers, slope.abs().amax((-2, -1)), violation)

    def pullback(self, xs: Inputs, u: Tensor, multipliers: Tensor | None, z: Tensor, s: Tensor) -> Inputs:  # noqa: ARG002
        """D_U L = -(X + X') U / 2 + ..., so that B' z = -(Z U' + U Z') / 2; C = 0."""
        U, Z = _columns(u, xs[0]), _columns(z, xs[0])
        half = (Z / 2) @ U.mT
        return (half + half.mT,)

    def system(self, point: Point, kind: Kind) -> System:
        (X,) = self.arguments(point.batch, point.u)
        m, decomposition = X.shape[-1], point.byproduct
        if decomposition is None or decomposition.shape[1:] != (m + 1, m):
            # No problem was solved, so that nothing will be differentiated: the decomposition of any regular matrix
            # does.
            order = torch.arange(m, dtype=X.dtype, device=X.device)
            decomposition = torch.cat([torch.diag_embed(torch.ones_like(order)), order.unsqueeze(0)])
            decomposition = decomposition.expand(point.batch.size, m + 1, m)
        vectors, values = decomposition[:, :m], decomposition[:, m]
        multipliers, shift = point.multipliers, values[:, self.chosen(m)]
        if kind == "objective":
            multipliers, shift = torch.zeros_like(multipliers), torch.zeros_like(shift)
        U = _columns(point.u, X)
        return (EigenSystem if kind == "full" else ShiftedSystem)(X, U, multipliers, vectors, values, shift)


@dataclass(eq=False)
class ShiftedSystem(StructuredSystem):
    """(t_j I - X) z_j = r_j for each column j, by the pseudo-inverse.

    The multipliers are -t_j; ``shift`` holds the t_j of the decomposition, which is given and not differentiated. For
    the objective alone both are zero.
    """

    X: Tensor  # (batch, m, m)
    U: Tensor  # (batch, m, k)
    multipliers: Tensor  # (batch, k)
    vectors: Tensor  # (batch, m, m)
    values: Tensor  # (batch, m)
    shift: Tensor  # (batch, k)

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        Z = _columns(z, self.X)
        return (-_symmetric_product(self.X, Z) - Z * self.multipliers.unsqueeze(-2)).flatten(1), s

    def factorise(self) -> Solve:
        inverse = self.inverse()

        def solve(r: Tensor, t: Tensor) -> Pair:
            return _in_basis(self.vectors, inverse, _columns(r, self.X)).flatten(1), torch.zeros_like(t)

        return solve

    def inverse(self) -> Tensor:  # (batch, m, k)
        """1 / (t_j - t_i), and 0 where that vanishes."""
        cut = rank_tolerance(self.values) * self.values.abs().amax(-1)  # zero to working precision for this spectrum
        return pseudo_reciprocal(self.shift.unsqueeze(-2) - self.values.unsqueeze(-1), cut[:, None, None])


class EigenSystem(ShiftedSystem):
    """[t_j I - X, u_j; u_j', 0] [z_j; s_j] = [r_j; t_j] for each column j."""

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        top = super().multiply(z, s)[0]
        Z = _columns(z, self.X)
        return top + (self.U * s.unsqueeze(-2)).flatten(1), (self.U * Z).sum(-2)

    def factorise(self) -> Solve:
        inverse = self.inverse()
        rounding = torch.finfo(self.values.dtype).eps * self.values.abs().amax(-1)[:, None, None]
        repeated = ((inverse == 0).sum(-2) > 1).any(-1)
        if repeated.any():
            why = "an eigenvalue is repeated, and its eigenvectors are not a function of the matrix"
            warn_of(repeated, why, "the directions within its eigenspace were left out of the gradient")

        def solve(r: Tensor, t: Tensor) -> Pair:
            R = _columns(r, self.X)
            self._say_what_is_lost(inverse, rounding, R)
            # Where the cut-off takes other directions than u_j, those are left out; u_j itself always is.
            Z = _in_basis(self.vectors, inverse, R) + self.U * t.unsqueeze(-2)
            return Z.flatten(1), (self.U * R).sum(-2)

        return solve

    def _say_what_is_lost(self, inverse: Tensor, rounding: Tensor, R: Tensor) -> None:
        """Warn where a part of the gradient hangs on a gap that is not large beside the rounding errors of X."""
        near = inverse.abs() * rounding  # by how much, relatively, they change what is divided by a gap
        limit = torch.finfo(R.dtype).eps ** 0.5
        if not bool((near > limit).any()):
            return
        parts = (inverse * _thin_product(self.vectors.mT, R)).abs()
        size = parts.amax((-2, -1))
        lost = (near * parts).amax((-2, -1)) / torch.where(size > 0, size, 1.0)
        bad = lost > limit
        if bool(bad.any()):
            good_to = f"so that the gradient is only good to {float(lost[bad].amax()):.0e}"
            why = "an eigenvalue is so close to another one that rounding errors of the matrix turn their eigenvectors"
            warn_of(bad, why, good_to)


def _symmetric_product(X: Tensor, Z: Tensor) -> Tensor:
    """The symmetric part of X times Z, without forming it."""
    return (_thin_product(X, Z) + _thin_product(X.mT, Z)) / 2


def _in_basis(vectors: Tensor, factors: Tensor, R: Tensor) -> Tensor:
    """V (factors * V' R): a function of the matrix whose eigenvectors are V, column by column."""
    return _thin_product(vectors, factors * _thin_product(vectors.mT, R))


def _columns(z: Tensor, X: Tensor) -> Tensor:  # (batch, m k) -> (batch, m, k)
    return z.view(*z.shape[:-1], X.shape[-1], -1)


def _thin_product(matrix: Tensor, thin: Tensor) -> Tensor:  # (batch, m, n), (batch, n, k) -> (batch, m, k)
    """The matrix times few columns. A batch of these is several times faster with the columns as rows."""
    return torch.bmm(thin.mT, matrix.mT).mT
