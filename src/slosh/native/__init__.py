"""The compiled kernels (C++) and their bindings, each with a NumPy twin that is the reference and the fallback."""

from . import kernel

__all__ = ["kernel"]
