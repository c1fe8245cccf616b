"""Addresses of indexes: a URL, and the name of the index in it as the part behind `#`. Passwords are never shown."""

from __future__ import annotations

import os
import re
from urllib.parse import quote, unquote

from ..errors import bad_value

MAX_NAME = 200
"""Characters of the name of an index."""
HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:]+\]|[\w.-]{2,}):\d{1,5}/?(#.*)?")
"""An address whose http:// is missing. A host of one letter is a drive of Windows."""
HARMLESS = """
    application_name channel_binding client_encoding connect_timeout dbname fallback_application_name gssdelegation
    gssencmode gsslib host hostaddr keepalives keepalives_count keepalives_idle keepalives_interval krbsrvname
    load_balance_hosts max_protocol_version min_protocol_version options port replication require_auth requirepeer
    requiressl service ssl sslcert sslcertmode sslcompression sslcrl sslcrldir sslkey sslmode sslnegotiation
    sslrootcert sslsni ssl_max_protocol_version ssl_min_protocol_version target_session_attrs tcp_user_timeout user
"""
"""Parameters of libpq that may be shown. All others are hidden: a later version may have more that are secret."""


def with_name(location: str, name: object) -> str:
    """Return the address of the index of this name at a URL."""
    if name is None:
        return location
    if "://" not in location:
        remedy = "leave it out: a folder holds one index, and so does memory"
        raise bad_value("name", name, meant_server(location) or remedy)
    if "#" in location:
        raise bad_value("name", name, "leave it out: the address names an index already, behind #")
    return f"{location}#{quote(checked_name(name), safe='')}"


def meant_server(location: str) -> str | None:
    """Return the remedy for a path where nothing is, and which looks like the address of a server; None for others."""
    if HOST_AND_PORT.fullmatch(location) is None or os.path.exists(location):
        return None
    return f"give http://{location} for an index on a server"


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

    What it does not know is taken for a secret, too.
    """
    scheme, mark, rest = address.partition("://")
    if not mark:
        return address
    ends = [at for at in (rest.find(c) for c in "/?#") if at >= 0]
    # A password with these characters in it has to be quoted; one that is not is hidden all the same, up to the last @.
    at = max(rest.rfind("@", 0, min(ends, default=len(rest))), rest.rfind("@") if ":" in rest.partition("@")[0] else -1)
    if at >= 0:
        user = rest[:at].partition(":")[0]
        rest = user + rest[at:] if user else rest[at + 1 :]
    place, behind, name = rest.partition("#")
    place, question, parameters = place.partition("?")
    known = HARMLESS.split()
    shown = [each for each in parameters.split("&") if "=" in each and unquote(each.partition("=")[0]) in known]
    return scheme + mark + place + (question + "&".join(shown)) * bool(shown) + behind + name
