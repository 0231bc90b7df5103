// Messages that make and change something.

#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "call.hpp"

Value hello(const Call &call) {
    const Array &offered = list_member(call.args, "protocol");
    auto is_ours = [](const Value &v) { return v.integer() && *v.integer() == 1; };
    if (std::none_of(offered.begin(), offered.end(), is_ours))
        throw protocol_error("version", "this server speaks protocol 1");
    call.server.greeted = true;
    Array served;
    for (const SpecType &type : spec_types) served.push_back(type.name);
    return Object{{"protocol", 1},
                  {"name", server_name},
                  {"version", "1"},
                  {"spec_types", served},
                  {"hash_functions", Array{"sha256_cbor"}},
                  {"extra_keys", Array{"tagged", "plain"}},
                  {"edition", "0.3"},
                  {"features", Array{"prefix_caching", "multiple_groups", "hits_per_group",
                                     "unequal_hits", "eagle", "context_parallel",
                                     "external_tokens", "delayed_caching",
                                     "deferred_free", "events", "statistics", "cache_salt", "lora",
                                     "multimodal", "prompt_embeddings", "skip_reading", "drafting",
                                     "admission", "eviction_by_id", "reset", "skipped_removal",
                                     "common_prefix", "unhashed_blocks", "need", "new_block_ids",
                                     "stable_lists", "snapshot"}}};
}

Value create_manager(const Call &call) {
    std::int64_t handle = Call::unused(call.server.managers, "manager", call.message);
    Config config = read_config(call.arg("config"));
    call.server.managers.emplace(handle, config);
    return Object{{"scheduler_block_size", config.alignment},
                  {"hash_block_size", config.hash_size},
                  {"none_hash", hex(config.none_hash)}};
}

Value drop(const Call &call) {
    for (const Value &handle : list_member(call.args, "managers"))
        if (handle.integer()) call.server.managers.erase(*handle.integer());
    for (const Value &handle : list_member(call.args, "requests"))
        if (handle.integer()) call.server.requests.erase(*handle.integer());
    for (const Value &handle : list_member(call.args, "windows"))
        if (handle.integer()) call.server.windows.erase(*handle.integer());
    return nullptr;
}

Array hex_list(const std::vector<Bytes> &hashes, std::size_t first = 0) {
    Array result;
    for (std::size_t i = first; i < hashes.size(); ++i) result.push_back(hex(hashes[i]));
    return result;
}

Value make_request(const Call &call) {
    const Config &config = call.manager().config;
    std::int64_t handle = Call::unused(call.server.requests, "request", call.message);
    Request request;
    request.id = text_member(call.args, "request_id");
    request.none_hash = config.none_hash;
    request.hash_size = config.caching ? config.hash_size : 0;
    append_tokens(request.tokens, "prompt_token_ids", call.arg("prompt_token_ids"));
    request.tagged = config.tagged;
    auto not_empty = [](const Value &object, const char *name) {
        const std::string &text = text_member(object, name);
        if (text.empty()) throw invalid(name, text, "a non-empty text or null");
        return text;
    };
    if (optional_member(call.args, "cache_salt")) request.salt = not_empty(call.args, "cache_salt");
    if (const Value *lora = optional_member(call.args, "lora")) {
        request.lora_name = text_member(*lora, "name");
        request.lora_id = int_member(*lora, "id");
        if (optional_member(*lora, "path")) request.lora_path = not_empty(*lora, "path");
    }
    if (optional_member(call.args, "mm_features"))
        for (const Value &item : list_member(call.args, "mm_features"))
            request.items.push_back({text_member(item, "identifier"), int_member(item, "offset"),
                                     int_member(item, "length")});
    if (const Value *embeddings = optional_member(call.args, "prompt_embeddings")) {
        std::optional<Bytes> data = unhex(text_member(*embeddings, "data"));
        if (!data) throw protocol_error("bad_message", "data is not hexadecimal");
        request.embeddings = *data;
        request.bytes_per_embedding = int_member(*embeddings, "bytes_per_token");
    }
    request.skips_reading =
        flag("skip_reading_prefix_cache", call.arg_or("skip_reading_prefix_cache", false));
    request.hash_full_blocks();
    Value result = Object{{"num_tokens", request.num_tokens()}, {"block_hashes", hex_list(request.hashes)}};
    call.server.requests.emplace(handle, std::move(request));
    return result;
}

Value append(const Call &call) {
    call.request();
    Request &request = call.any_request();
    std::size_t before = request.hashes.size();
    append_tokens(request.tokens, "token_ids", call.arg("token_ids"));
    request.hash_full_blocks();
    return Object{{"num_tokens", request.num_tokens()},
                  {"num_block_hashes", request.hashes.size()},
                  {"new_block_hashes", hex_list(request.hashes, before)}};
}

Array shown_lists(const std::vector<Blocks> &lists) {
    Array result;
    for (const Blocks &list : lists) result.push_back(numbers(list));
    return result;
}

Value get_computed_blocks(const Call &call) {
    Hit hit = call.manager().longest_hit(call.request());
    const std::optional<std::int64_t> &uncached = hit.uncached_common_prefix;
    return Object{{"blocks", shown_lists(hit.lists)},
                  {"num_computed_tokens", hit.length},
                  {"num_uncached_common_prefix_tokens", uncached ? Value(*uncached) : Value()}};
}

Value find_longest_cache_hit_per_group(const Call &call) {
    std::int64_t most = count("max_cache_hit_length", call.arg("max_cache_hit_length"));
    std::vector<Blocks> lists = call.manager().hit_per_group(call.request(), most);
    Array lengths;
    for (const Group &group : call.manager().groups)
        lengths.push_back(size_of(lists[group.index]) * group.config.block_size);
    return Object{{"blocks", shown_lists(lists)}, {"hit_lengths", lengths}};
}

Value allocate_slots(const Call &call) {
    const Request &request = call.request();
    Manager::Demand demand{};
    // More than any pool holds is all the same, and sums of these must not overflow.
    auto amount = [&](const char *name) {
        return std::min(count(name, call.arg_or(name, 0)), std::int64_t{1} << 40);
    };
    call.arg("num_new_tokens");  // the one that has no default
    demand.num_new = amount("num_new_tokens");
    demand.num_hit = amount("num_new_computed_tokens");
    demand.num_lookahead = amount("num_lookahead_tokens");
    demand.num_external = amount("num_external_computed_tokens");
    demand.reserved = amount("reserved_blocks");
    amount("num_encoder_tokens");  // only cross attention has any
    demand.delay_caching = flag("delay_cache_blocks", call.arg_or("delay_cache_blocks", false));
    demand.whole_must_fit = flag("full_sequence_must_fit", call.arg_or("full_sequence_must_fit", false));
    demand.has_others = flag("has_scheduled_reqs", call.arg_or("has_scheduled_reqs", true));
    std::size_t num_groups = call.manager().groups.size();
    demand.hits.resize(num_groups);
    Value hits = call.arg_or("new_computed_blocks", nullptr);
    if (!hits.is_null()) {
        if (!hits.array() || hits.array()->size() != num_groups)
            throw invalid("new_computed_blocks", hits, "null, or one list per group");
        for (std::size_t i = 0; i < num_groups; ++i)
            demand.hits[i] = call.manager().check_blocks(
                (*hits.array())[i], "new_computed_blocks[" + std::to_string(i) + "]");
    }
    std::optional<std::vector<Blocks>> taken = call.manager().allocate(request, demand);
    return taken ? Value(shown_lists(*taken)) : Value();
}
