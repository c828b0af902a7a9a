"""Imports the library once its kernels are compiled: that takes up to a minute after installing, and is kept on disk.

In a process of its own, so that this one has no threads when the processes of the cells are split off.
"""

import subprocess
import sys

import problems  # noqa: F401

SOLVE = """
import torch
from declarative import DeclarativeNode
from problems import OptimalTransport, QuadraticProgram
x = torch.rand(2, 120, dtype=torch.float64)
for structure in ("dense", "sparse"):
    for record in (False, True):
        DeclarativeNode(
            lambda x, u: (u - x).square().sum(), lambda x, u: u[:3].sum() - 1, lambda x, u: -u,
            start=120, structure=structure, record=record,
        )(x)
        DeclarativeNode(lambda x, u: (u - x).square().sum(), start=120, structure=structure, record=record)(x[:1])
OptimalTransport(1.0)(x.view(2, 10, 12))
matrices = torch.eye(3, dtype=x.dtype).expand(2, 3, 3), x[:, :3], x[:, 3:6].unsqueeze(1), x[:, :1]
QuadraticProgram()(*matrices, -torch.eye(3, dtype=x.dtype).expand(2, 3, 3), x[:, 6:9])
"""

subprocess.run([sys.executable, "-c", SOLVE], check=True)
