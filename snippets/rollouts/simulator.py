"""How does a rollout engine's wall time come about? A discrete-event core.

Page:      none of its own; used by docs/rollouts/rollout-long-tail.md and
           open to every answer on schedules, staleness and caches.
Source:    Own model. One decode step gives every running request one token
           (iteration-level batching, as vLLM and SGLang schedule).
Notation:  S slots; a request holds one slot from admission to its end;
           version = number of optimiser updates made so far.
Units:     time in decode steps of a lone request (step_time is 1 unless a
           function is passed); lengths in tokens.
Not here:  prompt prefill, KV-cache memory, preemption, several replicas.
"""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field


# --8<-- [start:request]
@dataclass(eq=False, slots=True)
class Request:
    """One response, which the engine knows to the end and policies do not.

    Attributes:
        length: Tokens that the finished response has, at least 1.
        group: Number of its prompt; members of a GRPO group share it.
        spans: (version, tokens) in order of generation: which weights
            wrote how many tokens. Up to date when the request is not
            running.
    """

    length: int
    group: int = 0
    spans: list[tuple[int, int]] = field(default_factory=list)

    @property
    def produced(self) -> int:
        """Tokens generated so far."""
        total = 0
        for _, tokens in self.spans:
            total += tokens
        return total

    @property
    def mixed(self) -> bool:
        """True when more than one version of the weights wrote it."""
        spans = self.spans  # versions never fall from one to the next
        return len(spans) > 1 and spans[0][0] < spans[-1][0]


# --8<-- [end:request]


class Engine:
    """Slots, a FIFO queue and a clock; weights can be swapped in flight.

    Attributes:
        time: Now, in units of a lone request's decode step.
        steps: Decode steps made so far.
        version: Version of the weights that write the next token.
        busy: Integral of the number of running requests over time.
        tokens: Tokens generated so far, kept or not.
        reprefilled: Tokens that were generated before an abort and whose
            keys and values had to be computed again on resuming.
        trace: (time, running requests from then on), one per change.
    """

    def __init__(
        self,
        slots: int,
        step_time: Callable[[int], float] | None = None,
        continuous: bool = True,
    ) -> None:
        """An engine that is empty at time 0 with weights of version 0.

        Args:
            slots: Requests that can run at once, at least 1.
            step_time: Duration of one decode step given the number of
                running requests; 1 for any number when left out, the
                memory-bandwidth-bound limit.
            continuous: Whether a freed slot takes the next request at
                once; False waits until the whole batch is done.

        Raises:
            ValueError: slots is below 1.
        """
        if slots < 1:
            raise ValueError(f"slots is {slots}; an engine needs 1 or more")
        self.slots, self.continuous = slots, continuous
        self.step_time = step_time or (lambda running: 1.0)
        self.time, self.steps, self.version = 0.0, 0, 0
        self.busy, self.tokens, self.reprefilled = 0.0, 0, 0
        self.trace: list[tuple[float, int]] = [(0.0, 0)]
        self.queue: deque[Request] = deque()
        self._order = itertools.count()
        self._swapped = 0  # step of the last swap
        # A heap of (step of the end, order, request, step of admission).
        self._running: list[tuple[int, int, Request, int]] = []

    @property
    def running(self) -> int:
        """Number of requests that hold a slot."""
        return len(self._running)

    def submit(self, requests: Iterable[Request]) -> None:
        """Queue requests, first come first served; free slots fill up.

        Raises:
            ValueError: A request has no token left to generate.
        """
        for request in requests:
            if request.produced >= request.length:
                raise ValueError(
                    f"request of length {request.length} has "
                    f"{request.produced} tokens: it is finished"
                )
            self.queue.append(request)
        self._admit()

    def advance(self, until: float = math.inf) -> list[Request]:
        """Run to the next completion, or to the step that reaches `until`.

        Args:
            until: A time; the clock stops at the first end of a decode
                step at or after it (at `until` itself when idle).

        Returns:
            The requests that finished; empty when `until` came first.

        Raises:
            RuntimeError: Nothing runs and `until` is infinite.
        """
        heap = self._running
        if not heap:
            if until == math.inf:
                raise RuntimeError("nothing runs: submit requests first")
            self.time = max(self.time, until)
            return []
        running, now = len(heap), heap[0][0]
        width = self.step_time(running)
        end = self.time + (now - self.steps) * width
        if end > until:
            steps = max(0, math.ceil((until - self.time) / width))
            now, end = self.steps + steps, self.time + steps * width
        self.busy += (end - self.time) * running
        self.tokens += (now - self.steps) * running
        self.time, self.steps = end, now
        done = []
        while heap and heap[0][0] == now:
            done.append(self._close_span(heapq.heappop(heap)))
        if self.queue and done:
            self._admit()
        elif done:
            self.trace.append((end, len(heap)))
        return done

    def swap(self) -> None:
        """Put the next version of the weights under the running requests."""
        for entry in self._running:
            self._close_span(entry)
        self.version += 1
        self._swapped = self.steps

    def abort(self) -> list[Request]:
        """Empty the engine.

        Returns:
            The unfinished requests with the tokens they have: those that
            ran in order of admission, then those still queued.
        """
        ran = sorted(self._running, key=lambda entry: entry[1])
        for entry in ran:
            self._close_span(entry)
        left = [entry[2] for entry in ran] + list(self.queue)
        self._running = []
        self.queue.clear()
        self._note()
        return left

    def _admit(self) -> None:
        if self.queue and (self.continuous or not self._running):
            while self.queue and len(self._running) < self.slots:
                request = self.queue.popleft()
                end = self.steps + request.length
                if request.spans:
                    self.reprefilled += request.produced
                    end -= request.produced
                entry = (end, next(self._order), request, self.steps)
                heapq.heappush(self._running, entry)
        self._note()

    def _close_span(self, entry: tuple[int, int, Request, int]) -> Request:
        _, _, request, began = entry
        if began < self._swapped:
            began = self._swapped
        if began < self.steps:
            request.spans.append((self.version, self.steps - began))
        return request

    def _note(self) -> None:
        if self.trace[-1][1] != len(self._running):
            self.trace.append((self.time, len(self._running)))


class Buffer:
    """Collects finished requests into whole groups, oldest complete first.

    Attributes:
        ready: Complete groups, in order of completion.
        parts: Finished members of groups that are not complete.
    """

    def __init__(self, size: int) -> None:
        """An empty buffer for groups of `size` responses."""
        self.size = size
        self.ready: deque[list[Request]] = deque()
        self.parts: dict[int, list[Request]] = {}

    def add(self, finished: Iterable[Request]) -> None:
        """File finished requests; a group is ready with its last member."""
        for request in finished:
            part = self.parts.setdefault(request.group, [])
            part.append(request)
            if len(part) == self.size:
                self.ready.append(self.parts.pop(request.group))

    def take(self, groups: int) -> list[Request]:
        """Remove the oldest complete groups and return their members.

        Raises:
            ValueError: Fewer than `groups` are complete.
        """
        if len(self.ready) < groups:
            raise ValueError(f"{len(self.ready)} of {groups} groups ready")
        taken = [self.ready.popleft() for _ in range(groups)]
        return [request for group in taken for request in group]
