// @ts-check
import assert from "node:assert/strict";
import { test } from "node:test";
import { followAll } from "./reader.mjs";

/**
 * A pool of blocks for one group of full attention, without caching.
 * `keepsOrder` is a mistake: freed blocks come back in the order in which they were taken.
 * @returns {import("./reader.mjs").Answer}
 */
function manager(keepsOrder = false) {
  let config = { num_blocks: 0, max_model_len: 0 };
  let blockSize = 1;
  /** @type {number[]} */
  let free = []; // the front is taken first
  /** @type {Map<string, number[]>} */
  const tables = new Map();
  /** @type {Map<number, { id: string, tokens: number, computed: number }>} */
  const requests = new Map();

  /** @type {Record<string, (args: any, request: any, handle: number) => any>} */
  const calls = {
    hello: () => ({ spec_types: ["FullAttentionSpec"], features: [] }),
    create_manager(args) {
      config = args.config;
      blockSize = args.config.groups[0].spec.block_size;
      free = Array.from({ length: config.num_blocks - 1 }, (_, index) => index + 1); // 0 is the null block
    },
    make_request(args, _, handle) {
      requests.set(handle, { id: args.request_id, tokens: args.prompt_token_ids.length, computed: 0 });
      return { num_tokens: args.prompt_token_ids.length, block_hashes: [] };
    },
    append_tokens(args, request) {
      request.tokens += args.token_ids.length;
      return { num_tokens: request.tokens, num_block_hashes: 0, new_block_hashes: [] };
    },
    get_computed_blocks: () => ({
      blocks: [[]], num_computed_tokens: 0, num_uncached_common_prefix_tokens: null,
    }),
    allocate_slots(args, request) {
      const table = tables.get(request.id) ?? [];
      const slots = Math.min(request.computed + args.num_new_tokens, config.max_model_len);
      const need = Math.max(Math.ceil(slots / blockSize) - table.length, 0);
      if (need > free.length) return null;
      const taken = free.splice(0, need);
      tables.set(request.id, [...table, ...taken]);
      return [taken];
    },
    free(_, request) {
      const table = tables.get(request.id) ?? [];
      tables.delete(request.id);
      free.unshift(...(keepsOrder ? table : table.reverse())); // the last one comes to the front
      return null;
    },
    get_usage: () => ({
      num_free_blocks: free.length, usage: 1 - free.length / (config.num_blocks - 1),
    }),
  };
  return ({ op, request = 0, set = {}, args = {} }) => {
    const known = requests.get(request);
    if (known) known.computed = set.num_computed_tokens ?? known.computed;
    return { result: calls[op](args, known, request) };
  };
}

const folder = process.env.KV_VECTORS ?? "";
const skip = folder ? false : "KV_VECTORS names no folder that `kvspec vectors` wrote";

test("it answers as the vectors say", { skip }, (context) => {
  const { followed, leftOut, right } = followAll(folder, manager);
  assert.ok(followed > 0);
  context.diagnostic(`${followed} conversations followed, ${leftOut} left out, ${right} answers right`);
});

test("a mistake is found", { skip }, () => {
  assert.throws(() => followAll(folder, () => manager(true)), /long\/\d+\.jsonl, line \d+/);
});
