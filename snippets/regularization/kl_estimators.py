"""What are the K1, K2 and K3 estimators of KL, in value and in gradient?

Page:      docs/regularization/kl-estimators.md
Source:    Schulman (2020), http://joschu.net/blog/kl-approx.html (values);
           Tang and Munos (2025), arXiv 2506.09477 (gradients).
Notation:  a token y is drawn from `sampler`; pi is the trained policy,
           ref the reference, log_r = log ref(y) - log pi(y), so that
           r = ref / pi; rho = pi / sampler; s = grad log pi(y), the score.
           Reverse KL is KL(pi || ref), forward KL is KL(ref || pi).
Units:     nats, one token (the sequence functions: one sequence of two).
"""

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from snippets.show import label, markdown_table, new_figure

if TYPE_CHECKING:
    from torch import Tensor

Array = np.ndarray

LOGITS = np.array([1.0, 0.2, -0.5, -1.0])
"""Logits of the example's policy over four tokens."""

REFERENCE = np.array([0.25, 0.25, 0.30, 0.20])
"""The example's reference."""

OLD_POLICY = np.array([0.4, 0.3, 0.2, 0.1])
"""The policy that sampled, where the example is off-policy."""


# --8<-- [start:estimators]
def k1(log_r: Array) -> Array:
    """-log r. Unbiased for KL(pi || ref), but one token may be negative."""
    return -log_r


def k2(log_r: Array) -> Array:
    """(log r)^2 / 2. Never negative, biased."""
    return 0.5 * log_r**2


def k3(log_r: Array) -> Array:
    """(r - 1) - log r. Unbiased and never negative, since log r <= r - 1."""
    return np.expm1(log_r) - log_r


# --8<-- [end:estimators]

ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}


# --8<-- [start:coefficient]
def coefficient(
    name: str, use: str, log_r: Array, rho: Array | float = 1.0
) -> Array:
    """What multiplies the score s when the term is minimised.

    Args:
        name: "k1", "k2" or "k3".
        use: "loss" (autograd through k, no ratio), "reward" (k detached,
            times rho s), "detached" (rho detached, times k as a loss) or
            "differentiable" (gradients through rho and through k).
        log_r: log ref - log pi of the sampled tokens, shape (V,).
        rho: pi / sampler, shape (V,) or 1.

    Returns:
        Coefficients, shape (V,).
    """
    value = ESTIMATORS[name](log_r)
    slope = {  # d k / d log pi; note d log r / d log pi = -1
        "k1": np.ones_like(log_r),
        "k2": -log_r,
        "k3": -np.expm1(log_r),  # 1 - r
    }[name]
    return {
        "loss": slope,
        "reward": rho * value,
        "detached": rho * slope,
        "differentiable": rho * (value + slope),
    }[use]


# --8<-- [end:coefficient]


# --8<-- [start:gradient]
def expected_gradient(coef: Array, sampler: Array, policy: Array) -> Array:
    """E[coef(y) s(y)] over y ~ sampler, by summing over the vocabulary.

    For a softmax policy the score of token y is onehot(y) - policy.

    Args:
        coef: Coefficient of each token, shape (V,).
        sampler: Probabilities the tokens are drawn from, shape (V,).
        policy: Probabilities of the trained policy, shape (V,).

    Returns:
        Gradient with respect to the policy's logits, shape (V,).
    """
    weight = sampler * coef
    return weight - weight.sum() * policy


# --8<-- [end:gradient]


# --8<-- [start:loss]
def corrected_kl_loss(
    logp: "Tensor", ref_logp: "Tensor", old_logp: "Tensor"
) -> "Tensor":
    """Rho k3 with rho left in the graph: KL(pi || ref) in value and slope.

    Args:
        logp: log pi of the sampled tokens, with gradient, shape (B, T).
        ref_logp: log ref of the same tokens, no gradient, shape (B, T).
        old_logp: log of the policy that sampled them, no gradient, (B, T);
            logp.detach() when strictly on-policy.

    Returns:
        One term per token in nats, shape (B, T), to be masked and reduced.
    """
    rho = (logp - old_logp).exp()  # no detach, even where it equals 1
    log_r = ref_logp - logp
    return rho * (log_r.expm1() - log_r)


# --8<-- [end:loss]


def softmax(logits: Array) -> Array:
    """Probabilities of logits along the last axis, same shape."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def kl(p: Array, q: Array) -> float:
    """KL(p || q) in nats: p is the distribution the mean is taken over.

    Args:
        p: Probabilities, shape (V,).
        q: Probabilities, shape (V,), positive where p is.

    Raises:
        ValueError: q is 0 where p is not; the KL is infinite.
    """
    seen = p > 0
    if np.any(q[seen] <= 0):
        raise ValueError("q is 0 where p is positive: the KL is infinite")
    return float(p[seen] @ (np.log(p[seen]) - np.log(q[seen])))


def moments(name: str, policy: Array, ref: Array) -> tuple[float, float]:
    """Exact mean and standard deviation of one token's estimate.

    Args:
        name: "k1", "k2" or "k3".
        policy: Probabilities the token is drawn from, shape (V,).
        ref: Probabilities of the reference, shape (V,).

    Returns:
        (mean, standard deviation), in nats; the target of the mean is
        KL(policy || ref).
    """
    values = ESTIMATORS[name](np.log(ref) - np.log(policy))
    mean = policy @ values
    return float(mean), float(np.sqrt(policy @ (values - mean) ** 2))


def shifted_normals(shift: float) -> tuple[Array, Array]:
    """Schulman's test: policy N(0, 1), reference N(shift, 1), on a grid.

    Args:
        shift: Distance of the means in standard deviations, 0 to 2; the
            KL is shift^2 / 2 nats.

    Returns:
        (policy, reference), each of shape (2001,).
    """
    x = np.linspace(-10.0, 10.0, 2001)
    return softmax(-0.5 * x**2), softmax(-0.5 * (x - shift) ** 2)


def sharpened(temperature: float, v: int = 1000) -> tuple[Array, Array]:
    """A policy that is its reference at a lower temperature.

    The reference is Zipf's: probability proportional to 1 / rank.

    Args:
        temperature: Below 1 the policy is sharper than the reference.
        v: Number of tokens.

    Returns:
        (policy, reference), each of shape (v,).
    """
    log_ref = -np.log(np.arange(1.0, v + 1))
    return softmax(log_ref / temperature), softmax(log_ref)


def best_control_variate(policy: Array, ref: Array) -> tuple[float, float]:
    """The multiple of r - 1 that makes k1 + lam (r - 1) quietest.

    Args:
        policy: Probabilities the token is drawn from, shape (V,).
        ref: Probabilities of the reference, shape (V,).

    Returns:
        (lam, standard deviation at lam in nats); k3 is lam = 1.
    """
    log_r = np.log(ref) - np.log(policy)
    r = np.exp(log_r)
    spread = policy @ (r - 1) ** 2
    lam = policy @ ((log_r - policy @ log_r) * (r - 1)) / spread
    values = -log_r + lam * (r - 1)
    return float(lam), float(
        np.sqrt(policy @ (values - policy @ values) ** 2)
    )


# --8<-- [start:sequence]
def sequence_gradients(
    first: Array, second: Array, ref_first: Array, ref_second: Array
) -> dict[str, Array]:
    """Reverse-KL gradient of a two-token sequence at its first token.

    Args:
        first: Logits of token 1, shape (V,).
        second: Logits of token 2 given token 1 (row), shape (V, V).
        ref_first: Reference probabilities of token 1, shape (V,).
        ref_second: Reference probabilities of token 2, shape (V, V).

    Returns:
        Gradients with respect to `first`, shape (V,): "token" charges
        token 1 with its own k1 (a per-token k2 loss does the same),
        "sequence" with the k1 of both tokens, which is the full gradient.
    """
    p1, p2 = softmax(first), softmax(second)
    own = np.log(p1) - np.log(ref_first)
    later = (p2 * (np.log(p2) - np.log(ref_second))).sum(axis=-1)
    return {
        "token": expected_gradient(own, p1, p1),
        "sequence": expected_gradient(own + later, p1, p1),
    }


# --8<-- [end:sequence]


def clamped_k3_coefficient(
    log_r: Array, input_limit: float = 20.0, output_limit: float = 10.0
) -> Array:
    """Coefficient of k3 as a loss when log r and k3 are both clamped.

    A clamp passes no gradient outside its limits.

    Args:
        log_r: log ref - log pi, shape (V,).
        input_limit: Bound of |log r|, in nats.
        output_limit: Bound of k3, in nats.

    Returns:
        1 - r inside both limits and 0 outside, shape (V,).
    """
    inside = (np.abs(log_r) <= input_limit) & (
        k3(np.clip(log_r, -input_limit, input_limit)) <= output_limit
    )
    return np.where(inside, -np.expm1(np.minimum(log_r, input_limit)), 0.0)


def example_sequence() -> tuple[Array, Array, Array, Array]:
    """The two-token sequence of the page: V = 2, uniform reference.

    Token 1 is drawn as in the reference. After token 0 the policy still
    equals the reference; after token 1 it is nearly deterministic.

    Returns:
        Arguments of `sequence_gradients`.
    """
    first = np.zeros(2)
    second = np.array([[0.0, 0.0], [3.0, 0.0]])
    return first, second, np.full(2, 0.5), np.full((2, 2), 0.5)


def gradients(sampler: Array | None = None) -> dict[tuple[str, str], Array]:
    """Expected gradient of each estimator in each use, for the example.

    Args:
        sampler: Probabilities the tokens are drawn from, shape (4,); the
            policy itself when None.

    Returns:
        (estimator, use) to gradient with respect to LOGITS, shape (4,).
    """
    policy = softmax(LOGITS)
    sampler = policy if sampler is None else sampler
    log_r, rho = np.log(REFERENCE) - np.log(policy), policy / sampler
    return {
        (name, use): expected_gradient(
            coefficient(name, use, log_r, rho), sampler, policy
        )
        for name in ESTIMATORS
        for use in ("loss", "reward", "detached", "differentiable")
    }


def true_gradients() -> dict[str, Array]:
    """Gradients of the two KLs of the example, in closed form.

    Returns:
        "reverse" and "forward" to gradients with respect to LOGITS, (4,).
    """
    policy = softmax(LOGITS)
    log_ratio = np.log(policy) - np.log(REFERENCE)
    return {
        "reverse": policy * (log_ratio - kl(policy, REFERENCE)),
        "forward": policy - REFERENCE,
    }


def relative_error(gradient: Array) -> float:
    """Distance to the reverse-KL gradient, over that gradient's norm."""
    truth = true_gradients()["reverse"]
    return float(np.linalg.norm(gradient - truth) / np.linalg.norm(truth))


def cosine(a: Array, b: Array) -> float:
    """Cosine of the angle between two gradients; nan when one is 0."""
    norms = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / norms) if norms > 1e-12 else float("nan")


def clamped_k3(
    d: Array, first: float | None, last: float | None
) -> tuple[Array, Array]:
    """k3 and its slope in log pi in float32, step by step as autograd does.

    Args:
        d: log ref - log pi, shape (V,).
        first: Bound of d before `exp`, in nats; None: no clamp.
        last: Bound of k3, in nats; None: no clamp.

    Returns:
        (value, slope), float32, each of shape (V,). A clamp's backward
        multiplies by 0 outside its bounds, `exp`'s by its own result.
    """
    d = np.asarray(d, dtype=np.float32)
    inner = d if first is None else np.clip(d, -first, first)
    with np.errstate(over="ignore", invalid="ignore"):
        r = np.exp(inner)
        value = r - inner - 1
        passed = np.float32(1) if last is None else (abs(value) <= last)
        slope = passed * r - passed  # through exp(d), then through -d
        if first is not None:
            slope = slope * (abs(d) <= first)
    if last is not None:
        value = np.clip(value, -last, last)
    return value, -slope  # d falls when log pi rises


def table_overflow() -> str:
    """Value and gradient of k3 at log r = 100, by where it is clamped."""
    places = [
        ("nothing", None, None),
        ("the value, ±10", None, 10.0),
        ("log r, ±20", 20.0, None),
        ("log r, ±20, then the value, ±10", 20.0, 10.0),
    ]
    rows = []
    for name, first, last in places:
        value, slope = clamped_k3(np.array(100.0), first, last)
        cells = [f"{float(x) + 0.0:.3g}" for x in (value, slope)]
        shown = {"inf": "∞", "-inf": "−∞", "nan": "**NaN**"}
        rows.append([name, *(shown.get(c, c) for c in cells)])
    return markdown_table(["clamped", "loss", "gradient"], rows, "lrr")


def minus(number: str) -> str:
    """The number with a true minus sign."""
    return number.replace("-", "−")


def table_values() -> str:
    """Bias and spread of one token's estimate, exact."""
    cases = [
        ("normals, shift 0.1", shifted_normals(0.1)),
        ("normals, shift 1", shifted_normals(1.0)),
        ("policy sharpened, $T = 0.8$", sharpened(0.8)),
        ("policy sharpened, $T = 0.5$", sharpened(0.5)),
    ]
    rows = []
    for case, (policy, ref) in cases:
        true = kl(policy, ref)
        stats = {name: moments(name, policy, ref) for name in ESTIMATORS}
        bias = (stats["k2"][0] - true) / true
        spread = [f"{stats[name][1] / true:.2f}" for name in ESTIMATORS]
        shown = minus(f"{100 * bias:+.2f} %")
        rows.append([case, f"{true:.4f}", shown, *spread])
    heads = ["case", "KL (nats)", "bias of k2"]
    return markdown_table(
        [*heads, "std of k1 / KL", "std of k2 / KL", "std of k3 / KL"], rows
    )


def table_gradients() -> str:
    """On-policy gradients of the example, with what each one is."""
    truth, grads = true_gradients(), gradients()
    forward, reverse = "$\\nabla$KL(ref‖π)", "$\\nabla$KL(π‖ref)"
    ours = [
        ("k1 as loss", ("k1", "loss"), "0: noise only"),
        ("**k2 as loss**", ("k2", "loss"), reverse),
        ("k3 as loss", ("k3", "loss"), forward),
        ("**k1 in reward**", ("k1", "reward"), reverse),
        ("k2 in reward", ("k2", "reward"), "neither"),
        ("k3 in reward", ("k3", "reward"), f"{reverse} − {forward}"),
    ]
    rows = [
        (name, truth[key], "the target" if key == "reverse" else "")
        for name, key in ((reverse, "reverse"), (forward, "forward"))
    ] + [(name, grads[key], what) for name, key, what in ours]
    cells = []
    for name, gradient, what in rows:
        numbers = ", ".join(
            minus(f"{0.0 if abs(g) < 5e-5 else g:.4f}") for g in gradient
        )
        cos = cosine(gradient, truth["reverse"])
        shown = "none" if np.isnan(cos) else minus(f"{cos:.3f}")
        cells.append([name, numbers, shown, what])
    return markdown_table(
        ["term", "gradient of the 4 logits", "cosine with target", "equals"],
        cells,
        "lrrl",
    )


def table_errors() -> str:
    """Relative error of each gradient, on-policy and off-policy."""
    on, off = gradients(), gradients(OLD_POLICY)
    columns = [
        (on, "loss"),
        (on, "differentiable"),
        (off, "loss"),
        (off, "detached"),
        (off, "differentiable"),
    ]
    rows = [
        [name, *(f"{relative_error(g[name, use]):.3f}" for g, use in columns)]
        for name in ESTIMATORS
    ]
    heads = [
        "estimator",
        "on-policy, as loss",
        "on-policy, differentiable ρ",
        "off-policy, no ρ",
        "off-policy, ρ detached",
        "off-policy, differentiable ρ",
    ]
    return markdown_table(heads, rows)


def table_tails() -> str:
    """Value and coefficient of k2 and k3 at chosen log-ratios."""
    rows = []
    for x in (-5.0, -1.0, -0.1, 0.1, 1.0, 2.6, 2.7, 5.0):
        log_r = np.array(x)
        numbers = (
            k2(log_r),
            k3(log_r),
            coefficient("k2", "loss", log_r),
            coefficient("k3", "loss", log_r),
            clamped_k3_coefficient(log_r),
        )
        cells = [minus(f"{number:.4g}") for number in numbers]
        rows.append([minus(f"{x:g}"), *cells])
    heads = ["$\\log r$", "k2", "k3", "k2 as loss", "k3 as loss"]
    return markdown_table([*heads, "k3 as loss, clamped"], rows)


def table_reversed() -> str:
    """What k1, k2 and k3 average to when the ratio is upside down."""
    policy = softmax(LOGITS)
    log_r = np.log(REFERENCE) - np.log(policy)
    rows = []
    for name, what in (
        ("k1", "−KL(π‖ref)"),
        ("k2", "unchanged: even in $\\log r$"),
        ("k3", "χ²(π‖ref) − KL(π‖ref)"),
    ):
        right = policy @ ESTIMATORS[name](log_r)
        wrong = policy @ ESTIMATORS[name](-log_r)
        rows.append([name, f"{right:.4f}", minus(f"{wrong:.4f}"), what])
    heads = ["estimator", "mean with ref / π", "mean with π / ref"]
    return markdown_table([*heads, "the second column is"], rows, "lrrl")


@cache
def spread_curve() -> dict[str, tuple[float, ...]]:
    """Data of `figure_spread`: "kl" in nats, "k1".. as std over KL."""
    columns: dict[str, list[float]] = {"kl": [], "k1": [], "k2": [], "k3": []}
    for temperature in np.linspace(0.95, 0.4, 45):
        policy, ref = sharpened(float(temperature))
        true = kl(policy, ref)
        columns["kl"].append(true)
        for name in ESTIMATORS:
            columns[name].append(moments(name, policy, ref)[1] / true)
    return {name: tuple(column) for name, column in columns.items()}


def figure_spread() -> Figure:
    """Spread of one token's estimate as the policy sharpens."""
    data = spread_curve()
    figure, axes = new_figure(2.9)
    for name, color in (("k1", "C0"), ("k2", "C2"), ("k3", "C1")):
        axes.plot(data["kl"], data[name], color=color, label=name)
    label(axes, data["kl"][-1], data["k1"][-1], "k1", "C0")
    label(axes, data["kl"][-1], data["k2"][-1], "k2", "C2", xytext=(3, -10))
    label(axes, data["kl"][-1], data["k3"][-1], "k3", "C1", xytext=(3, -4))
    axes.set(
        title="Far from the reference, k3 can be the noisy one",
        xlabel="KL(π‖ref), nats",
        ylabel="std of one token / KL",
        yscale="log",
        xlim=(0, 1.4),
        ylim=(0.3, 25),
    )
    return figure


def figure_coefficient() -> Figure:
    """Coefficient of the score against log r, each estimator as a loss."""
    log_r = np.linspace(-5.0, 3.0, 801)
    figure, axes = new_figure(3.2)
    axes.axhline(0.0, color="grey", alpha=0.4, linewidth=0.8)
    for name, color in (("k1", "C0"), ("k2", "C2"), ("k3", "C1")):
        y = coefficient(name, "loss", log_r)
        axes.plot(log_r, y, color=color, label=name)
    tail = log_r[log_r >= 2.6]
    axes.plot(tail, clamped_k3_coefficient(tail), color="C4", label="clamped")
    label(axes, -4.4, 4.4, "k2: −log r", "C2", xytext=(6, 3))
    label(axes, -5.0, 1.0, "k1: 1", "C0", xytext=(3, 4))
    label(axes, -5.0, 0.0, "k3: 1 − r", "C1", xytext=(3, -10))
    label(axes, 2.6, -9.0, "clamped k3", "C4", ha="right", xytext=(-26, 0))
    axes.set(
        title="As a loss, k3 saturates left and explodes right",
        xlabel="log r = log ref − log π, nats",
        ylabel="coefficient of the score",
        ylim=(-20, 6.5),
        xticks=[-4, -2, 0, 2],
        yticks=[-20, -10, 0, 5],
    )
    return figure
