// Whether a step is progress: what filter.py says in torch.
#pragma once

#include "newton_problems.hpp"

namespace kernels::newton {

constexpr double SAFE[2] = {1e-100, 1e100};  // products of slacks within these stay finite with one more factor
constexpr double SAME = ROUNDING * 0x1p-52;  // of the objective: a change that is none

struct Merit {
    double theta;  // the violation
    double phi;  // the objective with its barrier
};

inline Merit merit(const Shape& shape, const Iterate& x, Count n, double barrier) {
    const double *values = x.values[n], *s = x.s[n];
    double theta = 0.0, phi = x.objective[n];
    for (Count i = 0; i < shape.p; i++) theta += std::fabs(values[i]);
    double product = 1.0;  // one logarithm of several slacks
    for (Count i = 0, q = shape.q(); i < q; i++) {
        theta += std::fabs(values[shape.p + i] + s[i]);
        product *= s[i] > 0 ? s[i] : NOT_A_NUMBER;
        if (!(SAFE[0] < product && product < SAFE[1])) {
            phi -= barrier * std::log(product);
            product = 1.0;
        }
    }
    return {theta, phi - barrier * std::log(product)};
}

// The model at the trial point, number f of what was found; slacks that are no smaller than the room there is.
inline void scale(const Problems& x, Count n, const Expansion& found, Count f) {
    const Shape& shape = x.shape;
    const Iterate& there = x.trial;
    const double *multipliers = x.outcome.multipliers[n], *rows = x.fixed.rows[n];
    double factor = x.fixed.scale[n], *gradient = there.gradient[n], *jacobian = there.jacobian[n];
    there.objective[n] = found.objective[f] * factor;
    copy(gradient, found.slope[f], shape.m);
    double* __restrict hessian = there.hessian[n];
    const double* given = found.hessian[f];
    for (Count e = 0; e < shape.hessian; e++) hessian[e] = given[e] * factor;
    given = found.jacobian[f];
    for (Count e = 0, count = shape.jacobian(); e < count; e++) {
        Count i = shape.rows[e];
        gradient[shape.columns[e]] += given[e] * multipliers[i];
        jacobian[e] = given[e] * rows[i];
    }
    for (Count a = 0; a < shape.m; a++) gradient[a] *= factor;
    for (Count i = 0; i < shape.k; i++) {
        double value = larger(found.values[f][i], -FARTHEST) * rows[i];
        there.values[n][i] = value;
        if (i >= shape.p && std::fabs(value) < INFINITE) {
            double& slack = there.s[n][i - shape.p];
            slack = larger(slack, -value);
        }
    }
}

// Whether the filter lets a point pass.
inline bool passes(const double* pairs, const Merit& point) {
    bool free = true;
    for (int i = 0; i < FILTER; i++) free = free && (point.theta < pairs[2 * i] || point.phi < pairs[2 * i + 1]);
    return free;
}

// Whether a step is progress; the model at the trial point, and what is remembered of the one before.
inline void judge(const Problems& x, Count n, const Expansion& found, Count f) {
    const Iterate &here = x.current, &there = x.trial;
    double barrier = x.fixed.barrier[n], theta_max = x.fixed.theta_max[n];
    Merit before = merit(x.shape, here, n, barrier);
    scale(x, n, found, f);
    Merit after = merit(x.shape, there, n, barrier);
    double length = x.outcome.length[n], slope = x.outcome.slope[n];
    double descent = std::pow(-slope > 0.0 ? -slope : 0.0, S_PHI);
    bool by_objective = before.theta <= LEAST * theta_max && length * descent > DELTA * std::pow(before.theta, S_THETA);
    double change = after.phi - before.phi - SAME * std::fabs(before.phi);
    bool armijo = change <= ETA * length * slope;
    bool better = after.theta <= (1 - GAMMA_THETA) * before.theta || change <= -GAMMA_PHI * before.theta;
    bool good = (by_objective ? armijo : better) && after.theta < theta_max && std::fabs(after.phi) < INFINITE;
    good = good && passes(here.filter[n], after);
    copy(there.filter[n], here.filter[n], 2 * FILTER);
    there.stored[n] = here.stored[n];
    if (good && !(by_objective && armijo)) {
        double* pair = there.filter[n] + 2 * (std::uint64_t(here.stored[n]) % FILTER);
        pair[0] = (1 - GAMMA_THETA) * before.theta;
        pair[1] = before.phi - GAMMA_PHI * before.theta;
        there.stored[n]++;
    }
    double shift = here.shift[n] * smaller(here.shift[n], LESS_SHIFT);
    there.shift[n] = shift >= LEAST_SHIFT ? shift : 0.0;
    x.outcome.accepted[n] = good;
}

}  // namespace kernels::newton
