"""Differentiable optimisation layers for PyTorch, defined by an objective and constraints."""

from .derivatives import Derivatives
from .errors import NumericalWarning, SolverError
from .gradients import Curvature, Exact, Identity, Rule, Unconstrained
from .node import DeclarativeNode
from .solution import Solution, Status
from .solvers import ClosedForm, Scipy, Solver

__all__ = [
    "ClosedForm",
    "Curvature",
    "DeclarativeNode",
    "Derivatives",
    "Exact",
    "Identity",
    "NumericalWarning",
    "Rule",
    "Scipy",
    "Solution",
    "Solver",
    "SolverError",
    "Status",
    "Unconstrained",
]
