"""What travels: messages come out as they went in, errors are raised as the same class with the same fields."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import clouds
from slosh import errors
from slosh.wire import error_of, pack, pack_sets, problem_of, unpack, unpack_sets
from test_errors import EXAMPLES

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), PLAIN))
def test_arguments_come_out_as_they_went_in(arguments):
    assert unpack(pack(arguments)).arguments == arguments


def test_long_arguments():
    """The head of safetensors has 100 MB at most; the arguments may be longer."""
    arguments, seen = {"ids": ["ä" * 1000] * 60_000}, []
    body = pack(arguments, {"sizes": np.arange(3)})
    assert len(body) > 110_000_000
    found = unpack(body, seen.append)
    assert found.arguments == arguments
    assert list(found.arrays) == ["sizes"]
    assert [len(text) > 1000 for text in seen] == [False, True]  # what is checked is all that is parsed


@pytest.mark.parametrize("weighted", [False, True])
def test_sets_come_out_as_they_went_in(weighted):
    sets, origin = clouds(7, dim=3, weighted=weighted), np.array([1.0, 2.0, 3.0])
    again = unpack_sets("x", unpack(pack({}, pack_sets("x", sets))).arrays, origin)
    assert np.array_equal(again.points, sets.points)
    assert np.array_equal(again.offsets, sets.offsets)
    assert np.array_equal(again.origin, origin)
    assert (again.weights is None) == (sets.weights is None)
    assert again.weights is None or np.array_equal(again.weights, sets.weights)
    assert unpack_sets("y", {}, None) is None


@given(st.binary(max_size=200), st.integers(0, 400))
def test_other_bytes_are_refused(noise, at):
    """Whatever they are, the error is one of input; or they are a message all the same."""
    good = pack({"k": 3}, {"a": np.arange(4)})
    for body in (noise, good[: at % len(good)], good[: at % len(good)] + noise):
        with contextlib.suppress(errors.InputError):
            unpack(body)


@pytest.mark.parametrize("error", [each for each, _ in EXAMPLES], ids=lambda error: type(error).__name__)
def test_errors_are_raised_as_the_same_class(error):
    problem = json.loads(json.dumps(problem_of(error)))
    again = error_of(problem, "http://host#x")
    assert type(again) is type(error)
    assert (again.problem, again.remedy, str(again)) == (error.problem, error.remedy, str(error))
    for name, value in vars(error).items():
        if name != "__notes__":
            assert getattr(again, name) == value, name
    assert getattr(again, "errno", None) == getattr(error, "errno", None)
    assert 400 <= problem["status"] < 600


def test_what_is_not_of_slosh_says_nothing():
    problem = problem_of(RuntimeError("the password is 1234"))
    assert "1234" not in json.dumps(problem)
    assert problem["status"] == 500
    assert problem_of(MemoryError())["status"] == 503
    for odd in ({}, {"class": "SystemExit", "problem": "x"}, {"class": "InputError"}, {"detail": "502 of a proxy"}):
        assert type(error_of(odd, "http://host", 502)) is errors.StorageError
    known = error_of({"class": "InputError", "problem": "x", "fields": {"__class__": 1, "nothing": 2}}, "here")
    assert type(known) is errors.InputError
