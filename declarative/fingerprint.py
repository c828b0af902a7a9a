"""Are the functions still those that were solved?

A backward pass evaluates derivatives of the functions long after the forward pass has found the solution. What they
reach other than through their arguments (a tensor in a dictionary, an attribute, a number, a global name, an array)
may have changed by then, and the gradient would silently be that of another problem. Where they reach what, nobody can
tell from outside; but a function that has changed shows it: its values and slopes at a point without any symmetry,
taken once in the forward pass, are not those that it has in the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .linear import full_precision
from .linear.directions import irregular
from .problem import Batch
from .torchside import outside_transforms

STEPS = (1e-2, 1e-4, 0.0)  # how far from the solution, relative; nearer where functions are not finite there
DIGITS = 0.75  # of the digits are the same: torch does not round alike in every thread
Sample = tuple[Tensor, ...]  # f, c and D_U (f - sum of c) of every problem


@dataclass(frozen=True)
class Fingerprint:
    """Values and slopes of the functions of a batch near its solutions, to be compared with those that they have later.

    They are taken beside the solution, because at it much is zero: ``w * (u - x) ** 2`` and its slope do not depend on
    w where u = x, nor ``(u - w * x) ** 2`` where x = 0, and yet the gradients of both do.

    Example:
        >>> import torch
        >>> from declarative.problem import Problem
        >>> state = {"w": torch.ones(3)}
        >>> problem = Problem(lambda x, u: (state["w"] * (u - x)).square().sum())
        >>> x = torch.zeros(2, 3)
        >>> taken = Fingerprint.take(Batch(problem, (x,), (0,), 2, torch.Size([3]), 0, 0), x)
        >>> before = taken.is_current()
        >>> state["w"][1] = 5.0
        >>> before, taken.is_current()
        (True, False)
    """

    batch: Batch
    u: Tensor  # (size, m)
    samples: dict[float, Sample | None] = field(default_factory=dict)

    @staticmethod
    def take(batch: Batch, u: Tensor) -> Fingerprint:
        """The fingerprint of functions as they are now, with u (size, m) at the solutions."""
        taken = Fingerprint(batch.without_constants(), u.detach())
        for step in STEPS:
            sample = taken.samples[step] = taken.sample(step)
            if sample is not None and all(bool(x.isfinite().all()) for x in sample):
                break
        return taken

    def is_current(self) -> bool:
        """Whether the functions have the same values and slopes now; a new exception of theirs comes through."""
        return all(_same(before, self.sample(step, before is None)) for step, before in self.samples.items())

    def sample(self, step: float, may_fail: bool = True) -> Sample | None:
        """Values and slopes at inputs and unknowns moved by so much; None where the functions may fail and do."""
        batch, u = self.batch, self.u
        if step:
            pairs = zip(batch.xs, batch.in_dims, strict=True)
            batch = batch.replace([_moved(x, dim is None, step, 0.3 + 0.1 * i) for i, (x, dim) in enumerate(pairs)])
            u = _moved(u, False, step, 0.2)
        try:  # in the same state in both passes, whatever stands around them
            with outside_transforms(), torch.no_grad(), full_precision(u):
                return batch.first_order(u)
        except Exception:  # whatever a function raises: it did not at the solution, the last of the steps
            if not (may_fail and step):
                raise
            return None


def _moved(x: Tensor, shared: bool, step: float, frequency: float) -> Tensor:
    """A tensor with entries that differ a little, in no regular way, and none of which is zero; all keep their sign."""
    if not x.is_floating_point():
        return x
    rows = x.reshape(1, -1) if shared else x.reshape(len(x), -1)
    if not rows.shape[-1]:
        return x
    noise = 1 + step * irregular(rows, frequency)
    return (torch.where(rows == 0, step, rows) * noise).reshape(x.shape)


def _same(before: Sample | None, now: Sample | None) -> bool:
    if before is None or now is None:
        return before is now
    return all(torch.equal(x, y) or _close(x, y) for x, y in zip(before, now, strict=True))


def _close(x: Tensor, y: Tensor) -> bool:  # (size,) or (size, k)
    """Whether entries are the same, up to roundings of the largest one of their problem."""
    if x.shape != y.shape:
        return False
    x, y = (one.reshape(len(one), -1) for one in (x, y))
    scale = x.abs().nan_to_num(0.0, 0.0, 0.0).amax(-1, keepdim=True)
    near = (x - y).abs() <= torch.finfo(x.dtype).eps ** DIGITS * scale
    return bool((near | (x == y) | (x.isnan() & y.isnan())).all())
