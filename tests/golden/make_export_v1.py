"""Make the golden file of `SetIndex.export`, format 1, and what it holds.

It is made once, and never again:

    PYTHONPATH=src python tests/golden/make_export_v1.py tests/golden/export-v1.parquet
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import make_v1 as first

import slosh


def main(path):
    with first.filled(None, True) as index:
        index.export(path)
        told = {"made_by": f"slosh {slosh.__version__}", **first.describe(index, [(first.cloud(200), None)], [])}
    text = json.dumps({name: told[name] for name in ("made_by", "dim", "sets")}, ensure_ascii=False)
    path.with_suffix(".json").write_text(text + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
