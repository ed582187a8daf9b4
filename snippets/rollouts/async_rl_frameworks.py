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
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
from matplotlib.figure import Figure

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

SETUP = Setup(updates=12, warmup=4)
SHARE, ETA, EXTRA, SLOW = 0.4, 2, 16, 2000.0
SEEDS = 2

# Name: (schedule of (setup, prompts, share), whether on the same GPUs).
Schedule = Callable[[Setup, Source, float], Run]
SCHEDULES: dict[str, tuple[Schedule, bool]] = {
    "synchronous, colocated": (lambda s, p, _: colocated(s, p), True),
    "partial rollout, colocated": (
        lambda s, p, _: colocated(s, p, EXTRA),
        True,
    ),
    "synchronous, separate": (lambda s, p, x: pipeline(s, p, x, 0), False),
    "one step off": (one_step_off, False),
    "asynchronous, drained": (
        lambda s, p, x: pipeline(s, p, x, ETA, drain=True),
        False,
    ),
    "asynchronous, interrupted": (
        lambda s, p, x: pipeline(s, p, x, ETA),
        False,
    ),
    "interrupted, slow publication": (
        lambda s, p, x: pipeline(s, p, x, ETA, publish=SLOW),
        False,
    ),
}
# Name: (setup, median length, sigma of its log).
CASES: dict[str, tuple[Setup, float, float]] = {
    "as above": (SETUP, 3000.0, 0.9),
    "equal lengths": (SETUP, 3000.0, 0.0),
    "training 5 × as long": (replace(SETUP, train=70000.0), 3000.0, 0.9),
    "a slot for each response, training short": (
        replace(SETUP, slots=256, train=4000.0),
        3000.0,
        0.9,
    ),
}


@cache
def found(
    name: str,
    case: str = "as above",
    share: float = SHARE,
    seeds: int = SEEDS,
) -> dict[str, float]:
    """`idle` of a schedule in a case, mean over seeds.

    Returns:
        The keys of `idle`, and "lag", the mean age in versions of the
        first tokens of the responses trained on.
    """
    schedule, same = SCHEDULES[name]
    s, median, sigma = CASES[case]
    rows = []
    for seed in range(seeds):
        source = prompts(seed, s.size, median=median, sigma=sigma)
        run = schedule(s, source, share)
        ages = [
            k - request.spans[0][0]
            for k in range(s.warmup, s.updates)
            for request in run.batches[k]
        ]
        row = idle(s, run, None if same else share)
        rows.append(row | {"lag": float(np.mean(ages))})
    return {key: float(np.mean([r[key] for r in rows])) for key in rows[0]}


def gain(name: str, case: str = "as above", share: float = SHARE) -> float:
    """Time of the colocated synchronous update over the schedule's."""
    sync = found("synchronous, colocated", case)["time"]
    return sync / found(name, case, share)["time"]


def limits(case: str) -> tuple[float, float, float]:
    """`bounds` of a case, and the split w / (w + t) that balances it."""
    sync, t = found("synchronous, colocated", case), CASES[case][0].train
    w = (1 - sync["slots"]) * sync["time"]
    return *bounds(sync["time"] - t, t, w), w / (w + t)


# --- Tables ---------------------------------------------------------------


def table_schedules() -> str:
    """Time per update, who waits, gain and age for each schedule."""
    rows = []
    for name in SCHEDULES:
        f = found(name)
        rows.append(
            (
                name,
                f"{f['time']:,.0f}",
                f"{gain(name):.2f}×",
                f"{f['trainer']:.0%}",
                f"{f['slots']:.0%}",
                f"{f['gpus']:.0%}",
                f"{f['lag']:.1f}",
            )
        )
    heads = ["schedule", "time per update", "gain", "trainer idle"]
    heads += ["slots empty", "GPUs idle", "mean lag"]
    return markdown_table(heads, rows)


def table_cases() -> str:
    """Where asynchronous gains much, little or less than nothing."""
    fast, step = "asynchronous, interrupted", "one step off"
    rows = []
    for case in CASES:
        overlap, full, share = limits(case)
        rows.append(
            (
                case,
                f"{found('synchronous, colocated', case)['gpus']:.0%}",
                f"{overlap:.2f}×",
                f"{full:.2f}×",
                f"{gain(step, case):.2f}×",
                f"{gain(fast, case):.2f}×",
                f"{share:.0%}",
                f"{gain(fast, case, share):.2f}×",
            )
        )
    heads = ["", "idle, sync", "limit of overlap", "limit, no idle slot"]
    heads += ["one step off, 40 %", "interrupted, 40 %", "balanced split"]
    return markdown_table([*heads, "interrupted, balanced"], rows)


# --- Figures --------------------------------------------------------------

SHOWN = [name for name in SCHEDULES if "slow" not in name]
WINDOW = 1.2e5


@cache
def timeline(name: str) -> tuple[Run, bool]:
    """A short run of a schedule from the first update on, seed 1."""
    schedule, same = SCHEDULES[name]
    s = replace(SETUP, updates=6, warmup=1)
    return schedule(s, prompts(1, s.size), SHARE), same


def figure_timelines() -> Figure:
    """GPU time of six schedules: generation, training, and white waste."""
    fig, panels = new_figure(7.6, rows=len(SHOWN), sharex=True, sharey=True)
    for axes, name in zip(panels, SHOWN, strict=True):
        run, same = timeline(name)
        floor = 0 if same else 100 * SHARE
        top = 100 if same else 100 * SHARE
        last = (run.engine.time, run.engine.running)
        times, counts = zip(*run.engine.trace, last, strict=True)
        used = top * np.array(counts) / run.engine.slots
        axes.fill_between(times, used, step="post", color="C0", lw=0)
        for k, (start, end) in enumerate(run.trains):
            bar = [(start, end - start)], (floor, 100 - floor)
            axes.broken_barh(*bar, color="C1", alpha=0.9 - 0.3 * (k % 2))
        waste = found(name)["gpus"]
        axes.set_title(f"{name}: {waste:.0%} idle", loc="left")
        axes.set(ylim=(0, 100), yticks=(0, 50, 100), xlim=(0, WINDOW))
    panels[2].set_ylabel("GPUs, %")
    ticks = range(0, int(WINDOW) + 1, 30000)
    panels[-1].set_xticks(ticks, [f"{x // 1000}" for x in ticks])
    panels[-1].set_xlabel("time, 1,000 decode steps")
    label(panels[0], 9000, 45, "generate", "C0")
    start = timeline(SHOWN[0])[0].trains[0][0]
    label(panels[0], start, 45, "train", "C1", xytext=(-3, 3), ha="right")
    return fig


SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)


@cache
def split(name: str) -> list[float]:
    """Gain of a schedule at each of SHARES, seed 0 only."""
    case = "as above"
    sync = found("synchronous, colocated", case, SHARE, 1)["time"]
    return [sync / found(name, case, x, 1)["time"] for x in SHARES]


def figure_split() -> Figure:
    """Gain over colocated synchronous against the split of the GPUs."""
    fig, axes = new_figure(3.2)
    x = [100 * share for share in SHARES]
    fast, slow = "asynchronous, interrupted", "one step off"
    for name, color in ((fast, "C0"), (slow, "C1")):
        axes.plot(x, split(name), color=color, marker="o", ms=4)
    overlap, full, _ = limits("as above")
    axes.axhline(1, color="grey", alpha=0.6, lw=1)
    axes.axhline(full, color="C0", alpha=0.5, ls=":")
    axes.axhline(overlap, color="C1", alpha=0.5, ls=":")
    label(axes, 80, full, "limit, no idle slot", "C0", ha="right")
    label(axes, 80, overlap, "limit of overlap", "C1", ha="right")
    label(axes, 24, 1.5, "interrupted", "C0", ha="right")
    label(axes, 31, 0.86, "one step off", "C1", xytext=(0, 0))
    axes.set(
        xlabel="share of the GPUs that generates, %",
        ylabel="gain over colocated",
        ylim=(0, 2.3),
        xticks=(10, 20, 40, 60, 80),
    )
    axes.set_title("A wrong split turns the gain into a loss")
    return fig
