"""Checks actor_critic.py against plain loops, finite differences, pairs."""

from itertools import product
from math import log, prod

import numpy as np
import pytest

from snippets.policy import actor_critic as page
from snippets.policy.actor_critic import (
    ESTIMATORS,
    POLICY,
    Q_VALUES,
    all_tokens_variance,
    best_constant,
    bias_and_variance,
    bigram,
    compatible,
    exact_values,
    gradient,
    group_variance,
    moments,
    needed,
    noisy_critic,
    p_best,
    pathwise,
    problem,
    squared_weights,
    weights,
    wrong_critics,
)

LOGITS = 0.5 * np.random.default_rng(0).normal(size=(4, 3))


def step(last, token, logits=LOGITS):
    """Pi(token | last token), last = 3 at the start."""
    row = np.exp(logits[last])
    return row[token] / row.sum()


def chance(response, logits=LOGITS):
    previous = (3, *response[:-1])
    pairs = zip(previous, response, strict=True)
    return prod(step(b, a, logits) for b, a in pairs)


def value(prefix, length=6):
    """V(prefix) by recursion over the next token."""
    if len(prefix) == length:
        return float(sum(prefix) >= length)
    last = prefix[-1] if prefix else 3
    return sum(step(last, a) * value((*prefix, a), length) for a in range(3))


def objective(logits, length=6):
    """J by a plain loop."""
    everything = product(range(3), repeat=length)
    return sum(chance(y, logits) for y in everything if sum(y) >= length)


def test_problem_is_the_bigram_model_and_the_points():
    at = problem()
    rows = [0, 1, 100, 364, 728]
    for i in rows:
        y = tuple(at.responses[i].tolist())
        assert at.p[i] == pytest.approx(chance(y))
        assert at.reward[i] == float(sum(y) >= 6)
    assert at.p.sum() == pytest.approx(1)
    assert len(at.p) == 3**6


def test_claim_the_problem_has_729_responses_12_logits_and_j_061():
    at = problem()
    assert len(at.p) == 729
    assert at.scores.shape == (729, 6, 12)
    assert at.p @ at.reward == pytest.approx(0.611, abs=5e-4)
    best = best_constant(at.p, at.scores, at.reward)
    assert best == pytest.approx(0.594, abs=5e-4)


def test_parity_pays_for_a_multiple_of_three():
    at = page.problem(2, "parity")
    assert at.reward.tolist() == [1, 0, 0, 0, 0, 1, 0, 1, 0]
    assert at.p.tolist() == pytest.approx([1 / 9] * 9)


def test_values_are_the_recursion():
    at = problem()
    for i in (0, 200, 500, 728):
        y = tuple(at.responses[i].tolist())
        got = at.values[i]
        assert got == pytest.approx([value(y[:t]) for t in range(7)])


def test_scores_are_the_gradient_of_the_log_probability():
    responses, p, scores = bigram(LOGITS, 3)
    h = 1e-6
    for i in (0, 5, 17, 26):
        for d in range(12):
            moved = LOGITS.copy()
            moved.flat[d] += h
            slope = (bigram(moved, 3)[1][i] - p[i]) / (h * p[i])
            assert scores[i].sum(0)[d] == pytest.approx(slope, abs=1e-5)
    assert responses[5].tolist() == [0, 1, 2]


def test_gradient_is_the_finite_difference_of_j():
    h, true = 1e-5, gradient()
    for d in range(12):
        up, down = LOGITS.copy(), LOGITS.copy()
        up.flat[d] += h
        down.flat[d] -= h
        slope = (objective(up) - objective(down)) / (2 * h)
        assert true[d] == pytest.approx(slope, abs=1e-8)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_is_unbiased_with_an_exact_critic(name):
    at = problem()
    mean, _ = moments(at.p, at.scores, ESTIMATORS[name](at))
    np.testing.assert_allclose(mean, gradient(), atol=1e-12)


def plain_variance(weight_of):
    """Total variance by a loop; weight_of(response, t)."""
    total, square = np.zeros(12), 0.0
    for y in product(range(3), repeat=6):
        g = np.zeros((4, 3))
        for t, a in enumerate(y):
            last = y[t - 1] if t else 3
            w = weight_of(y, t)
            g[last, a] += w
            for k in range(3):
                g[last, k] -= w * step(last, k)
        total += chance(y) * g.ravel()
        square += chance(y) * (g**2).sum()
    return square - total @ total


J = value(())
CACHE = {y[:t]: 0.0 for y in product(range(3), repeat=6) for t in range(7)}
for _prefix in CACHE:
    CACHE[_prefix] = None


def v(prefix):
    if CACHE[prefix] is None:
        CACHE[prefix] = value(prefix)
    return CACHE[prefix]


BY_LOOP = {
    "R (REINFORCE)": lambda y, t: sum(y) >= 6,
    "R − J (mean reward)": lambda y, t: (sum(y) >= 6) - J,
    "R − V (λ = 1)": lambda y, t: (sum(y) >= 6) - v(y[:t]),
    "Q, no baseline": lambda y, t: v(y[: t + 1]),
    "Q − V (λ = 0)": lambda y, t: v(y[: t + 1]) - v(y[:t]),
}


@pytest.mark.parametrize("name", BY_LOOP)
def test_variances_by_a_plain_loop(name):
    at = problem()
    got = moments(at.p, at.scores, ESTIMATORS[name](at))[1]
    assert got == pytest.approx(plain_variance(BY_LOOP[name]))


def test_best_constant_is_a_minimum():
    at = problem()
    best = best_constant(at.p, at.scores, at.reward)

    def variance(b):
        weight = page.every_token(at.reward - b)
        return moments(at.p, at.scores, weight)[1]

    assert variance(best) < min(variance(best - 0.01), variance(best + 0.01))
    left, right = variance(best - 0.01), variance(best + 0.01)
    assert left == pytest.approx(right)


def test_group_of_two_by_all_pairs():
    at = problem()
    total = at.scores.sum(1)
    mean, square = np.zeros(12), 0.0
    for i, p in enumerate(at.p):
        gap = (at.reward[i] - at.reward)[:, None]
        g = 0.5 * (gap * total[i] - gap * total)
        mean += p * (at.p @ g)
        square += p * (at.p @ (g**2).sum(1))
    np.testing.assert_allclose(mean, gradient(), atol=1e-12)
    assert group_variance(2) == pytest.approx(2 * (square - mean @ mean))


def test_group_of_eight_by_sampling():
    at, rng = problem(), np.random.default_rng(0)
    draws = rng.choice(len(at.p), p=at.p, size=(20_000, 8))
    reward = at.reward[draws]
    others = (reward.sum(1, keepdims=True) - reward) / 7
    total = at.scores.sum(1)[draws]
    g = np.einsum("ng,ngd->nd", reward - others, total) / 8
    sampled = 8 * g.var(axis=0).sum()
    assert group_variance(8) == pytest.approx(sampled, rel=0.03)


def test_large_groups_approach_the_exact_mean():
    at = problem()
    name = "R − J (mean reward)"
    limit = moments(at.p, at.scores, ESTIMATORS[name](at))[1]
    assert group_variance(10**6) == pytest.approx(limit, rel=1e-5)
    assert group_variance(8) > limit


def test_all_tokens_by_a_plain_loop():
    total, square = np.zeros(12), 0.0
    for y in product(range(3), repeat=6):
        g = np.zeros((4, 3))
        for t in range(6):
            last = y[t - 1] if t else 3
            for a in range(3):
                w = step(last, a) * (v((*y[:t], a)) - v(y[:t]))
                g[last, a] += w
                for k in range(3):
                    g[last, k] -= w * step(last, k)
        total += chance(y) * g.ravel()
        square += chance(y) * (g**2).sum()
    np.testing.assert_allclose(total, gradient(), atol=1e-12)
    assert all_tokens_variance() == pytest.approx(square - total @ total)


def test_needed_is_variance_over_the_squared_error():
    size = np.linalg.norm(gradient())
    n = needed(0.848)
    assert np.sqrt(0.848 / n) <= 0.1 * size
    assert np.sqrt(0.848 / (n - 1)) > 0.1 * size


def test_claim_how_many_times_quieter():
    at = problem()
    got = {n: moments(at.p, at.scores, f(at))[1] for n, f in ESTIMATORS.items()}
    base, mean = got["R (REINFORCE)"], got["R − J (mean reward)"]
    exact, future = got["Q − V (λ = 0)"], got["Q, no baseline"]
    saved = 1 - got["R − V (λ = 1)"] / mean
    expected = [base / mean, saved, base / exact, base / future]
    assert page.factors(0) == pytest.approx(expected)
    assert expected == pytest.approx([2.61, 0.31, 18.5, 1.26], abs=0.05)


def test_claim_factors_over_thirty_draws_of_the_actor():
    draws = [*page.SEEDS, *range(100, 110), *range(500, 510)]
    columns = list(zip(*map(page.factors, draws), strict=True))
    assert [min(c) for c in columns] == [
        pytest.approx(x, abs=room)
        for x, room in ((1.9, 0.05), (0.28, 0.005), (11, 0.5), (1.1, 0.05))
    ]
    assert [max(c) for c in columns] == [
        pytest.approx(x, abs=room)
        for x, room in ((4.5, 0.05), (0.41, 0.006), (27, 0.5), (1.4, 0.05))
    ]


@pytest.mark.parametrize("seed", range(100, 110))
def test_claim_the_order_holds_for_other_actors(seed):
    constant, state, exact, future = page.factors(seed)
    assert exact > 2 * constant > 2 * future > 2
    assert 0.25 < state < 0.45


@pytest.mark.parametrize("lam", [1.0, 0.95, 0.3, 0.0])
def test_weights_are_gae_by_its_double_sum(lam):
    critic = np.random.default_rng(3).normal(size=(4, 7))
    delta = critic[:, 1:] - critic[:, :-1]
    expected = [
        [sum(lam ** (k - t) * row[k] for k in range(t, 6)) for t in range(6)]
        for row in delta
    ]
    np.testing.assert_allclose(weights(critic, lam), expected)


def test_claim_q_minus_v_squares_sum_to_the_reward_variance():
    for length, rule in product((1, 2, 5), ("points", "parity")):
        mean, base, exact = squared_weights(length, rule)
        assert mean == pytest.approx(length)
        assert exact == pytest.approx(1)
        assert 1 - 1e-12 <= base <= length + 1e-12
        if rule == "parity":
            assert base == pytest.approx(length)


def test_claim_the_squares_of_r_minus_v_are_a_sum_over_what_is_left():
    """E[(R - V_t)^2] is the variance not yet resolved at prefix t."""
    at = problem()
    spread = at.p @ (at.reward - J) ** 2
    known = [at.p @ (at.values[:, t] - J) ** 2 for t in range(7)]
    left = sum(spread - k for k in known[:6]) / spread
    assert squared_weights(6, "points")[1] == pytest.approx(left)


def any_critic(seed, prefixes=True):
    at, rng = problem(), np.random.default_rng(seed)
    critic = noisy_critic(rng, 3.0)
    assert not np.allclose(critic[:, 0], at.values[:, 0]) or not prefixes
    return critic


@pytest.mark.parametrize("seed", range(5))
def test_claim_a_wrong_baseline_is_unbiased_however_wrong(seed):
    bias, cosine, _ = bias_and_variance(any_critic(seed), 1.0)
    assert bias < 1e-12
    assert cosine == pytest.approx(1)


@pytest.mark.parametrize("seed", range(5))
def test_claim_bias_at_lambda_0_is_the_error_at_the_next_prefix(seed):
    at, critic = problem(), any_critic(seed)
    error = critic - at.values
    mean = moments(at.p, at.scores, weights(critic, 0.0))[0]
    extra = moments(at.p, at.scores, error[:, 1:])[0]
    np.testing.assert_allclose(mean - gradient(), extra, atol=1e-12)


def test_noisy_critic_errs_by_prefix_and_not_at_the_end():
    at = problem()
    error = noisy_critic(np.random.default_rng(1), 0.2) - at.values
    assert (error[:, 6] == 0).all()
    for t in range(6):
        same = error[:, t].reshape(3**t, -1)
        np.testing.assert_allclose(same, same[:, :1] * np.ones_like(same))
    rest = error[:: 3**1, 5]
    assert rest.std() == pytest.approx(0.2, rel=0.15)
    assert abs(rest.mean()) < 0.04


def test_claim_a_constant_critic_at_lambda_0_teaches_the_last_token_only():
    at = problem()
    got = weights(page.constant_critic(0.5), 0.0)
    assert (got[:, :-1] == 0).all()
    np.testing.assert_allclose(got[:, -1], at.reward - 0.5)


def test_claim_a_reversed_critic_turns_the_gradient_at_lambda_0():
    critic = wrong_critics()["1 − V"]
    assert bias_and_variance(critic, 0.0)[1] < -0.9
    assert bias_and_variance(critic, 1.0)[1] == pytest.approx(1)


def test_claim_optimism_by_a_constant_is_no_bias_at_all_but_the_end():
    """V + c everywhere: only the last token's weight changes, by -c."""
    at = problem()
    critic = at.values.copy()
    critic[:, :-1] += 0.3
    gap = weights(critic, 0.0) - weights(at.values, 0.0)
    np.testing.assert_allclose(gap[:, :-1], 0, atol=1e-12)
    np.testing.assert_allclose(gap[:, -1], -0.3)
    assert bias_and_variance(critic, 0.0)[0] < 1e-12


def test_claim_bootstrapping_a_truncated_response_is_biased_at_lambda_1():
    """The last column is the critic's guess in place of the reward."""
    at = problem()
    critic = noisy_critic(np.random.default_rng(1), 0.2)
    guess = np.random.default_rng(2).normal(scale=0.2, size=3**6)
    truncated = critic.copy()
    truncated[:, -1] += guess
    bias, _, _ = bias_and_variance(truncated, 1.0)
    assert bias > 0.01
    assert len(at.p) == len(guess)


def test_claim_with_equal_rewards_only_reinforce_is_noisy():
    at = problem()
    reward = np.ones_like(at.reward)
    values = exact_values(reward, at.p, 3, 6)
    mean, variance = moments(at.p, at.scores, page.every_token(reward))
    np.testing.assert_allclose(mean, 0, atol=1e-12)
    assert variance > 1
    for lam in (0.0, 1.0):
        np.testing.assert_allclose(weights(values, lam), 0, atol=1e-12)


def test_compatible_critic_is_the_weighted_least_squares():
    at = problem()
    advantage = weights(at.values, 0.0)
    got = compatible(at.p, at.scores, advantage)
    fisher = np.einsum("n,ntd,nte->de", at.p, at.scores, at.scores)
    slope = np.einsum("n,nt,ntd->d", at.p, advantage, at.scores)
    w = np.linalg.pinv(fisher) @ slope
    np.testing.assert_allclose(got, at.scores @ w, atol=1e-10)
    np.testing.assert_allclose(slope, gradient(), atol=1e-12)


def test_claim_the_compatible_critic_is_wrong_and_its_gradient_is_exact():
    at = problem()
    advantage = weights(at.values, 0.0)
    critic = compatible(at.p, at.scores, advantage)
    mean, variance = moments(at.p, at.scores, critic)
    np.testing.assert_allclose(mean, gradient(), atol=1e-12)
    left = at.p @ ((advantage - critic) ** 2).sum(1)
    fit = 1 - left / (at.p @ (advantage**2).sum(1))
    assert fit == pytest.approx(0.66, abs=0.005)
    assert variance == pytest.approx(0.074, abs=5e-4)


def test_claim_a_compatible_fit_to_other_visits_is_biased():
    at = problem()
    advantage = weights(at.values, 0.0)
    uniform = np.full_like(at.p, 1 / len(at.p))
    critic = compatible(uniform, at.scores, advantage)
    mean, _ = moments(at.p, at.scores, critic)
    size = np.linalg.norm(gradient())
    assert np.linalg.norm(mean - gradient()) / size > 0.01


def test_pathwise_is_the_derivative_through_the_critic():
    """Loss f(one-hot + p - stop(p)), differentiated numerically."""
    logits = np.log(POLICY)
    h = 1e-6

    def soft(z):
        e = np.exp(z)
        return e / e.sum()

    def critic(x, bend):
        return Q_VALUES @ x + bend * (x @ x - 1)

    for bend in (0.0, 0.5, -0.5):
        expected = np.zeros(3)
        for a, one_hot in enumerate(np.eye(3)):
            for d in range(3):
                up, down = logits.copy(), logits.copy()
                up[d] += h
                down[d] -= h
                high = critic(one_hot + soft(up) - POLICY, bend)
                low = critic(one_hot + soft(down) - POLICY, bend)
                expected[d] += POLICY[a] * (high - low) / (2 * h)
        got = pathwise(POLICY, Q_VALUES, bend)
        np.testing.assert_allclose(got, expected, atol=1e-8)
        for one_hot, q in zip(np.eye(3), Q_VALUES, strict=True):
            assert critic(one_hot, bend) == pytest.approx(q)


def test_claim_the_bend_alone_turns_the_gradient():
    exact = pathwise(POLICY, Q_VALUES, 0.0)
    h = 1e-6
    logits = np.log(POLICY)
    for d in range(3):
        e = np.exp(logits + h * np.eye(3)[d])
        slope = (e / e.sum() @ Q_VALUES - POLICY @ Q_VALUES) / h
        assert exact[d] == pytest.approx(slope, abs=1e-5)
    bent = pathwise(POLICY, Q_VALUES, 0.5)
    assert np.argmax(Q_VALUES) == 1
    assert exact[1] == pytest.approx(0.045, abs=5e-4)
    assert bent[1] == pytest.approx(-0.003, abs=5e-4)
    assert exact @ bent < 0


def test_p_best_by_sampling():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(20_000, 50))
    noise[:, 0] += 2.0
    share = (noise.argmax(1) == 0).mean()
    assert p_best(50, 2.0, "argmax") == pytest.approx(share, abs=0.01)


def test_p_best_of_two_is_the_normal_law():
    from statistics import NormalDist

    expected = NormalDist().cdf(3 / np.sqrt(2))
    assert p_best(2, 3.0, "argmax") == pytest.approx(expected, abs=1e-6)


def test_p_best_of_the_prior_by_sampling():
    rng = np.random.default_rng(0)
    critic = rng.normal(size=(400, 5_000))
    critic[:, 0] += 3.0
    prior = np.full(5_000, 0.5 / 4_999)
    prior[0] = 0.5
    weight = prior * np.exp(critic)
    share = (weight[:, 0] / weight.sum(1)).mean()
    assert p_best(5_000, 3.0, "prior") == pytest.approx(share, abs=0.015)


def test_claim_argmax_over_150_000_tokens():
    assert p_best(2, 3.0, "argmax") == pytest.approx(0.98, abs=0.005)
    assert p_best(150_000, 3.0, "argmax") == pytest.approx(0.08, abs=0.005)
    assert p_best(150_000, 5.0, "argmax") == pytest.approx(0.70, abs=0.005)
    assert p_best(150_000, 3.0, "prior") == pytest.approx(0.89, abs=0.006)


def corridor(right):
    """Value of the first of three cells, right = P(right) in each."""
    left = 1 - right
    a = np.array(
        [
            [1 - left, -right, 0],
            [-right, 1, -left],  # the second cell swaps the two actions
            [0, -left, 1],
        ]
    )
    return np.linalg.solve(a, -np.ones(3))[0]


def test_claim_the_short_corridor():
    best = 2 - np.sqrt(2)
    assert best == pytest.approx(0.586, abs=5e-4)
    grid = np.linspace(0.01, 0.99, 981)
    values = [corridor(x) for x in grid]
    assert grid[int(np.argmax(values))] == pytest.approx(best, abs=1e-3)
    assert corridor(best) == pytest.approx(-11.66, abs=5e-3)
    assert corridor(0.95) == pytest.approx(-44.2, abs=0.05)
    assert corridor(0.05) == pytest.approx(-82.1, abs=0.05)
    assert corridor(1e-6) < -1e6 and corridor(1 - 1e-6) < -1e6


def crossings(seeds):
    """Responses from which lambda = 1, then REINFORCE, beat lambda = 0."""
    size = np.linalg.norm(gradient())
    reinforce = 2.2103
    for seed in seeds:
        wrong = noisy_critic(np.random.default_rng(seed), page.ERROR)
        bias, _, low = bias_and_variance(wrong, 0.0)
        high = bias_and_variance(wrong, 1.0)[2]
        floor = (bias * size) ** 2
        yield bias, (high - low) / floor, (reinforce - low) / floor


@pytest.mark.parametrize("seeds", [page.SEEDS, range(100, 110)])
def test_claim_reaching_the_floor_takes_more_responses_to_beat(seeds):
    biases, baseline, reinforce = zip(*crossings(seeds), strict=True)
    assert np.mean(biases) == pytest.approx(0.4, abs=0.06)
    assert 1 < min(baseline) and max(baseline) < 100
    assert max(baseline) < max(reinforce) < 500


def test_claim_a_noisy_critic_is_unbiased_at_lambda_1_and_not_below():
    everything = [page.noisy_results(lam, range(100, 110)) for lam in (1.0, 0.95, 0.0)]
    biases = [result[0] for result in everything]
    assert max(biases[0].values) < 1e-12
    assert 0.005 < min(biases[1].values) < max(biases[1].values) < 0.05
    assert min(biases[2].values) > 0.15
    for seed, bias in zip(range(100, 110), biases[2].values, strict=True):
        critic = noisy_critic(np.random.default_rng(seed), 0.2)
        assert bias == bias_and_variance(critic, 0.0)[0]


def test_claim_memory_of_a_7b_critic_and_of_a_small_one():
    assert 16 * 7e9 == 112e9
    assert 16 * 1.5e9 == 24e9


@pytest.mark.parametrize("lam", [1.0, 0.9, 0.0])
def test_claim_with_eos_an_optimistic_critic_rewards_going_on(lam):
    """Each step: stop, or go on with probability q; four steps at most.

    The reward is 1 for an even number of steps. The critic says V + c
    before the end. One logit z, so d log q / dz = 1 - q at "go on".
    """
    q, c, longest = 0.6, 0.3, 4

    def true_value(steps):
        stop = float((steps + 1) % 2 == 0)
        go = true_value(steps + 1) if steps + 1 < longest else stop
        return (1 - q) * stop + q * go

    exact = biased = expected = 0.0
    for goes in range(longest + 1):
        steps = min(goes + 1, longest)
        p = q**goes * (1 - q if goes < longest else 1)
        reward = float(steps % 2 == 0)
        values = np.array([*map(true_value, range(steps)), reward])
        high = values + np.array([c] * steps + [0.0])
        scores = np.array([1 - q] * goes + [-q] * (goes < longest))
        exact += p * scores @ weights(values[None], lam)[0]
        biased += p * scores @ weights(high[None], lam)[0]
        ahead = np.arange(steps)[::-1]
        expected += p * scores @ (c * (1 - lam**ahead))
    assert biased - exact == pytest.approx(expected, abs=1e-12)
    if lam < 1:
        assert expected > 0.01
    else:
        assert expected == pytest.approx(0, abs=1e-12)


def test_claim_the_compatible_fit_solves_fisher_w_equals_the_gradient():
    at = problem()
    critic = compatible(at.p, at.scores, weights(at.values, 0.0))
    fisher = np.einsum("n,ntd,nte->de", at.p, at.scores, at.scores)
    natural = np.linalg.pinv(fisher) @ gradient()
    np.testing.assert_allclose(critic, at.scores @ natural, atol=1e-10)
    for t in range(6):
        mean = page.given_prefix(critic[:, t], at.p, 3, t)
        np.testing.assert_allclose(mean, 0, atol=1e-12)


def test_claim_lambda_095_over_8000_tokens_keeps_nothing_of_the_reward():
    assert 8000 * log(0.95) < -400
    assert 0.95**100 == pytest.approx(0.006, abs=5e-4)


def cells(table):
    return [
        [c.strip().replace("−", "-") for c in line.split("|")[1:-1]]
        for line in table.splitlines()[2:]
    ]


def test_table_of_variances():
    rows = cells(page.table_variance())
    names = [r[0] for r in rows]
    assert names[3] == "R - mean of 7 others"
    assert [r[1] for r in rows] == ["no"] * 4 + ["yes"] * 4
    assert float(rows[3][2]) == pytest.approx(group_variance(8), abs=5e-4)
    assert float(rows[6][2]) == pytest.approx(0.119, abs=5e-4)
    assert float(rows[7][2]) == pytest.approx(all_tokens_variance(), abs=5e-4)


def squared_of_baseline(length):
    """sum_t E[(R - V(s_t))^2] / Var(R) by a plain loop over responses."""
    total, known = 0.0, {}
    for y in product(range(3), repeat=length):
        for t in range(length):
            if y[:t] not in known:
                known[y[:t]] = value(y[:t], length)
            total += chance(y) * ((sum(y) >= length) - known[y[:t]]) ** 2
    return total / (known[()] * (1 - known[()]))


def test_table_of_lengths():
    rows = cells(page.table_length())
    assert [r[0] for r in rows] == ["1", "2", "4", "8"]
    for row in rows:
        mean, base, exact, parity, last = (float(x) for x in row[1:])
        assert (mean, exact, parity, last) == (
            float(row[0]),
            1.0,
            float(row[0]),
            1.0,
        )
        if mean <= 4:
            loop = squared_of_baseline(int(mean))
            assert base == pytest.approx(loop, abs=5e-3)
        assert 1.0 <= base <= mean and (base < mean or mean == 1.0)


def by_loop(critic_of, lam):
    """Relative bias and variance in per cent and digits, by a plain loop."""

    def weight(y, t):
        seen = [*(critic_of(v(y[:k])) for k in range(6)), float(sum(y) >= 6)]
        steps = [b - a for a, b in zip(seen, seen[1:], strict=False)]
        return sum(lam ** (k - t) * steps[k] for k in range(t, 6))

    mean = np.zeros(12)
    for y in product(range(3), repeat=6):
        g = np.zeros((4, 3))
        for t, a in enumerate(y):
            last = y[t - 1] if t else 3
            g[last, a] += weight(y, t)
            g[last] -= weight(y, t) * np.array([step(last, k) for k in range(3)])
        mean += chance(y) * g.ravel()
    size = np.linalg.norm(gradient())
    bias = np.linalg.norm(mean - gradient()) / size
    return f"{100 * bias:.0f} %, {plain_variance(weight):.2f}"


def test_table_of_wrong_critics():
    rows = cells(page.table_wrong())
    assert [r[0] for r in rows] == ["exact", "V + noise", "constant ½", "1 - V"]
    for row, critic_of in (
        (rows[0], lambda x: x),
        (rows[2], lambda x: 0.5),
        (rows[3], lambda x: 1 - x),
    ):
        for cell, lam in zip(row[1:4], (1.0, 0.95, 0.0), strict=True):
            assert cell == by_loop(critic_of, lam)
    assert [r[4] for r in rows] == ["1.00", "0.93 ± 0.05", "0.95", "-0.97"]
    assert rows[1][1:4] == [
        "0 %, 0.74 ± 0.07",
        "2 ± 1 %, 0.63 ± 0.07",
        "39 ± 11 %, 0.40 ± 0.13",
    ]


def test_figure_of_errors():
    figure = page.figure_error()
    axes = figure.axes[0]
    names = [t.get_text() for t in axes.texts]
    assert names == [
        "REINFORCE",
        "exact Q − V",
        "wrong V, λ = 1",
        "wrong V, λ = 0",
    ]
    ends = [line.get_ydata()[-1] for line in axes.lines]
    starts = [line.get_ydata()[0] for line in axes.lines]
    size = np.linalg.norm(gradient())
    assert starts[0] == pytest.approx(np.sqrt(2.2103) / size, rel=1e-3)
    floors, variances = [], []
    for seed in page.SEEDS:
        critic = noisy_critic(np.random.default_rng(seed), page.ERROR)
        bias, _, _ = bias_and_variance(critic, 0.0)
        floors.append(bias)
        variances.append(bias_and_variance(critic, 1.0)[2])
    assert ends[3] == pytest.approx(np.mean(floors), abs=2e-3)
    start = np.mean(np.sqrt(variances)) / size
    assert starts[2] == pytest.approx(start, rel=1e-6)
    for band, k in zip(axes.collections, (2, 3), strict=True):
        corners = band.get_paths()[0].vertices
        edge = corners[corners[:, 0] == corners[:, 0].max(), 1]
        lam = 1.0 if k == 2 else 0.0
        draws = []
        for seed in page.SEEDS:
            critic = noisy_critic(np.random.default_rng(seed), page.ERROR)
            bias, _, variance = bias_and_variance(critic, lam)
            draws.append(np.sqrt(bias**2 + variance / 10_000 / size**2))
        sd = np.std(draws, ddof=1)
        assert edge.min() == pytest.approx(ends[k] - sd)
        assert edge.max() == pytest.approx(ends[k] + sd)
    assert starts[3] < starts[2] < starts[0]
    assert ends[1] < ends[2] < ends[0] < ends[3]
    assert axes.get_xlabel() == "responses averaged"


def test_figure_of_the_argmax():
    axes = page.figure_argmax().axes[0]
    three, five, prior = (line.get_ydata() for line in axes.lines)
    assert three[0] == pytest.approx(p_best(2, 3.0, "argmax"))
    assert three[-1] == pytest.approx(p_best(150_000, 3.0, "argmax"))
    assert five[-1] == pytest.approx(p_best(150_000, 5.0, "argmax"))
    assert np.ptp(prior) == 0
    assert (np.diff(three) < 0).all()
    assert axes.get_ylabel() == "P(best token)"


@pytest.mark.parametrize("lam", [0.95, 0.5, 0.0])
def test_claim_the_bias_is_the_error_ahead_in_geometric_weights(lam):
    at, critic = problem(), any_critic(4)
    error = critic - at.values
    ahead = np.zeros((len(at.p), 6))
    for t in range(6):
        for k in range(1, 6 - t):
            share = (1 - lam) * lam ** (k - 1)
            ahead[:, t] += share * error[:, t + k]
    mean = moments(at.p, at.scores, weights(critic, lam))[0]
    extra = moments(at.p, at.scores, ahead)[0]
    np.testing.assert_allclose(mean - gradient(), extra, atol=1e-12)
