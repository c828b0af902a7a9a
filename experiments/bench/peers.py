"""Other libraries as sides of a comparison. Each is optional: one that is not installed is missing, in a word."""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from problems import Layer
from problems.reference import MissingReferenceError, reference

from ..shared.processes import Worker
from .timing import Side

TIGHT_PEER = "cvxpylayers at tight settings, which its gradient needs"


class MissingPeerError(ImportError):
    """A library to compare with is not installed."""


def load(name: str) -> Any:
    """A module.

    Raises:
        MissingPeerError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingPeerError(f"{name.partition('.')[0]} is not installed") from error


def cvxpylayers(layer: Layer, xs: Sequence[Tensor | None], v: Tensor) -> Side:
    """Forward and backward, at the settings that make it tight."""
    try:
        other = reference(layer, *xs)
    except MissingReferenceError as error:
        raise MissingPeerError("cvxpylayers is not installed") from error
    wanted = [x for x in xs if x is not None and x.requires_grad]
    return Side(lambda: torch.autograd.grad(other(*xs), wanted, v))


def qpth(xs: Sequence[Tensor], v: Tensor) -> Side:
    """Forward and backward, of a quadratic program (Q, q, A, b, G, h)."""
    Q, q, A, b, G, h = xs
    wanted = [x for x in xs if x.requires_grad]
    program = load("qpth.qp").QPFunction(verbose=-1, check_Q_spd=False)
    return Side(lambda: torch.autograd.grad(program(Q, q, G, h, A, b), wanted, v))


def moreau(xs: Sequence[Tensor], v: Tensor) -> Side:
    """Forward and backward on the CPU of a dense quadratic program, by the solver that it chooses itself."""
    library, layer = load("moreau"), load("moreau.torch")
    Q, q, A, b, G, h = xs
    (n, p), count = (q.shape[1], b.shape[1]), b.shape[1] + h.shape[1]
    cones = library.Cones(num_zero_cones=p, num_nonneg_cones=count - p)
    settings = library.Settings(device="cpu", batch_size=len(q), enable_grad=True, solver="active_set")
    places = [part for rows in (n, count) for part in (n * torch.arange(rows + 1), torch.arange(n).repeat(rows))]
    solver = layer.Solver(n, count, *places, cones, settings)
    wanted = [x for x in xs if x.requires_grad]

    def run() -> Sequence[Tensor]:
        rows, right = torch.cat([A, G], 1), torch.cat([b, h], 1)
        return torch.autograd.grad(solver.solve(Q.flatten(1), rows.flatten(1), q, right).x, wanted, v)

    return Side(run)


def pot(M: Tensor, gamma: float, tolerance: float) -> Side:
    """``ot.sinkhorn``, forward alone, one problem after the other; the tolerance is that of a marginal, relative."""
    ot = load("ot")
    costs, (m, n) = M.detach().numpy(), M.shape[-2:]
    r, c = np.full(m, 1 / m), np.full(n, 1 / n)
    norm = tolerance / n**0.5  # POT takes the Euclidean norm of the errors of n marginals 1 / n

    def run() -> Sequence[Tensor]:
        plans = [ot.sinkhorn(r, c, cost, 1 / gamma, stopThr=norm, numItermax=10_000) for cost in costs]
        return (torch.from_numpy(np.stack(plans)),)

    return Side(run)


class Peers:
    """What must be ended at the end: a process that runs jaxopt's implicit differentiation of the sphere, compiled.

    It is a process of its own so that it has one thread, which JAX must be told before it is imported.
    """

    def __init__(self) -> None:
        self.worker: Worker | None = None

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *_: object) -> None:
        if self.worker is not None:
            self.worker.close()

    def jaxopt(self, x: Tensor, v: Tensor, solver: str) -> Side:
        """Forward and backward with one of its linear solvers; the process is started when it is needed first."""
        worker = self.worker = self.worker or _start_jaxopt()
        with tempfile.TemporaryDirectory() as place:
            np.savez(Path(place) / "inputs.npz", x=x.detach().numpy(), v=v.numpy())
            key = worker.ask({"place": place, "solver": solver})
            result = torch.from_numpy(np.load(Path(place) / "gradient.npy"))
        return Side(lambda: (result,), clock=lambda: float(worker.ask({"time": key})))


def _start_jaxopt() -> Worker:
    for name in ("jax", "jaxopt"):
        if importlib.util.find_spec(name) is None:
            raise MissingPeerError(f"{name} is not installed")
    return Worker("-m", "experiments.bench.jax_worker")
