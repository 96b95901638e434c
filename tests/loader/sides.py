"""A device that is none: what a GPU promises, and what has to be kept to, as a specification.

A copy is only begun when it is asked for; the test says when the device does it. Until then the
copy's memory holds nothing of use, the host's memory is being read, and whoever used either without
waiting, or let go of it, has broken the rule. The loop's stream is `"loop"`.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

NOT_THERE = 77


@dataclass(eq=False)
class FakeEvent:
    """Done when the device has done all copies that were begun before it."""

    copies: int
    side: FakeSide

    def is_done(self) -> bool:
        return self.side.num_done >= self.copies


@dataclass
class FakeSide:
    """Records what is asked of it. is_eager: whether copies are done as soon as they are begun."""

    is_eager: bool = True
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    begun: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    num_done: int = 0
    stream: str = "loop"

    @contextmanager
    def current(self) -> Iterator[None]:
        self.calls.append(("current",))
        yield

    def pinned(self, tensor: Tensor) -> Tensor:
        self.calls.append(("pinned",))
        return tensor.clone()

    @contextmanager
    def copying(self) -> Iterator[None]:
        assert self.stream == "loop"
        self.stream = "copies"
        try:
            yield
        finally:
            self.stream = "loop"

    def copied(self, tensor: Tensor) -> Tensor:
        assert self.stream == "copies", "a copy on the loop's stream waits for its computation"
        there = torch.full_like(tensor, NOT_THERE if tensor.dtype != torch.bool else True)
        self.begun.append((tensor, there))
        self.calls.append(("copied",))
        if self.is_eager:
            self.work()
        return there

    def event(self) -> FakeEvent:
        assert self.stream == "copies", "the event is of the copy, not of the loop"
        self.calls.append(("event",))
        return FakeEvent(len(self.begun), self)

    def is_done(self, event: FakeEvent) -> bool:
        return event.is_done()

    def wait(self, event: FakeEvent) -> None:
        """What the loop's stream does after this comes after the copy."""
        assert self.stream == "loop"
        self.calls.append(("wait", event))
        while not event.is_done():
            self.work()

    def keep(self, tensor: Tensor) -> None:
        assert self.stream == "loop", "it is the loop's stream that uses the memory"
        self.calls.append(("keep", tensor.data_ptr()))

    def moved(self, value: Any) -> Any:
        assert self.stream == "loop"
        self.calls.append(("moved",))
        return value.to("there")

    def work(self) -> None:
        """Do the next copy."""
        source, there = self.begun[self.num_done]
        there.copy_(source)
        self.num_done += 1

    def count(self, name: str) -> int:
        return sum(call[0] == name for call in self.calls)
