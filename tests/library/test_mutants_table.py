"""The table of mutants fits the code: every snippet occurs once, and there are enough of them in every area."""

import pytest

from tests.mutants.table import AREAS


@pytest.mark.parametrize("area", AREAS)
def test_every_mutant_fits_the_code(area):
    assert not [f"{mutant.file}: {mutant.words}" for mutant in AREAS[area] if mutant.misfit()]


def test_there_are_at_least_sixty():
    assert sum(map(len, AREAS.values())) >= 60
