"""Arrays of NumPy as tensors of torch."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..native.arrays import Array


def as_tensor(array: Array) -> Tensor:
    """Return a contiguous array as a tensor on the same memory, which must not be written to if the array is not."""
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of arrays that cannot be written to
        return torch.from_numpy(array)


def sent(array: Array, device: Any) -> Tensor:
    """Return an array as a tensor on a device."""
    return as_tensor(np.ascontiguousarray(array)).to(device)
