"""Iterations of the Newton method one after the other, without a return to Python for as long as all goes as hoped.

Problems are taken in blocks whose arrays stay close to the processor. A block goes on until one of its problems needs
more than an ordinary iteration, all are solved, or it is time to look; then everything is left as that iteration found
and made it, for ``newton.py`` to judge. A problem that is plainly solved is set aside, and the others go on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..linear.machine import Floats, compiled
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
    solve_dense,
)

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
    count: Counts  # iterations
    u: Floats  # its solution, (batch, m)
    y: Floats  # and multipliers, (batch, k)
    flags: Flags  # of the last iteration: solved, factored, accepted, faint, (4, batch)


@compiled
def _equations(x: Equations, a: int, b: int) -> Equations:
    return Equations(x.primal[a:b], x.dual[a:b], x.r[a:b], x.t[a:b], x.settled[a:b])


@compiled
def _here(x: Here, a: int, b: int) -> Here:
    return Here(
        x.objective[a:b], x.gradient[a:b], x.values[a:b], x.jacobian[a:b], x.hessian[a:b], x.u[a:b], x.s[a:b], x.y[a:b],
        x.shift[a:b], x.weight[a:b], x.largest[a:b], x.last[a:b], x.start[a:b], x.scale[a:b], x.rows[a:b],
    )  # fmt: skip


@compiled
def _changed(x: Changed, a: int, b: int) -> Changed:
    return Changed(x.barrier[a:b], x.filter[a:b], x.stored[a:b])


@compiled
def _step(x: Step, a: int, b: int) -> Step:
    return Step(x.z[a:b], x.s[a:b], x.good[a:b], x.room[a:b])


@compiled
def _trial(x: Trial, a: int, b: int) -> Trial:
    return Trial(x.u[a:b], x.s[a:b], x.y[a:b], x.multipliers[a:b], x.length[a:b], x.slope[a:b], x.solved[a:b])


@compiled
def _there(x: There, a: int, b: int) -> There:
    return There(
        x.objective[a:b], x.gradient[a:b], x.values[a:b], x.jacobian[a:b], x.hessian[a:b], x.filter[a:b],
        x.stored[a:b], x.shift[a:b], x.accepted[a:b],
    )  # fmt: skip


class Memory(NamedTuple):
    """For the factors of one block."""

    plan: Plan
    entries: Floats  # (entries, lanes)
    factor: Factor
    work: Work
    sides: Sides
    error: Floats  # (lanes,)


@compiled
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


@compiled
def _evaluate(functions: Functions, begin: int, trial: Trial, outputs: Floats) -> Found:
    """Values and derivatives at the trial points."""
    count, m, k = len(trial.u), trial.u.shape[1], trial.y.shape[1]
    own, program = functions.own[begin : begin + count], functions.program
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


@compiled
def _is_finite(here: Here, n: int) -> bool:
    total = here.objective[n]
    for x in (here.gradient[n], here.values[n], here.jacobian[n], here.hessian[n]):
        for i in range(len(x)):
            total += x[i]
    return bool(np.isfinite(total))


@compiled
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


@compiled
def _see(progress: Progress, begin: int, here: Here, trial: Trial, faint: float, step: Step, there: There) -> bool:
    """Set aside what is plainly solved; whether the block goes on."""
    going, any_left = True, False
    for n in range(len(here.u)):
        g = begin + n
        solved, factored, accepted = trial.solved[n], step.good[n], there.accepted[n]
        vague = not step.room[n] > faint
        progress.flags[0, g], progress.flags[1, g] = solved, factored
        progress.flags[2, g], progress.flags[3, g] = accepted, vague
        if not progress.running[g]:
            continue
        certain = progress.settled[g] or (factored and not vague and not progress.doubtful[g])
        if solved and accepted and certain and _is_finite(here, n):
            progress.u[g], progress.y[g] = trial.u[n], trial.y[n]
            progress.running[g], progress.finished[g] = False, True
        else:
            any_left = True
            going = going and factored and accepted and not solved and progress.hopeful[g]
    return going and any_left


@compiled
def iterate(
    places: Places,
    limits: Limits,
    functions: Functions,
    memory: Memory,
    here: Here,
    changed: Changed,
    equations: Equations,
    step: Step,
    trial: Trial,
    there: There,
    progress: Progress,
    outputs: Floats,
    most: int,
    block: int,
    faint: float,
    solved: float,
) -> None:
    """At most so many iterations of each block; sparse if there is a plan for that."""
    for begin in range(0, len(here.u), block):
        end = min(begin + block, len(here.u))
        h, c, e = _here(here, begin, end), _changed(changed, begin, end), _equations(equations, begin, end)
        st, tr, th = _step(step, begin, end), _trial(trial, begin, end), _there(there, begin, end)
        for turn in range(most):
            prepare(places, h, limits, c, e)
            if len(memory.plan.place):
                _solve_sparse(memory, h, e, st, solved)
            else:
                solve_dense(h, e, st)
            move(places, h, limits, c.barrier, e, st, tr)
            judge(places, h, _evaluate(functions, begin, tr, outputs), c, tr, th)
            if not _see(progress, begin, h, tr, faint, st, th) or turn == most - 1:
                break
            for n in range(end - begin):
                if progress.running[begin + n]:
                    _go_on(h, c, tr, th, n)
                    progress.count[begin + n] += 1
