"""What does a trainer's log say of how the loop was fed, and when?

The waits, rates and counts of the steps since the last line, by names that begin with `feed/`. A
callback knows its library; what is said, and of which loader, is decided here for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from shardloader.errors import MissingExtraError, UsageError
from shardloader.loader.loader import ShardLoader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from shardloader.loader.stats import Stats

PREFIX: Final = "feed/"


class FeedLines:
    """The lines of one loader: each of the steps since the one before."""

    def __init__(self, loader: ShardLoader) -> None:
        self._loader = loader
        self._before = loader.stats()

    def next(self) -> dict[str, float]:
        """What to log now; nothing if no batch came since."""
        before, now = self._before, self._loader.stats()
        if now.batches == before.batches:
            return {}
        self._before = now
        return {f"{PREFIX}{name}": float(value) for name, value in _line(before, now).items()}


def _line(before: Stats, now: Stats) -> Mapping[str, float]:
    reading = now.reading.minus(before.reading)
    return {
        **now.feed.since(before.feed).to_dict(),
        **reading._asdict(),
        "bad": now.num_bad,  # of the whole run, as a sum is what is asked for
        "refused": now.refused,
    }


def the_loader_in(given: Any) -> ShardLoader:
    """The one ShardLoader in what a trainer trains on; raises UsageError if there is not one."""
    found = list(_loaders_in(given))
    if len(found) != 1:
        raise UsageError(
            f"FeedLogger logs how one ShardLoader feeds, and the trainer trains on {len(found)} of "
            f"them ({type(given).__name__}): train on one, or give it as FeedLogger(loader=)"
        )
    return found[0]


def _loaders_in(given: Any) -> Iterator[ShardLoader]:
    if isinstance(given, ShardLoader):
        yield given
        return
    inner: Iterable[Any] = ()
    if isinstance(given, dict):
        inner = given.values()
    elif isinstance(given, list | tuple):
        inner = given
    elif hasattr(given, "iterables"):  # Lightning's CombinedLoader
        inner = (given.iterables,)
    for each in inner:
        yield from _loaders_in(each)


def missing(library: str, package: str, error: ImportError) -> MissingExtraError:
    """The error for a library that is not there."""
    return MissingExtraError(
        f"this callback belongs to {library}, which can't be imported ({error}): install it with "
        f"pip install {package}"
    )
