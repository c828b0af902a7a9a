"""The active constraints of a strictly convex quadratic program, by Goldfarb's and Idnani's dual method.

With u eliminated, the multipliers s of the constraints and the slacks w are those of

    w = S s + e,   w_i = 0 for an equality, and w_i >= 0, s_i >= 0, w_i s_i = 0 for an inequality

with S = C Q^-1 C' and e the slacks of the minimiser without constraints. From s = 0 on, the constraint that is violated
most is given a multiplier, as large as makes its slack zero, while the slacks of the active constraints stay zero; one
whose multiplier would become negative is dropped on the way. Each change of the active set is one pivot of S: swept
over the active set W it contains -S_WW^-1, S_iW S_WW^-1 and the Schur complement, which is all that a step needs.

This takes a pivot, of k^2 operations, for each active constraint; an interior-point method a dozen factorisations. What
is not clear at the end (a constraint without slack and without multiplier, dependent rows) is left to that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from declarative.kernels.library import available, call, threads

LARGEST = 512  # rows, beyond which factorisations are faster than pivots, which are bound by memory
PLAIN = 1e5  # problems times rows to the third power: for so few the method pays in Python
PIVOTS = 8  # take as long as an iteration of the interior-point method at least
DEPENDENT = 1e-10  # of a pivot, relative to what it was before elimination
VIOLATED = 1e-12  # of a slack, relative to the largest
CLEAR = 1e-9  # of a slack or a multiplier, relative to the largest: not zero

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


def find_active(
    complement: Tensor,  # S, (batch, k, k), overwritten
    slacks: Tensor,  # e, (batch, k), likewise
    wanted: Tensor,  # (batch,)
    equalities: int,
    limit: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Which rows are active, how many pivots it took, and for which of the wanted problems the answer is clear.

    The complement becomes -S_WW^-1 in the active rows and columns.
    """
    size, k = slacks.shape
    active, count, clear = np.zeros((size, k), np.bool_), np.zeros(size, np.int64), np.zeros(size, np.bool_)
    found = torch.from_numpy(active), torch.from_numpy(count), torch.from_numpy(clear)
    if k <= LARGEST and slacks.device.type == "cpu":
        if available():
            _find_in_core(complement, slacks, wanted, equalities, PIVOTS * limit, found)
        elif size * k**3 <= PLAIN:
            arrays = complement.numpy(), slacks.numpy(), wanted.numpy()
            with np.errstate(all="ignore"):  # what is not a number is not clear
                _find_all(*arrays, equalities, PIVOTS * limit, active, count, clear)
    return tuple(x.to(slacks.device) for x in found)  # type: ignore[return-value]


def _find_in_core(
    complement: Tensor, slacks: Tensor, wanted: Tensor, equalities: int, limit: int, found: tuple[Tensor, ...]
) -> None:
    """The same by the compiled core, in double precision."""
    tables, xs, wanted = complement.double().contiguous(), slacks.double().contiguous(), wanted.contiguous()
    buffers, to = (x.data_ptr() for x in (tables, xs, wanted)), (x.data_ptr() for x in found)
    call("active_set_find", *buffers, *slacks.shape, equalities, limit, *to, threads())
    complement.copy_(tables)
    slacks.copy_(xs)


def _sweep(table: Array, i: int, sign: float) -> None:
    """Pivot: sign is 1 for a row that joins the active ones, and -1 for one that leaves them."""
    row = table[i].copy()
    pivot = row[i]
    for j in range(len(row)):
        if row[j] != 0.0:
            factor = row[j] / pivot
            for other in range(len(row)):
                table[j, other] -= factor * row[other]
            table[j, i] = sign * factor
    table[i] = sign * row / pivot
    table[i, i] = -1 / pivot


def _entering(table: Array, x: Array, active: Flags, small: float) -> int:
    """The row whose violation, in units of what a step changes it by, is largest; -1 if there is none."""
    found, most = -1, 0.0
    for i in range(len(x)):
        if not active[i] and x[i] < -small:
            gain = x[i] * x[i] / max(table[i, i], 1e-300)
            if gain > most:
                found, most = i, gain
    return found


def _blocking(column: Array, x: Array, active: Flags, equalities: int) -> tuple[int, float]:
    """The active inequality whose multiplier becomes zero first, and after how long a step."""
    found, length = -1, np.inf
    for j in range(equalities, len(x)):
        if active[j] and column[j] > 0 and x[j] < length * column[j]:
            found, length = j, max(x[j], 0.0) / column[j]
    return found, length


def _move(column: Array, x: Array, active: Flags, length: float) -> None:
    for j in range(len(x)):
        x[j] += -length * column[j] if active[j] else length * column[j]


def _find(table: Array, x: Array, active: Flags, equalities: int, limit: int) -> int:
    """The pivots for one problem, whose x becomes multipliers of active and slacks of other rows; -1: none is found."""
    least, largest = np.empty(len(x)), 1.0
    for i in range(len(x)):
        least[i], largest = DEPENDENT * table[i, i], max(largest, abs(x[i]))
    for i in range(equalities):
        if not table[i, i] > least[i]:
            return -1
        length = -x[i] / table[i, i]
        _move(table[i], x, active, length)
        _sweep(table, i, 1.0)
        x[i], active[i] = length, True
    entering, multiplier = -1, 0.0
    for count in range(limit):
        if entering < 0:
            entering, multiplier = _entering(table, x, active, VIOLATED * largest), 0.0
            if entering < 0:
                return count
        pivot = table[entering, entering]
        whole = -x[entering] / pivot if pivot > least[entering] else np.inf
        leaving, length = _blocking(table[entering], x, active, equalities)
        if not min(whole, length) < np.inf:
            return -1  # the constraints contradict each other, or something is not a number
        _move(table[entering], x, active, min(whole, length))
        multiplier += min(whole, length)
        if whole <= length:
            _sweep(table, entering, 1.0)
            x[entering], active[entering], entering = multiplier, True, -1
        else:
            _sweep(table, leaving, -1.0)
            x[leaving], active[leaving] = 0.0, False
    return -1


def _find_all(
    tables: Array, xs: Array, wanted: Flags, equalities: int, limit: int, active: Flags, count: Any, clear: Flags
) -> None:
    for i in range(len(xs)):
        if wanted[i]:
            count[i] = _find(tables[i], xs[i], active[i], equalities, limit)
            clear[i] = count[i] >= 0 and _is_clear(xs[i], active[i], equalities)


def _is_clear(x: Array, active: Flags, equalities: int) -> bool:
    """Whether every inequality has either a slack or a multiplier."""
    slack, multiplier, least_slack, least_multiplier = 1.0, 1.0, np.inf, np.inf
    for i in range(len(x)):
        if active[i]:
            multiplier = max(multiplier, abs(x[i]))
            least_multiplier = min(least_multiplier, x[i] if i >= equalities else np.inf)
        else:
            slack, least_slack = max(slack, abs(x[i])), min(least_slack, x[i])
    return least_slack > CLEAR * slack and least_multiplier > CLEAR * multiplier
