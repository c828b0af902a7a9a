"""Ready-made layers: each states itself declaratively, then adds its fast paths."""

from .ball import BallProjection, SphereProjection
from .cone_program import ConeProgram
from .cones import Cones
from .control import OptimalControl
from .cvxpy_program import from_cvxpy
from .eigen import Eigenvectors
from .layer import Layer
from .least_squares import LeastSquares
from .quadratic import EqualityQP, QuadraticProgram
from .robust import RobustPooling
from .rotation import RotationProjection
from .simplex import EntropicSimplex, SimplexProjection
from .transport import OptimalTransport

__all__ = [
    "BallProjection",
    "ConeProgram",
    "Cones",
    "Eigenvectors",
    "EntropicSimplex",
    "EqualityQP",
    "Layer",
    "LeastSquares",
    "OptimalControl",
    "OptimalTransport",
    "QuadraticProgram",
    "RobustPooling",
    "RotationProjection",
    "SimplexProjection",
    "SphereProjection",
    "from_cvxpy",
]


def __dir__() -> list[str]:
    return __all__
