"""Collections in shards that tests make: folders of ordinary indexes, and an index that is written by adding shards."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import slosh
from builders import make_index
from slosh import Sets
from slosh.data.sets import as_sets
from slosh.engines.sharded.engine import ShardedEngine
from slosh.engines.sharded.local import LocalShards
from slosh.index.sharded_index import ShardedIndex


def new_collection(folder: Path, dim: int = 2, **options: Any) -> Path:
    """Make a folder of shards, with one that is empty and whose specification all others get."""
    (folder / "shards").mkdir(parents=True)
    (folder / "shards.json").write_text('{"format": "slosh-shards", "version": 1}')
    make_index(folder / "shards" / "0000.slosh", dim, **options).close()
    return folder


def add_shard(folder: Path, name: str, sets: Any, ids: Any, metadata: Any = None, weights: Any = None) -> None:
    """Write a shard elsewhere, and put it in place when it is complete."""
    draft = folder / f"{name}.draft"
    shutil.copytree(folder / "shards" / "0000.slosh", draft)
    with slosh.open(draft, n_jobs=1) as shard:
        shard.add(sets, ids, metadata, weights=weights)
    draft.rename(folder / "shards" / f"{name}.slosh")


def serve_here(folder: Path, **options: Any) -> ShardedIndex:
    """Return an index over the shards of a folder, which this process opens."""
    threads = options.pop("threads", 1)
    return ShardedIndex(ShardedEngine(folder, LocalShards(1, threads), n_jobs=1, **options))


class Collection:
    """What tests of searches ask of an index, over shards: what is added comes as two new shards, a half in each, and
    what is updated is removed and added again. Everything else is asked of the index that is served.
    """

    def __init__(self, folder: Path, serve: Callable[[Path], ShardedIndex], **options: Any) -> None:
        dim = options.pop("dim", 2)
        self.folder, self._n_shards, self._n_added = new_collection(folder, dim, **options), 0, 0
        self.served = serve(folder)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.served, name)

    def __enter__(self) -> Collection:
        return self

    def __exit__(self, *_: object) -> None:
        self.served.close()

    def __len__(self) -> int:
        return len(self.served)

    def __contains__(self, id: object) -> bool:
        return id in self.served

    def add(
        self,
        sets: Any,
        ids: Iterable[Any] | None = None,
        metadata: Any = None,
        weights: Any = None,
        update: bool = False,
    ) -> list[str]:
        origin = self.served.origin
        given = as_sets(sets, origin=origin) if weights is None else Sets.from_list(sets, weights, origin=origin)
        names = [str(self._n_added + i) for i in range(len(given))] if ids is None else [str(each) for each in ids]
        about = [metadata or {}] * len(given) if metadata is None or isinstance(metadata, dict) else list(metadata)
        if update and (there := [name for name in names if name in self.served]):
            if metadata is None:
                about = [self.served.get(name).metadata if name in there else {} for name in names]
            self.served.remove(there)
        half = -(-len(given) // 2)
        for part in (slice(0, half), slice(half, None))[: min(2, len(given))]:
            self._n_shards += 1
            add_shard(self.folder, f"{self._n_shards:04}", given[part], names[part], about[part])
        self._n_added += len(given)
        self.served.refresh()
        return names

    def update(self, ids: Any, sets: Any = None, metadata: Any = None) -> None:
        single = isinstance(ids, str)
        names = [ids] if single else list(ids)
        kept = self.served.get(names)
        new = kept.sets if sets is None else [sets] if single and not isinstance(sets, Sets) else sets
        about = kept.metadata if metadata is None else [metadata] if single else metadata
        self.served.remove(names)
        self.add(new, names, about)

    def compact(self) -> None:
        """Write all that is there as new shards, take the old ones away, and find both at once."""
        old = [name for name in self.served.shards if name != "0000.slosh"]
        kept = self.served.get(self.served.ids)
        for name in old:
            shutil.move(self.folder / "shards" / name, self.folder / f"{name}.old")
        if kept.ids:
            self._n_shards += 1
            add_shard(self.folder, f"{self._n_shards:04}", kept.sets, kept.ids, kept.metadata)
        self.served.refresh()
