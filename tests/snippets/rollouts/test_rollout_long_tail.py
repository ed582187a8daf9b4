"""Checks the schedules against list scheduling and closed forms."""

import heapq
import math
from dataclasses import replace

import numpy as np
import pytest

from snippets.rollouts import rollout_long_tail as page
from snippets.rollouts.rollout_long_tail import (
    Run,
    Setup,
    agentic,
    asynchronous,
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
    remedies,
    sweep,
)
from snippets.rollouts.simulator import Engine, Request

SMALL = Setup(slots=6, groups=4, size=3, train=700, updates=5, warmup=1)
SHORT = {"median": 200.0, "cap": 1500}


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


def test_repeat_gives_mean_and_sample_deviation():
    found = page.repeat(lambda s, p: colocated(s, p), SMALL, 3)["time"]
    times = [measure(SMALL, colocated(SMALL, prompts(i, 3)))["time"] for i in range(3)]
    middle = sum(times) / 3
    spread = math.sqrt(sum((t - middle) ** 2 for t in times) / 2)
    assert found == pytest.approx((middle, spread))


# Claims of the page


def test_claim_continuous_batching_helps_only_with_a_queue():
    few, many = batching(64), batching(512)
    assert few["static batches"][0] / few["continuous, first come"][0] > 3
    bound = few["lower bound"][0]
    assert few["continuous, longest first"][0] < 1.02 * bound
    assert len({row[0] for row in many.values()}) == 1


def test_claim_more_gpus_do_not_help():
    """Twice the slots: generation gets 6% shorter; then nothing more."""
    times = []
    for slots in (128, 256, 1024):
        s = Setup(slots=slots, updates=5, warmup=1)
        runs = [colocated(s, prompts(seed, 8)) for seed in range(3)]
        times.append(np.mean([measure(s, r)["time"] for r in runs]) - 14000)
    assert times[1] / times[0] == pytest.approx(0.94, abs=0.02)
    assert times[2] == times[1]


def test_claim_no_bubble_if_a_step_costs_what_runs_in_it():
    lengths = draw_lengths(np.random.default_rng(0), 64, 8).ravel()
    engine = Engine(512, step_time=lambda running: running / 512)
    engine.submit([Request(int(n)) for n in lengths])
    while engine.running:
        engine.advance()
    assert engine.time == pytest.approx(lengths.sum() / 512)
    assert engine.time < 0.2 * lengths.max()


def test_claim_discarding_selects_short_responses():
    found = remedies()["over-sample, discard"]
    mean, sd = found["length"]
    assert 1 - mean / mean_length() == pytest.approx(0.32, abs=0.01)
    assert mean + 5 * sd < mean_length()
    for name in ("synchronous", "over-sample, resume", "asynchronous"):
        mean, sd = remedies()[name]["length"]
        assert abs(mean - mean_length()) < 3 * sd / math.sqrt(page.SEEDS)


def test_claim_low_idle_share_can_hide_waste():
    twice = sweep()[False][-1]
    assert twice["idle"][0] == pytest.approx(0.001, abs=0.0005)
    assert twice["lost"][0] == pytest.approx(0.56, abs=0.005)
    assert twice["time"][0] > 1.15 * sweep()[True][-1]["time"][0]


def test_claim_the_first_batch_is_the_same_with_and_without_resume():
    s, means = Setup(updates=6), []
    for seed in range(4):
        keep = colocated(s, prompts(seed, 8), 16)
        drop = colocated(s, prompts(seed, 8), 16, keep=False)
        a, b = (sorted(r.length for r in run.batches[0]) for run in (keep, drop))
        assert a == b
        means.append([np.mean([r.length for r in x]) for x in keep.batches])
    found = np.mean(means, axis=0) / mean_length()
    assert found[0] == pytest.approx(1 - 0.33, abs=0.02)
    assert found[1:].mean() == pytest.approx(1, abs=0.08)


def test_claim_idle_share_by_ratio():
    idle = [row["idle"][0] for row in sweep()[True]]
    assert idle == pytest.approx([0.5, 0.21, 0.09, 0.004], abs=0.015)
    whole = remedies()["synchronous"]["time"][0]
    assert 14000 / whole == pytest.approx(0.3, abs=0.02)


def test_claim_nearly_half_of_stale_tokens_were_never_interrupted():
    """A response that ended early waits, and ages, for its group."""
    s, shares, again = Setup(), [], []
    for seed in range(5):
        run, whole, cut = colocated(s, prompts(seed, 8), page.EXTRA), 0, 0
        for k in range(s.warmup, s.updates):
            for r in run.batches[k]:
                stale = sum(n for version, n in r.spans if version < k)
                whole += stale * (not r.mixed)
                cut += stale * r.mixed
        shares.append(whole / (whole + cut))
        again.append(run.engine.reprefilled / run.engine.tokens)
    assert np.mean(shares) == pytest.approx(0.47, abs=0.02)
    assert np.mean(again) == pytest.approx(0.28, abs=0.02)


def test_claim_the_admission_rule_does_not_bound_one_response():
    assert page.ETA == 2 and remedies()["asynchronous"]["lag"][0] > 2.5
    assert one_step_lag() == {1}


def one_step_lag():
    s = Setup(updates=6)
    run = one_step_off(s, prompts(0, 8), 0.4)
    return {k - r.spans[0][0] for k in range(1, s.updates) for r in run.batches[k]}


def test_claim_nothing_beats_the_lower_bound_with_unbiased_data():
    bound = page.lower_bound(Setup())
    assert bound == pytest.approx(256 * mean_length() / 128 + 14000)
    for name, found in remedies().items():
        if name != "over-sample, discard":
            assert found["time"][0] > bound
    over = [
        remedies()["asynchronous"]["time"][0] / bound,
        remedies()["over-sample, resume"]["time"][0] / bound,
        sweep()[True][-1]["time"][0] / bound,
    ]
    assert over == pytest.approx([1.02, 1.11, 1.01], abs=0.005)


def test_claim_redundant_environments_select_short_trajectories():
    rows = {row[0]: row[1:] for row in page.agentic_rows()}
    hang = rows["0.2% of calls hang, timeout 36,000"]
    first = rows["same, timeout 36,000, first 256 of 288"]
    assert first[1] < 0.25 * hang[1] and first[0] < 0.7 * hang[0]


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
    assert "| 512 |" in page.table_extreme()
    assert "2.83" in page.table_group()
    assert page.table_batching().count("±") == 8
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
            expected = [row[key][0] / 1e3 for row in sweep()[keep]]
            assert np.allclose(bars.lines[0].get_ydata(), expected)
    assert low.get_xlabel() == "groups launched / groups needed"


def test_share_in_use_is_work_over_slots_and_time():
    slots = 512
    draws = [draw_lengths(np.random.default_rng(s), 512, 1).ravel() for s in range(3)]
    expected = np.mean([d.sum() / (slots * d.max()) for d in draws])
    for name, (_, _, use) in batching(slots, seeds=3).items():
        assert use == pytest.approx(expected), name


def test_dropped_tokens_of_the_warm_up_are_not_counted():
    s = Setup(slots=10, groups=1, size=1, train=5, updates=2, warmup=1)
    run = Run(Engine(10))
    for made, dropped in ((8, 7), (18, 3)):
        run.engine.tokens = made
        version = len(run.batches)
        run.record([Request(4, spans=[(version, 4)])], 1, made, dropped)
    assert measure(s, run)["lost"] == pytest.approx(0.3)


def test_batching_gives_the_sample_deviation():
    times = [
        draw_lengths(np.random.default_rng(seed), 512, 1).max() for seed in range(3)
    ]
    mean, sd, _ = batching(512, seeds=3)["lower bound"]
    assert mean == pytest.approx(np.mean(times))
    middle = sum(times) / 3
    assert sd == pytest.approx(math.sqrt(sum((t - middle) ** 2 for t in times) / 2))


def test_a_timeout_also_ends_slow_calls_that_do_not_hang():
    _, waits = agentic(np.random.default_rng(0), 500, 0.0, 20.0)
    assert np.allclose(waits % 20, 0) is False
    turns = np.random.default_rng(0).geometric(0.1, 500)
    assert (waits <= 20 * turns + 1e-9).all()


def test_agentic_bubble_and_waiting_share_for_one_draw():
    rows = {row[0]: row[1:] for row in page.agentic_rows(1)}
    tokens, waits = agentic(np.random.default_rng(0), 256, 0.0, 36000.0)
    total = tokens + waits
    expected = (total.mean(), total.max(), 1 - total.mean() / total.max())
    assert rows["with tools"][:3] == pytest.approx(expected)
    assert rows["with tools"][3] == pytest.approx(waits.sum() / total.sum())


def test_run_time_divides_by_the_gaps():
    assert page.run_time(Run(Engine(1), ends=[10.0, 30.0, 40.0])) == 15


def test_table_cells_come_from_the_right_column():
    """Capped at 32,768 of a median of 3,000; discard, not resume."""
    row = page.table_extreme().splitlines()[4]
    assert row == "| 512 | 16.0 | 11.0 | 91% | 7.3 | 86% |"
    lost = sweep()[False][1]["lost"][0]
    assert f"| 1.25 | {lost:.0%} ±" in page.table_ratio()


def test_figure_ratio_dots_the_floor_above_and_the_length_below():
    top, low = page.figure_ratio().axes
    for axes, value in (
        (top, page.lower_bound(Setup())),
        (low, mean_length()),
    ):
        dotted = [x for x in axes.lines if x.get_linestyle() == ":"]
        assert any(np.allclose(x.get_ydata(), value / 1e3) for x in dotted)


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
    for line in page.table_remedies().splitlines()[2:-1]:
        name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        found = {key: value[0] for key, value in remedies()[name].items()}
        shares = [cells[i] for i in (1, 2, 4, 5)]
        keys = ("idle", "lost", "stale", "mixed")
        assert shares == [f"{found[key]:.0%}" for key in keys]
        assert cells[0].startswith(f"{found['time']:,.0f} ±")
        assert cells[3].startswith(f"{found['length']:,.0f} ±")
        assert cells[6] == f"{found['lag']:.1f}"
    for line, row in zip(
        page.table_ratio().splitlines()[2:], sweep()[True], strict=True
    ):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        for cell, key in ((cells[2], "stale"), (cells[3], "mixed")):
            assert cell == "{:.0%} ± {:.0%}".format(*row[key])


def test_figures_show_the_spread_and_the_updates():
    for axes, key in zip(page.figure_ratio().axes, ("time", "length"), strict=True):
        for keep, bars in zip((False, True), axes.containers, strict=True):
            (_, _, (lines,)) = bars
            ends = np.array([segment[:, 1] for segment in lines.get_segments()])
            spread = [row[key][1] / 1e3 for row in sweep()[keep]]
            assert np.allclose((ends[:, 1] - ends[:, 0]) / 2, spread)
    shaded = [len(axes.patches) for axes in page.figure_slots().axes]
    assert shaded == [5, 5, 0]  # only then do all GPUs train


def test_claim_the_idle_share_caps_the_gain_at_two():
    """1 / (1 − idle) is the synchronous step over the lower bound."""
    found = remedies()["synchronous"]
    cap = 1 / (1 - found["idle"][0])
    assert cap == pytest.approx(2.0, abs=0.05)
    bound = page.lower_bound(Setup())
    assert found["time"][0] / bound == pytest.approx(cap, abs=0.05)
    assert 1 - 14000 / found["time"][0] == pytest.approx(0.70, abs=0.01)
