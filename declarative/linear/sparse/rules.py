"""Which rule an operation follows; one without a rule is taken as dense between its operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .index_sets import Sets, Traced
from .mixing_rules import (
    accumulated,
    along,
    contracted,
    convolved,
    convolved_back,
    index_added,
    picked,
    put,
    reduced,
    scattered,
    traced,
    unfolded_back,
)
from .operation import Call, Rule, Unruly, entry_by_entry, is_smooth, moved


def propagate(call: Call, without_rule: set[str]) -> list[Sets | None]:
    """The sets of all results of an operation.

    Args:
        call: the operation.
        without_rule: the names of operations that were taken as dense; this one is added if it was.
    """
    if all(x.sets is None for x in call.operands):
        return [None] * len(call.results)
    smooth = any(is_smooth(x) for x in call.results)
    sets = _ruled(call, without_rule) if smooth else [None] * len(call.results)
    return [_checked(call, of, x) for of, x in zip(sets, call.results, strict=True)]


def _checked(call: Call, sets: Sets | None, result: Tensor | None) -> Sets | None:
    if result is None:
        return None
    if not is_smooth(result):
        return call.algebra.varying(np.ones(result.numel(), dtype=bool))
    return None if sets is None or not sets.nnz else sets


def looks_at_entries(target: Any) -> bool:
    """Whether an operation has to do with the entries of its operands, not with their shape alone."""
    return str(target).removeprefix("aten.").split(".")[0] not in OF_SHAPES


def _ruled(call: Call, without_rule: set[str]) -> list[Sets | None]:
    name = str(call.target.overloadpacket).removeprefix("aten.")
    rule = RULES.get(name, entry_by_entry if torch.Tag.pointwise in call.target.tags else None)
    try:
        sets = [] if rule is None else list(rule(call))
        if len(sets) == len(call.results) and all(_fits(of, x) for of, x in zip(sets, call.results, strict=True)):
            return sets
    except (Unruly, RuntimeError, LookupError, TypeError, ValueError):  # a use that the rule was not made for
        pass
    without_rule.add(name)
    return _dense(call)


def _fits(sets: Sets | None, result: Tensor | None) -> bool:
    return sets is None or (result is not None and sets.shape[0] == result.numel())


def _dense(call: Call) -> list[Sets | None]:
    operands = [x.sets for x in call.operands]
    return [None if x is None else call.algebra.everything(x.numel(), operands) for x in call.results]


def _step(call: Call) -> list[Sets | None]:
    """Constant between jumps: the result is not known, but its derivative is zero."""
    if call.result.is_complex():
        raise Unruly
    (either,) = entry_by_entry(call)
    return [None if either is None else call.algebra.varying(np.diff(either.indptr) > 0)]


def _multiplied(call: Call) -> list[Sets | None]:
    """A product: zero where one factor is."""
    left, right = call.args
    parts = [call.aligned(left, call.nonzero(right)), call.aligned(right, call.nonzero(left))]
    return [call.algebra.union(parts)]


def _divided(call: Call) -> list[Sets | None]:
    """A quotient, or anything else that is zero where its first operand is."""
    keep = call.nonzero(call.operands[0])
    return [call.algebra.union([call.aligned(x, keep) for x in call.operands])]


def _raised(call: Call) -> list[Sets | None]:
    """A power; the zeroth is 1."""
    constant = not isinstance(call.args[1], Traced) and call.args[1] == 0
    return [None] if constant else entry_by_entry(call)


def _chosen(call: Call) -> list[Sets | None]:
    """``where``: one of the two if the condition is known."""
    return _either(call, *call.args)


def _filled(call: Call) -> list[Sets | None]:
    """``masked_fill``."""
    x, mask, value = call.args
    return _either(call, mask, value, x)


def _either(call: Call, condition: Any, yes: Any, no: Any) -> list[Sets | None]:
    if condition.sets is not None:
        return entry_by_entry(call)
    holds = call.nonzero(condition)
    return [call.algebra.union([call.aligned(yes, holds), call.aligned(no, ~holds)])]


def _written(call: Call) -> list[Sets | None]:
    """``fill``: of its first operand only the shape matters."""
    return [call.aligned(call.args[1])]


def _cut(call: Call) -> list[Sets | None]:
    """``threshold_backward``: the first operand or zero, as the second one decides."""
    grad, x = call.operands
    decides = None if x.sets is None else call.algebra.varying(x.depends)
    keep = call.nonzero(grad)
    return [call.algebra.union([call.aligned(grad, keep), call.aligned(Traced(x.value, decides), keep)])]


def _same(call: Call) -> list[Sets | None]:
    return [call.operands[0].sets]


def _padded(call: Call) -> list[Sets | None]:
    """With a constant, which must not be taken for the number of an entry."""
    return moved(Call(call.target, call.args[:2], {}, call.result, call.algebra))


def _strided(call: Call) -> list[Sets | None]:
    """A view of memory, which is only the memory of the entries in order if they lie so."""
    memory = call.operands[0].value
    if not memory.is_contiguous() or memory.untyped_storage().nbytes() != memory.numel() * memory.element_size():
        raise Unruly
    return moved(call)


def _table(rule: Rule, names: str) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


OF_SHAPES = (
    *("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "zero"),
    *("new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided"),
)

RULES: dict[str, Rule] = {
    **_table(
        moved,
        "view _unsafe_view reshape expand permute transpose t squeeze unsqueeze select slice split split_with_sizes "
        "chunk unbind cat stack flip roll repeat index index_select diagonal diag_embed diag unfold tril triu copy "
        "slice_scatter select_scatter diagonal_scatter slice_backward select_backward diagonal_backward movedim "
        "swapaxes alias flatten unflatten narrow expand_as view_as rot90 expand_copy view_copy squeeze_copy",
    ),
    **_table(_same, "clone detach lift lift_fresh lift_fresh_copy contiguous _to_copy alias_copy"),
    **_table(_padded, "constant_pad_nd"),
    **_table(_strided, "as_strided as_strided_scatter"),
    **_table(_step, "sgn sign floor ceil round trunc heaviside"),
    **_table(_multiplied, "mul"),
    **_table(
        _divided,
        "div tanh_backward sigmoid_backward gelu_backward silu_backward softplus_backward elu_backward "
        "leaky_relu_backward hardtanh_backward logit_backward log_sigmoid_backward mish_backward mse_loss_backward "
        "huber_loss_backward smooth_l1_loss_backward",
    ),
    **_table(_raised, "pow"),
    **_table(_chosen, "where"),
    **_table(_filled, "masked_fill"),
    **_table(_written, "fill"),
    **_table(_cut, "threshold_backward"),
    **_table(
        reduced,
        "sum mean nansum prod amax amin max min linalg_vector_norm norm logsumexp var std var_mean std_mean median",
    ),
    **_table(along, "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data sort linalg_cross cummax"),
    **_table(accumulated, "cumsum cumprod logcumsumexp"),
    **_table(contracted, "mm bmm mv dot vdot addmm addmv baddbmm"),
    **_table(put, "index_put"),
    **_table(scattered, "scatter scatter_add"),
    **_table(picked, "gather"),
    **_table(index_added, "index_add"),
    **_table(traced, "trace"),
    **_table(unfolded_back, "unfold_backward"),
    **_table(convolved, "convolution"),
    **_table(convolved_back, "convolution_backward"),
}
