"""Cones, and programs over products of them: a batch at a time, on plain tensors."""

from .conic import ConicProgram, equilibrate
from .embedding import solve_embedding
from .product import Cones
from .surface import FaceSystem, Surface, polish

__all__ = ["Cones", "ConicProgram", "FaceSystem", "Surface", "equilibrate", "polish", "solve_embedding"]
