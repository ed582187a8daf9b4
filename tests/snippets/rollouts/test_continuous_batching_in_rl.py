"""Reductions, couplings, reported log-probabilities, completion order."""

import heapq
import itertools
import math
import struct
from fractions import Fraction

import numpy as np
import pytest

from snippets.rollouts import continuous_batching_in_rl as code
from snippets.rollouts.rollout_long_tail import draw_lengths
from snippets.rollouts.simulator import Engine, Request

OTHER = range(100, 110)
"""Seeds that the page did not use."""


def spread(values, digits):
    """What an estimate prints: mean and sample standard deviation."""
    middle = sum(values) / len(values)
    square = sum((x - middle) ** 2 for x in values) / (len(values) - 1)
    return f"{middle:.{digits}f} ± {square**0.5:.{digits}f}".replace("-", "−")


def rows_of(table):
    return [[c.strip() for c in x.split("|")[1:-1]] for x in table.splitlines()[2:]]


# --- Low precision ---------------------------------------------------------


def nearest_bf16(value):
    """By search among the two neighbours, in exact rational arithmetic."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    low = bits & 0xFFFF0000
    near = [struct.unpack("<f", struct.pack("<I", b))[0] for b in (low, low + 65536)]
    gaps = [abs(Fraction(n) - Fraction(value)) for n in near]
    if gaps[0] == gaps[1]:
        return near[(low >> 16) & 1]  # the one whose last bit is 0
    return near[int(np.argmin([float(g) for g in gaps]))]


def test_bf16_rounds_to_nearest_even():
    x = np.random.default_rng(0).standard_normal(500).astype(np.float32)
    ties = np.array([1.00390625, 1.01171875, -1.00390625], np.float32)
    x = np.concatenate([x, ties])
    want = [nearest_bf16(float(v)) for v in x]
    assert code.bf16(x).tolist() == want
    assert code.bf16(ties).tolist() == [1.0, 1.015625, -1.0]
    assert code.fp16(np.float32([1.00048828125])).tolist() == [1.0]


@pytest.mark.parametrize("splits", [1, 2, 4])
def test_matmul_is_the_loop_over_chunks(splits):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((3, 8)).astype(np.float32)
    w = rng.standard_normal((8, 2)).astype(np.float32)
    want = np.zeros((3, 2), np.float32)
    for r, c in itertools.product(range(3), range(2)):
        parts = []
        for chunk in np.arange(8).reshape(splits, -1):
            total = np.float32(0)
            for k in chunk:
                total = np.float32(total + np.float32(x[r, k] * w[k, c]))
            parts.append(total)
        total = parts[0]
        for part in parts[1:]:
            total = np.float32(total + part)
        want[r, c] = total
    got = code.matmul(x, w, splits, code.fp32)
    assert got.dtype == np.float32 and (got == want).all()
    assert (code.matmul(x, w, splits, code.bf16) == code.bf16(want)).all()


def test_the_order_of_three_numbers_matters():
    x = np.array([[1e8, 1.0, -1e8, 1.0]], np.float32)
    w = np.ones((4, 1), np.float32)
    assert code.matmul(x, w, 1, code.fp32).item() == 1.0
    assert code.matmul(x, w, 2, code.fp32).item() == 0.0  # exact: 2


def test_claim_a_row_does_not_depend_on_its_neighbours_at_fixed_splits():
    """Batch invariance: only the number of chunks changes the bits."""
    x, layers, _ = code.weights(0)
    whole = code.matmul(x, layers[0, 0], 8, code.fp32)
    for rows in (slice(0, 1), slice(0, 5)):
        alone = code.matmul(x[rows], layers[0, 0], 8, code.fp32)
        assert (alone == whole[rows]).all()
    assert (code.matmul(x, layers[0, 0], 1, code.fp32) != whole).any()


def test_forward_in_float32_is_the_model_in_float64():
    x, layers, head = (a.astype(np.float64) for a in code.weights(0))

    def normed(h):
        return h / np.sqrt((h**2).mean(1, keepdims=True))

    for up, down in layers:
        x = x + np.maximum(normed(x) @ up, 0) @ down
    z = normed(x) @ head
    want = z - np.log(np.exp(z).sum(1, keepdims=True))
    (hidden, logp), _ = code.runs(0)["float32: 1 and 8 chunks"]
    assert len(hidden) == code.LAYERS
    np.testing.assert_allclose(hidden[-1], x, atol=1e-4)
    np.testing.assert_allclose(logp, want, atol=1e-4)
    np.testing.assert_allclose(np.exp(logp).sum(1), 1)


def test_the_nudge_moves_one_number_of_a_row_by_one_step():
    (one, _), (other, _) = code.runs(0)["bf16: one number, one step"]
    moved = one[0] != other[0]
    assert not moved[:, 1:].any() and moved[:, 0].mean() > 0.5
    x, layers, _ = code.weights(0)
    norm = x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True))
    inner = code.matmul(code.bf16(norm.astype(np.float32)), layers[0, 0], 1, code.bf16)
    added = code.matmul(np.maximum(inner, 0), layers[0, 1], 1, code.bf16)
    bits = added[:, 0].view(np.uint32) + np.uint32(0x10000)
    want = code.bf16(x[:, 0] + bits.view(np.float32))
    assert (other[0][:, 0] == want).all()
    step = np.abs(bits.view(np.float32) / added[:, 0] - 1)
    assert step.min() >= 2**-8 - 1e-7 and step.max() <= 2**-7 + 1e-7


# --- From logits to tokens -------------------------------------------------


def pair(seed, vocab=6, noise=0.5):
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal(vocab)
    out = []
    for logits in (z, z + noise * rng.standard_normal(vocab)):
        e = np.exp(logits)
        out.append(e / e.sum())
    return out


@pytest.mark.parametrize("seed", [0, 1])
def test_couplings_against_sampling(seed):
    p, q = pair(seed)
    rng = np.random.default_rng(seed)
    e = rng.exponential(size=(200_000, len(p)))
    same = ((p / e).argmax(1) == (q / e).argmax(1)).mean()
    assert code.same_race(p, q) == pytest.approx(same, abs=0.004)
    u = rng.random(200_000)
    same = np.searchsorted(p.cumsum(), u) == np.searchsorted(q.cumsum(), u)
    assert code.same_inverse(p, q) == pytest.approx(same.mean(), abs=0.004)


def test_couplings_obey_their_bounds():
    for seed in range(20):
        p, q = pair(seed)
        tv = code.total_variation(p, q)
        assert tv == pytest.approx(1 - np.minimum(p, q).sum())
        race, inverse = code.same_race(p, q), code.same_inverse(p, q)
        assert (1 - tv) / (1 + tv) - 1e-12 <= race <= 1 - tv + 1e-12
        assert inverse <= 1 - tv + 1e-12
    assert code.same_race(p, p) == pytest.approx(1)
    assert code.same_inverse(p, p) == pytest.approx(1)


def test_race_draws_the_right_token():
    """Each of the two samples has its own distribution, coupled or not."""
    p, _ = pair(3)
    e = np.random.default_rng(0).exponential(size=(200_000, len(p)))
    share = np.bincount((p / e).argmax(1), minlength=len(p)) / len(e)
    np.testing.assert_allclose(share, p, atol=0.004)


def test_gap_and_kl_by_definition():
    p, q = pair(4)
    one, other = np.log(p)[None], np.log(q)[None]
    want = sum(a * np.log(a / b) for a, b in zip(p, q, strict=True))
    assert code.kl(one, other) == pytest.approx(want)
    assert code.kl(one, other) != pytest.approx(code.kl(other, one))
    want = sum(a * abs(np.log(a) - np.log(b)) for a, b in zip(p, q, strict=True))
    assert code.gap(one, other) == pytest.approx(want)


def test_greedy_differs_counts_every_pair():
    """Changes of (first - second): -0.1 and 0.01; gaps 0.511 and 0.022."""
    one = np.log([[0.5, 0.3, 0.2], [0.45, 0.44, 0.11]])
    other = one + np.array([[0.2, 0.3, 0.9], [0.04, 0.03, 0.0]])
    count = 0
    for lead in (np.log(0.5 / 0.3), np.log(0.45 / 0.44)):
        for change in (-0.1, 0.01):
            count += abs(change) > lead
    got = code.greedy_differs(one, other)
    assert got == pytest.approx(count / 4 / 2) and count == 1


# --- The numbers of the page -----------------------------------------------


def shares(seed, inner):
    """Float32 sums of 1 and of 8 chunks by another way: reduced at once."""
    rng = np.random.default_rng(seed)
    x = code.bf16(rng.standard_normal((64, inner)).astype(np.float32))
    w = code.bf16(rng.standard_normal((inner, 64)).astype(np.float32))
    terms = x.T[:, :, None] * w[:, None]  # (K, rows, columns)
    one = np.cumsum(terms, 0, dtype=np.float32)[-1]
    parts = [np.cumsum(part, 0, dtype=np.float32)[-1] for part in np.split(terms, 8)]
    other = np.cumsum(np.array(parts), 0, dtype=np.float32)[-1]
    return [
        float((store(one) != store(other)).mean())
        for store in (code.fp32, code.fp16, code.bf16)
    ]


def test_table_rounding_by_other_means():
    table = rows_of(code.table_rounding())
    assert [row[0] for row in table] == ["float32", "fp16", "bf16"]
    for column, inner in ((1, 128), (2, 1024)):
        each = np.array([shares(seed, inner) for seed in range(10)])
        for row, values, digits in zip(table, 100 * each.T, (0, 2, 2), strict=True):
            want = spread(values.tolist(), digits) + " %"
            assert row[column] == ("< 0.01 %" if values.mean() < 0.01 else want)


def test_claim_bf16_swallows_the_order_of_most_sums():
    for seeds in (range(10), OTHER):
        for inner, least in ((128, 0.35), (1024, 0.8)):
            each = [code.rounding(seed, inner) for seed in seeds]
            assert min(x["float32"] for x in each) > least
            assert max(x["fp16"] for x in each) < 0.003
            fine, coarse = (sum(x[n] for x in each) for n in ("fp16", "bf16"))
            assert fine > 2 * coarse


def test_claim_one_step_grows_to_the_noise_of_the_format():
    """In every toy: from under a third of it to a little more than it."""
    for seed in (*range(10), *OTHER):
        nudged = code.growth("bf16: one number, one step", seed)
        noise = code.growth("bf16 and float32", seed)
        assert nudged[0] < 0.3 * noise[0] and nudged[0] < 1e-3
        assert 0.9 < nudged[-1] / noise[-1] < 1.3
        assert 0.006 < noise[-1] < 0.009
        assert max(code.growth("float32: 1 and 8 chunks", seed)) < 1e-6


def test_distance_is_relative():
    a = np.array([[3.0, 4.0]], np.float32)
    assert code.distance(a, a * np.float32(1.5)) == pytest.approx(0.5)


@pytest.mark.parametrize("seeds", [range(10), OTHER])
def test_claim_the_nudged_rows(seeds):
    each = [code.effects(seed) for seed in seeds]
    table = np.array([x["bf16: one number, one step"] for x in each])
    plain = np.array([x["bf16 and float32"] for x in each])
    hit, size, nats, greedy, race, inverse = table.T
    assert 0.2 < hit.min() and hit.max() < 0.9
    assert 0.01 < size.min() and size.max() < 0.035
    assert size.mean() == pytest.approx(0.025, abs=0.005)
    assert plain[:, 1].mean() == pytest.approx(size.mean(), rel=0.3)
    assert nats.max() < 0.001
    assert 0.006 < race.min() and race.max() < 0.02
    half = np.log(0.5) / np.log1p(-race)
    assert half.mean() == pytest.approx(50, abs=10)
    assert ((1 - race) ** 1000).max() < 1 / 500
    assert 3 < (inverse / race).min() and (inverse / race).max() < 6
    # Greedy flips in some toys, seldom: a mean of one to two per cent.
    assert 0.005 < greedy.mean() < 0.03 and greedy.max() < 0.06
    few = [x["bf16: 1 and 8 chunks"][0] for x in each]
    assert np.mean(few) < 0.06 < np.mean([x["fp16: 1 and 8 chunks"][0] for x in each])
    entropy = []
    for seed in seeds:
        logp = code.plain(seed)
        entropy.append(-(np.exp(logp) * logp).sum(1).mean())
    assert np.mean(entropy) == pytest.approx(1.4, abs=0.15)


@pytest.mark.parametrize("seeds", [range(10), OTHER])
def test_claim_a_sequence_ratio_of_the_noise(seeds):
    """ESS of the product, and GSPO's mean log-ratio, at 1,000 tokens."""
    found = []
    for seed in seeds:
        (_, one), (_, other) = code.runs(seed)["bf16: one number, one step"]
        hit = (one != other).any(1)
        p, change = np.exp(one[hit]), (other - one)[hit]
        chi2 = (p * np.exp(2 * change)).sum(1).mean() - 1
        mean = (p * change).sum(1).mean()
        token = (p * change**2).sum(1).mean() ** 0.5
        ends = np.log([1 - 3e-4, 1 + 4e-4])  # GSPO's band, normal approximation
        low, high = ((e - mean) / (token / 1000**0.5) / 2**0.5 for e in ends)
        inside = (math.erf(high) - math.erf(low)) / 2
        found.append([(1 + chi2) ** -1000, mean, token, 1 - inside])
        assert (p * np.exp(change)).sum(1).mean() == pytest.approx(1)
    worth, mean, token, outside = np.array(found).T
    assert 0.15 < worth.min() and worth.max() < 0.66
    assert worth.mean() == pytest.approx(0.3, abs=0.03)
    assert mean.mean() == pytest.approx(-6.5e-4, abs=1e-4) and mean.max() < 0
    assert token.mean() == pytest.approx(0.036, abs=0.004)
    assert outside.mean() == pytest.approx(0.8, abs=0.02)
    assert 0.6 < outside.min() and outside.max() < 0.87


def test_reported_ratio_by_enumeration():
    p = np.array([0.5, 0.3, 0.15, 0.05])
    # temperature 0.5: squares, renormalised
    t = p**2 / (p**2).sum()
    want = sum(t * t / p)
    assert code.reported_ratio(np.log(p), 0.5, 1, "raw") == pytest.approx(want)
    assert want > 1
    for how in ("tempered", "processed"):
        assert code.reported_ratio(np.log(p), 0.5, 1, how) == pytest.approx(1)
    # top-p 0.9 keeps three tokens of mass 0.95
    got = code.reported_ratio(np.log(p), 1, 0.9, "processed")
    assert got == pytest.approx(0.95)
    for how in ("raw", "tempered"):
        assert code.reported_ratio(np.log(p), 1, 0.9, how) == pytest.approx(1)


def test_changed_needs_one_bit_only():
    one = np.zeros((3, 4))
    other = one.copy()
    other[1, 2] = 1e-300
    other[2] = 1.0
    assert code.changed(one, other).tolist() == [False, True, True]


def test_top_p_keeps_the_smallest_set_with_the_mass():
    """At exactly half the mass the second token is not needed."""
    p = np.array([0.25, 0.5, 0.125, 0.125])
    got = code.reported_ratio(np.log(p), 1, 0.5, "processed")
    assert got == pytest.approx(0.5)


def test_the_pairs_of_passes_are_what_their_names_say():
    """Bits, not closeness: the first is what the second is compared with."""
    pairs = code.runs(0)
    plain = {s: code.forward(1, s)[1] for s in (code.fp32, code.bf16)}
    for name, store in (
        ("float32: 1 and 8 chunks", code.fp32),
        ("bf16: 1 and 8 chunks", code.bf16),
    ):
        (_, one), (_, other) = pairs[name]
        assert (one == plain[store]).all()
        assert (other == code.forward(8, store)[1]).all()
    (_, one), (_, other) = pairs["bf16 and float32"]
    assert (one == plain[code.bf16]).all()
    assert (other == plain[code.fp32]).all()


def test_table_reported_by_enumeration():
    """From each toy's log-probabilities, with sums over sorted tokens."""
    logps = [code.forward(8, code.fp32, seed=seed)[1] for seed in range(10)]
    want = []
    for t, top in ((1.0, 1.0), (0.6, 1.0), (1.0, 0.9)):
        raw, cut = [], []
        for logp in logps:
            sums, masses = [], []
            for row in np.exp(logp):
                q = row ** (1 / t) / (row ** (1 / t)).sum()
                sums.append((q * q / row).sum())
                order = np.sort(q)[::-1]
                masses.append(order[: int((order.cumsum() < top).sum()) + 1].sum())
            raw.append(np.mean(sums))
            cut.append(np.mean(masses))
        processed = spread(cut, 3) if top < 1 else "1"
        want.append([spread(raw, 3) if t < 1 else "1", "1", processed])
    assert [row[1:] for row in rows_of(code.table_reported())] == want


def test_claim_temperature_does_not_divide_log_probabilities():
    p = np.array([0.5, 0.3, 0.2])
    assert np.exp(np.log(0.5) / 0.5) == pytest.approx(0.25)
    right = p ** (1 / 0.5) / (p ** (1 / 0.5)).sum()
    assert right[0] == pytest.approx(0.66, abs=0.005)


def test_claim_a_row_of_logits_is_608_kilobytes():
    assert 151_936 * 4 == pytest.approx(608e3, rel=1e-3)


# --- Completion order ------------------------------------------------------


def by_heap(lengths, batch, updates):
    """Event by event: the same stream, one heap of (end, slot, index)."""
    heap = [(int(row[0]), s, 0) for s, row in enumerate(lengths)]
    heapq.heapify(heap)
    out, running = [[]], []
    while len(running) < updates:
        end, s, i = heapq.heappop(heap)
        out[-1].append(int(lengths[s, i]))
        heapq.heappush(heap, (end + int(lengths[s, i + 1]), s, i + 1))
        if len(out[-1]) == batch:
            running.append(np.mean([lengths[t, j] for _, t, j in heap]))
            out.append([])
    return out[:-1], running


def test_stream_is_the_event_loop():
    """Distinct ends, so that no tie at an update is broken differently."""
    for seed in range(20):
        lengths = np.random.default_rng(seed).integers(1000, 10**9, (4, 30))
        batches, running = code.stream(lengths, 5, 4)
        want, still = by_heap(lengths, 5, 4)
        assert batches.tolist() == want
        np.testing.assert_allclose(running, still)


def test_stream_is_the_engine_of_the_long_tail_page():
    lengths = np.random.default_rng(0).integers(100, 10**6, (1, 12))
    engine = Engine(1)
    engine.submit(Request(int(n)) for n in lengths[0])
    ended = [r.length for _ in range(6) for r in engine.advance()]
    assert code.stream(lengths, 3, 2)[0].ravel().tolist() == ended
    first = np.random.default_rng(1).permutation(10**4)[:24] + 1
    engine = Engine(24)
    engine.submit(Request(int(n)) for n in first)
    ended = [r.length for _ in range(8) for r in engine.advance()]
    table = np.column_stack([first, np.full((24, 1), 10**6)])
    assert code.stream(table, 8, 1)[0].ravel().tolist() == ended


def test_stream_refuses_too_few_lengths():
    with pytest.raises(ValueError, match="draw more"):
        code.stream(np.ones((2, 2), int), 4, 1)
    with pytest.raises(ValueError, match="draw more"):  # one slot is enough
        code.stream(np.array([[1, 1], [9, 9]]), 3, 1)


@pytest.mark.parametrize("first", [0, 100])
def test_claim_what_a_batch_holds(first):
    kept, dropped = code.streams(first)["kept"], code.streams(first)["dropped"]
    assert kept[0].shape == (10, code.UPDATES)
    start = kept[0].mean(0)
    assert start[0] == pytest.approx(0.45, abs=0.02)
    assert start[3] == pytest.approx(0.93, abs=0.03)
    assert start[6:].mean() == pytest.approx(1, abs=0.03)
    assert dropped[0].mean(0) == pytest.approx([0.45] * 12, abs=0.03)
    assert dropped[1].mean() == pytest.approx(0.63, abs=0.01)
    assert kept[1][:, 4:].mean() == pytest.approx(0.5, abs=0.01)
    assert (dropped[0][:, 4:].mean(1) < 0.5 * kept[0][:, 4:].mean(1)).all()


def test_claim_the_running_are_twice_as_long():
    """Inspection: a slot is seen in proportion to length, E[L^2] / E[L]^2."""
    rng = np.random.default_rng(5)
    n = draw_lengths(rng, 400_000, 1, shared=0.0).astype(float)
    want = (n**2).mean() / n.mean() ** 2
    assert want == pytest.approx(2.06, abs=0.03)
    for first in (0, 100):
        got = code.streams(first)["kept"][2][:, 4:].mean()
        assert got == pytest.approx(want, rel=0.04)


def test_population_is_the_mean_of_many_draws():
    n = draw_lengths(np.random.default_rng(9), 400_000, 1, shared=0.0)
    mean, right = code.population()
    assert mean == pytest.approx(n.mean(), rel=0.01)
    assert right == pytest.approx((3000 / (3000 + n)).mean(), abs=0.002)


def test_lengths_are_independent_with_the_stated_moments():
    """Lognormal, median 3,000; mean below 3000 exp(0.405) by the cap."""
    n = code.draw(7, 400)
    assert np.corrcoef(n[:-1, 0], n[1:, 0])[0, 1] < 0.3
    assert np.median(n) == pytest.approx(3000, rel=0.02)
    assert n.max() == 32768
    spread = n.mean(1).std(ddof=1) / n.mean()
    assert spread == pytest.approx(n.std() / n.mean() / 20, rel=0.2)


def schedule(lengths, slots, continuous):
    """Steps until all are done: list scheduling, or batch after batch."""
    if not continuous:
        batches = lengths.reshape(-1, slots)
        return int(batches.max(1).sum())
    free = [0] * slots
    for n in lengths:
        heapq.heapreplace(free, free[0] + int(n))
    return max(free)


def test_claim_what_the_batching_saves():
    """Three to four times fewer steps on 64 slots, none fewer on 512."""
    for seed in (*range(10), *OTHER):
        n = draw_lengths(np.random.default_rng(seed), 512, 1).ravel()
        times = schedule(n, 64, continuous=False) / schedule(n, 64, continuous=True)
        assert 2.8 < times < 4.2
        whole = [schedule(n, 512, continuous) for continuous in (True, False)]
        assert whole[0] == whole[1]


def test_claim_three_schedules_of_six_lengths():
    """Static 10, in order 7, longest first 5: the bound."""
    lengths = np.array([1, 1, 5, 1, 1, 5])
    assert schedule(lengths, 3, continuous=False) == 10
    assert schedule(lengths, 3, continuous=True) == 7
    orders = set(itertools.permutations(lengths.tolist()))
    times = {order: schedule(np.array(order), 3, True) for order in orders}
    bound = max(lengths.sum() / 3, lengths.max())
    assert min(times.values()) == bound == 5
    assert times[5, 5, 1, 1, 1, 1] == bound


@pytest.mark.parametrize("seed", [0, 100, 101])
def test_claim_half_a_group_is_short(seed):
    """The first 8 of 16 answers: under half the mean, more often right."""
    length, right = code.first_of(16, 8, seed)
    assert length < 0.5 and right > code.population()[1] + 0.1


def test_first_of_all_is_everything():
    length, right = code.first_of(640, 640, 3)
    assert length == pytest.approx(1, abs=0.02)
    assert right == pytest.approx(code.population()[1], abs=0.01)
    assert code.first_of(64, 32, 3)[0] < 0.5


# --- Products --------------------------------------------------------------


def test_table_order_shows_the_runs():
    cells = rows_of(code.table_order())
    assert cells[0] == ["all that started", "1.00", "0.50", "none"]
    kept, dropped = code.streams()["kept"], code.streams()["dropped"]
    for row, run, at in (
        (2, kept, [0]),
        (3, kept, [1]),
        (4, kept, range(4, 12)),
        (5, dropped, range(4, 12)),
    ):
        each = [[np.mean([part[r, u] for u in at]) for r in range(10)] for part in run]
        assert cells[row][1:3] == [spread(v, 2) for v in each[:2]]
        assert cells[row][3].endswith(f"final length {spread(each[2], 1)}")
        fate = "kept" if run is kept else "dropped"
        assert cells[row][3].startswith(fate)
    length, right = [], []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        n = np.sort(draw_lengths(rng, 40, 384, shared=0.0), axis=1)[:, :256]
        length.append(n.mean() / code.population()[0])
        right.append((3000 / (3000 + n)).mean())
    assert cells[1][1:3] == [spread(length, 2), spread(right, 2)]


def test_table_effects_shows_the_effects():
    table = rows_of(code.table_effects())
    each = [code.effects(seed) for seed in range(10)]
    for row in table:
        hit, size, nats, *differ = zip(*(x[row[0]] for x in each), strict=True)
        share = spread([100 * x for x in hit], 0) + " %"
        assert row[1] == ("100 %" if min(hit) == 1 else share)
        if row[0] == "bf16: 1 and 8 chunks":
            assert row[2:] == ["–"] * 5 and np.mean(hit) < 0.1
            continue
        assert row[2] == ("< 0.0001" if max(size) < 1e-4 else spread(size, 3))
        assert row[3] == spread([1000 * x for x in nats], 2)
        for cell, values in zip(row[4:], differ, strict=True):
            mean = 100 * np.mean(values)
            want = spread([100 * x for x in values], 2) + " %"
            assert cell == ("< 0.01 %" if mean < 0.01 else want)


def test_figures():
    axes = code.figure_depth().axes[0]
    assert axes.get_xlabel() == "layer" and axes.get_yscale() == "log"
    names = (
        "float32: 1 and 8 chunks",
        "bf16: one number, one step",
        "bf16 and float32",
    )
    bands = axes.collections
    for name, line, band in zip(names, axes.lines, bands, strict=True):
        each = np.array([code.growth(name, seed) for seed in range(10)])
        np.testing.assert_allclose(line.get_ydata(), each.mean(0))
        heights = band.get_paths()[0].vertices[:, 1]
        assert heights.min() == pytest.approx(each.min())
        assert heights.max() == pytest.approx(each.max())
    axes = code.figure_order().axes[0]
    kept, dropped = (line.get_ydata() for line in axes.lines[:2])
    values = code.streams()["kept"][0]
    np.testing.assert_allclose(kept, values.mean(0))
    (path,) = axes.collections[0].get_paths()
    high = path.vertices[path.vertices[:, 0] == 5, 1]
    assert np.ptp(high) == pytest.approx(2 * values[:, 4].std(ddof=1))
    assert dropped[-1] < 0.5 < kept[-1]
