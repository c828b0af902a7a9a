"""How probable it is that a cheap gradient descends, where its average alone says little.

For w = H^-1 v ~ N(0, I) the product g'g_hat is a quadratic form w'Mw, which has the distribution of sum_i l_i z_i^2 for
the eigenvalues l_i of M's symmetric part and independent standard normal z_i. As in :mod:`.propositions`: C = 0 and
B B' = c^2 I, functions of batched tensors, and NaN where the assumptions do not hold.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..linear.contract import rank_tolerance
from .matrices import inverse_of, nan_unless, oblique_projector

DIGITS = 40.0  # natural logarithm of what is left out at either end of the integral
ENTRIES = 2**22  # that are computed at once


def form_of_curvature(hessian: Tensor, jacobian: Tensor) -> Tensor:  # (..., m, m), (..., p, m) -> (..., m)
    """The eigenvalues of w'Mw = g'g_hat for the ``curvature`` rule, M = I - P with P = A'(A H^-1 A')^-1 A H^-1.

    One is 1 - (the worst case of Proposition 2.2), the smallest. Assumes that H and A H^-1 A' are not singular.
    """
    return _spectrum(hessian, jacobian, None)


def form_of_unconstrained(hessian: Tensor, hessian_hat: Tensor, jacobian: Tensor) -> Tensor:
    """The same for the ``unconstrained`` rule, M = (I - P) H_hat^-1 H, whatever the constraints are.

    Assumes that H_hat is not singular either.
    """
    inverse, regular = inverse_of(hessian_hat)
    return nan_unless(regular.unsqueeze(-1), _spectrum(hessian, jacobian, inverse @ hessian))


def form_of_identity(hessian: Tensor, jacobian: Tensor) -> Tensor:
    """The same for the ``identity`` rule, M = (I - P) H, none of which is negative at a strict minimum."""
    return _spectrum(hessian, jacobian, hessian)


def _spectrum(hessian: Tensor, jacobian: Tensor, image: Tensor | None) -> Tensor:
    projector, _, valid = oblique_projector(hessian, jacobian)
    form = torch.eye(hessian.shape[-1], dtype=hessian.dtype, device=hessian.device) - projector
    form = form if image is None else form @ image
    form = torch.where(valid[..., None, None], form, 0.0)
    return nan_unless(valid.unsqueeze(-1), torch.linalg.eigvalsh((form + form.mT) / 2))


def never_negative(values: Tensor) -> Tensor:  # (..., m) -> (...)
    """Whether a form with these eigenvalues is nowhere negative, up to rounding errors; not where they are NaN.

    Example:
        >>> never_negative(torch.tensor([[0.0, 1.0], [-0.1, 1.0], [float("nan"), 1.0]]))
        tensor([ True, False, False])
    """
    result: Tensor = values.amin(-1) >= -(torch.finfo(values.dtype).eps ** 0.5) * values.abs().amax(-1)
    return result


def chance_of_positive(values: Tensor) -> Tensor:  # (..., m) -> (...)
    """P(sum_i l_i z_i^2 >= 0) for independent standard normal z_i, to ten digits and more.

    Imhof's inversion of the characteristic function,

        1/2 + 1/pi * integral of sin(1/2 sum_i arctan(l_i u)) / (u prod_i (1 + l_i^2 u^2)^(1/4)) over u > 0,

    by the trapezoidal rule in log u: there the integrand is analytic and vanishes exponentially at both ends, so that
    the rule converges exponentially, and it hardly oscillates.

    Example:
        >>> chance_of_positive(torch.tensor([[1.0, -1.0], [3.0, -1.0], [1.0, 2.0], [-1.0, 0.0]]))
        tensor([0.5000, 0.6667, 1.0000, 0.0000])
    """
    m, dtype = values.shape[-1], values.dtype
    size = values.abs().amax(-1, keepdim=True)
    known = values.isfinite().all(-1)
    scaled = torch.where((size > 0) & known.unsqueeze(-1), values / torch.where(size > 0, size, 1.0), 0.0).double()
    scaled = torch.where(scaled.abs() > rank_tolerance(values), scaled, 0.0)
    falls, rises = (scaled < 0).any(-1), (scaled > 0).any(-1)
    chance = torch.where(falls & ~rises, 0.0, 1.0).to(scaled)
    mixed = falls & rises
    if bool(mixed.any()):
        chance[mixed] = _inverted(scaled[mixed], m)
    return nan_unless(known, chance.to(dtype))


def _inverted(values: Tensor, m: int) -> Tensor:  # (n, m), of either sign, the largest 1 -> (n,)
    """Imhof's integral."""
    second = float(values.abs().topk(2).values[:, 1].min())
    step = 1 / (4 + math.sqrt(m))  # a form of many terms is nearly normal, and its integrand narrow
    low, high = -DIGITS - math.log(m), DIGITS - math.log(second) / 2
    u = torch.arange(low, high, step, dtype=values.dtype, device=values.device).exp()
    total = torch.zeros_like(values[:, 0])
    for part in u.split(max(1, ENTRIES // values.numel())):
        x = values.unsqueeze(-2) * part.unsqueeze(-1)
        size = (-0.25 * x.square().log1p().sum(-1)).exp()
        total = total + ((0.5 * x.arctan().sum(-1)).sin() * size).sum(-1)
    return (0.5 + step / math.pi * total).clamp(0.0, 1.0)


def least_chance(condition: Tensor, m: int, p: int) -> Tensor:  # (...) -> (...)
    """The least probability of descent of the ``curvature`` rule for p independent constraints on m unknowns.

    Over all definite H of this condition number k and all constraints. The eigenvalues of its form are a pair
    (1 - s_i) / 2 and (1 + s_i) / 2 for each singular value s_i > 1 of the projector, then ones and zeros; the larger an
    s_i is the smaller is the probability, and s_i <= (k + 1) / (2 sqrt(k)). It is attained, by an H that has each of
    its extreme eigenvalues min(p, m - p) times.

    Example:
        >>> least_chance(torch.tensor([1.0, 1e2, 1e4]), 4, 1)
        tensor([1.0000, 0.7717, 0.5562])
    """
    pairs = min(p, m - p)
    s = ((condition + 1) / (2 * condition.sqrt())).unsqueeze(-1)
    ones = torch.ones_like(s)
    free = ones.expand(*s.shape[:-1], m - p - pairs)
    values = [(1 - s).expand(*s.shape[:-1], pairs) / 2, (1 + s).expand(*s.shape[:-1], pairs) / 2, free]
    return chance_of_positive(torch.cat(values, -1))
