"""Treatment for patients: the data, the allocation problem, and regret.

442 patients with diabetes; the disease of each progresses by a measured amount within a year. Ten patients at a time
compete for a budget of a drug. Patient i gets a share u_i between 0 and 1 of a full dose. A full dose is proportional
to the body mass index, so that the shares cost w' u, and the budget is spent:

    maximise c' u - |u|^2 / 2   subject to   w' u = budget and 0 <= u <= 1.

c is the progression (in hundreds) that treatment would prevent, known only afterwards; the second term says that more
of the drug brings less and less. A model predicts c, the allocation follows from the prediction, and regret is what the
allocation for the true c would have been worth more. It is never negative, and zero for a perfect prediction.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from declarative import Rule
from problems import QuadraticProgram

from ..sampling import load_bundled

GROUP = 10  # patients that compete
BUDGET = 3.0  # full doses of the average patient
SATURATION = 1.0  # how fast further treatment brings less
BEFORE_BLOOD_TEST = ("age", "sex", "bmi", "bp")
SPLIT = {"train": 222, "validation": 110, "test": 110}


@dataclass(frozen=True)
class Patients:
    """Measurements (count, features), the cost of a full dose (count,) and the progression (count,)."""

    features: Tensor
    weights: Tensor
    progression: Tensor

    def __getitem__(self, chosen: Tensor) -> Patients:
        return Patients(self.features[chosen], self.weights[chosen], self.progression[chosen])


def load_patients(names: tuple[str, ...] | None = BEFORE_BLOOD_TEST) -> Patients:
    """Scikit-learn's diabetes data with these measurements, or with all ten."""
    data = load_bundled("diabetes", scaled=False)
    table = torch.tensor(data.data, dtype=torch.float64)
    columns = [data.feature_names.index(name) for name in names or data.feature_names]
    mass = table[:, data.feature_names.index("bmi")]
    return Patients(table[:, columns], mass / mass.mean(), torch.tensor(data.target, dtype=torch.float64) / 100)


def standardised(patients: Patients, train: Tensor) -> Patients:
    """Measurements in standard deviations from the mean of the training patients."""
    seen = patients.features[train]
    return Patients((patients.features - seen.mean(0)) / seen.std(0), patients.weights, patients.progression)


@dataclass(frozen=True)
class Allocation:
    """The quadratic program of groups of patients as a function of the predicted progression alone."""

    weights: Tensor  # (batch, GROUP)

    def __call__(self, predicted: Tensor, rule: str | Rule = "exact") -> Tensor:  # (batch, GROUP)
        """The best shares, differentiable by the rule."""
        eye = torch.eye(GROUP, dtype=predicted.dtype)
        bounds = torch.cat([torch.ones(GROUP), torch.zeros(GROUP)]).to(predicted)
        budget = torch.full((1,), BUDGET, dtype=predicted.dtype)
        program = QuadraticProgram(gradient=rule, on_failure="mask")
        rows = self.weights.unsqueeze(-2)
        shares: Tensor = program(SATURATION * eye, -predicted, rows, budget, torch.cat([eye, -eye]), bounds)
        return shares


def worth(shares: Tensor, progression: Tensor) -> Tensor:  # (batch, GROUP), (batch, GROUP) -> (batch,)
    """What an allocation is worth in the end."""
    return (progression * shares).sum(-1) - SATURATION / 2 * shares.square().sum(-1)


@dataclass(frozen=True)
class Groups:
    """Groups of patients with the worth of their best allocation."""

    patients: Patients  # each entry (batch, GROUP, ...)
    best: Tensor  # (batch,)

    @classmethod
    def of(cls, patients: Patients) -> Groups:
        """Solve the groups with what is known only afterwards."""
        with torch.no_grad():
            best = worth(Allocation(patients.weights)(patients.progression), patients.progression)
        return cls(patients, best)

    def __getitem__(self, chosen: Tensor) -> Groups:
        return Groups(self.patients[chosen], self.best[chosen])

    def regret(self, shares: Tensor) -> Tensor:  # (batch, GROUP) -> (batch,)
        """What is lost against the best allocation."""
        return self.best - worth(shares, self.patients.progression)
