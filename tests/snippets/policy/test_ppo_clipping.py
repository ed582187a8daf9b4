"""Checks ppo_clipping.py against hand-worked cases, NumPy and autograd."""

import numpy as np
import pytest
import torch

from snippets.policy import ppo_clipping as page
from snippets.policy.ppo_clipping import (
    OBJECTIVES,
    cispo,
    clip_only,
    coefficient,
    noise_batches,
    noise_of_the_page,
    noise_runs,
    ppo,
    reuse,
    standardised,
    train,
    trainings,
    unclipped,
    value_and_entropy,
    values_and_slopes,
)

torch.set_num_threads(1)

RATIOS = (0.05, 0.5, 0.79, 0.81, 1.0, 1.19, 1.21, 1.5, 2.9, 3.1, 8.0)


def tokens(ratios=RATIOS):
    """Every ratio with A = +0.4 and with A = -0.5: (ratio, advantages)."""
    ratio = torch.tensor(ratios, dtype=torch.float64).repeat(2)
    half = len(ratios)
    return ratio, torch.tensor([0.4] * half + [-0.5] * half).double()


#  A, ratio:  objective, slope | clip only, slope   (clip 0.2, by hand)
SIX = {
    (1.0, 0.5): (0.5, 1.0, 0.8, 0.0),
    (1.0, 1.0): (1.0, 1.0, 1.0, 1.0),
    (1.0, 1.5): (1.2, 0.0, 1.2, 0.0),
    (-1.0, 0.5): (-0.8, 0.0, -0.8, 0.0),
    (-1.0, 1.0): (-1.0, -1.0, -1.0, -1.0),
    (-1.0, 1.5): (-1.5, -1.0, -1.2, 0.0),
}


@pytest.mark.parametrize("case", SIX)
def test_the_six_cases_by_hand(case):
    got = [*values_and_slopes(ppo, [case])[0]]
    got += [*values_and_slopes(clip_only, [case])[0]]
    assert got == pytest.approx(SIX[case])


def test_table_of_cases_says_which_tokens_are_repaired():
    lines = page.table_cases().splitlines()[2:]
    verdicts = [line.split("|")[-2].strip() for line in lines]
    assert verdicts == [
        "**repair**",
        "learn",
        "stop",
        "stop",
        "learn",
        "**repair**",
    ]


def test_table_of_cases_shows_ppo_first_and_the_clip_alone_second():
    lines = page.table_cases().splitlines()[2:]
    for line, numbers in zip(lines, SIX.values(), strict=True):
        cells = [c.strip().replace("−", "-") for c in line.split("|")[3:7]]
        assert [float(c) for c in cells] == pytest.approx(numbers)


def by_definition(ratio, a, low, high, dual):
    """One token, written as the cases, not as min and clamp."""
    if a > 0:
        return a * (1 + high if ratio > 1 + high else ratio)
    capped = 1 - low if ratio < 1 - low else ratio
    return a * (dual if dual and capped > dual else capped)


@pytest.mark.parametrize("dual", [None, 3.0])
def test_objective_is_the_definition_on_an_asymmetric_band(dual):
    ratio, a = tokens()
    old = torch.linspace(-4, -1, len(ratio), dtype=torch.float64)
    got = ppo(old + ratio.log(), old, a, 0.2, 0.28, dual)
    expected = [
        by_definition(r, x, 0.2, 0.28, dual)
        for r, x in zip(ratio.tolist(), a.tolist(), strict=True)
    ]
    np.testing.assert_allclose(got.numpy(), expected)


def test_claim_ppo_is_a_lower_bound_and_clip_only_is_not():
    ratio, a = tokens()
    batch = ratio.log(), torch.zeros_like(ratio), a
    assert (ppo(*batch) <= unclipped(*batch) + 1e-12).all()
    assert (ppo(*batch) <= clip_only(*batch) + 1e-12).all()
    assert (clip_only(*batch) > unclipped(*batch)).any()


def test_claim_the_loss_is_the_max_of_the_negatives():
    ratio, a = tokens()
    loss = torch.maximum(-ratio * a, -ratio.clamp(0.8, 1.2) * a)
    got = ppo(ratio.log(), torch.zeros_like(ratio), a)
    np.testing.assert_allclose(-got, loss)


@pytest.mark.parametrize(
    "objective",
    [
        unclipped,
        clip_only,
        ppo,
        lambda *b: ppo(*b, dual=3.0),
        lambda *b: ppo(*b, low=0.2, high=0.28),
    ],
)
def test_coefficient_is_the_finite_difference(objective):
    ratio, a = tokens()
    old, h = torch.zeros_like(ratio), 1e-6
    up, down = (objective(ratio.log() + d, old, a) for d in (h, -h))
    expected = (up - down) / (2 * h) / a
    got = coefficient(objective, ratio, a)
    np.testing.assert_allclose(got, expected, atol=1e-6)


def mask(ratio, a, low=0.2, high=0.2):
    """MiniMax-M1's Eq. 7, written with NumPy."""
    ratio, a = ratio.numpy(), a.numpy()
    gone = (a > 0) & (ratio > 1 + high) | (a < 0) & (ratio < 1 - low)
    return np.where(gone, 0.0, 1.0)


def test_claim_ppo_is_the_ratio_times_the_mask_and_cispo_the_cap():
    ratio, a = tokens()
    got = coefficient(ppo, ratio, a).numpy()
    np.testing.assert_allclose(got, ratio.numpy() * mask(ratio, a))
    got = coefficient(cispo, ratio, a).numpy()
    np.testing.assert_allclose(got, np.minimum(ratio.numpy(), 5.0))
    assert (got > 0).all()  # no token is ever silenced


def test_claim_masked_cispo_is_not_ppo_where_the_weight_is_clipped():
    """Eq. 6 with weights in [0.8, 1.2] differs in the live corners only."""
    ratio, a = tokens()
    unified = np.clip(ratio.numpy(), 0.8, 1.2) * mask(ratio, a)
    differs = ~np.isclose(unified, coefficient(ppo, ratio, a).numpy())
    corner = (a > 0) & (ratio < 0.8) | (a < 0) & (ratio > 1.2)
    np.testing.assert_array_equal(differs, corner.numpy())


def test_claim_dual_clip_stops_only_bad_tokens_above_c():
    ratio, a = tokens()
    plain = coefficient(ppo, ratio, a)
    dual = coefficient(lambda *b: ppo(*b, dual=3.0), ratio, a)
    hit = (a < 0) & (ratio > 3)
    assert (dual[hit] == 0).all() and (plain[hit] > 3).all()
    np.testing.assert_allclose(dual[~hit], plain[~hit])


def test_claim_trl_delta_is_dual_clip_if_above_the_band():
    """TRL caps r at delta inside the minimum, for either sign of A."""
    ratio, a = tokens()
    old = torch.zeros_like(ratio)

    def delta(new, old_, adv, cap):
        r = (new - old_).exp()
        inner, outer = r.clamp(max=cap), r.clamp(0.8, 1.28)
        return torch.minimum(inner * adv, outer * adv)

    for cap, same in ((3.0, True), (1.3, True), (1.1, False)):
        got = delta(ratio.log(), old, a, cap)
        dual = ppo(ratio.log(), old, a, 0.2, 0.28, dual=cap)
        assert torch.allclose(got, dual) == same


def test_claim_cispo_without_bounds_has_the_gradient_of_the_surrogate():
    ratio, a = tokens()
    free = coefficient(lambda *b: cispo(*b, high=1e9), ratio, a)
    np.testing.assert_allclose(free, coefficient(unclipped, ratio, a))
    np.testing.assert_allclose(free, ratio)


def test_claim_at_ratio_one_all_objectives_are_the_policy_gradient():
    ratio, a = tokens([1.0])
    for objective in OBJECTIVES.values():
        np.testing.assert_allclose(coefficient(objective, ratio, a), torch.ones_like(a))


def test_claim_the_ratio_is_new_over_old():
    """A token that became likelier, A > 0: PPO has had enough of it."""
    new, old = torch.tensor([0.6]).log(), torch.tensor([0.3]).log()
    a = torch.ones(1)
    assert ppo(new, old, a).item() == pytest.approx(1.2)
    assert ppo(old, new, a).item() == pytest.approx(0.5)
    expected = 2.0 * np.log(0.6)
    assert cispo(new, old, a).item() == pytest.approx(expected)
    assert unclipped(new, old, a).item() == pytest.approx(2.0)
    assert unclipped(old, new, a).item() == pytest.approx(0.5)
    assert clip_only(new, old, -a).item() == pytest.approx(-1.2)
    assert clip_only(old, new, -a).item() == pytest.approx(-0.8)


def test_claim_an_epsilon_of_ten_is_no_lower_and_hardly_an_upper_clip():
    ratio, a = tokens([1e-4, 0.5, 2.0, 10.9, 11.1, 50.0])
    got = coefficient(lambda *b: ppo(*b, low=10, high=10), ratio, a)
    expected = ratio.clone()
    expected[(a > 0) & (ratio > 11)] = 0
    np.testing.assert_allclose(got, expected)


def test_claim_zeroing_the_weight_is_not_clamping_it():
    ratio, a = tokens([0.5, 1.0, 8.0])
    inside = (ratio > 0.8) & (ratio < 1.2)

    def zeroed(new, old, adv):
        weight = (new - old).exp()
        return torch.where(inside, weight, 0.0).detach() * adv * new

    assert coefficient(zeroed, ratio, a).tolist() == [0, 1, 0] * 2
    clamped = coefficient(OBJECTIVES["CISPO, weight ≤ 1.2"], ratio, a)
    assert clamped.tolist() == pytest.approx([0.5, 1, 1.2] * 2)


def test_claim_the_old_clip_fraction_counts_twice_as_many():
    """One token in each outside case: 4 outside the band, 2 stopped."""
    ratio, a = tokens([0.5, 1.5])
    assert ((ratio - 1).abs() > 0.2).sum() == 4
    assert (coefficient(ppo, ratio, a) == 0).sum() == 2


# --- Training on one batch -------------------------------------------------


def two_actions(ratio_now):
    """A 2-way policy whose good action 0 has this ratio to the old 0.5."""
    p = torch.tensor([0.5 * ratio_now, 1 - 0.5 * ratio_now]).double()
    return p.log()[None]


@pytest.mark.parametrize(
    "objective, ends", [(ppo, 1.2), (clip_only, 0.5), (unclipped, 2.0)]
)
def test_claim_only_the_min_repairs_a_good_action_that_fell(objective, ends):
    """Ratio 0.5, A = +1: with the min it climbs to 1.2, without it stays."""
    old = torch.full((1, 2), 0.5, dtype=torch.float64).log()
    logits = two_actions(0.5)
    for _ in range(500):
        logits.requires_grad_()
        taken = logits.log_softmax(1)[:, :1]
        gain = objective(taken, old[:, :1], torch.ones(1, 1).double()).sum()
        (gradient,) = torch.autograd.grad(gain, logits)
        logits = logits.detach() + 0.08 * gradient
    ratio = logits.softmax(1)[0, 0].item() / 0.5
    assert ratio == pytest.approx(ends, abs=0.06)


def test_claim_three_ways_out_of_the_band():
    old = torch.full((1, 3), 1 / 3, dtype=torch.float64).log()
    # 1. One step is never clipped, since it starts at r = 1.
    good = torch.tensor([[0]]), torch.ones(1, 1).double()
    end = reuse(ppo, old, *good, passes=1, step=2.0)[-1]
    assert (end - old).exp()[0, 0] > 1.5
    # 2. A token without gradient rises when another one is pushed down.
    logits = torch.tensor([[0.4, 0.0, 0.0]]).double().requires_grad_()
    taken = logits.log_softmax(1)[:, :2]
    before = (taken.detach() - old[:, :2]).exp()[0, 0].item()
    a = torch.tensor([[1.0, -1.0]]).double()
    each = ppo(taken, old[:, :2], a)
    (alone,) = torch.autograd.grad(each[0, 0], logits, retain_graph=True)
    (both,) = torch.autograd.grad(each.sum(), logits)
    after = (logits + 0.1 * both).softmax(1)[0, 0].item() * 3
    assert before > 1.2 and not alone.any() and after > before
    # 3. Momentum carries on after the gradient has become 0.
    logits, speed = torch.zeros(1, 3).double(), torch.zeros(1, 3).double()
    path = []
    for _ in range(40):
        logits = logits.detach().requires_grad_()
        taken = logits.log_softmax(1)[:, :1]
        gain = ppo(taken, old[:, :1], torch.ones(1, 1).double()).sum()
        (gradient,) = torch.autograd.grad(gain, logits)
        speed = 0.9 * speed + gradient
        logits = logits + 0.02 * speed
        path.append((logits.softmax(1)[0, 0].item() * 3, gradient.any()))
    first = next(i for i, (_, alive) in enumerate(path) if not alive)
    assert path[first - 1][0] > 1.2 and path[-1][0] > path[first - 1][0] + 0.1


def test_reuse_is_the_analytic_ascent_on_the_ratio():
    """NumPy loop: d/d logit_k of mean r A = mean r A (1[a = k] - p_k)."""
    g = torch.Generator().manual_seed(3)
    old, taken, a = noise_batches(g, batches=2, vocab=4, n=9)
    got = reuse(unclipped, old, taken, a, passes=5, step=0.7)
    for b in range(2):
        z, p_old = old[b].numpy().copy(), old[b].exp().numpy()
        for _ in range(5):
            p = np.exp(z) / np.exp(z).sum()
            gradient = np.zeros(4)
            for t, x in zip(taken[b].tolist(), a[b].tolist(), strict=True):
                gradient += p[t] / p_old[t] * x * (np.eye(4)[t] - p) / 9
            z += 0.7 * gradient
        np.testing.assert_allclose(
            got[-1][b].exp().numpy(), np.exp(z) / np.exp(z).sum()
        )
    assert len(got) == 6 and got[0] is old


def test_claim_without_a_clip_the_best_policy_is_one_token():
    """mean r A is linear in pi_new: its supremum is at a vertex."""
    old, taken, a = noise_batches(torch.Generator().manual_seed(0))
    claimed = noise_of_the_page()["no clip"][-1, 0, 0]
    for b in range(len(old)):
        per_token = np.zeros(10)
        np.add.at(per_token, taken[b].numpy(), a[b].numpy() / 64)
        vertex = (per_token / old[b].exp().numpy()).max()
        assert claimed[b] < vertex + 1e-9
        mix = np.random.default_rng(b).dirichlet(np.ones(10))
        assert (mix * per_token / old[b].exp().numpy()).sum() <= vertex


def test_noise_advantages_are_standardised_and_reproducible():
    first, again = (noise_batches(torch.Generator().manual_seed(5)) for _ in range(2))
    for x, y in zip(first, again, strict=True):
        assert torch.equal(x, y)
    a = first[2].numpy()
    np.testing.assert_allclose(a.mean(1), 0, atol=1e-12)
    np.testing.assert_allclose(a.std(1, ddof=1), 1, rtol=1e-5)
    assert first[0].shape == (16, 10) and first[1].shape == (16, 64)


OTHER_SEEDS = range(100, 110)


def test_claim_one_batch_of_noise_on_other_seeds():
    """The sentences on gain, KL and ratios, for each of ten new seeds."""
    end = {name: run[-1] for name, run in noise_runs(OTHER_SEEDS).items()}
    assert end["PPO"].shape == (3, 10, 16)
    mean = {name: run.mean(2) for name, run in end.items()}  # (3, seeds)
    ppo_end, free = mean["PPO"], mean["no clip"]
    assert (free[0] > 7 * ppo_end[0]).all() and (free[0] > 0.45).all()
    assert free[0].mean() > 10 * ppo_end[0].mean()
    assert ((0.04 < ppo_end[0]) & (ppo_end[0] < 0.08)).all()
    for name in ("CISPO, weight ≤ 5", "CISPO, weight ≤ 1.2"):
        assert (mean[name][0] > 5 * ppo_end[0]).all()
        assert (mean[name][1] > 20 * ppo_end[1]).all()
    home = mean["CISPO, weight ≤ 5"][0].mean() / ppo_end[0].mean()
    assert 8 < home < 14  # "some ten times", on the home page
    assert mean["CISPO, weight ≤ 1.2"][2].mean() > 6
    assert mean["CISPO, weight ≤ 1.2"][2].min() > 4
    ratio = end["PPO"][2]
    assert ((ratio > 1.2).double().mean(1) > 0.8).all()
    assert (ratio > 1.2).double().mean() == pytest.approx(0.95, abs=0.05)
    worst = ratio.max(1).values
    assert worst.min() > 1.6 and worst.mean() == pytest.approx(2.1, abs=0.4)
    assert ppo_end[2].mean() == pytest.approx(1.36, abs=0.05)


def test_noise_runs_keep_each_seed_apart_and_start_at_ratio_one():
    run = noise_of_the_page()["PPO"]
    assert run.shape == (201, 3, 10, 16)
    np.testing.assert_allclose(run[0, 0], 0, atol=1e-12)
    np.testing.assert_allclose(run[0, 1], 0, atol=1e-12)
    np.testing.assert_allclose(run[0, 2], 1, atol=1e-12)
    batch = noise_batches(torch.Generator().manual_seed(7))
    alone = page.measured(reuse(ppo, *batch, 200)[-1], *batch)
    np.testing.assert_allclose(run[-1, :, 7], alone)


def test_measured_kl_is_old_against_new():
    old, new = (torch.tensor([p]).double().log() for p in ([0.9, 0.1], [0.5] * 2))
    a = torch.tensor([[0, 1]]), torch.tensor([[1.0, -1.0]]).double()
    claimed, kl, largest = page.measured(new, old, *a)
    assert kl.item() == pytest.approx(0.9 * np.log(0.9 / 0.5) + 0.1 * np.log(0.1 / 0.5))
    assert largest.item() == pytest.approx(5.0)
    assert claimed.item() == pytest.approx((0.5 / 0.9 - 5) / 2)


# --- Many batches ----------------------------------------------------------


def test_value_and_entropy():
    p = torch.tensor([[0.25, 0.75]]).double()
    value, entropy = value_and_entropy(p.log(), torch.tensor([0.2, 0.6]))
    assert value.item() == pytest.approx(0.5)
    expected = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    assert entropy.item() == pytest.approx(expected)


def test_training_starts_uniform_and_standardises_rewards():
    run = train(ppo, [0], 1, runs=2, rounds=1)
    assert run.shape == (2, 2, 1, 2)
    np.testing.assert_allclose(run[0, 0], 0.45)
    np.testing.assert_allclose(run[0, 1], np.log(10))
    same = standardised(torch.ones(1, 4))
    assert not same.any()  # all rewards equal: nothing to learn


def test_training_by_loop():
    """One round of two seeds, sample by sample, in NumPy."""
    got = train(unclipped, [3, 5], 2, step=1.5, runs=2, rounds=1)
    rates = 0.3 + np.arange(10) / 30
    for s, seed in enumerate((3, 5)):
        source = torch.Generator().manual_seed(seed)
        flat = torch.full((2, 10), 0.1, dtype=torch.float64)
        taken = torch.multinomial(flat, 64, True, generator=source).numpy()
        luck = torch.rand(2, 64, generator=source, dtype=torch.float64).numpy()
        for b in range(2):
            won = (luck[b] < rates[taken[b]]).astype(float)
            a = (won - won.mean()) / (won.std(ddof=1) + 1e-6)
            z = np.zeros(10)
            for _ in range(2):
                p, slope = np.exp(z) / np.exp(z).sum(), np.zeros(10)
                for t, x in zip(taken[b], a, strict=True):
                    slope += p[t] / 0.1 * x * (np.eye(10)[t] - p) / 64
                z += 1.5 * slope
            p = np.exp(z) / np.exp(z).sum()
            assert got[1, 0, s, b].item() == pytest.approx(p @ rates)
            entropy = -(p * np.log(p)).sum()
            assert got[1, 1, s, b].item() == pytest.approx(entropy)


def test_claims_on_training_on_other_seeds():
    """A third of the unclipped runs freeze; the clip's price; CISPO."""
    runs = trainings(OTHER_SEEDS)
    end = {key: run[-1, 0] for key, run in runs.items()}  # (seeds, 16)
    stuck = {key: (x < 0.55).sum(1) for key, x in end.items()}
    free, clip, soft = (16, "no clip"), (16, "PPO"), (16, "CISPO, weight ≤ 5")
    assert (stuck[free] >= 2).all()
    assert 0.25 < stuck[free].sum() / 160 < 0.45
    for key in (clip, (4, "PPO")):
        assert (stuck[key] <= 2).all() and stuck[key].sum() < 10
    assert (stuck[soft] >= 1).all() and (stuck[soft] <= 5).all()
    assert runs[free][-1, 1].mean() < 0.25 < 0.55 < runs[clip][-1, 1].mean()
    mean = {key: x.mean().item() for key, x in end.items()}
    assert mean[clip] > mean[free] + 0.02
    assert abs(mean[clip] - mean[4, "PPO"]) < 0.01
    assert mean[4, "no clip"] > mean[4, "PPO"]  # no harm
    assert mean[clip] - 0.01 < mean[soft] < mean[clip]
    early = {key: run[10, 0].mean().item() for key, run in runs.items()}
    assert sorted(early, key=early.get)[:2] in (
        [clip, (4, "PPO")],
        [(4, "PPO"), clip],
    )
    assert early[soft] > early[clip] + 0.03


# --- Frameworks ------------------------------------------------------------


def rows(table):
    return {
        cells[1].strip(): [c.strip() for c in cells[2:-1]]
        for cells in (line.split("|") for line in table.splitlines()[2:])
    }


# row: (low, high) as the framework takes them; TRL's high is the cap itself
SETTINGS = {
    "TRL, `epsilon_high` unset": (None, 0.2),
    "TRL, `epsilon_high=5.0`": (None, 5.0),
    "verl, YAML defaults 0.2 / 0.2": (0.2, 0.2),
    "verl, its example 10 / 0.2": (10, 0.2),
    "slime, defaults 0.2 / 0.2": (0.2, 0.2),
    "slime and AReaL, advised 1 / 4": (1, 4),
    "SkyRL, default 1 / 4": (1, 4),
    "SkyRL, before July 2026, 0 / 5": (0, 5),
    "NeMo RL, its guide 1 / 5": (1, 5),
    "ROLL, defaults 0.1 / 0.1": (0.1, 0.1),
}


def test_claim_cispo_bands_of_the_frameworks():
    table = rows(page.table_bands())
    assert list(table) == list(SETTINGS)
    for name, (low, high) in SETTINGS.items():
        ends = (0, high) if low is None else (max(1 - low, 0), 1 + high)
        band, *weights = table[name]
        assert [float(x) for x in band.strip("[]").split(",")] == pytest.approx(ends)
        expected = [min(max(r, ends[0]), ends[1]) for r in (0.5, 1, 2, 8)]
        assert [float(w) for w in weights] == pytest.approx(expected)


def test_claim_roll_dual_clip_constant():
    pg_clip = 0.2
    assert 1 + 2 * pg_clip == pytest.approx(1.4)


def test_table_of_coefficients_has_the_silent_and_the_unbounded_tokens():
    table = page.table_coefficients().splitlines()
    heads = [h.strip() for h in table[0].split("|")[1:-1]]
    assert heads[2:4] == ["no clip", "PPO"]
    got = [[c.strip() for c in x.split("|")[1:-1]] for x in table[2:]]
    assert got[3] == ["$+1$", "8", "8", "0", "0", "1.2", "5"]
    assert got[4] == ["$-1$", "0.5", "0.5", "0", "0", "0.5", "0.5"]
    assert got[7] == ["$-1$", "8", "8", "8", "0", "1.2", "5"]


def estimates(table, labels=1):
    """Rows of "mean ± spread" cells as numbers, after `labels` cells."""
    found = {}
    for line in table.splitlines()[2:]:
        cells = [c.strip() for c in line.split("|")[1:-1]]
        found[tuple(cells[:labels])] = [
            tuple(float(x) for x in c.split("±")) for c in cells[labels:]
        ]
    return found


NOISE = {  # claimed, KL, largest, worst: the values when they were checked
    "no clip": ((0.796, 0.192), (3.058, 0.227), (17.86, 7.68), (87.8, 89.9)),
    "clip, no min": ((0.067, 0.006), (0.033, 0.003), (1.33, 0.03), (1.9, 0.3)),
    "PPO": ((0.059, 0.006), (0.023, 0.002), (1.37, 0.05), (2.0, 0.2)),
    "CISPO, weight ≤ 5": ((0.676, 0.120), (2.155, 0.060), (11.86, 2.56), (36.1, 16.4)),
    "CISPO, weight ≤ 1.2": ((0.487, 0.087), (1.097, 0.065), (6.37, 0.97), (16.5, 9.6)),
}


def test_table_of_the_noise_batch():
    table = estimates(page.table_noise())
    assert list(table) == [(name,) for name in NOISE]
    for (name,), cells in table.items():
        for got, expected, digits in zip(cells, NOISE[name], (3, 3, 2, 1), strict=True):
            assert got == pytest.approx(expected, abs=1.1 * 0.1**digits)


TRAINED = {  # after 10 and 40 batches, entropy, below 0.55, worst
    ("no clip", "4"): ((0.561, 0.005), (0.588, 0.004), (0.23, 0.05), (0.6, 0.7), 0.54),
    ("PPO", "4"): ((0.523, 0.003), (0.584, 0.004), (0.58, 0.07), (0.2, 0.4), 0.56),
    ("no clip", "16"): ((0.540, 0.022), (0.543, 0.016), (0.16, 0.05), (5.8, 1.7), 0.35),
    ("PPO", "16"): ((0.523, 0.002), (0.583, 0.004), (0.64, 0.08), (0.2, 0.6), 0.56),
    ("CISPO, weight ≤ 5", "16"): (
        (0.563, 0.009),
        (0.579, 0.004),
        (0.24, 0.07),
        (2.3, 0.9),
        0.52,
    ),
}


def test_table_of_trainings():
    table = estimates(page.table_training(), labels=2)
    assert list(table) == list(TRAINED)
    for key, cells in table.items():
        *numbers, worst = TRAINED[key]
        for got, expected in zip(cells, numbers, strict=False):
            assert got == pytest.approx(expected, abs=0.0011)
        assert cells[-1][0] == pytest.approx(worst, abs=0.0051)


# --- Figures ---------------------------------------------------------------


def test_figure_of_the_objective():
    good, bad = page.figure_objective().axes
    assert "A > 0" in good.get_title(loc="left")
    assert "A < 0" in bad.get_title(loc="left")
    assert bad.get_xlabel().startswith("ratio")
    for axes, a in ((good, 1.0), (bad, -1.0)):
        line = axes.lines[2]
        x, y = line.get_xdata(), line.get_ydata()
        expected = [by_definition(r, a, 0.2, 0.2, None) for r in x]
        np.testing.assert_allclose(y, expected)
    grey = [a.patches[0].get_extents().transformed(a.transData.inverted())
            for a in (good, bad)]  # fmt: skip
    assert grey[0].x0 == pytest.approx(1.2, abs=0.01)
    assert grey[1].x1 == pytest.approx(0.8, abs=0.02)
    np.testing.assert_allclose(bad.lines[-1].get_ydata(), -3.0)


def test_figure_of_the_noise_batch():
    gain, largest = page.figure_noise().axes
    assert "passes" in largest.get_xlabel()
    for axes, row in ((gain, 0), (largest, 2)):
        for line, name in zip(
            axes.lines, ("no clip", "CISPO, weight ≤ 5", "PPO"), strict=False
        ):
            seeds = noise_of_the_page()[name][1:, row].numpy().mean(2)
            expected = seeds.mean(1)
            np.testing.assert_allclose(line.get_ydata(), expected)
        bands = [b.get_paths()[0].vertices for b in axes.collections]
        low, high = bands[0][:, 1].min(), bands[0][:, 1].max()
        free = noise_of_the_page()["no clip"][1:, row].numpy().mean(2)
        top = free.mean(1) + free.std(1, ddof=1)
        bottom = free.mean(1) - free.std(1, ddof=1)
        assert (low, high) == pytest.approx((bottom.min(), top.max()))
    assert gain.lines[0].get_ydata()[-1] == pytest.approx(0.796, abs=0.002)
    texts = {t.get_text() for t in gain.texts}
    assert {"no clip", "PPO", "true gain: 0, always"} <= texts
