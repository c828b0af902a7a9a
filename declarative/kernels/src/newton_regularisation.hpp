// The regularisation of small dense problems: what regularisation.py does in torch.
//
// Where H is not positive definite along the constraints, negative curvature is reflected, or H is shifted, or a weight
// of A'A is all that is missing. What belongs to the saddle point nearby, or needs more than that, is left to torch.
#pragma once

#include "newton_steps.hpp"
#include "spectrum.hpp"

namespace kernels::newton {

constexpr int ATTEMPTS = 12;  // of ever larger weights and shifts

// What a regularisation of one problem changes, as it was; and room to find one in.
struct Unregularised {
    double* hessian;  // (m * m,)
    double shift = 0.0, weight = 0.0;
    spectrum::Spectrum spectrum;
    double* slope;  // (m,)
    double* unit;  // what a shift of 1 adds to the diagonal of H, (m,)

    Unregularised(Count m, Memory& memory)
        : hessian(memory.take<double>(m * m)), spectrum(m, memory), slope(memory.take<double>(m)),
          unit(memory.take<double>(m)) {}

    // The problem as it was.
    void undo(const Problems& x, Count n) const {
        copy(x.current.hessian[n], hessian, x.shape.hessian);
        x.current.shift[n] = shift, x.fixed.weight[n] = weight;
    }
};

// A weight of A'A that is worth as much as H; zero if there are no equalities.
inline double weight_unit(const Problems& x, Count n) {
    Count m = x.shape.m, p = x.shape.p;
    if (!p) return 0.0;
    const double *hessian = x.current.hessian[n], *jacobian = x.current.jacobian[n];
    double size = LEAST_SIZE, most = LEAST_SIZE;
    for (Count e = 0; e < m * m; e++) size = larger(size, std::fabs(hessian[e]));
    for (Count a = 0; a < m; a++) {
        double total = 0.0;
        for (Count i = 0; i < p; i++) total += jacobian[i * m + a] * jacobian[i * m + a];
        most = larger(most, total);
    }
    return size / most;
}

// How long a step may be that curvature says nothing about.
inline double reach(const double* u, const double* start, Count m) {
    double far = 0.0;
    for (Count a = 0; a < m; a++) far = larger(far, larger(std::fabs(u[a]), std::fabs(u[a] - start[a])));
    return REACH * (far > 0 ? far : 1.0);
}

// Reflect the curvature of H, or shift it, if it curves down along the constraints.
inline void correct_inertia(const Problems& x, Count n, double violation, const Unregularised& room) {
    const Iterate& here = x.current;
    const System& system = x.system;
    Count m = x.shape.m, k = x.shape.k, p = x.shape.p;
    if (!spectrum::find(here.hessian[n], here.jacobian[n], system.dual[n], m, k, p, room.unit, room.spectrum)) return;
    double least = INFINITE;
    for (Count a = 0; a < m; a++) least = room.spectrum.values[a] < least ? room.spectrum.values[a] : least;
    if (least > spectrum::NOTHING) return;
    here.shift[n] = larger(here.shift[n], TINY_SHIFT);
    if (violation > STRAY) {
        here.shift[n] = larger(here.shift[n], -2 * least);
        return;
    }
    for (Count a = 0; a < m; a++) room.slope[a] = -system.r[n][a];
    for (Count i = p; i < k; i++) {
        double force = (here.y[n][i] * here.values[n][i] + x.fixed.barrier[n]) / here.s[n][i - p];
        dense::add(room.slope, force, here.jacobian[n] + i * m, m);
    }
    spectrum::turn(here.hessian[n], room.slope, reach(here.u[n], x.fixed.start[n], m), room.spectrum, m);
}

// The step of one problem with an H that is positive definite along the constraints; what is not good is as it was.
inline void regularise(
    const Problems& x, Count n, const Tolerances& tolerances, const Vectors& vectors, const DenseSteps& steps,
    Unregularised& before
) {
    const Iterate& here = x.current;
    const System& system = x.system;
    double &shift = here.shift[n], &weight = x.fixed.weight[n];
    Count m = x.shape.m;
    Measures found = measure(x, n, vectors);
    bool feasible = found.violation <= STATIONARY * tolerances.feasibility;
    bool stationary = found.stationarity <= STATIONARY * tolerances.stationarity;
    copy(before.hessian, here.hessian[n], x.shape.hessian);
    before.shift = shift, before.weight = weight;
    if (feasible && stationary && found.gap <= COMPLEMENTARY * found.large) return;  // a saddle point may be near
    double unit = weight_unit(x, n);
    find_diagonal(x.shape, here.hessian[n], vectors.diagonal);
    find_primal(1.0, found.steepest, vectors.diagonal, before.unit, m);
    correct_inertia(x, n, found.violation, before);
    for (int attempt = 0;; attempt++) {
        find_diagonal(x.shape, here.hessian[n], vectors.diagonal);
        find_primal(shift, found.steepest, vectors.diagonal, system.primal[n], m);
        steps.solve(x, n);
        if (system.pivot[n] > 0 || attempt == ATTEMPTS) break;
        if (attempt < 2 && unit > 0)  // a larger weight may be all that is missing
            weight = weight == 0 ? unit : larger(weight, HEAVIER * unit);
        else
            shift = larger(MORE_SHIFT * shift, TINY_SHIFT);
    }
    if (!system.factored[n]) before.undo(x, n);
}

}  // namespace kernels::newton
