// Numbers of several problems side by side as one value, which the processor works on at once.
//
// An array (entries, lanes) holds a number of each problem in every row. `load` takes a row of it and `store` puts one
// there; in between, rows are added, multiplied and compared like numbers, and of one lane they are numbers.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace kernels {

using Count = std::int64_t;

constexpr double INFINITE = std::numeric_limits<double>::infinity();
constexpr double NOT_A_NUMBER = std::numeric_limits<double>::quiet_NaN();

#ifdef __AVX512F__
constexpr int LANES = 8;  // one register of the processor for each number
#else
constexpr int LANES = 4;  // wider values than registers are lowered badly
#endif

template <int L>
struct VectorOf {
    typedef double type __attribute__((vector_size(sizeof(double) * L)));
};
template <>
struct VectorOf<1> {
    using type = double;
};
template <int L>
using Vector = typename VectorOf<L>::type;

template <int L>
inline Vector<L> load(const double* array, Count row) {
    Vector<L> x;
    std::memcpy(&x, array + row * L, sizeof x);
    return x;
}

template <int L>
inline void store(double* array, Count row, Vector<L> x) {
    std::memcpy(array + row * L, &x, sizeof x);
}

// The same number in all lanes.
template <int L>
inline Vector<L> broadcast(double x) {
    if constexpr (L == 1)
        return x;
    else
        return x - Vector<L>{};  // a sum would make zero of minus zero
}

// x where a < b, and y elsewhere, also where one of them is not a number.
template <int L>
inline Vector<L> where_less(Vector<L> a, Vector<L> b, Vector<L> x, Vector<L> y) {
    return a < b ? x : y;
}

// Whether a < b in all lanes.
template <int L>
inline bool all_less(Vector<L> a, Vector<L> b) {
    if constexpr (L == 1) {
        return a < b;
    } else {
#ifdef __AVX512F__
        if constexpr (L == 8) return _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_LT_OQ) == 0xff;
#endif
#ifdef __AVX2__
        if constexpr (L == 4) return _mm256_movemask_pd(_mm256_cmp_pd((__m256d)a, (__m256d)b, _CMP_LT_OQ)) == 0xf;
#endif
        auto less = a < b;
        bool all = true;
        for (int lane = 0; lane < L; lane++) all = all && less[lane] != 0;
        return all;
    }
}

template <int L>
inline Vector<L> absolute(Vector<L> x) {
    if constexpr (L == 1) {
        return std::fabs(x);
    } else {
        typedef std::int64_t Bits __attribute__((vector_size(sizeof(double) * L)));
        return (Vector<L>)((Bits)x & std::numeric_limits<std::int64_t>::max());
    }
}

// The larger and the smaller of two numbers, or what is not a number.
inline double larger(double x, double y) { return y > x || y != y ? y : x; }
inline double smaller(double x, double y) { return y < x || y != y ? y : x; }

inline bool is_finite(double x) { return std::fabs(x) < INFINITE; }

inline void copy(double* to, const double* from, Count count) {
    for (Count i = 0; i < count; i++) to[i] = from[i];
}

inline void fill(double* to, Count count, double value) {
    for (Count i = 0; i < count; i++) to[i] = value;
}

// The inner product, in the same order on every machine: eight partial sums, and the rest.
inline double dot(const double* x, const double* y, Count count) {
    constexpr int WIDTH = 8, PARTS = WIDTH / LANES;
    double total = 0.0;
    Count i = 0;
    if (count >= 2 * WIDTH) {
        Vector<LANES> sums[PARTS] = {};
        for (; i + WIDTH <= count; i += WIDTH)
            for (int part = 0; part < PARTS; part++)
                sums[part] += load<LANES>(x + i + part * LANES, 0) * load<LANES>(y + i + part * LANES, 0);
        for (int part = 0; part < PARTS; part++)
            for (int lane = 0; lane < LANES; lane++) total += sums[part][lane];
    }
    for (; i < count; i++) total += x[i] * y[i];
    return total;
}

}  // namespace kernels
