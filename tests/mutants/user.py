"""Mutants of what looks at a user's functions, inputs and modules, and of what is said about them."""

from __future__ import annotations

from .mutant import Mutant

USER = [
    Mutant(
        "to_be_contained",
        "id(owners[name]) not in taken",
        "True",
        "a node contains a module twice, which keeps the parameters of a functional call",
        ("library/test_modules.py::test_parameters_of_one_call_do_not_stay[two methods]",),
    ),
    Mutant(
        "to_be_contained",
        "(node, *_being_made())",
        "(node,)",
        "a node contains what the module under construction contains",
        ("library/test_modules.py::test_parameters_of_one_call_do_not_stay[in a constructor]",),
    ),
    Mutant(
        "as_contained",
        "found[other].get_submodule(path)",
        "owners[name]",
        "a module is replaced for one of its functions only",
        ("library/test_modules.py::test_what_takes_the_place_of_a_module_does_so_for_all_of_its_functions",),
    ),
    Mutant(
        "PutTogether.__torch_function__",
        "PUT_TOGETHER.get(func, func)",
        "func",
        "normalisations have the third derivatives of torch",
        ("library/test_normalisation.py::test_second_derivatives[layer_norm]",),
    ),
    Mutant(
        "boundary._call",
        "ancestry.operations(probe, ONLY_ONCE)",
        "[]",
        "a wrong second derivative of a weight norm is worked with",
        ("library/test_normalisation.py::test_what_has_no_second_derivative_is_refused[weight_norm]",),
    ),
    Mutant(
        "is_minimum",
        "directions = directions.to(terms.u.dtype)",
        "pass",
        "flat directions are in double precision where functions cannot be",
        ("library/test_single_precision_constants.py::test_every_problem_is_solved_or_has_a_status[flat-newton]",),
    ),
    Mutant(
        "check._optimality_lines",
        "not bool(feasible.any())",
        "False",
        "slopes of points that satisfy no constraint pass",
        ("library/test_check.py::test_where_nothing_was_solved_no_line_passes_by_chance[sparse]",),
    ),
    Mutant(
        "Mixing._look",
        "passed == u",
        "False",
        "one problem is taken for a batch of scalars without a word",
        (
            "library/test_misuse.py::test_tensors_that_broadcast_against_the_unknown_are_told_once[one problem taken for three]",
        ),
    ),
    Mutant(
        "boundary._watched",
        "function.mixed.add(key)",
        "pass",
        "what broadcasts is told in every call",
        ("library/test_misuse.py::test_tensors_that_broadcast_against_the_unknown_are_told_once[in a constraint]",),
    ),
    Mutant(
        "UserFunction._flat",
        "value.dim() <= 1",
        "value.dim() <= 2",
        "the multipliers of a matrix of constraints are a vector",
        ("library/test_misuse.py::test_a_matrix_of_constraints_has_multipliers_like_it",),
    ),
    Mutant(
        "as_one_step",
        "'torch._dynamo' not in sys.modules",
        "True",
        "the compiler of torch looks into what a node calls",
        ("torch/test_models.py::test_layers_in_a_compiled_function[sphere, newton-eager]",),
    ),
]
