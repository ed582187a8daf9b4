"""Checks advantage_estimation.py by enumeration, closed forms and loops."""

import math
import statistics
from itertools import product

import numpy as np
import pytest

from snippets.policy import advantage_estimation as page
from snippets.policy.advantage_estimation import (
    batch_std_advantages,
    centred,
    exact_std,
    gae,
    group_advantages,
    leave_one_out,
    lottery_push,
    moments,
    others_only,
    over_mean,
    prompt_weight,
    reinforce_pp,
    whiten,
)


def rows(table):
    return [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in table.splitlines()[2:]
    ]


def numbers(cell):
    return [float(x) for x in cell.replace("−", "-").replace("/", " ").split()]


# --- PPO ------------------------------------------------------------------


@pytest.mark.parametrize("gamma, lam", [(1, 1), (1, 0.95), (0.9, 0.8), (1, 0)])
def test_gae_is_the_discounted_sum_of_td_errors(gamma, lam):
    rng = np.random.default_rng(0)
    r, v = rng.normal(size=5), rng.normal(size=5)
    delta = [r[t] + gamma * (v[t + 1] if t < 4 else 0) - v[t] for t in range(5)]
    expected = [
        sum((gamma * lam) ** k * delta[t + k] for k in range(5 - t)) for t in range(5)
    ]
    advantages, targets = gae(r, v, gamma, lam)
    np.testing.assert_allclose(advantages, expected)
    np.testing.assert_allclose(targets, np.array(expected) + v)


def test_claim_lambda_one_is_reward_minus_value():
    for reward, values in zip(page.REWARDS, page.VALUES, strict=True):
        r = [0.0] * (len(values) - 1) + [reward]
        advantages, targets = gae(r, values)
        np.testing.assert_allclose(advantages, reward - np.array(values))
        np.testing.assert_allclose(targets, reward)


def test_claim_centred_grpo_is_ppo_with_the_group_mean_as_critic():
    mean = statistics.mean(page.REWARDS)
    for i, values in enumerate(page.VALUES):
        r = [0.0] * (len(values) - 1) + [page.REWARDS[i]]
        advantages, _ = gae(r, [mean] * len(values))
        np.testing.assert_allclose(advantages, centred(page.REWARDS)[i])


def test_whiten_has_mean_zero_and_sample_deviation_one():
    x = [3.0, 1.0, 4.0, 1.0, 5.0]
    expected = [(v - statistics.mean(x)) / statistics.stdev(x) for v in x]
    np.testing.assert_allclose(whiten(np.array(x)), expected, rtol=1e-7)


def test_claim_equal_rewards_under_ppo_whiten_to_zero():
    rewards = np.array([0.0, 0.0, 0.0, 1.0])
    raw, target = gae(rewards, np.full(4, 0.9), gamma=1.0, lam=1.0)
    assert raw == pytest.approx([0.1] * 4)
    assert target == pytest.approx([1.0] * 4)
    assert whiten(raw) == pytest.approx([0.0] * 4, abs=1e-6)


def test_claim_whitening_can_flip_a_sign():
    """A token better than the critic's forecast, worse than the batch."""
    x = np.array([0.1, 2.0, 3.0])
    assert x[0] > 0 > whiten(x)[0]


def test_table_of_the_same_rewards():
    table = rows(page.table_same_rewards())
    flat = [a for row in page.ppo_advantages(0.95) for a in row]
    mean, std = statistics.mean(flat), statistics.stdev(flat)
    sibling = statistics.stdev(page.REWARDS)
    seen = 0
    for i, row in enumerate(table):
        reward, values = page.REWARDS[i], page.VALUES[i]
        assert numbers(row[1]) == values
        for t, v in enumerate(values):
            assert numbers(row[2])[t] == pytest.approx(reward - v, abs=0.0051)
            mixed = flat[seen]
            assert numbers(row[3])[t] == pytest.approx(mixed, abs=0.0051)
            z = (mixed - mean) / std
            assert numbers(row[4])[t] == pytest.approx(z, abs=0.0051)
            seen += 1
        others = [r for j, r in enumerate(page.REWARDS) if j != i]
        assert numbers(row[5]) == pytest.approx([(reward - 0.25) / sibling], abs=0.0051)
        assert numbers(row[6]) == pytest.approx([reward - 0.25], abs=0.0051)
        assert numbers(row[7]) == pytest.approx([reward - sum(others) / 3], abs=0.0051)


def test_claim_what_the_table_of_the_same_rewards_shows():
    names = [row[0] for row in rows(page.table_same_rewards())]
    assert names == ["1, $R=1$", "2, $R=0$", "3, $R=0$", "4, $R=0$"]
    assert page.VALUES[0] == [0.25, 0.4, 0.7, 0.9]
    assert page.VALUES[2] == [0.25, 0.6, 0.1]
    assert [v[0] for v in page.VALUES] == [0.25] * 4


def test_claim_one_td_error_can_praise_a_wrong_answer():
    """Response 3 fails; its first token raised the forecast by 0.35."""
    first = page.ppo_advantages(0.0)[2][0]
    assert first == pytest.approx(0.35)
    assert page.ppo_advantages(0.95)[2][0] < 0


def test_claim_lambda_per_token_forgets_a_turn_of_1000_tokens():
    """Reward 1 at the end, a critic that says 0: what the start sees."""
    r = [0.0] * 1000 + [1.0]
    first = gae(r, [0.0] * 1001, lam=0.95)[0][0]
    assert first == pytest.approx(0.95**1000) == pytest.approx(5e-23, rel=0.1)


# --- GRPO and RLOO -----------------------------------------------------------


@pytest.mark.parametrize("ddof, std", [(0, statistics.pstdev), (1, statistics.stdev)])
def test_group_advantages_by_the_definition(ddof, std):
    r = [[0.3, 1.0, -2.0, 0.5], [1.0, 0.0, 0.0, 0.0]]
    got = group_advantages(r, ddof=ddof, eps=0.25)
    for i in (0, 1):
        expected = [(x - statistics.mean(r[i])) / (std(r[i]) + 0.25) for x in r[i]]
        np.testing.assert_allclose(got[i], expected)
    default = group_advantages(r)  # sample deviation, 1e-6
    np.testing.assert_array_equal(default, group_advantages(r, ddof=1, eps=1e-6))
    plain = group_advantages(r, divide=False, ddof=ddof)
    np.testing.assert_allclose(plain[1], [0.75, -0.25, -0.25, -0.25])


@pytest.mark.parametrize("group", [2, 3, 8])
def test_claim_group_mean_is_leave_one_out_times_g_minus_one_over_g(group):
    r = np.random.default_rng(1).normal(size=(5, group))
    for i in range(5):
        for j in range(group):
            others = [r[i, k] for k in range(group) if k != j]
            expected = r[i, j] - statistics.mean(others)
            assert leave_one_out(r)[i, j] == pytest.approx(expected)
    np.testing.assert_allclose(centred(r), (group - 1) / group * leave_one_out(r))


def test_claim_verl_writes_rloo_as_the_group_mean_times_g_over_g_minus_one():
    r, g = np.array([0.2, 1.0, 0.4, 0.0]), 4
    verl = r * g / (g - 1) - r.mean() * g / (g - 1)
    np.testing.assert_allclose(verl, leave_one_out(r), atol=1e-12)


def test_claim_advantages_of_eight():
    expected = {1: (2.4749, -0.3536), 2: (1.6202, -0.5401), 4: (0.9354, -0.9354)}
    for k, ends in expected.items():
        a = exact_std([1.0] * k + [0.0] * (8 - k))
        assert (a.max(), a.min()) == pytest.approx(ends, abs=1e-4)
    population = group_advantages([1.0] + [0.0] * 7, ddof=0, eps=0)
    assert population[0] == pytest.approx(math.sqrt(7))  # 2.65


@pytest.mark.parametrize("group", [2, 8, 16])
def test_claim_largest_advantage_and_ddof_factor(group):
    r = [1.0] + [0.0] * (group - 1)
    one, zero = exact_std(r)[0], group_advantages(r, ddof=0, eps=0)[0]
    assert one == pytest.approx((group - 1) / math.sqrt(group))
    assert zero == pytest.approx(math.sqrt(group - 1))
    assert zero / one == pytest.approx(math.sqrt(group / (group - 1)))
    noise = np.random.default_rng(2).normal(size=(200, group))
    assert exact_std_rows(noise).max() <= one + 1e-9


def exact_std_rows(r):
    return np.array([exact_std(x) for x in r])


def test_claim_division_makes_the_scale_and_shift_of_rewards_irrelevant():
    r = np.array([0.1, 0.9, 0.4, 0.4])
    np.testing.assert_allclose(exact_std(10 * (r - 0.5)), exact_std(r))
    assert not np.allclose(centred(10 * r), centred(r))
    np.testing.assert_allclose(centred(r + 10), centred(r))


def test_claim_zero_sum_over_responses_is_not_zero_sum_over_tokens():
    lengths = [len(v) for v in page.VALUES]
    a = exact_std(page.REWARDS)
    assert a.sum() == pytest.approx(0)
    assert a @ lengths == pytest.approx(3.0)


# --- Baselines, all groups enumerated -------------------------------------


def by_hand(advantages, shift=0.0):
    """Loops, no arrays of groups: mean and variance of the gradient."""
    p, solves = page.POLICY, page.SOLVES
    draws = []
    for answers in product(range(4), repeat=4):
        chance = math.prod(p[a] for a in answers)
        a = advantages([solves[x] + shift for x in answers])
        g = [
            sum(a[i] * ((x == k) - p[k]) for i, x in enumerate(answers)) / 4
            for k in range(4)
        ]
        draws.append((chance, g))
    mean = [sum(c * g[k] for c, g in draws) for k in range(4)]
    second = sum(c * sum(x * x for x in g) for c, g in draws)
    return mean, second - sum(m * m for m in mean)


HAND = {
    "none": lambda r, s: list(r),
    "true mean $V(s)=p$": lambda r, s: [x - 0.4 - s for x in r],
    "best constant $b^*$": lambda r, s: [x - page.best_constant() - s for x in r],
    "mean of the others (RLOO)": lambda r, s: [
        x - (sum(r) - x) / (len(r) - 1) for x in r
    ],
    "group mean": lambda r, s: [x - statistics.mean(r) for x in r],
    "group mean, $\\times\\,G/(G-1)$": lambda r, s: [
        (x - statistics.mean(r)) * 4 / 3 for x in r
    ],
    "group mean, / group std (GRPO)": lambda r, s: [
        (x - statistics.mean(r)) / (statistics.stdev(r) or 1) for x in r
    ],
}


@pytest.mark.parametrize("shift", [0.0, 10.0])
def test_moments_and_table_against_loops(shift):
    p, solves = page.POLICY, page.SOLVES
    truth = [p[k] * (solves[k] - 0.4) for k in range(4)]
    np.testing.assert_allclose(page.true_gradient(), truth)
    shown = {row[0]: row[1:] for row in rows(page.table_baselines())}
    assert list(shown) == list(HAND)
    for name, f in HAND.items():
        mean, variance = by_hand(lambda r, f=f: f(r, shift), shift)
        got = moments(page.BASELINES[name](shift), shift)
        np.testing.assert_allclose(got[0], mean, atol=1e-12)
        assert got[1] == pytest.approx(variance)
        scale = np.dot(mean, truth) / np.dot(truth, truth)
        np.testing.assert_allclose(mean, scale * np.array(truth), atol=1e-12)
        cell = float(shown[name][1 if shift == 0 else 2])
        assert cell == pytest.approx(variance / scale**2, rel=0.006)
        assert float(shown[name][0]) == pytest.approx(scale, abs=5.1e-4)


def test_claim_no_baseline_is_unbiased_and_300_times_noisier_after_a_shift():
    mean, variance = moments(lambda r: r, 10.0)
    np.testing.assert_allclose(mean, page.true_gradient(), atol=1e-12)
    ratio = variance / moments(lambda r: r)[1]
    assert 300 < ratio < 310


def test_best_constant_is_best_and_a_bad_one_worse_than_none():
    best = page.best_constant()

    def noise(b):
        return moments(lambda r: r - b)[1]

    assert noise(best) < min(noise(best - 0.01), noise(best + 0.01))
    assert noise(best) < noise(0.4) < noise(0.0) < noise(2.0)
    assert best == pytest.approx(0.457, abs=0.0005)


def test_claim_a_baseline_that_depends_on_the_own_answer_is_biased():
    """Own reward as baseline: the gradient is gone, not less noisy."""
    mean, variance = moments(lambda r: r - r)
    assert not mean.any() and variance == 0


# --- The weight of a prompt -----------------------------------------------


def weight_by_enumeration(p, group, advantages):
    """All 2^G groups; log-odds as parameter, whose dp is p (1 - p)."""
    total = 0.0
    for r in product((0.0, 1.0), repeat=group):
        chance = math.prod(p if x else 1 - p for x in r)
        a = advantages(np.array(r))
        score = [1 - p if x else -p for x in r]
        total += chance * sum(x * s for x, s in zip(a, score, strict=True)) / group
    return total / (p * (1 - p))


@pytest.mark.parametrize(
    "f", [leave_one_out, centred, exact_std, others_only, over_mean, np.copy]
)
@pytest.mark.parametrize("p, group", [(0.1, 2), (0.3, 5), (0.9, 4)])
def test_prompt_weight_by_enumeration(f, p, group):
    expected = weight_by_enumeration(p, group, f)
    # enumeration orders the rewards differently; the estimators do not care
    assert prompt_weight(p, group, f) == pytest.approx(expected)


@pytest.mark.parametrize("p", [0.02, 0.3, 0.5, 0.8])
@pytest.mark.parametrize("group", [2, 3, 8, 16])
def test_claim_weights_in_closed_form(p, group):
    assert prompt_weight(p, group, leave_one_out) == pytest.approx(1)
    assert prompt_weight(p, group, centred) == pytest.approx((group - 1) / group)
    mixed = sum(
        math.comb(group, k)
        * p**k
        * (1 - p) ** (group - k)
        * math.sqrt(k / group * (1 - k / group))
        for k in range(group + 1)
    )
    for ddof in (0, 1):
        expected = math.sqrt((group - ddof) / group) * mixed / (p * (1 - p))
        got = prompt_weight(
            p,
            group,
            lambda r, d=ddof: (
                group_advantages(r, ddof=d, eps=0) if r.std() else np.zeros_like(r)
            ),
        )
        assert got == pytest.approx(expected)
    maxrl = (1 - (1 - p) ** (group - 1)) / p
    assert prompt_weight(p, group, over_mean) == pytest.approx(maxrl)


def test_claim_groups_of_two_and_three_have_no_difficulty_weight():
    for group, value in ((2, 1 / math.sqrt(2)), (3, 2 / math.sqrt(3))):
        for p in (0.001, 0.2, 0.5, 0.99):
            assert prompt_weight(p, group, exact_std) == pytest.approx(value)
    four = [prompt_weight(p, 4, exact_std) for p in (0.001, 0.5)]
    assert four[0] / four[1] == pytest.approx(1.07, abs=0.005)


def test_claim_limits_of_the_weight():
    for group in (8, 16):
        bound = (group - 1) / math.sqrt(group)
        assert prompt_weight(1e-9, group, exact_std) == pytest.approx(bound)
    big = prompt_weight(0.3, 400, exact_std)
    assert big == pytest.approx(1 / math.sqrt(0.21), rel=0.004)
    at = [prompt_weight(p, 8, exact_std) for p in (0.05, 0.5)]
    assert at[0] / at[1] == pytest.approx(1.33, abs=0.005)
    assert math.sqrt(0.25 / 0.0475) == pytest.approx(2.29, abs=0.005)


def test_claim_push_on_the_log_odds_peaks_at_one_half():
    p, curves = page.weight_curves()
    for group in (8, 64):
        push = curves[f"std, G = {group}"] * p * (1 - p)
        assert p[int(np.argmax(push))] == pytest.approx(0.5)
    push = {x: prompt_weight(x, 8, exact_std) * x * (1 - x) for x in (0.05, 0.5)}
    assert push[0.05] / push[0.5] == pytest.approx(0.25, abs=0.005)
    assert 0.05 * 0.95 / 0.25 == pytest.approx(0.19)


def test_claim_two_arcsin_is_the_large_group_objective():
    for p in (0.1, 0.6):
        h = 1e-6
        slope = (math.asin((p + h) ** 0.5) - math.asin((p - h) ** 0.5)) / h
        assert slope == pytest.approx(1 / math.sqrt(p * (1 - p)), rel=1e-6)


def test_claim_nemo_rl_turns_the_weight_around():
    w = {p: prompt_weight(p, 8, others_only) for p in (0.01, 0.3, 0.5)}
    assert w[0.01] < w[0.5] < w[0.3]


def test_others_only_is_the_formula_for_one_group():
    r = [1.0, 0.0, 0.0, 0.0]
    expected = [1.0] + [(0 - 1 / 3) / statistics.stdev([1.0, 0, 0])] * 3
    np.testing.assert_allclose(others_only(np.array(r)), expected)
    np.testing.assert_allclose(others_only(np.array([1.0, 0.0])), [1, -1])


@pytest.mark.parametrize("others, expected", [(3, -2123), (7, -0.9)])
def test_claim_nemo_rl_variance_by_subtraction_in_float32(others, expected):
    """E[x^2] - E[x]^2 of equal 0.9s, whose variance is 0; own reward 0."""
    f = np.float32
    x, n = np.full(others, 0.9, f), f(others)
    mean = x.sum(dtype=f) / n
    square = (x**2).sum(dtype=f) / n
    variance = (square - mean * mean) * (n / (n - f(1)))
    std = np.sqrt(variance) if variance > 0 else f(0)  # NaN becomes 0
    a = (f(0) - mean) / (std + f(1e-6)) if std > 0 else f(0) - mean
    assert a.dtype == f and a == pytest.approx(expected, rel=1e-3)
    meant = others_only(np.r_[0.0, np.full(others, 0.9)])[0]
    assert meant == pytest.approx(-0.9)


def test_claim_nemo_rl_one_right_of_eight():
    got = others_only(np.r_[1.0, np.zeros(7)])
    np.testing.assert_allclose(got, [1.0] + [-0.378] * 7, atol=5e-4)


def test_claim_baseline_given_a_mixed_group():
    """The group mean of a mixed group of 8 at p = 0.05 averages 0.149."""
    p, group = 0.05, 8
    weight = [math.comb(8, k) * p**k * (1 - p) ** (8 - k) for k in range(9)]
    mixed = sum(weight[1:8])
    mean = sum(k / 8 * weight[k] for k in range(1, 8)) / mixed
    assert mean == pytest.approx(0.149, abs=5e-4)
    assert mixed == pytest.approx(0.337, abs=5e-4)
    assert prompt_weight(p, group, leave_one_out) == pytest.approx(1)


def test_table_of_weights():
    table = {row[0]: [float(x) for x in row[1:]] for row in rows(page.table_weights())}
    assert page.RATES == (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.95)
    assert table["RLOO"] == [1.0] * 7
    assert table["no std"] == pytest.approx([0.875] * 7, abs=0.0051)
    shown = [(f"GRPO, $G={g}$", g, exact_std) for g in (2, 3, 8)]
    shown.append(("NeMo RL's default", 8, others_only))
    for name, group, f in shown:
        cells = list(zip(page.RATES, table[name], strict=True))
        for p, cell in cells[1:5:3] if f is others_only else cells:
            expected = weight_by_enumeration(p, group, f)
            assert cell == pytest.approx(expected, abs=0.0051)
    for p, cell in zip(page.RATES, table["GRPO, $G=64$"], strict=True):
        mixed = sum(
            math.comb(64, k) * p**k * (1 - p) ** (64 - k) * math.sqrt(k * (64 - k)) / 64
            for k in range(65)
        )
        expected = math.sqrt(63 / 64) * mixed / (p * (1 - p))
        assert cell == pytest.approx(expected, abs=0.0051)
    for p, cell in zip(page.RATES, table["$1/\\sqrt{p(1-p)}$"], strict=True):
        assert cell == pytest.approx((p - p * p) ** -0.5, abs=0.0051)
    maxrl = [(1 - (1 - p) ** 7) / p for p in page.RATES]
    assert table["/ mean (MaxRL)"] == pytest.approx(maxrl, abs=0.0051)


# --- Where the std turns the gradient ----------------------------------------


def push_by_enumeration(group, divide, q=0.5):
    outcomes = [(1 - q, 1.0, -q), (0.2 * q, 10.0, 1 - q), (0.8 * q, 0.0, 1 - q)]
    total = 0.0
    for picks in product(outcomes, repeat=group):
        chance = math.prod(x[0] for x in picks)
        r = [x[1] for x in picks]
        std = (statistics.stdev(r) or 1.0) if divide else 1.0
        mean = statistics.mean(r)
        total += chance * sum((x[1] - mean) / std * x[2] for x in picks) / group
    return total


@pytest.mark.parametrize("group, q", [(2, 0.5), (4, 0.5), (4, 0.2)])
@pytest.mark.parametrize("divide", [True, False])
def test_lottery_by_enumeration(group, q, divide):
    expected = push_by_enumeration(group, divide, q)
    assert lottery_push(group, divide, q) == pytest.approx(expected)


def test_claim_the_std_turns_the_gradient_up_to_groups_of_16():
    for group in (2, 4, 8, 16, 32, 64):
        # exact: (G - 1) / G q (1 - q) (E[risky] - E[safe])
        plain = (group - 1) / group * 0.25 * (2 - 1)
        assert lottery_push(group, False) == pytest.approx(plain)
        assert (lottery_push(group, True) < 0) == (group <= 16)
    shown = rows(page.table_lottery())
    assert [int(row[0]) for row in shown] == [2, 4, 8, 16, 32, 64]
    for g, plain, divided in shown:
        assert numbers(plain) == pytest.approx([lottery_push(int(g), False)], abs=6e-4)
        assert numbers(divided) == pytest.approx([lottery_push(int(g), True)], abs=6e-4)


# --- Batch --------------------------------------------------------------------


def test_batch_normalisations_by_hand():
    r = [[1.0, 0.0, 0.0], [2.0, 3.0, 0.0]]
    flat = [x for row in r for x in row]
    got = batch_std_advantages(np.array(r))
    with_base, plain = (reinforce_pp(np.array(r), b) for b in (True, False))
    centre = [x - statistics.mean(row) for row in r for x in row]
    for i in range(6):
        expected = centre[i] / (statistics.stdev(flat) + 1e-4)
        assert got.flat[i] == pytest.approx(expected)
        expected = centre[i] / statistics.stdev(centre)
        assert with_base.flat[i] == pytest.approx(expected)
        expected = (flat[i] - statistics.mean(flat)) / statistics.stdev(flat)
        assert plain.flat[i] == pytest.approx(expected)


def test_table_of_the_batch():
    shown = {row[0].split(":")[0]: row[1:] for row in rows(page.table_batch())}
    hard, medium = ([1.0] + [0.0] * 7), ([1.0] * 4 + [0.0] * 4)
    all_rewards = hard + medium
    mean, std = statistics.mean(all_rewards), statistics.stdev(all_rewards)
    both = [(1 - mean) / std, -mean / std]
    for cell in shown["REINFORCE++"]:  # blind to which prompt it is
        assert numbers(cell) == pytest.approx(both, abs=0.0051)
    assert numbers(shown["GRPO"][0]) == pytest.approx([2.475, -0.354], abs=0.0051)
    assert numbers(shown["GRPO"][1]) == pytest.approx([0.935, -0.935], abs=0.0051)
    centre = [1 - 1 / 8] + [-1 / 8] * 7 + [0.5] * 4 + [-0.5] * 4
    scale = statistics.stdev(centre)
    for cell, ends in zip(
        shown["REINFORCE++ w/ Baseline"], ((0.875, -0.125), (0.5, -0.5)), strict=True
    ):
        assert numbers(cell) == pytest.approx([x / scale for x in ends], abs=6e-4)
    assert numbers(shown["Dr. GRPO"][0]) == [0.875, -0.125]
    keys = "group mean, std of the batch's rewards", "Dr. GRPO"
    scaled, plain = (shown[k] for k in keys)
    for a, b in zip(scaled, plain, strict=True):
        expected = [x / std for x in numbers(b)]
        assert numbers(a) == pytest.approx(expected, abs=0.015)


# --- Degenerate groups ----------------------------------------------------


def test_claim_equal_rewards_give_zero_or_nan():
    assert not group_advantages(np.ones(8)).any()
    with np.errstate(invalid="ignore"):
        assert np.isnan(group_advantages(np.ones(8), eps=0)).all()


@pytest.mark.parametrize("group", [7, 8])
def test_claim_float32_rounding_of_equal_rewards(group):
    """What the frameworks' lines give for right answers that all earn 0.9."""
    import torch

    rewards = torch.full((3, group), 0.9)  # three prompts, one row each
    centre = rewards - rewards.mean(-1, keepdim=True)
    std = rewards.std(-1, keepdim=True)
    assert not std.any() and (centre < 0).all()  # one sign for all
    for eps, expected in ((1e-4, -0.0006), (1e-6, -0.06), (1e-9, -59.6)):
        a = centre / (std + eps)
        torch.testing.assert_close(a, torch.full_like(a, expected), rtol=0.01, atol=0)
    assert (a.clamp(-10, 10) == -10).all()
    # TRL's two-pass deviation, and verl's of a vector: not 0, as small
    two_pass = (centre**2).mean(-1, keepdim=True) * group / (group - 1)
    trl = centre / (two_pass.sqrt() + 1e-4)
    verl = (rewards[0] - rewards[0].mean()) / (rewards[0].std() + 1e-6)
    assert trl[0, 0].item() == pytest.approx(-0.0006, rel=0.01)
    assert verl[0].item() == pytest.approx(-0.056, rel=0.01)
    for exact in (0.0, 1.0):
        r = torch.full((3, group), exact)
        assert not (r - r.mean(-1, keepdim=True)).any()


def test_claim_group_of_one():
    assert centred([0.7]).tolist() == [0.0]
    with pytest.warns(RuntimeWarning), np.errstate(invalid="ignore"):
        assert np.isnan(group_advantages([0.7], ddof=1)).all()
    assert group_advantages([0.7], ddof=0).tolist() == [0.0]


def test_claim_chance_of_a_degenerate_group():
    for p, expected in ((0.05, 0.663), (0.5, 0.008), (0.95, 0.663)):
        assert p**8 + (1 - p) ** 8 == pytest.approx(expected, abs=5e-4)


def test_table_of_degenerate_groups():
    table = {row[0]: row[1:] for row in rows(page.table_degenerate())}
    graded = table["all right, length penalty up to 0.01"]
    assert graded[0] == "+0.00313 / −0.00687"
    sizes = {name: (len(r), sum(r)) for name, r in page.GROUPS.items()}
    assert list(sizes.values())[:4] == [(8, 0), (8, 1), (8, 4), (8, 7)]
    assert list(sizes.values())[4] == (8, pytest.approx(7.975))
    assert list(table) == list(page.GROUPS)
    for name, r in page.GROUPS.items():
        mean = statistics.mean(r)
        settings = ((statistics.stdev, 1e-6), (statistics.pstdev, 1e-6))
        settings += ((statistics.stdev, 1e-4),)
        for cell, (std, eps) in zip(table[name][1:], settings, strict=True):
            ends = [(x - mean) / (std(r) + eps) for x in (max(r), min(r))]
            assert numbers(cell) == pytest.approx(ends, abs=0.0051)
        ends = [max(r) - mean, min(r) - mean]
        digits = 5e-6 if 0 < ends[0] < 0.1 else 5e-4
        assert numbers(table[name][0]) == pytest.approx(ends, abs=1.01 * digits)


# --- Figures ----------------------------------------------------------------


def test_figure_of_the_same_rewards():
    top, bottom = page.figure_same_rewards().axes
    for axes in (top, bottom):
        assert axes.get_ylabel() == "advantage"
        assert {"solved", "failed"} <= {t.get_text() for t in axes.texts}
    for line, i in zip(top.lines, (0, 2), strict=False):
        values, reward = page.VALUES[i], page.REWARDS[i]
        r = [0.0] * (len(values) - 1) + [reward]
        np.testing.assert_allclose(line.get_ydata(), gae(r, values, 1, 0.95)[0])
        np.testing.assert_allclose(line.get_xdata(), range(1, len(values) + 1))
    assert set(bottom.lines[0].get_ydata()) == {1.5}
    assert set(bottom.lines[1].get_ydata()) == {-0.5}


def test_figure_of_the_weights():
    top, bottom = page.figure_weights().axes
    assert "success rate" in bottom.get_xlabel()
    for i, group in ((0, 64), (1, 8), (3, 2)):
        line = top.lines[i]
        for at in (4, 24, 40):
            p = line.get_xdata()[at]
            expected = math.sqrt((group - 1) / group) * sum(
                math.comb(group, k)
                * p**k
                * (1 - p) ** (group - k)
                * math.sqrt(k * (group - k))
                / group
                for k in range(group + 1)
            )
            assert line.get_ydata()[at] == pytest.approx(expected / (p * (1 - p)))
    np.testing.assert_allclose(top.lines[2].get_ydata(), 0.875)
    for line in bottom.lines:
        assert line.get_ydata().max() == pytest.approx(100)
        assert line.get_xdata()[int(np.argmax(line.get_ydata()))] == pytest.approx(0.5)
    assert len(bottom.lines) == 3
    p, plain = bottom.lines[2].get_data()
    np.testing.assert_allclose(plain, 400 * p * (1 - p))


@pytest.mark.parametrize("p", [0.9, 0.1])
def test_claim_with_one_success_logit_the_batch_mean_is_the_quieter(p):
    """Score 1 - p for right, -p for wrong; baselines p and 1/2."""
    variance = {}
    for b in (p, 0.5):
        g = [((1 - b) * (1 - p), p), (-b * -p, 1 - p)]
        mean = sum(x * w for x, w in g)
        assert mean == pytest.approx(p * (1 - p))  # no bias either way
        variance[b] = sum(w * (x - mean) ** 2 for x, w in g)
    assert variance[p] == pytest.approx(0.0576)
    assert variance[0.5] == pytest.approx(0.0144)
