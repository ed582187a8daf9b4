"""Checks clip_higher.py against loops, finite differences and closed forms."""

from functools import cache
from math import inf, log

import numpy as np
import pytest

from snippets.policy import clip_higher as page
from snippets.policy.clip_higher import (
    RATES,
    SIDES,
    START,
    ceiling,
    coin_flips,
    entropy,
    entropy_slope,
    learning,
    sample,
    softmax,
    speed,
    train,
    update,
)

P = np.array([0.55, 0.25, 0.15, 0.05])


def surrogate(p, old, tokens, advantages, low, high):
    """Mean of min(r A, clip(r) A) over a list of samples, by definition."""
    total = 0.0
    for t, a in zip(tokens, advantages, strict=True):
        r = p[t] / old[t]
        total += min(r * a, min(max(r, 1 - low), 1 + high) * a)
    return total / len(tokens)


def by_id(tokens, advantages, vocab):
    good, bad = np.zeros(vocab), np.zeros(vocab)
    for t, a in zip(tokens, advantages, strict=True):
        (good if a > 0 else bad)[t] += a / len(tokens)
    return good, bad


# --- One token ------------------------------------------------------------


def test_claim_the_ceiling_is_relative():
    assert ceiling(0.01, 0.2) == pytest.approx(0.012)
    assert ceiling(0.01, 0.28) == pytest.approx(0.0128)
    assert 0.9 * 1.2 == pytest.approx(1.08)
    assert ceiling(0.9, 0.2) == inf
    for high, limit in ((0.2, 0.833), (0.28, 0.781)):
        assert 1 / (1 + high) == pytest.approx(limit, abs=5e-4)
        assert ceiling(limit - 0.001, high) < 1
        assert ceiling(limit + 0.001, high) == inf


def test_claim_absolute_room_of_a_rare_and_a_frequent_token():
    assert ceiling(0.01, 0.2) - 0.01 == pytest.approx(0.002)
    assert ceiling(0.8, 0.2) - 0.8 == pytest.approx(0.16)
    assert 0.16 / 0.002 == pytest.approx(80)


def test_claim_rounds_to_lift_a_token_from_001_to_one_half():
    for high, expected in ((0.2, 21.5), (0.28, 15.8)):
        assert log(50) / log(1 + high) == pytest.approx(expected, abs=0.06)


def test_claim_the_band_in_log_ratio():
    got = [log(x) for x in (1.2, 0.8, 1.28)]
    assert got == pytest.approx([0.182, -0.223, 0.247], abs=5e-4)


@pytest.mark.parametrize("token", range(4))
def test_speed_and_entropy_slope_are_the_derivatives(token):
    """Central difference along the gradient of r A at r = 1, A = 1."""
    push = -P.copy()
    push[token] += 1  # d log p[token] / d logits
    h = 1e-5
    up, down = (softmax(np.log(P) + s * push) for s in (h, -h))
    growth = (log(up[token]) - log(down[token])) / (2 * h)
    assert speed(P, token) == pytest.approx(growth, rel=1e-6)
    slope = float(entropy(up) - entropy(down)) / (2 * h)
    assert entropy_slope(P, token) == pytest.approx(slope, rel=1e-5)


def test_claim_signs_of_the_entropy_slope_at_the_start():
    start = np.array([0.6] + [0.04] * 10)
    assert entropy_slope(start, 0) == pytest.approx(-0.29, abs=5e-3)
    assert entropy_slope(start, 1) == pytest.approx(0.43, abs=5e-3)
    assert speed(start, 0) == pytest.approx(0.18, abs=5e-3)
    assert speed(start, 1) == pytest.approx(1.30, abs=5e-3)
    # exact, without a clip: noise has no first-order drift
    drift = sum(p * entropy_slope(P, t) for t, p in enumerate(P))
    assert abs(drift) < 1e-12


def test_first_order_entropy_is_minus_the_covariance():
    """Expected push, sum of p_a A_a slope_a = -Cov(log p, p (A - mean))."""
    advantages = np.array([1.0, -0.5, 2.0, 0.3])
    total = sum(P[t] * advantages[t] * entropy_slope(P, t) for t in range(len(P)))
    y = P * (advantages - P @ advantages)
    covariance = P @ (np.log(P) * y) - (P @ np.log(P)) * (P @ y)
    assert total == pytest.approx(-covariance)


def test_entropy_in_nats():
    assert entropy(np.full((2, 4), 0.25)) == pytest.approx([log(4)] * 2)
    p = 1e-5  # a rare token counts in full
    closed = -p * log(p) - (1 - p) * log(1 - p)
    assert entropy(np.array([p, 1 - p])) == pytest.approx(closed, rel=1e-9)
    assert entropy(np.array([1.0, 0.0])) == 0


# --- One batch ------------------------------------------------------------

TOKENS = [0, 0, 1, 2, 3, 3, 0, 1]
ADVANTAGES = [1.0, -0.7, 0.4, -1.2, 1.5, 0.9, 0.3, -0.6]


@pytest.mark.parametrize(
    "low, high",
    [(0.2, 0.2), (0.2, 0.28), (0.1, 0.3), (inf, 0.2), (0.2, inf), (inf, inf)],
)
def test_update_climbs_the_clipped_objective(low, high):
    """Numerical gradient of the definition, step by step."""
    good, bad = by_id(TOKENS, ADVANTAGES, 4)
    logits, h = np.log(P), 1e-6
    for _ in range(6):
        gradient = np.zeros(4)
        for k in range(4):
            e = np.eye(4)[k] * h
            values = [
                surrogate(softmax(z), P, TOKENS, ADVANTAGES, low, high)
                for z in (logits + e, logits - e)
            ]
            gradient[k] = (values[0] - values[1]) / (2 * h)
        logits = logits + 0.4 * gradient
    got, _ = update(P[None], good[None], bad[None], low, high, 6, 0.4)
    np.testing.assert_allclose(got[0], softmax(logits), atol=1e-7)


def test_update_reports_what_the_upper_bound_cut():
    good, bad = by_id([3, 0], [1.0, 1.0], 4)
    _, none = update(P[None], good[None], bad[None], 0.2, 0.2, 1, 5.0)
    assert not none.any()  # the first pass is at r = 1
    _, cut = update(P[None], good[None], bad[None], 0.2, 0.2, 4, 0.5)
    ratio, logits, expected = 1.0, np.log(P), np.zeros(4)
    for _ in range(4):
        p = softmax(logits)
        ratio = p / P
        alive = np.where(ratio > 1.2, 0.0, good)
        expected += (good - alive) / 4
        push = ratio * alive
        logits = logits + 0.5 * (push - push.sum() * p)
    assert expected[3] > 0
    np.testing.assert_allclose(cut[0], expected)


def test_claim_only_one_bound_acts_on_each_sign():
    """high changes nothing for A < 0, low nothing for A > 0."""
    for sign, args in ((1, ((0.01, 0.2), (0.9, 0.2))),
                       (-1, ((0.2, 0.01), (0.2, 9.0)))):  # fmt: skip
        good, bad = by_id([3, 1], [sign * 1.0, sign * 0.5], 4)
        one, two = (
            update(P[None], good[None], bad[None], *band, 8, 0.5)[0] for band in args
        )
        np.testing.assert_array_equal(one, two)


def test_claim_one_update_never_meets_the_clip():
    rng = np.random.default_rng(1)
    old = rng.dirichlet(np.ones(5), 20)
    good, bad = sample(old, np.full(5, 0.5), 16, rng)
    first = update(old, good, bad, 0.2, 0.2, 1, 3.0)[0]
    for low, high in SIDES.values():
        same = update(old, good, bad, low, high, 1, 3.0)[0]
        np.testing.assert_array_equal(first, same)
    ratio = first / old
    assert ratio.max() > 1.28  # and nothing held it inside the band


def test_sample_standardises_each_group():
    rng = np.random.default_rng(2)
    p = np.tile(P, (200, 1))
    good, bad = sample(p, np.array([0.0, 0.0, 1.0, 1.0]), 16, rng)
    assert not good[:, :2].any() and not bad[:, 2:].any()
    np.testing.assert_allclose((good + bad).sum(1), 0, atol=1e-12)
    # k of 16 right: mean |A| = 2 sqrt(q (1 - q) (n - 1) / n), q = k / n
    q = np.arange(17) / 16
    allowed = np.sqrt(q * (1 - q) * 15 / 16)
    distance = np.abs(good.sum(1)[:, None] - allowed).min(1)
    assert distance.max() < 1e-4
    same, flat = sample(p, np.ones(4), 16, rng)
    assert not same.any() and not flat.any()  # all right: nothing to learn


def test_sample_follows_the_policy():
    rng = np.random.default_rng(3)
    p = np.array([[0.5, 0.3, 0.2]])
    n = 20000
    good, bad = sample(p, np.array([1.0, 0.0, 0.0]), n, rng)
    # rewards are 1[token 0], so A > 0 on token 0 only: sum = sqrt(q (1 - q))
    assert good[0] == pytest.approx([0.5, 0, 0], abs=0.01)
    assert bad[0, 1] / bad[0, 2] == pytest.approx(1.5, rel=0.05)


def test_train_returns_path_and_shares():
    path, share = train(
        P, np.full(4, 0.5), inf, inf, [3, 4],
        n=8, passes=2, step=0.1, rounds=3, runs=5,
    )  # fmt: skip
    assert path.shape == (4, 10, 4)
    np.testing.assert_allclose(path.sum(-1), 1)
    np.testing.assert_allclose(path[0], np.tile(P, (10, 1)))
    assert share.shape == (2, 3) and not share[:, 0].any()
    assert np.isnan(share[:, 1]).all() and (0 < share[:, 2]).all()
    assert (share[:, 2] < 1).all()


def test_each_seed_has_its_own_runs():
    kind = {"n": 8, "passes": 4, "step": 0.5, "rounds": 3, "runs": 5}
    both, shares = train(P, np.full(4, 0.5), 0.2, 0.2, [3, 4], **kind)
    for k, seed in enumerate((3, 4)):
        alone, share = train(P, np.full(4, 0.5), 0.2, 0.2, [seed], **kind)
        np.testing.assert_allclose(both[:, 5 * k : 5 * k + 5], alone)
        np.testing.assert_allclose(shares[k], share[0])


def test_by_seed_is_the_mean_of_each_seeds_runs():
    values = np.arange(30.0) ** 2
    got = page.by_seed(values).values
    assert got == pytest.approx([(values[3 * k : 3 * k + 3]).mean() for k in range(10)])
    assert page.signed(page.by_seed(values + 1)).startswith("+")
    assert page.signed(page.by_seed(-values - 1)).startswith("−")


def test_train_shares_by_hand():
    """The three numbers again, summed round by round with the same seed."""
    band, rates = (0.2, 0.2), np.full(4, 0.5)
    _, share = train(
        P, rates, *band, [4],
        n=8, passes=4, step=0.5, rounds=3, runs=5,
    )  # fmt: skip
    rng, policy = np.random.default_rng(4), np.tile(P, (5, 1))
    cut = total = old_cut = old_total = 0.0
    for _ in range(3):
        good, bad = sample(policy, rates, 8, rng)
        new, silent = update(policy, good, bad, *band, 4, 0.5)
        for b in range(5):
            for k in range(4):
                cut += silent[b, k]
                total += good[b, k]
                old_cut += policy[b, k] * silent[b, k]
                old_total += policy[b, k] * good[b, k]
        policy = new
    assert cut > 0
    want = [cut / total, old_cut / cut, old_total / total]
    np.testing.assert_allclose(share, [want])


# --- Experiments ----------------------------------------------------------


OTHERS = range(100, 110)
"""Seeds that the page does not use."""


def over_runs(values):
    """Mean and standard error over independent runs."""
    return values.mean(), values.std(ddof=1) / len(values) ** 0.5


def flips(start, *names, step=0.25, n=16, seeds=OTHERS, runs=60):
    """Change of entropy and its error under coin flips, for some bands."""
    found = []
    for x in names:
        path = train(
            np.asarray(start), np.full(len(start), 0.5),
            *(SIDES[x] if isinstance(x, str) else x),
            seeds, n=n, passes=16, step=step, rounds=20, runs=runs,
        )[0]  # fmt: skip
        found.append(over_runs(entropy(path[-1]) - entropy(path[0])))
    return found


COMMON = [0.6] + [0.04] * 10


@pytest.mark.parametrize(
    "start, other",
    [
        (COMMON, {"seeds": range(200, 210)}),
        (COMMON, {"step": 0.12}),
        (COMMON, {"step": 0.5}),
        (COMMON, {"n": 8}),
        (COMMON, {"n": 64}),
        ([0.9] + [0.01] * 10, {}),
        ([0.9, 0.1], {}),
    ],
)
def test_claim_the_order_holds_where_a_common_token_faces_rare_ones(start, other):
    names = "no clip", "upper 0.2 only", "0.2 / 0.2", "0.2 / 0.28"
    free, upper, narrow, wide = flips(start, *names, **other, runs=30)
    for (a, da), (b, db) in ((free, upper), (wide, narrow)):
        assert a - b > 2 * (da**2 + db**2) ** 0.5


def test_claim_the_order_reverses_from_a_uniform_start():
    names = "no clip", "upper 0.2 only", "0.2 / 0.2", "0.2 / 0.28"
    got = flips(np.full(11, 1 / 11), *names)
    assert [m for m, _ in got] == pytest.approx([-0.7, -0.48, -0.28, -0.32], abs=0.03)
    free, upper, narrow, wide = got
    for (a, da), (b, db) in ((upper, free), (narrow, wide)):
        assert a - b > 3 * (da**2 + db**2) ** 0.5
    # nothing is rare there: no token's push changes entropy at all
    assert entropy_slope(np.full(11, 1 / 11), 3) == pytest.approx(0, abs=1e-12)


def test_claim_small_steps_never_meet_the_bound_and_large_ones_collapse():
    free, narrow, wide = flips(
        COMMON, "no clip", "0.2 / 0.2", "0.2 / 0.28", step=0.03, runs=10
    )
    assert narrow == pytest.approx(free, abs=1e-3)
    assert wide == pytest.approx(free, abs=1e-3)
    free, open_top = flips(COMMON, "no clip", "lower 0.2 only", step=1.0)
    assert open_top[0] == pytest.approx(-1.5, abs=0.03) and free[0] < -1.4


def test_claim_a_band_symmetric_in_log_ratio_does_not_lose_entropy():
    ((mean, error),) = flips(COMMON, (1 - 1 / 1.2, 0.2))
    assert 0 < mean < 0.1 and mean > 2 * error


@cache
def others():
    """The page's experiment on other seeds: path and shares of each band."""
    return {
        name: train(
            np.array(COMMON), np.full(11, 0.5), *band, OTHERS,
            n=16, passes=16, step=0.25, rounds=20,
        )
        for name, band in SIDES.items()
    }  # fmt: skip


def paired(a, b):
    """Mean and error of the difference in final entropy, run by run."""
    return over_runs(entropy(others()[a][0][-1]) - entropy(others()[b][0][-1]))


def test_claim_upper_lowers_and_lower_raises_entropy():
    change = {
        n: over_runs(entropy(p[-1]) - entropy(p[0])) for n, (p, _) in others().items()
    }
    assert change["upper 0.2 only"][0] == pytest.approx(-0.67, abs=0.05)
    assert change["lower 0.2 only"][0] == pytest.approx(0.3, abs=0.04)
    assert change["0.2 / 0.2"][0] == pytest.approx(-0.1, abs=0.05)
    for name, sign in (("upper 0.2 only", -1), ("lower 0.2 only", 1),
                       ("0.2 / 0.2", -1), ("0.28 / 0.28", -1),
                       ("0.2 / 0.28", 1), ("0.1 / 0.2", 1)):  # fmt: skip
        mean, error = change[name]
        assert sign * mean > 3 * error
    for a, b in (("no clip", "upper 0.2 only"), ("lower 0.2 only", "no clip"),
                 ("0.2 / 0.28", "0.2 / 0.2"), ("0.2 / 0.28", "0.28 / 0.28"),
                 ("0.1 / 0.2", "0.2 / 0.28")):  # fmt: skip
        gap, error = paired(a, b)
        assert gap > 4 * error


def test_claim_the_silenced_tokens_are_rare():
    for band in ("0.2 / 0.2", "0.2 / 0.28"):
        _, shares = others()[band]
        for _, cut, everything in shares:
            assert everything > 3.5 * cut
            assert cut == pytest.approx(0.07, abs=0.015)
            assert everything == pytest.approx(0.37, abs=0.08)


def test_claim_from_a_peaked_start_the_two_sides_cancel():
    """Common token at 0.9: symmetric 0.2 is level, 0.28 is not."""
    start = [0.9] + [0.01] * 10
    free, narrow, wide = flips(start, "no clip", "0.2 / 0.2", "0.2 / 0.28")
    assert abs(narrow[0]) < 0.03
    assert free[0] == pytest.approx(0.7, abs=0.1)
    assert wide[0] == pytest.approx(0.2, abs=0.04)


def test_the_rare_token_that_is_better():
    np.testing.assert_allclose(START, [0.8] + [0.02] * 10)
    np.testing.assert_allclose(RATES, [0.5, 0.8] + [0.5] * 9)


def learn(low, high, seeds=OTHERS, rounds=40):
    return train(
        START, RATES, low, high, seeds,
        n=64, passes=16, step=0.25, rounds=rounds, runs=30,
    )[0]  # fmt: skip


def test_claim_a_rare_better_token_rises_sooner_and_ends_lower():
    bands = {"wide": (0.2, 0.28), "narrow": (0.2, 0.2), "free": (inf, inf)}
    path = {name: learn(*band) for name, band in bands.items()}
    mass = {name: x[20, :, 1].mean() for name, x in path.items()}
    assert mass["free"] > 1.5 * mass["wide"]
    assert mass["wide"] / mass["narrow"] == pytest.approx(2, abs=0.3)
    wide, narrow = (entropy(path[n]).mean(1) for n in ("wide", "narrow"))
    assert wide[10] > narrow[10] + 0.1
    assert wide[40] == pytest.approx(0.29, abs=0.04)
    assert narrow[40] == pytest.approx(0.45, abs=0.05)
    after = np.flatnonzero(wide[1:] < narrow[1:]) + 1
    assert 18 <= after[0] <= 21 and (np.diff(after) == 1).all()
    assert max(wide) > wide[0] + 0.5


def test_claim_raising_both_bounds_helps_the_good_token_as_much():
    both, error = over_runs(learn(0.28, 0.28, rounds=20)[20, :, 1])
    wide, other = over_runs(learn(0.2, 0.28, rounds=20)[20, :, 1])
    assert abs(both - wide) < 2 * (error**2 + other**2) ** 0.5


# --- Tables and figures ---------------------------------------------------


def cells(table):
    lines = table.splitlines()[2:]
    return [[c.strip() for c in x.split("|")[1:-1]] for x in lines]


def number(text):
    return float(text.replace("−", "-").split()[0])


def test_table_of_ceilings():
    rows = cells(page.table_ceiling())
    for p, at, higher, room, pace, slope in rows:
        p = float(p)
        for cell, high in ((at, 1.2), (higher, 1.28)):
            if cell == "none":
                assert p * high >= 1
            else:
                assert float(cell) == pytest.approx(p * high)
        assert number(room) == pytest.approx(min(0.2 * p, 1 - p))
        assert float(pace) == pytest.approx(2 * (1 - p) ** 2, abs=5e-3)
        h = 1e-6  # entropy of two tokens, moved along the logits
        move = 2 * p * (1 - p) ** 2  # d p / d step
        expected = (entropy(np.array([p + h, 1 - p - h]))
                    - entropy(np.array([p - h, 1 - p + h]))) / (2 * h)  # fmt: skip
        assert number(slope) == pytest.approx(expected * move, abs=6e-3)
    assert [r[0] for r in rows] == ["0.001", "0.01", "0.1", "0.5", "0.8", "0.9"]


def assert_cell(cell, values, digits):
    """The cell is "mean ± standard deviation" of ten values."""
    assert len(values) == 10
    got = [number(x) for x in cell.split("±")]
    want = [np.mean(values), np.std(values, ddof=1)]
    assert got == pytest.approx(want, abs=0.501 * 10.0**-digits)


def blocks(values):
    return [values[60 * k : 60 * k + 60].mean() for k in range(10)]


def test_table_of_coin_flips():
    rows = cells(page.table_coin())
    assert [row[0] for row in rows] == list(SIDES)
    again = train(
        np.array(COMMON), np.full(11, 0.5), 0.2, 0.28, range(10),
        n=16, passes=16, step=0.25, rounds=20, runs=60,
    )  # fmt: skip
    for one, two in zip(again, coin_flips()["0.2 / 0.28"], strict=True):
        np.testing.assert_allclose(one, two)
    for name, change, mass, cut, rare, every in rows:
        path, share = coin_flips()[name]
        gap = entropy(path[-1]) - entropy(path[0])
        assert_cell(change, blocks(gap), 2)
        assert change[0] == ("+" if gap.mean() > 0 else "−")
        assert_cell(mass, blocks(path[-1][:, 1:].sum(-1)), 2)
        if rare == "–":
            assert cut == "0" and SIDES[name][1] == inf
        else:
            assert_cell(cut, 100 * share[:, 0], 0)
            assert_cell(rare, share[:, 1], 3)
        assert_cell(every, share[:, 2], 2)


def test_table_of_updates_per_batch():
    rows = cells(page.table_passes())
    assert [r[0] for r in rows] == ["1", "2", "4", "16"]
    assert rows[0][1] == rows[0][2] == rows[0][3]
    assert rows[0][4:] == ["0", "0"]
    for row in rows[1:]:
        free, narrow, wide = (number(c) for c in row[1:4])
        assert free > wide > narrow
        assert number(row[4]) > number(row[5]) > 0
    narrow = [number(r[2]) for r in rows]
    assert narrow == sorted(narrow, reverse=True)
    for row in rows:
        passes = int(row[0])
        for k, band in enumerate(("no clip", "0.2 / 0.2", "0.2 / 0.28")):
            path, share = learning(band, passes, 20)
            mass = path[-1][:, 1].reshape(10, 30).mean(1)
            assert_cell(row[1 + k], mass, 2)
            if k and passes > 1:
                assert_cell(row[3 + k], 100 * share[:, 0], 1)


def test_learning_is_the_experiment_told():
    for passes in (1, 4):
        path, share = train(
            START, RATES, 0.2, 0.28, range(10),
            n=64, passes=passes, step=4 / passes, rounds=20, runs=30,
        )  # fmt: skip
        got = learning("0.2 / 0.28", passes, 20)
        np.testing.assert_allclose(path, got[0])
        np.testing.assert_allclose(share, got[1])
    assert page.BANDS == {
        "no clip": (inf, inf),
        "0.2 / 0.2": (0.2, 0.2),
        "0.2 / 0.28": (0.2, 0.28),
    }


def test_figure_of_coin_flips():
    (axes,) = page.figure_coin().axes
    assert "nats" in axes.get_xlabel()
    names = [t.get_text() for t in axes.get_yticklabels()]
    widths = [p.get_width() for p in axes.patches]
    assert names == list(SIDES)[::-1]
    for name, width in zip(names, widths, strict=True):
        path = coin_flips()[name][0]
        expected = (entropy(path[-1]) - entropy(path[0])).mean()
        assert width == pytest.approx(expected)
    segments = [c.get_segments()[0] for c in axes.collections]  # error bars
    for name, ((left, _), (right, _)) in zip(names, segments, strict=True):
        gap = np.diff(entropy(coin_flips()[name][0][[0, -1]]), axis=0)[0]
        assert right - left == pytest.approx(2 * np.std(blocks(gap), ddof=1))


def test_figure_of_learning():
    mass, disorder = page.figure_learning().axes
    assert "nats" in disorder.get_ylabel()
    order = ("no clip", "0.2 / 0.28", "0.2 / 0.2")
    for top, low, name in zip(mass.lines, disorder.lines, order, strict=True):
        path = learning(name)[0]
        np.testing.assert_allclose(top.get_ydata(), path[:, :, 1].mean(1))
        np.testing.assert_allclose(low.get_ydata(), entropy(path).mean(1))
        assert path.shape == (41, 300, 11)
        assert top.get_color() == low.get_color()
    for axes in (mass, disorder):
        labels = {t.get_text() for t in axes.texts}
        assert labels == set(order)
        assert len(axes.collections) == 3
    spread = learning("0.2 / 0.2")[0][20, :, 1].reshape(10, 30).mean(1).std(ddof=1)
    corners = mass.collections[2].get_paths()[0].vertices
    height = corners[corners[:, 0] == 20][:, 1]
    assert height.max() - height.min() == pytest.approx(2 * spread)
