"""Pulls by a stepping clock, caches by exhaustive search, the claims."""

import itertools
import math
from collections import OrderedDict
from dataclasses import replace
from functools import cache
from itertools import combinations

import numpy as np
import pytest

from snippets.rollouts import gui_agent_images as code
from snippets.rollouts.gui_agent_images import (
    FILE,
    LAYERS,
    POLICIES,
    REUSE,
    Disk,
    Policy,
    Setup,
    Step,
    arrivals,
    estimates,
)

OTHER = range(100, 105)
"""Seeds that the page did not use."""


def spread(values, digits=0):
    """What a table prints: mean and sample standard deviation."""
    middle = sum(values) / len(values)
    square = sum((x - middle) ** 2 for x in values) / (len(values) - 1)
    return f"{middle:,.{digits}f} ± {square**0.5:,.{digits}f}"


A, B, C, D = (("own", i) for i in range(4))


# --- Links ----------------------------------------------------------------


def stepped(pulls, link, registry):
    """Discrete events: every busy node gets an equal, capped share."""
    left = [list(sizes) for sizes in pulls]
    done, clock = [[] for _ in pulls], 0.0
    while any(left):
        busy = [n for n, sizes in enumerate(left) if sizes]
        rate = min(link, registry / len(busy))
        pause = min(left[n][0] for n in busy) / rate
        clock += pause
        for n in busy:
            left[n][0] -= pause * rate
            if left[n][0] < 1e-9:
                left[n].pop(0)
                done[n].append(clock)
    return done


@pytest.mark.parametrize("registry", [0.1, 0.7, 100.0])
def test_arrivals_are_those_of_a_stepping_clock(registry):
    rng = np.random.default_rng(0)
    counts = (3, 1, 0, 5, 2, 0, 4)
    pulls = [rng.uniform(0.1, 4, n).tolist() for n in counts]
    found = arrivals(pulls, 0.25, registry)
    for a, b in zip(found, stepped(pulls, 0.25, registry), strict=True):
        assert np.allclose(a, b)


def test_a_herd_of_n_waits_n_times_and_a_lone_node_for_its_link():
    herd = arrivals([[5.0]] * 8, link=1.0, registry=2.0)
    assert np.allclose(herd, 8 * 5 / 2)
    assert arrivals([[5.0], []], 1.0, 2.0)[0] == pytest.approx([5.0])
    assert [len(x) for x in arrivals([[], []], 1.0, 2.0)] == [0, 0]


# --- Disks and placement --------------------------------------------------


def test_disk_drops_the_least_worth_but_not_what_is_in_use():
    worth = {A: 1, B: 2, C: 3, D: 4}
    disk = Disk(4.0, worth.__getitem__)
    assert disk.load({A: 2.0, B: 2.0}, set()) == [A, B]
    assert disk.load({B: 2.0}, set()) == []
    assert disk.load({C: 2.0}, set()) == [C]
    assert set(disk.held) == {B, C}
    assert disk.load({D: 2.0}, {B}) == [D]  # C goes, though worth more
    assert set(disk.held) == {B, D}
    with pytest.raises(ValueError, match="exceed"):
        disk.load({A: 3.0}, {B})


def test_place_by_hand():
    disks = [Disk(9.0, lambda x: 0.0) for _ in range(3)]
    disks[1].held = {A: 1.0, C: 4.0}
    disks[2].held = {A: 1.0, B: 2.0}
    image = {A: 1.0, B: 2.0}

    def put(how, load, members=2, seats=4):
        nodes = code.place(image, members, load, seats, disks, how)
        return nodes, load

    assert put("scatter", [1, 0, 0]) == ([1, 2], [1, 1, 1])
    assert put("scatter", [0, 0, 0], 4)[1] == [2, 1, 1]
    assert put("together", [1, 0, 2]) == ([1, 1], [1, 2, 2])
    assert put("affinity", [0, 0, 2]) == ([2, 2], [0, 0, 4])
    assert put("affinity", [0, 0, 3]) == ([1, 1], [0, 2, 3])  # no room on 2
    assert put("affinity", [1, 4, 3]) == ([0, 0], [3, 4, 3])
    disks[0].held = {B: 2.0}
    disks[2].held = {A: 1.0}
    assert put("affinity", [2, 0, 1]) == ([0, 0], [4, 0, 1])  # bytes count
    for disk in disks:
        disk.held = {A: 1.0}
    assert put("affinity", [2, 1, 2]) == ([1, 1], [2, 3, 2])  # a tie


def one_step():
    """Two nodes miss A and B, one of them C, which node 2 has had."""
    return Step(
        images=[{A: 2.0, B: 1.0}, {C: 3.0}],
        nodes=[[0, 1], [0, 2]],
        pulled=[[(A, 2.0), (B, 1.0), (C, 3.0)], [(A, 2.0), (B, 1.0)], []],
        wanted=12.0,
        old={C},
        episodes=np.array([[10.0, 20.0], [30.0, 5.0]]),
    )


def test_egress_and_waits_by_hand():
    s = Setup(nodes=3, link=1.0, registry=1.0, train=4.0)
    step = one_step()
    assert code.egress(step, LAYERS) == 9
    assert code.egress(step, replace(LAYERS, peers=True)) == 3
    assert code.egress(step, replace(LAYERS, touched=0.5)) == 4.5
    wait, end = code.waits(step, s, LAYERS)  # half a GB/s each until 6 s
    assert wait.tolist() == [[6, 6], [9, 0]] and end == 9
    wait, _ = code.waits(step, s, replace(LAYERS, peers=True))
    assert wait.tolist() == [[3, 3], [6, 0]]  # only the links limit
    half, _ = code.waits(step, s, replace(LAYERS, touched=0.5))
    assert half.tolist() == [[3, 3], [4.5, 0]]


def test_prefetch_runs_while_the_step_before_does():
    s = Setup(nodes=3, link=1.0, registry=1.0, train=4.0)
    plain = code.replay([one_step()] * 2, s, LAYERS)
    assert [t for _, t in plain] == [39.0, 39.0]  # 9 s of pull + 30
    first, second = code.replay([one_step()] * 2, s, Policy(ahead=True))
    assert first[1] == 39.0
    # free at 9, next step at 39 + 4: a lead of 34 s for 9 s of pulls
    assert second[0].max() == 0 and second[1] == 30.0
    slow = replace(s, registry=0.1)  # 60 s for node 1, 90 s for node 0
    runs = code.replay([one_step()] * 3, slow, Policy(ahead=True))
    assert [t for _, t in runs] == pytest.approx([120.0, 86.0, 86.0])
    # 120 + 4 - 90 = 34 of lead: 90 - 34 + 30; then 86 + 4 - 56 = 34 again


# --- Images ---------------------------------------------------------------


def test_world_has_the_sizes_and_popularity_it_says():
    s = replace(Setup(), steps=60)
    w = code.world(s, np.random.default_rng(0), True)
    images = [image for row in w.order for image in row]
    own = np.array([z for i in images for x, z in i.items() if x[0] == "own"])
    assert len(own) == 60 * 32 == len({x for i in images for x in i} - shared())
    assert np.median(own) == pytest.approx(0.5, rel=0.06)
    assert own.mean() == pytest.approx(0.5 * math.exp(0.5), rel=0.1)
    assert np.median(w.episodes) == pytest.approx(240, rel=0.02)
    assert np.log(w.episodes).std() == pytest.approx(0.5, rel=0.02)
    first = np.mean([("app", 0) in i for i in images])
    assert first == pytest.approx(1 / sum(1 / k for k in range(1, 41)), rel=0.1)
    files = code.world(s, np.random.default_rng(0), False).order
    sums = [sum(i.values()) for i in images]
    assert [sum(i.values()) for row in files for i in row] == pytest.approx(sums)
    assert all(len(i) == 1 for row in files for i in row)


def shared():
    return {("base", i) for i in range(4)} | {("app", i) for i in range(40)}


def test_plan_keeps_lru_and_leaves_every_image_on_its_node():
    """An independent LRU of whole files, node by node."""
    s = replace(Setup(), images=40, disk=120.0, steps=12)
    steps = code.plan(s, FILE, 3)
    disks = [OrderedDict() for _ in range(s.nodes)]
    for k in steps:
        assert k.old == {x for disk in disks for x in disk}
        for n, disk in enumerate(disks):
            want = OrderedDict()
            for image, nodes in zip(k.images, k.nodes, strict=True):
                if n in nodes:
                    want |= image
            assert [x for x in want if x not in disk] == [x for x, _ in k.pulled[n]]
            for x in sorted(want):  # ties within a step: by name
                disk.pop(x, None)
                disk[x] = want[x]
            while sum(disk.values()) > s.disk:
                disk.popitem(last=False)
    assert sum(len(n) for k in steps for n in k.pulled) > 300


def test_measure_is_the_mean_of_the_steps_after_the_warm_up():
    s = replace(Setup(), steps=6, warmup=2)
    found = code.measure(s, LAYERS, 1)
    steps = code.plan(s, LAYERS, 1)[2:]
    wait = [code.waits(k, s, LAYERS)[0] for k in steps]
    longest = [(a + k.episodes).max() for a, k in zip(wait, steps, strict=True)]
    bare = np.mean([k.episodes.max() for k in steps])
    assert found["added"] == pytest.approx(np.mean(longest) - bare)
    assert found["last"] == pytest.approx(np.mean([a.max() for a in wait]))
    assert found["bare"] == pytest.approx(bare) and found["ready"] == 0
    busy = np.mean([k.episodes for k in steps])
    mean = np.mean(wait)
    assert found["seats"] == pytest.approx(mean / (mean + busy))
    gone = sum(z for k in steps for n in k.pulled for _, z in n)
    assert found["egress"] == pytest.approx(gone / 4)
    assert found["found"] == pytest.approx(1 - gone / sum(k.wanted for k in steps))


def test_estimates_are_over_ten_seeds():
    s = replace(Setup(), steps=5, warmup=3)
    each = [code.measure(s, LAYERS, seed)["added"] for seed in range(10)]
    assert estimates(s, LAYERS)["added"].values == tuple(each)


# --- Scans ----------------------------------------------------------------


def lru_loop(order, fit, skip):
    held, hit = OrderedDict(), 0
    for t, x in enumerate(order):
        hit += x in held and t >= skip
        held.pop(x, None)
        held[x] = None
        if len(held) > fit:
            held.popitem(last=False)
    return hit / (len(order) - skip)


def best(order, fit, must=False):
    """Most hits of any policy; `must`: it keeps what it has fetched."""

    @cache
    def go(t, held):
        if t == len(order):
            return 0
        pool = held | {order[t]}
        if len(pool) <= fit:
            return (order[t] in held) + go(t + 1, pool)
        keep = [frozenset(c) for c in combinations(sorted(pool), fit)]
        keep = [c for c in keep if order[t] in c or not must]
        return (order[t] in held) + max(go(t + 1, k) for k in keep)

    return go(0, frozenset())


def test_lru_formula_is_that_of_long_epochs():
    rng = np.random.default_rng(1)
    order = code.shuffled(1500, 5, rng)
    for share in (0.1, 0.5, 0.9):
        found = lru_loop(order, round(share * 1500), 1500)
        assert code.lru_hits(share) == pytest.approx(found, abs=0.015)
    u, v = rng.uniform(size=(2, 400_000))
    found = ((1 - u) + u * v <= 0.5).mean()  # distinct images in between
    assert code.lru_hits(0.5) == pytest.approx(found, abs=0.003)
    assert code.lru_hits(1.0) == 1 and code.lru_hits(0.0) == 0


def test_hits_follow_the_rules():
    order = code.shuffled(60, 4, np.random.default_rng(2))
    for fit in (5, 30, 59, 60):
        assert code.hits(order, fit, "LRU", 60) == lru_loop(order, fit, 60)
        assert code.hits(order, fit, "LFU", 60) == lru_loop(order, fit, 60)
    order = [0, 0, 1, 2, 0, 1, 2, 2]
    assert code.hits(order, 2, "LFU", 0) == 3 / 8  # 0 0' 1 2 0' 1 2 2'
    assert code.hits(order, 2, "LRU", 0) == 2 / 8


def test_claim_no_rule_beats_the_share_that_fits():
    """Every reuse spans the border of two epochs, where `fit` are held."""
    for seed in range(2):
        order = code.shuffled(5, 3, np.random.default_rng(seed))
        for fit in (1, 3):
            most = best(tuple(order), fit)
            assert most <= 2 * fit
            found = code.hits(order, fit, "farthest next use", 5) * 10
            assert found <= most
    for seed in (0, 100):
        for share in (0.25, 0.5, 0.75):
            found = code.scans(seed)["shuffled", share]
            assert found[2] == pytest.approx(share, abs=0.005)
            assert found[0] < share and found[1] == found[0]
            assert found[0] == pytest.approx(code.lru_hits(share), abs=0.05)


def test_belady_is_optimal_on_popular_draws():
    for seed in range(5):
        order = np.random.default_rng(seed).integers(0, 4, 12).tolist()
        found = code.hits(order, 2, "farthest next use", 0) * 12
        assert found == pytest.approx(best(tuple(order), 2, must=True))


# --- Groups, batches ------------------------------------------------------


def test_claim_a_failure_as_reward_0_teaches():
    found = code.group_advantages([1.0] * 7 + [0.0])
    spread = math.sqrt((7 * 0.125**2 + 0.875**2) / 7)
    assert found[:7] == pytest.approx([0.125 / spread] * 7)
    assert found[:7] == pytest.approx([0.354] * 7, abs=0.001)
    assert found[7] == pytest.approx(-2.475, abs=0.001)
    left_out = code.group_advantages([1.0] * 7 + [math.nan])
    assert np.all(left_out[:7] == 0) and np.isnan(left_out[7])
    assert np.all(code.group_advantages([0.0] * 8) == 0)


def test_claim_masking_the_group_loses_15_percent():
    """Chance that one of 8 members fails at 2 %, by enumeration."""
    lost = 0.0
    for fails in itertools.product((True, False), repeat=8):
        if any(fails):
            lost += math.prod(0.02 if f else 0.98 for f in fails)
    assert lost == pytest.approx(0.15, abs=0.005)


def test_claim_design_effect_of_a_batch_grouped_by_image():
    assert code.design_effect(8, 0.1) == pytest.approx(1.7)
    assert code.design_effect(1, 0.9) == 1
    rng = np.random.default_rng(0)
    image = rng.normal(size=(40_000, 4, 1)) * math.sqrt(0.1)
    prompt = rng.normal(size=(40_000, 4, 8)) * math.sqrt(0.9)
    found = (image + prompt).mean((1, 2)).var() * 32
    assert code.design_effect(8, 0.1) == pytest.approx(found, rel=0.03)


def test_claim_a_time_out_drops_whole_groups_with_large_images():
    for seeds in (range(10), OTHER):
        p, each = POLICIES["layers, together"], []
        for seed in seeds:
            found = code.timed_out(Setup(), p, 40.0, seed)
            assert found["whole"] == found["hit"] == found["dropped"]
            assert found["lost"] > found["kept"] + 0.5
            each.append([found[k] for k in ("dropped", "kept", "lost")])
        dropped, kept, lost = np.mean(each, 0)
        assert dropped == pytest.approx(0.14, abs=0.03)
        assert kept == pytest.approx(6.67, abs=0.05)
        assert lost == pytest.approx(7.75, abs=0.15)
        if seeds == range(10):
            shown = [
                spread([100 * x[0] for x in each]),
                spread([x[2] for x in each], 1),
            ]
            assert shown == ["13 ± 3", "7.8 ± 0.3"]
    none = code.timed_out(Setup(), POLICIES["layers, together"], 1e9)
    assert none["dropped"] == 0 and math.isnan(none["lost"])


def test_timed_out_counts_members_and_groups(monkeypatch):
    s = Setup(steps=1, warmup=0, prompts=3, group=2)
    late = np.array([[9.0, 1.0], [9.0, 9.0], [5.0, 0.0]])
    monkeypatch.setattr(code, "replay", lambda *_: [(late, 0.0)])
    found = code.timed_out(s, LAYERS, 5.0)
    sizes = [sum(i.values()) for i in code.plan(s, LAYERS)[0].images]
    assert found["dropped"] == 1 / 2
    assert (found["hit"], found["whole"]) == (2 / 3, 1 / 3)
    assert found["lost"] == pytest.approx((sizes[0] + 2 * sizes[1]) / 3)
    assert found["kept"] == pytest.approx((sizes[0] + 2 * sizes[2]) / 3)


# --- Claims of the page ---------------------------------------------------


def found(name, key, seeds=range(10), **kw):
    """One measure of a policy, a value a seed."""
    s = replace(Setup(), **kw)
    return np.array([code.measure(s, POLICIES[name], seed)[key] for seed in seeds])


def test_claim_waits_are_bytes_over_bandwidth():
    for name in ("one file, scatter", "layers, scatter"):
        for seeds in (range(10), OTHER):
            last, sent = (found(name, key, seeds) for key in ("last", "egress"))
            assert last == pytest.approx(sent / 1.25, rel=0.02)


def test_claim_together_divides_the_bytes_of_files_by_the_group():
    far, near = (found(f"one file, {x}", "egress", OTHER) for x in WAYS)
    assert far == pytest.approx(8 * near)
    layers = [found(f"layers, {x}", "egress", OTHER).mean() for x in WAYS]
    assert far.mean() / layers[0] == pytest.approx(7, abs=0.3)
    assert near.mean() / layers[1] == pytest.approx(4, abs=0.3)
    half = found("layers, affinity", "egress", OTHER).mean() / layers[1]
    assert half == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("seeds", [range(10), OTHER])
def test_claim_the_order_of_the_remedies(seeds):
    """In every draw, and the rounded means of the short answer."""
    names = ("one file, scatter", "one file, together", "layers, together")
    naive, near, layers = (found(name, "added", seeds) for name in names)
    assert (naive > 6 * near).all() and (near > 3 * layers).all()
    assert naive.mean() == pytest.approx(1085, abs=30)
    assert near.mean() == pytest.approx(135, abs=8)
    assert layers.mean() == pytest.approx(24.5, abs=4)
    share = found(names[0], "share", seeds)
    assert 0.45 < share.min() and share.max() < 0.6
    assert (layers < found(names[2], "last", seeds) * 0.65).all()
    swarm = found("… copied between nodes", "added", seeds)
    assert ((1.7 < swarm / near) & (swarm / near < 2.6)).all()
    half = found("… of which 50 % is touched", "added", seeds)
    assert (half > 350).all()
    for name in ("one file, together, prefetch", "layers, scatter, prefetch"):
        assert (found(name, "added", seeds, disk=300.0) < 1e-9).all()


WAYS = ("scatter", "together")


def test_claim_disk_space_does_not_help_where_nothing_returns():
    for name in ("one file, together", "layers, together"):
        for seed in (0, 100):
            each = [
                found(name, "added", [seed], disk=disk)[0]
                for disk in (120.0, 250.0, 1000.0)
            ]
            assert each == pytest.approx([each[0]] * 3, abs=1)


def test_claim_the_setting():
    s = Setup()
    assert (s.nodes, s.prompts, s.group, s.bases, s.apps) == (16, 32, 8, 4, 40)
    assert (s.link, s.registry, s.disk, s.train) == (0.25, 1.25, 250, 120)
    assert (s.steps - s.warmup, s.warmup) == (12, 4)
    assert replace(s, images=64, steps=24, warmup=10) == REUSE
    bare = found("layers, scatter", "bare")
    assert spread(bare.tolist()) == "1,025 ± 44"
    w = code.world(Setup(), np.random.default_rng(0), False)
    sizes = [z for row in w.order for image in row for z in image.values()]
    assert np.mean(sizes) == pytest.approx(6.7, abs=0.1)
    mean = 240 * math.exp(0.5**2 / 2)
    assert mean == pytest.approx(272, abs=1)
    assert w.episodes.mean() == pytest.approx(mean, rel=0.02)
    assert 256 / (bare.mean() + 120) * 60 == pytest.approx(13.4, abs=0.05)


@pytest.mark.parametrize("seeds", [range(10), OTHER])
def test_claim_a_higher_hit_rate_is_no_shorter_wait(seeds):
    waits, added = [], []
    for seed in seeds:
        far, near = (code.measure(REUSE, replace(FILE, place=x), seed) for x in WAYS)
        assert far["ready"] > near["ready"] + 0.15
        assert far["found"] > near["found"]
        waits.append(far["mean"] - near["mean"])
        added.append(far["added"] - near["added"])
        apart, both = (
            code.measure(REUSE, replace(LAYERS, place=x), seed) for x in WAYS
        )
        assert apart["mean"] < both["mean"]  # every node has every image
    assert np.mean(waits) > 1 and np.mean(added) > 10
    assert sum(x > 0 for x in added) >= 0.8 * len(added)
    if seeds == range(10):
        assert sum(x > 0 for x in added) == 9
    plans = code.plan(REUSE, LAYERS, 0)
    every = dict(pair for k in plans for n in k.pulled for pair in n)
    assert sum(every.values()) < REUSE.disk


def test_claim_the_first_step_pays_for_the_shared_layers():
    first, later = [], []
    for seed in range(10):
        steps = code.plan(Setup(), LAYERS, seed)
        first.append(code.egress(steps[0], LAYERS))
        later.append(np.mean([code.egress(k, LAYERS) for k in steps[4:]]))
    assert spread(first) == "784 ± 65"
    assert np.mean(first) / np.mean(later) == pytest.approx(3.25, abs=0.1)
    for seed in OTHER:
        steps = code.plan(Setup(), LAYERS, seed)
        assert code.egress(steps[0], LAYERS) > 2 * code.egress(steps[5], LAYERS)


def test_claim_affinity_loads_one_node_half_more_than_the_mean():
    p = POLICIES["layers, affinity"]
    top = [np.bincount(sum(k.nodes, [])).max() for k in code.plan(Setup(), p, 0)]
    assert np.mean(top) / 16 == pytest.approx(1.5, abs=0.04)
    even = code.plan(Setup(), POLICIES["layers, together"], 0)
    assert {np.bincount(sum(k.nodes, [])).max() for k in even} == {16}


def test_claim_prefetch_is_bounded_by_throughput():
    """One file, scatter: a step cannot be shorter than its pulls."""
    name = "one file, scatter, prefetch"
    for seeds in (range(10), OTHER):
        bare, added, sent = (
            found(name, key, seeds, disk=300.0) for key in ("bare", "added", "egress")
        )
        assert (bare + added + 120).mean() == pytest.approx(
            (sent / 1.25).mean(), rel=0.02
        )
        assert added.min() > 150


def test_claim_prefetch_of_scattered_layers_turns_at_the_steps_rate():
    """242 GB in 1,025 + 120 s are 0.21 GB/s."""
    sent, bare = (found("layers, scatter", key) for key in ("egress", "bare"))
    assert sent.mean() / (bare.mean() + 120) == pytest.approx(0.21, abs=0.005)
    for seeds in (range(10), OTHER):
        for rate, low, high in ((0.15, 300, 800), (0.3, 0, 45), (0.5, 0, 1e-9)):
            got = found("layers, scatter, prefetch", "added", seeds, registry=rate)
            assert (got >= low - 1e-9).all() and (got <= high).all()
    by_rate = dict(zip(code.RATES, code.sweep("scatter", True), strict=True))
    assert by_rate[0.15] > 300 and by_rate[0.3] == 0


def test_claim_prefetch_needs_the_disk_for_two_steps():
    small = replace(Setup(), disk=150.0)
    assert code.measure(small, FILE)["added"] > 0
    with pytest.raises(ValueError, match="exceed"):
        code.measure(small, replace(FILE, ahead=True))


def test_claim_kubernetes_scores_rare_images_low():
    """100 (size * nodes with it / nodes - 23) / (1000 - 23), in MiB."""

    def score(gb, nodes):
        mib = min(max(gb * 1e9 / 2**20 / nodes, 23), 1000)
        return int(100 * (mib - 23) / (1000 - 23))

    assert score(6.7, 100) == 4 and score(6.7, 16) == 38
    assert score(6.7, 1) == 100


def test_claim_a_lone_image_and_the_herd_on_it():
    """24 GB: one node at 1.25 GB/s; 64 nodes from 12.5 GB/s."""
    assert arrivals([[24.0]], 1.25, 12.5)[0][0] == pytest.approx(19.2)
    herd = arrivals([[24.0]] * 64, 1.25, 12.5)
    assert max(t[0] for t in herd) == pytest.approx(122.9, abs=0.05)
    swarm = arrivals([[24.0]] * 64, 1.25, 12.5 * 64)  # 64 copies of each byte
    assert max(t[0] for t in swarm) == pytest.approx(19.2)


# --- Tables and the figure ------------------------------------------------


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_table_policies_shows_what_was_measured():
    rows = [cells(x) for x in code.table_policies().splitlines()[2:]]
    assert [row[0] for row in rows] == list(POLICIES)
    for name, *row in rows:
        each = [code.measure(Setup(), POLICIES[name], seed) for seed in range(10)]
        keys = ("found", "egress", "mean", "last", "added", "share", "seats")
        for cell, key in zip(row, keys, strict=True):
            share = key in ("found", "share", "seats")
            values = [(100 if share else 1) * m[key] for m in each]
            text = spread(values) if max(map(abs, values)) > 1e-9 else "0"
            assert cell == text + " %" * share
    together, apart = rows[4], rows[0]
    assert float(apart[2].split()[0].replace(",", "")) == pytest.approx(1742)
    assert together[2].startswith("218")


def test_policies_are_what_their_names_say():
    for name, p in POLICIES.items():
        words = name.split()
        if "touched" in name:
            assert float(words[words.index("%") - 1]) == 100 * p.touched
            assert p == replace(FILE, touched=p.touched)
            continue
        assert p.touched == 1 and p.ahead == ("prefetch" in name)
        assert p.peers == ("copied" in name) and p.shared == ("layers" in name)
        places = [x for x in ("together", "affinity") if x in name]
        assert p.place == (places or ["scatter"])[0]


def test_table_reuse_shows_what_was_measured():
    rows = [cells(x) for x in code.table_reuse().splitlines()[2:]]
    kinds = [(b, w) for b in (FILE, LAYERS) for w in (*WAYS, "affinity")]
    for row, (base, way) in zip(rows, kinds, strict=True):
        kind = "one file" if base is FILE else "layers"
        assert row[0] == f"{kind}, {way}"
        p = replace(base, place=way)
        each = [code.measure(REUSE, p, seed) for seed in range(10)]
        assert row[1] == spread([100 * m["ready"] for m in each]) + " %"
        assert row[2] == spread([100 * m["found"] for m in each]) + " %"
        assert row[3] == spread([m["egress"] for m in each])
        assert row[4] == spread([m["mean"] for m in each], 1)
        assert row[5] == spread([m["added"] for m in each], 1)


def test_table_scan_against_loops():
    weight = 1 / np.arange(1, 201)
    for line, share in zip(
        code.table_scan().splitlines()[2:], (0.25, 0.5, 0.75), strict=True
    ):
        row = cells(line)
        a = 1 - share
        exact = 100 * (1 - a + a * math.log(a))
        assert row[:2] == [f"{100 * share:.0f} %", f"{exact:.1f} %"]
        shuffled, popular = [], []
        for seed in range(10):
            rng = np.random.default_rng(seed)
            order = [int(i) for _ in range(3) for i in rng.permutation(200)]
            shuffled.append(100 * lru_loop(order, round(200 * share), 200))
            order = rng.choice(200, 600, p=weight / weight.sum()).tolist()
            popular.append(100 * lru_loop(order, round(200 * share), 200))
        assert row[2] == row[3] == spread(shuffled) + " %"
        assert row[4] == f"{100 * share:.0f} ± 0 %"
        assert row[5] == spread(popular) + " %"
        assert 100 * code.scans(9)["popular", share][0] == pytest.approx(popular[9])


def test_figure_plots_minutes_against_the_registry():
    (axes,) = code.figure_prefetch().axes
    assert axes.get_xlabel() == "registry, GB/s"
    assert "min" in axes.get_ylabel()
    curves = iter(axes.lines)
    for how in WAYS:
        for ahead in (False, True):
            x, y = next(curves).get_data()
            assert tuple(x) == code.RATES
            assert np.allclose(y, np.array(code.sweep(how, ahead)) / 60)
