"""Checks the schedules against list scheduling and closed forms."""

import heapq
import math
from dataclasses import replace

import numpy as np
import pytest

from snippets.rollouts import rollout_long_tail as page
from snippets.rollouts.rollout_long_tail import (
    RATIOS,
    REMEDIES,
    SHOWN,
    Run,
    Setup,
    agentic,
    asynchronous,
    averages,
    batching,
    bubble,
    colocated,
    draw_lengths,
    expected_max,
    leading_order,
    mean_length,
    measure,
    one_step_off,
    prompts,
    sweep,
)
from snippets.rollouts.simulator import Engine, Request

SMALL = Setup(slots=6, groups=4, size=3, train=700, updates=5, warmup=1)
SHORT = {"median": 200.0, "cap": 1500}
OTHERS = range(100, 108)  # seeds that the page does not use


def phi(x):
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


def source(seed=0, s=SMALL):
    return prompts(seed, s.size, **SHORT)


def list_schedule(lengths, slots):
    """Start and end of each job, first come first served."""
    free, spans = [0.0] * slots, []
    for length in lengths:
        start = heapq.heappop(free)
        spans.append((start, start + length))
        heapq.heappush(free, start + length)
    return spans


# Lengths, bubble, extremes


def test_lengths_have_the_stated_distribution():
    rng = np.random.default_rng(0)
    lengths = draw_lengths(rng, 40000, 2)
    assert lengths.shape == (40000, 2)
    assert lengths.max() == 32768 and lengths.min() >= 1
    assert np.median(lengths) == pytest.approx(3000, rel=0.02)
    logs = np.log(draw_lengths(rng, 40000, 2, median=1e5, cap=10**12))
    assert logs.std() == pytest.approx(0.9, rel=0.01)
    assert np.corrcoef(logs.T)[0, 1] == pytest.approx(0.5, abs=0.02)
    logs = np.log(draw_lengths(rng, 40000, 2, median=1e5, shared=0.0))
    assert abs(np.corrcoef(logs.T)[0, 1]) < 0.02


def test_bubble_by_hand():
    """Three slots, 8 steps: 1 + 3 + 8 of 24 used."""
    assert bubble(np.array([1, 3, 8])) == pytest.approx(0.5)
    assert bubble(np.array([5, 5])) == 0


def test_mean_length_is_the_truncated_lognormal():
    m, sigma, cap = 3000, 0.9, 32768
    z = math.log(cap / m) / sigma
    expected = m * math.exp(sigma**2 / 2) * phi(z - sigma)
    expected += cap * (1 - phi(z))
    assert mean_length() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("sigma", [0.3, 0.9, 1.5])
def test_longest_of_one_and_two_in_closed_form(sigma):
    assert expected_max(1, sigma) == pytest.approx(1, rel=1e-6)
    two = 2 * phi(sigma / math.sqrt(2))
    assert expected_max(2, sigma) == pytest.approx(two, rel=1e-4)


@pytest.mark.parametrize("cap", [math.inf, 32768 / 3000])
def test_longest_of_many_against_draws(cap):
    z = np.random.default_rng(1).standard_normal((4000, 64))
    length = np.minimum(np.exp(0.9 * z), cap)
    drawn = length.max(1).mean() / length.mean()
    assert expected_max(64, 0.9, cap) == pytest.approx(drawn, rel=0.02)


def test_leading_order_is_too_large():
    for n in (64, 512, 4096):
        assert 1.3 < leading_order(n, 0.9) / expected_max(n, 0.9) < 1.55


def test_group_ratio_against_draws():
    """The prompt's part of the length leaves the ratio unchanged."""
    rng = np.random.default_rng(2)
    lengths = draw_lengths(rng, 40000, 8, median=1e5, cap=10**12)
    drawn = lengths.max(1).mean() / lengths.mean()
    assert expected_max(8, 0.9 * math.sqrt(0.5)) == pytest.approx(drawn, rel=0.03)


# Schedules


def test_synchronous_is_list_scheduling_plus_training():
    run, draw, time = colocated(SMALL, source()), source(), 0.0
    for k in range(SMALL.updates):
        lengths = [r.length for r in draw(SMALL.groups)]
        time += max(e for _, e in list_schedule(lengths, 6)) + 700
        assert run.ends[k] == time
        assert sorted(r.length for r in run.batches[k]) == sorted(lengths)
        assert all(r.spans == [(k, r.length)] for r in run.batches[k])
    assert run.engine.tokens == sum(r.length for batch in run.batches for r in batch)


def test_discard_is_list_scheduling_to_the_nth_group():
    extra, draw, time = 3, source(4), 0.0
    run = colocated(SMALL, source(4), extra, keep=False)
    for k in range(SMALL.updates):
        requests = draw(SMALL.groups + extra)
        spans = list_schedule([r.length for r in requests], 6)
        ends = {}
        for r, (_, end) in zip(requests, spans, strict=True):
            ends[r.group] = max(ends.get(r.group, 0), end)
        stop = sorted(ends.values())[SMALL.groups - 1]
        made = sum(min(e, stop) - min(s, stop) for s, e in spans)
        kept = [r for r in requests if ends[r.group] <= stop]
        time += stop + 700
        assert run.ends[k] == time
        assert {r.group for r in run.batches[k]} == {r.group for r in kept}
        assert run.drops[k] == made - sum(r.length for r in kept)


def test_resume_loses_nothing_and_versions_only_rise():
    run = colocated(SMALL, source(5), extra=3)
    used = [r for batch in run.batches for r in batch]
    assert run.drops == [0] * SMALL.updates
    assert len({id(r) for r in used}) == len(used)
    for k, batch in enumerate(run.batches):
        assert len(batch) == SMALL.groups * SMALL.size
        groups = [r.group for r in batch]
        assert all(groups.count(g) == SMALL.size for g in groups)
        for r in batch:
            versions = [version for version, _ in r.spans]
            assert r.produced == r.length
            assert versions == sorted(set(versions)) and versions[-1] <= k
    assert any(r.mixed for r in used)
    assert run.engine.tokens > sum(r.length for r in used)  # partials left


@pytest.mark.parametrize(
    ("share", "slots", "update"), [(0.5, 3, 1400), (1 / 3, 2, 1050)]
)
def test_one_step_off_recurrence(share, slots, update):
    run, draw = one_step_off(SMALL, source(6), share), source(6)
    ready = trained = 0.0
    for k in range(SMALL.updates):
        lengths = [r.length for r in draw(SMALL.groups)]
        ready += max(e for _, e in list_schedule(lengths, slots))
        ready = start = max(ready, trained)
        trained = start + update
        assert run.trains[k] == pytest.approx((start, trained))
        version = max(0, k - 1)
        for r in run.batches[k]:
            assert r.spans == [(version, r.length)]


def test_asynchronous_with_eta_0_is_synchronous_on_fewer_gpus():
    share = 1 / 3
    run, draw = asynchronous(SMALL, source(7), share, eta=0), source(7)
    time = 0.0
    for k in range(SMALL.updates):
        lengths = [r.length for r in draw(SMALL.groups)]
        time += max(e for _, e in list_schedule(lengths, 2)) + 1050
        assert run.ends[k] == pytest.approx(time, abs=1.1 * (k + 1))
        assert all(r.spans == [(k, r.length)] for r in run.batches[k])


@pytest.mark.parametrize("eta", [1, 3])
def test_asynchronous_obeys_the_admission_rule_and_never_idles(eta):
    seen, inner = [], source(8)

    def counted(n):
        seen.append(n)
        return inner(n)

    s = replace(SMALL, train=5000)
    run = asynchronous(s, counted, 0.5, eta)
    assert seen == [(eta + 1) * s.groups] + [s.groups] * (s.updates - 1)
    gaps = np.diff([start for start, _ in run.trains])
    assert np.allclose(gaps[1:], 10000)  # the trainer is the bottleneck
    for k, batch in enumerate(run.batches):
        assert all(v <= k for r in batch for v, _ in r.spans)


def test_measure_by_hand():
    s = Setup(slots=10, groups=1, size=2, train=5, updates=2, warmup=1)
    run = Run(Engine(10))
    first = [Request(4, spans=[(0, 4)]), Request(4, spans=[(0, 4)])]
    second = [Request(6, spans=[(0, 2), (1, 4)]), Request(2, spans=[(1, 2)])]
    run.engine.tokens = 8
    run.record(first, 1, 10, 0)
    run.engine.tokens = 18
    run.record(second, 11, 20, 3)
    found = measure(s, run)
    assert found == pytest.approx(
        {
            "time": 10,
            "idle": 1 - (10 / 10 + 5) / 10,
            "lost": 0.3,
            "length": 4,
            "stale": 2 / 8,
            "mixed": 0.5,
            "lag": 1,
        }
    )


def test_groups_that_end_together_are_counted_once():
    """Equal lengths: all 4 + 2 groups end at step 10, 4 are taken."""

    def equal(first):
        count = iter(range(first, 99))

        def source(groups):
            numbers = [next(count) for _ in range(groups)]
            return [Request(10, g) for g in numbers for _ in range(3)]

        return source

    s = replace(SMALL, slots=18, updates=2)
    keep = colocated(s, equal(0), extra=2)
    assert {r.group for r in keep.batches[0]} == {0, 1, 2, 3}
    assert {r.group for r in keep.batches[1]} == {4, 5, 6, 7}
    assert keep.engine.tokens == (6 + 4) * 30  # 2 groups were still there
    drop = colocated(s, equal(0), extra=2, keep=False)
    assert drop.drops == [2 * 30, 2 * 30]
    assert {r.group for r in drop.batches[1]} == {6, 7, 8, 9}


def test_averages_are_those_of_the_seeds():
    found = averages(colocated, range(8), SMALL)
    runs = [measure(SMALL, colocated(SMALL, prompts(i, 3))) for i in range(8)]
    assert {key: list(value.values) for key, value in found.items()} == {
        key: [run[key] for run in runs] for key in runs[0]
    }


# Claims of the page


def test_claim_continuous_batching_helps_only_with_a_queue():
    few, many = batching(64, OTHERS), batching(512, OTHERS)
    static, continuous = few["static batches"], few["continuous, first come"]
    for a, b in zip(static[0].values, continuous[0].values, strict=True):
        assert a / b > 2.5
    for a, b in zip(
        few["continuous, longest first"][0].values,
        few["lower bound"][0].values,
        strict=True,
    ):
        assert 1 <= a / b < 1.03
    assert len({row[0].values for row in many.values()}) == 1


def test_claim_more_gpus_do_not_help():
    """Twice the slots: generation gets 5 to 6% shorter; then nothing more."""
    times = []
    for slots in (128, 256, 1024):
        s = Setup(slots=slots, updates=5, warmup=1)
        runs = [colocated(s, prompts(seed, 8)) for seed in OTHERS]
        times.append(np.array([measure(s, r)["time"] for r in runs]) - 14000)
    gains = times[1] / times[0]
    assert gains.mean() == pytest.approx(0.945, abs=0.012)
    assert 0.9 < gains.min() and gains.max() < 1
    assert (times[2] == times[1]).all()


def test_claim_no_bubble_if_a_step_costs_what_runs_in_it():
    lengths = draw_lengths(np.random.default_rng(0), 64, 8).ravel()
    engine = Engine(512, step_time=lambda running: running / 512)
    engine.submit([Request(int(n)) for n in lengths])
    while engine.running:
        engine.advance()
    assert engine.time == pytest.approx(lengths.sum() / 512)
    assert engine.time < 0.2 * lengths.max()


def test_claim_discarding_selects_short_responses():
    found = averages(REMEDIES["over-sample, discard"], OTHERS)
    for length in found["length"].values:
        assert length < 0.75 * mean_length()
    assert found["length"].mean / mean_length() == pytest.approx(2 / 3, abs=0.03)
    assert found["lost"].mean == pytest.approx(0.5, abs=0.02)
    for name in ("synchronous", "over-sample, resume", "asynchronous"):
        length = averages(REMEDIES[name], OTHERS)["length"]
        assert abs(length.mean / mean_length() - 1) < 0.05


def test_claim_low_idle_share_can_hide_waste():
    drop, keep = sweep(False, OTHERS)[-1], sweep(True, OTHERS)[-1]
    assert drop["idle"].mean == pytest.approx(0.001, abs=0.0005)
    assert drop["lost"].mean == pytest.approx(0.57, abs=0.015)
    assert min(drop["time"].values) > max(keep["time"].values)
    assert drop["time"].mean > 1.15 * keep["time"].mean


def test_claim_the_first_batch_is_the_same_with_and_without_resume():
    s, means = Setup(updates=6), []
    for seed in OTHERS:
        keep = colocated(s, prompts(seed, 8), 16)
        drop = colocated(s, prompts(seed, 8), 16, keep=False)
        a, b = (sorted(r.length for r in run.batches[0]) for run in (keep, drop))
        assert a == b
        means.append([np.mean([r.length for r in x]) for x in keep.batches])
    found = np.mean(means, axis=0) / mean_length()
    assert found[0] == pytest.approx(2 / 3, abs=0.05)
    assert found[1:].mean() == pytest.approx(1, abs=0.08)


def test_claim_shares_by_ratio():
    """The short answers' 50 to 9% idle and 56% stale; 20, under 1, 39, 69."""
    rows = sweep(True, OTHERS)
    idle = [row["idle"].mean for row in rows]
    assert idle[:3] == pytest.approx([0.49, 0.205, 0.09], abs=0.02)
    assert idle[3] < 0.004
    stale = [row["stale"].mean for row in rows]
    assert stale == pytest.approx([0, 0.385, 0.557, 0.695], abs=0.012)
    for earlier, later in zip(rows, rows[1:], strict=False):
        assert max(later["idle"].values) < min(earlier["idle"].values)
        assert min(later["stale"].values) > max(earlier["stale"].values)


def flowing(s, p, share):
    return asynchronous(s, p, share, eta=2)


@pytest.mark.parametrize(
    ("name", "make"), [("one step off", one_step_off), ("asynchronous", flowing)]
)
def test_claim_each_row_has_its_best_split(name, make):
    best, s, times = page.SHARES[name], SHOWN, []
    for share in (best - 0.05, best, best + 0.05):
        runs = [make(s, prompts(i, 8), share) for i in range(500, 508)]
        times.append(np.mean([measure(s, run)["time"] for run in runs]))
    assert times[1] == min(times)


def test_claim_one_step_off_keeps_most_of_the_tail():
    one, resume, whole = (
        averages(REMEDIES[name], OTHERS)["idle"]
        for name in ("one step off", "over-sample, resume", "synchronous")
    )
    assert max(resume.values) < 0.5 * min(one.values)
    assert max(one.values) < min(whole.values)


def test_claim_nearly_half_of_stale_tokens_were_never_interrupted():
    """A response that ended early waits, and ages, for its group."""
    s, shares, again = SHOWN, [], []
    for seed in OTHERS:
        run, whole, cut = colocated(s, prompts(seed, 8), 16), 0, 0
        for k in range(s.warmup, s.updates):
            for r in run.batches[k]:
                stale = sum(n for version, n in r.spans if version < k)
                whole += stale * (not r.mixed)
                cut += stale * r.mixed
        shares.append(whole / (whole + cut))
        again.append(run.engine.reprefilled / run.engine.tokens)
    assert 0.37 < min(shares) and max(shares) < 0.56
    assert np.mean(shares) == pytest.approx(0.46, abs=0.02)
    assert np.mean(again) == pytest.approx(0.27, abs=0.02)


def test_claim_the_admission_rule_does_not_bound_one_response():
    found = averages(REMEDIES["asynchronous"], OTHERS)["lag"]
    assert page.ETA == 2 and min(found.values) > 2
    assert one_step_lag() == {1}


def one_step_lag():
    s = Setup(updates=6)
    run = one_step_off(s, prompts(0, 8), 0.4)
    return {k - r.spans[0][0] for k in range(1, s.updates) for r in run.batches[k]}


def test_claim_idle_is_the_distance_from_the_floor():
    """With a run's own tokens in place of their expectation."""
    bound = page.lower_bound(Setup())
    assert bound == pytest.approx(256 * mean_length() / 128 + 14000)
    for name, make in REMEDIES.items():
        found = averages(make, OTHERS)
        assert min(found["idle"].values) > 0
        if name != "over-sample, discard":
            assert found["time"].mean > bound
    assert averages(REMEDIES["asynchronous"], OTHERS)["idle"].mean < 0.015
    s, run = SHOWN, colocated(SHOWN, prompts(100, 8), 16)
    time = (run.ends[-1] - run.ends[3]) / 6
    floor = (run.tokens[-1] - run.tokens[3]) / 6 / 128 + 14000
    assert measure(s, run)["idle"] == pytest.approx(1 - floor / time)


def test_claim_redundant_environments_select_short_trajectories():
    rows = page.agentic_rows(OTHERS)
    hang = rows["0.2% of calls hang, timeout 36,000"]
    free = rows["with tools"]
    first = rows["same, timeout 36,000, first 256 of 288"]
    for a, b in zip(first[1].values, hang[1].values, strict=True):
        assert a < 0.5 * b
    for a, b in zip(first[0].values, free[0].values, strict=True):
        assert 0.6 < a / b < 0.85
    assert first[0].mean / free[0].mean == pytest.approx(0.75, abs=0.02)
    short = rows["0.2% of calls hang, timeout 3,600"]
    assert short[1].mean / free[1].mean == pytest.approx(1, abs=0.05)


def test_agentic_means():
    rng = np.random.default_rng(0)
    tokens, waits = agentic(rng, 20000, 0.0, math.inf)
    assert tokens.mean() == pytest.approx(3000 * math.exp(0.32), rel=0.03)
    assert waits.mean() == pytest.approx(600 * math.exp(0.72), rel=0.04)
    _, hung = agentic(rng, 4000, 1.0, 50.0)
    assert hung.min() == 50 and hung.mean() == pytest.approx(500, rel=0.05)


# Tables and figures


def test_tables_name_their_rows():
    text = page.table_remedies()
    assert all(name in text for name in page.REMEDIES)
    assert "lower bound" in text and "±" in text
    assert page.table_extreme().count("\n") == 5
    extreme = [line.split("|")[1:-1] for line in page.table_extreme().splitlines()]
    for line, n in zip(extreme[2:], (8, 64, 512, 4096), strict=True):
        assert int(line[0]) == n
        assert float(line[2]) == pytest.approx(expected_max(n, 0.9), abs=0.05)
        assert float(line[4]) == pytest.approx(
            expected_max(n, 0.9, 32768 / 3e3), abs=0.05
        )
    group = [line.split("|")[1:-1] for line in page.table_group().splitlines()[2:]]
    assert [[float(x) for x in line] for line in group] == [
        [0, 2.83],
        [0.5, 2.19],
        [0.9, 1.46],
    ]
    assert page.table_batching().count("±") == 16
    assert page.table_ratio().count("\n") == 5
    assert page.table_agentic().count("\n") == 6


def test_figure_slots_shows_full_slots_only_without_a_barrier():
    panels = page.figure_slots().axes
    titles = [axes.get_title() for axes in panels]
    assert [t.split(":")[0] for t in titles] == [
        "synchronous",
        "over-sample, resume",
        "asynchronous",
    ]
    used = []
    for axes in panels:
        times, share = axes.lines[0].get_data()
        grid = np.linspace(5000, 90000, 500)
        where = np.searchsorted(times, grid, side="right") - 1
        used.append(np.asarray(share)[where].mean())
    assert used[0] < used[1] < 60 < 95 < used[2]
    assert "1,000 decode steps" in panels[-1].get_xlabel()


def test_figure_ratio_plots_the_sweep():
    top, low = page.figure_ratio().axes
    for axes, key in ((top, "time"), (low, "length")):
        for keep, bars in zip((False, True), axes.containers, strict=True):
            expected = [np.mean(row[key].values) / 1e3 for row in sweep(keep)]
            assert np.allclose(bars.lines[0].get_ydata(), expected)
            assert tuple(bars.lines[0].get_xdata()) == (1, 1.25, 1.5, 2)
    assert low.get_xlabel() == "groups launched / groups needed"


@pytest.mark.parametrize(("ratio", "extra"), [(1, 0), (1.25, 8), (1.5, 16), (2, 32)])
def test_sweep_launches_the_ratio(ratio, extra):
    s, at = Setup(updates=10, warmup=4), RATIOS.index(ratio)
    for keep in (False, True):
        run = colocated(s, prompts(3, 8), extra, keep or not extra)
        found = {key: value.values[3] for key, value in sweep(keep)[at].items()}
        assert found == measure(s, run)


def test_share_in_use_is_work_over_slots_and_time():
    slots = 512
    draws = [draw_lengths(np.random.default_rng(s), 512, 1).ravel() for s in range(8)]
    expected = [d.sum() / (slots * d.max()) for d in draws]
    for name, (_, use) in batching(slots, range(8)).items():
        assert use.values == pytest.approx(expected), name


def test_batching_with_a_queue_is_list_scheduling():
    draws = [draw_lengths(np.random.default_rng(s), 512, 1).ravel() for s in range(8)]
    found = batching(64, range(8))
    for i, plain in enumerate(draws):
        expected = {
            "static batches": sum(x.max() for x in plain.reshape(8, 64)),
            "continuous, first come": max(e for _, e in list_schedule(plain, 64)),
            "continuous, longest first": max(
                e for _, e in list_schedule(sorted(plain, reverse=True), 64)
            ),
            "lower bound": max(plain.max(), plain.sum() / 64),
        }
        for name, time in expected.items():
            assert found[name][0].values[i] == time
            assert found[name][1].values[i] == pytest.approx(plain.sum() / 64 / time)


def test_dropped_tokens_of_the_warm_up_are_not_counted():
    s = Setup(slots=10, groups=1, size=1, train=5, updates=2, warmup=1)
    run = Run(Engine(10))
    for made, dropped in ((8, 7), (18, 3)):
        run.engine.tokens = made
        version = len(run.batches)
        run.record([Request(4, spans=[(version, 4)])], 1, made, dropped)
    assert measure(s, run)["lost"] == pytest.approx(0.3)


def test_a_timeout_also_ends_slow_calls_that_do_not_hang():
    _, waits = agentic(np.random.default_rng(0), 500, 0.0, 20.0)
    assert np.allclose(waits % 20, 0) is False
    turns = np.random.default_rng(0).geometric(0.1, 500)
    assert (waits <= 20 * turns + 1e-9).all()


def test_agentic_bubble_and_waiting_share_for_one_draw():
    rows = page.agentic_rows(range(8))
    for name, setting in (
        ("tokens only", (256, 0.0, 0.0)),
        ("with tools", (256, 0.0, 36000.0)),
        ("0.2% of calls hang, timeout 36,000", (256, 0.002, 36000.0)),
        ("0.2% of calls hang, timeout 3,600", (256, 0.002, 3600.0)),
        ("same, timeout 36,000, first 256 of 288", (288, 0.002, 36000.0)),
    ):
        tokens, waits = agentic(np.random.default_rng(7), *setting)
        pairs = sorted(zip(tokens + waits, waits, strict=True))[:256]
        total, waits = np.array(pairs).T
        expected = [total.mean(), total.max(), 1 - total.mean() / total.max()]
        expected.append(waits.sum() / total.sum())
        assert [x.values[7] for x in rows[name]] == pytest.approx(expected)


def test_run_time_divides_by_the_gaps():
    assert page.run_time(Run(Engine(1), ends=[10.0, 30.0, 40.0])) == 15


def test_table_cells_come_from_the_right_column():
    """Capped at 32,768 of a median of 3,000; discard, not resume."""
    row = page.table_extreme().splitlines()[4]
    assert row == "| 512 | 16.0 | 11.0 | 91% | 7.3 | 86% |"
    lost = sweep(False)[1]["lost"]
    assert f"| 1.25 | {lost:.0%} |" in page.table_ratio()


def test_figure_ratio_dots_the_floor_above_and_the_length_below():
    top, low = page.figure_ratio().axes
    for axes, value in (
        (top, page.lower_bound(Setup())),
        (low, mean_length()),
    ):
        dotted = [x for x in axes.lines if x.get_linestyle() == ":"]
        assert any(np.allclose(x.get_ydata(), value / 1e3) for x in dotted)
        names = {text.get_text(): text.xy[1] for text in axes.texts}
        name = "lower bound" if axes is top else "all responses"
        assert names[name] == pytest.approx(value / 1e3)


def test_measure_without_a_warm_up_starts_at_time_0():
    s = Setup(slots=10, groups=1, size=1, train=5, updates=2, warmup=0)
    run = Run(Engine(10))
    for k, made in enumerate((8, 18)):
        run.engine.tokens = made
        run.record([Request(4, spans=[(k, 4)])], 1, 10.0 * (k + 1), 3)
    found = measure(s, run)
    assert found["time"] == 10 and found["lost"] == pytest.approx(6 / 18)
    assert found["idle"] == pytest.approx(1 - (18 / 10 + 10) / 20)


def test_a_step_resumes_the_cut_requests_first_and_in_order(monkeypatch):
    """What ran comes before what waited, and both before new prompts."""
    submitted, plain = [], Engine.submit

    def spy(self, requests):
        submitted.append(list(requests))
        plain(self, submitted[-1])

    monkeypatch.setattr(Engine, "submit", spy)
    colocated(replace(SMALL, slots=20, updates=3), source(5), extra=4)
    seen = {id(r): i for i, r in enumerate(submitted[0])}
    for before, now in zip(submitted, submitted[1:], strict=False):
        old = [seen[id(r)] for r in now if id(r) in seen]
        assert old and old == sorted(old)
        assert all(id(r) in seen for r in now[: len(old)])
        assert len(now) < len(before) + len(old)
        seen = {id(r): i for i, r in enumerate(now)}


def test_table_rows_hold_what_was_measured():
    shares = {"one step off": 0.55, "asynchronous": 0.4}
    makes = {
        "synchronous": colocated,
        "over-sample, discard": lambda s, p: colocated(s, p, 16, False),
        "over-sample, resume": lambda s, p: colocated(s, p, 16),
        "one step off": lambda s, p: one_step_off(s, p, shares["one step off"]),
        "asynchronous": lambda s, p: asynchronous(s, p, shares["asynchronous"], 2),
    }
    s = Setup(updates=10, warmup=4)
    for line in page.table_remedies().splitlines()[2:-1]:
        name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        found = averages(REMEDIES[name])
        first = measure(s, makes[name](s, prompts(0, 8)))
        assert first == {key: value.values[0] for key, value in found.items()}
        keys = ("time", "idle", "lost", "length", "stale", "mixed", "lag")
        specs = (",.0f", ".0%", ".0%", ",.0f", ".0%", ".0%", ".1f")
        for cell, key, spec in zip(cells, keys, specs, strict=True):
            mean, spread = (
                f(found[key].values) for f in (np.mean, lambda x: np.std(x, ddof=1))
            )
            expected = format(mean, spec)
            if spread:
                expected += " ± " + format(spread, spec)
            assert cell == expected
    for line, row in zip(
        page.table_ratio().splitlines()[3:], sweep(True)[1:], strict=True
    ):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        for cell, key in ((cells[2], "stale"), (cells[3], "mixed")):
            assert cell == format(row[key], ".0%")


def test_figures_show_the_spread_and_the_updates():
    for axes, key in zip(page.figure_ratio().axes, ("time", "length"), strict=True):
        for keep, bars in zip((False, True), axes.containers, strict=True):
            (_, _, (lines,)) = bars
            ends = np.array([segment[:, 1] for segment in lines.get_segments()])
            spread = [row[key].spread / 1e3 for row in sweep(keep)]
            assert np.allclose((ends[:, 1] - ends[:, 0]) / 2, spread)
    shaded = [len(axes.patches) for axes in page.figure_slots().axes]
    assert shaded == [5, 5, 0]  # only then do all GPUs train


def test_claim_the_idle_share_caps_the_gain_at_two():
    """1 / (1 − idle) is the synchronous step over the lower bound."""
    found = averages(REMEDIES["synchronous"], OTHERS)
    cap = 1 / (1 - found["idle"].mean)
    assert cap == pytest.approx(2.0, abs=0.1)
    bound = page.lower_bound(Setup())
    assert found["time"].mean / bound == pytest.approx(cap, abs=0.07)
    assert 1 - 14000 / found["time"].mean == pytest.approx(0.69, abs=0.015)
