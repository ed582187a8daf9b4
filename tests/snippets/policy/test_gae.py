"""Checks gae.py against definitions, closed forms and enumeration."""

import itertools
import math

import numpy as np
import pytest

from snippets.policy import gae as page
from snippets.policy.gae import (
    LAMBDAS,
    REWARD,
    START,
    TOKENS,
    WIDTH,
    backward_scan,
    best_lambda,
    chain,
    critics,
    curve,
    decoupled,
    every_position,
    gae,
    gae_scan,
    gradient_error,
    length_adaptive,
    moments,
    whiten,
    zeroed,
)


def batch(seed=0, rows=3, tokens=9, keep=1.0):
    """Random rewards, values, mask and bootstrap values."""
    rng = np.random.default_rng(seed)
    rewards = rng.normal(size=(rows, tokens))
    values = rng.normal(size=(rows, tokens))
    mask = rng.random((rows, tokens)) < keep
    return rewards, values, mask, rng.normal(size=rows)


def k_step(r, v, t, k, gamma):
    """Eq. 14 for one row; v holds V(s_0) … V(s_T)."""
    return sum(gamma**i * r[t + i] for i in range(k)) + gamma**k * v[t + k] - v[t]


def mixture(r, v, t, gamma, lam):
    """Exponentially weighted mean of all k-step estimates of a row."""
    left = len(r) - t
    weights = [(1 - lam) * lam ** (k - 1) for k in range(1, left)]
    weights.append(lam ** (left - 1))  # all longer ones equal this one
    assert sum(weights) == pytest.approx(1.0)
    return sum(w * k_step(r, v, t, k, gamma) for k, w in enumerate(weights, start=1))


SETTINGS = [(1.0, 1.0), (1.0, 0.95), (0.9, 0.7), (0.8, 0.0), (0.0, 0.5)]


@pytest.mark.parametrize(("gamma", "lam"), SETTINGS)
@pytest.mark.parametrize("bootstrap", [False, True])
def test_gae_is_the_weighted_mean_of_k_step_estimates(gamma, lam, bootstrap):
    rewards, values, mask, last = batch()
    last = last if bootstrap else np.zeros(3)
    got, _ = gae(rewards, values, mask, gamma, lam, last)
    for i in range(3):
        v = [*values[i], last[i]]
        expected = [mixture(rewards[i], v, t, gamma, lam) for t in range(9)]
        np.testing.assert_allclose(got[i], expected)


def td_errors(r, v, gamma):
    """Delta_t of one row, v as in `k_step`."""
    return [r[t] + gamma * v[t + 1] - v[t] for t in range(len(r))]


def test_claim_the_last_td_error_has_exponent_t_minus_1_minus_t():
    gamma, lam = 0.9, 0.7
    rewards, values, mask, _ = batch()
    got = gae(rewards, values, mask, gamma, lam)[0][0]
    delta = td_errors(rewards[0], [*values[0], 0.0], gamma)
    right, wrong = (
        [
            sum((gamma * lam) ** (j - t + shift) * delta[j] for j in range(t, 9))
            for t in range(9)
        ]
        for shift in (0, 2)  # 2: the last one gets T - t + 1
    )
    np.testing.assert_allclose(got, right)
    assert not np.allclose(got, wrong)


def test_claim_weights_that_start_at_lambda_lose_mass():
    lam = 0.95
    wrong = sum((1 - lam) * lam**k for k in range(1, 5000))
    assert wrong == pytest.approx(lam)
    right = sum((1 - lam) * lam ** (k - 1) for k in range(1, 5000))
    assert right == pytest.approx(1.0)


def test_the_worked_example_of_the_page():
    lines = page.table_example().splitlines()[2:]
    cells = [
        [float(c.replace("−", "-")) for c in line.split("|")[2:-1]] for line in lines
    ]
    assert cells[2] == pytest.approx([0.1, -0.2, 0.4, 0.2])
    assert cells[3] == pytest.approx([0.4425, 0.3605, 0.59, 0.2])
    assert cells[4] == pytest.approx([0.5, 0.4, 0.6, 0.2])
    third = np.add(cells[3], cells[0])
    assert cells[5] == pytest.approx(third)


def test_limits_of_lambda():
    rewards, values, mask, _ = batch()
    returns = rewards[:, ::-1].cumsum(1)[:, ::-1]
    got = gae(rewards, values, mask, 1.0, 1.0)[0]
    np.testing.assert_allclose(got, returns - values)
    got = gae(rewards, values, mask, 1.0, 0.0)[0]
    shifted = np.concatenate([values[:, 1:], np.zeros((3, 1))], axis=1)
    np.testing.assert_allclose(got, rewards + shifted - values)


@pytest.mark.parametrize(("gamma", "lam"), SETTINGS)
def test_target_is_the_lambda_return(gamma, lam):
    rewards, values, mask, last = batch()
    _, targets = gae(rewards, values, mask, gamma, lam, last)
    follow, ahead = last.copy(), last.copy()
    for t in reversed(range(9)):
        follow = rewards[:, t] + gamma * ((1 - lam) * ahead + lam * follow)
        ahead = values[:, t]
        np.testing.assert_allclose(targets[:, t], follow)


def test_claim_at_lambda_1_the_target_does_not_depend_on_the_critic():
    rewards, values, mask, _ = batch()
    one = gae(rewards, values, mask, 0.9, 1.0)[1]
    other = gae(rewards, values * 7 + 3, mask, 0.9, 1.0)[1]
    np.testing.assert_allclose(one, other)
    one = gae(rewards, values, mask, 0.9, 0.9)[1]
    other = gae(rewards, values * 7 + 3, mask, 0.9, 0.9)[1]
    assert not np.allclose(one, other)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("lam", [0.0, 0.8, 1.0])
def test_claim_where_the_critics_error_enters(gamma, lam):
    rewards, values, mask, last = batch(rows=1)
    error = np.random.default_rng(5).normal(size=(1, 9))
    true = gae(rewards, values, mask, gamma, lam, 0.0)[0][0]
    got = gae(rewards, values + error, mask, gamma, lam, 0.0)[0][0]
    e = error[0]
    for t in range(9):
        later = sum((gamma * lam) ** (i - 1) * e[t + i] for i in range(1, 9 - t))
        expected = -e[t] + (1 - lam) * gamma * later
        assert got[t] - true[t] == pytest.approx(expected)
    cut = gae(rewards, values, mask, gamma, lam, last)[0][0]
    expected = [gamma * (gamma * lam) ** (8 - t) * last[0] for t in range(9)]
    np.testing.assert_allclose(cut - true, expected)


# --- Scan, masks, rows -------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 64, 65, 129])
@pytest.mark.parametrize("keep", [1.0, 0.6, 0.1])
def test_scan_equals_loop(tokens, keep):
    rewards, values, mask, last = batch(tokens, 4, tokens, keep)
    lam = np.array([0.0, 0.5, 0.95, 1.0])
    loop = gae(rewards, values, mask, 0.99, lam, last)
    scan = gae_scan(rewards, values, mask, 0.99, lam, last)
    for a, b in zip(loop, scan, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


@pytest.mark.parametrize("tokens", [1, 2, 5, 8, 31])
def test_backward_scan_is_the_recursion(tokens):
    a, b, _, last = batch(1, 2, tokens)
    kept = a.copy(), b.copy()
    got, x = backward_scan(a, b, last), last
    for t in reversed(range(tokens)):
        x = b[:, t] + a[:, t] * x
        np.testing.assert_allclose(got[:, t], x)
    np.testing.assert_array_equal(kept, (a, b))


def test_masked_tokens_are_as_if_they_were_not_there():
    rewards, values, mask, last = batch(2, 4, 12, 0.6)
    got, targets = gae(rewards, values, mask, 0.9, 0.8, last)
    for i, own in enumerate(mask):
        r, v = rewards[i][own], [*values[i][own], last[i]]
        expected = [mixture(r, v, t, 0.9, 0.8) for t in range(len(r))]
        np.testing.assert_allclose(got[i][own], expected)
        np.testing.assert_allclose(targets[i][own], expected + values[i][own])
        assert (got[i][~own] == 0).all()


@pytest.mark.parametrize("estimate", [gae, gae_scan])
def test_nan_in_padding_does_no_harm(estimate):
    rewards, values, mask, _ = batch(3, 3, 10, 0.5)
    clean = estimate(rewards, values, mask)[0]
    rewards[~mask], values[~mask] = np.nan, np.nan
    np.testing.assert_array_equal(estimate(rewards, values, mask)[0], clean)


@pytest.mark.parametrize("estimate", [gae, gae_scan])
def test_an_empty_mask_gives_zeros(estimate):
    rewards, values, mask, _ = batch()
    got, targets = estimate(rewards, values, np.zeros_like(mask))
    assert (got == 0).all()
    np.testing.assert_array_equal(targets, values)


def test_claim_a_reward_on_a_masked_token_is_lost():
    rewards, values, mask = np.zeros((1, 4)), np.zeros((1, 4)), np.ones((1, 4))
    rewards[0, 2], mask[0, 2] = 1.0, 0.0
    got = gae(rewards, values, mask.astype(bool), 1.0, 1.0)[0]
    assert (got == 0).all()


def test_claim_reinforce_pp_carries_the_return_over_tool_tokens():
    rewards, values, mask = page.row()
    carried = gae(rewards, 0 * values, mask, 1.0, 1.0)[0][mask]
    assert carried == pytest.approx([1, 1, 1, 1])
    discounted = gae(rewards, 0 * values, mask, 0.9, 1.0)[0][mask]
    assert discounted == pytest.approx([0.9**3, 0.9**2, 0.9, 1])
    reset, running = [], 0.0
    for t in reversed(range(8)):  # the running return times the mask
        running = rewards[0, t] + running
        reset.append(running)
        running *= mask[0, t]
    assert np.array(reset[::-1])[mask[0]].tolist() == [0, 0, 1, 1]


def test_claim_the_three_masks_agree_only_at_lambda_1_and_gamma_1():
    rewards, values, mask = page.row()
    for lam, gamma in ((1.0, 1.0), (0.95, 1.0), (1.0, 0.99)):
        skipped = gae(rewards, values, mask, gamma, lam)[0][mask]
        others = (
            zeroed(rewards, values, mask, gamma, lam)[mask],
            every_position(rewards, values, gamma, lam)[mask],
        )
        for other in others:
            assert np.allclose(skipped, other) == (lam == gamma == 1.0)


def test_table_of_masks_shows_three_equal_rows_at_lambda_1():
    rows = [
        [c.strip() for c in line.split("|")[2:-1]]
        for line in page.table_masks().splitlines()[2:]
    ]
    assert [r[0] for r in rows] == ["0.95"] * 3 + ["1"] * 3
    assert rows[3] == rows[4] == rows[5]
    assert rows[3][1:] == ["0.500", "0.400", "0.600", "0.200"]
    zero = [-0.6 + 0.95 * 0.95 * (0.4 + 0.95 * 0.59), 0.59, 0.2]
    step = [0.8 - 0.4 + 0.95 * 0.228525, 1 + 0.3 - 0.8 - 0.95**2 * 0.3]
    assert float(rows[1][2]) == pytest.approx(zero[0], abs=6e-4)
    assert [float(c) for c in rows[1][3:]] == zero[1:]
    got = [float(c) for c in rows[2][3:]]
    assert got == pytest.approx([step[0], 0.229], abs=1e-3)
    assert step[1] == pytest.approx(0.229, abs=1e-3)
    assert page.ROW["values"] == (0.5, 0.6, 0.9, 0.1, 0.4, 0.8, 0.3, 0.3)
    assert rows[0][1:] == ["0.442", "0.361", "0.590", "0.200"]
    assert rows[1][1:] == ["0.354", "0.267", "0.590", "0.200"]
    assert rows[2][1:] == ["0.423", "0.340", "0.618", "0.229"]
    names = [line.split("|")[1].strip() for line in page.table_masks().splitlines()]
    right = ["skipped", "values zeroed, still steps", "every position a step"]
    assert names[2:] == right * 2


def test_claim_an_unmasked_padding_value_leaks_into_the_last_token():
    pads, leak = 40, 0.3
    rewards, values = np.zeros((1, 3 + pads)), np.full((1, 3 + pads), leak)
    values[0, :3], rewards[0, 2] = 0.5, 1.0
    got = every_position(rewards, values, 1.0, 0.95)[0, 2]
    assert got == pytest.approx(1.0 - 0.5 + leak * (1 - 0.95**pads))
    got = every_position(rewards, values, 1.0, 1.0)[0, 2]
    assert got == pytest.approx(0.5)


def test_claim_one_lambda_a_row_is_that_row_alone():
    rewards, values, mask, _ = batch(4, 3, 8, 0.8)
    lam = np.array([0.1, 0.9, 1.0])
    got = gae(rewards, values, mask, 1.0, lam)[0]
    for i in range(3):
        one = [x[i : i + 1] for x in (rewards, values, mask)]
        alone = gae(*one, 1.0, lam[i])[0]
        np.testing.assert_allclose(got[i : i + 1], alone)


def test_claim_the_cumulative_sum_trick_breaks_in_float32():
    delta = np.ones(2500, dtype=np.float32)
    power = np.float32(0.95) ** np.arange(2500, dtype=np.float32)
    assert power[-1] == 0.0  # below the smallest float32
    with np.errstate(all="ignore"):
        trick = (delta * power)[::-1].cumsum()[::-1] / power
    assert np.isnan(trick).any()
    one = np.ones((1, 2500))
    got = gae(one, 0 * one, one == 1, 1.0, 0.95)[0]
    assert got.max() == pytest.approx(20.0)
    assert math.ceil(math.log2(8192)) == 13


# --- Truncation, stopping, discount -----------------------------------------


def test_claim_cut_response_by_three_conventions():
    values, mask = np.array([[0.5, 0.6, 0.4]]), np.ones((1, 3), dtype=bool)
    nothing = np.zeros((1, 3))
    ended = gae(nothing, values, mask, 1.0, 1.0, 0.0)[0]
    np.testing.assert_allclose(ended, -values)
    cut = gae(nothing, values, mask, 1.0, 1.0, 0.7)[0]
    np.testing.assert_allclose(cut, 0.7 - values)
    scored = np.array([[0.0, 0.0, 1.0]])
    both = gae(scored, values, mask, 1.0, 1.0, 0.7)[0]
    np.testing.assert_allclose(both, 1.7 - values)


def test_claim_trl_score_one_step_after_the_last_token():
    lam, after_eos = 0.95, 0.9
    values, rewards = np.array([[0.5, 0.8, after_eos]]), np.zeros((1, 3))
    rewards[0, 2], mask = 1.0, np.ones((1, 3), dtype=bool)
    got = gae(rewards, values, mask, 1.0, lam)[0][0, 1]
    assert got == pytest.approx(lam + (1 - lam) * after_eos - 0.8)
    got = gae(rewards, values, mask, 1.0, 1.0)[0][0, 1]
    assert got == pytest.approx(1 - 0.8)


def stopping_contrast(c, q, lam, longest=130):
    """A(stop) - A(go on) by `gae` over every length, reward equal."""
    reward = 1.0
    extra = np.arange(1, longest)  # tokens after the one that went on
    columns = np.arange(longest)
    mask = columns <= extra[:, None]
    r = np.where(columns == extra[:, None], reward, 0.0)
    estimates = gae(r, np.full(mask.shape, reward + c), mask, 1.0, lam)[0]
    go_on = (1 - q) ** (extra - 1) * q @ estimates[:, 0]
    return (reward - (reward + c)) - go_on


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 1.0])
def test_claim_a_constant_error_is_no_baseline_where_stopping_is_free(lam):
    c, q = 0.5, 0.2
    expected = -c * (1 - lam) / (1 - lam + lam * q)
    assert stopping_contrast(c, q, lam) == pytest.approx(expected, abs=1e-9)
    got = stopping_contrast(-c, q, lam)
    assert got == pytest.approx(-expected, abs=1e-9)
    if lam == 0.95:
        long = (1 - lam) / (1 - lam + lam / 1000)
        assert long == pytest.approx(0.98, abs=0.002)


@pytest.mark.parametrize("lam", [0.0, 0.95, 1.0])
def test_claim_one_token_gets_reward_minus_value_at_every_lambda(lam):
    one = np.array([[True]])
    got = gae(np.array([[0.7]]), np.array([[0.2]]), one, 0.9, lam)
    assert got[0][0, 0] == pytest.approx(0.5)
    assert got[1][0, 0] == pytest.approx(0.7)


def test_claim_later_errors_weigh_at_most_1():
    for gamma, lam in itertools.product((0.9, 1.0), (0.0, 0.5, 0.95, 1.0)):
        weights = (1 - lam) * gamma * (gamma * lam) ** np.arange(5000)
        assert weights.sum() <= 1 + 1e-12
        few = (1 - lam) * gamma * (gamma * lam) ** np.arange(3)
        assert few.sum() < 1 or lam == 0.0


def test_claim_a_critic_that_knows_the_returns_leaves_no_advantage():
    rewards, _, mask, _ = batch()
    returns = rewards[:, ::-1].cumsum(1)[:, ::-1]
    for lam in (0.0, 0.95, 1.0):
        got = gae(rewards, returns, mask, 1.0, lam)[0]
        np.testing.assert_allclose(got, 0.0, atol=1e-12)


def test_claim_equal_rewards_leave_the_critics_error_and_whitening_scales_it():
    rng = np.random.default_rng(8)
    rewards, mask = np.zeros((4, 30)), np.ones((4, 30), dtype=bool)
    rewards[:, -1] = 1.0
    values = 1.0 + 0.001 * rng.normal(size=(4, 30))
    got = gae(rewards, values, mask, 1.0, 1.0)[0]
    np.testing.assert_allclose(got, 1.0 - values)
    assert whiten(got, mask).std(ddof=1) == pytest.approx(1.0, abs=0.01)


def test_claim_relative_position_lambda_keeps_the_share_q():
    q, length = 0.3, 200
    rewards, values = np.zeros((1, length)), np.zeros((1, length))
    rewards[0, -1], mask = 1.0, np.ones((1, length), dtype=bool)
    got = gae(rewards, values, mask, 1.0, q ** (1 / (length - 1)))[0][0]
    assert got[[0, -1]] == pytest.approx([q, 1.0])


def test_claim_weights_of_a_distant_reward():
    assert math.log(0.5) / math.log(0.95) == pytest.approx(13.5, abs=0.05)
    assert 0.95**100 == pytest.approx(0.006, abs=1e-4)
    assert 0.95**10 == pytest.approx(0.6, abs=2e-3)
    assert 0.95**1000 == pytest.approx(5e-23, rel=0.1)
    assert 0.999**1000 == pytest.approx(0.37, abs=0.003)
    assert 0.99**1000 == pytest.approx(4.3e-5, rel=0.01)
    assert 1 / (1 - 0.95) == pytest.approx(20)
    assert 1 / (1 - 0.99 * 0.95) == pytest.approx(16.8, abs=0.01)


def test_claim_without_a_critic_lambda_is_a_discount():
    rewards, values = np.zeros((1, 5)), np.zeros((1, 5))
    rewards[0, -1], mask = 2.0, np.ones((1, 5), dtype=bool)
    got = gae(rewards, values, mask, 1.0, 0.9)[0][0]
    np.testing.assert_allclose(got, 2 * 0.9 ** np.arange(5)[::-1])
    np.testing.assert_allclose(gae(rewards, values, mask, 1.0, 1.0)[0], 2.0)


# --- Length-adaptive and decoupled -------------------------------------------


def test_claim_length_adaptive_lambda():
    mask = np.zeros((5, 8000), dtype=bool)
    for i, length in enumerate((0, 20, 100, 1000, 8000)):
        mask[i, :length] = True
    got = length_adaptive(mask)
    np.testing.assert_allclose(got, [0.0, 0.0, 0.8, 0.98, 0.9975])
    np.testing.assert_allclose(1 / (1 - got[2:]), [0.05 * n for n in (100, 1000, 8000)])
    longest = 1 - 1 / (0.05 * 1e6)
    assert longest**1e6 == pytest.approx(math.exp(-20), rel=0.01)
    assert math.exp(-20) == pytest.approx(2.1e-9, rel=0.02)
    weights = [float(x) ** n for x, n in zip(got[2:], (99, 999, 7999), strict=True)]
    assert max(weights) == pytest.approx(math.exp(-20), rel=0.05)
    assert min(weights) == weights[0] < 3e-10  # the shortest response


def test_decoupled_uses_two_lambdas():
    rewards, values, mask, _ = batch(6, 3, 60, 0.9)
    advantages, targets = decoupled(rewards, values, mask)
    lam = 1 - 1 / (0.05 * mask.sum(1))
    np.testing.assert_allclose(advantages, gae(rewards, values, mask, 1.0, lam)[0])
    own = np.where(mask, rewards, 0.0)
    returns = own[:, ::-1].cumsum(1)[:, ::-1]
    np.testing.assert_allclose(targets[mask], returns[mask])
    assert not np.allclose(targets[mask], (advantages + values)[mask])


def test_table_of_decay_is_lambda_to_the_distance():
    head, _, *rows = page.table_decay().splitlines()
    distances = (20, 100, 1000, 10000)
    shown = [c.strip() for c in head.split("|")[3:-1]]
    assert shown == ["20 before", "100 before", "1,000 before", "10,000 before"]
    expected = {"0.95": 20, "0.99": 100, "0.999": 1000, "0.9999": 10000, "1": "∞"}
    expected |= {f"VAPO, $l={n}$": n // 20 for n in (100, 1000, 10000)}
    assert len(rows) == len(expected)
    for line, (name, horizon) in zip(rows, expected.items(), strict=True):
        first, second, *cells = (c.strip() for c in line.split("|")[1:-1])
        assert first.split(":")[0] == name
        assert second.replace(",", "") == str(horizon)
        lam = 1.0 if horizon == "∞" else 1 - 1 / horizon
        longest = 20 * horizon if "VAPO" in name else math.inf
        for d, cell in zip(distances, cells, strict=True):
            if d > longest:
                assert cell == "–"
            else:
                digits, _, power = cell.partition("·10⁻")
                raised = int(
                    power.translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")) or 0
                )
                assert bool(raised) is (lam**d < 1e-3)
                value = float(digits) * 10.0**-raised
                assert value == pytest.approx(lam**d, rel=0.06)


# --- Whitening ---------------------------------------------------------------


def test_whitening_is_over_the_mask_and_keeps_the_order():
    advantages, _, mask, _ = batch(7, 4, 20, 0.7)
    got = whiten(advantages * 3 + 5, mask)
    assert got[mask].mean() == pytest.approx(0.0, abs=1e-9)
    assert got[mask].std(ddof=1) == pytest.approx(1.0, abs=1e-6)
    assert (got[~mask] == 0).all()
    order = np.argsort(advantages[mask])
    np.testing.assert_array_equal(np.argsort(got[mask]), order)


def test_claim_whitening_does_not_undo_lambda():
    rewards = np.zeros((2, 50))
    rewards[0, -1] = 1.0
    values, mask = np.full((2, 50), 0.5), np.ones((2, 50), dtype=bool)
    ratios = []
    for lam in (0.9, 1.0):
        got = whiten(gae(rewards, values, mask, 1.0, lam)[0], mask)
        ratios.append(got[0, 0] / got[0, -1])
    assert ratios == pytest.approx([0.9**49, 1.0])


def test_claim_equal_advantages_are_whitened_to_zero():
    mask = np.ones((2, 4), dtype=bool)
    assert (whiten(np.full((2, 4), 0.25), mask) == 0).all()


# --- The chain ---------------------------------------------------------------


def test_true_values_are_binomial_tails():
    values, visits = chain()
    for t, position in ((0, START), (60, START + 4), (99, START - 1)):
        left, need = TOKENS - t, position - START
        tail = sum(
            math.comb(left, up) for up in range(left + 1) if need + 2 * up - left > 0
        )
        assert values[t, position] == pytest.approx(tail / 2**left)
    np.testing.assert_allclose(visits.sum(1), 1.0)
    assert visits[4, START] == pytest.approx(6 / 16)


@pytest.mark.parametrize("name", list(critics()))
def test_moments_are_those_of_every_path_through_gae(name):
    critic, start, position = critics()[name], TOKENS - 8, START + 2
    lambdas = np.array([0.0, 0.9, 1.0])
    mean, square = moments(critic, lambdas)
    paths = np.array(list(itertools.product((1, -1), repeat=8)))
    where = position + paths.cumsum(1)
    before = np.concatenate([np.full((256, 1), position), where[:, :-1]], 1)
    values = critic[np.arange(start, TOKENS), before]
    rewards = np.zeros((256, 8))
    rewards[:, -1] = where[:, -1] > START
    everything = np.ones((256, 8), dtype=bool)
    for i, lam in enumerate(lambdas):
        got = gae(rewards, values, everything, 1.0, lam)[0][:, 0]
        for token, sign in enumerate((1, -1)):
            these = got[paths[:, 0] == sign]
            cell = start, token, i, position
            assert mean[cell] == pytest.approx(these.mean())
            assert square[cell] == pytest.approx((these**2).mean())


def contrast(critic, lam):
    """E[A | +1] - E[A | -1] at the first token's state and the last's."""
    mean, _ = moments(critic, np.array([lam]))
    return np.array(
        [
            mean[0, 0, 0, START] - mean[0, 1, 0, START],
            mean[TOKENS - 1, 0, 0, START - 1] - mean[TOKENS - 1, 1, 0, START - 1],
        ]
    )


def test_claim_a_blind_critic_scales_the_gradient_by_a_power_of_lambda():
    values, _ = chain()
    first = values[1, START + 1] - values[1, START - 1]
    true = np.array([first, REWARD[START] - REWARD[START - 2]])
    for lam in (0.9, 0.95, 1.0):
        kept = np.array([lam ** (TOKENS - 1), 1.0])
        got = contrast(critics()["blind"], lam)
        np.testing.assert_allclose(got, kept * true, atol=1e-12)
        got = contrast(critics()["half-trained"], lam)
        np.testing.assert_allclose(got, (1 + kept) / 2 * true, atol=1e-12)
    assert 0.95**99 == pytest.approx(0.006, abs=3e-4)


def test_claim_bias_is_zero_for_the_exact_critic_and_for_lambda_1():
    for name in critics():
        bias, spread = curve(name)
        assert bias[-1] == pytest.approx(0.0, abs=1e-6)
        assert LAMBDAS[-1] == 1.0
        if name == "exact":
            assert bias == pytest.approx(0.0, abs=1e-6)
            assert (np.diff(spread) > 0).all()
            assert spread[0] == pytest.approx(0.0, abs=1e-6)
        else:
            assert bias[0] > 0.4


def test_claim_the_best_lambda_moves_to_1_with_the_batch():
    found = [best_lambda("half-trained", n) for n in (10, 100, 1000, 10000)]
    assert found == pytest.approx([0.21, 0.94, 0.994, 0.9994], abs=0.005)
    short = [1 - x for x in found[2:]]  # the last digits of 0.994 and 0.9994
    assert short == pytest.approx([0.006, 0.0006], rel=0.1)
    assert best_lambda("exact", 10000) == 0.0
    pair = np.array([0.95, 1.0])
    bias, spread = gradient_error(critics()["half-trained"], pair)
    equal = (spread[1] ** 2 - spread[0] ** 2) / bias[0] ** 2
    assert equal == pytest.approx(500, abs=10)
    bias, spread = gradient_error(critics()["exact"], pair)
    assert (spread[1] / spread[0]) ** 2 == pytest.approx(7.3, abs=0.05)


@pytest.mark.parametrize("seed", [0, 5, 100, 503])
def test_claim_the_best_lambdas_with_the_noisy_critic(seed):
    bias, spread = gradient_error(page.noisy(seed), LAMBDAS)
    found = [
        LAMBDAS[(bias**2 + spread**2 / n).argmin()] for n in (10, 100, 1000, 10000)
    ]
    assert found == pytest.approx([0.80, 0.90, 0.96, 0.98], abs=0.006)


def crossings(seeds):
    """Samples from which lambda 1 beats 0.95 with the noisy critic."""
    pair = np.array([0.95, 1.0])
    for seed in seeds:
        bias, spread = gradient_error(page.noisy(seed), pair)
        yield (spread[1] ** 2 - spread[0] ** 2) / bias[0] ** 2


def test_claim_lambda_1_beats_095_from_about_7000_samples():
    draws = [*page.SEEDS, *range(100, 110), *range(500, 510)]
    printed = list(crossings(draws))
    assert min(printed) == pytest.approx(6100, abs=50)
    assert max(printed) == pytest.approx(8100, abs=50)
    fresh = list(crossings(range(100, 110)))
    assert np.mean(fresh) == pytest.approx(7000, rel=0.07)


def test_noisy_bias_is_the_root_mean_square_over_draws():
    lambdas = np.array([0.0, 0.5, 0.9, 0.95, 1.0])
    found = page.noisy_errors(lambdas, range(100, 112))[: len(lambdas)]
    closed = page.noisy_bias(lambdas)
    for estimate, value in zip(found[:-1], closed[:-1], strict=True):
        square = np.mean(np.square(estimate.values)) ** 0.5
        assert square == pytest.approx(value, rel=0.03)
    assert closed[-1] == 0 == pytest.approx(max(found[-1].values))


def test_claim_a_smaller_error_of_the_same_kind_lowers_the_best_lambda():
    for n in (10, 100, 1000, 10000):
        half, blind = best_lambda("half-trained", n), best_lambda("blind", n)
        assert 0 < half < blind < 1
    exact, noise = critics()["exact"], page.noisy(100)
    errors = [
        gradient_error(critic, LAMBDAS[::2]) for critic in ((exact + noise) / 2, noise)
    ]
    for n in (10, 100, 1000, 10000):
        quieter, louder = (
            LAMBDAS[::2][(bias**2 + spread**2 / n).argmin()] for bias, spread in errors
        )
        assert quieter < louder


def test_critics_are_what_their_names_say():
    values, visits = chain()
    found = critics()
    np.testing.assert_array_equal(found["exact"], values)
    assert found["blind"] == pytest.approx(values[0, START])
    middle = (found["exact"] + found["blind"]) / 2
    np.testing.assert_allclose(found["half-trained"], middle)
    noise = (page.noisy(100) - values)[visits > 0]
    assert noise.std() == pytest.approx(0.1, rel=0.05)
    assert noise.mean() == pytest.approx(0.0, abs=0.005)


def test_bias_of_the_blind_critic_is_its_closed_form():
    values, _ = chain()
    lam, top, total = 0.95, 0.0, 0.0
    for t in range(TOKENS):
        for up in range(t + 1):
            at, p = START + 2 * up - t, math.comb(t, up) / 2**t
            after = values[t + 1] if t + 1 < TOKENS else REWARD
            gap = p * (after[at + 1] - after[at - 1]) ** 2
            top += gap * (1 - lam ** (TOKENS - 1 - t)) ** 2
            total += gap
    bias, _ = gradient_error(critics()["blind"], np.array([lam]))
    assert bias[0] == pytest.approx(math.sqrt(top / total))


def test_reward_of_the_chain_is_a_strict_majority():
    assert REWARD.shape == (WIDTH,)
    assert REWARD[START] == 0.0
    assert REWARD[START + 1] == 1.0


def test_table_of_errors_shows_the_curves():
    head, _, *rows = page.table_errors().splitlines()
    names = [line.split("|")[1].strip() for line in rows]
    assert names == ["exact", "noisy, sd 0.1", "half-trained", "blind"]
    noise = [c.strip() for c in rows.pop(1).split("|")[2:-1]]
    assert noise == [
        "1.41 / 2.4 ± 0.1",
        "0.73 / 2.3 ± 0.1",
        "0.17 / 2.9 ± 0.0",
        "0.09 / 3.6 ± 0.0",
        "0.02 / 6.0 ± 0.0",
        "0.00 / 8.2 ± 0.0",
    ]
    shown = [c.strip() for c in head.split("|")[2:-1]]
    assert shown == [
        f"$\\lambda={x}$" for x in ("0", "0.5", "0.9", "0.95", "0.99", "1")
    ]
    for line, critic in zip(rows, critics().values(), strict=True):
        bias, spread = gradient_error(critic, np.array([0.95]))
        assert f"{bias[0]:.2f} / {spread[0]:.1f}" in line.split("|")[5]


# --- Figure ------------------------------------------------------------------


def test_figure_shows_bias_above_and_the_minima_below():
    figure = page.figure_tradeoff()
    bias, error = figure.axes
    assert [len(a.lines) for a in (bias, error)] == [4, 8]
    blind = bias.lines[0]
    at = np.argmin(abs(LAMBDAS[:-1] - 0.9))
    assert blind.get_xdata()[at] == pytest.approx(1.0, abs=0.01)
    assert blind.get_ydata()[at] == pytest.approx(curve("blind")[0][at])
    assert (bias.lines[2].get_ydata() < 1e-6).all()
    dots = [line for line in error.lines if line.get_marker() == "o"]
    found = [1 - 10 ** -float(np.ravel(d.get_xdata())[0]) for d in dots]
    assert found == pytest.approx(
        [best_lambda("half-trained", n) for n in (10, 100, 1000, 10000)]
    )
    assert error.get_yscale() == "log"
    assert error.get_xlabel() == "λ"
    labels = [t.get_text() for t in error.texts]
    assert labels == ["n = 10", "n = 100", "n = 1,000", "n = 10,000"]
    ends = [line for line in error.lines if line.get_marker() != "o"]
    for text, line in zip(error.texts, ends, strict=True):
        end = line.get_xdata()[-1], line.get_ydata()[-1]
        assert text.xy == pytest.approx(end)
    names = [text.get_text() for text in bias.texts]
    assert names == ["blind", "half-trained", "noisy, sd 0.1", "exact"]
    for name, line in (("blind", 0), ("half-trained", 1), ("exact", 2)):
        y = gradient_error(critics()[name], LAMBDAS[:-1:10])[0]
        np.testing.assert_allclose(bias.lines[line].get_ydata()[::10], y)
    noise = page.noisy_errors(LAMBDAS[:-1:10], range(100, 108))[:5]
    for estimate, y in zip(noise, bias.lines[3].get_ydata()[::10], strict=True):
        assert estimate.mean == pytest.approx(y, rel=0.05)
    ticks = [text.get_text() for text in error.get_xticklabels()]
    assert ticks == ["0", "0.5", "0.95", "0.99", "0.999", "0.9999"]
    for tick, text in zip(error.get_xticks(), error.get_xticklabels(), strict=True):
        assert float(text.get_text()) == pytest.approx(1 - 10.0**-tick)
