"""Systems of small dense matrices as machine code, one problem at a time: what ``dense_layout.py`` says in torch."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .jit import Floats, by_address, compiled, copy, cut, inner, separate, smaller

LARGEST = 128  # unknowns: beyond that, LAPACK's factorisations are faster
SHORT = 50  # entries of a vector
PIVOT = 1e-15  # a pivot that cancelled to less than this fraction of what it was is zero
DIGITS = float(np.finfo(np.float64).eps ** 0.5)


@inner
def dot(x: Floats, y: Floats) -> float:
    """The inner product; of short vectors BLAS is called for longer than it works."""
    if len(x) > SHORT:
        return np.dot(x, y)  # type: ignore[no-any-return]
    total = 0.0
    for i in range(len(x)):
        total += x[i] * y[i]
    return total


@inner
def _cholesky(matrix: Floats) -> float:
    """Factor in place, the lower triangle; what is left of the diagonal at least, or -1 if there is no factor.

    The upper triangle is overwritten.
    """
    room, size = np.inf, len(matrix)
    for j in range(size):
        pivot = matrix[j, j]
        before = pivot
        for c in range(j):
            before += matrix[j, c] * matrix[j, c]
        if not (pivot > 0 and pivot / before > PIVOT):
            return -1.0
        room = smaller(room, pivot / before)
        root = math.sqrt(pivot)
        matrix[j, j] = root
        column = matrix[j]  # its upper part is free, and close together
        for i in range(j + 1, size):
            matrix[i, j] /= root
            column[i] = matrix[i, j]
        for i in range(j + 1, size):
            factor, row = column[i], matrix[i]
            for c in range(j + 1, i + 1):
                row[c] -= factor * column[c]
    return room


@inner
def _unit(matrix: Floats) -> None:
    """The factor of the identity, where there is none."""
    for i in range(len(matrix)):
        for j in range(len(matrix)):
            matrix[i, j] = 1.0 if i == j else 0.0


@inner
def _forward(lower: Floats, x: Floats) -> None:
    """L^-1 x, in place."""
    for i in range(len(x)):
        entry = x[i]
        for c in range(i):
            entry -= lower[i, c] * x[c]
        x[i] = entry / lower[i, i]


@inner
def _backward(lower: Floats, x: Floats) -> None:
    """L'^-1 x, in place."""
    for i in range(len(x) - 1, -1, -1):
        x[i] /= lower[i, i]
        for c in range(i):
            x[c] -= lower[i, c] * x[i]


@inner
def solve_kkt(
    matrix: Floats,  # H + primal, the lower triangle, and in the end the factor, (m, m)
    jacobian: Floats,  # (k, m)
    forces: Floats,  # the weight, or one over dual, (k,)
    p: int,
    z: Floats,  # r, and in the end the solution, (m,)
    t: Floats,  # t, likewise, (k,)
    half: Floats,  # (p, m)
    complement: Floats,  # (p, p)
) -> tuple[bool, float]:
    """The system of a step, as DenseLayout solves it: whether all is well, and what is left of the diagonal of H."""
    for i in range(len(t)):
        for a in range(len(z)):
            pulled = forces[i] * jacobian[i, a]
            if pulled != 0:
                z[a] += pulled * t[i]
                for b in range(a + 1):
                    matrix[a, b] += pulled * jacobian[i, b]
    room = _cholesky(matrix)
    good = room >= 0
    if not good:
        _unit(matrix)
    if p and not _reduce(matrix, jacobian, half, complement) >= 0:
        good = False
        _unit(complement)
    _solve_reduced(matrix, half, complement, z, t[:p])
    for i in range(p, len(t)):
        t[i] = forces[i] * (dot(jacobian[i], z) - t[i])
    return good, room


@inner
def _reduce(factor: Floats, rows: Floats, half: Floats, complement: Floats) -> float:
    """L^-1 A' in the rows of half, and the factor of A H^-1 A' as :func:`_cholesky` leaves it, from H = L L'."""
    for i in range(len(half)):
        copy(half[i], rows[i])
        _forward(factor, half[i])
        for j in range(i + 1):
            complement[i, j] = dot(half[i], half[j])
    return _cholesky(complement)  # type: ignore[no-any-return]


@inner
def _solve_reduced(factor: Floats, half: Floats, complement: Floats, z: Floats, s: Floats) -> None:
    """(z, s) with H z + A' s = z and A z = s, in place, by these factors."""
    _forward(factor, z)
    for i in range(len(s)):
        s[i] = dot(half[i], z) - s[i]
    _forward(complement, s)
    _backward(complement, s)
    for i in range(len(s)):
        for a in range(len(z)):
            z[a] -= half[i, a] * s[i]
    _backward(factor, z)


class Room(NamedTuple):
    """A system, and room to solve it in."""

    hessian: Floats  # (m, m)
    jacobian: Floats  # (k, m)
    active: Floats  # which of the rows count, (k,)
    z: Floats  # the right-hand side, and in the end the solution, (m,)
    s: Floats  # (k,)
    factor: Floats  # (m, m)
    half: Floats  # (k, m)
    complement: Floats  # (k, k)
    of_unknowns: Floats  # (3, m)
    of_rows: Floats  # (3, k)
    trusted: Floats  # 1 if the solution is, else 0, (1,)


def room_size(m: int, k: int) -> int:
    """How many numbers the room takes for a system of this size."""
    return 2 * m * m + 2 * k * m + k * k + 4 * m + 5 * k + 1


@inner
def room_in(numbers: Floats, m: int, k: int) -> Room:
    """The room, in a buffer of so many numbers."""
    hessian, n = cut(numbers, 0, m, m)
    jacobian, n = cut(numbers, n, k, m)
    factor, n = cut(numbers, n, m, m)
    half, n = cut(numbers, n, k, m)
    complement, n = cut(numbers, n, k, k)
    of_unknowns, n = cut(numbers, n, 4, m)
    of_rows, n = cut(numbers, n, 5, k)
    return Room(
        hessian,
        jacobian,
        of_rows[0],
        of_unknowns[0],
        of_rows[1],
        factor,
        half,
        complement,
        of_unknowns[1:],
        of_rows[2:],
        numbers[n : n + 1],
    )


@inner
def _scaled(room: Room, unit: Floats, length: Floats) -> int:
    """Bring H and the active rows, which come first then, to size 1, in place; how many rows these are."""
    hessian, rows, m, count = room.hessian, room.jacobian, len(unit), 0
    for a in range(m):
        size = abs(hessian[a, a])
        unit[a] = 1 / math.sqrt(size) if size > 0 else 1.0
    for i in range(len(rows)):
        if room.active[i] != 0:
            total = 0.0
            for a in range(m):
                rows[count, a] = rows[i, a] * unit[a]
                total += rows[count, a] * rows[count, a]
            length[count] = 1 / math.sqrt(total) if total > 0 else 1.0
            for a in range(m):
                rows[count, a] *= length[count]
            count += 1
    for a in range(m):
        for b in range(m):
            hessian[a, b] *= unit[a] * unit[b]
    return count


@inner
def _factorise_active(room: Room, count: int) -> bool:
    """The factors of H + A'A and of its Schur complement; whether digits are left in both."""
    hessian, rows, factor = room.hessian, room.jacobian, room.factor
    m = len(hessian)
    for a in range(m):
        for b in range(a + 1):
            factor[a, b] = hessian[a, b]
    for i in range(count):
        for a in range(m):
            if rows[i, a] != 0:
                for b in range(a + 1):
                    factor[a, b] += rows[i, a] * rows[i, b]
    if not _cholesky(factor) > DIGITS:
        return False
    return bool(_reduce(factor, rows, room.half[:count], room.complement[:count, :count]) > DIGITS)


@inner
def _solve_active(room: Room, count: int, z: Floats, s: Floats) -> None:
    """By these factors, in place."""
    for i in range(count):
        for a in range(len(z)):
            z[a] += room.jacobian[i, a] * s[i]
    _solve_reduced(room.factor, room.half[:count], room.complement[:count, :count], z, s[:count])


def _examples() -> tuple[Any, ...]:
    row, rows = np.empty(0), np.empty((0, 0))
    return (Room(rows, rows, row, row, row, rows, rows, rows, rows, rows, row),)


@separate(_examples)
def solve_one_active(room: Room) -> None:
    """The system of the active constraints, as DenseLayout solves it; zero if it is not to be trusted."""
    m, k = room.half.shape[1], len(room.active)
    unit, z, more_z = room.of_unknowns[0], room.of_unknowns[1], room.of_unknowns[2]
    length, s, more_s = room.of_rows[0], room.of_rows[1], room.of_rows[2]
    count = _scaled(room, unit, length)
    trusted = _factorise_active(room, count)
    if trusted:
        place = 0
        for a in range(m):
            room.z[a] *= unit[a]
        for i in range(k):
            if room.active[i] != 0:
                room.s[place] = room.s[i] * length[place]
                place += 1
        copy(z, room.z)
        copy(s, room.s)
        _solve_active(room, count, z, s)
        copy(more_z, room.z)
        copy(more_s, room.s)
        for a in range(m):
            more_z[a] -= dot(room.hessian[a], z)
        for i in range(count):
            more_s[i] -= dot(room.jacobian[i], z)
            for a in range(m):
                more_z[a] -= room.jacobian[i, a] * s[i]
        _solve_active(room, count, more_z, more_s)
        size, change = 0.0, 0.0
        for a in range(m):
            size, change = max(size, abs(z[a])), max(change, abs(more_z[a]))
        for i in range(count):
            size, change = max(size, abs(s[i])), max(change, abs(more_s[i]))
        trusted = bool(change <= DIGITS * size and math.isfinite(size + change))
    place = count
    for a in range(m):
        room.z[a] = (z[a] + more_z[a]) * unit[a] if trusted else 0.0
    for i in range(k - 1, -1, -1):
        if room.active[i] != 0:
            place -= 1
            room.s[i] = (s[place] + more_s[place]) * length[place] if trusted else 0.0
        else:
            room.s[i] = 0.0
    room.trusted[0] = 1.0 if trusted else 0.0


solve_active = by_address(_examples)


@compiled
def solve_all_active(
    hessian: Floats,  # (batch, m, m)
    jacobian: Floats,  # (batch, k, m)
    active: NDArray[np.bool_],  # (batch, k)
    r: Floats,  # (batch, m)
    t: Floats,  # (batch, k)
    found: Floats,  # (batch, m + k)
    trusted: NDArray[np.bool_],  # (batch,)
    numbers: Floats,  # room for one of them
    kernel: int,  # where the code for one of them is
) -> None:
    """The systems of a batch."""
    m, k = r.shape[1], t.shape[1]
    room = room_in(numbers, m, k)
    for n in range(len(r)):
        for a in range(m):
            copy(room.hessian[a], hessian[n, a])
        copy(room.z, r[n])
        copy(room.s, t[n])
        for i in range(k):
            copy(room.jacobian[i], jacobian[n, i])
            room.active[i] = 1.0 if active[n, i] else 0.0
        solve_active(kernel, (room,))
        trusted[n] = room.trusted[0] != 0
        copy(found[n], room.z)
        copy(found[n, m:], room.s)
