"""Which RL framework fits, and what does its GRPO do out of the box?

Page:      docs/rollouts/choosing-a-framework.md
Source:    MATRIX and DEFAULTS: the files named in each entry, at verl
           1dda039, TRL f2cd577, Unsloth 015bdef, Unsloth Zoo ce232d6,
           AReaL cbff54d, slime 624b824. Memory: grpo_memory.py.
           OPINION and every weight are the authors' own.
Notation:  r: ratio of the trained to the old policy; d: log-probability
           of the reference minus that of the policy; A: advantage.
Units:     GB = 1e9 bytes per GPU; scores from 0 to 1; log-probs in nats.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np
from matplotlib.figure import Figure

from snippets.distributed.grpo_memory import (
    GB,
    GPU,
    Setup,
    Shape,
    parameters,
    timeline,
    training_state,
)
from snippets.distributed.grpo_memory import engine as engine_bytes
from snippets.show import label, markdown_table, new_figure

FRAMEWORKS = ("verl", "TRL", "Unsloth", "AReaL", "slime")


@dataclass(frozen=True)
class Cell:
    """One fact of the matrix.

    `has` is what its sources offer; `trial` what they offer but mark as
    experimental or alpha; each source is "key, path#lines".
    """

    text: str
    sources: tuple[str, ...]
    has: frozenset[str] = frozenset()
    trial: frozenset[str] = frozenset()


def _cell(text: str, sources: str, has: str = "", trial: str = "") -> Cell:
    """A Cell from lists written with semicolons."""
    parts = [
        [p.strip() for p in s.split(";") if p.strip()]
        for s in (sources, has, trial)
    ]
    return Cell(text, tuple(parts[0]), *map(frozenset, parts[1:]))


MATRIX: dict[str, dict[str, Cell]] = {
    "trainer": {
        "verl": _cell(
            "FSDP, Megatron, VeOmni, TorchTitan, Automodel, MindSpeed; with "
            "Megatron TP, PP, CP, EP",
            "verl-1dda039, verl/workers/engine/__init__.py#L16-L71; "
            "verl-1dda039, verl/trainer/config/engine/megatron.yaml#L13-L29",
            "sharding; TP; PP; CP; EP",
        ),
        "TRL": _cell(
            "Accelerate: DDP, DeepSpeed ZeRO-1 to 3, FSDP; sequence or "
            "context parallel; no EP setting found",
            "trl-f2cd577, README.md#L38; "
            "trl-f2cd577, examples/accelerate_configs/"
            "deepspeed_zero3.yaml#L3-L10; "
            "trl-f2cd577, docs/source/distributing_training.md#L76-L81",
            "sharding; CP",
        ),
        "Unsloth": _cell(
            "TRL's, patched; DDP, a whole copy per rank; FSDP and "
            "DeepSpeed by hand, official support to come",
            "unsloth-015bdef, unsloth/models/loader_utils.py#L91-L106; "
            "unsloth2026multigpu",
            "",
            "sharding",
        ),
        "AReaL": _cell(
            "Megatron, FSDP2, Archon; TP, CP in all, PP and EP not in FSDP2",
            "areal-cbff54d, README.md#L245-L251",
            "sharding; TP; PP; CP; EP",
        ),
        "slime": _cell(
            "Megatron only; TP, PP, CP, EP",
            "slime-624b824, slime/utils/arguments.py#L1592; "
            "slime-624b824, scripts/run-qwen3-235B-A22B.sh#L75-L91",
            "sharding; TP; PP; CP; EP",
        ),
    },
    "engine": {
        "verl": _cell(
            "vLLM, SGLang, TensorRT-LLM servers; memory share 0.5",
            "verl-1dda039, verl/workers/rollout/base.py#L88-L92; "
            "verl-1dda039, verl/trainer/config/rollout/rollout.yaml#L45-L46",
            "vLLM; SGLang; TensorRT-LLM",
        ),
        "TRL": _cell(
            "the trained model itself (`use_vllm` False), or vLLM: "
            "`vllm_mode` `colocate` (default, memory share 0.3) or `server`",
            "trl-f2cd577, trl/trainer/grpo_config.py#L577-L653",
            "vLLM; none needed",
        ),
        "Unsloth": _cell(
            "the trained model itself (`fast_inference` False), or vLLM in "
            "process",
            "unsloth-015bdef, unsloth/models/llama.py#L2337; "
            "unsloth-015bdef, unsloth/models/rl.py#L3983-L3994",
            "vLLM; none needed",
        ),
        "AReaL": _cell(
            "SGLang (default) or vLLM",
            "areal-cbff54d, README.md#L143-L144",
            "vLLM; SGLang",
        ),
        "slime": _cell(
            "SGLang only, arguments passed through",
            "slime-624b824, README.md#L40-L50",
            "SGLang",
        ),
    },
    "schedule": {
        "verl": _cell(
            "`trainer.v1.trainer_mode` `sync` (default); `colocate_async` "
            "and `separate_async` interrupt and resume",
            "verl-1dda039, verl/trainer/config/ppo_trainer.yaml#L221-L246; "
            "verl-1dda039, docs/advance/v1_async_trainer.md#L51-L60",
            "colocated; overlap; interrupt; resume",
        ),
        "TRL": _cell(
            "synchronous; AsyncGRPO, experimental, keeps running requests",
            "trl-f2cd577, trl/experimental/async_grpo/"
            "async_grpo_config.py#L271-L296; "
            "trl-f2cd577, trl/experimental/async_grpo/vllm_client.py#L78-L84",
            "colocated",
            "overlap; interrupt; resume",
        ),
        "Unsloth": _cell(
            "synchronous, colocated",
            "unsloth-015bdef, unsloth/models/rl.py#L3992-L3994",
            "colocated",
        ),
        "AReaL": _cell(
            "`max_head_offpolicyness` 0 (default): synchronous; above 0 "
            "asynchronous, interrupts and resumes; `use_decoupled_loss` "
            "False; can colocate",
            "areal-cbff54d, areal/api/cli_args.py#L2502-L2509; "
            "areal-cbff54d, areal/api/cli_args.py#L1804-L1815; "
            "areal-cbff54d, areal/infra/remote_inf_engine.py#L977-L987; "
            "areal-cbff54d, examples/math/"
            "gsm8k_grpo_awex_colocate.yaml#L1-L12",
            "colocated; overlap; interrupt; resume",
        ),
        "slime": _cell(
            "synchronous, `--partial-rollout` (off) resumes cut responses; "
            "one step off; fully asynchronous, where cut groups are "
            "re-queued ([resumed or not](areal-vs-slime.md))",
            "slime-624b824, slime/utils/arguments.py#L456-L466; "
            "slime-624b824, train_async.py#L31-L70; "
            "slime-624b824, examples/fully_async/README.md#L63-L83",
            "colocated; overlap; interrupt; resume",
        ),
    },
    "agents": {
        "verl": _cell(
            "tool calls; own agent loop, alpha by a page of July 2025; "
            "unmodified agents: another repository, uni-agent (not scored)",
            "verl-1dda039, README.md#L103; "
            "verl-1dda039, docs/advance/agent_loop.rst#L4-L18; "
            "verl-1dda039, docs/extend_guide.rst#L182-L190",
            "tools",
            "own loop",
        ),
        "TRL": _cell(
            "`tools`; `environment_factory`, experimental; agents that run "
            "their own loop, in AsyncGRPO",
            "trl-f2cd577, trl/trainer/grpo_trainer.py#L576-L598; "
            "trl-f2cd577, docs/source/openenv.md#L648-L650",
            "tools",
            "own loop; unmodified agent",
        ),
        "Unsloth": _cell(
            "TRL's up to 0.24.0, whose `GRPOTrainer` knows no `tools`; a "
            "hook for `tool_mask`",
            "unsloth-015bdef, pyproject.toml#L171; "
            "trl-04fd120, trl/trainer/grpo_trainer.py; "
            "unsloth-015bdef, unsloth/models/rl.py#L354-L366",
        ),
        "AReaL": _cell(
            "any agent that accepts another `base_url`; workflows of one's "
            "own; a tool-calling example",
            "areal-cbff54d, README.md#L29-L32; "
            "areal-cbff54d, README.md#L182-L189",
            "tools; own loop; unmodified agent",
        ),
        "slime": _cell(
            "`--custom-generate-function-path`; an example serves Claude "
            "Code through an adapter",
            "slime-624b824, docs/en/get_started/customization.md#L32-L47; "
            "slime-624b824, examples/coding_agent_rl/README.md#L7-L15",
            "own loop; unmodified agent",
        ),
    },
    "one GPU": {
        "verl": _cell(
            "LoRA with FSDP (`lora_rank` 0: off) and Megatron; no 4-bit "
            "base found",
            "verl-1dda039, docs/advance/ppo_lora.rst#L24-L66; "
            "verl-1dda039, verl/trainer/config/model/hf_model.yaml#L43",
            "LoRA",
        ),
        "TRL": _cell(
            "LoRA and QLoRA through PEFT; a vLLM engine is a second copy",
            "trl-f2cd577, docs/source/peft_integration.md#L420-L433; "
            "trl-f2cd577, trl/trainer/grpo_config.py#L577-L608",
            "LoRA; 4-bit base",
        ),
        "Unsloth": _cell(
            "`load_in_4bit` True by default; vLLM and trainer share one "
            "copy; standby drops the KV cache",
            "unsloth-015bdef, unsloth/models/loader.py#L410-L417; "
            "unsloth-015bdef, unsloth/models/llama.py#L2809-L2822; "
            "unslothzoo-ce232d6, unsloth_zoo/vllm_utils.py#L567-L637",
            "LoRA; 4-bit base; shared copy",
        ),
        "AReaL": _cell(
            "LoRA (FSDP2; Megatron with vLLM); no 4-bit base found",
            "areal-cbff54d, docs/en/reference/lora.md#L24-L30",
            "LoRA",
        ),
        "slime": _cell(
            "no LoRA found; its README names LoRA as an addition of miles",
            "slime-624b824, README.md#L122",
        ),
    },
    "algorithms": {
        "verl": _cell(
            "14 estimators, among them PPO's `gae` with a critic (default), "
            "GRPO, RLOO, ReMax; SFT",
            "verl-1dda039, verl/trainer/ppo/core_algos.py#L97-L110; "
            "verl-1dda039, README.md#L99-L100",
            "GRPO; critic; SFT",
        ),
        "TRL": _cell(
            "GRPO, RLOO, DPO, KTO, SFT, reward models; PPO experimental",
            "trl-f2cd577, docs/source/index.md#L26-L57",
            "GRPO; SFT; DPO",
            "critic",
        ),
        "Unsloth": _cell(
            "GRPO, DPO, SFT through TRL",
            "unsloth-015bdef, README.md#L88",
            "GRPO; SFT; DPO",
        ),
        "AReaL": _cell(
            "GRPO and variants, PPO, RLOO, REINFORCE++, M2PO, DPO, SFT",
            "areal-cbff54d, README.md#L212-L229",
            "GRPO; critic; SFT; DPO",
        ),
        "slime": _cell(
            "`grpo`, `gspo`, `cispo`, two REINFORCE++, `ppo`; SFT",
            "slime-624b824, slime/utils/arguments.py#L914-L951",
            "GRPO; critic; SFT",
        ),
    },
    "hardware": {
        "verl": _cell(
            "NVIDIA, AMD, Ascend",
            "verl-1dda039, README.md#L109",
            "NVIDIA; AMD; Ascend",
        ),
        "TRL": _cell(
            "what Accelerate runs on; usage statistics name cuda, xpu, "
            "npu, mlu, mps",
            "trl-f2cd577, docs/source/usage_stats.md#L15",
            "NVIDIA",
        ),
        "Unsloth": _cell(
            "NVIDIA, AMD (RL named), Intel, Apple (training)",
            "unsloth-015bdef, README.md#L157-L160",
            "NVIDIA; AMD; Intel; Apple",
        ),
        "AReaL": _cell(
            "NVIDIA; Ascend on its own branch; other CUDA devices: "
            "`UnknownPlatform`",
            "areal-cbff54d, README.md#L94-L99; "
            "areal-cbff54d, areal/infra/platforms/__init__.py#L32-L45",
            "NVIDIA; Ascend",
        ),
        "slime": _cell(
            "NVIDIA; AMD by a tutorial",
            "slime-624b824, docs/en/platform_support/amd_tutorial.md#L1-L8",
            "NVIDIA; AMD",
        ),
    },
    "largest script": {
        "verl": _cell(
            "235B on 64 GPUs, 671B on 96, both offloaded to the CPU",
            "verl-1dda039, examples/grpo_trainer/"
            "run_qwen3_235b_a22b_megatron.sh#L13-L31; "
            "verl-1dda039, examples/grpo_trainer/"
            "run_deepseek_v3_671b_megatron.sh#L21-L44",
            "235B; beyond 300B",
        ),
        "TRL": _cell(
            "dense 72B: 4 nodes train, 1 generates",
            "trl-f2cd577, docs/source/grpo_trainer.md#L327-L364",
        ),
        "Unsloth": _cell(
            "a 20B GRPO notebook in the README's table",
            "unsloth-015bdef, README.md#L253",
        ),
        "AReaL": _cell(
            "235B agents on 80 GPUs",
            "areal-cbff54d, examples/tau2/README.md#L53-L58",
            "235B",
        ),
        "slime": _cell(
            "355B on 64 GPUs, 744B on 256, Adam on the CPU",
            "slime-624b824, docs/en/examples/"
            "glm4.7-355B-A32B.md#L1-L84; "
            "slime-624b824, docs/en/examples/glm5.2-744B-A40B.md#L1-L3; "
            "slime-624b824, scripts/run-glm5.2-744B-A40B.sh#L114",
            "235B; beyond 300B",
        ),
    },
    "licence": {
        "verl": _cell(
            "Apache-2.0",
            "verl-1dda039, LICENSE#L1-L4",
            "no copyleft",
        ),
        "TRL": _cell(
            "Apache-2.0",
            "trl-f2cd577, LICENSE#L1-L3",
            "no copyleft",
        ),
        "Unsloth": _cell(
            "Apache-2.0 core; AGPL-3.0 Studio, MoE kernels, marked files; "
            "needs `unsloth_zoo`: LGPL-3.0-or-later, parts marked AGPL",
            "unsloth-015bdef, README.md#L452-L453; "
            "unsloth-015bdef, unsloth/kernels/moe/LICENSE#L1-L2; "
            "unslothzoo-ce232d6, pyproject.toml#L11; "
            "unslothzoo-ce232d6, unsloth_zoo/rl_replacements.py#L425-L436",
        ),
        "AReaL": _cell(
            "Apache-2.0",
            "areal-cbff54d, LICENSE#L1-L3",
            "no copyleft",
        ),
        "slime": _cell(
            "Apache-2.0",
            "slime-624b824, LICENSE#L1-L3",
            "no copyleft",
        ),
    },
    "version read": {
        "verl": _cell(
            "0.10.0.dev",
            "verl-1dda039, verl/version/version",
        ),
        "TRL": _cell(
            "1.10.0.dev0",
            "trl-f2cd577, VERSION",
        ),
        "Unsloth": _cell(
            "2026.8.19; pins TRL to at most 0.24.0 (Oct 2025)",
            "unsloth-015bdef, unsloth/_version.py#L22; "
            "unsloth-015bdef, pyproject.toml#L171",
        ),
        "AReaL": _cell(
            "2.0.0; calls itself pre-alpha",
            "areal-cbff54d, pyproject.toml#L11-L30",
        ),
        "slime": _cell(
            "0.3.1",
            "slime-624b824, setup.py#L35",
        ),
    },
}

# Not facts: the authors' judgement, 0 to 1, for the criteria that no
# listing of features can show.
OPINION: dict[str, dict[str, float]] = {
    "a new loss soon": {
        "verl": 0.7,
        "TRL": 1.0,
        "Unsloth": 0.3,
        "AReaL": 0.5,
        "slime": 0.7,
    },
    "few moving parts": {
        "verl": 0.3,
        "TRL": 0.8,
        "Unsloth": 0.8,
        "AReaL": 0.4,
        "slime": 1.0,
    },
}


def matrix() -> str:
    """MATRIX as the page shows it: a row a criterion, with citations."""
    rows = []
    for criterion, cells in MATRIX.items():
        row = [f"**{criterion}**"]
        for name in FRAMEWORKS:
            cell = cells[name]
            cites = " ".join(f"[@{source}]" for source in cell.sources)
            row.append(f"{cell.text} {cites}")
        rows.append(row)
    return markdown_table(["", *FRAMEWORKS], rows, "llllll")


# --8<-- [start:choose]
def score(criterion: str, name: str) -> float:
    """A framework on one criterion, from 0 to 1.

    A fact scores the share of the row's features that it has, those on
    trial counted half; a criterion of OPINION is looked up.
    """
    if criterion in OPINION:
        return OPINION[criterion][name]
    cells = MATRIX[criterion]
    every = frozenset().union(*(c.has | c.trial for c in cells.values()))
    cell = cells[name]
    return (len(cell.has) + len(cell.trial) / 2) / len(every)


def choose(
    needs: Sequence[str], weights: Mapping[str, float], trial: bool = False
) -> tuple[list[tuple[float, str]], dict[str, list[str]]]:
    """Filter by hard requirements, then rank by a weighted mean.

    Args:
        needs: Features that must all be there.
        weights: Criterion to weight, none negative, at least one positive.
        trial: Whether a feature on trial meets a need.

    Returns:
        (score, name) of those left, best first; and for each framework
        that is out, what it lacks.
    """
    out, ranking, total = {}, [], sum(weights.values())
    for name in FRAMEWORKS:
        cells = [row[name] for row in MATRIX.values()]
        offered = frozenset().union(*(c.has for c in cells))
        if trial:
            offered = offered.union(*(c.trial for c in cells))
        if lacks := [need for need in needs if need not in offered]:
            out[name] = lacks
            continue
        parts = (w * score(c, name) for c, w in weights.items())
        ranking.append((sum(parts) / total, name))
    return sorted(ranking, reverse=True), out


# --8<-- [end:choose]


# --- The three cases: memory ----------------------------------------------

QWEN3_8B = Shape(36, 4096, 32, 8, 128, 12288, 151936, qk_norm=True)
QWEN3_235B = Shape(
    94, 4096, 64, 4, 128, 1536, 151936, experts=128, routed=8, qk_norm=True
)
SMALL_GPU = 24 * 2**30  # nominal "24 GB" card: 24 GiB = 25.8 GB


def peaks(
    shape: Shape,
    setup: Setup,
    four_bit: bool = False,
    shared: bool = False,
) -> dict[str, float]:
    """Peak bytes per GPU of each phase of grpo_memory's timeline.

    Args:
        shape: The model.
        setup: The colocated run.
        four_bit: Frozen linear layers of the blocks take 0.5 bytes a
            weight, scales not counted; embeddings and head keep 2.
        shared: The engine reads the trainer's weights: no second copy.
    """
    count = parameters(shape)
    saved = 1.5 * (count["attention"] + count["ffn"]) * four_bit
    result = {}
    for phase, items in timeline(shape, setup).items():
        second = items.get("rollout weights", 0) * shared
        result[phase] = sum(items.values()) - saved - second
    return result


ONE = Setup(
    gpus=1,
    zero=0,
    rollout_tp=1,
    reference=False,
    lora_rank=32,
    kv_tokens=8 * 4096,
    train_tokens=4096,
    logit_chunk=1024,
)
NODE = Setup(
    rollout_tp=1,
    reference=False,
    kv_tokens=128 * 8192,
    logit_chunk=1024,
    sleep=True,
)
# Name: (setup, more arguments of `peaks`, bytes of one card).
RUNS: dict[str, tuple[Setup, dict, float]] = {
    "1 × 24, LoRA, engine with its own bf16 copy": (ONE, {}, SMALL_GPU),
    "the same, engine asleep between rollouts": (
        replace(ONE, sleep=True),
        {},
        SMALL_GPU,
    ),
    "one shared copy, KV cache kept": (ONE, {"shared": True}, SMALL_GPU),
    "one shared copy, KV cache dropped": (
        replace(ONE, sleep=True),
        {"shared": True},
        SMALL_GPU,
    ),
    "the same, base in 4 bits": (
        replace(ONE, sleep=True),
        {"shared": True, "four_bit": True},
        SMALL_GPU,
    ),
    "8 × 80, full, a whole copy per GPU": (replace(NODE, zero=0), {}, GPU),
    "ZeRO-3, engine awake, logits whole": (
        replace(NODE, sleep=False, logit_chunk=0),
        {},
        GPU,
    ),
    "ZeRO-3, engine asleep, logits in chunks": (NODE, {}, GPU),
}


def table_memory() -> str:
    """Qwen3-8B: GB per GPU in update, sync and rollout, against the card."""
    rows = []
    for name, (setup, more, card) in RUNS.items():
        found = peaks(QWEN3_8B, setup, **more)
        shown = [found[p] / GB for p in ("update", "sync", "rollout")]
        if more.get("shared"):
            shown[1] = None  # nothing is sent
        fits = max(x for x in shown if x is not None) <= card / GB
        cells = ["none" if x is None else f"{x:.1f}" for x in shown]
        rows.append(
            [name, *cells, f"{card / GB:.1f}", "yes" if fits else "no"]
        )
    heads = ["Qwen3-8B", "update", "weight sync", "rollout", "card", "fits"]
    return markdown_table(heads, rows)


def floor(
    shape: Shape,
    trainers: int,
    engine_tp: int,
    engine_dp: int,
    host: bool = False,
) -> dict[str, float]:
    """Bytes per GPU below which no parallelism gets a full fine-tuning.

    Args:
        shape: The model.
        trainers: GPUs over which 18 bytes a parameter (Megatron's recipe,
            gradients in fp32) are split evenly, nothing held twice.
        engine_tp: Tensor parallel size of one engine, bf16.
        engine_dp: Its attention replicas, which share the experts.
        host: Adam's moments and the master weights are on the CPU.
    """
    setup = Setup(
        gpus=trainers,
        rollout_tp=engine_tp,
        rollout_dp=engine_dp,
        reference=False,
        grad_bytes=4,
    )
    state = training_state(shape, setup)
    if host:
        state["optimiser"] = 0
    whole = replace(setup, gpus=engine_tp * engine_dp)
    weights = engine_bytes(shape, whole)["rollout weights"]
    return {"state": sum(state.values()), "engine": weights}


# Name: (trainer GPUs, engine TP, engine DP, optimiser on host, colocated).
LARGE: dict[str, tuple[int, int, int, bool, bool]] = {
    "64 GPUs, engines of 8": (64, 8, 1, False, True),
    "64 GPUs, engines of 32": (64, 8, 4, False, True),
    "64 GPUs, engines of 32, Adam on the CPU": (64, 8, 4, True, True),
    "128 GPUs, engines of 32": (128, 8, 4, False, True),
    "48 train, 4 engines of 8 apart": (48, 8, 1, False, False),
}


def table_floor() -> str:
    """Qwen3-235B-A22B: the least GB per GPU, and what an 80 GB card keeps."""
    rows = []
    for name, (trainers, tp, dp, host, together) in LARGE.items():
        least = floor(QWEN3_235B, trainers, tp, dp, host)
        state, weights = least["state"] / GB, least["engine"] / GB
        used = state + weights if together else max(state, weights)
        left = f"{GPU / GB - used:.1f}".replace("-", "−")
        rows.append([name, f"{state:.1f}", f"{weights:.1f}", left])
    heads = ["Qwen3-235B-A22B, full", "trainer state", "engine weights"]
    return markdown_table([*heads, "left of 85.9"], rows)


# --- The three cases: choice ----------------------------------------------

# Name: (hard requirements, {label of a weighting: weights}).
CASES: dict[str, tuple[tuple[str, ...], dict[str, dict[str, float]]]] = {
    "A: one 24 GB card, LoRA, 8B": (
        ("LoRA", "4-bit base"),
        {
            "memory": {"one GPU": 1},
            "memory 2, agents 1": {"one GPU": 2, "agents": 1},
            "memory 4, agents 1": {"one GPU": 4, "agents": 1},
        },
    ),
    "B: 8 × H100, full, 8B": (
        ("sharding", "colocated"),
        {
            "growth 1, new loss 1": {"trainer": 1, "a new loss soon": 1},
            "growth 1, new loss 3": {"trainer": 1, "a new loss soon": 3},
            "growth, engines, new loss 1 each": {
                "trainer": 1,
                "engine": 1,
                "a new loss soon": 1,
            },
        },
    ),
    "C: 64+ GPUs, 235B MoE agents": (
        ("EP", "235B"),
        {
            "agents 1": {"agents": 1},
            "agents, schedule, scale 1 each": {
                "agents": 1,
                "schedule": 1,
                "largest script": 1,
            },
            "scale, hardware, engines 1 each": {
                "largest script": 1,
                "hardware": 1,
                "engine": 1,
            },
            "scale 1, few parts 1": {
                "largest script": 1,
                "few moving parts": 1,
            },
        },
    ),
}


def table_choices() -> str:
    """Who is out, and how the winner changes with the weights."""
    rows = []
    for case, (needs, weightings) in CASES.items():
        for name, weights in weightings.items():
            ranking, out = choose(needs, weights)
            best = ranking[0][0]
            tied = [who for s, who in ranking if best - s < 1e-9]
            rest = ranking[len(tied) :]
            shown = ", ".join(f"{who} {s:.2f}" for s, who in rest)
            first = f"**{' = '.join(tied)}** {best:.2f}"
            rows.append([case, ", ".join(out), name, first, shown])
            case = ""
    heads = ["case", "out", "weights", "first", "then"]
    return markdown_table(heads, rows, "lllll")


# Panel: (title, needs, weights at 0, weights at 1, label of the axis).
FLIPS = (
    (
        "A: one 24 GB card",
        CASES["A: one 24 GB card, LoRA, 8B"][0],
        {"agents": 1.0},
        {"one GPU": 1.0},
        "weight on memory, rest on agents",
    ),
    (
        "B: one node, 8B",
        CASES["B: 8 × H100, full, 8B"][0],
        {"trainer": 0.5, "engine": 0.5},
        {"a new loss soon": 1.0},
        "weight on a new loss, rest on trainer and engine",
    ),
    (
        "C: 235B agents",
        CASES["C: 64+ GPUs, 235B MoE agents"][0],
        {"agents": 0.5, "schedule": 0.5},
        {"largest script": 0.5, "few moving parts": 0.5},
        "weight on scale and few parts, rest on agents, schedule",
    ),
)
GRID = np.linspace(0, 1, 101)


def flip(number: int) -> dict[str, np.ndarray]:
    """Score of each framework left, over GRID, for one panel of FLIPS."""
    _, needs, start, end, _ = FLIPS[number]
    lines: dict[str, list[float]] = {}
    for x in GRID:
        weights = {c: w * (1 - x) for c, w in start.items()}
        weights |= {c: w * x for c, w in end.items()}
        for value, name in choose(needs, weights)[0]:
            lines.setdefault(name, []).append(value)
    return {name: np.array(values) for name, values in lines.items()}


def turn(number: int) -> tuple[str, float, str]:
    """(first at 0, weight from which another leads, first at 1)."""
    lines = flip(number)
    lead = np.array(list(lines.values())).argmax(0)
    names = list(lines)
    at = GRID[np.flatnonzero(np.diff(lead))[0] + 1]
    return names[lead[0]], float(at), names[lead[-1]]


def figure_flips() -> Figure:
    """Scores against one weight; the first place changes hands."""
    fig, panels = new_figure(7.2, rows=3)
    for number, axes in enumerate(panels):
        title, _, _, _, xlabel = FLIPS[number]
        lines = flip(number)
        before, at, after = turn(number)
        for name, values in lines.items():
            color = f"C{FRAMEWORKS.index(name)}"
            axes.plot(GRID, values, color=color)
        ends = sorted(lines, key=lambda name: lines[name][-1])
        lowest = -inf
        for name in ends:
            color = f"C{FRAMEWORKS.index(name)}"
            lowest = max(lines[name][-1], lowest + 0.16)
            where = {"xytext": (4, 0), "va": "center"}
            label(axes, 1.0, lowest, name, color, **where)
        axes.axvline(at, color="grey", alpha=0.6, ls=":")
        axes.set(xlabel=xlabel, xlim=(0, 1.22), ylim=(-0.05, 1.12))
        axes.set_xticks((0, 0.25, 0.5, 0.75, 1))
        axes.set_title(f"{title}: {before}, from {at:.2f} on {after}")
    panels[1].set_ylabel("score")
    return fig


# --- "GRPO" out of the box ------------------------------------------------


@dataclass(frozen=True)
class Defaults:
    """What one framework does when GRPO is chosen and nothing else.

    `reduce` is what a token's loss is divided by: "tokens" of the step,
    tokens of the "micro"-batch (times their number), or of its own
    "response" (times their number). `beta` weighs k3 in the loss,
    `reward_kl` k1 in the reward. `cap` zeroes a whole response whose
    probability ratio trainer / engine exceeds it, else multiplies by the
    ratio; `token_cap` does so token by token; None ignores the ratio.
    `engine_old`: the engine's log-probs are PPO's old policy, so that the
    clip acts on trainer / engine.
    """

    reduce: str
    eps: float = 1e-6
    group: bool = True  # minus the group's mean, over its sample std
    whiten: bool = False  # then over all tokens of the batch
    beta: float = 0.0
    reward_kl: float = 0.0
    low: float = 0.2
    high: float = 0.2
    dual: float = inf
    cap: float | None = None
    token_cap: float | None = None
    engine_old: bool = False


DEFAULTS = {
    "verl": Defaults("tokens", dual=3.0),
    "TRL": Defaults("tokens", eps=1e-4, cap=3.0),
    "Unsloth": Defaults("micro", eps=1e-4, beta=0.001),
    "slime": Defaults("response"),
    "AReaL, its GSM8K recipe": Defaults(
        "tokens", eps=1e-5, whiten=True, low=0.4, high=0.4, token_cap=5.0
    ),
    "AReaL, bare dataclass": Defaults(
        "tokens", group=False, reward_kl=0.1, engine_old=True
    ),
}


@dataclass(frozen=True)
class Batch:
    """Responses of one optimiser step, group after group.

    rewards: shape (P, G). lengths: (P * G,), tokens of each response.
    micro: responses in one micro-batch. d: reference minus policy, in
    nats, the same at every token.
    """

    rewards: np.ndarray
    lengths: np.ndarray
    micro: int
    d: float

    @property
    def mask(self) -> np.ndarray:
        """Shape (P * G, longest): True on real tokens."""
        return np.arange(self.lengths.max()) < self.lengths[:, None]


def advantages(f: Defaults, b: Batch) -> np.ndarray:
    """Advantage of every token, shape (P * G, longest), 0 on padding."""
    a = b.rewards.astype(float)
    if f.group:
        a = a - a.mean(1, keepdims=True)
        a = a / (b.rewards.std(1, ddof=1, keepdims=True) + f.eps)
    remaining = np.cumsum(b.mask[:, ::-1], 1)[:, ::-1]  # itself included
    a = (a.reshape(-1, 1) + f.reward_kl * b.d * remaining) * b.mask
    if f.whiten:
        tokens = a[b.mask]
        a = (a - tokens.mean()) / (tokens.std(ddof=1) + f.eps) * b.mask
    return a


def weight(f: Defaults, a: np.ndarray, r: np.ndarray) -> np.ndarray:
    """PPO's clip: r where a token keeps its gradient, else 0."""
    up = (a > 0) & (r > 1 + f.high)
    down = (a < 0) & ((r < 1 - f.low) | (r > f.dual))
    return np.where(up | down, 0.0, r)


def denominator(f: Defaults, b: Batch) -> np.ndarray:
    """What each response's token losses are divided by, (P * G, 1)."""
    if f.reduce == "tokens":
        return np.full((len(b.lengths), 1), b.lengths.sum())
    if f.reduce == "response":
        return b.lengths[:, None] * len(b.lengths)
    parts = b.lengths.reshape(-1, b.micro)
    each = np.repeat(parts.sum(1), b.micro)
    return each[:, None] * len(parts)


def coefficients(f: Defaults, b: Batch) -> np.ndarray:
    """First update, r = 1: the push on each token's log-probability.

    Minus the derivative of the minimised loss, shape (P * G, longest);
    positive makes the token likelier.
    """
    a = advantages(f, b)
    push = a * weight(f, a, np.ones_like(a))
    push = push - f.beta * (1 - np.exp(b.d))  # k3's own gradient
    return push * b.mask / denominator(f, b)


EXAMPLE = Batch(
    rewards=np.array([[1, 0, 0, 0], [1, 1, 1, 0]]),
    lengths=np.array([4, 8, 6, 10, 6, 4, 10, 40]),
    micro=4,
    d=-0.1,
)
# Response of EXAMPLE by what it is.
SHOWN = {
    "hard, right, 4": 0,
    "hard, wrong, 10": 3,
    "easy, right, 4": 5,
    "easy, wrong, 40": 7,
}


def cosine(x: np.ndarray, y: np.ndarray) -> float:
    """Cosine of the angle between two arrays of one shape."""
    return float((x * y).sum() / np.sqrt((x**2).sum() * (y**2).sum()))


def table_first() -> str:
    """Push on the first token of four responses, and the angle to verl."""
    base = coefficients(DEFAULTS["verl"], EXAMPLE)
    rows = []
    for name, f in DEFAULTS.items():
        c = coefficients(f, EXAMPLE)
        cells = [f"{1e3 * c[i, 0]:+.2f}" for i in SHOWN.values()]
        cells = [cell.replace("-", "−") for cell in cells]
        size = np.sqrt((c**2).sum() / (base**2).sum())
        rows.append([name, *cells, f"{size:.2f}", f"{cosine(c, base):.2f}"])
    heads = ["defaults of", *SHOWN, "length / verl's", "cosine with verl"]
    return markdown_table(heads, rows)


def mismatch(f: Defaults, ratio: float, tokens: int) -> float:
    """Factor on a right response's tokens for a trainer / engine `ratio`.

    `ratio` is of the whole response, spread evenly over its tokens; the
    advantage is positive, the first update.
    """
    each = ratio ** (1 / tokens)
    if f.cap is not None:
        return ratio if ratio <= f.cap else 0.0
    if f.token_cap is not None:
        return each if each <= f.token_cap else 0.0
    if f.engine_old:
        return float(weight(f, np.array(1.0), np.array(each)))
    return 1.0


LATER = {  # (advantage, ratio to the old policy)
    "A = +1, r = 1.3": (1.0, 1.3),
    "A = −1, r = 0.7": (-1.0, 0.7),
    "A = −1, r = 5": (-1.0, 5.0),
}
ENGINE = {"engine ratio 2": 2.0, "engine ratio 4": 4.0}


def table_later() -> str:
    """What multiplies the advantage once the ratios differ from 1."""
    rows = []
    for name, f in DEFAULTS.items():
        cells = [
            weight(f, np.array(a), np.array(r)) for a, r in LATER.values()
        ]
        cells += [mismatch(f, ratio, 10) for ratio in ENGINE.values()]
        rows.append([name, *(f"{float(c):.2f}" for c in cells)])
    return markdown_table(["defaults of", *LATER, *ENGINE], rows)
