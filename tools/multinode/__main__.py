"""Does training survive the loss of hosts? Some hosts in one machine, and what befalls them.

    python -m tools.multinode [--small] [--out .multinode]

Makes hosts of namespaces (`hosts`), one of them an S3 server, packs a corpus and puts it there, and
trains with torchrun, as tools/launch/torchrun.sh starts it; the shards come through each host's own
cache. Then a cable is pulled, and put back; a host is told to go by SIGTERM; the host that holds
the rendezvous is lost, and training is started anew on those that are left. In the end the audit
says whether every sample was read once. The exit code is the audit's: 1 if it was not exact, or if
something did not happen; 3 where namespaces are not permitted. `--small` has one host less, one
rank on each, and ends after the cable.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import shardloader as sl
from tools.multinode.hosts import Network, NoHostsError
from tools.multinode.job import ENVIRONMENT, ROOT, Job, JobError, Plan
from tools.multinode.store import PORT, fetched

STORE: Final = "store"
NOT_PERMITTED: Final = 3
BATCH_SIZE: Final = 2
SMALL_LIMIT_S: Final = 400.0
LIMIT_S: Final = 900.0


class Teller:
    """Says what is seen, and when."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def __call__(self, what: str) -> None:
        """Say it."""
        print(f"{time.monotonic() - self._start:6.1f} s  {what}", flush=True)


def packed(out: Path, megabytes: float) -> tuple[Path, int]:
    """A corpus of Python sources in shards; their folder and its samples."""
    corpus, shards = out / "corpus", out / "shards"
    gather = [str(ROOT / "tools/python_sources.py"), str(corpus), "--megabytes", str(megabytes)]
    write = ["-m", "shardloader", "write", str(corpus), str(shards)]
    for arguments in (gather, [*write, "--max-bytes", f"{megabytes / 20:.2f}MB"]):
        subprocess.run(  # noqa: S603 - our own programs
            [sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, cwd=ROOT
        )
    manifest = (shards / "manifest.json").read_bytes()
    return shards, sl.Manifest.from_json_bytes(manifest, name="manifest.json").num_samples


def serve(network: Network, shards: Path, out: Path, deadline: float) -> Path:
    """Start the store, and wait until the shards are there; its log."""
    host, log = network.hosts[STORE], out / "store.txt"
    command = [sys.executable, "-m", "tools.multinode.store", host.address, str(PORT), str(shards)]
    with log.open("wb") as output:
        server = host.start(command, environment=ENVIRONMENT, output=output)
    while "\nready\n" not in log.read_text(errors="replace"):
        if server.ended is not None or time.monotonic() > deadline:
            raise JobError(f"the store did not start\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.05)
    return log


class Story:
    """What befalls the hosts, and what is seen of it."""

    def __init__(self, job: Job, network: Network, plan: Plan, names: list[str]) -> None:
        self._job = job
        self._network = network
        self._plan = plan
        self._names = names
        self._pause = plan.out / "pause"
        self._say = Teller()

    def _share(self, share: float) -> int:
        return int(share * self._plan.num_samples)

    def begin(self) -> None:
        """All hosts train."""
        for name in self._names:
            self._job.start(name, head=self._names[0])
        here = self._job.come_to(self._share(0.2), hosts=len(self._names))
        self._say(f"{here.ranks} ranks on {', '.join(self._names)} train: position {here.place}")

    def lose_and_take_back(self) -> None:
        """The last host's cable is pulled; the others go on; it is put back, and all go on."""
        *left, lost = self._names
        before = self._job.progress()
        self._network.cut(lost)
        self._say(f"the cable of {lost} is pulled, at position {before.place}")
        here = self._job.come_to(self._share(0.5), hosts=len(left), after=before.launch)
        self._say(f"{', '.join(left)} go on with {here.ranks} ranks: position {here.place}")
        self._pause.touch()  # so that there is something left to do for those who come back
        self._job.fence(lost)
        self._say(f"the ranks of {lost} have given up; what is left there is ended")
        self._network.mend(lost)
        self._job.start(lost, head=self._names[0])
        self._say(f"the cable of {lost} is put back, and torchrun started on it")
        all_of_them = len(self._names)
        here = self._job.come_to(here.place, hosts=all_of_them, after=here.launch)
        self._pause.unlink()
        here = self._job.come_to(self._share(0.75), hosts=all_of_them, after=before.launch)
        self._say(f"{', '.join(self._names)} go on with {here.ranks} ranks: position {here.place}")

    def ask_to_leave(self) -> None:
        """SIGTERM to torchrun on one host: all save, it leaves, the others go on."""
        leaver = self._names[1]
        before = self._job.progress()
        self._job.agents[leaver].signal(signal.SIGTERM)
        code = self._job.end_of(leaver)
        self._say(f"torchrun on {leaver} was sent SIGTERM at {before.place}, exit code {code}")
        hosts = len(self._names) - 1
        here = self._job.come_to(self._share(1.2), hosts=hosts, after=before.launch)
        self._say(f"the others go on with {here.ranks} ranks: position {here.place}")

    def lose_the_head(self) -> None:
        """The host with the rendezvous is lost: the job ends, and is started on those left."""
        head, *left = self._names
        before = self._job.progress()
        self._network.cut(head)
        self._say(f"the cable of {head}, which holds the rendezvous, is pulled at {before.place}")
        for name in self._names:
            if self._job.agents[name].ended is None:
                self._job.fence(name)
        self._say("the ranks of all hosts have given up; what is left there is ended")
        for name in left:
            self._job.start(name, head=left[0])
        here = self._job.come_to(self._share(1.5), hosts=len(left), after=before.launch)
        self._say(f"{', '.join(left)}, started anew, go on with {here.ranks} ranks: {here.place}")
        self._names = left

    def end(self) -> None:
        """Training comes to its end on the hosts that are there."""
        codes = {name: self._job.end_of(name) for name in self._names}
        self._say(f"training has ended, exit codes {codes}")
        if any(codes.values()):
            raise JobError("training did not end well")


def tell_of_the_store(network: Network, log: Path, num_shards: int) -> None:
    """What each host asked of the store."""
    asked = fetched(log.read_text(errors="replace"))
    for name, host in network.hosts.items():
        of_it = asked.get(host.address)
        if of_it:
            print(
                f"{name}: fetched {len(of_it)} of {num_shards} shards from s3://corpus, in "
                f"{of_it.total()} requests"
            )


def run(out: Path, *, is_small: bool) -> int:
    """Everything, from packing to the audit; the audit's exit code."""
    deadline = time.monotonic() + (SMALL_LIMIT_S if is_small else LIMIT_S)
    names = ["node1", "node2"] if is_small else ["node1", "node2", "node3"]
    with Network([*names, STORE], out) as network:
        shards, num_samples = packed(out, 3 if is_small else 8)
        log = serve(network, shards, out, deadline)
        plan = Plan(
            out=out,
            store=network.hosts[STORE].address,
            num_samples=num_samples,
            nodes="1:2" if is_small else "2:3",
            ranks=1 if is_small else 2,
            batch_size=BATCH_SIZE,
            epochs=1 if is_small else 2,
        )
        story = Story(Job(plan, network, deadline), network, plan, names)
        story.begin()
        story.lose_and_take_back()
        if not is_small:
            story.ask_to_leave()
            story.lose_the_head()
        story.end()
        tell_of_the_store(network, log, len(list(shards.glob("*.tar"))))
    audit = ["audit", str(out / "samples"), str(shards)]
    print(f"$ shardloader {' '.join(audit)}", flush=True)
    command = [sys.executable, "-m", "shardloader", *audit]
    return subprocess.run(command, check=False, cwd=ROOT).returncode  # noqa: S603 - our own


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(".multinode"))
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    out = options.out.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    started = time.monotonic()
    try:
        code = run(out, is_small=options.small)
    except NoHostsError as error:
        print(error, file=sys.stderr)
        sys.exit(NOT_PERMITTED)
    except JobError as error:
        sys.exit(str(error))
    print(f"the whole took {time.monotonic() - started:.0f} s")
    sys.exit(code)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
