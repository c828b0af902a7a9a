"""The process in which jaxopt is timed.

A request with a place is for the projection onto the sphere of what is saved there: it compiles forward and backward,
saves the gradient, and answers a number. A request for the time of that number answers the seconds of one call.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..shared.processes import serve
from ..shared.timing import timed

TIGHT = 1e-12


def compiled(x: Any, v: Any, solver: str) -> Callable[[], Any]:
    """The gradient of v'y, y the nearest point of the sphere, by the implicit function theorem."""
    import jax
    import jax.numpy as jnp
    from jaxopt import implicit_diff, linear_solve

    solvers = {
        "gmres": partial(linear_solve.solve_gmres, tol=TIGHT),
        "normal cg": partial(linear_solve.solve_normal_cg, tol=TIGHT),  # the KKT matrix is indefinite
    }

    def conditions(point: Any, x: Any) -> Any:
        u, multiplier = point
        return u - x - multiplier * u, (u @ u - 1) / 2

    def project(_: Any, x: Any) -> Any:
        length = jnp.linalg.norm(x)
        return x / length, 1 - length

    solve = implicit_diff.custom_root(conditions, solve=solvers[solver])(project)
    gradient = jax.jit(jax.vmap(jax.grad(lambda x, v: solve(None, x)[0] @ v)))
    x, v = jnp.asarray(x), jnp.asarray(v)
    return lambda: gradient(x, v).block_until_ready()


def main() -> None:
    """Serve until the input ends."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # before JAX counts the cores
    import jax

    jax.config.update("jax_enable_x64", True)
    calls: list[Callable[[], Any]] = []

    def answer(request: dict[str, Any]) -> float:
        if "time" in request:
            return timed(calls[request["time"]])[0]
        place = Path(request["place"])
        inputs = np.load(place / "inputs.npz")
        calls.append(compiled(inputs["x"], inputs["v"], request["solver"]))
        np.save(place / "gradient.npy", np.asarray(calls[-1]()))
        return len(calls) - 1

    serve(answer)


if __name__ == "__main__":
    main()
