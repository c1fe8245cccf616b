"""The exceptions: their fields, words and bases, and that all of it survives a pickle."""

from __future__ import annotations

import builtins
import copy
import errno
import pickle
import re
import warnings
from pathlib import Path

import pytest

from slosh import errors
from slosh.errors import (
    AccessDenied,
    DamagedError,
    DeadlineExceeded,
    DeviceError,
    DeviceMemoryError,
    DuplicateId,
    FolderNotFound,
    FormatError,
    IndexClosed,
    IndexExists,
    IndexLocked,
    IndexNotFound,
    InputError,
    MissingExtra,
    NestedChange,
    NotAFile,
    PrecisionWarning,
    ReaderError,
    ReadOnlyIndex,
    ScaleWarning,
    ServerBusy,
    ServerLost,
    SloshError,
    SourceChanged,
    SourceNotFound,
    StorageError,
    UnknownId,
    UnknownOutcome,
    UnsupportedError,
    WorkCancelled,
    WorkerLost,
    WriteConflict,
    system_error,
)

EXAMPLES = [
    (InputError("set 3 is empty", "drop it", argument="sets", set=3, what="is empty"), ValueError),
    (ReaderError("a.csv: column 'x' is null", "fill it", location="a.csv", row=3, column="x", id="b"), ValueError),
    (SourceChanged("a.parquet has changed", "put it back", location="a.parquet"), ValueError),
    (WorkerLost("it died", "give it more memory", location="a.parquet", attempts=4), RuntimeError),
    (DuplicateId("'a' is there already", "update it", id="a"), ValueError),
    (UnknownId("no set has the id 'a'", id="a"), KeyError),
    (UnsupportedError("no certificate", feature_name="certify", argument="certify"), ValueError),
    (IndexClosed("the index is closed", "open it again"), ValueError),
    (ReadOnlyIndex("opened for reading", location="x.slosh"), ValueError),
    (FormatError("format 9", "use a newer slosh", location="x.slosh", found=9, supported=2), ValueError),
    (DamagedError("checksums differ", "verify()", location="x.slosh", ids=("a", "b")), ValueError),
    (StorageError("the disk is full", "make room", errno=errno.ENOSPC, location="x.slosh"), OSError),
    (SourceNotFound("there is no such file", errno=errno.ENOENT, location="x"), FileNotFoundError),
    (IndexLocked("open elsewhere", location="x.slosh", pid=12), OSError),
    (IndexExists("something is there", location="x.slosh"), FileExistsError),
    (IndexNotFound("there is no index", location="x.slosh"), FileNotFoundError),
    (FolderNotFound("there is no folder", "create it first", location="a/b"), FileNotFoundError),
    (NotAFile("it is a folder", location="a/b"), IsADirectoryError),
    (AccessDenied("not permitted", errno=errno.EACCES, location="x.slosh"), PermissionError),
    (ServerLost("gone", "try again", errno=errno.ECONNRESET, location="postgresql://host/db#x"), ConnectionError),
    (ServerBusy("too many requests", "wait", location="http://host#x", retry_after=2.0), OSError),
    (DeadlineExceeded("not answered in time", "ask for less", location="http://host#x"), TimeoutError),
    (WorkCancelled("the job was cancelled", "begin it again"), RuntimeError),
    (WriteConflict("another writer was faster", "try again", location="postgresql://host/db#x"), OSError),
    (UnknownOutcome("the disk failed", "open it again", errno=errno.EIO, location="x.slosh", ids=("a",)), OSError),
    (NestedChange("a change began within another one", "make it afterwards"), RuntimeError),
    (DeviceError("no GPU", "leave device out", device="cuda", reason="no GPU", argument="device"), RuntimeError),
    (DeviceMemoryError("it is full", "free some", device="cuda:1", reason="memory"), MemoryError),
    (
        MissingExtra("Arrow needs pyarrow", "pip install 'slosh[tables]'", package="pyarrow", extra="tables"),
        ImportError,
    ),
]
OF_OS = ("errno", "strerror", "filename")


def state(error):
    return error.args, vars(error), [getattr(error, name, None) for name in OF_OS], str(error), error.__notes__


def test_every_class_has_an_example():
    kinds = {kind for name in errors.__all__ if issubclass(kind := getattr(errors, name), SloshError)}
    assert kinds == {type(error) for error, _ in EXAMPLES} | {SloshError}


def test_the_table_of_the_documentation_is_complete():
    """Every class, the classes that it is also one of, and fields that it has; and every field of its own."""
    page = (Path(__file__).resolve().parents[1] / "docs" / "index.md").read_text()
    table = page[page.index("| class | is also a |") :].partition("\n\n")[0].splitlines()[2:]
    found = {}
    for line in table:
        name, bases, fields = (re.findall(r"`(\w+)`", cell) for cell in line.split("|")[1:4])
        found[name[0]] = kind = getattr(errors, name[0])
        for base in bases:
            assert issubclass(kind, getattr(errors, base, None) or getattr(builtins, base)), line
        own = {each for each in vars(kind) if not each.startswith("_")}
        assert own <= set(fields) <= set(dir(kind)), line
    assert set(found.values()) == {type(error) for error, _ in EXAMPLES}


@pytest.mark.parametrize(("error", "base"), EXAMPLES, ids=lambda x: type(x).__name__)
def test_bases_words_and_pickles(error, base):
    assert isinstance(error, SloshError)
    assert isinstance(error, base)
    assert error.problem in str(error)
    assert error.remedy in str(error)
    assert error.args == (error.problem, error.remedy)
    error.__notes__ = ["a note, as of add_note"]  # Python 3.10 has no add_note
    for again in (copy.copy(error), *(pickle.loads(pickle.dumps(error, p)) for p in range(2, 6))):
        assert type(again) is type(error)
        assert state(again) == state(error)


def test_str_joins_problem_and_remedy():
    assert str(InputError("set 3 is empty", "drop it")) == "set 3 is empty: drop it"
    assert str(UnknownId("no set has the id 'a'")) == "no set has the id 'a'"  # a KeyError shows a repr


def test_fields_have_defaults_and_no_other_names():
    error = InputError("wrong")
    assert (error.argument, error.set, error.element, error.feature, error.what) == ("", None, None, None, "")
    assert UnknownId("x").id == ""
    with pytest.raises(TypeError, match=r"InputError.*'elemnt'"):
        InputError("wrong", elemnt=3)


@pytest.mark.parametrize("kind", [PrecisionWarning, ScaleWarning])
def test_warnings_have_fields_too(kind):
    warning = kind("feature 3 is large", "divide it", 3)
    assert (warning.problem, warning.remedy, warning.feature) == ("feature 3 is large", "divide it", 3)
    assert str(warning) == str(pickle.loads(pickle.dumps(warning))) == "feature 3 is large: divide it"
    with pytest.warns(kind, match="^loud$"):
        warnings.warn("loud", kind, stacklevel=2)


def test_an_os_error_has_what_every_os_error_has():
    error = StorageError("the disk is full", "make room", errno.ENOSPC, location="x.slosh")
    assert (error.errno, error.strerror, error.filename) == (errno.ENOSPC, "the disk is full", "x.slosh")
    assert StorageError("lost").filename is None
    assert StorageError("lost").errno is None


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.EACCES, AccessDenied), (errno.EROFS, AccessDenied), (errno.ENOSPC, StorageError), (None, StorageError)],
)
def test_an_error_of_the_system_becomes_one_of_slosh(number, kind):
    error = system_error(OSError(number, "it failed") if number else OSError("it failed"), "a/b")
    assert type(error) is kind
    assert (error.errno, error.location) == (number, "a/b")
    assert "it failed" in error.problem
    assert error.remedy


def test_a_reader_error_escapes_what_it_quotes():
    error = ReaderError("a\n.csv: it has \x1b[31m in it", "remove that", location="a\n.csv")
    assert str(error) == "a\\n.csv: it has \\x1b[31m in it: remove that"
    assert error.location == "a\n.csv"
    assert str(ReaderError("caf\u00e9 \ufffd")) == "caf\u00e9 \\ufffd"


def test_a_warning_points_at_the_line_outside_of_slosh():
    inside = {"__name__": "slosh.inside", "warnings": warnings, "errors": errors}
    exec("def f():\n    warnings.warn('loud', UserWarning, stacklevel=errors.user_level())\ndef g():\n    f()", inside)
    with pytest.warns(UserWarning, match="loud") as seen:
        inside["g"]()
    assert seen[0].filename == __file__
