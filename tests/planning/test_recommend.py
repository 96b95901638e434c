"""Which workers and batch size are recommended, on measurements that nobody had to make."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardloader.errors import UsageError
from shardloader.planning.recommend import (
    MARGIN,
    NEARLY,
    START_S,
    STEP_S,
    Figure,
    Measured,
    Measurement,
    Setting,
    recommend,
)


def measured(num_workers, *rates, batch_size=32, is_raw=False, **other):
    """A setting whose rounds gave these samples a second."""
    figures = {"first_batch_s": 0.01, "cpu_s": 1e-4, "loop_cpu_s": 1e-5, "memory_bytes": 10**6}
    return Measured(
        Setting(batch_size=batch_size, num_workers=num_workers, is_raw=is_raw),
        tuple(Measurement(samples_per_s=rate, **{**figures, **other}) for rate in rates),
    )


def reason(told, *words):
    """The one reason that holds all the words."""
    found = [each for each in told.reasons if all(word in each for word in words)]
    assert len(found) == 1, told.reasons
    return found[0]


@pytest.mark.parametrize(("times", "expected"), [(0.5, 0), (MARGIN - 0.01, 0), (MARGIN + 0.01, 2)])
def test_workers_are_recommended_from_the_margin_on(times, expected):
    told = recommend([measured(0, 1000), measured(2, 1000 * times)], cores=2)
    assert (told.num_workers, told.is_clear) == (expected, True)
    assert told.persistent_workers == (expected > 0)
    assert f"num_workers={expected}" in reason(told, "1,000 samples/s", f"from {MARGIN} times on")


def test_of_workers_that_are_nearly_alike_the_fewest_are_taken():
    rates = {1: 2000, 2: 3700, 3: 3500, 4: 3900, 8: 4000}
    assert 3500 < NEARLY * 4000 < 3700
    told = recommend(
        [measured(0, 1000), *(measured(num, rate) for num, rate in rates.items())], cores=8
    )
    assert told.num_workers == 2


def test_fewer_workers_that_are_not_worth_it_are_not_taken_for_more_that_are():
    assert NEARLY * 1220 < 1150 < MARGIN * 1000 < 1220
    told = recommend([measured(0, 1000), measured(1, 1150), measured(2, 1220)], cores=2)
    assert told.num_workers == 2


def test_more_workers_than_cores_are_left_out_and_it_is_said():
    told = recommend([measured(0, 1000), measured(2, 1500), measured(4, 9000)], cores=2)
    assert told.num_workers == 2
    assert reason(told, "left out").startswith("4 workers are more than there are cores (2)")


def test_rounds_that_contradict_each_other_are_too_far_apart_to_tell():
    told = recommend([measured(0, 800, 1000, 1600), measured(2, 900, 2000, 2100)], cores=2)
    assert (told.num_workers, told.is_clear) == (0, False)
    said = reason(told, "spread is too large to tell")
    assert "800 to 1,600" in said
    assert "900 to 2,100" in said


def test_a_wide_spread_that_leaves_no_doubt_is_clear():
    told = recommend([measured(0, 800, 1000, 1600), measured(2, 1700, 4000, 9000)], cores=2)
    assert (told.num_workers, told.is_clear) == (2, True)
    told = recommend([measured(0, 1000, 4000, 9000), measured(2, 100, 300, 1100)], cores=2)
    assert (told.num_workers, told.is_clear) == (0, True)


def test_the_smallest_batch_that_is_nearly_the_fastest_is_taken_with_its_own_workers():
    told = recommend(
        [
            measured(0, 1000, batch_size=16),
            measured(2, 900, batch_size=16),
            measured(0, 1000, batch_size=32),
            measured(2, 1900, batch_size=32),
            measured(0, 2000, batch_size=64),
            measured(2, 1900, batch_size=64),
        ],
        cores=2,
    )
    assert (told.batch_size, told.num_workers) == (32, 2)
    said = reason(told, "batch_size=32")
    assert "1,000 samples/s in batches of 16" in said
    assert "2,000 samples/s in batches of 64" in said


def test_raw_reading_is_what_decoding_is_compared_with_and_never_recommended():
    told = recommend(
        [measured(0, 10**6, is_raw=True, cpu_s=4e-6), measured(0, 300, cpu_s=3.004e-3)], cores=2
    )
    assert "300 samples/s" in reason(told, "num_workers=0")
    assert "takes 4 microseconds of CPU" in reason(told, "3 ms more")
    quick = [measured(0, 10**6, is_raw=True, cpu_s=4e-6), measured(0, 10**6, cpu_s=4.1e-6)]
    assert reason(recommend(quick, cores=2), "next to nothing more")
    assert not [each for each in recommend([measured(0, 9)], cores=2).reasons if "bytes" in each]


@pytest.mark.parametrize("more", [START_S / 2, START_S * 2])
def test_a_slow_start_of_workers_is_a_reason_to_keep_them(more):
    told = recommend(
        [measured(0, 10, first_batch_s=0.5), measured(1, 90, first_batch_s=0.5 + more)], cores=1
    )
    assert told.persistent_workers
    said = [each for each in told.reasons if each.startswith("persistent_workers=True")]
    assert len(said) == (more > START_S)


@pytest.mark.parametrize("more", [STEP_S / 2, STEP_S * 2])
def test_a_loop_that_does_the_work_itself_is_told_what_workers_would_take_off_it(more):
    own, received = (1e-3 + more) / 32, 1e-3 / 32
    without, rival = measured(0, 100, loop_cpu_s=own), measured(2, 110, loop_cpu_s=received)
    told = recommend([without, rival], cores=2)
    assert told.num_workers == 0
    assert ("workers may serve it better" in reason(told, "loop's own thread")) == (more > STEP_S)


def test_without_a_measurement_of_no_workers_there_is_nothing_to_compare_with():
    with pytest.raises(UsageError, match="num_workers=0 was not measured"):
        recommend([measured(0, 9), measured(1, 9, batch_size=64)], cores=2)


def test_where_no_workers_fit_the_answer_is_none():
    told = recommend([measured(0, 9), measured(2, 900)], cores=1)
    assert (told.num_workers, told.is_clear) == (0, True)


def test_memory_that_is_not_told_is_left_out():
    rounds = (measured(0, 1).rounds[0], measured(0, 1, memory_bytes=None).rounds[0])
    setting = Setting(batch_size=1, num_workers=0)
    assert Measured(setting, rounds).memory == Figure(median=10**6, least=10**6, most=10**6)
    assert Measured(setting, rounds[1:]).memory is None


RATES = st.lists(st.integers(1, 10**6), min_size=1, max_size=4)


@given(
    rates=st.dictionaries(
        st.tuples(st.sampled_from([8, 64]), st.integers(1, 6)), RATES, max_size=6
    ),
    without=st.tuples(RATES, RATES),
    cores=st.integers(1, 6),
)
def test_what_is_recommended_was_measured_fits_the_cores_and_is_worth_it(rates, without, cores):
    none = {
        size: measured(0, *each, batch_size=size)
        for size, each in zip((8, 64), without, strict=True)
    }
    others = {
        (size, num): measured(num, *each, batch_size=size) for (size, num), each in rates.items()
    }
    told = recommend([*none.values(), *others.values()], cores=cores)
    assert told.num_workers <= cores
    if told.num_workers:
        taken = others[told.batch_size, told.num_workers].rate.median
        assert taken >= MARGIN * none[told.batch_size].rate.median
        assert told.is_clear
    # turned round, and so in another order, the same is recommended
    assert recommend([*others.values(), *reversed(none.values())], cores=cores) == told
