"""Why train an actor with a critic instead of learning only a critic?

Page: docs/policy/actor-critic.md
Source: Sutton et al. 1999 (policy gradient theorem, compatible
    features); Schulman et al. 2015 (GAE). The problem, the counts, the
    argmax and the straight-through example are ours.
Notation: a response is T tokens out of K; there are N = K**T of them, in
    lexicographic order. s_t is the prefix of t tokens, s_0 the empty one.
    p is the probability of each response, R its reward (0 or 1), paid at
    the end and not discounted. V(s) is the expected R after prefix s,
    Q(s, a) = V(s + a), A = Q - V. The score is grad log pi(a_t | s_t).
Units: variances are totals over all parameters (the trace of the
    covariance of the gradient) for ONE response; expectations are exact
    sums over all N responses, no response is sampled. What is drawn, the
    logits of the actor and a wrong critic's errors, is drawn for ten seeds
    where a sentence rests on it.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import product
from math import erfc, pi, sqrt
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from snippets.estimate import SEEDS, Estimate, each_over_seeds
from snippets.show import label, markdown_table, new_figure

Array = np.ndarray


# --8<-- [start:values]
def given_prefix(x: Array, p: Array, vocab: int, t: int) -> Array:
    """E[x | the first t tokens], written at every response: shape of x."""
    prefixes = vocab**t
    mass = p.reshape(prefixes, -1)
    grouped = x.reshape(*mass.shape, -1)
    mean = np.einsum("gn,gnd->gd", mass, grouped) / mass.sum(1)[:, None]
    return np.repeat(mean, mass.shape[1], axis=0).reshape(x.shape)


def exact_values(reward: Array, p: Array, vocab: int, length: int) -> Array:
    """Column t: V(s_t); column 0 is J = E[R], column T is R. (N, T + 1)."""
    columns = range(length + 1)
    return np.stack(
        [given_prefix(reward, p, vocab, t) for t in columns], axis=1
    )


# --8<-- [end:values]


# --8<-- [start:weights]
def weights(critic: Array, lam: float) -> Array:
    """GAE at gamma = 1: the number that multiplies each token's score.

    Args:
        critic: (N, T + 1), any guess of V(s_t); its last column must be
            the reward itself, because nothing is bootstrapped at the end.
        lam: 1: R - V(s_t), the critic is only a baseline.
            0: V(s_{t+1}) - V(s_t), the critic replaces the return.

    Returns:
        (N, T).
    """
    delta = np.diff(critic, axis=1)
    total = np.zeros_like(delta)
    running = np.zeros(len(delta))
    for t in reversed(range(delta.shape[1])):
        running = delta[:, t] + lam * running
        total[:, t] = running
    return total


# --8<-- [end:weights]


# --8<-- [start:moments]
def moments(p: Array, scores: Array, weight: Array) -> tuple[Array, float]:
    """Mean and total variance of sum_t weight_t * score_t, one response.

    Args:
        p: (N,) probability of each response.
        scores: (N, T, D) gradient of log pi(a_t | s_t).
        weight: (N, T) what multiplies it.
    """
    gradient = np.einsum("nt,ntd->nd", weight, scores)
    mean = p @ gradient
    return mean, float(p @ ((gradient - mean) ** 2).sum(axis=1))


# --8<-- [end:moments]


# --8<-- [start:compatible]
def compatible(p: Array, scores: Array, advantage: Array) -> Array:
    """The least-squares critic that is linear in the score, (N, T).

    It minimises E[sum_t (A_t - w . score_t)^2] over w, under the policy's
    own visits. Put in place of A it leaves the gradient exact.
    """
    size = scores.shape[2]
    root = np.sqrt(p)[:, None]
    features = (root[:, :, None] * scores).reshape(-1, size)
    target = (root * advantage).reshape(-1)
    w = np.linalg.lstsq(features, target, rcond=None)[0]
    return scores @ w


# --8<-- [end:compatible]


# --8<-- [start:pathwise]
def pathwise(policy: Array, q: Array, bend: float) -> Array:
    """Expected straight-through gradient on the logits, one token.

    The critic reads a vector x: f(x) = q.x + bend * (x.x - 1). On one-hot
    x, all it is ever trained on, f is q whatever bend is. Its derivative
    there, q + 2 bend x, is not.
    """
    jacobian = np.diag(policy) - np.outer(policy, policy)
    return sum(
        chance * jacobian @ (q + 2 * bend * one_hot)
        for chance, one_hot in zip(policy, np.eye(len(q)), strict=True)
    )


# --8<-- [end:pathwise]


# --8<-- [start:greedy]
def p_best(vocab: int, gap: float, rule: str) -> float:
    """Probability of choosing the one good token from a noisy critic.

    The critic says gap + noise for it and noise for the vocab - 1 others,
    noise N(0, 1) and independent: the unit is the critic's error.

    Args:
        vocab: Number of tokens, at least 2.
        gap: How much better the good token is, in critic errors.
        rule: "argmax" of the critic; "prior": a policy that gave the good
            token 1/2 and shares the rest, times exp(critic), normalised
            (limit of a large vocabulary).
    """
    x = np.linspace(-8, 8, 1601)
    density = np.exp(-x * x / 2) / sqrt(2 * pi)
    if rule == "argmax":
        above = np.array([0.5 * erfc((v + gap) / sqrt(2)) for v in x])
        won = np.exp((vocab - 1) * np.log1p(-above))
    else:
        won = 1 / (1 + np.exp(0.5 - gap - x))
    return float((density * won).sum() * (x[1] - x[0]))


# --8<-- [end:greedy]


# --- The problem ----------------------------------------------------------


class Problem(NamedTuple):
    """Every response of a small language model, with its reward.

    Attributes:
        vocab: K.
        length: T.
        responses: (N, T) tokens.
        p: (N,) probabilities under the policy.
        scores: (N, T, D), D = (K + 1) * K logits: one row for each last
            token and one for the start. The policy sees the last token
            only, the critic the whole prefix.
        reward: (N,) 0 or 1.
        values: (N, T + 1) exact V(s_t).
    """

    vocab: int
    length: int
    responses: Array
    p: Array
    scores: Array
    reward: Array
    values: Array


def bigram(logits: Array, length: int) -> tuple[Array, Array, Array]:
    """All responses of a bigram policy, their probabilities and scores."""
    vocab = logits.shape[1]
    responses = np.array(list(product(range(vocab), repeat=length)))
    start = np.full((len(responses), 1), vocab)
    last = np.concatenate([start, responses[:, :-1]], axis=1)
    policy = np.exp(logits)
    policy /= policy.sum(axis=1, keepdims=True)
    p = policy[last, responses].prod(axis=1)
    tokens, rows = np.eye(vocab)[responses], np.eye(vocab + 1)[last]
    scores = np.einsum("ntb,ntk->ntbk", rows, tokens - policy[last])
    return responses, p, scores.reshape(len(p), length, -1)


@cache
def problem(length: int = 6, rule: str = "points") -> Problem:
    """Tokens 0, 1, 2 are points.

    Args:
        length: T.
        rule: "points": right with at least T points in all, so each token
            tells something. "parity": right if the points are a multiple
            of 3, under a uniform policy: nothing is known before the
            last token.
    """
    logits = 0.5 * np.random.default_rng(0).normal(size=(4, 3))
    if rule == "parity":
        logits = np.zeros_like(logits)
    responses, p, scores = bigram(logits, length)
    total = responses.sum(axis=1)
    right = total % 3 == 0 if rule == "parity" else total >= length
    reward = right.astype(float)
    values = exact_values(reward, p, 3, length)
    return Problem(3, length, responses, p, scores, reward, values)


def factors(seed: int) -> tuple[float, float, float, float]:
    """What an exact critic saves for an actor with other logits.

    Variance of REINFORCE over that of R - J, share of the latter that
    R - V removes, REINFORCE over Q - V, REINFORCE over Q.
    """
    logits = 0.5 * np.random.default_rng(seed).normal(size=(4, 3))
    responses, p, scores = bigram(logits, 6)
    reward = (responses.sum(axis=1) >= 6).astype(float)
    values = exact_values(reward, p, 3, 6)
    plain, mean, baseline, exact, future = (
        moments(p, scores, weight)[1]
        for weight in (
            every_token(reward),
            every_token(reward - p @ reward),
            weights(values, 1.0),
            weights(values, 0.0),
            values[:, 1:],
        )
    )
    return plain / mean, 1 - baseline / mean, plain / exact, plain / future


ERROR = 0.2
"""Standard deviation of the wrong critic's error, one draw per prefix."""


def noisy_critic(generator: np.random.Generator, error: float) -> Array:
    """The exact values plus N(0, error^2), one draw for each prefix."""
    at = problem()
    critic = at.values.copy()
    for t in range(at.length):
        draws = generator.normal(size=at.vocab**t)
        spread = at.vocab ** (at.length - t)
        critic[:, t] += error * np.repeat(draws, spread)
    return critic


def constant_critic(value: float) -> Array:
    """A critic that has learned nothing: the same value everywhere."""
    at = problem()
    critic = np.full_like(at.values, value)
    critic[:, -1] = at.reward
    return critic


def every_token(x: Array) -> Array:
    """The same weight (N,) for each of the T tokens: (N, T)."""
    return np.repeat(x[:, None], problem().length, axis=1)


def best_constant(p: Array, scores: Array, reward: Array) -> float:
    """The constant baseline of least variance: E[R |S|^2] / E[|S|^2]."""
    size = p * (scores.sum(axis=1) ** 2).sum(axis=1)
    return float(size @ reward / size.sum())


def group_variance(group: int) -> float:
    """Variance per response with the mean of the others as baseline.

    group * Var(mean over the group of S_i * (R_i - mean of the others)).
    Two members are correlated through each other's baseline; the sum is
    closed: E|S|^2 (R-J)^2 + E|S|^2 Var(R) / (G-1)
    + |grad J|^2 / (G-1) - |grad J|^2.
    """
    at = problem()
    total = at.scores.sum(axis=1)
    size = at.p * (total**2).sum(axis=1)
    centred = at.reward - at.p @ at.reward
    slope = at.p @ (centred[:, None] * total)
    own = size @ centred**2
    others = size.sum() * (at.p @ centred**2) / (group - 1)
    return float(own + others + slope @ slope * (1 / (group - 1) - 1))


def all_tokens_variance() -> float:
    """Sum over every next token in place of the sampled one."""
    at = problem()
    advantage = np.diff(at.values, axis=1)
    gradient = sum(
        given_prefix(
            advantage[:, t, None] * at.scores[:, t], at.p, at.vocab, t
        )
        for t in range(at.length)
    )
    mean = at.p @ gradient
    return float(at.p @ ((gradient - mean) ** 2).sum(axis=1))


def gradient() -> Array:
    """The exact grad J of the standard problem: (D,)."""
    at = problem()
    return moments(at.p, at.scores, every_token(at.reward))[0]


ESTIMATORS = {
    "R (REINFORCE)": lambda at: every_token(at.reward),
    "R − J (mean reward)": lambda at: every_token(
        at.reward - at.p @ at.reward
    ),
    "R − best constant": lambda at: every_token(
        at.reward - best_constant(at.p, at.scores, at.reward)
    ),
    "R − V (λ = 1)": lambda at: weights(at.values, 1.0),
    "Q, no baseline": lambda at: at.values[:, 1:],
    "Q − V (λ = 0)": lambda at: weights(at.values, 0.0),
}
"""What multiplies the score, as (N, T), with an exact critic."""


def wrong_critics() -> dict[str, Array]:
    """Name and (N, T + 1) values of the critics without a random error."""
    return {
        "exact": problem().values,
        "constant ½": constant_critic(0.5),
        "1 − V": np.column_stack(
            [1 - problem().values[:, :-1], problem().reward]
        ),
    }


def bias_and_variance(critic: Array, lam: float) -> tuple[float, ...]:
    """Relative bias, cosine with grad J, variance of one response."""
    at, true = problem(), gradient()
    mean, variance = moments(at.p, at.scores, weights(critic, lam))
    size = np.linalg.norm(true)
    cosine = mean @ true / size / np.linalg.norm(mean)
    return float(np.linalg.norm(mean - true) / size), float(cosine), variance


def noisy_results(lam: float, seeds: Iterable[int] = SEEDS) -> list[Estimate]:
    """`bias_and_variance` of V + noise, over the noise."""

    def result(seed: int) -> tuple[float, ...]:
        generator = np.random.default_rng(seed)
        return bias_and_variance(noisy_critic(generator, ERROR), lam)

    return each_over_seeds(result, seeds)


def squared_weights(length: int, rule: str) -> tuple[float, float, float]:
    """sum_t E[weight_t^2] / Var(R): mean baseline, R - V, Q - V."""
    at = problem(length, rule)
    spread = at.p @ (at.reward - at.p @ at.reward) ** 2
    shown = (
        (at.reward - at.p @ at.reward)[:, None].repeat(length, axis=1),
        weights(at.values, 1.0),
        weights(at.values, 0.0),
    )
    one, two, three = (float(at.p @ (w**2).sum(1) / spread) for w in shown)
    return one, two, three


# --- Tables ---------------------------------------------------------------


def needed(variance: float) -> int:
    """Responses for a root-mean-square error of 10 % of the gradient."""
    true = gradient()
    return int(np.ceil(variance / (0.01 * true @ true)))


def table_variance() -> str:
    """Variance of one response's gradient, and responses for 10 % error."""
    at = problem()
    rows = []
    for name, weight in ESTIMATORS.items():
        variance = moments(at.p, at.scores, weight(at))[1]
        learned = "Q" in name or "V" in name
        rows.append((name, "yes" if learned else "no", variance))
    rows.insert(3, ("R − mean of 7 others", "no", group_variance(8)))
    rows.append(("Q − V, all next tokens", "yes", all_tokens_variance()))
    cells = [(n, c, f"{v:.3f}", f"{needed(v):,}") for n, c, v in rows]
    heads = ["weight of the score", "critic", "variance", "for 10 % error"]
    return markdown_table(heads, cells)


def table_length() -> str:
    """Summed squared weight over Var(R), two rewards, four lengths."""
    rows = []
    for length in (1, 2, 4, 8):
        points = squared_weights(length, "points")
        parity = squared_weights(length, "parity")
        rows.append(
            (
                length,
                f"{points[0]:.2f}",
                f"{points[1]:.2f}",
                f"{points[2]:.2f}",
                f"{parity[1]:.2f}",
                f"{parity[2]:.2f}",
            )
        )
    heads = ["tokens", "R − J", "R − V", "Q − V"]
    return markdown_table(heads + ["parity: R − V", "Q − V"], rows, "r" * 6)


def table_wrong() -> str:
    """Bias and variance of wrong critics, as baseline and bootstrapped."""
    rows = []
    for name, critic in wrong_critics().items():
        cells = [name]
        for lam in (1.0, 0.95, 0.0):
            bias, cosine, variance = bias_and_variance(critic, lam)
            cells.append(f"{100 * bias:.0f} %, {variance:.2f}")
        cells.append(f"{cosine:.2f}".replace("-", "−"))
        rows.append(cells)
    noisy = ["V + noise"]
    for lam in (1.0, 0.95, 0.0):
        bias, cosine, variance = noisy_results(lam)
        percent = Estimate(tuple(100 * b for b in bias.values))
        error = f"{percent:.0f}" if lam < 1 else "0"
        noisy.append(f"{error} %, {variance:.2f}")
    rows.insert(1, [*noisy, f"{cosine:.2f}"])
    heads = ["critic", "λ = 1", "λ = 0.95", "λ = 0", "cosine, λ = 0"]
    return markdown_table(heads, rows)


POLICY, Q_VALUES = np.array([0.6, 0.3, 0.1]), np.array([0.5, 0.7, 0.4])
"""Three tokens for the gradient through the critic; the second is best."""


# --- Figures --------------------------------------------------------------


def rms_error(bias: float, variance: float, n: Sequence[float]) -> Array:
    """RMS error of the mean of n gradients, relative to |grad J|."""
    true = gradient()
    return np.sqrt(bias**2 + variance / (true @ true) / np.asarray(n))


def figure_error() -> Figure:
    """RMS error against the number of responses, exact and wrong critics."""
    figure, axes = new_figure(3.6)
    n = np.geomspace(1, 10_000, 81)
    at = problem()
    curves = []
    for name, color, key in (
        ("REINFORCE", "C5", "R (REINFORCE)"),
        ("exact Q − V", "C0", "Q − V (λ = 0)"),
    ):
        variance = moments(at.p, at.scores, ESTIMATORS[key](at))[1]
        curves.append((name, color, rms_error(0.0, variance, n)))
    for lam, color in ((1.0, "C2"), (0.0, "C1")):
        bias, _, variance = noisy_results(lam)
        pairs = zip(bias.values, variance.values, strict=True)
        draws = np.array([rms_error(b, v, n) for b, v in pairs])
        middle, spread = draws.mean(axis=0), draws.std(axis=0, ddof=1)
        low, high = middle - spread, middle + spread
        axes.fill_between(n, low, high, color=color, alpha=0.2, lw=0)
        curves.append((f"wrong V, λ = {lam:g}", color, middle))
    for name, color, curve in curves:
        axes.plot(n, curve, color=color)
        label(axes, n[-1], curve[-1], name, color, xytext=(4, -4))
    axes.set(xscale="log", yscale="log", xlim=(1, 90_000))
    axes.set_xlabel("responses averaged")
    axes.set_ylabel("error / size of the gradient")
    axes.xaxis.set_ticks([1, 10, 100, 1000, 10_000])
    axes.xaxis.set_ticklabels(["1", "10", "100", "1k", "10k"])
    axes.yaxis.set_ticks([0.01, 0.1, 1], ["1 %", "10 %", "100 %"])
    axes.set_title("A wrong critic: noise at λ = 1, a floor at λ = 0")
    return figure


VOCABULARIES = np.unique(np.geomspace(2, 150_000, 31).astype(int))
"""Numbers of tokens on the axis; a large vocabulary is at its end."""


def figure_argmax() -> Figure:
    """How often the best token is chosen, against the vocabulary."""
    figure, axes = new_figure(3.2)
    sizes = VOCABULARIES
    for gap, color, at in ((3.0, "C1", 15), (5.0, "C2", -1)):
        y = [p_best(int(v), gap, "argmax") for v in sizes]
        axes.plot(sizes, y, color=color)
        name = f"argmax, gap {gap:g}"
        side = {"xytext": (4, 5)}
        if at < 0:
            side = {"xytext": (0, -14), "ha": "right"}
        label(axes, sizes[at], y[at], name, color, **side)
    many = sizes[sizes > 300]
    prior = [p_best(int(v), 3.0, "prior") for v in many]
    axes.plot(many, prior, color="C0")
    name = "policy × exp(critic), gap 3"
    label(axes, many[-1], 1.0, name, "C0", ha="right", xytext=(0, 3))
    axes.set(xscale="log", ylim=(0, 1.14))
    axes.set_xlabel("tokens to choose from")
    axes.set_ylabel("P(best token)")
    axes.set_title("More tokens, more errors for the argmax to find")
    return figure
