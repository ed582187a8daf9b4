"""Utilisation: against loops over matrices, a renewal walk, the paged run."""

import math
from itertools import combinations, product

import numpy as np
import pytest

from snippets.rollouts import inference_utilization as page
from snippets.rollouts.inference_utilization import (
    GIB,
    H100,
    QWEN,
    Gpu,
    Model,
    Reading,
    Trace,
    concurrency,
    decode_cost,
    diagnose,
    expected_experts,
    fastest,
    longest_reaching_ridge,
    pool_sglang,
    pool_vllm,
    prefill_cost,
    read,
    rollout,
    utilisation,
)
from snippets.rollouts.paged_attention import pool, serve

TINY = Model(2, 8, 4, 2, 2, 12, 10)
OTHERS = range(100, 110)  # draws that the page does not use


def shapes(m):
    """(in, out) of every matrix of a block, and of the head."""
    q, kv = m.heads * m.head, m.kv_heads * m.head
    block = [(m.hidden, q), (m.hidden, kv), (m.hidden, kv), (q, m.hidden)]
    block += [(m.hidden, m.ffn), (m.hidden, m.ffn), (m.ffn, m.hidden)]
    return block, (m.hidden, m.vocab)


# --- Roofline --------------------------------------------------------------


@pytest.mark.parametrize("m", [TINY, QWEN])
def test_weights_are_the_sum_over_matrices(m):
    block, head = shapes(m)
    blocks = m.layers * sum(a * b for a, b in block)
    assert m.matrices == blocks + head[0] * head[1]
    assert m.weight_bytes == 2 * (blocks + 2 * head[0] * head[1])


def test_claim_qwen3_8b():
    assert QWEN.matrices == pytest.approx(7.57e9, rel=1e-3)
    assert QWEN.weight_bytes == pytest.approx(16.4e9, rel=2e-3)
    assert QWEN.kv == 147_456
    assert H100.ridge == pytest.approx(295.2, abs=0.05)


@pytest.mark.parametrize(("batch", "context"), [(1, 1), (3, 5), (7, 2)])
def test_decode_counts_every_product(batch, context):
    block, head = shapes(TINY)
    flop = read_bytes = 0
    for _ in range(TINY.layers):
        for a, b in block:
            read_bytes += 2 * a * b
            flop += batch * 2 * a * b
        for _ in range(batch):
            for _ in range(TINY.heads):
                flop += 2 * TINY.head * context  # scores
                flop += 2 * TINY.head * context  # weighted values
            read_bytes += 2 * 2 * context * TINY.kv_heads * TINY.head
    flop += batch * 2 * head[0] * head[1]
    read_bytes += 2 * head[0] * head[1]
    assert decode_cost(TINY, batch, context) == (flop, read_bytes)


@pytest.mark.parametrize("tokens", [1, 4, 9])
def test_prefill_is_causal_and_asks_for_one_row_of_logits(tokens):
    block, head = shapes(TINY)
    flop = 2 * head[0] * head[1]
    for t in range(1, tokens + 1):
        for _ in range(TINY.layers):
            flop += sum(2 * a * b for a, b in block)
            flop += TINY.heads * 4 * TINY.head * t
    weights = 2 * TINY.matrices
    assert prefill_cost(TINY, tokens) == (flop, weights + tokens * TINY.kv)


def test_one_token_prefill_is_a_decode_step():
    assert prefill_cost(QWEN, 1) == decode_cost(QWEN, 1, 1)


def test_at_the_roof_the_larger_utilisation_is_one():
    gpu = Gpu(100.0, 10.0, 1.0)
    for cost in ((50.0, 2.0), (7.0, 30.0)):
        seconds = fastest(cost, gpu)
        mfu, mbu = utilisation(cost, gpu, seconds)
        assert max(mfu, mbu) == pytest.approx(1)
        assert mfu / mbu == pytest.approx(cost[0] / cost[1] / gpu.ridge)
    assert utilisation((50.0, 2.0), gpu, 2.0) == (0.25, 0.1)
    assert fastest((50.0, 20.0), gpu) == 2.0  # memory
    assert fastest((500.0, 20.0), gpu) == 5.0  # compute


def test_claim_no_batch_reaches_the_ridge_beyond_352_tokens():
    def intensity(batch, context):
        flop, bytes_ = decode_cost(QWEN, batch, context)
        return flop / bytes_

    assert longest_reaching_ridge(QWEN, H100) == pytest.approx(352.5, abs=0.1)
    assert intensity(10**9, 352) > H100.ridge > intensity(10**9, 353)
    # The limit at 4,096 and 16,384 tokens, as MFU
    assert intensity(10**9, 4096) / H100.ridge == pytest.approx(0.098, abs=5e-4)
    assert intensity(10**9, 16384) / H100.ridge == pytest.approx(0.0348, abs=5e-4)
    # The attention alone does heads / KV heads = 4 FLOP per byte.
    assert intensity(10**9, 10**9) == pytest.approx(4, rel=1e-3)
    # Batch where cache and weights weigh the same, at 4,096 tokens
    assert 2 * QWEN.matrices / (4096 * QWEN.kv) == pytest.approx(25, abs=0.1)


def test_claim_fp8_cache_and_tensor_parallel():
    """Half the cache bytes: 715 tokens. Twice both peaks: still 352."""
    flop = 4 * QWEN.layers * QWEN.heads * QWEN.head

    def limit(context, kv):
        return (2 * QWEN.matrices + flop * context) / (context * kv)

    assert limit(714, QWEN.kv / 2) > H100.ridge > limit(715, QWEN.kv / 2)
    two = Gpu(2 * H100.flops, 2 * H100.bandwidth, 2 * H100.memory)
    assert longest_reaching_ridge(QWEN, two) == pytest.approx(352.5, abs=0.1)


def test_claim_tokens_per_second_flatten():
    def rate(batch):
        return batch / fastest(decode_cost(QWEN, batch, 4096), H100)

    limit = rate(10**9)
    assert limit == pytest.approx(5546, abs=1)
    assert rate(25) / limit == pytest.approx(0.5, abs=0.002)
    assert rate(100) / limit == pytest.approx(0.8, abs=0.002)


def test_claim_prefill_crosses_the_ridge_near_320_tokens():
    def intensity(tokens):
        flop, bytes_ = prefill_cost(QWEN, tokens)
        return flop / bytes_

    cross = next(n for n in range(1, 1000) if intensity(n) > H100.ridge)
    assert cross == 321


def test_claim_mbu_from_a_measured_latency():
    mfu, mbu = utilisation(decode_cost(QWEN, 64, 4096), H100, 0.025)
    assert mbu == pytest.approx(0.64, abs=0.005)
    assert mfu == pytest.approx(0.045, abs=0.0005)


def test_claim_sglang_counts_the_weights_for_each_token():
    batch, cached = 64, 64 * 4096 * QWEN.kv
    blocks = 2 * (QWEN.matrices - QWEN.vocab * QWEN.hidden)
    ratio = (batch * blocks + cached) / (blocks + cached)
    assert ratio == pytest.approx(17.7, abs=0.1)


def test_experts_touched_against_all_routings():
    sets = list(combinations(range(4), 2))
    counts = [len(set(a) | set(b)) for a, b in product(sets, sets)]
    assert expected_experts(4, 2, 2) == pytest.approx(np.mean(counts))
    assert expected_experts(128, 8, 1) == 8
    assert expected_experts(128, 8, 64) / 128 == pytest.approx(0.984, abs=1e-3)


# --- Memory ----------------------------------------------------------------


def test_pools_on_asymmetric_numbers():
    assert pool_vllm(100, 90, 0.5, 20, 7) == 23
    assert pool_sglang(90, 0.5, 20) == 25
    # What others hold lowers SGLang's pool and not vLLM's, until it raises.
    assert pool_vllm(100, 60, 0.5, 20, 7) == 23
    assert pool_sglang(60, 0.5, 20) == 10
    assert pool_vllm(100, 50, 0.5, 20, 7) == 23  # just enough
    with pytest.raises(ValueError, match="less than"):
        pool_vllm(100, 49, 0.5, 20, 7)


def test_sglang_pool_as_its_code_says_it():
    """rest = free after loading - free before * (1 - fraction)."""
    before, weights, fraction = 70.0, 16.0, 0.7
    rest = (before - weights) - before * (1 - fraction)
    assert pool_sglang(before, fraction, weights) == pytest.approx(rest)


def test_claim_worked_case():
    total, weights = 80 * GIB, QWEN.weight_bytes
    tokens = pool_vllm(total, total, 0.5, weights, 4 * GIB) / 147_456
    assert tokens == pytest.approx(151_054, abs=1)
    assert pool_sglang(total, 0.5, weights) / 147_456 - tokens == pytest.approx(
        4 * GIB / 147_456
    )
    fixed = weights + 4 * GIB
    assert fixed / GIB == pytest.approx(19.3, abs=0.05)
    # 0.3 to 0.6: twice the share, six times the pool
    small = pool_vllm(total, total, 0.3, weights, 4 * GIB)
    large = pool_vllm(total, total, 0.6, weights, 4 * GIB)
    assert large / small == pytest.approx(6.06, abs=0.01)


def test_table_of_memory():
    lines = page.table_memory().splitlines()
    cells = [[c.strip() for c in x.split("|")[1:-1]] for x in lines]
    assert cells[0][1:3] == ["vLLM", "SGLang"]
    assert cells[-1][0] == "0.9" and cells[-1][3] == "error"
    assert cells[3] == ["0.5", "151,054", "180,181", "151,054", "143,772"]


def test_table_of_concurrency():
    """By integrals over the law: P(R >= t), E[R], E[R^2], t in tokens."""
    t = np.arange(1, 32769)
    z = np.log((t - 0.5) / 3000) / 0.9  # a length rounds to t or more
    alive = np.array([0.5 * math.erfc(x / math.sqrt(2)) for x in z])
    mean, square = alive.sum(), ((2 * t - 1) * alive).sum()
    worst = (alive * (1024 + t)).max()
    for line in page.table_concurrency().splitlines()[2:]:
        cells = [c.strip().replace(",", "") for c in line.split("|")[1:-1]]
        tokens, *fits = map(float, cells[1:])
        by = (tokens / (1024 + 32768), tokens / worst)
        by += (tokens / (1024 + square / (2 * mean)),)
        assert fits == pytest.approx(by, rel=2e-3, abs=0.051)
    assert "| 0.5 | 151,040 | 4.5 | 73.7 | 26.9 |" in page.table_concurrency()


def test_cohort_is_the_worst_moment():
    r = np.array([3, 9, 1, 4, 4])
    guaranteed, cohort, _ = concurrency(100, 2, r)
    assert guaranteed == pytest.approx(100 / 11)
    worst = max(sum(2 + t for x in r if x >= t) / len(r) for t in range(1, 10))
    assert cohort == pytest.approx(100 / worst)


def test_refilled_against_a_renewal_walk():
    """Follow one place for a long time; tokens held at a random moment."""
    rng = np.random.default_rng(1)
    sample = np.array([10, 200, 1000])
    held = []
    for length in rng.choice(sample, 3000):
        held.extend(50 + np.arange(length) + 0.5)
    _, _, refilled = concurrency(1e6, 50, sample)
    assert refilled == pytest.approx(1e6 / np.mean(held), rel=0.03)
    # Half of the mean final length would be wrong:
    assert np.mean(held) > 2 * (50 + sample.mean() / 2) * 0.9


def test_claim_half_grown_overestimates():
    r = page.quantiles()
    tokens = 16 * page.blocks(0.5)
    _, _, refilled = concurrency(tokens, 1024, r)
    half = tokens / (1024 + r.mean() / 2)
    assert half / refilled == pytest.approx(1.73, abs=0.03)


def test_lengths_follow_the_law_of_the_quantiles():
    drawn = np.concatenate([page.lengths(seed, 4000) for seed in OTHERS])
    law = page.quantiles()
    for q in (0.1, 0.5, 0.9):
        assert np.quantile(drawn, q) == pytest.approx(np.quantile(law, q), rel=0.03)
    assert drawn.mean() == pytest.approx(law.mean(), rel=0.02)
    assert law.max() == drawn.max() == 32768


def test_claim_cohort_rule_predicts_the_run():
    """Of 48 none is preempted, of 64 few, of 85 always some; 73.7 by the rule."""
    blocks, counts = page.blocks(0.5), {48: [], 64: [], 85: []}
    for seed in OTHERS:
        for n, found in counts.items():
            run = rollout(page.lengths(seed)[:n], blocks, prompt=1024)
            found.append(read(run).preemptions)
    assert max(counts[48]) == 0 and min(counts[85]) > 10
    assert counts[64].count(0) > 5 and max(counts[64]) < 10


# --- The run ---------------------------------------------------------------


@pytest.mark.parametrize("blocks", [40, 60, 200])
def test_same_schedule_as_the_paged_run(blocks):
    wanted = np.random.default_rng(blocks).integers(1, 500, 30)
    ours, theirs = rollout(wanted, blocks), serve(wanted, blocks)
    assert len(ours.seconds) * 16 == theirs.time
    assert ours.preempted.sum() == theirs.preemptions
    assert ours.recomputed == theirs.recomputed
    steps = dict(theirs.trace)
    assert [steps[16 * k] for k in range(len(ours.running))] == (ours.running.tolist())


def test_one_request_by_hand():
    """40 tokens, prompt of 20: 2 + 1, 2 + 2, 2 + 3 blocks are held."""
    gpu = Gpu(1e9, 1e6, 1.0)
    t = rollout(np.array([40]), 10, prompt=20, model=TINY, gpu=gpu)
    assert t.usage.tolist() == [0.3, 0.4, 0.5]
    assert t.running.tolist() == [1, 1, 1] and not t.waiting.any()
    weights = 2 * TINY.matrices
    decode = [16 * (weights + k * 16 * TINY.kv) / 1e6 for k in (3, 4, 5)]
    prefill = 2 * TINY.matrices * 32 / (0.4 * 1e9)
    assert t.seconds.tolist() == pytest.approx([decode[0] + prefill, *decode[1:]])
    assert t.tokens == 40 and t.recomputed == 0


def test_limits_hold():
    wanted = np.random.default_rng(0).integers(1, 800, 60)
    t = rollout(wanted, 300, slots=9, prompt=100)
    assert t.running.max() == 9 and t.usage.max() <= 1
    assert t.waiting[0] == 51
    few = rollout(wanted, 300, prompt=100, supply=5)
    assert (few.running + few.waiting).max() == 5
    assert not few.waiting.any()


def test_preemption_frees_the_youngest_and_recomputes():
    # Two of 64 tokens in 6 blocks: 3 + 3 fit, then one must go.
    t = rollout(np.array([64, 64]), 6)
    assert t.preempted.sum() == 1 and t.recomputed == 48
    assert t.running.tolist() == [2, 2, 2, 1, 1]
    assert t.waiting.tolist() == [0, 0, 0, 1, 0]


# --- Reading ---------------------------------------------------------------


def test_means_are_over_time():
    t = Trace(
        np.array([1.0, 3.0]),
        np.array([1.0, 0.2]),
        np.array([8, 2]),
        np.array([4, 0]),
        np.array([0, 1]),
        10,
        0,
    )
    r = read(t)
    assert r.mean == pytest.approx(0.4) and r.peak == 1
    assert r.queued == 1 and r.waiting == 0.25
    assert r.running == pytest.approx(3.5) and r.widest == 8
    assert r.preemptions == 1
    t.waiting[:] = 0
    assert math.isnan(read(t).queued)


@pytest.mark.parametrize(
    ("reading", "name"),
    [
        (Reading(1, 0.6, 0.99, 0.4, 50, 256, 200), "over-admitted"),
        (Reading(1, 0.6, 0.90, 0.4, 50, 64, 3), "cache binds"),
        (Reading(1, 0.6, 0.90, 0.4, 50, 64, 27), "over-admitted"),
        (Reading(1, 0.6, 0.90, 0.4, 50, 64, 24), "cache binds"),
        (Reading(1, 0.6, 0.77, 0.4, 50, 64, 3), "cache binds"),
        (Reading(1, 0.6, 0.73, 0.4, 50, 64, 3), "admission cap binds"),
        (Reading(1, 0.6, 0.90, 0.04, 40, 50, 3), "starved"),
        (Reading(1, 0.6, 0.90, 0.04, 34, 50, 3), "tail"),
        (Reading(0.5, 0.3, 0.40, 0.6, 15, 16, 0), "admission cap binds"),
        (Reading(0.5, 0.3, math.nan, 0.0, 7.6, 8, 0), "starved"),
        (Reading(0.9, 0.5, math.nan, 0.0, 20, 64, 0), "tail"),
    ],
)
def test_diagnosis(reading, name):
    assert diagnose(reading, 256) == name


def over(case, key):
    """A metric of a case in each of the other draws."""
    names = {name[0]: name for name in page.cases(0)}
    return np.array(page.readings(OTHERS)[names[case]][0][key].values)


def test_readings_are_those_of_the_draws():
    found, said = page.readings(OTHERS)["C. 0.5, at most 27"]
    for i, seed in enumerate(OTHERS):
        n, t = page.cases(seed)["C. 0.5, at most 27"]
        r = read(t)
        assert n == 256 and found["mean"].values[i] == r.mean
        assert found["preemptions"].values[i] == t.preempted.sum()
        assert found["again"].values[i] == t.recomputed / page.lengths(seed).sum()
        assert found["seconds"].values[i] == pytest.approx(t.seconds.sum())
    assert said.total() == 10
    assert "queued" not in page.readings(OTHERS)["E. 0.5, client sends 8"][0]
    sizes = [n for n, _ in page.cases(100).values()]
    assert sizes == [256] * 5 + [64] * 2
    widest = [int(t.running.max()) for _, t in page.cases(100).values()]
    assert widest[2:5] == [27, 16, 8] and widest[5:] == [64, 64]


def test_claim_diagnoses_of_the_cases():
    wanted = {
        "A": "over-admitted",
        "B": "over-admitted",
        "D": "admission cap binds",
        "E": "starved",
        "G": "tail",
    }
    for name, (_, said) in page.readings(OTHERS).items():
        if name[0] in wanted:
            assert set(said) == {wanted[name[0]]}, name
        if name[0] == "F":
            assert said["tail"] >= 9


def test_claim_mean_hides_that_the_cache_was_the_limit():
    assert over("B", "queued").min() > 0.995
    assert 0.55 < over("B", "mean").min() and over("B", "mean").max() < 0.76
    assert over("B", "mean").mean() == pytest.approx(2 / 3, abs=0.03)
    assert over("B", "preemptions").min() > 130
    # D has nearly the mean of F, and the opposite cure.
    assert abs(over("D", "mean").mean() - over("F", "mean").mean()) < 0.1


def test_claim_cures():
    def less(a, b):
        return 1 - over(b, "seconds") / over(a, "seconds")

    assert 0.12 < less("A", "B").min() and less("A", "B").max() < 0.25
    assert 0.08 < less("D", "C").min() and less("D", "C").max() < 0.21
    assert less("E", "C").mean() == pytest.approx(0.4, abs=0.02)
    assert np.abs(less("F", "G")).max() < 0.015  # memory: nothing in the tail
    cap = over("C", "seconds") / over("A", "seconds") - 1
    assert -0.025 < cap.min() and cap.max() < 0.05
    assert (over("C", "preemptions") < 0.5 * over("A", "preemptions")).all()
    assert over("A", "again").mean() == pytest.approx(0.8, abs=0.04)
    tokens = np.array([page.lengths(seed).sum() for seed in OTHERS])
    again = 2 * QWEN.matrices * over("A", "again") * tokens / (0.4 * H100.flops)
    assert (again / over("A", "seconds")).mean() == pytest.approx(0.06, abs=0.005)


def test_claim_four_replicas_wait_for_the_slowest():
    """64 requests on each of four GPUs, against all 256 on one."""
    most, gains = page.blocks(0.9), []
    for seed in range(500, 510):
        whole = page.lengths(seed)
        alone = rollout(whole, most, 256, page.PROMPT).seconds.sum()
        few = [rollout(w, most, 256, page.PROMPT) for w in np.split(whole, 4)]
        gains.append(alone / max(t.seconds.sum() for t in few))
    assert 1.7 < min(gains) and max(gains) < 2.3
    assert np.mean(gains) == pytest.approx(2, abs=0.12)


def test_claim_hit_rate_of_a_group():
    p = pool(4000)
    hits = 0
    prompt = list(range(1024))
    for _ in range(16):
        known = p.hashes(prompt)[: 1023 // 16]
        hits += 16 * sum(name in p.cached for name in known)
        p.allocate(prompt)
    assert hits / (16 * 1024) == pytest.approx(0.923, abs=5e-4)


def test_table_of_rollouts_shows_the_draws():
    lines = page.table_rollouts().splitlines()[2:]
    table = [[c.strip() for c in line.split("|")[1:-1]] for line in lines]
    assert [row[0] for row in table] == list(page.cases(0))

    def cell(values, spec):
        mean, spread = np.mean(values), np.std(values, ddof=1)
        return f"{mean:{spec}}" + (f" ± {spread:{spec}}" if spread else "")

    for row in table:
        traces = [page.cases(seed)[row[0]][1] for seed in range(10)]
        usage, waits, shares, running = [], [], [], []
        for t in traces:
            wait = t.waiting > 0
            usage.append(t.usage @ t.seconds / t.seconds.sum())
            running.append(t.running @ t.seconds / t.seconds.sum())
            shares.append(t.seconds[wait].sum() / t.seconds.sum())
            if wait.any():
                waits.append(np.average(t.usage[wait], weights=t.seconds[wait]))
        assert row[1] == cell(usage, ".2f")
        assert row[2] == (cell(waits, ".2f") if len(waits) == 10 else "–")
        assert row[3] == cell(shares, ".0%")
        assert row[4] == cell(running, ".0f")
        assert row[5] == cell([t.preempted.sum() for t in traces], ".0f")
        assert row[6] == cell([t.recomputed / t.tokens for t in traces], ".0%")
        assert row[7] == cell([t.seconds.sum() for t in traces], ".0f")
    assert table[0][8] == "over-admitted"
    assert table[2][8].startswith("over-admitted 7, ")


def test_table_of_the_roofline():
    lines = page.table_roofline().splitlines()
    heads = [c.strip() for c in lines[0].split("|")[1:-1]]
    assert heads[-2:] == ["MFU", "MBU"]
    rows = [[c.strip() for c in x.split("|")[1:-1]] for x in lines[2:]]
    by = {row[0]: row for row in rows}
    assert by["decode, 16 × 16,384"][-2:] == ["2.5 %", "100 %"]
    assert by["prefill, 4,096"][-2:] == ["100.0 %", "8 %"]
    assert by["decode, 256 × 512"][4] == "24,884"
    gb = 64 * 4096 * 147_456 / 1e9
    flop = 64 * (2 * QWEN.matrices + 4 * 36 * 32 * 128 * 4096)
    read_gb = 2 * QWEN.matrices / 1e9 + gb
    ms = 1000 * read_gb / 3350
    cells = ["decode, 64 × 4,096", f"{gb:.1f}", f"{flop / read_gb / 1e9:.1f}"]
    cells += [f"{ms:.1f}", f"{64000 / ms:,.0f}", "7.1 %", "100 %"]
    assert by["decode, 64 × 4,096"] == cells


# --- Figures ---------------------------------------------------------------


def test_figure_of_the_roofline():
    (axes,) = page.figure_roofline().axes
    assert "byte" in axes.get_xlabel() and "TFLOP/s" in axes.get_ylabel()
    _, *decodes, prefill, ridge = axes.lines
    assert ridge.get_xdata()[0] == pytest.approx(295.2, abs=0.1)
    for line in decodes:
        x, y = np.array(line.get_xdata()), np.array(line.get_ydata())
        assert (x < H100.ridge).all()
        np.testing.assert_allclose(y, 3.35 * x)
    assert len(decodes) == 3
    assert max(prefill.get_ydata()) == pytest.approx(989)
    fits = [16 * page.blocks(0.9) // c for c in (512, 4096, 32768)]
    assert fits == [750, 93, 11]
    texts = " ".join(t.get_text() for t in axes.texts)
    assert all(f"B to {n}" in texts for n in fits)


def test_figure_of_the_rollout():
    top, low = page.figure_rollout().axes
    t = page.cases(0)["B. 0.9, at most 256"][1]
    np.testing.assert_allclose(top.lines[0].get_ydata(), t.usage)
    assert top.lines[1].get_ydata()[0] == pytest.approx(read(t).mean)
    np.testing.assert_allclose(low.lines[0].get_ydata(), t.running)
    np.testing.assert_allclose(low.lines[1].get_ydata(), t.waiting)
    for axes in (top, low):  # shaded while requests wait
        box = axes.patches[0].get_extents().transformed(axes.transData.inverted())
        start = np.cumsum(t.seconds) - t.seconds
        assert box.x1 == pytest.approx(start[t.waiting > 0][-1], rel=1e-6)
        assert box.x0 == pytest.approx(0, abs=1e-6)
    assert "0.62" in top.get_title(loc="center") + top.get_title(loc="left")
    assert low.get_xlabel() == "seconds"
