"""The boundary: the user's functions are called once and looked at before anything is computed with them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from .inputs import first_problem, shapes_of_one
from .problem import Batch, Function, Problem, flat
from .solution import Status
from .torchside import has_tangent, in_transform, is_mapped, map_rows, rounding_mode, versions, without_vmap_warnings
from .user.bounds import Bounds
from .user.functions import UserFunction, as_written, count_weights, functions_of, has_objective, nesting_of
from .user.messages import (
    BUFFERS,
    IN_PLACE,
    LEAVES_TORCH,
    NO_SECOND_DERIVATIVE,
    NO_WAY_TO_U,
    NUMPY,
    VALUE,
    by_numpy,
    captured_message,
    corners_message,
    equations_message,
    explain,
    steps_message,
)
from .user.mixing import Mixing

GIVEN_UP = (Status.ITERATION_LIMIT, Status.STALLED, Status.NOT_OPTIMAL)
Node = torch.autograd.graph.Node

STEPS = ("Round", "Floor", "Ceil", "Trunc", "Sign", "Sgn")
"""Operations whose derivative is zero wherever it exists, by their names in the graph."""

CORNERS = frozenset(
    (
        *("Abs", "Relu", "LeakyRelu", "PreluKernel", "Hardtanh", "Hardsigmoid", "Hardswish", "Softshrink"),
        *("Hardshrink", "Threshold", "Elu", "Celu", "Clamp", "ClampMin", "ClampMax", "Where", "MaskedFill"),
        *("HuberLoss", "SmoothL1Loss", "MultiMarginLoss", "Remainder", "Fmod", "Frac"),
        *("Maximum", "Minimum", "Fmax", "Fmin", "Max", "Min", "Amax", "Amin", "Aminmax", "Cummax", "Cummin"),
        *("Sort", "Topk", "Median", "Kthvalue", "MaxPool2DWithIndices"),
        *("LinalgVectorNorm", "Norm", "Cdist", "Pdist", "LinalgSvd"),
    )
)
"""Operations whose first or second derivative jumps somewhere, or which jump themselves, likewise."""

ONLY_ONCE = frozenset(
    (
        *("Cdist", "Pdist", "Hardsigmoid", "MultiMarginLoss", "MultilabelMarginLoss", "CtcLoss"),
        *("ScaledDotProductFlashAttentionForCpu", "WeightNormInterface"),
    )
)
"""Operations of which torch has no second derivative or, of the last one, a wrong one."""

RENAMED = {
    "ScaledDotProductFlashAttentionForCpu": "scaled_dot_product_attention",
    "WeightNormInterface": "weight_norm",
    "PreluKernel": "prelu",
    "ClampMin": "clamp",
    "ClampMax": "clamp",
    "MaxPool2DWithIndices": "max_pool",
    "LinalgVectorNorm": "norm",
    "LinalgSvd": "svd",
}
"""What users call operations whose names in the graph are others."""


def inspect(batch: Batch, u: Tensor, gradients: bool = True) -> tuple[int, int, tuple[str, ...]]:
    """Call each function once for the batch at u (size, *shape), check what it returns, and count the constraints.

    Args:
        batch: the problems, with the constraints not counted yet.
        u: where to call the functions.
        gradients: whether gradients are recorded around the node's call. If not, captured tensors are constants.

    Returns:
        The number of equalities and of inequalities, without bounds, and the operations with corners, as
        :func:`corners` has them.

    Raises:
        ValueError, TypeError: a function returns the wrong thing, does not depend on u, or reaches a tensor that
            requires a gradient other than through its arguments.
    """
    counts, bent = {"equality": 0, "inequality": 0}, list[str]()
    for name, function in functions_of(batch.problem).items():
        value, found = _call(batch, name, function, u, gradients)
        shape = value.shape[1:]
        bent += [f"{corner} in {name}" for corner in found]
        if name == "objective" and len(shape):
            raise ValueError(
                f"objective must return a scalar for one problem, but returned shape {tuple(shape)}: sum it."
            )
        if name != "objective":
            counts[name] = math.prod(shape)
    if not has_objective(batch.problem.objective) and counts["equality"] != batch.m:
        raise ValueError(equations_message(counts["equality"], batch.m))
    if gradients and batch.problem.bounds is not None:
        _refuse_captured_bounds(batch, batch.problem.bounds, u)
    return counts["equality"], counts["inequality"], tuple(bent)


def _refuse_captured_bounds(batch: Batch, bounds: Bounds, u: Tensor) -> None:
    """A bound that is a function must get what it depends on as arguments, or gradients would be lost."""
    xs = first_problem(batch.xs, batch.in_dims)
    with torch.enable_grad():
        rows = bounds.rows([x.detach() for x in xs], flat(u)[0].detach(), batch.shape)
    if rows.requires_grad:
        raise ValueError(
            "a bound reaches a tensor that requires a gradient other than through its arguments, and that gradient "
            "would be lost: pass the tensor to the node as an input."
        )


def _call(batch: Batch, name: str, function: Function, u: Tensor, gradients: bool) -> tuple[Tensor, list[str]]:
    """What a function returns, once nothing is wrong with it, and its operations with corners."""
    value, probe = _at_probe(batch, name, function, u)
    if not value.is_floating_point():
        raise TypeError(f"{name} must return a floating-point tensor, but returned {value.dtype}.")
    ancestry = Ancestry(value)
    captured = [leaf for leaf in ancestry.leaves if leaf is not probe]
    if gradients and (captured or (in_transform() and value.requires_grad)):
        raise ValueError(captured_message(name, as_written(function), captured))
    if name == "objective" and len(captured) == len(ancestry.leaves) and not in_transform():
        raise ValueError(NO_WAY_TO_U)
    if steps := ancestry.only_steps(probe):
        raise ValueError(steps_message(name, steps))
    if once := ancestry.operations(probe, ONLY_ONCE):
        raise ValueError(f"{name} depends on u through {' and '.join(once)}, {NO_SECOND_DERIVATIVE}")
    return value, ancestry.corners(probe)


def _at_probe(batch: Batch, name: str, function: Function, u: Tensor) -> tuple[Tensor, Tensor]:
    """The function for the batch at a copy of u, and this copy: whatever else requires a gradient was captured."""
    xs = tuple(x.detach() for x in batch.xs)
    probe = u.detach().clone().requires_grad_()
    watched = (*xs, probe)
    before = versions(watched)
    returned: list[object] = []

    def noted(*arguments: Tensor) -> Tensor:
        if mixing is not None:
            mixing.begin(arguments)
        returned.append(function(*arguments))
        return returned[0] if isinstance(returned[0], Tensor) else arguments[-1]

    mixing = _watched(batch, name, function)
    explained = _explained(batch, name, function, u.dtype)
    with torch.enable_grad(), without_vmap_warnings(), explained, mixing or nullcontext():
        (value,) = map_rows(lambda *arguments: (noted(*arguments),), (*batch.in_dims, 0), *watched)
    if not isinstance(returned[0], Tensor):
        several = "" if name == "objective" else ", or a dict or tuple of tensors"
        raise TypeError(f"{name} must return a tensor{several}, but returned {type(returned[0]).__name__}.")
    if mixing is not None:
        mixing.tell()
    if versions(watched) != before:
        passed = len(xs) - count_weights(function)
        buffers = versions(xs[passed:]) != before[passed:-1]
        raise ValueError(f"{name} {BUFFERS if buffers else IN_PLACE}")
    return value, probe


def _watched(batch: Batch, name: str, function: Function) -> Mixing | None:
    """What watches a function with one unknown the first time that it is called for inputs of such shapes."""
    if not isinstance(function, UserFunction) or function.nesting is not None or batch.size < 2:
        return None
    key = tuple(x.shape for x in batch.xs)
    if key in function.mixed:
        return None
    function.mixed.add(key)
    pairs = list(zip(batch.xs, batch.in_dims, strict=True))[: len(batch.xs) - count_weights(function)]
    return Mixing(name, [None if dim is None else x.shape for x, dim in pairs], batch.size)


@contextmanager
def _explained(batch: Batch, name: str, function: Function, dtype: torch.dtype) -> Iterator[None]:
    """Let the user's own exception through, with a note of what the function was called with and what to do."""
    try:
        yield
    except Exception as error:
        if isinstance(error, RuntimeError) and "leaf Variable" in str(error):  # u, which requires a gradient here
            raise ValueError(f"{name} {IN_PLACE}") from error
        if by_numpy(error):
            raise TypeError(f"{name} {NUMPY}") from error
        if re.search(LEAVES_TORCH, str(error)):
            raise ValueError(f"{name} {VALUE}") from error
        passed = len(batch.xs) - count_weights(function)
        shapes = map(tuple, shapes_of_one(batch.xs[:passed], batch.in_dims))
        unknown = nesting_of(function) or tuple(batch.shape)
        error.add_note(explain(error, name, as_written(function), [*shapes, unknown], dtype))
        raise


def corners(batch: Batch, u: Tensor) -> list[str]:  # u: (size, *shape)
    """The operations of the functions with corners or jumps in u, such as ``"abs in objective"``.

    Where a solution sits on a corner, slopes do not vanish at it and a Newton method does not get there.

    Example:
        >>> import torch
        >>> from declarative.problem import Batch, Problem
        >>> problem = Problem(lambda x, u: (u - x).abs().sum() + x.abs().sum(), inequality=lambda x, u: u.amax() - 1)
        >>> batch = Batch(problem, (torch.ones(2, 3),), (0,), 2, torch.Size([3]), 0, 1)
        >>> corners(batch, torch.zeros(2, 3))
        ['abs in objective', 'amax in inequality']
    """
    found = []
    for name, function in functions_of(batch.problem).items():
        value, probe = _at_probe(batch, name, function, u)
        found += [f"{corner} in {name}" for corner in Ancestry(value).corners(probe)]
    return found


def corner_hint(batch: Batch, u: Tensor, codes: Tensor) -> str:  # (size, *shape), (size,)
    """What to say of corners about problems that were given up on; empty if there is nothing to say."""
    given_up = any(bool((codes == status).any()) for status in GIVEN_UP)
    return corners_message(corners(batch, u)) if given_up else ""


def refuse_captured(problem: Problem, xs: Sequence[Tensor], in_dims: Sequence[int | None], u: Tensor) -> None:
    """Refuse a captured tensor of an active ``torch.func`` transform; the inputs here are plain, so it was captured."""
    for name, function in functions_of(problem).items():
        with torch.set_grad_enabled(torch.is_grad_enabled() or in_transform()), without_vmap_warnings():
            value: Tensor = torch.vmap(function, in_dims=(*in_dims, 0))(*xs, u)
        if value.requires_grad or is_mapped(value) or has_tangent(value):
            raise ValueError(captured_message(name, as_written(function), []))


class Ancestry:
    """The operations and the leaf tensors that a value was computed from.

    Example:
        >>> import torch
        >>> u, w = torch.tensor([1.2, -0.3], requires_grad=True), torch.ones(2, requires_grad=True)
        >>> ancestry = Ancestry((u.round() + w * u.abs()).sum())
        >>> len(ancestry.leaves), ancestry.corners(u), ancestry.only_steps(u)
        (2, ['abs', 'round'], [])
        >>> Ancestry((u.round() + w.abs()).sum()).only_steps(u)
        ['round']
    """

    def __init__(self, value: Tensor) -> None:
        self._last = value.grad_fn
        self._users: dict[Node, list[Node]] = {}  # in reverse: which operations use the result of one
        self._leaves: list[tuple[Tensor, Node]] = []
        todo = [] if value.grad_fn is None else [value.grad_fn]
        self._users.update((node, []) for node in todo)
        while todo:
            node = todo.pop()
            if hasattr(node, "variable"):
                self._leaves.append((node.variable, node))
            for parent, _ in node.next_functions:
                if parent is None:
                    continue
                if parent not in self._users:
                    self._users[parent] = []
                    todo.append(parent)
                self._users[parent].append(node)

    @property
    def leaves(self) -> list[Tensor]:
        """The tensors that require a gradient and were not computed themselves."""
        return [leaf for leaf, _ in self._leaves]

    def corners(self, leaf: Tensor) -> list[str]:
        """The operations between a leaf and the value whose derivative, or which themselves, jump somewhere."""
        bent = {node: name for node in self._users if (name := _operation(node, CORNERS) or _step(node)) is not None}
        return sorted({bent[node] for node in self._between(leaf) & bent.keys()}) if bent else []

    def operations(self, leaf: Tensor, among: Container[str]) -> list[str]:
        """Which of these operations stand between a leaf and the value."""
        named = {node: name for node in self._users if (name := _operation(node, among)) is not None}
        return sorted({named[node] for node in self._between(leaf) & named.keys()}) if named else []

    def only_steps(self, leaf: Tensor) -> list[str]:
        """The operations with a derivative of zero, if there is no way from a leaf to the value around them."""
        steps = {step for node in self._users if (step := _step(node)) is not None}
        if not steps or self._last in self._between(leaf, lambda node: _step(node) is None):
            return []
        return sorted({step for node in self._between(leaf) if (step := _step(node)) is not None})

    def _between(self, leaf: Tensor, passable: Callable[[Node], bool] = lambda _: True) -> set[Node]:
        """The operations that use a leaf, or a result of one that does."""
        found: set[Node] = set()
        todo = [node for tensor, node in self._leaves if tensor is leaf]
        while todo:
            node = todo.pop()
            if node not in found and passable(node):
                found.add(node)
                todo.extend(self._users[node])
        return found


def _operation(node: Node, among: Container[str]) -> str | None:
    """What users call the operation of a node, such as ``leaky_relu``; None if it is not among these."""
    name = node.name().partition("Backward")[0]
    if name not in among:
        return None
    return RENAMED.get(name) or re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _step(node: Node) -> str | None:
    rounding = rounding_mode(node)
    return _operation(node, STEPS) if rounding is None else f"div(rounding_mode={rounding!r})"
