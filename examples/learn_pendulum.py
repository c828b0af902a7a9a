"""Learn how long a pendulum is, and what its driver pays for torque, from trajectories alone.

A driver keeps pendulums upright with the least cost, with a torque of at most 4. We see his trajectories, disturbed by
noise, and know neither the length of the pendulum nor what torque costs him. Both are parameters of an optimal-control
layer, and its gradient leads to them, though the torque is at its bound in part of the steps.

    python examples/learn_pendulum.py [steps]
"""

import sys

import torch

from problems import OptimalControl

STEPS, DT, BATCH = 25, 0.1, 8


def step(x, u, length, price):  # one step of one problem: x (2,), u (1,)
    angle, speed = x
    return torch.stack([angle + DT * speed, speed + DT * (9.81 / length * angle.sin() + u[0])])


def cost(x, u, length, price):
    return x.square().sum() + price * u.square().sum()


drive = OptimalControl(
    step, cost, steps=STEPS, controls=1, control_bounds=(-4.0, 4.0), in_dims=(0, None, None), record=True
)


def main(steps: int = 60) -> float:
    """Train, and return how much of the first loss is left."""
    torch.manual_seed(0)
    initial = 0.3 * torch.randn(BATCH, 2, dtype=torch.float64)
    length, price = (torch.tensor(value, dtype=torch.float64) for value in (2.0, 0.1))
    seen = drive(initial, length, price)
    limited = (seen["controls"].abs() > 4 - 1e-6).double().mean().item()
    print(f"torque at its bound in {limited:.0%} of the steps")
    seen = {name: one + 0.01 * torch.randn_like(one) for name, one in seen.items()}

    guess = torch.tensor([3.0, 0.5], dtype=torch.float64).log().requires_grad_()  # both are positive
    optimiser = torch.optim.Adam([guess], lr=0.1)
    losses = []
    for number in range(steps):
        found = drive(initial, *guess.exp())
        loss = sum((found[name] - seen[name]).square().mean() for name in seen)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        if number % 20 == 0 or number == steps - 1:
            now = guess.detach().exp()
            print(f"step {number:3d}   loss {loss.item():.5f}   length {now[0]:.3f}   price {now[1]:.3f}")
    print(f"truth                   length {length:.3f}   price {price:.3f}")
    return losses[-1] / losses[0]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
