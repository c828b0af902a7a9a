"""The linear systems of Newton's step, of small dense problems and of sparse ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ....linear.dense_kernel import solve_kkt
from ....linear.jit import Floats, by_address, compiled, copy, cut, inner, larger, separate
from ....linear.sparse.elimination import arrange, factorise
from ....linear.sparse.kernel_arrays import Indices, Plan, room_in
from ....linear.sparse.layout import SOLVED
from ....linear.sparse.substitution import Kernels, solve
from ..parameters import FIRST_SHIFT, MORE_SHIFT
from .arrays import Common, Problems, examples
from .iteration import correct, find_diagonal, find_primal, prepare

STEP_GOAL = 1e-12  # a relative residual with which a step is as good as any
SHIFTS, LARGEST_SHIFT = 10, 1e4  # how often a regularisation is made larger here, and what may become of it


class SparseWork(NamedTuple):
    """What sparse systems side by side are factored with."""

    plan: Plan  # without entries, if problems are dense
    kernels: Kernels
    numbers: Floats
    where: Indices
    lanes: int

    @classmethod
    def none(cls) -> SparseWork:
        """For dense problems."""
        return cls(Plan.none(), Kernels.none(), np.empty(0), np.empty(0, np.uint32), 1)


def _examples() -> tuple[Any, ...]:
    return *examples(), SparseWork.none(), 0, 0, False


solve_steps = by_address(_examples)  # for problems side by side; the flag: whether H may be shifted


@inner
def solve_dense(x: Problems, common: Common, begin: int, end: int) -> None:
    """The steps of small dense problems."""
    here, system, p, m, k = x.current, x.system, common.p, x.current.u.shape[1], x.current.y.shape[1]
    matrix, at = cut(common.scratch, 0, m, m)
    half, at = cut(common.scratch, at, p, m)
    complement, at = cut(common.scratch, at, p, p)
    forces = common.scratch[at : at + k]
    for n in range(begin, end):
        for a in range(m):
            for b in range(a + 1):
                matrix[a, b] = here.hessian[n, a * m + b]
            matrix[a, a] += system.primal[n, a]
        for i in range(k):
            forces[i] = x.fixed.weight[n] if i < p else 1 / system.dual[n, i]
        copy(system.z[n], system.r[n])
        copy(system.s[n], system.t[n])
        rows = here.jacobian[n].reshape(k, m)
        found = solve_kkt(matrix, rows, forces, p, system.z[n], system.s[n], half, complement)
        system.factored[n], system.pivot[n] = found


@compiled
def prepare_all(x: Problems, common: Common, dense: bool) -> None:
    """:func:`prepare`, for all problems of a batch, and their steps if they are dense."""
    prepare(x, common, 0, len(x.current.u))
    if dense:
        solve_dense(x, common, 0, len(x.current.u))


@compiled
def correct_all(x: Problems, common: Common, dense: bool) -> None:
    """:func:`correct`, likewise."""
    for n in range(len(x.current.u)):
        correct(x, common, n)
    if dense:
        solve_dense(x, common, 0, len(x.current.u))


@separate(_examples)
def solve_dense_steps(x: Problems, common: Common, _: SparseWork, begin: int, end: int, _shifted: bool) -> None:
    """The same, by its address."""
    solve_dense(x, common, begin, end)


@separate(_examples)
def solve_sparse_steps(x: Problems, common: Common, work: SparseWork, begin: int, end: int, shifted: bool) -> None:
    """The steps of sparse problems; where H is not positive definite along the constraints, with a shift, if wanted."""
    _solve_sparse(x, work, begin, end)
    for _ in range(SHIFTS if shifted else 0):
        more = False
        for n in range(begin, end):
            if not x.system.pivot[n] > 0 and x.current.shift[n] < LARGEST_SHIFT:
                _shift_more(x, common, n)
                more = True
        if not more:
            return
        _solve_sparse(x, work, begin, end)


@inner
def _shift_more(x: Problems, common: Common, n: int) -> None:
    """A larger regularisation of one problem."""
    m, shift = x.current.u.shape[1], x.current.shift
    diagonal, steepest = common.scratch[:m], 0.0
    find_diagonal(common, x.current.hessian[n], diagonal)
    for a in range(m):
        steepest = larger(steepest, abs(x.system.r[n, a]))
    shift[n] = larger(MORE_SHIFT * shift[n], FIRST_SHIFT)
    find_primal(shift[n], steepest, diagonal, x.system.primal[n])


@inner
def _solve_sparse(x: Problems, work: SparseWork, first: int, last: int) -> None:
    """As the sparse layout does it."""
    here, system, plan = x.current, x.system, work.plan
    room = room_in(plan, work.numbers, work.where, work.lanes)
    entries, sides = room.entries, room.rows
    m, begin = here.u.shape[1], 0
    arrange(here.hessian[first:last], 0, begin, entries)
    begin += here.hessian.shape[1]
    arrange(here.jacobian[first:last], 0, begin, entries)
    begin += here.jacobian.shape[1]
    arrange(system.primal[first:last], 0, begin, entries)
    begin += m
    for b in range(work.lanes):
        n = min(first + b, last - 1)
        for i in range(system.dual.shape[1]):
            entries[begin + i, b] = -system.dual[n, i]
        for i in range(m):
            sides.right[plan.place[i], b] = system.r[n, i]
        for i in range(system.t.shape[1]):
            sides.right[plan.place[m + i], b] = system.t[n, i]
    factorise(work.kernels.factorise, (plan, entries, room.factor, room.work))
    solve(work.kernels.solve, (plan, entries, room.factor, sides, room.error, STEP_GOAL))
    for b in range(last - first):
        n = first + b
        convex = room.factor.counts[0, b] + room.factor.counts[2, b] == m
        system.factored[n] = convex and room.error[b] <= SOLVED
        system.pivot[n] = 1.0 if convex else 0.0
        for i in range(m):
            system.z[n, i] = sides.x[plan.place[i], b]
        for i in range(system.t.shape[1]):
            system.s[n, i] = sides.x[plan.place[m + i], b]
