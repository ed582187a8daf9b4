"""Block tables, sharing, waste, serving under a limit, and the claims."""

import numpy as np
import pytest

from snippets.rollouts import paged_attention as code


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
    assert code.blocks_of_group(1024, 512, 16) == 591
    assert code.blocks_of_group(1030, 512, 16) == 592
    assert code.blocks_of_group(1024, 512, 16, share=False) == 1536


def test_claim_waste_of_a_block_is_half_a_block():
    n = code.lengths()
    for size in (16, 128):
        unused = -(-n // size) * size - n
        assert unused.mean() == pytest.approx((size - 1) / 2, rel=0.03)
        assert unused.max() == size - 1


def plain_serve(wanted, blocks, size):
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
            if free < have[queue[0]] + 1:
                break
            running.append(queue.pop(0))
        for i in running:
            have[i] += 1
        time += size
        running = [i for i in running if have[i] < need[i]]
    return time, again, stops


def test_serve_against_a_second_implementation():
    wanted = np.random.default_rng(1).integers(1, 400, 40)
    got = code.serve(wanted, 60)
    assert (got.time, got.recomputed, got.preemptions) == plain_serve(wanted, 60, 16)
    assert got.preemptions > 0


def test_serve_with_reservation():
    wanted = np.array([16, 64, 32, 16])
    # two fit; static batches (16, 64), (32, 16)
    assert code.serve(wanted, 8, reserve=4, batch=2).time == 64 + 32
    # continuous: third starts at 16, fourth at 48
    assert code.serve(wanted, 8, reserve=4).time == 64


def test_claim_schedules():
    runs = code.schedules()
    static, reserved, paged, small = runs.values()
    longest = int(code.lengths(code.REQUESTS).max())
    assert paged.time == longest and paged.preemptions == 0
    assert max(n for _, n in reserved.trace) == code.BLOCKS // 2048 == 32
    assert static.time > 3 * reserved.time > 7 * paged.time
    assert small.preemptions > 500 and small.recomputed > 0


def test_figure_shows_the_runs():
    (axes,) = code.figure_serve().axes
    for line, run in zip(axes.lines, code.schedules().values(), strict=True):
        assert list(line.get_ydata()) == [n for _, n in run.trace]
