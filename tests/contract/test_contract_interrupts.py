"""Ctrl-C at any moment of a change: all of it is there or nothing, and the index can be changed at once."""

from __future__ import annotations

import pytest

from builders import calls_of, cloud_list, together

CHANGES = {
    "add": (lambda index: index.add(cloud_list(4, seed=1), metadata={"new": True}), 4),
    "update": (lambda index: index.update(["a", "b"], cloud_list(2, seed=1)), 0),
    "remove": (lambda index: index.remove(["a", "b"]), -2),
    "compact": (lambda index: index.compact(), 0),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a generator that is thrown away
@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("change", CHANGES)
def test_an_interrupt_at_any_call_of_a_change(engine, change, campaign):
    work, more = CHANGES[change]
    step = 1 if campaign == "all" else {"memory": 4}.get(engine.name, 13) * engine.effort
    index, interrupted = engine.create(), 0
    index.add(cloud_list(3), ["a", "b", "c"])
    for n in range(0, calls_of(lambda: work(index)), step):
        index.add(cloud_list(3), ["a", "b", "c"], update=True)
        before = len(index)
        try:
            calls_of(lambda: work(index), interrupted_at=n)
        except KeyboardInterrupt:
            assert len(index) in (before, before + more), n
            check_changeable(index)  # while the traceback, and with it what was interrupted, is still there
            interrupted += 1
    assert interrupted > 3
    report = index.verify()
    assert report.ok, str(report)


def check_changeable(index):
    """Add a set in another thread, and remove it in this one."""
    together(lambda: index.add(cloud_list(1), ["other"]))
    assert index.remove(["other"]) == ["other"]
