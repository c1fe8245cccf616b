"""What a query on the command line may be."""

from __future__ import annotations

import json

import numpy as np


def test_an_id_that_is_a_file_too(slosh_, tmp_path, monkeypatch):
    np.save(tmp_path / "one.npy", np.ones((5, 2)))
    np.save(tmp_path / "two.npy", np.zeros((5, 2)))
    monkeypatch.chdir(tmp_path)
    assert slosh_("build", "a", "one.npy", "two.npy")[0] == 0
    code, _, err = slosh_("search", "a", "one.npy")
    assert code == 2
    assert "--id or --file" in err
    by_id, by_file = (json.loads(slosh_("search", "a", "one.npy", how, "--json")[1]) for how in ("--id", "--file"))
    assert [hit["id"] for hit in by_id["hits"]] == ["two.npy"]
    assert [hit["id"] for hit in by_file["hits"]] == ["one.npy", "two.npy"]
    assert slosh_("search", "a", "one.npy", "--id", "--file")[0] == 2


def test_many_queries_one_line_each(slosh_):
    code, out, _ = slosh_(
        "search", "clouds.slosh", "thin/0000.npy", "query.npy", "clouds/fat", "fat/0001.npy", "--json"
    )
    assert code == 0
    names = [json.loads(line)["query"] for line in out.splitlines()]
    fat = [f"{i:04}.npy" for i in range(1, 12, 2)]
    assert names == ["thin/0000.npy", "query.npy", *fat, "fat/0001.npy"]
