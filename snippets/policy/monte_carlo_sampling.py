"""Where do importance sampling, rejection sampling and the rest fit in RL?

Page: policy/monte-carlo-sampling

Source: textbook Monte Carlo; Beirami et al. 2024 (best-of-n).
Notation: q is the sampler, p the wanted distribution, w = p / q; n samples;
    s the success rate of a prompt.
Units: KL in nats; ESS as a share of n.
"""

from collections.abc import Iterable
from functools import cache
from itertools import combinations_with_replacement
from math import comb, exp, factorial, log

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from snippets.estimate import SEEDS, Estimate, each_over_seeds
from snippets.show import label, markdown_table, new_figure

Array = NDArray[np.float64]


# --- Estimators -----------------------------------------------------------


# --8<-- [start:estimators]
def importance(w: Array, f: Array) -> Array:
    """Mean of w f over the last axis: unbiased for E_p[f].

    Args:
        w: (..., n) weights p / q of samples from q.
        f: (..., n) values of the same samples.
    """
    return (w * f).mean(-1)


def self_normalised(w: Array, f: Array) -> Array:
    """Weighted mean: biased of order 1/n; exact for constant f.

    Not defined (0 / 0) if every weight of the sample is 0.
    """
    return (w * f).sum(-1) / w.sum(-1)


def truncated(w: Array, f: Array, cap: float) -> Array:
    """Weights above the cap count as the cap: biased towards q."""
    return importance(np.minimum(w, cap), f)


def masked(w: Array, f: Array, low: float, high: float) -> Array:
    """Samples with a weight outside [low, high] count 0, divisor still n."""
    return importance(np.where((w >= low) & (w <= high), w, 0.0), f)


def effective_share(w: Array) -> Array:
    """(sum w)^2 / (n sum w^2), between 1/n and 1, last axis."""
    return w.sum(-1) ** 2 / (w.shape[-1] * (w**2).sum(-1))


# --8<-- [end:estimators]

Q = np.array([0.70, 0.25, 0.05])
P = np.array([0.40, 0.35, 0.25])
F = np.array([0.0, 0.5, 1.0])
BASELINE = 0.5


@cache
def all_samples(n: int) -> tuple[Array, Array]:
    """Every sample of n up to order: (k, n) indices and probabilities."""
    drawn = np.array(list(combinations_with_replacement(range(3), n)))
    orders = [
        factorial(n) // np.prod([factorial(c) for c in counts])
        for counts in (
            np.bincount(row, minlength=3).tolist() for row in drawn
        )
    ]
    return drawn, Q[drawn].prod(1) * np.array(orders, dtype=float)


def moments(
    n: int, estimate: Array, extra: Array | float = 0.0
) -> tuple[float, ...]:
    """Bias, standard deviation and root mean square error, exact.

    Args:
        n: Samples from q.
        estimate: (k,) estimate (its mean, if it draws again) for each
            possible set of samples.
        extra: Variance that drawing again adds, for each set.
    """
    _, chance = all_samples(n)
    mean = float(chance @ estimate)
    variance = float(chance @ (estimate**2 + extra)) - mean**2
    bias = mean - float(P @ F)
    return bias, variance**0.5, (bias**2 + variance) ** 0.5


def resampled_variance(w: Array, f: Array) -> Array:
    """Variance that drawing n anew with chances w / sum w adds."""
    mean = self_normalised(w, f)
    return (self_normalised(w, f**2) - mean**2) / f.shape[-1]


def comparison(n: int) -> dict[str, tuple[float, ...]]:
    """Bias, sd and error of the estimators of E_p[F] from n samples of q."""
    drawn, _ = all_samples(n)
    w, f = (P / Q)[drawn], F[drawn]
    normed = self_normalised(w, f)
    found = {
        "no weight": (f.mean(1),),
        "importance": (importance(w, f),),
        "importance, baseline 0.5": (importance(w, f - BASELINE) + BASELINE,),
        "self-normalised": (normed,),
        "resampled": (normed, resampled_variance(w, f)),
        "truncated at 2": (truncated(w, f, 2.0),),
        "masked outside [0.5, 2]": (masked(w, f, 0.5, 2.0),),
    }
    return {name: moments(n, *x) for name, x in found.items()}


def table_estimators() -> str:
    """Bias and sd of each estimator from 8 samples, error from 8 and 64."""
    many = comparison(64)
    rows = [
        (
            name,
            f"{round(found[0], 6) + 0.0:.3f}".replace("-", "−"),
            *(f"{x:.3f}" for x in (*found[1:], many[name][2])),
        )
        for name, found in comparison(8).items()
    ]
    heads = ["estimator", "bias", "sd", "rms error", "rms, $n=64$"]
    return markdown_table(heads, rows, "lrrrr")


# --- Length ---------------------------------------------------------------


def true_share(tokens: Array, sigma: float) -> Array:
    """ESS share of whole answers, token log-ratios N(-s^2/2, s^2)."""
    return np.exp(-tokens * sigma**2)


def seen_share(
    tokens: Array, sigma: float, rng: np.random.Generator, n: int = 512
) -> Array:
    """ESS share that a batch of n answers reports: median of 60 batches."""
    z = rng.standard_normal((60, n))
    shares = []
    for t in tokens:
        scale = sigma * t**0.5
        w = np.exp(scale * z - scale**2 / 2)
        shares.append(np.median(effective_share(w)))
    return np.array(shares)


def seen_shares(
    tokens: Array, sigma: float, seeds: Iterable[int] = SEEDS
) -> list[Estimate]:
    """`seen_share` for each length, over seeds."""
    return each_over_seeds(
        lambda seed: seen_share(tokens, sigma, np.random.default_rng(seed)),
        seeds,
    )


# --- Rejection ------------------------------------------------------------


# --8<-- [start:pulls]
def prompt_pulls(s: float, n: int) -> dict[str, float]:
    """What multiplies the gradient of a prompt's success rate, expected.

    Rewards 0 or 1, n samples of the current policy, one on-policy step.

    Args:
        s: Success rate of the prompt, in (0, 1].
        n: Samples of the prompt.
    """
    return {
        "REINFORCE, any constant baseline": 1.0,
        "mean over the accepted": (1 - (1 - s) ** n) / s,
        "best of n, failures kept": (1 - (1 - s) ** (n - 1)) / s,
        "log of the success rate": 1 / s,
    }


def gradient_variance(s: float, baseline: float) -> float:
    """Variance of (reward - baseline) * score for one of two answers.

    Args:
        s: Probability of the right answer; its logit is the parameter, so
            the score is 1 - s for the right answer and -s for the wrong.
        baseline: 0: only right answers push.
    """
    right, wrong = (1 - baseline) * (1 - s), baseline * s
    return s * (1 - s) * (right - wrong) ** 2


# --8<-- [end:pulls]


# --8<-- [start:rejection]
def acceptance(s: float, beta: float) -> tuple[float, float]:
    """Exact sampling of pi* ~ pi_ref exp(r / beta) by rejection, r 0 or 1.

    A proposal from pi_ref is kept with chance exp((r - 1) / beta): 1 is the
    largest reward and has to be known.

    Args:
        s: Success rate of pi_ref on the prompt.
        beta: KL coefficient.

    Returns:
        Share of the proposals that is kept, and the success rate of pi*.
    """
    kept = s + (1 - s) * exp(-1 / beta)
    return kept, s / kept


def best_of_kl(s: float, n: int) -> tuple[float, float]:
    """KL(best-of-n || policy) in nats for 0/1 rewards, and the formula.

    Returns:
        The exact value, and log n - (n - 1) / n, which bounds it.
    """
    best = 1 - (1 - s) ** n
    kl = best * log(best / s)
    if best < 1:
        kl += (1 - best) * log((1 - best) / (1 - s))
    return kl, log(n) - (n - 1) / n


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate of pass@k from c successes in n samples, k <= n."""
    return 1 - comb(n - c, k) / comb(n, k)


# --8<-- [end:rejection]


def table_variance() -> str:
    """Positives only, or a baseline of s: variance of the gradient."""
    rows = [
        (
            f"{s:g}",
            f"{s * (1 - s):.3f}",
            f"{gradient_variance(s, 0.0):.4f}",
            f"{gradient_variance(s, s):.4f}",
        )
        for s in (0.05, 0.2, 0.5, 2 / 3, 0.9)
    ]
    rows[3] = ("2/3", *rows[3][1:])
    heads = ["success rate $s$", "mean (both)", "right answers only"]
    return markdown_table(heads + ["baseline $s$"], rows, "rrrr")


def table_rejection() -> str:
    """Rejection sampling of the KL-regularised optimum, success rate 0.2."""
    rows = []
    for beta in (1.0, 0.5, 0.1):
        kept, success = acceptance(0.2, beta)
        rows.append(
            (
                f"{beta:g}",
                f"{kept:.3f}",
                f"{1 / kept:.2f}",
                f"{success:.4f}",
            )
        )
    heads = ["$\\beta$", "accepted", "draws per accepted", "success rate"]
    return markdown_table(heads, rows, "rrrr")


def table_best_of() -> str:
    """KL of best-of-n from the policy, success rates 0.2 and 0.5."""
    rows = []
    for n in (2, 4, 8, 16, 64, 256):
        exact = [best_of_kl(s, n)[0] for s in (0.2, 0.5)]
        bound = best_of_kl(0.2, n)[1]
        rows.append(
            (
                n,
                f"{1 - 0.8**n:.3f}",
                *(f"{x:.3f}" for x in (*exact, bound)),
            )
        )
    heads = ["$n$", "success, $s=0.2$", "KL, $s=0.2$", "KL, $s=0.5$"]
    return markdown_table(heads + ["formula"], rows, "rrrrr")


def table_pass() -> str:
    """pass@k from 3 successes in 16 samples, and the plug-in."""
    rows = [
        (k, f"{pass_at_k(16, 3, k):.4f}", f"{1 - (13 / 16) ** k:.4f}")
        for k in (1, 4, 8)
    ]
    heads = ["$k$", "unbiased", "$1-(1-c/n)^k$"]
    return markdown_table(heads, rows, "rrr")


# --- Figures --------------------------------------------------------------

LENGTHS = np.geomspace(10, 10_000, 13)


def figure_share() -> Figure:
    """ESS share against length: true, and as a batch of 512 reports it."""
    figure, axes = new_figure(3.2)
    for sigma, color in ((0.03, "C0"), (0.1, "C1")):
        axes.plot(LENGTHS, true_share(LENGTHS, sigma), "-", color=color)
        seen = seen_shares(LENGTHS, sigma)
        mean = np.array([x.mean for x in seen])
        spread = np.array([x.spread for x in seen])
        axes.plot(LENGTHS, mean, "o", color=color, ms=4)
        low, high = mean - spread, mean + spread
        axes.fill_between(LENGTHS, low, high, color=color, alpha=0.2, lw=0)
    axes.axhline(1 / 512, color="grey", alpha=0.6)
    label(axes, 10, 1 / 512, "1/512: one answer", xytext=(0, 4))
    label(axes, 55, 0.35, "σ = 0.1", "C1", xytext=(-28, -14))
    label(axes, 1400, 0.42, "σ = 0.03", "C0", xytext=(6, 2))
    axes.set(xscale="log", yscale="log", ylim=(3e-5, 1.6))
    axes.set(
        xlabel="tokens in an answer", ylabel="effective share of samples"
    )
    axes.set_xticks([10, 100, 1000, 10_000], ["10", "100", "1,000", "10,000"])
    axes.set_title("Dots: a batch of 512 cannot see the collapse", loc="left")
    return figure


def figure_pulls() -> Figure:
    """What multiplies the gradient of s, for 8 samples, against s."""
    figure, axes = new_figure(3.0)
    rates = np.linspace(0.01, 0.99, 99)
    pulls = [prompt_pulls(s, 8) for s in rates]
    names = list(pulls[0])
    for name, color, line in zip(
        names, ("C5", "C0", "C1", "C2"), ("--", "-", "-", ":"), strict=True
    ):
        axes.plot(rates, [p[name] for p in pulls], line, color=color)
    label(axes, 0.02, 1.0, "REINFORCE", "C5", xytext=(0, 4))
    label(axes, 0.2, 6.2, "mean over accepted", "C0", xytext=(0, 0))
    axes.annotate(
        "", (0.1, 5.75), (0.195, 6.3), arrowprops={"arrowstyle": "-"}
    )
    label(axes, 0.02, 2.3, "best of 8,\nMaxRL", "C1", xytext=(0, 0))
    label(axes, 0.13, 9.2, "1/s: log-likelihood", "C2", xytext=(2, 0))
    axes.set(xlabel="success rate s of a prompt", ylim=(0, 10.5))
    axes.set_ylabel("weight on ∇s")
    axes.set_title(
        "A mean over kept answers favours hard prompts", loc="left"
    )
    return figure
