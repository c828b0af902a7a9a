// The linear systems of Newton's step, of small dense problems and of sparse ones.
#pragma once

#include "dense.hpp"
#include "newton_iteration.hpp"
#include "substitution.hpp"

namespace kernels::newton {

constexpr double STEP_GOAL = 1e-12;  // a relative residual with which a step is as good as any
constexpr int SHIFTS = 10;  // how often a regularisation is made larger here
constexpr double LARGEST_SHIFT = 1e4;  // and what may become of it

class DenseSteps {
  public:
    DenseSteps() = default;
    DenseSteps(const Shape& x, Memory& memory) {
        auto matrix = [&](Count rows, Count columns) { return Floats{memory.take<double>(rows * columns), columns}; };
        matrix_ = matrix(x.m, x.m), half_ = matrix(x.p, x.m), complement_ = matrix(x.p, x.p);
        forces_ = memory.take<double>(x.k);
    }

    void solve(const Problems& x, Count n) const {
        const System& system = x.system;
        Count m = x.shape.m, k = x.shape.k, p = x.shape.p;
        const double* hessian = x.current.hessian[n];
        for (Count a = 0; a < m; a++) {
            copy(matrix_[a], hessian + a * m, a + 1);
            matrix_[a][a] += system.primal[n][a];
        }
        for (Count i = 0; i < k; i++) forces_[i] = i < p ? x.fixed.weight[n] : 1 / system.dual[n][i];
        copy(system.z[n], system.r[n], m);
        copy(system.s[n], system.t[n], k);
        dense::Solved found = dense::solve_kkt(matrix_, Floats{x.current.jacobian[n], m}, forces_, m, k, p,
                                               system.z[n], system.s[n], half_, complement_);
        system.factored[n] = found.good, system.pivot[n] = found.room;
    }

  private:
    Floats matrix_, half_, complement_;
    double* forces_ = nullptr;
};

// Entries of K, from values (batch, width) of so many problems; lanes to spare repeat the last one.
template <int L>
inline double* arrange(Rows<const double> values, Count first, Count there, double* entries) {
    for (int lane = 0; lane < L; lane++) {
        const double* row = values[first + (lane < there ? lane : there - 1)];
        for (Count e = 0; e < values.width; e++) entries[e * L + lane] = row[e];
    }
    return entries + values.width * L;
}

inline Rows<const double> read_only(Floats x) { return {x.data, x.width}; }

template <int L>
class SparseSteps {
  public:
    SparseSteps() = default;
    SparseSteps(const Plan& plan, Memory& memory) : plan_(&plan), room_(plan, memory) {}

    // As the sparse layout does it, for at most so many problems as there are lanes.
    void solve(const Problems& x, Count first, Count there) {
        const Plan& plan = *plan_;
        const Iterate& here = x.current;
        const System& system = x.system;
        Count m = x.shape.m, k = x.shape.k;
        double* to = arrange<L>(read_only(here.hessian), first, there, room_.entries);
        to = arrange<L>(read_only(here.jacobian), first, there, to);
        to = arrange<L>(read_only(system.primal), first, there, to);
        for (int lane = 0; lane < L; lane++) {
            Count n = first + (lane < there ? lane : there - 1);
            double* right = room_.rows.right + lane;
            for (Count i = 0; i < k; i++) to[i * L + lane] = -system.dual[n][i];
            for (Count i = 0; i < m; i++) right[Count(plan.place[i]) * L] = system.r[n][i];
            for (Count i = 0; i < k; i++) right[Count(plan.place[m + i]) * L] = system.t[n][i];
        }
        ldl::factorise<L>(plan, room_.entries, room_.factor, room_.work);
        ldl::solve<L>(plan, room_.entries, room_.factor, room_.rows, room_.error, STEP_GOAL);
        for (Count lane = 0; lane < there; lane++) {
            Count n = first + lane;
            const double *counts = room_.factor.counts + lane, *found = room_.rows.x + lane;
            bool convex = counts[0] + counts[2 * L] == double(m);
            system.factored[n] = convex && room_.error[lane] <= SOLVED;
            system.pivot[n] = convex ? 1.0 : 0.0;
            for (Count i = 0; i < m; i++) system.z[n][i] = found[Count(plan.place[i]) * L];
            for (Count i = 0; i < k; i++) system.s[n][i] = found[Count(plan.place[m + i]) * L];
        }
    }

  private:
    const Plan* plan_ = nullptr;
    ldl::Room<L> room_;
};

// The steps of at most so many problems as there are lanes; sparse ones if there is a plan.
template <int L>
class Steps {
  public:
    Steps(const Shape& shape, const Plan* plan, double* diagonal, Memory& memory) : plan_(plan), diagonal_(diagonal) {
        if (plan) {
            require(plan->size() == shape.m + shape.k &&
                        plan->entries() == shape.hessian + shape.jacobian() + shape.m + shape.k,
                    "the plan of a sparse system is for another pattern");
            sparse_ = SparseSteps<L>(*plan, memory);
        } else {
            require(shape.hessian == shape.m * shape.m && shape.jacobian() == shape.k * shape.m,
                    "the matrices of a dense system are not whole");
            dense = DenseSteps(shape, memory);
        }
    }

    // Where H of a sparse problem is not positive definite along the constraints, with a shift, if wanted.
    void solve(const Problems& x, Count begin, Count end, bool shifted) {
        if (!plan_) {
            for (Count n = begin; n < end; n++) dense.solve(x, n);
            return;
        }
        sparse_.solve(x, begin, end - begin);
        for (int turn = 0; shifted && turn < SHIFTS; turn++) {
            bool more = false;
            for (Count n = begin; n < end; n++)
                if (!(x.system.pivot[n] > 0) && x.current.shift[n] < LARGEST_SHIFT) {
                    shift_more(x, n);
                    more = true;
                }
            if (!more) return;
            sparse_.solve(x, begin, end - begin);
        }
    }

    DenseSteps dense;

  private:
    // A larger regularisation of one problem.
    void shift_more(const Problems& x, Count n) const {
        double &shift = x.current.shift[n], steepest = 0.0;
        find_diagonal(x.shape, x.current.hessian[n], diagonal_);
        for (Count a = 0; a < x.shape.m; a++) steepest = larger(steepest, std::fabs(x.system.r[n][a]));
        shift = larger(MORE_SHIFT * shift, FIRST_SHIFT);
        find_primal(shift, steepest, diagonal_, x.system.primal[n], x.shape.m);
    }

    const Plan* plan_;
    double* diagonal_;
    SparseSteps<L> sparse_;
};

}  // namespace kernels::newton
