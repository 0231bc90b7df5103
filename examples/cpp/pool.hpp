// The pool: free queue, references, cached keys, and the events about them
// (spec/rules/pool.md, events.md).

#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "values.hpp"

using Block = std::int64_t;
constexpr Block null_block = 0;

// The key of a block: its hash, then its group (KV-HASH-6).
Bytes make_key(const Bytes &block_hash, std::size_t group) {
    return block_hash + big_endian(group, 4);
}

struct Events {
    bool enabled = false, int_hashes = false;
    Array queue;

    Value show(const Bytes &block_hash) const {  // KV-EVT-6
        if (!int_hashes) return hex(block_hash);
        return std::to_string(number_of(block_hash.substr(block_hash.size() - 8)));
    }
    void removed(const Bytes &key) {
        if (enabled)
            queue.push_back(Object{{"type", "BlockRemoved"},
                                   {"block_hashes", Array{show(key.substr(0, key.size() - 4))}},
                                   {"medium", "GPU"},
                                   {"group_idx", number_of(key.substr(key.size() - 4))}});
    }
    void cleared() {
        if (enabled) queue.push_back(Object{{"type", "AllBlocksCleared"}});
    }
};

class Pool {
  public:
    Pool(Block num_blocks, Events &events, bool unhashed_to_front, bool event_per_copy)
        : references(static_cast<std::size_t>(num_blocks)),
          keys(static_cast<std::size_t>(num_blocks)),
          covered(static_cast<std::size_t>(num_blocks)), place_(static_cast<std::size_t>(num_blocks)),
          events_(events), unhashed_to_front_(unhashed_to_front), event_per_copy_(event_per_copy) {
        for (Block block = 1; block < num_blocks; ++block)  // KV-POOL-1: without the null block
            place_[at(block)] = queue.insert(queue.end(), block);
    }

    std::list<Block> queue;  // free blocks, the front is taken first (KV-POOL-2)
    std::vector<std::int64_t> references;
    std::vector<Bytes> keys;  // empty: not cached
    std::vector<std::int64_t> covered;
    std::map<Bytes, std::vector<Block>> cached;  // first registered first (KV-POOL-13)

    Block num_blocks() const { return static_cast<Block>(references.size()); }
    std::int64_t num_free() const { return static_cast<std::int64_t>(queue.size()); }
    bool is_free(Block block) const { return block != null_block && references[at(block)] == 0; }

    std::optional<Block> find(const Bytes &key) const {
        auto found = cached.find(key);
        if (found == cached.end()) return std::nullopt;
        return found->second.front();
    }

    // The caller has made sure that there are n.
    std::vector<Block> allocate(std::int64_t n) {
        std::vector<Block> taken;
        for (; n > 0; --n) {
            Block block = queue.front();
            queue.pop_front();
            forget(block);  // KV-POOL-4
            references[at(block)] = 1;
            taken.push_back(block);
        }
        return taken;
    }

    void touch(Block block) {  // KV-POOL-5
        if (references[at(block)]++ == 0) queue.erase(place_[at(block)]);
    }

    // One release call: KV-POOL-6, KV-POOL-7.
    void release(const std::vector<Block> &blocks) {
        std::vector<Block> unhashed, hashed;
        for (Block block : blocks)
            if (block != null_block && --references[at(block)] == 0)
                (keys[at(block)].empty() && unhashed_to_front_ ? unhashed : hashed).push_back(block);
        auto front = queue.begin();
        for (Block block : unhashed) place_[at(block)] = queue.insert(front, block);
        for (Block block : hashed) place_[at(block)] = queue.insert(queue.end(), block);
    }

    void insert(Block block, const Bytes &key, std::int64_t num_tokens) {  // KV-POOL-14
        forget(block);
        keys[at(block)] = key;
        covered[at(block)] = num_tokens;
        cached[key].push_back(block);
    }

    // Drop the block's cached identity, wherever the block is (KV-POOL-10).
    void forget(Block block) {
        Bytes key = keys[at(block)];
        if (key.empty()) return;
        std::vector<Block> &copies = cached[key];
        copies.erase(std::find(copies.begin(), copies.end(), block));
        bool last = copies.empty();
        if (last) cached.erase(key);
        if (last || event_per_copy_) events_.removed(key);  // KV-EVT-4
        keys[at(block)].clear();
        covered[at(block)] = 0;
    }

    bool reset() {  // KV-POOL-11
        if (num_free() != num_blocks() - 1) return false;
        for (Block block = 1; block < num_blocks(); ++block) {
            keys[at(block)].clear();
            covered[at(block)] = 0;
        }
        cached.clear();
        events_.cleared();
        return true;
    }

    static std::size_t at(Block block) { return static_cast<std::size_t>(block); }

  private:
    std::vector<std::list<Block>::iterator> place_;
    Events &events_;
    bool unhashed_to_front_, event_per_copy_;
};
