"""Are PPO and GRPO on-policy or off-policy?

Page: policy/on-policy-or-off-policy

Source: Sutton & Barto (behaviour and target policy); Schulman et al. 2017
    (several updates on one batch).
Notation: mu is the policy that sampled, pi the one that is trained, prox
    the trainer's policy at the first update of a batch; ratio pi / mu.
Units: ages in optimiser steps; KL in nats; errors relative to the length
    of the on-policy gradient.
"""

from collections.abc import Iterable
from functools import cache
from math import ceil

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from snippets.estimate import SEEDS, Estimate, each_over_seeds
from snippets.show import label, markdown_table, new_figure

Array = NDArray[np.float64]


# --8<-- [start:ages]
def ages(batch: int, mini: int, epochs: int = 1, lag: int = 0) -> list[int]:
    """Optimiser steps between sampling and use, at each update of a batch.

    Args:
        batch: Prompts (or responses) of a rollout batch.
        mini: The same unit in one optimiser step.
        epochs: Passes over the batch.
        lag: Whole batches that were trained on between the sampling of
            this batch and its first update: 0 synchronous, 1 one step off;
            a cap on staleness in versions bounds it.

    Returns:
        One age for each update; 0 means exactly on-policy, if sampler and
        trainer compute the same probabilities.
    """
    updates = epochs * ceil(batch / mini)
    return [lag * updates + k for k in range(updates)]


# --8<-- [end:ages]


# --8<-- [start:gradient]
def gradient(
    pi: Array, mu: Array, reward: Array, weight: Array | float
) -> Array:
    """Expected policy gradient in the logits, with samples from mu.

    The baseline is the mean reward of the samples, as a group's mean is.

    Args:
        pi: (S, K) probabilities of the trained policy in S contexts.
        mu: (S, K) probabilities of the sampler.
        reward: (S, K) expected reward of each token.
        weight: (S, K) weight of a sample, pi / mu or 1.

    Returns:
        (S, K) gradient of the expected reward; exact if mu is pi.
    """
    advantage = reward - (mu * reward).sum(1, keepdims=True)
    push = mu * weight * advantage
    return push - pi * push.sum(1, keepdims=True)


# --8<-- [end:gradient]


def softmax(logits: Array) -> Array:
    """Probabilities along the last axis."""
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def nucleus(p: Array, mass: float) -> Array:
    """Top-p sampling: the fewest likeliest tokens of that mass, renormed."""
    order = np.argsort(-p, axis=1)
    ranked = np.take_along_axis(p, order, 1)
    keep = np.cumsum(ranked, 1) - ranked < mass
    kept = np.zeros_like(p)
    np.put_along_axis(kept, order, np.where(keep, ranked, 0.0), 1)
    return kept / kept.sum(1, keepdims=True)


def error(g: Array, exact: Array) -> float:
    """Length of the difference, relative to the exact gradient."""
    return float(np.linalg.norm(g - exact) / np.linalg.norm(exact))


# --- What the logged ratio sees -------------------------------------------

CONTEXTS, TOKENS = 64, 8


@cache
def world(seed: int) -> tuple[Array, Array]:
    """Logits and rewards in [0, 1] of 64 contexts with 8 tokens."""
    rng = np.random.default_rng(seed)
    logits = 1.5 * rng.standard_normal((CONTEXTS, TOKENS))
    return logits, rng.random((CONTEXTS, TOKENS))


def after(logits: Array, reward: Array, updates: int) -> Array:
    """Logits after exact policy-gradient steps of size 1."""
    for _ in range(updates):
        p = softmax(logits)
        logits = logits + gradient(p, p, reward, 1.0)
    return logits


def leaks(seed: int) -> dict[str, tuple[Array, Array, Array, Array]]:
    """For each way to be off-policy: pi, prox, what is logged, what sampled.

    "Logged" is what the engine reports as the sampler's probability: "raw"
    is before temperature (vLLM's default), "scaled" after it. T = 0.6 in
    both: the trainer divides its logits by T too, so it trains that policy.
    """
    logits, reward = world(seed)
    pi = softmax(logits)
    later = softmax(after(logits, reward, 3))
    noise = np.random.default_rng([seed, 1]).standard_normal(logits.shape)
    engine = softmax(logits + 0.1 * noise)
    cool, top = softmax(logits / 0.6), nucleus(pi, 0.9)
    early = np.where(np.arange(TOKENS) < TOKENS // 2, 1.0, 0.5)
    selected = pi * early / (pi * early).sum(1, keepdims=True)
    return {
        "nothing": (pi, pi, pi, pi),
        "fourth mini-batch": (later, pi, pi, pi),
        "three updates stale": (later, later, pi, pi),
        "engine noise, sd 0.1": (pi, pi, engine, engine),
        "T = 0.6 in the engine only, raw": (pi, pi, pi, cool),
        "T = 0.6 in the engine only, scaled": (pi, pi, cool, cool),
        "T = 0.6 in both, scaled": (cool, cool, cool, cool),
        "T = 0.6 in both, raw": (cool, cool, pi, cool),
        "top-p 0.9 in the engine, renormalised": (pi, pi, top, top),
        "half the late tokens discarded": (pi, pi, pi, selected),
    }


def spread(pi: Array, other: Array, mu: Array) -> float:
    """Standard deviation of pi / other over samples from mu, all contexts."""
    ratio = pi / np.where(other > 0, other, 1.0)
    share = mu / mu.sum()
    mean = (share * ratio).sum()
    return float(np.sqrt((share * (ratio - mean) ** 2).sum()))


@cache
def instruments(seed: int) -> dict[str, tuple[float, float, float, float]]:
    """What each leak does, and what sees or mends it, in one world.

    Returns:
        Standard deviation of the ratio to the recomputed policy (what PPO
        logs) and of the ratio to the logged sampler; gradient error
        without a weight and with the weight pi / logged.
    """
    _, reward = world(seed)
    found = {}
    for name, (pi, prox, logged, mu) in leaks(seed).items():
        exact = gradient(pi, pi, reward, 1.0)
        weight = np.divide(
            pi, logged, out=np.zeros_like(pi), where=logged > 0
        )
        found[name] = (
            spread(pi, prox, mu),
            spread(pi, logged, mu),
            error(gradient(pi, mu, reward, 1.0), exact),
            error(gradient(pi, mu, reward, weight), exact),
        )
    return found


def over_worlds(seeds: Iterable[int] = SEEDS) -> dict[str, list[Estimate]]:
    """`instruments` over worlds: four estimates for each leak."""
    names = instruments(SEEDS[0])
    flat = each_over_seeds(
        lambda seed: [x for row in instruments(seed).values() for x in row],
        seeds,
    )
    return {name: flat[4 * i : 4 * i + 4] for i, name in enumerate(names)}


def shown(x: Estimate, percent: bool) -> str:
    """An estimate; plain 0 where every world gives 0 up to rounding."""
    if max(x.values) < 1e-9:
        return "0"
    if percent:
        return f"{Estimate(tuple(100 * v for v in x.values)):.0f} %"
    return f"{x:.2f}"


def table_leaks() -> str:
    """Ways to be off-policy, and which number shows them."""
    rows = [
        (name, *(shown(x, i > 1) for i, x in enumerate(found)))
        for name, found in over_worlds().items()
    ]
    heads = ["what differs", "sd of $\\pi/\\pi_{prox}$"]
    heads += ["sd of $\\pi/\\mu_{logged}$", "error, no weight"]
    return markdown_table(heads + ["error, $\\pi/\\mu_{logged}$"], rows)


# --- Updates of a batch ---------------------------------------------------

RECIPES = [
    ("one step a rollout (TRL's default)", 1, 1, 1, 0),
    ("verl's defaults, 1024 prompts / 256", 1024, 256, 1, 0),
    ("GSPO's experiments, 4 mini-batches", 4, 1, 1, 0),
    ("DAPO, 8,192 responses / 512", 8192, 512, 1, 0),
    ("DeepSeek-R1, 8,192 outputs / 512", 8192, 512, 1, 0),
    ("PPO on MuJoCo, 2048 / 64, 10 epochs", 2048, 64, 10, 0),
    ("verl's sizes, one step off", 1024, 256, 1, 1),
]
"""Recipe, batch, mini-batch, epochs, lag."""


def table_recipes() -> str:
    """Updates per rollout and the age of the samples at each."""
    rows = []
    for name, *sizes in RECIPES:
        old = ages(*sizes)
        fresh = sum(age == 0 for age in old) / len(old)
        rows.append(
            (
                name,
                len(old),
                f"{100 * fresh:.3g} %",
                f"{np.mean(old):g}",
                max(old),
            )
        )
    heads = ["recipe", "updates per rollout", "of them on-policy"]
    return markdown_table(heads + ["mean age", "oldest"], rows)


# --- Drift ----------------------------------------------------------------


@cache
def drift(updates: int, clip: float | None, seed: int) -> Array:
    """KL(mu || pi) before each update while one batch is reused.

    256 samples a context, rewards 0 or 1, step 4 on the logits; each update
    uses a quarter of the batch in turn.

    Returns:
        (updates + 1,) means over the contexts, in nats.
    """
    logits, rates = world(seed)
    rng = np.random.default_rng([seed, 2])
    mu = softmax(logits)
    u = rng.random((CONTEXTS, 256, 1))
    token = (u > np.cumsum(mu, 1)[:, None, :-1]).sum(2)
    success = np.take_along_axis(rates, token, 1)
    reward = (rng.random(token.shape) < success).astype(float)
    a = reward - reward.mean(1, keepdims=True)
    hot = np.eye(TOKENS)[token]
    kl = []
    for k in range(updates + 1):
        pi = softmax(logits)
        kl.append(float((mu * np.log(mu / pi)).sum(1).mean()))
        part = slice(64 * (k % 4), 64 * (k % 4) + 64)
        r = np.take_along_axis(pi / mu, token, 1)[:, part]
        c = r * a[:, part]
        if clip is not None:
            past = np.where(a[:, part] > 0, r > 1 + clip, r < 1 - clip)
            c = np.where(past, 0.0, c)
        score = hot[:, part] - pi[:, None]
        logits = logits + 4.0 * (c[..., None] * score).mean(1)
    return np.array(kl)


def figure_ages() -> Figure:
    """Age of the samples at each optimiser step, for three schedules."""
    figure, axes = new_figure(3.0)
    shown = (
        ("one step off", 4, 1, 1, "C1", "-"),
        ("4 mini-batches", 4, 1, 0, "C0", "-"),
        ("1 update a rollout", 1, 1, 0, "C2", "-"),
    )
    for name, batch, mini, lag, color, line in shown:
        old = ages(batch, mini, lag=lag)
        age = (old * 16)[:16]
        axes.plot(
            range(1, 17),
            age,
            line,
            color=color,
            marker="o",
            markersize=4,
        )
        at = {"one step off": 7.35, "4 mini-batches": 3.35}.get(name, -1.0)
        label(axes, 1, at, name, color, xytext=(0, 0))
    axes.set(
        xlabel="optimiser step",
        ylabel="age of samples, steps",
        ylim=(-1.4, 8.3),
        xticks=range(1, 17, 3),
    )
    axes.set_title("Synchronous: only each first update is at 0", loc="left")
    return figure


def figure_drift() -> Figure:
    """KL from the sampler against the update, with and without a clip."""
    figure, axes = new_figure(2.9)
    k = np.arange(1, 17)
    means = []
    for clip, color, line in ((None, "C1", "--"), (0.2, "C0", "-")):
        draws = np.array([drift(15, clip, seed) for seed in SEEDS])
        mean, sd = draws.mean(axis=0), draws.std(axis=0, ddof=1)
        axes.plot(k, mean, line, color=color, marker="o", ms=4)
        axes.fill_between(
            k, mean - sd, mean + sd, color=color, alpha=0.2, lw=0
        )
        means.append(mean)
    plain, clipped = means
    label(axes, 9, plain[8], "no clip", "C1", xytext=(-50, 4))
    label(axes, 12, clipped[11], "clip 0.2", "C0", xytext=(0, 6))
    axes.set(xlabel="update on the same rollout", xticks=range(1, 17, 3))
    axes.set_ylabel("KL(μ ‖ π), nats")
    axes.set_ylim(-0.1 * plain[-1], 1.15 * plain[-1])
    axes.set_title("On-policy once, then drifting", loc="left")
    return figure
