"""What every cone knows: points inside, a scaling of the slacks, how far a step may go, and the face of a solution.

A group is a number of cones of one kind and dimension. Its points s (slacks) and z (multipliers) are (batch, count, d),
and matrices that act on them (batch, count, d, columns). K is the cone of s, K* its dual, the cone of z.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass

import torch
from torch import Tensor

BACKTRACK = 0.8  # by which a step is shortened until it stays inside


class Scaling(abc.ABC):
    """A matrix W for interior points s and z of each cone of a group: W z = W^-T s, and H = W' W takes z to s.

    In scaled coordinates, ds~ = W^-T ds and dz~ = W dz, nothing is larger or smaller than sqrt(mu) by much, so that a
    step can be computed without losing digits. It satisfies ds~ + dz~ = -target.
    """

    @abc.abstractmethod
    def scaled(self, x: Tensor) -> Tensor:
        """W^-T X for X (batch, count, d, columns)."""

    @abc.abstractmethod
    def slack(self, x: Tensor) -> Tensor:
        """W' x for x (batch, count, d)."""

    @abc.abstractmethod
    def multiplier(self, x: Tensor) -> Tensor:
        """W^-1 x for x (batch, count, d)."""

    @abc.abstractmethod
    def target(self, ds: Tensor | None, dz: Tensor | None, mu: Tensor) -> Tensor:  # mu: (batch, 1, 1)
        """What leads towards s o z = mu, with the products of the scaled predictor step taken into account."""

    @abc.abstractmethod
    def longest(self, ds: Tensor, dz: Tensor) -> Tensor:  # (batch,)
        """How far the scaled step stays inside; infinity for cones that can only be asked whether it does."""


class Face(abc.ABC):
    """The part of its cone's boundary where a slack lies, as a smooth surface c(s) = 0 in its neighbourhood.

    N is the derivative of c transposed, so that the multiplier is z = N mu, and M = -sum_i mu_i c_i'' the curvature.
    Everything is differentiable in s and z. c has as many rows as s has entries; those that do not apply are zero.
    """

    @abc.abstractmethod
    def value(self) -> Tensor:  # (batch, count, d)
        """c(s)."""

    @abc.abstractmethod
    def across(self, x: Tensor) -> Tensor:
        """N' X."""

    @abc.abstractmethod
    def along(self, y: Tensor) -> Tensor:
        """N Y."""

    @abc.abstractmethod
    def coordinates(self, z: Tensor) -> Tensor:  # (batch, count, d)
        """The mu with the N mu nearest to z."""

    @abc.abstractmethod
    def bend(self, x: Tensor) -> Tensor:
        """M X."""


@dataclass(frozen=True)
class Cone(abc.ABC):
    """Abstract: a group of cones of one kind.

    Attributes:
        count: how many there are.
        size: the number of entries of each.
    """

    count: int
    size: int

    symmetric = True

    @property
    @abc.abstractmethod
    def degree(self) -> int:
        """Of the barrier of the whole group: s' z = degree mu on the central path."""

    @abc.abstractmethod
    def unit(self, like: Tensor) -> Tensor:  # (count, d)
        """A point s = z of the central path with mu = 1."""

    @abc.abstractmethod
    def scaling(self, s: Tensor, z: Tensor, mu: Tensor) -> Scaling:
        """At interior points."""

    @abc.abstractmethod
    def depth(self, x: Tensor) -> Tensor:  # (batch, count)
        """How far a point is inside of K: negative outside, and proportional to x."""

    @abc.abstractmethod
    def boundary(self, s: Tensor) -> Tensor:  # (batch, count)
        """A convex function that is zero on the boundary and negative inside, smooth where the boundary is."""

    def dual_depth(self, z: Tensor) -> Tensor:
        """How far a point is inside of K*."""
        return self.depth(z)

    @abc.abstractmethod
    def barrier(self, s: Tensor, z: Tensor) -> Tensor:  # (batch,)
        """f(s) + f*(z), infinite outside; -degree on the central path with mu = 1."""

    @abc.abstractmethod
    def states(self, s: Tensor, z: Tensor) -> Tensor:  # (batch, count)
        """On which kind of face each slack lies, as a whole number; s and z are of comparable size."""

    @abc.abstractmethod
    def active(self, states: Tensor) -> Tensor:  # (batch, count, d)
        """Which rows of c apply to faces of these kinds."""

    @abc.abstractmethod
    def is_weak(self, s: Tensor, z: Tensor, states: Tensor, small: Tensor) -> Tensor:  # (batch, count)
        """Where strict complementarity fails: the derivative has sides."""

    @abc.abstractmethod
    def face(self, s: Tensor, z: Tensor, states: Tensor) -> Face:
        """The faces of these kinds at a solution."""


def first_bound(values: Tensor) -> Tensor:  # (batch, ...) -> (batch,)
    """The smallest number of each problem, infinite if there is none."""
    values = values.flatten(1)
    return values.amin(-1) if values.shape[-1] else values.new_full((len(values),), torch.inf)
