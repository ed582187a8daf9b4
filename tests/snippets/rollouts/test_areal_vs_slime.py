"""Both remedies by hand and against other code; the claims of the page."""

import gc
import math

import numpy as np
import pytest

from snippets.rollouts import areal_vs_slime as page
from snippets.rollouts import rollout_long_tail as tail
from snippets.rollouts.areal_vs_slime import (
    AGAIN,
    ALONE,
    AREAL,
    AREAL_TWICE,
    BASE,
    DROP,
    KEPT,
    LINES,
    MANY,
    RESUME,
    SLOW,
    SMALL,
    SYNC,
    WHOLE,
    Episode,
    Load,
    coefficient,
    colocated,
    episodes,
    found,
    gain,
    mean_of,
    measure,
    streamed,
    thin,
)
from snippets.rollouts.async_rl_frameworks import pipeline
from snippets.rollouts.rollout_long_tail import Setup

OTHERS = range(100, 108)  # seeds that the page does not print
LOGNORMAL = Load()
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
    total = 512 * tail.mean_length()
    for k, n in enumerate((1, 2, 4, 8, 64)):
        work = total / (n * 3840)
        assert rows[0][k] == f"{work:,.0f}"
        assert rows[1][k] == f"{max(work, 32768 / 60):,.0f}"
        assert rows[2][k] == f"{max(work, 32768 / 120):,.0f}"
    assert rows[0][0] == rows[1][0] == "593"  # one GPU: the work binds
    assert rows[1][1:] == ["546"] * 4 and rows[2][4] == "273"


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
    drawn, short = [], []
    for seed in range(3):
        drawn += episodes(seed, 4, load)(400)
        short += episodes(seed, 4, Load())(400)
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


def test_a_used_up_data_set_is_an_error():
    source = episodes(0, 4, Load())
    assert len(source(page.PROMPTS)) == 4 * page.PROMPTS
    with pytest.raises(RuntimeError, match="used up"):
        source(1)


def test_another_update_time_without_simulating_again():
    slow = page.replace(SMALL, train=40000.0)
    for name in (ALONE, WHOLE):
        mine = page.retimed(name, 40000.0, OTHERS)
        again = gain(name, slow, Load(), OTHERS)
        assert mine.values == pytest.approx(again.values)


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
    assert got["whole"] == 0.5
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
    near = (0.79, 0.81, 1.19, 1.21, 1.99, 2.01, 4.99, 5.01)  # every threshold
    for w in (0.3, 0.5, 0.9, 1.1, 1.5, 3.0, 8.0, *near):
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


# --- Claims: order, sign and rough size, on seeds that are not printed ------


def gains(names, s=BASE, load=LOGNORMAL):
    return [gain(name, s, load, OTHERS).mean for name in names]


def test_claim_dropping_trains_on_short_responses():
    share = mean_of("length", DROP, BASE, Load(), OTHERS).mean
    share /= mean_of("length", SYNC, BASE, Load(), OTHERS).mean
    assert 1 - share == pytest.approx(1 / 3, abs=0.05)
    lost = mean_of("lost", DROP, BASE, Load(), OTHERS)
    assert lost.mean == pytest.approx(0.5, abs=0.04)
    updates = gain(DROP, BASE, Load(), OTHERS, "time")
    tokens = gain(DROP, BASE, Load(), OTHERS)
    assert updates.mean == pytest.approx(1.6, abs=0.1)
    assert tokens.mean == pytest.approx(1.1, abs=0.06)


def test_claim_the_remedies_in_speed():
    alone, half, whole, cut = gains((ALONE, RESUME, WHOLE, AREAL))
    assert alone == pytest.approx(1.6, abs=0.06)
    assert half == pytest.approx(1.8, abs=0.07)
    assert alone < half < min(whole, cut)
    assert [whole, cut] == pytest.approx([2.0, 2.0], abs=0.1)
    sync = mean_of("time", SYNC, BASE, Load(), OTHERS).mean
    floor = 256 * tail.mean_length() / 128 + 14000  # full slots
    assert max(whole, cut) < 1.05 * sync / floor


def test_claim_the_remedies_in_age():
    for name, share, age in ((RESUME, 0.55, 0.5), (WHOLE, 0.70, 1.0)):
        stale = mean_of("stale", name, BASE, Load(), OTHERS).mean
        assert stale == pytest.approx(share, abs=0.02)
        lag = mean_of("lag", name, BASE, Load(), OTHERS).mean
        assert lag == pytest.approx(age, abs=0.03)
    whole = mean_of("whole", RESUME, BASE, Load(), OTHERS).mean
    assert whole == pytest.approx(0.30, abs=0.02)
    for name in (AREAL, KEPT):
        assert mean_of("stale", name, BASE, Load(), OTHERS).mean > 0.99
    assert mean_of("lag", AREAL, BASE, Load(), OTHERS).mean < 2
    for name in (SYNC, ALONE, page.TWICE):
        assert mean_of("stale", name, BASE, Load(), OTHERS).values == (0,) * 8


def test_claim_the_worker_is_as_fast_as_the_bound_here():
    cut, kept = gains((AREAL, KEPT))
    assert kept == pytest.approx(cut, rel=0.02)


def test_claim_what_is_prefilled_again():
    for name, share in ((AREAL, 0.20), (RESUME, 0.31), (WHOLE, 0.50)):
        again = mean_of("again", name, BASE, Load(), OTHERS).mean
        assert again == pytest.approx(share, abs=0.03)


def test_twice_the_speed_is_half_of_the_decoding_time():
    s = page.replace(PLAIN, updates=4, warmup=1)
    make = page.REMEDIES[page.TWICE]
    want = measure(s, make(s, episodes(0, 4, Load()), Load()))
    got = found(page.TWICE, s)
    for key, value in want.items():
        assert got[key] == pytest.approx(value, rel=1e-3), key


def test_claim_the_split_gives_39_percent_to_generation():
    work = 32 * 8 * tail.mean_length() / 128
    share = page.split(BASE, Load())
    assert share == pytest.approx(work / (work + 14000), abs=0.002)
    assert round(100 * share) == 39


def test_claim_remedies_add_up_in_part():
    both, cut, twice = gains((AREAL_TWICE, AREAL, page.TWICE))
    assert both == pytest.approx(2.4, abs=0.1)
    assert cut < both < 0.9 * cut * twice


def test_claim_starting_over_costs_a_fifth_of_the_tokens():
    lost = mean_of("lost", AGAIN, BASE, Load(), OTHERS)
    assert lost.mean == pytest.approx(0.2, abs=0.04)
    kept = gain(KEPT, BASE, Load(), OTHERS, "time").mean
    again = gain(AGAIN, BASE, Load(), OTHERS, "time").mean
    assert kept / again == pytest.approx(1.22, abs=0.03)


def test_the_loads_are_what_their_names_say():
    got = [(x.sigma, x.alpha, x.waits) for x in page.TAILS.values()]
    assert got == [(0, 0, 0), (0.5, 0, 0), (0.9, 0, 0), (0.9, 1.1, 0)]
    assert list(page.TAILS)[3].endswith("1.1") and SLOW.waits == 4


def test_claim_equal_lengths_leave_nothing_to_gain():
    for value in gains(LINES, SMALL, Load(sigma=0.0)):
        assert value == pytest.approx(1, abs=0.02)


def test_claim_a_heavier_tail_gains_more_and_faster_streams_over_half():
    rows = [gains(LINES, SMALL, load) for load in page.TAILS.values()]
    for lighter, heavier in zip(rows, rows[1:], strict=False):
        assert all(a < b for a, b in zip(lighter, heavier, strict=True))
    for alone, *others in rows[1:]:
        assert 0.5 < (alone - 1) / (max(others) - 1) < 1


def test_claim_longest_over_mean():
    """Another generator, other seeds; a batch of 16 groups of 4."""
    rng = np.random.default_rng(77)
    for sigma in (0.5, 0.9):
        prompt = rng.standard_normal((4000, 16, 1))
        z = (prompt + rng.standard_normal((4000, 16, 4))) / math.sqrt(2)
        drawn = np.minimum(3000 * np.exp(sigma * z), 32768).reshape(4000, -1)
        want = (drawn.max(1) / drawn.mean(1)).mean()
        got = page.spread(Load(sigma=sigma))
        assert got == pytest.approx(want, abs=0.08)
    assert page.spread(Load(sigma=0.0)) == 1


def test_the_clusters_are_those_of_the_captions():
    for s, size in ((BASE, (128, 32, 8, 14000)), (SMALL, (32, 16, 4, 14000))):
        assert (s.slots, s.groups, s.size, s.train) == size
        assert (s.updates - s.warmup, s.warmup) == (6, 3)
    assert page.replace(SMALL, updates=14, warmup=8) == page.AGED
    assert page.FLIGHTS == (3, 6)


def test_claim_slow_environments():
    fast, whole, cut, many = gains((*LINES, MANY), SMALL, SLOW)
    assert 1 < fast < 1.05
    assert whole == pytest.approx(3.4, abs=0.4)
    assert cut == pytest.approx(4.2, abs=0.5)
    assert many == pytest.approx(5.8, abs=0.8)
    assert fast < whole < cut < many


def test_claim_resuming_is_no_slower_with_as_many_in_flight():
    for n in page.FLIGHTS:
        names = f"interrupt, η = {n - 1}", f"resume, {n} batches"
        cut, resumed = gains(names, page.AGED, SLOW)
        assert resumed > 0.97 * cut
        stale = [mean_of("stale", x, page.AGED, SLOW, OTHERS).mean for x in names]
        lag = [mean_of("lag", x, page.AGED, SLOW, OTHERS).mean for x in names]
        assert stale[0] > stale[1] > 0.85
        assert lag == pytest.approx([n - 1, n - 1], abs=0.4)


def test_claim_another_split_hardly_helps_with_slow_environments():
    def rate(share):
        runs = (streamed(SMALL, episodes(k, 4, SLOW), share, 2) for k in OTHERS)
        return np.mean([measure(SMALL, run)["rate"] for run in runs])

    assert rate(0.5) / rate(page.split(SMALL, SLOW)) < 1.12


# --- Products -------------------------------------------------------------


def cells(table):
    return {
        row[0]: row[1:]
        for row in (
            [c.strip() for c in line.split("|")[1:-1]]
            for line in table.splitlines()[2:]
        )
    }


def made_up(name, s=BASE, load=LOGNORMAL, seed=0):
    """Stands in for a simulation: numbers that differ by all arguments."""
    rng = np.random.default_rng(
        [list(page.REMEDIES).index(name), s.slots, s.updates, int(s.train), seed]
        + [round(10 * load.sigma), round(10 * load.alpha), int(load.waits)]
    )
    keys = ("time", "rate", "lost", "again", "stale", "lag", "length")
    return dict(zip(keys, rng.uniform(0.1, 2, len(keys)), strict=True))


def spell(values, digits, unit=""):
    """Mean and sample standard deviation of ten numbers."""
    assert len(values) == 10
    mean, sd = np.mean(values), np.std(values, ddof=1)
    return f"{mean:,.{digits}f} ± {sd:,.{digits}f}{unit}"


def ratios(name, s=BASE, load=LOGNORMAL, key="rate"):
    """Of each seed's run to the synchronous one, larger is faster."""
    both = [[made_up(x, s, load, k)[key] for x in (name, SYNC)] for k in range(10)]
    return [b / a if key == "time" else a / b for a, b in both]


def test_table_of_remedies(monkeypatch):
    monkeypatch.setattr(page, "found", made_up)
    table = cells(page.table_remedies())
    assert [x for x in table if x in page.MORE] == [AREAL] and len(table) == 10
    assert table[SYNC][:2] == ["1.00×", "1.00×"]
    for name in set(table) - {SYNC}:
        f = [made_up(name, seed=k) for k in range(10)]
        row = table[name]
        assert row[0] == spell(ratios(name, key="time"), 2, "×")
        assert row[1] == spell(ratios(name), 2, "×")
        for at, key in ((2, "lost"), (3, "again"), (5, "stale")):
            assert row[at] == spell([100 * x[key] for x in f], 0, " %")
        assert row[4] == spell([x["length"] for x in f], 0)
        assert row[6] == spell([x["lag"] for x in f], 1)


def test_what_no_seed_changes_is_one_number():
    assert page.cell(page.over_seeds(lambda k: 0.0), ".0f", " %") == "0 %"
    assert page.cell(page.over_seeds(float), ".1f") == "4.5 ± 3.0"


def test_table_of_tails(monkeypatch):
    monkeypatch.setattr(page, "found", made_up)
    monkeypatch.setattr(page, "spread", lambda load: load.sigma)
    table = cells(page.table_tails())
    assert list(table) == list(page.TAILS)
    for name, load in page.TAILS.items():
        assert table[name][0] == f"{load.sigma:.1f}"
        want = [spell(ratios(x, SMALL, load), 2, "×") for x in LINES]
        assert table[name][1:] == want


def test_table_of_flights(monkeypatch):
    monkeypatch.setattr(page, "found", made_up)
    table = cells(page.table_flight())
    assert list(table) == ["3", "6"]
    for n in page.FLIGHTS:
        row = table[str(n)]
        for k, name in enumerate((f"interrupt, η = {n - 1}", f"resume, {n} batches")):
            f = [made_up(name, page.AGED, SLOW, seed) for seed in range(10)]
            assert row[3 * k] == spell(ratios(name, page.AGED, SLOW), 1, "×")
            assert row[3 * k + 1] == spell([x["lag"] for x in f], 1)
            stale = [100 * x["stale"] for x in f]
            assert row[3 * k + 2] == spell(stale, 0, " %")


def test_figure(monkeypatch):
    """Means and bands of made-up gains."""
    monkeypatch.setattr(page, "found", made_up)
    monkeypatch.setattr(page, "curves", page.curves.__wrapped__)
    top, low = page.figure_where().axes
    assert "decode steps" in top.get_xlabel()
    assert "environment" in low.get_xlabel()
    names = (*LINES, MANY)
    assert list(page.COLORS) == list(names)
    for axes, x in ((top, [1, 14, 40]), (low, [0, 2, 4])):
        shown = LINES if axes is top else names
        assert len(axes.collections) == len(shown)
        for line, band, name in zip(axes.lines, axes.collections, shown, strict=False):
            assert list(line.get_xdata()) == x
            assert line.get_color() == page.COLORS[name]
            if axes is low:
                loads = [Load(waits=w) for w in (0.0, 2.0, 4.0)]
                values = [ratios(name, SMALL, load) for load in loads]
            else:
                values = [retimed(name, 1000.0 * y) for y in x]
            mean = np.mean(values, axis=1)
            sd = np.std(values, axis=1, ddof=1)
            assert list(line.get_ydata()) == pytest.approx(mean)
            edge = band.get_paths()[0].vertices[:, 1]
            assert edge.max() == pytest.approx(max(mean + sd))
            assert edge.min() == pytest.approx(min(mean - sd))


def retimed(name, train):
    """Gains with an update of `train`: its time added to the decoding's."""

    def rate(which, seed):
        if which == AREAL:
            s = page.replace(SMALL, train=train)
            return made_up(AREAL, s, seed=seed)["rate"]
        f = made_up(which, SMALL, seed=seed)
        tokens, decoding = f["rate"] * f["time"], f["time"] - 14000
        return tokens / (decoding + train)

    return [rate(name, k) / rate(SYNC, k) for k in range(10)]


def test_claim_a_busy_trainer_shrinks_every_gain():
    for name in LINES:
        y = [page.retimed(name, t, OTHERS).mean for t in page.TRAINS]
        assert sorted(y, reverse=True) == y and y[0] > 1.6 and y[2] < 1.35
