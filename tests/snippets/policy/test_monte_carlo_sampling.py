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


def test_every_sample_is_listed_once_with_its_probability():
    drawn, chance = code.all_samples(5)
    want = {}
    for x in product(range(3), repeat=5):
        key = tuple(sorted(x))
        want[key] = want.get(key, 0) + np.prod([code.Q[i] for i in x])
    got = dict(zip(map(tuple, drawn.tolist()), chance, strict=True))
    assert got == pytest.approx(want)
    assert sum(code.all_samples(64)[1]) == pytest.approx(1)


def test_estimators_are_compared_under_their_own_names():
    plain = {
        "no weight": lambda w, f: sum(f) / 4,
        "importance": lambda w, f: sum(a * b for a, b in zip(w, f, strict=True)) / 4,
        "importance, baseline 0.5": lambda w, f: (
            0.5 + sum(a * (b - 0.5) for a, b in zip(w, f, strict=True)) / 4
        ),
        "self-normalised": lambda w, f: (
            sum(a * b for a, b in zip(w, f, strict=True)) / sum(w)
        ),
        "truncated at 2": lambda w, f: (
            sum(min(a, 2) * b for a, b in zip(w, f, strict=True)) / 4
        ),
        "masked outside [0.5, 2]": lambda w, f: (
            sum(a * b for a, b in zip(w, f, strict=True) if 0.5 <= a <= 2) / 4
        ),
    }
    found = code.comparison(4)
    assert set(found) - set(plain) == {"resampled"}
    for name, estimate in plain.items():
        mean, variance = enumerate_plainly(estimate, 4)
        bias, sd, error = found[name]
        assert bias == pytest.approx(mean - TARGET, abs=1e-12)
        assert sd == pytest.approx(variance**0.5)
        assert error == pytest.approx(((mean - TARGET) ** 2 + variance) ** 0.5)


def test_errors_from_64_samples_follow_from_one_sample():
    # an average of independent terms: its variance is one term's over n
    w, f, q = code.P / code.Q, code.F, code.Q
    found = code.comparison(64)
    terms = {
        "no weight": f,
        "importance": w * f,
        "importance, baseline 0.5": w * (f - 0.5) + 0.5,
        "truncated at 2": np.minimum(w, 2) * f,
        "masked outside [0.5, 2]": np.array([w[0], w[1], 0]) * f,
    }
    for name, term in terms.items():
        mean = q @ term
        variance = (q @ term**2 - mean**2) / 64
        error = ((mean - TARGET) ** 2 + variance) ** 0.5
        assert found[name][2] == pytest.approx(error)
    rng = np.random.default_rng(4)
    drawn = rng.choice(3, (40_000, 64), p=q)
    ratio = (w[drawn] * f[drawn]).sum(1) / w[drawn].sum(1)
    error = ((ratio - TARGET) ** 2).mean() ** 0.5
    assert found["self-normalised"][2] == pytest.approx(error, rel=0.02)


def test_claim_raw_importance_is_the_worst_of_8_and_a_baseline_the_best():
    found = {name: x[2] for name, x in code.comparison(8).items()}
    assert max(found, key=found.get) == "importance"
    assert min(found, key=found.get) == "importance, baseline 0.5"
    assert found["importance"] == pytest.approx(0.386, abs=5e-4)
    assert found["no weight"] == pytest.approx(0.270, abs=5e-4)


def test_claim_importance_beats_no_weight_from_18_samples():
    for n, better in ((17, False), (18, True)):
        found = code.comparison(n)
        assert (found["importance"][2] < found["no weight"][2]) is better


def test_claim_third_answer_is_in_a_third_of_the_samples_of_8():
    assert 1 - 0.95**8 == pytest.approx(0.34, abs=5e-3)
    assert code.P[2] / code.Q[2] == pytest.approx(5)


def test_truncation_and_masking_bias_by_their_formulas():
    w = code.P / code.Q
    found = code.comparison(8)
    missing = -(code.Q * np.maximum(w - 2, 0) * code.F).sum()
    assert found["truncated at 2"][0] == pytest.approx(missing)
    forgotten = -(code.P * code.F)[(w < 0.5) | (w > 2)].sum()
    assert forgotten == -0.25
    assert found["masked outside [0.5, 2]"][0] == pytest.approx(forgotten)


def test_mask_keeps_weights_on_its_bounds():
    w = np.array([0.4, 0.5, 2.0, 2.1])
    assert code.masked(w, np.ones(4), 0.5, 2.0) == pytest.approx(2.5 / 4)


def test_resampling_keeps_the_mean_and_adds_variance():
    rng = np.random.default_rng(0)
    w, f = np.array([1.0, 3.0, 0.5]), np.array([0.2, 1.0, 0.4])
    again = rng.choice(f, (200_000, 3), p=w / w.sum()).mean(1)
    assert again.mean() == pytest.approx(code.self_normalised(w, f), abs=2e-3)
    assert again.var() == pytest.approx(code.resampled_variance(w, f), rel=0.02)
    # the whole chain, drawn: 8 from q, then 8 of these by weight
    ratio = code.P / code.Q
    first = rng.choice(3, (60_000, 8), p=code.Q)
    chance = ratio[first] / ratio[first].sum(1, keepdims=True)
    u = rng.random((60_000, 8, 1))
    pick = (u > chance.cumsum(1)[:, None, :-1]).sum(-1)
    value = code.F[np.take_along_axis(first, pick, 1)].mean(1)
    found = code.comparison(8)["resampled"]
    assert value.mean() - TARGET == pytest.approx(found[0], abs=4e-3)
    assert value.std() == pytest.approx(found[1], rel=0.01)


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
    for seeds in (code.SEEDS, range(100, 110)):
        short, long = code.seen_shares(tokens, 0.1, seeds)
        assert short.mean == pytest.approx(0.39, abs=0.01)
        assert {round(100 * share) for share in long.values} == {1, 2}


def plain_share(tokens, sigma, rng):
    """Median over 60 batches of 512, answer by answer from the normal law."""
    shares = []
    for _ in range(60):
        spread = sigma * tokens**0.5
        logs = rng.normal(-(spread**2) / 2, spread, 512)
        top = logs.max()
        w = [np.exp(x - top) for x in logs]
        shares.append(sum(w) ** 2 / (512 * sum(x * x for x in w)))
    return sorted(shares)[29:31]


def test_what_a_batch_reports_by_a_plain_loop():
    rng = np.random.default_rng(100)
    for tokens, sigma in ((100, 0.1), (1000, 0.1), (1000, 0.03)):
        low, high = plain_share(tokens, sigma, rng)
        (got,) = code.seen_shares(np.array([tokens]), sigma)
        room = 3 * got.spread + 0.003
        assert abs(got.mean - (low + high) / 2) < room


@pytest.mark.parametrize("seed", [100, 101, 102])
def test_claim_median_mean_weight_of_such_a_batch(seed):
    # 1,000 tokens at 0.1: sd of the summed log-ratio is sqrt(10)
    rng = np.random.default_rng(seed)
    logs = rng.normal(-5, 10**0.5, (4000, 512))
    means = np.exp(logs).mean(1)
    assert np.median(means) == pytest.approx(0.6, abs=0.05)
    assert np.exp(logs).mean() == pytest.approx(1, abs=0.25)


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


def test_claim_best_of_n_has_the_weight_of_rewards_over_their_mean():
    # (r - mean) / mean over n samples, 0 if all fail: MaxRL as coded
    s, n = 0.3, 4
    got = 0.0
    for right in product((0, 1), repeat=n):
        c = sum(right)
        chance = s**c * (1 - s) ** (n - c)
        score = [1 - s if r else -s for r in right]
        if c:
            got += chance * sum(
                (r - c / n) / (c / n) * x for r, x in zip(right, score, strict=True)
            )
    got /= n * s * (1 - s)
    best = "best of n, failures kept"
    assert got == pytest.approx(code.prompt_pulls(s, n)[best])
    assert code.prompt_pulls(s, 1)[best] == 0
    assert code.prompt_pulls(s, 1)["mean over the accepted"] == pytest.approx(1)


def test_claim_best_of_n_without_failures_is_the_mean_over_the_accepted():
    rng = np.random.default_rng(5)
    s, n = 0.2, 4
    found = (rng.random((400_000, n)) < s).any(1)
    pull = (found * (1 - s)).mean() / (s * (1 - s))
    want = code.prompt_pulls(s, n)["mean over the accepted"]
    assert pull == pytest.approx(want, rel=0.01)


def test_claim_mean_over_the_accepted_is_a_sum_of_pass_at_k_gradients():
    s, n = 0.3, 5
    slope = sum((1 - s) ** (k - 1) for k in range(1, n + 1))
    want = code.prompt_pulls(s, n)["mean over the accepted"]
    assert slope == pytest.approx(want)


def test_claim_pooling_over_the_batch_weighs_prompts_equally():
    # 500 easy and 500 hard prompts, 8 samples each, one mean over the kept
    rng = np.random.default_rng(6)
    rates, n = np.array([0.1, 0.6]), 8
    kept = [(rng.random((500, n)) < s).sum() for s in rates]
    pulls = [
        c * (1 - s) / sum(kept) / (s * (1 - s))
        for c, s in zip(kept, rates, strict=True)
    ]
    assert pulls[0] == pytest.approx(pulls[1], rel=0.1)
    per_prompt = 2 * np.array(pulls)  # half of the prompts are of each kind
    assert per_prompt == pytest.approx(1 / rates.mean(), rel=0.1)


@pytest.mark.parametrize(("hard", "easy"), [(0.05, 0.6), (0.3, 0.9), (0.5, 0.7)])
def test_claim_of_two_pooled_prompts_the_harder_gets_a_little_less(hard, easy):
    n, pulls = 8, np.zeros(2)
    rates = np.array([hard, easy])
    for counts in product(range(n + 1), repeat=2):
        chance = np.prod(
            [
                comb(n, c) * s**c * (1 - s) ** (n - c)
                for c, s in zip(counts, rates, strict=True)
            ]
        )
        if sum(counts):
            pulls += chance * np.array(counts) / sum(counts) / rates
    assert 0.8 < pulls[0] / pulls[1] < 1
    assert 2 * pulls == pytest.approx(1 / rates.mean() * np.ones(2), rel=0.2)


def test_claim_mean_over_each_answers_tokens_rewards_short_right_answers():
    # three answers: right and short, right and long, wrong
    reward, length = np.array([1.0, 1.0, 0.0]), np.array([2.0, 10.0, 4.0])

    def policy(logits):
        return np.exp(logits) / np.exp(logits).sum()

    def worth(logits):
        return policy(logits) @ (reward / length)

    logits, step = np.array([0.3, -0.2, 0.5]), 1e-6
    numeric = [
        (worth(logits + step * e) - worth(logits - step * e)) / (2 * step)
        for e in np.eye(3)
    ]
    p = policy(logits)
    score = np.eye(3) - p  # row y: gradient of log p(y)
    expected = (p * reward / length) @ score
    assert expected == pytest.approx(numeric, abs=1e-8)
    token_mean = (p * reward) @ score  # summed scores over a common divisor
    assert token_mean[1] > 0 > expected[1]


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


def test_claim_top_p_leaves_0_92_on_kept_tokens_and_nothing_outside():
    policy = np.array([0.5, 0.3, 0.12, 0.05, 0.03])
    f = np.array([0.2, -0.4, 1.0, 3.0, -2.0])
    kept = np.array([True, True, True, False, False])
    engine = np.where(kept, policy, 0.0) / 0.92
    ratio = policy[kept] / engine[kept]
    assert engine.sum() == pytest.approx(1)
    assert ratio == pytest.approx([0.92] * 3)
    assert np.log(ratio[0]) == pytest.approx(-0.083, abs=5e-4)
    assert 0.92**100 == pytest.approx(0.0002, abs=5e-5)
    assert engine[kept] @ ratio == pytest.approx(0.92)
    outside = 0.05 * 3.0 + 0.03 * -2.0
    estimate = engine[kept] @ (ratio * f[kept])
    assert estimate == pytest.approx(policy @ f - outside)


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
    assert axes.lines[2].get_ydata() == pytest.approx(
        [np.exp(-t / 100) for t in code.LENGTHS]
    )
    dots = axes.lines[3].get_ydata()
    assert list(axes.lines[4].get_ydata()) == [1 / 512] * 2
    assert code.LENGTHS[[0, -1]] == pytest.approx([10, 10_000])
    assert (dots >= 1 / 512).all()
    again = code.seen_shares(code.LENGTHS, 0.1, range(100, 110))
    for dot, other in zip(dots, again, strict=True):
        assert abs(dot - other.mean) < 3 * other.spread + 1e-6
    for band, sigma in zip(axes.collections, (0.03, 0.1), strict=True):
        seen = code.seen_shares(code.LENGTHS[-1:], sigma)[0]
        corners = band.get_paths()[0].vertices
        edge = corners[corners[:, 0] == code.LENGTHS[-1], 1]
        assert edge.min() == pytest.approx(seen.mean - seen.spread)
        assert edge.max() == pytest.approx(seen.mean + seen.spread)


def test_tables_print_the_functions():
    def cells(table):
        lines = table.splitlines()[2:]
        return [[x.strip() for x in line.strip("|").split("|")] for line in lines]

    by_name = {row[0]: row[1:] for row in cells(code.table_estimators())}
    assert by_name["importance"] == ["0.000", "0.386", "0.386", "0.136"]
    assert by_name["no weight"] == ["−0.250", "0.101", "0.270", "0.253"]
    assert by_name["self-normalised"] == ["−0.071", "0.213", "0.225", "0.085"]
    assert by_name["resampled"] == ["−0.071", "0.239", "0.249", "0.098"]
    assert cells(code.table_variance()) == [
        ["0.05", "0.048", "0.0429", "0.0385"],
        ["0.2", "0.160", "0.1024", "0.0576"],
        ["0.5", "0.250", "0.0625", "0.0000"],
        ["2/3", "0.222", "0.0247", "0.0247"],
        ["0.9", "0.090", "0.0009", "0.0576"],
    ]
    for beta, row in zip((1, 0.5, 0.1), cells(code.table_rejection()), strict=True):
        kept = 0.2 + 0.8 * np.exp(-1 / beta)
        assert [float(x) for x in row] == pytest.approx(
            [beta, kept, 1 / kept, 0.2 / kept], abs=5e-3
        )
    for row in cells(code.table_best_of()):
        n, success, *kls, bound = (float(x) for x in row)
        best = 1 - 0.8**n
        assert success == pytest.approx(best, abs=5e-4)
        assert bound == pytest.approx(np.log(n) - 1 + 1 / n, abs=5e-4)
        for s, kl in zip((0.2, 0.5), kls, strict=True):
            fail = (1 - s) ** n
            want = (1 - fail) * np.log((1 - fail) / s)
            want += fail * (n - 1) * np.log(1 - s)
            assert kl == pytest.approx(want, abs=6e-4)
    assert [row[0] for row in cells(code.table_best_of())] == [
        *("2", "4", "8", "16", "64", "256")
    ]
    assert cells(code.table_pass()) == [
        ["1", "0.1875", "0.1875"],
        ["4", "0.6071", "0.5642"],
        ["8", "0.9000", "0.8101"],
    ]


def test_claim_rollouts_from_a_step_need_200_for_a_twentieth():
    def spread(k):  # standard error of a value at success 0.5, enumerated
        chance = [comb(k, c) * 0.5**k for c in range(k + 1)]
        squares = [(c / k - 0.5) ** 2 for c in range(k + 1)]
        return np.dot(chance, squares) ** 0.5

    assert spread(9) == pytest.approx(0.167, abs=5e-4)
    assert 2**0.5 * spread(9) == pytest.approx(0.236, abs=5e-4)
    assert 2**0.5 * spread(200) == pytest.approx(0.05)


def test_claim_verl_k1_bounds_hold_the_inverse_ratio():
    ratio = np.array([0.24, 0.26, 1.0, 1.9, 2.1])
    k1 = -np.log(ratio)
    kept = (k1 >= np.log(0.5)) & (k1 <= np.log(4.0))
    assert kept.tolist() == [False, True, True, True, False]


def test_claim_speculative_decoding_draws_from_the_target():
    """Keep with min(1, p / q), else the normalised excess of p over q."""
    q, p = code.Q.tolist(), code.P.tolist()
    excess = [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
    kept = [b * min(1.0, a / b) for a, b in zip(p, q, strict=True)]
    lost = 1 - sum(kept)
    out = [k + lost * e / sum(excess) for k, e in zip(kept, excess, strict=True)]
    assert out == pytest.approx(p)
