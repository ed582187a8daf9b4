"""Which barriers does asynchronous RL remove, and how much can it gain?

Page:      docs/rollouts/async-rl-frameworks.md
Source:    Own model on snippets/rollouts/simulator.py and the schedules of
           rollout_long_tail.py; admission rule: Fu et al. 2025, Eq. 3.
Notation:  g, t wall time of generation and of an update on all N GPUs; w
           the generation's work at full slots, w <= g; share of the GPUs
           that generates; version = updates made.
Units:     time in decode steps of a lone request; lengths in tokens.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache

import numpy as np
from matplotlib.figure import Figure

from snippets.estimate import (
    SEEDS,
    Estimate,
    each_over_seeds,
    over_seeds,
)
from snippets.rollouts.rollout_long_tail import (
    Run,
    Setup,
    Source,
    colocated,
    one_step_off,
    prompts,
)
from snippets.rollouts.simulator import Buffer, Engine
from snippets.show import label, markdown_table, new_figure


# --8<-- [start:bounds]
def bounds(g: float, t: float, w: float) -> tuple[float, float]:
    """Largest gain over the colocated synchronous step, same GPUs.

    Args:
        g: Wall time of generation on all GPUs, its tail included.
        t: Wall time of the update on all GPUs.
        w: Generation's work: tokens over slots, at most g.

    Returns:
        Overlap alone, batch by batch: (g + t) / max(g, t), at most 2.
        No idle slot at all: (g + t) / (w + t), without a limit.
    """
    return (g + t) / max(g, t), (g + t) / (w + t)


# --8<-- [end:bounds]


# --8<-- [start:publish]
def publish_weights(
    engine: Engine, buffer: Buffer, drain: bool, pause: float
) -> None:
    """Bring new weights into the engine, by draining or by a swap.

    Args:
        engine: Its running requests end first (drain) or go on after.
        buffer: Takes the responses that end meanwhile.
        drain: Finish what runs, under the old weights; nothing starts.
        pause: Decode steps in which the engine stands still.
    """
    held = list(engine.queue) if drain else engine.abort()
    engine.queue.clear()
    while engine.running:
        buffer.add(engine.advance())
    engine.advance(until=engine.time + pause)
    engine.swap()
    engine.submit(held)


# --8<-- [end:publish]


# --8<-- [start:pipeline]
def pipeline(
    s: Setup,
    source: Source,
    share: float,
    eta: int,
    drain: bool = False,
    publish: float = 0.0,
) -> Run:
    """Separate GPUs, a queue between them, and three ways to publish.

    Args:
        s: Cluster and batch; s.train is the update's time on all GPUs.
        source: Gives new prompts.
        share: Part of the GPUs that generates; the rest trains.
        eta: At version v, (v + eta + 1) batches may have been started;
            0 is synchronous on separate GPUs.
        drain: Let running responses end before new weights go in, while
            the trainer waits; else swap the weights under them.
        publish: Decode steps in which both stand still for the transfer.
    """
    engine, buffer = Engine(round(share * s.slots)), Buffer(s.size)
    run, started, batch, begin, end = Run(engine), 0, [], 0.0, math.inf
    while len(run.ends) < s.updates:
        room = (len(run.ends) + eta + 1) * s.groups - started
        if room > 0:
            engine.submit(source(room))
            started += room
        buffer.add(engine.advance(until=end))
        if engine.time >= end:  # an update is done
            run.record(batch, begin, engine.time, 0)
            publish_weights(engine, buffer, drain, publish)
            end = math.inf
        if end == math.inf and len(buffer.ready) >= s.groups:
            begin, batch = engine.time, buffer.take(s.groups)
            end = begin + s.train / (1 - share)
    return run


# --8<-- [end:pipeline]


# --8<-- [start:idle]
def idle(s: Setup, run: Run, share: float | None) -> dict[str, float]:
    """Who stood still, over the updates after the warm-up.

    Args:
        s: Cluster and batch.
        run: A finished run.
        share: Part of the GPUs that generated, None when colocated.

    Returns:
        "time" per update in decode steps; "trainer": share of time with
        no update; "slots": share of the engine's slot time that was
        empty; "gpus": share of GPU time in which neither worked.
    """
    since = run.ends[s.warmup - 1]
    time, tokens = run.ends[-1] - since, run.tokens[-1]
    tokens -= run.tokens[s.warmup - 1]
    work = sum(end - start for start, end in run.trains[s.warmup :]) / time
    used = tokens / (run.engine.slots * time)
    if share is None:  # the same GPUs do one or the other
        gpus = 1 - work - used
    else:
        gpus = 1 - (1 - share) * work - share * used
    each = time / (s.updates - s.warmup)
    return {
        "time": each,
        "trainer": 1 - work,
        "slots": 1 - used,
        "gpus": gpus,
    }


# --8<-- [end:idle]

SETUP = Setup(updates=9, warmup=3)
SHARE, ETA, SLOW = 0.4, 2, 2000.0
EXTRA = SETUP.groups  # over-sampled: a whole batch, more gains nothing
SYNC, FAST = "synchronous, colocated", "asynchronous, interrupted"
STEP, DRAINED = "one step off", "asynchronous, drained"

# Name: (schedule of (setup, prompts, share), the share of the GPUs that
# generates at which it is fastest, None on the same GPUs).
Schedule = Callable[[Setup, Source, float], Run]
SCHEDULES: dict[str, tuple[Schedule, float | None]] = {
    SYNC: (lambda s, p, _: colocated(s, p), None),
    "partial rollout, colocated": (
        lambda s, p, _: colocated(s, p, EXTRA),
        None,
    ),
    "synchronous, separate": (lambda s, p, x: pipeline(s, p, x, 0), 0.4),
    STEP: (one_step_off, 0.55),
    DRAINED: (lambda s, p, x: pipeline(s, p, x, ETA, drain=True), 0.55),
    FAST: (lambda s, p, x: pipeline(s, p, x, ETA), SHARE),
    "interrupted, slow publication": (
        lambda s, p, x: pipeline(s, p, x, ETA, publish=SLOW),
        SHARE,
    ),
}
# Name: (setup, median length, sigma of its log, best share for STEP).
CASES: dict[str, tuple[Setup, float, float, float]] = {
    "as above": (SETUP, 3000.0, 0.9, 0.55),
    "equal lengths": (SETUP, 3000.0, 0.0, 0.3),
    "training 5 × as long": (
        replace(SETUP, train=70000.0),
        3000.0,
        0.9,
        0.15,
    ),
    "a slot for each response, training short": (
        replace(SETUP, slots=256, train=4000.0),
        3000.0,
        0.9,
        0.8,
    ),
}


@cache
def found(
    name: str,
    case: str = "as above",
    share: float | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """`idle` of a schedule in a case, for one seed.

    Args:
        name: A key of SCHEDULES.
        case: A key of CASES.
        share: Of the GPUs that generates; None takes the schedule's own.
        seed: Of the prompts.

    Returns:
        The keys of `idle`, and "lag", the mean age in versions of the
        first tokens of the responses trained on.
    """
    schedule, own = SCHEDULES[name]
    s, median, sigma, _ = CASES[case]
    if own is not None and share is not None:
        own = share
    source = prompts(seed, s.size, median=median, sigma=sigma)
    run = schedule(s, source, own or 1.0)
    ages = [
        k - request.spans[0][0]
        for k in range(s.warmup, s.updates)
        for request in run.batches[k]
    ]
    return idle(s, run, own) | {"lag": float(np.mean(ages))}


def mean_of(
    key: str,
    name: str,
    case: str = "as above",
    share: float | None = None,
    seeds: Iterable[int] = SEEDS,
) -> Estimate:
    """One entry of `found`, over seeds."""
    return over_seeds(lambda n: found(name, case, share, n)[key], seeds)


def gain(
    name: str,
    case: str = "as above",
    share: float | None = None,
    seeds: Iterable[int] = SEEDS,
) -> Estimate:
    """Time of the colocated synchronous update over the schedule's.

    Both of a seed have the same prompts.
    """

    def once(seed: int) -> float:
        sync = found(SYNC, case, None, seed)["time"]
        return sync / found(name, case, share, seed)["time"]

    return over_seeds(once, seeds)


def limits(case: str, seeds: Iterable[int] = SEEDS) -> list[Estimate]:
    """`bounds` of a case, and the split w / (w + t) that balances it."""

    def once(seed: int) -> tuple[float, float, float]:
        sync, t = found(SYNC, case, None, seed), CASES[case][0].train
        w = (1 - sync["slots"]) * sync["time"]
        return *bounds(sync["time"] - t, t, w), w / (w + t)

    return each_over_seeds(once, seeds)


def balanced(case: str) -> float:
    """`limits`' split, rounded to a hundredth of the GPUs."""
    return round(limits(case)[2].mean, 2)


# --- Tables ---------------------------------------------------------------


def cell(value: Estimate, spec: str, unit: str = "") -> str:
    """Mean ± standard deviation, or one number if no seed changes it."""
    if value.spread < 1e-9:
        return f"{value.mean:{spec}}{unit}"
    return f"{value:{spec}}{unit}"


def percent(value: Estimate) -> str:
    """`cell` of a share, in whole per cent."""
    hundred = Estimate(tuple(100 * round(x, 9) for x in value.values))
    return cell(hundred, ".0f", " %")


def table_schedules() -> str:
    """Time per update, who waits, gain and age for each schedule."""
    rows = []
    for name, (_, share) in SCHEDULES.items():
        rows.append(
            (
                name,
                "all, in turn" if share is None else f"{100 * share:.0f} %",
                cell(mean_of("time", name), ",.0f"),
                cell(gain(name), ".2f", "×"),
                percent(mean_of("trainer", name)),
                percent(mean_of("slots", name)),
                percent(mean_of("gpus", name)),
                cell(mean_of("lag", name), ".1f"),
            )
        )
    heads = ["schedule", "GPUs that generate", "time per update", "gain"]
    heads += ["trainer idle", "slots empty", "GPUs idle", "mean lag"]
    return markdown_table(heads, rows, "lrrrrrrr")


def table_cases() -> str:
    """Where asynchronous gains much, little or less than nothing."""
    rows = []
    for case, (_, _, _, best) in CASES.items():
        overlap, full, _ = limits(case)
        share = balanced(case)
        rows.append(
            (
                case,
                percent(mean_of("gpus", SYNC, case)),
                cell(overlap, ".2f", "×"),
                cell(full, ".2f", "×"),
                at(STEP, case, best),
                at(FAST, case, share),
                at(FAST, case, SHARE),
            )
        )
    heads = ["", "idle, sync", "limit of overlap", "limit, no idle slot"]
    heads += ["one step off, best split", "interrupted, balanced split"]
    return markdown_table([*heads, "interrupted, fixed split"], rows)


def at(name: str, case: str, share: float) -> str:
    """Share of the GPUs that generates and the gain there."""
    value = cell(gain(name, case, share), ".2f", "×")
    return f"{100 * share:.0f} %: {value}"


# --- Figures --------------------------------------------------------------

SHOWN = [name for name in SCHEDULES if "slow" not in name]
WINDOW = 1.2e5


@cache
def timeline(name: str) -> Run:
    """A short run of a schedule from the first update on, seed 1."""
    schedule, share = SCHEDULES[name]
    s = replace(SETUP, updates=6, warmup=1)
    return schedule(s, prompts(1, s.size), share or 1.0)


def figure_timelines() -> Figure:
    """GPU time of six schedules: generation, training, and white waste."""
    fig, panels = new_figure(7.6, rows=len(SHOWN), sharex=True, sharey=True)
    for axes, name in zip(panels, SHOWN, strict=True):
        run, share = timeline(name), SCHEDULES[name][1]
        floor = 0 if share is None else 100 * share
        top = 100 if share is None else 100 * share
        last = (run.engine.time, run.engine.running)
        times, counts = zip(*run.engine.trace, last, strict=True)
        used = top * np.array(counts) / run.engine.slots
        axes.fill_between(times, used, step="post", color="C0", lw=0)
        for k, (start, end) in enumerate(run.trains):
            bar = [(start, end - start)], (floor, 100 - floor)
            axes.broken_barh(*bar, color="C1", alpha=0.9 - 0.3 * (k % 2))
        waste = percent(mean_of("gpus", name))
        axes.set_title(f"{name}: {waste} idle", loc="left")
        axes.set(ylim=(0, 100), yticks=(0, 50, 100), xlim=(0, WINDOW))
    panels[2].set_ylabel("GPUs, %")
    ticks = range(0, int(WINDOW) + 1, 30000)
    panels[-1].set_xticks(ticks, [f"{x // 1000}" for x in ticks])
    panels[-1].set_xlabel("time, 1,000 decode steps")
    label(panels[0], 9000, 68, "generate", "C0")
    start = timeline(SHOWN[0]).trains[0][0]
    label(panels[0], start, 25, "train", "C1", xytext=(-3, 3), ha="right")
    return fig


SHARES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.8)


@cache
def split(name: str) -> list[Estimate]:
    """Gain of a schedule at each of SHARES."""
    return [gain(name, "as above", x) for x in SHARES]


def figure_split() -> Figure:
    """Gain over colocated synchronous against the split of the GPUs."""
    fig, axes = new_figure(3.2)
    x = [100 * share for share in SHARES]
    for name, color in ((FAST, "C0"), (STEP, "C1")):
        mean = np.array([e.mean for e in split(name)])
        sd = np.array([e.spread for e in split(name)])
        axes.plot(x, mean, color=color, marker="o", ms=4)
        axes.fill_between(
            x, mean - sd, mean + sd, color=color, alpha=0.2, lw=0
        )
    overlap, full, _ = (e.mean for e in limits("as above"))
    axes.axhline(1, color="grey", alpha=0.6, lw=1)
    axes.axhline(full, color="C0", alpha=0.5, ls=":")
    axes.axhline(overlap, color="C1", alpha=0.5, ls=":")
    label(axes, 80, full, "limit, no idle slot", "C0", ha="right")
    label(axes, 80, overlap, "limit of overlap", "C1", ha="right")
    label(axes, 49, 1.77, "interrupted", "C0", xytext=(0, 0))
    label(axes, 34, 0.8, "one step off", "C1", xytext=(0, 0))
    axes.set(
        xlabel="share of the GPUs that generates, %",
        ylabel="gain over colocated",
        ylim=(0, 2.4),
        xticks=(20, 30, 40, 60, 80),
    )
    axes.set_title("A wrong split turns the gain into a loss")
    return fig
