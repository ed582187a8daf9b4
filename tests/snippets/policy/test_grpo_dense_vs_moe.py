"""Dense and MoE under small changes: layer, flips, ratios, claims."""

from statistics import mean, stdev

import numpy as np
import pytest

from snippets.policy import grpo_dense_vs_moe as code

OTHERS = range(100, 110)
"""Seeds that the page does not use."""


def steps(size, experts, top, tokens=4000):
    return [code.step(size, experts, top, tokens, seed) for seed in OTHERS]


def shown(table):
    return [
        [cell.strip() for cell in row.strip("|").split("|")]
        for row in table.splitlines()[2:]
    ]


def assert_row(cells, *columns):
    """Each cell is "mean ± standard deviation" of (values, digits)."""
    for cell, (values, digits) in zip(cells, columns, strict=True):
        values = list(values)
        assert len(values) == 10
        got = cell.split(" ± ")
        assert all(len(x.partition(".")[2]) == digits for x in got)
        want = [mean(values), stdev(values)]
        half = 0.501 * 10.0**-digits
        assert [float(x) for x in got] == pytest.approx(want, abs=half)


def plain_log_policy(w, x, chosen):
    """One input at a time, one expert at a time."""
    out = []
    for row, experts in zip(x, chosen, strict=True):
        score = np.array([w.router[e] @ row for e in experts])
        mix = np.exp(score) / np.exp(score).sum()
        h = row.copy()
        for share, e in zip(mix, experts, strict=True):
            h = h + share * (w.down[e] @ np.tanh(w.up[e] @ row))
        z = w.head @ h
        out.append(z - np.log(np.exp(z).sum()))
    return np.array(out)


def test_layer_against_plain_loops():
    rng = np.random.default_rng(4)
    w, x = code.weights(5, rng), rng.standard_normal((7, code.WIDTH))
    chosen = code.routes(w, x, 2)
    logits = x @ w.router.T
    for row, picked in zip(logits, chosen, strict=True):
        assert set(picked) == set(np.argsort(row)[-2:])
    want = plain_log_policy(w, x, chosen)
    assert code.log_policy(w, x, chosen) == pytest.approx(want)
    other = (chosen + 1) % 5
    want = plain_log_policy(w, x, other)
    assert code.log_policy(w, x, other) == pytest.approx(want)


def test_moved_changes_each_part_by_the_relative_size():
    rng = np.random.default_rng(0)
    w = code.weights(3, rng)
    new = code.moved(w, 0.01, rng)
    for a, b in zip(w, new, strict=True):
        assert np.linalg.norm(b - a) / np.linalg.norm(a) == pytest.approx(0.01)


def test_replayed_and_free_differ_only_where_routes_differ():
    found = code.step(1e-2, 16, 2)
    same = ~found.flipped
    assert found.free[same] == pytest.approx(found.replayed[same])
    assert (found.free[found.flipped] != found.replayed[found.flipped]).all()
    dense = code.step(1e-2, 1, 1)
    assert not dense.flipped.any()
    assert dense.free == pytest.approx(dense.replayed)


def test_ratios_are_of_sampled_tokens():
    # E_old[w] = 1 for tokens sampled from the old policy
    found = code.step(3e-3, 16, 2, 20_000)
    for x in (found.free, found.replayed):
        assert np.exp(x).mean() == pytest.approx(1, abs=0.02)
    assert found.kl_replayed == pytest.approx(-found.replayed.mean(), abs=3e-4)


def test_step_against_plain_loops():
    s = code.start(16, 2, 4000, 7)
    new = code.moved(s.old, 1e-2, np.random.default_rng((7, 1)))
    found = code.step(1e-2, 16, 2, 4000, 7)
    flips = np.flatnonzero(found.flipped)[:3]
    for i in [0, 1, *flips]:
        x = s.x[i : i + 1]
        before, after = (np.argsort(w.router @ x[0])[::-1][:2] for w in (s.old, new))
        assert found.flipped[i] == (set(before) != set(after))
        old, free, kept = (
            plain_log_policy(w, x, [r])[0]
            for w, r in ((s.old, before), (new, after), (new, before))
        )
        token = s.token[i, 0]
        assert found.free[i] == pytest.approx(free[token] - old[token])
        assert found.replayed[i] == pytest.approx(kept[token] - old[token])


def test_tokens_are_sampled_from_the_old_policy():
    s = code.start(16, 2, 20_000, 0)
    seen = np.bincount(s.token[:, 0], minlength=code.VOCAB) / 20_000
    want = np.exp(s.log_old).mean(0)
    assert np.abs(seen - want).max() < 4 * (want.max() / 20_000) ** 0.5


def test_kl_is_from_old_to_new():
    # a large step tells the two directions apart
    s = code.start(16, 2, 20_000, 0)
    found = code.step(0.5, 16, 2, 20_000)
    new = code.moved(s.old, 0.5, np.random.default_rng((0, 1)))
    for chosen, got in (
        (code.routes(new, s.x, 2), found.kl_free),
        (s.before, found.kl_replayed),
    ):
        log_new = code.log_policy(new, s.x, chosen)
        forward = np.sum(np.exp(s.log_old) * (s.log_old - log_new)) / 20_000
        backward = np.sum(np.exp(log_new) * (log_new - s.log_old)) / 20_000
        assert got == pytest.approx(forward)
        assert abs(forward - backward) > 0.01


def test_jump_at_a_tie_is_the_gate_times_the_distance_of_the_experts():
    rng = np.random.default_rng(7)
    w, x = code.weights(3, rng), rng.standard_normal((1, code.WIDTH))
    # experts 1 and 2 tie behind expert 0
    router = w.router.copy()
    router[0] = router[1] + 0.1 * x[0] / (x[0] @ x[0])
    router[2] = router[1]
    # the head reads the hidden state: logits differ by the jump
    w = w._replace(router=router, head=np.eye(code.WIDTH))
    kept, swapped = (code.log_policy(w, x, np.array([[0, k]])) for k in (1, 2))
    score = router @ x[0]
    gate = np.exp(score[1]) / (np.exp(score[0]) + np.exp(score[1]))
    expert = [w.down[k] @ np.tanh(w.up[k] @ x[0]) for k in range(3)]
    want = gate * (expert[2] - expert[1])
    got = (swapped - kept)[0]
    assert got - got.mean() == pytest.approx(want - want.mean())
    assert np.abs(want).max() > 0.01


def test_claim_smooth_models_scale_with_the_step():
    for experts, top in ((1, 1), (16, 2)):
        means = [
            np.abs(code.step(z, experts, top).replayed).mean()
            for z in (1e-4, 1e-3, 1e-2)
        ]
        assert means[1] / means[0] == pytest.approx(10, rel=0.05)
        assert means[2] / means[1] == pytest.approx(10, rel=0.05)


def pooled_jump(found):
    return np.abs(np.concatenate([s.free[s.flipped] for s in found])).mean()


def test_claim_jumps_keep_their_size():
    small, large = steps(1e-3, 16, 2), steps(3e-2, 16, 2)
    assert 0.001 < mean(s.flipped.mean() for s in small) < 0.002
    assert 0.045 < mean(s.flipped.mean() for s in large) < 0.055
    for z in code.SIZES:
        found = steps(z, 16, 2)
        assert 0.3 < pooled_jump(found) < 0.4
        wide = [code.jump(s) for s in steps(z, *code.WIDE)]
        assert max(wide) < np.log(1.2)
        if z > 1e-3:
            assert min(code.jump(s) for s in found) > np.log(1.2)


def test_claim_short_answer():
    def against_the_others(found):
        others = mean(np.abs(s.free[~s.flipped]).mean() for s in found)
        return pooled_jump(found) / others

    found = steps(3e-3, 16, 2)
    assert 1 / 250 < mean(s.flipped.mean() for s in found) < 1 / 165
    assert 80 < against_the_others(found) < 125
    assert 25 < against_the_others(steps(3e-3, *code.WIDE)) < 40


def test_jump_and_outside():
    s = code.Step(np.log([1.21, 1.19, 0.81, 0.79]), np.zeros(4), np.eye(4)[0] > 0, 0, 0)
    assert code.jump(s) == pytest.approx(np.log(1.21))
    assert code.jump(s._replace(free=-s.free)) == pytest.approx(np.log(1.21))
    two = s._replace(flipped=np.array([True, False, False, True]))
    assert code.jump(two) == pytest.approx((np.log(1.21) - np.log(0.79)) / 2)
    assert code.jump(s._replace(flipped=np.zeros(4, bool))) == 0
    assert code.outside(s.free) == 0.5
    logs = np.log([1 - 3.1e-4, 1 - 2.9e-4, 1 + 3.9e-4, 1 + 4.1e-4, 1.2])
    assert code.outside_band(logs) == pytest.approx(3 / 5)


def test_shapes_are_those_named():
    rows = shown(code.table_shapes())
    want = [(1, 16), (2, 16), (2, 64), (8, 64), (8, 128)]
    assert [row[0] for row in rows] == [f"top {a} of {b}" for a, b in want]
    for row, (top, experts) in zip(rows, want, strict=True):
        found = [code.step(1e-2, experts, top, 3000, s) for s in range(10)]
        far = [(np.exp(s.free) > 1.2) | (np.exp(s.free) < 0.8) for s in found]
        assert_row(
            row[1:],
            ([100 * s.flipped.mean() for s in found], 1),
            ([np.abs(s.free)[s.flipped].mean() for s in found], 2),
            ([100 * x.mean() for x in far], 1),
            ([s.kl_free / s.kl_replayed for s in found], 0),
        )


def test_claim_other_shapes():
    one, two, eight = (
        mean(code.jump(s) for s in steps(1e-2, experts, top, 1000))
        for experts, top in ((16, 1), (16, 2), (128, 8))
    )
    assert one > 2 * two > 8 * eight
    flips = [
        mean(s.flipped.mean() for s in steps(1e-2, experts, top, 1000))
        for experts, top in ((16, 2), (128, 8))
    ]
    assert flips[1] > 3 * flips[0]


def test_claim_frozen_router_still_flips():
    s = code.start(16, 2, 20_000, 0)
    nudge = np.random.default_rng(5).standard_normal(s.x.shape)
    after = code.routes(s.old, s.x + 0.01 * nudge, 2)
    flips = (np.sort(after, 1) != np.sort(s.before, 1)).any(1)
    assert 0.005 < flips.mean() < 0.05


def plain_flips(noise, rng, experts, top, tokens):
    logits = rng.standard_normal((tokens, experts))
    noisy = logits + noise * rng.standard_normal(logits.shape)
    lost = [
        len(set(np.argsort(a)[-top:]) - set(np.argsort(b)[-top:]))
        for a, b in zip(logits, noisy, strict=True)
    ]
    return np.mean([n > 0 for n in lost]), np.mean(lost) / top


def test_flip_share_against_sets():
    got = code.flip_share(0.1, np.random.default_rng(5), 16, 3, 400)
    assert got == pytest.approx(plain_flips(0.1, np.random.default_rng(5), 16, 3, 400))
    assert code.flip_share(0.0, np.random.default_rng(5), 16, 3, 50) == (0, 0)


def test_claim_flip_shares():
    found = {
        noise: [
            code.flip_share(noise, np.random.default_rng(s), tokens=3000)
            for s in OTHERS
        ]
        for noise in (0.004, 0.01)
    }
    for noise, share in ((0.004, 0.0355), (0.01, 0.087)):
        tokens, experts = zip(*found[noise], strict=True)
        assert mean(tokens) == pytest.approx(share, rel=0.08)
        # a set that changes mostly swaps one of its eight experts
        assert mean(experts) == pytest.approx(share / 8, rel=0.1)
    assert code.any_layer(0.1) == pytest.approx(0.9936, abs=5e-5)
    assert code.any_layer(0.5, 2) == 0.75


def test_claim_bf16_rounds_by_up_to_two_to_the_minus_eight():
    x = np.linspace(1, 2, 100_001, dtype=np.float32)
    bits = x.view(np.uint32)
    near = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    error = np.abs(near.view(np.float32) / x - 1).max()
    assert error == pytest.approx(2**-8, rel=0.01)


def test_by_response_averages_a_thousand_tokens():
    s = np.concatenate([code.by_response(np.array([0.0, 1.0]), k) for k in range(4)])
    assert s.shape == (256,)
    assert s.mean() == pytest.approx(0.5, abs=0.01)
    assert s.std() == pytest.approx(0.5 / 1000**0.5, rel=0.15)
    assert len(set(s)) > 50


def test_claim_ratios_of_the_three_models():
    dense, moe = steps(3e-3, 1, 1), steps(3e-3, 16, 2)
    # replayed, the MoE is as narrow as the dense model
    width = mean(s.replayed.std() for s in moe) / mean(s.free.std() for s in dense)
    assert 0.7 < width < 1.1
    assert 0.025 < mean(s.free.std() for s in moe) < 0.045
    assert 0.002 < mean(code.outside(s.free) for s in moe) < 0.004
    assert all(code.outside(s.free) == 0 for s in dense)
    ratio = mean(s.kl_free for s in moe) / mean(s.kl_replayed for s in moe)
    assert 40 < ratio < 70
    log_s = [code.by_response(s.free, k) for s, k in zip(moe, OTHERS, strict=True)]
    assert 0.0008 < mean(x.std() for x in log_s) < 0.0015
    assert max(np.abs(x).max() for x in log_s) < 0.01  # no answer explodes
    assert 0.65 < mean(code.outside_band(x) for x in log_s) < 0.85
    assert 4e-4 < mean(s.kl_free for s in moe) < 7e-4
    assert mean(x.mean() for x in log_s) == pytest.approx(
        -mean(s.kl_free for s in moe), abs=2e-4
    )


def test_ratio_table_shows_the_three_models():
    rows = shown(code.table_ratios())
    assert [row[0] for row in rows] == [
        "dense",
        "MoE, routes replayed",
        "MoE, free routes",
    ]
    dense, moe = (
        [code.step(3e-3, experts, top, 4000, k) for k in range(10)]
        for experts, top in ((1, 1), (16, 2))
    )
    models = [
        [(s.free, s.kl_free) for s in dense],
        [(s.replayed, s.kl_replayed) for s in moe],
        [(s.free, s.kl_free) for s in moe],
    ]
    for row, found in zip(rows, models, strict=True):
        log_s = [code.by_response(x, k) for k, (x, _) in enumerate(found)]
        far = [((x > np.log(1.2)) | (x < np.log(0.8))).mean() for x, _ in found]
        off = [((x > 3.9992e-4) | (x < -3.00045e-4)).mean() for x in log_s]
        assert_row(
            row[1:],
            ([np.std(x) for x, _ in found], 4),
            ([np.abs(x).max() for x, _ in found], 2),
            ([100 * x for x in far], 2),
            ([np.std(x) for x in log_s], 5),
            ([100 * x for x in off], 0),
            ([1e5 * kl for _, kl in found], 1),
        )


def test_step_table_shows_dense_and_moe():
    assert code.SIZES == (0.001, 0.003, 0.01, 0.03)
    for row, size in zip(shown(code.table_steps()), code.SIZES, strict=True):
        dense, moe = (
            [code.step(size, experts, top, 4000, k) for k in range(10)]
            for experts, top in ((1, 1), (16, 2))
        )
        assert row[0] == f"{size:g}"
        assert_row(
            row[1:],
            ([np.abs(s.free).mean() for s in dense], 4),
            ([np.abs(s.replayed).mean() for s in moe], 4),
            ([100 * s.flipped.mean() for s in moe], 2),
            ([np.abs(s.free[s.flipped]).mean() for s in moe], 2),
            ([s.kl_free / s.kl_replayed for s in moe], 0),
        )


def test_flip_table_columns(monkeypatch):
    def share(noise, rng):
        return noise, 0.5 + 0.1 * (rng.random() > 2)

    monkeypatch.setattr(code, "flip_share", share)
    row = shown(code.table_flips())[1]
    layers = 100 * (1 - 0.996**48)
    assert row == ["0.004", "50.00 ± 0.00", "0.4 ± 0.0", f"{layers:.1f} ± 0.0"]


def test_flip_table_uses_ten_seeds_and_2000_tokens():
    rows = shown(code.table_flips())
    assert [row[0] for row in rows] == ["0.001", "0.004", "0.01", "0.03", "0.1"]
    lost = []
    for k in range(10):
        rng = np.random.default_rng(k)
        z = rng.standard_normal((2000, 128))
        noisy = z + 0.1 * rng.standard_normal(z.shape)
        eighth = np.sort(noisy)[:, -8, None]
        kept = (z >= np.sort(z)[:, -8, None]) & (noisy >= eighth)
        lost.append(8 - kept.sum(1))
    experts = [100 * x.mean() / 8 for x in lost]
    assert_row(rows[4][1:3], (experts, 2), ([100 * (x > 0).mean() for x in lost], 1))


def test_claim_storage():
    assert code.storage(1) == 384
    assert code.storage(1, size=4) == 4 * 384
    assert code.storage(8192) == 3 * 2**20
    assert code.storage(8192 * 8192) / 1e9 == pytest.approx(25.8, abs=0.05)


def test_figure_shows_the_steps():
    size, share = code.figure_steps().axes
    two, eight, kept, dense = (line.get_ydata() for line in size.lines[:4])
    assert size.lines[4].get_ydata() == pytest.approx([np.log(1.2)] * 2)
    flips = [line.get_ydata() for line in share.lines]
    assert len(size.collections) == 4 and len(share.collections) == 2
    for i, z in enumerate(size.lines[0].get_xdata()):
        moe, wide, plain = (
            [code.step(z, experts, top, tokens, k) for k in range(10)]
            for experts, top, tokens in ((16, 2, 4000), (128, 8, 1000), (1, 1, 4000))
        )
        jumps = [code.jump(s) for s in moe]
        assert two[i] == pytest.approx(mean(jumps))
        corners = size.collections[0].get_paths()[0].vertices[:, 1]
        for edge in (mean(jumps) - stdev(jumps), mean(jumps) + stdev(jumps)):
            assert np.abs(corners - edge).min() < 1e-9
        assert eight[i] == pytest.approx(mean(code.jump(s) for s in wide))
        assert kept[i] == pytest.approx(mean(np.abs(s.replayed).mean() for s in moe))
        assert dense[i] == pytest.approx(mean(np.abs(s.free).mean() for s in plain))
        assert flips[0][i] == pytest.approx(mean(100 * s.flipped.mean() for s in moe))
        assert flips[1][i] == pytest.approx(mean(100 * s.flipped.mean() for s in wide))
