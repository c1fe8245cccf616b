"""Where there is a GPU that slosh can use: names of devices that functions of `slosh.gpu` are tried with.

These functions take any device of torch, so that what they compute is tested on the CPU, too. What users call takes
"cpu" for the native kernel.
"""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make installs it where its CPU build can be had")
torch.set_num_threads(1)

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
