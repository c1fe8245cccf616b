"""Random metadata and filters for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

KEYS = st.sampled_from(["a", "b", "a.b", "and", "x y", "", "7", "é", "a/", "a-", "a\0"])
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
VALUES = st.one_of(NUMBERS, STRINGS)
# A list has at least one item that counts: whether an empty one exists is not part of this.
LISTS = st.tuples(
    VALUES, st.lists(st.one_of(VALUES, st.none(), st.lists(VALUES, min_size=1, max_size=2)), max_size=3)
).map(lambda both: [both[0], *both[1]])
METADATA = st.dictionaries(
    KEYS,
    st.one_of(
        VALUES,
        st.none(),
        LISTS,
        st.recursive(
            st.one_of(VALUES, st.none(), LISTS),
            lambda inner: st.dictionaries(KEYS, inner, min_size=1, max_size=2),
            max_leaves=4,
        ),
    ),
    max_size=5,
)
BOUNDS = st.one_of(
    *(
        st.dictionaries(st.sampled_from(["<", "<=", ">", ">="]), kind, min_size=1, max_size=3)
        for kind in (NUMBERS, STRINGS)
    )
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
FILTERS = st.recursive(
    st.dictionaries(FIELDS, ASKED, max_size=3),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"and": st.lists(inner, max_size=3)}),
        st.fixed_dictionaries({"or": st.lists(inner, max_size=3)}),
        st.fixed_dictionaries({"not": inner}),
    ),
    max_leaves=6,
)
