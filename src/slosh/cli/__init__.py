"""The `slosh` command: `main` takes its arguments and returns the exit code; one module for each group of commands.

Parsing the arguments and printing help import nothing of the library: the commands reach it as `slosh.open`,
`slosh.Sets`, ..., which import what they name when they are used.
"""

from __future__ import annotations

import inspect
import io
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import slosh

from . import build, find, maintenance, process, records, serve, train
from .options import grouped_options
from .output import say


class _WithoutTypes:
    """Help in which flags and arguments have no type beside them: `--json`, and not `--json <bool>`."""

    def get_params(self, context: Any) -> Any:
        params: Any = super().get_params(context)  # type: ignore[misc]
        for each in params:
            if getattr(each, "is_flag", False):
                each.metavar = ""
            elif each.param_type_name == "argument":
                each.display_type_rich = lambda ctx: ""
        return params


class _Command(_WithoutTypes, TyperCommand):
    pass


class _Group(_WithoutTypes, TyperGroup):
    pass


app = typer.Typer(
    cls=_Group,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """Find the nearest neighbours of sets of vectors: point clouds, bags of features, cells, tokens.

    Try it without data of your own:

        slosh demo
        slosh search demo/digits.slosh digit-0007 --plot near.png

    Then use your own files, for example a folder of point clouds:

        slosh build shapes.slosh clouds/
        slosh search shapes.slosh clouds/chair_1.ply -k 5

    Exit codes: 0 success, 1 the command failed, 2 invalid usage.
    """
    if version:
        say(f"slosh {slosh.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        say(context.get_help())


def _help(docstring: str) -> str:
    """Return a docstring with each paragraph on one line, to fill the width of a terminal, and examples as they are.

    Their heading keeps the examples indented: typer takes away what all lines but the first are indented by.
    """
    first, *paragraphs = inspect.cleandoc(docstring).split("\n\n")
    unwrapped = [each if each.startswith(" ") else each.replace("\n", " ") for each in (first, *paragraphs)]
    return "\n\n".join(unwrapped).replace("\n\n    ", "\n\nExamples:\n\n    ", 1)


COMMANDS: dict[str, tuple[Callable[..., Any], ...]] = {
    "Make an index": (*build.COMMANDS, *train.COMMANDS),
    "Search": find.COMMANDS,
    "Inspect and maintain": (*records.COMMANDS, *maintenance.COMMANDS),
    "Serve": serve.COMMANDS,
}
for panel, commands in COMMANDS.items():
    for command in commands:
        text = _help(command.__doc__ or "")
        app.command(command.__name__, cls=_Command, rich_help_panel=panel, help=text)(grouped_options(command))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, or with those of the process."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    given = None if arguments is None else list(arguments)
    return process.run(lambda: app(given, prog_name="slosh", standalone_mode=False))
