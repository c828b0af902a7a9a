"""The ways in which the ready-made layers solve a problem."""

from __future__ import annotations

import pytest

from problems import active_set


@pytest.fixture
def by_interior_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quadratic programs are not solved by pivots."""
    monkeypatch.setattr(active_set, "LARGEST", 0)


@pytest.fixture(params=["pivots", "interior-points"])
def either_way(request: pytest.FixtureRequest) -> str:
    """Quadratic programs are solved by pivots, where that is possible, and by interior points."""
    if request.param == "interior-points":
        request.getfixturevalue("by_interior_points")
    return str(request.param)
