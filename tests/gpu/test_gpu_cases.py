"""What only a GPU can show; see `cuda_cases.py`. tests/gpu/run_without_pytest.py runs the same without pytest."""

from __future__ import annotations

import cuda_cases
import pytest

WHY_NOT = cuda_cases.why_not()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in cuda_cases.cases()])
def test_on_a_gpu(case, tmp_path):
    case(tmp_path)
