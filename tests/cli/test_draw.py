"""Pictures of sets, and names that fit into them."""

from __future__ import annotations

import numpy as np
import pytest

from slosh.cli.draw import fold_name

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("index", ["clouds.slosh", "solid.slosh"])
@pytest.mark.parametrize(
    "command", ["search {} thin/0000.npy fat/0001.npy", "show {}", "explain {} thin/0000.npy fat/0001.npy"]
)
def test_pictures(slosh_, tmp_path, index, command):
    pytest.importorskip("matplotlib")
    code, out, err = slosh_(*command.format(index).split(), "--plot", tmp_path / "p.png")
    assert (code, err) == (0, "")
    assert "drawn in" in out
    assert (tmp_path / "p.png").read_bytes().startswith(PNG)
    assert (tmp_path / "p.png").stat().st_size > 5000


def test_any_script_in_a_picture(slosh_, tmp_path):
    pytest.importorskip("matplotlib")
    for name in ("椅子椅子椅子椅子椅子椅子椅子椅子.npy", "🪑.npy", "كرسي.npy", "$a_b$.npy"):
        np.save(tmp_path / name, np.random.default_rng(0).normal(size=(9, 2)))
    assert slosh_("build", tmp_path / "a", tmp_path)[0] == 0
    for command in (["search", tmp_path / "a", "🪑.npy"], ["explain", tmp_path / "a", "🪑.npy", "كرسي.npy"]):
        code, _, err = slosh_(*command, "--plot", tmp_path / "p.png")
        assert (code, err) == (0, "")


def test_no_picture_of_five_dimensions(slosh_, tmp_path, write_clouds):
    write_clouds(tmp_path / "c", 3, dim=5)
    assert slosh_("build", tmp_path / "a", tmp_path / "c")[0] == 0
    for command in (["search", tmp_path / "a", "thin/0000.npy"], ["show", tmp_path / "a"]):
        code, out, err = slosh_(*command, "--plot", tmp_path / "p.png")
        assert (code, out) == (1, "")
        assert "2 or 3 dimensions" in err
    assert not (tmp_path / "p.png").exists()


@pytest.mark.parametrize("name", ["a" * 100, "chair/" * 9 + "0001.off", "x" * 30 + "/y", "椅" * 40, "椅子/" * 6])
def test_names_in_pictures_keep_their_start_and_end(name):
    lines = fold_name(name)
    assert len(lines) == 2
    assert all(line for line in lines)
    assert lines[0].rstrip("…") == name[: len(lines[0].rstrip("…"))]
    assert name.endswith(lines[1])
    assert all(sum(1 + (c > "\u2fff") for c in line) <= 21 for line in lines)
