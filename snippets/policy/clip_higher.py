"""Why does Clip-Higher work?

Page:      docs/policy/clip-higher.md
Source:    Yu et al. (2025), "DAPO", https://arxiv.org/abs/2503.14476,
           equation 8 and section 3.1; entropy and the two sides of the
           clip: Park et al. (2025), https://arxiv.org/abs/2509.26114;
           Cui et al. (2025), https://arxiv.org/abs/2505.22617.
Notation:  ratio r = pi_new / pi_old of a sampled token, A its advantage;
           the band is [1 - low, 1 + high]; one context with K tokens, B
           independent runs of the same experiment. The objective
           mean(min(r A, clip(r) A)) is maximised.
Units:     probabilities; entropies in nats; advantages in standard
           deviations of the rewards in the group.
"""

from collections.abc import Iterable
from functools import cache
from math import inf

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from snippets.estimate import SEEDS, Estimate
from snippets.show import label, markdown_table, new_figure

Array = NDArray[np.float64]


def softmax(logits: Array) -> Array:
    """Probabilities along the last axis."""
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def entropy(p: Array) -> Array:
    """Entropy in nats along the last axis."""
    return -(p * np.log(np.maximum(p, 1e-300))).sum(-1)


# --- What the bound allows ------------------------------------------------


def ceiling(p: float, high: float) -> float:
    """Probability at which a token with A > 0 loses its gradient.

    Args:
        p: Probability under the policy that sampled.
        high: The band ends at 1 + high.

    Returns:
        (1 + high) p, or infinity if that is 1 or more: never reached.
    """
    top = (1 + high) * p
    return top if top < 1 else inf


def speed(p: Array, token: int) -> float:
    """Growth of log p[token] per step if the token is pushed up with A = 1.

    Args:
        p: Probabilities of the K tokens, shape (K,).
        token: The sampled token; the step is on the logits, at r = 1.

    Returns:
        (1 - p_a)^2 plus the sum of p_b^2 over b != a.
    """
    others = np.delete(p, token)
    return float((1 - p[token]) ** 2 + others @ others)


def entropy_slope(p: Array, token: int) -> float:
    """Change of entropy per step for that push, nats; minus if A = -1."""
    surprise = np.log(p) + entropy(p)
    return float(p**2 @ surprise - p[token] * surprise[token])


# --- One batch, many batches ----------------------------------------------


# --8<-- [start:update]
def update(
    old: Array,
    good: Array,
    bad: Array,
    low: float,
    high: float,
    passes: int,
    step: float,
) -> tuple[Array, Array]:
    """Gradient ascent on the clipped objective of one batch.

    Args:
        old: Policy that sampled, shape (B, K).
        good: For each token id the sum of its positive advantages over
            the batch, divided by the batch size; shape (B, K).
        bad: The same for negative advantages, <= 0.
        low: Tokens with A < 0 are silent below 1 - low.
        high: Tokens with A > 0 are silent above 1 + high.
        passes: Full-batch steps on the same samples.
        step: Learning rate on the logits.

    Returns:
        The new policy, and the positive advantage that the upper bound
        silenced, averaged over the passes; both (B, K).
    """
    logits, cut = np.log(old), np.zeros_like(old)
    for _ in range(passes):
        p = softmax(logits)
        ratio = p / old
        up, down = ratio <= 1 + high, ratio >= 1 - low
        push = ratio * (good * up + bad * down)  # d objective / d log p
        logits = logits + step * (push - push.sum(-1, keepdims=True) * p)
        cut += good * ~up / passes
    return softmax(logits), cut


# --8<-- [end:update]


def sample(
    p: Array, rates: Array, n: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Draw n tokens and 0/1 rewards in each run; group-standardise.

    Args:
        p: Policies, shape (B, K).
        rates: Probability of reward 1 for each token id, shape (K,).
        n: Samples of a group.
        rng: Source of the tokens and rewards.

    Returns:
        good and bad as `update` takes them. Both are 0 in a run whose
        rewards are all equal.
    """
    runs, vocab = p.shape
    edges = p.cumsum(-1)[:, None, :-1]
    tokens = (rng.random((runs, n, 1)) > edges).sum(-1)
    rewards = (rng.random((runs, n)) < rates[tokens]).astype(float)
    centred = rewards - rewards.mean(-1, keepdims=True)
    deviation = rewards.std(-1, ddof=1, keepdims=True)
    advantages = centred / (deviation + 1e-6) / n
    good, bad = np.zeros_like(p), np.zeros_like(p)
    at = np.arange(runs)[:, None], tokens
    np.add.at(good, at, np.maximum(advantages, 0))
    np.add.at(bad, at, np.minimum(advantages, 0))
    return good, bad


def train(
    start: Array,
    rates: Array,
    low: float,
    high: float,
    seeds: Iterable[int] = SEEDS,
    *,
    n: int,
    passes: int,
    step: float,
    rounds: int,
    runs: int = 60,
) -> tuple[Array, Array]:
    """Sample, update, repeat; each seed draws for its own runs.

    Returns:
        Policies before each round and after the last one, shape
        (rounds + 1, B, K) with B = seeds times runs, a seed's runs are
        neighbours; and three numbers of each seed, shape (seeds, 3): the
        share of the positive advantage that the upper bound silenced, its
        mean old probability (nan if there is none), and that of all
        positive advantage.
    """
    sources = [np.random.default_rng(seed) for seed in seeds]
    policy = np.tile(start, (len(sources) * runs, 1))
    path, sums = [policy], np.zeros((4, len(sources)))
    for _ in range(rounds):
        blocks = np.split(policy, len(sources))
        drawn = [
            sample(block, rates, n, rng)
            for block, rng in zip(blocks, sources, strict=True)
        ]
        good, bad = (np.concatenate(x) for x in zip(*drawn, strict=True))
        old = policy
        policy, cut = update(old, good, bad, low, high, passes, step)
        sums += [
            x.reshape(len(sources), -1).sum(1)
            for x in (cut, good, old * cut, old * good)
        ]
        path.append(policy)
    cut, good, old_cut, old_good = sums
    rare = np.full(len(sources), np.nan)
    np.divide(old_cut, cut, out=rare, where=cut > 0)
    return np.stack(path), np.stack([cut / good, rare, old_good / good], 1)


def by_seed(values: Array) -> Estimate:
    """Mean over the runs of each of the ten seeds, from (B,) values."""
    return Estimate(tuple(values.reshape(len(SEEDS), -1).mean(1).tolist()))


def signed(estimate: Estimate, digits: int = 2) -> str:
    """With a plus where the mean is above 0."""
    plus = "+" if estimate.mean > 0 else ""
    return f"{plus}{estimate:.{digits}f}"


# --- Experiment 1: rewards that mean nothing ------------------------------

SIDES = {
    "no clip": (inf, inf),
    "upper 0.2 only": (inf, 0.2),
    "lower 0.2 only": (0.2, inf),
    "0.2 / 0.2": (0.2, 0.2),
    "0.28 / 0.28": (0.28, 0.28),
    "0.2 / 0.28": (0.2, 0.28),
    "0.1 / 0.2": (0.1, 0.2),
}
"""Name, then low and high of the band."""


@cache
def coin_flips(common: float = 0.6) -> dict[str, tuple[Array, Array]]:
    """One common and ten rare tokens; the reward is a fair coin.

    Args:
        common: Probability of token 0 at the start.

    Returns:
        For each name of SIDES the result of `train`, same seeds.
    """
    start = np.array([common] + [(1 - common) / 10] * 10)
    rates = np.full(11, 0.5)
    return {
        name: train(
            start,
            rates,
            *band,
            n=16,
            passes=16,
            step=0.25,
            rounds=20,
        )
        for name, band in SIDES.items()
    }


def entropy_change(path: Array) -> Estimate:
    """Last round minus start, nats."""
    return by_seed(entropy(path[-1]) - entropy(path[0]))


# --- Experiment 2: a rare token that is better ----------------------------

START = np.array([0.8] + [0.02] * 10)
RATES = np.array([0.5, 0.8] + [0.5] * 9)
"""Token 1 has probability 0.02 and pass rate 0.8, all others 0.5."""

BANDS = {name: SIDES[name] for name in ("no clip", "0.2 / 0.2", "0.2 / 0.28")}


@cache
def learning(
    band: str, passes: int = 16, rounds: int = 40
) -> tuple[Array, Array]:
    """`train` on START and RATES: 64 samples, step 4 / passes."""
    return train(
        START,
        RATES,
        *SIDES[band],
        n=64,
        passes=passes,
        step=4 / passes,
        rounds=rounds,
        runs=30,
    )


# --- Tables ---------------------------------------------------------------


def table_ceiling() -> str:
    """The ceiling of a token, absolute and against its speed."""
    rows = []
    for p in (0.001, 0.01, 0.1, 0.5, 0.8, 0.9):
        tops = [ceiling(p, high) for high in (0.2, 0.28)]
        cells = [f"{t:.4g}" if t < 1 else "none" for t in tops]
        room = f"{tops[0] - p:.3g}" if tops[0] < 1 else f"{1 - p:.2g} (all)"
        pair = np.array([p, 1 - p])
        slope = round(entropy_slope(pair, 0), 3) + 0.0
        last = f"{speed(pair, 0):.2f}", f"{slope:+.2f}".replace("-", "−")
        rows.append((f"{p:g}", *cells, room, *last))
    heads = ["$\\pi_{old}$", "silent above, 0.2", "0.28", "room at 0.2"]
    heads += ["speed", "entropy slope"]
    return markdown_table(heads, rows, "rrrrrr")


def table_coin() -> str:
    """Pure-noise rewards: what each side of the clip does."""
    rows = []
    for name, (path, share) in coin_flips().items():
        cut, rare, every = (Estimate(tuple(x)) for x in share.T.tolist())
        percent = Estimate(tuple(100 * x for x in cut.values))
        mass = by_seed(1 - path[-1][:, 0])
        rows.append(
            (
                name,
                signed(entropy_change(path)),
                f"{mass:.2f}",
                f"{percent:.0f}" if cut.mean else "0",
                f"{rare:.3f}" if cut.mean else "–",
                f"{every:.2f}",
            )
        )
    heads = ["low / high", "entropy change", "mass of the ten"]
    heads += ["$A>0$ cut, %", "their $\\pi_{old}$", "all $A>0$"]
    return markdown_table(heads, rows)


def table_passes() -> str:
    """Mass on the better token after 20 batches, by updates a batch."""
    rows = []
    for passes in (1, 2, 4, 16):
        cells, shares = [], []
        for band in BANDS:
            path, share = learning(band, passes, 20)
            cells.append(f"{by_seed(path[-1][:, 1]):.2f}")
            cut = Estimate(tuple(100 * x for x in share[:, 0].tolist()))
            shares.append(f"{cut:.1f}" if cut.mean else "0")
        rows.append((passes, *cells, *shares[1:]))
    heads = ["updates", "no clip", "0.2 / 0.2", "0.2 / 0.28"]
    heads += ["cut at 0.2, %", "cut at 0.28, %"]
    return markdown_table(heads, rows)


# --- Figures --------------------------------------------------------------


def figure_coin() -> Figure:
    """Change of entropy under coin-flip rewards, one bar a band."""
    figure, axes = new_figure(3.3)
    runs = coin_flips()
    names = list(runs)[::-1]
    changes = [entropy_change(runs[name][0]) for name in names]
    for y, change in enumerate(changes):
        mean, spread = change.mean, change.spread
        color = "C1" if mean < 0 else "C0"
        kind = {"color": color, "ecolor": "grey", "height": 0.6}
        axes.barh(y, mean, xerr=spread, **kind)
        text = signed(change).partition(" ")[0]
        side = {"ha": "left", "xytext": (4, -4)}
        if mean < 0:
            side = {"ha": "right", "xytext": (-4, -4)}
        end = mean + spread if mean > 0 else mean - spread
        label(axes, end, y, text, color, **side)
    axes.axvline(0, color="grey", alpha=0.6)
    axes.set_yticks(range(len(names)), names)
    axes.set(xlim=(-1.2, 0.6), xticks=(-1, -0.5, 0, 0.5))
    axes.set_ylabel("clip: low / high")
    axes.set_xlabel("change of entropy after 20 batches, nats")
    axes.set_title(
        "Coin flips: upper clip lowers entropy, lower raises it", loc="left"
    )
    return figure


def figure_learning() -> Figure:
    """Mass on the better rare token, and entropy, over 40 batches."""
    figure, (mass, disorder) = new_figure(4.8, rows=2, sharex=True)
    shown = (
        ("no clip", "C5", "--"),
        ("0.2 / 0.28", "C0", "-"),
        ("0.2 / 0.2", "C1", "-"),
    )
    for name, color, line in shown:
        path, _ = learning(name)
        x = np.arange(len(path))
        for axes, values in (
            (mass, path[:, :, 1]),
            (disorder, entropy(path)),
        ):
            found = [by_seed(v) for v in values]
            mid = np.array([e.mean for e in found])
            spread = np.array([e.spread for e in found])
            axes.plot(x, mid, line, color=color)
            axes.fill_between(
                x, mid - spread, mid + spread, color=color, alpha=0.2, lw=0
            )
    for row, (name, color, _) in enumerate(shown):  # in the curves' order
        label(mass, 29, 0.34 - 0.14 * row, name, color, xytext=(0, 0))
    label(disorder, 8, 1.6, "no clip", "C5", ha="right", xytext=(0, 2))
    label(disorder, 16, 1.74, "0.2 / 0.28", "C0", ha="center")
    label(disorder, 29, 1.1, "0.2 / 0.2", "C1", xytext=(5, 2))
    mass.set_title("0.28 lifts a better rare token sooner", loc="left")
    mass.set_ylabel("its probability")
    mass.set_ylim(0, 1)
    disorder.set_title(
        "With 0.28 entropy is higher first, then lower", loc="left"
    )
    disorder.set(ylabel="entropy, nats", xlabel="batch", ylim=(0, 2.1))
    return figure
