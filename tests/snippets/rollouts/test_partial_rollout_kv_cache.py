"""The cached model against a full one, stale caches, and the claims."""

import numpy as np
import pytest

from snippets.rollouts import partial_rollout_kv_cache as code


def whole(w, tokens):
    """The model without any cache: all positions at once, causal mask."""
    x = w.embed[tokens]
    n = len(tokens)
    for layer in range(len(w.q)):
        h = x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-6)
        q, k, v = (h @ m[layer].T for m in (w.q, w.k, w.v))
        score = q @ k.T / q.shape[1] ** 0.5
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
    new = code.moved(old, code.draw(rng), 0.05)
    return old, new, rng.integers(0, 24, 12).tolist()


def test_cached_decoding_is_the_full_model(pair):
    old, new, tokens = pair
    for w in (old, new):
        _, cache = code.extend(w, tokens[:7], code.empty(w))
        got, longer = code.extend(w, tokens[7:], cache)
        assert got == pytest.approx(whole(w, tokens), abs=1e-12)
        assert longer.keys.shape == (2, 12, 16)


def test_claim_a_rebuilt_cache_is_exact_and_a_stale_one_is_no_checkpoint(pair):
    old, new, tokens = pair
    _, written = code.extend(old, tokens[:-1], code.empty(old))
    _, rebuilt = code.extend(new, tokens[:-1], code.empty(new))
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
    _, a = code.extend(old, tokens, code.empty(old))
    _, b = code.extend(later, tokens, code.empty(later))
    assert a.keys == pytest.approx(b.keys)  # below the changed matrix
    first = old._replace(mix=old.mix + np.array([0.1, 0.0])[:, None, None])
    _, c = code.extend(first, tokens, code.empty(first))
    assert a.keys[0] == pytest.approx(c.keys[0])
    assert np.abs(a.keys[1] - c.keys[1]).max() > 1e-3


def test_kl_by_definition():
    p, q = np.log([0.2, 0.8]), np.log([0.5, 0.5])
    want = 0.2 * np.log(0.4) + 0.8 * np.log(1.6)
    assert code.kl(p, q) == pytest.approx(want)


def stale_loop(old, new, tokens, cut):
    """Old keys before the cut, all else new, one token after the other."""
    layers, d = len(new.q), new.embed.shape[1]
    keys = [[] for _ in range(layers)]
    values = [[] for _ in range(layers)]
    for t, token in enumerate(tokens):
        w = old if t < cut else new
        x = w.embed[token]
        for n in range(layers):
            h = x / np.sqrt(np.mean(x**2) + 1e-6)
            keys[n].append(h @ w.k[n].T)
            values[n].append(h @ w.v[n].T)
            score = np.array([h @ w.q[n].T @ key for key in keys[n]])
            share = np.exp(score / np.sqrt(d))
            share /= share.sum()
            seen = sum(a * v for a, v in zip(share, values[n], strict=True))
            y = x + seen
            y = y / np.sqrt(np.mean(y**2) + 1e-6)
            x = x + np.tanh(y @ w.mix[n].T)
    z = w.head @ (x / np.sqrt(np.mean(x**2) + 1e-6))
    return z - np.log(np.exp(z).sum())


def divergence(p, q):
    return sum(np.exp(a) * (a - b) for a, b in zip(p, q, strict=True))


@pytest.mark.parametrize("shape", [code.SMALL, code.Shape(3, 8, 5)])
def test_treat_against_an_independent_loop(shape):
    rng = np.random.default_rng(3)
    old = code.draw(rng, shape)
    step = code.draw(rng, shape)
    new = code.Weights(*(a + 0.05 * b for a, b in zip(old, step, strict=True)))
    n = shape.length
    tokens = rng.integers(0, 24, n + 9).tolist()
    got = code.treat(0.05, 3, shape)
    one, nine = tokens[: n + 1], tokens
    clean = whole(new, one)
    assert got.policy == pytest.approx(divergence(whole(old, one), clean))
    stale = stale_loop(old, new, one, n)
    assert got.stale == pytest.approx(divergence(clean, stale))
    stale = stale_loop(old, new, nine, n)
    assert got.later == pytest.approx(divergence(whole(new, nine), stale))


def test_no_update_no_error():
    assert code.treat(0.0, 3) == (0.0, 0.0, 0.0)


def test_weights_are_drawn_with_the_variance_of_the_width():
    rng = np.random.default_rng(0)
    w = code.draw(rng, code.Shape(3, 64, 1))
    assert w.q.shape == (3, 64, 64) and w.head.shape == (24, 64)
    for part in w:
        assert part.std() == pytest.approx(1 / 8, rel=0.05)


def test_claim_both_kls_grow_with_the_square_of_the_update():
    runs = code.sweep()
    for column in (0, 1):
        small, large = (np.median(runs[s][:, column]) for s in (0.001, 0.01))
        assert np.log10(large / small) == pytest.approx(2, abs=0.1)


def test_claim_the_stale_part_is_a_third_at_every_size_of_update():
    shares = [np.median(r[:, 1] / r[:, 0]) for r in code.sweep().values()]
    assert all(0.3 < s < 0.35 for s in shares)


def cells(table):
    rows = table.splitlines()[2:]
    return [[c.strip() for c in r.split("|")[1:-1]] for r in rows]


def test_table_stale_shows_the_runs():
    for row, (size, runs) in zip(
        cells(code.table_stale()), code.sweep().items(), strict=True
    ):
        assert float(row[0]) == size
        for shown, column in ((row[1], 0), (row[2], 1)):
            want = sorted(runs[:, column])[7:9]
            assert float(shown) == pytest.approx(sum(want) / 2, rel=0.06)
        share = np.percentile(runs[:, 1] / runs[:, 0], [50, 10, 90])
        words = row[3].replace("(", "").replace(")", "").replace("–", " ")
        assert [float(x) for x in words.split()] == pytest.approx(share, abs=0.006)


def test_claim_other_shapes_from_a_fifth_to_three_fifths():
    shown = cells(code.table_shapes())
    middle = [float(row[3].split()[0]) for row in shown]
    assert min(middle) == pytest.approx(0.2, abs=0.03)
    assert max(middle) == pytest.approx(0.6, abs=0.03)
    top = [float(row[3].split("–")[1].rstrip(")")) for row in shown]
    assert max(top) > 1  # a stale cache may cost more than the update
    later = [float(row[4]) for row in shown]
    assert min(later) > 0.5  # eight fresh tokens do not cure it
    for row, (shape, runs) in zip(shown, code.shape_runs().items(), strict=True):
        assert tuple(map(int, row[:3])) == shape
        fade = np.median(runs[:, 2] / runs[:, 1])
        assert float(row[4]) == pytest.approx(fade, abs=0.006)


def test_shapes_are_compared_at_an_update_of_a_hundredth():
    assert code.shape_runs()[code.SMALL] == pytest.approx(code.sweep()[0.01])
    assert all(runs.shape == (16, 3) for runs in code.shape_runs().values())


def several(updates, seed):
    """Stale KL after updates spread evenly over 16 tokens, none flushed."""
    rng = np.random.default_rng(seed)
    w = code.draw(rng)
    tokens = rng.integers(0, 24, 17).tolist()
    kept, part = code.empty(w), 16 // updates
    for n in range(updates):
        _, kept = code.extend(w, tokens[n * part : (n + 1) * part], kept)
        w = code.moved(w, code.draw(rng), 0.01)
    stale, _ = code.extend(w, tokens[16:], kept)
    return divergence(whole(w, tokens), stale)


def test_claim_four_updates_without_recomputing_cost_three_times_one():
    one, four = (np.median([several(k, seed) for seed in range(40)]) for k in (1, 4))
    assert 2.5 < four / one < 4


def test_claim_prefill_costs():
    rows = cells(code.table_prefill())
    assert [r[2] for r in rows] == ["144", "1,152", "1,152"]
    assert [r[:2] for r in rows] == [
        ["256", "4,096"],
        ["1024", "8,192"],
        ["256", "32,768"],
    ]
    flops = 8 * 989e12 * 0.4
    for requests, n, shown in (
        (256, 4096, 5.8),
        (1024, 8192, 49.9),
        (256, 32768, 69.1),
    ):
        # token i: 2 P, and 4 d per layer and token seen (scores, values)
        pairs = n * (n + 1) / 2
        work = requests * (2 * 8.2e9 * n + 4 * 36 * 4096 * pairs)
        assert work / flops == pytest.approx(shown, abs=0.06)
    assert [r[3] for r in rows] == ["5.8 s", "49.9 s", "69.1 s"]
    assert 5.8 / 120 == pytest.approx(0.05, abs=0.003)  # of two minutes
    assert 49.9 / 120 == pytest.approx(0.4, abs=0.02)


def test_figure_shows_the_medians():
    (axes,) = code.figure_stale().axes
    assert "nats" in axes.get_ylabel() and "relative" in axes.get_xlabel()
    assert axes.get_xscale() == axes.get_yscale() == "log"
    low, high = axes.collections, code.sweep()
    for patch, column in zip(low, (0, 1), strict=True):
        at = patch.get_paths()[0].vertices[:, 1]
        runs = [r[:, column] for r in high.values()]
        assert at.min() == pytest.approx(min(np.quantile(r, 0.1) for r in runs))
        assert at.max() == pytest.approx(max(np.quantile(r, 0.9) for r in runs))
    for line, column in zip(axes.lines, (0, 1), strict=True):
        want = [np.median(r[:, column]) for r in code.sweep().values()]
        assert line.get_xdata() == pytest.approx(code.SIZES)
        assert line.get_ydata() == pytest.approx(want)
    assert [t.get_text() for t in axes.texts] == [
        "old policy → new",
        "stale cache",
    ]
