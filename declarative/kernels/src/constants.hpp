// Constants of the methods, which their descriptions in Python have under the same names: a test compares them.
#pragma once

namespace kernels {

namespace dense {
constexpr double PIVOT = 1e-15;  // a pivot that cancelled to less than this fraction of what it was is zero
constexpr double DIGITS = 0x1p-26;  // half of those of a number
}  // namespace dense

namespace spectrum {
constexpr double STIFF = 1e4;  // an inequality whose barrier curves this much more than H is as good as an equality
constexpr double NOTHING = 1e-12;  // curvature that is less than this part of the largest may be none
constexpr double DEPENDENT = 1e-10;  // what is left of a row of length 1 that depends on others
constexpr int SWEEPS = 30;  // of plane rotations: six to ten are enough
constexpr double ROUNDING = 0x1p-52 / 10;
}  // namespace spectrum

namespace ldl {
constexpr double PIVOT = 1e-13;  // a pivot that cancelled to less than this fraction is zero
constexpr double REPLACED = 1e-8;  // what it is replaced with, relative to what it was made from
constexpr double SMALLEST = 1e-300;  // where there is nothing to be relative to
constexpr double GOAL = 1e-15;  // a relative residual from which a solution is not corrected any more
constexpr double FADED = 1e-4;  // of what the terms of an equation were, if corrections have left less of them
constexpr int CORRECTIONS = 20;  // at most
constexpr double LOST = 1e-10;  // a relative residual above this is not what a correct pivot order leaves
}  // namespace ldl

namespace newton {
constexpr double BOUNDARY[2] = {0.99, 0.999};  // how much of the way to s = 0 a step may go, at least and at most
constexpr double CENTRAL[2] = {1e-10, 1e10};  // times the barrier: s y is kept within these
constexpr int LOWERINGS = 3;  // of the barrier at once
constexpr double CENTRED = 1e-3;  // of the last barrier: how far slack times multiplier may be from it
constexpr double FARTHEST = 1e20;  // a bound at infinity is merely far away
constexpr int BACKTRACKS = 30;  // how often a step is shortened
constexpr double FIRST_SHIFT = 1e-2;  // the first regularisation of H, relative to its diagonal
constexpr double MORE_SHIFT = 8.0;  // the factor by which it grows
constexpr double LESS_SHIFT = 0.1;  // the factor by which it becomes smaller, at most
constexpr double LEAST_SHIFT = 1e-8;  // below that, none is needed any more
constexpr double TINY_SHIFT = 1e-12;  // makes flat definite
constexpr double LEAST_SIZE = 1e-8;  // of H and of A, where they vanish
constexpr double HEAVIER = 1e4;  // the factor by which the weight of A'A grows
constexpr double STRAY = 1e-2;  // a point that is violated by more is far from feasible
constexpr double REACH = 3.0;  // sizes of u: no step along a direction of negative curvature is longer
constexpr double STATIONARY = 10.0;  // times the tolerances, within which a saddle point may be near
constexpr double COMPLEMENTARY = 1e-6;  // and times the gap
constexpr double FLAT = 1e-6;  // a pivot that cancels to less than this may belong to a flat direction
constexpr int FILTER = 24;  // points that a step has to improve on, at the most
constexpr double LEAST = 1e-8;  // of the largest theta that is allowed: below, progress is asked of the objective
constexpr int ROUNDING = 10;  // units in the last place: a change of the objective that is none
constexpr double GAMMA_THETA = 1e-5;  // of the filter method of Waechter and Biegler (2006), under their names there
constexpr double GAMMA_PHI = 1e-8;
constexpr double ETA = 1e-8;
constexpr double S_THETA = 1.1;
constexpr double S_PHI = 2.3;
constexpr double DELTA = 1.0;
constexpr double SOLVED = 1e-8;  // the relative residual of a sparse step that is one: a test compares it
}  // namespace newton

namespace active_set {
constexpr int PIVOTS = 8;  // take as long as an iteration of the interior-point method at least
constexpr double DEPENDENT = 1e-10;  // of a pivot, relative to what it was before elimination
constexpr double VIOLATED = 1e-12;  // of a slack, relative to the largest
constexpr double CLEAR = 1e-9;  // of a slack or a multiplier, relative to the largest: not zero
}  // namespace active_set

}  // namespace kernels
