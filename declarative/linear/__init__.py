"""One linear algebra, forward and backward: multiply, factor once, solve many, say how definite."""

from .contract import Pair, Solve, System, full_precision, or_one, times, total
from .dense import DenseSystem, HessianSystem
from .diagonal import DiagonalHessianSystem, DiagonalSystem
from .layout import DENSE, ActiveSolution, DenseLayout, Form, KktSolution, Layout
from .matrix_free import MatrixFreeSystem

__all__ = [
    "DENSE",
    "ActiveSolution",
    "DenseLayout",
    "DenseSystem",
    "DiagonalHessianSystem",
    "DiagonalSystem",
    "Form",
    "HessianSystem",
    "KktSolution",
    "Layout",
    "MatrixFreeSystem",
    "Pair",
    "Solve",
    "System",
    "full_precision",
    "or_one",
    "times",
    "total",
]
