"""Errors and warnings of the library in the words of the command: options, not arguments; commands, not methods.

Each is worded from its class and its fields; no message is parsed.
"""

from __future__ import annotations

import errno

from .. import errors
from ..errors import SloshError

NO_SPACE = "free some space and run the command again; what was stored before is intact"
NO_PERMISSION = "use a place that you may read and write, or change its permissions"
NOT_WRITABLE = "it can be searched as it is; to change it, copy it to a folder that you may write to"
OTHER_CHECKPOINT = "remove it, or choose another name with -o"
EQUAL_IDS = "rename one, choose another --id-column, or give one folder that holds all the files"
USE_ORIGIN = "build the index with --origin auto, or with one number for each feature"

OPTIONS = {
    "label": "--label",
    "labels": "--label",
    "n_anchors": "--embedding",
    "n_points": "--points",
    "random_state": "--seed",
    "y": "--label",
    "n_components": "--components",
    "checkpoint": "",
    **{
        name: f"--{name.replace('_', '-')}"
        for name in (
            *("format", "id_column", "columns", "weights", "by", "obsm", "batch_points", "origin"),
            *("center", "align", "scale", "standardize", "max_points", "weighted", "embedding", "search"),
            *("k", "radius", "recall", "rerank", "certify", "where", "sample", "test_size"),
            *("match", "coverage", "depth", "network", "epochs", "device"),
        )
    },
}
"""What arguments of the library are called here."""

_REMEDIES: dict[type[Exception], str] = {
    errors.IndexLocked: "wait until that is done; searches need not wait",
    errors.IndexExists: "add to it with slosh add, or choose another name",
    errors.ReadOnlyIndex: NOT_WRITABLE,
    errors.WriteConflict: "run it again",
    errors.ServerLost: "see whether the server runs and takes connections, and run it again",
    errors.UnknownOutcome: "once the disk or the server is well, slosh show tells whether the sets are there",
    errors.DamagedError: "slosh verify tells more; restore the index from a backup",
    errors.DuplicateId: "slosh add replaces such sets with --update, and skips them with --skip-existing",
    errors.UnknownId: "slosh show lists the ids",
    errors.DeviceMemoryError: "free some of it, or run the command again without --device",
    errors.PrecisionWarning: USE_ORIGIN,
    errors.ScaleWarning: "if that is not intended, build the index with --standardize",
}
_NOT_PERMITTED = (errno.EROFS, errno.EACCES, errno.EPERM)
_REMEDIES_BY_ERRNO = {
    errno.ENOSPC: NO_SPACE,
    errno.EIO: "check whether the disk is failing",
    **dict.fromkeys(_NOT_PERMITTED, NOT_WRITABLE),
}
_REMEDIES_BY_REASON = {
    "torch without CUDA": "install a torch that was built for CUDA (pytorch.org says how), or leave --device out",
    "no GPU": "see whether nvidia-smi lists one, or leave --device out",
    "driver": "update the NVIDIA driver, or leave --device out",
    "no such number": "give the number of one of them, or leave --device out",
    "too old": "use a newer GPU, or leave --device out",
}
"""What to do about a GPU that cannot be used."""
_REMEDIES_BY_ARGUMENT = {
    "match": "give whole, part, contained or both; slosh enable INDEX parts stores what all but whole need",
    "coverage": "give a share above 0 and at most 1, with --match part or --match contained",
    "origin": USE_ORIGIN,
    "name": "write it behind the address, as in http://localhost:8080#shapes or postgresql://user@host/database#shapes",
    "weighted": "build the index with --weighted",
    "max_expansion": "give a larger --max-expansion if you trust the file",
    "n_anchors": "ask for fewer anchors, --embedding field:16 for example",
    "checkpoint": OTHER_CHECKPOINT,
    "standardize": "leave --standardize out, or build from files that have sets",
}


class UsageError(Exception):
    """The arguments do not go together; the message says what to give instead."""


class CommandError(Exception):
    """The command cannot do what was asked for; the message says why, and what to do."""


def error_message(error: BaseException) -> str:
    """Return what an error says, in the words of the command."""
    if isinstance(error, SloshError):
        return _sentence(_problem(error), _remedy(error))
    if isinstance(error, MemoryError):
        return _sentence("not enough memory", str(error))
    if isinstance(error, OSError) and error.strerror:
        refused = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        no_place = NO_PERMISSION if error.errno in _NOT_PERMITTED else ""
        return _sentence(refused, NO_SPACE if error.errno == errno.ENOSPC else no_place)
    said = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    if isinstance(error, CommandError | ValueError | KeyError | OSError | ImportError | RuntimeError):
        return said or type(error).__name__
    return f"{type(error).__name__}: {said} (an error of slosh itself: SLOSH_DEBUG=1 shows where)"


def warning_message(warning: Warning | str) -> str:
    """Return what a warning says on one line, in the words of the command."""
    return " ".join(_sentence(str(getattr(warning, "problem", warning)), _remedy_of_class(warning)).split())


def _remedy_of_class(raised: object) -> str:
    return next((remedy for kind, remedy in _REMEDIES.items() if isinstance(raised, kind)), "")


def _problem(error: SloshError) -> str:
    if not isinstance(error, errors.InputError):
        return error.problem
    return ": ".join(part for part in (OPTIONS.get(error.argument, ""), error.problem) if part)


def _remedy(error: SloshError) -> str:
    unknown = isinstance(error, errors.UnknownOutcome)
    local = "://" not in getattr(error, "location", "")
    if isinstance(error, errors.StorageError) and error.errno in _REMEDIES_BY_ERRNO and local and not unknown:
        return _REMEDIES_BY_ERRNO[error.errno]
    if isinstance(error, errors.FormatError):
        if error.found is None:
            return error.remedy or "give the folder of an index; slosh build makes one"
        if error.supported is not None and error.found < error.supported:
            return "slosh compact upgrades it"
        return "install the version of slosh that made it, or a newer one"
    if isinstance(error, errors.DeviceError) and error.reason in _REMEDIES_BY_REASON:
        return _REMEDIES_BY_REASON[error.reason]
    if isinstance(error, errors.DuplicateId) and error.argument != "ids":  # of files that were read, or of shards
        return error.remedy if error.argument else EQUAL_IDS
    if isinstance(error, errors.UnsupportedError) and error.feature_name == "device":
        return "leave --device out"
    if isinstance(error, errors.MissingExtra) and error.extra:
        return f'install it with: pip install "slosh[{error.extra}]"'
    if isinstance(error, errors.InputError) and error.argument in _REMEDIES_BY_ARGUMENT:
        return _REMEDIES_BY_ARGUMENT[error.argument]
    return _remedy_of_class(error) or error.remedy


def _sentence(problem: str, remedy: str) -> str:
    return f"{problem}: {remedy}" if remedy else problem
