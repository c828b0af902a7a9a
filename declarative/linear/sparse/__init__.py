"""Sparse structure: which derivatives can differ from zero, how to evaluate them in few passes, and how to solve."""

from .compression import HessianCompression, JacobianCompression, compress_hessian, compress_jacobian
from .dependence import NoPattern
from .entries import Entries
from .kkt import Factorisation, Solved, SparseKKT
from .pattern import Pattern, find_pattern, pattern_of_slope
from .symbolic import Symbolic, analyse

__all__ = [
    "Entries",
    "Factorisation",
    "HessianCompression",
    "JacobianCompression",
    "NoPattern",
    "Pattern",
    "Solved",
    "SparseKKT",
    "Symbolic",
    "analyse",
    "compress_hessian",
    "compress_jacobian",
    "find_pattern",
    "pattern_of_slope",
]
