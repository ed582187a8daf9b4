"""Trust regions: by loops, finite differences, enumeration, closed forms."""

from itertools import product
from math import exp, log

import numpy as np
import pytest

from snippets.policy import trust_regions as page
from snippets.policy.trust_regions import (
    METHODS,
    PASSES,
    RULES,
    TRPO,
    Batch,
    Region,
    ascend,
    averages,
    bound,
    chain,
    fisher,
    gate,
    improved,
    lumped,
    mean_kl,
    measure,
    of,
    paths,
    policy,
    push,
    sampled,
    solve,
    stale,
    stop,
    trpo,
    world,
    worlds,
)

OTHER_SEEDS = range(100, 110)


def free_paths(seeds):
    """World, batch and path without a constraint, over all seeds."""
    for seed in seeds:
        yield from zip(worlds(seed), paths(seed, "no constraint"), strict=True)


def small(seed=0):
    rng = np.random.default_rng(seed)
    w = world(rng, s=5, v=4)
    return w, sampled(w, rng, 1.0, n=3)


def slope(f, x, h=1e-5):
    """Central differences of a scalar function of a matrix."""
    grad = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        e = np.zeros_like(x)
        e[i] = h
        grad[i] = (f(x + e) - f(x - e)) / (2 * h)
    return grad


# --- The test of one token -------------------------------------------------


def divergences(p, q):
    tv = 0.5 * sum(abs(x - y) for x, y in zip(p, q, strict=True))
    kl = sum(x * log(x / y) for x, y in zip(p, q, strict=True))
    return tv, kl


def test_lumping_every_token_is_the_exact_divergence():
    p, q = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.3, 0.5])
    assert lumped(p, q, [0, 1, 2]) == pytest.approx(divergences(p, q))
    assert lumped(p, q, [0]) == pytest.approx(divergences([0.6, 0.4], [0.2, 0.8]))


def test_claim_lumped_divergences_are_lower_bounds():
    rng = np.random.default_rng(0)
    for _ in range(200):
        p, q = rng.dirichlet(np.ones(6), 2)
        exact = lumped(p, q, list(range(6)))
        top = lumped(p, q, [0, 1, 4])
        one = lumped(p, q, [4])
        for i in (0, 1):
            assert one[i] <= top[i] + 1e-12 <= exact[i] + 2e-12
        assert one[0] == pytest.approx(abs(p[4] - q[4]))


def test_claim_the_binary_version_can_miss_everything():
    mu, pi = np.array([0.6, 0.3, 0.1]), np.array([0.3, 0.6, 0.1])
    assert lumped(mu, pi, [2]) == pytest.approx((0, 0), abs=1e-12)
    assert lumped(mu, pi, [0, 2])[0] == pytest.approx(0.3)
    assert lumped(mu, pi, [0, 1, 2])[0] == pytest.approx(0.3)


def test_claim_share_of_the_exact_tv_that_approximations_see():
    """60 % for binary, 90 % for the three likeliest and the sampled."""
    seen = {"binary": [], "top": []}
    for (w, batch), path in free_paths(OTHER_SEEDS):
        old, new = policy(w, w.weights), policy(w, path[20])
        for p, q, tokens in zip(old, new, batch.tokens, strict=True):
            d = q - p
            exact = 0.5 * abs(d).sum()
            best = set(np.argsort(-p)[:3].tolist())
            for a in tokens.tolist():
                kept = d[sorted(best | {a})]
                seen["binary"].append(abs(d[a]) / exact)
                top = 0.5 * (abs(kept).sum() + abs(kept.sum()))
                seen["top"].append(top / exact)
    assert np.mean(seen["binary"]) == pytest.approx(0.6, abs=0.05)
    assert np.mean(seen["top"]) == pytest.approx(0.90, abs=0.02)


def silent(rule, limit, pi, mu, a):
    """Sign by sign, as the papers write it."""
    if rule == "ratio":
        high, low = pi / mu > 1 + limit, pi / mu < 1 - limit
    elif rule == "tv":
        high, low = pi - mu > limit, pi - mu < -limit
    else:
        kl = mu * log(mu / pi) + (1 - mu) * log((1 - mu) / (1 - pi))
        high, low = kl > limit and pi > mu, kl > limit and pi < mu
    return (a > 0 and high) or (a < 0 and low)


@pytest.mark.parametrize("rule, limit", [r[1:] for r in RULES])
def test_gate(rule, limit):
    grid = (1e-4, 0.01, 0.2, 0.45, 0.6, 0.8, 0.97)
    for mu, pi, a in product(grid, grid, (-2.0, -1.0, 0.0, 1.0)):
        got = gate(rule, limit, np.array(pi), np.array(mu), np.array(a))
        assert got == 1 - silent(rule, limit, pi, mu, a), (mu, pi, a)


def test_a_token_exactly_at_the_bound_keeps_its_gradient():
    """As in verl and SkyRL: silent only beyond the bound."""
    for rule, limit, mu, pi in (("tv", 0.25, 0.25, 0.5), ("ratio", 0.5, 0.5, 0.75)):
        on = gate(rule, limit, np.array(pi), np.array(mu), np.array(1.0))
        off = gate(rule, limit, np.array(pi + 1e-9), np.array(mu), np.array(1.0))
        assert (on, off) == (1, 0)


def test_gate_without_rule_keeps_all():
    assert gate("none", 0, np.ones(3), np.ones(3), np.ones(3)).all()


def test_claim_examples_of_tokens():
    cases = {  # mu, pi: ratio, TV, binary KL, silent under PPO, under TV .15
        (1e-4, 1e-3): (10, 0.0009, 0.00067, True, False),
        (0.99, 0.80): (0.808, 0.19, 0.181, False, True),
        (0.5, 0.6): (1.2, 0.1, 0.0204, False, False),
    }
    for (mu, pi), (r, tv, kl, ppo, dppo) in cases.items():
        a = np.array(np.sign(pi - mu))
        got = divergences((mu, 1 - mu), (pi, 1 - pi))
        assert pi / mu == pytest.approx(r, rel=1e-3)
        assert got == pytest.approx((tv, kl), rel=0.02)
        for rule, limit, want in (("ratio", 0.2000001, ppo), ("tv", 0.15, dppo)):
            on = gate(rule, limit, np.array(pi), np.array(mu), a)
            assert (on == 0) == want


def test_stop_closed_forms():
    mu = np.array([1e-4, 0.1, 0.5, 0.76, 0.9])
    up, down = stop("ratio", 0.2, mu, True), stop("ratio", 0.2, mu, False)
    np.testing.assert_allclose(up, np.minimum(1.2 * mu, 1))
    np.testing.assert_allclose(down, 0.8 * mu)
    np.testing.assert_allclose(stop("tv", 0.15, mu, True), np.minimum(mu + 0.15, 1))
    np.testing.assert_allclose(stop("tv", 0.15, mu, False), np.maximum(mu - 0.15, 0))
    for going_up in (True, False):
        end = stop("kl", 0.05, mu[1:], going_up)
        for m, e in zip(mu[1:], end, strict=True):
            got = divergences((m, 1 - m), (e, 1 - e))[1]
            assert got == pytest.approx(0.05, rel=1e-6) and (e > m) == going_up


def test_claim_where_dppo_is_stricter_than_the_clip():
    mu = np.linspace(0.01, 0.999, 990)
    low, high = stop("ratio", 0.2, mu, False), stop("ratio", 0.2, mu, True)
    for limit, first, last in ((0.15, 0.75, 0.85), (0.2, None, None)):
        down = mu[stop("tv", limit, mu, False) > low + 1e-9]
        up = mu[stop("tv", limit, mu, True) < high - 1e-9]
        if first is None:  # the strip holds the whole wedge
            assert not len(down) and not len(up)
            continue
        assert down.min() == pytest.approx(first, abs=0.002)
        assert up.min() == pytest.approx(first, abs=0.002)
        assert up.max() == pytest.approx(last, abs=0.002)
    down = mu[stop("kl", 0.05, mu, False) > low + 1e-9]
    up = mu[stop("kl", 0.05, mu, True) < high - 1e-9]
    assert down.min() == pytest.approx(0.75, abs=0.002)
    assert up.min() == pytest.approx(0.67, abs=0.002)
    down = mu[stop("kl", 0.2, mu, False) > low + 1e-9]
    assert down.min() == pytest.approx(0.994, abs=0.002)


def test_claim_tv_never_silences_a_bad_token_below_delta():
    mu, a = np.array([0.14, 0.16]), -np.ones(2)
    on = gate("tv", 0.15, np.full(2, 1e-9), mu, a)
    assert on.tolist() == [1, 0]


# --- The world -------------------------------------------------------------


def test_policy_and_world():
    w, batch = small()
    p = policy(w, w.weights)
    assert p.shape == (5, 4) and batch.tokens.shape == (5, 3)
    for s in range(5):
        z = [w.features[s] @ w.weights[:, v] for v in range(4)]
        want = [exp(x) / sum(exp(y) for y in z) for x in z]
        np.testing.assert_allclose(p[s], want)
    assert batch.advantages.mean() == pytest.approx(0, abs=1e-12)
    assert batch.advantages.std() == pytest.approx(1)
    lengths = np.linalg.norm(world(np.random.default_rng(1)).features, axis=1)
    assert 0.5 <= lengths.min() and lengths.max() <= 8
    for seeds in (range(10), OTHER_SEEDS):
        every = [w for seed in seeds for w, _ in worlds(seed)]
        top = [policy(w, w.weights).max(1) for w in every]
        assert np.median(top) == pytest.approx(0.57, abs=0.03)


def test_advantages_estimate_the_values():
    rng = np.random.default_rng(0)
    w = world(rng, s=3, v=4)
    batch = sampled(w, rng, 0.0, n=2000)
    p = policy(w, w.weights)
    want = of(w.values, batch.tokens) - (p * w.values).sum(1, keepdims=True)
    np.testing.assert_allclose(batch.advantages * batch.scale, want - want.mean())
    for s in range(3):
        share = np.bincount(batch.tokens[s], minlength=4) / 2000
        np.testing.assert_allclose(share, p[s], atol=0.04)


def test_push_is_the_gradient_of_the_surrogate():
    w, batch = small()
    other = w.weights + 0.1 * np.random.default_rng(3).normal(size=w.weights.shape)
    mu = of(policy(w, w.weights), batch.tokens)

    def surrogate(x):
        return float((of(policy(w, x), batch.tokens) / mu * batch.advantages).mean())

    p = policy(w, other)
    got = push(w, p, batch, of(p, batch.tokens) / mu)
    np.testing.assert_allclose(got, slope(surrogate, other), atol=1e-8)


@pytest.mark.parametrize("rule, limit", [("ratio", 0.2), ("tv", 0.05)])
def test_one_step_is_the_gradient_of_the_clipped_objective(rule, limit):
    """min(r A, clip(r) A), with the clip where each rule has its edge."""
    w, batch = small(2)
    rng = np.random.default_rng(4)
    start = w.weights + rng.normal(size=w.weights.shape)
    mu = of(policy(w, w.weights), batch.tokens)
    edge = limit if rule == "ratio" else limit / mu

    def objective(x):
        r = of(policy(w, x), batch.tokens) / mu
        a = batch.advantages
        clipped = np.minimum(np.maximum(r, 1 - edge), 1 + edge)
        return float(np.minimum(r * a, clipped * a).mean())

    region = Region(rule, limit)
    end = ascend(w, batch, region, start, w.weights, w.weights, 1, step=1.0)[1]
    on = gate(rule, limit, of(policy(w, start), batch.tokens), mu, batch.advantages)
    assert 0 < on.mean() < 1
    np.testing.assert_allclose(end - start, slope(objective, start), atol=1e-7)


def test_the_penalty_is_the_gradient_of_the_mean_kl_of_the_centre():
    w, batch = small()
    silence = Batch(batch.tokens, 0 * batch.advantages, 1.0)
    start = w.weights + 0.2
    start[:, 0] -= 0.5
    centre = policy(w, w.weights)
    end = ascend(w, silence, Region(beta=2.0), start, w.weights, w.weights, 1, 1.0)
    want = -2.0 * slope(lambda x: mean_kl(centre, policy(w, x)), start)
    np.testing.assert_allclose(end[1] - start, want, atol=1e-8)
    p, q = np.array([[0.9, 0.1]]), np.array([[0.5, 0.5]])
    assert mean_kl(p, q) == pytest.approx(0.9 * log(1.8) + 0.1 * log(0.2))


def test_decoupled_is_areals_objective():
    """prox / mu min(u A, clip(u) A), u = pi / prox, by differences."""
    w, batch = small(1)
    prox = improved(w, 3)
    rng = np.random.default_rng(5)
    start = prox + 0.3 * rng.normal(size=prox.shape)
    mu, middle = (of(policy(w, x), batch.tokens) for x in (w.weights, prox))
    a = batch.advantages

    def objective(x):
        u = of(policy(w, x), batch.tokens) / middle
        inner = np.minimum(u * a, np.clip(u, 0.8, 1.2) * a)
        return float((middle / mu * inner).mean())

    region = Region("ratio", 0.2)
    end = ascend(w, batch, region, start, prox, w.weights, 1, step=1.0)[1]
    np.testing.assert_allclose(end - start, slope(objective, start), atol=1e-7)


# --- TRPO ------------------------------------------------------------------


def dense(w, p):
    """The Fisher matrix as the Hessian of the mean KL, by loops."""
    s, d, v = len(p), w.features.shape[1], p.shape[1]
    f = np.zeros((d, v, d, v))
    for x, row in zip(w.features, p, strict=True):
        h = np.diag(row) - np.outer(row, row)
        f += np.einsum("i,j,kl->ikjl", x, x, h) / s
    return f.reshape(d * v, d * v)


def test_fisher_is_the_hessian_of_the_kl():
    w, _ = small()
    old = policy(w, w.weights)
    v = np.random.default_rng(1).normal(size=w.weights.shape)
    want = slope(lambda x: mean_kl(old, policy(w, x)), w.weights + 1e-3 * v)
    np.testing.assert_allclose(fisher(w, old, v), want / 1e-3, atol=2e-2)
    np.testing.assert_allclose(
        fisher(w, old, v).ravel(), dense(w, old) @ v.ravel(), atol=1e-12
    )


def test_conjugate_gradients_solve_for_the_natural_gradient():
    w, batch = worlds(0)[0]
    p = policy(w, w.weights)
    g = push(w, p, batch, np.ones(batch.tokens.shape))
    f = dense(w, p)
    exact = np.linalg.pinv(f, rcond=1e-10) @ g.ravel()
    errors = []
    for rounds in (1, 10, 150):
        x = solve(lambda v: fisher(w, p, v), g, rounds).ravel()
        errors.append(np.linalg.norm(f @ (x - exact)) / np.linalg.norm(g))
    assert errors[0] > errors[1] > errors[2] and errors[2] < 1e-3


def test_trpo_step_has_the_right_length_and_direction():
    w, batch = worlds(0)[0]
    old = policy(w, w.weights)
    tiny = trpo(w, batch, 1e-8) - w.weights
    quadratic = 0.5 * tiny.ravel() @ dense(w, old) @ tiny.ravel()
    assert quadratic == pytest.approx(1e-8, rel=1e-9) or quadratic < 1e-8
    assert quadratic > 0.6e-8  # at most one backtracking step
    g = push(w, old, batch, np.ones(batch.tokens.shape))
    assert (tiny * g).sum() > 0


@pytest.mark.parametrize("delta", [0.001, 0.01, 0.1])
def test_trpo_obeys_the_mean_kl_and_claims_a_gain(delta):
    for w, batch in worlds(0)[:3]:
        new = trpo(w, batch, delta)
        kl = mean_kl(policy(w, w.weights), policy(w, new))
        assert 0.3 * delta < kl <= delta
        assert measure(w, batch, new, w.weights)["claimed"] > 0


def test_trpo_without_advantages_does_not_move():
    w, batch = small()
    same = trpo(w, Batch(batch.tokens, 0 * batch.advantages, 1.0), 0.01)
    assert same is w.weights


def test_claim_trpo_stays_where_it_is_if_no_step_passes(monkeypatch):
    w, batch = small()
    with monkeypatch.context() as m:  # every step is too far
        m.setattr(page, "mean_kl", lambda old, new: np.inf)
        assert trpo(w, batch, 0.01) is w.weights
    with monkeypatch.context() as m:  # every step loses
        m.setattr(page, "push", lambda *args: -push(*args))
        assert trpo(w, batch, 1e-4) is w.weights


# --- What each method bounds ----------------------------------------------


def test_measure_by_loops():
    w, batch = small()
    new = improved(w, 2)
    m = measure(w, batch, new, w.weights)
    old, now = policy(w, w.weights), policy(w, new)
    kls = [divergences(p, q)[1] for p, q in zip(old, now, strict=True)]
    tvs = [divergences(p, q)[0] for p, q in zip(old, now, strict=True)]
    assert m["kl"] == pytest.approx(np.mean(kls))
    assert m["kl_max"] == pytest.approx(max(kls))
    assert m["tv"] == pytest.approx(np.mean(tvs))
    assert m["tv_max"] == pytest.approx(max(tvs))
    ratios, claimed = [], []
    for s in range(5):
        for t, a in zip(batch.tokens[s], batch.advantages[s], strict=True):
            ratios.append(now[s, t] / old[s, t])
            claimed.append((ratios[-1] - 1) * a * batch.scale)
    assert m["claimed"] == pytest.approx(np.mean(claimed))
    assert m["ratio"] == pytest.approx(max(ratios))
    assert m["out"] == pytest.approx(np.mean([abs(r - 1) > 0.2 for r in ratios]))
    gain = sum(now[s] @ w.values[s] - old[s] @ w.values[s] for s in range(5)) / 5
    assert m["gain"] == pytest.approx(gain) and gain > 0
    # another centre: the weight still divides by the policy that sampled
    middle = policy(w, improved(w, 1))
    claimed = [
        (now[s, t] - middle[s, t]) / old[s, t] * a * batch.scale
        for s in range(5)
        for t, a in zip(batch.tokens[s], batch.advantages[s], strict=True)
    ]
    m = measure(w, batch, new, improved(w, 1))
    assert m["claimed"] == pytest.approx(np.mean(claimed))


def rows(table):
    lines = (line.split("|")[1:-1] for line in table.splitlines()[2:])
    return {c[0].strip(): [x.strip() for x in c[1:]] for c in lines}


def estimate(cell):
    """Mean and spread of a "a ± b" cell."""
    return [float(x) for x in cell.replace("−", "-").rstrip(" %").split("±")]


BOUNDS = {  # claimed, gain, per cent outside, ratio, KL, largest KL, largest TV
    "no constraint": (1.12, 0.067, 24, 38.1, 0.120, 2.31, 0.74),
    "PPO clip, ε = 0.2": (0.16, 0.026, 14, 1.7, 0.009, 0.09, 0.18),
    "no clip, stop at KL 0.015": (0.25, 0.029, 10, 5.3, 0.016, 0.36, 0.37),
    "KL penalty, β = 3": (0.79, 0.030, 10, 31.2, 0.020, 0.54, 0.34),
    "DPPO-TV, δ = 0.15": (0.44, 0.040, 19, 12.2, 0.024, 0.28, 0.31),
    "DPPO-TV, δ = 0.2": (0.49, 0.044, 21, 11.8, 0.031, 0.37, 0.36),
    "DPPO-KL, δ = 0.05": (0.31, 0.038, 18, 4.9, 0.020, 0.21, 0.28),
    "TRPO, δ = 0.01": (0.30, 0.027, 12, 4.5, 0.008, 0.06, 0.12),
}


def test_table_of_bounds():
    table = rows(page.table_bounds())
    assert list(table) == list(BOUNDS) == [*METHODS, TRPO]
    steps = 0.011, 0.0011, 1.1, 0.11, 0.0011, 0.011, 0.011
    for name, cells in table.items():
        for cell, expected, step in zip(cells, BOUNDS[name], steps, strict=True):
            assert estimate(cell)[0] == pytest.approx(expected, abs=step)
    assert estimate(table["PPO clip, ε = 0.2"][1])[1] == pytest.approx(0.005, abs=1e-3)


def test_claims_on_what_stayed_bounded_on_other_seeds():
    """Every seed of ten that the page did not use; gains on average."""
    names = "no constraint", "PPO clip, ε = 0.2", "DPPO-TV, δ = 0.15", TRPO
    end = {n: [averages(seed, n) for seed in OTHER_SEEDS] for n in names}
    free, ppo, tv, one = (end[n] for n in names)
    claims = [m["claimed"] / m["gain"] for m in free]
    assert 4 < min(claims) and max(claims) < 57
    assert np.mean([m["ratio"] for m in ppo]) == pytest.approx(1.7, abs=0.15)
    assert all(m["ratio"] > 1.25 for m in ppo)
    assert np.mean([m["out"] for m in ppo]) == pytest.approx(0.14, abs=0.02)
    assert np.mean([m["tv_max"] for m in ppo]) == pytest.approx(0.18, abs=0.02)
    assert all(m["tv_max"] > 0.18 and m["ratio"] > 2 for m in tv)
    assert np.mean([m["tv_max"] for m in tv]) == pytest.approx(0.3, abs=0.03)
    assert max(m["ratio"] for m in tv) > 10
    assert all(m["kl"] <= 0.01 for m in one)
    worst = [averages(s, TRPO)["kl_max"] for s in (*OTHER_SEEDS, 0, 502, 504)]
    assert all(0.04 < x < 0.11 for x in worst)
    gain = {n: np.mean([m["gain"] for m in x]) for n, x in end.items()}
    assert gain[names[0]] > gain[names[2]] > gain[names[1]]


def test_claim_the_order_of_clip_and_penalty_changes_with_the_seed():
    clip, soft = "PPO clip, ε = 0.2", "KL penalty, β = 3"
    wins = [averages(s, clip)["gain"] > averages(s, soft)["gain"] for s in range(10)]
    assert 2 < sum(wins) < 9


def test_claim_each_world_obeys_trpo_and_the_penalty():
    for seed in range(10):
        for (w, batch), one, soft in zip(
            worlds(seed),
            paths(seed, TRPO),
            paths(seed, "KL penalty, β = 3"),
            strict=True,
        ):
            assert measure(w, batch, one[-1], w.weights)["kl"] <= 0.01
            m = measure(w, batch, soft[-1], w.weights)
            assert m["kl"] <= m["claimed"] / batch.scale / 3  # gain - beta KL > 0


def test_early_stopping_overshoots_by_one_step():
    """In KL(old || new); the reverse KL would stop elsewhere."""
    for seed in range(2):
        stops = paths(seed, "no clip, stop at KL 0.015")
        for (w, _), path in zip(worlds(seed), stops, strict=True):
            old = policy(w, w.weights)
            stopped = len(path) < PASSES + 1
            assert (mean_kl(old, policy(w, path[-1])) > 0.015) == stopped
            assert mean_kl(old, policy(w, path[-2])) <= 0.015


def test_claim_one_step_is_never_clipped():
    """A single update from the centre: every gate is open, any length."""
    w, batch = worlds(0)[0]
    for region in METHODS.values():
        args = (w, batch, region, w.weights, w.weights, w.weights, 1, 3.0)
        free = ascend(*args[:2], Region(), *args[3:])
        np.testing.assert_allclose(ascend(*args)[1], free[1])


def test_table_of_silenced_tokens():
    table = rows(page.table_silenced())
    names = [n for n, *_ in RULES[:4]]
    rare = dict(zip(names, table["0 to 0.05"][1:], strict=True))
    assert rare["PPO, ε = 0.2"] == "10.7 ± 3.4 %"
    assert rare["DPPO-TV, δ = 0.15"] == "0.6 ± 0.8 %"
    assert table["0.2 to 0.5"] == [
        "0.044 ± 0.007",
        "13.7 ± 3.4 %",
        "6.7 ± 1.4 %",
        "4.5 ± 1.9 %",
        "6.7 ± 1.5 %",
    ]
    found = {(low, rule): [] for low in (0, 0.5) for _, rule, _ in RULES[:4]}
    limits = {"ratio": 0.2, "tv": 0.15, "kl": 0.05}
    moved = []
    for (w, batch), path in free_paths([104]):
        old, new = policy(w, w.weights), policy(w, path[20])
        for s, (tokens, adv) in enumerate(
            zip(batch.tokens, batch.advantages, strict=True)
        ):
            for t, a in zip(tokens, adv, strict=True):
                mu, pi = old[s, t], new[s, t]
                for low, high in ((0, 0.05), (0.5, 0.8)):
                    if low < mu <= high:
                        for rule, limit in limits.items():
                            off = silent(rule, limit, pi, mu, a)
                            found[low, rule].append(off)
                if 0 < mu <= 0.05:
                    moved.append(abs(pi - mu))
    got = page.silenced(104)
    assert got[0] == pytest.approx(np.mean(moved))
    for at, key in (
        (1, (0, "ratio")),
        (2, (0, "tv")),
        (4, (0, "kl")),
        (16, (0.5, "ratio")),
        (17, (0.5, "tv")),
        (19, (0.5, "kl")),
    ):
        assert got[at] == pytest.approx(100 * np.mean(found[key]))
    for seed in OTHER_SEEDS:
        _, ppo, tv, *_ = page.silenced(seed)
        assert ppo > 3 > 2 > tv


def test_table_of_stops():
    table = page.table_stops().splitlines()[2:]
    got = [[c.strip() for c in x.split("|")[1:-1]] for x in table]
    assert (
        got[0]
        == ["PPO, ε = 0.2", "up", "0.00012", "0.012", "0.120", "0.600"] + ["never"] * 2
    )
    assert got[6][2:] == ["never", "never", "never", "0.350", "0.750", "0.840"]
    assert got[8][2:4] == ["never", "2.5e−05"] and got[9][6] == "0.622"


# --- Stale samples ---------------------------------------------------------


def test_improved_follows_the_true_gradient():
    w, _ = small()

    def value(x):
        return float((policy(w, x) * w.values).sum(1).mean())

    got = improved(w, 1, 1.0) - w.weights
    np.testing.assert_allclose(got, slope(value, w.weights), atol=1e-8)


def test_claim_a_stale_centre_pulls_the_policy_back():
    """On seeds of the page and on others, the same signs each time."""
    free, ppo, plain, weighted, dppo, _ = page.STALE
    assert "AReaL" in weighted and page.STALE[weighted][1:] == ("prox", "mu")
    signs = []
    for seed in (*range(10), *OTHER_SEEDS):
        m = {name: stale(seed, name) for name in (free, ppo, plain, weighted)}
        before = m[ppo]["before"]
        assert m[ppo]["mu"] < before < m[plain]["mu"]
        assert m[ppo]["gain"] < -0.004
        for name in (free, plain, weighted):
            assert m[name]["gain"] > 0.001
        assert m[ppo]["silent"] > 0.08
        assert m[plain]["silent"] == m[weighted]["silent"] == 0
        signs.append(stale(seed, dppo)["gain"] > 0)
    assert 2 < sum(signs) < 18
    start = [
        mean_kl(policy(w, w.weights), policy(w, improved(w))) for w, _ in worlds(3)
    ]
    assert stale(3, ppo)["before"] == pytest.approx(np.mean(start))


def test_table_of_stale_samples():
    free, ppo, plain, weighted, *_ = page.STALE
    table = rows(page.table_stale())
    assert list(table) == list(page.STALE)
    assert estimate(table[ppo][1]) == pytest.approx([-0.013, 0.005], abs=1.1e-3)
    assert estimate(table[plain][1]) == pytest.approx([0.010, 0.003], abs=1.1e-3)
    assert estimate(table[weighted][1]) == pytest.approx([0.012, 0.003], abs=1.1e-3)
    assert estimate(table[free][1]) == pytest.approx([0.021, 0.009], abs=1.1e-3)
    assert estimate(table[ppo][0]) == pytest.approx([15, 3], abs=1.1)
    assert table[plain][0] == "0 %"
    assert page.STALE_PASSES == 30  # "thirty steps" in the caption
    assert estimate(table[ppo][2]) == pytest.approx([0.008, 0.005], abs=1.1e-3)
    assert estimate(table[ppo][3]) == pytest.approx([0.076, 0.022], abs=1.1e-3)
    assert estimate(table[weighted][3]) == pytest.approx([0.110, 0.029], abs=1.1e-3)
    assert estimate(table[weighted][4]) == pytest.approx([1.5, 0.2], abs=0.11)


# --- The bound -------------------------------------------------------------


def tree(rng, length, width=3):
    """Random prefix policies and rewards: dicts by prefix."""
    prefixes = [p for t in range(length) for p in product(range(width), repeat=t)]
    answers = list(product(range(width), repeat=length))
    mu = {p: rng.dirichlet(np.ones(width)) for p in prefixes}
    pi = {p: 0.85 * mu[p] + 0.15 * rng.dirichlet(np.ones(width)) for p in prefixes}
    return mu, pi, {a: float(rng.random() < 0.5) for a in answers}, prefixes


def test_bound_holds_on_random_trees():
    rng = np.random.default_rng(0)
    for length in (2, 3, 4):
        for _ in range(5):
            mu, pi, reward, prefixes = tree(rng, length)

            def value(prefix, q, length=length, reward=reward):
                if len(prefix) == length:
                    return reward[prefix]
                return sum(q[prefix][a] * value((*prefix, a), q) for a in range(3))

            def reach(prefix, q):
                return np.prod([q[prefix[:t]][a] for t, a in enumerate(prefix)])

            adv = {
                p: np.array([value((*p, a), mu) - value(p, mu) for a in range(3)])
                for p in prefixes
            }
            true = value((), pi) - value((), mu)
            exact = sum(reach(p, pi) * pi[p] @ adv[p] for p in prefixes)
            assert true == pytest.approx(exact)  # performance difference
            claimed = sum(reach(p, mu) * pi[p] @ adv[p] for p in prefixes)
            tv = max(0.5 * abs(pi[p] - mu[p]).sum() for p in prefixes)
            epsilon = max(abs(a).max() for a in adv.values())
            assert abs(true - claimed) <= bound(length, tv, epsilon)


def test_bound_is_the_sum_over_positions():
    assert bound(5, 0.1, 0.5) == pytest.approx(
        sum(4 * 0.5 * 0.1 * t * 0.1 for t in range(5))
    )
    assert bound(1, 0.3) == 0  # one token: the surrogate is exact


def test_chain_by_enumeration():
    p, q = 0.8, 0.7
    true = claimed = 0.0
    for t in range(4):  # advantage of a right token after t right ones
        good = p ** (3 - t) - p ** (4 - t)
        bad = -(p ** (4 - t))
        claimed += p**t * (q * good + (1 - q) * bad)
    for answer in product((0, 1), repeat=4):
        hit = all(answer)
        weight = [np.prod([x if a else 1 - x for a in answer]) for x in (q, p)]
        true += hit * (weight[0] - weight[1])
    assert chain(4, p, q) == pytest.approx((true, claimed))


def test_table_of_horizons():
    table = rows(page.table_horizon())
    assert table["1,000"] == ["−0.3163", "−0.5003", "0.184", "2", "0.0002"]
    assert float(table["10,000"][3]) == 200
    largest = 0.5**0.1  # |A| of the last token, if it is wrong
    assert float(table["10"][3]) == pytest.approx(180e-6 * largest, rel=0.003)
    for text, cells in table.items():
        p = 0.5 ** (1 / int(text.replace(",", "")))
        assert p ** int(text.replace(",", "")) == pytest.approx(0.5)
        error = float(cells[2].replace("−", "-"))
        assert error < float(cells[3])
    for length in (10, 1000):
        allowed = (0.1 / (2 * length * (length - 1))) ** 0.5
        cell = float(table[f"{length:,}"][4].replace("−", "-"))
        assert cell == pytest.approx(allowed, rel=0.2)


def test_claim_trpo_constant():
    for gamma, want in ((0.99, 39_600), (0.999, 3.996e6)):
        assert 4 * gamma / (1 - gamma) ** 2 == pytest.approx(want)
    # the same sum over positions with a discount, t tv >= 1 - (1 - tv)^t
    gamma, tv = 0.9, 0.01
    total = sum(4 * gamma**t * tv * t * tv for t in range(2000))
    assert total == pytest.approx(4 * gamma / (1 - gamma) ** 2 * tv**2)


def test_claim_numbers_of_the_text():
    assert bound(1000, 0.15) == pytest.approx(44_955)
    assert 4 * 7e9 * 4 == pytest.approx(112e9)  # four fp32 vectors, bytes
    w, batch = worlds(0)[0]
    assert w.weights.size == 96 and batch.tokens.shape == (48, 4)
    wide = Region("tv", 1.0)  # masks nothing
    args = w.weights, w.weights, w.weights, 20
    free, never = (ascend(w, batch, x, *args)[-1] for x in (Region(), wide))
    np.testing.assert_array_equal(free, never)
    for region in (Region("tv", 0.0), Region("ratio", 0.0)):
        path = ascend(w, batch, region, *args)
        assert not np.array_equal(path[1], path[0])  # delta 0 still steps


# --- Figures ---------------------------------------------------------------


def test_figure_of_the_room():
    top, bottom = page.figure_room().axes
    assert "μ" in bottom.get_xlabel() and top.get_xscale() == "log"
    for axes, up in ((top, True), (bottom, False)):
        mu = axes.lines[0].get_xdata()
        edge = np.minimum(0.2 * mu, 1 - mu) if up else 0.2 * mu
        np.testing.assert_allclose(axes.lines[0].get_ydata(), edge, rtol=1e-6)
        edge = np.minimum(0.15, 1 - mu) if up else np.minimum(0.15, mu)
        np.testing.assert_allclose(axes.lines[1].get_ydata(), edge, rtol=1e-6)
