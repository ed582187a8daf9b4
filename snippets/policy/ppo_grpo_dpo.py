"""How do PPO, GRPO and DPO differ, and when does each fit?

Page: policy/ppo-grpo-dpo

Source: Rafailov et al. 2023 (DPO's optimum and loss); Shao et al. 2024
    (group advantages); ZeRO's count of bytes per parameter.
Notation: w and l are the preferred and the other answer of a pair; margin
    is log(pi/pi_ref)(w) - log(pi/pi_ref)(l); beta the KL coefficient.
Units: nats; bytes are counted in GB = 1e9.
"""

from functools import cache

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from snippets.show import label, markdown_table, new_figure

Array = NDArray[np.float64]


def log_softmax(z: Array) -> Array:
    """Log-probabilities along the last axis."""
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


# --- The three updates ----------------------------------------------------


# --8<-- [start:updates]
def dpo_loss(margin: Array | float, beta: float) -> Array:
    """-log sigmoid(beta * margin) of a pair, minimised."""
    return np.logaddexp(0.0, -beta * np.asarray(margin))


def dpo_push(margin: Array | float, beta: float) -> Array:
    """Coefficient of grad log pi(w) - grad log pi(l) in DPO's descent."""
    return beta / (1 + np.exp(beta * np.asarray(margin)))


def group_advantages(rewards: Array) -> Array:
    """GRPO: (G,) rewards of one prompt to advantages; equal rewards: 0."""
    if rewards.max() == rewards.min():
        return np.zeros(rewards.shape)
    return (rewards - rewards.mean()) / rewards.std(ddof=1)


def kl_optimum(ref: Array, reward: Array, beta: float) -> Array:
    """Argmax of E[reward] - beta KL(pi || ref): what all three aim at.

    Args:
        ref: (K,) probabilities of the reference.
        reward: (K,) rewards of the answers.
        beta: KL coefficient.
    """
    return np.exp(log_softmax(np.log(ref) + reward / beta))


# --8<-- [end:updates]


# --- The same pairs, two ways ---------------------------------------------

REF = np.array([0.10, 0.20, 0.30, 0.25, 0.13, 0.02])
REWARD = np.array([2.0, 1.5, 1.0, 0.5, 0.0, -3.0])
BETA = 0.5
SEEN = 5
"""The pairs compare the first five answers; the sixth is never shown."""


def pair_loss(pi: Array, answers: int, beta: float = BETA) -> float:
    """Expected DPO loss; pairs uniform, labels by Bradley-Terry of REWARD.

    Args:
        pi: (6,) probabilities.
        answers: Pairs are drawn from the first so many answers.
        beta: DPO's coefficient.
    """
    h = np.log(pi / REF)[:answers]
    margin = h[:, None] - h[None, :]
    gap = REWARD[:answers, None] - REWARD[None, :answers]
    chance = 1 / (1 + np.exp(-gap))
    off = ~np.eye(answers, dtype=bool)
    return 2 * float((chance * dpo_loss(margin, beta))[off].mean())


def from_reference(answers: int) -> Array:
    """Where DPO's gradient descent on free logits, from REF, ends.

    Every pair moves two logits by opposite amounts: the sum over the
    answers in the pairs stays, and answers outside do not move.
    """
    shift = np.zeros_like(REF)
    seen = REWARD[:answers]
    shift[:answers] = (seen - seen.mean()) / BETA
    return np.exp(log_softmax(np.log(REF) + shift))


def with_unseen(mass: float) -> Array:
    """The same odds among the seen answers, a given mass on the unseen."""
    pi = from_reference(SEEN)
    kept = pi[:SEEN] / pi[:SEEN].sum() * (1 - mass)
    return np.append(kept, mass)


def same_pairs() -> dict[str, tuple[Array, float]]:
    """Policies that preference pairs lead to, with their DPO loss."""
    policies = {
        "reference": REF,
        "optimum with the true reward": kl_optimum(REF, REWARD, BETA),
        "DPO, pairs of all six": from_reference(6),
        "DPO, pairs of five, from the reference": from_reference(SEEN),
        "another minimum on the pairs of five": with_unseen(0.5),
        "and one more": with_unseen(0.95),
    }
    return {name: (pi, pair_loss(pi, SEEN)) for name, pi in policies.items()}


def table_pairs() -> str:
    """Loss on the pairs, mass on the answer no pair shows, true reward."""
    rows = []
    for name, (pi, loss) in same_pairs().items():
        kl = float((pi * np.log(pi / REF)).sum())
        rows.append(
            (
                name,
                f"{loss:.4f}",
                f"{pi[5]:.4f}",
                f"{pi @ REWARD:.2f}".replace("-", "−"),
                f"{kl:.2f}",
            )
        )
    heads = ["policy", "loss on the pairs of five", "mass on the unseen"]
    return markdown_table(heads + ["true reward", "KL to reference"], rows)


# --- Likelihood displacement ----------------------------------------------

FEATURES = np.array([[1.0, 0.2], [1.0, 0.0], [0.0, 1.0]])
START = np.array([0.3, 0.3, 0.4])
"""Chosen, rejected, other: the first two answers are nearly alike."""


@cache
def displaced(
    steps: int = 400,
    rate: float = 1.0,
    beta: float = 1.0,
    sft: float = 0.0,
    other: float = 0.0,
    kl: float = 0.0,
) -> dict[str, Array]:
    """Train two shared weights on one pair: DPO, and a policy gradient.

    Logits are log START + FEATURES @ weights; START is the reference.

    Args:
        steps: Steps of gradient descent or ascent.
        rate: Step size.
        beta: DPO's coefficient.
        sft: Weight of -log pi(chosen), added to DPO's loss.
        other: Reward of the third answer for the policy gradient, which is
            exact; the chosen answer has 1, the rejected 0.
        kl: Coefficient of KL(pi || START) in the policy gradient.

    Returns:
        For each method the (steps + 1, 3) probabilities.
    """
    reward = np.array([1.0, 0.0, other])
    runs = {}
    for method in ("DPO", "policy gradient"):
        weights, path = np.zeros(2), []
        for _ in range(steps + 1):
            pi = np.exp(log_softmax(np.log(START) + FEATURES @ weights))
            path.append(pi)
            h = np.log(pi / START)
            if method == "DPO":
                push = dpo_push(h[0] - h[1], beta)
                g = push * (FEATURES[0] - FEATURES[1])
                g = g + sft * (FEATURES[0] - pi @ FEATURES)
            else:
                gain = reward - kl * h
                g = (pi * (gain - pi @ gain)) @ FEATURES
            weights = weights + rate * g
        runs[method] = np.array(path)
    return runs


# --- Costs ----------------------------------------------------------------


# --8<-- [start:bytes]
def gigabytes(billions: float, trained: int, frozen: int) -> float:
    """Unsharded parameter state: 16 bytes if trained, 2 if only run.

    Args:
        billions: Parameters of one model, in 1e9.
        trained: Models with gradients, master weights and Adam's moments.
        frozen: Models in 16 bits that only run forward.
    """
    return billions * (16 * trained + 2 * frozen)


# --8<-- [end:bytes]

COPIES = [
    ("PPO, critic, reference, reward model, engine", 2, 3),
    ("PPO, critic, $\\beta=0$, rules, engine", 2, 1),
    ("GRPO, reference, reward model, engine", 1, 3),
    ("GRPO, reference, rules, engine", 1, 2),
    ("GRPO, $\\beta=0$, rules, engine", 1, 1),
    ("DPO, reference", 1, 1),
    ("DPO, reference log-probs stored", 1, 0),
]


def table_bytes() -> str:
    """Parameter state of each method for two sizes."""
    rows = [
        (name, trained, frozen)
        + tuple(f"{gigabytes(b, trained, frozen):g}" for b in (7, 32))
        for name, trained, frozen in COPIES
    ]
    heads = ["method", "trained", "run only", "7 B: GB", "32 B: GB"]
    return markdown_table(heads, rows)


def table_push() -> str:
    """DPO's loss and push against the margin, for two betas."""
    rows = []
    for margin in (-10, -2, 0, 2, 10):
        cells = []
        for beta in (0.1, 0.5):
            cells += [
                f"{dpo_loss(margin, beta):.4f}",
                f"{dpo_push(margin, beta):.4f}",
            ]
        rows.append((f"{margin}".replace("-", "−"), *cells))
    heads = ["margin", "loss, $\\beta=0.1$", "push"]
    return markdown_table(
        heads + ["loss, $\\beta=0.5$", "push"], rows, "rrrrr"
    )


def silent(p: float, group: int) -> float:
    """Chance that all of a group's 0/1 rewards are equal."""
    return p**group + (1 - p) ** group


# --- Figure ---------------------------------------------------------------


def figure_displacement() -> Figure:
    """One pair, alike answers: DPO and a policy gradient, probabilities."""
    figure, axes = new_figure(4.6, rows=2, sharex=True)
    titles = {
        "DPO": "DPO: the loss falls, and so does the chosen answer",
        "policy gradient": "Sampling scores the third answer and avoids it",
    }
    names = (
        ("chosen", "C0", "-"),
        ("rejected", "C1", "--"),
        ("the other", "C2", ":"),
    )
    places = {
        "DPO": ((75, 0.24), (75, 0.07), (190, 0.82)),
        "policy gradient": ((190, 0.8), (75, 0.23), (150, 0.08)),
    }
    for panel, (method, path) in zip(axes, displaced().items(), strict=True):
        for k, (name, color, line) in enumerate(names):
            panel.plot(path[:, k], line, color=color)
            label(panel, *places[method][k], name, color)
        panel.set(ylabel="probability", ylim=(-0.04, 1.04))
        panel.set_title(titles[method], loc="left")
    axes[1].set_xlabel("step")
    return figure
