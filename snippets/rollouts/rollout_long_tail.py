"""What is the long-tail problem in RL rollouts, and how is it solved?

Page:      docs/rollouts/rollout-long-tail.md
Source:    Own model on snippets/rollouts/simulator.py. Partial rollout as
           in Kimi Team (2025), section 2.6.2, and Zhou et al. (2025,
           APRIL); the admission rule of `asynchronous` is AReaL's (Fu et
           al. 2025, equation 3).
Notation:  N responses a batch in P groups (prompts) of G; S slots on all
           GPUs; T time of one update on all GPUs; version = updates made.
Units:     lengths in tokens; time in decode steps of a lone request.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from snippets.estimate import SEEDS, Estimate, each_over_seeds
from snippets.rollouts.simulator import Buffer, Engine, Request
from snippets.show import label, markdown_table, new_figure


# --8<-- [start:lengths]
def draw_lengths(
    rng: np.random.Generator,
    groups: int,
    size: int,
    median: float = 3000.0,
    sigma: float = 0.9,
    cap: int = 32768,
    shared: float = 0.5,
) -> NDArray[np.int64]:
    """Heavy-tailed response lengths: a lognormal, cut at the token limit.

    Args:
        rng: Source of randomness.
        groups: Number of prompts P.
        size: Responses for each prompt, G.
        median: Median length in tokens.
        sigma: Standard deviation of the natural log of the length.
        cap: Maximum new tokens; longer responses stop there.
        shared: Part of the log-length's variance that is the prompt's,
            in [0, 1]: 0 draws all responses independently.

    Returns:
        Lengths in tokens, shape (groups, size), between 1 and cap.
    """
    prompt = rng.standard_normal((groups, 1))
    own = rng.standard_normal((groups, size))
    z = math.sqrt(shared) * prompt + math.sqrt(1 - shared) * own
    length = np.round(median * np.exp(sigma * z)).astype(int)
    return length.clip(1, cap)


def bubble(lengths: NDArray[np.int64]) -> float:
    """Idle share of slots when all start at once and wait for the last."""
    return 1.0 - lengths.mean() / lengths.max()


# --8<-- [end:lengths]


# --8<-- [start:extreme]
def expected_max(n: int, sigma: float, cap: float = math.inf) -> float:
    """E[longest of n] over E[one], lognormal lengths, by quadrature.

    Args:
        n: Number of independent responses.
        sigma: Standard deviation of the log-length.
        cap: Token limit in medians.

    Returns:
        The ratio; 1 - 1/ratio approximates the bubble.
    """
    z = np.linspace(-10, 10, 20001)
    density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    below = (np.cumsum(density) - density / 2) * (z[1] - z[0])  # P(Z < z)
    length = np.minimum(np.exp(sigma * z), cap)
    longest = n * density * below ** (n - 1)  # density of the largest z
    return float((longest * length).sum() / (density * length).sum())


def leading_order(n: int, sigma: float) -> float:
    """exp(sigma sqrt(2 ln n)) over the mean exp(sigma^2 / 2), no cap."""
    return math.exp(sigma * math.sqrt(2 * math.log(n)) - sigma**2 / 2)


# --8<-- [end:extreme]


@dataclass(frozen=True)
class Setup:
    """One cluster and one batch size, the same for every remedy.

    Attributes:
        slots: S, decode slots when all GPUs generate.
        groups: P, groups that one update consumes.
        size: G, responses in a group.
        train: T, time of one update when all GPUs train.
        updates: Updates to simulate.
        warmup: Updates at the start that no average counts.
    """

    slots: int = 128
    groups: int = 32
    size: int = 8
    train: float = 14000.0
    updates: int = 12
    warmup: int = 4


@dataclass
class Run:
    """What one simulation leaves behind.

    Attributes:
        engine: The engine after the last update.
        ends: Time at which each update ended.
        batches: Requests that each update trained on; update k is made
            by the weights of version k.
        drops: Tokens thrown away before each update's end.
        tokens: Tokens generated before each update's end.
        trains: (start, end) of each update.
    """

    engine: Engine
    ends: list[float] = field(default_factory=list)
    batches: list[list[Request]] = field(default_factory=list)
    drops: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    trains: list[tuple[float, float]] = field(default_factory=list)

    def record(
        self, batch: list[Request], start: float, end: float, dropped: int
    ) -> None:
        """Note one update and the tokens dropped since the last one."""
        self.batches.append(batch)
        self.trains.append((start, end))
        self.ends.append(end)
        self.drops.append(dropped)
        self.tokens.append(self.engine.tokens)


Source = Callable[[int], list[Request]]


def prompts(seed: int, size: int, **kw: float) -> Source:
    """A stream of prompts: source(n) makes the requests of n new groups."""
    rng, count = np.random.default_rng(seed), 0

    def source(groups: int) -> list[Request]:
        nonlocal count
        requests = []
        for row in draw_lengths(rng, max(groups, 0), size, **kw):
            requests += [Request(n, count) for n in row.tolist()]
            count += 1
        return requests

    return source


# --8<-- [start:colocated]
def colocated(
    s: Setup, source: Source, extra: int = 0, keep: bool = True
) -> Run:
    """Generate, stop, train, on the same GPUs.

    Args:
        s: Cluster and batch.
        source: Gives new prompts.
        extra: Groups launched beyond the s.groups needed; 0 waits for
            every response: the synchronous step.
        keep: Resume what was cut off in the next step (partial rollout)
            rather than throw it away.

    Returns:
        The run; its engine has all s.slots.
    """
    engine, buffer = Engine(s.slots), Buffer(s.size)
    run, left = Run(engine), []
    for _ in range(s.updates):
        open_groups = len({request.group for request in left})
        wanted = s.groups + extra - open_groups - len(buffer.ready)
        engine.submit(left + source(wanted))
        while len(buffer.ready) < s.groups:
            buffer.add(engine.advance())
        batch, left, dropped = buffer.take(s.groups), engine.abort(), 0
        if not keep:
            dropped = discard(left, buffer)
            left = []
        start = engine.time
        engine.advance(until=start + s.train)  # idle: the GPUs train
        engine.swap()
        run.record(batch, start, engine.time, dropped)
    return run


# --8<-- [end:colocated]


def discard(left: list[Request], buffer: Buffer) -> int:
    """Empty the buffer; the tokens lost with it and with `left`."""
    lost = left + [r for part in buffer.parts.values() for r in part]
    lost += buffer.take(len(buffer.ready))
    buffer.parts.clear()
    return sum(request.produced for request in lost)


# --8<-- [start:one_step_off]
def one_step_off(s: Setup, source: Source, share: float) -> Run:
    """Generate batch k + 1 on some GPUs while others train on batch k.

    Args:
        s: Cluster and batch.
        source: Gives new prompts.
        share: Part of the GPUs, and so of the slots, that generates; the
            rest needs s.train / (1 - share) for an update.

    Returns:
        The run; every batch still waits for its longest response.
    """
    engine = Engine(round(share * s.slots))
    run, trained = Run(engine), 0.0
    for update in range(s.updates):
        buffer = Buffer(s.size)
        engine.submit(source(s.groups))
        while len(buffer.ready) < s.groups:
            buffer.add(engine.advance())
        engine.advance(until=trained)  # the trainer is the slower one
        if update:
            engine.swap()
        start, trained = engine.time, engine.time + s.train / (1 - share)
        run.record(buffer.take(s.groups), start, trained, 0)
    return run


# --8<-- [end:one_step_off]


# --8<-- [start:asynchronous]
def asynchronous(s: Setup, source: Source, share: float, eta: int) -> Run:
    """Never stop generating; swap the weights under running requests.

    Args:
        s: Cluster and batch.
        source: Gives new prompts.
        share: Part of the GPUs that generates, as in `one_step_off`.
        eta: Admission rule: at version v, at most (v + eta + 1) batches
            have been submitted since the start.

    Returns:
        The run; a batch is the s.groups oldest complete groups.
    """
    engine, buffer = Engine(round(share * s.slots)), Buffer(s.size)
    run, submitted, batch, end = Run(engine), 0, [], math.inf
    start = 0.0
    while len(run.ends) < s.updates:
        room = (len(run.ends) + eta + 1) * s.groups - submitted
        if room > 0:
            engine.submit(source(room))
            submitted += room
        buffer.add(engine.advance(until=end))
        if engine.time >= end:
            engine.swap()
            run.record(batch, start, engine.time, 0)
            end = math.inf
        if end == math.inf and len(buffer.ready) >= s.groups:
            start, batch = engine.time, buffer.take(s.groups)
            end = start + s.train / (1 - share)
    return run


# --8<-- [end:asynchronous]


# --8<-- [start:measure]
def measure(s: Setup, run: Run) -> dict[str, float]:
    """Averages over the updates after the warm-up.

    Returns:
        time: per update, in decode steps.
        idle: share of GPU time in which a slot is empty and no update
            runs; 1 - (tokens generated / S + T) / time.
        lost: generated tokens that were thrown away, a share.
        length: mean length of the responses trained on, in tokens.
        stale: tokens trained on that an older version wrote, a share.
        mixed: responses that more than one version wrote, a share.
        lag: largest age of a response's first token, in versions.
    """
    first, last = s.warmup, s.updates
    time = run.ends[-1] - (run.ends[first - 1] if first else 0)
    tokens = run.tokens[-1] - (run.tokens[first - 1] if first else 0)
    used = [
        (update, request)
        for update in range(first, last)
        for request in run.batches[update]
    ]
    total = sum(request.length for _, request in used)
    old = sum(n for k, r in used for version, n in r.spans if version < k)
    return {
        "time": time / (last - first),
        "idle": 1 - (tokens / s.slots + (last - first) * s.train) / time,
        "lost": sum(run.drops[first:]) / tokens,
        "length": total / len(used),
        "stale": old / total,
        "mixed": sum(request.mixed for _, request in used) / len(used),
        "lag": float(max(k - request.spans[0][0] for k, request in used)),
    }


# --8<-- [end:measure]

Make = Callable[[Setup, Source], Run]


@cache
def step(ratio: float, keep: bool = True) -> Make:
    """A colocated step that launches `ratio` times the groups it needs."""
    return lambda s, source: colocated(
        s, source, round((ratio - 1) * s.groups), keep
    )


SHOWN = Setup(updates=10)
RATIO, RATIOS = 1.5, (1.0, 1.25, 1.5, 2.0)
SHARES = {"one step off": 0.55, "asynchronous": 0.4}
"""Share of the GPUs that generates: for each the best in steps of 0.05."""
ETA = 2
REMEDIES: dict[str, Make] = {
    "synchronous": step(1.0),
    "over-sample, discard": step(RATIO, False),
    "over-sample, resume": step(RATIO),
    "one step off": lambda s, p: one_step_off(s, p, SHARES["one step off"]),
    "asynchronous": lambda s, p: asynchronous(
        s, p, SHARES["asynchronous"], ETA
    ),
}


def mean_length(median: float = 3000, sigma: float = 0.9) -> float:
    """E[length] of `draw_lengths` with its default cap, by quadrature."""
    z = np.linspace(-10, 10, 20001)
    density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    length = np.minimum(median * np.exp(sigma * z), 32768)
    return float((length * density).sum() * (z[1] - z[0]))


def lower_bound(s: Setup) -> float:
    """Time per update that no schedule on these GPUs can beat, on average.

    All tokens at full slots, then the update, and nothing wasted; splitting
    the GPUs between the two changes nothing, the sum of work is the same.
    """
    return s.groups * s.size * mean_length() / s.slots + s.train


@cache
def averages(
    make: Make, seeds: Iterable[int] = SEEDS, s: Setup = SHOWN
) -> dict[str, Estimate]:
    """`measure`, each entry over the seeds."""
    keys: list[str] = []

    def one(seed: int) -> list[float]:
        found = measure(s, make(s, prompts(seed, s.size)))
        keys[:] = found
        return list(found.values())

    return dict(zip(keys, each_over_seeds(one, seeds), strict=True))


def sweep(
    keep: bool, seeds: Iterable[int] = SEEDS
) -> list[dict[str, Estimate]]:
    """Averages for each of RATIOS; keep: resume rather than discard."""
    return [averages(step(x, keep or x == 1), seeds) for x in RATIOS]


SCHEDULES = (
    "static batches",
    "continuous, first come",
    "continuous, longest first",
    "lower bound",
)


def batching(
    slots: int, seeds: Iterable[int] = SEEDS, requests: int = 512
) -> dict[str, tuple[Estimate, Estimate]]:
    """Wall time of one batch under three schedules, and its lower bound.

    Args:
        slots: Decode slots.
        seeds: Batches drawn, at least 8.
        requests: Responses in a batch, independent lengths.

    Returns:
        For each of SCHEDULES: time, and share of slot time in use.
    """

    def one(seed: int) -> list[float]:
        lengths = draw_lengths(np.random.default_rng(seed), requests, 1)
        plain = lengths.ravel()
        found: list[float] = []
        for order, continuous in (
            (plain, False),
            (plain, True),
            (np.sort(plain)[::-1], True),
        ):
            engine = Engine(slots, continuous=continuous)
            engine.submit([Request(int(n)) for n in order])
            while engine.running:
                engine.advance()
            found += [engine.time, engine.busy / (slots * engine.time)]
        bound = max(plain.sum() / slots, plain.max())
        return [*found, bound, plain.sum() / (slots * bound)]

    found = each_over_seeds(one, seeds)
    pairs = zip(found[::2], found[1::2], strict=True)
    return dict(zip(SCHEDULES, pairs, strict=True))


# --8<-- [start:agentic]
def agentic(
    rng: np.random.Generator, n: int, hang: float, timeout: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Decode time and tool time of n agent trajectories.

    Args:
        rng: Source of randomness.
        n: Trajectories.
        hang: Probability that a tool call never returns by itself.
        timeout: Decode steps after which a call is given up.

    Returns:
        Decode steps generated, and decode steps spent waiting for tools,
        each of shape (n,). Turns are geometric with mean 10; a turn has
        lognormal tokens (median 300, sigma 0.8) and a lognormal tool call
        (median 60, sigma 1.2).
    """
    turns = rng.geometric(0.1, n)
    owner = np.repeat(np.arange(n), turns)
    tokens = 300 * np.exp(0.8 * rng.standard_normal(turns.sum()))
    calls = 60 * np.exp(1.2 * rng.standard_normal(turns.sum()))
    calls[rng.random(turns.sum()) < hang] = math.inf
    calls = np.minimum(calls, timeout)
    return np.bincount(owner, tokens), np.bincount(owner, calls)


# --8<-- [end:agentic]


def table_extreme() -> str:
    """Longest over mean, exact and to leading order, and the bubble."""
    rows = []
    for n in (8, 64, 512, 4096):
        ratio, capped = (
            expected_max(n, 0.9, cap) for cap in (math.inf, 32768 / 3000)
        )
        rows.append(
            [
                n,
                f"{leading_order(n, 0.9):.1f}",
                f"{ratio:.1f}",
                f"{1 - 1 / ratio:.0%}",
                f"{capped:.1f}",
                f"{1 - 1 / capped:.0%}",
            ]
        )
    heads = ["$N$ started together", "leading order", "exact", "bubble"]
    return markdown_table([*heads, "exact, capped", "bubble, capped"], rows)


def shown(estimate: Estimate, spec: str) -> str:
    """Mean and spread; the value alone where no seed moves it."""
    return format(estimate if estimate.spread else estimate.mean, spec)


def table_batching() -> str:
    """Static and continuous batching at few and at many slots."""
    few, many = batching(64), batching(512)
    rows = []
    for name in SCHEDULES:
        cells = [*few[name], *many[name]]
        specs = (",.0f", ".0%") * 2
        rows.append([name, *map(shown, cells, specs)])
    return markdown_table(
        ["512 responses", "64 slots", "in use", "512 slots", "in use"], rows
    )


def table_group() -> str:
    """Mean finishing length of a group of 8 over the mean length."""
    return markdown_table(
        ["share of log-length variance that is the prompt's", "ratio"],
        [
            [shared, f"{expected_max(8, 0.9 * math.sqrt(1 - shared)):.2f}"]
            for shared in (0.0, 0.5, 0.9)
        ],
    )


def table_remedies() -> str:
    """Time, waste and staleness of each remedy."""
    specs = {
        "time": ",.0f",
        "idle": ".0%",
        "lost": ".0%",
        "length": ",.0f",
        "stale": ".0%",
        "mixed": ".0%",
        "lag": ".1f",
    }
    rows = [
        [name, *(shown(averages(make)[key], specs[key]) for key in specs)]
        for name, make in REMEDIES.items()
    ]
    bound, length = lower_bound(Setup()), mean_length()
    last = [f"{bound:,.0f}", "0%", "0%", f"{length:,.0f}", "", "", ""]
    heads = ["", "time per update", "GPUs idle", "tokens thrown away"]
    heads += ["mean length trained on", "stale tokens", "mixed versions"]
    return markdown_table(
        [*heads, "oldest first token"], [*rows, ["lower bound", *last]]
    )


def table_ratio() -> str:
    """What over-sampling costs, by ratio."""
    return markdown_table(
        [
            "launched / needed",
            "discard: thrown away",
            "resume: stale tokens",
            "resume: mixed versions",
            "resume: oldest first token",
        ],
        [
            [
                f"{ratio:g}",
                shown(drop["lost"], ".0%"),
                shown(keep["stale"], ".0%"),
                shown(keep["mixed"], ".0%"),
                shown(keep["lag"], ".1f"),
            ]
            for ratio, drop, keep in zip(
                RATIOS, sweep(False), sweep(True), strict=True
            )
        ],
    )


AGENTIC: dict[str, tuple[int, float, float]] = {
    "tokens only": (256, 0.0, 0.0),
    "with tools": (256, 0.0, 36000.0),
    "0.2% of calls hang, timeout 36,000": (256, 0.002, 36000.0),
    "0.2% of calls hang, timeout 3,600": (256, 0.002, 3600.0),
    "same, timeout 36,000, first 256 of 288": (288, 0.002, 36000.0),
}
"""Trajectories launched, share of calls that hang, time-out."""


def agentic_rows(
    seeds: Iterable[int] = SEEDS,
) -> dict[str, list[Estimate]]:
    """Mean, longest, bubble and waiting share of the 256 that are kept.

    Times are decode steps.
    """

    def row(launched: int, hang: float, timeout: float) -> list[Estimate]:
        def one(seed: int) -> list[float]:
            rng = np.random.default_rng(seed)
            tokens, waits = agentic(rng, launched, hang, timeout)
            kept = np.argsort(tokens + waits)[:256]
            total = (tokens + waits)[kept]
            mean, longest = total.mean(), total.max()
            share = waits[kept].sum() / total.sum()
            return [mean, longest, 1 - mean / longest, share]

        return each_over_seeds(one, seeds)

    return {name: row(*setting) for name, setting in AGENTIC.items()}


def table_agentic() -> str:
    """Mean, longest, bubble and waiting share of agent trajectories."""
    specs = (",.0f", ",.0f", ".0%", ".0%")
    return markdown_table(
        ["256 trajectories", "mean", "longest", "bubble", "time in tools"],
        [
            [name, *map(shown, found, specs)]
            for name, found in agentic_rows().items()
        ],
    )


def figure_slots() -> Figure:
    """Slots in use against time for three schedules, three updates."""
    s = Setup(updates=5, warmup=1)
    names = ("synchronous", "over-sample, resume", "asynchronous")
    fig, panels = new_figure(4.6, rows=3, sharex=True, sharey=True)
    for axes, name in zip(panels, names, strict=True):
        run = REMEDIES[name](s, prompts(1, s.size))
        last = (run.engine.time, run.engine.running)
        times, counts = zip(*run.engine.trace, last, strict=True)
        used = 100 * np.array(counts) / run.engine.slots
        axes.fill_between(times, used, step="post", alpha=0.35, color="C0")
        axes.step(times, used, where="post", color="C0")
        for start, end in run.trains:
            if name != "asynchronous":
                axes.axvspan(start, end, color="C1", alpha=0.2, lw=0)
            axes.axvline(end, color="C1", alpha=0.8)
        axes.set_title(f"{name}: {1e5 / run_time(run):.1f} updates per 100k")
        axes.set(ylabel="slots in use, %", ylim=(0, 108), yticks=(0, 50, 100))
    panels[-1].set(xlabel="time, 1,000 decode steps", xlim=(0, 1e5))
    panels[-1].set_xticks(range(0, 100001, 25000), [0, 25, 50, 75, 100])
    return fig


def run_time(run: Run) -> float:
    """Mean time between the ends of updates, the first left out."""
    return (run.ends[-1] - run.ends[0]) / (len(run.ends) - 1)


def figure_ratio() -> Figure:
    """Time per update and length trained on against launched / needed."""
    s = Setup()
    fig, (top, low) = new_figure(4.8, rows=2, sharex=True)
    for keep, color, name in (
        (False, "C1", "discard"),
        (True, "C0", "resume"),
    ):
        for axes, key, unit in ((top, "time", 1e3), (low, "length", 1e3)):
            mean = np.array([row[key].mean for row in sweep(keep)]) / unit
            sd = np.array([row[key].spread for row in sweep(keep)]) / unit
            axes.errorbar(
                RATIOS, mean, sd, color=color, marker="o", label=name
            )
            below = (key == "length") != keep
            where = 1 if below and keep else -2  # clear of the dotted line
            label(
                axes,
                RATIOS[where],
                mean[where],
                name,
                color,
                xytext=(-6 if where == 1 else 0, -16 if below else 10),
                ha="right" if where == 1 else "center",
            )
    for axes, value in ((top, lower_bound(s)), (low, mean_length())):
        axes.axhline(value / 1e3, color="grey", alpha=0.6, linestyle=":")
    label(top, 1.0, lower_bound(s) / 1e3, "lower bound", xytext=(3, -12))
    label(low, 1.6, mean_length() / 1e3, "all responses", xytext=(3, -14))
    top.set(ylabel="1,000 steps per update", ylim=(15, 50))
    top.set(yticks=(20, 30, 40, 50), xticks=RATIOS)
    top.set_title("Both are faster; only one trains on the whole data")
    low.set(
        xlabel="groups launched / groups needed",
        ylabel="mean length, 1,000 tokens",
        ylim=(2, 5.2),
        yticks=(2, 3, 4, 5),
    )
    return fig
