"""The table of mutants fits the code: each names one place in it, and there are enough of them in every area."""

import ast

import pytest

from tests.mutants.__main__ import in_turn
from tests.mutants.places import MisfitError, changed
from tests.mutants.table import AREAS

TEXT = """
LIMIT = 3.0

class Solver:
    def solve(self, x):
        y = f(x, 1)  # comment
        z = f(x, 2)
        return y + (z * 2)

def solve(x):
    return f(x, 1)
"""


@pytest.mark.parametrize("area", AREAS)
def test_every_mutant_fits_the_code(area):
    assert not [f"{mutant.words}: {misfit}" for mutant in AREAS[area] if (misfit := mutant.misfit())]


def test_there_are_at_least_sixty():
    assert sum(map(len, AREAS.values())) >= 60


@pytest.mark.parametrize(
    ("name", "old", "new", "line"),
    [
        ("Solver.solve", "f( x,1 )", "x", "y = x\n"),
        ("Solver.solve", "y = f(x, 1)\nz = f(x, 2)", "y = z = x", "    y = z = x\n"),
        ("Solver.solve", "(z*2)", "z", "return y + z\n"),
        ("Solver.solve", "z = f(x, 2)", "pass", "pass\n"),
        ("solve", "f(x, 1)", "x", "def solve(x):\n    return x"),
        ("LIMIT", "3.0", "4.0", "LIMIT = 4.0\n"),
    ],
)
def test_a_change_is_that_of_one_piece_of_a_syntax_tree(name, old, new, line):
    assert line in ast.unparse(changed(TEXT, name, old, new))


@pytest.mark.parametrize(
    ("name", "old"), [("Solver.solve", "x"), ("Solver.solve", "f(x, 3)"), ("solve", "f(x, 2)"), ("LIMIT", "3")]
)
def test_what_is_there_twice_or_not_at_all_is_no_place(name, old):
    with pytest.raises(MisfitError, match="instead of once"):
        changed(TEXT, name, old, "None")


def test_in_as_many_turns_as_there_are_shares_it_is_the_turn_of_every_mutant_once():
    shares = [in_turn([], 30, turn) for turn in range(30, 60)]
    assert sum(map(len, shares)) == sum(map(len, AREAS.values()))
    assert len(set().union(*shares)) == sum(map(len, AREAS.values()))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
