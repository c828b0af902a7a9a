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

from . import machine
from .machine import Registers
from .writer import NotLowered, Writer

Rule = Callable[..., Any]
LARGEST_PRODUCT = 4_000_000  # multiplications


@dataclass(frozen=True)
class Entries:
    """A tensor that depends on the inputs: the registers of its entries."""

    registers: Tensor  # int64, in the shape of the tensor

    def array(self) -> Registers:
        """The same for numpy."""
        return self.registers.numpy()


class Operands:
    """What a rule works with: a writer, and the arguments as registers."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer

    def of(self, argument: Any) -> Registers:
        """The registers of a tensor, of constants or of a number."""
        if isinstance(argument, Entries):
            return argument.array()
        if isinstance(argument, Tensor):
            if argument.is_complex():
                raise NotLowered("complex numbers")
            return self.writer.constants(argument.detach().double().numpy())
        if isinstance(argument, bool | int | float):
            return self.writer.number(float(argument))
        raise NotLowered(f"an argument of type {type(argument).__name__}")

    def emit(self, kind: int, *arguments: Any) -> Registers:
        """An instruction for each entry."""
        return self.writer.emit(kind, *(self.of(x) if not isinstance(x, np.ndarray) else x for x in arguments))


def entries(registers: Registers) -> Entries:
    """As a tensor."""
    return Entries(torch.from_numpy(np.require(registers, np.int64, ("C", "W"))))


# Entry by entry.


def _simply(kind: int) -> Rule:
    return lambda o, *arguments, **_: o.emit(kind, *arguments)


def _scaled(o: Operands, x: Any, alpha: Any) -> Registers:
    return o.of(x) if alpha == 1 else o.emit(machine.MUL, x, alpha)


def _add(o: Operands, x: Any, y: Any, alpha: Any = 1) -> Registers:
    return o.emit(machine.ADD, x, _scaled(o, y, alpha))


def _sub(o: Operands, x: Any, y: Any, alpha: Any = 1) -> Registers:
    return o.emit(machine.SUB, x, _scaled(o, y, alpha))


def _rsub(o: Operands, x: Any, y: Any, alpha: Any = 1) -> Registers:
    return o.emit(machine.SUB, y, _scaled(o, x, alpha))


def _div(o: Operands, x: Any, y: Any, rounding_mode: str | None = None) -> Registers:
    if rounding_mode is not None:
        raise NotLowered("a division that rounds")
    return o.emit(machine.DIV, x, y)


def _pow(o: Operands, x: Any, y: Any) -> Registers:
    powers: dict[float, Callable[[Registers], Registers]] = {
        0.0: lambda a: np.broadcast_to(o.writer.number(1.0), a.shape),
        0.5: lambda a: o.emit(machine.SQRT, a),
        1.0: lambda a: a,
        2.0: lambda a: o.emit(machine.MUL, a, a),
        3.0: lambda a: o.emit(machine.MUL, o.emit(machine.MUL, a, a), a),
        -1.0: lambda a: o.emit(machine.DIV, 1.0, a),
        -2.0: lambda a: o.emit(machine.DIV, 1.0, o.emit(machine.MUL, a, a)),
    }
    if isinstance(y, int | float) and float(y) in powers:
        return powers[float(y)](o.of(x))
    return o.emit(machine.POW, x, y)


def _clamp(o: Operands, x: Any, min: Any = None, max: Any = None) -> Registers:
    found = o.of(x)
    found = found if min is None else o.emit(machine.MAXIMUM, found, min)
    return found if max is None else o.emit(machine.MINIMUM, found, max)


def _sigmoid(o: Operands, x: Any) -> Registers:
    return o.emit(machine.DIV, 1.0, o.emit(machine.ADD, 1.0, o.emit(machine.EXP, o.emit(machine.NEG, x))))


def _sigmoid_backward(o: Operands, gradient: Any, y: Any) -> Registers:
    slope = o.emit(machine.MUL, y, o.emit(machine.SUB, 1.0, y))
    return o.emit(machine.MUL, gradient, slope)


def _tanh_backward(o: Operands, gradient: Any, y: Any) -> Registers:
    return o.emit(machine.MUL, gradient, o.emit(machine.SUB, 1.0, o.emit(machine.MUL, y, y)))


def _threshold_backward(o: Operands, gradient: Any, x: Any, threshold: Any) -> Registers:
    return o.emit(machine.WHERE, o.emit(machine.LE, x, threshold), 0.0, gradient)


def _nan_to_num(o: Operands, x: Any, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Registers:
    largest = torch.finfo(torch.float64).max
    found = o.emit(machine.WHERE, o.emit(machine.ISNAN, x), 0.0 if nan is None else nan, x)
    for infinity, value in (
        (np.inf, largest if posinf is None else posinf),
        (-np.inf, -largest if neginf is None else neginf),
    ):
        found = o.emit(machine.WHERE, o.emit(machine.EQ, x, infinity), value, found)
    return found


def _isinf(o: Operands, x: Any) -> Registers:
    return o.emit(machine.EQ, o.emit(machine.ABS, x), np.inf)


def _addcmul(o: Operands, x: Any, a: Any, b: Any, value: Any = 1) -> Registers:
    return o.emit(machine.ADD, x, _scaled_array(o, o.emit(machine.MUL, a, b), value))


def _addcdiv(o: Operands, x: Any, a: Any, b: Any, value: Any = 1) -> Registers:
    return o.emit(machine.ADD, x, _scaled_array(o, o.emit(machine.DIV, a, b), value))


def _scaled_array(o: Operands, x: Registers, factor: Any) -> Registers:
    return x if factor == 1 else o.emit(machine.MUL, x, factor)


def as_truth(o: Operands, x: Any) -> Registers:
    """1 where x is not zero."""
    return o.emit(machine.NOT, o.emit(machine.NOT, x))


def _masked_fill(o: Operands, x: Any, mask: Any, value: Any) -> Registers:
    return o.emit(machine.WHERE, mask, value, x)


# Several entries into one.


def _axes(count: int, dim: Any) -> list[int]:
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return list(range(count))
    return sorted({d % max(count, 1) for d in ([dim] if isinstance(dim, int) else dim)})


def _reduced(o: Operands, kind: int, x: Registers, dim: Any, keepdim: bool, empty: float = np.nan) -> Registers:
    axes = _axes(x.ndim, dim)
    for axis in reversed(axes):
        if not x.shape[axis] and np.isnan(empty):
            raise NotLowered("a reduction of nothing")
        x = o.writer.reduce(kind, x, axis, empty)
    return np.expand_dims(x, tuple(axes)) if keepdim else x


def _sum(o: Operands, x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Registers:  # noqa: ARG001
    return _reduced(o, machine.ADD, o.of(x), dim, keepdim, 0.0)


def _mean(o: Operands, x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Registers:  # noqa: ARG001
    count = int(np.prod([o.of(x).shape[axis] for axis in _axes(o.of(x).ndim, dim)]))
    return o.emit(machine.DIV, _reduced(o, machine.ADD, o.of(x), dim, keepdim, 0.0), float(count))


def _var(
    o: Operands, x: Any, dim: Any = None, unbiased: bool = True, *, correction: Any = None, keepdim: bool = False
) -> Registers:
    axes = _axes(o.of(x).ndim, dim)
    count = int(np.prod([o.of(x).shape[axis] for axis in axes]))
    less = float(unbiased) if correction is None else float(correction)
    away = o.emit(machine.SUB, x, _mean(o, x, axes, keepdim=True))
    squares = _reduced(o, machine.ADD, o.emit(machine.MUL, away, away), axes, keepdim, 0.0)
    return o.emit(machine.DIV, squares, max(count - less, 0.0))


def _over(kind: int, empty: float = np.nan) -> Rule:
    return lambda o, x, dim=None, keepdim=False, **_: _reduced(o, kind, o.of(x), dim, keepdim, empty)


def _cumsum(o: Operands, x: Any, dim: int, dtype: Any = None) -> Registers:  # noqa: ARG001
    rows = list(np.moveaxis(np.atleast_1d(o.of(x)), dim, 0))
    for i in range(1, len(rows)):
        rows[i] = o.emit(machine.ADD, rows[i - 1], rows[i])
    return np.moveaxis(np.stack(rows), 0, dim).reshape(o.of(x).shape) if rows else o.of(x)


def _product(o: Operands, a: Any, b: Any) -> Registers:
    """Matrix products of all kinds: (..., m, k) and (..., k, n)."""
    a, b = (x if isinstance(x, np.ndarray) else o.of(x) for x in (a, b))
    if a.size * b.shape[-1] > LARGEST_PRODUCT:
        raise NotLowered("a matrix product of this size")
    before = o.writer.length
    found = o.writer.reduce(machine.ADD, o.emit(machine.MUL, a[..., :, :, None], b[..., None, :, :]), -2, 0.0)
    o.writer.products += o.writer.length - before
    return found


def _mv(o: Operands, a: Any, b: Any) -> Registers:
    return _product(o, a, o.of(b)[:, None])[:, 0]


def _dot(o: Operands, a: Any, b: Any) -> Registers:
    return _product(o, o.of(a)[None, :], o.of(b)[:, None]).reshape(())


def _with_product(multiply: Rule) -> Rule:
    def rule(o: Operands, x: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Registers:
        return o.emit(machine.ADD, _scaled(o, x, beta), _scaled_array(o, multiply(o, a, b), alpha))

    return rule


# Entries sent to places that are known.


def _known(index: Any) -> Tensor:
    if not isinstance(index, Tensor):
        raise NotLowered("an index that depends on the inputs")
    return index


def _sent(o: Operands, kind: int, base: Any, places: Tensor, source: Any) -> Registers:
    """Combine with the entries at these places, by their numbers in the flat base."""
    registers = o.of(base)
    targets = places.numpy().reshape(-1)
    sources = np.ascontiguousarray(np.broadcast_to(o.of(source), tuple(places.shape))).reshape(-1)
    return o.writer.gather_into(kind, registers.reshape(-1), targets, sources).reshape(registers.shape)


def _places(o: Operands, base: Any) -> Tensor:
    shape = o.of(base).shape
    return torch.arange(int(np.prod(shape))).view(shape)


def _index_add(o: Operands, x: Any, dim: int, index: Any, source: Any, alpha: Any = 1) -> Registers:
    places = _places(o, x).index_select(dim, _known(index))
    return _sent(o, machine.ADD, x, places, entries(_scaled(o, source, alpha)))


def _scatter_add(o: Operands, x: Any, dim: int, index: Any, source: Any) -> Registers:
    return _sent(o, machine.ADD, x, *_picked(o, x, dim, index, source))


def _picked(o: Operands, x: Any, dim: int, index: Any, source: Any) -> tuple[Tensor, Entries]:
    places = _places(o, x).gather(dim, _known(index))
    cut = tuple(slice(0, size) for size in places.shape)
    return places, entries(o.of(source)[cut])


def _scatter_reduce(
    o: Operands, x: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True
) -> Registers:
    kinds = {"sum": machine.ADD, "prod": machine.MUL, "amax": machine.MAXIMUM, "amin": machine.MINIMUM}
    if reduce not in kinds or not include_self:
        raise NotLowered(f"scatter_reduce with {reduce}")
    return _sent(o, kinds[reduce], x, *_picked(o, x, dim, index, source))


def _index_put(o: Operands, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Registers:
    places = _places(o, x)[tuple(slice(None) if i is None else _known(i) for i in indices)]
    if accumulate:
        return _sent(o, machine.ADD, x, places, values)
    result = o.of(x).copy()
    result.reshape(-1)[places.numpy()] = np.broadcast_to(o.of(values), tuple(places.shape))
    return result


def _scatter(o: Operands, x: Any, dim: int, index: Any, source: Any) -> Registers:
    result = o.of(x).copy()
    places = _places(o, x).gather(dim, _known(index))
    values = o.of(source)
    if values.ndim == places.dim():
        values = values[tuple(slice(0, size) for size in places.shape)]
    result.reshape(-1)[places.numpy()] = np.broadcast_to(values, tuple(places.shape))
    return result


UNARY = {
    "neg": machine.NEG, "abs": machine.ABS, "sign": machine.SIGN, "sgn": machine.SIGN, "sqrt": machine.SQRT,
    "exp": machine.EXP, "expm1": machine.EXPM1, "log": machine.LOG, "log1p": machine.LOG1P,
    "sin": machine.SIN, "cos": machine.COS, "tan": machine.TAN, "asin": machine.ASIN, "acos": machine.ACOS,
    "atan": machine.ATAN, "sinh": machine.SINH, "cosh": machine.COSH, "tanh": machine.TANH, "asinh": machine.ASINH,
    "acosh": machine.ACOSH, "atanh": machine.ATANH, "erf": machine.ERF, "floor": machine.FLOOR, "ceil": machine.CEIL,
    "isfinite": machine.ISFINITE, "isnan": machine.ISNAN, "logical_not": machine.NOT, "bitwise_not": machine.NOT,
}  # fmt: skip
BINARY = {
    "mul": machine.MUL, "maximum": machine.MAXIMUM, "minimum": machine.MINIMUM, "atan2": machine.ATAN2,
    "lt": machine.LT, "le": machine.LE, "eq": machine.EQ, "logical_and": machine.AND, "bitwise_and": machine.AND,
    "logical_or": machine.OR, "bitwise_or": machine.OR,
}  # fmt: skip

RULES: dict[str, Rule] = {
    **{name: _simply(kind) for name, kind in {**UNARY, **BINARY, "where": machine.WHERE}.items()},
    "gt": lambda o, x, y: o.emit(machine.LT, y, x),
    "ge": lambda o, x, y: o.emit(machine.LE, y, x),
    "ne": lambda o, x, y: o.emit(machine.NOT, o.emit(machine.EQ, x, y)),
    "logical_xor": lambda o, x, y: o.emit(machine.NOT, o.emit(machine.EQ, as_truth(o, x), as_truth(o, y))),
    "bitwise_xor": lambda o, x, y: o.emit(machine.NOT, o.emit(machine.EQ, x, y)),
    "add": _add,
    "sub": _sub,
    "rsub": _rsub,
    "div": _div,
    "pow": _pow,
    "square": lambda o, x: o.emit(machine.MUL, x, x),
    "log2": lambda o, x: o.emit(machine.DIV, o.emit(machine.LOG, x), np.log(2.0)),
    "log10": lambda o, x: o.emit(machine.DIV, o.emit(machine.LOG, x), np.log(10.0)),
    "exp2": lambda o, x: o.emit(machine.POW, 2.0, x),
    "reciprocal": lambda o, x: o.emit(machine.DIV, 1.0, x),
    "rsqrt": lambda o, x: o.emit(machine.DIV, 1.0, o.emit(machine.SQRT, x)),
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": lambda o, x, max: _clamp(o, x, None, max),
    "relu": lambda o, x: o.emit(machine.MAXIMUM, x, 0.0),
    "sigmoid": _sigmoid,
    "sigmoid_backward": _sigmoid_backward,
    "tanh_backward": _tanh_backward,
    "threshold_backward": _threshold_backward,
    "nan_to_num": _nan_to_num,
    "isinf": _isinf,
    "addcmul": _addcmul,
    "addcdiv": _addcdiv,
    "masked_fill": _masked_fill,
    "sum": _sum,
    "mean": _mean,
    "var": _var,
    "std": lambda o, x, *rest, **options: o.emit(machine.SQRT, _var(o, x, *rest, **options)),
    "amax": _over(machine.MAXIMUM),
    "amin": _over(machine.MINIMUM),
    "prod": _over(machine.MUL, 1.0),
    "any": _over(machine.OR, 0.0),
    "all": _over(machine.AND, 1.0),
    "cumsum": _cumsum,
    "mm": _product,
    "bmm": _product,
    "mv": _mv,
    "dot": _dot,
    "addmm": _with_product(_product),
    "baddbmm": _with_product(_product),
    "addmv": _with_product(_mv),
    "index_add": _index_add,
    "scatter_add": _scatter_add,
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
