"""The OpenAPI document is complete and true: schemathesis asks every route by it, and compares the answers with it."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import slosh
from builders import PATIENCE, clouds, small_embedding, split
from postgres_server import new_database
from server_process import Server, ask
from slosh.embed import Whitened
from slosh.server import app
from slosh.server.answer_types import RESULTS

schemathesis = pytest.importorskip("schemathesis")
NOT_CHECKED = {
    "positive_data_acceptance": "a body that fits the schema may not fit the index, as points of another dimension",
    "negative_data_rejection": "text of a query string that is no number is refused, but null and lists are text there",
    "missing_required_header": "no header is required by all servers: Authorization is by those with keys",
    "ignored_auth": "the server of this test has no keys; test_server_safety.py is about those",
    "ensure_resource_availability": "other calls of the same run delete the index",
    "use_after_free": "other calls of the same run create the index again",
    "max_response_time": "the machine may be busy",
}
"""Checks of schemathesis that cannot hold here, and why."""
NAMES = ("a", "b", "none", "with space", "a/b", "\u00e4")
"""Names of indexes that are asked for; the first one is there."""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server of its own: what schemathesis sends may create and delete indexes."""
    folder = tmp_path_factory.mktemp("openapi")
    with slosh.SetIndex.create(folder / "a.slosh", 2, n_jobs=1) as index:
        index.add([[[0.0, 1.0], [2.0, 3.0]], [[4.0, 5.0]]], ["x", "y"], [{"kind": "chair"}, {"kind": "sofa"}])
    with Server(folder, options=("--jobs", 1)) as server:
        yield server
    assert not [line for line in server.errors if "Traceback" in line], "".join(server.errors)


def test_every_route_is_described(served):
    document = ask(served, "GET", "/openapi.json")[2]
    described = {(method.upper(), path) for path, each in document["paths"].items() for method in each}
    assert described == {tuple(name.split(" ")) for name in app.route_names()}
    for path, each in document["paths"].items():
        for operation in each.values():
            assert operation["summary"]
            answers = operation["responses"]
            assert {"400", "403", "431", "500", "503"} <= set(answers)
            assert "Retry-After" in answers["503"]["headers"]
            assert ("401" in answers) == ("security" in operation) or path == "/v1/server"
            assert "409" in answers or "{name}" not in path
            assert ("413" in answers) == ("415" in answers) == ("requestBody" in operation)
    search = document["paths"]["/v1/indexes/{name}/search"]["post"]
    names = {each["name"] for each in search["parameters"]}
    assert {"k", "where", "recall", "metadata"} <= names
    assert not {"id", "queries", "weights"} & names


def validated(document, schema, answer):
    """Return the answer; it has what its schema says, and nothing else."""
    jsonschema = pytest.importorskip("jsonschema")
    whole = {**schema, "components": document["components"], "unevaluatedProperties": False}
    jsonschema.Draft202012Validator(whole).validate(answer)
    return answer


JOBS = {
    "compact": {},
    "tune": {"k": 1},
    "verify": {},
    "retrain": {},
    "enable": {},
    "finish_copy": {},
    "duplicates": {"radius": 100},
    "neighbor_graph": {"k": 1},
    "kneighbors": {"k": 1},
}


def test_jobs_answer_as_described(served):
    document = ask(served, "GET", "/openapi.json")[2]
    posted = document["paths"]["/v1/indexes/{name}/jobs"]["post"]["responses"]["202"]
    schema = posted["content"]["application/json"]["schema"]
    assert set(schema["discriminator"]["mapping"]) == set(JOBS)
    for kind, arguments in JOBS.items():
        found = ask(served, "POST", "/v1/indexes/a/jobs?wait=30", {"kind": kind, "arguments": arguments})[2]
        own = {"$ref": schema["discriminator"]["mapping"][kind]}
        assert validated(document, own, found)["kind"] == kind
        has_result = RESULTS[kind] is not None
        assert (found["state"], found["result"] is not None) == ("done", has_result) or kind in ("retrain", "enable")
    failed = ask(served, "POST", "/v1/indexes/a/jobs?wait=30", {"kind": "duplicates", "arguments": {"id": "none"}})[2]
    assert validated(document, schema, failed)["error"]["class"] == "UnknownId"
    listed = ask(served, "GET", "/v1/jobs")[2]
    validated(document, {"$ref": "#/components/schemas/JobsAnswer"}, listed)
    assert len(listed["jobs"]) > len(JOBS)


def test_information_is_as_described(served, tmp_path):
    """Of an empty index, of one with parts, trained searches, an origin, and what was learnt; and of a database."""
    document = ask(served, "GET", "/openapi.json")[2]
    made = [{"embedding": Whitened(), "origin": [1.0, 2.0]}, {}]
    for number, options in enumerate(made):
        with slosh.SetIndex.create(tmp_path / f"{number}.slosh", 2, n_jobs=1, **options) as index:
            index.add(split(clouds(3000)), metadata=[{"kind": "ab"[i % 2]} for i in range(3000)])
            if number:
                index.enable("parts")
            else:
                index.retrain(label="kind")
    with Server(tmp_path, options=("--jobs", 1)) as server:
        ask(server, "POST", "/v1/indexes", {"name": "empty", "dim": 2})
        found = {name: ask(server, "GET", f"/v1/indexes/{name}")[2] for name in ("0", "1", "empty")}
    with slosh.SetIndex.create(database := new_database(), 2, embedding=small_embedding(), name="one") as index:
        index.add(clouds(3))
    with Server(database, options=("--jobs", 1)) as server:
        found["one"] = ask(server, "GET", "/v1/indexes/one")[2]
    for about in found.values():
        validated(document, {"$ref": "#/components/schemas/InfoAnswer"}, about)
    assert found["0"]["learnt_from"]["labelled"] == 3000
    assert found["1"]["parts"]["measured"]
    assert found["one"]["engine"] == "postgresql"


def test_parameters_of_other_bodies_are_refused(served):
    for path in ("search?k=3", "search?colour=red", "sets?update=true", "sets?update=14011"):
        status, _, problem = ask(served, "POST", f"/v1/indexes/a/{path}", {"id": "x"})
        assert (status, problem["class"]) == (400, "InputError"), path


def test_answers_are_as_described(served, campaign):
    schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    schemathesis.checks.load_all_checks()
    names = set(schemathesis.checks.CHECKS.get_all_names()) - set(NOT_CHECKED)
    assert len(names) >= 6
    checks = schemathesis.checks.CHECKS.get_by_names(sorted(names))
    asked = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        asked += 1

        @settings(
            max_examples=200 if campaign == "all" else 3,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
            deadline=None,
            database=None,
        )
        @given(case=operation.as_strategy(), name=st.sampled_from(NAMES), own=st.booleans())
        def ask_and_compare(case, name, own):
            if "{name}" in case.path and not own:  # otherwise the name is one of schemathesis
                case.path_parameters["name"] = quote(name, safe="")
            case.validate_response(case.call(timeout=PATIENCE), checks=checks)

        ask_and_compare()
        ask(served, "POST", "/v1/indexes", {"name": "a", "dim": 2})  # unless it is still there
    assert asked > 25
