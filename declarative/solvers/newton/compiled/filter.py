"""Whether a step is progress, as machine code: what ``filter.py`` says in torch."""

from __future__ import annotations

import math

import numpy as np

from ....linear.jit import Floats, compiled, copy, copy_pairs, inner, larger, smaller
from ..parameters import (
    DELTA,
    ETA,
    FARTHEST,
    FILTER,
    GAMMA_PHI,
    GAMMA_THETA,
    LEAST,
    LEAST_SHIFT,
    LESS_SHIFT,
    ROUNDING,
    S_PHI,
    S_THETA,
)
from .arrays import Common, Expansion, Iterate, Problems

SAFE = (1e-100, 1e100)  # products of slacks within these stay finite when the next one is multiplied
SAME = ROUNDING * float(np.finfo(np.float64).eps)  # of the objective: a change that is none


@inner
def _merit(x: Iterate, n: int, barrier: float) -> tuple[float, float]:
    """(theta, phi): the violation, and the objective with its barrier."""
    values, s, phi = x.values[n], x.s[n], x.objective[n]
    p, theta = len(values) - len(s), 0.0
    for i in range(p):
        theta += abs(values[i])
    product = 1.0  # one logarithm of several slacks
    for i in range(len(s)):
        theta += abs(values[p + i] + s[i])
        product *= s[i] if s[i] > 0 else np.nan
        if not SAFE[0] < product < SAFE[1]:
            phi -= barrier * math.log(product)
            product = 1.0
    return theta, phi - barrier * math.log(product)


@inner
def _scale(x: Problems, common: Common, n: int, found: Expansion, f: int) -> None:
    """The model at the trial point, number f of what was found; slacks that are no smaller than the room there is."""
    there, multipliers, rows, scale, p = x.trial, x.outcome.multipliers[n], x.fixed.rows[n], x.fixed.scale[n], common.p
    there.objective[n] = found.objective[f] * scale
    copy(there.gradient[n], found.slope[f])
    for e in range(found.hessian.shape[1]):
        there.hessian[n, e] = found.hessian[f, e] * scale
    for e in range(len(common.rows)):
        i = common.rows[e]
        there.gradient[n, common.columns[e]] += found.jacobian[f, e] * multipliers[i]
        there.jacobian[n, e] = found.jacobian[f, e] * rows[i]
    for a in range(there.gradient.shape[1]):
        there.gradient[n, a] *= scale
    for i in range(len(rows)):
        value = larger(found.values[f, i], -FARTHEST) * rows[i]
        there.values[n, i] = value
        if i >= p and abs(value) < np.inf:
            there.s[n, i - p] = larger(there.s[n, i - p], -value)


@inner
def _passes(pairs: Floats, theta: float, phi: float) -> bool:
    """Whether the filter lets a point pass."""
    free = True
    for i in range(FILTER):
        free = free and (theta < pairs[i, 0] or phi < pairs[i, 1])
    return free


@inner
def judge(x: Problems, common: Common, found: Expansion, begin: int, end: int) -> None:
    """Whether each step is progress; the model at the trial point, and what is remembered of the one before.

    What was found is of these problems alone.
    """
    here, there = x.current, x.trial
    for n in range(begin, end):
        barrier, theta_max = x.fixed.barrier[n], x.fixed.theta_max[n]
        theta_before, phi_before = _merit(here, n, barrier)
        _scale(x, common, n, found, n - begin)
        theta, phi = _merit(there, n, barrier)
        length, slope = x.outcome.length[n], x.outcome.slope[n]
        descent = max(-slope, 0.0) ** S_PHI
        by_objective = theta_before <= LEAST * theta_max and length * descent > DELTA * theta_before**S_THETA
        change = phi - phi_before - SAME * abs(phi_before)
        armijo = change <= ETA * length * slope
        better = theta <= (1 - GAMMA_THETA) * theta_before or change <= -GAMMA_PHI * theta_before
        good = (armijo if by_objective else better) and theta < theta_max and abs(phi) < np.inf
        good = good and _passes(here.filter[n], theta, phi)
        copy_pairs(there.filter[n], here.filter[n])
        there.stored[n] = here.stored[n]
        if good and not (by_objective and armijo):
            there.filter[n, here.stored[n] % FILTER, 0] = (1 - GAMMA_THETA) * theta_before
            there.filter[n, here.stored[n] % FILTER, 1] = phi_before - GAMMA_PHI * theta_before
            there.stored[n] += 1
        shift = here.shift[n] * smaller(here.shift[n], LESS_SHIFT)
        there.shift[n] = shift if shift >= LEAST_SHIFT else 0.0
        x.outcome.accepted[n] = good


@compiled
def judge_all(x: Problems, common: Common, found: Expansion) -> None:
    """:func:`judge`, for all problems of a batch."""
    judge(x, common, found, 0, len(x.current.u))
