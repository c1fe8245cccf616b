"""Cells in .h5ad files: one set for each value of an observation column."""

from __future__ import annotations

import numpy as np
import pytest
from reader_files import everything

from comparing import raises, same
from slosh.errors import ReaderError
from slosh.readers import read


@pytest.fixture
def cells():
    anndata = pytest.importorskip("anndata")
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    n = 60
    patient = rng.choice(["p1", "p2", "p3"], n)
    patient[:3] = ["p3", "p1", "p2"]
    obs = pd.DataFrame(
        {
            "patient": pd.Categorical(patient),
            "sex": [{"p1": "f", "p2": "m", "p3": "f"}[x] for x in patient],
            "age": [{"p1": 60, "p2": 70, "p3": 80}[x] for x in patient],
            "count": rng.integers(1, 9, n),
            "cluster": pd.Categorical(rng.choice(["t", "b"], n)),
        },
        index=[f"cell{i}" for i in range(n)],
    )
    x = rng.poisson(0.5, (n, 7)).astype(np.float32)
    data = anndata.AnnData(x, obs=obs)
    data.obsm["X_pca"] = rng.standard_normal((n, 2))
    data.var_names = [f"gene{i}" for i in range(7)]
    return data


@pytest.mark.parametrize("kind", ["dense", "csr", "csc", "chunked"])
def test_h5ad(tmp_path, cells, kind, monkeypatch):
    from scipy import sparse

    from slosh.readers import cells as module

    x = cells.X.copy()
    options = {"compression": "gzip"} if kind == "chunked" else {}
    if kind in ("csr", "csc"):
        cells.X = {"csr": sparse.csr_matrix, "csc": sparse.csc_matrix}[kind](x)
    cells.write_h5ad(tmp_path / "c.h5ad", **options)
    patient = cells.obs["patient"].to_numpy()
    order = ["p3", "p1", "p2"]
    for block in (1 << 24, 16):  # the whole matrix, or some rows at a time
        monkeypatch.setattr(module, "VALUES_AT_ONCE", block)
        for batch_points in (1 << 22, 10):
            batch = everything(tmp_path, by="patient", batch_points=batch_points)
            same(batch.sets, [x[patient == one] for one in order])
            assert batch.ids == order
    assert batch.metadata[1] == {"file": "c.h5ad", "sex": "f", "age": 60}
    same(
        everything(tmp_path, by="patient", columns=["gene5", "gene0"]).sets,
        [x[patient == one][:, [5, 0]] for one in order],
    )


def test_names_of_variables_as_newer_programs_write_them(tmp_path, cells):
    """A group of values and a mask."""
    import h5py

    cells.write_h5ad(tmp_path / "c.h5ad")
    with h5py.File(tmp_path / "c.h5ad", "r+") as store:
        index = store["var"].attrs["_index"]
        item = store["var"][index]
        names = (item["values"] if isinstance(item, h5py.Group) else item).asstr()[:]
        del store["var"][index]
        group = store["var"].create_group(index)
        group.attrs.update({"encoding-type": "nullable-string-array", "encoding-version": "0.1.0"})
        group["values"], group["mask"] = names.astype(object), np.zeros(len(names), bool)
    patient, x = cells.obs["patient"].to_numpy(), cells.X
    found = everything(tmp_path, by="patient", columns=["gene5", "gene0"]).sets
    same(found, [x[patient == one][:, [5, 0]] for one in ["p3", "p1", "p2"]])


def test_h5ad_obsm_and_weights(tmp_path, cells):
    cells.write_h5ad(tmp_path / "c.h5ad")
    patient, pca, count = cells.obs["patient"].to_numpy(), cells.obsm["X_pca"], cells.obs["count"].to_numpy()
    batch = everything(tmp_path, by="patient", obsm="X_pca", weights="count")
    order = ["p3", "p1", "p2"]
    same(batch.sets, [pca[patient == one] for one in order], [count[patient == one] for one in order])


def test_h5ad_errors(tmp_path, cells):
    path = tmp_path / "c.h5ad"
    cells.obs["hole"] = [None, *["x"] * 59]
    cells.write_h5ad(path)
    for options, words in (
        ({}, "by= is the one whose values make the sets; those with categories are 'patient', 'sex'"),
        ({"by": "patients"}, "no column 'patients'"),
        ({"by": "patient", "obsm": "X_umap"}, "no obsm 'X_umap': there are 'X_pca'"),
        ({"by": "patient", "weights": "w"}, "no observation column 'w'"),
        ({"by": "patient", "columns": ["gene9"]}, "no variable 'gene9'"),
        ({"by": "patient", "columns": ["gene1"], "obsm": "X_pca"}, "give one of the two"),
        ({"by": "hole"}, "1 cells have no 'hole', the first in row 0"),
    ):
        with raises("c.h5ad:", words, error=ReaderError) as caught:
            read(path, **options)
        assert caught.value.location == str(path)
    assert (caught.value.row, caught.value.column) == (0, "hole")
