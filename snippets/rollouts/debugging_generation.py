"""When generation goes wrong: KV cache, attention, norm, or none of them?

Page: rollouts/debugging-generation

Source: own model, a small causal transformer without training, with rotary
    positions; the penalty as transformers and vLLM define it.
Notation: M random models (one a seed), S requests, T tokens, d width; token
    t is the one at index t, counted from 0;
    the log-probability at t is that of token t + 1 given tokens 0 to t.
    Delta is engine minus reference.
Units: log-probabilities in nats.
"""

import codecs
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from snippets.estimate import SEEDS, Estimate
from snippets.rollouts.partial_rollout_kv_cache import (
    VOCAB,
    Shape,
    Weights,
    draw,
    moved,
)
from snippets.show import label, markdown_table, new_figure

Array = NDArray[np.float64]
BLOCK = 16


def log_softmax(z: Array) -> Array:
    """Over the last axis, in nats."""
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def softmax(z: Array) -> Array:
    """Over the last axis."""
    weight = np.exp(z - z.max(-1, keepdims=True))
    return weight / weight.sum(-1, keepdims=True)


def norm(x: Array, eps: float = 1e-6) -> Array:
    """Root-mean-square normalisation over the last axis."""
    square = np.einsum("...i,...i", x, x)[..., None]
    return x / np.sqrt(square / x.shape[-1] + eps)


@cache
def frequencies(half: int, base: float) -> Array:
    """Radians per position of each pair, (half,)."""
    return base ** (-np.arange(half) / half)


def rotate(x: Array, position: Array, base: float = 100.0) -> Array:
    """Rotary positions: x (..., d), its halves paired; position (...)."""
    half = x.shape[-1] // 2
    angle = np.asarray(position)[..., None] * frequencies(half, base)
    a, b = x[..., :half], x[..., half:]
    cos, sin = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def stacked(models: Sequence[Weights]) -> Weights:
    """M models as one; an axis of 1 lets all requests of a model share it.

    Returns:
        Weights with embed (M, V, d), matrices (layers, M, 1, d, d), head
        (M, 1, V, d).
    """
    embed, *matrices, head = (
        np.stack(part) for part in zip(*models, strict=True)
    )
    layers = (m.swapaxes(0, 1)[:, :, None] for m in matrices)
    return Weights(embed, *layers, head[:, None])


def look(embed: Array, tokens: NDArray[np.int64]) -> Array:
    """Embeddings (M, S, T, d) of tokens (M, S, T), each model its own."""
    return np.stack([e[t] for e, t in zip(embed, tokens, strict=True)])


# --8<-- [start:reference]
def replay(w: Weights, tokens: NDArray[np.int64]) -> Array:
    """Log-probabilities (M, S, T, V) of tokens (M, S, T): no cache."""
    x = look(w.embed, tokens)
    at = np.arange(tokens.shape[2])
    future = at[:, None] < at
    for n in range(len(w.q)):
        h = norm(x)
        q, k = (rotate(h @ m[n].mT, at) for m in (w.q, w.k))
        score = q @ k.mT / h.shape[3] ** 0.5
        seen = softmax(np.where(future, -np.inf, score)) @ (h @ w.v[n].mT)
        x = x + np.tanh(norm(x + seen) @ w.mix[n].mT)
    return log_softmax(norm(x) @ w.head.mT)


# --8<-- [end:reference]


class Fault(NamedTuple):
    """What is wrong with the engine; the default is a healthy one.

    Attributes:
        eps: Of all norms.
        base: Of the rotary positions.
        pads: Padding tokens on the left that no mask hides.
        window: Newest keys that attention reads.
        hit: From this token on, positions count from 0 again.
        block: This entry of the block table names another request's block.
        lag: Newest keys that decoding, not prefill, fails to read.
        update: From this token on new weights compute on the old cache.
    """

    eps: float = 1e-6
    base: float = 100.0
    pads: int = 0
    window: int = 10**9
    hit: int = 0
    block: int = -1
    lag: int = 0
    update: int = 10**9


def bf16(x: Array) -> Array:
    """Rounded to bfloat16, to nearest, ties to even; kept as float32."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    odd = bits >> np.uint32(16) & np.uint32(1)
    bits = bits + np.uint32(0x7FFF) + odd & np.uint32(0xFFFF0000)
    return bits.view(np.float32)


class Engine:
    """Decodes (M, S) sequences with a KV cache, in bfloat16, by token."""

    def __init__(
        self, w: Weights, fault: Fault, prompt: int, other: Array
    ) -> None:
        """Args: other is what another request's block holds, (M, S, d)."""
        self.w, self.fault, self.prompt, self.other = w, fault, prompt, other
        *rows, d = other.shape
        room = len(w.q), *rows, LENGTH + fault.pads, d
        self.keys, self.values = np.zeros((2, *room), np.float32)

    def read(self, cache: Array, t: int) -> Array:
        """What attention finds at token t: (M, S, tokens seen, d)."""
        f = self.fault
        seen = cache[:, :, : t + 1]
        if f.block >= 0:
            seen = seen.copy()
            block = slice(f.block * BLOCK, (f.block + 1) * BLOCK)
            seen[:, :, block] = self.other[:, :, None]
        end = t + 1 - (f.lag if t >= self.prompt else 0)
        return seen[:, :, max(0, end - f.window) : end]

    def step(self, t: int, tokens: NDArray[np.int64]) -> Array:
        """Logits (M, S, V) of the tokens after t; tokens (M, S)."""
        w, f = self.w, self.fault
        at = t - f.hit if t >= f.hit else t
        x = look(w.embed, tokens)
        for n in range(len(w.q)):
            h = bf16(norm(x, f.eps))
            q, k, v = (h @ m[n, :, 0].mT for m in (w.q, w.k, w.v))
            q, self.keys[n][:, :, t] = bf16(
                rotate(np.stack([q, k]), at, f.base)
            )
            self.values[n][:, :, t] = bf16(v)
            score = self.read(self.keys[n], t) @ q[..., None]
            share = softmax(score[..., 0] / q.shape[2] ** 0.5)
            seen = bf16(share)[:, :, None] @ self.read(self.values[n], t)
            y = bf16(norm(x + bf16(seen[:, :, 0]), f.eps))
            x = bf16(x + np.tanh(y @ w.mix[n, :, 0].mT))
        return bf16(norm(x, f.eps)) @ w.head[:, 0].mT


PROMPT, LENGTH, REQUESTS = 32, 80, 8
SHAPE = Shape(layers=2, width=32)


def model(rng: np.random.Generator) -> Weights:
    """Random weights in bfloat16; large queries make attention picky."""
    w = draw(rng, SHAPE)
    w = w._replace(q=3 * w.q, head=2 * w.head)
    return Weights(*(bf16(part) for part in w))


def pick(rngs: Sequence[np.random.Generator], p: Array) -> NDArray[np.int64]:
    """One token (M, S) for each row of p (M, S, V), a generator a model."""
    low = np.stack([rng.random((p.shape[1], 1)) for rng in rngs])
    return (p.cumsum(2) < low).sum(2).clip(0, VOCAB - 1)


def taken(values: Array, tokens: NDArray[np.int64]) -> Array:
    """The entry of each token: values (..., V), tokens (...)."""
    return np.take_along_axis(values, tokens[..., None], -1)[..., 0]


class Setting(NamedTuple):
    """What a run starts from, for M models.

    Attributes:
        w: Weights, stacked.
        new: Those after an update, stacked.
        tokens: (M, REQUESTS, LENGTH), of which a run keeps the prompt.
        other: What another request's block holds, (M, REQUESTS, d).
        rngs: One generator a model.
    """

    w: Weights
    new: Weights
    tokens: NDArray[np.int64]
    other: Array
    rngs: list[np.random.Generator]


def setting(seeds: Sequence[int]) -> Setting:
    """Weights, prompts and generators, each from its own seed."""
    rngs = [np.random.default_rng(seed) for seed in seeds]
    first = [model(rng) for rng in rngs]
    steps = [draw(rng, SHAPE) for rng in rngs]
    after = [
        Weights(*map(bf16, moved(w, step, 0.05)))
        for w, step in zip(first, steps, strict=True)
    ]
    tokens = [rng.integers(0, VOCAB, (REQUESTS, LENGTH)) for rng in rngs]
    other = [rng.standard_normal((REQUESTS, SHAPE.width)) for rng in rngs]
    return Setting(
        stacked(first),
        stacked(after),
        np.stack(tokens),
        np.stack(other),
        rngs,
    )


# --8<-- [start:delta]
def delta(
    fault: Fault, prompt: int = PROMPT, seeds: Sequence[int] = SEEDS
) -> Array:
    """Let the engine write, then replay the same tokens without a cache.

    Args:
        fault: What is wrong with the engine.
        prompt: Tokens of the prompt; the engine samples the others.
        seeds: One for each model: its weights, prompts and sampling.

    Returns:
        (M, REQUESTS, LENGTH - 1) log-probability of each next token, engine
        minus reference, by the weights that were loaded when it was
        written.
    """
    w, new, tokens, other, rngs = setting(seeds)
    engine = Engine(w, fault, prompt + fault.pads, other)
    for t in range(fault.pads):
        engine.step(t, np.zeros_like(tokens[..., 0]))
    wrote = []
    for t in range(LENGTH - 1):
        if t == fault.update:
            engine.w = new
        p = log_softmax(engine.step(fault.pads + t, tokens[..., t]))
        if t + 1 >= prompt:
            tokens[..., t + 1] = pick(rngs, np.exp(p))
        wrote.append(taken(p, tokens[..., t + 1]))
    truth = replay(w, tokens[..., :-1])
    if fault.update < LENGTH:
        later = replay(new, tokens[..., :-1])[:, :, fault.update :]
        truth[:, :, fault.update :] = later
    return np.stack(wrote, -1) - taken(truth, tokens[..., 1:])


# --8<-- [end:delta]

FAULTS = {
    "no fault, bfloat16": Fault(),
    "norm: eps 0.02": Fault(eps=0.02),
    "left padding not masked": Fault(pads=16),
    "RoPE: base 70, not 100": Fault(base=70.0),
    "prefix hit of 16, positions restart": Fault(hit=16),
    "newest key not read": Fault(lag=1),
    "window of 40": Fault(window=40),
    "wrong block 3 in the table": Fault(block=3),
    "update at 56, old cache": Fault(update=56),
}


@cache
def run(name: str) -> Array:
    """Delta of one fault, (10, REQUESTS, LENGTH - 1), one row a seed."""
    return delta(FAULTS[name])


def error(name: str) -> Array:
    """Mean over the requests of the size of delta, (10, LENGTH - 1)."""
    return np.abs(run(name)).mean(1)


BEGINS = {
    "no fault, bfloat16": LENGTH,
    "norm: eps 0.02": 0,
    "left padding not masked": 0,
    "RoPE: base 70, not 100": 1,
    "prefix hit of 16, positions restart": 16,
    "newest key not read": PROMPT,
    "window of 40": 40,
    "wrong block 3 in the table": 48,
    "update at 56, old cache": 56,
}
"""First position that a fault touches, by its construction."""


# --8<-- [start:first]
def first_wrong(size: Array, healthy: Array, times: float = 3.0) -> int:
    """First position whose mean error exceeds all noise; -1 if none does.

    Args:
        size: (T,) mean of abs(delta) at each position, engine under test.
        healthy: (T,) the same for an engine known to be right.
        times: How far above the healthy maximum counts as wrong.
    """
    wrong = np.flatnonzero(size > times * healthy.max())
    return int(wrong[0]) if len(wrong) else -1


# --8<-- [end:first]


def seen_from(name: str) -> list[int]:
    """First wrong position of each model; -1 where none is wrong."""
    pairs = zip(error(name), error("no fault, bfloat16"), strict=True)
    return [first_wrong(size, good) for size, good in pairs]


def span(found: list[int]) -> str:
    """Earliest and latest of the positions; -1 is latest: never."""
    order = sorted(found, key=lambda t: (t < 0, t))
    ends = order[0], order[-1]
    first, last = ("never" if t < 0 else str(t) for t in ends)
    return first if first == last else f"{first} to {last}"


def table_signatures() -> str:
    """Where each fault begins and is seen, and how it goes on."""
    rows = []
    for name, begin in BEGINS.items():
        seen = span(seen_from(name))
        first = error(name)[:, begin % LENGTH :][:, :8].mean(1)
        last = error(name)[:, -16:].mean(1)
        sizes = (f"{Estimate(tuple(x)):.2f}" for x in (first, last))
        healthy = begin == LENGTH
        rows.append((name, "none" if healthy else begin, seen, *sizes))
    heads = ["fault", "begins", "seen from", "its first 8", "last 16"]
    return markdown_table(heads, rows, "lrrrr")


def merge(parts: list[Array], sums: list[float]) -> Array:
    """One attention output from several parts of the keys.

    Args:
        parts: Outputs (d,), each already normalised over its own keys.
        sums: Log-sum-exp of each part's scores, in nats.

    Returns:
        Output (d,) of attention over all keys.
    """
    share = softmax(np.array(sums))
    return share @ np.array(parts)


# --- No fault at all: loops, penalties ------------------------------------


# --8<-- [start:penalty]
def penalise(logits: Array, seen: NDArray[np.bool_], penalty: float) -> Array:
    """Repetition penalty: shrink positive logits, grow negative ones.

    Args:
        logits: (..., V) as they leave the head, not log-probabilities.
        seen: (..., V) whether the token occurred in prompt or output.
        penalty: 1 does nothing, above 1 discourages.
    """
    lower = np.where(logits > 0, logits / penalty, logits * penalty)
    return np.where(seen, lower, logits)


# --8<-- [end:penalty]


def repeated(tokens: NDArray[np.int64], n: int = 4) -> float:
    """Share of a row's n-grams that occurred before in it, mean of rows."""
    shares = []
    for row in tokens.tolist():
        grams = [tuple(row[i : i + n]) for i in range(len(row) - n + 1)]
        shares.append(1 - len(set(grams)) / len(grams))
    return float(np.mean(shares))


class Loop(NamedTuple):
    """Tokens (M, S, T) of a healthy engine, and two log-probabilities.

    Attributes:
        tokens: Without the prompt.
        raw: Of the written tokens, by the model, (M, S, T).
        processed: The same after the penalty, temperature 1.
    """

    tokens: NDArray[np.int64]
    raw: Array
    processed: Array


@cache
def loop(penalty: float, greedy: bool, seeds: Sequence[int] = SEEDS) -> Loop:
    """Generate with a healthy engine, M models at once."""
    w, _, tokens, other, rngs = setting(seeds)
    last = tokens[..., 0]
    engine = Engine(w, Fault(), 1, other)
    seen = np.zeros((*last.shape, VOCAB), bool)
    out = Loop(*np.zeros((3, *last.shape, LENGTH)))
    for t in range(LENGTH):
        np.put_along_axis(seen, last[..., None], values=True, axis=2)
        logits = engine.step(t, last)
        used = log_softmax(penalise(logits, seen, penalty))
        last = used.argmax(2) if greedy else pick(rngs, np.exp(used))
        out.tokens[..., t] = last
        out.raw[..., t] = taken(log_softmax(logits), last)
        out.processed[..., t] = taken(used, last)
    return out._replace(tokens=out.tokens.astype(int))


def table_loops() -> str:
    """Repetition by decoding alone, and what a penalty does to delta."""
    rows = []
    for greedy, penalty in (
        (True, 1.0),
        (True, 1.3),
        (False, 1.0),
        (False, 1.3),
    ):
        run = loop(penalty, greedy)
        gap = np.abs(run.processed - run.raw).mean((1, 2))
        name = "greedy" if greedy else "temperature 1"
        share = Estimate(tuple(100 * repeated(each) for each in run.tokens))
        cells = (f"{share:.0f} %", f"{Estimate(tuple(gap)):.2f}")
        rows.append((name, f"{penalty:.1f}", *cells))
    heads = ["decoding", "penalty", "repeated 4-grams"]
    return markdown_table([*heads, "abs. delta by the penalty"], rows)


# --- Norm in low precision ------------------------------------------------


def fp16(x: float) -> float:
    """Rounded to float16: 11 significant bits, above 65,504 infinite."""
    with np.errstate(over="ignore"):
        return float(np.float16(x))


def fp32(x: float) -> float:
    """Rounded to float32."""
    return float(np.float32(x))


# --8<-- [start:norm]
def normed(
    x: float, n: int, rounded: Callable[[float], float], eps: float = 1e-5
) -> float:
    """RMSNorm's output for n equal inputs x; every step is rounded."""
    total = 0.0
    for _ in range(n):
        total = rounded(total + rounded(x * x))
    root = rounded(rounded(rounded(total / n) + rounded(eps)) ** 0.5)
    return rounded(x / root)


# --8<-- [end:norm]


def table_norm() -> str:
    """4,096 equal inputs: the right output is 1."""
    formats = (fp32, fp16, lambda x: float(bf16(np.float64(x))))
    rows = [
        (f"{x:g}", *(f"{normed(x, 4096, form):.3g}" for form in formats))
        for x in (1.0, 5.0, 300.0)
    ]
    return markdown_table(["input", "float32", "float16", "bfloat16"], rows)


# --- Ends and pieces ------------------------------------------------------


# --8<-- [start:ends]
def finish(
    written: list[int], stops: set[int], limit: int
) -> tuple[list[int], str]:
    """Cut what a model would write, and say why: stop or length."""
    for n, token in enumerate(written[:limit], 1):
        if token in stops:
            return written[:n], "stop"
    return written[:limit], "length"


def mask_by_token(padded: list[int], pad: int) -> list[int]:
    """Wrong if pad == EOS: the EOS that ends the answer is masked too."""
    return [int(token != pad) for token in padded]


def mask_by_length(padded: list[int], length: int) -> list[int]:
    """Right: the answer's length, its EOS counted."""
    return [int(n < length) for n in range(len(padded))]


def stream(pieces: list[bytes], hold: bool) -> str:
    """Tokens' bytes to text, with or without holding back partial ones."""
    if not hold:
        return "".join(piece.decode(errors="replace") for piece in pieces)
    decoder = codecs.getincrementaldecoder("utf-8")()
    return "".join(decoder.decode(piece) for piece in pieces)


# --8<-- [end:ends]

EOS, TURN = 2, 7


def report_ends() -> str:
    """A lost stop token, a masked EOS, a broken character."""
    told = [5, 9, 4, TURN, 5, 9, 4, TURN, 5, 9]
    lines = ["the model ends its turn with 7 and goes on if nobody stops it"]
    for stops in ({EOS}, {EOS, TURN}):
        tokens, why = finish(told, stops, 8)
        lines.append(f"  stop ids {sorted(stops)}: {tokens} {why}")
    padded = [5, 9, 4, EOS, EOS, EOS]
    lines += [
        "",
        f"answer of 4 tokens, padded with EOS: {padded}",
        f"  loss mask by token:  {mask_by_token(padded, EOS)}",
        f"  loss mask by length: {mask_by_length(padded, 4)}",
    ]
    raw = "断句".encode()
    pieces = [raw[:2], raw[2:4], raw[4:]]
    sizes = " + ".join(str(len(piece)) for piece in pieces)
    lines += [
        "",
        f"断句 is {len(raw)} bytes, here in tokens of {sizes}",
        f"  each token decoded alone: {stream(pieces, hold=False)}",
        f"  partial bytes held back:  {stream(pieces, hold=True)}",
    ]
    return "\n".join(lines)


# --- Figure ---------------------------------------------------------------

PANELS = {
    "norm: eps 0.02": "norm eps",
    "left padding not masked": "padding seen",
    "RoPE: base 70, not 100": "RoPE base",
    "prefix hit of 16, positions restart": "prefix hit",
    "newest key not read": "newest key",
    "window of 40": "window 40",
    "wrong block 3 in the table": "wrong block",
    "update at 56, old cache": "old cache",
}


ROW = 4.0
"""Decades between two curves of the figure."""


def lifted(size: Array, row: int) -> Array:
    """Height of an error in the figure: decades above 0.01, rows stacked."""
    return np.log10(size / 0.01) - ROW * row


def figure_signatures() -> Figure:
    """Size of delta against position: mean and range of ten models."""
    figure, axes = new_figure(6.2)
    at = np.arange(LENGTH - 1)
    for row, (name, title) in enumerate(PANELS.items()):
        for which, color in (("no fault, bfloat16", "C5"), (name, "C0")):
            each = lifted(error(which), row)
            low, high = each.min(0), each.max(0)
            axes.fill_between(at, low, high, color=color, alpha=0.2, lw=0)
            middle = lifted(error(which).mean(0), row)
            axes.plot(at, middle, "-", color=color, lw=1)
        start, ends = BEGINS[name], lifted(np.array([0.004, 1.6]), row)
        axes.plot([start, start], ends, "--", color="C1", lw=1)
        label(axes, 0, ends[1], f"{title}: {start}", "C0", xytext=(4, 6))
    axes.axvspan(0, PROMPT - 0.5, alpha=0.1, color="C5", lw=0)
    rows = range(len(PANELS))
    marks = [lifted(np.array([0.01, 1.0]), row) for row in rows]
    axes.set_yticks(np.concatenate(marks), ["0.01", "1"] * len(PANELS))
    axes.set(xlim=(0, LENGTH), ylim=(-ROW * (len(PANELS) - 1) - 0.8, 3.3))
    axes.set(xlabel="position (prompt: grey)", xticks=[0, 16, 32, 48, 64, 80])
    axes.set_ylabel("mean |log p, engine − replay|, nats")
    axes.set_title("Start and shape tell eight faults apart")
    return figure
