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
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from snippets.estimate import Estimate, each_over_seeds
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

WIDTH, INNER, VOCAB = 8, 8, 16


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


class Start(NamedTuple):
    """Old weights, inputs, their routes, log-probs and sampled tokens."""

    old: Weights
    x: Array
    before: Routes
    log_old: Array
    token: Routes


class Step(NamedTuple):
    """Log-ratios of the sampled tokens after one step, (N,) each."""

    free: Array
    replayed: Array
    flipped: NDArray[np.bool_]
    kl_free: float
    kl_replayed: float


@cache
def start(experts: int, top: int, tokens: int, seed: int) -> Start:
    """Sample one token for each of the inputs from the old policy."""
    rng = np.random.default_rng(seed)
    old = weights(experts, rng)
    x = rng.standard_normal((tokens, WIDTH))
    before = routes(old, x, top)
    log_old = log_policy(old, x, before)
    u = rng.random((tokens, 1))
    token = (u > np.cumsum(np.exp(log_old), 1)[:, :-1]).sum(1)[:, None]
    return Start(old, x, before, log_old, token)


@cache
def step(
    size: float, experts: int, top: int, tokens: int = 4000, seed: int = 0
) -> Step:
    """Move all weights at random and compare with the old policy.

    Args:
        size: Length of the step relative to the weights.
        experts: Number of experts; 1 is dense.
        top: Experts per token.
        tokens: Inputs, one sampled token each.
        seed: Of the weights, the inputs, the samples and the step.
    """
    old, x, before, log_old, token = start(experts, top, tokens, seed)
    new = moved(old, size, np.random.default_rng((seed, 1)))
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


SIZES = (1e-3, 3e-3, 1e-2, 3e-2)
RATIO_STEP = 3e-3
WIDE = (128, 8, 1000)


def jump(s: Step) -> float:
    """Mean |log w| of the tokens whose experts changed; 0 if none did."""
    return float(np.abs(s.free[s.flipped]).sum() / max(s.flipped.sum(), 1))


def outside(log_ratios: Array) -> float:
    """Share of ratios below 0.8 or above 1.2."""
    x = log_ratios
    return float(np.mean((x > np.log(1.2)) | (x < np.log(0.8))))


@cache
def numbers(
    size: float, experts: int, top: int, tokens: int = 4000
) -> dict[str, Estimate]:
    """What the tables show of a step, over the seeds.

    Returns:
        "free" and "replayed", mean |log w|; "flips", tokens with a flip
        in %; "jump"; "outside" in %; "kl", free over replayed.
    """

    def measure(seed: int) -> list[float]:
        s = step(size, experts, top, tokens, seed)
        return [
            np.abs(s.free).mean(),
            np.abs(s.replayed).mean(),
            100 * s.flipped.mean(),
            jump(s),
            100 * outside(s.free),
            s.kl_free / s.kl_replayed,
        ]

    names = ("free", "replayed", "flips", "jump", "outside", "kl")
    return dict(zip(names, each_over_seeds(measure), strict=True))


def table_steps() -> str:
    """What one step of each size does to the sampled tokens' log-ratios."""
    rows = []
    for size in SIZES:
        moe = numbers(size, 16, 2)
        rows.append(
            (
                f"{size:g}",
                f"{numbers(size, 1, 1)['free']:.4f}",
                f"{moe['replayed']:.4f}",
                f"{moe['flips']:.2f}",
                f"{moe['jump']:.2f}",
                f"{moe['kl']:.0f}",
            )
        )
    heads = ["step", "dense", "MoE, replayed", "tokens with a flip, %"]
    heads += ["their mean jump", "KL, free / replayed"]
    return markdown_table(heads, rows, "rrrrrr")


def table_shapes() -> str:
    """The same step for other numbers of experts and of chosen ones."""
    rows = []
    for experts, top in ((16, 1), (16, 2), (64, 2), (64, 8), (128, 8)):
        s = numbers(1e-2, experts, top, 3000)
        rows.append(
            (
                f"top {top} of {experts}",
                f"{s['flips']:.1f}",
                f"{s['jump']:.2f}",
                f"{s['outside']:.1f}",
                f"{s['kl']:.0f}",
            )
        )
    heads = ["layer", "tokens with a flip, %", "their mean jump"]
    heads += ["outside 0.8 to 1.2, %", "KL, free / replayed"]
    return markdown_table(heads, rows)


# --- How easily a router flips --------------------------------------------


# --8<-- [start:flips]
def flip_share(
    noise: float,
    rng: np.random.Generator,
    experts: int = 128,
    top: int = 8,
    tokens: int = 2000,
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
    for noise in (0.001, 0.004, 0.01, 0.03, 0.1):

        def measure(seed: int, noise: float = noise) -> list[float]:
            rng = np.random.default_rng(seed)
            tokens, experts = flip_share(noise, rng)
            return [100 * experts, 100 * tokens, 100 * any_layer(tokens)]

        experts, tokens, layers = each_over_seeds(measure)
        rows.append(
            (f"{noise:g}", f"{experts:.2f}", f"{tokens:.1f}", f"{layers:.1f}")
        )
    heads = ["noise on the router's logits", "experts replaced, %"]
    heads += ["tokens with a change, one layer, %", "in some of 48 layers, %"]
    return markdown_table(heads, rows)


# --- Token and sequence ratios --------------------------------------------


def by_response(log_ratios: Array, seed: int, length: int = 1000) -> Array:
    """Mean log-ratio of 64 responses whose tokens are drawn from these."""
    rng = np.random.default_rng((seed, 2))
    return rng.choice(log_ratios, (64, length)).mean(1)


def outside_band(log_s: Array) -> float:
    """Share of sequence ratios below 1 - 3e-4 or above 1 + 4e-4."""
    s = np.exp(log_s)
    return float(np.mean((s < 1 - 3e-4) | (s > 1 + 4e-4)))


def ratio_row(x: Array, kl: float, seed: int) -> list[float]:
    """One model after one step, for `table_ratios`; the KL in 1e-5."""
    s = by_response(x, seed)
    return [
        x.std(),
        np.abs(x).max(),
        100 * outside(x),
        s.std(),
        100 * outside_band(s),
        1e5 * kl,
    ]


def table_ratios() -> str:
    """Token and sequence ratios of the three models after one step."""

    def dense(seed: int) -> list[float]:
        s = step(RATIO_STEP, 1, 1, seed=seed)
        return ratio_row(s.free, s.kl_free, seed)

    def replayed(seed: int) -> list[float]:
        s = step(RATIO_STEP, 16, 2, seed=seed)
        return ratio_row(s.replayed, s.kl_replayed, seed)

    def free(seed: int) -> list[float]:
        s = step(RATIO_STEP, 16, 2, seed=seed)
        return ratio_row(s.free, s.kl_free, seed)

    models = {
        "dense": dense,
        "MoE, routes replayed": replayed,
        "MoE, free routes": free,
    }
    rows = []
    for name, measure in models.items():
        found = each_over_seeds(measure)
        digits = (4, 2, 2, 5, 0, 1)
        cells = [f"{e:.{d}f}" for e, d in zip(found, digits, strict=True)]
        rows.append((name, *cells))
    heads = ["model", "sd of $\\log w$", "largest", "outside 0.8 to 1.2, %"]
    heads += ["sd of $\\log s$", "$s$ outside 1 − 3e-4 to 1 + 4e-4, %"]
    return markdown_table(heads + ["KL per token, 1e-5"], rows)


def storage(
    tokens: int, layers: int = 48, top: int = 8, size: int = 1
) -> int:
    """Bytes of the recorded routes: tokens x layers x top x bytes per id."""
    return tokens * layers * top * size


# --- Figure ---------------------------------------------------------------


def band(panel: Axes, found: list[Estimate], color: str, line: str) -> None:
    """Mean over the seeds against `SIZES`, and one deviation around it."""
    mean = np.array([e.mean for e in found])
    spread = np.array([e.spread for e in found])
    panel.plot(SIZES, mean, line, color=color, marker="o", ms=4)
    panel.fill_between(
        SIZES, mean - spread, mean + spread, color=color, alpha=0.2, lw=0
    )


def figure_steps() -> Figure:
    """Size of the log-ratios and share of flips against the step."""
    figure, (size, share) = new_figure(4.8, rows=2, sharex=True)
    dense = [numbers(z, 1, 1)["free"] for z in SIZES]
    moe = [numbers(z, 16, 2) for z in SIZES]
    wide = [numbers(z, *WIDE) for z in SIZES]
    two, eight = [m["jump"] for m in moe], [m["jump"] for m in wide]
    kept = [m["replayed"] for m in moe]
    band(size, two, "C1", "-")
    band(size, eight, "C2", "-.")
    band(size, kept, "C0", "-")
    band(size, dense, "C5", "--")
    above, below = (0, 12), (0, -20)
    label(size, 1e-3, two[0].mean, "flipped, top 2 of 16", "C1", xytext=above)
    label(
        size, 1e-3, eight[0].mean, "flipped, top 8 of 128", "C2", xytext=below
    )
    label(size, 1e-2, kept[2].mean, "routes replayed", "C0", xytext=(2, -18))
    label(size, 3e-3, dense[1].mean, "dense", "C5", xytext=(-24, 10))
    size.axhline(np.log(1.2), color="grey", alpha=0.6)
    label(size, 6e-2, np.log(1.2), "clip", ha="right", xytext=(0, 3))
    size.set(xscale="log", yscale="log", ylim=(7e-4, 2), xlim=(8e-4, 6e-2))
    size.set_ylabel("mean |log w|")
    size.set_title("Smaller steps: fewer jumps, not smaller ones", loc="left")
    band(share, [m["flips"] for m in moe], "C1", "-")
    band(share, [m["flips"] for m in wide], "C2", "-.")
    share.set(xlabel="relative size of the weight change", yscale="log")
    share.set_ylabel("tokens with a flip, %")
    return figure
