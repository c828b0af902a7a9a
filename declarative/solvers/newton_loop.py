"""Iterations of the Newton method one after the other, without a return to Python for as long as all goes as hoped.

As many problems as stay close to the processor are worked on side by side, in lanes. Each goes on until it is plainly
solved, needs more than an ordinary iteration, or it is time to look; then it is put back as that iteration found and
made it, for ``newton.py`` to judge, and the next problem takes its lane.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..linear.machine import Floats, compiled, copy, copy_pairs, inner
from ..linear.sparse.elimination import arrange, factorise
from ..linear.sparse.lanes import Indices, Plan, Room, room_in
from ..linear.sparse.substitution import solve
from ..linear.vector import LANES
from ..recording.tape.machine import Program, abreast, alone
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
    judge,
    move,
    prepare,
    shift_more,
    solve_dense,
)

SHIFTS, LARGEST_SHIFT = 10, 1e4  # how often a regularisation is made larger here, and what may become of it

Flags = NDArray[np.bool_]
Counts = NDArray[np.int64]


class Functions(NamedTuple):
    """How values and derivatives are evaluated."""

    program: Program
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


@inner
def _first(x: Lanes, n: int) -> Lanes:
    """The first so many."""
    h, c, e, st, tr, th = x.here, x.changed, x.equations, x.step, x.trial, x.there
    return Lanes(
        Here(
            h.objective[:n], h.gradient[:n], h.values[:n], h.jacobian[:n], h.hessian[:n], h.u[:n], h.s[:n], h.y[:n],
            h.shift[:n], h.weight[:n], h.largest[:n], h.last[:n], h.start[:n], h.scale[:n], h.rows[:n],
        ),
        Changed(c.barrier[:n], c.filter[:n], c.stored[:n]),
        Equations(e.primal[:n], e.dual[:n], e.r[:n], e.t[:n], e.settled[:n]),
        Step(st.z[:n], st.s[:n], st.good[:n], st.room[:n]),
        Trial(tr.u[:n], tr.s[:n], tr.y[:n], tr.multipliers[:n], tr.length[:n], tr.slope[:n], tr.solved[:n]),
        There(
            th.objective[:n], th.gradient[:n], th.values[:n], th.jacobian[:n], th.hessian[:n], th.filter[:n],
            th.stored[:n], th.shift[:n], th.accepted[:n],
        ),
        x.own[:n],
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
    numbers: Floats  # for the factors of the problems side by side
    where: Indices  # likewise
    registers: Floats  # of the functions' program
    scratch: Floats
    who: Counts  # which problem is in each lane
    turns: Counts  # and for how long


@inner
def _solve_sparse(plan: Plan, room: Room, here: Here, equations: Equations, step: Step, solved: float) -> None:
    """The step, as the sparse layout makes it."""
    entries, sides = room.entries, room.rows
    m, count = here.u.shape[1], len(here.u)
    begin = 0
    arrange(here.hessian, 0, begin, entries)
    begin += here.hessian.shape[1]
    arrange(here.jacobian, 0, begin, entries)
    begin += here.jacobian.shape[1]
    arrange(equations.primal, 0, begin, entries)
    begin += m
    lanes = entries.shape[1]
    for b in range(lanes):
        n = min(b, count - 1)
        for i in range(equations.dual.shape[1]):
            entries[begin + i, b] = -equations.dual[n, i]
        for i in range(m):
            sides.right[plan.place[i], b] = equations.r[n, i]
        for i in range(equations.t.shape[1]):
            sides.right[plan.place[m + i], b] = equations.t[n, i]
    factorise(plan, entries, room.factor, room.work)
    solve(plan, entries, room.factor, sides, room.error)
    for b in range(count):
        convex = room.factor.counts[0, b] + room.factor.counts[2, b] == m
        step.good[b] = convex and room.error[b] <= solved
        step.room[b] = 1.0 if convex else 0.0
        for i in range(m):
            step.z[b, i] = sides.x[plan.place[i], b]
        for i in range(equations.t.shape[1]):
            step.s[b, i] = sides.x[plan.place[m + i], b]


@inner
def _shift_sparse(places: Places, plan: Plan, room: Room, x: Lanes, scratch: Floats, solved: float) -> None:
    """Where H is not positive definite along the constraints, a shift that makes it so, and the step with that."""
    for _ in range(SHIFTS):
        more = False
        for n in range(len(x.here.u)):
            if not x.step.room[n] > 0 and x.here.shift[n] < LARGEST_SHIFT:
                shift_more(places, x.here, n, x.equations, scratch)
                more = True
        if not more:
            return
        _solve_sparse(plan, room, x.here, x.equations, x.step, solved)


@inner
def _evaluate(functions: Functions, own: Floats, trial: Trial, outputs: Floats, registers: Floats) -> Found:
    """Values and derivatives at the trial points."""
    count, program = len(trial.u), functions.program
    for n in range(count):
        if functions.at_u >= 0:
            copy(own[n, functions.at_u :], trial.u[n])
        if functions.at_multipliers >= 0:
            copy(own[n, functions.at_multipliers :], trial.multipliers[n])
    if count == 1:
        alone(program, own, functions.shared, outputs, registers)
    else:
        abreast(program, own, functions.shared, outputs, registers)
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
    if solved and accepted and certain and _is_finite(x.here, n):
        copy(progress.u[g], x.trial.u[n])
        copy(progress.y[g], x.trial.y[n])
        progress.running[g], progress.finished[g] = False, True
    return solved or not (factored and accepted and progress.hopeful[g])


@compiled
def iterate(
    places: Places,
    limits: Limits,
    functions: Functions,
    memory: Memory,
    batch: Lanes,
    lanes: Lanes,
    progress: Progress,
    outputs: Floats,
    most: int,
    sure: bool,
    faint: float,
    solved: float,
) -> None:
    """At most so many iterations of each problem that is running; sparse if there is a plan for that.

    To be ``sure``, what may be a saddle point is not solved.
    """
    size, total, sparse = len(lanes.own), len(batch.own), len(memory.plan.place) > 0
    who, turns, plan, scratch = memory.who, memory.turns, memory.plan, memory.scratch
    room = room_in(plan, memory.numbers, memory.where, np.int64((1 if size == 1 else LANES) if sparse else 0))
    count, waiting = np.int64(0), np.int64(0)  # of one type throughout: each type of a place is compiled by itself
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
        x = _first(lanes, count)
        prepare(places, x.here, limits, x.changed, x.equations, scratch)
        if sparse:
            _solve_sparse(plan, room, x.here, x.equations, x.step, solved)
            _shift_sparse(places, plan, room, x, scratch, solved)
            for i in range(count):
                progress.doubtful[who[i]] = x.here.shift[i] > 0
        else:
            solve_dense(x.here, x.equations, x.step, scratch)
        move(places, x.here, limits, x.changed.barrier, x.equations, x.step, x.trial, scratch)
        found = _evaluate(functions, x.own, x.trial, outputs, memory.registers)
        judge(places, x.here, found, x.changed, x.trial, x.there)
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
