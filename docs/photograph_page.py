"""Draw docs/page.png: the page of `slosh serve` in Chromium, after someone has drawn a two. `make docs` runs it.

It needs the extra `test`, Debian's Chromium, and Pillow, which comes with matplotlib.
"""

from __future__ import annotations

import io
import math
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

PICTURE = Path(__file__).parent / "page.png"
OPTIONS = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]


def two() -> list[tuple[float, float]]:
    """Return the stroke of a two, in fractions of the pad from its upper left corner."""
    turns = [math.pi * (1 + t / 14) for t in range(15)]
    arc = [(0.5 + 0.17 * math.cos(turn), 0.33 + 0.13 * math.sin(turn)) for turn in turns]
    down = [(0.67 - 0.02 * t, 0.33 + 0.045 * t) for t in range(1, 5)]
    back = [(0.59 - 0.032 * t, 0.51 + 0.038 * t) for t in range(1, 9)]
    return [*arc, *down, *back, (0.33, 0.82), (0.45, 0.82), (0.58, 0.82), (0.7, 0.82)]


def draw(page: Page) -> None:
    box = page.locator("#pad").bounding_box()
    assert box is not None
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in two()]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=3)
    page.mouse.up()
    page.mouse.move(5, 5)


def take_picture(url: str) -> bytes:
    """Return the page as PNG, when everything that it shows is there."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=OPTIONS)
        context = browser.new_context(viewport={"width": 1440, "height": 800}, reduced_motion="reduce")
        page = context.new_page()
        page.goto(url)
        expect(page.locator(".card")).to_have_count(24, timeout=30_000)
        expect(page.locator("#plane")).to_have_attribute("data-tiles", "1", timeout=30_000)
        with page.expect_response("**/map/place"):
            draw(page)
        page.wait_for_load_state("networkidle")
        expect(page.locator("#results")).to_have_attribute("aria-busy", "false")
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return page.screenshot()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "slosh", "demo", "--serve", "--port", "0", "--out", folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo:
            assert demo.stdout is not None
            found = next(filter(None, (re.search(r"http://\S+#index=digits", line) for line in demo.stdout)))
            try:
                picture = take_picture(found[0])
            finally:
                demo.send_signal(signal.SIGINT)
    photograph = Image.open(io.BytesIO(picture)).convert("RGB")
    # By coverage, or the colours of small dots are mixed with those of large areas.
    photograph.quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=3).save(PICTURE, optimize=True)
    print(f"{PICTURE}: {PICTURE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
