"""Judgements of a panel's curves: each is a function of the data alone, and can come out either way.

What words such as "early" or "fails" mean in numbers is fixed here, and said in the claims that use them. A NaN makes
every comparison false.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .curves import Curves

EARLY = 0.2  # of the iterations
WORKS = 0.5  # of the exact gradient's progress, at the least
FAILS = 0.25  # of the exact gradient's progress, at the most
THROUGHOUT = 0.9  # of the exact gradient's progress, at the least
RARELY = 0.25  # of the problems
CLOSE = 2.0  # times the exact gradient's loss, at the most
SAME = 0.9999  # a cosine that counts as the same direction
ROUND_OFF = 0.05  # by how much a mean cosine must fall in single precision to count


@dataclass(frozen=True)
class Judgement:
    """Whether a claim holds for one panel, and the numbers that say so."""

    holds: bool
    evidence: str


def beside(text: Judgement, published: Judgement, words: str) -> Judgement:
    """What the text's experiment says, with what the published code's says; where they differ, that comes first."""
    differ = "DEPENDS ON THE EXPERIMENT. As printed: " if text.holds != published.holds else ""
    verdict = "holds" if published.holds else "does not hold"
    return Judgement(
        text.holds, f"{differ}{text.evidence}. As in the published code ({words}) it {verdict}: {published.evidence}"
    )


def loss_at(curves: Curves, rule: str, iteration: int) -> float:
    """The mean loss of the repeats."""
    return float(curves.of(rule).loss[0, :, iteration].mean())


def early(curves: Curves) -> int:
    """The iteration at which the early part ends."""
    return int(EARLY * (curves.loss.shape[-1] - 1))


def progress(curves: Curves, rule: str, iteration: int) -> float:
    """How far the loss has come down, as a share of how far the exact gradient has brought it; NaN if that has not."""
    start = loss_at(curves, "exact", 0)
    exact = start - loss_at(curves, "exact", iteration)
    return (start - loss_at(curves, rule, iteration)) / exact if exact > 0 else float("nan")


def ratio(curves: Curves, rule: str, iteration: int) -> float:
    """A rule's loss in units of the exact gradient's; infinite where that has none."""
    exact = loss_at(curves, "exact", iteration)
    return loss_at(curves, rule, iteration) / exact if exact > 0 else np.inf


def always_descends(curves: Curves) -> Judgement:
    """The lowest cosine of all problems, iterations and repeats is positive."""
    lowest = float(curves.of("unconstrained").cosine_min.min())
    return Judgement(lowest > 0, f"minimum cosine {lowest:.2g}")


def works_early(curves: Curves) -> Judgement:
    """Progress in the early part is much of the exact gradient's."""
    share = progress(curves, "unconstrained", early(curves))
    return Judgement(share >= WORKS, f"{share:.0%} of the exact progress at iteration {early(curves)}")


def worse_late(curves: Curves) -> Judgement:
    """The loss ends above the exact gradient's, by a larger factor than early."""
    soon, late = ratio(curves, "unconstrained", early(curves)), ratio(curves, "unconstrained", -1)
    above = curves.of("unconstrained").loss[0, :, -1] > curves.of("exact").loss[0, :, -1]
    return Judgement(
        late > 1 and late > soon,
        f"{late:.3g} times the exact loss at the end, above it in {above.sum()} of {len(above)} repeats; "
        f"{soon:.3g} times at iteration {early(curves)}",
    )


def fails(curves: Curves) -> Judgement:
    """Hardly any progress at the end."""
    share = progress(curves, "unconstrained", -1)
    losses = [loss_at(curves, rule, -1) for rule in ("unconstrained", "exact")]
    return Judgement(share <= FAILS, f"final loss {losses[0]:.3g} where the exact gradient reaches {losses[1]:.2g}")


def rarely_descends(curves: Curves) -> Judgement:
    """Few cosines are positive."""
    mine = curves.of("unconstrained")
    share, by_repeat = float(mine.cosine_positive.mean()), mine.cosine_positive[0].mean(-1)
    batches = float((mine.cosine_mean > 0).mean())
    return Judgement(
        share <= RARELY,
        f"downhill on {share:.0%} of the problems ({by_repeat.min():.0%} to {by_repeat.max():.0%} by repeat); "
        f"the mean cosine of a batch is positive in {batches:.0%} of the steps",
    )


def works_throughout(curves: Curves) -> Judgement:
    """Nearly all of the exact gradient's progress, downhill all the way."""
    share = progress(curves, "unconstrained", -1)
    lowest = float(curves.of("unconstrained").cosine_min.min())
    holds = share >= THROUGHOUT and lowest > 0
    return Judgement(holds, f"{share:.1%} of the exact progress, minimum cosine {lowest:.2g}")


def always_ascends(curves: Curves) -> Judgement:
    """No cosine is positive, and the loss rises."""
    mine = curves.of("unconstrained")
    share, rise = float(mine.cosine_positive.max()), [loss_at(curves, "unconstrained", i) for i in (0, -1)]
    holds = share == 0 and rise[1] > rise[0]
    return Judgement(holds, f"downhill on at most {share:.0%} of a batch, loss {rise[0]:.2g} -> {rise[1]:.2g}")


def means_hide(curves: Curves) -> Judgement:
    """There are steps with a positive mean and a negative minimum."""
    mine = curves.of("unconstrained")
    share = float(((mine.cosine_mean > 0) & (mine.cosine_min < 0)).mean())
    return Judgement(
        share > 0, f"so in {share:.0%} of the steps, with single cosines down to {mine.cosine_min.min():.2g}"
    )


def curvature_is_exact(curves: Curves) -> Judgement:
    """Its lowest cosine is 1."""
    lowest = float(curves.of("curvature").cosine_min.min())
    return Judgement(lowest >= SAME, f"minimum cosine {lowest:.6f}")


def curvature_is_unconstrained(curves: Curves) -> Judgement:
    """Both rules have the same curve."""
    apart = float(np.abs(curves.of("curvature").loss - curves.of("unconstrained").loss).max())
    return Judgement(apart <= 1e-6 * float(np.abs(curves.loss).max()), f"the curves differ by at most {apart:.2g}")


def curvature_helps(curves: Curves) -> Judgement:
    """It ends below the unconstrained rule."""
    ours, theirs, exact = (loss_at(curves, rule, -1) for rule in ("curvature", "unconstrained", "exact"))
    return Judgement(ours < theirs, f"final loss {ours:.2g} against {theirs:.2g} (exact: {exact:.2g})")


def adaptive_keeps_up(curves: Curves) -> Judgement:
    """It ends close to the exact gradient, if not below."""
    ours, exact = (loss_at(curves, rule, -1) for rule in ("adaptive", "exact"))
    same = np.array_equal(curves.of("adaptive").loss, curves.of("exact").loss)
    note = " (never cheap: the same curve)" if same else ""
    return Judgement(ours <= CLOSE * exact, f"final loss {ours:.2g} against {exact:.2g}{note}")


def single_precision_spoils(double: Curves, single: Curves) -> Judgement:
    """The mean cosine is near 1 in double precision, and falls in single precision."""
    late = slice(-(double.loss.shape[-1] // 10 or 1), None)
    means = [float(one.of("unconstrained").cosine_mean[..., late].mean()) for one in (double, single)]
    holds = means[0] >= 0.99 and means[0] - means[1] > ROUND_OFF
    return Judgement(holds, f"mean cosine of the last tenth {means[0]:.4f} in float64 and {means[1]:.4f} in float32")
