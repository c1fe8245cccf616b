"""The documentation runs: every Python block of README.md and docs/*.md, every doctest, every script that draws.

The blocks of a page run in order, in one namespace and one temporary directory. Where the next fenced block is a `text`
block, it must be what the block prints; `...` in it stands for anything. The line `<!-- not run -->` before a block
leaves it out. A block that needs an optional library which is not there is skipped, and so is one that needs its names.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib
import io
import os
import pkgutil
import re
import runpy
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import slosh

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SCRIPTS = sorted((ROOT / "docs").glob("draw_*.py"))
EXTRAS = {
    *("anndata", "dask", "laspy", "matplotlib", "ot", "pandas", "polars", "psycopg", "pyarrow", "ray", "torch"),
    "trimesh",
}
NOT_RUN = "<!-- not run -->"


@dataclass
class Block:
    """A fenced block: the page's line where its code starts, the code, and what it must print (None: anything)."""

    line: int
    code: str
    printed: str | None = None


@dataclass
class Page:
    """A page whose blocks run one after the other. `lost` holds the names of blocks that were skipped."""

    path: Path
    blocks: list[Block]
    outcomes: list[BaseException | None] = field(default_factory=list)
    names: dict = field(default_factory=lambda: {"__name__": "__docs__"})
    lost: set = field(default_factory=set)

    def run(self, number: int, directory: Path) -> None:
        """Run the blocks up to `number` that were not run yet, and raise what that one raised."""
        for block in self.blocks[len(self.outcomes) : number + 1]:
            before = Path.cwd()
            os.chdir(directory)
            try:
                self._run(block)
                self.outcomes.append(None)
            except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:
                self.outcomes.append(error)
            finally:
                os.chdir(before)
        if self.outcomes[number] is not None:
            raise self.outcomes[number]

    def _run(self, block: Block) -> None:
        output = io.StringIO()
        place = f"{self.path.name}:{block.line}"
        try:
            if block.code.startswith(">>>"):
                return run_docstring(doctest.DocTestParser().get_doctest(block.code, self.names, place, None, 0))
            # Moved down, so that a traceback shows the line of the page.
            code = compile("\n" * (block.line - 1) + block.code, str(self.path), "exec")
            with contextlib.redirect_stdout(output):
                exec(code, self.names)
        except (ImportError, NameError) as error:
            missing = missing_extra(error)
            if missing is None and not (isinstance(error, NameError) and error.name in self.lost):
                raise
            self.lost |= made_names(block.code)
            pytest.skip(f"{place}: {missing or error.name} is not there")
        if block.printed is not None and not same(block.printed, output.getvalue()):
            pytest.fail(
                f"{place} does not print what the page says\n--- the page\n{block.printed}\n--- printed\n"
                f"{output.getvalue()}",
                pytrace=False,
            )
        return None


def same(expected: str, printed: str) -> bool:
    """Return whether the outputs are equal, but for white space at the ends of lines; `...` stands for anything."""
    expected, printed = ("\n".join(line.rstrip() for line in text.strip().splitlines()) for text in (expected, printed))
    return doctest.OutputChecker().check_output(expected + "\n", printed + "\n", doctest.ELLIPSIS)


def made_names(code: str) -> set[str]:
    """Return the names that a block would make: assigned, defined or imported."""
    made = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            made.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            made.add(node.name)
        elif isinstance(node, ast.alias):
            made.add(node.asname or node.name.partition(".")[0])
    return made


def missing_extra(error: BaseException | None) -> str | None:
    """Return the optional library whose absence an error is about, None if it is about something else."""
    while error is not None:
        if isinstance(error, ImportError) and (root := (error.name or "").partition(".")[0]) in EXTRAS:
            return root
        error = error.__cause__
    return None


def read_blocks(text: str) -> list[Block]:
    """Return the Python blocks of a page."""
    blocks: list[Block] = []
    before, kind, start, left_out, lines = "", None, 0, False, []
    last = False  # the fenced block before this one was Python, and was run
    for number, line in enumerate(text.splitlines(), start=1):
        if kind is None and (fence := re.fullmatch(r"```(\w*).*", line)):
            kind, start, left_out, lines = fence[1], number + 1, before.strip() == NOT_RUN, []
        elif kind is not None and line.rstrip() == "```":
            code = "\n".join(lines) + "\n"
            if kind == "text" and last and not left_out:
                blocks[-1].printed = code
            last = kind == "python" and not left_out
            if last:
                blocks.append(Block(start, code))
            kind = None
        elif kind is not None:
            lines.append(line)
        before = line
    if kind is not None:
        raise ValueError(f"the fenced block of line {start} has no end")
    return blocks


_pages = {path: Page(path, read_blocks(path.read_text(encoding="utf-8"))) for path in PAGES}


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """A temporary directory for each page."""
    return {path: tmp_path_factory.mktemp(path.stem) for path in PAGES}


@pytest.mark.parametrize(
    ("path", "number"),
    [
        pytest.param(path, number, id=f"{path.name}:{block.line}")
        for path, page in _pages.items()
        for number, block in enumerate(page.blocks)
    ],
)
def test_page(path, number, directories, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    _pages[path].run(number, directories[path])


# -- the doctests of all modules ---------------------------------------------------------------------------------------


def _doctests():
    for module in pkgutil.walk_packages(slosh.__path__, "slosh."):
        if module.name.rpartition(".")[2] in ("_native", "__main__"):
            continue
        try:
            found = importlib.import_module(module.name)
        except ImportError as error:
            if missing := missing_extra(error):
                skip = pytest.mark.skip(reason=f"{missing} is not there")
                yield pytest.param(None, id=module.name, marks=skip)
                continue
            raise
        for test in doctest.DocTestFinder(exclude_empty=True).find(found):
            if test.examples:
                yield pytest.param(test, id=test.name)


@pytest.mark.parametrize("test", list(_doctests()))
def test_docstring(test):
    run_docstring(test)


def run_docstring(test: doctest.DocTest) -> None:
    try:
        doctest.DebugRunner(optionflags=doctest.ELLIPSIS).run(test, clear_globs=False)
    except doctest.DocTestFailure as failure:
        pytest.fail(
            f"{failure.example.source.strip()} in {test.name} should give\n{failure.example.want}but gives\n"
            f"{failure.got}",
            pytrace=False,
        )
    except doctest.UnexpectedException as failure:
        if missing := missing_extra(failure.exc_info[1]):
            pytest.skip(f"{missing} is not there")
        raise failure.exc_info[1] from None


# -- the pictures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_draws(script, tmp_path, monkeypatch):
    """Each runs in this process: to import all that they need again takes longer than to draw."""
    matplotlib = pytest.importorskip("matplotlib")
    picture = tmp_path / "picture.png"
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(sys, "argv", [str(script), str(picture)])
    monkeypatch.chdir(tmp_path)
    with matplotlib.rc_context():
        runpy.run_path(str(script), run_name="__main__")
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert 10_000 < len(data) < 300_000
    width, height = (int.from_bytes(data[i : i + 4], "big") for i in (16, 20))
    assert 800 <= width <= 4000
    assert 200 <= height <= 4000


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", path.read_text(encoding="utf-8")):
        if "://" not in target and not target.startswith("mailto:"):
            page = path.parent / target if target else path
            assert page.exists(), f"{path.name} links to {target}, which is not there"
            assert not anchor or anchor in anchors(page), f"{path.name} links to {target}#{anchor}, which is not there"


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# -- that all this can fail --------------------------------------------------------------------------------------------


@pytest.fixture
def run_text(tmp_path):
    def run(text):
        page = Page(Path("page.md"), read_blocks(text))
        for number in range(len(page.blocks)):
            page.run(number, tmp_path)
        return page

    return run


def test_every_block_of_every_page_is_seen():
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        assert len(_pages[path].blocks) == text.count("```python") - text.count(f"{NOT_RUN}\n```python"), path.name


def test_what_a_page_says_is_compared(run_text):
    run_text("```python\nprint(1.25)\n```\nwhich is\n\n```text\n1...\n```\n")
    with pytest.raises(pytest.fail.Exception, match=r"page\.md:2"):
        run_text("```python\nprint(1.25)\n```\n```text\n1.3\n```\n")
    with pytest.raises(pytest.fail.Exception, match="does not print"):
        run_text("```python\nprint(1)\nprint(2)\n```\n```text\n1\n```\n")
    with pytest.raises(pytest.fail.Exception, match="does not print"):
        run_text("```python\nx = 1\n```\n```text\n1\n```\n")
    run_text("```python\nprint(1)\n```\n```sh\nls\n```\n```text\nof the shell\n```\n")  # only the next block


def test_errors_in_a_block_are_errors(run_text):
    with pytest.raises(ZeroDivisionError) as caught:
        run_text("text\n\n```python\n1 / 0\n```\n")
    assert caught.traceback[-1].lineno + 1 == 4
    with pytest.raises(pytest.fail.Exception, match="should give"):
        run_text("```python\n>>> 1 + 1\n3\n```\n")
    with pytest.raises(NameError):
        run_text("```python\nx = 1\n```\n```python\nprint(y)\n```\n")
    with pytest.raises(SyntaxError):
        run_text("```python\nx =\n```\n")
    with pytest.raises(ModuleNotFoundError):
        run_text("```python\nimport no_such_library\n```\n")
    with pytest.raises(ValueError, match="no end"):
        read_blocks("```python\nx = 1\n")


def test_blocks_share_names_and_a_directory(run_text, tmp_path):
    page = run_text("```python\nx = 1\nopen('f', 'w').close()\n```\n```python\nx += 1\n```\n")
    assert page.names["x"] == 2
    assert (tmp_path / "f").exists()


def test_blocks_that_are_not_run(run_text):
    run_text(f"{NOT_RUN}\n```python\n1 / 0\n```\n")
    run_text(f"```python\nprint(1)\n```\n{NOT_RUN}\n```text\ntakes 3.1 s\n```\n")


def test_a_missing_extra_skips_its_block_and_those_that_need_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "polars", None)
    text = "```python\nimport polars\ny = w\n```\n```python\nprint(y)\n```\n```python\nz = 1\n```\n```python\nw\n```\n"
    page = Page(Path("page.md"), read_blocks(text))
    page.run(2, tmp_path)
    with pytest.raises(NameError):
        page.run(3, tmp_path)
    for number, name in enumerate(("polars", "y")):
        with pytest.raises(pytest.skip.Exception, match=f"{name} is not there"):
            page.run(number, tmp_path)
    assert page.names["z"] == 1


def test_a_wrong_docstring_fails(monkeypatch):
    def parse(text):
        return doctest.DocTestParser().get_doctest(text, {}, "example", None, 0)

    run_docstring(parse(">>> 1 + 1\n2\n"))
    with pytest.raises(pytest.fail.Exception, match="should give"):
        run_docstring(parse(">>> 1 + 1\n3\n"))
    with pytest.raises(ZeroDivisionError):
        run_docstring(parse(">>> 1 / 0\n"))
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(pytest.skip.Exception):
        run_docstring(parse(">>> import polars\n"))
