"""How does distributed inference optimise KV transfer and communication?

Page: rollouts/distributed-inference

Source: own cost models; ring all-reduce as in the NCCL literature; rates
    are assumptions that the page names.
Notation: n tokens of a prompt, P parameters, L layers, N ranks.
Units: bytes, GB = 1e9 bytes, seconds, FLOP; bandwidth in bytes per second,
    one direction.
"""

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from snippets.rollouts.paged_attention import kv_bytes
from snippets.show import label, markdown_table, new_figure

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Model:
    """What the cost of a prompt depends on.

    Attributes:
        parameters: Parameters that are active per token.
        layers: Transformer layers.
        width: Query heads times head size.
        kv: Bytes of KV cache per token, all layers.
    """

    parameters: float
    layers: int
    width: int
    kv: int


DENSE_70B = Model(70e9, 80, 8192, kv_bytes(80, 8, 128))
DENSE_8B = Model(8e9, 36, 4096, kv_bytes(36, 8, 128))
FLOPS = 8 * 989e12 * 0.4
"""Eight H100 in bf16 at 40 % of the data sheet's dense rate."""


# --8<-- [start:fetch]
def prefill_seconds(m: Model, n: float, flops: float = FLOPS) -> float:
    """Time to compute a prompt: 2 P per token, and causal attention.

    Args:
        m: The model.
        n: Tokens.
        flops: FLOP per second that are really reached.
    """
    linear = 2 * m.parameters * n
    attention = 2 * m.layers * m.width * n**2  # scores and values, half
    return (linear + attention) / flops


def transfer_seconds(m: Model, n: float, bandwidth: float) -> float:
    """Time to move the KV cache of n tokens."""
    return n * m.kv / bandwidth


def break_even(m: Model, bandwidth: float, flops: float = FLOPS) -> float:
    """Tokens from which fetching beats recomputing; 0: always.

    Raises:
        ZeroDivisionError: The model has no attention cost.
    """
    saved = m.kv / bandwidth - 2 * m.parameters / flops
    return max(0.0, saved * flops / (2 * m.layers * m.width))


def exposed_seconds(
    compute: float, transfer: float, layers: int, overlap: bool = True
) -> float:
    """What a transfer adds after the prefill has ended.

    Args:
        compute: Seconds of the prefill, spread evenly over the layers.
        transfer: Seconds for all layers' KV.
        layers: Layers; with overlap a layer is sent once it is computed.
        overlap: False: sent as a whole at the end.
    """
    if not overlap:
        return transfer
    sent = 0.0
    for layer in range(1, layers + 1):
        sent = max(sent, layer * compute / layers) + transfer / layers
    return sent - compute


# --8<-- [end:fetch]


# --8<-- [start:collectives]
def ring_all_reduce(
    size: float, ranks: int, bandwidth: float, latency: float
) -> float:
    """Seconds of a ring all-reduce of `size` bytes: 2 (N - 1) hops."""
    steps = 2 * (ranks - 1)
    return steps * latency + steps / ranks * size / bandwidth


def merged_attention(parts: list[tuple[Array, Array, Array]]) -> Array:
    """Attention over keys that are split over ranks.

    Args:
        parts: For each rank its (out, top, norm): softmax-weighted values
            (d,), largest score, and sum of exp(score - top) there.

    Returns:
        (d,) the output over all keys: d + 2 numbers per rank are sent,
        however long the context is.
    """
    top = max(float(t) for _, t, _ in parts)
    weights = [norm * np.exp(t - top) for _, t, norm in parts]
    total = sum(weights)
    return sum(
        w / total * out for w, (out, _, _) in zip(weights, parts, strict=True)
    )


# --8<-- [end:collectives]


def all_to_all_bytes(
    tokens: int, experts: int, width: int, size: float
) -> float:
    """Bytes that leave the ranks of a dispatch, local ones counted too."""
    return tokens * experts * width * size


# --- Tables ---------------------------------------------------------------

LINKS = (
    ("8 × 400 Gb/s, 190 GB/s reached", 190e9),
    ("4 × 200 Gb/s, 87 GB/s reached", 87e9),
    ("one 400 Gb/s card, 50 GB/s", 50e9),
    ("one 200 Gb/s card, 25 GB/s", 25e9),
    ("5 GB/s", 5e9),
)


def table_fetch() -> str:
    """Moving the KV of a prompt against computing it again, 70B."""
    rows = []
    for name, rate in LINKS:
        cells = []
        for n in (8192, 131072):
            move = transfer_seconds(DENSE_70B, n, rate)
            share = move / prefill_seconds(DENSE_70B, n)
            cells += [f"{move:.2f} s", f"{100 * share:.0f} %"]
        even = break_even(DENSE_70B, rate)
        start = f"{even:,.0f} tokens" if even else "always"
        rows.append((name, *cells, start))
    heads = ["link", "8,192 tokens", "of the prefill", "131,072 tokens"]
    heads += ["of the prefill", "fetching wins from"]
    return markdown_table(heads, rows)


def table_overlap() -> str:
    """What a transfer adds to the time to the first token."""
    rows = []
    for name, rate in LINKS[1:]:
        compute = prefill_seconds(DENSE_70B, 8192)
        move = transfer_seconds(DENSE_70B, 8192, rate)
        rows.append(
            (
                name,
                f"{1000 * compute:.0f} ms",
                f"{1000 * move:.0f} ms",
                f"{1000 * exposed_seconds(compute, move, 80):.1f} ms",
            )
        )
    heads = ["link", "prefill", "transfer", "exposed, layer by layer"]
    return markdown_table(heads, rows)


def table_collectives() -> str:
    """One decode step's all-reduces, 70B, 64 sequences, by ranks."""
    size = 64 * 8192 * 2
    rows = []
    for ranks, where, rate, latency in (
        (2, "NVLink", 450e9, 1e-6),
        (8, "NVLink", 450e9, 1e-6),
        (16, "two nodes, 50 GB/s", 50e9, 5e-6),
    ):
        each = ring_all_reduce(size, ranks, rate, latency)
        hops = 2 * (ranks - 1) * latency
        rows.append(
            (
                ranks,
                where,
                f"{1e6 * each:.0f} µs",
                f"{100 * hops / each:.0f} %",
                f"{160 * each * 1000:.1f} ms",
            )
        )
    heads = ["ranks", "link", "one all-reduce", "of it latency"]
    return markdown_table(heads + ["160 per step"], rows, "rlrrr")


def table_volumes() -> str:
    """Bytes per token that each kind of parallelism moves."""
    h, layers = 8192, 80
    rows = [
        (
            "tensor parallel, 70B",
            2 * layers * h * 2,
            "two all-reduces a layer",
        ),
        ("pipeline, 8 stages, 70B", 7 * h * 2, "one send per border"),
        (
            "experts, 58 layers, top 8, width 7,168",
            58 * (8 * 7168 + 8 * 7168 * 2),
            "fp8 out, bf16 back",
        ),
        ("KV hand-over, 70B, once", DENSE_70B.kv, "prefill to decode"),
    ]
    return markdown_table(
        ["what", "bytes per token", "how"],
        [(a, f"{b:,}", c) for a, b, c in rows],
        "lrl",
    )


# --- Figure ---------------------------------------------------------------


def figure_fetch() -> Figure:
    """Seconds per token against prompt length: compute, and three links."""
    figure, axes = new_figure(3.2)
    n = np.geomspace(500, 200_000, 60)
    compute = np.array([prefill_seconds(DENSE_70B, x) / x for x in n])
    axes.plot(n, 1e6 * compute, color="C0")
    for rate, color, name in (
        (5e9, "C1", "move, 5 GB/s"),
        (25e9, "C2", "move, 25 GB/s"),
        (190e9, "C5", "move, 190 GB/s"),
    ):
        height = 1e6 * DENSE_70B.kv / rate
        axes.axhline(height, color=color, linestyle="--")
        label(axes, 520, height, name, color, xytext=(0, 4))
    label(axes, 2e4, 46, "compute", "C0", xytext=(0, -16))
    axes.set(xscale="log", yscale="log", ylim=(1, 300))
    axes.set_xticks([1e3, 1e4, 1e5], ["1,000", "10,000", "100,000"])
    axes.set_yticks([1, 10, 100], ["1", "10", "100"])
    axes.set(xlabel="prompt length, tokens", ylabel="µs per token")
    axes.set_title("Computing grows with length, moving does not", loc="left")
    return figure
