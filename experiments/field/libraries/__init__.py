"""All libraries, by name; this one first."""

from . import quadratic
from .casadi import CASADI
from .cvxpylayers import CVXPYLAYERS
from .library import Library
from .ours import OURS

LIBRARIES: dict[str, Library] = {library.name: library for library in (OURS, CVXPYLAYERS, *quadratic.LAYERS, CASADI)}

__all__ = ["LIBRARIES", "Library"]
