"""The sections on the paper's panels: what was claimed, what came out, panel by panel."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..paper import store
from ..paper.claims import OURS, PAPER, Claim, Verdict
from ..paper.figures import picture
from ..paper.panels import BATCH, NARROW, PANELS, PUBLISHED, WIDE, M
from ..paper.store import Finished
from ..paper.training import LEARNING_RATE
from ..shared.drawing import STYLES
from ..shared.html import badge, mark, table, themed

RULES = {
    "exact": "the derivative of the solution",
    "unconstrained": "the paper's approximation: as if there were no constraints",
    "curvature": "ours: drops the constraints but keeps their curvature",
    "adaptive": "ours: cheap while a probe now and then finds it in line with the exact gradient, exact after that",
}


def introduction() -> str:
    """What the experiments are, and how to read them."""
    rules = "".join(
        f'<li><span class="swatch" style="background:{STYLES[name].colour}"></span><b>{name}</b>: {escape(text)}</li>'
        for name, text in RULES.items()
    )
    published = "; ".join(f"for {family}, {words}" for family, words in PUBLISHED.items())
    return f"""<section id="what">
<h2>What this is</h2>
<p>A small network turns data into the input of an optimisation problem, a layer solves that problem, and the network
learns to make the solution match a target. To learn, the gradient must pass through the solution of the problem.
Doing that exactly costs a linear system with the constraints in it. Gould, Xu, Xu and Liu (2023) asked what happens
if one just leaves the constraints out. These are their experiments again, with two rules of ours beside:</p>
<ul class="rules">{rules}</ul>
<p>Each panel is one problem of size {M}: batches of {BATCH}, a three-layer network that is as wide as its output,
AdamW with a learning rate of {LEARNING_RATE:g}, and data of dimension {NARROW}, or {WIDE} where it says
<i>over-parameterised</i>. All rules start from the same data and weights. Losses and targets are those of the
paper's text. Its published code has others, and ten trials for five: {escape(published)}. Claims about projection and
transport are judged by both.</p>
<p><b>How to read a figure.</b> Above: the loss, each repeat light, their mean dark, with the 95 % interval of the mean
as a band; a rule whose curve is that of another says so, and what counts as early, by our own measure, is left of the
dotted line. Below: the cosine of the angle
between a rule's gradient and the exact one at the input of the layer, at each point of the rule's own curve. The line
is the mean, the shade reaches down to the lowest single problem. Above 0 the rule goes downhill, at 1
it is the exact direction.</p>
</section>"""


def overview(verdicts: Sequence[Verdict]) -> str:
    """Every claim with its verdict."""

    def rows(claims: Sequence[Claim]) -> str:
        return "".join(
            f"<tr><td>{badge(one.holds)}</td><td>{escape(one.claim.text)} "
            f'<span class="why">{escape(one.claim.why)}</span>{_wording(one.claim)}{_parts(one)}</td></tr>'
            for one in verdicts
            if one.claim in claims
        )

    return f"""<section id="claims">
<h2>What holds, and what does not</h2>
<p>{_count(verdicts)} Every verdict is computed from the data of this run; a claim about several panels must hold on
each of them. In italics: why one would expect it.</p>
<h3>The paper's claims, in our words</h3>
<table class="claims">{rows(PAPER)}</table>
<h3>What we add</h3>
<table class="claims">{rows(OURS)}</table>
</section>"""


def again(verdicts: Sequence[Verdict], repeats: int) -> str:
    """The paper's claims on panels that were run with more repeats, if there are any."""
    lines = "".join(
        f"<tr><td>{badge(all(part.holds for part in one.parts.values()))}</td><td>{escape(one.claim.text)}"
        f"{_wording(one.claim)}{_parts(one)}</td></tr>"
        for one in verdicts
        if one.claim in PAPER and one.parts
    )
    return f"""<section id="again">
<h2>Asked again, with {repeats} repeats</h2>
<p>Is it chance where a claim of the paper fails? The panels in question once more, judged by themselves. Where every
repeat says the same, it is not. By the paper's own measure a batch goes downhill if the mean of its cosines is
positive; a coin would say so half of the time.</p>
<table class="claims">{lines}</table>
</section>"""


def _wording(claim: Claim) -> str:
    return f'<p class="why">In the paper: &ldquo;{escape(claim.wording)}&rdquo;</p>' if claim.wording else ""


def _count(verdicts: Sequence[Verdict]) -> str:
    counts = []
    for claims, whose in ((PAPER, "the paper's"), (OURS, "our own")):
        mine = [one.holds for one in verdicts if one.claim in claims]
        counts.append(f"{mine.count(True)} of {len(mine)} of {whose} claims hold")
    return f"Here {' and '.join(counts)}."


def _parts(verdict: Verdict) -> str:
    if not verdict.parts:
        return '<ul class="evidence"><li>not run</li></ul>'
    lines = "".join(
        f'<li>{mark(part.holds)} <a href="#{panel}">{panel}</a>: {escape(part.evidence)}</li>'
        for panel, part in verdict.parts.items()
    )
    return f'<ul class="evidence">{lines}</ul>'


def panel_section(name: str, double: Finished | None, single: Finished | None, verdicts: Sequence[Verdict]) -> str:
    """A panel in both precisions, with the claims about it."""
    runs = [(label, one) for label, one in (("float64", double), ("float32", single)) if one is not None]
    pictures = "".join(themed(picture(one.curves, label)) for label, one in runs)
    said = "".join(
        f"<li>{badge(one.parts[name].holds)} <span>{escape(one.claim.text)} "
        f'<span class="evidence">{escape(one.parts[name].evidence)}</span></span></li>'
        for one in verdicts
        if name in one.parts
    )
    tables = "".join(f"<h4>{label}</h4>{_results(one)}" for label, one in runs)
    return f"""<section id="{name}">
<h2>{escape(PANELS[name].title)} <code>{name}</code></h2>
<div class="figures">{pictures}</div>
<ul class="verdicts">{said}</ul>
{tables}
</section>"""


def precision(shown: bool) -> str:
    """About precision; are there runs in single precision?"""
    beside = (
        "The runs in float32 stand beside those in float64 above."
        if shown
        else "To see it, run the panels in float32 too: <code>python -m experiments run all --dtype both</code>."
    )
    return f"""<section id="precision">
<h2>About precision</h2>
<p>The published curves of the eigenvectors were computed in float32, with a pseudo-inverse that cuts off at a fixed
10<sup>-9</sup>. That is below what float32 can resolve, so that part of what they show is round-off: once the network
has nearly learned, noise is divided by an eigenvalue next to zero. Here the default is float64, with a cut-off that is
scaled to the precision and to the spectrum of each matrix; and the matrix of <code>eigen-rank2</code> is really of
rank 2. {beside} A loss slightly below zero, which occurs in float32, is round-off too.</p>
</section>"""


def _results(one: Finished) -> str:
    rows = []
    for row in store.summarise(one):
        got = dict(zip(store.SUMMARY, row, strict=True))
        spread = f"{got['final_loss_min']:.2g} to {got['final_loss_max']:.2g}"
        cosines = [f"{got['cosine_mean']:.3f}", f"{got['cosine_min']:.3f}", f"{got['cosine_positive']:.0%}"]
        cheap = "" if got["cheap_share"] == "" else f"{got['cheap_share']:.0%}"
        rows.append([got["rule"], f"{got['final_loss_mean']:.3g}", spread, *cosines, cheap])
    return table(["rule", "final loss", "range", "mean cosine", "lowest", "downhill", "cheap steps"], rows)
