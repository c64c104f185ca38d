"""The page of `psrun report --html` in a real browser, as wide as a desk's and as a phone's screen."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from recorded_runs import a_run, a_sweep

from psrun.results.report import rows
from psrun.results.report.commands import main

pytestmark = pytest.mark.browser

CHARTS = [
    "loss", "steps", "examples", "wall", "throughput", "efficiency", "times", "stages", "staleness", "placement",
    "timeline",
]  # fmt: skip
WIDTHS = [1440, 390]
DRAWN = ".scatterlayer path.js-line, .scatterlayer path.point, .barlayer path, .boxlayer path"


@pytest.fixture
def opened(browser, tmp_path):
    """Writes and opens the page of a folder; it may make no request and print nothing to the console."""
    wrong, contexts = [], []

    def run(folder: Path, width: int = 1440):
        file = tmp_path / "page.html"
        main([str(folder), "--html", str(file)])
        context = browser.new_context(
            viewport={"width": width, "height": 850}, is_mobile=width < 500, has_touch=width < 500
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(f"console: {message.type} {message.text}"))
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("request", lambda request: None if request.url == file.as_uri() else wrong.append(request.url))
        page.goto(file.as_uri())
        page.wait_for_selector("body[data-drawn=true]", timeout=60_000)
        return page

    yield run
    for context in contexts:
        context.close()
    assert wrong == []


def marks(page, chart: str) -> int:
    """How many lines, points, bars and boxes a chart has that can be seen."""
    shapes = page.locator(f"#{chart} .plot").locator(DRAWN)
    return sum(1 for each in shapes.all() if each.bounding_box() is not None)


@pytest.mark.parametrize("width", WIDTHS)
def test_every_chart_is_drawn_and_nothing_is_wider_than_the_screen(opened, tmp_path, width):
    page = opened(a_sweep(tmp_path / "sweep"), width)
    for chart in CHARTS:
        assert marks(page, chart) >= 4, chart
        assert page.locator(f"#empty-{chart}").is_hidden()
        box = page.locator(f"#{chart} svg.main-svg").first.bounding_box()
        assert box["width"] > 0.7 * min(width, 500)
        assert box["height"] > 150
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    picture = page.screenshot(path=tmp_path / f"page-{width}.png", full_page=True)
    assert struct.unpack(">I", picture[16:20]) == (width,)
    assert len(picture) > 50_000


def test_facets_choose_runs(opened, tmp_path):
    page = opened(a_sweep(tmp_path / "sweep"))
    chip = '.chip[data-axis="{}"][data-value="{}"]'.format
    before = marks(page, "loss")
    assert page.locator("#tiles b").first.inner_text() == "12 of 12"
    page.click(chip("cluster.num_workers", "2"))
    assert page.locator("#tiles b").first.inner_text() == "4 of 12"
    assert 0 < marks(page, "loss") < before
    assert page.locator("#empty-efficiency").inner_text().startswith("needs runs with different numbers of workers")
    page.click(chip("cluster.num_workers", "4"))
    page.click(chip("partitioner", "fixed_shards"))
    page.click(chip("status", "completed"))
    assert page.locator("#tiles b").first.inner_text() == "3 of 12"
    assert page.locator("#diffs .diff b").all_inner_texts() == ["6", "7", "10"]
    assert page.locator("#efficiency .plot").is_visible()
    for value in ("2", "4"):
        page.click(chip("cluster.num_workers", value))
    assert page.locator("#tiles b").first.inner_text() == "4 of 12"  # one failed, one never began


def test_the_page_of_a_sweep(opened, tmp_path):
    page = opened(a_sweep(tmp_path / "sweep"))
    # Cards name the best runs, and axes have units.
    cards = [" ".join(text.split()) for text in page.locator("#tiles .tile").all_inner_texts()]
    assert cards == [
        "runs 12 of 12 10 completed, 1 failed, 1 unknown", "best val_auc 0.9 (run 10)", "best val_loss 0.4 (run 0)",
        "highest examples/s 3033 (run 9)", "recoveries 11 of lost tasks",
    ]  # fmt: skip
    assert page.locator("aside label").first.inner_text().startswith("Color by")
    titles = page.locator(".xtitle, .ytitle").evaluate_all("all => all.map((each) => each.textContent)")
    assert {"time per step (ms)", "time since the start (s)", "throughput (examples/s)"} <= set(titles)
    # The timeline marks failures and recoveries, and differences are listed.
    texts = "all => all.map((each) => each.textContent)"
    names = page.locator("#timeline .legendtext").evaluate_all(texts)
    assert {"epoch", "lost", "failure", "recovery", "checkpoint"} <= set(names)
    page.select_option("#pick", "4")
    lanes = page.locator("#timeline .ytick text").evaluate_all(texts)
    assert sorted(lanes) == ["chief-0", "ps-0", "ps-1", "training", "worker-0", "worker-1"]
    assert "cluster.num_workers=2" in page.locator("#diffs .diff").nth(4).inner_text()
    assert "model.embedding_dim=20" in page.locator("#common").evaluate("each => each.textContent")
    # The table folds seeds, and sorts.
    first = page.locator("#runs tbody tr").first
    assert page.locator("#runs tbody tr").count() == 6
    assert "0.805 ± 0.0071" in first.inner_text()
    page.uncheck("#fold input")
    assert page.locator("#runs tbody tr").count() == 12
    for expected in ("0", "10"):
        page.click("#runs th button[title='sort by val_auc']")
        assert first.locator("td").first.inner_text() == expected
    assert "the loss became nan" in page.locator("#errors").inner_text()
    assert "no run.json" in page.locator("#errors").inner_text()
    # Numbers are written as the terminal writes them, and filters list them by value.
    numbers = [0.0, 1.0, 0.5, 0.77123456, 0.12345, 123.25, 1234.5, 9999.4, 9999.6, 10000.0, 12345.6, 999999999.4, 2.5e9,
               1e-05, 0.000123456, 1.23456e-07, -0.33335, -12345.5, 7, 12000]  # fmt: skip
    shown = page.evaluate("numbers => numbers.map((each) => shown(each))", numbers)
    assert shown == [rows.shown(float(number)) for number in numbers]
    values = ["fixed_10", "12,000", "0.003", "0.01", "fixed_2", "1e-05", "", "-3", "30"]
    ordered = page.evaluate("values => values.sort(compare)", values)
    assert ordered == ["-3", "1e-05", "0.003", "0.01", "30", "12,000", "", "fixed_2", "fixed_10"]


def test_examples_count_all_batches_of_an_update_also_after_a_resume_in_another_mode(opened, tmp_path):
    folder = a_run(tmp_path / "run")
    resumed = {"event": "epoch", "step": 300, "wall_s": 16.0, "epoch": 3, "metrics": {"auc": 0.5}, "seconds": 2.0,
               "steps_per_s": 1.7, "examples_per_s": 1.7 * 128}  # fmt: skip
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(resumed) + "\n")
    page = opened(folder)
    drawn = page.evaluate("document.getElementById('plot-examples').data.map((each) => [each.name, each.x])")
    assert drawn == [["run auc", [6400, 12800, 25600]], ["run val_auc", [6400, 12800]]]
    assert page.locator("#examples .xtitle").text_content() == "examples"


def test_rows_and_errors_of_many_runs_name_the_first_of_them(opened, tmp_path):
    for seed in range(7):
        a_run(tmp_path / "runs" / str(seed), seed=seed, status="failed", error={"type": "E", "message": "no luck"})
    page = opened(tmp_path / "runs")
    assert page.locator("#runs tbody td").first.inner_text() == "0, 1, 2, 3 and 3 more"
    assert page.locator("#errors").inner_text() == "0, 1, 2, 3 and 3 more: E: no luck"


def test_names_are_text_whatever_is_in_them(opened, tmp_path):
    hostile = "</script><img src=x onerror=alert(1)>&amp;<b>${1}$data"
    a_run(tmp_path / "runs" / "plain")
    a_run(
        tmp_path / "runs" / hostile.replace("/", ""), seed=2, status="failed", error={"type": "E", "message": hostile}
    )
    page = opened(tmp_path / "runs")
    assert hostile in page.locator("#errors").inner_text()
    assert page.locator("img").count() == 0
    assert hostile.replace("/", "") in page.locator("#diffs").inner_text()


def test_the_page_of_runs_without_metrics_shows_what_is_missing(opened, tmp_path):
    folder = a_run(tmp_path / "run", status="failed", metrics=None, placement=None, recoveries=None, step_time=None,
                   wall_s=None, examples_per_s=None, staleness=None)  # fmt: skip
    (folder / "metrics.jsonl").unlink()
    page = opened(folder)
    for chart in CHARTS:
        assert page.locator(f"#empty-{chart}").inner_text() != "", chart
    assert "no metrics.jsonl" in page.locator("#errors").inner_text()
    assert page.locator("#fold").is_hidden()  # there are no runs to group
