"""Cost models of transfer and collectives, against plain counting."""

import numpy as np
import pytest

from snippets.rollouts import distributed_inference as code


def test_prefill_counts_products():
    m = code.Model(parameters=1000, layers=3, width=8, kv=1)
    n, flop = 5, 2 * 1000 * 5
    for query in range(n):  # causal: each token looks at what is before it
        for _ in range(query):
            flop += 3 * (2 * 8 + 2 * 8)
    # the model counts n^2 / 2 pairs, the loop n (n - 1) / 2
    assert code.prefill_seconds(m, n, 1.0) == pytest.approx(flop + 3 * 32 * n / 2)


def test_claim_transfer_of_131072_tokens():
    n = 131072
    assert n * code.DENSE_70B.kv == pytest.approx(42.95e9, rel=1e-3)
    assert code.transfer_seconds(code.DENSE_70B, n, 190e9) == pytest.approx(
        0.226, abs=1e-3
    )
    assert code.prefill_seconds(code.DENSE_70B, n) == pytest.approx(12.9, abs=0.05)
    linear = 2 * 70e9 * n / code.FLOPS
    assert linear == pytest.approx(5.8, abs=0.01)


@pytest.mark.parametrize("rate", [3e9, 5e9, 7e9])
def test_break_even_is_where_both_take_as_long(rate):
    n = code.break_even(code.DENSE_70B, rate)
    assert n > 0
    move = code.transfer_seconds(code.DENSE_70B, n, rate)
    assert move == pytest.approx(code.prefill_seconds(code.DENSE_70B, n))


def test_claim_break_even():
    assert code.break_even(code.DENSE_70B, 5e9) == pytest.approx(51_428, abs=1)
    assert code.break_even(code.DENSE_70B, 25e9) == 0


def plain_exposed(compute, transfer, layers):
    """Two machines: a layer is sent when computed and the link is free."""
    ready = [compute * (k + 1) / layers for k in range(layers)]
    free = 0.0
    for t in ready:
        free = max(free, t) + transfer / layers
    return free - ready[-1]


@pytest.mark.parametrize("transfer", [0.1, 1.0, 3.0])
def test_exposed_against_a_plain_pipeline(transfer):
    got = code.exposed_seconds(1.0, transfer, 10)
    assert got == pytest.approx(plain_exposed(1.0, transfer, 10))
    assert code.exposed_seconds(1.0, transfer, 10, overlap=False) == transfer


def test_claim_a_fast_link_exposes_one_layer_a_slow_one_the_difference():
    assert code.exposed_seconds(1.0, 0.5, 80) == pytest.approx(0.5 / 80)
    slow = code.exposed_seconds(1.0, 2.0, 80)
    assert slow == pytest.approx(2.0 - 1.0 * 79 / 80)


def simulated_ring(size, ranks, bandwidth, latency):
    """Reduce-scatter and all-gather on a ring, really adding numbers."""
    rng = np.random.default_rng(0)
    data = rng.integers(0, 9, (ranks, ranks)).astype(float)
    want, time = data.sum(0), 0.0
    for phase in range(2):
        for step in range(ranks - 1):
            sent = {}
            for r in range(ranks):
                chunk = (r - step + phase) % ranks
                sent[(r + 1) % ranks] = chunk, data[r, chunk]
            for r, (chunk, value) in sent.items():
                data[r, chunk] = data[r, chunk] + value if phase == 0 else value
            time += latency + size / ranks / bandwidth
    assert (data == want).all()
    return time


@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_ring_all_reduce_against_a_simulation(ranks):
    got = code.ring_all_reduce(1e6, ranks, 50e9, 2e-6)
    assert got == pytest.approx(simulated_ring(1e6, ranks, 50e9, 2e-6))


def test_merged_attention_is_attention_over_all_keys():
    rng = np.random.default_rng(1)
    q, keys, values = rng.normal(size=4), *rng.normal(size=(2, 30, 4))
    parts = []
    for part in (slice(0, 7), slice(7, 22), slice(22, 30)):
        z = keys[part] @ q
        e = np.exp(z - z.max())
        parts.append((e @ values[part] / e.sum(), z.max(), e.sum()))
    e = np.exp(keys @ q)
    want = e @ values / e.sum()
    assert code.merged_attention(parts) == pytest.approx(want)


def test_claim_expert_volume():
    out = code.all_to_all_bytes(8192, 8, 7168, 1)
    assert out == pytest.approx(0.47e9, rel=1e-2)
    assert code.all_to_all_bytes(8192, 8, 7168, 2) == 2 * out


def test_claim_latency_share():
    size = 64 * 8192 * 2
    assert size == 2**20
    each = code.ring_all_reduce(size, 8, 450e9, 1e-6)
    assert 14e-6 / each == pytest.approx(0.77, abs=5e-3)
    two = code.ring_all_reduce(size, 16, 50e9, 5e-6)
    assert two / each > 10


def test_tables_hold_the_models_numbers():
    rows = [r.split("|")[1:-1] for r in code.table_volumes().splitlines()[2:]]
    assert [int(r[1].replace(",", "")) for r in rows] == [
        2 * 80 * 8192 * 2,
        7 * 8192 * 2,
        58 * 8 * 7168 * 3,
        327680,
    ]
    rows = [r.split("|")[1:-1] for r in code.table_overlap().splitlines()[2:]]
    assert float(rows[0][3].split()[0]) == pytest.approx(31 / 80, abs=0.05)


def test_figure_shows_compute_and_links():
    (axes,) = code.figure_fetch().axes
    n, y = axes.lines[0].get_data()
    want = [1e6 * code.prefill_seconds(code.DENSE_70B, x) / x for x in n]
    assert y == pytest.approx(want)
    heights = [line.get_ydata()[0] for line in axes.lines[1:]]
    assert heights == pytest.approx([65.5, 13.1, 1.72], abs=0.05)
