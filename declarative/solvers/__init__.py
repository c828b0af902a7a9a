"""The ways forward: one file each."""

from .base import Solver
from .certificate import proves_infeasible, proves_unbounded
from .chain import Chain
from .closed_form import ClosedForm
from .newton import Newton
from .scipy import Scipy

SOLVERS = {"newton": Newton, "scipy": Scipy}

__all__ = ["SOLVERS", "Chain", "ClosedForm", "Newton", "Scipy", "Solver", "proves_infeasible", "proves_unbounded"]
