"""What is GAE, what does lambda trade, and why is it 0.95 or 1?

Page:      docs/policy/gae.md
Source:    Schulman et al. (2015), "High-Dimensional Continuous Control
           Using Generalized Advantage Estimation",
           https://arxiv.org/abs/1506.02438, equations 11 to 18;
           Yue et al. (2025), "VAPO", https://arxiv.org/abs/2504.05118,
           equations 4 and 5 (length-adaptive lambda).
Notation:  tokens t = 0 … T-1; values[t] = V(s_t) is predicted before
           token t is drawn; rewards[t] follows token t; the TD error is
           delta_t = r_t + gamma V(s_t+1) - V(s_t), with V = 0 after the
           last token unless the response was cut and is bootstrapped.
Units:     rewards, values and advantages in the reward's unit; lengths,
           horizons and distances in tokens. In the chain, bias and
           spread are in root mean squares of the true gradient.
"""

from collections.abc import Iterable
from functools import cache

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from snippets.estimate import SEEDS, Estimate, each_over_seeds
from snippets.show import label, markdown_table, new_figure

Array = NDArray[np.float64]


# --8<-- [start:gae]
def gae(
    rewards: Array,
    values: Array,
    mask: NDArray[np.bool_],
    gamma: float = 1.0,
    lam: ArrayLike = 0.95,
    last_value: ArrayLike = 0.0,
) -> tuple[Array, Array]:
    """Advantages and value targets, one backward pass (Eq. 16).

    Args:
        rewards: Shape (B, T).
        values: V(s_t) before token t, shape (B, T), no gradient.
        mask: True on the model's own tokens, shape (B, T); prompt, tool
            output and padding are skipped, whatever they hold.
        gamma: Discount.
        lam: Lambda, one number or one for each row, shape (B,).
        last_value: V after the last token: 0 if the response ended, the
            critic's value if it was cut; a number or shape (B,).

    Returns:
        Advantages, 0 off the mask, and targets = advantages + values,
        both (B, T).
    """
    advantages = np.zeros_like(values)
    next_value = np.broadcast_to(last_value, values.shape[:1])
    running = np.zeros(len(values))
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        step = delta + gamma * np.asarray(lam) * running
        advantages[:, t] = np.where(mask[:, t], step, 0.0)
        running = np.where(mask[:, t], step, running)
        next_value = np.where(mask[:, t], values[:, t], next_value)
    return advantages, advantages + values


# --8<-- [end:gae]


# --8<-- [start:scan]
def backward_scan(a: Array, b: Array, last: ArrayLike = 0.0) -> Array:
    """All x_t = b_t + a_t x_(t+1) in log2(T) rounds, x_T = last.

    Two neighbouring steps are one: (a, b) then (a', b') is
    (a a', b + a b'). This composition is associative, so pairs can be
    joined in parallel, then pairs of pairs.

    Args:
        a: Factors, shape (B, T).
        b: Offsets, shape (B, T).
        last: x_T, a number or shape (B,).

    Returns:
        x, shape (B, T).
    """
    a, b = a.copy(), b.copy()
    b[:, -1] += a[:, -1] * last
    reach = 1
    while reach < b.shape[1]:
        b[:, :-reach] += a[:, :-reach] * b[:, reach:]
        a[:, :-reach] *= a[:, reach:]
        reach *= 2
    return b


# --8<-- [end:scan]


def gae_scan(
    rewards: Array,
    values: Array,
    mask: NDArray[np.bool_],
    gamma: float = 1.0,
    lam: ArrayLike = 0.95,
    last_value: ArrayLike = 0.0,
) -> tuple[Array, Array]:
    """`gae` by two scans; a masked step is the identity (1, 0)."""
    own = np.where(mask, values, 0.0)
    after = backward_scan(np.where(mask, 0.0, 1.0), own, last_value)
    ends = np.broadcast_to(last_value, values.shape[:1])[:, None]
    next_value = np.concatenate([after[:, 1:], ends], axis=1)
    delta = np.where(mask, rewards + gamma * next_value - own, 0.0)
    decay = gamma * np.broadcast_to(lam, values.shape[:1])[:, None]
    running = backward_scan(np.where(mask, decay, 1.0), delta)
    advantages = np.where(mask, running, 0.0)
    return advantages, advantages + values


# --8<-- [start:decoupled]
def length_adaptive(mask: NDArray[np.bool_], alpha: float = 0.05) -> Array:
    """VAPO's lambda = 1 - 1/(alpha l), Eq. 5, at least 0: shape (B,)."""
    lengths = np.maximum(mask.sum(axis=1), 1)
    return np.maximum(1.0 - 1.0 / (alpha * lengths), 0.0)


def decoupled(
    rewards: Array, values: Array, mask: NDArray[np.bool_]
) -> tuple[Array, Array]:
    """Actor advantages by a lambda for its length, critic targets by 1."""
    actor = length_adaptive(mask)
    advantages, _ = gae(rewards, values, mask, lam=actor)
    _, targets = gae(rewards, values, mask, lam=1.0)
    return advantages, targets


# --8<-- [end:decoupled]


def whiten(advantages: Array, mask: NDArray[np.bool_]) -> Array:
    """Mean 0, sample deviation 1 over the mask; 0 elsewhere. (B, T)."""
    valid = advantages[mask]
    scale = np.sqrt(valid.var(ddof=1) + 1e-8)
    return np.where(mask, (advantages - valid.mean()) / scale, 0.0)


# --- A chain whose values are known exactly --------------------------------

TOKENS = 100
WIDTH = 2 * TOKENS + 3
START = TOKENS + 1
REWARD = (np.arange(WIDTH) > START).astype(float)
"""Reward of ending at each position: 1 if more +1 than -1 were drawn."""


def moved(x: Array, step: int) -> Array:
    """X (…, WIDTH) at the position that a token +1 or -1 leads to."""
    return np.roll(x, -step, axis=-1)


@cache
def chain() -> tuple[Array, Array]:
    """True values before each token, and how often a state is visited.

    Returns:
        V(t, position) and P(position at t), each (TOKENS, WIDTH). Both
        tokens have probability 1/2.
    """
    value, values = REWARD, np.zeros((TOKENS, WIDTH))
    for t in reversed(range(TOKENS)):
        value = (moved(value, 1) + moved(value, -1)) / 2
        values[t] = value
    visits = np.zeros((TOKENS, WIDTH))
    visits[0, START] = 1.0
    for t in range(TOKENS - 1):
        ahead = np.roll(visits[t], 1) + np.roll(visits[t], -1)
        visits[t + 1] = ahead / 2
    return values, visits


def moments(critic: Array, lambdas: Array) -> tuple[Array, Array]:
    """Mean and second moment of the GAE estimate, no sampling.

    Args:
        critic: V(t, position) before each token, (TOKENS, WIDTH).
        lambdas: Shape (L,); gamma is 1.

    Returns:
        E[A_t | position, token] and E[A_t^2 | position, token], both
        (TOKENS, 2, L, WIDTH); token 0 is +1, token 1 is -1.
    """
    lam = lambdas[:, None]
    mean = square = np.zeros((len(lambdas), WIDTH))  # of A_(t+1)
    means, squares = [], []
    for t in reversed(range(TOKENS)):
        last = t == TOKENS - 1
        target = REWARD if last else critic[t + 1]  # r_t + V(s_(t+1))
        delta = np.stack([moved(target, s) - critic[t] for s in (1, -1)])
        delta = delta[:, None]
        m = lam * np.stack([moved(mean, s) for s in (1, -1)])
        q = lam**2 * np.stack([moved(square, s) for s in (1, -1)])
        means.append(delta + m)
        squares.append(delta**2 + 2 * delta * m + q)
        mean, square = means[-1].mean(0), squares[-1].mean(0)
    return np.stack(means[::-1]), np.stack(squares[::-1])


def gradient_error(critic: Array, lambdas: Array) -> tuple[Array, Array]:
    """Bias and spread of one token's policy gradient, relative.

    The gradient on the logit of +1 is A times +1/2 or -1/2 (the score);
    its truth is (Q(+1) - Q(-1)) / 4. All three are averaged over the
    visited states of all tokens.

    Args:
        critic: V(t, position), (TOKENS, WIDTH).
        lambdas: Shape (L,).

    Returns:
        Root mean square of (expected - true) gradient, and root mean
        variance of one sample's gradient, each divided by the root mean
        square of the true gradient: two arrays (L,).
    """
    values, visits = chain()
    mean, square = moments(critic, lambdas)
    expected = (mean[:, 0] - mean[:, 1]) / 4
    variance = square.mean(1) / 4 - expected**2
    after = np.concatenate([values[1:], REWARD[None]])
    true = (moved(after, 1) - moved(after, -1))[:, None] / 4
    weights = visits[:, None]
    scale = (weights * true**2).sum()
    bias2 = (weights * (expected - true) ** 2).sum((0, 2)) / scale
    spread2 = (weights * variance).sum((0, 2)) / scale
    return np.sqrt(bias2), np.sqrt(spread2)


@cache
def critics() -> dict[str, Array]:
    """Three critics of the chain, each (TOKENS, WIDTH)."""
    values, _ = chain()
    prior = values[0, START]
    return {
        "exact": values,
        "half-trained": (values + prior) / 2,
        "blind": np.full_like(values, prior),
    }


NOISE = 0.1
"""Standard deviation of the noisy critic's error in each state."""


def noisy(seed: int) -> Array:
    """The exact values plus N(0, NOISE^2) in each state."""
    values, _ = chain()
    draw = np.random.default_rng(seed).normal(size=values.shape)
    return values + NOISE * draw


def noisy_errors(
    lambdas: Array, seeds: Iterable[int] = SEEDS
) -> list[Estimate]:
    """`gradient_error` of the noisy critic: L biases, then L spreads."""
    return each_over_seeds(
        lambda seed: np.ravel(gradient_error(noisy(seed), lambdas)), seeds
    )


def noisy_bias(lambdas: Array) -> Array:
    """Root mean square over the noise of the noisy critic's bias: (L,).

    Closed form. The errors are independent, so their squares add: that of
    a state l tokens ahead enters with (1 - lam) lam^(l - 1) and with the
    difference of the chances to get there after +1 and after -1.
    """
    values, visits = chain()
    after = np.concatenate([values[1:], REWARD[None]])
    true = (moved(after, 1) - moved(after, -1)) / 4
    scale = (visits * true**2).sum()
    walk = (np.arange(WIDTH) == START).astype(float)
    total = np.zeros(len(lambdas))
    for ahead in range(1, TOKENS):
        gap = ((moved(walk, 1) - moved(walk, -1)) ** 2).sum()
        weight = (1 - lambdas) * lambdas ** (ahead - 1) / 4
        total += (TOKENS - ahead) * weight**2 * gap  # tokens that see it
        walk = (moved(walk, 1) + moved(walk, -1)) / 2
    return NOISE * np.sqrt(total / scale)


LAMBDAS = np.append(1.0 - np.geomspace(1.0, 1e-4, 41), 1.0)


@cache
def curve(name: str) -> tuple[Array, Array]:
    """Bias and spread of a critic at LAMBDAS, two arrays (42,)."""
    return gradient_error(critics()[name], LAMBDAS)


def best_lambda(name: str, n: int) -> float:
    """The lambda of least squared error when n samples are averaged."""
    bias, spread = curve(name)
    return float(LAMBDAS[(bias**2 + spread**2 / n).argmin()])


# --- Other masks that circulate ---------------------------------------------


def every_position(
    rewards: Array, values: Array, gamma: float, lam: float
) -> Array:
    """GAE that knows no mask: tool and padding tokens are steps."""
    everywhere = np.ones(values.shape, dtype=bool)
    return gae(rewards, values, everywhere, gamma, lam)[0]


def zeroed(
    rewards: Array,
    values: Array,
    mask: NDArray[np.bool_],
    gamma: float,
    lam: float,
) -> Array:
    """GAE with values and rewards set to 0 off the mask, still steps."""
    return every_position(rewards * mask, values * mask, gamma, lam)


# --- Tables -----------------------------------------------------------------


def signed(value: float, digits: int = 3) -> str:
    """A number with a real minus sign and no negative zero."""
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")


def small(value: float) -> str:
    """Two digits; below 0.001 as a power of ten, "4.3·10⁻⁵"."""
    if value >= 1e-3:
        return f"{value:.2g}"
    digits, power = f"{value:.1e}".split("e-")
    raised = power.lstrip("0").translate(str.maketrans(*RAISED))
    return f"{digits}·10⁻{raised}"


RAISED = "0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"


def table_example() -> str:
    """Four tokens, reward 1 at the end: TD errors and GAE, four lambdas."""
    rewards = np.array([[0.0, 0.0, 0.0, 1.0]])
    values = np.array([[0.5, 0.6, 0.4, 0.8]])
    mask = np.ones((1, 4), dtype=bool)
    rows = [("$V(s_t)$", *values[0]), ("$r_t$", *rewards[0].astype(int))]
    for lam in (0.0, 0.95, 1.0):
        row = gae(rewards, values, mask, lam=lam)[0][0]
        name = {0.0: " $=\\delta_t$", 1.0: " $=1-V(s_t)$"}.get(lam, "")
        cells = (signed(x, 4) for x in row)
        rows.append((f"$\\lambda={lam:g}${name}", *cells))
    target = gae(rewards, values, mask, lam=0.95)[1][0]
    rows.append(
        ("target $\\hat A_t+V(s_t)$ at 0.95", *(signed(x, 4) for x in target))
    )
    return markdown_table(["", *(f"$t={t}$" for t in range(4))], rows)


def table_errors() -> str:
    """Relative bias and spread of the critics at six lambdas."""
    lambdas = np.array([0.0, 0.5, 0.9, 0.95, 0.99, 1.0])
    rows = []
    for name, critic in critics().items():
        bias, spread = gradient_error(critic, lambdas)
        cells = (
            f"{b:.2f} / {s:.1f}" for b, s in zip(bias, spread, strict=True)
        )
        rows.append((name, *cells))
    bias, spread = noisy_bias(lambdas), noisy_errors(lambdas)[len(lambdas) :]
    cells = (f"{b:.2f} / {s:.1f}" for b, s in zip(bias, spread, strict=True))
    rows.insert(1, ("noisy, sd 0.1", *cells))
    heads = ["critic", *(f"$\\lambda={x:g}$" for x in lambdas)]
    return markdown_table(heads, rows)


def table_decay() -> str:
    """Weight of the final TD error for a token some way before it."""
    rows = []
    distances = (20, 100, 1000, 10000)
    for lam in (0.95, 0.99, 0.999, 0.9999, 1.0):
        horizon = "∞" if lam == 1 else f"{1 / (1 - lam):,.0f}"
        cells = (small(lam**d) for d in distances)
        rows.append((f"{lam:g}", horizon, *cells))
    for length in (100, 1000, 10000):
        lam = 1 - 1 / (0.05 * length)
        cells = (small(lam**d) if d <= length else "–" for d in distances)
        horizon = f"{1 / (1 - lam):,.0f}"
        rows.append((f"VAPO, $l={length}$: {lam:g}", horizon, *cells))
    heads = ["$\\lambda$", "horizon", *(f"{d:,} before" for d in distances)]
    return markdown_table(heads, rows)


ROW = {
    "tokens": ("own", "own", "tool", "tool", "own", "own", "pad", "pad"),
    "values": (0.5, 0.6, 0.9, 0.1, 0.4, 0.8, 0.3, 0.3),
    "reward_at": 5,
}
"""One row: two turns, a tool's answer between them, two pad positions."""


def row() -> tuple[Array, Array, NDArray[np.bool_]]:
    """ROW as rewards, values and mask, each (1, 8)."""
    rewards = np.zeros((1, 8))
    rewards[0, ROW["reward_at"]] = 1.0
    values = np.array([ROW["values"]])
    return rewards, values, np.array([ROW["tokens"]]) == "own"


def table_masks() -> str:
    """The same row under three ways to treat tool and padding tokens."""
    rewards, values, mask = row()
    rows = []
    for lam in (0.95, 1.0):
        ways = {
            "skipped": gae(rewards, values, mask, lam=lam)[0],
            "values zeroed, still steps": zeroed(
                rewards, values, mask, 1.0, lam
            ),
            "every position a step": every_position(
                rewards, values, 1.0, lam
            ),
        }
        for name, advantages in ways.items():
            cells = (signed(x) for x in advantages[mask])
            rows.append((name, f"{lam:g}", *cells))
    heads = ["tool and pad tokens", "$\\lambda$"]
    heads += [f"token {i}" for i in np.flatnonzero(mask[0])]
    return markdown_table(heads, rows, "lrrrrr")


# --- Figures ----------------------------------------------------------------


def figure_tradeoff() -> Figure:
    """Bias of four critics, and the error of an average of n samples."""
    figure, (bias, error) = new_figure(5.4, rows=2, sharex=True)
    x = -np.log10(1.0 - LAMBDAS[:-1])
    styles = {
        "blind": ("C1", "-"),
        "half-trained": ("C0", "-"),
        "exact": ("C5", "-"),
    }
    for name, (color, line) in styles.items():
        bias.plot(x, curve(name)[0][:-1], line, color=color)
    bias.plot(x, noisy_bias(LAMBDAS[:-1]), "--", color="C2")
    label(bias, 0.9, 0.83, "blind", "C1")
    label(bias, 0.5, 0.49, "half-trained", "C0")
    label(bias, 0.12, 1.3, "noisy, sd 0.1", "C2")
    label(bias, 0.02, 0.0, "exact", "C5")
    bias.set(ylabel="bias / true gradient", ylim=(-0.06, 1.55))
    bias.set_title("Bias fades as λ nears 1, whatever the critic", loc="left")
    b, s = curve("half-trained")
    for n, color in ((10, "C3"), (100, "C0"), (1000, "C2"), (10000, "C1")):
        total = (b**2 + s**2 / n)[:-1]
        error.plot(x, total, "-", color=color)
        at = total.argmin()
        error.plot(x[at], total[at], "o", color=color)
        label(error, x[-1], total[-1], f"n = {n:,}", color, ha="right")
    error.set(yscale="log", ylabel="squared error", xlabel="λ")
    error.set_ylim(4e-3, 16)
    ticks = (0.0, 0.5, 0.95, 0.99, 0.999, 0.9999)
    error.set_xticks(
        [-np.log10(1.0 - t) for t in ticks], [f"{t:g}" for t in ticks]
    )
    error.set_title("Half-trained critic: more samples, larger λ", loc="left")
    return figure
