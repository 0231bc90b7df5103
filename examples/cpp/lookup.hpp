// The longest hit, in one group and in several at once (spec/rules/full.md, sliding_window.md,
// coordination.md).

#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <vector>

#include "group.hpp"

// Groups with equal specs, looked up together (KV-COORD-4).
struct AttentionGroup {
    std::vector<const Group *> members;

    const GroupConfig &config() const { return members[0]->config; }
    bool is_full() const { return config().window == 0; }
};

// The answer: one list per group, and what was shared but not hit in some (KV-COORD-12).
struct Hit {
    std::vector<Blocks> lists;
    std::int64_t length = 0;
    std::optional<std::int64_t> uncached_common_prefix;
};

// The look-up of one request in one attention group.
class Lookup {
  public:
    Lookup(const AttentionGroup &attention, const Request &request, std::int64_t alignment, bool drop)
        : attention_(attention), request_(request), size_(attention.config().block_size),
          period_(alignment / size_), drop_(drop) {}

    // The longest hit within this many tokens, a list per member.
    std::vector<Blocks> within(std::int64_t length) const {
        std::int64_t most = length / size_;
        if (attention_.is_full()) return lists(0, full_run(most));
        // Window 1 fills itself, yet a hit is a cached block.
        std::int64_t need = std::max(attention_.members[0]->tail(drop_), std::int64_t{1});
        for (std::int64_t end = most; end >= need;) {  // KV-SW-2
            if ((end - drop_) % period_) {
                --end;
                continue;
            }
            std::int64_t first = end;
            while (first > end - need && is_cached(first - 1)) --first;
            if (first == end - need) return lists(first, end - drop_);
            end = first - 1;  // a run does not reach across a gap
        }
        return lists(0, window_prefix(most));
    }

  private:
    bool is_cached(std::int64_t block) const {  // in every member
        auto has = [&](const Group *member) { return member->find(request_, block).has_value(); };
        return std::all_of(attention_.members.begin(), attention_.members.end(), has);
    }

    std::int64_t run_from_start(std::int64_t most) const {
        std::int64_t run = 0;
        while (run < most && is_cached(run)) ++run;
        return run;
    }

    std::int64_t full_run(std::int64_t most) const {  // KV-FULL-2 ... KV-FULL-4
        std::int64_t run = run_from_start(most);
        if (drop_ && run > 0) --run;
        return run - run % period_;
    }

    std::int64_t window_prefix(std::int64_t most) const {  // KV-SW-4, KV-SW-5
        std::int64_t run = run_from_start(most);
        while (run > 0 && (run - drop_) % period_) --run;
        run -= run % period_;
        if (drop_ && run > 0) --run;
        return run - run % period_;
    }

    // Null before the first block (KV-SW-3).
    std::vector<Blocks> lists(std::int64_t first, std::int64_t end) const {
        std::vector<Blocks> result;
        for (const Group *member : attention_.members) {
            Blocks &list = result.emplace_back(Pool::at(first), null_block);
            for (std::int64_t i = first; i < end; ++i) list.push_back(*member->find(request_, i));
        }
        return result;
    }

    const AttentionGroup &attention_;
    const Request &request_;
    std::int64_t size_, period_;
    bool drop_;
};

class Coordinator {
  public:
    Coordinator(const Config &config, const std::deque<Group> &groups) : config_(config) {
        for (bool full : {true, false})  // KV-COORD-4
            for (const Group &group : groups) {
                if ((group.config.window == 0) != full) continue;
                if (group.config.same_as == group.index) attention_groups_.push_back({{&group}});
                else attention_group_of(group.config.same_as).members.push_back(&group);
            }
    }

    Hit nothing() const { return {std::vector<Blocks>(config_.groups.size()), 0, std::nullopt}; }

    // Round after round, until nobody shortens the length (KV-COORD-5).
    Hit longest_hit(const Request &request, std::int64_t most) const {
        if (!config_.is_hybrid()) return hit_of_one(request, most);
        Search search{request, most, most, 0, {}, {}};
        search.lists.resize(attention_groups_.size());
        bool one_round = attention_groups_.size() == 2 && attention_groups_[0].is_full();  // KV-COORD-10
        for (std::int64_t before = -1; search.length != before;) {
            bool is_first = before < 0;
            before = search.length;
            for (std::size_t i = 0; i < attention_groups_.size(); ++i) ask(search, i, is_first);
            if (one_round) break;
        }
        Hit hit = nothing();
        hit.length = search.length;
        hit.uncached_common_prefix = search.longest - search.length;
        for (std::size_t i = 0; i < attention_groups_.size(); ++i) place(hit.lists, i, search.lists[i]);
        for (std::size_t i = 0; i < hit.lists.size(); ++i)  // KV-COORD-11: only full ones are longer
            hit.lists[i].resize(Pool::at(search.length / config_.groups[i].block_size));
        return hit;
    }

    // Each group's own longest hit (KV-COORD-9).
    std::vector<Blocks> hit_per_group(const Request &request, std::int64_t most) const {
        std::vector<Blocks> lists(config_.groups.size());
        for (std::size_t i = 0; i < attention_groups_.size(); ++i) {
            const AttentionGroup &attention = attention_groups_[i];
            Lookup lookup(attention, request, config_.alignment, attention.config().eagle);
            place(lists, i, lookup.within(most));
        }
        return lists;
    }

  private:
    struct Search {
        const Request &request;
        std::int64_t most, length, longest;
        std::vector<std::vector<Blocks>> lists;  // per attention group, its last answer
        std::set<std::size_t> verified;          // whose drop holds for this length
    };

    AttentionGroup &attention_group_of(std::size_t first_member) {
        return *std::find_if(attention_groups_.begin(), attention_groups_.end(), [&](const auto &group) {
            return group.members[0]->index == first_member;
        });
    }

    Hit hit_of_one(const Request &request, std::int64_t most) const {  // KV-COORD-2
        Hit hit{hit_per_group(request, most), 0, std::nullopt};
        hit.length = size_of(hit.lists[0]) * config_.groups[0].block_size;
        return hit;
    }

    // One attention group's answer within the current length.
    void ask(Search &search, std::size_t number, bool is_first) const {
        const AttentionGroup &attention = attention_groups_[number];
        std::int64_t size = attention.config().block_size;
        if (attention.is_full() && !is_first) {  // KV-COORD-6: a cut, no look-up
            search.length -= search.length % size;
            return;
        }
        bool drop = attention.config().eagle && !search.verified.count(number);
        // The block to drop may lie beyond the current length (KV-COORD-7).
        std::int64_t within = drop ? std::min(search.length + size, search.most) : search.length;
        Lookup lookup(attention, search.request, config_.alignment, drop);
        search.lists[number] = lookup.within(within);
        std::int64_t answer = size_of(search.lists[number][0]) * size;
        if (drop) search.verified.insert(number);
        else if (answer < search.length) search.verified.clear();  // KV-COORD-8
        search.length = answer;
        search.longest = std::max(search.longest, answer);
    }

    void place(std::vector<Blocks> &lists, std::size_t number, const std::vector<Blocks> &found) const {
        const auto &members = attention_groups_[number].members;
        for (std::size_t i = 0; i < members.size(); ++i) lists[members[i]->index] = found[i];
    }

    const Config &config_;
    std::vector<AttentionGroup> attention_groups_;
};
