"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], lines: Sequence[Sequence[str]], right: bool = False) -> str:
    """A table of text; with `right` all columns but the first are set to the right, as numbers are."""
    rule = ["---", *["---:" if right else "---"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, rule, *lines])
