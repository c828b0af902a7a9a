"""One linear algebra, forward and backward: multiply, factor once, solve many, say how definite."""

from .contract import (
    Factorisation,
    KktSystem,
    Pair,
    Solve,
    System,
    by_rows,
    full_precision,
    or_one,
    rank_tolerance,
    times,
    total,
    warn_of,
)
from .dense import DenseFactorisation, DenseSystem, HessianSystem
from .dense_layout import DENSE, DenseLayout
from .diagonal import DiagonalHessianSystem, DiagonalSystem
from .forms import Form
from .layout import ActiveSolution, KktSolution, Layout, StepMatrix
from .matrix_free import MatrixFreeSystem
from .schur import ActiveFactorisation, FactorisedSystem, SchurReduction

__all__ = [
    "DENSE",
    "ActiveFactorisation",
    "ActiveSolution",
    "DenseFactorisation",
    "DenseLayout",
    "DenseSystem",
    "DiagonalHessianSystem",
    "DiagonalSystem",
    "Factorisation",
    "FactorisedSystem",
    "Form",
    "HessianSystem",
    "KktSolution",
    "KktSystem",
    "Layout",
    "MatrixFreeSystem",
    "Pair",
    "SchurReduction",
    "Solve",
    "StepMatrix",
    "System",
    "by_rows",
    "full_precision",
    "or_one",
    "rank_tolerance",
    "times",
    "total",
    "warn_of",
]
