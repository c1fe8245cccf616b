"""The OpenAPI document is complete and true: schemathesis asks every route by it, and compares the answers with it."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings

import slosh
from server_process import Server, ask
from slosh.server import app

schemathesis = pytest.importorskip("schemathesis")
SKIPPED = ("/metrics", "/v1/indexes/{name}/records")
"""Answers that are no JSON."""


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
    for each in document["paths"].values():
        for operation in each.values():
            assert operation["summary"]
            assert {"400", "401", "403", "404", "503"} <= set(operation["responses"])


def test_answers_are_as_described(served, campaign):
    schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    checks = (
        schemathesis.checks.not_a_server_error,
        schemathesis.specs.openapi.checks.status_code_conformance,
        schemathesis.specs.openapi.checks.content_type_conformance,
        schemathesis.specs.openapi.checks.response_schema_conformance,
    )
    asked = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path in SKIPPED:
            continue
        asked += 1

        @settings(
            max_examples=200 if campaign == "all" else 3,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
            deadline=None,
            database=None,
        )
        @given(case=operation.as_strategy())
        def ask_and_compare(case):
            if "{name}" in case.path:
                case.path_parameters["name"] = "a"
            response = case.call()
            if response.status_code != 415:  # of bodies that no client of this library sends
                case.validate_response(response, checks=checks)

        if operation.method.upper() != "DELETE":
            ask_and_compare()
    assert asked > 25
