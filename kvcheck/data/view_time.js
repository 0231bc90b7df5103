// The picture of `kvspec view`: blocks and requests over time, on a canvas. Follows view.js in the
// same script.

let shownColumns = null; // where `drawTime` put its columns and rows
const MAX_ROWS = 1024;
const MAX_LANES = 40;

// All blocks, or in a large pool those that were ever in use or cached.
const gridBlocks = (() => {
  const all = frames[0].refs.map((_, block) => block);
  if (all.length <= (record.is_part ? 16 : 256)) return all;
  const seen = new Set([0]);
  for (const change of [...record.frames, ...record.other]) {
    for (const [block, value] of change.refs ?? []) if (value > 0) seen.add(block);
    for (const [block, value] of change.keys ?? []) if (value !== null) seen.add(block);
  }
  const drawn = all.filter((block) => seen.has(block)).slice(0, MAX_ROWS);
  byId("grid-note").textContent = `${drawn.length} of ${all.length} blocks are drawn: ` +
    (seen.size > MAX_ROWS ? "more would be too tall." : "the others were always free.");
  return drawn;
})();

function drawTime() {
  const canvas = byId("time");
  const width = canvas.parentElement.clientWidth;
  const left = 110;
  const column = Math.max(14, Math.min(24, Math.floor((width - left - 4) / frames.length)));
  const fit = Math.max(1, Math.floor((width - left - 4) / column));
  const first = Math.max(0, Math.min(current - Math.floor(fit / 2), frames.length - fit));
  const last = Math.min(frames.length, first + fit);
  const rowHeight = gridBlocks.length <= 80 ? 14 : gridBlocks.length <= 300 ? 7 : 4;
  const lanes = lanesBetween(frames[first].i, frames[last - 1].i);
  const lanesTop = 42;
  const laneLines = lanes.shown.length + (lanes.more ? 1 : 0);
  const top = lanesTop + laneLines * 18 + 26;
  const height = top + gridBlocks.length * rowHeight + 4;
  shownColumns = { first, last, column, left, top, rowHeight };
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  const style = getComputedStyle(document.documentElement);
  const paint = (name) => style.getPropertyValue(`--${name}`).trim();
  drawAxis(pen, paint, shownColumns);
  const whose = others.size ? `blocks: ${record.reference}` : "blocks";
  drawBlocks(pen, paint, shownColumns, frames, others, whose);
  drawLanes(pen, paint, shownColumns, lanes, lanesTop);
  const x = left + (current - first) * column;
  pen.strokeStyle = paint("now");
  pen.lineWidth = 2;
  pen.strokeRect(x - 0.5, 19, column, height - 21);
  if (others.size) drawOther(paint, scale);
}

// The other side: its blocks under the same columns. What differs from the picture above is framed.
function drawOther(paint, scale) {
  const canvas = byId("time-other");
  const place = { ...shownColumns, top: 22 };
  const height = place.top + gridBlocks.length * place.rowHeight + 4;
  canvas.width = Math.round(canvas.parentElement.clientWidth * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  const sides = frames.map((frame) => others.get(frame.i) ?? null);
  const beside = new Map(frames.map((frame) => [frame.i, frame]));
  drawBlocks(pen, paint, place, sides, beside, `blocks: ${record.replayed_on}`);
  pen.strokeStyle = paint("now");
  pen.lineWidth = 2;
  const x = place.left + (current - place.first) * place.column;
  pen.strokeRect(x - 0.5, place.top - 3, place.column, height - place.top + 2);
}

function differsAt(frame, beside, block) {
  return beside && (frame.refs[block] !== beside.refs[block] || frame.keys[block] !== beside.keys[block]);
}

function drawAxis(pen, paint, { first, last, column, left }) {
  pen.fillStyle = paint("dim");
  pen.fillText("operation", 6, 9);
  pen.textAlign = "center";
  for (let at = first; at < last; at++) {
    const operation = frames[at].i;
    const violated = record.violation && record.violation.operation === operation;
    pen.fillStyle = paint(violated ? "bad" : "dim");
    const x = left + (at - first) * column + column / 2;
    if (violated) pen.fillText("▼", x, 9);
    else if (operation >= 0 && operation % 5 === 0) pen.fillText(operation, x, 9);
  }
  pen.textAlign = "left";
}

function drawBlocks(pen, paint, { first, last, column, left, top, rowHeight }, side, beside, name) {
  const colours = KINDS.map(paint);
  const gap = rowHeight > 5 ? 1 : 0;
  const every = rowHeight >= 12 ? 1 : Math.ceil(14 / rowHeight);
  pen.fillStyle = paint("dim");
  pen.fillText(name, 6, top - 11);
  gridBlocks.forEach((block, line) => {
    const y = top + line * rowHeight;
    if (line % every === 0) {
      pen.fillStyle = paint("dim");
      pen.fillText(block === 0 ? "block 0 (null)" : `block ${block}`, 6, y + rowHeight / 2);
    }
    for (let at = first; at < last; at++) {
      if (!side[at]) continue;
      const x = left + (at - first) * column;
      pen.fillStyle = colours[kindOf(side[at], block)];
      pen.fillRect(x, y, column - 1, rowHeight - gap);
      if (!differsAt(side[at], beside.get(side[at].i), block)) continue;
      for (const [name, width] of [["page", 5], ["bad", 2]]) {
        pen.strokeStyle = paint(name);
        pen.lineWidth = width;
        pen.strokeRect(x + 1, y + 1, column - 3, rowHeight - gap - 2);
      }
    }
  });
  const lineOf = new Map(gridBlocks.map((block, line) => [block, line]));
  for (let at = first; at < last; at++) {
    const x = left + (at - first) * column + (column - 1) / 2;
    for (const [name, blocks] of [["hit", side[at]?.hit], ["evicted", side[at]?.evicted]]) {
      for (const block of blocks ?? []) {
        if (!lineOf.has(block)) continue;
        const y = top + lineOf.get(block) * rowHeight + (rowHeight - gap) / 2;
        drawMark(pen, paint, name, x, y, Math.min(4, rowHeight / 2));
      }
    }
  }
}

// A hit is a ring, an eviction a cross; both with an edge, so that they show on every colour.
function drawMark(pen, paint, name, x, y, size) {
  const path = new Path2D();
  if (name === "hit") {
    path.arc(x, y, size - 0.5, 0, 2 * Math.PI);
  } else {
    path.moveTo(x - size, y - size);
    path.lineTo(x + size, y + size);
    path.moveTo(x + size, y - size);
    path.lineTo(x - size, y + size);
  }
  pen.strokeStyle = paint("page");
  pen.lineWidth = 4;
  pen.stroke(path);
  pen.strokeStyle = paint(name);
  pen.lineWidth = 2;
  pen.stroke(path);
}

// Requests that exist, and are not done, somewhere between the two operations.
function lanesBetween(from, to) {
  const names = [...lives.keys()].filter((name) => {
    const life = lives.get(name);
    return life.length && life[0][0] <= to && (lifeAt(name, from) !== "done" ||
      life.some(([at, turned]) => at > from && at <= to && turned !== "done"));
  });
  return { shown: names.slice(0, MAX_LANES), more: Math.max(0, names.length - MAX_LANES) };
}

function drawLanes(pen, paint, { first, last, column, left }, lanes, top) {
  const lineOf = new Map(lanes.shown.map((name, line) => [name, line]));
  pen.fillStyle = paint("dim");
  pen.fillText("requests", 6, top - 9);
  lanes.shown.forEach((name, line) => {
    const y = top + line * 18;
    pen.fillStyle = paint("text");
    pen.fillText(name.length > 15 ? `${name.slice(0, 14)}…` : name, 6, y + 8);
    for (let at = first; at < last; at++) {
      const life = lifeAt(name, frames[at].i);
      if (life === null || life === "done") continue;
      const thin = life === "waiting";
      pen.fillStyle = paint(life);
      pen.fillRect(left + (at - first) * column, y + (thin ? 5 : 2), column, thin ? 6 : 12);
    }
  });
  for (let at = first; at < last; at++) {
    const frame = frames[at];
    const x = left + (at - first) * column + (column - 1) / 2;
    if (!lineOf.has(frame.req)) continue;
    const y = top + lineOf.get(frame.req) * 18 + 8;
    if (frame.refused) {
      pen.fillStyle = paint("page");
      pen.fillRect(x - 4, y - 6, 8, 12);
      pen.fillStyle = paint("bad");
      pen.font = "bold 12px system-ui, sans-serif";
      pen.fillText("!", x - 2, y);
      pen.font = "11px system-ui, sans-serif";
    } else {
      pen.fillStyle = paint("page");
      pen.fillRect(x - 2, y - 2, 4, 4);
    }
  }
  if (lanes.more) {
    pen.fillStyle = paint("dim");
    pen.fillText(`… and ${lanes.more} more requests`, 6, top + lanes.shown.length * 18 + 8);
  }
}

function pointedAt(event) {
  const { first, last, column, left, top, rowHeight } = shownColumns;
  const at = first + Math.floor((event.offsetX - left) / column);
  if (event.offsetX < left || at >= last) return null;
  return { at, block: gridBlocks[Math.floor((event.offsetY - top) / rowHeight)] };
}

function showLegend() {
  const entries = KINDS.map((kind, at) => {
    const swatch = make("span", undefined, "swatch");
    swatch.style.background = `var(--${kind})`;
    return [swatch, KIND_WORDS[at]];
  });
  for (const [symbol, name, words] of [
    ["○", "hit", "hit: found in the cache"],
    ["✕", "evicted", "evicted: the cache forgot it"],
    ["!", "bad", "refused"],
    ["▪", "dim", "an operation of this request"],
    ...(record.violation ? [["▼", "bad", "violation"]] : []),
    ...(others.size ? [["□", "bad", "differs between the two"]] : []),
  ]) {
    const mark = make("span", symbol, "symbol");
    mark.style.color = `var(--${name})`;
    entries.push([mark, words]);
  }
  for (const life of ["waiting", "running", "preempted"]) {
    const swatch = make("span", undefined, "swatch");
    swatch.style.background = `var(--${life})`;
    entries.push([swatch, `request ${life}`]);
  }
  byId("legend").replaceChildren(
    ...entries.map(([mark, words]) => {
      const entry = make("span");
      entry.append(mark, words);
      return entry;
    }),
  );
}
