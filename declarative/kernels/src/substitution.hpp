// Solutions with the factor P K P' = L D L': substitution, and corrections with the matrix itself.
#pragma once

#include "elimination.hpp"

namespace kernels::ldl {

// Right-hand sides, solutions, and what is needed on the way; (size, lanes) unless said.
struct Sides {
    double *right, *x, *residual, *total, *trial;
    double* most;  // (2, lanes)
};

// For one group of problems: their matrices, factors and solutions.
template <int L>
struct Room {
    double* entries = nullptr;  // of K, (entries, lanes)
    Factor factor{};
    Work work{};
    Sides rows{};
    double* error = nullptr;  // (lanes,)

    Room() = default;
    Room(const Plan& plan, Memory& memory) {
        auto take = [&](Count count) { return memory.take<double>(count * L); };
        Count size = plan.size(), fill = plan.fill();
        entries = take(plan.entries());
        factor = {take(size), take(size), take(fill), take(4)};
        work = {take(fill), take(size), memory.zeros<std::uint32_t>(size)};
        rows = {take(size), take(size), take(size), take(size), take(size), take(2)};
        error = take(1);
    }
};

// x = K^-1 x, (size, lanes); two columns at a time where they are a pair, whose entries are alike.
template <int L>
inline void substitute(const Plan& plan, const Factor& factor, double* x) {
    using V = Vector<L>;
    const double *lower = factor.lower, *inverse = factor.inverse;
    const std::uint32_t* rows = plan.rows.data();
    Count size = plan.size();
    for (Count j = 0; j < size; j++) {
        Count begin = plan.starts[j], end = plan.starts[j + 1];
        V one = load<L>(x, j);
        if (plan.pair[j]) {  // of which the first entry connects the two, and belongs to D
            V two = load<L>(x, j + 1), a = load<L>(factor.coupling, j);
            Count beside = end - begin - 1;
            for (Count p = begin + 1; p < end; p++) {
                V term = load<L>(lower, p) * one + load<L>(lower, p + beside) * two;
                store<L>(x, rows[p], load<L>(x, rows[p]) - term);
            }
            store<L>(x, j, load<L>(inverse, j) * one + a * two);
            store<L>(x, j + 1, a * one + load<L>(inverse, j + 1) * two);
            j++;
        } else {
            for (Count p = begin; p < end; p++)
                store<L>(x, rows[p], load<L>(x, rows[p]) - load<L>(lower, p) * one);
            store<L>(x, j, one * load<L>(inverse, j));
        }
    }
    for (Count j = size - 1; j >= 0; j--) {
        Count first = j > 0 && plan.pair[j - 1] ? j - 1 : j, begin = plan.starts[first], end = plan.starts[first + 1];
        V one = load<L>(x, first), two = load<L>(x, j);
        if (first < j) {
            Count beside = end - begin - 1;
            for (Count p = begin + 1; p < end; p++) {
                V known = load<L>(x, rows[p]);
                one -= load<L>(lower, p) * known;
                two -= load<L>(lower, p + beside) * known;
            }
            store<L>(x, j, two);
        } else {
            for (Count p = begin; p < end; p++) one -= load<L>(lower, p) * load<L>(x, rows[p]);
        }
        store<L>(x, first, one);
        j = first;
    }
}

// The solution that the residual, substituted, leads to: its own residual, and the size of the terms of that.
template <int L>
inline void try_correction(const Plan& plan, const double* entries, const Sides& rows) {
    using V = Vector<L>;
    double *x = rows.trial, *residual = rows.residual, *total = rows.total;
    for (Count i = 0, size = plan.size(); i < size; i++) {
        V right = load<L>(rows.right, i);
        store<L>(x, i, load<L>(rows.x, i) + load<L>(residual, i));
        store<L>(residual, i, right);
        store<L>(total, i, absolute<L>(right));
    }
    auto subtract = [&](Count i, V term) {
        store<L>(residual, i, load<L>(residual, i) - term);
        store<L>(total, i, load<L>(total, i) + absolute<L>(term));
    };
    for (Count e = 0, count = plan.entries(); e < count; e++) {
        Count i = plan.first[e], j = plan.second[e];
        V entry = load<L>(entries, e);
        subtract(i, entry * load<L>(x, j));
        if (i != j) subtract(j, entry * load<L>(x, i));
    }
}

template <int L>
inline Vector<L> larger_of(Vector<L> a, Vector<L> b) {
    return where_less<L>(a, b, b, a);
}

// The largest residual relative to the largest total, of unknowns or constraints, whichever is more.
//
// A total that falls from one correction to the next counts as no less than a part of the most that it was: where a
// solution is zero, it would be rounding errors.
template <int L>
inline Vector<L> measured(const Plan& plan, const Sides& rows) {
    using V = Vector<L>;
    const V zero = broadcast<L>(0.0), faded = broadcast<L>(FADED);
    V left[2] = {zero, zero}, total[2] = {broadcast<L>(SMALLEST), broadcast<L>(SMALLEST)}, broken = zero;
    for (Count i = 0, size = plan.size(); i < size; i++) {
        V residual = load<L>(rows.residual, i);
        broken += zero * residual;
        int kind = plan.is_constraint[i] ? 1 : 0;
        left[kind] = larger_of<L>(left[kind], absolute<L>(residual));
        total[kind] = larger_of<L>(total[kind], load<L>(rows.total, i));
    }
    V error = zero;
    for (int kind = 0; kind < 2; kind++) {
        V most = larger_of<L>(load<L>(rows.most, kind), total[kind]);
        store<L>(rows.most, kind, most);
        V relative = left[kind] / larger_of<L>(total[kind], faded * most);
        error = kind ? larger_of<L>(error, relative) : relative;
    }
    // Where something is not a number, which comparisons pass over, neither is the sum of zeros.
    return where_less<L>(absolute<L>(broken), broadcast<L>(1.0), error, broadcast<L>(INFINITE));
}

// x = K^-1 right, corrected until its relative residual is at the goal or does not halve any more.
//
// A problem that has come there stays as it is, however long its neighbours go on.
template <int L>
inline void solve(
    const Plan& plan, const double* entries, const Factor& factor, const Sides& rows, double* error, double goal
) {
    using V = Vector<L>;
    const V one = broadcast<L>(1.0), none = broadcast<L>(0.0), half = broadcast<L>(0.5);
    Count size = plan.size();
    copy(rows.residual, rows.right, size * L);
    fill(rows.x, size * L, 0.0);
    fill(rows.most, 2 * L, 0.0);
    V before = broadcast<L>(INFINITE), going = one;
    for (int turn = 0; turn <= CORRECTIONS; turn++) {
        substitute<L>(plan, factor, rows.residual);
        try_correction<L>(plan, entries, rows);
        V now = measured<L>(plan, rows);
        V better = where_less<L>(none, going, where_less<L>(now, before, one, none), none);
        for (Count i = 0; i < size; i++)
            store<L>(rows.x, i, where_less<L>(none, better, load<L>(rows.trial, i), load<L>(rows.x, i)));
        // Where digits are missing, any progress is worth another correction.
        V enough = where_less<L>(broadcast<L>(LOST), now, before, half * before);
        going = where_less<L>(now, enough, where_less<L>(broadcast<L>(goal), now, going, none), none);
        before = where_less<L>(none, better, now, before);
        if (all_less<L>(going, half)) break;
    }
    store<L>(error, 0, before);
}

// The factors of a batch, in groups of problems that lie side by side.
struct BatchFactor {
    Count batch, groups, lanes, entries, size, fill;
    double* numbers;  // for each group: the entries of K, and its factor

    Count stride() const { return lanes * (entries + 2 * size + fill + 4); }
    double* entries_of(Count group) const { return numbers + group * stride(); }
    Factor of(Count group) const {
        double* x = entries_of(group) + lanes * entries;
        return {x, x + lanes * size, x + 2 * lanes * size, x + lanes * (2 * size + fill)};
    }
};

}  // namespace kernels::ldl
