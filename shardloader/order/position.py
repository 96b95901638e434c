"""Where does training stand, and what do load, set_epoch, break and the epoch's end make of it?

One frozen value and its transitions. Each returns the next position and, where a user should be
told, a sentence; whoever holds the position logs it. Positions count what the training loop has
received, never what workers hold ready.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardloader.order.integers import checked


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Epoch and positions consumed in it, with what the rules need to know of how it came about.

    running: batches of this epoch have been received, by an iterator that may still go on; loaded:
    it is what a state said, and nothing was received since; pending: the epoch that set_epoch
    asked for while an iterator was running; empty: the next iterator gives nothing, because its
    epoch is the one that the loaded state had finished.
    """

    epoch: int = 0
    consumed: int = 0
    running: bool = False
    loaded: bool = False
    pending: int | None = None
    empty: bool = False

    def load(self, *, epoch: int, consumed: int) -> Position:
        """What a state says."""
        return Position(epoch=epoch, consumed=consumed, loaded=True)

    def set_epoch(self, epoch: int, *, length: int) -> tuple[Position, str | None]:
        """Obey set_epoch; `length` is the positions of an epoch."""
        epoch = checked("set_epoch(epoch)", epoch, least=0, below=2**62)
        if self.running:
            return replace(self, pending=None if epoch == self.epoch else epoch), None
        if epoch == self.epoch:
            return replace(self, empty=False), None
        if self.loaded and self.consumed == 0 and epoch == self.epoch - 1:
            return replace(self, empty=True), (
                f"the loaded state had finished epoch {epoch}: its pass is empty, and epoch "
                f"{self.epoch} comes next"
            )
        note = None
        if self.consumed:
            note = (
                f"set_epoch({epoch}) drops the position {self.consumed} of epoch {self.epoch}, "
                f"with {length - self.consumed} samples unread; epoch {epoch} starts from its "
                "beginning"
            )
        elif self.loaded:
            note = (
                f"set_epoch({epoch}) leaves the loaded state, which stands at the beginning of "
                f"epoch {self.epoch}: no sample of it was read, and epoch {epoch} comes next"
            )
        return Position(epoch=epoch), note

    def begin(self, *, length: int) -> tuple[Position, str | None]:
        """Where an iterator starts that is asked for its first batch now."""
        if not self.running:
            return replace(self, empty=False), None
        epoch = self.epoch if self.pending is None else self.pending
        again = "starts again from its beginning" if epoch == self.epoch else "was left"
        return Position(epoch=epoch), (
            f"epoch {self.epoch} was broken off with {length - self.consumed} samples unread and "
            f"{again}: to go on where it was, load the state"
        )

    def receive(self, consumed: int, *, is_last: bool) -> Position:
        """A batch, or the end of an epoch, was received; `consumed` counts what it makes."""
        if not is_last:
            return Position(epoch=self.epoch, consumed=consumed, running=True, pending=self.pending)
        return Position(epoch=self.epoch + 1 if self.pending is None else self.pending)

    def skip(self, consumed: int, *, is_last: bool) -> Position:
        """Training moves on to `consumed` without reading what lies between.

        The next batch comes from a new iterator, so an epoch that set_epoch asked for begins.
        """
        if is_last or self.pending not in {None, self.epoch}:
            return self.receive(consumed, is_last=True)
        return Position(epoch=self.epoch, consumed=consumed)
