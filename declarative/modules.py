"""Functions with parameters: modules, and methods of modules, as pure functions of tensors that the batch shares.

For a call, the tensors of the modules are inputs like any other. Whenever a function is evaluated, a copy of its module
(of its objects, not of its tensors) is filled with the tensors that the evaluation is for. The module itself is never
touched: two threads do not see each other, and a backward pass sees ``training`` as it was in the forward pass.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.jit import ScriptModule
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from .torchside import parametrizations_are_cached


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


def is_being_made(owner: nn.Module) -> bool:
    """Whether the constructor of a module is running.

    A node that is made there, of the module's own methods, becomes a part of it and must not contain it as well.
    """
    frame = inspect.currentframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__init__" and code.co_argcount and frame.f_locals.get(code.co_varnames[0]) is owner:
            return True
        frame = frame.f_back
    return False


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
    own = {label: x if _is_plain_parameter(x) else x.clone() for label, x in tensors.values()}
    return Weights(copies, tuple(tensors)), own


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
