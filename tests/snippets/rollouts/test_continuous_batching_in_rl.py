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
    x, layers, _ = code.weights()
    whole = code.matmul(x, layers[0, 0], 8, code.fp32)
    for rows in (slice(0, 1), slice(0, 5)):
        alone = code.matmul(x[rows], layers[0, 0], 8, code.fp32)
        assert (alone == whole[rows]).all()
    assert (code.matmul(x, layers[0, 0], 1, code.fp32) != whole).any()


def test_forward_in_float32_is_the_model_in_float64():
    x, layers, head = (a.astype(np.float64) for a in code.weights())

    def normed(h):
        return h / np.sqrt((h**2).mean(1, keepdims=True))

    for up, down in layers:
        x = x + np.maximum(normed(x) @ up, 0) @ down
    z = normed(x) @ head
    want = z - np.log(np.exp(z).sum(1, keepdims=True))
    (hidden, logp), _ = code.runs()["float32: 1 and 8 chunks"]
    assert len(hidden) == code.LAYERS
    np.testing.assert_allclose(hidden[-1], x, atol=1e-4)
    np.testing.assert_allclose(logp, want, atol=1e-4)
    np.testing.assert_allclose(np.exp(logp).sum(1), 1)


def test_the_nudge_moves_one_number_of_a_row_by_one_step():
    (one, _), (other, _) = code.runs()["bf16: one number, one step"]
    moved = one[0] != other[0]
    assert not moved[:, 1:].any() and moved[:, 0].mean() > 0.5
    x, layers, _ = code.weights()
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


def test_claim_bf16_swallows_the_order_of_most_sums():
    lines = code.table_rounding().splitlines()[2:]
    cells = [[c.strip() for c in x.split("|")[1:-1]] for x in lines]
    share = {c[0]: [float(v.split()[0]) for v in c[1:]] for c in cells}
    assert share["float32"][1] > 80 and share["bf16"][1] < 0.05
    assert all(v[1] > v[0] for v in share.values())
    assert share["fp16"][1] > 3 * share["bf16"][1]
    rng = np.random.default_rng(0)
    x = code.bf16(rng.standard_normal((192, 1024)).astype(np.float32))
    w = code.bf16(rng.standard_normal((1024, 192)).astype(np.float32))
    exact = x.astype(np.float64) @ w.astype(np.float64)
    wrong = code.matmul(x, w, 8, code.bf16) != code.bf16(exact.astype(np.float32))
    assert wrong.mean() < 1e-3


def test_claim_one_step_grows_to_the_noise_of_the_format():
    end = {}
    for name, ((one, _), (other, _)) in code.runs().items():
        end[name] = [code.distance(a, b) for a, b in zip(one, other, strict=True)]
    nudged, noise = end["bf16: one number, one step"], end["bf16 and float32"]
    assert nudged[0] < 0.2 * noise[0]
    assert nudged[-1] > 0.9 * noise[-1] and nudged[-1] > 10 * nudged[0]
    assert max(end["float32: 1 and 8 chunks"]) < 5e-7


def test_distance_is_relative():
    a = np.array([[3.0, 4.0]], np.float32)
    assert code.distance(a, a * np.float32(1.5)) == pytest.approx(0.5)


def test_claim_the_nudged_rows():
    hit, size, nats, greedy, race, inverse = code.effects()[
        "bf16: one number, one step"
    ]
    assert hit == pytest.approx(0.76, abs=0.01)
    assert size == pytest.approx(0.020, abs=0.001)
    assert 1000 * nats == pytest.approx(0.55, abs=0.01)
    assert race == pytest.approx(0.0118, abs=0.0003)
    assert inverse > 3.5 * race and greedy > race
    # Half of the pairs have parted after 58 tokens, nearly all by 1,000.
    assert np.log(0.5) / np.log1p(-race) == pytest.approx(58, abs=1)
    assert (1 - race) ** 1000 < 1e-5
    plain = code.effects()["bf16 and float32"]
    assert plain[1] == pytest.approx(size, rel=0.1)
    assert code.effects()["bf16: 1 and 8 chunks"][0] == 3 / 96
    assert code.effects()["fp16: 1 and 8 chunks"][0] == 32 / 96
    entropy = code.runs()["bf16 and float32"][1][1]
    entropy = -(np.exp(entropy) * entropy).sum(1).mean()
    assert entropy == pytest.approx(1.2, abs=0.01)


def test_claim_a_sequence_ratio_of_the_noise():
    """ESS of the product, and GSPO's mean log-ratio, at 1,000 tokens."""
    (_, one), (_, other) = code.runs()["bf16: one number, one step"]
    hit = (one != other).any(1)
    p, change = np.exp(one[hit]), (other - one)[hit]
    chi2 = (p * np.exp(2 * change)).sum(1).mean() - 1
    assert (1 + chi2) ** -1000 == pytest.approx(0.33, abs=0.01)
    mean = (p * change).sum(1).mean()
    spread = ((p * change**2).sum(1).mean() / 1000) ** 0.5
    assert mean == pytest.approx(-5.5e-4, abs=5e-6)
    assert spread == pytest.approx(1.05e-3, abs=1e-5)
    assert (p * change**2).sum(1).mean() ** 0.5 == pytest.approx(0.033, abs=1e-3)
    ends = np.log([1 - 3e-4, 1 + 4e-4])  # GSPO's band, normal approximation
    low, high = ((e - mean) / spread / 2**0.5 for e in ends)
    inside = (math.erf(high) - math.erf(low)) / 2
    assert 1 - inside == pytest.approx(0.78, abs=0.01)
    assert (p * np.exp(change)).sum(1).mean() == pytest.approx(1)


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
    pairs = code.runs()
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


def test_claim_reports():
    rows = code.table_reported().splitlines()[2:]
    cells = [[float(c) for c in r.split("|")[2:-1]] for r in rows]
    assert cells == [[1, 1, 1], [1.168, 1, 1], [1, 1, 0.929]]


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


def test_claim_what_a_batch_holds():
    kept, dropped = code.streams()["kept"], code.streams()["dropped"]
    assert kept[0].shape == (code.REPEATS, code.UPDATES)
    assert kept[0][:, 0].mean() == pytest.approx(0.45, abs=0.02)
    late = kept[0][:, 4:].mean()
    error = kept[0][:, 4:].mean(1).std(ddof=1) / code.REPEATS**0.5
    assert abs(late - 1) < 3 * error + 0.01
    assert dropped[0][:, 4:].mean() == pytest.approx(0.46, abs=0.01)
    # no trend when dropped: every update starts anew
    early = dropped[0][:, :6].mean() - dropped[0][:, 6:].mean()
    assert abs(early) < 0.02
    assert dropped[1].mean() - kept[1][:, 4:].mean() > 0.1
    assert code.population()[1] == pytest.approx(0.5, abs=0.005)


def test_claim_the_running_are_twice_as_long():
    """Inspection: a slot is seen in proportion to length, E[L^2] / E[L]^2."""
    rng = np.random.default_rng(5)
    n = draw_lengths(rng, 400_000, 1, shared=0.0).astype(float)
    want = (n**2).mean() / n.mean() ** 2
    assert want == pytest.approx(2.08, abs=0.03)
    got = code.streams()["kept"][2][:, 4:].mean()
    assert got == pytest.approx(want, rel=0.04)


def test_lengths_are_independent_with_the_stated_moments():
    """Lognormal, median 3,000; mean below 3000 exp(0.405) by the cap."""
    n = code.draw(7, 400)
    assert np.corrcoef(n[:-1, 0], n[1:, 0])[0, 1] < 0.3
    assert np.median(n) == pytest.approx(3000, rel=0.02)
    assert n.max() == 32768
    spread = n.mean(1).std(ddof=1) / n.mean()
    assert spread == pytest.approx(n.std() / n.mean() / 20, rel=0.2)
    mean, _ = code.population()
    fresh = draw_lengths(np.random.default_rng(9), 200_000, 1, shared=0.0)
    assert mean == pytest.approx(fresh.mean(), rel=0.01)


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
    """55 against 183 thousand steps on 64 slots, nothing on 512."""
    totals = {}
    for slots, continuous in itertools.product((64, 512), (True, False)):
        totals[slots, continuous] = np.mean(
            [
                schedule(
                    draw_lengths(np.random.default_rng(s), 512, 1).ravel(),
                    slots,
                    continuous,
                )
                for s in range(8)
            ]
        )
    assert totals[64, True] / 1000 == pytest.approx(55, abs=0.5)
    assert totals[64, False] / 1000 == pytest.approx(183, abs=0.5)
    assert totals[512, True] == totals[512, False]


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


def test_claim_half_a_group_is_short():
    """The first 8 of 16 answers: under half the mean, more often right."""
    length, right = code.first_of(16, 8)
    assert length < 0.55 and right > code.population()[1] + 0.1


def test_first_of_all_is_everything():
    length, right = code.first_of(64, 64)
    assert length == pytest.approx(1, abs=0.02)
    assert right == pytest.approx(code.population()[1], abs=0.01)
    assert code.first_of(64, 32)[0] < 0.5


# --- Products --------------------------------------------------------------


def test_tables():
    table = code.table_order().splitlines()
    assert len(table) == 2 + 6
    cells = [[c.strip() for c in x.split("|")[1:-1]] for x in table[2:]]
    kept, dropped = code.streams()["kept"], code.streams()["dropped"]
    for row, run, at in (
        (2, kept, [0]),
        (3, kept, [1]),
        (4, kept, range(4, 12)),
        (5, dropped, range(4, 12)),
    ):
        want = [np.mean([run[k][:, u] for u in at]) for k in range(3)]
        assert cells[row][1:3] == [f"{v:.2f}" for v in want[:2]]
        assert cells[row][3].endswith(f"final length {want[2]:.1f}")
        fate = "kept" if run is kept else "dropped"
        assert cells[row][3].startswith(fate)
    rng = np.random.default_rng(2)
    n = np.sort(draw_lengths(rng, 400, 384, shared=0.0), axis=1)[:, :256]
    assert cells[1][1] == f"{n.mean() / code.population()[0]:.2f}"
    assert cells[1][2] == f"{(3000 / (3000 + n)).mean():.2f}"
    rounding = code.table_rounding().splitlines()[2:]
    assert [r.split("|")[1].strip() for r in rounding] == [
        "float32",
        "fp16",
        "bf16",
    ]
    assert rounding[0].split("|")[2:4] == [" 40 % ", " 86 % "]
    effects = code.table_effects().splitlines()
    assert effects[5].split("|")[4].strip() == "0.55"
    assert "–" not in effects[3]
    assert effects[4].count("–") == 5 and "–" not in effects[5]
    assert code.percent(0.0118) == "1.2 %"
    assert code.percent(2e-6) == "< 0.001 %"


def test_figures():
    axes = code.figure_depth().axes[0]
    assert axes.get_xlabel() == "layer" and axes.get_yscale() == "log"
    lines = [line.get_ydata() for line in axes.lines]
    assert [len(y) for y in lines] == [code.LAYERS] * 3
    assert lines[0][-1] < 1e-6 < lines[1][0] < lines[2][0]
    axes = code.figure_order().axes[0]
    kept, dropped = (line.get_ydata() for line in axes.lines[:2])
    values = code.streams()["kept"][0]
    np.testing.assert_allclose(kept, values.mean(0))
    (path,) = axes.collections[0].get_paths()
    high = path.vertices[path.vertices[:, 0] == 5, 1]
    error = values[:, 4].std(ddof=1) / len(values) ** 0.5
    assert np.ptp(high) == pytest.approx(2 * error)
    assert dropped[-1] < 0.5 < kept[-1]
