"""How does GRPO behave on dense and on MoE models, and what does GSPO change?

Page: policy/grpo-dense-vs-moe

Source: Zheng et al. 2025 (GSPO, routing that changes with updates); Ma et
    al. 2025 (routing that differs between engine and trainer).
Notation: w = pi_new(token) / pi_old(token) of a sampled token; replayed
    means that the new weights use the old routes.
Units: nats; sizes of updates relative to the length of the weights.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from snippets.show import label, markdown_table, new_figure

Array = NDArray[np.float64]
Routes = NDArray[np.intp]

# --- A layer with and without a router ------------------------------------


class Weights(NamedTuple):
    """One residual feed-forward layer with experts and an output head.

    Attributes:
        router: (E, d); E = 1 is a dense model.
        up: (E, m, d) and down: (E, d, m), the experts.
        head: (V, d), logits of the next token.
    """

    router: Array
    up: Array
    down: Array
    head: Array


# --8<-- [start:layer]
def routes(w: Weights, x: Array, top: int) -> Routes:
    """(N, top) experts with the largest router logits, for (N, d) inputs."""
    return np.argsort(-(x @ w.router.T), axis=1)[:, :top]


def log_policy(w: Weights, x: Array, chosen: Routes) -> Array:
    """(N, V) log-probabilities when each input uses the chosen experts.

    The mixing weights come from the current router, softmax over the
    chosen: replaying routes fixes which experts, not how they are mixed.
    """
    scores = np.take_along_axis(x @ w.router.T, chosen, 1)
    mix = np.exp(scores - scores.max(1, keepdims=True))
    mix /= mix.sum(1, keepdims=True)
    h = x.copy()
    for k in range(chosen.shape[1]):
        expert = chosen[:, k]
        inner = np.tanh(np.einsum("nmd,nd->nm", w.up[expert], x))
        out = np.einsum("ndm,nm->nd", w.down[expert], inner)
        h += mix[:, k, None] * out
    logits = h @ w.head.T
    logits -= logits.max(1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


# --8<-- [end:layer]

WIDTH, INNER, VOCAB, TOKENS = 8, 8, 16, 8000


def weights(experts: int, rng: np.random.Generator) -> Weights:
    """Random weights; the experts' output is as large as the input."""
    return Weights(
        rng.standard_normal((experts, WIDTH)) / WIDTH**0.5,
        rng.standard_normal((experts, INNER, WIDTH)) / WIDTH**0.5,
        1.5 * rng.standard_normal((experts, WIDTH, INNER)) / INNER**0.5,
        rng.standard_normal((VOCAB, WIDTH)) / WIDTH**0.5,
    )


def moved(w: Weights, size: float, rng: np.random.Generator) -> Weights:
    """The weights after a random step of a relative size."""
    steps = [rng.standard_normal(part.shape) for part in w]
    return Weights(
        *(
            part + size * np.linalg.norm(part) / np.linalg.norm(step) * step
            for part, step in zip(w, steps, strict=True)
        )
    )


class Step(NamedTuple):
    """Log-ratios of the sampled tokens after one step, (N,) each."""

    free: Array
    replayed: Array
    flipped: NDArray[np.bool_]
    kl_free: float
    kl_replayed: float


@cache
def step(size: float, experts: int, top: int) -> Step:
    """Sample a token for each of 8,000 inputs, move the weights, compare.

    Args:
        size: Length of the step relative to the weights.
        experts: Number of experts; 1 is dense.
        top: Experts per token.
    """
    rng = np.random.default_rng(0)
    old = weights(experts, rng)
    x = rng.standard_normal((TOKENS, WIDTH))
    before = routes(old, x, top)
    log_old = log_policy(old, x, before)
    u = rng.random((TOKENS, 1))
    token = (u > np.cumsum(np.exp(log_old), 1)[:, :-1]).sum(1)[:, None]
    new = moved(old, size, np.random.default_rng(1))
    after = routes(new, x, top)
    flipped = (np.sort(before, 1) != np.sort(after, 1)).any(1)
    kept = log_policy(new, x, before)
    free = kept.copy()
    free[flipped] = log_policy(new, x[flipped], after[flipped])

    def ratio(log_new: Array) -> Array:
        return np.take_along_axis(log_new - log_old, token, 1)[:, 0]

    def kl(log_new: Array) -> float:
        return float((np.exp(log_old) * (log_old - log_new)).sum(1).mean())

    return Step(ratio(free), ratio(kept), flipped, kl(free), kl(kept))


MODELS = (("dense", 1, 1), ("MoE, top 2 of 16", 16, 2))
SIZES = (3e-4, 1e-3, 3e-3, 1e-2)


def table_steps() -> str:
    """What one step of each size does to the sampled tokens' log-ratios."""
    rows = []
    for size in SIZES:
        dense, moe = step(size, 1, 1), step(size, 16, 2)
        jumps = moe.free[moe.flipped]
        rows.append(
            (
                f"{size:g}",
                f"{np.abs(dense.free).mean():.5f}",
                f"{np.abs(moe.replayed).mean():.5f}",
                f"{100 * moe.flipped.mean():.2f} %",
                f"{np.abs(jumps).mean():.2f}",
                f"{moe.kl_free / moe.kl_replayed:.0f}",
            )
        )
    heads = ["step", "dense", "MoE, replayed", "tokens with a flip"]
    heads += ["their mean jump", "KL, free / replayed"]
    return markdown_table(heads, rows, "rrrrrr")


# --- How easily a router flips --------------------------------------------


# --8<-- [start:flips]
def flip_share(
    noise: float,
    rng: np.random.Generator,
    experts: int = 128,
    top: int = 8,
    tokens: int = 10_000,
) -> tuple[float, float]:
    """Noise on router logits N(0, 1): what changes in the top experts.

    Args:
        noise: Standard deviation of what is added to each logit.
        rng: Source of logits and noise.
        experts: Experts of a layer.
        top: Chosen per token.
        tokens: Sample size.

    Returns:
        Share of tokens whose set of experts changes in one layer, and share
        of the chosen experts that are replaced.
    """
    logits = rng.standard_normal((tokens, experts))
    noisy = logits + noise * rng.standard_normal(logits.shape)
    chosen = [
        np.argpartition(-z, top - 1, axis=1)[:, :top] for z in (logits, noisy)
    ]
    marks = np.zeros((2, tokens, experts), bool)
    for mark, index in zip(marks, chosen, strict=True):
        np.put_along_axis(mark, index, True, 1)
    lost = (marks[0] & ~marks[1]).sum(1)
    return float((lost > 0).mean()), float(lost.mean() / top)


def any_layer(share: float, layers: int = 48) -> float:
    """Tokens with a flip in some layer, if layers were independent."""
    return 1 - (1 - share) ** layers


# --8<-- [end:flips]


def table_flips() -> str:
    """One layer of 128 experts, top 8: noise against what changes."""
    rows = []
    for noise in (0.001, 0.003, 0.01, 0.03, 0.1):
        tokens, experts = flip_share(noise, np.random.default_rng(0))
        rows.append(
            (
                f"{noise:g}",
                f"{100 * experts:.2g} %",
                f"{100 * tokens:.2g} %",
                f"{100 * any_layer(tokens):.3g} %",
            )
        )
    heads = ["noise on the router's logits", "experts replaced"]
    heads += ["tokens with a change, one layer", "in some of 48 layers"]
    return markdown_table(heads, rows)


# --- Token and sequence ratios --------------------------------------------


def by_response(log_ratios: Array, length: int = 1000) -> Array:
    """Mean log-ratio of 64 responses whose tokens are drawn from these."""
    rng = np.random.default_rng(3)
    return rng.choice(log_ratios, (64, length)).mean(1)


RATIO_STEP = 3e-3


def table_ratios() -> str:
    """Token and sequence ratios of the three models after one step."""
    dense, moe = step(RATIO_STEP, 1, 1), step(RATIO_STEP, 16, 2)
    models = {
        "dense": (dense.free, dense.kl_free),
        "MoE, routes replayed": (moe.replayed, moe.kl_replayed),
        "MoE, free routes": (moe.free, moe.kl_free),
    }
    rows = []
    for name, (x, kl) in models.items():
        outside = np.mean((x > np.log(1.2)) | (x < np.log(0.8)))
        s = by_response(x)
        rows.append(
            (
                name,
                f"{x.std():.4f}",
                f"{np.abs(x).max():.3f}",
                f"{100 * outside:.2g} %",
                f"{s.std():.5f}",
                f"{kl:.1e}".replace("e-0", "e-"),
            )
        )
    heads = ["model", "sd of $\\log w$", "largest", "outside 0.8 to 1.2"]
    return markdown_table(heads + ["sd of $\\log s$", "KL per token"], rows)


def storage(
    tokens: int, layers: int = 48, top: int = 8, size: int = 1
) -> int:
    """Bytes of the recorded routes: tokens x layers x top x bytes per id."""
    return tokens * layers * top * size


# --- Figure ---------------------------------------------------------------


def figure_steps() -> Figure:
    """Size of the log-ratios and share of flips against the step."""
    figure, (jump, share) = new_figure(4.8, rows=2, sharex=True)
    sizes = np.geomspace(3e-4, 1e-2, 4)
    moe = [step(float(s), 16, 2) for s in sizes]
    jumps = [np.abs(m.free[m.flipped]).mean() for m in moe]
    kept = [np.abs(m.replayed).mean() for m in moe]
    dense = [np.abs(step(float(s), 1, 1).free).mean() for s in sizes]
    jump.plot(sizes, jumps, "-", color="C1", marker="o", ms=4)
    jump.plot(sizes, kept, "-", color="C0", marker="o", ms=4)
    jump.plot(sizes, dense, "--", color="C5", marker="o", ms=4)
    label(
        jump, 3e-4, jumps[0], "MoE, tokens with a flip", "C1", xytext=(0, 8)
    )
    label(jump, 3e-3, 1e-3, "MoE, routes replayed", "C0", xytext=(6, -4))
    label(jump, sizes[1], dense[1], "dense", "C5", xytext=(-34, 8))
    jump.axhline(np.log(1.2), color="grey", alpha=0.6)
    label(jump, 1e-2, np.log(1.2), "clip", xytext=(-24, -15))
    jump.set(xscale="log", yscale="log", ylim=(2e-4, 2))
    jump.set_ylabel("mean |log w|")
    jump.set_title("Smaller steps: fewer jumps, not smaller ones", loc="left")
    flips = [100 * m.flipped.mean() for m in moe]
    share.plot(sizes, flips, color="C1", marker="o", ms=4)
    share.set(xlabel="relative size of the weight change", yscale="log")
    share.set_ylabel("tokens with a flip, %")
    return figure
