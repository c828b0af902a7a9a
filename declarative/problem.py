"""The optimisation problem: stated for one instance, evaluated and differentiated for a batch.

    minimise f(x, u) over u   subject to   h(x, u) = 0   and   g(x, u) <= 0

Inside the library both kinds of constraints are stacked, c = [h; g], and there is one sign convention, stated here:

    L(x, u, l) = f(x, u) - l' c(x, u),   with   l' D_U c = D_U f   at a solution,

so that the stacked multipliers of inequalities are not positive. All derivatives are written for one problem and mapped
over the batch. Every method is differentiable in all of its tensors, to any order, forward and reverse.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from . import expansion
from .evaluation import Evaluator, Request, Tape
from .expansion import UNUSED_IS_ZERO, Constants, Expansion
from .linear import DENSE, Layout
from .torchside import as_stated, in_grad_mode, is_plain, map_rows, without_vmap_warnings
from .user.bounds import Bounds
from .user.functions import UserFunction
from .user.normalisation import PutTogether

Function = Callable[..., Tensor]
Pair = tuple[Tensor, Tensor]
Found = TypeVar("Found")
SAME = 1e-6  # relative: derivatives that differ by more are not the same


@dataclass(frozen=True)
class Problem:
    """The user's functions of ``(*xs, u)`` for one problem, without a batch dimension.

    Where the general reverse pass over them costs more than the rest of back-propagation, ``pullback`` can be its
    result as a formula: ``(xs, u, multipliers, z, s) -> -(B' z + C' s)`` for every input, on a batch, differentiable,
    with B from the objective alone where the multipliers are None.

    Bounds on u are inequalities too, which come last.
    """

    objective: Function
    equality: Function | None = None
    inequality: Function | None = None
    bounds: Bounds | None = None
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
    evaluator: Evaluator | None = None  # None: functions are called
    layout: Layout = DENSE  # how H and A are stored
    guess: Tensor | None = None  # multipliers to start from, (size, k)
    linearised: bool = False  # whether the residuals, of which the objective is a sum of squares, count as linear
    constants: Constants | None = None  # derivatives of functions that are called which need not be evaluated again
    corners: tuple[str, ...] = ()  # the operations of the functions whose derivatives jump somewhere

    @property
    def k(self) -> int:
        """The number of all constraints."""
        return self.p + self.q

    @property
    def bounds(self) -> int:
        """The number of bounds, the last of the inequalities."""
        return 0 if self.problem.bounds is None else self.problem.bounds.count(self.m)

    @property
    def m(self) -> int:
        """The number of variables of one problem."""
        return math.prod(self.shape)

    def replace(
        self, xs: Sequence[Tensor], in_dims: Sequence[int | None] | None = None, size: int | None = None
    ) -> Batch:
        """The same problem with other inputs."""
        dims = self.in_dims if in_dims is None else tuple(in_dims)
        size = self.size if size is None else size
        return dataclasses.replace(self, xs=tuple(xs), in_dims=dims, size=size, constants=None)

    def select(self, rows: Tensor) -> Batch:
        """The instances at these positions (indices or a mask)."""
        index = rows.nonzero().flatten() if rows.dtype == torch.bool else rows
        xs = [x if dim is None else x[index] for x, dim in zip(self.xs, self.in_dims, strict=True)]
        guess = None if self.guess is None else self.guess[index]
        constants = None if self.constants is None else self.constants.take(index)
        return dataclasses.replace(self.replace(xs, size=len(index)), guess=guess, constants=constants)

    def unshared(self) -> Batch:
        """The same instances, each with its own copy (a view) of the shared inputs."""
        if None not in self.in_dims:
            return self
        xs = [x.expand(self.size, *x.shape) if dim is None else x for x, dim in zip(self.xs, self.in_dims, strict=True)]
        return self.replace(xs, in_dims=(0,) * len(xs))

    def with_linear_residuals(self) -> Batch:
        """The same instances with J'J in the place of the objective's Hessian, as Gauss and Newton have it.

        Raises:
            ValueError: the objective is not stated by residuals.
        """
        if not (isinstance(self.problem.objective, UserFunction) and self.problem.objective.squares):
            raise ValueError(
                "hessian='gauss-newton' needs to know the residuals: state the problem with "
                "DeclarativeNode(residuals=r), which minimises half the sum of their squares, or use hessian='exact'."
            )
        return dataclasses.replace(self, linearised=True, constants=None)

    def dense(self) -> Batch:
        """The same instances with all entries of H and A."""
        return dataclasses.replace(self, layout=DENSE, constants=None)

    def to(self, dtype: torch.dtype) -> Batch:
        """The same instances with floating-point inputs of another precision."""
        xs = tuple(x.to(dtype) if x.is_floating_point() else x for x in self.xs)
        return dataclasses.replace(self, xs=xs, constants=None)

    def with_constants(self, u: Tensor) -> Batch:
        """The same instances for a search: derivatives that are proved not to depend on u are evaluated once, here.

        Only of functions that are called: a recording is of their derivatives, in which that shows anyway. And in
        double precision, with digits to spare for terms that cancel. What is found is judged by all derivatives.
        """
        if self.evaluator is not None or u.dtype != torch.float64 or not self.size or not is_plain((u, *self.xs)):
            return self
        return dataclasses.replace(self, constants=expansion.find_constants(self, u))

    def without_constants(self) -> Batch:
        """The same instances, of which all derivatives are evaluated at every point."""
        return self if self.constants is None else dataclasses.replace(self, constants=None)

    def has_constants_at(self, u: Tensor) -> Tensor:  # (size, m) -> (size,)
        """Whether the derivatives that are taken for constant are what they are taken for."""
        same = torch.ones(self.size, dtype=torch.bool, device=u.device)
        if self.constants is None:
            return same
        fresh = self.without_constants().expand(u)
        pairs = (self.constants.jacobian, fresh.jacobian), (self.constants.hessian, fresh.curvature)
        for known, found in pairs:
            if known is not None:
                near = (known - found).abs() <= SAME * (known.abs() + found.abs())
                same = same & near.flatten(1).all(-1)
        return same

    def in_double(self, dtype: torch.dtype) -> tuple[Batch, torch.dtype]:
        """The same instances in double precision, and that; or themselves and the precision that they are in.

        They stay as they are where the functions hold constants that do not mix with double precision.
        """
        if dtype == torch.float64:
            return self, dtype
        double = self.to(torch.float64)
        u = torch.ones(self.size, self.m, dtype=torch.float64, device=self.xs[0].device)
        try:
            double.values(u)
        except RuntimeError:  # such as of a product with a float32 matrix
            return self, dtype
        return double, torch.float64

    # The functions of one problem, and their derivatives.

    def _objective(self, u: Tensor, *xs: Tensor) -> Tensor:
        objective: Any = self.problem.objective
        value: Tensor = as_stated(objective.linearised if self.linearised else objective, *xs, u.view(self.shape))
        return value

    def _constraints(self, u: Tensor, *xs: Tensor) -> Tensor:
        functions = (self.problem.equality, self.problem.inequality)
        rows: list[Tensor] = [as_stated(f, *xs, u.view(self.shape)).reshape(-1) for f in functions if f is not None]
        if self.problem.bounds is not None:
            rows.append(self.problem.bounds.rows(xs, u, self.shape))
        rows = [row.to(u.dtype) for row in rows] or [u.new_zeros(0)]
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def _values(self, u: Tensor, *xs: Tensor) -> Pair:
        return self._objective(u, *xs), self._constraints(u, *xs)

    def _lagrangian(self, u: Tensor, lam: Tensor | None, *xs: Tensor) -> tuple[Tensor, Pair]:
        objective, values = self._values(u, *xs)
        weighted = objective if lam is None or not self.k else objective - (lam * values).sum()
        return weighted, (objective, values)

    def slope_of_one(self, u: Tensor, lam: Tensor | None, *xs: Tensor) -> Tensor:
        """D_U L of one problem, without a batch dimension."""
        slope: Tensor = torch.func.grad(lambda u: self._lagrangian(u, lam, *xs)[0])(u)
        return slope

    def _first_order(self, u: Tensor, lam: Tensor | None, *xs: Tensor) -> tuple[Pair, Tensor]:
        """(D_U L, c) and f."""
        slope, (objective, values) = torch.func.grad(lambda u: self._lagrangian(u, lam, *xs), has_aux=True)(u)
        return (slope, values), objective

    def _jacobian(self, u: Tensor, *xs: Tensor) -> Tensor:
        pull = _pull(lambda u: self._constraints(u, *xs), u)
        # A v is the derivative of w -> A' w, transposed.
        return self.layout.jacobian_values(pull, lambda: _pull(pull, u.new_zeros(self.k)), u, self.k)

    def _hessian(self, u: Tensor, lam: Tensor | None, *xs: Tensor) -> Tensor:
        return self.layout.hessian_values(_pull(lambda u: self.slope_of_one(u, lam, *xs), u), u)

    def _slopes(self, u: Tensor, lam: Tensor | None, *xs: Tensor) -> tuple[Tensor, ...]:
        """f, D_U L, c and A."""
        (slope, values), objective = self._first_order(u, lam, *xs)
        return objective, slope, values, self._jacobian(u, *xs)

    def _expansion(self, u: Tensor, lam: Tensor | None, *xs: Tensor) -> tuple[Tensor, ...]:
        """f, D_U L, c, A and D^2_UU L."""
        return *self._slopes(u, lam, *xs), self._hessian(u, lam, *xs)

    def _product(self, u: Tensor, lam: Tensor | None, z: Tensor, s: Tensor, *xs: Tensor) -> Tensor:
        """D^2_UU L z + A' s."""
        result: Any = torch.func.vjp(lambda u: self._first_order(u, lam, *xs), u, has_aux=True)
        total: Tensor = result[1]((z, s))[0]
        return total

    def _curvatures(self, u: Tensor, lam: Tensor | None, directions: Tensor, *xs: Tensor) -> Tensor:
        """D^2_UU L times several directions, one per row."""
        products: Tensor = torch.vmap(_pull(lambda u: self.slope_of_one(u, lam, *xs), u))(directions)
        return products

    # The same for the batch.

    def _mapped(self, function: Callable[..., Found], *rows: Tensor | None) -> Found:
        """Map a function of one problem over the batch: by vmap, or from a recording of what vmap would do."""
        if not self.size:
            raise ValueError("a batch of no problems cannot be evaluated")
        found: Found = self.evaluate(function.__name__, self._map(function), *rows, by_problem=True)
        return found

    def _map(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function of one problem as one of a batch and its rows."""

        def evaluated(batch: Batch, *rows: Tensor | None) -> Any:
            with without_vmap_warnings(), PutTogether():
                return in_grad_mode(torch.vmap(function, in_dims=self._dims(*rows)), *rows, *batch.xs)

        return evaluated

    def _dims(self, *rows: Tensor | None) -> tuple[int | None, ...]:
        """Over which dimension functions of these rows and the inputs are mapped."""
        return (*(None if row is None else 0 for row in rows), *self.in_dims)

    def expansion_tape(self, u: Tensor, multipliers: Tensor) -> Tape | None:
        """The program that evaluates f, D_U L, c, A and D^2_UU L of one problem, if there is one for such a batch.

        Its inputs are u, the multipliers and the inputs of the batch.
        """
        if self.evaluator is None:
            return None
        return self.evaluator.tape(self._request("_expansion", self._map(self._expansion), (u, multipliers), True))

    def evaluate(
        self,
        name: Hashable,
        function: Callable[..., Any],
        *rows: Any,
        compared: int | None = None,
        by_problem: bool = False,
        lazy: bool = False,
    ) -> Any:
        """A function of (batch, *rows) that decides nothing by values: called, or replayed from its recording.

        Args:
            name: tells it from other functions, together with whatever it captures.
            function: what to compute. Everything that depends on the inputs has to come from the batch it is given.
            *rows: other tensors, batch first; the first one is the point u.
            compared: how many outputs, the first ones, a recording has to reproduce; all, but for those that rounding
                errors can make anything of, such as the solutions of systems that may be singular.
            by_problem: whether all outputs have a row for each problem, which depends on that problem alone.
            lazy: whether several outputs may come as a sequence that makes each of them when it is asked for.
        """
        if self.evaluator is None:
            return function(self, *rows)
        found = self.evaluator.run(self._request(name, function, rows, by_problem, compared))
        return tuple(found) if isinstance(found, Sequence) and not lazy else found

    def _request(
        self,
        name: Hashable,
        function: Callable[..., Any],
        rows: Sequence[Any],
        by_problem: bool,
        compared: int | None = None,
    ) -> Request:
        """What an evaluator has to know of a function of (batch, *rows)."""

        def of_tensors(*tensors: Any) -> Any:
            batch = dataclasses.replace(self, xs=tensors[len(rows) :], evaluator=None, size=len(tensors[0]))
            return function(batch, *tensors[: len(rows)])

        def functions() -> tuple[Callable[..., Any], Sequence[Tensor]]:
            one = [x if dim is None else x[:1] for x, dim in zip(self.xs, self.in_dims, strict=True)]
            written = dataclasses.replace(self, linearised=False)  # mapped: x[i] makes a number of i where it is not

            def mapped(*arguments: Tensor) -> Any:
                with without_vmap_warnings():
                    return torch.vmap(written._values, in_dims=(0, *self.in_dims))(*arguments)

            return mapped, [x.detach() for x in (rows[0][:1], *one)]

        key = (name, self.in_dims, self.shape, self.p, self.q, self.layout, self.linearised)
        batched = (*(None if x is None else True for x in rows), *(dim is not None for dim in self.in_dims))
        return Request(key, of_tensors, (*rows, *self.xs), functions, compared, batched if by_problem else None)

    def first_order(self, u: Tensor) -> tuple[Tensor, ...]:  # (size, m) -> (size,), (size, k), (size, m)
        """f, c, and the slope of f minus the sum of c."""

        def evaluated(batch: Batch, u: Tensor) -> tuple[Tensor, ...]:
            if not is_plain((u, *batch.xs)):
                return (*batch.values(u), batch.gradient(u, u.new_ones(batch.size, batch.k)))
            with torch.enable_grad(), without_vmap_warnings():
                u = u.detach().requires_grad_()
                objective, values = batch.mapped_values(u)
                total = (objective.sum() - values.sum()).requires_grad_()  # which need not depend on u
                (slope,) = torch.autograd.grad(total, u, **UNUSED_IS_ZERO)
            return objective.detach(), values.detach(), slope

        found: tuple[Tensor, ...] = self.evaluate("first order", evaluated, u, by_problem=True)
        return found

    def is_defined(self, u: Tensor) -> Tensor:  # (size, m) -> (size,)
        """Whether the functions and their first derivatives are finite.

        Of the constraints' derivatives a sum is looked at: what is not finite does not become so by adding. An
        inequality may be minus infinity, which means no bound.
        """
        objective, values, slope = self.first_order(u)
        bounded = values if not self.q else torch.cat([values[:, : self.p], values[:, self.p :].clamp(min=-1.0)], -1)
        return (objective + bounded.sum(-1) + slope.sum(-1)).isfinite()

    def objective(self, u: Tensor) -> Tensor:  # (size, m) -> (size,)
        """f for every problem."""
        return self._mapped(self._objective, u)

    def constraints(self, u: Tensor) -> Tensor:  # (size, m) -> (size, k)
        """c = [h; g] for every problem."""
        return self._mapped(self._constraints, u) if self.k else u.new_zeros(*u.shape[:-1], 0)

    def mapped_values(self, u: Tensor) -> Pair:
        """f and c, always by calling the functions."""
        objective, values = map_rows(self._values, (0, *self.in_dims), u, *self.xs)
        return objective, values

    def mapped_objective(self, u: Tensor) -> Tensor:
        """f alone, likewise."""
        (objective,) = map_rows(lambda *one: (self._objective(*one),), (0, *self.in_dims), u, *self.xs)
        return objective

    def mapped_constraints(self, u: Tensor) -> Tensor:
        """c alone, likewise."""
        (values,) = map_rows(lambda *one: (self._constraints(*one),), (0, *self.in_dims), u, *self.xs)
        return values

    def values(self, u: Tensor) -> Pair:
        """f and c."""
        if self.evaluator is None and is_plain((u, *self.xs)):
            with without_vmap_warnings():
                if self.constants is None:
                    return self.mapped_values(u)
                return self.mapped_objective(u), self.constants.values_at(self.layout, u)
        return self._mapped(self._values, u)

    def gradient(self, u: Tensor, multipliers: Tensor | None = None) -> Tensor:  # (size, m)
        """D_U L, or D_U f without multipliers."""
        return self._mapped(self.slope_of_one, u, multipliers)

    def slopes(self, u: Tensor, multipliers: Tensor | None = None) -> tuple[Tensor, ...]:
        """f, D_U L, c and A."""
        if self.evaluator is None and is_plain((u, multipliers, *self.xs)):
            return expansion.slopes(self, u, multipliers)
        return self._mapped(self._slopes, u, multipliers)

    def jacobian(self, u: Tensor) -> Tensor:  # (size, k, m), or as the layout says
        """A = D_U c, one row per constraint."""
        return self._mapped(self._jacobian, u)

    def hessian(self, u: Tensor, multipliers: Tensor | None = None) -> Tensor:  # (size, m, m), or as the layout says
        """H = D^2_UU L, or H_hat = D^2_UU f without multipliers."""
        return self._mapped(self._hessian, u, multipliers)

    def product(self, u: Tensor, multipliers: Tensor, z: Tensor, s: Tensor) -> Tensor:  # (size, m)
        """H z + A' s."""
        if self.evaluator is None and is_plain((u, multipliers, z, s, *self.xs)):
            return expansion.product(self, u, multipliers, z, s)
        return self._mapped(self._product, u, multipliers, z, s)

    def curvatures(self, u: Tensor, multipliers: Tensor | None, directions: Tensor) -> Tensor:  # (size, count, m)
        """H times several directions (size, count, m), one per row."""
        return self._mapped(self._curvatures, u, multipliers, directions)

    def expand(self, u: Tensor, multipliers: Tensor | None = None) -> Expansion:
        """Values, first and second derivatives."""
        if self.evaluator is None and is_plain((u, multipliers, *self.xs)):
            return expansion.expand(self, u, multipliers)
        return Expansion(*self._mapped(self._expansion, u, multipliers))

    def pullback(
        self,
        u: Tensor,  # (size, m)
        multipliers: Tensor | None,  # (size, k)
        z: Tensor,  # (size, m)
        s: Tensor | None,  # (size, k)
        wanted: Sequence[int] | None = None,
    ) -> tuple[Tensor, ...]:
        """-(B' z + C' s) for the wanted inputs, by one reverse pass over x -> -(z' D_U L(x, u, lam) + s' c(x, u)).

        An input that the batch shares receives the sum over the batch.
        """
        chosen = range(len(self.xs)) if wanted is None else wanted
        if self.problem.pullback is not None and None not in self.in_dims:
            s = u.new_zeros(*u.shape[:-1], self.k) if s is None else s
            grads = self.problem.pullback(self.xs, u, multipliers, z, s)
            return tuple(grads[i] for i in chosen)

        if self.evaluator is None and is_plain((u, multipliers, z, s, *self.xs)):
            return self._pulled_plainly(u, multipliers, z, s, chosen)

        def pulled(batch: Batch, u: Tensor, lam: Tensor | None, z: Tensor, s: Tensor | None) -> tuple[Tensor, ...]:
            def total(*inputs: Tensor) -> Tensor:  # over the batch: problems are independent
                changed = dict(zip(chosen, inputs, strict=True))
                xs = [changed.get(i, x) for i, x in enumerate(batch.xs)]
                paired: Tensor = torch.vmap(batch._paired, batch._dims(u, lam, z, s))(u, lam, z, s, *xs)
                return paired.sum()

            gradient: Callable[..., tuple[Tensor, ...]] = torch.func.grad(total, tuple(range(len(chosen))))
            with PutTogether():
                return in_grad_mode(gradient, *(batch.xs[i] for i in chosen))

        apart = all(self.in_dims[i] is not None for i in chosen)  # a shared input gets the sum over the batch
        rows = u, multipliers, z, s
        found: tuple[Tensor, ...] = self.evaluate(("pullback", *chosen), pulled, *rows, by_problem=apart)
        return found

    def _pulled_plainly(
        self, u: Tensor, lam: Tensor | None, z: Tensor, s: Tensor | None, chosen: Sequence[int]
    ) -> tuple[Tensor, ...]:
        """The same by ``torch.autograd``, at half the cost; see :mod:`declarative.expansion`."""

        def stated(u: Tensor, lam: Tensor | None, *xs: Tensor) -> Pair:
            weighted, (_, values) = self._lagrangian(u, lam, *xs)
            return weighted, values

        with torch.enable_grad(), without_vmap_warnings():
            u = u.detach().requires_grad_()
            xs = [x.detach().requires_grad_() if i in chosen else x for i, x in enumerate(self.xs)]
            weighted, values = map_rows(stated, self._dims(u, lam), u, lam, *xs)
            (slope,) = torch.autograd.grad(weighted.sum(), u, create_graph=True, **UNUSED_IS_ZERO)
            paired = (z * slope).sum() if s is None else (z * slope).sum() + (s * values).sum()
            inputs = [xs[i] for i in chosen]
            if not paired.requires_grad:
                return tuple(torch.zeros_like(x) for x in inputs)
            return torch.autograd.grad(paired, inputs, -torch.ones_like(paired), **UNUSED_IS_ZERO)

    def _paired(self, u: Tensor, lam: Tensor | None, z: Tensor, s: Tensor | None, *xs: Tensor) -> Tensor:
        """-(z' D_U L(x, u, lam) + s' c(x, u)) for one problem."""
        (slope, values), _ = self._first_order(u, lam, *xs)
        value = -(z * slope).sum()
        return value if s is None or not self.k else value - (s * values).sum()

    def pullback_each(
        self,
        u: Tensor,
        multipliers: Tensor | None,
        z: Tensor,
        s: Tensor | None,
        wanted: Sequence[int],
    ) -> tuple[Tensor, ...]:
        """The same, with one row for each problem also where the batch shares an input.

        A function may branch on an input that is shared: it stays one here, and only its gradient has many rows.
        """
        gradient = torch.func.grad(self._paired, argnums=tuple(4 + i for i in wanted))
        grads: tuple[Tensor, ...] = self._map(gradient)(self, u, multipliers, z, s)
        return grads

    def pushforward(
        self,
        u: Tensor,
        multipliers: Tensor | None,
        tangents: Sequence[Tensor],
        wanted: Sequence[int],
    ) -> tuple[Tensor, Tensor]:
        """(-B dx, -C dx): the transpose of :meth:`pullback`, which is linear in (z, s)."""
        zeros = (torch.zeros_like(u), u.new_zeros(*u.shape[:-1], self.k))

        def pushed(*tangents: Tensor) -> Pair:
            transposed: Any = torch.func.vjp(lambda z, s: self.pullback(u, multipliers, z, s, wanted), *zeros)[1]
            r, t = transposed(tangents)
            return r, t

        return in_grad_mode(pushed, *tangents)


def _pull(function: Callable[[Tensor], Tensor], at: Tensor) -> Callable[[Tensor], Tensor]:
    """The transposed derivative of a function, as a function of vectors."""
    pull: Any = torch.func.vjp(function, at)[1]
    return lambda w: pull(w)[0]


def flat(x: Tensor) -> Tensor:
    """(batch, *shape) as (batch, m); a scalar u has m = 1."""
    return x if x.dim() == 2 else x.reshape(x.shape[0], math.prod(x.shape[1:]))
