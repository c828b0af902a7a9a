"""What the paper claims, in our words, and what we add: each claim is judged by the curves and can come out false."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from . import criteria as made
from .criteria import CLOSE, EARLY, FAILS, RARELY, THROUGHOUT, WORKS, Judgement
from .curves import Curves
from .panels import PANELS, PUBLISHED

Data = Mapping[str, Curves]  # by panel; in single precision by "float32/", as published by "published/" and the panel

PROJECTION = ("projection-under", "projection-over")
TRANSPORT = ("transport-under", "transport-over")
EIGEN = ("eigen-all", "eigen-largest", "eigen-negative", "eigen-rank2")
FAILING = ("eigen-all", "eigen-largest", "eigen-rank2")


@dataclass(frozen=True)
class Claim:
    """A statement about panels, each of which is judged by itself."""

    name: str
    text: str  # what is claimed
    why: str  # the reason, as far as theory gives one; independent of the data
    panels: tuple[str, ...]
    judge: Callable[..., Judgement]  # of the curves of a panel; if ``in_both``, in double and in single precision
    in_both: bool = False
    wording: str = ""  # the paper's own, where much depends on a word


@dataclass(frozen=True)
class Verdict:
    """A claim after a look at the data: it holds if it does for each of its panels."""

    claim: Claim
    parts: dict[str, Judgement]  # panels that were not run are missing

    @property
    def holds(self) -> bool | None:
        """None if nothing speaks against it but panels are missing."""
        if not all(part.holds for part in self.parts.values()):
            return False
        return True if len(self.parts) == len(self.claim.panels) else None


def judge(claim: Claim, data: Data) -> Verdict:
    """Judge a claim by what was run."""
    parts = {}
    for panel in claim.panels:
        names = (panel, f"float32/{panel}") if claim.in_both else (panel,)
        curves = [data[name] for name in names if name in data]
        if len(curves) == len(names) and all(_complete(one, claim) for one in curves):
            parts[panel] = claim.judge(*curves)
            published = data.get(f"published/{panel}")
            if claim in PAPER and published is not None and _complete(published, claim):
                other = claim.judge(published)
                parts[panel] = made.beside(parts[panel], other, PUBLISHED[PANELS[panel].family])
    return Verdict(claim, parts)


def judge_all(data: Data) -> list[Verdict]:
    """Every claim."""
    return [judge(claim, data) for claim in CLAIMS]


def _complete(curves: Curves, claim: Claim) -> bool:
    wanted = {"exact", "unconstrained"} | {rule for rule in ("curvature", "adaptive") if claim.name.startswith(rule)}
    return wanted <= set(curves.rules)


PAPER = (
    Claim(
        "projection descends",
        "Projection: ignoring the constraint always leaves a direction that goes downhill, on every single problem.",
        "The exact gradient is the tangential part of the approximate one, up to a positive factor.",
        PROJECTION,
        made.always_descends,
    ),
    Claim(
        "transport descends",
        "Optimal transport: here too every single problem gets a downhill direction.",
        "Its constraints are linear, for which the theory promises descent on average, though not always.",
        TRANSPORT,
        made.always_descends,
    ),
    Claim(
        "works early",
        f"In the first {EARLY:.0%} of training it serves well: at least {WORKS:.0%} of the progress of the exact "
        "gradient.",
        "While the solution is far from its target, a rough direction is good enough.",
        PROJECTION + TRANSPORT,
        made.works_early,
    ),
    Claim(
        "worse late",
        "Later it falls behind: the loss ends above that of the exact gradient, by a larger factor than early on.",
        "What the constraints would take out moves x but not its solution: on the sphere x shrinks, steps overshoot.",
        PROJECTION + TRANSPORT,
        made.worse_late,
        wording="even when we have a descent direction, the approximation tends to only work well in early stages of "
        "training",
    ),
    Claim(
        "eigenvectors fail",
        f"Eigenvectors of a general or rank-2 matrix: training fails, with at most {FAILS:.0%} of the exact progress.",
        "The approximation inverts X, whose eigenvalues have both signs; the exact gradient inverts t I - X.",
        FAILING,
        made.fails,
    ),
    Claim(
        "eigenvectors rarely descend",
        f"There it goes downhill only rarely: on at most {RARELY:.0%} of the problems.",
        "Each eigenvalue of the wrong sign turns a part of the gradient around.",
        FAILING,
        made.rarely_descends,
        wording="the approximation is a poor choice, and rarely a descent direction",
    ),
    Claim(
        "negative definite works",
        f"It works where all other eigenvalues are negative: always downhill, and at least {THROUGHOUT:.0%} of the "
        "exact progress.",
        "The largest eigenvalue t is then next to zero, so that t I - X and -X are nearly the same.",
        ("eigen-negative",),
        made.works_throughout,
    ),
)
OURS = (
    Claim(
        "rank 2 is uphill",
        "If X is really of rank 2, it goes uphill on every problem at every step, and the loss climbs.",
        "The pseudo-inverse leaves only the second eigenvector, and that with the wrong sign.",
        ("eigen-rank2",),
        made.always_ascends,
    ),
    Claim(
        "means hide",
        "The mean cosine of a batch, which is what the paper plots, hides problems that go uphill.",
        "A batch can go downhill on average while some of its problems go uphill.",
        ("eigen-all", "eigen-largest"),
        made.means_hide,
    ),
    Claim(
        "curvature is exact",
        "Keeping the curvature of the constraint makes the gradient of eigenvectors exact.",
        "The eigenvector itself spans the null space of t I - X, which is all that the constraint would take out.",
        EIGEN,
        made.curvature_is_exact,
    ),
    Claim(
        "curvature helps",
        "On the sphere, keeping the curvature ends at a lower loss than ignoring the constraint.",
        "It divides by the length of x, as the exact gradient does.",
        PROJECTION,
        made.curvature_helps,
    ),
    Claim(
        "curvature of a linear constraint",
        "For transport, whose constraints are linear and have no curvature, both approximations are the same.",
        "The Hessians of the objective and of the Lagrangian coincide.",
        TRANSPORT,
        made.curvature_is_unconstrained,
    ),
    Claim(
        "adaptive keeps up",
        f"With its default settings, the adaptive rule ends within {CLOSE:g} times the loss of the exact one.",
        "It gives up the cheap gradient once a probe finds most of a batch out of line. Other settings may do worse.",
        PROJECTION + TRANSPORT + EIGEN,
        made.adaptive_keeps_up,
    ),
    Claim(
        "round-off",
        "What looks like a failing approximation on a negative definite X is round-off: the cosine stays near 1 in "
        "double precision and falls in single precision.",
        "The part of the gradient along y is zero but for rounding, and is divided by an eigenvalue next to zero.",
        ("eigen-negative",),
        made.single_precision_spoils,
        in_both=True,
    ),
)
CLAIMS = PAPER + OURS
AS_PUBLISHED = PROJECTION + TRANSPORT  # where the published code changes what a claim says
AGAIN = ("transport-over", "eigen-all", "eigen-largest")  # where the paper's claims fail: run with more repeats
