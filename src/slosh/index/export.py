"""An index as a Parquet file, for other programs and for other versions of slosh; `slosh.readers` reads it back."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm.auto import tqdm

from ..readers.tables import EXPORT_KEY

if TYPE_CHECKING:
    from .set_index import SetIndex


def export(index: SetIndex, path: str | os.PathLike[str]) -> int:
    """Columns id, points (lists of vectors), weights if there are any, metadata (JSON). All of the file, or none."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ImportError("export needs pyarrow: pip install 'slosh[tables]'") from error
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target.parent} is no folder: make it first")
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder: give the name of a file, e.g. {target / 'sets.parquet'}")
    weighted = bool(index.info()["weighted"])
    number = pa.float32() if index.origin is None else pa.float64()
    fields = [("id", pa.string()), ("points", pa.large_list(pa.list_(number, index.dim)))]
    fields += [("weights", pa.large_list(pa.float32()))] * weighted + [("metadata", pa.string())]
    about = {"format": 1, "dim": index.dim, "weighted": weighted}
    schema = pa.schema(fields, metadata={EXPORT_KEY: json.dumps(about).encode()})
    draft = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    done = 0
    bar = tqdm(total=len(index), unit="set", delay=2, disable=None, leave=False, desc="export")
    try:
        with bar, pq.ParquetWriter(draft, schema, compression="zstd") as writer:
            for batch in index.records():
                writer.write_table(pa.table(_columns(pa, index, batch, weighted), schema=schema))
                done += len(batch.ids)
                bar.update(len(batch.ids))
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)
    return done


def _columns(pa: Any, index: SetIndex, batch: Any, weighted: bool) -> dict[str, Any]:
    sets = batch.sets
    points = sets.points if index.origin is None else sets.points.astype(np.float64) + index.origin
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(points.reshape(-1)), index.dim)
    offsets = pa.array(sets.offsets)
    columns = {"id": batch.ids, "points": pa.LargeListArray.from_arrays(offsets, vectors)}
    if weighted:
        columns["weights"] = pa.LargeListArray.from_arrays(offsets, pa.array(sets.weights))
    columns["metadata"] = [json.dumps(each, ensure_ascii=False) for each in batch.metadata]
    return columns
