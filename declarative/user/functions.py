"""The user's functions as the library calls them: of tensors, to one tensor; several unknowns are one flat row.

A module, or a method of one, becomes a pure function of tensors that the batch shares: for a call, its tensors are
inputs like any other. Whenever the function is evaluated, a copy of the module (of its objects, not of its tensors) is
filled with the tensors that the evaluation is for. The module itself is never touched: two threads do not see each
other, and a backward pass sees ``training`` as it was in the forward pass.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.jit import ScriptModule
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from ..torchside import flatten_tree, parametrizations_are_cached
from .unknowns import Nesting, is_nested

NAMES = ("objective", "equality", "inequality")


@dataclass(frozen=True)
class UserFunction:
    """A function of ``(*xs, *weights, u)``, from what the user has written.

    Attributes:
        name: ``objective``, ``equality`` or ``inequality``.
        written: the user's function of ``(*xs, u)``.
        nesting: how the user's unknowns are nested, if there are several; u is then flat.
        weights: the modules of this call, if this is a function with parameters, or others of the node are.
        squares: whether it returns residuals, and the objective is half the sum of their squares.
        returned: how the constraints were nested that the user's function has returned, by the shapes of its arguments.
            A cache: what is recorded is called but once.
        mixed: the shapes of arguments that have been looked at for tensors that broadcast; so that it is said once.
    """

    name: str
    written: Callable[..., Any]
    nesting: Nesting | None = None
    weights: Weights | None = None
    squares: bool = False
    returned: dict[Hashable, Nesting] = field(default_factory=dict, compare=False, repr=False)
    mixed: set[Hashable] = field(default_factory=set, compare=False, repr=False)

    def __call__(self, *arguments: Tensor) -> Any:
        if self.squares:
            return self.residuals(*arguments).square().sum() / 2
        value = self.value(*arguments)
        if self.name == "objective":
            return value
        *xs, u = arguments
        return self._flat((*(x.shape for x in xs[: len(xs) - count_weights(self)]), u.shape), value, u)

    def residuals(self, *arguments: Tensor) -> Tensor:
        """What the user's function returns, as one vector."""
        value = self.value(*arguments)
        parts, _, _ = flatten_tree(value)
        if not parts or not all(isinstance(part, Tensor) and part.is_floating_point() for part in parts):
            raise TypeError(
                "residuals must return a floating-point tensor, or a dict or tuple of such, but returned "
                f"{getattr(value, 'dtype', type(value).__name__)}."
            )
        return torch.cat([part.reshape(-1) for part in parts])

    def linearised(self, *arguments: Tensor) -> Tensor:
        """Half the sum of squares of r + J (u - here), with r and J as they are here: its Hessian is J'J.

        Value and slope are those of the objective. J times a vector is the transpose of J' times one, transposed.
        """
        *xs, u = arguments
        here = u.detach()
        result: Any = torch.func.vjp(lambda w: self.residuals(*xs, w), here)
        values, pull = result
        push = torch.func.vjp(lambda row: pull(row)[0], torch.zeros_like(values))[1]
        half: Tensor = (values + push(u - here)[0]).square().sum() / 2
        return half

    def value(self, *arguments: Tensor) -> Any:
        """What the user's function returns, as it is."""
        *xs, u = arguments
        passed = len(xs) - count_weights(self)
        given = (*xs[:passed], u if self.nesting is None else self.nesting.split(u))
        if self.weights is None or self.name not in self.weights.owners:
            return self.written(*given)
        return self.weights.call(self.name, unbound(self.written), xs[passed:], given)

    def _flat(self, shapes: tuple[torch.Size, ...], value: Any, u: Tensor) -> Any:
        """Constraints as one vector, in the order in which they first came for arguments of these shapes."""
        vector = isinstance(value, Tensor) and value.dim() <= 1
        if vector or not (isinstance(value, Tensor | list) or is_nested(value)):
            self.returned.pop(shapes, None)
            return value
        now, before = Nesting.of(value, self.name), self.returned.get(shapes)
        nesting = self.returned[shapes] = before if before is not None and before.fits(now) else now
        return nesting.join(value) if nesting.shapes else u.new_zeros(0)


def functions_of(problem: Any) -> dict[str, Any]:
    """The functions of a problem by name, those that there are."""
    return {name: function for name in NAMES if (function := getattr(problem, name)) is not None}


def no_objective(*arguments: Any) -> Tensor:
    """The objective of a node that solves equations: zero, whatever the unknowns are."""
    parts, _, _ = flatten_tree(arguments[-1])
    return 0.0 * torch.stack([part.sum() for part in parts]).sum()


def has_objective(function: Callable[..., Any]) -> bool:
    """Whether an objective is one that was given."""
    return as_written(function) is not no_objective


def as_written(function: Callable[..., Any]) -> Callable[..., Any]:
    """What the user has written, of which the function is made."""
    return function.written if isinstance(function, UserFunction) else function


def nesting_of(function: Callable[..., Any]) -> Nesting | None:
    """How the unknowns of a function are nested, if there are several."""
    return function.nesting if isinstance(function, UserFunction) else None


def count_weights(function: Callable[..., Any]) -> int:
    """How many tensors of modules a function takes after the user's inputs."""
    weights = function.weights if isinstance(function, UserFunction) else None
    return 0 if weights is None else len(weights.keys)


@dataclass(frozen=True)
class Weights:
    """The modules of a node's functions in one call.

    Attributes:
        owners: the modules as they were then, by the name of the function.
        keys: which of their tensors are passed, in order; one that occurs several times is passed once.
    """

    owners: Mapping[str, nn.Module]
    keys: tuple[int, ...]

    def call(self, name: str, function: Callable[..., Any], tensors: Sequence[Tensor], arguments: Sequence[Any]) -> Any:
        """The function of this name, of (module, *arguments), with these tensors in the place of the module's own."""
        return function(_copied(self.owners[name], dict(zip(self.keys, tensors, strict=True)), {}), *arguments)

    def modes(self) -> tuple[bool, ...]:
        """Which of the modules are in training, in order."""
        return tuple(module.training for owner in self.owners.values() for module in owner.modules())


def owner_of(function: object) -> nn.Module | None:
    """The module that a function is, or that it is a method of.

    Example:
        >>> import torch
        >>> net = torch.nn.Linear(2, 1)
        >>> owner_of(net) is net, owner_of(net.forward) is net, owner_of(torch.sin)
        (True, True, None)
    """
    owner = function if isinstance(function, nn.Module) else getattr(function, "__self__", None)
    return owner if isinstance(owner, nn.Module) else None


def unbound(function: Any) -> Callable[..., Any]:
    """A module, or a method of one, as a function of (module, *arguments)."""
    if isinstance(function, nn.Module):
        return lambda module, *arguments: module(*arguments)
    unbound: Callable[..., Any] = function.__func__
    return unbound


def refuse_unusual(name: str, function: object) -> None:
    """Refuse modules that hide what they compute.

    Raises:
        TypeError: it is one.
    """
    owner = owner_of(function)
    if isinstance(owner, ScriptModule):
        raise TypeError(
            f"{name} is a module of TorchScript, which cannot be differentiated here: pass the module itself."
        )
    if hasattr(owner, "_orig_mod"):
        raise TypeError(f"{name} is a compiled module, whose parameters cannot be replaced: pass the module itself.")


def to_be_contained(owners: Mapping[str, nn.Module], node: nn.Module) -> dict[str, nn.Module]:
    """The modules that a node has to contain, each object once: torch goes wrong where it meets one twice.

    (``torch.func.functional_call`` puts back the wrong tensors.) Left out are a module that is another one of them or a
    part of it, and what the node becomes a part of itself: a module whose constructor is running, and its parts.
    """
    taken = {id(part) for module in (node, *_being_made()) for part in module.modules()}
    found: dict[str, nn.Module] = {}
    # A module comes before its parts; of the same one, the first.
    for name in sorted(owners, key=lambda name: -sum(1 for _ in owners[name].modules())):
        if id(owners[name]) not in taken:
            found[name] = owners[name]
            taken.update(id(part) for part in owners[name].modules())
    return {name: found[name] for name in owners if name in found}


def _being_made() -> Iterator[nn.Module]:
    """The modules whose constructors are running."""
    frame = inspect.currentframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__init__" and code.co_argcount:
            made = frame.f_locals.get(code.co_varnames[0])
            if isinstance(made, nn.Module) and "_modules" in vars(made):
                yield made
        frame = frame.f_back


def as_contained(owners: Mapping[str, nn.Module], inside: Mapping[str, nn.Module | None]) -> dict[str, nn.Module]:
    """The modules of functions as the node contains them now, by the names of the functions.

    One that is a part of another is what stands in its place there.
    """
    found = {name: module for name in owners if (module := inside.get(name)) is not None}
    for name in owners.keys() - found.keys():
        places = ((other, _place(owners[name], owners[other])) for other in owners if inside.get(other) is not None)
        other, path = next((pair for pair in places if pair[1] is not None), ("", None))
        if path is None:
            found[name] = owners[name]
            continue
        try:
            found[name] = found[other].get_submodule(path)
        except AttributeError:  # what stands in the place of the whole has no such part
            found[name] = owners[name]
    return {name: found[name] for name in owners}


def _place(part: nn.Module, whole: nn.Module) -> str | None:
    """Where a module is in another one, such as ``layers.0``; None if it is not."""
    return next((path for path, module in whole.named_modules() if module is part), None)


def refuse_cycle(node: nn.Module, owners: Mapping[str, nn.Module]) -> None:
    """Refuse a module that a node contains and that contains the node: torch would walk around in it without end.

    Raises:
        ValueError: there is one.
    """
    for name, owner in owners.items():
        if name in vars(node)["_modules"] and any(part is node for part in owner.modules()):
            raise ValueError(
                f"the module that {name} belongs to contains this node, which contains the module: make the node in "
                "the module's constructor, where it becomes a part of it; or leave the node outside."
            )


def take_weights(owners: Mapping[str, nn.Module]) -> tuple[Weights, dict[str, Tensor]]:
    """The modules of a call as they are now, and their parameters and buffers by name, such as ``objective.weight``.

    Raises:
        ValueError: a parameter has no shape yet, or modules are not evaluated anew.
    """
    if owners and parametrizations_are_cached():
        raise ValueError(
            "a node evaluates its modules with other weights, which parametrize.cached() would not notice: call the "
            "node outside of it."
        )
    memo: dict[int, nn.Module] = {}
    copies = {name: _copied(owner, {}, memo) for name, owner in owners.items()}
    tensors: dict[int, tuple[str, Tensor]] = {}
    for name, copy in copies.items():
        for key, tensor in (*copy.named_parameters(), *copy.named_buffers()):
            if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
                raise ValueError(f"{name}.{key} has no shape yet: call the module once before the node.")
            tensors.setdefault(id(tensor), (f"{name}.{key}", tensor))
    # A buffer may be changed by its module before the backward pass, a parameter must not.
    values = {label: x if _is_plain_parameter(x) else x.clone() for label, x in tensors.values()}
    return Weights(copies, tuple(tensors)), values


def _is_plain_parameter(x: Tensor) -> bool:
    return isinstance(x, nn.Parameter) and not x.is_inference()


def _copied(module: nn.Module, tensors: Mapping[int, Tensor], memo: dict[int, nn.Module]) -> nn.Module:
    """A module with objects of its own, with tensors replaced by ``tensors[id]``; hooks and settings are the same."""
    if id(module) in memo:
        return memo[id(module)]
    copy: nn.Module = object.__new__(type(module))
    memo[id(module)] = copy

    def replaced(x: Any) -> Any:
        return tensors.get(id(x), x)

    state = vars(copy)
    for name, value in vars(module).items():
        again = type(value) is list and any(id(x) in tensors for x in value)  # recurrent networks have such a list
        state[name] = [replaced(x) for x in value] if again else value
    for kind in ("_parameters", "_buffers"):
        state[kind] = {name: replaced(x) for name, x in vars(module)[kind].items()}
    children = vars(module)["_modules"].items()
    state["_modules"] = {name: None if x is None else _copied(x, tensors, memo) for name, x in children}
    return copy


def reached(function: Any) -> Iterator[tuple[str, object]]:
    """What a function can reach other than through its arguments, and what the user calls it.

    These are what it is bound to, has by default, names or closes over.
    """
    if isinstance(function, functools.partial):
        names = _parameters(function.func)[: len(function.args)]
        yield from itertools.zip_longest(names, function.args, fillvalue="w")
        yield from function.keywords.items()
        function = function.func
    owner = getattr(function, "__self__", function)  # an object that can be called is its own
    yield from ((f"self.{name}", value) for name, value in getattr(owner, "__dict__", {}).items())
    code = getattr(function, "__code__", None)
    if code is None:
        return
    last = function.__defaults__ or ()
    yield from zip(code.co_varnames[code.co_argcount - len(last) :], last, strict=False)
    yield from (function.__kwdefaults__ or {}).items()
    yield from ((name, function.__globals__[name]) for name in code.co_names if name in function.__globals__)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # not filled yet
            yield name, cell.cell_contents


def _parameters(function: Any) -> list[str]:
    """The names of a function's parameters, if it tells."""
    with contextlib.suppress(ValueError):
        return list(inspect.signature(function).parameters)
    return []
