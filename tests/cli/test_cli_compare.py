"""slosh compare."""

from __future__ import annotations

import json

import numpy as np
import pytest


def test_compare(slosh_):
    code, out, _ = slosh_("compare", "clouds", "--label", "folder", "-k", 3)
    assert code == 0
    assert "SlicedWasserstein" in out
    document = json.loads(slosh_("compare", "clouds", "--label", "folder", "-k", 3, "--json")[1])
    assert document["rows"][0]["precision"] > 0.5
    code, _, err = slosh_("compare", "clouds")
    assert code == 1
    assert "--label" in err


def test_compare_is_quiet(slosh_, tmp_path):
    pytest.importorskip("ot")
    rng = np.random.default_rng(0)
    for i in range(20):  # fewer different points than k-means looks for
        (tmp_path / "few" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "few" / "ab"[i % 2] / f"{i}.npy", rng.integers(0, 3, size=(30, 2)))
    code, _, err = slosh_("compare", tmp_path / "few", "--label", "folder", "-k", 2)
    assert (code, err) == (0, "")
