"""Every query has its own environment image: what do the pulls cost?

Page:      docs/rollouts/gui-agent-images.md
Source:    Own model. The farthest-next-use rule is Belady's (1966).
Notation:  Q prompts a step, G members of a group, one image a prompt; an
           image is a list of layers, each with an id and a size; together:
           a group shares a node; scatter: its members do not.
Units:     sizes in GB, rates in GB/s (unpacking included), times in s.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from heapq import heapify, heappop

import numpy as np
from matplotlib.figure import Figure

from snippets.estimate import SEEDS, Estimate
from snippets.show import label, markdown_table, new_figure

Layer = tuple[str, int]
Image = tuple[Layer, ...]


# --8<-- [start:arrivals]
def arrivals(
    pulls: Sequence[Sequence[float]], link: float, registry: float
) -> list[np.ndarray]:
    """When each layer is on its node, if all start to pull at time 0.

    Args:
        pulls: For each node the sizes of its missing layers, in order.
        link: What one node can fetch and unpack, GB/s.
        registry: What the registry can send to all nodes together, GB/s;
            shared equally by the nodes that still pull.

    Returns:
        For each node the times, in s, at which its layers are complete.
    """
    ends = np.sort([sum(sizes) for sizes in pulls])
    volume = np.concatenate([[0.0], ends])  # GB that a busy node has got
    busy = len(pulls) - np.arange(len(pulls))  # nodes that want more
    pace = np.maximum(1 / link, busy / registry)  # s for one more GB
    clock = np.concatenate([[0.0], np.cumsum(np.diff(volume) * pace)])
    return [np.interp(np.cumsum(sizes), volume, clock) for sizes in pulls]


# --8<-- [end:arrivals]


# --8<-- [start:disk]
@dataclass
class Disk:
    """The layers on one node, under a budget in GB.

    `worth` is the value of keeping a layer: the lowest goes first. The
    last step that used it gives LRU.
    """

    budget: float
    worth: Callable[[Layer], float]
    held: dict[Layer, float] = field(default_factory=dict)

    def load(self, wanted: dict[Layer, float], keep: set) -> list[Layer]:
        """Bring layers in; return those that had to be pulled, in order.

        Raises:
            ValueError: What is wanted or in `keep` exceeds the budget.
        """
        missing = [x for x in wanted if x not in self.held]
        self.held |= wanted
        over = sum(self.held.values()) - self.budget
        free = self.held.keys() - keep - wanted.keys() if over > 0 else ()
        heap = [(self.worth(x), x) for x in free]  # of equal worth: by name
        heapify(heap)
        while over > 0 and heap:
            over -= self.held.pop(heappop(heap)[1])
        if over > 1e-9:
            raise ValueError("the layers in use exceed the disk")
        return missing


# --8<-- [end:disk]


@dataclass(frozen=True)
class Setup:
    """A cluster, its images and its episodes."""

    nodes: int = 16
    seats: int = 24  # environments a node can run
    link: float = 0.25
    registry: float = 1.25
    disk: float = 250.0
    prompts: int = 32
    group: int = 8
    steps: int = 16
    warmup: int = 4  # steps that are not measured
    train: float = 120.0  # s between two rollouts
    bases: int = 4
    apps: int = 40
    images: int | None = None  # None: every prompt has its own


@dataclass(frozen=True)
class Policy:
    """What is done about the pulls."""

    shared: bool = True  # layers; else each image is one file
    place: str = "scatter"
    ahead: bool = False  # pull for the next step during this one
    peers: bool = False  # nodes copy from one another
    touched: float = 1.0  # share of each layer that is fetched at all


# --8<-- [start:place]
def place(
    image: dict[Layer, float],
    members: int,
    load: list[int],
    seats: int,
    disks: Sequence[Disk],
    how: str,
) -> list[int]:
    """Nodes for the members of one group; adds them to `load`.

    Args:
        image: Its layers and their sizes.
        members: G.
        load: Environments on each node.
        seats: Most environments of a node.
        disks: Of each node.
        how: "scatter": each member to the least loaded node; "together":
            all to the least loaded; "affinity": all to the node with most
            bytes of the image among those with G free seats.
    """
    order = sorted(range(len(load)), key=load.__getitem__)
    if how == "affinity":
        had = [sum(image[x] for x in image if x in d.held) for d in disks]
        full = [at + members > seats for at in load]
        order.sort(key=lambda n: (full[n], -had[n]))
    width = len(order) if how == "scatter" else 1
    chosen = [order[i % width] for i in range(members)]
    for node in chosen:
        load[node] += 1
    return chosen


# --8<-- [end:place]


@dataclass
class World:
    """Images in the order of the prompts, and the episodes' lengths."""

    order: list[list[dict[Layer, float]]]  # steps, prompts: layer -> GB
    episodes: np.ndarray  # (steps, prompts, group), s


def world(s: Setup, rng: np.random.Generator, shared: bool) -> World:
    """Draw images and episodes.

    Args:
        s: Sizes of everything.
        rng: Source of the draws.
        shared: False joins the layers of each image into one file.

    Returns:
        Base 4 GB, application 2 GB (popularity 1 / rank), own layer
        lognormal with median 0.5 GB and sigma 1; episodes lognormal with
        median 240 s and sigma 0.5. With s.images, prompts draw one of that
        many images with popularity 1 / rank.
    """
    count = s.images or s.steps * s.prompts
    weight = 1 / np.arange(1, s.apps + 1)
    app = rng.choice(s.apps, count, p=weight / weight.sum())
    own = 0.5 * np.exp(rng.normal(size=count))
    catalogue = [
        {("base", int(a) % s.bases): 4.0, ("app", int(a)): 2.0}
        | {("own", i): float(own[i])}
        for i, a in enumerate(app)
    ]
    if not shared:
        catalogue = [
            {("file", i): sum(image.values())}
            for i, image in enumerate(catalogue)
        ]
    pick = np.arange(s.steps * s.prompts)
    if s.images:
        weight = 1 / np.arange(1, count + 1)
        pick = rng.choice(count, len(pick), p=weight / weight.sum())
    rows = pick.reshape(s.steps, s.prompts)
    shape = (s.steps, s.prompts, s.group)
    episodes = 240 * np.exp(0.5 * rng.normal(size=shape))
    return World([[catalogue[i] for i in row] for row in rows], episodes)


Pulled = list[tuple[Layer, float]]


@dataclass
class Step:
    """One step: who runs where, and what each node must fetch."""

    images: list[dict[Layer, float]]  # of the prompts
    nodes: list[list[int]]  # of each prompt's members
    pulled: list[Pulled]  # of each node, in order
    wanted: float  # GB, each layer once a node
    old: set[Layer]  # layers that some node held before
    episodes: np.ndarray  # (prompts, group), s


@cache
def plan(s: Setup, p: Policy, seed: int = 0) -> list[Step]:
    """Place every step's groups and load the disks (LRU); no clock yet.

    With `ahead` the layers of the step before stay, for it still runs.
    """
    w = world(s, np.random.default_rng(seed), p.shared)
    stamps: list[dict] = [{} for _ in range(s.nodes)]  # last step of use
    disks = [Disk(s.disk, stamp.__getitem__) for stamp in stamps]
    last: list[set] = [set() for _ in disks]
    steps = []
    for images, episodes in zip(w.order, w.episodes, strict=True):
        load = [0] * s.nodes
        args = s.group, load, s.seats, disks, p.place
        nodes = [place(image, *args) for image in images]
        wanted: list[dict[Layer, float]] = [{} for _ in disks]
        for image, chosen in zip(images, nodes, strict=True):
            now = dict.fromkeys(image, len(steps))
            for node in dict.fromkeys(chosen):
                wanted[node].update(image)
                stamps[node].update(now)
        old = {x for disk in disks for x in disk.held}
        pulled = []
        for disk, want, before in zip(disks, wanted, last, strict=True):
            new = disk.load(want, before if p.ahead else set())
            pulled.append([(x, want[x]) for x in new])
        last = [set(want) for want in wanted]
        need = sum(sum(want.values()) for want in wanted)
        steps.append(Step(images, nodes, pulled, need, old, episodes))
    return steps


# --8<-- [start:egress]
def egress(step: Step, p: Policy) -> float:
    """GB that leave the registry in a step.

    Args:
        step: What each node must fetch, and what some node already held.
        p: With `peers`, an ideal swarm: a layer leaves the registry once,
            and not at all if a node had it; copies between nodes cost
            nothing but the receiver's link.
    """
    pairs = [pair for node in step.pulled for pair in node]
    if p.peers:
        pairs = [(x, z) for x, z in dict(pairs).items() if x not in step.old]
    return p.touched * sum(size for _, size in pairs)


# --8<-- [end:egress]


# --8<-- [start:waits]
def waits(step: Step, s: Setup, p: Policy) -> tuple[np.ndarray, float]:
    """When every member's image is complete, from the first pull on.

    Returns:
        Seconds, shape (prompts, group), and the time of the last byte.
    """
    sizes = [[p.touched * z for _, z in node] for node in step.pulled]
    sent = max(egress(step, p), 1e-9)
    swarm = max(sum(map(sum, sizes)) / sent, 1.0)  # copies of each byte
    times = arrivals(sizes, s.link, s.registry * swarm)
    ready: dict[Layer, dict[int, float]] = defaultdict(dict)
    for n, (node, at) in enumerate(zip(step.pulled, times, strict=True)):
        for (layer, _), t in zip(node, at.tolist(), strict=True):
            ready[layer][n] = t
    found = []
    for image, chosen in zip(step.images, step.nodes, strict=True):
        late = [ready[x] for x in image if x in ready]
        at = {
            n: max([x.get(n, 0.0) for x in late] + [0.0]) for n in set(chosen)
        }
        found.append([at[n] for n in chosen])
    end = max((t[-1] for t in times if len(t)), default=0.0)
    return np.array(found), float(end)


# --8<-- [end:waits]


# --8<-- [start:replay]
def replay(
    steps: list[Step], s: Setup, p: Policy
) -> list[tuple[np.ndarray, float]]:
    """Run the clock: pull, run all episodes, train, again.

    With `ahead` the pulls of step k + 1 begin when those of step k are
    done, so that they have a lead over the start of step k + 1.

    Returns:
        For each step the members' waits in s, shape (prompts, group), and
        the rollout's wall time in s.
    """
    lead, out = 0.0, []
    for step in steps:
        ready, end = waits(step, s, p)
        wait = np.maximum(ready - lead, 0)
        time = float((wait + step.episodes).max())
        out.append((wait, time))
        if p.ahead:
            lead = time + s.train - max(end - lead, 0)
    return out


# --8<-- [end:replay]


@cache
def measure(s: Setup, p: Policy, seed: int = 0) -> dict[str, float]:
    """Means over the steps after the warm-up.

    Returns:
        "found": share of the wanted bytes that were there; "ready": share
        of members that wait for no pull; "egress" GB a step; "mean" and
        "last" wait in s; "bare": rollout in s without any pull; "added":
        s on top of it; "share": of it in the rollout; "seats": share of a
        seat's time that waits, if no member waits for another.
    """
    # timing does not change the plan, so it is drawn once
    fixed = replace(s, link=1.0, registry=1.0, train=0.0)
    steps = plan(fixed, replace(p, peers=False, touched=1.0), seed)
    run = replay(steps, s, p)[s.warmup :]
    kept = steps[s.warmup :]
    missing = sum(size for k in kept for n in k.pulled for _, size in n)
    ready = []
    for k in kept:
        gone = [{x for x, _ in node} for node in k.pulled]
        for image, chosen in zip(k.images, k.nodes, strict=True):
            ready += [gone[n].isdisjoint(image) for n in chosen]
    mean = np.mean([wait.mean() for wait, _ in run])
    busy = np.mean([k.episodes.mean() for k in kept])
    bare = np.mean([k.episodes.max() for k in kept])
    added = np.mean([time for _, time in run]) - bare
    found = {
        "found": 1 - missing / sum(k.wanted for k in kept),
        "ready": np.mean(ready),
        "egress": np.mean([egress(k, p) for k in kept]),
        "mean": mean,
        "last": np.mean([wait.max() for wait, _ in run]),
        "bare": bare,
        "added": added,
        "share": added / (added + bare),
        "seats": mean / (mean + busy),
    }
    return {key: float(value) for key, value in found.items()}


@cache
def estimates(
    s: Setup, p: Policy, seeds: Iterable[int] = SEEDS
) -> dict[str, Estimate]:
    """What `measure` finds, over seeds."""
    each = [measure(s, p, seed) for seed in seeds]
    return {key: Estimate(tuple(m[key] for m in each)) for key in each[0]}


def shown(estimate: Estimate, digits: int = 0) -> str:
    """Mean and spread, or "0" if it is 0 for every seed."""
    if max(map(abs, estimate.values)) < 1e-9:
        return "0"
    return f"{estimate:,.{digits}f}"


def percent(estimate: Estimate, digits: int = 0) -> str:
    """The same of a share, in per cent."""
    parts = Estimate(tuple(100 * x for x in estimate.values))
    return f"{shown(parts, digits)} %"


# --8<-- [start:scan]
def lru_hits(share: float) -> float:
    """LRU's hit rate if the epoch is a new random order each time.

    Args:
        share: Images that fit, over all images.

    Returns:
        P(u * w >= 1 - share) for independent uniform u, w: what was seen
        at u of one epoch and again at 1 - w of the next has
        1 - u * w of all images in between (limit of many images).
    """
    a = 1 - share
    return 1 - a + (a * float(np.log(a)) if a > 0 else 0.0)


# --8<-- [end:scan]


def hits(order: Sequence[int], fit: int, rule: str, skip: int) -> float:
    """Hit rate of a disk for `fit` images of equal size.

    Args:
        order: Image ids as they are needed.
        fit: Images on the disk.
        rule: "LRU", "LFU" or "farthest next use" (Belady).
        skip: Accesses that are not counted.
    """
    seen: Counter = Counter()
    last: dict[int, int] = {}
    later: dict[int, int] = {}
    following = [0] * len(order)
    for t in range(len(order) - 1, -1, -1):
        following[t] = later.get(order[t], len(order) * 2)
        later[order[t]] = t
    coming: dict[int, int] = {}
    worth = {
        "LRU": lambda x: last[x[1]],
        "LFU": lambda x: seen[x[1]] + last[x[1]] / (len(order) + 1),
        "farthest next use": lambda x: -coming[x[1]],
    }[rule]
    disk, hit = Disk(fit, worth), 0
    for t, image in enumerate(order):
        seen[image] += 1
        last[image], coming[image] = t, following[t]
        missed = disk.load({("own", image): 1.0}, set())
        hit += not missed and t >= skip
    return hit / (len(order) - skip)


def shuffled(images: int, epochs: int, rng: np.random.Generator) -> list:
    """Every image once an epoch, in a new order each time."""
    return [int(i) for _ in range(epochs) for i in rng.permutation(images)]


def group_advantages(rewards: Sequence[float]) -> np.ndarray:
    """GRPO's (r - mean) / standard deviation (n - 1) of one group.

    A NaN reward is a member that is left out: it gets NaN. Equal rewards
    give 0.
    """
    r = np.array(rewards, float)
    spread = np.nanstd(r, ddof=1)
    return (r - np.nanmean(r)) / (spread if spread > 0 else 1.0)


def timed_out(
    s: Setup, p: Policy, limit: float, seed: int = 0
) -> dict[str, float]:
    """Members whose image takes longer than `limit` seconds.

    Returns:
        "dropped": their share; "kept" and "lost": mean size in GB of the
        images of members kept and dropped; "hit": share of groups that
        lose a member; "whole": share that lose all.
    """
    steps = plan(s, p, seed)[s.warmup :]
    late = np.array([w for w, _ in replay(steps, s, p)]) > limit
    size = np.array([[sum(i.values()) for i in k.images] for k in steps])
    each = np.broadcast_to(size[..., None], late.shape)
    return {
        "dropped": float(late.mean()),
        "kept": float(each[~late].mean()),
        "lost": float(each[late].mean()) if late.any() else float("nan"),
        "hit": float(late.any(-1).mean()),
        "whole": float(late.all(-1).mean()),
    }


def design_effect(same: int, rho: float) -> float:
    """Variance of a batch mean over that of independent prompts.

    Args:
        same: Prompts of the batch that share an image.
        rho: Correlation of two prompts of one image.
    """
    return 1 + (same - 1) * rho


# --- Tables and figures ----------------------------------------------------

FILE = Policy(shared=False)
LAYERS = Policy()
POLICIES: dict[str, Policy] = {
    "one file, scatter": FILE,
    "… of which 50 % is touched": replace(FILE, touched=0.5),
    "… of which 6.4 % is touched": replace(FILE, touched=0.064),
    "… copied between nodes": replace(FILE, peers=True),
    "one file, together": replace(FILE, place="together"),
    "layers, scatter": LAYERS,
    "layers, together": replace(LAYERS, place="together"),
    "layers, affinity": replace(LAYERS, place="affinity"),
    "layers, together, copied between nodes": replace(
        LAYERS, place="together", peers=True
    ),
    "one file, scatter, prefetch": replace(FILE, ahead=True),
    "one file, together, prefetch": replace(
        FILE, place="together", ahead=True
    ),
    "layers, scatter, prefetch": replace(LAYERS, ahead=True),
}
REUSE = Setup(images=64, steps=24, warmup=10)


def table_policies() -> str:
    """Every prompt has its own image: what each policy costs."""
    rows = []
    for name, p in POLICIES.items():
        m = estimates(Setup(), p)
        seconds = (shown(m[k]) for k in ("egress", "mean", "last", "added"))
        shares = (percent(m[k]) for k in ("share", "seats"))
        rows.append((name, percent(m["found"]), *seconds, *shares))
    heads = ["images, placement", "bytes there", "GB sent", "mean wait"]
    heads += ["last wait", "rollout longer by", "its share", "seat time"]
    return markdown_table(heads, rows)


def table_reuse() -> str:
    """64 images with popularity 1 / rank: hit rates and waits."""
    rows = []
    for kind, base in (("one file", FILE), ("layers", LAYERS)):
        for how in ("scatter", "together", "affinity"):
            m = estimates(REUSE, replace(base, place=how))
            rows.append(
                (
                    f"{kind}, {how}",
                    percent(m["ready"]),
                    percent(m["found"]),
                    shown(m["egress"]),
                    shown(m["mean"], 1),
                    shown(m["added"], 1),
                )
            )
    heads = ["images, placement", "members that wait for no pull"]
    heads += ["bytes there", "GB sent", "mean wait", "rollout longer by"]
    return markdown_table(heads, rows)


SCAN = 200
RULES = ("LRU", "LFU", "farthest next use")


@cache
def scans(seed: int, epochs: int = 3) -> dict[tuple[str, float], list[float]]:
    """Hit rates of RULES: ("shuffled" or "popular", share that fits)."""
    rng = np.random.default_rng(seed)
    weight = 1 / np.arange(1, SCAN + 1)
    orders = {
        "shuffled": shuffled(SCAN, epochs, rng),
        "popular": rng.choice(
            SCAN, SCAN * epochs, p=weight / weight.sum()
        ).tolist(),
    }
    return {
        (name, share): [
            hits(order, round(share * SCAN), rule, SCAN) for rule in RULES
        ]
        for name, order in orders.items()
        for share in (0.25, 0.5, 0.75)
    }


def table_scan() -> str:
    """Hit rates: a new order each epoch, and independent popular draws."""
    rows = []
    for share in (0.25, 0.5, 0.75):
        exact = f"{100 * share:.0f} %", f"{100 * lru_hits(share):.1f} %"
        cells = [
            percent(Estimate(column), 0)
            for kind in ("shuffled", "popular")
            for column in zip(
                *(scans(seed)[kind, share] for seed in SEEDS), strict=True
            )
        ]
        rows.append((*exact, *cells))
    heads = ["images that fit", "shuffled: LRU, formula", "LRU", "LFU"]
    heads += ["Belady", "popular: LRU", "LFU", "Belady"]
    return markdown_table(heads, rows)


RATES = (0.06, 0.1, 0.15, 0.2, 0.3, 0.5, 0.8, 1.25, 2.5, 5.0)


@cache
def sweep(how: str, ahead: bool) -> list[float]:
    """Added s of shared layers at each of RATES, one seed."""
    p = Policy(place=how, ahead=ahead)
    return [measure(replace(Setup(), registry=r), p)["added"] for r in RATES]


def figure_prefetch() -> Figure:
    """Added wall time against the registry's rate, with and without."""
    fig, axes = new_figure(3.4)
    for how, color in (("scatter", "C1"), ("together", "C0")):
        for ahead, style in ((False, "--"), (True, "-")):
            line = dict(color=color, ls=style, marker="o", ms=3)
            axes.plot(RATES, np.array(sweep(how, ahead)) / 60, **line)
    label(axes, 0.3, 11.5, "scatter", "C1")
    at = dict(xytext=(0, 0), va="bottom")
    label(axes, 0.033, 17, "scatter,\nprefetch", "C1", **at)
    label(axes, 0.033, 7, "together", "C0", **at)
    label(axes, 0.033, -2.7, "together, prefetch", "C0", **at)
    axes.set(
        xscale="log",
        xlabel="registry, GB/s",
        ylabel="rollout longer by, min",
        ylim=(-3, 30),
        xlim=(0.03, 5.5),
    )
    axes.set_xticks((0.1, 0.3, 1, 3), ("0.1", "0.3", "1", "3"))
    axes.minorticks_off()
    axes.set_title("Prefetch hides pulls that fit in a step")
    return fig
