"""The page where things are empty, odd, or go wrong: what it says, and that an old answer does not look new."""

from __future__ import annotations

import io
import itertools
import re
import shlex
import signal
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("uvicorn", reason="the extra server is not installed")

import slosh
from page_browser import make_digits
from page_driver import array_file, at_rest, draw, drop, expect, ids
from server_process import Server

LONG = {"about": "a long description, which goes on over several lines and does not end", "place": "somewhere"}
ODD = "odd näme"
GRIDS = (2, 3, 9, 10)
"""The sides of grids of points, each of which is a set."""


@pytest.fixture(scope="module")
def odd_server(tmp_path_factory):
    """Serve an index of one set, and one of sets that differ in size, place, and length of their metadata."""
    folder = tmp_path_factory.mktemp("odd")
    rng = np.random.RandomState(0)
    with slosh.SetIndex.create(folder / "one.slosh", dim=2) as index:
        index.add([rng.normal(size=(9, 2))], ids=["only"], metadata=[{"kind": "a"}])
    sizes = [2 + 3 * i % 100 for i in range(40)]
    sets = [(1 + i % 4) * rng.normal(size=(n, 2)) + i % 5 for i, n in enumerate(sizes)]
    with slosh.SetIndex.create(folder / f"{ODD}.slosh", dim=2) as index:
        metadata = [{"height": i / 2, **LONG} if i % 3 == 0 else {"place": "here"} for i in range(40)]
        index.add(sets, ids=[f"s{i}" for i in range(40)], metadata=metadata)
    with slosh.SetIndex.create(folder / "grids.slosh", dim=2) as index:
        index.add([np.array(list(itertools.product(np.linspace(0, 1, n), repeat=2))) for n in GRIDS])
    with slosh.SetIndex.create(folder / "tagged.slosh", dim=2) as index:
        tags = [["a", "b"], ["b", "a"], [None, "a"], "b", [], None]
        metadata = [{"tags": tags[i % 6], "note": "long " * 600} for i in range(12)]
        index.add(sets[:12], ids=[f"t{i:02}" for i in range(12)], metadata=metadata)
    with slosh.SetIndex.create(folder / "new.slosh", dim=2):
        pass
    with Server(folder, options=("--jobs", 1)) as made:
        yield made


def is_old(page) -> None:
    expect(page.locator("#outdated")).to_contain_text("the query before")
    expect(page.locator("#cards")).to_have_class(re.compile(r"\bold\b"))
    shown = page.locator(".card canvas").first.evaluate("canvas => Number(getComputedStyle(canvas).opacity)")
    assert shown < 0.5


def is_new(page) -> None:
    at_rest(page)
    expect(page.locator("#outdated")).to_be_hidden()
    expect(page.locator("#cards")).not_to_have_class(re.compile(r"\bold\b"))


def test_what_an_empty_index_says_to_type_works(visit, odd_server, tmp_path):
    page = visit("#index=new", url=odd_server.url)
    expect(page.locator("#pad-hint")).to_have_text("There is nothing to search yet: this index has no sets")
    expect(page.locator("#results-title")).to_have_text("No sets yet")
    draw(page, [(0.3, 0.5), (0.7, 0.5)])
    at_rest(page)
    expect(page.locator("#message")).to_contain_text("This index is empty")
    expect(page.locator("#status")).to_be_empty()
    page.locator("#clear").click()
    shell, _, *python = page.locator("#message pre").inner_text().splitlines()
    assert shell == f"slosh add {odd_server.url}#new FILES"
    np.save(tmp_path / "typed.npy", np.eye(2, dtype=np.float32))
    words = [word if word != "FILES" else str(tmp_path / "typed.npy") for word in shlex.split(shell)]
    subprocess.run([sys.executable, "-m", *words], check=True, capture_output=True, timeout=120)
    page.reload()
    expect(page.locator(".card")).to_have_count(1)
    assert ids(page) == ["typed.npy"]
    names = {"slosh": slosh, "sets": [np.ones((2, 2)), np.zeros((3, 2))]}
    exec("\n".join(python), names)
    names["index"].close()
    page.reload()
    expect(page.locator(".card")).to_have_count(3)


def test_an_empty_index_that_is_only_shown(visit, tmp_path):
    with slosh.SetIndex.create(tmp_path / "new.slosh", dim=2):
        pass
    with Server(tmp_path / "new.slosh", options=("--jobs", 1, "--read-only")) as server:
        page = visit("#index=new", url=server.url)
        expect(page.locator("#message")).to_contain_text("only shows it")
        expect(page.locator("#message pre")).to_have_count(0)


def test_files_of_numbers(visit):
    page = visit("#index=clouds")
    expect(page.locator(".card")).to_have_count(24)
    points = np.round(np.random.RandomState(3).normal(size=(12, 3)) * [3, 1, 1], 3).tolist()
    rows = "\n".join(",".join(map(str, point)) for point in points)
    files = {
        "given.npy": array_file(points),
        "names.csv": f"x,y,z\n{rows}\n".encode(),
        "quoted.csv": f'"x","y","z"\r\n{rows}'.encode(),
        "bare.CSV": rows.encode(),
        "tabs.tsv": rows.replace(",", "\t").encode(),
        "spaces.txt": ("# a comment\n" + rows.replace(",", "  ")).encode(),
        "list.json": str(points).encode(),
    }
    found = []
    for name, content in files.items():
        drop(page, name, content)
        expect(page.locator("#query-name")).to_have_text(name)
        expect(page.locator("#results-title")).to_have_text("Nearest sets")
        at_rest(page)
        found.append(ids(page))
    assert all(each == found[0] for each in found)
    assert len(found[0]) == 12

    several = "\n".join(f"{'ab'[i % 2]},{','.join(map(str, point))}" for i, point in enumerate(points))
    for name, head in (("first.csv", "shape,x,y,z"), ("named.csv", "id,x,y,z")):
        drop(page, name, f"{head}\n{several}".encode())
        expect(page.locator("#of-file")).to_contain_text(f"Set 1 of 2 in {name}")
    numbered = "\n".join(f"{','.join(map(str, point))},{i % 3}" for i, point in enumerate(points))
    drop(page, "behind.csv", f"x,y,z,id\n{numbered}".encode())
    expect(page.locator("#of-file")).to_contain_text("Set 1 of 3 in behind.csv")

    drop(page, "flat.csv", b"x,y\n1,2\n3,4\n")
    expect(page.locator("#notice")).to_contain_text("flat.csv: A point of this index has 3 numbers; these have 2.")
    expect(page.locator("#notice")).to_contain_text("has a column with the name id")
    drop(page, "empty.txt", b" \n")
    expect(page.locator("#notice")).to_contain_text("empty.txt: There are no numbers in it.")
    expect(page.locator("#query-name")).not_to_have_text("empty.txt")
    assert ".txt" in page.locator("#file").get_attribute("accept")


def test_a_file_of_other_dimensions(visit):
    page = visit()
    expect(page.locator(".card")).to_have_count(24)
    drop(page, "cloud.npy", array_file(np.eye(3)))
    said = "cloud.npy: its sets have 3 features, those of the index have 2. Choose another file, or another index."
    expect(page.locator("#notice")).to_contain_text(said)
    expect(page.locator("#notice")).not_to_contain_text("columns")


def test_a_card_has_the_colour_of_the_first_value_of_a_list(visit, odd_server):
    page = visit("#index=tagged", url=odd_server.url)
    expect(page.locator(".card")).to_have_count(12)
    page.locator("#colour").select_option("tags")
    expect(page.locator("#legend button")).to_have_count(2)
    colour = "element => getComputedStyle(element.querySelector('.chip')).backgroundColor"
    a, b = (page.locator(f"#legend button[data-value={value}]").evaluate(colour) for value in "ab")
    page.wait_for_function("a => getComputedStyle(document.querySelector('.card .chip')).backgroundColor === a", arg=a)
    assert [page.locator(f".card[data-id=t{i:02}]").evaluate(colour) for i in range(4)] == [a, b, a, b]
    assert page.locator(".card[data-id=t04] .chip, .card[data-id=t05] .chip").count() == 0


def test_a_card_has_the_beginning_of_a_long_value(visit, odd_server):
    page = visit("#index=tagged&id=t00", url=odd_server.url)
    expect(page.locator(".card")).to_have_count(11)
    about = page.locator(".card .meta").first.text_content()
    assert "note long long" in about
    assert about.endswith("…")
    assert len(about) < 300
    assert len(page.locator(".card").first.get_attribute("aria-label")) < 300
    page.locator(".card").first.click()
    expect(page.locator("#match-dialog")).to_contain_text("long " * 599)


def test_the_number_of_neighbours(visit):
    page = visit("#index=digits&id=digit-0007")
    expect(page.locator(".card")).to_have_count(12)
    page.locator("summary").click()
    field, error = page.locator("#k"), page.locator("#k-error")
    for wrong in ("0", "5000", "2.5", "-3"):
        field.fill(wrong)
        expect(error).to_have_text("Give a whole number from 1 to 1,000. The results are of 12.")
        expect(field).to_have_attribute("aria-invalid", "true")
    field.fill("7")
    expect(error).to_be_empty()
    expect(field).to_have_attribute("aria-invalid", "false")
    expect(page.locator(".card")).to_have_count(7)
    field.fill("0")
    page.locator("#recall").focus()
    page.locator("#recall").select_option("1")
    expect(page.locator("#status")).to_contain_text("exact")
    expect(error).to_be_empty()
    expect(field).to_have_value("7")  # what counts is shown again
    field.fill("")
    field.blur()
    expect(field).to_have_value("7")

    page.goto(f"{page.base}/#index=digits&id=digit-0007&k=5000")
    expect(error).to_have_text("Give a whole number from 1 to 1,000.")
    is_old(page)
    field.fill("3")
    expect(page.locator(".card")).to_have_count(3)
    is_new(page)


def test_only_what_can_be_proved_is_offered(visit):
    page = visit("#index=digits&id=digit-0007")
    expect(page.locator(".card")).to_have_count(12)
    page.locator("summary").click()
    prove, why = page.locator("#certify"), page.locator("#certify-why")
    option = "#rerank option[value={}]".format
    page.locator("#rerank").select_option("wasserstein")
    expect(page.locator("#status")).to_contain_text("Wasserstein distance")
    expect(prove).to_be_disabled()
    expect(why).to_contain_text("the sliced and by the Hausdorff distance")
    page.locator("#rerank").select_option("")
    expect(prove).to_be_enabled()
    expect(why).to_be_empty()
    page.locator("#recall").select_option("0.9")
    expect(prove).to_be_disabled()
    expect(why).to_contain_text("exact")
    page.locator("#recall").select_option("")
    prove.check()
    expect(page.locator("#status")).to_contain_text("sliced distance · proved")
    expect(page.locator("#rerank")).to_have_value("sliced")  # which the proof is by, not what is usual
    expect(page.locator("#rerank option").first).to_have_text("Embedded")
    expect(page.locator("#rerank option").first).to_be_disabled()
    prove.uncheck()
    expect(page.locator("#status")).to_contain_text("embedded distance")
    expect(page.locator("#rerank")).to_have_value("")
    prove.check()
    expect(page.locator("#status")).to_contain_text("sliced distance · proved")
    for kind in ("wasserstein", "chamfer"):
        expect(page.locator(option(kind))).to_be_disabled()
    expect(page.locator(option("sliced"))).to_be_enabled()
    expect(page.locator("#recall option[value='0.9']")).to_be_disabled()

    page.locator("#rerank").select_option("hausdorff")  # which only some embeddings can prove
    expect(page.locator("#control-error")).to_contain_text("This index cannot prove its answer by this distance")
    is_old(page)
    page.go_back()
    expect(page.locator("#control-error")).to_be_empty()
    is_new(page)


def test_an_address_that_asks_for_the_impossible(visit):
    page = visit("#index=digits&id=digit-0007&rerank=wasserstein&certify=1")
    told = "A proof is possible by the sliced and by the Hausdorff distance"
    expect(page.locator("#control-error")).to_contain_text(told)
    expect(page.locator("#message")).to_contain_text(told)
    expect(page.locator("#results-title")).to_have_text("No answer")
    assert not any(url.endswith("/search") for url in page.asked)
    page.locator("#certify").uncheck()
    expect(page.locator(".card")).to_have_count(12)
    expect(page.locator("#control-error")).to_be_empty()
    expect(page.locator("#message")).to_be_hidden()
    page.goto(f"{page.base}/#index=digits&id=digit-0007&rerank=taxicab")
    expect(page.locator("#control-error")).to_contain_text("no distance “taxicab”")
    is_old(page)


def test_a_damaged_address(visit):
    page = visit("#index=digits&drawn=Bwd-&k=0&at=1,2&recall=0.9")
    expect(page.locator("#notice")).to_contain_text(
        "This address is damaged: the number of neighbours, the place on the map and the query could not be read."
    )
    expect(page.locator(".card")).to_have_count(24)
    expect(page.locator("#recall")).to_have_value("0.9")
    page.get_by_role("button", name="Dismiss").click()
    expect(page.locator("#notice")).to_be_hidden()
    for query in ("drawn=!", "points=AADAfw&dim=1", "points=AAAA&dim=1", "points=AACAPw&dim=0"):
        page.goto(f"{page.base}/#index=digits")
        page.goto(f"{page.base}/#index=digits&{query}")
        expect(page.locator("#notice")).to_contain_text("the query could not be read")
        page.get_by_role("button", name="Dismiss").click()


def test_a_bad_filter_leaves_old_results(visit):
    page = visit("#index=digits&id=digit-0007")
    expect(page.locator(".card")).to_have_count(12)
    page.locator("#where").fill("digit =")
    expect(page.locator("#where-error")).not_to_be_empty()
    is_old(page)
    page.locator("#where").fill("digit = 3")
    expect(page.locator(".card .meta").first).to_contain_text("digit 3")
    is_new(page)
    page.locator("#where").fill("digit = 3 and")
    is_old(page)
    page.locator("#where").fill("digit = 3")  # what is shown is the answer again, without asking
    is_new(page)
    other = visit("#index=digits&id=digit-0007&where=digit+%3D")
    expect(other.locator("#message")).to_contain_text("This could not be searched")


def test_the_server_goes_while_there_are_results(visit, tmp_path):
    make_digits(tmp_path, 60)
    first = Server(tmp_path / "digits.slosh", options=("--jobs", 1))
    page = visit("#index=digits&id=digit-0007", url=first.url)
    expect(page.locator(".card")).to_have_count(12)
    at_rest(page)
    first.stop(signal.SIGKILL)
    page.locator(".card").nth(1).click()
    dialog = page.locator("#match-dialog")
    note = dialog.get_by_text("The server does not answer")
    expect(note).to_be_visible()
    on_top = """(note) => {
      const box = note.getBoundingClientRect();
      return document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2) === note;
    }"""
    assert note.evaluate(on_top)  # not behind the dialog, as the notice is
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    page.locator("summary").click()
    page.locator("#k").fill("5")
    expect(page.locator("#notice")).to_contain_text("The server does not answer")
    is_old(page)
    page.locator(".card").nth(1).click()
    expect(note).to_be_visible()
    expect(dialog.locator("small")).to_be_empty()  # its place in an old answer says nothing
    with Server(tmp_path / "digits.slosh", options=("--jobs", 1, "--port", first.port)):
        expect(dialog.get_by_role("img", name=re.compile("matched pairs"))).to_be_visible()
        expect(note).to_have_count(0)
        page.keyboard.press("Escape")
        expect(page.locator(".card")).to_have_count(5)
        is_new(page)


def test_cards_of_one_row_have_their_pictures_at_one_height(visit, odd_server):
    page = visit(f"#index={ODD}&id=s1", url=odd_server.url)
    expect(page.locator(".card")).to_have_count(12)
    at_rest(page)
    places = page.locator(".card").evaluate_all(
        """cards => cards.map((card) => {
          const [outer, canvas, text] = [card, ...card.children].map((each) => each.getBoundingClientRect());
          return [outer.top, canvas.top - outer.top, text.height];
        })"""
    )
    assert len({round(height) for _, _, height in places}) > 1  # some have more to say than others
    assert all(0 <= gap <= 2 for _, gap, _ in places), places


def pictures(page) -> list[np.ndarray]:
    """Return how opaque each pixel of the pictures of the cards is."""
    found = page.locator(".card canvas").evaluate_all(
        """canvases => canvases.map((canvas) => {
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          return [canvas.width, Array.from(data).filter((_, i) => i % 4 === 3)];
        })"""
    )
    return [np.array(opaque).reshape(-1, width) for width, opaque in found]


def painted(page) -> None:
    at_rest(page)
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def test_no_point_is_cut_at_the_edge_of_a_picture(visit):
    page = visit("#index=clouds&id=clouds-00")
    expect(page.locator(".card")).to_have_count(12)
    page.locator("#pad").focus()
    for _ in range(4):
        painted(page)
        for picture in pictures(page):
            assert picture.any()
            assert not picture[[0, -1]].any()
            assert not picture[:, [0, -1]].any()
        for _ in range(5):
            page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")


def test_one_stray_point_does_not_make_a_speck_of_all_others(visit):
    page = visit()
    cloud = np.random.RandomState(1).normal(size=(200, 3))
    frame = "async (points) => (await import('./static/cloud.js')).frameOf([points])"
    own = page.evaluate(frame, cloud.tolist())
    assert own["side"] >= 2 * np.linalg.norm(cloud - own["centre"], axis=1).max() - 1e-9
    assert page.evaluate(frame, [*cloud.tolist(), [500.0, 0, 0]]) == own


def test_dots_have_one_size(visit, odd_server):
    page = visit("#index=grids", url=odd_server.url)
    expect(page.locator(".card")).to_have_count(len(GRIDS))
    painted(page)
    areas = [(picture > 100).sum() / n**2 for n, picture in zip(GRIDS, pictures(page), strict=True)]
    assert areas == pytest.approx([areas[0]] * len(areas), rel=0.15)


def test_a_query_beyond_the_usual_place_is_drawn(visit):
    page = visit()
    expect(page.locator(".card")).to_have_count(24)
    drop(page, "far.npy", array_file(np.random.RandomState(0).normal(size=(30, 2)) + 900))
    expect(page.locator("#query-name")).to_have_text("far.npy")
    page.wait_for_function(
        """() => {
          const pad = document.querySelector("#pad");
          const { data } = pad.getContext("2d").getImageData(0, 0, pad.width, pad.height);
          return data.some((value) => value > 0);
        }"""
    )


def test_the_map_of_one_set_and_its_first_colour(visit, odd_server):
    page = visit("#index=one&id=only", url=odd_server.url)
    expect(page.locator("#map-status")).to_have_text("1 set")
    expect(page.locator("#message")).to_contain_text("There is no other set in this index")
    clouds = visit("#index=clouds")
    expect(clouds.locator("#colour")).to_have_value("kind")  # a category, before a number
    expect(clouds.locator("#legend button")).to_have_count(2)
    odd = visit(f"#index={ODD}", url=odd_server.url)
    expect(odd.locator("#colour")).to_have_value("place")  # not what only some sets have, nor the number


def test_a_query_beyond_the_map_is_marked_at_its_edge(visit):
    from PIL import Image

    page = visit()
    expect(page.locator("#plane")).to_have_attribute("data-tiles", re.compile("[1-9]"))
    plane = page.locator("#plane")
    drop(page, "far.npy", array_file(np.random.RandomState(0).normal(size=(30, 2)) + 900))
    expect(plane).to_have_attribute("data-query", "beyond")
    expect(page.locator("#map-status")).to_contain_text("the query is far outside")
    picture = np.asarray(Image.open(io.BytesIO(plane.screenshot())).convert("RGB")).astype(int)
    assert (np.ptp(picture, axis=2) > 60).sum() > 500  # the sets are still to be seen
    page.locator("#clear").click()
    expect(plane).to_have_attribute("data-query", "none")
    expect(page.locator("#map-status")).not_to_contain_text("outside")
    page.goto(f"{page.base}/#index=digits&id=digit-0007")
    expect(plane).to_have_attribute("data-query", "shown")
    for _ in range(5):
        page.locator("#zoom-in").click()
    expect(plane).to_have_attribute("data-query", "beyond")
    marks = page.evaluate(
        """async (places) => {
          const { edgePlace } = await import("./static/map-paint.js");
          return places.map((place) => edgePlace(place, [400, 300], new DOMRect(340, 0, 60, 120)));
        }""",
        [[200, 150], [4000, 150], [-50, 150], [200, -999], [390, 20], [900, -500], [200, 150.5]],
    )
    assert [mark["beyond"] for mark in marks] == [False, True, True, True, True, True, False]
    for mark in marks:
        x, y = mark["place"]
        assert 16 <= x <= 384
        assert 16 <= y <= 284
        assert not (x > 340 and y < 120)  # which the buttons cover
    assert marks[1]["place"] == pytest.approx([384, 150])
    assert marks[1]["direction"] == pytest.approx([1, 0])


def test_a_mark_is_not_under_the_buttons(visit):
    page = visit("#index=clouds")
    expect(page.locator("#plane")).to_have_attribute("data-tiles", re.compile("[1-9]"))
    routes = f"{page.base}/v1/indexes/clouds/map"
    _, _, right, high = page.request.get(routes).json()["bounds"]
    rng = np.random.RandomState(0)
    stretches, moves = rng.uniform(0, 6, (200, 3)), rng.normal(size=(200, 3))
    sets = [(rng.normal(size=(30, 3)) * a + b).round(3).tolist() for a, b in zip(stretches, moves, strict=True)]
    places = page.request.post(f"{routes}/place", data={"queries": sets}).json()["queries"]
    beyond = [sets[i] for i, (x, y) in enumerate(places) if x > right and y > high]
    assert beyond  # it is the upper right corner of all that is shown
    drop(page, "corner.npy", array_file(beyond[0]))
    expect(page.locator("#plane")).to_have_attribute("data-query", "shown")
    expect(page.locator("#map-status")).not_to_contain_text("outside")


def test_nothing_is_cut_at_360_pixels(visit):
    page = visit("#index=digits&id=digit-0007", viewport={"width": 360, "height": 740})
    expect(page.locator(".card")).to_have_count(12)
    page.locator("#plane").scroll_into_view_if_needed()
    status = page.locator("#map-status")
    expect(status).to_contain_text("of the variance")
    assert status.evaluate("each => each.scrollWidth <= each.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    empty = visit("#index=empty", viewport={"width": 360, "height": 740})
    assert empty.locator("#message pre").evaluate("each => each.scrollWidth <= each.clientWidth")


def test_controls_show_what_the_address_says_after_going_back(visit):
    page = visit("#index=clouds&id=clouds-00")
    expect(page.locator(".card")).to_have_count(12)
    where, k = page.locator("#where"), page.locator("#k")
    where.click()
    page.keyboard.type("kind = rod")
    page.keyboard.press("Enter")
    page.wait_for_url("**where=kind**")
    expect(where).to_be_focused()
    page.go_back()
    expect(where).to_have_value("")
    page.keyboard.type("kind = disc")  # is a new entry, not a change of the one that was gone back to
    page.wait_for_url("**disc**")
    page.go_back()
    expect(where).to_have_value("")
    assert "where" not in page.url
    expect(page.locator("#query-name")).to_have_text("clouds-00")

    page.locator("summary").first.click()
    k.fill("5")
    page.keyboard.press("Enter")
    expect(page.locator(".card")).to_have_count(5)
    page.go_back()
    expect(page.locator(".card")).to_have_count(12)
    expect(k).to_have_value("12")
    k.fill("0")
    expect(page.locator("#k-error")).not_to_be_empty()
    page.go_forward()
    expect(page.locator(".card")).to_have_count(5)
    expect(k).to_have_value("5")
    expect(page.locator("#k-error")).to_be_empty()


def test_what_is_being_typed_is_not_overwritten(visit):
    page = visit("#index=clouds&id=clouds-00")
    expect(page.locator(".card")).to_have_count(12)
    where = page.locator("#where")
    where.click()
    page.keyboard.type("kind = rod ")  # with a space, since more is to come
    page.wait_for_url("**where=kind**")
    at_rest(page)
    expect(where).to_have_value("kind = rod ")
    page.keyboard.type("and height < 9")
    page.wait_for_url("**height**")
    expect(where).to_have_value("kind = rod and height < 9")


@pytest.mark.parametrize("leave", ["back", "address", "chosen"])
def test_an_unknown_index_is_told_of_until_it_is_left(visit, leave):
    page = visit("#index=clouds&id=clouds-00")
    expect(page.locator(".card")).to_have_count(12)
    page.goto(f"{page.base}/#index=nope")
    expect(page.locator("#notice")).to_contain_text("There is no index “nope” here")
    expect(page.locator("#columns")).to_be_hidden()  # another index would pass for the one of the address
    expect(page.locator("#about")).to_be_empty()
    if leave == "back":
        page.go_back()
        expect(page.locator("#query-name")).to_have_text("clouds-00")
    elif leave == "address":
        page.goto(f"{page.base}/#index=clouds")
    else:
        page.locator("#index").select_option("clouds")
    expect(page.locator("#results-title")).to_be_visible()
    expect(page.locator("#notice")).to_be_hidden()
    expect(page.locator(".card").first).to_be_visible()
    expect(page.locator("#index")).to_have_value("clouds")
    expect(page.locator("#plane")).to_have_attribute("data-tiles", re.compile("[1-9]"))


def test_a_notice_about_an_address_goes_with_it(visit):
    page = visit("#index=clouds")
    expect(page.locator(".card")).to_have_count(24)
    page.goto(f"{page.base}/#index=clouds&k=0")
    expect(page.locator("#notice")).to_contain_text("This address is damaged")
    page.go_back()
    expect(page.locator("#notice")).to_be_hidden()
    page.goto(f"{page.base}/#index=clouds&unsaved=1")
    expect(page.locator("#notice")).to_contain_text("too long")
    page.go_back()
    expect(page.locator("#notice")).to_be_hidden()


def test_the_index_of_the_newest_address_is_shown(visit):
    page = visit("#index=digits")
    expect(page.locator(".card")).to_have_count(24)
    held = []
    page.route("**/indexes/wide", lambda route: held.append(route))
    with page.expect_request("**/indexes/wide"):
        page.goto(f"{page.base}/#index=wide")
    page.goto(f"{page.base}/#index=clouds")
    expect(page.locator("#about")).to_contain_text("3 dimensions")
    with page.expect_response("**/indexes/wide"):
        held[0].continue_()
    page.wait_for_timeout(300)  # what comes too late changes nothing
    expect(page.locator("#about")).to_contain_text("3 dimensions")
    expect(page.locator(".card")).to_have_count(24)


def test_no_query_is_marked_that_has_no_answer(visit):
    page = visit("#index=digits&id=digit-0007")
    plane = page.locator("#plane")
    expect(plane).to_have_attribute("data-query", "shown")
    page.goto(f"{page.base}/#index=digits&id=gone")
    expect(page.locator("#message")).to_contain_text("There is no set with the id")
    expect(plane).to_have_attribute("data-query", "none")
    page.go_back()
    expect(plane).to_have_attribute("data-query", "shown")
    page.goto(f"{page.base}/#index=digits&id=digit-0008&certify=1&rerank=wasserstein")
    expect(page.locator("#control-error")).to_contain_text("A proof is possible")
    expect(plane).to_have_attribute("data-query", "none")
    page.go_back()  # to what is shown already: nothing is asked
    is_new(page)
    expect(plane).to_have_attribute("data-query", "shown")
    page.locator("#where").fill("digit =")
    is_old(page)
    expect(plane).to_have_attribute("data-query", "none")
    page.locator("#where").fill("")
    is_new(page)
    expect(plane).to_have_attribute("data-query", "shown")


def test_an_unusual_query_is_told_what_that_means(visit):
    page = visit()
    stats = {"recall": 0.953, "unlike": [True]}

    def answered(route):
        answer = route.fetch()
        told = answer.json()
        told["stats"] |= stats
        route.fulfill(response=answer, json=told)

    page.route("**/search", answered)
    page.goto(f"{page.base}/#index=digits&id=digit-0007")
    expect(page.locator("#status")).to_contain_text("finds 95% of the true nearest")
    caution = page.locator("#caution")
    summary, why = caution.locator("summary"), caution.locator("p")
    expect(summary).to_have_text("An unusual query: fewer may be found")
    expect(why).to_be_hidden()
    summary.focus()
    page.keyboard.press("Enter")
    expect(why).to_contain_text("The 95% was measured with stored sets as queries")
    stats["recall"] = 0.9
    page.goto(f"{page.base}/#index=digits&id=digit-0008")
    expect(why).to_contain_text("The 90%")  # and it is still open
    for recall, unlike in ((1, [True]), (None, [True]), (0.9, [False]), (0.9, None)):
        stats |= {"recall": recall, "unlike": unlike}
        page.goto(f"{page.base}/#index=digits")
        expect(caution).to_be_empty()
        page.goto(f"{page.base}/#index=digits&id=digit-0007")
        expect(page.locator("#results-title")).to_have_text("Nearest sets")
        at_rest(page)
        expect(caution).to_be_empty()
    expect(page.locator("#status")).not_to_contain_text("unlike")


def test_an_address_that_changes_while_its_index_is_opened_is_searched(visit):
    """The index is then opened twice: the second one, when it is there, does not give up the search of the first."""
    page = visit("static/style.css")
    opened, searched = [], []
    page.route("**/v1/indexes/digits", lambda route: opened.append(route))
    page.route("**/search", lambda route: searched.append(route))

    def until(done):
        while not done():
            page.wait_for_timeout(10)  # in which routes are called

    page.goto(f"{page.base}/#index=digits")
    until(lambda: len(opened) == 1)
    page.evaluate("window.location.hash = '#index=digits&id=digit-0007'")
    until(lambda: len(opened) == 2)
    opened[0].continue_()
    until(lambda: searched)
    with page.expect_response("**/v1/indexes/digits"):
        opened[1].continue_()
    page.evaluate("new Promise((done) => setTimeout(done, 300))")
    for route in searched:
        route.continue_()
    page.unroute("**/search")
    expect(page.locator("#results-title")).to_have_text("Nearest sets")
    expect(page.locator("#status")).to_contain_text("of 600 sets")


def test_the_distance_of_parts_is_named(visit, tmp_path):
    rng = np.random.RandomState(0)
    with slosh.SetIndex.create(tmp_path / "parts.slosh", dim=2) as index:
        index.add(list(rng.normal(size=(40, 12, 2))))
        index.enable("parts")
    with Server(tmp_path / "parts.slosh", options=("--jobs", 1)) as server:
        page = visit("#index=parts&id=3", url=server.url)
        page.locator("#more summary").click()
        chosen = page.locator("#rerank option:checked")
        expect(chosen).to_have_text("Embedded")
        for match, name, told in (
            ("part", "To the nearest element", "mean distance to the nearest element"),
            ("both", "Chamfer", "Chamfer distance"),
            ("whole", "Embedded", "embedded distance"),
        ):
            page.locator("#match").select_option(match)
            expect(chosen).to_have_text(name)
            expect(page.locator("#status")).to_contain_text(told)
        page.locator("#match").select_option("part")
        page.locator("#certify").check()
        expect(page.locator("#status")).to_contain_text("mean distance to the nearest element · proved")
        expect(chosen).to_have_text("To the nearest element")


def test_where_no_index_is_shown_the_notice_is_in_the_page(visit):
    page = visit("#index=nope")
    expect(page.locator("#notice")).to_contain_text("There is no index")
    box = page.locator("#notice").bounding_box()
    assert box["y"] + box["height"] < page.viewport_size["height"] / 2
