"""Differentiable optimisation layers for PyTorch, defined by an objective and constraints."""

from .adaptive import Adaptive
from .derivatives import Derivatives
from .errors import NumericalWarning
from .gradients import Curvature, Exact, Identity, Rule, Unconstrained
from .node import DeclarativeNode
from .reports.check import check
from .reports.compare import compare
from .reports.conformance import conformance
from .smoothed import Smoothed
from .solution import Solution, SolverError, Status
from .solvers import Chain, ClosedForm, Newton, Scipy, Solver

__all__ = [
    "Adaptive",
    "Chain",
    "ClosedForm",
    "Curvature",
    "DeclarativeNode",
    "Derivatives",
    "Exact",
    "Identity",
    "Newton",
    "NumericalWarning",
    "Rule",
    "Scipy",
    "Smoothed",
    "Solution",
    "Solver",
    "SolverError",
    "Status",
    "Unconstrained",
    "check",
    "compare",
    "conformance",
]


def __dir__() -> list[str]:
    return __all__
