// One message, and what its handles stand for.

#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "manager.hpp"

// The hit rate over the most recent requests (KV-STAT-4, KV-STAT-5).
struct Window {
    struct Update {
        std::int64_t requests, queries, hits;
    };
    std::int64_t max_requests;
    std::deque<Update> updates;

    Update sum() const {
        Update total{0, 0, 0};
        for (const Update &update : updates) {
            total.requests += update.requests;
            total.queries += update.queries;
            total.hits += update.hits;
        }
        return total;
    }
    void observe(const Value &stats) {
        if (flag("reset", member(stats, "reset"))) updates.clear();
        Update update{int_member(stats, "requests"), int_member(stats, "queries"),
                      int_member(stats, "hits")};
        if (!update.requests) return;
        updates.push_back(update);
        while (sum().requests > max_requests && updates.size() > 1) updates.pop_front();
    }
};

struct Server {
    bool greeted = false;
    std::map<std::int64_t, Manager> managers;
    std::map<std::int64_t, Request> requests;
    std::map<std::int64_t, Window> windows;
};

// One message: its arguments, and what its handles stand for.
struct Call {
    Server &server;
    std::string op;
    const Value &message;
    Value args;

    Manager &manager() const { return known(server.managers, "manager", message); }
    Request &any_request() const { return known(server.requests, "request", message); }
    const Request &request() const { return manager().own(any_request()); }
    const Value &arg(const std::string &name) const { return member(args, name); }
    Value arg_or(const std::string &name, Value otherwise) const {
        const Value *found = args.find(name);
        return found ? *found : otherwise;
    }

    template <class Kind>
    static Kind &known(std::map<std::int64_t, Kind> &table, const std::string &name, const Value &in) {
        auto found = table.find(int_member(in, name));
        if (found == table.end()) throw protocol_error("unknown_handle", "no " + name + " with this handle");
        return found->second;
    }
    template <class Kind>
    static std::int64_t unused(const std::map<std::int64_t, Kind> &table, const std::string &name,
                               const Value &in) {
        std::int64_t handle = int_member(in, name);
        if (handle < 1 || table.count(handle))
            throw protocol_error("bad_message", name + ": the handle is in use or below 1");
        return handle;
    }
};
