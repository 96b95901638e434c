"""Where does the design say that a loader stands? Its rules of "Epochs", written down once more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.stress.ledger import Place


@dataclass
class Stand:
    """A place, and what decides where the next iterator begins.

    running: batches were received, and not all; loaded: a state said so and nothing was received
    since; pending: what set_epoch asked for meanwhile; empty: the next pass gives nothing.
    """

    epoch: int = 0
    consumed: int = 0
    running: bool = False
    loaded: bool = False
    pending: int | None = None
    empty: bool = False

    @property
    def place(self) -> Place:
        return self.epoch, self.consumed

    @property
    def leaves(self) -> bool:
        """Whether another epoch than this one was asked for."""
        return self.pending not in {None, self.epoch}

    def loads(self, place: Place) -> None:
        self.__init__(*place, loaded=True)  # type: ignore[misc]  # everything else as at the start

    def moves(self, place: Place) -> None:
        self.__init__(*place)  # type: ignore[misc]

    def begins(self) -> None:
        """A broken off epoch begins again, or the one that was asked for does."""
        if self.running:
            self.moves((self.epoch if self.pending is None else self.pending, 0))
        self.empty = False

    def receives(self, consumed: int) -> None:
        self.consumed, self.running, self.loaded = consumed, True, False

    def finishes(self) -> None:
        self.moves((self.epoch + 1 if self.pending is None else self.pending, 0))

    def set_epoch(self, epoch: int) -> bool:
        """Obey set_epoch; whether the place moved."""
        if self.running:
            self.pending = None if epoch == self.epoch else epoch
        elif epoch == self.epoch:
            self.empty = False
        elif self.loaded and self.consumed == 0 and epoch == self.epoch - 1:
            self.empty = True
        else:
            self.moves((epoch, 0))
            return True
        return False
