"""Gather real text that every machine has: Python sources of the library and of packages.

    python tools/python_sources.py DST --megabytes 24

Copies the interpreter's own library and installed packages, file by file, until the size is
reached: alternating between the two, in the order of their names. Names with more than one dot
are left out, since WebDataset splits a name at its first.
"""

from __future__ import annotations

import argparse
import shutil
import sysconfig
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST_BYTES = 200_000  # generated tables are no text to learn from


def sources() -> Iterator[tuple[Path, Path]]:
    """Pairs of a source file and its place in the corpus."""
    library = _sources_in("library", sysconfig.get_path("stdlib"))
    packages = _sources_in("packages", sysconfig.get_path("purelib"))
    for pair in zip_longest(library, packages):  # some of each, whatever the size asked for
        yield from filter(None, pair)


def _sources_in(name: str, root: str) -> Iterator[tuple[Path, Path]]:
    for path in sorted(Path(root).rglob("*.py")):
        inside = path.relative_to(root)
        hidden = any(part.startswith((".", "__pycache__")) for part in inside.parts)
        elsewhere = name == "library" and "site-packages" in inside.parts
        if not hidden and not elsewhere and inside.name.count(".") == 1:
            yield path, Path(name) / inside


def gather(destination: Path, num_bytes: int) -> tuple[int, int]:
    """Copy sources until they have `num_bytes`; how many files, and how many bytes."""
    files = copied = 0
    for path, place in sources():
        size = path.stat().st_size
        if copied >= num_bytes:
            break
        if not 0 < size <= LARGEST_BYTES:
            continue
        target = destination / place
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        files += 1
        copied += size
    return files, copied


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("destination", type=Path)
    parser.add_argument("--megabytes", type=float, default=24.0)
    options = parser.parse_args()
    files, copied = gather(options.destination, int(options.megabytes * 1e6))
    print(f"{files} files, {copied / 1e6:.1f} MB in {options.destination}")


if __name__ == "__main__":
    main()
