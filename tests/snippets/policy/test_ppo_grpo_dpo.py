"""PPO, GRPO and DPO: updates, optima, displacement, costs, claims."""

import numpy as np
import pytest

from snippets.policy import ppo_grpo_dpo as code


def numeric(f, x, h=1e-6):
    g = np.zeros_like(x)
    for k in range(x.size):
        ahead, behind = x.copy(), x.copy()
        ahead[k] += h
        behind[k] -= h
        g[k] = (f(ahead) - f(behind)) / (2 * h)
    return g


def test_dpo_loss_is_minus_log_sigmoid():
    for margin, beta in ((0.7, 0.1), (-3.0, 0.5), (200.0, 1.0)):
        want = np.log1p(np.exp(-beta * margin))
        assert code.dpo_loss(margin, beta) == pytest.approx(want)


def test_dpo_push_is_the_negative_slope_of_the_loss():
    for margin in (-10.0, 0.0, 4.0):
        slope = numeric(lambda m: float(code.dpo_loss(m[0], 0.3)), np.array([margin]))
        assert code.dpo_push(margin, 0.3) == pytest.approx(-slope[0], rel=1e-5)


def test_claim_published_dpo_values():
    assert code.dpo_loss(10, 0.1) == pytest.approx(0.3133, abs=5e-5)
    assert code.dpo_push(0, 0.1) == 0.05
    assert code.dpo_push(10, 0.5) == pytest.approx(0.0033, abs=5e-5)


def test_group_advantages():
    one = np.array([1.0] + [0.0] * 7)
    assert code.group_advantages(one)[:2] == pytest.approx([2.4749, -0.3536], abs=5e-5)
    assert code.group_advantages(np.array([1.0, 0.0])) == pytest.approx(
        [0.5**0.5, -(0.5**0.5)]
    )
    assert code.group_advantages(np.full(8, 0.9)) == pytest.approx(np.zeros(8))


def test_kl_optimum_is_the_best_policy():
    best = code.kl_optimum(code.REF, code.REWARD, code.BETA)

    def value(pi):
        return pi @ code.REWARD - code.BETA * (pi * np.log(pi / code.REF)).sum()

    rng = np.random.default_rng(0)
    for _ in range(200):
        other = np.exp(code.log_softmax(np.log(best) + 0.1 * rng.normal(size=6)))
        assert value(other) < value(best)


def test_claim_dpo_with_all_pairs_reaches_the_same_optimum():
    best = code.kl_optimum(code.REF, code.REWARD, code.BETA)
    assert code.from_reference(6) == pytest.approx(best)


@pytest.mark.parametrize("answers", [5, 6])
def test_from_reference_is_where_gradient_descent_ends(answers):
    logits = np.log(code.REF)

    def loss(z):
        return code.pair_loss(np.exp(code.log_softmax(z)), answers)

    for _ in range(400):
        logits = logits - 8.0 * numeric(loss, logits)
    got = np.exp(code.log_softmax(logits))
    assert got == pytest.approx(code.from_reference(answers), abs=2e-3)


def test_pair_loss_by_plain_sums():
    pi = code.kl_optimum(code.REF, code.REWARD, 1.0)
    total, pairs = 0.0, 0
    for i in range(5):
        for j in range(i):
            gap = code.REWARD[i] - code.REWARD[j]
            margin = np.log(pi[i] / code.REF[i]) - np.log(pi[j] / code.REF[j])
            right = 1 / (1 + np.exp(-gap))
            total -= right * np.log(1 / (1 + np.exp(-code.BETA * margin)))
            total -= (1 - right) * np.log(1 / (1 + np.exp(code.BETA * margin)))
            pairs += 1
    assert code.pair_loss(pi, 5) == pytest.approx(total / pairs)


def test_claim_the_unseen_answer_is_free():
    losses = [code.pair_loss(code.with_unseen(m), 5) for m in (0.01, 0.5, 0.95)]
    assert losses == pytest.approx([losses[0]] * 3)
    assert losses[0] == pytest.approx(0.571, abs=5e-4)
    found = code.same_pairs()
    assert found["DPO, pairs of five, yet another"][0] @ code.REWARD < -2.7


def test_claim_descent_gives_the_unseen_the_mean_reward():
    reward = code.REWARD.copy()
    reward[5] = reward[:5].mean()
    want = code.kl_optimum(code.REF, reward, code.BETA)
    assert code.from_reference(5) == pytest.approx(want)


def test_displacement_steps_are_the_gradients():
    weights = np.array([0.4, -0.3])

    def policy(w):
        return np.exp(code.log_softmax(np.log(code.START) + code.FEATURES @ w))

    def loss(w):
        h = np.log(policy(w) / code.START)
        return float(code.dpo_loss(h[0] - h[1], 1.0))

    h = np.log(policy(weights) / code.START)
    push = code.dpo_push(h[0] - h[1], 1.0)
    want = push * (code.FEATURES[0] - code.FEATURES[1])
    assert -numeric(loss, weights) == pytest.approx(want, abs=1e-8)
    pi = policy(weights)
    ours = (pi * (np.array([1.0, 0, 0]) - pi[0])) @ code.FEATURES
    assert numeric(lambda w: policy(w)[0], weights) == pytest.approx(ours, abs=1e-8)


def test_claim_displacement():
    dpo, sampled = code.displaced().values()
    assert dpo[0] == pytest.approx(code.START)
    margin = np.log(dpo[:, 0] / dpo[:, 1])
    assert (np.diff(margin) > 0).all() and (np.diff(dpo[:, 0]) < 0).all()
    assert dpo[60, 2] == pytest.approx(0.974, abs=5e-4)
    assert dpo[60, 0] == pytest.approx(0.019, abs=5e-4)
    assert (np.diff(sampled[:, 0]) > 0).all()
    assert sampled[400, 0] == pytest.approx(0.80, abs=5e-3)


def test_claim_silent_groups():
    assert code.silent(0.9, 8) == pytest.approx(0.43, abs=5e-3)
    assert code.silent(0.5, 2) == 0.5


def test_claim_bytes():
    assert code.gigabytes(7, 2, 3) == 2 * 112 + 3 * 14 == 266
    rows = [r.split("|")[1:-1] for r in code.table_bytes().splitlines()[2:]]
    for row, (_, trained, frozen) in zip(rows, code.COPIES, strict=True):
        assert float(row[3]) == 7 * (16 * trained + 2 * frozen)
        assert float(row[4]) == 32 * (16 * trained + 2 * frozen)


def test_figure_shows_the_paths():
    upper, lower = code.figure_displacement().axes
    for panel, path in zip((upper, lower), code.displaced().values(), strict=True):
        for k, line in enumerate(panel.lines):
            assert line.get_ydata() == pytest.approx(path[:, k])
    assert upper.get_ylabel() == "probability"
