"""The map of the page with very many sets: what is not looked at is not loaded, and what is near is large."""

from __future__ import annotations

import itertools
import re
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("uvicorn", reason="the extra server is not installed")

import slosh
from builders import small_embedding
from page_driver import expect
from server_process import Server

N_MANY = 100_000
CLOSER = 16
BORDER = 28
"""Pixels beside the map that shows all."""


@pytest.fixture(scope="module")
def many_server(tmp_path_factory):
    """Serve an index of very many tiny sets, in clusters that are dense and sparse; it takes seconds."""
    folder = tmp_path_factory.mktemp("many")
    rng = np.random.RandomState(0)
    centres, spread = 3 * rng.normal(size=(40, 2)), rng.uniform(0.05, 1, (N_MANY, 1))
    places = centres[rng.randint(0, 40, N_MANY)] + spread * rng.normal(size=(N_MANY, 2))
    sets = places[:, None] + 0.2 * rng.normal(size=(N_MANY, 2, 2))
    with slosh.SetIndex.create(folder / "many.slosh", dim=2, embedding=small_embedding(), n_jobs=1) as index:
        index.add(list(sets), metadata=[{"tenth": i % 10} for i in range(N_MANY)])
    with Server(folder, options=("--jobs", 1)) as made:
        yield made


def asked_tiles(page) -> list[tuple[int, int, int]]:
    """Return level, x and y of the tiles that were asked for."""
    found = [parse_qs(urlsplit(url).query) for url in page.asked if "/map/tile" in url]
    return [(int(each["level"][0]), int(each["x"][0]), int(each["y"][0])) for each in found]


def rests(page) -> None:
    """Wait until no more tiles are asked for."""
    expect(page.locator("#plane")).to_have_attribute("data-tiles", re.compile("[1-9]"))
    page.wait_for_timeout(300)
    page.wait_for_load_state("networkidle")
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def test_only_what_is_looked_at_is_loaded(visit, many_server):
    page = visit("#index=many", url=many_server.url)
    rests(page)
    assert asked_tiles(page) == [(0, 0, 0)]
    left, low, right, high = page.request.get(f"{page.base}/v1/indexes/many/map").json()["bounds"]
    x, y = (left + right) / 2 - (right - left) / 20, (low + high) / 2
    near = visit(f"#index=many&at={x:.5g},{y:.5g},{CLOSER}", url=many_server.url)
    rests(near)
    found = asked_tiles(near)
    (level,) = {each for each, _, _ in found} - {0}
    box = near.locator("#plane").bounding_box()
    across = min(
        (side - 2 * BORDER) / extent for side, extent in ((box["width"], right - left), (box["height"], high - low))
    )
    half = np.array([box["width"], box["height"]]) / 2 / (CLOSER * across)
    tile = np.array([right - left, high - low]) / 2**level
    begun = ((np.array([x, y]) - half - [left, low]) // tile).astype(int)
    ended = ((np.array([x, y]) + half - [left, low]) // tile).astype(int)
    looked_at = set(itertools.product(range(begun[0], ended[0] + 1), range(begun[1], ended[1] + 1)))
    assert {(i, j) for each, i, j in found if each} == looked_at
    assert len(looked_at) <= 9 < 4**level

    near.locator("#map-marks").focus()
    for _ in range(4):
        near.keyboard.press("ArrowRight")
    rests(near)
    moved = asked_tiles(near)
    assert len(moved) == len(set(moved))  # none is asked for again
    new = {(i, j) for each, i, j in moved if each} - looked_at
    assert new
    assert {j for _, j in new} <= {j for _, j in looked_at}
    assert {i for i, _ in new} <= {ended[0] + 1, ended[0] + 2}


def test_dots_grow_as_one_zooms_in(visit, many_server):
    page = visit("#index=many", url=many_server.url)
    plane = page.locator("#plane")
    sizes = []
    for _ in range(12):
        rests(page)
        sizes.append(float(plane.get_attribute("data-dot")))
        page.locator("#zoom-in").click()
    assert sizes[0] >= 2.6
    assert sizes == sorted(sizes)
    assert sizes[-1] > 1.5 * sizes[0]
    before = plane.get_attribute("data-dot")
    page.locator("#map-marks").focus()
    for key in ("ArrowLeft", "ArrowUp"):
        page.keyboard.press(key)
        rests(page)
        assert plane.get_attribute("data-dot") == before  # wherever one looks
    page.keyboard.press("0")
    expect(plane).to_have_attribute("data-dot", f"{sizes[0]:.2f}")
