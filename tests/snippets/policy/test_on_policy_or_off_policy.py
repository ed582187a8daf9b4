"""On-policy or off-policy: ages, leaks, drift, and the page's claims."""

import numpy as np
import pytest

from snippets.policy import on_policy_or_off_policy as code


@pytest.mark.parametrize(
    ("sizes", "want"),
    [
        ((4, 1), [0, 1, 2, 3]),
        ((5, 2), [0, 1, 2]),
        ((4, 2, 3), [0, 1, 2, 3, 4, 5]),
        ((4, 1, 1, 1), [4, 5, 6, 7]),
        ((8, 8, 1, 2), [2]),
    ],
)
def test_ages(sizes, want):
    assert code.ages(*sizes) == want


def test_ages_against_a_log_of_the_training():
    # a trainer that notes its step count when a batch is sampled
    step, lag, queue, seen = 0, 1, [0], []
    for _ in range(4):
        queue.append(step)  # sampled while an earlier batch is trained on
        sampled = queue.pop(0)
        for _ in range(3):
            seen.append(step - sampled)
            step += 1
    assert seen[6:9] == code.ages(3, 1, lag=lag) == [3, 4, 5]


def sampled_gradient(pi, mu, reward, weight):
    """The same expectation, token by token in plain Python."""
    out = np.zeros_like(pi)
    for s in range(len(pi)):
        base = sum(mu[s, a] * reward[s, a] for a in range(pi.shape[1]))
        for a in range(pi.shape[1]):
            for k in range(pi.shape[1]):
                score = (a == k) - pi[s, k]
                out[s, k] += mu[s, a] * weight[s, a] * (reward[s, a] - base) * score
    return out


def small():
    rng = np.random.default_rng(5)
    pi, mu = (code.softmax(rng.standard_normal((3, 4))) for _ in range(2))
    return pi, mu, rng.random((3, 4)), rng.random((3, 4))


def test_gradient_is_the_expectation():
    pi, mu, reward, weight = small()
    want = sampled_gradient(pi, mu, reward, weight)
    assert code.gradient(pi, mu, reward, weight) == pytest.approx(want)


def test_on_policy_it_is_the_gradient_of_the_reward():
    logits = np.random.default_rng(6).standard_normal((2, 5))
    reward = np.random.default_rng(7).random((2, 5))
    pi = code.softmax(logits)
    got = code.gradient(pi, pi, reward, 1.0)
    for s, k in np.ndindex(2, 5):
        ahead, behind = logits.copy(), logits.copy()
        ahead[s, k] += 1e-6
        behind[s, k] -= 1e-6
        values = ((code.softmax(x) * reward).sum() for x in (ahead, behind))
        up, down = values
        assert got[s, k] == pytest.approx((up - down) / 2e-6, abs=1e-9)


def test_the_ratio_repairs_one_token_exactly():
    pi, mu, reward, _ = small()
    got = code.gradient(pi, mu, reward, pi / mu)
    assert got == pytest.approx(code.gradient(pi, pi, reward, 1.0))


def test_nucleus_keeps_the_fewest_that_reach_the_mass():
    p = np.array([[0.1, 0.5, 0.15, 0.25]])
    assert code.nucleus(p, 0.7) == pytest.approx(np.array([[0, 2 / 3, 0, 1 / 3]]))
    assert code.nucleus(p, 0.5) == pytest.approx(np.array([[0, 1, 0, 0]]))
    assert code.nucleus(p, 1.0) == pytest.approx(p)


FRESH = range(100, 110)


@pytest.mark.parametrize("seed", FRESH)
def test_claim_what_each_instrument_sees(seed):
    found = code.instruments(seed)
    blind = [n for n, (seen, *_) in found.items() if seen < 1e-12]
    assert len(blind) == len(found) - 1 and "fourth mini-batch" not in blind
    unseen = {n for n, (_, known, *_) in found.items() if known < 1e-12}
    assert unseen == {
        "nothing",
        "T = 0.6 in the engine only, raw",
        "T = 0.6 in both, scaled",
        "half the late tokens discarded",
    }
    stuck = {n for n, (*_, plain, mended) in found.items() if mended > 1e-9}
    assert stuck == {
        "T = 0.6 in the engine only, raw",
        "T = 0.6 in both, raw",
        "top-p 0.9 in the engine, renormalised",
        "half the late tokens discarded",
    }
    assert found["nothing"] == found["T = 0.6 in both, scaled"] == (0, 0, 0, 0)
    hidden = [row[2] for row in found.values() if row[0] < 1e-12 and row[2] > 0]
    assert len(found) == 10 and len(hidden) == 6


@pytest.mark.parametrize(("seeds", "room"), [(code.SEEDS, 0.005), (FRESH, 0.015)])
def test_claim_the_hidden_errors_are_6_to_31_per_cent_on_average(seeds, room):
    found = code.over_worlds(seeds).values()
    hidden = [row[2].mean for row in found if max(row[0].values) < 1e-12 < row[2].mean]
    assert len(hidden) == 6
    assert min(hidden) == pytest.approx(0.06, abs=room)
    assert max(hidden) == pytest.approx(0.31, abs=room)


def test_claim_raw_log_probs_alarm_and_spoil_on_policy_data():
    for seed in FRESH:
        seen, known, plain, mended = code.instruments(seed)["T = 0.6 in both, raw"]
        assert seen == plain == 0
        assert known == pytest.approx(0.30, abs=0.04)
        assert mended == pytest.approx(0.20, abs=0.04)


def test_spread_by_hand_ignores_what_was_never_sampled():
    pi = np.array([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]])
    mu = np.array([[0.625, 0.375, 0.0], [0.1, 0.5, 0.4]])
    values, shares = [0.8, 0.8, 2.0, 0.4, 1.5], [0.625, 0.375, 0.1, 0.5, 0.4]
    mean = sum(s * v for s, v in zip(shares, values, strict=True)) / 2
    var = sum(s * (v - mean) ** 2 for s, v in zip(shares, values, strict=True))
    assert code.spread(pi, mu, mu) == pytest.approx((var / 2) ** 0.5)


def deviation(top, bottom, mu):
    """Weighted standard deviation of top / bottom over the samples of mu."""
    kept = mu > 0
    share, ratio = mu[kept] / mu.sum(), top[kept] / bottom[kept]
    return np.sqrt(np.cov(ratio, aweights=share, ddof=0))


def test_instruments_are_what_the_columns_say():
    _, reward = code.world(100)
    for name, (pi, prox, logged, mu) in code.leaks(100).items():
        seen, known, plain, mended = code.instruments(100)[name]
        assert seen == pytest.approx(deviation(pi, prox, mu), abs=1e-12)
        assert known == pytest.approx(deviation(pi, logged, mu), abs=1e-12)
        weight = pi / np.where(logged > 0, logged, np.inf)
        exact = sampled_gradient(pi, pi, reward, np.ones_like(pi))
        for w, got in ((np.ones_like(pi), plain), (weight, mended)):
            gap = sampled_gradient(pi, mu, reward, w) - exact
            want = np.sqrt((gap**2).sum() / (exact**2).sum())
            assert got == pytest.approx(want, abs=1e-12)


def test_table_of_leaks_has_its_numbers_in_order():
    rows = {r.split("|")[1].strip(): r for r in code.table_leaks().splitlines()}
    stale = "| 0.16 ± 0.01 | 14 ± 1 % | 0 |"
    assert "| 0 " + stale in rows["three updates stale"]
    assert "| 0.16 ± 0.01 " + stale in rows["fourth mini-batch"]
    assert "| 0 | 0.30 ± 0.01 | 0 | 20 ± 1 % |" in rows["T = 0.6 in both, raw"]
    assert len(rows) == 12


def test_error_is_relative_to_the_exact_gradient():
    exact = np.array([[3.0, 0.0], [0.0, 4.0]])
    assert code.error(exact + [[0.0, 2.0], [0.0, 0.0]], exact) == 0.4
    assert code.error(0 * exact, exact) == 1


def test_leaks_are_what_their_names_say():
    logits, _ = code.world(100)
    pi = code.softmax(logits)
    want = pi ** (1 / 0.6) / (pi ** (1 / 0.6)).sum(1, keepdims=True)
    for where, what in (("the engine only", "raw"), ("the engine only", "scaled")):
        trained, prox, logged, cool = code.leaks(100)[f"T = 0.6 in {where}, {what}"]
        assert cool == pytest.approx(want)
        assert trained == pytest.approx(pi) and prox == pytest.approx(pi)
        assert logged == pytest.approx(pi if what == "raw" else want)
    for what in ("raw", "scaled"):
        trained, prox, logged, cool = code.leaks(100)[f"T = 0.6 in both, {what}"]
        assert trained == pytest.approx(want) and prox == pytest.approx(want)
        assert logged == pytest.approx(pi if what == "raw" else want)
        assert cool == pytest.approx(want)
    _, _, logged, mu = code.leaks(100)["top-p 0.9 in the engine, renormalised"]
    assert logged == pytest.approx(mu) and (mu == 0).any()
    assert mu == pytest.approx(code.nucleus(pi, 0.9))
    selected = code.leaks(100)["half the late tokens discarded"][3]
    assert selected[:, 0] / selected[:, -1] == pytest.approx(2 * pi[:, 0] / pi[:, -1])
    engine = code.leaks(100)["engine noise, sd 0.1"][3]
    gap = np.log(engine / pi)
    gap -= gap.mean(1, keepdims=True)
    assert gap.std() == pytest.approx(0.1, rel=0.15)


def test_the_stale_policy_is_three_exact_steps_ahead():
    logits, reward = code.world(100)
    x = logits.copy()
    for _ in range(3):
        p = np.exp(x) / np.exp(x).sum(1, keepdims=True)
        x = x + p * (reward - (p * reward).sum(1, keepdims=True))
    want = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    pi, prox, logged, mu = code.leaks(100)["three updates stale"]
    assert pi == pytest.approx(want) and prox == pytest.approx(want)
    assert logged == pytest.approx(code.softmax(logits))
    assert mu == pytest.approx(code.softmax(logits))


def test_claim_one_step_off_against_two_epochs():
    assert code.ages(4, 1, lag=1) == [4, 5, 6, 7]
    assert code.ages(4, 1, epochs=2) == list(range(8))
    assert code.ages(8192, 512) == list(range(16))
    assert 32 * 16 == 512  # DAPO's mini-batch in verl: prompts times rollout.n


def test_claim_updates_of_the_recipes():
    rows = code.table_recipes().splitlines()[2:]
    updates = [int(r.split("|")[2]) for r in rows]
    assert updates == [1, 4, 4, 16, 16, 320, 4]
    shown = [[c.strip() for c in r.split("|")[3:-1]] for r in rows]
    assert shown == [
        ["100 %", "0", "0"],
        *[["25 %", "1.5", "3"]] * 2,
        *[["6.25 %", "7.5", "15"]] * 2,
        ["0.312 %", "159.5", "319"],
        ["0 %", "5.5", "7"],
    ]
    assert 512 * 16 == 8192  # DAPO: prompts and responses a prompt


@pytest.mark.parametrize("seeds", [code.SEEDS, FRESH])
def test_claim_drift_without_and_with_the_clip(seeds):
    plain, clipped = (
        np.array([code.drift(15, clip, seed) for seed in seeds]) for clip in (None, 0.2)
    )
    assert (plain[:, 0] == 0).all() and (clipped[:, 0] == 0).all()
    assert (plain[:, 1] == clipped[:, 1]).all() and (plain[:, 1] > 0).all()
    assert (np.diff(plain) > 0).all()
    assert plain[:, 15].mean() == pytest.approx(1.45, abs=0.06)
    assert 1.2 < plain[:, 15].min() and plain[:, 15].max() < 1.7
    assert clipped[:, 15].mean() == pytest.approx(0.03, abs=0.005)
    assert clipped[:, 15].max() < 0.04


def test_drift_by_a_plain_loop():
    """Three updates of one context, sample by sample."""
    logits, rates = code.world(100)
    rng = np.random.default_rng([100, 2])
    mu = code.softmax(logits)
    u = rng.random((64, 256))
    token = np.array(
        [
            [(x > row.cumsum()[:-1]).sum() for x in line]
            for row, line in zip(mu, u, strict=True)
        ]
    )
    won = rng.random((64, 256)) < np.take_along_axis(rates, token, 1)
    clipped, x = [], logits.copy()
    for k in range(3):
        for s in range(64):
            pi = np.exp(x[s]) / np.exp(x[s]).sum()
            step = np.zeros(8)
            for i in range(64 * k, 64 * k + 64):
                t = token[s, i]
                a, r = won[s, i] - won[s].mean(), pi[t] / mu[s, t]
                if (a > 0 and r > 1.2) or (a <= 0 and r < 0.8):
                    continue
                step += r * a * ((np.arange(8) == t) - pi) / 64
            x[s] += 4 * step
        pi = np.exp(x) / np.exp(x).sum(1, keepdims=True)
        clipped.append((mu * np.log(mu / pi)).sum(1).mean())
    assert code.drift(15, 0.2, 100)[1:4] == pytest.approx(clipped)


def test_claim_clip_is_idle_at_the_first_update_for_any_range():
    assert code.drift(1, 1e-9, 100)[1] == code.drift(1, None, 100)[1]


def test_figures_show_the_data():
    (axes,) = code.figure_ages().axes
    off, four, one = (list(line.get_ydata()) for line in axes.lines)
    assert off == [4, 5, 6, 7] * 4 and four == [0, 1, 2, 3] * 4 and one == [0] * 16
    (axes,) = code.figure_drift().axes
    plain, clipped = (line.get_ydata() for line in axes.lines)
    for clip, line in ((None, plain), (0.2, clipped)):
        mean = sum(code.drift(15, clip, seed) for seed in range(10)) / 10
        assert line == pytest.approx(mean)
    for clip, band in zip((None, 0.2), axes.collections, strict=True):
        last = np.array([code.drift(15, clip, seed)[15] for seed in range(10)])
        corners = band.get_paths()[0].vertices
        edge = corners[corners[:, 0] == 16, 1]
        assert edge.min() == pytest.approx(last.mean() - last.std(ddof=1))
        assert edge.max() == pytest.approx(last.mean() + last.std(ddof=1))


@pytest.mark.parametrize(("interval", "want"), [(1, {1}), (2, {1, 2})])
def test_claim_starting_the_next_rollout_first_makes_data_a_step_old(interval, want):
    """slime's asynchronous loop: generate k + 1, train on k, push weights."""
    trained = pushed = 0
    waiting, ages = 0, []
    for k in range(12):
        # after a push nothing is under way that was not already collected
        current, waiting = waiting, pushed
        ages.append(trained - current)
        trained += 1
        if (k + 1) % interval == 0:
            pushed = trained
    assert ages[0] == 0
    assert set(ages[1:]) == want
