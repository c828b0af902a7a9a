"""One operation of a traced function, and the two rules that most operations follow: entry by entry, and moved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx.node import map_aggregate

from ...torchside import defaults_of
from .index_sets import Algebra, Array, Sets, Traced, flat, positions

Rule = Callable[["Call"], Sequence[Sets | None]]  # one for every result of the operation; raises Unruly


class Unruly(Exception):  # noqa: N818
    """A rule does not cover this use of its operation."""


@dataclass(frozen=True)
class Call:
    """An operation with its arguments, tensors among them as :class:`Traced`, and its result for an example."""

    target: Any  # torch.ops.aten....
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    algebra: Algebra

    @cached_property
    def named(self) -> dict[str, Any]:
        """All arguments by the names of the operation's schema, defaults included."""
        defaults = defaults_of(self.target)
        return {**defaults, **dict(zip(defaults, self.args, strict=False)), **self.kwargs}

    @cached_property
    def operands(self) -> list[Traced]:
        """The tensors among the arguments."""
        found: list[Traced] = []
        _mapped((self.args, self.kwargs), found.append)
        return [x for x in found if isinstance(x.value, Tensor)]

    @property
    def results(self) -> list[Tensor | None]:
        """The result, or the results, of which some may be missing."""
        return [self.result] if isinstance(self.result, Tensor) else list(self.result)

    def aligned(self, operand: Any, keep: Array | None = None) -> Sets | None:
        """The sets of an operand for each entry of the result that it is broadcast to, or for those to be kept."""
        if not isinstance(operand, Traced) or operand.sets is None:
            return None
        entries = self.broadcast(operand)
        if keep is None:
            same = operand.value.shape == self.result.shape
            return operand.sets if same else self.algebra.take(operand.sets, entries)
        kept = np.flatnonzero(keep)
        return self.algebra.spread(len(entries), [(operand.sets, entries[kept], kept)])

    def broadcast(self, operand: Traced) -> Array:
        """The entry of the operand that each entry of the result comes from."""
        return flat(positions(operand.value.shape).expand(self.result.shape))

    def nonzero(self, operand: Any) -> Array:
        """Where an operand, broadcast to the result, can differ from zero."""
        if not isinstance(operand, Traced):
            return np.full(self.result.numel(), operand != 0)
        return ~operand.zero[self.broadcast(operand)]

    def evaluate(self, replace: Callable[[Traced], Any]) -> list[Tensor]:
        """The operation carried out on other tensors in place of its operands."""
        args, kwargs = _mapped((self.args, self.kwargs), replace)
        result = self.target(*args, **kwargs)
        return [result] if isinstance(result, Tensor) else list(result)


def _mapped(tree: Any, function: Callable[[Traced], Any]) -> Any:
    """Nested arguments with something else in the place of all that is traced."""
    return map_aggregate(tree, lambda x: function(x) if isinstance(x, Traced) else x)


def is_smooth(x: Tensor | None) -> bool:
    """Whether a tensor can carry derivatives; of integers and Booleans it is only known whether they vary."""
    return x is not None and (x.is_floating_point() or x.is_complex())


def entry_by_entry(call: Call) -> list[Sets | None]:
    """Each entry of the result depends on the entries at its place."""
    return [call.algebra.union([call.aligned(operand) for operand in call.operands])]


def moved(call: Call) -> list[Sets | None]:
    """Entries are moved, copied or left out, or zeros put in between: the operation is applied to their numbers."""
    if any(x.sets is not None and not is_smooth(x.value) for x in call.operands):
        raise Unruly  # where to is not known
    sources = [x for x in call.operands if x.sets is not None]
    starts = np.concatenate([[1], 1 + np.cumsum([x.value.numel() for x in sources])])
    numbers = {id(x): positions(x.value.shape) + int(start) for x, start in zip(sources, starts[:-1], strict=True)}

    def number(x: Traced) -> Any:
        if id(x) in numbers:
            return numbers[id(x)]
        if isinstance(x.value, Tensor):
            return torch.zeros(x.value.shape, dtype=torch.int64) if is_smooth(x.value) else x.value.cpu()
        return x.value

    return [_collected(call, sources, starts, flat(numbered)) for numbered in call.evaluate(number)]


def _collected(call: Call, sources: Sequence[Traced], starts: Array, numbers: Array) -> Sets | None:
    if len(sources) == 1 and len(numbers) and numbers.min() > 0:
        return call.algebra.take(sources[0].sets, numbers - 1)
    parts = []
    for x, start, end in zip(sources, starts[:-1], starts[1:], strict=True):
        target = np.flatnonzero((numbers >= start) & (numbers < end))
        parts.append((x.sets, numbers[target] - start, target))
    return call.algebra.spread(len(numbers), parts)
