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


@pytest.mark.parametrize(
    ("shape", "parts"),
    [
        (code.SMALL, ("embed", "q", "k", "v", "mix", "head")),
        (code.Shape(3, 8, 5), ("embed", "q", "k", "v", "mix", "head")),
        (code.SMALL, ("q", "v")),
        (code.SMALL, ("mix",)),
    ],
)
def test_treat_against_an_independent_loop(shape, parts):
    rng = np.random.default_rng(3)
    old = code.draw(rng, shape)
    step = code.draw(rng, shape)
    new = {
        name: getattr(old, name) + (name in parts) * 0.05 * getattr(step, name)
        for name in code.Weights._fields
    }
    new = code.Weights(**new)
    tokens = rng.integers(0, 24, shape.length + 1).tolist()
    policy, kept = code.treat(0.05, 3, shape, parts)
    clean = whole(new, tokens)
    assert policy == pytest.approx(divergence(whole(old, tokens), clean))
    stale = stale_loop(old, new, tokens, shape.length)
    assert kept == pytest.approx(divergence(clean, stale))


def test_no_update_no_error():
    assert code.treat(0.0, 3) == (0.0, 0.0)


def test_scores_and_logits_far_beyond_exp_do_not_overflow(pair):
    """exp(710) is infinite; warnings are errors."""
    old, _, tokens = pair
    sharp = old._replace(q=old.q * 1e5)
    got, _ = code.extend(sharp, tokens, code.empty(sharp))
    assert np.isfinite(got).all()
    assert got == pytest.approx(whole(sharp, tokens), abs=1e-9)
    loud = old._replace(head=old.head * 1e5)
    got, _ = code.extend(loud, tokens, code.empty(loud))
    quiet, _ = code.extend(old, tokens, code.empty(old))
    logits = 1e5 * (quiet - quiet.max())
    assert logits.min() < -710
    assert got == pytest.approx(logits - np.logaddexp.reduce(logits))


def test_weights_are_drawn_with_the_variance_of_the_width():
    rng = np.random.default_rng(0)
    w = code.draw(rng, code.Shape(3, 64, 1))
    assert w.q.shape == (3, 64, 64) and w.head.shape == (24, 64)
    for part in w:
        assert part.std() == pytest.approx(1 / 8, rel=0.05)


OTHERS = range(100, 148)  # draws that the page does not use


def test_claim_both_kls_grow_with_the_square_of_the_update():
    small, large = (code.runs(size, draws=OTHERS) for size in (0.001, 0.01))
    for column in (0, 1):
        rise = np.median(large[:, column]) / np.median(small[:, column])
        assert np.log10(rise) == pytest.approx(2, abs=0.05)
    # so the share of one draw hardly changes
    one, other = (x[:, 1] / x[:, 0] for x in (small, large))
    assert np.median(np.abs(np.log(one / other))) < 0.1


def cells(table):
    rows = table.splitlines()[2:]
    return [[c.strip() for c in r.split("|")[1:-1]] for r in rows]


def shown(ratios):
    """Median and 80 % band by sorting, interpolated between draws."""
    ordered = sorted(ratios)

    def quantile(q):
        at = q * (len(ordered) - 1)
        low = int(at)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (at - low) * (ordered[high] - ordered[low])

    return f"{quantile(0.5):.2f} ({quantile(0.1):.2f}–{quantile(0.9):.2f})"


def test_table_stale_shows_the_runs():
    rows = cells(code.table_stale())
    assert [float(row[0]) for row in rows] == [0.001, 0.003, 0.01, 0.03, 0.1]
    row, found = rows[2], [code.treat(0.01, seed) for seed in range(48)]
    for text, column in ((row[1], 0), (row[2], 1)):
        digits, exponent = text.strip("$}").split(r"\cdot10^{")
        want = np.median([pair[column] for pair in found])
        assert float(f"{digits}e{exponent}") == pytest.approx(want, rel=0.05)
    assert row[3] == shown(stale / policy for policy, stale in found)


def test_table_shapes_names_what_moves_and_how_large():
    rows = cells(code.table_shapes())
    every = ("embed", "q", "k", "v", "mix", "head")
    sets = {"all": every, "q, v": ("q", "v"), "k, v": ("k", "v")}
    for row in rows:
        parts = sets.get(row[0], (row[0],))
        shape = code.Shape(*map(int, row[1:4]))
        found = code.runs(0.01, shape, parts)
        assert found.shape == (48, 2)
        assert tuple(found[5]) == code.treat(0.01, 5, shape, parts)
        if row[0] == "head":
            assert row[4] == "0" and not found[:, 1].any()
        else:
            assert row[4] == shown(found[:, 1] / found[:, 0])
    assert [row[0] for row in rows].count("all") == 5


def test_claim_the_share_depends_on_which_matrices_move():
    middle = {}
    for name, (shape, parts) in code.CASES.items():
        if shape in (code.SMALL, code.Shape(layers=1), code.Shape(layers=4)):
            middle[name] = float(code.share(code.runs(0.01, shape, parts, OTHERS))[0])
    for name, value in middle.items():
        if name.startswith("all"):
            assert 0.27 < value < 0.65, name
    assert middle["head | 2 | 16 | 16"] == 0
    assert middle["mix | 2 | 16 | 16"] < 0.2
    assert middle["q, v | 2 | 16 | 16"] == pytest.approx(0.75, abs=0.07)
    assert middle["k, v | 2 | 16 | 16"] == pytest.approx(0.95, abs=0.05)
    top = code.share(code.runs(0.01, code.SMALL, ("q", "v"), OTHERS))[2]
    assert top > 1  # a stale cache may cost more than the update


def test_claim_fresh_tokens_do_not_cure_a_stale_cache():
    """Eight more tokens by the new weights: the KL stays of its order."""
    faded = []
    for seed in OTHERS:
        rng = np.random.default_rng(seed)
        old = code.draw(rng)
        new = code.moved(old, code.draw(rng), 0.01)
        tokens = rng.integers(0, 24, 25).tolist()
        _, written = code.extend(old, tokens[:16], code.empty(old))
        _, rebuilt = code.extend(new, tokens[:16], code.empty(new))
        gaps = []
        for more in (tokens[16:17], tokens[16:]):
            fresh, _ = code.extend(new, more, rebuilt)
            stale, _ = code.extend(new, more, written)
            gaps.append(code.kl(fresh, stale))
        faded.append(gaps[1] / gaps[0])
    assert 0.3 < np.median(faded) < 1.2


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


def test_claim_four_updates_without_recomputing_cost_two_to_three_times_one():
    one, four = (np.median([several(k, seed) for seed in range(100)]) for k in (1, 4))
    assert 1.8 < four / one < 3.2


def test_claim_prefill_costs():
    rows = cells(code.table_prefill())
    assert [r[2] for r in rows] == ["144", "1,152", "1,152"]
    assert [r[:2] for r in rows] == [
        ["256", "4,096"],
        ["1,024", "8,192"],
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
    for patch, column in zip(axes.collections, (0, 1), strict=True):
        at = patch.get_paths()[0].vertices[:, 1]
        found = [code.runs(size)[:, column] for size in code.SIZES]
        assert at.min() == pytest.approx(min(np.quantile(r, 0.1) for r in found))
        assert at.max() == pytest.approx(max(np.quantile(r, 0.9) for r in found))
    for line, column in zip(axes.lines, (0, 1), strict=True):
        want = [np.median(code.runs(size)[:, column]) for size in code.SIZES]
        assert line.get_xdata() == pytest.approx([0.001, 0.003, 0.01, 0.03, 0.1])
        assert line.get_ydata() == pytest.approx(want)
    assert [t.get_text() for t in axes.texts] == [
        "old policy → new",
        "stale cache",
    ]


def test_claim_a_low_rank_update_of_q_and_v_costs_as_much():
    """As LoRA's: rank 2 of width 16, each in a random direction."""

    def once(seed):
        rng = np.random.default_rng(seed)
        old, d = code.draw(rng), code.SMALL.width
        moves = {
            part: getattr(old, part)
            + 0.01
            * rng.standard_normal((code.SMALL.layers, d, 2))
            @ rng.standard_normal((code.SMALL.layers, 2, d))
            / np.sqrt(2 * d)
            for part in ("q", "v")
        }
        new = old._replace(**moves)
        *prefix, last = rng.integers(0, code.VOCAB, 17).tolist()
        caches = [
            code.extend(weights, prefix, code.empty(weights))[1]
            for weights in (old, new)
        ]
        before, _ = code.extend(old, [last], caches[0])
        stale, _ = code.extend(new, [last], caches[0])
        fresh, _ = code.extend(new, [last], caches[1])
        return code.kl(fresh, stale) / code.kl(before, fresh)

    assert np.median([once(seed) for seed in range(100)]) == pytest.approx(
        0.75, abs=0.1
    )
