"""The ways forward: one file each."""

from .base import Solver
from .closed_form import ClosedForm
from .scipy import Scipy

SOLVERS = {"scipy": Scipy}

__all__ = ["SOLVERS", "ClosedForm", "Scipy", "Solver"]
