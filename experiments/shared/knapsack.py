"""Shares of items in a knapsack: the best ones, and those of a smooth problem as a layer.

    minimise -c'u + r |u|^2 / 2    subject to    w'u = capacity and 0 <= u <= 1

for values c and weights w; without the penalty, r = 0, the choice jumps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from declarative import ClosedForm, DeclarativeNode

CAPACITY = 0.3  # of the weight of all items
HALVINGS = 60


@dataclass(frozen=True)
class Knapsack:
    """The weights of the items, (items,)."""

    weights: Tensor

    @property
    def capacity(self) -> float:
        """The weight that can be taken."""
        return CAPACITY * self.weights.sum().item()

    def choose(self, values: Tensor) -> Tensor:  # (batch, items) -> (batch, items)
        """The best shares: items by value for their weight, until the knapsack is full."""
        order = (values / self.weights).argsort(-1, descending=True)
        sorted_weights = self.weights.expand_as(values).gather(-1, order)
        before = sorted_weights.cumsum(-1) - sorted_weights
        shares = ((self.capacity - before) / sorted_weights).clamp(0.0, 1.0)
        return torch.zeros_like(values).scatter(-1, order, shares)

    def layer(self, penalty: float) -> DeclarativeNode:
        """The smooth choice as a function of the values."""
        weights, capacity = self.weights, self.capacity
        return DeclarativeNode(
            lambda c, u: penalty * u.square().sum() / 2 - c @ u,
            lambda c, u: weights @ u - capacity,  # noqa: ARG005
            lambda c, u: torch.cat([u - 1, -u]),  # noqa: ARG005
            solver=ClosedForm(lambda c: self.smooth_choice(c, penalty)),
            record=True,
        )

    def smooth_choice(self, values: Tensor, penalty: float) -> Tensor:  # (batch, items) -> (batch, items)
        """u = (c - l w) / r between 0 and 1, with the price l of a unit of weight that fills the knapsack.

        The price is found by halving, and then, with the items that are neither 0 nor 1, by the formula.
        """
        w = self.weights
        low = ((values - penalty) / w).amin(-1, keepdim=True)  # everything is taken
        high = (values / w).amax(-1, keepdim=True)  # nothing is
        for _ in range(HALVINGS):
            price = (low + high) / 2
            heavy = (w * ((values - price * w) / penalty).clamp(0.0, 1.0)).sum(-1, keepdim=True) > self.capacity
            low, high = torch.where(heavy, price, low), torch.where(heavy, high, price)
        shares = (values - (low + high) / 2 * w) / penalty
        inside, whole = (shares > 0) & (shares < 1), shares >= 1
        room = self.capacity - (w * whole).sum(-1, keepdim=True)
        some = (w * w * inside).sum(-1, keepdim=True)
        price = ((w * values * inside).sum(-1, keepdim=True) - penalty * room) / some
        return torch.where(inside, (values - price * w) / penalty, shares.clamp(0.0, 1.0))
