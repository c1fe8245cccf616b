"""Routes about jobs: begin long work, ask how far it is, cancel it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import numpy as np
from fastapi import APIRouter, Depends
from fastapi.concurrency import run_in_threadpool
from numpy.typing import NDArray
from starlette.responses import Response

from ..data.checks import checked_count
from ..engines import portable
from ..engines.spec import IndexSpec
from ..errors import AccessDenied, InputError, UnknownId, bad_value
from ..index import SetIndex
from ..wire import BINARY, JSON, Message, pack, unpack, unpack_sets
from .answer_types import JobAnswer, JobsAnswer
from .answers import json_response, without_infinity
from .bodies import Sent, Shape, check_sets, decode_json
from .context import Context
from .dependencies import Accept, Asking, Name, Reader, ReaderOf, body, query, short
from .jobs import Job
from .openapi import described
from .request_types import JobBody, Wait

owner = APIRouter()
"""Routes of the process that writes, which does the work."""
Waiting = Annotated[Wait, Depends(query(Wait))]
Result = tuple[dict[str, Any] | None, dict[str, NDArray[Any]]]
"""What a job gives: values for JSON, and arrays."""


def _tune(index: SetIndex, recall: float = 0.99, k: int = 10, queries: Any = None) -> Result:
    return index.tune(recall, k, queries)._asdict(), {}


def _verify(index: SetIndex, sample: int | None = None) -> Result:
    found = index.verify(sample)
    return {"ok": found.ok, "problems": found.problems, "checked": found.checked}, {}


def _compact(index: SetIndex) -> Result:
    index.compact()
    return None, {}


def _enable(
    index: SetIndex, feature: str = "parts", parts: Any = True, sample: Any = None, random_state: int = 0
) -> Result:
    index.enable(feature, parts, sample=sample, random_state=random_state)
    return None, {}


def _retrain(
    index: SetIndex, sample: Any = None, embedding: Any = None, label: str | None = None, random_state: int = 0
) -> Result:
    index.retrain(sample, embedding=embedding, label=label, random_state=random_state)
    return None, {}


def _duplicates(
    index: SetIndex, radius: float = 0.0, id: Any = None, where: Any = None, certify: bool = False
) -> Result:
    found = index.duplicates(radius, id=id, where=where, certify=certify)
    names = sorted({name for pair in found for name in pair[:2]})
    number = {name: i for i, name in enumerate(names)}
    ends = np.array([[number[a], number[b]] for a, b, _ in found], np.int64).reshape(-1, 2)
    far = np.array([pair.distance for pair in found], np.float64)
    return {"distance_kind": found.distance_kind, "ids": names}, {
        "first": ends[:, 0],
        "second": ends[:, 1],
        "distances": far,
    }


def _neighbor_graph(
    index: SetIndex, k: int = 15, mode: str = "distance", recall: float | None = None, certify: bool = False
) -> Result:
    graph, ids = index.neighbor_graph(k, mode=mode, recall=recall, certify=certify)
    return {"ids": ids}, {name: getattr(graph, name) for name in ("data", "indices", "indptr")}


def _kneighbors(index: SetIndex, k: int = 10, where: Any = None, recall: float | None = None) -> Result:
    distances, positions = index.kneighbors(k=k, where=where, recall=recall)
    return {}, {"distances": distances, "positions": positions}


def _finish_copy(index: SetIndex, recall: Any = None, next_id: Any = 0, calibrated: Any = ()) -> Result:
    if not (recall is None or (isinstance(recall, float | int) and 0 < recall <= 1)):
        raise bad_value("recall", recall, "give a number above 0, and at most 1, or null")
    if not isinstance(next_id, int) or not 0 <= next_id < 1 << 62:
        raise bad_value("next_id", next_id, "give a whole number")
    try:
        pairs = [(checked_count("k", k), float(share)) for k, share in calibrated]
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise bad_value("calibrated", calibrated, "give a list of pairs, k and recall") from None
    index.finish_copy(recall, next_id, pairs)
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
"""What may be asked for: the access that it needs, and the function, whose parameters are the arguments."""
BINARY_ONLY = ("queries", "sample", "embedding", "parts")
"""Arguments that only the Python client sends: sets and embeddings."""


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
    ),
)
async def begin(asking: ReaderOf, given: Waiting, sent: Annotated[Sent, Depends(body(JSON, BINARY))]) -> Response:
    job = await run_in_threadpool(_begun, asking, sent)
    await _wait_for(job, given.wait)
    return await run_in_threadpool(_response, job, sent.accept, 202)


def _begun(asking: Asking, sent: Sent) -> Job:
    """Return the job that a request asks for, which has begun."""
    index, shape, limits = asking.open(), asking.shape(), asking.context.limits
    if sent.kind == BINARY:
        message = unpack(sent.body)
        kind, arguments = message.arguments.get("kind"), message.arguments.get("arguments")
        if not isinstance(kind, str) or kind not in WORK or not isinstance(arguments, dict):
            raise InputError("a job has a kind, and arguments", f"the kinds are {', '.join(WORK)}", argument="kind")
        arguments = {**arguments, **_objects(message, arguments, shape, asking.context)}
    else:
        given = decode_json(sent.body, JobBody, limits)
        kind, arguments = given.kind, given.arguments
        for name in BINARY_ONLY:
            if name in arguments and not isinstance(arguments[name], bool | None):
                raise InputError(f"the argument {name!r} is for the Python client", "leave it out", argument=name)
    access, work = WORK[kind]
    if not asking.grant.allows(access, asking.name):
        raise AccessDenied(f"the key does not allow {kind}", "use a key that may write", location=asking.name)
    known = set(_parameters(work))
    if unknown := sorted(set(arguments) - known):
        raise InputError(f"{kind} has no argument {unknown[0]!r:.60}", argument=str(unknown[0])[:60])
    asking.exchange.begin()
    return asking.context.jobs.begin(Job(asking.name, kind, access, lambda: work(index, **arguments)))


async def _wait_for(job: Job, seconds: float) -> None:
    """Wait for the end of a job, for so long at most."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        with contextlib.suppress(RuntimeError):  # the loop may have ended
            loop.call_soon_threadsafe(ended.set)

    job.listeners.append(tell)
    if seconds > 0 and not job.finished.is_set():
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(ended.wait(), seconds)
    job.listeners.remove(tell)


def _parameters(work: Callable[..., Any]) -> list[str]:
    code = work.__code__
    return list(code.co_varnames[1 : code.co_argcount])


def _objects(message: Message, given: dict[str, Any], shape: Shape, context: Context) -> dict[str, Any]:
    """Return the sets and embeddings of a message, checked as those of a file."""
    found: dict[str, Any] = {}
    for name in ("queries", "sample"):
        sets = unpack_sets(name, message.arrays, shape.origin)
        if sets is not None:
            found[name] = shape.sets(sets, name=name)
            check_sets(found[name], context.limits, name)
    for name in ("embedding", "parts"):
        packed = given.get(name)
        if isinstance(packed, dict):
            found[name] = _loaded(name, packed, message.arrays)
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


@owner.get("/v1/jobs", **described("The jobs that the key may see.", JobsAnswer))
@short
def all_jobs(asking: Reader) -> Response:
    listed = [_answer(job) for job in asking.context.jobs.all() if asking.grant.allows("read", job.index)]
    for each in listed:
        each.result = None
    return json_response(JobsAnswer(listed))


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
    await _wait_for(job, given.wait)
    return await run_in_threadpool(_response, job, accept)


@owner.delete("/v1/jobs/{id:quoted}", **described("Cancel a job.", JobAnswer, query=Wait, answers=(JSON, BINARY)))
async def cancel(asking: Reader, job: Known, given: Waiting, accept: Accept) -> Response:
    if not asking.grant.allows(job.access, job.index):
        raise AccessDenied(f"the key may not cancel a job that is {job.kind}", "use a key that may write")
    asking.exchange.begin()
    job.cancelled.set()
    await _wait_for(job, given.wait)
    return await run_in_threadpool(_response, job, accept)


def _answer(job: Job) -> JobAnswer:
    values, arrays = job.result if job.state == "done" else (None, {})
    result = values if not arrays else _listed(job.kind, values or {}, arrays)
    return JobAnswer(
        job.id,
        job.index,
        job.kind,
        job.state,
        job.stage,
        job.done,
        job.total,
        job.seconds,
        result,
        job.error,
    )


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
