"""What does DAPO change, improvement by improvement?

Page:      docs/policy/dapo.md
Source:    Yu et al. (2025), "DAPO: An Open-Source LLM Reinforcement Learning
           System at Scale", https://arxiv.org/abs/2503.14476, equations 7
           to 13, section 4.1 and Table 1; reruns and script: verl-recipe,
           dapo/README.md and dapo/run_dapo_qwen2.5_32b.sh.
Notation:  G answers to one prompt form a group; p is the prompt's pass
           rate; a group is kept if it holds right and wrong answers; f is
           the share of groups that are kept; R a reward, A an advantage.
Units:     lengths in tokens, costs in generated answers, AIME scores in
           per cent.
"""

from math import log

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from snippets.show import label, markdown_table, new_figure

Array = NDArray[np.float64]

# --- Dynamic sampling -----------------------------------------------------


# --8<-- [start:sampling]
def kept_share(p: float | Array, group: int) -> float | Array:
    """Probability that G answers are neither all right nor all wrong.

    Args:
        p: Pass rate of the prompt, in [0, 1]; any shape.
        group: G, the answers to one prompt.

    Returns:
        1 - p^G - (1 - p)^G, shape of p: 0 at p = 0 and 1, and for G = 1.
    """
    return 1 - p**group - (1 - p) ** group


def cost(p: float | Array, group: int) -> float | Array:
    """Expected answers to generate for one kept group (geometric law)."""
    return group / kept_share(p, group)


# --8<-- [end:sampling]


def rounds(
    share: float, need: int = 512, prompts: int = 1536, limit: int = 10
) -> tuple[float, float]:
    """Generate whole rounds until enough groups are kept, as verl-recipe.

    Args:
        share: f, chance that a group is kept, independent of the others.
        need: Groups in the training batch.
        prompts: Groups generated in each round; the surplus is dropped.
        limit: Rounds after which the trainer gives up.

    Returns:
        Expected rounds of a step, and the chance that it gives up.
    """
    short = [binomial_below(need, prompts * k, share) for k in range(limit)]
    failed = binomial_below(need, prompts * limit, share)
    return sum(short), failed


def binomial_below(k: int, n: int, p: float) -> float:
    """P(Bin(n, p) < k), from the logarithms of the terms; 0 < p < 1."""
    if k > n:
        return 1.0
    log_factorial = np.concatenate([[0.0], np.log(np.arange(1, n + 1))])
    log_factorial = log_factorial.cumsum()
    j = np.arange(k)
    terms = log_factorial[n] - log_factorial[j] - log_factorial[n - j]
    terms += j * log(p) + (n - j) * np.log1p(-p)
    return min(float(np.exp(terms).sum()), 1.0)


# --- Overlong answers -----------------------------------------------------


def soft_overlong(
    length: int | Array, longest: int = 20480, cache: int = 4096
) -> Array:
    """The soft overlong punishment, added to the reward (Eq. 13).

    Args:
        length: Tokens of the answer, any shape.
        longest: L_max, where generation is cut off.
        cache: L_cache, the last tokens before it, in which it grows.

    Returns:
        0 up to L_max - L_cache, then linear to -1 at L_max, -1 beyond.
    """
    over = (np.asarray(length) - (longest - cache)) / cache
    return -np.clip(over, 0, 1)


def group_advantages(rewards: Array) -> Array:
    """(R - mean) / std inside each group, shape (…, G); std with G - 1.

    DAPO keeps GRPO's advantage (Eq. 9); all zero if all are equal.
    """
    centred = rewards - np.mean(rewards, -1, keepdims=True)
    return centred / (np.std(rewards, -1, ddof=1, keepdims=True) + 1e-6)


# --- Token-level loss -----------------------------------------------------


# --8<-- [start:weights]
def token_weights(lengths: Array, mean: str) -> Array:
    """What one token of each answer weighs in the loss.

    Args:
        lengths: Tokens of P x G answers, shape (P, G), all at least 1.
        mean: "answer": inside each answer, then over answers (GRPO);
            "group": over each prompt's tokens, then over prompts (DAPO's
            Eq. 12); "batch": over all tokens (most code).

    Returns:
        Weight of one token, shape (P, G); times lengths it sums to 1.

    Raises:
        ValueError: Unknown `mean`.
    """
    lengths = np.asarray(lengths, dtype=np.float64)
    if mean == "answer":
        return 1 / (lengths.size * lengths)
    if mean == "group":
        total = len(lengths) * lengths.sum(1, keepdims=True)
    elif mean == "batch":
        total = lengths.sum()
    else:
        raise ValueError(f"mean is {mean!r}; use answer, group or batch")
    return np.broadcast_to(1 / total, lengths.shape)


# --8<-- [end:weights]

# --- Published scores -----------------------------------------------------

LADDER = [
    ("GRPO", 30),
    ("+ overlong filtering", 36),
    ("+ Clip-Higher", 38),
    ("+ soft punishment", 41),
    ("+ token-level loss", 42),
    ("+ dynamic sampling", 50),
]
"""DAPO's Table 1: AIME 2024 avg@32 of Qwen2.5-32B, per cent."""
RERUN = {3: 44, 4: 50, 5: 52}
"""verl-recipe's reruns, by row of LADDER; without overlong filtering."""
R1_ZERO = 47
"""DeepSeek-R1-Zero-Qwen-32B in the same table."""

# --- Tables ---------------------------------------------------------------


def minus(number: str) -> str:
    """The number with a real minus sign."""
    return number.replace("-", "−")


def table_cost() -> str:
    """Dropped share of groups and answers per kept group."""
    rows = []
    for p in (0.5, 0.7, 0.9, 0.95, 0.99, 0.999):
        cells = [f"{p:g} or {1 - p:.3g}"]
        for group in (8, 16, 64):
            dropped = 100 * (1 - kept_share(p, group))
            small = dropped < 0.01
            cells.append("< 0.01 %" if small else f"{dropped:.3g} %")
            cells.append(f"{cost(p, group):,.1f}")
        rows.append(cells)
    heads = ["pass rate $p$"]
    for group in (8, 16, 64):
        heads += [f"$G={group}$: dropped", "answers"]
    return markdown_table(heads, rows)


def table_rounds() -> str:
    """Ideal refill against the recipe's rounds of 3 x 512 prompts."""
    rows = []
    for share in (0.9, 0.6, 0.42, 0.3, 0.15, 0.04, 0.03):
        expected, failed = rounds(share)
        failed_cell = "0" if failed < 1e-6 else f"{failed:.2g}"
        rows.append(
            (
                f"{share:g}",
                f"{1 / share:.2f}",
                f"{3 * expected:.2f}",
                failed_cell,
                f"{share**0.5:.2f}",
            )
        )
    heads = ["kept $f$", "$1/f$", "recipe", "gives up", "noise $\\sqrt f$"]
    return markdown_table(heads, rows)


LENGTHS = np.array([[1000.0] * 15 + [16000.0], [1000.0] * 16])
"""Two groups of 16; one answer of the first is 16 times as long."""


def table_weights() -> str:
    """The three reductions on one long answer among short ones."""
    rows = []
    for name, mean in (
        ("mean of answers (GRPO)", "answer"),
        ("mean of each group's tokens (DAPO, Eq. 12)", "group"),
        ("mean of the batch's tokens (most code)", "batch"),
    ):
        w = token_weights(LENGTHS, mean)
        rows.append(
            (
                name,
                f"{100 * w[0, -1] * LENGTHS[0, -1]:.1f} %",
                f"{w[0, -1] / w[0, 0]:.3g}",
                f"{w[0, -1] / w[1, 0]:.3g}",
            )
        )
    heads = ["reduction", "long answer's share", "sibling's token"]
    return markdown_table(heads + ["other prompt's token"], rows)


def graded(right: int, wrong: int) -> Array:
    """Rewards of a group by rule (Eq. 7): +1 for right, then -1 for wrong."""
    return np.r_[np.ones(right), -np.ones(wrong)]


PUNISHED = [
    ("16 right, one of them at 16,425", 16, 0, [16425]),
    ("16 right, one of them at 20,480", 16, 0, [20480]),
    ("16 wrong, 15 at 20,480, one short", 0, 16, [20480] * 15),
    ("8 right, one of them at 18,432", 8, 8, [18432]),
    ("8 right, one of them at 20,480", 8, 8, [20480]),
    ("14 right, one of them at 20,480", 14, 2, [20480]),
]
"""Group of 16: its story, right, wrong, lengths of the first answers."""


def punished(right: int, wrong: int, lengths: list[int]) -> Array:
    """Rewards of a group whose first answers are long, the rest short."""
    all_lengths = np.r_[lengths, np.full(right + wrong - len(lengths), 1000)]
    return graded(right, wrong) + soft_overlong(all_lengths)


def table_overlong() -> str:
    """What the punishment does to the advantage of the odd answer."""
    rows = []
    for story, right, wrong, lengths in PUNISHED:
        odd = 0 if len(lengths) == 1 else -1
        before = group_advantages(graded(right, wrong))[odd]
        after = group_advantages(punished(right, wrong, lengths))[odd]
        rows.append(
            (
                story,
                minus(f"{before + 0.0:.2f}"),
                minus(f"{after:.2f}"),
                "kept" if right and wrong else "**dropped**",
            )
        )
    heads = ["group of 16", "$A$ before", "$A$ after", "filter on accuracy"]
    return markdown_table(heads, rows, "lrrl")


# --- Figures --------------------------------------------------------------


def figure_ladder() -> Figure:
    """The paper's ablation table and verl-recipe's reruns."""
    figure, axes = new_figure(3.4)
    names = [name for name, _ in LADDER]
    y = np.arange(len(LADDER))
    scores = [score for _, score in LADDER]
    axes.plot(scores, y, "o-", color="C0")
    axes.plot(list(RERUN.values()), list(RERUN), "s--", color="C1")
    for row, score in enumerate(scores):
        at = {1: (-18, -8), 5: (-5, -15)}.get(row, (-18, -4))  # off the line
        label(axes, score, row, f"{score}", "C0", xytext=at)
    for row, score in RERUN.items():
        at = (-5, 7) if row == 3 else (7, -1)  # off R1-Zero's line
        label(axes, score, row, f"{score}", "C1", xytext=at)
    axes.axvline(R1_ZERO, color="grey", alpha=0.6, linewidth=1)
    label(axes, R1_ZERO, 0, "R1-Zero 47", ha="right", xytext=(-4, -4))
    label(axes, 33, 3.9, "paper", "C0", xytext=(0, 0))
    label(axes, 48.5, 2.5, "verl rerun", "C1", xytext=(0, 0))
    axes.set_yticks(y, names)
    axes.set(xlim=(25, 56), ylim=(5.8, -0.6))
    axes.set_xlabel("AIME 2024, per cent right")
    axes.set_title("The last step: +8 in the paper, +2 rerun", loc="left")
    return figure


def figure_cost() -> Figure:
    """Answers generated for one kept group, against the pass rate."""
    figure, axes = new_figure(3.0)
    p = np.linspace(0.004, 0.996, 497)
    styles = (64, "C2", "-."), (16, "C0", "-"), (8, "C1", "--")
    for group, color, line in styles:
        y = cost(p, group)
        axes.plot(p, y, line, color=color)
        label(axes, 0.5, float(cost(0.5, group)), f"G = {group}", color)
    axes.plot(p, np.maximum(1 / p, 1 / (1 - p)), ":", color="grey", alpha=0.8)
    label(axes, 0.14, 1 / 0.14, "1 / p", xytext=(-30, -8))
    axes.set(yscale="log", ylim=(5, 300))
    axes.set_yticks([8, 16, 64, 250], ["8", "16", "64", "250"])
    axes.set_yticks([], minor=True)
    axes.set_xlabel("pass rate p of the prompt")
    axes.set_ylabel("answers per kept group")
    title = "Cheap in the middle, at least 1/p at the ends"
    axes.set_title(title, loc="left")
    return figure


def figure_overlong() -> Figure:
    """Total reward of a right and of a wrong answer against its length."""
    figure, axes = new_figure(2.8)
    length = np.linspace(14000, 20480, 400)
    for reward, color, name in ((1, "C0", "right"), (-1, "C1", "wrong")):
        axes.plot(length, reward + soft_overlong(length), color=color)
        label(axes, 14100, reward, f"{name} answer", color, xytext=(3, 6))
    axes.axvline(16384, color="grey", alpha=0.5, linewidth=1)
    axes.axvline(20480, color="grey", alpha=0.5, linewidth=1)
    axes.axhline(-1, color="grey", alpha=0.5, linewidth=1, linestyle=":")
    axes.set_xticks([16384, 18432, 20480], ["16,384", "18,432", "20,480"])
    axes.set(ylim=(-2.2, 1.5), yticks=[-2, -1, 0, 1], xlim=(14000, 20700))
    axes.set_xlabel("length of the answer in tokens")
    axes.set_ylabel("total reward")
    title = "A right answer stays above every wrong one"
    axes.set_title(title, loc="left")
    return figure
