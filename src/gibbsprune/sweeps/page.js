"use strict";

const content = JSON.parse(document.getElementById("content").textContent);
const kinds = content.kinds;
const byId = (id) => document.getElementById(id);
const colours = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A8A8A", "#A89A00", "#7A4FBF",
  "#A0522D", "#2F7F7F", "#C04060"];
const symbols = [["circle", "●"], ["square", "■"], ["diamond", "◆"], ["triangle-up", "▲"], ["triangle-down", "▼"]];
const structures = { weight: "weights", kernel: "kernels", filter: "filters" };
const facets = ["data", "model", "structure", "recipe"];
const metrics = {
  accuracy: { name: "test accuracy, %", get: (k) => k.accuracy, mark: (k) => k.reference, better: 1, spread: true },
  lost: { name: "points lost against dense", get: (k) => lost(k, "accuracy"), mark: (k) => lost(k, "reference"), better: -1,
    spread: true },
  recalibrated: { name: "accuracy, batch norm recalibrated, %", get: (k) => k.recalibrated, better: 1 },
  achieved: { name: "sparsity achieved, %", get: (k) => k.achieved },
  nonzero: { name: "parameters left, thousands", get: (k) => k.nonzero },
  agreement: { name: "agreement with the converged mask, %", get: (k) => k.agreement },
};
const quantities = ["epoch", "test accuracy, %", "training accuracy, %", "test loss", "training loss", "agreement, %", "β",
  "sparsity, %", "learning rate"];
const logarithmic = new Set(["β", "learning rate"]);
const depth = 12;  // points behind the best, beyond which a close view leaves results at its edge
const reach = 30;  // pixels from a marker at which it can still be pointed at
const config = { displayModeBar: false, responsive: true, doubleClick: false, doubleClickDelay: 1 };
const state = { chosen: null, hidden: new Set(), order: [], points: new Map() };

// -- data --------------------------------------------------------------------------------------------------------------

const unique = (values) => [...new Set(values)];
const plain = (text) => String(text).replace(/[<>&]/g, (sign) => ({ "<": "&lt;", ">": "&gt;", "&": "&amp;" })[sign]);
const fixed = (value, digits = 2) => value === null ? "–" : value.toFixed(digits);
const same = (k, facet) => k[facet] === null || k[facet] === state[facet];
const numbers = (values) => values.every((v) => typeof v === "number");
const mostly = (values) => unique(values).sort((a, b) => times(values, b) - times(values, a))[0];
const times = (values, value) => values.filter((v) => v === value).length;
const inOrder = (values) => [...values].sort(numbers(values) ? (a, b) => a - b : undefined);

function labelOf(kind) {
  const parts = kind.parts.filter(([name]) => name !== state.axis).map(([name, value]) => `${name} ${value}`.trim());
  return [kind.label, ...parts].join(", ");
}

function lost(kind, field) {
  const dense = kinds[kind.beside];
  return !dense || dense[field] === null || kind[field] === null ? null : dense[field] - kind[field];
}

function place(kind) {
  return state.axis in kind.axes ? kind.axes[state.axis] : kind[state.axis];
}

function shown() {
  const { get } = metrics[state.metric];
  return kinds.filter((k) => !k.dense && facets.every((f) => same(k, f)) && get(k) !== null && place(k) !== undefined &&
    (state.axis === "sparsity" || state.share === "all" || String(k.sparsity) === state.share));
}

function describe(kind) {
  const deviation = kind.deviation === null ? "" : ` ± ${fixed(kind.deviation)}`;
  const seeds = kind.seeds.length === 1 ? `seed ${kind.seeds[0][0]}` :
    `seeds ${kind.seeds.map(([seed, value]) => `${seed}: ${fixed(value)}`).join(", ")}`;
  const mark = kind.reference === null ? "" : `; ${content.reference} ${fixed(kind.reference, 1)}`;
  return `${titleOf(kind)}: ${fixed(kind.accuracy)}${deviation} % (${seeds}${mark}), recalibrated ` +
    `${fixed(kind.recalibrated)} %, sparsity ${fixed(kind.achieved)} %, ${fixed(kind.nonzero, 1)} of ` +
    `${fixed(kind.parameters, 1)} thousand parameters left, agreement ${fixed(kind.agreement)} %`;
}

function titleOf(kind) {
  const share = kind.dense ? "" : `, ${structures[kind.structure]} ${kind.sparsity} %`;
  return `${labelOf(kind)}${share}, ${kind.model}, ${kind.epochs} epochs`;
}

// -- the plot ----------------------------------------------------------------------------------------------------------

function style() {
  const css = getComputedStyle(document.documentElement), get = (name) => css.getPropertyValue(name).trim();
  return { ink: get("--ink"), soft: get("--soft"), line: get("--line"), back: get("--back") };
}

function layout(height, more) {
  const { soft, line } = style();
  const axis = { gridcolor: line, zeroline: false, linecolor: line, fixedrange: true, automargin: true };
  return { height, margin: { l: 48, r: 12, t: 12, b: 48 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: soft, size: 12, family: "system-ui, sans-serif" }, hovermode: "closest", hoverdistance: reach,
    dragmode: false, showlegend: false, ...more, xaxis: { ...axis, ...more.xaxis }, yaxis: { ...axis, ...more.yaxis } };
}

// From the worst to the best with some room, or in a close view no further than ``depth`` points from the best.
function limits(values, better) {
  let low = Math.min(...values), high = Math.max(...values);
  if (byId("close").checked && better > 0) low = Math.max(low, high - depth);
  if (byId("close").checked && better < 0) high = Math.min(high, low + depth);
  const room = Math.max(0.06 * (high - low), 0.05);
  return [low - room, high + room];
}

// Every value of the axis is as wide as the runs that stand there side by side, each at a place of its own.
function slots(members) {
  const values = inOrder(unique(members.map(place))), at = new Map(), ticks = [], borders = [];
  let next = 0;
  for (const value of values) {
    const own = members.filter((k) => place(k) === value);
    own.forEach((k, i) => at.set(k.id, next + 1 + i));
    ticks.push(next + (own.length + 1) / 2);
    next += own.length + 1;
    borders.push(next);
  }
  return { at, ticks, names: values.map(String), borders, end: next };
}

// What is drawn: who is shown and where, how methods look, and what stands beside them.
function scene() {
  const metric = metrics[state.metric], all = shown();
  const labels = unique(kinds.filter((k) => !k.dense && facets.every((f) => same(k, f))).map(labelOf));
  const rank = (k) => labels.indexOf(labelOf(k));
  const look = (label) => ({ colour: colours[labels.indexOf(label) % colours.length],
    symbol: symbols[labels.indexOf(label) % symbols.length] });
  const members = all.filter((k) => !state.hidden.has(labelOf(k))).sort((a, b) => rank(a) - rank(b) ||
    a.epochs - b.epochs || a.sparsity - b.sparsity);
  const marked = byId("marks").checked && metric.mark ? members.filter((k) => metric.mark(k) !== null) : [];
  const dense = kinds[mostly(all.map((k) => k.beside).filter((id) => id !== null))];
  const level = dense && members.length && !["nonzero", "achieved"].includes(state.metric) ? metric.get(dense) : null;
  const ends = (k) => [-1, 1].map((sign) => metric.get(k) + sign * (metric.spread ? k.deviation ?? 0 : 0));
  const values = [...members.flatMap(ends), ...marked.map((k) => metric.mark(k)), ...(level === null ? [] : [level])];
  const [low, high] = values.length ? limits(values, metric.better) : [0, 1];
  const clamp = (v) => Math.min(high, Math.max(low, v));
  return { metric, all, look, members, marked, level, low, high, clamp, ...slots(members), ...style() };
}

function draw() {
  const found = scene(), { metric, all, look, members, marked, level, at, clamp } = found;
  state.order = [...members].sort((a, b) => at.get(a.id) - at.get(b.id));
  state.points = new Map(members.map((k) => [k.id, [at.get(k.id), clamp(metric.get(k))]]));
  Plotly.react("plot", [...lines(found), ...markers(found)], frame(found), config);
  legend(unique(all.map(labelOf)), look, marked.length, level !== null);
  table(members);
}

// Runs of a method that differ in nothing but the value of the axis are joined.
function lines({ members, metric, at, look }) {
  const alike = groupBy(members, (k) => `${labelOf(k)}|${state.axis === "epochs" ? k.sparsity : k.epochs}`);
  return [...alike.values()].filter((group) => group.length > 1).map((group) => {
    const sorted = inOrder(unique(group.map(place))).flatMap((v) => group.filter((k) => place(k) === v));
    return { x: sorted.map((k) => at.get(k.id)), y: sorted.map(metric.get), mode: "lines", hoverinfo: "skip",
      line: { color: look(labelOf(group[0])).colour, width: 1.5 }, opacity: 0.6 };
  });
}

// One trace per method, then the reference marks, and last the ring around the chosen run.
function markers({ members, marked, metric, low, high, at, clamp, look, ink, back }) {
  const common = { mode: "markers", cliponaxis: false, hoverinfo: "skip" };
  const beyond = (v) => v < low ? "triangle-down-open" : v > high ? "triangle-up-open" : null;
  const methods = [...groupBy(members, labelOf)].map(([label, group]) => {
    const { colour, symbol } = look(label), points = group.map((k) => state.points.get(k.id));
    return { ...common, meta: "runs", x: points.map(([x]) => x), y: points.map(([, y]) => y),
      customdata: group.map((k) => k.id), hoverinfo: "text",
      text: group.map((k) => `${plain(label)}<br>${fixed(metric.get(k))}`),
      marker: { color: colour, size: 10, symbol: group.map((k) => beyond(metric.get(k)) ?? symbol[0]) },
      error_y: { visible: Boolean(metric.spread) && group.some((k) => k.deviation !== null), color: colour, thickness: 1.5,
        width: 3, array: group.map((k) => k.deviation ?? 0) } };
  });
  return [...methods,
    { ...common, meta: "marks", x: marked.map((k) => at.get(k.id)), y: marked.map((k) => clamp(metric.mark(k))),
      marker: { symbol: "star", size: 12, color: back, line: { width: 1.5, color: marked.map((k) => look(labelOf(k)).colour) } } },
    { ...common, meta: "chosen", ...ring(), marker: { symbol: "circle-open", size: 20, color: ink, line: { width: 1.5 } } }];
}

// Axes, the borders between the values of one of them, and the level of the dense network.
function frame({ all, members, metric, level, low, high, ticks, names, borders, end, ink, line }) {
  const wide = byId("plot").clientWidth, unit = (wide - 70) / Math.max(end, 1), roomy = [];
  ticks.forEach((tick, i) => {  // a value is named where there is room for it
    const last = roomy.at(-1), room = last === undefined ? Infinity : (tick - ticks[last]) * unit;
    if (room > 4 * (names[i].length + (names[last] ?? "").length) + 4) roomy.push(i);
  });
  const shapes = borders.slice(0, -1).map((x) => ({ type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, layer: "below",
    line: { color: line, width: 1 } }));
  if (level !== null && level >= low && level <= high) {
    shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: level, y1: level, line: { color: ink, width: 1, dash: "dash" } });
  }
  const nothing = { text: all.length ? "all are hidden" : "nothing was run", showarrow: false, xref: "paper", yref: "paper",
    x: 0.5, y: 0.5 };
  return layout(wide < 600 ? 360 : 460, { shapes, annotations: members.length ? [] : [nothing],
    xaxis: { range: [0, Math.max(end, 1)], tickvals: roomy.map((i) => ticks[i]), ticktext: roomy.map((i) => plain(names[i])),
      showgrid: false, title: { text: `${plain(axisName(state.axis))} (not to scale)` } },
    yaxis: { range: [low, high], title: { text: metric.name } } });
}

function groupBy(members, key) {
  const found = new Map();
  for (const member of members) found.set(key(member), [...(found.get(key(member)) ?? []), member]);
  return found;
}

function ring() {
  const [x, y] = state.points.get(state.chosen?.id) ?? [];
  return { x: x === undefined ? [] : [x], y: y === undefined ? [] : [y] };
}

// The run under a finger or a pointer: Plotly's own click is of what was pointed at a moment before.
function nearest({ clientX, clientY }) {
  const plot = byId("plot"), { xaxis, yaxis } = plot._fullLayout, box = plot.getBoundingClientRect();
  const far = (kind) => {
    const [x, y] = state.points.get(kind.id);
    return Math.hypot(clientX - box.x - xaxis._offset - xaxis.l2p(x), clientY - box.y - yaxis._offset - yaxis.l2p(y));
  };
  const found = [...state.order].sort((a, b) => far(a) - far(b))[0];
  return found && far(found) <= reach ? found : null;
}

function tell(kind) {
  if (byId("details").textContent !== describe(kind)) byId("details").textContent = describe(kind);
}

// The run that layers and curves are of; it has a ring in the plot.
function choose(kind, silently = false) {
  state.chosen = kind;
  if (!silently) tell(kind);
  const last = byId("plot").data.length - 1, { x, y } = ring();
  Plotly.restyle("plot", { x: [x], y: [y] }, [last]);
  for (const row of byId("table").rows) row.classList.toggle("chosen", row.dataset.id === String(kind.id));
  byId("run").value = kind.id;
  curves();
  layers();
}

function legend(labels, look, marked, dense) {
  const item = (...parts) => {
    const found = document.createElement("li");
    found.append(...parts);
    return found;
  };
  const buttons = labels.map((label) => {
    const button = document.createElement("button"), sign = document.createElement("i");
    const { colour, symbol } = look(label);
    button.type = "button";
    button.title = "show or hide";
    button.setAttribute("aria-pressed", String(!state.hidden.has(label)));
    sign.textContent = symbol[1];
    sign.style.color = colour;
    button.append(sign, label);
    button.addEventListener("click", () => {
      if (!state.hidden.delete(label)) state.hidden.add(label);
      draw();
      [...byId("legend").querySelectorAll("button")][labels.indexOf(label)].focus();
    });
    return item(button);
  });
  byId("legend").replaceChildren(...buttons, ...(dense ? [item("┄ dense")] : []),
    ...(marked ? [item(`☆ ${content.reference}`)] : []));
}

function table(members) {
  const metric = metrics[state.metric], columns = [["sparsity, %", (k) => fixed(k.achieved)], ["epochs", (k) => k.epochs],
    [metric.name, (k) => fixed(metric.get(k))]];
  const add = (name, get, digits) => {
    if (members.some((k) => get(k) !== null)) columns.push([name, (k) => get(k) === null ? "" : fixed(get(k), digits)]);
  };
  if (metric.spread) add("± over seeds", (k) => k.deviation, 2);
  if (byId("marks").checked && metric.mark) add(content.reference, metric.mark, 1);
  columns.push(["seeds", (k) => k.seeds.length]);
  const line = (tag, values, id) => {
    const row = document.createElement("tr");
    row.append(...values.map((value) => {
      const cell = document.createElement(tag);
      cell.append(value);
      return cell;
    }));
    if (id !== undefined) row.dataset.id = id;
    row.classList.toggle("chosen", id !== undefined && id === state.chosen?.id);
    return row;
  };
  const rows = members.map((k) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = labelOf(k);
    button.addEventListener("click", () => choose(k));
    return line("td", [button, ...columns.map(([, get]) => String(get(k)))], k.id);
  });
  byId("table").replaceChildren(line("th", ["method", ...columns.map(([name]) => name)]), ...rows);
}

// -- one run -----------------------------------------------------------------------------------------------------------

function curves() {
  const i = Number(byId("quantity").value), name = quantities[i], { ink, line } = style();
  const others = shown().filter((k) => k !== state.chosen && !state.hidden.has(labelOf(k)));
  const trace = (kind, seed, more) => ({ x: kind.curves[seed][0], y: kind.curves[seed][i], mode: "lines", ...more });
  const traces = others.map((k) => trace(k, 0, { line: { color: line, width: 1 }, hoverinfo: "text",
    text: k.curves[0][0].map(() => plain(titleOf(k))) }));
  state.chosen.curves.forEach((_, seed) => traces.push(trace(state.chosen, seed, { mode: "lines+markers",
    line: { color: ink, width: 2, dash: ["solid", "dash", "dot"][seed % 3] }, marker: { size: 4 }, hoverinfo: "x+y+text",
    text: state.chosen.curves[seed][0].map(() => `seed ${state.chosen.seeds[seed][0]}`) })));
  byId("curves-section").hidden = !state.chosen.curves.some((curve) => curve[0].length);
  Plotly.react("curves", traces, layout(320, { xaxis: { title: { text: "epoch" } },
    yaxis: { title: { text: name }, type: logarithmic.has(name) ? "log" : "linear" } }), config);
}

// Only where layers differ: elsewhere there is nothing to see.
function layers() {
  const found = state.chosen.layers, { ink } = style();
  byId("layers-section").hidden = !found.length;
  if (!found.length) return;
  const rate = ([, weights, kept]) => 100 * kept / weights;
  const names = found.map(([name]) => plain(name));
  byId("layers-about").textContent = `${titleOf(state.chosen)}: how much of each layer is kept, first to last; the ` +
    "tick is what was asked for.";
  Plotly.react("layers", [
    { type: "bar", orientation: "h", y: names, x: found.map(rate), marker: { color: colours[0] }, hoverinfo: "text",
      text: found.map((layer) => `${rate(layer).toFixed(1)} %`), textposition: "outside", cliponaxis: false,
      hovertext: found.map((layer) => `${plain(layer[0])}: ${layer[2].toLocaleString("en")} of ` +
        `${layer[1].toLocaleString("en")} weights left`) },
    { y: names, x: found.map(([, , , target]) => 100 - target), mode: "markers", hoverinfo: "skip",
      marker: { symbol: "line-ns-open", size: 14, color: ink, line: { width: 2 } } },
  ], layout(70 + 20 * found.length, { bargap: 0.25, xaxis: { rangemode: "tozero", title: { text: "kept, %" } },
    margin: { l: 48, r: 56, t: 4, b: 48 },
    yaxis: { autorange: "reversed", tickfont: { size: 10 } } }), config);
}

// -- controls ----------------------------------------------------------------------------------------------------------

function options(id, names, wanted) {
  const values = Object.keys(names), kept = values.includes(wanted) ? wanted : values[0];
  byId(id).replaceChildren(...Object.entries(names).map(([value, text]) => new Option(text, value)));
  byId(id).value = kept ?? "";
  byId(id).parentElement.hidden = values.length < 2;
  return kept;
}

const named = (values, name = (v) => v) => Object.fromEntries(values.map((v) => [v, name(v)]));
const axisName = (axis) => ({ epochs: "total epochs", sparsity: "sparsity, %" })[axis] ?? axis;

// What can be chosen follows from what has been chosen before it.
function update(event) {
  const wanted = (id) => byId(id).value || undefined;
  let left = kinds.filter((k) => !k.dense);
  if (!left.length) left = kinds;
  for (const facet of facets) {
    const places = Object.keys(structures), values = unique(left.map((k) => k[facet]).filter((v) => v !== null));
    if (facet === "structure") values.sort((a, b) => places.indexOf(a) - places.indexOf(b));
    state[facet] = options(facet, named(values, (v) => structures[v] ?? v), wanted(facet)) ?? null;
    left = left.filter((k) => same(k, facet));
  }
  const varies = (axis) => unique(left.map((k) => k.axes[axis] ?? k[axis])).length > 1;
  const axes = unique(["epochs", "sparsity", ...left.flatMap((k) => Object.keys(k.axes))]).filter(varies);
  if (!axes.length) axes.push("epochs");
  state.axis = options("axis", named(axes, axisName), wanted("axis"));
  const possible = Object.keys(metrics).filter((name) => left.some((k) => metrics[name].get(k) !== null));
  state.metric = options("metric", named(possible, (name) => metrics[name].name), wanted("metric"));
  const shares = inOrder(unique(left.map((k) => k.sparsity))), most = mostly(left.map((k) => k.sparsity));
  state.share = options("share", { ...named(shares.map(String), (v) => `${v} %`), all: "all" },
    wanted("share") ?? String(most));
  byId("share").disabled = state.axis === "sparsity";
  byId("close").disabled = metrics[state.metric].better === undefined;
  draw();
  const runs = state.order.length ? state.order : kinds.filter((k) => facets.every((f) => same(k, f)));
  const best = runs.reduce((a, b) => b.accuracy > a.accuracy ? b : a);
  options("run", named(runs.map((k) => k.id), (id) => titleOf(kinds[id])),
    String((runs.includes(state.chosen) ? state.chosen : best).id));
  choose(kinds[Number(byId("run").value)], event === undefined);  // how to use the page stands there until it is used
}

function start() {
  document.title = byId("title").textContent = content.title;
  byId("about").textContent = content.about;
  const runs = kinds.reduce((sum, k) => sum + k.seeds.length, 0);
  byId("count").textContent = `${runs} ${runs === 1 ? "run" : "runs"} on ${unique(kinds.map((k) => k.data)).join(", ")}.`;
  byId("marks-name").textContent = `☆ ${content.reference}`;
  byId("marks").parentElement.hidden = kinds.every((k) => k.reference === null);
  const recorded = (i) => kinds.some((k) => k.curves.some((curve) => curve[i].some((v) => v !== null)));
  const present = quantities.map((_, i) => i).slice(1).filter(recorded);
  options("quantity", named(present, (i) => quantities[i]));
  byId("controls").addEventListener("change", update);
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  byId("run").addEventListener("change", () => choose(kinds[Number(byId("run").value)]));
  byId("quantity").addEventListener("change", curves);
  update();
  const plot = byId("plot");
  plot.on("plotly_hover", ({ points }) => tell(kinds[points[0].customdata]));
  plot.addEventListener("click", (event) => {
    const found = nearest(event);
    if (found) choose(found);
  });
  plot.addEventListener("keydown", (event) => {
    const last = state.order.length - 1, now = state.order.indexOf(state.chosen);
    const next = { ArrowRight: Math.min(last, now + 1), ArrowLeft: Math.max(0, now - 1), Home: 0, End: last }[event.key];
    if (next === undefined || last < 0) return;
    event.preventDefault();
    choose(state.order[next]);
  });
  for (const figure of content.figures) extra(figure);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", update);
  window.addEventListener("resize", draw);
}

function extra({ title, text, data, layout: own, frames }) {
  const section = document.createElement("section"), head = document.createElement("h2"), box = document.createElement("div");
  const about = document.createElement("p");
  head.textContent = title;
  about.textContent = text;
  box.className = "plot";
  section.append(head, about, box);
  document.querySelector("main").append(section);
  const height = Math.min(own.height, 170 + 0.4 * box.clientWidth);
  Plotly.newPlot(box, data, layout(height, { ...own, height }), config).then(() => frames && Plotly.addFrames(box, frames));
}

start();
