"""Run the tests of test_gpu_cases.py where there is a GPU and no pytest: python tests/gpu/run_without_pytest.py [WORD]

It tries each test whose name has the word in it, prints how long it took and what went wrong, and ends with 1 if
anything did.
"""

from __future__ import annotations

import sys
import tempfile
import time
import traceback
from pathlib import Path

TESTS = Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS), str(TESTS.parent), str(TESTS.parents[1] / "src")]


def main(word: str = "") -> int:
    import cuda_cases

    problem = cuda_cases.why_not()
    if problem:
        print(problem)
        return 1
    print(cuda_cases.machine())
    failed = 0
    for name, case in cuda_cases.cases():
        if word not in name:
            continue
        started = time.perf_counter()
        try:
            with tempfile.TemporaryDirectory() as folder:
                case(Path(folder))
            said = "ok"
        except Exception:
            failed, said = failed + 1, f"FAILED\n{traceback.format_exc()}"
        print(f"{name:60} {time.perf_counter() - started:7.2f} s  {said}", flush=True)
    print("all passed" if not failed else f"{failed} failed")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
