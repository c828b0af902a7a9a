"""Learn what roads cost from the routes that drivers take: a shortest path is a linear program, and it trains.

Drivers cross a grid of streets from one corner to the other by the cheapest route. The costs are not known, only what
can be seen of each street and the routes that were taken. The route is the solution of a linear program, piecewise
constant in the costs, so its exact gradient is zero; the smoothed one says which streets should become dearer.

    python examples/learn_paths.py [steps]
"""

import itertools
import sys

import torch
from torch import Tensor, nn

from declarative import DeclarativeNode, Smoothed

SIDE, SEEN, TOWNS = 4, 5, 12
STREETS = [
    ((i, j), (i + di, j + dj))
    for i, j, (di, dj) in itertools.product(range(SIDE), range(SIDE), ((0, 1), (1, 0)))
    if i + di < SIDE and j + dj < SIDE
]
PLACES = list(itertools.product(range(SIDE), range(SIDE)))
LEAVING = torch.tensor([[float(place == a) - float(place == b) for a, b in STREETS] for place in PLACES[:-1]])
FROM_CORNER = torch.tensor([1.0] + [0.0] * (len(PLACES) - 2))  # what leaves each place but the last one


def total_cost(cost: Tensor, flow: Tensor) -> Tensor:  # for one town
    """Of one driver, who may take several routes in parts."""
    return cost @ flow


def keeps_going(cost: Tensor, flow: Tensor) -> Tensor:  # = 0
    """Whoever arrives at a place leaves it."""
    return LEAVING.to(flow) @ flow - FROM_CORNER.to(flow)


def route_node(gradient: str | Smoothed) -> DeclarativeNode:
    """Costs of streets, (towns, streets), to which of them the cheapest route takes."""
    return DeclarativeNode(total_cost, keeps_going, bounds=(0, None), start=len(STREETS), gradient=gradient)


def main(steps: int = 30, barrier: float = 0.1) -> float:
    """Train, and return the share of streets that the predicted routes have wrong in the end, beside the first."""
    torch.manual_seed(0)
    node = route_node(Smoothed(barrier) if barrier else "exact")
    seen = torch.rand(TOWNS, len(STREETS), SEEN)
    taken = node((seen @ torch.tensor([3.0, 0.0, 1.0, 0.0, 0.5]) + 0.2).detach())
    model = nn.Sequential(nn.Linear(SEEN, 1), nn.Softplus(), nn.Flatten())
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    wrong = []
    for step in range(steps):
        route = node(model(seen))
        loss = (route - taken).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        wrong.append(loss.item())
        if step % 5 == 0:
            print(f"step {step:3d}   streets that are wrong: {100 * wrong[-1]:.1f} %")
    return wrong[-1] / wrong[0]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
