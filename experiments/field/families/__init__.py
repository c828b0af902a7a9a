"""All families, by name."""

from . import closed, control, convex, nonconvex, power, quadratic
from .family import Family, Shape

FAMILIES: dict[str, Family] = {
    family.name: family
    for module in (quadratic, closed, control, convex, power, nonconvex)
    for family in module.FAMILIES
}

__all__ = ["FAMILIES", "Family", "Shape"]
