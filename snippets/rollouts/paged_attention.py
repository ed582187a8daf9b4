"""What are vLLM's PagedAttention and continuous batching?

Page: rollouts/paged-attention

Source: Kwon et al. 2023 (block tables); vLLM's design document of its
    prefix cache (full blocks, append-only tables, LRU queue).
Notation: B tokens per block; logical block j of a sequence lies in physical
    block table[j]; T tokens, d head size.
Units: lengths in tokens, memory in blocks or bytes, time in decode steps.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from statistics import NormalDist

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from snippets.estimate import SEEDS, Estimate
from snippets.rollouts.rollout_long_tail import draw_lengths
from snippets.show import label, markdown_table, new_figure

Array = NDArray[np.float64]

Held = Callable[[int], int]  # response to its blocks


# --8<-- [start:attention]
def paged_attention(
    query: Array, keys: Array, values: Array, table: list[int], tokens: int
) -> Array:
    """Attention of one query over keys and values kept in blocks.

    Args:
        query: (d,) of one head.
        keys: (blocks, B, d), the whole pool, in physical order.
        values: (blocks, B, d).
        table: Physical block of each logical block of the sequence.
        tokens: Length of the sequence; the last block may be partly used.

    Returns:
        (d,) softmax(q k / sqrt(d)) v, by a running maximum and normaliser.
    """
    size, width = keys.shape[1:]
    top, norm, out = -np.inf, 0.0, np.zeros(width)
    for logical, physical in enumerate(table):
        used = min(size, tokens - logical * size)
        score = keys[physical, :used] @ query / width**0.5
        new = max(top, score.max())
        weight = np.exp(score - new)
        shrink = np.exp(top - new)
        norm = norm * shrink + weight.sum()
        out = out * shrink + weight @ values[physical, :used]
        top = new
    return out / norm


# --8<-- [end:attention]


# --8<-- [start:blocks]
@dataclass
class Blocks:
    """Blocks of a KV cache: how many use each, and which go first.

    Attributes:
        size: Tokens per block.
        free: Blocks nobody uses, the next to go first; value: its hash.
        users: How many sequences use a block.
        cached: Hash of (parent hash, tokens of the block, extra) to block.
    """

    size: int
    free: OrderedDict[int, int | None]
    users: dict[int, int] = field(default_factory=dict)
    cached: dict[int, int] = field(default_factory=dict)

    def release(self, table: list[int]) -> None:
        """Give back a sequence's blocks, the last one first to be reused."""
        names = {block: name for name, block in self.cached.items()}
        for block in reversed(table):
            self.users[block] -= 1
            if not self.users[block]:
                self.free[block] = names.get(block)

    def _pop(self) -> int:
        block, name = self.free.popitem(last=False)
        if name is not None:
            del self.cached[name]
        return block


# --8<-- [end:blocks]


# --8<-- [start:cache]
class Pool(Blocks):
    """Blocks shared by hash, evicted least recently used."""

    def hashes(self, tokens: list[int], extra: str = "") -> list[int]:
        """One hash for each full block; it covers all tokens before it."""
        found, parent = [], 0
        for end in range(self.size, len(tokens) + 1, self.size):
            block = tuple(tokens[end - self.size : end])
            parent = hash((parent, block, extra))
            found.append(parent)
        return found

    def allocate(self, tokens: list[int], extra: str = "") -> list[int]:
        """Blocks for a prompt: those found in the cache, then new ones.

        At least one token must be computed for its logits, so a hit ends
        before the last token.

        Raises:
            MemoryError: Not enough free blocks; nothing is changed.
        """
        names, hits = self.hashes(tokens, extra), []
        for name in names[: (len(tokens) - 1) // self.size]:
            if name not in self.cached:
                break
            hits.append(self.cached[name])
        need = -(-len(tokens) // self.size) - len(hits)
        if need > len(self.free) - sum(block in self.free for block in hits):
            raise MemoryError(f"{need} blocks wanted, {len(self.free)} free")
        for block in hits:
            self.free.pop(block, None)
        table = hits + [self._pop() for _ in range(need)]
        for block in table:
            self.users[block] = self.users.get(block, 0) + 1
        for name, block in list(zip(names, table, strict=False))[len(hits) :]:
            self.cached.setdefault(name, block)
        return table


# --8<-- [end:cache]


def pool(blocks: int, size: int = 16) -> Pool:
    """An empty pool."""
    return Pool(size, OrderedDict.fromkeys(range(blocks)))


# --- Sizes ----------------------------------------------------------------


# --8<-- [start:bytes]
def kv_bytes(layers: int, kv_heads: int, head: int, width: int = 2) -> int:
    """Bytes of keys and values per token, all layers; width per number."""
    return 2 * layers * kv_heads * head * width


def latent_bytes(layers: int, latent: int, rope: int, width: int = 2) -> int:
    """Bytes per token with latent attention: one vector, no heads, no V."""
    return layers * (latent + rope) * width


def blocks_of_group(
    prompt: int, response: int, group: int, size: int = 16, share: bool = True
) -> int:
    """Blocks that a group of responses to one prompt needs at its end.

    Args:
        prompt: Tokens of the prompt.
        response: Tokens of each response.
        group: Responses.
        size: Tokens per block.
        share: Full blocks of the prompt are held once, but never the block
            with the prompt's last token.
    """
    alone = -(-(prompt + response) // size)
    if not share:
        return group * alone
    shared = (prompt - 1) // size
    return shared + group * (alone - shared)


# --8<-- [end:bytes]

MODELS = (
    ("OPT-13B, 40 heads", 40, 40, 128),
    ("Llama-3.1-70B, 8 of 64", 80, 8, 128),
    ("Llama-3.1-8B, 8 of 32", 32, 8, 128),
    ("Qwen3-8B, 8 of 32", 36, 8, 128),
    ("Qwen3-30B-A3B, 4 of 32", 48, 4, 128),
)


def table_bytes() -> str:
    """Bytes per token, and what 16,384 tokens take."""
    rows = []
    sizes = [(name, kv_bytes(*shape)) for name, *shape in MODELS]
    sizes.append(("DeepSeek-V3, latent 512 + 64", latent_bytes(61, 512, 64)))
    for name, size in sizes:
        rows.append((name, f"{size:,}", f"{size * 16384 / 1e9:.2f}"))
    heads = ["model, KV heads", "bytes per token", "16,384 tokens, GB"]
    return markdown_table(heads, rows)


MEDIAN, SIGMA, CAP = 3000.0, 0.9, 32768
"""Of the lengths: a lognormal in tokens, cut at the cap."""


def chances() -> Array:
    """Probability of each length 1 to CAP, (CAP,); exact, no draw."""
    edges = np.log((np.arange(1, CAP) + 0.5) / MEDIAN) / SIGMA
    below = [NormalDist().cdf(float(z)) for z in edges]
    return np.diff([0.0, *below, 1.0])


def lengths(seed: int, n: int) -> NDArray[np.int64]:
    """Draw n response lengths, (n,)."""
    rng = np.random.default_rng(seed)
    return draw_lengths(rng, n, 1, MEDIAN, SIGMA, CAP)[:, 0]


def waste(size: int) -> tuple[float, float]:
    """Expected unused tokens of a response, and their share of the memory."""
    p, n = chances(), np.arange(1, CAP + 1)
    held = float(p @ (-(-n // size) * size))
    used = float(p @ n)
    return held - used, 1 - used / held


def table_waste() -> str:
    """Memory that holds no token, by size of the block."""
    rows = []
    for size in (1, 16, 128, 1024, CAP):
        unused, share = waste(size)
        name = f"{size:,}" if size < CAP else "32,768: no paging"
        rows.append((name, f"{unused:,.1f}", f"{100 * share:.2f} %"))
    heads = ["tokens per block", "unused tokens per response", "unused"]
    return markdown_table(heads, rows)


def table_sharing() -> str:
    """Blocks of 16 answers to one prompt, with and without sharing."""
    rows = []
    for prompt, response in ((1024, 512), (1024, 8192), (16384, 512)):
        alone = blocks_of_group(prompt, response, 16, share=False)
        shared = blocks_of_group(prompt, response, 16)
        rows.append(
            (
                f"{prompt:,}",
                f"{response:,}",
                f"{alone:,}",
                f"{shared:,}",
                f"{100 * (1 - shared / alone):.0f} %",
            )
        )
    heads = ["prompt", "response", "blocks, own", "shared prefix", "saved"]
    return markdown_table(heads, rows, "rrrrr")


# --- Serving under a memory limit -----------------------------------------


@dataclass
class Served:
    """Result of one run: time, recomputed tokens, (time, running)."""

    time: int
    recomputed: int
    preemptions: int
    trace: list[tuple[int, int]]

    def lose(self, tokens: list[int]) -> None:
        """Count preempted responses and what each must compute again."""
        self.recomputed += sum(tokens)
        self.preemptions += len(tokens)

    def run(self, rounds: int, size: int, running: int) -> None:
        """Let rounds of `size` decode steps pass."""
        for _ in range(rounds):
            self.trace.append((self.time, running))
            self.time += size


def quiet(left: list[int], free: int | None) -> int:
    """Rounds until one ends or blocks run out: nobody can join before.

    Args:
        left: Rounds that each running response still needs.
        free: Free blocks, each response taking one a round; None: reserved.
    """
    rounds = min(left)
    return rounds if free is None else min(rounds, 1 + free // len(left))


# --8<-- [start:admit]
def preempt(
    blocks: int, running: list[int], queue: deque[int], held: Held
) -> list[int]:
    """Send the youngest back to the queue's head until the rest fits."""
    free, victims = blocks - sum(map(held, running)), []
    while free < 0:
        victims.append(running.pop())
        free += held(victims[-1])
        queue.appendleft(victims[-1])
    return victims


def admit(
    free: int,
    running: list[int],
    queue: deque[int],
    held: Held,
    batch: int | None,
    watermark: int,
) -> None:
    """Start who waits, first come first served, while blocks last."""
    if batch is not None and running:
        return
    while queue and len(running) != batch:
        free -= held(queue[0])
        if free < (watermark if running else 0):
            break
        running.append(queue.popleft())


# --8<-- [end:admit]


# --8<-- [start:serve]
def serve(
    wanted: NDArray[np.int64],
    blocks: int,
    reserve: int | None = None,
    batch: int | None = None,
    watermark: int = 0,
    size: int = 16,
) -> Served:
    """Generate all responses in a limited cache, block by block.

    No prompts, no limit on their number; a preempted response keeps its
    tokens, loses its blocks and comes back only when all of them fit.

    Args:
        wanted: Lengths of the responses, unknown to the scheduler.
        blocks: Blocks of the cache.
        reserve: Blocks reserved for each from the start; None: paged, a
            block when it is needed, the youngest preempted if none is left.
        batch: Fixed number that starts and ends together; None: whoever
            fits starts at once.
        watermark: Blocks left free when a response joins running ones.
        size: Tokens per block: the length of a round in decode steps.
    """
    need = [-(-n // size) for n in wanted.tolist()]
    queue, running, have = deque(range(len(need))), [], [0] * len(need)
    done = Served(0, 0, 0, [(0, 0)])

    def held(i: int) -> int:
        return reserve if reserve else have[i] + 1

    while queue or running:
        victims = preempt(blocks, running, queue, held)
        done.lose([have[i] * size for i in victims])
        free = blocks - sum(map(held, running))
        admit(free, running, queue, held, batch, watermark)
        free = None if reserve else blocks - sum(map(held, running))
        rounds = quiet([need[i] - have[i] for i in running], free)
        for i in running:
            have[i] += rounds
        done.run(rounds, size, len(running))
        running = [i for i in running if have[i] < need[i]]
    return done


# --8<-- [end:serve]

BLOCKS, REQUESTS = 65_536, 512
QWEN = (2 * 8.2e9, 147_456)  # Qwen3-8B: bytes of weights, of a token's cache


@cache
def schedules(seed: int) -> dict[str, Served]:
    """The same 512 responses in 1,048,576 tokens of cache, or a quarter."""
    wanted = lengths(seed, REQUESTS)
    return {
        "reserve 32,768, static batch": serve(wanted, BLOCKS, 2048, 32),
        "reserve 32,768, continuous": serve(wanted, BLOCKS, 2048),
        "paged, continuous": serve(wanted, BLOCKS),
        "paged, a quarter of the cache": serve(wanted, BLOCKS // 4),
        "same, 5 % watermark": serve(
            wanted, BLOCKS // 4, watermark=BLOCKS // 80
        ),
    }


def bytes_read(
    wanted: NDArray[np.int64], steps: int, weights: float, per_token: int
) -> float:
    """Bytes that decoding reads from memory: weights and cache.

    Every step reads the weights once for the whole batch; the k-th token of
    a response reads k tokens of cache, under any schedule. Recomputation
    is left out.

    Args:
        wanted: Lengths of the responses.
        steps: Decode steps of the schedule.
        weights: Bytes of the weights.
        per_token: Bytes of cache per token.
    """
    return (
        steps * weights
        + float((wanted * (wanted + 1) // 2).sum()) * per_token
    )


def measured(seed: int, name: str) -> tuple[float, ...]:
    """One row of the table for one draw of lengths, without its name."""
    wanted, run = lengths(seed, REQUESTS), schedules(seed)[name]
    total = int((-(-wanted // 16) * 16).sum())
    return (
        run.time / 1000,
        total / run.time,
        run.preemptions,
        100 * run.recomputed / total,
        bytes_read(wanted, run.time, *QWEN) / 1e12,
    )


def summary(name: str, seeds: Iterable[int] = SEEDS) -> list[Estimate]:
    """Mean and spread of each column of the table."""
    rows = [measured(seed, name) for seed in seeds]
    return [Estimate(column) for column in zip(*rows, strict=True)]


def table_serve() -> str:
    """Time, concurrency, preemption, bytes read for Qwen3-8B in bf16."""
    rows = []
    for name in schedules(0):
        steps, mean, stops, again, read = summary(name)
        some = any(stops.values)
        rows.append(
            (
                name,
                f"{steps:.0f}",
                f"{mean:.0f}",
                f"{stops:,.0f}" if some else "0",
                f"{again:.0f} %" if some else "0 %",
                f"{read:,.0f}",
            )
        )
    heads = ["schedule", "thousand steps", "running, mean", "preemptions"]
    return markdown_table(heads + ["recomputed", "read, TB"], rows)


def figure_serve() -> Figure:
    """Running responses over time."""
    figure, axes = new_figure(3.0)
    shown = zip(
        schedules(0).items(),
        ("C2", "C1", "C0", "C5"),
        ("-", "-", "-", "--"),
        strict=False,
    )
    for (_, run), color, line in shown:
        time, running = zip(*run.trace, strict=True)
        axes.step(
            np.array(time) / 1000, running, line, where="post", color=color
        )
    axes.set(xlabel="thousand decode steps", ylabel="responses running")
    axes.set(yscale="log", ylim=(0.8, 900))
    axes.set_yticks([1, 10, 100, 512], ["1", "10", "100", "512"])
    axes.set_title("The same memory starts 512 at once, or 32", loc="left")
    label(axes, 8, 230, "paged", "C0")
    label(axes, 30, 100, "paged, a quarter of the cache", "C5")
    label(axes, 40, 36, "reserved, continuous", "C1", xytext=(0, 0))
    label(axes, 150, 36, "reserved, static", "C2", xytext=(0, 0))
    return figure
