"""The metadata of a set: its fields, its JSON, and what is refused."""

from __future__ import annotations

import datetime
import enum
import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings

from filter_strategies import METADATA
from oracle import plain
from slosh.where import as_json, fields_of


class Colour(str, enum.Enum):
    RED = "red"


class Size(enum.IntEnum):
    LARGE = 3


def test_lines():
    lines = fields_of(
        {
            "a": np.float32(0.5),
            "b": np.int16(3),
            "c": np.bool_(True),
            "d": np.str_("x"),
            "e": [1, None, "1", 1.0, True, [5], {"f": 6}, 2],
            "g": {"h": {"i": 1}, "j": None, "n": {}, "o": {"p": None}},
            "g.h.i": 1,
            "k": (1.5, "é"),
            "l": Colour.RED,
            "m": Size.LARGE,
            "q": [],
            "r": [None, [1], {"s": 2}],
            "s": {},
            "t": datetime.date(2024, 2, 29),
            "u": [pd.Timestamp("2024-02-29 12:00:00.000000001", tz="Europe/Paris"), np.datetime64("2024-02")],
        },
        "metadata",
    )
    assert lines == [
        ("a", 0.5), ("b", 3), ("c", True), ("d", "x"), ("e", 1), ("e", "1"), ("e", 2), ("g.h.i", 1), ("g.n", b""),
        ("g.o", b""), ("k", 1.5),
        ("k", "é"), ("l", "red"), ("m", 3), ("q", b""), ("r", b""), ("s", b""), ("t", "2024-02-29"),
        ("u", "2024-02-29T11:00:00+00:00"), ("u", "2024-02-01"),
    ]  # fmt: skip
    assert {type(value) for _, value in lines} == {float, int, bool, str, bytes}


@settings(max_examples=300)
@given(METADATA)
def test_json(metadata):
    lines = fields_of(metadata, "metadata")
    assert len(lines) == len(set(lines))
    text = as_json(metadata)
    assert json.loads(text) == plain(metadata)
    assert text == json.dumps(plain(metadata), ensure_ascii=False, separators=(",", ":"))
    text.encode()


def test_json_of_numpy():
    metadata = {
        "a": np.float32(0.5),
        "b": np.int16(3),
        "c": np.bool_(True),
        "d": np.str_("x"),
        "e": (Size.LARGE, Colour.RED),
    }
    assert as_json(metadata) == '{"a":0.5,"b":3,"c":true,"d":"x","e":[3,"red"]}'


HOLDS_ITSELF: list = []
HOLDS_ITSELF.append(HOLDS_ITSELF)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ([1], "set 3 is a list: give a dict with strings as keys"),
        (None, "set 3 is None"),
        ({1: 2}, "set 3: the key 1 is an int: keys are strings, so pass str(key)"),
        ({"x": {2: 3}}, "set 3: the key 2 is an int"),
        ({"x": math.nan}, "set 3: key 'x' is nan: give a string, a finite number"),
        ({"x": -math.inf}, "set 3: key 'x' is -inf"),
        ({"x": np.float32("nan")}, "set 3: key 'x' is nan"),
        ({"x": b"abc"}, "set 3: key 'x' is a bytes"),
        ({"x": np.zeros(2)}, "set 3: key 'x' is a ndarray: give a string, a finite number of at most 64 bits, true or "
                             "false, or a date, e.g. by x.tolist()"),
        ({"x": np.array(1)}, "set 3: key 'x' is a ndarray"),
        ({"x": np.datetime64("NaT")}, "set 3: key 'x' is a datetime64"),
        ({"x": pd.NaT}, "set 3: key 'x' is a NaTType"),
        ({"x": np.datetime64("20000-01-01")}, "set 3: key 'x' is a datetime64"),
        ({"x": datetime.time(12)}, "set 3: key 'x' is a time"),
        ({"x": 1j}, "set 3: key 'x' is a complex"),
        ({"x": {1, 2}}, "set 3: key 'x' is a set"),
        ({"x": 1 << 63}, "set 3: key 'x' is a whole number beyond 64 bits"),
        ({"x": -(1 << 63) - 1}, "beyond 64 bits"),
        ({"x": np.uint64(1 << 63)}, "beyond 64 bits"),
        ({"x": "a\udc80"}, "set 3: key 'x' has half of a surrogate pair at character 1"),
        ({"\udc80": 1}, "set 3: the key '\\udc80' has half of a surrogate pair at character 0"),
        ({"x": [1, "\udc80"]}, "set 3: key 'x', item 1, has half"),
        ({"x": [1, math.nan]}, "set 3: key 'x', item 1, is nan"),
        ({"x": [[math.nan]]}, "set 3: key 'x', item 0, is nan"),
        ({"x": {"y": [{"z": math.inf}]}}, "set 3: key 'x.y.z' is inf"),
        ({"x": HOLDS_ITSELF}, "nested more than 100 deep, or holds itself"),
    ],
)  # fmt: skip
def test_metadata_is_checked(metadata, words):
    with pytest.raises(ValueError, match=r"^set 3") as error:
        fields_of(metadata, "set 3")
    assert words in str(error.value)
