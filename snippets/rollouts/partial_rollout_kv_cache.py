"""Is the KV cache of earlier policies kept in partial rollouts?

Page: rollouts/partial-rollout-kv-cache

Source: own model, a small causal transformer without training.
Notation: theta old weights, theta' new ones; stale: the new weights attend
    to keys and values that the old ones wrote.
Units: KL in nats per token; sizes of updates relative to the weights.
"""

from collections.abc import Collection
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


ALL = Weights._fields


# --8<-- [start:treatments]
def treat(
    size: float,
    seed: int,
    shape: Shape = SMALL,
    parts: Collection[str] = ALL,
) -> tuple[float, float]:
    """Update in mid-response; keep the cache or compute it anew.

    Args:
        size: Length of the update relative to the weights.
        seed: Draws weights, direction of the update and tokens.
        shape: Of the model.
        parts: Matrices that move; the others stay.

    Returns:
        KLs of the next token in nats: old policy against new, each with
        its own cache; new weights with a fresh cache against the kept one.
    """
    rng = np.random.default_rng(seed)
    old = draw(rng, shape)
    goal = moved(old, draw(rng, shape), size)._asdict()
    new = old._replace(**{part: goal[part] for part in parts})
    *prefix, last = rng.integers(0, VOCAB, shape.length + 1).tolist()
    _, written = extend(old, prefix, empty(old))
    _, rebuilt = extend(new, prefix, empty(new))
    before, _ = extend(old, [last], written)
    fresh, _ = extend(new, [last], rebuilt)
    stale, _ = extend(new, [last], written)
    return kl(before, fresh), kl(fresh, stale)


# --8<-- [end:treatments]

SIZES = (0.001, 0.003, 0.01, 0.03, 0.1)
DRAWS = range(48)
"""Weights, update and tokens of the page; tests use others."""


@cache
def runs(
    size: float,
    shape: Shape = SMALL,
    parts: Collection[str] = ALL,
    draws: range = DRAWS,
) -> Array:
    """`treat` for each draw, (draws, 2): policy, stale."""
    return np.array([treat(size, seed, shape, parts) for seed in draws])


def share(found: Array) -> Array:
    """The stale cache's KL over the policy's own, median and 80 % band."""
    return np.quantile(found[:, 1] / found[:, 0], [0.5, 0.1, 0.9])


def band(found: Array) -> str:
    """`share` in a table's cell; 0 where the cache cannot go stale."""
    if not found[:, 1].any():
        return "0"
    return "{:.2f} ({:.2f}–{:.2f})".format(*share(found))


def table_stale() -> str:
    """Medians over draws: what the update changes, what the cache adds."""
    rows = []
    for size in SIZES:
        found = runs(size)
        policy, stale = np.median(found, 0)
        rows.append((f"{size:g}", power(policy), power(stale), band(found)))
    heads = ["update", "KL, old to new policy", "KL, stale cache"]
    return markdown_table([*heads, "stale / policy"], rows, "rrrr")


def power(x: float) -> str:
    """A number in scientific notation, in TeX."""
    digits, exponent = f"{x:.1e}".split("e")
    return rf"${digits}\cdot10^{{{int(exponent)}}}$"


CASES: dict[str, tuple[Shape, Collection[str]]] = {
    "all | 2 | 16 | 16": (SMALL, ALL),
    "all | 1 | 16 | 16": (Shape(layers=1), ALL),
    "all | 4 | 16 | 16": (Shape(layers=4), ALL),
    "all | 4 | 64 | 16": (Shape(layers=4, width=64), ALL),
    "all | 2 | 16 | 64": (Shape(length=64), ALL),
    "head | 2 | 16 | 16": (SMALL, ("head",)),
    "mix | 2 | 16 | 16": (SMALL, ("mix",)),
    "q, v | 2 | 16 | 16": (SMALL, ("q", "v")),
    "k, v | 2 | 16 | 16": (SMALL, ("k", "v")),
}


def table_shapes() -> str:
    """The share of the stale cache: other shapes, other matrices moved."""
    rows = [
        (*name.split(" | "), band(runs(0.01, shape, parts)))
        for name, (shape, parts) in CASES.items()
    ]
    heads = ["matrices that move", "layers", "width", "tokens before"]
    return markdown_table([*heads, "stale / policy"], rows, "lrrrr")


QWEN3_8B = Model(8.2e9, 36, 4096, kv_bytes(36, 8, 128))


def table_prefill() -> str:
    """What dropping the cache costs at one update, Qwen3-8B on 8 GPUs."""
    rows = []
    for requests, tokens in ((256, 4096), (1024, 8192), (256, 32768)):
        seconds = requests * prefill_seconds(QWEN3_8B, tokens, FLOPS)
        size = requests * tokens * QWEN3_8B.kv / 2**30
        rows.append(
            (
                f"{requests:,}",
                f"{tokens:,}",
                f"{size:,.0f}",
                f"{seconds:.1f} s",
            )
        )
    heads = ["requests", "tokens so far", "KV, GiB", "prefill again"]
    return markdown_table(heads, rows, "rrrr")


def figure_stale() -> Figure:
    """KL of the policy's change and of the stale cache against the update."""
    figure, axes = new_figure(3.0)
    for column, color, line in ((0, "C1", "--"), (1, "C0", "-")):
        low, middle, high = (
            [np.quantile(runs(size)[:, column], q) for size in SIZES]
            for q in (0.1, 0.5, 0.9)
        )
        axes.plot(SIZES, middle, line, color=color, marker="o", ms=4)
        axes.fill_between(SIZES, low, high, color=color, alpha=0.15, lw=0)
    label(axes, 0.003, 4e-5, "old policy → new", "C1", xytext=(-46, 24))
    label(axes, 0.01, 2e-5, "stale cache", "C0", xytext=(14, -10))
    axes.set(xscale="log", yscale="log", ylabel="KL of next token, nats")
    axes.set_xlabel("size of the update, relative to the weights")
    axes.set_title("A stale cache errs in step with the update", loc="left")
    return figure
