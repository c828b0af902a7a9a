"""A gate that notices lost speed: a dozen ratios of processor times, beside those that are kept with the project.

Each of our calls is timed in turns with something of the same kind on the same machine: a loss shows in the ratio, on
any machine. What is kept is a record of the last change that was made on purpose, with the reasons of all of them. A
ratio that falls is measured again before it counts: the shortest time of all attempts does.
"""

from __future__ import annotations

import math
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import scipy.sparse.linalg
import torch
from torch import Tensor
from torch.func import hessian, jacrev, vmap
from torch.nn.functional import normalize

from declarative import DeclarativeNode
from declarative.optimality import assess
from declarative.problem import Batch, Problem
from declarative.reports.table import as_text
from problems import OptimalTransport, QuadraticProgram, SphereProjection

from ..shared.files import read_json, write_json
from ..shared.inputs import Draw, normal
from ..shared.machine import describe, now, one_thread
from ..shared.trajectories import PENDULUM, flat
from . import sparse
from .baselines import dense_node, kkt_matrix, sinkhorn_cholesky
from .nodes import distance, on_sphere, recorded
from .timing import Side, both, measure

KEPT = Path(__file__).parent / "kept.json"
SHARE = 0.7  # of a ratio that is kept: below that, speed was lost
FASTER = 1.4  # times a ratio that is kept: above that, it should be kept
ATTEMPTS = 4  # to measure a ratio before it counts as lost, each with more time
BUDGET, TURNS = 0.5, 2  # of the first one: seconds, and turns at least
Pair = Mapping[str, Side]  # "ours" and "other"


@dataclass(frozen=True)
class Watched:
    """A ratio that is watched: how many times as long the other side takes."""

    name: str
    other: str  # what it is measured against
    pair: Callable[[], Pair]  # built when it is needed


@dataclass(frozen=True)
class Outcome:
    """What a ratio came to."""

    watched: Watched
    ratio: float
    kept: float | None
    attempts: int

    @property
    def lost(self) -> bool:
        """Whether it fails."""
        return self.kept is None or not self.ratio >= SHARE * self.kept

    def verdict(self) -> str:
        """In a few words."""
        if self.kept is None:
            return "NOT KEPT"
        if self.lost:
            return "LOST"
        return "faster" if self.ratio > FASTER * self.kept else "holds"


def gate(only: str = "") -> int:
    """Measure, print a table, and return 1 if a ratio was lost."""
    kept = _kept()["ratios"]
    outcomes = [_outcome(one, kept.get(one.name)) for one in _wanted(only)]
    head = ["row", "against", "ratio", "kept", "share", "attempts", "verdict"]
    print(as_text(head, [_line(one) for one in outcomes]))
    lost = [one.watched.name for one in outcomes if one.lost]
    if lost:
        print(f"\nLost: {', '.join(lost)}. A ratio is lost below {SHARE:g} of what is kept in {KEPT.name}.")
        print('On purpose? Then say why: python -m experiments bench --accept "reason" [--only ROW]')
    return int(bool(lost))


def accept(reason: str, only: str = "") -> int:
    """Measure, and keep what is found, with the reason.

    Raises:
        ValueError: there is none.
    """
    if not reason.strip():
        raise ValueError("--accept needs a reason, which is kept with the ratios.")
    record = _kept()
    changes = {}
    for one in _wanted(only):
        before, after = record["ratios"].get(one.name), float(f"{_measured(one, ATTEMPTS - 1):.3g}")
        record["ratios"][one.name], changes[one.name] = after, [before, after]
        print(f"{one.name}: {before} -> {after}", flush=True)
    record["accepted"].append({"when": now(), "reason": reason.strip(), "changes": changes, **describe()})
    write_json(KEPT, record)
    return 0


def _kept() -> dict[str, Any]:
    return read_json(KEPT) or {"ratios": {}, "accepted": []}


def _wanted(only: str) -> list[Watched]:
    found = [one for one in WATCHED if only in one.name]
    if not found:
        raise ValueError(f"no row of the gate contains {only!r}.")
    return found


def _line(one: Outcome) -> list[str]:
    kept = "-" if one.kept is None else f"{one.kept:.3g}"
    share = "-" if one.kept is None else f"{one.ratio / one.kept:.2f}"
    return [one.watched.name, one.watched.other, f"{one.ratio:.3g}", kept, share, str(one.attempts), one.verdict()]


def _outcome(watched: Watched, kept: float | None) -> Outcome:
    """The ratio by as few attempts as show that it holds."""
    pair, best = _built(watched), {"ours": math.inf, "other": math.inf}
    for attempt in range(ATTEMPTS):
        outcome = Outcome(watched, _improved(pair, best, attempt), kept, attempt + 1)
        if kept is None or not outcome.lost:
            break
    return outcome


def _measured(watched: Watched, attempts: int) -> float:
    """The ratio by so many attempts."""
    pair, best = _built(watched), {"ours": math.inf, "other": math.inf}
    return [_improved(pair, best, attempt) for attempt in range(attempts)][-1]


def _built(watched: Watched) -> Pair:
    with one_thread():
        return watched.pair()


def _improved(pair: Pair, best: dict[str, float], attempt: int) -> float:
    """The ratio of the shortest times of this attempt and all before it."""
    with one_thread():
        found = measure(pair, BUDGET * (attempt + 1), TURNS)
    for name in best:
        best[name] = min(best[name], found[name].seconds)
    return best["other"] / best["ours"]


# The rows


def closed_form_layer() -> Pair:
    """Steps of Python and torch on both sides."""
    draw = Draw(10, torch.Generator().manual_seed(0))
    x, v = draw.normal(10).requires_grad_(), draw.normal(10)
    return {"ours": both(SphereProjection(), (x,), v)(), "other": both(normalize, (x,), v)()}


def small_node(record: bool, n: int = 10, batch: int = 10) -> Pair:
    """A closed form by callables."""
    draw = Draw(batch, torch.Generator().manual_seed(0))
    x, v = draw.normal(n).requires_grad_(), draw.normal(n)
    node = DeclarativeNode(distance, on_sphere, solver=normalize, record=record)
    return {"ours": both(node, (x,), v)(), "other": both(dense_node(normalize, distance, on_sphere), (x,), v)()}


def dense_callables(n: int = 100, batch: int = 16) -> Pair:
    """A dense Hessian by callables, at a solution that is known."""
    draw = Draw(batch, torch.Generator().manual_seed(0))
    Q, y, v = Draw(1, draw.generator).definite(n)[0], normalize(draw.normal(n)), draw.normal(n)
    x = (y @ Q + y**3 + y).requires_grad_()
    matrix = kkt_matrix(Q + torch.diag_embed(3 * y**2 + 1), y.unsqueeze(-2))

    def objective(x: Tensor, u: Tensor) -> Tensor:
        return u @ Q @ u / 2 - x @ u + u.pow(4).sum() / 4

    node = DeclarativeNode(objective, on_sphere, solver=lambda _: y)
    return {"ours": both(node, (x,), v)(), "other": batched_lu(matrix)}


def newton_node(batch: int = 64, m: int = 20, p: int = 5) -> Pair:
    """A batch of nonlinear problems, recorded, forward and backward."""
    generator = torch.Generator().manual_seed(0)
    weights, x, v = normal(generator, p, m) / m**0.5, normal(generator, batch, m), normal(generator, batch, m)

    def objective(x: Tensor, u: Tensor) -> Tensor:
        return (u - x).square().sum() / 2 + u.pow(4).sum() / 10

    node = recorded(objective, lambda x, u: weights @ u - 0.05 * x[:p], solver="newton", start=m)
    matrix = kkt_matrix(torch.eye(m, dtype=x.dtype), weights).expand(batch, -1, -1).contiguous()
    return {"ours": both(node, (x.requires_grad_(),), v)(), "other": batched_lu(matrix)}


def batched_lu(matrix: Tensor) -> Side:
    """One factorisation of each of these."""
    return Side(lambda: (torch.linalg.lu_factor(matrix).LU,))


def sparse_lu(size: int, width: int = 3) -> Side:
    """Of a banded matrix by SuperLU."""
    bands = [torch.rand(size - abs(i), dtype=torch.float64).numpy() + 9.0 * (i == 0) for i in range(-width, width + 1)]
    matrix = scipy.sparse.diags_array(bands, offsets=list(range(-width, width + 1)), format="csc")
    right = torch.ones(size, dtype=torch.float64).numpy()
    return Side(lambda: (torch.from_numpy(scipy.sparse.linalg.splu(matrix).solve(right)),))


def chain(n: int = 1000) -> Pair:
    """A sparse quadratic program with neighbours that are held together."""
    problem, x = sparse.chain(n)
    v = torch.ones_like(x)
    return {"ours": both(problem.node, (x.requires_grad_(),), v, problem.found)(), "other": sparse_lu(3 * n)}


def control(steps: int = 1000) -> Pair:
    """A trajectory that comes to rest, so that most of its unknowns are nearly zero."""
    x, v = PENDULUM.initial(1).requires_grad_(), torch.ones(1, 3 * steps, dtype=torch.float64)
    layer = PENDULUM.layer(steps, structure="sparse", record=True)
    return {"ours": both(layer, (x,), v, flat)(), "other": sparse_lu(5 * steps)}


def quadratic_program(n: int = 100, batch: int = 16) -> Pair:
    """With inequalities, some of them active."""
    draw = Draw(batch, torch.Generator().manual_seed(0))
    Q, q, *rest = draw.program(n, 10, 30)
    xs, v = tuple(x.requires_grad_() for x in (Q, 3 * q, *rest)), draw.normal(n)
    return {"ours": both(QuadraticProgram(), xs, v)(), "other": batched_lu(kkt_matrix(Q, rest[0]).detach())}


def transport(n: int = 100, gamma: float = 10.0) -> Pair:
    """Beside Sinkhorn's iteration and Cholesky factors."""
    draw = Draw(1, torch.Generator().manual_seed(n))
    M, v = draw.uniform(n, n).requires_grad_(), draw.normal(n, n)
    plain = partial(sinkhorn_cholesky, gamma=gamma, tolerance=64 * torch.finfo(M.dtype).eps)
    return {"ours": both(OptimalTransport(gamma), (M,), v)(), "other": both(plain, (M,), v)()}


def verdict(batch: int = 16, m: int = 20) -> Pair:
    """The verdict on solutions with their multipliers, beside the derivatives that it is made of by torch.func."""
    y = normalize(Draw(batch, torch.Generator().manual_seed(0)).normal(m))
    problems = Batch(Problem(distance, on_sphere), (2 * y,), (0,), batch, y.shape[1:], 1, 0)
    multipliers = -y.new_ones(batch, 1)

    def lagrangian(x: Tensor, u: Tensor, multiplier: Tensor) -> Tensor:
        return distance(x, u) - (multiplier * on_sphere(x, u)).sum()

    def derivatives(x: Tensor, u: Tensor, multiplier: Tensor) -> tuple[Tensor, ...]:
        rows = jacrev(lambda u: on_sphere(x, u).reshape(-1))(u)
        return jacrev(lagrangian, 1)(x, u, multiplier), rows, hessian(lagrangian, 1)(x, u, multiplier)

    def plainly() -> tuple[Tensor, ...]:
        slope, A, H = vmap(derivatives)(2 * y, y, multipliers)
        return torch.linalg.solve(kkt_matrix(H, A), torch.nn.functional.pad(slope, (0, 1))), slope

    def judged() -> tuple[Tensor, ...]:
        with torch.no_grad():
            found = assess(problems, y, multipliers)
        assert bool(found.solved(y.dtype).all())
        return (found.residual,)

    return {"ours": Side(judged), "other": Side(plainly)}


def importing() -> Pair:
    """Processes of their own."""
    return {"ours": _process("import declarative, problems"), "other": _process("import torch, torch._dynamo")}


def _process(line: str) -> Side:
    return Side(lambda: (torch.zeros(1),), clock=partial(_seconds_of, line))


def _seconds_of(line: str) -> float:
    """Of the processor, for a process that runs a line."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", line], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


DERIVATIVES, LU, SPARSE_LU = "dense torch.func", "one batched LU", "one sparse LU"
WATCHED: Sequence[Watched] = (
    Watched("closed form layer", "F.normalize, autograd", closed_form_layer),
    Watched("small node, called", DERIVATIVES, partial(small_node, False)),
    Watched("small node, recorded", DERIVATIVES, partial(small_node, True)),
    Watched("sphere by callables, n = 100", DERIVATIVES, partial(small_node, False, 100, 64)),
    Watched("dense Hessian by callables, n = 100", LU, dense_callables),
    Watched("nonlinear batch by Newton, recorded", LU, newton_node),
    Watched("chain of 1,000, sparse", SPARSE_LU, chain),
    Watched("control, T = 1,000", SPARSE_LU, control),
    Watched("quadratic program, n = 100", LU, quadratic_program),
    Watched("transport 100 x 100", "Sinkhorn, Cholesky", transport),
    Watched("verdict", f"its derivatives by {DERIVATIVES}", verdict),
    Watched("import", "import torch", importing),
)
