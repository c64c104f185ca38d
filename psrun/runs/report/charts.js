// The charts: each returns Vega-Lite specifications for the selected runs, or null if these have nothing to draw.
"use strict";

const PALETTE = ["#2457c5", "#d9541e", "#1b8a5a", "#a03bb0", "#c99700", "#0f9bb3", "#c2185b", "#6b7280", "#7cb342", "#6d4c41"];
const RED = "#b3261e", GREEN = "#1b8a5a", GREY = "#c9ced8";
const MOST_CURVES = 80;  // more cannot be distinguished, and take seconds to draw
const MOST_BARS = 40;
const MOST_VALUES = 5000;  // of the curves of a chart
const MOST_POINTS = 60;  // of a box; of more only the outliers are drawn
const MOST_KEYS = 4;  // with a chart of their own
const NARROW = innerWidth < 700;

const short = (text, most = NARROW ? 17 : 30) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
const unique = (values) => [...new Set(values)];
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const known = (value) => value !== null && value !== undefined;

function grouped(runs, key) {
  const found = new Map();
  for (const run of runs) {
    const name = key(run);
    if (!found.has(name)) found.set(name, []);
    found.get(name).push(run);
  }
  return found;
}

/** The fewest axes, without the seed, that distinguish as many runs as all axes do. */
function distinguishing() {
  const parts = (axes) => new Set(DATA.runs.map((run) => axes.map((axis) => run.axes[axis]).join("\n"))).size;
  const all = Object.keys(DATA.axes).filter((axis) => axis !== "seed");
  const kept = [];
  while (parts(kept) < parts(all)) {
    const left = all.filter((axis) => !kept.includes(axis));
    kept.push(left.reduce((best, axis) => (parts([...kept, axis]) > parts([...kept, best]) ? axis : best)));
  }
  return all.filter((axis) => kept.includes(axis));
}

/** The name of a run's configuration. */
function label(run) {
  return DISTINGUISHING.map((axis) => run.axes[axis] || "–").join(" · ") || run.name;
}

// -- parts of specifications

const quantity = (field, title, more = {}) => ({ field, type: "quantitative", title, ...more });
const OWN_COLOR = { field: "color", type: "nominal", scale: null };
const OWN_FILL = { field: "fill", type: "nominal", scale: null };
// Zero would hide the differences of most metrics.
const METRIC = { zero: false, nice: false };
const FROM_ZERO = { scale: { zero: true, nice: true } };
// A finger that drags a chart scrolls the page.
const ZOOM = matchMedia("(pointer: coarse)").matches ? [] : [{ name: "zoom", select: { type: "interval", zoom: "wheel![event.shiftKey]" }, bind: "scales" }];
const LEGEND = { title: null, orient: "top", columns: NARROW ? 2 : 0, labelLimit: 160 };
const firstOf = (all) => (all.length > MOST_BARS ? ` The first ${MOST_BARS} of ${all.length}.` : "");
const firstCurves = (all) => (all.length > MOST_CURVES ? ` The first ${MOST_CURVES} of ${all.length} runs.` : "");

/** The kind of scale for values: logarithmic if they span orders of magnitude. */
function scaleOf(values, factor) {
  const least = Math.min(...values), most = Math.max(...values);
  const around = Math.abs(most) / 10 || 1;  // equal values have no extent of their own
  if (least === most) return { domain: [least - around, most + around], nice: false };
  return least > 0 && most / least >= factor ? { type: "log", nice: false, padding: 12 } : { ...METRIC, padding: 8 };
}

/** A label beside an axis, in as many lines as it takes, three at most. */
function lines(text, most = NARROW ? 17 : 34) {
  const made = [""];
  for (const part of text.split(" · ").map((each) => short(each, most))) {
    const longer = made.at(-1) ? `${made.at(-1)} · ${part}` : part;
    if (longer.length > most) made.push(part);
    else made[made.length - 1] = longer;
  }
  return made.filter(Boolean).slice(0, 3).join("\n");
}

/** The labels of rows. A scale has one row for equal labels: invisible characters tell them apart. */
function rowLabels(texts) {
  const seen = new Map();
  return texts.map((text) => {
    seen.set(text, (seen.get(text) ?? 0) + 1);
    return text + "\u200b".repeat(seen.get(text) - 1);
  });
}

const ROWS = {
  field: "row", type: "nominal", sort: null, title: null,
  axis: {
    labelExpr: "split(datum.value, '\\n')", labelLimit: NARROW ? 130 : 260, ticks: false, domain: false,
    labelOffset: { condition: [2, 3, 4].map((count) => ({ test: `length(split(datum.value, '\\n')) == ${count}`, value: -7 * (count - 1) })), value: 0 },
  },
};
/** The height of a chart with these rows. */
const rowHeight = (texts) => texts.length * Math.max(...texts.map((text) => 16 + 14 * text.split("\n").length));

/** Bars of parts that add up, one for each row. */
function stacked(values, { labels, parts, title, colors = PALETTE }) {
  return {
    data: { values }, height: rowHeight(labels), mark: { type: "bar", height: { band: 0.66 }, stroke: "#fff", strokeWidth: 1 },
    encoding: {
      x: quantity("value", title, { stack: "zero" }), y: ROWS, order: { field: "place", type: "quantitative" },
      color: { field: "part", type: "nominal", scale: { domain: parts, range: parts.map((_, index) => colors[index % colors.length]) }, legend: LEGEND },
      tooltip: [{ field: "part", title: "part" }, { field: "value", title, format: ",.4~g" }, { field: "row", title: "configuration" }],
    },
  };
}

// -- learning

function against(name, which, text, runs, color) {
  const drawn = ["", "val_"].flatMap((prefix) => runs.slice(0, MOST_CURVES).map((run) => [prefix, run, run.curves[prefix + name]]));
  const found = drawn.filter(([, , curve]) => curve?.[which].some(known));
  const every = Math.ceil(found.reduce((sum, [, , curve]) => sum + curve[2].length, 0) / MOST_VALUES);
  const values = [];
  for (const [prefix, run, curve] of found) {
    const last = curve[2].length - 1;
    curve[2].forEach((y, index) => {
      if ((index % every && index !== last) || !known(curve[which][index])) return;
      values.push({ x: curve[which][index], y, of: prefix ? "evaluation" : "training", run: run.name, configuration: label(run), color: color(run) });
    });
  }
  if (!values.length) return null;
  const few = Math.max(...runs.map((run) => run.curves[name]?.[0].length ?? 0)) < 12;
  const spec = {
    data: { values }, params: ZOOM, mark: { type: "line", strokeWidth: 1.7, clip: true, point: few ? { size: 22 } : { size: 60, opacity: 0 } },
    encoding: {
      x: quantity("x", text, FROM_ZERO), y: quantity("y", name, { scale: scaleOf(values.map((each) => each.y), 1000) }), color: OWN_COLOR, detail: { field: "run" },
      strokeDash: { field: "of", scale: { domain: ["training", "evaluation"], range: [[1, 0], [5, 3]] }, legend: null },
      tooltip: [{ field: "run" }, { field: "configuration" }, { field: "of", title: "of" }, { field: "y", title: name, format: ".4~g" }, { field: "x", title: text, format: ",.6~g" }],
    },
  };
  return { specs: [spec], note: firstCurves(runs) + (every > 1 ? ` One in ${every} values.` : "") };
}

/** A metric by the value of a key: a point for each run, and the mean of the runs with equal values. */
function over(axis, metric, runs, color) {
  const measured = runs.filter((run) => known(run.metrics[metric]));
  if (unique(measured.map((run) => run.axes[axis])).length < 2) return null;
  const others = DISTINGUISHING.filter((each) => each !== axis);
  const values = measured.map((run) => ({
    key: run.numbers[axis] ?? null, text: run.axes[axis] || "(none)", y: run.metrics[metric], run: run.name, configuration: label(run), seed: run.axes.seed ?? "",
    color: color(run), fill: run.status === "completed" ? color(run) : "#fff", status: run.status, series: others.map((each) => run.axes[each]).join(" · "),
  }));
  const ended = values.filter((each) => each.status === "completed");
  const hollow = ended.length < values.length ? " Hollow: not completed; not in the mean." : "";
  const note = hollow + (measured.length < runs.length ? ` Without ${runs.length - measured.length} runs that have no ${metric}.` : "");
  const tooltip = [{ field: "run" }, { field: "configuration" }, { field: "seed" }, { field: "status" }, { field: "y", title: metric, format: ".4~g" }];
  const ofMetric = quantity("y", metric, { scale: scaleOf(values.map((each) => each.y), 1000) });
  if (values.some((each) => each.key === null)) return { specs: [overCategories(values, ofMetric, tooltip)], note };
  const at = unique(values.map((each) => each.key));
  const x = quantity("key", DATA.axes[axis], { scale: scaleOf(at, 20), axis: { ...(at.length <= 8 ? { values: at } : {}), format: "~g", labelOverlap: true, grid: false } });
  const means = unique(ended.map((each) => each.series)).flatMap((name) => {
    const same = ended.filter((each) => each.series === name);
    const tones = unique(same.map((each) => each.color));
    return [...grouped(same, (each) => each.key)].map(([key, equal]) => ({ key, y: mean(equal.map((each) => each.y)), series: name, color: tones.length === 1 ? tones[0] : "#8b93a3" }));
  });
  const line = { data: { values: means }, mark: { type: "line", strokeWidth: 1.7 }, encoding: { x, y: ofMetric, detail: { field: "series" }, color: OWN_COLOR } };
  const points = { data: { values }, mark: { type: "point", size: 50, opacity: 0.85 }, encoding: { x, y: ofMetric, stroke: OWN_COLOR, fill: OWN_FILL, tooltip } };
  return { specs: [{ layer: [...(means.length ? [line] : []), points] }], note };
}

function overCategories(values, ofMetric, tooltip) {
  const texts = unique(values.map((each) => each.text)).sort(compare);
  const labels = rowLabels(texts.map((text) => lines(text)));
  const labelled = values.map((each) => ({ ...each, row: labels[texts.indexOf(each.text)] }));
  const y = { ...ROWS, sort: labels };
  return {
    height: Math.max(200, rowHeight(labels)), data: { values: labelled },
    layer: [
      { transform: [{ filter: "datum.status == 'completed'" }], mark: { type: "tick", thickness: 2, size: 22, color: "#1d2433" }, encoding: { x: { ...ofMetric, aggregate: "mean" }, y } },
      { mark: { type: "point", size: 50, opacity: 0.85 }, encoding: { x: ofMetric, y, stroke: OWN_COLOR, fill: OWN_FILL, tooltip } },
    ],
  };
}

/** The differences from the baseline of --against, with their intervals. */
function differences(metric) {
  const found = DATA.compared.rows.filter((each) => each.metric === metric);
  const labels = rowLabels(found.map((each) => lines(each.configuration.replaceAll(", ", " · "))));
  const values = found.map((each, index) => ({ ...each, row: labels[index] })).filter((each) => known(each.difference));
  if (!values.length) return null;
  const x = (field) => quantity(field, `difference of ${metric}`, { scale: { zero: true, padding: 10 } });
  const tooltip = [{ field: "configuration" }, { field: "difference", format: "+.4~g" }, { field: "low", format: "+.4~g" }, { field: "high", format: "+.4~g" }, { field: "adjusted", title: "p", format: ".2~g" }, { field: "number", title: "n" }];
  return {
    height: rowHeight(labels), data: { values },
    layer: [
      { mark: { type: "rule", color: "#6b7280", strokeDash: [3, 3] }, encoding: { x: { datum: 0 } } },
      { transform: [{ filter: "isValid(datum.low)" }], mark: { type: "rule", strokeWidth: 2, color: PALETTE[0] }, encoding: { x: x("low"), x2: { field: "high" }, y: ROWS } },
      { mark: { type: "point", filled: true, size: 70, color: PALETTE[0], opacity: 1 }, encoding: { x: x("difference"), y: ROWS, tooltip } },
    ],
  };
}

// -- speed

const VIRTUAL = "virtual.examples_per_s";

/** Runs of the same series differ in the number of workers and the seed only. */
function series(runs) {
  const other = (axis) => axis !== "seed" && !axis.endsWith("num_workers");
  return grouped(runs, (run) => Object.entries(run.axes).filter(([axis]) => other(axis)).map(([, value]) => value).join(" · "));
}

/** The throughput by the number of workers: `rate` is the field of a run that has it. */
function scaling(runs, color, { efficiency, rate }) {
  const measured = runs.filter((run) => known(run.workers) && run[rate] && run.status === "completed");
  const workers = unique(measured.map((run) => run.workers)).sort((a, b) => a - b);
  if (!measured.length || (efficiency && workers.length < 2)) return null;
  const title = efficiency ? "efficiency (1 = linear)" : `throughput (${rate === VIRTUAL ? "virtual " : ""}examples/s)`;
  const means = [], points = [];
  for (const [name, those] of series(measured)) {
    const at = [...grouped(those, (run) => run.workers)].sort((a, b) => a[0] - b[0]);
    const base = mean(at[0][1].map((run) => run[rate])) / at[0][0];
    const value = (run) => (efficiency ? run[rate] / run.workers / base : run[rate]);
    if (efficiency && at.length < 2) continue;
    points.push(...those.map((run) => ({ x: run.workers, y: value(run), run: run.name, configuration: label(run), color: color(run) })));
    if (at.length < 2) continue;
    const tones = unique(those.map(color));
    means.push(...at.map(([count, same]) => ({ x: count, y: mean(same.map(value)), series: name, color: tones.length === 1 ? tones[0] : GREY })));
  }
  if (!points.length) return null;
  const x = quantity("x", "number of workers", { scale: { zero: false, nice: false, padding: 14 }, axis: { values: workers, format: "d", grid: false } });
  const y = quantity("y", title, { scale: { zero: true } });
  const linear = { mark: { type: "rule", strokeDash: [3, 3], color: "#6b7280" }, encoding: { y: { datum: 1 } } };
  const layer = [
    ...(means.length ? [{ data: { values: means }, mark: { type: "line", strokeWidth: 1.7 }, encoding: { x, y, detail: { field: "series" }, color: OWN_COLOR } }] : []),
    {
      data: { values: points }, mark: { type: "point", filled: true, size: 55, opacity: 0.85 },
      encoding: { x, y, color: OWN_COLOR, tooltip: [{ field: "run" }, { field: "configuration" }, { field: "x", title: "workers" }, { field: "y", title, format: ",.4~g" }] },
    },
    ...(efficiency ? [linear] : []),
  ];
  return { specs: [{ layer }] };
}

const UNITS = [["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["bytes", 1]];
const unitOf = (most) => UNITS.find(([, one]) => most >= one) ?? UNITS.at(-1);

/** One bar for all runs that hold the same, stacked by task. */
function placement(runs) {
  const placed = runs.filter((run) => Object.keys(run.bytes).length);
  if (!placed.length) return null;
  const all = [...grouped(placed, (run) => JSON.stringify(run.bytes)).values()];
  const alike = all.slice(0, MOST_BARS);
  const varied = NAMED.filter((axis) => axis !== "seed" && unique(placed.map((run) => run.axes[axis])).length > 1);
  const labels = rowLabels(alike.map((same) => {
    const shared = varied.filter((axis) => unique(same.map((run) => run.axes[axis])).length === 1).slice(0, 3).map((axis) => same[0].axes[axis]);
    const what = shared.filter(Boolean).join(" · ") || (same.length === 1 ? same[0].name : "");
    const sizes = Object.values(same[0].bytes);
    const uneven = sizes.length > 1 ? `fullest ${(Math.max(...sizes) / mean(sizes)).toFixed(2)} × mean` : "one task";
    return [...lines(what).split("\n").slice(0, 2), same.length > 1 ? `${same.length} runs` : "", uneven].filter(Boolean).join("\n");
  }));
  const parts = unique(alike.flatMap((same) => Object.keys(same[0].bytes))).sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
  const [unit, size] = unitOf(Math.max(...alike.map((same) => Object.values(same[0].bytes).reduce((a, b) => a + b, 0))));
  const values = alike.flatMap((same, index) => Object.entries(same[0].bytes).map(([part, bytes]) => ({ row: labels[index], part, place: parts.indexOf(part), value: bytes / size })));
  return { specs: [stacked(values, { labels, parts, title: NARROW ? `size (${unit})` : `size of model and optimizer (${unit})` })], note: firstOf(all) };
}

const STAGES = { input: "waiting for input", traffic: "parameter traffic", compute: "computing", other: "between executions" };

/** A bar for all runs of a configuration: where the time of a step on a worker goes. */
function stages(runs) {
  const all = [...grouped(runs.filter((run) => run.step_time), (run) => run.group).values()];
  if (!all.length) return null;
  const found = all.slice(0, MOST_BARS);
  const labels = rowLabels(found.map((same) => lines(label(same[0]))));
  const values = found.flatMap((same, index) => Object.entries(STAGES).map(([name, part], place) => ({ row: labels[index], part, place, value: 1000 * mean(same.map((run) => run.step_time[name] ?? 0)) })));
  return { specs: [stacked(values, { labels, parts: Object.values(STAGES), title: "time per step of a worker (ms)" })], note: firstOf(all) };
}

function stepTimes(runs, color) {
  const all = [...grouped(runs.filter((run) => run.epochs.some((epoch) => known(epoch[3]))), (run) => run.group).values()];
  if (!all.length) return null;
  const found = all.slice(0, MOST_BARS);
  const labels = rowLabels(found.map((same) => lines(label(same[0]))));
  const values = found.flatMap((same, index) => same.flatMap((run) => run.epochs.filter((epoch) => known(epoch[3])).map((epoch) => ({
    row: labels[index], ms: epoch[3], run: run.name, epoch: epoch[0], color: color(same[0]),
  }))));
  const x = quantity("ms", "time per step (ms)", { scale: { zero: true } });
  const few = Math.max(...[...grouped(values, (each) => each.row).values()].map((same) => same.length)) <= MOST_POINTS;
  const box = { mark: { type: "boxplot", extent: 1.5, size: 14, outliers: few ? false : { size: 12 }, opacity: 0.45, median: { color: "#fff" } }, encoding: { x, y: ROWS, color: OWN_COLOR } };
  const points = {
    mark: { type: "point", filled: true, size: 16, opacity: 0.75 },
    encoding: { x, y: ROWS, color: OWN_COLOR, tooltip: [{ field: "run" }, { field: "epoch" }, { field: "ms", title: "time per step (ms)", format: ".4~g" }] },
  };
  return { specs: [{ height: rowHeight(labels), data: { values }, layer: [box, ...(few ? [points] : [])] }], note: firstOf(all) };
}

function staleness(runs, color) {
  const found = runs.filter((run) => run.staleness);
  if (!found.length) return null;
  const values = found.slice(0, MOST_CURVES).flatMap((run) => run.staleness.map(([updates, share]) => ({ updates, share, run: run.name, configuration: label(run), color: color(run) })));
  const spec = {
    data: { values }, params: ZOOM, mark: { type: "line", interpolate: "step-after", strokeWidth: 1.7, point: { size: 22 }, clip: true },
    encoding: {
      x: quantity("updates", "staleness (updates)", FROM_ZERO), y: quantity("share", "share of updates", { scale: { domain: [0, 1] }, axis: { format: ".0%" } }), color: OWN_COLOR, detail: { field: "run" },
      tooltip: [{ field: "run" }, { field: "configuration" }, { field: "updates", title: "this stale or less" }, { field: "share", format: ".1%" }],
    },
  };
  return { specs: [spec], note: firstCurves(found) };
}

// -- one run over time

function tasksOf(run) {
  const counted = (job, count) => Array.from({ length: count ?? 0 }, (_, index) => `${job}-${index}`);
  const parts = run.topology === "none" || !known(run.workers) ? [] : [...counted("worker", run.workers), ...counted("ps", run.ps)];
  const lost = [...run.recovered, ...run.marks].map((each) => each.task).filter(Boolean);
  return unique(["chief-0", ...parts, ...lost]).filter((task) => parts.length <= 40 || task === "chief-0" || lost.includes(task));
}

/** When tasks were missing: [from, to, task, text], for lost tasks and for those restarted with them. */
function absences(run, last) {
  const failures = run.marks.filter((mark) => mark.kind === "failure" && known(mark.wall_s));
  const back = run.recovered.filter((each) => known(each.at_s));
  const spans = back.map((each) => [each.at_s, each.at_s + (each.seconds ?? 0), each.task, `${each.task} ${each.cause}; the next step after ${shown(each.seconds)} s, ${each.steps_lost} steps lost`]);
  const others = [];
  for (const mark of failures) {
    const end = spans.find(([from, , task]) => task === mark.task && Math.abs(from - mark.wall_s) < 2);
    if (!end) spans.push([mark.wall_s, last, mark.task, `${mark.task} ${mark.cause ?? ""}; did not return`]);
    const named = unique((mark.action ?? "").match(/\b[a-z]+-\d+\b/g) ?? []).filter((task) => task !== mark.task);
    others.push(...named.map((task) => [mark.wall_s, end ? end[1] : last, task, `${task}: restarted with ${mark.task}`]));
  }
  return { spans, others };
}

const BARS = { epoch: "#8fb0ea", restarted: "#efb8b2", lost: RED };
const POINTS = { checkpoint: ["square", "#c99700"], evaluation: ["diamond", "#a03bb0"], restored: ["triangle-right", GREEN], failure: ["cross", "#1d2433"], recovery: ["circle", GREEN] };

/** The tasks of one run, a lane each: losses, recoveries, and the epochs of the training. */
function timeline(run) {
  if (!run) return null;
  const last = Math.max(run.wall_s ?? 0, ...run.marks.map((mark) => mark.wall_s ?? 0), ...run.epochs.map((epoch) => epoch[1] ?? 0));
  if (!last) return null;
  const tasks = tasksOf(run);
  const { spans, others } = absences(run, last);
  const epochs = run.epochs.filter((epoch) => known(epoch[1]) && known(epoch[2]));
  const bars = [
    ...epochs.map(([count, end, seconds]) => ({ kind: "epoch", from: end - seconds, to: end, row: "training", text: `epoch ${count}: ${shown(seconds)} s` })),
    ...others.map(([from, to, row, text]) => ({ kind: "restarted", from, to, row, text })),
    ...spans.map(([from, to, row, text]) => ({ kind: "lost", from, to, row, text })),
  ];
  const described = (mark) => [mark.kind, mark.task, mark.cause, mark.action, known(mark.step) ? `step ${mark.step}` : ""].filter(Boolean).join(", ");
  const points = [
    ...run.marks.filter((mark) => mark.kind in POINTS && known(mark.wall_s)).map((mark) => ({ kind: mark.kind, at: mark.wall_s, row: mark.kind === "failure" ? mark.task : "training", text: described(mark) })),
    ...spans.filter(([, to]) => to < last).map(([, to, task]) => ({ kind: "recovery", at: to, row: task, text: `${task} recovered` })),
  ];
  const lanes = ["training", ...tasks];
  const y = { ...ROWS, sort: lanes, scale: { domain: lanes } };
  const x = (field) => quantity(field, "time since the start (s)", { scale: { domain: [0, last * 1.02], nice: false } });
  const present = (kinds, marks) => Object.keys(kinds).filter((kind) => marks.some((mark) => mark.kind === kind));
  const [barKinds, pointKinds] = [present(BARS, bars), present(POINTS, points)];
  const background = { data: { values: tasks.map((row) => ({ row, from: 0, to: last })) }, mark: { type: "bar", height: 13, color: "#e4e8f0" }, encoding: { x: x("from"), x2: { field: "to" }, y } };
  const legends = [{ ...LEGEND, columns: 0 }, { ...LEGEND, orient: NARROW ? "bottom" : "top", columns: NARROW ? 3 : 0 }];
  const colors = (kinds, of, legend) => ({ field: "kind", type: "nominal", scale: { domain: kinds, range: kinds.map(of) }, legend });
  const spanned = { data: { values: bars }, mark: { type: "bar", height: 13, stroke: "#fff", strokeWidth: 0.6 }, encoding: { x: x("from"), x2: { field: "to" }, y, color: colors(barKinds, (kind) => BARS[kind], legends[0]), tooltip: { field: "text", title: "what" } } };
  const marked = {
    data: { values: points }, mark: { type: "point", filled: true, size: 75, opacity: 1, stroke: "#fff", strokeWidth: 0.8 },
    encoding: {
      x: x("at"), y, color: colors(pointKinds, (kind) => POINTS[kind][1], legends[1]), tooltip: { field: "text", title: "what" },
      shape: { field: "kind", scale: { domain: pointKinds, range: pointKinds.map((kind) => POINTS[kind][0]) }, legend: legends[1] },
    },
  };
  return { specs: [{ height: 26 * lanes.length, layer: [background, ...(bars.length ? [spanned] : []), ...(points.length ? [marked] : [])], resolve: { scale: { color: "independent", shape: "independent" } } }] };
}

const SYSTEM = [["cpu_percent", "CPU (%)", 1], ["memory_bytes", "memory", 0], ["received_per_s", "received per second", 0], ["sent_per_s", "sent per second", 0]];

/** CPU, memory and network of the tasks of one run over time. */
function system(run) {
  const tasks = Object.keys(run?.system ?? {}).sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
  const specs = SYSTEM.map(([name, title, unit]) => {
    const values = tasks.flatMap((task) => run.system[task][name].map((y, index) => ({ task, x: run.system[task].at_s[index], y })).filter((each) => known(each.y)));
    if (!values.length) return null;
    const [text, size] = unit ? ["", 1] : unitOf(Math.max(...values.map((each) => each.y)));
    const named = unit ? title : `${title} (${text})`;
    const legend = name === SYSTEM[0][0] ? LEGEND : null;
    return {
      height: 150, data: { values: values.map((each) => ({ ...each, y: each.y / size })) }, mark: { type: "line", strokeWidth: 1.5, point: { size: 50, opacity: 0 } },
      encoding: {
        x: quantity("x", "time since the start (s)", FROM_ZERO), y: quantity("y", named, { scale: { zero: true } }),
        color: { field: "task", type: "nominal", scale: { domain: tasks, range: tasks.map((_, index) => PALETTE[index % PALETTE.length]) }, legend },
        tooltip: [{ field: "task" }, { field: "x", title: "seconds", format: ",.4~g" }, { field: "y", title: named, format: ",.4~g" }],
      },
    };
  }).filter(Boolean);
  return specs.length ? { specs } : null;
}

const picked = (runs, state) => runs.find((run) => run.name === state.run);

/** All charts: what varies first, then learning, speed, and single runs. */
const charts = () => [
  ...DISTINGUISHING.slice(0, MOST_KEYS).map((axis, index) => ({
    id: `over-${index}`, title: (state) => `${state.rank} over ${DATA.axes[axis]}`, note: "A point for each run; the line, or the tick, is the mean of runs with the same value.",
    draw: (runs, state) => over(axis, state.rank, runs, state.tone),
  })),
  { id: "steps", title: (state) => `${state.metric} over steps`, note: "Solid: training. Dashed: evaluation.", draw: (runs, state) => against(state.metric, 0, "applied steps", runs, state.tone) },
  { id: "loss", title: () => "Loss over steps", note: "Solid: training. Dashed: evaluation.", draw: (runs, state) => (state.metric === "loss" ? null : against("loss", 0, "applied steps", runs, state.tone)) },
  { id: "examples", title: (state) => `${state.metric} against examples`, note: "Applied steps times the examples of a step.", draw: (runs, state) => against(state.metric, 3, "examples", runs, state.tone) },
  { id: "wall", title: (state) => `${state.metric} against wall time`, note: "Since the start of the run, including setup.", draw: (runs, state) => against(state.metric, 1, "time since the start (s)", runs, state.tone) },
  { id: "virtual", title: (state) => `${state.metric} against virtual time`, note: "Runs of virtual clusters, without evaluations and checkpoints.", draw: (runs, state) => against(state.metric, 4, "virtual time (s)", runs, state.tone) },
  { id: "throughput", title: () => "Throughput against workers", note: "One point per run; lines connect the means.", draw: (runs, state) => scaling(runs, state.tone, { efficiency: false, rate: "examples_per_s" }) },
  { id: "efficiency", title: () => "Scaling efficiency", note: "Throughput per worker, relative to the fewest workers.", draw: (runs, state) => scaling(runs, state.tone, { efficiency: true, rate: "examples_per_s" }) },
  { id: "virtual-throughput", title: () => "Virtual throughput against workers", note: "As virtual clusters predict it; lines connect the means.", draw: (runs, state) => scaling(runs, state.tone, { efficiency: false, rate: VIRTUAL }) },
  { id: "virtual-efficiency", title: () => "Virtual scaling efficiency", note: "Virtual throughput per worker, relative to the fewest workers.", draw: (runs, state) => scaling(runs, state.tone, { efficiency: true, rate: VIRTUAL }) },
  { id: "times", title: () => "Step time", note: "All workers together; one point per epoch.", wide: true, draw: (runs, state) => stepTimes(runs, state.tone) },
  { id: "stages", title: () => "Where the time of a step goes", note: "Measured on a worker during training; mean of the runs of a configuration.", wide: true, draw: (runs) => stages(runs) },
  { id: "staleness", title: () => "Staleness of updates", note: "Updates applied between the read of the weights and the own update; the share of updates up to each number.", wide: true, draw: (runs, state) => staleness(runs, state.tone) },
  { id: "placement", title: () => "Placement", note: "Bytes of model and optimizer on each task.", wide: true, draw: (runs) => placement(runs) },
  { id: "timeline", title: () => "Timeline of a run", note: "Lost tasks, restarts and recoveries.", wide: true, pick: true, draw: (runs, state) => timeline(picked(runs, state)) },
  { id: "system", title: () => "CPU, memory and network of a run", note: "Measured in each task.", wide: true, pick: true, draw: (runs, state) => system(picked(runs, state)) },
];
