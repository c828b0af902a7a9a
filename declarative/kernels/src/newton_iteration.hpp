// An iteration of the Newton method, problem by problem: what iteration.py says in torch.
//
// Three passes over the problems: before the step's system is solved, before the functions are evaluated, and after
// that (in newton_filter.hpp). Comparisons are written such that what is not a number is never good.
#pragma once

#include "newton_problems.hpp"

namespace kernels::newton {

// Terms of the optimality conditions of one problem.
struct Vectors {
    double *slope, *force;  // (m,)
    double* diagonal;  // of H, (m,)
    double* residual;  // (k,)
    double* terms;  // the sizes of what is summed up in the constraints, (k,)

    Vectors(const Shape& x, Memory& memory)
        : slope(memory.take<double>(x.m)), force(memory.take<double>(x.m)), diagonal(memory.take<double>(x.m)),
          residual(memory.take<double>(x.k)), terms(memory.take<double>(x.k)) {}
};

// How far one problem is from its solution.
struct Measures {
    double stationarity;
    double steepest;  // the largest slope
    double residual;  // the largest one
    double violation;
    double gap;
    double product;  // the largest s y
    double large;  // what it is relative to
    double stretched;  // the largest y times the terms of its inequality
    double off;  // how far an s y is from the last barrier, if there is one
};

// How far it is; what its terms are is left in the vectors.
inline Measures measure(const Problems& x, Count n, const Vectors& to) {
    const Shape& shape = x.shape;
    const Iterate& here = x.current;
    const double *s = here.s[n], *y = here.y[n], *u = here.u[n], *jacobian = here.jacobian[n];
    double *slope = to.slope, *force = to.force, *terms = to.terms;
    Count m = shape.m, k = shape.k, p = shape.p;
    copy(slope, here.gradient[n], m);
    fill(force, m, 0.0);
    fill(terms, k, 0.0);
    for (Count e = 0, count = shape.jacobian(); e < count; e++) {
        Count i = shape.rows[e], a = shape.columns[e];
        double pull = jacobian[e] * y[i];
        slope[a] += pull;
        force[a] += std::fabs(pull);
        terms[i] += std::fabs(jacobian[e] * u[a]);
    }
    double missed = 0.0, violation = 0.0, gap = 0.0, product = 0.0, large = 1.0, stretched = 1.0, off = 0.0;
    for (Count i = 0; i < k; i++) {
        double value = here.values[n][i];
        to.residual[i] = i < p ? value : value + s[i - p];
        missed = larger(missed, std::fabs(to.residual[i]));
        violation = larger(violation, i < p ? std::fabs(value) : larger(0.0, value));
        if (i >= p) {
            double span = larger(1.0, terms[i]), both = s[i - p] * y[i];
            large = larger(large, y[i] / 100), stretched = larger(stretched, y[i] * span);
            product = larger(product, both), gap = larger(gap, both / span);
            if (x.last) off = larger(off, std::fabs(both - x.fixed.last_barrier[n][0]));
        }
    }
    double steepest = 0.0, forces = 1.0;
    for (Count a = 0; a < m; a++) {
        steepest = larger(steepest, std::fabs(slope[a]));
        forces = larger(larger(forces, std::fabs(here.gradient[n][a])), force[a]);
    }
    return {steepest / forces, steepest, missed, violation, gap, product, large, stretched, off};
}

// The barrier of a problem that has solved its present one well enough, lowered; the filter starts anew.
inline double lower_barrier(const Problems& x, Count n, const Measures& found, const Tolerances& tolerances) {
    double before = x.fixed.barrier[n], barrier = before;
    if (!x.shape.q()) return before;
    double lowest = smaller(tolerances.barrier * found.stretched, 0.2 * tolerances.complementarity * found.large);
    if (x.last) lowest = larger(lowest, x.fixed.last_barrier[n][0]);
    double enough = larger(larger(found.stationarity, found.residual) / 10, found.product / (1 + 10 * found.large));
    for (int turn = 0; turn < LOWERINGS; turn++)
        if (barrier >= enough)
            barrier = smaller(larger(smaller(0.2 * barrier, std::pow(barrier, 1.5)), lowest), barrier);
    if (barrier < before) {
        fill(x.current.filter[n], 2 * FILTER, INFINITE);
        x.current.stored[n] = 0;
        x.fixed.barrier[n] = barrier;
    }
    return barrier;
}

// The diagonal of H.
inline void find_diagonal(const Shape& shape, const double* hessian, double* diagonal) {
    for (Count a = 0; a < shape.m; a++) diagonal[a] = shape.diagonal[a] >= 0 ? hessian[shape.diagonal[a]] : 0.0;
}

// What a shift adds to the diagonal of H: so many times its size.
inline void find_primal(double shift, double steepest, const double* diagonal, double* primal, Count m) {
    double most = 0.0;
    for (Count a = 0; a < m; a++) most = larger(most, std::fabs(diagonal[a]));
    double least = larger(larger(1e-6 * most, 1e-3 * steepest), 1e-8);
    for (Count a = 0; a < m; a++) primal[a] = shift * larger(std::fabs(diagonal[a]), least);
}

inline bool is_optimal(const Problems& x, Count n, const Measures& found, const Tolerances& tolerances) {
    bool complementary = found.gap / found.large <= tolerances.complementarity;
    if (x.last)
        complementary = found.off / found.large <=
                        smaller(CENTRED * x.fixed.last_barrier[n][0], tolerances.complementarity);
    bool feasible = found.violation <= tolerances.feasibility;
    return complementary && feasible && found.stationarity <= tolerances.stationarity;
}

// The barrier, the system of Newton's step, and whether the problem is solved where it is.
inline void prepare(const Problems& x, Count n, const Tolerances& tolerances, const Vectors& vectors) {
    const Iterate& here = x.current;
    const System& system = x.system;
    Count m = x.shape.m, k = x.shape.k, p = x.shape.p;
    Measures found = measure(x, n, vectors);
    double barrier = lower_barrier(x, n, found, tolerances);
    find_diagonal(x.shape, here.hessian[n], vectors.diagonal);
    find_primal(here.shift[n], found.steepest, vectors.diagonal, system.primal[n], m);
    for (Count a = 0; a < m; a++) system.r[n][a] = -vectors.slope[a];
    for (Count i = 0; i < p; i++) system.dual[n][i] = 0.0, system.t[n][i] = -vectors.residual[i];
    for (Count i = p; i < k; i++) {
        double s = here.s[n][i - p], y = here.y[n][i];
        system.dual[n][i] = s / y, system.t[n][i] = s - vectors.residual[i] - barrier / y;
    }
    x.outcome.optimal[n] = is_optimal(x, n, found, tolerances);
}

// The length of the step relative to u, the largest over its entries.
inline double relative_step(
    const double* u, const double* start, const double* gradient, const double* diagonal, const double* z, Count m
) {
    double energy = 0.0, longest = 0.0;
    for (Count a = 0; a < m; a++)
        energy += (std::fabs(gradient[a]) + std::fabs(diagonal[a]) * std::fabs(u[a])) * std::fabs(u[a]);
    for (Count a = 0; a < m; a++) {
        double reach = diagonal[a] > 0 ? std::sqrt(energy / diagonal[a]) : 0.0;
        double size = std::fabs(u[a]) + 1e-3 * (std::fabs(u[a] - start[a]) + reach);
        longest = larger(longest, std::fabs(z[a]) / (0 < size && size < INFINITE ? size : 1.0));
    }
    return longest;
}

// The length of a step that keeps a value positive, if that is shorter.
inline double to_boundary(double fraction, double value, double change, double length) {
    return change < 0 ? smaller(length, -fraction * value / change) : length;
}

// Along the step, by a share of what slacks and multipliers stay positive with.
inline void move(const Problems& x, Count n, double share, const Tolerances& tolerances, double* diagonal) {
    const Iterate &here = x.current, &there = x.trial;
    const Fixed& fixed = x.fixed;
    const Outcome& outcome = x.outcome;
    Count m = x.shape.m, k = x.shape.k, p = x.shape.p;
    const double *s = here.s[n], *y = here.y[n], *z = x.system.z[n], *dy = x.system.s[n];
    double barrier = fixed.barrier[n], fraction = smaller(larger(1 - barrier, BOUNDARY[0]), BOUNDARY[1]);
    double length = 1.0, dual_length = 1.0, along = 0.0;
    double *s_there = there.s[n], *y_there = there.y[n];
    for (Count i = p; i < k; i++) {
        double change = barrier / y[i] - s[i - p] - dy[i] * x.system.dual[n][i];
        s_there[i - p] = change;
        along -= barrier * change / s[i - p];
        length = to_boundary(fraction, s[i - p], change, length);
        dual_length = to_boundary(fraction, y[i], dy[i], dual_length);
    }
    length *= share;
    for (Count i = 0; i < p; i++) y_there[i] = y[i] + length * dy[i];
    for (Count i = p; i < k; i++) {
        s_there[i - p] = s[i - p] + length * s_there[i - p];
        double centre = barrier / s_there[i - p];
        y_there[i] = larger(smaller(y[i] + dual_length * dy[i], CENTRAL[1] * centre), CENTRAL[0] * centre);
    }
    for (Count i = 0; i < k; i++) outcome.multipliers[n][i] = -y_there[i] * fixed.rows[n][i] / fixed.scale[n];
    for (Count a = 0; a < m; a++) {
        along += here.gradient[n][a] * z[a];
        there.u[n][a] = here.u[n][a] + length * z[a];
    }
    outcome.length[n] = length, outcome.slope[n] = along;
    outcome.solved[n] = outcome.optimal[n];
    if (outcome.optimal[n]) {
        find_diagonal(x.shape, here.hessian[n], diagonal);
        double step = relative_step(here.u[n], fixed.start[n], here.gradient[n], diagonal, z, m);
        outcome.solved[n] = step <= tolerances.step;
    }
}

// A second-order correction: the system of a step that makes up for what the constraints came to along this one.
inline void correct(const Problems& x, Count n, const Tolerances& tolerances, double* diagonal) {
    move(x, n, 1.0, tolerances, diagonal);  // for the slacks of the step alone
    Count p = x.shape.p;
    for (Count i = 0; i < x.shape.k; i++) {
        double before = x.current.values[n][i], after = x.trial.values[n][i];
        if (i >= p) before += x.current.s[n][i - p], after += x.trial.s[n][i - p];
        double total = x.outcome.length[n] * before + (is_finite(after) ? after : 0.0);
        x.system.t[n][i] += before - total;
    }
}

}  // namespace kernels::newton
