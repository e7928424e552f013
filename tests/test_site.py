"""Tests of the site: it builds without warnings or network, documents all public names, and loads nothing from
elsewhere.
"""

import doctest
import html.parser
import importlib
import importlib.util
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import learner
from tests.support.codes import named_case

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PARTS = [f"learner.{part.name}" for part in pkgutil.iter_modules(learner.__path__) if part.ispkg]
PACKAGES = ["learner", *(part for part in PARTS if hasattr(importlib.import_module(part), "__all__"))]
NO_NETWORK = """
import gc, socket, sys

gc.set_threshold(10_000, 100, 100)  # collections take a fifth of the time

def refused(*_, **__):
    raise OSError("the site is built without a network")

socket.socket.connect = socket.getaddrinfo = socket.create_connection = refused
from sphinx.cmd.build import main

sys.exit(main(sys.argv[1:]))
"""


def part_of_docs(name):
    """Return a module next to `conf.py`."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- docstrings --------------------------------------------------------------------------------------------------------

PLAIN = part_of_docs("plain")


def test_the_examples_of_plain_docstrings():
    tests = [test for test in doctest.DocTestFinder().find(PLAIN, "plain") if test.examples]
    assert len(tests) == 2
    assert [doctest.DocTestRunner().run(test).failed for test in tests] == [0, 0]


def test_docstrings_become_restructured_text():
    cases = [
        ("`a` and `b`s, 'c`d`'", "``a`` and ``b``\\ s, 'c\\ ``d``'"),
        ("x_ of |y| is *args", "x\\_ of \\|y\\| is \\*args"),
        ("in `one\n  two` lines", "in ``one two`` lines"),
        ("snake_case", "snake_case"),
        ("three:\n\n    f(`x`, *y)\n\nand `x`", "three::\n\n    f(`x`, *y)\n\nand ``x``"),
        (">>> f(*x)\n`y`\n\nand *x", ">>> f(*x)\n`y`\n\nand \\*x"),
        ("kinds:\n- one\n  line\n- `two`", "kinds:\n\n- one\n  line\n- ``two``"),
        ("Default: few,\n  or many", "Default: few,\nor many"),
        ("Args:\n  *x: the `x`\n    of all", "Args:\n  \\*x: the ``x``\n    of all"),
        ("Returns:\n  `a`: by key,\n    or not", ":returns: ``a``: by key, or not"),
    ]
    for text, expected in cases:
        with named_case((text, expected)):
            assert PLAIN.rst(text) == expected


def test_overriding_methods_have_no_entry():
    from learner.metrics import Accuracy, Metric
    from learner.steps.outputs import SequenceOutput

    assert PLAIN._overrides(Accuracy.update)
    assert not PLAIN._overrides(Metric.update)
    assert not PLAIN._overrides(SequenceOutput.predictions)
    assert not PLAIN._overrides(SequenceOutput.from_logits)


# -- the site ----------------------------------------------------------------------------------------------------------


class Page(html.parser.HTMLParser):
    """The links, the loaded resources and the anchors of a page."""

    LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
    LOADS |= {"embed": "src", "object": "data", "use": "href"}
    NAVIGATION = {"next", "prev", "index", "search", "author", "copyright", "canonical"}

    def __init__(self, text):
        super().__init__()
        self.links, self.loads, self.anchors, self.styles = [], [], set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        self.styles.append(given.get("style", ""))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and not Page.NAVIGATION & set(given.get("rel", "").split()):
            self.loads.append(given.get("href", ""))
        elif Page.LOADS.get(tag) in given:
            self.loads.append(given[Page.LOADS[tag]])


def is_elsewhere(link):
    return bool(urlsplit(link).netloc) or urlsplit(link).scheme in ("http", "https", "ftp")


def loads_of_style(text):
    """Return the resources that a style sheet loads, without embedded pictures."""
    urls = re.findall(r"""url\(\s*['"]?([^'")]+)|@import\s+['"]([^'"]+)""", text)
    return [link for pair in urls for link in pair if link and not link.startswith("data:")]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site once, as in CONTRIBUTING, in a process that cannot open a connection."""
    out, trees = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("trees")
    words = [sys.executable, "-c", NO_NETWORK, "-W", "--keep-going", "-q", "-b", "html", "-d", trees, DOCS, out]
    ran = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    return out


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


@pytest.mark.full
def test_every_public_name_has_an_entry_in_the_reference(site):
    from sphinx.util.inventory import InventoryFile

    with (site / "objects.inv").open("rb") as file:
        inventory = InventoryFile.load(file, "", lambda base, link: link)
    entries = {name for kind, names in inventory.items() if kind.startswith("py:") for name in names}
    names = {f"{package}.{name}" for package in PACKAGES for name in importlib.import_module(package).__all__}
    assert len(PACKAGES) > 10
    assert len(names) > 150
    assert names - entries == set()
    assert {"learner.LearnerBuilder.build", "learner.metrics.Metric.update", "learner.data.Dataset.k_fold"} <= entries
    assert {f"{module}.{name}" for name, module in PLAIN.BASES.items()} <= entries
    assert "learner.metrics.Accuracy.update" not in entries
    page = (site / "reference" / "metrics-classification.html").read_text(encoding="utf-8")
    assert len(re.findall(r'<a class="reference internal" href="#learner.metrics.Hamming"', page)) > 0


@pytest.mark.full
def test_reference_pages_have_a_readable_size(site):
    sizes = {path.name: path.stat().st_size for path in (site / "reference").glob("*.html")}
    assert {name: size for name, size in sizes.items() if size > 300_000} == {}


@pytest.mark.full
def test_every_document_is_a_page_that_the_navigation_leads_to(site, pages):
    documents = {path.relative_to(DOCS).with_suffix(".html").as_posix() for path in DOCS.rglob("*.md")}
    assert documents <= {path.relative_to(site).as_posix() for path in pages}
    reached, waiting = set(), [site / "index.html"]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            links = [urlsplit(link).path for link in pages[page].links if not is_elsewhere(link)]
            waiting += [(page.parent / unquote(path)).resolve() for path in links if path.endswith(".html")]
    assert {site / name for name in documents} <= reached


@pytest.mark.full
def test_links_within_the_site_lead_somewhere(pages):
    broken, seen = [], 0
    for page, content in pages.items():
        for link in content.links:
            if is_elsewhere(link) or link.startswith(("mailto:", "javascript:")):
                continue
            parts = urlsplit(link)
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            seen += 1
            if not target.is_file() or (parts.fragment and unquote(parts.fragment) not in pages[target].anchors):
                broken.append((page.name, link))
    assert broken == []
    assert seen > 1000


@pytest.mark.full
def test_no_page_loads_anything_from_elsewhere(site, pages):
    for page, content in pages.items():
        styles = [link for style in content.styles for link in loads_of_style(style)]
        assert [link for link in [*content.loads, *styles] if is_elsewhere(link)] == [], page
        local = [link for link in content.loads if link and not link.startswith(("data:", "#"))]
        assert all((page.parent / urlsplit(link).path).is_file() for link in local), page
        assert local != []
    sheets = list(site.rglob("*.css"))
    assert len(sheets) >= 3
    for sheet in sheets:
        assert [link for link in loads_of_style(sheet.read_text()) if is_elsewhere(link)] == [], sheet


@pytest.mark.full
def test_docstrings_are_rendered(site):
    """Sections are lists, code is code, and no backtick, star or section name remains."""
    text = (site / "reference" / "learner.html").read_text(encoding="utf-8")
    assert "Parameters" in text
    for path in (site / "reference").glob("*.html"):
        (article,) = re.findall(r"<article.*?</article>", path.read_text(encoding="utf-8"), re.DOTALL)
        prose = re.sub(r"<(pre|code)\b.*?</\1>", "", article, flags=re.DOTALL)
        shown = re.sub(r"<[^>]+>", "", prose)
        assert re.findall(r"`|\\\*|~\w+\.|\b(?:Args|Attributes|Type):$", shown, re.MULTILINE) == [], path.name


def test_external_resources_are_detected():
    page = Page(
        '<a href="http://a.org"></a><img src="//b.org/x.png"><link rel="stylesheet" href="https://c.org/d.css">'
    )
    assert [link for link in page.loads if is_elsewhere(link)] == ["//b.org/x.png", "https://c.org/d.css"]
    assert loads_of_style("a { background: url('http://e.org/f.png') } @import 'g.css'; b { c: url(data:x) }") == [
        "http://e.org/f.png",
        "g.css",
    ]
