"""The `slosh` command: `main` takes its arguments and gives the exit code; one module for each group of commands."""

from __future__ import annotations

import inspect
import io
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from .. import __version__
from . import build, care, compare, find, running
from .output import say
from .trial import demo

MAKE, ASK, KEEP = "Make an index", "Ask it", "Look at it, and keep it in order"

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Nearest-neighbour search over sets of vectors: point clouds, bags of features, cells, tokens.

    First steps, which need no data of yours:

        slosh demo
        slosh search demo/digits.slosh digit-0007 --plot near.png

    Then with your own files, for example a folder of clouds:

        slosh build shapes.slosh clouds/
        slosh search shapes.slosh clouds/chair_1.ply -k 5

    The exit code is 0 if all is well, 1 if what was asked for failed, 2 if it was asked for in a wrong way.
    """
    if version:
        say(f"slosh {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        say(context.get_help())


def _unwrapped(text: str) -> str:
    """A docstring with each paragraph on one line, so that it fills the width of a terminal; what is indented stays."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(each if each.startswith(" ") else each.replace("\n", " ") for each in paragraphs)


_COMMANDS: list[tuple[str, dict[str, Callable[..., Any]]]] = [
    (MAKE, {"demo": demo, "compare": compare.compare_embeddings, "build": build.build, "add": build.add}),
    (ASK, {"search": find.search, "explain": find.explain, "duplicates": find.duplicates}),
    (
        KEEP,
        {
            "show": care.show,
            "info": care.info,
            "remove": care.remove,
            "tune": care.tune,
            "verify": care.verify,
            "compact": care.compact,
            "export": care.export,
        },
    ),
]
for panel, commands in _COMMANDS:
    for name, command in commands.items():
        app.command(name, rich_help_panel=panel, help=_unwrapped(command.__doc__ or ""))(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command with these arguments, or with those of the process."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    given = None if arguments is None else list(arguments)
    return running.run(lambda: app(given, prog_name="slosh", standalone_mode=False))
