"""Sliced-Wasserstein layers and losses for PyTorch. It needs the extra `torch`.

`SlicedWassersteinPool` turns batches of sets into the vectors of `slosh.embed.SlicedWasserstein`, and
`sliced_wasserstein` compares two batches; both have gradients. A name, and torch with it, is imported when it is first
used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .loss import sliced_wasserstein
    from .pool import SlicedWassersteinPool

_HOMES = {"SlicedWassersteinPool": ".pool", "sliced_wasserstein": ".loss"}
__all__ = ["SlicedWassersteinPool", "sliced_wasserstein"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a name when it is first used."""
        from importlib import import_module

        from ..errors import import_extra

        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import_extra("torch", f"slosh.torch.{name}", "torch")
        globals()[name] = found = getattr(import_module(_HOMES[name], __name__), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
