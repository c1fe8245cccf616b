"""The table of formats: for each extension the reader, in words what it reads, and the options it takes."""

from __future__ import annotations

from .arrays import read_npy, read_npz
from .cells import ANNDATA, read_h5ad
from .files import Format
from .images import read_idx
from .las import LASPY, read_las
from .meshes import TRIMESH, read_mesh, read_xyz
from .pcd import read_pcd
from .tables import PYARROW, read_arrow, read_csv, read_parquet

_TABLE = frozenset({"id_column", "columns", "weights", "by"})
_FIELDS = frozenset({"columns"})
_CELLS = frozenset({"columns", "weights", "by", "obsm"})

FORMATS: dict[str, Format] = {
    ".npy": Format("a NumPy array", read_npy, one_set=True),
    ".npz": Format("an archive of NumPy arrays", read_npz, frozenset({"id_column", "weights"})),
    ".parquet": Format("a Parquet table", read_parquet, _TABLE, PYARROW),
    ".arrow": Format("an Arrow table", read_arrow, _TABLE, PYARROW),
    ".feather": Format("an Arrow table", read_arrow, _TABLE, PYARROW),
    ".csv": Format("a table in text", read_csv, _TABLE, PYARROW),
    ".tsv": Format("a table in text", read_csv, _TABLE, PYARROW),
    ".off": Format("a mesh", read_mesh, one_set=True),
    ".ply": Format("a mesh or a cloud", read_mesh, library=TRIMESH, one_set=True),
    ".obj": Format("a mesh or a cloud", read_mesh, library=TRIMESH, one_set=True),
    ".stl": Format("a mesh", read_mesh, library=TRIMESH, one_set=True),
    ".glb": Format("a mesh", read_mesh, library=TRIMESH, one_set=True),
    ".xyz": Format("a cloud", read_xyz, one_set=True),
    ".pcd": Format("a cloud", read_pcd, _FIELDS, one_set=True),
    ".las": Format("a cloud", read_las, _FIELDS, LASPY, one_set=True),
    ".laz": Format("a cloud", read_las, _FIELDS, LASPY, one_set=True),
    ".h5ad": Format("a table of cells", read_h5ad, _CELLS, ANNDATA),
    ".idx": Format("images", read_idx, frozenset({"weights"})),
}
"""What can be read, by extension."""
