"""A small version of ``python -m tests.sweep --vanishing``: gradients of programs whose multipliers vanish."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tests.support.vanishing import KINDS, LONG, draw, is_right, plain_optimum, trial

SMALL = 4  # of the sizes


def test_no_gradient_is_wrong_in_silence_and_none_is_doubted_without_need():
    total: Counter[str] = Counter()
    for index in range(6):
        counts, words = trial(11, index, SMALL)
        assert not counts["WRONG"], words
        assert not counts["false alarm"], words
        total += counts
    assert total["right"] > 6


@pytest.mark.parametrize("kind", KINDS)
def test_the_truth_agrees_with_differences(kind):
    rng = np.random.default_rng(3)
    program, v = draw(rng, (4, 3, 1), kind), rng.normal(size=7).astype(LONG)
    u = program.optimum(plain_optimum(program))
    truth, step = program.gradient(u, v), LONG(1e-6)
    for name, expected in zip("xpr", truth, strict=True):
        for i in range(len(expected)):
            values = []
            for sign in (1, -1):
                moved = getattr(program, name).astype(LONG)
                moved[i] += sign * step
                other = type(program)(**{**vars(program), name: moved})
                there = other.optimum(u)
                values.append(v[:4] @ there + v[4:] @ other.hidden(there)[0])
            difference = (values[0] - values[1]) / (2 * step)
            assert abs(difference - expected[i]) < 1e-8 * (1 + abs(expected[i]))
    assert is_right(truth, truth)
    assert not is_right([truth[0], truth[1], truth[2] * LONG(1.001)], truth)
