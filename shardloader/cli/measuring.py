"""How does `shardloader bench` measure its settings?

Each measurement runs in a process of its own, forked from one that has made the imports, so that
none finds what another left. The settings take turns, round after round: what disturbs the machine
for a while then disturbs all of them. Torch is imported in those processes alone.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shardloader.cli import report
from shardloader.cli.sources import cache_of, one_dataset
from shardloader.errors import ShardLoaderError, UsageError, WorldError
from shardloader.planning.recommend import Measured, Measurement, Setting

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence
    from multiprocessing.connection import Connection

PATIENCE_S: Final = 60.0  # for opening, starting and ending of one measurement

WORDS_OF_DECODE: Final = ("default", "none")
_FORKED_FROM: Final = "shardloader.loader.measure"


def measure_all(
    options: argparse.Namespace, settings: Sequence[Setting], seconds: float
) -> list[Measured]:
    """Measure each setting in as many rounds as were asked for, each time so many seconds.

    Raises UsageError for what the user's code raised, and WorldError where a process ended or hung.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_FORKED_FROM])
    asked = {
        "source": one_dataset(options.source),
        "index_dir": options.index_dir,
        "cache": cache_of(options),
        "storage_options": options.storage_options,
        "fields": options.fields,
        "window": options.window,
        "seconds": seconds,
        "start_method": multiprocessing.get_start_method(),
    }
    rounds: dict[Setting, list[Measurement]] = {setting: [] for setting in settings}
    with report.progress(len(settings) * options.rounds, unit="run", what="measuring") as bar:
        for _ in range(options.rounds):
            for setting in settings:
                words = {**asked, "setting": setting}
                code = {"decode": options.decode, "transform": options.transform}
                rounds[setting].append(_in_a_process(context, words, code))
                bar.update()
    return [Measured(setting, tuple(each)) for setting, each in rounds.items()]


def _in_a_process(
    context: Any, asked: dict[str, Any], code: Mapping[str, str | None]
) -> Measurement:
    """Measure in a process of its own.

    code: --decode and --transform, which it imports. Raises what the process raised, and WorldError
    if it ended or hung.
    """
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_measurement, args=(sender, asked, code))
    process.start()
    sender.close()
    try:
        answer = _answer(receiver, asked)
    except EOFError:
        process.join()
        raise WorldError(
            f"the process that measured {_told(asked['setting'])} ended with exit code "
            f"{process.exitcode} (-9 is mostly the lack of memory): give a smaller --batch-size "
            "or fewer --num-workers"
        ) from None
    except BaseException:
        process.kill()  # its workers notice, and end
        raise
    finally:
        process.join()
        receiver.close()
    if isinstance(answer, Measurement):
        return answer
    raise answer


def _answer(receiver: Connection, asked: dict[str, Any]) -> Any:
    """What the process sends: a Measurement or an error; raises EOFError if it ends without."""
    patience_s = PATIENCE_S + 10 * asked["seconds"]
    if not receiver.poll(patience_s):
        raise WorldError(
            f"a measurement of {asked['seconds']} s ends within {patience_s:.0f} s, and that of "
            f"{_told(asked['setting'])} did not: give a smaller --batch-size, or look whether "
            "--transform waits for something"
        )
    return receiver.recv()


def _send_measurement(
    sender: Connection, asked: dict[str, Any], code: Mapping[str, str | None]
) -> None:
    """Measure, in the process, and send the Measurement, or the error that explains why not."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command hears it, and ends this process
    os.dup2(2, 1)  # what a transform prints is no part of the result
    warnings.simplefilter("ignore")  # torch's about more workers than cores, which is measured
    from shardloader.loader.measure import Asked, measure

    try:
        named = {option: _named(option, text) for option, text in code.items()}
        answer: Any = measure(Asked(**asked, **named), forked_from=os.getppid())
    except ShardLoaderError as error:
        answer = error
    except Exception as error:  # noqa: BLE001 - of the user's transform, or of a library: it is told
        notes = "".join(f", {note}" for note in getattr(error, "__notes__", ()))
        lines = str(error).strip().splitlines() or [""]
        answer = UsageError(
            f"reading {_told(asked['setting'])} raised {type(error).__name__}: {lines[-1]}{notes}"
        )
    sender.send(answer)


def _named(option: str, text: str | None) -> Any:
    """What an option stands for: a word of its own, or what `module:name` is; raises UsageError."""
    if text is None or text in WORDS_OF_DECODE:
        return None if text == "none" else text
    module, _, name = text.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(import_module(module), name)
    except Exception as error:
        raise UsageError(
            f"--{option} is MODULE:NAME of a module that can be imported from here, and {text!r} "
            f"gave {type(error).__name__}: {error}"
        ) from error


def _told(setting: Setting) -> str:
    return f"batches of {setting.batch_size} with {report.plural(setting.num_workers, 'worker')}"
