"""How right an answer is: errors against the truth, and failures, loud and silent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .cases import Answer, Array, Case, Eigen, Gradients, Programme
from .conditions import Conditions, NoTruthError
from .truth import Truth

WRONG_SOLUTION = 1e-2  # relative to the largest entry of the solution
WRONG_GRADIENT = 1e-1  # relative to the gradient in an input
SMALL = 1e-8  # a solution below counts as that large
MINOR = 1e-3  # of the gradient in all inputs: below, the error in one of them is relative to that much
TINY = 1e-12  # of |v|: a gradient below counts as zero, and its error in units of |v|


@dataclass(frozen=True)
class Judgement:
    """Of the answer to a batch. Errors are those of the problems that are claimed to be solved."""

    solution_error: float  # the worst
    gradient_error: float  # the worst
    usual_error: float  # of the gradient, the median
    loud: int  # said to be unsolved, or not finite, or wrong in a batch of which the library has warned
    silent: int  # said to be solved, but wrong, without a word
    elsewhere: int  # another local solution than the known one, with a right gradient there


def judge(case: Case, answer: Answer, known: Truth) -> Judgement:
    """An answer against the truth; another local minimum is looked for where a programme may have one."""
    answer = _aligned(answer, known) if isinstance(case.statement, Eigen) else answer
    finite = np.isfinite(answer.y).all(-1) & _finite(answer.gradients)
    claimed = answer.solved & finite
    solution, gradient = _errors(case, answer, known)
    right = claimed & (solution <= WRONG_SOLUTION) & (gradient <= WRONG_GRADIENT)
    elsewhere = np.zeros_like(right)
    if isinstance(case.statement, Programme) and (claimed & ~right).any():
        near = _nearest(case.statement)
        for i in np.flatnonzero(claimed & ~right & (solution > WRONG_SOLUTION)).tolist():
            other = near(i, answer.y[i], case.cotangent[i])
            if other is not None:
                pair = Answer(answer.y[i : i + 1], {"p": answer.gradients["p"][i : i + 1]}, claimed[i : i + 1])
                there = _errors(_only(case, i), pair, other)
                elsewhere[i] = there[0][0] <= WRONG_SOLUTION and there[1][0] <= WRONG_GRADIENT
                if elsewhere[i]:
                    solution[i], gradient[i] = there[0][0], there[1][0]
    wrong = claimed & ~right & ~elsewhere
    if answer.warned:
        claimed, wrong = claimed & ~wrong, np.zeros_like(wrong)
    worst, of_gradient = (float(x[claimed].max(initial=0.0)) if claimed.any() else np.nan for x in (solution, gradient))
    usual = float(np.median(gradient[claimed])) if claimed.any() else np.nan
    return Judgement(worst, of_gradient, usual, int((~claimed).sum()), int(wrong.sum()), int(elsewhere.sum()))


def _errors(case: Case, answer: Answer, known: Truth) -> tuple[Array, Array]:
    """Of every problem: the solution's, and the largest of the gradients' in the inputs; all relative.

    Each input counts by itself: a large gradient in one does not hide a wrong one in another.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        solution = abs(answer.y - known.y).max(-1) / np.maximum(SMALL, abs(known.y).max(-1))
        sizes = {name: _norm(name, value) for name, value in known.gradients.items()}
        size = np.sqrt(sum(np.square(one) for one in sizes.values()))
        zero = TINY * np.linalg.norm(case.cotangent, axis=-1)
        errors = []
        for name, value in known.gradients.items():
            unit = np.maximum(sizes[name], MINOR * size)
            errors.append(_norm(name, answer.gradients[name] - value) / np.where(size > zero, unit, zero / TINY))
        return solution, np.max(errors, 0)


def _norm(name: str, value: Array) -> Array:
    """Euclidean, of every problem; matrices of quadratic forms by their symmetric part."""
    value = (value + value.mT) / 2 if name in ("Q", "X") else value
    found: Array = np.linalg.norm(value.reshape(len(value), -1), axis=-1)
    return found


def _finite(gradients: Gradients) -> NDArray[np.bool_]:
    parts = [np.isfinite(value).reshape(len(value), -1).all(-1) for value in gradients.values()]
    return np.all(parts, 0)  # type: ignore[no-any-return]


def _aligned(answer: Answer, known: Truth) -> Answer:
    """An eigenvector and its gradient with the sign of the known one: both signs are right."""
    sign = np.where((answer.y * known.y).sum(-1) < 0, -1.0, 1.0)
    gradients = {name: value * sign[:, None, None] for name, value in answer.gradients.items()}
    return Answer(answer.y * sign[:, None], gradients, answer.solved, answer.warned)


def _only(case: Case, i: int) -> Case:
    return Case(case.statement, {}, case.cotangent[i : i + 1])


def _nearest(programme: Programme) -> Callable[[int, Array, Array], Truth | None]:
    """The local solution near a point of problem i, if there is one."""
    conditions = Conditions(programme)

    def near(i: int, y: Array, v: Array) -> Truth | None:
        try:
            point = conditions.solve(programme.p[i], y, warm=True)
        except NoTruthError:
            return None
        return Truth(point.u[None], {"p": conditions.gradient(programme.p[i], point, v)[None]})

    return near
