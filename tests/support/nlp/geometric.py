"""Geometric programmes and others of monomials."""

from __future__ import annotations

from .mgh import steps
from .programme import Programme, componentwise


def gates(n: int, optimum: float) -> Programme:
    """Gates in a row, as large as a limit on their delays asks for; the unknowns are the logarithms of their sizes."""
    area, limit = steps(n), 1.1 * (n + 1) * 8 ** (1 / (n + 1))
    return Programme(
        f"gates {n}",
        lambda u: area @ u.exp(),
        [0.0] * n,
        optimum,
        inequality=lambda u: [u[0].exp() + (u[1:] - u[:-1]).exp().sum() + 8 * (-u[-1]).exp() - limit],
    )


PROBLEMS = [
    componentwise(
        "gravel box",
        lambda x1, x2, x3: 40 / (x1 * x2 * x3) + 40 * x2 * x3,
        [1, 1, 1],
        60.0,
        inequality=lambda x1, x2, x3: [x1 * x3 / 2 + x1 * x2 / 4 - 1],
        lower=1e-3,
    ),
    componentwise(
        "largest box",
        lambda h, w, d: 1 / (h * w * d),
        [2, 2, 2],
        1 / (40 * 5**0.5),
        inequality=lambda h, w, d: [
            (h * w + h * d) / 100 - 1,
            w * d / 10 - 1,
            0.5 - h / w,
            h / w - 2,
            0.5 - d / w,
            d / w - 2,
        ],
        lower=1e-3,
    ),
    gates(5, 24.418016675),
    gates(12, 71.036526247),
]
