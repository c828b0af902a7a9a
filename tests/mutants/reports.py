"""Mutants of the adaptive rule and of the paper's propositions."""

from __future__ import annotations

from .mutant import Mutant

ADAPTIVE = [
    Mutant(
        "declarative/adaptive.py",
        "(angles >= self.threshold)",
        "(angles <= self.threshold)",
        "a problem agrees if its cosine is low",
        ("library/test_adaptive.py::test_exact_after_a_probe_that_disagrees",),
    ),
    Mutant(
        "declarative/adaptive.py",
        "self._failed < self.patience",
        "self._failed <= self.patience",
        "patience lasts one probe too long",
        ("library/test_adaptive.py::test_patience_forgives_single_probes",),
    ),
    Mutant(
        "declarative/adaptive.py",
        "self._due = call + self.probe_every",
        "self._due = call + self.probe_every + 1",
        "probes come one pass too late",
        ("library/test_adaptive.py::test_probes_are_exact_and_the_rest_is_cheap_while_it_agrees",),
    ),
    Mutant(
        "declarative/adaptive.py",
        "used = v.ne(0).any(-1)  #",
        "used = v.eq(v).any(-1)  #",
        "problems that the loss does not use vote",
        ("library/test_adaptive.py::test_problems_that_the_loss_does_not_use_do_not_vote",),
    ),
    Mutant(
        "declarative/adaptive.py",
        "or bool(w.any()):",
        "or False:",
        "a loss of the multipliers may get the cheap gradient",
        ("library/test_adaptive.py::test_a_loss_of_the_multipliers_is_exact",),
    ),
    Mutant(
        "declarative/adaptive.py",
        "grad.sum(0) if one else grad",
        "grad.mean(0) if one else grad",
        "a probe averages the gradient of a shared input",
        ("library/test_adaptive.py::test_shared_inputs_are_compared_per_problem_and_summed",),
    ),
]

THEORY = [
    Mutant(
        "declarative/theory/propositions.py",
        "times(projector.mT, w)",
        "times(projector, w)",
        "g'g_hat by the transposed projector",
        ("library/test_descent.py::test_descent_value_is_the_papers_formula",),
    ),
    Mutant(
        "declarative/theory/propositions.py",
        "inner, product = (a * b).sum(-1).abs(), norm(a) * norm(b)",
        "inner, product = (a * b).sum(-1), norm(a) * norm(b)",
        "the spectrum of a projection for an obtuse angle",
        ("library/test_descent.py::test_lemma_2_spectrum_of_a_projection",),
    ),
    Mutant(
        "declarative/theory/matrices.py",
        "return rows.mT @ pseudo @ rows @ inverse, rank,",
        "return rows.mT @ pseudo @ rows, rank,",
        "the oblique projector without H",
        ("library/test_descent.py::test_worst_case_is_the_largest_eigenvalue",),
    ),
    Mutant(
        "declarative/theory/propositions.py",
        "(condition + 1) / (4 * condition.sqrt())",
        "(condition + 1) / (2 * condition.sqrt())",
        "the sharp bound is not sharp",
        ("library/test_descent.py::test_sharp_bound_is_attained",),
    ),
    Mutant(
        "declarative/theory/propositions.py",
        "(shifted / values).sum(-1) - upper / lower",
        "(shifted / values).sum(-1) - lower / upper",
        "Proposition 2.5 with its fraction upside down",
        ("library/test_descent.py::test_expectation_of_the_normalisation_constraint",),
    ),
    Mutant(
        "declarative/theory/propositions.py",
        "torch.where(case > 0, ratios.amax(-1), ratios.amin(-1))",
        "torch.where(case > 0, ratios.amin(-1), ratios.amax(-1))",
        "the bound of Proposition 2.6 leaves out the wrong end of the spectrum",
        ("library/test_descent.py::test_bound_of_the_normalisation_constraint_is_attained",),
    ),
    Mutant(
        "declarative/theory/propositions.py",
        "return definite_sign(values) * definite_sign(shifted)",
        "return definite_sign(shifted)",
        "Proposition 2.6 for a negative definite Hessian",
        ("library/test_descent.py::test_cases_of_the_normalisation_constraint",),
    ),
    Mutant(
        "declarative/theory/propositions.py",
        "+ (mean * times(matrix, mean)).sum(-1)",
        "",
        "the expectation of a quadratic form without its mean",
        ("library/test_descent.py::test_lemma_4_expected_quadratic",),
    ),
    Mutant(
        "declarative/theory/certificate.py",
        "w, r = complement.rows(q) - seen,",
        "w, r = complement.rows(q),",
        "a certificate for constraints that do not see the input",
        ("library/test_certificate.py::test_never_false_on_random_nodes",),
    ),
    Mutant(
        "declarative/theory/certificate.py",
        "lower, upper = known - (high[0] - low[1]) / 4",
        "lower, upper = known - (low[0] - low[1]) / 4",
        "a certificate that takes the lower bound for the upper one",
        ("library/test_certificate.py::test_bounds_and_the_share_of_the_promise",),
    ),
    Mutant(
        "declarative/theory/certificate.py",
        "return self.noise / self.floor.sqrt()",
        "return 0 * self.noise",
        "a certificate without rounding errors",
        ("library/test_certificate.py::test_rounding_errors_of_the_right_hand_side_belong_to_the_bound",),
    ),
    Mutant(
        "declarative/theory/matrices.py",
        "unit = torch.where((largest > 0) & (largest < torch.inf), largest, 1.0)",
        "unit = torch.ones_like(largest)",
        "a certificate whose quadratic forms underflow",
        ("library/test_certificate.py::test_the_size_of_the_incoming_gradient_does_not_matter",),
    ),
    Mutant(
        "declarative/theory/schur_complement.py",
        "& (smallest > torch.finfo(hessian.dtype).eps ** 0.5 * largest)",
        "",
        "a certificate for a Hessian that is nearly singular",
        ("library/test_certificate.py::test_pivots_do_not_tell_how_definite_a_matrix_is",),
    ),
    Mutant(
        "declarative/theory/extensions.py",
        "(gram - projector @ gram)",
        "(gram - projector)",
        "the expectation for any B forgets B in one of two places",
        ("library/test_theory_extensions.py::test_expectation_for_any_inputs",),
    ),
    Mutant(
        "declarative/theory/extensions.py",
        "torch.where(unknown, torch.inf, torch.where(exact, 0.0, value))",
        "torch.where(exact, 0.0, value)",
        "the worst case of a singular Hessian whose flat directions are free",
        ("library/test_theory_extensions.py::test_worst_case_of_a_singular_hessian",),
    ),
]
