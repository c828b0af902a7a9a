"""Normalisations put together from other operations: torch's own have wrong derivatives of third order.

A second derivative of a solution takes third derivatives of the functions. Those of ``layer_norm``, ``instance_norm``
and ``batch_norm`` (and second ones of ``weight_norm``) are wrong in torch, in plain autograd too: what a backward pass
saves of the mean and the variance counts as a constant in the pass after the next. And there are no rules to map the
second derivatives of ``layer_norm``, nor can recordings make those of ``batch_norm`` in evaluation smaller, which is
nothing but a scale and an offset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ..torchside import weight_norm


class PutTogether(TorchFunctionMode):
    """Carries out normalisations as several operations.

    Example:
        >>> import torch
        >>> x = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64, requires_grad=True)
        >>> y = torch.nn.functional.layer_norm(x, (3,))
        >>> with PutTogether():
        ...     z = torch.nn.functional.layer_norm(x, (3,))
        >>> torch.allclose(y, z), y.grad_fn.name() == z.grad_fn.name()
        (True, False)
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return PUT_TOGETHER.get(func, func)(*args, **(kwargs or {}))


def _layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,  # noqa: ARG001
) -> Tensor:
    y = _normalised(x, range(x.dim() - len(normalized_shape), x.dim()), eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not training and running_mean is not None and running_var is not None:
        y = _by_channel(x, None, -running_mean) * _of_channels((running_var + eps).rsqrt(), x)
        return _by_channel(y, weight, bias)
    if running_mean is not None:  # which would be changed: it is for torch to refuse that
        found: Tensor = functional.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
        return found
    return _by_channel(_normalised(x, (0, *range(2, x.dim())), eps), weight, bias)


def _instance_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not use_input_stats or running_mean is not None:
        return _batch_norm(x, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
    return _by_channel(_normalised(x, range(2, x.dim()), eps), weight, bias)


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    dims = [i for i in range(v.dim()) if dim == -1 or i != dim]  # -1: the norm of the whole
    return v * (g / v.square().sum(dims, keepdim=True).sqrt())


def _normalised(x: Tensor, dims: Sequence[int], eps: float) -> Tensor:
    centred = x - x.mean(tuple(dims), keepdim=True)
    return centred * (centred.square().mean(tuple(dims), keepdim=True) + eps).rsqrt()


def _by_channel(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """The result scaled and moved, each channel (dimension 1) by its own numbers."""
    y = y if weight is None else y * _of_channels(weight, y)
    return y if bias is None else y + _of_channels(bias, y)


def _of_channels(numbers: Tensor, y: Tensor) -> Tensor:
    return numbers.view(-1, *(1,) * (y.dim() - 2))


PUT_TOGETHER: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.layer_norm: _layer_norm,
    torch.layer_norm: _layer_norm,
    functional.batch_norm: _batch_norm,
    functional.instance_norm: _instance_norm,
    weight_norm: _weight_norm,
}
"""By torch's function, one of the same arguments that can be differentiated to any order."""
