"""Convex programmes that are not quadratic: logistic regression, largest entropy, a geometric programme."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..cases import Case, Convex, Functions, Programme
from .family import Family, generator

MOMENTS = 5
TERMS = 3  # of a posynomial that is a constraint


def logistic(size: int, batch: int, seed: int) -> Case:
    """The weights of a regression, whose penalty exp(p) of every feature is learned."""
    data = generator("logistic", size, 1, 0)
    samples = 5 * size
    X = data.standard_normal((samples, size))
    labels = np.where(X @ data.standard_normal(size) / size**0.5 + 0.5 * data.standard_normal(samples) > 0, 1.0, -1.0)
    rows = -labels[:, None] * X
    draw = generator("logistic", size, batch, seed)
    p = -2 + 0.5 * draw.standard_normal((batch, size))

    def functions(m: Any) -> Functions:
        matrix = m.array(rows)
        return Functions(lambda p, u: m.total(m.softplus(m.times(matrix, u))) / samples + m.total(m.exp(p) * u * u) / 2)

    def convex(cp: Any) -> Convex:
        roots, u = cp.Parameter(size, nonneg=True), cp.Variable(size)
        loss = cp.sum(cp.logistic(rows @ u)) / samples + cp.sum_squares(cp.multiply(roots, u)) / 2
        return Convex(cp.Problem(cp.Minimize(loss)), [roots], u, lambda xs: [(xs["p"] / 2).exp()])

    free = np.full(size, np.inf)
    programme = Programme(functions, p, np.zeros((batch, size)), -free, free, constrained=False)
    return Case(programme, {"p": p}, draw.standard_normal((batch, size)), convex)


def entropy(size: int, batch: int, seed: int) -> Case:
    """The distribution of the largest entropy with given moments p."""
    features = generator("entropy", size, 1, 0).standard_normal((MOMENTS, size))
    draw = generator("entropy", size, batch, seed)
    p = draw.dirichlet(np.ones(size), batch) @ features.T

    def functions(m: Any) -> Functions:
        matrix = m.array(features)
        return Functions(
            lambda p, u: m.total(u * m.log(u)),  # noqa: ARG005
            lambda p, u: m.concat([m.times(matrix, u) - p, m.total(u) - 1]),
        )

    def convex(cp: Any) -> Convex:
        moments, u = cp.Parameter(MOMENTS), cp.Variable(size)
        problem = cp.Problem(cp.Minimize(-cp.sum(cp.entr(u))), [features @ u == moments, cp.sum(u) == 1])
        return Convex(problem, [moments], u, lambda xs: [xs["p"]])

    start = np.full((batch, size), 1 / size)
    programme = Programme(functions, p, start, np.zeros(size), np.full(size, np.inf))
    return Case(programme, {"p": p}, draw.standard_normal((batch, size)), convex)


def geometric(size: int, batch: int, seed: int) -> Case:
    """In logarithms: a posynomial with terms of every unknown, under posynomials that are at most exp(p)."""
    data = generator("geometric", size, 1, 0)
    count = size // 2
    of_objective = np.concatenate([np.eye(size), -np.eye(size), 0.5 * data.standard_normal((size, size))])
    level = 0.3 * data.standard_normal(3 * size)
    terms = [data.standard_normal((count, size)) / size**0.5 for _ in range(TERMS)]
    draw = generator("geometric", size, batch, seed)
    p = np.log(TERMS) - 0.1 + 0.2 * draw.standard_normal((batch, count))

    def functions(m: Any) -> Functions:
        matrix, constant, parts = m.array(of_objective), m.array(level), [m.array(one) for one in terms]

        def inequality(p: Any, u: Any) -> Any:
            first, *rest = (m.exp(m.times(part, u)) for part in parts)
            return m.log(sum(rest, first)) - p

        return Functions(
            lambda p, u: m.logsumexp(m.times(matrix, u) + constant),  # noqa: ARG005
            inequality=inequality,
        )

    def convex(cp: Any) -> Convex:
        bound, u = cp.Parameter(count), cp.Variable(size)
        rows = [cp.log_sum_exp(cp.hstack([one[i] @ u for one in terms])) <= bound[i] for i in range(count)]
        return Convex(
            cp.Problem(cp.Minimize(cp.log_sum_exp(of_objective @ u + level)), rows), [bound], u, lambda xs: [xs["p"]]
        )

    free = np.full(size, np.inf)
    programme = Programme(functions, p, np.zeros((batch, size)), -free, free)
    return Case(programme, {"p": p}, draw.standard_normal((batch, size)), convex)


NEWTON = "truth: Newton's method on the optimality conditions with CasADi's derivatives, to rounding"
FAMILIES = (
    Family(
        "logistic", "Logistic regression with learned penalties", "nonlinear", "features",
        f"Five samples a feature; the gradient in the logarithm of every feature's penalty; {NEWTON}.",
        logistic, ((10, 1), (10, 32), (50, 1), (50, 32)), ((5, 2),),
    ),
    Family(
        "entropy", "Largest entropy", "nonlinear", "outcomes",
        f"A distribution with five given moments, differentiated in them; {NEWTON}.",
        entropy, ((20, 1), (20, 32), (100, 1), (100, 32), (1000, 1)), ((10, 2),),
    ),
    Family(
        "geometric", "Geometric programme", "nonlinear", "unknowns",
        f"Posynomials in logarithms, differentiated in their bounds; {NEWTON}.",
        geometric, ((10, 1), (10, 32), (40, 1), (40, 32)), ((4, 2),),
    ),
)  # fmt: skip
