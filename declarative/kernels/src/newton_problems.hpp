// The arrays that the Newton method works on, a row for each problem, and how they lie in one buffer.
#pragma once

#include "constants.hpp"
#include "memory.hpp"

namespace kernels::newton {

// What all problems of a batch have in common.
struct Shape {
    Count m, k, p;  // how many unknowns, constraints, and equalities, which come first
    std::vector<std::uint32_t> rows, columns;  // of the entries of A that are stored
    std::vector<std::int64_t> diagonal;  // where that of H is among its entries, -1 if an entry is not stored, (m,)
    Count hessian;  // how many entries of H are stored

    Count q() const { return k - p; }
    Count jacobian() const { return Count(rows.size()); }
};

inline void check(const Shape& x) {
    constexpr Count MOST = 1 << 28;
    require(x.m >= 0 && x.p >= 0 && x.p <= x.k && x.m < MOST && x.k < MOST && x.hessian >= 0 && x.hessian < MOST,
            "the sizes of a problem are out of range");
    require(x.rows.size() == x.columns.size() && Count(x.diagonal.size()) == x.m, "arrays of different lengths");
    for (std::uint32_t row : x.rows) require(row < x.k, "an entry of A is in no row");
    for (std::uint32_t column : x.columns) require(column < x.m, "an entry of A is in no column");
    for (std::int64_t place : x.diagonal) require(place >= -1 && place < x.hessian, "an entry of H is not stored");
}

// When a problem is solved, and how small its barrier may be: as in parameters.py.
struct Tolerances {
    double feasibility, stationarity, complementarity, barrier, step;
};

// How values and derivatives are in the units of the user.
struct Expansion {
    const double* objective;  // (batch,)
    Rows<const double> slope;  // of the Lagrangian, (batch, m)
    Rows<const double> values;  // (batch, k)
    Rows<const double> jacobian;  // (batch, entries)
    Rows<const double> hessian;  // (batch, entries)
};

// Cuts a buffer into arrays, one after the other.
struct Cutter {
    Count count;
    double* numbers;

    double* scalars() { return rows(1).data; }
    Floats rows(Count width) {
        Floats cut{numbers, width};
        numbers += count * width;
        return cut;
    }
};

// Points, the models there, and what a step changes besides: see state.py.
struct Iterate {
    double* objective;
    Floats gradient, values, jacobian, hessian, u, s, y;
    double* shift;
    Floats filter;  // pairs, (batch, 2 FILTER)
    Count* stored;  // (batch,)

    Iterate(const Shape& x, Cutter& cut, Count* stored)
        : objective(cut.scalars()), gradient(cut.rows(x.m)), values(cut.rows(x.k)), jacobian(cut.rows(x.jacobian())),
          hessian(cut.rows(x.hessian)), u(cut.rows(x.m)), s(cut.rows(x.q())), y(cut.rows(x.k)), shift(cut.scalars()),
          filter(cut.rows(2 * FILTER)), stored(stored) {}
};

// What a step does not change of a problem: the rest of its state, and its scales.
struct Fixed {
    double *barrier, *weight, *theta_max;
    Floats last_barrier;  // (batch, 0) or (batch, 1)
    Floats start;  // (batch, m)
    double* scale;  // of the objective
    Floats rows;  // scales of the constraints, (batch, k)

    Fixed(const Shape& x, Count last, Cutter& cut)
        : barrier(cut.scalars()), weight(cut.scalars()), theta_max(cut.scalars()), last_barrier(cut.rows(last)),
          start(cut.rows(x.m)), scale(cut.scalars()), rows(cut.rows(x.k)) {}
};

// The linear system of the step, [H + diag(primal), A'; A, -diag(dual)] [z; s] = [r; t], and its solution.
struct System {
    Floats primal, dual, r, t, z, s;
    double* pivot;  // the least one of H along the constraints, relatively; positive if H is definite there
    bool* factored;  // whether the matrix is as it should be

    System(const Shape& x, Cutter& cut, bool* factored)
        : primal(cut.rows(x.m)), dual(cut.rows(x.k)), r(cut.rows(x.m)), t(cut.rows(x.k)), z(cut.rows(x.m)),
          s(cut.rows(x.k)), pivot(cut.scalars()), factored(factored) {}
};

// What is known of a step besides where it leads.
struct Outcome {
    Floats multipliers;  // at the trial point, in the convention of the batch, (batch, k)
    double* length;  // of the step
    double* slope;  // of the objective and its barrier along the step
    bool* optimal;  // whether the current point fulfils the optimality conditions
    bool* solved;  // and the step from there is short
    bool* accepted;  // whether it is progress

    Outcome(const Shape& x, Cutter& cut, bool* flags, Count count)
        : multipliers(cut.rows(x.k)), length(cut.scalars()), slope(cut.scalars()), optimal(flags),
          solved(flags + count), accepted(flags + 2 * count) {}
};

// Problems side by side, with all that an iteration makes of them; arrays lie in the order in which they are declared.
struct Problems {
    static constexpr Count COUNTS = 2, FLAGS = 4;  // how many arrays there are of these

    const Shape& shape;
    Count count, last, width;
    Cutter cut;
    Iterate current, trial;
    Fixed fixed;
    System system;
    Outcome outcome;
    Floats inputs;  // of the functions, (batch, width)

    Problems(const Shape& shape, Count count, Count last, Count width, double* numbers, Count* counts, bool* flags)
        : shape(shape), count(count), last(last), width(width), cut{count, numbers}, current(shape, cut, counts),
          trial(shape, cut, counts + count), fixed(shape, last, cut), system(shape, cut, flags),
          outcome(shape, cut, flags + count, count), inputs(cut.rows(width)) {}

    // How many numbers a problem takes.
    static Count size(const Shape& x, Count last, Count width) {
        Count iterate = 2 + 2 * x.m + 2 * x.k + x.jacobian() + x.hessian + x.q() + 2 * FILTER;
        return 2 * iterate + (4 + last + x.m + x.k) + (3 * x.m + 3 * x.k + 1) + (x.k + 2) + width;
    }
};

// Problem j of one, to place i of the other.
inline void copy_iterate(const Shape& shape, const Iterate& to, Count i, const Iterate& x, Count j) {
    to.objective[i] = x.objective[j], to.shift[i] = x.shift[j], to.stored[i] = x.stored[j];
    copy(to.gradient[i], x.gradient[j], shape.m);
    copy(to.values[i], x.values[j], shape.k);
    copy(to.jacobian[i], x.jacobian[j], shape.jacobian());
    copy(to.hessian[i], x.hessian[j], shape.hessian);
    copy(to.u[i], x.u[j], shape.m);
    copy(to.s[i], x.s[j], shape.q());
    copy(to.y[i], x.y[j], shape.k);
    copy(to.filter[i], x.filter[j], 2 * FILTER);
}

// The same of all that is known of a problem, but for the system and the length of the step.
inline void copy_problem(const Problems& to, Count i, const Problems& x, Count j) {
    const Shape& shape = x.shape;
    copy_iterate(shape, to.current, i, x.current, j);
    copy_iterate(shape, to.trial, i, x.trial, j);
    copy(to.inputs[i], x.inputs[j], x.width);
    const Fixed &a = to.fixed, &b = x.fixed;
    a.barrier[i] = b.barrier[j], a.weight[i] = b.weight[j], a.theta_max[i] = b.theta_max[j], a.scale[i] = b.scale[j];
    copy(a.last_barrier[i], b.last_barrier[j], x.last);
    copy(a.start[i], b.start[j], shape.m);
    copy(a.rows[i], b.rows[j], shape.k);
    to.system.factored[i] = x.system.factored[j], to.system.pivot[i] = x.system.pivot[j];
    to.outcome.solved[i] = x.outcome.solved[j], to.outcome.accepted[i] = x.outcome.accepted[j];
}

}  // namespace kernels::newton
