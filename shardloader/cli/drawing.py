"""How is the picture of a plan drawn?

Colours tell ranks apart, also to the colour-blind: Okabe and Ito's palette for up to eight ranks
(or workers of one rank), lighter for higher workers, and the cividis scale for more.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shardloader.cli import report
from shardloader.errors import MissingExtraError, UsageError
from shardloader.planning.picture import NOBODY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shardloader.planning.picture import Picture
    from shardloader.planning.planned import Plan

ENDINGS: Final = (".png", ".pdf", ".svg")

# Okabe and Ito, "Color Universal Design" (2008), without black, and grey for yellow's neighbour.
_PALETTE: Final = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#F0E442",
    "#7F7F7F",
)
_LIGHTEST: Final = 0.6  # how far the last worker's colour goes to white
_INCHES: Final = (11.0, 6.5)
_DOTS_AN_INCH: Final = 150


def check(path: str) -> None:
    """Refuse what can't be drawn before there is any work.

    Raises UsageError for a file of another format, MissingExtraError without matplotlib.
    """
    if Path(path).suffix.lower() not in ENDINGS:
        raise UsageError(f"--plot writes {', '.join(ENDINGS)}, by the file's ending, not {path!r}")
    _matplotlib()


def _matplotlib() -> Any:
    try:
        import matplotlib.backends.backend_agg
        import matplotlib.cm
        import matplotlib.colors
        import matplotlib.figure
        import matplotlib.patches
    except ImportError:
        raise MissingExtraError(
            "drawing a plan needs the package matplotlib: pip install 'shardloader[plot]', or "
            "leave --plot out"
        ) from None
    return matplotlib


def draw(path: str, picture: Picture, stretches: Sequence[Plan], source: str) -> None:
    """Draw a picture into a file, whose ending says in which format."""
    matplotlib = _matplotlib()
    figure = matplotlib.figure.Figure(figsize=_INCHES, dpi=_DOTS_AN_INCH, layout="constrained")
    matplotlib.backends.backend_agg.FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    num_ranks = max(plan.dealing.world_size for plan in stretches)
    num_workers = max(max(1, plan.num_workers) for plan in stretches)
    colours = _colours(picture, num_ranks, num_workers)
    # Columns and rows are of unequal widths by one at most, and a stretch's by what it needs.
    axes.pcolorfast(picture.columns, picture.rows, colours)
    for change in picture.changes:
        axes.axvline(change, color="black", linewidth=1.2, linestyle="--")
    axes.set_xlabel("step of the epoch")
    axes.set_ylabel(_shards_label(picture))
    axes.set_title(_title(picture, stretches, source), fontsize="medium", loc="left")
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_major_locator().set_params(integer=True)
        axis.set_major_formatter(_thousands)
    _legend(figure, axes, num_ranks, num_workers)
    figure.savefig(path, format=Path(path).suffix.lower()[1:])


def _colours(picture: Picture, num_ranks: int, num_workers: int) -> NDArray[np.float64]:
    """The cells' colours, float64 [rows, columns, 3]; white where nobody reads."""
    rank, worker = picture.rank, picture.worker
    if num_ranks == 1 and num_workers <= len(_PALETTE):
        colours = _palette()[worker]
    elif num_ranks <= len(_PALETTE):
        lighter = (worker / max(1, num_workers - 1) * _LIGHTEST)[..., None]
        colours = _palette()[rank] * (1 - lighter) + lighter
    else:
        scale = _matplotlib().colormaps["cividis"]
        colours = scale(rank / (num_ranks - 1))[..., :3]
    return np.where((rank == NOBODY)[..., None], 1.0, colours)


def _palette() -> NDArray[np.float64]:
    return np.array([_matplotlib().colors.to_rgb(colour) for colour in _PALETTE])


def _legend(figure: Any, axes: Any, num_ranks: int, num_workers: int) -> None:
    matplotlib = _matplotlib()
    if num_ranks > len(_PALETTE):
        scale = matplotlib.cm.ScalarMappable(
            matplotlib.colors.Normalize(0, num_ranks - 1), matplotlib.colormaps["cividis"]
        )
        bar = figure.colorbar(scale, ax=axes, label="rank")
        bar.locator.set_params(integer=True)
        bar.formatter = _thousands
        bar.update_ticks()
        return
    by_worker = num_ranks == 1 and 1 < num_workers <= len(_PALETTE)
    word, number = ("worker", num_workers) if by_worker else ("rank", num_ranks)
    notes = ["striped: several read it"]
    if not by_worker and num_workers > 1:
        notes += ["dark: worker 0", f"light: worker {num_workers - 1}"]
    handles = [
        matplotlib.patches.Patch(color=colour, label=f"{word} {each}")
        for each, colour in zip(range(number), _PALETTE, strict=False)
    ]
    axes.legend(
        handles=handles[::-1],  # as they lie in the picture, the first at the bottom
        title="\n".join(notes),
        loc="center left",
        bbox_to_anchor=(1.01, 0.5),
        frameon=False,
    )


def _thousands(value: float, _: object = None) -> str:
    return f"{value:,.0f}"


def _shards_label(picture: Picture) -> str:
    a_row = picture.rows[-1] / (len(picture.rows) - 1)
    several = "" if a_row == 1 else f" ({a_row:,.1f} shards a row)"
    return f"shard, in the order of reading{several}"


def _title(picture: Picture, stretches: Sequence[Plan], source: str) -> str:
    first = stretches[0].checkpoint
    window = "no shuffle" if first.window is None else f"window {first.window:,}"
    lines = [
        f"Who reads which shard when: {report.printable(source)}, epoch {first.epoch}, {window}",
        "; then ".join(
            f"{report.plural(plan.dealing.world_size, 'rank')} x "
            f"{report.plural(plan.num_workers, 'worker')}, batch {plan.dealing.batch_size:,}"
            for plan in stretches
        ),
    ]
    if not picture.is_exact:
        lines.append("drawn where a worker may be reading: its place and two windows to each side")
    return "\n".join(lines)
