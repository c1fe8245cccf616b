"""The command that serves indexes over HTTP. The server itself is `slosh.server`."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from ..errors import InputError, import_extra
from .messages import UsageError
from .options import checked_location, counted
from .output import say

PLACES = "Folders of indexes, a folder that holds them, or postgresql://user@host/database, with #name for one index."


def _checked_places(values: list[str]) -> list[str]:
    return [checked_location(value) for value in values]


def serve(
    place: Annotated[list[str], Argument(metavar="INDEX", help=PLACES, callback=_checked_places)],
    *,
    host: Annotated[str, Option(metavar="HOST", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(metavar="N", min=0, max=65535, help="The port; 0 takes one that is free.")] = 8080,
    workers: Annotated[int, counted(help="Processes that read; with more than one, another one writes.")] = 1,
    threads: Annotated[int | None, counted(help="Threads of each process that work on requests.")] = None,
    jobs: Annotated[int | None, counted(help="Threads of one search; all cores by default.")] = None,
    keys: Annotated[
        str | None, Option(metavar="FILE", help='API keys, one a line: "KEY read" or "KEY write INDEX,INDEX".')
    ] = None,
    insecure: Annotated[
        bool, Option("--insecure", help="Listen on other addresses than this machine's own without keys.")
    ] = False,
    read_only: Annotated[bool, Option("--read-only", help="Refuse all changes.")] = False,
    allow_host: Annotated[
        list[str] | None, Option(metavar="NAME", help="Another name that the server is reached by; may be repeated.")
    ] = None,
    deadline: Annotated[float, Option(metavar="SECONDS", min=0.1, help="How long a request may take.")] = 60.0,
    body_seconds: Annotated[
        float, Option(metavar="SECONDS", min=0.1, help="How long the body of a request may take to come.")
    ] = 30.0,
    answer_seconds: Annotated[
        float, Option(metavar="SECONDS", min=0.1, help="How long a client may take nothing of an answer.")
    ] = 30.0,
    max_body: Annotated[int, counted(help="Megabytes of one request, at most.")] = 256,
    max_requests: Annotated[int, counted(help="Requests at once, at most; more are told to try again.")] = 256,
    max_connections: Annotated[int, counted(help="Connections of each process, at most.")] = 512,
    header_seconds: Annotated[
        float, Option(metavar="SECONDS", min=0.1, help="How long the headers of a request may take to come.")
    ] = 10.0,
    log: Annotated[bool, Option("--log/--no-log", help="Write a line of JSON for each request to stderr.")] = True,
) -> None:
    """Serve indexes over HTTP: a page to search by looking, JSON for programs, and slosh.open("http://...") for Python.

    The server listens on this machine only, unless told otherwise. It stops on Ctrl-C, and finishes what it has begun.
    See docs/server.md for the routes, keys and limits.

        slosh serve shapes.slosh
        slosh serve indexes/ --port 9000 --workers 4
        slosh serve shapes.slosh --host 0.0.0.0 --keys keys.txt
    """
    for module in ("fastapi", "uvicorn", "msgspec"):
        import_extra(module, "slosh serve", "server")
    from ..server.process import configure_logging
    from ..server.process import serve as run
    from ..server.settings import Limits, Settings

    limits = Limits(
        body_bytes=max_body << 20, at_once=max_requests, deadline_seconds=deadline, body_seconds=body_seconds,
        connections=max_connections, header_seconds=header_seconds, answer_seconds=answer_seconds,
    )  # fmt: skip
    given = {"n_jobs": jobs or -1, **({} if threads is None else {"threads": threads})}
    hosts = tuple(allow_host or ())
    settings = Settings(
        tuple(place), host, port, workers, keys_file=keys, insecure=insecure, read_only=read_only,
        allowed_hosts=hosts, access_log=log, limits=limits, **given,
    )  # fmt: skip
    configure_logging(settings)
    try:
        run(settings, _say_started)
    except InputError as error:
        if error.argument == "host":
            raise UsageError(f"--host {host}: give --keys FILE, or --insecure to let everybody in") from None
        raise


def _say_started(address: str, names: list[str]) -> None:
    shown = ", ".join(names[:5]) + ", ..." * (len(names) > 5)
    say(f"serving {len(names)} index{'es' * (len(names) != 1)} at {address}" + (f": {shown}" if names else ""))


COMMANDS = (serve,)
