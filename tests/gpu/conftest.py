"""A GPU that is only pretended, for tests of what hands work to one.

`pretended_gpu` lets "cuda" be taken for a GPU called "Pretended GPU". What is given to it is computed on the CPU: sets
are embedded by the native kernel, and every other number is then moved to the next float32, so that its vectors differ
from those of the CPU in their bits; everything else by the functions of `slosh.gpu`, with tensors on the CPU.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from slosh.gpu import devices
from slosh.native import kernel

NAME = "Pretended GPU"


class PretendedGpu:
    """What was given to the GPU: the number of sets or vectors of each call, by what was asked for."""

    name = NAME

    def __init__(self):
        self.calls = []

    def embed(self, sets, rule, out, residual, device, *, tf32=False):
        assert device == "cuda:0"
        self.calls.append(("embed", len(sets.offsets) - 1))
        if tf32:
            sets, rule = sets._replace(points=coarse(sets.points)), rule._replace(directions=coarse(rule.directions))
        kernel.embed(sets, rule, out, residual, 1)
        out[:, ::2] = np.nextafter(out[:, ::2], np.float32(np.inf))

    def count(self, what):
        return sum(n for kind, n in self.calls if kind == what)


def coarse(numbers):
    """Return the numbers rounded to eleven bits, as those of TF32 are."""
    mantissa, exponent = np.frexp(numbers)
    return np.ldexp(np.round(mantissa * 2**11) / 2**11, exponent).astype(np.float32)


def no_work(*given, tf32=False):
    """There is nothing that runs on the device alone: vectors go by way of the host."""


@pytest.fixture
def pretended_gpu(monkeypatch):
    monkeypatch.setattr(devices, "_names", {"cuda:0": NAME})
    monkeypatch.setattr(devices, "_found", {"cuda": "cuda:0", "cuda:0": "cuda:0"})
    monkeypatch.setattr(devices, "_process", os.getpid())
    gpu = PretendedGpu()
    monkeypatch.setitem(sys.modules, "slosh.gpu.embedding", SimpleNamespace(embed=gpu.embed, work=no_work))
    try:
        from slosh.gpu import field, products, scan
    except ImportError:  # no torch: what only embeds can be tested all the same
        return gpu

    def on_the_cpu(what, function, place):
        def call(*args, **kwargs):
            args = list(args)
            assert args[place] == "cuda:0"
            args[place] = "cpu"
            gpu.calls.append((what, len(args[0].offsets) - 1 if what == "field" else 1))
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(field, "work", no_work)
    monkeypatch.setattr(field, "field", on_the_cpu("field", field.field, 3))
    monkeypatch.setattr(products, "DeviceMap", on_the_cpu("map", products.DeviceMap, 5))
    monkeypatch.setattr(scan, "DeviceRows", on_the_cpu("rows", scan.DeviceRows, 1))
    return gpu
