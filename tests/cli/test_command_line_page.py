"""docs/command-line.md shows what the commands print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from slosh.cli import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "command-line.md"


def masked(text: str) -> list[str]:
    """Without numbers and units of time, which differ from machine to machine, and without what only aligns."""
    text = re.sub(r"(avx512\w*|avx2|sse\w*|neon|numpy)\b", "KERNEL", text)
    text = re.sub(r"recall #|exact|no promise", "", re.sub(r"-?\d+([.,]\d+)*(e-\d+)?", "#", text))
    text = re.sub(r"in # u?s,", "in # s,", text)
    return [
        " ".join(line.replace("─", " ").replace("-", " ").split()) for line in text.splitlines() if line.strip("─ ")
    ]


def test_the_page_shows_what_the_commands_print(tmp_path, monkeypatch, capsys):
    for library in ("matplotlib", "pyarrow", "ot"):
        pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    exec(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], {})
    commands = 0
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, shown = part.partition("\n")
            capsys.readouterr()
            main(shlex.split(line)[1:])
            out, err = capsys.readouterr()
            assert sorted(masked(out + err)) == sorted(masked(shown)), line
            commands += 1
    assert commands == text.count("\n$ slosh")
