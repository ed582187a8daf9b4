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
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator
from torch import Tensor

from snippets.estimate import Estimate, each_over_seeds
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
        width = x.shape[1]
        flat = experts.transpose(0, 1).reshape(width, -1)  # one product
        each = (x @ flat).view(len(x), len(experts), width)
        index = pick[..., None].expand(-1, -1, width)
        x = x + (gate[..., None] * each.gather(1, index).tanh()).sum(1)
        used.append(pick)
    return (x @ weights["head"].T).log_softmax(1), torch.stack(used)


# --8<-- [end:moe]


def kl(old: Tensor, new: Tensor) -> float:
    """KL(old || new) in nats, mean over the N rows of log-probs (N, V)."""
    return (old.exp() * (old - new)).sum(1).mean().item()


def update_routers(
    generator: torch.Generator, responses: int = 32, length: int = 1000
) -> tuple[Tensor, Tensor, Tensor, float, tuple[float, float]]:
    """Token log-ratios across a change of weights, routes replayed or free.

    Four layers, 8 experts, width 8, 16 symbols; every token gets an
    independent random context. The change is random, no gradient step:
    noise of 10 % (routers) and 0.2 % (experts, head) of the weights'
    deviation.

    Args:
        generator: Source of the weights, their change and the samples.
        responses: B responses sampled from the old weights.
        length: T tokens each.

    Returns:
        log w with the old routes replayed (B, T), log w with the new
        router's choice (B, T), which tokens changed an expert in some
        layer (B, T), the share of (token, layer, expert) choices that
        changed, and KL(old || new) per token, replayed and free, summed
        over the vocabulary.
    """
    kind = {"generator": generator, "dtype": torch.float32}
    d = 8
    old = {
        "router": torch.randn(4, 8, d, **kind) / d**0.5,
        "experts": 0.05 * torch.randn(4, 8, d, d, **kind) / d**0.5,
        "head": 1.5 * torch.randn(16, d, **kind) / d**0.5,
    }
    x = torch.randn(responses * length, d, **kind)
    new = {
        name: w
        + (0.1 if name == "router" else 0.002)
        * w.std()
        * torch.randn(w.shape, **kind)
        for name, w in old.items()
    }
    before, routes = moe(old, x)
    tokens = torch.multinomial(before.exp(), 1, generator=generator)
    replayed, _ = moe(new, x, routes)
    free, fresh = moe(new, x)
    kept = (fresh[..., None] == routes[..., None, :]).any(-1)  # (L, N, 2)
    shape = responses, length
    return (
        (replayed - before).gather(1, tokens).view(shape),
        (free - before).gather(1, tokens).view(shape),
        ~kept.all(-1).all(0).view(shape),
        1 - kept.double().mean().item(),
        (kl(before, replayed), kl(before, free)),
    )


@cache
def flips() -> tuple[Tensor, Tensor, Tensor, float, tuple[float, float]]:
    """`update_routers` from seed 0, computed once, for the figure."""
    return update_routers(torch.Generator().manual_seed(0))


KEYS = ("sd w", "max w", "kl", "sd s", "grpo", "gspo+", "gspo-")


def toy(seed: int, responses: int = 16) -> list[float]:
    """Drift and clipped shares of one update, replayed and then free.

    Args:
        seed: Of the weights, their change and the samples.
        responses: Sampled for each of the two.

    Returns:
        The values of `KEYS`, as in `moe_row`, twice.
    """
    generator = torch.Generator().manual_seed(seed)
    *log_w, _, _, drifts = update_routers(generator, responses)
    rows = [
        {**moe_row(x), "kl": drift}
        for x, drift in zip(log_w, drifts, strict=True)
    ]
    return [row[key] for row in rows for key in KEYS]


@cache
def toy_estimates() -> dict[str, dict[str, Estimate]]:
    """`toy` over the seeds of `snippets.estimate`, by routing and key."""
    found = each_over_seeds(toy)
    return {
        "replayed": dict(zip(KEYS, found[: len(KEYS)], strict=True)),
        "free": dict(zip(KEYS, found[len(KEYS) :], strict=True)),
    }


# --8<-- [start:estimates]
def pass_rates(length: int, old: float, new: float) -> dict[str, float]:
    """Estimates of the new policy's pass rate from the old one's samples.

    A response is T coin flips and passes with more than half heads. All
    T + 1 counts of heads are summed, so there is no sampling error.

    Args:
        length: T.
        old: P(heads) of the policy that sampled, inside (0, 1).
        new: P(heads) of the policy asked about, inside (0, 1).

    Returns:
        True pass rates "old" and "new", and E_old[weight * pass] for the
        weights "product", "s" and "mean w"; "E s" is E_old[s].
    """
    up, down = new / old, (1 - new) / (1 - old)
    out = dict.fromkeys(("old", "new", "product", "s", "mean w", "E s"), 0.0)
    for heads in range(length + 1):
        tails = length - heads
        ways = log(comb(length, heads))
        p = exp(ways + heads * log(old) + tails * log(1 - old))
        s = exp((heads * log(up) + tails * log(down)) / length)
        out["E s"] += p * s
        if 2 * heads > length:
            out["old"] += p
            out["new"] += exp(ways + heads * log(new) + tails * log(1 - new))
            out["product"] += p * exp(length * log(s))
            out["s"] += p * s
            out["mean w"] += p * (heads * up + tails * down) / length
    return out


# --8<-- [end:estimates]


# --- Tables ---------------------------------------------------------------

LOG_W = torch.tensor([0.5, -0.3, 0.1, 0.0], dtype=torch.float64)
"""Log-ratios of four tokens, the worked example."""

GRPO_BAND = (0.2, 0.27)
GSPO_BAND = (3e-4, 4e-4)
"""Left and right clip ranges of the paper's experiment (Sec. 5.1)."""

OPEN = (1.0, float("inf"))
"""A band that clips nothing."""


def signed(value: float, digits: int = 3) -> str:
    """A number with a real minus sign."""
    return f"{value + 0.0:.{digits}f}".replace("-", "−")


def power(value: float) -> str:
    """A number in scientific notation, in TeX; 0 below 1e-12."""
    if abs(value) < 1e-12:
        return "0"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"${mantissa}\\cdot10^{{{int(exponent)}}}$"


def percent(value: float) -> str:
    """A share as a percentage, with two significant digits."""
    if value < 1e-10:
        return "0 %"
    return f"{100 * value:#.2g}".rstrip(".") + " %"


def table_weights() -> str:
    """What each of four tokens multiplies A / 4 * grad log pi by."""
    columns = [
        token_weights(LOG_W, a, level, *band).tolist()
        for level, own in (("token", GRPO_BAND), ("sequence", GSPO_BAND))
        for a, band in ((1.0, OPEN), (1.0, own), (-1.0, own))
    ]
    rows = [
        (signed(x, 1), *(signed(c[t]) for c in columns))
        for t, x in enumerate(LOG_W.tolist())
    ]
    heads = ["$\\log w_t$"]
    for name in ("GRPO", "GSPO"):
        heads += [f"{name}, no clip", "$A>0$", "$A<0$"]
    return markdown_table(heads, rows, "rrrrrrr")


def table_clipped() -> str:
    """Share without gradient for Gaussian token noise, T = 1,000."""
    rows = []
    for sigma in (0.005, 0.01, 0.02, 0.05, 0.1):
        drift = sigma**2 / 2
        sd = sd_log_s(sigma, 1000)
        good, bad = clipped_share(-drift, sd, *GSPO_BAND)
        tokens = sum(clipped_share(-drift, sigma, *GRPO_BAND)) / 2
        rows.append(
            (
                f"{sigma:g}",
                power(drift),
                power(sd),
                percent(good),
                percent(bad),
                percent((good + bad) / 2),
                percent(tokens),
            )
        )
    heads = ["$\\sigma$", "KL", "sd of $\\log s$", "GSPO, $A>0$", "$A<0$"]
    return markdown_table(heads + ["mean", "GRPO, mean"], rows, "rrrrrrr")


def moe_row(log_w: Tensor) -> dict[str, float]:
    """Drift and clipped shares of log-ratios (B, T), half the A > 0."""
    log_s = log_w.mean(1)
    s, w = log_s.exp(), log_w.exp()
    return {
        "sd w": log_w.std().item(),
        "max w": log_w.abs().max().item(),
        "mean": log_s.mean().item(),
        "sd s": log_s.std().item(),
        "max s": log_s.abs().max().item(),
        "grpo": sum(outside(w, *GRPO_BAND)) / 2,
        "gspo+": outside(s, *GSPO_BAND)[0],
        "gspo-": outside(s, *GSPO_BAND)[1],
    }


def outside(ratio: Tensor, low: float, high: float) -> tuple[float, float]:
    """Share above 1 + high (silenced if A > 0), below 1 - low (if A < 0)."""
    above = (ratio > 1 + high).double().mean().item()
    return above, (ratio < 1 - low).double().mean().item()


def table_moe() -> str:
    """The small MoE over one update: routing replayed and free."""
    rows = []
    for name, found in toy_estimates().items():
        scaled = (
            (found["sd w"], 1, 3),
            (found["max w"], 1, 2),
            (found["kl"], 1e5, 1),
            (found["sd s"], 1e4, 1),
            (found["grpo"], 100, 3),
            (found["gspo+"], 100, 0),
            (found["gspo-"], 100, 0),
        )
        cells = [
            f"{Estimate(tuple(k * v for v in e.values)):.{digits}f}"
            for e, k, digits in scaled
        ]
        rows.append((name, *cells))
    heads = ["routing", "sd $\\log w_t$", "largest", "KL, 1e-5"]
    heads += ["sd $\\log s$, 1e-4", "GRPO clips, %"]
    heads += ["GSPO, $A>0$, %", "$A<0$, %"]
    return markdown_table(heads, rows, "lrrrrrrr")


def table_engine() -> str:
    """Silenced before any update: the engine's log-probs as denominator."""
    rows = []
    for drift in (2e-4, 5e-4, 1.5e-3):
        shares = [
            clipped_share(-drift, sqrt(2 * drift / length), *band)
            for length, band in (
                (1000, GSPO_BAND),
                (8000, GSPO_BAND),
                (8000, (4e-3, 4e-3)),
            )
        ]
        cells = [percent(x) for pair in shares for x in pair]
        rows.append((power(drift), f"{exp(-drift):.4f}", *cells))
    heads = ["KL", "$s$", "1,000 tokens, $A>0$", "$A<0$"]
    heads += ["8,000, $A>0$", "$A<0$", "8,000, ε = 4e-3, $A>0$", "$A<0$"]
    return markdown_table(heads, rows, "rrrrrrrr")


def table_estimates() -> str:
    """Pass rate of a moved policy, estimated by four weights."""
    rows = []
    for length in (1, 11, 101, 1001):
        e = pass_rates(length, 0.5, 0.52)
        rows.append(
            (
                f"{length:,}",
                *(
                    f"{e[name]:.4f}"
                    for name in ("old", "new", "product", "mean w", "s")
                ),
                f"{e['E s']:.5f}",
            )
        )
    heads = ["tokens", "old", "**new**", "product", "mean of $w_t$", "$s$"]
    return markdown_table(heads + ["$E[s]$"], rows, "rrrrrrr")


# --- Figures --------------------------------------------------------------


def plain_ticks(axis: Axis, labels: dict[float, str]) -> None:
    """Ticks of a logarithmic axis as plain text, which draws fast."""
    axis.set_major_locator(FixedLocator(list(labels)))
    axis.set_major_formatter(FixedFormatter(list(labels.values())))
    axis.set_minor_locator(NullLocator())


def figure_scale() -> Figure:
    """Deviation of token, product and sequence log-ratio against length."""
    figure, axes = new_figure(3.6)
    lengths = [10 ** (k / 8) for k in range(8, 41)]
    for f, shared, color, line in (
        (sd_log_product, 0.0, "C1", "-"),
        (sd_log_s, 0.0, "C0", "-"),
        (sd_log_s, 0.01, "C0", "--"),
    ):
        spread = [f(0.02, t, shared) for t in lengths]
        axes.plot(lengths, spread, line, color=color)
    axes.axhline(0.02, color="C2", ls="-.")
    axes.axhline(0.2, color="C5", ls=":")
    axes.axhspan(*GSPO_BAND, color="C5", alpha=0.35)
    axes.set(
        xscale="log",
        yscale="log",
        ylim=(3e-5, 20),
        xlim=(10, 1e5),
        xlabel="tokens in the response",
        ylabel="standard deviation (nats)",
        title="Averaging independent noise: 32-fold at 1,000 tokens",
    )
    plain_ticks(axes.xaxis, {10: "10", 1e3: "1,000", 1e5: "100,000"})
    plain_ticks(
        axes.yaxis,
        {1e-4: "1e-4", 1e-3: "0.001", 0.01: "0.01"}
        | {0.1: "0.1", 1: "1", 10: "10"},
    )
    label(axes, 11, 0.25, "GRPO's ε, 0.2", "C5")
    label(axes, 11, 1.2e-4, "GSPO's ε, 3e-4 and 4e-4", "C5")
    label(axes, 1.2e4, 5.5, "log product", "C1", ha="right")
    label(axes, 9e4, 0.022, "one token's log-ratio", "C2", ha="right")
    label(axes, 9e4, 2.3e-3, "log s, correlation 0.01", "C0", ha="right")
    label(axes, 2.4e4, 5e-5, "log s", "C0", ha="right")
    return figure


def figure_moe() -> Figure:
    """Log-ratios of tokens and of responses, routing replayed or free."""
    figure, (tokens, responses) = new_figure(4.8, rows=2)
    replayed, free, *_ = flips()
    for axes, values, bound, color, line in (
        (tokens, replayed, 0.45, "C0", "-"),
        (tokens, free, 0.45, "C1", "-"),
        (responses, replayed.mean(1), 0.003, "C0", "-"),
        (responses, free.mean(1), 0.003, "C1", "--"),
    ):
        edges = torch.linspace(-bound, bound, 31, dtype=values.dtype)
        counts = torch.histogram(values.flatten(), edges).hist
        kind = {"color": color, "ls": line, "lw": 1.5}
        axes.stairs(counts.numpy(), edges.numpy(), **kind)
    tokens.set(
        yscale="log",
        ylim=(0.6, 5e4),
        xlabel="token log-ratio (nats)",
        ylabel="tokens",
        title="Tokens jump by tenths of a nat, averages by thousandths",
    )
    plain_ticks(tokens.yaxis, {1: "1", 100: "100", 1e4: "10,000"})
    label(tokens, 0.03, 8e3, "replayed", "C0")
    label(tokens, 0.14, 100, "free routing", "C1")
    responses.axvspan(-GSPO_BAND[0], GSPO_BAND[1], color="C5", alpha=0.3)
    responses.set(xlabel="log s of a response (nats)", ylabel="responses")
    responses.set_xticks([-0.002, 0, 0.002])
    label(responses, 0.0005, 8, "replayed", "C0")
    label(responses, -0.0028, 4.4, "free routing", "C1")
    return figure
