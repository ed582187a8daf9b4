"""Checks kl_estimators.py against autograd, closed forms and its sources."""

import math
import re

import numpy as np
import pytest
import torch

from snippets.regularization import kl_estimators as m

torch.set_num_threads(1)
NAMES = ("k1", "k2", "k3")
REF = torch.tensor(m.REFERENCE)
OLD = torch.tensor(m.OLD_POLICY)


def by_hand(name, pi, ref):
    """The three estimators written out, in torch."""
    return {
        "k1": torch.log(pi / ref),
        "k2": torch.log(pi / ref) ** 2 / 2,
        "k3": ref / pi - 1 - torch.log(ref / pi),
    }[name]


def autograd(f):
    """Gradient of f(policy) with respect to the example's logits."""
    z = torch.tensor(m.LOGITS, requires_grad=True)
    (g,) = torch.autograd.grad(f(torch.softmax(z, 0)), z)
    return g.numpy()


def reverse(pi):
    return (pi * torch.log(pi / REF)).sum()


def forward(pi):
    return (REF * torch.log(REF / pi)).sum()


def chi2(pi):
    return (pi**2 / REF).sum() - 1


POLICY = torch.softmax(torch.tensor(m.LOGITS), 0)
KL = float(reverse(POLICY))


# Values ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_k1_and_k3_are_unbiased_for_policy_then_reference(name):
    mean, _ = m.moments(name, POLICY.numpy(), m.REFERENCE)
    assert mean == pytest.approx(KL, rel=1e-12)
    assert mean != pytest.approx(float(forward(POLICY)), rel=0.02)


@pytest.mark.parametrize("name", NAMES)
def test_the_values_are_the_definitions(name):
    got = m.ESTIMATORS[name](np.log(m.REFERENCE) - np.log(POLICY.numpy()))
    np.testing.assert_allclose(got, by_hand(name, POLICY, REF), rtol=1e-12)


@pytest.mark.parametrize("d", [0.1, 0.7, 1.5])
def test_moments_match_the_closed_form_of_shifted_normals(d):
    """log r = d x - d^2/2 with x ~ N(0, 1)."""
    pair = m.shifted_normals(d)
    assert m.kl(*pair) == pytest.approx(d**2 / 2)
    assert m.moments("k1", *pair) == pytest.approx((d**2 / 2, d))
    k2_mean = d**2 / 2 + d**4 / 8
    k2_std = math.sqrt(d**4 / 2 + d**6 / 4)
    assert m.moments("k2", *pair) == pytest.approx((k2_mean, k2_std))
    k3_std = math.sqrt(math.expm1(d**2) - d**2)
    assert m.moments("k3", *pair) == pytest.approx((d**2 / 2, k3_std))


@pytest.mark.parametrize(
    ("shift", "bias", "stds"),
    [(0.1, 0.002, (20, 1.42, 1.42)), (1.0, 0.25, (2, 1.73, 1.7))],
)
def test_values_match_the_table_published_by_schulman(shift, bias, stds):
    pair = m.shifted_normals(shift)
    true = shift**2 / 2
    assert m.moments("k2", *pair)[0] / true - 1 == pytest.approx(bias, abs=6e-4)
    got = [m.moments(name, *pair)[1] / true for name in NAMES]
    assert got == pytest.approx(stds, rel=0.005)


def test_only_k1_can_be_negative():
    log_r = np.linspace(-6, 6, 1201)
    assert m.k1(log_r).min() < 0
    assert m.k2(log_r).min() >= 0
    assert m.k3(log_r).min() >= 0


def test_claim_k3_is_noisier_than_k1_from_0_43_nats_when_sharpening():
    curve = m.spread_curve()
    wins = np.array(curve["k3"]) > np.array(curve["k1"])
    first = np.array(curve["kl"])[wins].min()
    last = np.array(curve["kl"])[~wins].max()
    assert last < 0.43 < first + 0.03
    below, above = m.sharpened(0.67), m.sharpened(0.655)
    assert m.kl(*below) < 0.43 < m.kl(*above)
    assert m.moments("k3", *below)[1] < m.moments("k1", *below)[1]
    assert m.moments("k3", *above)[1] > m.moments("k1", *above)[1]


def test_claim_k3_has_no_variance_if_reference_variance_exceeds_twice():
    """E[r^2] of N(0, v) against N(0, 1) converges for v < 2 only."""

    def second_moment(v, limit):
        x = np.linspace(-limit, limit, 40_001)
        log = -(x**2) / v - math.log(v) + x**2 / 2
        y = np.exp(log) / math.sqrt(2 * math.pi)
        return float(np.sum(y) * (x[1] - x[0]))

    assert second_moment(1.5, 30) == pytest.approx(second_moment(1.5, 20))
    assert second_moment(2.5, 30) > 1e6 * second_moment(2.5, 10)


def test_claim_best_multiple_of_the_control_variate():
    lam, std = m.best_control_variate(*m.sharpened(0.5))
    true = m.kl(*m.sharpened(0.5))
    assert lam == pytest.approx(0.092, abs=5e-4)
    assert std / true == pytest.approx(0.82, abs=5e-3)
    policy, ref = m.sharpened(0.5)
    r = ref / policy
    for other in (lam - 0.05, lam + 0.05):
        values = -np.log(r) + other * (r - 1)
        assert np.sqrt(policy @ (values - true) ** 2) > std
    assert (-np.log(r) + lam * (r - 1)).min() < -1


def test_claim_far_away_k3_can_still_be_the_quieter():
    pair = np.array([0.5, 0.5]), np.array([0.98, 0.02])
    assert m.kl(*pair) == pytest.approx(1.27, abs=5e-3)
    assert m.moments("k3", *pair)[1] < 0.6 * m.moments("k1", *pair)[1]


def test_claim_tokens_needed_for_the_same_error_bar():
    pair = m.shifted_normals(0.1)
    ratio = m.moments("k1", *pair)[1] / m.moments("k3", *pair)[1]
    assert ratio**2 == pytest.approx(200, rel=0.01)


def test_claim_the_two_kls_of_the_example():
    assert m.kl(POLICY.numpy(), m.REFERENCE) == pytest.approx(0.2547, abs=5e-5)
    assert m.kl(m.REFERENCE, POLICY.numpy()) == pytest.approx(0.2659, abs=5e-5)


def test_claim_full_vocabulary_memory():
    """V = 150,000 logits of 4 bytes, in megabytes of 10^6 bytes."""
    assert 150_000 * 4 / 1e6 == 0.6


def test_claim_top_p_sampling_biases_k3_and_k1():
    """Log-probabilities of the full policy, tokens of its truncation."""
    p = POLICY.numpy()
    cut = np.array([1.0, 1.0, 0.0, 0.0]) * p
    cut /= cut.sum()
    log_r = np.log(m.REFERENCE) - np.log(p)
    assert cut @ np.exp(log_r) != pytest.approx(1, abs=0.2)
    assert cut @ m.k3(log_r) != pytest.approx(KL, rel=0.2)


def test_kl_refuses_an_infinite_one():
    with pytest.raises(ValueError, match="the KL is infinite"):
        m.kl(np.array([0.5, 0.5]), np.array([1.0, 0.0]))
    assert m.kl(np.array([1.0, 0.0]), np.array([0.5, 0.5])) == pytest.approx(
        math.log(2)
    )
    assert m.kl(np.array([1.0, 0.0]), np.array([1.0, 0.0])) == 0


def test_claim_k1_survives_a_missing_token_and_k3_does_not():
    """pi = 0 where ref > 0: E[r] falls short of 1 by that mass."""
    policy, ref = np.array([0.7, 0.3]), np.array([0.5, 0.4])
    log_r, true = np.log(ref / policy), float(policy @ np.log(policy / ref))
    assert policy @ m.k1(log_r) == pytest.approx(true)
    assert policy @ m.k3(log_r) == pytest.approx(true - 0.1)


def test_claim_the_forward_kl_from_the_same_samples():
    p = POLICY.numpy()
    r = m.REFERENCE / p
    values = r * np.log(r) - (r - 1)
    assert values.min() >= 0
    assert p @ values == pytest.approx(float(forward(POLICY)))


# Gradients ---------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sampler", [POLICY, OLD])
@pytest.mark.parametrize("use", ["loss", "reward", "detached", "differentiable"])
def test_every_gradient_is_what_autograd_computes(name, sampler, use):
    def objective(pi):
        k, rho = by_hand(name, pi, REF), pi / sampler
        term = {
            "loss": k,
            "reward": k.detach() * rho.detach() * torch.log(pi),
            "detached": rho.detach() * k,
            "differentiable": rho * k,
        }[use]
        return (sampler.detach() * term).sum()

    got = m.gradients(sampler.numpy())[name, use]
    np.testing.assert_allclose(got, autograd(objective), atol=1e-12)


def test_closed_form_gradients_are_those_of_the_two_kls():
    truth = m.true_gradients()
    np.testing.assert_allclose(truth["reverse"], autograd(reverse), atol=1e-12)
    np.testing.assert_allclose(truth["forward"], autograd(forward), atol=1e-12)


def test_claim_what_each_on_policy_gradient_equals():
    g = m.gradients()
    rev, fwd = autograd(reverse), autograd(forward)
    expected = {
        ("k1", "loss"): 0 * rev,
        ("k2", "loss"): rev,
        ("k3", "loss"): fwd,
        ("k1", "reward"): rev,
        ("k3", "reward"): rev - fwd,
        ("k1", "differentiable"): rev,
        ("k3", "differentiable"): rev,
    }
    for key, value in expected.items():
        np.testing.assert_allclose(g[key], value, atol=1e-12)
    assert m.relative_error(g["k2", "reward"]) > 0.5
    assert m.relative_error(fwd) > 0.2


def test_claim_a_differentiable_ratio_gives_the_gradient_of_the_mean():
    """For k2 that mean is not the KL, so the correction makes it wrong."""
    for sampler in (None, m.OLD_POLICY):
        g = m.gradients(sampler)
        for name in NAMES:
            mean = autograd(lambda pi, n=name: (pi * by_hand(n, pi, REF)).sum())
            np.testing.assert_allclose(g[name, "differentiable"], mean, atol=1e-12)
        assert m.relative_error(g["k2", "differentiable"]) > 0.2


def test_claim_what_each_off_policy_gradient_equals():
    g = m.gradients(m.OLD_POLICY)
    rev, fwd = autograd(reverse), autograd(forward)
    for key in (
        ("k2", "detached"),
        ("k1", "reward"),
        ("k3", "differentiable"),
    ):
        np.testing.assert_allclose(g[key], rev, atol=1e-12)
    np.testing.assert_allclose(g["k3", "detached"], fwd, atol=1e-12)


def test_claim_off_policy_k1_as_loss_pushes_away_from_the_sampler():
    drift = autograd(lambda pi: (OLD * torch.log(OLD / pi)).sum())
    got = m.gradients(m.OLD_POLICY)["k1", "loss"]
    np.testing.assert_allclose(got, -drift, atol=1e-12)
    assert np.linalg.norm(drift) > 0.1


def test_claim_the_three_sound_terms_agree_sample_by_sample():
    log_r = np.linspace(-4, 4, 33)
    one = m.coefficient("k2", "loss", log_r)
    for name, use in (("k1", "reward"), ("k3", "differentiable")):
        np.testing.assert_allclose(m.coefficient(name, use, log_r), one, atol=1e-12)
    extra = m.coefficient("k1", "differentiable", log_r) - one
    np.testing.assert_allclose(extra, 1.0)


def test_claim_a_stale_k1_in_reward_subtracts_the_kl_to_the_old_policy():
    """K1 of the sampler, rho s of the current policy."""
    stale = torch.log(OLD / REF)
    got = autograd(lambda pi: (OLD * (pi / OLD) * stale).sum())
    to_old = autograd(lambda pi: (pi * torch.log(pi / OLD)).sum())
    np.testing.assert_allclose(got, autograd(reverse) - to_old, atol=1e-12)


def test_corrected_kl_loss_has_the_reverse_gradient_off_policy():
    z = torch.tensor(m.LOGITS, requires_grad=True)
    logp = torch.log_softmax(z, 0)
    loss = m.corrected_kl_loss(logp, REF.log(), OLD.log())
    assert (OLD * loss).sum().item() == pytest.approx(KL)
    (g,) = torch.autograd.grad((OLD * loss).sum(), z)
    np.testing.assert_allclose(g, autograd(reverse), atol=1e-12)


def test_claim_the_self_ratio_has_value_one_and_changes_the_gradient():
    z = torch.tensor(m.LOGITS, requires_grad=True)
    logp = torch.log_softmax(z, 0)
    loss = m.corrected_kl_loss(logp, REF.log(), logp.detach())
    np.testing.assert_allclose(loss.detach(), by_hand("k3", POLICY, REF), atol=1e-12)
    (g,) = torch.autograd.grad((POLICY * loss).sum(), z)
    np.testing.assert_allclose(g, autograd(reverse), atol=1e-12)


def test_claim_straight_through_logs_k3_and_learns_k2():
    def term(pi):
        k_2, k_3 = by_hand("k2", pi, REF), by_hand("k3", pi, REF)
        return (POLICY * (k_2 - k_2.detach() + k_3.detach())).sum()

    assert float(term(POLICY)) == pytest.approx(KL)
    np.testing.assert_allclose(autograd(term), autograd(reverse), atol=1e-12)


# Ratio the wrong way round -----------------------------------------------


def test_claim_the_reversed_ratio_estimates_something_else():
    log_r = np.log(m.REFERENCE) - np.log(POLICY.numpy())
    p = POLICY.numpy()
    assert p @ m.k1(-log_r) == pytest.approx(-KL)
    assert p @ m.k3(-log_r) == pytest.approx(float(chi2(POLICY)) - KL)
    np.testing.assert_allclose(m.k2(-log_r), m.k2(log_r))


def test_claim_reversed_k3_as_loss_has_half_the_chi_square_gradient():
    got = autograd(lambda pi: (POLICY * (pi / REF - 1 - torch.log(pi / REF))).sum())
    np.testing.assert_allclose(got, 0.5 * autograd(chi2), atol=1e-12)


def test_claim_the_mistake_is_invisible_near_the_reference():
    near = np.array([1e-3, -1e-3])
    np.testing.assert_allclose(m.k3(near), m.k3(-near), rtol=1e-3)
    assert m.k3(np.array(2.0)) > 3 * m.k3(np.array(-2.0))


# Sequences ---------------------------------------------------------------


def full_sequence_kl(first, second, ref_first, ref_second):
    total = 0.0
    for a in range(len(first)):
        for b in range(len(first)):
            p = torch.softmax(first, 0)[a] * torch.softmax(second[a], 0)[b]
            total = total + p * torch.log(p / (ref_first[a] * ref_second[a, b]))
    return total


@pytest.mark.parametrize("case", ["page", "random"])
def test_the_sequence_gradient_is_that_of_all_sequences(case):
    if case == "page":
        arrays = m.example_sequence()
    else:
        rng = np.random.default_rng(0)
        arrays = (
            rng.normal(size=3),
            rng.normal(size=(3, 3)),
            m.softmax(rng.normal(size=3)),
            m.softmax(rng.normal(size=(3, 3))),
        )
    z = torch.tensor(arrays[0], requires_grad=True)
    rest = [torch.tensor(a) for a in arrays[1:]]
    (full,) = torch.autograd.grad(full_sequence_kl(z, *rest), z)
    got = m.sequence_gradients(*arrays)
    np.testing.assert_allclose(got["sequence"], full, atol=1e-12)
    p, ref = torch.softmax(z, 0), rest[1]
    (own,) = torch.autograd.grad((p * torch.log(p / ref)).sum(), z)
    np.testing.assert_allclose(got["token"], own, atol=1e-12)


def test_claim_a_token_loss_gives_the_first_token_nothing():
    got = m.sequence_gradients(*m.example_sequence())
    np.testing.assert_allclose(got["token"], 0, atol=1e-12)
    np.testing.assert_allclose(got["sequence"], [-0.1256, 0.1256], atol=5e-5)


def test_claim_token_sums_of_k1_and_k3_estimate_the_sequence_kl():
    rng = np.random.default_rng(1)
    p1, r1 = m.softmax(rng.normal(size=3)), m.softmax(rng.normal(size=3))
    p2 = m.softmax(rng.normal(size=(3, 3)))
    r2 = m.softmax(rng.normal(size=(3, 3)))
    joint_p, joint_r = p1[:, None] * p2, r1[:, None] * r2
    true = (joint_p * np.log(joint_p / joint_r)).sum()
    first, second = np.log(r1 / p1)[:, None], np.log(r2 / p2)
    for name in NAMES:
        f = m.ESTIMATORS[name]
        by_token = (joint_p * (f(first) + f(second))).sum()
        whole = (joint_p * f(first + second)).sum()
        if name == "k2":
            assert by_token != pytest.approx(whole, rel=0.05)
        else:
            assert by_token == pytest.approx(true)
            assert whole == pytest.approx(true)


# Tails and floats --------------------------------------------------------


@pytest.mark.parametrize("x", [-12.0, -10.9, 0.0, 2.61, 2.62, 5.0, 25.0])
def test_clamped_coefficient_is_what_autograd_gives(x):
    logp = torch.tensor(-x, dtype=torch.float64, requires_grad=True)
    d = torch.clamp(0.0 - logp, -20, 20)
    (torch.clamp(torch.exp(d) - 1 - d, -10, 10)).backward()
    assert m.clamped_k3_coefficient(np.array(x)) == pytest.approx(logp.grad.item())


@pytest.mark.parametrize("x", [-6.0, -4.0, 4.0, 6.0])
def test_clamped_coefficient_obeys_both_limits(x):
    """Limits of 5 and 1,000, so that the input's clamp bites first."""
    got = m.clamped_k3_coefficient(np.array(x), 5.0, 1000.0)
    assert got == pytest.approx(0.0 if abs(x) > 5 else 1 - math.exp(x))


@pytest.mark.parametrize(
    ("x", "plain", "corrected", "straight"),
    [(2.61, -12.6, -2.61, -2.61), (2.62, 0, 0, -2.62), (5.0, 0, 0, -5)],
)
def test_claim_the_clamp_under_three_uses(x, plain, corrected, straight):
    """k3, rho k3 with rho = 1 in value, and k3+ of verl, clamped at 10."""
    logp = torch.tensor(-x, dtype=torch.float64, requires_grad=True)
    log_r = -logp
    k_3 = log_r.exp() - 1 - log_r
    rho = (logp - logp.detach()).exp()
    k_2 = log_r**2 / 2
    terms = (
        torch.clamp(k_3, -10, 10),
        torch.clamp(rho * k_3, -10, 10),
        k_2 - k_2.detach() + torch.clamp(k_3, -10, 10).detach(),
    )
    for term, expected in zip(terms, (plain, corrected, straight), strict=True):
        (slope,) = torch.autograd.grad(term, logp, retain_graph=True)
        assert slope.item() == pytest.approx(expected, abs=0.02)


def test_claim_where_the_clamp_cuts():
    assert m.k3(np.log(13.6)) < 10 < m.k3(np.log(13.7))
    assert m.k3(np.array(-11.0)) > 10 > m.k3(np.array(-10.99))
    inside = np.array(2.610)
    assert m.clamped_k3_coefficient(inside) == pytest.approx(-12.6, abs=0.05)
    assert m.clamped_k3_coefficient(np.array(2.612)) == 0
    assert m.k2(np.array(4.47)) < 10 < m.k2(np.array(4.48))


def test_claim_float32_cancellation():
    d = torch.tensor(1e-6)
    exact = 5e-13
    assert (d.exp() - d - 1).item() == pytest.approx(-5.96e-8, rel=1e-2)
    assert (torch.expm1(d) - d).item() == pytest.approx(exact, rel=0.1)
    slopes = []
    for f in (lambda x: x.exp() - x - 1, lambda x: torch.expm1(x) - x):
        x = torch.tensor(1e-6, requires_grad=True)
        f(x).backward()
        slopes.append(x.grad.item())
    assert slopes[0] == slopes[1]


def test_claim_bfloat16_cancellation():
    """In the printed order, in the other one, and by expm1."""
    d = torch.tensor(0.05, dtype=torch.bfloat16)
    exact = math.expm1(float(d)) - float(d)
    assert exact == pytest.approx(0.0013, abs=5e-5)
    assert (d.exp() - d - 1).item() == pytest.approx(0.0078, abs=5e-5)
    assert (d.exp() - 1 - d).item() == pytest.approx(0.0046, abs=5e-5)
    assert (torch.expm1(d) - d).item() == pytest.approx(exact, rel=0.05)


@pytest.mark.parametrize("x", [-100.0, -15.0, 2.0, 2.7, 15.0, 25.0, 88.8, 100.0])
@pytest.mark.parametrize("first", [None, 20.0])
@pytest.mark.parametrize("last", [None, 10.0])
def test_clamped_k3_is_what_float32_autograd_gives(x, first, last):
    logp = torch.tensor(-x, requires_grad=True)
    d = -logp if first is None else torch.clamp(-logp, -first, first)
    value = torch.exp(d) - d - 1
    value = value if last is None else torch.clamp(value, -last, last)
    value.backward()
    got = [float(y) for y in m.clamped_k3(np.array(x), first, last)]
    expected = [value.item(), logp.grad.item()]
    assert got == pytest.approx(expected, rel=1e-5, nan_ok=True)


def test_claim_a_clamp_on_the_value_hides_a_nan_gradient():
    """Float32 from 88.8, float16 from 11.1; a mask afterwards is no help."""
    for dtype, fine, bad in ((torch.float32, 88.7, 88.8), (torch.float16, 11.0, 11.2)):
        for x, nan in ((fine, False), (bad, True)):
            logp = torch.tensor(-x, dtype=dtype, requires_grad=True)
            loss = torch.clamp(torch.exp(-logp) + logp - 1, -10, 10)
            for masked in (loss, torch.where(torch.tensor(False), loss, 0.0)):
                (g,) = torch.autograd.grad(masked, logp, retain_graph=True)
                assert g.isnan().item() is nan
            assert loss.item() == 10


def test_table_overflow():
    assert cells(m.table_overflow()) == [
        ["nothing", "∞", "−∞"],
        ["the value, ±10", "10", "**NaN**"],
        ["log r, ±20", "4.85e+08", "0"],
        ["log r, ±20, then the value, ±10", "10", "0"],
    ]


def test_softmax_of_large_logits_does_not_overflow():
    got = m.softmax(np.array([[1e4, 0.0, 1e4], [-1e4, 0.0, -2e4]]))
    np.testing.assert_allclose(got, [[0.5, 0, 0.5], [0, 1, 0]])


# What the page shows -----------------------------------------------------


def cells(table):
    lines = table.splitlines()
    split = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    assert len({len(row) for row in split}) == 1
    return [[c.strip() for c in row] for row in split[2:]]


def test_table_errors_is_the_pattern_the_page_describes():
    rows = {row[0]: [float(c) for c in row[1:]] for row in cells(m.table_errors())}
    assert rows["k1"] == [1.0, 0.0, 1.513, 1.0, 0.0]
    assert rows["k2"] == [0.0, 0.216, 0.195, 0.0, 0.216]
    assert rows["k3"] == [0.228, 0.0, 0.529, 0.228, 0.0]


def test_table_gradients_rows():
    rows = cells(m.table_gradients())
    assert len(rows) == 8
    by_name = {row[0]: row for row in rows}
    assert by_name["k3 in reward"][2] == "−0.192"
    assert by_name["k1 as loss"][1] == "0.0000, 0.0000, 0.0000, 0.0000"
    assert by_name["**k2 as loss**"][1] == rows[0][1]
    assert by_name["k3 as loss"][1] == rows[1][1]
    assert by_name["k2 in reward"][1] == "0.0310, −0.0644, 0.0167, 0.0167"
    assert by_name["k2 in reward"][2] == "0.363"


def test_table_values_and_reversed():
    rows = cells(m.table_values())
    assert rows[0][1:] == ["0.0050", "+0.25 %", "20.00", "1.42", "1.42"]
    assert rows[1][1:] == ["0.5000", "+25.00 %", "2.00", "1.73", "1.70"]
    assert rows[2][1:] == ["0.1301", "−2.06 %", "3.75", "0.88", "1.13"]
    assert rows[3][1:] == ["0.9504", "−7.68 %", "0.97", "0.78", "5.15"]
    rows = cells(m.table_reversed())
    assert [row[1] for row in rows] == ["0.2547", "0.2593", "0.2547"]
    assert [row[2] for row in rows] == ["−0.2547", "0.2593", "0.2952"]


def test_table_tails():
    rows = {row[0]: row[1:] for row in cells(m.table_tails())}
    assert list(rows) == ["−5", "−1", "−0.1", "0.1", "1", "2.6", "2.7", "5"]
    assert rows["0.1"] == ["0.005", "0.005171", "−0.1", "−0.1052", "−0.1052"]
    assert rows["5"] == ["12.5", "142.4", "−5", "−147.4", "0"]
    assert rows["−5"] == ["12.5", "4.007", "5", "0.9933", "0.9933"]
    assert rows["2.6"][-1] == "−12.46"
    assert rows["2.7"][-1] == "0"


def test_figure_coefficient_draws_the_three_losses():
    axes = m.figure_coefficient().axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    x = lines["k2"].get_xdata()
    np.testing.assert_allclose(lines["k1"].get_ydata(), 1.0)
    np.testing.assert_allclose(lines["k2"].get_ydata(), -x)
    np.testing.assert_allclose(lines["k3"].get_ydata(), 1 - np.exp(x), atol=1e-12)
    tail = lines["clamped"]
    assert tail.get_ydata()[0] == pytest.approx(1 - math.exp(tail.get_xdata()[0]))
    assert tail.get_ydata()[0] < -12
    assert tail.get_ydata()[-1] == 0
    assert "nats" in axes.get_xlabel()


def test_figure_spread_draws_the_curve():
    axes = m.figure_spread().axes[0]
    assert [line.get_label() for line in axes.lines] == list(NAMES)
    assert axes.get_yscale() == "log"
    assert "nats" in axes.get_xlabel()
    curve = m.spread_curve()
    for at, temperature in ((0, 0.95), (-1, 0.4)):  # as the caption says
        ref = 1 / np.arange(1, 1001)
        policy = ref ** (1 / temperature)
        ref, policy = ref / ref.sum(), policy / policy.sum()
        log_r = np.log(ref / policy)
        true = -(policy @ log_r)
        assert curve["kl"][at] == pytest.approx(true)
        for name, k in (("k1", -log_r), ("k3", np.exp(log_r) - 1 - log_r)):
            spread = np.sqrt(policy @ (k - policy @ k) ** 2) / true
            assert curve[name][at] == pytest.approx(spread)
    ends = [(curve[name][0], curve[name][-1]) for name in NAMES]
    assert np.ravel(ends) == pytest.approx([17.8, 0.7, 0.87, 0.62, 0.9, 17.3], rel=0.02)
    assert 0.6 < min(curve["k2"]) and max(curve["k2"]) < 0.9
    for line, name in zip(axes.lines, NAMES, strict=True):
        np.testing.assert_allclose(line.get_xdata(), curve["kl"])
        np.testing.assert_allclose(line.get_ydata(), curve[name])
