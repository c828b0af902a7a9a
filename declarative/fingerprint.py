"""Functions that are told apart by looking at them: no call is needed to know that they still do the same.

Such a function is written in Python, reaches nothing but torch, mathematics and builtins, and captures nothing but
numbers and the like. Given tensors of the same shapes it does the same operations every time.
"""

from __future__ import annotations

import builtins
import dis
import math
import types
from collections.abc import Callable, Hashable
from functools import lru_cache

import torch

REACHES = {"LOAD_GLOBAL", "LOAD_NAME"}
CHANGES = {"STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME", "STORE_DEREF"}


def fingerprint(functions: tuple[Callable[..., object] | None, ...]) -> Hashable | None:
    """What makes these functions what they are; None if that cannot be seen from outside."""
    if torch._C._len_torch_function_stack():
        return None
    told: list[Hashable] = [torch.get_default_dtype()]
    for function in functions:
        if function is None:
            told.append(None)
            continue
        if type(function) is not types.FunctionType or function.__kwdefaults__:
            return None
        names = _names(function.__code__)
        if names is None or not all(_harmless(function, name) for name in names):
            return None
        try:
            cells = [cell.cell_contents for cell in function.__closure__ or ()]
        except ValueError:  # a cell that is not filled yet
            return None
        values = [_value(x) for x in (*cells, *(function.__defaults__ or ()))]
        if None in values:
            return None
        told.append((function.__code__, *values))
    return tuple(told)


def _value(x: object) -> Hashable | None:
    if isinstance(x, float):
        return x.hex()
    if x is None or type(x) in (int, bool, str):
        return (type(x), x)
    if type(x) is tuple:
        parts = tuple(_value(part) for part in x)
        return None if None in parts else parts
    return None


def _harmless(function: types.FunctionType, name: str) -> bool:
    space = function.__globals__
    if name not in space:
        return name in vars(builtins)
    value = space[name]
    return value is torch or value is torch.nn.functional or value is torch.linalg or value is math


@lru_cache(maxsize=1024)
def _names(code: types.CodeType) -> frozenset[str] | None:
    """The global names that code reaches, its inner functions included; None if it does more than read them."""
    names: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in CHANGES:
            return None
        if instruction.opname in REACHES:
            names.add(str(instruction.argval))
    if any(name.startswith(("is_", "get_", "__")) for name in code.co_names):  # could ask for the state of the process
        return None
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            more = _names(inner)
            if more is None:
                return None
            names |= more
    return frozenset(names)
