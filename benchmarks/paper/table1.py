"""Table 1: nine methods, three data sets, k = 4, 8, 16, with the paper's settings and with slosh's defaults."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from datasets import Dataset
from ledger import Unit
from protocol import LENGTHS, METHODS, SETTINGS, Array, K, Plan, codes, data, embedding, score, scores_by_length
from slosh.hash import SignHash
from slosh.search import LadderSearch

CODE_BYTES = 128
"""Bytes of a 1024-bit code: the memory that the default search may use."""
COMPONENTS = (None, 16, 8, 4, 2)
"""Numbers of directions to try for the search's prefixes, until they fit into that memory; None is its own choice."""
SEEDS_OF_WE = 3
"""One seed of WE takes seven minutes, and the whole run should take at most an hour."""
SECONDS = {"mnist": 8.0, "modelnet40": 3.0, "oxford5k": 4.0}
SECONDS_WE = {"mnist": 115.0, "modelnet40": 200.0, "oxford5k": 80.0}


def units(plan: Plan) -> Iterator[Unit]:
    """Yield all rows but WE, which takes longer than all others together."""
    for name in SETTINGS:
        for seed in plan.seeds:
            for method in METHODS:
                if method != "WE":
                    yield _unit(plan, name, method, seed, SECONDS[name])


def units_of_we(plan: Plan) -> Iterator[Unit]:
    """Yield the rows of WE, which run last."""
    for name in SETTINGS:
        for seed in plan.seeds[:SEEDS_OF_WE]:
            yield _unit(plan, name, "WE", seed, SECONDS_WE[name])


def _unit(plan: Plan, name: str, method: str, seed: int, seconds: float) -> Unit:
    return Unit(f"table1/{name}/{method}/{seed}", seconds, lambda: row(plan, name, method, seed))


def row(plan: Plan, name: str, method: str, seed: int) -> dict[str, Any]:
    """Return one row for one seed: the paper's settings, slosh's defaults, and slosh's default search."""
    sets, setting = data(plan, name, seed), plan.setting(name)
    as_paper = embedding(method, setting, seed)
    defaults = embedding(method, setting, seed, slosh_defaults=True)
    result: dict[str, Any] = {}
    if repr(as_paper) == repr(defaults):  # embed once; hash about the origin and about the mean
        stored, asked = as_paper.fit_transform(sets.database.sets), as_paper.transform(sets.queries.sets)
        result["paper"] = _hashed(stored, asked, sets, None, seed)
    else:
        result["paper"] = scores_by_length(*codes(as_paper, sets, seed=seed), sets, LENGTHS)
        stored, asked = defaults.fit_transform(sets.database.sets), defaults.transform(sets.queries.sets)
    if method == "WE":  # the authors' code does not subtract the reference
        reference = (as_paper.reference_ * np.sqrt(as_paper.reference_weights_)[:, None]).ravel().astype(np.float32)
        result["not less the reference"] = _hashed(stored + reference, asked + reference, sets, None, seed)
    result["defaults"] = _hashed(stored, asked, sets, "mean", seed)
    result["search"] = searched(stored, asked, sets, seed, CODE_BYTES)
    return result


def _hashed(stored: Array, asked: Array, sets: Dataset, center: str | None, seed: int) -> dict[str, Any]:
    hash = SignHash(LENGTHS[-1], center=center, random_state=seed).fit(stored)
    return scores_by_length(hash.transform(stored), hash.transform(asked), sets, LENGTHS)


def searched(stored: Array, asked: Array, sets: Dataset, seed: int, n_bytes: int) -> dict[str, Any]:
    """Score the default search with its vectors on disk, within so many bytes of memory a set."""
    with tempfile.TemporaryDirectory() as folder:
        for n_components in COMPONENTS:
            if n_components is not None and n_components > stored.shape[1]:
                continue
            path = Path(folder) / f"vectors-{n_components}"
            search = LadderSearch(path=path, n_components=n_components, random_state=seed)
            search.add(stored)
            scores = score(search.search(asked, max(K)).rows, sets)
            in_memory = sum(search.info()["bytes"].values()) / len(stored)
            if in_memory <= n_bytes:
                break
        if sets.truth is not None:
            scores["map"] = score(search.search(asked, len(stored)).rows, sets)["map"]
        on_disk = path.stat().st_size / len(stored)
        sizes = {"memory": round(in_memory, 1), "disk": round(on_disk, 1), "components": n_components}
        return {"scores": scores, **sizes}
