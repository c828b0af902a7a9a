"""Train a network that says how good an answer is, where every answer has to keep a law.

A liquid flows through four pipes from one junction to the next. What comes in goes out (an equation), and no pipe can
take more than its capacity (inequalities). How the flow spreads over the pipes is not known: a network gives each one
an energy, and the flow is the one with the lowest energy among those that the law allows. The network is trained from
observed flows alone, through the minimum.

    python examples/energy_network.py [steps]
"""

import sys

import torch
from torch import nn

from declarative import DeclarativeNode

PIPES, BATCH = 4, 24
CAPACITY = 0.6


class Energy(nn.Module):
    """Of the flows u for the conditions x: a friction for each pipe, and whatever a network makes of both."""

    def __init__(self) -> None:
        super().__init__()
        self.friction = nn.Linear(3, PIPES)
        self.mixed = nn.Sequential(nn.Linear(3 + PIPES, 16), nn.Softplus(), nn.Linear(16, 1), nn.Softplus())

    def forward(self, x, u):  # for one problem: x has shape (3,), u has shape (4,)
        friction = nn.functional.softplus(self.friction(x)) + 0.1
        return (friction * u.square()).sum() + self.mixed(torch.cat([x, u])).sum()


def conserved(x, u):  # = 0
    return u.sum() - 1


def capacity(x, u):  # <= 0
    return {"one way": -u, "full": u - CAPACITY}


def main(steps: int = 60) -> float:
    """Train, and return how much of the first loss is left."""
    torch.manual_seed(0)
    start = torch.full((PIPES,), 1 / PIPES)
    flow, nature = (DeclarativeNode(Energy(), conserved, capacity, start=start).double() for _ in range(2))
    nature.load_state_dict({name: 3 * value for name, value in nature.state_dict().items()})
    conditions = torch.randn(BATCH, 3, dtype=torch.float64)
    with torch.no_grad():
        observed = nature(conditions)

    optimiser = torch.optim.Adam(flow.parameters(), lr=0.05)
    losses = []
    for step in range(steps):
        found = flow(conditions)
        loss = (found - observed).square().sum(-1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        if step % 20 == 0:
            print(f"step {step:3d}   mean squared error {loss.item():.6f}")
    full = [int((flows > CAPACITY - 1e-6).sum()) for flows in (found, observed)]
    print(f"what comes in goes out, to {(found.sum(-1) - 1).abs().max().item():.0e}")
    print(f"full pipes: {full[0]} of {found.numel()}, of those observed {full[1]}")
    return losses[-1] / losses[0]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
