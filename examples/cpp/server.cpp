// A KV-cache manager for full-attention and sliding-window groups, behind the protocol of
// spec/protocol.md: the table of operations, and the conversation.

#include <algorithm>
#include <exception>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
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

class Stream {
  public:
    // The client's first byte decides how both sides write.
    Stream() : json_(std::cin.peek() == '{') {}

    std::optional<Value> read() {
        std::optional<Bytes> body = json_ ? read_line() : read_frame();
        if (!body) return std::nullopt;
        Value message = json_ ? JsonReader(*body).document() : CborReader(*body).document();
        if (!message.object()) throw Malformed{"a message is an object"};
        return message;
    }

    void write(const Value &message) {
        Bytes body;
        json_ ? write_json(body, message) : write_cbor(body, message);
        if (body.size() > max_message_bytes)
            return write(Object{{"id", *message.find("id")},
                                {"error", Object{{"class", "ProtocolError"},
                                                 {"message", "the answer is too long"},
                                                 {"fields", Object{{"reason", "too_large"}}}}}});
        std::cout << (json_ ? body + '\n' : big_endian(body.size(), 4) + body) << std::flush;
    }

  private:
    std::optional<Bytes> read_line() {
        Bytes line;
        for (int next = std::cin.get(); next != '\n'; next = std::cin.get()) {
            if (next == EOF && line.empty()) return std::nullopt;
            if (next == EOF) throw Malformed{"the stream ends inside a line"};
            line += static_cast<char>(next);
            if (line.size() > max_message_bytes) throw Malformed{"the line is too long"};
        }
        return line;
    }

    std::optional<Bytes> read_frame() {
        unsigned char head[4];
        std::cin.read(reinterpret_cast<char *>(head), 4);
        if (std::cin.gcount() == 0) return std::nullopt;
        if (std::cin.gcount() < 4) throw Malformed{"the stream ends inside a length"};
        std::size_t size = std::size_t{head[0]} << 24 | std::size_t{head[1]} << 16 |
                           std::size_t{head[2]} << 8 | head[3];
        if (size > max_message_bytes) throw Malformed{"the frame is too long"};
        Bytes body(size, '\0');
        std::cin.read(body.data(), static_cast<std::streamsize>(size));
        if (static_cast<std::size_t>(std::cin.gcount()) < size)
            throw Malformed{"the stream ends inside a message"};
        return body;
    }

    bool json_;
};

int main() {
    std::ios::sync_with_stdio(false);
    Server server;
    Stream stream;
    try {
        while (std::optional<Value> message = stream.read()) stream.write(answer(server, *message));
    } catch (const Malformed &malformed) {
        stream.write(Object{{"id", nullptr},
                            {"error", Object{{"class", "ProtocolError"},
                                             {"message", malformed.what},
                                             {"fields", Object{{"reason", "bad_message"}}}}}});
        std::cerr << server_name << ": " << malformed.what << '\n';
        return 2;
    }
    return 0;
}
