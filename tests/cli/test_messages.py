"""What is wrong is said in the words of the command."""

from __future__ import annotations

import errno
import shlex

import numpy as np
import pytest

import slosh
from slosh import errors
from slosh.cli import messages


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("search clouds.slosh nothing.npy", 1, "neither an id"),
        ("search nothing.slosh query.npy", 1, "slosh build"),
        ("search clouds query.npy", 1, "index of slosh"),
        ("search query.npy query.npy", 1, "index of slosh"),
        ("search solid.slosh query.npy", 1, "2 features, those of the index have 3"),
        ("search clouds.slosh query.npy -k 0", 2, "-k"),
        ("search clouds.slosh query.npy -k many", 2, "-k"),
        ("search clouds.slosh query.npy --recall 2", 2, "recall"),
        ("search clouds.slosh query.npy --recall 0", 2, "more than 0"),
        ("tune clouds.slosh --recall 0", 2, "more than 0"),
        ("build new.slosh query.npy --recall 0", 2, "more than 0"),
        ("search clouds.slosh query.npy --depth 3", 2, "give --rerank"),
        ("search clouds.slosh query.npy --radius -1", 2, "radius"),
        ("search clouds.slosh query.npy --radius 1 -k 3", 2, "leave -k"),
        ("search clouds.slosh query.npy --rerank nonsense", 2, "chamfer"),
        ("search clouds.slosh query.npy --rerank chamfer --certify", 2, "leave --rerank"),
        (
            "search clouds.slosh query.npy --rerank hausdorff --certify",
            1,
            "Hausdorff distance, and this index embeds by",
        ),
        ("search clouds.slosh query.npy --radius 1 --rerank hausdorff", 2, "leave -k, --offset and --rerank"),
        ("search clouds.slosh query.npy --certify --recall .5", 1, "recall"),
        ("search clouds.slosh query.npy --where 'folder ='", 2, "--where, character"),
        ("search clouds.slosh", 2, "QUERY"),
        ("show clouds.slosh nope", 1, "no set with the id 'nope'"),
        ("show clouds.slosh nope --where a=1", 2, "leave the ids out"),
        ("explain clouds.slosh query.npy nope", 1, "nope"),
        ("remove nothing.slosh a", 1, "there is no index nothing.slosh"),
        (
            "info localhost:9101#x",
            1,
            "there is no index localhost:9101#x: give http://localhost:9101#x for an index on",
        ),
        ("update clouds.slosh --meta a=1", 2, "give ids"),
        ("update clouds.slosh thin/0000.npy", 2, "give --meta"),
        ("update clouds.slosh nope --meta a=1", 1, "no set with the id 'nope'"),
        ("info mysql://host/name", 1, "'mysql://host/name'"),
        ("build mysql://host/name query.npy", 1, "'mysql://host/name'"),
        ("copy clouds.slosh mysql://host/name", 1, "'mysql://host/name'"),
        ("export clouds.slosh clouds.csv", 2, "name it clouds.parquet"),
        ("export clouds.slosh no/such/place.parquet", 1, "folder"),
        ("build clouds.slosh clouds", 1, "slosh add clouds.slosh"),
        ("build clouds clouds", 1, "is not an index"),
        ("build new.slosh nothing", 1, "no such file"),
        ("build new.slosh query.npy --format nonsense", 1, "--format"),
        ("build no/such/new.slosh query.npy", 1, "it first"),
        ("build new.slosh query.npy --embedding nonsense", 2, "wasserstein"),
        ("build new.slosh query.npy --align nonsense", 1, "--align: align='nonsense'"),
        ("build new.slosh query.npy --embedding gem:x", 2, "gem:2"),
        ("build new.slosh query.npy --embedding cov:2", 2, "gem:2"),
        ("build new.slosh query.npy --embedding field:0", 2, "whole"),
        (
            "build new.slosh query.npy --embedding field",
            1,
            "these sets have 30: ask for fewer anchors, --embedding field:",
        ),
        ("build new.slosh query.npy --embedding cov --slices 3", 2, "--slices"),
        ("build new.slosh query.npy --embedding cov --quantiles 3", 2, "--quantiles"),
        ("build new.slosh query.npy --search nonsense", 2, "ladder"),
        ("build new.slosh query.npy --scale nonsense", 1, "unit"),
        ("build new.slosh query.npy --origin a,b", 2, "--origin"),
        ("build new.slosh query.npy --origin 1,2,3", 1, "origin"),
        ("build new.slosh query.npy --columns ,", 2, "--columns"),
        ("build new.slosh query.npy --meta year", 2, "KEY=VALUE"),
        ("build new.slosh", 2, "SOURCE"),
        ("build new.slosh clouds solid", 1, "features"),
        ("bogus", 2, "bogus"),
        ("--bogus", 2, "bogus"),
    ],
)
def test_what_is_wrong_is_said(slosh_, built, arguments, code, said):
    done, out, err = slosh_(*shlex.split(arguments))
    assert (done, out) == (code, ""), err
    assert said in err
    assert "Traceback" not in err
    assert err.startswith("slosh")
    assert not (built / "new.slosh").exists()


def test_a_file_with_nan(slosh_, tmp_path):
    np.save(tmp_path / "nan.npy", [[0.0, np.nan]])
    for arguments in (
        ["build", tmp_path / "a", tmp_path / "nan.npy"],
        ["search", "clouds.slosh", tmp_path / "nan.npy"],
    ):
        code, out, err = slosh_(*arguments)
        assert (code, out) == (1, "")
        assert "nan.npy" in err
        assert "finite" in err
    assert not (tmp_path / "a").exists()


def test_an_index_that_another_has_open(slosh_, copied):
    with slosh.open(copied):
        code, _, err = slosh_("remove", copied, "thin/0000.npy")
        assert code == 1
        assert "wait until that is done" in err
        assert slosh_("search", copied, "thin/0000.npy")[0] == 0


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            errors.IndexLocked("a.slosh is open for writing", "close it", location="a", pid=7),
            "a.slosh is open for writing: wait until that is done; searches need not wait",
        ),
        (
            errors.IndexExists("a exists", "open it", location="a"),
            "a exists: add to it with slosh add, or choose another name",
        ),
        (errors.ReadOnlyIndex("a is read-only", "x", location="a"), f"a is read-only: {messages.NOT_WRITABLE}"),
        (
            errors.DamagedError("a is damaged", "call verify()", location="a"),
            "a is damaged: slosh verify tells more; restore the index from a backup",
        ),
        (
            errors.DuplicateId("id 'a' exists", "pass update=True", argument="ids", id="a"),
            "id 'a' exists: slosh add replaces such sets with --update, and skips them with --skip-existing",
        ),
        (
            errors.DuplicateId("the id 'a' occurs in x and in y", "give another id_column", id="a"),
            f"the id 'a' occurs in x and in y: {messages.EQUAL_IDS}",
        ),
        (
            errors.DuplicateId("two shards have the id 'a'", "remove one", argument="folder", id="a"),
            "two shards have the id 'a': remove one",
        ),
        (
            errors.UnknownId("there is no set with the id 'a'", "x", id="a"),
            "there is no set with the id 'a': slosh show lists the ids",
        ),
        (
            errors.FormatError("a is no index of slosh", location="a"),
            "a is no index of slosh: give the folder of an index; slosh build makes one",
        ),
        (
            errors.FormatError("a/lock is not a plain file", "remove it", location="a"),
            "a/lock is not a plain file: remove it",
        ),
        (
            errors.FormatError("a has format 9", "x", location="a", found=9, supported=2),
            "a has format 9: install the version of slosh that made it, or a newer one",
        ),
        (
            errors.MissingExtra("needs laspy", "x", package="laspy", extra="files"),
            'needs laspy: install it with: pip install "slosh[files]"',
        ),
        (
            errors.MissingExtra("needs pandas", "pip install pandas", package="pandas"),
            "needs pandas: pip install pandas",
        ),
        (errors.StorageError("a: no room", "x", errno=errno.ENOSPC, location="a"), f"a: no room: {messages.NO_SPACE}"),
        (errors.StorageError("a", "x", errno=errno.EROFS, location="a"), f"a: {messages.NOT_WRITABLE}"),
        (errors.StorageError("odd", "do this", location="a"), "odd: do this"),
        (
            errors.InputError("'x' is no column", "there are y, z", argument="id_column"),
            "--id-column: 'x' is no column: there are y, z",
        ),
        (errors.InputError("-1 is no seed", argument="random_state"), "--seed: -1 is no seed"),
        (
            errors.InputError("the origin has 2 numbers", "pass 3", argument="origin"),
            f"--origin: the origin has 2 numbers: {messages.USE_ORIGIN}",
        ),
        (errors.InputError("set 3 is not finite", "drop it", set=3), "set 3 is not finite: drop it"),
        (KeyError("there is no set"), "there is no set"),
        (MemoryError(), "not enough memory"),
        (MemoryError("1 TB"), "not enough memory: 1 TB"),
        (OSError(errno.ENOSPC, "No space left on device"), f"No space left on device: {messages.NO_SPACE}"),
        (
            PermissionError(errno.EACCES, "Permission denied", "x.npy"),
            f"x.npy: Permission denied: {messages.NO_PERMISSION}",
        ),
        (OSError(errno.ENOTDIR, "Not a directory", "x"), "x: Not a directory"),
        (ValueError(), "ValueError"),
    ],
)
def test_errors_are_worded_by_class_and_fields(error, said):
    assert messages.error_message(error) == said


def test_errors_of_slosh_itself_say_how_to_see_more():
    assert "SLOSH_DEBUG" in messages.error_message(ZeroDivisionError("division"))


def test_warnings_are_worded_by_class():
    warning = errors.PrecisionWarning("the values lie\n  far from zero")
    assert messages.warning_message(warning) == f"the values lie far from zero: {messages.USE_ORIGIN}"
    assert messages.warning_message(errors.ScaleWarning("one feature dominates")).endswith("--standardize")
    assert messages.warning_message(UserWarning("as it is")) == "as it is"
