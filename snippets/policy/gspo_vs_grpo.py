"""How does GSPO differ from GRPO, and why does it train better in practice?

Page:      docs/policy/gspo-vs-grpo.md
Source:    Zheng et al. (2025), "Group Sequence Policy Optimization",
           https://arxiv.org/abs/2507.18071: equation 2 (GRPO), 5 to 7
           (GSPO), 13 and 14 (GSPO-token), section 5.1 (clip ranges).
Notation:  w_t = pi_new / pi_old of token t of a response of T tokens,
           s = (w_1 ... w_T)^(1/T). The denominator is the policy that
           sampled. Objectives are maximised: a trainer minimises their
           negative.
Units:     log-ratios and KL in nats; KL(old || new) per token.
"""

from functools import cache
from math import comb, erf, exp, log, sqrt

import torch
from matplotlib.figure import Figure
from torch import Tensor

from snippets.show import label, markdown_table, new_figure


# --8<-- [start:objective]
def objective(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    level: str,
    low: float,
    high: float,
) -> Tensor:
    """GRPO's, GSPO's or GSPO-token's objective, to be maximised.

    Args:
        log_probs: Of the sampled tokens under the policy being trained,
            (B, T), float32 or wider.
        old_log_probs: Under the policy that sampled, (B, T), no grad.
        advantages: Of each token, (B, T), no grad; equal along a row in
            GRPO and GSPO.
        mask: 1 on tokens the model wrote, else 0, (B, T).
        level: "token" (GRPO), "sequence" (GSPO) or "sequence_token".
        low: The band starts at 1 - low.
        high: The band ends at 1 + high.

    Returns:
        Mean over responses of the mean over their tokens, a scalar.

    Raises:
        ValueError: Another level.
    """
    length = mask.sum(1).clamp(min=1)
    log_w = (log_probs - old_log_probs) * mask
    log_s = (log_w.sum(1) / length)[:, None].expand_as(log_w)
    if level == "token":
        ratio = log_w.exp()
    elif level == "sequence":
        ratio = log_s.exp()
    elif level == "sequence_token":  # value s, gradient of this token only
        ratio = log_s.exp().detach() * (log_probs - log_probs.detach()).exp()
    else:
        raise ValueError(f"unknown level {level!r}")
    clipped = ratio.clamp(1 - low, 1 + high)
    term = torch.minimum(ratio * advantages, clipped * advantages)
    return ((term * mask).sum(1) / length).mean()


# --8<-- [end:objective]


# --8<-- [start:weights]
def token_weights(
    log_w: Tensor, advantage: float, level: str, low: float, high: float
) -> Tensor:
    """What multiplies A / T * grad log pi of each token, by autograd.

    Args:
        log_w: Log-ratios of one response, shape (T,).
        advantage: Of the response, not 0.
        level: As in `objective`.
        low: As in `objective`.
        high: As in `objective`.

    Returns:
        Shape (T,): 1 is the plain policy gradient, 0 a silenced token.
    """
    new = log_w[None].clone().requires_grad_()
    old, ones = torch.zeros_like(new), torch.ones_like(new)
    value = objective(new, old, advantage * ones, ones, level, low, high)
    return torch.autograd.grad(value, new)[0][0] * len(log_w) / advantage


# --8<-- [end:weights]


# --8<-- [start:spread]
def sd_log_s(sigma: float, length: float, shared: float = 0.0) -> float:
    """Standard deviation of log s = mean of T token log-ratios.

    Args:
        sigma: Standard deviation of one token's log-ratio, nats.
        length: T, tokens.
        shared: Correlation of any two tokens of the response, 0 to 1.

    Returns:
        sigma * sqrt(shared + (1 - shared) / T), nats.
    """
    return sigma * sqrt(shared + (1 - shared) / length)


def sd_log_product(sigma: float, length: float, shared: float = 0.0) -> float:
    """Standard deviation of log(w_1 ... w_T) = T * log s, nats."""
    return length * sd_log_s(sigma, length, shared)


def clipped_share(
    mean: float, sd: float, low: float, high: float
) -> tuple[float, float]:
    """Probability of zero gradient if the log-ratio is N(mean, sd^2).

    Args:
        mean: Of the log-ratio, nats.
        sd: Of the log-ratio, nats, above 0.
        low: The band starts at 1 - low.
        high: The band ends at 1 + high.

    Returns:
        For A > 0 (the ratio is above the band) and for A < 0 (below).
    """
    above = (log(1 + high) - mean) / sd
    below = (log(1 - low) - mean) / sd
    return 0.5 * (1 - erf(above / sqrt(2))), 0.5 * (1 + erf(below / sqrt(2)))


# --8<-- [end:spread]


# --8<-- [start:moe]
def moe(
    weights: dict[str, Tensor], x: Tensor, routes: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A small residual mixture of experts, top-2 of E in each layer.

    Args:
        weights: router (L, E, D), experts (L, E, D, D), head (V, D).
        x: One context vector per token, shape (N, D).
        routes: Experts to use (replay), (L, N, 2); None: ask the router.

    Returns:
        Log-probabilities (N, V) and the experts used, (L, N, 2).
    """
    used = []
    for layer, (router, experts) in enumerate(
        zip(weights["router"], weights["experts"], strict=True)
    ):
        score = x @ router.T
        pick = score.topk(2).indices if routes is None else routes[layer]
        gate = score.gather(1, pick).softmax(1)
        each = torch.einsum("nd,edf->nef", x, experts).tanh()
        index = pick[..., None].expand(-1, -1, x.shape[1])
        x = x + (gate[..., None] * each.gather(1, index)).sum(1)
        used.append(pick)
    return (x @ weights["head"].T).log_softmax(1), torch.stack(used)


# --8<-- [end:moe]
