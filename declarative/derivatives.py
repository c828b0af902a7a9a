"""The derivatives at a solution: A, B, C and H of Proposition 2.1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .gradients import as_rows
from .inputs import shapes_of_one
from .structure import Point


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
        (tensor([[[0.6000, 0.8000]]]), tensor([[-4.0000]]))
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
    def at(cls, point: Point, passed: int | None = None) -> Derivatives:
        """Form all the matrices, for the first ``passed`` inputs. Back-propagation never does."""
        batch, u, multipliers = point.batch.dense(), point.u, point.multipliers
        wanted = [i for i, x in enumerate(batch.xs[:passed]) if x.is_floating_point()]
        shapes = shapes_of_one(batch.xs, batch.in_dims)
        n = sum(shapes[i].numel() for i in wanted)
        if not batch.size:
            return cls._empty(point, n)
        jacobian = batch.jacobian(u).clone()
        p = batch.p

        def rows(count: int, place: Callable[[Tensor], tuple[Tensor, Tensor | None]]) -> Tensor:
            """Row i of B or C is the pullback of the unit vector e_i, with the sign turned."""
            if not count or not n:
                return u.new_zeros(batch.size, count, n)

            def row(unit: Tensor) -> Tensor:
                grads = batch.pullback_each(u, multipliers, *place(unit.expand(batch.size, count)), wanted)
                return -as_rows(grads, u)

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
    def _empty(cls, point: Point, n: int) -> Derivatives:
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
