"""The importance ratio: by loops, by finite differences, by enumeration."""

from itertools import product
from math import comb, exp, log, prod

import numpy as np
import pytest

from snippets.policy import importance_ratio as page
from snippets.policy.importance_ratio import (
    MU,
    PI,
    World,
    by_length,
    by_reward,
    capped,
    decoupled,
    drift,
    gradient,
    log_policy,
    masked,
    moments,
    of_answers,
    path,
    ratios,
    reward_rules,
    true_gradient,
    truncated,
    world,
)


@pytest.fixture(scope="module")
def small() -> World:
    return world(np.random.default_rng(7), length=3, prompts=2, width=6)


def moved(w: World, size: float, seed: int = 3) -> np.ndarray:
    direction = np.random.default_rng(seed).normal(size=w.weights.shape)
    return w.weights + size * direction


def answer_loop(w: World, weights: np.ndarray, scored: bool = False):
    """(prompt, answer, token probabilities, scores) by explicit softmax."""
    vocab = w.weights.shape[1]
    for p in range(len(w.rewards)):
        known = {}
        for prefix, feature in enumerate(w.features[p]):
            z = np.exp(feature @ weights)
            known[prefix] = z / z.sum()
        for n, answer in enumerate(w.answers):
            prefix, probs, scores = 0, [], []
            for token in answer:
                q = known[prefix]
                probs.append(q[token])
                if scored:
                    feature = w.features[p, prefix]
                    push = np.eye(vocab)[token] - q
                    scores.append(feature[:, None] * push)
                prefix = vocab * prefix + 1 + token
            yield p, n, np.array(probs), scores


def slow_gradient(w, mu, now, weigh, advantage):
    """E_mu sum_t weigh(r)_t A score_t, without any shared array code."""
    total = np.zeros_like(now)
    pairs = zip(answer_loop(w, mu), answer_loop(w, now, True), strict=True)
    for (p, n, old, _), (_, _, new, scores) in pairs:
        weight = weigh(new / old)
        a = advantage[p, n]
        for t in range(len(old)):
            total += prod(old) * weight[t] * a * scores[t] / len(w.rewards)
    return total


def value(w: World, weights: np.ndarray) -> float:
    every = ((p, n, prod(q)) for p, n, q, _ in answer_loop(w, weights))
    return sum(q * w.rewards[p, n] for p, n, q in every) / len(w.rewards)


def advantages(w: World, weights: np.ndarray) -> np.ndarray:
    mean = np.zeros(len(w.rewards))
    for p, n, q, _ in answer_loop(w, weights):
        mean[p] += prod(q) * w.rewards[p, n]
    return w.rewards - mean[:, None]


def finite_differences(f, at, step=1e-5):
    slope = np.zeros_like(at)
    for i in np.ndindex(at.shape):
        up, down = at.copy(), at.copy()
        up[i] += step
        down[i] -= step
        slope[i] = (f(up) - f(down)) / (2 * step)
    return slope


WEIGHTS = {
    "none": lambda r: np.ones(len(r)),
    "token": lambda r: r,
    "geometric": lambda r: np.full(len(r), exp(np.log(r).mean())),
    "prefix": lambda r: np.array([prod(r[: t + 1]) for t in range(len(r))]),
    "product": lambda r: np.full(len(r), prod(r)),
}


# --- The weights -----------------------------------------------------------


def test_ratios_by_loop_with_mask():
    rng = np.random.default_rng(0)
    new, old = np.log(rng.dirichlet(np.ones(5), size=(2, 3)))
    mask = np.array([[1, 1, 0, 1, 1], [0, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    got = ratios(new, old, mask)
    for row in range(3):
        r = [exp(new[row, t] - old[row, t]) if mask[row, t] else 1.0 for t in range(5)]
        n = mask[row].sum()
        np.testing.assert_allclose(got["token"][row], r)
        np.testing.assert_allclose(got["product"][row], [prod(r)] * 5)
        np.testing.assert_allclose(got["geometric"][row], [prod(r) ** (1 / n)] * 5)
        np.testing.assert_allclose(got["prefix"][row], np.cumprod(r))
    assert (got["none"] == 1).all()


def test_claim_the_ratio_is_new_over_sampling():
    got = ratios(np.log([[0.6]]), np.log([[0.3]]), np.ones((1, 1)))
    for name in ("token", "geometric", "prefix", "product"):
        assert got[name].item() == pytest.approx(2.0)


def test_claim_padding_with_infinite_log_probability_does_no_harm():
    new, old = np.array([[-1.0, -2.0]]), np.array([[-1.5, -np.inf]])
    got = ratios(new, old, np.array([[1, 0]]))
    np.testing.assert_allclose(got["product"], exp(0.5))
    np.testing.assert_allclose(got["geometric"], exp(0.5))


def test_claim_four_log_ratios():
    d = np.array([[0.5, -0.3, 0.1, 0.0]])
    got = ratios(d, 0 * d, np.ones_like(d))
    np.testing.assert_allclose(got["token"], [[1.6487, 0.7408, 1.1052, 1]], atol=1e-4)
    np.testing.assert_allclose(got["geometric"], 1.0779, atol=1e-4)
    np.testing.assert_allclose(got["product"], 1.3499, atol=1e-4)


def test_claim_rare_tokens_have_large_ratios():
    got = ratios(np.log([[1e-3]]), np.log([[1e-4]]), np.ones((1, 1)))
    assert got["token"].item() == pytest.approx(10)
    assert 1e-3 - 1e-4 == pytest.approx(9e-4)


def test_claim_the_reference_in_the_denominator_is_wrong_at_the_first_step():
    """pi = mu, so the weight must be 1; against ref it is not, on average
    it has mean 1 only under ref's own samples."""
    mu, ref = np.array([0.7, 0.2, 0.1]), np.array([0.4, 0.4, 0.2])
    wrong = mu / ref
    assert wrong.tolist() == pytest.approx([1.75, 0.5, 0.5])
    assert (mu * wrong).sum() == pytest.approx(1.375)
    assert (ref * wrong).sum() == pytest.approx(1)


# --- Gradients -------------------------------------------------------------


def test_true_gradient_is_the_slope_of_the_value(small):
    slope = finite_differences(lambda x: value(small, x), small.weights)
    np.testing.assert_allclose(true_gradient(small, small.weights), slope, atol=1e-8)


@pytest.mark.parametrize("name", WEIGHTS)
def test_gradient_of_each_weight_by_loop(small, name):
    now = moved(small, 0.3)
    sampler = of_answers(small, log_policy(small, small.weights))
    pi = log_policy(small, now)
    tokens = of_answers(small, pi)
    weight = ratios(tokens, sampler, np.ones(tokens.shape))[name]
    got = gradient(small, pi, sampler, weight)
    a = advantages(small, small.weights)
    expected = slow_gradient(small, small.weights, now, WEIGHTS[name], a)
    np.testing.assert_allclose(got, expected, atol=1e-12)


@pytest.mark.parametrize("name, times", [("token", 1), ("geometric", 3)])
def test_weights_are_the_gradients_of_their_surrogates(small, name, times):
    """sum_t r_t A for tokens; T s A for the geometric mean."""
    now, a = moved(small, 0.3), advantages(small, small.weights)

    def surrogate(x):
        total = 0.0
        pairs = zip(
            answer_loop(small, small.weights), answer_loop(small, x), strict=True
        )
        for (p, n, old, _), (_, _, new, _) in pairs:
            r = new / old
            term = r.sum() if name == "token" else times * prod(r) ** (1 / 3)
            total += prod(old) * a[p, n] * term / len(small.rewards)
        return total

    expected = slow_gradient(small, small.weights, now, WEIGHTS[name], a)
    slope = finite_differences(surrogate, now)
    np.testing.assert_allclose(slope, expected, atol=1e-8)


def test_claim_the_product_is_exact_and_the_prefix_is_not(small):
    now, a = moved(small, 0.3), advantages(small, small.weights)
    truth = true_gradient(small, now)
    full = slow_gradient(small, small.weights, now, WEIGHTS["product"], a)
    np.testing.assert_allclose(full, truth, atol=1e-12)
    prefix = slow_gradient(small, small.weights, now, WEIGHTS["prefix"], a)
    assert np.linalg.norm(prefix - truth) > 0.05 * np.linalg.norm(truth)


def test_claim_the_prefix_is_exact_with_the_current_policys_advantage(small):
    """Replace the reward by its mean over futures drawn from pi."""
    now, length = moved(small, 0.3), 3
    total = np.zeros_like(now)
    new = {(p, n): (q, s) for p, n, q, s in answer_loop(small, now, True)}
    old = {(p, n): q for p, n, q, _ in answer_loop(small, small.weights)}
    answers = [tuple(x) for x in small.answers]
    for (p, n), (q, scores) in new.items():
        for t in range(length):
            same = [
                m for m, x in enumerate(answers) if x[: t + 1] == answers[n][: t + 1]
            ]
            future = sum(
                prod(new[p, m][0][t + 1 :]) * small.rewards[p, m] for m in same
            )
            weight = prod(q[: t + 1]) / prod(old[p, n][: t + 1])
            total += prod(old[p, n]) * weight * future * scores[t] / 2
    np.testing.assert_allclose(total, true_gradient(small, now), atol=1e-12)


def test_claim_equal_rewards_give_no_gradient(small):
    same = small._replace(rewards=np.ones_like(small.rewards))
    now = moved(small, 0.3)
    sampler = of_answers(same, log_policy(same, same.weights))
    pi = log_policy(same, now)
    weight = np.exp(of_answers(same, pi) - sampler)
    np.testing.assert_allclose(gradient(same, pi, sampler, weight), 0, atol=1e-14)


def test_claim_a_constant_advantage_cancels_except_for_none_and_geometric(small):
    now, one = moved(small, 0.3), np.ones_like(small.rewards)
    length = {
        name: np.linalg.norm(slow_gradient(small, small.weights, now, weigh, one))
        for name, weigh in WEIGHTS.items()
    }
    for name in ("token", "prefix", "product"):
        assert length[name] < 1e-12
    assert length["none"] > 0.1 and length["geometric"] > 0.05


def test_claim_gradient_error_halves_and_value_error_quarters(small):
    """Drift d and d / 2: token gradient, first order; value, second."""
    a = advantages(small, small.weights)
    start = value(small, small.weights)
    found = []
    for size in (0.02, 0.01):
        now = moved(small, size)
        truth = true_gradient(small, now)
        by = {
            name: np.linalg.norm(
                slow_gradient(small, small.weights, now, weigh, a) - truth
            )
            for name, weigh in WEIGHTS.items()
        }
        gain = 0.0
        pairs = zip(
            answer_loop(small, small.weights), answer_loop(small, now), strict=True
        )
        for (p, n, old, _), (_, _, new, _) in pairs:
            gain += prod(old) * a[p, n] * (new / old - 1).sum() / 2
        by["value"] = abs(gain - (value(small, now) - start))
        found.append(by)
    for name in ("none", "token", "geometric", "prefix"):
        assert found[0][name] / found[1][name] == pytest.approx(2, rel=0.1)
    assert found[0]["value"] / found[1]["value"] == pytest.approx(4, rel=0.1)


def test_path_climbs_and_cycles_through_the_mini_batches():
    w = world(np.random.default_rng(1), length=2)
    steps = path(w, 5)
    assert len(steps) == 6 and steps[0] is w.weights
    batches = [page.mini_batch(w, j) for j in range(5)]
    assert np.array_equal(batches[0].rewards, batches[4].rewards)
    rows = np.concatenate([b.rewards for b in batches[:4]])
    assert sorted(map(tuple, rows)) == sorted(map(tuple, w.rewards))
    for j in range(5):
        step = 0.2 * true_gradient(batches[j], steps[j])
        np.testing.assert_allclose(steps[j + 1] - steps[j], step)
    assert value(w, steps[4]) > value(w, steps[0])


def test_world_prefixes_are_a_tree():
    w = world(np.random.default_rng(0), length=3, prompts=1)
    assert w.features.shape == (1, 13, 12) and w.rewards.shape == (1, 27)
    seen = {}
    for answer, prefixes in zip(w.answers, w.prefixes, strict=True):
        for t, prefix in enumerate(prefixes):
            key = tuple(answer[:t])
            assert seen.setdefault(key, prefix) == prefix
    assert len(set(seen.values())) == len(seen) == 13


# --- Drift, as on the page -------------------------------------------------


OTHER_SEEDS = range(100, 110)


def rows(table):
    """Cells by label; "a ± b" as two numbers, "0" as an exact zero."""
    found = {}
    for line in table.splitlines()[2:]:
        label, *cells = (c.strip() for c in line.split("|")[1:-1])
        found[label] = [
            [float(x) for x in c.rstrip(" %").replace("−", "-").split("±")]
            for c in cells
        ]
    return found


def test_claim_first_update_is_exact_for_every_weight():
    found = drift(100, 0, 0)
    for name in (*WEIGHTS, "recomputed", "chi2"):
        assert found[name] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("stale, engine", [(1, 0), (4, 0), (0, 0.1), (2, 0.1)])
def test_claim_the_recomputed_ratio_cannot_see_staleness_or_engine(stale, engine):
    for seed in OTHER_SEEDS:
        found = drift(seed, stale, 0, engine)
        assert found["recomputed"] == pytest.approx(found["none"])
        assert found["none"] > 0.02 and found["product"] < 1e-10


def test_claim_the_token_ratio_removes_about_a_tenth_and_in_some_worlds_none():
    share, left = [], []
    for seed in OTHER_SEEDS:
        found = [drift(seed, *case) for _, case in page.CASES[1:]]
        share.append([1 - f["token"] / f["none"] for f in found])
        left.append([f["token"] for f in found[:3]])
    assert np.mean(share) == pytest.approx(0.1, abs=0.06)
    assert np.min(share) < 0
    one, three, fifteen = np.mean(left, axis=0)
    assert one == pytest.approx(0.03, abs=0.01)
    assert three == pytest.approx(0.065, abs=0.02)
    assert fifteen == pytest.approx(0.25, abs=0.06)


def test_claim_without_staleness_the_two_token_ratios_are_one():
    found = drift(0, 0, 3)
    assert found["recomputed"] == pytest.approx(found["token"])


def test_drift_spread_by_loop():
    whole, steps = page.trained(3)
    w = page.mini_batch(whole, page.START + 3)
    old = answer_loop(w, steps[page.START - 4])
    new = answer_loop(w, steps[page.START + 3])
    second = sum(
        prod(q) * ((p / q) ** 2).mean()
        for (_, _, q, _), (_, _, p, _) in zip(old, new, strict=True)
    )
    assert drift(3, 1, 3)["chi2"] == pytest.approx(second / len(w.rewards) - 1)


def test_table_of_drift():
    """One row by loops over the ten seeds; zeros; the columns' order."""
    table = rows(page.table_drift())
    assert list(table) == [text for text, _ in page.CASES]
    assert table["first update, fresh samples"] == [[0.0]] * 6
    for cells in table.values():
        assert cells[-1] == [0.0]
    names = "none", "recomputed", "token", "geometric"
    found = [[drift(seed, 1, 0)[n] for n in names] for seed in range(10)]
    whole, steps = page.trained(3)
    w = page.mini_batch(whole, page.START)
    mu, now = steps[page.START - 4], steps[page.START]
    a, truth = advantages(w, mu), true_gradient(w, now)
    for name, error in zip(names, found[3], strict=True):
        if name != "recomputed":
            off = slow_gradient(w, mu, now, WEIGHTS[name], a) - truth
            ratio = np.linalg.norm(off) / np.linalg.norm(truth)
            assert error == pytest.approx(ratio)
    expected = np.transpose([np.mean(found, 0), np.std(found, 0, ddof=1)])
    row = table["first update, 1 version stale"][1:5]
    np.testing.assert_allclose(row, expected, atol=6e-4)
    for text, none, token in (  # the numbers when they were checked
        ("16th update (4 passes)", 0.250, 0.233),
        ("first update, engine logits ± 0.1", 0.142, 0.124),
    ):
        got = table[text][1][0], table[text][3][0]
        assert got == pytest.approx((none, token), abs=1.1e-3)
    later = table["fourth update, 4 versions stale"]
    assert later[0] == pytest.approx([0.160, 0.045], abs=1.1e-3)
    assert later[2] == pytest.approx([0.328, 0.119], abs=1.1e-3)


def test_claim_lengths():
    for seed in OTHER_SEEDS[:4]:
        for length in range(1, 6):
            f = by_length(length, seed)
            assert f["product"] < 1e-10 and f["none"] > 0.01
            assert (f["token"] < 1e-10) == (length == 1)
            left = f["geometric"] / f["none"]
            assert left == pytest.approx(1 - 1 / length, abs=0.05)
    table = rows(page.table_lengths())
    assert list(table) == list("123456")
    assert table["1"][1:] == [[0.0]] * 4
    found = [[by_length(2, seed)[n] for n in WEIGHTS] for seed in range(10)]
    w = world(np.random.default_rng(0), length=2, prompts=32)
    steps = path(w, 4)
    w = page.mini_batch(w, 4)
    a = advantages(w, steps[0])
    truth = true_gradient(w, steps[4])
    for error, weigh in zip(found[0], WEIGHTS.values(), strict=True):
        off = slow_gradient(w, steps[0], steps[4], weigh, a) - truth
        ratio = np.linalg.norm(off) / np.linalg.norm(truth)
        assert error == pytest.approx(ratio, abs=1e-9)
    expected = np.transpose([np.mean(found, 0), np.std(found, 0, ddof=1)])
    np.testing.assert_allclose(table["2"][:4], expected[:4], atol=6e-4)
    assert table["6"][3] == pytest.approx([0.024, 0.005], abs=1.1e-3)


def test_engine_noise_has_the_size_given():
    """The spread of log mu / log pi is that of the noise, centred."""
    assert page.CASES[-1][1] == (0, 0, 0.1)
    chi = [drift(0, 0, 0, engine)["chi2"] ** 0.5 for engine in (0.05, 0.1)]
    assert chi[1] / chi[0] == pytest.approx(2, rel=0.05)
    # of three near-equal symbols the ratio keeps 2/3 of the noise's variance
    assert 0.06 < chi[1] < 0.1 * (2 / 3) ** 0.5


@pytest.mark.parametrize("length", [2, 3, 4])
def test_claim_the_geometric_mean_removes_one_part_in_t_to_first_order(length):
    w = world(np.random.default_rng(5), length, prompts=2, width=6)
    now, a = moved(w, 1e-3), advantages(w, w.weights)
    truth = true_gradient(w, now)
    none, geometric = (
        slow_gradient(w, w.weights, now, WEIGHTS[n], a) - truth
        for n in ("none", "geometric")
    )
    np.testing.assert_allclose(
        geometric, (1 - 1 / length) * none, atol=0.01 * abs(none).max()
    )


def test_reward_rules_by_loop():
    w = world(np.random.default_rng(1), length=3, prompts=2)
    rules = reward_rules(w, np.random.default_rng(4))
    many = world(np.random.default_rng(1), length=2, prompts=30)
    for name, at in (("last token only", -1), ("first token only", 0)):
        hit = reward_rules(many, np.random.default_rng(4))[name] == 1
        symbols = {int(many.answers[row, at][0]) for row in hit}
        assert symbols == {0, 1, 2}  # each is wanted somewhere
    random, total, last, first = rules.values()
    assert random is w.rewards
    assert set(np.unique(last)) == set(np.unique(first)) == {0, 1}
    for p in range(2):
        wanted = {
            t: {x[t] for x, r in zip(w.answers, y[p], strict=True) if r}
            for t, y in ((2, last), (0, first))
        }
        assert len(wanted[2]) == len(wanted[0]) == 1
        for n, x in enumerate(w.answers):
            assert last[p, n] == (x[2] in wanted[2])
            assert first[p, n] == (x[0] in wanted[0])
    again = np.random.default_rng(4)
    again.integers(3, size=(2, 1))
    scores = again.normal(size=(2, 3, 3))
    for p in range(2):
        for n, x in enumerate(w.answers):
            expected = sum(scores[p, t, x[t]] for t in range(3))
            assert total[p, n] == pytest.approx(expected)


def test_claim_the_first_token_rewarded_makes_the_token_ratio_exact(small):
    w = small._replace(
        rewards=reward_rules(small, np.random.default_rng(0))["first token only"]
    )
    now, a = moved(w, 0.5), advantages(w, w.weights)
    truth = true_gradient(w, now)
    for name in ("token", "prefix", "product"):
        got = slow_gradient(w, w.weights, now, WEIGHTS[name], a)
        np.testing.assert_allclose(got, truth, atol=1e-12)
    for name in ("none", "geometric"):
        got = slow_gradient(w, w.weights, now, WEIGHTS[name], a)
        assert np.linalg.norm(got - truth) > 0.05 * np.linalg.norm(truth)


def test_claim_what_the_token_ratio_repairs_depends_on_the_reward():
    found = [by_reward(seed) for seed in OTHER_SEEDS]
    names = list(found[0])
    token = {n: np.array([f[n][0] for f in found]) for n in names}
    geometric = np.array([[f[n][1] for n in names] for f in found])
    answers, each, last, first = (token[n] for n in names)
    for x in (answers, last):
        assert x.min() < 0 and -0.05 < x.mean() < 0.25
    assert each.mean() > 0.2 > max(answers.mean(), last.mean())
    np.testing.assert_allclose(first, 1)
    assert geometric.mean(0) == pytest.approx([0.2] * 4, abs=0.07)
    table = rows(page.table_rewards())
    assert list(table) == names
    assert table["first token only"][0] == [100, 0]
    shares = [100 * by_reward(seed)[names[0]][0] for seed in range(10)]
    whole = world(np.random.default_rng(2))
    steps = path(whole, 4)
    w = page.mini_batch(whole, 4)
    a = advantages(w, steps[0])
    truth = true_gradient(w, steps[4])
    none, one = (
        np.linalg.norm(slow_gradient(w, steps[0], steps[4], WEIGHTS[n], a) - truth)
        for n in ("none", "token")
    )
    assert shares[2] == pytest.approx(100 * (1 - one / none))
    expected = np.mean(shares), np.std(shares, ddof=1)
    assert table[names[0]][0] == pytest.approx(expected, abs=0.51)


# --- Three policies --------------------------------------------------------


def by_definition(pi, prox, mu, a, clip):
    u = pi / prox
    inside = min(max(u, 1 - clip), 1 + clip)
    return prox / mu * min(u * a, inside * a)


@pytest.mark.parametrize("a", [1.0, -2.0])
@pytest.mark.parametrize("pi", [0.2, 0.26, 0.33, 0.4])
def test_decoupled_and_its_coefficient(pi, a):
    mu, prox, step = 0.2, 0.3, 1e-6
    got, c = decoupled(log(pi), log(prox), log(mu), a)
    assert got == pytest.approx(by_definition(pi, prox, mu, a, 0.2))
    up, down = (by_definition(pi * exp(h), prox, mu, a, 0.2) for h in (step, -step))
    assert c * a == pytest.approx((up - down) / (2 * step), abs=1e-5)


def test_claim_decoupled_with_prox_equal_mu_is_ppo():
    for pi in (0.1, 0.2, 0.3):
        got, _ = decoupled(log(pi), log(0.2), log(0.2), 1.0)
        assert got == pytest.approx(min(pi / 0.2, 1.2))


def test_claim_table_of_policies():
    rows = [r.split("|")[2:-1] for r in page.table_policies().splitlines()[2:]]
    got = [[float(c) for c in r] for r in rows]
    assert got == [[1.65, 1, 1.2, 0], [1.1, 1, 1.1, 1.1], [1.1, 1.5, 1.65, 1.65]]


# --- Expectation and variance ----------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 5])
def test_moments_by_enumeration(length):
    mu, pi = np.array([0.5, 0.3, 0.2]), np.array([0.6, 0.25, 0.15])
    rows = list(product(range(3), repeat=length))
    p = np.array([prod(mu[list(r)]) for r in rows])
    w = np.array([prod(pi[list(r)] / mu[list(r)]) for r in rows])
    s = w ** (1 / length)
    got = moments(mu, pi, length)
    assert (p * w).sum() == pytest.approx(1)
    assert got["product variance"] == pytest.approx((p * (w - 1) ** 2).sum())
    assert got["geometric mean"] == pytest.approx((p * s).sum())
    spread = (p * (s - (p * s).sum()) ** 2).sum()
    assert got["geometric variance"] == pytest.approx(spread)
    assert got["token variance"] == pytest.approx(0.04083, abs=1e-5)


def test_claim_limits_of_the_geometric_mean():
    """Mean to exp(-KL(mu || pi)); variance Var(log r) / T times its square."""
    r = PI / MU
    kl = -(MU * np.log(r)).sum()
    spread = (MU * (np.log(r) + kl) ** 2).sum()
    got = moments(MU, PI, 10_000)
    assert got["geometric mean"] == pytest.approx(exp(-kl), abs=1e-6)
    expected = spread / 10_000 * exp(-2 * kl)
    assert got["geometric variance"] == pytest.approx(expected, rel=1e-2)
    assert kl == pytest.approx(5.0e-4, rel=0.01)
    assert moments(MU, PI, 1)["token variance"] == pytest.approx(1e-3, rel=0.002)


def test_claim_effective_samples_of_the_larger_drift():
    chi2 = moments(np.array([0.5, 0.3, 0.2]), np.array([0.6, 0.25, 0.15]), 1)
    assert 1 / (1 + chi2["token variance"]) ** 100 == pytest.approx(0.018, abs=5e-4)


@pytest.mark.parametrize("length, cap", [(1, 1.02), (8, 1.05), (40, 1.2)])
def test_capped_by_direct_sums(length, cap):
    masked_share = mask = truncate = total = 0.0
    median = None
    for k in range(length + 1):
        p = comb(length, k) / 2**length
        w = (PI[0] / 0.5) ** k * (PI[1] / 0.5) ** (length - k)
        total += p
        if median is None and total >= 0.5 - 1e-12:
            median = w
        masked_share += p * (w > cap)
        mask += p * w * (w <= cap)
        truncate += p * min(w, cap)
    got = capped(length, cap)
    assert got["masked"] == pytest.approx(masked_share)
    assert got["mask"] == pytest.approx(mask)
    assert got["truncate"] == pytest.approx(truncate)
    assert got["median"] == pytest.approx(median)


def test_claim_growth_table():
    rows = {
        r.split("|")[1].strip(): [c.strip() for c in r.split("|")[2:-1]]
        for r in page.table_growth().splitlines()[2:]
    }
    assert rows["1,000"][:3] == ["1.31", "0.37", "0.61"]
    assert rows["1,000"][3:5] == ["0.73 (5.3 %)", "0.89"]
    assert rows["10,000"][1:5] == ["4.6e−05", "0.0068", "0.11 (2.7 %)", "0.19"]
    assert exp(-1) == pytest.approx(float(rows["1,000"][1]), abs=0.005)
    for name, row in rows.items():
        t = int(name.replace(",", ""))
        m = moments(MU, PI, t)
        assert float(row[0]) == pytest.approx(m["product variance"] ** 0.5, rel=0.01)


def test_claim_table_of_expectations():
    rows = {
        r.split("|")[1].strip(): [
            float(c.replace("−", "-")) for c in r.split("|")[2:-1]
        ]
        for r in page.table_expectations().splitlines()[2:]
    }
    p = [0.6, 0.4]
    r = [0.8 / 0.6, 0.2 / 0.4]
    weigh = {
        "none": lambda x: 1.0,
        "mean of the token ratios": lambda x: sum(r[i] for i in x) / 3,
        "geometric mean": lambda x: prod(r[i] for i in x) ** (1 / 3),
        "product": lambda x: prod(r[i] for i in x),
    }
    for name, f in weigh.items():
        every = [(prod(p[i] for i in x), f(x)) for x in product((0, 1), repeat=3)]
        mean = sum(q * w for q, w in every)
        second = sum(q * w * w for q, w in every)
        estimate = 0.6**3 * f((0, 0, 0))
        expected = [mean, max(second - mean**2, 0) ** 0.5, estimate, estimate - 0.512]
        assert rows[name] == pytest.approx(expected, abs=6e-4)


def test_claim_one_token_example():
    mu, pi = np.array([0.5, 0.3, 0.2]), np.array([0.6, 0.25, 0.15])
    r = pi / mu
    assert (mu * r).sum() == pytest.approx(1)
    assert (mu * r**2).sum() == pytest.approx(1.04083, abs=1e-5)
    assert (mu * r * [1, 0, 0]).sum() == pytest.approx(0.6)


def test_claim_the_ratio_of_a_truncated_sampler_is_the_kept_mass():
    """Support: mean ratio is the mass that the sampler could reach."""
    pi = np.array([0.5, 0.3, 0.15, 0.05])
    kept = np.array([1, 1, 0, 0])
    mu = pi * kept / 0.8
    reached = mu > 0
    r = pi[reached] / mu[reached]
    np.testing.assert_allclose(r, 0.8)
    assert (mu[reached] * r).sum() == pytest.approx(0.8)


def test_claim_temperature_left_out_of_the_log_probabilities():
    """Sampled at T = 0.5, logged at T = 1: the logged ratio is 1."""
    pi = np.array([0.6, 0.3, 0.1])
    mu = pi**2 / (pi**2).sum()
    right = pi / mu
    assert right.tolist() == pytest.approx([0.7667, 1.5333, 4.6], abs=1e-4)


# --- Gates -----------------------------------------------------------------


def test_gates_by_loop():
    r = np.array([0.1, 0.5, 0.9, 2.0, 2.1, 5.0, 5.1])
    assert truncated(r, 2.0).tolist() == [min(x, 2.0) for x in r]
    expected = [x if 0.5 <= x <= 5.0 else 0.0 for x in r]
    assert masked(r, 0.5, 5.0).tolist() == expected


def test_claim_table_of_gates():
    rows = [
        [c.strip() for c in r.split("|")[1:-1]]
        for r in page.table_gates().splitlines()[2:]
    ]
    mu, pi = (0.9, 0.09, 0.01), (0.6, 0.3, 0.1)
    r = [a / b for a, b in zip(pi, mu, strict=True)]
    for row, f in zip(
        rows,
        (
            lambda x: 1.0,
            lambda x: x,
            lambda x: min(x, 2.0),
            lambda x: x if 0.5 <= x <= 5 else 0.0,
        ),
        strict=True,
    ):
        w = [f(x) for x in r]
        mean = sum(q * x for q, x in zip(mu, w, strict=True))
        second = sum(q * x * x for q, x in zip(mu, w, strict=True))
        expected = [*w, mean, max(second - mean**2, 0) ** 0.5]
        assert [float(c) for c in row[1:6]] == pytest.approx(expected, abs=6e-3)
        counted = [float(c) for c in row[6].split(",")]
        assert counted == pytest.approx(
            [q * x for q, x in zip(mu, w, strict=True)], abs=6e-3
        )


# --- Figures ---------------------------------------------------------------


def test_figure_of_drift_shows_the_errors_in_percent():
    (axes,) = page.figure_drift().axes
    assert "updates" in axes.get_xlabel() and "%" in axes.get_ylabel()
    none, token, full = (line.get_ydata() for line in axes.lines)
    assert none[0] == token[0] == pytest.approx(0, abs=1e-9)
    assert none[-1] == pytest.approx(50, abs=3)
    assert token[-1] == pytest.approx(45, abs=3)
    np.testing.assert_allclose(full, 0, atol=1e-9)
    assert axes.lines[0].get_xdata()[2] == 8
    found = []
    for seed in range(10):
        whole, steps = page.trained(seed)
        w = page.mini_batch(whole, 8)
        mu = log_policy(w, steps[0])
        found.append(100 * page.errors(w, mu, mu, steps[8])["token"])
    a, truth = advantages(w, steps[0]), true_gradient(w, steps[8])
    off = slow_gradient(w, steps[0], steps[8], WEIGHTS["token"], a) - truth
    expected = 100 * np.linalg.norm(off) / np.linalg.norm(truth)
    assert found[-1] == pytest.approx(expected)
    assert token[2] == pytest.approx(np.mean(found))
    (top,) = axes.collections[1].get_paths()
    edge = top.vertices[np.isclose(top.vertices[:, 0], 8), 1].max()
    assert edge == pytest.approx(np.mean(found) + np.std(found, ddof=1))


def test_figure_of_growth():
    (axes,) = page.figure_growth().axes
    assert axes.get_xscale() == axes.get_yscale() == "log"
    full, token, geometric = (line.get_ydata() for line in axes.lines[:3])
    x = axes.lines[0].get_xdata()
    second = (PI**2 / MU).sum()
    np.testing.assert_allclose(full, [second**t - 1 for t in x])
    assert len(set(np.round(token, 12))) == 1
    assert geometric[0] == pytest.approx(token[0]) and geometric[-1] < token[0] / 5e3


def test_claim_bfloat16_log_probabilities_move_the_ratio_by_6_percent():
    """bf16 keeps the upper 16 bits of a float32."""
    bits = np.arange(-15.99, -8.01, 0.001, dtype=np.float32).view(np.uint32)
    kept = np.unique((bits & np.uint32(0xFFFF0000)).view(np.float32))
    step = np.diff(kept)
    assert set(step.tolist()) == {0.0625}
    assert exp(0.0625) - 1 == pytest.approx(0.0645, abs=1e-4)
    assert (exp(0.0625) - 1) / 0.2 == pytest.approx(1 / 3, abs=0.02)
