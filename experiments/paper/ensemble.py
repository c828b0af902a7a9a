"""Many small networks as one: parameters are stacked along a first dimension, and every operation serves all of them.

Adam's update is element by element, so an ensemble trains exactly as its members would one after the other.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

LAYERS = 3


class Ensemble(nn.Module):
    """Three-layer perceptrons with ReLU, evaluated side by side: (members, batch, data) -> (members, batch, width)."""

    def __init__(self, weights: list[Tensor], biases: list[Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(weights)  # (members, in, out)
        self.biases = nn.ParameterList(biases)  # (members, 1, out)

    def forward(self, z: Tensor) -> Tensor:
        last = len(self.weights) - 1
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            z = torch.baddbmm(bias, z, weight)
            z = z if i == last else z.relu()
        return z


def draw_parameters(data: int, width: int, generator: torch.Generator) -> tuple[list[Tensor], list[Tensor]]:
    """Weights and biases of one network, from the distribution that ``nn.Linear`` starts with, in float64."""
    weights: list[Tensor] = []
    biases: list[Tensor] = []
    for i in range(LAYERS):
        fan_in = width if i else data
        bound = fan_in**-0.5
        for tensors, rows in ((weights, fan_in), (biases, 1)):
            tensors.append((2 * torch.rand(rows, width, generator=generator, dtype=torch.float64) - 1) * bound)
    return weights, biases
