"""The kernel is compiled once for each instruction set, and no function of one copy may stand for that of another.

An inline function or a template that two objects have is merged by the linker: a machine without AVX-512 would then run
the copy that was compiled for it, and die.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HARMLESS = {"DW.ref.__gxx_personality_v0"}
"""A pointer that every object with exceptions has; it holds no code."""

pytestmark = pytest.mark.skipif(shutil.which("nm") is None, reason="no nm here")


def merged_symbols(kernels, others=()):
    """Return the symbols, with their objects, that a kernel shares with another object of the program."""
    objects = defaultdict(set)
    for path in (*kernels, *others):
        lines = subprocess.run(
            ["nm", "--demangle", "--defined-only", "--extern-only", path], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        for line in lines:
            if len(fields := line.split(maxsplit=2)) == 3:
                objects[fields[2]].add(path)
    return {
        name: paths for name, paths in objects.items() if len(paths) > 1 and paths & {*kernels} and name not in HARMLESS
    }


def test_no_symbol_is_shared_between_instruction_sets():
    builds = sorted(ROOT.glob("build/*/CMakeFiles/kernel_generic.dir"), key=lambda path: path.stat().st_mtime)
    if not builds:
        pytest.skip("the kernel was not built in this folder: build/ has no objects")
    folder = builds[-1].parent
    kernels = list(folder.glob("kernel_*.dir/**/*.o"))
    assert kernels
    others = [path for path in folder.glob("**/*.o") if path not in kernels]
    assert others, "the module itself is missing"
    assert merged_symbols(kernels, others) == {}


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler here")
def test_a_shared_symbol_is_found(tmp_path):
    code = (
        "inline int shared(int x) { return x + 1; }\n"
        "namespace NAME { inline int own(int x) { return shared(x); } int call(int x) { return own(x); } }\n"
    )
    (tmp_path / "kernel.cpp").write_text(code)
    objects = [tmp_path / f"{name}.o" for name in ("one", "two")]
    for path in objects:
        command = ["c++", "-O0", "-c", f"-DNAME={path.stem}", tmp_path / "kernel.cpp", "-o", path]
        subprocess.run(command, check=True, capture_output=True)
    assert merged_symbols(objects) == {"shared(int)": {*objects}}
