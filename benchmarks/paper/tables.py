"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], lines: Sequence[Sequence[str]], right: bool = False) -> str:
    """Return a Markdown table; `right` aligns all columns but the first to the right, for numbers."""
    rule = ["---", *["---:" if right else "---"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, rule, *lines])
