"""Lags, the admission rule, drift against lag, and the page's claims."""

import numpy as np
import pytest

from snippets.policy.on_policy_or_off_policy import softmax, world
from snippets.rollouts import staleness as code
from snippets.rollouts.simulator import Request

OTHERS = range(100, 108)  # seeds that the page does not use


def test_lags_of_a_response_written_by_three_versions():
    request = Request(10, spans=[(3, 5), (4, 3), (6, 2)])
    got = code.lags(request, 6)
    assert got["first"] == 3 and got["last"] == 0
    assert got["mean"] == pytest.approx((3 * 5 + 2 * 3 + 0 * 2) / 10)
    assert got["fresh"] == pytest.approx(0.2)
    assert code.lags(request, 7)["last"] == 1
    assert code.lags(request, 7)["fresh"] == 0


def test_claim_capacity_of_areal():
    assert [code.capacity(v, 4, 512, 0) for v in (0, 1, 2)] == [2560, 3072, 3584]
    assert code.capacity(0, 0, 512, 512) == 0
    assert code.capacity(0, 0, 512, 600) == 0
    # Eq. 3: request number n may start if floor((n - 1) / B) <= i + eta
    for started in range(0, 40):
        allowed = (started + 1 - 1) // 8 <= 2 + 1
        assert (code.capacity(2, 1, 8, started) > 0) == allowed


def test_no_more_is_started_than_the_rule_allows():
    for eta in (0, 2):
        done = code.run(eta)
        groups = {r.group for batch in done.batches for r in batch}
        limit = (code.BASE.updates + eta + 1) * code.BASE.groups
        assert max(groups) < limit


def test_summary_against_a_plain_loop():
    eta = 2
    done, firsts, lengths = code.run(eta), [], []
    for k in range(code.BASE.warmup, code.BASE.updates):
        for request in done.batches[k]:
            firsts.append(k - request.spans[0][0])
            lengths.append(request.length)
    got = code.summary(eta)
    assert got["first"] == pytest.approx(np.mean(firsts))
    assert got["max"] == max(firsts)
    over = [n for n, f in zip(lengths, firsts, strict=True) if f > eta]
    assert got["over"] == pytest.approx(len(over) / len(firsts))
    assert got["length"] == pytest.approx(np.mean(over) / np.mean(lengths))
    span = done.ends[-1] - done.ends[code.BASE.warmup - 1]
    assert got["time"] == pytest.approx(span / 6)
    assert got["p95"] == pytest.approx(np.quantile(firsts, 0.95))
    lasts = [
        k - request.spans[-1][0]
        for k in range(code.BASE.warmup, code.BASE.updates)
        for request in done.batches[k]
    ]
    assert got["last"] == pytest.approx(np.mean(lasts))
    one = code.summary(1)
    idle = one["time"] - code.BASE.train / (1 - code.SHARE)
    assert one["wait"] == pytest.approx(idle / one["time"], abs=0.001)


def test_averages_are_those_of_the_seeds():
    found = code.averages(2, "80 % of the GPUs generate", OTHERS)
    rows = [code.summary(2, "80 % of the GPUs generate", i) for i in OTHERS]
    for key, estimate in found.items():
        assert list(estimate.values) == [row[key] for row in rows]
    alike = code.averages(2, "lengths alike, σ = 0.4", OTHERS)
    assert "length" not in alike and "over" in alike
    assert code.times(alike) == "–"
    assert rows[0]["time"] != rows[1]["over"] != rows[2]["over"]


def test_claim_speed_ends_at_two_and_age_does_not():
    data = {eta: code.averages(eta, seeds=OTHERS) for eta in code.ETAS}
    own = 8000
    for seeds in (OTHERS, range(500, 508)):
        assert 4 < code.averages(0, seeds=seeds)["time"].mean / own < 5
    assert data[1]["time"].mean / own == pytest.approx(1.33, abs=0.05)
    assert min(data[0]["time"].values) > 2.5 * max(data[1]["time"].values)
    for eta in (2, 4, 8):
        assert data[eta]["time"].values == pytest.approx([own] * 8, rel=0.001)
        assert data[eta]["first"].values == pytest.approx([eta] * 8, abs=0.12)
    assert max(data[0]["max"].values) == 0
    assert data[1]["last"].mean == pytest.approx(0.9, abs=0.03)


def test_claim_the_rule_bounds_the_mean_and_no_sample():
    for eta in (1, 2, 4, 8):
        found = code.averages(eta, seeds=OTHERS)
        assert max(found["first"].values) < eta + 0.1
        assert all(2 <= x - eta <= 4 for x in found["max"].values)
    for eta, share in ((1, 0.13), (2, 0.18), (4, 0.18), (8, 0.21)):
        found = code.averages(eta, seeds=OTHERS)
        assert found["over"].mean == pytest.approx(share, abs=0.02)
        assert 1.9 < min(found["length"].values) < max(found["length"].values) < 2.8
        assert found["length"].mean == pytest.approx(2.2, abs=0.25)


def test_claim_generation_bound_runs_do_not_age_with_the_bound():
    for case in ("35 % generate", "median length 8,000"):
        low, high = (code.averages(eta, case, OTHERS) for eta in (2, 8))
        assert low["first"].mean == pytest.approx(2, abs=0.03)
        assert high["first"].mean == pytest.approx(2.35, abs=0.08)
        assert max(high["max"].values) < 8 and high["over"].mean == 0
        times = (np.array(x["time"].values) for x in (high, low))
        saved = 1 - np.divide(*times)
        assert 0.02 < saved.mean() < 0.05
        assert -0.001 < saved.min() and saved.max() < 0.1
    for case in ("80 % of the GPUs generate", "lengths alike, σ = 0.4"):
        found = code.averages(8, case, OTHERS)
        assert found["first"].values == pytest.approx([8] * 8, abs=0.05)
        assert found["over"].mean < 0.1
    assert found["over"].mean < 0.01


def test_cases_change_what_their_names_say():
    def lengths(case):
        return [r.length for b in code.run(2, case).batches for r in b]

    usual, long = lengths("as above"), lengths("median length 8,000")
    assert np.median(long) / np.median(usual) == pytest.approx(8 / 3, rel=0.1)
    alike = np.log(lengths("lengths alike, σ = 0.4"))
    assert alike.std() == pytest.approx(0.4, abs=0.05)
    for case, share in (("80 % of the GPUs generate", 0.8), ("35 % generate", 0.35)):
        done = code.run(2, case)
        assert done.engine.slots == round(256 * share)
        start, end = done.trains[0]
        assert end - start == pytest.approx(4000 / (1 - share), abs=1)


def test_the_setting_is_the_captions():
    s = code.BASE
    assert (s.slots, s.groups, s.size, s.train) == (256, 32, 4, 4000)
    assert (s.updates - s.warmup, s.warmup, code.SHARE) == (6, 14, 0.5)


def test_claim_length_of_what_is_dropped():
    ratios = [
        code.averages(2, case, OTHERS)["length"].mean for case in list(code.CASES)[:-1]
    ]
    assert 1.6 < min(ratios) < 1.8 and 3 < max(ratios) < 3.4


def shares(case, eta, keys):
    """Mean ± sample deviation of `summary` over seeds 0 to 9, as printed."""
    rows = [code.summary(eta, case, seed) for seed in range(10)]
    cells = []
    for key, spec in keys.items():
        mean = format(np.mean([row[key] for row in rows]), spec)
        spread = np.std([row[key] for row in rows], ddof=1)
        cells.append(mean + (f" ± {spread:{spec}}" if spread else ""))
    return cells


def cells(table):
    lines = table.strip().splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_table_cases_holds_the_summaries():
    rows = cells(code.table_cases())
    assert [row[0] for row in rows] == list(code.CASES)[1:]
    assert rows[-1][5] == "–"
    row = rows[1]
    assert row[0] == "35 % generate"
    low = shares(row[0], 2, {"first": ".1f", "over": ".0%", "length": ".1f"})
    high = shares(row[0], 8, {"wait": ".0%", "first": ".1f", "over": ".0%"})
    assert row[1:] == [high[0], low[0], high[1], low[1], low[2], high[2]]


def test_table_bound_holds_the_summaries():
    table = code.table_bound()
    assert "mean lag | 95 % | largest | lag of last token" in table
    rows = cells(table)
    assert [row[0] for row in rows] == ["0", "1", "2", "4", "8"]
    keys = {"time": ",.0f", "wait": ".0%", "first": ".1f", "p95": ".1f"}
    keys |= {"max": ".1f", "last": ".1f", "over": ".0%", "length": ".1f"}
    assert rows[1][1:] == shares("as above", 1, keys)
    assert rows[0][8] == "–"


def test_error_is_that_of_the_samples_gradient():
    logits, reward = world(5)
    rate, lag = 0.3, 3
    path = [logits]
    for _ in range(lag + 9):
        p = softmax(path[-1])
        a = reward - (p * reward).sum(1, keepdims=True)
        path.append(path[-1] + rate * p * a)
    errors = []
    for k in range(lag, lag + 10):
        p, q = softmax(path[k]), softmax(path[k - lag])
        exact = p * (reward - (p * reward).sum(1, keepdims=True))
        push = q * (reward - (q * reward).sum(1, keepdims=True))
        stale = push - p * push.sum(1, keepdims=True)
        errors.append(np.linalg.norm(stale - exact) / np.linalg.norm(exact))
    assert code.stale_error(rate, lag, 5) == pytest.approx(np.mean(errors))


@pytest.mark.parametrize("seed", range(100, 103))
def test_claim_error_goes_with_lag_times_step(seed):
    error = {
        (rate, lag): code.stale_error(rate, lag, seed)
        for rate in code.RATES
        for lag in (0, *code.AGES)
    }
    assert error[0.1, 0] == 0
    for rate in code.RATES:
        for lag in (1, 2, 4):
            assert error[rate, 2 * lag] / error[rate, lag] == pytest.approx(2, rel=0.07)
    per = [error[r, n] / (r * n) for r in code.RATES for n in code.AGES]
    assert 0.04 < min(per) < max(per) < 0.06
    assert error[0.1, 8] < error[1.0, 1]


def test_effective_share_against_sampling():
    rng = np.random.default_rng(0)
    d, tokens = 0.02 * 4, 50
    logs = rng.normal(-(d**2) / 2, d, (100_000, tokens)).sum(1)
    w = np.exp(logs)
    want = w.sum() ** 2 / (w.size * (w**2).sum())
    assert code.effective_share(4, 0.02, tokens) == pytest.approx(want, rel=0.03)


def test_claim_shares():
    assert code.effective_share(4, 0.005, 8000) == pytest.approx(0.041, abs=5e-4)
    assert "| 4 | 1 | 0.67 | 0.0408 |" in code.table_share()
    assert code.effective_share(2, 0.005, 8000) == pytest.approx(0.449, abs=5e-4)
    assert code.effective_share(8, 0.005, 1000) == pytest.approx(0.202, abs=5e-4)


def test_figure_shows_the_sweep():
    time, lag = code.figure_bound().axes
    data = [code.averages(eta) for eta in code.ETAS]
    for axes, line, key, unit in (
        (time, 0, "time", 1000),
        (lag, 0, "max", 1),
        (lag, 1, "first", 1),
    ):
        mean = np.array([np.mean(d[key].values) for d in data]) / unit
        spread = np.array([np.std(d[key].values, ddof=1) for d in data]) / unit
        assert axes.lines[line].get_ydata() == pytest.approx(mean)
        (path,) = axes.collections[line].get_paths()
        for sign in (-1, 1):
            for point in zip(range(5), mean + sign * spread, strict=True):
                assert np.isclose(path.vertices, point).all(1).any()
    assert list(lag.lines[2].get_ydata()) == list(code.ETAS)
    assert list(time.lines[1].get_ydata()) == [8, 8]
