"""Learn what makes two things the same, from examples of which belong together: transport inside a model.

Two cameras see the same ten objects in different orders, and describe each by the same eight numbers, most of which are
noise; nobody says which. A network turns descriptions into features, a transport plan matches the two
sets by the distances of their features, and all that training needs are the right matches of a few scenes.

    python examples/learn_to_match.py [steps]
"""

import sys

import torch
from torch import Tensor, nn

from problems import OptimalTransport

OBJECTS, NUMBERS, FEATURES = 10, 8, 3
NOISE = torch.tensor([0.2, 0.2, 0.2, 1.0, 1.0, 1.0, 1.0, 1.0])  # per number: three are reliable


def see(scenes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Descriptions by the left and the right camera, (scenes, objects, numbers), and the partner of each object."""
    objects = torch.randn(scenes, OBJECTS, NUMBERS, dtype=torch.float64)  # near-certain matches need the digits
    left, right = (objects + NOISE * torch.randn_like(objects) for _ in range(2))
    partner = torch.rand(scenes, OBJECTS).argsort(-1)
    shuffled = torch.empty_like(right).scatter_(1, partner.unsqueeze(-1).expand_as(right), right)
    return left, shuffled, partner


class Matcher(nn.Module):
    """Descriptions -> features -> distances -> a plan whose rows and columns each sum to 1 / objects."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(NUMBERS, FEATURES, bias=False)
        self.match = OptimalTransport(gamma=1.0)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """How much each object on the left is the one on the right, (scenes, objects, objects)."""
        return self.match(torch.cdist(self.embed(left), self.embed(right)).square())


def main(steps: int = 41) -> float:
    """Train, and return how much of the first loss is left."""
    torch.manual_seed(0)
    left, right, partner = see(scenes=16)
    new = see(scenes=100)
    model = Matcher().double()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
    losses = []
    for step in range(steps):
        plan = model(left, right)
        loss = -(OBJECTS * plan.gather(-1, partner.unsqueeze(-1))).log().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        if step % 10 == 0:
            print(f"step {step:3d}   loss {loss.item():.3f}   right in new scenes {share_right(model, *new):.0%}")
    weights = model.embed.weight.detach().norm(dim=0)
    print("weight of each number:", " ".join(f"{weight:.2f}" for weight in weights / weights.max()))
    return losses[-1] / losses[0]


@torch.no_grad()
def share_right(model: Matcher, left: Tensor, right: Tensor, partner: Tensor) -> float:
    """How many objects are matched with their partner."""
    return (model(left, right).argmax(-1) == partner).float().mean().item()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
