// Requests: tokens and their block hashes (spec/rules/hashing.md).

#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cbor.hpp"
#include "errors.hpp"
#include "sha256.hpp"

struct Item {
    std::string identifier;
    std::int64_t offset, length;
};

// An extra key, as hashes and as events spell it: only hashes may have its kind.
struct ExtraKey {
    Bytes cbor;
    Value shown;
};

struct Request {
    std::string id;
    std::vector<std::int64_t> tokens;
    std::vector<Bytes> hashes;
    Bytes none_hash;
    std::int64_t hash_size = 0;  // 0: caching is off, no hashes
    std::string salt, lora_name, lora_path;
    Value lora_id;
    bool tagged = false;
    std::vector<Item> items;
    Bytes embeddings;
    std::int64_t bytes_per_embedding = 0;
    bool skips_reading = false;
    // The scheduler's; checked by the calls that read them.
    Value num_computed = 0, num_preemptions = 0, status = "WAITING";

    std::int64_t num_tokens() const { return static_cast<std::int64_t>(tokens.size()); }

    // KV-HASH-7: adapter, items, salt, embeddings.
    std::vector<ExtraKey> extra_keys(std::int64_t start, std::int64_t end) const {
        std::vector<ExtraKey> keys;
        // An array of the kind and what follows, or without kinds the plain value alone.
        auto spelled = [&](const char *kind, const Bytes &values, int count, const Bytes &plain) {
            if (!tagged) return plain;
            return cbor_head(4, static_cast<std::uint64_t>(1 + count)) + cbor_text(kind) + values;
        };
        if (!lora_name.empty()) {
            Bytes name = cbor_text(lora_name);
            Bytes path = lora_path.empty() ? Bytes("\xf6") : cbor_text(lora_path);
            keys.push_back({spelled("lora", name + path, 2, name), lora_name});
        }
        for (const Item &item : items)
            if (item.offset < end && item.offset > start - item.length) {  // KV-HASH-8
                Bytes both = cbor_text(item.identifier) + cbor_int(item.offset - start);
                keys.push_back({spelled("mm", both, 2, cbor_head(4, 2) + both),
                                Array{item.identifier, item.offset - start}});
            }
        if (start == 0 && !salt.empty())  // KV-HASH-10
            keys.push_back({spelled("cache_salt", cbor_text(salt), 1, cbor_text(salt)), salt});
        if (bytes_per_embedding) {  // KV-HASH-9
            auto at = [&](std::int64_t token) {
                auto width = static_cast<std::size_t>(bytes_per_embedding);
                auto most = static_cast<std::int64_t>(embeddings.size() / width);
                return static_cast<std::size_t>(std::min(token, most)) * width;
            };
            Bytes digest = sha256(embeddings.substr(at(start), at(end) - at(start)));
            keys.push_back({spelled("prompt_embeds", cbor_bytes(digest), 1, cbor_bytes(digest)),
                            Object{{"hex", hex(digest)}}});
        }
        return keys;
    }

    // Hash the full blocks that have no hash yet (KV-HASH-1, KV-HASH-4).
    void hash_full_blocks() {
        if (!hash_size) return;
        for (auto k = static_cast<std::int64_t>(hashes.size()); k < num_tokens() / hash_size; ++k) {
            Bytes input = cbor_head(4, 3) + cbor_bytes(k ? hashes.back() : none_hash);
            input += cbor_head(4, static_cast<std::uint64_t>(hash_size));
            for (std::int64_t t = k * hash_size; t < (k + 1) * hash_size; ++t)
                input += cbor_int(tokens[static_cast<std::size_t>(t)]);
            std::vector<ExtraKey> extra = extra_keys(k * hash_size, (k + 1) * hash_size);
            if (extra.empty()) input += '\xf6';
            else input += cbor_head(4, extra.size());
            for (const ExtraKey &key : extra) input += key.cbor;
            hashes.push_back(sha256(input));
        }
    }
};

void append_tokens(std::vector<std::int64_t> &tokens, const std::string &field, const Value &list) {
    if (!list.array()) throw invalid(field, list, "a list");
    std::vector<std::int64_t> checked;
    for (const Value &token : *list.array())
        checked.push_back(whole_number(field + "[" + std::to_string(checked.size()) + "]", token));
    tokens.insert(tokens.end(), checked.begin(), checked.end());
}
