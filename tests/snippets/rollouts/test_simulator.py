"""Checks the engine against a loop that makes one token at a time."""

import numpy as np
import pytest

from snippets.rollouts.simulator import Buffer, Engine, Request


def by_hand(lengths, slots, continuous=True, step_time=lambda n: 1.0):
    """End time of each request and the busy integral, step by step."""
    left, ends = list(lengths), {}
    waiting, active = list(range(len(left))), []
    time = busy = 0.0
    while len(ends) < len(left):
        if continuous or not active:
            while waiting and len(active) < slots:
                active.append(waiting.pop(0))
        width = step_time(len(active))
        time += width
        busy += width * len(active)
        for i in list(active):
            left[i] -= 1
            if left[i] == 0:
                ends[i] = time
                active.remove(i)
    return [ends[i] for i in range(len(left))], busy


def run(lengths, slots, **kw):
    engine, ends = Engine(slots, **kw), {}
    requests = [Request(int(n)) for n in lengths]
    engine.submit(requests)
    while engine.running:
        for request in engine.advance():
            ends[id(request)] = engine.time
    return [ends[id(r)] for r in requests], engine, requests


@pytest.mark.parametrize("continuous", [True, False])
@pytest.mark.parametrize("slots", [1, 3, 7, 50])
@pytest.mark.parametrize("step_time", [lambda n: 1.0, lambda n: 0.5 + 0.25 * n])
def test_same_as_one_token_at_a_time(slots, continuous, step_time):
    lengths = np.random.default_rng(slots).integers(1, 30, 40)
    ends, engine, requests = run(
        lengths, slots, continuous=continuous, step_time=step_time
    )
    expected, busy = by_hand(lengths, slots, continuous, step_time)
    assert ends == pytest.approx(expected)
    assert engine.busy == pytest.approx(busy)
    assert engine.tokens == lengths.sum()
    assert [r.spans for r in requests] == [[(0, n)] for n in lengths]


def test_trace_integrates_to_busy():
    _, engine, _ = run([4, 9, 2, 7, 7], 2)
    times, counts = zip(*engine.trace, strict=True)
    area = np.sum(np.diff(times) * np.array(counts[:-1]))
    assert area == engine.busy == 29
    assert counts[-1] == 0 and max(counts) == 2


def test_two_slots_worked_by_hand():
    """Slots: A 0-5, B 0-2, then C 2-5, D 5-6 and E 5-9."""
    ends, engine, _ = run([5, 2, 3, 1, 4], 2)
    assert ends == [5, 2, 5, 6, 9]
    assert engine.trace == [(0, 0), (0, 2), (6, 1), (9, 0)]
    static, *_ = run([5, 2, 3, 1, 4], 2, continuous=False)
    assert static == [5, 2, 8, 6, 12]


def test_swap_splits_the_running_requests_only():
    engine = Engine(2)
    a, b, c = Request(10), Request(4), Request(3)
    engine.submit([a, b, c])
    assert engine.advance(until=1) == []
    engine.swap()
    assert engine.advance() == [b] and engine.time == 4
    engine.swap()
    while engine.running:
        engine.advance()
    assert a.spans == [(0, 1), (1, 3), (2, 6)]
    assert b.spans == [(0, 1), (1, 3)]
    assert c.spans == [(2, 3)]
    assert (a.mixed, b.mixed, c.mixed) == (True, True, False)


def test_swap_before_the_first_token_leaves_no_empty_span():
    engine = Engine(1)
    request = Request(2)
    engine.submit([request])
    engine.swap()
    engine.advance()
    assert request.spans == [(1, 2)] and not request.mixed


def test_aborted_requests_resume_where_they_were():
    engine = Engine(2)
    a, b, c = Request(9), Request(5), Request(6)
    engine.submit([a, b, c])
    assert engine.advance(until=3) == []
    left = engine.abort()
    assert left == [a, b, c] and engine.running == 0
    assert engine.trace[-1] == (3, 0)
    assert [r.produced for r in left] == [3, 3, 0]
    engine.advance(until=100)  # the engine idles while the model trains
    engine.swap()
    engine.submit(left)
    assert engine.reprefilled == 6
    while engine.running:
        engine.advance()
    assert engine.time == 100 + 2 + 6  # c follows b, and ends last
    assert a.spans == [(0, 3), (1, 6)] and c.spans == [(1, 6)]
    assert engine.tokens == engine.busy == 20


def test_a_resumed_request_goes_before_the_one_that_waited():
    engine = Engine(1)
    first, second = Request(3), Request(3)
    engine.submit([first, second])
    assert engine.advance(until=2) == []
    engine.submit(engine.abort())
    assert engine.advance() == [first] and engine.time == 3
    assert engine.advance() == [second] and engine.time == 6
    assert engine.reprefilled == 2


def test_until_stops_at_the_end_of_a_step():
    engine = Engine(1, step_time=lambda n: 2.0)
    engine.submit([Request(10)])
    assert engine.advance(until=5) == [] and engine.time == 6
    assert engine.tokens == 3
    assert engine.advance(until=6) == [] and engine.time == 6
    assert engine.advance(until=1) == [] and engine.time == 6


def test_an_idle_clock_never_runs_backwards():
    engine = Engine(1)
    assert engine.advance(until=5) == [] and engine.time == 5
    assert engine.advance(until=1) == [] and engine.time == 5


def test_a_completion_exactly_at_until_is_returned():
    engine = Engine(1)
    request = Request(5)
    engine.submit([request])
    assert engine.advance(until=5) == [request]


def test_refusals():
    with pytest.raises(ValueError, match="needs 1 or more"):
        Engine(0)
    with pytest.raises(RuntimeError, match="submit requests first"):
        Engine(1).advance()
    with pytest.raises(ValueError, match="it is finished"):
        Engine(1).submit([Request(3, spans=[(0, 3)])])
    with pytest.raises(ValueError, match="0 of 1 groups ready"):
        Buffer(2).take(1)


def test_a_group_is_ready_with_its_last_member():
    buffer = Buffer(2)
    a, b, c, d = (Request(1, group=g) for g in (7, 8, 8, 7))
    buffer.add([a, b])
    assert not buffer.ready and set(buffer.parts) == {7, 8}
    buffer.add([c, d])
    assert buffer.take(1) == [b, c]
    assert buffer.take(1) == [a, d] and not buffer.parts


def test_a_resume_under_the_same_weights_is_not_mixed():
    engine = Engine(1)
    request = Request(4)
    engine.submit([request])
    engine.advance(until=2)
    engine.submit(engine.abort())
    engine.advance()
    assert request.spans == [(0, 2), (0, 2)] and not request.mixed
