"""Which entries of H = D^2_UU L and of A = D_U c can differ from zero, for all values of x, u and the multipliers l.

Both are read off one function. The slope of the Lagrangian, D_U L(x, u, l) = D_U f - A' l, depends on u through H, and
on l through A': so the function is traced once, with its reverse pass, and the index sets of its operations are
followed from (u, l) to the slope. What autodiff computes is what is looked at, custom derivatives included.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from ...recording.passes import RECORDING
from .calls import Call
from .dependence import Algebra, NoPattern, Sets, Traced
from .entries import Entries
from .rules import looks_at_entries, propagate

LIMIT = 30_000_000  # members of the index sets of one tensor: more than that is not sparse

Function = Callable[..., Tensor]


@dataclass(frozen=True, eq=False)
class Pattern:
    """Where the derivatives of a problem with m unknowns and k constraints can differ from zero."""

    hessian: Entries  # (m, m), on and below the diagonal
    jacobian: Entries  # (k, m)
    without_rule: tuple[str, ...] = ()  # operations that were taken as dense between their operands

    @classmethod
    def given(cls, hessian: Any, jacobian: Any, m: int, k: int) -> Pattern:
        """A pattern that the user knows: two matrices, dense or sparse, which are not zero where a derivative is not.

        Args:
            hessian: (m, m); symmetric, or one of its triangles.
            jacobian: (k, m), the rows of equalities before those of inequalities; None without constraints.

        Raises:
            ValueError: a shape is wrong.
        """
        jacobian = scipy.sparse.csr_matrix((0, m), dtype=bool) if jacobian is None else jacobian
        curved, sloped = Entries.of(hessian), Entries.of(jacobian)
        for name, entries, shape in (("hessian", curved, (m, m)), ("jacobian", sloped, (k, m))):
            if entries.shape != shape:
                raise ValueError(f"the pattern of the {name} has shape {entries.shape}; expected {shape}")
        return cls(Entries.of(curved.csr + curved.csr.T).lower(), sloped)


def find_pattern(
    objective: Function,
    constraints: Function | None,
    xs: Sequence[Tensor],
    u: Tensor,
    limit: int = LIMIT,
) -> Pattern:
    """The pattern of a problem, from its functions of ``(*xs, u)`` for one problem.

    Tensors that the functions capture count as constants, zeros included, unless they require a gradient.

    Args:
        objective: returns a scalar.
        constraints: returns a tensor of any shape, or None.
        xs: an example of the inputs, without a batch dimension; only shapes and types matter.
        u: an example of the unknowns, likewise.
        limit: how many entries may be met on the way.

    Raises:
        NoPattern: the derivatives are not sparse, or the functions cannot be traced.

    Example:
        >>> import torch
        >>> from declarative.linear.sparse import find_pattern
        >>> pattern = find_pattern(
        ...     lambda x, u: (u - x).square().sum(), lambda x, u: u[1:] * u[:-1], [torch.zeros(3)], torch.zeros(3)
        ... )
        >>> pattern.jacobian.csr.todense().astype(int)
        matrix([[1, 1, 0],
                [0, 1, 1]])
    """
    rows = torch.zeros(0) if constraints is None else constraints(*xs, u).reshape(-1)

    def slope(flat: Tensor, multipliers: Tensor, *xs: Tensor) -> Tensor:
        def lagrangian(flat: Tensor) -> Tensor:
            value = objective(*xs, flat.view(u.shape))
            if constraints is None:
                return value
            return value - (multipliers * constraints(*xs, flat.view(u.shape)).reshape(-1)).sum()

        result: Tensor = torch.func.grad(lagrangian)(flat)
        return result

    return pattern_of_slope(slope, u.detach().reshape(-1), torch.ones(len(rows), dtype=u.dtype, device=u.device), xs, limit)


def pattern_of_slope(
    slope: Function,
    u: Tensor,  # (m,)
    multipliers: Tensor,  # (k,)
    xs: Sequence[Tensor],
    limit: int = LIMIT,
) -> Pattern:
    """The pattern of a problem, from the function ``(u, multipliers, *xs)`` -> D_U L (m,) for one problem."""
    m, k = len(u), len(multipliers)
    without_rule: set[str] = set()
    sets = _follow(_trace(slope, (u, multipliers, *xs)), (u, multipliers, *xs), Algebra(m + k + 1, limit), without_rule)
    if sets is None:
        sets = scipy.sparse.csr_matrix((m, m + k + 1), dtype=bool)
    curved = sets[:, :m]
    both = curved.multiply(curved.T)  # H is symmetric: what only one of two twins can be is zero
    return Pattern(Entries.of(both).lower(), Entries.of(sets[:, m : m + k].T), tuple(sorted(without_rule)))


def _trace(slope: Function, inputs: Sequence[Tensor]) -> fx.GraphModule:
    try:
        with RECORDING, torch.no_grad():
            module = make_fx(torch.func.functionalize(slope, remove="mutations"))(*(x.detach() for x in inputs))
    except Exception as error:  # whatever tracing does not support
        raise NoPattern(f"the functions cannot be traced: {error}") from error
    module.graph.eliminate_dead_code()
    return module


def _follow(module: fx.GraphModule, inputs: Sequence[Tensor], algebra: Algebra, without_rule: set[str]) -> Sets | None:
    """The sets of the graph's result, operation by operation; what is not needed any more is forgotten."""
    traced: dict[fx.Node, Traced] = {}
    waiting = iter(_sources(inputs, algebra))
    nodes = module.graph.nodes
    last_use = {used: node for node in nodes for used in node.all_input_nodes}
    followed = _reaching(list(nodes))
    for node in nodes:
        if node.op == "output":
            break
        if node.op == "placeholder":
            traced[node] = next(waiting)
        elif node.op == "get_attr":
            traced[node] = _captured(getattr(module, node.target), algebra)
        else:
            traced[node] = _called(node, traced, algebra, without_rule if node in followed else None)
        for used in node.all_input_nodes:
            if last_use[used] is node:
                del traced[used]
    return traced[node.args[0]].sets


def _reaching(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """The nodes whose entries reach the output; of some only the shape does."""
    reaching = {nodes[-1]}
    for node in reversed(nodes):
        if node in reaching and (node.op != "call_function" or looks_at_entries(node.target)):
            reaching.update(node.all_input_nodes)
    return reaching


def _sources(inputs: Sequence[Tensor], algebra: Algebra) -> list[Traced]:
    """u and the multipliers, whose entries are followed, and the inputs, of which nothing is known."""
    u, multipliers, *xs = inputs
    m, k = len(u), len(multipliers)
    sources = [Traced(u, algebra.single(np.arange(m))), Traced(multipliers, algebra.single(np.arange(m, m + k)))]
    return sources + [Traced(x, algebra.varying(np.ones(x.numel(), dtype=bool))) for x in xs]


def _captured(value: Any, algebra: Algebra) -> Traced:
    varies = isinstance(value, Tensor) and value.requires_grad
    return Traced(value, algebra.varying(np.ones(value.numel(), dtype=bool)) if varies else None)


def _called(node: fx.Node, traced: dict[fx.Node, Traced], algebra: Algebra, without_rule: set[str] | None) -> Traced:
    """What an operation returns; its sets too, if the names of those without a rule are asked for."""
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda used: traced[used])
    if node.target is operator.getitem:
        several, index = args
        return Traced(several.value[index], several.sets[index])
    if not isinstance(node.target, torch._ops.OpOverload):
        raise NoPattern(f"the functions cannot be traced: {node.target}")
    values = fx.node.map_arg((node.args, node.kwargs), lambda used: traced[used].value)
    with torch.no_grad():
        result = node.target(*values[0], **values[1])
    if result is None:
        return Traced(None)
    if not isinstance(result, Tensor | tuple | list):
        raise NoPattern(f"the functions depend on a value: {node.target}")
    call = Call(node.target, tuple(args), dict(kwargs), result, algebra)
    known = without_rule is None or not looks_at_entries(node.target)
    sets = [None] * len(call.results) if known else propagate(call, without_rule)
    return Traced(result, sets[0]) if isinstance(result, Tensor) else Traced(tuple(result), tuple(sets))
