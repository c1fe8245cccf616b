"""Bars on a terminal: what is drawn, what is not, and what Ctrl-C leaves."""

from __future__ import annotations

import io

import pytest

from builders import calls_of, together
from slosh.data.progress import ProgressBar


class Terminal(io.StringIO):
    def isatty(self):
        return True


def draw(**options):
    """Draw a bar of two steps, and return what came out."""
    terminal = Terminal()
    with ProgressBar(total=2, desc="work", file=terminal, mininterval=0, miniters=1, **options) as bar:
        for _ in range(2):
            bar.update()
    return terminal.getvalue()


def test_a_bar_is_drawn_and_leaves_nothing():
    drawn = draw(delay=0)
    assert "work" in drawn
    assert "2/2" in drawn
    assert drawn.rpartition("2/2")[2].strip(" \r|[]0123456789:<,?it/s.") == ""
    assert drawn.endswith("\r")


def test_short_work_and_a_file_show_no_bar():
    assert draw() == ""
    file = io.StringIO()
    with ProgressBar(total=2, file=file, delay=0) as bar:
        bar.update()
    assert file.getvalue() == ""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Ctrl-C as a bar is thrown away
@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_at_any_moment_leaves_the_lock_of_all_bars_free():
    interrupted = 0
    for n in range(calls_of(lambda: draw(delay=0))):
        try:
            calls_of(lambda: draw(delay=0), interrupted_at=n)
        except KeyboardInterrupt:
            interrupted += 1
            together(lambda: draw(delay=0))  # while the traceback, and with it the bar, is still there
    assert interrupted > 10
