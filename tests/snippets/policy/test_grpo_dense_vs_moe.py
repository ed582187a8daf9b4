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


def test_claim_smooth_models_scale_with_the_step():
    for experts, top in ((1, 1), (16, 2)):
        sizes = (1e-4, 1e-3, 1e-2)
        means = [np.abs(code.step(z, experts, top).replayed).mean() for z in sizes]
        assert means[1] / means[0] == pytest.approx(10, rel=0.05)
        assert means[2] / means[1] == pytest.approx(10, rel=0.05)


def test_claim_jumps_keep_their_size():
    small, large = code.step(1e-3, 16, 2), code.step(1e-2, 16, 2)
    assert small.flipped.sum() >= 5
    assert small.flipped.mean() == pytest.approx(large.flipped.mean() / 10, rel=0.4)
    jumps = [np.abs(s.free[s.flipped]).mean() for s in (small, large)]
    assert jumps[0] == pytest.approx(jumps[1], rel=0.4)
    assert min(jumps) > 50 * np.abs(small.replayed).mean()


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
    assert code.any_layer(0.1) == pytest.approx(0.9936, abs=5e-5)
    assert code.any_layer(0.0569) == pytest.approx(0.94, abs=5e-4)


def test_by_response_averages_a_thousand_tokens():
    x = np.array([0.0, 1.0])
    s = code.by_response(x)
    assert s.shape == (64,)
    assert s.mean() == pytest.approx(0.5, abs=0.01)
    assert s.std() == pytest.approx(0.5 / 1000**0.5, rel=0.25)


def test_claim_ratios_of_the_three_models():
    dense, moe = code.step(3e-3, 1, 1), code.step(3e-3, 16, 2)
    assert moe.free.std() > 5 * dense.free.std()
    assert moe.replayed.std() < 2 * dense.free.std()
    assert moe.kl_free > 10 * moe.kl_replayed


def test_claim_storage():
    assert code.storage(1) == 384
    assert code.storage(8192) == 3 * 2**20
    assert code.storage(8192 * 8192) / 1e9 == pytest.approx(25.8, abs=0.05)


def test_figure_shows_the_steps():
    jump, share = code.figure_steps().axes
    jumps, kept, dense = (line.get_ydata() for line in jump.lines[:3])
    for i, size in enumerate(jump.lines[0].get_xdata()):
        moe = code.step(float(size), 16, 2)
        assert jumps[i] == np.abs(moe.free[moe.flipped]).mean()
        assert kept[i] == np.abs(moe.replayed).mean()
        assert share.lines[0].get_ydata()[i] == 100 * moe.flipped.mean()
        assert dense[i] == np.abs(code.step(float(size), 1, 1).free).mean()
