"""Fuzz one target with atheris, guided by what lines of the package an input reaches.

    python -m tests.fuzz.one TARGET CORPUS -max_total_time=15 [any option of libFuzzer]

CORPUS is a folder, which is filled with the target's examples and kept seeds first. The process
ends with code 0, or with 77 at the first input that breaks a rule, which `-artifact_prefix` keeps.
"""

from __future__ import annotations

import hashlib
import random
import resource
import sys
from pathlib import Path

MEMORY_BYTES = 2 << 30  # what an input may make the process ask for, besides what it has


def main() -> None:
    """Run libFuzzer, which does not return."""
    import atheris

    name, corpus, *options = sys.argv[1:]
    with atheris.instrument_imports(include=["shardloader"]):
        from tests.fuzz.targets import TARGETS
    from tests.fuzz.kept import seeds_of

    target = TARGETS[name]
    folder = Path(corpus)
    folder.mkdir(parents=True, exist_ok=True)
    for example in (*target.examples(), *(path.read_bytes() for path in seeds_of(name))):
        (folder / hashlib.sha256(example).hexdigest()[:20]).write_bytes(example)
    target.check(next(iter(target.examples())))  # whatever is imported or made late, is so now
    _limit_memory()

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        changed = target.mutate(data, rng) if rng.randrange(4) else data
        if changed == data:
            changed = atheris.Mutate(data, min(max_size, target.max_bytes))
        return changed[:max_size]

    arguments = [sys.argv[0], str(folder), f"-max_len={target.max_bytes}", "-timeout=60"]
    atheris.Setup(
        [*arguments, "-rss_limit_mb=3000", "-print_final_stats=1", *options],
        target.check,
        custom_mutator=mutate,
    )
    atheris.Fuzz()


def _limit_memory() -> None:
    """Let what asks for a declared size fail, though it never touches the memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    main()
