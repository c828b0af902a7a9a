"""Mutants of the adaptive rule and of the paper's propositions."""

from __future__ import annotations

from .mutant import Mutant

ADAPTIVE = [
    Mutant(
        "Adaptive._decide",
        "angles >= self.threshold",
        "angles <= self.threshold",
        "a problem agrees if its cosine is low",
        ("library/test_adaptive.py::test_exact_after_a_probe_that_disagrees",),
    ),
    Mutant(
        "Adaptive._decide",
        "self._failed < self.patience",
        "self._failed <= self.patience",
        "patience lasts one probe too long",
        ("library/test_adaptive.py::test_patience_forgives_single_probes",),
    ),
    Mutant(
        "Adaptive.pull",
        "call + self.probe_every",
        "call + self.probe_every + 1",
        "probes come one pass too late",
        ("library/test_adaptive.py::test_probes_are_exact_and_the_rest_is_cheap_while_it_agrees",),
    ),
    Mutant(
        "Adaptive._probe",
        "v.ne(0).any",
        "v.eq(v).any",
        "problems that the loss does not use vote",
        ("library/test_adaptive.py::test_problems_that_the_loss_does_not_use_do_not_vote",),
    ),
    Mutant(
        "Adaptive.pull",
        "bool(w.any())",
        "False",
        "a loss of the multipliers may get the cheap gradient",
        ("library/test_adaptive.py::test_a_loss_of_the_multipliers_is_exact",),
    ),
    Mutant(
        "Adaptive._probe",
        "grad.sum(0)",
        "grad.mean(0)",
        "a probe averages the gradient of a shared input",
        ("library/test_adaptive.py::test_shared_inputs_are_compared_per_problem_and_summed",),
    ),
]

THEORY = [
    Mutant(
        "descent_value",
        "projector.mT",
        "projector",
        "g'g_hat by the transposed projector",
        ("library/test_descent.py::test_descent_value_is_the_papers_formula",),
    ),
    Mutant(
        "projection_spectrum",
        "(a * b).sum(-1).abs()",
        "(a * b).sum(-1)",
        "the spectrum of a projection for an obtuse angle",
        ("library/test_descent.py::test_lemma_2_spectrum_of_a_projection",),
    ),
    Mutant(
        "oblique_projector",
        "rows.mT @ pseudo @ rows @ inverse",
        "rows.mT @ pseudo @ rows",
        "the oblique projector without H",
        ("library/test_descent.py::test_worst_case_is_the_largest_eigenvalue",),
    ),
    Mutant(
        "sharp_upper_bound",
        "4 * condition.sqrt()",
        "2 * condition.sqrt()",
        "the sharp bound is not sharp",
        ("library/test_descent.py::test_sharp_bound_is_attained",),
    ),
    Mutant(
        "expected_normalised",
        "upper / lower",
        "lower / upper",
        "Proposition 2.5 with its fraction upside down",
        ("library/test_descent.py::test_expectation_of_the_normalisation_constraint",),
    ),
    Mutant(
        "normalised_bound",
        "torch.where(case > 0, ratios.amax(-1), ratios.amin(-1))",
        "torch.where(case > 0, ratios.amin(-1), ratios.amax(-1))",
        "the bound of Proposition 2.6 leaves out the wrong end of the spectrum",
        ("library/test_descent.py::test_bound_of_the_normalisation_constraint_is_attained",),
    ),
    Mutant(
        "normalised_case",
        "definite_sign(values) * definite_sign(shifted)",
        "definite_sign(shifted)",
        "Proposition 2.6 for a negative definite Hessian",
        ("library/test_descent.py::test_cases_of_the_normalisation_constraint",),
    ),
    Mutant(
        "expected_quadratic",
        "(matrix * covariance.mT).sum((-2, -1)) + (mean * times(matrix, mean)).sum(-1)",
        "(matrix * covariance.mT).sum((-2, -1))",
        "the expectation of a quadratic form without its mean",
        ("library/test_descent.py::test_lemma_4_expected_quadratic",),
    ),
    Mutant(
        "certify",
        "complement.rows(q) - seen",
        "complement.rows(q)",
        "a certificate for constraints that do not see the input",
        ("library/test_certificate.py::test_never_false_on_random_nodes",),
    ),
    Mutant(
        "decide",
        "high[0] - low[1]",
        "low[0] - low[1]",
        "a certificate that takes the lower bound for the upper one",
        ("library/test_certificate.py::test_bounds_and_the_share_of_the_promise",),
    ),
    Mutant(
        "QuadraticForms.error",
        "self.noise / self.floor.sqrt()",
        "0 * self.noise",
        "a certificate without rounding errors",
        ("library/test_certificate.py::test_rounding_errors_of_the_right_hand_side_belong_to_the_bound",),
    ),
    Mutant(
        "length_of",
        "torch.where((largest > 0) & (largest < torch.inf), largest, 1.0)",
        "torch.ones_like(largest)",
        "a certificate whose quadratic forms underflow",
        ("library/test_certificate.py::test_the_size_of_the_incoming_gradient_does_not_matter",),
    ),
    Mutant(
        "_equilibrated",
        "definite & (info == 0) & (smallest > torch.finfo(hessian.dtype).eps ** 0.5 * largest)",
        "definite & (info == 0)",
        "a certificate for a Hessian that is nearly singular",
        ("library/test_certificate.py::test_pivots_do_not_tell_how_definite_a_matrix_is",),
    ),
    Mutant(
        "expected_weighted",
        "projector @ gram",
        "projector",
        "the expectation for any B forgets B in one of two places",
        ("library/test_theory_extensions.py::test_expectation_for_any_inputs",),
    ),
    Mutant(
        "singular_worst_case",
        "torch.where(unknown, torch.inf, torch.where(exact, 0.0, value))",
        "torch.where(exact, 0.0, value)",
        "the worst case of a singular Hessian whose flat directions are free",
        ("library/test_theory_extensions.py::test_worst_case_of_a_singular_hessian",),
    ),
]
