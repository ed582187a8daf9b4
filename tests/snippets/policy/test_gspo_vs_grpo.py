"""GSPO against GRPO: definitions by loops, autograd, exact sums, samples."""

from itertools import product
from math import exp, isclose, log, prod, sqrt
from statistics import NormalDist, stdev

import pytest
import torch
from matplotlib.patches import StepPatch

from snippets.policy import gspo_vs_grpo as g

DOUBLE = {"dtype": torch.float64}


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """torch.testing's check without its second of imports."""
    assert actual.shape == expected.shape
    assert torch.allclose(actual, expected, rtol=1e-7, atol=1e-12)


@pytest.fixture
def batch() -> tuple[torch.Tensor, ...]:
    """Three responses of 5, 3 and 4 tokens, with a gap in the last mask."""
    generator = torch.Generator().manual_seed(3)
    old = -torch.rand(3, 5, generator=generator, **DOUBLE) - 0.1
    shift = torch.randn(3, 5, generator=generator, **DOUBLE)
    new = old + 0.4 * shift
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 1, 1, 1]])
    advantages = torch.tensor([[1.5], [-0.7], [-1.1]], **DOUBLE)
    return new, old, advantages.expand(3, 5), mask.double()


def by_loop(new, old, advantages, mask, level, low, high) -> float:
    """The paper's equations 2 and 5 with explicit loops and products."""
    total = 0.0
    for n, o, a, m in zip(new, old, advantages, mask, strict=True):
        own = [t for t in range(len(n)) if m[t]]
        w = [exp(n[t]) / exp(o[t]) for t in own]
        if level == "token":
            ratios = w
        else:
            ratios = [prod(w) ** (1 / len(w))]
        terms = []
        for r in ratios:
            inside = min(max(r, 1 - low), 1 + high)
            terms.append(min(r * float(a[0]), inside * float(a[0])))
        total += sum(terms) / len(terms)
    return total / len(new)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("band", [(0.2, 0.27), (3e-4, 4e-4), (1.0, 1e9)])
def test_objective_is_the_papers(batch, level, band):
    value = g.objective(*batch, level, *band)
    assert isclose(value.item(), by_loop(*batch, level, *band), rel_tol=1e-12)


def test_padding_and_tool_tokens_do_not_count(batch):
    new, old, advantages, mask = batch
    other = torch.where(mask > 0, new, new + 3)
    for level in ("token", "sequence", "sequence_token"):
        a = g.objective(new, old, advantages, mask, level, 0.3, 0.1)
        b = g.objective(other, old, advantages, mask, level, 0.3, 0.1)
        assert torch.equal(a, b)


def test_unknown_level_and_empty_response(batch):
    with pytest.raises(ValueError, match="seq"):
        g.objective(*batch, "seq", 0.2, 0.2)
    new, old, advantages, mask = batch
    value = g.objective(new, old, advantages, mask * 0, "sequence", 0.1, 0.1)
    assert value == 0


def gradient(batch, level, low, high):
    new, old, advantages, mask = batch
    new = new.clone().requires_grad_()
    value = g.objective(new, old, advantages, mask, level, low, high)
    return value, torch.autograd.grad(value, new)[0]


def test_gradient_equals_finite_differences(batch):
    new, old, advantages, mask = batch
    for level in ("token", "sequence"):
        _, slope = gradient(batch, level, 0.2, 0.27)
        for i, t in product(range(3), range(5)):
            step = torch.zeros_like(new)
            step[i, t] = 1e-6
            up, down = (
                g.objective(x, old, advantages, mask, level, 0.2, 0.27)
                for x in (new + step, new - step)
            )
            assert isclose(slope[i, t], (up - down) / 2e-6, rel_tol=1e-6, abs_tol=1e-9)


def test_claim_gradients_are_w_and_s_times_the_score(batch):
    new, old, advantages, mask = batch
    length = mask.sum(1, keepdim=True)
    w = (new - old).exp()
    s = ((new - old) * mask).sum(1, keepdim=True).div(length).exp()
    for level, weight in (("token", w), ("sequence", s)):
        _, slope = gradient(batch, level, *g.OPEN)
        expected = advantages * weight * mask / length / 3
        assert_close(slope, expected)


def test_claim_gspo_token_is_gspo_when_advantages_are_equal(batch):
    for band in (g.OPEN, (0.2, 0.27), g.GSPO_BAND):
        value, slope = gradient(batch, "sequence", *band)
        same, same_slope = gradient(batch, "sequence_token", *band)
        assert_close(value, same)
        assert_close(slope, same_slope)


def test_claim_gspo_token_differs_with_token_advantages(batch):
    new, old, _, mask = batch
    advantages = torch.arange(15.0, **DOUBLE).reshape(3, 5) / 7 - 1
    batch = new, old, advantages, mask
    value, slope = gradient(batch, "sequence", *g.OPEN)
    same, other = gradient(batch, "sequence_token", *g.OPEN)
    assert_close(value, same)  # the values still agree
    assert not torch.allclose(slope, other)
    length = mask.sum(1, keepdim=True)
    s = ((new - old) * mask).sum(1, keepdim=True).div(length).exp()
    assert_close(other, s * advantages * mask / length / 3)
    mean = (advantages * mask).sum(1, keepdim=True) / length
    assert_close(slope, s * mean * mask / length / 3)


def test_claim_on_policy_both_gradients_are_equal(batch):
    _, old, advantages, mask = batch
    on_policy = old, old, advantages, mask
    results = [
        gradient(on_policy, level, *band)
        for level, band in (
            ("token", g.GRPO_BAND),
            ("sequence", g.GSPO_BAND),
            ("sequence_token", g.GSPO_BAND),
        )
    ]
    for value, slope in results[1:]:
        assert_close(value, results[0][0])
        assert_close(slope, results[0][1])


def test_one_token_is_grpo_with_the_same_band():
    log_w = torch.tensor([0.3], **DOUBLE)
    for a in (1.0, -1.0):
        token = g.token_weights(log_w, a, "token", 0.2, 0.2)
        assert torch.equal(token, g.token_weights(log_w, a, "sequence", 0.2, 0.2))


def test_claim_worked_example():
    w = [exp(x) for x in (0.5, -0.3, 0.1, 0.0)]
    s = prod(w) ** 0.25
    assert round(s, 3) == 1.078
    assert round(prod(w), 2) == 1.35
    weights = g.token_weights(g.LOG_W, 1.0, "token", *g.GRPO_BAND)
    assert weights.tolist() == pytest.approx([0, w[1], w[2], w[3]])
    weights = g.token_weights(g.LOG_W, -1.0, "token", *g.GRPO_BAND)
    assert weights.tolist() == pytest.approx([w[0], 0, w[2], w[3]])
    weights = g.token_weights(g.LOG_W, 1.0, "sequence", *g.GSPO_BAND)
    assert weights.tolist() == [0, 0, 0, 0]
    weights = g.token_weights(g.LOG_W, -1.0, "sequence", *g.GSPO_BAND)
    assert weights.tolist() == pytest.approx([s] * 4)
    weights = g.token_weights(g.LOG_W, 1.0, "sequence", 0.2, 0.27)
    assert weights.tolist() == pytest.approx([s] * 4)  # 0.2 does not clip


# --- Noise ------------------------------------------------------------------


@pytest.mark.parametrize("shared", [0.0, 0.3])
def test_spread_against_samples(shared):
    generator = torch.Generator().manual_seed(0)
    own = torch.randn(20000, 4, generator=generator, **DOUBLE)
    common = torch.randn(20000, 1, generator=generator, **DOUBLE)
    log_w = 0.1 * (sqrt(1 - shared) * own + sqrt(shared) * common)
    for f, sample in (
        (g.sd_log_s, log_w.mean(1)),
        (g.sd_log_product, log_w.sum(1)),
    ):
        assert isclose(f(0.1, 4, shared), sample.std(), rel_tol=0.02)


def test_clipped_share_against_samples():
    generator = torch.Generator().manual_seed(1)
    ratio = (0.3 * torch.randn(200000, generator=generator) - 0.1).exp()
    good, bad = g.clipped_share(-0.1, 0.3, 0.2, 0.4)
    assert isclose(good, (ratio > 1.4).double().mean(), abs_tol=0.003)
    assert isclose(bad, (ratio < 0.8).double().mean(), abs_tol=0.003)
    assert g.outside(ratio, 0.2, 0.4) == pytest.approx((good, bad), abs=0.003)
    # the same shares as objective's zero gradients
    ones = torch.ones(len(ratio), 1)
    for a, share in ((1.0, good), (-1.0, bad)):
        batch = ratio.log()[:, None], 0 * ones, a * ones, ones
        _, slope = gradient(batch, "sequence", 0.2, 0.4)
        assert isclose((slope == 0).double().mean().item(), share, abs_tol=0.003)


def test_claim_scale_of_the_clip_range():
    # 32-fold at 1,000 tokens; sigma 0.02 gives the order of 3e-4 to 4e-4
    assert isclose(0.02 / g.sd_log_s(0.02, 1000), 31.6, abs_tol=0.05)
    assert 6e-4 < g.sd_log_s(0.02, 1000) < 6.4e-4
    assert 2.2e-4 < g.sd_log_s(0.02, 8000) < 2.3e-4
    # GRPO's 0.2 is 10 sigma of a token, GSPO's range half a sigma of s
    assert isclose(0.2 / 0.02, 10)
    assert 0.4 < 3e-4 / g.sd_log_s(0.02, 1000) < 0.5
    assert 0.6 < 4e-4 / g.sd_log_s(0.02, 1000) < 0.7
    # correlation 0.01: a floor of a tenth of sigma
    assert isclose(g.sd_log_s(0.02, 1e9, 0.01), 0.002, rel_tol=1e-4)


def test_claim_mean_log_ratio_needed_for_a_band():
    # 0.2: +0.18 or -0.22 nats a token; per 1,000 tokens e^182 and e^-223
    assert round(log(1.2), 2) == 0.18 and round(log(0.8), 2) == -0.22
    # 4e-4 and -3e-4 over 1,000 tokens: 0.4 and -0.3 nats of the product
    assert round(exp(1000 * log(1 + 4e-4)), 2) == 1.49
    assert round(exp(1000 * log(1 - 3e-4)), 2) == 0.74
    assert round(exp(10000 * log(1 + 4e-4))) == 55


def test_claim_clipped_shares():
    # sigma 0.01: 15 % of the responses, no tokens
    good, bad = g.clipped_share(-5e-5, g.sd_log_s(0.01, 1000), *g.GSPO_BAND)
    assert round((good + bad) / 2, 2) == 0.15
    assert sum(g.clipped_share(-5e-5, 0.01, *g.GRPO_BAND)) < 1e-12
    # the left side is clipped more at every sigma of the table
    for sigma in (0.005, 0.01, 0.02, 0.05, 0.1):
        mean, sd = -(sigma**2) / 2, g.sd_log_s(sigma, 1000)
        good, bad = g.clipped_share(mean, sd, *g.GSPO_BAND)
        assert bad > good
        # ... also with a symmetric band
        good, bad = g.clipped_share(mean, sd, 4e-4, 4e-4)
        assert bad > good


def test_claim_a_fixed_band_clips_short_answers_more():
    shares = {
        length: g.clipped_share(-2e-4, g.sd_log_s(0.02, length), *g.GSPO_BAND)
        for length in (100, 10000)
    }
    assert round(shares[100][0], 2) == 0.38
    assert round(shares[100][1], 2) == 0.48
    assert shares[10000][0] < 0.0015
    assert round(shares[10000][1], 2) == 0.31


def test_claim_engine_log_probs():
    good, bad = g.clipped_share(-1.5e-3, sqrt(3e-3 / 8000), *g.GSPO_BAND)
    assert good < 0.002 and bad > 0.97
    good, bad = g.clipped_share(-1.5e-3, sqrt(3e-3 / 8000), 4e-3, 4e-3)
    assert good < 1e-4 and bad < 1e-4
    # Gaussian with E[ratio] = 1: KL = sigma^2 / 2
    assert isclose(-(0.02**2) / 2, log(1) - 0.02**2 / 2)


# --- Mixture of experts -----------------------------------------------------


def test_moe_against_a_loop():
    generator = torch.Generator().manual_seed(5)
    kind = {"generator": generator, **DOUBLE}
    weights = {
        "router": torch.randn(2, 4, 3, **kind),
        "experts": torch.randn(2, 4, 3, 3, **kind),
        "head": torch.randn(5, 3, **kind),
    }
    x = torch.randn(7, 3, **kind)
    log_probs, used = g.moe(weights, x)
    for n in range(7):
        h = x[n]
        for layer in range(2):
            scores = weights["router"][layer] @ h
            best = sorted(range(4), key=lambda e: -scores[e])[:2]
            assert sorted(used[layer, n].tolist()) == sorted(best)
            e = [exp(scores[b]) for b in best]
            h = h + sum(
                gate / sum(e) * torch.tanh(h @ weights["experts"][layer, b])
                for gate, b in zip(e, best, strict=True)
            )
        expected = (weights["head"] @ h).log_softmax(0)
        assert_close(log_probs[n], expected)
    again, _ = g.moe(weights, x, used)
    assert_close(again, log_probs)
    other, kept = g.moe(weights, x, 3 - used)
    assert torch.equal(kept, 3 - used)
    assert not torch.allclose(other, log_probs)


OTHERS = range(100, 108)
"""Seeds that the page does not use."""


@pytest.fixture(scope="module")
def others() -> list[tuple]:
    return [
        g.update_routers(torch.Generator().manual_seed(seed), 16) for seed in OTHERS
    ]


def test_claim_flips(others):
    gspo = []
    for replayed, free, changed, share, (low, high) in others:
        assert free.shape == (16, 1000)
        assert 0.05 < share < 0.07  # of the expert choices
        assert 0.35 < changed.double().mean() < 0.45  # of the tokens
        # tokens whose experts changed; the others are as calm as with replay
        assert 4.5 < free[changed].std() / free[~changed].std() < 7.5
        assert isclose(free[~changed].std(), replayed.std(), rel_tol=0.1)
        assert 10 < high / low < 20
        f = g.moe_row(free)
        # noise of s falls as 1 / sqrt(T), its mean does not
        assert isclose(f["sd s"], f["sd w"] / sqrt(1000), rel_tol=0.5)
        assert isclose(f["mean"], -high, rel_tol=0.8)
        assert 0.1 < f["max w"] < 0.5 and 0.001 < f["max s"] < 0.003
        assert f["grpo"] < 5e-4
        assert 0.2 < f["gspo-"] < 0.8
        gspo.append((f["gspo-"], f["gspo+"], high / low))
        # at clip 0.2 GSPO silences nothing
        assert g.outside(free.mean(1).exp(), 0.2, 0.2) == (0, 0)
    bad, good, ratio = (sum(x) / len(gspo) for x in zip(*gspo, strict=True))
    assert 0.42 < bad < 0.6 and 0.1 < good < 0.3
    assert 12.5 < ratio < 16.5


def test_toy_is_the_rows_of_one_seed(others):
    replayed, free, _, _, (low, high) = others[0]
    found = g.toy(OTHERS[0])
    for got, log_w, drift in ((found[:7], replayed, low), (found[7:], free, high)):
        s = log_w.mean(1)
        assert got[0] == pytest.approx(log_w.std().item())
        assert got[1] == pytest.approx(log_w.abs().max().item())
        assert got[2] == drift
        assert got[3] == pytest.approx(s.std().item())
        ratio = log_w.exp()
        clipped = (ratio > 1.27).double().mean() + (ratio < 0.8).double().mean()
        assert got[4] == pytest.approx(clipped.item() / 2)
        assert got[5] == (s.exp() > 1.0004).double().mean()
        assert got[6] == (s.exp() < 0.9997).double().mean()


def test_moe_row_against_a_loop():
    log_w = torch.tensor([[0.3, -0.5], [0.001, 0.0], [-0.3, 0.1]], **DOUBLE)
    r = g.moe_row(log_w)
    w = [exp(x) for row in log_w.tolist() for x in row]
    s = [exp(sum(row) / 2) for row in log_w.tolist()]
    assert isclose(r["grpo"], (sum(x > 1.27 for x in w) + sum(x < 0.8 for x in w)) / 12)
    assert isclose(r["gspo+"], sum(x > 1.0004 for x in s) / 3)
    assert isclose(r["gspo-"], sum(x < 0.9997 for x in s) / 3)
    assert isclose(r["mean"], sum(map(log, s)) / 3)
    assert isclose(r["max w"], 0.5) and isclose(r["max s"], 0.1)
    assert isclose(r["sd w"], stdev(map(log, w)))
    assert isclose(r["sd s"], stdev(map(log, s)))


def test_kl_direction():
    old, new = torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]]], **DOUBLE).log()
    expected = 0.9 * log(0.9 / 0.5) + 0.1 * log(0.1 / 0.5)
    assert isclose(g.kl(old, new), expected)
    reverse = 0.5 * log(0.5 / 0.9) + 0.5 * log(0.5 / 0.1)
    assert isclose(g.kl(new, old), reverse) and reverse > expected + 0.1


def test_mean_log_s_is_minus_the_kl():
    replayed, free, _, _, exact = g.flips()
    for log_w, kl in zip((replayed, free), exact, strict=True):
        k3 = (log_w.exp() - 1 - log_w).mean()  # KL(old || new), unbiased
        assert isclose(k3, kl, rel_tol=0.03)
        error = log_w.std() / log_w.numel() ** 0.5
        assert log_w.shape == (32, 1000)
        assert abs(log_w.mean() + kl) < 3 * error
        assert isclose(log_w.exp().mean(), 1, abs_tol=3 * error)


def test_claim_mean_log_s_can_be_positive_if_lengths_differ():
    # Stop at once (old 0.5, new 0.6), else write 99 tokens on which the
    # policies agree: (probability, log-ratios of all tokens).
    answers = (
        (0.5, [log(0.6 / 0.5)]),
        (0.5, [log(0.4 / 0.5)] + 99 * [0.0]),
    )
    mean_log_s = sum(p * sum(r) / len(r) for p, r in answers)
    mean_sum = sum(p * sum(r) for p, r in answers)
    assert round(mean_log_s, 2) == 0.09  # although ...
    assert mean_sum < -0.02  # ... this is -KL of the whole sequence


# --- Not an importance weight -------------------------------------------------


@pytest.mark.parametrize("length", [4, 5])  # an even one can tie
def test_pass_rates_by_enumeration(length):
    old, new = 0.4, 0.55
    expected = dict.fromkeys(("old", "new", "product", "s", "mean w", "E s"), 0)
    for flips in product((0, 1), repeat=length):
        w = [new / old if f else (1 - new) / (1 - old) for f in flips]
        p = prod(old if f else 1 - old for f in flips)
        q = prod(new if f else 1 - new for f in flips)
        s = prod(w) ** (1 / length)
        expected["E s"] += p * s
        if sum(flips) > length / 2:
            expected["old"] += p
            expected["new"] += q
            expected["product"] += p * prod(w)
            expected["s"] += p * s
            expected["mean w"] += p * sum(w) / length
    assert g.pass_rates(length, old, new) == pytest.approx(expected)


def test_claim_s_reweights_almost_nothing():
    e = g.pass_rates(1001, 0.5, 0.52)
    assert isclose(e["product"], e["new"], rel_tol=1e-9)
    assert round(e["new"], 2) == 0.90 and round(e["s"], 2) == 0.50
    kl = -0.5 * (log(1.04) + log(0.96))
    assert isclose(e["E s"], exp(-kl), abs_tol=2e-6)
    assert e["E s"] < 1
    one = g.pass_rates(1, 0.5, 0.52)
    assert isclose(one["s"], one["new"]) and isclose(one["E s"], 1)


def test_claim_weights_inside_the_band_are_nearly_one():
    log_w = torch.tensor([0.02, -0.0192, 0.0], **DOUBLE)  # s = 1.00027
    for a in (1.0, -1.0):
        kept = g.token_weights(log_w, a, "sequence", *g.GSPO_BAND)
        assert 0 < (kept - 1).abs().max() < 4e-4
        assert torch.equal(kept, kept[:1].expand(3))


# --- Memory and precision -----------------------------------------------------


def test_claim_memory():
    answers, tokens = 8192, 8192
    assert answers * tokens * 4 == 256 * 2**20  # a float32 log-prob tensor
    assert answers * 4 == 32 * 2**10  # one s per response
    routes = 48 * 8  # Qwen3-30B-A3B: layers x experts per token, one byte
    assert routes == 384 and routes // 4 == 96
    assert routes * tokens == 3 * 2**20
    assert routes * tokens * answers == 24 * 2**30
    # forward 2, forward and backward 6 FLOP a parameter and token
    assert 2 / (2 + 6) == 0.25


def test_claim_bf16_cannot_hold_the_band():
    for x in (1 - 3e-4, 1 + 4e-4):
        assert torch.tensor(x).bfloat16() == 1
        assert torch.tensor(x, dtype=torch.float32) != 1
    one = torch.tensor(1.0).bfloat16()
    assert torch.tensor([0.9981, 1.0039]).bfloat16().eq(1).all()
    assert torch.tensor([0.9979, 1.0040]).bfloat16().ne(1).all()
    assert torch.tensor(-1.0038).bfloat16() == -one  # a log-prob
    assert torch.tensor(1.0 + 2**-7).bfloat16() > one
    assert torch.tensor(1.0 + 2**-9).bfloat16() == one
    assert torch.finfo(torch.bfloat16).eps == 2**-7


# --- Tables and figures as data -----------------------------------------------


def cells(table: str, row: int) -> list[str]:
    """Cells of a table's body row, 0 the first."""
    return [x.strip() for x in table.splitlines()[row + 2].split("|")[1:-1]]


def test_bands_are_the_papers():
    assert g.GSPO_BAND == (3e-4, 4e-4) and g.GRPO_BAND == (0.2, 0.27)


def test_table_weights():
    s = "1.078"
    assert cells(g.table_weights(), 0) == [
        "0.5",
        "1.649",
        "0.000",
        "1.649",
        s,
        "0.000",
        s,
    ]
    assert cells(g.table_weights(), 1)[1:4] == ["0.741", "0.741", "0.000"]


def test_claim_spread_at_1000_tokens():
    assert round(g.sd_log_product(0.02, 1000), 2) == 0.63
    assert round(g.sd_log_s(0.02, 1000), 5) == 0.00063
    assert round(g.sd_log_s(0.02, 1000, 0.01), 4) == 0.0021


def test_table_clipped():
    # deviation sigma / sqrt(1000), mean -sigma^2 / 2
    for k, sigma in enumerate((0.005, 0.01, 0.02, 0.05, 0.1)):
        sd = NormalDist(-(sigma**2) / 2, sigma / sqrt(1000))
        good, bad = 1 - sd.cdf(log(1.0004)), sd.cdf(log(0.9997))
        row = cells(g.table_clipped(), k)
        assert row[0] == f"{sigma:g}"
        shown = [float(x.removesuffix(" %")) / 100 for x in row[3:6]]
        assert shown == pytest.approx([good, bad, (good + bad) / 2], rel=0.051)
    token = NormalDist(-0.005, 0.1)
    share = (1 - token.cdf(log(1.27)) + token.cdf(log(0.8))) / 2
    assert cells(g.table_clipped(), 4)[6] == f"{100 * share:.1f} %" == "1.1 %"


def test_table_engine():
    # deviation sqrt(2 KL / T); three bands, A > 0 and A < 0
    for row, drift in enumerate((2e-4, 5e-4, 1.5e-3)):
        line = cells(g.table_engine(), row)
        assert line[1] == f"{exp(-drift):.4f}"
        for k, (length, low, high) in enumerate(
            ((1000, 3e-4, 4e-4), (8000, 3e-4, 4e-4), (8000, 4e-3, 4e-3))
        ):
            s = NormalDist(-drift, sqrt(2 * drift / length))
            want = 1 - s.cdf(log(1 + high)), s.cdf(log(1 - low))
            for cell, share in zip(line[2 + 2 * k : 4 + 2 * k], want, strict=True):
                shown = float(cell.removesuffix(" %")) / 100
                assert shown == pytest.approx(share, rel=0.051, abs=1e-9)
    row = cells(g.table_engine(), 2)
    assert row[5] == "97 %" and row[1] == "0.9985"
    assert [cells(g.table_engine(), k)[0] for k in range(3)] == [
        r"$2.0\cdot10^{-4}$",
        r"$5.0\cdot10^{-4}$",
        r"$1.5\cdot10^{-3}$",
    ]


def test_table_moe():
    found = g.toy_estimates()
    assert list(found) == ["replayed", "free"]
    for seed in (0, 9):
        first = [found[name][key].values[seed] for name in found for key in g.KEYS]
        assert first == g.toy(seed)
    free = list(zip(*(found["free"][key].values for key in g.KEYS), strict=True))
    assert len(free) == 10
    line = cells(g.table_moe(), 1)
    assert line[0] == "free"
    for column, scale, digits in (
        (0, 1, 3), (1, 1, 2), (2, 1e5, 1), (3, 1e4, 1), (4, 100, 3),
        (5, 100, 0), (6, 100, 0),
    ):  # fmt: skip
        values = [scale * row[column] for row in free]
        mean, spread = sum(values) / 10, stdev(values)
        assert line[column + 1] == f"{mean:.{digits}f} ± {spread:.{digits}f}"
    line = cells(g.table_moe(), 0)
    assert line[0] == "replayed" and line[5] == "0.000 ± 0.000"


def test_table_estimates():
    row = cells(g.table_estimates(), 3)
    assert row[0] == "1,001" and row[2] == row[3] == "0.8973"
    e = g.pass_rates(1001, 0.5, 0.52)
    assert row[4:6] == [f"{e['mean w']:.4f}", f"{e['s']:.4f}"]
    assert row[4] != row[5]


def test_figure_scale():
    axes = g.figure_scale().axes[0]
    product_line, s, correlated = axes.lines[:3]
    x, y = s.get_data()
    assert y[0] == pytest.approx(0.02 / sqrt(x[0]))
    assert y[-1] == pytest.approx(0.02 / sqrt(x[-1]))
    assert product_line.get_ydata()[-1] == pytest.approx(0.02 * sqrt(1e5))
    assert correlated.get_ydata()[-1] == pytest.approx(0.002, rel=0.01)
    flat = [line.get_ydata()[0] for line in axes.lines[3:]]
    assert flat == [0.02, 0.2]  # one token's log-ratio, GRPO's range
    assert "nats" in axes.get_ylabel() and "tokens" in axes.get_xlabel()
    band = axes.patches[0].get_extents().transformed(axes.transData.inverted())
    assert (band.y0, band.y1) == pytest.approx((3e-4, 4e-4))


def test_figure_moe():
    tokens, responses = g.figure_moe().axes
    assert "nats" in tokens.get_xlabel() and "nats" in responses.get_xlabel()
    replayed, free, *_ = g.flips()
    band = [x for x in responses.patches if not isinstance(x, StepPatch)][0]
    inverse = responses.transData.inverted()
    extents = band.get_extents().transformed(inverse)
    assert (extents.x0, extents.x1) == pytest.approx((-3e-4, 4e-4))
    for axes, data in (
        (tokens, (replayed, free)),
        (responses, (replayed.mean(1), free.mean(1))),
    ):
        steps = [x for x in axes.patches if isinstance(x, StepPatch)]
        for values, step in zip(data, steps, strict=True):
            counts, edges, _ = step.get_data()
            assert counts.sum() == values.numel()  # nothing left out
            inside = (values >= edges[14]) & (values < edges[15])
            assert counts[14] == inside.sum()
