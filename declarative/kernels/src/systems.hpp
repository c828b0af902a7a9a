// The systems of linear equations that a tape solves on the way, their entries in its registers.
#pragma once

#include "dense.hpp"
#include "substitution.hpp"

namespace kernels {

// What the systems of one program have in common.
struct Systems {
    enum Form { NONE, DENSE, SPARSE } form = NONE;
    Count m = 0, k = 0;  // of dense ones
    const Plan* plan = nullptr;  // of sparse ones

    Count reads() const {
        if (form == DENSE) return m * m + k * m + k + m + k;
        return form == SPARSE ? plan->entries() + plan->size() : -1;
    }
    Count writes() const {
        if (form == DENSE) return m + k + 1;
        return form == SPARSE ? plan->size() + 3 : -1;
    }
};

template <int L>
class SystemSolver {
  public:
    SystemSolver(const Systems& systems, Memory& memory) : systems_(systems) {
        if (systems.form == Systems::DENSE) dense_ = dense::ActiveSystem(systems.m, systems.k, memory);
        if (systems.form == Systems::SPARSE) sparse_ = ldl::Room<L>(*systems.plan, memory);
    }

    // `reads(i)` and `writes(i)` are the registers of its numbers; of the lanes so many are in use.
    template <typename Reads, typename Writes>
    void solve(double* r, Count there, Reads reads, Writes writes) {
        if (systems_.form == Systems::DENSE)
            solve_dense(r, there, reads, writes);
        else
            solve_sparse(r, reads, writes);
    }

  private:
    // Reads H, A, what is active, and the right-hand side; writes the solution and whether it is to be trusted.
    template <typename Reads, typename Writes>
    void solve_dense(double* r, Count there, Reads reads, Writes writes) {
        dense::ActiveSystem& x = dense_;
        Count m = x.m, k = x.k;
        for (Count lane = 0; lane < there; lane++) {
            Count i = 0;
            auto take = [&](double* to, Count count) {
                for (Count entry = 0; entry < count; entry++) to[entry] = r[Count(reads(i++)) * L + lane];
            };
            take(x.hessian.data, m * m);
            take(x.jacobian.data, k * m);
            take(x.active, k);
            take(x.z, m);
            take(x.s, k);
            x.solve();
            for (Count a = 0; a < m; a++) r[Count(writes(a)) * L + lane] = x.z[a];
            for (Count a = 0; a < k; a++) r[Count(writes(m + a)) * L + lane] = x.s[a];
            r[Count(writes(m + k)) * L + lane] = x.trusted ? 1.0 : 0.0;
        }
    }

    // Reads the entries of the matrix and the right-hand side; writes the solution and what the layout says of it.
    template <typename Reads, typename Writes>
    void solve_sparse(double* r, Reads reads, Writes writes) {
        const Plan& plan = *systems_.plan;
        ldl::Room<L>& room = sparse_;
        Count size = plan.size(), count = plan.entries(), unknowns = 0;
        for (Count e = 0; e < count; e++) store<L>(room.entries, e, load<L>(r, reads(e)));
        for (Count i = 0; i < size; i++) store<L>(room.rows.right, plan.place[i], load<L>(r, reads(count + i)));
        ldl::factorise<L>(plan, room.entries, room.factor, room.work);
        ldl::solve<L>(plan, room.entries, room.factor, room.rows, room.error, ldl::GOAL);
        for (Count i = 0; i < size; i++) {
            unknowns += plan.is_constraint[i] ? 0 : 1;
            store<L>(r, writes(i), load<L>(room.rows.x, plan.place[i]));
        }
        const double *above = room.factor.counts, *below = above + L, *replaced = above + 2 * L;
        bool regular = true;
        for (int lane = 0; lane < L; lane++) {
            r[Count(writes(size)) * L + lane] = above[lane] + replaced[lane] == double(unknowns) ? 1.0 : 0.0;
            r[Count(writes(size + 1)) * L + lane] = room.error[lane];
            r[Count(writes(size + 2)) * L + lane] = 1.0;
            regular = regular && above[lane] + below[lane] == double(size);
        }
        if (regular) return;
        // Pivots had to be replaced: is there a solution for a right-hand side without a pattern too?
        for (Count i = 0; i < size; i++)
            store<L>(room.rows.right, plan.place[i], broadcast<L>(0.5 + std::fmod(0.6180339887 * double(i + 1), 1.0)));
        ldl::solve<L>(plan, room.entries, room.factor, room.rows, room.error, ldl::GOAL);
        for (int lane = 0; lane < L; lane++) {
            bool alike = above[lane] + below[lane] == double(size);
            r[Count(writes(size + 2)) * L + lane] = alike || room.error[lane] <= ldl::LOST ? 1.0 : 0.0;
        }
    }

    const Systems& systems_;
    dense::ActiveSystem dense_;
    ldl::Room<L> sparse_;
};

}  // namespace kernels
