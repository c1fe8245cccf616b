"""Which index it is that a job works on, so that no other one in its place is taken for it.

`version` counts the changes of one index. An index that was deleted and made again at the same place may have the same
number, so that a job also notes what only this one has.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import NamedTuple

from ..engines.registry import token_at
from ..index import SetIndex
from ..index.sharded_index import ShardedIndex


class Identity(NamedTuple):
    """What tells one state of an index from any other.

    token : of an index in a folder, what was drawn at random when it was created; of a collection in shards, a digest
        of them; None elsewhere. version : counts the changes; 0 for shards, whose digest says it all.
    """

    location: str | None
    token: str | None
    version: int


def identity_of(index: SetIndex) -> Identity:
    """Return which index it is, in which state. In a folder, it is the one that is there now."""
    if isinstance(index, ShardedIndex):
        about = [sorted(index.shards.items()), index.info()["removed"], len(index)]
        return Identity(index.location, sha256(json.dumps(about).encode()).hexdigest()[:32], 0)
    location = index.location
    token = None if location is None or "://" in location else token_at(location)
    return Identity(location, token, index.version)
