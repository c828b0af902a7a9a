// The active constraints of a strictly convex quadratic program: what active_set.py explains.
#pragma once

#include "constants.hpp"
#include "memory.hpp"

namespace kernels::active_set {

class Search {
  public:
    Search(Count k, Count equalities, Memory& memory)
        : k_(k), equalities_(equalities), row_(memory.take<double>(k)), least_(memory.take<double>(k)) {}

    // The pivots for one problem, whose x becomes multipliers of active and slacks of other rows; -1: none is found.
    Count find(Floats table, double* x, bool* active, Count limit) {
        double largest = 1.0;
        for (Count i = 0; i < k_; i++) {
            least_[i] = DEPENDENT * table[i][i];
            double size = std::fabs(x[i]);
            largest = size > largest ? size : largest;
        }
        for (Count i = 0; i < equalities_; i++) {
            if (!(table[i][i] > least_[i])) return -1;
            double length = -x[i] / table[i][i];
            move(table[i], x, active, length);
            sweep(table, i, 1.0);
            x[i] = length, active[i] = true;
        }
        Count joining = -1;
        double multiplier = 0.0;
        for (Count count = 0; count < limit; count++) {
            if (joining < 0) {
                joining = most_violated(table, x, active, VIOLATED * largest), multiplier = 0.0;
                if (joining < 0) return count;
            }
            double pivot = table[joining][joining];
            double whole = pivot > least_[joining] ? -x[joining] / pivot : INFINITE;
            auto [leaving, length] = blocking(table[joining], x, active);
            double step = smaller(whole, length);
            if (!(step < INFINITE)) return -1;  // the constraints contradict each other, or there is no number
            move(table[joining], x, active, step);
            multiplier += step;
            if (whole <= length) {
                sweep(table, joining, 1.0);
                x[joining] = multiplier, active[joining] = true, joining = -1;
            } else {
                sweep(table, leaving, -1.0);
                x[leaving] = 0.0, active[leaving] = false;
            }
        }
        return -1;
    }

    // Whether every inequality has either a slack or a multiplier.
    bool is_clear(const double* x, const bool* active) const {
        double slack = 1.0, multiplier = 1.0, least_slack = INFINITE, least_multiplier = INFINITE;
        for (Count i = 0; i < k_; i++) {
            double size = std::fabs(x[i]);
            if (active[i]) {
                multiplier = size > multiplier ? size : multiplier;
                if (i >= equalities_ && x[i] < least_multiplier) least_multiplier = x[i];
            } else {
                slack = size > slack ? size : slack;
                if (x[i] < least_slack) least_slack = x[i];
            }
        }
        return least_slack > CLEAR * slack && least_multiplier > CLEAR * multiplier;
    }

  private:
    struct Blocking {
        Count row;
        double length;
    };

    // Pivot: sign is 1 for a row that joins the active ones, and -1 for one that leaves them.
    void sweep(Floats table, Count i, double sign) {
        copy(row_, table[i], k_);
        const double* __restrict row = row_;
        double pivot = row[i];
        for (Count j = 0; j < k_; j++) {
            if (row[j] == 0.0) continue;
            double factor = row[j] / pivot;
            double* __restrict to = table[j];
            for (Count other = 0; other < k_; other++) to[other] -= factor * row[other];
            to[i] = sign * factor;
        }
        double* to = table[i];
        for (Count other = 0; other < k_; other++) to[other] = sign * row[other] / pivot;
        to[i] = -1 / pivot;
    }

    // The row whose violation, in units of what a step changes it by, is largest; -1 if there is none.
    Count most_violated(Floats table, const double* x, const bool* active, double small) const {
        Count found = -1;
        double most = 0.0;
        for (Count i = 0; i < k_; i++) {
            if (active[i] || !(x[i] < -small)) continue;
            double gain = x[i] * x[i] / (table[i][i] > 1e-300 ? table[i][i] : 1e-300);
            if (gain > most) found = i, most = gain;
        }
        return found;
    }

    // The active inequality whose multiplier becomes zero first, and after how long a step.
    Blocking blocking(const double* column, const double* x, const bool* active) const {
        Blocking found{-1, INFINITE};
        for (Count j = equalities_; j < k_; j++)
            if (active[j] && column[j] > 0 && x[j] < found.length * column[j])
                found = {j, (x[j] > 0.0 ? x[j] : 0.0) / column[j]};
        return found;
    }

    void move(const double* column, double* x, const bool* active, double length) const {
        for (Count j = 0; j < k_; j++) x[j] += active[j] ? -length * column[j] : length * column[j];
    }

    Count k_, equalities_;
    double *row_, *least_;
};

}  // namespace kernels::active_set
