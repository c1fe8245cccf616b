"""How numbers are written for people, in messages and on the screen."""

from __future__ import annotations

CHARACTER_BYTES = 4
"""Bytes that a character takes in UTF-8, at most."""


def format_bytes(count: float) -> str:
    """Return a number of bytes in a fitting unit.

    >>> format_bytes(500), format_bytes(1536), format_bytes(3_000_000)
    ('500 bytes', '1.5 kB', '2.9 MB')
    """
    if count < 1024:
        return f"{count:.0f} bytes"
    for unit in ("kB", "MB", "GB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} TB"


def utf8_bytes(text: str) -> int:
    """Return how many bytes a text takes in UTF-8."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
