// An offload manager as a program: chunks in host memory, in front of lower tiers (spec/protocol.md, KV-TIER-9 …).
//
//     kvspec probe "cmd+json:node examples/node/tier.mjs"
//     kvspec check --tier "cmd+json:node examples/node/tier.mjs"

import { createInterface } from "node:readline";

class Refusal extends Error {
  constructor(field, value, allowed) {
    super(`${field} = ${JSON.stringify(value)}: must be ${allowed}`);
    this.fields = { field, value, allowed };
  }
}

function require(isLegal, field, value, allowed) {
  if (!isLegal) throw new Refusal(field, value, allowed);
}

function checkedKeys(keys) {
  require(Array.isArray(keys), "keys", keys, "a list of keys");
  for (const key of keys) require(typeof key === "string", "keys", key, "bytes");
  return keys;
}

class Tier {
  constructor({ num_chunks: numChunks, num_lower: numLower, order }) {
    require(Number.isSafeInteger(numChunks) && numChunks >= 0, "num_chunks", numChunks, "at least 0");
    require(order === "lru", "order", order, "lru");
    this.numLower = numLower;
    this.free = Array.from({ length: numChunks }, (_, place) => place);
    this.chunks = new Map(); // by key, the least recently used first
    this.requests = new Map();
    this.events = [];
    this.begun = []; // promotions of this step
    this.stored = []; // what is to be copied down
    this.moving = new Map();
    this.nextNumber = 0;
  }

  request(id, { orEnded = false } = {}) {
    const found = this.requests.get(id);
    const isBusy = found !== undefined && (found.loads.length > 0 || this.isStoring(id));
    const isOpen = found !== undefined && (!found.isEnded || (orEnded && isBusy));
    require(isOpen, "request_id", id, "one that has begun");
    return found;
  }

  isStoring(id) {
    return [...this.chunks.values()].some((chunk) => chunk.writer === id);
  }

  new_request({ request_id: id }) {
    require(typeof id === "string", "request_id", id, "a text");
    const old = this.requests.get(id);
    require(old === undefined || old.isEnded, "request_id", id, "a new one");
    this.requests.set(id, { loads: [], awaits: new Set(), asked: false, late: false, ...old, isEnded: false });
  }

  finish_request({ request_id: id }) {
    Object.assign(this.request(id), { isEnded: true, asked: false, late: false, awaits: new Set() });
  }

  lookup({ key, request_id: id, below }) {
    checkedKeys([key]);
    const request = this.request(id);
    let found = "miss";
    const chunk = this.chunks.get(key);
    if (chunk !== undefined) found = chunk.writer === null ? "hit" : "pending";
    else if (below.includes("hit")) found = this.promote(key, id, below.indexOf("hit"));
    else if (below.includes("retry")) found = "retry";
    request.asked = true;
    if (found === "pending" || found === "retry") request.late = true;
    if (found === "hit" || found === "pending") request.awaits.add(key);
    return found;
  }

  promote(key, id, tier) {
    const room = this.room(1, [key]);
    if (room === null) return "miss";
    this.evict(room.evicted);
    this.chunks.set(key, { place: room.places[0], writer: { promoted: true }, pins: 0 });
    this.begun.push({ tier, id, key });
    return "pending";
  }

  room(number, kept) {
    const awaited = this.numLower ? [...this.requests.values()].flatMap((each) => [...each.awaits]) : [];
    const idle = [...this.chunks].filter(([, chunk]) => chunk.writer === null && chunk.pins === 0);
    const may = idle.map(([key]) => key).filter((key) => !kept.includes(key) && !awaited.includes(key));
    const evicted = may.slice(0, Math.max(0, number - this.free.length));
    if (this.free.length + evicted.length < number) return null;
    const places = this.free.splice(0, number);
    return { evicted, places: [...places, ...evicted.map((key) => this.chunks.get(key).place)] };
  }

  evict(keys) {
    for (const key of keys) this.chunks.delete(key);
    if (keys.length) this.events.push({ keys, is_removed: true });
  }

  use(keys) {
    for (const key of keys.toReversed()) {
      const chunk = this.chunks.get(key);
      if (chunk !== undefined && this.chunks.delete(key)) this.chunks.set(key, chunk);
    }
  }

  prepare_load({ keys, request_id: id }) {
    const request = this.request(id);
    for (const key of checkedKeys(keys)) require(this.chunks.get(key)?.writer === null, "keys", key, "ready");
    for (const key of keys) this.chunks.get(key).pins += 1;
    request.loads.push(...keys);
    request.awaits = new Set();
    this.use(keys);
    return keys.map((key) => this.chunks.get(key).place);
  }

  complete_load({ keys, request_id: id }) {
    const request = this.request(id, { orEnded: true });
    const left = [...request.loads];
    for (const key of checkedKeys(keys)) {
      require(left.includes(key), "keys", key, "a load of this request");
      left.splice(left.indexOf(key), 1);
    }
    request.loads = left;
    for (const key of keys) this.chunks.get(key).pins -= 1;
    return null;
  }

  prepare_store({ keys, request_id: id }) {
    this.request(id);
    const missing = [...new Set(checkedKeys(keys))].filter((key) => !this.chunks.has(key));
    const room = this.room(missing.length, keys);
    if (room === null) return null;
    this.evict(room.evicted);
    missing.forEach((key, n) => this.chunks.set(key, { place: room.places[n], writer: id, pins: 0 }));
    this.use(keys);
    return { keys: missing, places: room.places, evicted: room.evicted };
  }

  complete_store({ keys, request_id: id, success = true }) {
    this.request(id, { orEnded: true });
    checkedKeys(keys).forEach((key, n) => {
      const isMine = this.chunks.get(key)?.writer === id && !keys.slice(0, n).includes(key);
      require(isMine, "keys", key, "a store of this request");
    });
    if (!success) return this.drop(keys);
    this.ready(keys);
    for (let tier = 0; keys.length && tier < this.numLower; tier++) {
      for (const key of keys) this.chunks.get(key).pins += 1;
      this.stored.push({ tier, keys });
    }
    return null;
  }

  ready(keys) {
    for (const key of keys) this.chunks.get(key).writer = null;
    if (keys.length) this.events.push({ keys, is_removed: false });
  }

  drop(keys) {
    for (const key of keys) {
      this.free.push(this.chunks.get(key).place);
      this.chunks.delete(key);
      for (const request of this.requests.values()) request.awaits.delete(key);
    }
    this.free.sort((a, b) => a - b);
    return null;
  }

  touch({ keys, request_id: id }) {
    this.request(id);
    this.use(checkedKeys(keys));
  }

  end_step() {
    const up = []; // one transfer for each request and tier
    for (const { tier, id, key } of this.begun) {
      const group = up.find((each) => each.tier === tier && each.id === id);
      if (group === undefined) up.push({ tier, id, keys: [key], is_promotion: true });
      else group.keys.push(key);
    }
    const all = [...up, ...this.stored.map((each) => ({ ...each, is_promotion: false }))];
    this.begun = [];
    this.stored = [];
    for (const request of this.requests.values()) {
      if (request.asked && !request.late) request.awaits = new Set();
      Object.assign(request, { asked: false, late: false });
    }
    return all.map(({ tier, keys, is_promotion }) => {
      const places = keys.map((key) => this.chunks.get(key).place);
      const transfer = { number: this.nextNumber++, tier, is_promotion, keys, places };
      this.moving.set(transfer.number, transfer);
      return transfer;
    });
  }

  finish_transfer({ number, failed }) {
    const transfer = this.moving.get(number);
    require(transfer !== undefined, "number", number, "a transfer under way");
    require(failed.every((key) => transfer.keys.includes(key)), "failed", failed, "keys of the transfer");
    this.moving.delete(number);
    if (transfer.is_promotion) {
      this.drop(transfer.keys.filter((key) => failed.includes(key)));
      this.ready(transfer.keys.filter((key) => !failed.includes(key)));
    } else for (const key of transfer.keys) this.chunks.get(key).pins -= 1;
  }

  reset() {
    const chunks = [...this.chunks.values()];
    require(chunks.every((chunk) => chunk.writer === null && !chunk.pins), "chunks", chunks.length, "not copied");
    for (const chunk of chunks) this.free.push(chunk.place);
    this.free.sort((a, b) => a - b);
    this.chunks.clear();
    for (const request of this.requests.values()) request.awaits = new Set();
  }

  take_events() {
    const events = this.events;
    this.events = [];
    return events;
  }

  counts() {
    const chunks = [...this.chunks.values()];
    const pending = chunks.filter((chunk) => chunk.writer !== null).length;
    const pinned = chunks.filter((chunk) => chunk.writer === null && chunk.pins > 0).length;
    const idle = chunks.length - pending - pinned;
    return { num_free: this.free.length, num_evictable: idle, num_pinned: pinned, num_pending: pending };
  }
}

const HELLO = {
  protocol: 1,
  name: "node-tier",
  version: "0.1",
  edition: "0.3",
  spec_types: [],
  hash_functions: [],
  features: [],
  offload: { has_lowest_places: true },
};

const tiers = new Map();

function perform({ op, manager, args = {} }) {
  if (op === "hello") return HELLO;
  if (op === "make_offload") return tiers.set(manager, new Tier(args)) && null;
  if (op === "drop") return args.managers.forEach((handle) => tiers.delete(handle)) ?? null;
  const name = op.replace(/^offload_/, "");
  return tiers.get(manager)[name](args) ?? null;
}

function outcome(message) {
  try {
    return { result: perform(message) };
  } catch (error) {
    const kind = error instanceof Refusal ? "InvalidArgumentError" : "InternalError";
    const fields = error.fields ?? { type: error.name };
    return { error: { class: kind, message: error.message, fields } };
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const message = JSON.parse(line);
  process.stdout.write(JSON.stringify({ id: message.id, ...outcome(message) }) + "\n");
}
