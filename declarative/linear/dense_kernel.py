"""Systems of small dense matrices as machine code, one problem at a time: what ``layout.py`` says in torch."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .machine import Floats, compiled, inner, smaller

LARGEST = 128  # unknowns: beyond that, LAPACK's factorisations are faster
SHORT = 50  # entries of a vector
PIVOT = 1e-15  # a pivot that cancelled to less than this fraction of what it was is zero
DIGITS = float(np.finfo(np.float64).eps ** 0.5)


@inner
def _dot(x: Floats, y: Floats) -> float:
    """The inner product; of short vectors BLAS is called for longer than it works."""
    if len(x) > SHORT:
        return np.dot(x, y)  # type: ignore[no-any-return]
    total = 0.0
    for i in range(len(x)):
        total += x[i] * y[i]
    return total


@inner
def _cholesky(matrix: Floats) -> float:
    """Factor in place, the lower triangle; what is left of the diagonal at least, or -1 if there is no factor."""
    room, size = np.inf, len(matrix)
    before, column = np.empty(size), np.empty(size)
    for j in range(size):
        before[j] = matrix[j, j]
    for j in range(size):
        pivot = matrix[j, j]
        if not (pivot > 0 and pivot / before[j] > PIVOT):
            return -1.0
        room = smaller(room, pivot / before[j])
        root = math.sqrt(pivot)
        matrix[j, j] = root
        for i in range(j + 1, size):
            column[i] = matrix[i, j] / root
            matrix[i, j] = column[i]
        for i in range(j + 1, size):
            factor, row = column[i], matrix[i]
            for c in range(j + 1, i + 1):
                row[c] -= factor * column[c]
    return room


@inner
def _unit(matrix: Floats) -> None:
    """The factor of the identity, where there is none."""
    matrix[:] = 0.0
    for j in range(len(matrix)):
        matrix[j, j] = 1.0


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
    _forward(matrix, z)
    for i in range(p):
        half[i] = jacobian[i]
        _forward(matrix, half[i])
        for j in range(i + 1):
            complement[i, j] = _dot(half[i], half[j])
        t[i] = _dot(half[i], z) - t[i]
    if p and _cholesky(complement) < 0:
        good = False
        _unit(complement)
    _forward(complement, t[:p])
    _backward(complement, t[:p])
    for i in range(p):
        for a in range(len(z)):
            z[a] -= half[i, a] * t[i]
    _backward(matrix, z)
    for i in range(p, len(t)):
        t[i] = forces[i] * (_dot(jacobian[i], z) - t[i])
    return good, room


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


@inner
def room_for(m: int, k: int) -> Room:
    """For a system of this size."""
    return Room(
        np.empty((m, m)),
        np.empty((k, m)),
        np.empty(k),
        np.empty(m),
        np.empty(k),
        np.empty((m, m)),
        np.empty((k, m)),
        np.empty((k, k)),
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
    hessian, rows, factor, half, complement = room.hessian, room.jacobian, room.factor, room.half, room.complement
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
    for i in range(count):
        for a in range(m):
            half[i, a] = rows[i, a]
        _forward(factor, half[i])
        for j in range(i + 1):
            complement[i, j] = _dot(half[i], half[j])
    return bool(_cholesky(complement[:count, :count]) > DIGITS)


@inner
def _solve_active(room: Room, count: int, z: Floats, s: Floats) -> None:
    """By these factors, in place."""
    m = len(z)
    for i in range(count):
        for a in range(m):
            z[a] += room.jacobian[i, a] * s[i]
    _forward(room.factor, z)
    for i in range(count):
        s[i] = _dot(room.half[i], z) - s[i]
    small = room.complement[:count, :count]
    _forward(small, s[:count])
    _backward(small, s[:count])
    for i in range(count):
        for a in range(m):
            z[a] -= room.half[i, a] * s[i]
    _backward(room.factor, z)


@inner
def solve_active(room: Room) -> bool:
    """The system of the active constraints, as DenseLayout solves it; whether it is to be trusted, else it is zero."""
    m, k = room.half.shape[1], len(room.active)
    unit, length, z, s, more_z, more_s = np.empty(m), np.empty(k), np.empty(m), np.empty(k), np.empty(m), np.empty(k)
    count = _scaled(room, unit, length)
    trusted: bool = _factorise_active(room, count)
    if trusted:
        place = 0
        for a in range(m):
            room.z[a] *= unit[a]
        for i in range(k):
            if room.active[i] != 0:
                room.s[place] = room.s[i] * length[place]
                place += 1
        z[:], s[:] = room.z, room.s
        _solve_active(room, count, z, s)
        more_z[:], more_s[:] = room.z, room.s
        for a in range(m):
            more_z[a] -= _dot(room.hessian[a], z)
        for i in range(count):
            more_s[i] -= _dot(room.jacobian[i], z)
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
    return trusted


@compiled
def solve_all_active(
    hessian: Floats,  # (batch, m, m)
    jacobian: Floats,  # (batch, k, m)
    active: NDArray[np.bool_],  # (batch, k)
    r: Floats,  # (batch, m)
    t: Floats,  # (batch, k)
    found: Floats,  # (batch, m + k)
    trusted: NDArray[np.bool_],  # (batch,)
) -> None:
    """The systems of a batch."""
    m, k = r.shape[1], t.shape[1]
    room = room_for(m, k)
    for n in range(len(r)):
        room.hessian[:], room.jacobian[:], room.z[:], room.s[:] = hessian[n], jacobian[n], r[n], t[n]
        for i in range(k):
            room.active[i] = 1.0 if active[n, i] else 0.0
        trusted[n] = solve_active(room)
        found[n, :m], found[n, m:] = room.z, room.s
