"""A server that speaks what `huggingface_hub` asks of the Hugging Face Hub to read a dataset.

    python -m tests.servers.hub

prints its URL and goes on until its input ends. As on the Hub, a large file's URL is answered by
one of another host, signed, where its bytes are and no token may be shown; a repository is only
there for whoever shows the token; lists come in pages. Repositories are made by the first file that
is put into them; they have one revision.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, quote, unquote

from tests.servers.answering import answer
from tests.servers.processes import serve, started
from tests.servers.putting import ask, put_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

TOKEN: Final = "hf_t3stingSecret"  # noqa: S105  # it opens nothing but this server
OWNER: Final = "testing"
_PAGE: Final = 50  # entries of a list
_RANGE: Final = re.compile(r"bytes=(\d+)-(\d*)")
_REPO: Final = re.compile(r"/api/datasets/(?P<repo>[^/]+/[^/]+)(/revision/[^/]+)?")
_TREE: Final = re.compile(r"/api/datasets/(?P<repo>[^/]+/[^/]+)/tree/[^/]+(?P<path>/.*)?")
_PATHS: Final = re.compile(r"/api/datasets/(?P<repo>[^/]+/[^/]+)/paths-info/[^/]+")
_FILE: Final = re.compile(r"/datasets/(?P<repo>[^/]+/[^/]+)/resolve/[^/]+/(?P<path>.+)")


class Hub:
    """A server that runs. url: its endpoint."""

    def __init__(self, url: str) -> None:
        self.url = url

    def options(self, url: str | None = None) -> dict[str, Any]:
        """Options of a file system that reads it, there or behind another URL."""
        return {"endpoint": url or self.url, "token": TOKEN}

    def put(self, name: str, path: str, data: bytes, *, is_large: bool = True) -> None:
        """Put a file into a dataset's repository; is_large: as files are that git does not hold."""
        target = f"/{'cdn' if is_large else 'git'}/{OWNER}/{name}/{quote(path, safe='')}"
        ask(self.url, "PUT", target, data)

    def put_folder(self, name: str, folder: Path, below: str = "corpus") -> str:
        """Put a folder's files into a repository; give their URL."""
        put_files(partial(self.put, name), folder, below)
        return f"hf://datasets/{OWNER}/{name}/{below}"


@contextmanager
def hub_server() -> Iterator[Hub]:
    """Run a server of this user's own on a free port."""
    with started(sys.executable, "-m", "tests.servers.hub") as url:
        yield Hub(url)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    repos: dict[str, dict[str, bytes]]
    held_by_git: set[tuple[str, str]]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_PUT(self) -> None:
        _, kind, owner, name, path = self.path.split("/")
        repo, path = f"{owner}/{name}", unquote(path)
        self.server.repos.setdefault(repo, {})[path] = self._body()
        if kind == "git":
            self.server.held_by_git.add((repo, path))
        answer(self, 200)

    def do_POST(self) -> None:
        asked = parse_qs(self._body().decode())
        files, _ = self._found(_PATHS)
        if files is not None:
            tree = _tree(files)
            self._send_json([tree[path] for path in asked["paths"] if path in tree])

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if path.startswith("/cdn/"):
            self._send_bytes(path, query)
        elif _FILE.fullmatch(path):
            self._send_place()
        elif _TREE.fullmatch(path):
            self._send_tree(parse_qs(query))
        else:
            files, repo = self._found(_REPO)
            if files is not None:
                self._send_json({"id": repo["repo"], "sha": "0" * 40, "private": True})

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def _found(self, pattern: re.Pattern[str]) -> tuple[dict[str, bytes] | None, Mapping[str, str]]:
        """The files of the repository asked for; None where it is refused, which is answered."""
        match = pattern.fullmatch(self.path.partition("?")[0])
        named = match.groupdict() if match else {}
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            answer(self, 401, {"X-Error-Message": "Invalid username or password."})
            return None, named
        files = self.server.repos.get(named.get("repo", ""))
        if files is None:
            answer(self, 404, {"X-Error-Code": "RepoNotFound"})
        return files, named

    def _send_place(self) -> None:
        files, named = self._found(_FILE)
        if files is None:
            return
        path = unquote(named["path"])
        if path not in files:
            answer(self, 404, {"X-Error-Code": "EntryNotFound"})
            return
        etag = f'"{_tree(files)[path]["oid"]}"'
        if (named["repo"], path) in self.server.held_by_git:
            self._send_part(files[path], {"ETag": etag})
            return
        port = self.headers["Host"].rpartition(":")[2]
        target = f"/cdn/{named['repo']}/{quote(path, safe='')}?Signature=s1gned"
        told = {"X-Linked-Size": str(len(files[path])), "X-Linked-Etag": etag}
        answer(self, 302, {"Location": f"http://localhost:{port}{target}", **told})

    def _send_bytes(self, path: str, query: str) -> None:
        _, _, owner, name, quoted = path.split("/")
        if query != "Signature=s1gned" or "Authorization" in self.headers:
            answer(self, 403)
        else:
            self._send_part(self.server.repos[f"{owner}/{name}"][unquote(quoted)], {})

    def _send_part(self, data: bytes, headers: Mapping[str, str]) -> None:
        span = _RANGE.fullmatch(self.headers["Range"] or "")
        if span is None:
            answer(self, 200, headers, data)
            return
        start, stop = int(span[1]), min(int(span[2] or len(data)) + 1, len(data))
        if start >= len(data):
            answer(self, 416, {"Content-Range": f"bytes */{len(data)}"})
        else:
            told = {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"}
            answer(self, 206, told, data[start:stop])

    def _send_tree(self, query: Mapping[str, list[str]]) -> None:
        files, named = self._found(_TREE)
        if files is None:
            return
        folder = unquote(named["path"] or "").strip("/")
        prefix, is_deep = folder and f"{folder}/", query["recursive"] in (["true"], ["True"])
        found = [
            entry
            for path, entry in sorted(_tree(files).items())
            if path.startswith(prefix) and (is_deep or "/" not in path[len(prefix) :])
        ]
        if folder and not found:
            answer(self, 404, {"X-Error-Code": "EntryNotFound"})
            return
        start = int(query.get("cursor", ["0"])[0])
        more = {}
        if start + _PAGE < len(found):
            words = f"recursive={query['recursive'][0]}&cursor={start + _PAGE}"
            target = f"http://{self.headers['Host']}{self.path.partition('?')[0]}?{words}"
            more = {"Link": f'<{target}>; rel="next"'}
        self._send_json(found[start : start + _PAGE], more)

    def _send_json(self, value: Any, headers: Mapping[str, str] | None = None) -> None:
        told = {"Content-Type": "application/json", **(headers or {})}
        answer(self, 200, told, json.dumps(value).encode())


def _tree(files: Mapping[str, bytes]) -> dict[str, dict[str, Any]]:
    """What lists say of a repository's files and folders, by path."""
    found: dict[str, dict[str, Any]] = {}
    for path, data in files.items():
        sha = hashlib.sha1(data, usedforsecurity=False).hexdigest()
        found[path] = {"type": "file", "path": path, "size": len(data), "oid": sha}
        parts = path.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            folder = "/".join(parts[:depth])
            found[folder] = {"type": "directory", "path": folder, "size": 0, "oid": "0" * 40}
    return found


def main() -> None:
    """Run as a process."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.repos, server.held_by_git = {}, set()
        serve(server)


if __name__ == "__main__":
    main()
