"""Addresses of indexes: a URL, and the name of the index in it as the part behind `#`. Passwords are never shown."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from ..errors import bad_value

MAX_NAME = 200
"""Characters of the name of an index."""
SECRET = re.compile(r"(?i)([?&])((?:ssl)?password|passfile)=[^&#]*")


def with_name(location: str, name: object) -> str:
    """Return the address of the index of this name at a URL."""
    if name is None:
        return location
    if "://" not in location:
        raise bad_value("name", name, "leave it out: a folder holds one index, and so does memory")
    if "#" in location:
        raise bad_value("name", name, "leave it out: the address names an index already, behind #")
    return f"{location}#{quote(checked_name(name), safe='')}"


def split_name(address: str) -> tuple[str, str | None]:
    """Return the URL and the name of the index; None where the address has no name."""
    url, mark, name = address.partition("#")
    return url, checked_name(unquote(name)) if mark else None


def checked_name(name: object) -> str:
    """Return the name of an index; refuse what is none."""
    if not isinstance(name, str) or not name or len(name) > MAX_NAME or not name.isprintable():
        raise bad_value("name", name, f"give 1 to {MAX_NAME} characters that can be printed")
    return name


def without_password(address: str) -> str:
    """Return an address as it may be shown and logged.

    >>> without_password("postgresql://ann:secret@host/db?password=x&port=1#shapes")
    'postgresql://ann@host/db?port=1#shapes'
    """
    scheme, mark, rest = address.partition("://")
    if not mark:
        return address
    ends = [at for at in (rest.find(c) for c in "/?#") if at >= 0]
    # A password with these characters in it has to be quoted; one that is not is hidden all the same, up to the last @.
    at = max(rest.rfind("@", 0, min(ends, default=len(rest))), rest.rfind("@") if ":" in rest.partition("@")[0] else -1)
    if at >= 0:
        rest = rest[:at].partition(":")[0] + rest[at:]
    rest = SECRET.sub(r"\1", rest).replace("?&", "?").replace("&&", "&")
    return scheme + mark + re.sub(r"[?&](?=#|$)", "", rest)
