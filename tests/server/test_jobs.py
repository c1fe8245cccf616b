"""Jobs within this process: each kind of long work is cancelled while it shows a stage, and changes nothing."""

from __future__ import annotations

import pytest

from builders import PATIENCE, clouds, contents, make_index, wait_for
from slosh.checkpoints import watched
from slosh.embed import Whitened

jobs = pytest.importorskip("slosh.server.jobs", reason="the extra server is not installed")

WORK = {
    "compact": lambda index: index.compact(),
    "tune": lambda index: index.tune(0.9, 7),
    "verify": lambda index: index.verify(),
    "retrain": lambda index: index.retrain(embedding=Whitened()),
    "enable": lambda index: index.enable("parts"),
    "duplicates": lambda index: index.duplicates(0.1),
    "neighbor_graph": lambda index: index.neighbor_graph(5),
    "kneighbors": lambda index: index.kneighbors(k=5),
}


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """An index in a folder that is large enough to be trained."""
    with make_index(tmp_path_factory.mktemp("jobs") / "large.slosh") as made:
        made.add(clouds(3000))
        yield made


@pytest.mark.parametrize("kind", WORK)
def test_a_job_that_is_cancelled_ends_at_its_next_checkpoint(index, kind):
    before, running, seen = contents(index), jobs.Jobs(lambda error: {"detail": str(error)}, 1 << 20), []

    def wait_to_be_cancelled(stage, done, total):
        if stage:
            seen.append((stage, done, total))
            wait_for(job.cancelled)

    def work():
        with watched(wait_to_be_cancelled):
            return WORK[kind](index), 0

    job = jobs.Job("large", kind, "write", work)
    running.begin(job)
    try:
        while not seen and not job.finished.wait(0.01):
            pass
        assert (job.stage, job.done, job.total) == seen[0]
        job.cancelled.set()
        assert job.finished.wait(PATIENCE)
        assert (job.state, job.error, len(seen)) == ("cancelled", None, 1)
    finally:
        running.close()
    assert contents(index) == before
    assert index.info()["parts"] is None
