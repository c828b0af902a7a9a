// Curvature along constraints, one small dense problem at a time: what dense_layout.py says in torch.
#pragma once

#include "dense.hpp"

namespace kernels::spectrum {

// The curvatures along the constraints, in units in which H has a given size, and room to find them in.
struct Spectrum {
    double* values = nullptr;  // (m,)
    Floats vectors;  // in rows, (m, m)
    Floats matrix;  // (m, m)
    Floats basis;  // of the rows of A: those that are independent, (m, m)
    double* unit = nullptr;  // (m,)

    Spectrum() = default;
    Spectrum(Count m, Memory& memory) {
        auto square = [&] { return Floats{memory.take<double>(m * m), m}; };
        values = memory.take<double>(m), unit = memory.take<double>(m);
        vectors = square(), matrix = square(), basis = square();
    }
};

// A plane rotation that makes one entry of a symmetric matrix vanish.
inline void rotate(Floats matrix, Floats vectors, Count i, Count j, Count m) {
    double tilt = (matrix[j][j] - matrix[i][i]) / (2 * matrix[i][j]);
    double tangent = (tilt >= 0 ? 1.0 : -1.0) / (std::fabs(tilt) + std::sqrt(tilt * tilt + 1));
    double cosine = 1 / std::sqrt(tangent * tangent + 1), sine = tangent * cosine;
    for (Count a = 0; a < m; a++) {
        double x = matrix[a][i], y = matrix[a][j];
        matrix[a][i] = cosine * x - sine * y, matrix[a][j] = sine * x + cosine * y;
    }
    auto turn_rows = [&](double* __restrict one, double* __restrict other) {
        for (Count a = 0; a < m; a++) {
            double x = one[a], y = other[a];
            one[a] = cosine * x - sine * y, other[a] = sine * x + cosine * y;
        }
    };
    turn_rows(matrix[i], matrix[j]);
    turn_rows(vectors[i], vectors[j]);
    matrix[i][j] = matrix[j][i] = 0.0;
}

// By plane rotations, in place, but for what is small: eigenvalues on the diagonal, eigenvectors in rows.
// Returns whether so many sweeps were enough.
inline bool diagonalise(Floats matrix, Floats vectors, Count m, double small) {
    dense::unit(vectors, m);
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        bool rotated = false;
        for (Count i = 0; i < m - 1; i++)
            for (Count j = i + 1; j < m; j++)
                if (std::fabs(matrix[i][j]) > small) {
                    rotate(matrix, vectors, i, j, m);
                    rotated = true;
                }
        if (!rotated) return true;
    }
    return false;
}

// Make the next row of an orthonormal basis of the one that was put there; how many there are, if it was new.
inline Count join(Floats basis, Count count, Count m) {
    double* row = basis[count];
    double before = dot(row, row, m);
    if (!(before > 0)) return count;
    for (int turn = 0; turn < 2; turn++)  // once more, for what rounding errors left of the others
        for (Count i = 0; i < count; i++) dense::subtract(row, dot(row, basis[i], m), basis[i], m);
    double after = dot(row, row, m);
    if (!(after > DEPENDENT * DEPENDENT * before)) return count;
    for (Count a = 0; a < m; a++) row[a] /= std::sqrt(after);
    return count + 1;
}

// (I - q q') M (I - q q'), in place.
inline void project(Floats matrix, const double* direction, double* image, Count m) {
    for (Count a = 0; a < m; a++) image[a] = dot(matrix[a], direction, m);
    double along = dot(direction, image, m);
    for (Count a = 0; a < m; a++)
        for (Count b = 0; b < m; b++)
            matrix[a][b] += direction[a] * (along * direction[b] - image[b]) - image[a] * direction[b];
}

// The curvatures along equalities, and along inequalities as stiff as these; whether they could be found.
inline bool find(
    const double* hessian,  // (m * m,)
    const double* jacobian,  // (k * m,)
    const double* dual,  // what relaxes each constraint, (k,)
    Count m, Count k,
    Count p,  // equalities come first
    const double* size,  // of H, (m,)
    const Spectrum& to
) {
    Floats matrix = to.matrix;
    double* unit = to.unit;
    Count count = 0;
    for (Count a = 0; a < m; a++) unit[a] = 1 / std::sqrt(size[a]);
    for (Count a = 0; a < m; a++)
        for (Count b = 0; b < m; b++) matrix[a][b] = hessian[a * m + b] * unit[a] * unit[b];
    for (Count i = 0; i < k; i++) {
        double* row = to.vectors[0];
        for (Count a = 0; a < m; a++) row[a] = jacobian[i * m + a] * unit[a];
        if (i < p || dot(row, row, m) / dual[i] > STIFF) {
            if (count < m) {
                copy(to.basis[count], row, m);
                count = join(to.basis, count, m);
            }
        } else {
            for (Count a = 0; a < m; a++)
                for (Count b = 0; b < m; b++) matrix[a][b] += row[a] * row[b] / dual[i];
        }
    }
    double large = 0.0;
    for (Count a = 0; a < m; a++) {
        double total = 0.0;
        for (Count b = 0; b < m; b++) total += std::fabs(matrix[a][b]);
        large = larger(large, total);
    }
    if (!(large < INFINITE)) return false;
    for (Count i = 0; i < count; i++) project(matrix, to.basis[i], to.values, m);
    for (Count i = 0; i < count; i++)
        for (Count a = 0; a < m; a++)
            for (Count b = 0; b < m; b++) matrix[a][b] += large * to.basis[i][a] * to.basis[i][b];
    if (!diagonalise(matrix, to.vectors, m, ROUNDING * large)) return false;
    for (Count a = 0; a < m; a++) to.values[a] = matrix[a][a];
    return true;
}

// H with negative curvature along the constraints turned positive, in place.
//
// Along an eigenvector with curvature c < 0 the step is that of |c|: downhill, and as long as Newton's; but a step from
// the slope is not longer than reach.
inline void turn(double* hessian, const double* slope, double reach, const Spectrum& spectrum, Count m) {
    const double* unit = spectrum.unit;
    double most = 0.0;
    for (Count i = 0; i < m; i++) most = larger(most, std::fabs(spectrum.values[i]));
    for (Count i = 0; i < m; i++) {
        const double* vector = spectrum.vectors[i];
        double value = spectrum.values[i], along = 0.0, longest = 0.0;
        for (Count a = 0; a < m; a++) {
            along += vector[a] * slope[a] * unit[a];
            longest = larger(longest, std::fabs(vector[a] * unit[a]));
        }
        double wanted = larger(larger(std::fabs(value), std::fabs(along) * longest / reach), NOTHING * most);
        for (Count a = 0; a < m; a++)
            for (Count b = 0; b < m; b++)
                hessian[a * m + b] += vector[a] / unit[a] * (wanted - value) * vector[b] / unit[b];
    }
}

}  // namespace kernels::spectrum
