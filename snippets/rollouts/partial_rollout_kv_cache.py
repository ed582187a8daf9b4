"""Is the KV cache of earlier policies kept in partial rollouts?

Page: rollouts/partial-rollout-kv-cache

Source: own model, a small causal transformer without training.
Notation: theta old weights, theta' new ones; stale: the new weights attend
    to keys and values that the old ones wrote.
Units: KL in nats per token; sizes of updates relative to the weights.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from snippets.rollouts.distributed_inference import (
    FLOPS,
    Model,
    prefill_seconds,
)
from snippets.rollouts.paged_attention import kv_bytes
from snippets.show import label, markdown_table, new_figure

Array = NDArray[np.float64]
VOCAB = 24


class Weights(NamedTuple):
    """Embedding (V, d), per layer four (d, d) matrices, head (V, d)."""

    embed: Array
    q: Array
    k: Array
    v: Array
    mix: Array
    head: Array


class Cache(NamedTuple):
    """Keys and values of each layer, (L, T, d)."""

    keys: Array
    values: Array


def norm(x: Array) -> Array:
    """Root-mean-square normalisation of a vector (d,)."""
    return x / (x @ x / len(x) + 1e-6) ** 0.5


# --8<-- [start:model]
def extend(w: Weights, tokens: list[int], old: Cache) -> tuple[Array, Cache]:
    """Run tokens through the model behind a cache, one after the other.

    Args:
        w: The weights that compute now.
        tokens: New tokens.
        old: Keys and values of what came before, whoever wrote them.

    Returns:
        Log-probabilities (V,) after the last token, and the longer cache.
    """
    shape = len(w.q), len(tokens), w.embed.shape[1]
    keys, values = (np.concatenate([x, np.zeros(shape)], 1) for x in old)
    x = np.zeros(w.embed.shape[1])
    for t, token in enumerate(tokens, old.keys.shape[1]):
        x = w.embed[token]
        for layer in range(len(w.q)):
            h = norm(x)
            keys[layer, t] = w.k[layer] @ h
            values[layer, t] = w.v[layer] @ h
            score = keys[layer, : t + 1] @ (w.q[layer] @ h) / len(h) ** 0.5
            share = np.exp(score - score.max())
            seen = share @ values[layer, : t + 1] / share.sum()
            x = x + np.tanh(w.mix[layer] @ norm(x + seen))
    logits = w.head @ norm(x)
    logits = logits - logits.max()
    return logits - np.log(np.exp(logits).sum()), Cache(keys, values)


# --8<-- [end:model]


class Shape(NamedTuple):
    """Layers and width of the model, tokens before the update."""

    layers: int = 2
    width: int = 16
    length: int = 16


SMALL = Shape()


def empty(w: Weights) -> Cache:
    """A cache of no tokens."""
    nothing = np.zeros((len(w.q), 0, w.embed.shape[1]))
    return Cache(nothing, nothing)


def draw(rng: np.random.Generator, shape: Shape = SMALL) -> Weights:
    """Random weights, or a random direction to move them in."""
    d = shape.width
    square = (shape.layers, d, d)
    shapes = ((VOCAB, d), square, square, square, square, (VOCAB, d))
    return Weights(*(rng.standard_normal(s) / d**0.5 for s in shapes))


def moved(w: Weights, step: Weights, size: float) -> Weights:
    """The weights after a step; size is relative, parts are alike long."""
    return Weights(*(a + size * b for a, b in zip(w, step, strict=True)))


def kl(p: Array, q: Array) -> float:
    """KL(p || q) of two log-probability vectors, in nats."""
    return float((np.exp(p) * (p - q)).sum())


# --8<-- [start:treatments]
class Treated(NamedTuple):
    """Next-token KLs in nats after an update in the middle of a response.

    Attributes:
        policy: Old policy against the new one, each with its own cache.
        stale: New weights with a fresh cache against the stale one.
        later: The same after eight more tokens written by new weights.
    """

    policy: float
    stale: float
    later: float


def treat(size: float, seed: int, shape: Shape = SMALL) -> Treated:
    """Update in mid-response; keep the cache or compute it anew."""
    rng = np.random.default_rng(seed)
    old = draw(rng, shape)
    new = moved(old, draw(rng, shape), size)
    n = shape.length
    tokens = rng.integers(0, VOCAB, n + 9).tolist()
    prefix, last, more = tokens[:n], tokens[n], tokens[n + 1 :]
    _, written = extend(old, prefix, empty(old))
    _, rebuilt = extend(new, prefix, empty(new))
    before, _ = extend(old, [last], written)
    fresh, clean = extend(new, [last], rebuilt)
    stale, mixed = extend(new, [last], written)
    fresh_later, _ = extend(new, more, clean)
    stale_later, _ = extend(new, more, mixed)
    return Treated(
        kl(before, fresh), kl(fresh, stale), kl(fresh_later, stale_later)
    )


# --8<-- [end:treatments]

SIZES = (0.001, 0.003, 0.01, 0.03, 0.1)
SEEDS = 16


@cache
def sweep() -> dict[float, Array]:
    """For each size a (16, 3) array: policy, stale, later."""
    return {
        size: np.array([treat(size, seed) for seed in range(SEEDS)])
        for size in SIZES
    }


def band(share: Array) -> str:
    """Median, and the 10 % and 90 % quantiles."""
    low, middle, high = np.quantile(share, [0.1, 0.5, 0.9])
    return f"{middle:.2f} ({low:.2f}–{high:.2f})"


def table_stale() -> str:
    """Medians over seeds: what the update changes, what the cache adds."""
    rows = [
        (
            f"{size:g}",
            f"{np.median(runs[:, 0]):.1e}",
            f"{np.median(runs[:, 1]):.1e}",
            band(runs[:, 1] / runs[:, 0]),
        )
        for size, runs in sweep().items()
    ]
    heads = ["update", "KL, old to new policy", "KL, stale cache"]
    return markdown_table([*heads, "stale / policy"], rows, "rrrr")


SHAPES = (
    Shape(layers=1),
    SMALL,
    Shape(layers=4),
    Shape(width=64),
    Shape(layers=4, width=64),
    Shape(length=64),
)


@cache
def shape_runs() -> dict[Shape, Array]:
    """For each shape a (16, 3) array at one size of update."""
    return {
        shape: np.array([treat(0.01, seed, shape) for seed in range(SEEDS)])
        for shape in SHAPES
    }


def table_shapes() -> str:
    """The share of the stale cache in models of other shapes."""
    rows = [
        (
            *shape,
            band(runs[:, 1] / runs[:, 0]),
            f"{np.median(runs[:, 2] / runs[:, 1]):.2f}",
        )
        for shape, runs in shape_runs().items()
    ]
    heads = ["layers", "width", "tokens before", "stale / policy"]
    heads += ["after 8 tokens more, of that"]
    return markdown_table(heads, rows, "rrrrr")


QWEN3_8B = Model(8.2e9, 36, 4096, kv_bytes(36, 8, 128))


def table_prefill() -> str:
    """What dropping the cache costs at one update, Qwen3-8B on 8 GPUs."""
    rows = []
    for requests, tokens in ((256, 4096), (1024, 8192), (256, 32768)):
        seconds = requests * prefill_seconds(QWEN3_8B, tokens, FLOPS)
        size = requests * tokens * QWEN3_8B.kv / 2**30
        rows.append(
            (requests, f"{tokens:,}", f"{size:,.0f}", f"{seconds:.1f} s")
        )
    heads = ["requests", "tokens so far", "KV, GiB", "prefill again"]
    return markdown_table(heads, rows, "rrrr")


def figure_stale() -> Figure:
    """KL of the policy's change and of the stale cache against the update."""
    figure, axes = new_figure(3.0)
    runs = sweep()
    for column, color, line in ((0, "C1", "--"), (1, "C0", "-")):
        low, middle, high = (
            [np.quantile(r[:, column], q) for r in runs.values()]
            for q in (0.1, 0.5, 0.9)
        )
        axes.plot(SIZES, middle, line, color=color, marker="o", ms=4)
        axes.fill_between(SIZES, low, high, color=color, alpha=0.15, lw=0)
    label(axes, 0.003, 4e-5, "old policy → new", "C1", xytext=(-50, 20))
    label(axes, 0.01, 2e-5, "stale cache", "C0", xytext=(14, -10))
    axes.set(xscale="log", yscale="log", ylabel="KL of next token, nats")
    axes.set_xlabel("size of the update, relative to the weights")
    axes.set_title("A stale cache errs in step with the update", loc="left")
    return figure
