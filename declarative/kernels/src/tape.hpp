// The machine that runs a tape: registers for several problems side by side, and one loop over instructions.
//
// An instruction reads up to three registers and writes one, for all lanes at a time. Instructions of one kind that
// follow each other are a *run*, whose kind is looked at once. A register is used again as soon as nobody needs what is
// in it, so that all of them stay close to the processor. A system of linear equations is two runs: one that reads its
// entries, and one that writes its solution. The first runs are the *prologue*: what they compute depends on no problem.
#pragma once

#include "systems.hpp"

namespace kernels {

// The kinds of instructions, as kinds.py has them.
enum Kind : Count {
    ADD, SUB, MUL, DIV, NEG, MAXIMUM, MINIMUM, POW, ATAN2, WHERE,
    LT, LE, EQ, NOT, AND, OR, ISFINITE, ISNAN,
    ABS, SIGN, SQRT, EXP, EXPM1, LOG, LOG1P, SIN, COS, TAN, ASIN, ACOS, ATAN,
    SINH, COSH, TANH, ASINH, ACOSH, ATANH, ERF, FLOOR, CEIL, READ, SOLVED,
    KINDS,
};

struct Instruction {
    std::uint32_t a, b, c;  // operands
    std::uint32_t d;  // the register that it writes
};

struct Run {
    Kind kind;
    Count begin, end;  // its instructions
};

struct Program {
    std::vector<Run> runs;
    Count prologue;  // how many of them are the same for all problems
    std::vector<Instruction> instructions;
    Count size;  // how many registers there are
    std::vector<double> constants;  // the first registers
    std::vector<std::uint32_t> own;  // which entries of a problem's own inputs are read, into the next registers
    std::vector<std::uint32_t> shared;  // and of those that all problems share, after these
    std::vector<std::uint32_t> outputs;  // the register of each entry of a problem's outputs
    std::vector<Count> offsets;  // of each output among them, and the end
    Count own_width, shared_width;  // how many entries there must be
    Systems systems;  // that it solves on the way
};

// Refuse what would read or write where nothing is: called once, before a program is run.
inline void check(const Program& program) {
    Count size = program.size, given = Count(program.constants.size() + program.own.size() + program.shared.size());
    require(given <= size && size <= Count(UINT32_MAX), "a tape has fewer registers than inputs");
    require(size - given <= Count(program.instructions.size()), "a tape has more registers than it writes");
    require(program.prologue >= 0 && program.prologue <= Count(program.runs.size()), "a prologue has no end");
    std::vector<bool> known(static_cast<std::size_t>(size), false);
    std::vector<bool> kept = known, rewritten = known;  // what the prologue has written, and is read or written later
    auto own = known.begin() + Count(program.constants.size());
    std::fill(known.begin(), known.begin() + given, true);
    std::fill(own, own + Count(program.own.size()), false);  // in the prologue
    bool later = false;
    auto is_known = [&](std::uint32_t place) {
        if (place >= size || !known[place]) return false;
        if (later && !rewritten[place]) kept[place] = true;
        return true;
    };
    auto write = [&](std::uint32_t place) {
        require(place >= given && place < size, "an instruction of a tape writes an input, or no register");
        known[place] = true;
        if (later) rewritten[place] = true;
    };
    auto end_prologue = [&] {
        std::fill(own, own + Count(program.own.size()), true);
        later = true;
    };
    Count previous = 0, number = 0;
    bool reading = false;
    for (const Run& run : program.runs) {
        if (number++ == program.prologue) end_prologue();
        require(later || (run.kind != READ && run.kind != SOLVED), "the prologue of a tape solves a system");
        require(run.kind >= 0 && run.kind < KINDS, "an instruction of a tape is of an unknown kind");
        require(run.begin == previous && run.end >= run.begin && run.end <= Count(program.instructions.size()),
                "the runs of a tape do not follow each other");
        require(reading == (run.kind == SOLVED), "what a tape reads of a system and solves do not follow each other");
        reading = run.kind == READ;
        Count length = run.end - run.begin;
        if (run.kind == READ)
            require(length == program.systems.reads(), "a tape reads a system of another size");
        if (run.kind == SOLVED)
            require(length == program.systems.writes(), "a tape writes the solution of a system of another size");
        for (Count i = run.begin; i < run.end; i++) {
            const Instruction& x = program.instructions[i];
            if (run.kind != SOLVED)
                require(is_known(x.a) && is_known(x.b) && is_known(x.c),
                        "an instruction of a tape reads a register that nothing was written to");
            if (run.kind != READ) write(x.d);
        }
        previous = run.end;
    }
    require(!reading && previous == Count(program.instructions.size()), "the last run of a tape is not whole");
    if (!later) end_prologue();
    for (std::uint32_t place : program.outputs)
        require(is_known(place), "an output of a tape is a register that nothing was written to");
    for (Count place = given; place < size; place++)
        require(!kept[place] || !rewritten[place], "what the prologue of a tape has found is written again");
    require(!program.offsets.empty() && program.offsets.front() == 0 &&
                program.offsets.back() == Count(program.outputs.size()),
            "the outputs of a tape do not begin and end where they should");
    for (std::size_t i = 1; i < program.offsets.size(); i++)
        require(program.offsets[i] >= program.offsets[i - 1], "the outputs of a tape overlap");
    for (std::uint32_t entry : program.own) require(entry < program.own_width, "a tape reads more than its inputs");
    for (std::uint32_t entry : program.shared)
        require(entry < program.shared_width, "a tape reads more than the inputs that problems share");
}

// What is computed for each lane by itself.
template <int L, typename Formula>
inline void each_lane(const Instruction* x, const Instruction* end, double* r, Formula formula) {
    for (; x < end; x++) {
        const double *a = r + Count(x->a) * L, *b = r + Count(x->b) * L;
        double found[L];
        for (int lane = 0; lane < L; lane++) found[lane] = formula(a[lane], b[lane]);
        std::memcpy(r + Count(x->d) * L, found, sizeof found);
    }
}

// What is computed for all lanes at once.
template <int L, typename Formula>
inline void all_lanes(const Instruction* x, const Instruction* end, double* r, Formula formula) {
    for (; x < end; x++) store<L>(r, x->d, formula(load<L>(r, x->a), load<L>(r, x->b)));
}

// Carry out one run.
template <int L>
inline void perform(Kind kind, const Instruction* x, const Instruction* end, double* r) {
    using V = Vector<L>;
    const V one = broadcast<L>(1.0), none = broadcast<L>(0.0), infinite = broadcast<L>(INFINITE);
    switch (kind) {
        case ADD: return all_lanes<L>(x, end, r, [](V a, V b) { return a + b; });
        case SUB: return all_lanes<L>(x, end, r, [](V a, V b) { return a - b; });
        case MUL: return all_lanes<L>(x, end, r, [](V a, V b) { return a * b; });
        case DIV: return all_lanes<L>(x, end, r, [](V a, V b) { return a / b; });
        case NEG: return all_lanes<L>(x, end, r, [](V a, V) { return -a; });
        case ABS: return all_lanes<L>(x, end, r, [](V a, V) { return absolute<L>(a); });
        // What is not a number stays it, on either side.
        case MAXIMUM: return all_lanes<L>(x, end, r, [](V a, V b) { return a > b ? a : (a != a ? a : b); });
        case MINIMUM: return all_lanes<L>(x, end, r, [](V a, V b) { return a < b ? a : (a != a ? a : b); });
        case LT: return all_lanes<L>(x, end, r, [=](V a, V b) { return a < b ? one : none; });
        case LE: return all_lanes<L>(x, end, r, [=](V a, V b) { return a <= b ? one : none; });
        case EQ: return all_lanes<L>(x, end, r, [=](V a, V b) { return a == b ? one : none; });
        case NOT: return all_lanes<L>(x, end, r, [=](V a, V) { return a == none ? one : none; });
        case AND: return all_lanes<L>(x, end, r, [=](V a, V b) { return a != none ? (b != none ? one : none) : none; });
        case OR: return all_lanes<L>(x, end, r, [=](V a, V b) { return a != none ? one : (b != none ? one : none); });
        case ISNAN: return all_lanes<L>(x, end, r, [=](V a, V) { return a != a ? one : none; });
        case ISFINITE: return all_lanes<L>(x, end, r, [=](V a, V) { return absolute<L>(a) < infinite ? one : none; });
        case SIGN: return all_lanes<L>(x, end, r, [=](V a, V) { return (a > none ? one : none) - (a < none ? one : none); });
        case WHERE:
            for (; x < end; x++)
                store<L>(r, x->d, load<L>(r, x->a) != none ? load<L>(r, x->b) : load<L>(r, x->c));
            return;
        case SQRT: return each_lane<L>(x, end, r, [](double a, double) { return std::sqrt(a); });
        case POW: return each_lane<L>(x, end, r, [](double a, double b) { return std::pow(a, b); });
        case ATAN2: return each_lane<L>(x, end, r, [](double a, double b) { return std::atan2(a, b); });
        case EXP: return each_lane<L>(x, end, r, [](double a, double) { return std::exp(a); });
        case EXPM1: return each_lane<L>(x, end, r, [](double a, double) { return std::expm1(a); });
        case LOG: return each_lane<L>(x, end, r, [](double a, double) { return std::log(a); });
        case LOG1P: return each_lane<L>(x, end, r, [](double a, double) { return std::log1p(a); });
        case SIN: return each_lane<L>(x, end, r, [](double a, double) { return std::sin(a); });
        case COS: return each_lane<L>(x, end, r, [](double a, double) { return std::cos(a); });
        case TAN: return each_lane<L>(x, end, r, [](double a, double) { return std::tan(a); });
        case ASIN: return each_lane<L>(x, end, r, [](double a, double) { return std::asin(a); });
        case ACOS: return each_lane<L>(x, end, r, [](double a, double) { return std::acos(a); });
        case ATAN: return each_lane<L>(x, end, r, [](double a, double) { return std::atan(a); });
        case SINH: return each_lane<L>(x, end, r, [](double a, double) { return std::sinh(a); });
        case COSH: return each_lane<L>(x, end, r, [](double a, double) { return std::cosh(a); });
        case TANH: return each_lane<L>(x, end, r, [](double a, double) { return std::tanh(a); });
        case ASINH: return each_lane<L>(x, end, r, [](double a, double) { return std::asinh(a); });
        case ACOSH: return each_lane<L>(x, end, r, [](double a, double) { return std::acosh(a); });
        case ATANH: return each_lane<L>(x, end, r, [](double a, double) { return std::atanh(a); });
        case ERF: return each_lane<L>(x, end, r, [](double a, double) { return std::erf(a); });
        case FLOOR: return each_lane<L>(x, end, r, [](double a, double) { return std::floor(a); });
        case CEIL: return each_lane<L>(x, end, r, [](double a, double) { return std::ceil(a); });
        case READ: case SOLVED: case KINDS: return;
    }
}

// A program with registers of its own.
template <int L>
class Machine {
  public:
    Machine(const Program& program, const double* shared, Memory& memory)
        : program_(program), solver_(program.systems, memory), r_(memory.take<double>(program.size * L)) {
        Count fixed = Count(program.constants.size()), read = Count(program.own.size());
        for (Count i = 0; i < fixed; i++) store<L>(r_, i, broadcast<L>(program.constants[i]));
        for (std::size_t i = 0; i < program.shared.size(); i++)
            store<L>(r_, fixed + read + Count(i), broadcast<L>(shared[program.shared[i]]));
        for (Count n = 0; n < program.prologue; n++) perform(program.runs[n]);
    }

    // Run it for at most so many problems as there are lanes, those from `begin` on of so many (own inputs in rows).
    void run(Floats own, Count begin, Count count, double* outputs) {
        Count there = count - begin < L ? count - begin : L;
        read_inputs(own, begin, there);
        const Instruction* instructions = program_.instructions.data();
        for (std::size_t n = std::size_t(program_.prologue); n < program_.runs.size(); n++) {
            const Run& run = program_.runs[n];
            if (run.kind == READ) {
                const Run& solved = program_.runs[++n];
                solver_.solve(r_, there, [&](Count i) { return instructions[run.begin + i].a; },
                              [&](Count i) { return instructions[solved.begin + i].d; });
            } else {
                perform(run);
            }
        }
        write_outputs(there, begin, count, outputs);
    }

  private:
    void perform(const Run& run) {
        const Instruction* instructions = program_.instructions.data();
        kernels::perform<L>(run.kind, instructions + run.begin, instructions + run.end, r_);
    }

    // Lanes to spare repeat the last problem.
    void read_inputs(Floats own, Count begin, Count there) {
        double* to = r_ + program_.constants.size() * L;
        Count read = Count(program_.own.size());
        for (int lane = 0; lane < L; lane++) {
            const double* row = own[begin + (lane < there ? lane : there - 1)];
            for (Count i = 0; i < read; i++) to[i * L + lane] = row[program_.own[i]];
        }
    }

    // One output after the other, those of all problems together.
    void write_outputs(Count there, Count begin, Count count, double* outputs) {
        for (std::size_t n = 0; n + 1 < program_.offsets.size(); n++) {
            Count first = program_.offsets[n], width = program_.offsets[n + 1] - first;
            const std::uint32_t* registers = program_.outputs.data() + first;
            for (Count lane = 0; lane < there; lane++) {
                double* to = outputs + first * count + (begin + lane) * width;
                for (Count i = 0; i < width; i++) to[i] = r_[Count(registers[i]) * L + lane];
            }
        }
    }

    const Program& program_;
    SystemSolver<L> solver_;
    double* r_;
};

}  // namespace kernels
