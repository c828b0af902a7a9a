"""What a certificate costs, and what else could be had for that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from declarative import ClosedForm, DeclarativeNode
from declarative.gradients import RULES
from declarative.structure import Point
from declarative.theory.certificate import certify
from declarative.theory.propositions import cosine
from declarative.theory.schur_complement import SchurComplement, floor_of_rows
from problems import OptimalTransport

from ..shared.inputs import normal
from ..shared.iteration import conjugate_gradients
from ..shared.jobs import Tick
from ..shared.timing import timed
from .backward import Complement, backward, flat, pull
from .transport import transport_complement

STEPS = 30
BATCH = 4
REPEATS = 3  # of which the shortest counts


@dataclass(frozen=True)
class Family:
    """A layer whose exact gradient is dear and whose cheap one is not."""

    name: str
    size: str
    node: DeclarativeNode
    x: Tensor
    complement: Complement

    @property
    def label(self) -> str:
        """For readers."""
        return f"{self.name}, {self.size}"


def families(quick: bool) -> Iterator[Family]:
    """Transport from well- to ill-conditioned plans, and dense linear constraints with a diagonal Hessian."""
    for n, gamma in ((6, 1.0),) if quick else ((50, 1.0), (50, 10.0), (50, 100.0), (300, 1.0), (300, 10.0)):
        costs = torch.rand(BATCH, n, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        node = OptimalTransport(gamma, tolerance=1e-8)
        yield Family("transport", f"n = {n}, γ = {gamma:g}", node, costs, transport_complement)
    for m, p, spread in ((40, 5, 1.0),) if quick else ((1200, 20, 1.0), (1200, 300, 1.0), (1200, 300, 3.0)):
        yield dense_rows(m, p, spread)


def dense_rows(m: int, p: int, spread: float) -> Family:
    """min sum_j h_j cosh(u_j) + x'u subject to A u = A y, with x such that y is the solution.

    The entries of h differ by so many orders of magnitude. A is the same in all calls, so that its floor is found once.
    """
    generator = torch.Generator().manual_seed(0)
    A, y = normal(generator, p, m) / m**0.5, 0.3 * normal(generator, m)
    h = 10 ** (spread * torch.rand(m, generator=generator, dtype=torch.float64))
    node = DeclarativeNode(
        lambda x, u: (h * u.cosh()).sum() + x @ u,
        lambda x, u: A @ (u - y),  # noqa: ARG005
        solver=ClosedForm(lambda x: y.expand(x.shape), stationary=True),
        structure="diagonal",
    )
    of_rows, largest = floor_of_rows(A), torch.linalg.matrix_norm(A, 2).square()

    def complement(point: Point) -> SchurComplement:
        diagonal = h * point.u.cosh()
        floor, ceiling = of_rows / diagonal.amax(-1), largest / diagonal.amin(-1)
        return SchurComplement(lambda z: z / diagonal, lambda z: z @ A.mT, lambda s: s @ A, floor, ceiling=ceiling)

    x = normal(generator, BATCH, p) @ A - h * y.sinh()
    size = f"m = {m}, p = {p}, h over {10**spread:g}"
    return Family("linear constraints", size, node, x, complement)


def measure(label: str, quick: bool, tick: Tick) -> tuple[dict[str, Any], str]:
    """The certificate of the paper's approximation in one family: what is decided when, at what cost.

    Beside it, what the same number of products with S makes of conjugate gradients for the exact gradient itself.
    """
    (family,) = (one for one in families(quick) if one.label == label)
    found: dict[str, Any] = {}

    def look(point: Point, v: Tensor, wanted: Sequence[int]) -> None:
        exact, g = shortest(lambda: pull(RULES["exact"], point, v, wanted))
        cheap, g_hat = shortest(lambda: pull(RULES["unconstrained"], point, v, wanted))
        proof, certificate = shortest(lambda: certify(point, v, g_hat, wanted, family.complement(point), steps=STEPS))
        taken = certificate.steps.tolist()
        instead = instead_of(family.complement(point), point, v, wanted, flat(g))
        decided = [float((certificate.decided & (certificate.steps <= k)).double().mean()) for k in range(STEPS + 1)]
        found.update(
            family=family.name,
            size=family.size,
            cosine=cosine(flat(g), flat(g_hat)).median().item(),
            decided=decided[-1],
            steps=sorted(taken)[len(taken) // 2],
            exact_over_cheap=exact / cheap,
            certificate_over_cheap=proof / cheap,
            with_proof_over_exact=(cheap + proof) / exact,
            share_by_step=decided,
            instead=instead,
        )

    v = normal(torch.Generator().manual_seed(1), BATCH, family.x[0].numel())
    backward(family.node, (family.x,), v, look)
    tick(1.0)
    return found, f"{found['decided']:.0%} decided"


def instead_of(complement: SchurComplement, point: Point, v: Tensor, wanted: Sequence[int], g: Tensor) -> list[float]:
    """The median cosine of the gradient after as many products as each step of a certificate takes: two."""
    right = complement.rows(complement.inverse(v))
    cosines = []
    for k in range(STEPS + 1):
        s = conjugate_gradients(complement, right, 2 * k)
        z = complement.inverse(v - complement.columns(s))
        grads = point.batch.pullback(point.u, point.multipliers, z, torch.zeros_like(point.multipliers), wanted)
        cosines.append(cosine(g, flat(grads)).median().item())
    return cosines


def shortest(work: Callable[[], Any]) -> tuple[float, Any]:
    """The seconds of the processor that it takes at least, and its result."""
    return min((timed(work) for _ in range(REPEATS)), key=lambda one: one[0])
