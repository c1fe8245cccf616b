"""A process that is killed or interrupted loses nothing that was acknowledged, and leaves nothing half done."""

from __future__ import annotations

import json
import os
import signal
import time

import index_child as child
import numpy as np
import pytest
from children import wait_until

import slosh

KILLS = {"part": {0: 30, 1100: 6}, "all": {0: 400, 1100: 60}}


@pytest.mark.parametrize("n", [0, 1100])
def test_a_killed_process_loses_nothing_that_was_acknowledged(tmp_path, children, n, campaign):
    kills = KILLS[campaign][n]
    path, log = tmp_path / "index", tmp_path / "log"
    index, model = child.made(path, n)
    index.close()
    rng = np.random.default_rng(n)
    next_id, batch, changes = 10_000, 0, 0
    query = np.zeros((2, child.DIM), np.float32)
    for kill in range(kills):
        log.unlink(missing_ok=True)
        compact = 0.06 if n == 0 else 0.2
        number = children.start("work", path, log, model, int(rng.integers(1 << 30)), next_id, batch, compact)
        wanted = int(rng.integers(0, 4))
        if kill % 5:  # or at any moment, while it opens the index
            wait_until(lambda wanted=wanted: log.exists() and log.read_bytes().count(b"done") >= wanted)
        time.sleep(rng.uniform(0, 0.01))  # somewhere within the next change
        os.kill(number, signal.SIGKILL)
        assert children.end() == -signal.SIGKILL
        lines = log.read_text().splitlines() if log.exists() else []
        begun = [json.loads(line) for line in lines if line != "done"]
        done = lines.count("done")
        changes += done
        for what in begun[:done]:
            model = child.changed(model, what)
        possible = [model] + [child.changed(model, what) for what in begun[done:]]
        assert len(possible) <= 2
        with slosh.open(path, read_only=kill % 3 == 0, n_jobs=1) as index:
            found = [one for one in possible if child.is_model(index, one)]
            assert found, f"kill {kill}: after {begun[:done]}, with {begun[done:]} unfinished"
            model = found[-1]
            if n == 0 or kill % 4 == 0:
                report = index.verify()
                assert report.ok, f"kill {kill}: {report}"
            if model:
                assert sorted(index.search(query, k=len(model), recall=1.0).ids) == sorted(model)
                mod = [name for name in model if int(name) % 3 == 1]
                assert sorted(index.search(query, k=len(model), where={"mod": 1}).ids) == sorted(mod)
        next_id, batch = next_id + 10 * (len(begun) + 1), batch + len(begun) + 1
        if len(model) > n + 200:  # or it becomes slow
            with slosh.open(path, n_jobs=1) as index:
                index.remove(list(model)[n + 20 :])
            model = dict(list(model.items())[: n + 20])
    assert changes >= kills / 2


def test_an_interrupt_leaves_all_of_a_change_or_nothing(tmp_path, children, campaign):
    path, log = tmp_path / "index", tmp_path / "log"
    child.made(path, 0)[0].close()
    rng = np.random.default_rng(0)
    rounds = {"part": 6, "all": 40}[campaign]
    for i in range(rounds):
        log.unlink(missing_ok=True)
        number = children.start("interrupt", path, log)
        wait_until(lambda: log.exists() and b"done" in log.read_bytes())
        time.sleep(rng.uniform(0, 0.05))  # somewhere within one of the next changes
        os.kill(number, signal.SIGINT)
        assert children.end() == 0, i
        assert log.read_bytes().endswith(b"well\n")
    with slosh.open(path, n_jobs=1) as index:
        assert len(index) % 50 == rounds
        assert index.verify().ok


def test_a_process_that_is_killed_while_it_creates_an_index_leaves_room_for_the_next(tmp_path, children):
    path = tmp_path / "index"
    path.mkdir()
    (path / "lock").touch()
    for name in ("index.db.123.tmp", "index.db.123.tmp-wal"):
        (path / name).write_bytes(b"half")
    with slosh.SetIndex.create(path, child.DIM, **child.options()) as index:
        index.add([child.points_of("1", 0)])
    with slosh.open(path, n_jobs=1) as index:
        assert len(index) == 1
