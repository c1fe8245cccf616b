"""Dates and times as text that sorts by time: in metadata, and in filters over them."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np

DAYS = ("Y", "M", "W", "D")
"""Units of numpy.datetime64 that are whole days."""


def date_text(value: Any) -> str | None:
    """Return a date or a time as text of ISO 8601 that sorts by time; None if the value is neither, or is not a time.

    A time is converted to UTC, and is in UTC already if it has no time zone. The text ends with the offset, "+00:00",
    since that sorts before the fraction of a second where there is one. Less than a microsecond is cut off.

    >>> date_text(datetime.date(2024, 5, 31)), date_text(np.datetime64("2024-05-31T12:30"))
    ('2024-05-31', '2024-05-31T12:30:00+00:00')
    """
    if isinstance(value, np.datetime64):
        unit = "D" if np.datetime_data(value.dtype)[0] in DAYS else "us"
        value = value.astype(f"datetime64[{unit}]").item()
    if not isinstance(value, datetime.date) or value != value:  # pandas' NaT is a time
        return None
    if not isinstance(value, datetime.datetime):
        return value.isoformat()
    utc = datetime.timezone.utc
    try:
        return datetime.datetime.isoformat(value.astimezone(utc) if value.tzinfo else value.replace(tzinfo=utc))
    except OverflowError:  # before the year 1 or after 9999 in UTC
        return None
