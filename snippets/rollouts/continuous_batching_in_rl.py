"""What does continuous batching do to RL, and how do vLLM and SGLang differ?

Page: rollouts/continuous-batching-in-rl

Source: Own experiments. Split-K reductions as batch-dependent kernels make
    them; sampling as in vLLM's random_sample (the largest p / exponential
    variate); completions of slots that are refilled at once.
Notation: splits: chunks of the inner dimension K that are summed apart;
    p, q: distributions of the next token in two batches.
Units: log-probabilities in nats, lengths in tokens, time in decode steps.
"""

from collections.abc import Callable, Iterable
from functools import cache

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from snippets.estimate import SEEDS, Estimate, over_seeds
from snippets.rollouts.paged_attention import chances
from snippets.rollouts.rollout_long_tail import draw_lengths
from snippets.show import label, markdown_table, new_figure

Array = NDArray[np.float64]
Single = NDArray[np.float32]
Store = Callable[[Single], Single]


# --8<-- [start:matmul]
def bf16(x: Single) -> Single:
    """Round float32 to the nearest bfloat16, ties to even; any shape."""
    bits = x.view(np.uint32)
    up = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return ((bits + up) & np.uint32(0xFFFF0000)).view(np.float32)


def matmul(x: Single, w: Single, splits: int, store: Store) -> Single:
    """Product of x and w, summed in float32 in `splits` chunks of K.

    Args:
        x: (rows, K) float32.
        w: (K, columns) float32.
        splits: Chunks; a divisor of K. A kernel picks it from the shape.
        store: Rounds the float32 result to the type that is kept.
    """
    rows, size = len(x), len(w) // splits
    left = x.reshape(rows, splits, size)
    right = w.reshape(splits, 1, size, w.shape[1])
    parts = np.zeros((splits, rows, w.shape[1]), np.float32)
    for k in range(size):  # each chunk: a running sum
        parts += left[:, :, k].T[:, :, None] * right[:, :, k]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return store(total)


# --8<-- [end:matmul]


def fp32(x: Single) -> Single:
    """Keep float32."""
    return x


def fp16(x: Single) -> Single:
    """Round float32 to the nearest float16."""
    return x.astype(np.float16).astype(np.float32)


STORES = {"float32": fp32, "fp16": fp16, "bf16": bf16}


@cache
def rounding(seed: int, inner: int) -> dict[str, float]:
    """Share of stored numbers that differ between 1 and 8 chunks of K."""
    rng = np.random.default_rng(seed)
    x = bf16(rng.standard_normal((64, inner)).astype(np.float32))
    w = bf16(rng.standard_normal((inner, 64)).astype(np.float32))
    one, other = (matmul(x, w, k, fp32) for k in (1, 8))
    return {
        name: float((store(one) != store(other)).mean())
        for name, store in STORES.items()
    }


def table_rounding() -> str:
    """Stored numbers of one product that differ between 1 and 8 chunks."""
    rows = []
    for name in STORES:
        cells = []
        for inner in (128, 1024):
            shares = tuple(rounding(s, inner)[name] for s in SEEDS)
            cells.append(percent(shares, 0 if name == "float32" else 2))
        rows.append((name, *cells))
    return markdown_table(["stored as", "$K=128$", "$K=1024$"], rows)


def percent(shares: Iterable[float], digits: int = 2) -> str:
    """Shares of at least 8 seeds in per cent, or that it is below 0.01."""
    estimate = Estimate(tuple(100 * share for share in shares))
    if estimate.mean < 0.01:
        return "< 0.01 %"
    return f"{estimate:.{digits}f} %"


LAYERS, WIDTH, VOCAB, ROWS = 12, 128, 256, 24


@cache
def weights(seed: int) -> tuple[Single, Single, Single]:
    """Inputs (ROWS, WIDTH), layers (LAYERS, 2, WIDTH, WIDTH), head."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
    w = rng.standard_normal((LAYERS, 2, WIDTH, WIDTH)) / WIDTH**0.5
    head = 5.0 * rng.standard_normal((WIDTH, VOCAB)) / WIDTH**0.5
    return bf16(x), bf16(w.astype(np.float32)), bf16(head.astype(np.float32))


# --8<-- [start:forward]
def forward(
    splits: int, store: Store, nudge: bool = False, seed: int = 0
) -> tuple[list[Single], Array]:
    """A residual stack with RMSNorm and ReLU, and its log-probabilities.

    Args:
        splits: Chunks of every matrix product.
        store: Rounds every stored activation, the residual stream and the
            logits.
        nudge: Move one of the numbers that layer 1 adds to the stream, the
            first, up by one bf16 step (relative 2^-8 to 2^-7).
        seed: Of inputs and weights.

    Returns:
        The hidden states (rows, width) after each layer, and (rows, vocab)
        log-probabilities, computed from the logits in float64.
    """
    x, layers, head = weights(seed)

    def normed(h: Single) -> Single:
        mean = (h.astype(np.float64) ** 2).mean(1, keepdims=True)
        return store((h / np.sqrt(mean)).astype(np.float32))

    hidden = []
    for up, down in layers:
        inner = matmul(normed(x), up, splits, store)
        added = matmul(np.maximum(inner, 0), down, splits, store)
        if nudge and not hidden:
            added.view(np.uint32)[:, 0] += np.uint32(0x10000)
        x = store(x + added)
        hidden.append(x)
    logits = matmul(normed(x), head, splits, store).astype(np.float64)
    logits -= logits.max(1, keepdims=True)
    return hidden, logits - np.log(np.exp(logits).sum(1, keepdims=True))


# --8<-- [end:forward]


# --8<-- [start:coupling]
def same_race(p: Array, q: Array) -> float:
    """P(equal tokens) when both take argmax(prob / e), the same e ~ Exp(1).

    Token i wins both if e_j > e_i max(p_j / p_i, q_j / q_i) for every j.

    Args:
        p: (vocab,) probabilities in one batch, positive.
        q: (vocab,) probabilities in another batch, positive.
    """
    worst = np.maximum(p[None] / p[:, None], q[None] / q[:, None])
    return float((1 / worst.sum(1)).sum())


def same_inverse(p: Array, q: Array) -> float:
    """P(equal tokens) when both invert their CDF at the same uniform."""
    p_end, q_end = np.cumsum(p), np.cumsum(q)
    end = np.minimum(p_end, q_end)
    start = np.maximum(p_end - p, q_end - q)
    return float(np.maximum(end - start, 0).sum())


def total_variation(p: Array, q: Array) -> float:
    """Half the absolute difference: no coupling differs less often."""
    return float(np.abs(p - q).sum() / 2)


# --8<-- [end:coupling]

Pass = tuple[list[Single], Array]


@cache
def runs(seed: int) -> dict[str, tuple[Pass, Pass]]:
    """Pairs of forward passes over the same rows, same weights."""
    one, other = (
        {s: forward(k, s, seed=seed) for s in (fp32, fp16, bf16)}
        for k in (1, 8)
    )
    nudged = forward(1, bf16, nudge=True, seed=seed)
    return {
        "float32: 1 and 8 chunks": (one[fp32], other[fp32]),
        "fp16: 1 and 8 chunks": (one[fp16], other[fp16]),
        "bf16: 1 and 8 chunks": (one[bf16], other[bf16]),
        "bf16: one number, one step": (one[bf16], nudged),
        "bf16 and float32": (one[bf16], one[fp32]),
    }


def changed(one: Array, other: Array) -> NDArray[np.bool_]:
    """Rows with any log-probability that is not bit for bit the same."""
    return (one != other).any(1)


def gap(one: Array, other: Array) -> float:
    """E|log q - log p| over tokens drawn from p, mean over the rows."""
    return float((np.exp(one) * np.abs(other - one)).sum(1).mean())


def kl(one: Array, other: Array) -> float:
    """KL(p || q) in nats per token, mean over the rows."""
    return float((np.exp(one) * (one - other)).sum(1).mean())


def greedy_differs(one: Array, other: Array) -> float:
    """P(another argmax): each row's top-2 gap met by each row's change.

    The change is that of (first - second) log-probability. Pairing every
    gap with every change, of either sign, is smoother than counting flips.
    """
    rows = np.arange(len(one))
    first, second = np.argsort(-one, axis=1)[:, :2].T
    change = (other - one)[rows, first] - (other - one)[rows, second]
    lead = one[rows, first] - one[rows, second]
    return float((np.abs(change)[None] > lead[:, None]).mean() / 2)


@cache
def effects(seed: int) -> dict[str, tuple[float, ...]]:
    """Share of rows changed, and what the change does to those rows.

    Per pair of passes: the share; mean |d log p|; KL; then P(another
    token): greedy, by the race, by the inverse CDF. NaN if no row changed.
    """
    out = {}
    for name, ((_, one), (_, other)) in runs(seed).items():
        hit = changed(one, other)
        if not hit.any():
            out[name] = (0.0, *[float("nan")] * 5)
            continue
        one, other = one[hit], other[hit]
        pairs = list(zip(np.exp(one), np.exp(other), strict=True))
        out[name] = (
            float(hit.mean()),
            gap(one, other),
            kl(one, other),
            greedy_differs(one, other),
            float(np.mean([1 - same_race(*pq) for pq in pairs])),
            float(np.mean([1 - same_inverse(*pq) for pq in pairs])),
        )
    return out


def table_effects() -> str:
    """What a change of order does to a row and to the token drawn."""
    rows = []
    for name in runs(0):
        columns = zip(*(effects(seed)[name] for seed in SEEDS), strict=True)
        hit, size, nats, *differ = columns
        cells = ["–"] * 5
        if np.mean(hit) > 0.1:  # else too few to speak of
            small = max(size) < 1e-4
            cells = [
                "< 0.0001" if small else f"{Estimate(size):.3f}",
                f"{Estimate(tuple(1000 * x for x in nats)):.2f}",
                *map(percent, differ),
            ]
        share = "100 %" if min(hit) == 1 else percent(hit, 0)
        rows.append((name, share, *cells))
    heads = [
        "same rows, two passes",
        "rows changed",
        r"mean $\lvert\Delta\log p\rvert$",
        "KL of 1,000 tokens",
        "greedy differs",
        "race differs",
        "inverse CDF differs",
    ]
    return markdown_table(heads, rows)


def figure_depth() -> Figure:
    """Difference of the hidden state by layer: mean and range of seeds."""
    figure, axes = new_figure(3.0)
    layer = np.arange(1, LAYERS + 1)
    lines = (
        ("float32: 1 and 8 chunks", "C2"),
        ("bf16: one number, one step", "C0"),
        ("bf16 and float32", "C1"),
    )
    for name, color in lines:
        each = np.array([growth(name, seed) for seed in SEEDS])
        low, high = each.min(0), each.max(0)
        axes.fill_between(layer, low, high, color=color, alpha=0.2, lw=0)
        axes.plot(layer, each.mean(0), color=color)
    axes.set(yscale="log", xlabel="layer", ylim=(5e-8, 3e-2))
    axes.set(ylabel="relative difference")
    axes.set_xticks([1, 4, 8, 12])
    axes.set_title("One rounding grows to the format's noise", loc="left")
    label(axes, 4, 9e-3, "bf16 against float32", "C1", xytext=(0, 0))
    label(axes, 4.5, 1.1e-3, "bf16, one number moved", "C0", xytext=(0, 0))
    label(axes, 4, 8e-7, "float32, sums reordered", "C2", xytext=(0, 0))
    return figure


def growth(name: str, seed: int) -> list[float]:
    """Distance of the changed rows after each layer, (LAYERS,)."""
    (one, first), (other, second) = runs(seed)[name]
    hit = changed(first, second)
    pairs = zip(one, other, strict=True)
    return [distance(a[hit], b[hit]) for a, b in pairs]


def distance(one: Single, other: Single) -> float:
    """Root mean square difference over root mean square."""
    top = np.square(one.astype(np.float64) - other).mean()
    return float(np.sqrt(top / np.square(one.astype(np.float64)).mean()))


# --- What the engine reports ----------------------------------------------


# --8<-- [start:reported]
def reported_ratio(
    logp: Array, temperature: float, top_p: float, report: str
) -> float:
    """E[trainer's probability / reported one] over sampled tokens.

    The trainer divides logits by the temperature and knows no top-p. At
    equal weights and without truncation a right report gives exactly 1.

    Args:
        logp: (vocab,) log-probabilities at temperature 1.
        temperature: Of the sampling.
        top_p: The smallest set of likeliest tokens with this mass is kept.
        report: "raw" (temperature 1), "tempered" (no top-p), "processed".
    """
    tempered = np.exp(logp / temperature)
    tempered /= tempered.sum()
    order = np.argsort(-tempered)
    before = np.cumsum(tempered[order]) - tempered[order]
    sampled = np.zeros_like(tempered)
    kept = order[before < top_p]
    sampled[kept] = tempered[kept] / tempered[kept].sum()
    says = {"raw": np.exp(logp), "tempered": tempered, "processed": sampled}
    ratio = tempered[kept] / says[report][kept]
    return float((sampled[kept] * ratio).sum())


# --8<-- [end:reported]


@cache
def plain(seed: int) -> Array:
    """Log-probabilities (ROWS, VOCAB) of one toy in float32."""
    return forward(8, fp32, seed=seed)[1]


def reported(seed: int, temperature: float, top_p: float, how: str) -> float:
    """Mean ratio over the rows of one toy."""
    ratios = [
        reported_ratio(row, temperature, top_p, how) for row in plain(seed)
    ]
    return float(np.mean(ratios))


def table_reported() -> str:
    """Mean ratio by sampling settings and report, over the toys' rows."""
    rows = []
    for temperature, top_p in ((1.0, 1.0), (0.6, 1.0), (1.0, 0.9)):
        cells = []
        for how in ("raw", "tempered", "processed"):
            found = over_seeds(
                lambda seed, how=how, t=temperature, p=top_p: reported(
                    seed, t, p, how
                )
            )
            exact = all(abs(x - 1) < 1e-9 for x in found.values)
            cells.append("1" if exact else f"{found:.3f}")
        rows.append((f"{temperature:g}, {top_p:g}", *cells))
    heads = ["temperature, top-p", "raw", "after temperature", "processed"]
    return markdown_table(heads, rows)


# --- Who finishes first ---------------------------------------------------


# --8<-- [start:stream]
def stream(
    lengths: NDArray[np.int64], batch: int, updates: int
) -> tuple[NDArray[np.int64], Array]:
    """Train on whoever finishes first; a free slot starts a new prompt.

    Args:
        lengths: (slots, n) lengths of the responses in each slot's order.
        batch: Finished responses that an update waits for.
        updates: Number of updates; what is running goes on over them.

    Returns:
        (updates, batch) lengths in order of completion, and (updates,)
        mean final lengths of what is running at each update.

    Raises:
        ValueError: A slot runs out of responses before the last update.
    """
    ends = np.cumsum(lengths, axis=1)
    order = np.argsort(ends, axis=None, kind="stable")[: batch * updates]
    times = ends.ravel()[order][batch - 1 :: batch]
    if ends[:, -1].min() <= times[-1]:
        raise ValueError("draw more lengths for each slot")
    at = (ends[:, :, None] <= times).sum(1)  # (slots, updates)
    running = np.take_along_axis(lengths, at, axis=1).mean(0)
    return lengths.ravel()[order].reshape(updates, batch), running


# --8<-- [end:stream]

SLOTS, BATCH, UPDATES = 256, 256, 12


def pass_rate(n: NDArray[np.int64]) -> float:
    """Mean of an assumed chance to be right, 1 / (1 + length / median)."""
    return float((1 / (1 + n / 3000)).mean())


@cache
def population() -> tuple[float, float]:
    """Mean length and pass rate of all responses, finished or not; exact."""
    p = chances()
    n = np.arange(1, len(p) + 1)
    return float(p @ n), float(p @ (1 / (1 + n / 3000)))


def draw(seed: int, n: int) -> NDArray[np.int64]:
    """(SLOTS, n) independent lengths."""
    return draw_lengths(np.random.default_rng(seed), SLOTS, n, shared=0.0)


@cache
def streams(first: int = 0) -> dict[str, tuple[Array, Array, Array]]:
    """Length and pass rate of batches, length of the running; by rule.

    Each array: (10, UPDATES), for the seeds `first` to `first` + 9; lengths
    relative to the population. "dropped" empties the slots at every update.
    """
    mean, _ = population()
    out = {"kept": ([], [], []), "dropped": ([], [], [])}
    for seed in range(first, first + len(SEEDS)):
        fresh = [draw(1000 * seed + u, 16) for u in range(1, UPDATES + 1)]
        single = [stream(n, BATCH, 1) for n in fresh]
        both = {
            "kept": stream(draw(1000 * seed, 80), BATCH, UPDATES),
            "dropped": (
                np.concatenate([b for b, _ in single]),
                np.concatenate([r for _, r in single]),
            ),
        }
        for name, (batches, running) in both.items():
            out[name][0].append(batches.mean(1) / mean)
            out[name][1].append([pass_rate(b) for b in batches])
            out[name][2].append(running / mean)
    return {
        name: tuple(np.array(values) for values in lists)
        for name, lists in out.items()
    }


@cache
def first_of(started: int, used: int, seed: int) -> tuple[float, float]:
    """Relative length and pass rate of the first `used` of `started`."""
    rng = np.random.default_rng(seed)
    n = draw_lengths(rng, 40, started, shared=0.0)
    n = np.sort(n, axis=1)[:, :used]
    return float(n.mean()) / population()[0], pass_rate(n)


def table_order() -> str:
    """What is in a batch, by the rule that fills it."""
    rows = [
        ("all that started", "1.00", f"{population()[1]:.2f}", "none"),
    ]
    pairs = [first_of(384, 256, seed) for seed in SEEDS]
    cells = (f"{Estimate(c):.2f}" for c in zip(*pairs, strict=True))
    rows.append(("first 256 of 384", *cells, "dropped"))
    kept, dropped = streams()["kept"], streams()["dropped"]
    for name, run, at, fate in (
        ("stream, update 1", kept, slice(0, 1), "kept"),
        ("stream, update 2", kept, slice(1, 2), "kept"),
        ("stream, updates 5-12", kept, slice(4, None), "kept"),
        ("stream, updates 5-12", dropped, slice(4, None), "dropped"),
    ):
        each = [Estimate(tuple(part[:, at].mean(1))) for part in run]
        cells = f"{each[0]:.2f}", f"{each[1]:.2f}"
        rows.append((name, *cells, f"{fate}; final length {each[2]:.1f}"))
    heads = ["batch", "mean length", "pass rate", "still running"]
    return markdown_table(heads, rows, "lrrl")


def figure_order() -> Figure:
    """Mean length of the batch by update."""
    figure, axes = new_figure(2.8)
    update = np.arange(1, UPDATES + 1)
    for name, color in (("kept", "C0"), ("dropped", "C1")):
        values = streams()[name][0]
        mean, spread = values.mean(0), values.std(0, ddof=1)
        axes.fill_between(
            update, mean - spread, mean + spread, color=color, alpha=0.2, lw=0
        )
        axes.plot(update, mean, color=color)
    axes.axhline(1, color="grey", alpha=0.6, lw=0.8, ls="-")
    axes.set(xlabel="update", ylabel="length of its batch", ylim=(0, 1.5))
    axes.set_xticks([1, 4, 8, 12])
    axes.set_title("Dropping what runs keeps batches short", loc="left")
    label(axes, 5.5, 1.16, "running responses go on", "C0", xytext=(0, 0))
    label(axes, 5.5, 0.25, "running responses dropped", "C1", xytext=(0, 0))
    return figure
