"""`slosh demo`: it ends well, what it prints is measured, and the commands that it proposes work."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import sys

import pytest

import slosh
from slosh.cli import main
from slosh.cli.demo import N_STORED, load_digits

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The folder, and what a run in it printed."""
    folder = tmp_path_factory.mktemp("demo")
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.chdir(folder)
        assert main(["demo"]) == 0
    return folder, printed.getvalue()


def commands(said):
    """Return the commands that the demo proposes, but for the last, which is about files of the user."""
    return [line.strip() for line in said.partition("What to try next")[2].splitlines() if "slosh " in line][:-1]


def test_the_digits():
    digits = load_digits()
    assert (len(digits.sets), digits.sets.dim, len(set(digits.ids))) == (1797, 2, 1797)
    assert digits.sets.weights is not None
    assert {about["digit"] for about in digits.metadata} == set(range(10))


def test_what_it_says(ran):
    _, said = ran
    assert float(re.search(r"precision@10 ([\d.]+)", said)[1]) > 0.88
    assert float(re.search(r"accuracy ([\d.]+)", said)[1]) > 0.94
    assert float(re.search(r"recall ([\d.]+) of what", said)[1]) > 0.98
    assert float(re.search(r"([\d.]+) full distances of 1,500", said)[1]) < 100
    assert "the same answers" in said
    assert re.search(r"the 10 nearest to a \d are [68]s", said)
    assert "Orange neighbours" in said


def test_what_it_leaves(ran):
    folder, _ = ran
    with slosh.open(folder / "demo" / "digits.slosh", read_only=True) as index:
        assert len(index) == N_STORED
        assert index.verify(100).ok
    picture = (folder / "demo" / "neighbours.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(picture) > 50_000


def test_what_to_try_next_works(ran, monkeypatch, capsys):
    folder, said = ran
    monkeypatch.chdir(folder)
    proposed = commands(said)
    assert len(proposed) == 7
    for line in proposed:
        assert main(shlex.split(line)[1:]) == 0, line
        assert capsys.readouterr().out
    assert (folder / "demo" / "ones.png").exists()
    assert (folder / "demo" / "why.png").exists()


def test_again_and_kept(ran, monkeypatch, capsys):
    folder, _ = ran
    monkeypatch.chdir(folder)
    assert main(["demo", "--keep"]) == 0
    assert "kept" in capsys.readouterr().out
    assert main(["demo"]) == 0
    assert "digits stored in" in capsys.readouterr().out


def test_it_removes_only_its_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    with slosh.SetIndex.create(tmp_path / "demo" / "digits.slosh", dim=2) as index:
        index.add([[[0.0, 1.0]]], ids=["mine"])
    assert main(["demo"]) == 1
    assert "not made by this demo" in capsys.readouterr().err
    with slosh.open(tmp_path / "demo" / "digits.slosh") as index:
        assert index.ids == ["mine"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "digits.slosh").write_text("mine")
    assert main(["demo", "--out", "other"]) == 1
    assert (tmp_path / "other" / "digits.slosh").read_text() == "mine"


def test_without_matplotlib_there_is_no_picture(ran, tmp_path, monkeypatch, capsys):
    """It ends well, and what it proposes works."""
    shutil.copytree(ran[0] / "demo" / "digits.slosh", tmp_path / "demo" / "digits.slosh")
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # importing it fails
    assert main(["demo", "--keep"]) == 0
    said = capsys.readouterr().out
    assert 'There is no picture: a picture needs matplotlib: install it with: pip install "slosh[plot]"' in said
    proposed = commands(said)
    assert len(proposed) == 7
    for line in proposed:
        assert main(shlex.split(line)[1:]) == 0, line
    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == ["digits.slosh", "held-out.npz"]
