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
        "as_one_step",
        "frames.set_code_exec_strategy(one_step.__code__, skip)",
        "pass",
        "the compiler of torch looks into a node",
        (
            "torch/test_models.py::"
            "test_the_compiler_of_torch_is_not_imported_and_looks_into_no_node_when_it_is_there",
        ),
    ),
]
