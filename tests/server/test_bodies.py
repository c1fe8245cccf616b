"""Questions that are decoded together are those that each body gives alone; an error is of the body that is wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest

from builders import cloud_list
from slosh.errors import InputError
from slosh.server.bodies import Sent, Shape, check_json, decode_question, decode_questions
from slosh.server.problems import Refused
from slosh.server.request_types import SearchBody
from slosh.server.settings import Limits
from slosh.wire import JSON

SETS = [cloud.round(3).tolist() for cloud in cloud_list(4, seed=5)]
SHAPE, LIMITS = Shape(len(SETS[0][0]), None), Limits()
RIGHT = [
    {"queries": SETS[0]},
    {"queries": [[int(x) for x in SETS[1][0]]], "k": 3},
    {"queries": SETS[:2]},
    {"queries": SETS[2], "weights": [1.0] * len(SETS[2])},
    {"id": "s1"},
    {"queries": SETS[3], "where": {"kind": "chair"}},
]
WRONG = [{"queries": [[1.0]]}, {"queries": [[1e300] * SHAPE.dim]}, {"queries": []}, {"queries": [[]]}, {"k": 3}, 7]


def sent(body):
    return Sent(json.dumps(body).encode(), JSON, JSON, "")


def alone(body):
    try:
        return decode_question(sent(body), SearchBody, SHAPE, LIMITS)
    except InputError as error:
        return error


def assert_same(found, expected):
    assert type(found) is type(expected)
    if isinstance(found, InputError):
        assert str(found) == str(expected)
        return
    assert found._replace(sets=None) == expected._replace(sets=None)
    assert (found.sets is None) == (expected.sets is None)
    if found.sets is not None:
        assert np.array_equal(found.sets.points, expected.sets.points)
        assert np.array_equal(found.sets.offsets, expected.sets.offsets)
        assert np.array_equal(found.sets.weights, expected.sets.weights)


@pytest.mark.parametrize("bodies", [RIGHT, WRONG, [each for pair in zip(RIGHT, WRONG, strict=True) for each in pair]])
def test_questions_together_are_those_alone(bodies):
    found = decode_questions([sent(body) for body in bodies], SearchBody, SHAPE, LIMITS)
    assert len(found) == len(bodies)
    for each, body in zip(found, bodies, strict=True):
        assert_same(each, alone(body))


@pytest.mark.parametrize("texts", ["", '"', "\\", '\\"', 'a\\\\"', "[{,]}" * 50, '",[' * 50])
def test_values_of_json_are_counted_outside_of_texts(texts):
    body = sent({"queries": [[0.5, 1.5]] * 50, "where": {"kind": [texts, texts]}})
    count = 1 + 1 + 50 + 1 + 1 + 50 + 49 + 1 + 1  # objects and lists, then commas
    assert decode_question(body, SearchBody, SHAPE, Limits(json_numbers=count, nesting=8)).sets is not None
    with pytest.raises(Refused) as caught:
        decode_question(body, SearchBody, SHAPE, Limits(json_numbers=count - 1, nesting=8))
    assert caught.value.status == 413
    assert str(caught.value.error).startswith(
        f"the body has more than {count - 1} numbers and lists in JSON: send less"
    )


@pytest.mark.parametrize("part", [1, 2, 3, 7, 1 << 20])
def test_the_nesting_of_json_is_counted_outside_of_texts(monkeypatch, part):
    monkeypatch.setattr("slosh.server.bodies.PART_BYTES", part)
    for text in (b"", b"[[[[[[", b'\\"[[[[', b"]]]]", b'\\\\\\"[['):
        body = b'{"x": [[["' + text + b'"], ["' + text + b'"]]], "y": [{}, {}, {}]}'
        check_json(body, Limits(nesting=4))
        with pytest.raises(InputError, match="nested more than 3 deep"):
            check_json(body, Limits(nesting=3))


def test_a_body_near_the_limit_of_json():
    """Points of three numbers and more lists than numbers in one: all that may be sent is decoded."""
    shape, n = Shape(3, None), 50_000
    limits = Limits(json_numbers=4 * n + 1 + 1 - 1)
    body = sent({"queries": [[1.0, 2.0, 3.0]] * n})
    found = decode_question(body, SearchBody, shape, limits)
    assert found.sets.sizes.tolist() == [n]
    with pytest.raises(Refused):
        decode_question(sent({"queries": [[1.0, 2.0, 3.0]] * (n + 1)}), SearchBody, shape, limits)
