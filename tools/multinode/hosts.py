"""What is a host here? A set of namespaces of its own, on one wire with the others.

A host has its own network, with an address and a cable that can be pulled, its own processes, its
own name, and an /etc/hosts that knows all of them. The files are everybody's, as on a cluster with
a shared file system. Nothing is made in the namespace of this process, and nothing has a name
outside of its own: a host is what hangs on its first process, which lives as long as the pipe to it
is open. So when this process ends, however it ends, no host, no link and no process is left.

Needs root, or CAP_SYS_ADMIN and CAP_NET_ADMIN, and `ip`, `unshare` and `nsenter`.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Final, Self

import psutil

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

SUBNET: Final = "10.77.0"
BRIDGE: Final = "wire"
PROGRAMS: Final = ("ip", "unshare", "nsenter")
FIRST_PROCESS: Final = "echo ready; exec cat > /dev/null"
COMMAND_LIMIT_S: Final = 60


class NoHostsError(Exception):
    """Hosts can't be made here: a program is missing, or the rights are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host of a network: its name, address, port of the wire, its first process, its commands."""

    name: str
    address: str
    port: str
    pid: int
    commands: list[Command] = field(default_factory=list)

    def start(
        self, command: Sequence[str], *, environment: Mapping[str, str], output: IO[bytes]
    ) -> Command:
        """Start a command on the host, with nothing of this process's environment."""
        inside = ["nsenter", "--target", str(self.pid), "--net", "--pid", "--uts", "--mount"]
        started = subprocess.Popen(  # noqa: S603 - what the scenario runs
            [*inside, "--", *command],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        self.commands.append(Command(started))
        return self.commands[-1]


class Command:
    """A command that runs on a host."""

    def __init__(self, entered: subprocess.Popen[bytes]) -> None:
        self._entered = entered  # nsenter, which waits for the command

    @property
    def pid(self) -> int:
        """The process that waits for the command, and ends with it."""
        return self._entered.pid

    @property
    def ended(self) -> int | None:
        """The exit code, None while it runs; negative for a signal."""
        return self._entered.poll()

    @property
    def has_children(self) -> bool:
        """Whether anything runs that the command started."""
        alive = 0
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                alive += process.status() != psutil.STATUS_ZOMBIE
        return alive > 1

    def signal(self, number: int) -> None:
        """Send a signal to the command itself, not to what it started."""
        for process in self._processes()[:1]:
            process.send_signal(number)

    def wait(self, limit_s: float) -> int | None:
        """The exit code once it has ended; None where it goes on for longer."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._entered.wait(limit_s)
        return None

    def kill(self) -> None:
        """End the command and all that it started."""
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._entered.wait(COMMAND_LIMIT_S)

    def _processes(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return list(psutil.Process(self._entered.pid).children(recursive=True))
        return []


class Network:
    """Hosts by name, all on one wire; a context manager that ends them.

    Raises NoHostsError where they can't be made.
    """

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        self._names = tuple(names)
        self._addresses = {name: f"{SUBNET}.{n}" for n, name in enumerate(names, start=1)}
        self._hosts_file = folder / "hosts"
        self._first: list[subprocess.Popen[bytes]] = []
        self._switch = 0
        self.hosts: dict[str, Host] = {}

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _make(self) -> None:
        missing = [program for program in PROGRAMS if not shutil.which(program)]
        if missing:
            raise NoHostsError(
                f"hosts of namespaces need {', '.join(PROGRAMS)}: {missing[0]} is "
                "missing; Debian has them in iproute2 and util-linux"
            )
        lines = ["127.0.0.1 localhost", *(f"{a} {name}" for name, a in self._addresses.items())]
        self._hosts_file.write_text("\n".join(lines) + "\n")
        self._switch = self._first_process(["--net"], FIRST_PROCESS)
        self._on_switch("link", "add", BRIDGE, "type", "bridge")
        self._on_switch("link", "set", BRIDGE, "up")
        for name, address in self._addresses.items():
            self.hosts[name] = self._host(name, address)

    def _host(self, name: str, address: str) -> Host:
        prepare = (
            f"hostname {name} && mount --bind {self._hosts_file.resolve()} /etc/hosts"
            f" && {FIRST_PROCESS}"
        )
        spaces = ["--net", "--uts", "--mount", "--mount-proc"]
        pid = self._first_process(spaces, prepare)
        port = f"to-{name}"
        self._on_switch(
            *("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        )
        self._on_switch("link", "set", port, "master", BRIDGE, "up")
        inside = ["nsenter", "--target", str(pid), "--net", "ip"]
        _run([*inside, "address", "add", f"{address}/24", "dev", "eth0"])
        _run([*inside, "link", "set", "lo", "up"])
        _run([*inside, "link", "set", "eth0", "up"])
        return Host(name=name, address=address, port=port, pid=pid)

    def _first_process(self, spaces: Sequence[str], script: str) -> int:
        """Start the process that a set of namespaces hangs on; its number."""
        process = subprocess.Popen(  # noqa: S603 - our own script
            ["unshare", *spaces, "--pid", "--fork", "--kill-child", "--", "sh", "-c", script],  # noqa: S607
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._first.append(process)
        if process.stdout is None or process.stdout.readline() != b"ready\n":
            process.kill()
            said = process.communicate()[1].decode(errors="replace").strip()
            raise NoHostsError(
                "namespaces of their own are not permitted here (they need root, or a container "
                f"with --privileged): {said}"
            )
        (child,) = psutil.Process(process.pid).children()
        return int(child.pid)

    def _on_switch(self, *arguments: str) -> None:
        _run(["nsenter", "--target", str(self._switch), "--net", "ip", *arguments])

    def cut(self, name: str) -> None:
        """Pull the host's cable: what it sends and what is sent to it is lost, in silence."""
        self._on_switch("link", "set", self.hosts[name].port, "down")

    def mend(self, name: str) -> None:
        """Put the cable back."""
        self._on_switch("link", "set", self.hosts[name].port, "up")

    def _end(self) -> None:
        for process in self._first:
            process.kill()  # and with it all that runs there
        for process in self._first:
            process.communicate()
        self._first.clear()
        for host in self.hosts.values():
            for command in host.commands:
                command.kill()


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(  # noqa: S603 - ip, as above
        command, capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=False
    )
    if done.returncode:
        raise NoHostsError(f"{' '.join(command[4:])}: {done.stderr.strip()}")
