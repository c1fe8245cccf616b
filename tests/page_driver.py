"""What tests do with the page in a browser: draw, drop files, wait for the answer, read what is shown."""

from __future__ import annotations

import io

import numpy as np
import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

expect = sync_api.expect
expect.set_options(timeout=30_000)

VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(event.violatedDirective + " " + event.blockedURI);
});
"""


def at_rest(page):
    """Wait until the answer to the newest question is shown."""
    expect(page.locator("#results")).to_have_attribute("aria-busy", "false")


def ids(page) -> list[str]:
    return page.locator(".card").evaluate_all("cards => cards.map(card => card.dataset.id)")


def draw(page, points, *, lift: bool = True) -> None:
    """Draw a stroke with the mouse; points are fractions of the pad, from its upper left corner."""
    box = page.locator("#pad").bounding_box()
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in points]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=8)
    if lift:
        page.mouse.up()


SEVEN = [(0.28, 0.2), (0.72, 0.2), (0.42, 0.82)]


def array_file(points) -> bytes:
    out = io.BytesIO()
    np.save(out, np.asarray(points, np.float32))
    return out.getvalue()


def drop(page, name: str, content: bytes) -> None:
    """Drop a file on the page, as a file manager does."""
    moved = page.evaluate_handle(
        """([name, bytes]) => {
          const moved = new DataTransfer();
          moved.items.add(new File([new Uint8Array(bytes)], name));
          return moved;
        }""",
        [name, list(content)],
    )
    for event in ("dragenter", "dragover", "drop"):
        page.dispatch_event("body", event, {"dataTransfer": moved})
