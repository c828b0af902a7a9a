"""Rules of operations that mix the entries of a tensor: sums, products, scattering, convolutions."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product as every
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .index_sets import Array, Sets, Traced, flat, positions
from .operation import Call, Unruly, moved


def reduced(call: Call) -> list[Sets | None]:
    """Each entry of the result depends on the line, the plane ... of entries that it was made from."""
    x = call.operands[0]
    groups, count = _groups(x.value.shape, _dimensions(call, x))
    return [_gathered(call, x, groups, count)] * len(call.results)


def along(call: Call) -> list[Sets | None]:
    """Each entry depends on all that are on a line with it, in any of the operands."""
    parts = []
    for x in call.operands:
        if x.sets is not None:
            if any(result is None or x.value.shape != result.shape for result in call.results):
                raise Unruly
            groups, count = _groups(x.value.shape, _dimensions(call, x))
            collected = _gathered(call, x, groups, count)
            parts.append(None if collected is None else call.algebra.take(collected, groups))
    return [call.algebra.union(parts)] * len(call.results)


def accumulated(call: Call) -> list[Sets | None]:
    """Each entry depends on those before it on its line, and on itself."""
    x = call.operands[0]
    (dim,) = _dimensions(call, x) or (0,)
    numbers = positions(x.value.shape or [1])
    length = numbers.shape[dim]
    lines = numbers.movedim(dim, -1).reshape(-1, length)
    source, target = torch.tril_indices(length, length).flip(0)
    call.algebra.afford(len(lines) * len(source))
    pairs = flat(lines[:, source]), flat(lines[:, target])
    used = x.depends[pairs[0]]
    return [call.algebra.spread(x.value.numel(), [(x.sets, pairs[0][used], pairs[1][used])])]


def _dimensions(call: Call, x: Traced) -> list[int]:
    """The dimensions that an operation names, all of them if none."""
    named = call.named.get("dim")
    rank = x.value.dim()
    if named is None or named == []:
        return list(range(rank))
    return [d % rank for d in ([named] if isinstance(named, int) else named)] if rank else []


def _groups(shape: torch.Size, dims: Iterable[int]) -> tuple[Array, int]:
    """Which result each entry contributes to, if these dimensions are reduced, and how many results there are."""
    kept = [1 if d in set(dims) else size for d, size in enumerate(shape)]
    return flat(positions(kept).expand(shape)), int(np.prod(kept))


def _gathered(call: Call, x: Traced, groups: Array, count: int) -> Sets | None:
    return call.algebra.spread(count, [(x.sets, np.arange(len(groups)), groups)])


# Products of matrices: entry (b, i, j) is the sum over l of a[b, i, l] c[b, l, j].


def contracted(call: Call) -> list[Sets | None]:
    """A product of matrices or vectors, of which the zeros are seen; what is added to it entry by entry."""
    *added, left, right = call.operands
    a, c = _as_matrices(left.value, right.value)
    product = _product(call, left, a, right, c)
    return [call.algebra.union([*(call.aligned(x) for x in added), product])]


def _as_matrices(left: Tensor, right: Tensor) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Shapes (batch, rows, columns) of both."""
    batch = left.shape[0] if left.dim() == 3 else 1
    inner = left.shape[-1]
    return (batch, left.numel() // max(batch * inner, 1), inner), (batch, inner, right.numel() // max(batch * inner, 1))


def _product(call: Call, left: Traced, a: tuple[int, int, int], right: Traced, c: tuple[int, int, int]) -> Sets | None:
    height, width = a[1], c[2]
    parts = []
    if left.sets is not None:  # a[b, i, l] reaches (b, i, j) for every j with c[b, l, j] that can differ from zero
        batch, row, inner = np.unravel_index(np.flatnonzero(left.depends), a)
        source, column = _joined(batch * a[2] + inner, ~right.zero.reshape(c[0] * c[1], c[2]))
        target = (batch[source] * height + row[source]) * width + column
        parts.append((left.sets, np.flatnonzero(left.depends)[source], target))
    if right.sets is not None:
        batch, inner, column = np.unravel_index(np.flatnonzero(right.depends), c)
        usable = ~left.zero.reshape(a).transpose(0, 2, 1).reshape(a[0] * a[2], a[1])
        source, row = _joined(batch * a[2] + inner, usable)
        target = (batch[source] * height + row) * width + column[source]
        parts.append((right.sets, np.flatnonzero(right.depends)[source], target))
    call.algebra.afford(sum(len(target) for _, _, target in parts))
    return call.algebra.spread(a[0] * height * width, parts)


def _joined(keys: Array, usable: Array) -> tuple[Array, Array]:
    """All pairs (i, j) with usable[keys[i], j]."""
    lines, columns = np.nonzero(usable)
    counts = np.bincount(lines, minlength=len(usable))
    starts = np.concatenate([[0], np.cumsum(counts)])
    repeats = counts[keys]
    source = np.repeat(np.arange(len(keys)), repeats)
    within = np.arange(len(source)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    return source, columns[starts[keys][source] + within]


# Scattering: the second operand is added into the first, or replaces entries of it.


def put(call: Call) -> list[Sets | None]:
    """``index_put``."""
    x, indices, values = (call.named[name] for name in ("self", "indices", "values"))
    if any(index is not None and index.sets is not None for index in indices):
        raise Unruly
    places = positions(x.value.shape)
    for_values = torch.ops.aten.index.Tensor(places, [None if i is None else i.value.cpu() for i in indices])
    source = flat(positions(values.value.shape).expand(for_values.shape))
    return _into(call, x, values, source, flat(for_values), call.named["accumulate"])


def scattered(call: Call) -> list[Sets | None]:
    """``scatter`` and ``scatter_add``; anywhere along the line where the index is not known."""
    x, index, source = (call.named[name] for name in ("self", "index", "src"))
    if index.sets is not None:
        return along(call)
    target = torch.gather(positions(x.value.shape), call.named["dim"], index.value.cpu())
    numbers = positions(source.value.shape)[tuple(slice(size) for size in index.value.shape)]
    return _into(call, x, source, flat(numbers), flat(target), call.target.overloadpacket is torch.ops.aten.scatter_add)


def index_added(call: Call) -> list[Sets | None]:
    """``index_add``."""
    x, index, source = (call.named[name] for name in ("self", "index", "source"))
    if index.sets is not None:
        raise Unruly
    target = positions(x.value.shape).index_select(call.named["dim"], index.value.cpu())
    return _into(call, x, source, flat(positions(source.value.shape)), flat(target), True)


def _into(call: Call, x: Traced, values: Traced, source: Array, target: Array, adds: bool) -> list[Sets | None]:
    count = x.value.numel()
    kept = np.ones(count, dtype=bool)
    kept[target] = adds
    entries = np.flatnonzero(kept)
    parts = [] if x.sets is None else [(x.sets, entries, entries)]
    if values.sets is not None:
        parts.append((values.sets, source, target))
    return [call.algebra.spread(count, parts)]


def picked(call: Call) -> list[Sets | None]:
    """``gather``; anything along the line where the index is not known."""
    return moved(call) if call.named["index"].sets is None else along(call)


def traced(call: Call) -> list[Sets | None]:
    """``trace``: the sum of the diagonal."""
    x = call.operands[0]
    diagonal = flat(positions(x.value.shape).diagonal())
    return [call.algebra.spread(1, [(x.sets, diagonal, np.zeros(len(diagonal), dtype=np.int64))])]


def unfolded_back(call: Call) -> list[Sets | None]:
    """``unfold_backward``: what overlapping windows give to the entries that they were taken from."""
    grad, (shape, dim, size, step) = call.operands[0], call.args[1:5]
    target = positions(shape).unfold(dim, size, step)
    return [call.algebra.spread(int(np.prod(shape)), [(grad.sets, np.arange(target.numel()), flat(target))])]


# Convolutions with a known kernel are linear: their matrix is found with kernels of a single one, on entry numbers.


def convolved(call: Call) -> list[Sets | None]:
    """``convolution``."""
    x, weight, bias = (call.named[name] for name in ("input", "weight", "bias"))
    if weight.sets is not None or (bias is not None and bias.sets is not None):
        raise Unruly
    source, target = _convolution(call, x.value.shape, weight.value)
    return [call.algebra.spread(call.result.numel(), [(x.sets, source, target)])]


def convolved_back(call: Call) -> list[Sets | None]:
    """``convolution_backward``, as far as the input is concerned: the transposed matrix."""
    grad, x, weight = (call.named[name] for name in ("grad_output", "input", "weight"))
    if weight.sets is not None or call.named["output_mask"][1:] != [False, False] or grad.sets is None:
        raise Unruly
    source, target = _convolution(call, x.value.shape, weight.value)
    return [call.algebra.spread(x.value.numel(), [(grad.sets, target, source)])] + [None] * (len(call.results) - 1)


def _convolution(call: Call, shape: torch.Size, weight: Tensor) -> tuple[Array, Array]:
    numbers = (positions(shape) + 1).double()
    options = [call.named[n] for n in ("stride", "padding", "dilation", "transposed", "output_padding", "groups")]
    if options[3]:
        raise Unruly
    pairs = []
    weight = weight.cpu()
    for place in every(*(range(size) for size in weight.shape[1:])):
        unit = torch.zeros(weight.shape, dtype=torch.float64)
        here: tuple[Any, ...] = (slice(None), *place)
        unit[here] = (weight[here] != 0).double()
        reached = flat(torch.ops.aten.convolution(numbers, unit, None, *options)).astype(np.int64)
        target = np.flatnonzero(reached)
        pairs.append((reached[target] - 1, target))
    source, target = (np.concatenate(part) for part in zip(*pairs, strict=True))
    return source, target
