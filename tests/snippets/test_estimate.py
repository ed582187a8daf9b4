"""The type of what was sampled."""

import numpy as np
import pytest

from snippets.estimate import SEEDS, Estimate, each_over_seeds, over_seeds


def test_mean_and_spread_are_those_of_numpy():
    values = np.random.default_rng(3).normal(size=9)
    estimate = Estimate(tuple(values))
    assert estimate.mean == pytest.approx(values.mean())
    assert estimate.spread == pytest.approx(values.std(ddof=1))


def test_it_prints_its_spread_and_a_real_minus():
    assert f"{over_seeds(lambda seed: -seed, range(8)):.1f}" == "−3.5 ± 2.4"


def test_too_few_seeds_are_refused():
    with pytest.raises(ValueError, match="7 seeds"):
        over_seeds(float, range(7))


def test_several_numbers_keep_their_order():
    ones, squares = each_over_seeds(lambda seed: [seed, seed**2])
    assert ones.values == tuple(SEEDS)
    assert squares.values[3] == 9


def test_runs_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        each_over_seeds(lambda seed: [0.0] * (2 - seed % 2))
