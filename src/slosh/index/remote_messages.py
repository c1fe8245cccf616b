"""Arguments of a call into a message for a server, and long work on it: begun, waited for, cancelled.

What a user passed comes in and is refused if it cannot travel; plain values, arrays and answers go out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.interrupts import uninterrupted
from ..engines import portable
from ..engines.spec import IndexSpec, is_fitted
from ..errors import UnsupportedError, WorkCancelled, bad_value
from ..search import LadderSearch
from ..where import as_json, fields_of, parse
from ..wire import BINARY, Answer, Connection, Message, error_of, unpack

WAIT_SECONDS = 10
"""How long the server waits for the end of a job before it answers how far it is."""
Arrays = dict[str, NDArray[Any]]
Progress = Callable[[int, int], object]


def run_job(
    connection: Connection, path: str, kind: str, body: bytes, progress: Progress | None, changes: bool
) -> Message:
    """Begin a job, wait for its end and return its result; what interrupts it cancels the job."""
    wait, place = 1 if progress else WAIT_SECONDS, ""
    try:
        with uninterrupted():  # or nobody would know which job to cancel; so this does not wait for its end
            job = read_message(connection.request("POST", f"{path}/jobs?wait=0", body, BINARY, BINARY, changes=changes))
            place = f"/v1/jobs/{job.arguments['id']}"
        while (state := job.arguments["state"]) in ("waiting", "running"):
            job = read_message(connection.request("GET", f"{place}?wait={wait}", accept=BINARY))
            if job.arguments["state"] == "running":
                _tell(progress, job)
        _tell(progress, job)
    except BaseException:
        if place:
            with uninterrupted():
                connection.request("DELETE", f"{place}?wait={WAIT_SECONDS}")
        raise
    if state == "failed":
        raise error_of(job.arguments["error"], connection.location)
    if state == "cancelled":
        raise WorkCancelled(f"{connection.location}: the job {kind} was cancelled", "begin it again")
    return Message(job.arguments["result"] or {}, job.arrays)


def _tell(progress: Progress | None, job: Message) -> None:
    if progress is not None and job.arguments["total"]:
        progress(job.arguments["done"], job.arguments["total"])


def packed_embedding(name: str, thing: Any, spec: IndexSpec, arrays: Arrays) -> Any:
    """Return an embedding, or what finds parts, for a message: one that is fitted within a specification, which the
    server checks as it checks those of files; another as the tree of its parameters.
    """
    checked = spec.checked_embedding(thing) if name == "embedding" else thing
    if not isinstance(checked, portable.EMBEDDINGS):
        portable.dump(checked, [], name)  # says what cannot be stored
    if is_fitted(checked):
        parts: dict[str, Any] = {"embedding": spec.embedding, "parts": None, name: checked}
        made = replace(spec, search=LadderSearch(), **parts)
        arrays[f"{name}.specification"] = np.frombuffer(made.pack(), np.uint8)
        return {"specification": True}
    listed: list[NDArray[Any]] = []
    tree = portable.dump(checked, listed, name)
    arrays.update({f"{name}.{i}": array for i, array in enumerate(listed)})
    return {"tree": tree}


def read_message(answer: Answer) -> Message:
    """Return the message that an answer is."""
    return unpack(answer.body) if answer.kind == BINARY else Message(answer.json(), {})


def ids_of(found: Message) -> list[str]:
    """Return the ids that a message lists."""
    return list(found.arguments["ids"])


def plain_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as plain values for JSON; filters become text, and functions are refused."""
    return {name: _plain_value(name, value) for name, value in given.items()}


def _plain_value(name: str, value: Any) -> Any:
    if name == "where":
        return None if value is None else str(parse(value))
    if name == "rerank" and callable(value):
        raise UnsupportedError(
            "rerank is a function, which a server does not run",
            "give the name of a distance, or open the index in this process",
            argument="rerank",
            feature_name="rerank",
        )
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain_value(f"{name}[{i}]", each) for i, each in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str | dict):
        return value
    raise bad_value(name, value, "give a plain value, which can be sent to a server")


def json_texts(metadata: Any, names: list[str] | None) -> list[str | None]:
    """Return checked metadata of each set as JSON."""

    def text(i: int, one: Any) -> str | None:
        if one is None:
            return None
        fields_of(one, f"metadata of set {i}" + ("" if names is None else f" ({names[i]!r})"))
        return as_json(one)

    return [text(i, one) for i, one in enumerate(metadata)]
