"""How does HybridFlow reshard the actor, and how does it search a mapping?

Page:      docs/rollouts/verl-hybrid-engine.md
Source:    Sheng et al. 2024 (arXiv 2409.19256): §4.1 dispatch, §5.1 sizes,
           §5.3 grouping and Figure 8, Table 2 volumes, §6 and Algorithm 1
           mapping.
Notation:  p, t, d: pipeline, tensor and data parallel sizes in training;
           p_g, t_g, d_g: in generation; M: bytes of the actor's weights;
           N: GPUs of the actor, N = p t d = p_g t_g d_g d.
Units:     shares of M for volumes; GB = 1e9 bytes; seconds (invented) for
           the mapping.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import comb

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from snippets.distributed.grpo_memory import QWEN25_7B, parameters
from snippets.show import label, markdown_table, new_figure

SCHEMES = ("DS-Chat", "HybridFlow-V", "HybridFlow")


# --8<-- [start:dispatch]
def dispatch(batch: np.ndarray, dp_rank: Sequence[int]) -> list[np.ndarray]:
    """Worker r gets the chunk of its data-parallel position dp_rank[r].

    batch: (rows, ...), rows divisible by the number of positions.
    """
    chunks = np.split(batch, max(dp_rank) + 1)
    return [chunks[position] for position in dp_rank]


def collect(
    outputs: Sequence[np.ndarray], mask: Sequence[bool]
) -> np.ndarray:
    """Concatenate, in rank order, the outputs of the masked workers."""
    pairs = zip(outputs, mask, strict=True)
    return np.concatenate([out for out, keep in pairs if keep])


# --8<-- [end:dispatch]


# --8<-- [start:layout]
@dataclass(frozen=True)
class Actor:
    """Training p-t-d, generation p_g-t_g-d_g-d, on the same GPUs.

    The weights are a grid of p rows (layers) by t columns (tensor slices).
    Training rank = (replica * p + row) * t + column, and owns that cell.

    Raises:
        ValueError: p_g does not divide p, or t_g does not divide t.
    """

    p: int
    t: int
    d: int
    pg: int
    tg: int

    def __post_init__(self):
        """Refuse sizes whose grids do not nest."""
        if self.p % self.pg or self.t % self.tg:
            raise ValueError(f"{self}: p_g and t_g must divide p and t")

    @property
    def dg(self) -> int:
        """Generation replicas out of each training replica."""
        return self.p * self.t // (self.pg * self.tg)


def block(actor: Actor, rank: int, strided: bool) -> tuple[int, int]:
    """Which (stage, slice) of the p_g x t_g generation grid a rank serves.

    strided: the paper's grouping, members of a generation group p / p_g
    rows and t / t_g columns apart. Otherwise vanilla: consecutive ranks.
    """
    local = rank % (actor.p * actor.t)
    if strided:
        row, column = divmod(local, actor.t)
        return row * actor.pg // actor.p, column * actor.tg // actor.t
    return divmod(local % (actor.pg * actor.tg), actor.tg)


# --8<-- [end:layout]


def owned(actor: Actor, rank: int, scheme: str) -> set[int]:
    """Pieces, each M / N, that a rank holds while training.

    Cell (row, column) is d consecutive pieces. DS-Chat trains with ZeRO-3:
    one piece a rank, no rows and columns.
    """
    if scheme == "DS-Chat":
        return {rank}
    cell = rank % (actor.p * actor.t)
    return set(range(cell * actor.d, (cell + 1) * actor.d))


def needed(actor: Actor, rank: int, scheme: str) -> set[int]:
    """Pieces of the generation block of a rank."""
    stage, part = block(actor, rank, strided=scheme == "HybridFlow")
    high, wide = actor.p // actor.pg, actor.t // actor.tg
    cells = [
        row * actor.t + column
        for row in range(stage * high, (stage + 1) * high)
        for column in range(part * wide, (part + 1) * wide)
    ]
    return {c * actor.d + i for c in cells for i in range(actor.d)}


# --8<-- [start:transition]
def gather_group(actor: Actor, rank: int, scheme: str) -> list[int]:
    """Ranks of the all-gather: all, the training replica, the micro DP."""
    size = actor.p * actor.t
    first = rank // size * size
    if scheme == "DS-Chat":
        return list(range(size * actor.d))
    ranks = range(first, first + size)
    if scheme == "HybridFlow-V":
        return list(ranks)
    mine = block(actor, rank, strided=True)
    return [r for r in ranks if block(actor, r, strided=True) == mine]


def transition(actor: Actor, scheme: str) -> dict[str, np.ndarray]:
    """Count, for each rank, what training-to-generation moves and keeps.

    Returns:
        Arrays of shape (N,), shares of M: "received" by the all-gather,
        "peak" held at once, "least" that the rank lacks for its block,
        "redundant" = held for training only while generating.
    """
    total = actor.p * actor.t * actor.d
    rows = []
    for rank in range(total):
        own, need = owned(actor, rank, scheme), needed(actor, rank, scheme)
        group = gather_group(actor, rank, scheme)
        pool = set().union(*(owned(actor, r, scheme) for r in group))
        assert need <= pool
        rows.append([pool - own, pool, need - own, own - need])
    names = ("received", "peak", "least", "redundant")
    columns = zip(names, zip(*rows, strict=True), strict=True)
    return {
        n: np.array([len(s) for s in sets]) / total for n, sets in columns
    }


# --8<-- [end:transition]


# --8<-- [start:mapping]
def placements(models: Sequence[str]) -> Iterator[list[list[str]]]:
    """All set partitions: who shares GPUs with whom. Bell(k) of them."""
    if not models:
        yield []
        return
    first, rest = models[0], models[1:]
    for partition in placements(rest):
        yield [[first], *partition]
        for i, group in enumerate(partition):
            yield [*partition[:i], [first, *group], *partition[i + 1 :]]


def allocations(
    total: int, least: Sequence[int]
) -> Iterator[tuple[int, ...]]:
    """All ways to give `total` units to the groups, none below its least."""
    head, tail = least[0], least[1:]
    if not tail:
        if total >= head:
            yield (total,)
        return
    for n in range(head, total - sum(tail) + 1):
        for rest in allocations(total - n, tail):
            yield (n, *rest)


# --8<-- [end:mapping]


# --8<-- [start:cost]
def iteration_time(
    placement: Sequence[Sequence[str]],
    units: Sequence[int],
    stages: Sequence[Mapping[str, tuple[float, float]]],
) -> float:
    """d_cost: sum over stages of the slowest group; in a group, the sum.

    stages[i][model] = (work, floor): seconds = work / units + floor.
    """
    total = 0.0
    for stage in stages:
        times = [
            sum(stage[m][0] / n + stage[m][1] for m in group if m in stage)
            for group, n in zip(placement, units, strict=True)
        ]
        total += max(times)
    return total


# --8<-- [end:cost]

# Invented costs of one PPO iteration: machine-seconds, seconds.
PPO = (
    {"actor": (320.0, 20.0)},
    {"ref": (20.0, 5.0), "reward": (20.0, 5.0), "critic": (20.0, 5.0)},
    {"actor": (120.0, 20.0), "critic": (120.0, 20.0)},
)
MEMORY = {"actor": 80, "critic": 80, "ref": 20, "reward": 20}  # % of one
MODELS = tuple(MEMORY)


def least_units(group: Sequence[str]) -> int:
    """Machines that hold the models of a group (A_min)."""
    return -(-sum(MEMORY[m] for m in group) // 100)


@cache
def search(machines: int) -> tuple[dict[str, tuple[float, tuple]], int]:
    """Best time and allocation of every placement, and how many were tried.

    Placements are named like "actor+ref | critic+reward".
    """
    best, tried = {}, 0
    for placement in placements(MODELS):
        groups = sorted(sorted(g) for g in placement)
        least = [least_units(g) for g in groups]
        for units in allocations(machines, least):
            tried += 1
            time = iteration_time(groups, units, PPO)
            name = " | ".join("+".join(g) for g in groups)
            if name not in best or time < best[name][0]:
                best[name] = time, units
    return best, tried


# -- products ---------------------------------------------------------------

SHAPES = (
    Actor(1, 4, 2, 1, 2),
    Actor(1, 8, 2, 1, 2),
    Actor(1, 8, 2, 1, 8),
    Actor(2, 4, 2, 1, 2),
    Actor(8, 8, 2, 1, 8),
)


def table_volume() -> str:
    """Counted shares of M for several layouts and the three schemes."""
    rows = []
    for a in SHAPES:
        ds, vanilla, paper = (transition(a, s) for s in SCHEMES)
        rows.append(
            [
                f"{a.p}-{a.t}-{a.d} → {a.pg}-{a.tg}-{a.dg}-{a.d}",
                *(f"{x['received'].max():.4g}" for x in (ds, vanilla, paper)),
                f"{vanilla['least'].mean():.4g}",
                f"{paper['peak'].max():.4g}",
                f"{np.count_nonzero(vanilla['redundant'])} of "
                f"{len(vanilla['redundant'])}",
            ]
        )
    heads = [
        "$p$-$t$-$d$ → $p_g$-$t_g$-$d_g$-$d$",
        "DS-Chat",
        "HybridFlow-V",
        "HybridFlow",
        "vanilla, least",
        "HybridFlow peak",
        "vanilla GPUs without overlap",
    ]
    return markdown_table(heads, rows)


BUCKET = 2048 * 2**20  # verl's update_weights_bucket_megabytes


@cache
def synced() -> dict[str, tuple[float, float]]:
    """GB per GPU at a weight sync: received; peak beside the trainer's shard.

    Qwen2.5-7B, 8 GPUs, engine TP 2. In the paper's scheme the trainer's
    shard is part of the block that generates, so only the rest is beside
    it. verl: the engine's slice, one bucket and the largest tensor.
    """
    count = parameters(QWEN25_7B)["total"]
    largest = QWEN25_7B.vocab * QWEN25_7B.hidden
    megatron, zero = Actor(1, 4, 2, 1, 2), "DS-Chat"
    paper = transition(megatron, "HybridFlow")
    ds = transition(megatron, zero)
    export = transition(megatron, "HybridFlow-V")["received"].max()
    shards = transition(Actor(1, 1, 8, 1, 1), zero)["received"].max()
    slice_ = 2 * count / 2
    grown = paper["peak"].max() - 1 / 4
    cases = {
        "paper: Megatron TP 4, strided": (
            2 * count * paper["received"].max(),
            2 * count * grown,
        ),
        "DS-Chat as in Table 2: ZeRO-3, bf16": (
            2 * count * ds["received"].max(),
            2 * count * (ds["peak"].max() - 1 / 8),
        ),
        "verl now: Megatron TP 4, bf16": (
            2 * count * export,
            slice_ + BUCKET + 2 * largest,
        ),
        "verl now: FSDP over 8, fp32 shards": (
            4 * count * shards,
            slice_ + BUCKET + 4 * largest,
        ),
    }
    return {k: (r / 1e9, p / 1e9) for k, (r, p) in cases.items()}


def table_sync() -> str:
    """The same model in the paper's scheme and in verl's current one."""
    rows = [[k, f"{r:.1f}", f"{p:.1f}"] for k, (r, p) in synced().items()]
    return markdown_table(["", "received", "peak beside the shard"], rows)


COLOCATE = "+".join(sorted(MODELS))
STANDALONE = " | ".join(sorted(MODELS))


def table_mapping() -> str:
    """The best placement by brute force as the cluster grows."""
    rows = []
    for machines in (2, 4, 8, 16, 32):
        best, tried = search(machines)
        name = min(best, key=lambda key: best[key][0])
        time, units = best[name]
        alone = best.get(STANDALONE)
        rows.append(
            [
                machines,
                f"{tried:,}",
                name.replace(" | ", " \\| "),
                " + ".join(map(str, units)),
                f"{time:.0f}",
                f"{best[COLOCATE][0]:.0f}",
                f"{alone[0]:.0f}" if alone else "does not fit",
            ]
        )
    heads = [
        "machines",
        "mappings tried",
        "best placement",
        "machines each",
        "s",
        "all colocated, s",
        "all apart, s",
    ]
    return markdown_table(heads, rows, "rrllrrr")


def worst_case(n: int, k: int) -> int:
    """Ways to give n GPUs to k models, each at least one."""
    return comb(n - 1, k - 1)


STATES = {
    "own, used": ("C0", 0.45, "own, used"),
    "received, used": ("C1", 0.35, "received"),
    "own, not used": ("C4", 0.55, "own,\nunused"),
    "received, dropped": ("grey", 0.15, "dropped"),
}


def states(scheme: str) -> list[list[str]]:
    """For the 4 GPUs of one training replica, the state of each quarter.

    Returns:
        [rank][quarter]: a key of STATES, or "" if it never is there.
    """
    actor = Actor(1, 4, 1, 1, 2)
    grid = []
    for rank in range(4):
        own, need = owned(actor, rank, scheme), needed(actor, rank, scheme)
        group = gather_group(actor, rank, scheme)
        pool = set().union(*(owned(actor, r, scheme) for r in group))
        row = []
        for piece in range(4):
            if piece in own:
                row.append("own, used" if piece in need else "own, not used")
            elif piece in pool:
                kept = "used" if piece in need else "dropped"
                row.append(f"received, {kept}")
            else:
                row.append("")
        grid.append(row)
    return grid


def figure_reshard() -> Figure:
    """Which quarter each GPU holds, receives and drops, both groupings."""
    figure, panels = new_figure(5.4, rows=2, sharex=True)
    titles = (
        "Consecutive groups: GPUs 2 and 3 cannot use their own quarter",
        "Strided groups: every GPU's own quarter is in its half",
    )
    for axes, scheme, title in zip(panels, SCHEMES[1:], titles, strict=True):
        names = []
        for rank, row in enumerate(states(scheme)):
            used = [
                i for i, state in enumerate(row) if state.endswith(", used")
            ]
            half = "1-2" if used == [0, 1] else "3-4"
            names.append(f"GPU {rank + 1}\nneeds {half}")
            for piece, state in enumerate(row):
                corner = piece + 0.52, rank + 0.55
                if not state:
                    continue
                color, alpha, word = STATES[state]
                axes.add_patch(
                    Rectangle(
                        corner, 0.96, 0.9, color=color, alpha=alpha, lw=0
                    )
                )
                place = {"ha": "center", "va": "center", "xytext": (0, 0)}
                label(axes, piece + 1, rank + 1, word, **place)
        axes.set(xlim=(0.5, 4.5), ylim=(4.5, 0.5))
        axes.set_title(title)
        axes.set_yticks(range(1, 5), names)
        axes.set_xticks(range(1, 5))
        axes.tick_params(length=0)
        axes.grid(False)
    panels[1].set_xlabel("quarter of the weights (GPU k trains quarter k)")
    return figure
