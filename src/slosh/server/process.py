"""The processes of a server. One process does everything; with `--workers` several read, and one writes.

The process that was started owns the indexes: it is the only one that changes them, listens on a socket in a folder of
its own, and does what workers forward. Workers share the listening socket, and open the indexes for reading.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import importlib
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from ..errors import InputError, StorageError
from . import access_log
from .app import make_app, route_names
from .catalog import Catalog, Generation
from .connections import limited_protocol
from .context import Context
from .folder import own_folder
from .forward import Forwarder
from .keys import read_keys
from .metrics import Metrics
from .settings import Limits, Settings

logger = logging.getLogger(__name__)

BACKLOG = 2048
SOCKET_PATH = 103
"""Bytes of the path of a socket, at most, on all systems."""
KEEP_ALIVE_SECONDS = 75
STOP_SECONDS = 30
"""How long what was begun may take when the server stops."""
WORKER_STARTS = 4
"""How often a worker is started, at most, until it is ready for the first time."""
SWITCH_SECONDS = 0.001
"""How long a thread of Python may run before another one that waits."""
COLLECTED_AFTER = (20_000, 20, 20)
"""Thresholds of the garbage collection: a request in JSON makes hundreds of lists, none of which is ever garbage."""
OPENED_AT_START = 64
"""Indexes that are opened when the server starts; more are opened when they are asked for."""


class _Server(uvicorn.Server):
    """A server that leaves signals to whoever started it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(settings: Settings, started: Callable[[str, list[str]], None]) -> None:
    """Serve until a signal stops it. `started` is called with the address and the names of the indexes."""
    check(settings)
    listening = bind(settings)
    with contextlib.closing(listening), own_folder() as folder:
        if settings.workers > 1:
            _check_inner(folder)
        run_loop(_serve(settings, listening, folder, started))


def check(settings: Settings) -> None:
    """Refuse to listen where others can reach the server, unless there are keys."""
    if not settings.is_local and settings.keys_file is None and not settings.insecure:
        raise InputError(
            f"host={settings.host!r} lets other machines reach the indexes",
            "give a file of keys, or insecure=True to let everybody in",
            argument="host",
        )


def _check_inner(folder: Path) -> None:
    """Refuse a folder in which no socket can be: the path of one is short."""
    if len(os.fsencode(inner_socket(folder))) > SOCKET_PATH:
        problem = f"the path of the temporary directory is too long for a socket: {folder.parent}"
        raise StorageError(problem, "set TMPDIR to a shorter one, or leave workers out", location=str(folder.parent))


def inner_socket(folder: Path) -> Path:
    """Return the path of the socket at which the process that writes listens to workers."""
    return folder / "owner"


def bind(settings: Settings) -> socket.socket:
    """Return the listening socket."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # With the protocol, so that the loop sees that it is TCP, and sends the parts of an answer without delay.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((settings.host, settings.port))
    except OSError as error:
        made.close()
        where = f"{settings.host}:{settings.port}"
        problem = f"cannot listen on {where}: {error.strerror or error}"
        is_port = error.errno in (errno.EADDRINUSE, errno.EACCES)
        remedy = "choose another port" if is_port else "give an address of this machine as host, or 0.0.0.0 for all"
        raise StorageError(problem, remedy, error.errno, location=f"http://{where}") from None
    made.listen(BACKLOG)
    made.set_inheritable(True)
    return made


def configured(app: FastAPI, limits: Limits, **more: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=limited_protocol(limits),
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        ws="none",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
        backlog=BACKLOG,
        **more,
    )


async def _serve(
    settings: Settings, listening: socket.socket, folder: Path, started: Callable[[str, list[str]], None]
) -> None:
    many = settings.workers > 1
    shared, numbers = folder / "generation", folder / "metrics"
    shared.write_bytes(bytes(8))
    routes, rows = route_names(), settings.workers + 1
    numbers.write_bytes(bytes(Metrics(routes, rows=rows).n_bytes))
    catalog = Catalog(settings.places, settings.read_only, Generation(shared), settings.n_jobs)
    metrics = Metrics(routes, numbers, 0, rows) if many else Metrics(routes)
    keys = read_keys(settings.keys_file, settings.read_only)
    context = Context(settings, catalog, keys, metrics, folder, behind_workers=many)
    names = _open_all(catalog, settings)
    app, inner = make_app(context), inner_socket(folder)
    server = _Server(configured(app, settings.limits, **({"uds": str(inner)} if many else {})))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    task = asyncio.create_task(server.serve() if many else server.serve([listening]))
    while not server.started and not task.done():
        await asyncio.sleep(0.01)
    workers = _Workers(settings, listening, folder) if many and not task.done() else None
    stopping, watching = asyncio.create_task(stop.wait()), None
    try:
        if workers is not None:
            await workers.wait_until_ready(stop)
            watching = asyncio.create_task(workers.watch(stop))
        settle_memory()
        if not task.done() and not stop.is_set():
            started(address(listening, settings), names)
        await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.set()
        context.jobs.end_waits()
        if workers is not None:  # first those who forward, then the one that they forward to
            listening.close()  # or clients would be let in whom nobody answers, once the workers have closed theirs
            await loop.run_in_executor(None, workers.stop)
        context.stopping, server.should_exit = True, True
        await task
        stopping.cancel()
        if watching is not None:
            watching.cancel()


def _open_all(catalog: Catalog, settings: Settings) -> list[str]:
    """Open the indexes, so that what is wrong is said at the start. Of a place of many, the others are served."""
    names, failed = catalog.names(), []
    for name in names[:OPENED_AT_START]:
        try:
            catalog.get(name)
        except (StorageError, ValueError) as error:
            if not catalog.can_create:
                raise
            failed.append(name)
            logger.warning("%s is not served: %s", name, error)
    return [name for name in names if name not in failed]


def address(listening: socket.socket, settings: Settings) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{listening.getsockname()[1]}"


class _Workers:
    """The processes that read."""

    def __init__(self, settings: Settings, listening: socket.socket, folder: Path) -> None:
        self._settings, self._listening, self._folder = settings, listening, folder
        self._context = multiprocessing.get_context("spawn")
        resource_tracker.ensure_running()  # or the first worker would start it, and unblock SIGINT
        self._processes: list[Any] = [self._start(i) for i in range(settings.workers)]

    def _start(self, i: int) -> Any:
        """Start a worker, which never gets Ctrl-C: that goes to all processes, and this one stops the others."""
        ready_file(self._folder, i).unlink(missing_ok=True)
        arguments = (self._settings, self._listening, str(self._folder), i)
        process = self._context.Process(target=run_worker, args=arguments, daemon=True)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a new process begins with this mask
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return process

    def _start_again(self, i: int) -> None:
        logger.warning("worker %d ended with code %s, and is started again", i, self._processes[i].exitcode)
        self._processes[i] = self._start(i)

    async def wait_until_ready(self, stop: asyncio.Event) -> None:
        """Wait for all workers, unless the server is to stop; start one again that dies, but not for ever."""
        starts = [1] * len(self._processes)
        while not stop.is_set() and not all(ready_file(self._folder, i).exists() for i in range(len(starts))):
            for i, process in enumerate(self._processes):
                if process.is_alive():
                    continue
                if starts[i] == WORKER_STARTS:
                    problem = f"worker {i} ended {starts[i]} times while it started, with code {process.exitcode}"
                    raise StorageError(problem, "what it wrote to standard error says why")
                starts[i] += 1
                self._start_again(i)
            await asyncio.sleep(0.02)

    async def watch(self, stop: asyncio.Event) -> None:
        """Start a worker again that has ended by itself."""
        while not stop.is_set():
            await asyncio.sleep(0.5)
            for i, process in enumerate(self._processes):
                if not process.is_alive() and not stop.is_set():
                    self._start_again(i)

    def stop(self) -> None:
        for process in self._processes:
            if process.is_alive():
                os.kill(process.pid, signal.SIGTERM)
        for process in self._processes:
            process.join(STOP_SECONDS + 5)
            if process.is_alive():
                process.kill()


def ready_file(folder: Path, number: int) -> Path:
    """Return the file that a worker makes when it is ready."""
    return folder / f"ready-{number}"


def run_worker(settings: Settings, listening: socket.socket, folder: str, number: int) -> None:
    """Be one of the processes that read."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as it is blocked, for whatever unblocks it
    configure_logging(settings)
    place = Path(folder)
    catalog = Catalog(settings.places, True, Generation(place / "generation"), settings.n_jobs)
    metrics = Metrics(route_names(), place / "metrics", number + 1, settings.workers + 1)
    context = Context(settings, catalog, read_keys(settings.keys_file, settings.read_only), metrics, place)
    app = make_app(context, Forwarder(str(inner_socket(place))))
    parent = multiprocessing.parent_process()
    assert parent is not None
    writer = parent.sentinel  # can be read when that process has ended

    async def run() -> None:
        server = _Server(configured(app, settings.limits))

        def stop() -> None:
            context.stopping, server.should_exit = True, True

        def abandon() -> None:
            loop.remove_reader(writer)
            logger.error("the process that writes has ended, and so does worker %d", number)
            shutil.rmtree(place, ignore_errors=True)
            stop()

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, stop)
        loop.add_reader(writer, abandon)
        task = asyncio.create_task(server.serve([listening]))
        while not server.started and not task.done():
            await asyncio.sleep(0.01)
        settle_memory()
        if server.started:
            ready_file(place, number).touch()
        await task

    run_loop(run())


def run_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end, in the faster loop where that is installed.

    Threads take turns more often than by default: the loop is not to wait for one that makes a large answer.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        uvloop: Any = importlib.import_module("uvloop")
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


def settle_memory() -> None:
    """Leave what a started server holds out of later garbage collections, and collect less often.

    Most of what it holds are modules. While a collection goes through them every request waits, and the lists of
    decoded requests would bring that on again and again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTED_AFTER)


def configure_logging(settings: Settings) -> None:
    """Write the access log, one JSON object a line, to standard error, and warnings beside it."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log = logging.getLogger(access_log.NAME)
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO if settings.access_log else logging.WARNING)
