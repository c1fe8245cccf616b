"""Help: every command and every option, as declared."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Annotated, Optional, get_args, get_origin, get_type_hints

import pytest
import typer
import typer.main

import slosh
from slosh.cli import COMMANDS, app, options

NAMES = [
    *("demo", "compare", "build", "add", "search", "explain", "duplicates"),
    *("show", "update", "remove", "info", "tune", "retrain", "verify", "compact", "export", "copy"),
]


@pytest.mark.parametrize("command", NAMES)
def test_every_command_has_help(slosh_, command):
    code, out, err = slosh_(command, "--help")
    assert (code, err) == (0, "")
    assert f"slosh {command}" in out
    assert "Usage" in out
    assert not re.search(r"<\w+", out)  # no types of Python: <bool>, <list[str]>
    assert re.search(r"^\W*--help\s+-h\s+Show", out, re.MULTILINE)
    example = re.compile(rf"^ {{5}}slosh {command} ", re.MULTILINE)
    assert bool(example.search(out)) == ("Examples:" in out)


def test_help_says_what_compare_does_with_few_sets(slosh_):
    words = " ".join(re.sub("[│╰╭─╯╮]", " ", slosh_("compare", "--help")[1]).split())
    assert "--test-size FRACTION With 500 sets or more, the fraction of them to use as queries (default: 0.2)." in words
    assert "[default: 0.2]" not in words


def test_help_lists_all_commands(slosh_):
    code, out, _ = slosh_("--help")
    assert code == 0
    assert all(re.search(rf"^\W*{command}\b", out, re.MULTILINE) for command in NAMES)
    assert "Inspect and maintain" in out
    code, alone, _ = slosh_()
    assert code == 0
    assert alone.split() == out.split()


FUNCTIONS = {function.__name__: function for panel in COMMANDS.values() for function in panel}


def declared(annotation):
    """What `typer.Option` or `typer.Argument` was told in an annotation."""
    assert get_origin(annotation) is Annotated, annotation
    return get_args(annotation)[1]


def limit(parameter, which):
    """The min or max of a parameter; its place differs between versions of typer."""
    found = getattr(parameter, which, None)
    return getattr(getattr(parameter, "type", None), which, None) if found is None else found


@pytest.mark.parametrize("command", NAMES)
def test_every_option_is_as_declared(command):
    function = inspect.unwrap(FUNCTIONS[command])
    told = {name: each.annotation for name, each in inspect.signature(function, eval_str=True).parameters.items()}
    for group in [name for name, each in told.items() if dataclasses.is_dataclass(each)]:
        told |= get_type_hints(told.pop(group), include_extras=True)
    made = typer.main.get_command(app).commands[command]
    made = {each.name: each for each in made.get_params(typer.Context(made, info_name=command)) if each.name != "help"}
    assert made.keys() == told.keys()
    for name, parameter in made.items():
        info = declared(told[name])
        assert parameter.help == info.help
        assert parameter.help
        assert parameter.metavar == ("" if getattr(parameter, "is_flag", False) else info.metavar)
        assert [limit(parameter, which) for which in ("min", "max")] == [info.min, info.max]
        if parameter.param_type_name == "option":
            # The first name is the first argument of typer.Option; without one it is that of the parameter.
            first = f"--{name.replace('_', '-')}" if info.default is ... else info.default
            assert parameter.opts == [first, *(info.param_decls or ())]


def test_the_options_of_python_3_10(monkeypatch):
    """There get_type_hints puts Optional around a parameter with the default None, which hides the annotation."""

    def as_in_3_10(thing, **more):
        hints = get_type_hints(thing, **more)
        if inspect.isclass(thing):
            return hints
        given = inspect.signature(thing).parameters
        return {n: Optional[hint] if n in given and given[n].default is None else hint for n, hint in hints.items()}  # noqa: UP045

    monkeypatch.setattr(options, "get_type_hints", as_in_3_10)
    for function in map(inspect.unwrap, FUNCTIONS.values()):
        for parameter in inspect.signature(options.grouped_options(function)).parameters.values():
            declared(parameter.annotation)


def test_version(slosh_):
    assert slosh_("--version") == (0, f"slosh {slosh.__version__}\n", "")
