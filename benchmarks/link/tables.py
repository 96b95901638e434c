"""What do the rounds say? Medians, spreads and shares of the limit; then Markdown."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Final

from benchmarks.link.loaders import LIMIT, LOADERS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TARGET: Final = 0.9
NO_FIGURE: Final = "-"
WORDS: Final = """\
Made by `{command}`, {date}.
{processor}, {cores} cores, {memory_gb} GB, Linux {kernel}, Python {python}; load before it
began {load_before:.1f}.

A server and a client, each a set of namespaces on this machine, and a link of {mbit:g} Mbit/s
between them (`tc ... tbf`). nginx serves {num_samples:,} samples of {sample_bytes:,} random bytes,
{shard_samples:,} to a shard, as S3 and HTTP, each answer {latency_ms:g} ms late. Each turn is a
process of its own with an empty cache in memory; two workers, batches of {batch}, shuffled as each
can; every field read, and what arrived compared with the corpus by a digest. Rounds are
interleaved: {rounds} of them. Medians, with the least and the most.

curl is the limit: all tars, four at a time, to nowhere. *Whole pass*: the samples' bytes by the
seconds from opening (after imports) to the last batch, a cold start in it; and the share of what
curl got in the same round. *Steady*: bytes on the wire a second, from when half of a pass's bytes
had left the server on, as a share of the same of curl. MB sent: by the server in the whole pass;
what is beyond curl's was sent twice. CPU: of all of the client's processes, 1.0 is a core; imports
are in it. First batch: from opening, in brackets from the process's start. *Resumed*: the same from
the state in the middle of the pass.
"""


def shares(rounds: Sequence[Mapping[str, Any]], name: str, what: str) -> list[float]:
    """A loader's figures by those of the limit in the same round.

    A pass that is too short for the meter has none.
    """
    return [
        each[name]["pass"][what] / each[LIMIT]["pass"][what]
        for each in rounds
        if what in each.get(name, {}).get("pass", {}) and each[LIMIT]["pass"].get(what)
    ]


def spread(values: Sequence[float], pattern: str = "{:.2f}") -> str:
    """Median, least and most."""
    if not values:
        return NO_FIGURE
    told = (statistics.median(values), min(values), max(values))
    return "{} ({} to {})".format(*map(pattern.format, told))


def _values(rounds: Sequence[Mapping[str, Any]], name: str, kind: str, what: str) -> list[float]:
    turns = (each.get(name, {}).get(kind, {}) for each in rounds)
    return [turn[what] for turn in turns if what in turn]


def _first(rounds: Sequence[Mapping[str, Any]], name: str, kind: str) -> str:
    opened = _values(rounds, name, kind, "first_s")
    started = _values(rounds, name, kind, "first_from_start_s")
    if not opened:
        return NO_FIGURE
    return f"{spread(opened)} [{statistics.median(started):.2f}]"


def _row(rounds: Sequence[Mapping[str, Any]], name: str) -> str:
    is_limit = name == LIMIT
    rate = [value / 1e6 for value in _values(rounds, name, "pass", "bytes_per_s")]
    cells = [
        name,
        spread(rate, "{:.1f}"),
        "1" if is_limit else spread(shares(rounds, name, "bytes_per_s")),
        "1" if is_limit else spread(shares(rounds, name, "steady_bytes_per_s")),
        spread(_values(rounds, name, "pass", "cpu_share")),
        spread(_values(rounds, name, "pass", "requests"), "{:.0f}"),
        spread([value / 1e6 for value in _values(rounds, name, "pass", "body_bytes")], "{:.0f}"),
        NO_FIGURE if is_limit else _first(rounds, name, "pass"),
        _first(rounds, name, "resumed"),
    ]
    return "| " + " | ".join(cells) + " |"


def markdown(found: Mapping[str, Any]) -> str:
    """The note that stands beside the JSON."""
    about = {**found["machine"], **found["corpus"], **found["link"], **found}
    names = [each.name for each in LOADERS if any(each.name in r for r in found["rounds_read"])]
    heads = ["", "whole pass, MB/s", "share", "steady, share", "CPU", "requests", "MB sent"]
    heads += ["first batch cold, s", "first batch resumed, s"]
    table = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    table += [_row(found["rounds_read"], name) for name in names]
    resumes = [f"{each.name} {each.resumes or 'not at all'}" for each in LOADERS if each.gives]
    parts = [
        "# Over a link: throughput, and time to the first batch\n",
        WORDS.format(**about),
        "\n".join(table) + "\n",
        f"The target is a steady share of {TARGET}. How each resumes: {'; '.join(resumes)}.\n",
        *_failed(found["rounds_read"]),
        "Versions: "
        + "; ".join(
            f"{name} ({_joined(of)})" for name, of in sorted(found["versions"].items()) if of
        )
        + ".\n",
    ]
    return "\n".join(parts)


def _joined(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{package} {version}" for package, version in versions.items())


def _failed(rounds: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = {
        f"- {name}, {kind}: {turn['failed']}"
        for each in rounds
        for name, turns in each.items()
        for kind, turn in turns.items()
        if "failed" in turn
    }
    return ["Failed:\n\n" + "\n".join(sorted(lines)) + "\n"] if lines else []
