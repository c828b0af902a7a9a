// The symbolic analysis of the KKT matrices of one pattern, as symbolic.py finds it: data, which is checked once.
#pragma once

#include "constants.hpp"
#include "memory.hpp"

namespace kernels {

// A position counts in the order of elimination. L is stored column by column, without its diagonal.
struct Plan {
    std::vector<std::uint32_t> place;  // the position of each unknown and each constraint, (size,)
    std::vector<std::uint32_t> slots;  // where each entry of K is in the factor: the diagonal, then L, (entries,)
    std::vector<std::uint32_t> first, second;  // the position of each entry of K, its row and its column, (entries,)
    std::vector<std::uint8_t> pair;  // whether a position and the next one make a block of D, (size,)
    std::vector<std::uint8_t> is_constraint;  // (size,)
    std::vector<std::int32_t> starts;  // of the columns of L among its entries, (size + 1,)
    std::vector<std::uint32_t> rows;  // positions of the entries of L, ascending in each column, (fill,)
    std::vector<std::int32_t> columns;  // (fill,)
    std::vector<std::int32_t> row_starts;  // where each row starts in `by_row`, (size + 1,)
    std::vector<std::uint32_t> by_row;  // the entries of L row by row, (fill,)

    Count size() const { return Count(place.size()); }
    Count fill() const { return Count(rows.size()); }
    Count entries() const { return Count(slots.size()); }
};

namespace ldl {

inline void check_bounds(const std::vector<std::int32_t>& bounds, Count size, Count end) {
    require(Count(bounds.size()) == size + 1 && bounds[0] == 0 && bounds[size] == end,
            "the columns of a plan do not begin and end where they should");
    for (Count j = 0; j < size; j++) require(bounds[j] <= bounds[j + 1], "the columns of a plan overlap");
}

// Refuse what would read or write where nothing is: the steps of a factorisation, without its numbers.
inline void check(const Plan& plan) {
    Count size = plan.size(), fill = plan.fill(), entries = plan.entries();
    require(Count(plan.pair.size()) == size && Count(plan.is_constraint.size()) == size &&
                Count(plan.columns.size()) == fill && Count(plan.by_row.size()) == fill &&
                Count(plan.first.size()) == entries && Count(plan.second.size()) == entries,
            "the arrays of a plan are of different lengths");
    require(fill <= INT32_MAX && size < INT32_MAX, "a plan is too large");
    check_bounds(plan.starts, size, fill);
    check_bounds(plan.row_starts, size, fill);
    std::vector<bool> taken(static_cast<std::size_t>(size), false);
    for (std::uint32_t place : plan.place) {
        require(place < size && !taken[place], "the places of a plan are no permutation");
        taken[place] = true;
    }
    for (Count e = 0; e < entries; e++)
        require(plan.slots[e] < size + fill && plan.first[e] < size && plan.second[e] < size,
                "an entry of a plan is nowhere in its factor");
    for (Count j = 0; j < size; j++)
        for (Count p = plan.starts[j]; p < plan.starts[j + 1]; p++) {
            require(plan.columns[p] == j, "an entry of a plan is not in its column");
            require(plan.rows[p] < size && plan.rows[p] > (p > plan.starts[j] ? plan.rows[p - 1] : j),
                    "the rows of a column of a plan do not ascend");
        }
    for (Count j = 0; j < size; j++)
        for (Count r = plan.row_starts[j]; r < plan.row_starts[j + 1]; r++)
            require(plan.by_row[r] < fill && plan.rows[plan.by_row[r]] == j, "an entry of a plan is not in its row");
    for (Count j = 0; j < size; j++) {
        if (!plan.pair[j]) continue;
        Count begin = plan.starts[j], end = plan.starts[j + 1], beside = end - begin - 1;
        require(j + 1 < size && !plan.pair[j + 1] && begin < end && plan.rows[begin] == j + 1 &&
                    plan.starts[j + 2] - end == beside,
                "a pair of columns of a plan is none");
        for (Count p = begin + 1; p < end; p++)
            require(plan.rows[p] == plan.rows[p + beside], "the columns of a pair of a plan are not alike");
    }
    std::vector<std::int32_t> where(static_cast<std::size_t>(size), -1);  // the last column with an entry in a row
    for (Count j = 0; j < size; j++) {
        bool two = plan.pair[j];
        for (Count p = plan.starts[j]; p < plan.starts[j + 1]; p++) where[plan.rows[p]] = std::int32_t(j);
        for (Count r = plan.row_starts[j]; r < plan.row_starts[j + 1]; r++) {
            Count q = plan.by_row[r], k = plan.columns[q], end = plan.starts[k + 1];
            require(!two || (q + 1 < end && plan.rows[q + 1] == j + 1), "a column of a plan updates half of a pair");
            if (plan.pair[k]) {
                require(r + 1 < plan.row_starts[j + 1] && plan.by_row[r + 1] == q + end - plan.starts[k] - 1,
                        "a row of a plan has half of a pair");
                r++;
            }
            for (Count p = q + 1 + two; p < end; p++)
                require(where[plan.rows[p]] == j, "a column of a plan has no place for what is subtracted from it");
        }
        if (two) j++;
    }
}

}  // namespace ldl
}  // namespace kernels
