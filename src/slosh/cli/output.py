"""What the command prints: tables and lines for people, JSON for programs, and remarks on standard error.

On a terminal a table fits its width, and long cells are folded; in a pipe it is as wide as it needs to be. Nothing is
cut. Text that comes from files cannot move the cursor or change colours: what is not printable is escaped.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from tqdm.auto import tqdm

WIDEST = 100_000
"""Columns of a table in a pipe, at most."""
MOST_KEYS = 6
"""Keys of metadata that get a column each; more are shown as JSON, in one."""


class NobodyReads(Exception):
    """Whoever read the output has closed it."""


def write(text: str) -> None:
    """To standard output, as it is."""
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        raise NobodyReads from None


def flush() -> None:
    """All that was written is on its way."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise NobodyReads from None


def say(text: str = "") -> None:
    """A line on standard output."""
    write(printable(text, "\n") + "\n")


def remark(text: str) -> None:
    """A line on standard error, above a progress bar if there is one."""
    tqdm.write(printable(text, "\n"), file=sys.stderr)


def say_json(document: Any) -> None:
    """One JSON document, on one line."""
    write(json.dumps(plain(document), ensure_ascii=False, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """Arrays as lists, NumPy's numbers as numbers, and null for what JSON has no number for."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def printable(text: str, also: str = "") -> str:
    """
    >>> printable("a\\x1b[31m\\tb")
    'a\\\\x1b[31m\\\\tb'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in also else c.encode("unicode_escape").decode() for c in text)


def say_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Iterable[str] = ()) -> None:
    """A table; the columns that are named in `numbers` are aligned to the right."""
    right = set(numbers)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(
            printable(name),
            justify="right" if name in right else "left",
            overflow="fold",
            no_wrap=name in right,
            header_style="bold",
        )
    for row in rows:
        table.add_row(*map(cell, row))
    _print(table)


def say_facts(facts: dict[str, Any]) -> None:
    """Names and what they are, one a line."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(printable(name), cell(value))
    _print(table)


def _print(table: Table) -> None:
    settings: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
    if sys.stdout.isatty():
        Console(**settings).print(table)
        return
    if table.box is not None and not (sys.stdout.encoding or "").lower().startswith("utf"):
        table.box = box.ASCII2
    drawn = io.StringIO()
    Console(file=drawn, width=WIDEST, color_system=None, force_terminal=False, **settings).print(table)
    write("".join(f"{line.rstrip()}\n" for line in drawn.getvalue().splitlines()))


def cell(value: Any) -> str:
    """A value in words: numbers short, lists and dicts as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value + 0.0:.6g}"  # no -0
    if isinstance(value, dict | list | tuple):
        return printable(json.dumps(plain(value), ensure_ascii=False))
    return str(value)


def metadata_columns(metadata: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """The keys of some sets' metadata, and for each set a value for each of them."""
    keys = list(dict.fromkeys(key for each in metadata for key in each))
    if len(keys) > MOST_KEYS:
        return ["metadata"], [[each] for each in metadata]
    return keys, [[each.get(key) for key in keys] for each in metadata]


def in_bytes(count: int) -> str:
    """
    >>> in_bytes(1536), in_bytes(3_000_000)
    ('1.5 kB', '2.9 MB')
    """
    size = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"


def counted(n: int, thing: str) -> str:
    """
    >>> counted(1, "set"), counted(1500, "set")
    ('1 set', '1,500 sets')
    """
    return f"{n:,} {thing}{'s' * (n != 1)}"
