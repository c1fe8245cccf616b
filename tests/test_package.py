"""The names of the package: imported when they are used, and the same for people, programs and type checkers."""

from __future__ import annotations

import ast
import inspect
import pickle
import subprocess
import sys

import pytest

import slosh


def names_for_type_checkers():
    (block,) = [node for node in ast.parse(inspect.getsource(slosh)).body if isinstance(node, ast.If)][:1]
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    return {alias.name: f"slosh.{line.module}" if line.module else None for line in block.body for alias in line.names}


def test_every_name_is_there():
    seen = names_for_type_checkers()
    assert sorted(seen) == sorted(slosh.__all__)
    assert set(slosh.__all__) <= set(dir(slosh))
    for name, home in seen.items():
        found = getattr(slosh, name)
        assert found is (sys.modules[f"slosh.{name}"] if home is None else getattr(sys.modules[home], name))


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="no attribute 'SetSearch'"):
        slosh.SetSearch  # noqa: B018
    with pytest.raises(ImportError):
        from slosh import SetSearch  # noqa: F401


def test_names_are_found_in_a_fresh_process(tmp_path):
    (tmp_path / "model").write_bytes(pickle.dumps(slosh.embed.GeM(p=3)))
    checks = """
import pickle, slosh
assert pickle.load(open("model", "rb")).p == 3
import slosh.search.exact
from slosh import *
from slosh import hash, where as filters
assert open is slosh.open and search.ExactSearch is slosh.search.exact.ExactSearch and slosh.native.kernel.name()
assert hash.SignHash and filters.parse("a = 1") == slosh.where.Equal("a", 1) and SetIndex.create(None, dim=2).dim == 2
"""
    subprocess.run([sys.executable, "-c", checks], cwd=tmp_path, check=True, timeout=900)


@pytest.mark.parametrize("n_threads", [1, 4])
def test_threads_that_search_at_exit_do_no_harm(n_threads, tmp_path):
    """They must not abort the process, nor make nanobind tell the user of a leak (what they hold is never freed)."""
    script = f"""
import threading, numpy, slosh
index = slosh.SetIndex.create(None, dim=2)
index.add(numpy.random.default_rng(0).normal(size=(3000, 4, 2)))
searched = threading.Event()
def search():
    while True:
        index.search([[0.0, 1.0]], k=3)
        searched.set()
for _ in range({n_threads}):
    threading.Thread(target=search, daemon=True).start()
searched.wait()
"""
    for _ in range(4):  # it depends on where the threads are
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, check=False, timeout=900, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, "")
