"""The constants of the method, in torch and compiled alike, and the tolerances of a call."""

from __future__ import annotations

from typing import NamedTuple

BOUNDARY = (0.99, 0.999)  # the fraction of the way to s = 0 that a step may go, at least and at most
CENTRAL = (1e-10, 1e10)  # times the barrier: s y is kept within these, so that no pair is lost
LOWERINGS = 3  # of the barrier at once
CENTRED = 1e-3  # of the last barrier, if it is not zero: how far slack times multiplier may be from it
FARTHEST = 1e20  # a bound at infinity is merely far away
BACKTRACKS = 30  # how often a step is shortened

FIRST_SHIFT = 1e-2  # the first regularisation of H, relative to its diagonal
MORE_SHIFT = 8.0  # the factor by which it grows
LESS_SHIFT = 0.1  # the factor by which the regularisation of H becomes smaller, at most
LEAST_SHIFT = 1e-8  # below that, none is needed any more
TINY_SHIFT = 1e-12  # makes flat definite
LEAST_SIZE = 1e-8  # of H and of A, where they vanish
HEAVIER = 1e4  # the factor by which the weight of A'A grows
STRAY = 1e-2  # a point that is violated by more is far from feasible
REACH = 3.0  # sizes of u: no step along a direction of negative curvature is longer
STATIONARY, COMPLEMENTARY = 10.0, 1e-6  # times the tolerances, and the gap, within which a saddle point may be near
FLAT = 1e-6  # a pivot that cancels to less than this may belong to a flat direction

FILTER = 24  # points that a step has to improve on, at the most
LEAST = 1e-8  # of the largest theta that is allowed: below that, progress is asked of the objective
ROUNDING = 10  # units in the last place: a change of the objective that is none
# The constants of the filter method of Wächter and Biegler (2006), under their names there.
GAMMA_THETA, GAMMA_PHI, ETA, S_THETA, S_PHI, DELTA = 1e-5, 1e-8, 1e-8, 1.1, 2.3, 1.0


class Tolerances(NamedTuple):
    """When a problem is solved, and how small its barrier may be."""

    feasibility: float
    stationarity: float
    complementarity: float
    barrier: float
    step: float  # steps that are shorter, relative to u, need not be taken
