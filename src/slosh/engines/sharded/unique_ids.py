"""The check that no two shards have an id in common.

Each shard sends hashes of its ids, of 64 bits, part by part, so that memory stays bounded; ids are fetched only where
two hashes are equal. That takes a look at every id, so what was found is noted in the folder (`checked.json`), and only
shards that are new are looked at, the others only for ids of the new ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ...data.atomic import replacing
from ...errors import DuplicateId, FormatError, ServerLost, SloshError
from .folder import ShardFolder
from .view import Call, Lost, Member, Transport

CHECKED = "checked.json"
PART_IDS = 1 << 24
"""Hashes that are held at once."""
NEW_IDS = 1 << 20
"""Ids of new shards that the others are asked for at once."""


def check_unique(folder: ShardFolder, transport: Transport, members: Sequence[Member]) -> None:
    """Refuse (DuplicateId) shards that have an id in common."""
    known = _read(folder)
    stamps = {member.name: _stamp(folder, member) for member in members}
    old = [member for member in members if known.get(member.name) == stamps[member.name]]
    new = [member for member in members if known.get(member.name) != stamps[member.name]]
    if not new:
        return
    if old and sum(each.sets for each in new) <= NEW_IDS:
        for i, member in enumerate(new):
            _check_against(folder, transport, member, [*old, *new[:i]])
    else:
        _check_all(folder, transport, members)
    with suppress(OSError, SloshError), replacing(folder.path / CHECKED) as stream:  # it is looked at again otherwise
        stream.write(json.dumps({"format": "slosh-checked", "version": 1, "shards": stamps}).encode())


def _stamp(folder: ShardFolder, member: Member) -> list[int]:
    """Return numbers that change when a shard is replaced or changed; what is removed makes no two ids equal."""
    place = Path(folder.place_of(member.name)) / "index.db"
    with suppress(OSError):
        found = os.stat(place)
        return [member.mark.version, found.st_size, found.st_mtime_ns]
    return []


def _read(folder: ShardFolder) -> dict[str, Any]:
    try:
        content = folder.read_json(CHECKED)
    except (FormatError, OSError):
        return {}
    shards = content.get("shards") if isinstance(content, dict) and content.get("version") == 1 else None
    return shards if isinstance(shards, dict) else {}


def _ask(transport: Transport, members: Sequence[Member], question: str, shared: Any, own: Any = None) -> list[Any]:
    given = [{}] * len(members) if own is None else own
    calls = [Call(each.client, each.mark, question, shared, mine) for each, mine in zip(members, given, strict=True)]
    answers = transport.ask(calls, True)
    for member, answer in zip(members, answers, strict=True):
        if isinstance(answer, Lost):
            raise ServerLost(f"the shard {member.name} cannot be reached: {answer.why}", "try again")
    return answers


def _check_against(folder: ShardFolder, transport: Transport, member: Member, others: Sequence[Member]) -> None:
    """Look for the ids of one shard in others."""
    (keys,) = _ask(transport, [member], "select", {"where": None})
    (ids,) = _ask(transport, [member], "ids", {"keys": keys})
    for other, found in zip(others, _ask(transport, others, "keys", {"ids": ids}), strict=True):
        there = np.flatnonzero(found >= 0)
        if len(there):
            raise _duplicate(folder, ids[int(there[0])], other.name, member.name)


def _check_all(folder: ShardFolder, transport: Transport, members: Sequence[Member]) -> None:
    n_parts = 1 + sum(each.sets for each in members) // PART_IDS
    for part in range(n_parts):
        hashes = _ask(transport, members, "id_hashes", {"part": part, "n_parts": n_parts})
        joined = np.sort(np.concatenate(hashes))
        twice = np.unique(joined[1:][joined[1:] == joined[:-1]])
        if not len(twice):
            continue
        seen: dict[str, str] = {}
        for member, ids in zip(members, _ask(transport, members, "ids_of_hashes", {"hashes": twice}), strict=True):
            for name in ids:
                if name in seen:
                    raise _duplicate(folder, name, seen[name], member.name)
                seen[name] = member.name


def _duplicate(folder: ShardFolder, id_: str, one: str, other: str) -> DuplicateId:
    problem = f"the id {id_!r} is in two shards of {folder.path}, {one} and {other}"
    remedy = f"remove it from one of them, for instance slosh.open({folder.place_of(other)!r}).remove({id_!r})"
    return DuplicateId(problem, remedy, id=id_, argument="folder")
