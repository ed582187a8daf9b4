"""Lags, the admission rule, drift against lag, and the page's claims."""

import numpy as np
import pytest

from snippets.policy.on_policy_or_off_policy import softmax, world
from snippets.rollouts import staleness as code
from snippets.rollouts.simulator import Request


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
    assert got["time"] == pytest.approx(span / 12)
    assert got["p95"] == np.sort(firsts)[int(0.95 * len(firsts))]
    lasts = [
        k - request.spans[-1][0]
        for k in range(code.BASE.warmup, code.BASE.updates)
        for request in done.batches[k]
    ]
    assert got["last"] == pytest.approx(np.mean(lasts))
    one = code.summary(1)
    assert one["last"] == pytest.approx(0.9, abs=0.03)
    idle = one["time"] - code.BASE.train / (1 - code.SHARE)
    assert one["wait"] == pytest.approx(idle / one["time"], abs=0.001)


def test_claim_speed_ends_at_two_and_age_does_not():
    data = {eta: code.summary(eta) for eta in code.ETAS}
    own = code.BASE.train / (1 - code.SHARE)
    assert data[0]["time"] > 4 * own and data[1]["time"] > 1.3 * own
    for eta in (2, 4, 8):
        assert data[eta]["time"] == pytest.approx(own, rel=0.01)
        assert data[eta]["first"] == pytest.approx(eta, abs=0.15)
    assert data[0]["max"] == 0


def test_claim_other_seeds_say_the_same():
    for seed in (1, 2, 3):
        s = code.summary(2, seed=seed)
        assert s["first"] == pytest.approx(2, abs=0.05)
        assert s["wait"] == pytest.approx(0, abs=0.01)
        assert 0.15 < s["over"] < 0.22 and 2.1 < s["length"] < 2.4
    starts = [code.run(2, seed=n).batches[0][0].length for n in (0, 1)]
    assert starts[0] != starts[1]


def test_claim_the_rule_bounds_the_mean_and_no_sample():
    for case in code.CASES:
        for eta in (2, 8):
            assert code.summary(eta, case)["first"] < eta + 0.05
    for eta in (1, 2, 4, 8):
        assert 2 <= code.summary(eta)["max"] - eta <= 4


def test_claim_generation_bound_runs_do_not_age_with_the_bound():
    for case in ("35 % generate", "median length 8,000"):
        low, high = code.summary(2, case), code.summary(8, case)
        assert low["first"] == pytest.approx(2, abs=0.05)
        assert high["first"] == pytest.approx(2.4, abs=0.1)
        assert high["max"] < 8 and high["over"] == 0
        assert 1 - high["time"] / low["time"] == pytest.approx(0.04, abs=0.005)
    for case in ("80 % of the GPUs generate", "lengths alike, σ = 0.4"):
        s = code.summary(8, case)
        assert s["first"] == pytest.approx(8, abs=0.05) and s["over"] < 0.1


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


def test_claim_length_of_what_is_dropped():
    ratios = [code.summary(2, case)["length"] for case in code.CASES]
    ratios += [code.summary(eta)["length"] for eta in (1, 4, 8)]
    assert 1.65 < min(ratios) < 1.8 and 3.2 < max(ratios) < 3.35


def test_table_cases_holds_the_summaries():
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in code.table_cases().strip().splitlines()[2:]
    ]
    assert [row[0] for row in rows] == list(code.CASES)
    for row in rows:
        low, high = code.summary(2, row[0]), code.summary(8, row[0])
        assert row[1] == f"{100 * high['wait']:.0f} %"
        assert row[2:4] == [f"{low['first']:.1f}", f"{high['first']:.1f}"]
        assert row[4] == f"{100 * low['over']:.0f} %"
        assert row[5] == f"{low['length']:.1f}×"
        assert row[6] == f"{100 * high['over']:.0f} %"


def test_table_bound_holds_the_summaries():
    lines = code.table_bound().strip().splitlines()
    assert "mean lag | 95 % | largest | lag of last token" in lines[0]
    for eta, line in zip(code.ETAS, lines[2:], strict=True):
        s = code.summary(eta)
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert cells[:3] == [
            str(eta),
            f"{s['time']:,.0f}",
            f"{100 * s['wait']:.0f} %",
        ]
        assert cells[3:5] == [f"{s['first']:.1f}", f"{s['p95']:.0f}"]
        assert cells[5:7] == [f"{s['max']:.0f}", f"{s['last']:.1f}"]


def test_claim_a_fifth_is_older_than_the_bound_and_twice_as_long():
    for eta in (2, 4, 8):
        s = code.summary(eta)
        assert s["over"] == pytest.approx(0.2, abs=0.03)
        assert s["length"] == pytest.approx(2.2, abs=0.15)
        assert s["max"] > eta + 2


def test_error_is_that_of_the_samples_gradient():
    logits, reward = world()
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
    assert code.stale_error(rate, lag) == pytest.approx(np.mean(errors))


def test_claim_error_goes_with_lag_times_step():
    assert code.stale_error(0.1, 0) == 0
    for rate in code.RATES:
        for lag in (1, 2, 4):
            ratio = code.stale_error(rate, 2 * lag) / code.stale_error(rate, lag)
            assert ratio == pytest.approx(2, rel=0.05)
    per = [code.stale_error(r, n) / (r * n) for r in code.RATES for n in code.AGES]
    assert min(per) == pytest.approx(0.0438, abs=1e-4)
    assert max(per) == pytest.approx(0.0528, abs=1e-4)
    assert code.stale_error(0.1, 8) < code.stale_error(1.0, 1)


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
    assert "| 8 | 3.7 % | 10.5 % | 42.2 % |" in code.table_rates()
    assert code.effective_share(2, 0.005, 8000) == pytest.approx(0.449, abs=5e-4)
    assert code.effective_share(8, 0.005, 1000) == pytest.approx(0.202, abs=5e-4)


def test_figure_shows_the_sweep():
    time, lag = code.figure_bound().axes
    data = [code.summary(eta) for eta in code.ETAS]
    assert time.lines[0].get_ydata() == pytest.approx([d["time"] / 1000 for d in data])
    oldest, mean, bound = (line.get_ydata() for line in lag.lines)
    assert list(oldest) == [d["max"] for d in data]
    assert mean == pytest.approx([d["first"] for d in data])
    assert list(bound) == list(code.ETAS)
