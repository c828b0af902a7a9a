"""Mutants of bounds and of the sparse structure."""

from __future__ import annotations

from .mutant import Mutant

BOUNDS = [
    Mutant(
        "Side.rows",
        "self.sign * (u - self.entries(xs, shape if callable(self.value) else u.shape, u))",
        "u - self.entries(xs, shape if callable(self.value) else u.shape, u)",
        "a lower bound is taken for an upper one",
        ("library/test_bounds.py::test_a_box_is_a_clamp[newton]",),
    ),
    Mutant(
        "Side.spread",
        "rows.new_zeros(len(rows), m).index_copy(1, self.places, rows)",
        "rows",
        "multipliers of bounds are not put where they belong",
        ("library/test_bounds.py::test_bounds_equal_the_same_as_inequalities[False-dense]",),
    ),
    Mutant(
        "Bounds.inside",
        "torch.where(lower.isfinite(), torch.maximum(u, above), u)",
        "u + 0",
        "a start outside stays there",
        ("library/test_bounds.py::test_iterates_stay_inside",),
    ),
    Mutant(
        "forward.solve",
        "raw = dataclasses.replace(raw, y=torch.where((codes == 0).unsqueeze(-1), flat(within), raw.y))",
        "pass",
        "solutions miss bounds by rounding errors",
        ("library/test_bounds.py::test_a_box_is_a_clamp",),
    ),
    Mutant(
        "_with_multipliers_of_bounds",
        "rows[:, proper:]",
        "rows[:, :rows.shape[-1] - proper]",
        "multipliers of inequalities are taken for those of bounds",
        ("library/test_bounds.py::test_bounds_equal_the_same_as_inequalities[False-dense]",),
    ),
]

SPARSE = [
    Mutant(
        "elimination.hpp",
        "coupling -= y * c;",
        "",
        "what a pair of columns does to what connects the next pair is forgotten",
        ("library/test_sparse_factor.py::test_solutions_and_inertia_are_those_of_dense_matrices",),
    ),
    Mutant(
        "elimination.hpp",
        "(x * b + y * d)",
        "x * b",
        "the second column of a pair is not eliminated from the second column of another",
        ("library/test_sparse_factor.py::test_solutions_and_inertia_are_those_of_dense_matrices",),
    ),
    Mutant(
        "elimination.hpp",
        "where_less<L>(none, h, two, none)",
        "where_less<L>(none, h, none, two)",
        "a definite pair counts as its opposite",
        ("library/test_sparse_factor.py::test_solutions_and_inertia_are_those_of_dense_matrices",),
    ),
    Mutant(
        "substitution.hpp",
        "two -= load<L>(lower, p + beside) * known;",
        "",
        "the second column of a pair is not substituted",
        ("library/test_sparse_factor.py::test_solutions_and_inertia_are_those_of_dense_matrices",),
    ),
    Mutant(
        "LowerTriangle.multiply",
        "found + entries.multiply(_picked(values, which), vectors) if len(entries) else found",
        "found",
        "a symmetric matrix is multiplied by its lower triangle alone",
        ("library/test_sparse_nodes.py::test_twins_agree[banded-False]",),
    ),
    Mutant(
        "TorchFactor.solve",
        "FADED * most",
        "SMALLEST * most",
        "where all unknowns are held, rounding errors are taken for a matrix that cannot be solved",
        (
            "library/test_sparse_factor.py"
            "::test_vertices_are_solved_and_hardly_any_needs_an_order_of_its_own[simplex-torch]",
        ),
    ),
    Mutant(
        "LdlFactorisation._rescue",
        "now < error[rows]",
        "now > error[rows]",
        "a problem does not get the solution by the order that was made for it",
        ("library/test_sparse_factor.py::test_an_order_of_its_own_is_made_once[torch]",),
    ),
    Mutant(
        "StoredSystem.active_rows",
        "self.jacobian_form.scale_rows(self.jacobian, mask)",
        "self.jacobian",
        "inactive constraints count in a sparse system",
        ("library/test_sparse_nodes.py::test_twins_agree[all inactive-False]",),
    ),
    Mutant(
        "expansion.product",
        "(s * values).sum()",
        "0 * (s * values).sum()",
        "the pattern is checked without the constraints",
        ("library/test_sparse_nodes.py::test_twins_agree",),
    ),
    Mutant(
        "structure_at",
        "structure if bool(_probe_diagonal(batch, u, given)[1]) else 'dense'",
        "structure",
        "a dense Hessian is never judged at a glance",
        ("library/test_structure.py::test_a_dense_hessian_is_judged_at_a_glance",),
    ),
    Mutant(
        "_rows_alone",
        "torch.stack(rows, -2)",
        "torch.stack(rows, -1)",
        "rows of a Jacobian that are found alone are columns",
        ("library/test_derivatives.py::test_rows_that_are_found_alone_are_the_same",),
    ),
    Mutant(
        "SparseFactorisation.curvature",
        "torch.where(convex, 1, -1)",
        "torch.where(convex, 1, 1)",
        "a saddle point of a sparse problem passes for a minimum",
        ("library/test_sparse_nodes.py::test_a_saddle_point_is_no_solution",),
    ),
    Mutant(
        "SparseLayout.jacobian_values",
        "products(transpose(), recipe.forward_seeds(u), u)",
        "2 * products(transpose(), recipe.forward_seeds(u), u)",
        "the Jacobian is doubled",
        ("library/test_sparse_nodes.py::test_twins_agree[banded-False]",),
    ),
    Mutant(
        "holds",
        "not bool(batch.evaluate('misses', _has_other_entries, *rows, by_problem=True).any())",
        "True",
        "a pattern that does not hold is not noticed",
        ("library/test_sparse_nodes.py::test_a_pattern_that_does_not_hold_any_more_is_told_and_left",),
    ),
    Mutant(
        "compiler.compiled",
        "return lambda *inputs: function(*inputs, *captured)",
        "held = [x.clone() for x in captured]\nreturn lambda *inputs: function(*inputs, *held)",
        "compiled code reads captured tensors once",
        ("library/test_compiler.py::test_captured_tensors_are_read_anew",),
    ),
    Mutant(
        "SparseLayout.solve_active",
        "convex & regular",
        "convex",
        "a singular sparse matrix is trusted where there is nothing to solve",
        ("library/test_verdicts.py::test_a_sparse_matrix_that_is_singular_is_not_trusted_with_a_zero",),
    ),
]
