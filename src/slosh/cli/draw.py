"""Pictures of sets: a query and its neighbours beside each other, one line for each query.

Panels of points in 2 or 3 dimensions come in; a picture file goes out. Needs matplotlib: `pip install "slosh[plot]"`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.cells import cell_len

from ..data.sets import Sets
from ..engines.base import Records
from ..errors import InputError, import_extra
from ..index.hits import Hits
from ..index.set_index import SetIndex
from ..native.arrays import Float64

MAX_LINES = 12
"""Lines of a picture."""
MAX_POINTS = 3000
"""Points drawn of one set; a larger one is thinned evenly."""
LINE_NEIGHBOURS, LINE_SETS = 10, 6
"""Neighbours of a query, and sets without a query, beside each other."""
MAX_DRAWN_NEIGHBOURS = 30
PANEL_INCHES = 1.45
INK, BLUE, FRAME = "0.1", "#0072B2", "0.8"
TITLE_COLUMNS = 21
"""Width of a title, which has two lines at most; the middle of a longer one is left out."""


class Panel(NamedTuple):
    """A set in a picture: a collection of one set in 2 or 3 dimensions, a title, a second line, and a colour."""

    cloud: Sets
    title: str
    note: str = ""
    colour: str | None = None


def check_drawable(dim: int) -> None:
    """Refuse what cannot be drawn, before anything is computed for it."""
    if dim not in (2, 3):
        raise InputError(
            f"a picture needs points in 2 or 3 dimensions, and these have {dim}", "reduce them, e.g. by PCA"
        )
    _figure_class()


def draw(
    rows: Sequence[Sequence[Panel | None]],
    path: str | os.PathLike[str],
    *,
    one_scale: bool = True,
    flip: bool = False,
    queries: bool = True,
    title: str | None = None,
) -> None:
    """Draw panels in lines and save the picture, in the format that the extension of `path` names; None stays empty.

    one_scale  let all panels show the same part of space; otherwise each shows its own set, whatever its place and size
    flip       let the second coordinate point down, as in images
    queries    mark the first panel of each line as the query
    """
    rows = [row for row in rows if len(row)]
    if not rows:
        raise InputError("there is nothing to draw", "give at least one line of panels")
    panels = [panel for row in rows for panel in row if panel is not None]
    dim = panels[0].cloud.dim
    check_drawable(dim)
    window = _window(panels) if one_scale else None
    wide = max(len(row) for row in rows)
    height = PANEL_INCHES + 0.12 * (1 + max(_title(panel, is_query=True).count("\n") for panel in panels)) + 0.1
    wide_in, high_in = PANEL_INCHES * wide + 0.2, height * len(rows) + 0.15 + 0.3 * (title is not None)
    figure = _figure_class()(figsize=(wide_in, high_in))
    room = (0, 0, 1, 1 - 0.12 * (dim == 3) / high_in)  # axes in 3-D take their titles for lower than they are
    figure.set_layout_engine("constrained", w_pad=0.03, h_pad=0.03, wspace=0.02, hspace=0.03, rect=room)
    grid = figure.add_gridspec(len(rows), wide)
    for i, row in enumerate(rows):
        for j, panel in enumerate(row):
            if panel is None:
                continue
            axes = figure.add_subplot(grid[i, j], projection="3d" if dim == 3 else None)
            _draw_panel(axes, panel, window, flip, is_query=queries and j == 0)
    if title is not None:
        figure.suptitle(title, fontsize=11)
    with missing_glyphs_are_boxes():
        figure.savefig(path, dpi=130, facecolor="white")


class Picture:
    """The queries and their neighbours, as many as fit into a picture."""

    def __init__(self, index: SetIndex) -> None:
        check_drawable(index.dim)
        self._index: Any = index
        self._lines: list[list[Panel | None]] = []
        self._n_drawn, self._most_hits, self._full = 0, 0, False

    def add(self, name: str, query: Sets | None, hits: Hits) -> None:
        """Add a query, which is None if it is the stored set of that name, unless the picture is full."""
        if self._full:
            return
        lines = self._query_lines(name, query, hits)
        self._full = bool(self._lines) and len(self._lines) + len(lines) > MAX_LINES
        if not self._full:
            self._lines += lines
            self._n_drawn, self._most_hits = self._n_drawn + 1, max(self._most_hits, len(hits))

    def _query_lines(self, name: str, query: Sets | None, hits: Hits) -> list[list[Panel | None]]:
        """Return the query and its nearest beside it, with more of them in lines below."""
        ids = hits.ids[:MAX_DRAWN_NEIGHBOURS]
        first = Panel(self._index.get([name]).sets if query is None else query, name)
        sets = self._index.get(ids).sets
        near = [Panel(sets[j : j + 1], id, f"{hits.distances[j]:.4g}") for j, id in enumerate(ids)]
        starts = range(0, len(near) or 1, LINE_NEIGHBOURS)
        return [[first if start == 0 else None, *near[start : start + LINE_NEIGHBOURS]] for start in starts]

    def save(self, path: Path, flip: bool, n_queries: int) -> str:
        """Save the picture, and return a line that says what is in it."""
        steps = str(self._index.info()["preprocess"])
        place_and_size_count = "center" not in steps and "scale" not in steps
        draw(self._lines, path, one_scale=place_and_size_count, flip=flip)
        some = f", the first {self._n_drawn:,} of {n_queries:,} queries" * (self._n_drawn < n_queries)
        nearest = f", the {MAX_DRAWN_NEIGHBOURS} nearest of each" * (self._most_hits > MAX_DRAWN_NEIGHBOURS)
        return f"drawn in {path}{some}{nearest}"


def draw_sets(found: Records, path: Path, flip: bool) -> None:
    """Draw stored sets beside each other, each at its own scale."""
    panels = [Panel(found.sets[i : i + 1], name) for i, name in enumerate(found.ids)]
    lines = [panels[i : i + LINE_SETS] for i in range(0, len(panels), LINE_SETS)]
    draw(lines[:MAX_LINES], path, one_scale=False, flip=flip, queries=False)


@contextmanager
def missing_glyphs_are_boxes() -> Iterator[None]:
    """Silence matplotlib's warnings, one for each character that its font lacks."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        yield


def _figure_class() -> Any:
    return import_extra("matplotlib.figure", "a picture", "plot").Figure


def _window(panels: Sequence[Panel]) -> tuple[Float64, float]:
    """Return the middle and half the side of a square, or cube, around all points."""
    points = np.concatenate([panel.cloud.points for panel in panels], dtype=np.float64)
    low, high = points.min(axis=0), points.max(axis=0)
    return (low + high) / 2, float((high - low).max()) / 2 or 1.0


def _draw_panel(axes: Any, panel: Panel, window: tuple[Float64, float] | None, flip: bool, is_query: bool) -> None:
    middle, half = window or _window([panel])
    points, weights = panel.cloud.points, panel.cloud.weights
    if len(points) > MAX_POINTS:
        kept = np.linspace(0, len(points) - 1, MAX_POINTS).astype(np.int64)
        points, weights = points[kept], None if weights is None else weights[kept]
    colour = panel.colour or (INK if is_query else BLUE)
    room = half * 1.15
    lows, highs = middle - room, middle + room
    axes.set(xlim=(lows[0], highs[0]), ylim=(highs[1], lows[1]) if flip else (lows[1], highs[1]))
    if points.shape[1] == 3:
        axes.set(zlim=(lows[2], highs[2]))
        axes.set_box_aspect((1, 1, 1), zoom=1.35)
        axes.view_init(elev=22, azim=-60)
        axes.set_axis_off()
    else:
        axes.set(aspect="equal", xticks=[], yticks=[])
        for side in axes.spines.values():
            side.set(color=INK if is_query else FRAME, linewidth=1.4 if is_query else 0.8)
    # Points of one size would cover a third of the panel: small sets get large points.
    area = float(np.clip((72 * PANEL_INCHES) ** 2 / 3 / len(points), 1.2, 100))
    sizes = area if weights is None else np.maximum(area * weights / weights.max(), 0.3)
    axes.scatter(*points.T, s=sizes, color=colour, linewidths=0, alpha=0.85)
    weight = "bold" if is_query else "normal"
    axes.set_title(_title(panel, is_query), fontsize=7.5, color=colour, pad=3, fontweight=weight)


def _title(panel: Panel, is_query: bool) -> str:
    name = "\n".join(fold_name(panel.title))
    note = panel.note or ("query" if is_query else "")
    text = f"{note}\n{name}" if is_query else f"{name}\n{note}" if note else name
    return text.replace("$", r"\$")


def fold_name(name: str) -> list[str]:
    """Return a name in one or two lines, broken after one of / _ - . and space where possible.

    >>> fold_name("chair/chair_0001.off"), fold_name("furniture/chair/chair_0001.off")
    (['chair/chair_0001.off'], ['furniture/chair/', 'chair_0001.off'])
    """
    if cell_len(name) <= TITLE_COLUMNS:
        return [name]
    most, least = _fitting(name, TITLE_COLUMNS), len(name) - _fitting(name[::-1], TITLE_COLUMNS)
    if most < least:
        return [name[: _fitting(name, TITLE_COLUMNS - 1)] + "…", name[least:]]
    at = next((i for mark in ("/", " _-.") for i in range(most, least - 1, -1) if name[i - 1] in mark), most)
    return [name[:at], name[at:]]


def _fitting(text: str, columns: int) -> int:
    """Return how many characters of a text fit into so many columns of a terminal."""
    return int(np.searchsorted(np.cumsum([cell_len(character) for character in text]), columns, side="right"))
