"""Functions that are told apart by looking at them: no call is needed to know that they still do the same.

Such a function is written in Python, reaches nothing but torch, mathematics, builtins and functions of the same kind,
and captures nothing but numbers and the like. Given tensors of the same shapes it does the same operations every time.
"""

from __future__ import annotations

import dis
import functools
import math
import types
from collections.abc import Callable, Hashable

import torch

REACHES = {"LOAD_GLOBAL", "LOAD_NAME"}
CHANGES = {"STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME", "STORE_DEREF"}
MODULES = (torch, torch.nn.functional, torch.linalg, torch.special, math)
HARMLESS = {
    *(
        "abs",
        "all",
        "any",
        "bool",
        "divmod",
        "enumerate",
        "float",
        "int",
        "isinstance",
        "len",
        "list",
        "map",
        "max",
        "min",
    ),
    *("pow", "range", "reversed", "round", "slice", "sorted", "sum", "tuple", "zip", "ValueError", "TypeError"),
}
ASKS = ("is_", "are_", "get_", "__", "_C")  # names that could ask for the state of the process, and:
STATE = {"initial_seed", "seed", "manual_seed", "backends", "random", "default_generator", "utils"}


class Opaque(Exception):  # noqa: N818
    """What a function does cannot be seen from outside."""


def fingerprint(functions: tuple[Callable[..., object] | None, ...]) -> Hashable | None:
    """What makes these functions what they are; None if that cannot be seen from outside."""
    if torch._C._len_torch_function_stack():
        return None
    try:
        return (torch.get_default_dtype(), *(_told(function, ()) for function in functions))
    except Opaque:
        return None


def _told(function: object, inside: tuple[object, ...]) -> Hashable:
    if function is None:
        return None
    if type(function) is functools.partial:
        keywords = tuple((name, _value(x)) for name, x in function.keywords.items())
        return (_told(function.func, inside), tuple(_value(x) for x in function.args), keywords)
    if type(function) is not types.FunctionType or function.__kwdefaults__ or function.__dict__:
        raise Opaque
    if function in inside:  # it calls itself, or one that calls it
        return ()
    inside = (*inside, function)
    try:
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError as error:  # a cell that is not filled yet
        raise Opaque from error
    reached = tuple(_reached(function, name, inside) for name in _names(function.__code__))
    return (function.__code__, reached, *(_value(x) for x in (*cells, *(function.__defaults__ or ()))))


def _reached(function: types.FunctionType, name: str, inside: tuple[object, ...]) -> Hashable:
    """A global name that a function reads: something that does not change, a number, or another function."""
    space = function.__globals__
    if name not in space:
        if name in HARMLESS:
            return name
        raise Opaque
    value = space[name]
    if any(value is module for module in MODULES):
        return name
    return _told(value, inside) if isinstance(value, types.FunctionType) else _value(value)


def _value(x: object) -> Hashable:
    if isinstance(x, float):
        return x.hex()
    if x is None or type(x) in (int, bool, str):
        return (type(x), x)
    if type(x) is tuple:
        return tuple(_value(part) for part in x)
    raise Opaque


@functools.lru_cache(maxsize=1024)
def _seen_names(code: types.CodeType) -> tuple[str, ...] | None:
    names: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in CHANGES:
            return None
        if instruction.opname in REACHES:
            names.add(str(instruction.argval))
    if any(name.startswith(ASKS) or name in STATE for name in code.co_names):
        return None
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            more = _seen_names(inner)
            if more is None:
                return None
            names.update(more)
    return tuple(sorted(names))


def _names(code: types.CodeType) -> tuple[str, ...]:
    """The global names that code reads, its inner functions included."""
    names = _seen_names(code)
    if names is None:
        raise Opaque
    return names
