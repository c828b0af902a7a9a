"""The factorisation in plain torch: level by level, all columns of a level and all problems at once, on any device.

The same formulas as in ``kernels.py``. A level is a range of columns that do not depend on each other: with an order made
for it there are few of them, and each takes some dozens of torch's operations, however many problems there are. Values
are stored (entry, batch): the diagonal, followed by the entries below it, column by column.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .entries import Integers
from .pivots import CORRECTIONS, GOAL, PIVOT, REPLACED, SMALLEST
from .symbolic import Symbolic


@dataclass(frozen=True, eq=False)
class Level:
    """A range of columns: pivots by themselves, then pairs; and the entries of L that have to do with them."""

    begin: int
    pairs: int  # where the pairs begin
    end: int
    own: slice  # the entries of these columns
    rows: Tensor  # their rows, as positions
    columns: Tensor  # their columns
    beside: Tensor  # where the entry of the other half of a pair in the same row is stored; without one, the entry itself
    links: Tensor  # where the entries between the halves of pairs are stored
    target: Tensor  # stored[target] -= L[left] stored[right], those that pivots are made from first
    left: Tensor
    right: Tensor
    pivots: int  # how many these are


@dataclass(frozen=True, eq=False)
class Plan:
    """The arrays of a symbolic analysis."""

    levels: list[Level]
    place: Tensor
    slots: Tensor
    first: Tensor  # the position of each entry of K, its row
    second: Tensor  # and its column
    mate: Tensor  # the other half of a pair, or the position itself
    sign: Tensor  # that a pivot should have: 1 for unknowns, -1 for constraints, (size, 1)
    fill: int

    @classmethod
    def of(cls, symbolic: Symbolic, device: torch.device) -> Plan:
        """On a device."""
        halves = np.flatnonzero(symbolic.pair)
        mate = np.arange(symbolic.size)
        mate[halves], mate[halves + 1] = halves + 1, halves
        sign = torch.from_numpy(np.where(symbolic.is_constraint, -1.0, 1.0)).to(device).unsqueeze(-1)
        arrays = (symbolic.place, symbolic.slots, *symbolic.coordinates, mate)
        index = [torch.from_numpy(x).to(device) for x in arrays]
        return cls(_levels(symbolic, device), *index, sign, symbolic.fill)


@dataclass(frozen=True, eq=False)
class Factor:
    """The factors of a batch."""

    plan: Plan
    entries: Tensor  # of K, (entries, batch)
    inverse: Tensor  # the diagonal of D^-1, (size, batch)
    coupling: Tensor  # of its blocks, beside the diagonal, (size, batch)
    lower: Tensor  # L, (fill, batch)
    signs: Tensor  # of the pivots, 0 for what has been replaced, (size, batch)

    def inertia(self) -> Tensor:  # (batch, 3)
        """The number of pivots above, below and at zero."""
        above, below = (self.signs > 0).sum(0), (self.signs < 0).sum(0)
        return torch.stack([above, below, len(self.signs) - above - below], -1)

    def solve(self, right: Tensor) -> tuple[Tensor, Tensor]:  # (batch, size, count)
        """K^-1 right, corrected until its relative residual is small or does not fall any more, and that residual."""
        ordered = torch.empty_like(right.transpose(0, 1), memory_format=torch.contiguous_format)
        ordered[self.plan.place] = right.transpose(0, 1)
        trial = self._substitute(ordered)
        x, error = trial, torch.full_like(right[:, 0], torch.inf)
        for _ in range(CORRECTIONS + 1):
            residual, now = self._residual(ordered, trial)
            better, going = now < error, (now > GOAL) & (now < 0.5 * error)
            x, error = torch.where(better, trial, x), torch.where(better, now, error)
            if not going.any():
                break
            trial = x + self._substitute(residual)
        return x[self.plan.place].transpose(0, 1), error.amax(-1)

    def _substitute(self, right: Tensor) -> Tensor:  # (size, batch, count)
        x, lower = right.clone(), self.lower.unsqueeze(-1)
        for level in self.plan.levels:
            x.index_add_(0, level.rows, lower[level.own] * x.index_select(0, level.columns), alpha=-1)
        x = self.inverse.unsqueeze(-1) * x + self.coupling.unsqueeze(-1) * x[self.plan.mate]
        for level in reversed(self.plan.levels):
            x.index_add_(0, level.columns, lower[level.own] * x.index_select(0, level.rows), alpha=-1)
        return x

    def _residual(self, right: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """right - K x, and its size relative to what it is made from, of unknowns or constraints, (batch, count)."""
        plan, entries = self.plan, self.entries.unsqueeze(-1)
        below = entries * x.index_select(0, plan.second)
        above = (entries * (plan.first != plan.second).view(-1, 1, 1)) * x.index_select(0, plan.first)
        residual, total = right.clone(), right.abs()
        for index, product in ((plan.first, below), (plan.second, above)):
            residual.index_add_(0, index, product, alpha=-1)
            total.index_add_(0, index, product.abs())
        errors = [torch.zeros_like(right[0])]
        for kind in (1, -1):
            mine = plan.sign.flatten() == kind
            if mine.any():
                errors.append(residual[mine].abs().amax(0) / total[mine].amax(0).clamp(min=SMALLEST))
        return residual, torch.stack(errors).amax(0).nan_to_num(torch.inf)


def factorise(plan: Plan, entries: Tensor) -> Factor:
    """L and D^-1 of K, from its entries (entries, batch)."""
    size, batch = len(plan.mate), entries.shape[1]
    stored = entries.new_zeros(size + plan.fill, batch).index_add_(0, plan.slots, entries)
    made = stored.abs()
    scale = entries.new_zeros(size, batch)
    for positions in (plan.first, plan.second):
        scale.index_reduce_(0, positions, entries.abs(), "amax")
    factor = Factor(plan, entries, *entries.new_zeros(2, size, batch), entries.new_zeros(plan.fill, batch), torch.zeros_like(scale))
    for level in plan.levels:
        change = factor.lower.index_select(0, level.left) * stored.index_select(0, level.right)
        stored.index_add_(0, level.target, change, alpha=-1)
        made.index_add_(0, level.target[: level.pivots], change[: level.pivots].abs())
        if level.pairs > level.begin:
            _invert_ones(factor, slice(level.begin, level.pairs), stored, made, scale)
        if level.end > level.pairs:
            _invert_twos(factor, level, stored, made, scale)
            stored.index_fill_(0, level.links, 0.0)
        own = stored[size:][level.own] * factor.inverse.index_select(0, level.columns)
        beside = stored.index_select(0, level.beside) * factor.coupling.index_select(0, level.columns)
        factor.lower[level.own] = own + beside
    return factor


def _invert_ones(factor: Factor, ones: slice, stored: Tensor, made: Tensor, scale: Tensor) -> None:
    """Pivots by themselves; what cannot be told from zero is replaced, with the sign that its kind should have."""
    pivot, size = stored[ones], made[ones]
    good = pivot.abs() > PIVOT * size
    factor.signs[ones] = pivot.sign() * good
    instead = REPLACED * torch.maximum(size, scale[ones]).clamp(min=SMALLEST) * factor.plan.sign[ones]
    factor.inverse[ones] = torch.where(good, pivot, instead).reciprocal()


def _invert_twos(factor: Factor, level: Level, stored: Tensor, made: Tensor, scale: Tensor) -> None:
    """Blocks [h, a; a, c]; a singular one is moved towards a negative determinant, as KKT matrices should have."""
    one, two = slice(level.pairs, level.end, 2), slice(level.pairs + 1, level.end, 2)
    h, a, c = stored[one], stored[level.links], stored[two]
    determinant = h * c - a * a
    noise = h.abs() * made[two] + c.abs() * made[one] + 2 * a.abs() * made[level.links]
    good = determinant.abs() > PIVOT * noise
    mixed = determinant < 0
    factor.signs[one] = torch.where(good, torch.where(mixed, 1.0, h.sign()), (h + c).sign())
    factor.signs[two] = torch.where(mixed, -1.0, h.sign()) * good
    if not good.all():
        to_h = REPLACED * torch.maximum(made[one], scale[one]).clamp(min=SMALLEST) * torch.where(c > 0, -1.0, 1.0)
        to_c = REPLACED * torch.maximum(made[two], scale[two]).clamp(min=SMALLEST) * torch.where(h < 0, 1.0, -1.0)
        h, c = torch.where(good, h, h + to_h), torch.where(good, c, c + to_c)
        determinant = h * c - a * a
    factor.inverse[one], factor.inverse[two] = c / determinant, h / determinant
    factor.coupling[one] = factor.coupling[two] = -a / determinant


def _levels(symbolic: Symbolic, device: torch.device) -> list[Level]:
    if symbolic.levels is None:
        raise ValueError("this analysis was made for elimination one by one; analyse(..., prefer='depth') has levels")
    size, rows, columns = symbolic.size, symbolic.rows, symbolic.columns
    target, left, right = _updates(symbolic)
    link = np.concatenate([np.ones(size, dtype=bool), symbolic.pair[columns] & (rows == columns + 1)])
    makes_pivot = link[target]  # what is on the diagonal, or between the halves of a pair
    column = rows[right]
    by_level = np.lexsort((~makes_pivot, np.searchsorted(symbolic.levels, column, side="right")))
    bounds = np.searchsorted(column[by_level], symbolic.levels)  # columns of a level come before those of the next
    target, left, right = target[by_level], left[by_level], size + right[by_level]
    beside = size + _beside(symbolic)
    levels = []
    for number, (begin, end) in enumerate(zip(symbolic.levels[:-1], symbolic.levels[1:], strict=True)):
        own = slice(int(symbolic.starts[begin]), int(symbolic.starts[end]))
        mine = slice(int(bounds[number]), int(bounds[number + 1]))
        first_pair = end - 2 * int(symbolic.pair[begin:end].sum())
        links = size + symbolic.starts[first_pair:end:2]
        parts = (rows[own], columns[own], beside[own], links, target[mine], left[mine], right[mine])
        index = [torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in parts]
        pivots = int(makes_pivot[by_level[mine]].sum())
        levels.append(Level(int(begin), int(first_pair), int(end), own, *index, pivots))
    return levels


def _updates(symbolic: Symbolic) -> tuple[Integers, Integers, Integers]:
    """All (target, left, right) with stored[target] -= L[left] W[right]."""
    size, rows, columns = symbolic.size, symbolic.rows, symbolic.columns
    entries = np.flatnonzero(~(symbolic.pair[columns] & (rows == columns + 1)))
    counts = symbolic.starts[columns[entries] + 1] - entries
    right = np.repeat(entries, counts)
    left = right + np.arange(len(right)) - np.repeat(np.cumsum(counts) - counts, counts)
    found = np.searchsorted(columns * size + rows, rows[right] * size + rows[left])
    return np.where(left == right, rows[right], size + found), left, right


def _beside(symbolic: Symbolic) -> Integers:
    """For each entry of a pair's columns the one in the same row of the other half."""
    columns = symbolic.columns
    first = symbolic.pair[columns] & (symbolic.rows != columns + 1)
    second = np.concatenate([[False], symbolic.pair])[columns]
    apart = np.diff(symbolic.starts) - 1  # of a first column: from its entries to those of the second
    return np.arange(symbolic.fill) + first * apart[columns] - second * apart[columns - 1]
