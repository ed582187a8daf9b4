"""Why does RL training introduce an importance ratio, and what is it for?

Page:      docs/policy/importance-ratio.md
Source:    Schulman et al. (2017), https://arxiv.org/abs/1707.06347, Eq. 6
           (token ratio); Zheng et al. (2025), "Group Sequence Policy
           Optimization", https://arxiv.org/abs/2507.18071 (geometric
           mean); Hilton et al. (2021), "Batch size-invariance for policy
           optimization", https://arxiv.org/abs/2110.00641 (decoupled
           objective).
Notation:  mu is the policy that sampled (behaviour), prox the trainer's
           policy before the first update of this batch, pi the policy being
           trained. A ratio has mu or prox in the denominator, never the
           reference model. Objectives are maximised.
Units:     log-probabilities and KL in nats; chi2 = E_mu[ratio^2] - 1 of one
           token; errors relative to the length of the true gradient.
"""

from functools import cache, partial
from itertools import product
from math import lgamma
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from snippets.estimate import SEEDS, Estimate, each_over_seeds
from snippets.show import label, markdown_table, new_figure

Array = np.ndarray


# --8<-- [start:ratios]
def ratios(log_pi: Array, log_mu: Array, mask: Array) -> dict[str, Array]:
    """The weights in use, new over sampling policy, for every token.

    Args:
        log_pi: log pi of the sampled tokens, shape (..., T).
        log_mu: log mu of the same tokens, from the policy that sampled.
        mask: 1 where the model wrote the token, 0 for prompt, padding and
            tool output, shape (..., T); at least one 1 in each row.

    Returns:
        Arrays of shape (..., T), by name. Masked places have token ratio 1.
    """
    log_r = np.where(mask, log_pi - log_mu, 0.0)
    total = log_r.sum(-1, keepdims=True)
    written = mask.sum(-1, keepdims=True)
    same = np.zeros_like(log_r)
    return {
        "none": np.exp(same),
        "token": np.exp(log_r),
        "geometric": np.exp(total / written + same),
        "prefix": np.exp(log_r.cumsum(-1)),
        "product": np.exp(total + same),
    }


# --8<-- [end:ratios]


# --8<-- [start:decoupled]
def decoupled(
    log_pi: Array,
    log_prox: Array,
    log_mu: Array,
    advantages: Array,
    clip: float = 0.2,
) -> tuple[Array, Array]:
    """(prox / mu) min(u A, clip(u) A) with u = pi / prox, per token.

    With prox = mu it is PPO's objective.

    Args:
        log_pi: Under the policy being trained, any shape.
        log_prox: Under the policy the clip is centred on, no gradient.
        log_mu: Under the policy that sampled, no gradient.
        advantages: Same shape.
        clip: The band is [1 - clip, 1 + clip], for u.

    Returns:
        The objective, and what multiplies A * grad log pi: 0 where clipped.
    """
    weight = np.exp(log_prox - log_mu)
    u = np.exp(log_pi - log_prox)
    inner = u * advantages
    outer = np.clip(u, 1 - clip, 1 + clip) * advantages
    objective = weight * np.minimum(inner, outer)
    return objective, weight * np.where(inner <= outer, u, 0.0)


# --8<-- [end:decoupled]


# --8<-- [start:gates]
def truncated(ratio: Array, cap: float) -> Array:
    """TIS: a token above the cap keeps the weight cap."""
    return np.minimum(ratio, cap)


def masked(ratio: Array, low: float, high: float) -> Array:
    """IcePop: a token outside [low, high] gets weight 0."""
    return np.where((ratio >= low) & (ratio <= high), ratio, 0.0)


# --8<-- [end:gates]


# --- A policy small enough to sum over all its answers ---------------------


class World(NamedTuple):
    """P prompts, all answers of T tokens over V symbols, a linear policy."""

    features: Array
    """Of each prompt and prefix, shape (P, C, D)."""
    weights: Array
    """Initial parameters, shape (D, V)."""
    rewards: Array
    """0 or 1 for each prompt and answer, shape (P, N), N = V^T."""
    answers: Array
    """Symbols, shape (N, T)."""
    prefixes: Array
    """Which of the C prefixes each token follows, shape (N, T)."""


def world(
    rng: np.random.Generator,
    length: int = 5,
    vocab: int = 3,
    prompts: int = 16,
    width: int = 12,
) -> World:
    """Random features and parameters; 30 % of the answers are right."""
    answers = np.array(list(product(range(vocab), repeat=length)))
    prefixes = np.zeros_like(answers)
    for t in range(1, length):
        # children of prefix c are V c + 1 ... V c + V
        prefixes[:, t] = vocab * prefixes[:, t - 1] + 1 + answers[:, t - 1]
    features = rng.normal(size=(prompts, prefixes.max() + 1, width))
    weights = 0.3 * rng.normal(size=(width, vocab))
    rewards = (rng.random((prompts, len(answers))) < 0.3).astype(float)
    return World(features, weights, rewards, answers, prefixes)


def pick(w: World, prompts: Array) -> World:
    """The same world with these prompts only."""
    return w._replace(
        features=w.features[prompts], rewards=w.rewards[prompts]
    )


def log_policy(w: World, weights: Array) -> Array:
    """Log-probabilities after each prefix, shape (P, C, V)."""
    z = w.features @ weights
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def of_answers(w: World, table: Array) -> Array:
    """Log-probabilities of all answers' tokens, shape (P, N, T)."""
    return table[:, w.prefixes, w.answers]


# --8<-- [start:gradient]
def gradient(w: World, pi: Array, sampler: Array, weight: Array) -> Array:
    """E over answers from `sampler` of sum_t weight_t A grad log pi_t.

    A is the reward minus its mean under the sampler, one for the whole
    answer, as in GRPO without the standard deviation. All answers are
    summed: there is no sampling noise.

    Args:
        w: The world.
        pi: Log-probabilities that are differentiated, shape (P, C, V).
        sampler: Log-probabilities of all answers' tokens under the policy
            that sampled, shape (P, N, T).
        weight: Of each token, shape (P, N, T).

    Returns:
        Gradient with respect to the parameters, shape (D, V).
    """
    q = np.exp(sampler.sum(-1))
    advantage = w.rewards - (q * w.rewards).sum(1, keepdims=True)
    coefficient = (q * advantage)[..., None] * weight
    push = np.zeros_like(pi)  # on the logits after each prefix
    for p, of_prompt in enumerate(coefficient):
        np.add.at(push[p], (w.prefixes, w.answers), of_prompt)
    push -= push.sum(-1, keepdims=True) * np.exp(pi)
    return np.einsum("pcd,pcv->dv", w.features, push) / len(pi)


# --8<-- [end:gradient]

MINI_BATCHES = 4
"""Updates that one version of the weights is apart from the next."""


def mini_batch(w: World, update: int) -> World:
    """The prompts of this update; every fourth update has the same."""
    first = update % MINI_BATCHES
    return pick(w, np.arange(first, len(w.rewards), MINI_BATCHES))


def true_gradient(w: World, weights: Array) -> Array:
    """Of the mean reward, with fresh samples, shape (D, V)."""
    table = log_policy(w, weights)
    tokens = of_answers(w, table)
    return gradient(w, table, tokens, np.ones_like(tokens))


def path(w: World, updates: int, step: float = 0.2) -> list[Array]:
    """Parameters after 0 to `updates` exact mini-batch updates."""
    steps = [w.weights]
    for j in range(updates):
        push = true_gradient(mini_batch(w, j), steps[-1])
        steps.append(steps[-1] + step * push)
    return steps


def errors(w: World, mu: Array, prox: Array, now: Array) -> dict[str, float]:
    """Relative error of the mean gradient for each weight, and chi2.

    Args:
        w: The world, with the prompts of the mini-batch.
        mu: Log-probabilities that sampled, shape (P, C, V).
        prox: Log-probabilities the trainer recomputed, same shape.
        now: Parameters being trained, shape (D, V).

    Returns:
        |g - g_true| / |g_true| by weight; "recomputed" is pi / prox of a
        token, the others have mu below. "chi2": mean over tokens from mu.
    """
    pi = log_policy(w, now)
    tokens, old = of_answers(w, pi), of_answers(w, mu)
    weights = ratios(tokens, old, np.ones(tokens.shape))
    weights["recomputed"] = np.exp(tokens - of_answers(w, prox))
    truth = true_gradient(w, now)
    found = {
        name: float(
            np.linalg.norm(gradient(w, pi, old, weight) - truth)
            / np.linalg.norm(truth)
        )
        for name, weight in weights.items()
    }
    q = np.exp(old.sum(-1))[..., None]
    second = (q * weights["token"] ** 2).sum(1).mean()
    return found | {"chi2": float(second - 1)}


@cache
def trained(seed: int) -> tuple[World, tuple[Array, ...]]:
    """A world and 36 updates of it."""
    w = world(np.random.default_rng(seed))
    return w, tuple(path(w, 36))


START = 20
"""Updates done when the trainer starts on the batch of `table_drift`."""


def drift(
    seed: int, stale: int, done: int, engine: float = 0.0
) -> dict[str, float]:
    """Errors for a batch sampled `stale` versions before, `done` updates in.

    Args:
        seed: Of the world.
        stale: Versions (of 4 updates) between sampler and trainer.
        done: Updates made on this batch before the one measured.
        engine: Standard deviation of the engine's error in the logits.
    """
    w, steps = trained(seed)
    w = mini_batch(w, START + done)
    mu = log_policy(w, steps[START - MINI_BATCHES * stale])
    if engine:
        noise = np.random.default_rng([seed, 1]).normal(size=mu.shape)
        z = mu + engine * noise
        mu = z - np.log(np.exp(z).sum(-1, keepdims=True))
    prox = log_policy(w, steps[START])
    return errors(w, mu, prox, steps[START + done])


CASES = [
    ("first update, fresh samples", (0, 0)),
    ("second update", (0, 1)),
    ("fourth update", (0, 3)),
    ("16th update (4 passes)", (0, 15)),
    ("first update, 1 version stale", (1, 0)),
    ("first update, 4 versions stale", (4, 0)),
    ("fourth update, 4 versions stale", (4, 3)),
    ("first update, engine logits ± 0.1", (0, 0, 0.1)),
]


def table_drift() -> str:
    """Error of the expected gradient by weight, as k and s grow."""
    names = "none", "recomputed", "token", "geometric", "product"

    def measure(seed: int, case: tuple) -> list[float]:
        found = drift(seed, *case)
        spread = max(found["chi2"], 0.0) ** 0.5
        return [spread, *(found[name] for name in names)]

    rows = []
    for text, case in CASES:
        cells = each_over_seeds(partial(measure, case=case))
        rows.append([text, *(exact_or(cell) for cell in cells)])
    heads = [
        "update measured",
        "sd of $r_t$",
        "no ratio",
        "token, $\\pi_\\theta/\\pi_{prox}$",
        "token, $\\pi_\\theta/\\mu$",
        "geometric, $\\pi_\\theta/\\mu$",
        "product, $\\pi_\\theta/\\mu$",
    ]
    return markdown_table(heads, rows)


def by_length(length: int, seed: int) -> dict[str, float]:
    """Errors 4 updates after sampling, for 32 prompts of `world`."""
    w = world(np.random.default_rng(seed), length, prompts=32)
    steps = path(w, 4)
    w = mini_batch(w, 4)
    mu = log_policy(w, steps[0])
    return errors(w, mu, mu, steps[4])


def reward_rules(w: World, rng: np.random.Generator) -> dict[str, Array]:
    """What could be rewarded, by name, each of shape (P, N)."""
    prompts, length = len(w.rewards), w.answers.shape[1]
    wanted = rng.integers(3, size=(prompts, 1))
    scores = rng.normal(size=(prompts, length, 3))
    positions = np.arange(length)
    return {
        "a random 30 % of the answers (as above)": w.rewards,
        "sum of a random score for each token": scores[
            :, positions, w.answers
        ].sum(-1),
        "last token only": (w.answers[:, -1] == wanted).astype(float),
        "first token only": (w.answers[:, 0] == wanted).astype(float),
    }


def by_reward(seed: int) -> dict[str, tuple[float, float]]:
    """Share of the error without a ratio that two weights remove.

    Returns:
        For each reward what the token ratio and the geometric mean remove
        in this seed's world, four updates after sampling; negative if the
        error grew.
    """
    found = {}
    rng = np.random.default_rng(seed)
    plain = world(rng)
    for name, rewards in reward_rules(plain, rng).items():
        w = plain._replace(rewards=rewards)
        steps = path(w, 4)
        w = mini_batch(w, 4)
        mu = log_policy(w, steps[0])
        row = errors(w, mu, mu, steps[4])
        token, geometric = (
            1 - row[weight] / row["none"] for weight in ("token", "geometric")
        )
        found[name] = token, geometric
    return found


def table_rewards() -> str:
    """What the two usual weights repair depends on what is rewarded."""
    by_seed = [by_reward(seed) for seed in SEEDS]
    rows = []
    for name in by_seed[0]:
        shares = zip(*(found[name] for found in by_seed), strict=True)
        cells = [
            f"{Estimate(tuple(100 * x for x in share)):.0f} %"
            for share in shares
        ]
        rows.append([name, *cells])
    heads = ["what is rewarded", "token ratio removes", "geometric removes"]
    return markdown_table(heads, rows)


def table_lengths() -> str:
    """What the token and geometric weights repair, by answer length."""
    names = "none", "token", "geometric", "prefix", "product"

    def measure(seed: int, length: int) -> list[float]:
        found = by_length(length, seed)
        return [found[name] for name in names]

    rows = []
    for length in range(1, 7):
        cells = each_over_seeds(partial(measure, length=length))
        rows.append([length, *(exact_or(cell) for cell in cells)])
    heads = [
        "tokens $T$",
        "no ratio",
        "token",
        "geometric",
        "prefix",
        "product",
    ]
    return markdown_table(heads, rows)


def exact_or(cell: Estimate) -> str:
    """Mean and spread, or 0 where every seed has 0 up to rounding."""
    return "0" if max(map(abs, cell.values)) < 1e-6 else f"{cell:.3f}"


def figure_drift() -> Figure:
    """Error of the expected gradient against updates since sampling."""
    shown = range(0, 33, 4)
    runs: dict[str, list[list[float]]] = {"none": [], "token": []}
    runs["product"] = []
    for k in shown:
        found = []
        for seed in SEEDS:
            whole, steps = trained(seed)
            w = mini_batch(whole, k)
            mu = log_policy(w, steps[0])
            found.append(errors(w, mu, mu, steps[k]))
        for name, at in runs.items():
            at.append([100 * f[name] for f in found])
    figure, axes = new_figure(2.9)
    series = [
        ("none", "no ratio"),
        ("token", "token"),
        ("product", "product"),
    ]
    for color, (name, text), at, shift in zip(
        ("C1", "C0", "C2"),
        series,
        (-1, -1, -1),
        (3, -3, 0),
        strict=True,
    ):
        of_seed = np.array(runs[name])  # (updates, seeds)
        y, spread = of_seed.mean(1), of_seed.std(1, ddof=1)
        axes.plot(list(shown), y, color=color)
        band = y - spread, y + spread
        axes.fill_between(list(shown), *band, color=color, alpha=0.2, lw=0)
        beside = {"xytext": (5, shift), "va": "center"}
        label(axes, shown[at], y[at], text, color, **beside)
    axes.set(xlabel="updates since the samples were drawn", ylim=(-3, None))
    axes.set(xlim=(-1.5, 41), xticks=shown[::2])
    axes.set_ylabel("error of the mean gradient, %")
    axes.set_title("Only the full product stays exact", loc="left")
    return figure


# --- Long answers ----------------------------------------------------------


# --8<-- [start:moments]
def moments(mu: Array, pi: Array, length: int) -> dict[str, float]:
    """Exact mean and variance of the weights of T independent tokens.

    Args:
        mu: Probabilities that sample each token, shape (V,), positive.
        pi: Probabilities of the trained policy, shape (V,).
        length: T.
    """
    r = pi / mu
    root = r ** (1 / length)
    second = (mu * r**2).sum()  # 1 + chi2(pi || mu)
    geometric = (mu * root).sum() ** length
    return {
        "token variance": second - 1,
        "product variance": second**length - 1,  # its mean is 1
        "geometric mean": geometric,
        "geometric variance": (mu * root**2).sum() ** length - geometric**2,
    }


# --8<-- [end:moments]

MU = np.array([0.5, 0.5])
PI = np.array([0.5158, 0.4842])
"""One token before and after: chi2 = 0.0010, KL about 0.0005 nats."""


def capped(length: int, cap: float = 3.0) -> dict[str, float]:
    """The product of T independent tokens from MU, gated at `cap`.

    The product depends only on how often token 0 came: a binomial sum.

    Returns:
        "median" of the product; "masked": share of answers above the cap;
        "mask": mean weight when those get 0; "truncate": when they get cap.
    """
    n = np.arange(length + 1)
    choose = np.array(
        [
            lgamma(length + 1) - lgamma(k + 1) - lgamma(length - k + 1)
            for k in n
        ]
    )
    p = np.exp(choose + length * np.log(0.5))
    log_w = n * np.log(PI[0] / MU[0]) + (length - n) * np.log(PI[1] / MU[1])
    over = log_w > np.log(cap)
    kept = np.exp(np.where(over, 0.0, log_w))
    return {
        "median": float(np.exp(log_w[np.searchsorted(p.cumsum(), 0.5)])),
        "masked": float(p[over].sum()),
        "mask": float((p * kept)[~over].sum()),
        "truncate": float((p * np.where(over, cap, kept)).sum()),
    }


def table_growth() -> str:
    """Product, its gates and geometric mean for 1 to 10,000 tokens."""
    rows = []
    for length in (1, 10, 100, 1000, 3000, 10_000):
        m, c = moments(MU, PI, length), capped(length)
        variance = m["product variance"]
        spread = m["geometric variance"] ** 0.5
        rows.append(
            [
                f"{length:,}",
                f"{variance**0.5:,.3g}",
                f"{1 / (1 + variance):.2g}".replace("-", "−"),
                f"{c['median']:.2g}",
                f"{c['mask']:.2f} ({100 * c['masked']:.1f} %)",
                f"{c['truncate']:.2f}",
                f"{m['geometric mean']:.4f} ± {spread:.4f}",
            ]
        )
    heads = [
        "tokens",
        "sd of product",
        "ESS / N",
        "median",
        "masked above 3: mean (masked)",
        "truncated at 3: mean",
        "geometric mean ± sd",
    ]
    return markdown_table(heads, rows)


def figure_growth() -> Figure:
    """Variance of the three weights against length, per-token chi2 0.001."""
    lengths = np.unique(np.logspace(0, 4, 60).astype(int))
    found = [moments(MU, PI, int(t)) for t in lengths]
    figure, axes = new_figure(3.0)
    lines = [
        ("product variance", "C1", "product", -8, (0, 8)),
        ("token variance", "C0", "token", -4, (0, 5)),
        ("geometric variance", "C2", "geometric mean", -22, (0, -16)),
    ]
    for name, color, text, at, shift in lines:
        y = [f[name] for f in found]
        axes.loglog(lengths, y, color=color)
        label(axes, lengths[at], y[at], text, color, xytext=shift, ha="right")
    axes.axhline(1.0, color="0.5", alpha=0.6, linewidth=0.8)
    label(axes, 1, 1.0, "1: half the samples' worth")
    axes.set(xlabel="tokens in the answer", ylabel="variance of the weight")
    axes.set(ylim=(3e-9, 1e6))
    axes.set_title("Only the product grows with length", loc="left")
    return figure


# --- Small examples --------------------------------------------------------


def table_expectations() -> str:
    """Three tokens from (0.6, 0.4), wanted under (0.8, 0.2)."""
    mu, pi = np.array([0.6, 0.4]), np.array([0.8, 0.2])
    answers = np.array(list(product(range(2), repeat=3)))
    log_mu, log_pi = np.log(mu)[answers], np.log(pi)[answers]
    p = np.exp(log_mu.sum(-1))
    hit = (answers == 0).all(-1)
    weights = ratios(log_pi, log_mu, np.ones(answers.shape))
    texts = {
        "none": "none",
        "token": "mean of the token ratios",
        "geometric": "geometric mean",
        "product": "product",
    }
    rows = []
    for name, text in texts.items():
        weight = weights[name].mean(-1)
        mean = (p * weight).sum()
        deviation = (p * (weight - mean) ** 2).sum() ** 0.5
        estimate = (p * weight * hit).sum()
        numbers = mean, deviation, estimate, estimate - 0.8**3
        cells = [f"{x:.3f}".replace("-", "−") for x in numbers]
        rows.append([text, *cells])
    heads = [
        "weight of an answer",
        "$\\mathbb E_\\mu[w]$",
        "sd of $w$",
        "estimate of $P(000)$",
        "bias",
    ]
    return markdown_table(heads, rows)


def table_policies() -> str:
    """Token with mu = 0.2, prox = 0.3, pi = 0.33, A = 1, clip 0.2."""
    mu, prox, pi = (np.log(np.array(p)) for p in (0.2, 0.3, 0.33))
    one = np.ones(())
    rows = []
    for text, anchor, below in (
        ("bypass: old = $\\mu$", mu, mu),
        ("recomputed, uncorrected: old = $\\pi_{prox}$", prox, prox),
        ("decoupled: clip on $\\pi_{prox}$, weight on $\\mu$", prox, mu),
    ):
        objective, c = decoupled(pi, anchor, below, one)
        u, weight = np.exp(pi - anchor), np.exp(anchor - below)
        rows.append([text, *(f"{x:.2f}" for x in (u, weight, objective, c))])
    heads = [
        "loss",
        "ratio the clip sees",
        "outer weight",
        "objective",
        "coefficient of $A\\nabla\\log\\pi_\\theta$",
    ]
    return markdown_table(heads, rows)


def table_gates() -> str:
    """A sampler (0.9, 0.09, 0.01), wanted under (0.6, 0.3, 0.1)."""
    mu, pi = np.array([0.9, 0.09, 0.01]), np.array([0.6, 0.3, 0.1])
    r = pi / mu
    rows = []
    for text, weight in (
        ("no correction", np.ones(3)),
        ("exact ratio", r),
        ("truncated at 2 (TIS)", truncated(r, 2.0)),
        ("masked outside [0.5, 5] (IcePop)", masked(r, 0.5, 5.0)),
    ):
        mean = (mu * weight).sum()
        deviation = (mu * (weight - mean) ** 2).sum() ** 0.5
        counted = ", ".join(f"{x:.2f}" for x in mu * weight)
        cells = [f"{x:.2f}" for x in (*weight, mean, deviation)]
        rows.append([text, *cells, counted])
    heads = ["weight", "a", "b", "c", "mean", "sd", "a, b, c count as"]
    return markdown_table(heads, rows)
