"""Every query has its own environment image: what do the pulls cost?

Page:      docs/rollouts/gui-agent-images.md
Source:    Own model. The farthest-next-use rule is Belady's (1966).
Notation:  Q prompts a step, G members of a group, one image a prompt; an
           image is a list of layers, each with an id and a size; together:
           a group shares a node; scatter: its members do not.
Units:     sizes in GB, rates in GB/s (unpacking included), times in s.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from matplotlib.figure import Figure

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
class Disk:
    """The layers on one node, under a budget in GB.

    Args:
        budget: GB.
        worth: Value of keeping a layer; the lowest goes first.
    """

    def __init__(self, budget: float, worth: Callable[[Layer], float]):
        self.budget, self.worth = budget, worth
        self.held: dict[Layer, float] = {}

    def load(self, wanted: dict[Layer, float], keep: set) -> list[Layer]:
        """Bring layers in; return those that had to be pulled, in order.

        Raises:
            ValueError: What is wanted or in `keep` exceeds the budget.
        """
        missing = [x for x in wanted if x not in self.held]
        self.held |= wanted
        safe = keep | wanted.keys()
        while sum(self.held.values()) > self.budget + 1e-9:
            free = self.held.keys() - safe
            if not free:
                raise ValueError("the layers in use exceed the disk")
            del self.held[min(sorted(free), key=self.worth)]
        return missing


# --8<-- [end:disk]


@dataclass(frozen=True)
class Setup:
    """A cluster, its images and its episodes."""

    nodes: int = 16
    seats: int = 24  # environments a node can run
    link: float = 0.25
    registry: float = 1.25
    disk: float = 150.0
    prompts: int = 32
    group: int = 8
    steps: int = 30
    warmup: int = 5  # steps that are not measured
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
    load: np.ndarray,
    seats: int,
    disks: Sequence[Disk],
    how: str,
) -> list[int]:
    """Nodes for the members of one group; adds them to `load`.

    Args:
        image: Its layers and their sizes.
        members: G.
        load: Environments on each node, shape (nodes,).
        seats: Most environments of a node.
        disks: Of each node.
        how: "scatter": each member to the least loaded node; "together":
            all to the least loaded; "affinity": all to the node with most
            bytes of the image among those with G free seats.
    """
    if how == "scatter":
        chosen = np.argsort(load, kind="stable")[:members].tolist()
    else:
        had = [sum(image[x] for x in image if x in d.held) for d in disks]
        full = load + members > seats
        order = np.lexsort((load, -np.array(had), full))
        if how == "together":
            order = np.argsort(load, kind="stable")
        chosen = [int(order[0])] * members
    np.add.at(load, chosen, 1)
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


@dataclass
class Record:
    """One step: shapes (prompts, group) unless it says otherwise."""

    waits: np.ndarray
    episodes: np.ndarray
    time: float  # of the rollout, s
    missing: float  # GB pulled by all nodes
    wanted: float  # GB wanted, each layer once a node
    egress: float  # GB that left the registry
    pull: float  # s from the first byte to the last
    own: np.ndarray  # GB of the prompt's whole image, (prompts,)


# --8<-- [start:step]
def rates(
    s: Setup, p: Policy, pulled: list[list[tuple[Layer, float]]], old: set
) -> tuple[float, float]:
    """GB that leave the registry, and the rate at which nodes see it.

    Args:
        s: Has the registry's rate.
        p: With `peers`, a layer leaves the registry at most once, and not
            at all if a node had it (`old`): an ideal swarm.
        pulled: For each node its missing layers and their sizes.
        old: Layers that some node held before.
    """
    every = [pair for node in pulled for pair in node]
    total = sum(size for _, size in every)
    if not p.peers or not total:
        return total, s.registry
    egress = sum(size for x, size in dict(every).items() if x not in old)
    return egress, s.registry * total / max(egress, 1e-12)


# --8<-- [end:step]


def simulate(s: Setup, p: Policy, seed: int = 0) -> list[Record]:
    """Synchronous steps: place, pull, run all episodes, train.

    With `ahead`, step k + 1 is placed when step k has its images, and its
    pulls run until step k and the update are over.
    """
    w = world(s, np.random.default_rng(seed), p.shared)
    stamp: dict[Layer, int] = {}
    disks = [
        Disk(s.disk, lambda x: stamp.get(x, -1)) for _ in range(s.nodes)
    ]
    before: list[set] = [set() for _ in disks]
    lead, records = 0.0, []
    for images, episodes in zip(w.order, w.episodes, strict=True):
        load = np.zeros(s.nodes, int)
        nodes = [
            place(image, s.group, load, s.seats, disks, p.place)
            for image in images
        ]
        wanted: list[dict[Layer, float]] = [{} for _ in disks]
        for image, chosen in zip(images, nodes, strict=True):
            for node in dict.fromkeys(chosen):
                wanted[node] |= image
                stamp |= dict.fromkeys(image, len(records))
        old = {x for disk in disks for x in disk.held}
        pulled = []
        for disk, want, last in zip(disks, wanted, before, strict=True):
            new = disk.load(want, last if p.ahead else set())
            pulled.append([(x, p.touched * want[x]) for x in new])
        before = [set(want) for want in wanted]
        egress, registry = rates(s, p, pulled, old)
        sizes = [[size for _, size in node] for node in pulled]
        times = arrivals(sizes, s.link, registry)
        ready = [
            dict(zip([x for x, _ in node], t, strict=True))
            for node, t in zip(pulled, times, strict=True)
        ]
        waits = np.array(
            [
                [max(ready[n].get(x, 0.0) for x in image) for n in chosen]
                for image, chosen in zip(images, nodes, strict=True)
            ]
        )
        waits = np.maximum(waits - lead, 0)
        pull = max((t[-1] for t in times if len(t)), default=0.0)
        time = float((waits + episodes).max())
        records.append(
            Record(
                waits,
                episodes,
                time,
                sum(map(sum, sizes)),
                sum(sum(want.values()) for want in wanted) * p.touched,
                egress,
                pull,
                np.array([sum(image.values()) for image in images]),
            )
        )
        if p.ahead:  # the links are free again before the step is over
            lead = time + s.train - max(pull - lead, 0)
    return records


def measure(s: Setup, records: list[Record]) -> dict[str, float]:
    """Means over the steps after the warm-up.

    Returns:
        "found": share of the wanted bytes that were there; "ready": share
        of members that did not wait; "egress" GB a step; "mean" and "last"
        wait in s; "added": s by which the rollout is longer than without
        pulls; "share": that over the rollout; "slots": share of a seat's
        time that waits, if nothing waited for the slowest.
    """
    kept = records[s.warmup :]
    bare = np.mean([r.episodes.max() for r in kept])
    time = np.mean([r.time for r in kept])
    mean = np.mean([r.waits.mean() for r in kept])
    busy = np.mean([r.episodes.mean() for r in kept])
    wanted = sum(r.wanted for r in kept)
    return {
        "found": 1 - sum(r.missing for r in kept) / wanted,
        "ready": float(np.mean([(r.waits <= 0).mean() for r in kept])),
        "egress": float(np.mean([r.egress for r in kept])),
        "mean": float(mean),
        "last": float(np.mean([r.waits.max() for r in kept])),
        "added": float(time - bare),
        "share": float(1 - bare / time),
        "slots": float(mean / (mean + busy)),
    }
