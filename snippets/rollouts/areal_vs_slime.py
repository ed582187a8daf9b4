"""How do AReaL and slime differ in what they see as the bottleneck?

Page:      docs/rollouts/areal-vs-slime.md
Source:    Own model on snippets/rollouts/simulator.py. AReaL's admission
           rule: Fu et al. 2025, equation 3; over-sampling with resuming:
           slime's sglang_rollout.py and Zhou et al. 2025 (APRIL); the
           latency law: slime's release note v0.1.0.
Notation:  S slots on all GPUs; w work of one batch at full slots; T one
           update on all GPUs; version = updates made; eta as in AReaL.
Units:     lengths in tokens; time in decode steps at full slots.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from matplotlib.figure import Figure

from snippets.estimate import SEEDS, Estimate, over_seeds
from snippets.rollouts.rollout_long_tail import Setup, draw_lengths
from snippets.rollouts.rollout_long_tail import (
    mean_length as exact_mean_length,
)
from snippets.rollouts.simulator import Buffer, Engine, Request
from snippets.show import label, markdown_table, new_figure


# --8<-- [start:law]
def rollout_time(
    total: float, longest: float, gpus: int, full: float, stream: float
) -> float:
    """Least wall time of a synchronous rollout, in seconds.

    Args:
        total: Tokens of all responses together.
        longest: Tokens of the longest response.
        gpus: GPUs that generate.
        full: Tokens per second of one GPU with a full batch.
        stream: Tokens per second of a single response.
    """
    return max(total / (gpus * full), longest / stream)


def waiting(length: int, behind: int, stream: float) -> float:
    """Seconds for a response preempted while `behind` tokens decode."""
    return (length + behind) / stream


# --8<-- [end:law]


@dataclass(eq=False, slots=True)
class Episode:
    """One response or trajectory: turns of decoding and of waiting.

    Attributes:
        group: Number of its prompt.
        turns: (tokens to decode, then time to wait for the environment).
        done: Turns that have ended, their wait included.
        spans: (version, tokens) of the turns that have been decoded.
    """

    group: int
    turns: list[tuple[int, float]]
    done: int = 0
    spans: list[tuple[int, int]] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Tokens to decode in all turns."""
        return sum(tokens for tokens, _ in self.turns)


class Cluster:
    """The engine of simulator.py, with environments outside the slots.

    Attributes:
        engine: Slots and clock.
        buffer: Whole groups of finished episodes.
        lost: Tokens decoded and thrown away.
    """

    def __init__(
        self, slots: int, size: int, step: Callable[[float], float]
    ) -> None:
        """An empty cluster.

        Args:
            slots: Decode slots.
            size: Episodes in a group.
            step: Time of a decode step, given the share of slots in use.
        """
        self.engine = Engine(slots, lambda running: step(running / slots))
        self.buffer = Buffer(size)
        self.lost = 0
        self._owner: dict[Request, Episode] = {}
        self._waits: list[tuple[float, int, Episode]] = []
        self._order = itertools.count()

    def start(self, episodes: list[Episode]) -> None:
        """Submit the next turn of each episode."""
        requests = [Request(e.turns[e.done][0], e.group) for e in episodes]
        self._owner.update(zip(requests, episodes, strict=True))
        self.engine.submit(requests)

    def advance(self, until: float = math.inf) -> None:
        """Run to the next event; see `Engine.advance`."""
        if self._waits:
            until = min(until, self._waits[0][0])
        for request in self.engine.advance(until=until):
            episode = self._owner.pop(request)
            episode.spans += request.spans
            if wait := episode.turns[episode.done][1]:
                entry = (self.engine.time + wait, next(self._order), episode)
                heapq.heappush(self._waits, entry)
            else:
                self._next(episode)
        while self._waits and self._waits[0][0] <= self.engine.time:
            self._next(heapq.heappop(self._waits)[2])

    def _next(self, episode: Episode) -> None:
        """Begin the turn after this one, or file the finished episode."""
        episode.done += 1
        if episode.done == len(episode.turns):
            self.buffer.add([episode])
        else:
            self.start([episode])

    def cut(self, how: str) -> list[Request]:
        """Empty the engine.

        Args:
            how: "keep" returns what was cut, to be submitted again;
                "restart" too, but without its tokens; "drop" throws away
                every episode that has not been taken.

        Returns:
            Requests to submit again, in order.
        """
        left = self.engine.abort()
        if how == "keep":
            return left
        cut = [self._owner.pop(request) for request in left]
        self.lost += sum(request.produced for request in left)
        self.lost += sum(n for episode in cut for _, n in episode.spans)
        if how == "drop":
            gone = [e for _, _, e in self._waits]
            gone += [e for part in self.buffer.parts.values() for e in part]
            gone += [e for group in self.buffer.ready for e in group]
            self.lost += sum(n for e in gone for _, n in e.spans)
            self._waits, self.buffer = [], Buffer(self.buffer.size)
            return []
        fresh = []
        for episode in cut:
            episode.spans, episode.done = [], 0
            fresh.append(Request(episode.turns[0][0], episode.group))
            self._owner[fresh[-1]] = episode
        return fresh


@dataclass
class Log:
    """What one simulation leaves behind.

    Attributes:
        ends: Time at which each update's weights were published.
        batches: Episodes of each update; update k is made by version k.
        lost: Tokens thrown away before each publication.
        tokens: Tokens decoded before each publication.
        again: Tokens prefilled again before each publication.
        slots: Slots of the engine.
        trains: (start, end) of each update.
    """

    slots: int
    ends: list[float] = field(default_factory=list)
    batches: list[list[Episode]] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    again: list[int] = field(default_factory=list)
    trains: list[tuple[float, float]] = field(default_factory=list)

    def record(
        self, batch: list[Episode], train: tuple[float, float], c: Cluster
    ) -> None:
        """Note one update at its publication."""
        self.batches.append(batch)
        self.trains.append(train)
        self.ends.append(c.engine.time)
        self.lost.append(c.lost)
        self.tokens.append(c.engine.tokens)
        self.again.append(c.engine.reprefilled)


Source = Callable[[int], list[Episode]]


def even(load: float) -> float:
    """A decode step takes the same time at any load."""
    return 1.0


# --8<-- [start:slime]
def colocated(
    s: Setup,
    source: Source,
    extra: int = 0,
    how: str = "keep",
    step: Callable[[float], float] = even,
) -> Log:
    """Run slime's default loop: generate, abort the surplus, train, publish.

    Args:
        s: Cluster and batch.
        source: Gives the episodes of n new groups.
        extra: Over-sampled groups: over_sampling_batch_size minus
            rollout_batch_size. 0 waits for every response.
        how: "keep" with --partial-rollout, "drop" without.
        step: Time of a decode step, given the share of slots in use.
    """
    c = Cluster(s.slots, s.size, step)
    log, opened, left = Log(s.slots), 0, []
    for _ in range(s.updates):
        wanted = s.groups + extra - opened
        c.engine.submit(left)
        c.start(source(wanted))
        while len(c.buffer.ready) < s.groups:
            c.advance()
        batch, left = c.buffer.take(s.groups), c.cut(how)
        opened = extra if how == "keep" else 0
        start = c.engine.time
        c.engine.advance(until=start + s.train)  # the GPUs train
        c.engine.swap()
        log.record(batch, (start, c.engine.time), c)
    return log


# --8<-- [end:slime]


# --8<-- [start:areal]
def admitted(
    s: Setup,
    updates: int,
    training: int,
    started: int,
    ready: int,
    eta: int,
    pool: int,
) -> int:
    """Groups that may start now, by AReaL's bound or slime's worker.

    Args:
        s: Cluster and batch.
        updates: Versions published so far.
        training: Groups handed to the update in progress, 0 or one batch.
        started: Groups started so far.
        ready: Whole groups that wait to be trained on.
        eta: AReaL: at version v, (v + eta + 1) batches may have started.
        pool: slime, if above 0: so many groups may run, so many wait
            beyond the batch that the next rollout collects.
    """
    if not pool:
        return (updates + eta + 1) * s.groups - started
    running = started - updates * s.groups - training - ready
    return pool - running if ready - s.groups < pool else 0


def publishes(s: Setup, pool: int, ready: int) -> bool:
    """Whether a finished update reaches the engine now."""
    return not pool or ready >= s.groups  # slime: next batch whole first


# --8<-- [end:areal]


def streamed(
    s: Setup,
    source: Source,
    share: float,
    eta: int = 2,
    pool: int = 0,
    how: str = "keep",
    step: Callable[[float], float] = even,
) -> Log:
    """Generation never stops; weights are swapped under what runs.

    Args:
        s: Cluster and batch; s.train is an update's time on all GPUs.
        source: Gives the episodes of n new groups.
        share: Part of the GPUs that generates.
        eta: AReaL's bound: at version v, (v + eta + 1) batches started.
        pool: Above 0, slime's worker in place of the bound: at most so
            many groups run and so many wait, and weights are published
            only when the next batch is whole.
        how: What a publication does to running requests.
        step: Time of a decode step, given the share of slots in use.
    """
    c = Cluster(round(share * s.slots), s.size, step)
    log, started = Log(c.engine.slots), 0
    batch, begin, end = [], 0.0, math.inf
    while len(log.ends) < s.updates:
        ready = len(c.buffer.ready)
        training = 0 if end == math.inf else s.groups
        room = admitted(s, len(log.ends), training, started, ready, eta, pool)
        if room > 0:
            c.start(source(room))
            started += room
        over = c.engine.time >= end
        if over and publishes(s, pool, ready):
            c.engine.submit(c.cut(how))
            c.engine.swap()
            log.record(batch, (begin, end), c)
            end = math.inf
        elif end == math.inf and ready >= s.groups:
            begin, batch = c.engine.time, c.buffer.take(s.groups)
            end = begin + s.train / (1 - share)
        else:
            c.advance(until=math.inf if over and pool else end)
    return log


# --8<-- [start:measure]
def measure(s: Setup, log: Log) -> dict[str, float]:
    """Averages over the updates after the warm-up.

    Returns:
        time: per update, in decode steps at full slots.
        rate: tokens trained on per unit of time.
        wait: share of the time in which no update runs.
        lost: tokens thrown away over tokens decoded.
        again: tokens prefilled again over tokens trained on.
        stale: tokens trained on that an older version wrote, a share.
        whole: episodes with no token of the newest version, a share.
        lag: mean age of an episode's first token, in versions.
        length: mean tokens of the episodes trained on.
    """
    first, last = s.warmup - 1, s.updates - 1
    time = log.ends[last] - log.ends[first]
    used = [
        (k, e) for k in range(first + 1, last + 1) for e in log.batches[k]
    ]
    total = sum(e.length for _, e in used)
    old = sum(n for k, e in used for v, n in e.spans if v < k)
    busy = sum(b - a for a, b in log.trains[first + 1 :])
    return {
        "time": time / (last - first),
        "rate": total / time,
        "wait": 1 - busy / time,
        "lost": (log.lost[last] - log.lost[first])
        / (log.tokens[last] - log.tokens[first]),
        "again": (log.again[last] - log.again[first]) / total,
        "stale": old / total,
        "whole": sum(e.spans[-1][0] < k for k, e in used) / len(used),
        "lag": sum(k - e.spans[0][0] for k, e in used) / len(used),
        "length": total / len(used),
    }


# --8<-- [end:measure]


@dataclass(frozen=True)
class Load:
    """What is generated.

    Attributes:
        sigma: Standard deviation of the log-length; median 3,000.
        alpha: Above 0, Pareto lengths with this tail index instead.
        waits: Mean time an episode waits for its environment, over the
            mean time it decodes; above 0, it has 3 turns on average.
    """

    sigma: float = 0.9
    alpha: float = 0.0
    waits: float = 0.0


CAP = 32768
PROMPTS = 440  # groups in a data set, more than any schedule here starts


def lengths(
    rng: np.random.Generator, groups: int, size: int, load: Load
) -> np.ndarray:
    """Tokens of each episode, shape (groups, size), between 1 and CAP."""
    if not load.alpha:
        return draw_lengths(rng, groups, size, sigma=load.sigma)
    # The same copula: a lognormal with sigma 1 and median 1e6 gives z.
    z = np.log(draw_lengths(rng, groups, size, 1e6, 1.0, 10**12) / 1e6)
    above = 0.5 * np.vectorize(math.erfc)(z / math.sqrt(2))
    tokens = 3000 * (2 * above) ** (-1 / load.alpha)
    return np.round(tokens).astype(int).clip(1, CAP)


@cache
def mean_length(load: Load) -> float:
    """Mean tokens of an episode, from 100,000 draws."""
    return float(lengths(np.random.default_rng(9), 12500, 8, load).mean())


@cache
def dataset(
    seed: int, size: int, load: Load
) -> list[list[list[tuple[int, float]]]]:
    """Turns of each member of each group, the same for every schedule."""
    rng, mean_turns = np.random.default_rng(seed), 3
    drawn = lengths(rng, PROMPTS, size, load).tolist()
    if not load.waits:
        return [[[(tokens, 0.0)] for tokens in row] for row in drawn]
    median = math.log(load.waits * mean_length(load) / mean_turns) - 0.72

    counts = np.minimum(rng.geometric(1 / mean_turns, (PROMPTS, size)), drawn)
    waits = iter(rng.lognormal(median, 1.2, int(counts.sum())).tolist())

    def turns(tokens: int, n: int) -> list[tuple[int, float]]:
        ends = [k * tokens // n for k in range(n + 1)]
        return [(b - a, next(waits)) for a, b in itertools.pairwise(ends)]

    return [
        [turns(*both) for both in zip(row, count, strict=True)]
        for row, count in zip(drawn, counts.tolist(), strict=True)
    ]


def episodes(seed: int, size: int, load: Load) -> Source:
    """A stream of prompts: source(n) makes the episodes of n groups.

    It raises RuntimeError when the data set has no n groups left.
    """
    groups = enumerate(dataset(seed, size, load))

    def source(n: int) -> list[Episode]:
        rows = list(itertools.islice(groups, max(n, 0)))
        if len(rows) < n:
            raise RuntimeError(f"all {PROMPTS} prompts are used up")
        return [Episode(k, turns) for k, row in rows for turns in row]

    return source


def thin(fast: float) -> Callable[[float], float]:
    """Decode step that is `fast` times quicker alone, no quicker full."""
    return lambda load: 1 / (1 + (fast - 1) * (1 - load))


def quick(fast: float) -> Callable[[float], float]:
    """Decode step that is `fast` times quicker at any load."""
    return lambda load: 1 / fast


BASE = Setup(updates=9, warmup=3)
SMALL = Setup(slots=32, groups=16, size=4, updates=9, warmup=3)
# Age settles later than speed: after as many updates as batches in flight.
AGED = replace(SMALL, updates=14, warmup=8)


def split(s: Setup, load: Load, fast: float = 1.0) -> float:
    """Share of GPUs that balances both stages: w / (w + t)."""
    work = s.groups * s.size * mean_length(load) / s.slots / fast
    return min(max(work / (work + s.train), 0.1), 0.9)


Make = Callable[[Setup, Source, Load], Log]
SYNC, ALONE = "synchronous", "streams up to 3× faster when few"
TWICE = "decoding 2× faster at any load"
DROP = "over-sample half a batch, drop"
RESUME = "over-sample half a batch, resume"
WHOLE = "over-sample a whole batch, resume"
AREAL, AREAL_TWICE = "interrupt, η = 2", "interrupt, η = 2, decoding 2×"
KEPT, AGAIN = "slime's worker, resumed", "slime's worker, started over"
REMEDIES: dict[str, Make] = {
    SYNC: lambda s, p, x: colocated(s, p),
    ALONE: lambda s, p, x: colocated(s, p, step=thin(3)),
    TWICE: lambda s, p, x: colocated(s, p, step=quick(2)),
    DROP: lambda s, p, x: colocated(s, p, s.groups // 2, "drop"),
    RESUME: lambda s, p, x: colocated(s, p, s.groups // 2),
    WHOLE: lambda s, p, x: colocated(s, p, s.groups),
    AREAL: lambda s, p, x: streamed(s, p, split(s, x), 2),
    AREAL_TWICE: lambda s, p, x: streamed(
        s, p, split(s, x, 2), 2, step=quick(2)
    ),
    KEPT: lambda s, p, x: streamed(s, p, split(s, x), pool=s.groups),
    AGAIN: lambda s, p, x: streamed(
        s, p, split(s, x), pool=s.groups, how="restart"
    ),
}
# The two remedies with as many batches in flight, for `table_flight`.
FLIGHTS = (3, 6)
MORE: dict[str, Make] = {}
for count in FLIGHTS:
    MORE[f"resume, {count} batches"] = lambda s, p, x, n=count: colocated(
        s, p, (n - 1) * s.groups
    )
    MORE[f"interrupt, η = {count - 1}"] = lambda s, p, x, n=count: streamed(
        s, p, split(s, x), n - 1
    )
REMEDIES |= MORE
MANY = "interrupt, η = 5"


@cache
def found(
    name: str, s: Setup = BASE, load: Load = Load(), seed: int = 0
) -> dict[str, float]:
    """`measure` of a remedy; all remedies get the same prompts in order.

    Two carry no state from update to update and need no warm-up. Twice
    the speed at any load is the first with half of its decoding time.
    """
    if name == TWICE:
        f = found(SYNC, s, load, seed)
        time = (f["time"] + s.train) / 2
        rate = f["rate"] * f["time"] / time
        return f | {"time": time, "rate": rate, "wait": 1 - s.train / time}
    if name in (SYNC, ALONE):
        s = replace(s, warmup=1)
    return measure(s, REMEDIES[name](s, episodes(seed, s.size, load), load))


def mean_of(
    key: str,
    name: str,
    s: Setup = BASE,
    load: Load = Load(),
    seeds: Iterable[int] = SEEDS,
    scale: float = 1.0,
) -> Estimate:
    """One entry of `found` times `scale`, over seeds."""
    return over_seeds(lambda n: scale * found(name, s, load, n)[key], seeds)


def gain(
    name: str,
    s: Setup = BASE,
    load: Load = Load(),
    seeds: Iterable[int] = SEEDS,
    key: str = "rate",
) -> Estimate:
    """Tokens trained on per time, over the synchronous step's.

    Each seed's run is compared with the synchronous one on the same
    prompts. With key "time": updates per time instead.
    """

    def once(seed: int) -> float:
        mine, sync = (found(n, s, load, seed)[key] for n in (name, SYNC))
        return sync / mine if key == "time" else mine / sync

    return over_seeds(once, seeds)


# --8<-- [start:weights]
def coefficient(w: float, a: float, rule: str, stale: bool = True) -> float:
    """What multiplies A grad log pi for one token, first optimiser step.

    Args:
        w: pi_trainer / pi_engine of the token; its log is staleness and
            engine mismatch together.
        a: Sign of the advantage, +1 or -1.
        rule: A key of RULES.
        stale: Whether an older version wrote the token.
    """
    anchor, weight = RULES[rule]
    if weight == "mask" and stale:
        return 0.0
    # At the first step pi_theta is pi_trainer: r is w, or exactly 1.
    r = w if anchor == "engine" else 1.0
    clipped = (a > 0 and r > 1.2) or (a < 0 and r < 0.8)
    ratio = 0.0 if clipped else r
    if weight == "w":
        return ratio * w
    if weight == "w, 0 above 5":
        return ratio * (w if w <= 5 else 0.0)
    return ratio * min(w, 2.0) if weight == "min(w, 2)" else ratio


# --8<-- [end:weights]

# Name: (anchor of ratio and clip, weight on the clipped loss).
RULES = {
    "AReaL, code defaults": ("engine", "none"),
    "AReaL, `use_decoupled_loss` alone": ("trainer", "none"),
    "AReaL, and `rejection_sampling` as in its examples": (
        "trainer",
        "w, 0 above 5",
    ),
    "decoupled objective of the paper": ("trainer", "w"),
    "slime, defaults": ("trainer", "none"),
    "slime, `--use-tis`": ("trainer", "min(w, 2)"),
    "slime, `--use-rollout-logprobs`": ("engine", "none"),
    "slime, `--mask-offpolicy-in-partial-rollout`": ("trainer", "mask"),
}


# --- Tables ---------------------------------------------------------------


def table_law() -> str:
    """Wall time of one rollout against the number of GPUs, in seconds."""
    total, full, stream = 512 * exact_mean_length(), 3840.0, 60.0
    fleet = (1, 2, 4, 8, 64)
    rows = [
        ("work alone: no response is waited for", math.inf),
        ("synchronous, 60 tokens/s a stream", stream),
        ("synchronous, 120 tokens/s a stream", 2 * stream),
    ]
    return markdown_table(
        ["512 responses, longest 32,768", *(f"{n} GPU" for n in fleet)],
        [
            (
                name,
                *(
                    f"{rollout_time(total, CAP, n, full, speed):,.0f}"
                    for n in fleet
                ),
            )
            for name, speed in rows
        ],
    )


def cell(value: Estimate, spec: str, unit: str = "") -> str:
    """Mean ± standard deviation, or one number if no seed changes it."""
    if value.spread < 1e-9:
        return f"{value.mean:{spec}}{unit}"
    return f"{value:{spec}}{unit}"


def table_remedies() -> str:
    """Speed, waste and age of the data for each remedy."""
    rows = []
    for name in REMEDIES:
        if name in MORE and name != AREAL:
            continue
        lost, again, stale = (
            cell(mean_of(key, name, scale=100), ".0f", " %")
            for key in ("lost", "again", "stale")
        )
        rows.append(
            (
                name,
                cell(gain(name, key="time"), ".2f", "×"),
                cell(gain(name), ".2f", "×"),
                lost,
                again,
                cell(mean_of("length", name), ",.0f"),
                stale,
                cell(mean_of("lag", name), ".1f"),
            )
        )
    heads = ["remedy", "updates", "trained tokens", "thrown away"]
    heads += ["prefilled again", "mean length", "stale tokens"]
    return markdown_table([*heads, "mean lag"], rows)


TAILS = {
    "all equal": Load(sigma=0.0),
    "lognormal, σ = 0.5": Load(sigma=0.5),
    "lognormal, σ = 0.9": Load(),
    "Pareto, tail index 1.1": Load(alpha=1.1),
}
LINES = (ALONE, WHOLE, AREAL)


def table_tails() -> str:
    """Gain by the law of the lengths."""
    return markdown_table(
        ["lengths, median 3,000", "longest / mean", *LINES],
        [
            (
                name,
                f"{spread(load):.1f}",
                *(cell(gain(x, SMALL, load), ".2f", "×") for x in LINES),
            )
            for name, load in TAILS.items()
        ],
    )


def spread(load: Load) -> float:
    """Longest over mean in a batch of SMALL, mean over 4,000 batches."""
    rng = np.random.default_rng(5)
    drawn = lengths(rng, 4000 * SMALL.groups, SMALL.size, load)
    batches = drawn.reshape(4000, -1)
    return float((batches.max(1) / batches.mean(1)).mean())


SLOW = Load(waits=4.0)


def table_flight() -> str:
    """Gain and age of both remedies by the batches in flight."""
    rows = []
    for n in FLIGHTS:
        cells: list[str] = []
        for name in (f"interrupt, η = {n - 1}", f"resume, {n} batches"):
            cells.append(cell(gain(name, AGED, SLOW), ".1f", "×"))
            cells.append(cell(mean_of("lag", name, AGED, SLOW), ".1f"))
            stale = mean_of("stale", name, AGED, SLOW, scale=100)
            cells.append(cell(stale, ".0f", " %"))
        rows.append((n, *cells))
    heads = ["batches in flight"]
    for name in ("interrupt", "resume"):
        heads += [f"{name}: gain", "mean lag", "stale tokens"]
    return markdown_table(heads, rows, "rrrrrrr")


def table_weights() -> str:
    """`coefficient` of stale tokens under each rule."""
    cases = [(1, 0.5), (1, 1.0), (1, 1.5), (1, 8.0), (-1, 0.5), (-1, 8.0)]
    heads = [f"$A{'>' if a > 0 else '<'}0$, {w:g}" for a, w in cases]
    return markdown_table(
        ["rule, $w=$", *heads],
        [
            (rule, *(f"{coefficient(w, a, rule):g}" for a, w in cases))
            for rule in RULES
        ],
    )


# --- Figure ---------------------------------------------------------------

TRAINS = (1000.0, 14000.0, 40000.0)
WAITS = (0.0, 2.0, 4.0)
COLORS = {ALONE: "C2", WHOLE: "C1", AREAL: "C0", MANY: "C3"}


def retimed(
    name: str, train: float, seeds: Iterable[int] = SEEDS
) -> Estimate:
    """`gain` in SMALL with another update time.

    Colocated, an update adds to every step's time and changes nothing
    else; interrupting must be simulated again.
    """

    def rate(name: str, seed: int) -> float:
        if name == AREAL:
            s = replace(SMALL, train=train)
            return found(AREAL, s, Load(), seed)["rate"]
        f = found(name, SMALL, Load(), seed)
        return f["rate"] * f["time"] / (f["time"] - SMALL.train + train)

    return over_seeds(lambda n: rate(name, n) / rate(SYNC, n), seeds)


@cache
def curves() -> dict[str, dict[str, list[Estimate]]]:
    """Gain against an update's time and against the environment's."""
    train = {x: [retimed(x, t) for t in TRAINS] for x in LINES}
    waits = {
        x: [gain(x, SMALL, Load(waits=w)) for w in WAITS] for x in COLORS
    }
    return {"train": train, "waits": waits}


def figure_where() -> Figure:
    """Gain of the remedies in two sweeps, mean and band over seeds."""
    fig, (top, low) = new_figure(5.8, rows=2)
    panels = (
        (top, "train", [t / 1000 for t in TRAINS]),
        (low, "waits", WAITS),
    )
    for axes, key, x in panels:
        for name, found_at in curves()[key].items():
            y = np.array([e.mean for e in found_at])
            sd = np.array([e.spread for e in found_at])
            axes.plot(x, y, color=COLORS[name], marker="o", ms=4)
            axes.fill_between(
                x, y - sd, y + sd, color=COLORS[name], alpha=0.2, lw=0
            )
        axes.axhline(1, color="grey", alpha=0.6, lw=1)
        axes.set(ylabel="gain")
    top.set_title("A busy trainer shrinks every gain", loc="left")
    top.set(xlabel="one update, 1,000 decode steps", ylim=(0.9, 2.9))
    top.set(xticks=(1, 14, 40), yticks=(1, 1.5, 2, 2.5))
    train, waits = curves()["train"], curves()["waits"]
    both = "interrupt, and\nover-sample + resume"
    label(top, 40, 1.75, both, "C0", ha="right", xytext=(0, 0))
    y = train[ALONE][1].mean
    label(top, 14, y, "faster streams", "C2", xytext=(-60, -18))
    low.set_title("Slow environments: faster decoding is no help", loc="left")
    low.set(xlabel="environment time / decoding time", ylim=(0, 7.8))
    low.set(xticks=WAITS, yticks=(1, 2, 4, 6))
    ends = (
        (MANY, "η = 5,\n6 batches", 0),
        (AREAL, "η = 2,\n3 batches", 6),
        (WHOLE, "resume,\n2 batches", -9),
    )
    for name, text, up in ends:
        beside = {"xytext": (7, up), "va": "center"}
        label(low, 4, waits[name][2].mean, text, COLORS[name], **beside)
    low.set_xlim(-0.2, 5.1)
    label(low, 0.6, 1, "faster streams", "C2", xytext=(0, -14))
    return fig
