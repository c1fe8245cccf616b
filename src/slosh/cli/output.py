"""What the command prints: tables and lines for people, JSON for programs, and remarks on standard error.

On a terminal a table fits its width, and long cells are folded; in a pipe it is as wide as it needs to be. Nothing is
cut. Text that comes from files cannot move the cursor or change colours: unprintable characters are escaped.
"""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..data.interrupts import uninterrupted
from ..errors import printable

if TYPE_CHECKING:
    from rich.table import Table

PIPE_COLUMNS = 100_000
"""The greatest width of a table in a pipe."""
MAX_METADATA_COLUMNS = 6
"""Metadata with more keys than this are shown as JSON, in one column."""


class OutputClosed(Exception):
    """The reader of standard output has closed it."""


def write(text: str) -> None:
    """Write text to standard output as it is."""
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        raise OutputClosed from None


def flush() -> None:
    """Send on what was written."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise OutputClosed from None


def say(text: str = "") -> None:
    """Print a line on standard output."""
    write(printable(text, "\n") + "\n")


def remark(text: str) -> None:
    """Print a line on standard error, above a progress bar if there is one."""
    from tqdm import tqdm

    with uninterrupted():  # tqdm holds the lock of all bars
        tqdm.write(printable(text, "\n"), file=sys.stderr)


def one_line(text: str) -> str:
    """Return text without line breaks, such as those of a long repr."""
    return " ".join(text.split())


def say_json(document: Any) -> None:
    """Print a JSON document on one line."""
    write(json.dumps(to_builtin(document), ensure_ascii=False, allow_nan=False) + "\n")


def say_result(as_json: bool, document: Any, text: str) -> None:
    """Print what a command did: a JSON document, or a line for people."""
    if as_json:
        say_json(document)
    else:
        say(text)


def to_builtin(value: Any) -> Any:
    """Return a value for JSON: arrays as lists, numbers of NumPy as numbers, and None for those that JSON has not."""
    if isinstance(value, dict):
        return {str(key): to_builtin(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_builtin(each) for each in value]
    if hasattr(value, "tolist"):
        return to_builtin(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def say_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Iterable[str] = ()) -> None:
    """Print a table; the columns named in `numbers` are aligned to the right."""
    from rich import box
    from rich.table import Table

    right = set(numbers)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        justify: Any = "right" if name in right else "left"
        table.add_column(printable(name), justify=justify, overflow="fold", no_wrap=name in right, header_style="bold")
    for row in rows:
        table.add_row(*map(format_cell, row))
    _print(table)


def say_facts(facts: dict[str, Any]) -> None:
    """Print names and their values, one on each line."""
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(printable(name), format_cell(value))
    _print(table)


def _print(table: Table) -> None:
    from rich import box
    from rich.console import Console

    settings: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
    if sys.stdout.isatty():
        Console(**settings).print(table)
        return
    if table.box is not None and not (sys.stdout.encoding or "").lower().startswith("utf"):
        table.box = box.ASCII2
    drawn = io.StringIO()
    Console(file=drawn, width=PIPE_COLUMNS, color_system=None, force_terminal=False, **settings).print(table)
    write("".join(f"{line.rstrip()}\n" for line in drawn.getvalue().splitlines()))


def format_cell(value: Any) -> str:
    """Return a value as text: numbers short, lists and dicts as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value + 0.0:.6g}"  # no -0
    if isinstance(value, dict | list | tuple):
        return printable(json.dumps(to_builtin(value), ensure_ascii=False))
    return str(value)


def metadata_columns(metadata: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return the keys of some sets' metadata, and for each set a value for each of them."""
    keys = list(dict.fromkeys(key for each in metadata for key in each))
    if len(keys) > MAX_METADATA_COLUMNS:
        return ["metadata"], [[each] for each in metadata]
    return keys, [[each.get(key) for key in keys] for each in metadata]


def pluralize(n: int, thing: str) -> str:
    """Return a number and what it counts.

    >>> pluralize(1, "set"), pluralize(1500, "set")
    ('1 set', '1,500 sets')
    """
    return f"{n:,} {thing}{'s' * (n != 1)}"
