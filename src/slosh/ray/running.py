"""Run the tasks of a batch job on the workers of Ray.

Ray places the tasks, and runs a task again if its worker or its machine dies. A task may be run again because it
writes under a name of its own. An error of slosh comes back as a value, so that users see it as it is, without the
tracebacks of Ray around it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ..data.checks import checked_count, checked_number
from ..errors import InputError, SloshError, WorkerLost, import_extra, system_error

RETRIES = 3
"""How often a task is run again if its worker dies."""
QUEUED = 2
"""Tasks that are handed to Ray for each that can run, so that no worker waits for the next one."""


class Failed(NamedTuple):
    """What a task raised on purpose."""

    error: SloshError


def import_ray(needed_by: str) -> Any:
    """Return Ray; MissingExtra if it is not installed."""
    return import_extra("ray", needed_by, "ray")


class RayRunner:
    """Runs work(task) for each task as tasks of Ray, some at a time, and yields (task, result) as they are done.

    num_cpus : cores that one task takes. workers : tasks at a time; None is as many as the cluster has cores for.
    """

    def __init__(self, num_cpus: float = 1, workers: int | None = None) -> None:
        self.num_cpus = checked_number("num_cpus", num_cpus, "a number of cores, above 0")
        self.workers = None if workers is None else checked_count("workers", workers)

    def __call__(self, work: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield (task, result) as they are done, in any order."""
        ray = import_ray("slosh.ray")
        if tasks:
            self.check(ray)
        call = ray.remote(num_cpus=self.num_cpus, max_retries=RETRIES, retry_exceptions=False)(_call)
        shared = ray.put(work)  # once, and not with every task
        waiting, running = deque(tasks), dict[Any, Any]()
        try:
            done: list[Any] = []
            while waiting or running:
                finished = [(running.pop(each), each) for each in done]
                while waiting and len(running) < self._at_once(ray):
                    task = waiting.popleft()
                    running[call.remote(shared, task)] = task  # before the caller looks at what is done: nobody waits
                for task, each in finished:
                    yield task, self._result(ray, each, task)
                done = ray.wait(list(running), num_returns=1)[0] if running else []
        finally:
            for each in running:
                with suppress(Exception):
                    ray.cancel(each, force=True)

    def check(self, ray: Any) -> None:
        """Refuse tasks that no machine has the cores for: Ray would wait for such a machine for ever. It is started
        if it was not. Where no machine has cores yet, they may be on their way.
        """
        if not ray.is_initialized():
            ray.init(log_to_driver=False)
        most = max((float(x["Resources"].get("CPU", 0.0)) for x in ray.nodes() if x["Alive"]), default=0.0)
        if 0 < most < self.num_cpus:
            problem = f"num_cpus={self.num_cpus:g}, and the largest machine of the cluster has {most:g} cores"
            raise InputError(problem, f"give at most {most:g}, or add a larger machine", argument="num_cpus")

    def _at_once(self, ray: Any) -> int:
        """Return how many tasks are handed over: machines may come and go."""
        if self.workers is not None:
            return self.workers
        cores = float(ray.cluster_resources().get("CPU", 1.0))
        return max(1, int(QUEUED * cores / max(self.num_cpus, 0.01)))

    def _result(self, ray: Any, reference: Any, task: Any) -> Any:
        try:
            found = ray.get(reference)
        except (
            ray.exceptions.WorkerCrashedError,
            ray.exceptions.OutOfMemoryError,
            ray.exceptions.NodeDiedError,
        ) as error:
            about = describe(task)
            problem = f"the worker that read {about} died {RETRIES + 1} times ({type(error).__name__})"
            remedy = "see whether it ran out of memory: give each task more cores (num_cpus), or run fewer (workers)"
            raise WorkerLost(problem, remedy, location=about, attempts=RETRIES + 1) from None
        if isinstance(found, Failed):
            raise found.error
        return found


def describe(task: Any) -> str:
    """Return what a task is about: the first file of it."""
    first = task
    while isinstance(first, list | tuple) and first and not hasattr(first, "path"):
        first = first[0]
    return str(getattr(first, "path", f"task {task!r:.60}"))


def _call(work: Callable[[Any], Any], task: Any) -> Any:
    try:
        return work(task)
    except SloshError as error:
        return Failed(error)
    except OSError as error:
        return Failed(system_error(error, str(error.filename or describe(task))))
    except MemoryError:
        about = describe(task)
        problem, remedy = f"there was not enough memory for {about}", "run fewer tasks at a time (workers)"
        return Failed(WorkerLost(problem, remedy, location=about, attempts=1))
