// The compiled core as its caller sees it: functions of plain buffers, which return what is wrong, or nothing.
//
// Descriptions (tapes, plans, shapes) are copied and checked when they are made, and cannot be changed after that.
// Lengths are in entries. What is handed in is C-contiguous, which the Python side sees to.
#include <string>

#include "active_set.hpp"
#include "newton_loop.hpp"
#include "registers.hpp"
#include "sinkhorn.hpp"
#include "threads.hpp"

using namespace kernels;

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

template <typename Action>
const char* guarded(Action action) {
    thread_local std::string text;
    try {
        action();
        return nullptr;
    } catch (const std::bad_alloc&) {
        return "out of memory";
    } catch (const std::exception& error) {
        text = error.what();
        return text.c_str();
    }
}

void require_length(Count length, Count wanted) { require(length == wanted, "a buffer is of another length"); }

// Call with the number of lanes as a constant.
template <typename Action>
void with_lanes(Count lanes, Action action) {
    require(lanes == 1 || lanes == LANES, "there are no kernels for so many problems side by side");
    if (lanes == 1)
        action(std::integral_constant<int, 1>());
    else
        action(std::integral_constant<int, LANES>());
}

}  // namespace

EXPORT Count core_lanes() { return LANES; }

// Tapes.

EXPORT const char* registers_allocate(
    const Count* operands, const Count* last, const Count* results, Count* place, Count count, Count numbered,
    Count used, Count* size
) {
    return guarded([&] { *size = allocate_registers(operands, last, results, place, count, numbered, used); });
}

EXPORT const char* tape_make(
    const Count* kinds, const Count* ends, Count runs, Count prologue, const Count* a, const Count* b, const Count* c, const Count* d,
    Count count, Count size, const double* constants, Count constant_count, const Count* own, Count own_count,
    Count own_width, const Count* shared, Count shared_count, Count shared_width, const Count* outputs,
    Count output_count, const Count* offsets, Count offset_count, Count dense, Count m, Count k, const Plan* plan,
    Program** made
) {
    return guarded([&] {
        auto x = std::make_unique<Program>();
        require(runs >= 0 && count >= 0 && constant_count >= 0, "an array of a negative length");
        Count begin = 0;
        for (Count n = 0; n < runs; begin = ends[n++]) x->runs.push_back({static_cast<Kind>(kinds[n]), begin, ends[n]});
        x->prologue = prologue;
        auto as = places<std::uint32_t>(a, count), bs = places<std::uint32_t>(b, count);
        auto cs = places<std::uint32_t>(c, count), ds = places<std::uint32_t>(d, count);
        x->instructions.resize(as.size());
        for (std::size_t i = 0; i < as.size(); i++) x->instructions[i] = {as[i], bs[i], cs[i], ds[i]};
        x->size = size;
        x->constants.assign(constants, constants + constant_count);
        x->own = places<std::uint32_t>(own, own_count), x->own_width = own_width;
        x->shared = places<std::uint32_t>(shared, shared_count), x->shared_width = shared_width;
        x->outputs = places<std::uint32_t>(outputs, output_count);
        x->offsets = places<Count>(offsets, offset_count);
        if (plan) {
            x->systems = {Systems::SPARSE, 0, 0, plan};
        } else if (dense) {
            require(m >= 0 && k >= 0 && m < (1 << 15) && k < (1 << 15), "a dense system is too large");
            x->systems = {Systems::DENSE, m, k, nullptr};
        }
        check(*x);
        *made = x.release();
    });
}

EXPORT void tape_free(Program* tape) { delete tape; }

namespace {

// Operations for one problem, about; those of a tape read and write besides.
double work_of(const Plan& plan) {
    double total = double(plan.entries() + 4 * plan.size());
    for (Count j = 0; j < plan.size(); j++) {
        double length = double(plan.starts[j + 1] - plan.starts[j]);
        total += length * (length + 3) / 2;
    }
    return total;
}

double work_of(const Program& tape) {
    double total = double(tape.instructions.size()), m = double(tape.systems.m), k = double(tape.systems.k);
    for (const Run& run : tape.runs)
        if (run.kind == SOLVED) total += tape.systems.plan ? 3 * work_of(*tape.systems.plan) : m * m * (m + 3 * k) / 3;
    return total;
}

}  // namespace

// Outputs one after the other, each (batch, entries).
EXPORT const char* tape_run(
    const Program* tape, const double* own, Count own_length, const double* shared, Count shared_length, Count batch,
    double* outputs, Count output_length, Count lanes, Count threads
) {
    return guarded([&] {
        require(batch >= 0, "a batch of a negative size");
        require_length(own_length, product(batch, tape->own_width));
        require_length(shared_length, tape->shared_width);
        require_length(output_length, product(batch, tape->offsets.back()));
        with_lanes(lanes, [&](auto constant) {
            constexpr int L = constant;
            Count groups = (batch + L - 1) / L;
            share_out(groups, L * work_of(*tape), threads, [&] {
                auto memory = std::make_unique<Memory>();
                Machine<L> machine(*tape, shared, *memory);
                return [&, machine, memory = std::move(memory)](Count group) mutable {
                    machine.run({const_cast<double*>(own), tape->own_width}, group * L, batch, outputs);
                };
            });
        });
    });
}

// Sparse systems.

EXPORT const char* plan_make(
    const Count* place, Count size, const Count* slots, const Count* first, const Count* second, Count entries,
    const std::uint8_t* pair, const std::uint8_t* is_constraint, const Count* starts, const Count* rows,
    const Count* columns, Count fill, const Count* row_starts, const Count* by_row, Plan** made
) {
    return guarded([&] {
        auto x = std::make_unique<Plan>();
        require(size >= 0 && entries >= 0 && fill >= 0, "an array of a negative length");
        x->place = places<std::uint32_t>(place, size), x->slots = places<std::uint32_t>(slots, entries);
        x->first = places<std::uint32_t>(first, entries), x->second = places<std::uint32_t>(second, entries);
        x->pair.assign(pair, pair + size), x->is_constraint.assign(is_constraint, is_constraint + size);
        x->starts = places<std::int32_t>(starts, size + 1), x->rows = places<std::uint32_t>(rows, fill);
        x->columns = places<std::int32_t>(columns, fill), x->row_starts = places<std::int32_t>(row_starts, size + 1);
        x->by_row = places<std::uint32_t>(by_row, fill);
        ldl::check(*x);
        *made = x.release();
    });
}

EXPORT void plan_free(Plan* plan) { delete plan; }

namespace {

ldl::BatchFactor batch_factor(const Plan& plan, Count batch, Count lanes, double* numbers, Count length) {
    require(batch >= 0, "a batch of a negative size");
    ldl::BatchFactor x{batch, (batch + lanes - 1) / lanes, lanes, plan.entries(), plan.size(), plan.fill(), numbers};
    require(length >= product(x.groups, x.stride()), "a buffer is too short for the factors");
    return x;
}

}  // namespace

// How many numbers the factors of a batch take.
EXPORT Count sparse_size(const Plan* plan, Count batch, Count lanes) {
    ldl::BatchFactor x{batch, (batch + lanes - 1) / lanes, lanes, plan->entries(), plan->size(), plan->fill(), nullptr};
    return x.groups * x.stride();
}

// Factor K, from the values (batch, width) of H, A and the two diagonals; counts are (batch, 4).
EXPORT const char* sparse_factorise(
    const Plan* plan, Count batch, Count lanes, const double* hessian, Count hessian_width, const double* jacobian,
    Count jacobian_width, const double* primal, Count primal_width, const double* dual, Count dual_width,
    double* numbers, Count length, Count* counts, Count threads
) {
    return guarded([&] {
        require(hessian_width >= 0 && jacobian_width >= 0 && primal_width >= 0 && dual_width >= 0 &&
                    hessian_width + jacobian_width + primal_width + dual_width == plan->entries(),
                "the values of a sparse matrix are of another number");
        with_lanes(lanes, [&](auto constant) {
            constexpr int L = constant;
            ldl::BatchFactor x = batch_factor(*plan, batch, L, numbers, length);
            share_out(x.groups, L * work_of(*plan), threads, [&] {
                auto memory = std::make_unique<Memory>();
                ldl::Work work{memory->take<double>(x.fill * L), memory->take<double>(x.size * L),
                               memory->zeros<std::uint32_t>(x.size)};
                return [&, work, memory = std::move(memory)](Count group) {
                    Count first = group * L, there = batch - first < L ? batch - first : L;
                    double* to = x.entries_of(group);
                    for (auto part : {Rows<const double>{hessian, hessian_width}, {jacobian, jacobian_width},
                                      {primal, primal_width}, {dual, dual_width}})
                        to = newton::arrange<L>(part, first, there, to);
                    ldl::Factor factor = x.of(group);
                    ldl::factorise<L>(*plan, x.entries_of(group), factor, work);
                    for (Count lane = 0; lane < there; lane++)
                        for (Count i = 0; i < 4; i++)
                            counts[4 * (first + lane) + i] = Count(factor.counts[i * L + lane]);
                };
            });
        });
    });
}

// K^-1 right, for each of the right-hand sides (batch, size, count); errors are the largest of these, (batch,).
EXPORT const char* sparse_solve(
    const Plan* plan, Count batch, Count lanes, double* numbers, Count length, const double* right, Count count,
    double* found, double* errors, Count threads
) {
    return guarded([&] {
        with_lanes(lanes, [&](auto constant) {
            constexpr int L = constant;
            ldl::BatchFactor x = batch_factor(*plan, batch, L, numbers, length);
            Count size = x.size;
            share_out(x.groups, double(x.fill + x.entries + size) * 16 * double(count), threads, [&] {
                auto memory = std::make_unique<Memory>();
                auto take = [&](Count rows) { return memory->take<double>(rows * L); };
                ldl::Sides rows{take(size), take(size), take(size), take(size), take(size), take(2)};
                double* error = take(1);
                return [&, rows, error, size, memory = std::move(memory)](Count group) {
                    Count first = group * L, there = batch - first < L ? batch - first : L;
                    for (Count lane = 0; lane < there; lane++) errors[first + lane] = 0.0;
                    for (Count i = 0; i < count; i++) {
                        for (int lane = 0; lane < L; lane++) {
                            const double* from = right + (first + (lane < there ? lane : there - 1)) * size * count + i;
                            for (Count row = 0; row < size; row++)
                                rows.right[Count(plan->place[row]) * L + lane] = from[row * count];
                        }
                        ldl::solve<L>(*plan, x.entries_of(group), x.of(group), rows, error, ldl::GOAL);
                        for (Count lane = 0; lane < there; lane++) {
                            double* to = found + (first + lane) * size * count + i;
                            for (Count row = 0; row < size; row++)
                                to[row * count] = rows.x[Count(plan->place[row]) * L + lane];
                            errors[first + lane] = larger(errors[first + lane], error[lane]);
                        }
                    }
                };
            });
        });
    });
}

// Dense systems.

EXPORT const char* dense_solve_active(
    Count batch, Count m, Count k, const double* hessian, const double* jacobian, const std::uint8_t* active,
    const double* r, const double* t, double* found, std::uint8_t* trusted, Count threads
) {
    return guarded([&] {
        require(batch >= 0 && m >= 0 && k >= 0 && m < (1 << 15) && k < (1 << 15), "the sizes of a system are out of range");
        double operations = double(m + 1) * double(m + 1) * double(m + 3 * k + 9) / 3;
        share_out(batch, operations, threads, [&] {
            auto memory = std::make_unique<Memory>();
            dense::ActiveSystem x(m, k, *memory);
            return [&, x, memory = std::move(memory)](Count n) mutable {
                copy(x.hessian.data, hessian + n * m * m, m * m);
                copy(x.jacobian.data, jacobian + n * k * m, k * m);
                copy(x.z, r + n * m, m);
                copy(x.s, t + n * k, k);
                for (Count i = 0; i < k; i++) x.active[i] = active[n * k + i] ? 1.0 : 0.0;
                x.solve();
                trusted[n] = x.trusted;
                copy(found + n * (m + k), x.z, m);
                copy(found + n * (m + k) + m, x.s, k);
            };
        });
    });
}

// The Newton method.

EXPORT const char* shape_make(
    Count m, Count k, Count p, const Count* rows, const Count* columns, Count entries, const Count* diagonal,
    Count hessian, newton::Shape** made
) {
    return guarded([&] {
        require(m >= 0, "an array of a negative length");
        auto x = std::make_unique<newton::Shape>(newton::Shape{
            m, k, p, places<std::uint32_t>(rows, entries), places<std::uint32_t>(columns, entries),
            places<std::int64_t>(diagonal, m), hessian});
        newton::check(*x);
        *made = x.release();
    });
}

EXPORT void shape_free(newton::Shape* shape) { delete shape; }

// How many numbers a problem takes.
EXPORT Count newton_size(const newton::Shape* shape, Count last, Count width) {
    return newton::Problems::size(*shape, last, width);
}

// A batch of problems, in the buffers of the caller.
struct Batch {
    const newton::Shape* shape;
    Count count, last, width, swapped, length;
    double* numbers;
    Count* counts;
    bool* flags;
    newton::Tolerances tolerances;

    newton::Problems problems() const {
        require(count >= 0 && (last == 0 || last == 1) && width >= 0 && width < (1LL << 40), "the sizes of a batch are out of range");
        require_length(length, product(count, newton::Problems::size(*shape, last, width)));
        newton::Problems x(*shape, count, last, width, numbers, counts, flags);
        if (swapped) std::swap(x.current, x.trial);
        return x;
    }
};

namespace {

// Call for each problem, with what an iteration needs.
template <typename Action>
const char* for_each(const Batch* batch, Action action) {
    return guarded([&] {
        newton::Problems x = batch->problems();
        Memory memory;
        newton::Vectors vectors(*batch->shape, memory);
        action(x, vectors, memory);
    });
}

}  // namespace

// The systems of the steps, and their solutions if they are dense ones.
EXPORT const char* newton_prepare(const Batch* batch, Count dense) {
    return for_each(batch, [&](newton::Problems& x, newton::Vectors& vectors, Memory& memory) {
        for (Count n = 0; n < x.count; n++) newton::prepare(x, n, batch->tolerances, vectors);
        if (!dense) return;
        newton::Steps<1> steps(x.shape, nullptr, vectors.diagonal, memory);
        for (Count n = 0; n < x.count; n++) steps.dense.solve(x, n);
    });
}

EXPORT const char* newton_correct(const Batch* batch, Count dense) {
    return for_each(batch, [&](newton::Problems& x, newton::Vectors& vectors, Memory& memory) {
        for (Count n = 0; n < x.count; n++) newton::correct(x, n, batch->tolerances, vectors.diagonal);
        if (!dense) return;
        newton::Steps<1> steps(x.shape, nullptr, vectors.diagonal, memory);
        for (Count n = 0; n < x.count; n++) steps.dense.solve(x, n);
    });
}

EXPORT const char* newton_move(const Batch* batch, double share) {
    return for_each(batch, [&](newton::Problems& x, newton::Vectors& vectors, Memory&) {
        for (Count n = 0; n < x.count; n++) newton::move(x, n, share, batch->tolerances, vectors.diagonal);
    });
}

EXPORT const char* newton_judge(
    const Batch* batch, const double* objective, const double* slope, const double* values, const double* jacobian,
    const double* hessian
) {
    return for_each(batch, [&](newton::Problems& x, newton::Vectors&, Memory&) {
        const newton::Shape& shape = x.shape;
        newton::Expansion found{objective, {slope, shape.m}, {values, shape.k}, {jacobian, shape.jacobian()},
                                {hessian, shape.hessian}};
        for (Count n = 0; n < x.count; n++) newton::judge(x, n, found, n);
    });
}

// Those problems whose H is not positive definite; another H takes its place.
EXPORT const char* newton_regularise(const Batch* batch) {
    return for_each(batch, [&](newton::Problems& x, newton::Vectors& vectors, Memory& memory) {
        newton::Steps<1> steps(x.shape, nullptr, vectors.diagonal, memory);
        newton::Unregularised before(x.shape.m, memory);
        for (Count n = 0; n < x.count; n++)
            if (!(x.system.pivot[n] > 0)) newton::regularise(x, n, batch->tolerances, vectors, steps.dense, before);
    });
}

// Iterations in which nothing has to be looked at; dense ones without a plan.
EXPORT const char* newton_iterate(
    const Batch* batch, const Program* tape, const double* shared, Count shared_length, Count at_u,
    Count at_multipliers, const Plan* plan, Count regularises, const bool* running, const bool* stepping,
    bool* shifted, const bool* unquestioned, bool* finished, Count* iterations, double* u, double* y, bool* flags,
    Count most, Count sure, Count lanes, Count threads
) {
    return guarded([&] {
        newton::Problems x = batch->problems();
        const newton::Shape& shape = x.shape;
        require(tape->own_width == x.width && at_u >= -1 && at_u <= x.width - shape.m && at_multipliers >= -1 &&
                    at_multipliers <= x.width - shape.k,
                "the inputs of the functions are of another number");
        require_length(shared_length, tape->shared_width);
        const Count widths[] = {1, shape.m, shape.k, shape.jacobian(), shape.hessian};
        require(tape->offsets.size() >= 6, "the functions of a problem return something else");
        for (int i = 0; i < 5; i++)
            require(tape->offsets[i + 1] - tape->offsets[i] == widths[i], "the functions of a problem return something else");
        require(!plan || !regularises, "sparse systems are not regularised so");
        newton::Functions functions{tape, shared, at_u, at_multipliers};
        newton::Progress progress{running, stepping, shifted, unquestioned, finished, iterations,
                                  {u, shape.m}, {y, shape.k}, flags};
        double each = work_of(*tape);
        each += plan ? work_of(*plan) * 3 : double(shape.m) * double(shape.m) * double(shape.m + 3 * shape.k) / 6;
        std::atomic<Count> waiting{0};
        with_lanes(lanes, [&](auto constant) {
            constexpr int L = constant;
            auto work = [&] {
                newton::Loop<L> loop(x, functions, plan, regularises, batch->tolerances, progress);
                loop.run(waiting, most, sure);
            };
            Count groups = (x.count + L - 1) / L;
            threads = threads_for(groups, 8 * L * (each + 100), threads);
            if (threads < 2) return work();
            Pool::of_process().run(threads, work);
        });
    });
}

// Loops of ready-made layers.

EXPORT const char* active_set_find(
    double* tables, double* xs, const std::uint8_t* wanted, Count batch, Count k, Count equalities, Count limit,
    bool* active, Count* count, bool* clear, Count threads
) {
    return guarded([&] {
        require(batch >= 0 && k >= 0 && equalities >= 0 && equalities <= k && k < (1 << 15),
                "the sizes of a program are out of range");
        share_out(batch, double(k) * double(k) * double(k) / 2, threads, [&] {
            auto memory = std::make_unique<Memory>();
            active_set::Search search(k, equalities, *memory);
            return [&, search, memory = std::move(memory)](Count n) mutable {
                if (!wanted[n]) return;
                count[n] = search.find({tables + n * k * k, k}, xs + n * k, active + n * k, limit);
                clear[n] = count[n] >= 0 && search.is_clear(xs + n * k, active + n * k);
            };
        });
    });
}

namespace {

template <typename T>
const char* sinkhorn_iterate(
    const T* kernel, const T* r, const T* c, T* u, T* v, const T* excess, T* error, T* middle, Count* count,
    double tolerance, Count steps, Count batch, Count m, Count n, Count threads
) {
    return guarded([&] {
        require(batch >= 0 && m >= 0 && n >= 0, "the sizes of a problem are out of range");
        share_out(batch, double(m * n) * double(steps) / 2, threads, [&] {
            auto memory = std::make_unique<Memory>();
            T *right_u = memory->take<T>(m), *right_v = memory->take<T>(n);
            return [&, right_u, right_v, memory = std::move(memory)](Count i) {
                auto found = sinkhorn::iterate<T>(kernel + i * m * n, r + i * m, c + i * n, u + i * m, v + i * n,
                                                  excess[i], tolerance, steps, m, n, right_u, right_v);
                error[i] = found.error, middle[i] = found.middle, count[i] = found.iterations;
            };
        });
    });
}

}  // namespace

EXPORT const char* sinkhorn_iterate_double(
    const double* kernel, const double* r, const double* c, double* u, double* v, const double* excess, double* error,
    double* middle, Count* count, double tolerance, Count steps, Count batch, Count m, Count n, Count threads
) {
    return sinkhorn_iterate(kernel, r, c, u, v, excess, error, middle, count, tolerance, steps, batch, m, n, threads);
}

EXPORT const char* sinkhorn_iterate_float(
    const float* kernel, const float* r, const float* c, float* u, float* v, const float* excess, float* error,
    float* middle, Count* count, double tolerance, Count steps, Count batch, Count m, Count n, Count threads
) {
    return sinkhorn_iterate(kernel, r, c, u, v, excess, error, middle, count, tolerance, steps, batch, m, n, threads);
}
