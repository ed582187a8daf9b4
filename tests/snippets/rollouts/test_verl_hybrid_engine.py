"""Resharding counted on real arrays; the mapping against plain loops."""

import itertools
from fractions import Fraction
from math import comb, factorial

import numpy as np
import pytest

from snippets.rollouts import verl_hybrid_engine as page
from snippets.rollouts.verl_hybrid_engine import (
    Actor,
    allocations,
    block,
    collect,
    dispatch,
    gather_group,
    iteration_time,
    needed,
    owned,
    placements,
    transition,
)

SHAPES = [
    Actor(p, t, d, pg, tg)
    for p, t, d in [(1, 4, 2), (1, 8, 1), (2, 4, 2), (4, 2, 3), (3, 6, 2)]
    for pg in range(1, p + 1)
    for tg in range(1, t + 1)
    if p % pg == 0 and t % tg == 0
]
FIGURE_8 = Actor(1, 4, 2, 1, 2)


# --- Dispatch and collect --------------------------------------------------


def test_claim_64_rows_on_8_workers():
    """TP 2, PP 2, DP 2, ranks counted tensor first, then data, pipeline."""
    batch = np.arange(128).reshape(64, 2)
    place = list(itertools.product(range(2), range(2), range(2)))
    position = [data for _, data, _ in place]
    got = dispatch(batch, position)
    assert [len(x) for x in got] == [32] * 8
    for (_, data, _), rows in zip(place, got, strict=True):
        np.testing.assert_array_equal(rows, batch[32 * data : 32 * data + 32])
    # Outputs exist on the last stage, once per tensor group: ranks 4 and 6.
    mask = [stage == 1 and tensor == 0 for stage, _, tensor in place]
    assert [r for r, keep in enumerate(mask) if keep] == [4, 6]
    out = [
        10 * rows if keep else rows - 1 for rows, keep in zip(got, mask, strict=True)
    ]
    np.testing.assert_array_equal(collect(out, mask), 10 * batch)
    # Cut by workers instead: 8 rows each, all 8 outputs needed.
    by_worker = dispatch(batch, range(8))
    assert [len(x) for x in by_worker] == [8] * 8
    np.testing.assert_array_equal(collect(by_worker, [True] * 8), batch)
    with pytest.raises(ValueError, match="equal division"):
        dispatch(batch[:63], position)


# --- The groups ------------------------------------------------------------


def generation_groups(actor, strided):
    """Ranks of each generation replica, found by walking the ranks."""
    size, total = actor.p * actor.t, actor.p * actor.t * actor.d
    out = []
    for first in range(0, total, size):
        if not strided:
            n = actor.pg * actor.tg
            out += [list(range(i, i + n)) for i in range(first, first + size, n)]
            continue
        rows, columns = actor.p // actor.pg, actor.t // actor.tg
        for i in range(rows):
            for j in range(columns):
                out.append(
                    [
                        first + r * actor.t + c
                        for r in range(i, actor.p, rows)
                        for c in range(j, actor.t, columns)
                    ]
                )
    return out


def test_claim_the_groups_of_figure_8():
    """1-4-2 to 1-2-2-2; the paper counts G1 to G8."""
    tp = generation_groups(FIGURE_8, strided=True)
    assert tp == [[0, 2], [1, 3], [4, 6], [5, 7]]
    micro = {tuple(gather_group(FIGURE_8, r, "HybridFlow")) for r in range(8)}
    assert micro == {(0, 1), (2, 3), (4, 5), (6, 7)}
    assert gather_group(FIGURE_8, 5, "HybridFlow-V") == [4, 5, 6, 7]
    assert gather_group(FIGURE_8, 5, "DS-Chat") == list(range(8))
    counted = transition(FIGURE_8, "HybridFlow-V")["redundant"]
    assert (np.flatnonzero(counted) + 1).tolist() == [2, 3, 6, 7]


@pytest.mark.parametrize("actor", SHAPES, ids=str)
@pytest.mark.parametrize("strided", [False, True])
def test_each_generation_replica_serves_every_block_once(actor, strided):
    every = sorted(itertools.product(range(actor.pg), range(actor.tg)))
    groups = generation_groups(actor, strided)
    assert len(groups) == actor.d * actor.dg
    for ranks in groups:
        assert sorted(block(actor, r, strided) for r in ranks) == every


def ring_all_gather(start):
    """Pass chunks round a ring; returns all chunks and chunks received."""
    n = len(start)
    held = [{i: x} for i, x in enumerate(start)]
    received = [0] * n
    for step in range(n - 1):
        sent = [((i - step) % n, held[i][(i - step) % n]) for i in range(n)]
        for i in range(n):
            index, chunk = sent[(i - 1) % n]
            held[i][index] = chunk
            received[i] += chunk.size
    return held, received


@pytest.mark.parametrize("actor", SHAPES, ids=str)
def test_strided_gather_assembles_the_block_from_real_weights(actor):
    """Slices of one array, a ring per micro DP group, elements counted."""
    layers, width = 2 * actor.p, 3 * actor.t
    weights = np.arange(layers * width).reshape(layers, width)
    size, total = actor.p * actor.t, actor.p * actor.t * actor.d

    def train_slice(rank):
        row, column = rank % size // actor.t, rank % actor.t
        return weights[2 * row : 2 * row + 2, 3 * column : 3 * column + 3]

    high, wide = layers // actor.pg, width // actor.tg
    counted = transition(actor, "HybridFlow")["received"]
    for rank in range(total):
        group = gather_group(actor, rank, "HybridFlow")
        held, received = ring_all_gather([train_slice(r) for r in group])
        me = group.index(rank)
        assert received[me] / weights.size == pytest.approx(counted[rank])
        rows = actor.p // actor.pg
        chunks = [held[me][i] for i in range(len(group))]
        got = np.block(
            [
                chunks[i * len(chunks) // rows : (i + 1) * len(chunks) // rows]
                for i in range(rows)
            ]
        )
        stage, part = block(actor, rank, strided=True)
        want = weights[stage * high :][:high, part * wide :][:, :wide]
        np.testing.assert_array_equal(got, want)


def test_a_product_with_the_gathered_slices_is_the_full_product():
    """Column-parallel: outputs of one strided TP group, side by side."""
    x, weights = np.random.default_rng(0).normal(size=(2, 4, 8))
    columns = {r: weights[:, 2 * (r % 4) : 2 * (r % 4) + 2] for r in range(8)}
    weights_of = {
        r: np.hstack([columns[q] for q in gather_group(FIGURE_8, r, "HybridFlow")])
        for r in range(8)
    }
    for ranks in ([0, 2], [1, 3], [4, 6], [5, 7]):
        out = np.hstack([x[:, :4] @ weights_of[r] for r in ranks])
        np.testing.assert_allclose(out, x[:, :4] @ weights)


# --- Table 2 of the paper --------------------------------------------------


@pytest.mark.parametrize("actor", SHAPES, ids=str)
def test_counted_shares_are_the_formulas_of_table_2(actor):
    tp, n = actor.t * actor.p, actor.p * actor.t * actor.d
    tgpg = actor.tg * actor.pg
    volume = {
        "DS-Chat": Fraction(n - 1, n),
        "HybridFlow-V": Fraction(tp - 1, tp),
        "HybridFlow": Fraction(tp - tgpg, tgpg * tp),
    }
    peak = {
        "DS-Chat": 1.0,
        "HybridFlow-V": 1.0,
        "HybridFlow": 1 / tgpg,
    }
    spare = {"DS-Chat": 1 / n, "HybridFlow-V": 1 / tp, "HybridFlow": 0.0}
    for scheme in page.SCHEMES:
        got = transition(actor, scheme)
        np.testing.assert_allclose(got["received"], float(volume[scheme]))
        np.testing.assert_allclose(got["peak"], peak[scheme])
        assert set(got["redundant"]) <= {0.0, spare[scheme]}
    assert volume["HybridFlow"] == Fraction(actor.dg - 1, tp)


@pytest.mark.parametrize("actor", SHAPES, ids=str)
def test_no_grouping_needs_less_than_the_strided_one(actor):
    """Every rank must end with 1 / (p_g t_g) and began with 1 / (p t)."""
    floor = 1 / (actor.pg * actor.tg) - 1 / (actor.p * actor.t)
    paper = transition(actor, "HybridFlow")
    np.testing.assert_allclose(paper["received"], floor, atol=1e-12)
    np.testing.assert_allclose(paper["least"], paper["received"])
    assert (transition(actor, "HybridFlow-V")["least"] >= floor - 1e-12).all()


def test_ownership_tiles_the_model():
    for scheme in page.SCHEMES:
        held = [owned(FIGURE_8, r, scheme) for r in range(8)]
        copies = 1 if scheme == "DS-Chat" else 2
        assert sorted(itertools.chain(*held)) == sorted(copies * list(range(8)))
        assert all(len(needed(FIGURE_8, r, scheme)) == 4 for r in range(8))


def test_claim_two_savings_of_figure_8():
    """0.75 by gathering all; 0.375 if only the missing were sent; 0.25."""
    vanilla = transition(FIGURE_8, "HybridFlow-V")
    assert vanilla["received"].tolist() == [0.75] * 8
    assert vanilla["least"].tolist() == [0.25, 0.5, 0.5, 0.25] * 2
    assert vanilla["least"].mean() == 0.375
    assert vanilla["peak"].max() == 1.0
    resident = [0.5 + x for x in vanilla["redundant"][:4]]
    assert resident == [0.5, 0.75, 0.75, 0.5]
    paper = transition(FIGURE_8, "HybridFlow")
    assert paper["received"].tolist() == [0.25] * 8
    assert paper["peak"].tolist() == [0.5] * 8


@pytest.mark.parametrize("p, t", [(2, 4), (8, 8), (4, 2)])
def test_claim_folding_only_the_pipeline_overlaps_without_strides(p, t):
    """t_g = t, p_g = 1: consecutive groups already hold their own cell."""
    got = transition(Actor(p, t, 2, 1, t), "HybridFlow-V")
    assert not got["redundant"].any()
    same = transition(Actor(p, t, 2, p, t), "HybridFlow")
    assert not same["received"].any()


def test_claim_the_saving_grows_as_the_generation_tp_stays_near():
    shares = {
        tg: transition(Actor(1, 8, 1, 1, tg), "HybridFlow")["received"][0]
        for tg in (1, 2, 4, 8)
    }
    assert shares == {1: 0.875, 2: 0.375, 4: 0.125, 8: 0.0}
    assert transition(Actor(1, 16, 1, 1, 8), "HybridFlow")["received"][0] == 0.0625


def test_claim_training_tp_8_to_generation_tp_2():
    actor = Actor(1, 8, 2, 1, 2)
    assert actor.dg == 4 and actor.dg * actor.d == 8
    groups = generation_groups(actor, strided=True)
    assert groups[:4] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert groups[4] == [8, 12]
    micro = [gather_group(actor, r, "HybridFlow") for r in (0, 4)]
    assert micro == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert transition(actor, "HybridFlow")["received"].max() == 0.375


def test_claim_only_ds_chat_depends_on_the_data_parallel_size():
    for scheme in page.SCHEMES:
        shares = [transition(Actor(1, 4, d, 1, 2), scheme)["received"][0]
                  for d in (1, 2, 4)]  # fmt: skip
        assert (len(set(shares)) > 1) == (scheme == "DS-Chat")


@pytest.mark.parametrize("sizes", [(1, 4, 1, 1, 3), (1, 2, 1, 1, 4), (2, 4, 1, 4, 4)])
def test_sizes_that_do_not_nest_are_refused(sizes):
    with pytest.raises(ValueError, match="must divide"):
        Actor(*sizes)


# --- The weight sync of a 7B model -----------------------------------------


def test_claim_bytes_at_a_sync():
    p = 7_615_616_512  # the model's published parameter count
    embedding = 152_064 * 3584
    bucket = 2 * 1024**3
    want = {
        "paper: Megatron TP 4, strided": (2 * p / 4, 2 * p / 4),
        "DS-Chat as in Table 2: ZeRO-3, bf16": (2 * p * 7 / 8,) * 2,
        "verl now: Megatron TP 4, bf16": (
            2 * p * 3 / 4,
            p + bucket + 2 * embedding,
        ),
        "verl now: FSDP over 8, fp32 shards": (
            4 * p * 7 / 8,
            p + bucket + 4 * embedding,
        ),
    }
    assert list(page.synced()) == list(want)
    for name, pair in want.items():
        assert page.synced()[name] == pytest.approx([x / 1e9 for x in pair])
    assert 4 * embedding > bucket > 2 * embedding
    ratio = page.synced()["verl now: FSDP over 8, fp32 shards"][0]
    assert ratio / page.synced()["paper: Megatron TP 4, strided"][0] == pytest.approx(7)


# --- The mapping -----------------------------------------------------------


def partitions_by_labels(models):
    """Independent: every labelling, made canonical."""
    found = set()
    for labels in itertools.product(range(len(models)), repeat=len(models)):
        groups = {}
        for model, tag in zip(models, labels, strict=True):
            groups.setdefault(tag, []).append(model)
        found.add(frozenset(frozenset(g) for g in groups.values()))
    return found


def test_claim_bell_numbers():
    for k, bell in enumerate((1, 1, 2, 5, 15, 52, 203)):
        models = "abcdef"[:k]
        got = list(placements(models))
        assert len(got) == bell
        as_sets = {frozenset(frozenset(g) for g in p) for p in got}
        assert len(as_sets) == bell
        if k:
            assert as_sets == partitions_by_labels(models)


def test_allocations_against_a_product():
    for least in ([1], [1, 1], [2, 1], [1, 2, 3], [1, 1, 1, 1]):
        got = list(allocations(9, least))
        want = [
            units
            for units in itertools.product(range(10), repeat=len(least))
            if sum(units) == 9
            and all(u >= m for u, m in zip(units, least, strict=True))
        ]
        assert sorted(got) == sorted(want)
    assert list(allocations(2, [2, 1])) == []
    assert list(allocations(1, [2])) == []


def test_claim_worst_case_is_the_paper_formula():
    """(N - 1)! / ((k - 1)! (N - k)!), all apart, each at least one GPU."""
    for n, k in ((8, 4), (12, 3), (10, 5)):
        count = sum(1 for _ in allocations(n, [1] * k))
        formula = factorial(n - 1) // (factorial(k - 1) * factorial(n - k))
        assert count == formula == page.worst_case(n, k) == comb(n - 1, k - 1)
    assert page.worst_case(128, 4) == 333_375
    assert page.worst_case(16, 4) == 455


def test_time_adds_inside_a_group_and_takes_the_slowest_between():
    stages = [{"a": (8.0, 1.0)}, {"a": (4.0, 0.0), "b": (6.0, 2.0)}]
    together = iteration_time([["a", "b"]], [2], stages)
    assert together == pytest.approx((4 + 1) + (2 + 3 + 2))
    apart = iteration_time([["a"], ["b"]], [2, 1], stages)
    assert apart == pytest.approx((4 + 1) + max(2, 6 + 2))
    assert iteration_time([["b"], ["a"]], [1, 2], stages) == apart


@pytest.mark.parametrize("machines", [2, 5, 9])
def test_search_is_the_minimum_over_labels(machines):
    """Independent: units per label, loops, own cost."""
    best, _ = page.search(machines)
    lowest = np.inf
    for groups in partitions_by_labels(page.MODELS):
        groups = [sorted(g) for g in groups]
        memory = [sum(page.MEMORY[m] for m in g) for g in groups]
        for units in itertools.product(range(1, machines + 1), repeat=len(groups)):
            fits = all(100 * u >= x for u, x in zip(units, memory, strict=True))
            if sum(units) != machines or not fits:
                continue
            where = {m: u for g, u in zip(groups, units, strict=True) for m in g}
            time = 0.0
            for stage in page.PPO:
                busy = [0.0] * len(groups)
                for m, (work, floor) in stage.items():
                    i = next(i for i, g in enumerate(groups) if m in g)
                    busy[i] += work / where[m] + floor
                time += max(busy)
            lowest = min(lowest, time)
    assert min(t for t, _ in best.values()) == pytest.approx(lowest)


def test_claim_colocation_wins_small_and_loses_large():
    def winner(machines):
        best, _ = page.search(machines)
        return min(best, key=lambda name: best[name][0])

    assert [winner(n) for n in (2, 4, 8)] == [page.COLOCATE] * 3
    assert winner(16) == winner(32) == "actor+ref+reward | critic"
    both = [page.search(n)[0] for n in (16, 32)]
    faster = [b[page.STANDALONE][0] < b[page.COLOCATE][0] for b in both]
    assert faster == [False, True]
    # Without floors, splitting never pays: GPUs idle in some stage.
    flat = [{m: (w, 0.0) for m, (w, _) in s.items()} for s in page.PPO]
    together = iteration_time([page.MODELS], [32], flat)
    for placement in placements(page.MODELS):
        least = [page.least_units(g) for g in placement]
        for units in allocations(32, least):
            assert iteration_time(placement, units, flat) >= together - 1e-9


# --- Products --------------------------------------------------------------


def cells(table):
    return [
        [c.strip() for c in line.replace("\\|", "/").split("|")[1:-1]]
        for line in table.splitlines()[2:]
    ]


def test_table_of_volumes():
    for actor, row in zip(page.SHAPES, cells(page.table_volume()), strict=True):
        tp, tgpg = actor.p * actor.t, actor.pg * actor.tg
        n = tp * actor.d
        want = [(n - 1) / n, (tp - 1) / tp, (tp - tgpg) / (tp * tgpg)]
        assert [float(x) for x in row[1:4]] == pytest.approx(want, abs=5e-5)
        assert float(row[5]) == pytest.approx(1 / tgpg)
        assert row[6].endswith(f" of {n}")
        start = f"{actor.p}-{actor.t}-{actor.d} → {actor.pg}-{actor.tg}-"
        assert row[0] == f"{start}{actor.dg}-{actor.d}"
    table = cells(page.table_volume())
    assert [row[0].split(" → ")[0] for row in table] == [
        "1-4-2",
        "1-8-2",
        "1-8-2",
        "2-4-2",
        "8-8-2",
    ]
    assert [row[0].split(" → ")[1][:3] for row in table] == [
        "1-2",
        "1-2",
        "1-8",
        "1-2",
        "1-8",
    ]
    first = table[0]
    assert first[4] == "0.375" and first[6] == "4 of 8"


def test_table_of_the_sync():
    for row in cells(page.table_sync()):
        got = page.synced()[row[0]]
        assert [float(x) for x in row[1:]] == pytest.approx(got, abs=0.051)


def test_table_of_mappings():
    for row in cells(page.table_mapping()):
        best, tried = page.search(int(row[0]))
        assert row[1] == f"{tried:,}"
        name = row[2].replace("/", "|")
        assert float(row[4]) == pytest.approx(best[name][0], abs=0.5)
        n = int(row[0])
        work = sum(w for stage in page.PPO for w, _ in stage.values())
        floors = sum(f for stage in page.PPO for _, f in stage.values())
        assert float(row[5]) == pytest.approx(work / n + floors, abs=0.5)
        if n == 4:  # one machine each: the stages by hand
            apart = (320 + 20) + (20 + 5) + (120 + 20)
            assert float(row[6]) == apart
        assert float(row[4]) <= float(row[5])
        assert sum(int(x) for x in row[3].split("+")) == int(row[0])
    assert cells(page.table_mapping())[0][6] == "does not fit"


def test_table_of_mappings_prints_these_costs():
    """16 machines, 10 for actor, reference and reward, 6 for the critic."""
    row = cells(page.table_mapping())[3]
    assert row[2:4] == ["actor+ref+reward / critic", "10 + 6"]
    generate = 320 / 10 + 20
    score = max((20 + 20) / 10 + 5 + 5, 20 / 6 + 5)
    update = max(120 / 10 + 20, 120 / 6 + 20)
    assert float(row[4]) == pytest.approx(generate + score + update, abs=0.5)
    all_on_one = (320 + 3 * 20 + 2 * 120) / 16 + 20 + 3 * 5 + 2 * 20
    assert float(row[5]) == pytest.approx(all_on_one, abs=0.5)
    assert cells(page.table_mapping())[4][4:] == ["78", "94", "84"]


def test_figure_shows_the_counted_shards():
    figure = page.figure_reshard()
    for axes, scheme in zip(figure.axes, page.SCHEMES[1:], strict=True):
        counted = transition(Actor(1, 4, 1, 1, 2), scheme)
        words = {}
        for text in axes.texts:
            quarter, gpu = text.xy
            words.setdefault(int(gpu) - 1, {})[int(quarter)] = text.get_text()
        for rank, row in words.items():
            kinds = list(row.values())
            got = kinds.count("received") + kinds.count("dropped")
            assert got / 4 == counted["received"][rank]
            assert len(kinds) / 4 == counted["peak"][rank]
            unused = kinds.count("own,\nunused")
            assert unused / 4 == counted["redundant"][rank]
            assert row[rank + 1].startswith("own")
            used = sorted(q for q, w in row.items() if w in ("own, used", "received"))
            ticks = axes.get_yticklabels()[rank].get_text()
            assert ticks == f"GPU {rank + 1}\nneeds {used[0]}-{used[1]}"
    assert "GPUs 2 and 3" in figure.axes[0].get_title(loc="left") + (
        figure.axes[0].get_title()
    )
    assert "quarter" in figure.axes[1].get_xlabel()
