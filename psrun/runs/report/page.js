// The page around the charts: filters, cards, the table of runs, their configuration.
"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);
const DISTINGUISHING = distinguishing();
// The axes that distinguish the runs come first, the seed last.
const NAMED = [...DISTINGUISHING, ...Object.keys(DATA.axes).filter((axis) => !DISTINGUISHING.includes(axis)).sort((a, b) => (a === "seed") - (b === "seed"))];
const AXES = { ...Object.fromEntries(NAMED.map((axis) => [axis, DATA.axes[axis]])), ...(new Set(DATA.runs.map((run) => run.status)).size > 1 ? { status: "status" } : {}) };
const CONFIGURATION = "configuration";
const state = { chosen: {}, color: CONFIGURATION, metric: "loss", rank: DATA.ranking.metric, run: null, tone: null, sort: null, descending: false, fold: false };
const CHARTS = charts();
const byId = (id) => document.getElementById(id);
const valueOf = (run, axis) => (axis === "status" ? run.status : run.axes[axis] ?? "");

/** Numbers first, by value ("1e-05" and "12,000" too); then text, with the numbers in it by value. */
function compare(a, b) {
  const [x, y] = [a, b].map((text) => (text.trim() ? Number(/^-?\d{1,3}(,\d{3})+$/.test(text) ? text.replaceAll(",", "") : text) : NaN));
  if (!Number.isNaN(x) && !Number.isNaN(y)) return x - y;
  return Number.isNaN(x) - Number.isNaN(y) || a.localeCompare(b, undefined, { numeric: true });
}

function el(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/** A number as psrun/runs/report/rows.py writes it for the terminal: rounded once, ties away from zero, '1e-05' below 0.0001. */
function shown(value, digits = 4) {
  if (!known(value) || value === "") return "";
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (size >= 10 ** digits - 0.5 && size < 1e9) return (Math.sign(value) * Math.round(size)).toLocaleString("en");
  const [digitsOfIt, exponent] = value.toExponential(digits - 1).split("e");
  const power = Number(exponent);
  if (power >= -4 && power < digits) return String(Number(value.toPrecision(digits)));
  return `${Number(digitsOfIt)}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
}

const chosen = () => DATA.runs.filter((run) => Object.entries(state.chosen).every(([axis, values]) => !values.size || values.has(valueOf(run, axis))));

// -- filters

function facets() {
  const made = Object.entries(AXES).map(([axis, name]) => {
    const values = unique(DATA.runs.map((run) => valueOf(run, axis))).sort(compare);
    state.chosen[axis] = new Set();
    const chips = values.map((value) => {
      const count = DATA.runs.filter((run) => valueOf(run, axis) === value).length;
      const chip = el("button", { className: "chip", type: "button" }, value || "(none)", " ", el("small", {}, String(count)));
      chip.setAttribute("aria-pressed", "false");
      chip.dataset.axis = axis;
      chip.dataset.value = value;
      chip.onclick = () => {
        const on = !state.chosen[axis].delete(value);
        if (on) state.chosen[axis].add(value);
        chip.setAttribute("aria-pressed", String(on));
        update();
      };
      return chip;
    });
    return el("div", { className: "facet" }, el("h3", { title: axis }, name), el("div", { className: "chips" }, ...chips));
  });
  byId("facets").replaceChildren(...(made.length ? made : [el("p", { className: "note" }, "Nothing differs between the runs.")]));
}

function choices() {
  const options = [[CONFIGURATION, "configuration"], ...Object.entries(AXES), ["run", "each run"]];
  byId("color").replaceChildren(...options.map(([value, text]) => el("option", { value }, text)));
  byId("color").onchange = (event) => { state.color = event.target.value; update(); };
  const names = unique(DATA.runs.flatMap((run) => Object.keys(run.curves)).map((name) => name.replace(/^val_/, "")));
  byId("metric").replaceChildren(...names.map((value) => el("option", { value }, value)));
  const ranked = DATA.ranking.metric?.replace(/^(best_)?val_/, "");
  // The loss has its own chart.
  state.metric = [ranked, ...names].find((name) => names.includes(name) && name !== "loss") ?? "loss";
  byId("metric").value = state.metric;
  byId("metric").onchange = (event) => {
    state.metric = event.target.value;
    state.rank = [`best_val_${state.metric}`, `val_${state.metric}`].find((name) => DATA.metrics.includes(name)) ?? state.metric;
    update();
  };
  byId("metric").parentElement.hidden = !names.length;
  state.fold = unique(DATA.runs.map((run) => run.group)).length < DATA.runs.length;
  const box = byId("fold").querySelector("input");
  box.checked = state.fold;
  byId("fold").hidden = !state.fold;
  box.onchange = () => { state.fold = box.checked; update(); };
}

function colors() {
  const key = (run) => (state.color === CONFIGURATION ? label(run) : state.color === "run" ? run.name : valueOf(run, state.color));
  const names = unique(DATA.runs.map(key)).sort(state.color === CONFIGURATION ? () => 0 : compare);
  const tones = new Map(names.map((name, index) => [name, PALETTE[index % PALETTE.length]]));
  state.tone = (run) => tones.get(key(run));
  const there = new Set(chosen().map(key));
  const items = names.filter((name) => there.has(name)).map((name) => {
    const patch = el("i");
    patch.style.background = tones.get(name);
    return el("li", {}, patch, el("span", {}, name || "(none)"));
  });
  const axes = DISTINGUISHING.map((axis) => DATA.axes[axis]).join(" · ");
  const heading = state.color === CONFIGURATION ? axes || "run" : AXES[state.color] ?? "run";
  byId("legend").replaceChildren(el("h3", {}, heading), el("ul", {}, ...items));
}

// -- cards and table

/** A card: 'best val_auc 0.771 (run 4)'. */
const card = (what, value, more) => el("div", { className: "tile" }, el("span", {}, what), " ", el("b", {}, value), " ", more);
const nameOf = (run) => el("span", { title: label(run) }, `(run ${run.name})`);

const best = (runs, get, lower) => runs.reduce((a, b) => ((lower ? get(b) < get(a) : get(b) > get(a)) ? b : a));

/** What says that runs were evaluated on different rows, so that no metric of an evaluation compares them. */
function otherRows(runs) {
  const names = unique(runs.flatMap((run) => Object.keys(run.held_out)));
  const differing = names.filter((name) => unique(runs.map((run) => run.held_out[name]).filter(known)).length > 1);
  return differing.length > 1 ? differing.filter((name) => name !== DATA.number) : differing;  // which follows from the others
}

function tiles(runs) {
  const count = [...grouped(runs, (run) => run.status)].map(([status, those]) => `${those.length} ${status}`);
  const made = [card("runs", `${runs.length} of ${DATA.runs.length}`, el("span", {}, count.join(", ")))];
  const evaluated = DATA.metrics.filter((name) => /^(best_)?val_/.test(name) && !DATA.metrics.includes(`best_${name}`));
  for (const name of unique([DATA.ranking.metric, ...evaluated]).filter((each) => DATA.metrics.includes(each)).slice(0, 2)) {
    const measured = runs.filter((run) => known(run.metrics[name]));
    if (!measured.length) continue;
    const lower = name === DATA.ranking.metric ? DATA.ranking.mode === "min" : DATA.lower.includes(name);
    const winner = best(measured, (run) => run.metrics[name], lower);
    const other = otherRows(measured);
    const note = other.length ? el("em", {}, `the held-out rows differ: ${other.join(", ")}`) : "";
    made.push(card(`best ${name.replace(/^best_/, "")}`, shown(winner.metrics[name]), el("span", {}, nameOf(winner), " ", note)));
  }
  for (const [rate, what] of [["examples_per_s", "highest examples/s"], [VIRTUAL, "highest virtual examples/s"]]) {
    const measured = runs.filter((run) => run[rate]);
    if (!measured.length) continue;
    const winner = best(measured, (run) => run[rate], false);
    made.push(card(what, shown(Math.round(winner[rate])), nameOf(winner)));
  }
  const recoveries = runs.reduce((sum, run) => sum + (run.recoveries ?? 0), 0);
  if (recoveries) made.push(card("recoveries", String(recoveries), el("span", {}, "of lost tasks")));
  byId("tiles").replaceChildren(...made);
}

/** The color of the statuses in a row: of the first one that needs attention. */
const colorOf = (statuses) => {
  const named = statuses.split(", ");
  const worst = named.find((status) => status !== "completed") ?? "completed";
  return DATA.runs.find((run) => run.status === worst)?.style ?? "";
};

const few = (all) => (all.length > 5 ? `${all.slice(0, 4).join(", ")} and ${all.length - 4} more` : all.join(", "));

/** 'sweep/0, 1' */
function names(same) {
  const folders = unique(same.map((run) => run.name.slice(0, run.name.lastIndexOf("/") + 1)));
  return folders.length > 1 ? few(same.map((run) => run.name)) : folders[0] + few(same.map((run) => run.name.slice(folders[0].length)));
}

/** One line of the table: of a run, or of several that differ only in the seed. Means are those of completed runs, if there are any. */
function line(same) {
  const completed = same.filter((run) => run.status === "completed");
  const measured = completed.length ? completed : same;
  const pick = (get, from = same) => {
    const values = from.map(get).filter((value) => known(value) && value !== "");
    if (!values.length) return [null, ""];
    if (unique(values).length === 1) return [values[0], shown(values[0])];
    if (!values.every((value) => typeof value === "number")) return [values[0], short(unique(values).join(", "), 40)];
    // Runs of one seed, such as a reproduction, count as their mean.
    const means = [...grouped(from, (run) => run.axes.seed).values()].map((runs) => runs.map(get).filter(known)).filter((each) => each.length).map(mean);
    if (means.length === 1) return [means[0], shown(means[0])];
    const middle = mean(means);
    const spread = Math.sqrt(means.reduce((sum, value) => sum + (value - middle) ** 2, 0) / (means.length - 1));
    return [middle, `${shown(middle)} ± ${shown(spread, 2)}`];
  };
  const cells = { run: [same[0].name, names(same)] };
  const value = (text) => (text && Number.isFinite(Number(text)) ? Number(text) : text);
  const axis = (name) => { cells[name] = pick((run) => (name === "seed" && same.length > 1 ? run.axes[name] : value(run.axes[name]))); };
  for (const name of NAMED) if (DISTINGUISHING.includes(name) || name === "seed") axis(name);
  cells.status = pick((run) => run.status);
  cells.name = pick((run) => run.called);
  for (const name of DATA.metrics) cells[name] = pick((run) => run.metrics[name], measured);
  for (const name of ["steps", "steps_per_s", "examples_per_s", "virtual.steps_per_s", "virtual.examples_per_s", "virtual.time_s", "wall_s", "recoveries"]) cells[name] = pick((run) => run[name], measured);
  for (const name of NAMED) if (!(name in cells)) axis(name);
  return cells;
}

function table(runs) {
  const folds = (same) => state.fold && unique(same.map((run) => run.axes.seed)).length > 1;
  const lines = [...grouped(runs, (run) => run.group).values()].flatMap((same) => (folds(same) ? [line(same)] : same.map((run) => line([run]))));
  const columns = Object.keys(lines[0] ?? { run: 0 }).filter((name) => name === "run" || lines.some((cells) => cells[name][1] !== ""));
  if (state.sort) {
    const rank = ([a], [b]) => (typeof a === "number" && typeof b === "number" ? a - b : compare(String(a), String(b)));
    const has = lines.filter((cells) => known(cells[state.sort][0])).sort((a, b) => rank(a[state.sort], b[state.sort]) * (state.descending ? -1 : 1));
    lines.splice(0, lines.length, ...has, ...lines.filter((cells) => !known(cells[state.sort][0])));
  }
  const numeric = (name) => lines.some((cells) => typeof cells[name][0] === "number");
  const heads = columns.map((name) => {
    const mark = state.sort === name ? (state.descending ? " ↓" : " ↑") : "";
    const button = el("button", { type: "button", title: `sort by ${name}` }, (DATA.axes[name] ?? name) + mark);
    button.onclick = () => { state.descending = state.sort === name && !state.descending; state.sort = name; table(chosen()); };
    return el("th", { className: numeric(name) ? "number" : "" }, button);
  });
  const body = lines.map((cells) => el("tr", {}, ...columns.map((name) => {
    const style = name === "run" ? "names" : name === "status" ? colorOf(cells.status[1]) : numeric(name) ? "number" : "";
    return el("td", { className: style }, cells[name][1]);
  })));
  byId("runs").replaceChildren(el("table", {}, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...body)));
  byId("errors").replaceChildren(...errors(runs));
}

/** Lines such as '3, 4: the loss became nan', one for each text. */
function errors(runs) {
  const texts = (run) => [run.error, run.problem].filter(Boolean);
  const each = runs.flatMap((run) => texts(run).map((text) => ({ name: run.name, text })));
  const line = (text, those) => {
    const names = el("b", { className: "red" }, few(those.map((one) => one.name)));
    return el("p", {}, names, ": ", text);
  };
  return [...grouped(each, (one) => one.text)].map(([text, those]) => line(text, those));
}

function diffs(runs) {
  const differing = runs.filter((run) => Object.keys(run.diff).length);
  byId("diffs").replaceChildren(...differing.map((run) => {
    const parts = Object.entries(run.diff).map(([key, value]) => el("code", {}, `${key}=${value}`));
    return el("div", { className: "diff" }, el("b", {}, run.name), el("div", {}, ...parts));
  }));
  byId("diffs").hidden = byId("diffs-note").hidden = !differing.length;
  byId("configuration").hidden = !differing.length && !Object.keys(DATA.common).length;
}

function common() {
  const pairs = Object.entries(DATA.common);
  byId("common-title").textContent = `Common to all runs: ${pairs.length} keys`;
  byId("common").replaceChildren(...pairs.map(([key, value]) => el("div", {}, el("code", {}, `${key}=${value || "null"}`))));
}

// -- the comparison with a baseline

function compared() {
  const card = byId("compared");
  card.hidden = !DATA.compared;
  if (card.hidden) return Promise.resolve();
  const columns = ["configuration", "metric", "n", "mean", "against", "difference", "95% interval", "p"];
  const head = el("tr", {}, ...columns.map((name) => el("th", {}, name)));
  const body = DATA.compared.table.map((each) => el("tr", {}, ...columns.map((name) => el("td", {}, shown(each[name])))));
  byId("compared-table").replaceChildren(el("table", {}, el("thead", {}, head), el("tbody", {}, ...body)));
  byId("compared-notes").replaceChildren(...DATA.compared.notes.map((note) => el("p", { className: "note" }, note)));
  const metrics = unique(DATA.compared.rows.map((each) => each.metric));
  const specs = metrics.map(differences).filter(Boolean);
  return embed(byId("compared-plot"), specs);
}

// -- predictions

function predicted() {
  const card = byId("predicted");
  card.hidden = !DATA.predicted;
  if (card.hidden) return;
  const { columns, rows, notes } = DATA.predicted;
  const style = (column) => (["run", "predicted by", "like"].includes(column) ? "" : "number");
  const head = el("tr", {}, ...columns.map((name) => el("th", { className: style(name) }, name)));
  const body = rows.map((row) => el("tr", {}, ...row.map((text, index) => el("td", { className: style(columns[index]) }, text))));
  byId("predicted-table").replaceChildren(...(rows.length ? [el("table", {}, el("thead", {}, head), el("tbody", {}, ...body))] : []));
  byId("predicted-notes").replaceChildren(...notes.map((note) => el("p", { className: "note" }, note)));
}

// -- charts

const FONT = getComputedStyle(document.body).fontFamily;
const CONFIG = {
  font: FONT, background: null, view: { stroke: null },
  axis: { gridColor: "#e8ebf0", domainColor: "#b9c0cc", tickColor: "#b9c0cc", labelColor: "#1d2433", titleColor: "#1d2433", titleFontWeight: 500, labelFontSize: 12, titleFontSize: 12 },
  axisX: { labelFlush: true, tickCount: NARROW ? 4 : 6 }, legend: { labelFontSize: 12, labelColor: "#1d2433" },
};
const MOST_NODES = 3000;  // of a picture of elements; a larger one is drawn as pixels
const EMBED = { actions: false, ast: true, tooltip: { theme: "light" } };  // ast: without eval, which the page forbids

const rendererOf = (spec) => ([spec, ...(spec.layer ?? [])].some((part) => part.data?.values.length > MOST_NODES) ? "canvas" : "svg");

/** Draws specifications below each other in place of what is in `plot`. */
function embed(plot, specs) {
  for (const view of plot.views ?? []) view.finalize();
  const boxes = specs.map(() => el("div", { className: "view" }));
  plot.replaceChildren(...boxes);
  const whole = (spec) => ({ width: "container", height: 270, autosize: { type: "fit-x", contains: "padding" }, config: CONFIG, ...spec });
  return Promise.all(specs.map((spec, index) => vegaEmbed(boxes[index], whole(spec), { ...EMBED, renderer: rendererOf(spec) }))).then((views) => { plot.views = views; });
}

function frames() {
  byId("charts").replaceChildren(...CHARTS.map((chart) => {
    const inside = [el("h2"), el("p", { className: "note" })];
    const choose = (event) => {
      state.run = event.target.value;
      pick(chosen());
      for (const each of CHARTS) if (each.pick) draw(each, chosen());
    };
    if (chart.pick) inside.push(el("select", { className: "pick", ariaLabel: "run", onchange: choose }));
    return el("figure", { className: chart.wide ? "card wide" : "card", id: chart.id }, ...inside, el("div", { className: "plot", id: `plot-${chart.id}` }));
  }));
}

/** Draws a chart; one that has nothing to show has no card. */
function draw(chart, runs) {
  const made = runs.length ? chart.draw(runs, state) : null;
  const card = byId(chart.id);
  card.hidden = made === null;
  card.querySelector("h2").textContent = chart.title(state);
  card.querySelector(".note").textContent = chart.note + (made?.note ?? "");
  return embed(byId(`plot-${chart.id}`), made?.specs ?? []);
}

function pick(runs) {
  const order = [...runs].sort((a, b) => (b.recoveries ?? 0) - (a.recoveries ?? 0));
  if (!runs.some((run) => run.name === state.run)) state.run = order[0]?.name ?? null;
  for (const each of document.querySelectorAll(".pick")) each.replaceChildren(...order.map((run) => {
    const note = run.recoveries ? ` (${run.recoveries} ${run.recoveries === 1 ? "recovery" : "recoveries"})` : "";
    return el("option", { value: run.name, selected: run.name === state.run }, short(`${run.name}${note}: ${label(run)}`, 60));
  }));
}

function update() {
  const runs = chosen();
  colors();
  tiles(runs);
  table(runs);
  diffs(runs);
  pick(runs);
  delete document.body.dataset.drawn;
  return Promise.all([compared(), ...CHARTS.map((chart) => draw(chart, runs))]).then(() => { document.body.dataset.drawn = "true"; });
}

function start() {
  const versions = DATA.versions.length ? ` of psrun ${DATA.versions.join(", ")}` : "";
  byId("title").textContent = `Runs in ${DATA.named.join(", ")}`;
  byId("about").textContent = `${DATA.runs.length} ${DATA.runs.length === 1 ? "run" : "runs"}${versions}; report by psrun ${DATA.psrun}, ${DATA.made}`;
  byId("choose").open = innerWidth > 1000;
  document.title = `psrun: ${DATA.named.join(", ")}`;
  facets();
  choices();
  frames();
  common();
  predicted();
  update();
}

start();
