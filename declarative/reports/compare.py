"""A node against an independent implementation: the same solutions, the same gradients? And if not, who is right?"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from ..inputs import Inputs, check_incoming, check_tensor
from ..node import DeclarativeNode
from ..optimality import assess
from ..problem import Batch, flat
from ..theory.assumptions import LARGE
from ..theory.descent import differentiated_inputs
from ..theory.matrices import random_like
from ..torchside import ordinary_mode
from ..user.functions import nesting_of
from .comparison import ComparisonReport, Difference, Side, gradient_floor
from .result import require_node

__all__ = ["ComparisonReport", "Difference", "Side", "compare"]

SECONDS = 0.3  # for which a call is repeated to find its shortest time
REPEATS = 20  # at most


def compare(
    node: DeclarativeNode,
    reference: Callable[..., object],
    *xs: Tensor | None,
    v: Tensor | None = None,
    seconds: float = SECONDS,
    timing: bool = True,
) -> ComparisonReport:
    """Run a node and another implementation on the same inputs, forward and backward, and compare all they return.

    The gradients are those of the inputs that require one or, if none does, of all floating-point inputs; the node's
    are by its own rule. Which of two different solutions is right is judged by the node's own functions. Differences
    are relative to the largest entry of a problem's solution or gradient; a gradient that vanishes but for rounding is
    compared with a thousandth of abs(v) abs(y) / abs(x).

    Args:
        node: a :class:`DeclarativeNode`, or a ready-made layer.
        reference: a ``CvxpyLayer``, a module or a function of the same inputs. It returns the solution or a tuple whose
            first entry is the solution, in any floating-point precision.
        *xs: the inputs.
        v: the incoming gradient, in the shape of the solution; by default random, the same in every call.
        seconds: how long to repeat each call for its shortest time; one that takes longer runs once.
        timing: whether to take the times at all, which is most of the work.

    Raises:
        TypeError, ValueError: the node is none, the reference returns no tensor or one of another shape, v has another
            shape, or there is no problem.
        SolverError: the node cannot solve a problem.

    Example:
        >>> import torch
        >>> from declarative import DeclarativeNode, compare
        >>> node = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda x, u: u.square().sum() - 1,
        ...                        start=lambda x: x)
        >>> x = torch.tensor([[3.0, 4.0], [1.0, -1.0]], dtype=torch.float64)
        >>> report = compare(node, torch.nn.functional.normalize, x)
        >>> report.agrees(1e-9)
        True
        >>> compare(node.with_gradient("unconstrained"), torch.nn.functional.normalize, x).agrees()
        False
    """
    require_node("node", node)
    if not callable(reference):
        raise TypeError(f"reference must be a layer or a function of the inputs, but is {type(reference).__name__}.")
    given = [x for x in xs if x is not None]
    for i, x in enumerate(xs):
        if x is not None:
            check_tensor(f"input {i}", x)
    wanted = differentiated_inputs(xs)  # type: ignore[arg-type]
    with ordinary_mode(tuple(given)) as plain, torch.enable_grad():
        tensors = iter(x.detach() for x in plain)
        leaves = [None if x is None else next(tensors) for x in xs]
        for i in wanted:
            leaves[i].requires_grad_()  # type: ignore[union-attr]
        with torch.no_grad():
            found = node.evaluate(leaves)  # type: ignore[arg-type]
        inputs, y = found.inputs, found.solution.y
        if not inputs.size:
            raise ValueError("a batch of no problems cannot be compared.")
        if nesting_of(found.call.plan.problem.objective) is not None:
            raise ValueError(
                "compare is for nodes with one unknown: this one has several unknowns. State the same functions of one "
                "vector, start=n, and take its parts in them."
            )
        v = _cotangent(v, y if inputs.batched else y[0], inputs.dtype)
        runner = _Runner(leaves, wanted, v, seconds if timing else None)
        judge = _Judge(*found.detached().batch.in_double(inputs.work), inputs.batched)
        if timing:
            runner.backward(runner.forward(node)[0])  # the first call pays for what later ones find ready
        ours = judge.examine(f"node ({type(node.gradient).__name__.lower()})", runner, node)
        theirs = judge.examine("reference", runner, reference)
    dims = batch_dims(node, leaves, inputs)
    gradients = {}
    for i, theirs_i in theirs.gradients.items():
        mine, other = (_batch_first(grad, dims[i]) for grad in (ours.gradients[i], theirs_i))
        floor = gradient_floor(v, ours.y, leaves[i])
        gradients[i] = Difference.between(f"gradient of input {i}", mine, other, floor)
    tolerance = 1e-5 if inputs.dtype == torch.float64 else 1e-3
    return ComparisonReport(
        Difference.between("solution", ours.y, theirs.y), gradients, ours, theirs, v.detach(), tolerance
    )


# Running.

Result = TypeVar("Result")


@dataclass(frozen=True)
class _Runner:
    """Calls an implementation forward and backward."""

    leaves: Sequence[Tensor | None]
    wanted: Sequence[int]
    v: Tensor
    seconds: float | None  # None: times are not taken

    def forward(self, function: Callable[..., object]) -> tuple[Tensor, float]:
        result, taken = self._shortest(lambda: function(*self.leaves))
        y = result[0] if isinstance(result, tuple | list) and result else result
        if not isinstance(y, Tensor):
            raise TypeError(f"reference must return a tensor or a tuple that begins with one, but returned {type(y)}.")
        if _without_ones(y) != _without_ones(self.v):
            raise ValueError(
                f"reference must return solutions of shape {tuple(self.v.shape)} like the node, but returned "
                f"{tuple(y.shape)}: wrap it in a function that brings inputs and solution into the shapes of the node."
            )
        return y.reshape(self.v.shape), taken

    def backward(self, y: Tensor) -> tuple[dict[int, Tensor], float]:
        if not y.requires_grad:
            return {}, float("nan")
        inputs = [x for i, x in enumerate(self.leaves) if i in self.wanted and x is not None]
        v = self.v.to(y.dtype)
        grads, taken = self._shortest(
            lambda: torch.autograd.grad(y, inputs, v, retain_graph=True, materialize_grads=True)
        )
        return dict(zip(self.wanted, grads, strict=True)), taken

    def _shortest(self, function: Callable[[], Result]) -> tuple[Result, float]:
        """The first result, and the shortest time: other programs can only make a call longer."""
        if self.seconds is None:
            return function(), float("nan")
        times: list[float] = []
        results: list[Result] = []
        while not times or (sum(times) < self.seconds and len(times) < REPEATS):
            start = time.perf_counter()
            result = function()
            times.append(time.perf_counter() - start)
            results = results or [result]
        return results[0], min(times)


@dataclass(frozen=True)
class _Judge:
    """The node's own functions, at the points that the implementations return."""

    batch: Batch  # in double precision, if the functions can
    work: torch.dtype
    batched: bool

    def examine(self, name: str, runner: _Runner, function: Callable[..., object]) -> Side:
        y, forward = runner.forward(function)
        gradients, backward = runner.backward(y)
        y = y.detach() if self.batched else y.detach().unsqueeze(0)
        return Side(name, y, gradients, *self._measure(y), forward, backward)

    def _measure(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, p = self.batch, self.batch.p
        u = flat(y).to(self.work)
        with torch.no_grad():
            objective, values = batch.objective(u), batch.constraints(u)
            missed = torch.cat([values[:, :p].abs(), values[:, p:].clamp(min=0.0)], -1)
            violation = missed.amax(-1) if batch.k else torch.zeros_like(objective)
            residual = assess(batch, u).residual if batch.m <= LARGE else torch.full_like(objective, torch.nan)
        return objective.detach(), violation, residual


def _cotangent(v: Tensor | None, y: Tensor, dtype: torch.dtype) -> Tensor:
    return check_incoming(random_like(y) if v is None else v, y.shape).to(device=y.device, dtype=dtype)


def batch_dims(node: DeclarativeNode, leaves: Sequence[Tensor | None], inputs: Inputs) -> list[int | None]:
    """The batch dimension of each input as it was passed; None: shared, so that its gradient is a sum over the batch.

    A ready-made layer may expand an input that comes without a batch dimension.
    """
    given = node.spec.plan.in_dims
    dims = given if isinstance(given, tuple) else (given,) * len(leaves)
    return [
        None if dim is None or x is None or x.dim() < arranged.dim() else dim
        for x, dim, arranged in zip(leaves, dims, inputs.xs, strict=False)
    ]


def _batch_first(x: Tensor, dim: int | None) -> Tensor:
    return x.unsqueeze(0) if dim is None else x.movedim(dim, 0)


def _without_ones(x: Tensor) -> list[int]:
    return [n for n in x.shape if n != 1]
