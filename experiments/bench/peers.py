"""Other libraries as sides of a comparison. Each is optional: one that is not installed is missing, in a word."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from problems import Layer
from problems.reference import MissingReferenceError, reference

from .timing import ONE_THREAD, Side

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


class Jaxopt:
    """A process that runs jaxopt's implicit differentiation of the projection onto the sphere, compiled.

    It is a process of its own so that it has one thread, which JAX must be told before it is imported.
    """

    def __init__(self) -> None:
        for name in ("jax", "jaxopt"):
            if importlib.util.find_spec(name) is None:
                raise MissingPeerError(f"{name} is not installed")
        flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        environment = {**os.environ, **dict.fromkeys(ONE_THREAD, "1"), "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "experiments.bench.jax_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def side(self, x: Tensor, v: Tensor, solver: str) -> Side:
        """Forward and backward with one of its linear solvers."""
        with tempfile.TemporaryDirectory() as place:
            np.savez(Path(place) / "inputs.npz", x=x.detach().numpy(), v=v.numpy())
            key = self._ask({"place": place, "solver": solver})
            result = torch.from_numpy(np.load(Path(place) / "gradient.npy"))
        return Side(lambda: (result,), clock=lambda: float(self._ask({"time": key})))

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError("the process with jaxopt has ended; what it said is above.")
        return json.loads(answer)

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


class Peers:
    """Whatever must be started once and ended at the end."""

    def __init__(self) -> None:
        self._jaxopt: Jaxopt | None = None

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *_: object) -> None:
        if self._jaxopt is not None:
            self._jaxopt.close()

    def jaxopt(self, x: Tensor, v: Tensor, solver: str) -> Side:
        """See :meth:`Jaxopt.side`; the process is started when it is needed first."""
        if self._jaxopt is None:
            self._jaxopt = Jaxopt()
        return self._jaxopt.side(x, v, solver)
