// The manager: admission, hits, allocation and release of whole requests (spec/rules/manager.md).

#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lookup.hpp"

struct Stats {
    bool reset = false;
    std::int64_t requests = 0, queries = 0, hits = 0;
    std::int64_t preempted_requests = 0, preempted_queries = 0, preempted_hits = 0;
};

class Manager {
  public:
    explicit Manager(const Config &config)
        : config(config), events{config.events, config.int_event_hashes, {}},
          pool(config.num_blocks, events, config.unhashed_to_front, config.event_per_copy),
          groups(make_groups(this->config, pool, events)), coordinator(this->config, groups) {}
    Manager(const Manager &) = delete;

    const Config config;
    Events events;
    Pool pool;
    std::deque<Group> groups;
    const Coordinator coordinator;
    std::multiset<Block> popped;
    Stats stats;

    // The request, if its hashes mean something here.
    const Request &own(const Request &request) const {
        bool fits = request.hash_size == config.hash_size && request.none_hash == config.none_hash &&
                    request.tagged == config.tagged;
        if (config.caching && !fits)
            throw invalid("request", request.id, "made for a manager with the same hashes");
        return request;
    }

    Hit longest_hit(const Request &request) {  // KV-MGR-1, KV-MGR-2
        check_scheduling(request);
        if (!config.caching || request.skips_reading) return coordinator.nothing();
        Hit hit = coordinator.longest_hit(request, request.num_tokens() - 1);
        if (config.log_stats) count_lookup(request, hit.length);
        return hit;
    }

    std::vector<Blocks> hit_per_group(const Request &request, std::int64_t most) const {
        if (!config.is_hybrid()) throw unsupported("per-group look-ups without two cached groups");
        return coordinator.hit_per_group(request, std::min(most, request.num_tokens()));
    }

    // The arguments of one allocation, checked for their types.
    struct Demand {
        std::int64_t num_new, num_hit, num_lookahead, num_external, reserved;
        bool delay_caching, whole_must_fit, has_others;
        std::vector<Blocks> hits;

        bool has_hits() const {
            return std::any_of(hits.begin(), hits.end(), [](const Blocks &list) { return !list.empty(); });
        }
    };

    std::optional<std::vector<Blocks>> allocate(const Request &request, const Demand &demand) {
        std::int64_t computed = check_allocation(request, demand);
        std::int64_t external = demand.num_external, local = computed + demand.num_hit;
        std::int64_t total = std::min(local + external, config.max_model_len);  // KV-MGR-4
        Need need{total + demand.num_new + demand.num_lookahead, local + external,
                  skip_at(request, demand, computed)};
        need.slots = std::min(need.slots, config.max_model_len);
        if (external && !is_running(request.id)) need.slots = std::max(need.slots, need.computed);
        std::int64_t watermark = 0;  // KV-MGR-9
        if (demand.has_others && *request.status.text() != "RUNNING")
            watermark = static_cast<std::int64_t>(config.watermark * static_cast<double>(config.num_blocks));
        if (demand.whole_must_fit) {  // KV-MGR-5
            std::int64_t longest = config.max_model_len;
            Need whole{std::min(request.num_tokens(), longest), need.computed,
                       std::min(need.skip_at, longest), true};
            if (num_needed(request.id, demand.hits, whole) + watermark > pool.num_free())
                return std::nullopt;
        }
        remove_skipped(request.id, std::min(total, need.skip_at));  // KV-MGR-6
        if (num_needed(request.id, demand.hits, need) + watermark > pool.num_free() - demand.reserved)
            return std::nullopt;  // KV-MGR-7
        if ((demand.has_hits() || external) && !is_running(request.id)) {  // KV-GRP-8
            for (Group &group : groups) group.take_hits(request.id, demand.hits[group.index], need);
            if (external)
                for (Group &group : groups) group.take_external(request.id, need);
        }
        std::vector<Blocks> taken;
        for (Group &group : groups) taken.push_back(group.extend(request.id, need.slots));
        if (config.caching && !demand.delay_caching) {  // KV-MGR-10: no drafts
            std::int64_t verified = std::min(total + demand.num_new, request.num_tokens());
            cache(request, std::min(verified, config.max_model_len));
        }
        return taken;
    }

    std::int64_t num_needed(const std::string &id, const std::vector<Blocks> &hits, const Need &need) const {
        std::int64_t sum = 0;
        for (const Group &group : groups) sum += group.num_needed(id, hits[group.index], need);
        return sum;
    }

    void cache_computed(const Request &request, const Value &num_computed) {  // KV-MGR-11
        std::int64_t num_tokens = count("num_computed_tokens", num_computed);
        if (!holds_blocks(request.id)) return;
        std::int64_t limit = std::min(request.num_tokens(), num_slots(request.id));
        if (num_tokens > limit)
            throw invalid("num_computed_tokens", num_tokens,
                          "at most " + std::to_string(limit) + ", its tokens and slots");
        if (config.caching) cache(request, num_tokens);
    }

    void free(const std::string &id) {  // KV-MGR-12: last block first
        for (Group &group : groups) {
            Blocks blocks = group.forget(id);
            pool.release({blocks.rbegin(), blocks.rend()});
        }
    }

    Blocks pop(const std::string &id) {  // KV-MGR-13
        Blocks all;
        for (Group &group : groups)
            for (Block block : group.forget(id)) {
                all.push_back(block);
                if (block != null_block) popped.insert(block);
            }
        return all;
    }

    void return_popped(const Blocks &blocks) {
        std::multiset<Block> returned(blocks.begin(), blocks.end());
        for (Block block : blocks) {
            std::size_t released = returned.count(block), held = popped.count(block);
            if (block != null_block && released > held)
                throw invalid("block_ids", block, "released at most as often as popped",
                              "BlockReleaseError",
                              {{"block_id", block}, {"released", released}, {"held", held}});
        }
        for (Block block : blocks)
            if (block != null_block) popped.erase(popped.find(block));
        pool.release(blocks);
    }

    void remove_skipped(const std::string &id, std::int64_t computed) {  // KV-MGR-14
        for (Group &group : groups) group.remove_skipped(id, computed);
    }

    bool reset() {
        if (!pool.reset()) return false;
        stats.reset = true;
        return true;
    }

    Blocks check_blocks(const Value &ids, const std::string &field = "block_ids") const {
        if (!ids.array()) throw invalid(field, ids, "a list");
        Blocks blocks;
        for (const Value &id : *ids.array()) {
            if (!id.integer() || *id.integer() < 0 || *id.integer() >= pool.num_blocks())
                throw Refusal{"UnknownBlockError",
                              "block id " + shown(id) + ": must be an int in 0 ... " +
                                  std::to_string(pool.num_blocks() - 1),
                              {{"block_id", id}, {"num_blocks", pool.num_blocks()}}};
            blocks.push_back(*id.integer());
        }
        return blocks;
    }

  private:
    static std::deque<Group> make_groups(const Config &config, Pool &pool, Events &events) {
        std::deque<Group> groups;
        for (std::size_t i = 0; i < config.groups.size(); ++i) groups.emplace_back(config, i, pool, events);
        return groups;
    }

    bool is_running(const std::string &id) const {  // KV-GRP-9
        return std::any_of(groups.begin(), groups.end(), [&](auto &group) { return group.has_entry(id); });
    }
    bool holds_blocks(const std::string &id) const {
        return std::any_of(groups.begin(), groups.end(),
                           [&](auto &group) { return !group.blocks_of(id).empty(); });
    }
    // In the group that has fewest.
    std::int64_t num_slots(const std::string &id) const {
        std::int64_t fewest = INT64_MAX;
        for (const Group &group : groups) fewest = std::min(fewest, group.num_slots(id));
        return fewest;
    }

    // After a load the last token is computed again: its window must stay (KV-MGR-4).
    static std::int64_t skip_at(const Request &request, const Demand &demand, std::int64_t computed) {
        std::int64_t all = computed + demand.num_hit + demand.num_external;
        return demand.num_external ? std::min(all, request.num_tokens() - 1) : all;
    }

    // Only what an aligned hit can use (KV-COORD-13).
    void cache(const Request &request, std::int64_t num_tokens) {
        std::int64_t aligned = num_tokens - num_tokens % config.alignment;
        for (Group &group : groups) {
            std::int64_t end = aligned;
            if (!config.is_hybrid()) end = num_tokens;
            else if (group.config.eagle && aligned)
                end = std::min(num_tokens, aligned + group.config.block_size);
            group.cache(request, end);
        }
    }

    static void check_scheduling(const Request &request) {
        count("request.num_preemptions", request.num_preemptions);
        const std::string *status = request.status.text();
        if (!status || (*status != "WAITING" && *status != "RUNNING" && *status != "PREEMPTED"))
            throw invalid("request.status", request.status, "WAITING, RUNNING or PREEMPTED");
    }

    // Everything an allocation demands of its caller; the computed tokens.
    std::int64_t check_allocation(const Request &request, const Demand &demand) const {
        if (!demand.num_new && !demand.num_external)  // KV-MGR-3
            throw invalid("num_new_tokens", 0, "at least 1 without external tokens");
        check_scheduling(request);
        std::int64_t computed = count("request.num_computed_tokens", request.num_computed);
        if (computed > num_slots(request.id))  // KV-REQ-3
            throw invalid("request.num_computed_tokens", computed, "at most the slots it holds");
        for (const Group &group : groups)
            if (group.is_behind(request.id, computed))
                throw invalid("request.num_computed_tokens", computed, "not behind the window");
        bool holds = holds_blocks(request.id), running = is_running(request.id);
        if ((holds || running) && (demand.has_hits() || demand.num_hit))  // KV-GRP-9
            throw invalid("num_new_computed_tokens", demand.num_hit, "0, and no hits: it holds blocks");
        if (holds && !running && demand.num_external)
            throw invalid("num_external_computed_tokens", demand.num_external, "0: it holds blocks");
        std::int64_t all = computed + demand.num_hit + demand.num_external;
        if (demand.num_new > config.max_model_len - std::min(all, config.max_model_len))  // KV-MGR-4
            throw invalid("num_new_tokens", demand.num_new, "no more than have slots");
        check_hits(request, demand, skip_at(request, demand, computed));
        return computed;
    }

    // One list at least is as long as they say; others may be shorter beside a load (KV-MGR-8).
    void check_hits(const Request &request, const Demand &demand, std::int64_t skip_at) const {
        std::int64_t longest = 0;
        for (const Group &group : groups) {
            const Blocks &hits = demand.hits[group.index];
            std::int64_t covered = size_of(hits) * group.config.block_size;
            if (covered > demand.num_hit || (covered < demand.num_hit && !demand.num_external))
                throw invalid("new_computed_blocks[" + std::to_string(group.index) + "]", numbers(hits),
                              "blocks for num_new_computed_tokens");
            check_content(group, request, hits, group.num_unread(skip_at));
            longest = std::max(longest, covered);
        }
        if (longest < demand.num_hit)
            throw invalid("num_new_computed_tokens", demand.num_hit, "what the longest list of hits covers");
    }

    // Every hit carries the key of its place; null only where nothing is read.
    void check_content(const Group &group, const Request &request, const Blocks &hits,
                       std::int64_t num_unread) const {
        for (std::int64_t i = 0; i < size_of(hits); ++i) {
            Block block = hits[Pool::at(i)];
            const Bytes *hash = group.hash_of(request, i);
            bool right = hash && (block == null_block
                                      ? i < num_unread
                                      : pool.keys[Pool::at(block)] == make_key(*hash, group.index));
            if (right) continue;
            std::string field = "new_computed_blocks[" + std::to_string(group.index) + "]";
            throw invalid(field + "[" + std::to_string(i) + "]", block,
                          "a block with the hash of that place", "StaleHitError",
                          {{"group", group.index}, {"index", i}, {"block_id", block}});
        }
    }

    void count_lookup(const Request &request, std::int64_t hit) {  // KV-STAT-1, KV-STAT-2
        bool preempted = *request.num_preemptions.integer() > 0;
        (preempted ? stats.preempted_requests : stats.requests) += 1;
        (preempted ? stats.preempted_queries : stats.queries) += request.num_tokens();
        (preempted ? stats.preempted_hits : stats.hits) += hit;
    }
};
