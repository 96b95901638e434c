"""What all commands have in common: help, exit codes, messages, and what is never imported."""

from __future__ import annotations

import argparse
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import termios
import time

import pytest

import shardloader
from shardloader.cli import COMMANDS, _module
from shardloader.cli.report import as_options
from shardloader.format.index import SampleIndex
from shardloader.reading.indexing import index_dataset
from shardloader.reading.store import map_file
from tests.cli.workplace import (
    COMMAND,
    PYTHON,
    Run,
    make_corpus,
    make_photos,
    make_rows,
    state_of,
)

NO_TORCH = """
import json, sys
from shardloader.cli import main
for words in json.loads(sys.argv[1]):
    assert main(words) == 0, words
    assert not {"torch", "torchdata"} & set(sys.modules), words
"""

INTERRUPTIBLE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a parent ignores it
from shardloader.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def furniture(tmp_path_factory):
    """What the examples of the help speak of, made once."""
    folder = tmp_path_factory.mktemp("furniture")
    make_photos(folder / "photos")
    make_photos(folder / "more")
    make_photos(folder / "train")
    make_corpus(folder / "old")
    make_rows(folder)
    make_corpus(folder / "corpus")
    manifest, _ = index_dataset(folder / "corpus")
    Run(folder / "logs", manifest=manifest).attempt(1)
    state = state_of(manifest, 64, batch_size=4, world_size=2)
    (folder / "ckpt.json").write_text(json.dumps(state))
    (folder / "cache").mkdir()
    return folder


@pytest.fixture
def furnish(furniture):
    def furnish(place):
        shutil.copytree(furniture, place, dirs_exist_ok=True)

    return furnish


def examples(help_text):
    _, _, after = help_text.partition("example:\n")
    return [line.strip() for line in after.splitlines() if line.startswith("  shardloader ")]


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_every_example_of_the_help_runs_as_written(command, place, run, furnish):
    shown = run(*([command] if command else []), "--help")
    assert (shown.code, shown.err) == (0, "")
    found = examples(shown.out)
    assert found
    for number, line in enumerate(found):
        inside = place / str(number)
        inside.mkdir()
        os.chdir(inside)
        furnish(inside)
        if "shardloader write" in line and "--append" not in line:
            for path in (inside / "corpus").iterdir():
                path.unlink()
        ended = run(*shlex.split(line)[1:])
        assert ended.code == 0, (line, ended)
        assert ended.out
        assert not ended.err
        if "--json" in line:
            assert ended.json


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_says_every_option_in_words(command, run):
    parser = argparse.ArgumentParser()
    _module(command).add_arguments(parser)
    actions = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    assert all((action.help or "").partition("(default")[0].strip() for action in actions)
    text = run(command, "--help").out
    assert "--json" in text
    assert "--verbose" in text


def test_an_option_of_several_commands_means_the_same_in_all_that_read(run):
    """SRC, its options and the number of processes: the same names, in the same words."""
    reading = [command for command in COMMANDS if command not in {"write", "cache"}]
    for option in ("--index-dir DIR ", "--storage-options JSON"):
        assert {option in run(command, "--help").out for command in reading} == {True}
    for command in ("write", "index", "verify"):
        assert "--workers N" in run(command, "--help").out


def test_datasets_of_a_store_and_local_ones_do_not_share_its_options(place, run):
    make_corpus(place / "corpus", shards=1)
    for command in ("index", "verify"):
        options = ("--storage-options", '{"anon": true}')
        ended = run(command, "corpus", "memory://bucket/corpus", *options)
        assert (ended.code, ended.out) == (2, "")
        assert "--storage-options are those of a store" in ended.err
    assert not list((place / "corpus").glob("*.index"))


def test_the_version_is_the_packages(run):
    ended = run("--version")
    assert (ended.code, ended.out) == (0, f"shardloader {shardloader.__version__}\n")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nonsense"],
        ["plan", "corpus"],
        ["plan", "--counts", "10x10", "--batch-size", "many"],
        ["plan", "--counts", "10x10", "--batch-size", "0"],
        ["plan", "--counts", "10x10", "--batch-size", "1", "--world-size", "-3"],
        ["plan", "--counts", "10x10", "--batch-size", "1", "--seed", "-1"],
        ["plan", "--counts", "10x10", "--batch-size", "1", "--even", "odd"],
        ["plan", "--counts", "10x10", "--batch-size", "1", "--grid", "1,2"],
        ["plan", "--counts", "10x10", "--batch-size", "1", "--grid", "1,2,x"],
        ["plan", "--counts", "10x10", "--batch-size", "1", "--window", "0"],
        ["plan", "--counts", "10x10", "--batch-size", "1", "--window", "9", "--no-shuffle"],
        ["plan", "--counts", "10x10", "--batch-size", "1", "--rank", "0"],
        ["plan", "--counts", "ten", "--batch-size", "1"],
        ["plan", "--counts", "0x10", "--batch-size", "1", "--steps-per-epoch", "3"],
        ["plan", "--counts", "9999999x999999999999999999", "--batch-size", "1"],
        ["plan", "--batch-size", "1"],
        ["plan", "corpus", "--counts", "10x10", "--batch-size", "1"],
        ["plan", "nowhere", "--batch-size", "1"],
        ["plan", "empty", "--batch-size", "1"],
        ["plan", "corpus", "--batch-size", "1", "--state", "nowhere.json"],
        ["plan", "corpus", "--batch-size", "1", "--state", "corpus"],
        ["plan", "corpus", "--batch-size", "1", "--state", "garbage.json"],
        ["plan", "corpus", "--batch-size", "1", "--state", "list.json"],
        ["info", "nowhere"],
        ["info", "empty"],
        ["info", "simplecache::s3://bucket/corpus"],
        ["index", "nowhere"],
        ["index", "empty"],
        ["index", "corpus", "--workers", "0"],
        ["index", "corpus", "empty", "--index-dir", "indexes"],
        ["write", "nowhere", "out"],
        ["write", "photos", "corpus"],
        ["write", "photos", "corpus", "--dry-run"],
        ["write", "photos", "garbage.json"],
        ["write", "photos", "garbage.json", "--dry-run"],
        ["write", "photos", "photos/out"],
        ["write", "photos", "out", "--max-bytes", "1 wheelbarrow"],
        ["write", "photos", "out", "--max-samples", "0"],
        ["write", "photos", "out", "--pattern", "shard.tar"],
        ["write", "photos", "out", "--include", "*.nothing"],
        ["write", "empty", "out"],
        ["audit", "nowhere"],
        ["audit", "empty"],
    ],
)
def test_wrong_use_is_exit_code_2_with_one_message(words, place, run, furnish):
    furnish(place)
    (place / "empty").mkdir()
    (place / "garbage.json").write_text("{not json")
    (place / "list.json").write_text("[1, 2]")
    ended = run(*words)
    assert (ended.code, ended.out) == (2, "")
    if words:
        assert ended.err.count("error: ") == 1
        assert ended.err.splitlines()[-1].startswith("shardloader")
    assert not (place / "out").exists()


def test_an_error_with_json_is_one_document_too(place, run):
    ended = run("info", "nowhere", "--json")
    assert ended.code == 2
    assert ended.json["error"]["kind"] == "UsageError"
    assert ended.json["error"]["message"] in ended.err


def test_a_file_that_may_not_be_read_is_a_message(place, run, monkeypatch):
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "logs/rank-0.jsonl")

    monkeypatch.setattr("shardloader.planning.audit._read", refuse)
    Run(place / "logs").attempt(1)
    ended = run("audit", "logs")
    assert ended.code == 1
    assert ended.err == (
        "shardloader: error: logs/rank-0.jsonl: Permission denied: let this user read it, and "
        "enter the folders above it\n"
    )


def test_messages_speak_of_options_and_not_of_arguments(place, run, furnish):
    furnish(place)
    ended = run("write", "photos", "corpus")
    assert "--overwrite" in ended.err
    assert "overwrite=" not in ended.err
    assert as_options("steps_per_epoch=3 is") == "--steps-per-epoch 3 is"


def test_the_log_is_shown_as_messages_and_info_on_request(place, run):
    make_corpus(place / "corpus")
    run("index", "corpus")
    (place / "corpus" / "late.tar").write_bytes(bytes(1024))
    ended = run("plan", "corpus", "--batch-size", "4")
    assert ended.code == 0
    assert ended.err.startswith("shardloader: warning: ")
    assert "late.tar" in ended.err
    for words in (["-v", "info", "corpus"], ["info", "corpus", "-v"]):
        assert run(*words).code == 0


def test_interrupting_is_130_and_a_line(run, monkeypatch):
    def interrupt(options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("shardloader.cli.info.run", interrupt)
    ended = run("info", "corpus")
    assert (ended.code, ended.out, ended.err) == (130, "", "shardloader: interrupted\n")


def test_no_command_imports_torch(place, furnish):
    furnish(place)
    commands = [
        ["--version"],
        ["write", "photos", "packed"],
        ["index", "corpus", "--force"],
        ["info", "corpus"],
        ["plan", "corpus", "--batch-size", "4", "--steps", "0:2"],
        ["audit", "logs"],
    ]
    words = [PYTHON, "-W", "error", "-c", NO_TORCH, json.dumps(commands)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_it_runs_as_a_module_and_is_silent_on_stderr(place, furnish):
    furnish(place)
    words = [*COMMAND, "write", "photos", "packed", "--json"]
    ended = subprocess.run(words, capture_output=True, text=True, check=True)
    assert not ended.stderr
    assert json.loads(ended.stdout)["samples"] == 12
    failed = subprocess.run([*COMMAND, "info", "nowhere"], capture_output=True, check=False)
    assert failed.returncode == 2


def test_a_terminal_gets_a_progress_bar(place):
    make_photos(place / "photos")
    terminal, other_end = os.openpty()
    termios.tcsetwinsize(other_end, (24, 80))
    words = [*COMMAND, "write", "photos", "packed"]
    subprocess.run(words, stdout=subprocess.PIPE, stderr=other_end, check=True)
    assert select.select([terminal], [], [], 10)[0], "nothing was said"
    assert b"writing" in os.read(terminal, 1 << 16)
    os.close(other_end)
    os.close(terminal)


def test_a_reader_that_leaves_early_is_no_error():
    options = ["--counts", "100x1000", "--batch-size", "640", "--steps", "0:40"]
    with subprocess.Popen(
        [*COMMAND, "plan", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_ctrl_c_during_write_leaves_no_half_shard(place, run):
    make_photos(place / "photos", num_samples=3000)
    words = ["write", "photos", "packed", "--max-samples", "500"]
    with subprocess.Popen(
        [PYTHON, "-c", INTERRUPTIBLE, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        packed = place / "packed"
        deadline = time.monotonic() + 30
        while not list(packed.glob("shard-*.tar")) and process.poll() is None:
            assert time.monotonic() < deadline
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert err.endswith("shardloader: interrupted\n")
    assert not (packed / "manifest.json").exists()
    for path in packed.glob("shard-*.tar"):
        index, notices = SampleIndex.build(map_file(path), shard=path.name)
        assert (index.num_samples, notices) == (500, ())
    assert run(*words, "--overwrite").code == 0
    assert not list(packed.glob(".*.partial"))
