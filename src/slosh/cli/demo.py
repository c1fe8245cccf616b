"""`slosh demo`: build an index of handwritten digits that come with scikit-learn, and search it.

Each image of 8 x 8 pixels is the set of its inked pixels, weighted by their ink. An index of 1,500 digits is built on
disk, 297 others are searched for, and every number that is printed is measured in this run. The 297 are drawn at
random; the last 297 of the file are harder, and their numbers are printed too.
"""

from __future__ import annotations

import shutil
import sys
import time
import webbrowser
from pathlib import Path
from typing import Any

import numpy as np

from ..data.sets import Sets
from ..data.text import format_bytes
from ..engines.registry import local_server
from ..errors import MissingExtra, import_extra
from ..evaluate import precision_at_k, recall_at_k, vote_accuracy
from ..index.hits import HitLists
from ..index.set_index import SetIndex
from ..native import kernel
from ..native.arrays import Int64
from ..readers import Batch
from .draw import Panel, draw
from .messages import CommandError
from .options import open_index
from .output import flush, say

N_STORED = 1500
K = 10
SINGLE_QUERIES = 200
"""Queries that are searched for one at a time, to measure the time of one."""
DRAWN_QUERIES, DRAWN_NEIGHBOURS = 6, 8
ORANGE = "#D55E00"


def tell(text: str) -> None:
    """Print a line at once, though standard output may be a pipe."""
    say(text)
    flush()


def load_digits() -> Batch:
    """Return 1,797 digits: points are (column, row from below), weights are the grey values 1 to 16."""
    from sklearn.datasets import load_digits as load

    data = load()
    image, row, column = np.nonzero(data.images)
    points = np.stack([column, data.images.shape[1] - 1 - row], axis=1)
    sets = Sets(points, np.append(0, np.cumsum(np.bincount(image))), data.images[image, row, column])
    metadata = [{"digit": digit, "even": digit % 2 == 0} for digit in data.target.tolist()]
    return Batch(sets, [f"digit-{i:04}" for i in range(len(sets))], metadata)


def take(digits: Batch, rows: Any) -> Batch:
    """Return some of the digits."""
    return Batch(digits.sets.take(rows), [digits.ids[i] for i in rows], [digits.metadata[i] for i in rows])


def digits_of(metadata: list[dict[str, Any]]) -> Int64:
    """Return which digits some sets show."""
    return np.array([about["digit"] for about in metadata])


def run_demo(out: Path, keep: bool, engine: str = "folder") -> None:
    """Run the demo on an index in a folder, or in a server of its own."""
    if engine == "folder":
        _run(out, out / "digits.slosh", keep)
        return
    with local_server("postgresql") as url:
        tell(f"PostgreSQL runs for this demo, at {url}\n")
        _run(out, f"{url}#digits", False)


def check_server() -> None:
    """Raise an error that says what to install, if the server cannot run here."""
    for module in ("fastapi", "uvicorn", "msgspec"):
        import_extra(module, "slosh demo --serve", "server")


def serve_demo(out: Path, port: int) -> None:
    """Serve the index of the demo until a signal stops it. On a terminal the page opens in a browser."""
    from ..server.process import configure_logging, serve
    from ..server.settings import Settings

    settings = Settings((str(out / "digits.slosh"),), port=port, access_log=False)
    configure_logging(settings)

    def started(address: str, names: list[str]) -> None:
        tell(f"\nThe page is at {address}/#index={names[0]} until you press Ctrl-C. Draw a digit on it.")
        if sys.stdout.isatty():
            webbrowser.open(f"{address}/#index={names[0]}")

    serve(settings, started)


def _run(out: Path, path: Path | str, keep: bool) -> None:
    """Build the index in a folder, unless an earlier one is to be kept, search it, and print what was measured."""
    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.ids))
    stored, held_out = take(digits, np.sort(order[:N_STORED])), take(digits, np.sort(order[N_STORED:]))
    out.mkdir(parents=True, exist_ok=True)
    about = "Handwritten digits of scikit-learn, 8 x 8 pixels: each is a set of weighted points."
    tell(f"{about} Kernel: {kernel.name()}\n")
    if isinstance(path, Path) and keep and path.exists():
        tell(f"{path} is kept from an earlier run")
    else:
        if isinstance(path, Path):
            _replace(path, set(digits.ids))
        _build(path, stored)
    with open_index(path) as index:
        tell(f"\nSearch: the {K} nearest of each of {len(held_out.ids)} digits that are not in the index")
        found = _search(index, held_out)
    _search_last_digits(digits)
    with open_index(path) as index:
        same = index.search(held_out.sets, K).ids == found.ids
        said = "the same answers" if same else "OTHER ANSWERS"
        tell(f"  closed and opened again: {said}; each add is one transaction,")
        tell("  so a killed process leaves all of it or nothing")
        arrays: dict[str, Any] = {name: getattr(held_out.sets, name) for name in ("points", "offsets", "weights")}
        names, labels = np.array(held_out.ids), digits_of(held_out.metadata)
        np.savez_compressed(out / "held-out.npz", **arrays, names=names, labels=labels)
        can_draw = _draw(index, held_out, found, out / "neighbours.png")
    if isinstance(path, Path):
        _suggest_commands(path, out, stored.ids, can_draw)
    else:
        tell("\nThe server stops now. With one of your own:")
        tell("  slosh build postgresql://user@host/database SOURCE --name NAME")


def _replace(path: Path, ids: set[str]) -> None:
    """Remove the index of an earlier run, and nothing else."""
    if not path.exists():
        return
    try:
        with open_index(path) as before:
            ours = set(before.ids) <= ids
    except (OSError, ValueError):
        ours = False
    if not ours:
        raise CommandError(f"{path} was not made by this demo: move it away, or choose another folder with --out")
    shutil.rmtree(path)


def _build(path: Path | str, stored: Batch) -> None:
    started = time.perf_counter()
    with SetIndex.create(path, dim=2) as index:
        index.add(stored)
        seconds = time.perf_counter() - started
        tuned = index.tune(recall=0.99, k=K)
        size = sum(index.info()["disk_bytes"].values())
    n = len(stored.ids)
    tell(f"Index: {n:,} digits stored in {path} in {seconds:.2f} s, {n / seconds:,.0f} a second")
    tell(f"  {format_bytes(size / n)} a digit on disk, with points, metadata and vectors")
    tell(f"  tuned: {tuned}")


def _search(index: SetIndex, held_out: Batch) -> HitLists:
    queries, n, truth = held_out.sets, len(held_out.ids), digits_of(held_out.metadata)
    index.search(queries, K)  # the first search loads what the others find in memory
    found: HitLists = index.search(queries, K)
    certified: HitLists = index.search(queries, K, certify=True)
    labels, full = np.array(list(map(digits_of, found.metadata))), certified.stats.full_distances
    recall = recall_at_k(*(index.kneighbors(queries, K, recall=wanted)[1] for wanted in (None, 1.0)))
    started = time.perf_counter()
    for i in range(SINGLE_QUERIES):
        index.search(queries[i % n : i % n + 1], K)
    single = (time.perf_counter() - started) / SINGLE_QUERIES
    assert full is not None
    tell(f"  precision@{K} {precision_at_k(labels, truth):.3f}: this fraction of the neighbours is the same digit")
    tell(f"  accuracy {vote_accuracy(labels, truth):.3f} of the majority of the {K} neighbours")
    tell(f"  recall {recall:.4f} of what an exact search finds")
    tell(f"  {1e6 * found.stats.seconds / n:.0f} us a query in one batch, {1e6 * single:.0f} us one at a time")
    cost = f"{1e6 * certified.stats.seconds / n:.0f} us a query, {full.mean():.1f} full distances of {len(index):,}"
    tell(f"  certified, the true {K} nearest by sliced distance, proved: {cost}")
    where = "even = true and digit >= 6"
    hits = index.search(queries[:1], K, where=where)[0]
    kinds = " and ".join(f"{digit}s" for digit in sorted(set(digits_of(hits.metadata).tolist())))
    tell(f'  with the filter "{where}", the {len(hits)} nearest to a {truth[0]} are {kinds}')
    return found


def _search_last_digits(digits: Batch) -> None:
    """Search for the last digits of the file instead."""
    rows = range(len(digits.ids))
    last, n = take(digits, rows[N_STORED:]), len(rows) - N_STORED
    with SetIndex.create(None, dim=2) as index:
        index.add(take(digits, rows[:N_STORED]))
        found: HitLists = index.search(last.sets, K)
    labels, truth = np.array(list(map(digits_of, found.metadata))), digits_of(last.metadata)
    measured = f"precision@{K} {precision_at_k(labels, truth):.3f}, accuracy {vote_accuracy(labels, truth):.3f}"
    tell(f"  these {n} were drawn at random; the last {n} of the file are harder: {measured}")


def _draw(index: Any, held_out: Batch, found: HitLists, picture: Path) -> bool:
    """Draw the first query of each of the digits 0 to 4, and the one with the most neighbours of another digit.

    Return False, after a remark, if matplotlib is not installed.
    """
    truth, k, rows = digits_of(held_out.metadata), DRAWN_NEIGHBOURS, []
    wrong = (np.array(list(map(digits_of, found.metadata)))[:, :k] != truth[:, None]).sum(axis=1)
    for i in [*(int(np.argmax(truth == digit)) for digit in range(DRAWN_QUERIES - 1)), int(np.argmax(wrong))]:
        near = index.get(found[i].ids[:k])
        row = [Panel(held_out.sets[i : i + 1], f"a {truth[i]}, {held_out.ids[i]}")]
        for j, digit in enumerate(digits_of(near.metadata)):
            note, colour = f"{found[i].distances[j]:.3f}", None if digit == truth[i] else ORANGE
            row.append(Panel(near.sets[j : j + 1], f"a {digit}", note, colour))
        rows.append(row)
    try:
        draw(rows, picture, title="Digits that are not in the index, and their nearest neighbours with distances")
    except MissingExtra as error:
        tell(f"\nThere is no picture: {error}")
        return False
    tell(f"\nThe picture {picture} shows {DRAWN_QUERIES} of the queries and their neighbours. Orange neighbours")
    tell("are other digits; the last row is the query with the most of them.")
    return True


def _suggest_commands(path: Path, out: Path, ids: list[str], can_draw: bool) -> None:
    one, other = ids[7], ids[17]
    ones, why = (f" --plot {out / name}" * can_draw for name in ("ones.png", "why.png"))
    tell("\nWhat to try next:\n")
    for line in (
        f"slosh search {path} {one} -k 5",
        f'slosh search {path} {one} --where "digit = 1"{ones}',
        f"slosh search {path} {out / 'held-out.npz'} -k 3 --certify --json",
        f"slosh explain {path} {one} {other}{why}",
        f"slosh show {path} {one}",
        f"slosh compare {out / 'held-out.npz'} --label label",
        f"slosh verify {path}",
        "slosh build my.slosh FOLDER_OF_CLOUDS    # your own files: .npy .npz .ply .off .las .csv .parquet .h5ad ...",
    ):
        tell(f"  {line}")
