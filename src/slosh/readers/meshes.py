"""Meshes and clouds: a mesh is sampled over its surface, a cloud is taken as it is.

`.off`, `.obj` and `.xyz` are read here, all others by trimesh. It gets bytes and no path, so it can follow no name of
another file. The points of a mesh depend on the seed and on its triangles, and on nothing else: equal meshes get equal
points, whatever the files are called and whatever is read beside them.

Why two formats are not left to trimesh (tried with 5.2). Its time for `.obj` grows with the number of materials times
that of the vertices: minutes for a megabyte. An `.off` that is cut short in its faces is read as if it were whole, and
negative counts are taken; polygons are also cut into other triangles from version to version, and the sampled points
would change with them.
"""

from __future__ import annotations

import io
import json
import re
import struct
import warnings
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..data.checks import FLOAT32_MAX, first_outside
from ..data.text import format_bytes
from ..native.arrays import Array
from .files import File, Options, Piece

SAMPLING_STREAM = 0x510514
"""Joined to a seed, so that data drawn with the same seed is not the same numbers."""
MAX_SCENE_DEPTH = 64
"""Nodes below nodes in a GLB, at most: the time of trimesh grows with the cube of it."""


def read_mesh(file: File, options: Options) -> Iterator[Piece]:
    """Read one set: `n_points` of the surface, or the vertices where there are no faces."""
    data = file.path.read_bytes()
    own = {".off": _off, ".obj": _obj}.get(file.suffix)
    vertices, faces = own(data) if own else _by_trimesh(file, data)
    if not len(vertices):
        raise ValueError("no vertices were found in it")
    if len(faces) and not 0 <= faces.min() <= faces.max() < len(vertices):
        raise ValueError("a face names a vertex that is not there")
    if (bad := first_outside(vertices, -FLOAT32_MAX, FLOAT32_MAX)) is not None:
        x, y, z = vertices[bad[0]].tolist()
        what = f"vertex {bad[0]} is ({x}, {y}, {z}), not finite or too large for float32"
        raise file.error(what, "repair it", element=bad[0])
    if not len(faces):
        yield Piece.one(file, vertices)
        return
    triangles = vertices[faces] + 0.0  # -0.0 becomes 0.0
    content = zlib.crc32(np.ascontiguousarray(triangles, "<f8").data)
    seed = np.array([SAMPLING_STREAM, options.random_state, content], np.uint32)
    points = sample_surface(triangles, options.n_points, np.random.RandomState(seed))
    if points is None:
        raise file.error("the faces of the mesh have no area, so no points can be sampled", "repair it")
    yield Piece.one(file, points)


def _by_trimesh(file: File, data: bytes) -> tuple[Array, Array]:
    import trimesh

    # A binary STL has 80 bytes of header, the number of triangles, and 50 bytes for each.
    is_binary_stl = len(data) >= 84 and len(data) == 84 + 50 * int.from_bytes(data[80:84], "little")
    if file.suffix == ".glb":
        _check_glb(file, data)
    elif file.suffix == ".ply":
        _check_ply(data)
    elif file.suffix == ".stl" and not is_binary_stl:
        try:
            data.decode("utf-8")
        except UnicodeDecodeError:  # a comment is in another encoding; the numbers are the same in both
            data = data.decode("latin-1").encode("utf-8")
    loaded = trimesh.load(io.BytesIO(data), file_type=file.suffix[1:], process=False, skip_materials=True)
    return _joined(file, loaded)


def _off(data: bytes) -> tuple[Array, Array]:
    """Return vertices and faces: a line for each, as many as the header claims; a polygon is a fan of triangles."""
    lines = [words for line in data.splitlines() if (words := line.partition(b"#")[0].split())]
    word, *rest = lines.pop(0) if lines else [b""]
    _, off, glued = word.partition(b"OFF")  # COFF and NOFF: colours and normals come after the coordinates
    if not off:
        raise ValueError("it does not begin with OFF")
    counts = [glued, *rest] if glued else rest or (lines.pop(0) if lines else [])
    if len(counts) < 2:
        raise ValueError("it does not say how many vertices and faces it has")
    n, m = int(counts[0]), int(counts[1])
    if n < 0 or m < 0 or len(lines) != n + m:
        raise ValueError(f"claims {n} vertices and {m} faces, and has {len(lines)} lines: it is cut short or damaged")
    if any(len(line) < 3 for line in lines[:n]):
        raise ValueError("a vertex has fewer than 3 coordinates")
    vertices = np.array([[float(x) for x in line[:3]] for line in lines[:n]], np.float64).reshape(-1, 3)
    polygons: dict[int, list[list[int]]] = {}
    for line in lines[n:]:
        size = int(line[0])
        if not 0 <= size < len(line):
            raise ValueError(f"a face claims {size} vertices and has {len(line) - 1}")
        polygons.setdefault(size, []).append([int(x) for x in line[1 : size + 1]])
    faces = [np.empty((0, 3), np.int64)]
    for size, listed in sorted(polygons.items()):
        if size > 2:
            corners = np.array(listed, np.int64)
            first = np.broadcast_to(corners[:, :1], (len(corners), size - 3))
            fan = np.stack([corners[:, 2:-1], corners[:, 3:], first], axis=2)
            faces += [corners[:, :3], fan.swapaxes(0, 1).reshape(-1, 3)]  # the first triangles of all, and so on
    return vertices, np.concatenate(faces)


def _obj(data: bytes) -> tuple[Array, Array]:
    """Return vertices and faces of the lines `v` and `f`; a material has its faces together, the last one first."""
    coordinates: list[bytes] = []
    # Of each material the corners of its faces, how many a face has, and how many vertices there were before it.
    materials: dict[bytes, tuple[list[bytes], list[int], list[int]]] = {}
    corners, sizes, known = materials.setdefault(b"", ([], [], []))
    for line in re.sub(rb"\\\r?\n", b" ", data).splitlines():
        words = (line.partition(b"#")[0] if b"#" in line else line).split()
        key = words[0] if words else b""
        if key == b"v":
            coordinates += words[1:4]
            if len(words) < 4:
                raise ValueError("a vertex has fewer than 3 coordinates")
        elif key == b"f":
            corners += words[1:]
            sizes.append(len(words) - 1)
            known.append(len(coordinates) // 3)
        elif key == b"usemtl":
            corners, sizes, known = materials.setdefault(b" ".join(words[1:]), ([], [], []))
    faces = [np.empty((0, 3), np.int64)]
    for corners, sizes, known in (listed for listed in reversed(materials.values()) if listed[1]):
        numbers = np.fromiter(map(int, re.sub(rb"/\S*", b"", b" ".join(corners)).split()), np.int64, len(corners))
        numbers += np.where(numbers < 0, np.repeat(known, sizes), -1)  # from 1 on, or back from the vertices so far
        faces.append(_triangles(numbers, np.array(sizes, np.int64)))
    vertices = np.fromiter(map(float, coordinates), np.float64, len(coordinates))
    return vertices.reshape(-1, 3), np.concatenate(faces)


def _triangles(corners: Array, sizes: Array) -> Array:
    """Return the triangles of polygons, cut and ordered as trimesh does."""
    if (alike := np.all(sizes == sizes[0])) and sizes[0] == 3:
        return corners.reshape(-1, 3)
    quad = np.array([[0, 1, 2], [2, 3, 0]])
    if alike and sizes[0] == 4:
        return np.concatenate(list(corners.reshape(-1, 4)[:, quad].swapaxes(0, 1)))
    parts = [np.empty((0, 3), np.int64)]
    for face in np.split(corners, np.cumsum(sizes)[:-1]):
        if len(face) == 4:
            parts.append(face[quad])
        elif len(face) > 2:
            parts.append(np.stack([np.broadcast_to(face[0], len(face) - 2), face[1:-1], face[2:]], axis=1))
    return np.concatenate(parts)


def sample_surface(triangles: Array, count: int, random: np.random.RandomState) -> Array | None:
    """Return (count, 3) points, evenly distributed over (m, 3, 3) triangles; None if they have no area.

    >>> square = np.array([[[0, 0, 0], [1, 0, 0], [1, 1, 0]], [[0, 0, 0], [1, 1, 0], [0, 1, 0]]], float)
    >>> sample_surface(square, 10_000, np.random.RandomState(0)).mean(axis=0).round(1)
    array([0.5, 0.5, 0. ])
    """
    first, second = triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0]
    areas = np.cumsum(np.linalg.norm(np.cross(first, second), axis=1))
    if not (np.isfinite(areas[-1]) and areas[-1] > 0):
        return None
    number, u, v = random.random_sample((3, count))
    chosen = np.searchsorted(areas, number * areas[-1], side="right").clip(max=len(areas) - 1)
    outside = u + v > 1  # the other half of the parallelogram, folded back
    u[outside], v[outside] = 1 - u[outside], 1 - v[outside]
    return np.asarray(triangles[chosen, 0] + u[:, None] * first[chosen] + v[:, None] * second[chosen])


def _joined(file: File, loaded: Any) -> tuple[Array, Array]:
    """Return vertices and faces of all that was loaded, each where the scene puts it."""
    if not hasattr(loaded, "graph"):
        return _arrays(loaded)
    parts = []
    for node in loaded.graph.nodes_geometry:
        transform, name = loaded.graph.get(node)
        if hasattr(loaded.geometry[name], "vertices"):
            parts.append((transform, *_arrays(loaded.geometry[name])))
    file.check_memory("the scene", sum(x.nbytes + f.nbytes for _, x, f in parts) * 4)
    vertices, faces, start = [np.empty((0, 3))], [np.empty((0, 3), np.int64)], 0
    for transform, x, f in parts:
        vertices.append(x @ transform[:3, :3].T + transform[:3, 3])
        faces.append(f + start)
        start += len(x)
    return np.concatenate(vertices), np.concatenate(faces)


def _arrays(geometry: Any) -> tuple[Array, Array]:
    faces = np.asarray(getattr(geometry, "faces", np.empty((0, 3))), np.int64).reshape(-1, 3)
    return np.asarray(geometry.vertices, np.float64).reshape(-1, 3), faces


def _check_ply(data: bytes) -> None:
    """Refuse text that ends before all lines have come that the header claims: trimesh takes what there is."""
    header, _, body = data.partition(b"end_header")
    lines = [line.split() for line in header.splitlines()]
    if any(b"ascii" in line for line in lines[:2]):
        claimed = sum(int(line[2]) for line in lines if line[:1] == [b"element"] and len(line) == 3)
        found = max(0, len(body.splitlines()) - 1)
        if found < claimed:
            raise ValueError(f"claims {claimed} vertices and faces, and has {found} lines: it is cut short or damaged")


def _check_glb(file: File, data: bytes) -> None:
    """Refuse what a GLB may claim and not have: numbers without bytes, nodes that repeat, other files."""
    if len(data) < 20 or data[:4] != b"glTF" or data[16:20] != b"JSON":
        raise ValueError("no GLB header")
    (length,) = struct.unpack_from("<I", data, 12)
    tree = json.loads(data[20 : 20 + length])
    for accessor in tree.get("accessors", []):
        if not 0 <= accessor["count"] <= len(data):
            raise file.error(f"claims {accessor['count']} values, the file has {format_bytes(len(data))}: refused")
    for buffer in tree.get("buffers", []):
        if not buffer.get("uri", "data:").startswith("data:"):
            raise file.error(f"its points are in another file, {buffer['uri']!r:.80}", "export it as one .glb")
    nodes = tree.get("nodes", [])
    children = [child for node in nodes for child in node.get("children", [])]
    if len(set(children)) < len(children):
        raise file.error("a node of the scene has two parents: refused")
    level = sorted(set(range(len(nodes))) - set(children))
    for _ in range(MAX_SCENE_DEPTH):
        level = [child for number in level for child in nodes[number].get("children", [])]
    if level:
        raise file.error(f"the nodes of its scene are nested more than {MAX_SCENE_DEPTH} deep: refused")


def read_xyz(file: File, options: Options) -> Iterator[Piece]:
    """Read one set: the first three numbers of each line."""
    with open(file.path, encoding="utf-8-sig") as stream:
        start = [stream.readline(1 << 16) for _ in range(3)]
        skip = int(start[0].strip().isdigit())  # some programs write the number of points first
        if skip and start[2].strip()[:1].isalpha():
            what = "looks like a molecule, with names of atoms"
            raise file.error(what, "save the coordinates as .npy or .csv")
        delimiter = "," if any("," in line for line in start) else None
        stream.seek(0)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "loadtxt: input contained no data")
            form: dict[str, Any] = {"comments": ("#", "//"), "usecols": (0, 1, 2), "ndmin": 2}
            points = np.loadtxt(stream, delimiter=delimiter, skiprows=skip, **form)
        if not len(points):
            raise ValueError("no lines of numbers were found in it")
        if skip and len(points) < int(start[0]):
            raise ValueError(f"claims {int(start[0])} points, and has {len(points)}: it is cut short or damaged")
    yield Piece.one(file, points)
