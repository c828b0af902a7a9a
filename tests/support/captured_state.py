"""Functions that reach their number s through everything that Python knows, and ways to change it.

The solution is s times the input, wherever s comes from, and so is the gradient.
"""

import contextvars
import functools
import math
import os
import types
import weakref
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from declarative import DeclarativeNode
from problems import OptimalControl
from tests.support.helpers import DOUBLE

BEFORE, AFTER = 2.0, 10.0


def tensor(value: float = BEFORE) -> Tensor:
    return torch.tensor([value], dtype=DOUBLE)


def distance(x: Tensor, u: Tensor, s: Any) -> Tensor:
    return (u - s * x).square().sum()


@dataclass(frozen=True)
class Kind:
    """Functions of a node, with what they capture."""

    functions: dict[str, Any]
    change: Callable[[], Any]  # from BEFORE to AFTER
    parameter: Tensor | None = None  # the tensor, if it is one

    def node(self, **options: Any) -> Any:
        make = options.pop("make", None) or self.functions.get("make", DeclarativeNode)
        given = {name: value for name, value in self.functions.items() if name != "make"}
        return make(**{"start": 1, **given, **options})


KINDS: dict[str, Callable[[], Kind]] = {}


def kind(name: str) -> Callable[[Callable[[], Kind]], Callable[[], Kind]]:
    def registered(make: Callable[[], Kind]) -> Callable[[], Kind]:
        KINDS[name] = make
        return make

    return registered


def objective(read: Callable[[], Any], change: Callable[[], Any], parameter: Tensor | None = None) -> Kind:
    return Kind({"objective": lambda x, u: distance(x, u, read())}, change, parameter)


def simply(name: str, make: Callable[[], tuple[Callable[[], Any], Callable[[], Any]]]) -> None:
    KINDS[name] = lambda: objective(*make())


# A tensor, changed in place, reached in many ways


def _fill(s: Tensor) -> Callable[[], Any]:
    def change() -> None:
        with torch.no_grad():
            s.fill_(AFTER)

    return change


class Holder:
    shared: Any = None

    def __init__(self, s: Any) -> None:
        self.s = s

    def objective(self, x: Tensor, u: Tensor) -> Tensor:
        return distance(x, u, self.s)

    __call__ = objective

    @property
    def factor(self) -> Any:
        return self.s


class Slots:
    __slots__ = ("s",)

    def __init__(self, s: Any) -> None:
        self.s = s


@dataclass
class Data:
    s: Any
    more: dict[str, Any] = field(default_factory=dict)


Named = namedtuple("Named", "s")
GLOBAL: Any = None
CONTEXT: contextvars.ContextVar[Any] = contextvars.ContextVar("s")


def read_global() -> Any:
    return GLOBAL


def set_global(s: Any) -> None:
    global GLOBAL
    GLOBAL = s


def helper_of(s: Tensor) -> Callable[[], Tensor]:
    return lambda: s


def nested_helper(s: Tensor) -> Callable[[], Tensor]:
    inner = helper_of(s)
    return lambda: inner()


class Attribute(nn.Module):
    def __init__(self, s: Any) -> None:
        super().__init__()
        self.s = s

    def forward(self, x: Tensor, u: Tensor) -> Tensor:
        return distance(x, u, self.s)


class Scale(nn.Module):
    def __init__(self, s: Tensor) -> None:
        super().__init__()
        self.register_buffer("s", s)

    def forward(self) -> Tensor:
        return self.s


def in_module(s: Tensor) -> Callable[[], Tensor]:
    module = nn.Module()
    module.part = nn.Module()
    module.part.weight = nn.Parameter(s, requires_grad=False)
    return lambda: module.part.weight


PLACES: dict[str, Callable[[Tensor], Callable[[], Any]]] = {
    "closure": lambda s: lambda: s,
    "dict": lambda s: functools.partial(dict.__getitem__, {"s": s}, "s"),
    "dict in a closure": lambda s: (lambda held: lambda: held["s"])({"s": s}),
    "dict of lists": lambda s: (lambda held: lambda: held["s"][0]["t"])({"s": [{"t": s}]}),
    "list": lambda s: (lambda held: lambda: held[1])([0, s]),
    "tuple": lambda s: (lambda held: lambda: held[0])((s,)),
    "named tuple": lambda s: (lambda held: lambda: held.s)(Named(s)),
    "attribute of an object": lambda s: (lambda held: lambda: held.s)(Holder(s)),
    "attribute of an attribute": lambda s: (lambda held: lambda: held.s.s)(Holder(Holder(s))),
    "dict of an object": lambda s: (lambda held: lambda: held.s["t"])(Holder({"t": s})),
    "slot": lambda s: (lambda held: lambda: held.s)(Slots(s)),
    "data class": lambda s: (lambda held: lambda: held.more["s"])(Data(0, {"s": s})),
    "namespace": lambda s: (lambda held: lambda: held.s)(types.SimpleNamespace(s=s)),
    "property": lambda s: (lambda held: lambda: held.factor)(Holder(s)),
    "class attribute": lambda s: (lambda held: lambda: held.shared)(type("Own", (Holder,), {"shared": s})(0)),
    "helper": helper_of,
    "helper of a helper": nested_helper,
    "module in a closure": in_module,
    "buffer of a module": lambda s: Scale(s),
    "parameter list": lambda s: (lambda held: lambda: held[0])(
        nn.ParameterList([nn.Parameter(s, requires_grad=False)])
    ),
    "view": lambda s: (lambda held: lambda: held.view(1))(s),
    "weak reference": lambda s: (lambda held, _: lambda: held())(weakref.ref(s), s),
    "partial": lambda s: functools.partial(lambda t: t, s),
    "default argument": lambda s: lambda s=s: s,
    "keyword default": lambda s: lambda *, s=s: s,
    "default that is a list": lambda s: lambda held=[s]: held[0],
    "function attribute": lambda s: _with_attribute(s),
    "global": lambda s: (set_global(s), read_global)[1],
    "context variable": lambda s: (CONTEXT.set(s), CONTEXT.get)[1],
}


def _with_attribute(s: Tensor) -> Callable[[], Any]:
    def read() -> Any:
        return read.s  # type: ignore[attr-defined]

    read.s = s  # type: ignore[attr-defined]
    return read


def _placed(place: Callable[[Tensor], Callable[[], Any]]) -> Callable[[], Kind]:
    def make() -> Kind:
        s = tensor()
        return objective(place(s), _fill(s), s)

    return make


KINDS.update({f"tensor: {name}": _placed(place) for name, place in PLACES.items()})


@kind("tensor: bound method")
def _method() -> Kind:
    s = tensor()
    return Kind({"objective": Holder(s).objective}, _fill(s), s)


@kind("tensor: callable object")
def _callable() -> Kind:
    s = tensor()
    return Kind({"objective": Holder(s)}, _fill(s), s)


@kind("tensor: attribute of a module that is the objective")
def _attribute() -> Kind:
    s = tensor()
    return Kind({"objective": Attribute(s)}, _fill(s), s)


# In another way than torch counts


@kind("tensor: through data")
def _through_data() -> Kind:
    s = tensor()
    held = {"s": s}
    return objective(lambda: held["s"], lambda: s.data.fill_(AFTER), s)


@kind("tensor: other data")
def _other_data() -> Kind:
    s = tensor()
    held = {"s": s}
    return objective(lambda: held["s"], lambda: setattr(s, "data", tensor(AFTER)), s)


@kind("tensor: memory of an array")
def _memory() -> Kind:
    array = np.array([BEFORE])
    s = torch.from_numpy(array)
    return objective(lambda: s, lambda: array.fill(AFTER), s)


# In another function than the objective


@kind("tensor: equality")
def _equality() -> Kind:
    held = {"s": tensor()}
    return Kind(
        {"objective": lambda _, u: u.square().sum(), "equality": lambda x, u: u - held["s"] * x},
        _fill(held["s"]),
        held["s"],
    )


@kind("tensor: inequality")
def _inequality() -> Kind:
    held = {"s": tensor()}
    return Kind(
        {"objective": lambda _, u: (u - 100).square().sum(), "inequality": lambda x, u: u - held["s"] * x},
        _fill(held["s"]),
        held["s"],
    )


@kind("tensor: residuals")
def _residuals() -> Kind:
    held = {"s": tensor()}
    return Kind({"residuals": lambda x, u: u - held["s"] * x}, _fill(held["s"]), held["s"])


@kind("tensor: closure of a bound")
def _bound() -> Kind:
    s = tensor()
    functions = {"objective": lambda _, u: (u - 100).square().sum(), "bounds": (None, lambda x: s * x)}
    return Kind(functions, _fill(s), s)


@kind("tensor: dict of a bound")
def _dict_bound() -> Kind:
    held = {"s": tensor()}
    functions = {"objective": lambda _, u: (u - 100).square().sum(), "bounds": (lambda x: held["s"] * x, None)}
    functions["objective"] = lambda _, u: (u + 100).square().sum()
    return Kind(functions, _fill(held["s"]), held["s"])


class Trajectory(nn.Module):
    """The first control of a trajectory of one step, as a node of the input."""

    def __init__(self, held: dict[str, Any], **options: Any) -> None:
        super().__init__()
        options.pop("start", None)
        self.layer = OptimalControl(
            lambda x, u: x * held["s"] + 0 * u, lambda _, u: u.square().sum(), steps=1, controls=1, **options
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)["states"][:, -1]


def _trajectory(held: dict[str, Any]) -> Callable[..., nn.Module]:
    return lambda **options: Trajectory(held, **options)


@kind("tensor: step of a trajectory")
def _step() -> Kind:
    held = {"s": tensor()}
    return Kind({"make": _trajectory(held)}, _fill(held["s"]), held["s"])


# Names that are bound anew, numbers, arrays, functions


@kind("attribute bound to another tensor")
def _rebound_attribute() -> Kind:
    held = Holder(tensor())
    return objective(lambda: held.s, lambda: setattr(held, "s", tensor(AFTER)))


@kind("entry of a dict replaced")
def _rebound_entry() -> Kind:
    held = {"s": tensor()}
    return objective(lambda: held["s"], lambda: held.update(s=tensor(AFTER)))


@kind("list that grows")
def _grown() -> Kind:
    held = [tensor()]
    return objective(lambda: held[-1], lambda: held.append(tensor(AFTER)))


@kind("parameter of a module replaced")
def _replaced_parameter() -> Kind:
    module = nn.Linear(1, 1, bias=False, dtype=DOUBLE).requires_grad_(False)
    module.weight.data.fill_(BEFORE)

    def change() -> None:
        module.weight = nn.Parameter(tensor(AFTER).view(1, 1), requires_grad=False)

    return Kind({"objective": lambda x, u: (u - module(x)).square().sum()}, change)


@kind("variable of a closure bound to another tensor")
def _rebound() -> Kind:
    s = tensor()

    def change() -> None:
        nonlocal s
        s = tensor(AFTER)

    return objective(lambda: s, change)


@kind("number")
def _number() -> Kind:
    s = BEFORE

    def change() -> None:
        nonlocal s
        s = AFTER

    return objective(lambda: s, change)


@kind("global number")
def _global_number() -> Kind:
    set_global(BEFORE)
    return objective(lambda: GLOBAL, lambda: set_global(AFTER))


def _held(name: str, make: Callable[[Any], Any], read: Callable[[Any], Any], change: Callable[[Any], Any]) -> None:
    def made() -> Kind:
        held = make(BEFORE)
        return objective(lambda: read(held), lambda: change(held))

    KINDS[name] = made


_held("number: attribute", Holder, lambda held: held.s, lambda held: setattr(held, "s", AFTER))
_held("number: whole", lambda _: Holder(2), lambda held: held.s, lambda held: setattr(held, "s", 10))
_held("number: slot", Slots, lambda held: held.s, lambda held: setattr(held, "s", AFTER))
_held("number: property", Holder, lambda held: held.factor, lambda held: setattr(held, "s", AFTER))
_held("number: dict", lambda s: {"s": s}, lambda held: held["s"], lambda held: held.update(s=AFTER))
_held("number: list", lambda s: [s], lambda held: held[0], lambda held: held.__setitem__(0, AFTER))
_held("number: data class", Data, lambda held: held.s, lambda held: setattr(held, "s", AFTER))
_held("number: computed", Holder, lambda held: math.sqrt(held.s**2), lambda held: setattr(held, "s", AFTER))
_held("length of a list", lambda _: [0, 0], len, lambda held: held.extend([0] * 8))
_held(
    "number: class attribute",
    lambda s: type("Own", (Holder,), {"shared": s})(0),
    lambda held: held.shared,
    lambda held: setattr(type(held), "shared", AFTER),
)
_held("array", lambda s: np.array([s]), torch.from_numpy, lambda held: held.fill(AFTER))
_held("array: made a tensor", lambda s: np.array([s]), torch.tensor, lambda held: held.fill(AFTER))
_held("array: one entry", lambda s: np.array([s]), lambda held: float(held[0]), lambda held: held.fill(AFTER))
_held(
    "array: entry of NumPy's type", lambda s: np.array([s]), lambda held: held[0].item(), lambda held: held.fill(AFTER)
)
_held(
    "branch on a flag",
    lambda _: Holder(False),
    lambda held: AFTER if held.s else BEFORE,
    lambda h: setattr(h, "s", True),
)
_held("string", lambda _: {"s": "2.0"}, lambda held: float(held["s"]), lambda held: held.update(s="10.0"))
_held(
    "method replaced",
    lambda s: types.SimpleNamespace(read=lambda: s),
    lambda held: held.read(),
    lambda held: setattr(held, "read", lambda: AFTER),
)
_held(
    "mode of a module",
    lambda _: nn.Module().train(),
    lambda held: BEFORE if held.training else AFTER,
    lambda held: held.eval(),
)
_held(
    "environment",
    lambda s: os.environ.__setitem__("DECLARATIVE_TEST_S", str(s)),
    lambda _: float(os.environ["DECLARATIVE_TEST_S"]),
    lambda _: os.environ.__setitem__("DECLARATIVE_TEST_S", str(AFTER)),
)


@kind("attribute of a module that is the objective")
def _attribute_number() -> Kind:
    module = Attribute(BEFORE)
    return Kind({"objective": module}, lambda: setattr(module, "s", AFTER))


@kind("number of a bound")
def _bound_number() -> Kind:
    held = {"s": BEFORE}
    functions = {"objective": lambda _, u: (u - 100).square().sum(), "bounds": (None, lambda x: held["s"] * x)}
    return Kind(functions, lambda: held.update(s=AFTER))


@kind("number of a trajectory's step")
def _step_number() -> Kind:
    held = {"s": BEFORE}
    return Kind({"make": _trajectory(held)}, lambda: held.update(s=AFTER))
