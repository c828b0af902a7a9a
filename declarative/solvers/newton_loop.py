"""Iterations of the Newton method one after the other, without a return to Python for as long as all goes as hoped.

As many problems as stay close to the processor are worked on side by side, in lanes. Each goes on until it is plainly
solved, needs more than an ordinary iteration, or it is time to look; then it is put back as that iteration found and
made it, for ``newton.py`` to judge, and the next problem takes its lane.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..linear.jit import Floats, by_address, compiled, copy, copy_pairs, cut, inner, separate
from ..linear.simd import LANES
from ..linear.sparse.elimination import arrange, factorise
from ..linear.sparse.kernel_arrays import Indices, Plan, room_in
from ..linear.sparse.substitution import Kernels, solve
from ..recording.tape.machine import Program, run_groups
from .newton_curvature import kept_in, mend, put_back
from .newton_kernel import (
    Changed,
    Equations,
    Found,
    Here,
    Limits,
    Places,
    Step,
    There,
    Trial,
    judge_some,
    move_some,
    prepare_some,
    shift_more,
    solve_some_dense,
)
from .newton_step import BACKTRACKS

STEP_GOAL = 1e-12  # a relative residual with which a step is as good as any
SHIFTS, LARGEST_SHIFT = 10, 1e4  # how often a regularisation is made larger here, and what may become of it

Flags = NDArray[np.bool_]
Counts = NDArray[np.int64]


class Functions(NamedTuple):
    """How values and derivatives are evaluated."""

    program: Program
    kernel: int  # where the machine code that runs it is
    own: Floats  # the inputs of each problem, of which u and the multipliers are written anew, (batch, entries)
    shared: Floats
    at_u: int  # where these are among the entries; -1 if they do not matter
    at_multipliers: int


class Progress(NamedTuple):
    """How each problem fares."""

    running: Flags
    hopeful: Flags  # whether it takes ordinary steps
    doubtful: Flags  # whether a solution may be a saddle point, for its last factors were shifted
    settled: Flags  # whether it is not asked any more if a solution is a saddle point
    finished: Flags  # whether it was solved here
    iterations: Counts
    u: Floats  # its solution, (batch, m)
    y: Floats  # and multipliers, (batch, k)
    flags: Flags  # of the last iteration: solved, factored, accepted, faint, (4, batch)


class Lanes(NamedTuple):
    """Problems side by side, with all that an iteration makes of them; or all problems of a batch."""

    here: Here
    changed: Changed
    equations: Equations
    step: Step
    trial: Trial
    there: There
    own: Floats  # inputs of the functions, (count, entries)


def lanes_size(x: Lanes) -> int:
    """How many numbers a problem like these takes among the lanes."""
    m, k, q, last = x.here.u.shape[1], x.here.y.shape[1], x.here.s.shape[1], x.here.last.shape[1]
    entries = x.here.jacobian.shape[1] + x.here.hessian.shape[1]
    return int(8 * m + 9 * k + 2 * q + last + 2 * entries + 4 * x.changed.filter.shape[1] + 11 + x.own.shape[1])


@inner
def _lanes_in(x: Lanes, numbers: Floats, counts: Counts, flags: Flags, size: int) -> Lanes:
    """Lanes for so many problems like these, in buffers."""
    m, k, q, last = x.here.u.shape[1], x.here.y.shape[1], x.here.s.shape[1], x.here.last.shape[1]
    a, h, pairs = x.here.jacobian.shape[1], x.here.hessian.shape[1], x.changed.filter.shape[1]
    scalars, n = cut(numbers, 0, 11, size)
    gradient, n = cut(numbers, n, size, m)
    values, n = cut(numbers, n, size, k)
    jacobian, n = cut(numbers, n, size, a)
    hessian, n = cut(numbers, n, size, h)
    u, n = cut(numbers, n, size, m)
    s, n = cut(numbers, n, size, q)
    y, n = cut(numbers, n, size, k)
    before, n = cut(numbers, n, size, last)
    start, n = cut(numbers, n, size, m)
    rows, n = cut(numbers, n, size, k)
    here = Here(
        scalars[0], gradient, values, jacobian, hessian, u, s, y, scalars[1], scalars[2], scalars[3], before, start,
        scalars[4], rows,
    )  # fmt: skip
    primal, n = cut(numbers, n, size, m)
    dual, n = cut(numbers, n, size, k)
    r, n = cut(numbers, n, size, m)
    t, n = cut(numbers, n, size, k)
    z, n = cut(numbers, n, size, m)
    dy, n = cut(numbers, n, size, k)
    next_u, n = cut(numbers, n, size, m)
    next_s, n = cut(numbers, n, size, q)
    next_y, n = cut(numbers, n, size, k)
    multipliers, n = cut(numbers, n, size, k)
    next_gradient, n = cut(numbers, n, size, m)
    next_values, n = cut(numbers, n, size, k)
    next_jacobian, n = cut(numbers, n, size, a)
    next_hessian, n = cut(numbers, n, size, h)
    own, n = cut(numbers, n, size, x.own.shape[1])
    both, n = cut(numbers, n, 2 * size, 2 * pairs)
    filters = both.reshape(2, size, pairs, 2)
    return Lanes(
        here,
        Changed(scalars[5], filters[0], counts[0]),
        Equations(primal, dual, r, t, flags[0]),
        Step(z, dy, flags[1], scalars[6]),
        Trial(next_u, next_s, next_y, multipliers, scalars[7], scalars[8], flags[2]),
        There(
            scalars[9], next_gradient, next_values, next_jacobian, next_hessian, filters[1], counts[1], scalars[10],
            flags[3],
        ),
        own,
    )  # fmt: skip


@inner
def _copy_before(to: Lanes, i: int, x: Lanes, j: int) -> None:
    """What an iteration starts from."""
    a, b = to.here, x.here
    a.objective[i] = b.objective[j]
    copy(a.gradient[i], b.gradient[j])
    copy(a.values[i], b.values[j])
    copy(a.jacobian[i], b.jacobian[j])
    copy(a.hessian[i], b.hessian[j])
    copy(a.u[i], b.u[j])
    copy(a.s[i], b.s[j])
    copy(a.y[i], b.y[j])
    a.shift[i], a.weight[i], a.largest[i], a.scale[i] = b.shift[j], b.weight[j], b.largest[j], b.scale[j]
    copy(a.last[i], b.last[j])
    copy(a.start[i], b.start[j])
    copy(a.rows[i], b.rows[j])
    to.changed.barrier[i], to.changed.stored[i] = x.changed.barrier[j], x.changed.stored[j]
    copy_pairs(to.changed.filter[i], x.changed.filter[j])


@inner
def _copy_after(to: Lanes, i: int, x: Lanes, j: int) -> None:
    """What it leads to."""
    a, b = to.trial, x.trial
    a.solved[i] = b.solved[j]
    copy(a.u[i], b.u[j])
    copy(a.s[i], b.s[j])
    copy(a.y[i], b.y[j])
    c, d = to.there, x.there
    c.objective[i], c.stored[i], c.shift[i], c.accepted[i] = d.objective[j], d.stored[j], d.shift[j], d.accepted[j]
    copy(c.gradient[i], d.gradient[j])
    copy(c.values[i], d.values[j])
    copy(c.jacobian[i], d.jacobian[j])
    copy(c.hessian[i], d.hessian[j])
    copy_pairs(c.filter[i], d.filter[j])
    to.step.good[i], to.step.room[i] = x.step.good[j], x.step.room[j]


class Memory(NamedTuple):
    """What the iterations need on the way."""

    plan: Plan  # without entries, if problems are dense
    find: int  # where the machine code for steps is, of dense problems or of sparse ones
    kernels: Kernels  # and that which it needs
    numbers: Floats  # for the factors of the problems side by side
    where: Indices  # likewise
    lanes: Floats
    counts: Counts  # of the lanes; the last two: which problem is in each, and for how long, (4, lanes)
    flags: Flags  # (4, lanes)
    registers: Floats  # of the functions' program
    outputs: Floats  # and what it writes
    scratch: Floats
    step: Floats  # one that is put aside, (m + k,)
    mend: int  # where the kernel is that regularises a dense problem; 0 if there is none
    kept: Floats  # what it needs


def _examples() -> tuple[Any, ...]:
    row, rows, flags = np.empty(0), np.empty((0, 0)), np.empty(0, bool)
    counts, places = np.empty((0, 0), np.int64), np.empty(0, np.int64)
    where, kernels = np.empty(0, np.uint32), Kernels.none()
    memory = Memory(
        Plan.none(), 0, kernels, row, where, row, counts, np.empty((0, 0), bool), row, row, row, row, 0, row
    )
    here = Here(row, rows, rows, rows, rows, rows, rows, rows, row, row, row, rows, rows, row, rows)
    equations, step = Equations(rows, rows, rows, rows, flags), Step(rows, rows, flags, row)
    return Places(places, places, places), memory, here, equations, step, 0, 0, False, 0.0


find_steps = by_address(_examples)  # for the problems from the one to before the other, shifted if it is said


@separate(_examples)
def find_dense(
    _places: Places,
    memory: Memory,
    here: Here,
    equations: Equations,
    step: Step,
    begin: int,
    end: int,
    _shifted: bool,
    _solved: float,
) -> None:
    """The steps of dense problems."""
    solve_some_dense(here, equations, step, memory.scratch, begin, end)


@separate(_examples)
def find_sparse(
    places: Places,
    memory: Memory,
    here: Here,
    equations: Equations,
    step: Step,
    begin: int,
    end: int,
    shifted: bool,
    solved: float,
) -> None:
    """The steps of sparse ones; where H is not positive definite along the constraints, with a shift that makes it so.

    Unless it is said that this is not wanted.
    """
    _solve_sparse(memory, here, equations, step, begin, end, solved)
    for _ in range(SHIFTS if shifted else 0):
        more = False
        for n in range(begin, end):
            if not step.room[n] > 0 and here.shift[n] < LARGEST_SHIFT:
                shift_more(places, here, n, equations, memory.scratch)
                more = True
        if not more:
            return
        _solve_sparse(memory, here, equations, step, begin, end, solved)


@inner
def _solve_sparse(
    memory: Memory, here: Here, equations: Equations, step: Step, first: int, last: int, solved: float
) -> None:
    """As the sparse layout does it."""
    plan, lanes = memory.plan, 1 if len(memory.flags[0]) == 1 else LANES
    room = room_in(plan, memory.numbers, memory.where, lanes)
    entries, sides = room.entries, room.rows
    m, count = here.u.shape[1], last - first
    begin = 0
    arrange(here.hessian[first:last], 0, begin, entries)
    begin += here.hessian.shape[1]
    arrange(here.jacobian[first:last], 0, begin, entries)
    begin += here.jacobian.shape[1]
    arrange(equations.primal[first:last], 0, begin, entries)
    begin += m
    for b in range(lanes):
        n = min(first + b, last - 1)
        for i in range(equations.dual.shape[1]):
            entries[begin + i, b] = -equations.dual[n, i]
        for i in range(m):
            sides.right[plan.place[i], b] = equations.r[n, i]
        for i in range(equations.t.shape[1]):
            sides.right[plan.place[m + i], b] = equations.t[n, i]
    factorise(memory.kernels.factorise, (plan, entries, room.factor, room.work))
    solve(memory.kernels.solve, (plan, entries, room.factor, sides, room.error, STEP_GOAL))
    for b in range(count):
        n = first + b
        convex = room.factor.counts[0, b] + room.factor.counts[2, b] == m
        step.good[n] = convex and room.error[b] <= solved
        step.room[n] = 1.0 if convex else 0.0
        for i in range(m):
            step.z[n, i] = sides.x[plan.place[i], b]
        for i in range(equations.t.shape[1]):
            step.s[n, i] = sides.x[plan.place[m + i], b]


@inner
def _evaluate(functions: Functions, memory: Memory, own: Floats, trial: Trial, begin: int, end: int) -> Found:
    """Values and derivatives at the trial points."""
    count, program, outputs = end - begin, functions.program, memory.outputs
    for n in range(begin, end):
        if functions.at_u >= 0:
            copy(own[n, functions.at_u :], trial.u[n])
        if functions.at_multipliers >= 0:
            copy(own[n, functions.at_multipliers :], trial.multipliers[n])
    run_groups(program, functions.kernel, own[begin:end], functions.shared, outputs, memory.registers)
    at, n = program.offsets, count
    return Found(
        outputs[: at[1] * n],
        outputs[at[1] * n : at[2] * n].reshape(n, at[2] - at[1]),
        outputs[at[2] * n : at[3] * n].reshape(n, at[3] - at[2]),
        outputs[at[3] * n : at[4] * n].reshape(n, at[4] - at[3]),
        outputs[at[4] * n : at[5] * n].reshape(n, at[5] - at[4]),
    )


@inner
def _is_finite(here: Here, n: int) -> bool:
    total = here.objective[n]
    for x in (here.gradient[n], here.values[n], here.jacobian[n], here.hessian[n]):
        for i in range(len(x)):
            total += x[i]
    return bool(np.isfinite(total))


@inner
def _go_on(here: Here, changed: Changed, trial: Trial, there: There, n: int) -> None:
    """From the trial point."""
    here.objective[n], here.shift[n], changed.stored[n] = there.objective[n], there.shift[n], there.stored[n]
    copy(here.gradient[n], there.gradient[n])
    copy(here.values[n], there.values[n])
    copy(here.jacobian[n], there.jacobian[n])
    copy(here.hessian[n], there.hessian[n])
    copy(here.u[n], trial.u[n])
    copy(here.s[n], trial.s[n])
    copy(here.y[n], trial.y[n])
    copy_pairs(changed.filter[n], there.filter[n])


@inner
def _try(
    places: Places,
    limits: Limits,
    functions: Functions,
    memory: Memory,
    x: Lanes,
    begin: int,
    end: int,
    share: float,
) -> None:
    """See where the steps lead, of the problems from the one to before the other."""
    scratch = memory.scratch
    move_some(places, x.here, limits, x.changed.barrier, x.equations, x.step, x.trial, share, scratch, begin, end)
    found = _evaluate(functions, memory, x.own, x.trial, begin, end)
    judge_some(places, x.here, found, x.changed, x.trial, x.there, begin, end)


@inner
def _correct(places: Places, limits: Limits, memory: Memory, x: Lanes, n: int, solved: float) -> None:
    """The step of one problem with what its constraints came to along the first one made up for."""
    here, k, p = x.here, x.here.y.shape[1], x.here.y.shape[1] - x.here.s.shape[1]
    # The slacks of the step alone:
    move_some(places, here, limits, x.changed.barrier, x.equations, x.step, x.trial, 1.0, memory.scratch, n, n + 1)
    for i in range(k):
        before, after = here.values[n, i], x.there.values[n, i]
        if i >= p:
            before, after = before + here.s[n, i - p], after + x.trial.s[n, i - p]
        total = x.trial.length[n] * before + (after if np.isfinite(after) else 0.0)
        x.equations.t[n, i] += before - total
    find_steps(memory.find, (places, memory, here, x.equations, x.step, n, n + 1, False, solved))


@inner
def _search(
    places: Places, limits: Limits, functions: Functions, memory: Memory, x: Lanes, n: int, solved: float
) -> None:
    """Where a step of one problem is no progress: corrected, or shortened, until it is."""
    m, k, good, left, share = x.here.u.shape[1], x.here.y.shape[1], x.step.good[n], x.step.room[n], 1.0
    if k and abs(x.there.objective[n]) < np.inf:  # where it is undefined, to correct the constraints does not help
        z, s = memory.step[:m], memory.step[m:]
        copy(z, x.step.z[n])
        copy(s, x.step.s[n])
        _correct(places, limits, memory, x, n, solved)
        _try(places, limits, functions, memory, x, n, n + 1, share)
        copy(x.step.z[n], z)
        copy(x.step.s[n], s)
        x.step.good[n], x.step.room[n] = good, left
    for _ in range(BACKTRACKS):
        if x.there.accepted[n]:
            return
        share /= 2
        _try(places, limits, functions, memory, x, n, n + 1, share)


@inner
def _mend_dense(
    places: Places, limits: Limits, functions: Functions, memory: Memory, x: Lanes, n: int, solved: float
) -> None:
    """Where H of one problem is not positive definite along the constraints: a step with one that is."""
    mend(
        memory.mend,
        (places, x.here, limits, x.changed.barrier, x.equations, x.step, memory.kept, memory.scratch, n),
    )
    if not x.step.good[n]:
        return
    _try(places, limits, functions, memory, x, n, n + 1, 1.0)
    if not (x.there.accepted[n] or x.trial.solved[n]):
        _search(places, limits, functions, memory, x, n, solved)
    kept = kept_in(memory.kept, x.here.u.shape[1])
    copy(x.here.hessian[n], kept.hessian)
    x.there.shift[n] = x.here.shift[n]  # it has just been needed
    if not x.there.accepted[n]:
        put_back(x.here, n, kept)


@inner
def _is_over(progress: Progress, g: int, x: Lanes, n: int, sure: bool, faint: float) -> bool:
    """Whether a problem is plainly solved, or has to be judged."""
    solved, factored, accepted, vague = (
        x.trial.solved[n],
        x.step.good[n],
        x.there.accepted[n],
        not x.step.room[n] > faint,
    )
    progress.flags[0, g], progress.flags[1, g] = solved, factored
    progress.flags[2, g], progress.flags[3, g] = accepted, vague
    certain = progress.settled[g] or (factored and not (sure and (vague or progress.doubtful[g])))
    if solved and certain and _is_finite(x.here, n):
        # If the step is no progress, it is known all the same to be shorter than can be asked for.
        copy(progress.u[g], x.trial.u[n] if accepted else x.here.u[n])
        copy(progress.y[g], x.trial.y[n] if accepted else x.here.y[n])
        progress.running[g], progress.finished[g] = False, True
    return solved or not (factored and accepted and progress.hopeful[g])


@compiled
def iterate(
    places: Places,
    limits: Limits,
    functions: Functions,
    memory: Memory,
    batch: Lanes,
    size: int,
    progress: Progress,
    most: int,
    sure: bool,
    faint: float,
    solved: float,
) -> None:
    """At most so many iterations of each problem that is running, of so many side by side; sparse if there is a plan.

    To be ``sure``, what may be a saddle point is not solved.
    """
    total, sparse = len(batch.own), len(memory.plan.place) > 0
    who, turns = memory.counts[2], memory.counts[3]
    lanes = _lanes_in(batch, memory.lanes, memory.counts, memory.flags, size)
    # Of one type throughout: the constant has its own, and each type of a place is compiled by itself.
    zero = np.int64(0)
    count, waiting = zero, zero
    while True:
        while count < size and waiting < total:  # lanes are filled
            if progress.running[waiting]:
                _copy_before(lanes, count, batch, waiting)
                copy(lanes.own[count], batch.own[waiting])
                who[count], turns[count] = waiting, 0
                count += 1
            waiting += 1
        if not count:
            return
        prepare_some(places, lanes.here, limits, lanes.changed, lanes.equations, memory.scratch, zero, count)
        find_steps(memory.find, (places, memory, lanes.here, lanes.equations, lanes.step, zero, count, True, solved))
        if sparse:
            for i in range(count):
                progress.doubtful[who[i]] = lanes.here.shift[i] > 0
        _try(places, limits, functions, memory, lanes, zero, count, 1.0)
        for i in range(count):
            hopeful = progress.hopeful[who[i]]
            refused = lanes.step.good[i] and not (lanes.there.accepted[i] or lanes.trial.solved[i])
            if refused and hopeful and (lanes.here.shift[i] == 0 or not sparse):
                _search(places, limits, functions, memory, lanes, i, solved)
                lanes.there.shift[i] = lanes.here.shift[i]  # which is not made smaller after such a step
            elif memory.mend and hopeful and not lanes.step.room[i] > 0:
                _mend_dense(places, limits, functions, memory, lanes, i, solved)
                progress.doubtful[who[i]] = lanes.here.shift[i] > 0
        n = np.int64(0)
        while n < count:
            g = who[n]
            if not _is_over(progress, g, lanes, n, sure, faint) and turns[n] < most - 1:
                _go_on(lanes.here, lanes.changed, lanes.trial, lanes.there, n)
                progress.iterations[g] += 1
                turns[n] += 1
                n += 1
                continue
            _copy_before(batch, g, lanes, n)
            _copy_after(batch, g, lanes, n)
            count -= 1
            if n < count:  # the last one moves here
                _copy_before(lanes, n, lanes, count)
                _copy_after(lanes, n, lanes, count)
                copy(lanes.own[n], lanes.own[count])
                who[n], turns[n] = who[count], turns[count]
