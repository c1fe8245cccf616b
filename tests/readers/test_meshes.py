"""Meshes and clouds in text: sampled surfaces, the same points for the same triangles."""

from __future__ import annotations

import numpy as np
import pytest
from reader_files import everything

from builders import normal_arrays
from comparing import raises, same

# ---- text


def test_xyz(tmp_path):
    x = normal_arrays(10, dim=3)[0].astype(np.float64)
    np.savetxt(tmp_path / "a.xyz", x, header="x y z")
    np.savetxt(tmp_path / "b.xyz", np.hstack([x, x]), delimiter=",")
    (tmp_path / "c.xyz").write_text("2\n0 0 0\n1 2 3\n")
    batch = everything(tmp_path)
    same(batch.sets, [x, x, [[0, 0, 0], [1, 2, 3]]])
    (tmp_path / "d.xyz").write_text("2\nwater\nO 0 0 0\nH 0 0 1\n")
    with raises("d.xyz: looks like a molecule"):
        everything(tmp_path / "d.xyz")
    for text in ("", "a b c\n", "1 2\n3 4\n"):
        (tmp_path / "d.xyz").write_text(text)
        with raises("d.xyz: not a readable XYZ cloud"):
            everything(tmp_path / "d.xyz")


# ---- meshes


@pytest.fixture
def box():
    trimesh = pytest.importorskip("trimesh")
    return trimesh.creation.box((1, 2, 3))


@pytest.mark.parametrize("suffix", ["off", "ply", "obj", "stl", "glb"])
def test_a_mesh_is_sampled_over_its_surface(tmp_path, box, suffix):
    box.export(tmp_path / f"box.{suffix}")
    batch = everything(tmp_path, n_points=4000)
    assert batch.ids == [f"box.{suffix}"]
    (x,) = batch.sets
    assert x.shape == (4000, 3)
    on_face = np.isclose(np.abs(x), [0.5, 1, 1.5], atol=1e-6)
    assert on_face.any(axis=1).all()
    np.testing.assert_allclose(on_face.mean(axis=0), [12 / 22, 6 / 22, 4 / 22], atol=0.03)  # by area
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=0.06)


def test_sampling_depends_on_seed_and_triangles_only(tmp_path, box):
    """A copy of a mesh finds the original at distance 0, wherever it lies."""
    (tmp_path / "a b").mkdir()
    for name in ("a.off", "a b/a.off", "c.off"):
        box.export(tmp_path / name)
    box.apply_translation([0, 0, 1e-3])
    box.export(tmp_path / "other.off")
    *copies, other = everything(tmp_path, n_points=50).sets
    for one in copies:
        np.testing.assert_array_equal(one, copies[0])
    assert np.abs(other - copies[0]).max() > 0.1  # other points, not the same ones moved
    backwards = everything([tmp_path / "other.off", tmp_path / "c.off"], n_points=50, batch_points=1)
    np.testing.assert_array_equal(backwards.sets[1], copies[0])
    assert not np.array_equal(everything(tmp_path / "c.off", n_points=50, random_state=1).sets[0], copies[0])
    assert not np.array_equal(everything(tmp_path / "c.off", n_points=60).sets[0][:50], copies[0])


def test_sampling_is_the_same_from_another_format(tmp_path):
    """What is not of the triangles does not count: comments, the sign of zero, vertices that no face names."""
    pytest.importorskip("trimesh")
    (tmp_path / "x.off").write_text("OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n")
    (tmp_path / "y.obj").write_text("# a triangle\nv 9 9 9\nv 0 0 -0.0\nv 1 0 0\nv 0 1 0\nf 2 3 4\n")
    x, y = everything(tmp_path, n_points=20).sets
    np.testing.assert_array_equal(x, y)


def test_clouds_are_taken_as_they_are(tmp_path, box):
    trimesh = pytest.importorskip("trimesh")
    points = normal_arrays(20, dim=3)[0]
    trimesh.PointCloud(points).export(tmp_path / "c.ply")
    (tmp_path / "c.obj").write_text("".join(f"v {x} {y} {z}\n" for x, y, z in points.tolist()))
    (tmp_path / "c.off").write_text("OFF\n20 0 0\n" + "".join(f"{x} {y} {z}\n" for x, y, z in points.tolist()))
    batch = everything(tmp_path, n_points=5)
    assert [len(x) for x in batch.sets] == [20] * 3
    for x in batch.sets:
        np.testing.assert_allclose(x, points, rtol=1e-5)


def test_a_scene_is_joined(tmp_path, box):
    trimesh = pytest.importorskip("trimesh")
    scene = trimesh.Scene()
    scene.add_geometry(box, transform=trimesh.transformations.translation_matrix([10, 0, 0]))
    scene.add_geometry(box, transform=trimesh.transformations.translation_matrix([-10, 0, 0]))
    scene.export(tmp_path / "two.glb")
    (x,) = everything(tmp_path, n_points=2000).sets
    assert np.abs(np.abs(x[:, 0]) - 10).max() < 0.51
    assert abs((x[:, 0] > 0).mean() - 0.5) < 0.05


def test_a_mesh_without_area(tmp_path):
    pytest.importorskip("trimesh")
    (tmp_path / "flat.off").write_text("OFF\n3 1 0\n0 0 0\n1 0 0\n2 0 0\n3 0 1 2\n")
    with raises("flat.off: the faces of the mesh have no area"):
        everything(tmp_path)


TWO = "0 0 0\n1 0 0\n1 1 0\n0 1 0\n3 0 1 2\n3 0 2 3\n"


def test_an_off_file_is_compared_with_its_header(tmp_path):
    pytest.importorskip("trimesh")
    path = tmp_path / "x.off"
    path.write_text(f"OFF\n4 2 0\n{TWO}")
    (expected,) = everything(path, n_points=20).sets
    for text in (
        f"# first\nOFF # a square\n\n4 2 0\n# vertices\n{TWO}# the end",
        f"OFF4 2 0\n{TWO}",
        f"OFF 4 2\n{TWO}".replace("\n", "\r\n"),
        f"\ufeffOFF\r4 2 5\n{TWO}\n\n",
        "COFF\n4 2 0\n" + TWO.replace(" 0\n", " 0 255 0 0 255\n"),
        "NOFF\n4 2 0\n" + TWO.replace(" 0\n", " 0 0 0 1\n"),
        f"OFF\n4 2 0\n{TWO}".replace("3 0 1 2", "3 0 1 2 0.5 0.5 0.5").replace("3 0 2 3", "3 0 2 3 7"),
        f"OFF\n4 4 0\n{TWO}2 0 1\n1 3\n",  # a line and a point, which have no area
    ):
        path.write_text(text, encoding="utf-8", newline="")
        np.testing.assert_array_equal(everything(path, n_points=20).sets[0], expected)
    for text, message in [
        (f"OFF\n4 2 0\n{TWO[:-8]}", "claims 4 vertices and 2 faces, and has 5 lines"),
        (f"OFF\n4 2 0\n{TWO[:24]}", "claims 4 vertices and 2 faces, and has 4 lines"),
        (f"OFF\n4 1 0\n{TWO}", "claims 4 vertices and 1 faces, and has 6 lines"),
        (f"OFF\n4 2 0\n{TWO[:-3]}", "a face claims 3 vertices and has 2"),
        (f"OFF\n4 2 0\n{TWO}".replace("1 1 0", "1 1"), "a vertex has fewer than 3 coordinates"),
        (f"OFF\n-1 7 0\n{TWO}", "claims -1 vertices"),
        ("OFF\n4\n", "does not say how many"),
        ("OFF", "does not say how many"),
        ("4 2 0\n" + TWO, "does not begin with OFF"),
        (f"OFF\n4 2 0\n{TWO}".replace("3 0 2 3", "3 0 2 2.5"), "2.5"),
    ]:
        path.write_text(text)
        with raises("x.off: not a readable OFF mesh", message):
            everything(path)


def test_polygons_become_fans(tmp_path):
    pytest.importorskip("trimesh")
    corners = "0 0 0\n1 0 0\n2 0 0\n2 1 0\n0 1 0\n2 3 0\n4 1 0\n4 0 0\n"
    (tmp_path / "x.off").write_text(f"OFF\n8 3 0\n{corners}5 0 1 2 3 4\n3 4 3 5\n4 2 7 6 3\n")  # areas 2, 2, 2
    (x,) = everything(tmp_path, n_points=6000).sets
    shares = [(x[:, 1] > 1).mean(), (x[:, 0] > 2).mean()]
    np.testing.assert_allclose(shares, 1 / 3, atol=0.03)
    assert ((x[:, 1] <= 1) | (x[:, 0] <= 2)).all()


@pytest.mark.parametrize(("number", "suffix"), [("nan", "off"), ("1e39", "off"), ("inf", "obj")])
def test_a_mesh_with_a_number_that_is_none(tmp_path, number, suffix):
    pytest.importorskip("trimesh")
    (tmp_path / "x.off").write_text(f"OFF\n3 1 0\n0 0 0\n1 0 {number}\n0 1 0\n3 0 1 2\n")
    (tmp_path / "x.obj").write_text(f"v 0 0 0\nv 1 0 {number}\nv 0 1 0\nf 1 2 3\n")
    with raises(f"x.{suffix}: vertex 1 is (1.0, 0.0, ", "not finite or too large"):
        everything(tmp_path / f"x.{suffix}")


def test_text_in_another_encoding(tmp_path, box):
    for name, comment in (("a.obj", "# Stuhl, grün\n"), ("b.off", "OFF\n# Stuhl, grün\n")):
        text = box.export(file_type=name[2:])
        (tmp_path / name).write_bytes((comment + text.removeprefix("OFF\n")).encode("latin-1"))
    assert everything(tmp_path, n_points=9).sets.sizes.tolist() == [9, 9]


def test_an_obj_follows_no_names(tmp_path, box):
    """The material lies where a reader that follows names would find it, and is a trap."""
    home = tmp_path / "home" / "deep"
    home.mkdir(parents=True)
    text = box.export(file_type="obj")
    (home / "m.obj").write_text(f"mtllib ../../trap.mtl\nmtllib ../../../../../../../../etc/passwd\n{text}")
    (tmp_path / "trap.mtl").mkdir()
    assert [len(x) for x in everything(home, n_points=7).sets] == [7]
