"""The paper's results on dropping the constraints, one function each, on batched tensors.

The setting of all of them: C = 0 (the constraints do not see the input) and B = I (it enters the objective as x'u), or
B B' = c^2 I, which scales g'g_hat by c^2. With v the incoming gradient, g the exact gradient of the input and g_hat the
one of a rule, -g_hat descends if g'g_hat >= 0.

Letters: hessian is H = D^2_YY L, hessian_hat is H_hat = D^2_YY f, jacobian is A (p x m) and a its row if p = 1. Where
the assumptions of a result do not hold, its function returns NaN instead of a number.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..linear.contract import rank_tolerance, times
from .matrices import (
    definite_condition,
    definite_sign,
    free_directions,
    inverse_of,
    nan_unless,
    norm,
    oblique_projector,
    over,
    reduced_hessian,
    regular_spectrum,
)


def descends(g: Tensor, g_hat: Tensor) -> Tensor:  # (..., n), (..., n) -> (...)
    """Whether -g_hat is a descent direction of the loss whose gradient is g: g'g_hat >= 0.

    Example:
        >>> descends(torch.tensor([1.0, 0.0]), torch.tensor([[0.5, 2.0], [-0.1, 2.0]]))
        tensor([ True, False])
    """
    result: Tensor = (g * g_hat).sum(-1) >= 0
    return result


def cosine(g: Tensor, g_hat: Tensor) -> Tensor:  # (..., n), (..., n) -> (...)
    """The cosine of the angle between two gradients; 1 where both vanish, 0 where one does.

    Example:
        >>> cosine(torch.tensor([1.0, 0.0]), torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([0.6000, 0.0000])
    """
    length, length_hat = (norm(x) for x in (g, g_hat))
    inner = (over(g, length) * over(g_hat, length_hat)).sum(-1)
    return torch.where((length == 0) & (length_hat == 0), 1.0, inner.clamp(-1.0, 1.0))


def descent_value(hessian: Tensor, hessian_hat: Tensor, jacobian: Tensor, v: Tensor) -> Tensor:
    """g'g_hat of the ``unconstrained`` rule, equation (2) of the paper for any number of constraints:

        v' (H^-1 - H^-1 A' (A H^-1 A')^-1 A H^-1) H_hat^-1 v

    Pass ``hessian_hat=hessian`` for the ``curvature`` rule. NaN where H, H_hat or A H^-1 A' is singular.

    Example:
        >>> eye = torch.eye(2)
        >>> descent_value(eye, eye, torch.tensor([[1.0, 1.0]]), torch.tensor([1.0, 0.0]))
        tensor(0.5000)
    """
    projector, _, valid = oblique_projector(hessian, jacobian)
    inverse, regular = inverse_of(hessian)
    inverse_hat, regular_hat = inverse_of(hessian_hat)
    w, w_hat = times(inverse, v), times(inverse_hat, v)
    value = ((w - times(projector.mT, w)) * w_hat).sum(-1)
    return nan_unless(valid & regular & regular_hat, value)


# Lemmas.


def symmetric_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:  # (..., m) -> (..., 2), (..., m, 2)
    """Lemma A.1: ab' + ba' has eigenvalues a'b -+ ||a|| ||b||, with eigenvectors along ||b|| a -+ ||a|| b.

    Assumes that a and b are not parallel: otherwise one of the two eigenvectors is NaN, for it is any orthogonal one.

    Example:
        >>> symmetric_product(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0]))[0]
        tensor([-2.,  2.])
    """
    length, other = norm(a).unsqueeze(-1), norm(b).unsqueeze(-1)
    inner, product = (a * b).sum(-1), (length * other).squeeze(-1)
    vectors = torch.stack([other * a - length * b, other * a + length * b], -1)
    size = norm(vectors.mT)
    parallel = size <= rank_tolerance(a) * product.unsqueeze(-1)
    vectors = torch.where(parallel.unsqueeze(-2), torch.nan, vectors / size.unsqueeze(-2))
    return torch.stack([inner - product, inner + product], -1), vectors


def projection_spectrum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:  # (..., m) -> (...), (...)
    """Lemmas A.2 and A.3: the extreme eigenvalues of (ab' + ba') / (2 a'b), 1/2 -+ ||a|| ||b|| / (2 |a'b|).

    The other eigenvalues are zero; the sum is one. The second is the maximum of x'(ab' / a'b)x over ||x|| = 1. Assumes
    m > 1 and that a'b is not zero; NaN where it is.

    Example:
        >>> projection_spectrum(torch.tensor([1.0, 0.0]), torch.tensor([3.0, 4.0]))
        (tensor(-0.3333), tensor(1.3333))
    """
    inner, product = (a * b).sum(-1).abs(), norm(a) * norm(b)
    ratio = nan_unless(inner > rank_tolerance(a) * product, product / inner)
    return 0.5 - 0.5 * ratio, 0.5 + 0.5 * ratio


def expected_quadratic(matrix: Tensor, covariance: Tensor, mean: Tensor) -> Tensor:
    """Lemma A.4: E[x'Mx] = trace(M S) + mu'M mu for a random x with mean mu and covariance S; M need not be symmetric.

    Example:
        >>> expected_quadratic(torch.tensor([[1.0, 5.0], [0.0, 2.0]]), torch.eye(2), torch.ones(2))
        tensor(11.)
    """
    return (matrix * covariance.mT).sum((-2, -1)) + (mean * times(matrix, mean)).sum(-1)


# Linear constraints, and any constraint whose curvature the rule keeps.


def worst_case(hessian: Tensor, jacobian: Tensor) -> Tensor:  # (..., m, m), (..., p, m) -> (...)
    """Proposition 2.2, the quantity:

        max over ||w|| = 1 of w'(aa'H^-1 / a'H^-1 a)w = 1/2 + ||a|| ||H^-1 a|| / (2 |a'H^-1 a|)

    The approximation descends for every incoming gradient if and only if this is at most 1. For p constraints the
    matrix is the oblique projector P = A'(A H^-1 A')^-1 A H^-1, and the maximum 1/2 + ||P|| / 2 (0 for p = 0).

    Assumes that H and A H^-1 A' are not singular, and H = H_hat (linear constraints) for the ``unconstrained`` rule;
    for ``curvature`` the constraints may be any.

    Example:
        >>> worst_case(torch.diag(torch.tensor([1.0, 4.0])), torch.tensor([[1.0, 2.0]]))
        tensor(1.1250)
    """
    projector, rank, valid = oblique_projector(hessian, jacobian)
    value = torch.where(rank > 0, 0.5 + 0.5 * torch.linalg.matrix_norm(projector, 2), 0.0)
    return nan_unless(valid, value)


def worst_case_bounds(hessian: Tensor) -> tuple[Tensor, Tensor]:  # (..., m, m) -> (...), (...)
    """Proposition 2.2, its bounds: 1 <= worst case <= 1/2 + cond(H) / 2.

    Assumes that H is positive or negative definite. The paper asks only that it is not singular, but for an indefinite
    H the number a'H^-1 a may be as small as one likes, and the upper bound fails: it is NaN there.

    Example:
        >>> worst_case_bounds(torch.diag(torch.tensor([1.0, 4.0])))
        (tensor(1.), tensor(2.5000))
    """
    condition = definite_condition(hessian)
    return torch.ones_like(condition), 0.5 + 0.5 * condition


def sharp_upper_bound(hessian: Tensor) -> Tensor:  # (..., m, m) -> (...)
    """The upper bound that some constraint attains: 1/2 + (cond(H) + 1) / (4 sqrt(cond(H))), by Wielandt's inequality.

    It grows like the square root of cond(H), and holds for any number of constraints. Assumes, like the paper's, that H
    is definite; NaN where it is not.

    Example:
        >>> sharp_upper_bound(torch.diag(torch.tensor([1.0, 4.0])))
        tensor(1.1250)
    """
    condition = definite_condition(hessian)
    return 0.5 + (condition + 1) / (4 * condition.sqrt())


def expected_linear(hessian: Tensor, jacobian: Tensor) -> Tensor:  # (..., m, m), (..., p, m) -> (...)
    """Propositions 2.3 and 2.4: E[g'g_hat] = m - p of the ``unconstrained`` rule, for w = H^-1 v ~ N(0, I).

    Assumes linear constraints (H = H_hat), and that H and A H^-1 A' are not singular; redundant rows of A count once.

    Example:
        >>> expected_linear(torch.eye(5), torch.tensor([[1.0, 1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0, 0.0]]))
        tensor(3.)
    """
    return expected_curvature(hessian, jacobian)


def expected_curvature(hessian: Tensor, jacobian: Tensor) -> Tensor:  # (..., m, m), (..., p, m) -> (...)
    """Beyond the paper: E[g'g_hat] = m - p of the ``curvature`` rule for *any* constraints, for w = H^-1 v ~ N(0, I).

    With the Lagrangian's H in both gradients, g'g_hat = w'(I - P)w as in the linear case, and the trace of the
    projector P is the number of independent constraints. Assumes that H and A H^-1 A' are not singular; H may be
    indefinite.

    Example:
        >>> expected_curvature(torch.diag(torch.tensor([-1.0, 2.0, 3.0])), torch.tensor([[1.0, 1.0, 0.0]]))
        tensor(2.)
    """
    _, rank, valid = oblique_projector(hessian, jacobian)
    return nan_unless(valid, (hessian.shape[-1] - rank).to(hessian.dtype))


def expected_identity(hessian: Tensor, jacobian: Tensor) -> Tensor:  # (..., m, m), (..., p, m) -> (...)
    """Beyond the paper: E[g'g_hat] = trace((I - P) H) of the ``identity`` rule, for w = H^-1 v ~ N(0, I).

    For any constraints. Assumes that H and A H^-1 A' are not singular. Not negative at a minimum, see
    :func:`reduced_curvature`.

    Example:
        >>> expected_identity(torch.diag(torch.tensor([2.0, 3.0])), torch.tensor([[1.0, 0.0]]))
        tensor(3.)
    """
    projector, _, valid = oblique_projector(hessian, jacobian)
    return nan_unless(valid, (hessian - projector @ hessian).diagonal(dim1=-2, dim2=-1).sum(-1))


def reduced_curvature(hessian: Tensor, jacobian: Tensor) -> Tensor:  # (..., m, m), (..., p, m) -> (...)
    """The smallest eigenvalue of H on the null space of A; infinite where the constraints leave no freedom.

    Positive: the point is a strict minimum. Then, beyond the paper, the ``identity`` rule always descends: with Z a
    basis of the null space, g'g_hat = v' Z (Z'HZ)^-1 Z' v >= 0. Negative: it is a saddle.

    Example:
        >>> reduced_curvature(torch.diag(torch.tensor([-1.0, 3.0])), torch.tensor([[1.0, 0.0]]))
        tensor(3.)
    """
    free, fixed = free_directions(jacobian)
    # The fixed directions get a curvature above all others, so that the smallest eigenvalue is that of a free one.
    size = 2 * torch.linalg.matrix_norm(hessian, 2).clamp(min=torch.finfo(hessian.dtype).tiny)
    lowest = torch.linalg.eigvalsh(reduced_hessian(hessian, free, fixed, size))[..., 0]
    return torch.where(fixed.all(-1), torch.inf, lowest)


# The normalisation constraint.


def expected_normalised(hessian_hat: Tensor, multiplier: Tensor, a: Tensor) -> Tensor:
    """Proposition 2.5: E[g'g_hat] of the ``unconstrained`` rule under ||u||^2 = 1, for w = H^-1 v ~ N(0, I):

        sum_i (l_i - l) / l_i - (y'H_hat^-1 y) / (y'H^-1 y),   l_i the eigenvalues of H_hat

    Assumes one constraint with D^2_YY h = I, so that H = H_hat - l I; that neither is singular; and y'H^-1 y not zero.
    The paper has a = y; only the direction of the constraint's gradient a matters, so a sphere may be anywhere.

    Args:
        hessian_hat: H_hat, (..., m, m).
        multiplier: l, the constraint's multiplier times its curvature, (...).
        a: the gradient of the constraint, (..., m).

    Example:
        >>> h = torch.diag(torch.tensor([1.0, 2.0]))
        >>> expected_normalised(h, torch.tensor([-1.0, 3.0]), torch.tensor([1.0, 0.0]))
        tensor([ 1.5000, -0.5000])
    """
    values, vectors = torch.linalg.eigh(hessian_hat)
    shifted = values - multiplier.unsqueeze(-1)
    weights = times(vectors.mT, a).square()
    upper, lower = (weights / values).sum(-1), (weights / shifted).sum(-1)
    size = (weights / shifted.abs()).sum(-1)
    valid = _both_regular(values, shifted) & (lower.abs() > rank_tolerance(hessian_hat) * size)
    return nan_unless(valid, (shifted / values).sum(-1) - upper / lower)


def normalised_case(hessian_hat: Tensor, multiplier: Tensor) -> Tensor:  # (..., m, m), (...) -> (...)
    """Proposition 2.6: the sign of E[g'g_hat] under ||u||^2 = 1, from the multiplier and the spectrum of H_hat.

    For H_hat > 0: +1 (descends on average) if l < l_1, case (i); -1 (ascends!) if l > l_m, case (ii). For H_hat < 0 the
    mirror: +1 if l > l_m, -1 if l < l_1. Anything else is 0: the proposition does not apply. Assumptions as in
    :func:`expected_normalised`.

    Example:
        >>> h = torch.diag(torch.tensor([1.0, 2.0]))
        >>> normalised_case(h, torch.tensor([0.5, 1.5, 2.5])), normalised_case(-h, torch.tensor([-0.5, -1.5, -2.5]))
        (tensor([ 1,  0, -1]), tensor([ 1,  0, -1]))
    """
    values = torch.linalg.eigvalsh(hessian_hat)
    shifted = values - multiplier.unsqueeze(-1)
    return definite_sign(values) * definite_sign(shifted) * _both_regular(values, shifted)


def _both_regular(values: Tensor, shifted: Tensor) -> Tensor:  # (..., m), (..., m) -> (...)
    return regular_spectrum(values) & regular_spectrum(shifted, values)


def normalised_bound(hessian_hat: Tensor, multiplier: Tensor) -> Tensor:  # (..., m, m), (...) -> (...)
    """Proposition 2.6, the number in its proof: a lower bound of E[g'g_hat] in case (i), an upper bound in case (ii).

    With r_i = (l_i - l) / l_i it is sum_i r_i - max_i r_i in case (i), where all r_i are positive, and
    sum_i r_i - min_i r_i in case (ii), where all are negative. NaN where neither case applies.

    Example:
        >>> h = torch.diag(torch.tensor([1.0, 2.0]))
        >>> normalised_bound(h, torch.tensor([0.0, 1.5, 3.0]))
        tensor([ 1.0000,     nan, -0.5000])
    """
    values = torch.linalg.eigvalsh(hessian_hat)
    ratios = (values - multiplier.unsqueeze(-1)) / values
    case = normalised_case(hessian_hat, multiplier)
    outermost = torch.where(case > 0, ratios.amax(-1), ratios.amin(-1))
    return nan_unless(case != 0, ratios.sum(-1) - outermost)
