"""Iterations of the Newton method one after the other, without a return to Python for as long as all goes as hoped.

As many problems as stay close to the processor are worked on side by side, in lanes. Each goes on until it is plainly
solved, needs more than an ordinary iteration, or it is time to look; then it is put back as that iteration found and
made it, for ``loop.py`` to judge, and the next problem takes its lane.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ....linear.jit import Floats, compiled, copy, inner
from ....recording.tape.machine import Program, run_groups
from ..parameters import BACKTRACKS, FLAT
from .arrays import Common, Counts, Expansion, Flags, Iterate, Problems, copy_iterate, copy_problem, problems_in
from .filter import judge
from .iteration import correct, move, prepare
from .regularisation import regularise, undo, unregularised_in
from .steps import SparseWork, solve_steps


class Functions(NamedTuple):
    """How values and derivatives are evaluated."""

    program: Program
    kernel: int  # where the machine code that runs it is
    inputs: Floats  # of each problem, of which u and the multipliers are written anew, (batch, entries)
    shared: Floats
    at_u: int  # where these are among the entries; -1 if they do not matter
    at_multipliers: int


class Progress(NamedTuple):
    """How each problem fares."""

    running: Flags
    stepping: Flags  # whether it takes Newton steps, and not some towards feasibility
    shifted: Flags  # whether its last factors were shifted: a solution may be a saddle point
    unquestioned: Flags  # whether it is not asked any more if a solution is a saddle point
    finished: Flags  # whether it was solved here
    iterations: Counts
    u: Floats  # its solution, (batch, m)
    y: Floats  # and multipliers, (batch, k)
    flags: Flags  # of the last iteration: solved, factored, accepted, flat, (4, batch)


class Workspace(NamedTuple):
    """What the iterations need on the way."""

    common: Common
    functions: Functions
    solve: int  # where the kernel for steps is, of dense problems or of sparse ones
    sparse: SparseWork
    lanes: Floats  # of the problems side by side
    counts: Counts  # likewise; the last two: which problem is in each, and for how long, (4, lanes)
    flags: Flags  # (4, lanes)
    registers: Floats  # of the functions' program
    outputs: Floats  # and what it writes
    step: Floats  # one that is put aside, (m + k,)
    regularise: int  # where the kernel is that regularises a dense problem; 0 if there is none
    unregularised: Floats  # what it needs


@inner
def _evaluate(work: Workspace, x: Problems, begin: int, end: int) -> Expansion:
    """Values and derivatives at the trial points."""
    functions, program, inputs, outputs = work.functions, work.functions.program, x.inputs, work.outputs
    for n in range(begin, end):
        if functions.at_u >= 0:
            copy(inputs[n, functions.at_u :], x.trial.u[n])
        if functions.at_multipliers >= 0:
            copy(inputs[n, functions.at_multipliers :], x.outcome.multipliers[n])
    run_groups(program, functions.kernel, inputs[begin:end], functions.shared, outputs, work.registers)
    at, n = program.offsets, end - begin
    return Expansion(
        outputs[: at[1] * n],
        outputs[at[1] * n : at[2] * n].reshape(n, at[2] - at[1]),
        outputs[at[2] * n : at[3] * n].reshape(n, at[3] - at[2]),
        outputs[at[3] * n : at[4] * n].reshape(n, at[4] - at[3]),
        outputs[at[4] * n : at[5] * n].reshape(n, at[5] - at[4]),
    )


@inner
def _try(work: Workspace, x: Problems, share: float, begin: int, end: int) -> None:
    """See where the steps lead, of the problems from the one to before the other."""
    move(x, work.common, share, begin, end)
    judge(x, work.common, _evaluate(work, x, begin, end), begin, end)


@inner
def _search(work: Workspace, x: Problems, n: int) -> None:
    """Where a step of one problem is no progress: corrected, or shortened, until it is."""
    system, m, share = x.system, x.current.u.shape[1], 1.0
    # Where the objective is undefined, to correct the constraints does not help.
    if x.current.y.shape[1] and abs(x.trial.objective[n]) < np.inf:
        z, s, factored, pivot = work.step[:m], work.step[m:], system.factored[n], system.pivot[n]
        copy(z, system.z[n])
        copy(s, system.s[n])
        correct(x, work.common, n)
        solve_steps(work.solve, (x, work.common, work.sparse, n, n + 1, False))
        _try(work, x, share, n, n + 1)
        copy(system.z[n], z)
        copy(system.s[n], s)
        system.factored[n], system.pivot[n] = factored, pivot
    for _ in range(BACKTRACKS):
        if x.outcome.accepted[n]:
            return
        share /= 2
        _try(work, x, share, n, n + 1)


@inner
def _regularised(work: Workspace, x: Problems, n: int) -> None:
    """Where H of one problem is not positive definite along the constraints: a step with one that is."""
    regularise(work.regularise, (x, work.common, work.unregularised, n))
    if not x.system.factored[n]:
        return
    _try(work, x, 1.0, n, n + 1)
    if not (x.outcome.accepted[n] or x.outcome.solved[n]):
        _search(work, x, n)
    before = unregularised_in(work.unregularised, x.current.u.shape[1])
    copy(x.current.hessian[n], before.hessian)
    x.trial.shift[n] = x.current.shift[n]  # it has just been needed
    if not x.outcome.accepted[n]:
        undo(x, n, before)


@inner
def _is_finite(x: Iterate, n: int) -> bool:
    total = x.objective[n]
    for part in (x.gradient[n], x.values[n], x.jacobian[n], x.hessian[n]):
        for i in range(len(part)):
            total += part[i]
    return bool(np.isfinite(total))


@inner
def _is_over(progress: Progress, g: int, x: Problems, n: int, sure: bool) -> bool:
    """Whether a problem is plainly solved, or has to be judged."""
    solved, factored, accepted = x.outcome.solved[n], x.system.factored[n], x.outcome.accepted[n]
    flat = not x.system.pivot[n] > FLAT
    progress.flags[0, g], progress.flags[1, g] = solved, factored
    progress.flags[2, g], progress.flags[3, g] = accepted, flat
    certain = progress.unquestioned[g] or (factored and not (sure and (flat or progress.shifted[g])))
    if solved and certain and _is_finite(x.current, n):
        # If the step is no progress, it is known all the same to be shorter than can be asked for.
        copy(progress.u[g], x.trial.u[n] if accepted else x.current.u[n])
        copy(progress.y[g], x.trial.y[n] if accepted else x.current.y[n])
        progress.running[g], progress.finished[g] = False, True
    return solved or not (factored and accepted and progress.stepping[g])


@compiled
def iterate(
    work: Workspace,
    batch: Problems,
    width: int,
    progress: Progress,
    most: int,
    sure: bool,
) -> None:
    """At most so many iterations of each problem that is running, of so many side by side; sparse if there is a plan.

    To be ``sure``, what may be a saddle point is not solved.
    """
    total, sparse = len(batch.inputs), len(work.sparse.plan.place) > 0
    who, turns = work.counts[2], work.counts[3]
    x = problems_in(batch, work.lanes, work.counts, work.flags, width)
    # Of one type throughout: the constant has its own, and each type of a place is compiled by itself.
    zero = np.int64(0)
    count, waiting = zero, zero
    while True:
        while count < width and waiting < total:  # lanes are filled
            if progress.running[waiting]:
                copy_problem(x, count, batch, waiting)
                who[count], turns[count] = waiting, 0
                count += 1
            waiting += 1
        if not count:
            return
        prepare(x, work.common, zero, count)
        solve_steps(work.solve, (x, work.common, work.sparse, zero, count, True))
        if sparse:
            for i in range(count):
                progress.shifted[who[i]] = x.current.shift[i] > 0
        _try(work, x, 1.0, zero, count)
        for i in range(count):
            stepping = progress.stepping[who[i]]
            refused = x.system.factored[i] and not (x.outcome.accepted[i] or x.outcome.solved[i])
            if refused and stepping and (x.current.shift[i] == 0 or not sparse):
                _search(work, x, i)
                x.trial.shift[i] = x.current.shift[i]  # which is not made smaller after such a step
            elif work.regularise and stepping and not x.system.pivot[i] > 0:
                _regularised(work, x, i)
                progress.shifted[who[i]] = x.current.shift[i] > 0
        n = np.int64(0)
        while n < count:
            g = who[n]
            if not _is_over(progress, g, x, n, sure) and turns[n] < most - 1:
                copy_iterate(x.current, n, x.trial, n)
                progress.iterations[g] += 1
                turns[n] += 1
                n += 1
                continue
            copy_problem(batch, g, x, n)
            count -= 1
            if n < count:  # the last one moves here
                copy_problem(x, n, x, count)
                who[n], turns[n] = who[count], turns[count]
