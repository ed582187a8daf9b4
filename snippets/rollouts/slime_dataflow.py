"""How slime packs a batch and reduces its loss over ranks.

Page:      docs/rollouts/slime-dataflow.md
Source:    own miniature of slime at 624b824 (slime/utils/dp_schedule.py,
           slime/backends/megatron_utils/loss.py and cp_utils.py) on the
           Megatron-LM it is built with, 1dcf0da (schedules.py,
           distributed_data_parallel.py, finalize_model_grads.py).
Notation:  dp, cp data- and context-parallel ranks; a rollout is one
           execution of a prompt, mostly one sample; R response tokens.
Units:     lengths in tokens; a loss may be a scalar per token or, since
           every reduction here is linear, the token's gradient vector.
"""

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from snippets.estimate import Estimate, each_over_seeds
from snippets.show import label, markdown_table, new_figure

Array = NDArray[np.float64]


class Sample(NamedTuple):
    """What the loss needs of one training sample.

    Attributes:
        rollout: Its execution; samples split from one share this number.
        prompt: Number of prompt tokens, at least 1.
        mask: (R,), 1 on tokens the policy wrote, 0 on tool output.
        loss: (R,) token losses or (R, d) their gradients.
    """

    rollout: int
    prompt: int
    mask: Array
    loss: Array


Ranks = list[list[list[Sample]]]  # data-parallel rank, micro-batch, sample


# --8<-- [start:schedule]
def schedule(samples: list[Sample], cap: int, dp: int, cp: int = 1) -> Ranks:
    """First-fit micro-batches of one optimiser step, dealt to the ranks.

    Args:
        samples: Of one step, in order; a prompt counts towards the length.
        cap: max_tokens_per_gpu; a micro-batch may hold cap * cp tokens,
            and a longer sample gets one of its own.
        dp: Data-parallel ranks; all get equally many micro-batches.
        cp: Ranks that share a sequence.

    Raises:
        ValueError: fewer samples than the multiple of dp that is needed.
    """
    bins: list[list[Sample]] = []
    for s in samples:
        fits = (b for b in bins if size([*b, s]) <= cap * cp)
        if (found := next(fits, None)) is None:
            bins.append([s])
        else:
            found.append(s)
    while len(bins) % dp:  # split the fullest: no bin grows beyond the cap
        at = max(range(len(bins)), key=lambda i: (splittable(bins[i]), i))
        if len(bins[at]) < 2:
            raise ValueError(f"{len(samples)} samples do not fill {dp} ranks")
        bins[at], other = halves(bins[at])
        bins.append(other)
    return [bins[rank::dp] for rank in range(dp)]


# --8<-- [end:schedule]


def size(batch: list[Sample]) -> int:
    """Tokens of a micro-batch, prompts included."""
    return sum(s.prompt + len(s.mask) for s in batch)


def splittable(batch: list[Sample]) -> int:
    """Its size, or 0 if it holds one sample only."""
    return size(batch) if len(batch) > 1 else 0


def halves(batch: list[Sample]) -> tuple[list[Sample], list[Sample]]:
    """Two parts of about equal size: longest first, to the lighter part."""
    parts: tuple[list[Sample], list[Sample]] = ([], [])
    for s in sorted(batch, key=lambda s: -size([s])):
        parts[size(parts[0]) > size(parts[1])].append(s)
    return parts


# --8<-- [start:zigzag]
def owned(prompt: int, response: int, cp: int, rank: int) -> Array:
    """1 on the response tokens whose log-prob this CP rank computes.

    The sequence is cut into 2 * cp chunks; a rank holds number `rank`
    from the front and from the back, so that causal attention costs all
    ranks alike. The logit at position t scores token t + 1.

    Returns:
        (response,), zeros and ones.
    """
    chunk = -(-(prompt + response) // (2 * cp))
    piece = (prompt - 1 + np.arange(response)) // chunk
    return ((piece == rank) | (piece == 2 * cp - 1 - rank)).astype(float)


# --8<-- [end:zigzag]


# --8<-- [start:slime]
def slime(
    ranks: Ranks, cp: int, batch: int, per_token: bool = False
) -> Array | float:
    """The loss or gradient that reaches the optimiser.

    Args:
        ranks: As from `schedule`, every rank with K micro-batches.
        cp: Context-parallel ranks.
        batch: global_batch_size, in rollouts, over all ranks.
        per_token: --calculate-per-token-loss.
    """
    dp, denominator = len(ranks), mask_sums(ranks)
    total, tokens = 0.0, 0.0
    for micro_batches in ranks:
        k = len(micro_batches)
        for micro in micro_batches:
            for rank in range(cp):
                loss = 0.0
                for s in micro:  # sum_of_sample_mean or sum_of_token
                    mine = s.mask * owned(s.prompt, len(s.mask), cp, rank)
                    n = 1 if per_token else max(denominator[s.rollout], 1)
                    loss = loss + mine @ s.loss / n
                if per_token:
                    total = total + loss * cp
                    tokens += sum(max(s.mask.sum(), 1) for s in micro)
                else:
                    loss = loss * k / batch * (dp * cp)  # slime
                    loss = loss / k  # Megatron's schedule
                    total = total + loss / (dp * cp)  # Megatron's DDP
    return total / tokens if per_token else total


# --8<-- [end:slime]


def mask_sums(ranks: Ranks) -> Counter[int]:
    """Trained tokens of each rollout, over all ranks and micro-batches."""
    sums: Counter[int] = Counter()
    for s in flat(ranks):
        sums[s.rollout] += int(s.mask.sum())
    return sums


def flat(ranks: Ranks) -> list[Sample]:
    """All samples of a step."""
    return [s for micros in ranks for micro in micros for s in micro]


# --8<-- [start:wrong]
def mean(batch: list[Sample], per_token: bool) -> Array | float:
    """Mean over samples of token means, or mean over tokens."""
    sums = [s.mask @ s.loss for s in batch]
    counts = [s.mask.sum() for s in batch]
    if per_token:
        return sum(sums) / sum(counts)
    return sum(a / n for a, n in zip(sums, counts, strict=True)) / len(batch)


def of_micro_batches(ranks: Ranks, per_token: bool) -> Array | float:
    """Mean over ranks of the mean over micro-batches of their means."""
    parts = [np.mean([mean(m, per_token) for m in r], axis=0) for r in ranks]
    return np.mean(parts, axis=0)


def of_ranks(ranks: Ranks, per_token: bool) -> Array | float:
    """Mean over ranks of each rank's own mean."""
    return np.mean([mean(flat([r]), per_token) for r in ranks], axis=0)


# --8<-- [end:wrong]


def of_slices(ranks: Ranks, cp: int) -> Array | float:
    """Sample means with each CP rank's own token count, then averaged."""
    total, samples = 0.0, flat(ranks)
    for s in samples:
        for rank in range(cp):
            mine = s.mask * owned(s.prompt, len(s.mask), cp, rank)
            total = total + mine @ s.loss / max(mine.sum(), 1) / cp
    return total / len(samples)


def normalised(rewards: list[float], groups: int, n: int) -> Array:
    """Reward normalisation of slime for grpo, gspo and cispo.

    Args:
        rewards: One for each training sample.
        groups: rollout_batch_size.
        n: n_samples_per_prompt, at least 2.

    Returns:
        Less the mean, over (sample standard deviation + 1e-6), of each
        group; of the whole batch if the samples are not groups * n.
    """
    r = np.array(rewards, dtype=float)
    r = r.reshape(-1, n) if len(r) == groups * n else r.reshape(1, -1)
    r = r - r.mean(1, keepdims=True)
    return (r / (r.std(1, ddof=1, keepdims=True) + 1e-6)).ravel()


def six() -> Ranks:
    """Six responses of 3, 5, 2, 4, 6, 1 tokens, packed by hand, dp = 2.

    Every token of the first and the fifth has loss 1, all others 0.
    """
    s = [
        Sample(i, 1, np.ones(n), np.full(n, 1.0 if i in (0, 4) else 0.0))
        for i, n in enumerate((3, 5, 2, 4, 6, 1))
    ]
    return [[s[:2], s[2:3]], [s[3:4], s[4:]]]


def table_six() -> str:
    """The same token losses, reduced in four ways."""
    ranks = six()
    one = [[flat(ranks)]]
    rows = [
        (
            "one rank, one micro-batch",
            *(mean(one[0][0], token) for token in (False, True)),
        ),
        (
            "slime's scaling, then Megatron's",
            *(slime(ranks, 1, 6, token) for token in (False, True)),
        ),
        (
            "mean of the ranks' means",
            *(of_ranks(ranks, token) for token in (False, True)),
        ),
        (
            "mean of the micro-batches' means",
            *(of_micro_batches(ranks, token) for token in (False, True)),
        ),
    ]
    text = [(name, f"{a:.4f}", f"{b:.4f}") for name, a, b in rows]
    return markdown_table(["", "per sample", "per token"], text, "lrr")


DIMENSIONS = 16
REWARDS = [1.0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 0, 1, 0, 1, 0, 0]


@cache
def batch(seed: int = 1) -> tuple[Sample, ...]:
    """Four prompts with four responses each, of very unequal lengths.

    A token's loss is minus its advantage times a random gradient with a
    part common to its response; in every fourth response tool output
    makes up the middle two thirds of the tokens.
    """
    rng = np.random.default_rng(seed)
    samples = []
    for i, advantage in enumerate(normalised(REWARDS, 4, 4)):
        prompt = int(rng.integers(10, 60))
        n = int(np.exp(rng.normal(4.0, 1.0))) + 2
        mask = np.ones(n)
        if i % 4 == 0:
            mask[n // 6 : 5 * n // 6] = 0
        gradient = rng.standard_normal(DIMENSIONS) + rng.standard_normal(
            (n, DIMENSIONS)
        )
        samples.append(Sample(i, prompt, mask, -advantage * gradient))
    return tuple(samples)


LAYOUTS = ((2, 1, 1024), (2, 2, 256), (4, 2, 128))  # dp, cp, cap


def error(got: Array, right: Array) -> float:
    """Length of the difference over the length of the right gradient."""
    return float(np.linalg.norm(got - right) / np.linalg.norm(right))


def packed(seed: int = 1) -> list[tuple[Ranks, int]]:
    """The batch under each layout, with its cp."""
    samples = list(batch(seed))
    return [(schedule(samples, cap, dp, cp), cp) for dp, cp, cap in LAYOUTS]


# Name: (per token, reduction of (ranks, cp, samples)).
REDUCTIONS: dict[str, tuple[bool, Callable[[Ranks, int, int], Array]]] = {
    "**slime, default**": (False, lambda r, c, n: slime(r, c, n)),
    "micro-batch means": (False, lambda r, c, n: of_micro_batches(r, False)),
    "rank means": (False, lambda r, c, n: of_ranks(r, False)),
    "CP-slice means": (False, lambda r, c, n: of_slices(r, c)),
    "no × DP × CP": (
        False,
        lambda r, c, n: slime(r, c, n) / (len(r) * c),
    ),
    "**slime, per token**": (True, lambda r, c, n: slime(r, c, n, True)),
    "micro-batch means ": (True, lambda r, c, n: of_micro_batches(r, True)),
    "rank means ": (True, lambda r, c, n: of_ranks(r, True)),
    "scaled as in v0.2.0": (
        True,
        lambda r, c, n: slime(r, c, n, True) * len(r[0]) * len(r) / n,
    ),
}


def errors(name: str, seed: int) -> list[float]:
    """Relative error of one of REDUCTIONS in each layout."""
    token, reduce = REDUCTIONS[name]
    samples = list(batch(seed))
    right = mean(samples, token)
    return [
        error(reduce(ranks, cp, len(samples)), right)
        for ranks, cp in packed(seed)
    ]


def share(value: Estimate) -> str:
    """Per cent; "0" below 1e-12 for all seeds; no ± if all are alike."""
    if max(value.values) < 1e-12:
        return "0"
    text = f"{100 * value.mean:.0f}"
    if value.spread > 1e-9:
        text += f" ± {100 * value.spread:.0f}"
    return f"{text} %"


def table_errors() -> str:
    """Relative error of the gradient for each reduction and layout."""
    rows = []
    for name, (token, _) in REDUCTIONS.items():
        found = each_over_seeds(lambda seed, name=name: errors(name, seed))
        target = "per token" if token else "per sample"
        rows.append((target, name.strip(), *(share(e) for e in found)))
    heads = [f"DP {dp}, CP {cp}, cap {cap:,}" for dp, cp, cap in LAYOUTS]
    return markdown_table(["target", "reduction", *heads], rows, "llrrr")


def table_fanout() -> str:
    """Two prompts with two rollouts; then one rollout gives two samples."""
    rows = []
    for name, rewards in (
        ("one sample a rollout", [1, 0, 1, 1]),
        ("B's first in two samples", [1, 0, 1, 1, 1]),
    ):
        got = [
            f"{x:+.3f}".replace("-", "−") for x in normalised(rewards, 2, 2)
        ]
        got = ["0" if x[1:] == "0.000" else x for x in got]
        rows.append((name, ", ".join(got[:2]), ", ".join(got[2:])))
    return markdown_table(["", "A, rewards 1, 0", "B, rewards 1, 1"], rows)


def weights() -> list[Sample]:
    """The batch with indicators for losses: a reduction gives weights.

    Returns:
        Samples whose loss is (R, 16), 1 in the sample's own column.
    """
    columns = np.eye(len(batch()))
    return [
        s._replace(loss=np.tile(columns[i], (len(s.mask), 1)))
        for i, s in enumerate(batch())
    ]


@cache
def relative_weights() -> dict[str, Array]:
    """Weight of each response under a wrong mean, over the right one.

    Returns:
        "length" (16,) trained tokens, "per sample" and "per token" (16,)
        for means of micro-batch means under the last layout, "slime"
        (2, 16) for its two reductions.
    """
    samples = weights()
    dp, cp, cap = LAYOUTS[-1]
    ranks = schedule(samples, cap, dp, cp)
    right = [mean(samples, token) for token in (False, True)]
    wrong = [of_micro_batches(ranks, token) for token in (False, True)]
    ours = [slime(ranks, cp, len(samples), token) for token in (False, True)]
    return {
        "length": np.array([s.mask.sum() for s in samples]),
        "per sample": wrong[0] / right[0],
        "per token": wrong[1] / right[1],
        "slime": np.array(ours) / np.array(right),
    }


def figure_weights() -> Figure:
    """What a mean of means does to the weight of each response."""
    figure, panels = new_figure(4.4, rows=2, sharex=True)
    data = relative_weights()
    for axes, key, color, ours in (
        (panels[0], "per sample", "C1", data["slime"][0]),
        (panels[1], "per token", "C2", data["slime"][1]),
    ):
        axes.axhline(1, color="C0", lw=1)
        axes.plot(data["length"], ours, "o", color="C0", ms=4)
        axes.plot(data["length"], data[key], "s", color=color, ms=5)
        axes.set(xscale="log", ylim=(0, 3.9), yticks=(0, 1, 2, 3))
        axes.set_ylabel("weight / right one")
        label(axes, 7, 1, "slime", "C0", xytext=(0, 4))
        text = f"mean of micro-batch means, {key}"
        label(axes, 4.5, 3.35, text, color, xytext=(0, 0))
    panels[0].set_title("A mean of means re-weights responses", loc="left")
    panels[1].set_xticks([10, 30, 100, 300], ["10", "30", "100", "300"])
    panels[1].set_xticks([], minor=True)
    panels[1].set_xlabel("trained tokens of the response")
    return figure
