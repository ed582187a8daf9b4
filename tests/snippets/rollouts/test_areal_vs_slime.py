"""Both remedies by hand and against other code; the claims of the page."""

import gc
import math

import numpy as np
import pytest

from snippets.rollouts import areal_vs_slime as page
from snippets.rollouts import rollout_long_tail as tail
from snippets.rollouts.areal_vs_slime import (
    AREAL,
    BASE,
    BOUND8,
    LINES,
    RESUME,
    SMALL,
    SYNC,
    Episode,
    Load,
    coefficient,
    colocated,
    episodes,
    found,
    gain,
    measure,
    streamed,
    thin,
)
from snippets.rollouts.async_rl_frameworks import pipeline
from snippets.rollouts.rollout_long_tail import Setup

TINY = Setup(slots=2, groups=2, size=1, train=10.0, updates=3, warmup=1)


@pytest.fixture(autouse=True, scope="module")
def no_collector():
    """The simulations make many small objects and no reference cycles."""
    gc.disable()
    yield
    gc.enable()


def listed(*turns):
    """A source that hands out these episodes, one a group."""
    left = iter(enumerate(turns))

    def source(groups):
        pairs = [next(left) for _ in range(groups)]
        return [Episode(k, t if isinstance(t, list) else [(t, 0.0)]) for k, t in pairs]

    return source


# --- The law --------------------------------------------------------------


def test_law_is_the_larger_of_work_and_tail():
    assert page.rollout_time(1000, 100, 2, 50, 10) == 10
    assert page.rollout_time(1000, 100, 1, 50, 10) == 20
    assert page.rollout_time(1000, 100, 1, 50, 2) == 50
    # more GPUs change the first term only, faster streams the second
    assert page.rollout_time(1000, 100, 10**9, 50, 10) == 10
    assert page.rollout_time(1000, 100, 4, 50, 10**9) == 5


def test_claim_seconds_of_a_64k_response():
    tokens = 64 * 1024
    times = [page.waiting(tokens, 0, rate) for rate in (10, 60, 70)]
    assert [round(x) for x in times] == [6554, 1092, 936]
    assert round(page.waiting(tokens, 32 * 1024, 60)) == 1638


def test_table_of_the_law():
    rows = [
        [c.strip() for c in line.split("|")[2:-1]]
        for line in page.table_law().splitlines()[2:]
    ]
    total = 512 * page.mean_length(Load())
    for k, n in enumerate((1, 2, 4, 8, 64)):
        work = total / (n * 3840)
        assert rows[0][k] == f"{work:,.0f}"
        assert rows[1][k] == f"{max(work, 32768 / 60):,.0f}"
        assert rows[2][k] == f"{max(work, 32768 / 120):,.0f}"


# --- By hand --------------------------------------------------------------


def test_colocated_with_an_environment_by_hand():
    """Episode 0: 5 tokens, waits 100, 5 tokens; its slot is free then."""
    log = colocated(TINY, listed([(5, 100.0), (5, 0.0)], 20, 3, 3, 3, 3))
    assert log.trains[0] == (110, 120)
    assert [e.spans for e in log.batches[0]] == [[(0, 20)], [(0, 5), (0, 5)]]
    assert log.ends == [120, 133, 146] and log.tokens[0] == 30


def test_resumed_by_hand():
    """3 groups for a batch of 2; the 30 is cut at 10 and finished later."""
    s = Setup(slots=3, groups=2, size=1, train=10.0, updates=3, warmup=1)
    log = colocated(s, listed(5, 30, 10, 4, 40, 7, 99), 1)
    assert log.trains == [(10, 20), (40, 50), (70, 80)]
    # 20: the 30 (10 left: 20 more) and 4, 40 start; 4 ends at 24, 30 at 40
    assert [e.spans for e in log.batches[1]] == [[(1, 4)], [(0, 10), (1, 20)]]
    assert log.lost == [0, 0, 0] and log.again == [0, 10, 30]


def test_dropped_by_hand():
    s = Setup(slots=3, groups=2, size=1, train=10.0, updates=2, warmup=1)
    log = colocated(s, listed(5, 30, 10, 4, 40, 7), 1, "drop")
    assert log.trains == [(10, 20), (27, 37)]
    assert log.lost == [10, 17] and log.tokens == [25, 43]
    assert [e.length for b in log.batches for e in b] == [5, 10, 4, 7]


def test_restarted_keeps_finished_members_and_loses_the_cut_ones():
    """One slot, batches of one group; an update lasts 20 on its half."""
    s = Setup(slots=2, groups=1, size=1, train=10.0, updates=2, warmup=1)
    log = streamed(s, listed(5, 30, 6), 0.5, 1, how="restart")
    # 5 ends at 5; trained 5-25; the 30 (20 done) starts over at 25
    assert log.ends == [25, 75] and log.lost == [20, 20]
    assert log.batches[1][0].spans == [(1, 30)]
    kept = streamed(s, listed(5, 30, 6), 0.5, 1)
    assert kept.batches[1][0].spans == [(0, 20), (1, 10)]
    assert kept.lost == [0, 0] and kept.again == [20, 20]


def test_restarting_loses_earlier_turns_too():
    s = Setup(slots=2, groups=1, size=1, train=10.0, updates=2, warmup=1)
    log = streamed(s, listed(5, [(3, 0.0), (30, 0.0)], 6), 0.5, 1, how="restart")
    # at 25: 3 tokens of turn one and 17 of turn two are thrown away; the
    # second turn then queues behind the 6, so at 54 it is 3 and 20
    assert log.trains[1] == (34, 54) and log.lost == [20, 43]


def test_the_worker_publishes_only_with_the_next_batch():
    s = Setup(slots=2, groups=1, size=1, train=2.0, updates=2, warmup=1)
    lengths = (5, 30, 6, 6, 6, 6)
    bound = streamed(s, listed(*lengths), 0.5, 1)
    worker = streamed(s, listed(*lengths), 0.5, pool=1)
    assert bound.ends[0] == 9  # 5 + 2 / 0.5
    assert worker.trains[0] == (5, 9) and worker.ends[0] == 35


def test_a_pool_bounds_running_and_waiting():
    """Slow trainer: one collected and one waiting, not more."""
    s = Setup(slots=2, groups=1, size=1, train=500.0, updates=2, warmup=1)
    log = streamed(s, listed(*[10] * 9), 0.5, pool=1)
    assert log.tokens[0] == 30  # with the one in training


def test_thin_and_quick_by_hand():
    assert [thin(3)(x) for x in (1.0, 0.0)] == [1, pytest.approx(1 / 3)]
    assert thin(3)(0.5) == pytest.approx(0.5)
    assert page.quick(2)(0.1) == 0.5
    s = Setup(slots=2, groups=2, size=1, train=0.0, updates=1, warmup=1)
    log = colocated(s, listed(10, 20), step=thin(3))
    # 10 steps with both slots, 10 steps with half of them at 1/2
    assert log.ends == [15]


# --- Against other code ---------------------------------------------------


def plain(seed, size):
    """The prompts of the long-tail page as episodes of one turn."""
    made = tail.prompts(seed, size)

    def source(groups):
        return [Episode(r.group, [(r.length, 0.0)]) for r in made(groups)]

    return source


def spans(batches):
    return [[r.spans for r in batch] for batch in batches]


PLAIN = Setup(slots=32, groups=8, size=4, updates=6, warmup=2)


@pytest.mark.parametrize("extra, how", [(0, "keep"), (4, "keep"), (4, "drop")])
def test_colocated_is_the_one_of_the_long_tail(extra, how):
    log = colocated(PLAIN, plain(3, 4), extra, how)
    run = tail.colocated(PLAIN, tail.prompts(3, 4), extra, how == "keep")
    assert log.ends == run.ends and log.tokens == run.tokens
    assert np.diff([0, *log.lost]).tolist() == run.drops
    assert spans(log.batches) == spans(run.batches)


@pytest.mark.parametrize("eta", [0, 1, 3])
def test_streamed_is_the_pipeline(eta):
    log = streamed(PLAIN, plain(3, 4), 0.4, eta)
    run = pipeline(PLAIN, tail.prompts(3, 4), 0.4, eta)
    assert log.ends == run.ends
    np.testing.assert_allclose(log.trains, run.trains, atol=1)
    assert spans(log.batches) == spans(run.batches)
    assert log.again[-1] == run.engine.reprefilled


def test_nothing_is_lost_or_doubled_when_resuming():
    s, load = page.replace(SMALL, updates=6), Load(waits=1.0)
    logs = [
        colocated(s, episodes(1, 4, load), 8),
        streamed(s, episodes(1, 4, load), 0.4, 2),
        streamed(s, episodes(1, 4, load), 0.4, pool=16),
    ]
    for log in logs:
        seen = [e for batch in log.batches for e in batch]
        assert len({id(e) for e in seen}) == len(seen)
        for k, batch in enumerate(log.batches):
            groups = {e.group for e in batch}
            assert len(batch) == 64 and len(groups) == 16
            for e in batch:
                versions = [v for v, _ in e.spans]
                assert versions == sorted(versions) and versions[-1] <= k
                assert sum(n for _, n in e.spans) == e.length


# --- Loads ----------------------------------------------------------------


def test_pareto_lengths():
    rng = np.random.default_rng(0)
    drawn = page.lengths(rng, 20000, 4, Load(alpha=2.0))
    assert np.median(drawn) == pytest.approx(3000, rel=0.02)
    for times in (2, 4):
        share = (drawn > 3000 * times).mean()
        assert share == pytest.approx(0.5 / times**2, rel=0.06)
    assert drawn.min() == pytest.approx(3000 / math.sqrt(2), abs=1)
    assert drawn.max() == 32768
    member = np.log(drawn)
    assert np.corrcoef(member[:, 0], member[:, 1])[0, 1] > 0.3


def test_mean_length_of_the_base_load():
    exact = tail.mean_length()
    assert page.mean_length(Load()) == pytest.approx(exact, rel=0.01)
    assert page.mean_length(Load(sigma=0.0)) == 3000


def test_waits_are_the_wanted_multiple_of_decoding():
    load = Load(waits=2.0)
    drawn = episodes(0, 4, load)(1000)
    short = episodes(0, 4, Load())(1000)
    assert [e.length for e in drawn] == [e.length for e in short]
    wait = np.mean([sum(w for _, w in e.turns) for e in drawn])
    assert wait == pytest.approx(2 * page.mean_length(load), rel=0.06)
    turns = np.mean([len(e.turns) for e in drawn])
    assert turns == pytest.approx(3, rel=0.05)
    assert min(n for e in drawn for n, _ in e.turns) >= 1


def test_every_schedule_gets_the_same_prompts():
    s, load = page.replace(SMALL, updates=4), Load(waits=1.0)
    before = [[list(turns) for turns in row] for row in page.dataset(1, 4, load)]
    colocated(s, episodes(1, 4, load), 8)
    streamed(s, episodes(1, 4, load), 0.4, pool=16, how="restart")
    source = episodes(1, 4, load)
    again = source(3) + source(0) + source(-2) + source(2)
    assert [e.turns for e in again] == [t for row in before[:5] for t in row]
    assert [e.group for e in again] == [k for k in range(5) for _ in range(4)]


def test_another_update_time_without_simulating_again():
    slow = page.replace(SMALL, train=40000.0)
    for name in (page.ALONE, RESUME):
        assert page.retimed(name, 40000.0) == pytest.approx(gain(name, slow))


def test_measure_by_an_independent_loop():
    s = Setup(slots=4, groups=1, size=2, train=3.0, updates=3, warmup=1)
    log = page.Log(4)
    for k in range(3):
        a = Episode(k, [(10, 0.0)], spans=[(0, 4), (k, 6)])
        b = Episode(k, [(30, 0.0)], spans=[(max(k - 1, 0), 30)])
        log.batches.append([a, b])
        log.trains.append((10.0 * k + 7, 10.0 * k + 10))
        log.ends.append(10.0 * k + 10)
        log.lost.append(5 * (k + 1))
        log.tokens.append(50 * (k + 1))
        log.again.append(8 * (k + 1))
    got = measure(s, log)
    assert got["time"] == 10 and got["rate"] == 4 and got["length"] == 20
    assert got["wait"] == pytest.approx(0.7)
    assert got["lost"] == pytest.approx(0.1)
    assert got["again"] == pytest.approx(16 / 80)
    assert got["stale"] == pytest.approx((4 + 30 + 4 + 30) / 80)
    assert got["mixed"] == 0.5 and got["whole"] == 0.5
    assert got["lag"] == pytest.approx((1 + 1 + 2 + 1) / 4)


# --- Weights --------------------------------------------------------------


def losses():
    """Each rule written again, as loss(theta, trainer, engine, a)."""

    def ppo(theta, anchor, a):
        r = math.exp(theta - anchor)
        return -min(r * a, min(max(r, 0.8), 1.2) * a)

    def paper(theta, trainer, engine, a):
        r, w = math.exp(theta - trainer), math.exp(trainer - engine)
        u = theta - engine  # first form of the paper's objective, eq. 4
        clip = min(max(r, 0.8), 1.2) * w
        return -min(math.exp(u) * a, clip * a)

    def masked(theta, trainer, engine, a):
        w = math.exp(trainer - engine)
        return 0.0 if w > 5 else w * ppo(theta, trainer, a)

    def tis(theta, trainer, engine, a):
        w = math.exp(trainer - engine)
        return min(max(w, 0.0), 2.0) * ppo(theta, trainer, a)

    by_engine = lambda t, _, e, a: ppo(t, e, a)  # noqa: E731
    by_trainer = lambda t, p, _, a: ppo(t, p, a)  # noqa: E731
    made = [by_engine, by_trainer, masked, paper, by_trainer, tis, by_engine]
    return dict(zip(page.RULES, made, strict=False))


@pytest.mark.parametrize("rule", list(page.RULES)[:-1])
@pytest.mark.parametrize("a", [1, -1])
def test_coefficients_by_finite_differences(rule, a):
    loss, h = losses()[rule], 1e-6
    for w in (0.3, 0.5, 0.9, 1.1, 1.5, 3.0, 8.0):
        engine = math.log(0.01)
        trainer = engine + math.log(w)
        up, down = (loss(trainer + d, trainer, engine, a) for d in (h, -h))
        expected = -(up - down) / (2 * h) / a
        assert coefficient(w, a, rule) == pytest.approx(expected, abs=1e-6)


def test_masking_silences_stale_tokens_only():
    rule = list(page.RULES)[-1]
    assert coefficient(8.0, 1, rule) == 0 == coefficient(1.0, -1, rule)
    assert coefficient(8.0, 1, rule, stale=False) == 1


def test_claim_decoupled_alone_corrects_nothing():
    alone = "AReaL, `use_decoupled_loss` alone"
    for w in (0.1, 1.0, 8.0):
        for a in (1, -1):
            assert coefficient(w, a, alone) == 1
            assert coefficient(w, a, "slime, defaults") == 1


def test_claim_anchored_at_the_engine_the_clip_acts_on_stale_tokens():
    rule = "AReaL, code defaults"
    assert coefficient(1.3, 1, rule) == 0 == coefficient(0.7, -1, rule)
    assert coefficient(8.0, -1, rule) == 8  # the unbounded corner


def test_table_of_weights_shows_the_coefficients():
    cases = [(1, 0.5), (1, 1.0), (1, 1.5), (1, 8.0), (-1, 0.5), (-1, 8.0)]
    lines = page.table_weights().splitlines()[2:]
    assert len(lines) == len(page.RULES)
    for line, rule in zip(lines, page.RULES, strict=True):
        cells = [c.strip() for c in line.split("|")[1:-1]]
        assert cells[0] == rule
        got = [float(x) for x in cells[1:]]
        assert got == [coefficient(w, a, rule) for a, w in cases]


# --- Claims ---------------------------------------------------------------


def test_claim_dropping_trains_on_short_responses():
    f = found("over-sample, drop")
    assert 1 - f["length"] / found(SYNC)["length"] == pytest.approx(0.31, abs=0.01)
    assert f["lost"] == pytest.approx(0.49, abs=0.01)
    assert found(SYNC)["time"] / f["time"] == pytest.approx(1.59, abs=0.01)
    assert gain("over-sample, drop") == pytest.approx(1.09, abs=0.01)


def test_claim_the_two_remedies_in_speed_and_age():
    assert gain(page.ALONE) == pytest.approx(1.54, abs=0.01)
    assert gain(RESUME) == pytest.approx(1.77, abs=0.01)
    assert gain(AREAL) == pytest.approx(1.95, abs=0.01)
    resumed, cut = found(RESUME), found(AREAL)
    assert resumed["stale"] == pytest.approx(0.57, abs=0.005)
    assert resumed["whole"] == pytest.approx(0.31, abs=0.005)
    assert resumed["lag"] == pytest.approx(0.5, abs=0.05)
    assert cut["stale"] > 0.995 and cut["lag"] == pytest.approx(1.7, abs=0.05)
    assert found(page.TWICE)["stale"] == 0


def test_claim_the_worker_is_as_fast_as_the_bound_here():
    kept = found("slime's worker, resumed")
    assert kept["rate"] == pytest.approx(found(AREAL)["rate"], rel=0.01)


def test_claim_another_draw_moves_gains_by_a_few_percent():
    """Seed 1: other prompts, the same conclusions."""
    base = found(SYNC, SMALL, Load(), 1)["rate"]
    other = found(AREAL, SMALL, Load(), 1)["rate"] / base
    assert other == pytest.approx(gain(AREAL, SMALL), rel=0.08)


def test_twice_the_speed_is_half_of_the_decoding_time():
    s = page.replace(PLAIN, updates=4, warmup=1)
    make = page.REMEDIES[page.TWICE]
    long = page.replace(s, updates=8)
    want = measure(long, make(long, episodes(0, 4, Load()), Load()))
    got = found(page.TWICE, s)
    for key, value in want.items():
        assert got[key] == pytest.approx(value, rel=1e-3), key


def test_claim_the_split_gives_39_percent_to_generation():
    work = 32 * 8 * tail.mean_length() / 128
    share = page.split(BASE, Load())
    assert share == pytest.approx(work / (work + 14000), abs=0.002)
    assert round(100 * share) == 39


def test_claim_remedies_add_up_in_part():
    both = gain(AREAL + ", decoding 2×")
    assert both == pytest.approx(2.43, abs=0.01)
    assert both > gain(AREAL) and both < 0.9 * gain(AREAL) * gain(page.TWICE)


def test_claim_starting_over_costs_a_fifth_of_the_tokens():
    again, kept = (
        found("slime's worker, started over"),
        found("slime's worker, resumed"),
    )
    assert again["lost"] == pytest.approx(0.2, abs=0.01)
    assert again["time"] / kept["time"] == pytest.approx(1.24, abs=0.015)


def test_claim_equal_lengths_leave_nothing_to_gain():
    for name in LINES:
        assert gain(name, SMALL, Load(sigma=0.0)) == pytest.approx(1, abs=0.02)


def test_claim_faster_streams_get_three_quarters_of_the_gain():
    for load in (Load(), Load(alpha=1.1)):
        first, *others = (gain(x, SMALL, load) - 1 for x in LINES)
        assert 0.7 < first / max(others) < 0.8


def test_claim_slow_environments():
    load = Load(waits=4.0)
    fast, resumed, cut = (gain(x, SMALL, load) for x in LINES)
    assert fast == pytest.approx(1.02, abs=0.01)
    assert resumed == pytest.approx(2.46, abs=0.01)
    assert cut == pytest.approx(4.18, abs=0.01)
    assert gain(BOUND8, SMALL, load) == pytest.approx(6.08, abs=0.01)


def flight(n):
    """Interrupting and resuming with n batches in flight."""
    names = f"interrupt, η = {n - 1}", f"resume, {n} batches"
    return [
        found(x, SMALL, page.SLOW) | {"gain": gain(x, SMALL, page.SLOW)} for x in names
    ]


def test_claim_resuming_is_no_slower_with_as_many_in_flight():
    for n in page.FLIGHTS:
        cut, resumed = flight(n)
        assert resumed["gain"] > 0.98 * cut["gain"]
        assert resumed["stale"] < cut["stale"]


# --- Products -------------------------------------------------------------


def cells(table):
    return {
        row[0]: row[1:]
        for row in (
            [c.strip() for c in line.split("|")[1:-1]]
            for line in table.splitlines()[2:]
        )
    }


def test_table_of_remedies():
    table = cells(page.table_remedies())
    assert [x for x in table if x in page.MORE] == [AREAL] and len(table) == 9
    for name, row in table.items():
        f = found(name)
        rate = BASE.groups * BASE.size * f["length"] / f["time"]
        assert f["rate"] == pytest.approx(rate, rel=0.03)
        assert float(row[0][:-1]) == pytest.approx(
            found(SYNC)["time"] / f["time"], abs=0.0051
        )
        assert float(row[1][:-1]) == pytest.approx(gain(name), abs=0.0051)
        assert row[5] == f"{f['stale']:.0%}" and row[2] == f"{f['lost']:.0%}"
        assert float(row[4].replace(",", "")) == round(f["length"])


def test_table_of_tails():
    table = cells(page.table_tails())
    assert list(table) == list(page.TAILS)
    for name, load in page.TAILS.items():
        got = [float(x[:-1]) for x in table[name][1:]]
        assert got == [pytest.approx(gain(x, SMALL, load), abs=0.0051) for x in LINES]
    assert float(table["all equal"][0]) == 1


def test_table_of_flights():
    table = cells(page.table_flight())
    assert list(table) == ["3", "9"]
    for n in page.FLIGHTS:
        row = table[str(n)]
        for k, f in enumerate(flight(n)):
            assert row[3 * k] == f"{f['gain']:.2f}×"
            assert row[3 * k + 1] == f"{f['lag']:.1f}"
            assert row[3 * k + 2] == f"{f['stale']:.0%}"


def test_figure():
    top, low = page.figure_where().axes
    assert "decode steps" in top.get_xlabel()
    assert "environment" in low.get_xlabel()
    for axes, key, x in (
        (top, "train", [1, 14, 40]),
        (low, "waits", [0, 2, 4]),
    ):
        data = page.curves()[key]
        for line, y in zip(axes.lines, data.values(), strict=False):
            assert list(line.get_xdata()) == x
            assert list(line.get_ydata()) == y
    for y in page.curves()["train"].values():  # a busy trainer shrinks all
        assert sorted(y, reverse=True) == y
    fast = page.curves()["waits"][page.ALONE]
    assert fast[-1] < 1.05 < fast[0]
