"""The reduction over ranks, against one rank and finite differences."""

import numpy as np
import pytest

from snippets.rollouts import slime_dataflow as page
from snippets.rollouts.slime_dataflow import (
    Sample,
    of_micro_batches,
    of_ranks,
    of_slices,
    owned,
    schedule,
    slime,
)


def made(lengths, rollouts=None, prompts=None, seed=0, d=3):
    """Samples of given lengths with random masks and token gradients."""
    rng = np.random.default_rng(seed)
    out = []
    for i, n in enumerate(lengths):
        mask = (rng.random(n) < 0.7).astype(float)
        mask[0] = 1
        out.append(
            Sample(
                rollouts[i] if rollouts else i,
                prompts[i] if prompts else int(rng.integers(1, 30)),
                mask,
                rng.standard_normal((n, d)),
            )
        )
    return out


def by_definition(samples, per_token):
    """Token by token, with a weight for each; no reduction function."""
    trained = {}
    for s in samples:
        trained[s.rollout] = trained.get(s.rollout, 0) + sum(s.mask > 0)
    total = np.zeros(samples[0].loss.shape[1:])
    for s in samples:
        for m, x in zip(s.mask, s.loss, strict=True):
            if m:
                if per_token:
                    total = total + x / sum(trained.values())
                else:
                    total = total + x / trained[s.rollout] / len(trained)
    return total


LENGTHS = (3, 50, 2, 14, 61, 7, 33, 120, 9, 5)


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize(
    "dp, cp, cap",
    [(1, 1, 9999), (2, 1, 150), (1, 3, 40), (2, 2, 60), (4, 2, 40), (5, 4, 9)],
)
def test_slime_is_the_loss_of_one_rank(dp, cp, cap, per_token):
    samples = made(LENGTHS)
    ranks = schedule(samples, cap, dp, cp)
    got = slime(ranks, cp, len(samples), per_token)
    np.testing.assert_allclose(got, by_definition(samples, per_token))


@pytest.mark.parametrize("per_token", [False, True])
def test_slime_with_samples_split_from_one_rollout(per_token):
    """Siblings land in different micro-batches and ranks."""
    ids = [0, 1, 1, 2, 3, 1, 4, 4, 5, 6]
    samples = made(LENGTHS, ids)
    ranks = schedule(samples, 60, 3, 2)
    places = [
        {s.rollout for micro in r for s in micro} for r in ranks
    ]  # fmt: skip
    assert sum(1 in p for p in places) > 1
    got = slime(ranks, 2, len(set(ids)), per_token)
    np.testing.assert_allclose(got, by_definition(samples, per_token))


# --- A gradient of a model, by finite differences --------------------------


class Model:
    """softmax(x W), PPO's clipped loss at ratios that are not 1."""

    def __init__(self):
        rng = np.random.default_rng(5)
        self.w = rng.standard_normal((3, 5))
        self.lengths = (4, 9, 2, 6, 3, 7)
        self.x = [rng.standard_normal((n, 3)) for n in self.lengths]
        self.token = [rng.integers(0, 5, n) for n in self.lengths]
        old = self.w + 0.2 * rng.standard_normal((3, 5))
        self.old = [self.logp(old, i) for i in range(6)]
        self.adv = rng.standard_normal(6)
        self.mask = [
            np.r_[1, rng.integers(0, 2, n - 1)] for n in self.lengths
        ]  # fmt: skip

    def logp(self, w, i):
        z = self.x[i] @ w
        z = z - np.log(np.exp(z).sum(1, keepdims=True))
        return z[np.arange(len(z)), self.token[i]]

    def loss(self, w, i):
        r = np.exp(self.logp(w, i) - self.old[i])
        a = self.adv[i]
        return np.maximum(-r * a, -np.clip(r, 0.8, 1.2) * a)

    def gradients(self, i):
        """Of each token's loss in w, analytically: (R, 15)."""
        z = self.x[i] @ self.w
        p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        r = np.exp(self.logp(self.w, i) - self.old[i])
        a = self.adv[i]
        alive = -r * a >= -np.clip(r, 0.8, 1.2) * a
        score = np.eye(5)[self.token[i]] - p
        each = self.x[i][:, :, None] * score[:, None, :]
        return (-(r * a * alive))[:, None] * each.reshape(len(r), -1)


@pytest.mark.parametrize("per_token", [False, True])
def test_accumulated_gradient_is_that_of_the_batch_loss(per_token):
    m = Model()

    def whole(w):
        sums = [m.mask[i] @ m.loss(w, i) for i in range(6)]
        if per_token:
            return sum(sums) / sum(k.sum() for k in m.mask)
        return np.mean([s / k.sum() for s, k in zip(sums, m.mask, strict=True)])

    numeric = np.zeros(15)
    for j in range(15):
        step = np.zeros(15)
        step[j] = 1e-6
        step = step.reshape(3, 5)
        numeric[j] = (whole(m.w + step) - whole(m.w - step)) / 2e-6
    samples = [Sample(i, 5, m.mask[i], m.gradients(i)) for i in range(6)]
    ranks = schedule(samples, 14, 2, 2)
    assert len(ranks[0]) > 1
    got = slime(ranks, 2, 6, per_token)
    np.testing.assert_allclose(got, numeric, atol=1e-8)


# --- Packing ---------------------------------------------------------------


@pytest.mark.parametrize("dp, cp, cap", [(1, 1, 100), (2, 2, 60), (4, 2, 45)])
def test_every_rank_gets_the_same_number_and_every_sample_once(dp, cp, cap):
    samples = made(LENGTHS)
    ranks = schedule(samples, cap, dp, cp)
    assert len(ranks) == dp and len({len(r) for r in ranks}) == 1
    rollouts = [s.rollout for r in ranks for micro in r for s in micro]
    assert sorted(rollouts) == list(range(len(LENGTHS)))
    for micro in (m for r in ranks for m in r):
        tokens = sum(s.prompt + len(s.mask) for s in micro)
        assert tokens <= cap * cp or len(micro) == 1


def lengths(ranks):
    return [[[s.prompt + len(s.mask) for s in m] for m in r] for r in ranks]


def test_first_fit_as_in_the_help_text_of_slime():
    """Lengths 100, 200, 300 with a cap of 300: [100, 200], [300]."""
    samples = made((99, 199, 299), prompts=(1, 1, 1))
    assert lengths(schedule(samples, 300, 1)) == [[[100, 200], [300]]]


def test_first_fit_takes_the_first_bin_and_the_ranks_take_turns():
    samples = made((6, 5, 2, 4, 7, 3), prompts=(1,) * 6)
    # 7 and 6 open bins, 3 joins the first, 5 and 8 fit nowhere, 4 the 6.
    got = lengths(schedule(samples, 10, 2))
    assert got == [[[7, 3], [5]], [[6, 4], [8]]]
    # One bin on two ranks: split, the longest first, to the lighter part.
    assert lengths(schedule(samples, 99, 2)) == [[[8, 5, 4]], [[7, 6, 3]]]


def test_the_fullest_micro_batch_is_split():
    """95 tokens in two samples, not 60 in three."""
    samples = made((59, 34, 19, 19, 19), prompts=(1,) * 5)
    got = lengths(schedule(samples, 100, 3))
    assert got == [[[60]], [[20, 20, 20]], [[35]]]


def test_of_two_fullest_micro_batches_the_later_is_split():
    """As max over (size, index) in slime's expand_bins_by_splitting."""
    samples = made((29, 19, 30, 18), prompts=(1,) * 4)
    got = lengths(schedule(samples, 50, 3))
    assert got == [[[30, 20]], [[31]], [[19]]]


def test_claim_ten_micro_batches_on_four_ranks_become_twelve():
    samples = made((39,) * 20, prompts=(1,) * 20)
    assert len(schedule(samples, 80, 1)[0]) == 10
    assert [len(r) for r in schedule(samples, 80, 4)] == [3] * 4


def test_too_few_samples_for_the_ranks():
    with pytest.raises(ValueError, match="do not fill"):
        schedule(made((3, 4)), 99, 3)


@pytest.mark.parametrize("cp", [1, 2, 3, 4])
@pytest.mark.parametrize("prompt, response", [(1, 1), (5, 40), (200, 3)])
def test_each_response_token_belongs_to_one_cp_rank(prompt, response, cp):
    parts = [owned(prompt, response, cp, rank) for rank in range(cp)]
    np.testing.assert_array_equal(sum(parts), np.ones(response))


def test_zigzag_by_hand():
    """8 positions, 4 chunks of 2: rank 0 has logits 0, 1, 6, 7."""
    # Prompt 2: response tokens 2..7 are scored by logits 1..6.
    assert owned(2, 6, 2, 0).tolist() == [1, 0, 0, 0, 0, 1]
    assert owned(2, 6, 2, 1).tolist() == [0, 1, 1, 1, 1, 0]


def test_claim_a_cp_rank_may_own_no_response_token():
    assert not owned(200, 3, 4, 1).any() and owned(200, 3, 4, 0).all()


# --- The edges -------------------------------------------------------------


def test_claim_a_masked_sample_still_counts_in_the_divisor():
    """remove_sample: half the batch masked halves the loss per sample."""
    some = made((4, 8), seed=2)
    gone = [s._replace(rollout=s.rollout + 2, mask=0 * s.mask) for s in some]
    whole = [[[*some, *gone]]]
    kept = slime([[some]], 1, 2)
    np.testing.assert_allclose(slime(whole, 1, 4), kept / 2)
    # Per token: each masked sample counts as one token.
    tokens = sum(s.mask.sum() for s in some)
    kept = slime([[some]], 1, 2, True)
    scale = tokens / (tokens + 2)
    np.testing.assert_allclose(slime(whole, 1, 4, True), kept * scale)


def test_claim_a_micro_batch_may_be_all_masked():
    some = made((4, 8), seed=2)
    gone = [some[1]._replace(mask=0 * some[1].mask)]
    got = slime([[some[:1], gone]], 1, 2)
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, slime([[[some[0], *gone]]], 1, 2))


def test_claim_what_each_forgotten_factor_does():
    """DP x CP too small, or K too small: the direction stays."""
    samples = made(LENGTHS)
    ranks = schedule(samples, 60, 2, 2)
    k = len(ranks[0])
    right = slime(ranks, 2, len(samples))
    by_hand = np.zeros(3)
    for micros in ranks:
        for rank in range(2):
            for micro in micros:
                part = sum(
                    (s.mask * owned(s.prompt, len(s.mask), 2, rank))
                    @ s.loss / s.mask.sum()
                    for s in micro
                )  # fmt: skip
                by_hand += part / len(samples) / k / 4
    np.testing.assert_allclose(by_hand * k * 4, right)


def test_claim_v020_per_token_scale():
    """Then the loss was also multiplied by K DP CP / global batch."""
    samples = made(LENGTHS)
    ranks = schedule(samples, 60, 2, 2)
    k, cp, dp, gbs = len(ranks[0]), 2, 2, len(samples)
    loss, tokens = np.zeros(3), 0.0
    for micros in ranks:
        for rank in range(cp):
            for micro in micros:
                part = sum(
                    (s.mask * owned(s.prompt, len(s.mask), cp, rank)) @ s.loss
                    for s in micro
                )
                loss += part * k / gbs * dp * cp
                tokens += sum(s.mask.sum() for s in micro)
    right = by_definition(samples, True)
    np.testing.assert_allclose(loss / tokens, right * k * dp / gbs)


def test_claim_equal_parts_make_the_wrong_means_right():
    """Equal sample and token counts: a mean of means is the mean."""
    samples = [
        Sample(i, 1, np.ones(5), np.random.default_rng(i).random((5, 2)))
        for i in range(8)
    ]
    ranks = schedule(samples, 12, 2)
    for token in (False, True):
        right = by_definition(samples, token)
        np.testing.assert_allclose(of_micro_batches(ranks, token), right)
        np.testing.assert_allclose(of_ranks(ranks, token), right)


def test_wrong_means_by_an_independent_loop():
    ranks = schedule(made(LENGTHS), 60, 2, 2)
    for token in (False, True):
        per_rank = []
        for micros in ranks:
            means = [by_definition(m, token) for m in micros]
            per_rank.append(sum(means) / len(means))
        expected = sum(per_rank) / len(per_rank)
        np.testing.assert_allclose(of_micro_batches(ranks, token), expected)
        whole = [by_definition(sum(r, []), token) for r in ranks]
        np.testing.assert_allclose(of_ranks(ranks, token), sum(whole) / 2)


def test_slice_means_are_right_without_cp_only():
    samples = made(LENGTHS)
    right = by_definition(samples, False)
    np.testing.assert_allclose(of_slices([[samples]], 1), right)
    assert not np.allclose(of_slices([[samples]], 2), right)
    # One sample, 2 ranks: mean of the two slices' means.
    s = Sample(0, 2, np.ones(6), np.arange(6.0))
    expected = ((0 + 5) / 2 + (1 + 2 + 3 + 4) / 4) / 2
    assert of_slices([[[s]]], 2) == pytest.approx(expected)
    s = s._replace(loss=np.array([1.0, 0, 0, 0, 0, 0]))
    assert of_slices([[[s]]], 2) == pytest.approx(0.25)  # not 1/6


# --- Rewards ---------------------------------------------------------------


def test_normalised_groups():
    got = page.normalised([1, 0, 0, 1, 1, 0, 0, 0], 2, 4)
    for group, r in ((got[:4], [1, 0, 0, 1]), (got[4:], [1, 0, 0, 0])):
        mean = sum(r) / 4
        std = (sum((x - mean) ** 2 for x in r) / 3) ** 0.5
        np.testing.assert_allclose(group, [(x - mean) / (std + 1e-6) for x in r])
    assert got[0] == pytest.approx(0.8660, abs=1e-4)


def test_claim_equal_rewards_give_zero():
    assert not page.normalised([1, 1, 1, 1], 2, 2).any()


def test_claim_fan_out_normalises_the_whole_batch():
    r = [1, 0, 1, 1, 1]
    got = page.normalised(r, 2, 2)
    expected = (np.array(r) - 0.8) / (np.std(r, ddof=1) + 1e-6)
    np.testing.assert_allclose(got, expected)
    # Six samples would make groups of two, but they are not two groups.
    r = [1, 0, 1, 1, 1, 0]
    got = page.normalised(r, 2, 2)
    expected = (np.array(r) - np.mean(r)) / (np.std(r, ddof=1) + 1e-6)
    np.testing.assert_allclose(got, expected)
    table = page.table_fanout().splitlines()
    assert "+0.707, −0.707 | 0, 0" in table[2]
    assert "+0.447, −1.789 | +0.447, +0.447, +0.447" in table[3]


# --- train_async.py --------------------------------------------------------


@pytest.mark.parametrize("interval", [1, 2, 3])
def test_claim_staleness_of_the_one_step_off_loop(interval):
    """Batches trained on between a batch's weights and its own turn."""
    served, made_with, lags = 0, {0: 0}, []
    for k in range(24):
        made_with[k + 1] = served  # starts before the training on batch k
        lags.append(k - made_with[k])
        if (k + 1) % interval == 0:  # waits for k + 1, then sends weights
            served = k + 1
    assert set(lags[interval:]) == set(range(1, interval + 1))


# --- Products --------------------------------------------------------------


def cells(table):
    return [
        [c.strip() for c in line.split("|")[1:-1]] for line in table.splitlines()[2:]
    ]


def test_claim_the_six_responses():
    """By hand: 21 tokens, of which 3 + 6 have loss 1; micro-batches
    {3, 5}, {2} and {4}, {6, 1}, with losses {1, 0}, {0}, {0}, {1, 0}."""
    rows = cells(page.table_six())
    right = [f"{2 / 6:.4f}", f"{9 / 21:.4f}"]
    assert rows[0][1:] == rows[1][1:] == right
    assert rows[2][1:] == [right[0], f"{(3 / 10 + 6 / 11) / 2:.4f}"]
    micro = (3 / 8 + 0 + 0 + 6 / 7) / 4
    assert rows[3][1:] == [f"{(0.5 + 0 + 0 + 0.5) / 4:.4f}", f"{micro:.4f}"]


def test_means_on_draws_reduced_with_plain_loops():
    """Token losses that differ within a response."""
    rng = np.random.default_rng(0)
    losses = [rng.standard_normal(n) for n in (3, 5, 2, 4, 6, 1)]
    samples = [Sample(i, 1, np.ones(len(x)), x) for i, x in enumerate(losses)]
    ranks = [[samples[:2], samples[2:3]], [samples[3:4], samples[4:]]]
    assert slime(ranks, 1, 6) == pytest.approx(-0.246265, abs=1e-6)
    assert slime(ranks, 1, 6, True) == pytest.approx(-0.180576, abs=1e-6)
    assert of_micro_batches(ranks, False) == pytest.approx(-0.405451, abs=1e-6)
    micros = [losses[:2], losses[2:3], losses[3:4], losses[4:]]
    wrong = np.mean([np.concatenate(m).mean() for m in micros])
    assert of_micro_batches(ranks, True) == pytest.approx(wrong)


def share(right, got):
    return np.sqrt(((got - right) ** 2).sum() / (right**2).sum())


def spell(values):
    assert len(values) == 10
    return f"{100 * np.mean(values):.0f} ± {100 * np.std(values, ddof=1):.0f} %"


def test_table_of_errors():
    """Each cell again, over ten draws, by definition."""
    rows = {(r[0], r[1]): r[2:] for r in cells(page.table_errors())}
    assert rows["per sample", "**slime, default**"] == ["0"] * 3
    assert rows["per token", "**slime, per token**"] == ["0"] * 3
    scale = [1 - 1 / (dp * cp) for dp, cp, _ in page.LAYOUTS]
    expected = [f"{100 * s:.0f} %" for s in scale]
    assert rows["per sample", "no × DP × CP"] == expected
    layouts = ((2, 1, 1024), (2, 2, 256), (4, 2, 128))
    for at, (dp, cp, cap) in enumerate(layouts):
        off = {key: [] for key in rows}
        for seed in range(10):
            samples = list(page.batch(seed))
            ranks = schedule(samples, cap, dp, cp)
            right = [by_definition(samples, token) for token in (False, True)]
            for token, target in enumerate(("per sample", "per token")):
                for name, make in (
                    ("micro-batch means", of_micro_batches),
                    ("rank means", of_ranks),
                ):
                    wrong = share(right[token], make(ranks, token))
                    off[target, name].append(wrong)
            got = np.zeros_like(right[0])
            for s in samples:
                for rank in range(cp):
                    mine = owned(s.prompt, len(s.mask), cp, rank) * s.mask > 0
                    if mine.any():
                        got += s.loss[mine].mean(0) / cp / 16
            off["per sample", "CP-slice means"].append(share(right[0], got))
            micros = sum(len(r) for r in ranks)
            off["per token", "scaled as in v0.2.0"].append(1 - micros / 16)
        for key, values in off.items():
            if values and max(values) > 1e-12:
                assert rows[key][at] == spell(values), key
    assert rows["per sample", "CP-slice means"][0] == "0"


def test_claim_means_of_means_miss_by_tens_of_per_cent():
    """On draws that the page does not print."""
    for name in ("micro-batch means", "micro-batch means "):
        off = np.array([page.errors(name, seed) for seed in range(100, 110)])
        assert (off > 0.01).all() and (off.mean(0) > 0.2).all()
        assert (off.mean(0) < 0.9).all() and off.std() > 0.1
    for name in ("**slime, default**", "**slime, per token**"):
        off = [page.errors(name, seed) for seed in range(100, 110)]
        assert np.max(off) < 1e-12


def test_claim_of_the_sixteen_responses():
    trained = [int(s.mask.sum()) for s in page.batch()]
    assert (min(trained), max(trained)) == (5, 277)
    tool = [i for i, s in enumerate(page.batch()) if not s.mask.all()]
    assert tool == [0, 4, 8, 12]
    assert trained == [int(s.mask.sum()) for s in page.batch(1)]
    seen = [[int(s.mask.sum()) for s in page.batch(k)] for k in range(10)]
    assert (min(map(min, seen)), max(map(max, seen))) == (2, 622)
    right = np.reshape(page.REWARDS, (4, 4)).sum(1)
    assert right.tolist() == [2, 1, 3, 1]  # no group without a signal


def test_claim_of_the_packing_of_the_last_layout():
    """8 micro-batches; a response longer than the cap stands alone."""
    ranks, cp = page.packed()[-1]
    sizes = [[page.size(m) for m in r] for r in ranks]
    assert len(sizes) == 4 and all(len(r) == 2 for r in sizes)
    over = [(m, len(m)) for r in ranks for m in r if page.size(m) > 256]
    assert len(over) == 1 and over[0][1] == 1 and cp == 2
    trained = [sum(s.mask.sum() for s in m) for r in ranks for m in r]
    assert (min(trained), max(trained)) == (51, 277)


def test_claim_range_of_the_wrong_weights():
    data = page.relative_weights()
    np.testing.assert_allclose(data["slime"], 1)
    low, high = data["per sample"].min(), data["per sample"].max()
    assert (low, high) == pytest.approx((2 / 3, 2))
    low, high = data["per token"].min(), data["per token"].max()
    assert (low, high) == pytest.approx((0.53, 2.85), abs=0.005)
    # By hand: a response alone in its micro-batch, 1/8 in place of 1/16,
    # and tokens: total tokens / (8 * tokens of the micro-batch).
    ranks, _ = page.packed()[-1]
    total = sum(s.mask.sum() for s in page.batch())
    for micro in (m for r in ranks for m in r):
        tokens = sum(s.mask.sum() for s in micro)
        for s in micro:
            i = s.rollout
            assert data["per sample"][i] == pytest.approx(2 / len(micro))
            assert data["per token"][i] == pytest.approx(total / 8 / tokens)


def test_figure_of_the_weights():
    top, bottom = page.figure_weights().axes
    data = page.relative_weights()
    for axes, key, row in ((top, "per sample", 0), (bottom, "per token", 1)):
        _, ours, wrong = axes.lines
        np.testing.assert_allclose(wrong.get_xdata(), data["length"])
        np.testing.assert_allclose(wrong.get_ydata(), data[key])
        np.testing.assert_allclose(ours.get_ydata(), data["slime"][row])
        assert any(key in t.get_text() for t in axes.texts)
        low, high = axes.get_ylim()
        assert low < data[key].min() and data[key].max() < high
    assert "tokens" in bottom.get_xlabel()
    assert "weight" in top.get_ylabel()
