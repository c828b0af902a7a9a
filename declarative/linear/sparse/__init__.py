"""Sparse structure: which derivatives can differ from zero, how to evaluate them in few passes, and how to solve.

    pattern = find_pattern(objective, constraints, xs, u)         # once per shape; or Pattern.given(H, A, m, k)
    hessian = compress_hessian(pattern.hessian)                   # colours: values (batch, nonzeros) from products
    jacobian = compress_jacobian(pattern.jacobian)
    kkt = SparseKKT.of(pattern, equalities=p)                     # order and structure of the factor, once
    factor = kkt.factorise(hessian_values, jacobian_values, primal, dual)
    factor.convex(); factor.inertia(); z, s, error = factor.solve(r, t)

The matrix is [H + diag(primal), A'; A, -diag(dual)], where H is given by the entries of its lower triangle, and:

- ``primal`` holds regularisation and the barriers of bounds, ``dual`` is 0 for an equality;
- in an interior-point step, ``dual`` is s / y for an inequality with slack s and multiplier y;
- in a backward pass, an active constraint has dual 0, and an inactive one dual 1 and its row of A multiplied by 0.

Where :class:`NoPattern` is raised, the problem is better treated as dense. Patterns, recipes and analyses are immutable
and may be shared by threads.
"""

from .compression import Compression, compress_hessian, compress_jacobian
from .entries import Entries
from .index_sets import NoPattern
from .kkt import LdlFactorisation, Solved, SparseKKT
from .layout import SparseLayout
from .pattern import Pattern, find_pattern, pattern_of_slope
from .symbolic import Symbolic, analyse
from .system import SparseSystem

__all__ = [
    "Compression",
    "Entries",
    "LdlFactorisation",
    "NoPattern",
    "Pattern",
    "Solved",
    "SparseKKT",
    "SparseLayout",
    "SparseSystem",
    "Symbolic",
    "analyse",
    "compress_hessian",
    "compress_jacobian",
    "find_pattern",
    "pattern_of_slope",
]
