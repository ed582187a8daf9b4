"""How to write the GRPO loss, with its variants as switches.

Page:      docs/coding/write-grpo-loss.md
Source:    GRPO: Shao et al. (2024), https://arxiv.org/abs/2402.03300, as
           Eq. 5 of DAPO: Yu et al. (2025), https://arxiv.org/abs/2503.14476;
           Dr. GRPO: Liu et al. (2025), https://arxiv.org/abs/2503.20783;
           GSPO: Zheng et al. (2025), https://arxiv.org/abs/2507.18071.
Notation:  P prompts, G responses each, B = P·G rows in group-major order,
           T response positions, padded; ratio = exp(new − old), the policy
           being trained over the policy that sampled.
Units:     log-probabilities in nats, advantages in units of reward or of
           the group's standard deviation, the loss is minimised.
"""

from functools import partial

import torch
from matplotlib.figure import Figure
from torch import Tensor

from snippets.show import label, markdown_table, new_figure


# --8<-- [start:log_probs]
def token_log_probs(
    logits: Tensor, tokens: Tensor, temperature: float = 1.0
) -> Tensor:
    """Log-probability of every token but the first, given those before.

    Args:
        logits: (B, L, V); row t scores the token at position t + 1.
        tokens: (B, L), integers.
        temperature: The sampler's; the policy is softmax(logits / it).

    Returns:
        (B, L − 1), nats, float32; column t belongs to tokens[:, t + 1],
        so a mask over tokens is shifted too: mask[:, 1:].
    """
    logits = logits[:, :-1].float() / temperature
    picked = logits.gather(-1, tokens[:, 1:, None]).squeeze(-1)
    return picked - logits.logsumexp(-1)


# --8<-- [end:log_probs]


# --8<-- [start:advantages]
def group_advantages(rewards: Tensor, group: int, std: bool = True) -> Tensor:
    """One advantage per response, from the other answers to its prompt.

    Args:
        rewards: (B,), no gradient; each prompt's responses are neighbours.
        group: G, responses per prompt, at least 2.
        std: Divide by the group's sample standard deviation (n − 1);
            Dr. GRPO does not.

    Returns:
        (B, 1); all zero, up to rounding, in a group of equal rewards.

    Raises:
        ValueError: group < 2, whose advantage is 0 and whose std is NaN.
    """
    if group < 2:
        raise ValueError(f"group is {group}; a group mean needs two rewards")
    r = rewards.reshape(-1, group)
    adv = r - r.mean(1, keepdim=True)
    if std:
        adv = adv / (r.std(1, keepdim=True) + 1e-6)
    return adv.reshape(-1, 1)


# --8<-- [end:advantages]


# --8<-- [start:loss]
def grpo_loss(
    new: Tensor,
    old: Tensor,
    ref: Tensor | None,
    mask: Tensor,
    adv: Tensor,
    eps: tuple[float, float] = (0.2, 0.2),
    beta: float = 0.0,
    level: str = "token",
    reduce: str = "sequence",
    **counts: float,
) -> Tensor:
    """GRPO's loss, to be minimised; only `new` carries a gradient.

    Args:
        new: Log-probs under the policy being trained, (B, T).
        old: Under the policy that sampled, (B, T), detached.
        ref: Under the reference, (B, T), detached; None if beta is 0.
        mask: True on tokens the policy wrote, (B, T): no prompt, padding
            or tool output.
        adv: (B, 1) or (B, T), detached.
        eps: Clip range, kept ratios are [1 − eps[0], 1 + eps[1]].
        beta: Weight of the k3 estimate of KL(policy ‖ reference).
        level: "token" for a ratio per token, "sequence" for GSPO's one
            per response: the geometric mean of its tokens' ratios.
        reduce: As `reduce_loss`.
        **counts: As `reduce_loss`, for a part of a larger batch.

    Returns:
        Scalar.

    Raises:
        ValueError: Unknown `level` or `reduce`.
    """
    if level not in ("token", "sequence"):
        raise ValueError(f"level is {level!r}; use token or sequence")
    log_ratio = torch.where(mask, new - old, 0.0)  # before exp: see padding
    if level == "sequence":
        n = mask.sum(1, keepdim=True).clamp(min=1)
        log_ratio = log_ratio.sum(1, keepdim=True) / n
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - eps[0], 1 + eps[1])
    loss = -torch.minimum(ratio * adv, clipped * adv)
    if beta:
        d = torch.where(mask, ref - new, 0.0)  # log of reference over policy
        loss = loss + beta * (d.exp() - d - 1)
    return reduce_loss(torch.where(mask, loss, 0.0), mask, reduce, **counts)


# --8<-- [end:loss]


# --8<-- [start:reduce]
def reduce_loss(
    loss: Tensor,
    mask: Tensor,
    how: str,
    responses: float | None = None,
    tokens: float | None = None,
    budget: float | None = None,
) -> Tensor:
    """Sum token losses over a part of a batch, divide by the whole's size.

    Args:
        loss: Token losses, zero where mask is False, (B, T).
        mask: (B, T), bool.
        how: "sequence" (GRPO), "token" (DAPO, over the whole step where
            its paper takes each prompt's group) or "constant" (Dr. GRPO).
        responses: In the whole optimiser step; B if None.
        tokens: Unmasked in the whole step; those of mask if None.
        budget: For "constant": tokens a response may have, fixed.

    Returns:
        Scalar; over the parts of a step these add up to the step's loss.

    Raises:
        ValueError: Unknown `how`.
    """
    n = mask.sum(1).clamp(min=1)
    responses = len(mask) if responses is None else responses
    tokens = mask.sum().clamp(min=1) if tokens is None else tokens
    if how == "sequence":  # mean over a response's tokens, then responses
        return (loss.sum(1) / n).sum() / responses
    if how == "token":  # mean over all tokens
        return loss.sum() / tokens
    if how == "constant":
        return loss.sum() / (responses * budget)
    raise ValueError(f"how is {how!r}; use sequence, token or constant")


# --8<-- [end:reduce]


def example() -> dict[str, Tensor]:
    """Four responses to one prompt, of 4, 2, 3 and 1 tokens, by hand.

    Returns:
        new, old, ref (4, 4), mask (4, 4) bool, rewards (4,); padding
        holds zeros. ref is 0.1 nats below old everywhere.
    """
    old = torch.tensor(
        [
            [0.5, 0.4, 0.3, 0.2],
            [0.6, 0.5, 0.5, 0.5],
            [0.3, 0.3, 0.9, 0.5],
            [0.2, 0.8, 0.5, 0.5],
        ]
    ).log()
    ratio = torch.tensor(
        [
            [1.3, 0.9, 1.0, 1.1],
            [0.7, 1.25, 1.0, 1.0],
            [1.5, 0.9, 1.05, 1.0],
            [1.25, 1.0, 1.0, 1.0],
        ]
    )
    mask = torch.arange(4) < torch.tensor([4, 2, 3, 1])[:, None]
    rows = {"new": old + ratio.log(), "old": old, "ref": old - 0.1}
    rows = {k: torch.where(mask, v, 0.0) for k, v in rows.items()}
    return rows | {"mask": mask, "rewards": torch.tensor([1.0, 0, 0, 1])}


VARIANTS: dict[str, tuple[bool, dict]] = {
    "GRPO": (True, {}),
    "GRPO, β = 0.04": (True, {"beta": 0.04}),
    "DAPO": (True, {"eps": (0.2, 0.28), "reduce": "token"}),
    "Dr. GRPO": (False, {"reduce": "constant", "budget": 4}),
    "GSPO": (True, {"eps": (3e-4, 4e-4), "level": "sequence"}),
}
"""std of `group_advantages`, and the arguments of `grpo_loss`."""


def variant(name: str, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """A variant's loss on a batch as `example` makes, and d loss / d new."""
    std, arguments = VARIANTS[name]
    new = batch["new"].clone().requires_grad_()
    adv = group_advantages(batch["rewards"], len(batch["rewards"]), std)
    loss = grpo_loss(
        new, batch["old"], batch["ref"], batch["mask"], adv, **arguments
    )
    return loss.detach(), torch.autograd.grad(loss, new)[0]


def table_variants() -> str:
    """Each variant's switches, its loss and its dead tokens, on `example`."""
    batch = example()
    rows = []
    for name, (std, kw) in VARIANTS.items():
        loss, grad = variant(name, batch)
        dead = ((grad == 0) & batch["mask"]).sum()
        low, high = kw.get("eps", (0.2, 0.2))
        rows.append(
            [
                name,
                "centred, / std" if std else "centred",
                kw.get("level", "token"),
                f"{low:g} / {high:g}",
                kw.get("reduce", "sequence"),
                minus(f"{loss:+.6f}"),
                f"{dead} of {batch['mask'].sum()}",
            ]
        )
    return markdown_table(
        [
            "variant",
            "advantage",
            "`level`",
            "`eps`",
            "`reduce`",
            "loss",
            "tokens without gradient",
        ],
        rows,
        "lllllrr",
    )


def weights(reduce: str, mask: Tensor, budget: float) -> Tensor:
    """Each token's weight: d loss / d new at ratio 1 and advantage −1.

    Args:
        reduce: As `reduce_loss`.
        mask: (B, T), bool.
        budget: As `reduce_loss`.

    Returns:
        (B, T), zero on padding.
    """
    new = torch.zeros(mask.shape, requires_grad=True)
    loss = grpo_loss(
        new,
        torch.zeros(mask.shape),
        None,
        mask,
        -torch.ones(len(mask), 1),
        reduce=reduce,
        budget=budget,
    )
    return torch.autograd.grad(loss, new)[0]


def figure_weights() -> Figure:
    """A token's and a response's weight against the response's length."""
    mask = example()["mask"]
    lengths = mask.sum(1)
    order = lengths.argsort()
    fig, (top, bottom) = new_figure(4.6, rows=2, sharex=True)
    shown = (
        ("sequence", "GRPO"),
        ("token", "DAPO"),
        ("constant", "Dr. GRPO"),
    )
    for i, (reduce, name) in enumerate(shown):
        w = weights(reduce, mask, budget=4)
        for ax, y in ((top, w.max(1).values), (bottom, w.sum(1))):
            y = (100 * y[order]).tolist()
            ax.plot(lengths[order], y, marker="o", color=f"C{i}", label=name)
            at = (1, y[0]) if i == 0 else (4, y[-1])
            label(ax, *at, name, f"C{i}", xytext=(6, 5 if i == 0 else -4))
    top.set_title("Only the sequence mean pays long answers less per token")
    top.set(ylabel="weight of one token, %", ylim=(0, 30))
    bottom.set(
        xlabel="tokens in the response",
        ylabel="weight of the response, %",
        ylim=(0, 45),
        xticks=[1, 2, 3, 4],
        xlim=(0.8, 4.9),
    )
    return fig


def table_micro_batches() -> str:
    """The token mean of `example`, in two parts of two responses each."""
    batch = example()
    batch["adv"] = group_advantages(batch.pop("rewards"), 4)
    total = int(batch["mask"].sum())
    loss = partial(grpo_loss, reduce="token")
    parts = [{k: v[i : i + 2] for k, v in batch.items()} for i in (0, 2)]
    means = [loss(**part) for part in parts]
    shares = [loss(**part, tokens=total) for part in parts]
    whole = loss(**batch)
    counts = [int(part["mask"].sum()) for part in parts]
    rows = [
        ("part 1", counts[0], means[0], shares[0]),
        ("part 2", counts[1], means[1], shares[1]),
        ("combined", total, sum(means) / 2, sum(shares)),
        ("the whole at once", total, whole, whole),
    ]
    return markdown_table(
        ["", "tokens", "own mean, then averaged", "sum / all tokens, added"],
        [
            (name, n, minus(f"{mean:+.6f}"), minus(f"{share:+.6f}"))
            for name, n, mean, share in rows
        ],
    )


def masked_after(
    where: str, mask: Tensor, new: Tensor, old: Tensor
) -> Tensor:
    """−(ratio) summed over unmasked tokens, masked at one of three places.

    Args:
        where: "multiply" the loss by the mask, torch.where "after exp", or
            torch.where "before exp".
        mask: (B, T), bool.
        new: (B, T), with gradient.
        old: (B, T).

    Returns:
        Scalar; the same in exact arithmetic.
    """
    if where == "before exp":
        return -(torch.where(mask, new - old, 0.0).exp() * mask).sum()
    ratio = (new - old).exp()
    if where == "after exp":
        return -torch.where(mask, ratio, 0.0).sum()
    return -(ratio * mask).sum()


def table_padding() -> str:
    """Loss and gradient of two tokens and one padding of −inf."""
    mask = torch.tensor([[True, True, False]])
    old = torch.tensor([[-1.0, -2.0, -torch.inf]])
    names = {
        "multiply": "`(ratio * mask).sum()`",
        "after exp": "`torch.where(mask, ratio, 0.0)`",
        "before exp": "`torch.where(mask, new - old, 0.0).exp()`",
    }
    rows = []
    for where, code in names.items():
        new = torch.tensor([[-1.0, -2.0, -3.0]], requires_grad=True)
        loss = masked_after(where, mask, new, old)
        (grad,) = torch.autograd.grad(loss, new)
        cells = ", ".join(minus(f"{g:g}") for g in grad[0].tolist())
        rows.append([code, minus(f"{loss.item():g}"), f"({cells})"])
    return markdown_table(["masked by", "loss", "gradient"], rows, "lrr")


def minus(number: str) -> str:
    """The number with a true minus sign."""
    return number.replace("-", "−")
