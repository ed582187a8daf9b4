"""Dense and MoE under small changes: layer, flips, ratios, claims."""

import numpy as np
import pytest

from snippets.policy import grpo_dense_vs_moe as code


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
    found = code.step(3e-3, 16, 2)
    for x in (found.free, found.replayed):
        assert np.exp(x).mean() == pytest.approx(1, abs=0.01)
    assert found.kl_replayed == pytest.approx(-found.replayed.mean(), abs=3e-4)


def test_step_against_plain_loops():
    s = code.start(16, 2, 20_000)
    new = code.moved(s.old, 1e-2, np.random.default_rng(1))
    found = code.step(1e-2, 16, 2)
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
    s = code.start(16, 2, 20_000)
    seen = np.bincount(s.token[:, 0], minlength=code.VOCAB) / 20_000
    want = np.exp(s.log_old).mean(0)
    assert np.abs(seen - want).max() < 4 * (want.max() / 20_000) ** 0.5


def test_kl_is_from_old_to_new():
    # a large step tells the two directions apart
    s = code.start(16, 2, 20_000)
    found = code.step(0.5, 16, 2)
    new = code.moved(s.old, 0.5, np.random.default_rng(1))
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


def test_claim_jumps_keep_their_size():
    small, large = code.step(1e-3, 16, 2), code.step(3e-2, 16, 2)
    assert small.flipped.sum() == 27
    assert small.flipped.mean() == pytest.approx(0.0014, abs=5e-5)
    assert large.flipped.mean() == pytest.approx(0.0512, abs=5e-5)
    assert code.jump(small) == pytest.approx(0.36, abs=5e-3)
    assert code.jump(large) == pytest.approx(0.38, abs=5e-3)
    for z in code.SIZES:
        assert code.jump(code.step(z, 16, 2)) > np.log(1.2)
        assert code.jump(code.step(z, *code.WIDE)) < -np.log(0.8) / 2


def test_claim_short_answer():
    s = code.step(3e-3, 16, 2)
    assert np.abs(s.free[~s.flipped]).mean() == pytest.approx(0.004, abs=5e-4)
    assert s.flipped.mean() == pytest.approx(0.005, abs=5e-4)
    assert code.jump(s) == pytest.approx(0.4, abs=0.05)
    wide = code.jump(code.step(3e-3, *code.WIDE))
    assert wide == pytest.approx(0.07, abs=0.005)


def test_jump_and_outside():
    s = code.Step(np.log([1.21, 1.19, 0.81, 0.79]), np.zeros(4), np.eye(4)[0] > 0, 0, 0)
    assert code.jump(s) == pytest.approx(np.log(1.21))
    assert code.jump(s._replace(free=-s.free)) == pytest.approx(np.log(1.21))
    assert code.outside(s.free) == 0.5
    logs = np.log([1 - 3.1e-4, 1 - 2.9e-4, 1 + 3.9e-4, 1 + 4.1e-4, 1.2])
    assert code.outside_band(logs) == pytest.approx(3 / 5)


def test_shapes_are_those_named():
    rows = code.table_shapes().splitlines()[2:]
    want = ["1 of 16", "2 of 16", "2 of 64", "8 of 64", "8 of 128"]
    assert [row[6:].split(" |")[0] for row in rows] == want
    for row in rows:
        name, flips, size, share, ratio = row.strip("| ").split(" | ")
        top, experts = name.removeprefix("top ").split(" of ")
        s = code.step(1e-2, int(experts), int(top), 10_000)
        assert s.flipped.shape == (10_000,)
        assert float(flips[:-2]) == pytest.approx(100 * np.mean(s.flipped), abs=0.051)
        assert float(size) == pytest.approx(
            np.mean(np.abs(s.free)[s.flipped]), abs=0.0051
        )
        far = (np.exp(s.free) > 1.2) | (np.exp(s.free) < 0.8)
        assert float(share[:-2]) == pytest.approx(100 * far.mean(), abs=0.051)
        assert float(ratio) == pytest.approx(s.kl_free / s.kl_replayed, abs=1)


def test_claim_frozen_router_still_flips():
    s = code.start(16, 2, 20_000)
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
    tokens, experts = code.flip_share(0.01, np.random.default_rng(0))
    assert tokens == pytest.approx(0.078, abs=5e-4)
    assert experts == pytest.approx(0.0098, abs=5e-5)
    tokens, _ = code.flip_share(0.004, np.random.default_rng(0))
    assert tokens == pytest.approx(0.031, abs=1e-3)
    assert code.any_layer(0.1) == pytest.approx(0.9936, abs=5e-5)
    assert code.any_layer(0.5, 2) == 0.75


def test_claim_bf16_rounds_by_up_to_two_to_the_minus_eight():
    x = np.linspace(1, 2, 100_001, dtype=np.float32)
    bits = x.view(np.uint32)
    near = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    error = np.abs(near.view(np.float32) / x - 1).max()
    assert error == pytest.approx(2**-8, rel=0.01)


def test_by_response_averages_a_thousand_tokens():
    s = code.by_response(np.array([0.0, 1.0]))
    assert s.shape == (256,)
    assert s.mean() == pytest.approx(0.5, abs=0.01)
    assert s.std() == pytest.approx(0.5 / 1000**0.5, rel=0.15)


def test_claim_ratios_of_the_three_models():
    dense, moe = code.step(3e-3, 1, 1), code.step(3e-3, 16, 2)
    assert dense.free.std() == pytest.approx(0.0051, abs=5e-5)
    assert moe.replayed.std() == pytest.approx(0.0048, abs=5e-5)
    assert moe.free.std() == pytest.approx(0.037, abs=5e-4)
    assert code.outside(moe.free) == pytest.approx(0.0029, abs=5e-5)
    assert moe.kl_free / moe.kl_replayed == pytest.approx(51, abs=0.5)
    s = code.by_response(moe.free)
    assert s.std() == pytest.approx(0.0012, abs=5e-5)
    assert code.outside_band(s) == pytest.approx(0.79, abs=5e-3)
    assert -moe.kl_free == pytest.approx(-6e-4, abs=5e-5)
    assert s.mean() == pytest.approx(-moe.kl_free, abs=3e-4)
    assert moe.free.mean() < np.log(1 - 3e-4)


def test_ratio_table_shows_the_three_models():
    rows = [
        [cell.strip() for cell in row.strip("|").split("|")]
        for row in code.table_ratios().splitlines()[2:]
    ]
    assert [row[0] for row in rows] == [
        "dense",
        "MoE, routes replayed",
        "MoE, free routes",
    ]
    dense, moe = code.step(3e-3, 1, 1), code.step(3e-3, 16, 2)
    want = [
        (dense.free, dense.kl_free),
        (moe.replayed, moe.kl_replayed),
        (moe.free, moe.kl_free),
    ]
    for row, (x, kl) in zip(rows, want, strict=True):
        assert float(row[1]) == pytest.approx(np.std(x), abs=5.1e-5)
        assert float(row[2]) == pytest.approx(np.abs(x).max(), abs=5.1e-3)
        assert float(row[6]) == pytest.approx(kl, rel=0.05)


def test_step_table_shows_dense_and_moe():
    for row, size in zip(code.table_steps().splitlines()[2:], code.SIZES, strict=True):
        cells = row.replace("%", "").strip("| ").split(" | ")
        dense, moe = code.step(size, 1, 1), code.step(size, 16, 2)
        want = [
            size,
            np.abs(dense.free).mean(),
            np.abs(moe.replayed).mean(),
            100 * moe.flipped.mean(),
            code.jump(moe),
            moe.kl_free / moe.kl_replayed,
        ]
        got = [float(cell) for cell in cells]
        assert got == pytest.approx(want, rel=0.08)


def test_flip_table_columns(monkeypatch):
    monkeypatch.setattr(code, "flip_share", lambda noise, rng: (noise, 0.5))
    row = code.table_flips().splitlines()[3].replace("%", "")
    assert [float(c) for c in row.strip("| ").split(" | ")] == pytest.approx(
        [0.004, 50, 0.4, 100 * (1 - 0.996**48)], rel=0.01
    )


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
    for i, z in enumerate(size.lines[0].get_xdata()):
        moe, wide = code.step(z, 16, 2), code.step(z, 128, 8, 5000)
        assert two[i] == code.jump(moe)
        assert eight[i] == code.jump(wide)
        assert kept[i] == np.abs(moe.replayed).mean()
        assert dense[i] == np.abs(code.step(z, 1, 1).free).mean()
        assert flips[0][i] == 100 * moe.flipped.mean()
        assert flips[1][i] == 100 * wide.flipped.mean()
