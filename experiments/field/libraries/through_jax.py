"""jaxopt and optimistix: compiled, over a batch by vmap."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from ..cases import Case, DoesNotApplyError, Forward, Programme, Quadratic, Simplex, Solved
from ..formulas import jax_operations
from .library import QUADRATIC, Library

JAXOPT_VARIANTS = {
    "default": "OSQP, LBFGS or projection_simplex as they come, with implicit differentiation, vmap and jit",
    "tight": "tol 1e-10, up to 10,000 iterations",
}
OPTIMISTIX_VARIANTS = {
    "default": "minimise with BFGS(rtol=1e-6, atol=1e-6), vmap and jit; the adjoint is ImplicitAdjoint",
    "tight": "the same to 1e-12",
}


def _load(name: str) -> Any:
    """JAX or a library on it, in double precision."""
    importlib.import_module("jax").config.update("jax_enable_x64", True)
    return importlib.import_module(name)


def _unconstrained(programme: Programme) -> tuple[Callable[[Any, Any], Any], Any]:
    """The objective as a function of u and p, and where one starts."""
    jnp = _load("jax.numpy")
    objective = programme.functions(jax_operations()).objective
    return lambda u, p: objective(p, u), jnp.asarray(programme.start[0])


def _compiled(case: Case, solve: Callable[[dict[str, Any]], tuple[Any, Any]]) -> Forward:
    """solve takes the inputs of one problem, and returns y and whether it is solved."""
    jax, jnp = _load("jax"), _load("jax.numpy")
    xs, v = {name: jnp.asarray(x) for name, x in case.inputs.items()}, jnp.asarray(case.cotangent)
    batched = jax.vmap(solve)
    forward_pass = jax.jit(lambda xs: jax.vjp(batched, xs, has_aux=True))
    pull = jax.jit(lambda back, v: back(v)[0])

    def forward() -> Solved:
        y, back, solved = forward_pass(xs)
        y.block_until_ready()

        def backward() -> Any:
            found = pull(back, v)
            return {name: np.asarray(value) for name, value in found.items()}

        return Solved(np.asarray(y), backward, lambda: np.asarray(solved))

    return forward


def _jaxopt(case: Case, variant: str) -> Forward:
    jaxopt = _load("jaxopt")
    options = {"tol": 1e-10, "maxiter": 10_000} if variant == "tight" else {}
    if isinstance(case.statement, Simplex):
        if variant == "tight":
            raise DoesNotApplyError("nothing is iterated")
        project = _load("jaxopt.projection").projection_simplex
        return _compiled(case, lambda xs: (project(-xs["q"]), True))
    if isinstance(case.statement, Programme):
        objective, start = _unconstrained(case.statement)
        solver = jaxopt.LBFGS(objective, **options)

        def solve(xs: dict[str, Any]) -> tuple[Any, Any]:
            found = solver.run(start, xs["p"])
            return found.params, found.state.error <= solver.tol

        return _compiled(case, solve)
    return _osqp(case, jaxopt.OSQP(**options))


def _osqp(case: Case, solver: Any) -> Forward:
    jnp, given = _load("jax.numpy"), case.quadratic()
    if set(case.inputs) != set(QUADRATIC) and not given.sparse:
        raise DoesNotApplyError("written for batches of all data, or of vectors")
    program = given.dense()
    shared = {name: jnp.asarray(getattr(program, name)[0]) for name in QUADRATIC}
    if any(np.ptp(getattr(given, name), 0).max(initial=0) > 0 for name in {"q", "b", "h"} - set(case.inputs)):
        raise DoesNotApplyError("vectors that differ without being inputs")

    def solve(xs: dict[str, Any]) -> tuple[Any, Any]:
        data = shared | xs
        equalities = (data["A"], data["b"]) if program.b.shape[1] else None
        found = solver.run(params_obj=(data["Q"], data["q"]), params_eq=equalities, params_ineq=(data["G"], data["h"]))
        return found.params.primal, found.state.status == 1

    return _compiled(case, solve)


def _optimistix(case: Case, variant: str) -> Forward:
    optimistix = _load("optimistix")
    assert isinstance(case.statement, Programme)
    objective, start = _unconstrained(case.statement)
    tolerance = 1e-12 if variant == "tight" else 1e-6
    solver = optimistix.BFGS(rtol=tolerance, atol=tolerance)

    def solve(xs: dict[str, Any]) -> tuple[Any, Any]:
        found = optimistix.minimise(objective, solver, start, args=xs["p"], throw=False, max_steps=10_000)
        return found.value, found.result == optimistix.RESULTS.successful

    return _compiled(case, solve)


JAXOPT = Library("jaxopt", "jaxopt", "jaxopt", (Quadratic, Simplex, Programme), JAXOPT_VARIANTS, _jaxopt, free=True)
OPTIMISTIX = Library(
    "optimistix", "optimistix", "optimistix", (Programme,), OPTIMISTIX_VARIANTS, _optimistix, free=True
)
