"""How right an answer is: errors against the truth, and failures, loud and silent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .cases import Answer, Array, Case, Eigen, Gradients, Programme
from .conditions import Conditions, NoTruthError
from .truth import Truth

WRONG_SOLUTION = 1e-2  # relative to the largest entry of the solution, if that is above 1
WRONG_GRADIENT = 1e-1  # relative to the gradient
TINY = 1e-12  # of |v|: a gradient below counts as zero, and its error in units of |v|


@dataclass(frozen=True)
class Judgement:
    """Of the answer to a batch. Errors are those of the problems that are claimed to be solved."""

    solution_error: float  # the worst
    gradient_error: float  # the worst
    usual_error: float  # of the gradient, the median
    loud: int  # said to be unsolved, or not finite
    silent: int  # said to be solved, but wrong
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
    silent = claimed & ~right & ~elsewhere
    worst, of_gradient = (float(x[claimed].max(initial=0.0)) if claimed.any() else np.nan for x in (solution, gradient))
    usual = float(np.median(gradient[claimed])) if claimed.any() else np.nan
    return Judgement(worst, of_gradient, usual, int((~claimed).sum()), int(silent.sum()), int(elsewhere.sum()))


def _errors(case: Case, answer: Answer, known: Truth) -> tuple[Array, Array]:
    """Of every problem: the solution's and the gradient's, both relative."""
    with np.errstate(invalid="ignore", over="ignore"):
        solution = abs(answer.y - known.y).max(-1) / np.maximum(1.0, abs(known.y).max(-1))
        apart, size = _norm(answer.gradients, known.gradients), _norm(known.gradients)
        zero = TINY * np.linalg.norm(case.cotangent, axis=-1)
        return solution, apart / np.where(size > zero, size, zero / TINY)


def _norm(gradients: Gradients, less: Gradients | None = None) -> Array:
    """Euclidean, of all inputs together; matrices of quadratic forms by their symmetric part."""
    total = np.zeros(len(next(iter(gradients.values()))))
    for name, value in gradients.items():
        value = (value + value.mT) / 2 if name in ("Q", "X") else value
        apart = value if less is None else value - less[name]
        total += np.square(apart).reshape(len(apart), -1).sum(-1)
    return np.sqrt(total)


def _finite(gradients: Gradients) -> NDArray[np.bool_]:
    parts = [np.isfinite(value).reshape(len(value), -1).all(-1) for value in gradients.values()]
    return np.all(parts, 0)  # type: ignore[no-any-return]


def _aligned(answer: Answer, known: Truth) -> Answer:
    """An eigenvector and its gradient with the sign of the known one: both signs are right."""
    sign = np.where((answer.y * known.y).sum(-1) < 0, -1.0, 1.0)
    gradients = {name: value * sign[:, None, None] for name, value in answer.gradients.items()}
    return Answer(answer.y * sign[:, None], gradients, answer.solved)


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
