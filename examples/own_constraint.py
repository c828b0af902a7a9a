"""Train a network through an optimisation problem of your own, with a constraint that no ready-made layer has.

A budget of 1 is spread over five projects. The return of each project saturates, the costs of coordination grow with
the square of the spread, and no more than half of the budget may go to the first two. A network learns, from examples
of good allocations alone, how profitable each project is in a given situation.

    python examples/own_constraint.py [steps]
"""

import sys

import torch
from torch import nn

from declarative import DeclarativeNode

PROJECTS, SITUATION, BATCH = 5, 8, 32


def cost(profit, u):  # for one problem: profit and u have shape (5,)
    return -(profit * torch.log1p(4 * u)).sum() + 0.5 * u.square().sum()


def budget(profit, u):  # = 0
    return u.sum() - 1


def limits(profit, u):  # <= 0
    return torch.cat([-u, u[:2].sum()[None] - 0.5])


def main(steps: int = 61) -> float:
    """Train, and return how much of the first loss is left."""
    torch.manual_seed(0)
    allocate = DeclarativeNode(cost, budget, limits, start=torch.full((PROJECTS,), 1 / PROJECTS))

    situations = torch.randn(BATCH, SITUATION)
    truth = nn.functional.softplus(situations @ torch.randn(SITUATION, PROJECTS))
    wanted = allocate(truth)  # all that the network is shown

    model = nn.Sequential(nn.Linear(SITUATION, 32), nn.ReLU(), nn.Linear(32, PROJECTS), nn.Softplus(), allocate)
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses = []
    for step in range(steps):
        loss = (model(situations) - wanted).square().sum(-1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        if step % 20 == 0:
            print(f"step {step:3d}   mean squared error {loss.item():.5f}")
    solution = allocate.solve(model[:-1](situations))
    print(solution)
    print(f"budget spent: {solution.y.sum(-1).min().item():.6f} to {solution.y.sum(-1).max().item():.6f}")
    limited = int((solution.inequality_multipliers[:, -1] > 0).sum())
    print(f"limit on the first two active in {limited} of {BATCH} problems")
    return losses[-1] / losses[0]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
