"""Block tables, sharing, waste, serving under a limit, and the claims."""

import math

import numpy as np
import pytest

from snippets.rollouts import paged_attention as code

OTHER = range(100, 110)
"""Seeds that the page did not use."""


@pytest.mark.parametrize("tokens", [1, 16, 17, 77])
def test_paged_attention_is_dense_attention(tokens):
    rng = np.random.default_rng(0)
    size, width = 16, 8
    dense_k, dense_v = rng.normal(size=(2, tokens, width))
    count = -(-tokens // size)
    table = rng.permutation(20)[:count].tolist()
    keys, values = rng.normal(size=(2, 20, size, width))
    for j, physical in enumerate(table):
        part = slice(j * size, min(tokens, (j + 1) * size))
        n = part.stop - part.start
        keys[physical, :n], values[physical, :n] = dense_k[part], dense_v[part]
    q = rng.normal(size=width)
    z = np.exp(dense_k @ q / width**0.5)
    want = (z / z.sum()) @ dense_v
    got = code.paged_attention(q, keys, values, table, tokens)
    assert got == pytest.approx(want, abs=1e-14)


def test_large_scores_do_not_overflow():
    keys = np.full((2, 2, 1), 1000.0)
    values = np.arange(4.0).reshape(2, 2, 1)
    got = code.paged_attention(np.array([1000.0]), keys, values, [1, 0], 4)
    assert got == pytest.approx([1.5])


def test_a_large_score_in_an_earlier_block_does_not_overflow():
    keys = np.array([[[1000.0], [1000.0]], [[0.0], [0.0]]])
    values = np.arange(4.0).reshape(2, 2, 1)
    got = code.paged_attention(np.array([1.0]), keys, values, [0, 1], 4)
    assert got == pytest.approx([0.5])


@pytest.mark.parametrize("block", [[0.0, 1000.0], [1000.0, 0.0]])
def test_unequal_scores_in_one_block_do_not_overflow(block):
    keys = np.array([block, [0.0, 1000.0]])[..., None]
    values = np.arange(4.0).reshape(2, 2, 1)
    got = code.paged_attention(np.array([1.0]), keys, values, [0, 1], 4)
    assert got == pytest.approx([(block.index(1000) + 3) / 2])


def test_a_second_answer_shares_the_full_blocks_of_its_prompt():
    pool = code.pool(20, size=4)
    prompt = list(range(10))
    first, second = pool.allocate(prompt), pool.allocate(prompt)
    assert first[:2] == second[:2] and first[2] != second[2]
    assert pool.users[first[0]] == 2
    other = pool.allocate(prompt, extra="new weights")
    assert not set(other) & set(first)


def test_a_hit_ends_before_the_last_token():
    pool = code.pool(20, size=4)
    first, second = pool.allocate(list(range(8))), pool.allocate(list(range(8)))
    assert first[0] == second[0] and first[1] != second[1]


def test_a_different_start_shares_nothing():
    pool = code.pool(20, size=2)
    first = pool.allocate([1, 2, 3, 4, 5])
    second = pool.allocate([9, 2, 3, 4, 5])
    assert not set(first) & set(second)
    third = pool.allocate([3, 4, 5])  # the second block's tokens, at the start
    assert not set(first) & set(third)


def test_a_block_is_free_only_when_nobody_uses_it():
    pool = code.pool(8, size=2)
    first, second = pool.allocate([1, 2, 3]), pool.allocate([1, 2, 3])
    pool.release(first)
    assert first[0] == second[0] and first[0] not in pool.free
    assert first[1] in pool.free
    pool.release(second)
    again = pool.allocate([1, 2, 3])
    assert again[0] == first[0] and again[0] not in pool.free


def test_free_blocks_that_are_hits_are_not_counted_twice():
    pool = code.pool(3, size=2)
    pool.release(pool.allocate([1, 2, 3, 4, 5]))
    before = list(pool.free)
    with pytest.raises(MemoryError):  # two hits, two new, one left
        pool.allocate([1, 2, 3, 4, 6, 7, 8])
    assert list(pool.free) == before


def test_released_blocks_stay_cached_until_they_are_needed():
    pool = code.pool(6, size=2)
    table = pool.allocate([1, 2, 3, 4, 5])
    pool.release(table)
    assert len(pool.free) == 6
    again = pool.allocate([1, 2, 3, 4, 6])
    assert again[:2] == table[:2]  # found after the release
    pool.release(again)
    pool.allocate(list(range(50, 61)))  # all six blocks: evicts
    assert pool.cached.keys() == set(pool.hashes(list(range(50, 61))))


def test_the_tail_of_a_sequence_is_reused_first():
    pool = code.pool(3, size=2)
    table = pool.allocate([1, 2, 3, 4, 5, 6])
    pool.release(table)
    (block,) = pool.allocate([7])
    assert block == table[-1]


def test_a_full_pool_refuses_and_changes_nothing():
    pool = code.pool(2, size=2)
    pool.allocate([1, 2])
    before = list(pool.free), dict(pool.users), dict(pool.cached)
    with pytest.raises(MemoryError):
        pool.allocate([5, 6, 7, 8, 9])
    assert (list(pool.free), dict(pool.users), dict(pool.cached)) == before


@pytest.mark.parametrize(("prompt", "response"), [(10, 7), (8, 3), (3, 9), (16, 1)])
def test_blocks_of_a_group_against_the_pool(prompt, response):
    pool = code.pool(500, size=4)
    tables = [pool.allocate(list(range(prompt))) for _ in range(5)]
    blocks = {b for t in tables for b in t}
    grown = -(-(prompt + response) // 4) - len(tables[0])
    want = len(blocks) + 5 * grown
    assert code.blocks_of_group(prompt, response, 5, 4) == want
    alone = code.blocks_of_group(prompt, response, 5, 4, share=False)
    assert alone == 5 * -(-(prompt + response) // 4)


def test_claim_bytes_and_sharing():
    assert code.kv_bytes(32, 8, 128) == 131072
    assert code.kv_bytes(48, 4, 128) == 98304
    assert code.kv_bytes(36, 8, 128, width=1) == 147456 // 2
    assert code.latent_bytes(61, 512, 64) == 70272
    assert 40 * 2**30 // code.kv_bytes(32, 8, 128) == 327_680
    assert code.blocks_of_group(1024, 512, 16) == 591
    assert code.blocks_of_group(1030, 512, 16) == 592
    assert code.blocks_of_group(1024, 512, 16, share=False) == 1536


def lognormal_mean_below(cap):
    """E[min(X, cap)] of the lognormal, its closed form."""

    def normal(z):
        return 0.5 * math.erfc(-z / math.sqrt(2))

    edge = math.log(cap / 3000) / 0.9
    body = 3000 * math.exp(0.9**2 / 2) * normal(edge - 0.9)
    return body + cap * (1 - normal(edge))


def test_claim_reserving_wastes_86_percent():
    mean = lognormal_mean_below(32768)
    p = code.chances()
    assert p.sum() == pytest.approx(1) and p.shape == (32768,)
    assert p @ np.arange(1, 32769) == pytest.approx(mean, abs=0.01)
    assert p[:3000].sum() == pytest.approx(0.5, abs=1e-3)
    assert 1 - mean / 32768 == pytest.approx(0.8642, abs=0.00005)
    assert "86.42 %" in code.table_waste()


def test_table_waste_against_draws():
    """Forty thousand lengths from the generator of the long tail's page."""
    rows = [r.split("|")[2:4] for r in code.table_waste().splitlines()[2:]]
    n = np.concatenate([code.lengths(seed, 4000) for seed in OTHER])
    for row, size in zip(rows, (1, 16, 128, 1024, 32768), strict=True):
        unused = np.array([-int(x) % size for x in n])
        assert float(row[0].replace(",", "")) == pytest.approx(
            unused.mean(), rel=0.02, abs=0.01
        )
        share = unused.sum() / (n.sum() + unused.sum())
        assert float(row[1].strip(" %")) == pytest.approx(100 * share, rel=0.03)


def test_tables_hold_the_numbers_of_the_prose():
    for prompt, response, row in zip(
        (1024, 1024, 16384),
        (512, 8192, 512),
        code.table_sharing().splitlines()[2:],
        strict=True,
    ):
        alone = 16 * ((prompt + response) // 16)
        shared = alone - 15 * (prompt // 16 - 1)
        numbers = (prompt, response, alone, shared)
        saved = f"{100 * (1 - shared / alone):.0f} %"
        cells = [f"{n:,}" for n in numbers]
        assert row == f"| {' | '.join([*cells, saved])} |"
    assert "| 1,024 | 8,192 | 9,216 | 8,271 | 10 % |" in code.table_sharing()
    shapes = [(40, 40), (80, 8), (32, 8), (36, 8), (48, 4)]
    want = [layers * heads * 2 * 128 * 2 for layers, heads in shapes]
    want.append(61 * (512 + 64) * 2)
    rows = code.table_bytes().splitlines()[2:]
    for row, size in zip(rows, want, strict=True):
        assert row.split("|")[2:4] == [f" {size:,} ", f" {size * 16384 / 1e9:.2f} "]
    assert "| 819,200 | 13.42 |" in code.table_bytes()


def test_claim_waste_of_a_block_is_half_a_block():
    n = np.concatenate([code.lengths(seed, 4000) for seed in OTHER])
    for size in (16, 128):
        unused = -(-n // size) * size - n
        assert unused.mean() == pytest.approx((size - 1) / 2, rel=0.03)
        assert unused.max() == size - 1


def plain_serve(wanted, blocks, size, spare=0):
    """Paged serving, written once more: lists, one request at a time."""
    need = [-(-int(n) // size) for n in wanted]
    have, queue, running = [0] * len(need), list(range(len(need))), []
    time = again = stops = 0
    while queue or running:
        while sum(have[i] + 1 for i in running) > blocks:
            last = running.pop()
            again += have[last] * size
            stops += 1
            queue.insert(0, last)
        while queue:
            free = blocks - sum(have[i] + 1 for i in running)
            if free < have[queue[0]] + 1 + (spare if running else 0):
                break
            running.append(queue.pop(0))
        for i in running:
            have[i] += 1
        time += size
        running = [i for i in running if have[i] < need[i]]
    return time, again, stops


@pytest.mark.parametrize("spare", [0, 7])
def test_serve_against_a_second_implementation(spare):
    wanted = np.random.default_rng(1).integers(1, 400, 40)
    got = code.serve(wanted, 60, watermark=spare)
    want = plain_serve(wanted, 60, 16, spare)
    assert (got.time, got.recomputed, got.preemptions) == want
    assert got.preemptions > 0


def test_preemption_by_hand():
    # 3 blocks, two responses of 2: both start, block 4 is missing in the
    # second round; the later one loses its block, waits, then ends alone.
    got = code.serve(np.array([32, 32]), 3)
    assert (got.time, got.recomputed, got.preemptions) == (48, 16, 1)
    assert [n for _, n in got.trace] == [0, 2, 1, 1]


def test_a_watermark_holds_back_only_beside_running_responses():
    # with 3 blocks spare the first may start alone, the second may not join
    got = code.serve(np.array([32, 32]), 3, watermark=3)
    assert (got.time, got.preemptions) == (64, 0)


def test_bytes_read_token_by_token():
    wanted = np.array([3, 1])
    cache = sum(k for n in wanted for k in range(1, n + 1))
    assert code.bytes_read(wanted, 5, 100.0, 7) == 5 * 100 + 7 * cache
    assert code.bytes_read(np.array([60_000]), 0, 1.0, 1) == 60_000 * 60_001 / 2


def test_serve_with_reservation():
    wanted = np.array([16, 64, 32, 16])
    # two fit; static batches (16, 64), (32, 16)
    assert code.serve(wanted, 8, reserve=4, batch=2).time == 64 + 32
    # continuous: third starts at 16, fourth at 48
    assert code.serve(wanted, 8, reserve=4).time == 64


def slots(wanted, count):
    """Reserved places, refilled at once: time by list scheduling."""
    ends = [0] * count
    for n in wanted.tolist():
        at = ends.index(min(ends))
        ends[at] += -(-n // 16) * 16
    return max(ends)


def expected(seed):
    """Rows of the table, by other means."""
    n = code.lengths(seed, 512)
    total = sum(-(-int(x) // 16) * 16 for x in n)
    static = sum(-(-int(n[i : i + 32].max()) // 16) * 16 for i in range(0, 512, 32))
    runs = [(static, 0, 0), (slots(n, 32), 0, 0), plain_serve(n, 65_536, 16)]
    runs += [plain_serve(n, 16_384, 16, spare) for spare in (0, 819)]
    cache = 147_456 * sum(k * (k + 1) / 2 for k in n.tolist())
    return [
        (
            time / 1000,
            total / time,
            stops,
            100 * again / total,
            (time * 16.4e9 + cache) / 1e12,
        )
        for time, again, stops in runs
    ]


@pytest.mark.parametrize("seed", [0, 7])
def test_rows_of_the_table_by_other_means(seed):
    got = [code.measured(seed, name) for name in code.schedules(seed)]
    for mine, other in zip(got, expected(seed), strict=True):
        assert mine == pytest.approx(other)


def test_table_serve_prints_mean_and_spread_over_ten_draws():
    rows = code.table_serve().splitlines()[2:]
    for row, name in zip(rows, code.schedules(0), strict=True):
        cells = [cell.strip(" %") for cell in row.split("|")[2:-1]]
        values = np.array([code.measured(seed, name) for seed in range(10)])
        for cell, column in zip(cells, values.T, strict=True):
            numbers = [float(x.replace(",", "")) for x in cell.split("±")]
            want = [column.mean(), column.std(ddof=1)]
            if len(numbers) == 1:
                assert numbers == [0] and not column.any()
            else:
                assert numbers == pytest.approx(want, abs=0.51)


@pytest.mark.parametrize("seeds", [range(10), OTHER])
def test_claim_schedules(seeds):
    """Each sentence of the page, for every draw."""
    for seed in seeds:
        n = code.lengths(seed, code.REQUESTS)
        runs = code.schedules(seed)
        static, reserved, paged, small, held_back = runs.values()
        assert paged.time == -(-int(n.max()) // 16) * 16
        assert paged.preemptions == 0 and paged.trace[1][1] == 512
        assert max(k for _, k in reserved.trace) == code.BLOCKS // 2048 == 32
        assert 3 <= static.time / reserved.time <= 4.1
        assert 2.2 <= reserved.time / paged.time <= 3.5
        assert 8 <= static.time / paged.time <= 11.5
        assert 1.3 <= small.time / paged.time <= 2
        assert 0.34 < held_back.preemptions / small.preemptions < 0.42
        assert 0.99 < held_back.time / small.time < 1.04
        total = n.sum()
        assert 0.5 < small.recomputed / total < 0.68
        assert 0.18 < held_back.recomputed / total < 0.24


@pytest.mark.parametrize("seeds", [range(10), OTHER])
def test_claim_steps_are_not_bytes(seeds):
    for seed in seeds:
        rows = [code.measured(seed, name)[4] for name in code.schedules(seed)]
        assert 3 < rows[0] / rows[2] < 3.6
        assert 1.3 < rows[1] / rows[2] < 1.6
    assert code.QWEN[1] == code.kv_bytes(36, 8, 128)
    assert code.BLOCKS * 16 * code.QWEN[1] / 1e9 == pytest.approx(155, abs=0.5)


def test_claim_the_first_draw_of_the_figure():
    """512 at once, then the ends in thousand steps that its text names."""
    runs = list(code.schedules(0).values())
    ends = [round(run.time / 1000) for run in runs[:4]]
    assert ends == [287, 85, 33, 54]


def test_figure_shows_the_runs():
    (axes,) = code.figure_serve().axes
    runs = list(code.schedules(0).values())
    assert len(axes.lines) == 4
    for line, run in zip(axes.lines, runs, strict=False):
        assert list(line.get_ydata()) == [n for _, n in run.trace]
        assert list(line.get_xdata()) == [t / 1000 for t, _ in run.trace]
    assert "steps" in axes.get_xlabel()
