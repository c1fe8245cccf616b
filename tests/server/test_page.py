"""The page in a real browser, against a real server: queries, matches, addresses, keyboards, phones, colours."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import signal

import numpy as np
import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("uvicorn", reason="the extra server is not installed")

from page_browser import N_DIGITS, axe_source, make_digits  # noqa: E402
from page_driver import SEVEN, array_file, at_rest, draw, drop, expect, ids  # noqa: E402
from server_process import Server  # noqa: E402


def test_draw_a_digit_and_share_it(visit):
    page = visit()
    expect(page.locator("#results-title")).to_have_text("All sets")
    expect(page.locator(".card")).to_have_count(24)
    draw(page, SEVEN, lift=False)
    expect(page.locator("#results-title")).to_have_text("Nearest sets")  # though the pen is still down
    page.mouse.up()
    page.wait_for_url("**drawn=**")
    at_rest(page)
    expect(page.locator(".card")).to_have_count(12)
    shown = page.locator(".card .meta").all_inner_texts()
    assert sum("digit 7" in text for text in shown) >= 7, shown
    expect(page.locator("#status")).to_contain_text(f"12 of {N_DIGITS} sets")
    expect(page.locator("#status")).to_contain_text(re.compile(r"\d (µs|ms) · embedded distance · (exact|finds \d+%)"))
    found = ids(page)

    other = visit(page.url[len(page.base) + 1 :])
    expect(other.locator("#results-title")).to_have_text("Nearest sets")
    at_rest(other)
    assert ids(other) == found
    expect(other.locator("#query-name")).to_have_text("drawing")

    draw(page, [(0.3, 0.5), (0.7, 0.5)])
    expect(page.locator("#pad")).to_have_attribute("aria-label", re.compile("2 strokes"))
    page.locator("#undo").click()
    at_rest(page)
    assert ids(page) == found
    page.go_back()  # a drawing is one entry of the history
    expect(page.locator("#results-title")).to_have_text("All sets")
    page.go_forward()
    expect(page.locator("#results-title")).to_have_text("Nearest sets")
    page.locator("#clear").click()
    expect(page.locator("#results-title")).to_have_text("All sets")
    blank = """() => {
      const pad = document.querySelector("#pad");
      return pad.getContext("2d").getImageData(0, 0, pad.width, pad.height).data.every((value) => value === 0);
    }"""
    page.wait_for_function(blank)


def test_addresses_and_numbers_are_read_as_they_are_written(visit):
    page = visit()
    expect(page.locator(".card")).to_have_count(24)
    rng = np.random.RandomState(0)
    strokes = [rng.randint(0, 256, 2 * n).tolist() for n in (1, 2, 255)]
    points = rng.normal(size=(5, 3)).astype(np.float32).tolist()
    weighted = {"kind": "given", "points": points, "weights": [1, 0.5, 2, 0.25, 8], "name": "a & b # c"}
    queries = [None, {"kind": "stored", "id": "é/&=#?"}, {"kind": "drawn", "strokes": strokes}, weighted]
    more = {"index": "a b", "k": 7, "where": 'x = "y z"', "recall": "0.9", "fit": False, "at": [1, -2, 3]}
    again = page.evaluate(
        """async ([queries, more]) => {
          const { emptyState, read, write } = await import("./static/address.js");
          return queries.map((query) => read(write({ ...emptyState(), ...more, query })).state);
        }""",
        [queries, more],
    )
    assert [state["query"] for state in again] == queries
    assert all({name: state[name] for name in more} == more for state in again)
    long = page.evaluate(
        """async (stroke) => {
          const { emptyState, read, write } = await import("./static/address.js");
          return read(write({ ...emptyState(), query: { kind: "drawn", strokes: [stroke] } })).state.query.strokes;
        }""",
        (track := rng.randint(0, 256, 1400).tolist()),
    )
    assert long[0] + [value for part in long[1:] for value in part[2:]] == track  # parts that share an end
    texts = ["1;2;3\n4;5;6", "[[1, 2], [3, 4]]", "# x\n1\t2", "1 2 -1", "[1, 2", "1 2 3 4"]
    parsed = page.evaluate(
        """async (texts) => {
          const { parseNumbers } = await import("./static/numbers.js");
          return texts.map((text) => parseNumbers(text, 2, true));
        }""",
        texts,
    )
    assert parsed[0] == {"points": [[1, 2], [4, 5]], "weights": [3, 6]}
    assert parsed[1] == {"points": [[1, 2], [3, 4]], "weights": None}
    assert parsed[2] == {"points": [[1, 2]], "weights": None}
    assert ["error" in found for found in parsed[3:]] == [True, True, True]


def test_a_fitted_drawing_may_be_anywhere(visit):
    page = visit()
    expect(page.locator(".card")).to_have_count(24)
    draw(page, [(0.1 + 0.4 * x, 0.5 + 0.4 * y) for x, y in SEVEN])  # small, and in a corner
    page.wait_for_url("**drawn=**")
    at_rest(page)
    fitted = page.locator(".card .meta").all_inner_texts()
    assert sum("digit 7" in text for text in fitted) >= 7, fitted
    before = ids(page)
    with page.expect_response("**/search"):
        page.locator("#fit").uncheck()
    at_rest(page)
    assert ids(page) != before


def test_what_is_superseded_is_aborted(visit):
    page = visit("#index=digits&id=digit-0007")
    expect(page.locator(".card")).to_have_count(12)
    held = []
    page.route("**/search", lambda route: held.append(route))
    page.locator("summary").click()
    with page.expect_request("**/search"):
        page.locator("#recall").select_option("0.9")
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/search")):
        page.locator("#recall").select_option("1")
    page.unroute("**/search")
    for route in held:
        with contextlib.suppress(sync_api.Error):  # of the one that was aborted
            route.continue_()
    at_rest(page)
    expect(page.locator("#status")).to_contain_text("exact")


def test_drop_a_file(visit):
    page = visit()
    expect(page.locator(".card")).to_have_count(24)
    rod = [(3.0, y / 4) for y in range(32)]
    drop(page, "rod.npy", array_file(rod))
    expect(page.locator("#results-title")).to_have_text("Nearest sets")
    expect(page.locator("#query-name")).to_have_text("rod.npy")
    at_rest(page)
    found = ids(page)
    assert len(found) == 12
    other = visit(page.url[len(page.base) + 1 :])  # a short query is in the address
    expect(other.locator("#results-title")).to_have_text("Nearest sets")
    at_rest(other)
    assert ids(other) == found

    page.locator("#file").set_input_files({"name": "two.npy", "mimeType": "", "buffer": array_file([rod, rod[::-1]])})
    expect(page.locator("#of-file")).to_contain_text("Set 1 of 2 in two.npy")
    page.get_by_role("button", name="Next set of the file").click()
    expect(page.locator("#of-file")).to_contain_text("Set 2 of 2")

    drop(page, "holiday.docx", b"PK, or whatever")
    told = "holiday.docx: files of this kind cannot be read. Common ones that can are .npy, .csv"
    expect(page.locator("#notice p")).to_have_text(re.compile(f"{re.escape(told)}.{{0,60}} docs/files.md has all.$"))
    page.get_by_role("button", name="Dismiss").click()
    expect(page.locator("#notice")).to_be_hidden()
    drop(page, "broken.npy", b"\x93NUMPY, not really")
    expect(page.locator("#notice")).to_contain_text("broken.npy")
    drop(page, "deep.npy", array_file(np.zeros((4, 3))))
    expect(page.locator("#notice")).to_contain_text("3")
    drop(page, "rod.npy", array_file(rod))  # and all is well again
    expect(page.locator("#notice")).to_be_hidden()


def test_a_query_that_is_too_long_for_the_address(visit):
    page = visit()
    expect(page.locator(".card")).to_have_count(24)
    drop(page, "many.npy", array_file(np.random.RandomState(0).uniform(0, 7, (3000, 2))))
    page.wait_for_url("**unsaved=1**")
    at_rest(page)
    found = ids(page)
    page.locator(".card").first.click()
    expect(page.locator("#match-dialog")).to_be_visible()
    page.go_back()
    expect(page.locator("#match-dialog")).to_be_hidden()
    assert ids(page) == found  # the tab remembers it
    other = visit(page.url[len(page.base) + 1 :])
    expect(other.locator("#notice")).to_contain_text("too long")


def test_paste_numbers(visit):
    page = visit("#index=clouds")
    expect(page.locator("#pad-hint")).to_contain_text("paste numbers")
    page.locator("#paste").click()
    page.locator("#numbers").fill("1 2\n3 4")
    expect(page.locator("#paste-told")).to_contain_text("A point of this index has 3 numbers")
    page.locator("#numbers").fill("x,y,z\n1,2,3\n4,5,what")
    expect(page.locator("#paste-told")).to_contain_text("Point 2 has something in it that is not a number")
    expect(page.locator("#paste-search")).to_be_disabled()
    page.locator("#numbers").fill("x,y,z\n" + "\n".join(f"{i / 1.5},0.1,{i % 2}" for i in range(-8, 9)))
    expect(page.locator("#paste-told")).to_have_text("17 points.")
    page.locator("#paste-search").click()
    expect(page.locator("#results-title")).to_have_text("Nearest sets")
    expect(page.locator("#query-name")).to_have_text("pasted numbers")
    at_rest(page)
    assert all("kind rod" in text for text in page.locator(".card .meta").all_inner_texts()[:3])


def test_open_a_match_and_search_from_it(visit):
    page = visit("#index=digits&id=digit-0007")
    expect(page.locator(".card")).to_have_count(12)
    first, second = ids(page)[:2]
    distance = page.locator(".card .distance").first.inner_text()
    page.locator(".card").first.click()
    dialog = page.locator("#match-dialog")
    expect(dialog.get_by_role("heading", name=first)).to_be_visible()
    assert f"open={first}" in page.url
    expect(dialog.locator(".facts").first).to_contain_text(distance)
    expect(dialog.get_by_role("img", name=re.compile("digit-0007 with .* matched pairs"))).to_be_visible()
    expect(dialog.locator(".elements li")).to_have_count(8)
    expect(dialog.get_by_role("img", name=re.compile(r"The strongest \d+ of \d+ directions add \d+"))).to_be_attached()
    expect(dialog.locator(".block .facts")).to_contain_text("digit")

    picture = dialog.locator(".canvas canvas")
    before = picture.evaluate("canvas => canvas.toDataURL()")
    dialog.get_by_label("Move the query along the matching").fill("100")
    page.wait_for_function(
        "([canvas, before]) => canvas.toDataURL() !== before", arg=[picture.element_handle(), before]
    )

    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert "open=" not in page.url
    expect(page.locator(".card").first).to_be_focused()
    page.locator(".card").first.click()
    dialog.get_by_role("button", name="Next neighbour").click()
    expect(dialog.get_by_role("heading", name=second)).to_be_visible()
    shared = visit(page.url[len(page.base) + 1 :])
    expect(shared.locator("#match-dialog").get_by_role("heading", name=second)).to_be_visible()

    dialog.get_by_role("button", name="Search from here").click()
    expect(dialog).to_be_hidden()
    expect(page.locator("#query-name")).to_have_text(second)
    page.go_back()
    expect(dialog.get_by_role("heading", name=second)).to_be_visible()
    page.go_back()
    expect(dialog).to_be_hidden()
    expect(page.locator("#query-name")).to_have_text("digit-0007")


def test_how_to_search(visit):
    page = visit("#index=digits&id=digit-0007")
    expect(page.locator(".card")).to_have_count(12)
    page.keyboard.press("/")
    expect(page.locator("#where")).to_be_focused()
    page.keyboard.type("digit = 3")
    page.wait_for_url("**where=digit**")
    expect(page.locator(".card .meta").first).to_contain_text("digit 3")
    at_rest(page)
    assert all("digit 3" in text for text in page.locator(".card .meta").all_inner_texts())
    page.locator("#where").fill("digit =")
    expect(page.locator("#where-error")).to_contain_text("expected a value")
    expect(page.locator("#where")).to_have_attribute("aria-invalid", "true")
    page.locator("#where").fill("digit = 11")
    expect(page.locator("#message")).to_contain_text("No set matches the filter")
    page.locator("#where").fill("")
    expect(page.locator(".card")).to_have_count(12)

    page.locator("summary").click()
    page.locator("#k").fill("5")
    expect(page.locator(".card")).to_have_count(5)
    page.locator("#rerank").select_option("wasserstein")
    expect(page.locator("#status")).to_contain_text("Wasserstein distance")
    page.locator("#rerank").select_option("")
    page.locator("#certify").check()
    expect(page.locator("#status")).to_contain_text(
        re.compile(rf"sliced distance · proved with \d+ of {N_DIGITS} exact")
    )
    page.go_back()
    expect(page.locator("#status")).to_contain_text("embedded distance")
    assert "certify=1" not in page.url


def test_the_map(visit):
    from PIL import Image

    page = visit("#index=digits&id=digit-0007")
    expect(page.locator("#plane")).to_have_attribute("data-tiles", re.compile("[1-9]"))
    expect(page.locator("#map-status")).to_contain_text("of the variance")
    expect(page.locator("#legend button")).to_have_count(10)
    at_rest(page)

    def colours() -> int:
        picture = Image.open(io.BytesIO(page.locator("#plane").screenshot())).convert("RGB")
        seen = np.asarray(picture).reshape(-1, 3).astype(int)
        return int((np.ptp(seen, axis=1) > 60).sum())

    assert colours() > 500  # hundreds of coloured points are there
    page.locator("#legend button").nth(3).click()
    expect(page.locator("#legend button").nth(3)).to_have_attribute("aria-pressed", "true")
    page.locator("#legend button").nth(3).click()

    canvas = page.locator("#map-marks")
    page.locator("#zoom-in").click()
    page.wait_for_url("**at=**")
    canvas.focus()
    for key in ("ArrowLeft", "ArrowUp", "-", "0", "+"):
        page.keyboard.press(key)
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    expect(page.locator("#tip .id")).to_have_text(re.compile("digit-"))
    pointed = page.locator("#tip .id").inner_text()
    page.keyboard.press("Enter")
    expect(page.locator("#query-name")).to_have_text(pointed)
    page.locator("#colour").select_option("even")
    expect(page.locator("#legend button")).to_have_count(2)
    page.wait_for_url("**colour=even**")


def test_clouds_turn_together(visit):
    page = visit("#index=clouds&id=clouds-00")
    expect(page.locator(".card")).to_have_count(12)
    at_rest(page)
    pictures = """() => [document.querySelector("#pad"), ...document.querySelectorAll(".card canvas")].slice(0, 5)
        .map((canvas) => canvas.toDataURL())"""
    page.wait_for_function(f"() => new Set(({pictures})()).size === 5")  # each is drawn, and they differ
    before = page.evaluate(pictures)
    box = page.locator(".card").nth(1).bounding_box()
    page.mouse.move(box["x"] + 30, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + 90, box["y"] + 40, steps=5)
    page.mouse.up()
    page.wait_for_function(f"(before) => ({pictures})().every((picture, i) => picture !== before[i])", arg=before)
    expect(page.locator("#match-dialog")).to_be_hidden()  # a drag is not a click
    wide = visit("#index=wide&id=wide-00")
    expect(wide.locator(".card")).to_have_count(12)
    expect(wide.locator("#about")).to_contain_text("drawn by three principal components")
    wide.locator(".card").first.click()
    expect(wide.locator("#match-dialog").get_by_role("heading", name=re.compile("wide-"))).to_be_visible()


def test_keyboard_only(visit):
    page = visit()
    expect(page.locator(".card")).to_have_count(24)
    page.keyboard.press("Tab")
    expect(page.locator("#skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#results")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator(".card").first).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#results-title")).to_have_text("Nearest sets")
    page.locator("#skip").focus()
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "pad":
            break
    expect(page.locator("#pad")).to_be_focused()
    for key in (" ", *["ArrowDown"] * 10, " "):
        page.keyboard.press(key)
    expect(page.locator("#query-name")).to_have_text("drawing")
    expect(page.locator("#pad")).to_have_attribute("aria-label", re.compile("A drawing of 1 stroke[.]"))
    at_rest(page)
    page.keyboard.press("Backspace")
    expect(page.locator("#results-title")).to_have_text("All sets")
    page.keyboard.press(" ")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#results-title")).to_have_text("Nearest sets")
    at_rest(page)
    page.locator(".card").nth(2).focus()
    page.keyboard.press("Enter")
    dialog = page.locator("#match-dialog")
    expect(dialog).to_be_visible()
    expect(dialog.get_by_role("img", name=re.compile("matched pairs"))).to_be_visible()
    page.keyboard.press("ArrowRight")
    expect(dialog.locator("small")).to_have_text("neighbour 4 of 12")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page.locator(".card").nth(3)).to_be_focused()


def test_on_a_phone(visit):
    page = visit(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True, device_scale_factor=2)
    expect(page.locator(".card")).to_have_count(24)
    fits = "document.documentElement.scrollWidth <= window.innerWidth"
    assert page.evaluate(fits)
    box = page.locator("#pad").bounding_box()
    finger = page.context.new_cdp_session(page)
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in SEVEN]
    track = [places[0]]
    for (x0, y0), (x1, y1) in itertools.pairwise(places):
        track += [(x0 + t * (x1 - x0), y0 + t * (y1 - y0)) for t in np.linspace(0, 1, 9)[1:].tolist()]
    for i, (x, y) in enumerate(track):
        kind = "touchMove" if i else "touchStart"
        finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x, "y": y}]})
    finger.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    page.wait_for_url("**drawn=**")
    at_rest(page)
    shown = page.locator(".card .meta").all_inner_texts()
    assert sum("digit 7" in text for text in shown) >= 7, shown
    assert page.evaluate("window.scrollY") == 0  # a finger on the pad draws, and does not scroll
    assert page.evaluate(fits)
    assert not any(re.search("/v1/.*/map", url) for url in page.asked)  # what is not looked at is not loaded
    with page.expect_response("**/map/tile**"):
        page.locator("#plane").scroll_into_view_if_needed()
    page.locator(".card").first.click()  # a tap that takes long, on a busy machine, would be a long press
    expect(page.locator("#match-dialog")).to_be_visible()
    assert page.evaluate(fits)


def test_light_and_dark(visit):
    page = visit(color_scheme="dark")
    expect(page.locator(".card")).to_have_count(24)
    back = "getComputedStyle(document.documentElement).backgroundColor"
    dark = page.evaluate(back)
    assert sum(map(int, re.findall(r"\d+", dark))) < 150
    page.locator("#theme").click()  # from the system's to light
    assert sum(map(int, re.findall(r"\d+", page.evaluate(back)))) > 600
    page.reload()
    assert page.evaluate(back) != dark  # the choice is kept
    page.locator("#theme").click()
    assert page.evaluate(back) == dark


@pytest.mark.parametrize(
    "state", ["start", "results", "match", "dark", "phone", "clouds", "empty", "paste", "error", "old"]
)
def test_no_serious_accessibility_violation(visit, state):
    source = axe_source()
    addresses = {"results": "#index=digits&id=digit-0007&certify=1", "clouds": "#index=clouds&id=clouds-00"}
    addresses |= {"empty": "#index=empty", "match": "#index=digits&id=digit-0007", "error": "#index=missing"}
    addresses |= {"dark": "#index=digits&id=digit-0007"}
    options = {"dark": {"color_scheme": "dark"}, "phone": {"viewport": {"width": 390, "height": 844}}}
    page = visit(addresses.get(state, "#index=digits"), **options.get(state, {}))
    if state == "error":
        expect(page.locator("#notice")).to_contain_text("There is no index")
    elif state == "empty":
        expect(page.locator("#message")).to_contain_text("This index is empty")
    else:
        expect(page.locator(".card").first).to_be_visible()
    if state in ("match", "dark"):
        page.locator(".card").first.click()
        expect(page.locator("#match-dialog").get_by_role("img", name=re.compile("matched pairs"))).to_be_visible()
    if state == "old":
        page.locator("summary").click()
        page.locator("#k").fill("0")
        page.locator("#where").fill("digit =")
        expect(page.locator("#outdated")).not_to_be_empty()
    if state == "paste":
        page.locator("#paste").click()
        page.locator("#numbers").fill("1 2 3 4")
    page.evaluate(source)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    serious = [each for each in found["violations"] if each["impact"] in ("serious", "critical")]
    assert [(each["id"], each["help"], [node["html"] for node in each["nodes"]][:3]) for each in serious] == []


def test_an_empty_index_and_an_unknown_one(visit):
    page = visit("#index=empty")
    expect(page.locator("#message")).to_contain_text("slosh add http://")
    expect(page.locator("#map")).to_be_hidden()
    draw(page, SEVEN)
    expect(page.locator("#message")).to_contain_text("This index is empty")
    page.locator("#index").select_option("clouds")
    expect(page.locator(".card")).to_have_count(24)
    page.get_by_role("button", name="Next").click()
    expect(page.locator("#status")).to_contain_text("25 to 48 of 60")
    page.go_back()
    expect(page.locator("#status")).to_contain_text("1 to 24 of 60")
    page.goto(f"{page.base}/#index=clouds&id=nothing")
    expect(page.locator("#message")).to_contain_text("There is no set with the id")
    page.locator("#clear").click()
    expect(page.locator(".card")).to_have_count(24)
    page.goto(f"{page.base}/#index=nowhere")
    expect(page.locator("#notice")).to_contain_text("There is no index “nowhere” here. There are: clouds, digits")
    page.get_by_role("button", name="Open clouds").click()
    expect(page.locator("#notice")).to_be_hidden()
    expect(page.locator("#index")).to_have_value("clouds")


def test_the_server_goes_and_comes_back(visit, tmp_path):
    make_digits(tmp_path, 60)
    first = Server(tmp_path / "digits.slosh", options=("--jobs", 1))
    page = visit("#index=digits", url=first.url)
    expect(page.locator(".card")).to_have_count(24)
    first.stop(signal.SIGKILL)
    page.locator(".card").first.click()
    expect(page.locator("#notice")).to_contain_text("The server does not answer")
    with Server(tmp_path / "digits.slosh", options=("--jobs", 1, "--port", first.port)):
        expect(page.locator("#notice")).to_be_hidden()
        expect(page.locator("#results-title")).to_have_text("Nearest sets")


def test_a_server_with_keys(visit, tmp_path):
    make_digits(tmp_path, 60)
    keys = tmp_path / "keys.txt"
    keys.write_text("a-key-to-read-that-is-long-enough-0123456789 read\n")
    keys.chmod(0o600)
    with Server(tmp_path / "digits.slosh", options=("--jobs", 1, "--keys", keys)) as server:
        page = visit(url=server.url)
        dialog = page.locator("#key-dialog")
        expect(dialog).to_be_visible()
        page.locator("#key").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#key-error")).to_contain_text("does not know this key")
        page.locator("#key").fill("a-key-to-read-that-is-long-enough-0123456789")
        page.keyboard.press("Enter")
        expect(dialog).to_be_hidden()
        expect(page.locator(".card")).to_have_count(24)
        assert "long-enough" not in page.url
        page.reload()
        expect(page.locator(".card")).to_have_count(24)  # the tab keeps it
