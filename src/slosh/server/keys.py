"""API keys: who may read, who may write, and which indexes.

A file of keys has one key a line: the key, `read` or `write`, and optionally the names of the indexes that it is for,
separated by commas. Lines that begin with # are comments. Keys are compared in constant time, by their digests.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import dataclass, replace

from ..errors import AccessDenied, InputError

SHORTEST = 16
"""Characters of a key, at least."""


@dataclass(frozen=True)
class Grant:
    """What a request may do: read, write, and in which indexes; None is all of them."""

    read: bool
    write: bool
    indexes: frozenset[str] | None = None
    key: str = ""
    """What the access log calls the key: the beginning of its SHA-256."""

    def allows(self, access: str, index: str | None) -> bool:
        """Return whether this is allowed; `index` is None for what is about no index."""
        if access == "none":
            return True
        named = index is None or self.indexes is None or index in self.indexes
        return named and (self.write if access == "write" else self.read)

    def limited(self, read_only: bool) -> Grant:
        """Return what is left of it on a server that only reads."""
        return replace(self, write=False) if read_only else self


EVERYTHING, NOTHING = Grant(True, True), Grant(False, False)


class Keys:
    """The keys of a server; without any, everything is allowed."""

    def __init__(self, grants: dict[bytes, Grant], read_only: bool = False) -> None:
        self._grants = {digest: grant.limited(read_only) for digest, grant in grants.items()}
        self._without = EVERYTHING.limited(read_only)

    def __bool__(self) -> bool:
        return bool(self._grants)

    def grant(self, key: str | None) -> Grant:
        """Return what the key of a request allows."""
        if not self._grants:
            return self._without
        asked = b"" if key is None else digest_of(key.strip())
        found = NOTHING
        for digest, grant in self._grants.items():  # all of them, so that the time says nothing
            if hmac.compare_digest(digest, asked):
                found = grant
        return found


def digest_of(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def read_keys(path: str | None, read_only: bool = False) -> Keys:
    """Return the keys of a file; none without one."""
    if path is None:
        return Keys({}, read_only)
    if os.name == "posix" and os.stat(path).st_mode & 0o077:
        raise AccessDenied(f"{path} can be read by others", f"run: chmod 600 {path}", location=path)
    grants: dict[bytes, Grant] = {}
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            words = line.split(None, 2)
            if not words or words[0].startswith("#"):
                continue
            place = f"{path}, line {number}"
            if len(words) < 2 or words[1] not in ("read", "write"):
                raise InputError(f"{place} is not a key", "write: KEY read|write [INDEX,INDEX...]", argument="keys")
            if len(words[0]) < SHORTEST:
                remedy = 'make one with: python -c "import secrets; print(secrets.token_urlsafe(32))"'
                raise InputError(f"{place}: the key has less than {SHORTEST} characters", remedy, argument="keys")
            names = frozenset(name.strip() for name in words[2].split(",")) - {""} if len(words) == 3 else None
            digest = digest_of(words[0])
            grants[digest] = Grant(True, words[1] == "write", names, digest.hex()[:8])
    if not grants:
        raise InputError(f"{path} has no key", "write one a line: KEY read|write [INDEX,INDEX...]", argument="keys")
    return Keys(grants, read_only)
