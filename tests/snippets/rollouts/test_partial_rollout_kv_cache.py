"""The cached model against a full one, stale caches, and the claims."""

import numpy as np
import pytest

from snippets.rollouts import partial_rollout_kv_cache as code


def whole(w, tokens):
    """The model without any cache: all positions at once, causal mask."""
    x = w.embed[tokens]
    n = len(tokens)
    for layer in range(code.LAYERS):
        h = x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-6)
        q, k, v = (h @ m[layer].T for m in (w.q, w.k, w.v))
        score = q @ k.T / code.WIDTH**0.5
        score[np.triu_indices(n, 1)] = -np.inf
        share = np.exp(score - score.max(1, keepdims=True))
        seen = share @ v / share.sum(1, keepdims=True)
        y = x + seen
        y = y / np.sqrt((y**2).mean(1, keepdims=True) + 1e-6)
        x = x + np.tanh(y @ w.mix[layer].T)
    y = x[-1] / np.sqrt((x[-1] ** 2).mean() + 1e-6)
    z = w.head @ y
    return z - np.log(np.exp(z).sum())


@pytest.fixture
def pair():
    rng = np.random.default_rng(7)
    old = code.draw(rng)
    return old, code.moved(old, code.draw(rng), 0.05), rng.integers(0, 24, 12).tolist()


def test_cached_decoding_is_the_full_model(pair):
    old, new, tokens = pair
    for w in (old, new):
        _, cache = code.extend(w, tokens[:7], code.empty())
        got, longer = code.extend(w, tokens[7:], cache)
        assert got == pytest.approx(whole(w, tokens), abs=1e-12)
        assert longer.keys.shape == (code.LAYERS, 12, code.WIDTH)


def test_claim_a_rebuilt_cache_is_exact_and_a_stale_one_is_no_checkpoint(pair):
    old, new, tokens = pair
    _, written = code.extend(old, tokens[:-1], code.empty())
    _, rebuilt = code.extend(new, tokens[:-1], code.empty())
    fresh, _ = code.extend(new, tokens[-1:], rebuilt)
    stale, _ = code.extend(new, tokens[-1:], written)
    assert fresh == pytest.approx(whole(new, tokens), abs=1e-12)
    for w in (old, new):
        assert np.abs(stale - whole(w, tokens)).max() > 1e-3


def test_only_the_first_layers_inputs_survive_an_update_of_later_ones(pair):
    old, _, tokens = pair
    mix = old.mix.copy()
    mix[1] += 0.1
    later = old._replace(mix=mix)
    _, a = code.extend(old, tokens, code.empty())
    _, b = code.extend(later, tokens, code.empty())
    assert a.keys == pytest.approx(b.keys)  # below the changed matrix
    first = old._replace(mix=old.mix + np.array([0.1, 0.0])[:, None, None])
    _, c = code.extend(first, tokens, code.empty())
    assert a.keys[0] == pytest.approx(c.keys[0])
    assert np.abs(a.keys[1] - c.keys[1]).max() > 1e-3


def test_kl_by_definition():
    p, q = np.log([0.2, 0.8]), np.log([0.5, 0.5])
    want = 0.2 * np.log(0.4) + 0.8 * np.log(1.6)
    assert code.kl(p, q) == pytest.approx(want)


def test_treat_uses_the_right_caches():
    got = code.treat(0.0, 3)
    assert got == (0.0, 0.0, 0.0)
    a, b = code.treat(0.01, 3), code.treat(0.01, 4)
    assert a != b and min(a) > 0


def test_claim_both_kls_grow_with_the_square_of_the_update():
    runs = code.sweep()
    for column in (0, 1):
        small, large = (np.median(runs[s][:, column]) for s in (0.001, 0.01))
        assert np.log10(large / small) == pytest.approx(2, abs=0.1)


def test_claim_the_stale_part_is_a_good_share_of_the_change():
    shares = [np.median(r[:, 1] / r[:, 0]) for r in code.sweep().values()]
    assert all(0.25 < s < 0.75 for s in shares)
    fade = [np.median(r[:, 2] / r[:, 1]) for r in code.sweep().values()]
    assert all(f > 0.4 for f in fade)  # eight fresh tokens do not cure it


def test_claim_prefill_costs():
    rows = [r.split("|")[1:-1] for r in code.table_prefill().splitlines()[2:]]
    assert [r[2].strip() for r in rows] == ["144", "1,152", "1,152"]
    linear = 2 * 8.2e9 * 256 * 4096 / code.FLOPS
    assert linear == pytest.approx(5.4, abs=0.05)
    assert float(rows[0][3].split()[0]) > linear


def test_figure_shows_the_medians():
    (axes,) = code.figure_stale().axes
    for line, column in zip(axes.lines, (0, 1), strict=True):
        want = [np.median(r[:, column]) for r in code.sweep().values()]
        assert line.get_ydata() == pytest.approx(want)
