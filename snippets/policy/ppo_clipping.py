"""How does PPO's clipping work, why the minimum, and how is CISPO different?

Page:      docs/policy/ppo-clipping.md
Source:    Schulman et al. (2017), "Proximal Policy Optimization Algorithms",
           https://arxiv.org/abs/1707.06347, equations 6 and 7;
           MiniMax (2025), "MiniMax-M1", https://arxiv.org/abs/2506.13585,
           equations 3 to 7 (CISPO);
           dual clip: Ye et al. (2019), https://arxiv.org/abs/1912.09729.
Notation:  ratio r = exp(log_probs - old_log_probs) = pi_new / pi_old of a
           sampled token; A its advantage. Objectives are maximised: a
           trainer minimises their negative.
Units:     log-probabilities, entropies and KL in nats; advantages in
           standard deviations of the reward over the batch.
"""

from collections.abc import Callable, Iterable
from functools import cache

import torch
from matplotlib.figure import Figure
from torch import Tensor

from snippets.estimate import SEEDS, Estimate
from snippets.show import label, markdown_table, new_figure


# --8<-- [start:surrogate]
def ppo(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    low: float = 0.2,
    high: float = 0.2,
    dual: float | None = None,
) -> Tensor:
    """PPO's clipped objective of each token, to be maximised (Eq. 7).

    Args:
        log_probs: Under the policy being trained, any shape.
        old_log_probs: Under the policy that sampled, same shape, no grad.
        advantages: Same shape, no grad.
        low: The band starts at 1 - low.
        high: The band ends at 1 + high.
        dual: Dual clip's c > 1, or None: no floor where A < 0.

    Returns:
        The objective of each token, same shape.
    """
    ratio = (log_probs - old_log_probs).exp()
    clipped = ratio.clamp(1 - low, 1 + high)
    objective = torch.minimum(ratio * advantages, clipped * advantages)
    if dual is None:
        return objective
    floor = torch.maximum(objective, dual * advantages)
    return torch.where(advantages < 0, floor, objective)


# --8<-- [end:surrogate]


# --8<-- [start:cispo]
def cispo(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    low: float = 1.0,
    high: float = 4.0,
) -> Tensor:
    """CISPO's objective of each token, to be maximised (M1, Eq. 4, 5).

    Shapes as in `ppo`. The weight is clipped to [1 - low, 1 + high] and
    detached; the gradient passes through log_probs alone.
    """
    ratio = (log_probs - old_log_probs).exp()
    weight = ratio.clamp(1 - low, 1 + high).detach()
    return weight * advantages * log_probs


# --8<-- [end:cispo]


# --8<-- [start:coefficient]
def coefficient(
    objective: Callable[..., Tensor], ratio: Tensor, advantages: Tensor
) -> Tensor:
    """What each token multiplies A * grad log pi by, found by autograd.

    Args:
        objective: `ppo`, `cispo` or another function of (log_probs,
            old_log_probs, advantages).
        ratio: pi_new / pi_old of T tokens, shape (T,).
        advantages: Shape (T,), none of them 0.

    Returns:
        (d objective / d log_probs) / A, shape (T,): 0 is a token that
        teaches nothing, 1 the plain policy gradient.
    """
    log_probs = ratio.log().requires_grad_()
    old = torch.zeros_like(ratio)  # log-probabilities up to a constant
    total = objective(log_probs, old, advantages).sum()
    return torch.autograd.grad(total, log_probs)[0] / advantages


# --8<-- [end:coefficient]


def unclipped(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor
) -> Tensor:
    """The objective r * A (Schulman et al., Eq. 6), shapes as in `ppo`."""
    return (log_probs - old_log_probs).exp() * advantages


def clip_only(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    clip: float = 0.2,
) -> Tensor:
    """The tempting mistake clip(r) * A, without the minimum."""
    ratio = (log_probs - old_log_probs).exp()
    return ratio.clamp(1 - clip, 1 + clip) * advantages


# --8<-- [start:reuse]
def reuse(
    objective: Callable[..., Tensor],
    old: Tensor,
    tokens: Tensor,
    advantages: Tensor,
    passes: int,
    step: float = 0.5,
) -> list[Tensor]:
    """Gradient ascent on the same samples, again and again.

    Args:
        objective: `ppo`, `cispo`, …
        old: Log-probabilities that sampled, B independent batches over
            K tokens, shape (B, K).
        tokens: N sampled token ids of each batch, shape (B, N).
        advantages: Shape (B, N).
        passes: Number of full-batch gradient steps.
        step: Learning rate on the logits.

    Returns:
        Log-probabilities before each pass and after the last one:
        passes + 1 tensors of shape (B, K).
    """
    logits, path = old.clone(), [old]
    old_taken = old.gather(1, tokens)
    for _ in range(passes):
        logits.requires_grad_()
        taken = logits.log_softmax(1).gather(1, tokens)
        total = objective(taken, old_taken, advantages).mean(1).sum()
        (gradient,) = torch.autograd.grad(total, logits)
        logits = logits.detach() + step * gradient
        path.append(logits.log_softmax(1))
    return path


# --8<-- [end:reuse]


def standardised(rewards: Tensor) -> Tensor:
    """Advantages with mean 0 and deviation 1 in each row of (B, N)."""
    centred = rewards - rewards.mean(1, keepdim=True)
    return centred / (rewards.std(1, keepdim=True) + 1e-6)


def noise_batches(
    generator: torch.Generator,
    batches: int = 16,
    vocab: int = 10,
    n: int = 64,
) -> tuple[Tensor, Tensor, Tensor]:
    """Batches whose reward does not depend on the token at all.

    Args:
        generator: Source of the policies, samples and rewards.
        batches: B independent repetitions.
        vocab: K tokens to choose from.
        n: N samples of a batch.

    Returns:
        old (B, K), tokens (B, N) and advantages (B, N), float64. Every
        policy has the same true value, so any claimed gain is fiction.
    """
    kind = {"generator": generator, "dtype": torch.float64}
    old = torch.randn(batches, vocab, **kind).log_softmax(1)
    tokens = torch.multinomial(old.exp(), n, True, generator=generator)
    return old, tokens, standardised(torch.randn(batches, n, **kind))


PASSES = 200

OBJECTIVES: dict[str, Callable[..., Tensor]] = {
    "no clip": unclipped,
    "clip, no min": clip_only,
    "PPO": ppo,
    "CISPO, weight ≤ 5": cispo,
    "CISPO, weight ≤ 1.2": lambda *batch: cispo(*batch, low=1.0, high=0.2),
}


def noise_runs(seeds: Iterable[int]) -> dict[str, Tensor]:
    """Each objective on the same batches of pure noise, 16 for each seed.

    Args:
        seeds: S of them, each the source of its own 16 batches.

    Returns:
        For each name of OBJECTIVES a tensor (PASSES + 1, 3, S, 16): the
        claimed gain mean(r * A) in standard deviations of the reward,
        KL(old || new) in nats and the largest ratio of a sampled token.
    """
    drawn = [noise_batches(torch.Generator().manual_seed(s)) for s in seeds]
    batch = [torch.cat(part) for part in zip(*drawn, strict=True)]
    return {
        name: torch.stack(
            [measured(new, *batch) for new in reuse(f, *batch, PASSES)]
        ).unflatten(2, (len(drawn), -1))
        for name, f in OBJECTIVES.items()
    }


@cache
def noise_of_the_page() -> dict[str, Tensor]:
    """`noise_runs` with the seeds of the page."""
    return noise_runs(SEEDS)


def measured(
    new: Tensor, old: Tensor, tokens: Tensor, advantages: Tensor
) -> Tensor:
    """Claimed gain, KL(old || new) and largest ratio, shape (3, B)."""
    ratio = (new - old).gather(1, tokens).exp()
    kl = (old.exp() * (old - new)).sum(1)
    claimed = (ratio * advantages).mean(1)
    return torch.stack([claimed, kl, ratio.max(1).values])


def train(
    objective: Callable[..., Tensor],
    seeds: Iterable[int],
    passes: int,
    step: float = 2.0,
    runs: int = 16,
    rounds: int = 40,
) -> Tensor:
    """Ten answers whose pass rates are 0.30 to 0.60: sample, reuse, repeat.

    Args:
        objective: `ppo`, `cispo`, …
        seeds: S of them, each the source of all samples of its own runs.
        passes: Gradient steps on each batch.
        step: Learning rate on the logits.
        runs: R independent trainings a seed.
        rounds: Batches of 64 samples that are drawn.

    Returns:
        True pass rate of the policy before each round and after the last
        one, and its entropy in nats: shape (rounds + 1, 2, S, R).
    """
    sources = [torch.Generator().manual_seed(s) for s in seeds]
    rates = torch.linspace(0.3, 0.6, 10, dtype=torch.float64)
    every = len(sources) * runs
    policy = torch.zeros(every, 10, dtype=torch.float64).log_softmax(1)
    history = []
    for _ in range(rounds):
        history.append(value_and_entropy(policy, rates))
        drawn = [
            (
                torch.multinomial(p, 64, True, generator=source),
                torch.rand(runs, 64, generator=source, dtype=p.dtype),
            )
            for p, source in zip(
                policy.exp().split(runs), sources, strict=True
            )
        ]
        tokens, luck = (torch.cat(part) for part in zip(*drawn, strict=True))
        rewards = (luck < rates[tokens]).to(luck.dtype)
        batch = policy, tokens, standardised(rewards)
        policy = reuse(objective, *batch, passes, step)[-1]
    history.append(value_and_entropy(policy, rates))
    return torch.stack(history).unflatten(2, (len(sources), runs))


def value_and_entropy(policy: Tensor, rates: Tensor) -> Tensor:
    """Expected pass rate and entropy of (B, K) log-probabilities: (2, B)."""
    p = policy.exp()
    return torch.stack([(p * rates).sum(1), -(p * policy).sum(1)])


TRAININGS = (
    (4, "no clip"),
    (4, "PPO"),
    (16, "no clip"),
    (16, "PPO"),
    (16, "CISPO, weight ≤ 5"),
)
"""Passes over each batch, and the objective."""


def trainings(seeds: Iterable[int]) -> dict[tuple[int, str], Tensor]:
    """`train` for each of TRAININGS, all from the same seeds."""
    seeds = tuple(seeds)
    return {
        (passes, name): train(OBJECTIVES[name], seeds, passes)
        for passes, name in TRAININGS
    }


def by_seed(values: Tensor) -> Estimate:
    """Mean of each row of (S, B), then mean and spread over the S seeds."""
    return Estimate(tuple(values.double().mean(1).tolist()))


# --- Tables ---------------------------------------------------------------

CASES = [(a, r) for a in (1.0, -1.0) for r in (0.5, 1.0, 1.5)]


def values_and_slopes(
    objective: Callable[..., Tensor], cases: list[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Objective and its slope in r for (advantage, ratio) pairs."""
    advantages, ratio = torch.tensor(cases, dtype=torch.float64).T
    log_probs, old = ratio.log(), torch.zeros_like(ratio)
    values = objective(log_probs, old, advantages)
    # d/dr = (d / d log pi) / r, and coefficient() has divided by A
    slopes = coefficient(objective, ratio, advantages) * advantages / ratio
    return list(zip(values.tolist(), slopes.tolist(), strict=True))


def signed(value: float) -> str:
    """A number with a real minus sign and no negative zero."""
    return f"{round(value, 3) + 0.0:g}".replace("-", "−")


def table_cases() -> str:
    """The six cases, clip 0.2: objective and slope, with and without min."""
    where = {0.5: "below", 1.0: "inside", 1.5: "above"}
    both = zip(
        CASES,
        values_and_slopes(ppo, CASES),
        values_and_slopes(clip_only, CASES),
        strict=True,
    )
    rows = [
        (
            f"${a:+.0f}$",
            f"{r:g}, {where[r]}",
            *(signed(x) for x in with_min),
            *(signed(x) for x in without),
            {(False, False): "stop", (True, True): "learn"}.get(
                (with_min[1] != 0, without[1] != 0), "**repair**"
            ),
        )
        for (a, r), with_min, without in both
    ]
    heads = ["$A$", "$r$", "min", "slope", "clip only", "slope", "so PPO"]
    return markdown_table(heads, rows, "llrrrrl")


def table_coefficients() -> str:
    """What multiplies A * grad log pi, for the same eight tokens."""
    cases = [(a, r) for a in (1.0, -1.0) for r in (0.5, 1.0, 1.5, 8.0)]
    advantages, ratio = torch.tensor(cases, dtype=torch.float64).T
    columns = [
        coefficient(f, ratio, advantages).tolist()
        for f in (
            unclipped,
            ppo,
            lambda *batch: ppo(*batch, dual=3.0),
            OBJECTIVES["CISPO, weight ≤ 1.2"],
            cispo,
        )
    ]
    rows = [
        (f"${a:+.0f}$", f"{r:g}", *(signed(c[i]) for c in columns))
        for i, (a, r) in enumerate(cases)
    ]
    heads = ["$A$", "$r$", "no clip", "PPO", "dual, $\\kappa=3$"]
    heads += ["CISPO $\\le 1.2$", "CISPO $\\le 5$"]
    return markdown_table(heads, rows)


def table_noise() -> str:
    """After 200 passes over a batch of noise: what each objective did."""
    rows = []
    for name, run in noise_of_the_page().items():
        claimed, kl, largest = run[-1]
        worst = largest.max(1, keepdim=True).values
        rows.append(
            (
                name,
                f"{by_seed(claimed):.3f}",
                f"{by_seed(kl):.3f}",
                f"{by_seed(largest):.2f}",
                f"{by_seed(worst):.1f}",
            )
        )
    heads = ["objective", "claimed gain", "KL(old ‖ new)"]
    return markdown_table(heads + ["largest $r$", "worst of 16"], rows)


def table_training() -> str:
    """Pass rate after 10 and 40 batches, 4 or 16 passes over each."""
    rows = []
    for (passes, name), run in trainings(SEEDS).items():
        final, entropy = run[40]
        stuck = (final < 0.55).double() * final.shape[1]
        rows.append(
            (
                name,
                passes,
                f"{by_seed(run[10, 0]):.3f}",
                f"{by_seed(final):.3f}",
                f"{by_seed(entropy):.2f}",
                f"{by_seed(stuck):.1f}",
                f"{by_seed(final.min(1, keepdim=True).values):.2f}",
            )
        )
    heads = ["objective", "passes", "10 batches", "40 batches", "entropy"]
    return markdown_table(heads + ["below 0.55", "worst"], rows)


BANDS = [
    ("TRL, `epsilon_high` unset", None, 0.2),
    ("TRL, `epsilon_high=5.0`", None, 5.0),
    ("verl, YAML defaults 0.2 / 0.2", 0.8, 1.2),
    ("verl, its example 10 / 0.2", -9.0, 1.2),
    ("slime, defaults 0.2 / 0.2", 0.8, 1.2),
    ("slime and AReaL, advised 1 / 4", 0.0, 5.0),
    ("SkyRL, default 1 / 4", 0.0, 5.0),
    ("SkyRL, before July 2026, 0 / 5", 1.0, 6.0),
    ("NeMo RL, its guide 1 / 5", 0.0, 6.0),
    ("ROLL, defaults 0.1 / 0.1", 0.9, 1.1),
]
"""Setting, and the lowest and highest weight it leads to."""


def table_bands() -> str:
    """The CISPO weight that each framework's numbers give a token."""
    ratio = torch.tensor([0.5, 1.0, 2.0, 8.0])
    rows = []
    for name, low, high in BANDS:
        floor = 0.0 if low is None else max(low, 0.0)
        weights = ratio.clamp(floor, high)
        rows.append(
            (
                name,
                f"[{floor:g}, {high:g}]",
                *(f"{w:g}" for w in weights.tolist()),
            )
        )
    heads = ["setting (low / high)", "weights"]
    return markdown_table(heads + [f"$r={r:g}$" for r in ratio], rows)


# --- Figures --------------------------------------------------------------


def figure_objective() -> Figure:
    """The objective of one token against its ratio, A = +1 and A = -1."""
    figure, (good, bad) = new_figure(5.0, rows=2)
    curves = (
        (unclipped, "C5", "--", 1.2),
        (clip_only, "C1", "--", 1.6),
        (ppo, "C0", "-", 2.4),
    )
    for axes, a, end in ((good, 1.0, 2.0), (bad, -1.0, 4.0)):
        ratio = torch.linspace(0.01, end, 400, dtype=torch.float64)
        advantages = torch.full_like(ratio, a)
        old = torch.zeros_like(ratio)
        for f, color, line, width in curves:
            value = f(ratio.log(), old, advantages)
            axes.plot(ratio, value, line, color=color, linewidth=width)
        flat = ratio[coefficient(ppo, ratio, advantages) == 0]
        axes.axvspan(flat.min(), flat.max(), color="grey", alpha=0.15, lw=0)
        axes.plot([1.0], [a], "o", color="C0")
        axes.set_ylabel("objective of a token")
    dual = ppo(ratio.log(), old, advantages, dual=3.0)
    bad.plot(ratio[ratio > 3], dual[ratio > 3], "-", color="C2")
    label(good, 1.6, 1.2, "PPO", "C0", xytext=(0, -14))
    label(good, 1.55, 1.55, "no clip", "C5", xytext=(-48, 4))
    label(good, 0.05, 0.8, "clip, no min", "C1")
    label(good, 0.5, 0.5, "PPO = no clip", "C0", xytext=(8, -10))
    label(good, 1.22, 0.05, "grey: gradient 0")
    label(bad, 1.75, -1.2, "clip, no min", "C1")
    label(bad, 2.05, -2.05, "PPO = no clip", "C0", xytext=(5, 2))
    label(bad, 3.05, -3.0, "dual clip", "C2", xytext=(0, 5))
    label(bad, 0.5, -0.45, "no clip", "C5", xytext=(3, 1))
    good.set_title("A > 0: PPO stops paying above 1.2", loc="left")
    bad.set_title("A < 0: it stops below 0.8; above, no floor", loc="left")
    bad.set_xlabel("ratio r = π_new / π_old")
    return figure


def figure_noise() -> Figure:
    """Claimed gain and largest ratio while one noise batch is reused."""
    figure, (gain, largest) = new_figure(5.0, rows=2, sharex=True)
    runs = noise_of_the_page()
    shown = (
        ("no clip", "C1", "-", 0.86),
        ("CISPO, weight ≤ 5", "C2", "--", 0.72),
        ("PPO", "C0", "-", None),  # beside its curve
    )
    x = torch.arange(1, PASSES + 1)
    for name, color, line, height in shown:
        of_seed = runs[name][1:].mean(3)
        for axes, row in ((gain, 0), (largest, 2)):
            y, spread = of_seed[:, row].mean(1), of_seed[:, row].std(1)
            axes.plot(x, y, line, color=color)
            band = y - spread, y + spread
            axes.fill_between(x, *band, color=color, alpha=0.2, lw=0)
            if height:
                corner = {"xycoords": "axes fraction", "xytext": (0, 0)}
                label(axes, 0.07, height, name, color, **corner)
            else:
                side = {"xytext": (0, 4), "ha": "right"}
                label(axes, PASSES, float(y[-1]), name, color, **side)
    gain.axhline(0, color="grey", alpha=0.6)
    label(gain, 1.1, 0, "true gain: 0, always", xytext=(0, -13))
    gain.set_ylim(-0.22, 1.1)
    largest.axhline(1.2, color="grey", alpha=0.6)
    label(largest, 1.1, 1.2, "1 + ε = 1.2", xytext=(0, 5))
    gain.set_title(
        "Reward is pure noise: no clip believes its luck", loc="left"
    )
    gain.set_ylabel("claimed gain, σ of reward")
    largest.set_title("PPO brakes the ratio, does not bound it", loc="left")
    largest.set(
        ylabel="largest ratio",
        yscale="log",
        xscale="log",
        xlabel="passes over the same 64 samples",
    )
    for axis, ticks in (
        (largest.xaxis, (1, 3, 10, 30, 100, 200)),
        (largest.yaxis, (1, 2, 5, 10, 20)),
    ):
        axis.set_ticks(ticks, [str(t) for t in ticks])
        axis.set_ticks([], minor=True)
    return figure
