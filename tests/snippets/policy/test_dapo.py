"""DAPO: group filter, soft punishment, token weights, higher clip."""

from fractions import Fraction
from itertools import product
from math import comb, exp, fsum, lgamma, log, sqrt
from statistics import mean, stdev

import numpy as np
import pytest

from snippets.policy import dapo as page
from snippets.policy.dapo import (
    LADDER,
    RERUN,
    cost,
    group_advantages,
    kept_share,
    rounds,
    soft_overlong,
    token_weights,
)

# --- Dynamic sampling ------------------------------------------------------


@pytest.mark.parametrize("p, group", [(0.3, 2), (0.9, 5), (0.05, 8)])
def test_kept_share_counts_all_outcomes(p, group):
    kept = 0.0
    for answers in product((0, 1), repeat=group):
        if 0 < sum(answers) < group:
            kept += np.prod([p if a else 1 - p for a in answers])
    assert kept_share(p, group) == pytest.approx(kept)


def test_edges_of_the_filter():
    assert kept_share(0.0, 16) == kept_share(1.0, 16) == 0
    assert kept_share(0.4, 1) == pytest.approx(0)  # one answer never differs
    assert kept_share(0.4, 2) == pytest.approx(2 * 0.4 * 0.6)
    np.testing.assert_allclose(kept_share(0.1, 16), kept_share(0.9, 16))


def test_cost_is_the_mean_of_a_geometric_law():
    p, group = 0.95, 8
    keep, missed, answers = kept_share(p, group), 1.0, 0.0
    for tries in range(1, 400):
        answers += tries * group * missed * keep
        missed *= 1 - keep
    assert cost(p, group) == pytest.approx(answers)


def test_claim_cost_is_at_least_one_over_the_rarer_outcome():
    for p in np.linspace(0.001, 0.999, 333):
        for group in (2, 8, 16, 64):
            assert cost(p, group) >= max(group, 1 / p, 1 / (1 - p)) - 1e-9
    for group in (8, 16, 64):  # and equal to it in the limit
        assert cost(1e-6, group) == pytest.approx(1e6, rel=1e-4)


def test_claim_a_larger_group_costs_less_than_proportionally():
    assert cost(0.9, 16) / cost(0.9, 8) == pytest.approx(1.4, abs=0.01)
    assert cost(0.99, 16) / cost(0.99, 8) == pytest.approx(1.04, abs=0.01)


def test_claim_cost_of_a_pool_is_not_the_mean_cost():
    """Half of the prompts at 0.5, half at 0.99, G = 16."""
    p = np.array([0.5, 0.99])
    share = kept_share(p, 16).mean()
    assert share == pytest.approx(0.574, abs=0.001)
    assert 16 / share == pytest.approx(27.9, abs=0.05)
    assert cost(p, 16).mean() == pytest.approx(61.9, abs=0.05)


def test_binomial_below():
    for k, n, p in ((3, 7, 0.4), (1, 5, 0.9), (6, 5, 0.3), (20, 60, 0.35)):
        q = Fraction(p)
        exact = sum(
            comb(n, j) * q**j * (1 - q) ** (n - j) for j in range(min(k, n + 1))
        )
        assert page.binomial_below(k, n, p) == pytest.approx(float(exact))


def test_rounds_by_walking_through_them():
    share, need, prompts, limit = 0.4, 5, 4, 3
    pmf = [comb(prompts, j) * share**j * (1 - share) ** (prompts - j) for j in range(5)]
    states, expected = {0: 1.0}, 0.0
    for _ in range(limit):
        after = {}
        for kept, chance in states.items():
            expected += chance  # one more round
            for j, q in enumerate(pmf):
                if kept + j < need:
                    after[kept + j] = after.get(kept + j, 0) + chance * q
        states = after
    got = rounds(share, need, prompts, limit)
    assert got == pytest.approx((expected, sum(states.values())))


def test_claim_recipe_generates_three_batches_where_one_would_do():
    for share in (0.9, 0.6, 0.42):
        expected, failed = rounds(share)
        assert 3 * expected == pytest.approx(3.0, abs=0.005) and failed < 1e-9
    assert rounds(0.3)[0] == pytest.approx(2, abs=0.01)
    # thresholds: one round needs 512 of 1536, ten need 512 of 15360
    assert 512 / 1536 == pytest.approx(1 / 3) and 512 / 15360 == pytest.approx(1 / 30)
    assert rounds(0.04)[1] < 1e-4 and rounds(0.03)[1] > 0.98


def test_claim_filter_rescales_the_expected_gradient():
    """Enumerate groups of 6 for three pass rates; score of p is y - p."""
    rates, group = (0.2, 0.6, 0.97), 6
    everything, kept, share = [], [], []
    for p in rates:
        total = inside = chance = 0.0
        for answers in product((0.0, 1.0), repeat=group):
            q = np.prod([p if a else 1 - p for a in answers])
            g = sum(
                a * (y - p)
                for a, y in zip(
                    group_advantages(np.array(answers)), answers, strict=True
                )
            )
            total += q * g
            if 0 < sum(answers) < group:
                inside, chance = inside + q * g, chance + q
        everything.append(total)
        kept.append(inside)  # its mean over kept groups times their share
        share.append(chance)
    f = mean(share)
    without = np.array(everything) / 3  # per generated group
    with_filter = np.array(kept) / 3 / f  # per kept group
    np.testing.assert_allclose(with_filter, without / f, rtol=1e-9)
    np.testing.assert_allclose(share, [kept_share(p, group) for p in rates])


def test_claim_noise_of_the_batch_falls_by_the_root_of_f():
    """Relative error of a mean over 512 groups, of which a share f counts."""
    rng, f = np.random.default_rng(0), 0.42
    signal = rng.normal(0.1, 1.0, (4000, 512))
    plain = np.where(rng.random(signal.shape) < f, signal, 0).mean(1)
    full = rng.normal(0.1, 1.0, (4000, 512)).mean(1)
    ratio = (full.std() / full.mean()) / (plain.std() / plain.mean())
    assert ratio == pytest.approx(sqrt(f), abs=0.03)


def test_claim_filter_on_the_mean_score_needs_the_right_range():
    """0 < mean < 1 on rewards of +1 and -1 drops every group up to half."""
    kept = [k for k in range(17) if 0 < (k - (16 - k)) / 16 < 1]
    assert kept == list(range(9, 16))
    assert [k for k in range(17) if 0 < k / 16 < 1] == list(range(1, 16))
    assert [k for k in range(17) if -1 < (2 * k - 16) / 16 < 1] == list(range(1, 16))


def test_claim_figures_3b_and_6_of_the_paper():
    """Shares of all-right prompts, and the steps of the two peaks."""
    assert 1 / (1 - 0.40) == pytest.approx(1.7, abs=0.05)
    assert 1 / (1 - 0.57) == pytest.approx(2.3, abs=0.05)
    assert 6100 / 2300 == pytest.approx(2.6, abs=0.06)


def test_claim_retrying_the_same_prompt_reweights():
    """One kept group for each prompt: gradients / share, no common factor."""
    share = kept_share(np.array([0.5, 0.97]), 16)
    assert share[0] / share[1] > 2


# --- Overlong answers ------------------------------------------------------


def test_soft_overlong_is_equation_13():
    def by_cases(n, longest=20480, cache=4096):
        if n <= longest - cache:
            return 0.0
        return (longest - cache - n) / cache if n <= longest else -1.0

    for n in (1, 16383, 16384, 16385, 17000, 18432, 20479, 20480, 20481, 30000):
        assert soft_overlong(n) == pytest.approx(by_cases(n))
    assert soft_overlong(90, 100, 20) == pytest.approx(-0.5)


def test_claim_values_of_the_punishment():
    lengths = np.array([16384, 17408, 18432, 19456, 20480])
    np.testing.assert_allclose(soft_overlong(lengths), [0, -0.25, -0.5, -0.75, -1])
    assert soft_overlong(16425) == pytest.approx(-0.01, abs=1e-4)


def test_group_advantages_by_the_definition():
    rewards = [1.0, -1.0, 0.5, 1.0]
    expected = [(r - mean(rewards)) / stdev(rewards) for r in rewards]
    np.testing.assert_allclose(group_advantages(np.array(rewards)), expected, rtol=1e-5)
    both = group_advantages(np.array([rewards, [1.0] * 4]))
    np.testing.assert_allclose(both[0], expected, rtol=1e-5)
    assert not both[1].any()


def test_claim_size_of_a_lone_punishment_cancels():
    for penalty in (0.01, 0.1, 1.0):
        a = group_advantages(np.r_[1 - penalty, np.ones(15)])
        assert a[0] == pytest.approx(-15 / sqrt(16), abs=0.002)
        assert a[1] == pytest.approx(0.25, abs=0.001)


def test_claim_plus_minus_one_is_zero_one_without_the_punishment():
    y = np.array([1.0, 1, 1, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(
        group_advantages(2 * y - 1), group_advantages(y), rtol=1e-5
    )
    # With it, a right answer at the limit ties a short wrong one if 0/1.
    assert 0 + soft_overlong(100) == 1 + soft_overlong(20480)
    assert 1 + soft_overlong(20480) > -1 + soft_overlong(100)
    assert not group_advantages(np.r_[1 - 1.0, np.zeros(15)]).any()
    assert group_advantages(np.r_[1 - 1.0, -np.ones(15)])[0] > 3.7


def test_claim_a_right_answer_at_the_limit_is_pushed_down_above_half():
    signs = {}
    for right in range(1, 16):
        rewards = np.r_[0.0, np.ones(right - 1), -np.ones(16 - right)]
        signs[right] = group_advantages(rewards)[0] > 0
    assert [r for r, up in signs.items() if up] == list(range(1, 9))


def test_claim_overlong_filtering_leaves_the_reward_in_the_mean():
    """15 right, one truncated: masking it leaves fifteen pushes up."""
    a = group_advantages(np.r_[np.ones(15), -1.0])
    assert a[:15] == pytest.approx(0.25, abs=1e-3) and a[15] < -3.7


# --- Token-level loss ------------------------------------------------------


def by_nested_means(lengths, how, prompt, answer):
    """Weight of one token: the reduction of a loss that is 1 there."""
    losses = [[[0.0] * n for n in group] for group in lengths]
    losses[prompt][answer][0] = 1.0
    if how == "answer":
        return mean(mean(tokens) for group in losses for tokens in group)
    if how == "group":
        return mean(mean(x for tokens in group for x in tokens) for group in losses)
    return mean(x for group in losses for tokens in group for x in tokens)


@pytest.mark.parametrize("how", ["answer", "group", "batch"])
def test_token_weights_are_the_nested_means(how):
    lengths = [[4, 2, 3], [1, 5, 5]]
    got = token_weights(np.array(lengths), how)
    for prompt, answer in product(range(2), range(3)):
        expected = by_nested_means(lengths, how, prompt, answer)
        assert got[prompt, answer] == pytest.approx(expected)
    assert (got * np.array(lengths)).sum() == pytest.approx(1)


def test_unknown_reduction():
    with pytest.raises(ValueError, match="answer, group or batch"):
        token_weights(np.ones((1, 2)), "token")


def test_claim_equal_lengths_in_each_group_make_equation_12_grpo():
    lengths = np.array([[100, 100], [1000, 1000]])
    group, answer, batch = (
        token_weights(lengths, m) for m in ("group", "answer", "batch")
    )
    np.testing.assert_allclose(group, answer)
    assert batch[0, 0] == batch[1, 0] and group[0, 0] == 10 * group[1, 0]


def test_claim_one_group_only_has_no_difference_between_the_token_means():
    lengths = np.array([[100, 1000]])
    np.testing.assert_allclose(
        token_weights(lengths, "group"), token_weights(lengths, "batch")
    )
    assert token_weights(lengths, "group")[0, 0] == pytest.approx(1 / 1100)


# --- Clip-Higher -----------------------------------------------------------


def test_claim_room_of_a_rare_and_of_a_frequent_token():
    assert 0.01 * 1.2 == pytest.approx(0.012) and 0.01 * 1.28 == pytest.approx(0.0128)
    assert 0.9 * 1.2 == pytest.approx(1.08) and 0.9 * 1.2 > 1


# --- Published scores ------------------------------------------------------


def test_claim_steps_of_the_ladder():
    scores = [s for _, s in LADDER]
    assert list(np.diff(scores)) == [6, 2, 3, 1, 8] and sum(np.diff(scores)) == 20
    assert RERUN[4] - RERUN[3] == 6 and RERUN[5] - RERUN[4] == 2


def test_claim_sampling_error_of_avg_at_32():
    """30 problems, 32 answers each: at most 1.6 points, 2.3 for a gap."""
    error = 100 * sqrt(0.25 / (30 * 32))
    assert error == pytest.approx(1.6, abs=0.02)
    assert error * sqrt(2) == pytest.approx(2.3, abs=0.02)


def test_claim_arithmetic_of_the_recipe():
    assert 512 * 16 == 8192 and 8192 // 512 == 16 and 32 * 16 == 512
    assert 16384 + 4096 == 20480
    assert 17000 / 512 == pytest.approx(33, abs=0.3)


# --- Tables and figures ----------------------------------------------------


def cells(table):
    return [[c.strip() for c in x.split("|")[1:-1]] for x in table.splitlines()[2:]]


def test_table_of_costs():
    rows = {r[0]: r[1:] for r in cells(page.table_cost())}
    assert rows["0.9 or 0.1"][2:4] == ["18.5 %", "19.6"]
    assert rows["0.95 or 0.05"][2] == "44 %"
    assert rows["0.99 or 0.01"][2:4] == ["85.1 %", "107.7"]
    assert rows["0.9 or 0.1"][:2] == ["43 %", "14.0"]
    assert rows["0.5 or 0.5"][2] == "< 0.01 %"


def test_table_of_rounds():
    rows = {r[0]: r[1:] for r in cells(page.table_rounds())}
    assert rows["0.42"] == ["2.38", "3.00", "0", "0.65"]
    assert rows["0.3"][1] == "5.99" and rows["0.03"][2] == "0.99"


def test_table_of_costs_row_by_row():
    rows = cells(page.table_cost())
    names = [0.5, 0.7, 0.9, 0.95, 0.99, 0.999]
    assert [r[0] for r in rows] == [
        f"{p} or {q}"
        for p, q in zip(names, (0.5, 0.3, 0.1, 0.05, 0.01, 0.001), strict=True)
    ]
    for row, p in zip(rows, names, strict=True):
        for k, group in enumerate((8, 16, 64)):
            dropped = p**group + (1 - p) ** group
            cell = row[1 + 2 * k].removesuffix(" %")
            if cell == "< 0.01":
                assert dropped < 1e-4
            else:
                assert float(cell) == pytest.approx(100 * dropped, rel=6e-3)
            answers = float(row[2 + 2 * k].replace(",", ""))
            assert answers == pytest.approx(group / (1 - dropped), abs=0.051)


def binomial_tail(need, n, p):
    """P(Bin(n, p) < need) from logarithms of factorials."""
    return fsum(
        exp(
            lgamma(n + 1) - lgamma(j + 1) - lgamma(n - j + 1)
            + j * log(p) + (n - j) * log(1 - p)
        )
        for j in range(min(need, n + 1))
    )  # fmt: skip


def test_table_of_rounds_row_by_row():
    """512 groups of a batch, 1,536 prompts a round, at most ten rounds."""
    rows = cells(page.table_rounds())
    shares = [0.9, 0.6, 0.42, 0.3, 0.15, 0.04, 0.03]
    assert [float(r[0]) for r in rows] == shares
    for row, f in zip(rows, shares, strict=True):
        expected = sum(binomial_tail(512, 1536 * k, f) for k in range(10))
        assert float(row[1]) == pytest.approx(1 / f, abs=0.0051)
        assert float(row[2]) == pytest.approx(3 * expected, abs=0.0051)
        failed = binomial_tail(512, 15360, f)
        assert float(row[3]) == pytest.approx(failed, rel=0.05, abs=1e-6)
        assert float(row[4]) == pytest.approx(sqrt(f), abs=0.0051)


def test_rounds_default_to_the_recipe():
    for f in (0.15, 0.04):  # one prompt more a round shows in the second decimal
        expected = sum(binomial_tail(512, 1536 * k, f) for k in range(10))
        assert rounds(f)[0] == pytest.approx(expected, rel=1e-6)
        assert rounds(f) == rounds(f, 512, 1536, 10)
    assert rounds(0.04)[0] != pytest.approx(rounds(0.04, prompts=1537)[0], rel=1e-4)


def test_table_of_weights():
    first, second, third = cells(page.table_weights())
    assert first[1:] == ["3.1 %", "0.0625", "0.0625"]  # 1/32, 1000/16000
    assert second[1:] == ["25.8 %", "1", "0.516"]  # 16/31/2, 16/31
    assert third[1:] == ["34.0 %", "1", "1"]  # 16/47


def test_table_of_punished_groups():
    rows = cells(page.table_overlong())
    assert [r[0] for r in rows] == [
        "16 right, one of them at 16,425",
        "16 right, one of them at 20,480",
        "16 wrong, 15 at 20,480, one short",
        "8 right, one of them at 18,432",
        "8 right, one of them at 20,480",
        "14 right, one of them at 20,480",
    ]
    stories = [row[3] for row in page.PUNISHED]
    assert stories == [[16425], [20480], [20480] * 15, [18432], [20480], [20480]]
    after = [float(r[2].replace("−", "-")) for r in rows]
    raw = [
        [0.99] + [1] * 15,
        [0.0] + [1] * 15,
        [-2.0] * 15 + [-1],
        [0.5] + [1] * 7 + [-1] * 8,
        [0.0] + [1] * 7 + [-1] * 8,
        [0.0] + [1] * 13 + [-1] * 2,
    ]
    for i, r in enumerate(raw):
        odd = -1 if i == 2 else 0
        expected = (r[odd] - mean(r)) / stdev(r)
        assert after[i] == pytest.approx(expected, abs=0.006)
    assert [r[3] for r in rows] == ["**dropped**"] * 3 + ["kept"] * 3
    assert [r[1] for r in rows] == ["0.00"] * 3 + ["0.97"] * 2 + ["0.37"]


def test_figure_of_the_ladder():
    (axes,) = page.figure_ladder().axes
    paper, rerun = axes.lines[:2]
    assert list(paper.get_xdata()) == [30, 36, 38, 41, 42, 50]
    assert list(rerun.get_xdata()) == [44, 50, 52]
    assert list(rerun.get_ydata()) == [3, 4, 5]
    names = [t.get_text() for t in axes.get_yticklabels()]
    assert names[5] == "+ dynamic sampling" and names[3] == "+ soft punishment"
    assert list(axes.lines[2].get_xdata()) == [47, 47]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # first row on top


def test_figure_of_the_cost():
    (axes,) = page.figure_cost().axes
    assert axes.get_yscale() == "log" and "pass rate" in axes.get_xlabel()
    for line, group in zip(axes.lines, (64, 16, 8), strict=False):
        p, y = line.get_xdata(), line.get_ydata()
        np.testing.assert_allclose(y, group / (1 - p**group - (1 - p) ** group))
    assert (axes.lines[3].get_ydata() <= axes.lines[2].get_ydata() + 1e-9).all()


def test_figure_of_the_punishment():
    (axes,) = page.figure_overlong().axes
    right, wrong = axes.lines[:2]
    np.testing.assert_allclose(right.get_ydata() - wrong.get_ydata(), 2)
    assert right.get_ydata().min() == pytest.approx(0)
    assert wrong.get_ydata().max() == -1 and wrong.get_ydata().min() == -2
    assert "tokens" in axes.get_xlabel()
    assert list(axes.get_xticks()) == [16384, 18432, 20480]
    length = right.get_xdata()
    assert length[-1] == 20480 and len(length) >= 200
