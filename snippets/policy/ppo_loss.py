"""Which terms make up the PPO loss, and how are their weights chosen?

Page: policy/ppo-loss

Source: Schulman et al. 2017, Eq. 7 and 9 (objective, maximised; here its
    negative, a loss); baselines ppo2 (value clipping).
Notation: r = pi_new(a|s) / pi_old(a|s), A advantage, V value, R value
    target, H entropy of the policy at a token.
Units: log-probabilities, entropy and KL in nats; every term is a mean over
    the tokens of the mask.
"""

from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor

from snippets.estimate import SEEDS, Estimate
from snippets.show import label, markdown_table, new_figure


# --8<-- [start:terms]
def policy_term(new: Tensor, old: Tensor, a: Tensor, eps: float) -> Tensor:
    """Clipped policy loss of each token, minimised.

    Args:
        new: (N,) log-probabilities under the policy that is trained.
        old: (N,) log-probabilities under the policy that sampled.
        a: (N,) advantages.
        eps: Clip range of the ratio exp(new - old).
    """
    r = (new - old).exp()
    return torch.maximum(-r * a, -r.clamp(1 - eps, 1 + eps) * a)


def value_term(
    v: Tensor, v_old: Tensor, target: Tensor, eps: float | None
) -> Tensor:
    """Half squared value error of each token, the worse of two, minimised.

    Args:
        v: (N,) values under the critic that is trained.
        v_old: (N,) values when the batch was sampled, constants.
        target: (N,) value targets, GAE advantage + v_old, constants.
        eps: Value clip, in units of the return; None: no clip.
    """
    loss = (v - target) ** 2
    if eps is not None:
        near = v_old + (v - v_old).clamp(-eps, eps)
        loss = torch.maximum(loss, (near - target) ** 2)
    return loss / 2


def ppo_loss(
    terms: dict[str, Tensor], mask: Tensor, c1: float, c2: float, beta: float
) -> Tensor:
    """Total: policy + c1 * value - c2 * entropy + beta * kl, a scalar.

    Args:
        terms: "policy", "value", "entropy", "kl", each (N,); entropy and
            the KL estimate to the reference in nats.
        mask: (N,) 1 on the tokens that the policy wrote, 0 on prompts,
            tool output and padding. All zero: the loss is 0.
        c1: Weight of the value term, >= 0.
        c2: Weight of the entropy bonus, >= 0.
        beta: Weight of the KL loss, >= 0; 0 where the KL is in the reward.
    """
    keep, n = mask.bool(), mask.sum().clamp(min=1)
    mean = {k: x.where(keep, 0).sum() / n for k, x in terms.items()}
    return (
        mean["policy"]
        + c1 * mean["value"]
        - c2 * mean["entropy"]
        + beta * mean["kl"]
    )


# --8<-- [end:terms]


# --8<-- [start:shaped]
def kl_to_come(new: Tensor, ref: Tensor, score: float, beta: float) -> Tensor:
    """Return of each token when the KL is put into the reward.

    Token t is paid -beta * (new[t] - ref[t]), the last one also the score;
    discount 1. Without a critic this is the token's advantage.

    Args:
        new: (T,) log-probabilities of the sampled tokens, policy.
        ref: (T,) the same tokens under the frozen reference.
        score: Reward of the whole response.
        beta: KL coefficient, per nat.

    Returns:
        (T,) sums of the rewards from t to the end.
    """
    reward = -beta * (new - ref)
    reward[-1] += score
    return reward.flip(0).cumsum(0).flip(0)


# --8<-- [end:shaped]


# --8<-- [start:junk]
def mass_off_best(gap: float, c2: float, actions: int) -> float:
    """Probability off the best action at the entropy-regularised optimum.

    argmax over pi of sum_a pi(a) A(a) + c2 * H(pi) is softmax(A / c2). One
    action leads all the others, which are equal, by the same gap.

    Args:
        gap: Lead of the best action's expected advantage, > 0.
        c2: Weight of the entropy in nats, > 0.
        actions: Number of actions, at least 2.
    """
    x = torch.tensor(gap / c2, dtype=torch.float64)
    others = torch.tensor(actions - 1, dtype=torch.float64)
    return float(torch.sigmoid(others.log() - x))


# --8<-- [end:junk]


# --- Worked example -------------------------------------------------------

EPS, VALUE_EPS = 0.2, 0.2


def example() -> dict[str, Tensor]:
    """Three tokens with made-up numbers, float64, each (3,)."""
    rows = {
        "new": [0.5, 0.2, 0.3],
        "old": [0.4, 0.25, 0.3],
        "a": [1.0, -0.5, 0.2],
        "v": [0.6, 0.2, 0.5],
        "v_old": [0.5, 0.3, 0.4],
        "target": [1.0, 0.0, 0.9],
        "entropy": [1.0, 1.2, 0.8],
        "ref": [0.35, 0.25, 0.4],
    }
    return {k: torch.tensor(x, dtype=torch.float64) for k, x in rows.items()}


def example_terms(value_eps: float | None = VALUE_EPS) -> dict[str, Tensor]:
    """The four terms of the three tokens; the KL estimated by k2."""
    x = example()
    new, old, ref = x["new"].log(), x["old"].log(), x["ref"].log()
    return {
        "policy": policy_term(new, old, x["a"], EPS),
        "value": value_term(x["v"], x["v_old"], x["target"], value_eps),
        "entropy": x["entropy"],
        "kl": (new - ref) ** 2 / 2,
    }


WEIGHTS = [
    ("Atari: $c_1=0.5$, $c_2=0.01$", 0.5, 0.01, 0.0),
    ("TRL PPO: $c_1=0.1$", 0.1, 0.0, 0.0),
    ("no critic, $\\beta=0.05$", 0.0, 0.0, 0.05),
]


def table_example() -> str:
    """Terms of three tokens, their means, and the total at some weights."""
    terms = example_terms()
    rows = []
    names = {
        "policy": "policy",
        "value": "value, halved",
        "entropy": "entropy",
        "kl": "KL (k2)",
    }
    for name, title in names.items():
        x = terms[name]
        cells = [f"{v:.4f}".replace("-", "−") for v in (*x, x.mean())]
        rows.append((title, *cells, *_weighted(name, x.mean())))
    ones = torch.ones(3)
    totals = [float(ppo_loss(terms, ones, *w[1:])) for w in WEIGHTS]
    signed = [f"**{t:.4f}**".replace("-", "−") for t in totals]
    rows.append(("loss", "", "", "", "", *signed))
    heads = ["term", "token 1", "2", "3", "mean"]
    return markdown_table(heads + [w[0] for w in WEIGHTS], rows)


def _weighted(name: str, mean: Tensor) -> list[str]:
    signs = {"policy": 1, "value": 1, "entropy": -1, "kl": 1}
    cells = []
    for _, c1, c2, beta in WEIGHTS:
        weights = {"policy": 1.0, "value": c1, "entropy": c2, "kl": beta}
        share = signs[name] * weights[name] * float(mean)
        cells.append(f"{share:+.4f}".replace("-", "−") if share else "·")
    return cells


# --- Who feels c1 ---------------------------------------------------------


class Draw(NamedTuple):
    """What one seed draws: a network's first weights and one batch.

    Attributes:
        weights: Of the trunk (16, 8), a second trunk, the policy head
            (6, 16) and the value head (1, 16), each scaled by its fan-in.
        x: (64, 8) features of the batch's states.
        uniform: (64, 6) numbers that pick the actions.
        a: (64,) advantages.
        returns: (64,) value targets.
        order: (30, 16) rows of each step's mini-batch.
    """

    weights: tuple[Tensor, ...]
    x: Tensor
    uniform: Tensor
    a: Tensor
    returns: Tensor
    order: Tensor


STEPS = 30
SHAPES = ((16, 8), (16, 8), (6, 16), (1, 16))


def draw(seed: int) -> Draw:
    """Weights and batch of one seed, float64."""
    generator = torch.Generator().manual_seed(seed)
    kind = {"generator": generator, "dtype": torch.float64}
    order = [torch.randperm(64, generator=generator) for _ in range(STEPS)]
    return Draw(
        tuple(torch.randn(n, m, **kind) / m**0.5 for n, m in SHAPES),
        torch.randn(64, 8, **kind),
        torch.rand(64, 6, **kind),
        torch.randn(64, **kind),
        1 + torch.randn(64, **kind),
        torch.stack(order)[:, :16],
    )


def forward(
    weights: list[Tensor], x: Tensor, shared: bool
) -> tuple[Tensor, Tensor]:
    """(M, N, 8) features to (M, N, 6) log-probabilities, (M, N) values.

    Args:
        weights: Of M networks: four matrices as in `Draw`, then their
            biases, a leading M each.
        x: Features.
        shared: The value head reads the policy's trunk, not its own.
    """

    def layer(i: int, inputs: Tensor) -> Tensor:
        return inputs @ weights[i].mT + weights[i + 4].unsqueeze(1)

    trunk = layer(0, x).tanh()
    own = trunk if shared else layer(1, x).tanh()
    return layer(2, trunk).log_softmax(-1), layer(3, own).squeeze(-1)


def train(
    shared: bool,
    adam: bool,
    max_norm: float | None,
    c1: Sequence[float],
    seeds: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """30 PPO steps on mini-batches of one fixed batch of 64 samples.

    Args:
        shared: One trunk for both heads, or a trunk each.
        adam: Adam with step 0.003, or SGD with step 0.1.
        max_norm: Clip of the joint gradient norm; None: no clip.
        c1: (M,) weight of the value term in each network.
        seeds: (M,) seed of each network's weights and batch.

    Returns:
        By how much the log-probabilities (M, 64, 6) and the values
        (M, 64) of the batch's states moved.
    """
    draws = [draw(seed) for seed in seeds]
    matrices = zip(*(d.weights for d in draws), strict=True)
    weights = [torch.stack(w) for w in matrices]
    weights += [torch.zeros_like(w[:, :, 0]) for w in weights]
    x, uniform, a, returns, order = (
        torch.stack(rows)
        for rows in zip(*(d[1:] for d in draws), strict=True)
    )
    first, v_old = forward(weights, x, shared)
    actions = (first - (-uniform.log()).log()).argmax(-1, keepdim=True)
    used = [w for i, w in enumerate(weights) if not shared or i not in (1, 5)]
    for w in used:
        w.requires_grad_()
    moments = [(torch.zeros_like(w), torch.zeros_like(w)) for w in used]
    factor = torch.tensor(c1, dtype=torch.float64)
    for step in range(1, STEPS + 1):
        rows = order[:, step - 1]
        i = torch.arange(len(draws)).unsqueeze(1), rows
        log_probs, v = forward(weights, x[i], shared)
        new, old = (p.gather(2, actions[i]) for p in (log_probs, first[i]))
        policy = policy_term(new[..., 0], old[..., 0], a[i], EPS).mean(1)
        value = value_term(v, v_old[i], returns[i], None).mean(1)
        gradients = torch.autograd.grad((policy + factor * value).sum(), used)
        flat = torch.cat([g.flatten(1) for g in gradients], 1)
        bound = max_norm if max_norm else torch.inf
        scale = (bound / flat.norm(dim=1)).clamp(max=1.0)
        for w, g, m in zip(used, gradients, moments, strict=True):
            g = g * scale.view(-1, *[1] * (g.ndim - 1))
            w.data -= 0.003 * adam_direction(g, *m, step) if adam else 0.1 * g
    with torch.no_grad():
        last, v = forward(weights, x, shared)
    return last - first, v - v_old


def adam_direction(g: Tensor, m: Tensor, v: Tensor, step: int) -> Tensor:
    """Adam's normalised step, betas 0.9 and 0.999; m and v are updated.

    Args:
        g: Gradient.
        m: Running mean of the gradient, same shape.
        v: Running mean of its square, same shape.
        step: Number of this step, from 1.
    """
    m.mul_(0.9).add_(g, alpha=0.1)
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    mean, square = m / (1 - 0.9**step), v / (1 - 0.999**step)
    return mean / (square.sqrt() + 1e-8)


def change(one: Tensor, other: Tensor) -> float:
    """How far other is from one, relative to the length of one."""
    return float((other - one).norm() / one.norm())


KINDS = tuple(product((False, True), (True, False), (None, 0.5)))
"""(shared, adam, max_norm) of the eight rows."""


@cache
def coupling(
    seeds: Sequence[int] = SEEDS,
) -> dict[tuple[bool, bool, float | None], tuple[Estimate, Estimate]]:
    """What ten times the weight c1 changes: 0.5 against 5.

    Args:
        seeds: Each draws a network and a batch.

    Returns:
        For each (shared, adam, max_norm) the relative change of what the
        policy learnt and of what the critic learnt.
    """
    n = len(seeds)
    found = {}
    for kind in KINDS:
        moved = train(*kind, [0.5] * n + [5.0] * n, [*seeds, *seeds])
        policy, critic = (
            Estimate(tuple(change(m[k], m[n + k]) for k in range(n)))
            for m in moved
        )
        found[kind] = policy, critic
    return found


def percent(x: Estimate) -> str:
    """A share with its spread; plain 0 where every seed gives 0."""
    if max(x.values) < 1e-4:
        return "0 %"
    return f"{Estimate(tuple(100 * v for v in x.values)):.0f} %"


def table_coupling() -> str:
    """Who feels a tenfold c1."""
    rows = [
        (
            "one trunk" if shared else "separate",
            "Adam" if adam else "SGD",
            "none" if max_norm is None else f"{max_norm:g}",
            percent(policy),
            percent(critic),
        )
        for (shared, adam, max_norm), (policy, critic) in coupling().items()
    ]
    heads = ["networks", "optimiser", "joint norm clip"]
    heads += ["policy changes by", "critic changes by"]
    return markdown_table(heads, rows, "lllrr")


# --- Weights found in code ------------------------------------------------

HALVES = [
    ("baselines ppo2", 0.5, 0.5, "policy's"),
    ("TRL PPO", 0.1, 0.5, "policy's"),
    ("NeMo RL, its PPO recipe", 0.4, 0.5, "own"),
    ("verl, OpenRLHF, SkyRL, AReaL", 1.0, 0.5, "own"),
    ("slime", 1.0, 1.0, "own"),
]
"""Code, its coefficient, its factor inside the term, whose optimiser."""


def table_halves() -> str:
    """What multiplies the squared value error, all factors together."""
    rows = [
        (name, f"{c:g}", f"{half:g}", f"{c * half:g}", optimiser)
        for name, c, half, optimiser in HALVES
    ]
    heads = ["code", "coefficient", "factor inside", "on $(V-R)^2$"]
    return markdown_table(heads + ["critic's optimiser"], rows, "lrrrl")


# --- KL in the reward -----------------------------------------------------

LOG_RATIOS = (0.5, -0.2, 1.0, 0.1)


def table_shaped() -> str:
    """Four tokens, score 1, beta 0.1: the KL each token answers for."""
    d = torch.tensor(LOG_RATIOS, dtype=torch.float64)
    to_come = kl_to_come(d, torch.zeros_like(d), 1.0, 0.1)
    rows = [
        (
            t + 1,
            f"{d[t]:+.1f}".replace("-", "−"),
            f"{-0.1 * d[t]:+.2f}".replace("-", "−"),
            f"{to_come[t] - 1:+.2f}".replace("-", "−"),
            f"{to_come[t]:.2f}",
        )
        for t in range(len(d))
    ]
    heads = ["token", "$\\log\\pi/\\pi_{ref}$", "its own penalty"]
    return markdown_table(
        heads + ["penalty in its return", "return with score 1"], rows
    )


# --- Figures --------------------------------------------------------------


def figure_value() -> Figure:
    """The value term of one token against V: V_old 0.5, target 1."""
    figure, axes = new_figure(2.9)
    v = torch.linspace(0, 1.7, 400, dtype=torch.float64)
    v_old, target = torch.full_like(v, 0.5), torch.ones_like(v)
    axes.axvspan(0.7, 1.3, color="grey", alpha=0.15, lw=0)
    plain = value_term(v, v_old, target, None)
    axes.plot(v, plain, "--", color="C5", linewidth=1.4)
    axes.plot(v, value_term(v, v_old, target, 0.2), "-", color="C0")
    axes.plot([0.5], [0.125], "o", color="C0")
    axes.plot([1.0], [0.0], "o", color="C5")
    label(axes, 0.5, 0.125, "V_old", xytext=(5, 3))
    label(axes, 1.0, 0.0, "target", xytext=(0, -14), ha="center")
    label(axes, 0.72, 0.058, "clip ±0.2: flat", "C0")
    label(axes, 1.22, 0.015, "no clip", "C5", xytext=(0, -14))
    axes.set_ylim(-0.09, 0.52)
    axes.set(xlabel="value V that the critic predicts", ylabel="value loss")
    axes.set_title("Value clip: no gradient from 0.7 to 1.3", loc="left")
    return figure


SIZES = ((6, "C2"), (18, "C1"), (152_064, "C0"))


def figure_junk() -> Figure:
    """Mass off the best action against c2, for three numbers of actions."""
    figure, axes = new_figure(3.0)
    weights = torch.logspace(-3, -0.5, 120)
    for actions, color in SIZES:
        mass = [mass_off_best(0.1, float(c), actions) for c in weights]
        axes.plot(weights, mass, color=color)
    axes.axvline(0.01, color="grey", alpha=0.6)
    label(axes, 0.01, 0.6, "0.01", xytext=(3, 0))
    label(
        axes, 0.0075, 0.5, "152,064\ntokens", "C0", ha="right", xytext=(-3, 3)
    )
    label(axes, 0.03, 0.5, "18", "C1", ha="right")
    label(axes, 0.08, 0.5, "6 actions", "C2")
    axes.set(xscale="log", xlabel="entropy weight c₂", ylim=(-0.03, 1.03))
    axes.set_ylabel("probability off the best")
    axes.set_xticks([1e-3, 1e-2, 1e-1], ["0.001", "0.01", "0.1"])
    axes.set_title("In a vocabulary, 0.01 drowns a lead of 0.1", loc="left")
    return figure
