// One group: its block lists, and what a window makes different (spec/rules/groups.md, full.md,
// sliding_window.md).

#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config.hpp"
#include "pool.hpp"
#include "request.hpp"

using Blocks = std::vector<Block>;

// A request's blocks, and how many leading ones were handed to the cache (KV-GRP-1).
struct Entry {
    Blocks blocks;
    std::optional<std::int64_t> num_cached;
};

// What an allocation asks of every group.
struct Need {
    std::int64_t slots;     // tokens that must have slots
    std::int64_t computed;  // tokens computed, hit, or brought by a load
    std::int64_t skip_at;   // where windows are looked at
    bool capped = false;    // count with the admission cap
};

std::int64_t ceiling(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0); }
std::int64_t size_of(const Blocks &blocks) { return static_cast<std::int64_t>(blocks.size()); }

class Group {
  public:
    Group(const Config &whole, std::size_t index, Pool &pool, Events &events)
        : config(whole.groups[index]), index(index), whole_(whole), pool_(pool), events_(events) {}

    const GroupConfig config;
    const std::size_t index;
    std::map<std::string, Entry> entries;
    Blocks new_blocks;

    const Blocks &blocks_of(const std::string &id) const {
        static const Blocks none;
        auto found = entries.find(id);
        return found == entries.end() ? none : found->second.blocks;
    }
    bool has_entry(const std::string &id) const {
        auto found = entries.find(id);
        return found != entries.end() && found->second.num_cached;
    }
    std::int64_t num_slots(const std::string &id) const {
        return size_of(blocks_of(id)) * config.block_size;
    }

    // Leading blocks that need not be kept (KV-SW-9).
    std::int64_t num_skipped(std::int64_t computed) const { return num_unread(computed - config.extra); }

    // Leading blocks that no later token reads (KV-FULL-1, KV-SW-1).
    std::int64_t num_unread(std::int64_t computed) const {
        if (!config.window) return 0;
        return std::max(computed - config.window + 1, std::int64_t{0}) / config.block_size;
    }

    // Whether the block that the next token reads first is gone (KV-REQ-9).
    bool is_behind(const std::string &id, std::int64_t computed) const {
        const Blocks &blocks = blocks_of(id);
        std::int64_t first = num_unread(computed);
        return first < size_of(blocks) && blocks[Pool::at(first)] == null_block;
    }

    // The last hash inside the block (KV-HASH-5); null if the request has none there.
    const Bytes *hash_of(const Request &request, std::int64_t block) const {
        // Without caching a hash block may be the larger one.
        std::int64_t end = (block + 1) * std::max(config.block_size / whole_.hash_size, std::int64_t{1});
        if (end > static_cast<std::int64_t>(request.hashes.size())) return nullptr;
        return &request.hashes[Pool::at(end - 1)];
    }

    std::optional<Block> find(const Request &request, std::int64_t block) const {
        const Bytes *hash = hash_of(request, block);
        return hash ? pool_.find(make_key(*hash, index)) : std::nullopt;
    }

    // Free blocks that it takes to have the slots.
    std::int64_t num_needed(const std::string &id, const Blocks &hits, const Need &need) const {
        std::int64_t wanted = ceiling(need.slots, config.block_size);
        if (need.capped && config.window) wanted = std::min(wanted, admission_cap());
        std::int64_t held = size_of(blocks_of(id));
        if (has_entry(id)) return std::max(wanted - held, std::int64_t{0});  // KV-GRP-3
        std::int64_t skipped = num_skipped(need.skip_at);
        std::int64_t fresh = wanted - std::max(skipped, size_of(hits) + held);
        auto kept = hits.begin() + std::clamp(skipped - held, std::int64_t{0}, size_of(hits));
        return std::max(fresh, std::int64_t{0}) +  // KV-GRP-4
               std::count_if(kept, hits.end(), [&](Block block) { return pool_.is_free(block); });
    }

    void take_hits(const std::string &id, const Blocks &hits, const Need &need) {  // KV-GRP-5
        std::int64_t skipped = num_skipped(need.skip_at);
        Entry &entry = entries[id];
        entry.blocks.assign(Pool::at(skipped), null_block);
        for (std::int64_t i = skipped; i < size_of(hits); ++i) {
            if (hits[Pool::at(i)] != null_block) pool_.touch(hits[Pool::at(i)]);
            entry.blocks.push_back(hits[Pool::at(i)]);
        }
        entry.num_cached = size_of(entry.blocks);
    }

    void take_external(const std::string &id, const Need &need) {  // KV-GRP-6
        bool reads_any = !config.window || need.computed > need.skip_at - config.window + 1 - config.extra;
        if (reads_any) extend(id, need.computed);
    }

    // Make the list long enough for this many tokens; the blocks taken (KV-GRP-7).
    Blocks extend(const std::string &id, std::int64_t num_tokens) {
        std::int64_t missing = ceiling(num_tokens, config.block_size) - size_of(blocks_of(id));
        if (missing <= 0) return {};
        Blocks taken = pool_.allocate(missing), &blocks = entries[id].blocks;
        blocks.insert(blocks.end(), taken.begin(), taken.end());
        if (!config.window) new_blocks.insert(new_blocks.end(), taken.begin(), taken.end());  // KV-GRP-10
        return taken;
    }

    // Null for blocks that no later token reads (KV-GRP-2).
    void remove_skipped(const std::string &id, std::int64_t computed) {
        auto found = entries.find(id);
        if (found == entries.end()) return;
        Blocks &blocks = found->second.blocks, removed;
        for (std::int64_t i = std::min(num_skipped(computed), size_of(blocks)) - 1; i >= 0; --i) {
            if (blocks[Pool::at(i)] == null_block) break;  // all before went earlier
            removed.push_back(std::exchange(blocks[Pool::at(i)], null_block));
        }
        pool_.release(removed);
    }

    // Register the full blocks among the first tokens that were not yet (KV-GRP-11).
    void cache(const Request &request, std::int64_t num_tokens) {
        std::int64_t end = num_tokens / config.block_size, first = 0;
        auto found = entries.find(request.id);
        if (found != entries.end()) first = found->second.num_cached.value_or(0);
        if (first >= end) return;
        std::vector<std::int64_t> stored;
        for (std::int64_t i = first; i < end; ++i) {
            Block block = found->second.blocks[Pool::at(i)];
            if (block == null_block || !is_worth_caching(i)) continue;
            pool_.insert(block, make_key(*hash_of(request, i), index), (i + 1) * config.block_size);
            stored.push_back(i);
        }
        found->second.num_cached = end;
        if (events_.enabled) events_.queue.push_back(stored_event(request, first, end, stored));
    }

    Blocks forget(const std::string &id) {
        Blocks blocks = blocks_of(id);
        entries.erase(id);
        return blocks;
    }

    // Leading blocks that every request with blocks holds once (KV-FULL-7, KV-SW-8).
    std::int64_t num_common_prefix_blocks(const std::string &id) const {
        if (config.window) return 0;
        auto sharing = std::count_if(entries.begin(), entries.end(), [](const auto &entry) {
            return !entry.second.blocks.empty();
        });
        const Blocks &blocks = blocks_of(id);
        return std::find_if(blocks.begin(), blocks.end(),
                            [&](Block block) { return pool_.references[Pool::at(block)] != sharing; }) -
               blocks.begin();
    }

    // Neighbouring blocks that fill a window, with one more to drop (KV-SW-2, KV-RET-1).
    std::int64_t tail(bool drop) const { return ceiling(config.window - 1, config.block_size) + drop; }

  private:
    // The most blocks that a window and one step touch (KV-SW-7).
    std::int64_t admission_cap() const {
        std::int64_t tokens = config.window - 1 + config.extra + whole_.max_batched;
        return ceiling(std::min(tokens, whole_.max_model_len), config.block_size) + 1;
    }

    // Whether a hit can use the block: it lies in the tail before a boundary (KV-RET-1).
    bool is_worth_caching(std::int64_t block) const {
        if (!config.window) return true;
        std::int64_t period = whole_.alignment / config.block_size, shift = config.eagle;
        std::int64_t needed = tail(config.eagle);
        if (needed >= period) return true;
        return block >= shift && (block - shift) % period >= period - needed;
    }

    // KV-EVT-2, KV-EVT-3, KV-EVT-8.
    Value stored_event(const Request &request, std::int64_t first, std::int64_t end,
                       const std::vector<std::int64_t> &stored) const {
        std::int64_t size = config.block_size;
        Array hashes, extra_keys;
        for (std::int64_t i : stored) {
            hashes.push_back(events_.show(*hash_of(request, i)));
            Array keys;
            for (const ExtraKey &key : request.extra_keys(i * size, (i + 1) * size))
                keys.push_back(key.shown);
            extra_keys.push_back(keys.empty() ? Value() : Value(keys));
        }
        auto tokens = request.tokens.begin();
        std::vector<std::int64_t> range(tokens + first * size, tokens + end * size);
        Value parent = first ? events_.show(*hash_of(request, first - 1)) : Value();
        Value lora_name = request.lora_name.empty() ? Value() : Value(request.lora_name);
        return Object{{"type", "BlockStored"},
                      {"block_hashes", hashes},
                      {"parent_block_hash", parent},
                      {"token_ids", numbers(range)},
                      {"block_size", size},
                      {"lora_id", request.lora_id},
                      {"lora_name", lora_name},
                      {"medium", "GPU"},
                      {"extra_keys", stored.empty() ? Value() : Value(extra_keys)},
                      {"group_idx", index},
                      {"kv_cache_spec_kind", config.type->kind},
                      {"kv_cache_spec_sliding_window", config.window ? Value(config.window) : Value()}};
    }

    const Config &whole_;
    Pool &pool_;
    Events &events_;
};
