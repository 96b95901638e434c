"""Which loaders are there? Every module in `loaders` is asked for its own."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.feeding.work import Loader


def loaders() -> list[Loader]:
    """All loaders, by name."""
    names = sorted(path.stem for path in Path(__file__).with_name("loaders").glob("[a-z]*.py"))
    found: list[Loader] = []
    for name in names:
        found += import_module(f"benchmarks.feeding.loaders.{name}").LOADERS
    return sorted(found, key=lambda loader: loader.name)


def find(name: str) -> Loader:
    """The loader of that name."""
    return next(loader for loader in loaders() if loader.name == name)
