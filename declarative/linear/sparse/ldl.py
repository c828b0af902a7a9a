"""The factorisation P K P' = L D L' of a batch: what its two implementations, the core's and torch's, have in common.

In the order of elimination, with blocks of size one and two in D:

    W = L D, column by column:  W_ij = K_ij - sum over columns k before j of  L_ik W_jk,
    L = W D^-1.

W is kept beside L because it makes a block of D of size two no different from two of size one. A pivot that cannot be
told from zero is replaced by a small one, with the sign that its kind should have: above zero for an unknown, below for
a constraint. A singular block [h, a; a, c] is moved towards a negative determinant, as those of KKT matrices have. What
is not finite stays, and is not counted. Solutions are corrected with the matrix itself.
"""

from __future__ import annotations

import abc

from torch import Tensor

PIVOT = 1e-13  # a pivot that cancelled to less than this fraction is zero
REPLACED = 1e-8  # what it is replaced with, relative to what it was made from
SMALLEST = 1e-300  # where there is nothing to be relative to
GOAL = 1e-15  # a relative residual from which a solution is not corrected any more
FADED = 1e-4  # of what the terms of an equation were, if corrections have left less of them
CORRECTIONS = 20  # at most
LOST = 1e-10  # a relative residual above this is not what a correct pivot order leaves


class BatchFactor(abc.ABC):
    """The factors of a batch."""

    @abc.abstractmethod
    def counts(self) -> Tensor:  # (batch, 4)
        """How many pivots are above and below zero, and how many were replaced by one above or below."""

    @abc.abstractmethod
    def solve(self, right: Tensor) -> tuple[Tensor, Tensor]:  # (batch, size, count)
        """K^-1 right, corrected until its relative residual is small or does not fall any more, and that residual."""
