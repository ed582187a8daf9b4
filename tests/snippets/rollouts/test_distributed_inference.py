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
    assert code.exposed_seconds(1.0, transfer, 1) == pytest.approx(transfer)


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


def test_merged_attention_does_not_overflow():
    part = (np.array([1.0, 3.0]), np.array(2000.0), np.array(1.0))
    other = (np.array([3.0, 5.0]), np.array(2000.0), np.array(1.0))
    assert code.merged_attention([part, other]) == pytest.approx([2.0, 4.0])


def test_merged_attention_with_a_rank_that_holds_no_key():
    part = (np.array([1.0, -2.0]), np.array(3.0), np.array(1.5))
    none = (np.zeros(2), np.array(-np.inf), np.array(0.0))
    got = code.merged_attention([none, part, none])
    assert got == pytest.approx([1.0, -2.0])


def test_claim_expert_volume():
    out = code.all_to_all_bytes(8192, 8, 7168, 1)
    assert out == pytest.approx(0.47e9, rel=1e-2)
    assert code.all_to_all_bytes(8192, 8, 7168, 2) == 2 * out


def simulated_direct(size, ranks, bandwidth, latency, shots):
    """Count the bytes that arrive at rank 0, round by round."""
    parts = {(r, c): {r} for r in range(ranks) for c in range(ranks)}
    time = 0.0
    wanted = range(ranks) if shots == 1 else [0]
    arrived = 0
    for c in wanted:
        for r in range(1, ranks):
            parts[0, c] = parts[0, c] | parts[r, c]
            arrived += 1
    time += latency + arrived * size / ranks / bandwidth
    if shots == 2:  # the others have reduced their part likewise
        time += latency + (ranks - 1) * size / ranks / bandwidth
    assert all(parts[0, c] == set(range(ranks)) for c in wanted)
    return time


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("shots", [1, 2])
def test_direct_all_reduce_against_counting(ranks, shots):
    got = code.direct_all_reduce(1e6, ranks, 50e9, 2e-6, shots)
    assert got == pytest.approx(simulated_direct(1e6, ranks, 50e9, 2e-6, shots))


def test_two_level_all_reduce_is_three_phases():
    inside, outside = (400e9, 1e-6), (50e9, 5e-6)
    got = code.two_level_all_reduce(1e6, 3, 4, inside, outside)
    scatter = 3 * (1e-6 + 1e6 / 4 / 400e9)  # 3 steps of a quarter each
    exchange = 4 * (5e-6 + 1e6 / 4 / 3 / 50e9)  # of a quarter, by thirds
    assert got == pytest.approx(2 * scatter + exchange)


def test_claim_latency_share():
    size = 64 * 8192 * 2
    assert size == 2**20
    each = code.ring_all_reduce(size, 8, 450e9, 1e-6)
    assert 14e-6 / each == pytest.approx(0.77, abs=5e-3)
    two = code.ring_all_reduce(size, 16, 50e9, 5e-6)
    assert two / each > 10
    level = code.two_level_all_reduce(size, 2, 8, code.NVLINK, code.NETWORK)
    assert level / each == pytest.approx(1.7, abs=0.05)


def test_claim_hops_and_bytes_weigh_alike():
    """Ring on 8: at 220 sequences, or at 0.3 µs per hop with 64."""
    moved = code.ring_all_reduce(2**20, 8, 450e9, 0.0)
    assert 64 * 14e-6 / moved == pytest.approx(220, abs=1)
    assert moved / 14 == pytest.approx(0.29e-6, abs=0.005e-6)


def test_claim_one_shot_pays_below_86_kilobytes():
    for size, first in ((80e3, 1), (90e3, 2)):
        times = [code.direct_all_reduce(size, 8, *code.NVLINK, k) for k in (1, 2)]
        assert 1 + int(np.argmin(times)) == first


def test_claim_sensitivity_to_the_reached_flops():
    tokens = {0.3: 11_868, 0.5: 90_988}
    for reached, want in tokens.items():
        got = code.break_even(code.DENSE_70B, 5e9, code.PEAK * reached)
        assert got == pytest.approx(want, abs=1)
    assert code.break_even(code.DENSE_70B, 5e9, code.PEAK * 0.25) == 0
    assert code.break_even(code.DENSE_70B, 19e9, code.PEAK) == 0
    assert code.break_even(code.DENSE_70B, 18e9, code.PEAK) > 0
    assert code.break_even(code.MOE_671B, 5e9) == 0


def test_fetch_bandwidth_is_where_one_token_costs_the_same():
    for m in (code.DENSE_70B, code.DENSE_8B, code.MOE_671B):
        rate = code.fetch_bandwidth(m, 1e15)
        assert m.kv / rate == pytest.approx(2 * m.parameters / 1e15)


def test_claim_models():
    assert code.MOE_671B.kv == 61 * (512 + 64) * 2 == 70_272
    assert code.MOE_671B.kv / code.DENSE_70B.kv == pytest.approx(0.21, abs=0.005)
    assert code.DENSE_8B.kv == 2 * 36 * 8 * 128 * 2 == 147_456
    assert code.FLOPS == 0.4 * code.PEAK == pytest.approx(3.165e15, rel=1e-3)
    assert (code.DENSE_8B.width, code.DENSE_8B.layers) == (32 * 128, 36)
    # latent attention: 128 heads, keys of 192, values of 128, half of n^2
    flop = code.prefill_seconds(code.MOE_671B, 7, 1.0) - 2 * 37e9 * 7
    assert flop == pytest.approx(61 * 128 * (192 + 128) * 49)


def test_claim_share_of_the_prefill_and_exposed():
    for n, share in ((8192, 0.14), (131072, 0.07)):
        move = code.transfer_seconds(code.DENSE_70B, n, 50e9)
        part = move / code.prefill_seconds(code.DENSE_70B, n)
        assert part == pytest.approx(share, abs=5e-3)
    compute = code.prefill_seconds(code.DENSE_70B, 8192)
    assert compute == pytest.approx(0.390, abs=1e-3)
    move = code.transfer_seconds(code.DENSE_70B, 8192, 50e9)
    assert move == pytest.approx(0.0537, abs=1e-4)
    assert code.exposed_seconds(compute, move, 80) == pytest.approx(0.67e-3, abs=1e-5)


def test_claim_rl_prefill_is_two_percent():
    prefill = code.prefill_seconds(code.DENSE_70B, 500)
    assert prefill == pytest.approx(0.022, abs=5e-4)
    step = 140e9 / 8 / code.HBM + 160 * code.all_reduces()[1][1]
    assert step == pytest.approx(8.1e-3, abs=5e-5)
    decode = 8000 * step / 64
    assert decode == pytest.approx(1.0, abs=0.02)
    assert prefill / (prefill + decode) == pytest.approx(0.02, abs=2e-3)


def test_claim_steps_by_parallelism():
    """Weights and all-reduces, ms, and what a second node changes."""
    steps = {}
    for name, each, _, ranks in code.all_reduces():
        steps[name] = 1000 * (140e9 / ranks / code.HBM + 160 * each)
    assert steps["4, ring"] == pytest.approx(12.0, abs=0.05)
    assert steps["8, ring"] == pytest.approx(8.1, abs=0.05)
    assert steps["2 × 8, two levels"] == pytest.approx(7.5, abs=0.05)
    assert steps["2 × 8, one ring"] == pytest.approx(33, abs=0.5)
    saved = 1000 * 140e9 / 16 / code.HBM
    assert saved == pytest.approx(2.6, abs=0.05)
    more = steps["2 × 8, two levels"] - steps["8, ring"] + saved
    assert more == pytest.approx(2.0, abs=0.05)
    more = steps["2 × 8, one ring"] - steps["8, ring"] + saved
    assert more == pytest.approx(27, abs=0.5)


def test_claim_pipeline_moves_less_than_tensor_parallelism():
    rows = [int(r[1].replace(",", "")) for r in cells(code.table_volumes())]
    assert rows[0] / rows[1] == pytest.approx(23, abs=0.2)
    assert rows[3] / rows[2] == 0.5


def cells(table):
    return [[c.strip() for c in r.split("|")[1:-1]] for r in table.splitlines()[2:]]


def test_tables_hold_the_models_numbers():
    rows = cells(code.table_volumes())
    assert [int(r[1].replace(",", "")) for r in rows] == [
        2 * 80 * 8192 * 2,
        7 * 8192 * 2,
        58 * 8 * 7168 * 3,
        58 * 4 * 7168 * 3,
        327680,
        70272,
    ]
    # 2.684 GB at each rate: at the end, a quarter, an eightieth of it
    assert [r[1:] for r in cells(code.table_overlap())][:3] == [
        ["30.9 ms", "7.7 ms", "0.4 ms"],
        ["53.7 ms", "13.4 ms", "0.7 ms"],
        ["107.4 ms", "26.8 ms", "1.3 ms"],
    ]
    heads = code.table_overlap().splitlines()[0]
    assert "| sent at the end | in 4 chunks | in 80 layers |" in heads
    assert [r[2:] for r in cells(code.table_threshold())] == [
        ["3.7", "7.4", "18.5"],
        ["14.6", "29.2", "72.9"],
        ["1.5", "3.0", "7.5"],
    ]
    fetch = cells(code.table_fetch())
    for row, rate in zip(fetch, (190, 87, 50, 25, 5), strict=True):
        short, long = (n * 327_680 / rate / 1e9 for n in (8192, 131_072))
        assert [row[1], row[3]] == [f"{short:.2f} s", f"{long:.2f} s"]
        assert f"{rate} GB/s" in row[0]
    assert fetch[0][1:] == ["0.01 s", "4 %", "0.23 s", "2 %"]
    assert fetch[-1][1:] == ["0.54 s", "138 %", "8.59 s", "67 %"]


def test_table_of_collectives():
    rows = cells(code.table_collectives())
    # by hand: 2^20 bytes at 450e9 take 2.33 µs
    assert [r[1] for r in rows] == [
        f"{x:.0f} µs"
        for x in (
            6 + 1.5 * 2.33,
            14 + 1.75 * 2.33,
            1 + 7 * 2.33,
            2 + 1.75 * 2.33,
            150 + 1.875 * 20.97,
            14 + 1.75 * 2.33 + 10 + 20.97 / 8,
        )
    ]
    assert [r[2] for r in rows] == ["63 %", "77 %", "6 %", "33 %", "79 %", "78 %"]
    assert rows[1][3:] == ["2.9 ms", "5.2 ms"]
    assert [r[4] for r in rows[::2]] == ["10.4 ms", "5.2 ms", "2.6 ms"]


def test_figure_shows_compute_and_links():
    (axes,) = code.figure_fetch().axes
    n, y = axes.lines[0].get_data()
    want = [1e6 * code.prefill_seconds(code.DENSE_70B, x) / x for x in n]
    assert y == pytest.approx(want)
    (band,) = axes.collections
    edge = band.get_paths()[0].vertices[:, 1]
    first, last = want[0], want[-1]
    assert edge.min() == pytest.approx(first * 0.4 / 0.5)
    assert edge.max() == pytest.approx(last * 0.4 / 0.3)
    heights = [line.get_ydata()[0] for line in axes.lines[1:]]
    assert heights == pytest.approx([65.5, 13.1, 1.72], abs=0.05)
    assert axes.get_xlabel() == "prompt length, tokens"
    assert axes.get_ylabel() == "µs per token"
    assert axes.get_xscale() == axes.get_yscale() == "log"


def test_claim_prefill_message_and_stored_size():
    assert 8192 * 8192 * 2 == 128 * 2**20 == 128 * (64 * 8192 * 2)
    stored = 131072 * code.DENSE_70B.kv
    assert stored == 40 * 2**30 == pytest.approx(42.9e9, abs=0.05e9)
