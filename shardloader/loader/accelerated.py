"""Does Accelerate know which batch is the epoch's last?

Its `accumulate` makes the optimiser's step early where a loader says that it has given its last
batch, and asks the loader that is named in `GradientState`. Loaders that Accelerate built name
themselves there; a pass of ours does as much. Nothing is imported: where Accelerate is not in use,
a pass is a flag that nobody reads. Known of Accelerate here (1.15): `GradientState`, and that it
holds whom it names by weak reference.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final
from weakref import finalize

if TYPE_CHECKING:
    from collections.abc import Callable


class Pass:
    """One pass over a loader, named in GradientState until it is left or its iterator is gone.

    end_of_dataloader: whether the epoch's last batch has been given. remainder: -1, so that
    `gather_for_metrics` cuts nothing off: pads lie on every rank, and the mask tells them.
    """

    remainder: Final = -1

    def __init__(self, iterator: Any) -> None:
        self.end_of_dataloader = False
        self._leave: Callable[[], Any] | None = None
        state = sys.modules.get("accelerate.state")
        if state is None:
            return
        state.GradientState()._add_dataloader(self)  # noqa: SLF001  # as its own loaders do
        # An iterator that a loop has let go never says that it is left.
        leave = finalize(iterator, _forget, state.GradientState, self)
        leave.atexit = False
        self._leave = leave

    def leave(self) -> None:
        """Whoever was named before is named again."""
        if self._leave is not None:
            self._leave()


def _forget(gradient_state: Any, named: Pass) -> None:
    """Take a pass out again. The state is asked for anew: it may have been reset meanwhile."""
    gradient_state()._remove_dataloader(named)  # noqa: SLF001
