"""The map of whitened embeddings by torch, against that of the CPU; and that products are those of float32."""

from __future__ import annotations

import numpy as np
import pytest
from optional_gpu import DEVICES, torch

from slosh.embed.whitening import LinearMap
from slosh.errors import DeviceMemoryError
from slosh.gpu import products

pytestmark = pytest.mark.parametrize("device", DEVICES)


def parts(n_directions, rest_scale, shortest, dim=40):
    random = np.random.default_rng(n_directions)
    turned = np.linalg.qr(random.normal(size=(dim, dim)))[0][:n_directions]
    scales = random.uniform(0.5, 3, size=n_directions)
    return random.normal(size=dim), np.ascontiguousarray(turned, np.float32), scales, rest_scale, shortest


@pytest.mark.parametrize("n_directions", [0, 1, 17, 40])
@pytest.mark.parametrize("rest_scale", [0.0, 0.7])
@pytest.mark.parametrize("shortest", [None, 1e-3])
def test_maps_as_the_cpu_does(device, n_directions, rest_scale, shortest):
    if not n_directions and not rest_scale:
        return  # nothing would be left
    about = parts(n_directions, rest_scale, shortest)
    vectors = np.random.default_rng(1).normal(size=(300, 40)).astype(np.float32)
    vectors[0] = about[0]  # as short as it can be
    found = np.empty((300, 40 if rest_scale else n_directions), np.float32)
    expected = np.empty_like(found)
    LinearMap(*about).apply(vectors, expected, 1)
    products.DeviceMap(*about, device).apply(vectors, found)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_full_memory_takes_fewer_vectors_and_is_then_an_error(device, monkeypatch):
    about = parts(5, 0.0, None)
    made, sound, most = products.DeviceMap(*about, device), torch.Tensor.float, 7
    vectors = np.random.default_rng(1).normal(size=(300, 40)).astype(np.float32)
    expected = np.empty((300, 5), np.float32)
    made.apply(vectors, expected)

    def full(tensor):
        if len(tensor) > most:
            raise torch.cuda.OutOfMemoryError("full")
        return sound(tensor)

    monkeypatch.setattr(torch.Tensor, "float", full)
    found = np.empty((300, 5), np.float32)
    made.apply(vectors, found)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
    most = 0
    with pytest.raises(DeviceMemoryError, match="one vector"):
        made.apply(vectors, found)


def test_products_are_those_of_float32_within_autocast(device):
    a = torch.randn(64, 300, device=device)
    with torch.autocast(device, dtype=torch.bfloat16), products.full_products(device):
        found = a @ a.T
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), a.double() @ a.double().T, rtol=1e-4, atol=1e-4)
