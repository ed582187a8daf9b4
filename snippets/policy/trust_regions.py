"""How do TRPO, DPPO and AReaL enforce a trust region on the RL objective?

Page:      docs/policy/trust-regions.md
Source:    Schulman et al. (2015), "Trust Region Policy Optimization",
           https://arxiv.org/abs/1502.05477, Theorem 1;
           Schulman et al. (2017), https://arxiv.org/abs/1707.06347, Eq. 7, 8;
           Qi et al. (2026), "Rethinking the Trust Region in LLM
           Reinforcement Learning" (DPPO), https://arxiv.org/abs/2602.04879,
           Eq. 11 to 16;
           Fu et al. (2025), "AReaL", https://arxiv.org/abs/2505.24298;
           Hilton et al. (2021), https://arxiv.org/abs/2110.00641.
Notation:  mu the policy that sampled, pi the one being trained, prox the
           trainer's policy before this batch; r = pi / mu of a sampled
           token; A its advantage; S states, V tokens, N samples a state,
           D features. KL is KL(mu || pi) unless said otherwise; TV is half
           the sum of |pi - mu|. Objectives are maximised.
Units:     KL in nats; advantages in standard deviations of the batch.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from snippets.estimate import SEEDS, Estimate, each_over_seeds
from snippets.show import label, markdown_table, new_figure

Array = NDArray[np.float64]


# --- The test of one token -------------------------------------------------


# --8<-- [start:divergence]
def lumped(mu: Array, pi: Array, kept: list[int]) -> tuple[float, float]:
    """TV and KL(mu || pi) when only `kept` tokens are told apart.

    Args:
        mu: Probabilities that sampled, shape (V,), positive.
        pi: Probabilities of the trained policy, shape (V,), positive.
        kept: Token ids; all the others become one outcome, "the rest".
            [sampled] is DPPO's binary version, the sampled token and the
            K likeliest its top-K, every token the exact divergence.

    Returns:
        TV in [0, 1] and KL in nats.
    """
    rest = np.setdiff1d(np.arange(len(mu)), kept)
    p = np.append(mu[kept], mu[rest].sum())
    q = np.append(pi[kept], pi[rest].sum())
    p, q = p[p > 0], q[p > 0]  # no rest: its probability is 0
    return float(abs(q - p).sum() / 2), float((p * np.log(p / q)).sum())


# --8<-- [end:divergence]


# --8<-- [start:gate]
def gate(rule: str, bound: float, pi: Array, mu: Array, a: Array) -> Array:
    """1 for a token that keeps its gradient r A grad log pi, else 0.

    Silent: A > 0 and pi already above mu, or A < 0 and pi below mu, by
    more than the bound allows. A token that moved the other way is kept.

    Args:
        rule: "ratio" (PPO's clip), "tv", "kl" (DPPO, binary) or "none".
        bound: epsilon for "ratio", otherwise delta.
        pi: Current probability of the sampled tokens, any shape.
        mu: Their probability at the centre of the region, same shape.
        a: Advantages, same shape.
    """
    if rule == "none":
        return np.ones_like(pi)
    if rule == "ratio":
        moved = abs(pi / mu - 1)
    elif rule == "tv":
        moved = abs(pi - mu)
    else:
        moved = mu * np.log(mu / pi)
        moved = moved + (1 - mu) * np.log((1 - mu) / (1 - pi))
    outwards = a * (pi - mu) > 0
    return 1.0 - (outwards & (moved > bound))


# --8<-- [end:gate]


def stop(rule: str, bound: float, mu: Array, up: bool) -> Array:
    """Probability at which a token starting at `mu` goes silent.

    Found by bisection on `gate`, any shape; 1 upwards or 0 downwards if
    it never does (or only below 1e-15).
    """
    a = np.full_like(mu, 1.0 if up else -1.0)
    near, far = mu, np.full_like(mu, 1 - 1e-13 if up else 1e-300)
    silent = gate(rule, bound, far, mu, a) == 0
    for _ in range(90):
        middle = (near + far) / 2
        on = gate(rule, bound, middle, mu, a) == 1
        near, far = np.where(on, middle, near), np.where(on, far, middle)
    return np.where(silent & (far > 1e-15), far, float(up))


# --- One toy for all methods -----------------------------------------------


class World(NamedTuple):
    """S states, a linear softmax policy over V tokens, and their values."""

    features: Array  # (S, D)
    weights: Array  # (D, V), the policy that samples
    values: Array  # (S, V), true expected reward of each token


class Batch(NamedTuple):
    """N sampled tokens of each state."""

    tokens: NDArray[np.intp]  # (S, N)
    advantages: Array  # (S, N), standardised
    scale: float  # what they were divided by, in units of the reward


def world(rng: np.random.Generator, s: int = 48, v: int = 12) -> World:
    """Eight random features; their length makes states flat or certain."""
    direction = rng.normal(size=(s, 8))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    length = np.exp(rng.uniform(np.log(0.5), np.log(8), size=(s, 1)))
    skill = rng.normal(size=(8, v))
    values = direction @ skill + rng.normal(size=(s, v))
    weights = skill + rng.normal(size=(8, v))
    return World(direction * length, weights, values)


def policy(w: World, weights: Array) -> Array:
    """Probabilities of all tokens in all states, shape (S, V)."""
    z = w.features @ weights
    p = np.exp(z - z.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


def sampled(
    w: World, rng: np.random.Generator, noise: float, n: int = 4
) -> Batch:
    """N tokens a state from `w.weights`; reward = value + noise."""
    p = policy(w, w.weights)
    tokens = np.array([rng.choice(len(row), n, p=row) for row in p])
    rewards = of(w.values, tokens) + noise * rng.normal(size=tokens.shape)
    a = rewards - (p * w.values).sum(1, keepdims=True)
    return Batch(tokens, (a - a.mean()) / a.std(), float(a.std()))


def of(table: Array, tokens: NDArray[np.intp]) -> Array:
    """Entries of (S, V) at the sampled tokens, shape (S, N)."""
    return table[np.arange(len(table))[:, None], tokens]


def push(w: World, p: Array, batch: Batch, c: Array) -> Array:
    """Mean over the batch of c A grad log pi, shape (D, V)."""
    weight = c * batch.advantages / batch.tokens.size
    row = np.arange(len(p))[:, None] * p.shape[1] + batch.tokens
    total = np.bincount(row.ravel(), weight.ravel(), p.size)
    logits = total.reshape(p.shape) - p * weight.sum(1, keepdims=True)
    return w.features.T @ logits


def mean_kl(old: Array, new: Array) -> float:
    """Mean over states of KL(old || new), nats."""
    return float((old * np.log(old / new)).sum(1).mean())


class Region(NamedTuple):
    """What keeps `ascend` near its centre; the default is nothing."""

    rule: str = "none"  # as in `gate`
    bound: float = 0.0  # as in `gate`
    beta: float = 0.0  # weight of the mean KL(centre || pi)
    target_kl: float = np.inf  # stop once that KL exceeds 1.5 times this


# --8<-- [start:ascend]
def ascend(
    w: World,
    batch: Batch,
    region: Region,
    start: Array,
    centre: Array,
    below: Array,
    passes: int,
    step: float = 0.15,
) -> list[Array]:
    """Full-batch gradient ascent on the same samples, again and again.

    Args:
        w: The world.
        batch: Tokens and advantages.
        region: Rule, bound, penalty and early stop.
        start: Parameters before the first pass, shape (D, V).
        centre: Parameters in the middle of the region, shape (D, V).
        below: Parameters of the policy that divides pi in the weight:
            the one that sampled, if the weight is to be right.
        passes: Largest number of gradient steps.
        step: Learning rate.

    Returns:
        Parameters after each step, the start first.
    """
    at, under = policy(w, centre), of(policy(w, below), batch.tokens)
    mu, a = of(at, batch.tokens), batch.advantages
    path = [start]
    for _ in range(passes):
        p = policy(w, path[-1])
        if mean_kl(at, p) > 1.5 * region.target_kl:
            break
        pi = of(p, batch.tokens)
        on = gate(region.rule, region.bound, pi, mu, a)
        pull = w.features.T @ (p - at) / len(p)  # gradient of the mean KL
        ascent = push(w, p, batch, on * pi / under) - region.beta * pull
        path.append(path[-1] + step * ascent)
    return path


# --8<-- [end:ascend]


# --8<-- [start:natural]
def fisher(w: World, p: Array, v: Array) -> Array:
    """F v: F is the Hessian of the mean KL(old || pi) at pi = old."""
    z = w.features @ v
    z = p * (z - (p * z).sum(1, keepdims=True))
    return w.features.T @ z / len(p)


def solve(apply: Callable[[Array], Array], g: Array, rounds: int) -> Array:
    """Solve F x = g by conjugate gradients, F known only as v -> F v."""
    x, r, d = np.zeros_like(g), g.copy(), g.copy()
    for _ in range(rounds):
        fd = apply(d)
        alpha = (r * r).sum() / (d * fd).sum()
        x, new = x + alpha * d, r - alpha * fd
        r, d = new, new + (new * new).sum() / (r * r).sum() * d
    return x


# --8<-- [end:natural]


# --8<-- [start:trpo]
def trpo(w: World, batch: Batch, delta: float, rounds: int = 10) -> Array:
    """One TRPO update from `w.weights`: mean KL(old || new) <= delta."""
    old = policy(w, w.weights)
    mu = of(old, batch.tokens)
    g = push(w, old, batch, np.ones_like(mu))
    if not g.any():  # all advantages 0
        return w.weights
    x = solve(lambda v: fisher(w, old, v), g, rounds)
    full = x * np.sqrt(2 * delta / (x * fisher(w, old, x)).sum())
    for j in range(10):  # backtracking line search
        weights = w.weights + 0.8**j * full
        new = policy(w, weights)
        gain = (of(new, batch.tokens) / mu - 1) * batch.advantages
        if mean_kl(old, new) <= delta and gain.mean() > 0:
            return weights
    return w.weights


# --8<-- [end:trpo]


def measure(
    w: World, batch: Batch, weights: Array, centre: Array
) -> dict[str, float]:
    """What an update did, exact over states and tokens.

    Args:
        w: The world; `w.weights` sampled the batch.
        batch: Tokens and advantages.
        weights: Parameters after the update, shape (D, V).
        centre: Parameters that ratios, KL and TV are taken from.

    Returns:
        "claimed": mean((r - 1) A) and "gain": true change of the expected
        reward, both in units of the reward; "out": share of the sampled
        tokens with a ratio outside [0.8, 1.2]; "ratio": the largest;
        "kl", "kl_max", "tv", "tv_max": mean and largest over states.
    """
    old, new = policy(w, centre), policy(w, weights)
    mu, pi = of(old, batch.tokens), of(new, batch.tokens)
    first = of(policy(w, w.weights), batch.tokens)
    kl = (old * np.log(old / new)).sum(1)
    tv = abs(new - old).sum(1) / 2
    claimed = ((pi - mu) / first * batch.advantages).mean()
    return {
        "claimed": float(claimed) * batch.scale,
        "gain": float(((new - old) * w.values).sum(1).mean()),
        "out": float((abs(pi / mu - 1) > 0.2).mean()),
        "ratio": float((pi / mu).max()),
        "kl": float(kl.mean()),
        "kl_max": float(kl.max()),
        "tv": float(tv.mean()),
        "tv_max": float(tv.max()),
    }


PASSES = 60
NOISE = 3.0
METHODS = {
    "no constraint": Region(),
    "PPO clip, ε = 0.2": Region("ratio", 0.2),
    "no clip, stop at KL 0.015": Region(target_kl=0.01),
    "KL penalty, β = 3": Region(beta=3.0),
    "DPPO-TV, δ = 0.15": Region("tv", 0.15),
    "DPPO-TV, δ = 0.2": Region("tv", 0.2),
    "DPPO-KL, δ = 0.05": Region("kl", 0.05),
}
TRPO = "TRPO, δ = 0.01"


@cache
def worlds(seed: int) -> tuple[tuple[World, Batch], ...]:
    """Four worlds with a batch each."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(4):
        w = world(rng)
        found.append((w, sampled(w, rng, NOISE)))
    return tuple(found)


@cache
def paths(seed: int, name: str) -> tuple[list[Array], ...]:
    """Parameters after 0 to 60 passes of a method, for each world."""
    if name == TRPO:
        return tuple([w.weights, trpo(w, b, 0.01)] for w, b in worlds(seed))
    return tuple(
        ascend(w, batch, METHODS[name], *3 * [w.weights], PASSES)
        for w, batch in worlds(seed)
    )


def averages(seed: int, name: str) -> dict[str, float]:
    """`measure` of a method's last parameters, mean over the worlds."""
    rows = [
        measure(w, batch, path[-1], w.weights)
        for (w, batch), path in zip(
            worlds(seed), paths(seed, name), strict=True
        )
    ]
    return {key: float(np.mean([r[key] for r in rows])) for key in rows[0]}


def table_bounds() -> str:
    """What each method left unbounded, after 60 passes over one batch."""
    keys = "claimed", "gain", "out", "ratio", "kl", "kl_max", "tv_max"
    rows = []
    for name in [*METHODS, TRPO]:
        by_seed = [averages(seed, name) for seed in SEEDS]
        cells = {k: Estimate(tuple(m[k] for m in by_seed)) for k in keys}
        out = Estimate(tuple(100 * x for x in cells["out"].values))
        rows.append(
            [
                name,
                f"{cells['claimed']:.2f}",
                f"{cells['gain']:.3f}",
                f"{out:.0f} %",
                f"{cells['ratio']:.1f}",
                f"{cells['kl']:.3f}",
                f"{cells['kl_max']:.2f}",
                f"{cells['tv_max']:.2f}",
            ]
        )
    heads = [
        "method",
        "claimed gain",
        "true gain",
        "outside 0.8-1.2",
        "largest $r$",
        "mean KL",
        "largest KL",
        "largest TV",
    ]
    return markdown_table(heads, rows)


RULES = [
    ("PPO, ε = 0.2", "ratio", 0.2),
    ("DPPO-TV, δ = 0.15", "tv", 0.15),
    ("DPPO-TV, δ = 0.2", "tv", 0.2),
    ("DPPO-KL, δ = 0.05", "kl", 0.05),
    ("DPPO-KL, δ = 0.2", "kl", 0.2),
]


def table_stops() -> str:
    """Where the gradient of a token goes silent, by starting probability."""
    starts = np.array([1e-4, 0.01, 0.1, 0.5, 0.9, 0.99])
    rows = []
    for up in (True, False):
        for name, rule, bound in RULES:
            cells = []
            for end in stop(rule, bound, starts, up):
                text = f"{end:.3f}" if end > 0.1 else f"{end:.2g}"
                text = "> 0.999" if text == "1.000" else text
                text = text.replace("-", "−")
                cells.append("never" if end in (0, 1) else text)
            rows.append([name, "up" if up else "down", *cells])
    heads = ["rule", "pushed", *(f"from {mu:g}" for mu in starts)]
    return markdown_table(heads, rows)


EDGES = (0, 0.05, 0.2, 0.5, 0.8, 1)
"""Of the bands of probability in `table_silenced`."""


def silenced(seed: int) -> list[float]:
    """Per band of EDGES: mean |pi - mu|, then per cent silenced by rule.

    All rules judge the same policies: those that "no constraint" reached
    after 20 passes.
    """
    mu, pi, a = [], [], []
    for (w, batch), path in zip(
        worlds(seed), paths(seed, "no constraint"), strict=True
    ):
        mu.append(of(policy(w, w.weights), batch.tokens).ravel())
        pi.append(of(policy(w, path[20]), batch.tokens).ravel())
        a.append(batch.advantages.ravel())
    m, p, adv = (np.concatenate(x) for x in (mu, pi, a))
    found = []
    for low, high in zip(EDGES[:-1], EDGES[1:], strict=True):
        here = (m > low) & (m <= high)
        found.append(float(abs(p - m)[here].mean()))
        for _, rule, bound in RULES[:4]:
            on = gate(rule, bound, p, m, adv)[here]
            found.append(100 * float(1 - on.mean()))
    return found


def table_silenced() -> str:
    """Share of sampled tokens that each rule silences, by probability."""
    cells = iter(each_over_seeds(silenced))
    rows = []
    for low, high in zip(EDGES[:-1], EDGES[1:], strict=True):
        moved = f"{next(cells):.3f}"
        shares = [f"{next(cells):.1f} %" for _ in RULES[:4]]
        rows.append([f"{low:g} to {high:g}", moved, *shares])
    heads = ["$\\mu$ of the token", "mean $\\lvert\\pi-\\mu\\rvert$"]
    return markdown_table(heads + [n for n, *_ in RULES[:4]], rows)


# --- Stale samples ---------------------------------------------------------

STALE_PASSES = 30


def improved(w: World, steps: int = 12, size: float = 0.6) -> Array:
    """Parameters after exact gradient steps on the true value, (D, V)."""
    weights = w.weights
    for _ in range(steps):
        p = policy(w, weights)
        a = w.values - (p * w.values).sum(1, keepdims=True)
        weights = weights + size * w.features.T @ (p * a) / len(p)
    return weights


STALE = {
    "no clip, weight $\\pi_\\theta/\\mu$": (Region(), "mu", "mu"),
    "PPO, centre $\\mu$": (Region("ratio", 0.2), "mu", "mu"),
    "PPO, centre $\\pi_{prox}$, no weight": (
        Region("ratio", 0.2),
        "prox",
        "prox",
    ),
    "decoupled (AReaL), $\\pi_{prox}$, weighted": (
        Region("ratio", 0.2),
        "prox",
        "mu",
    ),
    "DPPO-TV 0.15, centre $\\mu$": (Region("tv", 0.15), "mu", "mu"),
    "DPPO-TV 0.15, centre $\\pi_{prox}$": (
        Region("tv", 0.15),
        "prox",
        "prox",
    ),
}
"""Region, its centre, and what divides pi in the weight."""


def stale(seed: int, name: str) -> dict[str, float]:
    """The old batches, used by a policy that has moved on meanwhile.

    Returns:
        Means over the worlds: "silent", the share without gradient at the
        start; "gain" over prox; "kl" from prox, "mu" from the sampler;
        "ratio", the largest to prox; "before", the KL of prox from mu.
    """
    region, centre, below = STALE[name]
    rows = []
    for w, batch in worlds(seed):
        at = {"mu": w.weights, "prox": improved(w)}
        ends = at[centre], at[below]
        end = ascend(w, batch, region, at["prox"], *ends, STALE_PASSES)
        m = measure(w, batch, end[-1], at["prox"])
        first = measure(w, batch, end[-1], w.weights)
        pi, mid = (
            of(policy(w, at[k]), batch.tokens) for k in ("prox", centre)
        )
        on = gate(region.rule, region.bound, pi, mid, batch.advantages)
        start = mean_kl(policy(w, w.weights), policy(w, at["prox"]))
        row = {"silent": 1 - float(on.mean()), "gain": m["gain"]}
        row |= {"kl": m["kl"], "mu": first["kl"], "ratio": m["ratio"]}
        rows.append(row | {"before": start})
    return {key: float(np.mean([r[key] for r in rows])) for key in rows[0]}


def table_stale() -> str:
    """Thirty passes over stale samples, by centre of the region."""
    rows = []
    for name in STALE:
        by_seed = [stale(seed, name) for seed in SEEDS]
        cells = {
            k: Estimate(tuple(m[k] for m in by_seed)) for k in by_seed[0]
        }
        silent = Estimate(tuple(100 * x for x in cells["silent"].values))
        rows.append(
            [
                name,
                f"{silent:.0f} %" if any(silent.values) else "0 %",
                f"{cells['gain']:.3f}",
                f"{cells['kl']:.3f}",
                f"{cells['mu']:.3f}",
                f"{cells['ratio']:.1f}",
            ]
        )
    heads = [
        "loss",
        "silent at the start",
        "true gain",
        "KL($\\pi_{prox}$ ‖ $\\pi_\\theta$)",
        "KL($\\mu$ ‖ $\\pi_\\theta$)",
        "largest $\\pi_\\theta/\\pi_{prox}$",
    ]
    return markdown_table(heads, rows)


# --- The bound -------------------------------------------------------------


# --8<-- [start:bound]
def bound(length: int, tv: float, epsilon: float = 1.0) -> float:
    """Largest possible |true gain - surrogate gain|, gamma = 1.

    Position t = 0, 1, … contributes at most 4 epsilon tv (t tv): the old
    advantage, averaged over the new policy, is at most 2 epsilon tv, and
    the two policies' prefixes of t tokens differ by at most 2 t tv in L1.

    Args:
        length: Number of tokens T.
        tv: Largest TV between the policies after any prefix.
        epsilon: Largest |advantage|.
    """
    return 2 * length * (length - 1) * epsilon * tv**2


def chain(length: int, p: float, q: float) -> tuple[float, float]:
    """An answer is right if all T tokens are; each is with p, then q.

    Returns:
        True change of the pass rate, q^T - p^T, and the surrogate's.
    """
    return q**length - p**length, length * (q - p) * p ** (length - 1)


# --8<-- [end:bound]


def table_horizon() -> str:
    """TV = 0.001 at every token, pass rate 0.5 before: gain and bound."""
    rows = []
    for length in (10, 100, 1000, 10_000):
        p = 0.5 ** (1 / length)
        true, claimed = chain(length, p, p - 0.001)
        allowed = (0.1 / bound(length, 1.0)) ** 0.5
        rows.append(
            [
                f"{length:,}",
                f"{true:.4f}".replace("-", "−"),
                f"{claimed:.4f}".replace("-", "−"),
                f"{abs(true - claimed):.3g}".replace("-", "−"),
                f"{bound(length, 0.001, p):.3g}",
                f"{allowed:.1g}".replace("-", "−"),
            ]
        )
    heads = [
        "tokens",
        "true change",
        "surrogate",
        "error",
        "bound on it",
        "TV for bound 0.1",
    ]
    return markdown_table(heads, rows)


# --- Figures ---------------------------------------------------------------


def figure_room() -> Figure:
    """How far a token may move before it goes silent, against mu."""
    figure, panels = new_figure(5.6, rows=2, sharex=True)
    mu = np.append(np.logspace(-4, -1, 40), np.linspace(0.11, 0.999, 90))
    shown = (RULES[0], "C0"), (RULES[1], "C1"), (RULES[3], "C2")
    for axes, up in zip(panels, (True, False), strict=True):
        for (_, rule, limit), color in shown:
            room = abs(stop(rule, limit, mu, up) - mu)
            axes.loglog(mu, room, color=color)
        axes.set(ylim=(1e-5, 2))
    top, bottom = panels
    label(top, 3e-4, 0.19, "DPPO-TV, δ = 0.15", "C1")
    label(top, 3e-4, 0.04, "DPPO-KL, δ = 0.05", "C2", va="top")
    for axes in panels:
        label(axes, 4e-3, 8e-4, "PPO, ε = 0.2", "C0", xytext=(8, -10))
    top.set(ylabel="largest rise")
    top.set_title("Good token: DPPO lets rare ones rise far more", loc="left")
    label(bottom, 1.5e-3, 4e-3, "both DPPO rules", "C1", ha="right")
    bottom.set(ylabel="largest fall", xlabel="probability μ when sampled")
    bottom.set_title("Bad token: DPPO lets rare ones vanish", loc="left")
    return figure
