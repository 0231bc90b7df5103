// What a call may be refused with, and the checks of single values.

#pragma once

#include <cstdint>
#include <string>

#include "json.hpp"

// An error answer. Thrown before anything is changed (KV-ERR-2).
struct Refusal {
    std::string error_class, message;
    Object fields;
};

const char *const server_name = "cpp-example";

std::string shown(const Value &value) {
    std::string text;
    write_json(text, value);
    return text.size() > 60 ? text.substr(0, 60) + "..." : text;
}

Refusal invalid(const std::string &field, const Value &value, const std::string &allowed,
                const char *error_class = "InvalidArgumentError", Object more = {}) {
    Object fields = {{"field", field}, {"value", value}, {"allowed", allowed}};
    fields.insert(fields.end(), more.begin(), more.end());
    return {error_class, field + " = " + shown(value) + ": must be " + allowed, fields};
}

Refusal bad_config(const std::string &field, const Value &value, const std::string &allowed) {
    return invalid(field, value, allowed, "ConfigError");
}

Refusal unsupported(const std::string &what) {
    return {"UnsupportedError", std::string(server_name) + " does not support " + what,
            {{"capability", what}, {"implementation", server_name}}};
}

Refusal protocol_error(const std::string &reason, const std::string &message) {
    return {"ProtocolError", message, {{"reason", reason}}};
}

std::int64_t whole_number(const std::string &field, const Value &value) {
    const std::int64_t *number = value.integer();
    if (!number || *number < 0) throw invalid(field, value, "an int of at least 0");
    return *number;
}

std::int64_t count(const std::string &field, const Value &value) {  // KV-ERR-6
    std::int64_t number = whole_number(field, value);
    if (number >= std::int64_t{1} << 53) throw invalid(field, value, "less than 2^53");
    return number;
}

bool flag(const std::string &field, const Value &value) {
    if (!value.truth()) throw invalid(field, value, "true or false");
    return *value.truth();
}

const Value &member(const Value &object, const std::string &name) {
    if (const Value *found = object.find(name)) return *found;
    throw protocol_error("bad_message", "missing: " + name);
}

const std::string &text_member(const Value &object, const std::string &name) {
    if (const std::string *found = member(object, name).text()) return *found;
    throw protocol_error("bad_message", name + " is not a text");
}

std::int64_t int_member(const Value &object, const std::string &name) {
    if (const std::int64_t *found = member(object, name).integer()) return *found;
    throw protocol_error("bad_message", name + " is not an int");
}

double real_member(const Value &object, const std::string &name) {
    const Value &found = member(object, name);
    if (const double *real = std::get_if<double>(&found.data)) return *real;
    return static_cast<double>(int_member(object, name));
}

const Array &list_member(const Value &object, const std::string &name) {
    if (const Array *found = member(object, name).array()) return *found;
    throw protocol_error("bad_message", name + " is not a list");
}

const Value *optional_member(const Value &object, const std::string &name) {
    const Value *found = object.find(name);
    return found && !found->is_null() ? found : nullptr;
}
