"""The limits of overlap, the pipeline by hand and by trace, the claims."""

import math

import numpy as np
import pytest

from snippets.rollouts import async_rl_frameworks as code
from snippets.rollouts.rollout_long_tail import (
    Setup,
    asynchronous,
    measure,
    one_step_off,
    prompts,
)
from snippets.rollouts.simulator import Request

OTHERS = range(100, 108)  # seeds that the page does not print
SMALL = Setup(slots=4, groups=2, size=1, train=10.0, updates=3, warmup=1)
LENGTHS = (10, 30, 10, 10, 40, 10, 20, 20, 10, 10, 10, 10, 10, 10, 10, 10)


def listed(lengths=LENGTHS):
    """A source that hands out these lengths, one group each."""
    left = iter(enumerate(lengths))

    def source(groups):
        return [Request(n, k) for k, n in (next(left) for _ in range(groups))]

    return source


# --- Limits ---------------------------------------------------------------


def two_stages(g, t, batches):
    """Wall time of `batches`, generation of k + 1 beside training on k."""
    start = trained = 0.0  # of a batch's generation, of the last update
    for _ in range(batches):
        begin = max(start + g, trained)  # data is there, trainer is free
        start, trained = begin, begin + t
    return trained


def test_limit_of_overlap_is_that_of_two_stages():
    rng = np.random.default_rng(0)
    for g, t in rng.uniform(0.1, 10, (50, 2)):
        step = two_stages(g, t, 2000) - two_stages(g, t, 1000)
        overlap, _ = code.bounds(g, t, g)
        assert (g + t) * 1000 / step == pytest.approx(overlap)
        assert 1 < overlap <= 2


def test_claim_overlap_at_most_two_and_no_slot_idle_has_no_limit():
    assert code.bounds(5, 5, 1)[0] == 2
    assert code.bounds(9, 1, 9) == pytest.approx((10 / 9, 1))
    assert code.bounds(32.0, 4.0, 0.0)[1] == 9
    for g, t, w in ((30, 14, 9), (6, 4, 1.44), (3, 50, 2)):
        idle = (g - w) / (g + t)  # all slots empty, share of GPU time
        assert code.bounds(g, t, w)[1] == pytest.approx(1 / (1 - idle))


def test_claim_splitting_full_engines_gains_nothing():
    """w / share and t / (1 - share): the larger is least at w + t."""
    w, t = 6.0, 14.0
    steps = [max(w / x, t / (1 - x)) for x in np.linspace(0.001, 0.999, 9999)]
    assert min(steps) == pytest.approx(w + t, rel=1e-3)
    assert max(w / 0.3, t / 0.7) == pytest.approx(w + t)


# --- The pipeline by hand -------------------------------------------------


def test_synchronous_on_separate_gpus_by_hand():
    """2 slots; an update takes 10 / (1 - 0.5) = 20 on the other half."""
    run = code.pipeline(SMALL, listed(), 0.5, 0)
    assert run.trains == [(30, 50), (60, 80), (120, 140)]
    assert run.ends == [50, 80, 140]
    for k, batch in enumerate(run.batches):
        assert [r.spans[0][0] for r in batch] == [k, k]


def test_interrupted_by_hand():
    """eta 1: four requests at 0, two more at each update's start.

    10 and 30 run; 10 ends at 20 (third), 10 at 30 (fourth); batch one is
    ready at 20, trained 20-40 while the rule lets no more start.
    """
    run = code.pipeline(SMALL, listed(), 0.5, 1)
    assert run.trains[0] == (20, 40)
    assert sorted(r.length for r in run.batches[0]) == [10, 10]
    # batch two: the 30 and the last 10, both ended at 30
    assert run.trains[1] == (40, 60)
    assert sorted(r.length for r in run.batches[1]) == [10, 30]
    # 40 and 10 start at 40 under version 1, a 20 at 60; at 80 the 10 and the
    # 40 are the oldest groups that are ready
    assert run.trains[2] == (80, 100)
    ten, forty = sorted(run.batches[2], key=lambda r: r.length)
    assert ten.spans == [(1, 10)] and forty.spans == [(1, 20), (2, 20)]


def test_drained_waits_for_running_and_holds_the_queue():
    s = Setup(slots=4, groups=2, size=1, train=2.0, updates=3, warmup=1)
    run = code.pipeline(s, listed((10, 30, 10, 10, 40, 10, 5, 5)), 0.5, 1, True)
    # 10 and 10 are ready at 20, trained to 24; the 30 and a 10 end at 30
    assert run.trains[0] == (20, 24)
    assert run.trains[1] == (30, 34)
    assert {len(r.spans) for b in run.batches for r in b} == {1}


def test_publication_stops_both():
    plain = code.pipeline(SMALL, listed(), 0.5, 0)
    slow = code.pipeline(SMALL, listed(), 0.5, 0, publish=7.0)
    assert [e - p for e, p in zip(slow.ends, plain.ends, strict=True)] == [0, 7, 14]
    tokens = [r.length for b in slow.batches for r in b]
    assert sum(tokens) == slow.engine.tokens


# --- The pipeline against what it shares no code with ---------------------


def test_interrupted_is_the_asynchronous_run_of_the_long_tail_page():
    s = Setup(updates=4, warmup=2)
    for share, eta in ((0.4, 2), (0.6, 0)):
        mine = code.pipeline(s, prompts(3, s.size), share, eta)
        other = asynchronous(s, prompts(3, s.size), share, eta)
        assert mine.ends == other.ends
        for a, b in zip(mine.batches, other.batches, strict=True):
            assert [r.group for r in a] == [r.group for r in b]


def versions(run):
    return [len({v for v, _ in r.spans}) for b in run.batches for r in b]


def test_only_interrupted_responses_mix_versions():
    s = Setup(updates=4, warmup=2)
    drained = code.pipeline(s, prompts(0, s.size), 0.4, 2, drain=True)
    running = code.pipeline(s, prompts(0, s.size), 0.4, 2)
    assert max(versions(drained)) == 1
    assert np.mean(np.array(versions(running)) > 1) > 0.04


@pytest.mark.parametrize("name", list(code.SCHEDULES))
def test_idle_against_the_trace(name):
    """Integrate the running requests and the bars of training."""
    schedule, own = code.SCHEDULES[name]
    same = own is None
    s = Setup(updates=4, warmup=2)
    run = schedule(s, prompts(1, s.size), 0.4)
    since, until = run.ends[1], run.ends[-1]
    span = until - since
    if name == "one step off":  # its engine stops as the last update starts
        since, until = run.trains[1][0], run.trains[-1][0]
    trace = [*run.engine.trace, (math.inf, 0)]
    area = sum(
        n * max(0.0, min(t2, until) - max(t1, since))
        for (t1, n), (t2, _) in zip(trace, trace[1:], strict=False)
    )
    work = sum(b - a for a, b in run.trains[2:]) / span
    got = code.idle(s, run, None if same else 0.4)
    slots = run.engine.slots
    assert got["time"] == pytest.approx(span / 2)
    assert got["trainer"] == pytest.approx(1 - work)
    assert got["slots"] == pytest.approx(1 - area / slots / span, abs=1e-3)
    gpus = {True: 1 - work - area / slots / span}.get(
        same, 1 - 0.6 * work - 0.4 * area / slots / span
    )
    assert got["gpus"] == pytest.approx(gpus, abs=1e-3)
    if "slow" not in name:
        assert got["gpus"] == pytest.approx(measure(s, run)["idle"], abs=0.005)


def test_equal_lengths_in_closed_form():
    s = code.CASES["equal lengths"][0]
    waves = math.ceil(s.groups * s.size / s.slots)
    sync = code.found(code.SYNC, "equal lengths")
    assert sync["time"] == waves * 3000 + s.train
    assert sync["gpus"] == pytest.approx(0, abs=1e-12)
    one = code.found(code.STEP, "equal lengths", 0.4)
    assert one["time"] == pytest.approx(s.train / 0.6, abs=1)


# --- Claims: order, sign and rough size, on seeds that are not printed ------


def gains(names, case="as above", share=None):
    return [code.gain(name, case, share, OTHERS).mean for name in names]


def test_claim_gains_on_the_base_case():
    table = dict(zip(code.SCHEDULES, gains(code.SCHEDULES), strict=True))
    assert table[code.STEP] == pytest.approx(1.2, abs=0.06)
    assert table[code.DRAINED] == pytest.approx(1.2, abs=0.06)
    assert table[code.FAST] == pytest.approx(1.9, abs=0.1)
    assert table["partial rollout, colocated"] > 0.98 * table[code.FAST]
    assert table["synchronous, separate"] == pytest.approx(0.71, abs=0.03)
    overlap, full, share = (x.mean for x in code.limits("as above", OTHERS))
    assert overlap == pytest.approx(1.45, abs=0.04)
    assert table[code.STEP] < overlap - 0.15
    assert full == pytest.approx(1.95, abs=0.1)
    assert share == pytest.approx(0.39, abs=0.02)


def test_claim_who_is_idle():
    def idle(key, name):
        return code.mean_of(key, name, seeds=OTHERS).mean

    assert idle("gpus", code.SYNC) == pytest.approx(0.50, abs=0.04)
    assert idle("gpus", code.FAST) < 0.03
    for name in (code.STEP, code.DRAINED):
        assert idle("gpus", name) == pytest.approx(0.38, abs=0.04)
        assert idle("slots", name) == pytest.approx(0.56, abs=0.04)
        assert idle("trainer", name) == pytest.approx(0.15, abs=0.05)


def seconds(name, case, share):
    """Time of an update, mean over four seeds, at a split."""
    runs = (code.found(name, case, share, k) for k in OTHERS[:4])
    return np.mean([run["time"] for run in runs])


def test_claim_each_schedule_has_its_best_split():
    """No split 10 points beside it is faster."""
    for name in ("synchronous, separate", code.STEP, code.DRAINED, code.FAST):
        own = code.SCHEDULES[name][1]
        mine = seconds(name, "as above", own)
        for x in (own - 0.1, own + 0.1):
            assert seconds(name, "as above", x) > 0.985 * mine, (name, x)


def test_claim_best_split_of_one_step_off_in_each_case():
    """Nor 5 points beside it, in the other cases."""
    for case, (*_, own) in list(code.CASES.items())[1:]:
        mine = seconds(code.STEP, case, own)
        for x in (own - 0.05, own + 0.05):
            assert seconds(code.STEP, case, x) > 0.97 * mine, (case, x)


def test_claim_more_than_a_whole_batch_gains_nothing():
    s = code.SETUP

    def time(extra):
        runs = (code.colocated(s, prompts(k, s.size), extra) for k in OTHERS)
        return np.mean([code.idle(s, run, None)["time"] for run in runs])

    half, whole, two = (time(x) for x in (16, code.EXTRA, 64))
    assert code.EXTRA == s.groups and half > 1.05 * whole
    assert two == pytest.approx(whole, rel=0.02)


def test_claim_where_asynchronous_loses():
    for case in ("equal lengths", "training 5 × as long"):
        both = gains((code.FAST, code.STEP), case, 0.4)
        assert max(both) < 0.9
    share = code.balanced("equal lengths")
    assert 0.95 < gains([code.FAST], "equal lengths", share)[0] < 1
    _, full, share = (x.mean for x in code.limits("training 5 × as long", OTHERS))
    assert full == pytest.approx(1.28, abs=0.03)
    assert share == pytest.approx(0.11, abs=0.02)


def test_claim_more_than_two_where_the_tail_is_the_step():
    case = "a slot for each response, training short"
    overlap, full, share = (x.mean for x in code.limits(case, OTHERS))
    assert 1.1 < overlap < 1.16 and full == pytest.approx(4.0, abs=0.35)
    fast = gains([code.FAST], case, code.balanced(case))[0]
    assert fast == pytest.approx(3.8, abs=0.3)
    assert gains([code.STEP], case, 0.8)[0] == pytest.approx(1.12, abs=0.03)


def test_no_run_beats_its_limit():
    for case, (*_, own) in code.CASES.items():
        overlap, full, _ = (x.mean for x in code.limits(case, OTHERS))
        assert gains([code.STEP], case, own)[0] <= 1.01 * overlap
        share = code.balanced(case)
        # 3 %: batches of finite length differ from the mean
        assert gains([code.FAST], case, share)[0] < 1.03 * full


def test_claim_a_publication_adds_its_own_length():
    """To the trainer, which is the limit at this split."""
    name = "interrupted, slow publication"
    plain = code.mean_of("time", code.FAST, seeds=OTHERS)
    slow = code.mean_of("time", name, seeds=OTHERS)
    assert slow.mean - plain.mean == pytest.approx(2000, rel=0.02)


def test_claim_verl_tables():
    """The arithmetic on numbers of verl's documentation."""
    # one step off, FSDP2: 749 s a step, of which generation 321
    assert code.bounds(321, 749 - 321, 321)[0] == pytest.approx(1.75, abs=0.005)
    assert (19 * 60 + 18) / (15 * 60 + 34) == pytest.approx(1.24, abs=0.005)
    # fully asynchronous, 128 GPUs
    step, gen, old = 356.30, 177.85, 53.92
    assert code.bounds(gen, step - gen, gen)[0] == pytest.approx(2.0, abs=0.005)
    assert step / 150.63 == pytest.approx(2.37, abs=0.005)
    assert (step - old) / 150.63 == pytest.approx(2.01, abs=0.005)
    assert 113.16 < 113.81 and 150.72 < 177.85  # 64 GPUs, 128 GPUs
    # V1, 150 steps: hours
    assert 22.79 / 14.72 == pytest.approx(1.55, abs=0.005)
    assert 22.79 / 14.10 == pytest.approx(1.62, abs=0.005)


def test_lag_is_that_of_the_first_token():
    s = code.SETUP
    for seed in (0, 100):
        run = code.pipeline(s, prompts(seed, s.size), 0.4, 2)
        ages = []
        for version, batch in list(enumerate(run.batches))[s.warmup :]:
            ages += [version - min(v for v, _ in r.spans) for r in batch]
        got = code.found(code.FAST, seed=seed)["lag"]
        assert got == pytest.approx(sum(ages) / len(ages))
    assert code.found(code.STEP)["lag"] == 1


def test_claim_figure_of_the_split():
    def gain(name, share):
        return code.gain(name, "as above", share, OTHERS).mean

    assert gain(code.STEP, 0.6) == pytest.approx(1.22, abs=0.06)
    assert gain(code.FAST, 0.8) == pytest.approx(0.65, abs=0.04)
    assert 0.4 in code.SHARES  # the peak, by the best splits above
    slow = code.SETUP.train / (1 - code.SHARE)
    assert slow == pytest.approx(23_333, abs=1)


def bf16(x):
    """Nearest bfloat16 of float32 values, ties to even, by their bits."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return (bits << 16).astype(np.uint32).view(np.float32)


def test_claim_most_bf16_weights_do_not_move():
    """Between 2**-6 and 2**-5: spacing 1.2e-4, a step of 1e-6 moves < 1 %."""
    w = np.linspace(2**-6, 2**-5, 400_001)[:-1].astype(np.float32)
    gaps = np.diff(np.unique(bf16(w)))
    assert gaps.min() == gaps.max() == 2**-13
    assert gaps[0] == pytest.approx(1.2e-4, abs=3e-6)
    moved = {s: np.mean(bf16(w + np.float32(s)) != bf16(w)) for s in (1e-6, 1e-5)}
    assert 0.005 < moved[1e-6] < 0.01
    assert moved[1e-5] == pytest.approx(10 * moved[1e-6], rel=0.1)
    assert np.mean(w + np.float32(1e-6) != w) == 1  # the fp32 copy


def test_claim_break_even_in_updates():
    """Twice as fast an update with 30 % more of them: 1.54."""
    assert 2.0 / 1.3 == pytest.approx(1.54, abs=0.005)


# --- Tables and figures ---------------------------------------------------


def cells(table):
    lines = table.strip().splitlines()
    return [[c.strip() for c in x.strip("|").split("|")] for x in lines]


def made_up(name, case="as above", share=None, seed=0):
    """Stands in for a simulation: numbers that differ by all arguments."""
    own = code.SCHEDULES[name][1]
    if own is None:
        share = 0
    elif share is None:
        share = own
    places = list(code.SCHEDULES).index(name), list(code.CASES).index(case)
    rng = np.random.default_rng([*places, round(1000 * share), seed])
    keys = ("time", "trainer", "slots", "gpus", "lag")
    values = dict(zip(keys, rng.uniform(0.1, 0.9, len(keys)), strict=True))
    return values | {"time": 1e5 * (1 + values["time"])}


def spell(values, digits, unit=""):
    """Mean and sample standard deviation of ten numbers."""
    assert len(values) == 10
    mean, sd = np.mean(values), np.std(values, ddof=1)
    return f"{mean:,.{digits}f} ± {sd:,.{digits}f}{unit}"


def ratios(name, case="as above", share=None):
    both = [
        [made_up(x, case, share, k)["time"] for x in (code.SYNC, name)]
        for k in range(10)
    ]
    return [sync / mine for sync, mine in both]


def test_table_of_schedules(monkeypatch):
    monkeypatch.setattr(code, "found", made_up)
    heads, _, *rows = cells(code.table_schedules())
    assert heads[4:7] == ["trainer idle", "slots empty", "GPUs idle"]
    assert [row[0] for row in rows] == list(code.SCHEDULES)
    shares = ["all, in turn"] * 2 + ["40 %", "55 %", "55 %", "40 %", "40 %"]
    assert [row[1] for row in rows] == shares
    assert rows[0][3] == "1.00×"
    for row in rows:
        f = [made_up(row[0], seed=k) for k in range(10)]
        assert row[2] == spell([x["time"] for x in f], 0)
        if row[0] != code.SYNC:
            assert row[3] == spell(ratios(row[0]), 2, "×")
        for at, key in ((4, "trainer"), (5, "slots"), (6, "gpus")):
            assert row[at] == spell([100 * x[key] for x in f], 0, " %")
        assert row[7] == spell([x["lag"] for x in f], 1)


def test_a_share_without_spread_is_one_number():
    flat = code.over_seeds(lambda k: -1e-12)
    assert code.percent(flat) == "0 %"
    assert code.percent(code.over_seeds(lambda k: k / 100)) == "4 ± 3 %"


def test_table_of_cases(monkeypatch):
    monkeypatch.setattr(code, "found", made_up)
    _, _, *rows = cells(code.table_cases())
    assert [row[0] for row in rows] == list(code.CASES)
    trains = (14000, 14000, 70000, 4000)
    best = (0.55, 0.3, 0.15, 0.8)
    for row, t, own in zip(rows, trains, best, strict=True):
        case = row[0]
        f = [made_up(code.SYNC, case, None, k) for k in range(10)]
        assert row[1] == spell([100 * x["gpus"] for x in f], 0, " %")
        g = [x["time"] - t for x in f]
        w = [(1 - x["slots"]) * x["time"] for x in f]
        overlap = [(a + t) / max(a, t) for a in g]
        full = [(a + t) / (b + t) for a, b in zip(g, w, strict=True)]
        assert row[2] == spell(overlap, 2, "×")
        assert row[3] == spell(full, 2, "×")
        share = round(np.mean([b / (b + t) for b in w]), 2)
        for cell, name, x in (
            (row[4], code.STEP, own),
            (row[5], code.FAST, share),
            (row[6], code.FAST, 0.4),
        ):
            value = spell(ratios(name, case, x), 2, "×")
            assert cell == f"{100 * x:.0f} %: {value}"


def test_cases_change_what_their_names_say():
    lengths = [r.length for r in prompts(0, 8, median=3000.0, sigma=0.0)(4)]
    assert set(lengths) == {3000}
    long = code.CASES["training 5 × as long"][0]
    assert long.train == 5 * code.SETUP.train
    each = code.CASES["a slot for each response, training short"][0]
    assert each.slots == each.groups * each.size
    s = code.SETUP
    mine = code.SCHEDULES[code.STEP][0](s, prompts(0, s.size), 0.4)
    assert mine.ends == one_step_off(s, prompts(0, s.size), 0.4).ends


def test_figure_of_timelines(monkeypatch):
    monkeypatch.setattr(code, "found", made_up)
    panels = code.figure_timelines().axes
    assert panels[-1].get_xlabel() == "time, 1,000 decode steps"
    assert panels[-1].get_xlim() == (0, 120_000)
    for axes, name in zip(panels, code.SHOWN, strict=True):
        idle = [100 * made_up(name, seed=k)["gpus"] for k in range(10)]
        title = axes.get_title(loc="left")
        assert title == f"{name}: {spell(idle, 0, ' %')} idle"
        run, share = code.timeline(name), code.SCHEDULES[name][1]
        same = share is None
        area, *bars = axes.collections
        top = area.get_paths()[0].vertices[:, 1].max()
        assert top == pytest.approx(100 if same else 100 * share, rel=0.01)
        assert len(bars) == len(run.trains) == 6
        for bar, (start, end) in zip(bars, run.trains, strict=True):
            corners = bar.get_paths()[0].vertices
            assert corners[:, 0].min() == pytest.approx(start)
            assert corners[:, 0].max() == pytest.approx(end)
            low = corners[:, 1].min(), corners[:, 1].max()
            assert low == pytest.approx((0 if same else 100 * share, 100))


def test_figure_of_the_split(monkeypatch):
    monkeypatch.setattr(code, "found", made_up)
    monkeypatch.setattr(code, "split", code.split.__wrapped__)
    (axes,) = code.figure_split().axes
    names = (code.FAST, code.STEP)
    shares = (0.2, 0.3, 0.4, 0.5, 0.6, 0.8)
    for line, band, name in zip(axes.lines, axes.collections, names, strict=False):
        values = [ratios(name, "as above", x) for x in shares]
        mean, sd = np.mean(values, axis=1), np.std(values, axis=1, ddof=1)
        assert list(line.get_xdata()) == [100 * x for x in shares]
        assert list(line.get_ydata()) == pytest.approx(mean)
        edge = band.get_paths()[0].vertices[:, 1]
        assert edge.max() == pytest.approx(max(mean + sd))
        assert edge.min() == pytest.approx(min(mean - sd))
    overlap, full, _ = (x.mean for x in code.limits("as above"))
    levels = [line.get_ydata()[0] for line in axes.lines[2:]]
    assert levels == pytest.approx([1, full, overlap])


def test_one_seed_against_the_schedule_itself():
    """`found` takes the seed, the case and the split that it is given."""
    s, median, sigma, _ = code.CASES["training 5 × as long"]
    source = prompts(7, s.size, median=median, sigma=sigma)
    run = code.pipeline(s, source, 0.3, 2)
    want = (run.ends[-1] - run.ends[s.warmup - 1]) / (s.updates - s.warmup)
    got = code.found(code.FAST, "training 5 × as long", 0.3, 7)
    assert got["time"] == pytest.approx(want)
    source = prompts(7, s.size, median=3000.0, sigma=0.9)
    run = code.one_step_off(code.SETUP, source, 0.55)
    want = (run.ends[-1] - run.ends[s.warmup - 1]) / (s.updates - s.warmup)
    assert code.found(code.STEP, seed=7)["time"] == pytest.approx(want)
