"""Routes about jobs: begin long work, ask how far it is, cancel it."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import numpy as np
from fastapi import APIRouter, Depends
from fastapi.concurrency import run_in_threadpool
from numpy.typing import NDArray
from starlette.responses import Response

from ..engines import portable
from ..engines.spec import IndexSpec
from ..errors import AccessDenied, InputError, UnknownId
from ..index import SetIndex
from ..where import parse
from ..wire import BINARY, JSON, Message, pack, unpack_sets
from .answer_types import JOB_ANSWERS, JobAnswer, JobsAnswer, JobState
from .answers import json_response, without_infinity
from .bodies import Sent, Shape, check_sets, convert, decode_json, read_message
from .context import Context
from .dependencies import Accept, Asking, Name, Reader, ReaderOf, body, query, short
from .jobs import Job, Jobs
from .openapi import described
from .request_types import ARGUMENTS, JobBody, JobHead, TuneArguments, Wait
from .settings import Limits

owner = APIRouter()
"""Routes of the process that writes, which does the work."""
Waiting = Annotated[Wait, Depends(query(Wait))]
Result = tuple[dict[str, Any] | None, dict[str, NDArray[Any]]]
"""What a job gives: values for JSON, and arrays."""


def _tune(index: SetIndex, recall: float, k: int, queries: Any = None) -> Result:
    return index.tune(recall, k, queries)._asdict(), {}


def _verify(index: SetIndex, sample: int | None) -> Result:
    found = index.verify(sample)
    return {"ok": found.ok, "problems": found.problems, "checked": found.checked}, {}


def _compact(index: SetIndex) -> Result:
    index.compact()
    return None, {}


def _enable(index: SetIndex, feature: str, parts: Any, random_state: int, sample: Any = None) -> Result:
    index.enable(feature, parts, sample=sample, random_state=random_state)
    return None, {}


def _retrain(
    index: SetIndex, label: str | None, random_state: int, sample: Any = None, embedding: Any = None
) -> Result:
    index.retrain(sample, embedding=embedding, label=label, random_state=random_state)
    return None, {}


def _duplicates(index: SetIndex, radius: float, id: Any, where: Any, certify: bool, limit: int | None) -> Result:
    found = index.duplicates(radius, id=id, where=where, certify=certify, limit=limit)
    names = sorted({name for pair in found for name in pair[:2]})
    number = {name: i for i, name in enumerate(names)}
    ends = np.array([[number[a], number[b]] for a, b, _ in found], np.int64).reshape(-1, 2)
    far = np.array([pair.distance for pair in found], np.float64)
    return {"distance_kind": found.distance_kind, "ids": names}, {
        "first": ends[:, 0],
        "second": ends[:, 1],
        "distances": far,
    }


def _neighbor_graph(index: SetIndex, k: int, mode: str, recall: float | None, certify: bool) -> Result:
    graph, ids = index.neighbor_graph(k, mode=mode, recall=recall, certify=certify)
    return {"ids": ids}, {name: getattr(graph, name) for name in ("data", "indices", "indptr")}


def _kneighbors(index: SetIndex, k: int, where: Any, recall: float | None) -> Result:
    distances, positions = index.kneighbors(k=k, where=where, recall=recall)
    return {}, {"distances": distances, "positions": positions}


def _finish_copy(index: SetIndex, recall: float | None, next_id: int, calibrated: list[tuple[int, float]]) -> Result:
    index.finish_copy(recall, next_id, calibrated)
    return None, {}


WORK: dict[str, tuple[str, Callable[..., Result]]] = {
    "compact": ("write", _compact),
    "tune": ("write", _tune),
    "verify": ("read", _verify),
    "retrain": ("write", _retrain),
    "enable": ("write", _enable),
    "finish_copy": ("write", _finish_copy),
    "duplicates": ("read", _duplicates),
    "neighbor_graph": ("read", _neighbor_graph),
    "kneighbors": ("read", _kneighbors),
}
"""What may be asked for: the access that it needs, and the function. Its parameters are those of `ARGUMENTS`, and sets
and embeddings, which only the Python client sends.
"""
PAIR_BYTES, ID_BYTES = 16, 64
"""What a neighbour and an id take in a result, about."""


@owner.post(
    "/v1/indexes/{name:quoted}/jobs",
    **described(
        "Begin long work. What changes the index needs a key that may write.",
        JobAnswer,
        body=JobBody,
        query=Wait,
        bodies=(JSON, BINARY),
        answers=(JSON, BINARY),
        status=202,
        changes=True,
    ),
)
async def begin(asking: ReaderOf, given: Waiting, sent: Annotated[Sent, Depends(body(JSON, BINARY))]) -> Response:
    job = await run_in_threadpool(_begun, asking, sent)
    await _wait_for(job, given.wait, asking.context.jobs)
    return await run_in_threadpool(_response, job, sent.accept, 202)


def _begun(asking: Asking, sent: Sent) -> Job:
    """Return the job that a request asks for, which has begun."""
    index, shape, limits = asking.open(), asking.shape(), asking.context.limits
    if sent.kind == BINARY:
        message = read_message(sent.body, limits)
        kind, arguments = message.arguments.get("kind"), message.arguments.get("arguments")
        if not isinstance(kind, str) or kind not in WORK or not isinstance(arguments, dict):
            raise InputError("a job has a kind, and arguments", f"the kinds are {', '.join(WORK)}", argument="kind")
        _check_access(asking, kind)
        takes = set(inspect.signature(WORK[kind][1]).parameters)
        objects = _objects(message, arguments, takes, shape, asking.context)
        if unknown := sorted(set(objects) - takes):
            raise InputError(f"{kind} has no argument {unknown[0]!r}", argument=unknown[0])
        plain = {name: value for name, value in arguments.items() if name not in objects and name != "embedding"}
        given = convert(plain, ARGUMENTS[kind])
    else:
        head = decode_json(sent.body, JobHead, limits)
        kind, objects = head.kind, {}
        _check_access(asking, kind)
        given = decode_json(bytes(head.arguments), ARGUMENTS[kind], limits)
    access, work = WORK[kind]
    own = {**_checked(given, index, limits), **objects}
    asking.exchange.begin()
    return asking.context.jobs.begin(Job(asking.name, kind, access, lambda: _sized(work(index, **own))))


def _check_access(asking: Asking, kind: str) -> None:
    if not asking.grant.allows(WORK[kind][0], asking.name):
        raise AccessDenied(f"the key does not allow {kind}", "use a key that may write", location=asking.name)


def _checked(given: Any, index: SetIndex, limits: Limits) -> dict[str, Any]:
    """Return the arguments of a job; refuse what can be seen to fail, or to give more than is kept."""
    arguments: dict[str, Any] = msgspec.structs.asdict(given)
    if arguments.get("where") is not None:
        parse(arguments["where"])
    if "radius" in arguments:
        arguments["limit"] = min(arguments["limit"] or limits.pairs, limits.pairs)
    elif "k" in arguments:
        kept = max(1, limits.result_bytes // (PAIR_BYTES * max(1, len(index))))
        most = limits.k if isinstance(given, TuneArguments) else min(limits.k, kept)
        if arguments["k"] > most:
            remedy = f"give at most {most:,}" + " for so many sets" * (most < limits.k)
            raise InputError(f"k={arguments['k']:,}", remedy, argument="k")
    return arguments


def _sized(result: Result) -> tuple[Result, int]:
    """Return a result, and how many bytes it takes."""
    values, arrays = result
    ids = (values or {}).get("ids", ())
    return result, sum(array.nbytes for array in arrays.values()) + ID_BYTES * len(ids)


async def _wait_for(job: Job, seconds: float, jobs: Jobs) -> None:
    """Wait for the end of a job, for so long at most, unless the server stops."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        with contextlib.suppress(RuntimeError):  # the loop may have ended
            loop.call_soon_threadsafe(ended.set)

    job.listeners.append(tell)
    if seconds > 0 and not job.finished.is_set() and not jobs.waits_ended:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(ended.wait(), seconds)
    job.listeners.remove(tell)


def _objects(
    message: Message, given: dict[str, Any], takes: set[str], shape: Shape, context: Context
) -> dict[str, Any]:
    """Return the sets and embeddings of a message, checked as those of a file.

    An embedding that the job does not take is not read: it comes back as it is.
    """
    found: dict[str, Any] = {}
    for name in ("queries", "sample"):
        sets = unpack_sets(name, message.arrays, shape.origin)
        if sets is not None:
            found[name] = shape.sets(sets, name=name)
            check_sets(found[name], context.limits, name)
    for name in ("embedding", "parts"):
        packed = given.get(name)
        if isinstance(packed, dict):
            found[name] = _loaded(name, packed, message.arrays) if name in takes else packed
    return found


def _loaded(name: str, packed: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Any:
    if "specification" in packed:
        content = arrays.get(f"{name}.specification", np.empty(0, np.uint8)).tobytes()
        return getattr(IndexSpec.unpack(content, "the specification of the request"), name)
    own = {key.partition(".")[2]: value for key, value in arrays.items() if key.startswith(f"{name}.")}
    try:
        return portable.load(packed.get("tree"), [own[str(i)] for i in range(len(own))])
    except (ValueError, TypeError, KeyError, LookupError, AttributeError, RecursionError) as error:
        raise InputError(f"{name} cannot be read: {str(error)[:200]}", argument=name) from None


@owner.get("/v1/jobs", **described("The jobs that the key may see.", JobsAnswer, errors=(401, 504)))
@short
def all_jobs(asking: Reader) -> Response:
    found = [job for job in asking.context.jobs.all() if asking.grant.allows("read", job.index)]
    return json_response(JobsAnswer([_answer(job, with_result=False) for job in found]))


async def get_job(id: Name, asking: Reader) -> Job:
    """Return the job that a request is about, if the key may see it."""
    job = asking.context.jobs.get(id)
    if job is None or not asking.grant.allows("read", job.index):
        raise UnknownId(f"there is no job {id!r:.60}", "GET /v1/jobs lists them", id=id[:100])
    return job


Known = Annotated[Job, Depends(get_job)]


@owner.get(
    "/v1/jobs/{id:quoted}",
    **described("State, progress and result of a job.", JobAnswer, query=Wait, answers=(JSON, BINARY)),
)
async def one_job(asking: Reader, job: Known, given: Waiting, accept: Accept) -> Response:
    asking.exchange.begin()
    await _wait_for(job, given.wait, asking.context.jobs)
    return await run_in_threadpool(_response, job, accept)


@owner.delete("/v1/jobs/{id:quoted}", **described("Cancel a job.", JobAnswer, query=Wait, answers=(JSON, BINARY)))
async def cancel(asking: Reader, job: Known, given: Waiting, accept: Accept) -> Response:
    if not asking.grant.allows(job.access, job.index):
        raise AccessDenied(f"the key may not cancel a job that is {job.kind}", "use a key that may write")
    asking.exchange.begin()
    asking.context.jobs.cancel(job)
    await _wait_for(job, given.wait, asking.context.jobs)
    return await run_in_threadpool(_response, job, accept)


def _answer(job: Job, *, with_result: bool = True) -> Any:
    """Return what is told of a job, by the type of its kind."""
    values, arrays = job.result if job.state == "done" and with_result else (None, {})
    result = values if not arrays else _listed(job.kind, values or {}, arrays)
    about = {name: getattr(job, name) for name in JobState.__struct_fields__}
    return JOB_ANSWERS[job.kind](**about, result=result)


def _listed(kind: str, values: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """Return the arrays of a result for JSON."""
    if kind == "duplicates":
        ids = values["ids"]
        ends = zip(arrays["first"].tolist(), arrays["second"].tolist(), arrays["distances"].tolist(), strict=True)
        return {"distance_kind": values["distance_kind"], "pairs": [[ids[a], ids[b], far] for a, b, far in ends]}
    return {**values, **{name: without_infinity(array) for name, array in arrays.items()}}


def _response(job: Job, accept: str, status: int = 200) -> Response:
    if BINARY not in accept:
        return json_response(_answer(job), status)
    values, arrays = job.result if job.state == "done" else (None, {})
    names = ("id", "index", "kind", "state", "stage", "done", "total", "seconds", "error")
    about = {name: getattr(job, name) for name in names}
    return Response(pack({**about, "result": msgspec.to_builtins(values)}, arrays), status, media_type=BINARY)
