"""Iterations of the Newton method one after the other, without a return to Python for as long as all goes as hoped.

As many problems as stay close to the processor are worked on side by side, in lanes. Each goes on until it is plainly
solved, needs more than an ordinary iteration, or it is time to look; then it is put back as that iteration found and
made it, for ``newton.py`` to judge, and the next problem takes its lane.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..linear.machine import Floats, compiled, inner
from ..linear.sparse.elimination import factorise, load
from ..linear.sparse.lanes import Factor, Plan, Work
from ..linear.sparse.lanes import Rows as Sides
from ..linear.sparse.substitution import solve
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
from .newton_step import BACKTRACKS

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
def _room_for(x: Lanes, n: int) -> Lanes:
    """For so many problems like these."""
    m, q, k, last = x.here.u.shape[1], x.here.s.shape[1], x.here.y.shape[1], x.here.last.shape[1]
    a, h, pairs = x.here.jacobian.shape[1], x.here.hessian.shape[1], x.changed.filter.shape[1]
    return Lanes(
        Here(
            np.empty(n), np.empty((n, m)), np.empty((n, k)), np.empty((n, a)), np.empty((n, h)), np.empty((n, m)),
            np.empty((n, q)), np.empty((n, k)), np.empty(n), np.empty(n), np.empty(n), np.empty((n, last)),
            np.empty((n, m)), np.empty(n), np.empty((n, k)),
        ),
        Changed(np.empty(n), np.empty((n, pairs, 2)), np.empty(n, np.int64)),
        Equations(np.empty((n, m)), np.empty((n, k)), np.empty((n, m)), np.empty((n, k)), np.empty(n, np.bool_)),
        Step(np.empty((n, m)), np.empty((n, k)), np.empty(n, np.bool_), np.empty(n)),
        Trial(
            np.empty((n, m)), np.empty((n, q)), np.empty((n, k)), np.empty((n, k)), np.empty(n), np.empty(n),
            np.empty(n, np.bool_),
        ),
        There(
            np.empty(n), np.empty((n, m)), np.empty((n, k)), np.empty((n, a)), np.empty((n, h)),
            np.empty((n, pairs, 2)), np.empty(n, np.int64), np.empty(n), np.empty(n, np.bool_),
        ),
        np.empty((n, x.own.shape[1])),
    )  # fmt: skip


@inner
def _between(x: Lanes, i: int, j: int) -> Lanes:
    """Those from the one to before the other."""
    h, c, e, st, tr, th = x.here, x.changed, x.equations, x.step, x.trial, x.there
    return Lanes(
        Here(
            h.objective[i:j], h.gradient[i:j], h.values[i:j], h.jacobian[i:j], h.hessian[i:j], h.u[i:j], h.s[i:j],
            h.y[i:j], h.shift[i:j], h.weight[i:j], h.largest[i:j], h.last[i:j], h.start[i:j], h.scale[i:j], h.rows[i:j],
        ),
        Changed(c.barrier[i:j], c.filter[i:j], c.stored[i:j]),
        Equations(e.primal[i:j], e.dual[i:j], e.r[i:j], e.t[i:j], e.settled[i:j]),
        Step(st.z[i:j], st.s[i:j], st.good[i:j], st.room[i:j]),
        Trial(tr.u[i:j], tr.s[i:j], tr.y[i:j], tr.multipliers[i:j], tr.length[i:j], tr.slope[i:j], tr.solved[i:j]),
        There(
            th.objective[i:j], th.gradient[i:j], th.values[i:j], th.jacobian[i:j], th.hessian[i:j], th.filter[i:j],
            th.stored[i:j], th.shift[i:j], th.accepted[i:j],
        ),
        x.own[i:j],
    )  # fmt: skip


@inner
def _copy_before(to: Lanes, i: int, x: Lanes, j: int) -> None:
    """What an iteration starts from."""
    a, b = to.here, x.here
    a.objective[i], a.gradient[i], a.values[i] = b.objective[j], b.gradient[j], b.values[j]
    a.jacobian[i], a.hessian[i] = b.jacobian[j], b.hessian[j]
    a.u[i], a.s[i], a.y[i] = b.u[j], b.s[j], b.y[j]
    a.shift[i], a.weight[i], a.largest[i], a.last[i] = b.shift[j], b.weight[j], b.largest[j], b.last[j]
    a.start[i], a.scale[i], a.rows[i] = b.start[j], b.scale[j], b.rows[j]
    to.changed.barrier[i], to.changed.stored[i] = x.changed.barrier[j], x.changed.stored[j]
    to.changed.filter[i] = x.changed.filter[j]


@inner
def _copy_after(to: Lanes, i: int, x: Lanes, j: int) -> None:
    """What it leads to."""
    a, b = to.trial, x.trial
    a.u[i], a.s[i], a.y[i], a.solved[i] = b.u[j], b.s[j], b.y[j], b.solved[j]
    c, d = to.there, x.there
    c.objective[i], c.gradient[i], c.values[i] = d.objective[j], d.gradient[j], d.values[j]
    c.jacobian[i], c.hessian[i], c.filter[i] = d.jacobian[j], d.hessian[j], d.filter[j]
    c.stored[i], c.shift[i], c.accepted[i] = d.stored[j], d.shift[j], d.accepted[j]
    to.step.good[i], to.step.room[i] = x.step.good[j], x.step.room[j]


class Memory(NamedTuple):
    """For the factors of the problems side by side."""

    plan: Plan
    entries: Floats  # (entries, lanes)
    factor: Factor
    work: Work
    sides: Sides
    error: Floats  # (lanes,)


@inner
def _solve_sparse(memory: Memory, here: Here, equations: Equations, step: Step, solved: float) -> None:
    """The step, as the sparse layout makes it."""
    plan, entries, sides = memory.plan, memory.entries, memory.sides
    m, count = here.u.shape[1], len(here.u)
    begin = 0
    load(here.hessian, 0, begin, entries)
    begin += here.hessian.shape[1]
    load(here.jacobian, 0, begin, entries)
    begin += here.jacobian.shape[1]
    load(equations.primal, 0, begin, entries)
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
    factorise(plan, entries, memory.factor, memory.work)
    solve(plan, entries, memory.factor, sides, memory.error)
    for b in range(count):
        convex = memory.factor.counts[0, b] + memory.factor.counts[2, b] == m
        step.good[b] = convex and memory.error[b] <= solved
        step.room[b] = 1.0 if convex else 0.0
        for i in range(m):
            step.z[b, i] = sides.x[plan.place[i], b]
        for i in range(equations.t.shape[1]):
            step.s[b, i] = sides.x[plan.place[m + i], b]


@inner
def _solve(memory: Memory, x: Lanes, solved: float) -> None:
    """The steps; sparse if there is a plan for that."""
    if len(memory.plan.place):
        _solve_sparse(memory, x.here, x.equations, x.step, solved)
    else:
        solve_dense(x.here, x.equations, x.step)


@inner
def _shift_sparse(places: Places, memory: Memory, x: Lanes, solved: float) -> None:
    """Where H is not positive definite along the constraints, a shift that makes it so, and the step with that."""
    for _ in range(SHIFTS):
        more = False
        for n in range(len(x.here.u)):
            if not x.step.room[n] > 0 and x.here.shift[n] < LARGEST_SHIFT:
                shift_more(places, x.here, n, x.equations)
                more = True
        if not more:
            return
        _solve_sparse(memory, x.here, x.equations, x.step, solved)


@inner
def _evaluate(functions: Functions, own: Floats, trial: Trial, outputs: Floats) -> Found:
    """Values and derivatives at the trial points."""
    count, m, k, program = len(trial.u), trial.u.shape[1], trial.y.shape[1], functions.program
    if functions.at_u >= 0:
        own[:, functions.at_u : functions.at_u + m] = trial.u
    if functions.at_multipliers >= 0:
        own[:, functions.at_multipliers : functions.at_multipliers + k] = trial.multipliers
    if count == 1:
        alone(program, own, functions.shared, outputs)
    else:
        abreast(program, own, functions.shared, outputs)
    ends = program.offsets * count
    return Found(
        outputs[: ends[1]],
        outputs[ends[1] : ends[2]].reshape(count, m),
        outputs[ends[2] : ends[3]].reshape(count, k),
        outputs[ends[3] : ends[4]].reshape(count, program.offsets[4] - program.offsets[3]),
        outputs[ends[4] : ends[5]].reshape(count, program.offsets[5] - program.offsets[4]),
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
    here.objective[n] = there.objective[n]
    here.gradient[n] = there.gradient[n]
    here.values[n] = there.values[n]
    here.jacobian[n] = there.jacobian[n]
    here.hessian[n] = there.hessian[n]
    here.u[n] = trial.u[n]
    here.s[n] = trial.s[n]
    here.y[n] = trial.y[n]
    here.shift[n] = there.shift[n]
    changed.filter[n] = there.filter[n]
    changed.stored[n] = there.stored[n]


@inner
def _try(places: Places, limits: Limits, functions: Functions, x: Lanes, outputs: Floats, share: float) -> None:
    """See where the steps lead."""
    move(places, x.here, limits, x.changed.barrier, x.equations, x.step, x.trial, share)
    judge(places, x.here, _evaluate(functions, x.own, x.trial, outputs), x.changed, x.trial, x.there)


@inner
def _correct(places: Places, limits: Limits, memory: Memory, x: Lanes, solved: float) -> None:
    """The step of one problem with what its constraints came to along the first one made up for."""
    here, k, p = x.here, x.here.y.shape[1], x.here.y.shape[1] - x.here.s.shape[1]
    move(places, here, limits, x.changed.barrier, x.equations, x.step, x.trial, 1.0)  # slacks of the step alone
    for i in range(k):
        before, after = here.values[0, i], x.there.values[0, i]
        if i >= p:
            before, after = before + here.s[0, i - p], after + x.trial.s[0, i - p]
        total = x.trial.length[0] * before + (after if np.isfinite(after) else 0.0)
        x.equations.t[0, i] += before - total
    _solve(memory, x, solved)


@inner
def _search(
    places: Places, limits: Limits, functions: Functions, memory: Memory, x: Lanes, outputs: Floats, solved: float
) -> None:
    """Where a step of one problem is no progress: corrected, or shortened, until it is."""
    z, s, good, room = x.step.z.copy(), x.step.s.copy(), x.step.good[0], x.step.room[0]
    share = 1.0
    if x.here.y.shape[1]:
        _correct(places, limits, memory, x, solved)
        _try(places, limits, functions, x, outputs, share)
        x.step.z[:], x.step.s[:], x.step.good[0], x.step.room[0] = z, s, good, room
    for _ in range(BACKTRACKS):
        if x.there.accepted[0]:
            return
        share /= 2
        _try(places, limits, functions, x, outputs, share)


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
        if accepted:  # the step is known, and shorter than can be asked for
            progress.u[g], progress.y[g] = x.trial.u[n], x.trial.y[n]
        else:
            progress.u[g], progress.y[g] = x.here.u[n], x.here.y[n]
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
    total = len(batch.own)
    lanes, outputs = _room_for(batch, size), np.empty(size * functions.program.offsets[-1])
    who, turns = np.empty(size, np.int64), np.empty(size, np.int64)
    count, waiting = np.int64(0), np.int64(0)  # of one type throughout: each type of a place is compiled by itself
    while True:
        while count < size and waiting < total:  # lanes are filled
            if progress.running[waiting]:
                _copy_before(lanes, count, batch, waiting)
                lanes.own[count] = batch.own[waiting]
                who[count], turns[count] = waiting, 0
                count += 1
            waiting += 1
        if not count:
            return
        x = _between(lanes, 0, count)
        prepare(places, x.here, limits, x.changed, x.equations)
        _solve(memory, x, solved)
        if len(memory.plan.place):
            _shift_sparse(places, memory, x, solved)
            for i in range(count):
                progress.doubtful[who[i]] = x.here.shift[i] > 0
        _try(places, limits, functions, x, outputs, 1.0)
        for i in range(count):
            refused = x.step.good[i] and not (x.there.accepted[i] or x.trial.solved[i])
            if refused and progress.hopeful[who[i]] and x.here.shift[i] == 0:
                _search(places, limits, functions, memory, _between(lanes, i, i + 1), outputs, solved)
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
                lanes.own[n] = lanes.own[count]
                who[n], turns[n] = who[count], turns[count]
