"""ShardedIndex: a collection in shards that is searched as one index, and follows its folder when it is told to."""

from __future__ import annotations

from typing import Any

from ..engines.sharded.engine import ShardedEngine
from .set_index import SetIndex


class ShardedIndex(SetIndex):
    """An index over the shards of a folder: everything that `SetIndex` can be asked, and `remove`.

    Sets are added as further shards, which `refresh` finds; `add`, `update` and what trains an index are refused
    (`ReadOnlyIndex`). `remove` marks sets as removed, in the folder, so that whoever serves it next knows.
    """

    _engine: ShardedEngine

    def __init__(self, engine: ShardedEngine) -> None:
        super().__init__(engine)

    def refresh(self) -> bool:
        """Take in the shards that were added to the folder or taken out of it, and what others removed.

        Return whether there was anything. Searches that are under way see what was there when they began. If a new
        shard is damaged, unlike the others, or has an id that exists, that is an error, and nothing changes.
        """
        return self._engine.refresh()

    @property
    def shards(self) -> dict[str, int]:
        """The number of sets of each shard, by its name."""
        return self._engine.shard_sizes()

    def __reduce__(self) -> Any:
        raise TypeError("an index over shards cannot be pickled: serve the folder in the other process")
