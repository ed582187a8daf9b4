"""PPO, GRPO and DPO: updates, optima, displacement, costs, claims."""

from itertools import product

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


def test_log_softmax_of_large_logits():
    got = code.log_softmax(np.array([[1e4, 1e4], [0.0, np.log(3)]]))
    want = np.log([[0.5, 0.5], [0.25, 0.75]])
    assert got == pytest.approx(want)


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
    for equal in (np.full(8, 0.9), np.full(3, 0.1), np.array([1.0])):
        assert (code.group_advantages(equal) == 0).all()
    three = code.group_advantages(np.array([0.0, 1.0, 2.0]))
    assert three == pytest.approx([-1, 0, 1])


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
    pi, loss = code.same_pairs()["and one more"]
    assert loss == pytest.approx(0.5713, abs=5e-5)
    assert pi @ code.REWARD == pytest.approx(-2.77, abs=5e-3)


def test_claim_all_rows_but_the_first_minimise_the_loss_on_the_pairs():
    found = list(code.same_pairs().values())
    assert found[0][1] == pytest.approx(np.log(2))
    least = found[1][1]
    rng = np.random.default_rng(1)
    for pi, loss in found[1:]:
        assert pi.sum() == pytest.approx(1)
        assert loss == pytest.approx(least)
        for _ in range(20):
            other = pi * np.exp(0.3 * rng.normal(size=6))
            assert code.pair_loss(other / other.sum(), 5) > least


def test_table_pairs_by_hand():
    rows = [r.split("|")[1:-1] for r in code.table_pairs().splitlines()[2:]]
    for row, (name, (pi, loss)) in zip(rows, code.same_pairs().items(), strict=True):
        got = [float(cell.replace("−", "-")) for cell in row[1:]]
        reward = sum(p * r for p, r in zip(pi, code.REWARD, strict=True))
        kl = sum(p * np.log(p / q) for p, q in zip(pi, code.REF, strict=True))
        assert row[0].strip() == name
        assert got[:2] == pytest.approx([loss, pi[5]], abs=6e-5)
        assert got[2:] == pytest.approx([reward, kl], abs=6e-3)


def test_table_push_is_the_two_functions():
    rows = [r.split("|")[1:-1] for r in code.table_push().splitlines()[2:]]
    heads = [row[0].strip() for row in rows]
    assert heads == ["−10", "−2", "0", "2", "10"]
    for row in rows:
        m, *got = (float(cell.replace("−", "-")) for cell in row)
        want = []
        for beta in (0.1, 0.5):
            right = 1 / (1 + np.exp(-beta * m))
            want += [-np.log(right), beta * (1 - right)]
        assert got == pytest.approx(want, abs=6e-5)


def test_claim_descent_gives_the_unseen_the_mean_reward():
    reward = code.REWARD.copy()
    reward[5] = reward[:5].mean()
    want = code.kl_optimum(code.REF, reward, code.BETA)
    assert code.from_reference(5) == pytest.approx(want)


@pytest.mark.parametrize(
    "beta, sft, other, kl", [(1.0, 0.0, 0.0, 0.0), (0.4, 0.3, 0.7, 0.6)]
)
def test_displacement_descends_the_stated_losses(beta, sft, other, kl):
    start = np.array([0.3, 0.3, 0.4])

    def policy(w):
        z = np.array([w[0] + 0.2 * w[1], w[0], w[1]])
        pi = start * np.exp(z)
        return pi / pi.sum()

    def dpo(w):
        pi = policy(w)
        m = np.log(pi[0] / start[0]) - np.log(pi[1] / start[1])
        return np.log1p(np.exp(-beta * m)) - sft * np.log(pi[0])

    def sampled(w):
        pi = policy(w)
        return -pi[0] - other * pi[2] + kl * (pi * np.log(pi / start)).sum()

    runs = code.displaced(5, 0.7, beta, sft, other, kl)
    assert list(runs) == ["DPO", "policy gradient"]
    for loss, path in zip((dpo, sampled), runs.values(), strict=True):
        w = np.zeros(2)
        for pi in path:
            assert pi == pytest.approx(policy(w), abs=1e-7)
            w = w - 0.7 * numeric(loss, w)


def test_claim_every_beta_takes_the_same_path():
    for beta in (0.1, 0.5, 2.0):
        for pi in code.displaced(60, beta=beta)["DPO"]:
            w = np.log(pi[0] / pi[1]) / 0.2
            want = code.START * np.exp([0.2 * w, 0.0, w])
            assert pi == pytest.approx(want / want.sum())
    slow = code.displaced(60, beta=0.1)["DPO"][60]
    assert slow[0] == pytest.approx(0.25, abs=5e-3)


def test_claim_an_sft_term_holds_the_chosen_answer():
    kept = code.displaced(sft=0.2)["DPO"][:, 0]
    assert kept.min() >= 0.3 - 1e-9
    assert kept[400] == pytest.approx(0.84, abs=5e-3)
    dips = code.displaced(sft=0.05)["DPO"][:, 0]
    assert dips.min() == pytest.approx(0.20, abs=5e-3)


def test_claim_what_the_policy_gradient_owes_to_the_score():
    with_kl = code.displaced(kl=1.0)["policy gradient"][400]
    assert with_kl[0] == pytest.approx(0.50, abs=5e-3)
    equal = code.displaced(other=1.0)["policy gradient"][400]
    assert equal[2] == pytest.approx(0.996, abs=5e-4)
    assert equal[0] < 0.003


def test_policies_with_the_same_loss_differ_on_the_unseen_answer():
    masses = [pi[code.SEEN] for pi, _ in code.same_pairs().values()]
    assert masses[-2:] == [0.5, 0.95]


def test_claim_displacement():
    dpo, sampled = code.displaced().values()
    assert dpo[0] == pytest.approx(code.START)
    margin = np.log(dpo[:, 0] / dpo[:, 1])
    assert (np.diff(margin) > 0).all() and (np.diff(dpo[:, 0]) < 0).all()
    assert dpo[60, 2] == pytest.approx(0.974, abs=5e-4)
    assert dpo[60, 0] == pytest.approx(0.019, abs=5e-4)
    assert (np.diff(sampled[:, 0]) > 0).all()
    assert sampled[400, 0] == pytest.approx(0.80, abs=5e-3)


def test_claim_where_label_smoothing_and_ipo_stop():
    beta, flip = 0.1, 0.1
    m = np.linspace(0, 60, 60001)
    right, wrong = code.dpo_loss(m, beta), code.dpo_loss(-m, beta)
    smooth = (1 - flip) * right + flip * wrong
    assert m[smooth.argmin()] == pytest.approx(np.log(9) / beta, abs=2e-3)
    assert m[smooth.argmin()] == pytest.approx(22.0, abs=0.05)
    robust = ((1 - flip) * right - flip * wrong) / (1 - 2 * flip)
    assert (np.diff(robust) < 0).all() and robust[-1] < 0
    assert 1 / (2 * beta) == 5


def test_claim_silent_groups():
    assert code.silent(0.9, 8) == pytest.approx(0.43, abs=5e-3)
    assert code.silent(0.5, 2) == 0.5


def test_claim_noise_of_the_baselines():
    def square(p, size, shift=None):
        """Mean of (R - b)^2 over the prompt's variance, all groups counted."""
        total = mean = 0.0
        for group in product((0.0, 1.0), repeat=size):
            chance = np.prod([p if right else 1 - p for right in group])
            b = np.mean(group[1:]) if shift is None else p + shift
            total += chance * (group[0] - b) ** 2
            mean += chance * (group[0] - np.mean(group)) ** 2
        assert mean == pytest.approx((size - 1) / size * p * (1 - p))
        return total / (p * (1 - p))

    assert square(0.5, 8) == pytest.approx(8 / 7) == pytest.approx(1.14, abs=5e-3)
    assert square(0.3, 4) == pytest.approx(4 / 3)
    assert square(0.3, 2, shift=0.0) == pytest.approx(1)
    assert square(0.5, 2, shift=0.38 * 0.5) == pytest.approx(8 / 7, abs=2e-3)
    group = np.array([1.0, 0, 0, 1, 0, 0, 0, 0])
    others = [r - np.delete(group, i).mean() for i, r in enumerate(group)]
    assert group - group.mean() == pytest.approx(7 / 8 * np.array(others))


def test_claim_bytes():
    assert code.gigabytes(7, 2, 3) == 2 * 112 + 3 * 14 == 266
    assert code.gigabytes(7, 2, 1) == 238 and code.gigabytes(7, 1, 3) == 154
    rows = [r.split("|")[1:-1] for r in code.table_bytes().splitlines()[2:]]
    spread = {
        m: [float(r[3]) for r in rows if m in r[0]] for m in ("PPO", "GRPO", "DPO")
    }
    assert [(min(v), max(v)) for v in spread.values()] == [
        (238, 266),
        (126, 154),
        (112, 126),
    ]
    counts = [tuple(int(cell) for cell in r[1:3]) for r in rows]
    assert counts == [(2, 3), (2, 1), (1, 3), (1, 2), (1, 1), (1, 1), (1, 0)]
    assert [float(r[3]) for r in rows] == [266, 238, 154, 140, 126, 126, 112]
    for row, (trained, frozen) in zip(rows, counts, strict=True):
        assert float(row[3]) == 7 * (16 * trained + 2 * frozen)
        assert float(row[4]) == 32 * (16 * trained + 2 * frozen)


def test_figure_shows_the_paths():
    upper, lower = code.figure_displacement().axes
    for panel, path in zip((upper, lower), code.displaced().values(), strict=True):
        for k, line in enumerate(panel.lines):
            assert line.get_ydata() == pytest.approx(path[:, k])
        words = [text.get_text() for text in panel.texts]
        assert words == ["chosen", "rejected", "the other"]
    assert "DPO" in upper.get_title(loc="left")
    assert upper.get_ylabel() == "probability"
