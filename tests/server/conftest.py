"""A server with one index of clouds, for the tests that change nothing; and the page in a browser."""

from __future__ import annotations

import numpy as np
import pytest

import slosh
from builders import cloud_list, small_embedding
from page_browser import CHROMIUM_OPTIONS, chromium, make_indexes
from server_process import Server

pytest.importorskip("fastapi", reason="the server needs slosh[server]")
pytest.importorskip("uvicorn", reason="the server needs slosh[server]")
pytest.importorskip("msgspec", reason="the server needs slosh[server]")

N_SETS = 60


def fill(folder, name="shapes", dim=2, **options):
    """Create an index in a folder, and return its path."""
    path = folder / f"{name}.slosh"
    sets = cloud_list(N_SETS, dim=dim)
    with slosh.SetIndex.create(path, dim, embedding=small_embedding(), n_jobs=1, **options) as index:
        metadata = [{"kind": "chair" if i % 2 else "sofa", "n": i, "deep": {"er": i % 3}} for i in range(N_SETS)]
        index.add(sets, ids=[f"s{i}" for i in range(N_SETS)], metadata=metadata)
    return path


@pytest.fixture(scope="package")
def filled(tmp_path_factory):
    """A folder with the indexes `shapes` (2 features) and `wide` (5 features)."""
    folder = tmp_path_factory.mktemp("served")
    fill(folder)
    fill(folder, "wide", 5)
    return folder


@pytest.fixture(scope="package")
def server(filled):
    with Server(filled, options=("--jobs", 1)) as made:
        yield made
    assert not [line for line in made.errors if "Traceback" in line], "".join(made.errors)


@pytest.fixture
def query():
    return np.round(cloud_list(1, seed=5)[0].astype(float), 3)


@pytest.fixture(scope="module")
def browser():
    from page_driver import sync_api

    path = chromium()
    with sync_api.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=path, args=CHROMIUM_OPTIONS)
        yield made
        made.close()


@pytest.fixture(scope="module")
def page_server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    make_indexes(folder)
    with Server(folder, options=("--jobs", 1)) as made:
        yield made


@pytest.fixture
def visit(browser, page_server):
    """Return a function that opens the page. At the end nothing has been refused, thrown, or asked of others."""
    from page_driver import VIOLATIONS

    contexts, pages = [], []

    def open_page(address: str = "#index=digits", *, url: str | None = None, **options):
        options = {"viewport": {"width": 1440, "height": 900}, "reduced_motion": "reduce", **options}
        context = browser.new_context(**options)
        context.set_default_timeout(30_000)
        context.add_init_script(VIOLATIONS)
        page = context.new_page()
        page.thrown, page.asked, page.said = [], [], []
        page.on("pageerror", lambda error: page.thrown.append(str(error)))
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("console", lambda message: page.said.append(message.text))
        page.base = url or page_server.url
        page.goto(f"{page.base}/{address}")
        contexts.append(context)
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        assert page.thrown == []
        assert page.evaluate("window.violations") == []
        assert not [text for text in page.said if "Content Security Policy" in text]
        assert {url[: len(page.base)] for url in page.asked if not url.startswith("data:")} == {page.base}
    for context in contexts:
        context.close()
