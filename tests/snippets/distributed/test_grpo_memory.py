"""The accounting against real modules, optimisers and published sizes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from snippets.distributed import grpo_memory as m

MODELS = {"dense": m.QWEN25_7B, "moe": m.QWEN3_30B_A3B}
TINY = m.Shape(2, 64, 4, 2, 16, 96, 128, qkv_bias=True)
TINY_MOE = m.Shape(2, 64, 4, 2, 16, 48, 128, experts=4, routed=2, qk_norm=True)


# -- an independent model: modules, not formulas ---------------------------


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))


class Linear(nn.Linear):
    def reset_parameters(self):
        """Leave the weights unset: only their number matters."""


class Embedding(nn.Embedding):
    def reset_parameters(self):
        """As above."""


def linear(i, o, bias=False):
    return Linear(i, o, bias=bias)


def expert(shape):
    h, f = shape.hidden, shape.ffn
    return nn.ModuleDict(
        {"gate": linear(h, f), "up": linear(h, f), "down": linear(f, h)}
    )


def build(shape):
    """The whole model on the meta device: shapes without memory."""
    with torch.device("meta"):
        h, d = shape.hidden, shape.head_dim
        blocks = nn.ModuleList()
        for _ in range(shape.layers):
            b = shape.qkv_bias
            block = nn.ModuleDict(
                {
                    "q_proj": linear(h, shape.heads * d, b),
                    "k_proj": linear(h, shape.kv_heads * d, b),
                    "v_proj": linear(h, shape.kv_heads * d, b),
                    "o_proj": linear(shape.heads * d, h),
                    "norm1": Norm(h),
                    "norm2": Norm(h),
                    "experts": nn.ModuleList(
                        [expert(shape) for _ in range(shape.experts)]
                    ),
                }
            )
            if shape.qk_norm:
                block["q_norm"], block["k_norm"] = Norm(d), Norm(d)
            if shape.experts > 1:
                block["router"] = linear(h, shape.experts)
            blocks.append(block)
        model = nn.ModuleDict(
            {
                "embed": Embedding(shape.vocab, h),
                "blocks": blocks,
                "norm": Norm(h),
            }
        )
        if not shape.tied:
            model["head"] = linear(h, shape.vocab)
    return model


def numel(module):
    return sum(p.numel() for p in module.parameters())


SHORT = [
    replace(m.QWEN25_7B, layers=2),
    replace(m.QWEN3_30B_A3B, layers=2, experts=16),
]


@pytest.mark.parametrize("shape", [*SHORT, TINY, TINY_MOE])
def test_parameters_match_a_model_built_of_modules(shape):
    model, count = build(shape), m.parameters(shape)
    assert count["total"] == numel(model)
    assert count["ffn"] == sum(numel(b["experts"]) for b in model["blocks"])
    assert count["embeddings"] == numel(model["embed"]) + numel(model["head"])


def test_tied_embeddings_count_once():
    tied = replace(TINY, tied=True)
    assert m.parameters(tied)["total"] == numel(build(tied))


def test_claim_published_sizes():
    dense, moe = map(m.parameters, MODELS.values())
    assert dense["total"] == 7_615_616_512  # card: 7.61 B
    assert round((dense["total"] - dense["embeddings"]) / 1e9, 2) == 6.53
    assert round(moe["total"] / 1e9, 1) == 30.5
    assert round((moe["total"] - moe["embeddings"]) / 1e9, 1) == 29.9
    # The card says 3.3 B activated: embeddings are counted.
    assert moe["active"] == pytest.approx(3.3e9, rel=0.02)
    assert moe["active"] - moe["embeddings"] == pytest.approx(2.73e9, rel=0.01)


@pytest.mark.parametrize("shape", [m.QWEN25_7B, TINY_MOE])
def test_lora_counts_every_linear_but_router_and_head(shape):
    rank, count = 8, 0
    for name, module in build(shape).named_modules():
        if isinstance(module, nn.Linear) and not name.endswith(("router", "head")):
            count += rank * (module.in_features + module.out_features)
    assert m.lora_parameters(shape, rank) == count


def test_claim_lora_sizes():
    assert m.lora_parameters(m.QWEN25_7B, 32) == 80_740_352
    moe = m.lora_parameters(m.QWEN3_30B_A3B, 32)
    assert round(moe / 1e9, 2) == 1.69
    assert round(16 * moe / 1e9) == 27  # GB of state before sharding


# -- training state --------------------------------------------------------


def state_total(shape, **kw):
    state = m.training_state(shape, m.Setup(reference=False, **kw))
    return sum(state.values())


def test_sixteen_bytes_are_those_of_adam_by_definition():
    """Everything mixed-precision Adam must keep to take its next step."""
    weight = torch.ones(1000, dtype=torch.bfloat16, requires_grad=True)
    master = weight.detach().float()
    first, second = torch.zeros_like(master), torch.zeros_like(master)
    for _ in range(2):
        weight.grad = None
        (weight.float() ** 2).sum().backward()
        gradient = weight.grad.float()
        first += 0.1 * (gradient - first)
        second += 0.001 * (gradient**2 - second)
        master -= 1e-3 * first / (second.sqrt() + 1e-8)
        weight.data.copy_(master)
    held = [weight, weight.grad, master, first, second]
    per = sum(t.nbytes for t in held) / 1000
    p = m.parameters(TINY)["total"]
    assert per == 16 == state_total(TINY, gpus=1, rollout_tp=1) / p


@pytest.mark.parametrize("d", [1, 2, 8, 64])
def test_claim_megatron_distributed_optimizer(d):
    """dist_optimizer.md: bf16 weights, fp32 gradients: 18, or 6 + 12/d."""
    p = m.parameters(TINY)["total"]
    kw = {"gpus": d, "rollout_tp": 1, "grad_bytes": 4}
    assert state_total(TINY, zero=0, **kw) == pytest.approx(18 * p)
    assert state_total(TINY, zero=1, **kw) == pytest.approx((6 + 12 / d) * p)


def test_claim_deepspeed_zero2_estimator():
    """2 + 18/N: the partition also holds an fp32 gradient (2 + 4)."""
    p = m.parameters(TINY)["total"]
    got = state_total(TINY, gpus=8, zero=2, grad_bytes=2 + 4)
    assert got == pytest.approx((2 + 18 / 8) * p)


@pytest.mark.parametrize("zero, per", [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zero_stages_at_the_papers_size(zero, per):
    """7.5 B parameters on 64 GPUs, values as quoted from the ZeRO paper."""
    p = m.parameters(TINY)["total"]
    got = state_total(TINY, gpus=64, zero=zero) / p * 7.5
    assert got == pytest.approx(per, abs=0.05)


def test_claim_moments_appear_at_the_first_step():
    """Adam holds 8 bytes a parameter only after its first step."""
    weight = nn.Parameter(torch.ones(1000))
    adam = torch.optim.AdamW([weight], foreach=False)
    weight.sum().backward()
    assert not adam.state[weight]
    adam.step()
    held = [x for x in adam.state[weight].values() if x.numel() == 1000]
    assert sum(x.nbytes for x in held) / 1000 == 8


def test_claim_four_bit_base():
    """0.5 bytes a parameter: 3.8 GB where 16 bits take 15.2."""
    p = m.parameters(m.QWEN25_7B)["total"]
    assert 0.5 * p / 1e9 == pytest.approx(3.8, abs=0.05)


def test_zero_shards_over_data_parallel_only():
    setup = m.Setup(gpus=16, train_tp=4, zero=1)
    p = m.parameters(TINY)["total"]
    state = m.training_state(TINY, setup)
    assert state["policy weights"] == 2 * p / 4
    assert state["optimiser"] == 12 * p / 16
    assert state["reference"] == 2 * p / 4


def test_frozen_models():
    p = m.parameters(TINY)["total"]
    one = {"gpus": 1, "rollout_tp": 1}
    ref = m.training_state(TINY, m.Setup(**one))["reference"]
    none = m.training_state(TINY, m.Setup(reference=False, **one))
    lora = m.training_state(TINY, m.Setup(lora_rank=4, **one))
    judge = m.training_state(TINY, m.Setup(reward_model=True, **one))
    assert (ref, none["reference"], lora["reference"]) == (2 * p, 0, 0)
    assert judge["reward model"] == 2 * p and none["reward model"] == 0
    trained = m.lora_parameters(TINY, 4)
    assert lora["policy weights"] == 2 * (p + trained)
    assert lora["optimiser"] == 12 * trained
    assert lora["gradients"] == 2 * trained


def test_reward_model_is_sharded_at_stage_three_only():
    p = m.parameters(TINY)["total"]
    for zero, size in ((0, 2 * p), (1, 2 * p), (2, 2 * p), (3, 2 * p / 8)):
        setup = m.Setup(zero=zero, reward_model=True)
        assert m.training_state(TINY, setup)["reward model"] == size


def test_claim_gathered_weights_without_resharding():
    """SHARD_GRAD_OP keeps a whole 16-bit copy until backward."""
    copy = 2 * m.parameters(m.QWEN25_7B)["total"] / 1e9
    assert copy == pytest.approx(15.2, abs=0.05)


# -- expert parallelism ----------------------------------------------------


def on_first_gpu(shape, tp, ep, etp, rank=0):
    """(dense, experts) parameters on GPU 0, walked module by module.

    With a rank: LoRA's, two matrices for each linear layer but router, head.
    """
    sizes = [0, 0]
    for name, module in build(shape).named_modules():
        own = sum(p.numel() for p in module.parameters(recurse=False))
        if rank:
            adapted = isinstance(module, nn.Linear)
            adapted &= not name.endswith(("router", "head"))
            own = rank * (module.in_features + module.out_features) if adapted else 0
        if ".experts." not in name:
            sizes[0] += own / tp
        elif int(name.split(".experts.")[1].split(".")[0]) < shape.experts / ep:
            sizes[1] += own / etp
    return sizes


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "tp, ep, etp", [(1, 1, 1), (4, 1, 4), (4, 4, 1), (2, 4, 2), (1, 4, 1)]
)
def test_expert_parallelism_places_whole_experts(zero, tp, ep, etp):
    """ZeRO shards experts over gpus / (ep * etp), the rest over gpus / tp."""
    split = {"gpus": 16, "train_tp": tp, "train_ep": ep, "train_etp": etp}
    got = m.training_state(TINY_MOE, m.Setup(zero=zero, **split))
    dense, experts = on_first_gpu(TINY_MOE, tp, ep, etp)
    for name, stage, each in (
        ("policy weights", 3, 2),
        ("gradients", 2, 2),
        ("optimiser", 1, 12),
        ("reference", 3, 2),
    ):
        parts = (16 / tp, 16 / (ep * etp)) if zero >= stage else (1, 1)
        want = each * (dense / parts[0] + experts / parts[1])
        assert got[name] == pytest.approx(want)
    lora = m.training_state(TINY_MOE, m.Setup(zero=0, lora_rank=4, **split))
    adapter = sum(on_first_gpu(TINY_MOE, tp, ep, etp, rank=4))
    assert lora["optimiser"] == pytest.approx(12 * adapter)


def test_expert_tensor_parallelism_follows_tp_by_default():
    kw = {"gpus": 16, "train_tp": 4, "train_ep": 4, "zero": 0}
    default = m.training_state(TINY_MOE, m.Setup(**kw))
    assert default == m.training_state(TINY_MOE, m.Setup(**kw, train_etp=4))
    one = m.training_state(TINY_MOE, m.Setup(**kw, train_etp=1))
    assert one["policy weights"] > default["policy weights"]


def test_dense_model_ignores_expert_parallelism():
    for shape in (TINY, m.QWEN25_7B):
        plain = m.timeline(shape, m.Setup(zero=1))
        assert m.timeline(shape, m.Setup(zero=1, train_ep=8)) == plain


def test_claim_experts_table():
    """EP divides weights and gradients under ZeRO-1, at stage 3 only what
    is gathered; the optimiser's share is 22.9 GB everywhere."""
    _, _, *rows = cells(m.table_experts())
    assert rows == [
        ["TP 4, ZeRO-1", "15.3", "15.3", "22.9", "15.3", "0.0"],
        ["+ EP 4", "4.4", "4.4", "22.9", "4.4", "0.0"],
        ["+ EP 8, expert TP 1", "8.0", "8.0", "22.9", "8.0", "0.0"],
        ["ZeRO-3", "3.8", "3.8", "22.9", "3.8", "2.5"],
        ["ZeRO-3, EP 8", "3.8", "3.8", "22.9", "3.8", "0.4"],
    ]
    shape = m.QWEN3_30B_A3B
    share = m.parameters(shape)["ffn"] / m.parameters(shape)["total"]
    assert share == pytest.approx(0.95, abs=0.005)


# -- rollout engine --------------------------------------------------------


@pytest.mark.parametrize("tp, dp", [(1, 1), (2, 1), (1, 4), (2, 2)])
def test_engine_spreads_experts_over_tp_and_dp(tp, dp):
    """Whole experts on TP x DP GPUs; attention cut by TP, copied by DP."""
    dense, experts = on_first_gpu(TINY_MOE, tp, tp * dp, 1)
    got = m.engine(TINY_MOE, m.Setup(gpus=8, rollout_tp=tp, rollout_dp=dp))
    assert got["rollout weights"] == pytest.approx(2 * (dense + experts))


def test_claim_attention_copies_in_place_of_kv_copies():
    """30B-A3B on 16 GPUs, engines of 8: TP 8 is 7.6 + 51.5 GB, TP 1 x DP 8
    10.3 + 25.8; with 8 GPUs in all, one engine holds all the tokens."""
    for tp, dp, weights, kv in ((8, 1, 7.6, 51.5), (1, 8, 10.3, 25.8)):
        setup = replace(m.LARGE, rollout_tp=tp, rollout_dp=dp)
        got = m.engine(m.QWEN3_30B_A3B, setup)
        assert got["rollout weights"] / 1e9 == pytest.approx(weights, abs=0.05)
        assert got["KV cache"] / 1e9 == pytest.approx(kv, abs=0.05)
        alone = m.engine(m.QWEN3_30B_A3B, replace(setup, gpus=8))
        assert alone["KV cache"] == 2 * got["KV cache"]


def test_claim_unsharded_gradients_in_fp32():
    """verl's FSDP engine between micro-batches: 2P or 4P, not 1.9 GB."""
    p = m.parameters(m.QWEN25_7B)["total"]
    assert 2 * p / 1e9 == pytest.approx(15.2, abs=0.05)
    assert 4 * p / 1e9 == pytest.approx(30.5, abs=0.05)
    sharded = m.training_state(m.QWEN25_7B, m.SMALL)["gradients"] / 1e9
    assert sharded == pytest.approx(1.9, abs=0.05)


def test_kv_cache_against_allocated_tensors():
    """One replica of 2 GPUs, 4 KV heads: each holds 2 heads' k and v."""
    shape, tokens = replace(TINY, kv_heads=4), 40
    setup = m.Setup(gpus=4, rollout_tp=2, kv_tokens=tokens)
    one = [
        torch.zeros(tokens // 2, 2, shape.head_dim, dtype=torch.bfloat16)
        for _ in range(shape.layers)
        for _ in "kv"
    ]
    assert m.engine(shape, setup)["KV cache"] == sum(t.nbytes for t in one)


def test_claim_kv_bytes_per_token():
    for shape, kib in ((m.QWEN25_7B, 56), (m.QWEN3_30B_A3B, 96)):
        setup = m.Setup(gpus=1, rollout_tp=1, kv_tokens=1)
        assert m.engine(shape, setup)["KV cache"] == kib * 1024


def test_kv_heads_are_copied_beyond_one_per_gpu():
    for tp, times in ((1, 1), (2, 1), (4, 1), (8, 2), (16, 4)):
        setup = m.Setup(gpus=16, rollout_tp=tp)
        one = m.Setup(gpus=16, rollout_tp=1)
        got = m.engine(m.QWEN3_30B_A3B, setup)["KV cache"]
        base = m.engine(m.QWEN3_30B_A3B, one)["KV cache"]
        assert got == times * base


def test_zero_does_not_touch_the_engine():
    got = [m.engine(TINY, m.Setup(zero=z, gpus=g)) for z, g in ((0, 8), (3, 8))]
    assert got[0] == got[1]
    assert got[0]["rollout weights"] == m.parameters(TINY)["total"]


def test_claim_rollout_copy_outgrows_the_trainer():
    """8, 16, 64 GPUs: 15.2, 7.6, 1.9 GB of state beside 7.6 of engine."""
    for gpus, gb in ((8, 15.2), (16, 7.6), (64, 1.9)):
        got = state_total(m.QWEN25_7B, gpus=gpus) / 1e9
        assert got == pytest.approx(gb, abs=0.05)
        serve = m.engine(m.QWEN25_7B, m.Setup(gpus=gpus))
        assert serve["rollout weights"] / 1e9 == pytest.approx(7.6, abs=0.05)


@pytest.mark.parametrize(
    "field, item", [("rollout", "rollout weights"), ("kv", "KV cache")]
)
def test_engine_bytes_follow_the_format(field, item):
    half = m.engine(TINY, m.Setup(**{f"{field}_bytes": 1}))
    full = m.engine(TINY, m.Setup())
    other = ({"rollout weights", "KV cache"} - {item}).pop()
    assert half[item] == full[item] / 2
    assert half[other] == full[other]


# -- working set: measured on real tensors ---------------------------------


def eager(states, head, labels):
    logits = states @ head
    return logits, F.log_softmax(logits.float(), -1).gather(-1, labels)


def selected(states, head, labels):
    """Logit of the token minus logsumexp, a sequence (1/16) at a time."""
    logits = states @ head
    exact = logits.float().view(16, -1, logits.shape[1])
    chosen = exact.gather(-1, labels.view(16, -1, 1)).squeeze(-1)
    return logits, chosen - torch.stack([x.logsumexp(-1) for x in exact])


class Redone(torch.autograd.Function):
    """The head and log-softmax of one chunk; saves the hidden states only."""

    @staticmethod
    def forward(ctx, states, head, labels):
        ctx.save_for_backward(states, head, labels)
        return eager(states, head, labels)[1]

    @staticmethod
    def backward(ctx, grad):
        states, head, labels = ctx.saved_tensors
        states = states.detach().requires_grad_()
        with torch.enable_grad():
            logits, logp = eager(states, head, labels)
        logp.backward(grad)
        return states.grad, None, None


def chunked(size):
    """A chunk of tokens at a time, made again in the backward pass."""

    def run(states, head, labels):
        parts = zip(states.split(size), labels.split(size), strict=True)
        return None, torch.cat([Redone.apply(x, head, y) for x, y in parts])

    return run


def cut_late(states, head, labels):
    """Only the log-softmax by chunks of 4: all the logits exist first."""
    logits = states @ head
    parts = zip(logits.split(4), labels.split(4), strict=True)
    return logits, torch.cat(
        [F.log_softmax(x.float(), -1).gather(-1, y) for x, y in parts]
    )


def logit_bytes(backward, way=eager, tokens=64, vocab=4096, hidden=4):
    """Peak of what the CPU allocator handed out, in bytes."""
    states = torch.randn(tokens, hidden, dtype=torch.bfloat16)
    head = torch.randn(hidden, vocab, dtype=torch.bfloat16)
    states.requires_grad_(backward)
    labels = torch.zeros(tokens, 1, dtype=torch.long)
    profile = torch.autograd.profiler.profile(profile_memory=True)
    with profile, torch.set_grad_enabled(backward):
        logits, logp = way(states, head, labels)
        if backward:
            logp.sum().backward()
    del logits
    events = sorted(
        (e.start_ns(), e.nbytes())
        for e in profile.kineto_results.events()
        if e.name() == "[memory]"
    )
    return np.cumsum([n for _, n in events]).max()


def per_logit(*args, tokens=64, vocab=4096, **kw):
    return logit_bytes(*args, tokens=tokens, vocab=vocab, **kw) / (tokens * vocab)


def test_claim_chunks_need_c_times_v_for_any_length():
    """Twice the chunk or vocabulary: twice the bytes; twice the tokens: same."""
    base = logit_bytes(True, chunked(8), tokens=64)
    assert base == pytest.approx(14 * 8 * 4096, rel=0.02)
    assert logit_bytes(True, chunked(8), tokens=256) == pytest.approx(base, rel=0.02)
    assert logit_bytes(True, chunked(16)) == pytest.approx(2 * base, rel=0.02)
    wide = logit_bytes(True, chunked(8), vocab=8192)
    assert wide == pytest.approx(2 * base, rel=0.02)
    whole = [logit_bytes(True, eager, tokens=t) for t in (64, 256)]
    assert whole[1] == pytest.approx(4 * whole[0], rel=0.02)
    for name in ("tokens", "chunk"):
        kw = {"tokens": 4096, "chunk": 64}
        more = kw | {name: 2 * kw[name]}
        ratio = m.logit_bytes(TINY, **more) / m.logit_bytes(TINY, **kw)
        assert ratio == (2 if name == "chunk" else 1)


def test_claim_selected_log_prob_saves_in_scoring_only():
    """10 bytes become about 6; with a backward pass 14 stay."""
    assert per_logit(False, selected) == pytest.approx(6.25, abs=0.1)
    assert per_logit(True, selected) == pytest.approx(14, rel=0.02)


def test_claim_chunks_after_the_head_still_grow_with_tokens():
    small, large = (logit_bytes(True, cut_late, tokens=t) for t in (64, 256))
    assert large == pytest.approx(4 * small, rel=0.15)


def test_logits_table():
    """4,096 to 65,536 tokens: T V in the first columns, c V in the last."""
    _, _, *rows = cells(m.table_logits())
    values = np.array([[float(c) for c in r[1:]] for r in rows])
    elements = np.array([4096, 16384, 65536]) * 152064 / 1e9
    assert values[:, 0] == pytest.approx(2 * elements, abs=0.05)
    assert values[:, 1] == pytest.approx(14 * elements, abs=0.05)
    assert values[:, 2] == pytest.approx(3.5 * elements, abs=0.05)
    assert values[:, 3] == pytest.approx([2.2] * 3)


def test_claim_fourteen_bytes_per_logit_measured():
    assert per_logit(backward=True) == pytest.approx(14, rel=0.02)
    assert per_logit(backward=False) == pytest.approx(10, rel=0.02)
    setup = m.Setup(train_tokens=1, gpus=1, rollout_tp=1)
    assert m.working_set(TINY, setup)["logits"] == 14 * TINY.vocab
    phases = m.timeline(TINY, setup)
    assert phases["log-probs"]["logits"] == 10 * TINY.vocab


class FusedNorm(torch.autograd.Function):
    """Saves its 16-bit input only (and a negligible fp32 1/rms)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.float().pow(2).mean(-1, keepdim=True).rsqrt().bfloat16()

    @staticmethod
    def backward(ctx, grad):
        return grad


def layer_forward(shape, weights, x):
    """One block written out, with flash attention and no fused SwiGLU."""
    t, d = x.shape[0], shape.head_dim
    y = FusedNorm.apply(x)
    q, k, v = (y @ weights[n] for n in "qkv")
    q = q.view(1, t, shape.heads, d).transpose(1, 2)
    k = k.view(1, t, shape.kv_heads, d).transpose(1, 2)
    v = v.view(1, t, shape.kv_heads, d).transpose(1, 2)
    a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    x = x + a.transpose(1, 2).reshape(t, -1) @ weights["o"]
    y = FusedNorm.apply(x)
    if shape.experts == 1:
        return x + swiglu(weights, y)
    k = shape.routed
    scores = (y @ weights["r"]).float().softmax(-1).topk(k)[0]
    rows = torch.arange(t).repeat_interleave(k)  # k copies, permuted
    out = swiglu(weights, y[rows]) * scores.reshape(-1, 1).bfloat16()
    return x + out.view(t, k, -1).sum(1)


def swiglu(weights, y):
    return (F.silu(y @ weights["g"]) * (y @ weights["u"])) @ weights["d"]


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("shape", [TINY, TINY_MOE])
def test_saved_elements_are_what_autograd_saves(shape, kv_heads):
    shape, t, dt = replace(shape, kv_heads=kv_heads), 32, torch.bfloat16
    h, f, d = shape.hidden, shape.ffn, shape.head_dim
    sizes = {
        "q": (h, shape.heads * d),
        "k": (h, kv_heads * d),
        "v": (h, kv_heads * d),
        "o": (shape.heads * d, h),
        "g": (h, f),
        "u": (h, f),
        "d": (f, h),
        "r": (h, shape.experts),
    }
    weights = {
        n: torch.randn(s, dtype=dt, requires_grad=True) for n, s in sizes.items()
    }
    own = {w.untyped_storage().data_ptr() for w in weights.values()}
    saved, kept = {}, []

    def pack(tensor):
        place = tensor.untyped_storage().data_ptr()
        if place not in own and tensor.dtype == dt and tensor.numel() > t * 4:
            saved[place] = tensor.untyped_storage().nbytes() // 2
        kept.append(tensor)
        return tensor

    x = torch.randn(t, h, dtype=dt, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda s: s):
        layer_forward(shape, weights, x)
    assert sum(saved.values()) == m.saved_elements(shape) * t


def test_checkpointing_keeps_inputs_and_one_layer():
    setup = m.Setup(gpus=1, rollout_tp=1, train_tokens=10)
    got = m.working_set(TINY, setup)["activations"]
    layer = 2 * m.saved_elements(TINY) * 10
    assert got == 2 * TINY.hidden * 10 * TINY.layers + layer
    full = m.working_set(TINY, replace(setup, checkpointing=False))
    assert full["activations"] == TINY.layers * layer


def test_gathered_layers():
    setup = m.Setup(gpus=8)
    block = numel(build(TINY)["blocks"][0])
    got = m.working_set(TINY, setup)["gathered layers"]
    assert got == pytest.approx(2 * 2 * block, rel=0.01)
    other = m.working_set(TINY, replace(setup, zero=2))
    assert other["gathered layers"] == 0
    setup = m.Setup(gpus=16, train_tp=2, train_ep=4, train_etp=1)
    router = TINY_MOE.hidden * TINY_MOE.experts
    block = build(TINY_MOE)["blocks"][0]
    experts = numel(block["experts"])
    rest = numel(block) - experts
    got = m.working_set(TINY_MOE, setup)["gathered layers"]
    assert got == pytest.approx(2 * 2 * (rest / 2 + experts / 4), rel=0.01)
    assert rest > router


def test_chunks_bound_the_logits():
    one = m.working_set(TINY, m.Setup(logit_chunk=1024))["logits"]
    assert one == 14 * 1024 * TINY.vocab
    big = m.Setup(logit_chunk=10**6)
    full = m.working_set(TINY, m.Setup())
    assert m.working_set(TINY, big) == full


def test_tensor_parallelism_divides_the_working_set():
    one, four = m.Setup(), m.Setup(train_tp=4)
    whole, part = m.working_set(TINY, one), m.working_set(TINY, four)
    assert whole == {name: 4 * size for name, size in part.items()}
    scored = [m.timeline(TINY, s)["log-probs"] for s in (one, four)]
    for name in ("activations", "logits"):
        assert scored[0][name] == 4 * scored[1][name]
    layer = 2 * m.saved_elements(TINY) * one.train_tokens
    assert scored[0]["activations"] == layer


# -- the step --------------------------------------------------------------


@pytest.mark.parametrize("shape", MODELS.values())
def test_sleep_frees_the_engine_when_idle_only(shape):
    awake = m.timeline(shape, m.LARGE)
    asleep = m.timeline(shape, replace(m.LARGE, sleep=True))
    serve = m.engine(shape, m.LARGE)
    gone = {n: m.total(awake[n]) - m.total(asleep[n]) for n in m.PHASES}
    both = m.total(serve)
    kv = serve["KV cache"] / 1e9
    expected = [0, both, both, both, kv, 0]
    assert [gone[n] for n in m.PHASES] == pytest.approx(expected)


def test_timeline_items():
    phases = m.timeline(m.QWEN25_7B, replace(m.SMALL, sleep=True))
    assert tuple(phases) == m.PHASES
    assert [n for n in m.PHASES if "gradients" in phases[n]] == ["update"]
    for name in ("log-probs", "update"):
        assert "gathered layers" in phases[name]
    assert phases["sync"]["sync buffer"] == 2**31
    assert "KV cache" not in phases["sync"]
    assert "rollout weights" in phases["sync"]


def test_claim_peaks():
    """97.1 to 59.5 GB; the line is 80 GiB; log-probs alone fit awake."""
    awake = m.timeline(m.QWEN25_7B, m.SMALL)
    assert m.total(awake["update"]) == pytest.approx(97.1, abs=0.05)
    assert m.total(awake["log-probs"]) == pytest.approx(82.0, abs=0.05)
    setup = replace(m.SMALL, sleep=True)
    assert m.peak(m.QWEN25_7B, setup) / 1e9 == pytest.approx(59.5, abs=0.05)
    assert m.GPU / 1e9 == pytest.approx(85.9, abs=0.05)
    large = m.peak(m.QWEN3_30B_A3B, m.LARGE) / 1e9
    assert large == pytest.approx(118.4, abs=0.05)


def test_claim_unsharded_copies():
    """7B: 15.2 GB a copy, 121.8 of training state, 152.3 with both."""
    one = m.Setup(gpus=1, rollout_tp=1)
    state = m.training_state(m.QWEN25_7B, one)
    copy = state["reference"] / 1e9
    assert copy == pytest.approx(15.2, abs=0.05)
    train = m.total(state) - copy
    assert train == pytest.approx(121.8, abs=0.06)
    assert train + 2 * copy == pytest.approx(152.3, abs=0.05)
    four = m.training_state(m.QWEN25_7B, replace(one, grad_bytes=4))
    assert m.total(four) - copy == pytest.approx(137.1, abs=0.05)
    large = m.training_state(m.QWEN3_30B_A3B, one)
    gb = m.total(large) - large["reference"] / 1e9
    assert gb == pytest.approx(488.5, abs=0.05)


def test_claim_lora_on_one_gpu():
    """16.5 GB of trainer with the reference, 105 less than in full."""
    one = m.Setup(gpus=1, rollout_tp=1, lora_rank=32)
    lora = m.total(m.training_state(m.QWEN25_7B, one))
    assert lora == pytest.approx(16.5, abs=0.05)
    full = state_total(m.QWEN25_7B, gpus=1, rollout_tp=1) / 1e9
    assert full - lora == pytest.approx(105.3, abs=0.05)
    serve = m.engine(m.QWEN25_7B, one)["rollout weights"] / 1e9
    assert serve == pytest.approx(15.2, abs=0.05)


def test_claim_ppo_to_grpo():
    """A critic of the policy's size: 16 of PPO's 32 + 2 + 2 bytes."""
    p = m.parameters(m.QWEN25_7B)["total"]
    critic = state_total(m.QWEN25_7B, gpus=1, rollout_tp=1)
    assert critic / p == 16
    assert 16 / (2 * 16 + 2 + 2) == pytest.approx(0.44, abs=0.005)


def test_claim_old_log_probs_are_small():
    """256 responses of 16,384 fp32 log-probs: 17 MB in all."""
    assert 4 * m.SMALL.kv_tokens / 1e6 == pytest.approx(16.8, abs=0.05)


def test_claim_pool_and_demand():
    """0.5 of 80 GiB less the weights is 35.3 GB of KV: 4.9 M tokens."""
    pool = 0.5 * m.GPU - m.engine(m.QWEN25_7B, m.SMALL)["rollout weights"]
    assert pool / 1e9 == pytest.approx(35.3, abs=0.05)
    per = m.engine(m.QWEN25_7B, replace(m.SMALL, kv_tokens=8))["KV cache"]
    assert 8 * pool / per / 1e6 == pytest.approx(4.93, abs=0.01)


def test_claim_checkpointing_seven_b():
    """90.2 GB of activations without, 6.5 with."""
    off = m.Setup(checkpointing=False)
    gb = m.working_set(m.QWEN25_7B, off)["activations"] / 1e9
    assert gb == pytest.approx(90.2, abs=0.05)
    on = m.working_set(m.QWEN25_7B, m.Setup())["activations"] / 1e9
    assert on == pytest.approx(6.5, abs=0.05)


def test_claim_wrong_answers():
    """54 GB is two forgotten halves; 12 bytes forget the master."""
    assert round(6.7 * (4 + 4)) == 54
    assert round(6.7 * 16) == 107
    real = m.Setup(gpus=1, rollout_tp=1)
    no_master = 2 + 2 + 8
    state = m.training_state(TINY, real)
    p = m.parameters(TINY)["total"]
    assert (state["optimiser"] + state["gradients"]) / p + 2 == no_master + 4


@pytest.mark.parametrize(
    "kw, word",
    [
        ({"zero": 4}, "stages 0 to 3"),
        ({"gpus": 6, "train_tp": 4}, "train_tp = 4"),
        ({"gpus": 6, "rollout_tp": 4}, "rollout_dp = 4"),
        ({"gpus": 8, "rollout_tp": 4, "rollout_dp": 4}, "rollout_dp = 16"),
        ({"gpus": 8, "train_ep": 4, "train_tp": 4}, "train_etp = 16"),
    ],
)
def test_impossible_setups(kw, word):
    with pytest.raises(ValueError, match=word):
        m.Setup(**kw)


# -- products --------------------------------------------------------------


def cells(table):
    return [
        [c.strip() for c in line.strip("|").split("|")] for line in table.splitlines()
    ]


@pytest.mark.parametrize(
    "table, shape, base",
    [
        (m.table_dense, m.QWEN25_7B, m.SMALL),
        (m.table_moe, m.QWEN3_30B_A3B, m.LARGE),
    ],
)
def test_item_tables_add_up(table, shape, base):
    head, _, *rows = cells(table())
    assert head[1:] == list(m.COLUMNS)
    body = np.array([[float(c) for c in row[1:]] for row in rows])
    by = {row[0]: values for row, values in zip(rows, body, strict=True)}
    items = sum(by[name] for name in m.ITEMS)
    assert items == pytest.approx(by["**update**"], abs=0.5)
    zero3 = list(m.COLUMNS).index("ZeRO-3")
    assert by["**update**"][zero3] == pytest.approx(m.peak(shape, base) / 1e9, abs=0.06)
    assert by["KV cache"][-1] == by["rollout weights"][-1] == 0
    assert by["reference"][5] == by["reference"][6] == 0
    copy = 2 * m.parameters(shape)["total"] / 1e9
    shares = [1, 1, 1, base.gpus, 4, base.gpus, base.gpus, base.gpus]
    judge = by["a reward model adds"]
    assert judge == pytest.approx([copy / s for s in shares], abs=0.06)


def test_savings_table():
    _, _, *rows = cells(m.table_savings())
    by = {row[0]: row[1:] for row in rows}
    assert by["sleep during training"] == ["+37.7", "59.5", "+41.0", "77.4"]
    rate = {name: [float(c.replace("−", "-")) for c in row] for name, row in by.items()}
    # Half the micro-batch: half of the logits and the activations.
    work = 14 * 16384 * 152064 + 2 * 3584 * 16384 * 28
    layer = 2 * (6 * 3584 + 2 * 512 + 4 * 18944) * 16384
    assert rate["micro-batch halved"][0] == pytest.approx(
        (work + layer) / 2 / 1e9, abs=0.06
    )
    assert rate["FP8 rollout weights"][0] == pytest.approx(7.6156 / 2, abs=0.05)
    # TP 8 on 4 KV heads copies the cache: it costs more than it saves.
    assert by["rollout TP doubled"][2] == "−18.1"
    p = m.parameters(m.QWEN25_7B)["total"] / 8 / 1e9
    for name, per in (
        ("β = 0: no reference", 2),
        ("bf16 Adam moments", 4),
        ("8-bit Adam moments", 6),
    ):
        assert float(by[name][0]) == pytest.approx(per * p, abs=0.05)


def test_lora_column_has_rank_32():
    """Adapters of 0.0807 billion parameters over 8 GPUs, in the MoE 1.69."""
    for table, gpus, adapters in (
        (m.table_dense, 8, 0.08074),
        (m.table_moe, 16, 1.6878),
    ):
        rows = {row[0]: row for row in cells(table())[2:]}
        at = cells(table())[0].index("ZeRO-3, LoRA 32")
        got = float(rows["optimiser"][at])
        assert got == pytest.approx(12 * adapters / gpus, abs=0.06)


def test_experts_table_names_its_columns():
    head, _, *rows = cells(m.table_experts())
    assert head[1:] == ["weights", "gradients", "optimiser", "reference", "gathered"]
    four = replace(m.LARGE, grad_bytes=4)
    for row, change in zip(rows, m.EXPERTS.values(), strict=True):
        state = m.training_state(m.QWEN3_30B_A3B, replace(four, **change))
        assert float(row[1]) == pytest.approx(state["policy weights"] / 1e9, abs=0.06)
        assert float(row[2]) == pytest.approx(state["gradients"] / 2e9, abs=0.06)


def test_ladder_ends_in_the_rollout():
    _, _, *rows = cells(m.table_ladder())
    assert [r[3] for r in rows] == ["update"] * 2 + ["rollout"] * 4
    peaks = [max(float(r[1]), float(r[2])) for r in rows]
    assert peaks == sorted(peaks, reverse=True)
    assert rows[2][1:3] == ["26.8", "52.9"]


def test_parameter_table():
    _, _, *rows = cells(m.table_parameters())
    values = np.array([[float(c) for c in r[1:]] for r in rows])
    assert values[:4].sum(0) == pytest.approx(values[4], abs=2e-4)
    # the checkpoints' own counts: 7,615,616,512 and 30,532,122,624
    assert values[4].tolist() == [7.6156, 30.5321]
    embeddings = [2 * 152_064 * 3584, 2 * 151_936 * 2048]
    assert values[0] == pytest.approx(np.array(embeddings) / 1e9, abs=6e-5)
    ffn = [28 * 3 * 3584 * 18_944, 48 * 128 * 3 * 2048 * 768]
    assert values[2] == pytest.approx(np.array(ffn) / 1e9, abs=6e-5)
    idle = 48 * 120 * 3 * 2048 * 768  # 8 of 128 experts are active
    assert values[5, 1] == pytest.approx(values[4, 1] - idle / 1e9, abs=2e-4)


def test_figure_is_the_timeline():
    figure = m.figure_timeline()
    figure.draw_without_rendering()
    for axes, sleep in zip(figure.axes, (False, True), strict=True):
        tops = {}
        for patch in axes.patches:
            middle = round(patch.get_x() + patch.get_width() / 2)
            tops[middle] = max(tops.get(middle, 0), patch.get_y() + patch.get_height())
        phases = m.timeline(m.QWEN25_7B, replace(m.SMALL, sleep=sleep))
        assert [tops[i] for i in range(6)] == pytest.approx(
            [m.total(phases[n]) for n in m.PHASES]
        )
        assert "GB per GPU" in axes.get_ylabel()
        line = axes.lines[0].get_ydata()
        assert line[0] == pytest.approx(85.9, abs=0.01)
    titles = [axes.get_title() for axes in figure.axes]
    assert "97 GB" in titles[0] and "59 GB" in titles[1]
    ticks = [t.get_text() for t in figure.axes[1].get_xticklabels()]
    assert tuple(ticks) == m.PHASES


def test_claim_bf16_spacing_near_0_02_is_far_above_an_adam_step():
    def bf16(x):  # round to nearest even on the upper half of a float32
        bits = int(np.float32(x).view(np.uint32))
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        return float(np.uint32(rounded).view(np.float32))

    spacing = 2.0 ** (np.floor(np.log2(0.02)) - 7)
    assert spacing == pytest.approx(1.2e-4, rel=0.02)
    weight = bf16(0.02)
    assert bf16(weight + 0.51 * spacing) == pytest.approx(weight + spacing)
    assert bf16(weight - 1e-6) == weight == bf16(weight + 1e-6)
