"""The projections of a rotation by its formula, in float64, from the arrays that `get_state` returns."""

from __future__ import annotations

import numpy as np
from scipy.linalg import hadamard


def projections(state: dict[str, np.ndarray], X: np.ndarray) -> np.ndarray:
    """(n, n_bits): inner products with stored directions, or three Hadamard transforms with turns and signs between."""
    X = X.astype(np.float64)
    if "directions" in state:
        return X @ state["directions"].T.astype(np.float64)
    size = state["signs"].shape[2]
    H, low = hadamard(size).astype(np.float64), (size.bit_length() - 1) // 2
    swapped = np.arange(size).reshape(-1, 1 << low).T.ravel()  # upper and lower digits of the row numbers
    padded = np.zeros((size, len(X)))
    padded[: X.shape[1]] = X.T
    upper, lower = padded[: size // 2], padded[size // 2 :]
    out = []
    for (cos, sin), signs in zip(state["turns"].astype(np.float64)[..., None], state["signs"], strict=True):
        turned = (H @ np.concatenate([upper * cos + lower * sin, upper * sin - lower * cos]))[swapped]
        for sign in signs:
            turned = (H @ (turned * sign[:, None]))[swapped]
        out.append(turned[state["picked"][size * len(out) : size * (len(out) + 1)]])
    return np.concatenate(out).T
