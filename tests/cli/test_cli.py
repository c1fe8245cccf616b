"""The `slosh` command: real processes for exit codes, pipes and Ctrl-C, `main` in this process for the rest."""

from __future__ import annotations

import errno
import inspect
import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Optional, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import typer.main

import slosh
from slosh import readers
from slosh.cli import _COMMANDS, app, find, main, options, running
from slosh.cli.draw import _folded
from slosh.cli.output import printable
from slosh.search import Stats

COMMANDS = [
    *("demo", "compare", "build", "add", "search", "explain", "duplicates"),
    *("show", "info", "remove", "tune", "verify", "compact", "export"),
]
SLOSH = [sys.executable, "-m", "slosh"]
PNG = b"\x89PNG\r\n\x1a\n"


def write_clouds(folder: Path, n: int = 12, dim: int = 2, seed: int = 0) -> Path:
    """n files in two folders, thin and fat."""
    rng = np.random.default_rng(seed)
    for i in range(n):
        kind = ("thin", "fat")[i % 2]
        (folder / kind).mkdir(parents=True, exist_ok=True)
        points = rng.normal(size=(int(rng.integers(20, 60)), dim)) * (0.2 if kind == "thin" else 2) + i / 10
        np.save(folder / kind / f"{i:04}.npy", points)
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with clouds/ and clouds.slosh."""
    folder = tmp_path_factory.mktemp("cli")
    write_clouds(folder / "clouds")
    write_clouds(folder / "solid", dim=3)
    np.save(folder / "query.npy", np.random.default_rng(5).normal(size=(30, 2)) * 2)
    for name in ("clouds", "solid"):
        assert main(["build", str(folder / f"{name}.slosh"), str(folder / name), "--json"]) == 0
    return folder


@pytest.fixture
def slosh_(built, monkeypatch, capsys):
    """Runs a command in the folder; its exit code, what it printed, what it remarked."""
    monkeypatch.chdir(built)

    def run(*arguments):
        capsys.readouterr()
        code = main([str(each) for each in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def copied(slosh_, tmp_path):
    """An index to change, made from the clouds."""
    path = tmp_path / "copy.slosh"
    assert slosh_("build", path, "clouds")[0] == 0
    return path


def process(*arguments, cwd, **more):
    given = [str(each) for each in arguments]
    return subprocess.run([*SLOSH, *given], cwd=cwd, capture_output=True, text=True, timeout=300, **more)


# -- real processes ----------------------------------------------------------------------------------------------------


def test_the_main_way_in_real_processes(tmp_path):
    write_clouds(tmp_path / "clouds")
    done = process("build", "a.slosh", "clouds", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "built 12 sets" in done.stdout
    done = process("search", "a.slosh", "thin/0000.npy", "-k", 3, "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["query"] == "thin/0000.npy"
    assert len(found["hits"]) == 3
    assert all(hit["id"] != "thin/0000.npy" for hit in found["hits"])
    done = process("verify", "a.slosh", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "in order" in done.stdout
    done = process("search", "a.slosh", "nothing.npy", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert process("search", "a.slosh", "--nonsense", cwd=tmp_path).returncode == 2


def test_the_traceback_is_shown_when_asked_for(tmp_path):
    done = process("info", "nothing", cwd=tmp_path, env={**os.environ, "SLOSH_DEBUG": "1"})
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.rstrip().endswith("make it with slosh build")


def test_a_closed_pipe_is_silent(built):
    np.savez(built / "many.npz", points=np.random.default_rng(0).normal(size=(9000, 2)), offsets=np.arange(0, 9001, 3))
    command = f"{shlex.join(SLOSH)} search clouds.slosh many.npz --json | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=built, capture_output=True, text=True, timeout=300)
    line, code = done.stdout.splitlines()
    assert json.loads(line)["query"] == "many/0"
    assert (code, done.stderr) == ("141", "")


def test_import_slosh_leaves_the_command_out(tmp_path):
    # rich is not looked for: scikit-learn imports it too, where it is installed.
    check = "import sys, slosh; print([m for m in ('typer', 'matplotlib', 'slosh.cli') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_command_is_installed():
    (found,) = [each for each in entry_points(group="console_scripts") if each.name == "slosh"]
    assert found.load() is main


def test_ctrl_c_leaves_a_valid_index(tmp_path):
    n = 1500
    write_clouds(tmp_path / "clouds", n)
    arguments = [*SLOSH, "build", "a.slosh", "clouds", "--batch-points", "50"]  # a transaction for each set
    child = subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 240
        while _stored(tmp_path / "a.slosh") < 5:
            assert child.poll() is None, child.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=240)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    assert "slosh add a.slosh SOURCE... --skip-existing" in err
    stored = _stored(tmp_path / "a.slosh")
    assert 5 <= stored < n
    assert f"{stored:,} sets" in err
    assert process("verify", "a.slosh", cwd=tmp_path).returncode == 0
    done = process("add", "a.slosh", "clouds", "--skip-existing", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["added"] == n - stored
    assert process("verify", "a.slosh", cwd=tmp_path).returncode == 0


def test_ctrl_c_is_heard_while_a_batch_is_stored(tmp_path):
    script = """
import os, signal, sys, time
from slosh.cli import running
from slosh.search.base import uninterrupted

def work():
    with uninterrupted() as waiting:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(float(sys.argv[1]))
        print("stored", waiting != [], flush=True)
    print("never")

sys.exit(running.run(work))
"""
    arguments = [sys.executable, "-c", script, "60"]
    child = subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stderr.readline() == "slosh: finishing what is being stored ...\n"
        assert child.poll() is None  # said while it works
    finally:
        child.kill()
        child.communicate()
    done = subprocess.run([*arguments[:-1], "0.3"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (130, "stored True\n")
    assert done.stderr == "slosh: finishing what is being stored ...\nslosh: stopped\n"


def test_ctrl_c_elsewhere_stops_at_once(capsys):
    before = signal.set_wakeup_fd(-1)
    assert before == -1

    def work():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

    assert running.run(work) == 130
    assert capsys.readouterr().err == "slosh: stopped\n"
    assert signal.set_wakeup_fd(-1) == -1
    assert not [each for each in threading.enumerate() if each.name == "slosh-ctrl-c"]


def _stored(path: Path) -> int:
    try:
        with slosh.open(path, read_only=True) as index:
            return len(index)
    except (OSError, ValueError):
        return 0


# -- help --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(slosh_, command):
    code, out, err = slosh_(command, "--help")
    assert (code, err) == (0, "")
    assert f"slosh {command}" in out
    assert "Usage" in out


def test_help_lists_all_commands(slosh_):
    code, out, _ = slosh_("--help")
    assert code == 0
    assert all(re.search(rf"^\W*{command}\b", out, re.MULTILINE) for command in COMMANDS)
    code, alone, _ = slosh_()
    assert code == 0
    assert alone.split() == out.split()


FUNCTIONS = {name: function for _, panel in _COMMANDS for name, function in panel.items()}


def declared(annotation):
    """What `typer.Option` or `typer.Argument` was told in an annotation."""
    assert get_origin(annotation) is Annotated, annotation
    return get_args(annotation)[1]


def limit(parameter, which):
    """The min or max of a parameter; its place differs between versions of typer."""
    found = getattr(parameter, which, None)
    return getattr(getattr(parameter, "type", None), which, None) if found is None else found


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_as_declared(command):
    function = inspect.unwrap(FUNCTIONS[command])
    told = {name: each.annotation for name, each in inspect.signature(function, eval_str=True).parameters.items()}
    if told.pop("reading", None) is not None:
        told |= get_type_hints(options.Reading, include_extras=True)
    made = {each.name: each for each in typer.main.get_command(app).commands[command].params}
    assert made.keys() == told.keys()
    for name, parameter in made.items():
        info = declared(told[name])
        assert parameter.help == info.help
        assert parameter.help
        assert parameter.metavar == info.metavar
        assert [limit(parameter, which) for which in ("min", "max")] == [info.min, info.max]
        if parameter.param_type_name == "option":
            assert parameter.opts == [info.default, *(info.param_decls or ())]  # the first name is its first argument


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
        if "reading" in inspect.signature(function).parameters:
            for parameter in inspect.signature(options.reads_files(function)).parameters.values():
                declared(parameter.annotation)


def test_version(slosh_):
    assert slosh_("--version") == (0, f"slosh {slosh.__version__}\n", "")


# -- build and add -----------------------------------------------------------------------------------------------------


def test_build_stores_what_the_files_have(slosh_, copied):
    with slosh.open(copied, read_only=True) as index:
        assert len(index) == 12
        assert index.info()["recall"] == 0.99
        record = index.get("fat/0001.npy")
        assert record.metadata == {"file": "0001.npy", "folder": "fat"}
        np.testing.assert_allclose(record.points, np.load("clouds/fat/0001.npy").astype(np.float32))


def test_build_twice_names_add(slosh_, copied):
    code, _, err = slosh_("build", copied, "clouds")
    assert code == 1
    assert f"slosh add {copied}" in err


def test_build_options_reach_the_index(slosh_, tmp_path):
    options = "--center --scale rms --max-points 20 --slices 8 --quantiles 4 --search exact --recall 1 --meta year=2015"
    assert slosh_("build", tmp_path / "a", "clouds", *options.split())[0] == 0
    about = json.loads(slosh_("info", tmp_path / "a", "--json")[1])
    assert about["vector_length"] == 32
    assert about["search"] == "ExactSearch()"
    assert about["preprocess"] == "Preprocess(center=True, scale='rms', max_points=20)"
    assert about["recall"] == 1.0
    assert len(slosh_("show", tmp_path / "a", "--where", "year = 2015", "--json")[1].splitlines()) == 12


@pytest.mark.parametrize("embedding", ["sliced", "gem:2", "gem", "cov", "fspool", "wasserstein", "mean", "max", "sum"])
def test_every_embedding(slosh_, tmp_path, embedding):
    if embedding == "wasserstein":
        pytest.importorskip("ot")
    assert slosh_("build", tmp_path / "a", "clouds", "--embedding", embedding)[0] == 0
    code, out, _ = slosh_("search", tmp_path / "a", "query.npy", "-k", 1, "--json")
    assert code == 0
    assert len(json.loads(out)["hits"]) == 1


@pytest.mark.parametrize("search", ["ladder", "exact", "hamming", "lsh"])
def test_every_search(slosh_, tmp_path, search):
    code, _, err = slosh_("build", tmp_path / "a", "clouds", "--search", search, "--standardize")
    assert code == 0, err
    assert slosh_("search", tmp_path / "a", "thin/0000.npy")[0] == 0
    assert slosh_("verify", tmp_path / "a")[0] == 0


def test_origin(slosh_, tmp_path):
    far = np.random.default_rng(0).normal(size=(50, 3)) + 5e6
    np.save(tmp_path / "far.npy", far)
    np.save(tmp_path / "other.npy", far + 1)
    for origin in ("auto", "5e6,5e6,5e6"):
        path = tmp_path / origin.replace(",", "-")
        code, _, err = slosh_("build", path, tmp_path / "far.npy", tmp_path / "other.npy", "--origin", origin)
        assert (code, err) == (0, "")
        found = json.loads(slosh_("search", path, tmp_path / "far.npy", "-k", 2, "--json")[1])
        assert [hit["id"] for hit in found["hits"]] == ["far.npy", "other.npy"]
        assert found["hits"][0]["distance"] == 0
        shown = json.loads(slosh_("show", path, "far.npy", "--json")[1])
        np.testing.assert_allclose(shown["mean"], far.mean(axis=0), atol=1e-3)
        assert slosh_("add", path, tmp_path / "far.npy", "--update")[0] == 0


def test_warnings_are_one_line(slosh_, tmp_path):
    np.save(tmp_path / "far.npy", np.random.default_rng(0).normal(size=(50, 3)) + 5e6)
    code, out, err = slosh_("build", tmp_path / "a", tmp_path / "far.npy", "--json")
    assert code == 0
    assert json.loads(out)["built"] == 1
    assert err.startswith("slosh: warning: ")
    assert "--origin auto" in err
    assert "origin=" not in err
    assert ".py:" not in err
    assert len({*err.splitlines()}) == err.count("\n")


def test_tables_with_columns_and_weights(slosh_, tmp_path):
    pytest.importorskip("pyarrow")
    lines = ["name,x,y,w", *(f"{'ab'[i % 2]},{i},{i * i},{i + 1}" for i in range(10))]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    reading = ["--id-column", "name", "--columns", "x, y", "--weights", "w"]
    assert slosh_("build", tmp_path / "a", tmp_path / "t.csv", *reading)[0] == 0
    shown = [json.loads(line) for line in slosh_("show", tmp_path / "a", "--json")[1].splitlines()]
    assert [(each["id"], each["points"], each["weighted"]) for each in shown] == [("a", 5, True), ("b", 5, True)]
    assert slosh_("search", tmp_path / "a", tmp_path / "t.csv", *reading)[0] == 0
    code, _, err = slosh_("search", tmp_path / "a", tmp_path / "t.csv", "--id-column", "name", "--columns", "x")
    assert code == 1
    assert "--columns" in err


def test_add_update_and_skip(slosh_, copied):
    code, _, err = slosh_("add", copied, "clouds")
    assert code == 1
    assert "--update" in err
    assert "update=True" not in err
    assert json.loads(slosh_("add", copied, "clouds", "--skip-existing", "--json")[1])["added"] == 0
    assert json.loads(slosh_("add", copied, "clouds", "--update", "--json")[1])["added"] == 12
    assert json.loads(slosh_("add", copied, "query.npy", "--json")[1])["sets"] == 13
    assert slosh_("add", copied, "query.npy", "--skip-existing", "--update")[0] == 2


def test_a_bad_file_in_the_middle(slosh_, tmp_path):
    write_clouds(tmp_path / "c", 6)
    bad = np.ones((20, 2))
    bad[7, 1] = np.nan
    np.save(tmp_path / "c" / "thin" / "0002.npy", bad)
    code, out, err = slosh_("build", tmp_path / "a", tmp_path / "c", "--batch-points", 30)
    assert (code, out) == (1, "")
    assert "0002.npy" in err
    assert "4 sets of the batches before are stored" in err
    assert slosh_("verify", tmp_path / "a")[0] == 0
    np.save(tmp_path / "c" / "thin" / "0002.npy", np.ones((20, 2)))
    assert json.loads(slosh_("add", tmp_path / "a", tmp_path / "c", "--skip-existing", "--json")[1])["sets"] == 6
    code, _, err = slosh_("build", tmp_path / "b", tmp_path / "c", "--batch-points", 30, "--columns", "x")
    assert code == 1
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("existed", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_nothing_stored_leaves_nothing(slosh_, tmp_path, monkeypatch, error, existed):
    def fail(*_, **__):
        raise error("no")

    if existed:
        (tmp_path / "a").mkdir()
    monkeypatch.setattr(slosh.SetIndex, "add", fail)
    code, _, err = slosh_("build", tmp_path / "a", "clouds")
    assert code == (130 if error is KeyboardInterrupt else 1)
    assert ("nothing was stored" in err) == (error is KeyboardInterrupt)
    assert (tmp_path / "a").exists() == existed
    assert not existed or not any((tmp_path / "a").iterdir())


def test_interrupted_while_reading(slosh_, tmp_path, monkeypatch):
    def two_batches(*arguments, **more):
        yield from list(read(*arguments, **more))[:2]
        raise KeyboardInterrupt

    read = readers.read
    monkeypatch.setattr(readers, "read", two_batches)
    code, _, err = slosh_("build", tmp_path / "a", "clouds", "--batch-points", 30)
    assert code == 130
    assert "2 sets of the batches before are stored" in err
    assert _stored(tmp_path / "a") == 2
    assert slosh_("verify", tmp_path / "a")[0] == 0


def test_interrupted_while_tuning(slosh_, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(slosh.SetIndex, "tune", stop)
    code, _, err = slosh_("build", tmp_path / "a", "clouds")
    assert code == 130
    assert "all 12 sets are stored" in err
    assert _stored(tmp_path / "a") == 12


# -- search and the others that ask ------------------------------------------------------------------------------------


def test_search_finds_what_the_library_finds(slosh_, built):
    options = ["-k", 4, "--where", "folder = fat", "--certify", "--json"]
    found = json.loads(slosh_("search", "clouds.slosh", "query.npy", *options)[1])
    with slosh.open(built / "clouds.slosh", read_only=True) as index:
        hits = index.search(np.load("query.npy"), 4, where="folder = fat", certify=True)
    assert [hit["id"] for hit in found["hits"]] == hits.ids
    assert [hit["distance"] for hit in found["hits"]] == hits.distances.tolist()
    assert [hit["metadata"] for hit in found["hits"]] == hits.metadata
    assert (found["distance_kind"], found["recall"]) == ("sliced", 1.0)


def test_many_queries_one_line_each(slosh_):
    code, out, _ = slosh_(
        "search", "clouds.slosh", "thin/0000.npy", "query.npy", "clouds/fat", "fat/0001.npy", "--json"
    )
    assert code == 0
    names = [json.loads(line)["query"] for line in out.splitlines()]
    fat = [f"{i:04}.npy" for i in range(1, 12, 2)]
    assert names == ["thin/0000.npy", "query.npy", *fat, "fat/0001.npy"]


def test_tables_for_people(slosh_):
    code, out, _ = slosh_("search", "clouds.slosh", "thin/0000.npy", "-k", 3)
    assert code == 0
    assert "thin/0000.npy: 3 sets by embedded distance" in out
    assert re.search(r"^1\s+thin/\d{4}\.npy\s+[\d.e-]+\s+\d{4}\.npy\s+thin$", out, re.MULTILINE)
    assert all(line == line.rstrip() for line in out.splitlines())
    assert re.fullmatch(r"1 query in [\d.]+ s, exact; \d+ vectors? compared", out.splitlines()[-1])
    out = slosh_("search", "clouds.slosh", "thin/0000.npy", "fat/0001.npy", "-k", 1, "--certify")[1]
    assert re.search(r"\n2 queries in \S+ s, exact; a query: \S+ vectors? compared, \S+ full distances?\n$", out)


def test_counts_below_a_table():
    stats = Stats(np.array([36_000]), np.array([9]), 0.9512, 1234.5, np.array([1]))
    assert (
        find._what_it_took(stats, 40_000)
        == "1 query in 1,234 s, recall 0.951; 36,000 vectors compared, 1 full distance"
    )
    stats = Stats(np.array([1, 2]), np.array([9, 9]), None, 0.5)
    assert find._what_it_took(stats, 2) == "2 queries in 0.5 s, no promise; a query: 1.5 vectors compared"


@pytest.mark.parametrize(
    "command",
    ["search {} thin/0000.npy --where", "show {} --where", "remove {} --yes --where", "duplicates {} --where"],
)
def test_a_field_that_no_set_has(slosh_, copied, command):
    before = command.format(copied).split()
    code, _, err = slosh_(*before, "not (foldre = fat and not file = x) and foldre = thin")
    assert code == 0
    assert err.count("\n") == 1
    assert "no set has a field 'foldre'" in err
    assert slosh_(*before, "folder = none")[2] == ""
    assert _stored(copied) == 12


def test_long_ids_are_whole_in_a_pipe(slosh_, tmp_path):
    long = "x" * 200 + ".npy"
    np.save(tmp_path / long, np.ones((3, 2)))
    assert slosh_("build", tmp_path / "a", tmp_path / long, "query.npy")[0] == 0
    assert long in slosh_("search", tmp_path / "a", "query.npy", "--file")[1]
    assert long in slosh_("show", tmp_path / "a")[1]
    assert "\x1b" not in slosh_("show", tmp_path / "a", long)[1]


def test_text_of_files_does_nothing_to_the_terminal(slosh_, tmp_path):
    names = np.array(["[bold]a[/bold]", "b\x1b[2Jc"])
    np.savez(tmp_path / "x.npz", points=np.eye(2), offsets=[0, 1, 2], names=names)
    assert slosh_("build", tmp_path / "a", tmp_path / "x.npz")[0] == 0
    out = slosh_("show", tmp_path / "a")[1]
    assert "[bold]a[/bold]" in out
    assert "b\\x1b[2Jc" in out
    assert printable("plain ü") == "plain ü"


def test_radius_and_duplicates(slosh_):
    near = json.loads(slosh_("search", "clouds.slosh", "thin/0000.npy", "--radius", 0.3, "--json")[1])
    assert near["hits"]
    assert all(hit["distance"] <= 0.3 for hit in near["hits"])
    assert "no set is found" in slosh_("search", "clouds.slosh", "thin/0000.npy", "--radius", 0)[1]
    pairs = json.loads(slosh_("duplicates", "clouds.slosh", "--radius", 0.3, "--json")[1])
    assert {"thin/0000.npy"} <= {pair["id"] for pair in pairs["pairs"]}
    code, out, _ = slosh_("duplicates", "clouds.slosh", "--radius", 0.3, "--limit", 1)
    assert code == 0
    assert "more: --limit" in out
    assert "no two sets" in slosh_("duplicates", "clouds.slosh")[1]


def test_rerank_promises_nothing(slosh_):
    found = json.loads(slosh_("search", "clouds.slosh", "query.npy", "--rerank", "chamfer", "--json")[1])
    assert (found["distance_kind"], found["recall"]) == ("chamfer", None)


def test_an_id_that_is_a_file_too(slosh_, tmp_path, monkeypatch):
    np.save(tmp_path / "one.npy", np.ones((5, 2)))
    np.save(tmp_path / "two.npy", np.zeros((5, 2)))
    monkeypatch.chdir(tmp_path)
    assert slosh_("build", "a", "one.npy", "two.npy")[0] == 0
    code, _, err = slosh_("search", "a", "one.npy")
    assert code == 2
    assert "--id or --file" in err
    by_id, by_file = (json.loads(slosh_("search", "a", "one.npy", how, "--json")[1]) for how in ("--id", "--file"))
    assert [hit["id"] for hit in by_id["hits"]] == ["two.npy"]
    assert [hit["id"] for hit in by_file["hits"]] == ["one.npy", "two.npy"]
    assert slosh_("search", "a", "one.npy", "--id", "--file")[0] == 2


def test_explain(slosh_, tmp_path):
    code, out, _ = slosh_("explain", "clouds.slosh", "query.npy", "fat/0001.npy", "--json")
    assert code == 0
    found = json.loads(out)
    assert sum(found["query_elements"]) == pytest.approx(found["distance"] ** 2)
    assert sum(found["slices"]) == pytest.approx(found["distance"] ** 2)
    assert "sliced distance" in slosh_("explain", "clouds.slosh", "thin/0000.npy", "fat/0001.npy")[1]
    code, _, err = slosh_("explain", "clouds.slosh", "clouds/fat", "fat/0001.npy")
    assert code == 1
    assert "several sets" in err


def test_compare(slosh_):
    code, out, _ = slosh_("compare", "clouds", "--label", "folder", "-k", 3)
    assert code == 0
    assert "SlicedWasserstein" in out
    document = json.loads(slosh_("compare", "clouds", "--label", "folder", "-k", 3, "--json")[1])
    assert document["rows"][0]["precision"] > 0.5
    code, _, err = slosh_("compare", "clouds")
    assert code == 1
    assert "--label" in err


def test_compare_is_quiet(slosh_, tmp_path):
    pytest.importorskip("ot")
    rng = np.random.default_rng(0)
    for i in range(20):  # fewer different points than k-means looks for
        (tmp_path / "few" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "few" / "ab"[i % 2] / f"{i}.npy", rng.integers(0, 3, size=(30, 2)))
    code, _, err = slosh_("compare", tmp_path / "few", "--label", "folder", "-k", 2)
    assert (code, err) == (0, "")


# -- pictures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", ["clouds.slosh", "solid.slosh"])
@pytest.mark.parametrize(
    "command", ["search {} thin/0000.npy fat/0001.npy", "show {}", "explain {} thin/0000.npy fat/0001.npy"]
)
def test_pictures(slosh_, tmp_path, index, command):
    pytest.importorskip("matplotlib")
    code, out, err = slosh_(*command.format(index).split(), "--plot", tmp_path / "p.png")
    assert (code, err) == (0, "")
    assert "drawn in" in out
    assert (tmp_path / "p.png").read_bytes().startswith(PNG)
    assert (tmp_path / "p.png").stat().st_size > 5000


def test_all_neighbours_are_drawn(slosh_, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    drawn = []
    monkeypatch.setattr(find, "draw", lambda rows, *_, **__: drawn.extend(rows))
    monkeypatch.setattr(find, "A_LINE", 4)
    out = slosh_("search", "clouds.slosh", "thin/0000.npy", "-k", 10, "--plot", "p.png")[1]
    assert out.endswith("drawn in p.png\n")
    assert [len(row) for row in drawn] == [5, 5, 3]
    assert [row[0] is None for row in drawn] == [False, True, True]
    monkeypatch.setattr(find, "DRAWN", 7)
    monkeypatch.setattr(find, "MOST_ROWS", 3)
    drawn.clear()
    out = slosh_("search", "clouds.slosh", "thin/0000.npy", "fat/0001.npy", "--plot", "p.png")[1]
    assert out.endswith("drawn in p.png, the first 1 of 2 queries, the 7 nearest of each\n")
    assert [len(row) for row in drawn] == [5, 4]
    assert slosh_("search", "clouds.slosh", "thin/0000.npy", "--radius", 0, "--plot", "p.png")[0] == 0


def test_any_script_in_a_picture(slosh_, tmp_path):
    pytest.importorskip("matplotlib")
    for name in ("椅子椅子椅子椅子椅子椅子椅子椅子.npy", "🪑.npy", "كرسي.npy", "$a_b$.npy"):
        np.save(tmp_path / name, np.random.default_rng(0).normal(size=(9, 2)))
    assert slosh_("build", tmp_path / "a", tmp_path)[0] == 0
    for command in (["search", tmp_path / "a", "🪑.npy"], ["explain", tmp_path / "a", "🪑.npy", "كرسي.npy"]):
        code, _, err = slosh_(*command, "--plot", tmp_path / "p.png")
        assert (code, err) == (0, "")


@pytest.mark.parametrize("name", ["a" * 100, "chair/" * 9 + "0001.off", "x" * 30 + "/y", "椅" * 40, "椅子/" * 6])
def test_names_in_pictures_keep_their_start_and_end(name):
    lines = _folded(name)
    assert len(lines) == 2
    assert all(line for line in lines)
    assert lines[0].rstrip("…") == name[: len(lines[0].rstrip("…"))]
    assert name.endswith(lines[1])
    assert all(sum(1 + (c > "\u2fff") for c in line) <= 21 for line in lines)


def test_no_picture_of_five_dimensions(slosh_, tmp_path):
    write_clouds(tmp_path / "c", 3, dim=5)
    assert slosh_("build", tmp_path / "a", tmp_path / "c")[0] == 0
    for command in (["search", tmp_path / "a", "thin/0000.npy"], ["show", tmp_path / "a"]):
        code, out, err = slosh_(*command, "--plot", tmp_path / "p.png")
        assert (code, out) == (1, "")
        assert "2 or 3 dimensions" in err
    assert not (tmp_path / "p.png").exists()


# -- care --------------------------------------------------------------------------------------------------------------


def test_show(slosh_):
    code, out, _ = slosh_("show", "clouds.slosh", "thin/0000.npy")
    assert code == 0
    assert "metadata folder" in out
    code, out, _ = slosh_("show", "clouds.slosh", "--limit", 2, "--where", "folder = fat")
    assert code == 0
    assert "the first 2 of 6 sets" in out
    shown = json.loads(slosh_("show", "clouds.slosh", "thin/0000.npy", "--json")[1])
    points = np.load("clouds/thin/0000.npy")
    assert shown["points"] == len(points)
    np.testing.assert_allclose(shown["max"], points.max(axis=0), rtol=1e-6)
    assert slosh_("show", "clouds.slosh", "--where", "folder = none")[1] == "0 sets\n"


def test_remove_and_compact(slosh_, copied):
    assert "11 are left" in slosh_("remove", copied, "thin/0000.npy")[1]
    code, _, err = slosh_("remove", copied, "thin/0002.npy", "nope")
    assert code == 1
    assert "nope" in err
    code, _, err = slosh_("remove", copied, "--where", "folder = fat")
    assert code == 2
    assert "--yes" in err
    assert _stored(copied) == 11
    removed = json.loads(slosh_("remove", copied, "--where", "folder = fat", "--yes", "--json")[1])
    assert (removed["removed"], removed["sets"]) == (6, 5)
    assert slosh_("remove", copied)[0] == 2
    assert "removed" in slosh_("info", copied)[1]
    assert json.loads(slosh_("compact", copied, "--json")[1])["sets"] == 5
    assert slosh_("verify", copied)[0] == 0


def test_info_tune_verify(slosh_, copied):
    code, out, _ = slosh_("info", copied)
    assert code == 0
    assert "SlicedWasserstein" in out
    tuned = json.loads(slosh_("tune", copied, "--recall", 0.9, "-k", 5, "--json")[1])
    assert tuned["k"] == 5
    assert json.loads(slosh_("info", copied, "--json")[1])["recall"] == 0.9
    report = json.loads(slosh_("verify", copied, "--json")[1])
    assert report["ok"] is True


def test_verify_finds_damage(slosh_, copied):
    with sqlite3.connect(copied / "index.db") as database:
        database.execute("UPDATE bodies SET crc = crc + 1 WHERE body = 3")
    code, out, _ = slosh_("verify", copied)
    assert code == 1
    assert "PROBLEM" in out
    code, out, _ = slosh_("verify", copied, "--json")
    assert code == 1
    assert json.loads(out)["ok"] is False


def test_export_and_back(slosh_, tmp_path):
    pytest.importorskip("pyarrow")
    assert slosh_("export", "clouds.slosh", tmp_path / "a.parquet")[0] == 0
    assert slosh_("build", tmp_path / "b", tmp_path / "a.parquet")[0] == 0
    first, again = (slosh_("show", index, "--json")[1] for index in ("clouds.slosh", tmp_path / "b"))
    assert [json.loads(line)["id"] for line in first.splitlines()] == [json.loads(x)["id"] for x in again.splitlines()]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError("[Errno 28] Error writing bytes to file. Detail: [errno 28] No space left on device"),
    ],
)
def test_export_to_a_full_disk_names_the_file(slosh_, tmp_path, monkeypatch, error):
    def full(*_):
        raise error

    monkeypatch.setattr(slosh.SetIndex, "export", full)
    code, _, err = slosh_("export", "clouds.slosh", tmp_path / "a.parquet")
    assert code == 1
    assert (
        err
        == f"slosh: {tmp_path / 'a.parquet'}: the disk is full, and nothing was written: free some space, or "
        + ("write elsewhere\n")
    )


def test_a_full_disk_leaves_no_half_of_an_index(slosh_, tmp_path, monkeypatch):
    def full(path, *_, **__):
        path.mkdir()
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(slosh.SetIndex, "create", full)
    code, _, err = slosh_("build", tmp_path / "a", "clouds")
    assert code == 1
    assert "free some space" in err
    assert not (tmp_path / "a").exists()


def test_a_damaged_database(slosh_, copied):
    database = bytearray((copied / "index.db").read_bytes())
    for page in range(4096, len(database), 4096):
        database[page : page + 600] = b"\xff" * 600
    (copied / "index.db").write_bytes(database)
    code, _, err = slosh_("show", copied)
    assert code == 1
    assert "restore" in err
    assert "verify()" not in err


# -- on a terminal -----------------------------------------------------------------------------------------------------


def on_a_terminal(*arguments, cwd, answer=b"", **environment):
    """What a command shows on a terminal of 60 columns, and its exit code."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    env = {**os.environ, "COLUMNS": "60", "TERM": "xterm-256color", **environment}
    child = subprocess.Popen(
        [*SLOSH, *map(str, arguments)], cwd=cwd, env=env, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    os.write(ours, answer)
    shown = b""
    try:
        while part := os.read(ours, 4096):
            shown += part
    except OSError:  # how Linux says that the other side is closed
        pass
    os.close(ours)
    return child.wait(timeout=240), shown.decode()


def test_a_terminal_folds_and_loses_nothing(slosh_, tmp_path):
    long = "x" * 90 + "y" * 90 + ".npy"
    np.save(tmp_path / long, np.ones((3, 2)))
    assert slosh_("build", tmp_path / "a", tmp_path / long)[0] == 0
    code, shown = on_a_terminal("show", "a", cwd=tmp_path, NO_COLOR="1")
    assert code == 0
    assert shown.count("x") >= 90
    assert shown.count("y") >= 90
    assert "…" not in shown
    assert not re.search(r"\x1b\[[\d;]*3\dm", shown)  # no colour


@pytest.mark.parametrize("answer", ["y", "n"])
def test_remove_asks_on_a_terminal(copied, answer):
    arguments = ["remove", copied, "--where", "folder = fat"]
    code, shown = on_a_terminal(*arguments, cwd=copied.parent, answer=f"{answer}\n".encode())
    assert "remove 6 sets of 12" in shown
    assert (code, _stored(copied)) == ((0, 6) if answer == "y" else (1, 12))


# -- docs/command-line.md ----------------------------------------------------------------------------------------------

PAGE = Path(__file__).resolve().parents[1] / "docs" / "command-line.md"


def masked(text: str) -> list[str]:
    """Without numbers, which differ from machine to machine, and without what only aligns."""
    text = re.sub(r"(avx512|avx2|sse\w*|neon|numpy)\b", "KERNEL", text)
    text = re.sub(r"recall #|exact|no promise", "", re.sub(r"-?\d+([.,]\d+)*(e-\d+)?", "#", text))
    return [
        " ".join(line.replace("─", " ").replace("-", " ").split()) for line in text.splitlines() if line.strip("─ ")
    ]


def test_the_page_shows_what_the_commands_print(tmp_path, monkeypatch, capsys):
    for library in ("matplotlib", "pyarrow", "ot"):
        pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    exec(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], {})
    commands = 0
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, shown = part.partition("\n")
            capsys.readouterr()
            main(shlex.split(line)[1:])
            out, err = capsys.readouterr()
            assert sorted(masked(out + err)) == sorted(masked(shown)), line
            commands += 1
    assert commands == text.count("\n$ slosh")


# -- what is wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("search clouds.slosh nothing.npy", 1, "neither an id"),
        ("search nothing.slosh query.npy", 1, "slosh build"),
        ("search clouds query.npy", 1, "no index of slosh"),
        ("search query.npy query.npy", 1, "no index of slosh"),
        ("search solid.slosh query.npy", 1, "2 features, those of solid.slosh have 3"),
        ("search clouds.slosh query.npy -k 0", 2, "-k"),
        ("search clouds.slosh query.npy -k many", 2, "-k"),
        ("search clouds.slosh query.npy --recall 2", 2, "recall"),
        ("search clouds.slosh query.npy --radius -1", 2, "radius"),
        ("search clouds.slosh query.npy --radius 1 -k 3", 2, "leave -k"),
        ("search clouds.slosh query.npy --rerank nonsense", 2, "chamfer"),
        ("search clouds.slosh query.npy --rerank chamfer --certify", 2, "leave --rerank"),
        ("search clouds.slosh query.npy --certify --recall .5", 1, "recall"),
        ("search clouds.slosh query.npy --where 'folder ='", 2, "--where, character"),
        ("search clouds.slosh", 2, "QUERY"),
        ("show clouds.slosh nope", 1, "no set with the id 'nope'"),
        ("show clouds.slosh nope --where a=1", 2, "leave the ids out"),
        ("explain clouds.slosh query.npy nope", 1, "nope"),
        ("remove nothing.slosh a", 1, "not there"),
        ("export clouds.slosh clouds.csv", 2, "call it clouds.parquet"),
        ("export clouds.slosh no/such/place.parquet", 1, "no folder"),
        ("build clouds.slosh clouds", 1, "slosh add clouds.slosh"),
        ("build clouds clouds", 1, "is no index"),
        ("build new.slosh nothing", 1, "no such file"),
        ("build new.slosh query.npy --format nonsense", 1, "--format"),
        ("build no/such/new.slosh query.npy", 1, "make it first"),
        ("build new.slosh query.npy --embedding nonsense", 2, "wasserstein"),
        ("build new.slosh query.npy --embedding gem:x", 2, "gem:2"),
        ("build new.slosh query.npy --embedding cov:2", 2, "gem:2"),
        ("build new.slosh query.npy --embedding cov --slices 3", 2, "--slices"),
        ("build new.slosh query.npy --embedding cov --quantiles 3", 2, "--quantiles"),
        ("build new.slosh query.npy --search nonsense", 2, "ladder"),
        ("build new.slosh query.npy --scale nonsense", 1, "unit"),
        ("build new.slosh query.npy --origin a,b", 2, "--origin"),
        ("build new.slosh query.npy --origin 1,2,3", 1, "origin"),
        ("build new.slosh query.npy --columns ,", 2, "--columns"),
        ("build new.slosh query.npy --meta year", 2, "KEY=VALUE"),
        ("build new.slosh", 2, "SOURCE"),
        ("build new.slosh clouds solid", 1, "features"),
        ("bogus", 2, "bogus"),
        ("--bogus", 2, "bogus"),
    ],
)
def test_what_is_wrong_is_said(slosh_, built, arguments, code, said):
    done, out, err = slosh_(*shlex.split(arguments))
    assert (done, out) == (code, ""), err
    assert said in err
    assert "Traceback" not in err
    assert err.startswith("slosh")
    assert not (built / "new.slosh").exists()


def test_a_file_with_nan(slosh_, tmp_path):
    np.save(tmp_path / "nan.npy", [[0.0, np.nan]])
    for arguments in (
        ["build", tmp_path / "a", tmp_path / "nan.npy"],
        ["search", "clouds.slosh", tmp_path / "nan.npy"],
    ):
        code, out, err = slosh_(*arguments)
        assert (code, out) == (1, "")
        assert "nan.npy" in err
        assert "finite" in err
    assert not (tmp_path / "a").exists()


def test_an_index_that_another_has_open(slosh_, copied):
    with slosh.open(copied):
        code, _, err = slosh_("remove", copied, "thin/0000.npy")
        assert code == 1
        assert "wait until that is done" in err
        assert slosh_("search", copied, "thin/0000.npy")[0] == 0


def test_errors_in_the_words_of_the_command():
    said = running.message(ValueError("id 'a' exists: give another id, or update=True; columns='x', format= too"))
    assert said == "id 'a' exists: give another id, or --update; --columns 'x', --format too"
    assert running.message(KeyError("there is no set")) == "there is no set"
    assert running.message(MemoryError()) == "not enough memory"
    assert "SLOSH_DEBUG" in running.message(ZeroDivisionError("division"))
    said = running.message(OSError(errno.EROFS, "Read-only file system", "/a/b.slosh/lock"))
    assert said.startswith("/a/b.slosh cannot be changed (Read-only file system): it can be searched")
    assert "permissions" in running.message(PermissionError(errno.EACCES, "Permission denied", "x.npy"))
    assert "free some space" in running.message(OSError(errno.ENOSPC, "No space left on device"))
    said = running.message(sqlite3.DatabaseError("database disk image is malformed"))
    assert said.endswith("malformed: slosh verify tells more; restore it from a copy")
    assert running.message(sqlite3.Error("other")) == "the database: other"


def test_warnings_in_the_words_of_the_command():
    points = np.random.default_rng(0).normal(size=(500, 2)) * (1, 1e6)
    with pytest.warns(slosh.ScaleWarning) as caught:
        slosh.Sets.from_list([points[:250], points[250:]]).check_scale()
    said = running._in_words(str(caught[0].message))
    assert said.endswith("If that is not meant, build the index with --standardize")
    assert running._in_words('by origin="auto", or take LadderSearch(precision=32)') == (
        "by --origin auto, or take --search exact"
    )


def test_warnings_go_back_to_what_they_were(slosh_):
    before = warnings.showwarning
    slosh_("info", "clouds.slosh")
    assert warnings.showwarning is before
