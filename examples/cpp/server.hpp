// Messages to operations, and the answers to them.

#pragma once

#include <exception>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "queries.hpp"

using Operation = std::function<Value(const Call &)>;

const std::map<std::string, Operation> operations = {
    {"hello", hello},
    {"create_manager", create_manager},
    {"drop", drop},
    {"make_request", make_request},
    {"append_tokens", append},
    {"get_computed_blocks", get_computed_blocks},
    {"find_longest_cache_hit_per_group", find_longest_cache_hit_per_group},
    {"allocate_slots", allocate_slots},
    {"cache_blocks",
     [](const Call &call) {
         call.manager().cache_computed(call.request(), call.arg("num_computed_tokens"));
         return Value();
     }},
    {"cache_partial_block", cache_partial_block},
    {"free",
     [](const Call &call) {
         call.manager().free(call.request().id);
         return Value();
     }},
    {"pop_blocks_for_free",
     [](const Call &call) { return numbers(call.manager().pop(call.request().id)); }},
    {"free_blocks",
     [](const Call &call) {
         call.manager().return_popped(call.manager().check_blocks(call.arg("block_ids")));
         return Value();
     }},
    {"remove_skipped_blocks",
     [](const Call &call) {
         std::int64_t computed = count("total_computed_tokens", call.arg("total_computed_tokens"));
         call.manager().remove_skipped(call.request().id, computed);
         return Value();
     }},
    {"evict_blocks",
     [](const Call &call) {
         for (Block block : call.manager().check_blocks(call.arg("block_ids")))
             call.manager().pool.forget(block);
         return Value();
     }},
    {"reset_prefix_cache", [](const Call &call) { return call.manager().reset(); }},
    {"get_num_common_prefix_blocks", get_num_common_prefix_blocks},
    {"get_block_ids", get_block_ids},
    {"get_num_blocks_to_allocate", get_num_blocks_to_allocate},
    {"take_events", [](const Call &call) { return std::exchange(call.manager().events.queue, {}); }},
    {"take_new_block_ids", take_new_block_ids},
    {"make_prefix_cache_stats", make_stats},
    {"take_residency_samples", [](const Call &call) { return call.manager(), Array{}; }},
    {"new_step_starts", [](const Call &call) { return call.manager(), Value(); }},
    {"get_usage", get_usage},
    {"snapshot", snapshot},
    {"make_window", make_window},
    {"observe", observe},
};

Value perform(Server &server, const Value &message) {
    for (const auto &[name, value] : *message.object())
        if (name != "id" && name != "op" && name != "manager" && name != "request" && name != "set" &&
            name != "args")
            throw protocol_error("bad_message", "unknown member " + name);
    int_member(message, "id");
    const std::string &op = text_member(message, "op");
    auto operation = operations.find(op);
    if (operation == operations.end()) throw protocol_error("unknown_op", "unknown op " + op);
    if (!server.greeted && op != "hello") throw protocol_error("bad_message", op + " before hello");
    const Value *args = message.find("args");
    Call call{server, op, message, args ? *args : Value(Object{})};
    if (!call.args.object()) throw protocol_error("bad_message", "args is not an object");
    if (const Value *owned = message.find("set")) {
        if (!owned->object()) throw protocol_error("bad_message", "set is not an object");
        for (const auto &[name, value] : *owned->object()) {
            Request &request = call.any_request();
            if (name == "num_computed_tokens") request.num_computed = value;
            else if (name == "num_preemptions") request.num_preemptions = value;
            else if (name == "status") request.status = value;
            else throw protocol_error("bad_message", "unknown member set." + name);
        }
    }
    return operation->second(call);
}

Value answer(Server &server, const Value &message) {
    const Value *id = message.find("id");
    Object result = {{"id", id && id->integer() ? *id : Value()}};
    try {
        result.emplace_back("result", perform(server, message));
    } catch (const Refusal &refusal) {
        result.emplace_back("error", Object{{"class", refusal.error_class},
                                            {"message", refusal.message},
                                            {"fields", refusal.fields}});
    } catch (const std::exception &error) {  // such as a pool that memory does not hold
        result.emplace_back("error", Object{{"class", "InternalError"},
                                            {"message", error.what()},
                                            {"fields", Object{{"type", "std::exception"}}}});
    }
    return result;
}
