"""The files of the page, without a browser: nothing inline, nothing missing, nothing from elsewhere; and the demo."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import slosh.server
from page_browser import make_digits
from slosh.cli import main

STATIC = Path(slosh.server.__file__).parent / "static"
MODULES = sorted(STATIC.glob("*.js"))


class Markup(HTMLParser):
    """Collects what a strict content security policy forbids, and what the page refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.forbidden, self.references, self.ids, self.symbols = [], [], [], []
        self._script = False

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.forbidden += [(tag, name) for name in given if name == "style" or name.startswith("on")]
        self.forbidden += [tag] * (tag == "style")
        self._script = tag == "script" and "src" not in given
        self.ids += [given["id"]] if "id" in given else []
        self.references += [given[name] for name in ("src", "href") if name in given]

    def handle_data(self, data):
        if self._script and data.strip():
            self.forbidden.append(data)


@pytest.fixture(scope="module")
def markup():
    made = Markup()
    made.feed((STATIC / "index.html").read_text())
    return made


def test_the_markup_is_strict_and_complete(markup):
    assert markup.forbidden == []
    assert len(markup.ids) == len(set(markup.ids))
    for reference in markup.references:
        if reference.startswith("#"):
            assert reference[1:] in markup.ids, reference
        else:
            assert (STATIC / reference.removeprefix("static/")).is_file(), reference


def test_what_the_modules_name_is_there(markup):
    for module in MODULES:
        text = module.read_text()
        for name in re.findall(r'from "\./([^"]+)"', text):
            assert (STATIC / name).is_file(), (module.name, name)
        for name in re.findall(r'byId\("([^"]+)"', text):
            assert name in markup.ids, (module.name, name)
        for name in re.findall(r'(?<![a-zA-Z])icon\("([^"]+)"\)', text):
            assert f"icon-{name}" in markup.ids, (module.name, name)
    imported = {name for module in MODULES for name in re.findall(r'from "\./([^"]+)"', module.read_text())}
    loaded = {reference.removeprefix("static/") for reference in markup.references}
    assert {module.name for module in MODULES} <= imported | loaded  # no module is left over


def test_no_module_makes_code_or_markup_of_text_or_asks_others():
    forbidden = r"\binnerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setAttribute\(.style"
    for module in MODULES:
        text = module.read_text()
        assert not re.search(forbidden, text), module.name
        assert set(re.findall(r"https?://[^\s\"'`)]+", text)) <= {"http://www.w3.org/2000/svg"}, module.name
    assert "url(" not in (STATIC / "style.css").read_text()


EYES = {
    "usual": np.eye(3),
    "without red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "without green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "without blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
"""What eyes see of linear red, green and blue (Machado, Oliveira and Fernandes 2009)."""
TO_CONES = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.63]])
TO_LAB = np.array([[0.2105, 0.7936, -0.0041], [1.978, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]])
"""Oklab: what looks equally different is equally far."""


def linear(colours: list[str]) -> np.ndarray:
    values = np.array([[int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)] for colour in colours])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_ten_values_have_ten_colours_for_all_eyes(theme):
    rules = re.findall(r"^:root[^{]*\{(.*?)^\}", (STATIC / "style.css").read_text(), re.DOTALL | re.MULTILINE)
    named = dict(re.findall(r"--(\w+): (#\w{6});", rules[theme == "dark"]))
    inks = linear([named[f"c{i}"] for i in range(10)])
    for ground in ("paper", "sunk"):  # of the legend, and of the map
        lights = [each @ [0.2126, 0.7152, 0.0722] + 0.05 for each in (inks, linear([named[ground]]))]
        assert (np.maximum(*lights) / np.minimum(*lights)).min() >= 3
    for eyes, sees in EYES.items():
        seen = np.cbrt(np.clip(inks @ np.transpose(sees), 0, 1) @ TO_CONES.T) @ TO_LAB.T
        apart = np.linalg.norm(seen[:, None] - seen, axis=2) + np.eye(10)
        assert apart.min() > (0.13 if eyes == "usual" else 0.07), (eyes, divmod(int(apart.argmin()), 10))


def test_the_demo_serves_its_index(tmp_path):
    pytest.importorskip("uvicorn", reason="the server needs slosh[server]")
    make_digits(tmp_path, 60)
    code = (
        "import sys; from pathlib import Path; from slosh.cli.demo import serve_demo; serve_demo(Path(sys.argv[1]), 0)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = next(filter(None, (re.search(r"(http://\S+)/#index=digits", line) for line in process.stdout)))
        with urllib.request.urlopen(f"{found[1]}/", timeout=60) as answer:
            policy = answer.headers["Content-Security-Policy"]
            assert b"<title>slosh</title>" in answer.read()
        with urllib.request.urlopen(f"{found[1]}/static/app.js", timeout=60) as answer:
            assert answer.headers["Content-Type"].startswith("text/javascript")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_the_demo_serves_folders_only(capsys):
    assert main(["demo", "--serve", "--engine", "postgres"]) == 2
    assert "--serve is for a folder" in capsys.readouterr().err
