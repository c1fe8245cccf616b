"""Bars on a terminal: what is drawn, what is not, and what Ctrl-C leaves."""

from __future__ import annotations

import io

import pytest

from builders import calls_of, together
from slosh.data.progress import ProgressBar, watched


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


def test_whoever_watches_is_told_and_may_end_the_work():
    """In this thread only, whether a bar is shown or not."""
    seen = []

    def watch(stage, done, total):
        seen.append((stage, done, total))
        if done == 3:
            raise TimeoutError

    with watched(watch):
        with ProgressBar(total=5, desc="one", disable=True) as bar:
            bar.update(2)
        assert list(ProgressBar("ab", desc="two", total=2)) == ["a", "b"]
        together(lambda: ProgressBar(total=9, desc="of another thread").update(1))
        with pytest.raises(TimeoutError), ProgressBar(total=5, desc="three") as bar:
            bar.update(3)
    ProgressBar(total=9, desc="after").update(1)
    one, two = [("one", 0, 5), ("one", 2, 5)], [("two", 0, 2), ("two", 1, 2), ("two", 2, 2)]
    assert seen == [*one, *two, ("three", 0, 5), ("three", 3, 5)]
