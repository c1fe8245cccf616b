"""What a server is told when it starts: where to listen, what to serve, and how much of everything it takes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Limits:
    """How much one request may ask for, and all of them together."""

    body_bytes: int = 256 << 20
    """Bytes of one body."""
    held_bytes: int = 1 << 30
    """Bytes of all bodies that are held at the same time."""
    sets: int = 100_000
    """Sets in one change, or read from one file."""
    queries: int = 10_000
    points: int = 1_000_000
    """Points of one set."""
    pairs: int = 1_000_000
    """Pairs of duplicates that a job finds."""
    result_bytes: int = 256 << 20
    """Bytes of the results of jobs, of one and of all that are kept."""
    dim: int = 65_536
    """Features of an index that is created."""
    k: int = 100_000
    hits: int = 1_000_000
    """Sets that one answer may name."""
    answer_bytes: int = 1 << 28
    """Bytes of the ids and metadata of one answer."""
    transported: int = 1 << 24
    """Pairs of elements of two sets that exact transport compares."""
    numbers: int = 1 << 26
    """Coordinates of one answer in the binary type."""
    json_numbers: int = 10_000_000
    """Numbers and lists, and other values, of one body in JSON: each takes up to 100 bytes of memory."""
    nesting: int = 128
    """How deep JSON may be nested."""
    at_once: int = 256
    """Requests that are worked on or wait; more are shed."""
    connections: int = 512
    """Connections of one process; more are refused."""
    header_bytes: int = 1 << 16
    """Bytes of the headers of a request."""
    headers: int = 100
    header_seconds: float = 10.0
    """How long the headers may take to come, and a new connection may be silent."""
    deadline_seconds: float = 60.0
    body_seconds: float = 30.0
    """How long a body may take to come."""
    answer_seconds: float = 30.0
    """How long a client may take for a part of an answer (256 KB), or for the rest of it."""
    stream_seconds: float = 600.0
    """How long a client may take for a part of a stream, which it may work on meanwhile."""
    streams: int = 16
    """Streams of one process at once; more are refused."""
    expansion: float = 20.0
    """How many times its size an uploaded file may take, unpacked."""


@dataclass(frozen=True)
class Settings:
    """The options of `slosh serve`, checked."""

    places: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    threads: int = field(default_factory=lambda: max(2, os.cpu_count() or 2))
    """Threads that work on requests, in each process."""
    n_jobs: int = -1
    """Threads of one search; -1 is all cores."""
    keys_file: str | None = None
    insecure: bool = False
    read_only: bool = False
    allowed_hosts: tuple[str, ...] = ()
    access_log: bool = True
    limits: Limits = field(default_factory=Limits)

    @property
    def is_local(self) -> bool:
        return self.host in LOCAL_HOSTS
