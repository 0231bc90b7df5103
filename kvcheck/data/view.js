"use strict";
// The page of `kvspec view`. Texts of the record reach the page as text nodes only, never as HTML.

const record = JSON.parse(document.getElementById("record").textContent);
const lives = new Map(Object.entries(record.lives)); // maps: a request may be called "constructor"
const frames = fold(record.frames);
const firstOperation = frames[0].i;
const lastOperation = frames[frames.length - 1].i;
const places = {
  refusal: placesOf((frame) => frame.refused),
  eviction: placesOf((frame) => frame.evicted),
  preemption: placesOf((frame) => frame.preempted),
  hit: placesOf((frame) => frame.hit),
};
const KINDS = ["free", "free-cached", "used", "used-cached", "null"];
const KIND_WORDS = ["free", "free but cached", "in use", "in use and cached", "null block, set aside"];
const violationIsHere = record.violation !== null &&
  record.violation.operation >= firstOperation && record.violation.operation <= lastOperation;
let current = 0; // the place in `frames`

// ---- states -------------------------------------------------------------------------------------

// Frames come as changes; here each gets its whole state. What did not change is shared.
function fold(changes) {
  const folded = [];
  let state = { refs: [], keys: [], held: new Map(), counts: new Map(), queue: [], same_key: {} };
  for (const change of changes) {
    state = {
      refs: withItems(state.refs, change.refs),
      keys: withItems(state.keys, change.keys),
      held: withMembers(state.held, change.held),
      counts: withMembers(state.counts, change.counts),
      queue: withMoves(state.queue, change.queue),
      same_key: change.same_key ?? state.same_key,
      free_blocks: change.free_blocks ?? state.free_blocks,
      usage: change.usage ?? state.usage,
    };
    folded.push({ ...change, ...state });
  }
  return folded;
}

function withItems(values, items) {
  if (!items) return values;
  const copy = values.slice();
  for (const [at, value] of items) copy[at] = value;
  return copy;
}

function withMembers(members, changes) {
  if (!changes) return members;
  const copy = new Map(members);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null) copy.delete(name);
    else copy.set(name, value);
  }
  return copy;
}

function withMoves(queue, moves) {
  if (!moves) return queue;
  if (moves.all) return moves.all;
  const out = new Set(moves.out ?? []);
  return [...(moves.front ?? []), ...queue.filter((block) => !out.has(block)), ...(moves.back ?? [])];
}

function kindOf(frame, block) {
  if (block === 0) return 4;
  return (frame.refs[block] > 0 ? 2 : 0) + (frame.keys[block] === null ? 0 : 1);
}

// waiting, running, preempted, done, or null while the request does not exist yet
function lifeAt(name, operation) {
  let life = null;
  for (const [from, turned] of lives.get(name) ?? []) {
    if (from > operation) break;
    life = turned;
  }
  return life;
}

// ---- small helpers ------------------------------------------------------------------------------

function placesOf(wanted) {
  return frames.map((frame, at) => (wanted(frame) ? at : -1)).filter((at) => at >= 0);
}

function make(tag, text, className) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}

function byId(id) {
  return document.getElementById(id);
}

function blocksInWords(blocks) {
  const shown = blocks.slice(0, 40).join(", ") + (blocks.length > 40 ? ", …" : "");
  return (blocks.length === 1 ? "block " : `${blocks.length} blocks: `) + shown;
}

// A key is the hash and, in its last eight digits, the group.
function shortKey(key) {
  if (key === null) return "–";
  const group = parseInt(key.slice(-8), 16);
  return key.slice(0, 8) + (record.groups.length > 1 ? ` · group ${group}` : "");
}

function idList(blocks) {
  if (blocks.length <= 60) return blocks.join(" ") || "–";
  return `${blocks.slice(0, 30).join(" ")} … ${blocks.slice(-20).join(" ")} (${blocks.length})`;
}

// ---- the operation ------------------------------------------------------------------------------

function showOperation(frame, before) {
  const title = frame.op
    ? `Operation ${frame.i}: ${frame.op}` + (frame.req === undefined ? "" : `, request ${frame.req}`)
    : "The new manager, before the first operation";
  byId("operation-title").textContent = title;
  byId("meaning").textContent = frame.meaning ?? "Every block but the null block is free.";
  byId("refused").textContent = frame.refused ?? "";
  byId("effects").replaceChildren(...effects(frame, before).map((text) => make("li", text)));
  const rows = Object.entries(frame.args ?? {});
  if (frame.result !== undefined) rows.push(["result", frame.result]);
  byId("call").replaceChildren(
    ...rows.flatMap(([name, value]) => [
      make("dt", name === "result" ? "answer" : name),
      make("dd", value, "mono"),
    ]),
  );
  const violated = record.violation && record.violation.operation === frame.i;
  byId("violation-here").replaceChildren(...(violated ? [violationBox()] : []));
}

function violationBox() {
  const box = make("div", undefined, "violation");
  const what = record.violation.rule
    ? `${record.violation.title} is broken here`
    : `${record.replayed_on} does not do what the record says`;
  box.append(make("strong", `Violation: ${what}`));
  box.append(make("pre", record.violation.text));
  return box;
}

// What happened, in sentences, from the states before and after.
function effects(frame, before) {
  if (!before) return [];
  const lines = [];
  const changed = frame.refs.map((_, block) => block).filter((b) => frame.refs[b] !== before.refs[b]);
  const taken = changed.filter((block) => before.refs[block] === 0);
  const released = changed.filter((block) => frame.refs[block] === 0);
  const more = changed.filter((b) => before.refs[b] > 0 && frame.refs[b] > before.refs[b]);
  const fewer = changed.filter((b) => frame.refs[b] > 0 && frame.refs[b] < before.refs[b]);
  if (frame.hit) lines.push(`Hit: ${blocksInWords(frame.hit)}`);
  if (taken.length) lines.push(`Taken into use: ${blocksInWords(taken)}`);
  if (more.length) lines.push(`Shared by one more: ${blocksInWords(more)}`);
  if (fewer.length) lines.push(`Still in use, by fewer: ${blocksInWords(fewer)}`);
  if (released.length) lines.push(`Free again: ${blocksInWords(released)}`);
  if (frame.cached) lines.push(`Now cached: ${blocksInWords(frame.cached)}`);
  if (frame.evicted) lines.push(`Evicted, the key is forgotten: ${blocksInWords(frame.evicted)}`);
  if (before.held.has(frame.req) && !frame.held.has(frame.req)) {
    lines.push(`Request ${frame.req} holds no block any more`);
  }
  if (frame.preempted) lines.push(`Request ${frame.req} is preempted: it comes again later`);
  if (frame.quirks) lines.push(`A quirk of the recorded engine: ${frame.quirks.join(", ")}`);
  if (!lines.length && !frame.refused) lines.push("Blocks and cache stay as they were");
  return lines;
}

// ---- queue and tables ---------------------------------------------------------------------------

function showQueue(frame) {
  const length = frame.queue.length;
  byId("queue-length").textContent =
    `– ${length} ${length === 1 ? "block" : "blocks"}; the front is taken first, the back last` +
    ` (usage ${(100 * frame.usage).toFixed(1)} %)`;
  const shown = length <= 200 ? frame.queue : [...frame.queue.slice(0, 120), null, ...frame.queue.slice(-60)];
  const chips = shown.map((block) =>
    block === null
      ? make("span", `… ${length - 180} more …`, "dim")
      : make("span", block, `chip ${KINDS[kindOf(frame, block)]}`),
  );
  byId("queue").replaceChildren(make("span", "front", "dim"), ...chips, make("span", "back", "dim"));
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

function showRequests(frame, before) {
  const names = [...lives.keys()].filter((name) => lifeAt(name, frame.i) !== null);
  const alive = names.filter((name) => lifeAt(name, frame.i) !== "done" || frame.held.get(name));
  const titles = ["request", "life"];
  record.groups.forEach((_, group) => {
    const which = record.groups.length > 1 ? ` of group ${group}` : "";
    titles.push(`blocks${which} (0: null)`);
  });
  titles.push(record.groups.length > 1 ? "cached blocks per group" : "cached blocks");
  const rows = alive.map((name) => {
    const held = frame.held.get(name) ?? record.groups.map(() => []);
    const counts = (frame.counts.get(name) ?? []).map((count) => count ?? "–").join(", ");
    const changed = before && frame.held.get(name) !== before.held.get(name);
    const classes = (changed ? "changed " : "") + (name === frame.req ? "asked" : "");
    return row([name, lifeAt(name, frame.i), ...held.map(idList), counts || "–"], classes);
  });
  table("requests", titles, rows);
  const done = names.length - alive.length;
  byId("requests-note").textContent = `${done} done and not listed.` +
    " A coloured line changed in this operation.";
}

function showBlocks(frame, before) {
  const holders = frame.refs.map(() => []);
  for (const [name, groups] of frame.held) {
    const blocks = new Set(groups.flat());
    for (const block of blocks) if (block !== 0) holders[block]?.push(name);
  }
  const at = new Map(frame.queue.map((block, position) => [block, position]));
  const all = frame.refs.map((_, block) => block);
  const isChanged = (b) =>
    before && (frame.refs[b] !== before.refs[b] || frame.keys[b] !== before.keys[b]);
  const listed = all.length <= 130 ? all : all.filter((b) => b && (kindOf(frame, b) || isChanged(b)));
  const rows = listed.slice(0, 400).map((block) => {
    const kind = kindOf(frame, block);
    const marks = [
      frame.hit?.includes(block) ? "hit" : "",
      frame.evicted?.includes(block) ? "evicted" : "",
    ].filter(Boolean);
    const state = [KIND_WORDS[kind], ...marks].join(", ");
    const place = at.has(block) ? `${at.get(block) + 1}.` : "–";
    const by = holders[block].join(", ") || (kind === 2 || kind === 3 ? "no request (popped)" : "–");
    const line = row(
      [block, state, frame.refs[block], shortKey(frame.keys[block]), by, place],
      isChanged(block) ? "changed" : "",
    );
    if (frame.keys[block] !== null) line.children[3].title = frame.keys[block];
    line.children[3].className = "mono";
    return line;
  });
  table("blocks", ["block", "state", "references", "key", "held by", "place in queue"], rows);
  const left = all.length - rows.length;
  byId("blocks-note").textContent = left ? `${left} more, nearly all of them free, are not listed.` : "";
  const doubled = Object.entries(frame.same_key).map(([key, blocks]) =>
    make("p", `Same key ${shortKey(key)}: ${blocksInWords(blocks)}; the first is found by look-ups.`),
  );
  byId("same-key").replaceChildren(...doubled);
}

// ---- moving -------------------------------------------------------------------------------------

function show(at) {
  current = Math.max(0, Math.min(frames.length - 1, at));
  const frame = frames[current];
  const before = frames[current - 1];
  byId("slider").value = current;
  byId("number").value = Math.max(0, frame.i);
  byId("back").disabled = byId("to-start").disabled = current === 0;
  byId("next").disabled = byId("to-end").disabled = current === frames.length - 1;
  showOperation(frame, before);
  showQueue(frame);
  showRequests(frame, before);
  showBlocks(frame, before);
  drawTime();
  const place = frame.i < 0 ? "#start" : `#op=${frame.i}`;
  if (location.hash !== place) history.replaceState(null, "", place);
}

function showOperationNumber(operation) {
  if (Number.isFinite(operation)) show(operation - firstOperation);
}

function jump(kind, forwards) {
  const there = places[kind].filter((at) => (forwards ? at > current : at < current));
  if (there.length) show(forwards ? there[0] : there[there.length - 1]);
}

function showPlaceInAddress() {
  const asked = /^#op=(\d+)$/.exec(location.hash);
  if (asked) showOperationNumber(Number(asked[1]));
  else show(0);
}

function addJumps() {
  const jumps = byId("jumps");
  for (const [kind, found] of Object.entries(places)) {
    const count = `${found.length} ${kind}${found.length === 1 ? "" : "s"}`;
    const group = make("span");
    group.title = `operations with ${kind === "eviction" ? "an" : "a"} ${kind}`;
    const back = make("button", "◀");
    back.setAttribute("aria-label", `Previous ${kind}`);
    const forth = make("button", "▶");
    forth.setAttribute("aria-label", `Next ${kind}`);
    back.disabled = forth.disabled = !found.length;
    back.addEventListener("click", () => jump(kind, false));
    forth.addEventListener("click", () => jump(kind, true));
    group.append(back, ` ${count} `, forth);
    jumps.append(group);
  }
  if (record.violation && violationIsHere) {
    const button = make("button", "Go to the violation", "bad");
    button.addEventListener("click", () => showOperationNumber(record.violation.operation));
    jumps.append(button);
  }
}

function onKey(event) {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.target.id === "number") return; // it has its own keys, and so has the slider
  if (event.target.id === "slider" && /^(Arrow|Home|End)/.test(event.key)) return;
  const letters = { r: "refusal", e: "eviction", p: "preemption", h: "hit" };
  const kind = letters[event.key.toLowerCase()];
  if (event.key === "ArrowRight") show(current + 1);
  else if (event.key === "ArrowLeft") show(current - 1);
  else if (event.key === "Home") show(0);
  else if (event.key === "End") show(frames.length - 1);
  else if (kind) jump(kind, !event.shiftKey);
  else if (event.key === "v" && violationIsHere) showOperationNumber(record.violation.operation);
  else return;
  event.preventDefault();
}

function showHead() {
  byId("name").textContent = `Record ${record.name}`;
  const groups = record.groups.map((words, at) =>
    record.groups.length > 1 ? `group ${at}: ${words}` : words,
  );
  byId("about").textContent = [
    `${record.num_operations} operations`,
    `recorded from ${record.source}` + (record.scenario ? `, scenario ${record.scenario}` : ""),
    `${record.num_blocks} blocks`,
    ...groups,
    ...(record.caching ? [] : ["caching is off"]),
  ].join(" · ");
  const notes = record.notes.map((text) => make("p", text, "note"));
  if (record.violation) {
    const where = record.violation.operation;
    const at = where < 0 ? "when the manager is built" : `at operation ${where}`;
    const away = violationIsHere ? "" : ", which is not on this page";
    const who = record.violation.rule
      ? `A checker found ${record.violation.title} broken`
      : `${record.replayed_on} parts from this record`;
    notes.push(make("p", `${who} ${at}${away}.`, "violation"));
  }
  if (record.replayed_on && (!record.violation || record.violation.rule)) {
    notes.push(make("p", `Replayed on ${record.replayed_on}: no difference was found.`, "note"));
  }
  byId("notes").replaceChildren(...notes);
}

function start() {
  showHead();
  showLegend();
  addJumps();
  byId("slider").max = frames.length - 1;
  byId("number").min = Math.max(0, firstOperation);
  byId("number").max = lastOperation;
  byId("of").textContent = `of ${Math.max(0, firstOperation)} … ${lastOperation}`;
  byId("to-start").addEventListener("click", () => show(0));
  byId("back").addEventListener("click", () => show(current - 1));
  byId("next").addEventListener("click", () => show(current + 1));
  byId("to-end").addEventListener("click", () => show(frames.length - 1));
  byId("slider").addEventListener("input", (event) => show(Number(event.target.value)));
  byId("number").addEventListener("change", (event) => showOperationNumber(event.target.valueAsNumber));
  byId("time").addEventListener("click", (event) => {
    const pointed = pointedAt(event);
    if (pointed) show(pointed.at);
  });
  byId("time").addEventListener("mousemove", (event) => {
    const pointed = pointedAt(event);
    if (!pointed || pointed.block === undefined) return;
    const frame = frames[pointed.at];
    const when = frame.op ? `after operation ${frame.i} (${frame.op})` : "at the start";
    const words = KIND_WORDS[kindOf(frame, pointed.block)];
    byId("pointed").textContent = `Block ${pointed.block} ${when}: ${words}. Click to go there.`;
  });
  document.addEventListener("keydown", onKey);
  window.addEventListener("hashchange", showPlaceInAddress);
  window.addEventListener("resize", drawTime);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawTime);
  showPlaceInAddress();
}
