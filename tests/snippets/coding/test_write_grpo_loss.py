"""Checks write_grpo_loss.py against plain Python, autograd and by hand."""

import math
import random
import statistics

import pytest
import torch

from snippets.coding.write_grpo_loss import (
    VARIANTS,
    example,
    figure_weights,
    group_advantages,
    grpo_loss,
    masked_after,
    reduce_loss,
    table_micro_batches,
    table_padding,
    table_variants,
    token_log_probs,
    variant,
    weights,
)

LOWS_AND_HIGHS = [(0.2, 0.2), (0.1, 0.3), (3e-4, 4e-4)]
REDUCE = ["sequence", "token", "constant"]


def close(a, b, atol=1e-7):
    """As torch.testing.assert_close, whose import alone takes a second."""
    assert a.shape == b.shape and torch.allclose(a, b, atol=atol), (a, b)


def ragged(seed=0, prompts=3, group=4):
    """Lists of lists, no padding: what the responses are."""
    rng = random.Random(seed)
    rows = []
    for _ in range(prompts * group):
        n = rng.randint(1, 6)
        old = [rng.uniform(-3, -0.1) for _ in range(n)]
        rows.append(
            {
                "old": old,
                "new": [x + rng.gauss(0, 0.3) for x in old],
                "ref": [x + rng.gauss(0, 0.5) for x in old],
                "reward": rng.choice([0.0, 0.25, 1.0]),
            }
        )
    return rows


def padded(rows, junk=0.0, extra=2, dtype=torch.float64):
    """The same as tensors of a batch, padding filled with junk."""
    width = max(len(r["old"]) for r in rows) + extra
    out = {"mask": torch.zeros(len(rows), width, dtype=torch.bool)}
    for i, r in enumerate(rows):
        out["mask"][i, : len(r["old"])] = True
    for name in ("new", "old", "ref"):
        x = torch.full((len(rows), width), junk, dtype=dtype)
        for i, r in enumerate(rows):
            x[i, : len(r[name])] = torch.tensor(r[name], dtype=dtype)
        out[name] = x
    rewards = torch.tensor([r["reward"] for r in rows], dtype=dtype)
    return out, rewards


def by_hand(rows, group, std, eps, beta, level, reduce, budget):
    """The definition, one response and one token at a time."""
    responses = []
    for start in range(0, len(rows), group):
        answers = rows[start : start + group]
        scores = [a["reward"] for a in answers]
        mean = sum(scores) / group
        spread = statistics.stdev(scores) + 1e-6 if std else 1.0
        for a in answers:
            adv = (a["reward"] - mean) / spread
            n = len(a["old"])
            logs = [x - y for x, y in zip(a["new"], a["old"], strict=True)]
            if level == "sequence":
                logs = [sum(logs) / n] * n
            losses = []
            for t in range(n):
                r = math.exp(logs[t])
                kept = max(1 - eps[0], min(1 + eps[1], r))
                term = min(r * adv, kept * adv)
                q = math.exp(a["ref"][t]) / math.exp(a["new"][t])
                losses.append(-term + beta * (q - 1 - math.log(q)))
            responses.append(losses)
    if reduce == "sequence":
        return statistics.mean(statistics.mean(x) for x in responses)
    every = [x for one in responses for x in one]
    if reduce == "token":
        return statistics.mean(every)
    return sum(every) / len(responses) / budget


@pytest.mark.parametrize("reduce", REDUCE)
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("eps", LOWS_AND_HIGHS)
@pytest.mark.parametrize("std, beta", [(True, 0.0), (False, 0.3)])
def test_it_is_the_definition_token_by_token(reduce, level, eps, std, beta):
    rows = ragged(seed=3)
    batch, rewards = padded(rows)
    adv = group_advantages(rewards, 4, std)
    got = grpo_loss(
        **batch,
        adv=adv,
        eps=eps,
        beta=beta,
        level=level,
        reduce=reduce,
        budget=9,
    )
    expected = by_hand(rows, 4, std, eps, beta, level, reduce, 9)
    assert got.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("reduce", REDUCE)
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_gradient_is_that_of_finite_differences_and_only_of_new(reduce, level):
    batch, rewards = padded(ragged(seed=1))
    adv = group_advantages(rewards, 4)
    new = batch.pop("new").requires_grad_()

    def f(x):
        return grpo_loss(
            x,
            adv=adv,
            beta=0.2,
            level=level,
            reduce=reduce,
            budget=9,
            **batch,
        )

    (grad,) = torch.autograd.grad(f(new), new)
    h, numeric = 1e-6, torch.zeros_like(new)
    with torch.no_grad():
        for at in batch["mask"].nonzero().tolist():
            step = torch.zeros_like(new)
            step[tuple(at)] = h
            numeric[tuple(at)] = (f(new + step) - f(new - step)) / (2 * h)
    close(grad, numeric, atol=1e-8)
    assert (grad[~batch["mask"]] == 0).all()


def test_log_probs_are_shifted_and_tempered():
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, 7, generator=g)
    tokens = torch.randint(7, (2, 5), generator=g)
    got = token_log_probs(logits, tokens, temperature=0.5)
    assert got.shape == (2, 4)
    for b in range(2):
        for t in range(4):  # row t of the logits scores token t + 1
            scores = [2 * x for x in logits[b, t].tolist()]
            total = sum(math.exp(x) for x in scores)
            p = math.exp(scores[tokens[b, t + 1]]) / total
            assert got[b, t].item() == pytest.approx(math.log(p), abs=1e-5)


def test_log_probs_survive_half_precision_and_large_logits():
    logits = torch.tensor([[[300.0, 0.0], [0.0, 0.0]]]).half()
    got = token_log_probs(logits, torch.tensor([[0, 1]]))
    assert got.dtype == torch.float32
    assert got.item() == pytest.approx(-300)


def test_advantages_are_per_group_with_the_sample_deviation():
    rewards = torch.tensor([1.0, 0, 0, 1, 5, 5, 5, 9])
    got = group_advantages(rewards, 4).flatten().tolist()
    first = 0.5 / (statistics.stdev([1, 0, 0, 1]) + 1e-6)
    assert got[:4] == pytest.approx([first, -first, -first, first])
    assert got[4:] == pytest.approx([-0.5, -0.5, -0.5, 1.5], abs=1e-5)
    centred = group_advantages(rewards, 4, std=False).flatten().tolist()
    assert centred == [0.5, -0.5, -0.5, 0.5, -1, -1, -1, 3]


def test_a_group_of_one_is_refused():
    with pytest.raises(ValueError, match="needs two rewards"):
        group_advantages(torch.ones(3), 1)


def test_an_unknown_reduction_is_refused():
    with pytest.raises(ValueError, match="sequence, token or constant"):
        reduce_loss(torch.ones(1, 1), torch.ones(1, 1).bool(), "mean")


def test_an_unknown_level_is_refused():
    one = torch.zeros(1, 1)
    with pytest.raises(ValueError, match="token or sequence"):
        grpo_loss(one, one, None, one == 0, one, level="sentence")


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_advantages_may_differ_from_token_to_token(level):
    batch, rewards = padded(ragged(seed=4))
    wide = group_advantages(rewards, 4).expand(-1, batch["mask"].shape[1])
    loss = grpo_loss(**batch, adv=wide, level=level)
    assert loss == grpo_loss(**batch, adv=wide[:, :1], level=level)
    per_token = wide * torch.arange(wide.shape[1])
    other = grpo_loss(**batch, adv=per_token, eps=(9, 9), level=level)
    ratio = (batch["new"] - batch["old"]) * batch["mask"]
    if level == "sequence":
        ratio = ratio.sum(1, True) / batch["mask"].sum(1, True)
    terms = ratio.exp() * per_token * batch["mask"]
    expected = -(terms.sum(1) / batch["mask"].sum(1)).mean()
    close(other, expected)


@pytest.mark.parametrize("reduce", REDUCE)
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_an_empty_response_has_a_finite_gradient(level, reduce):
    mask = torch.tensor([[True, True], [False, False]])
    new = torch.zeros(2, 2, requires_grad=True)
    adv = torch.ones(2, 1)
    loss = grpo_loss(
        new,
        torch.zeros(2, 2),
        torch.zeros(2, 2),
        mask,
        adv,
        beta=0.1,
        level=level,
        reduce=reduce,
        budget=2,
    )
    (grad,) = torch.autograd.grad(loss, new)
    assert (grad[0] < 0).all() and (grad[1] == 0).all()


def test_an_empty_response_and_an_empty_batch_are_not_nan():
    mask = torch.tensor([[True, True], [False, False]])
    loss = torch.tensor([[2.0, 4.0], [0.0, 0.0]])
    assert reduce_loss(loss, mask, "sequence").item() == 1.5
    assert reduce_loss(loss, mask, "token").item() == 3.0
    assert reduce_loss(loss[1:], mask[1:], "token").item() == 0.0


@pytest.mark.parametrize("junk", [0.0, 1e4, -math.inf, math.nan])
@pytest.mark.parametrize("name", VARIANTS)
def test_padding_of_any_kind_changes_nothing(name, junk):
    batch = example()
    clean = variant(name, batch)
    for key in ("new", "old", "ref"):
        batch[key] = torch.where(batch["mask"], batch[key], junk)
    loss, grad = variant(name, batch)
    assert torch.equal(loss, clean[0]) and torch.equal(grad, clean[1])


@pytest.mark.parametrize("reduce", REDUCE)
def test_parts_of_a_step_add_up_to_the_step(reduce):
    batch, rewards = padded(ragged(seed=5))
    adv = group_advantages(rewards, 4)
    whole = grpo_loss(**batch, adv=adv, beta=0.1, reduce=reduce, budget=9)
    counts = {
        "responses": len(adv),
        "tokens": int(batch["mask"].sum()),
        "budget": 9,
    }
    cuts = [0, 1, 6, 12]  # through groups, and of unequal size
    parts = sum(
        grpo_loss(
            **{k: v[a:b] for k, v in batch.items()},
            adv=adv[a:b],
            beta=0.1,
            reduce=reduce,
            **counts,
        )
        for a, b in zip(cuts, cuts[1:], strict=False)
    )
    close(parts, whole)


def test_claim_data_parallel_ranks_multiply_by_their_number():
    """DDP averages gradients, so each rank's share is times the ranks."""
    batch, rewards = padded(ragged(seed=7))
    adv = group_advantages(rewards, 4)
    new = batch["new"].requires_grad_()
    loss = grpo_loss(**batch, adv=adv, reduce="token")
    (whole,) = torch.autograd.grad(loss, new)
    total, ranks = int(batch["mask"].sum()), 2
    grads = []
    for rank in range(ranks):
        rows = slice(6 * rank, 6 * rank + 6)
        part = {k: v[rows] for k, v in batch.items()}
        share = grpo_loss(**part, adv=adv[rows], reduce="token", tokens=total)
        grads.append(torch.autograd.grad(ranks * share, new)[0])
    close(sum(grads) / ranks, whole)


# ---------------------------------------------------------------- the page


def test_claim_the_worked_example():
    got = {name: variant(name, example())[0].item() for name in VARIANTS}
    assert got == pytest.approx(
        {
            "GRPO": -0.016238,
            "GRPO, β = 0.04": -0.014753,
            "DAPO": -0.002598,
            "Dr. GRPO": 0.003125,
            "GSPO": 0.026464,
        },
        abs=1e-6,
    )


def test_claim_one_batch_has_losses_of_both_signs():
    """−0.016238 per sequence, +0.008660 per token, same advantages."""
    b = example()
    adv = group_advantages(b["rewards"], 4)
    rows = (b["new"], b["old"], None, b["mask"], adv)
    assert grpo_loss(*rows).item() == pytest.approx(-0.016238, abs=1e-6)
    token = grpo_loss(*rows, reduce="token").item()
    assert token == pytest.approx(0.008660, abs=1e-6)


def test_claim_clipped_tokens_of_the_example():
    _, grad = variant("GRPO", example())
    dead = ((grad == 0) & example()["mask"]).nonzero().tolist()
    assert dead == [[0, 0], [1, 0], [3, 0]]  # ratios 1.3, 0.7, 1.25
    _, grad = variant("GRPO, β = 0.04", example())
    assert (grad[example()["mask"]] != 0).all()  # the KL term goes on


def test_claim_equal_lengths_give_one_direction():
    new = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)) / 5
    new.requires_grad_()
    adv = group_advantages(torch.tensor([1.0, 0, 0, 2]), 4)
    mask = torch.ones(4, 5, dtype=torch.bool)
    grads = []
    for reduce in REDUCE:
        loss = grpo_loss(
            new, torch.zeros(4, 5), None, mask, adv, reduce=reduce, budget=8
        )
        grads.append(torch.autograd.grad(loss, new)[0])
    close(grads[0], grads[1])
    close(grads[0], grads[2] * 8 / 5)


def test_claim_first_step_is_reinforce_and_its_loss_says_nothing():
    """At ratio 1: loss 0 under GRPO, gradient −A / (B·length)."""
    b = example()
    adv = group_advantages(b["rewards"], 4)
    new = b["old"].clone().requires_grad_()
    loss = grpo_loss(new, new.detach(), None, b["mask"], adv)
    (grad,) = torch.autograd.grad(loss, new)
    assert loss.item() == pytest.approx(0, abs=1e-7)
    expected = -adv / (4 * b["mask"].sum(1, keepdim=True)) * b["mask"]
    close(grad, expected)


def test_claim_first_step_loss_of_the_token_mean_needs_balanced_lengths():
    b = example()
    adv = group_advantages(b["rewards"], 4)
    args = (b["old"], b["old"], None)
    got = grpo_loss(*args, b["mask"], adv, reduce="token")
    assert got.item() == pytest.approx(0, abs=1e-7)  # 4 + 1 = 2 + 3 tokens
    longer = b["mask"].clone()
    longer[1, 2] = True  # a wrong answer, one token longer
    assert grpo_loss(*args, longer, adv, reduce="token") > 0.07


def test_claim_a_zero_loss_says_nothing_and_a_zero_gradient_does():
    """Ratio 1: loss 0 with a gradient; equal rewards: neither."""
    b = example()
    new = b["old"].clone().requires_grad_()
    for rewards, alive in (([1.0, 0, 0, 1], True), ([1.0] * 4, False)):
        adv = group_advantages(torch.tensor(rewards), 4)
        loss = grpo_loss(new, new.detach(), None, b["mask"], adv)
        (grad,) = torch.autograd.grad(loss, new)
        assert loss.item() == pytest.approx(0, abs=1e-7)
        assert bool(grad.norm() > 0.1) is alive
    at_ref = grpo_loss(new, new.detach(), new.detach(), b["mask"], adv, beta=1.0)
    assert at_ref.item() == pytest.approx(0, abs=1e-7)
    drifted = new.detach() - 0.1
    assert grpo_loss(new, new.detach(), drifted, b["mask"], adv, beta=1.0) > 0.004


def test_claim_old_that_is_not_detached_kills_the_gradient():
    b = example()
    adv = group_advantages(b["rewards"], 4)
    new = b["new"].clone().requires_grad_()
    loss = grpo_loss(new, new, None, b["mask"], adv)
    assert (torch.autograd.grad(loss, new)[0] == 0).all()


def test_claim_max_instead_of_min_teaches_clipped_tokens():
    """The wrong sign reverses which side of the clip learns."""
    ratio = torch.tensor([1.5, 0.5], requires_grad=True)  # advantage +1
    wrong = torch.minimum(-ratio, -ratio.clamp(0.8, 1.2)).sum()
    right = torch.maximum(-ratio, -ratio.clamp(0.8, 1.2)).sum()
    assert torch.autograd.grad(wrong, ratio)[0].tolist() == [-1, 0]
    assert torch.autograd.grad(right, ratio)[0].tolist() == [0, -1]


def test_claim_k3_pulls_towards_the_reference_by_one_minus_the_ratio():
    mask = torch.ones(1, 2, dtype=torch.bool)
    ref = torch.tensor([[0.3, 0.3]]).log()
    new = torch.tensor([[0.6, 0.2]]).log().requires_grad_()
    loss = grpo_loss(new, new.detach(), ref, mask, torch.zeros(1, 1), beta=1.0)
    (grad,) = torch.autograd.grad(loss, new)
    assert grad[0].tolist() == pytest.approx([(1 - 0.5) / 2, (1 - 1.5) / 2])
    values = [0.5 - math.log(0.5) - 1, 1.5 - math.log(1.5) - 1]
    assert loss.item() == pytest.approx(statistics.mean(values))


def test_claim_k3_as_a_loss_has_the_forward_kls_gradient():
    """Expectation over the policy, all of a three-token vocabulary."""
    logits = torch.tensor([0.3, -0.8, 1.1], dtype=torch.float64)
    logits.requires_grad_()
    ref = torch.tensor([0.05, 0.8, 0.15], dtype=torch.float64)
    new = logits.log_softmax(0)
    d = ref.log() - new
    k3 = (new.detach().exp() * (d.exp() - d - 1)).sum()
    forward = (ref * d).sum()  # KL(reference ‖ policy)
    reverse = -(new.exp() * d).sum()  # KL(policy ‖ reference)
    ratio = (new - new.detach()).exp()
    fixed = (new.detach().exp() * ratio * (d.exp() - d - 1)).sum()
    g = [
        torch.autograd.grad(x, logits, retain_graph=True)[0]
        for x in (k3, forward, reverse, fixed)
    ]
    close(g[0], g[1])
    close(g[3], g[2])
    assert (g[0] - g[2]).abs().max() > 0.05
    close(k3, reverse)  # the value is the reverse KL


def test_claim_gspo_direct_and_stop_gradient_forms_are_one():
    batch, rewards = padded(ragged(seed=2))
    adv = group_advantages(rewards, 4)
    new, mask = batch["new"].requires_grad_(), batch["mask"]
    loss = grpo_loss(**batch, adv=adv, level="sequence")
    n = mask.sum(1, keepdim=True)
    mean = (torch.where(mask, new - batch["old"], 0).sum(1, True) / n).detach()
    ratio = (new - new.detach() + mean).exp()
    terms = -torch.minimum(ratio * adv, ratio.clamp(0.8, 1.2) * adv)
    other = reduce_loss(torch.where(mask, terms, 0), mask, "sequence")
    close(other, loss)
    close(torch.autograd.grad(other, new)[0], torch.autograd.grad(loss, new)[0])


def test_claim_gspo_ratio_of_the_example():
    b = example()
    logs = torch.where(b["mask"], b["new"] - b["old"], 0).sum(1)
    got = (logs / b["mask"].sum(1)).exp().tolist()
    expected = [
        (1.3 * 0.9 * 1.1) ** (1 / 4),
        (0.7 * 1.25) ** (1 / 2),
        (1.5 * 0.9 * 1.05) ** (1 / 3),
        1.25,
    ]
    assert got == pytest.approx(expected)


def test_claim_token_mean_weighs_gspo_responses_by_their_length():
    mask = example()["mask"]
    new = torch.zeros(4, 4, requires_grad=True)
    for reduce, shares in (
        ("sequence", [0.25, 0.25, 0.25, 0.25]),
        ("token", [0.4, 0.2, 0.3, 0.1]),
    ):
        loss = grpo_loss(
            new,
            torch.zeros(4, 4),
            None,
            mask,
            -torch.ones(4, 1),
            level="sequence",
            reduce=reduce,
        )
        got = torch.autograd.grad(loss, new)[0].sum(1).tolist()
        assert got == pytest.approx(shares)


def test_claim_a_product_ratio_leaves_the_clip_after_183_small_steps():
    inside = [n for n in range(1, 400) if 1.001**n <= 1.2]
    assert max(inside) == 182
    assert 1.001**1000 == pytest.approx(2.717, abs=5e-4)
    x = torch.full((1, 1000), math.log(1.001))
    mask = torch.ones(1, 1000, dtype=torch.bool)
    for level in ("token", "sequence"):
        new = x.clone().requires_grad_()
        one = torch.ones(1, 1)
        loss = grpo_loss(new, 0 * x, None, mask, one, level=level)
        assert (torch.autograd.grad(loss, new)[0] != 0).all()


def test_claim_equal_rewards_can_leave_an_advantage_by_rounding():
    """Three rewards of 0.9 in float32: the mean is one ulp away."""
    rewards = torch.full((3,), 0.9)
    gap = (rewards - rewards.mean())[0].item()
    std = rewards.std().item()
    assert gap == pytest.approx(2**-24)
    got = [gap / (std + eps) for eps in (1e-4, 1e-6, 1e-9)]
    assert got == pytest.approx([0.0006, 0.0555, 0.805], rel=0.02)
    assert group_advantages(rewards, 3)[0].item() == pytest.approx(got[1])
    several = rewards.repeat(2)  # two prompts: torch's std is exactly 0
    std = several.reshape(2, 3).std(1)
    assert (std == 0).all()
    got = [gap / eps for eps in (1e-4, 1e-6, 1e-9)]
    assert got == pytest.approx([0.0006, 0.0596, 59.6], rel=0.01)
    assert group_advantages(several, 3)[0].item() == pytest.approx(got[1])
    for value in (0.0, 1.0):
        assert (group_advantages(torch.full((3,), value), 3) == 0).all()


def test_claim_bfloat16_log_probs_lie_on_a_grid_of_one_sixteenth():
    x = torch.tensor(-10.0, dtype=torch.bfloat16)
    step = torch.nextafter(x, torch.tensor(0, dtype=x.dtype)) - x
    assert step.item() == 1 / 16
    assert math.exp(1 / 16) == pytest.approx(1.064, abs=1e-3)


def test_claim_rloo_is_the_centred_advantage_times_g_over_g_minus_1():
    r = [3.0, 1.0, 0.0, 0.5]
    loo = [x - (sum(r) - x) / 3 for x in r]
    got = group_advantages(torch.tensor(r), 4, std=False).flatten() * 4 / 3
    assert got.tolist() == pytest.approx(loo)


def test_claim_masked_logits_of_minus_infinity_need_more_than_where():
    """A NaN row of logits poisons the gradient, wherever log-probs mask."""
    logits = torch.zeros(1, 3, 2)
    logits[0, 1] = -math.inf  # a padding position's whole row
    logits.requires_grad_()
    tokens = torch.zeros(1, 3, dtype=torch.long)
    mask = torch.tensor([[True, False]])
    for clean, poisoned in ((logits, True), (logits.nan_to_num(), False)):
        new = token_log_probs(clean, tokens)
        loss = grpo_loss(new, torch.zeros(1, 2), None, mask, torch.ones(1, 1))
        (grad,) = torch.autograd.grad(loss, clean)
        assert torch.isfinite(loss)
        assert grad.isnan().any().item() is poisoned


def test_masks_in_three_places_agree_without_junk():
    mask = torch.tensor([[True, True, False]])
    new = torch.tensor([[0.1, -0.2, 0.3]])
    got = [
        masked_after(where, mask, new, torch.zeros(1, 3)).item()
        for where in ("multiply", "after exp", "before exp")
    ]
    assert got == pytest.approx([-math.exp(0.1) - math.exp(-0.2)] * 3)


def test_table_padding_shows_the_trap():
    cells = [
        [c.strip() for c in line.split("|")[2:4]]
        for line in table_padding().splitlines()[2:]
    ]
    assert cells == [
        ["nan", "(−1, −1, nan)"],
        ["−2", "(−1, −1, nan)"],
        ["−2", "(−1, −1, 0)"],
    ]


def test_table_micro_batches_shows_the_bug_and_the_repair():
    lines = [line.split("|") for line in table_micro_batches().splitlines()]
    cells = {c[1].strip(): [x.strip() for x in c[2:5]] for c in lines[2:]}
    assert cells == {
        "part 1": ["6", "−0.310325", "−0.186195"],
        "part 2": ["4", "+0.487138", "+0.194855"],
        "combined": ["10", "+0.088407", "+0.008660"],
        "the whole at once": ["10", "+0.008660", "+0.008660"],
    }


def test_table_variants_has_a_row_for_each():
    text = table_variants()
    assert len(text.splitlines()) == 2 + len(VARIANTS)
    assert "| DAPO | centred, / std | token | 0.2 / 0.28 | token |" in text
    assert "| GRPO | centred, / std | token | 0.2 / 0.2 | sequence |" in text
    assert text.splitlines()[1] == "| :-- | :-- | :-- | :-- | :-- | --: | --: |"
    assert [r.split("|")[-2].strip() for r in text.splitlines()[2:]] == [
        "3 of 10",
        "0 of 10",
        "2 of 10",
        "3 of 10",
        "7 of 10",
    ]


def test_weights_by_hand():
    mask = example()["mask"]
    per_token = [w.max(1).values.tolist() for w in (weights("sequence", mask, 4),)]
    assert per_token[0] == pytest.approx([1 / 16, 1 / 8, 1 / 12, 1 / 4])
    token = weights("token", mask, 4)
    assert token[mask].tolist() == pytest.approx([0.1] * 10)
    constant = weights("constant", mask, 4)
    assert constant[mask].tolist() == pytest.approx([1 / 16] * 10)


def test_figure_plots_weights_against_length():
    top, bottom = figure_weights().axes
    assert top.get_ylabel() == "weight of one token, %"
    assert bottom.get_xlabel() == "tokens in the response"
    drawn = {
        ax: {
            line.get_label(): (list(line.get_xdata()), line.get_ydata())
            for line in ax.get_lines()
        }
        for ax in (top, bottom)
    }
    x, y = drawn[top]["GRPO"]
    assert x == [1, 2, 3, 4]
    assert list(y) == pytest.approx([25, 12.5, 25 / 3, 6.25])
    assert list(drawn[top]["DAPO"][1]) == pytest.approx([10] * 4)
    assert list(drawn[bottom]["GRPO"][1]) == pytest.approx([25] * 4)
    assert list(drawn[bottom]["DAPO"][1]) == pytest.approx([10, 20, 30, 40])
    assert list(drawn[bottom]["Dr. GRPO"][1]) == pytest.approx([6.25, 12.5, 18.75, 25])


def test_claim_micro_batches_of_one_turn_the_token_mean_into_grpo():
    b = example()
    adv = group_advantages(b.pop("rewards"), 4)
    ones = [
        grpo_loss(
            **{k: v[i : i + 1] for k, v in b.items()},
            adv=adv[i : i + 1],
            reduce="token",
        )
        for i in range(4)
    ]
    assert (sum(ones) / 4).item() == pytest.approx(-0.016238, abs=1e-6)


def test_claim_logits_outweigh_every_other_tensor_of_the_loss():
    """8 responses of 8,192 tokens, a vocabulary of 151,936, float32."""
    assert 8 * 8192 * 151936 * 4 / 2**30 == pytest.approx(37.1, abs=0.05)
    assert 8 * 8192 * 4 / 2**20 == 0.25


def test_claim_a_constant_factor_leaves_adams_step():
    """And a factor that follows the batch does not."""

    def adam(factors, eps=0.0):
        w, m, v = 1.0, 0.0, 0.0
        for t, factor in enumerate(factors, start=1):
            g = factor * 3 * w**2  # of w³
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            root = math.sqrt(v / (1 - 0.999**t))
            w -= 0.1 * (m / (1 - 0.9**t)) / (root + eps)
        return w

    assert adam([1, 1, 1]) == pytest.approx(adam([1 / 64] * 3))
    assert abs(adam([1, 1, 1]) - adam([1 / 64] * 3, eps=0.1)) > 0.01
    assert abs(adam([1, 1, 1]) - adam([1, 1 / 2, 1])) > 0.01


def test_claim_log_ratio_at_which_a_clip_of_one_fifth_acts():
    assert math.log(1.2) == pytest.approx(0.18, abs=0.005)
    assert math.log(0.8) == pytest.approx(-0.22, abs=0.005)


def test_claim_dapo_of_the_paper_averages_within_each_prompts_group():
    """Eq. 8: a prompt with long answers weighs no more than another."""
    mask = torch.arange(6) < torch.tensor([1, 1, 6, 4])[:, None]
    new, groups = torch.zeros(4, 6, requires_grad=True), (0, 2)
    rows = (torch.zeros(4, 6), None)
    adv = -torch.ones(4, 1)
    batch = grpo_loss(new, *rows, mask, adv, reduce="token")
    paper = 0.0
    for i in groups:
        part = slice(i, i + 2)
        args = (new[part], rows[0][part], None, mask[part], adv[part])
        paper += grpo_loss(*args, reduce="token") / len(groups)
    shares = []
    for loss in (batch, paper):
        (grad,) = torch.autograd.grad(loss, new)
        shares.append([grad[i : i + 2].sum().item() for i in groups])
    assert shares[0] == pytest.approx([2 / 12, 10 / 12])
    assert shares[1] == pytest.approx([1 / 2, 1 / 2])


def test_claim_a_mean_over_padding_is_a_constant_that_follows_the_batch():
    mask = example()["mask"]
    for extra in (0, 3):
        wide = torch.nn.functional.pad(mask, (0, extra))
        new = torch.zeros(wide.shape, requires_grad=True)
        loss = torch.where(wide, -new.exp(), 0.0).mean()  # advantage +1
        (grad,) = torch.autograd.grad(loss, new)
        constant = weights("constant", wide, budget=4 + extra)
        close(grad, -constant)


def test_claim_one_vocabulary_tensor_is_kept_for_either_log_softmax():
    """Of the size of the logits, saved for backward, by distinct memory."""
    tokens = torch.zeros(2, 4, dtype=torch.long)
    logits = torch.randn(
        2, 4, 50, generator=torch.Generator().manual_seed(0)
    ).bfloat16()
    logits.requires_grad_()

    def plain(logits, tokens):
        logits = logits[:, :-1].float() / 1.0
        p = logits.log_softmax(-1)
        return p.gather(-1, tokens[:, 1:, None])

    for f in (token_log_probs, plain):
        kept = {}

        def pack(x, kept=kept):
            if x.numel() >= 2 * 3 * 50:
                kept[x.untyped_storage().data_ptr()] = x.dtype
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            out = f(logits, tokens)
        assert list(kept.values()) == [torch.float32]
        assert out.numel() == 6


def test_claim_dual_clip_stops_a_wrong_answer_above_its_constant():
    """A = −1, c = 3: plain GRPO pulls by the ratio, dual clip not at all."""
    for ratio, plain, dual in ((1.5, 1.5, 1.5), (4.0, 4.0, 0.0)):
        new = torch.tensor([[math.log(ratio)]], requires_grad=True)
        loss = grpo_loss(new, 0 * new.detach(), None, new == new, -torch.ones(1, 1))
        for value, expected in (
            (loss, plain),
            (torch.minimum(loss, torch.tensor(3.0)), dual),
        ):
            (g,) = torch.autograd.grad(value, new, retain_graph=True)
            assert g.item() == pytest.approx(expected)


def test_claim_statistics_of_the_others_leave_a_lone_right_answer_alone():
    """NeMo RL: mean and std of the others, no division where std is 0."""
    rewards, got = [1.0, 0.0, 0.0, 0.0], []
    for i, reward in enumerate(rewards):
        others = rewards[:i] + rewards[i + 1 :]
        std = statistics.stdev(others)
        gap = reward - statistics.mean(others)
        got.append(gap / (std + 1e-6) if std else gap)
    assert got == pytest.approx([1, -0.577, -0.577, -0.577], abs=1e-3)
    assert sum(got) == pytest.approx(-0.73, abs=0.01)  # not centred
    group = group_advantages(torch.tensor(rewards), 4).flatten().tolist()
    assert group == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-4)
