"""All mutants, by area."""

from __future__ import annotations

from .gradients import LINEAR, RULES
from .layers import PROJECTIONS, QUADRATIC, TRANSPORT
from .mutant import Mutant
from .recording import FINGERPRINT, RECORDING
from .reports import ADAPTIVE, THEORY
from .solving import BOUNDARY, NEWTON, POLISH, VERDICT
from .structure import BOUNDS, SPARSE
from .user import USER

AREAS: dict[str, list[Mutant]] = {
    "rules": RULES,
    "linear": LINEAR,
    "recording": RECORDING,
    "fingerprint": FINGERPRINT,
    "newton": NEWTON,
    "polish": POLISH,
    "verdict": VERDICT,
    "boundary": BOUNDARY,
    "user": USER,
    "bounds": BOUNDS,
    "sparse": SPARSE,
    "adaptive": ADAPTIVE,
    "theory": THEORY,
    "transport": TRANSPORT,
    "quadratic": QUADRATIC,
    "projections": PROJECTIONS,
}
