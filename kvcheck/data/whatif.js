"use strict";
// The page of `kvspec whatif --html`. Names of traces reach the page as text nodes only.

const { curves, enough_percent: enough, token_bytes: tokenBytes } = JSON.parse(document.getElementById("curves").textContent);
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { left: 48, right: 14, top: 10, bottom: 42 };
const SHORT = { maximumFractionDigits: 1, notation: "compact" };

for (const curve of curves) {
  curve.points = curve.points.map(([blocks, lru, best, policies]) =>
    ({ blocks, lru, best, policies, tokens: tokensOf(curve, blocks) }));
  curve.at = new Map(curve.points.map((point) => [point.tokens, point]));
}
const pools = [...new Set(curves.flatMap((curve) => [...curve.at.keys()]))].sort((a, b) => a - b);
const policies = Object.keys(curves[0].points[0]?.policies ?? {});
const blockSizes = new Set(curves.map((curve) => curve.block_size));
let chosen = 0; // the place in `pools`
let plot = null; // what the last drawing measured: scales, and the lines that move

function tokensOf(curve, blocks) { return (blocks - 1) * curve.block_size; }
function colour(number) { return `c${number % 6}`; }
function count(number) { return number.toLocaleString("en-US"); }
function short(number) { return number.toLocaleString("en-US", SHORT); }
function percent(rate) { return `${(100 * rate).toFixed(2)}%`; }
function points(less, more) { return `${(100 * Math.max(0, more - less)).toFixed(2)} points`; }

function sizeText(tokens) {
  const gib = tokenBytes ? `, ${((tokens * tokenBytes) / 2 ** 30).toFixed(2)} GiB` : "";
  const held = `${count(tokens)} tokens${gib}`;
  if (blockSizes.size > 1) return held;
  const [size] = blockSizes;
  return `${count(tokens / size + 1)} blocks, ${held}`;
}

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function drawn(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// ---- the curves ---------------------------------------------------------------------------------

// Steps of 1, 2 or 5 times a power of ten, at most `most` of them up to `end`.
function niceStep(end, most) {
  const power = 10 ** Math.floor(Math.log10(end / most));
  return [1, 2, 5, 10].map((by) => by * power).find((step) => end / step <= most);
}

function tokenTicks(low, high, most) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1)
    for (const by of [1, 2, 5]) found.push(by * 10 ** power);
  const inside = found.filter((tokens) => tokens >= low && tokens <= high);
  if (inside.length < 2) { // a narrow range
    const step = niceStep(Math.max(high - low, 1), Math.min(most, 5));
    const first = Math.ceil(low / step);
    return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, n) => (first + n) * step);
  }
  const tens = inside.filter((tokens) => Number.isInteger(Math.log10(tokens)));
  return inside.length <= most || tens.length < 2 ? inside : tens;
}

function scales(width, height) {
  const low = Math.log(pools[0]), high = Math.log(pools[pools.length - 1]);
  const most = Math.max(...curves.map((curve) => curve.infinite), 0.001);
  const step = niceStep(1.04 * most, 8);
  const top = Math.min(1, Math.ceil((1.04 * most) / step) * step);
  const inner = width - MARGIN.left - MARGIN.right;
  const tall = height - MARGIN.top - MARGIN.bottom;
  return {
    width, height, step, top,
    x: (tokens) => MARGIN.left + (high > low ? ((Math.log(tokens) - low) / (high - low)) * inner
                                             : inner / 2),
    y: (rate) => MARGIN.top + (1 - rate / top) * tall,
  };
}

function drawAxes(svg, at) {
  const digits = Math.max(0, -Math.floor(Math.log10(100 * at.step) + 1e-9));
  const left = MARGIN.left, right = at.width - MARGIN.right;
  for (let number = 0; number * at.step <= at.top + 1e-9; number += 1) {
    const rate = number * at.step, y = at.y(rate);
    svg.append(drawn("line", { class: number ? "grid" : "axis", x1: left, x2: right, y1: y, y2: y }));
    const label = `${(100 * rate).toFixed(digits)}%`;
    svg.append(drawn("text", { x: left - 6, y: y + 4, "text-anchor": "end" }, label));
  }
  const bottom = at.y(0);
  const end = pools[pools.length - 1];
  const label = end < 2 * pools[0] ? count : short;
  for (const tokens of tokenTicks(pools[0], end, at.width / 60)) {
    const x = at.x(tokens);
    svg.append(drawn("line", { class: "axis", x1: x, x2: x, y1: bottom, y2: bottom + 4 }));
    svg.append(drawn("text", { x, y: bottom + 18, "text-anchor": "middle" }, label(tokens)));
  }
  const middle = (left + right) / 2;
  const title = { x: middle, y: at.height - 6, "text-anchor": "middle" };
  svg.append(drawn("text", title, "tokens that the pool holds"));
}

function drawCurve(svg, at, curve, number) {
  const line = (rate) => curve.points.map((each) => `${at.x(each.tokens)},${at.y(rate(each))}`).join(" ");
  const ends = { x1: MARGIN.left, x2: at.width - MARGIN.right };
  const y = at.y(curve.infinite);
  const kind = (name) => `curve ${name} ${colour(number)}`;
  svg.append(drawn("line", { class: kind("endless"), ...ends, y1: y, y2: y }));
  svg.append(drawn("polyline", { class: kind("best"), points: line((each) => each.best) }));
  policies.forEach((name, other) => svg.append(drawn("polyline",
    { class: `curve policy ${colour(number + other + 1)}`, points: line((each) => each.policies[name]) })));
  svg.append(drawn("polyline", { class: kind("rules"), points: line((each) => each.lru) }));
  for (const each of curve.points)
    svg.append(drawn("circle",
      { class: `dot ${colour(number)}`, cx: at.x(each.tokens), cy: at.y(each.lru), r: 3.5 }));
}

function draw() {
  const svg = byId("lines");
  const width = Math.max(280, byId("chart").clientWidth);
  const height = Math.round(Math.min(480, Math.max(270, 0.46 * width)));
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  svg.replaceChildren();
  plot = scales(width, height);
  drawAxes(svg, plot);
  const upright = { y1: MARGIN.top, y2: plot.y(0) };
  plot.pointed = drawn("line", { class: "pointed", ...upright, visibility: "hidden" });
  plot.pool = drawn("line", { class: "pool", ...upright });
  svg.append(plot.pointed, plot.pool);
  curves.forEach((curve, number) => drawCurve(svg, plot, curve, number));
  movePool();
}

function movePool() {
  const x = plot.x(pools[chosen]);
  plot.pool.setAttribute("x1", x);
  plot.pool.setAttribute("x2", x);
}

function drawLegend() {
  const sample = (kind, number) => {
    const svg = drawn("svg", { viewBox: "0 0 36 12", "aria-hidden": "true" });
    const tone = number === undefined ? "" : colour(number);
    svg.append(drawn("line", { class: `${kind} ${tone}`, x1: 1, x2: 35, y1: 6, y2: 6, "stroke-width": 2.2 }));
    return svg;
  };
  const kinds = [["rules", "hit rate"], ["best", "best possible (Belady)"], ["endless", "endless pool"]];
  const only = curves.length === 1 ? 0 : undefined;
  for (const [kind, words] of kinds) byId("legend").append(element("span", {}, sample(kind, only), words));
  policies.forEach((name, other) =>
    byId("legend").append(element("span", {}, sample("policy", other + 1), name)));
  if (curves.length === 1) return;
  const whose = element("div", { class: "legend" });
  curves.forEach((curve, number) =>
    whose.append(element("span", {}, sample("rules", number), curve.name)));
  byId("legend").after(whose);
}

// ---- the pool that is chosen, and the one that is pointed at --------------------------------------

function box(value, title, more) {
  const made = element("div", {}, element("b", {}, value), title);
  if (more) made.append(element("span", { class: "dim" }, more));
  return made;
}

function answer(curve, tokens) {
  const point = curve.at.get(tokens);
  const from = `${count(curve.enough_blocks)} blocks`;
  const needed = `${count(tokensOf(curve, curve.enough_blocks))} tokens`;
  const goal = curve.infinite
    ? box(from, `for ${enough}% of an endless pool's hits`, needed)
    : box("–", "even an endless pool hits nothing", "no request begins with a block of one before");
  const endless = (more) => box(percent(curve.infinite), "endless pool", more);
  if (point === undefined) {
    const why = tokens < curve.points[0].tokens ? "too small for the largest request" : "not computed";
    return [box("–", "hit rate", why), endless(""), goal];
  }
  const share = `${((100 * point.lru) / curve.infinite).toFixed(1)}% of an endless pool's hits`;
  return [
    box(percent(point.lru), "hit rate", curve.infinite ? share : ""),
    box(percent(point.best), "best possible (Belady)", `${points(point.lru, point.best)} more`),
    ...policies.map((name) => box(percent(point.policies[name]), name)),
    endless(`${points(point.lru, curve.infinite)} more`),
    goal,
  ];
}

function choose(place) {
  chosen = Math.max(0, Math.min(pools.length - 1, place));
  const tokens = pools[chosen];
  byId("pool").value = chosen;
  byId("pool").setAttribute("aria-valuetext", sizeText(tokens));
  byId("size").textContent = sizeText(tokens);
  const rows = curves.flatMap((curve, number) => {
    const title = element("h3", { class: `name ${colour(number)}` }, curve.name);
    const boxes = element("div", { class: "counts" }, ...answer(curve, tokens));
    return curves.length > 1 ? [title, boxes] : [boxes];
  });
  byId("answers").replaceChildren(...rows);
  if (plot) movePool();
  history.replaceState(null, "", `#tokens=${tokens}`);
}

// The pool whose place on the axis is nearest.
function nearest(event) {
  const frame = byId("lines").getBoundingClientRect();
  const x = (event.clientX - frame.left) * (plot.width / frame.width);
  const away = pools.map((tokens) => Math.abs(plot.x(tokens) - x));
  return away.indexOf(Math.min(...away));
}

function point(event) {
  const tokens = pools[nearest(event)];
  const x = plot.x(tokens);
  plot.pointed.setAttribute("x1", x);
  plot.pointed.setAttribute("x2", x);
  plot.pointed.setAttribute("visibility", "visible");
  const cells = (...texts) => element("tr", {}, ...texts.map((text) => element("td", {}, text)));
  const table = element("table", {}, cells("", "hit", ...policies, "best"));
  curves.forEach((curve, number) => {
    const at = curve.at.get(tokens);
    const rates = at ? [at.lru, ...policies.map((name) => at.policies[name]), at.best] : [];
    const none = ["–", "–", ...policies.map(() => "–")];
    const row = cells(curve.name, ...(at ? rates.map(percent) : none));
    row.firstChild.className = `name ${colour(number)}`;
    table.append(row);
  });
  const tip = byId("tip");
  tip.replaceChildren(sizeText(tokens), table);
  tip.hidden = false;
  const room = byId("chart").clientWidth - tip.offsetWidth;
  const beside = x + 12 <= room ? x + 12 : x - 12 - tip.offsetWidth;
  const below = beside < 0; // beside the pool it would hide the lines
  tip.style.left = `${Math.max(0, below ? Math.min(room, x - tip.offsetWidth / 2) : beside)}px`;
  tip.style.top = `${below ? plot.height : Math.max(0, plot.y(0) - tip.offsetHeight - 8)}px`;
}

function leave() {
  byId("tip").hidden = true;
  plot.pointed.setAttribute("visibility", "hidden");
}

function chooseFromAddress() {
  const asked = /^#tokens=(\d+)$/.exec(location.hash);
  const wanted = asked ? Number(asked[1]) : tokensOf(curves[0], curves[0].enough_blocks);
  const above = pools.findIndex((tokens) => tokens >= wanted);
  choose(above < 0 ? pools.length - 1 : above);
}

byId("tool").hidden = false;
byId("pool").max = pools.length - 1;
byId("pool").addEventListener("input", (event) => choose(Number(event.target.value)));
byId("lines").addEventListener("pointermove", point);
byId("lines").addEventListener("pointerleave", leave);
byId("lines").addEventListener("click", (event) => choose(nearest(event)));
window.addEventListener("hashchange", chooseFromAddress);
drawLegend();
chooseFromAddress();
new ResizeObserver(draw).observe(byId("chart"));
draw();
