"""Work on many machines, by Ray. A name is imported when it is first used, as in `slosh` itself."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .serving import serve

__all__ = ["serve"]

_HOMES = {"serve": ".serving"}

if not TYPE_CHECKING:  # a type checker that saw it would take any name for known

    def __getattr__(name: str) -> object:
        """Import a name when it is first used."""
        from importlib import import_module

        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(_HOMES[name], __name__), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
