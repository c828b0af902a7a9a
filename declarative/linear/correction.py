"""Solutions of KKT systems, corrected until every equation holds by itself, and what is to be said where that fails.

An equation holds if what is left of it is rounding beside its own terms, in the units that it is in: a large entry
elsewhere excuses nothing. Where corrections do not get there, or many digits were lost on the way, it depends on what
is wanted of the solution whether anything is wrong.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .contract import Pair, Solve, Wanted, or_one, warn_of
from .directions import irregular
from .forms import Form, SymmetricForm, kkt_product

CORRECTIONS = 4  # at most; each takes the digits that are left of the condition number
BALANCED = 1e3  # units in the last place: an equation that holds to that is not looked at again
HOPELESS = 2.0  # times what was left of the worst equation may be left after a correction that the others need
UNIQUE = 1e-6  # of what is wanted, relatively: if the null space changes it by less, all solutions are the same


class Equations(NamedTuple):
    """[H A'; A -diag(dual)] [z; s] = [r; t] for a batch, A with its inactive rows blanked out."""

    hessian_form: SymmetricForm
    hessian: Tensor
    jacobian_form: Form
    rows: Tensor
    dual: Tensor  # (batch, k)

    def multiply(self, z: Tensor, s: Tensor) -> Pair:
        """The matrix times (z, s)."""
        curved = self.hessian_form.multiply(self.hessian, z)
        return kkt_product(curved, self.jacobian_form, self.rows, self.dual, z, s)

    def terms(self, z: Tensor, s: Tensor, r: Tensor, t: Tensor) -> Pair:
        """What the terms of each equation add up to, all with the same sign."""
        curved = self.hessian_form.multiply(self.hessian.abs(), z.abs())
        top, bottom = kkt_product(curved, self.jacobian_form, self.rows.abs(), -self.dual, z.abs(), s.abs())
        return top + r.abs(), bottom + t.abs()

    def left(self, z: Tensor, s: Tensor, r: Tensor, t: Tensor) -> Pair:
        """What is left of each equation."""
        top, bottom = self.multiply(z, s)
        return r - top, t - bottom

    def take(self, which: Tensor) -> Equations:
        """Those of the problems at these positions."""
        return self._replace(hessian=self.hessian[which], rows=self.rows[which], dual=self.dual[which])


def unsolved(left: Pair, terms: Pair) -> Tensor:  # (batch,)
    """What is left of the equation that holds worst, beside its own terms."""
    share = torch.cat([torch.where(x == 0, 0.0, x.abs() / size) for x, size in zip(left, terms, strict=True)], -1)
    worst: Tensor = share.amax(-1).nan_to_num(torch.inf) if share.shape[-1] else share.sum(-1)
    return worst


class Corrected(NamedTuple):
    """A solution, what is left of its worst equation, and by how much the first correction changed it."""

    z: Tensor
    s: Tensor
    error: Tensor  # (batch,)
    lost: Tensor  # relative, in the units given, (batch,)

    def put(self, rows: Tensor, other: Corrected) -> Corrected:
        """The same with the other one at these positions, where that is better."""
        better = other.error < self.error[rows]
        rows = rows[better]
        return Corrected(*(x.index_copy(0, rows, y[better]) for x, y in zip(self, other, strict=True)))


def corrected(equations: Equations, solve: Solve, r: Tensor, t: Tensor, units: Pair | None = None) -> Corrected:
    """The solution by some factors, corrected for as long as that helps.

    Args:
        equations: what has to hold.
        solve: the solution by these factors.
        r, t: the right-hand side, (batch, m) and (batch, k).
        units: those of z and s, in which the first correction tells how many digits were lost; None: nobody asks.
    """
    goal = 4 * torch.finfo(r.dtype).eps
    z, s = solve(r, t)
    left = equations.left(z, s, r, t)
    error, lost = unsolved(left, equations.terms(z, s, r, t)), torch.zeros_like(r[:, 0])
    for tried in range(CORRECTIONS):
        if units is None and not bool((error > goal).any()):
            break
        change = solve(*left)
        if not tried and units is not None:
            lost = relative_size(change, (z, s), units)
        next_z, next_s = z + change[0], s + change[1]
        next_left = equations.left(next_z, next_s, r, t)
        now = unsolved(next_left, equations.terms(next_z, next_s, r, t))
        # An equation that is left of nothing but rounding errors, as that of a multiplier that is zero in truth, never
        # holds: that must not keep the first correction, which mends all the others, from being taken.
        better = now < (error if tried else HOPELESS * error)
        going = (now > goal) & (now < 0.5 * error)
        mask = better.unsqueeze(-1)
        z, s = torch.where(mask, next_z, z), torch.where(mask, next_s, s)
        left = torch.where(mask, next_left[0], left[0]), torch.where(mask, next_left[1], left[1])
        error = torch.where(better, now, error)
        if not bool(going.any()):
            break
    return Corrected(z, s, error, lost)


def relative_size(change: Pair, solution: Pair, units: Pair) -> Tensor:  # (batch,)
    """The largest entry of a change beside the largest one of the solution, in these units."""
    moved, size = (largest_in(units, *one) for one in (change, solution))
    return (moved / or_one(size)).nan_to_num(torch.inf)


def largest_in(units: Pair, z: Tensor, s: Tensor) -> Tensor:  # (batch,)
    """The largest entry of z and s in these units."""
    whole = torch.cat([z / units[0], s / units[1]], -1).abs()
    size: Tensor = whole.amax(-1) if whole.shape[-1] else whole.sum(-1)
    return size


def announce(
    equations: Equations,
    solve: Solve,
    found: Corrected,
    right: Pair,
    singular: Tensor,  # (batch,)
    units: Pair,  # of z and s
    eps: float,
    words: tuple[str, str],
    wanted: Wanted | None,
) -> None:
    """Say of which problems the solution is not to be relied on, where what it is wanted for is affected.

    Of a singular matrix that is what its null space contributes: nothing, if constraints are redundant and only their
    multipliers can be others, or if solutions differ in what neither the problem nor the loss depends on.
    """
    name, singular_words = words
    solution, usual = (found.z, found.s), usual_solution(right, units)
    doubtful = ((found.lost > eps**0.5) | (found.error > BALANCED * eps)) & ~singular
    if bool(singular.any()):
        left, terms = equations.left(*solution, *right), equations.terms(*solution, *right)
        inverse = 1 / units[0], 1 / units[1]
        told = largest_in(inverse, *left) > eps**0.5 * largest_in(inverse, *terms)  # there is no solution
        if not bool(told[singular].all()):
            null, same = null_vector(equations, solve, solution, units), max(UNIQUE, eps**0.5)
            moved = wanted and wanted.is_affected(solution, usual, null, same)
            turned = wanted and wanted.is_turned(solution, usual, null[1], solve, same)
            told = told | moved | turned if moved is not None and turned is not None else torch.ones_like(told)
        if bool((which := told & singular).any()):
            warn_of(which, f"{name} {singular_words}", "the least-norm solution was used; check(node, x) tells more")
    if bool(doubtful.any()):
        change = rounding(equations, solve, found, right, eps)
        size = relative_size(change, solution, units)
        why = f"{name} is so ill-conditioned that its solution is only good to {float(size[doubtful].amax()):.0e}"
        moved = wanted and wanted.is_affected(solution, usual, change, eps**0.5)
        which = doubtful & (size > eps**0.5 if moved is None else moved)
        if bool(which.any()):
            warn_of(which, why, "so many digits of the gradient are lost; check(node, x) tells more")


def usual_solution(right: Pair, units: Pair) -> Pair:
    """What a solution is like, in size, if the matrix has entries about one in these units."""
    size = largest_in((1 / units[0], 1 / units[1]), *right).unsqueeze(-1)
    return size * units[0] * irregular(units[0]), size * units[1] * irregular(units[1])


def rounding(equations: Equations, solve: Solve, found: Corrected, right: Pair, eps: float) -> Pair:
    """What the solution may change by if each entry of the matrix and of the right-hand side is rounded."""
    top, bottom = equations.terms(found.z, found.s, *right)
    return solve(eps * top * irregular(top), eps * bottom * irregular(bottom))


def null_vector(equations: Equations, solve: Solve, solution: Pair, units: Pair) -> Pair:
    """A vector of the null space without a pattern, as large as the solution: what nothing determines."""
    z, s = irregular(solution[0]) * units[0], irregular(solution[1]) * units[1]
    back_z, back_s = solve(*equations.multiply(z, s))
    z, s = z - back_z, s - back_s
    scale = (or_one(largest_in(units, *solution)) / or_one(largest_in(units, z, s))).unsqueeze(-1)
    return z * scale, s * scale
