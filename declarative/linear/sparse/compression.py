"""Derivatives by as many passes as there are colours: seeds to multiply with, and where to read the entries off.

There are directions v for products A v, (..., forward, k), and w for products A' w, (..., reverse, m), of which either
may be none; those of H are all of the second kind. What is recovered, (..., nonzeros), is one gather, differentiable.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...torchside import fixed
from .colouring import colour_columns, colour_stars
from .entries import Entries, Integers

SPLIT = (0, 1, 2, 4, 8)  # how many of the fullest rows may be evaluated on their own


@dataclass(frozen=True, eq=False)
class Compression:
    """The recipe for a matrix (k, m): some entries from products with columns, the others from products with rows.

    That for a symmetric matrix, given by its lower triangle, takes products with rows alone, which are its columns.
    """

    columns: Integers  # colours of columns, -1 for none, (m,)
    rows: Integers  # colours of rows, -1 for none, (k,)
    source: Integers  # the place of each value in both kinds of products, flattened, one after the other; (nonzeros,)

    @property
    def forward(self) -> int:
        """The number of products A v."""
        return _count(self.columns)

    @property
    def reverse(self) -> int:
        """The number of products A' w."""
        return _count(self.rows)

    @property
    def count(self) -> int:
        """The number of passes."""
        return self.forward + self.reverse

    def forward_seeds(self, like: Tensor) -> Tensor:  # (forward, m)
        """The directions v of the products A v, one per row."""
        return _seeds(self.columns, like)

    def reverse_seeds(self, like: Tensor) -> Tensor:  # (reverse, k)
        """The directions w of the products A' w, one per row."""
        return _seeds(self.rows, like)

    def recover(self, *products: Tensor) -> Tensor:  # (..., forward, k), (..., reverse, m), those that there are
        """The values of the entries, (..., nonzeros)."""
        parts = [part.flatten(-2) for part in products]
        flat = torch.cat(parts, -1) if len(parts) > 1 else parts[0]
        return flat.index_select(-1, fixed(torch.from_numpy(self.source)).to(flat.device))


def compress_hessian(entries: Entries) -> Compression:
    """Star colouring: an entry is read off the product of whichever of its two columns it stands alone in.

    Example:
        >>> import torch
        >>> from declarative.linear.sparse import Entries, compress_hessian
        >>> arrow = torch.eye(100, dtype=bool)
        >>> arrow[-1] = True
        >>> compress_hessian(Entries.of(arrow)).count
        2
    """
    colours = _fewest(entries)
    m, count = len(colours), _count(colours)
    i, j = entries.rows, entries.columns
    met = np.bincount(np.concatenate([i * count + colours[j], j * count + colours[i]]), minlength=m * count)
    alone = (met[i * count + colours[j]] == 1) | (i == j)  # column j is the only one of its colour in row i
    source = np.where(alone, colours[j] * m + i, colours[i] * m + j)
    return Compression(np.full(m, -1), colours, source)


def _fewest(entries: Entries) -> Integers:
    """Columns of which no two meet in a row make stars too, sometimes with fewer colours."""
    colours = colour_stars(entries)
    whole = entries.csr + entries.csr.T
    if np.diff(whole.indptr).max(initial=0) > colours.max(initial=-1):  # each entry of a row needs its own colour
        return colours
    others = colour_columns(Entries.of(whole))
    return others if others.max(initial=-1) < colours.max(initial=-1) else colours


def compress_jacobian(entries: Entries) -> Compression:
    """By columns or by rows, whichever takes fewer passes; a few full rows or columns may be taken the other way.

    Example:
        >>> import torch
        >>> from declarative.linear.sparse import Entries, compress_jacobian
        >>> chain_and_sum = torch.eye(100, dtype=bool) | torch.eye(100, dtype=bool).roll(1, 0)
        >>> chain_and_sum[0] = True
        >>> recipe = compress_jacobian(Entries.of(chain_and_sum))
        >>> recipe.forward, recipe.reverse
        (2, 1)
    """
    by_columns = _split(entries)
    if by_columns.count <= 2:
        return by_columns
    turned = _split(entries.transposed())
    if by_columns.count <= turned.count:
        return by_columns
    source = np.empty_like(turned.source)
    height, width = entries.shape
    ahead = turned.source < turned.forward * width
    moved = np.where(ahead, turned.source + turned.reverse * height, turned.source - turned.forward * width)
    source[entries.turned] = moved
    return Compression(turned.rows, turned.columns, source)


def _split(entries: Entries) -> Compression:
    """By columns, with as many of the fullest rows taken by themselves as makes the number of passes least."""
    lengths = np.bincount(entries.rows, minlength=entries.shape[0])
    fullest = np.argsort(-lengths, kind="stable")
    counts = [alone for alone in SPLIT if alone <= len(fullest)]
    # Each entry of a row needs its own colour: the least that can be hoped for, and the most promising one first.
    hopes = sorted((alone + lengths[fullest[alone:]].max(initial=0), alone) for alone in counts)
    best = _recipe(entries, fullest[: hopes[0][1]])
    for hope, alone in hopes[1:]:
        if hope < best.count:
            best = min(best, _recipe(entries, fullest[:alone]), key=lambda recipe: recipe.count)
    return best


def _recipe(entries: Entries, alone: Integers) -> Compression:
    """These rows one by one, the others by the colours of their columns."""
    k, m = entries.shape
    rows = np.full(k, -1)
    rows[alone] = np.arange(len(alone))
    by_itself = rows[entries.rows] >= 0
    columns = colour_columns(entries.take(~by_itself))
    forward = _count(columns)
    by_row = rows[entries.rows] * m + entries.columns + forward * k
    by_column = columns[entries.columns] * k + entries.rows
    return Compression(columns, rows, np.where(by_itself, by_row, by_column))


def _count(colours: Integers) -> int:
    return int(colours.max(initial=-1)) + 1


def _seeds(colours: Integers, like: Tensor) -> Tensor:  # (colours, entries)
    numbers = fixed(torch.from_numpy(colours)).to(like.device)
    return (torch.arange(_count(colours), device=like.device).unsqueeze(-1) == numbers).to(like.dtype)
