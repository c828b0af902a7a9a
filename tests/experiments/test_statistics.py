"""Paired tests: how often they are wrong where there is nothing, and that they find what there is."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.shared.statistics import LEVEL, holm, interval, p_value

SEEDS, CELLS, TABLES = 6, 40, 600


def test_under_the_null_hardly_any_table_has_a_false_verdict() -> None:
    draw = np.random.default_rng(0)
    tables = draw.standard_normal((TABLES, CELLS, SEEDS)) * draw.uniform(0.1, 5, (TABLES, CELLS, 1))
    false = np.mean([any(holm([p_value(cell) for cell in table.tolist()])) for table in tables])
    assert false < LEVEL + 3 * (LEVEL / TABLES) ** 0.5
    same_sign = np.mean([(table[:, :2] > 0).all(-1).any() for table in tables])  # a criterion of two seeds
    assert same_sign > 0.9


def test_what_is_there_is_found() -> None:
    draw = np.random.default_rng(0)
    nothing = [p_value(draw.standard_normal(SEEDS).tolist()) for _ in range(CELLS)]
    something = p_value((-3 + 0.2 * draw.standard_normal(SEEDS)).tolist())
    assert holm([*nothing, something]) == [False] * CELLS + [True]


def test_intervals_cover_the_mean() -> None:
    draw = np.random.default_rng(0)
    ends = [interval(row) for row in (1 + draw.standard_normal((2000, SEEDS))).tolist()]
    assert np.mean([low < 1 < high for low, high in ends]) == pytest.approx(0.95, abs=0.015)


def test_one_seed_says_nothing_and_no_spread_says_all() -> None:
    assert interval([2.0]) == (-np.inf, np.inf)
    assert p_value([2.0]) == p_value([0.0, 0.0]) == 1.0
    assert p_value([2.0, 2.0]) == 0.0
    assert interval([2.0, 2.0]) == (2.0, 2.0)
    assert holm([]) == []
    assert holm([0.01, 0.04, 0.03]) == [True, False, False]
