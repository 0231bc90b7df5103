// Messages that ask, or take what was queued.

#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "operations.hpp"

Value get_block_ids(const Call &call) {
    const Manager &manager = call.manager();
    const std::string &id = call.request().id;
    std::vector<Blocks> lists, unhashed;
    for (const Group &group : manager.groups) {
        lists.push_back(group.blocks_of(id));
        Blocks &without = unhashed.emplace_back();
        for (Block block : lists.back())
            if (block != null_block && manager.pool.keys[Pool::at(block)].empty()) without.push_back(block);
    }
    return Object{{"blocks", shown_lists(lists)}, {"unhashed", shown_lists(unhashed)}};
}

Value get_num_blocks_to_allocate(const Call &call) {
    std::int64_t slots = count("num_tokens", call.arg("num_tokens"));
    std::int64_t computed = count("total_computed_tokens", call.arg("total_computed_tokens"));
    count("num_tokens_main_model", call.arg("num_tokens_main_model"));
    count("num_encoder_tokens", call.arg_or("num_encoder_tokens", 0));
    bool capped = flag("apply_admission_cap", call.arg_or("apply_admission_cap", false));
    std::vector<Blocks> no_hits(call.manager().groups.size());
    return call.manager().num_needed(call.request().id, no_hits, {slots, computed, computed, capped});
}

Value get_num_common_prefix_blocks(const Call &call) {
    const Manager &manager = call.manager();
    const std::string &id = call.request().id;
    Array result;
    for (const Group &group : manager.groups)
        result.push_back(manager.config.caching ? group.num_common_prefix_blocks(id) : std::int64_t{0});
    return result;
}

Value take_new_block_ids(const Call &call) {
    Blocks all;
    for (Group &group : call.manager().groups) {
        all.insert(all.end(), group.new_blocks.begin(), group.new_blocks.end());
        group.new_blocks.clear();
    }
    return numbers(all);
}

Value cache_partial_block(const Call &call) {
    const Manager &manager = call.manager();
    call.request();
    const std::int64_t *group = call.arg("group").integer();
    bool known = group && *group >= 0 && *group < static_cast<std::int64_t>(manager.groups.size());
    if (known && manager.config.caching &&
        manager.groups[Pool::at(*group)].config.block_size > manager.config.hash_size)
        throw unsupported("partial_blocks");
    throw invalid("group", call.arg("group"), "a group with blocks larger than a hash's");
}

Value make_stats(const Call &call) {
    if (!call.manager().config.log_stats) return nullptr;
    Stats stats = std::exchange(call.manager().stats, Stats{});
    return Object{{"reset", stats.reset},
                  {"requests", stats.requests},
                  {"queries", stats.queries},
                  {"hits", stats.hits},
                  {"preempted_requests", stats.preempted_requests},
                  {"preempted_queries", stats.preempted_queries},
                  {"preempted_hits", stats.preempted_hits}};
}

Value get_usage(const Call &call) {
    const Pool &pool = call.manager().pool;
    double share = 0.0;  // KV-POOL-12
    if (pool.num_blocks() > 1)
        share = 1.0 - static_cast<double>(pool.num_free()) / static_cast<double>(pool.num_blocks() - 1);
    return Object{{"num_free_blocks", pool.num_free()}, {"usage", share}};
}

Value request_state(const Manager &manager, const std::string &id) {
    Array lists, counts, mamba;
    for (const Group &group : manager.groups) {
        auto found = group.entries.find(id);
        lists.push_back(numbers(group.blocks_of(id)));
        counts.push_back(group.has_entry(id) ? Value(*found->second.num_cached) : Value());
        mamba.push_back(nullptr);
    }
    return Object{{"block_ids", lists}, {"num_cached_blocks", counts}, {"mamba", mamba}};
}

Value snapshot(const Call &call) {
    const Manager &manager = call.manager();
    const Pool &pool = manager.pool;
    Array keys;
    for (const Bytes &key : pool.keys) keys.push_back(key.empty() ? Array{} : Array{hex(key)});
    Object order, requests;
    for (const auto &[key, blocks] : pool.cached) order.emplace_back(hex(key), numbers(blocks));
    std::set<std::string> names;
    Array new_blocks, step_keys;
    for (const Group &group : manager.groups) {
        new_blocks.push_back(numbers(group.new_blocks));
        step_keys.push_back(Array{});  // only Mamba groups have any
        for (const auto &[id, entry] : group.entries)
            if (!entry.blocks.empty() || entry.num_cached) names.insert(id);
    }
    for (const std::string &id : names) requests.emplace_back(id, request_state(manager, id));
    return Object{{"num_blocks", pool.num_blocks()},
                  {"free_queue", numbers(pool.queue)},
                  {"ref_counts", numbers(pool.references)},
                  {"block_keys", keys},
                  {"lookup_order", order},
                  {"covered_tokens", numbers(pool.covered)},
                  {"none_hash", hex(manager.config.none_hash)},
                  {"requests", requests},
                  {"popped_blocks", numbers(manager.popped)},
                  {"new_block_ids", new_blocks},
                  {"step_keys", step_keys},
                  {"reserved_blocks", Array{}}};
}

Value make_window(const Call &call) {
    std::int64_t handle = Call::unused(call.server.windows, "window", call.args);
    const Value &most = call.arg("max_requests");
    if (!most.integer() || *most.integer() < 1) throw invalid("max_requests", most, "an int of at least 1");
    call.server.windows[handle].max_requests = *most.integer();
    return nullptr;
}

Value observe(const Call &call) {
    Window &window = Call::known(call.server.windows, "window", call.args);
    window.observe(call.arg("stats"));
    Window::Update sum = window.sum();
    double rate = sum.queries ? static_cast<double>(sum.hits) / static_cast<double>(sum.queries) : 0.0;
    return Object{{"num_requests", sum.requests}, {"hit_rate", rate}};
}
