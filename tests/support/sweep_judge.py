"""Was the outcome of a trial right? Solutions, multipliers and gradients, to the accuracy that a problem allows."""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls

from declarative import Status
from tests.support.random_programs import Program
from tests.support.reference import DIFFERENCES, LONG, Reference, expand, nearest
from tests.support.sweep_trials import Outcome, Trial, enumerated, run, solution_of

Array = NDArray[np.floating]
SOLUTION = {torch.float64: 1e-6, torch.float32: 3e-3}  # of the size of u, at least 1: what CONVERGED promises
GRADIENT = {torch.float64: 1e-5, torch.float32: 1e-2}  # of the size of its terms
NEAR_A_KINK = {torch.float64: 1e-5, torch.float32: 3e-2}  # gradients of either side may be right
HOPELESS = 0.1  # where rounding errors may do as much as this, nothing is judged


class Result(enum.Enum):
    RIGHT = "right"
    TOLD = "wrong or a kink, and told"
    NO_SOLUTION = "refused, has no solution"
    NOT_A_SOLUTION = "refused, a formula's point that is no solution"
    SOLVABLE = "refused although solvable"
    UNJUDGED = "not judged"
    FALSE_CLAIM = "refused with a false reason"
    WRONG = "silently wrong"


@dataclass(frozen=True)
class Verdict:
    row: int
    result: Result
    why: str = ""


def judge(trial: Trial, outcome: Outcome) -> list[Verdict]:
    """One verdict for each problem of the batch."""
    return [_one(trial, outcome, row) for row in range(len(trial.programs))]


def _one(trial: Trial, outcome: Outcome, row: int) -> Verdict:
    program, status = trial.programs[row], outcome.status[row]
    if status != Status.CONVERGED:
        return _refused(trial, outcome, row)
    if not program.solvable:
        return Verdict(row, Result.WRONG, "there is no solution")
    reference = _solution_near(program, outcome.u[row])
    if reference is None:
        far = _residual(program, outcome.u[row])
        return Verdict(row, *((Result.WRONG, f"no solution near, residual {far:.1e}") if far > 1e-3 else UNJUDGED))
    return _compared(trial, outcome, row, reference)


UNJUDGED = (Result.UNJUDGED, "")


def _refused(trial: Trial, outcome: Outcome, row: int) -> Verdict:
    program, status = trial.programs[row], outcome.status[row]
    if outcome.gradient[row].any():
        return Verdict(row, Result.WRONG, "a masked problem has a gradient")
    if (status == Status.INFEASIBLE and program.feasible) or (status == Status.UNBOUNDED and program.solvable):
        return Verdict(row, Result.FALSE_CLAIM, f"{status.name} of a {program.kind} program")
    if not program.solvable:
        return Verdict(row, Result.NO_SOLUTION)
    closed = trial.solver == "closed form"
    return Verdict(row, Result.NOT_A_SOLUTION if closed and not _is_solution(trial, row) else Result.SOLVABLE)


def _is_solution(trial: Trial, row: int) -> bool:
    """Whether the point that a formula returned was one, with accuracy to spare."""
    u = trial.guesses[row].numpy().astype(LONG)
    reference = _solution_near(trial.programs[row], u)
    if reference is None or reference.curvature < 1e-7:
        return False
    allowed, _ = _accuracy(trial, row, reference)
    return bool((np.abs(u - reference.u) <= 1e-3 * allowed).all())


def _compared(trial: Trial, outcome: Outcome, row: int, reference: Reference) -> Verdict:
    """CONVERGED, near this point."""
    allowed, condition = _accuracy(trial, row, reference)
    if allowed.max() > HOPELESS * (1 + _size(trial, row).max()) or abs(reference.curvature) < 1e-8:
        return Verdict(row, *UNJUDGED)
    if reference.curvature < 0:
        return Verdict(row, Result.WRONG, f"a saddle point, reduced curvature {reference.curvature:.1e}")
    error = np.abs(outcome.u[row] - reference.u)
    if (error > allowed).any():
        worst = int((error / allowed).argmax())
        return Verdict(row, Result.WRONG, f"entry {worst} is {error[worst]:.1e} off, allowed {allowed[worst]:.1e}")
    why = _wrong_derivatives(trial, outcome, row, reference, allowed, condition)
    if why is None:
        return Verdict(row, *UNJUDGED)
    if not why:
        return Verdict(row, Result.RIGHT)
    return Verdict(row, Result.TOLD) if _words_about(trial, outcome, row) else Verdict(row, Result.WRONG, why)


def _wrong_derivatives(
    trial: Trial, outcome: Outcome, row: int, reference: Reference, allowed: Array, condition: float
) -> str | None:
    """What is wrong with gradient or multipliers; None where nobody can say."""
    program = trial.programs[row]
    if program.kink or not program.unique:
        return "a kink or dependent constraints, without a word"
    if reference.margin < NEAR_A_KINK[trial.dtype]:
        return None
    known = gradient_of(reference, tuple(trial.v[row]))
    if known is None:
        return None
    why = _wrong_gradient(trial, outcome, row, reference, known, allowed, condition)
    return why or _wrong_multipliers(trial, outcome, row, reference, condition)


def _wrong_gradient(
    trial: Trial,
    outcome: Outcome,
    row: int,
    reference: Reference,
    known: tuple[Array, Array],
    allowed: Array,
    condition: float,
) -> str:
    """What is wrong with it; the solution may be off by what is allowed, and the gradient is then off by its share."""
    truth, size = known[0], float(known[1].max())
    eps = float(torch.finfo(trial.dtype).eps)
    share = max(_change(reference, trial.v[row], signs * allowed, truth) for signs in _corners(len(allowed)))
    limit = (GRADIENT[trial.dtype] + 100 * eps * condition) * size + 3 * share
    error = float(np.abs(outcome.gradient[row] - truth).max())
    if not np.isfinite(outcome.gradient[row].astype(np.float64)).all():
        return "the gradient is not finite"
    return f"the gradient is {error:.1e} off, allowed {limit:.1e}" if error > limit and limit < size else ""


def _wrong_multipliers(trial: Trial, outcome: Outcome, row: int, reference: Reference, condition: float) -> str:
    eps = float(torch.finfo(trial.dtype).eps)
    here = expand(reference.program, reference.program.x.astype(LONG), reference.u, np.abs(reference.u))
    length = np.linalg.norm(here.slopes[1:].astype(np.float64), axis=1)
    force = np.abs(here.slopes[0]).max() + np.abs(reference.multipliers * length).max(initial=0.0)
    error = (np.abs(outcome.multipliers[row] - reference.multipliers) * length).max(initial=0.0)
    limit = (30 * GRADIENT[trial.dtype] + 100 * eps * condition) * condition * float(force)
    return f"a multiplier is {error:.1e} off, allowed {limit:.1e}" if error > limit and limit < force else ""


def _words_about(trial: Trial, outcome: Outcome, row: int) -> bool:
    """Whether there was a word of warning about this problem; words are about a batch, so it is asked again alone."""
    return bool(outcome.words) and (len(trial.programs) == 1 or bool(run(trial.only(row)).words))


def _size(trial: Trial, row: int) -> Array:
    """Of the numbers that u is computed from."""
    return np.abs(trial.units.shift[row].numpy().astype(LONG))


def _accuracy(trial: Trial, row: int, reference: Reference) -> tuple[Array, float]:
    """How far off each entry of a solution may be, and the condition of the problem."""
    shift, eps = _size(trial, row), float(torch.finfo(trial.dtype).eps)
    noise, condition = reference.accuracy(eps, np.abs(reference.u) + 2 * shift)
    promised = SOLUTION[trial.dtype] * (np.maximum(np.abs(reference.u), 1) + shift)
    return (promised + 30 * noise).astype(np.float64), condition


def _change(reference: Reference, v: Array, move: Array, truth: Array) -> float:
    moved, _ = reference.gradient_by_formula(v, reference.u + move)
    return float(np.abs(moved - truth).max())


def _corners(m: int) -> list[Array]:
    """Some directions in which a solution can be off."""
    signs = np.sign(np.cos(np.outer(np.arange(1, 4), np.arange(1, m + 1)) * 1.7))
    return [np.ones(m), *signs]


_KNOWN: dict[Program, list[Reference]] = {}  # of the programs of one trial


def forget() -> None:
    _KNOWN.clear()


def _solution_near(program: Program, u: Array) -> Reference | None:
    """A point that satisfies the optimality conditions, near u; the solution, if there is only one."""
    if not np.isfinite(u.astype(np.float64)).all():
        return None
    known = _KNOWN.setdefault(program, [])
    if not program.shape.curved:
        if not known:
            known.extend(one for one in [solution_of(program)] if one is not None)
        return known[0] if known else None
    close = [one for one in known if np.abs(one.u - u).max() < 1e-2]
    if close:
        return close[0]
    found = nearest(program, u)
    known.extend([] if found is None else [found])
    return found


@functools.lru_cache(maxsize=256)
def gradient_of(reference: Reference, v: tuple[float, ...]) -> tuple[Array, Array] | None:
    """The truth, and the size of its terms: by enumeration or by differences; None if the formula disagrees."""
    weights = np.array(v)
    formula, sizes = reference.gradient_by_formula(weights, reference.u)
    for truth in _truths(reference, weights):
        if np.abs(truth - formula).max() < 1e-6 * sizes.max():
            return truth, sizes
    return None


def _truths(reference: Reference, v: Array) -> Iterator[Array]:
    found = None if reference.program.shape.curved else enumerated(reference.program, v)
    if found is not None:
        yield np.concatenate([found.gradient_q, found.gradient_b, found.gradient_h])
        return
    for step in DIFFERENCES:
        yield reference.gradient_by_differences(v, step)


def _residual(program: Program, u: Array) -> float:
    """How far the optimality conditions are from being satisfied by any multipliers."""
    if not np.isfinite(u.astype(np.float64)).all():
        return np.inf
    p, here = program.shape.p, expand(program, program.x.astype(LONG), u, np.abs(u))
    slopes, values = here.slopes.astype(np.float64), here.values[1:].astype(np.float64)
    length = np.maximum(np.linalg.norm(slopes[1:], axis=1), 1e-12)
    distance = values / length
    violation = max(np.abs(distance[:p]).max(initial=0.0), distance[p:].max(initial=0.0))
    rows = slopes[1:] / length[:, None]
    touching = rows[p:][distance[p:] > -1e-2]
    size = np.linalg.norm(slopes[0])
    columns = np.concatenate([rows[:p], -rows[:p], -touching]).T
    left = nnls(columns, slopes[0])[1] if columns.size else size
    return float(max(violation, left / max(size, 1e-12)))
