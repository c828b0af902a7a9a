"""Mutants of recording: tracing, simplifying, and the cache of graphs."""

from __future__ import annotations

from .mutant import Mutant

RECORDING = [
    Mutant(
        "declarative/recording/trace.py",
        "self.captured[name] = x",
        "self.captured[name] = x.clone()",
        "captured tensors are frozen",
        ("library/test_recording.py::test_captured_tensors_are_read_anew[newton-in place]",),
    ),
    Mutant(
        "declarative/recording/trace.py",
        "x.dtype in (torch.bool, torch.uint8)",
        "x.dtype in (torch.uint8,)",
        "u[mask] is recorded",
        ("library/test_recording.py::test_what_depends_on_values_is_refused_with_the_remedy[a mask]",),
    ),
    Mutant(
        "declarative/recording/trace.py",
        "if torch.Tag.nondeterministic_seeded in tags:",
        "if False:",
        "random numbers are recorded",
        ("library/test_recording.py::test_random_numbers_are_refused",),
    ),
    Mutant(
        "declarative/recording/trace.py",
        "argument.hex() if isinstance(argument, float)",
        "float if isinstance(argument, float)",
        "a number that has changed is not noticed",
        ("library/test_recording.py::test_a_change_between_forward_and_backward_is_refused_not_mixed_in",),
    ),
    Mutant(
        "declarative/recording/trace.py",
        "else (*about, x.data_ptr())",
        "else about",
        "another captured tensor is not noticed",
        ("library/test_recording.py::test_another_captured_tensor_is_refused_not_mixed_in",),
    ),
    Mutant(
        "declarative/recording/passes.py",
        "return all(kind_of(x) == kind for x, kind in self._captured)",
        "return True",
        "a graph is replayed for a captured tensor of another shape",
        ("library/test_recording.py::test_a_captured_tensor_of_another_shape_is_not_replayed",),
    ),
    Mutant(
        "declarative/recording/passes.py",
        "if _memory(value) in taken or node in self.constant or spread:",
        "if spread:",
        "what is returned may be a constant of the graph",
        ("library/test_recording.py::test_outputs_of_a_graph_own_their_memory",),
    ),
    Mutant(
        "declarative/recording/passes.py",
        "or len(x.users) > 1:",
        "or len(x.users) > 2:",
        "a result that is needed again is overwritten",
        ("library/test_recording.py::test_the_same_numbers_as_called",),
    ),
    Mutant(
        "declarative/recording/passes.py",
        "bool((self.values[argument] == 1).all())",
        "bool((self.values[argument] == 1).any())",
        "a factor with some ones in it is dropped",
        ("library/test_recording.py::test_factors_that_are_one_in_part_stay",),
    ),
    Mutant(
        "declarative/recording/passes.py",
        "return other if multiple == 1 else self._add(node, aten.mul.Scalar, other, multiple)",
        "return other",
        "a multiple of the identity is dropped with its factor",
        ("library/test_recording.py::test_the_same_numbers_as_called",),
    ),
    Mutant(
        "declarative/recording/passes.py",
        "if not _all_same(called, graph(nearby), compared):\n        raise",
        "if False:\n        raise",
        "a graph is not compared with the functions",
        ("library/test_recording.py::test_a_graph_that_does_not_reproduce_the_function_is_refused",),
    ),
    Mutant(
        "declarative/recording/cache.py",
        "key = (key, *(None if x is None else kind_of(x) for x in tensors))",
        "key = (key,)",
        "one graph serves all shapes",
        ("library/test_recording.py::test_the_same_numbers_as_called",),
    ),
    Mutant(
        "declarative/recording/cache.py",
        "if len(cache) >= GRAPHS:",
        "if len(cache) > 100 * GRAPHS:",
        "graphs are never forgotten",
        ("library/test_recording.py::test_the_cache_is_bounded_and_belongs_to_the_node",),
    ),
    Mutant(
        "declarative/recording/cache.py",
        "if torch.is_grad_enabled() and any(x.requires_grad for x in given):",
        "if False:",
        "a graph is replayed where its result is to be differentiated",
        ("library/test_recording.py::test_derivatives_of_a_recorded_node_to_any_order",),
    ),
    Mutant(
        "declarative/recording/cache.py",
        "return any(x.requires_grad for traced in self._functions.values() for x in traced.captured.values())",
        "return False",
        "a captured tensor that comes to need a gradient loses it",
        ("library/test_recording.py::test_a_captured_tensor_that_comes_to_need_a_gradient_is_refused",),
    ),
    Mutant(
        "declarative/recording/cache.py",
        "    def __deepcopy__(self, memo: object) -> Recordings:\n        return Recordings(self.compiling)",
        "    def __deepcopy__(self, memo: object) -> Recordings:\n        return self",
        "copies of a node share their recordings",
        ("library/test_recording.py::test_the_cache_is_bounded_and_belongs_to_the_node",),
    ),
]
