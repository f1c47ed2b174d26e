"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const colours = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A8A8A", "#B8A800", "#7A4FBF",
  "#A0522D", "#2F7F7F", "#C04060"];
const networks = { resnet20: "ResNet-20", resnet56: "ResNet-56" };
const structures = { weight: "weights", kernel: "kernels", filter: "filters" };
const metrics = {
  accuracy: { name: "test accuracy, %", get: (c) => c.accuracy, paper: (c) => c.paper, better: 1, most: 100 },
  lost: { name: "points lost against dense", get: (c) => lost(c, c.accuracy), paper: (c) => paperLost(c), better: -1 },
  recalibrated: { name: "accuracy, batch norm recalibrated, %", get: (c) => c.recalibrated, paper: () => null, better: 1,
    most: 100 },
  nonzero: { name: "parameters left, thousands", get: (c) => c.nonzero / 1000, paper: () => null },
  agreement: { name: "agreement with the converged mask, %", get: (c) => c.agreement, paper: () => null, most: 100 },
};
const axes = {
  sparsity: { name: "sparsity, %", get: (c) => c.target },
  epochs: { name: "total epochs", get: (c) => c.epochs },
};
const shares = { usual: "as in the paper", all: "all" };
const usual = { weight: 90, kernel: 90, filter: 75 };
const depth = 12;  // points behind the best, beyond which a close view leaves results at its edge
const reach = 30;  // pixels from a marker at which it can still be pointed at
const state = { cell: null, hidden: new Set() };

// -- data --------------------------------------------------------------------------------------------------------------

function denseOf(cell) {
  return data.cells.find((c) => c.method === "dense" && c.model === cell.model && c.recipe === cell.recipe &&
    c.shift === cell.shift);
}

function lost(cell, value) {
  const dense = denseOf(cell);
  return dense === undefined || value === null ? null : dense.accuracy - value;
}

function paperLost(cell) {
  const dense = denseOf(cell);
  return dense === undefined || dense.paper === null || cell.paper === null ? null : dense.paper - cell.paper;
}

function shown(share = state.share) {
  return data.cells.filter((c) => c.method !== "dense" && c.model === state.model && c.recipe === state.recipe &&
    c.structure === state.structure && metrics[state.metric].get(c) !== null &&
    (state.axis === "sparsity" || share === "all" || c.target === usual[c.structure]));
}

function colourOf(label) {
  const labels = data.labels.filter((l) => data.cells.some((c) => c.structure === state.structure && c.label === l));
  return colours[labels.indexOf(label) % colours.length];
}

// The deviation over seeds, where the metric shown has one.
function spread(cell) {
  return ["accuracy", "lost"].includes(state.metric) ? cell.deviation : null;
}

function describe(cell) {
  const deviation = cell.deviation === null ? "" : ` ± ${cell.deviation.toFixed(2)}`;
  const seeds = cell.seeds === 1 ? "1 seed" : `${cell.seeds} seeds`;
  const theirs = cell.paper === null ? "" : `; paper ${cell.paper.toFixed(1)}`;
  return `${cell.title}: ${cell.accuracy.toFixed(2)}${deviation} % (${seeds}${theirs}), recalibrated ` +
    `${cell.recalibrated.toFixed(2)} %, sparsity ${cell.sparsity.toFixed(2)} %, ` +
    `${cell.nonzero.toLocaleString("en")} of ${cell.parameters.toLocaleString("en")} parameters left, ` +
    `${cell.epochs} epochs, agreement ${cell.agreement.toFixed(2)} %`;
}

// -- the plot ----------------------------------------------------------------------------------------------------------

function svg(name, attributes, parent, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  if (parent) parent.appendChild(element);
  return element;
}

function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= 0.75 * raw);
  const found = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-6; v += step) found.push(Number(v.toFixed(6)));
  return found;
}

function draw() {
  const box = byId("plot"), metric = metrics[state.metric], axis = axes[state.axis];
  const width = Math.max(280, box.clientWidth), height = Math.round(Math.min(440, Math.max(300, width * 0.55)));
  const margin = { left: 46, right: 14, top: 32, bottom: 40 };
  const all = shown(), cells = inOrder(all.filter((c) => !state.hidden.has(c.label)));
  const stars = byId("stars").checked ? cells.filter((c) => metric.paper(c) !== null) : [];
  const dense = data.cells.find((c) => c.label === "dense" && c.model === state.model && c.recipe === state.recipe);
  const level = dense === undefined ? null : metric.get(dense);
  box.replaceChildren();
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "plot" }, box);
  svg("text", { x: 0, y: 14 }, picture, metric.name);
  if (cells.length === 0) {
    svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, picture, all.length ? "all are hidden" :
      shown("all").length ? "not run at the paper's sparsity; choose all" : "not run");
    legend(all, stars, level);
    table(cells);
    return;
  }
  const values = cells.map(metric.get).concat(stars.map(metric.paper));
  if (level !== null && state.metric !== "nonzero") values.push(level);
  const [low, high] = limits(values, metric), scale = ticks(low, high, 6);
  margin.left = Math.max(margin.left, 8 + 7.7 * Math.max(...scale.map((v) => String(v).length)));
  const { at, begin, middle, steps } = slots(cells, axis, margin.left, width - margin.right);
  const y = (v) => height - margin.bottom - (v - low) / (high - low) * (height - margin.top - margin.bottom);
  const inside = (v) => v >= low && v <= high;

  for (const v of scale) {
    svg("line", { x1: margin.left, x2: width - margin.right, y1: y(v), y2: y(v), class: "grid" }, picture);
    svg("text", { x: margin.left - 6, y: y(v) + 4, "text-anchor": "end" }, picture, String(v));
  }
  for (const v of steps) {
    svg("line", { x1: begin(v), x2: begin(v), y1: margin.top, y2: height - margin.bottom, class: "grid" }, picture);
  }
  for (const v of named(steps, middle)) {
    svg("text", { x: middle(v), y: height - margin.bottom + 18, "text-anchor": "middle" }, picture, String(v));
  }
  svg("text", { x: width - margin.right, y: height - 4, "text-anchor": "end" }, picture,
    `${axis.name} (not to scale)`);
  if (level !== null && inside(level)) {
    svg("line", { x1: margin.left, x2: width - margin.right, y1: y(level), y2: y(level), class: "dense" }, picture);
  }
  const frame = svg("clipPath", { id: "frame-of-plot" }, picture);
  svg("rect", { x: margin.left, y: y(high), width: width - margin.left - margin.right, height: y(low) - y(high) }, frame);
  lines(cells, metric, axis, at, y, svg("g", { "clip-path": "url(#frame-of-plot)" }, picture));
  for (const cell of stars.filter((c) => inside(metric.paper(c)))) {
    svg("path", { d: starPath(at(cell), y(metric.paper(cell)), 7), class: "star",
      stroke: colourOf(cell.label), "stroke-width": 1.4 }, picture);
  }
  const marks = cells.map((cell) => {
    const value = metric.get(cell), edge = Math.min(high, Math.max(low, value));
    const group = marker(cell, at(cell), y(edge), inside(value) ? 0 : value < low ? 1 : -1, y, metric, picture);
    return { cell, group, x: at(cell), y: y(edge) };
  });
  point(picture, marks);
  legend(all, stars, level);
  table(cells);
}

// From left to right: by the step of the axis, by method, and the runs of a method by epochs and sparsity.
function inOrder(cells) {
  const { get } = axes[state.axis], place = (c) => data.labels.indexOf(c.label);
  return [...cells].sort((a, b) => get(a) - get(b) || place(a) - place(b) || a.epochs - b.epochs || a.target - b.target);
}

// From the worst to the best with some room, or in a close view no further than ``depth`` points from the best.
function limits(values, { better, most = Infinity }) {
  let low = Math.min(...values), high = Math.max(...values);
  if (byId("close").checked && better > 0) low = Math.max(low, high - depth);
  if (byId("close").checked && better < 0) high = Math.min(high, low + depth);
  const room = Math.max(0.08 * (high - low), 0.05);
  return [low - room, Math.max(high, Math.min(high + room, most))];
}

// Every step of the axis is as wide as the runs that stand there side by side, each at a place of its own.
function slots(cells, axis, left, right) {
  const steps = [...new Set(cells.map(axis.get))];
  const unit = (right - left) / (cells.length + steps.length);
  const first = (v) => cells.findIndex((c) => axis.get(c) === v) + steps.indexOf(v);
  const begin = (v) => left + unit * first(v);
  const at = (c) => left + unit * (cells.indexOf(c) + steps.indexOf(axis.get(c)) + 1);
  const middle = (v) => begin(v) + unit * (cells.filter((c) => axis.get(c) === v).length + 1) / 2;
  return { at, begin, middle, steps };
}

// The first and the last step, and those between where there is room for their names.
function named(steps, middle) {
  const last = steps[steps.length - 1];
  const apart = (a, b) => middle(b) - middle(a) >= 3.8 * (String(a).length + String(b).length) + 3;
  let before = steps[0];
  return steps.filter((v) => {
    if (v !== steps[0] && v !== last && !(apart(before, v) && apart(v, last))) return false;
    before = v;
    return true;
  });
}

function lines(cells, metric, axis, at, y, picture) {
  const series = new Map();
  for (const cell of cells) {
    const rest = state.axis === "epochs" ? cell.target : `${cell.stretch} ${cell.effort}`;
    const key = `${cell.label}|${rest}`;
    if (!series.has(key)) series.set(key, []);
    series.get(key).push(cell);
  }
  for (const members of series.values()) {
    if (members.length < 2) continue;
    members.sort((a, b) => axis.get(a) - axis.get(b));
    const points = members.map((c) => `${at(c)},${y(metric.get(c))}`).join(" ");
    svg("polyline", { points, fill: "none", stroke: colourOf(members[0].label), "stroke-width": 1.5, opacity: 0.7 },
      picture);
  }
}

// ``beyond``: 1 where the result lies under the plot, -1 where above; an arrow at its edge then.
function marker(cell, x, y, beyond, scale, metric, picture) {
  const group = svg("g", { class: "mark", tabindex: 0, role: "button", "data-id": cell.id,
    "aria-label": describe(cell) }, picture);
  if (cell === state.cell) group.classList.add("chosen");
  const colour = colourOf(cell.label);
  if (spread(cell) !== null && !beyond) {
    const middle = metric.get(cell);
    svg("line", { x1: x, x2: x, y1: scale(middle - cell.deviation), y2: scale(middle + cell.deviation),
      stroke: colour, "stroke-width": 1.5 }, group);
  }
  if (beyond) {
    const points = `${x - 5},${y - 5 * beyond} ${x + 5},${y - 5 * beyond} ${x},${y + 5 * beyond}`;
    svg("polygon", { points, fill: "none", stroke: colour, "stroke-width": 1.5, class: "beyond" }, group);
  } else if (cell.method === "gibbs") svg("circle", { cx: x, cy: y, r: 5, fill: colour }, group);
  else svg("rect", { x: x - 4.5, y: y - 4.5, width: 9, height: 9, fill: colour }, group);
  svg("circle", { cx: x, cy: y, r: 11, class: "ring" }, group);
  group.addEventListener("focus", () => tell(cell));
  group.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(cell); }
  });
  return group;
}

function tell(cell) {
  if (byId("details").textContent !== describe(cell)) byId("details").textContent = describe(cell);
}

function choose(cell) {
  tell(cell);
  select(cell);
}

// Pointing and clicking go to the nearest marker, as rings may cover one another.
function point(picture, marks) {
  const nearest = (event) => {
    const mark = event.target.closest(".mark");
    if (mark) return marks.find((m) => m.group === mark);  // a click by a screen reader
    const box = picture.getBoundingClientRect(), unit = picture.viewBox.baseVal.width / box.width;
    const far = (m) => Math.hypot((event.clientX - box.x) * unit - m.x, (event.clientY - box.y) * unit - m.y);
    const found = marks.reduce((a, b) => far(b) < far(a) ? b : a);
    return far(found) <= reach ? found : null;
  };
  const show = (found) => {
    for (const m of marks) m.group.classList.toggle("near", m === found);
    picture.style.cursor = found ? "pointer" : "";
    if (found) tell(found.cell);
  };
  picture.addEventListener("pointermove", (event) => show(nearest(event)));
  picture.addEventListener("pointerleave", () => show(null));
  picture.addEventListener("click", (event) => {
    const found = nearest(event);
    if (!found) return;
    found.group.focus({ preventScroll: true });
    choose(found.cell);
  });
}

function starPath(x, y, r) {
  const points = [];
  for (let i = 0; i < 10; i++) {
    const size = i % 2 ? 0.45 * r : r, angle = Math.PI * (i / 5 - 0.5);
    points.push(`${x + size * Math.cos(angle)},${y + size * Math.sin(angle)}`);
  }
  return `M${points.join("L")}Z`;
}

function legend(cells, stars, level) {
  const list = byId("legend");
  list.replaceChildren();
  const add = (...content) => {
    const item = document.createElement("li");
    item.append(...content);
    list.append(item);
  };
  for (const label of data.labels.filter((l) => cells.some((c) => c.label === l))) {
    const button = document.createElement("button"), dot = document.createElement("i");
    button.type = "button";
    button.title = "show or hide";
    button.setAttribute("aria-pressed", String(!state.hidden.has(label)));
    dot.style.background = colourOf(label);
    dot.style.borderRadius = label.startsWith("Gibbs") ? "50%" : "0";
    button.append(dot, label);
    button.addEventListener("click", () => toggle(label));
    add(button);
  }
  if (level !== null && cells.length) add("┄ dense");
  if (stars.length) add("☆ paper");
}

function toggle(label) {
  if (!state.hidden.delete(label)) state.hidden.add(label);
  draw();
  [...byId("legend").querySelectorAll("button")].find((b) => b.textContent === label).focus();
}

function table(cells) {
  const metric = metrics[state.metric];
  const columns = [["method", (c) => c.label], ["sparsity, %", (c) => c.sparsity.toFixed(2)], ["epochs", (c) => c.epochs],
    [metric.name, (c) => metric.get(c).toFixed(2)]];
  const add = (name, get, digits) => {
    if (cells.some((c) => get(c) !== null)) columns.push([name, (c) => get(c) === null ? "" : get(c).toFixed(digits)]);
  };
  add("± over seeds", spread, 2);
  if (byId("stars").checked) add("paper", metric.paper, 1);
  columns.push(["seeds", (c) => c.seeds]);
  const sorted = [...cells].sort((a, b) => a.label.localeCompare(b.label) || a.target - b.target || a.epochs - b.epochs);
  const rows = [columns.map(([name]) => name), ...sorted.map((c) => columns.map(([, get]) => get(c)))];
  byId("table").replaceChildren(...rows.map((row, i) => {
    const line = document.createElement("tr");
    line.append(...row.map((text) => {
      const cell = document.createElement(i ? "td" : "th");
      cell.textContent = text;
      return cell;
    }));
    return line;
  }));
}

// -- layers ------------------------------------------------------------------------------------------------------------

function select(cell) {
  state.cell = cell;
  byId("cell").value = cell ? cell.id : "";
  for (const mark of document.querySelectorAll(".mark")) {
    mark.classList.toggle("chosen", cell !== null && mark.dataset.id === String(cell.id));
  }
  const box = byId("layers");
  box.replaceChildren();
  if (!cell) {
    box.textContent = "not run";
    return;
  }
  for (const [name, weights, kept] of cell.layers) {
    const row = document.createElement("div");
    row.className = "layer";
    const label = document.createElement("span"), bar = document.createElement("div");
    const fill = document.createElement("span"), goal = document.createElement("em"), count = document.createElement("span");
    const sparsity = 100 * (1 - kept / weights);
    label.className = "name";
    label.textContent = label.title = name;
    bar.className = "bar";
    bar.title = `${sparsity.toFixed(2)} % pruned, target ${cell.target} %`;
    fill.style.width = `${sparsity}%`;
    goal.style.left = `calc(${cell.target}% - 1px)`;
    bar.append(fill, goal);
    count.className = "count";
    count.textContent = `${sparsity.toFixed(1)} %, ${kept.toLocaleString("en")} left`;
    row.append(label, bar, count);
    box.append(row);
  }
}

function offerCells() {
  const cells = shown().filter((c) => c.layers.length);
  options("cell", Object.fromEntries(cells.map((c) => [c.id, c.title])));
  select(cells.includes(state.cell) ? state.cell : cells[0] || null);
}

// -- annealing ---------------------------------------------------------------------------------------------------------

let timer = null;

function frameOf() {
  return data.annealing[byId("law").value].frames[Number(byId("beta").value)];
}

function drawMask() {
  const law = data.annealing[byId("law").value], frame = frameOf();
  const bits = Uint8Array.from(atob(frame.bits), (c) => c.charCodeAt(0));
  const canvas = byId("mask"), context = canvas.getContext("2d"), size = law.side * law.kernel;
  const scale = canvas.width / size;
  context.fillStyle = "#F4F4F0";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = "#08306B";
  for (let row = 0; row < size; row++) {
    for (let column = 0; column < size; column++) {
      const at = row * size + column;
      if (bits[at >> 3] >> (7 - (at & 7)) & 1) context.fillRect(column * scale, row * scale, scale, scale);
    }
  }
  context.strokeStyle = "#C9C9C4";
  context.lineWidth = 1;
  for (let i = 1; i < law.side; i++) {
    const at = Math.round(i * law.kernel * scale) + 0.5;
    context.strokeRect(at, -1, 0, canvas.height + 2);
    context.strokeRect(-1, at, canvas.width + 2, 0);
  }
  const beta = frame.beta < 100 ? frame.beta.toPrecision(3) : Math.round(frame.beta).toLocaleString("en");
  byId("frame").textContent = `β = ${beta} (epoch ${frame.epoch} of the paper's schedule): ` +
    `${(100 * frame.kept).toFixed(1)} % kept, ${(100 * frame.agreement).toFixed(1)} % of the weights as in the ` +
    `converged mask`;
}

function play() {
  const button = byId("play"), slider = byId("beta");
  if (timer !== null) {
    clearInterval(timer);
    timer = null;
    button.textContent = "Play";
    return;
  }
  if (Number(slider.value) >= Number(slider.max)) slider.value = 0;
  button.textContent = "Stop";
  timer = setInterval(() => {
    slider.value = Number(slider.value) + 1;
    drawMask();
    if (Number(slider.value) >= Number(slider.max)) play();
  }, 350);
}

// -- controls ----------------------------------------------------------------------------------------------------------

function options(id, names) {
  byId(id).replaceChildren(...Object.entries(names).map(([value, text]) => new Option(text, value)));
}

function update() {
  for (const id of ["model", "structure", "metric", "axis", "share", "recipe"]) state[id] = byId(id).value;
  byId("share").disabled = state.axis === "sparsity";
  byId("close").disabled = metrics[state.metric].better === undefined;
  draw();
  offerCells();
}

function start() {
  const models = [...new Set(data.cells.map((c) => c.model))];
  options("model", Object.fromEntries(models.map((m) => [m, networks[m] || m])));
  options("structure", structures);
  options("metric", Object.fromEntries(Object.entries(metrics).map(([key, m]) => [key, m.name])));
  options("axis", Object.fromEntries(Object.entries(axes).map(([key, a]) => [key, a.name])));
  const recipes = [...new Set(data.cells.map((c) => c.recipe))];
  options("recipe", Object.fromEntries(recipes.map((r) => [r, r])));
  options("share", shares);
  options("law", structures);
  byId("axis").value = "epochs";
  const common = data.cells.some((c) => c.structure !== null && c.target === usual[c.structure]);
  byId("share").value = common ? "usual" : "all";
  byId("tasks").textContent = data.tasks.join(", ");
  const runs = data.cells.reduce((sum, c) => sum + c.seeds, 0);
  byId("count").textContent = data.done ? `${data.done} of ${data.total} cells have been run.` :
    `${runs} runs, none of them a cell of the paper's.`;
  byId("beta").max = data.annealing.weight.frames.length - 1;
  byId("controls").addEventListener("change", update);
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  byId("cell").addEventListener("change", () => select(data.cells.find((c) => String(c.id) === byId("cell").value)));
  byId("law").addEventListener("change", drawMask);
  byId("beta").addEventListener("input", drawMask);
  byId("play").addEventListener("click", play);
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth !== width) { width = window.innerWidth; draw(); }
  });
  update();
  drawMask();
}

start();
