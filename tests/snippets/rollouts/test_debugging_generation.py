"""The engine against slow loops, each fault's signature, and the claims."""

import numpy as np
import pytest
import torch

from snippets.rollouts import debugging_generation as code
from snippets.rollouts.debugging_generation import FAULTS, Engine, Fault

NAMES = list(FAULTS)


OTHER = range(100, 110)
"""Seeds that the page did not use."""


def one(fault, prompt=32, seed=0):
    """Delta of a single model, (REQUESTS, LENGTH - 1)."""
    return code.delta(fault, prompt, [seed])[0]


def mean(name):
    """Of the cached run in bfloat16: not to be used with exact."""
    return np.abs(code.run(name)).mean(1)


@pytest.fixture(scope="module")
def signed():
    """Delta of every fault on the other seeds, (10, S, LENGTH - 1) each."""
    return {n: code.delta(fault, seeds=OTHER) for n, fault in FAULTS.items()}


@pytest.fixture(scope="module")
def others(signed):
    """Sizes of every fault on the other seeds, (10, LENGTH - 1) each."""
    return {name: np.abs(each).mean(1) for name, each in signed.items()}


def alone(w):
    """One model in the stacked form."""
    return code.stacked([w])


@pytest.fixture
def exact(monkeypatch):
    """No rounding to bfloat16 (the cache is float32), and a smaller run."""
    monkeypatch.setattr(code, "bf16", lambda x: np.asarray(x, np.float64))
    monkeypatch.setattr(code, "REQUESTS", 6)
    monkeypatch.setattr(code, "LENGTH", 66)


@pytest.fixture
def made():
    rng = np.random.default_rng(5)
    w = code.model(rng)
    new = code.moved(w, code.draw(rng, code.SHAPE), 0.05)
    tokens = rng.integers(0, 24, (2, 66))
    return w, new, tokens, rng.standard_normal((2, 32))


def turn(x, position, base):
    """Rotary positions as multiplication of complex numbers."""
    half = len(x) // 2
    z = np.array([complex(a, b) for a, b in zip(x[:half], x[half:], strict=True)])
    for i in range(half):
        z[i] *= np.exp(1j * position / base ** (i / half))
    return np.concatenate([z.real, z.imag])


def slow(
    tokens,
    weights,
    position=lambda t: t,
    visible=lambda t: range(t + 1),
    foreign=lambda s: None,
    base=100.0,
    eps=1e-6,
):
    """One sequence, token after token; log-probabilities (T, V)."""

    def rms(x):
        return x / (sum(v * v for v in x) / len(x) + eps) ** 0.5

    keys, values, out = [], [], []
    for t, token in enumerate(tokens):
        w = weights(t)
        x = w.embed[token]
        keys.append([])
        values.append([])
        for n in range(len(w.q)):
            h = rms(x)
            keys[t].append(turn(w.k[n] @ h, position(t), base))
            values[t].append(w.v[n] @ h)
            q = turn(w.q[n] @ h, position(t), base)
            total, seen = 0.0, 0.0
            for s in visible(t):
                other = foreign(s)
                key = keys[s][n] if other is None else other
                value = values[s][n] if other is None else other
                weight = np.exp(key @ q / len(x) ** 0.5)
                total, seen = total + weight, seen + weight * value
            x = x + np.tanh(w.mix[n] @ rms(x + seen / total))
        z = w.head @ rms(x)
        out.append(z - np.log(np.exp(z).sum()))
    return np.array(out)


def test_replay_is_the_slow_loop(made):
    w, new, tokens, _ = made
    tokens = tokens[:, :24]
    got = code.replay(code.stacked([w, new]), np.stack([tokens, tokens]))
    for each, weights in zip(got, (w, new), strict=True):
        for row, want in zip(each, tokens, strict=True):
            assert row == pytest.approx(
                slow(want, lambda t, weights=weights: weights), abs=1e-5
            )


SPECS = {
    "no fault, bfloat16": {},
    "norm: eps 0.02": {"eps": 0.02},
    "RoPE: base 70, not 100": {"base": 70.0},
    "prefix hit of 16, positions restart": {
        "position": lambda t: t if t < 16 else t - 16
    },
    "newest key not read": {"visible": lambda t: range(t + 1) if t < 32 else range(t)},
    "window of 40": {"visible": lambda t: range(max(0, t - 39), t + 1)},
}


def log_step(engine, t, tokens):
    """Log-probabilities (S, V) of an engine with one model."""
    return code.log_softmax(engine.step(t, tokens[None]))[0]


@pytest.mark.parametrize("name", SPECS)
def test_engine_with_a_fault_is_the_slow_loop(exact, made, name):
    w, _, tokens, other = made
    engine = Engine(alone(w), FAULTS[name], 32, other[None])
    got = [log_step(engine, t, tokens[:, t]) for t in range(44)]
    want = slow(tokens[1, :44], lambda t: w, **SPECS[name])
    assert np.array(got)[:, 1] == pytest.approx(want, abs=1e-4)


def test_padding_block_and_update_are_the_slow_loop(exact, made):
    w, new, tokens, other = made
    name = "wrong block 3 in the table"
    engine = Engine(alone(w), FAULTS[name], 32, other[None])
    got = [log_step(engine, t, tokens[:, t]) for t in range(66)]
    want = slow(
        tokens[0],
        lambda t: w,
        foreign=lambda s: other[0] if 48 <= s < 64 else None,
    )
    assert np.array(got)[:, 0] == pytest.approx(want, abs=1e-4)

    name = "left padding not masked"
    engine = Engine(alone(w), FAULTS[name], 48, other[None])
    padded = np.concatenate([np.zeros((2, 16), int), tokens], 1)[:, :50]
    got = [log_step(engine, t, padded[:, t]) for t in range(50)]
    want = slow(padded[0], lambda t: w)
    assert np.array(got)[:, 0] == pytest.approx(want, abs=1e-4)

    engine = Engine(alone(w), Fault(), 32, other[None])
    got = []
    for t in range(50):
        engine.w = alone(w if t < 40 else new)
        got.append(log_step(engine, t, tokens[:, t]))
    want = slow(tokens[0, :50], lambda t: w if t < 40 else new)
    assert np.array(got)[:, 0] == pytest.approx(want, abs=1e-4)


def test_delta_of_a_healthy_engine_is_zero_without_rounding(exact):
    assert np.abs(one(Fault())).max() < 1e-4


def test_new_weights_from_the_first_token_leave_no_old_cache(exact):
    assert np.abs(one(Fault(update=0))).max() < 1e-4


def test_padding_does_not_count_as_decoding(exact):
    padded, both = (one(Fault(pads=4, lag=n)) for n in (0, 1))
    assert both[:, :32] == pytest.approx(padded[:, :32], abs=1e-5)
    assert np.abs(both - padded)[:, 32].max() > 1e-3


FIRST = {
    "prefix hit of 16, positions restart": 16,
    "newest key not read": 32,
    "window of 40": 40,
    "wrong block 3 in the table": 48,
    "update at 56, old cache": 56,
}


CASES = [*((name, 24) for name in FIRST), ("newest key not read", 32)]


@pytest.mark.parametrize(("name", "prompt"), CASES)
def test_claim_nothing_is_wrong_before_the_fault_begins(exact, name, prompt):
    """With a prompt of 24 only the fault of decoding moves."""
    got = np.abs(one(FAULTS[name], prompt, seed=1))
    first = prompt if name == "newest key not read" else FIRST[name]
    assert got[:, :first].max() < 1e-4
    assert got[:, first].max() > 1e-3


def test_claim_norm_and_padding_begin_at_0_rope_at_1(exact, prompt=24):
    """With the shorter prompt, too."""
    for name in ("norm: eps 0.02", "left padding not masked"):
        assert np.abs(one(FAULTS[name], prompt))[:, 0].max() > 0.01
    got = np.abs(one(FAULTS["RoPE: base 70, not 100"], prompt))
    assert got[:, 0].max() < 1e-5 < 1e-3 < got[:, 1].max()


def test_update_is_compared_with_the_weights_that_wrote(exact):
    """Else the tokens before the update would look wrong as well."""
    rng = np.random.default_rng(0)
    w = code.model(rng)
    new = code.moved(w, code.draw(rng, code.SHAPE), 0.05)
    tokens = rng.integers(0, 24, (4, 64))
    both = [code.replay(alone(each), tokens[None]) for each in (w, new)]
    assert (
        np.abs(both[0] - both[1]).max() > 0.01
    )  # the policy did change before 64, too


def test_delta_is_engine_minus_replay_and_positive_in_the_mean(signed):
    """Tokens drawn by the engine: the mean is KL(engine || reference)."""
    for name in FAULTS:
        both = code.run(name), signed[name]
        for kl in (x[:, :, code.PROMPT - 1 :].mean() for x in both):
            assert abs(kl) < 0.001 if name == NAMES[0] else kl > 0.005


def test_claim_an_offset_of_every_position_changes_nothing(exact):
    """RoPE sees distances only: hit = -9 adds 9 to every position."""
    assert np.abs(one(Fault(hit=-9))).max() < 1e-4


def test_rotation_keeps_length_and_sees_distance_only():
    rng = np.random.default_rng(1)
    q, k = rng.standard_normal((2, 8))
    scores = [code.rotate(q, m + 4) @ code.rotate(k, m) for m in (0, 3, 50)]
    assert scores == pytest.approx([scores[0]] * 3)
    back = code.rotate(q, 0) @ code.rotate(k, 4)
    assert abs(back - scores[0]) > 1e-3  # and its sign
    assert np.linalg.norm(code.rotate(q, 7)) == pytest.approx(np.linalg.norm(q))


def test_bf16_has_eight_bits():
    x = np.array([1 + 1 / 128, 1 + 1 / 256, 1 + 3 / 256, 257.0, 1e30, -0.1])
    want = [1 + 1 / 128, 1.0, 1 + 2 / 128, 256.0]  # ties to even
    assert code.bf16(x)[:4].tolist() == want
    assert code.bf16(x)[4:] == pytest.approx(x[4:], rel=2**-8)


def test_claim_a_fault_in_the_scores_cannot_show_at_token_0(made):
    w, _, tokens, _ = made

    def replay(weights, tokens):
        return code.replay(alone(weights), tokens[None])[0]

    right = replay(w, tokens)
    scores = replay(w._replace(q=2 * w.q, k=w.k[:, ::-1]), tokens)
    assert scores[:, 0] == pytest.approx(right[:, 0], abs=1e-6)
    assert np.abs(scores - right)[:, 1].max() > 0.01
    for part in ("v", "mix", "head", "embed"):
        other = w._replace(**{part: 1.5 * getattr(w, part)})
        assert np.abs(replay(other, tokens) - right)[:, 0].max() > 0.01


def test_first_wrong():
    good = np.array([0.01, 0.03, 0.02])
    assert code.first_wrong(np.array([0.09, 0.091, 0.01]), good) == 1
    assert code.first_wrong(good, good) == -1


def cells(table):
    rows = table.splitlines()[2:]
    return [[c.strip() for c in r.split("|")[1:-1]] for r in rows]


def spread(values):
    """What `Estimate` prints, by the definition of the sample deviation."""
    middle = sum(values) / len(values)
    square = sum((x - middle) ** 2 for x in values) / (len(values) - 1)
    return f"{middle:.2f} ± {square**0.5:.2f}"


def test_table_signatures_shows_the_runs_and_no_two_are_alike():
    rows = cells(code.table_signatures())
    assert [r[0] for r in rows] == NAMES
    assert [r[1] for r in rows] == ["none", *"0 0 1 16 32 40 48 56".split()]
    noise = mean(NAMES[0])
    for name, begin, seen, first, last in rows:
        size = mean(name)
        wrong = [
            next((t for t in range(79) if row[t] > 3 * good.max()), None)
            for row, good in zip(size, noise, strict=True)
        ]
        if name == NAMES[0]:
            assert seen == "never" and wrong == [None] * 10
        else:
            ends = sorted({min(wrong), max(wrong)})
            assert seen == " to ".join(map(str, ends))
        t = 0 if begin == "none" else int(begin)
        assert first == spread(size[:, t : t + 8].mean(1).tolist())
        assert last == spread(size[:, 63:].mean(1).tolist())


def test_span_of_positions():
    assert code.span([3, 1, 2]) == "1 to 3" and code.span([4, 4]) == "4"
    assert code.span([32, -1, 49]) == "32 to never" and code.span([-1]) == "never"


def test_claim_a_fault_of_few_keys_may_stay_unseen():
    seeds = range(500, 510)
    size, healthy = (
        np.abs(code.delta(FAULTS[n], seeds=seeds)).mean(1)
        for n in ("newest key not read", NAMES[0])
    )
    pairs = zip(size, healthy, strict=True)
    seen = sorted(code.first_wrong(x, good) for x, good in pairs)
    assert seen[0] == -1 and seen[-2:] == [32 + 15, 32 + 17]


def test_claim_start_and_direction_tell_the_faults_apart(others):
    """On these ten models and on ten others: where it is seen, and growth."""
    spans = {
        "norm: eps 0.02": (0, 1, "grows"),
        "left padding not masked": (0, 1, "fades"),
        "RoPE: base 70, not 100": (2, 8, "grows"),
        "prefix hit of 16, positions restart": (16, 16, "fades"),
        "newest key not read": (32, 37, ""),
        "window of 40": (40, 44, "grows"),
        "wrong block 3 in the table": (48, 50, "grows"),
        "update at 56, old cache": (56, 56, ""),
    }
    for sizes in ({n: mean(n) for n in NAMES}, others):
        noise = sizes[NAMES[0]]
        assert 0.009 < noise.mean(1).min() and noise.mean(1).max() < 0.016
        for name, (low, high, way) in spans.items():
            size, begin = sizes[name], code.BEGINS[name]
            pairs = zip(size, noise, strict=True)
            seen = [code.first_wrong(x, good) for x, good in pairs]
            assert low <= min(seen) and max(seen) <= high
            first = size[:, begin : begin + 8].mean(1)
            assert 0.09 < first.mean() < 1.7
            growth = size[:, -16:].mean(1) - first
            if way == "grows":
                assert (growth > 0).all()
            if way == "fades":
                assert (growth < 0).all()


def test_claim_shapes(others):
    for size in ({n: mean(n) for n in NAMES}, others):
        rope, good = size["RoPE: base 70, not 100"], size[NAMES[0]]
        assert rope[:, 0] == pytest.approx(good[:, 0], abs=0.02)
        assert (rope[:, :8].mean(1) < rope[:, 16:24].mean(1)).all()
        lag = size["newest key not read"]
        assert lag[:, 32:40].mean() > 1.2 * lag[:, -16:].mean()


def test_claim_parts_merge_by_their_log_sum_exp():
    rng = np.random.default_rng(3)
    score, value = rng.standard_normal(12) * 3, rng.standard_normal((12, 4))
    weight = np.exp(score)
    want = (weight[:, None] * value).sum(0) / weight.sum()
    for cuts in ([5], [1, 4, 9]):
        parts = np.split(np.arange(12), cuts)
        outs = [weight[i] @ value[i] / weight[i].sum() for i in parts]
        sums = [float(np.log(weight[i].sum())) for i in parts]
        assert code.merge(outs, sums) == pytest.approx(want, abs=1e-14)
        same = code.merge(outs, [x + 900 for x in sums])
        assert same == pytest.approx(want, abs=1e-12)  # no overflow
        for wrong in (np.mean(outs, 0), code.merge(outs, sums[::-1])):
            assert np.abs(wrong - want).max() > 0.1
        undefined = [*outs, np.full(4, 7.0)]  # a part without keys
        got = code.merge(undefined, [*sums, -np.inf])
        assert got == pytest.approx(want, abs=1e-14)
        got = code.merge(undefined, [*sums, max(sums)])
        assert np.abs(got - want).max() > 0.1


def test_penalty_by_sign():
    z = np.array([2.0, -2.0, 1.0, -1.0])
    seen = np.array([True, True, False, False])
    got = code.penalise(z, seen, 2.0)
    assert got.tolist() == [1.0, -4.0, 1.0, -1.0]
    assert code.penalise(z, seen, 1.0).tolist() == z.tolist()
    assert code.penalise(z, seen, 0.5).tolist() == [4.0, -1.0, 1.0, -1.0]


def test_claim_dividing_a_negative_logit_rewards_the_repetition():
    z = np.array([-2.0, -2.0])
    naive = np.array([z[0] / 1.5, z[1]])
    assert code.softmax(naive)[0] > 0.5  # token 0 was seen
    assert code.softmax(code.penalise(z, np.array([True, False]), 1.5))[0] < 0.5


def test_claim_the_penalty_is_not_invariant_to_a_shift():
    z, seen = np.array([1.0, 0.5]), np.array([True, False])
    a = code.softmax(code.penalise(z, seen, 1.3))[0]
    b = code.softmax(code.penalise(z + 10, seen, 1.3))[0]
    assert code.softmax(z)[0] == pytest.approx(code.softmax(z + 10)[0])
    assert (round(a, 2), round(b, 2)) == (0.57, 0.12)


def test_repeated():
    assert code.repeated(np.array([[1, 2, 3, 4, 5]])) == 0
    assert code.repeated(np.array([[7] * 7])) == pytest.approx(3 / 4)
    both = np.array([[1, 2, 3, 4, 5], [7] * 5])
    assert code.repeated(both) == pytest.approx(0.25)


def test_tokens_are_sampled_after_the_penalty():
    """Over them processed minus raw estimates a KL: above 0."""
    run = code.loop(1.3, greedy=False)
    assert (run.processed - run.raw).mean() > 0.02


def test_the_update_moves_keys_and_values_by_a_twentieth():
    w, new, *_ = code.setting(range(8))
    for old, after in ((w.k, new.k), (w.v, new.v)):
        size = np.linalg.norm(after - old) / np.linalg.norm(old)
        assert size == pytest.approx(0.05, rel=0.05)


def test_loops_are_what_the_model_says():
    w, _, tokens, _, _ = code.setting(range(10))
    for penalty in (1.0, 1.3):
        run = code.loop(penalty, greedy=True)
        whole = np.concatenate([tokens[..., :1], run.tokens], 2)
        p = code.replay(w, whole[..., :-1])
        raw = np.take_along_axis(p, whole[..., 1:, None], 3)[..., 0]
        assert np.abs(raw - run.raw).mean() < 0.05
        if penalty == 1.0:
            assert run.processed == pytest.approx(run.raw)
            assert (p.argmax(3) == run.tokens).mean() > 0.97
        else:
            assert (run.processed < run.raw).any()


def share_repeated(tokens):
    again = []
    for line in tokens.tolist():
        known = set()
        for i in range(len(line) - 3):
            again.append(tuple(line[i : i + 4]) in known)
            known.add(tuple(line[i : i + 4]))
    return 100 * np.mean(again)


def test_table_loops_shows_the_runs():
    rows = cells(code.table_loops())
    keys = [(True, 1.0), (True, 1.3), (False, 1.0), (False, 1.3)]
    for row, (greedy, penalty) in zip(rows, keys, strict=True):
        run = code.loop(penalty, greedy)
        assert row[0] == ("greedy" if greedy else "temperature 1")
        assert float(row[1]) == penalty
        shares = [share_repeated(each) for each in run.tokens]
        want = f"{np.mean(shares):.0f} ± {np.std(shares, ddof=1):.0f} %"
        assert row[2] == want
        gaps = np.abs(run.processed - run.raw).mean((1, 2)).tolist()
        assert row[3] == spread(gaps)


def test_claim_a_healthy_engine_loops_under_greedy(others):
    """Far more than when sampling; a penalty lowers it and opens a gap."""
    for seeds, noise in (
        (range(10), mean(NAMES[0]).mean()),
        (OTHER, others[NAMES[0]].mean()),
    ):
        share, gap = {}, {}
        for greedy in (True, False):
            for penalty in (1.0, 1.3):
                run = code.loop(penalty, greedy, seeds)
                each = [share_repeated(x) for x in run.tokens]
                share[greedy, penalty] = np.array(each)
                gap[greedy, penalty] = np.abs(run.processed - run.raw).mean()
        assert (share[True, 1.0] > share[False, 1.0] + 10).all()
        assert share[False, 1.0].mean() == pytest.approx(3, abs=1)
        assert share[True, 1.0].min() > 15
        assert (share[True, 1.3] < share[True, 1.0]).all()
        for greedy in (True, False):
            assert gap[greedy, 1.0] < 1e-6
            assert 20 < gap[greedy, 1.3] / noise < 30


def test_claim_norms_in_low_precision():
    table = [[float(c) for c in row] for row in cells(code.table_norm())]
    assert [row[0] for row in table] == [1, 5, 300]
    assert all(row[1] == 1 for row in table)
    # float16: adding 1 to 2,048 gives 2,048; bfloat16: 1 to 256 gives 256
    assert table[0][2:] == pytest.approx([(4096 / 2048) ** 0.5, 4], abs=0.005)
    assert np.float16(2048) + np.float16(1) == 2048
    assert table[1][2] == table[2][2] == 0
    assert 256**2 > float(np.finfo(np.float16).max) > 255.9**2
    assert 4096 * 4**2 > float(np.finfo(np.float16).max) > 4096 * 3.99**2
    assert np.float16(1e-8) == 0 and np.float16(1e-6) > 0
    with np.errstate(invalid="ignore"):
        assert np.isnan(np.float16(0) / np.float16(0 * 0 + 1e-8) ** 0.5)


@pytest.mark.parametrize("x", [0.3, 0.85, 1.7])
def test_every_step_of_the_norm_is_rounded(x):
    """Against torch's float16, one operation at a time."""
    value = torch.tensor(x, dtype=torch.float64).half()
    total = torch.zeros((), dtype=torch.float16)
    for _ in range(50):
        total = total + value * value
    root = (total / 50 + torch.tensor(1e-5).half()).sqrt()
    got = code.normed(float(value), 50, code.fp16)
    assert got == (value / root).item()


def test_norm_at_the_right_precision():
    for x in (1e-4, 1.0, -3.0):
        want = x / np.sqrt(x * x + 1e-5)
        assert code.normed(x, 64, code.fp32) == pytest.approx(want, rel=1e-5)


def test_claim_one_nan_makes_every_token_the_first():
    z = np.array([0.3, np.nan, 2.0])
    p = code.softmax(z)
    assert np.isnan(p).all() and p.argmax() == 0
    assert z.argmax() == 1  # on the logits: the NaN's own index
    with np.errstate(invalid="ignore"):
        assert np.isnan(code.softmax(np.full(3, -np.inf))).all()


@pytest.mark.parametrize(("first", "gradient"), [(False, "nan"), (True, 0.0)])
def test_claim_a_clamp_of_k3s_value_leaves_a_nan_gradient(first, gradient):
    """At log r = 100 the loss is 10 both ways."""
    log_r = torch.tensor(100.0, requires_grad=True)
    x = log_r.clamp(-20, 20) if first else log_r
    loss = (x.exp() - x - 1).clamp(-10, 10)
    loss.backward()
    assert loss.item() == 10
    got = log_r.grad.item()
    assert np.isnan(got) if gradient == "nan" else got == gradient


def test_claim_small_means_of_the_wrong_answers():
    """The newest key, 0.06 over the run; repeats: two thirds, at most 7 %."""
    lag = mean("newest key not read")
    assert lag.mean() == pytest.approx(0.06, abs=0.005)
    seen = code.seen_from("newest key not read")
    assert max(seen) == code.BEGINS["newest key not read"] + 5
    greedy = [share_repeated(x) for x in code.loop(1.0, greedy=True).tokens]
    assert max(greedy) == pytest.approx(200 / 3, abs=3) and min(greedy) > 15
    drawn = [share_repeated(x) for x in code.loop(1.0, greedy=False).tokens]
    assert max(drawn) < 7.5
    gap = code.loop(1.3, greedy=False)
    size = np.abs(gap.processed - gap.raw).mean()
    assert size == pytest.approx(0.27, abs=0.005)


def test_claim_stop_tokens():
    told = [5, 9, 7, 5, 2, 1]
    assert code.finish(told, {2}, 9) == ([5, 9, 7, 5, 2], "stop")
    assert code.finish(told, {2, 7}, 9) == ([5, 9, 7], "stop")
    assert code.finish(told, {7}, 3) == ([5, 9, 7], "stop")  # not length
    assert code.finish(told, {7}, 2) == ([5, 9], "length")


def test_claim_masks():
    padded = [5, 9, 4, 2, 2, 2]
    assert code.mask_by_token(padded, 2) == [1, 1, 1, 0, 0, 0]
    assert code.mask_by_length(padded, 4) == [1, 1, 1, 1, 0, 0]
    assert code.mask_by_token([5, 9, 2, 0], 0) == [1, 1, 1, 0]  # pad not EOS


def test_claim_a_han_character_in_two_tokens():
    raw = "断".encode()
    assert len(raw) == 3
    assert code.stream([raw[:2], raw[2:]], hold=False) == "\ufffd\ufffd"
    assert code.stream([raw[:2], raw[2:]], hold=True) == "断"
    assert code.stream([raw[:2]], hold=True) == ""  # cut by the limit


def test_report_says_all_three():
    text = code.report_ends()
    assert "stop ids [2]: [5, 9, 4, 7, 5, 9, 4, 7] length" in text
    assert "stop ids [2, 7]: [5, 9, 4, 7] stop" in text
    assert "by token:  [1, 1, 1, 0, 0, 0]" in text
    assert "by length: [1, 1, 1, 1, 0, 0]" in text
    assert text.endswith("断句") and "\ufffd" in text


def test_figure_shows_the_errors():
    axes = code.figure_signatures().axes[0]
    assert "nats" in axes.get_ylabel()
    assert "position" in axes.get_xlabel()
    assert list(code.PANELS) == NAMES[1:]
    noise = mean(NAMES[0])
    ticks = axes.get_yticks()
    assert [t.get_text() for t in axes.get_yticklabels()] == ["0.01", "1"] * 8
    for row, name in enumerate(code.PANELS):
        grey, line, mark = axes.lines[3 * row : 3 * row + 3]
        low, high = ticks[2 * row : 2 * row + 2]
        assert high - low == pytest.approx(2)  # decades

        def read(curve, low=low):
            return 0.01 * 10 ** (curve.get_ydata() - low)

        assert read(grey) == pytest.approx(noise.mean(0), rel=1e-5)
        assert read(line) == pytest.approx(mean(name).mean(0), rel=1e-5)
        start = int(mark.get_xdata()[0])
        assert axes.texts[row].get_text() == f"{code.PANELS[name]}: {start}"
        assert start == [0, 0, 1, 16, 32, 40, 48, 56][row]
        band = axes.collections[2 * row + 1].get_paths()[0].vertices[:, 1]
        ends = 0.01 * 10 ** (np.array([band.min(), band.max()]) - low)
        want = [mean(name).min(), mean(name).max()]
        assert ends == pytest.approx(want, rel=1e-5)
    assert axes.get_xlim() == (0, 80) and axes.get_xticks().max() == 80
    for row in range(7):  # curves of two rows do not meet
        lower = max(axes.lines[3 * row + 4].get_ydata())
        assert lower < min(axes.lines[3 * row + 1].get_ydata())
