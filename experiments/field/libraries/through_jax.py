"""jaxopt, optimistix, qpax and OTT: compiled, over a batch by vmap."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..cases import Case, DoesNotApplyError, Forward, Programme, Quadratic, Simplex, Solved, Transport
from ..formulas import jax_operations
from .library import QUADRATIC, Library

JAXOPT_VARIANTS = {
    "default": "OSQP, LBFGS or projection_simplex as they come, with implicit differentiation, vmap and jit",
    "tight": "tol 1e-10, up to 10,000 iterations, and implicit_diff_solve to 1e-12: without that option the linear "
    "system of the backward pass is solved by conjugate gradients to 1e-5, whatever tol is",
    "to the bar": "the same with tol 1e-8 and 1e-8",
    "direct": "tight, with a dense factorisation as implicit_diff_solve; OSQP with its eq_qp_solve='lu' instead, since "
    "its system of the backward pass is singular",
}
OPTIMISTIX_VARIANTS = {
    "default": "minimise with BFGS(rtol=1e-6, atol=1e-6), vmap and jit; the adjoint is ImplicitAdjoint, whose linear "
    "system is solved directly",
    "tight": "the same to 1e-12",
    "to the bar": "the same to 1e-8",
    "Newton": "root_find on the gradient with Newton(rtol=1e-10, atol=1e-10), the Hessian tagged as positive definite",
}
QPAX_VARIANTS = {
    "default": "solve_qp_primal as it comes (solver_tol 1e-5; gradients at the barrier target_kappa 1e-3), vmap, jit",
    "tight": "its implicit backend with solver_tol 1e-10 and target_kappa 1e-10, up to 100 iterations: the explicit "
    "one does not reach 1e-7",
    "to the bar": "the same with 1e-8 and 1e-8",
}
OTT_VARIANTS = {
    "default": "ott.solvers.linear.solve(Geometry(M, 1/gamma)) as it comes (threshold 1e-3), vmap and jit; implicit "
    "differentiation by lineax",
    "tight": "threshold 1e-12 and up to 20,000 iterations, the linear solver to 1e-12, told that it is symmetric",
    "to the bar": "the same with 1e-10 and 1e-8: at marginals to 1e-9 its linear system has no solution to 1e-9",
    "unrolled": "threshold 1e-9, implicit_diff=None: autodiff through the iterations",
}
CONJUGATE = {"tight": 1e-12, "to the bar": 1e-8}  # tolerances of the linear systems of backward passes


def _load(name: str) -> Any:
    """JAX or a library on it, in double precision."""
    importlib.import_module("jax").config.update("jax_enable_x64", True)
    return importlib.import_module(name)


def _unconstrained(programme: Programme) -> tuple[Callable[[Any, Any], Any], Any]:
    """The objective as a function of u and p, and where one starts."""
    jnp = _load("jax.numpy")
    objective = programme.functions(jax_operations()).objective
    return lambda u, p: objective(p, u), jnp.asarray(programme.start[0])


def _compiled(
    case: Case,
    solve: Callable[[dict[str, Any]], tuple[Any, Any]],
    claims: Callable[[dict[str, Any]], Any] | None = None,
) -> Forward:
    """solve takes the inputs of one problem, and returns y and whether it is solved; or claims says that, untimed."""
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

        said = (lambda: np.asarray(jax.jit(jax.vmap(claims))(xs))) if claims else (lambda: np.asarray(solved))
        return Solved(np.asarray(y), backward, said)

    return forward


def _jaxopt(case: Case, variant: str) -> Forward:
    jaxopt = _load("jaxopt")
    tolerances = {"tight": 1e-10, "to the bar": 1e-8, "direct": 1e-10}
    options: dict[str, Any] = {"tol": tolerances[variant], "maxiter": 10_000} if variant in tolerances else {}
    linear = importlib.import_module("jaxopt.linear_solve")
    if isinstance(case.statement, Simplex):
        if variant != "default":
            raise DoesNotApplyError("nothing is iterated")
        project = _load("jaxopt.projection").projection_simplex
        return _compiled(case, lambda xs: (project(-xs["q"]), True))
    if isinstance(case.statement, Programme):
        objective, start = _unconstrained(case.statement)
        if variant in CONJUGATE:
            options["implicit_diff_solve"] = partial(linear.solve_cg, tol=CONJUGATE[variant], maxiter=10_000)
        elif variant == "direct":
            options["implicit_diff_solve"] = _factorise
        solver = jaxopt.LBFGS(objective, **options)

        def solve(xs: dict[str, Any]) -> tuple[Any, Any]:
            found = solver.run(start, xs["p"])
            return found.params, found.state.error <= solver.tol

        return _compiled(case, solve)
    if variant != "default":
        tolerance = CONJUGATE.get(variant, 1e-12)
        options["implicit_diff_solve"] = partial(linear.solve_normal_cg, tol=tolerance, maxiter=10_000)
    if variant == "direct":
        options["eq_qp_solve"] = "lu"
    return _osqp(case, jaxopt.OSQP(**options))


def _factorise(matvec: Callable[[Any], Any], right: Any, **_: Any) -> Any:
    """The solution of a linear system by its dense matrix; right is a tree of arrays."""
    jax, jnp = _load("jax"), _load("jax.numpy")
    flat, tree = _load("jax.flatten_util").ravel_pytree(right)
    matrix = jax.jacobian(lambda x: _load("jax.flatten_util").ravel_pytree(matvec(tree(x)))[0])(jnp.zeros_like(flat))
    return tree(jnp.linalg.solve(matrix, flat))


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
    if variant == "Newton":
        slope = _load("jax").grad(objective)
        tags = frozenset([_load("lineax").positive_semidefinite_tag])
        find = partial(optimistix.root_find, slope, optimistix.Newton(rtol=1e-10, atol=1e-10), tags=tags)
    else:
        tolerance = {"tight": 1e-12, "to the bar": 1e-8}.get(variant, 1e-6)
        find = partial(optimistix.minimise, objective, optimistix.BFGS(rtol=tolerance, atol=tolerance))

    def solve(xs: dict[str, Any]) -> tuple[Any, Any]:
        found = find(start, args=xs["p"], throw=False, max_steps=10_000)
        return found.value, found.result == optimistix.RESULTS.successful

    return _compiled(case, solve)


def _qpax(case: Case, variant: str) -> Forward:
    jnp, qpax = _load("jax.numpy"), _load("qpax")
    program = case.quadratic().dense()
    tolerance = {"tight": 1e-10, "to the bar": 1e-8}.get(variant)
    options = {"backend": "i", "solver_tol": tolerance, "max_iter": 100} if tolerance else {}
    of_gradient = {"target_kappa": tolerance} if tolerance else {}
    shared = {name: jnp.asarray(getattr(program, name)[0]) for name in QUADRATIC}
    if any(np.ptp(getattr(program, name), 0).max(initial=0) > 0 for name in set(QUADRATIC) - set(case.inputs)):
        raise DoesNotApplyError("data that differ without being inputs")

    def solve(xs: dict[str, Any]) -> tuple[Any, Any]:
        return qpax.solve_qp_primal(**(shared | xs), **options, **of_gradient), True

    return _compiled(case, solve, lambda xs: qpax.solve_qp(**(shared | xs), **options)[4] == 1)


def _ott(case: Case, variant: str) -> Forward:
    linear, geometry = _load("ott.solvers.linear"), _load("ott.geometry.geometry")
    implicit = _load("ott.solvers.linear.implicit_differentiation")
    assert isinstance(case.statement, Transport)
    gamma = case.statement.gamma
    options: dict[str, Any] = {}
    if variant in CONJUGATE:
        threshold, tolerance = {"tight": (1e-12, 1e-12), "to the bar": (1e-10, 1e-8)}[variant]
        kwargs = {"rtol": tolerance, "atol": tolerance, "max_steps": 10_000}
        how = implicit.ImplicitDiff(solver_kwargs=kwargs, symmetric=True, precondition_fun=lambda x: x)
        options = {"threshold": threshold, "max_iterations": 20_000, "implicit_diff": how}
    elif variant == "unrolled":
        options = {"threshold": 1e-9, "max_iterations": 2000, "implicit_diff": None}

    def solve(xs: dict[str, Any]) -> tuple[Any, Any]:
        found = linear.solve(geometry.Geometry(cost_matrix=xs["M"], epsilon=1 / gamma), **options)
        return found.matrix.reshape(-1), found.converged

    return _compiled(case, solve)


JAXOPT = Library("jaxopt", "jaxopt", "jaxopt", (Quadratic, Simplex, Programme), JAXOPT_VARIANTS, _jaxopt, free=True)
OPTIMISTIX = Library(
    "optimistix", "optimistix", "optimistix", (Programme,), OPTIMISTIX_VARIANTS, _optimistix, free=True
)
QPAX = Library("qpax", "qpax", "qpax", (Quadratic, Simplex), QPAX_VARIANTS, _qpax)
OTT = Library("OTT", "ott-jax", "ott", (Transport,), OTT_VARIANTS, _ott)
