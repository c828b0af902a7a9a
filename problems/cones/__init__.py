"""Cones, and programs over products of them: a batch at a time, on plain tensors."""

from .conic import ConicProgram, equilibrate
from .product import Cones
from .solution import solve_polished
from .surface import BentSystem, FaceSystem, Surface

__all__ = ["BentSystem", "Cones", "ConicProgram", "FaceSystem", "Surface", "equilibrate", "solve_polished"]
