"""Beyond the paper: active inequalities, inputs that enter by any matrix B, and singular Hessians.

As in :mod:`.propositions`: functions of batched tensors, and NaN where the assumptions do not hold. C = 0 throughout;
the rule is ``curvature``, which for linear constraints is ``unconstrained`` too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..linear.contract import rank_tolerance
from .matrices import (
    definite_condition,
    free_directions,
    inverse_of,
    nan_unless,
    oblique_projector,
    rank_of_rows,
    reduced_hessian,
    regular_spectrum,
)
from .propositions import sharp_upper_bound, worst_case


def active_rows(equalities: Tensor, inequalities: Tensor, active: Tensor) -> Tensor:
    """The Jacobian with which all results hold where inequalities are active: those that are not have zero rows.

    A row of zeros counts for nothing in any of the functions, so that E[g'g_hat] = m - p - (active inequalities).
    Assumes strict complementarity: with a multiplier of zero the solution has a kink, and g is one-sided.

    Args:
        equalities: D_Y h, (..., p, m).
        inequalities: D_Y g, (..., q, m).
        active: which of them hold with equality, (..., q).

    Example:
        >>> from declarative.theory.propositions import expected_linear
        >>> eye = torch.eye(3)
        >>> expected_linear(2 * eye, active_rows(torch.ones(1, 3), eye, torch.tensor([True, False, False])))
        tensor(1.)
    """
    return torch.cat([equalities, inequalities * active.to(inequalities.dtype).unsqueeze(-1)], -2)


# Any B: only M = B B' counts. In the paper M = I.


def expected_weighted(hessian: Tensor, jacobian: Tensor, gram: Tensor) -> Tensor:  # gram: M, (..., m, m)
    """E[g'g_hat] = trace((I - Q) M) for w = H^-1 v ~ N(0, I), with Q = H^-1 A'(A H^-1 A')^-1 A and M = B B'.

    (For L'w ~ N(0, I) instead, with M = L L', it is m - p whatever B is.) Assumes that H and A H^-1 A' are regular.

    Example:
        >>> expected_weighted(torch.eye(2), torch.tensor([[1.0, 0.0]]), torch.diag(torch.tensor([5.0, 3.0])))
        tensor(3.)
    """
    projector, _, valid = oblique_projector(hessian, jacobian)  # the transpose of Q
    return nan_unless(valid, (gram - projector @ gram).diagonal(dim1=-2, dim2=-1).sum(-1))


def expected_weighted_bounds(hessian: Tensor, jacobian: Tensor, gram: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds of :func:`expected_weighted` by the spectrum of M and cond(H) alone: the rows of A may be any p.

    With c the middle of the spectrum of M, trace(Q M) = c p + trace(Q (M - c I)), and by von Neumann's inequality the
    last term is at most ||Q|| times the sum of the p largest |mu_i - c|, where ||Q|| <= (k + 1) / (2 sqrt(k)) for
    k = cond(H). Both bounds are trace M - p c for M = c I. Assumes that H is definite.

    Example:
        >>> gram = torch.diag(torch.tensor([2.0, 3.0, 4.0]))
        >>> expected_weighted_bounds(torch.eye(3), torch.tensor([[1.0, 0.0, 0.0]]), gram)
        (tensor(5.), tensor(7.))
    """
    values = torch.linalg.eigvalsh(gram)
    middle = (values[..., 0] + values[..., -1]) / 2
    rank, condition = rank_of_rows(jacobian), definite_condition(hessian)
    norm = (condition + 1) / (2 * condition.sqrt())
    away = (values - middle.unsqueeze(-1)).abs().sort(-1, descending=True).values
    counted = torch.arange(values.shape[-1], device=values.device) < rank.unsqueeze(-1)
    centre, spread = values.sum(-1) - rank * middle, norm * (away * counted).sum(-1)
    return centre - spread, centre + spread


def weighted_worst_case(hessian: Tensor, jacobian: Tensor, gram: Tensor) -> Tensor:
    """Proposition 2.2 for any B: max over w of w'Q'M w / w'M w; the rule descends for every v if it is at most 1.

    In the variables L'u, with M = L L', the Hessian is L^-1 H L^-T and the constraints are A L^-T, and there B is
    orthogonal: it is the paper's quantity for these two. Assumes that M is positive definite, H and A H^-1 A' regular.

    Example:
        >>> weighted_worst_case(torch.eye(2), torch.tensor([[1.0, 2.0]]), torch.diag(torch.tensor([1.0, 4.0])))
        tensor(1.0831)
    """
    inner, rows, valid = _in_units_of_inputs(hessian, jacobian, gram)
    return nan_unless(valid, worst_case(inner, rows))


def weighted_upper_bound(hessian: Tensor, gram: Tensor) -> Tensor:  # (..., m, m), (..., m, m) -> (...)
    """The largest :func:`weighted_worst_case` of all constraints: 1/2 + (k + 1) / (4 sqrt(k)).

    Here k is the condition number of H relative to M, the ratio of the largest and smallest w'H w / w'M w. It is 1, and
    every constraint harmless, if H is a multiple of B B'. Assumes that both are definite.

    Example:
        >>> gram = torch.diag(torch.tensor([1.0, 4.0]))
        >>> weighted_upper_bound(3 * gram, gram), weighted_upper_bound(torch.eye(2), gram)
        (tensor(1.), tensor(1.1250))
    """
    inner, _, valid = _in_units_of_inputs(hessian, hessian[..., :0, :], gram)
    return nan_unless(valid, sharp_upper_bound(inner))


def _in_units_of_inputs(hessian: Tensor, jacobian: Tensor, gram: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """L^-1 H L^-T, A L^-T, and where M = L L' is positive definite to working precision."""
    factor, info = torch.linalg.cholesky_ex(gram)
    pivots = factor.diagonal(dim1=-2, dim2=-1).square()
    before = gram.diagonal(dim1=-2, dim2=-1)
    valid = (info == 0) & (pivots > rank_tolerance(gram) * before).all(-1)
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    inverse = torch.linalg.solve_triangular(torch.where(valid[..., None, None], factor, eye), eye, upper=False)
    inner = inverse @ hessian @ inverse.mT
    return (inner + inner.mT) / 2, jacobian @ inverse.mT, valid


# Singular H, regular KKT matrix: the rule takes the pseudo-inverse, z_hat = H^+ v.


def expected_singular(hessian: Tensor, jacobian: Tensor) -> Tensor:  # (..., m, m), (..., p, m) -> (...)
    """E[g'g_hat] = m - p also for a singular H, for H^+ v ~ N(0, I) on the range of H and B B' = I.

    The part of v in the null space of H may be any that is independent of the rest and has mean zero. Assumes that H
    is regular on the null space of A, so that the KKT matrix is; redundant rows of A count once.

    Example:
        >>> expected_singular(torch.diag(torch.tensor([0.0, 2.0, 3.0])), torch.tensor([[1.0, 0.0, 0.0]]))
        tensor(2.)
    """
    _, regular = _constrained_inverse(hessian, jacobian)
    return nan_unless(regular, (hessian.shape[-1] - rank_of_rows(jacobian)).to(hessian.dtype))


def singular_worst_case(hessian: Tensor, jacobian: Tensor) -> Tensor:  # (..., m, m), (..., p, m) -> (...)
    """Proposition 2.2 for a singular H: max over w in the range of H, ||w|| = 1, of w'(I - K H)w; B B' = I.

    K is the upper left block of the inverse of the KKT matrix. It is the paper's quantity where H is regular. Where the
    null space of H is not in the span of the rows of A, it is infinite: K v has then a part that H^+ v knows nothing
    of, and that can have any sign. Where the two are the same, it is 0, for the rule is exact (eigenvectors).

    Example:
        >>> H = torch.diag(torch.tensor([0.0, 2.0, 3.0]))
        >>> rows = torch.tensor([[[1.0, 0.0, 0.0]], [[1.0, 1.0, 0.0]]])
        >>> singular_worst_case(H.expand(2, 3, 3), rows)
        tensor([0., inf])
    """
    inverse, regular = _constrained_inverse(hessian, jacobian)
    values, vectors = torch.linalg.eigh(hessian)
    size = values.abs().amax(-1, keepdim=True)
    flat = values.abs() <= rank_tolerance(hessian) * size
    null, span = (vectors * which.unsqueeze(-2) for which in (flat, ~flat))
    unknown = torch.linalg.matrix_norm(size.unsqueeze(-1) * inverse @ null, 2) > rank_tolerance(hessian) ** 0.5
    rest = (
        span.mT @ (torch.eye(hessian.shape[-1], dtype=hessian.dtype, device=hessian.device) - inverse @ hessian) @ span
    )
    value = torch.linalg.eigvalsh((rest + rest.mT) / 2)[..., -1]
    exact = flat.sum(-1) == rank_of_rows(jacobian)
    return nan_unless(regular, torch.where(unknown, torch.inf, torch.where(exact, 0.0, value)))


def _constrained_inverse(hessian: Tensor, jacobian: Tensor) -> tuple[Tensor, Tensor]:
    """K = Z (Z'H Z)^-1 Z' for a basis Z of the null space of A, and where Z'H Z is regular."""
    free, fixed = free_directions(jacobian)
    size = torch.linalg.matrix_norm(hessian, 2).clamp(min=torch.finfo(hessian.dtype).tiny)
    reduced = reduced_hessian(hessian, free, fixed, size)
    inverse, _ = inverse_of((reduced + reduced.mT) / 2)
    regular = regular_spectrum(torch.linalg.eigvalsh(reduced), size.unsqueeze(-1))
    return free @ inverse @ free.mT, regular
