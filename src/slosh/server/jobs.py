"""Jobs: long work in threads of its own, whose progress can be asked for, and which can be cancelled.

Progress comes from the bars that the library would show on a terminal (`data/progress.py`). A job that is cancelled
ends at its next checkpoint (`checkpoints.py`), by an error: so what it was changing stays as it was.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

from ..data.progress import watched
from ..errors import ServerBusy, WorkCancelled

logger = logging.getLogger(__name__)

KEPT_JOBS = 100
"""Jobs whose results are kept; the oldest that has ended goes first."""
WAITING_JOBS = 32
"""Jobs that may wait or run; more are shed."""
THREADS = 2


State = Literal["waiting", "running", "done", "failed", "cancelled"]


@dataclass
class Job:
    """One piece of work."""

    index: str
    kind: str
    access: str
    work: Callable[[], tuple[Any, int]]
    """What is done: it returns the result, and how many bytes that takes. It is let go of when the job ends."""
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    state: State = "waiting"
    stage: str = ""
    done: int = 0
    total: int | None = None
    result: Any = None
    n_bytes: int = 0
    """How much the result takes, about."""
    error: dict[str, Any] | None = None
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)
    finished: threading.Event = field(default_factory=threading.Event)
    listeners: list[Callable[[], None]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return (time.monotonic() if self.ended is None else self.ended) - self.started

    def tell(self) -> None:
        """Call those who wait."""
        for call in list(self.listeners):  # whoever gives up waiting takes its own out meanwhile
            call()

    def watch(self, stage: str, done: int, total: int | None) -> None:
        """Note how far the work is, and end it if it was cancelled."""
        self.stage, self.done, self.total = stage, done, total
        if self.cancelled.is_set():
            raise WorkCancelled(f"the job {self.id} was cancelled", "begin it again")


class Jobs:
    """The jobs of a server."""

    def __init__(self, describe: Callable[[BaseException], dict[str, Any]], kept_bytes: int) -> None:
        self._describe = describe
        """What makes problem details of an error that may be sent to a client."""
        self._kept_bytes = kept_bytes
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="job")
        self._lock, self._jobs = threading.Lock(), dict[str, Job]()
        self.waits_ended = False
        """Whether nobody is to wait for a job any more, because the server stops."""

    def begin(self, job: Job) -> Job:
        """Let a job run as soon as a thread is free."""
        with self._lock:
            waiting = [each for each in self._jobs.values() if not each.finished.is_set()]
            if len(waiting) >= WAITING_JOBS:
                raise ServerBusy(f"{len(waiting)} jobs wait already", "try again later", retry_after=5.0)
            ended = [each.id for each in self._jobs.values() if each.finished.is_set()]
            for old in ended[: max(0, len(self._jobs) - KEPT_JOBS + 1)]:
                del self._jobs[old]
            self._jobs[job.id] = job
        self._threads.submit(self._run, job)
        return job

    def cancel(self, job: Job) -> None:
        """End a job: at once if it has not begun, else at its next checkpoint."""
        with self._lock:
            job.cancelled.set()
            if job.state == "waiting":
                _end(job, "cancelled")

    def get(self, id: str) -> Job | None:
        return self._jobs.get(id)

    def all(self) -> list[Job]:
        with self._lock:
            return list(self._jobs.values())

    def running(self) -> int:
        return sum(not each.finished.is_set() for each in self.all())

    def end_waits(self) -> None:
        """Let those who wait for a job go: they are told how far it is."""
        self.waits_ended = True
        for job in self.all():
            job.tell()

    def close(self) -> None:
        """Cancel what runs, and wait for its end."""
        for job in self.all():
            self.cancel(job)
        self._threads.shutdown(wait=True, cancel_futures=True)
        for job in self.all():  # those that were begun meanwhile
            self.cancel(job)

    def _run(self, job: Job) -> None:
        with self._lock:
            if job.finished.is_set():  # it was cancelled while it waited
                return
            job.state = "running"
        try:
            with watched(job.watch):
                job.result, job.n_bytes = job.work()
            state: State = "done"
        except WorkCancelled:
            state = "cancelled"
        except Exception as error:
            job.error, state = self._describe(error), "failed"
            if job.error["status"] == 500:
                logger.exception("job %s (%s of %s) failed", job.id, job.kind, job.index)
        _end(job, state)
        if job.n_bytes:
            self._forget_results(job)

    def _forget_results(self, newest: Job) -> None:
        """Forget the oldest jobs while their results, with that of the newest, take more than is kept."""
        with self._lock:
            total = sum(each.n_bytes for each in self._jobs.values())
            for old in [each for each in self._jobs.values() if each.n_bytes and each is not newest]:
                if total <= self._kept_bytes:
                    break
                total -= old.n_bytes
                del self._jobs[old.id]


def _end(job: Job, state: State) -> None:
    job.state, job.ended, job.work = state, time.monotonic(), _nothing
    job.finished.set()
    job.tell()


def _nothing() -> tuple[Any, int]:
    """Stand for the work of a job that has ended, which may hold sets."""
    return None, 0
