"""How many model copies does GRPO hold, and what does each option save?

Page:      docs/distributed/grpo-memory.md
Source:    DeepSpeed, docs/code-docs/source/zero3.rst: the 16- and 32-bit
           items (2 + 2 + 4 + 4 + 4 = 16 bytes) and which stage shards them.
           Shapes: slime's scripts/models/qwen2.5-7B.sh, qwen3-30B-A3B.sh.
Notation:  P parameters; N GPUs; t tensor-parallel degree of the trainer;
           d = N / t data-parallel degree, over which ZeRO shards.
Units:     bytes per GPU; tables and figures in GB = 1e9 bytes.
"""

from dataclasses import dataclass, replace

import numpy as np
from matplotlib.figure import Figure

from snippets.show import label, markdown_table, new_figure

GB = 1e9
GPU = 80 * 2**30  # nominal "80 GB" card: 80 GiB = 85.9 GB


# --8<-- [start:shape]
@dataclass(frozen=True)
class Shape:
    """A decoder with SwiGLU feed-forward blocks and grouped queries.

    `ffn` is the inner width of one expert; a dense model has one expert.
    `routed` is the number of experts that a token uses.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    experts: int = 1
    routed: int = 1
    qkv_bias: bool = False
    qk_norm: bool = False
    tied: bool = False


QWEN25_7B = Shape(28, 3584, 28, 4, 128, 18944, 152064, qkv_bias=True)
QWEN3_30B_A3B = Shape(
    48, 2048, 32, 4, 128, 768, 151936, experts=128, routed=8, qk_norm=True
)
# --8<-- [end:shape]


# --8<-- [start:parameters]
def parameters(shape: Shape) -> dict[str, int]:
    """Number of parameters by kind, from the configuration alone.

    Returns:
        "embeddings" (input and output, one if tied), "attention", "ffn"
        (all experts), "rest" (norms, router), and "total"; "active" is
        what one token uses, embeddings included as model cards count it.
    """
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention = 2 * shape.hidden * (q + kv)
    attention += shape.qkv_bias * (q + 2 * kv)
    attention += shape.qk_norm * 2 * shape.head_dim
    expert = 3 * shape.hidden * shape.ffn
    router = shape.hidden * shape.experts if shape.experts > 1 else 0
    count = {
        "embeddings": (2 - shape.tied) * shape.vocab * shape.hidden,
        "attention": shape.layers * attention,
        "ffn": shape.layers * shape.experts * expert,
        "rest": shape.layers * (2 * shape.hidden + router) + shape.hidden,
    }
    count["total"] = sum(count.values())
    idle = shape.layers * (shape.experts - shape.routed) * expert
    return count | {"active": count["total"] - idle}


# --8<-- [end:parameters]


def lora_parameters(shape: Shape, rank: int) -> int:
    """Parameters of LoRA adapters: rank * (in + out) for each matrix.

    Every linear layer of the blocks, all experts included, but not the
    router, the embeddings and the output head.
    """
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention = 4 * shape.hidden + 2 * q + 2 * kv
    ffn = shape.experts * 3 * (shape.hidden + shape.ffn)
    return rank * shape.layers * (attention + ffn)


def by_kind(shape: Shape, rank: int) -> dict[str, tuple[int, int]]:
    """(base, LoRA) parameters of "dense" and of "experts", apart."""
    total, adapter = parameters(shape)["total"], lora_parameters(shape, rank)
    if shape.experts == 1:
        return {"dense": (total, adapter), "experts": (0, 0)}
    base = parameters(shape)["ffn"]
    each = 3 * (shape.hidden + shape.ffn)
    lora = rank * shape.layers * shape.experts * each
    dense = (total - base, adapter - lora)
    return {"dense": dense, "experts": (base, lora)}


# --8<-- [start:setup]
@dataclass(frozen=True)
class Setup:
    """One colocated GRPO run; all that memory depends on."""

    gpus: int = 8
    zero: int = 3  # ZeRO stage 0-3 of trainer and frozen models
    train_tp: int = 1
    train_ep: int = 1  # expert parallelism of the trainer
    train_etp: int = 0  # tensor parallelism of experts; 0: train_tp
    rollout_tp: int = 2
    rollout_dp: int = 1  # engine: copies of attention per set of experts
    reference: bool = True  # beta > 0
    reward_model: bool = False  # a frozen model of the policy's size
    lora_rank: int = 0  # 0: full fine-tuning
    grad_bytes: float = 2  # 4 in Megatron's bf16 recipe
    moment_bytes: float = 4  # each of Adam's two
    rollout_bytes: float = 2  # a weight in the engine; 1 in FP8
    kv_bytes: float = 2
    kv_tokens: int = 256 * 16384  # in flight over all rollout replicas
    train_tokens: int = 16384  # of one micro-batch of one TP group
    logit_chunk: int = 0  # tokens whose logits exist at once; 0: all
    checkpointing: bool = True
    sleep: bool = False  # engine releases weights and KV when idle

    def __post_init__(self) -> None:
        """Raise ValueError for a stage or a split that does not exist."""
        _validate(self)


# --8<-- [end:setup]


def _validate(setup: Setup) -> None:
    if setup.zero not in (0, 1, 2, 3):
        raise ValueError(f"zero is {setup.zero}; ZeRO has stages 0 to 3")
    splits = {
        "train_tp": setup.train_tp,
        "train_ep * train_etp": expert_split(setup),
        "rollout_tp * rollout_dp": setup.rollout_tp * setup.rollout_dp,
    }
    for name, split in splits.items():
        if setup.gpus % split:
            text = f"{name} = {split} does not divide gpus = {setup.gpus}"
            raise ValueError(text)


def expert_split(setup: Setup) -> int:
    """GPUs of the trainer over which one layer's experts are spread."""
    return setup.train_ep * (setup.train_etp or setup.train_tp)


# --8<-- [start:state]
def training_state(shape: Shape, setup: Setup) -> dict[str, float]:
    """Bytes per GPU of what the trainer keeps; 16 a parameter unsharded.

    Tensor parallelism divides everything, expert parallelism the experts.
    ZeRO shards what is left over the remaining GPUs: the optimiser from
    stage 1, the gradients from 2, the weights (also frozen ones) at 3.
    """
    state = {}
    for kind, (base, adapter) in by_kind(shape, setup.lora_rank).items():
        trained = adapter if setup.lora_rank else base
        reference = setup.reference and not setup.lora_rank
        full = {
            "policy weights": (3, 2 * (base + adapter)),
            "gradients": (2, setup.grad_bytes * trained),
            "optimiser": (1, (4 + 2 * setup.moment_bytes) * trained),
            "reference": (3, 2 * base * reference),
            "reward model": (3, 2 * base * setup.reward_model),
        }
        dense = kind == "dense"
        split = setup.train_tp if dense else expert_split(setup)
        for name, (stage, size) in full.items():
            shards = setup.gpus / split if setup.zero >= stage else 1
            state[name] = state.get(name, 0) + size / split / shards
    return state


# --8<-- [end:state]


# --8<-- [start:engine]
def engine(shape: Shape, setup: Setup) -> dict[str, float]:
    """Bytes per GPU of the rollout engine; ZeRO does not reach it.

    Its tensor parallelism divides the weights; `rollout_dp` attention
    replicas share one set of experts. `rollout_tp` GPUs hold their share
    of the tokens in flight, split by KV head; past one head per GPU the
    heads are copied instead.
    """
    heads = max(shape.kv_heads / setup.rollout_tp, 1)
    token = 2 * shape.layers * heads * shape.head_dim * setup.kv_bytes
    tokens = setup.kv_tokens * setup.rollout_tp / setup.gpus
    kinds = by_kind(shape, 0)
    weights = kinds["dense"][0] + kinds["experts"][0] / setup.rollout_dp
    return {
        "rollout weights": setup.rollout_bytes * weights / setup.rollout_tp,
        "KV cache": token * tokens,
    }


# --8<-- [end:engine]


# --8<-- [start:logits]
def logit_bytes(
    shape: Shape, tokens: int, chunk: int = 0, tp: int = 1, each: int = 14
) -> float:
    """Peak bytes of the output head: `each` byte for every live logit.

    A chunk of tokens at a time (0: all), its logits made again for the
    backward pass; tensor parallelism over the vocabulary.
    """
    return each * min(chunk or tokens, tokens) * shape.vocab / tp


# --8<-- [end:logits]


# --8<-- [start:working]
def saved_elements(shape: Shape) -> int:
    """16-bit elements that one layer saves for backward, per token.

    Fused norms and flash attention: two norm inputs and two outputs,
    q, k, v and the attention output, then gate, silu(gate), up and their
    product. A mixture of experts saves its input and output per expert.
    """
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    moe = shape.experts > 1
    copies = 2 * shape.routed * shape.hidden * moe
    ffn = 4 * shape.routed * shape.ffn + copies
    return 4 * shape.hidden + 2 * q + 2 * kv + ffn


def working_set(shape: Shape, setup: Setup) -> dict[str, float]:
    """Bytes per GPU that live only inside one micro-batch's update.

    Logits: 14 bytes an element at the peak of an eager log-softmax from
    bf16 logits (2 + fp32 log-probabilities 4 + two fp32 gradients 8).
    Gathered: two layers' 16-bit weights under ZeRO-3.
    """
    tokens = setup.train_tokens / setup.train_tp
    layer = 2 * saved_elements(shape) * tokens
    kept = 2 * shape.hidden * tokens * shape.layers
    (dense, _), (experts, _) = by_kind(shape, 0).values()
    dense -= parameters(shape)["embeddings"]
    blocks = dense / setup.train_tp + experts / expert_split(setup)
    rows, tp = setup.train_tokens, setup.train_tp
    return {
        "activations": kept + layer
        if setup.checkpointing
        else layer * shape.layers,
        "logits": logit_bytes(shape, rows, setup.logit_chunk, tp),
        "gathered layers": 2 * 2 * blocks / shape.layers * (setup.zero == 3),
    }


# --8<-- [end:working]


# --8<-- [start:timeline]
PHASES = ("rollout", "sleep", "log-probs", "update", "sync", "wake")
SYNC_BUCKET = 2 * 2**30  # bytes sent at once during the weight sync


def timeline(shape: Shape, setup: Setup) -> dict[str, dict[str, float]]:
    """Bytes per GPU by phase and item, trainer and engine on one GPU.

    Asleep, the engine holds nothing; the sync wakes its weights first and
    the KV cache only afterwards. Gradients live in the update only.
    """
    state, serve = training_state(shape, setup), engine(shape, setup)
    work = working_set(shape, setup)
    grads = {"gradients": state.pop("gradients")}
    # Without backward: bf16 logits, an fp32 copy, fp32 log-probabilities.
    layer = 2 * saved_elements(shape) * setup.train_tokens / setup.train_tp
    scoring = work | {
        "activations": layer,
        "logits": work["logits"] * 10 / 14,
    }
    weights = {"rollout weights": serve["rollout weights"]}
    idle, woken = ({}, weights) if setup.sleep else (serve, serve)
    return {
        "rollout": state | serve,
        "sleep": state | idle,
        "log-probs": state | idle | scoring,
        "update": state | grads | idle | work,
        "sync": state | woken | {"sync buffer": SYNC_BUCKET},
        "wake": state | serve,
    }


def peak(shape: Shape, setup: Setup) -> float:
    """Largest bytes per GPU over the phases of one step."""
    phases = timeline(shape, setup).values()
    return max(sum(items.values()) for items in phases)


# --8<-- [end:timeline]


SMALL = Setup()
LARGE = Setup(gpus=16, rollout_tp=4)
COLUMNS = {
    "replicated": {"zero": 0},
    "ZeRO-1": {"zero": 1},
    "ZeRO-2": {"zero": 2},
    "ZeRO-3": {},
    "TP 4, ZeRO-1": {"zero": 1, "train_tp": 4},
    "ZeRO-3, β = 0": {"reference": False},
    "ZeRO-3, LoRA 32": {"lora_rank": 32},
    "ZeRO-3, sleep": {"sleep": True},
}
ITEMS = (
    "policy weights",
    "gradients",
    "optimiser",
    "reference",
    "rollout weights",
    "KV cache",
    "activations",
    "logits",
    "gathered layers",
)
OPTIONS = {
    "β = 0: no reference": {"reference": False},
    "bf16 Adam moments": {"moment_bytes": 2},
    "8-bit Adam moments": {"moment_bytes": 1},
    "LoRA, rank 32": {"lora_rank": 32},
    "sleep during training": {"sleep": True},
    "FP8 rollout weights": {"rollout_bytes": 1},
    "FP8 KV cache": {"kv_bytes": 1},
    "rollout TP doubled": {"rollout_tp": 2},  # times the base's
    "logits in chunks of 1,024": {"logit_chunk": 1024},
    "micro-batch halved": {"train_tokens": 8192},
    "*no* checkpointing": {"checkpointing": False},
}
STEPS = (
    ("sleep", {"sleep": True}),
    ("+ logits in chunks of 1,024", {"logit_chunk": 1024}),
    ("+ β = 0", {"reference": False}),
    ("+ FP8 KV cache", {"kv_bytes": 1}),
    ("+ LoRA 32 in place of full", {"lora_rank": 32}),
)


def total(items: dict[str, float]) -> float:
    """Sum of the items of one phase, in GB per GPU."""
    return sum(items.values()) / GB


def option_setup(base: Setup, change: dict) -> Setup:
    """`base` with one option; a rollout TP degree multiplies the base's."""
    if "rollout_tp" in change:
        change = {"rollout_tp": base.rollout_tp * change["rollout_tp"]}
    return replace(base, **change)


def table_parameters() -> str:
    """Parameters of both configurations by kind, in billions."""
    names = ("embeddings", "attention", "ffn", "rest", "total", "active")
    both = parameters(QWEN25_7B), parameters(QWEN3_30B_A3B)
    rows = [[name, *(f"{c[name] / 1e9:.4f}" for c in both)] for name in names]
    return markdown_table(["billions", "Qwen2.5-7B", "Qwen3-30B-A3B"], rows)


EXPERTS = {  # Megatron's default expert TP is its TP; slime's script sets 1
    "TP 4, ZeRO-1": {"zero": 1, "train_tp": 4, "train_etp": 4},
    "+ EP 4": {"zero": 1, "train_tp": 4, "train_ep": 4},
    "+ EP 8, expert TP 1": {
        "zero": 1,
        "train_tp": 4,
        "train_ep": 8,
        "train_etp": 1,
    },
    "ZeRO-3": {},
    "ZeRO-3, EP 8": {"train_ep": 8},
}


def table_experts() -> str:
    """Qwen3-30B-A3B on 16 GPUs: what expert parallelism divides, GB."""
    rows = []
    for name, change in EXPERTS.items():
        setup = replace(LARGE, **change)
        update = timeline(QWEN3_30B_A3B, setup)["update"]
        items = ("policy weights", "gradients", "optimiser", "reference")
        cells = [*(update[item] for item in items), update["gathered layers"]]
        rows.append([name, *(f"{c / GB:.1f}" for c in cells)])
    heads = ["trainer", "weights", "gradients", "optimiser", "reference"]
    return markdown_table([*heads, "gathered"], rows)


def table_logits() -> str:
    """GB per GPU at the head of the 7B in the update, by tokens."""
    rows = []
    for tokens in (4096, 16384, 65536):
        ways = {"each": 2}, {}, {"tp": 4}, {"chunk": 1024}
        cells = [logit_bytes(QWEN25_7B, tokens, **way) / GB for way in ways]
        rows.append([f"{tokens:,}", *(f"{cell:.1f}" for cell in cells)])
    heads = ["tokens in the micro-batch", "bf16 logits alone", "peak, eager"]
    return markdown_table([*heads, "eager, TP 4", "chunks of 1,024"], rows)


def items_table(shape: Shape, base: Setup) -> str:
    """GB per GPU during the update: items by settings, then the peaks."""
    setups = [replace(base, **change) for change in COLUMNS.values()]
    phases = [timeline(shape, setup) for setup in setups]
    rows = [
        [name, *(f"{p['update'].get(name, 0) / GB:.1f}" for p in phases)]
        for name in ITEMS
    ]
    for name in ("update", "rollout"):
        rows.append(
            [f"**{name}**", *(f"{total(p[name]):.1f}" for p in phases)]
        )
    judged = [replace(setup, reward_model=True) for setup in setups]
    states = [
        training_state(shape, setup)["reward model"] for setup in judged
    ]
    rows.append(["a reward model adds", *(f"{s / GB:.1f}" for s in states)])
    return markdown_table(["GB per GPU", *COLUMNS], rows)


def table_dense() -> str:
    """Qwen2.5-7B on 8 GPUs, engine TP 2."""
    return items_table(QWEN25_7B, SMALL)


def table_moe() -> str:
    """Qwen3-30B-A3B on 16 GPUs, engine TP 4."""
    return items_table(QWEN3_30B_A3B, LARGE)


def table_savings() -> str:
    """What each option alone takes off the peak of the base, in GB."""
    rows = []
    for name, change in OPTIONS.items():
        row = [name]
        for shape, base in ((QWEN25_7B, SMALL), (QWEN3_30B_A3B, LARGE)):
            after = peak(shape, option_setup(base, change))
            saved = (peak(shape, base) - after) / GB
            row += [f"{saved:+.1f}".replace("-", "−"), f"{after / GB:.1f}"]
        rows.append(row)
    heads = ["one option", "7B saves", "7B peak", "30B-A3B saves"]
    return markdown_table([*heads, "30B-A3B peak"], rows)


def table_ladder() -> str:
    """Options added one after another on the 7B: peak and its phase."""
    setup, name, rows = SMALL, "nothing (ZeRO-3, β > 0)", []
    for following, change in (*STEPS, ("", {})):
        phases = timeline(QWEN25_7B, setup)
        update, rollout = total(phases["update"]), total(phases["rollout"])
        worst = max(phases, key=lambda phase: total(phases[phase]))
        rows.append([name, f"{update:.1f}", f"{rollout:.1f}", worst])
        setup, name = replace(setup, **change), following
    heads = ["options so far", "update", "rollout", "peak is in"]
    return markdown_table(heads, rows, "lrrl")


BANDS = {
    "trainer": (
        "policy weights",
        "optimiser",
        "gradients",
        "gathered layers",
        "sync buffer",
    ),
    "reference": ("reference",),
    "engine weights": ("rollout weights",),
    "KV cache": ("KV cache",),
    "activations": ("activations",),
    "logits": ("logits",),
}


def bands(setup: Setup) -> dict[str, np.ndarray]:
    """GB per GPU of each band over the six phases, shape (6,) each."""
    phases = timeline(QWEN25_7B, setup).values()
    return {
        band: np.array([sum(p.get(n, 0) for n in names) / GB for p in phases])
        for band, names in BANDS.items()
    }


def figure_timeline() -> Figure:
    """Stacked bytes per GPU over the phases, awake above, asleep below."""
    figure, rows = new_figure(5.4, rows=2, sharex=True)
    places = np.arange(len(PHASES))
    for axes, sleep in zip(rows, (False, True), strict=True):
        setup = replace(SMALL, sleep=sleep)
        base, lowest = np.zeros(len(PHASES)), -9.0
        for number, (band, height) in enumerate(bands(setup).items()):
            color = f"C{number}"
            axes.bar(places, height, 0.72, base, color=color, label=band)
            at = 5 if height[5] else 3  # name a band beside its last bar
            middle = base[at] + height[at] / 2
            if at == 5:
                middle = lowest = max(middle, lowest + 9)
            base = base + height
            if at == 5 or not sleep:
                up = 2 if band == "activations" else 0  # clear of a bar
                where = {"xytext": (3, up), "va": "center"}
                label(axes, at + 0.36, middle, band, color, **where)
        axes.axhline(GPU / GB, linestyle=":", color="grey")
        label(axes, -0.45, GPU / GB, "80 GiB = 85.9 GB")
        most = peak(QWEN25_7B, setup) / GB
        label(axes, 3, most, f"{most:.0f}", ha="center", xytext=(0, 3))
        axes.set(ylabel="GB per GPU", ylim=(0, 112), xlim=(-0.55, 7.6))
    rows[0].set_title("Without sleep the update needs 97 GB …")
    rows[1].set_title("… with sleep 59 GB")
    rows[1].set_xticks(places, PHASES, rotation=30)
    return figure
