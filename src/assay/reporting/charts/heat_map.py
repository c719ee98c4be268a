"""Checkpoints x benchmarks as a heat map: thousands of scores in one small drawing."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from assay.base.shapes import Float64, Int
from assay.base.units import number_of
from assay.reporting.charts.svg import FONT_WIDTH, svg_root, tag, text, title
from assay.reporting.views.benchmark_history import BenchmarkMatrix, ColumnScores

LEVELS = 8
"""Shades, from the worst score of a benchmark to its best."""
ROW, BAR = 22.0, 18.0
"""Height of a row, and of its shades."""
MAX_CELLS, MAX_BORDERS = 1000, 100


@dataclass(frozen=True)
class HeatMap:
    """A row of shades for each benchmark; checkpoints from left to right, run by run."""

    matrix: BenchmarkMatrix
    label: str
    """For screen readers."""

    def svg(self, width: int) -> str:
        """Return the drawing. Its size is bounded: a cell is the mean of several checkpoints if there are many."""
        rows, columns = self.matrix.rows, self.matrix.columns
        per_cell = -(-len(rows) // (MAX_CELLS if width > 400 else MAX_CELLS // 4)) or 1
        num_cells = -(-len(rows) // per_cell)
        longest = max((len(item.column.benchmark) for item in columns), default=0)
        left = min(FONT_WIDTH * longest + 12, width / 3)
        names = [
            text(item.column.benchmark[: int(left / FONT_WIDTH)], 0, ROW * index + 14, class_="tick")
            for index, item in enumerate(columns)
        ]
        shades = [_strokes(item, per_cell, num_cells, ROW * at + BAR / 2) for at, item in enumerate(columns)]
        first = [at for at in range(1, len(rows)) if rows[at].run_id != rows[at - 1].run_id]
        bottom = ROW * len(columns)
        borders = [
            tag("line", x1=at / per_cell, x2=at / per_cell, y1=0, y2=bottom, class_="border")
            for at in (first if len(first) <= MAX_BORDERS else ())
        ]
        # `tag` writes numbers with one decimal, which is too few for a scale.
        scale = f"translate({left:.1f} 0) scale({(width - left) / max(num_cells, 1):.6f} 1)"
        cells = tag("g", *shades, *borders, transform=scale)
        return svg_root(*names, cells, width=width, height=bottom + 4, label=self.label)


def levels(values: Float64[np.ndarray, "score"], *, higher_is_better: bool) -> Int[np.ndarray, "score"]:
    """Return the shade of each score, from 0 to `LEVELS` - 1."""
    scores = values if higher_is_better else -values
    low, high = np.nanmin(scores), np.nanmax(scores)
    share = (scores - low) / (high - low) if high > low else np.ones_like(scores)
    shades: Int[np.ndarray, "score"] = np.minimum((share * LEVELS).astype(int), LEVELS - 1)
    return shades


def _strokes(item: ColumnScores, per_cell: int, num_cells: int, y: float) -> str:
    """Return a stroke of each shade; equal shades side by side are one move of it."""
    cell = item.rows // per_cell
    counts = np.bincount(cell, minlength=num_cells)
    means = np.bincount(cell, item.values, minlength=num_cells)[counts > 0] / counts[counts > 0]
    shades = np.full(num_cells, -1)
    shades[counts > 0] = levels(means, higher_is_better=item.higher_is_better)
    moves: dict[int, list[str]] = {}
    ends_at: dict[int, int] = {}
    at = 0
    for shade, cells in groupby(shades.tolist()):
        length = len(list(cells))
        # Relative moves are short: a page of a thousand checkpoints stays small.
        move = f"m{at - ends_at[shade]} 0h{length}" if shade in ends_at else f"M{at} {y:g}h{length}"
        moves.setdefault(shade, []).append(move)
        at += length
        ends_at[shade] = at
    strokes = [tag("path", d="".join(moves[shade]), class_=f"shade h{shade}") for shade in sorted(moves) if shade >= 0]
    ends = f"{item.values.min():.4g} to {item.values.max():.4g}, {number_of(len(item.values), 'score')}"
    return tag("g", title(f"{item.column.benchmark}: {ends}"), *strokes)


def shade_legend() -> Sequence[tuple[str, str]]:
    """Return the legend."""
    return [("shade h0", "the worst score of a benchmark"), (f"shade h{LEVELS - 1}", "its best score")]
