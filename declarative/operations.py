"""What a value was computed with, as its autograd graph tells."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .torchside import rounding_mode

Node = torch.autograd.graph.Node

STEPS = {"Round": "round", "Floor": "floor", "Ceil": "ceil", "Trunc": "trunc", "Sign": "sign", "Sgn": "sgn"}
"""Operations whose derivative is zero wherever it exists, by their names in the graph."""

CORNERS = {
    "Abs": "abs",
    "Relu": "relu",
    "LeakyRelu": "leaky_relu",
    "PreluKernel": "prelu",
    "Hardtanh": "hardtanh",
    "Hardsigmoid": "hardsigmoid",
    "Hardswish": "hardswish",
    "Softshrink": "softshrink",
    "Hardshrink": "hardshrink",
    "Threshold": "threshold",
    "Clamp": "clamp",
    "ClampMin": "clamp",
    "ClampMax": "clamp",
    "Maximum": "maximum",
    "Minimum": "minimum",
    "Fmax": "fmax",
    "Fmin": "fmin",
    "Max": "max",
    "Min": "min",
    "Amax": "amax",
    "Amin": "amin",
    "Aminmax": "aminmax",
    "Cummax": "cummax",
    "Cummin": "cummin",
    "Sort": "sort",
    "Topk": "topk",
    "Median": "median",
    "Kthvalue": "kthvalue",
    "MaxPool2DWithIndices": "max_pool",
    "LinalgVectorNorm": "norm",
    "Norm": "norm",
    "Cdist": "cdist",
    "Pdist": "pdist",
    "LinalgSvd": "svd",
    "MultiMarginLoss": "multi_margin_loss",
    "Where": "where",
    "Remainder": "remainder",
    "Fmod": "fmod",
    "Frac": "frac",
}
"""Operations whose derivative jumps somewhere, or which jump themselves, by their names in the graph."""


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
        names = (CORNERS.get(_name(node)) or _step(node) for node in self._between(leaf))
        return sorted({name for name in names if name is not None})

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


def _name(node: Node) -> str:
    return node.name().split("Backward")[0]


def _step(node: Node) -> str | None:
    rounding = rounding_mode(node)
    return STEPS.get(_name(node)) if rounding is None else f"div(rounding_mode={rounding!r})"
