// The free queue and the tables of `kvspec view`: one side, or the reference above the subject where
// the two differ. Follows view.js in the same script.

function showQueue(frame) {
  const length = frame.queue.length;
  byId("queue-length").textContent =
    `– ${length} ${length === 1 ? "block" : "blocks"}; the front is taken first, the back last` +
    ` (usage ${(100 * frame.usage).toFixed(1)} %)`;
  const other = others.get(frame.i);
  const parts = other && String(other.queue) !== String(frame.queue);
  byId("queue").replaceChildren(...chips(frame, parts ? other : null));
  byId("queue-other").replaceChildren(...(parts ? chips(other, frame) : []));
  byId("queue-whose").textContent = parts ? `↳ ${record.replayed_on}` : "";
}

// `beside`: the queue of the other side, from which the places that differ are told.
function chips(frame, beside) {
  const length = frame.queue.length;
  const shown = length <= 200 ? frame.queue : [...frame.queue.slice(0, 120), null, ...frame.queue.slice(-60)];
  const made = shown.map((block, at) => {
    if (block === null) return make("span", `… ${length - 180} more …`, "dim");
    const differs = beside && length <= 200 && beside.queue[at] !== block ? " differs" : "";
    return make("span", block, `chip ${KINDS[kindOf(frame, block)]}${differs}`);
  });
  return [make("span", "front", "dim"), ...made, make("span", "back", "dim")];
}

function table(id, titles, rows) {
  const head = make("tr");
  head.append(...titles.map((title) => make("th", title)));
  byId(id).replaceChildren(head, ...rows);
}

function row(cells, className) {
  const line = make("tr", undefined, className);
  line.append(...cells.map((cell) => make("td", cell)));
  return line;
}

// A line, and below it the other side's where that differs.
function pair(cells, className, others) {
  if (!others || cells.every((cell, at) => String(cell) === String(others[at]))) {
    return [row(cells, className)];
  }
  const lines = [row(cells, className), row(["↳", ...others.slice(1)], "other")];
  cells.forEach((cell, at) => {
    if (at === 0 || String(cell) === String(others[at])) return;
    for (const line of lines) line.children[at].classList.add("differs");
  });
  return lines;
}

function showRequests(frame, before) {
  const names = [...lives.keys()].filter((name) => lifeAt(name, frame.i) !== null);
  const alive = names.filter((name) => lifeAt(name, frame.i) !== "done" || frame.held.get(name));
  const titles = ["request", "life"];
  record.groups.forEach((_, group) => {
    const which = record.groups.length > 1 ? ` of group ${group}` : "";
    titles.push(`blocks${which} (0: null)`);
  });
  titles.push(record.groups.length > 1 ? "cached blocks per group" : "cached blocks");
  const cells = (side, name) => {
    const held = side.held.get(name) ?? record.groups.map(() => []);
    const counts = (side.counts.get(name) ?? []).map((count) => count ?? "–").join(", ");
    return [name, lifeAt(name, frame.i), ...held.map(idList), counts || "–"];
  };
  const other = others.get(frame.i);
  const rows = alive.flatMap((name) => {
    const changed = before && frame.held.get(name) !== before.held.get(name);
    const classes = (changed ? "changed " : "") + (name === frame.req ? "asked" : "");
    return pair(cells(frame, name), classes, other && cells(other, name));
  });
  table("requests", titles, rows);
  const done = names.length - alive.length;
  byId("requests-note").textContent = (done ? `${done} done and not listed. ` : "") +
    "A coloured line changed in this operation." +
    (other ? ` Below a line, ↳: ${record.replayed_on}, where it differs.` : "");
}

// What the table says of each block of one side.
function blockCells(frame) {
  const holders = frame.refs.map(() => []);
  for (const [name, groups] of frame.held) {
    const blocks = new Set(groups.flat());
    for (const block of blocks) if (block !== 0) holders[block]?.push(name);
  }
  const at = new Map(frame.queue.map((block, position) => [block, position]));
  return (block) => {
    const kind = kindOf(frame, block);
    const marks = [
      frame.hit?.includes(block) ? "hit" : "",
      frame.evicted?.includes(block) ? "evicted" : "",
    ].filter(Boolean);
    const state = [KIND_WORDS[kind], ...marks].join(", ");
    const place = at.has(block) ? `${at.get(block) + 1}.` : "–";
    const by = holders[block].join(", ") || (kind === 2 || kind === 3 ? "no request (popped)" : "–");
    return [block, state, frame.refs[block], shortKey(frame.keys[block]), by, place];
  };
}

function showBlocks(frame, before) {
  const other = others.get(frame.i);
  const all = frame.refs.map((_, block) => block);
  const isChanged = (b) =>
    before && (frame.refs[b] !== before.refs[b] || frame.keys[b] !== before.keys[b]);
  const isUsed = (b) => kindOf(frame, b) || isChanged(b) || (other && kindOf(other, b));
  const most = record.is_part ? 16 : 130;
  const listed = all.length <= most ? all : all.filter((b) => b && isUsed(b));
  const [ours, theirs] = [blockCells(frame), other && blockCells(other)];
  const shown = listed.slice(0, 400);
  const rows = shown.flatMap((block) => {
    const lines = pair(ours(block), isChanged(block) ? "changed" : "", theirs && theirs(block));
    if (frame.keys[block] !== null) lines[0].children[3].title = frame.keys[block];
    for (const line of lines) line.children[3].classList.add("mono");
    return lines;
  });
  table("blocks", ["block", "state", "references", "key", "held by", "place in queue"], rows);
  const left = all.length - shown.length;
  byId("blocks-note").textContent = left ? `${left} more, nearly all of them free, are not listed.` : "";
  const doubled = Object.entries(frame.same_key).map(([key, blocks]) =>
    make("p", `Same key ${shortKey(key)}: ${blocksInWords(blocks)}; the first is found by look-ups.`),
  );
  byId("same-key").replaceChildren(...doubled);
}

