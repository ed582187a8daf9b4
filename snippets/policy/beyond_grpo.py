"""What do Dr. GRPO, DAPO, GSPO, CISPO, SAPO, DPPO, MaxRL, SimKO change?

Page:      docs/policy/beyond-grpo.md
Source:    GRPO: https://arxiv.org/abs/2402.03300; Dr. GRPO:
           https://arxiv.org/abs/2503.20783; DAPO (Eq. 8 to 12):
           https://arxiv.org/abs/2503.14476; GSPO (Eq. 5 to 7):
           https://arxiv.org/abs/2507.18071; CISPO (Eq. 4, 5):
           https://arxiv.org/abs/2506.13585; SAPO:
           https://arxiv.org/abs/2511.20347; DPPO, binary TV:
           https://arxiv.org/abs/2602.04879; MaxRL:
           https://arxiv.org/abs/2602.02710; SimKO:
           https://arxiv.org/abs/2510.14807 and its authors' code.
Notation:  P prompts, G answers each, B = P G rows in group-major order, T
           positions, V words; r = new / old probability of the sampled
           token. Objectives are maximised.
Units:     log-probabilities and entropies in nats; advantages in rewards,
           standard deviations or means of the group.
"""

from dataclasses import dataclass
from functools import cache
from math import comb

import torch
from matplotlib.figure import Figure
from torch import Tensor

from snippets.estimate import Estimate, each_over_seeds
from snippets.show import label, markdown_table, new_figure


# --8<-- [start:method]
@dataclass(frozen=True)
class Method:
    """The switches; the defaults are GRPO.

    Attributes:
        scale: Divide R − mean by the group's "std", "mean", or "none".
        level: One ratio per "token" or per "sequence" (geometric mean).
        gate: "clip" (PPO), "cap" (CISPO), "soft" (SAPO), "tv" (DPPO).
        edge: For A < 0, for A > 0. Distance from ratio 1 for clip and cap,
            temperature for soft, change of probability for tv.
        reduce: Mean per "sequence", per "token" of a prompt's group, or
            "constant" divisor.
        mixed: Count only groups with unequal rewards (dynamic sampling).
        spread: Share of a right answer's weight moved, at forks, to the
            top 3 words (SimKO's alpha).
        boost: Factor on a wrong top-1 word at forks (SimKO).
    """

    scale: str = "std"
    level: str = "token"
    gate: str = "clip"
    edge: tuple[float, float] = (0.2, 0.2)
    reduce: str = "sequence"
    mixed: bool = False
    spread: float = 0.0
    boost: float = 1.0


METHODS = {
    "GRPO": Method(),
    "Dr. GRPO": Method(scale="none", reduce="constant"),
    "DAPO": Method(edge=(0.2, 0.28), reduce="token", mixed=True),
    "GSPO": Method(level="sequence", edge=(3e-4, 4e-4)),
    "CISPO": Method(gate="cap", edge=(1.0, 4.0), reduce="token"),
    "SAPO": Method(gate="soft", edge=(1.05, 1.0)),
    "DPPO": Method("none", gate="tv", edge=(0.15, 0.15), reduce="constant"),
    "MaxRL": Method(scale="mean"),
    "SimKO": Method(spread=0.01, boost=1.1),
}
# --8<-- [end:method]


@dataclass(frozen=True)
class Batch:
    """Answers to P prompts, G neighbours each.

    Attributes:
        new: Log-probs of all words under the policy trained, (B, T, V).
        old: Under the policy that sampled, (B, T, V).
        tokens: Sampled words, (B, T).
        mask: True on the answer's tokens, (B, T).
        rewards: 0 or 1, (B,).
        group: G.
    """

    new: Tensor
    old: Tensor
    tokens: Tensor
    mask: Tensor
    rewards: Tensor
    group: int


# --8<-- [start:advantages]
def advantages(rewards: Tensor, group: int, scale: str) -> Tensor:
    """Centred on the group's mean, then scaled.

    Args:
        rewards: (B,), a prompt's answers are neighbours.
        group: G, at least 2.
        scale: "std" (n − 1), "mean" (MaxRL, rewards ≥ 0) or "none".

    Returns:
        (B,); 0 in a group of equal rewards, whatever the scale.

    Raises:
        KeyError: Another scale.
    """
    r = rewards.reshape(-1, group)
    mean = r.mean(1, keepdim=True)
    size = {
        "std": r.std(1, keepdim=True),
        "mean": mean,
        "none": torch.ones_like(mean),
    }[scale]
    scaled = (r - mean) / torch.where(size > 1e-9, size, 1.0)
    return scaled.reshape(-1)


# --8<-- [end:advantages]


# --8<-- [start:gate]
def gated(
    gate: str,
    edge: tuple[float, float],
    ratio: Tensor,
    a: Tensor,
    new: Tensor,
    old: Tensor,
) -> Tensor:
    """A token's objective, to be maximised.

    Args:
        gate: "clip", "cap", "soft" or "tv".
        edge: For A < 0, for A > 0, see Method.
        ratio: new / old of the token or its sequence, with gradient.
        a: Advantage, of ratio's shape.
        new: Log-prob of the sampled token, with gradient.
        old: The same under the policy that sampled.

    Returns:
        Of ratio's shape.

    Raises:
        ValueError: Another gate.
    """
    if gate == "clip":
        band = ratio.clamp(1 - edge[0], 1 + edge[1])
        return torch.minimum(ratio * a, band * a)
    if gate == "cap":
        return ratio.clamp(1 - edge[0], 1 + edge[1]).detach() * a * new
    if gate == "soft":
        up = (a > 0).to(a.dtype)
        tau = edge[1] * up + edge[0] * (1 - up)
        return 4 / tau * torch.sigmoid(tau * (ratio - 1)) * a
    if gate == "tv":
        moved = (new.exp() - old.exp()).detach()
        left = torch.where(a > 0, moved > edge[1], -moved > edge[0])
        return torch.where(left, 0.0, ratio * a)
    raise ValueError(f"unknown gate {gate!r}")


# --8<-- [end:gate]


# --8<-- [start:objective]
def objective(batch: Batch, new: Tensor, how: Method) -> Tensor:
    """All nine objectives, to be maximised; no KL term.

    Args:
        batch: B answers; its own `new` is not used.
        new: Log-probs under the policy trained, (B, T, V), with gradient.
        how: Switches.

    Returns:
        Scalar.
    """
    a = advantages(batch.rewards, batch.group, how.scale)[:, None]
    pick, mask = batch.tokens[..., None], batch.mask
    ours = new.gather(2, pick)[..., 0]
    theirs = batch.old.gather(2, pick)[..., 0]
    log_r = torch.where(mask, ours - theirs, 0.0)
    if how.level == "sequence":
        log_r = log_r.sum(1, keepdim=True) / mask.sum(1, keepdim=True)
    ratio = log_r.exp().expand(mask.shape)
    a = a.expand(mask.shape)
    if how.spread or how.boost != 1:
        ratio, a = fork(batch, new, ratio, a, how)
    term = gated(how.gate, how.edge, ratio, a, ours, theirs)
    return (divisors(batch, how) * torch.where(mask, term, 0.0)).sum()


# --8<-- [end:objective]


# --8<-- [start:divisors]
def divisors(batch: Batch, how: Method) -> Tensor:
    """What one token counts for before advantage and ratio, (B, T)."""
    mask = batch.mask.double()
    each = mask.sum(1, keepdim=True)
    r = batch.rewards.reshape(-1, batch.group)
    prompts = (r.std(1) > 0).sum() if how.mixed else len(r)
    if how.reduce == "sequence":
        return mask / each / (prompts * batch.group)
    if how.reduce == "token":
        total = each.reshape(-1, batch.group).sum(1)
        total = total.repeat_interleave(batch.group)[:, None]
        return mask / total / prompts
    return mask / mask.shape[1] / (prompts * batch.group)


# --8<-- [end:divisors]


# --8<-- [start:fork]
def fork(
    batch: Batch, new: Tensor, ratio: Tensor, a: Tensor, how: Method
) -> tuple[Tensor, Tensor]:
    """SimKO's two edits, at tokens above their answer's 0.8 quantile.

    Args:
        batch: B answers.
        new: Log-probs of all words, (B, T, V), with gradient.
        ratio: Of the sampled tokens, (B, T).
        a: Advantages, (B, T).
        how: Its spread and boost.

    Returns:
        The ratio, same value, but with a share of its gradient on the top
        3 words; and the advantages, larger for wrong top-1 words.
    """
    dist = new.detach()
    entropy = -(dist.exp() * dist).sum(2)
    hidden = entropy.masked_fill(~batch.mask, torch.nan)
    forks = entropy > hidden.nanquantile(0.8, dim=1, keepdim=True)
    top = new.gather(2, dist.topk(3, dim=2).indices)
    others = ratio.detach() * (top - top.detach()).exp().mean(2)
    right = forks & (batch.rewards[:, None] == 1)
    mixed = (1 - how.spread) * ratio + how.spread * others
    wrong = forks & (a < 0) & (dist.argmax(2) == batch.tokens)
    return torch.where(right, mixed, ratio), torch.where(
        wrong, how.boost * a, a
    )


# --8<-- [end:fork]


# --8<-- [start:weights]
def weights(batch: Batch, how: Method) -> Tensor:
    """Coefficient of grad log pi of every word, by autograd, (B, T, V)."""
    new = batch.new.clone().requires_grad_()
    return torch.autograd.grad(objective(batch, new, how), new)[0]


# --8<-- [end:weights]


# --8<-- [start:prompt]
def prompt_weight(p: float, group: int, scale: str) -> float:
    """What multiplies grad p of a prompt in expectation, at ratio 1.

    All counts of right answers are summed: E[score | right] is
    grad p / p, E[score | wrong] is −grad p / (1 − p).

    Args:
        p: Chance that one answer is right, inside (0, 1).
        group: G.
        scale: As in `advantages`.

    Returns:
        w in E[(1/G) sum_i A_i grad log pi(y_i)] = w grad p.
    """
    right = torch.arange(1, group)
    rewards = (torch.arange(group) < right[:, None]).double()
    a = advantages(rewards.flatten(), group, scale).reshape(-1, group)
    push = right * a[:, 0] / p - (group - right) * a[:, -1] / (1 - p)
    chance = torch.tensor(
        [
            comb(group, k) * p**k * (1 - p) ** (group - k)
            for k in range(1, group)
        ]
    )
    return float((chance * push).sum()) / group


# --8<-- [end:prompt]


def sample(generator: torch.Generator, drift: float = 0.4) -> Batch:
    """Five prompts with 1, 4, 7, 8 and 0 right of 8 answers.

    Args:
        generator: Source of lengths, old logits, tokens and the drift.
        drift: Deviation of the change of every logit, new − old, nats.

    Returns:
        Answers of 3 to 30 tokens over 6 words.
    """
    kind = {"generator": generator, "dtype": torch.float64}
    group, rights, t, v = 8, (1, 4, 7, 8, 0), 30, 6
    rows = group * len(rights)
    lengths = torch.randint(3, t + 1, (rows,), generator=generator)
    logits = 2.0 * torch.randn(rows, t, v, **kind)
    moved = logits + drift * torch.randn(rows, t, v, **kind)
    old, new = logits.log_softmax(2), moved.log_softmax(2)
    tokens = torch.multinomial(
        old.exp().reshape(-1, v), 1, generator=generator
    ).reshape(rows, t)
    first = torch.tensor(rights)[:, None]
    rewards = (torch.arange(group) < first).double().flatten()
    mask = torch.arange(t)[None] < lengths[:, None]
    return Batch(new, old, tokens, mask, rewards, group)


@cache
def batch(seed: int = 0) -> Batch:
    """`sample` with a seed, drawn once."""
    return sample(torch.Generator().manual_seed(seed))


@cache
def measured(name: str, seed: int = 0) -> Tensor:
    """Weights of one method on the batch of a seed, (B, T, V)."""
    return weights(batch(seed), METHODS[name])


def sampled(name: str, seed: int = 0) -> Tensor:
    """Weights of the sampled tokens only, (B, T)."""
    tokens = batch(seed).tokens[..., None]
    return measured(name, seed).gather(2, tokens)[..., 0]


def shares(name: str, seed: int = 0) -> list[float]:
    """Each prompt's share of the batch's sum of |weight|."""
    size = measured(name, seed).abs().sum((1, 2))
    size = size.reshape(-1, batch(seed).group).sum(1)
    return (size / size.sum()).tolist()


def silent(name: str, seed: int = 0) -> tuple[float, float]:
    """Share of tokens with A > 0, with A < 0, that have weight 0."""
    b = batch(seed)
    a = advantages(b.rewards, b.group, "none")[:, None]
    zero = sampled(name, seed) == 0
    return tuple(
        zero[b.mask & side].double().mean().item() for side in (a > 0, a < 0)
    )


def coefficients(name: str, seed: int = 0) -> Tensor:
    """Weight over A and divisor: r times the gate, (B, T); NaN if A = 0."""
    b, how = batch(seed), METHODS[name]
    a = advantages(b.rewards, b.group, how.scale)[:, None]
    return sampled(name, seed) / a / divisors(b, how)


# --- Tables ---------------------------------------------------------------


def batch_row(name: str, seed: int) -> list[float]:
    """One method on one batch: 3 shares in %, 2 silent in %, largest c."""
    c = coefficients(name, seed)[batch(seed).mask]
    percent = [*shares(name, seed)[:3], *silent(name, seed)]
    return [*(100 * x for x in percent), float(c[c.isfinite()].max())]


@cache
def batch_estimates(name: str) -> list[Estimate]:
    """`batch_row` over the seeds."""
    return each_over_seeds(lambda seed: batch_row(name, seed))


def table_batch() -> str:
    """Per-prompt shares, silent tokens and extremes of each method."""
    rows = []
    for name in METHODS:
        *percent, top = batch_estimates(name)
        rows.append((name, *(f"{x:.0f}" for x in percent), f"{top:.2f}"))
    heads = ["method", "1 of 8 right, %", "4 of 8, %", "7 of 8, %"]
    heads += ["silent, $A>0$, %", "silent, $A<0$, %", "largest $c$"]
    return markdown_table(heads, rows)


def gate_value(name: str, ratio: float, old: float, a: float) -> float:
    """Coefficient c of one token, with its own ratio, by autograd."""
    how = METHODS[name]
    before = torch.tensor(old, dtype=torch.float64).log()
    new = (before + torch.tensor(ratio).double().log()).requires_grad_()
    r = (new - before).exp()
    term = gated(how.gate, how.edge, r, torch.tensor(a).double(), new, before)
    return torch.autograd.grad(term, new)[0].item() / a


def table_gates() -> str:
    """Coefficient c of chosen tokens: rare and common, both signs of A."""
    rows = []
    for a, old, ratio in (
        (1.0, 0.01, 3.0),
        (1.0, 0.01, 8.0),
        (1.0, 0.8, 1.19),
        (1.0, 0.5, 0.5),
        (-1.0, 0.01, 0.1),
        (-1.0, 0.8, 0.79),
        (-1.0, 0.01, 8.0),
    ):
        cells = [
            f"{gate_value(name, ratio, old, a) + 0.0:.2f}"
            for name in ("GRPO", "CISPO", "SAPO", "DPPO")
        ]
        sign = "$+$" if a > 0 else "$-$"
        rows.append((sign, old, f"{ratio:g}", f"{old * ratio:.3g}", *cells))
    heads = ["$A$", "old prob.", "$r$", "new prob."]
    heads += ["GRPO", "CISPO", "SAPO", "DPPO"]
    return markdown_table(heads, rows, "crrrrrrr")


def table_prompts() -> str:
    """Exact expected weight on grad p at G = 16, and the likelihood's."""
    rows = []
    for p in (0.001, 0.01, 0.05, 0.1, 0.5, 0.9, 0.99):
        cells = [prompt_weight(p, 16, s) for s in ("none", "std", "mean")]
        rows.append((p, *(f"{w:.2f}" for w in cells), f"{1 / p:.2f}"))
    heads = ["$p$", "Dr. GRPO", "GRPO", "MaxRL", "$1/p$"]
    return markdown_table(heads, rows, "rrrrr")


# --- Figures --------------------------------------------------------------

SHOWN = (
    ("GRPO", "C1", "s"),
    ("CISPO", "C2", "x"),
    ("SAPO", "C3", "."),
    ("DPPO", "C0", "+"),
)
"""Methods drawn as dots, colour and marker."""


def figure_weights() -> Figure:
    """The batch: c of each token by sign of A; |weight| of each prompt."""
    b = batch()
    figure, panels = new_figure(7.6, 3, 1)
    a = advantages(b.rewards, b.group, "none")[:, None]
    ratio = (b.new - b.old).gather(2, b.tokens[..., None])[..., 0].exp()
    for axes, side in ((panels[0], a > 0), (panels[1], a < 0)):
        here = b.mask & side
        for name, color, marker in SHOWN:
            axes.scatter(
                ratio[here].tolist(),
                coefficients(name)[here].tolist(),
                s=30 if marker == "s" else 14,
                marker=marker,
                facecolors="none" if marker == "s" else color,
                edgecolors=color if marker == "s" else None,
                linewidths=0.8,
            )
        axes.set(xlabel="ratio r of a token", ylabel="c", ylim=(-0.15, 2.35))
    panels[0].set_title("A > 0: above r = 1.2 the methods part")
    panels[1].set_title("A < 0: so do they below r = 0.8")
    label(panels[0], 1.6, 1.7, "CISPO, most DPPO", "C2", ha="right")
    label(panels[0], 1.82, 0.04, "GRPO: 0", "C1", xytext=(0, 9))
    label(panels[0], 1.85, 1.35, "SAPO", "C3", xytext=(0, -14))
    label(panels[0], 1.2, 0.04, "DPPO: 0", "C0", xytext=(3, 9))
    label(panels[1], 0.4, 0.04, "GRPO: 0", "C1", xytext=(0, 9))
    label(panels[1], 0.32, 1.15, "CISPO, most DPPO", "C2", xytext=(0, 8))
    label(panels[1], 0.7, 0.04, "DPPO: 0", "C0", xytext=(0, 9))
    label(panels[1], 1.72, 1.4, "SAPO", "C3", xytext=(0, -14))
    axes = panels[2]
    prompts = {
        name: batch_estimates(name)[:3]
        for name in ("MaxRL", "GRPO", "Dr. GRPO", "GSPO")
    }
    for found, color in zip(
        prompts.values(), ("C4", "C1", "C5", "C0"), strict=True
    ):
        mid = [e.mean / 100 for e in found]
        low = [(e.mean - e.spread) / 100 for e in found]
        high = [(e.mean + e.spread) / 100 for e in found]
        axes.plot(range(3), mid, color=color, marker="o", ms=4)
        axes.fill_between(range(3), low, high, color=color, alpha=0.2, lw=0)
    axes.set_xticks(range(3), ["1 of 8 right", "4 of 8", "7 of 8"])
    axes.set(ylabel="share of the batch", ylim=(0, 0.8), xlim=(-0.2, 2.5))
    axes.set_title("Which prompt gets the weight")
    for name, color, shift in (
        ("MaxRL", "C4", -8),
        ("GRPO", "C1", 3),
        ("Dr. GRPO", "C5", -2),
    ):
        kind = {"xytext": (6, shift)}
        label(axes, 2, prompts[name][2].mean / 100, name, color, **kind)
    under = {"ha": "right", "va": "top", "xytext": (0, 0)}
    label(axes, 1.1, 0.19, "GSPO, band", "C0", **under)
    return figure


def figure_prompts() -> Figure:
    """Expected prompt weights at G = 16 against p, in two units."""
    figure, panels = new_figure(5.4, 2, 1, sharex=True)
    ps = [k / 100 for k in range(1, 100)]
    for color, scale in (("C5", "none"), ("C1", "std"), ("C4", "mean")):
        w = [prompt_weight(p, 16, scale) for p in ps]
        odds = [x * p * (1 - p) for x, p in zip(w, ps, strict=True)]
        panels[0].plot(ps, w, color=color)
        panels[1].plot(ps, odds, color=color)
    panels[0].set(yscale="log", ylabel="w, times ∇p")
    panels[0].set_yticks([1, 3, 10], ["1", "3", "10"])
    panels[0].minorticks_off()
    panels[0].set_title("Per ∇p: MaxRL falls, GRPO is a U")
    label(panels[0], 0.1, 8, "MaxRL", "C4")
    label(panels[0], 0.5, 1.9, "GRPO", "C1", xytext=(10, 8))
    label(panels[0], 0.3, 0.94, "Dr. GRPO", "C5", xytext=(0, -12))
    panels[0].set_ylim(0.55, 18)
    panels[1].set(xlabel="pass rate p", ylabel="w p (1 − p)")
    panels[1].set_title("Per ∇ log-odds: all vanish at both ends")
    label(panels[1], 0.3, 0.71, "MaxRL", "C4")
    label(panels[1], 0.8, 0.4, "GRPO", "C1")
    label(
        panels[1], 0.5, 0.23, "Dr. GRPO", "C5", ha="center", xytext=(0, -14)
    )
    return figure
