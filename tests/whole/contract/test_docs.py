"""The documentation: all of conf/ and of the commands is in it, functions that it names exist, no link is broken."""

from __future__ import annotations

import ast
import functools
import http.server
import inspect
import re
import subprocess
import sys
import threading
import urllib.parse
from collections import Counter
from pathlib import Path

import pytest
import yaml
from sources import modules, nodes, of_docs
from support import REPOSITORY

from psrun import errors
from psrun.cli import command_line

ROOT = REPOSITORY
FILES = sorted(path.relative_to(ROOT / "conf") for path in (ROOT / "conf").glob("*/*.yaml"))


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return of_docs("pages").pages()


@pytest.mark.parametrize("file", FILES, ids=str)
def test_every_choice_has_a_section_with_its_comment_keys_and_code(pages, file):
    sections = dict(
        re.findall(r"^## (\S+) .*?\n(.*?)(?=^## |\Z)", pages[f"reference/groups/{file.parent}.md"], flags=re.M | re.S)
    )
    text = (ROOT / "conf" / file).read_text()
    node = yaml.safe_load(text)
    section = sections[file.stem]
    assert yaml.safe_load(re.search(r"```yaml.*?\n(.*?)```", section, flags=re.S)[1]) == node
    assert section.strip()[0].isalpha(), "there is no comment at the head of the file"
    for line in re.findall(r"^# +(?!@package)(\S.*)$", text, flags=re.M):
        assert line in section
    target = node.get("_target_", "")
    assert not target.startswith("psrun.") or f"::: {target}" in section


def test_every_key_verb_and_error_is_there(pages):
    plain = yaml.safe_load((ROOT / "conf" / "config.yaml").read_text())
    for key in set(plain) - {"hydra"}:
        assert re.search(rf"^{key}:", pages["reference/keys.md"], flags=re.M)
    for command in command_line.command_words():
        assert f"usage: psrun {command} " in pages["reference/commands.md"]
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.PsrunError | errors.Interrupted):
            assert f"`{name}`" in pages["reference/errors.md"]


def test_each_key_has_one_section_with_its_defaults_and_an_example(pages):
    """Keys are described by the comments in conf/."""
    found = re.findall(r"^### (\S+)\n\n(.*?)(?=^##|\Z)", pages["reference/keys.md"], flags=re.M | re.S)
    sections = dict(found)
    assert len(found) == len(sections) > 150
    assert {"early_stopping.patience", "cluster.restart.budget", "data.split.by", "model.loss"} <= set(sections)
    seconds = sections["checkpoint.every_s"]
    assert seconds.startswith("also every N seconds.\n")
    assert "`null` ([epoch](groups/checkpoint.md#epoch))" in seconds
    assert "psrun trainer.steps_per_execution=" not in sections["trainer.epochs"]
    assert "psrun restore=best" in sections["restore"]
    assert "All workers need access" not in sections["trainer.epochs"]


def test_the_texts_of_the_messages_are_those_of_the_code():
    text = (ROOT / "docs" / "reference" / "messages.md").read_text()
    headings = re.findall(r"^## (.*)$", text, flags=re.M)
    source = " ".join(re.sub(r'"\s*\n\s*f?"', "", path.read_text()) for path in (ROOT / "psrun").rglob("*.py"))
    for heading in headings:
        for part in re.split(r"\.\.\.|: |, ", heading):
            words = part.strip(" ()")
            if words[:1].islower():
                assert words in source, f"no message has {words!r}: change docs/reference/messages.md"


def test_the_page_on_tf_keras_counts_the_modules_that_import_it():
    counted: Counter[str] = Counter()
    for path in modules():
        if re.search(r"^(import|from) tf_keras\b", path.read_text(), flags=re.M):
            counted["/".join(path.relative_to(ROOT).parts[:2])] += 1
    text = (ROOT / "docs" / "explanation" / "tensorflow.md").read_text()
    stated = re.findall(r"^\| `(psrun/\S+)` \| (\d+) \|", text, flags=re.M)
    assert {part: int(number) for part, number in stated} == counted


# -- docs/explanation/design.md says in which function each thing happens

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NAME = re.compile(r"`([\w.]+\.\w+)`")


@functools.cache
def defined() -> set[str]:
    """`module.name` and `Class.method` of everything in psrun, and both with the package before them."""
    names = set()
    for path in modules():
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in nodes(path)[0].body:
            if isinstance(node, FUNCTIONS):
                names |= {f"{path.stem}.{node.name}", f"{module}.{node.name}"}
            elif isinstance(node, ast.ClassDef):
                methods = {f"{node.name}.{each.name}" for each in node.body if isinstance(each, FUNCTIONS)}
                names |= methods | {f"{module}.{method}" for method in methods} | {f"{module}.{node.name}"}
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names |= {f"{module}.{ast.unparse(target)}" for target in targets}
    return names


@pytest.mark.parametrize("section", ["Within a step", "After an epoch"])
def test_sections_on_the_order_name_functions_that_exist(section):
    text = (ROOT / "docs/explanation/design.md").read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    named = set(NAME.findall(re.sub(r"<!-- the .*?<!-- end -->", "", text, flags=re.S)))
    assert len(named) > 3
    assert sorted(named - defined()) == []


@pytest.mark.tensorflow
def test_the_lists_of_the_order_have_every_stage_and_action():
    """A stage or an action without a reason in its line would be missing."""
    from psrun.closures import stages
    from psrun.training import actions

    order = of_docs("order")
    kinds = [kind.__name__ for kind in stages.ORDER]
    assert re.findall(r"^\d+\. `(\w+)`: ", order.stages(), flags=re.MULTILINE) == kinds
    listed = re.findall(r"^\d+\. `([\w.]+)`: ", order.actions_around_epochs(), flags=re.MULTILINE)
    called = [
        node
        for node in ast.walk(ast.parse(inspect.getsource(actions.in_order)))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Actions"
    ]
    names = [ast.unparse(node) for node in ast.walk(called[0]) if isinstance(node, ast.Attribute)]
    assert sorted(listed) == sorted(names)


def test_the_lists_in_pages_are_those_of_the_code():
    order = of_docs("order")
    texts = [page.read_text() for page in order.PAGES]
    assert [order.up_to_date(text) for text in texts] == texts, "run: python docs/order.py"
    marks = [mark for text in texts for mark in re.findall("<!-- (the .*) -->", text)]
    assert sorted(marks) == sorted(order.LISTS)


@pytest.mark.parametrize(
    "page",
    [Path("README.md"), Path("CONTRIBUTING.md"), *sorted(path.relative_to(ROOT) for path in ROOT.glob("docs/**/*.md"))],
    ids=str,
)
def test_links_lead_to_files_of_the_repository(page):
    """So that the pages can be read without a site; on the site, the same links lead to pages."""
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.S)
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert (ROOT / page.parent / target).exists(), target


# -- the built site


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("mkdocs", reason="pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def address(site):
    """Serves the site on this host."""
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


# The targets of all links and images on a page, and the anchors that a link to it may have.
LINKS = "[...document.querySelectorAll('a[href], img[src]')].map((each) => each.href || each.src)"
# Ends when the page has its layout in a window of another size.
SETTLED = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
# The blocks of code that do not show a part of their lines, by language and first characters.
CUT = """[...document.querySelectorAll('pre > code')].filter((each) => each.scrollWidth > each.clientWidth + 1)
  .map((each) => (each.closest('.highlight')?.className ?? '') + ': ' + each.textContent.slice(0, 60))"""
ANCHORS = "[...document.querySelectorAll('[id]')].map((each) => each.id)"


@pytest.mark.browser
def test_every_page_fits_the_window_and_no_link_is_broken(site, address, browser):
    import playwright.sync_api

    wrong, links, anchors = [], {}, {}
    page = browser.new_page()
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda it: None if it.url.startswith((address, "data:")) else wrong.append(it.url))
    for file in sorted(site.rglob("index.html")):
        url = address + str(file.relative_to(site)).removesuffix("index.html")
        assert page.goto(url).status == 200, url
        for width in (1300, 420):  # a table of contents at both sides, and a telephone
            page.set_viewport_size({"width": width, "height": 850})
            page.evaluate(SETTLED)
            try:  # its scripts lay out a page again, beside other load seconds later
                page.wait_for_function(f"document.documentElement.scrollWidth <= {width}", timeout=10_000)
            except playwright.sync_api.TimeoutError:
                wide = page.evaluate("document.documentElement.scrollWidth")
                wrong.append(f"{url} is {wide} wide, the window {width}")
            # Diagrams scroll on a telephone.
            cut = [block for block in page.evaluate(CUT) if width > 420 or "language-text" not in block]
            wrong += [f"{url}: code is cut at {width}: {block}" for block in cut]
        links[url], anchors[url] = page.evaluate(LINKS), set(page.evaluate(ANCHORS))
    page.close()
    assert len(links) > 40
    for source, targets in links.items():
        wrong += [f"{source}: broken link {target}" for target in targets if broken(target, address, site, anchors)]
    assert wrong == []


def broken(target: str, address: str, site: Path, anchors: dict[str, set[str]]) -> bool:
    """Whether a link leads to a page, file or anchor of the site that does not exist."""
    if not target.startswith(address):
        return False
    url, _, anchor = urllib.parse.unquote(target).partition("#")
    if url in anchors:
        return anchor not in anchors[url] | {""}
    return not (site / url.removeprefix(address)).is_file()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *ignored: object) -> None:
        """No log."""
