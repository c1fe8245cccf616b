"""The table of formats: for each extension the reader, in words what it reads, and the options it takes."""

from __future__ import annotations

from .arrays import read_npy, read_npz
from .cells import read_h5ad
from .clouds import read_las, read_pcd
from .files import Format, Library
from .images import read_idx
from .meshes import read_mesh, read_xyz
from .tables import read_arrow, read_csv, read_parquet

_ANNDATA = Library("anndata", ".h5ad", "cells")
_LASPY = Library("laspy", "LAS and LAZ", "files")
_PYARROW = Library("pyarrow", "tables", "tables")
_TRIMESH = Library("trimesh", "meshes", "files")
_TABLE = frozenset({"id_column", "columns", "weights", "by"})
_FIELDS = frozenset({"columns"})
_CELLS = frozenset({"columns", "weights", "by", "obsm"})

FORMATS: dict[str, Format] = {
    ".npy": Format("a NumPy array", read_npy, one_set=True),
    ".npz": Format("an archive of NumPy arrays", read_npz, frozenset({"id_column", "weights"})),
    ".parquet": Format("a Parquet table", read_parquet, _TABLE, _PYARROW),
    ".arrow": Format("an Arrow table", read_arrow, _TABLE, _PYARROW),
    ".feather": Format("an Arrow table", read_arrow, _TABLE, _PYARROW),
    ".csv": Format("a CSV table", read_csv, _TABLE, _PYARROW),
    ".tsv": Format("a CSV table", read_csv, _TABLE, _PYARROW),
    ".off": Format("an OFF mesh", read_mesh, one_set=True),
    ".ply": Format("a PLY mesh", read_mesh, library=_TRIMESH, one_set=True),
    ".obj": Format("an OBJ mesh", read_mesh, one_set=True),
    ".stl": Format("an STL mesh", read_mesh, library=_TRIMESH, one_set=True),
    ".glb": Format("a GLB mesh", read_mesh, library=_TRIMESH, one_set=True),
    ".xyz": Format("an XYZ cloud", read_xyz, one_set=True),
    ".pcd": Format("a PCD cloud", read_pcd, _FIELDS, one_set=True),
    ".las": Format("a LAS cloud", read_las, _FIELDS, _LASPY, one_set=True),
    ".laz": Format("a LAS cloud", read_las, _FIELDS, _LASPY, one_set=True),
    ".h5ad": Format("an h5ad file", read_h5ad, _CELLS, _ANNDATA),
    ".idx": Format("an IDX file", read_idx, frozenset({"weights"})),
}
"""What can be read, by extension."""
