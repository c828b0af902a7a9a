"""Robust pooling: the centre of a set of numbers under a penalty that forgives outliers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, Unpack

import torch
from torch import Tensor

from declarative import ClosedForm

from .inputs import Number, ScalarParameter
from .layer import Layer, Options

Residuals = Callable[[Tensor, Number], Tensor]  # (r, scale)
HALVINGS = 60  # of an interval
SWEEPS = 50  # of reweighting, which never raises the objective; Newton's method does the rest


class Penalty(NamedTuple):
    """phi and what follows from it."""

    value: Residuals  # phi(r)
    weight: Residuals  # phi'(r) / r, that of a point in a weighted mean that has the same gradient
    convex: bool


PENALTIES = {
    "quadratic": Penalty(lambda r, _: r.square() / 2, lambda r, _: torch.ones_like(r), True),
    "pseudo-huber": Penalty(
        lambda r, scale: scale**2 * ((1 + (r / scale).square()).sqrt() - 1),
        lambda r, scale: (1 + (r / scale).square()).rsqrt(),
        True,
    ),
    "huber": Penalty(
        lambda r, scale: torch.where(r.abs() <= scale, r.square() / 2, scale * (r.abs() - scale / 2)),
        lambda r, scale: scale / r.abs().clamp(min=scale),
        True,
    ),
    "welsch": Penalty(
        lambda r, scale: scale**2 * (1 - (-(r / scale).square() / 2).exp()),
        lambda r, scale: (-(r / scale).square() / 2).exp(),
        False,
    ),
    "truncated": Penalty(
        lambda r, scale: torch.where(r.abs() <= scale, r.square() / 2, scale**2 / 2 * torch.ones_like(r)),
        lambda r, scale: (r.abs() <= scale).to(r.dtype),
        False,
    ),
}


def total_penalty(x: Tensor, scale: Number, u: Tensor, penalty: str) -> Tensor:
    """sum_i phi(u - x_i)."""
    if (
        penalty == "huber"
    ):  # in units of the scale forces of points far away are 1 and -1, which cancel without rounding
        near, far = (u - x).abs() <= scale, (u * scale - x * scale).abs() - scale * scale / 2
        return torch.where(near, (u - x).square() / 2, far).sum()
    return PENALTIES[penalty].value(u - x, scale).sum()


class RobustPooling(Layer):
    """The centre of m numbers under a penalty: minimise sum_i phi(u - x_i) over a number u.

    | penalty        | phi(r)                                             |            |
    |----------------|----------------------------------------------------|------------|
    | `quadratic`    | r^2 / 2: the mean                                  | convex     |
    | `pseudo-huber` | scale^2 (sqrt(1 + (r / scale)^2) - 1)              | convex     |
    | `huber`        | r^2 / 2 up to scale, then scale (abs(r) - scale / 2) | convex     |
    | `welsch`       | scale^2 (1 - exp(-(r / scale)^2 / 2))              | not convex |
    | `truncated`    | r^2 / 2 up to scale, then constant                 | not convex |

    Solved by reweighted means. For a penalty that is not convex there are several local minima: the descent starts at
    every x_i, the mean, the median, and between any two neighbours among the places where a point becomes an outlier;
    the best of the minima found is returned. For ``truncated`` it is the global one: which points are outliers is the
    same everywhere between two such places, and all these sets are tried. For ``welsch`` it is usually, but not surely.
    The solution jumps where two minima are equally good; the gradient is that of the one returned.

    Shapes: x (batch, m), scale () or (batch,) -> y (batch,).

    Degenerate: a Huber solution without any point within ``scale`` is not unique; the middle of all is returned, and
    its gradient is zero, with a :class:`NumericalWarning`.

    Args:
        penalty: a name from the table.
        scale: from where on a residual counts as an outlier; a number, or a tensor (see :class:`Layer`).
        **options: see :class:`Layer`. Without constraints, all rules but ``identity`` are exact.

    Example:
        >>> import torch
        >>> from problems import RobustPooling
        >>> x = torch.tensor([[1.0, 1.2, 0.8, 50.0]], requires_grad=True)
        >>> y = RobustPooling("truncated", scale=1.0)(x)
        >>> y.detach()
        tensor([1.])
        >>> torch.autograd.grad(y.sum(), x)[0]
        tensor([[0.3333, 0.3333, 0.3333, 0.0000]])
    """

    pure = True
    required = ("x",)
    optional = ("scale",)

    def __init__(
        self,
        penalty: Literal["quadratic", "pseudo-huber", "huber", "welsch", "truncated"] = "pseudo-huber",
        scale: Number = 1.0,
        **options: Unpack[Options],
    ) -> None:
        if not isinstance(penalty, str) or penalty not in PENALTIES:
            raise ValueError(f"penalty must be one of {', '.join(map(repr, PENALTIES))}, but is {penalty!r}.")
        self.penalty = penalty
        scalar = ScalarParameter("scale", scale)
        centre = ClosedForm(partial(_centre, penalty=penalty, scalar=scalar), polish=True)
        # A general solver would start in one place and find the local minimum next to it.
        self.generic_solver = None if PENALTIES[penalty].convex else centre
        super().__init__(
            partial(total_penalty, penalty=penalty), solver=centre, start=_median, scalar=scalar, **options
        )


def _median(x: Tensor, *scale: Tensor) -> Tensor:  # noqa: ARG001
    return x.median()


def _centre(*xs: Tensor, penalty: str, scalar: ScalarParameter) -> Tensor:  # (batch, m) -> (batch,)
    x, scale = scalar.columns(xs)
    (phi, weight, convex), scale = PENALTIES[penalty], scale.unsqueeze(-1)
    u = torch.stack([x.mean(-1), x.median(-1).values], -1)
    if not convex:
        edges = torch.cat([x - scale.squeeze(-1), x + scale.squeeze(-1)], -1).sort(-1).values
        u = torch.cat([u, x, edges[:, :-1] + (edges[:, 1:] - edges[:, :-1]) / 2], -1)
    points = x.unsqueeze(-2)  # (batch, 1, n) against starts (batch, starts, 1)
    for _ in range(SWEEPS):
        weights = weight(u.unsqueeze(-1) - points, scale)
        total = weights.sum(-1)
        moved = (weights * points).sum(-1) / torch.where(total > 0, total, 1.0)
        new = torch.where(total > 0, moved, u)
        still = (new - u).abs() <= 4 * torch.finfo(x.dtype).eps * u.abs()
        u = new
        if still.all():
            break
    else:  # reweighting creeps where a penalty is nearly an absolute value
        u = torch.cat([u, _bisected(x, scale, weight)], -1) if convex else u
    value = phi(u.unsqueeze(-1) - points, scale).sum(-1)
    best = u.gather(-1, value.argmin(-1, keepdim=True))
    return (_middle(x, scale.squeeze(-1), best) if penalty == "huber" else best).squeeze(-1)


def _middle(x: Tensor, scale: Tensor, u: Tensor) -> Tensor:  # (batch, m), (batch, 1) twice -> (batch, 1)
    """The middle of all Huber solutions where no point is within the scale of them, else u.

    They lie between the two median points. From their middle the objective rises to both sides alike; close to an end
    it looks like the edge of a plateau.
    """
    half, rest = divmod(x.shape[-1], 2)
    if rest:
        return u
    ordered = x.sort(-1).values
    low, high = ordered[:, half - 1 : half] + scale, ordered[:, half : half + 1] - scale
    return torch.where(low < high, low / 2 + high / 2, u)


def _bisected(x: Tensor, scale: Tensor, weight: Residuals) -> Tensor:  # (batch, 1)
    """Where the slope sum_i phi'(u - x_i) of a convex penalty changes its sign."""
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        away = middle - x
        falls = (weight(away, scale.squeeze(-1)) * away).sum(-1, keepdim=True) < 0
        low, high = torch.where(falls, middle, low), torch.where(falls, high, middle)
    return (low + high) / 2
