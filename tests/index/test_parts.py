"""Part search of an index: the promise, what is stored, and what an interrupted or damaged index does."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import replace

import numpy as np
import pytest

import slosh
from slosh import SetIndex, errors
from slosh.embed import PartField, SlicedWasserstein
from slosh.engines.spec import IndexSpec, make_spec
from slosh.index import part_recall, part_trial, parts


def clouds(n, seed=0):
    """Return sets of a few kinds, each somewhere else."""
    random = np.random.default_rng(seed)
    return [
        random.normal(size=(random.integers(6, 16), 2)) * random.uniform(0.2, 1, 2) + random.normal(size=2)
        for _ in range(n)
    ]


def small(**options):
    return {
        "embedding": SlicedWasserstein(4, 4, n_jobs=1),
        "parts": PartField(48, 16, n_jobs=1),
        "n_jobs": 1,
        **options,
    }


@pytest.fixture(scope="module")
def large():
    sets = clouds(1500)
    with SetIndex.create(None, 2, sample=sets[:300], **small(parts=PartField(256, 64))) as index:
        index.add(sets)
        yield index, sets


def test_the_stated_recall_is_kept(large):
    index, sets = large
    pieces = part_trial.halves(slosh.Sets.from_list(sets[:120]), np.random.RandomState(5))
    found, true = index.search(pieces, 10, match="part"), index.search(pieces, 10, match="part", certify=True)
    promised = found.stats.recall
    assert promised is not None
    assert 0.95 <= promised < 1
    recall = np.mean([len(set(a.ids) & set(b.ids)) / 10 for a, b in zip(found, true, strict=True)])
    assert recall >= promised - 0.02
    assert found.stats.full_distances.max() < len(sets) / 2
    assert index.search(pieces[:1], 10, match="part", recall=0.9).stats.recall >= 0.9
    # Nothing was measured for these.
    assert index.search(pieces[0], 3, match="part", where="@id != 5").stats.recall is None
    assert index.search(pieces[0], 3, match="part", coverage=0.5).stats.recall is None
    assert index.search(pieces[0], 3, match="contained").stats.recall is None
    assert index.search(pieces[0], 10, match="part", recall=0.999).stats.recall == 1.0


def test_what_was_measured_is_of_one_field_and_one_size():
    class View:
        """What `holding` looks at."""

        def __init__(self, field, n, settings):
            self.n, self.settings, self.next_id = n, settings, n
            self.spec = type("Spec", (), {"parts_fingerprint": field.fingerprint})

        def __len__(self):
            return self.n

    field, other = (PartField(8, random_state=seed).fit(clouds(30)) for seed in (0, 1))
    each = slosh.search.Calibration(10, 0.95, 0.0, 50, 0.97, 0.96, 120, 2000, n_added=2000)
    settings = {part_recall.SETTING: part_recall.pack([each], field.fingerprint)}
    assert part_recall.plan(View(field, 2500, settings), 10, 0.95) == part_recall.Plan(63, 0.96)
    assert part_recall.plan(View(field, 1500, settings), 10, 0.95) == part_recall.Plan(50, 0.96)
    assert part_recall.plan(View(field, 2500, settings), 11, 0.95) is None
    assert part_recall.plan(View(field, 2500, settings), 10, 0.96) is None
    assert part_recall.plan(View(field, 4500, settings), 10, 0.95) is None
    assert part_recall.plan(View(other, 2500, settings), 10, 0.95) is None
    for text in ("", "{}", "[1]", '{"field": 0, "measured": 3}', settings[part_recall.SETTING][:-9]):
        assert part_recall.plan(View(field, 2500, {part_recall.SETTING: text}), 10, 0.95) is None


def test_what_was_measured_lasts(tmp_path):
    sets = clouds(1100)
    with SetIndex.create(tmp_path / "a.slosh", 2, sample=sets[:200], **small()) as index:
        index.add(sets)
        measured = index.info()["parts"]["measured"]
        before = index.search(sets[0][:4], 5, match="part")
    assert measured
    with slosh.open(tmp_path / "a.slosh", read_only=True) as reader:
        assert reader.info()["parts"]["measured"] == measured
        after = reader.search(sets[0][:4], 5, match="part")
        assert (after.ids, after.stats.recall) == (before.ids, before.stats.recall)
        assert reader.info()["embedded_on_open"] == 0
        assert reader.info()["memory_bytes"]["features"] == 0


def version_of(path):
    with contextlib.closing(sqlite3.connect(path / "index.db")) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0]


def test_only_an_index_with_parts_has_the_newer_format(tmp_path):
    """An older slosh reads format 3, and refuses 4 with a sentence of its own."""
    sets = clouds(40)
    with SetIndex.create(tmp_path / "a.slosh", 2, n_jobs=1) as index:
        index.add(sets)
        assert (version_of(index.path), index.info()["format"]) == (3, 3)
        index.enable("parts", PartField(16))
        assert (version_of(index.path), index.info()["format"]) == (4, 4)
        index.compact()
    assert version_of(tmp_path / "a.slosh") == 4
    with slosh.open(tmp_path / "a.slosh") as index:
        assert index.search(sets[3][:2], 1, match="part").ids == ["3"]
    with SetIndex.create(tmp_path / "b.slosh", 2, sample=sets, **small()):
        assert version_of(tmp_path / "b.slosh") == 4


@pytest.mark.parametrize("place", ["memory", "folder"])
def test_an_interrupted_enable_changes_nothing(tmp_path, monkeypatch, place):
    sets = clouds(60)
    with SetIndex.create(tmp_path / "a.slosh" if place == "folder" else None, 2, n_jobs=1) as index:
        index.add(sets)
        before = index.search(sets[3], 5, recall=1.0)

        def interrupted(self, sets):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(PartField, "stored", interrupted)
            with pytest.raises(KeyboardInterrupt):
                index.enable("parts", PartField(16))
        assert index.info()["parts"] is None
        after = index.search(sets[3], 5, recall=1.0)
        assert (after.ids, after.distances.tolist()) == (before.ids, before.distances.tolist())
        with pytest.raises(errors.UnsupportedError):
            index.search(sets[3], match="part")
        index.add([sets[0] + 9], ids=["far"])
        index.enable("parts", PartField(16))
        assert index.search(sets[0][:3] + 9, 1, match="part").ids == ["far"]
        assert index.verify().ok


def test_a_damaged_field_is_in_no_answer(tmp_path):
    sets = clouds(80)
    path = tmp_path / "a.slosh"
    with SetIndex.create(path, 2, sample=sets, **small()) as index:
        index.add(sets)
        before = index.search(sets[5][:3], 4, match="part", certify=True)
    for name in ("field", "shares", "spread", "parts_vectors"):
        (file,) = (path / "cache").glob(f"{name}.*")
        content = bytearray(file.read_bytes())
        content[7] ^= 0xFF
        file.write_bytes(content)
        with slosh.open(path) as index:  # small: it is checked when it is opened, and made again
            assert "damaged" in index.info()["cache_rebuilt"]
            after = index.search(sets[5][:3], 4, match="part", certify=True)
            assert (after.ids, after.distances.tolist()) == (before.ids, before.distances.tolist())
            assert index.verify().ok


def test_a_stored_field_that_could_not_have_been_learnt_is_refused():
    spec = make_spec(2, parts=PartField(16, 8), sample=clouds(40), n_jobs=1)
    again = IndexSpec.unpack(spec.pack(), "here")
    assert np.array_equal(again.parts.anchors_, spec.parts.anchors_)
    assert again.parts.fingerprint == spec.parts.fingerprint
    wrong = {
        "anchors_": spec.parts.anchors_[:, :1],
        "directions_": spec.parts.directions_[:, 1:],
        "middle_": np.full(16, np.nan),
        "step_": 0.0,
        "longest_": float("inf"),
        "n_samples_": 0,
        "n_near": -3,
    }
    for name, value in wrong.items():
        bad = PartField(16, 8)
        vars(bad).update(vars(spec.parts))
        setattr(bad, name, value)
        with pytest.raises(errors.DamagedError):
            IndexSpec.unpack(replace(spec, parts=bad).pack(), "here")
    with pytest.raises(errors.DamagedError):
        IndexSpec.unpack(replace(spec, parts=spec.embedding).pack(), "here")


def test_sets_far_off_are_advised_about():
    sets = clouds(60)
    with SetIndex.create(None, 2, sample=sets, **small()) as index:
        index.add(sets)
        assert index.info()["retrain"] is None
        index.add([each + 500 for each in sets], ids=[f"far{i}" for i in range(60)])
        assert "retrain()" in index.info()["retrain"]
        assert index.search(sets[2][:3] + 500, 1, match="part", certify=True).ids == ["far2"]
        index.retrain()
        assert index.info()["retrain"] is None
        assert index.search(sets[2][:3] + 500, 1, match="part", certify=True).ids == ["far2"]


def test_an_own_set_that_the_filter_leaves_out_is_not_counted_twice():
    """With as many candidates as match, less one, an answer is not proved."""
    sets = clouds(31, seed=3)
    index = SetIndex.create(None, 2, sample=sets, **small(parts=PartField(2, 1, n_near=1)))
    index.add(sets, metadata=[{"kind": "a" if i < 30 else "b"} for i in range(31)])
    few = index.search(id="30", k=5, where={"kind": "a"}, match="part", depth=29)
    assert few.stats.recall is None
    assert index.search(id="30", k=5, where={"kind": "a"}, match="part", depth=30).stats.recall == 1.0
    assert index.search(id="29", k=5, where={"kind": "a"}, match="part", depth=29).stats.recall == 1.0


def test_fitting_again_what_was_given_changes_no_answer():
    sets, others = clouds(60), clouds(60, seed=9)
    field = PartField(16, 4, n_jobs=-1).fit(sets)
    index = SetIndex.create(None, 2, **small(parts=field))
    index.add(sets)
    before = index.search(others[0], 5, match="part", certify=True)
    field.fit([each + 7 for each in others])
    after = index.search(others[0], 5, match="part", certify=True)
    assert (after.ids, after.distances.tolist()) == (before.ids, before.distances.tolist())
    assert field.n_jobs == -1


def test_more_sets_than_were_measured_with_take_more_candidates():
    sets = clouds(1600)
    index = SetIndex.create(None, 2, sample=sets[:300], **small(parts=PartField(256, 64)))
    index.add(sets[:1100])
    before = index.search(sets[0][:4], 10, match="part").stats.full_distances[0]
    index.add(sets[1100:])
    after = index.search(sets[0][:4], 10, match="part").stats.full_distances[0]
    assert {each["n_rows"] for each in index.info()["parts"]["measured"]} == {1100}
    assert after == np.ceil(before * 1600 / 1100)


def test_another_field_is_measured_by_itself():
    sets = clouds(60)
    first = PartField(16, 4).fit(sets)
    same, other = PartField(16, 4).fit(sets), PartField(16, 4, n_near=1).fit(sets)
    assert first.fingerprint == same.fingerprint != other.fingerprint


def test_few_sets_that_match_are_answered_exactly(large):
    index, sets = large
    assert index.search(sets[0][:4], 3, match="part", where="@id < 2").stats.recall == 1.0


def test_maxsim_names_the_stored_set_that_is_too_long():
    sets = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in clouds(12)]
    sets[7] = sets[7] * 3
    index = SetIndex.create(None, 2, sample=sets, **small())
    index.add(sets, ids=[f"s{i}" for i in range(12)])
    with pytest.raises(errors.InputError, match=r"element 0 of the stored set 's7' has the length 3.*MaxSim") as told:
        index.search(sets[0], 12, match="part", rerank="maxsim")
    assert told.value.id == "s7"


def test_a_proof_has_no_recall_to_choose(large):
    index, sets = large
    with pytest.raises(errors.InputError, match="certify is exact"):
        index.search(sets[0], 3, match="part", certify=True, recall=0.5)


def test_short_vectors_are_found_by_lists_once_that_was_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "POOL_FACTOR", 1)  # so that few sets are many
    monkeypatch.setattr(part_trial, "MEASURED_RECALLS", (0.9,))
    sets = clouds(4200)  # enough for lists
    field = PartField(256, 64, n_jobs=1)
    with SetIndex.create(tmp_path / "a.slosh", 2, sample=sets[:300], **small(parts=field)) as index:
        index.add(sets)

        def scanned():
            found = index.search(sets[7][:4], 10, match="part", recall=0.9)
            assert found.stats.recall >= 0.9
            assert found.ids[0] == "7"
            return int(found.stats.scanned[0])  # an exact search goes over all of them twice

        pools = index.info()["parts"]["pools"]
        assert pools
        assert scanned() <= len(sets)
        index.compact()  # lists are learnt anew
        assert index.info()["parts"]["pools"]
        assert scanned() <= len(sets)
        pieces = part_trial.halves(slosh.Sets.from_list(sets[:100]), np.random.RandomState(5))
        found = index.search(pieces, 10, match="part", recall=0.9)
        true = index.search(pieces, 10, match="part", certify=True)
        recall = np.mean([len(set(a.ids) & set(b.ids)) / 10 for a, b in zip(found, true, strict=True)])
        assert recall >= found.stats.recall - 0.02


def test_candidates_in_many_dimensions_come_from_estimates():
    """No bound says anything there, and a search without a proof finds what a query was taken from all the same."""
    random = np.random.default_rng(0)
    sets = [random.normal(size=(6, 32)) for _ in range(1200)]
    field = PartField(256, 128, n_jobs=1)
    with SetIndex.create(None, 32, sample=sets[:300], **small(parts=field)) as index:
        index.add(sets[:1100])
        asked = [each[:3] + 0.1 * random.normal(size=(3, 32)) for each in sets[:40]]
        for options in ({}, {"coverage": 0.7}):
            found = index.search(asked, 1, match="part", depth=100, **options)
            assert np.mean([hits.ids == [str(i)] for i, hits in enumerate(found)]) > 0.9
        within = [np.concatenate([each, random.normal(size=(20, 32))]) for each in sets[:40]]
        found = index.search(within, 1, match="contained", depth=100)
        assert np.mean([hits.ids == [str(i)] for i, hits in enumerate(found)]) > 0.9
