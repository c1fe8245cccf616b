"""Shards in actors of Ray: each opens one shard and answers; Ray places them, and starts again those that die.

A question names all that its answer depends on (`engines/sharded/shard.py`), so that any replica may answer, and one
that was just started as well.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..engines.sharded.shard import Mark, Shard
from ..engines.sharded.view import Call, Lost
from ..errors import IndexClosed, SloshError, StorageError, import_extra

SHARED_BYTES = 1 << 16
"""What all shards get and is larger than this is put into the object store once."""
MAX_TRIES = 8
"""How often a question is asked whose shard dies meanwhile."""
PAUSE_SECONDS = 0.1
LOOK_SECONDS = 1.0
"""An actor that has not answered for so long is asked whether it is there at all."""
PINGS = "pings"
"""The threads of an actor that answer pings, however many questions it is working on."""


class Failed(NamedTuple):
    """An error of slosh, as an answer: Ray would wrap it in one of its own."""

    error: SloshError


class Silent(Exception):
    """An actor gave no sign of life for as long as one waits for that."""


@dataclass
class Sent:
    """A question on its way: to which of the replicas, the reference to its answer, and since when."""

    number: int
    ref: Any
    since: float = field(default_factory=time.monotonic)
    ping: Any = None
    """The reference to a sign of life that it was asked for, and since when."""
    ping_since: float = 0.0


class ShardActor:
    """What runs in an actor. The shard is opened by the first question, so that what is wrong with it can be said."""

    def __init__(self, place: str, name: str, folder: str, n_jobs: int | None) -> None:
        self._opened = place, name, folder, n_jobs
        ray = import_extra("ray", "slosh.ray", "ray")
        self._place = {"node": ray.get_runtime_context().get_node_id(), "pid": os.getpid()}
        self._shard: Shard | None = None

    def ping(self) -> bool:
        """Say that it is there."""
        return True

    def ask(self, mark: Mark | None, question: str, shared: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
        """Answer as `Shard.ask` does; an error of slosh is an answer, too."""
        try:
            if self._shard is None:
                self._shard = Shard(*self._opened)
            answer = self._shard.ask(mark, question, shared, own)
            return {**answer, **self._place} if question == "info" else answer
        except SloshError as error:
            return Failed(error)


class Replicas:
    """The actors of one shard, which answer in turn.

    One that did not answer is away. It gets a ping, which Ray delivers when it has started it again; until that is
    answered nobody else has to find out that it is away.
    """

    def __init__(self, ray: Any, name: str, handles: Sequence[Any]) -> None:
        self.name, self.handles = name, handles
        self._ray, self._turns = ray, itertools.count()
        self._pings: dict[int, Any] = {}
        self._back: dict[int, float] = {}

    def next_one(self) -> int | None:
        """Return the number of the actor whose turn it is, of those that are not away; None if all are."""
        turn, n = next(self._turns), len(self.handles)
        for number in range(turn, turn + n):
            if not self._pings or self._is_there(number % n):
                return number % n
        return None

    def _is_there(self, number: int, seconds: float = 0.0) -> bool:
        ping = self._pings.get(number)
        if ping is None:
            return True
        ready, _ = self._ray.wait([ping], timeout=seconds)
        if not ready:
            return False
        self._pings.pop(number, None)
        try:
            self._ray.get(ping)
            self._back[number] = time.monotonic()
            return True
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.OutOfMemoryError):  # not back by itself
            self.note_away(number)
            return False

    def note_away(self, number: int, since: float = math.inf) -> None:
        """Remember that an actor did not answer a question, unless it has come back since that was asked."""
        if number not in self._pings and since > self._back.get(number, -math.inf):
            self._pings[number] = self.ping(number, max_task_retries=-1)

    def ping(self, number: int, **options: Any) -> Any:
        """Ask an actor for a sign of life, which its questions do not hold up; return the reference to it."""
        return self.handles[number].ping.options(concurrency_group=PINGS, **options).remote()

    def wait_for_one(self, seconds: float) -> int | None:
        """Wait for any of them to be there again; return its number, None if none is in time. Ray starts them."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            pings = list(self._pings.values())
            if len(pings) == len(self.handles):
                self._ray.wait(pings, num_returns=1, timeout=left)
            number = self.next_one()
            if number is not None:
                return number
            time.sleep(min(PAUSE_SECONDS, left))  # one that is dead for good answers at once
        return None


class RayShards:
    """A `Transport` to shards in actors.

    replicas : actors of each shard. n_jobs : threads of each. patience : seconds to wait for a shard to come back, or
    for a sign of life of one that does not answer. A question may take longer: a busy actor gives signs of life.
    options : further options of the actors, as `ray.remote` takes them.
    """

    def __init__(self, replicas: int, n_jobs: int, patience: float, options: Mapping[str, Any]) -> None:
        self._ray = import_extra("ray", "slosh.ray", "ray")
        self._n_replicas, self._n_jobs, self.patience = replicas, n_jobs, patience
        groups = {PINGS: 1, **options.get("concurrency_groups", {})}
        chosen = {"max_restarts": -1, "max_concurrency": 4, "scheduling_strategy": "SPREAD", **options}
        self._actor = self._ray.remote(**{**chosen, "concurrency_groups": groups})(ShardActor)
        self._session: tuple[str, str] | None = None
        exceptions = self._ray.exceptions
        self._dead = exceptions.RayActorError, exceptions.OutOfMemoryError
        self._no_answer = *self._dead, exceptions.ObjectLostError

    def open(self, place: str, name: str, folder: str) -> Replicas:
        if self._session is None:
            if not self._ray.is_initialized():  # not before it is known that there are shards
                self._ray.init()
            self._session = self._session_now()
        self._check_session()
        made = [self._actor.remote(place, name, folder, self._n_jobs) for _ in range(self._n_replicas)]
        for handle in made[1:]:  # the first is asked by whoever opens it
            handle.ask.remote(None, "about", {"removed": 0}, {})
        return Replicas(self._ray, name, made)

    def _session_now(self) -> tuple[str, str]:
        """Return what tells this connection to Ray from an earlier one: a new cluster counts its jobs from 1 again."""
        context = self._ray.get_runtime_context()
        return context.get_job_id(), context.get_node_id()

    def _check_session(self) -> None:
        if not self._ray.is_initialized():
            raise IndexClosed("Ray was shut down, and the actors with it", "serve the folder again")
        if self._session not in (None, self._session_now()):
            raise IndexClosed("Ray was started anew, and the actors ended with the old one", "serve the folder again")

    def close(self, clients: Iterable[Replicas]) -> None:
        for handle in (each for client in clients for each in client.handles):
            with suppress(Exception):  # Ray was shut down, perhaps started again, and the actors are gone with it
                if self._ray.is_initialized():
                    self._ray.kill(handle)

    # Questions

    def ask(self, calls: Sequence[Call], wait: bool) -> list[Any]:
        self._check_session()
        shared: dict[int, Any] = {}
        for call in calls:
            if id(call.shared) not in shared:
                large = _n_bytes(call.shared) > SHARED_BYTES and len(calls) > 1
                shared[id(call.shared)] = self._ray.put(call.shared) if large else call.shared
        sent = [self.send(call, shared[id(call.shared)], call.client.next_one()) for call in calls]
        answers: list[Any] | None = None
        if None not in sent:
            with suppress(self._ray.exceptions.GetTimeoutError, *self._no_answer):
                answers = self._ray.get([each.ref for each in sent if each is not None], timeout=LOOK_SECONDS)
        if answers is None:
            for call, each in zip(calls, sent, strict=True):  # at once, so that the waits for several are one
                self._look(call, each)
            answers = [
                self._answer(call, shared[id(call.shared)], each, wait) for call, each in zip(calls, sent, strict=True)
            ]
        for answer, call in zip(answers, calls, strict=True):
            if isinstance(answer, Failed):
                raise _named(answer.error, call.client.name)
        return answers

    def send(self, call: Call, shared: Any, number: int | None) -> Sent | None:
        """Ask one of the replicas, if there is one."""
        if number is None:
            return None
        return Sent(number, call.client.handles[number].ask.remote(call.mark, call.question, shared, call.own))

    def _look(self, call: Call, sent: Sent | None) -> None:
        """Ask for a sign of life of an actor that has not answered yet."""
        if sent is not None and not self._ray.wait([sent.ref], timeout=0)[0]:
            sent.ping, sent.ping_since = call.client.ping(sent.number), time.monotonic()

    def _get(self, call: Call, sent: Sent) -> Any:
        """Wait for an answer as long as its actor gives signs of life, or is opened in time; Silent otherwise."""
        while not self._ray.wait([sent.ref], timeout=LOOK_SECONDS)[0]:
            now = time.monotonic()
            if call.mark is None and now - sent.since > self.patience:  # it may never be placed
                room = "is there room for its actor in the cluster?"
                raise Silent(f"it was not opened within {self.patience:g} s: {room}")
            if sent.ping is None or self._ray.wait([sent.ping], timeout=0)[0]:
                if sent.ping is not None:
                    self._ray.get(sent.ping)
                self._look(call, sent)
            elif now - sent.ping_since > self.patience:
                raise Silent(f"it has given no sign of life for {self.patience:g} s")
        return self._ray.get(sent.ref)

    def _answer(self, call: Call, shared: Any, sent: Sent | None, wait: bool) -> Any:
        """Return the answer to a call, by whichever replica gives one, or Lost."""
        why, client, silent = "it is being started again", call.client, False
        for _ in range(MAX_TRIES):
            if sent is not None:
                try:
                    return self._get(call, sent)
                except Silent as error:
                    why, silent = str(error), True
                    client.note_away(sent.number)
                except self._dead as error:
                    why = _told(error)
                    client.note_away(sent.number, sent.since)
                except self._ray.exceptions.ObjectLostError as error:  # of the answer, or of what was asked
                    why, shared = _told(error), self._ray.put(call.shared)
            number = client.next_one()
            if number is None and wait and not silent:
                number = client.wait_for_one(self.patience)
                if number is None:
                    return Lost(f"it did not come back within {self.patience:g} s; {why}")
            if number is None:
                return Lost(why)
            sent = self.send(call, shared, number)
        return Lost(f"it did not answer {MAX_TRIES} times; {why}")


def _n_bytes(given: Mapping[str, Any]) -> int:
    """Return about how much is sent, from the arrays that are given."""
    parts = [part for each in given.values() for part in (each if isinstance(each, tuple) else (each,))]
    return sum(int(getattr(part, "nbytes", 0)) for part in parts)


def _told(error: BaseException) -> str:
    """Return what Ray says of an error, its first line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"[:200]


def _named(error: SloshError, shard: str) -> SloshError:
    """Name the shard that an error is of, where the error does not."""
    if isinstance(error, StorageError) or shard in error.problem:
        return error
    error.problem = f"the shard {shard}: {error.problem}"
    return error
