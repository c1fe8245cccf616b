"""torch, for the tests of slosh.torch; a module that imports it from here is skipped where it is not installed."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make installs it where its CPU build can be had")
torch.set_num_threads(1)  # small tensors on a shared machine: threads would wait for each other
