"""Differentiable optimisation layers for PyTorch, defined by an objective and constraints."""

from .adaptive import Adaptive
from .check import check
from .compare import compare
from .conformance import conformance
from .derivatives import Derivatives
from .errors import NumericalWarning, SolverError
from .gradients import Curvature, Exact, Identity, Rule, Unconstrained
from .node import DeclarativeNode
from .solution import Solution, Status
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
    "Solution",
    "Solver",
    "SolverError",
    "Status",
    "Unconstrained",
    "check",
    "compare",
    "conformance",
]
