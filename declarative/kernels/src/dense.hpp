// Systems of small dense matrices, one problem at a time: what dense_layout.py says in torch.
#pragma once

#include "constants.hpp"
#include "memory.hpp"

namespace kernels::dense {

// to -= factor * from
inline void subtract(double* __restrict to, double factor, const double* __restrict from, Count count) {
    for (Count i = 0; i < count; i++) to[i] -= factor * from[i];
}

inline void add(double* __restrict to, double factor, const double* __restrict from, Count count) {
    for (Count i = 0; i < count; i++) to[i] += factor * from[i];
}

// Factor in place, the lower triangle; what is left of the diagonal at least, or -1 if there is no factor.
// The upper triangle is overwritten.
inline double cholesky(Floats matrix, Count size) {
    double room = INFINITE;
    for (Count j = 0; j < size; j++) {
        double* column = matrix[j];  // its upper part is free, and close together
        double pivot = column[j];
        double before = pivot + dot(column, column, j);
        if (!(pivot > 0 && pivot / before > PIVOT)) return -1.0;
        room = smaller(room, pivot / before);
        double root = std::sqrt(pivot);
        column[j] = root;
        for (Count i = j + 1; i < size; i++) {
            matrix[i][j] /= root;
            column[i] = matrix[i][j];
        }
        for (Count i = j + 1; i < size; i++) subtract(matrix[i] + j + 1, column[i], column + j + 1, i - j);
    }
    return room;
}

// The factor of the identity, where there is none.
inline void unit(Floats matrix, Count size) {
    for (Count i = 0; i < size; i++)
        for (Count j = 0; j < size; j++) matrix[i][j] = i == j ? 1.0 : 0.0;
}

// L^-1 x, in place.
inline void forward(Floats lower, double* x, Count size) {
    for (Count i = 0; i < size; i++) x[i] = (x[i] - dot(lower[i], x, i)) / lower[i][i];
}

// L'^-1 x, in place.
inline void backward(Floats lower, double* x, Count size) {
    for (Count i = size - 1; i >= 0; i--) {
        x[i] /= lower[i][i];
        subtract(x, x[i], lower[i], i);
    }
}

// L^-1 A' in the rows of half, and the factor of A H^-1 A' as `cholesky` leaves it, from H = L L'.
inline double reduce(Floats factor, Floats rows, Floats half, Floats complement, Count m, Count count) {
    for (Count i = 0; i < count; i++) {
        copy(half[i], rows[i], m);
        forward(factor, half[i], m);
        for (Count j = 0; j <= i; j++) complement[i][j] = dot(half[i], half[j], m);
    }
    return cholesky(complement, count);
}

// (z, s) with H z + A' s = z and A z = s, in place, by these factors.
inline void solve_reduced(Floats factor, Floats half, Floats complement, double* z, double* s, Count m, Count count) {
    forward(factor, z, m);
    for (Count i = 0; i < count; i++) s[i] = dot(half[i], z, m) - s[i];
    forward(complement, s, count);
    backward(complement, s, count);
    for (Count i = 0; i < count; i++) subtract(z, s[i], half[i], m);
    backward(factor, z, m);
}

// Whether all is well, and what is left of the diagonal of H.
struct Solved {
    bool good;
    double room;
};

// The system of a step, as DenseLayout solves it.
inline Solved solve_kkt(
    Floats matrix,  // H + primal, the lower triangle, and in the end the factor, (m, m)
    Floats jacobian,  // (k, m)
    const double* forces,  // the weight, or one over dual, (k,)
    Count m, Count k, Count p,
    double* z,  // r, and in the end the solution, (m,)
    double* t,  // t, likewise, (k,)
    Floats half,  // (p, m)
    Floats complement  // (p, p)
) {
    for (Count i = 0; i < k; i++)
        for (Count a = 0; a < m; a++) {
            double pulled = forces[i] * jacobian[i][a];
            if (pulled != 0) {
                z[a] += pulled * t[i];
                add(matrix[a], pulled, jacobian[i], a + 1);
            }
        }
    double room = cholesky(matrix, m);
    bool good = room >= 0;
    if (!good) unit(matrix, m);
    if (p && !(reduce(matrix, jacobian, half, complement, m, p) >= 0)) {
        good = false;
        unit(complement, p);
    }
    solve_reduced(matrix, half, complement, z, t, m, p);
    for (Count i = p; i < k; i++) t[i] = forces[i] * (dot(jacobian[i], z, m) - t[i]);
    return {good, room};
}

// The system of the active constraints, and room to solve it in, by Cholesky factors of H + A'A and of its Schur
// complement, in units in which H and A have size 1.
struct ActiveSystem {
    Count m = 0, k = 0;
    Floats hessian, jacobian;  // (m, m), (k, m), overwritten
    double* active = nullptr;  // which of the rows count, (k,)
    double *z = nullptr, *s = nullptr;  // the right-hand side, and in the end the solution: zero if not to be trusted
    bool trusted = false;

    ActiveSystem() = default;
    ActiveSystem(Count m, Count k, Memory& memory) : m(m), k(k) {
        auto matrix = [&](Count rows, Count columns) { return Floats{memory.take<double>(rows * columns), columns}; };
        hessian = matrix(m, m), jacobian = matrix(k, m), factor_ = matrix(m, m), half_ = matrix(k, m);
        complement_ = matrix(k, k), of_unknowns_ = matrix(4, m), of_rows_ = matrix(5, k);
        z = of_unknowns_[3], active = of_rows_[3], s = of_rows_[4];
    }

    void solve() {
        double *unit = of_unknowns_[0], *x = of_unknowns_[1], *more_x = of_unknowns_[2];
        double *length = of_rows_[0], *y = of_rows_[1], *more_y = of_rows_[2];
        Count count = scale(unit, length);
        complement_.width = count;
        trusted = factorise(count);
        if (trusted) {
            Count place = 0;
            for (Count a = 0; a < m; a++) z[a] *= unit[a];
            for (Count i = 0; i < k; i++)
                if (active[i] != 0) s[place] = s[i] * length[place], place++;
            copy(x, z, m);
            copy(y, s, count);
            solve_scaled(count, x, y);
            copy(more_x, z, m);
            copy(more_y, s, count);
            for (Count a = 0; a < m; a++) more_x[a] -= dot(hessian[a], x, m);
            for (Count i = 0; i < count; i++) {
                more_y[i] -= dot(jacobian[i], x, m);
                subtract(more_x, y[i], jacobian[i], m);
            }
            solve_scaled(count, more_x, more_y);
            double size = 0.0, change = 0.0;
            for (Count a = 0; a < m; a++)
                size = larger(size, std::fabs(x[a])), change = larger(change, std::fabs(more_x[a]));
            for (Count i = 0; i < count; i++)
                size = larger(size, std::fabs(y[i])), change = larger(change, std::fabs(more_y[i]));
            trusted = change <= DIGITS * size && is_finite(size + change);
        }
        Count place = count;
        for (Count a = 0; a < m; a++) z[a] = trusted ? (x[a] + more_x[a]) * unit[a] : 0.0;
        for (Count i = k - 1; i >= 0; i--) {
            if (active[i] != 0) {
                place--;
                s[i] = trusted ? (y[place] + more_y[place]) * length[place] : 0.0;
            } else {
                s[i] = 0.0;
            }
        }
    }

  private:
    // Bring H and the active rows, which come first then, to size 1, in place; how many rows these are.
    Count scale(double* unit, double* length) {
        Count count = 0;
        for (Count a = 0; a < m; a++) {
            double size = std::fabs(hessian[a][a]);
            unit[a] = size > 0 ? 1 / std::sqrt(size) : 1.0;
        }
        for (Count i = 0; i < k; i++) {
            if (active[i] == 0) continue;
            double total = 0.0;
            for (Count a = 0; a < m; a++) {
                jacobian[count][a] = jacobian[i][a] * unit[a];
                total += jacobian[count][a] * jacobian[count][a];
            }
            length[count] = total > 0 ? 1 / std::sqrt(total) : 1.0;
            for (Count a = 0; a < m; a++) jacobian[count][a] *= length[count];
            count++;
        }
        for (Count a = 0; a < m; a++)
            for (Count b = 0; b < m; b++) hessian[a][b] *= unit[a] * unit[b];
        return count;
    }

    // The factors of H + A'A and of its Schur complement; whether digits are left in both.
    bool factorise(Count count) {
        for (Count a = 0; a < m; a++) copy(factor_[a], hessian[a], a + 1);
        for (Count i = 0; i < count; i++)
            for (Count a = 0; a < m; a++)
                if (jacobian[i][a] != 0) add(factor_[a], jacobian[i][a], jacobian[i], a + 1);
        if (!(cholesky(factor_, m) > DIGITS)) return false;
        return reduce(factor_, jacobian, half_, complement_, m, count) > DIGITS;
    }

    // By these factors, in place.
    void solve_scaled(Count count, double* x, double* y) {
        for (Count i = 0; i < count; i++) add(x, y[i], jacobian[i], m);
        solve_reduced(factor_, half_, complement_, x, y, m, count);
    }

    Floats factor_, half_, complement_;  // (m, m), (k, m), (k, k)
    Floats of_unknowns_, of_rows_;
};

}  // namespace kernels::dense
