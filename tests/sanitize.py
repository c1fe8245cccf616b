"""Build the kernel with AddressSanitizer and UndefinedBehaviorSanitizer, and run its tests: make test-sanitize.

It is built into build/sanitize, which is kept: only what has changed is compiled again. Further arguments are those of
pytest. The runtime of the sanitizers has to be in the process before Python is, so it is preloaded; Python itself leaks
on purpose, so leaks are not looked for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "sanitize"
TESTS = ["tests/native", "tests/search", "tests/embed", "tests/rank", "tests/hash"]
NOT_OF_THE_KERNEL = "not installs and not compiles and not symbol"
# An editable install is found before any path: it would be tested in place of the build.
ONLY_THIS_BUILD = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "ScikitBuildRedirectingFinder"]
"""
CHECK = f"from slosh.native import kernel; assert kernel.native.__file__.startswith({str(BUILD)!r}), kernel.native"


def runtime(name: str) -> str:
    found = subprocess.run(
        ["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not os.path.isabs(found):
        sys.exit(f"the compiler has no {name}: install GCC's sanitizers")
    return found


def main() -> int:
    if shutil.which("g++") is None:
        sys.exit("the build with sanitizers needs g++")
    options = ["--no-deps", "--no-build-isolation", "--upgrade", "--target", BUILD / "site"]
    settings = ["cmake.define.SLOSH_SANITIZE=ON", f"build-dir={BUILD / 'objects'}", "install.strip=false"]
    settings = [word for setting in settings for word in ("-C", setting)]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", *options, *settings, ROOT],
        env={**os.environ, "CXX": "g++"},
        check=True,
    )
    (BUILD / "site" / "sitecustomize.py").write_text(ONLY_THIS_BUILD)
    environment = {
        **os.environ,
        "LD_PRELOAD": ":".join(map(runtime, ("libasan.so", "libubsan.so", "libstdc++.so"))),
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": str(BUILD / "site"),
    }
    subprocess.run([sys.executable, "-c", CHECK], env=environment, cwd=ROOT, check=True)
    command = [sys.executable, "-m", "pytest", "-x", "-k", NOT_OF_THE_KERNEL, *(sys.argv[1:] or TESTS)]
    return subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
