// The charts: each returns traces and axes for the selected runs, or the reason why it is empty.
"use strict";

const PALETTE = ["#2457c5", "#d9541e", "#1b8a5a", "#a03bb0", "#c99700", "#0f9bb3", "#c2185b", "#6b7280", "#7cb342", "#6d4c41"];
const RED = "#b3261e", GREEN = "#1b8a5a", GREY = "#c9ced8";
const MOST_CURVES = 80;  // more cannot be distinguished, and take seconds to draw
const MOST_BARS = 40;
const NARROW = innerWidth < 700;

// Plotly reads some HTML in labels; the text of runs is plain.
const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;");
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

/** A label beside an axis, in as many lines as it takes. */
function lines(text, most = NARROW ? 17 : 34) {
  const made = [""];
  for (const part of text.split(" · ").map((each) => short(each, most))) {
    const longer = made.at(-1) ? `${made.at(-1)} · ${part}` : part;
    if (longer.length > most) made.push(part);
    else made[made.length - 1] = longer;
  }
  return made.filter(Boolean).slice(0, 3).map(plain).join("<br>");
}

function curves(runs, name, against, color) {
  const traces = [];
  for (const [prefix, dash] of [["", "solid"], ["val_", "dash"]]) {
    for (const run of runs.slice(0, MOST_CURVES)) {
      const curve = run.curves[prefix + name];
      if (!curve?.[against].some(known)) continue;
      const few = curve[0].length < 12;
      traces.push({
        x: curve[against], y: curve[2], mode: few ? "lines+markers" : "lines", line: { color: color(run), width: 1.7, dash },
        marker: { size: 4 }, name: plain(short(`${run.name} ${prefix}${name}`, 40)), text: plain(label(run)),
        hovertemplate: "%{y:.4g} at %{x:,.6~g}<br>%{text}",
      });
    }
  }
  return traces;
}

function against(title, name, which, text, color, runs) {
  const traces = curves(runs, name, which, color);
  if (!traces.length) return `no run has ${name} over time`;
  const note = runs.length > MOST_CURVES ? ` The first ${MOST_CURVES} of ${runs.length} selected runs.` : "";
  return { traces, note, layout: { xaxis: { title: { text }, rangemode: "tozero" }, yaxis: { title: { text: plain(title) } } } };
}

/** Runs of the same series differ in the number of workers and the seed only. */
function series(runs) {
  const other = (axis) => axis !== "seed" && !axis.endsWith("num_workers");
  return grouped(runs, (run) => Object.entries(run.axes).filter(([axis]) => other(axis)).map(([, value]) => value).join(" · "));
}

function scaling(runs, color, { efficiency }) {
  const measured = runs.filter((run) => known(run.workers) && run.examples_per_s && run.status === "completed");
  const workers = unique(measured.map((run) => run.workers)).sort((a, b) => a - b);
  if (!measured.length) return "no completed run has a throughput";
  if (efficiency && workers.length < 2) return `needs runs with different numbers of workers; these have ${workers[0]}`;
  const traces = [], points = [];
  for (const [name, those] of series(measured)) {
    const at = [...grouped(those, (run) => run.workers)].sort((a, b) => a[0] - b[0]);
    const base = mean(at[0][1].map((run) => run.examples_per_s)) / at[0][0];
    const value = (run) => (efficiency ? run.examples_per_s / run.workers / base : run.examples_per_s);
    if (efficiency && at.length < 2) continue;
    points.push(...those.map((run) => [run, value(run)]));
    if (at.length < 2 || traces.length >= MOST_BARS) continue;
    const tones = unique(those.map(color));
    traces.push({
      x: at.map(([count]) => count), y: at.map(([, same]) => mean(same.map(value))), mode: "lines",
      line: { color: tones.length === 1 ? tones[0] : GREY, width: 1.7 }, name: plain(name), hoverinfo: "skip",
    });
  }
  if (!points.length) return "no two runs differ only in the number of workers";
  traces.push({
    x: points.map(([run]) => run.workers), y: points.map(([, y]) => y), mode: "markers", marker: { size: 8, color: points.map(([run]) => color(run)) },
    text: points.map(([run]) => plain(`${run.name}: ${label(run)}`)), hovertemplate: "%{y:,.4~g} with %{x} workers<br>%{text}<extra></extra>",
  });
  if (efficiency) traces.push({ x: [workers[0], workers.at(-1)], y: [1, 1], mode: "lines", line: { color: "#6b7280", dash: "dot", width: 1.2 }, hoverinfo: "skip" });
  return {
    traces,
    layout: {
      xaxis: { title: { text: "number of workers" }, tickvals: workers, range: workers.length < 2 ? [workers[0] - 1, workers[0] + 1] : undefined },
      yaxis: { title: { text: efficiency ? "efficiency (1 = linear)" : "throughput (examples/s)" }, rangemode: "tozero" },
    },
  };
}

const LEGEND = { orientation: "h", y: 1.02, yanchor: "bottom", x: NARROW ? -0.2 : 0, entrywidth: NARROW ? 75 : 0, traceorder: "normal" };
const UNITS = [["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["bytes", 1]];

/** One bar for all runs that hold the same, stacked by task. */
function placement(runs) {
  const placed = runs.filter((run) => Object.keys(run.bytes).length);
  if (!placed.length) return "no run has a placement";
  const all = [...grouped(placed, (run) => JSON.stringify(run.bytes)).values()];
  const alike = all.slice(0, MOST_BARS);
  const varied = NAMED.filter((axis) => axis !== "seed" && unique(placed.map((run) => run.axes[axis])).length > 1);
  const names = alike.map((same) => {
    const shared = varied.filter((axis) => unique(same.map((run) => run.axes[axis])).length === 1).slice(0, 3).map((axis) => same[0].axes[axis]);
    const what = shared.filter(Boolean).join(" · ") || (same.length === 1 ? same[0].name : "");
    const sizes = Object.values(same[0].bytes);
    const uneven = sizes.length > 1 ? `fullest ${(Math.max(...sizes) / mean(sizes)).toFixed(2)} × mean` : "one task";
    return `${lines(what)}<br>${same.length > 1 ? `${same.length} runs, ` : ""}${uneven}`;
  });
  const places = alike.map((_, index) => alike.length - index);
  const tasks = unique(alike.flatMap((same) => Object.keys(same[0].bytes))).sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
  const most = Math.max(...alike.map((same) => Object.values(same[0].bytes).reduce((a, b) => a + b, 0)));
  const [unit, size] = UNITS.find(([, one]) => most >= one) ?? UNITS.at(-1);
  const traces = tasks.map((task, index) => ({
    type: "bar", orientation: "h", name: plain(task), width: 0.6, y: places, x: alike.map((same) => (same[0].bytes[task] ?? 0) / size),
    marker: { color: PALETTE[index % PALETTE.length], line: { color: "#fff", width: 1 } }, hovertemplate: `%{x:,.4~g} ${unit}`,
  }));
  return {
    traces, note: firstOf(all),
    layout: {
      barmode: "stack", height: 130 + (NARROW ? 70 : 46) * alike.length, showlegend: true, legend: LEGEND,
      xaxis: { title: { text: NARROW ? `size (${unit})` : `size of model and optimizer (${unit})` } }, yaxis: { tickvals: places, ticktext: names, automargin: true }, margin: { t: 40 },
    },
  };
}

const firstOf = (all) => (all.length > MOST_BARS ? ` The first ${MOST_BARS} of ${all.length}.` : "");
const STAGES = { input: "waiting for input", traffic: "parameter traffic", compute: "computing", other: "between executions" };

/** A bar for all runs of a configuration: where the time of a step on a worker goes. */
function stages(runs) {
  const all = [...grouped(runs.filter((run) => run.step_time), (run) => run.group).values()];
  if (!all.length) return "no run has measured the parts of its steps";
  const found = all.slice(0, MOST_BARS);
  const places = found.map((_, index) => found.length - index);
  const traces = Object.entries(STAGES).map(([name, text], index) => ({
    type: "bar", orientation: "h", name: text, width: 0.6, y: places, x: found.map((same) => 1000 * mean(same.map((run) => run.step_time[name] ?? 0))),
    marker: { color: PALETTE[index], line: { color: "#fff", width: 1 } }, hovertemplate: "%{x:.4~g} ms",
  }));
  return {
    traces, note: firstOf(all),
    layout: {
      barmode: "stack", height: (NARROW ? 190 : 130) + (NARROW ? 46 : 36) * found.length, showlegend: true,
      legend: { ...LEGEND, entrywidth: NARROW ? 130 : 0 }, margin: { t: NARROW ? 80 : 40 },
      xaxis: { title: { text: "time per step of a worker (ms)" } }, yaxis: { tickvals: places, ticktext: found.map((same) => lines(label(same[0]))), automargin: true },
    },
  };
}

function staleness(runs, color) {
  const found = runs.filter((run) => run.staleness);
  if (!found.length) return "no run has measured the staleness of its updates";
  const traces = found.slice(0, MOST_CURVES).map((run) => ({
    x: run.staleness.map(([updates]) => updates), y: run.staleness.map(([, share]) => share), mode: "lines+markers", line: { color: color(run), width: 1.7, shape: "hv" },
    marker: { size: 4 }, name: plain(short(run.name, 40)), text: plain(label(run)), hovertemplate: "%{y:.1%} at %{x} or less<br>%{text}",
  }));
  const note = found.length > MOST_CURVES ? ` The first ${MOST_CURVES} of ${found.length} runs.` : "";
  return { traces, note, layout: { xaxis: { title: { text: "staleness (updates)" }, rangemode: "tozero" }, yaxis: { title: { text: "share of updates" }, range: [0, 1.03], tickformat: ".0%" } } };
}

function stepTimes(runs, color) {
  const all = [...grouped(runs.filter((run) => run.epochs.some((epoch) => known(epoch[3]))), (run) => run.group).values()];
  if (!all.length) return "no run has step times of its epochs";
  const found = all.slice(0, MOST_BARS);
  const places = found.map((_, index) => found.length - index);
  const traces = found.map((same, index) => {
    const measured = same.flatMap((run) => run.epochs.filter((epoch) => known(epoch[3])).map((epoch) => [epoch[3], `${run.name}, epoch ${epoch[0]}`]));
    return {
      type: "box", orientation: "h", x: measured.map(([ms]) => ms), y0: places[index], boxpoints: measured.length <= 60 ? "all" : "outliers", jitter: 0.5, pointpos: 0,
      marker: { size: 4, color: color(same[0]), opacity: 0.6 }, line: { width: 1.3 }, text: measured.map(([, text]) => plain(text)),
      hovertemplate: "%{x:.4~g} ms<br>%{text}<extra></extra>",
    };
  });
  return {
    traces, note: firstOf(all),
    layout: {
      height: 110 + (NARROW ? 46 : 36) * found.length,
      xaxis: { title: { text: "time per step (ms)" }, rangemode: "tozero" },
      yaxis: { tickvals: places, ticktext: found.map((same) => lines(label(same[0]))), automargin: true },
    },
  };
}

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

/** The tasks of one run, a lane each: losses, recoveries, and the epochs of the training. */
function timeline(run) {
  if (!run) return "no run is selected";
  const last = Math.max(run.wall_s ?? 0, ...run.marks.map((mark) => mark.wall_s ?? 0), ...run.epochs.map((epoch) => epoch[1] ?? 0));
  if (!last) return `${run.name} has no events`;
  const tasks = tasksOf(run);
  const lanes = ["training", ...tasks];
  const place = (name) => lanes.length - lanes.indexOf(name);
  const bars = (name, color, spans) => ({
    type: "bar", orientation: "h", name, base: spans.map(([from]) => from), x: spans.map(([from, to]) => to - from), y: spans.map(([, , lane]) => place(lane)),
    width: 0.5, marker: { color, line: { color: "#fff", width: 0.6 } }, text: spans.map(([, , , text]) => plain(text)), textposition: "none", hovertemplate: "%{text}<extra></extra>",
  });
  const points = (name, symbol, color, those) => ({
    mode: "markers", name, x: those.map(([at]) => at), y: those.map(([, lane]) => place(lane)), text: those.map(([, , text]) => plain(text)),
    marker: { symbol, color, size: symbol === "x" ? 11 : 8, line: { color: "#fff", width: 1 } }, hovertemplate: "%{text}<extra></extra>",
  });
  const text = (mark) => [mark.kind, mark.task, mark.cause, mark.action, known(mark.step) ? `step ${mark.step}` : ""].filter(Boolean).join(", ");
  const marked = (kind) => run.marks.filter((mark) => mark.kind === kind && known(mark.wall_s)).map((mark) => [mark.wall_s, kind === "failure" ? mark.task : "training", text(mark)]);
  const epochs = run.epochs.filter((epoch) => known(epoch[1]) && known(epoch[2]));
  const { spans, others } = absences(run, last);
  const traces = [
    { ...bars("task", "#e4e8f0", tasks.map((task) => [0, last, task, ""])), hovertemplate: undefined, hoverinfo: "skip", showlegend: false },
    bars("epoch", "#8fb0ea", epochs.map(([count, end, seconds]) => [end - seconds, end, "training", `epoch ${count}: ${shown(seconds)} s`])),
    bars("restarted", "#efb8b2", others),
    bars("lost", RED, spans),
    points("checkpoint", "square", "#c99700", marked("checkpoint")),
    points("evaluation", "diamond", "#a03bb0", marked("evaluation")),
    points("restored", "triangle-right", GREEN, marked("restored")),
    points("failure", "x", RED, marked("failure")),
    points("recovery", "circle", GREEN, spans.filter(([, to]) => to < last).map(([, to, task]) => [to, task, `${task} recovered`])),
  ];
  const drawn = traces.filter((trace) => trace.x.length);
  const rows = NARROW ? Math.ceil((drawn.length - 1) / 2) : 1;
  return {
    traces: drawn,
    layout: {
      barmode: "overlay", height: 100 + 22 * rows + 26 * lanes.length, showlegend: true, legend: LEGEND, margin: { t: 22 + 22 * rows },
      xaxis: { title: { text: "time since the start (s)" }, range: [0, last * 1.02] },
      yaxis: { tickvals: lanes.map(place), ticktext: lanes, range: [0.4, lanes.length + 0.6], showgrid: false, automargin: true },
    },
  };
}

const CHARTS = [
  { id: "loss", title: "Loss over steps", note: "Solid: training. Dashed: evaluation.", draw: (runs, state) => against("loss", "loss", 0, "applied steps", state.tone, runs) },
  { id: "steps", title: "Metric over steps", note: "Solid: training. Dashed: evaluation.", draw: (runs, state) => against(state.metric, state.metric, 0, "applied steps", state.tone, runs) },
  { id: "examples", title: "Metric against examples", note: "Applied steps times the examples of a step.", draw: (runs, state) => against(state.metric, state.metric, 3, "examples", state.tone, runs) },
  { id: "wall", title: "Metric against wall time", note: "Since the start of the run, including setup.", draw: (runs, state) => against(state.metric, state.metric, 1, "time since the start (s)", state.tone, runs) },
  { id: "throughput", title: "Throughput against workers", note: "One point per run; lines connect the means.", draw: (runs, state) => scaling(runs, state.tone, { efficiency: false }) },
  { id: "efficiency", title: "Scaling efficiency", note: "Throughput per worker, relative to the fewest workers.", draw: (runs, state) => scaling(runs, state.tone, { efficiency: true }) },
  { id: "times", title: "Step time", note: "All workers together; one point per epoch.", wide: true, draw: (runs, state) => stepTimes(runs, state.tone) },
  { id: "stages", title: "Where the time of a step goes", note: "Measured on a worker during training; mean of the runs of a configuration.", wide: true, draw: (runs) => stages(runs) },
  { id: "staleness", title: "Staleness of updates", note: "Updates applied between the read of the weights and the own update; the share of updates up to each number.", wide: true, draw: (runs, state) => staleness(runs, state.tone) },
  { id: "placement", title: "Placement", note: "Bytes of model and optimizer on each task.", wide: true, draw: (runs) => placement(runs) },
  { id: "timeline", title: "Timeline of a run", note: "Lost tasks, restarts and recoveries.", wide: true, pick: true, draw: (runs, state) => timeline(runs.find((run) => run.name === state.run)) },
];
