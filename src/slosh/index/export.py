"""An index as a Parquet file, for other programs and for other versions of slosh; `slosh.readers` reads it back."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.atomic import replacing
from ..data.progress import ProgressBar
from ..engines.base import Records
from ..errors import InputError, import_extra
from ..readers.tables import EXPORT_KEY

if TYPE_CHECKING:
    from .set_index import SetIndex


def export(index: SetIndex, path: str | os.PathLike[str]) -> int:
    """Write the columns id, points (lists of vectors), weights if there are any, and metadata (JSON), atomically."""
    file = Path(path)
    if file.suffix.lower() not in ("", ".parquet"):
        problem, remedy = f"{file}: the format is Parquet, not {file.suffix}", f"name it {file.with_suffix('.parquet')}"
        raise InputError(problem, remedy, argument="path")
    pa, pq = (import_extra(module, "export", "tables") for module in ("pyarrow", "pyarrow.parquet"))
    weighted = bool(index.info()["weighted"])
    number = pa.float32() if index.origin is None else pa.float64()
    fields = [("id", pa.string()), ("points", pa.large_list(pa.list_(number, index.dim)))]
    fields += [("weights", pa.large_list(pa.float32()))] * weighted + [("metadata", pa.string())]
    about = {"format": 1, "dim": index.dim, "weighted": weighted}
    schema = pa.schema(fields, metadata={EXPORT_KEY: json.dumps(about).encode()})
    done = 0
    bar = ProgressBar(total=len(index), unit="set", desc="export")
    with bar, replacing(path) as stream, pq.ParquetWriter(stream, schema, compression="zstd") as writer:
        for batch in index.records():
            writer.write_table(pa.table(_columns(pa, index, batch, weighted), schema=schema))
            done += len(batch.ids)
            bar.update(len(batch.ids))
    return done


def _columns(pa: Any, index: SetIndex, batch: Records, weighted: bool) -> dict[str, Any]:
    sets = batch.sets
    points = sets.points if index.origin is None else sets.points.astype(np.float64) + index.origin
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(points.reshape(-1)), index.dim)
    offsets = pa.array(sets.offsets)
    columns = {"id": batch.ids, "points": pa.LargeListArray.from_arrays(offsets, vectors)}
    if weighted:
        columns["weights"] = pa.LargeListArray.from_arrays(offsets, pa.array(sets.weights))
    columns["metadata"] = [json.dumps(each, ensure_ascii=False) for each in batch.metadata]
    return columns
