"""What a cheaper gradient would cost: the approximate rules against the exact one, in numbers and in words.

The paper's results are functions of :mod:`declarative.theory.propositions`; here they meet the problems of a node.
"""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..gradients import RULES, gradient_rows
from ..implicit import Evaluation
from ..inputs import check_incoming
from ..reports.table import as_html, as_text
from ..structure import Point
from .assumptions import Assumptions
from .matrices import norm, random_like
from .propositions import cosine, descends

APPROXIMATE = ("unconstrained", "curvature", "identity")
EXACT = 0.9999  # a rule whose cosine is above this on every problem is called exact here


@dataclass(frozen=True)
class RuleReport:
    """One approximate rule against the exact one; tensors have one entry per problem, NaN (False) for an unsolved one.

    Attributes:
        name: of the rule.
        g_hat: its gradient, (batch, n).
        product: g'g_hat, (batch,).
        cosine: between g and g_hat, (batch,).
        descends: whether -g_hat descends, (batch,).
        vanishes: whether g_hat is zero although g is not, (batch,).
        expectation: E[g'g_hat] over H^-1 v ~ N(0, I); NaN where no proposition applies, (batch,).
        probability: that the rule descends, for v at random as in the expectation; NaN likewise, (batch,).
        worst_case: the quantity of Proposition 2.2, above 1 if some v makes the rule ascend; NaN likewise, (batch,).
        always: whether the rule is known to descend for every v, (batch,).
        cost: what the rule factorises.
        favourable: whether a result says that the rule descends on average over v, or always, (batch,).
        theory: which result applies, or why none does.
        verdict: one sentence.
    """

    name: str
    g_hat: Tensor
    product: Tensor
    cosine: Tensor
    descends: Tensor
    vanishes: Tensor
    expectation: Tensor
    probability: Tensor
    worst_case: Tensor
    always: Tensor
    favourable: Tensor
    cost: str
    theory: str
    verdict: str = ""


@dataclass(frozen=True)
class DescentReport:
    """What each approximate rule would do to the loss whose gradient at the solutions is v. Prints as a table.

    ``report["curvature"]`` is the :class:`RuleReport` of a rule.

    Attributes:
        g: the exact gradient, inputs flattened and concatenated in order, (batch, n).
        rules: the reports by name.
        assumptions: which of the theory's assumptions hold, and for which problems.
        worst_case_bounds: the lower and upper bound of Proposition 2.2; NaN where H is not definite, (batch,) each.
        solved: the problems that the numbers are about, (batch,).
    """

    g: Tensor
    rules: dict[str, RuleReport]
    assumptions: Assumptions = field(repr=False)
    worst_case_bounds: tuple[Tensor, Tensor]
    solved: Tensor

    def __getitem__(self, name: str) -> RuleReport:
        return self.rules[name]

    def _heading(self) -> str:
        unsolved = int((~self.solved).sum())
        left_out = f" ({unsolved} unsolved, left out)" if unsolved else ""
        problems = "1 problem" if len(self.solved) == 1 else f"{len(self.solved)} problems"
        return f"Descent analysis of {problems}{left_out}: {self.assumptions.describe()}."

    def _table(self) -> tuple[list[str], list[list[str]]]:
        head = [
            "rule",
            "descends",
            "cosine: lowest",
            "mean",
            "g'g_hat: mean",
            "E[g'g_hat]",
            "probability",
            "worst case",
        ]
        head.append("factorises")
        cost = self.assumptions.cost("exact")
        rows = [
            ["exact", _count(self.solved, self.solved), "1", "1", _number(self._exact_product()), "", "1", "", cost]
        ]
        for rule in self.rules.values():
            angles = rule.cosine[self.solved]
            bounds = " in [" + ", ".join(_range(bound[self.solved]) for bound in self.worst_case_bounds) + "]"
            worst = _range(rule.worst_case[self.solved])
            rows.append(
                [
                    rule.name,
                    _count(rule.descends, self.solved),
                    f"{angles.min():.3g}",
                    f"{angles.mean():.3g}",
                    _number(rule.product[self.solved].mean()),
                    _range(rule.expectation[self.solved]),
                    _range(rule.probability[self.solved]),
                    worst + (bounds if worst != NOT_APPLICABLE and "n/a" not in bounds else ""),
                    rule.cost,
                ]
            )
        return head, rows

    def _exact_product(self) -> Tensor:
        return self.g[self.solved].square().sum(-1).mean()

    def __str__(self) -> str:
        verdicts = [f"{rule.name}: {rule.verdict}" for rule in self.rules.values()]
        return "\n".join([self._heading(), "", as_text(*self._table()), "", *verdicts])

    def _repr_html_(self) -> str:
        verdicts = "".join(
            f"<li><b>{html.escape(rule.name)}</b>: {html.escape(rule.verdict)}</li>" for rule in self.rules.values()
        )
        return f"<p>{html.escape(self._heading())}</p>{as_html(*self._table())}<ul>{verdicts}</ul>"


NOT_APPLICABLE = "n/a"


def differentiated_inputs(xs: Sequence[Tensor]) -> list[int]:
    """The positions of the inputs that require a gradient or, if none does, of all floating-point inputs.

    Example:
        >>> differentiated_inputs([torch.ones(2), torch.ones(2, requires_grad=True), torch.tensor([1, 2])])
        [1]
    """
    floating = [i for i, x in enumerate(xs) if isinstance(x, Tensor) and x.is_floating_point()]
    wanted = [i for i in floating if xs[i].requires_grad] or floating
    if not wanted:
        raise ValueError("none of the inputs is a floating-point tensor: there is no gradient to analyse.")
    return wanted


def analyse_call(found: Evaluation, v: Tensor, wanted: Sequence[int]) -> DescentReport:
    """Compare the rules for one call of a node."""
    y, size = found.solution.y, found.inputs.size
    if not size:
        raise ValueError("a batch of no problems cannot be analysed.")
    v = check_incoming(v, y.shape if found.inputs.batched else y.shape[1:]).to(y)
    good = found.solution.converged
    if not good.any():
        raise ValueError("none of the problems was solved: node.solve(x).status says why.")
    return analyse(found.detached().without_failures().point(), v.reshape(size, -1), wanted, good)


def analyse(point: Point, v: Tensor, wanted: Sequence[int], solved: Tensor) -> DescentReport:
    """Compare the rules at the solutions of a batch.

    Args:
        point: the problems at their solutions; failed ones replaced by solved ones.
        v: the gradient of the loss with respect to the solutions, (batch, m).
        wanted: the positions of the inputs whose gradient counts.
        solved: which problems the report is about, (batch,).
    """
    assumptions = Assumptions.of(point, wanted)
    g = gradient_rows(RULES["exact"], point, v, wanted)
    gradients = {name: gradient_rows(RULES[name], point, v, wanted) for name in APPROXIMATE}
    # A gradient that is only round-off beside the others is zero: its direction means nothing.
    size = torch.stack([norm(gradients[name]) for name in ("unconstrained", "curvature")]).amax(0)
    noise = 100 * torch.finfo(g.dtype).eps
    g = torch.where((norm(g) <= noise * size).unsqueeze(-1), 0.0, g)
    reports = {name: _report(name, g, g_hat, assumptions, solved) for name, g_hat in gradients.items()}
    for name, rule in reports.items():
        if bool((rule.cosine[solved] > EXACT).all()):
            same = _is_exact(name, point, wanted) & solved
            reports[name] = dataclasses.replace(rule, always=rule.always | same)
    judged = {
        name: dataclasses.replace(rule, verdict=_verdict(rule, reports, solved)) for name, rule in reports.items()
    }
    bounds = tuple(_masked(x, solved) for x in assumptions.worst_case_bounds)
    return DescentReport(_masked(g, solved), judged, assumptions, (bounds[0], bounds[1]), solved)


def _report(name: str, g: Tensor, g_hat: Tensor, assumptions: Assumptions, solved: Tensor) -> RuleReport:
    prediction = assumptions.predict(name)
    return RuleReport(
        name=name,
        g_hat=_masked(g_hat, solved),
        product=_masked((g * g_hat).sum(-1), solved),
        cosine=_masked(cosine(g, g_hat), solved),
        descends=descends(g, g_hat) & solved,
        vanishes=(norm(g_hat) == 0) & (norm(g) > 0) & solved,
        expectation=_masked(prediction.expectation, solved),
        probability=_masked(prediction.probability, solved),
        worst_case=_masked(prediction.worst_case, solved),
        always=prediction.always & solved,
        favourable=prediction.favourable & solved,
        cost=assumptions.cost(name),
        theory=prediction.text,
    )


def _is_exact(name: str, point: Point, wanted: Sequence[int]) -> Tensor:  # (batch,)
    """Whether a rule gives the exact gradient for every v: what holds for one at random almost surely does."""
    v = random_like(point.u)
    g, g_hat = (gradient_rows(RULES[rule], point, v, wanted) for rule in ("exact", name))
    result: Tensor = norm(g - g_hat) <= torch.finfo(g.dtype).eps ** 0.5 * norm(g)
    return result


def _verdict(rule: RuleReport, reports: dict[str, RuleReport], solved: Tensor) -> str:
    """One plain sentence: what to do, and why. Safe is what is known to descend for every v."""
    total = int(solved.sum())
    angles, expectation = rule.cosine[solved], rule.expectation[solved]
    ascending, vanishing = int((~rule.descends & solved).sum()), int(rule.vanishes.sum())
    here = f"cosine {angles.mean():.2f} here" if total > 1 else f"cosine {angles.item():.2f} here"
    on_average = bool((rule.favourable | ~solved).all())
    chances = rule.probability[solved]
    chance = "" if bool(chances.isnan().all()) else f"with a probability of {_chances(chances)} for v at random, "
    if ascending and on_average:
        return f"caution: {rule.theory}, {chance}but ascends on {ascending} of {total} problems for this v, {here}."
    if ascending:
        others = [f"`{name}`" for name, other in reports.items() if bool((other.descends | ~solved).all())]
        better = f"; {' and '.join(others)} {'does' if len(others) == 1 else 'do'} not" if others else ""
        return f"do not use: ascends on {ascending} of {total} problems{better} ({rule.theory})."
    if vanishing:
        return f"do not use: its gradient is zero on {vanishing} of {total} problems whose exact gradient is not."
    if bool((rule.always | ~solved).all()):
        if bool((angles > EXACT).all()):
            return f"safe: the same direction as the exact gradient on all {total} problems ({rule.theory})."
        return f"safe: descends for every v, {here} ({rule.theory})."
    if on_average:
        return f"likely: {rule.theory}, {chance}{here}."
    if bool((expectation < 0).any()):
        return f"caution: descends on all {total} problems for this v, {here}, but {rule.theory}."
    return f"descends on all {total} problems for this v, {here}; {rule.theory}, so probe it again in training."


def _masked(x: Tensor, solved: Tensor) -> Tensor:
    return torch.where(solved if x.dim() == 1 else solved.unsqueeze(-1), x, torch.nan)


def _count(which: Tensor, solved: Tensor) -> str:
    return f"{int((which & solved).sum())} of {int(solved.sum())}"


def _number(x: Tensor) -> str:
    return f"{x.item():.3g}"


def _chances(x: Tensor) -> str:
    """The least and the largest, neither rounded to what is certain."""
    known = x[~x.isnan()]
    low, high = (
        "above 0.99" if end >= 0.995 else "below 0.01" if end < 0.005 else f"{end:.2f}"
        for end in (known.min().item(), known.max().item())
    )
    return low if low == high else f"{low} to {high}"


def _range(x: Tensor) -> str:
    known = x[~x.isnan()]
    if not len(known):
        return NOT_APPLICABLE
    low, high = _number(known.min()), _number(known.max())
    return low if low == high else f"{low} to {high}"
