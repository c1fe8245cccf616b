"""slosh show, update and remove."""

from __future__ import annotations

import json

import numpy as np
import pytest

import slosh


def test_show(slosh_):
    code, out, _ = slosh_("show", "clouds.slosh", "thin/0000.npy")
    assert code == 0
    assert "metadata folder" in out
    code, out, _ = slosh_("show", "clouds.slosh", "--limit", 2, "--where", "folder = fat")
    assert code == 0
    assert "the first 2 of 6 sets" in out
    shown = json.loads(slosh_("show", "clouds.slosh", "thin/0000.npy", "--json")[1])
    points = np.load("clouds/thin/0000.npy")
    assert shown["points"] == len(points)
    np.testing.assert_allclose(shown["max"], points.max(axis=0), rtol=1e-6)
    assert slosh_("show", "clouds.slosh", "--where", "folder = none")[1] == "0 sets\n"


def test_sets_page_by_page(slosh_):
    ids, ends = [], {0: "the first 4 of 6 sets", 4: "5 to 6 of 6 sets", 8: "none left of 6 sets"}
    for offset, said in ends.items():
        page = ("show", "clouds.slosh", "--where", "folder = fat", "--limit", 4, "--offset", offset)
        ids += [json.loads(line)["id"] for line in slosh_(*page, "--json")[1].splitlines()]
        assert slosh_(*page)[1].endswith(f"{said}\n")
    assert ids == [f"fat/{i:04}.npy" for i in range(1, 12, 2)]
    assert slosh_("show", "clouds.slosh", "fat/0001.npy", "--offset", 1)[0] == 2


def test_remove_and_compact(slosh_, copied, stored):
    assert "11 are left" in slosh_("remove", copied, "thin/0000.npy")[1]
    code, _, err = slosh_("remove", copied, "thin/0002.npy", "nope")
    assert code == 1
    assert "nope" in err
    code, _, err = slosh_("remove", copied, "--where", "folder = fat")
    assert code == 2
    assert "--yes" in err
    assert stored(copied) == 11
    removed = json.loads(slosh_("remove", copied, "--where", "folder = fat", "--yes", "--json")[1])
    assert (removed["removed"], removed["sets"]) == (6, 5)
    assert slosh_("remove", copied)[0] == 2
    assert "removed" in slosh_("info", copied)[1]
    assert json.loads(slosh_("compact", copied, "--json")[1])["sets"] == 5
    assert slosh_("verify", copied)[0] == 0


def test_update_changes_metadata(slosh_, copied):
    code, out, _ = slosh_("update", copied, "thin/0000.npy", "fat/0001.npy", "--meta", "year=2015", "--meta", "file=x")
    assert (code, out) == (0, "updated 2 sets\n")
    code, out, _ = slosh_("update", copied, "--where", "folder = fat", "--replace", "--meta", "kind=round", "--json")
    assert (code, json.loads(out)) == (0, {"index": str(copied), "updated": 6})
    with slosh.open(copied, read_only=True) as index:
        assert index.get("thin/0000.npy").metadata == {"file": "x", "folder": "thin", "year": 2015}
        assert index.get("thin/0002.npy").metadata == {"file": "0002.npy", "folder": "thin"}
        assert index.select("kind = round") == [f"fat/{i:04}.npy" for i in range(1, 12, 2)]
        assert index.get("fat/0001.npy").metadata == {"kind": "round"}
    code, out, err = slosh_("update", copied, "--where", "foldr = fat", "--meta", "a=1")
    assert (code, out) == (0, "updated 0 sets\n")
    assert "no set has a field 'foldr'" in err


def test_a_value_of_meta_is_a_number_where_it_is_one_in_a_filter(slosh_, copied):
    given = {
        "a": ("1_000", "1_000"), "b": ("nan", "nan"), "c": ("-Infinity", "-Infinity"), "d": ("1e3", 1000.0),
        "e": (" -7", -7), "f": (".5", 0.5), "g": ("1e999", "1e999"), "h": ("9" * 40, "9" * 40), "i": ("\u0663",) * 2,
        "j": ("0" * 40 + "7", 7), "k": ("TRUE", True), "l": ("", ""),
    }  # fmt: skip
    options = [part for key, (text, _) in given.items() for part in ("--meta", f"{key}={text}")]
    code, _, err = slosh_("update", copied, "fat/0001.npy", "--replace", *options)
    assert (code, err) == (0, "")
    with slosh.open(copied, read_only=True) as index:
        stored = index.get("fat/0001.npy").metadata
        assert stored == {key: value for key, (_, value) in given.items()}
        assert [type(value) for value in stored.values()] == [type(value) for _, value in given.values()]
        for key, (text, _) in given.items():
            if key in "abcdefijk":
                assert index.select(f"{key} = {text}") == ["fat/0001.npy"], key


def test_an_empty_filter_is_refused(slosh_, copied, stored):
    for command in (
        ["remove", copied, "--yes"],
        ["update", copied, "--meta", "a=1"],
        ["show", copied],
        ["search", copied, "thin/0000.npy"],
        ["duplicates", copied],
    ):
        for text, said in {
            "": "--where is empty",
            " ": "--where is empty",
            "@id prefix ''": "prefix is empty",
            "@id >= ''": "no id is empty",
        }.items():
            code, _, err = slosh_(*command, "--where", text)
            assert code == 2
            assert said in err
    assert stored(copied) == 12


@pytest.mark.parametrize("answer", ["y", "n"])
def test_remove_asks_on_a_terminal(copied, answer, stored, on_a_terminal):
    arguments = ["remove", copied, "--where", "folder = fat"]
    code, shown = on_a_terminal(*arguments, cwd=copied.parent, answer=f"{answer}\n".encode())
    assert "remove 6 sets of 12" in shown
    assert (code, stored(copied)) == ((0, 6) if answer == "y" else (1, 12))
