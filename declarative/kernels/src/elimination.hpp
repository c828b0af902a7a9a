// The factorisation P K P' = L D L', column by column in the order of elimination, for problems side by side.
//
// In the order of elimination, with blocks of size one and two in D:
//
//     W = L D, column by column:  W_ij = K_ij - sum over columns k before j of  L_ik W_jk,
//     L = W D^-1.
//
// W is kept beside L because it makes a block of D of size two no different from two of size one. A pivot that cannot
// be told from zero is replaced by a small one, with the sign that its kind should have: above zero for an unknown,
// below for a constraint. A singular block [h, a; a, c] is moved towards a negative determinant, as those of KKT
// matrices have. What is not finite stays, and is not counted.
//
// Each problem gets the same bits whatever is in the other lanes: what is rare is mended first, for that lane alone,
// and what is usual has one formula.
#pragma once

#include "plan.hpp"

namespace kernels::ldl {

// The factor of one group of problems.
struct Factor {
    double* inverse;  // the diagonal of D^-1, (size, lanes)
    double* coupling;  // of its blocks, beside the diagonal, (size, lanes)
    double* lower;  // L, (fill, lanes)
    double* counts;  // pivots above and below zero, and those replaced by one above or below, (4, lanes)
};

// What is needed on the way.
struct Work {
    double* below;  // W, (fill, lanes)
    double* made;  // the size of what each pivot is made from, (size, lanes)
    std::uint32_t* where;  // the entry of each row in the present column, (size,)
};

// Put the entries of K (entries, lanes) where the factor will be.
template <int L>
inline void spread(const Plan& plan, const double* entries, const Factor& factor, const Work& work) {
    Count size = plan.size(), count = plan.entries();
    fill(factor.inverse, size * L, 0.0);
    fill(factor.counts, 4 * L, 0.0);
    fill(work.below, plan.fill() * L, 0.0);
    for (Count e = 0; e < count; e++) {
        Count slot = plan.slots[e];
        double* to = slot < size ? factor.inverse + slot * L : work.below + (slot - size) * L;
        store<L>(to, 0, load<L>(to, 0) + load<L>(entries, e));
    }
}

// Column j of W, from the columns before it; two at a time where they are a pair, whose entries are alike.
template <int L>
inline void update_one(const Plan& plan, Count j, const Factor& factor, const Work& work) {
    using V = Vector<L>;
    const double* lower = factor.lower;
    double* below = work.below;
    const std::uint32_t* rows = plan.rows.data();
    std::uint32_t* where = work.where;
    for (Count p = plan.starts[j]; p < plan.starts[j + 1]; p++) where[rows[p]] = std::uint32_t(p);
    V pivot = load<L>(factor.inverse, j), made = absolute<L>(pivot);
    for (Count r = plan.row_starts[j]; r < plan.row_starts[j + 1]; r++) {
        Count q = plan.by_row[r], k = plan.columns[q], end = plan.starts[k + 1];
        V w = load<L>(below, q), change = load<L>(lower, q) * w;
        pivot -= change, made += absolute<L>(change);
        if (plan.pair[k]) {
            Count beside = end - plan.starts[k] - 1;
            V v = load<L>(below, q + beside);
            change = load<L>(lower, q + beside) * v;
            pivot -= change, made += absolute<L>(change);
            for (Count p = q + 1; p < end; p++) {
                Count t = where[rows[p]];
                store<L>(below, t, load<L>(below, t) - (load<L>(lower, p) * w + load<L>(lower, p + beside) * v));
            }
            r++;
        } else {
            for (Count p = q + 1; p < end; p++) {
                Count t = where[rows[p]];
                store<L>(below, t, load<L>(below, t) - load<L>(lower, p) * w);
            }
        }
    }
    store<L>(factor.inverse, j, pivot);
    store<L>(work.made, j, made);
}

// The same for a pair of columns: a column before them has entries in both of their rows, one below the other.
template <int L>
inline void update_two(const Plan& plan, Count j, Count beside, const Factor& factor, const Work& work) {
    using V = Vector<L>;
    const double* lower = factor.lower;
    double* below = work.below;
    const std::uint32_t* rows = plan.rows.data();
    std::uint32_t* where = work.where;
    Count begin = plan.starts[j];
    for (Count p = begin; p < plan.starts[j + 1]; p++) where[rows[p]] = std::uint32_t(p);
    V pivot = load<L>(factor.inverse, j), coupling = load<L>(below, begin), other = load<L>(factor.inverse, j + 1);
    V made = absolute<L>(pivot), made_other = absolute<L>(other);
    for (Count r = plan.row_starts[j]; r < plan.row_starts[j + 1]; r++) {
        Count q = plan.by_row[r], k = plan.columns[q], end = plan.starts[k + 1];
        V a = load<L>(below, q), b = load<L>(below, q + 1), x = load<L>(lower, q), y = load<L>(lower, q + 1);
        V change = x * a, change_other = y * b;
        pivot -= change, made += absolute<L>(change);
        other -= change_other, made_other += absolute<L>(change_other);
        coupling -= y * a;
        if (plan.pair[k]) {
            Count to = end - plan.starts[k] - 1;
            V c = load<L>(below, q + to), d = load<L>(below, q + to + 1);
            x = load<L>(lower, q + to), y = load<L>(lower, q + to + 1);
            change = x * c, change_other = y * d;
            pivot -= change, made += absolute<L>(change);
            other -= change_other, made_other += absolute<L>(change_other);
            coupling -= y * c;
            for (Count p = q + 2; p < end; p++) {
                Count t = where[rows[p]];
                x = load<L>(lower, p), y = load<L>(lower, p + to);
                store<L>(below, t, load<L>(below, t) - (x * a + y * c));
                store<L>(below, t + beside, load<L>(below, t + beside) - (x * b + y * d));
            }
            r++;
        } else {
            for (Count p = q + 2; p < end; p++) {
                Count t = where[rows[p]];
                x = load<L>(lower, p);
                store<L>(below, t, load<L>(below, t) - x * a);
                store<L>(below, t + beside, load<L>(below, t + beside) - x * b);
            }
        }
    }
    store<L>(below, begin, coupling);
    store<L>(factor.inverse, j, pivot);
    store<L>(factor.inverse, j + 1, other);
    store<L>(work.made, j, made);
    store<L>(work.made, j + 1, made_other);
}

// A small number beside what the pivot of one problem is made from and what it would eliminate.
template <int L>
inline double replacement(const Plan& plan, Count j, int lane, const Work& work) {
    double beside = work.made[j * L + lane] > SMALLEST ? work.made[j * L + lane] : SMALLEST;
    for (Count p = plan.starts[j]; p < plan.starts[j + 1]; p++) beside += std::fabs(work.below[p * L + lane]);
    return REPLACED * beside;
}

// A pivot by itself.
template <int L>
inline void invert_one(const Plan& plan, Count j, const Factor& factor, const Work& work) {
    using V = Vector<L>;
    const V one = broadcast<L>(1.0), none = broadcast<L>(0.0);
    V pivots = load<L>(factor.inverse, j);
    if (all_less<L>(broadcast<L>(PIVOT) * load<L>(work.made, j), absolute<L>(pivots))) {  // as nearly always
        V above = where_less<L>(none, pivots, one, none);
        store<L>(factor.counts, 0, load<L>(factor.counts, 0) + above);
        store<L>(factor.counts, 1, load<L>(factor.counts, 1) + (one - above));
    } else {
        for (int lane = 0; lane < L; lane++) {
            double& pivot = factor.inverse[j * L + lane];
            if (std::fabs(pivot) > PIVOT * work.made[j * L + lane]) {
                factor.counts[(pivot > 0 ? 0 : 1) * L + lane] += 1;
            } else if (is_finite(pivot)) {
                factor.counts[(plan.is_constraint[j] ? 3 : 2) * L + lane] += 1;
                pivot = replacement<L>(plan, j, lane, work) * (plan.is_constraint[j] ? -1 : 1);
            }
        }
        pivots = load<L>(factor.inverse, j);
    }
    store<L>(factor.inverse, j, one / pivots);
}

// A block [h, a; a, c] of one problem: counted, and replaced if it is singular.
template <int L>
inline void mend_two(const Plan& plan, Count j, int lane, const Factor& factor, const Work& work) {
    double &h = factor.inverse[j * L + lane], &c = factor.inverse[(j + 1) * L + lane];
    double a = work.below[plan.starts[j] * L + lane], determinant = h * c - a * a;
    double made_h = work.made[j * L + lane], made_c = work.made[(j + 1) * L + lane];
    auto count = [&](int which) { factor.counts[which * L + lane] += 1; };
    // And a is made from terms up to the root of the product of what these are made from.
    double terms = std::fabs(h) * made_c + std::fabs(c) * made_h + 2 * std::fabs(a) * std::sqrt(made_h * made_c);
    if (std::fabs(determinant) > PIVOT * terms) {
        int one = determinant < 0 || h > 0 ? 0 : 1;
        count(one);
        count(determinant < 0 ? 1 : one);
    } else if (is_finite(determinant)) {
        count(h + c > 0 ? 0 : 2);
        count(h + c < 0 ? 1 : 3);
        double to_h = replacement<L>(plan, j, lane, work) * (c > 0 ? -1 : 1);
        double to_c = replacement<L>(plan, j + 1, lane, work) * (h < 0 ? 1 : -1);
        h += to_h, c += to_c;
    }
}

// A block [h, a; a, c].
template <int L>
inline void invert_two(const Plan& plan, Count j, const Factor& factor, const Work& work) {
    using V = Vector<L>;
    const V one = broadcast<L>(1.0), two = broadcast<L>(2.0), none = broadcast<L>(0.0);
    V h = load<L>(factor.inverse, j), a = load<L>(work.below, plan.starts[j]), c = load<L>(factor.inverse, j + 1);
    V of_h = load<L>(work.made, j), of_c = load<L>(work.made, j + 1), determinant = h * c - a * a;
    // More than what is compared for a lane by itself, for a mean is more than the root of a product.
    V terms = absolute<L>(h) * of_c + absolute<L>(c) * of_h + absolute<L>(a) * (of_h + of_c);
    if (all_less<L>(broadcast<L>(PIVOT) * terms, absolute<L>(determinant))) {  // as nearly always
        V above = where_less<L>(determinant, none, one, where_less<L>(none, h, two, none));
        store<L>(factor.counts, 0, load<L>(factor.counts, 0) + above);
        store<L>(factor.counts, 1, load<L>(factor.counts, 1) + (two - above));
    } else {
        for (int lane = 0; lane < L; lane++) mend_two<L>(plan, j, lane, factor, work);
        h = load<L>(factor.inverse, j), c = load<L>(factor.inverse, j + 1), determinant = h * c - a * a;
    }
    V inverse = one / determinant;
    store<L>(factor.inverse, j, c * inverse);
    store<L>(factor.inverse, j + 1, h * inverse);
    store<L>(factor.coupling, j, -a * inverse);
}

// L and D^-1 of one group, from the entries of K (entries, lanes).
template <int L>
inline void factorise(const Plan& plan, const double* entries, const Factor& factor, const Work& work) {
    using V = Vector<L>;
    spread<L>(plan, entries, factor, work);
    double *lower = factor.lower, *below = work.below;
    for (Count j = 0, size = plan.size(); j < size; j++) {
        Count begin = plan.starts[j], end = plan.starts[j + 1];
        if (plan.pair[j]) {
            Count beside = end - begin - 1;  // from an entry of the first column to that of the second
            update_two<L>(plan, j, beside, factor, work);
            invert_two<L>(plan, j, factor, work);
            V one = load<L>(factor.inverse, j), two = load<L>(factor.inverse, j + 1);
            V both = load<L>(factor.coupling, j);
            store<L>(lower, begin, broadcast<L>(0.0));  // what connects the halves belongs to D
            for (Count p = begin + 1; p < end; p++) {
                V x = load<L>(below, p), y = load<L>(below, p + beside);
                store<L>(lower, p, x * one + y * both);
                store<L>(lower, p + beside, x * both + y * two);
            }
            j++;
        } else {
            update_one<L>(plan, j, factor, work);
            invert_one<L>(plan, j, factor, work);
            V inverse = load<L>(factor.inverse, j);
            for (Count p = begin; p < end; p++) store<L>(lower, p, load<L>(below, p) * inverse);
        }
    }
}

}  // namespace kernels::ldl
