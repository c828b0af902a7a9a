"""One linear algebra, forward and backward: multiply, factor once, solve many, say how definite."""

from .contract import Pair, Solve, System, full_precision, or_one, times
from .dense import DenseSystem, HessianSystem
from .diagonal import DiagonalHessianSystem, DiagonalSystem
from .matrix_free import MatrixFreeSystem
from .reuse import Factorisation, ReusedSystem

__all__ = [
    "DenseSystem",
    "DiagonalHessianSystem",
    "DiagonalSystem",
    "Factorisation",
    "HessianSystem",
    "MatrixFreeSystem",
    "Pair",
    "ReusedSystem",
    "Solve",
    "System",
    "full_precision",
    "or_one",
    "times",
]
