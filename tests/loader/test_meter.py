"""What the loop waited is measured with two looks at a clock, and told to a few percent."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

from shardloader.loader.meter import Feed, Meter, middle_of, places_of, quantile


class Clock:
    """Says the moment that a test has come to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def metered(*steps):
    """A meter that saw steps of (seconds waited, seconds computed)."""
    clock = Clock()
    meter = Meter(clock)
    meter.begin(clock.now)
    for waited, computed in steps:
        asked = clock.now
        clock.now += waited
        meter.received(asked)
        clock.now += computed
    return meter


def feed_of(*steps, samples=0, field_bytes=0, num_ready=0):
    return metered(*steps).feed(samples=samples, field_bytes=field_bytes, num_ready=num_ready)


def test_before_the_first_step_everything_is_nothing():
    assert set(feed_of().to_dict().values()) == {0}


def test_waits_and_their_share_of_the_time():
    feed = feed_of((1.0, 3.0), (0.5, 3.5), (0.25, 9.0))
    assert (feed.steps, feed.last_wait_s, feed.wait_s) == (3, 0.25, 1.75)
    assert feed.wall_s == 8.25  # until the last batch came
    assert feed.mean_wait_s == pytest.approx(1.75 / 3)
    assert feed.wait_share == pytest.approx(1.75 / 8.25)


def test_rates_are_of_the_time_that_iterators_ran():
    feed = feed_of((1.0, 1.0), (1.0, 50.0), samples=6, field_bytes=300)
    assert feed.samples_per_s == pytest.approx(2.0)
    assert feed.bytes_per_s == pytest.approx(100.0)


def test_time_between_two_iterators_counts_nothing():
    clock = Clock()
    meter = Meter(clock)
    for waited in (2, 3):
        asked = clock.now
        meter.begin(asked)
        clock.now += waited
        meter.received(asked)
        clock.now += 1000  # an evaluation, say
    assert meter.feed(samples=0, field_bytes=0, num_ready=0).wall_s == 5


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_quantiles_are_those_of_all_waits_to_six_percent(share):
    drawn = random.Random(0)
    waits = sorted(drawn.lognormvariate(-6, 2) for _ in range(5000))
    feed = feed_of(*((wait, 0.0) for wait in waits))
    exact = waits[int(share * len(waits)) - 1]
    assert quantile(feed.waits, share) == pytest.approx(exact, rel=0.07)


def test_a_place_holds_its_middle_and_places_are_in_order():
    middles = np.array([middle_of(place) for place in range(1, 272)])
    assert places_of(middles).tolist() == list(range(1, 272))
    assert places_of(np.array([0.0, 1e-9, 1e12])).tolist() == [0, 0, 271]
    assert middle_of(0) == 0.0


def test_what_came_since_an_earlier_value_is_of_those_steps_alone():
    clock = Clock()
    meter = Meter(clock)

    def step(waited):
        asked = clock.now
        clock.now += waited
        meter.received(asked)

    meter.begin(clock.now)
    step(10.0)
    earlier = meter.feed(samples=4, field_bytes=40, num_ready=0)
    for _ in range(3):
        clock.now += 1.0
        step(1.0)
    now = meter.feed(samples=16, field_bytes=160, num_ready=2).since(earlier)
    assert (now.steps, now.wait_s, now.wall_s, now.samples, now.num_ready) == (3, 3, 6, 12, 2)
    assert now.wait_share == 0.5
    assert now.p99_wait_s == pytest.approx(1.0, rel=0.07)
    assert now.since(Feed()).steps == 3


def test_no_wait_is_lost_or_counted_twice_while_others_look():
    meter, over = Meter(lambda: 1.0), threading.Event()
    seen = [0]

    def look():
        while not over.is_set():
            seen.append(meter.feed(samples=0, field_bytes=0, num_ready=0).steps)

    others = [threading.Thread(target=look) for _ in range(2)]
    for other in others:
        other.start()
    for _ in range(20_000):
        meter.received(0.5)
    over.set()
    for other in others:
        other.join()
    feed = meter.feed(samples=0, field_bytes=0, num_ready=0)
    assert (feed.steps, feed.wait_s, sum(feed.waits)) == (20_000, 10_000.0, 20_000)
    assert max(seen) <= 20_000
