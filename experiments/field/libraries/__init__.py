"""All libraries, by name; this one first."""

from . import quadratic
from .casadi import CASADI
from .cvxpylayers import CVXPYLAYERS
from .library import Library
from .ours import OURS
from .plain import PLAIN, POT
from .pounce import POUNCE
from .through_jax import JAXOPT, OPTIMISTIX, OTT, QPAX

ALL = (OURS, CVXPYLAYERS, *quadratic.LAYERS, POUNCE, CASADI, JAXOPT, OPTIMISTIX, QPAX, OTT, POT, PLAIN)
LIBRARIES: dict[str, Library] = {library.name: library for library in ALL}

__all__ = ["LIBRARIES", "Library"]
