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
const others = new Map(fold(record.other).map((frame) => [frame.i, frame])); // of `replayed_on`
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
  if (frame.folded) rows.push(["as usual", frame.folded.join(", ")]);
  if (frame.result !== undefined) rows.push(["result", frame.result]);
  const theirs = others.get(frame.i)?.result;
  const parts = others.has(frame.i) && theirs !== frame.result;
  if (parts) rows.push(["↳", theirs ?? others.get(frame.i).refused]);
  byId("call").replaceChildren(
    ...rows.flatMap(([name, value]) => [
      make("dt", name === "result" ? "answer" : name),
      make("dd", value, `mono${parts && name === "↳" ? " differs" : ""}`),
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
  if (!record.is_part && location.hash !== place) history.replaceState(null, "", place);
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
  if (record.is_part) showOperationNumber(record.violation.operation);
  else if (asked) showOperationNumber(Number(asked[1]));
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
  document.body.classList.toggle("part", record.is_part);
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
