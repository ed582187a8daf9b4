"""What is staleness, where does it come from, and how much is too much?

Page: rollouts/staleness

Source: Fu et al. 2025 (AReaL), Eq. 3: admission rule; own simulation on the
    core of rollouts/rollout-long-tail.
Notation: eta is the bound of the admission rule; lag = version that trains
    minus version that wrote; a version is one weight publication.
Units: lags in versions; time in decode steps; lengths in tokens.
"""

import math
from collections.abc import Iterable
from functools import cache

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from snippets.estimate import SEEDS, Estimate, over_seeds
from snippets.policy.on_policy_or_off_policy import (
    error,
    gradient,
    softmax,
    world,
)
from snippets.rollouts.rollout_long_tail import (
    Run,
    Setup,
    asynchronous,
    prompts,
    shown,
)
from snippets.rollouts.simulator import Request
from snippets.show import label, markdown_table, new_figure

Array = NDArray[np.float64]


# --8<-- [start:lags]
def lags(request: Request, version: int) -> dict[str, float]:
    """The same response, four ages, in versions.

    Args:
        request: A finished response with its spans (version, tokens).
        version: Version that trains on it.

    Returns:
        "first" and "last": age of the first and of the last token; "mean"
        over the tokens; "fresh": share of tokens of age 0.
    """
    ages = [(version - v, n) for v, n in request.spans]
    total = sum(n for _, n in ages)
    return {
        "first": ages[0][0],
        "last": ages[-1][0],
        "mean": sum(age * n for age, n in ages) / total,
        "fresh": sum(n for age, n in ages if age == 0) / total,
    }


def capacity(version: int, eta: int, batch: int, accepted: int) -> int:
    """AReaL's rule: how many more prompts may be started now.

    Args:
        version: Updates made so far.
        eta: The bound; 0 is synchronous.
        batch: Prompts per update.
        accepted: Prompts accepted so far plus those that run.

    Returns:
        Room by age alone, 0 or more; slots are a second limit.
    """
    return max(0, (version + eta + 1) * batch - accepted)


# --8<-- [end:lags]

ETAS = (0, 1, 2, 4, 8)
BASE = Setup(
    slots=256, groups=32, size=4, train=4000.0, updates=20, warmup=14
)
SHARE = 0.5
# Name: (share of the GPUs that generates, median length, sigma of its log).
CASES = {
    "as above": (SHARE, 3000.0, 0.9),
    "80 % of the GPUs generate": (0.8, 3000.0, 0.9),
    "35 % generate": (0.35, 3000.0, 0.9),
    "median length 8,000": (SHARE, 8000.0, 0.9),
    "lengths alike, σ = 0.4": (SHARE, 3000.0, 0.4),
}


def run(eta: int, case: str = "as above", seed: int = 0) -> Run:
    """20 updates under the bound eta."""
    share, median, sigma = CASES[case]
    source = prompts(seed, BASE.size, median=median, sigma=sigma)
    return asynchronous(BASE, source, share, eta)


def summary(
    eta: int, case: str = "as above", seed: int = 0
) -> dict[str, float]:
    """Time per update, trainer's waiting share, lags and dropping.

    Returns:
        "time" in decode steps; "wait" and "over" (responses whose first
        token is older than eta) as shares; "first", "p95", "max" of the
        first token's lag and mean "last" in versions; "length" of the
        older ones over the mean length of all.
    """
    done = run(eta, case, seed)
    trains, ends = done.trains[BASE.warmup :], done.ends
    time = ends[-1] - ends[BASE.warmup - 1]
    busy = sum(end - start for start, end in trains)
    each = [
        (lags(request, k), request.length)
        for k in range(BASE.warmup, BASE.updates)
        for request in done.batches[k]
    ]
    first = np.array([x["first"] for x, _ in each])
    length = np.array([n for _, n in each], float)
    over = first > eta
    return {
        "time": time / len(trains),
        "wait": 1 - busy / time,
        "first": float(first.mean()),
        "p95": float(np.quantile(first, 0.95)),
        "max": float(first.max()),
        "last": float(np.mean([x["last"] for x, _ in each])),
        "over": float(over.mean()),
        "length": float(length[over].mean() / length.mean())
        if over.any()
        else float("nan"),
    }


@cache
def averages(
    eta: int, case: str = "as above", seeds: Iterable[int] = SEEDS
) -> dict[str, Estimate]:
    """`summary` over the seeds.

    A "length" that some seed does not have, since no response was older
    there, is left out.
    """
    rows = [summary(eta, case, seed) for seed in seeds]
    keys = [k for k in rows[0] if not any(math.isnan(r[k]) for r in rows)]
    found = zip(*([row[key] for key in keys] for row in rows), strict=True)
    return {k: Estimate(v) for k, v in zip(keys, found, strict=True)}


def times(found: dict[str, Estimate]) -> str:
    """How many times the mean length the older responses are long."""
    return f"{found['length']:.1f}" if "length" in found else "–"


def table_bound() -> str:
    """What the bound buys and what it lets through."""
    specs = {
        "time": ",.0f",
        "wait": ".0%",
        "first": ".1f",
        "p95": ".1f",
        "max": ".1f",
        "last": ".1f",
        "over": ".0%",
    }
    rows = []
    for eta in ETAS:
        found = averages(eta)
        cells = [shown(found[key], spec) for key, spec in specs.items()]
        rows.append((eta, *cells, times(found)))
    heads = ["$\\eta$", "steps per update", "trainer waits", "mean lag"]
    heads += ["95 %", "largest", "lag of last token", "above $\\eta$"]
    heads += ["their length over the mean"]
    return markdown_table(heads, rows, "rrrrrrrrr")


def table_cases() -> str:
    """Which of the findings survive another split or other lengths."""
    rows = []
    for case in list(CASES)[1:]:
        low, high = averages(2, case), averages(8, case)
        rows.append(
            (
                case,
                shown(high["wait"], ".0%"),
                shown(low["first"], ".1f"),
                shown(high["first"], ".1f"),
                shown(low["over"], ".0%"),
                times(low),
                shown(high["over"], ".0%"),
            )
        )
    heads = ["", "trainer waits, $\\eta=8$", "mean lag, $\\eta=2$"]
    heads += ["$\\eta=8$", "above 2", "their length", "above 8"]
    return markdown_table(heads, rows, "lrrrrrr")


# --- Lag and learning rate ------------------------------------------------


@cache
def stale_error(rate: float, lag: int, seed: int) -> float:
    """Error of the gradient with samples that are `lag` updates old.

    Exact policy-gradient ascent in 64 contexts of 8 tokens, drawn with the
    seed; no weights; relative to the on-policy gradient, mean over ten
    later updates.
    """
    logits, reward = world(seed)
    path = [logits]
    for _ in range(lag + 10):
        pi = softmax(path[-1])
        path.append(path[-1] + rate * gradient(pi, pi, reward, 1.0))
    errors = []
    for k in range(lag, lag + 10):
        pi, mu = softmax(path[k]), softmax(path[k - lag])
        exact = gradient(pi, pi, reward, 1.0)
        errors.append(error(gradient(pi, mu, reward, 1.0), exact))
    return float(np.mean(errors))


RATES = (0.1, 0.3, 1.0)
AGES = (1, 2, 4, 8, 16)


def _percent(rate: float, lag: int) -> str:
    found = over_seeds(lambda seed: 100 * stale_error(rate, lag, seed))
    return f"{found:.{2 if found.mean < 10 else 1}f} %"


def table_rates() -> str:
    """Error against lag for three learning rates, over ten worlds."""
    rows = [(lag, *(_percent(rate, lag) for rate in RATES)) for lag in AGES]
    heads = ["lag", *(f"step size {rate:g}" for rate in RATES)]
    return markdown_table(heads, rows, "rrrr")


# --8<-- [start:share]
def effective_share(lag: float, drift: float, tokens: int = 1) -> float:
    """Share of the samples that importance weights leave, Gaussian model.

    Args:
        lag: Age in versions.
        drift: Standard deviation of a token's log-ratio per version, all
            versions pulling the same way.
        tokens: Factors in the weight: 1 for a token's ratio, the length
            for the product over a response.
    """
    return float(np.exp(-tokens * (lag * drift) ** 2))


# --8<-- [end:share]


def table_share() -> str:
    """Effective share by lag: a token's ratio and an answer's product."""
    rows = []
    for lag in AGES:
        rows.append(
            (
                lag,
                *(
                    f"{effective_share(lag, 0.005, n):.3g}"
                    for n in (1, 1000, 8000)
                ),
            )
        )
    heads = ["lag", "one token", "product, 1,000 tokens", "8,000 tokens"]
    return markdown_table(heads, rows, "rrrr")


# --- Figure ---------------------------------------------------------------


def figure_bound() -> Figure:
    """Time per update and lags against the bound."""
    figure, (time, lag) = new_figure(4.8, rows=2, sharex=True)
    data = [averages(eta) for eta in ETAS]
    x = range(len(ETAS))
    for axes, key, color, unit in (
        (time, "time", "C0", 1000),
        (lag, "max", "C1", 1),
        (lag, "first", "C0", 1),
    ):
        mean = np.array([d[key].mean for d in data]) / unit
        sd = np.array([d[key].spread for d in data]) / unit
        axes.plot(x, mean, color=color, marker="o", ms=4)
        axes.fill_between(x, mean - sd, mean + sd, color=color, alpha=0.2)
    time.axhline(BASE.train / (1 - SHARE) / 1000, color="grey", alpha=0.6)
    label(
        time,
        4,
        BASE.train / (1 - SHARE) / 1000,
        "trainer's own time",
        ha="right",
        xytext=(0, 5),
    )
    time.set(ylabel="1,000 decode steps", ylim=(0, None))
    time.set_title("Time per update: no gain after η = 2", loc="left")
    lag.set_title("Age goes on rising", loc="left")
    lag.plot(x, ETAS, "--", color="C5")
    label(lag, 3, data[3]["max"].mean, "oldest", "C1", xytext=(-44, 0))
    label(lag, 2.6, 1.4, "mean = bound η", "C0", xytext=(0, -4))
    lag.set(xlabel="bound η, versions", ylabel="lag of first token")
    lag.set_xticks(list(x), [str(eta) for eta in ETAS])
    return figure
