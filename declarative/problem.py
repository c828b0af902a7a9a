"""The optimisation problem: stated for one instance, evaluated and differentiated for a batch.

    minimise f(x, u) over u   subject to   h(x, u) = 0   and   g(x, u) <= 0

Inside the library both kinds of constraints are stacked, c = [h; g], and there is one sign convention, stated here:

    L(x, u, l) = f(x, u) - l' c(x, u),   with   l' D_U c = D_U f   at a solution,

so that the stacked multipliers of inequalities are not positive. This is the only file in which ``vmap`` is called on
the user's functions. Every method is differentiable in all of its tensors, to any order, forward and reverse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import (
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    maybe_current_level,
    maybe_get_bdim,
)

Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Problem:
    """The user's functions of ``(*xs, u)`` for one problem, without a batch dimension.

    Where the general reverse pass over them costs more than the rest of back-propagation, ``pullback`` can be its
    result as a formula: ``(xs, u, multipliers, z, s) -> -(B' z + C' s)`` for every input, on a batch, differentiable,
    with B from the objective alone where the multipliers are None.
    """

    objective: Function
    equality: Function | None = None
    inequality: Function | None = None
    pullback: Callable[..., tuple[Tensor, ...]] | None = None


@dataclass(frozen=True)
class Batch:
    """A batch of instances of one problem: the inputs, and which of them (``in_dims`` None) all instances share.

    The variable is flat here: u has shape (size, m), and each instance sees it in its own ``shape``.
    """

    problem: Problem
    xs: tuple[Tensor, ...]
    in_dims: tuple[int | None, ...]
    size: int
    shape: torch.Size  # of one problem's u
    p: int  # equality constraints
    q: int  # inequality constraints

    @property
    def k(self) -> int:
        """The number of all constraints."""
        return self.p + self.q

    @property
    def m(self) -> int:
        """The number of variables of one problem."""
        return math.prod(self.shape)

    def replace(
        self, xs: Sequence[Tensor], in_dims: Sequence[int | None] | None = None, size: int | None = None
    ) -> Batch:
        """The same problem with other inputs."""
        dims = self.in_dims if in_dims is None else tuple(in_dims)
        return Batch(self.problem, tuple(xs), dims, self.size if size is None else size, self.shape, self.p, self.q)

    def select(self, rows: Tensor) -> Batch:
        """The instances at these positions (indices or a mask)."""
        index = rows.nonzero().flatten() if rows.dtype == torch.bool else rows
        xs = [x if dim is None else x[index] for x, dim in zip(self.xs, self.in_dims, strict=True)]
        return self.replace(xs, size=len(index))

    def unshared(self) -> Batch:
        """The same instances, each with its own copy (a view) of the shared inputs."""
        xs = [x.expand(self.size, *x.shape) if dim is None else x for x, dim in zip(self.xs, self.in_dims, strict=True)]
        return self.replace(xs, in_dims=(0,) * len(xs))

    def to(self, dtype: torch.dtype) -> Batch:
        """The same instances with floating-point inputs of another precision."""
        return self.replace([x.to(dtype) if x.is_floating_point() else x for x in self.xs])

    def in_double(self) -> Batch:
        """The same instances in double precision, unless the functions hold constants that do not mix with it."""
        if all(x.dtype == torch.float64 for x in self.xs if x.is_floating_point()):
            return self
        double = self.to(torch.float64)
        try:
            u = torch.ones(self.size, self.m, dtype=torch.float64, device=self.xs[0].device)
            double.objective(u)
            double.constraints(u)
        except RuntimeError as error:
            if "dtype" in str(error) or "scalar type" in str(error):  # such as a product with a float32 matrix
                return self
        return double

    # The functions of one problem.

    def _objective(self, u: Tensor, *xs: Tensor) -> Tensor:
        return self.problem.objective(*xs, u.view(self.shape))

    def _constraints(self, u: Tensor, *xs: Tensor) -> Tensor:
        functions = (self.problem.equality, self.problem.inequality)
        rows = [f(*xs, u.view(self.shape)).reshape(-1) for f in functions if f is not None]
        return torch.cat([row.to(u.dtype) for row in rows]) if rows else u.new_zeros(0)

    # The same for the batch.

    def _over_batch(self, function: Function, xs: Sequence[Tensor], *rows: Tensor) -> Tensor:
        if not self.size:
            raise ValueError("a batch of no problems cannot be evaluated")
        in_dims = (*(0 for _ in rows), *self.in_dims)
        result: Tensor = torch.vmap(function, in_dims=in_dims)(*rows, *xs)
        return result

    def objective(self, u: Tensor) -> Tensor:  # (size, m) -> (size,)
        """f for every problem."""
        return self._over_batch(self._objective, self.xs, u)

    def constraints(self, u: Tensor) -> Tensor:  # (size, m) -> (size, k)
        """c = [h; g] for every problem."""
        return self._over_batch(self._constraints, self.xs, u) if self.k else u.new_zeros(*u.shape[:-1], 0)

    def _lagrangian(self, u: Tensor, multipliers: Tensor | None, xs: Sequence[Tensor]) -> Tensor:
        value = self._over_batch(self._objective, xs, u).sum()
        if multipliers is None or not self.k:
            return value
        return value - (multipliers * self._over_batch(self._constraints, xs, u)).sum()

    def gradient(self, u: Tensor, multipliers: Tensor | None = None) -> Tensor:  # (size, m)
        """D_U L, or D_U f without multipliers. Problems are independent, so their sum is differentiated."""
        return self._gradient(u, multipliers, self.xs)

    def _gradient(self, u: Tensor, multipliers: Tensor | None, xs: Sequence[Tensor]) -> Tensor:
        result: Tensor = torch.func.grad(lambda u: self._lagrangian(u, multipliers, xs))(u)
        return result

    def jacobian(self, u: Tensor) -> Tensor:  # (size, k, m)
        """A = D_U c, one row per constraint."""
        if not self.k:
            return u.new_zeros(self.size, 0, self.m)
        return _rows(self.constraints, u, self.k)

    def hessian(self, u: Tensor, multipliers: Tensor | None = None) -> Tensor:  # (size, m, m)
        """H = D^2_UU L, or H_hat = D^2_UU f without multipliers."""
        return _rows(lambda u: self.gradient(u, multipliers), u, self.m)

    def expand(self, u: Tensor, multipliers: Tensor | None = None) -> Expansion:
        """f, D_U L, c and everything that one more reverse pass gives, from one evaluation of the functions."""

        def lagrangian(u: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            objective = self._over_batch(self._objective, self.xs, u)
            if not self.k:
                return objective.sum(), (objective, u.new_zeros(*u.shape[:-1], 0))
            values = self._over_batch(self._constraints, self.xs, u)
            weighted = 0.0 if multipliers is None else (multipliers * values).sum()
            return objective.sum() - weighted, (objective, values)

        def first_order(u: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
            slope, (objective, values) = torch.func.grad(lagrangian, has_aux=True)(u)
            return (slope, values), objective

        result: Any = torch.func.vjp(first_order, u, has_aux=True)
        (slope, values), pull, objective = result
        return Expansion(objective, slope, values, pull)

    def pullback(
        self,
        u: Tensor,  # (size, m)
        multipliers: Tensor | None,  # (size, k)
        z: Tensor,  # (size, m)
        s: Tensor | None,  # (size, k)
        wanted: Sequence[int] | None = None,
    ) -> tuple[Tensor, ...]:
        """-(B' z + C' s) for the wanted inputs, by one reverse pass over x -> -(z' D_U L(x, u, l) + s' c(x, u)).

        An input that the batch shares receives the sum over the batch.
        """
        chosen = range(len(self.xs)) if wanted is None else wanted
        if self.problem.pullback is not None and None not in self.in_dims:
            s = u.new_zeros(*u.shape[:-1], self.k) if s is None else s
            grads = self.problem.pullback(self.xs, u, multipliers, z, s)
            return tuple(grads[i] for i in chosen)

        def scalar(*inputs: Tensor) -> Tensor:
            xs = list(self.xs)
            for i, x in zip(chosen, inputs, strict=True):
                xs[i] = x
            value = -(z * self._gradient(u, multipliers, xs)).sum()
            if s is not None and self.k:
                value = value - (s * self._over_batch(self._constraints, xs, u)).sum()
            return value

        inputs = [self.xs[i] for i in chosen]
        result: tuple[Tensor, ...] = torch.func.grad(scalar, argnums=tuple(range(len(inputs))))(*inputs)
        return result

    def pushforward(
        self,
        u: Tensor,
        multipliers: Tensor | None,
        tangents: Sequence[Tensor],
        wanted: Sequence[int],
    ) -> tuple[Tensor, Tensor]:
        """(-B dx, -C dx): the transpose of :meth:`pullback`, which is linear in (z, s)."""
        zeros = (torch.zeros_like(u), u.new_zeros(*u.shape[:-1], self.k))
        transposed = torch.func.vjp(lambda z, s: self.pullback(u, multipliers, z, s, wanted), *zeros)[1]
        r, t = transposed(tuple(tangents))
        return r, t


def flat(x: Tensor) -> Tensor:
    """(batch, *shape) as (batch, m); a scalar u has m = 1."""
    return x.reshape(x.shape[0], math.prod(x.shape[1:]))


@dataclass(frozen=True)
class Expansion:
    """A batch of problems at a point: values, first derivatives, and second ones on demand."""

    objective: Tensor  # (size,)
    gradient: Tensor  # of the Lagrangian, (size, m)
    values: Tensor  # c, (size, k)
    pull: Callable[[tuple[Tensor, Tensor]], tuple[Tensor]]  # (z, s) -> H z + A' s

    def matrices(self) -> Pair:
        """H (size, m, m) and A (size, k, m), in one vectorised reverse pass."""
        (size, m), k = self.gradient.shape, self.values.shape[-1]
        basis = torch.eye(m + k, dtype=self.gradient.dtype, device=self.gradient.device)
        rows = self._rows(basis.unsqueeze(1).expand(m + k, size, m + k))
        return rows[:, :m], rows[:, m:]

    def jacobian_and_curvature(self, direction: Tensor) -> Pair:  # (size, m)
        """A (size, k, m) and H times a direction (size, m)."""
        k = self.values.shape[-1]
        basis = torch.eye(k, dtype=direction.dtype, device=direction.device).unsqueeze(1)
        constraints = torch.cat(
            [torch.zeros_like(direction[..., :1]).expand(k, *direction.shape), basis.expand(k, len(direction), k)], -1
        )
        along = torch.cat([direction, direction.new_zeros(len(direction), k)], -1).unsqueeze(0)
        rows = self._rows(torch.cat([constraints, along]))
        return rows[:, :k], rows[:, k]

    def _rows(self, cotangents: Tensor) -> Tensor:  # (count, size, m + k) -> (size, count, m)
        sizes = [self.gradient.shape[-1], self.values.shape[-1]]
        rows: Tensor = torch.vmap(lambda row: self.pull(row.split(sizes, -1))[0])(cotangents)
        return rows.transpose(0, 1)


Pair = tuple[Tensor, Tensor]


def _rows(function: Function, u: Tensor, count: int) -> Tensor:
    """The Jacobian of a function of (size, m) whose rows depend on one problem each, as (size, count, m).

    Reverse mode over the summed batch with ``count`` cotangents at once: several times cheaper than vmap(jacrev(...)).
    """
    value, pull = torch.func.vjp(function, u)[:2]
    basis = torch.eye(count, dtype=value.dtype, device=value.device).unsqueeze(1).expand(count, u.shape[0], count)
    rows: Tensor = torch.vmap(lambda row: pull(row)[0])(basis)
    return rows.transpose(0, 1)


# The boundary: the user's functions are called once and looked at before anything is computed with them.


def inspect(problem: Problem, xs: tuple[Tensor, ...], in_dims: tuple[int | None, ...], size: int, u: Tensor) -> Batch:
    """Call each function once for the batch at u (size, *shape), check what it returns, and count the constraints.

    Raises:
        ValueError, TypeError: a function returns the wrong thing, does not depend on u, or reaches a tensor that
            requires a gradient other than through its arguments.
    """
    batch = Batch(problem, xs, in_dims, size, u.shape[1:], 0, 0)
    counts = {"equality": 0, "inequality": 0}
    for name in ("objective", "equality", "inequality"):
        function = getattr(problem, name)
        if function is None:
            continue
        value = _call(batch, name, function, u)
        shape = value.shape[1:]
        if name == "objective" and len(shape):
            raise ValueError(
                f"objective must return a scalar for one problem, but returned shape {tuple(shape)}: sum it."
            )
        if len(shape) > 1:
            raise ValueError(
                f"{name} must return a vector or a scalar for one problem, but returned shape {tuple(shape)}: "
                "flatten it."
            )
        if name != "objective":
            counts[name] = math.prod(shape)
    return Batch(problem, xs, in_dims, size, u.shape[1:], counts["equality"], counts["inequality"])


def _call(batch: Batch, name: str, function: Function, u: Tensor) -> Tensor:
    xs = tuple(x.detach() for x in batch.xs)
    probe = u.detach().clone().requires_grad_()  # a leaf: whatever else requires a gradient was captured
    before = [x._version for x in xs]
    with torch.enable_grad(), _explained(name, xs, batch):
        value: object = torch.vmap(_tensor_only(name, function), in_dims=(*batch.in_dims, 0))(*xs, probe)
    assert isinstance(value, Tensor)  # _tensor_only has refused anything else
    if [x._version for x in xs] != before:
        raise ValueError(
            f"{name} changes its input in place: work on a copy (x.clone()), or use the out-of-place operation."
        )
    if not value.is_floating_point():
        raise TypeError(f"{name} must return a floating-point tensor, but returned {value.dtype}.")
    leaves = _leaves(value)
    captured = [leaf for leaf in leaves if leaf is not probe]
    if captured or (maybe_current_level() is not None and value.requires_grad):
        raise ValueError(_captured_message(name, function, captured))
    if name == "objective" and not leaves and maybe_current_level() is None:
        raise ValueError(
            "objective does not depend on u, its last argument, in a differentiable way: every point would be a "
            "solution. Check the order of the arguments (*xs, u), and for .detach() or .item()."
        )
    return value


def _tensor_only(name: str, function: Function) -> Function:
    def checked(*arguments: Tensor) -> Tensor:
        value = function(*arguments)
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must return a tensor, but returned {type(value).__name__}.")
        return value

    return checked


@contextmanager
def _explained(name: str, xs: Sequence[Tensor], batch: Batch) -> Iterator[None]:
    """Let the user's own exception through, with a note of what the function was called with."""
    try:
        yield
    except Exception as error:
        one = [tuple(x.shape if dim is None else x.shape[1:]) for x, dim in zip(xs, batch.in_dims, strict=True)]
        inputs = ", ".join(f"{shape}" for shape in one)
        error.add_note(
            f"This happened in {name}(*xs, u), called under torch.vmap for one problem with inputs of shape {inputs} "
            f"and u of shape {tuple(batch.shape)}. Write it for one problem, in torch operations, without .item() or "
            "Python branches on values (torch.where does that)."
        )
        raise


def has_tangent(x: Tensor) -> bool:
    """Whether forward mode is tracking a tensor."""
    return (
        torch.autograd.forward_ad._current_level >= 0 and torch.autograd.forward_ad.unpack_dual(x).tangent is not None
    )


def transformed() -> bool:
    """Whether a ``torch.func`` transform or forward mode is active."""
    return maybe_current_level() is not None or torch.autograd.forward_ad._current_level >= 0


def value_is_hidden(x: Tensor) -> bool:
    """Whether no decision can depend on a tensor: inside ``torch.func``, or mapped over by ``is_grads_batched``."""
    if maybe_current_level() is not None:
        return True
    mapped: bool = torch._C._dispatch_keys(x).has(torch._C._dispatch_key_parse("Batched"))
    return mapped


def plain(x: Tensor) -> Tensor:
    """The value behind the wrappers of ``torch.func``; of a mapped tensor, its first entry."""
    while is_functorch_wrapped_tensor(x):
        mapped, dim = is_batchedtensor(x), maybe_get_bdim(x)
        x = get_unwrapped(x)
        x = x.select(dim, 0) if mapped else x
    return torch.autograd.forward_ad.unpack_dual(x).primal.detach() if has_tangent(x) else x.detach()


def refuse_captured(problem: Problem, xs: Sequence[Tensor], in_dims: Sequence[int | None], u: Tensor) -> None:
    """Refuse a captured tensor of an active ``torch.func`` transform; the inputs here are plain, so it was captured."""
    for name in ("objective", "equality", "inequality"):
        function = getattr(problem, name)
        if function is None:
            continue
        with torch.enable_grad():
            value: Tensor = torch.vmap(function, in_dims=(*in_dims, 0))(*xs, u)
        if value.requires_grad or is_batchedtensor(value) or has_tangent(value):
            raise ValueError(_captured_message(name, function, []))


def _leaves(value: Tensor) -> list[Tensor]:
    """The leaf tensors that require a gradient from which ``value`` was computed."""
    leaves: list[Tensor] = []
    seen, todo = set(), [value.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        todo.extend(parent for parent, _ in node.next_functions)
    return leaves


def _captured_message(name: str, function: Function, captured: Sequence[Tensor]) -> str:
    names = _names(function, captured)
    told = f" ({', '.join(names)})" if names else ""
    new = names[0].split(".")[-1] if names else "w"
    return (
        f"{name} reaches a tensor that requires a gradient other than through its arguments{told}; that gradient would "
        f"be lost. Make it an argument: {name}(x, {new}, u), node(x, {new}) and in_dims=(0, None). "
        "If it is a constant, .detach() it."
    )


def _names(function: Function, captured: Sequence[Tensor]) -> list[str]:
    """What the user calls the captured tensors, as far as the function's closure, globals and owner tell."""
    inner = function.func if hasattr(function, "func") else function  # functools.partial
    code = getattr(inner, "__code__", None)
    spaces: dict[str, object] = {}
    if code is not None:
        cells = getattr(inner, "__closure__", None) or ()
        for label, cell in zip(code.co_freevars, cells, strict=True):
            try:
                spaces[label] = cell.cell_contents
            except ValueError:  # a cell that is not filled yet
                continue
        space = getattr(inner, "__globals__", {})
        spaces |= {label: space[label] for label in code.co_names if label in space}
    owner = getattr(inner, "__self__", inner if isinstance(inner, nn.Module) else None)
    if owner is not None:
        spaces["self"] = owner
    found = []
    for label, value in spaces.items():
        members = dict(value.named_parameters()) if isinstance(value, nn.Module) else {"": value}
        for suffix, tensor in members.items():
            if any(tensor is leaf for leaf in captured):
                found.append(f"{label}.{suffix}" if suffix else label)
    return found
