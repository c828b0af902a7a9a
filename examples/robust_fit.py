"""Fit increasing curves to readings, learn which readings to trust, and carry on where there is no solution.

A sensor is read at eight points. The true curve never falls, stays between limits that are known for each sensor, and
some readings are wrong. The fit is a problem with inequalities; a network looks at how far each reading is from its
neighbours and says how much it counts. For some sensors the limits on file contradict each other: no curve satisfies
them. With ``on_failure="mask"`` they are reported, and the others are trained.

    python examples/robust_fit.py [steps]
"""

import sys
import warnings

import torch
from torch import Tensor, nn

from declarative import DeclarativeNode, NumericalWarning

POINTS, SENSORS, CONTRADICTORY = 8, 24, 3


def misfit(trust: Tensor, readings: Tensor, limits: Tensor, u: Tensor) -> Tensor:  # for one sensor
    """Trusted readings count more; without trust, smoothness decides."""
    return (trust * (u - readings).square()).sum() + 0.5 * u.diff().diff().square().sum()


def rules(trust: Tensor, readings: Tensor, limits: Tensor, u: Tensor) -> Tensor:  # <= 0
    """The curve does not fall, starts above the lower limit and ends below the upper one."""
    return torch.cat([-u.diff(), limits[:1] - u[:1], u[-1:] - limits[1:]])


def measure() -> tuple[Tensor, Tensor, Tensor]:
    """True curves and readings (sensors, points), limits (sensors, 2)."""
    curve = torch.rand(SENSORS, POINTS).cumsum(-1) / POINTS
    wrong = torch.rand(SENSORS, POINTS) < 0.2
    readings = curve + 0.02 * torch.randn_like(curve) + wrong * torch.randn_like(curve)
    limits = torch.stack([curve[:, 0] - 0.05, curve[:, -1] + 0.05], -1)
    limits[:CONTRADICTORY] = torch.tensor([1.0, 0.0])
    return curve, readings, limits


def surroundings(readings: Tensor) -> Tensor:
    """How far each reading is from the one before, the one after and the median, (sensors, points, 3)."""
    padded = nn.functional.pad(readings, (1, 1), mode="replicate")
    others = (padded[:, :-2], padded[:, 2:], readings.median(-1, keepdim=True).values)
    return torch.stack([(readings - other).abs() for other in others], -1)


def main(steps: int = 21) -> float:
    """Train, and return how much of the first loss is left."""
    torch.manual_seed(0)
    curve, readings, limits = measure()
    fit = DeclarativeNode(misfit, None, rules, solver="newton", start=lambda *xs: xs[1], on_failure="mask")
    judge = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1), nn.Softplus(), nn.Flatten())
    optimiser = torch.optim.Adam(judge.parameters(), lr=0.05)
    previous, losses = None, []
    for step in range(steps):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumericalWarning)  # the contradictory ones, in every step
            trust = judge(surroundings(readings)) + 1e-3
            solution = fit.solve(trust, readings, limits, start=previous)
        previous = solution.y.detach()  # a warm start: the next problems are nearly the same
        solved = solution.converged
        loss = (solution.y - curve)[solved].square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        if step % 5 == 0:
            print(
                f"step {step:3d}   error {loss.sqrt().item():.4f}   {int(solved.sum())} of {SENSORS} sensors solved, "
                f"{solution.iterations[solved].double().mean().item():.1f} iterations"
            )
    failed = {solution.status[i].name.lower(): solution.status[i].advice for i in range(SENSORS) if not solved[i]}
    for status, advice in failed.items():
        print(f"not solved: {(~solved).nonzero().flatten().tolist()}, {status}. {advice}")
    error = (readings - curve).abs()
    print(f"trust in good readings {trust[error < 0.1].mean():.2f}, in wrong ones {trust[error > 0.5].mean():.2f}")
    return losses[-1] / losses[0]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
