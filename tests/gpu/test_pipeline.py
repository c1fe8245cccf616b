"""What the way through a GPU does when memory is full. The GPU is left out: what goes through pieces is a stand-in."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

from slosh.embed import base
from slosh.errors import DeviceMemoryError
from slosh.gpu.devices import ALLOCATION
from slosh.native.arrays import Ragged

torch = pytest.importorskip("torch")
pipeline = pytest.importorskip("slosh.gpu.pipeline")


class AcceleratorError(RuntimeError):
    """What torch raises where no more memory of the host can be page-locked."""

    error_code = ALLOCATION


@pytest.fixture
def run(monkeypatch):
    """Return a function that runs the pipeline; pieces of more than `room` bytes fail with an error."""
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(pipeline, "full_precision", lambda device: nullcontext())
    tried = []

    def run(error, room):
        def through(sets, work, out, numbers, row, most, first):
            step = max(1, min(4000, most // row))
            for begin in range(first, 4000, step):
                if most > room:
                    raise error
                tried.append((begin, min(4000, begin + step)))
                yield tried[-1][1]

        monkeypatch.setattr(pipeline, "_through", through)
        sets = Ragged(np.zeros((40_000, 3), np.float32), np.arange(0, 40_001, 10), None)
        pipeline.run(sets, None, np.empty((4000, 80), np.float32), None, "cuda:0")
        return tried

    return run


@pytest.mark.parametrize("error", [torch.cuda.OutOfMemoryError("full"), AcceleratorError("full")])
def test_full_memory_of_the_device_and_of_the_host_means_smaller_pieces(run, error):
    assert len(run(error, 1 << 30)) == 1
    tried = run(error, pipeline.PIECE_BYTES >> 10)[1:]
    assert [begin for begin, _ in tried] == [0, *(end for _, end in tried[:-1])]
    assert len(tried) > 1
    assert tried[-1][1] == 4000
    with pytest.raises(DeviceMemoryError) as caught:
        run(error, 0)
    assert caught.value.__cause__ is error


def test_other_errors_pass(run):
    with pytest.raises(RuntimeError, match="something else"):
        run(RuntimeError("something else"), 0)


def test_a_batch_is_many_rounds_of_pieces():
    """Between batches the pipeline stands still."""
    assert 4 * base.DEVICE_BATCH_NUMBERS >= 4 * pipeline.SLOTS * pipeline.PIECE_BYTES
