"""Collections in shards within one process: merging, promises, removals, new shards, and what is refused."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import slosh
from builders import cloud_list, contents, make_index, plain_answer, small_embedding
from shard_builders import add_shard, new_collection, serve_here
from slosh import errors
from slosh.embed import Whitened
from slosh.engines.base import Candidates
from slosh.engines.sharded.engine import ShardedEngine
from slosh.engines.sharded.local import LocalShards
from slosh.engines.sharded.merging import merge
from slosh.engines.sharded.removals import Removals
from slosh.engines.sharded.view import Lost
from slosh.index.sharded_index import ShardedIndex

N = 120


def names(n=N):
    return [f"{i:04}" for i in range(n)]


@pytest.fixture
def collection(tmp_path):
    """120 sets in three shards, many of them equal, and the same in one index."""
    sets = cloud_list(N)
    for i in range(0, N, 9):
        sets[i] = sets[0]
    about = [{"n": i, "even": i % 2 == 0} for i in range(N)]
    folder = new_collection(tmp_path / "collection")
    for i in range(3):
        add_shard(folder, f"s{i}", sets[i::3], names()[i::3], about[i::3])
    one = make_index()
    one.add(sets, names(), about)
    served = serve_here(folder)
    yield served, one, sets
    served.close()
    one.close()


def candidates(lists, promise):
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in lists])])
    far = np.concatenate([np.empty(0), *(np.sort(np.array(each, float)) for each in lists)])
    counts = np.ones(len(lists), np.int64)
    return Candidates(offsets, np.arange(len(far)), far, "embedded", promise, counts, counts, slack=far / 2)


DISTANCES = st.lists(st.integers(0, 6), max_size=8)
SHARDS = st.integers(1, 4).flatmap(
    lambda n: st.lists(st.lists(DISTANCES, min_size=n, max_size=n), min_size=1, max_size=4)
)
"""Of each shard, the distances of what it found for each query."""


@settings(max_examples=200)
@given(SHARDS, st.integers(1, 6), st.sampled_from([1.0, 0.9, None]))
def test_merging_is_sorting_and_cutting(shards, k, promise):
    """Against sorted lists; exact answers keep all that are as far as the last one."""
    parts = [candidates(lists, promise)._replace(keys=None) for lists in shards]
    parts = [part._replace(keys=np.arange(len(part.distances)) + (i << 40)) for i, part in enumerate(parts)]
    found, everything = merge(parts, k) if len(parts) > 1 else None, merge(parts)
    for query in range(len(shards[0])):
        true = sorted(float(far) for lists in shards for far in lists[query])
        span = slice(everything.offsets[query], everything.offsets[query + 1])
        assert everything.distances[span].tolist() == true
        if found is None:
            continue
        cut = [far for far in true if promise == 1.0 and len(true) > k and far <= true[k - 1]] or true[:k]
        mine = slice(found.offsets[query], found.offsets[query + 1])
        assert found.distances[mine].tolist() == cut
        assert (found.slack[mine] == found.distances[mine] / 2).all()
        for key, far in zip(found.keys[mine].tolist(), found.distances[mine].tolist(), strict=True):
            part = parts[key >> 40]
            at = key & (1 << 40) - 1
            assert part.distances[at] == far
            assert part.offsets[query] <= at < part.offsets[query + 1]
    if found is not None:
        assert found.promise == promise
        assert (found.compared == len(shards)).all()


@pytest.mark.parametrize(
    "options",
    [
        {"recall": 1.0},
        {"certify": True},
        {"where": "n < 50", "recall": 1.0},
        {"where": {"even": True}, "certify": True},
    ],
    ids=str,
)
def test_an_exact_answer_is_that_of_one_index(collection, options):
    """To the last bit, with ties at the last distance in the order of ids."""
    served, one, sets = collection
    for k in (1, 5, 13, 200):
        asked = [*cloud_list(6, seed=3), sets[0]]
        assert plain_answer(served.search(asked, k, **options)) == plain_answer(one.search(asked, k, **options))
    hits = served.search(sets[1], 5, **options)
    assert (hits.stats.recall, hits.stats.covered) == (1.0, 1.0)
    for id in ("0000", "0005"):
        assert plain_answer(served.search(id=id, k=7, **options)) == plain_answer(one.search(id=id, k=7, **options))


def test_everything_else_is_that_of_one_index(collection):
    served, one, sets = collection
    assert len(served) == len(one) == N
    assert sorted(served.ids) == one.ids
    assert served.select("n >= 7", limit=3) == ["0009", "0012", "0015"]
    assert contents(served) == contents(one)
    assert plain_answer(served.range_search(sets[4], 1.0)) == plain_answer(one.range_search(sets[4], 1.0))
    assert [tuple(pair) for pair in served.duplicates(0.01)] == [tuple(pair) for pair in one.duplicates(0.01)]
    assert served.explain("0003", "0050").distance == one.explain("0003", "0050").distance
    distances, positions = served.kneighbors(sets[:4], k=5)
    assert [[served.ids[i] for i in line] for line in positions] == served.search(sets[:4], 5).ids
    assert (distances[:, 0] == 0).all()
    told = served.info()
    assert (told["sets"], told["points"], told["sizes"]) == tuple(
        one.info()[key] for key in ("sets", "points", "sizes")
    )
    assert {name: each["sets"] for name, each in told["shards"].items()} == {f"s{i}.slosh": 40 for i in range(3)}
    assert served.verify().ok
    assert served.read_only
    assert "read only" in repr(served)


@pytest.mark.parametrize("split", ["hashed", "sorted"])
def test_the_recall_that_is_stated_is_kept_by_the_whole(tmp_path, split):
    """Of shards that are alike, and of shards each of which has a region of its own: trained, approximate, merged."""
    sets = cloud_list(6000, largest=6)
    if split == "sorted":
        sets.sort(key=lambda points: float(points[:, 0].mean()))
    folder = new_collection(tmp_path / "collection", embedding=small_embedding(n_slices=16, n_quantiles=8))
    for i in range(3):
        part = range(i, 6000, 3) if split == "hashed" else range(2000 * i, 2000 * (i + 1))
        add_shard(folder, f"s{i}", [sets[j] for j in part], [str(j) for j in part])
    with serve_here(folder) as served:
        queries = cloud_list(400, seed=9, largest=6)
        for recall in (0.8, 0.95, None):
            found, exact = served.search(queries, 10, recall=recall), served.search(queries, 10, recall=1.0)
            assert 0.8 <= found.stats.recall < 1.0
            kept = np.mean(
                [np.mean(near <= true[9]) for near, true in zip(found.distances, exact.distances, strict=True)]
            )
            assert kept >= found.stats.recall - 3 * (kept * (1 - kept) / 4000) ** 0.5


def test_removals_are_marked_and_last(collection):
    """At full k, by whoever serves the folder, and an id may come back with a new shard."""
    served, one, sets = collection
    other = serve_here(served.path)
    assert served.remove(["0003", "0004", "0009"]) == ["0003", "0004", "0009"]
    served.remove(where="n >= 110")
    one.remove(["0003", "0004", "0009", *names()[110:]])
    assert len(other) == N
    assert other.refresh()
    assert not other.refresh()
    again = serve_here(served.path)
    for each in (served, other, again):
        assert len(each) == N - 13
        assert "0004" not in each
        for options in ({"recall": 1.0}, {"certify": True}, {"where": "n < 90", "recall": 1.0}, {}):
            assert plain_answer(each.search(sets[3], 20, **options)) == plain_answer(one.search(sets[3], 20, **options))
        assert sorted(each.ids) == one.ids
        assert each.info()["removed"] == 13
        assert each.verify().ok
        with pytest.raises(errors.UnknownId):
            each.remove("0004")
    add_shard(served.path, "t", [sets[4]], ["0004"], [{"n": 4}])
    assert served.refresh()
    assert served.search(sets[4], 1).ids == ["0004"]
    assert served.get("0004").metadata == {"n": 4}
    other.close()
    again.close()


def test_a_view_stays_as_it_was(collection):
    served, _, sets = collection
    parts = served.records(batch=50)
    seen = [next(parts)]
    served.remove(["0001", "0119"])
    add_shard(served.path, "t", [sets[0]], ["new"])
    served.refresh()
    assert sorted(name for part in [*seen, *parts] for name in part.ids) == names()
    assert "new" in served
    assert len(served) == N - 1


def test_shards_are_added_and_taken_away(collection):
    served, _, sets = collection
    assert not served.refresh()
    before = served.ids
    add_shard(served.path, "t", [sets[0] + 50], ["far"])
    assert served.ids == before
    assert served.refresh()
    assert served.search(sets[0] + 50, 1).ids == ["far"]
    shutil.move(served.path / "shards" / "s1.slosh", served.path / "elsewhere")
    assert served.refresh()
    assert len(served) == N - 40 + 1
    assert set(served.shards) == {"0000.slosh", "s0.slosh", "s2.slosh", "t.slosh"}
    shutil.move(served.path / "shards" / "t.slosh", served.path / "shards" / "u.slosh")
    assert served.refresh()
    assert not served.refresh()
    assert served.search(sets[0] + 50, 1).ids == ["far"]


def test_a_shard_that_is_written_to_is_noticed(collection):
    """Its answers would be of two versions."""
    served, _, sets = collection
    with slosh.open(served.path / "shards" / "s0.slosh") as shard:
        shard.add([sets[0] + 9], ["late"])
    with pytest.raises(errors.StorageError, match=r"s0\.slosh was changed"):
        served.search(sets[0])
    assert served.refresh()
    assert served.search(sets[0] + 9, 1).ids == ["late"]


def test_an_id_in_two_shards_is_refused(collection):
    """When the folder is opened, and of a new shard, which then is not served."""
    served, _, sets = collection
    add_shard(served.path, "t", sets[:2], ["fresh", "0077"])
    for call in (served.refresh, lambda: serve_here(served.path)):
        with pytest.raises(errors.DuplicateId, match=r"'0077' is in two shards .* s2\.slosh and t\.slosh") as raised:
            call()
        assert raised.value.id == "0077"
    assert len(served) == N
    (served.path / "checked.json").unlink()
    with pytest.raises(errors.DuplicateId, match="'0077'"):
        serve_here(served.path)
    with serve_here(served.path, check_ids=False) as both:
        assert len(both) == N + 2
    served.remove("0077")
    assert served.refresh()
    assert served.search(sets[1], 1, where={"@id": "0077"}).ids == ["0077"]
    noted = json.loads((served.path / "checked.json").read_text())
    assert sorted(noted["shards"]) == sorted(served.shards)


def test_changes_are_refused(collection):
    served, _, sets = collection
    for call in (
        lambda: served.add(sets[:1], ["x"]),
        lambda: served.add(sets[:1]),
        lambda: served.update("0001", metadata={}),
        served.compact,
        served.destroy,
        lambda: served.tune(0.9),
    ):
        with pytest.raises(errors.ReadOnlyIndex, match="new shard"):
            call()
    with pytest.raises(TypeError, match="serve the folder"):
        __import__("pickle").dumps(served)
    served.close()
    with pytest.raises(errors.IndexClosed):
        served.search(sets[0])


def test_what_is_no_folder_of_shards(tmp_path):
    with pytest.raises(errors.IndexNotFound, match="there is no folder"):
        serve_here(tmp_path / "nothing")
    with pytest.raises(errors.IndexNotFound, match="no shards"):
        serve_here(tmp_path)
    with pytest.raises(errors.InputError, match="folder=5"):
        serve_here(5)
    make_index(tmp_path / "a.slosh").close()
    with pytest.raises(errors.FormatError, match=r"one index.*slosh\.open"):
        serve_here(tmp_path / "a.slosh")
    with serve_here(tmp_path) as served:  # a plain folder of indexes will do
        assert served.shards == {"a.slosh": 0}
        assert served.search(cloud_list(1)[0]).ids == []
    (tmp_path / "shards.json").write_text('{"format": "slosh-shards", "version": 2}')
    with pytest.raises(errors.FormatError, match="version 2"):
        serve_here(tmp_path)
    (tmp_path / "shards.json").write_text("{}")
    with pytest.raises(errors.FormatError, match="not what slosh writes"):
        serve_here(tmp_path)


def test_shards_that_do_not_fit_are_named(tmp_path):
    sets = cloud_list(80)
    make_index(tmp_path / "a.slosh").close()
    make_index(tmp_path / "b.slosh", 3).close()
    with pytest.raises(errors.FormatError, match=r"a\.slosh and b\.slosh .* dim is 2, and 3"):
        serve_here(tmp_path)
    shutil.rmtree(tmp_path / "b.slosh")
    (tmp_path / "b.slosh").mkdir()
    with pytest.raises(errors.FormatError, match=r"b\.slosh is not an index"):
        serve_here(tmp_path)
    shutil.copytree(tmp_path / "a.slosh", tmp_path / "b.slosh", dirs_exist_ok=True)
    (tmp_path / "b.slosh" / "index.db").write_bytes(b"no database" * 100)
    with pytest.raises(errors.SloshError, match=r"b\.slosh"):
        serve_here(tmp_path)
    for name in ("a.slosh", "b.slosh"):
        shutil.rmtree(tmp_path / name)
    for name, part in (("a.slosh", sets[:40]), ("b.slosh", sets[40:])):
        make_index(tmp_path / name, embedding=Whitened(small_embedding()), sample=part).close()
    with pytest.raises(errors.FormatError, match="learnt"):
        serve_here(tmp_path)


def test_shards_with_and_without_weights_do_not_fit(tmp_path):
    sets = cloud_list(4)
    folder = new_collection(tmp_path / "collection")
    add_shard(folder, "a", sets[:2], ["0", "1"])
    add_shard(folder, "b", sets[2:], ["2", "3"], weights=[np.ones(len(each)) for each in sets[2:]])
    with pytest.raises(errors.FormatError, match="weights"):
        serve_here(folder)


def test_a_torn_removal_is_written_over(tmp_path):
    """And one that was changed is noticed."""
    removals = Removals(tmp_path)
    assert removals.read() == ({}, 0, {})
    removals.append({"a": ["1", "é"], "b": ["2"]})
    whole = removals.path.read_bytes()
    for n in range(len(whole.splitlines(keepends=True)[0]), len(whole)):
        removals.path.write_bytes(whole[:n])
        assert removals.read().mark <= n
        removals.append({"c": ["3"]})
        assert removals.read().ids["c"] == ["3"]
        assert set(removals.read().ids) <= {"a", "c"}
    removals.path.write_bytes(whole)
    first = removals.read()
    removals.append({"a": ["4"]})
    assert removals.read(first.mark).ids == {"a": ["4"]}
    assert removals.read(upto=first.mark) == first
    removals.path.write_bytes(whole.replace(b'"1"', b'"7"') + whole)
    with pytest.raises(errors.DamagedError):
        removals.read()


class Unreachable(LocalShards):
    """Shards some of which do not answer."""

    def __init__(self):
        super().__init__()
        self.away = set()

    def ask(self, calls, wait):
        return [Lost("it is away") if call.client.name in self.away else super(Unreachable, self).ask([call], wait)[0]
                for call in calls]  # fmt: skip


def test_a_part_of_the_collection_is_told(collection):
    """A partial answer says so, and is neither exact nor certified; what cannot say so is an error."""
    served, one, sets = collection
    transport = Unreachable()
    index = ShardedIndex(ShardedEngine(served.path, transport, partial=True, wait=False, n_jobs=1))
    transport.away = {"s1.slosh"}
    there = [i for i in range(N) if i % 3 != 1]
    for options in ({"recall": 1.0}, {"certify": True}, {}, {"rerank": "chamfer"}):
        hits = index.search(sets[5], 6, **options)
        expected = one.search(sets[5], 6, where={"n": there}, **options)
        assert plain_answer(hits) == plain_answer(expected)
        assert (hits.stats.recall, hits.stats.covered) == (None, pytest.approx(2 / 3))
        assert "only 66.7% of the collection" in str(hits.stats)
    for call in (
        lambda: index.kneighbors(sets[:2], 3),
        lambda: index.duplicates(0.1),
        lambda: index.neighbor_graph(3),
        lambda: index.ids,
        lambda: "0001" in index,
        lambda: index.get("0001"),
        lambda: index.select("n > 3"),
    ):
        with pytest.raises(errors.ServerLost):
            call()
    transport.away = {f"s{i}.slosh" for i in range(3)}
    with pytest.raises(errors.ServerLost, match="it is away"):
        index.search(sets[0])
    transport.away = set()
    assert index.search(sets[5], 6, recall=1.0).stats.recall == 1.0
    strict = ShardedIndex(ShardedEngine(served.path, transport, partial=False, wait=False, n_jobs=1))
    transport.away = {"s2.slosh"}
    with pytest.raises(errors.ServerLost, match=r"s2\.slosh \(33.3% of the sets\)"):
        strict.search(sets[0])
    index.close()
    strict.close()


class LostAfterwards(Unreachable):
    """Shards of which one is away as soon as it has said, for the first time, which ids it has."""

    said = False

    def ask(self, calls, wait):
        answers = super().ask(calls, wait)
        if calls[0].question == "describe" and not self.said:
            self.away, self.said = {"s1.slosh"}, True
        return answers


def test_a_removal_holds_while_a_shard_is_away(collection):
    """It is marked in the folder, so it must not fail, and what it removed must not be seen again."""
    served, one, sets = collection
    transport, other = LostAfterwards(), serve_here(served.path)
    with ShardedIndex(ShardedEngine(served.path, transport, wait=False, n_jobs=1)) as index:
        other.remove(["0002", "0004"])  # which this process has not seen yet
        index.remove(["0001", "0003"])
        assert transport.away
        assert len(index) == N - 4
        transport.away = set()
        gone = ["0001", "0002", "0003", "0004"]
        assert sorted(index.ids) == sorted(set(names()) - set(gone))
        one.remove(gone)
        assert plain_answer(index.search(sets[1], 20, recall=1.0)) == plain_answer(one.search(sets[1], 20, recall=1.0))
        assert not index.refresh()
    other.close()


def test_hashes_of_ids_are_of_the_mark_that_is_asked_about(tmp_path):
    """Also if a check of an earlier mark ended half way."""
    folder = new_collection(tmp_path / "collection")
    add_shard(folder, "s", cloud_list(20), names(20))
    removals, shard = Removals(folder), LocalShards().open(str(folder / "shards" / "s.slosh"), "s.slosh", str(folder))
    first = shard.about(0).mark
    n_first = len(shard.ask(first, "id_hashes", {"part": 0, "n_parts": 2}, {}))
    removals.append({"s.slosh": names(20)})
    second = shard.about(removals.read().mark).mark
    assert n_first > 0
    assert len(shard.ask(second, "id_hashes", {"part": 0, "n_parts": 2}, {})) == 0
    shard.close()


def replace_shard(folder, name, sets, ids):
    """Put another shard in the place of one, with as many commits as that has."""
    shutil.rmtree(folder / "shards" / f"{name}.slosh")
    add_shard(folder, name, sets, ids)


def test_a_shard_in_the_place_of_another_is_noticed(collection):
    """Although it has the same name and the same version."""
    served, _, sets = collection
    new = [each + 50 for each in sets[:40]]
    replace_shard(served.path, "s1", new, names()[1::3])
    assert served.refresh()
    assert not served.refresh()
    assert served.search(new[5], 1, recall=1.0).distances[0] == pytest.approx(0, abs=1e-5)
    assert served.get("0016").metadata == {}


def test_marks_of_one_shard_do_not_hide_sets_of_another(collection):
    served, _, sets = collection
    before = served.path / "removed.jsonl"
    served.remove("0004")
    with slosh.open(served.path / "shards" / "s1.slosh") as shard:  # a shard that got more sets is the same one
        shard.add([sets[0]], ["late"])
    assert served.refresh()
    assert len(served) == N
    replace_shard(served.path, "s1", sets[1::3], names()[1::3])
    for call in (served.refresh, lambda: serve_here(served.path)):
        with pytest.raises(errors.FormatError, match=r"s1\.slosh is not the shard that sets were removed from"):
            call()
    before.write_bytes(b"".join(line for line in before.read_bytes().splitlines(True) if b"s1.slosh" not in line))
    with serve_here(served.path) as again:  # as the error says
        assert "0004" in again


def test_a_mark_without_a_commit_is_read(collection):
    """Lines of earlier versions have none."""
    served, _, _ = collection
    Removals(served.path).append({"s1.slosh": ["0004"]})
    assert served.refresh()
    assert "0004" not in served


def test_a_process_that_opens_another_shard_does_not_answer(collection):
    """As an actor would that is started again after the shard was replaced, and before `refresh`."""
    served, _, sets = collection
    place = served.path / "shards" / "s1.slosh"
    mark = LocalShards().open(str(place), "s1.slosh", str(served.path)).about(0).mark
    replace_shard(served.path, "s1", sets[1::3], names()[1::3])
    other = LocalShards().open(str(place), "s1.slosh", str(served.path))
    assert other.about(0).mark.version == mark.version
    with pytest.raises(errors.StorageError, match="was changed"):
        other.ask(mark, "info", {}, {})
    other.close()
