"""How operations of torch are written on a tape.

A tensor is here an array of register numbers, so that whatever moves, copies or leaves out entries is carried out on
the numbers and costs nothing later; what puts zeros between entries puts register 0, which is always zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...kernels import kinds
from ...kernels.machine import Registers
from .writer import NotLowered, Writer

Rule = Callable[..., Any]
LARGEST_PRODUCT = 4_000_000  # multiplications


@dataclass(frozen=True)
class Entries:
    """A tensor that depends on the inputs: the registers of its entries."""

    registers: Tensor  # int64, in the shape of the tensor


class Operands:
    """What a rule works with: a writer, and the arguments as registers."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer

    def of(self, argument: Any) -> Registers:
        """The registers of a tensor, of constants or of a number; registers stay what they are."""
        if isinstance(argument, np.ndarray):
            return argument
        if isinstance(argument, Entries):
            return argument.registers.numpy()
        if isinstance(argument, Tensor):
            if argument.is_complex():
                raise NotLowered("complex numbers")
            return self.writer.constants(argument.detach().double().numpy(force=True))  # zeros without memory, too
        if isinstance(argument, bool | int | float):
            return self.writer.number(float(argument))
        raise NotLowered(f"an argument of type {type(argument).__name__}")

    def emit(self, kind: int, *arguments: Any) -> Registers:
        """An instruction for each entry."""
        return self.writer.emit(kind, *(self.of(x) for x in arguments))


def entries(registers: Registers) -> Entries:
    """As a tensor."""
    return Entries(torch.from_numpy(np.require(registers, np.int64, ("C", "W"))))


# Entry by entry.


def _entry_by_entry(kind: int) -> Rule:
    return lambda o, *arguments, **_: o.emit(kind, *arguments)


def _scaled(o: Operands, x: Any, alpha: Any) -> Registers:
    return o.of(x) if alpha == 1 else o.emit(kinds.MUL, x, alpha)


def _add(o: Operands, x: Any, y: Any, alpha: Any = 1) -> Registers:
    return o.emit(kinds.ADD, x, _scaled(o, y, alpha))


def _sub(o: Operands, x: Any, y: Any, alpha: Any = 1) -> Registers:
    return o.emit(kinds.SUB, x, _scaled(o, y, alpha))


def _div(o: Operands, x: Any, y: Any, rounding_mode: str | None = None) -> Registers:
    if rounding_mode is not None:
        raise NotLowered("a division that rounds")
    return o.emit(kinds.DIV, x, y)


def _pow(o: Operands, x: Any, y: Any) -> Registers:
    powers: dict[float, Callable[[Registers], Registers]] = {
        0.0: lambda a: np.broadcast_to(o.writer.number(1.0), a.shape),
        0.5: lambda a: o.emit(kinds.SQRT, a),
        1.0: lambda a: a,
        2.0: lambda a: o.emit(kinds.MUL, a, a),
        3.0: lambda a: o.emit(kinds.MUL, o.emit(kinds.MUL, a, a), a),
        -1.0: lambda a: o.emit(kinds.DIV, 1.0, a),
        -2.0: lambda a: o.emit(kinds.DIV, 1.0, o.emit(kinds.MUL, a, a)),
    }
    if isinstance(y, int | float) and float(y) in powers:
        return powers[float(y)](o.of(x))
    return o.emit(kinds.POW, x, y)


def _clamp(o: Operands, x: Any, min: Any = None, max: Any = None) -> Registers:
    found = o.of(x)
    found = found if min is None else o.emit(kinds.MAXIMUM, found, min)
    return found if max is None else o.emit(kinds.MINIMUM, found, max)


def _sigmoid(o: Operands, x: Any) -> Registers:
    return o.emit(kinds.DIV, 1.0, o.emit(kinds.ADD, 1.0, o.emit(kinds.EXP, o.emit(kinds.NEG, x))))


def _sigmoid_backward(o: Operands, gradient: Any, y: Any) -> Registers:
    slope = o.emit(kinds.MUL, y, o.emit(kinds.SUB, 1.0, y))
    return o.emit(kinds.MUL, gradient, slope)


def _tanh_backward(o: Operands, gradient: Any, y: Any) -> Registers:
    return o.emit(kinds.MUL, gradient, o.emit(kinds.SUB, 1.0, o.emit(kinds.MUL, y, y)))


def _threshold_backward(o: Operands, gradient: Any, x: Any, threshold: Any) -> Registers:
    return o.emit(kinds.WHERE, o.emit(kinds.LE, x, threshold), 0.0, gradient)


def _nan_to_num(o: Operands, x: Any, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Registers:
    largest = torch.finfo(torch.float64).max
    found = o.emit(kinds.WHERE, o.emit(kinds.ISNAN, x), 0.0 if nan is None else nan, x)
    for infinity, value in (
        (np.inf, largest if posinf is None else posinf),
        (-np.inf, -largest if neginf is None else neginf),
    ):
        found = o.emit(kinds.WHERE, o.emit(kinds.EQ, x, infinity), value, found)
    return found


def as_truth(o: Operands, x: Any) -> Registers:
    """1 where x is not zero."""
    return o.emit(kinds.NOT, o.emit(kinds.NOT, x))


# Several entries into one.


def _axes(count: int, dim: Any) -> list[int]:
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return list(range(count))
    return sorted({d % max(count, 1) for d in ([dim] if isinstance(dim, int) else dim)})


def _reduced(o: Operands, kind: int, x: Any, dim: Any, keepdim: bool, empty: float = np.nan) -> Registers:
    found = o.of(x)
    axes = _axes(found.ndim, dim)
    for axis in reversed(axes):
        if not found.shape[axis] and np.isnan(empty):
            raise NotLowered("a reduction of nothing")
        found = o.writer.reduce(kind, found, axis, empty)
    return np.expand_dims(found, tuple(axes)) if keepdim else found


def _over(kind: int, empty: float = np.nan) -> Rule:
    return lambda o, x, dim=None, keepdim=False, **_: _reduced(o, kind, x, dim, keepdim, empty)


def _count(o: Operands, x: Any, dim: Any) -> int:
    """How many entries are reduced to one."""
    shape = o.of(x).shape
    return int(np.prod([shape[axis] for axis in _axes(len(shape), dim)]))


def _mean(o: Operands, x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Registers:  # noqa: ARG001
    return o.emit(kinds.DIV, _reduced(o, kinds.ADD, x, dim, keepdim, 0.0), float(_count(o, x, dim)))


def _var(
    o: Operands, x: Any, dim: Any = None, unbiased: bool = True, *, correction: Any = None, keepdim: bool = False
) -> Registers:
    less = float(unbiased) if correction is None else float(correction)
    away = o.emit(kinds.SUB, x, _mean(o, x, dim, keepdim=True))
    squares = _reduced(o, kinds.ADD, o.emit(kinds.MUL, away, away), dim, keepdim, 0.0)
    return o.emit(kinds.DIV, squares, max(_count(o, x, dim) - less, 0.0))


def _cumsum(o: Operands, x: Any, dim: int, dtype: Any = None) -> Registers:  # noqa: ARG001
    rows = list(np.moveaxis(np.atleast_1d(o.of(x)), dim, 0))
    for i in range(1, len(rows)):
        rows[i] = o.emit(kinds.ADD, rows[i - 1], rows[i])
    return np.moveaxis(np.stack(rows), 0, dim).reshape(o.of(x).shape) if rows else o.of(x)


def _product(o: Operands, a: Any, b: Any) -> Registers:
    """Matrix products of all kinds: (..., m, k) and (..., k, n)."""
    a, b = o.of(a), o.of(b)
    if a.size * b.shape[-1] > LARGEST_PRODUCT:
        raise NotLowered("a matrix product of this size")
    before = o.writer.length
    found = o.writer.reduce(kinds.ADD, o.emit(kinds.MUL, a[..., :, :, None], b[..., None, :, :]), -2, 0.0)
    o.writer.products += o.writer.length - before
    return found


def _mv(o: Operands, a: Any, b: Any) -> Registers:
    return _product(o, a, o.of(b)[:, None])[:, 0]


def _dot(o: Operands, a: Any, b: Any) -> Registers:
    return _product(o, o.of(a)[None, :], o.of(b)[:, None]).reshape(())


def _with_product(multiply: Rule) -> Rule:
    def rule(o: Operands, x: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Registers:
        return _add(o, _scaled(o, x, beta), multiply(o, a, b), alpha)

    return rule


# Entries sent to places that are known.


def _known(index: Any) -> Tensor:
    if not isinstance(index, Tensor):
        raise NotLowered("an index that depends on the inputs")
    return index


def _places(o: Operands, base: Any) -> Tensor:
    """The number of each entry."""
    shape = o.of(base).shape
    return torch.arange(int(np.prod(shape))).view(shape)


def _combined(o: Operands, kind: int, base: Any, places: Tensor, source: Any) -> Registers:
    """The base with a source combined into the entries with these numbers."""
    registers = o.of(base)
    sources = np.broadcast_to(o.of(source), tuple(places.shape)).reshape(-1)
    found = o.writer.gather_into(kind, registers.reshape(-1), places.numpy().reshape(-1), sources)
    return found.reshape(registers.shape)


def _replaced(o: Operands, base: Any, places: Tensor, source: Any) -> Registers:
    """The base with a source in the place of the entries with these numbers."""
    result = o.of(base).copy()
    result.reshape(-1)[places.numpy()] = np.broadcast_to(o.of(source), tuple(places.shape))
    return result


def _gathered(o: Operands, x: Any, dim: int, index: Any, source: Any) -> tuple[Tensor, Registers]:
    """The numbers of the entries of x that an index picks, and as much of a source as is sent there."""
    places, sources = _places(o, x).gather(dim, _known(index)), o.of(source)
    cut = tuple(slice(0, size) for size in places.shape)
    return places, sources[cut] if sources.ndim == len(cut) else sources


def _index_add(o: Operands, x: Any, dim: int, index: Any, source: Any, alpha: Any = 1) -> Registers:
    return _combined(o, kinds.ADD, x, _places(o, x).index_select(dim, _known(index)), _scaled(o, source, alpha))


def _index_put(o: Operands, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Registers:
    places = _places(o, x)[tuple(slice(None) if i is None else _known(i) for i in indices)]
    return _combined(o, kinds.ADD, x, places, values) if accumulate else _replaced(o, x, places, values)


def _scatter(o: Operands, x: Any, dim: int, index: Any, source: Any) -> Registers:
    return _replaced(o, x, *_gathered(o, x, dim, index, source))


def _scatter_reduce(
    o: Operands, x: Any, dim: int, index: Any, source: Any, reduce: str = "sum", include_self: bool = True
) -> Registers:
    known = {"sum": kinds.ADD, "prod": kinds.MUL, "amax": kinds.MAXIMUM, "amin": kinds.MINIMUM}
    if reduce not in known or not include_self:
        raise NotLowered(f"scatter_reduce with {reduce}")
    return _combined(o, known[reduce], x, *_gathered(o, x, dim, index, source))


# Operations with an instruction of the same name, and of another one.
SAME = """
    neg abs sign sqrt exp expm1 log log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf floor ceil
    isfinite isnan mul maximum minimum atan2 lt le eq where
"""
OTHER = {
    "sgn": kinds.SIGN, "logical_not": kinds.NOT, "bitwise_not": kinds.NOT, "logical_and": kinds.AND,
    "bitwise_and": kinds.AND, "logical_or": kinds.OR, "bitwise_or": kinds.OR,
}  # fmt: skip

RULES: dict[str, Rule] = {
    **{name: _entry_by_entry(getattr(kinds, name.upper())) for name in SAME.split()},
    **{name: _entry_by_entry(kind) for name, kind in OTHER.items()},
    "gt": lambda o, x, y: o.emit(kinds.LT, y, x),
    "ge": lambda o, x, y: o.emit(kinds.LE, y, x),
    "ne": lambda o, x, y: o.emit(kinds.NOT, o.emit(kinds.EQ, x, y)),
    "logical_xor": lambda o, x, y: o.emit(kinds.NOT, o.emit(kinds.EQ, as_truth(o, x), as_truth(o, y))),
    "bitwise_xor": lambda o, x, y: o.emit(kinds.NOT, o.emit(kinds.EQ, x, y)),
    "add": _add,
    "sub": _sub,
    "rsub": lambda o, x, y, alpha=1: _sub(o, y, x, alpha),
    "div": _div,
    "pow": _pow,
    "square": lambda o, x: o.emit(kinds.MUL, x, x),
    "log2": lambda o, x: o.emit(kinds.DIV, o.emit(kinds.LOG, x), np.log(2.0)),
    "log10": lambda o, x: o.emit(kinds.DIV, o.emit(kinds.LOG, x), np.log(10.0)),
    "exp2": lambda o, x: o.emit(kinds.POW, 2.0, x),
    "reciprocal": lambda o, x: o.emit(kinds.DIV, 1.0, x),
    "rsqrt": lambda o, x: o.emit(kinds.DIV, 1.0, o.emit(kinds.SQRT, x)),
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": lambda o, x, max: _clamp(o, x, None, max),
    "relu": lambda o, x: o.emit(kinds.MAXIMUM, x, 0.0),
    "sigmoid": _sigmoid,
    "sigmoid_backward": _sigmoid_backward,
    "tanh_backward": _tanh_backward,
    "threshold_backward": _threshold_backward,
    "nan_to_num": _nan_to_num,
    "isinf": lambda o, x: o.emit(kinds.EQ, o.emit(kinds.ABS, x), np.inf),
    "addcmul": lambda o, x, a, b, value=1: _add(o, x, o.emit(kinds.MUL, a, b), value),
    "addcdiv": lambda o, x, a, b, value=1: _add(o, x, o.emit(kinds.DIV, a, b), value),
    "masked_fill": lambda o, x, mask, value: o.emit(kinds.WHERE, mask, value, x),
    "sum": _over(kinds.ADD, 0.0),
    "mean": _mean,
    "var": _var,
    "std": lambda o, x, *rest, **options: o.emit(kinds.SQRT, _var(o, x, *rest, **options)),
    "amax": _over(kinds.MAXIMUM),
    "amin": _over(kinds.MINIMUM),
    "prod": _over(kinds.MUL, 1.0),
    "any": _over(kinds.OR, 0.0),
    "all": _over(kinds.AND, 1.0),
    "cumsum": _cumsum,
    "mm": _product,
    "bmm": _product,
    "mv": _mv,
    "dot": _dot,
    "addmm": _with_product(_product),
    "baddbmm": _with_product(_product),
    "addmv": _with_product(_mv),
    "index_add": _index_add,
    "scatter_add": _scatter_reduce,
    "scatter_reduce": _scatter_reduce,
    "index_put": _index_put,
    "_index_put_impl": _index_put,
    "scatter": _scatter,
    "copy": lambda o, x, source, **_: np.broadcast_to(o.of(source), o.of(x).shape),
}
# Those that move entries: carried out on the numbers of the registers.
MOVES = {
    "view", "_unsafe_view", "reshape", "expand", "permute", "transpose", "t", "unsqueeze", "squeeze", "select",
    "slice", "cat", "stack", "unbind", "split", "split_with_sizes", "chunk", "index", "index_select", "gather",
    "flip", "roll", "repeat", "diagonal", "clone", "contiguous", "alias", "detach", "lift_fresh", "lift_fresh_copy",
    "slice_backward", "select_backward", "diagonal_backward", "diag_embed", "slice_scatter", "select_scatter", "tril",
    "triu", "unfold", "movedim", "narrow", "constant_pad_nd",
}  # fmt: skip
