"""Bars and sparklines of characters."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from rich.text import Text

from assay.base.shapes import Float64
from assay.records.phase import Phase
from assay.reporting.charts.plots import PHASES

_STYLES = (
    "green", "bright_green", "bright_yellow", "blue", "bright_cyan", "cyan", "magenta", "bright_blue", "yellow",
    "bright_magenta", "red", "dark_orange", "bright_red", "bright_black",
)  # fmt: skip
PHASE_STYLES: dict[Phase, str] = dict(zip(PHASES, _STYLES, strict=True))

_LEVELS = "▁▂▃▄▅▆▇█"


def phase_bar(seconds: Mapping[Phase, float], *, width: int = 60) -> Text:
    """Return a bar of `width` characters by phase; every phase with time gets at least one."""
    present = [phase for phase in PHASE_STYLES if seconds.get(phase, 0.0) > 0]
    total = sum(seconds[phase] for phase in present)
    bar = Text()
    if not present:
        return bar
    exact = np.array([seconds[phase] / total * width for phase in present])
    cells = np.maximum(1, np.floor(exact)).astype(int)
    while cells.sum() != width:
        error = exact - cells
        movable = np.where(cells > 1, error, np.inf)
        index = int(np.argmax(error)) if cells.sum() < width else int(np.argmin(movable))
        cells[index] += 1 if cells.sum() < width else -1
    for phase, count in zip(present, cells.tolist(), strict=True):
        bar.append("█" * count, style=PHASE_STYLES[phase])
    return bar


def sparkline(values: Sequence[float], *, width: int = 60, others: Iterable[Sequence[float]] = ()) -> str:
    """Return the values as `width` characters, each a mean; a space where no value is finite. The scale spans the
    `others` too."""
    means = _means(values, width)
    if not np.isfinite(means).any():
        return ""
    on_scale = np.concatenate([means, *(_means(other, width) for other in others)])
    low, high = np.nanmin(on_scale), np.nanmax(on_scale)
    scaled = (means - low) / (high - low or 1.0) * (len(_LEVELS) - 1)
    return "".join(" " if np.isnan(level) else _LEVELS[round(level)] for level in scaled.tolist())


def _means(values: Sequence[float], width: int) -> Float64[np.ndarray, "character"]:
    parts = np.array_split(np.asarray(values, float), min(width, max(1, len(values))))
    numbers = [part[np.isfinite(part)] for part in parts]
    return np.array([part.mean() if len(part) else np.nan for part in numbers])
