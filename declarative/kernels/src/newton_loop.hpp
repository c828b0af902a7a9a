// Iterations of the Newton method one after the other, for as long as all goes as hoped.
//
// As many problems as stay close to the processor are worked on side by side, in lanes. Each goes on until it is
// plainly solved, needs more than an ordinary iteration, or it is time to look; then it is put back as that iteration
// found and made it, for loop.py to judge, and the next problem takes its lane.
#pragma once

#include <atomic>

#include "newton_filter.hpp"
#include "newton_regularisation.hpp"
#include "tape.hpp"

namespace kernels::newton {

// How values and derivatives are evaluated.
struct Functions {
    const Program* program;
    const double* shared;
    Count at_u;  // where these are among the inputs of a problem; -1 if they do not matter
    Count at_multipliers;
};

// How each problem fares.
struct Progress {
    const bool* running;
    const bool* stepping;  // whether it takes Newton steps, and not some towards feasibility
    bool* shifted;  // whether its last factors were shifted: a solution may be a saddle point
    const bool* unquestioned;  // whether it is not asked any more if a solution is a saddle point
    bool* finished;  // whether it was solved here
    Count* iterations;
    Floats u, y;  // its solution and multipliers
    bool* flags;  // of the last iteration: solved, factored, accepted, flat, (4, batch)
};

template <int L>
class Loop {
  public:
    Loop(const Problems& batch, const Functions& functions, const Plan* plan, bool regularises,
         const Tolerances& tolerances, const Progress& progress)
        : batch_(batch), shape_(batch.shape), functions_(functions), tolerances_(tolerances), progress_(progress),
          sparse_(plan != nullptr), regularises_(regularises), vectors_(shape_, memory_),
          steps_(shape_, plan, vectors_.diagonal, memory_),
          unregularised_(regularises ? shape_.m : 0, memory_),
          machine_(*functions.program, functions.shared, memory_),
          outputs_(memory_.take<double>(functions.program->offsets.back() * L)),
          step_(memory_.take<double>(shape_.m + shape_.k)),
          x_(shape_, L, batch.last, batch.width,
             memory_.take<double>(L * Problems::size(shape_, batch.last, batch.width)),
             memory_.zeros<Count>(Problems::COUNTS * L), memory_.zeros<bool>(Problems::FLAGS * L)) {}

    // At most so many iterations of each problem that is running; those that are waiting are shared by all loops.
    // To be `sure`, what may be a saddle point is not solved.
    void run(std::atomic<Count>& waiting, Count most, bool sure) {
        Count count = 0, who[L], turns[L];
        while (true) {
            while (count < L) {  // lanes are filled
                Count next = waiting.fetch_add(1, std::memory_order_relaxed);
                if (next >= batch_.count) break;
                if (progress_.running[next]) {
                    copy_problem(x_, count, batch_, next);
                    who[count] = next, turns[count] = 0;
                    count++;
                }
            }
            if (!count) return;
            for (Count n = 0; n < count; n++) prepare(x_, n, tolerances_, vectors_);
            steps_.solve(x_, 0, count, true);
            if (sparse_)
                for (Count n = 0; n < count; n++) progress_.shifted[who[n]] = x_.current.shift[n] > 0;
            try_steps(1.0, 0, count);
            for (Count n = 0; n < count; n++) mend(n, who[n]);
            for (Count n = 0; n < count;) {
                Count g = who[n];
                if (!is_over(g, n, sure) && turns[n] < most - 1) {
                    copy_iterate(shape_, x_.current, n, x_.trial, n);
                    progress_.iterations[g]++;
                    turns[n]++, n++;
                    continue;
                }
                copy_problem(batch_, g, x_, n);
                count--;
                if (n < count) {  // the last one moves here
                    copy_problem(x_, n, x_, count);
                    who[n] = who[count], turns[n] = turns[count];
                }
            }
        }
    }

  private:
    // See where the steps lead, of the problems from the one to before the other.
    void try_steps(double share, Count begin, Count end) {
        for (Count n = begin; n < end; n++) {
            move(x_, n, share, tolerances_, vectors_.diagonal);
            if (functions_.at_u >= 0) copy(x_.inputs[n] + functions_.at_u, x_.trial.u[n], shape_.m);
            if (functions_.at_multipliers >= 0)
                copy(x_.inputs[n] + functions_.at_multipliers, x_.outcome.multipliers[n], shape_.k);
        }
        Count there = end - begin;
        machine_.run(Floats{x_.inputs[begin], x_.width}, 0, there, outputs_);
        const Count* at = functions_.program->offsets.data();
        auto part = [&](int i) { return Rows<const double>{outputs_ + at[i] * there, at[i + 1] - at[i]}; };
        Expansion found{outputs_, part(1), part(2), part(3), part(4)};
        for (Count n = begin; n < end; n++) judge(x_, n, found, n - begin);
    }

    // What a problem whose step is not good needs besides.
    void mend(Count n, Count g) {
        bool stepping = progress_.stepping[g];
        bool refused = x_.system.factored[n] && !(x_.outcome.accepted[n] || x_.outcome.solved[n]);
        if (refused && stepping && (x_.current.shift[n] == 0 || !sparse_)) {
            search(n);
            x_.trial.shift[n] = x_.current.shift[n];  // which is not made smaller after such a step
        } else if (regularises_ && stepping && !(x_.system.pivot[n] > 0)) {
            try_regularised(n);
            progress_.shifted[g] = x_.current.shift[n] > 0;
        }
    }

    // Where a step of one problem is no progress: corrected, or shortened, until it is.
    void search(Count n) {
        const System& system = x_.system;
        Count m = shape_.m, k = shape_.k;
        double share = 1.0;
        // Where the objective is undefined, to correct the constraints does not help.
        if (k && std::fabs(x_.trial.objective[n]) < INFINITE) {
            bool factored = system.factored[n];
            double pivot = system.pivot[n];
            copy(step_, system.z[n], m);
            copy(step_ + m, system.s[n], k);
            correct(x_, n, tolerances_, vectors_.diagonal);
            steps_.solve(x_, n, n + 1, false);
            try_steps(share, n, n + 1);
            copy(system.z[n], step_, m);
            copy(system.s[n], step_ + m, k);
            system.factored[n] = factored, system.pivot[n] = pivot;
        }
        for (int turn = 0; turn < BACKTRACKS && !x_.outcome.accepted[n]; turn++) {
            share /= 2;
            try_steps(share, n, n + 1);
        }
    }

    // Where H of one problem is not positive definite along the constraints: a step with one that is.
    void try_regularised(Count n) {
        regularise(x_, n, tolerances_, vectors_, steps_.dense, unregularised_);
        if (!x_.system.factored[n]) return;
        try_steps(1.0, n, n + 1);
        if (!(x_.outcome.accepted[n] || x_.outcome.solved[n])) search(n);
        copy(x_.current.hessian[n], unregularised_.hessian, shape_.hessian);
        x_.trial.shift[n] = x_.current.shift[n];  // it has just been needed
        if (!x_.outcome.accepted[n]) unregularised_.undo(x_, n);
    }

    // Whether a problem is plainly solved, or has to be judged.
    bool is_over(Count g, Count n, bool sure) const {
        bool solved = x_.outcome.solved[n], factored = x_.system.factored[n], accepted = x_.outcome.accepted[n];
        bool flat = !(x_.system.pivot[n] > FLAT);
        const bool flags[4] = {solved, factored, accepted, flat};
        for (int i = 0; i < 4; i++) progress_.flags[i * batch_.count + g] = flags[i];
        bool certain = progress_.unquestioned[g] || (factored && !(sure && (flat || progress_.shifted[g])));
        if (solved && certain && is_finite_model(n)) {
            // If the step is no progress, it is known all the same to be shorter than can be asked for.
            const Iterate& end = accepted ? x_.trial : x_.current;
            copy(progress_.u[g], end.u[n], shape_.m);
            copy(progress_.y[g], end.y[n], shape_.k);
            progress_.finished[g] = true;
        }
        return solved || !(factored && accepted && progress_.stepping[g]);
    }

    bool is_finite_model(Count n) const {
        const Iterate& x = x_.current;
        double total = x.objective[n];
        for (Floats part : {x.gradient, x.values, x.jacobian, x.hessian})
            for (Count i = 0; i < part.width; i++) total += part[n][i];
        return is_finite(total);
    }

    Memory memory_;
    const Problems& batch_;
    const Shape& shape_;
    Functions functions_;
    Tolerances tolerances_;
    Progress progress_;
    bool sparse_, regularises_;
    Vectors vectors_;
    Steps<L> steps_;
    Unregularised unregularised_;
    Machine<L> machine_;
    double* outputs_;
    double* step_;  // one that is put aside, (m + k,)
    Problems x_;  // those in the lanes
};

}  // namespace kernels::newton
