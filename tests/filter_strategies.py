"""Random metadata and filters for hypothesis."""

from __future__ import annotations

import datetime

from hypothesis import strategies as st

KEYS = st.sampled_from(["a", "b", "a.b", "and", "x y", "", "7", "é", "a/", "a-", "a\0", "@id"])
NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.sampled_from(
        [0.5, -0.0, 2.0, 1e300, 1 << 53, (1 << 53) + 1, 2.0**53, (1 << 63) - 1, 2.0**63, -(1 << 63), 5e-324]
    ),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
)
STRINGS = st.one_of(
    st.sampled_from(["", "a", "b", "and", "Null", "7", "1e5", 'q"u', "it's", "\0", "a\0", "\uffff", "\U00010000"]),
    st.text(max_size=4),
)
ZONES = st.sampled_from([None, datetime.timezone.utc, datetime.timezone(datetime.timedelta(hours=-9, minutes=-30))])
DAY, NOON = datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 12)
DATES = st.one_of(
    st.sampled_from([DAY, NOON, NOON.replace(microsecond=1), "2024-02-29", "2024", "2024-02-29T12:00:00+00:00"]),
    st.dates(),
    st.datetimes(datetime.datetime(2, 1, 1), datetime.datetime(9998, 1, 1), timezones=ZONES),
)
VALUES = st.one_of(NUMBERS, STRINGS, DATES)
LISTS = st.lists(
    st.one_of(VALUES, st.none(), st.lists(VALUES, max_size=2), st.dictionaries(KEYS, VALUES, max_size=1)), max_size=4
)
METADATA = st.dictionaries(
    KEYS,
    st.one_of(
        VALUES,
        st.none(),
        LISTS,
        st.recursive(
            st.one_of(VALUES, st.none(), LISTS),
            lambda inner: st.dictionaries(KEYS, inner, max_size=2),
            max_leaves=4,
        ),
    ),
    max_size=5,
)
TEXT = st.one_of(STRINGS, DATES)
PREFIXES = st.one_of(TEXT.filter(bool), st.sampled_from(["2024-02", "\ud7ff", "\U0010ffff", "a\U0010ffff"]))
SIDES = ["<", "<=", ">", ">="]
BOUNDS = st.one_of(
    st.dictionaries(st.sampled_from(SIDES), NUMBERS, min_size=1, max_size=3),
    st.fixed_dictionaries({}, optional={**dict.fromkeys(SIDES, TEXT), "prefix": PREFIXES}).filter(bool),
)
ASKED = st.one_of(
    VALUES,
    st.none(),
    st.lists(VALUES, max_size=4),
    BOUNDS,
    st.fixed_dictionaries({"exists": st.booleans()}),
    st.fixed_dictionaries({}, optional={"=": VALUES, "!=": VALUES, "exists": st.booleans()}).filter(bool),
    st.fixed_dictionaries({"not in": st.lists(VALUES, max_size=3)}),
)
FIELDS = st.sampled_from(["a", "b", "a.b", "x y", "", "7", "é", "a.a", "a.", "é.b"])
IDS = st.one_of(st.integers(0, 9), st.sampled_from(["0", "1", "3", "a", "é"]))
BY_ID = st.one_of(
    IDS,
    st.none(),
    st.lists(IDS, max_size=4),
    st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys([*SIDES, "=", "!="], IDS),
            "prefix": IDS,
            "not in": st.lists(IDS),
            "exists": st.booleans(),
        },
    ).filter(bool),
)
FILTERS = st.recursive(
    st.one_of(
        st.dictionaries(FIELDS, ASKED, max_size=3),
        st.builds(lambda fields, by_id: {**fields, "@id": by_id}, st.dictionaries(FIELDS, ASKED, max_size=1), BY_ID),
    ),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"and": st.lists(inner, max_size=3)}),
        st.fixed_dictionaries({"or": st.lists(inner, max_size=3)}),
        st.fixed_dictionaries({"not": inner}),
    ),
    max_leaves=6,
)
