// What a message is made of.

#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

using Bytes = std::string;

struct Value;
using Array = std::vector<Value>;
using Object = std::vector<std::pair<std::string, Value>>;

// What JSON can say. Ints beyond 64 bits signed are kept as doubles: no legal value is that large.
struct Value {
    std::variant<std::nullptr_t, bool, std::int64_t, double, std::string, Array, Object> data;

    Value() : data(nullptr) {}
    Value(std::nullptr_t) : data(nullptr) {}
    Value(bool truth) : data(truth) {}
    Value(int number) : data(std::int64_t{number}) {}
    Value(std::int64_t number) : data(number) {}
    Value(std::size_t number) : data(static_cast<std::int64_t>(number)) {}
    Value(double number) : data(number) {}
    Value(const char *text) : data(std::string(text)) {}
    Value(std::string text) : data(std::move(text)) {}
    Value(Array items) : data(std::move(items)) {}
    Value(Object members) : data(std::move(members)) {}

    friend bool operator==(const Value &a, const Value &b) { return a.data == b.data; }

    bool is_null() const { return std::holds_alternative<std::nullptr_t>(data); }
    const bool *truth() const { return std::get_if<bool>(&data); }
    const std::int64_t *integer() const { return std::get_if<std::int64_t>(&data); }
    const std::string *text() const { return std::get_if<std::string>(&data); }
    const Array *array() const { return std::get_if<Array>(&data); }
    const Object *object() const { return std::get_if<Object>(&data); }

    // A member of an object; null when there is none.
    const Value *find(const std::string &name) const {
        if (const Object *members = object())
            for (const auto &[key, value] : *members)
                if (key == name) return &value;
        return nullptr;
    }
};

template <class Items>
Array numbers(const Items &items) {
    Array result;
    for (auto item : items) result.emplace_back(static_cast<std::int64_t>(item));
    return result;
}

std::string hex(const Bytes &bytes) {
    static const char digits[] = "0123456789abcdef";
    std::string result;
    for (unsigned char byte : bytes) {
        result += digits[byte >> 4];
        result += digits[byte & 15];
    }
    return result;
}

std::optional<Bytes> unhex(const std::string &digits) {
    Bytes result;
    if (digits.size() % 2) return std::nullopt;
    for (std::size_t i = 0; i < digits.size(); i += 2) {
        unsigned byte = 0;
        auto [end, error] = std::from_chars(&digits[i], &digits[i] + 2, byte, 16);
        if (error != std::errc() || end != &digits[i] + 2) return std::nullopt;
        result += static_cast<char>(byte);
    }
    return result;
}

Bytes big_endian(std::uint64_t number, int size) {
    Bytes result;
    for (int shift = 8 * (size - 1); shift >= 0; shift -= 8)
        result += static_cast<char>(number >> shift & 0xff);
    return result;
}

std::uint64_t number_of(const Bytes &bytes) {  // the other way
    std::uint64_t number = 0;
    for (unsigned char byte : bytes) number = number << 8 | byte;
    return number;
}

constexpr std::size_t max_message_bytes = 1 << 24;
constexpr int max_depth = 64;

// Bytes that are no message. Nobody knows where the next one begins, so the conversation ends.
struct Malformed {
    std::string what;
};
