"""How are advantages computed in PPO and GRPO, and is the std needed?

Page:      docs/policy/advantage-estimation.md
Source:    GAE: Schulman et al. (2015), https://arxiv.org/abs/1506.02438;
           GRPO: Shao et al. (2024), https://arxiv.org/abs/2402.03300;
           without the std: Liu et al. (2025),
           https://arxiv.org/abs/2503.20783; leave-one-out: Ahmadian et al.
           (2024), https://arxiv.org/abs/2402.14740.
Notation:  G responses to one prompt, rewards R_1 … R_G; p the probability
           that the policy solves the prompt (reward 1, else 0); V(s_t) the
           critic's forecast of the return before token t.
Units:     advantages in units of reward, or of a standard deviation where
           one was divided by. Objectives are maximised.
"""

from collections.abc import Callable
from functools import cache
from itertools import product
from math import comb, factorial

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from snippets.show import label, markdown_table, new_figure

Array = NDArray[np.float64]


# --8<-- [start:ppo]
def gae(
    rewards: ArrayLike,
    values: ArrayLike,
    gamma: float = 1.0,
    lam: float = 1.0,
) -> tuple[Array, Array]:
    """PPO: one advantage per token, from a critic.

    Args:
        rewards: r_t of T tokens, shape (T,); for an outcome reward zero
            but for the last token (minus a KL penalty if there is one).
        values: V(s_t), the critic before each token, shape (T,). The
            value after the last token is 0.
        gamma: Discount per token.
        lam: GAE's λ: 1 is return minus V(s_t), 0 one TD error.

    Returns:
        Advantages (T,) and the critic's targets, advantage + V(s_t),
        shape (T,), formed before any whitening.
    """
    values = np.asarray(values, float)
    advantages, following, carried = np.zeros_like(values), 0.0, 0.0
    for t in reversed(range(len(values))):
        delta = rewards[t] + gamma * following - values[t]
        carried = delta + gamma * lam * carried
        advantages[t], following = carried, values[t]
    return advantages, advantages + values


def whiten(advantages: Array) -> Array:
    """Mean 0 and sample deviation 1 over every token of a batch, (N,)."""
    centred = advantages - advantages.mean()
    return centred / (advantages.std(ddof=1) + 1e-8)


# --8<-- [end:ppo]


# --8<-- [start:group]
def group_advantages(
    rewards: ArrayLike,
    divide: bool = True,
    ddof: int = 1,
    eps: float = 1e-6,
) -> Array:
    """GRPO: one advantage per response, from its siblings.

    Args:
        rewards: Of the G responses to one prompt, shape (..., G), G > 1.
        divide: By the group's standard deviation; Dr. GRPO does not.
        ddof: 1 divides the variance by G - 1, 0 by G.
        eps: Added to the deviation.

    Returns:
        Shape (..., G); every token of response i gets entry i.
    """
    rewards = np.asarray(rewards)
    advantages = rewards - rewards.mean(-1, keepdims=True)
    if divide:
        std = rewards.std(-1, ddof=ddof, keepdims=True)
        advantages = advantages / (std + eps)
    return advantages


def leave_one_out(rewards: ArrayLike) -> Array:
    """RLOO: R_i minus the mean of the other G - 1 rewards, (..., G)."""
    rewards = np.asarray(rewards, float)
    others = rewards.sum(-1, keepdims=True) - rewards
    return rewards - others / (rewards.shape[-1] - 1)


# --8<-- [end:group]


# --8<-- [start:weight]
def prompt_weight(
    p: float, group: int, advantages: Callable[[Array], Array]
) -> float:
    """The w in E[(1/G) Σ A_i ∇log π(o_i)] = w ∇p, for rewards 0 and 1.

    Exact for every estimator that treats equal rewards alike, since
    E[∇log π | solved] = ∇p / p and E[∇log π | failed] = -∇p / (1 - p).

    Args:
        p: Probability that the policy solves the prompt, 0 < p < 1.
        group: G.
        advantages: From rewards (G,) to advantages (G,).

    Returns:
        w. It is 1 for RLOO at every p.
    """
    weight = 0.0
    for k in range(group + 1):  # responses that solve it
        chance = comb(group, k) * p**k * (1 - p) ** (group - k)
        a = advantages(np.r_[np.ones(k), np.zeros(group - k)])
        pull = a[:k].sum() / p - a[k:].sum() / (1 - p)
        weight += chance * pull / group
    return weight


# --8<-- [end:weight]


def over_mean(rewards: Array) -> Array:
    """Centred and divided by the group's mean; zero if that is 0."""
    mean = rewards.mean()
    return (rewards - mean) / mean if mean else np.zeros_like(rewards)


def others_only(rewards: Array) -> Array:
    """Mean and deviation from the others; undivided if that is 0.

    NeMo RL's default, without its ε of 1e-6.
    """
    out = leave_one_out(rewards)
    for i in range(len(rewards)):
        others = np.delete(rewards, i)
        std = others.std(ddof=1) if len(others) > 1 else 0.0
        out[i] /= std if std > 1e-12 else 1.0
    return out


def centred(rewards: ArrayLike) -> Array:
    """`group_advantages` without the division."""
    return group_advantages(rewards, divide=False)


def exact_std(rewards: ArrayLike) -> Array:
    """`group_advantages` with ε = 0 where the rewards differ, else 0."""
    rewards = np.asarray(rewards, float)
    flat = rewards.std() == 0
    return group_advantages(rewards, eps=1.0 if flat else 0.0)


# --- The same rewards through PPO and GRPO ---------------------------------

REWARDS = [1.0, 0.0, 0.0, 0.0]
VALUES = [[0.25, 0.4, 0.7, 0.9], [0.25, 0.1], [0.25, 0.6, 0.1], [0.25]]
"""Four responses of one prompt: the critic before each of their tokens."""


def ppo_advantages(lam: float) -> list[Array]:
    """GAE of the four responses, one array of tokens each, γ = 1."""
    rows = []
    for reward, values in zip(REWARDS, VALUES, strict=True):
        rewards = np.zeros(len(values))
        rewards[-1] = reward
        rows.append(gae(rewards, values, lam=lam)[0])
    return rows


def whitened(rows: list[Array]) -> list[Array]:
    """`whiten` over all tokens of all rows, cut into rows again."""
    ends = np.cumsum([len(row) for row in rows])[:-1]
    return np.split(whiten(np.concatenate(rows)), ends)


def signed(values: ArrayLike, digits: int = 2) -> str:
    """Numbers with their sign, a real minus, a space between them."""
    shown = [f"{x:+.{digits}f}" for x in np.atleast_1d(values)]
    return " ".join(shown).replace("-", "−")


def table_same_rewards() -> str:
    """Four responses, rewards 1 0 0 0: what each method hands out."""
    full, mixed = ppo_advantages(1.0), ppo_advantages(0.95)
    white = whitened(mixed)
    grpo, loo = exact_std(REWARDS), leave_one_out(REWARDS)
    rows = [
        (
            f"{i + 1}, $R={REWARDS[i]:g}$",
            " ".join(f"{v:.2f}" for v in VALUES[i]),
            signed(full[i]),
            signed(mixed[i]),
            signed(white[i]),
            signed(grpo[i]),
            signed(centred(REWARDS)[i]),
            signed(loo[i]),
        )
        for i in range(4)
    ]
    heads = ["response", "critic $V(s_t)$", "PPO $\\lambda=1$"]
    heads += ["PPO $\\lambda=0.95$", "the same, whitened", "GRPO"]
    return markdown_table(heads + ["no std", "RLOO"], rows)


def figure_same_rewards() -> Figure:
    """Advantage of each token: PPO with GAE above, GRPO below."""
    figure, (top, bottom) = new_figure(4.4, rows=2, sharex=True)
    grpo = exact_std(REWARDS)
    shown = ((0, "solved"), (2, "failed"))
    for axes, rows in (
        (top, ppo_advantages(0.95)),
        (bottom, [np.full(len(VALUES[i]), grpo[i]) for i in range(4)]),
    ):
        for at, (i, name) in enumerate(shown):
            x = np.arange(1, len(rows[i]) + 1)
            axes.plot(x, rows[i], marker="o", color=f"C{at}")
            label(axes, x[-1], rows[i][-1], name, f"C{at}", xytext=(7, -4))
        axes.axhline(0, color="grey", alpha=0.5, linewidth=0.8)
    top.set_title("PPO: one number per token, from the critic")
    top.set(ylabel="advantage", ylim=(-0.8, 1.0))
    bottom.set_title("GRPO: one number per response")
    bottom.set(
        ylabel="advantage",
        xlabel="token of the response",
        ylim=(-1.0, 2.0),
        xticks=[1, 2, 3, 4],
        xlim=(0.8, 4.8),
    )
    return figure


# --- What a baseline does: every group enumerated ---------------------------

POLICY = np.array([0.4, 0.3, 0.2, 0.1])
SOLVES = np.array([0.0, 1.0, 0.0, 1.0])
"""Four possible answers, their probabilities and their rewards."""

GROUP = 4


def constant_baseline(value: float) -> Callable[[ArrayLike], Array]:
    """R_i minus the same number for every response."""
    return lambda rewards: np.asarray(rewards, float) - value


# --8<-- [start:moments]
def moments(
    advantages: Callable[[Array], Array], shift: float = 0.0
) -> tuple[Array, float]:
    """Exact mean and variance of the gradient over all groups of 4.

    Args:
        advantages: From rewards (N, G) to advantages (N, G).
        shift: Added to every reward.

    Returns:
        Mean (K,) of (1/G) Σ A_i ∇log π(o_i) in the K logits, and its
        variance, summed over the logits.
    """
    groups = np.array(list(product(range(len(POLICY)), repeat=GROUP)))
    chance = POLICY[groups].prod(1)  # (N,), sums to 1
    scores = np.eye(len(POLICY))[groups] - POLICY  # ∇log π, (N, G, K)
    a = advantages(SOLVES[groups] + shift)
    gradients = (a[:, :, None] * scores).mean(1)
    mean = chance @ gradients
    return mean, float(chance @ ((gradients - mean) ** 2).sum(1))


# --8<-- [end:moments]


def true_gradient() -> Array:
    """∇ E[R] in the logits: π_k (R_k - E[R])."""
    return POLICY * (SOLVES - POLICY @ SOLVES)


def best_constant() -> float:
    """E[‖∇log π‖² R] / E[‖∇log π‖²], the least noisy constant."""
    squared = ((np.eye(len(POLICY)) - POLICY) ** 2).sum(1)
    weight = POLICY * squared
    return float(weight @ SOLVES / weight.sum())


def rows_of_std(rewards: Array) -> Array:
    """`group_advantages` for the enumeration: 0 where all are equal."""
    centre = centred(rewards)
    std = rewards.std(-1, ddof=1, keepdims=True)
    flat = std < 1e-9
    return np.where(flat, 0.0, centre / np.where(flat, 1.0, std))


BASELINES: dict[str, Callable[[float], Callable[[Array], Array]]] = {
    "none": lambda shift: constant_baseline(0.0),
    "true mean $V(s)=p$": lambda s: constant_baseline(POLICY @ SOLVES + s),
    "best constant $b^*$": lambda s: constant_baseline(best_constant() + s),
    "mean of the others (RLOO)": lambda shift: leave_one_out,
    "group mean": lambda shift: centred,
    "group mean, $\\times\\,G/(G-1)$": lambda shift: (
        lambda rewards: centred(rewards) * GROUP / (GROUP - 1)
    ),
    "group mean, / group std (GRPO)": lambda shift: rows_of_std,
}
"""Name, and the estimator; a constant baseline moves with the rewards."""


def table_baselines() -> str:
    """Scale of the expected gradient and its noise, for each baseline."""
    truth = true_gradient()
    rows = []
    for name, make in BASELINES.items():
        scales, noises = [], []
        for shift in (0.0, 10.0):
            mean, variance = moments(make(shift), shift)
            scale = mean @ truth / (truth @ truth)
            scales.append(scale)
            noises.append(f"{variance / scale**2:.3g}")
        rows.append((name, f"{scales[0]:.3f}", *noises))
    heads = ["baseline", "E[gradient] / true one"]
    heads += ["variance, $R\\in\\{0,1\\}$", "$R\\in\\{10,11\\}$"]
    return markdown_table(heads, rows)


# --- Statistics of the group, statistics of the batch -----------------------

HARD_AND_MEDIUM = np.array([[1.0] + [0.0] * 7, [1.0] * 4 + [0.0] * 4])
"""Rewards of two prompts with 8 responses each, 1 and 4 of them right."""


# --8<-- [start:batch]
def batch_std_advantages(rewards: Array) -> Array:
    """TRL's scale_rewards="batch": group mean, deviation of all rewards.

    Args:
        rewards: Of P prompts with G responses, shape (P, G).

    Returns:
        Shape (P, G).
    """
    centred = rewards - rewards.mean(1, keepdims=True)
    return centred / (rewards.std(ddof=1) + 1e-4)


def reinforce_pp(rewards: Array, baseline: bool) -> Array:
    """REINFORCE++ without KL, responses of equal length, (P, G).

    Args:
        rewards: Shape (P, G).
        baseline: Subtract the group's mean first (its w/ Baseline form).

    Returns:
        Whitened over the whole batch, shape (P, G).
    """
    if baseline:
        rewards = rewards - rewards.mean(1, keepdims=True)
    return whiten(rewards.ravel()).reshape(rewards.shape)


# --8<-- [end:batch]


def table_batch() -> str:
    """A hard and a medium prompt in one batch, five normalisations."""
    r = HARD_AND_MEDIUM
    shown = {
        "GRPO: group mean, group std": np.array([exact_std(x) for x in r]),
        "Dr. GRPO: group mean": centred(r),
        "group mean, std of the batch's rewards": batch_std_advantages(r),
        "REINFORCE++ w/ Baseline": reinforce_pp(r, True),
        "REINFORCE++: batch mean, batch std": reinforce_pp(r, False),
    }
    rows = [
        (name, *(signed([a[i, 0], a[i, -1]], 3) for i in (0, 1)))
        for name, a in shown.items()
    ]
    heads = ["", "1 of 8 right: right, wrong", "4 of 8 right: right, wrong"]
    return markdown_table(heads, rows)


# --- The std as a weight on prompts -----------------------------------------

RATES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.95)


def table_weights() -> str:
    """The weight w of a prompt against its success rate, G = 8."""
    estimators = {
        "RLOO": leave_one_out,
        "no std": centred,
        "GRPO, $G=2$": (exact_std, 2),
        "GRPO, $G=3$": (exact_std, 3),
        "GRPO, $G=8$": exact_std,
        "GRPO, $G=64$": (exact_std, 64),
        "NeMo RL's default": others_only,
        "/ mean (MaxRL)": over_mean,
    }
    rows = []
    for name, spec in estimators.items():
        f, group = spec if isinstance(spec, tuple) else (spec, 8)
        weights = [prompt_weight(p, group, f) for p in RATES]
        rows.append((name, *(f"{w + 1e-9:.2f}" for w in weights)))
    limit = [1 / (p * (1 - p)) ** 0.5 for p in RATES]
    rows.append(("$1/\\sqrt{p(1-p)}$", *(f"{w:.2f}" for w in limit)))
    heads = ["advantage", *(f"$p={p:g}$" for p in RATES)]
    return markdown_table(heads, rows)


@cache
def weight_curves() -> tuple[Array, dict[str, Array]]:
    """Success rates (49,) and the weights the figure shows, (49,) each."""
    p = np.linspace(0.02, 0.98, 49)

    def curve(f: Callable[[Array], Array], group: int) -> Array:
        return np.array([prompt_weight(x, group, f) for x in p])

    curves = {f"std, G = {g}": curve(exact_std, g) for g in (2, 8, 64)}
    curves["no std"] = curve(centred, 8)
    return p, curves


def figure_weights() -> Figure:
    """Weight of a prompt, and the push on its log-odds, against p."""
    p, curves = weight_curves()
    figure, (top, bottom) = new_figure(5.4, rows=2, sharex=True)
    names = ("std, G = 64", "std, G = 8", "no std", "std, G = 2")
    for i, name in enumerate(names):
        top.plot(p, curves[name], color=f"C{i}")
    top.set_ylim(-0.5, 6.3)
    label(top, 0.04, 4.75, names[0], "C0", xytext=(4, 3))
    label(top, 0.12, 1.36, names[1], "C1", va="center", xytext=(0, 0))
    label(top, 0.5, 0.88, names[2], "C2", ha="center", xytext=(0, 4))
    label(top, 0.5, 0.72, names[3], "C3", ha="center", xytext=(0, -14))
    top.set_title("The std favours p near 0 and 1, more at large G")
    top.set_ylabel("weight w of ∇p")
    for i, name in enumerate(names[:3]):
        push = curves[name] * p * (1 - p)
        bottom.plot(p, 100 * push / push.max(), color=f"C{i}")
    bottom.set_title("The push on the log-odds still peaks at 0.5")
    label(bottom, 0.9, 61, names[0], "C0", ha="right", xytext=(28, 22))
    line = {"arrowstyle": "-", "color": "C1"}
    x, y = p[7], 100 * curves[names[1]][7] * p[7] * (1 - p[7])
    y /= curves[names[1]][24] * 0.25
    label(bottom, x, y, names[1], "C1", xytext=(32, -22), arrowprops=line)
    label(bottom, 0.86, 48, names[2], "C2", ha="right", xytext=(-8, -8))
    bottom.set(
        xlabel="success rate p of the prompt",
        ylabel="w p (1 − p), % of its peak",
        ylim=(0, 110),
        xlim=(0, 1),
    )
    return figure


# --- Where the std turns the gradient around --------------------------------


# --8<-- [start:lottery]
@cache
def lottery_push(group: int, divide: bool, q: float = 0.5) -> float:
    """Expected push on the logit of a risky strategy, exactly.

    A safe strategy pays 1. The risky one, chosen with probability q, pays
    10 with probability 0.2 and else 0, so 2 on average: it is better.

    Args:
        group: G.
        divide: By the group's standard deviation (ddof 1).
        q: Probability of the risky strategy, a sigmoid's output.

    Returns:
        E[(1/G) Σ A_i d log π(o_i) / d logit]; positive: chosen more.
    """
    push = 0.0
    for safe, wins in product(range(group + 1), repeat=2):
        losses = group - safe - wins
        if losses < 0 or group in (safe, losses, wins):
            continue  # all rewards equal: every advantage is 0
        ways = factorial(group) / factorial(safe)
        ways /= factorial(wins) * factorial(losses)
        chance = ways * (1 - q) ** safe
        chance *= (0.2 * q) ** wins * (0.8 * q) ** losses
        rewards = np.repeat([1.0, 10.0, 0.0], [safe, wins, losses])
        score = np.repeat([-q, 1 - q, 1 - q], [safe, wins, losses])
        a = group_advantages(rewards, divide, eps=0.0)
        push += chance * (a * score).mean()
    return push


# --8<-- [end:lottery]


def table_lottery() -> str:
    """Push on the better but riskier strategy against the group size."""
    rows = [
        (
            group,
            signed(lottery_push(group, False), 3),
            signed(lottery_push(group, True), 3),
        )
        for group in (2, 4, 8, 16, 32, 64)
    ]
    return markdown_table(["$G$", "no std", "divided by the std"], rows)


# --- Degenerate groups ------------------------------------------------------

GROUPS = {
    "all wrong": [0.0] * 8,
    "one of 8 right": [1.0] + [0.0] * 7,
    "4 of 8 right": [1.0] * 4 + [0.0] * 4,
    "7 of 8 right": [1.0] * 7 + [0.0],
    "all right, length penalty up to 0.01": [
        1.0,
        1.0,
        1.0,
        1.0,
        1.0,
        0.995,
        0.99,
        0.99,
    ],
    "all right, noise of 1e-4": [1.0001] + [1.0] * 7,
}


def table_degenerate() -> str:
    """Largest and smallest advantage of groups of 8, by ε and ddof."""
    rows = []
    for name, rewards in GROUPS.items():
        cells = []
        for ddof, eps in ((1, 1e-6), (0, 1e-6), (1, 1e-4)):
            a = group_advantages(rewards, ddof=ddof, eps=eps)
            cells.append(f"{signed(a.max())} / {signed(a.min())}")
        plain = centred(rewards)
        low = 5 if 0 < plain.max() < 0.1 else 3
        ends = f"{signed(plain.max(), low)} / {signed(plain.min(), low)}"
        rows.append((name, ends, *cells))
    heads = ["group", "no std", "$n-1$, $\\epsilon$ 1e-6"]
    heads += ["$n$, $\\epsilon$ 1e-6", "$n-1$, $\\epsilon$ 1e-4"]
    return markdown_table(heads, rows)
