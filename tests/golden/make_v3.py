"""Make the golden index of format version 3, with the answers that it gave.

It has what is new in version 3: lists and dicts without values, which exist. It is made once, when version 3 is final:

    PYTHONPATH=src python tests/golden/make_v3.py tests/golden/index-v3
"""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path

import make_v1 as first

import slosh

EXISTS = [
    ("search", {"k": 9, "recall": 1.0, "where": {"tags": {"exists": True}, "@id": {"prefix": "s1"}}}),
    ("search", {"k": 9, "recall": 1.0, "where": "camera exists and camera.iso not exists"}),
    ("search", {"k": 9, "recall": 1.0, "where": "2024-02-29 <= taken < 2024-03-01"}),
]


def make_fields(path):
    """Make an index with fields of every kind."""
    with first.filled(path, True) as index:
        taken = datetime.datetime(2024, 2, 29, 23, tzinfo=datetime.timezone(datetime.timedelta(hours=-1)))
        about = [{"tags": []}, {"tags": [None, {}], "taken": taken}, {"camera": {}}, {"taken": taken.date()}]
        index.update(["s10", "s11", "s12", "s13"], metadata=about)
        queries = [(first.cloud(200 + i), first.weights_of(first.cloud(200 + i), 200 + i)) for i in range(3)]
        return first.describe(index, queries, [*first.EXACT, *EXISTS])


def main(folder):
    folder.mkdir(parents=True)
    told = {"made_by": f"slosh {slosh.__version__}", **make_fields(folder / "fields.slosh")}
    text = json.dumps(told, ensure_ascii=False, separators=(",", ":"))
    (folder / "fields.json").write_text(text + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
