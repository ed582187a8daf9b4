"""Estimators, effective samples, rejection, and the page's claims."""

from itertools import product
from math import comb

import numpy as np
import pytest

from snippets.policy import monte_carlo_sampling as code

TARGET = 0.4 * 0.0 + 0.35 * 0.5 + 0.25 * 1.0


def enumerate_plainly(estimate, n):
    """Mean and variance over all samples of size n, in plain Python."""
    q, p, f = code.Q.tolist(), code.P.tolist(), code.F.tolist()
    mean = square = 0.0
    for drawn in product(range(3), repeat=n):
        chance = np.prod([q[i] for i in drawn])
        value = estimate([p[i] / q[i] for i in drawn], [f[i] for i in drawn])
        mean += chance * value
        square += chance * value**2
    return mean, square - mean**2


@pytest.mark.parametrize(
    ("ours", "plain"),
    [
        (
            code.importance,
            lambda w, f: sum(a * b for a, b in zip(w, f, strict=False)) / len(w),
        ),
        (
            code.self_normalised,
            lambda w, f: sum(a * b for a, b in zip(w, f, strict=False)) / sum(w),
        ),
        (
            lambda w, f: code.truncated(w, f, 2.0),
            lambda w, f: (
                sum(min(a, 2.0) * b for a, b in zip(w, f, strict=False)) / len(w)
            ),
        ),
        (
            lambda w, f: code.masked(w, f, 0.5, 2.0),
            lambda w, f: (
                sum(a * b for a, b in zip(w, f, strict=False) if 0.5 <= a <= 2) / len(w)
            ),
        ),
    ],
)
def test_estimators_against_plain_enumeration(ours, plain):
    drawn = np.array(list(product(range(3), repeat=4)))
    chance = code.Q[drawn].prod(1)
    got = ours((code.P / code.Q)[drawn], code.F[drawn])
    mean, variance = enumerate_plainly(plain, 4)
    assert chance @ got == pytest.approx(mean)
    assert chance @ got**2 - (chance @ got) ** 2 == pytest.approx(variance)


def test_claim_importance_is_unbiased_and_noisier_than_no_weight():
    found = code.comparison()
    assert found["importance"][0] == pytest.approx(0, abs=1e-12)
    assert found["no weight"][0] == pytest.approx(-0.25)
    assert found["importance"][2] > found["no weight"][2]
    best = min(found, key=lambda name: found[name][2])
    assert best == "self-normalised"


def test_claim_variance_of_importance_is_known():
    f, w = code.F, code.P / code.Q
    one = code.Q @ (w * f) ** 2 - TARGET**2
    assert code.comparison()["importance"][1] == pytest.approx((one / 8) ** 0.5)


def test_truncation_bias_is_the_mass_above_the_cap():
    w = code.P / code.Q
    missing = -(code.Q * np.maximum(w - 2, 0) * code.F).sum()
    assert code.comparison()["truncated at 2"][0] == pytest.approx(missing)


def test_resampling_keeps_the_mean_and_adds_variance():
    rng = np.random.default_rng(0)
    w, f = np.array([1.0, 3.0, 0.5]), np.array([0.2, 1.0, 0.4])
    again = rng.choice(f, (200_000, 3), p=w / w.sum()).mean(1)
    assert again.mean() == pytest.approx(code.self_normalised(w, f), abs=2e-3)
    assert again.var() == pytest.approx(code.resampled_variance(w, f), rel=0.02)
    found = code.comparison()
    assert found["resampled"][0] == found["self-normalised"][0]
    assert found["resampled"][1] > found["self-normalised"][1]


def test_effective_share_at_its_ends():
    assert code.effective_share(np.ones(7)) == pytest.approx(1)
    assert code.effective_share(np.array([0.0, 5.0, 0.0])) == pytest.approx(1 / 3)


def test_true_share_is_one_over_the_second_moment():
    rng = np.random.default_rng(1)
    sigma, t = 0.1, 30
    logs = rng.normal(-(sigma**2) / 2, sigma, (200_000, t)).sum(1)
    w = np.exp(logs)
    assert w.mean() == pytest.approx(1, abs=0.01)
    assert code.true_share(np.array(t), sigma) == pytest.approx(
        1 / (w**2).mean(), rel=0.03
    )


def test_claim_shares_at_100_and_1000_tokens():
    tokens = np.array([100, 1000])
    assert code.true_share(tokens, 0.1) == pytest.approx([0.368, 4.54e-5], rel=1e-3)
    assert code.true_share(tokens, 0.03)[1] == pytest.approx(0.407, abs=5e-4)
    seen = code.seen_share(tokens, 0.1, np.random.default_rng(0))
    assert seen[0] == pytest.approx(0.39, abs=0.01)
    assert 200 < seen[1] / code.true_share(tokens, 0.1)[1] < 500


def simulated_pulls(s, n, rng):
    """Gradient in the logit of the right one of two answers, by sampling."""
    right = rng.random((200_000, n)) < s
    score = np.where(right, 1 - s, -s)
    c = right.sum(1)
    reinforce = ((right - 0.3) * score).mean(1)
    kept = np.where(c > 0, (right * score).sum(1) / np.maximum(c, 1), 0)
    best = np.where(c > 0, 1 - s, -s)
    return [x.mean() / (s * (1 - s)) for x in (reinforce, kept, best)]


@pytest.mark.parametrize("s", [0.1, 0.6])
def test_pulls_against_a_simulation(s):
    want = simulated_pulls(s, 4, np.random.default_rng(2))
    *got, log_rate = code.prompt_pulls(s, 4).values()
    assert got == pytest.approx(want, rel=0.03)
    assert log_rate == 1 / s


def test_claim_pulls_tend_to_n_and_to_one():
    kept = "mean over the accepted"
    assert code.prompt_pulls(1e-6, 8)[kept] == pytest.approx(8, rel=1e-4)
    assert code.prompt_pulls(1 - 1e-6, 8)[kept] == pytest.approx(1, rel=1e-4)
    assert code.prompt_pulls(0.05, 8)[kept] == pytest.approx(6.73, abs=5e-3)


@pytest.mark.parametrize("baseline", [0.0, 0.3, 0.8])
def test_gradient_variance_by_definition(baseline):
    s = 0.3
    values = [(1 - baseline) * (1 - s), (0 - baseline) * (-s)]
    chances = [s, 1 - s]
    mean = sum(c * v for c, v in zip(chances, values, strict=False))
    assert mean == pytest.approx(s * (1 - s))
    want = sum(c * (v - mean) ** 2 for c, v in zip(chances, values, strict=False))
    assert code.gradient_variance(s, baseline) == pytest.approx(want)


def test_claim_positives_only_is_quieter_above_two_thirds():
    for s in (0.05, 0.3, 0.6, 0.66):
        assert code.gradient_variance(s, 0) > code.gradient_variance(s, s)
    for s in (0.67, 0.8, 0.95):
        assert code.gradient_variance(s, 0) < code.gradient_variance(s, s)


def test_rejection_samples_the_tilted_policy():
    rng = np.random.default_rng(3)
    s, beta = 0.2, 0.5
    right = rng.random(400_000) < s
    kept = rng.random(right.size) < np.exp((right - 1) / beta)
    share, success = code.acceptance(s, beta)
    assert kept.mean() == pytest.approx(share, abs=3e-3)
    assert right[kept].mean() == pytest.approx(success, abs=5e-3)
    tilted = s * np.exp(1 / beta) / (s * np.exp(1 / beta) + 1 - s)
    assert success == pytest.approx(tilted)


def test_best_of_kl_by_definition():
    # four answers, two right: best of 3 picks a right one if there is any
    p, right = np.array([0.1, 0.2, 0.3, 0.4]), np.array([1, 1, 0, 0], bool)
    best = np.zeros(4)
    for drawn in product(range(4), repeat=3):
        good = [i for i in drawn if right[i]]
        best[good[0] if good else drawn[0]] += p[list(drawn)].prod()
    kl = (best * np.log(best / p)).sum()
    assert code.best_of_kl(0.3, 3)[0] == pytest.approx(kl)


def test_claim_best_of_n_formula_is_only_a_bound():
    for s in (0.01, 0.2, 0.5, 0.9):
        for n in (2, 16, 256):
            exact, bound = code.best_of_kl(s, n)
            assert exact < bound
    assert code.best_of_kl(0.5, 256)[0] == pytest.approx(np.log(2), abs=1e-6)
    assert code.best_of_kl(0.2, 2)[1] == pytest.approx(0.1931, abs=1e-4)


def test_pass_at_k_counts_subsets_and_is_unbiased():
    right = [1, 0, 0, 1, 0]
    subsets = [x for x in product(range(5), repeat=3) if x[0] < x[1] < x[2]]
    hit = sum(any(right[i] for i in x) for x in subsets) / len(subsets)
    assert code.pass_at_k(5, 2, 3) == pytest.approx(hit)
    s = 0.3
    mean = sum(
        comb(6, c) * s**c * (1 - s) ** (6 - c) * code.pass_at_k(6, c, 4)
        for c in range(7)
    )
    assert mean == pytest.approx(1 - (1 - s) ** 4)


def test_claim_an_unseen_right_answer_of_the_filtered_set():
    # 16 samples, success 0.2, a form that is a tenth of the right answers
    assert (1 - 0.2 * 0.1) ** 16 == pytest.approx(0.72, abs=5e-3)


def test_figures_show_the_data():
    (axes,) = code.figure_pulls().axes
    rates = axes.lines[0].get_xdata()
    for line, name in zip(axes.lines, code.prompt_pulls(0.5, 8), strict=False):
        want = [code.prompt_pulls(s, 8)[name] for s in rates]
        assert line.get_ydata() == pytest.approx(want)
    (axes,) = code.figure_share().axes
    true, seen = axes.lines[0].get_ydata(), axes.lines[1].get_ydata()
    assert true == pytest.approx(code.true_share(code.LENGTHS, 0.03))
    assert (seen[-3:] > 1.3 * true[-3:]).all()
    assert axes.get_yscale() == "log"
