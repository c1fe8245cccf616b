"""A collection that no one machine holds, served: `serve` opens the shards of a folder in actors of Ray."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..data.checks import checked_count, checked_flag
from ..engines.sharded.engine import ShardedEngine
from ..errors import bad_value
from ..index.sharded_index import ShardedIndex
from .actors import RayShards

MISSING = ("wait", "partial", "error")


def serve(
    folder: str | os.PathLike[str],
    *,
    replicas: int = 1,
    missing: str = "wait",
    timeout: float = 60.0,
    n_jobs: int = 1,
    check_ids: bool = True,
    actor_options: Mapping[str, Any] | None = None,
) -> ShardedIndex:
    """Open each shard of a folder in an actor of Ray, and return an index that searches all of them as one.

    The folder is on storage that all machines see, under the same path. Its shards are ordinary indexes in folders, in
    `folder/shards/` or in the folder itself, whose names end in `.slosh`. All have one specification, and no id is in
    two of them. If Ray is not started, it is started on this machine; `ray.init(address="auto")` before it joins a
    cluster. Closing the index ends the actors.

    Parameters
    ----------
    replicas : actors of each shard, which answer in turn; while one is away the others answer.
    missing : what a search does while no replica of a shard can be reached: "wait" for it to come back, go on without
        it ("partial": `stats.covered` says which share of the collection was searched, and nothing is promised), or
        raise `ServerLost` at once ("error").
    timeout : seconds to wait for a shard that is opened, comes back, or gives no sign of life, before `ServerLost` is
        raised. A search may take longer, as long as the actors that work on it answer pings.
    n_jobs : threads of each actor.
    check_ids : refuse shards that have an id in common (`DuplicateId`). What was checked is noted in the folder, so
        that only new shards are looked at.
    actor_options : further options of the actors, as `ray.remote` takes them, such as {"num_cpus": 4}.
    """
    if missing not in MISSING:
        raise bad_value("missing", missing, f"give {', '.join(map(repr, MISSING))}")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise bad_value("timeout", timeout, "give seconds, more than 0")
    checked_flag("check_ids", check_ids)
    shards = RayShards(checked_count("replicas", replicas), n_jobs, float(timeout), actor_options or {})
    engine = ShardedEngine(
        folder, shards, partial=missing == "partial", wait=missing == "wait", check_ids=check_ids, n_jobs=-1
    )
    return ShardedIndex(engine)
