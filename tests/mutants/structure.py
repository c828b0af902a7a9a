"""Mutants of bounds and of the sparse structure."""

from __future__ import annotations

from .mutant import Mutant

BOUNDS = [
    Mutant(
        "declarative/user/bounds.py",
        "excess = self.sign * (u - self.entries(",
        "excess = (u - self.entries(",
        "a lower bound is taken for an upper one",
        ("library/test_bounds.py::test_a_box_is_a_clamp[newton]",),
    ),
    Mutant(
        "declarative/user/bounds.py",
        "return rows.new_zeros(len(rows), m).index_copy(1, self.places, rows)",
        "return rows",
        "multipliers of bounds are not put where they belong",
        ("library/test_bounds.py::test_bounds_equal_the_same_as_inequalities[False-dense]",),
    ),
    Mutant(
        "declarative/user/bounds.py",
        "u = torch.where(lower.isfinite(), torch.maximum(u, above), u)",
        "u = u + 0",
        "a start outside stays there",
        ("library/test_bounds.py::test_iterates_stay_inside",),
    ),
    Mutant(
        "declarative/forward.py",
        "raw = dataclasses.replace(raw, y=torch.where((codes == 0).unsqueeze(-1), flat(within), raw.y))",
        "pass",
        "solutions miss bounds by rounding errors",
        ("library/test_bounds.py::test_a_box_is_a_clamp",),
    ),
    Mutant(
        "declarative/statement.py",
        "pair = bounds.multipliers(rows[:, proper:], m)",
        "pair = bounds.multipliers(rows[:, : rows.shape[-1] - proper], m)",
        "multipliers of inequalities are taken for those of bounds",
        ("library/test_bounds.py::test_bounds_equal_the_same_as_inequalities[False-dense]",),
    ),
]

SPARSE = [
    Mutant(
        "declarative/linear/sparse/elimination.py",
        "            coupling = coupling - y * c\n",
        "",
        "what a pair of columns does to what connects the next pair is forgotten",
        ("library/test_sparse_factor.py::test_solutions_and_inertia_are_those_of_dense_matrices",),
    ),
    Mutant(
        "declarative/linear/sparse/elimination.py",
        "store(below, t + beside, load(below, t + beside, lanes) - (x * b + y * d), lanes)",
        "store(below, t + beside, load(below, t + beside, lanes) - x * b, lanes)",
        "the second column of a pair is not eliminated from the second column of another",
        ("library/test_sparse_factor.py::test_solutions_and_inertia_are_those_of_dense_matrices",),
    ),
    Mutant(
        "declarative/linear/sparse/elimination.py",
        "where_less(determinants, none, one, where_less(none, hs, two, none))",
        "where_less(determinants, none, one, where_less(none, hs, none, two))",
        "a definite pair counts as its opposite",
        ("library/test_sparse_factor.py::test_solutions_and_inertia_are_those_of_dense_matrices",),
    ),
    Mutant(
        "declarative/linear/sparse/substitution.py",
        "                two = two - load(lower, p + beside, lanes) * known\n",
        "",
        "the second column of a pair is not substituted",
        ("library/test_sparse_factor.py::test_solutions_and_inertia_are_those_of_dense_matrices",),
    ),
    Mutant(
        "declarative/linear/sparse/entries.py",
        "return found + entries.multiply(_picked(values, which), vectors) if len(entries) else found",
        "return found",
        "a symmetric matrix is multiplied by its lower triangle alone",
        ("library/test_sparse_nodes.py::test_twins_agree[banded-False]",),
    ),
    Mutant(
        "declarative/linear/sparse/torch_factor.py",
        "now = (left / torch.maximum(total, FADED * most))",
        "now = (left / torch.maximum(total, SMALLEST * most))",
        "where all unknowns are held, rounding errors are taken for a matrix that cannot be solved",
        (
            "library/test_sparse_factor.py"
            "::test_vertices_are_solved_and_hardly_any_needs_an_order_of_its_own[simplex-torch]",
        ),
    ),
    Mutant(
        "declarative/linear/sparse/kkt.py",
        "better = lost[rows] & (now < error[rows])",
        "better = lost[rows] & (now > error[rows])",
        "a problem does not get the solution by the order that was made for it",
        ("library/test_sparse_factor.py::test_an_order_of_its_own_is_made_once[torch]",),
    ),
    Mutant(
        "declarative/linear/forms.py",
        "return self.jacobian_form.scale_rows(self.jacobian, mask), 1 - mask",
        "return self.jacobian, 1 - mask",
        "inactive constraints count in a sparse system",
        ("library/test_sparse_nodes.py::test_twins_agree[all inactive-False]",),
    ),
    Mutant(
        "declarative/linear/sparse/system.py",
        "signs = torch.where(convex, 1, -1)",
        "signs = torch.where(convex, 1, 1)",
        "a saddle point of a sparse problem passes for a minimum",
        ("library/test_sparse_nodes.py::test_a_saddle_point_is_no_solution",),
    ),
    Mutant(
        "declarative/linear/sparse/layout.py",
        "forward = products(transpose(), recipe.forward_seeds(u), u)",
        "forward = 2 * products(transpose(), recipe.forward_seeds(u), u)",
        "the Jacobian is doubled",
        ("library/test_sparse_nodes.py::test_twins_agree[banded-False]",),
    ),
    Mutant(
        "declarative/structure.py",
        'return not bool(batch.evaluate("misses", _has_other_entries, u, multipliers, z, s, by_problem=True).any())',
        "return True",
        "a pattern that does not hold is not noticed",
        ("library/test_sparse_nodes.py::test_a_pattern_that_does_not_hold_any_more_is_told_and_left",),
    ),
    Mutant(
        "declarative/recording/compiler.py",
        "return lambda *inputs: function(*inputs, *captured)",
        "held = [x.clone() for x in captured]\n    return lambda *inputs: function(*inputs, *held)",
        "compiled code reads captured tensors once",
        ("library/test_compiler.py::test_captured_tensors_are_read_anew",),
    ),
    Mutant(
        "declarative/linear/sparse/layout.py",
        "convex & regular & (error <= LOST)",
        "convex & (error <= LOST)",
        "a singular sparse matrix is trusted where there is nothing to solve",
        ("library/test_verdicts.py::test_a_sparse_matrix_that_is_singular_is_not_trusted_with_a_zero",),
    ),
]
