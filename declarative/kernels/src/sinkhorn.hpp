// Some of Sinkhorn's iterations u = r / K v, v = c / K' u, for one problem: what scaling.py says in torch.
//
// Each step may be longer than Sinkhorn's by an excess w: u (r / u K v)^(1 + w), to first order.
#pragma once

#include "memory.hpp"

namespace kernels::sinkhorn {

// The inner product, in partial sums that the processor adds up side by side.
template <typename T>
inline T dot(const T* __restrict x, const T* __restrict y, Count count) {
    constexpr Count PARTS = 8;
    T sums[PARTS] = {}, total = 0;
    Count i = 0;
    for (; i + PARTS <= count; i += PARTS)
        for (Count part = 0; part < PARTS; part++) sums[part] += x[i + part] * y[i + part];
    for (; i < count; i++) total += x[i] * y[i];
    return total + ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

template <typename T>
struct Result {
    T error, middle;  // of the marginals, relative, at the end and half-way
    Count iterations;
};

// `right_u` (m,) and `right_v` (n,) are room.
template <typename T>
inline Result<T> iterate(
    const T* kernel,  // (m, n)
    const T* r, const T* c,
    T* u, T* v,  // overwritten
    T excess, double tolerance, Count steps, Count m, Count n,
    T* __restrict right_u, T* __restrict right_v
) {
    auto divide_rows = [&] {
        for (Count i = 0; i < m; i++) right_u[i] = r[i] / dot(kernel + i * n, v, n);
    };
    auto divide_columns = [&] {
        for (Count j = 0; j < n; j++) right_v[j] = 0;
        for (Count i = 0; i < m; i++) {
            const T* __restrict row = kernel + i * n;
            for (Count j = 0; j < n; j++) right_v[j] += u[i] * row[j];
        }
        for (Count j = 0; j < n; j++) right_v[j] = c[j] / right_v[j];
    };
    auto step = [&](T* x, const T* right, Count count) {
        for (Count i = 0; i < count; i++) x[i] = right[i] + excess * right[i] * (right[i] / x[i] - 1);
    };
    auto farthest = [&](const T* x, const T* right, Count count, T error) {
        for (Count i = 0; i < count; i++) {
            T off = std::fabs(x[i] / right[i] - 1);
            error = off > error || off != off ? off : error;
        }
        return error;
    };
    Result<T> found{std::numeric_limits<T>::infinity(), std::numeric_limits<T>::infinity(), 0};
    divide_rows();
    while (found.iterations < steps && double(found.error) > tolerance) {
        step(u, right_u, m);
        divide_columns();
        step(v, right_v, n);
        divide_rows();
        found.error = farthest(u, right_u, m, 0);
        if (excess > 0) found.error = farthest(v, right_v, n, found.error);  // otherwise the columns have their sums
        if (2 * found.iterations < steps) found.middle = found.error;
        found.iterations++;
    }
    return found;
}

}  // namespace kernels::sinkhorn
