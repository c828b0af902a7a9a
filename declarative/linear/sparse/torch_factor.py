"""The factorisation in plain torch: level by level, all columns of a level and all problems at once, on any device.

A level is a range of columns that do not depend on each other: with an
order made for it there are few of them, and each takes some dozens of torch's operations, however many problems there
are. Values are stored (entry, batch): the diagonal, followed by the entries below it, column by column.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .entries import Integers
from .ldl import CORRECTIONS, FADED, GOAL, PIVOT, REPLACED, SMALLEST, BatchFactor
from .symbolic import Symbolic


@dataclass(frozen=True, eq=False)
class Level:
    """A range of columns: pivots by themselves, then pairs; and the entries of L that have to do with them."""

    begin: int
    pairs: int  # where the pairs begin
    end: int
    own: slice  # the entries of these columns, in L
    stored: slice  # and where they are stored
    rows: Tensor  # their rows, as positions
    columns: Tensor  # their columns
    beside: Tensor  # where the entry in the same row of the other half of a pair is stored; the entry itself without
    links: Tensor  # where the entries between the halves of pairs are stored
    target: Tensor  # stored[target] -= L[left] stored[right], those on the diagonal first
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
    kinds: list[Tensor]  # the positions of unknowns and of constraints, if there are any
    fill: int

    @classmethod
    def of(cls, symbolic: Symbolic, device: torch.device) -> Plan:
        """On a device."""
        halves = np.flatnonzero(symbolic.pair)
        mate = np.arange(symbolic.size)
        mate[halves], mate[halves + 1] = halves + 1, halves
        kinds = np.flatnonzero(~symbolic.is_constraint), np.flatnonzero(symbolic.is_constraint)
        sign = np.where(symbolic.is_constraint, -1.0, 1.0)
        arrays = (symbolic.place, symbolic.slots, *symbolic.coordinates, mate, sign)
        place, slots, first, second, mates, signs = (torch.from_numpy(x).to(device) for x in arrays)
        positions = [torch.from_numpy(x).to(device) for x in kinds if len(x)]
        levels = _levels(symbolic, device)
        return cls(levels, place, slots, first, second, mates, signs.unsqueeze(-1), positions, symbolic.fill)


@dataclass(frozen=True, eq=False)
class TorchFactor(BatchFactor):
    """The factors of a batch."""

    plan: Plan
    entries: Tensor  # of K, (entries, batch)
    inverse: Tensor  # the diagonal of D^-1, (size, batch)
    coupling: Tensor  # of its blocks, beside the diagonal, (size, batch)
    lower: Tensor  # L, (fill, batch)
    signs: Tensor  # of the pivots: 1, -1, or 2 and -2 for what has been replaced, (size, batch)

    def counts(self) -> Tensor:
        return torch.stack([(self.signs == kind).sum(0) for kind in (1, -1, 2, -2)], -1)

    def solve(self, right: Tensor) -> tuple[Tensor, Tensor]:
        ordered = torch.empty_like(right.transpose(0, 1), memory_format=torch.contiguous_format)
        ordered[self.plan.place] = right.transpose(0, 1)
        x, error, residual = torch.zeros_like(ordered), torch.full_like(right[:, 0], torch.inf), ordered
        most = torch.full_like(error, SMALLEST).expand(len(self.plan.kinds), *error.shape)
        for _ in range(CORRECTIONS + 1):
            trial = x + self._substitute(residual)
            residual, left, total = self._residual(ordered, trial)
            most = torch.maximum(most, total)  # of what fades with corrections, a part remains: it may be zero in truth
            now = (left / torch.maximum(total, FADED * most)).amax(0).nan_to_num(torch.inf)
            better, going = now < error, (now > GOAL) & (now < 0.5 * error)
            x, error = torch.where(better, trial, x), torch.where(better, now, error)
            if not going.any():
                break
        return x[self.plan.place].transpose(0, 1), error.amax(-1)

    def _substitute(self, right: Tensor) -> Tensor:  # (size, batch, count)
        x, lower = right.clone(), self.lower.unsqueeze(-1)
        for level in self.plan.levels:
            x.index_add_(0, level.rows, lower[level.own] * x.index_select(0, level.columns), alpha=-1)
        x = self.inverse.unsqueeze(-1) * x + self.coupling.unsqueeze(-1) * x[self.plan.mate]
        for level in reversed(self.plan.levels):
            x.index_add_(0, level.columns, lower[level.own] * x.index_select(0, level.rows), alpha=-1)
        return x

    def _residual(self, right: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """right - K x, its largest entry of each kind, and the largest of what these are made from."""
        plan, entries = self.plan, self.entries.unsqueeze(-1)
        below = entries * x.index_select(0, plan.second)
        above = (entries * (plan.first != plan.second).view(-1, 1, 1)) * x.index_select(0, plan.first)
        residual, total = right.clone(), right.abs()
        for index, product in ((plan.first, below), (plan.second, above)):
            residual.index_add_(0, index, product, alpha=-1)
            total.index_add_(0, index, product.abs())
        sizes = torch.stack([torch.stack([residual[kind].abs().amax(0), total[kind].amax(0)]) for kind in plan.kinds])
        return residual, sizes[:, 0], sizes[:, 1]  # (size, batch, count), (kinds, batch, count), the same


def factorise(plan: Plan, entries: Tensor) -> TorchFactor:
    """L and D^-1 of K, from its entries (entries, batch)."""
    size, batch = len(plan.mate), entries.shape[1]
    stored = entries.new_zeros(size + plan.fill, batch).index_add_(0, plan.slots, entries)
    made = stored[:size].abs()  # the size of what each pivot is made from
    inverse, coupling, signs = entries.new_zeros(3, size, batch)
    factor = TorchFactor(plan, entries, inverse, coupling, entries.new_zeros(plan.fill, batch), signs)
    for level in plan.levels:
        change = factor.lower.index_select(0, level.left) * stored.index_select(0, level.right)
        stored.index_add_(0, level.target, change, alpha=-1)
        made.index_add_(0, level.target[: level.pivots], change[: level.pivots].abs())
        if level.pairs > level.begin:
            _invert_ones(factor, level, stored, made)
        if level.end > level.pairs:
            _invert_twos(factor, level, stored, made)
            stored.index_fill_(0, level.links, 0.0)
        own = stored[level.stored] * factor.inverse.index_select(0, level.columns)
        beside = stored.index_select(0, level.beside) * factor.coupling.index_select(0, level.columns)
        factor.lower[level.own] = own + beside
    return factor


def _invert_ones(factor: TorchFactor, level: Level, stored: Tensor, made: Tensor) -> None:
    """Pivots by themselves."""
    ones = slice(level.begin, level.pairs)
    pivot = stored[ones]
    good = (pivot.abs() > PIVOT * made[ones]) | ~pivot.isfinite()
    factor.signs[ones] = torch.where(good, pivot.sign(), 2 * factor.plan.sign[ones])
    if not good.all():
        instead = _replacements(level, stored, made)[: level.pairs - level.begin] * factor.plan.sign[ones]
        pivot = torch.where(good, pivot, instead)
    factor.inverse[ones] = pivot.reciprocal()


def _invert_twos(factor: TorchFactor, level: Level, stored: Tensor, made: Tensor) -> None:
    """Blocks [h, a; a, c]."""
    one, two = slice(level.pairs, level.end, 2), slice(level.pairs + 1, level.end, 2)
    h, a, c = stored[one], stored[level.links], stored[two]
    determinant = h * c - a * a
    noise = h.abs() * made[two] + c.abs() * made[one] + 2 * a.abs() * (made[one] * made[two]).sqrt()
    good = (determinant.abs() > PIVOT * noise) | ~determinant.isfinite()
    alike = h.sign() + 0 * determinant  # not a number where that is none
    factor.signs[one] = torch.where(determinant < 0, 1.0, alike)
    factor.signs[two] = torch.where(determinant < 0, -1.0, alike)
    if not good.all():
        factor.signs[one] = torch.where(good, factor.signs[one], torch.where(h + c > 0, 1.0, 2.0))
        factor.signs[two] = torch.where(good, factor.signs[two], torch.where(h + c < 0, -1.0, -2.0))
        to_h, to_c = _replacements(level, stored, made)[level.pairs - level.begin :].unflatten(0, (-1, 2)).unbind(1)
        to_h, to_c = torch.where(c > 0, -to_h, to_h), torch.where(h < 0, to_c, -to_c)
        h, c = torch.where(good, h, h + to_h), torch.where(good, c, c + to_c)
        determinant = h * c - a * a
    factor.inverse[one], factor.inverse[two] = c / determinant, h / determinant
    factor.coupling[one] = factor.coupling[two] = -a / determinant


def _replacements(level: Level, stored: Tensor, made: Tensor) -> Tensor:  # (pivots of the level, batch)
    """Small numbers beside what the pivots are made from and what they would eliminate."""
    beside = made[level.begin : level.end].clamp(min=SMALLEST)
    return REPLACED * beside.index_add(0, level.columns - level.begin, stored[level.stored].abs())


def _levels(symbolic: Symbolic, device: torch.device) -> list[Level]:
    if symbolic.levels is None:
        raise ValueError("this analysis is for elimination one by one; analyse(pattern, prefer='depth') has levels")
    size, rows, columns = symbolic.size, symbolic.rows, symbolic.columns
    target, left, right = _updates(symbolic)
    on_diagonal = target < size
    column = rows[right]
    sort = np.lexsort((~on_diagonal, np.searchsorted(symbolic.levels, column, side="right")))
    bounds = np.searchsorted(column[sort], symbolic.levels)  # columns of a level come before those of the next
    beside = size + _beside(symbolic)

    def on_device(index: Integers) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(index)).to(device)

    levels = []
    for number, (begin, end) in enumerate(zip(symbolic.levels[:-1], symbolic.levels[1:], strict=True)):
        own = slice(int(symbolic.starts[begin]), int(symbolic.starts[end]))
        mine = sort[bounds[number] : bounds[number + 1]]
        pairs = int(end - 2 * symbolic.pair[begin:end].sum())
        level = Level(
            begin=int(begin),
            pairs=pairs,
            end=int(end),
            own=own,
            stored=slice(size + own.start, size + own.stop),
            rows=on_device(rows[own]),
            columns=on_device(columns[own]),
            beside=on_device(beside[own]),
            links=on_device(size + symbolic.starts[pairs:end:2]),
            target=on_device(target[mine]),
            left=on_device(left[mine]),
            right=on_device(size + right[mine]),
            pivots=int(on_diagonal[mine].sum()),
        )
        levels.append(level)
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
    beside: Integers = np.arange(symbolic.fill) + first * apart[columns] - second * apart[columns - 1]
    return beside
