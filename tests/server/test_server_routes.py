"""The routes: what each gives is what `SetIndex` gives, in JSON and in the other forms."""

from __future__ import annotations

import io
import json
import time

import numpy as np
import pytest

import slosh
from builders import cloud_list
from server_process import ask
from slosh.wire import ARROW, BINARY, NPY, pack, pack_sets, unpack

ROOT = "/v1/indexes/shapes"


@pytest.fixture(scope="module")
def local(filled):
    with slosh.open(filled / "shapes.slosh", read_only=True, n_jobs=1) as opened:
        yield opened


def good(found, status=200):
    assert found[0] == status, found
    return found[2]


def test_what_the_server_says_of_itself(server):
    assert good(ask(server, "GET", "/health")) == {"status": "ok"}
    assert good(ask(server, "GET", "/ready")) == {"status": "ready"}
    about = good(ask(server, "GET", "/v1/server"))
    assert about["allowed"] == {"read": True, "write": True, "indexes": None}
    assert not about["keys"]
    assert about["can_create"]
    assert ".npy" in about["formats"]
    names = [each["name"] for each in good(ask(server, "GET", "/v1/indexes"))["indexes"]]
    assert {"shapes", "wide"} <= set(names)


def test_information(server, local):
    about = good(ask(server, "GET", ROOT))
    assert about["name"] == "shapes"
    assert about["sets"] == len(local) == good(ask(server, "GET", f"{ROOT}/count"))["count"]
    assert about["dim"] == 2
    assert "path" not in about


def test_pages_of_sets(server, local):
    first = good(ask(server, "GET", f"{ROOT}/sets?limit=7&where=kind%20%3D%20chair"))
    ids = local.select({"kind": "chair"})
    assert [each["id"] for each in first["sets"]] == ids[:7]
    assert (first["total"], first["next"]) == (len(ids), 7)
    assert first["sets"][0]["size"] == len(local.get(ids[0]).points)
    assert first["sets"][0]["metadata"] == local.get(ids[0]).metadata
    last = good(ask(server, "GET", f"{ROOT}/sets?limit=7&offset={len(ids) - 2}&where=kind%20%3D%20chair"))
    assert [each["id"] for each in last["sets"]] == ids[-2:]
    assert last["next"] is None
    assert good(ask(server, "GET", f"{ROOT}/sets?offset=100000"))["sets"] == []


def test_select_and_get(server, local):
    found = good(ask(server, "POST", f"{ROOT}/select", {"where": {"n": {"<": 5}}, "limit": 3, "offset": 1}))
    assert found["ids"] == ["s1", "s2", "s3"]
    (one,) = good(ask(server, "POST", f"{ROOT}/get", {"ids": ["s4"]}))["sets"]
    assert np.array_equal(np.float32(one["points"]), local.get("s4").points)
    assert one["metadata"] == local.get("s4").metadata


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"k": 3},
        {"where": {"kind": "chair"}},
        {"where": "kind = chair and n > 10"},
        {"recall": 1.0},
        {"rerank": "chamfer", "depth": 20},
        {"certify": True},
        {"offset": 4},
    ],
    ids=str,
)
def test_a_search_is_that_of_the_index(server, local, query, options):
    many = [query.tolist(), (query + 1).tolist()]
    truth = local.search(query, **options)
    found = good(ask(server, "POST", f"{ROOT}/search", {"queries": query.tolist(), **options}))
    assert found["hits"]["ids"] == truth.ids
    assert found["hits"]["distances"] == truth.distances.tolist()
    assert found["hits"]["metadata"] == truth.metadata
    assert found["distance_kind"] == truth.distance_kind
    assert found["stats"]["recall"] == truth.stats.recall
    lists = good(ask(server, "POST", f"{ROOT}/search", {"queries": many, **options}))["hits"]
    assert [each["ids"] for each in lists] == local.search([np.array(x) for x in many], **options).ids
    by_id = good(ask(server, "POST", f"{ROOT}/search", {"id": "s3", **options}))["hits"]
    assert by_id["ids"] == local.search(id="s3", **options).ids


def test_searches_in_other_forms(server, local, query):
    truth = local.search([query, query + 1], k=4)
    body = io.BytesIO()
    np.save(body, np.stack([query, query + 1]))
    found = good(ask(server, "POST", f"{ROOT}/search?k=4", body.getvalue(), Content_Type=NPY))
    assert [each["ids"] for each in found["hits"]] == truth.ids
    sets = slosh.Sets.from_list([query, query + 1])
    message = pack({"k": 4}, pack_sets("queries", sets))
    found = unpack(good(ask(server, "POST", f"{ROOT}/search", message, Content_Type=BINARY, Accept=BINARY)))
    assert found.arguments["ids"] == [name for each in truth.ids for name in each]
    assert found.arrays["distances"].tolist() == [x for each in truth.distances for x in each.tolist()]
    pa = pytest.importorskip("pyarrow")
    table, target = pa.table({"points": sets.to_arrow()}), io.BytesIO()
    with pa.ipc.new_stream(target, table.schema) as writer:
        writer.write_table(table)
    content = good(ask(server, "POST", f"{ROOT}/search?k=4", target.getvalue(), Content_Type=ARROW, Accept=ARROW))
    rows = pa.ipc.open_stream(io.BytesIO(content)).read_all().to_pydict()
    assert rows["id"] == [name for each in truth.ids for name in each]
    assert rows["query"] == [0] * 4 + [1] * 4


def test_ranges_and_neighbours(server, local, query):
    asked = {"queries": query.tolist(), "radius": 1.0}
    assert good(ask(server, "POST", f"{ROOT}/range_search", asked))["hits"]["ids"] == local.range_search(query, 1.0).ids
    found = good(ask(server, "POST", f"{ROOT}/kneighbors", {"id": ["s1", "s2"], "k": 70}))
    distances, positions = local.kneighbors(id=["s1", "s2"], k=70)
    assert found["positions"] == positions.tolist()
    assert found["distances"][0][-1] is None
    assert found["distances"][1][:50] == distances[1, :50].tolist()


@pytest.mark.parametrize("match", ["whole", "part", "contained"])
def test_explanations(server, local, query, match):
    found = good(ask(server, "POST", f"{ROOT}/explain", {"query": query.tolist(), "id": "s2", "match": match}))
    truth = local.explain(query, "s2", match=match)
    assert found["distance"] == truth.distance
    assert np.allclose(found["x"]["points"], truth.x[0])
    assert np.allclose(found["y"]["points"], truth.y[0])
    if match == "whole":
        assert np.isclose(sum(found["x_elements"]), truth.distance**2)
        assert found["pairs"] is None or np.isclose(sum(mass for *_, mass in found["pairs"]), 1)
    else:
        assert found["nearest"] == truth.nearest.tolist()


def test_points_to_draw(server, filled):
    with slosh.open(filled / "wide.slosh", read_only=True) as wide:
        points = wide.get("s7").points
    one = good(ask(server, "POST", f"{ROOT}/points", {"ids": ["s7"], "limit": 3}))
    assert not one["projected"]
    assert len(one["sets"][0]["points"]) == min(3, one["sets"][0]["size"])
    found = good(ask(server, "POST", "/v1/indexes/wide/points", {"ids": ["s7", "s8"], "components": 2}))
    assert found["projected"]
    shown = np.array(found["sets"][0]["points"])
    assert shown.shape == (len(points), 2)
    again = good(ask(server, "POST", "/v1/indexes/wide/project", {"sets": [points.tolist()], "components": 2}))
    assert np.allclose(again["sets"][0]["points"], shown, atol=1e-5)


def test_fields(server):
    found = {each["name"]: each for each in good(ask(server, "GET", f"{ROOT}/fields?values=2"))["fields"]}
    assert found["kind"]["kind"] == "text"
    assert found["kind"]["values"] == [{"value": "chair", "count": 30}, {"value": "sofa", "count": 30}]
    assert (found["n"]["least"], found["n"]["greatest"], found["n"]["distinct"]) == (0, 59, 60)
    assert found["deep.er"]["distinct"] == 3


def wait_for_map(server, root=ROOT):
    """Ask for the map until it is there."""
    for _ in range(6000):
        found = good(ask(server, "GET", f"{root}/map"))
        if found["state"] == "ready":
            return found
        time.sleep(0.02)
    raise AssertionError(found)


def test_the_map(server, local):
    about = wait_for_map(server)
    assert about["sets"] == len(local)
    assert 0 < sum(about["explained"]) <= 1.001
    whole = good(ask(server, "GET", f"{ROOT}/map/tile?level=0&x=0&y=0&field=kind"))
    assert sorted(whole["ids"]) == sorted(local.ids)
    assert whole["count"] == np.sum(whole["density"]) == len(local)
    assert dict(zip(whole["ids"], whole["values"], strict=True))["s1"] == "chair"
    parts = [good(ask(server, "GET", f"{ROOT}/map/tile?level=1&x={x}&y={y}")) for x in (0, 1) for y in (0, 1)]
    assert sorted(name for part in parts for name in part["ids"]) == sorted(local.ids)
    assert sum(part["count"] for part in parts) == len(local)
    few = good(ask(server, "GET", f"{ROOT}/map/tile?level=0&x=0&y=0&limit=5"))
    assert len(few["ids"]) == 5
    assert few["ids"] == whole["ids"][:5]
    placed = {name: point for part in parts for name, point in zip(part["ids"], part["points"], strict=True)}
    points = local.get("s9").points.tolist()
    found = good(ask(server, "POST", f"{ROOT}/map/place", {"queries": points, "ids": ["s9", "none"]}))
    assert found["ids"] == [placed["s9"], None]
    assert np.allclose(found["queries"][0], placed["s9"], atol=1e-3)
    assert ask(server, "GET", f"{ROOT}/map/tile?level=1&x=2&y=0")[0] == 400
    assert ask(server, "GET", "/v1/indexes/wide/map/tile?level=1&x=0&y=0")[0] == 409


def test_create_change_and_delete(server):
    given = {"name": "new", "dim": 2, "embedding": {"class": "SlicedWasserstein", "parameters": {"n_slices": 4}}}
    assert good(ask(server, "POST", "/v1/indexes", given), 201)["sets"] == 0
    assert ask(server, "POST", "/v1/indexes", given)[0] == 409
    sets = [x.tolist() for x in cloud_list(3)]
    root = "/v1/indexes/new"
    added = {"sets": sets, "ids": ["a", "b", "c"], "metadata": {"x": 1}}
    assert good(ask(server, "POST", f"{root}/sets", added), 201) == {"ids": ["a", "b", "c"]}
    assert ask(server, "POST", f"{root}/sets", added)[0] == 409
    assert good(ask(server, "POST", f"{root}/sets", {**added, "update": True}), 201)["ids"] == ["a", "b", "c"]
    changed = {"ids": ["b"], "metadata": [{"y": 2}], "merge": True}
    assert good(ask(server, "PATCH", f"{root}/sets", changed)) == {"ids": ["b"]}
    (one,) = good(ask(server, "POST", f"{root}/get", {"ids": ["b"]}))["sets"]
    assert one["metadata"] == {"x": 1, "y": 2}
    assert good(ask(server, "POST", f"{root}/remove", {"where": {"y": 2}})) == {"ids": ["b"]}
    assert ask(server, "POST", f"{root}/remove", {"where": {}})[0] == 400
    assert good(ask(server, "GET", f"{root}/count")) == {"count": 2}
    numbered = {"sets": sets[:2], "ids": [7, 10**30]}
    assert good(ask(server, "POST", f"{root}/sets", numbered), 201) == {"ids": ["7", str(10**30)]}
    for method, own in (("search", {"k": 1}), ("range_search", {"radius": 1e9}), ("kneighbors", {"k": 1})):
        asked = [{"id": id, **own} for id in (7, "7", [7, "a"], ["7", "a"])]
        found = [good(ask(server, "POST", f"{root}/{method}", each)) for each in asked]
        answers = [{name: value for name, value in each.items() if name != "stats"} for each in found]
        assert answers[0] == answers[1]
        assert answers[2] == answers[3]
    good(ask(server, "DELETE", root))
    assert ask(server, "GET", root)[0] == 404


def test_files(server, query):
    body = io.BytesIO()
    np.save(body, query)
    kind = "application/octet-stream"
    path = f"{ROOT}/parse?filename=C%3A%5Cx%5Cchair.npy"
    found = good(ask(server, "POST", path, body.getvalue(), Content_Type=kind))
    assert found["total"] == 1
    assert found["sets"][0]["id"] == "chair.npy"
    assert np.allclose(found["sets"][0]["points"], query)
    assert found["sets"][0]["metadata"] == {"file": "chair.npy"}
    text = b"id,x,y\na,0,1\na,2,3\nb,4,5\n"
    good(ask(server, "POST", "/v1/indexes", {"name": "files", "dim": 2}), 201)
    path = "/v1/indexes/files/upload?filename=t.csv&id_column=id&columns=x,y"
    assert good(ask(server, "POST", path, text, Content_Type=kind), 201) == {"ids": ["a", "b"]}
    status, _, problem = ask(server, "POST", path, b"id,x,y\nc,0,zero\n", Content_Type=kind)
    assert (status, problem["class"]) == (400, "ReaderError")
    assert "t.csv" in problem["detail"]
    assert "/tmp" not in json.dumps(problem)
    for name in ("x.exe", "x.pkl", "../../etc/passwd", "x"):
        assert ask(server, "POST", f"{ROOT}/parse?filename={name}", b"x", Content_Type=kind)[0] == 400


def test_jobs(server, local):
    asked = {"kind": "duplicates", "arguments": {"radius": 0.3}}
    found = good(ask(server, "POST", f"{ROOT}/jobs?wait=30", asked), 202)
    assert found["state"] == "done"
    assert found["result"]["pairs"] == [list(pair) for pair in local.duplicates(0.3)]
    assert good(ask(server, "GET", f"/v1/jobs/{found['id']}"))["result"] == found["result"]
    assert found["id"] in [each["id"] for each in good(ask(server, "GET", "/v1/jobs"))["jobs"]]
    failed = good(ask(server, "POST", f"{ROOT}/jobs?wait=30", {"kind": "duplicates", "arguments": {"id": "none"}}), 202)
    assert failed["state"] == "failed"
    assert failed["error"]["class"] == "UnknownId"
    assert ask(server, "POST", f"{ROOT}/jobs", {"kind": "dance"})[0] == 400
    assert ask(server, "POST", f"{ROOT}/jobs", {"kind": "tune", "arguments": {"x": 1}})[0] == 400
    assert ask(server, "GET", "/v1/jobs/none")[0] == 404
    graph = good(ask(server, "POST", f"{ROOT}/jobs?wait=30", {"kind": "neighbor_graph", "arguments": {"k": 2}}), 202)
    assert len(graph["result"]["data"]) == 2 * len(local)


def test_metrics(server):
    ask(server, "GET", "/health")
    text = ask(server, "GET", "/metrics")[2].decode()
    assert 'slosh_http_requests_total{route="GET /health",status="2xx"}' in text
    assert 'slosh_http_request_seconds_bucket{route="GET /health",le="+Inf"}' in text
    for line in text.splitlines():
        assert line.startswith("#") or float(line.rpartition(" ")[2]) >= 0
