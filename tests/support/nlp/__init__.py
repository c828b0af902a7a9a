"""Nonlinear programmes from the literature with their published optimal values."""

from __future__ import annotations

from . import (
    boxes,
    designs,
    geometric,
    hs001_020,
    hs021_040,
    hs041_060,
    hs061_081,
    hs083_099,
    hs100_109,
    hs110_119,
    mgh,
    networks,
    nist,
    power,
    schittkowski,
    trusses,
)
from .hs001_020 import rosenbrock as rosenbrock
from .programme import Programme as Programme

MODULES = [hs001_020, hs021_040, hs041_060, hs061_081, hs083_099, hs100_109, hs110_119]
MODULES += [mgh, nist, schittkowski, boxes, designs, geometric, networks, power, trusses]

TABLE = [programme for module in MODULES for programme in module.PROBLEMS]
