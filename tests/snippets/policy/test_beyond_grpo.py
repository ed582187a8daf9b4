"""Nine objectives: closed forms by loops, enumeration, autograd, limits."""

from dataclasses import replace
from itertools import product
from math import comb, cosh, exp, isclose, log, prod, sqrt
from statistics import stdev

import pytest
import torch

from snippets.policy import beyond_grpo as m
from snippets.policy.beyond_grpo import METHODS, advantages, prompt_weight

DOUBLE = {"dtype": torch.float64}


@pytest.fixture(scope="module")
def small():
    """Three prompts of 4 answers, one of them all right."""
    g = torch.Generator().manual_seed(7)
    b = m.sample(g, drift=0.8)
    rows = torch.tensor([0, 1, 2, 3, 8, 9, 12, 13, 24, 25, 26, 27])
    return m.Batch(
        b.new[rows], b.old[rows], b.tokens[rows], b.mask[rows], b.rewards[rows], 4
    )


def mean(x):
    return sum(x) / len(x)


def expected_weights(b, name):
    """Coefficient of every word by the papers' formulas, plain loops."""
    out = torch.zeros_like(b.new)
    rows, width = b.mask.shape
    lengths = [int(b.mask[i].sum()) for i in range(rows)]
    groups = [range(k, k + b.group) for k in range(0, rows, b.group)]
    uneven = [g for g in groups if len({float(b.rewards[i]) for i in g}) > 1]
    for g in groups:
        rewards = [float(b.rewards[i]) for i in g]
        mu = mean(rewards)
        sd = sqrt(sum((r - mu) ** 2 for r in rewards) / (len(rewards) - 1))
        for i in g:
            dev = float(b.rewards[i]) - mu
            if dev == 0:
                continue
            a = {"Dr. GRPO": dev, "DPPO": dev, "MaxRL": dev / mu}.get(name, dev / sd)
            p_new = [
                b.new[i, t, b.tokens[i, t]].exp().item() for t in range(lengths[i])
            ]
            p_old = [
                b.old[i, t, b.tokens[i, t]].exp().item() for t in range(lengths[i])
            ]
            r = [x / y for x, y in zip(p_new, p_old, strict=True)]
            entropy = [
                -sum(x.exp().item() * x.item() for x in b.new[i, t])
                for t in range(lengths[i])
            ]
            s = prod(r) ** (1 / len(r))
            for t in range(lengths[i]):
                if name in ("Dr. GRPO", "DPPO"):
                    n = 1 / (width * rows)
                elif name == "DAPO":
                    n = 1 / sum(lengths[j] for j in g) / len(uneven)
                elif name == "CISPO":
                    n = 1 / sum(lengths[j] for j in g) / len(groups)
                else:
                    n = 1 / lengths[i] / rows
                if name == "GSPO":
                    gone = s > 1 + 4e-4 if a > 0 else s < 1 - 3e-4
                    c = 0 if gone else s
                elif name == "CISPO":
                    c = min(r[t], 5.0)
                elif name == "SAPO":
                    tau = 1.0 if a > 0 else 1.05
                    c = r[t] / cosh(tau / 2 * (r[t] - 1)) ** 2
                elif name == "DPPO":
                    step = p_new[t] - p_old[t]
                    c = 0 if (step if a > 0 else -step) > 0.15 else r[t]
                else:
                    high = 0.28 if name == "DAPO" else 0.2
                    gone = r[t] > 1 + high if a > 0 else r[t] < 0.8
                    c = 0 if gone else r[t]
                word = int(b.tokens[i, t])
                if name == "SimKO" and entropy[t] > quantile(entropy, 0.8):
                    ranked = sorted(
                        range(b.new.shape[2]), key=lambda v: -b.new[i, t, v]
                    )
                    if a > 0:
                        out[i, t, word] += 0.99 * c * a * n
                        for v in ranked[:3]:
                            out[i, t, v] += 0.01 / 3 * c * a * n
                        continue
                    if word == ranked[0]:
                        c *= 1.1
                out[i, t, word] += c * a * n
    return out


def quantile(values, q):
    """Linear interpolation between order statistics."""
    x = sorted(values)
    at = q * (len(x) - 1)
    low = int(at)
    high = min(low + 1, len(x) - 1)
    return x[low] + (at - low) * (x[high] - x[low])


@pytest.mark.parametrize("name", METHODS)
def test_weights_are_the_papers(small, name):
    got = m.weights(small, METHODS[name])
    torch.testing.assert_close(got, expected_weights(small, name))
    assert got.abs().sum() > 0


@pytest.mark.parametrize("name", ["GRPO", "Dr. GRPO", "DAPO", "GSPO", "SAPO", "MaxRL"])
def test_weights_equal_finite_differences(small, name):
    """For the methods whose objective is no stop-gradient surrogate."""
    how = METHODS[name]
    got = m.weights(small, how)
    for i, t in product((0, 2, 4, 6), (0, 1, 2)):
        word = small.tokens[i, t]
        step = torch.zeros_like(small.new)
        step[i, t, word] = 1e-6
        up, down = (m.objective(small, small.new + x, how) for x in (step, -step))
        slope = (up - down).item() / 2e-6
        assert isclose(got[i, t, word], slope, rel_tol=1e-5, abs_tol=1e-9)


def test_padding_has_no_weight(small):
    noise = torch.where(small.mask[..., None], 0.0, 5.0)
    other = replace(small, new=small.new - noise)
    for name in METHODS:
        w = m.weights(other, METHODS[name])
        torch.testing.assert_close(w, m.weights(small, METHODS[name]))
        assert not w[~small.mask].any()


def test_padding_of_minus_infinity_stays_out_of_the_value(small):
    new = small.new.masked_fill(~small.mask[..., None], -torch.inf)
    how = METHODS["CISPO"]
    value = m.objective(small, new, how)
    torch.testing.assert_close(value, m.objective(small, small.new, how))


def test_unknown_switches(small):
    with pytest.raises(ValueError, match="hard"):
        m.objective(small, small.new, m.Method(gate="hard"))
    with pytest.raises(KeyError):
        advantages(small.rewards, 4, "max")


# --- Advantages and prompts -----------------------------------------------


def test_claim_one_right_of_sixteen():
    r = torch.tensor([1.0] + [0.0] * 15)
    for scale, right, wrong in (
        ("std", 3.75, -0.25),
        ("mean", 15, -1),
        ("none", 15 / 16, -1 / 16),
    ):
        a = advantages(r, 16, scale)
        assert a[0].item() == pytest.approx(right)
        assert a[1:].tolist() == pytest.approx([wrong] * 15)
    population = (r - r.mean()) / r.std(correction=0)
    assert population[:2].tolist() == pytest.approx([3.87, -0.258], abs=4e-3)


def test_claim_sum_of_advantages_of_the_batchs_prompts():
    for scale, want in (
        ("std", [4.9, 7.5, 4.9]),
        ("none", [1.75, 4.0, 1.75]),
        ("mean", [14.0, 8.0, 2.0]),
    ):
        a = advantages(m.batch().rewards, 8, scale).abs().reshape(5, 8).sum(1)
        assert a.tolist() == pytest.approx([*want, 0, 0], abs=0.06)


def test_claim_equal_rewards_teach_nothing():
    r = torch.tensor([1.0] * 4 + [0.0] * 4 + [0.9] * 4)
    for scale in ("std", "mean", "none"):
        assert advantages(r, 4, scale).abs().max() < 1e-6


def enumerated(p, group, scale, all_wrong=False):
    """All 2^G outcomes; the policy is a coin, score of heads is 1 / p."""
    total = 0.0
    for outcome in product((1.0, 0.0), repeat=group):
        chance = prod(p if x else 1 - p for x in outcome)
        mu = mean(outcome)
        if mu == 0 and all_wrong:
            a = [-1.0] * group  # the centring term kept, R / mean put to 0
        elif mu in (0, 1):
            continue
        else:
            size = {
                "none": 1,
                "mean": mu,
                "std": sqrt(sum((x - mu) ** 2 for x in outcome) / (group - 1)),
            }[scale]
            a = [(x - mu) / size for x in outcome]
        score = [1 / p if x else -1 / (1 - p) for x in outcome]
        total += chance * mean([x * y for x, y in zip(a, score, strict=True)])
    return total


@pytest.mark.parametrize("scale", ["none", "std", "mean"])
@pytest.mark.parametrize("p", [0.05, 0.3, 0.8])
def test_prompt_weight_is_the_enumeration(scale, p):
    for group in (2, 5, 8):
        assert prompt_weight(p, group, scale) == pytest.approx(
            enumerated(p, group, scale)
        )


@pytest.mark.parametrize("p", [0.01, 0.3, 0.9])
def test_claim_maxrl_truncates_at_group_minus_one(p):
    def series(order):
        return sum((1 - p) ** (k - 1) for k in range(1, order + 1))

    for group in (2, 3, 8, 16):
        w = prompt_weight(p, group, "mean")
        assert w == pytest.approx((1 - (1 - p) ** (group - 1)) / p)
        assert w == pytest.approx(series(group - 1))
    assert prompt_weight(p, 2, "mean") == pytest.approx(1.0)  # plain RL
    kept = enumerated(p, 8, "mean", all_wrong=True)
    assert kept == pytest.approx((1 - (1 - p) ** 8) / p)
    assert kept == pytest.approx(series(8))


def test_claim_log_p_is_a_mixture_of_pass_at_k():
    """d log p / dp = sum of (1/k) d pass@k / dp."""
    p, h = 0.3, 1e-6

    def slope(k):
        return ((1 - (1 - p - h) ** k) - (1 - (1 - p + h) ** k)) / (2 * h)

    assert sum(slope(k) / k for k in range(1, 200)) == pytest.approx(1 / p, rel=1e-5)
    partial = [-sum(0.7**k / k for k in range(1, n + 1)) for n in (1, 2, 400)]
    assert partial == pytest.approx([-0.7, -0.945, log(0.3)])


def test_claim_limits_of_the_prompt_weight():
    for p in (0.02, 0.2, 0.4):
        assert prompt_weight(p, 16, "none") == pytest.approx(15 / 16)
        same = prompt_weight(1 - p, 16, "std")
        assert prompt_weight(p, 16, "std") == pytest.approx(same)
    for p in (0.2, 0.5, 0.7):  # large groups
        w = prompt_weight(p, 400, "std")
        assert w == pytest.approx(1 / sqrt(p * (1 - p)), rel=0.01)
    assert prompt_weight(1e-6, 16, "std") == pytest.approx(3.75, rel=1e-3)
    assert prompt_weight(1e-6, 16, "mean") == pytest.approx(15, rel=1e-3)


def test_claim_dynamic_sampling_multiplies_every_prompt_alike():
    """Per drawn group GRPO and DAPO push alike; kept groups: divided by f."""
    for p in (0.1, 0.5):
        kept = 1 - p**8 - (1 - p) ** 8
        per_kept = sum(
            comb(8, k) * p**k * (1 - p) ** (8 - k) / kept
            * (k * a[0] / p - (8 - k) * a[-1] / (1 - p)) / 8
            for k in range(1, 8)
            for a in [advantages((torch.arange(8) < k).double(), 8, "std").tolist()]
        )  # fmt: skip
        assert per_kept * kept == pytest.approx(prompt_weight(p, 8, "std"))


def test_claim_hard_prompts_weigh_at_most_group_minus_one():
    for p in (1e-6, 0.01, 0.1, 0.5, 0.99):
        w = prompt_weight(p, 16, "mean")
        assert w < min(1 / p, 15) + 1e-9
    assert prompt_weight(1e-6, 16, "mean") == pytest.approx(15, rel=1e-4)
    grid = [k / 1000 for k in range(1, 1000)]
    peak = max(grid, key=lambda p: (1 - (1 - p) ** 15) * (1 - p))
    assert peak == pytest.approx(0.17, abs=0.01)


def test_claim_answers_per_kept_group():
    for p, want in ((0.5, 16), (0.99, 108)):
        kept = 1 - p**16 - (1 - p) ** 16
        assert round(16 / kept) == want


def test_claim_negative_mean_flips_maxrl():
    """SkyRL's division, rewards −1 and 1, one right of four."""
    r = [1.0, -1.0, -1.0, -1.0]
    a = [(x - mean(r)) / mean(r) for x in r]
    assert a == [-3.0, 1.0, 1.0, 1.0]


# --- One token --------------------------------------------------------------


def c(name, r, old=0.01, a=1.0):
    return m.gate_value(name, r, old, a)


def test_claim_sapo_gate():
    f = {0.5: 0.940, 0.8: 0.990, 1.2: 0.990, 1.5: 0.940, 2: 0.786, 3: 0.420, 5: 0.071}
    for r, value in f.items():
        assert c("SAPO", r) / r == pytest.approx(value, abs=5e-4)
    assert c("SAPO", 1.0) == pytest.approx(1)
    assert c("SAPO", 2.0, a=-1.0) / 2 == pytest.approx(0.768, abs=5e-4)
    assert c("SAPO", 1.5) == pytest.approx(1.41, abs=0.005)
    grid = [k / 100 for k in range(1, 600)]
    best = max(grid, key=lambda r: c("SAPO", r))
    assert best == pytest.approx(2.06, abs=0.01)
    assert c("SAPO", best) == pytest.approx(1.57, abs=0.005)
    assert all(c("SAPO", r) > 0 for r in grid)


def test_claim_sapo_also_damps_the_repair():
    assert c("GRPO", 8, a=-1.0) == pytest.approx(8)
    assert c("SAPO", 8, a=-1.0) < 0.03
    assert c("GRPO", 0.5) == pytest.approx(0.5)
    assert c("SAPO", 0.5) == pytest.approx(0.47, abs=0.005)


def test_claim_gspo_edges():
    assert c("GSPO", 1.00035) > 1 and c("GSPO", 1.00045) == 0
    assert c("GSPO", 0.99975, a=-1.0) > 0 and c("GSPO", 0.99965, a=-1.0) == 0


def test_claim_trl_cispo_default_weighs_every_token_a_fifth():
    """Cap at epsilon_high itself, which falls back to epsilon = 0.2."""
    new = torch.tensor(-1.0, **DOUBLE, requires_grad=True)
    r, a = torch.ones((), **DOUBLE), torch.tensor(-2.0, **DOUBLE)
    for cap, want in ((0.2, 0.2), (5.0, 1.0)):
        term = m.gated("cap", (1.0, cap - 1), r, a, new, new.detach())
        (slope,) = torch.autograd.grad(term, new)
        assert slope.item() / -2 == pytest.approx(want)


def test_claim_cispo_conventions_at_three():
    """TRL's 0.28 is the cap itself; verl's and slime's values are offsets."""
    new = torch.tensor(-1.0, **DOUBLE, requires_grad=True)
    a = torch.ones((), **DOUBLE)
    for ratio, (low, high), want in (
        (1.0, (1.0, 0.28 - 1), 0.28),
        (3.0, (1.0, 0.28 - 1), 0.28),
        (3.0, (0.2, 0.2), 1.2),
        (3.0, (1.0, 4.0), 3.0),
        (3.0, (10.0, 0.2), 1.2),
        (0.1, (10.0, 0.2), 0.1),
    ):
        r = torch.tensor(ratio, **DOUBLE)
        term = m.gated("cap", (low, high), r, a, new, new.detach())
        (slope,) = torch.autograd.grad(term, new)
        assert slope.item() == pytest.approx(want)


def test_claim_simko_default_quantile_has_no_forks():
    entropy = torch.tensor([0.1, 0.9, 0.9, 0.4])
    assert not (entropy > entropy.quantile(1.0)).any()


def test_claim_dppo_edges():
    assert c("DPPO", 15.9) == pytest.approx(15.9) and c("DPPO", 16.1) == 0
    assert c("DPPO", 1 / 0.9 - 1e-6, old=0.9) > 1  # cannot leave upwards
    assert c("DPPO", 0.84, old=0.9, a=-1.0) > 0
    assert c("DPPO", 0.83, old=0.9, a=-1.0) == 0
    assert c("DPPO", 1e-3, old=0.1, a=-1.0) > 0  # falls by at most 0.1
    assert c("DPPO", 0.1, old=0.9) == pytest.approx(0.1)  # repair is kept


def test_claim_verl_dppo_truncation():
    """clip_ratio_c 3.0 caps the weight that DPPO leaves uncapped."""
    assert min(c("DPPO", 8), 3.0) == 3.0 and c("DPPO", 8) == pytest.approx(8)


def test_claim_simko_old_top_k_values_cancel():
    """alpha/K sg(r/r_k) r_k has gradient alpha/K r, whatever the old value."""
    for old in (-3.0, -0.5):
        new = torch.tensor(-1.0, **DOUBLE, requires_grad=True)
        r_k = (new - old).exp()
        term = 0.01 / 3 * (1.3 / r_k).detach() * r_k
        (slope,) = torch.autograd.grad(term, new)
        assert slope.item() == pytest.approx(0.01 / 3 * 1.3)


def test_claim_dppo_binary_tv_is_a_lower_bound():
    old = torch.tensor([0.2, 0.5, 0.3], **DOUBLE)
    new = torch.tensor([0.2, 0.1, 0.7], **DOUBLE)
    assert (new - old).abs().sum() / 2 == pytest.approx(0.4)
    assert (new - old).abs()[0] == 0  # the sampled word did not move


def test_claim_on_policy_only_advantage_and_divisor_differ():
    b = m.batch()
    same = replace(b, new=b.old)
    for name, how in METHODS.items():
        w = m.weights(same, how).sum(2)
        a = advantages(b.rewards, b.group, how.scale)[:, None]
        gap = (w - a * m.divisors(b, how)).abs() / m.divisors(b, how).max()
        limit = 0.1 * a.abs().max() + 1e-9 if name == "SimKO" else 1e-9
        assert gap.max() < limit


def test_claim_simko_moves_one_percent_and_keeps_the_sum():
    g = torch.Generator().manual_seed(1)
    b = m.sample(g)
    plain = m.weights(b, METHODS["GRPO"])
    simko = m.weights(b, METHODS["SimKO"])
    right = b.rewards == 1
    torch.testing.assert_close(simko[right].sum(2), plain[right].sum(2))
    unsampled = simko.scatter(2, b.tokens[..., None], 0.0)
    assert unsampled[right].abs().max() > 0
    wrong = b.rewards == 0
    assert not unsampled[wrong].any()
    live = wrong[:, None] & (plain.sum(2) != 0)
    factor = (simko.sum(2) / plain.sum(2))[live]
    assert {round(x, 6) for x in factor.tolist()} == {1.0, 1.1}
    moved = (plain != simko).any(2) & b.mask & right[:, None]
    share = moved.sum() / (b.mask & right[:, None]).sum()
    assert 0 < share < 0.25


def test_claim_forks_are_strictly_above_the_quantile():
    """6 tokens: the 0.8 quantile is the second largest entropy itself."""
    b = m.sample(torch.Generator().manual_seed(3))
    cut = replace(b, mask=torch.arange(30)[None].expand(40, 30) < 6)
    same = torch.ones(40, 30, **DOUBLE)
    a = torch.where(b.rewards == 1, 1.0, -1.0)[:, None] * same
    new = cut.new.clone().requires_grad_()
    ratio, _ = m.fork(cut, new, same, a, METHODS["SimKO"])
    (slope,) = torch.autograd.grad(ratio.sum(), new)
    forks = (slope.abs().sum(2) > 0)[:, :6].sum(1)
    assert forks[b.rewards == 1].tolist() == [1] * 20
    assert not forks[b.rewards == 0].any()


def test_claim_simko_value_equals_grpo_apart_from_the_boost():
    b = m.batch()
    spread = m.Method(spread=0.01)
    value = m.objective(b, b.new, spread)
    torch.testing.assert_close(value, m.objective(b, b.new, m.Method()))


# --- The batch --------------------------------------------------------------


def rows(table):
    return {
        line.split("|")[1].strip(): [x.strip() for x in line.split("|")[2:-1]]
        for line in table.splitlines()[2:]
    }


def expected_row(b, name):
    w = expected_weights(b, name)
    size = w.abs().sum((1, 2)).reshape(5, 8).sum(1)
    assert size[3:].abs().max() < 1e-12
    own = w.gather(2, b.tokens[..., None])[..., 0]
    mixed = torch.arange(40) < 24
    gone = []
    for side in (b.rewards == 1, b.rewards == 0):
        here = own[mixed & side][b.mask[mixed & side]]
        gone.append(100 * (here == 0).double().mean().item())
    a = advantages(b.rewards, b.group, METHODS[name].scale)[:, None]
    size_of_c = own / a / m.divisors(b, METHODS[name])
    top = max(x for x in size_of_c[b.mask].tolist() if abs(x) < 99)
    return [*(100 * size[:3] / size.sum()).tolist(), *gone, top]


@pytest.mark.parametrize("name", METHODS)
def test_row_of_the_batch(name):
    for seed in (0, 7):
        b = m.sample(torch.Generator().manual_seed(seed))
        assert m.batch_row(name, seed) == pytest.approx(expected_row(b, name))


def test_table_of_the_batch():
    table = rows(m.table_batch())
    assert list(table) == list(METHODS)
    for name, cells in table.items():
        found = list(zip(*(m.batch_row(name, k) for k in range(10)), strict=True))
        for digits, cell, column in zip((0, 0, 0, 0, 0, 2), cells, found, strict=True):
            got = [float(x) for x in cell.split(" ± ")]
            want = [mean(column), stdev(column)]
            assert got == pytest.approx(want, abs=0.501 * 10.0**-digits)


OTHERS = range(100, 110)
"""Seeds that the page does not use."""


def test_claim_batch_is_far_off_policy():
    means = []
    for seed in OTHERS:
        b = m.batch(seed)
        log_r = (b.new - b.old).gather(2, b.tokens[..., None])[..., 0][b.mask]
        means.append(log_r.mean().item())
        assert log_r.exp().min() < 0.4 and log_r.exp().max() > 2
    assert -0.05 < mean(means) < -0.035 and max(means) < 0
    lengths = m.batch().mask.sum(1)
    assert lengths.min() == 3 and lengths.max() == 30


def test_claim_which_prompt_gets_the_weight():
    share = {
        name: [m.shares(name, seed)[:3] for seed in OTHERS]
        for name in ("GRPO", "Dr. GRPO", "MaxRL", "GSPO", "SimKO")
    }
    for one, four, seven in share["MaxRL"]:
        assert one > four > seven
    assert mean([four for _, four, _ in share["Dr. GRPO"]]) > 0.45
    for one, four, seven in share["Dr. GRPO"]:
        assert four > max(one, seven)
    spread = {k: stdev([x[1] for x in rows]) for k, rows in share.items()}
    assert max(spread, key=spread.get) == "GSPO"
    for plain, simko in zip(share["GRPO"], share["SimKO"], strict=True):
        assert simko == pytest.approx(plain, abs=0.01)


def test_claim_gspo_silences_wrong_answers_more():
    pairs = [m.silent("GSPO", seed) for seed in (*OTHERS, *range(500, 510))]
    grpo = [m.silent("GRPO", seed) for seed in OTHERS]
    assert mean([down for _, down in pairs]) == pytest.approx(0.75, abs=0.05)
    assert mean([up for up, _ in pairs]) == pytest.approx(0.28, abs=0.06)
    assert 1 / 3 < min(down for _, down in pairs)
    assert mean([down for _, down in grpo]) == pytest.approx(0.2, abs=0.04)


def test_claim_edges_of_the_nine():
    edges = {name: how.edge for name, how in METHODS.items()}
    plain = (0.2, 0.2)
    assert edges == {
        "GRPO": plain,
        "Dr. GRPO": plain,
        "DAPO": (0.2, 0.28),
        "GSPO": (3e-4, 4e-4),
        "CISPO": (1.0, 4.0),
        "SAPO": (1.05, 1.0),
        "DPPO": (0.15, 0.15),
        "MaxRL": plain,
        "SimKO": plain,
    }
    assert (METHODS["SimKO"].spread, METHODS["SimKO"].boost) == (0.01, 1.1)


def test_table_of_the_gates_shows_the_tokens_of_the_text():
    lines = m.table_gates().splitlines()[2:]
    shown = [[x.strip() for x in line.split("|")[1:5]] for line in lines]
    assert shown == [
        ["$+$", "0.01", "3", "0.03"],
        ["$+$", "0.01", "8", "0.08"],
        ["$+$", "0.8", "1.19", "0.952"],
        ["$+$", "0.5", "0.5", "0.25"],
        ["$-$", "0.01", "0.1", "0.001"],
        ["$-$", "0.8", "0.79", "0.632"],
        ["$-$", "0.01", "8", "0.08"],
    ]


def test_table_of_the_gates():
    head, _, *lines = m.table_gates().splitlines()
    names = [x.strip() for x in head.split("|")[5:-1]]
    for line in lines:
        sign, old, r, new, *cells = (x.strip() for x in line.split("|")[1:-1])
        a, old, r = (1.0 if "+" in sign else -1.0), float(old), float(r)
        assert float(new) == pytest.approx(old * r, rel=0.01)
        for name, cell in zip(names, cells, strict=True):
            if name == "SAPO":
                want = r / cosh((0.5 if a > 0 else 0.525) * (r - 1)) ** 2
            elif name == "CISPO":
                want = min(r, 5)
            elif name == "DPPO":
                want = 0 if a * (old * r - old) > 0.15 else r
            else:
                want = 0 if (r > 1.2 if a > 0 else r < 0.8) else r
            assert float(cell) == pytest.approx(want, abs=0.0051)


def test_table_of_prompts():
    for p, cells in rows(m.table_prompts()).items():
        p = float(p)
        none, std, mean_, ml = map(float, cells)
        assert none == pytest.approx(15 / 16, abs=0.0051)
        assert std == pytest.approx(prompt_weight(p, 16, "std"), abs=0.0051)
        assert mean_ == pytest.approx((1 - (1 - p) ** 15) / p, abs=0.0051)
        assert ml == pytest.approx(1 / p, abs=0.0051)


# --- Figures ----------------------------------------------------------------


def test_figure_of_the_batch():
    up, down, share = m.figure_weights().axes
    b = m.batch()
    a = advantages(b.rewards, b.group, "none")[:, None]
    ratio = (b.new - b.old).gather(2, b.tokens[..., None])[..., 0].exp()
    for axes, here in ((up, b.mask & (a > 0)), (down, b.mask & (a < 0))):
        assert "ratio" in axes.get_xlabel()
        grpo = axes.collections[0].get_offsets()
        assert len(grpo) == here.sum()
        r = torch.tensor(grpo[:, 0].tolist(), **DOUBLE)
        torch.testing.assert_close(r, ratio[here])
        gone = r > 1.2 if axes is up else r < 0.8
        want = torch.where(gone, 0.0, r)
        torch.testing.assert_close(torch.tensor(grpo[:, 1].tolist(), **DOUBLE), want)
        cispo = torch.tensor(axes.collections[1].get_offsets()[:, 1].tolist(), **DOUBLE)
        torch.testing.assert_close(cispo, r)
    assert len(share.collections) == 4
    for line, band, name in zip(
        share.lines,
        share.collections,
        ("MaxRL", "GRPO", "Dr. GRPO", "GSPO"),
        strict=True,
    ):
        found = [
            [x[k] for x in (m.shares(name, seed) for seed in range(10))]
            for k in range(3)
        ]
        assert list(line.get_ydata()) == pytest.approx([mean(x) for x in found])
        corners = band.get_paths()[0].vertices[:, 1]
        for x in found:
            for edge in (mean(x) - stdev(x), mean(x) + stdev(x)):
                assert abs(corners - edge).min() < 1e-9


def test_figure_of_prompts():
    top, bottom = m.figure_prompts().axes
    assert "pass rate" in bottom.get_xlabel()
    for k, scale in enumerate(("none", "std", "mean")):
        for x, y, z in list(
            zip(
                top.lines[k].get_xdata(),
                top.lines[k].get_ydata(),
                bottom.lines[k].get_ydata(),
                strict=True,
            )
        )[::14]:
            w = prompt_weight(x, 16, scale)
            assert y == pytest.approx(w) and z == pytest.approx(w * x * (1 - x))


def test_same_seed_same_batch():
    one, two = (m.sample(torch.Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(one.new, two.new) and torch.equal(one.tokens, two.tokens)
    assert exp(one.old[0, 0].logsumexp(0).item()) == pytest.approx(1)
