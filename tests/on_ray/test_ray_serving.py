"""Collections that actors of Ray serve, on several nodes of one machine: the same answers as within one process, also
while processes and nodes die.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from builders import PATIENCE, cloud_list, plain_answer, together
from ray_cluster import kill_shard, running_cluster
from shard_builders import add_shard, new_collection, serve_here
from slosh import errors
from slosh.embed import PartField
from slosh.engines.sharded.engine import ShardedEngine
from slosh.engines.sharded.shard import Mark
from slosh.engines.sharded.view import Call
from slosh.index.sharded_index import ShardedIndex

ray = pytest.importorskip("ray", reason="the extra ray is not installed")
N = 1500


@pytest.fixture(scope="module")
def cluster():
    with running_cluster() as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two shards, each large enough to be trained, with parts and metadata."""
    sets = cloud_list(2 * N)
    folder = new_collection(
        tmp_path_factory.mktemp("served") / "collection", parts=PartField(32, 16, n_jobs=1), sample=sets[:50]
    )
    for i in range(2):
        own = range(i, 2 * N, 2)
        add_shard(folder, f"s{i}", [sets[j] for j in own], [str(j) for j in own], [{"n": j} for j in own])
    return folder


def serve(folder, **options):
    import slosh.ray

    return slosh.ray.serve(folder, **{"timeout": PATIENCE, **options})


@pytest.fixture(scope="module")
def served(cluster, folder):
    with serve(folder) as index:
        yield index


QUESTIONS = [
    {}, {"recall": 1.0}, {"certify": True}, {"where": "n < 300"}, {"rerank": "chamfer"}, {"offset": 3},
    {"match": "part", "depth": 20}, {"match": "contained", "certify": True},
]  # fmt: skip


@pytest.mark.parametrize("options", QUESTIONS, ids=str)
def test_answers_are_those_of_one_process(served, folder, options):
    queries = cloud_list(3, seed=4)
    with serve_here(folder) as here:
        for asked in (queries, queries[0]):
            found, expected = served.search(asked, 5, **options), here.search(asked, 5, **options)
            assert plain_answer(found) == plain_answer(expected)
            assert found.stats[2] == expected.stats[2]
        assert plain_answer(served.search(id=["3", "8"], k=4)) == plain_answer(here.search(id=["3", "8"], k=4))


def test_large_batches_and_everything_else(served, folder):
    queries = cloud_list(2500, seed=5)
    with serve_here(folder) as here:
        assert plain_answer(served.search(queries, 4)) == plain_answer(here.search(queries, 4))
        for mine, theirs in zip(served.kneighbors(queries, 3), here.kneighbors(queries, 3), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        assert plain_answer(served.range_search(queries[:5], 0.5)) == plain_answer(here.range_search(queries[:5], 0.5))
        assert served.ids == here.ids
        assert served.get("17").metadata == {"n": 17}
        told = served.info()["shards"]
        assert {name: each["sets"] for name, each in told.items()} == {"s0.slosh": N, "s1.slosh": N}
        # Ray is asked to spread them, and may still start both on one node.
        assert {each["node"] for each in told.values()} <= {node["NodeID"] for node in ray.nodes()}
    assert served.verify(sample=50).ok


def test_bad_input_is_said_before_anything_starts(cluster, folder, tmp_path):
    for options, argument in (
        ({"missing": "maybe"}, "missing"),
        ({"timeout": -1}, "timeout"),
        ({"replicas": 0}, "replicas"),
        ({"check_ids": 3}, "check_ids"),
    ):
        with pytest.raises(errors.InputError) as raised:
            serve(folder, **options)
        assert raised.value.argument == argument
    with pytest.raises(errors.IndexNotFound, match="no shards"):
        serve(tmp_path)
    (tmp_path / "broken.slosh").mkdir()
    with pytest.raises(errors.FormatError, match=r"broken\.slosh"):
        serve(tmp_path)
    with pytest.raises(errors.ServerLost, match="room for its actor"):
        serve(folder, timeout=0.5, actor_options={"resources": {"of which there is none": 1}})


def stream(index, queries, expected, stop, seen):
    """Ask until it is told to stop, and compare every answer; `seen` are the shares that were covered."""
    i = 0
    while not stop.is_set():
        hits = index.search(queries[i % len(queries)], 5, recall=1.0)
        seen.append(hits.stats.covered)
        if hits.stats.covered == 1.0:
            assert plain_answer(hits) == expected[i % len(queries)]
        else:
            assert hits.stats.recall is None
        i += 1


def expected_of(folder, queries):
    with serve_here(folder) as here:
        return [plain_answer(here.search(query, 5, recall=1.0)) for query in queries]


@pytest.mark.parametrize("missing", ["wait", "partial"])
def test_a_killed_process_comes_back(cluster, folder, missing):
    """While queries go on: none is wrong, none is lost, and in the end all of the collection is covered again."""
    queries = cloud_list(5, seed=7)
    expected, stop, seen = expected_of(folder, queries), threading.Event(), []
    with serve(folder, missing=missing) as index:

        def disturb():
            try:
                before = index.info()["shards"]["s1.slosh"]["pid"]
                kill_shard(index, "s1.slosh")
                while len(seen) < 3 or seen[-1] < 1.0 or shard_pid() in (before, None):
                    stop.wait(0.05)
            finally:
                stop.set()

        def shard_pid():
            try:
                return index.info()["shards"].get("s1.slosh", {}).get("pid")
            except errors.ServerLost:
                return None

        together(lambda: stream(index, queries, expected, stop, seen), disturb)
        assert plain_answer(index.search(queries[0], 5, recall=1.0)) == expected[0]
    if missing == "wait":
        assert set(seen) == {1.0}


def test_replicas_answer_for_each_other(cluster, folder):
    """Even where a search does not wait."""
    queries = cloud_list(5, seed=7)
    expected = expected_of(folder, queries)
    with serve(folder, replicas=2, missing="error") as index:
        pids = set()
        for query in queries:
            pids.add(index.info()["shards"]["s0.slosh"]["pid"])
            index.search(query)
        assert len(pids) == 2
        kill_shard(index, "s0.slosh")
        for _ in range(3):
            for query, answer in zip(queries, expected, strict=True):
                assert plain_answer(index.search(query, 5, recall=1.0)) == answer


def test_errors_are_told_where_the_caller_chose_that(cluster, folder):
    with serve(folder, missing="error") as index:
        kill_shard(index, "s0.slosh")
        with pytest.raises(errors.ServerLost, match=r"s0\.slosh \(50\.0% of the sets\)"):
            index.search(cloud_list(1)[0])


def test_new_shards_and_removals_while_it_serves(cluster, tmp_path):
    sets, folder = cloud_list(40), new_collection(tmp_path / "collection")
    add_shard(folder, "s0", sets[:20], [str(i) for i in range(20)])
    with serve(folder) as index:
        add_shard(folder, "s1", sets[20:], [str(i) for i in range(20, 40)])
        assert index.refresh()
        index.remove(["3", "30"])
        kill_shard(index, "s1.slosh")  # whoever takes its place knows what was removed
        assert len(index.search(sets[30], 40).ids) == 38
    with serve(folder) as index:
        assert sorted(index.ids, key=int) == [str(i) for i in range(40) if i not in (3, 30)]


@pytest.fixture
def actors():
    from slosh.ray import actors

    return actors


def test_an_actor_that_hangs_is_lost(cluster, folder, actors):
    """Nobody waits for it for ever, and no other shard is blamed; it answers again when it goes on."""
    transport, query = actors.RayShards(1, 1, PATIENCE, {}), cloud_list(1)[0]
    with ShardedIndex(ShardedEngine(folder, transport, wait=False, n_jobs=1)) as index:
        expected = plain_answer(index.search(query))
        pid = index.info()["shards"]["s1.slosh"]["pid"]
        transport.patience = 3
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(errors.ServerLost, match=r"s1\.slosh .* no sign of life for 3 s"):
                index.search(query)
            with pytest.raises(errors.ServerLost, match=r"s1\.slosh"):
                index.refresh()
        finally:
            os.kill(pid, signal.SIGCONT)
        transport.patience = PATIENCE
        assert not index.refresh()  # which waits for it
        assert plain_answer(index.search(query)) == expected


def test_a_long_search_is_not_taken_for_one_that_hangs(cluster, actors, monkeypatch):
    """Its actor gives signs of life while it works, here for longer than one waits for a sign."""
    monkeypatch.setattr(actors, "LOOK_SECONDS", 0.1)

    class Busy:
        def __init__(self):
            self.pings, self.enough = 0, threading.Event()

        def ping(self):
            self.pings += 1
            if self.pings == 40:
                self.enough.set()
            return True

        def ask(self, *question):
            self.enough.wait()
            return self.pings

    handle = ray.remote(concurrency_groups={actors.PINGS: 1})(Busy).remote()
    ray.get(handle.ping.remote())
    transport = actors.RayShards(1, 1, 3, {})
    call = Call(actors.Replicas(ray, "busy", [handle]), Mark(1, 0), "nearest", {}, {})
    (answer,) = transport.ask([call], wait=False)
    assert answer >= 40
    ray.kill(handle)


@pytest.mark.long
def test_a_node_is_removed_after_it_has_answered(folder, actors, monkeypatch):
    """A large answer is lost with the store of its node; the question is asked again, and so is what was put there."""
    queries, send = cloud_list(3000, seed=8), actors.RayShards.send
    with serve_here(folder) as here:
        expected = plain_answer(here.search(queries, 50, recall=1.0))
    with running_cluster(3) as cluster, serve(folder, actor_options={"num_cpus": 1}) as index:
        nodes = {each["node"]: name for name, each in index.info()["shards"].items()}
        gone = [node for node in cluster.others if node.node_id in nodes][:1]

        def send_and_remove(self, call, shared, number):
            sent = send(self, call, shared, number)
            if gone and call.question == "nearest" and call.client.name == nodes[gone[0].node_id]:
                ray.wait([sent.ref], fetch_local=False)
                cluster.remove_node(gone.pop(), allow_graceful=False)
            return sent

        monkeypatch.setattr(actors.RayShards, "send", send_and_remove)
        assert plain_answer(index.search(queries, 50, recall=1.0)) == expected
        assert not gone


def test_ray_that_was_started_anew_is_told(tmp_path):
    """In a process of its own: the actors of an index end with the Ray that they were started by."""
    code = """if True:
        import sys, numpy, ray, slosh, slosh.ray
        def start():
            ray.init("local", num_cpus=1, object_store_memory=100_000_000, include_dashboard=False)
        sets = [numpy.ones((2, 2))]
        with slosh.SetIndex.create(sys.argv[1] + "/a.slosh", dim=2) as shard:
            shard.add(sets, ["1"])
        start()
        index = slosh.ray.serve(sys.argv[1], actor_options={"num_cpus": 0})
        assert index.search(sets[0]).ids == ["1"]
        ray.shutdown()
        start()
        for call in (lambda: index.search(sets[0]), index.refresh):
            try:
                call()
            except slosh.errors.IndexClosed as error:
                assert "started anew" in str(error) and "serve the folder again" in str(error)
                print("told")
        index.close()
        ray.shutdown()
    """
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.stdout.split() == ["told", "told"], done.stderr


@pytest.mark.long
def test_a_node_is_removed_while_queries_run(folder):
    """Its shards come back on a node that stays, by Ray; no answer is wrong, and none is lost."""
    queries = cloud_list(5, seed=7)
    expected, stop, seen = expected_of(folder, queries), threading.Event(), []
    with running_cluster(3) as cluster, serve(folder, actor_options={"num_cpus": 1}) as index:
        nodes = {each["node"] for each in index.info()["shards"].values()}
        gone = next(node for node in cluster.others if node.node_id in nodes)

        def disturb():
            try:
                cluster.remove_node(gone, allow_graceful=False)
                index.search(queries[0], 5)
                while gone.node_id in {each["node"] for each in index.info()["shards"].values()}:
                    stop.wait(0.2)
            finally:
                stop.set()

        together(lambda: stream(index, queries, expected, stop, seen), disturb)
        assert set(seen) == {1.0}
        assert len(index.info()["shards"]) == 2
