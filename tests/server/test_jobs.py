"""Jobs: each kind of long work is cancelled while it shows a stage, and changes nothing; one that waits ends now."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
from test_server_workers import HOLDING, HOLDS

from builders import PATIENCE, clouds, contents, make_index, together, until, wait_for
from conftest import fill
from server_process import Server, ask
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


def test_a_job_that_waits_ends_as_soon_as_it_is_cancelled():
    """It gives up its place and what it holds, and never runs."""
    made, go, ran = jobs.Jobs(lambda error: {"detail": str(error)}, 1 << 20), threading.Event(), []

    def begin(number, held=None):
        return made.begin(jobs.Job("a", "verify", "read", lambda: (ran.append((number, held)), 0)))

    try:
        running = [made.begin(jobs.Job("a", "verify", "read", lambda: (go.wait(PATIENCE), 0))) for _ in range(2)]
        array = np.zeros(3)
        kept = weakref.ref(array)
        waiting = [begin(number, array) for number in range(jobs.WAITING_JOBS - 2)]
        del array
        with pytest.raises(jobs.ServerBusy):
            begin("one too many")
        told = []
        waiting[0].listeners.append(lambda: told.append(waiting[0].state))
        for job in waiting:
            made.cancel(job)
            made.cancel(job)
        assert {job.state for job in waiting} == {"cancelled"}
        assert told == ["cancelled"]
        gc.collect()
        assert kept() is None
        last = [begin(f"new {number}") for number in range(jobs.WAITING_JOBS - 2)]
        go.set()
        for job in (*running, *last):
            wait_for(job.finished)
        assert {job.state for job in (*running, *last)} == {"done"}
        assert {job.state for job in waiting} == {"cancelled"}
        assert sorted(ran) == sorted((f"new {number}", None) for number in range(jobs.WAITING_JOBS - 2))
    finally:
        go.set()
        made.close()


def test_a_job_that_is_cancelled_when_it_begins_runs_or_is_cancelled():
    made, ran, all_jobs = jobs.Jobs(lambda error: {"detail": str(error)}, 1 << 20), set(), []

    def begin_and_cancel():
        for _ in range(300):
            job = jobs.Job("a", "verify", "read", lambda: None)
            job.work = lambda id=job.id: (ran.add(id), 0)
            ended = []
            job.listeners.append(lambda ended=ended, job=job: ended.append(job.state))
            all_jobs.append((made.begin(job), ended))
            made.cancel(job)
            wait_for(job.finished)

    together(*[begin_and_cancel] * 4)
    made.close()
    assert len(all_jobs) == 1200
    for job, ended in all_jobs:
        assert ended == ["done" if job.id in ran else "cancelled"]


def test_jobs_of_a_server_that_wait_are_cancelled(tmp_path):
    with Server(fill(tmp_path), options=("--jobs", 1), command=HOLDS) as server:

        def begin():
            return ask(server, "POST", "/v1/indexes/shapes/jobs", {"kind": "verify"})

        begun = [begin()[2]["id"] for _ in range(jobs.WAITING_JOBS)]
        assert begin()[0] == 503
        for id in begun[2:]:
            assert ask(server, "DELETE", f"/v1/jobs/{id}")[2]["state"] == "cancelled"
        assert begin()[0] == 202
        assert server.stop() == 0


def test_k_of_each_job_is_limited(server):
    for kind in ("tune", "neighbor_graph", "kneighbors"):
        asked = {"kind": kind, "arguments": {"k": 100_001}}
        status, _, problem = ask(server, "POST", "/v1/indexes/shapes/jobs", asked)
        assert (status, problem["detail"]) == (400, "k=100,001: give at most 100,000")
        assert problem["fields"]["argument"] == "k"


CLIENT = "import sys, slosh; slosh.open(sys.argv[1]).verify()"
SLOW = """
from pathlib import Path
from slosh.server import jobs

begin = jobs.Jobs.begin

def begin_slowly(self, job):
    begin(self, job)
    while not Path(GO).exists():
        time.sleep(0.01)
    return job

jobs.Jobs.begin = begin_slowly
sys.exit"""


def interrupted(server, after=lambda: None):
    """Interrupt a client whose job runs, and return the state of the job and what the client wrote."""
    command = [sys.executable, "-c", CLIENT, server.url]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as client:
        try:

            def is_running():
                assert client.poll() is None, client.communicate()[1]
                return [each["state"] for each in ask(server, "GET", "/v1/jobs")[2]["jobs"]] == ["running"]

            until(is_running)
            client.send_signal(signal.SIGINT)
            after()
            _, said = client.communicate(timeout=PATIENCE)
        finally:
            client.kill()
    (job,) = ask(server, "GET", "/v1/jobs")[2]["jobs"]
    return ask(server, "GET", f"/v1/jobs/{job['id']}?wait=30")[2]["state"], said


def test_ctrl_c_in_a_client_cancels_its_job(tmp_path):
    """Also at once after it has begun."""
    with Server(fill(tmp_path), options=("--jobs", 1), command=HOLDS) as server:
        state, said = interrupted(server)
    assert state == "cancelled"
    assert said.splitlines()[-1] == "KeyboardInterrupt"


def test_ctrl_c_in_a_client_that_does_not_know_its_job_yet_cancels_it(tmp_path):
    """The job runs, but the answer that has its id has not come."""
    go = tmp_path / "go"
    code = HOLDING.replace("sys.exit", SLOW.replace("GO", repr(str(go))))
    with Server(fill(tmp_path), options=("--jobs", 1), command=[sys.executable, "-c", code, "serve"]) as server:
        state, said = interrupted(server, go.touch)
    assert state == "cancelled"
    assert said.splitlines()[-1] == "KeyboardInterrupt"
