"""How should a dataset be loaded: by how many workers, in batches of which size?

Decides on measurements that others made; nothing is read or timed here. Without workers nothing
crosses between processes, a loop starts at once and takes the least memory: so that is the answer
unless workers are faster by MARGIN, and unless the rounds agree that they are.

`reasons` of a Recommendation are sentences for people; programs read the other fields.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

from shardloader.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MARGIN: Final = 1.2  # times as many samples a second: from there on workers are worth it
NEARLY: Final = 0.9  # of the most samples a second is as good as the most
START_S: Final = 0.1  # more to wait for the first batch is worth a word
STEP_S: Final = 0.001  # more of a step spent in the loop's own thread is too


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is varied; is_raw: fields come as their bytes, neither decoded nor transformed."""

    batch_size: int
    num_workers: int
    is_raw: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One round of one setting.

    samples_per_s: once the first batches had come; first_batch_s: from making the dataset to its
    first batch; cpu_s, loop_cpu_s: seconds of CPU a sample, of all threads and workers, and of the
    loop's own thread; memory_bytes: the most that was taken besides what Python and its imports
    take, None where the system does not tell.
    """

    samples_per_s: float
    first_batch_s: float
    cpu_s: float
    loop_cpu_s: float
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What several rounds gave."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Figure:
        """The figure of at least one value.

        >>> Figure.of([3, 1, 7])
        Figure(median=3, least=1, most=7)
        """
        values = list(values)
        return cls(median=median(values), least=min(values), most=max(values))

    def to_json(self) -> dict[str, float]:
        """The three numbers by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Measured:
    """All rounds of one setting."""

    setting: Setting
    rounds: tuple[Measurement, ...]

    @property
    def rate(self) -> Figure:
        """Samples a second."""
        return Figure.of(each.samples_per_s for each in self.rounds)

    @property
    def first_batch(self) -> Figure:
        """Seconds to the first batch."""
        return Figure.of(each.first_batch_s for each in self.rounds)

    @property
    def cpu(self) -> Figure:
        """Seconds of CPU a sample."""
        return Figure.of(each.cpu_s for each in self.rounds)

    @property
    def loop_cpu(self) -> Figure:
        """Seconds of CPU a sample of the loop's own thread."""
        return Figure.of(each.loop_cpu_s for each in self.rounds)

    @property
    def memory(self) -> Figure | None:
        """Bytes, besides what Python and its imports take."""
        known = [each.memory_bytes for each in self.rounds if each.memory_bytes is not None]
        return Figure.of(known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """What to give to ShardLoader, and why; is_clear: whether the rounds agree on the workers."""

    batch_size: int
    num_workers: int
    persistent_workers: bool
    is_clear: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    """The workers of one batch size. rival: the best with workers, if any were measured."""

    chosen: Measured
    without: Measured
    rival: Measured | None
    is_clear: bool


def recommend(measured: Sequence[Measured], *, cores: int) -> Recommendation:
    """The workers and the batch size to take.

    measured: for each batch size a setting without workers, and any with; raw ones serve to tell
    what decoding costs. Settings of more workers than cores are left out. Raises UsageError where
    a batch size was not measured without workers.
    """
    choices = [
        _choose([each for each in measured if _is_of(each, batch_size)], cores=cores)
        for batch_size in sorted({each.setting.batch_size for each in measured})
    ]
    most = max(choice.chosen.rate.median for choice in choices)
    best = next(each for each in choices if each.chosen.rate.median >= NEARLY * most)
    setting = best.chosen.setting
    reasons = [
        _about_workers(best),
        _about_the_loops_thread(best),
        _about_decoding(best.without, measured),
        _about_starting(best),
        _about_batches(choices, best),
        _about_too_many(measured, cores),
    ]
    return Recommendation(
        batch_size=setting.batch_size,
        num_workers=setting.num_workers,
        persistent_workers=setting.num_workers > 0,
        is_clear=best.is_clear,
        reasons=tuple(filter(None, reasons)),
    )


def _is_of(each: Measured, batch_size: int) -> bool:
    return each.setting.batch_size == batch_size and not each.setting.is_raw


def _choose(measured: Sequence[Measured], *, cores: int) -> _Choice:
    """The workers of one batch size: none, or the fewest that are nearly the fastest."""
    without = next((each for each in measured if each.setting.num_workers == 0), None)
    if without is None:
        raise UsageError(
            "workers are compared with none, and num_workers=0 was not measured: measure it too"
        )
    workers = [each for each in measured if 0 < each.setting.num_workers <= cores]
    if not workers:
        return _Choice(without, without, None, is_clear=True)
    most = max(each.rate.median for each in workers)
    needed = max(NEARLY * most, min(most, MARGIN * without.rate.median))
    rival = min(
        (each for each in workers if each.rate.median >= needed),
        key=lambda each: each.setting.num_workers,
    )
    is_clear = not _is_doubtful(without.rate, rival.rate)
    is_worth_it = rival.rate.median >= MARGIN * without.rate.median
    chosen = rival if is_clear and is_worth_it else without
    return _Choice(chosen, without, rival, is_clear=is_clear)


def _is_doubtful(without: Figure, rival: Figure) -> bool:
    """Whether some rounds say that workers are worth it, and some that they are slower."""
    return rival.least < without.most and rival.most >= MARGIN * without.least


def _about_workers(choice: _Choice) -> str:
    without, rival = choice.without, choice.rival
    chosen = f"num_workers={choice.chosen.setting.num_workers}"
    if rival is None:
        return f"{chosen}: {_rate(without)}, and nothing to compare it with"
    with_rival = f"with {_workers(rival)} {_rate(rival)}"
    if not choice.is_clear:
        return (
            f"{chosen}: the spread is too large to tell. With none {_range(without.rate)} "
            f"samples/s, with {_workers(rival)} {_range(rival.rate)}: measure on a quieter "
            "machine, or longer. Until then, none"
        )
    times = rival.rate.median / without.rate.median
    return (
        f"{chosen}: with none {_rate(without)}, {with_rival}, {times:.2g} times as many; a worker "
        f"is worth its process from {MARGIN} times on"
    )


def _about_the_loops_thread(choice: _Choice) -> str | None:
    """What is left to the thread that training runs in: it is what a step may wait for."""
    if choice.rival is None:
        return None
    own, received = choice.without.loop_cpu.median, choice.rival.loop_cpu.median
    told = (
        f"the loop's own thread spends {_time(own)} a sample without workers, and "
        f"{_time(received)} on receiving one from {_workers(choice.rival)}"
    )
    batch_size = choice.without.setting.batch_size
    if choice.chosen is not choice.without or (own - received) * batch_size < STEP_S:
        return told
    return (
        f"{told}: {_time(own * batch_size)} of each step or {_time(received * batch_size)}. Where "
        "your step waits for that thread, and not for the GPU, workers may serve it better"
    )


def _about_decoding(without: Measured, measured: Sequence[Measured]) -> str | None:
    raw = next(
        (
            each
            for each in measured
            if each.setting.is_raw and each.setting.batch_size == without.setting.batch_size
        ),
        None,
    )
    if raw is None:
        return None
    read, more = raw.cpu.median, without.cpu.median - raw.cpu.median
    told = f"reading a sample's bytes takes {_time(read)} of CPU"
    if more < read / 10:
        return f"{told}, and decoding next to nothing more"
    return f"{told}, and what is done with them {_time(more)} more"


def _about_starting(choice: _Choice) -> str | None:
    if choice.chosen is choice.without:
        return None
    workers, none = choice.chosen.first_batch.median, choice.without.first_batch.median
    if workers - none < START_S:
        return None
    return (
        f"persistent_workers=True: the first batch took {_time(workers)}, and {_time(none)} with "
        "none; workers that persist are started once, and not at each epoch"
    )


def _about_batches(choices: Sequence[_Choice], best: _Choice) -> str | None:
    if len(choices) == 1:
        return None
    rates = ", ".join(
        f"{_rate(each.chosen)} in batches of {each.chosen.setting.batch_size}" for each in choices
    )
    return (
        f"batch_size={best.chosen.setting.batch_size}: {rates}; the smallest that gives "
        f"{NEARLY:.0%} of the most. Training may have better reasons for another"
    )


def _about_too_many(measured: Sequence[Measured], cores: int) -> str | None:
    too_many = sorted({e.setting.num_workers for e in measured if e.setting.num_workers > cores})
    if not too_many:
        return None
    left_out = ", ".join(map(str, too_many))
    return f"{left_out} workers are more than there are cores ({cores}), and were left out"


def _workers(measured: Measured) -> str:
    num_workers = measured.setting.num_workers
    return f"{num_workers} worker{'' if num_workers == 1 else 's'}"


def _rate(measured: Measured) -> str:
    return f"{measured.rate.median:,.0f} samples/s"


def _range(figure: Figure) -> str:
    return f"{figure.least:,.0f} to {figure.most:,.0f}"


def _time(seconds: float) -> str:
    """A time in a unit that leaves few digits.

    >>> _time(4.2e-6), _time(0.0031), _time(1.25)
    ('4.2 microseconds', '3.1 ms', '1.25 s')
    """
    for unit, factor in (("microseconds", 1e6), ("ms", 1e3)):
        if seconds * factor < 1000:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"
