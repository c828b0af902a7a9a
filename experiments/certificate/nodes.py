"""Random nodes, to look for a certificate that is false."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from declarative import DeclarativeNode
from declarative.structure import Point
from problems import OptimalTransport

from ..shared.inputs import normal
from ..shared.jobs import Tick
from ..shared.rules import counted_warnings
from .backward import Certified, Complement, backward
from .transport import transport_complement

CHEAP = ("unconstrained", "curvature", "identity")
BATCH = 100
KINDS = 5
FEW, MANY = 3, 30  # steps, after which much is still open, or little


@dataclass(frozen=True)
class Kind:
    """A batch of random nodes of one kind."""

    name: str
    size: int  # of a solution
    node: DeclarativeNode
    xs: tuple[Tensor, ...]
    complement: Complement | None = None


def random_kinds(seed: int, batch: int = BATCH) -> Iterator[Kind]:
    """Linear constraints, also those that see the input; a sphere; active inequalities; transport."""
    generator = torch.Generator().manual_seed(seed)
    m = int(torch.randint(2, 12, (), generator=generator))
    p = int(torch.randint(1, m, (), generator=generator))
    Q, A = definite(generator, batch, m), normal(generator, batch, p, m)
    q, b = normal(generator, batch, m), normal(generator, batch, p)

    def energy(q: Tensor, Q: Tensor, u: Tensor) -> Tensor:
        return u @ Q @ u / 2 + q @ u

    def bend(q: Tensor, u: Tensor) -> Tensor:
        return ((1 + u.square()).sqrt() * (1 + q.square())).sum()

    def inequalities(q: Tensor, _: Tensor, A: Tensor, u: Tensor) -> Tensor:
        return torch.cat([A[1:] @ u - 0.3, u - 0.2 * (1 + q.tanh()), -0.5 - u])

    linear = DeclarativeNode(lambda q, Q, A, b, u: energy(q, Q, u), lambda q, Q, A, b, u: A @ u - b, start=m)  # noqa: ARG005
    yield Kind("linear", m, linear, (q, Q, A, b))
    moving = DeclarativeNode(
        lambda q, Q, A, b, u: energy(q, Q, u) + bend(q, u),  # noqa: ARG005
        lambda q, Q, A, b, u: A @ (u + 0.3 * q.tanh()) - b,  # noqa: ARG005
        start=m,
    )
    yield Kind("constraints that see the input", m, moving, (q, Q, A, b))
    sphere = DeclarativeNode(energy, lambda q, Q, u: u.square().sum() - 1, start=lambda q, Q: -q)  # noqa: ARG005
    yield Kind("sphere", m, sphere, (3 * torch.nn.functional.normalize(q), Q / 3))
    bounded = DeclarativeNode(
        lambda q, Q, A, u: energy(q, Q, u),  # noqa: ARG005
        lambda q, Q, A, u: A[:1] @ u,  # noqa: ARG005
        inequalities,
        start=m,
    )
    yield Kind("active inequalities", m, bounded, (q, Q, A))
    n = int(torch.randint(2, 8, (), generator=generator))
    gamma = float(10 ** (2 * torch.rand((), generator=generator)))
    costs = torch.rand(batch, n, n + 1, generator=generator, dtype=torch.float64)
    yield Kind("transport", n * (n + 1), OptimalTransport(gamma), (costs,), transport_complement)


def definite(generator: torch.Generator, batch: int, m: int) -> Tensor:
    """Positive definite matrices whose eigenvalues are spread over three orders of magnitude."""
    basis = torch.linalg.qr(normal(generator, batch, m, m)).Q
    values = 10 ** (3 * torch.rand(batch, m, generator=generator, dtype=torch.float64) - 1.5)
    matrices: Tensor = basis @ (values.unsqueeze(-1) * basis.mT)
    return matrices


def search(seed: int, batches: int, tick: Tick) -> tuple[list[dict[str, Any]], str]:
    """Certificates of random nodes, a line for each kind and rule: how many are decided, and how many false."""
    lines: dict[tuple[str, str], Counter[str]] = {}
    with counted_warnings():
        for number in range(seed, seed + batches):
            for kind in random_kinds(number):
                for rule, counts in judge(kind, number).items():
                    lines.setdefault((kind.name, rule), Counter()).update(counts)
            tick((number - seed + 1) / batches)
    rows = [{"kind": kind, "rule": rule, **line} for (kind, rule), line in lines.items()]
    false, nodes = (sum(line[name] for line in lines.values()) for name in ("false", "nodes"))
    return rows, f"{false} false of {nodes} certificates"


def judge(kind: Kind, seed: int) -> dict[str, dict[str, int]]:
    """Every rule on a batch, with few steps and with many."""
    found = {}

    def look(point: Point, v: Tensor, wanted: Sequence[int]) -> None:
        for rule in CHEAP:
            few, many = (Certified.at(point, v, wanted, rule, kind.complement, steps=steps) for steps in (FEW, MANY))
            found[rule] = {
                "nodes": len(v),
                "early": int(few.certificate.decided.sum()),
                "decided": int(many.certificate.decided.sum()),
                "ascending": int((many.product < 0).sum()),
                "false": few.false() + many.false(),
            }

    v = normal(torch.Generator().manual_seed(seed), len(kind.xs[0]), kind.size)
    backward(kind.node, kind.xs, v, look)
    return found
