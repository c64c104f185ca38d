"""The page of `psrun report --html` in a real browser, as wide as a desk's and as a phone's screen."""

from __future__ import annotations

import itertools
import json
import struct
from pathlib import Path

import pytest
from recorded_runs import a_real_run, a_run, a_sweep, a_virtual_run

from psrun.results import run_folder
from psrun.runs.report import rows
from psrun.runs.report.commands import main

pytestmark = pytest.mark.browser

CHARTS = [
    "over-0", "over-1", "loss", "steps", "examples", "wall", "throughput", "efficiency", "times", "stages", "staleness",
    "placement", "timeline",
]  # fmt: skip
WIDTHS = [1300, 420]
DRAWN = ".role-mark path, .role-mark line"
TEN_RUNS_BYTES = 1.5e6


@pytest.fixture
def opened(browser, tmp_path):
    """Writes and opens the page of a folder; it may make no request and print nothing to the console."""
    wrong, contexts = [], []

    def run(*arguments: object, width: int = 1300):
        file = tmp_path / "page.html"
        main([*map(str, arguments), "--html", str(file)])
        context = browser.new_context(
            viewport={"width": width, "height": 850}, is_mobile=width < 500, has_touch=width < 500
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(f"console: {message.type} {message.text}"))
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("request", lambda request: None if request.url == file.as_uri() else wrong.append(request.url))
        page.goto(file.as_uri())
        drawn(page)
        return page

    yield run
    for context in contexts:
        context.close()
    assert wrong == []


def drawn(page) -> None:
    """Waits until all charts are drawn, also after a change of the selection."""
    page.wait_for_selector("body[data-drawn=true]", timeout=60_000)


def select(page, axis: str, value: str) -> None:
    page.click(f'.chip[data-axis="{axis}"][data-value="{value}"]')
    drawn(page)


def visible(page) -> list[str]:
    """The charts that have a card."""
    return [each.get_attribute("id") for each in page.locator("#charts > figure").all() if each.is_visible()]


def used(folder: Path, *tasks: str) -> None:
    """Adds 500 measurements of the use of the machine by each task to the events of a run."""
    with (folder / "metrics.jsonl").open("a") as file:
        for at_s in range(500):
            use = {"cpu_percent": 50.1, "memory_bytes": 512345678, "received_bytes": 1e6 * at_s, "sent_bytes": 0}
            for task in tasks:
                file.write(json.dumps({"event": "system", "step": None, "wall_s": at_s, "task": task, **use}) + "\n")


def texts(page, selector: str) -> list[str]:
    return page.locator(selector).evaluate_all("all => all.map((each) => each.textContent)")


def marks(page, chart: str) -> int:
    """How many lines, points, bars and boxes a chart has that can be seen."""
    shapes = page.locator(f"#{chart} .plot").locator(DRAWN)
    return sum(1 for each in shapes.all() if each.bounding_box() is not None)


@pytest.mark.parametrize("width", WIDTHS)
def test_every_chart_is_drawn_and_nothing_is_wider_than_the_screen(opened, tmp_path, width):
    page = opened(a_sweep(tmp_path / "sweep"), width=width)
    assert sorted(visible(page)) == sorted(CHARTS)
    for chart in CHARTS:
        assert marks(page, chart) >= 3, chart
        box = page.locator(f"#{chart} svg").first.bounding_box()
        assert box["width"] > 0.7 * min(width, 500)
        assert box["height"] > 50
        card = page.locator(f"#{chart}").bounding_box()
        assert box["x"] + box["width"] <= card["x"] + card["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    picture = page.screenshot(path=tmp_path / f"page-{width}.png", full_page=True)
    assert struct.unpack(">I", picture[16:20]) == (width,)
    assert len(picture) > 50_000


def test_facets_choose_runs_and_what_has_nothing_to_show_has_no_card(opened, tmp_path):
    page = opened(a_sweep(tmp_path / "sweep"))
    before = marks(page, "loss")
    assert page.locator("#tiles b").first.inner_text() == "12 of 12"
    select(page, "cluster.num_workers", "2")
    assert page.locator("#tiles b").first.inner_text() == "4 of 12"
    assert 0 < marks(page, "loss") < before
    assert {"over-0", "efficiency"} & set(visible(page)) == set()  # of one number of workers
    select(page, "cluster.num_workers", "4")
    select(page, "partitioner", "fixed_shards")
    select(page, "status", "completed")
    assert page.locator("#tiles b").first.inner_text() == "3 of 12"
    assert page.locator("#diffs .diff b").all_inner_texts() == ["6", "7", "10"]
    assert {"over-0", "efficiency"} <= set(visible(page))
    for value in ("2", "4"):
        select(page, "cluster.num_workers", value)
    assert page.locator("#tiles b").first.inner_text() == "4 of 12"  # one failed, one never began


def test_the_page_of_a_sweep(opened, tmp_path):
    page = opened(a_sweep(tmp_path / "sweep"))
    # Cards name the best runs, and axes have units.
    cards = [" ".join(text.split()) for text in page.locator("#tiles .tile").all_inner_texts()]
    assert cards == [
        "runs 12 of 12 10 completed, 1 failed, 1 unknown", "best val_loss 0.4 (run 0)", "best val_auc 0.9 (run 10)",
        "highest examples/s 3033 (run 9)", "recoveries 11 of lost tasks",
    ]  # fmt: skip
    assert page.locator("aside label").first.inner_text().startswith("Color by")
    titles = texts(page, ".role-axis-title text")
    assert {"time per step (ms)", "time since the start (s)", "throughput (examples/s)"} <= set(titles)
    # The timeline marks failures and recoveries, and differences are listed.
    legend = texts(page, "#timeline .role-legend-label text")
    assert {"epoch", "lost", "failure", "recovery", "checkpoint"} <= set(legend)
    page.select_option("#timeline .pick", "4")
    page.wait_for_function("document.querySelector('#timeline').textContent.includes('ps-1')")
    lanes = {"chief-0", "ps-0", "ps-1", "training", "worker-0", "worker-1"}
    assert lanes <= set(texts(page, "#timeline .role-axis-label text"))
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


def test_cards_and_the_legend_say_what_was_compared_and_used(opened, tmp_path):
    """A best run by its best checkpoint, and that others were evaluated on other rows; a rate in place of auto."""
    optimizer = {"_target_": "tf_keras.optimizers.Adagrad"}
    best = {"step": 100, "metric": "val_auc", "mode": "max"}
    for name, rate, fraction, auc in (("a", "auto", 0.1, 0.95), ("b", 0.3, 0.3, 0.9), ("c", 0.1, 0.3, 0.8)):
        a_run(
            tmp_path / "runs" / name,
            config={"optimizer": {**optimizer, "learning_rate": rate}},
            overrides=[f"optimizer.learning_rate={rate}"],
            chosen={"learning_rate": 0.003, "learning_rate_falls": True} if rate == "auto" else None,
            data={"split": {"spec": {"by": "rows", "fraction": fraction}}, "num_eval_examples": round(100 * fraction)},
            best_checkpoint={**best, "value": auc},
        )
    page = opened(tmp_path / "runs")

    def cards() -> list[str]:
        return [" ".join(text.split()) for text in page.locator("#tiles .tile").all_inner_texts()]

    assert cards()[1] == "best val_auc 0.95 (run a) the held-out rows differ: data.split.fraction"
    assert texts(page, "#legend li") == ["0.003 falling to 0", "0.3", "0.1"]
    assert "optimizer.learning_rate=0.003 falling to 0" in page.locator("#diffs").inner_text()
    for rate in ("0.3", "0.1"):
        select(page, "optimizer.learning_rate", rate)
    assert cards()[1] == "best val_auc 0.9 (run b)"


def test_examples_count_all_batches_of_an_update_also_after_a_resume_in_another_mode(opened, tmp_path):
    folder = a_run(tmp_path / "run")
    resumed = {"event": "epoch", "step": 300, "wall_s": 16.0, "epoch": 3, "metrics": {"auc": 0.5}, "seconds": 2.0,
               "steps_per_s": 1.7, "examples_per_s": 1.7 * 128}  # fmt: skip
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(resumed) + "\n")
    page = opened(folder)
    curves = page.evaluate("DATA.runs[0].curves")
    assert curves["auc"][3] == [6400, 12800, 25600]
    assert curves["val_auc"][3] == [6400, 12800]
    assert "examples" in texts(page, "#examples .role-axis-title text")


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
    run_folder.write_name(tmp_path / "runs" / "plain", hostile)
    page = opened(tmp_path / "runs")
    assert hostile in page.locator("#errors").inner_text()
    assert hostile in texts(page, "#runs td")
    assert page.locator("img").count() == 0
    assert hostile.replace("/", "") in page.locator("#diffs").inner_text()


def test_the_page_of_runs_without_metrics_shows_what_is_missing(opened, tmp_path):
    folder = a_run(tmp_path / "run", status="failed", metrics=None, placement=None, recoveries=None, step_time=None,
                   wall_s=None, examples_per_s=None, staleness=None)  # fmt: skip
    (folder / "metrics.jsonl").unlink()
    page = opened(folder)
    assert visible(page) == []
    assert page.locator("#metric").is_hidden()
    assert "no metrics.jsonl" in page.locator("#errors").inner_text()
    assert page.locator("#fold").is_hidden()  # there are no runs to group


def test_a_sweep_over_learning_rates_shows_its_own_metric_over_them_on_a_logarithmic_axis(opened, tmp_path):
    folder = tmp_path / "sweep"
    rates = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    for index, (rate, seed) in enumerate((rate, seed) for rate in rates for seed in (1, 2)):
        config = {"optimizer": {"_target_": "tf_keras.optimizers.Adagrad", "learning_rate": rate}}
        pruned = {"status": "interrupted", "search": {"state": "pruned", "rung": 0}} if index == 9 else {}
        run = a_run(folder / str(index), seed=seed, auc=0.7 + rate / 10 + seed / 100, config=config, **pruned)
        used(run, "chief-0", "worker-0", "worker-1", "ps-0", "ps-1")
    (folder / "sweep.json").write_text(json.dumps({"arguments": [], "metric": "val_auc", "mode": "min", "jobs": []}))
    page = opened(folder)
    assert (tmp_path / "page.html").stat().st_size < TEN_RUNS_BYTES
    assert page.locator("#charts h2").first.inner_text() == "val_auc over learning_rate"
    assert page.locator("#tiles .tile").nth(1).inner_text().split()[:3] == ["best", "val_auc", "0.71"]
    assert texts(page, "#runs th")[3:5] == ["status", "val_auc"]
    # Equal ratios are equal distances, and each seed has a point.
    points = [point.bounding_box()["x"] for point in page.locator("#over-0 .mark-symbol path").all()]
    assert len(points) == 10
    at = sorted({round(each) for each in points})
    steps = [after - before for before, after in itertools.pairwise(at)]
    assert len(steps) == 4
    assert max(steps) - min(steps) <= 2
    assert page.locator("#over-0 .mark-symbol path[fill='#fff']").count() == 1  # the one that a search ended
    assert "9 completed, 1 pruned" in page.locator("#tiles").inner_text()
    # Another metric is another chart.
    page.select_option("#metric", "loss")
    drawn(page)
    assert page.locator("#charts h2").first.inner_text() == "val_loss over learning_rate"
    assert "loss" not in visible(page)  # which "loss over steps" shows
    assert marks(page, "over-0") == 11  # a point for each run, and the line of their means


def test_the_page_shows_differences_from_a_baseline(opened, tmp_path):
    for seed in (1, 2, 3):
        a_run(tmp_path / "base" / str(seed), seed=seed, auc=0.8 + seed / 100)
        a_run(tmp_path / "new" / str(seed), seed=seed, auc=0.85 + seed**2 / 100, partitioner="fixed_shards")
    page = opened(tmp_path / "new", "--against", tmp_path / "base", "--metric", "val_auc")
    assert texts(page, "#compared-table td")[:3] == ["partitioner=fixed_shards", "val_auc", "3"]
    assert "Paired by seed" in page.locator("#compared-notes").inner_text()
    assert marks(page, "compared") >= 3  # no difference, the interval, the mean


def test_the_use_of_the_machine_by_task_over_time(opened, tmp_path):
    folder = a_run(tmp_path / "run")
    used(folder, "chief-0", "worker-0")
    page = opened(folder)
    titles = ["CPU (%)", "memory (MB)", "received per second (MB)", "sent per second (bytes)"]
    assert [title for title in texts(page, "#system .role-axis-title text") if "time" not in title] == titles
    measured = page.evaluate("DATA.runs[0].system['worker-0']")
    assert len(measured["at_s"]) <= 120
    assert set(measured["received_per_s"][1:]) == {1e6}


@pytest.mark.parametrize("width", WIDTHS)
def test_virtual_runs_are_over_virtual_time_and_beside_the_runs_that_they_predict(opened, tmp_path, width):
    for workers in (1, 2):
        a_real_run(tmp_path / f"real-{workers}", workers=workers)
        a_virtual_run(tmp_path / f"virtual-{workers}", workers=workers)
    page = opened(tmp_path, width=width)
    assert {"virtual", "virtual-throughput", "virtual-efficiency", "throughput", "wall"} <= set(visible(page))
    assert marks(page, "virtual") == marks(page, "wall") > 0
    assert {"virtual time (s)", "throughput (virtual examples/s)"} <= set(texts(page, ".role-axis-title text"))
    cards = [" ".join(text.split()) for text in page.locator("#tiles .tile").all_inner_texts()]
    assert "highest virtual examples/s 704 (run virtual-1)" in cards
    assert {"virtual.steps_per_s", "steps_per_s"} <= set(texts(page, "#runs th"))
    cells = texts(page, "#predicted-table td")
    assert cells[:6] == ["real-1", "virtual-1", "runs/one", "8", "10", "0.8"]
    assert "2 virtual runs: predicted steps/s" in page.locator("#predicted-notes").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("document.getElementById('choose').open = true")
    select(page, "cluster", "local")
    assert {"virtual", "virtual-throughput"} & set(visible(page)) == set()
