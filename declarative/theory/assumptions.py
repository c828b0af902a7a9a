"""Which of the theory's assumptions hold at the solutions of a batch, and what the theory says there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..gradients import as_rows
from ..problem import Batch
from ..structure import Point
from .extensions import expected_singular, singular_worst_case
from .matrices import random_like, rank_of_rows
from .probability import (
    chance_of_positive,
    form_of_curvature,
    form_of_identity,
    form_of_unconstrained,
    never_negative,
)
from .propositions import (
    expected_curvature,
    expected_identity,
    expected_linear,
    expected_normalised,
    normalised_case,
    reduced_curvature,
    worst_case,
    worst_case_bounds,
)

LARGE = 1000  # variables; beyond that the Hessians are not formed and the theory is left out


@dataclass(frozen=True)
class Prediction:
    """What the theory says about a rule, one entry per problem."""

    expectation: Tensor  # E[g'g_hat] over H^-1 v ~ N(0, I); NaN: does not apply
    worst_case: Tensor  # NaN: does not apply
    favourable: Tensor  # a result says that the rule descends on average, or always
    text: str
    spectrum: Tensor | None = None  # of the quadratic form g'g_hat over the same w; NaN: does not apply

    @property
    def probability(self) -> Tensor:
        """That the rule descends for such a w; NaN where nothing is known."""
        if self.spectrum is None:
            return torch.full_like(self.expectation, torch.nan)
        return chance_of_positive(self.spectrum)

    @property
    def always(self) -> Tensor:
        """Where the rule is known to descend for every v."""
        if self.spectrum is None:
            return torch.zeros_like(self.favourable)
        return never_negative(self.spectrum)


@dataclass(frozen=True)
class Assumptions:
    """The matrices of the theory and the assumptions that hold, one entry per problem.

    Attributes:
        hessian, hessian_hat: H and H_hat, (batch, m, m); empty (m = 0) if there are too many variables to form them.
        jacobian: A, the rows of inactive constraints zero, (batch, k, m).
        independent: C = 0, the constraints do not see the inputs.
        scale: c^2 where B B' = c^2 I, else NaN.
        linear: the active constraints have no curvature.
        normalised: there is one active constraint, and its curvature is a multiple of the identity.
        rank: the number of independent active constraints.
    """

    variables: int
    structured: bool
    hessian: Tensor
    hessian_hat: Tensor
    jacobian: Tensor
    independent: Tensor
    scale: Tensor
    linear: Tensor
    normalised: Tensor
    rank: Tensor

    @classmethod
    def of(cls, point: Point, wanted: Sequence[int]) -> Assumptions:
        """Test the assumptions by random vectors: an identity that holds for one of them holds almost surely."""
        batch, u = point.batch, point.u
        if batch.m > LARGE:
            return cls._untested(point)
        jacobian = batch.jacobian(u) * point.active.to(u.dtype).unsqueeze(-1)
        hessian, hessian_hat = batch.hessian(u, point.multipliers), batch.hessian(u)
        linear, normalised = _constraint_kinds(point, hessian_hat, jacobian)
        return cls(
            variables=batch.m,
            structured=point.builder is not None,
            hessian=hessian,
            hessian_hat=hessian_hat,
            jacobian=jacobian,
            independent=_independent(batch, point, jacobian, wanted),
            scale=_input_scale(batch, point, wanted),
            linear=linear,
            normalised=normalised,
            rank=rank_of_rows(jacobian),
        )

    @classmethod
    def _untested(cls, point: Point) -> Assumptions:
        """Problems with too many variables: no matrix is formed."""
        size, unknown = point.batch.size, torch.zeros_like(point.active[:, :0]).any(-1)
        matrix = point.u.new_zeros(size, 0, 0)
        return cls(
            variables=point.batch.m,
            structured=point.builder is not None,
            hessian=matrix,
            hessian_hat=matrix,
            jacobian=point.u.new_zeros(size, point.batch.k, 0),
            independent=unknown,
            scale=point.u.new_full((size,), torch.nan),
            linear=unknown,
            normalised=unknown,
            rank=unknown.long(),
        )

    @property
    def computed(self) -> bool:
        """Whether the problems are small enough."""
        return self.variables <= LARGE

    @property
    def applies(self) -> Tensor:
        """Where C = 0 and B B' = c^2 I, which all the results assume."""
        return self.independent & ~self.scale.isnan()

    @property
    def worst_case_bounds(self) -> tuple[Tensor, Tensor]:
        """Of Proposition 2.2; NaN where H is not definite, no constraint is active or others are assumed."""
        if not self.computed:
            return self._not_applicable(), self._not_applicable()
        lower, upper = worst_case_bounds(self.hessian)
        valid = self.applies & (self.rank > 0) & ~upper.isnan()
        return torch.where(valid, lower, torch.nan), torch.where(valid, upper, torch.nan)

    def _not_applicable(self) -> Tensor:
        return torch.full_like(self.scale, torch.nan)

    def predict(self, name: str) -> Prediction:
        """What the theory says about the rule of this name."""
        if not self.computed or not self.applies.any():
            nothing = self._not_applicable()
            return Prediction(nothing, nothing, torch.zeros_like(self.linear), f"theory does not apply: {self._why()}")
        predict = {"unconstrained": self._unconstrained, "curvature": self._curvature, "identity": self._identity}
        found = predict[name]()
        expectation = torch.where(self.applies, self.scale * found.expectation, torch.nan)
        worst = torch.where(self.applies & (self.rank > 0), found.worst_case, torch.nan)
        text = found.text
        known = int((self.applies & (~expectation.isnan() | found.favourable)).sum())
        if 0 < known < len(expectation):
            text = f"on the {known} of {len(expectation)} problems that the theory applies to, {text}"
        spectrum = torch.where(self.applies.unsqueeze(-1), self.spectrum(name), torch.nan)
        return Prediction(expectation, worst, found.favourable & self.applies, text, spectrum)

    def spectrum(self, name: str) -> Tensor:  # (batch, m)
        """The eigenvalues of g'g_hat of the rule of this name as a form in w = H^-1 v."""
        if name == "unconstrained":
            return form_of_unconstrained(self.hessian, self.hessian_hat, self.jacobian)
        return (form_of_identity if name == "identity" else form_of_curvature)(self.hessian, self.jacobian)

    def _why(self) -> str:
        if not self.computed:
            return f"not computed for more than {LARGE} variables"
        if not self.independent.any():
            return "the constraints depend on the input"
        return "B B' is not a multiple of I"

    def _unconstrained(self) -> Prediction:
        if not self.rank.any():
            return self._exact()
        a = self.jacobian.sum(-2)  # the one active row where the constraint is a normalisation
        difference = (self.hessian_hat - self.hessian).diagonal(dim1=-2, dim2=-1)
        multiplier = difference.mean(-1)  # H = H_hat - l I
        linear = expected_linear(self.hessian, self.jacobian)
        curved = expected_normalised(self.hessian_hat, multiplier, a)
        expectation = torch.where(
            self.linear, linear, torch.where(self.normalised, curved, torch.full_like(linear, torch.nan))
        )
        worst = torch.where(self.linear, worst_case(self.hessian, self.jacobian), torch.nan)
        case = torch.where(self.normalised, normalised_case(self.hessian_hat, multiplier), 0)
        return Prediction(expectation, worst, expectation >= 0, self._unconstrained_text(expectation, case))

    def _unconstrained_text(self, expectation: Tensor, case: Tensor) -> str:
        known = ~expectation.isnan()
        if not known.any():
            curved = ~(self.linear | self.normalised)
            why = "the constraints are curved, and not spheres" if curved.all() else "H or H_hat is singular"
            return f"theory does not apply: {why}"
        if bool((self.linear | ~known).all()):
            return "constraints are linear, descends on average"
        ascending = int((expectation < 0).sum())
        outside = " (Proposition 2.6)" if bool((case[known] != 0).all()) else " (Proposition 2.5)"
        if not ascending:
            return f"normalisation constraint with a multiplier that lets it descend on average{outside}"
        return f"on average over v it ascends on {ascending} of {int(known.sum())} problems{outside}"

    def _curvature(self) -> Prediction:
        if not self.rank.any():
            return self._exact()
        regular, worst = (of(self.hessian, self.jacobian) for of in (expected_curvature, worst_case))
        beyond, worst_beyond = (of(self.hessian, self.jacobian) for of in (expected_singular, singular_worst_case))
        expectation = torch.where(regular.isnan(), beyond, regular)  # a singular H is none of the paper's cases
        worst = torch.where(regular.isnan(), worst_beyond, worst)
        text = "the constraints' curvature is kept, descends on average"
        if expectation.isnan().all():
            text = "theory does not apply: the KKT matrix is singular"
        return Prediction(expectation, worst, expectation >= 0, text)

    def _identity(self) -> Prediction:
        expectation = expected_identity(self.hessian, self.jacobian)
        always = reduced_curvature(self.hessian, self.jacobian) > 0
        text = "descends for every v at a strict minimum"
        if not always.all():
            text = f"{int((~always).sum())} of {len(always)} solutions are no strict minima, no guarantee"
        return Prediction(expectation, self._not_applicable(), always, text)

    def _exact(self) -> Prediction:
        expectation = torch.full_like(self.scale, float(self.variables))
        return Prediction(
            expectation, self._not_applicable(), torch.ones_like(self.linear), "no constraint is active, exact"
        )

    def cost(self, name: str) -> str:
        """What a rule factorises."""
        m, k = self.variables, self.jacobian.shape[-2]
        words = {
            "exact": f"H ({m} x {m}) and A H^-1 A' ({k} x {k})" if k else f"H ({m} x {m})",
            "unconstrained": f"H_hat ({m} x {m})",
            "curvature": f"H ({m} x {m})",
            "identity": "nothing",
        }[name]
        return f"{words}, structured" if self.structured and name != "identity" else words

    def describe(self) -> str:
        """The problems in words."""
        m = f"m = {self.variables} variable" + "s" * (self.variables != 1)
        constraints = "constraint" + "s" * (self.jacobian.shape[-2] != 1)
        if not self.computed:
            return f"{m}, {self.jacobian.shape[-2]} {constraints}; theory {self._why()}"
        low, high = int(self.rank.min()), int(self.rank.max())
        count = f"p = {low}" if low == high else f"p = {low} to {high}"
        kinds = [("linear", self.linear & (self.rank > 0)), ("a normalisation", self.normalised)]
        words = [kind for kind, which in kinds if which.all()]
        assumptions = f"theory does not apply ({self._why()})"
        if self.applies.any():
            assumptions = "C = 0, B B' = c^2 I"
        return ", ".join([m, f"{count} independent active {constraints}", *words]) + f"; {assumptions}"


def _tolerance(x: Tensor) -> float:
    return float(torch.finfo(x.dtype).eps ** 0.5)


def _independent(batch: Batch, point: Point, jacobian: Tensor, wanted: Sequence[int]) -> Tensor:
    """Whether C = 0 in the active rows: C's = 0 for a random s."""
    if not batch.k:
        return torch.ones(batch.size, dtype=torch.bool, device=point.u.device)
    s = random_like(point.multipliers) * point.active
    shift = as_rows(batch.pullback_each(point.u, None, torch.zeros_like(point.u), s, wanted), point.u)
    size = (s.abs() * torch.linalg.vector_norm(jacobian, dim=-1)).sum(-1)  # of the same sum with A in place of C
    result: Tensor = torch.linalg.vector_norm(shift, dim=-1) <= _tolerance(point.u) * size
    return result


def _input_scale(batch: Batch, point: Point, wanted: Sequence[int]) -> Tensor:
    """c^2 where B B' = c^2 I, from B B'z for a random z."""
    z = random_like(point.u)
    result: Any = torch.func.vjp(lambda z: batch.pullback_each(point.u, point.multipliers, z, None, wanted), z)
    pulled, transposed = result  # -B'z, and the transpose of that
    (image,) = transposed(pulled)  # B B'z
    scale = (image * z).sum(-1) / z.square().sum(-1)
    distance = torch.linalg.vector_norm(image - scale.unsqueeze(-1) * z, dim=-1)
    close = distance <= _tolerance(z) * torch.linalg.vector_norm(image, dim=-1)
    return torch.where(close & (scale > 0), scale, torch.nan)


def _constraint_kinds(point: Point, hessian_hat: Tensor, jacobian: Tensor) -> tuple[Tensor, Tensor]:
    """Where the active constraints are linear, and where there is just one and its Hessian is a multiple of I."""
    batch, u = point.batch, point.u
    weights = (0.5 + random_like(point.multipliers).abs()) * point.active  # none of them near zero
    curvature = hessian_hat - batch.hessian(u, weights)  # sum_i weight_i D^2_UU c_i
    reach = u.abs().amax(-1).clamp(min=1.0)
    size = (weights * torch.linalg.vector_norm(jacobian, dim=-1)).sum(-1) / reach
    noise = 100 * torch.finfo(u.dtype).eps * hessian_hat.abs().amax((-2, -1))
    linear = curvature.abs().amax((-2, -1)) <= _tolerance(u) * size + noise
    mean = curvature.diagonal(dim1=-2, dim2=-1).mean(-1)
    identity = torch.eye(batch.m, dtype=u.dtype, device=u.device)
    distance = (curvature - mean[:, None, None] * identity).abs().amax((-2, -1))
    normalised = ~linear & (point.active.sum(-1) == 1) & (distance <= _tolerance(u) * mean.abs() + noise)
    return linear, normalised
