// From a configuration, as a message brings it, to groups and switches (spec/rules/config.md).

#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "cbor.hpp"
#include "errors.hpp"
#include "sha256.hpp"

// A type of spec that is served.
struct SpecType {
    const char *name, *kind;
    bool has_window;
};

constexpr SpecType spec_types[] = {
    {"FullAttentionSpec", "full_attention", false},
    {"MLAAttentionSpec", "mla_attention", false},
    {"SlidingWindowSpec", "sliding_window", true},
    {"SlidingWindowMLASpec", "sliding_window_mla", true},
};

struct GroupConfig {
    const SpecType *type;
    std::int64_t block_size;  // of all ranks (KV-FULL-5)
    std::int64_t window;      // 0: full attention
    std::int64_t extra;       // tokens before the window that keep their blocks (KV-SW-9)
    bool eagle;               // hits give up their last block (KV-CFG-8)
    std::size_t same_as;      // the first group with an equal spec
};

struct Config {
    std::vector<GroupConfig> groups;
    std::int64_t num_blocks, max_model_len, max_batched;
    std::int64_t alignment, hash_size;  // scheduler and hash block size
    bool caching, log_stats, events, int_event_hashes, unhashed_to_front, event_per_copy;
    bool tagged;  // extra keys are hashed with their kinds (KV-POL-10)
    double watermark;
    Bytes none_hash;

    bool is_hybrid() const { return caching && groups.size() > 1; }
};

constexpr std::int64_t max_block_size = std::int64_t{1} << 40;
constexpr std::int64_t max_count = (std::int64_t{1} << 53) - 1;  // KV-ERR-6

Bytes first_parent(const Value *seed) {  // KV-HASH-3
    if (seed && seed->text()) return sha256(cbor_text(*seed->text()));
    std::random_device source;
    Bytes random;
    while (random.size() < 32) random += big_endian(source(), 4);
    return random;
}

// Every member counts, in whatever order they come (KV-CFG-1).
bool same_spec(const Value &a, const Value &b) {
    auto holds = [](const Value &one, const Value &other) {
        for (const auto &[name, value] : *one.object()) {
            const Value *found = other.find(name);
            if (!found || !(*found == value)) return false;
        }
        return true;
    };
    return holds(a, b) && holds(b, a);
}

std::int64_t positive(const Value &object, const std::string &name, std::int64_t most) {
    std::int64_t number = int_member(object, name);
    if (number >= 1 && number <= most) return number;
    throw bad_config(name, number, "in 1 ... " + std::to_string(most));
}

GroupConfig read_group(const Value &spec, const std::string &type_name) {
    auto type = std::find_if(std::begin(spec_types), std::end(spec_types),
                             [&](const SpecType &served) { return type_name == served.name; });
    if (type == std::end(spec_types)) throw unsupported(type_name);
    std::int64_t block_size = positive(spec, "block_size", max_block_size);
    std::int64_t window = type->has_window ? positive(spec, "sliding_window", max_count) : 0;
    const Value *more = type->has_window ? optional_member(spec, "extra_retained_tokens") : nullptr;
    std::int64_t extra = more ? int_member(spec, "extra_retained_tokens") : 0;
    if (extra < 0 || extra > max_count)
        throw bad_config("extra_retained_tokens", extra, "in 0 ... " + std::to_string(max_count));
    return {type, block_size, window, extra, false, 0};
}

void read_groups(Config &config, const Value &value) {
    const Array &groups = list_member(value, "groups");
    std::vector<bool> flagged;
    for (const Value &group : groups) {
        const Value &spec = member(group, "spec");
        config.groups.push_back(read_group(spec, text_member(spec, "type")));
        flagged.push_back(flag("is_eagle_group", member(group, "is_eagle_group")));
        std::size_t first = 0;
        while (!same_spec(member(groups[first], "spec"), spec)) ++first;
        config.groups.back().same_as = first;
    }
    bool any = std::count(flagged.begin(), flagged.end(), true) > 0;
    bool all = !any && flag("use_eagle", member(value, "use_eagle"));
    for (GroupConfig &group : config.groups) {  // KV-CFG-8
        group.eagle = all;
        for (std::size_t i = 0; i < groups.size(); ++i)
            group.eagle |= flagged[i] && config.groups[i].same_as == group.same_as;
    }
}

void read_parallelism(Config &config, const Value &value) {  // KV-CFG-6
    bool fits = config.groups.size() == 1 && !config.groups[0].window;
    for (const char *name : {"dcp_world_size", "pcp_world_size"}) {
        std::int64_t ranks = int_member(value, name);
        if (ranks != 1 && !fits) throw bad_config(name, ranks, "1, but for one full-attention group");
        if (ranks < 1 || (fits && ranks > max_block_size / config.groups[0].block_size))
            throw bad_config(name, ranks, "at least 1, and a block of at most 2^40 tokens");
        if (fits) config.groups[0].block_size *= ranks;
    }
}

void derive_block_sizes(Config &config, const Value &value) {  // KV-CFG-4, KV-CFG-5
    const Value *scheduler = optional_member(value, "scheduler_block_size");
    const Value *hashed = optional_member(value, "hash_block_size");
    if (config.groups.empty()) {
        const char *given = scheduler ? "scheduler_block_size" : "hash_block_size";
        config.alignment = scheduler || hashed ? positive(value, given, max_count) : 1;
        config.hash_size = config.alignment;
        return;
    }
    config.alignment = 1, config.hash_size = 0;
    for (const GroupConfig &group : config.groups) {
        std::int64_t step = group.block_size / std::gcd(config.alignment, group.block_size);
        if (step > max_block_size / config.alignment)
            throw bad_config("groups", group.block_size, "block sizes with an LCM of at most 2^40");
        config.alignment *= step;
        config.hash_size = std::gcd(config.hash_size, group.block_size);
    }
    if (scheduler && (!scheduler->integer() || *scheduler->integer() != config.alignment))
        throw bad_config("scheduler_block_size", *scheduler, std::to_string(config.alignment));
    if (!config.caching) config.hash_size = config.alignment;
    if (!config.is_hybrid() || !hashed) return;
    if (!hashed->integer() || *hashed->integer() < 1 || config.hash_size % *hashed->integer())
        throw bad_config("hash_block_size", *hashed, "a divisor of every block size");
    config.hash_size = *hashed->integer();
}

void check_combination(const Config &config, const Value &value) {
    if (text_member(value, "hash_function") != "sha256_cbor")
        throw unsupported("hash function " + text_member(value, "hash_function"));
    if (value.find("residency_sample_rate") && real_member(value, "residency_sample_rate") > 0)
        throw unsupported("residency samples");
    bool has_window = std::any_of(config.groups.begin(), config.groups.end(),
                                  [](const GroupConfig &group) { return group.window > 0; });
    if (const Value *interval = optional_member(value, "prefix_cache_retention_interval")) {
        if (has_window) throw unsupported("retention");
        throw bad_config("prefix_cache_retention_interval", *interval, "null without a window");
    }
    if (!config.caching) return;
    bool all_equal = std::all_of(config.groups.begin(), config.groups.end(),
                                 [](const GroupConfig &group) { return group.same_as == 0; });
    if (config.groups.size() != 1 && all_equal)  // KV-CFG-3, KV-COORD-3
        throw bad_config("groups", config.groups.size(), "one, or two different ones, with caching");
}

Config read_config(const Value &value) {
    Config config{};
    read_groups(config, value);
    config.num_blocks = positive(value, "num_blocks", max_count);
    config.max_model_len = positive(value, "max_model_len", max_count);
    config.max_batched = config.max_model_len;
    if (optional_member(value, "max_num_batched_tokens"))
        config.max_batched = positive(value, "max_num_batched_tokens", max_count);
    config.caching = flag("enable_caching", member(value, "enable_caching"));
    config.log_stats = flag("log_stats", member(value, "log_stats"));
    config.events = flag("enable_kv_cache_events", member(value, "enable_kv_cache_events"));
    config.int_event_hashes =
        flag("kv_events_use_int_block_hashes", member(value, "kv_events_use_int_block_hashes"));
    config.watermark = real_member(value, "watermark");
    const Value *policy = value.find("policy");
    auto chosen = [&](const char *name, const char *usual) {
        const Value *choice = policy ? policy->find(name) : nullptr;
        return !choice || (choice->text() && *choice->text() == usual);
    };
    config.unhashed_to_front = chosen("unhashed_freed_to", "front");
    config.event_per_copy = chosen("removed_event_per", "copy");
    config.tagged = policy && policy->find("extra_keys") && chosen("extra_keys", "tagged");
    check_combination(config, value);
    read_parallelism(config, value);
    derive_block_sizes(config, value);
    config.none_hash = first_parent(optional_member(value, "python_hash_seed"));
    return config;
}
