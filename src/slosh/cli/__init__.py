"""The `slosh` command: `main` takes its arguments and returns the exit code; one module for each group of commands."""

from __future__ import annotations

import inspect
import io
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from .. import __version__
from . import build, compare, demo, find, maintenance, process
from .options import grouped_options
from .output import say

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """Nearest-neighbour search over sets of vectors: point clouds, bags of features, cells, tokens.

    Try it without data of your own:

        slosh demo
        slosh search demo/digits.slosh digit-0007 --plot near.png

    Then use your own files, for example a folder of point clouds:

        slosh build shapes.slosh clouds/
        slosh search shapes.slosh clouds/chair_1.ply -k 5

    Exit codes: 0 success, 1 the command failed, 2 invalid usage.
    """
    if version:
        say(f"slosh {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        say(context.get_help())


def _unwrapped(text: str) -> str:
    """Return a docstring with each paragraph on one line, to fill the width of a terminal; indented ones stay."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(each if each.startswith(" ") else each.replace("\n", " ") for each in paragraphs)


COMMANDS: dict[str, tuple[Callable[..., Any], ...]] = {
    "Make an index": (demo.demo, compare.compare, build.build, build.add),
    "Search": (find.search, find.explain, find.duplicates),
    "Inspect and maintain": maintenance.COMMANDS,
}
for panel, commands in COMMANDS.items():
    for command in commands:
        text = _unwrapped(command.__doc__ or "")
        app.command(command.__name__, rich_help_panel=panel, help=text)(grouped_options(command))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, or with those of the process."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    given = None if arguments is None else list(arguments)
    return process.run(lambda: app(given, prog_name="slosh", standalone_mode=False))
