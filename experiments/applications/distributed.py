"""Two processes train what one process trains: a declarative layer under ``DistributedDataParallel``.

Each process sees its half of every batch. The gradients that the processes agree upon must be those of the whole batch
in a single process, up to rounding, in every step.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from declarative import DeclarativeNode
from declarative.reports.table import as_text
from problems import OptimalTransport

from ..shared.inputs import normal
from ..shared.jobs import positive

PROCESSES = 2
BATCH = 8  # over all processes
TOLERANCE = 1e-12  # relative to the largest entry of a gradient
SECONDS = 120  # after which the processes are given up

Record = list[dict[str, Tensor]]  # the gradients of each step, by the name of the parameter


def _generic() -> nn.Module:
    """A plane and a half-space, by the batched Newton method."""
    node = DeclarativeNode(
        lambda x, u: (u - x).square().sum() + u.pow(4).sum() / 4,
        lambda _, u: u.sum() - 1,
        lambda _, u: -u[:2],
        start=4,
    )
    return nn.Sequential(nn.Linear(3, 4), node)


def _transport() -> nn.Module:
    """A cost matrix from a linear layer, and its transport plan."""
    return nn.Sequential(nn.Linear(3, 12), nn.Unflatten(1, (3, 4)), OptimalTransport(2.0))


MODELS: dict[str, Callable[[], nn.Module]] = {"generic node": _generic, "optimal transport": _transport}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--steps", type=positive, default=5, help="of training (%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Train in one process and in two, print how far the gradients are apart, and return the exit code."""
    if not torch.distributed.is_available():
        print("This installation of torch cannot start several processes.", file=sys.stderr)
        return 2
    together = _start_processes(args.steps)
    rows, good = [], True
    for name in MODELS:
        alone = train(name, args.steps)
        gaps = [_gap(one, two) for one, two in zip(alone, together[name], strict=True)]
        good &= max(gaps) <= TOLERANCE
        rows.append([name, str(PROCESSES), str(args.steps), f"{gaps[0]:.1e}", f"{max(gaps):.1e}"])
    head = ["layer", "processes", "steps", "first step", "largest"]
    print("Gradients of several processes against those of one, relative to the largest entry:")
    print(as_text(head, rows))
    print(f"{'They agree' if good else 'They do NOT agree'} within {TOLERANCE:.0e}.")
    return 0 if good else 1


def train(
    name: str, steps: int, rank: int = 0, size: int = 1, wrap: Callable[[nn.Module], nn.Module] = lambda model: model
) -> Record:
    """Train a model on every ``size``-th problem of each batch, from the ``rank``-th on; the gradients of each step."""
    torch.manual_seed(0)
    model = MODELS[name]().double()
    wrapped = wrap(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    record = []
    for _ in range(steps):
        x = normal(generator, BATCH, 3)[rank::size]
        optimiser.zero_grad()
        y = wrapped(x)
        target = torch.linspace(0, 1, y[0].numel(), dtype=y.dtype).view(y.shape[1:])
        (y - target).square().flatten(1).sum(-1).mean().backward()
        record.append({key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None})
        optimiser.step()
    return record


def _gap(one: dict[str, Tensor], two: dict[str, Tensor]) -> float:
    if one.keys() != two.keys() or not one:
        return float("inf")
    return max(float((one[key] - two[key]).abs().max() / one[key].abs().max()) for key in one)


def _start_processes(steps: int) -> dict[str, Record]:
    """Start the processes on a free port of this machine, and return what the first of them has written down."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "gradients.pt"
        launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}", "--module", __name__]
        command = [sys.executable, "-m", *launcher, str(steps), str(path)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
        if done.returncode:
            raise ValueError(f"the processes failed:\n{done.stderr[-2000:]}")
        result: dict[str, Record] = torch.load(path)
    return result


def _work(steps: int, path: Path) -> None:
    """What each process does."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    try:
        records = {name: train(name, steps, rank, size, nn.parallel.DistributedDataParallel) for name in MODELS}
        if rank == 0:
            torch.save(records, path)
        torch.distributed.barrier()  # gloo aborts a process whose peer has closed the connection already
    finally:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    _work(int(sys.argv[1]), Path(sys.argv[2]))
