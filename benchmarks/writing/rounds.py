"""Which measurements are made, in which order, and what is kept of each?

Every writer is checked once, on a tenth of the corpus: what is read back from what it wrote must be
the corpus, or it counts as failed and is not timed. Then come the rounds, in each of which every
writer has its turn once, in an order that turns by one, so that a drift of the machine falls on all
alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from benchmarks.feeding.digest import Digest
from benchmarks.feeding.processes import run, shown
from benchmarks.feeding.work import RAW
from benchmarks.writing.writers import FLOOR, OWN, OWN_ZSTD, Writer
from tools.corpora.corpus import Corpus, corpus_of
from tools.corpora.shards import stored

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

CHECK_SHARE: Final = 10
LIMIT_S: Final = 900.0
TIME, ACCESS = "time", "access"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line asked for."""

    corpora: tuple[str, ...]
    names: tuple[str, ...]  # parts of writers' names, none for all
    rounds: int
    divide: int
    work: Path
    out: Path

    @property
    def of_checks(self) -> Options:
        """The same with the smaller corpora that are checked."""
        return replace(self, divide=self.divide * CHECK_SHARE)

    def wants(self, writer: Writer) -> bool:
        """Whether a writer is measured."""
        is_limit = writer.name == FLOOR or writer.name.startswith(OWN)
        return is_limit or not self.names or any(name in writer.name.lower() for name in self.names)


@dataclass(slots=True)
class Series:
    """All rounds of one writer at one measurement, and its command."""

    writer: str
    corpus: str
    measurement: str  # time or access
    command: str
    rates: list[float] = field(default_factory=list)  # samples a second
    cpu_rates: list[float] = field(default_factory=list)  # samples a CPU second
    bytes_a_sample: float = 0.0
    access: dict[str, float] = field(default_factory=dict)  # frames and bytes unpacked for one
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """A writer's turn at a measurement."""

    writer: Writer
    corpus: Corpus
    what: str
    series: Series


def planned(writers: Sequence[Writer], options: Options) -> list[Turn]:
    """One turn for every writer and measurement, as a round takes them."""
    turns: list[Turn] = []
    for name in options.corpora:
        here = [each for each in writers if name in each.corpora]
        turns += [_turn(each, name, TIME, options) for each in here]
        turns += [_turn(each, name, ACCESS, options) for each in here if each.name == OWN_ZSTD]
    return turns


def _turn(writer: Writer, corpus: str, what: str, options: Options) -> Turn:
    command = shown(_arguments(writer, corpus, what, options), is_peer=writer.is_peer)
    series = Series(writer=writer.name, corpus=corpus, measurement=what, command=command)
    return Turn(writer, corpus_of(corpus, options.divide), what, series)


def _arguments(writer: Writer, corpus: str, what: str, options: Options) -> list[str]:
    arguments = ["-m", "benchmarks.writing.measure", what, writer.name, corpus]
    if options.divide != 1:
        arguments += ["--divide", str(options.divide)]
    return [*arguments, "--work", str(options.work), "--out", str(options.out)]


def measure(
    turns: Sequence[Turn], options: Options, say: Callable[[str], None]
) -> dict[str, dict[str, str]]:
    """Check every writer, then fill the series, round by round; returns the versions met."""
    versions: dict[str, dict[str, str]] = {}
    _check_all(turns, options.of_checks, say)
    for number in range(options.rounds):
        shift = number % max(1, len(turns))
        for turn in [*turns[shift:], *turns[:shift]]:
            if not turn.series.failed:
                say(f"round {number + 1}: {turn.what} {turn.corpus.name} {turn.writer.name}")
                _take(turn, options, versions)
    return versions


def _take(turn: Turn, options: Options, versions: dict[str, dict[str, str]]) -> None:
    series = turn.series
    arguments = _arguments(turn.writer, turn.corpus.name, turn.what, options)
    ran = run(arguments, is_peer=turn.writer.is_peer, limit_s=LIMIT_S)
    if ran.result is None:
        series.failed = ran.reason
        return
    found = ran.result
    versions.setdefault(turn.writer.name, {}).update(found["versions"])
    series.rates.append(found["samples"] / found["seconds"])
    if turn.what == TIME:
        series.cpu_rates.append(found["samples"] / found["cpu_seconds"])
        series.bytes_a_sample = found["bytes"] / found["samples"]
    else:
        series.access = {name: found[name] for name in ("most_frames", "unpacked_bytes")}


def _check_all(turns: Sequence[Turn], options: Options, say: Callable[[str], None]) -> None:
    """Mark as failed every series of a writer whose samples aren't the corpus's."""
    expected = {name: digest_of(name, options) for name in options.corpora}
    for turn in turns:
        if turn.what != TIME or not turn.writer.checked:
            continue
        say(f"check: {turn.corpus.name} {turn.writer.name}")
        arguments = _arguments(turn.writer, turn.corpus.name, "check", options)
        ran = run(arguments, is_peer=turn.writer.is_peer, limit_s=LIMIT_S)
        turn.series.failed = (
            ran.reason
            if ran.result is None
            else _digest(ran.result).differs_from(expected[turn.corpus.name])
        )


def digest_of(name: str, options: Options) -> Digest:
    """What should be read back of a corpus: keys and fields."""
    corpus = corpus_of(name, options.divide)
    digest, names = Digest(), ("__key__", *corpus.fields)
    for number, fields in enumerate(stored(corpus, corpus.folder(options.work, "tar"))):
        columns = {"__key__": [corpus.key(number).encode()]}
        columns.update((field, [data]) for field, data in fields.items())
        digest.add(columns, names, RAW)
    return digest


def _digest(result: dict[str, Any]) -> Digest:
    return Digest(samples=result["samples"], total=result["total"])
