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

from snippets.rollouts.paged_attention import kv_bytes, latent_bytes
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
MOE_671B = Model(37e9, 61, 128 * 160, latent_bytes(61, 512, 64))
"""Latent attention: keys of 192 and values of 128 count as 160 each."""
PEAK = 8 * 989e12
"""Eight H100, bf16, dense, by the data sheet."""
FLOPS = PEAK * 0.4
NVLINK = 450e9, 1e-6
"""Bytes per second in one direction, seconds per hop: round figures."""
NETWORK = 50e9, 5e-6
HBM = 3.35e12
"""Bytes per second that one H100 reads from its memory, data sheet."""


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


def exposed_seconds(compute: float, transfer: float, pieces: int) -> float:
    """What a transfer adds after the prefill has ended.

    Args:
        compute: Seconds of the prefill, spread evenly over the pieces.
        transfer: Seconds for all of the KV.
        pieces: Layers or chunks; each is sent once it is computed. 1: the
            whole is sent at the end.
    """
    sent = 0.0
    for piece in range(1, pieces + 1):
        sent = max(sent, piece * compute / pieces) + transfer / pieces
    return sent - compute


# --8<-- [end:fetch]


# --8<-- [start:all_reduce]
def ring_all_reduce(
    size: float, ranks: int, bandwidth: float, latency: float
) -> float:
    """Seconds of a ring all-reduce of `size` bytes: 2 (N - 1) hops."""
    steps = 2 * (ranks - 1)
    return steps * latency + steps / ranks * size / bandwidth


def direct_all_reduce(
    size: float, ranks: int, bandwidth: float, latency: float, shots: int
) -> float:
    """Seconds if each rank reads all others at once.

    Args:
        size: Bytes per rank.
        ranks: GPUs that reach each other directly.
        bandwidth: Bytes per second into one rank.
        latency: Seconds per round.
        shots: 1: everybody reads everything. 2: everybody reduces one part,
            then reads the reduced parts.
    """
    parts = ranks - 1 if shots == 1 else 2 * (ranks - 1) / ranks
    return shots * latency + parts * size / bandwidth


# --8<-- [end:all_reduce]


def two_level_all_reduce(
    size: float,
    nodes: int,
    ranks: int,
    inside: tuple[float, float],
    outside: tuple[float, float],
) -> float:
    """Seconds of: reduce-scatter in a node, exchange, all-gather.

    Args:
        size: Bytes per rank.
        nodes: Nodes.
        ranks: GPUs in each; each has its own card for its part.
        inside: (bytes per second, seconds per hop) in a node.
        outside: The same between nodes.
    """
    part = ring_all_reduce(size / ranks, nodes, *outside)
    return ring_all_reduce(size, ranks, *inside) + part


# --8<-- [start:merge]
def merged_attention(parts: list[tuple[Array, Array, Array]]) -> Array:
    """Attention over keys that are split over ranks.

    Args:
        parts: For each rank its (out, top, norm): softmax-weighted values
            (d,), largest score, and sum of exp(score - top) there;
            (zeros, -inf, 0) if it holds no key.

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


# --8<-- [end:merge]


def fetch_bandwidth(m: Model, flops: float = FLOPS) -> float:
    """Bytes per second above which fetching wins at every length."""
    return m.kv * flops / (2 * m.parameters)


def all_to_all_bytes(
    tokens: int, copies: int, width: int, size: float
) -> float:
    """Bytes of a dispatch or a combine, local ones counted too.

    Args:
        tokens: Tokens.
        copies: Experts per token; nodes per token if a node gets one copy.
        width: Hidden size.
        size: Bytes per number.
    """
    return tokens * copies * width * size


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
        rows.append((name, *cells))
    heads = ["link", "8,192 tokens", "of the prefill", "131,072 tokens"]
    return markdown_table([*heads, "of the prefill"], rows)


def table_threshold() -> str:
    """Bandwidth above which fetching wins at every length, by efficiency."""
    rows = [
        (
            name,
            f"{m.kv:,}",
            *(
                f"{fetch_bandwidth(m, PEAK * reached) / 1e9:.1f}"
                for reached in (0.2, 0.4, 1.0)
            ),
        )
        for name, m in (
            ("70B, 8 KV heads", DENSE_70B),
            ("8B, 8 KV heads", DENSE_8B),
            ("671B, 37B active, latent", MOE_671B),
        )
    ]
    heads = ["model", "KV bytes per token", "at 20 %", "at 40 %", "at 100 %"]
    return markdown_table(heads, rows)


def table_overlap() -> str:
    """What a transfer adds to the time to the first token."""
    rows = []
    for name, rate in LINKS[1:]:
        compute = prefill_seconds(DENSE_70B, 8192)
        move = transfer_seconds(DENSE_70B, 8192, rate)
        cells = [exposed_seconds(compute, move, p) for p in (1, 4, 80)]
        rows.append((name, *(f"{1000 * x:.1f} ms" for x in cells)))
    heads = ["link", "sent at the end", "in 4 chunks", "in 80 layers"]
    return markdown_table(heads, rows)


def all_reduces() -> list[tuple[str, float, float, int]]:
    """One decode step of 70B, 64 sequences: name, seconds, hops, ranks."""
    size = 64 * 8192 * 2
    hop, far = NVLINK[1], NETWORK[1]
    flat = ring_all_reduce(size, 16, *NETWORK)
    level = two_level_all_reduce(size, 2, 8, NVLINK, NETWORK)
    return [
        ("4, ring", ring_all_reduce(size, 4, *NVLINK), 6 * hop, 4),
        ("8, ring", ring_all_reduce(size, 8, *NVLINK), 14 * hop, 8),
        ("8, one-shot", direct_all_reduce(size, 8, *NVLINK, 1), hop, 8),
        ("8, two-shot", direct_all_reduce(size, 8, *NVLINK, 2), 2 * hop, 8),
        ("2 × 8, one ring", flat, 30 * far, 16),
        ("2 × 8, two levels", level, 14 * hop + 2 * far, 16),
    ]


def table_collectives() -> str:
    """All-reduces and weights of one decode step, by ranks and algorithm."""
    rows = [
        (
            name,
            f"{1e6 * each:.0f} µs",
            f"{100 * hops / each:.0f} %",
            f"{160 * each * 1000:.1f} ms",
            f"{140e9 / ranks / HBM * 1000:.1f} ms",
        )
        for name, each, hops, ranks in all_reduces()
    ]
    heads = ["GPUs", "one all-reduce", "of it hops", "160 per step"]
    return markdown_table([*heads, "weights read"], rows)


def table_volumes() -> str:
    """Bytes per token that each kind of parallelism moves."""
    h, layers = 8192, 80
    out, back = (
        all_to_all_bytes(1, 8, 7168, 1),
        all_to_all_bytes(1, 8, 7168, 2),
    )
    far = all_to_all_bytes(1, 4, 7168, 1) + all_to_all_bytes(1, 4, 7168, 2)
    rows = [
        (
            "tensor parallel, 70B",
            2 * layers * h * 2,
            "two all-reduces a layer",
        ),
        ("pipeline, 8 stages, 70B", 7 * h * 2, "one send per border"),
        ("experts, top 8", 58 * (out + back), "fp8 out, bf16 back"),
        ("experts, one copy per node", 58 * far, "at most 4 nodes"),
        ("KV hand-over, 70B, once", DENSE_70B.kv, "prefill to decode"),
        ("KV hand-over, latent, once", MOE_671B.kv, "prefill to decode"),
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
    band = [1e6 * compute * 0.4 / reached for reached in (0.5, 0.3)]
    axes.fill_between(n, *band, color="C0", alpha=0.2, linewidth=0)
    for rate, color, name in (
        (5e9, "C1", "move, 5 GB/s"),
        (25e9, "C2", "move, 25 GB/s"),
        (190e9, "C5", "move, 190 GB/s"),
    ):
        height = 1e6 * DENSE_70B.kv / rate
        axes.axhline(height, color=color, linestyle="--")
        label(axes, 520, height, name, color, xytext=(0, 4))
    label(axes, 2e4, 46, "compute, 30 to 50 %", "C0", xytext=(-8, -22))
    axes.set(xscale="log", yscale="log", ylim=(1, 300))
    axes.set_xticks([1e3, 1e4, 1e5], ["1,000", "10,000", "100,000"])
    axes.set_yticks([1, 10, 100], ["1", "10", "100"])
    axes.set(xlabel="prompt length, tokens", ylabel="µs per token")
    axes.set_title(
        "Per token, computing grows with length; moving does not", loc="left"
    )
    return figure
