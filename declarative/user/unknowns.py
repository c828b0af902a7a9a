"""Several unknowns, or several constraints, by name: nested for the user, one flat row inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..arguments import is_integer
from ..torchside import build_tree, flatten_tree, map_tensors, match_tree


@dataclass(frozen=True)
class Nesting:
    """How nested tensors lie in one row.

    Attributes:
        tree: their numbers, from 0, nested like them.
        names: how each is reached, such as ``['x']``.
        shapes: of each, for one problem.

    Example:
        >>> import torch
        >>> nesting = Nesting.of({"x": torch.zeros(2, 2), "t": torch.zeros(())})
        >>> nesting.split(torch.arange(5.0))
        {'x': tensor([[0., 1.],
                [2., 3.]]), 't': tensor(4.)}
        >>> nesting.join({"t": torch.tensor(4.0), "x": torch.ones(2, 2)})
        tensor([1., 1., 1., 1., 4.])
    """

    tree: Any = field(hash=False)
    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, value: object, what: str = "it") -> Nesting:
        """That of nested tensors.

        Raises:
            TypeError: a part is no tensor.
        """
        parts, names, tree = flatten_tree(value)
        for part, name in zip(parts, names, strict=True):
            if not isinstance(part, Tensor):
                raise TypeError(
                    f"{what} must return a tensor, or a dict or tuple of tensors, but {name} is {type(part).__name__}."
                )
        return cls(tree, names, tuple(part.shape for part in parts))

    def fits(self, other: Nesting | None) -> bool:
        """Whether other tensors have the same names and shapes, if in another order."""
        names = None if other is None else dict(zip(other.names, other.shapes, strict=True))
        return names == dict(zip(self.names, self.shapes, strict=True))

    @property
    def size(self) -> int:
        """The length of the row."""
        return sum(shape.numel() for shape in self.shapes)

    def split(self, rows: Tensor) -> Any:  # (*, size) -> nested tensors, (*, *shape) each
        """A row, or a batch of them, as nested tensors."""
        return build_tree(self.parts(rows), self.tree)

    def parts(self, rows: Tensor) -> list[Tensor]:
        """The same, one after the other."""
        parts, first = [], 0
        for shape in self.shapes:
            last = first + shape.numel()
            parts.append(rows[..., first:last].reshape((*rows.shape[:-1], *shape)))
            first = last
        return parts

    def of_rows(self) -> Nesting:
        """That of the first rows of all tensors."""
        return replace(self, shapes=tuple(shape[1:] for shape in self.shapes))

    def join(self, value: object, what: str = "it") -> Tensor:  # nested tensors, (*, *shape) each -> (*, size)
        """Nested tensors as a row or, if all of them have the same dimensions before their own, as a batch of rows.

        Raises:
            TypeError, ValueError: they are nested in another way, or have other shapes.
        """
        try:
            parts = match_tree(value, self.tree)
        except ValueError:
            shown = map_tensors(lambda x: tuple(x.shape), value)
            raise ValueError(f"{what} must be nested like the unknowns, {self}, but is {shown!r}.") from None
        rows = [self._row(part, i, what) for i, part in enumerate(parts)]
        if len({row.shape[:-1] for row in rows}) > 1:
            shown = ", ".join(f"{name}: {tuple(part.shape)}" for name, part in zip(self.names, parts, strict=True))
            raise ValueError(f"the parts of {what} have different batch dimensions: {shown}.")
        return torch.cat(rows, -1)

    def _row(self, part: object, i: int, what: str) -> Tensor:
        name, shape = f"{what}{self.names[i]}", self.shapes[i]
        if not isinstance(part, Tensor):
            raise TypeError(f"{name} must be a tensor, but is {type(part).__name__}.")
        lead = part.dim() - len(shape)
        if lead < 0 or part.shape[lead:] != shape:
            raise ValueError(f"{name} must have shape {tuple(shape)} for one problem, but has {tuple(part.shape)}.")
        return part.reshape((*part.shape[:lead], shape.numel()))

    def __str__(self) -> str:
        return str(build_tree([tuple(shape) for shape in self.shapes], self.tree))


@dataclass(frozen=True)
class Unknowns:
    """Where to start if there are several unknowns: as a row or, if only shapes are known, the length of one."""

    nesting: Nesting
    row: Tensor | torch.Size


def is_shape(value: object) -> bool:
    """Whether it is a whole number, or several in a row."""
    if isinstance(value, Sequence) and not isinstance(value, str) and not hasattr(value, "_fields"):
        return all(is_integer(n) for n in value)
    return is_integer(value)


def is_nested(value: object) -> bool:
    """Whether something stands for several: a dictionary, or a tuple that is not the shape of one."""
    return isinstance(value, dict) or (isinstance(value, tuple) and not is_shape(value))
