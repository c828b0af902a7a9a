"""The derivatives at a solution: A, B, C and H of Proposition 2.1, and the point that the gradient rules work at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .linear.contract import System
from .linear.dense import Pair, diagonal_schur, times
from .linear.directions import irregular
from .linear.matrix_free import MatrixFreeSystem
from .linear.systems import DenseSystem, DiagonalHessianSystem, DiagonalSystem, HessianSystem, Prepared, PreparedSystem
from .problem import Batch
from .torchside import value_is_hidden

Kind = Literal["full", "curvature", "objective"]
Hessian = Literal["auto", "dense", "diagonal", "matrix-free"]
LARGE = 2000  # variables, from which a dense Hessian is the last resort
WORTH = 32  # variables, from which it pays to look for a diagonal Hessian in every call
SystemBuilder = Callable[["Linearisation", Kind], System]


@dataclass(frozen=True)
class Linearisation:
    """A batch of problems at their solutions; the gradient rules get their linear systems from here.

    Attributes:
        batch: the problems.
        u: their solutions, (batch, m).
        multipliers: stacked, following L = f - multipliers' c, (batch, k).
        active: which constraints hold with equality, (batch, k).
        builder: builds a structured system instead of the dense ones.
        extra: what the solver left for the builder, (batch, ...); most leave nothing.
        factor: the factorisation that the solver left, for a pass that is not itself differentiated.
        hessian: what is known of the Hessian: ``auto``, ``dense``, ``diagonal`` or ``matrix-free``.
        jacobian: A, if it is known already, likewise.
    """

    batch: Batch
    u: Tensor
    multipliers: Tensor
    active: Tensor
    builder: SystemBuilder | None = None
    extra: Tensor | None = None
    factor: Prepared | None = None
    hessian: Hessian = "auto"
    jacobian: Tensor | None = None

    def rows(self) -> Tensor:  # (batch, k, m)
        """A."""
        return self.batch.jacobian(self.u) if self.jacobian is None else self.jacobian

    def system(self, kind: Kind) -> System:
        """The linear system of a rule: ``full`` has H and A, ``curvature`` H alone, ``objective`` H_hat alone."""
        if self.builder is not None:
            return self.builder(self, kind)
        if kind == "full" and self.factor is not None:
            return self._prepared(self.factor)
        multipliers = None if kind == "objective" else self.multipliers
        diagonal = self._diagonal(multipliers)
        if diagonal is not None:
            if kind != "full":
                return DiagonalHessianSystem(diagonal)
            return DiagonalSystem(diagonal, self.rows(), self.active)
        if kind != "full":
            return HessianSystem(self.batch.hessian(self.u, multipliers))
        large = self.hessian == "matrix-free" or (self.hessian == "auto" and self.batch.m > LARGE)
        return self._matrix_free() if large and self._is_plain() else self._dense()

    def _is_plain(self) -> bool:
        """Whether decisions may depend on values, and only the values of the solution count, not its derivatives."""
        return not torch.is_grad_enabled() and not value_is_hidden(self.u)

    def _may_be_diagonal(self) -> bool:
        """Whether it is worth while to look.

        That a Hessian is diagonal at a point says nothing about its derivative, so a pass that is itself differentiated
        takes the user's word or the dense matrix.
        """
        if self.hessian != "auto":
            return self.hessian == "diagonal"
        recording = self.batch.recording
        worth = self.batch.m >= WORTH if recording is None else not recording.dense
        return worth and self._is_plain()

    def _diagonal(self, multipliers: Tensor | None) -> Tensor | None:  # (batch, m)
        """The diagonal of the Hessian, if that is all of it."""
        if not self._may_be_diagonal():
            return None
        diagonal, regular = _probed(self.batch, self.u, multipliers)
        if self._is_plain() and not bool(regular):
            self._not_diagonal()
            return None
        return diagonal

    def _not_diagonal(self) -> None:
        if self.hessian == "diagonal":
            raise ValueError("hessian='diagonal' was declared, but the Hessian is not diagonal here.")
        if self.batch.recording is not None:
            self.batch.recording.dense = True  # and that once is enough

    def diagonal_gradient(self, v: Tensor, w: Tensor, wanted: Sequence[int]) -> tuple[Tensor, ...] | None:
        """The exact gradient in one recorded go, if the Hessian turns out to be diagonal and positive; None if not."""
        if self.builder or self.factor or self.batch.recording is None or not self._is_plain():
            return None
        if not self._may_be_diagonal():
            return None

        def gradient(
            batch: Batch, u: Tensor, multipliers: Tensor, active: Tensor | None, v: Tensor, w: Tensor
        ) -> tuple[Tensor, ...]:
            diagonal, regular = _probed(batch, u, multipliers)
            solve, definite = diagonal_schur(diagonal, batch.jacobian(u), active)
            return regular, definite.all(), *batch.pullback(u, multipliers, *solve(v, w), wanted)

        name = ("diagonal gradient", *wanted)
        active = self.active if self.batch.q else None
        regular, definite, *grads = self.batch.recorded(name, gradient, self.u, self.multipliers, active, v, w)
        if not bool(regular):
            self._not_diagonal()
            return None
        return tuple(grads) if bool(definite) else None

    def _matrix_free(self) -> System:
        rows = self.rows()

        def curvature(z: Tensor) -> Tensor:
            return self.batch.product(self.u, self.multipliers, z, torch.zeros_like(self.multipliers))

        def probe(directions: Tensor) -> Tensor:
            return self.batch.curvatures(self.u, self.multipliers, directions)

        return MatrixFreeSystem(
            curvature, probe, rows, self.active, self._dense, required=self.hessian == "matrix-free"
        )

    def _dense(self) -> System:
        here = self.batch.expand(self.u, self.multipliers)
        return DenseSystem(here.curvature, here.jacobian, self.active)

    def _prepared(self, factor: Prepared) -> System:
        rows = self.rows()

        def product(z: Tensor, s: Tensor) -> Pair:
            return self.batch.product(self.u, self.multipliers, z, s), times(rows, z)

        return PreparedSystem(factor, product, self._dense)


def _probed(batch: Batch, u: Tensor, multipliers: Tensor | None) -> Pair:  # (batch, m), ()
    """The Hessian times ones, and whether that is its diagonal: H r = (H 1) * r for directions r without a pattern."""
    one = u.new_ones(batch.m)
    directions = torch.stack([one, irregular(one), irregular(one, 1.1)])
    products = batch.curvatures(u, multipliers, directions.expand(batch.size, *directions.shape))
    diagonal = products[:, 0]
    expected = diagonal.unsqueeze(1) * directions
    rounding = 50 * torch.finfo(u.dtype).eps * torch.maximum(expected.abs(), products.abs())
    return diagonal, ((products - expected).abs() <= rounding).all()


@dataclass(frozen=True)
class Derivatives:
    """The matrices of Proposition 2.1, batch first; inputs are flattened and concatenated in order.

    Sign convention: L = f - multipliers' h + inequality_multipliers' g.

    Attributes:
        A: D_Y h, (batch, p, m).
        B: D^2_XY L, (batch, m, n).
        C: D_X h, (batch, p, n).
        H: D^2_YY L, (batch, m, m).
        H_hat: D^2_YY f, (batch, m, m).
        multipliers: (batch, p).
        G: D_Y g, (batch, q, m).
        G_X: D_X g, (batch, q, n).
        inequality_multipliers: (batch, q).
        active: which inequalities hold with equality, (batch, q).

    Example:
        >>> import torch
        >>> from declarative import DeclarativeNode
        >>> sphere = DeclarativeNode(lambda x, u: (u - x).square().sum() / 2, lambda x, u: (u.square().sum() - 1) / 2,
        ...                          solver=lambda x: torch.nn.functional.normalize(x))
        >>> d = sphere.derivatives(torch.tensor([[3.0, 4.0]]))
        >>> d.A, d.multipliers
        (tensor([[[0.6000, 0.8000]]]), tensor([[-4.]]))
        >>> d.H
        tensor([[[5., 0.],
                 [0., 5.]]])
    """

    A: Tensor
    B: Tensor
    C: Tensor
    H: Tensor
    H_hat: Tensor
    multipliers: Tensor
    G: Tensor
    G_X: Tensor
    inequality_multipliers: Tensor
    active: Tensor

    @classmethod
    def at(cls, point: Linearisation) -> Derivatives:
        """Form all the matrices. Back-propagation never does."""
        batch, u, multipliers = point.batch.unshared(), point.u, point.multipliers
        wanted = [i for i, x in enumerate(batch.xs) if x.is_floating_point()]
        if not batch.size:
            return cls._empty(point, sum(batch.xs[i].shape[1:].numel() for i in wanted))
        jacobian = batch.jacobian(u).clone()  # the user's own: it may be a constant of a recording
        p = batch.p

        def rows(count: int, place: Callable[[Tensor], tuple[Tensor, Tensor | None]]) -> Tensor:
            """Row i of B or C is the pullback of the unit vector e_i, with the sign turned."""
            n = sum(batch.xs[i].shape[1:].numel() for i in wanted)
            if not count or not n:
                return u.new_zeros(batch.size, count, n)

            def row(unit: Tensor) -> Tensor:
                grads = batch.pullback(u, multipliers, *place(unit.expand(batch.size, count)), wanted)
                return torch.cat([-grad.reshape(batch.size, -1).to(u.dtype) for grad in grads], -1)

            result: Tensor = torch.vmap(row)(torch.eye(count, dtype=u.dtype, device=u.device))
            return result.transpose(0, 1)

        cross = rows(batch.m, lambda unit: (unit, None))
        shift = rows(batch.k, lambda unit: (torch.zeros_like(u), unit))
        return cls(
            A=jacobian[:, :p],
            B=cross,
            C=shift[:, :p],
            H=batch.hessian(u, multipliers).clone(),
            H_hat=batch.hessian(u).clone(),
            multipliers=multipliers[:, :p],
            G=jacobian[:, p:],
            G_X=shift[:, p:],
            inequality_multipliers=-multipliers[:, p:],
            active=point.active[:, p:],
        )

    @classmethod
    def _empty(cls, point: Linearisation, n: int) -> Derivatives:
        """For no problems, whose constraints nobody has counted."""
        m, none = point.batch.m, point.u.new_zeros
        return cls(
            A=none(0, 0, m),
            B=none(0, m, n),
            C=none(0, 0, n),
            H=none(0, m, m),
            H_hat=none(0, m, m),
            multipliers=none(0, 0),
            G=none(0, 0, m),
            G_X=none(0, 0, n),
            inequality_multipliers=none(0, 0),
            active=point.active,
        )
