"""Fits that are interrupted go on from their checkpoint, and end as if nothing had happened."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from labelled_shapes import shapes, small, torch
from sklearn.exceptions import NotFittedError

from slosh.data.progress import watched
from slosh.embed import SlicedWasserstein
from slosh.errors import DamagedError, FormatError, InputError
from slosh.learn import checkpoints, fitting, point_module, training


def interrupted(model, after, *given, **more):
    """Fit a model, and press Ctrl-C after so many epochs."""

    def watch(stage, done, total):
        if stage == "learn" and done == after:
            raise KeyboardInterrupt

    with watched(watch), pytest.raises(KeyboardInterrupt):
        model.fit(*given, **more)


CASES = {
    "head": {},
    "changed": {"augment": "auto"},
    "slices": {"learn_slices": True},
    "points": {"network": "points", "embedding": None, "n_slices": 8, "augment": "auto"},
    "contrastive": {"loss": "contrastive"},
}


@pytest.mark.parametrize("given", CASES.values(), ids=CASES)
def test_it_goes_on_with_the_same_bits(given, tmp_path):
    sets, labels = shapes(60)
    whole = small(epochs=6, **given).fit(sets, labels)
    model, path = small(epochs=6, **given), tmp_path / "checkpoint"
    interrupted(model, 3, sets, labels, checkpoint=path)
    with pytest.raises(NotFittedError):
        model.transform(sets)
    interrupted(model, 5, sets, labels, checkpoint=path)
    model.fit(sets, labels, checkpoint=path)
    assert np.array_equal(model.transform(sets), whole.transform(sets))
    assert np.array_equal(model.curves_, whole.curves_, equal_nan=True)
    assert model.best_epoch_ == whole.best_epoch_
    epochs = []
    with watched(lambda stage, done, total: epochs.append(done) if stage == "learn" else None):
        again = small(epochs=6, **given).fit(sets, labels, checkpoint=path)
    assert not set(epochs) - {0, model.n_epochs_}  # none is trained again
    assert np.array_equal(again.transform(sets), whole.transform(sets))
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoint"]


def test_a_network_with_all_options_goes_on_with_the_same_bits(tmp_path, monkeypatch):
    for module, name, value in [
        (point_module, "MIXED", 40),
        (training, "AVERAGED", 0.3),
        (training, "LAST_RATE", 0.1),
    ]:
        monkeypatch.setattr(module, name, value)
    given = {**CASES["points"], "augment": ("drop", "regions")}
    test_it_goes_on_with_the_same_bits(given, tmp_path)


def test_pairs_go_on_with_the_same_bits(tmp_path):
    sets, _ = shapes(60)
    pairs = [(i, i + 3, 1) for i in range(50)] + [(i, i + 1, 0) for i in range(40)]
    whole, model = small(epochs=5).fit(sets, pairs=pairs), small(epochs=5)
    interrupted(model, 2, sets, pairs=pairs, checkpoint=tmp_path / "checkpoint")
    model.fit(sets, pairs=pairs, checkpoint=tmp_path / "checkpoint")
    assert np.array_equal(model.transform(sets), whole.transform(sets))


def test_a_checkpoint_of_another_fit_is_refused(tmp_path):
    sets, labels = shapes(60)
    path = tmp_path / "checkpoint"
    interrupted(small(epochs=4), 1, sets, labels, checkpoint=path)
    content = path.read_bytes()
    moved = shapes(60, seed=1)[0]
    for model, given, wanted in [
        (small(epochs=5), sets, labels),
        (small(epochs=4, random_state=1), sets, labels),
        (small(epochs=4, embedding=SlicedWasserstein(8, 5)), sets, labels),
        (small(epochs=4), moved, labels),
        (small(epochs=4), sets, np.where(np.arange(60) == 5, 0, labels)),
    ]:
        with pytest.raises(InputError, match="other data or parameters") as told:
            model.fit(given, wanted, checkpoint=path)
        assert told.value.argument == "checkpoint"
    assert path.read_bytes() == content
    small(epochs=4, n_jobs=2).fit(sets, labels, checkpoint=path)


def test_a_file_that_is_no_checkpoint(tmp_path):
    sets, labels = shapes(30)
    path = tmp_path / "checkpoint"
    path.write_bytes(b"something of the user's")
    with pytest.raises(FormatError, match="not a file of the kind"):
        small(epochs=2).fit(sets, labels, checkpoint=path)
    path.unlink()
    interrupted(small(epochs=3), 1, sets, labels, checkpoint=path)
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedError):
        small(epochs=3).fit(sets, labels, checkpoint=path)


def test_a_refit_that_is_interrupted_leaves_what_was_fitted():
    sets, labels = shapes(40)
    model = small(epochs=3).fit(sets, labels)
    before = model.transform(sets)
    interrupted(model, 1, *shapes(40, 3))
    assert np.array_equal(model.transform(sets), before)
    assert model.n_features_in_ == 2


PROCESS = """
import functools, sys
import numpy as np, torch
from labelled_shapes import shapes, small
from slosh.data.progress import watched

kind, path, wanted = sys.argv[1:]

def moved(points, offsets, by=0.1, kinds=None):
    assert kinds is None or "first" in kinds
    return points + by * (len(offsets) in {4, 5, 300}) * (len("a") in {"a", "b", 1})

def closure(by):
    def other(points):
        return points * by
    return lambda points, offsets: other(points) + torch.tensor([0.1, 0.2])

class Changing:
    def __init__(self):
        self.by, self.also, self.random = np.arange(5000.0), self, np.random.default_rng(3)

    def __call__(self, points, offsets):
        return points * self.by[1]

    def method(self, points, offsets):
        return points + 1

made = {
    "function": lambda: moved,
    "partial": lambda: functools.partial(moved, by=0.5, kinds={"first", "second", "third"}),
    "closure": lambda: closure(torch.tensor(1.5)),
    "object": Changing,
    "method": lambda: Changing().method,
}[kind]()
seen = []

def watch(stage, done, total):
    if stage == "learn":
        seen.append(done)
        if wanted == "stop" and done == 2:
            raise KeyboardInterrupt

with watched(watch):
    try:
        small(epochs=4, augment=made).fit(*shapes(40), checkpoint=path)
    except KeyboardInterrupt:
        pass
print([done for done in seen if done][0])
"""


@pytest.mark.parametrize("kind", ["function", "partial", "closure", "object", "method"])
def test_changes_of_the_users_own_are_known_again_in_another_process(kind, tmp_path):
    for wanted, first in (("stop", "1"), ("go on", "2")):
        found = subprocess.run(
            [sys.executable, "-c", PROCESS, kind, str(tmp_path / "checkpoint"), wanted],
            capture_output=True,
            text=True,
            check=False,
            env={
                **os.environ,
                "PYTHONPATH": str(Path(__file__).parent),
                "PYTHONHASHSEED": "1" if wanted == "stop" else "2",
            },
        )
        assert (found.returncode, found.stdout.split()) == (0, [first]), found.stderr


def test_other_changes_of_the_users_own_are_told_apart(tmp_path):
    sets, labels = shapes(40)
    first, second = np.zeros(5000), np.zeros(5000)
    second[2500] = 1.0  # of which the text shows nothing

    def change(by):
        return lambda points, offsets: points + float(by.sum())

    interrupted(small(epochs=4, augment=change(first)), 1, sets, labels, checkpoint=tmp_path / "checkpoint")
    with pytest.raises(InputError, match="other data or parameters"):
        small(epochs=4, augment=change(second)).fit(sets, labels, checkpoint=tmp_path / "checkpoint")
    lock = threading.Lock()
    with pytest.raises(InputError, match=r"cannot tell whether .* is the same") as error:
        small(augment=lambda points, offsets: points if lock else None).fit(sets, labels, checkpoint=tmp_path / "other")
    assert error.value.argument == "checkpoint"


class Powers(torch.nn.Module):
    """Has a number beside its weights, an activation within a part, and a method that it calls."""

    def __init__(self, power=1.0, activation=torch.relu):
        super().__init__()
        self.power, self.part = power, Activated(activation)

    def forward(self, points, offsets):
        return self.changed(self.part(points))

    def changed(self, values):
        return values * self.power


class Mixin:
    pass


class Recurrent(torch.nn.LSTM, Mixin):
    """A layer of torch that holds what no other process knows again."""

    def __init__(self, power=1.0):
        super().__init__(2, 4)
        self.power = power

    def forward(self, points, offsets):
        return super().forward(points)[0] * self.power


class Activated(torch.nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.linear, self.activation = torch.nn.Linear(2, 4), activation

    def forward(self, values):
        return self.activation(self.linear(values))


class Shifted(Powers):
    def changed(self, values):
        return values + self.power


def test_modules_of_the_users_own_are_told_apart(tmp_path):
    sets, labels = shapes(40)
    path, given = tmp_path / "checkpoint", {"embedding": None, "n_slices": 8, "epochs": 2}

    def fit(kind, *arguments):
        torch.manual_seed(0)  # the weights are the same
        return small(network=kind(*arguments), **given).fit(sets, labels, checkpoint=path)

    first = fit(Powers)
    assert np.array_equal(fit(Powers).curves_, first.curves_, equal_nan=True)
    others = (Powers, (2.0,)), (Powers, (1.0, torch.cos)), (Shifted, ()), (Recurrent, ())
    for kind, arguments in others:
        with pytest.raises(InputError, match="other data or parameters"):
            fit(kind, *arguments)
    path.unlink()
    first = fit(Recurrent)
    assert np.array_equal(fit(Recurrent).curves_, first.curves_, equal_nan=True)
    with pytest.raises(InputError, match="other data or parameters"):
        fit(Recurrent, 2.0)


def test_a_checkpoint_is_not_written_more_often_than_it_has_to_be(tmp_path, monkeypatch):
    sets, labels = shapes(60)
    path, written, clock = tmp_path / "checkpoint", [], [0.0]
    usual = checkpoints.Checkpoint.write

    def write(self, state):
        written.append(len(state.history))
        usual(self, state)

    def watch(stage, done, total):
        if stage == "learn":
            clock[0] = 4.0 * done

    monkeypatch.setattr(checkpoints.Checkpoint, "write", write)
    monkeypatch.setattr(training, "monotonic", lambda: clock[0])
    with watched(watch):
        small(epochs=9).fit(sets, labels, checkpoint=path)
    assert written == [1, 4, 7, 9]
    written.clear()
    path.unlink()
    interrupted(small(epochs=9), 2, sets, labels, checkpoint=path)
    assert written == [1, 2]


@pytest.mark.parametrize("where", ["nofolder/checkpoint", "."])
def test_a_path_that_cannot_be_written_is_refused_before_anything_is_computed(where, tmp_path, monkeypatch):
    sets, labels = shapes(30)

    def computed(*given):
        raise AssertionError("it began to learn")

    monkeypatch.setattr(fitting, "_Head", computed)
    with pytest.raises(OSError, match=r"is not a folder|is a folder"):
        small(epochs=2).fit(sets, labels, checkpoint=tmp_path / where)
    assert not list(tmp_path.iterdir())
