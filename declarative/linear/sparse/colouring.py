"""Colours for the columns of a sparse matrix, so that columns of one colour can be evaluated in one pass.

Sets of colours are the bits of Python's integers: unions are single operations, however many colours there are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .entries import Entries, Integers


def colour_columns(entries: Entries) -> Integers:  # (columns,)
    """Colours such that no two columns of one colour meet in a row; -1 for an empty column."""
    used = [0] * entries.shape[0]  # colours in each row
    colours = []
    for rows in _lists(entries.columns[entries.turned], entries.rows[entries.turned], entries.shape[1]):
        taken = 0
        for row in rows:
            taken |= used[row]
        colour = _free(taken) if rows else 0
        for row in rows:
            used[row] |= colour
        colours.append(colour.bit_length() - 1)
    return np.array(colours, dtype=np.int64)


def colour_stars(entries: Entries) -> Integers:  # (columns,)
    """Colours for a symmetric matrix, given by its lower triangle, such that two of them always make stars.

    Neighbours have different colours, and every path over four vertices has at least three: then the entry of each
    pair of neighbours stands alone in the product of one of the two columns. -1 for an empty column.

    Vertices get the first colour that is free, in their order. Vertex v must not get a colour c if

    - a neighbour has it;
    - v has two neighbours of one colour, and one of these has a neighbour of colour c;
    - a neighbour w of v is a leaf of a star around a vertex of colour c (which has two neighbours of w's colour).
    """
    neighbours, occupied = _neighbours(entries)
    count = len(neighbours)
    colours, seen, several, leaf_of = [0] * count, [0] * count, [0] * count, [0] * count
    for v in range(count):
        if not occupied[v]:
            continue
        taken = seen[v]
        for w in neighbours[v]:
            taken |= leaf_of[w]
            if several[v] & colours[w]:
                taken |= seen[w]
        colours[v] = colour = _free(taken)
        for w in neighbours[v]:
            if several[v] & colours[w]:
                leaf_of[w] |= colour
            if seen[w] & colour:
                if not several[w] & colour:  # the second one: w becomes the centre of a star, and the first one a leaf
                    several[w] |= colour
                    _mark(neighbours[w], colours, colour, leaf_of, colours[w])
                leaf_of[v] |= colours[w]
            seen[w] |= colour
    return np.array([colour.bit_length() - 1 for colour in colours], dtype=np.int64)


def _mark(vertices: Sequence[int], colours: list[int], colour: int, leaf_of: list[int], centre: int) -> None:
    for vertex in vertices:
        if colours[vertex] == colour:
            leaf_of[vertex] |= centre


def _free(taken: int) -> int:
    """The lowest bit that is not set."""
    return ~taken & (taken + 1)


def _neighbours(entries: Entries) -> tuple[list[list[int]], Integers]:
    """The neighbours of each vertex, and whether a vertex has any entry, be it on the diagonal."""
    off = entries.rows != entries.columns
    one, other = entries.rows[off], entries.columns[off]
    source, target = np.concatenate([one, other]), np.concatenate([other, one])
    order = np.lexsort((target, source))
    occupied = np.bincount(np.concatenate([entries.rows, entries.columns]), minlength=entries.shape[0])
    return _lists(source[order], target[order], entries.shape[0]), occupied


def _lists(keys: Integers, values: Integers, count: int) -> list[list[int]]:
    """The values of each key; keys are sorted."""
    ends = np.searchsorted(keys, np.arange(1, count + 1)).tolist()
    flat = values.tolist()
    return [flat[start:end] for start, end in zip([0, *ends], ends, strict=False)]
