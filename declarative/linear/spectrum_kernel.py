"""Curvature along constraints, one small dense problem at a time, compiled: what ``dense_layout.py`` says in torch."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .dense_kernel import dot
from .jit import Floats, copy, cut, inner, larger

LARGEST = 32  # unknowns: beyond that, LAPACK is faster than plane rotations
STIFF = 1e4  # an inequality whose barrier curves this much more than H is as good as an equality
NOTHING = 1e-12  # curvature that is less than this part of the largest may be none
DEPENDENT = 1e-10  # what is left of a row of length 1 that depends on others
SWEEPS = 30  # of plane rotations: six to ten are enough
ROUNDING = 0.1 * float(np.finfo(np.float64).eps)


class Spectrum(NamedTuple):
    """The curvatures along the constraints, in units in which H has a given size, and room to find them in."""

    values: Floats  # (m,)
    vectors: Floats  # in rows, (m, m)
    matrix: Floats  # (m, m)
    basis: Floats  # of the rows of A: those that are independent, (m, m)
    unit: Floats  # (m,)


def spectrum_size(m: int) -> int:
    """How many numbers one takes."""
    return 3 * m * m + 2 * m


@inner
def spectrum_in(numbers: Floats, m: int) -> Spectrum:
    """One in a buffer of so many numbers."""
    vectors, n = cut(numbers, 0, m, m)
    matrix, n = cut(numbers, n, m, m)
    basis, n = cut(numbers, n, m, m)
    return Spectrum(numbers[n : n + m], vectors, matrix, basis, numbers[n + m : n + 2 * m])


@inner
def _rotate(matrix: Floats, vectors: Floats, i: int, j: int) -> None:
    """A plane rotation that makes one entry of a symmetric matrix vanish."""
    tilt = (matrix[j, j] - matrix[i, i]) / (2 * matrix[i, j])
    tangent = (1.0 if tilt >= 0 else -1.0) / (abs(tilt) + math.sqrt(tilt * tilt + 1))
    cosine = 1 / math.sqrt(tangent * tangent + 1)
    sine = tangent * cosine
    for a in range(len(matrix)):
        x, y = matrix[a, i], matrix[a, j]
        matrix[a, i], matrix[a, j] = cosine * x - sine * y, sine * x + cosine * y
    for a in range(len(matrix)):
        x, y = matrix[i, a], matrix[j, a]
        matrix[i, a], matrix[j, a] = cosine * x - sine * y, sine * x + cosine * y
        x, y = vectors[i, a], vectors[j, a]
        vectors[i, a], vectors[j, a] = cosine * x - sine * y, sine * x + cosine * y
    matrix[i, j] = matrix[j, i] = 0.0


@inner
def _diagonalise(matrix: Floats, vectors: Floats, small: float) -> bool:
    """By plane rotations, in place, but for what is small: eigenvalues on the diagonal, eigenvectors in rows.

    Returns whether so many sweeps were enough.
    """
    m = len(matrix)
    for a in range(m):
        for b in range(m):
            vectors[a, b] = 1.0 if a == b else 0.0
    for _ in range(SWEEPS):
        rotated = False
        for i in range(m - 1):
            for j in range(i + 1, m):
                if abs(matrix[i, j]) > small:
                    _rotate(matrix, vectors, i, j)
                    rotated = True
        if not rotated:
            return True
    return False


@inner
def _join(basis: Floats, count: int) -> int:
    """Make the next row of an orthonormal basis of the one that was put there; how many there are, if it was new."""
    row = basis[count]
    before = dot(row, row)
    if not before > 0:
        return count
    for _ in range(2):  # once more, for what rounding errors left of the others
        for i in range(count):
            along = dot(row, basis[i])
            for a in range(len(row)):
                row[a] -= along * basis[i, a]
    after = dot(row, row)
    if not after > DEPENDENT * DEPENDENT * before:
        return count
    for a in range(len(row)):
        row[a] /= math.sqrt(after)
    return count + 1


@inner
def _project(matrix: Floats, direction: Floats, image: Floats) -> None:
    """(I - q q') M (I - q q'), in place."""
    for a in range(len(direction)):
        image[a] = dot(matrix[a], direction)
    along = dot(direction, image)
    for a in range(len(direction)):
        for b in range(len(direction)):
            matrix[a, b] += direction[a] * (along * direction[b] - image[b]) - image[a] * direction[b]


@inner
def find_spectrum(
    hessian: Floats,  # (m * m,)
    jacobian: Floats,  # (k * m,)
    dual: Floats,  # what relaxes each constraint, (k,)
    p: int,  # equalities come first
    size: Floats,  # of H, (m,)
    to: Spectrum,
) -> bool:
    """The curvatures along equalities, and along inequalities as stiff as these; whether they could be found."""
    m, k, matrix, unit, count = len(size), len(dual), to.matrix, to.unit, 0
    for a in range(m):
        unit[a] = 1 / math.sqrt(size[a])
    for a in range(m):
        for b in range(m):
            matrix[a, b] = hessian[a * m + b] * unit[a] * unit[b]
    for i in range(k):
        row = to.vectors[0]
        for a in range(m):
            row[a] = jacobian[i * m + a] * unit[a]
        if i < p or dot(row, row) / dual[i] > STIFF:
            if count < m:
                copy(to.basis[count], row)
                count = _join(to.basis, count)
        else:
            for a in range(m):
                for b in range(m):
                    matrix[a, b] += row[a] * row[b] / dual[i]
    large = 0.0
    for a in range(m):
        total = 0.0
        for b in range(m):
            total += abs(matrix[a, b])
        large = larger(large, total)
    if not large < np.inf:
        return False
    for i in range(count):
        _project(matrix, to.basis[i], to.values)
    for i in range(count):
        for a in range(m):
            for b in range(m):
                matrix[a, b] += large * to.basis[i, a] * to.basis[i, b]
    if not _diagonalise(matrix, to.vectors, ROUNDING * large):
        return False
    for a in range(m):
        to.values[a] = matrix[a, a]
    return True


@inner
def turn(hessian: Floats, slope: Floats, reach: float, spectrum: Spectrum) -> None:
    """H with negative curvature along the constraints turned positive, in place.

    Along an eigenvector with curvature c < 0 the step is that of |c|: downhill, and as long as Newton's; but a step
    from the slope is not longer than reach.
    """
    m, unit = len(slope), spectrum.unit
    most = 0.0
    for i in range(m):
        most = larger(most, abs(spectrum.values[i]))
    for i in range(m):
        vector, value = spectrum.vectors[i], spectrum.values[i]
        along, longest = 0.0, 0.0
        for a in range(m):
            along += vector[a] * slope[a] * unit[a]
            longest = larger(longest, abs(vector[a] * unit[a]))
        wanted = larger(larger(abs(value), abs(along) * longest / reach), NOTHING * most)
        for a in range(m):
            for b in range(m):
                hessian[a * m + b] += vector[a] / unit[a] * (wanted - value) * vector[b] / unit[b]
