"""What is printed: nothing is cut, nothing of a file reaches the terminal, bytes and counts in words."""

from __future__ import annotations

import re

import numpy as np

from slosh.errors import printable


def test_text_of_files_does_nothing_to_the_terminal(slosh_, tmp_path):
    names = np.array(["[bold]a[/bold]", "b\x1b[2Jc"])
    np.savez(tmp_path / "x.npz", points=np.eye(2), offsets=[0, 1, 2], names=names)
    assert slosh_("build", tmp_path / "a", tmp_path / "x.npz")[0] == 0
    out = slosh_("show", tmp_path / "a")[1]
    assert "[bold]a[/bold]" in out
    assert "b\\x1b[2Jc" in out
    assert printable("plain ü") == "plain ü"


def test_long_ids_are_whole_in_a_pipe(slosh_, tmp_path):
    long = "x" * 200 + ".npy"
    np.save(tmp_path / long, np.ones((3, 2)))
    assert slosh_("build", tmp_path / "a", tmp_path / long, "query.npy")[0] == 0
    assert long in slosh_("search", tmp_path / "a", "query.npy", "--file")[1]
    assert long in slosh_("show", tmp_path / "a")[1]
    assert "\x1b" not in slosh_("show", tmp_path / "a", long)[1]


def test_a_terminal_folds_and_loses_nothing(slosh_, tmp_path, on_a_terminal):
    long = "x" * 90 + "y" * 90 + ".npy"
    np.save(tmp_path / long, np.ones((3, 2)))
    assert slosh_("build", tmp_path / "a", tmp_path / long)[0] == 0
    code, shown = on_a_terminal("show", "a", cwd=tmp_path, NO_COLOR="1")
    assert code == 0
    assert shown.count("x") >= 90
    assert shown.count("y") >= 90
    assert "…" not in shown
    assert not re.search(r"\x1b\[[\d;]*3\dm", shown)  # no colour
