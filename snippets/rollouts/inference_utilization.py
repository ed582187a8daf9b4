"""How is utilisation measured in vLLM and SGLang, and KV use judged?

Page: rollouts/inference-utilization

Source: Own derivation (roofline of a decoder, renewal argument for held
    tokens); vLLM's and SGLang's code for what the memory fractions cover.
Notation: B sequences in a step, c context tokens of each; W bytes of
    weights read per step, kv bytes of cache per token; F FLOP/s and BW
    bytes/s of the GPU; P prompt tokens, R response tokens.
Units: bytes, seconds, FLOP (a multiply-add is 2), tokens, blocks of 16.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from snippets.estimate import SEEDS, Estimate
from snippets.rollouts.paged_attention import kv_bytes
from snippets.rollouts.rollout_long_tail import draw_lengths, shown
from snippets.show import label, markdown_table, new_figure

GIB = 2**30
PREFILL_MFU = 0.4  # assumed, for prompts and recomputation


# --- Roofline -------------------------------------------------------------


@dataclass(frozen=True)
class Gpu:
    """Peak rates and memory of one GPU, from its data sheet."""

    flops: float
    bandwidth: float
    memory: float

    @property
    def ridge(self) -> float:
        """FLOP per byte above which compute is the limit."""
        return self.flops / self.bandwidth


@dataclass(frozen=True)
class Model:
    """Shape of a dense decoder with a SwiGLU feed-forward, in bf16."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    ffn: int
    vocab: int

    @property
    def matrices(self) -> int:
        """Weights that a token is multiplied by: blocks and output head."""
        attention = 2 * self.hidden * self.head * (self.heads + self.kv_heads)
        return (
            self.layers * (attention + 3 * self.hidden * self.ffn)
            + self.vocab * self.hidden
        )

    @property
    def weight_bytes(self) -> int:
        """All weights in memory: matrices and the input embedding."""
        return 2 * (self.matrices + self.vocab * self.hidden)

    @property
    def kv(self) -> int:
        """Bytes of keys and values per token."""
        return kv_bytes(self.layers, self.kv_heads, self.head)


H100 = Gpu(989e12, 3.35e12, 80 * GIB)  # SXM, bf16 dense, HBM3
QWEN = Model(36, 4096, 32, 8, 128, 12288, 151936)  # Qwen3-8B


# --8<-- [start:roofline]
def decode_cost(m: Model, batch: int, context: float) -> tuple[float, float]:
    """FLOP and bytes that one decode step needs at least.

    Args:
        m: Model.
        batch: Sequences B, one new token each.
        context: Mean tokens of cache that each reads.

    Returns:
        (FLOP, bytes read); activations and the written token left out.
    """
    attention = 4 * m.layers * m.heads * m.head * context
    flop = batch * (2 * m.matrices + attention)
    return flop, 2 * m.matrices + batch * context * m.kv


def prefill_cost(m: Model, tokens: int) -> tuple[float, float]:
    """The same for one prompt from an empty cache; logits once, causal."""
    head = m.vocab * m.hidden
    attention = 4 * m.layers * m.heads * m.head * tokens * (tokens + 1) / 2
    flop = 2 * (m.matrices - head) * tokens + 2 * head + attention
    return flop, 2 * m.matrices + tokens * m.kv


def utilisation(
    cost: tuple[float, float], gpu: Gpu, seconds: float
) -> tuple[float, float]:
    """(MFU, MBU): needed FLOP and bytes over what the GPU could do."""
    flop, read = cost
    return flop / (seconds * gpu.flops), read / (seconds * gpu.bandwidth)


def fastest(cost: tuple[float, float], gpu: Gpu) -> float:
    """Seconds at the roofline: the slower of compute and memory."""
    return max(cost[0] / gpu.flops, cost[1] / gpu.bandwidth)


# --8<-- [end:roofline]


def longest_reaching_ridge(m: Model, gpu: Gpu) -> float:
    """Context above which no batch size makes decode compute-bound.

    For B to infinity the intensity tends to FLOP over cache bytes of one
    sequence, (2 M + a c) / (c kv); equal to the ridge at this c.
    """
    attention = 4 * m.layers * m.heads * m.head
    return 2 * m.matrices / (gpu.ridge * m.kv - attention)


def expected_experts(experts: int, active: int, batch: int) -> float:
    """Experts of a layer that B tokens touch, routing uniform."""
    return experts * (1 - (1 - active / experts) ** batch)


# --- Memory ---------------------------------------------------------------


# --8<-- [start:pool]
def pool_vllm(
    total: float, free: float, fraction: float, weights: float, other: float
) -> float:
    """Bytes of KV cache: a share of the TOTAL, less what vLLM profiled.

    Args:
        total: Memory of the GPU.
        free: Free when the engine starts, before the weights are loaded.
        fraction: gpu_memory_utilization.
        weights: Weights on this GPU.
        other: Profiled peak of activations, and memory outside of torch.

    Raises:
        ValueError: Less is free than the share asked for.
    """
    if free < fraction * total:
        raise ValueError("free memory is less than the requested share")
    return fraction * total - weights - other


def pool_sglang(free: float, fraction: float, weights: float) -> float:
    """Bytes of KV cache: a share of what is FREE at start, less the weights.

    Args:
        free: Free when the engine starts, the least over the ranks.
        fraction: mem_fraction_static; activations and CUDA graphs must fit
            into the other 1 - fraction.
        weights: What loading the weights took.
    """
    return fraction * free - weights


# --8<-- [end:pool]


# --8<-- [start:concurrency]
def concurrency(
    tokens: float, prompt: int, responses: NDArray[np.int64]
) -> tuple[float, float, float]:
    """Sequences that a pool of tokens holds, by three questions.

    Args:
        tokens: Pool in tokens.
        prompt: Tokens of each prompt, not shared.
        responses: Sample of response lengths R, or quantiles of their law.

    Returns:
        guaranteed: none can ever be evicted, all at the longest length.
        cohort: all start together, nobody joins; at its worst moment t the
            batch holds P + t for each of the share S(t) = P(R >= t).
        refilled: a place is refilled at once, for ever. A running one then
            holds P + E[R^2] / (2 E[R]): long ones are met more often.
    """
    r = np.sort(responses).astype(float)
    alive = 1 - np.arange(len(r)) / len(r)
    cohort = (alive * (prompt + r)).max()
    refilled = prompt + (r * r).mean() / (2 * r.mean())
    return tokens / (prompt + r[-1]), tokens / cohort, tokens / refilled


# --8<-- [end:concurrency]


# --- One rollout, as its metrics show it ----------------------------------


@dataclass
class Trace:
    """One row per round: what an engine's gauges and counters say.

    Attributes:
        seconds: Duration of the round.
        usage: Blocks held over blocks of the pool.
        running: Requests in the batch.
        waiting: Requests that the engine knows and does not run.
        preempted: Preemptions before the round.
        tokens: Tokens of all finished responses.
        recomputed: Tokens whose cache was computed again.
    """

    seconds: NDArray[np.float64]
    usage: NDArray[np.float64]
    running: NDArray[np.int64]
    waiting: NDArray[np.int64]
    preempted: NDArray[np.int64]
    tokens: int
    recomputed: int


def rollout(
    wanted: NDArray[np.int64],
    blocks: int,
    slots: int = 10**9,
    prompt: int = 0,
    supply: int = 10**9,
    model: Model = QWEN,
    gpu: Gpu = H100,
    size: int = 16,
) -> Trace:
    """Generate all responses, decode at the roofline, and note the metrics.

    First come first served; a running request takes a block a round; with
    none left the youngest is preempted, keeps its tokens, waits at the
    head of the queue and is computed again. No prefix is shared.

    Args:
        wanted: Response lengths, unknown to the scheduler.
        blocks: Blocks of the pool.
        slots: max_num_seqs (vLLM) or max_running_requests (SGLang).
        prompt: Tokens of each prompt.
        supply: Requests that the client keeps at the engine at once.
        model: Model.
        gpu: GPU.
        size: Tokens per block, and decode steps per round.
    """
    need, first = (-(-wanted // size)).tolist(), -(-prompt // size)
    unsent, queue = deque(range(len(need))), deque[int]()
    running: list[int] = []
    have, rows, recomputed, held = [0] * len(need), [], 0, 0
    while unsent or queue or running:
        while unsent and len(queue) + len(running) < supply:
            queue.append(unsent.popleft())
        held += len(running)  # each takes its next block
        preempted = fill = 0
        while held > blocks:
            last = running.pop()
            held -= first + have[last] + 1
            recomputed += (first + have[last]) * size
            preempted += 1
            queue.appendleft(last)
        while queue and len(running) < slots:
            wants = first + have[queue[0]] + 1
            if held + wants > blocks:
                break
            held += wants
            fill += (wants - 1) * size
            running.append(queue.popleft())
        bytes_read = 2 * model.matrices + held * size * model.kv
        seconds = size * bytes_read / gpu.bandwidth
        seconds += 2 * model.matrices * fill / (PREFILL_MFU * gpu.flops)
        rows.append((seconds, held, len(running), len(queue), preempted))
        for i in running:
            have[i] += 1
            if have[i] == need[i]:
                held -= first + have[i]
        running = [i for i in running if have[i] < need[i]]
    table = np.array(rows, float)
    return Trace(
        table[:, 0],
        table[:, 1] / blocks,
        table[:, 2].astype(int),
        table[:, 3].astype(int),
        table[:, 4].astype(int),
        int(wanted.sum()),
        recomputed,
    )


# --8<-- [start:diagnose]
class Reading(NamedTuple):
    """A step's metrics, means weighted by time."""

    peak: float
    mean: float
    queued: float  # mean usage while requests wait; nan if none ever did
    waiting: float  # share of the time in which requests wait
    running: float
    widest: int  # most requests running at once
    preemptions: int


def read(t: Trace) -> Reading:
    """Condense a trace."""
    busy = t.seconds * (t.waiting > 0)
    return Reading(
        float(t.usage.max()),
        float(np.average(t.usage, weights=t.seconds)),
        float(busy @ t.usage / busy.sum()) if busy.any() else math.nan,
        float(busy.sum() / t.seconds.sum()),
        float(np.average(t.running, weights=t.seconds)),
        int(t.running.max()),
        int(t.preempted.sum()),
    )


def diagnose(r: Reading, requests: int) -> str:
    """What limits the rollout; the thresholds are rules of thumb."""
    if r.preemptions > 0.1 * requests:
        return "over-admitted"
    if r.waiting > 0.05:
        return "cache binds" if r.queued > 0.75 else "admission cap binds"
    return "tail" if r.running < 0.7 * r.widest else "starved"


# --8<-- [end:diagnose]


# --- Tables and figures ---------------------------------------------------

POINTS = (
    (512, 1),
    (512, 256),
    (4096, 1),
    (4096, 64),
    (16384, 16),
    (32768, 8),
)
PROMPTS = (128, 512, 4096)
OTHER = 4 * GIB  # activations, NCCL, workspaces of vLLM: assumed
LEFT = 10 * GIB  # what the trainer still holds at engine start: assumed
PROMPT = 1024


def table_roofline() -> str:
    """Intensity, time, rate, MFU and MBU of a step at the roofline."""
    rows = []
    for context, batch in POINTS:
        cost = decode_cost(QWEN, batch, context)
        name = f"decode, {batch} × {context:,}"
        cache_gb = batch * context * QWEN.kv / 1e9
        rows.append(_row(name, cost, batch, f"{cache_gb:.1f}"))
    for tokens in PROMPTS:
        cost = prefill_cost(QWEN, tokens)
        cache_gb = tokens * QWEN.kv / 1e9
        rows.append(
            _row(f"prefill, {tokens:,}", cost, tokens, f"{cache_gb:.1f}")
        )
    heads = ["step, sequences × context", "cache, GB", "FLOP/byte", "ms"]
    return markdown_table(heads + ["tokens/s", "MFU", "MBU"], rows)


def _row(
    name: str, cost: tuple[float, float], tokens: int, held: str
) -> tuple[str, ...]:
    seconds = fastest(cost, H100)
    mfu, mbu = utilisation(cost, H100, seconds)
    return (
        name,
        held,
        f"{cost[0] / cost[1]:,.1f}",
        f"{1000 * seconds:.1f}",
        f"{tokens / seconds:,.0f}",
        f"{100 * mfu:.1f} %",
        f"{100 * mbu:.0f} %",
    )


def pools() -> list[tuple[float, tuple[float | None, ...]]]:
    """(fraction, pools in tokens): vLLM and SGLang, card empty or not."""
    rows: list[tuple[float, tuple[float | None, ...]]] = []
    for fraction in (0.3, 0.5, 0.7, 0.9):
        found: list[float | None] = []
        for free in (H100.memory, H100.memory - LEFT):
            args = free, fraction, QWEN.weight_bytes
            try:
                found.append(pool_vllm(H100.memory, *args, OTHER) / QWEN.kv)
            except ValueError:
                found.append(None)
            found.append(pool_sglang(*args) / QWEN.kv)
        rows.append((fraction, tuple(found)))
    return rows


def table_memory() -> str:
    """Pool in tokens by fraction, engine and what the trainer holds."""
    rows = []
    for fraction, found in pools():
        cells = ["error" if n is None else f"{n:,.0f}" for n in found]
        rows.append((f"{fraction:.1f}", *cells))
    heads = ["fraction", "vLLM", "SGLang", "vLLM, 10 GiB taken"]
    return markdown_table(heads + ["SGLang, 10 GiB taken"], rows, "rrrrr")


def lengths(seed: int, n: int = 256) -> NDArray[np.int64]:
    """Response lengths: lognormal, median 3,000, cap 32,768."""
    return draw_lengths(np.random.default_rng(seed), n, 1)[:, 0]


@cache
def quantiles(n: int = 20000) -> NDArray[np.int64]:
    """The law of `lengths` itself: its quantiles at (i + 1/2) / n."""
    z = [NormalDist().inv_cdf((i + 0.5) / n) for i in range(n)]
    return np.minimum(np.round(3000 * np.exp(0.9 * np.array(z))), 32768)


def blocks(fraction: float) -> int:
    """Blocks of 16 tokens in vLLM's pool on an empty card."""
    args = H100.memory, H100.memory, fraction, QWEN.weight_bytes, OTHER
    return int(pool_vllm(*args) // (16 * QWEN.kv))


def table_concurrency() -> str:
    """Sequences that fit, by the question asked."""
    rows = []
    for fraction in (0.5, 0.9):
        tokens = 16 * blocks(fraction)
        fits = concurrency(tokens, PROMPT, quantiles())
        rows.append(
            (f"{fraction}", f"{tokens:,}", *(f"{n:.1f}" for n in fits))
        )
    heads = ["`gpu_memory_utilization`", "pool, tokens", "guaranteed"]
    return markdown_table(heads + ["one cohort", "refilled"], rows)


@cache
def cases(seed: int) -> dict[str, tuple[int, Trace]]:
    """Name to (requests, trace) of one training step on one replica."""
    half, most = blocks(0.5), blocks(0.9)
    all_, few = lengths(seed), lengths(seed)[:64]
    never = 10**9
    runs = {
        "A. 0.5, at most 256": (all_, half, 256, never),
        "B. 0.9, at most 256": (all_, most, 256, never),
        "C. 0.5, at most 27": (all_, half, 27, never),
        "D. 0.5, at most 16": (all_, half, 16, never),
        "E. 0.5, client sends 8": (all_, half, 256, 8),
        "F. 0.5, 64 of the 256": (few, half, 256, never),
        "G. 0.9, 64 of the 256": (few, most, 256, never),
    }
    return {
        name: (len(w), rollout(w, b, slots, PROMPT, supply))
        for name, (w, b, slots, supply) in runs.items()
    }


@cache
def readings(
    seeds: Iterable[int] = SEEDS,
) -> dict[str, tuple[dict[str, Estimate], Counter[str]]]:
    """For each case its metrics over the seeds and what they are read as.

    The metrics are those of `Reading` with "again" (tokens computed again
    over the responses' tokens) and "seconds"; "queued" is left out where
    some seed has no queue.
    """
    found = {}
    for name in cases(SEEDS[0]):
        rows, names = [], Counter[str]()
        for seed in seeds:
            requests, t = cases(seed)[name]
            r = read(t)
            names[diagnose(r, requests)] += 1
            more = {"again": t.recomputed / t.tokens}
            rows.append(
                r._asdict() | more | {"seconds": float(t.seconds.sum())}
            )
        keys = [k for k in rows[0] if not any(math.isnan(x[k]) for x in rows)]
        columns = zip(*([x[k] for k in keys] for x in rows), strict=True)
        pairs = zip(keys, columns, strict=True)
        found[name] = {k: Estimate(v) for k, v in pairs}, names
    return found


def table_rollouts() -> str:
    """What the gauges say in each case, and the diagnosis."""
    specs = {
        "mean": ".2f",
        "queued": ".2f",
        "waiting": ".0%",
        "running": ".0f",
        "preemptions": ".0f",
        "again": ".0%",
        "seconds": ".0f",
    }
    rows = []
    for name, (found, names) in readings().items():
        cells = [
            shown(found[key], spec) if key in found else "–"
            for key, spec in specs.items()
        ]
        said = names.most_common()
        if len(said) == 1:
            cells.append(said[0][0])
        else:
            cells.append(", ".join(f"{word} {n}" for word, n in said))
        rows.append((name, *cells))
    heads = ["case", "usage, mean", "while waiting", "time waiting"]
    heads += ["running", "preempted", "computed again", "s", "reading"]
    return markdown_table(heads, rows, "lrrrrrrrl")


def figure_roofline() -> Figure:
    """Decode and prefill of Qwen3-8B under the roof of an H100."""
    figure, axes = new_figure(3.4)
    x = np.geomspace(0.4, 20000, 200)
    roof = np.minimum(H100.flops, H100.bandwidth * x) / 1e12
    axes.plot(x, roof, "-", color="C5", lw=1)
    marks = zip((512, 4096, 32768), ("C0", "C1", "C2"), "os^", strict=True)
    for context, color, mark in marks:
        fits = 16 * blocks(0.9) // context
        batch = np.unique(np.geomspace(1, fits, 6).astype(int))
        costs = [decode_cost(QWEN, int(b), context) for b in batch]
        axes.plot(*_under(costs), mark, color=color, ms=5)
    costs = [prefill_cost(QWEN, n) for n in (32, 128, 512, 4096)]
    axes.plot(*_under(costs), "D", color="C3", ms=5)
    axes.axvline(H100.ridge, color="C5", lw=0.8, ls=":")
    axes.set(xscale="log", yscale="log", xlim=(0.4, 20000), ylim=(1.5, 3000))
    axes.set_xticks(
        [1, 10, 100, 1000, 10000], ["1", "10", "100", "1k", "10k"]
    )
    axes.set_yticks([10, 100, 1000], ["10", "100", "1,000"])
    axes.set(xlabel="FLOP per byte read", ylabel="TFLOP/s at the roof")
    axes.set_title("Decode stays on the slope, prefill leaves it")
    label(axes, H100.ridge, 2.2, "ridge 295", "C5")
    at = {"ha": "left", "xytext": (8, -9)}
    label(
        axes,
        160,
        500,
        "context 512, B to 750",
        "C0",
        ha="right",
        xytext=(-12, 0),
    )
    label(axes, 20, 67, "4,096, B to 93", "C1", ha="right", xytext=(-12, 3))
    label(axes, 5.5, 18, "32,768, B to 11", "C2", **at)
    label(axes, 500, 989, "prefill, 32 to 4,096", "C3", xytext=(3, 8))
    return figure


def _under(
    costs: list[tuple[float, float]],
) -> tuple[list[float], list[float]]:
    """Intensities and TFLOP/s at the roof."""
    x = [flop / read for flop, read in costs]
    return x, [cost[0] / fastest(cost, H100) / 1e12 for cost in costs]


def figure_rollout() -> Figure:
    """Case B over time: usage, and who runs and waits."""
    figure, (top, low) = new_figure(3.8, rows=2, sharex=True)
    _, t = cases(0)["B. 0.9, at most 256"]
    r, time = read(t), np.cumsum(t.seconds) - t.seconds
    end = time[t.waiting > 0].max()
    for axes in (top, low):
        axes.axvspan(0, end, alpha=0.12, color="C5", lw=0)
    top.plot(time, t.usage, "-", color="C0")
    top.axhline(r.mean, color="C1", ls="--", lw=1)
    top.set(ylabel="KV cache usage", ylim=(0, 1.15))
    top.set_title(f"Mean {r.mean:.2f}, and yet the cache was the limit")
    label(top, 26, 0.82, "requests wait: 1.00", "C0", xytext=(0, 0))
    label(
        top,
        time[-1],
        r.mean,
        "mean of the step",
        "C1",
        ha="right",
        xytext=(0, 3),
    )
    low.step(time, t.running, "-", where="post", color="C0")
    low.step(time, t.waiting, "--", where="post", color="C3")
    low.set(xlabel="seconds", ylabel="requests", ylim=(0, 290))
    low.set_xlim(0, time[-1])
    label(low, end, 120, "running: the tail", "C0", xytext=(6, 0))
    label(low, 0.3 * end, 178, "waiting", "C3")
    return figure
