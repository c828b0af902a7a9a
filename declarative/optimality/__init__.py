"""Is this point a solution? The conditions, what a Newton step says of them, and what else could be wrong."""

from .assessment import Assessment
from .conditions import estimate_multipliers, fitted_multipliers, kink_tolerance, largest, optimality_tolerance
from .corners import slopes_to_the_sides
from .quick import Moved, quick_verdict
from .steadiness import asks_for_a_look, is_unsteady
from .verdict import assess

__all__ = [
    "Assessment",
    "Moved",
    "asks_for_a_look",
    "assess",
    "estimate_multipliers",
    "fitted_multipliers",
    "is_unsteady",
    "kink_tolerance",
    "largest",
    "optimality_tolerance",
    "quick_verdict",
    "slopes_to_the_sides",
]
