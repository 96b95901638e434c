"""Which measurements are made, in which order, and what is kept of each?

Every loader is checked once, on a tenth of the corpus: everything that it gives in a mode must have
the corpus's digest, or it counts as failed and is not timed. Then come the rounds, in each of which
every loader has its turn once, in an order that turns by one, so that a drift of the machine falls
on all alike.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from benchmarks.feeding.digest import Digest
from benchmarks.feeding.processes import run, shown
from benchmarks.feeding.work import BATCHES, OWN, RAW, Loader
from tools.corpora.corpus import Corpus, corpus_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

CHECK_LIMIT_S: Final = 900.0
CHECK_SHARE: Final = 10  # so many times fewer samples: the digests alone would take half an hour
CHECKS_AT_ONCE: Final = 2
START_LIMIT_S: Final = 120.0  # imports, opening and closing, on top of what is timed
REFERENCE: Final = "floor"
IDLE: Final = "idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line asked for."""

    corpora: tuple[str, ...]
    loaders: tuple[str, ...]  # parts of names, none for all
    rounds: int
    seconds: float
    divide: int
    work: Path

    @property
    def of_checks(self) -> Options:
        """The same with the smaller corpora that are checked."""
        return replace(self, divide=self.divide * CHECK_SHARE)

    def wants(self, loader: Loader) -> bool:
        """Whether a loader is measured; the limits always are."""
        is_limit = loader.name in {"cat", REFERENCE, IDLE}
        return (
            is_limit
            or not self.loaders
            or any(part in loader.name.lower() for part in self.loaders)
        )


@dataclass(slots=True)
class Series:
    """All rounds of one loader at one measurement: rates, seconds or MB, and its command."""

    loader: str
    corpus: str
    measurement: str  # raw, batches, own, first or memory
    command: str
    values: list[float] = field(default_factory=list)
    workers_mb: list[float] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """A loader's turn at a measurement."""

    loader: Loader
    corpus: Corpus
    mode: str
    what: str
    series: Series


def planned(loaders: Sequence[Loader], options: Options) -> list[Turn]:
    """One turn for every loader and measurement, as a round takes them."""
    turns: list[Turn] = []
    for name in options.corpora:
        for mode in (RAW, BATCHES, OWN):
            if mode == OWN and name != "I":
                continue
            timed = [each for each in loaders if each.does(name, mode)]
            # decoded in one process, the floor is there to be compared with, not to be timed
            timed = [each for each in timed if mode == RAW or each.name != REFERENCE]
            turns += [_turn(each, name, mode, "time", mode, options) for each in timed]
    if "T" in options.corpora:
        batched = [each for each in loaders if each.does("T", BATCHES) and each.name != REFERENCE]
        idle = [each for each in loaders if each.does("T", IDLE)]
        for what, label in (("first", "first"), ("hold", "memory")):
            turns += [_turn(each, "T", BATCHES, what, label, options) for each in batched]
            turns += [_turn(each, "T", IDLE, what, label, options) for each in idle]
    return turns


def _turn(loader: Loader, corpus: str, mode: str, what: str, label: str, options: Options) -> Turn:
    of_size = corpus_of(corpus, options.divide)
    command = shown(_arguments(loader, of_size, mode, what, options), is_peer=loader.is_peer)
    series = Series(loader=loader.name, corpus=corpus, measurement=label, command=command)
    return Turn(loader, of_size, mode, what, series)


def _arguments(loader: Loader, corpus: Corpus, mode: str, what: str, options: Options) -> list[str]:
    arguments = ["-m", "benchmarks.feeding.measure", what, loader.name, corpus.name, mode]
    if options.divide != 1:
        arguments += ["--divide", str(options.divide)]
    if what == "time":
        arguments += ["--seconds", f"{options.seconds:g}"]
    return [*arguments, "--work", str(options.work)]


def measure(
    turns: Sequence[Turn], options: Options, say: Callable[[str], None]
) -> dict[str, dict[str, str]]:
    """Check every loader, then fill the series, round by round; returns the versions met."""
    versions: dict[str, dict[str, str]] = {}
    _check_all(turns, options.of_checks, say)
    for number in range(options.rounds):
        shift = number % max(1, len(turns))
        for turn in [*turns[shift:], *turns[:shift]]:
            if turn.series.failed:
                continue
            say(
                f"round {number + 1}: {turn.series.measurement} {turn.corpus.name} "
                f"{turn.loader.name}"
            )
            _take(turn, options, versions)
    return versions


def _take(turn: Turn, options: Options, versions: dict[str, dict[str, str]]) -> None:
    series = turn.series
    ran = run(
        _arguments(turn.loader, turn.corpus, turn.mode, turn.what, options),
        is_peer=turn.loader.is_peer,
        limit_s=options.seconds + START_LIMIT_S,
        watch=turn.what == "hold",
    )
    if ran.result is None:
        series.failed = ran.reason
        return
    versions.setdefault(turn.loader.name, {}).update(ran.result["versions"])
    if turn.what == "hold":
        series.values.append(ran.total_mb)
        series.workers_mb.append(ran.worker_mb)
    elif turn.what == "first":
        series.values.append(ran.result["seconds"])
    else:
        series.values.append(ran.result["samples"] / ran.result["seconds"])
        series.whole.append(ran.result["whole"])


def _check_all(turns: Sequence[Turn], options: Options, say: Callable[[str], None]) -> None:
    """Mark as failed every series of a loader whose samples aren't the corpus's.

    Some are checked at once, since nothing is timed.
    """
    chosen = [turn for turn in turns if turn.loader.gives_samples and not turn.series.failed]
    of_works = {(turn.corpus.name, turn.mode): turn for turn in chosen}
    of_checks = {(turn.loader.name, turn.corpus.name, turn.mode): turn for turn in chosen}

    def verdict(turn: Turn) -> str:
        say(f"check: {turn.mode} {turn.corpus.name} {turn.loader.name}")
        return _verdict(turn, references[turn.corpus.name, turn.mode], options)

    with ThreadPoolExecutor(CHECKS_AT_ONCE) as pool:
        found = pool.map(lambda turn: _digest_of_reference(turn, options), of_works.values())
        references = dict(zip(of_works, found, strict=True))
        verdicts = dict(zip(of_checks, pool.map(verdict, of_checks.values()), strict=True))
    for turn in chosen:
        turn.series.failed = verdicts[turn.loader.name, turn.corpus.name, turn.mode]


def _digest_of_reference(turn: Turn, options: Options) -> Digest:
    corpus = turn.corpus.name
    arguments = ["-m", "benchmarks.feeding.measure", "check", REFERENCE, corpus, turn.mode]
    arguments += ["--divide", str(options.divide), "--work", str(options.work)]
    ran = run(arguments, is_peer=False, limit_s=CHECK_LIMIT_S)
    if ran.result is None or ran.result["samples"] != corpus_of(corpus, options.divide).num_samples:
        raise RuntimeError(
            f"all loaders are held against the bare loop, and of {corpus} ({turn.mode}) it gave "
            f"{ran.result or ran.reason}: remove {options.work} and start again"
        )
    return _digest(ran.result)


def _verdict(turn: Turn, reference: Digest, options: Options) -> str:
    """Why a loader has failed in a mode; empty if it gave what the corpus holds."""
    corpus = corpus_of(turn.corpus.name, options.divide)
    arguments = _arguments(turn.loader, corpus, turn.mode, "check", options)
    ran = run(arguments, is_peer=turn.loader.is_peer, limit_s=CHECK_LIMIT_S)
    return ran.reason if ran.result is None else _digest(ran.result).differs_from(reference)


def _digest(result: dict[str, Any]) -> Digest:
    return Digest(*(result[name] for name in ("samples", "total", "brightness")))
