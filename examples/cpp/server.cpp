// A KV-cache manager for one full-attention group, behind the protocol of spec/protocol.md.
//
// One file, C++17, the standard library only. It is written to be read from top to bottom:
//   1. values         what a message is made of
//   2. JSON and CBOR  both framings
//   3. SHA-256        the hash function of block hashes
//   4. errors         what a call may be refused with
//   5. requests       tokens and their block hashes            (spec/rules/hashing.md)
//   6. pool           free queue, references, cached keys      (spec/rules/pool.md)
//   7. manager        hits, allocation, release                (spec/rules/manager.md, full.md)
//   8. operations     messages to calls
//   9. main           the conversation

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <iostream>
#include <iterator>
#include <list>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

using Bytes = std::string;

// --- 1. Values ---------------------------------------------------------------------------------

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

// --- 2. JSON and CBOR --------------------------------------------------------------------------

constexpr std::size_t max_message_bytes = 1 << 24;
constexpr int max_depth = 64;

// Bytes that are no message. Nobody knows where the next one begins, so the conversation ends.
struct Malformed {
    std::string what;
};

class JsonReader {
  public:
    explicit JsonReader(const std::string &text) : text_(text) {}

    Value document() {
        Value value = read(0);
        space();
        if (at_ != text_.size()) fail("something behind the value");
        return value;
    }

  private:
    [[noreturn]] void fail(const std::string &what) const {
        throw Malformed{"not JSON at byte " + std::to_string(at_) + ": " + what};
    }

    char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

    void space() {
        while (at_ < text_.size() && std::strchr(" \t\r\n", text_[at_])) ++at_;
    }

    bool accept(char wanted) {
        space();
        if (peek() != wanted) return false;
        ++at_;
        return true;
    }

    void expect(char wanted) {
        if (!accept(wanted)) fail(std::string("expected ") + wanted);
    }

    Value read(int depth) {
        if (depth > max_depth) fail("nested too deeply");
        space();
        switch (peek()) {
        case '{': return members(depth);
        case '[': return items(depth);
        case '"': return string();
        case 't': return word("true", true);
        case 'f': return word("false", false);
        case 'n': return word("null", nullptr);
        default: return number();
        }
    }

    Value word(const char *wanted, Value value) {
        if (text_.compare(at_, std::strlen(wanted), wanted)) fail("unknown word");
        at_ += std::strlen(wanted);
        return value;
    }

    Value members(int depth) {
        Object result;
        expect('{');
        if (accept('}')) return result;
        do {
            space();
            std::string name = string();
            expect(':');
            result.emplace_back(std::move(name), read(depth + 1));
        } while (accept(','));
        expect('}');
        return result;
    }

    Value items(int depth) {
        Array result;
        expect('[');
        if (accept(']')) return result;
        do result.push_back(read(depth + 1));
        while (accept(','));
        expect(']');
        return result;
    }

    Value number() {
        std::size_t end = text_.find_first_not_of("+-.0123456789eE", at_);
        const char *first = text_.data() + at_;
        const char *last = text_.data() + (end == std::string::npos ? text_.size() : end);
        std::int64_t whole = 0;
        double real = 0;
        auto [int_end, int_error] = std::from_chars(first, last, whole);
        auto [real_end, real_error] = std::from_chars(first, last, real);
        if (first == last || real_end != last || real_error == std::errc::invalid_argument)
            fail("no value");
        at_ = static_cast<std::size_t>(last - text_.data());
        if (int_end == last && int_error == std::errc()) return whole;
        return real;
    }

    unsigned four_digits() {
        unsigned code = 0;
        if (at_ + 4 > text_.size()) fail("cut-off escape");
        auto [end, error] = std::from_chars(&text_[at_], &text_[at_] + 4, code, 16);
        if (error != std::errc() || end != &text_[at_] + 4) fail("bad escape");
        at_ += 4;
        return code;
    }

    static void append_utf8(std::string &out, unsigned code) {
        auto tail = [&](int shift) { out += static_cast<char>(0x80 | (code >> shift & 0x3f)); };
        if (code < 0x80) {
            out += static_cast<char>(code);
        } else if (code < 0x800) {
            out += static_cast<char>(0xc0 | code >> 6), tail(0);
        } else if (code < 0x10000) {
            out += static_cast<char>(0xe0 | code >> 12), tail(6), tail(0);
        } else {
            out += static_cast<char>(0xf0 | code >> 18), tail(12), tail(6), tail(0);
        }
    }

    void escape(std::string &out) {
        static const std::string names = "\"\\/bfnrt", meanings = "\"\\/\b\f\n\r\t";
        char name = peek();
        ++at_;
        if (name != 'u') {
            std::size_t which = name ? names.find(name) : std::string::npos;
            if (which == std::string::npos) fail("unknown escape");
            out += meanings[which];
            return;
        }
        unsigned code = four_digits();
        if (code >= 0xd800 && code < 0xdc00) {  // the first half of a pair
            if (text_.compare(at_, 2, "\\u")) fail("half a character");
            at_ += 2;
            unsigned low = four_digits();
            if (low < 0xdc00 || low > 0xdfff) fail("half a character");
            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        } else if (code >= 0xdc00 && code < 0xe000) {
            fail("half a character");
        }
        append_utf8(out, code);
    }

    std::string string() {
        std::string result;
        if (peek() != '"') fail("expected a text");
        ++at_;
        while (peek() != '"') {
            if (at_ >= text_.size()) fail("cut-off text");
            char next = text_[at_++];
            if (next == '\\') escape(result);
            else result += next;
        }
        ++at_;
        return result;
    }

    const std::string &text_;
    std::size_t at_ = 0;
};

std::string json_text(const std::string &text) {
    std::string result = "\"";
    for (unsigned char next : text) {
        char escaped[8];
        if (next == '"' || next == '\\') {
            result += '\\';
            result += static_cast<char>(next);
        } else if (next < 0x20) {
            std::snprintf(escaped, sizeof escaped, "\\u%04x", next);
            result += escaped;
        } else {
            result += static_cast<char>(next);
        }
    }
    return result + '"';
}

std::string json_double(double number) {
    char digits[32];
    auto [end, error] = std::to_chars(digits, digits + sizeof digits, number);
    std::string result(digits, end);
    // A double without a point would be read as an int.
    return result.find_first_of(".e") == std::string::npos ? result + ".0" : result;
}

void write_json(std::string &out, const Value &value) {
    if (value.is_null()) out += "null";
    else if (auto truth = value.truth()) out += *truth ? "true" : "false";
    else if (auto whole = value.integer()) out += std::to_string(*whole);
    else if (auto real = std::get_if<double>(&value.data)) out += json_double(*real);
    else if (auto text = value.text()) out += json_text(*text);
    else if (auto items = value.array()) {
        out += '[';
        for (std::size_t i = 0; i < items->size(); ++i) {
            if (i) out += ',';
            write_json(out, (*items)[i]);
        }
        out += ']';
    } else if (auto members = value.object()) {
        out += '{';
        for (std::size_t i = 0; i < members->size(); ++i) {
            if (i) out += ',';
            out += json_text((*members)[i].first) + ':';
            write_json(out, (*members)[i].second);
        }
        out += '}';
    }
}

class CborReader {
  public:
    explicit CborReader(const Bytes &bytes) : bytes_(bytes) {}

    Value document() {
        Value value = read(0);
        if (at_ != bytes_.size()) fail("something behind the value");
        return value;
    }

  private:
    [[noreturn]] void fail(const std::string &what) const {
        throw Malformed{"not CBOR at byte " + std::to_string(at_) + ": " + what};
    }

    Bytes take(std::uint64_t size) {
        if (size > bytes_.size() - at_) fail("cut off");
        at_ += size;
        return bytes_.substr(at_ - size, size);
    }

    std::uint64_t take_number(int size) {
        std::uint64_t number = 0;
        for (unsigned char byte : take(static_cast<std::uint64_t>(size))) number = number << 8 | byte;
        return number;
    }

    Value read(int depth) {
        if (depth > max_depth) fail("nested too deeply");
        unsigned head = static_cast<unsigned char>(take(1)[0]);
        unsigned kind = head >> 5, info = head & 31;
        if (info > 27) fail("indefinite length");
        std::uint64_t number = info < 24 ? info : take_number(1 << (info - 24));
        switch (kind) {
        case 0:
            if (number > INT64_MAX) return static_cast<double>(number);
            return static_cast<std::int64_t>(number);
        case 1:
            if (number > INT64_MAX) return -1.0 - static_cast<double>(number);
            return -1 - static_cast<std::int64_t>(number);
        case 3: return take(number);
        case 4: return items(number, depth);
        case 5: return members(number, depth);
        case 7: return simple(info, number);
        default: fail("a byte string or a tag");
        }
    }

    Value items(std::uint64_t size, int depth) {
        Array result;
        for (std::uint64_t i = 0; i < size; ++i) result.push_back(read(depth + 1));
        return result;
    }

    Value members(std::uint64_t size, int depth) {
        Object result;
        for (std::uint64_t i = 0; i < size; ++i) {
            Value name = read(depth + 1);
            if (!name.text()) fail("a member's name is no text");
            result.emplace_back(*name.text(), read(depth + 1));
        }
        return result;
    }

    Value simple(unsigned info, std::uint64_t number) {
        if (info == 20 || info == 21) return info == 21;
        if (info == 22) return nullptr;
        if (info == 27) {
            double real;
            std::memcpy(&real, &number, sizeof real);
            return real;
        }
        if (info == 26) {
            auto bits = static_cast<std::uint32_t>(number);
            float real;
            std::memcpy(&real, &bits, sizeof real);
            return static_cast<double>(real);
        }
        if (info == 25) {  // 1 sign, 5 exponent, 10 fraction bits
            int exponent = static_cast<int>(number >> 10 & 31), fraction = number & 1023;
            double size = exponent == 0    ? std::ldexp(fraction, -24)
                          : exponent == 31 ? INFINITY
                                           : std::ldexp(1024 + fraction, exponent - 25);
            return number >> 15 ? -size : size;
        }
        fail("an unknown simple value");
    }

    const Bytes &bytes_;
    std::size_t at_ = 0;
};

// Deterministic CBOR (KV-HASH-2): every length and int in its shortest form.
Bytes cbor_head(unsigned kind, std::uint64_t number) {
    auto head = [&](unsigned info) { return Bytes(1, static_cast<char>(kind << 5 | info)); };
    if (number < 24) return head(static_cast<unsigned>(number));
    if (number <= 0xff) return head(24) + big_endian(number, 1);
    if (number <= 0xffff) return head(25) + big_endian(number, 2);
    if (number <= 0xffffffff) return head(26) + big_endian(number, 4);
    return head(27) + big_endian(number, 8);
}

Bytes cbor_int(std::int64_t number) {
    return number >= 0 ? cbor_head(0, static_cast<std::uint64_t>(number))
                       : cbor_head(1, static_cast<std::uint64_t>(-1 - number));
}
Bytes cbor_bytes(const Bytes &bytes) { return cbor_head(2, bytes.size()) + bytes; }
Bytes cbor_text(const std::string &text) { return cbor_head(3, text.size()) + text; }

void write_cbor(Bytes &out, const Value &value) {
    if (value.is_null()) out += '\xf6';
    else if (auto truth = value.truth()) out += *truth ? '\xf5' : '\xf4';
    else if (auto whole = value.integer()) out += cbor_int(*whole);
    else if (auto real = std::get_if<double>(&value.data)) {
        std::uint64_t bits;
        std::memcpy(&bits, real, sizeof bits);
        out += '\xfb' + big_endian(bits, 8);
    } else if (auto text = value.text()) {
        out += cbor_text(*text);
    } else if (auto items = value.array()) {
        out += cbor_head(4, items->size());
        for (const Value &item : *items) write_cbor(out, item);
    } else if (auto members = value.object()) {
        out += cbor_head(5, members->size());
        for (const auto &[name, item] : *members) {
            out += cbor_text(name);
            write_cbor(out, item);
        }
    }
}

// --- 3. SHA-256 (FIPS 180-4) -------------------------------------------------------------------

Bytes sha256(Bytes message) {
    static const std::array<std::uint32_t, 64> k = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    std::array<std::uint32_t, 8> state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                          0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    auto rotate = [](std::uint32_t word, int bits) { return word >> bits | word << (32 - bits); };
    std::uint64_t bits = std::uint64_t{message.size()} * 8;
    message += '\x80';
    message.append((120 - message.size() % 64) % 64, '\0');
    message += big_endian(bits, 8);
    for (std::size_t start = 0; start < message.size(); start += 64) {
        std::array<std::uint32_t, 64> w;
        for (std::size_t i = 0; i < 16; ++i) {
            w[i] = 0;
            for (std::size_t j = 0; j < 4; ++j)
                w[i] = w[i] << 8 | static_cast<unsigned char>(message[start + 4 * i + j]);
        }
        for (std::size_t i = 16; i < 64; ++i) {
            std::uint32_t a = w[i - 15], b = w[i - 2];
            w[i] = w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + w[i - 7] +
                   (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
        }
        auto [a, b, c, d, e, f, g, h] = state;
        for (std::size_t i = 0; i < 64; ++i) {
            std::uint32_t choice = (e & f) ^ (~e & g), majority = (a & b) ^ (a & c) ^ (b & c);
            std::uint32_t one = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + choice + k[i] + w[i];
            std::uint32_t two = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + majority;
            h = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
        }
        std::array<std::uint32_t, 8> round = {a, b, c, d, e, f, g, h};
        for (std::size_t i = 0; i < 8; ++i) state[i] += round[i];
    }
    Bytes digest;
    for (std::uint32_t word : state) digest += big_endian(word, 4);
    return digest;
}

// --- 4. Errors ---------------------------------------------------------------------------------

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

// --- 5. Requests -------------------------------------------------------------------------------

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

// --- 6. Pool -----------------------------------------------------------------------------------

using Block = std::int64_t;
constexpr Block null_block = 0;

// KV-HASH-6 for group 0.
Bytes make_key(const Bytes &block_hash) { return block_hash + big_endian(0, 4); }

struct Events {
    bool enabled = false, int_hashes = false;
    Array queue;

    Value show(const Bytes &block_hash) const {  // KV-EVT-6
        if (!int_hashes) return hex(block_hash);
        std::uint64_t low = 0;
        for (unsigned char byte : block_hash.substr(block_hash.size() - 8)) low = low << 8 | byte;
        return std::to_string(low);
    }
    void removed(const Bytes &key) {
        if (enabled)
            queue.push_back(Object{{"type", "BlockRemoved"},
                                   {"block_hashes", Array{show(key.substr(0, key.size() - 4))}},
                                   {"medium", "GPU"},
                                   {"group_idx", 0}});
    }
    void cleared() {
        if (enabled) queue.push_back(Object{{"type", "AllBlocksCleared"}});
    }
};

class Pool {
  public:
    Pool(Block num_blocks, Events &events, bool unhashed_to_front, bool event_per_copy)
        : references(static_cast<std::size_t>(num_blocks)),
          keys(static_cast<std::size_t>(num_blocks)),
          covered(static_cast<std::size_t>(num_blocks)), place_(static_cast<std::size_t>(num_blocks)),
          events_(events), unhashed_to_front_(unhashed_to_front), event_per_copy_(event_per_copy) {
        for (Block block = 1; block < num_blocks; ++block)  // KV-POOL-1: without the null block
            place_[at(block)] = queue.insert(queue.end(), block);
    }

    std::list<Block> queue;  // free blocks, the front is taken first (KV-POOL-2)
    std::vector<std::int64_t> references;
    std::vector<Bytes> keys;  // empty: not cached
    std::vector<std::int64_t> covered;
    std::map<Bytes, std::vector<Block>> cached;  // first registered first (KV-POOL-13)

    Block num_blocks() const { return static_cast<Block>(references.size()); }
    std::int64_t num_free() const { return static_cast<std::int64_t>(queue.size()); }
    bool is_free(Block block) const { return block != null_block && references[at(block)] == 0; }

    std::optional<Block> find(const Bytes &key) const {
        auto found = cached.find(key);
        if (found == cached.end()) return std::nullopt;
        return found->second.front();
    }

    // The caller has made sure that there are n.
    std::vector<Block> allocate(std::int64_t n) {
        std::vector<Block> taken;
        for (; n > 0; --n) {
            Block block = queue.front();
            queue.pop_front();
            forget(block);  // KV-POOL-4
            references[at(block)] = 1;
            taken.push_back(block);
        }
        return taken;
    }

    void touch(Block block) {  // KV-POOL-5
        if (references[at(block)]++ == 0) queue.erase(place_[at(block)]);
    }

    // One release call: KV-POOL-6, KV-POOL-7.
    void release(const std::vector<Block> &blocks) {
        std::vector<Block> unhashed, hashed;
        for (Block block : blocks)
            if (block != null_block && --references[at(block)] == 0)
                (keys[at(block)].empty() && unhashed_to_front_ ? unhashed : hashed).push_back(block);
        auto front = queue.begin();
        for (Block block : unhashed) place_[at(block)] = queue.insert(front, block);
        for (Block block : hashed) place_[at(block)] = queue.insert(queue.end(), block);
    }

    void insert(Block block, const Bytes &key, std::int64_t num_tokens) {  // KV-POOL-14
        forget(block);
        keys[at(block)] = key;
        covered[at(block)] = num_tokens;
        cached[key].push_back(block);
    }

    // Drop the block's cached identity, wherever the block is (KV-POOL-10).
    void forget(Block block) {
        Bytes key = keys[at(block)];
        if (key.empty()) return;
        std::vector<Block> &copies = cached[key];
        copies.erase(std::find(copies.begin(), copies.end(), block));
        bool last = copies.empty();
        if (last) cached.erase(key);
        if (last || event_per_copy_) events_.removed(key);  // KV-EVT-4
        keys[at(block)].clear();
        covered[at(block)] = 0;
    }

    bool reset() {  // KV-POOL-11
        if (num_free() != num_blocks() - 1) return false;
        for (Block block = 1; block < num_blocks(); ++block) {
            keys[at(block)].clear();
            covered[at(block)] = 0;
        }
        cached.clear();
        events_.cleared();
        return true;
    }

    static std::size_t at(Block block) { return static_cast<std::size_t>(block); }

  private:
    std::vector<std::list<Block>::iterator> place_;
    Events &events_;
    bool unhashed_to_front_, event_per_copy_;
};

// --- 7. Manager --------------------------------------------------------------------------------

struct Config {
    std::int64_t num_blocks, block_size, max_model_len;  // block_size: of all ranks (KV-FULL-5)
    bool caching, eagle, log_stats, events, int_event_hashes, unhashed_to_front, event_per_copy;
    bool tagged;  // extra keys are hashed with their kinds (KV-POL-10)
    double watermark;
    std::string spec_kind;
    Bytes none_hash;
};

struct Stats {
    bool reset = false;
    std::int64_t requests = 0, queries = 0, hits = 0;
    std::int64_t preempted_requests = 0, preempted_queries = 0, preempted_hits = 0;
};

// A request's blocks, and how many leading ones were handed to the cache (KV-GRP-1).
struct Entry {
    std::vector<Block> blocks;
    std::optional<std::int64_t> num_cached;
};

std::int64_t ceiling(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0); }

class Manager {
  public:
    explicit Manager(const Config &config)
        : config(config), events{config.events, config.int_event_hashes, {}},
          pool(config.num_blocks, events, config.unhashed_to_front, config.event_per_copy) {}
    Manager(const Manager &) = delete;

    const Config config;
    Events events;
    Pool pool;
    std::map<std::string, Entry> entries;
    std::vector<Block> new_blocks;
    std::multiset<Block> popped;
    Stats stats;

    // The request, if its hashes mean something here.
    const Request &own(const Request &request) const {
        if (config.caching &&
            (request.hash_size != config.block_size || request.none_hash != config.none_hash))
            throw invalid("request", request.id, "made for a manager with the same hashes");
        return request;
    }

    std::vector<Block> longest_hit(const Request &request) {
        check_scheduling(request);
        std::vector<Block> run;
        if (!config.caching || request.skips_reading) return run;
        auto most = static_cast<std::size_t>((request.num_tokens() - 1) / config.block_size);
        while (run.size() < std::min(most, request.hashes.size())) {  // KV-FULL-2
            std::optional<Block> block = pool.find(make_key(request.hashes[run.size()]));
            if (!block) break;
            run.push_back(*block);
        }
        if (config.eagle && !run.empty()) run.pop_back();  // KV-FULL-3
        if (config.log_stats) count_lookup(request, run.size());
        return run;
    }

    // The arguments of one allocation, checked for their types.
    struct Demand {
        std::int64_t num_new, num_hit, num_lookahead, num_external, reserved;
        bool delay_caching, whole_must_fit, has_others;
        std::vector<Block> hits;
    };

    std::optional<std::vector<Block>> allocate(const Request &request, const Demand &demand) {
        std::int64_t computed = check_allocation(request, demand);
        std::int64_t local = computed + demand.num_hit, external = demand.num_external;
        std::int64_t total = std::min(local + external, config.max_model_len);  // KV-MGR-4
        if (demand.num_new > config.max_model_len - total)
            throw invalid("num_new_tokens", demand.num_new, "no more than have slots");
        std::int64_t slots =
            std::min(total + demand.num_new + demand.num_lookahead, config.max_model_len);
        if (external && !is_running(request.id)) slots = std::max(slots, local + external);
        std::int64_t watermark = 0;  // KV-MGR-9
        if (demand.has_others && *request.status.text() != "RUNNING")
            watermark = static_cast<std::int64_t>(config.watermark * static_cast<double>(config.num_blocks));
        std::int64_t whole = std::min(request.num_tokens(), config.max_model_len);
        if (demand.whole_must_fit &&  // KV-MGR-5
            num_needed(request.id, whole, demand.hits) + watermark > pool.num_free())
            return std::nullopt;
        if (num_needed(request.id, slots, demand.hits) + watermark >  // KV-MGR-7
            pool.num_free() - demand.reserved)
            return std::nullopt;
        if ((!demand.hits.empty() || external) && !is_running(request.id)) {
            for (Block block : demand.hits) pool.touch(block);
            Entry &entry = entries[request.id];
            entry.blocks = demand.hits;
            entry.num_cached = static_cast<std::int64_t>(demand.hits.size());
            if (external) extend(request.id, local + external);  // KV-GRP-6
        }
        std::vector<Block> taken = extend(request.id, slots);
        if (config.caching && !demand.delay_caching) {  // KV-MGR-10: no drafts
            std::int64_t verified = std::min(total + demand.num_new, request.num_tokens());
            cache(request, std::min(verified, config.max_model_len));
        }
        return taken;
    }

    // Free blocks it takes to have this many slots (KV-GRP-3, KV-GRP-4).
    std::int64_t num_needed(const std::string &id, std::int64_t slots,
                            const std::vector<Block> &hits) const {
        auto held = static_cast<std::int64_t>(blocks_of(id).size() + hits.size());
        std::int64_t needed = std::max(ceiling(slots, config.block_size) - held, std::int64_t{0});
        return needed + std::count_if(hits.begin(), hits.end(),
                                      [&](Block block) { return pool.is_free(block); });
    }

    void cache_computed(const Request &request, const Value &num_computed) {  // KV-MGR-11
        std::int64_t num_tokens = count("num_computed_tokens", num_computed);
        if (blocks_of(request.id).empty()) return;
        std::int64_t limit = std::min(request.num_tokens(), num_slots(request.id));
        if (num_tokens > limit)
            throw invalid("num_computed_tokens", num_tokens,
                          "at most " + std::to_string(limit) + ", its tokens and slots");
        if (config.caching) cache(request, num_tokens);
    }

    std::vector<Block> forget(const std::string &id) {
        std::vector<Block> blocks = blocks_of(id);
        entries.erase(id);
        return blocks;
    }

    void free(const std::string &id) {  // KV-MGR-12: last block first
        std::vector<Block> blocks = forget(id);
        pool.release({blocks.rbegin(), blocks.rend()});
    }

    std::vector<Block> pop(const std::string &id) {  // KV-MGR-13
        std::vector<Block> blocks = forget(id);
        popped.insert(blocks.begin(), blocks.end());
        return blocks;
    }

    void return_popped(const std::vector<Block> &blocks) {
        std::multiset<Block> returned(blocks.begin(), blocks.end());
        for (Block block : blocks) {
            std::size_t released = returned.count(block), held = popped.count(block);
            if (block != null_block && released > held)
                throw invalid("block_ids", block, "released at most as often as popped",
                              "BlockReleaseError",
                              {{"block_id", block}, {"released", released}, {"held", held}});
        }
        for (Block block : blocks)
            if (block != null_block) popped.erase(popped.find(block));
        pool.release(blocks);
    }

    bool reset() {
        if (!pool.reset()) return false;
        stats.reset = true;
        return true;
    }

    // Leading blocks that every request with blocks holds once (KV-FULL-7).
    std::int64_t num_common_prefix_blocks(const std::string &id) const {
        if (!config.caching) return 0;
        auto sharing = std::count_if(entries.begin(), entries.end(), [](const auto &entry) {
            return !entry.second.blocks.empty();
        });
        std::int64_t common = 0;
        for (Block block : blocks_of(id)) {
            if (pool.references[Pool::at(block)] != sharing) break;
            ++common;
        }
        return common;
    }

    std::vector<Block> blocks_of(const std::string &id) const {
        auto found = entries.find(id);
        return found == entries.end() ? std::vector<Block>{} : found->second.blocks;
    }

    std::vector<Block> check_blocks(const Value &ids, const std::string &field = "block_ids") const {
        if (!ids.array()) throw invalid(field, ids, "a list");
        std::vector<Block> blocks;
        for (const Value &id : *ids.array()) {
            if (!id.integer() || *id.integer() < 0 || *id.integer() >= pool.num_blocks())
                throw Refusal{"UnknownBlockError",
                              "block id " + shown(id) + ": must be an int in 0 ... " +
                                  std::to_string(pool.num_blocks() - 1),
                              {{"block_id", id}, {"num_blocks", pool.num_blocks()}}};
            blocks.push_back(*id.integer());
        }
        return blocks;
    }

  private:
    bool is_running(const std::string &id) const {
        auto found = entries.find(id);
        return found != entries.end() && found->second.num_cached;
    }

    std::int64_t num_slots(const std::string &id) const {
        return static_cast<std::int64_t>(blocks_of(id).size()) * config.block_size;
    }

    static void check_scheduling(const Request &request) {
        count("request.num_preemptions", request.num_preemptions);
        const std::string *status = request.status.text();
        if (!status || (*status != "WAITING" && *status != "RUNNING" && *status != "PREEMPTED"))
            throw invalid("request.status", request.status, "WAITING, RUNNING or PREEMPTED");
    }

    // Everything an allocation demands of its caller; the computed tokens.
    std::int64_t check_allocation(const Request &request, const Demand &demand) const {
        if (!demand.num_new && !demand.num_external)  // KV-MGR-3
            throw invalid("num_new_tokens", 0, "at least 1 without external tokens");
        check_scheduling(request);
        std::int64_t computed = count("request.num_computed_tokens", request.num_computed);
        if (computed > num_slots(request.id))  // KV-REQ-3
            throw invalid("request.num_computed_tokens", computed, "at most the slots it holds");
        bool holds = !blocks_of(request.id).empty(), running = is_running(request.id);
        if ((holds || running) && (!demand.hits.empty() || demand.num_hit))  // KV-GRP-9
            throw invalid("new_computed_blocks", numbers(demand.hits), "empty: it holds blocks");
        if (holds && !running && demand.num_external)
            throw invalid("num_external_computed_tokens", demand.num_external, "0: it holds blocks");
        if (static_cast<std::int64_t>(demand.hits.size()) * config.block_size != demand.num_hit)
            throw invalid("new_computed_blocks[0]", numbers(demand.hits),
                          "blocks for num_new_computed_tokens");
        for (std::size_t i = 0; i < demand.hits.size(); ++i) {  // KV-MGR-8
            Block block = demand.hits[i];
            bool right = block != null_block && i < request.hashes.size() &&
                         pool.keys[Pool::at(block)] == make_key(request.hashes[i]);
            if (!right)
                throw invalid("new_computed_blocks[0][" + std::to_string(i) + "]", block,
                              "a block with the hash of that place", "StaleHitError",
                              {{"group", 0}, {"index", i}, {"block_id", block}});
        }
        return computed;
    }

    // Make the list long enough for this many tokens; the blocks taken (KV-GRP-7).
    std::vector<Block> extend(const std::string &id, std::int64_t num_tokens) {
        auto held = static_cast<std::int64_t>(blocks_of(id).size());
        std::int64_t missing = ceiling(num_tokens, config.block_size) - held;
        if (missing <= 0) return {};
        std::vector<Block> taken = pool.allocate(missing);
        std::vector<Block> &blocks = entries[id].blocks;
        blocks.insert(blocks.end(), taken.begin(), taken.end());
        new_blocks.insert(new_blocks.end(), taken.begin(), taken.end());  // KV-GRP-10
        return taken;
    }

    // Register the full blocks among the first tokens that were not yet (KV-GRP-11).
    void cache(const Request &request, std::int64_t num_tokens) {
        Entry &entry = entries[request.id];
        std::int64_t first = entry.num_cached.value_or(0), end = num_tokens / config.block_size;
        if (first >= end) return;
        for (std::int64_t i = first; i < end; ++i)
            pool.insert(entry.blocks[Pool::at(i)], make_key(request.hashes[Pool::at(i)]),
                        (i + 1) * config.block_size);
        entry.num_cached = end;
        if (events.enabled) events.queue.push_back(stored_event(request, first, end));
    }

    Value stored_event(const Request &request, std::int64_t first, std::int64_t end) const {
        Array hashes, extra_keys;
        for (std::int64_t i = first; i < end; ++i) {
            hashes.push_back(events.show(request.hashes[Pool::at(i)]));
            Array keys;
            for (const ExtraKey &key :
                 request.extra_keys(i * config.block_size, (i + 1) * config.block_size))
                keys.push_back(key.shown);
            extra_keys.push_back(keys.empty() ? Value() : Value(keys));
        }
        auto tokens = request.tokens.begin();
        std::vector<std::int64_t> range(tokens + first * config.block_size,
                                        tokens + end * config.block_size);
        Value parent = first ? events.show(request.hashes[Pool::at(first - 1)]) : Value();
        Value lora_name = request.lora_name.empty() ? Value() : Value(request.lora_name);
        return Object{{"type", "BlockStored"},
                      {"block_hashes", hashes},
                      {"parent_block_hash", parent},
                      {"token_ids", numbers(range)},
                      {"block_size", config.block_size},
                      {"lora_id", request.lora_id},
                      {"lora_name", lora_name},
                      {"medium", "GPU"},
                      {"extra_keys", extra_keys},
                      {"group_idx", 0},
                      {"kv_cache_spec_kind", config.spec_kind},
                      {"kv_cache_spec_sliding_window", nullptr}};
    }

    void count_lookup(const Request &request, std::size_t num_blocks) {
        auto hit = static_cast<std::int64_t>(num_blocks) * config.block_size;
        bool preempted = *request.num_preemptions.integer() > 0;
        (preempted ? stats.preempted_requests : stats.requests) += 1;
        (preempted ? stats.preempted_queries : stats.queries) += request.num_tokens();
        (preempted ? stats.preempted_hits : stats.hits) += hit;
    }
};

// --- 8. Operations -----------------------------------------------------------------------------

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

Value hello(const Call &call) {
    const Array &offered = list_member(call.args, "protocol");
    auto is_ours = [](const Value &v) { return v.integer() && *v.integer() == 1; };
    if (std::none_of(offered.begin(), offered.end(), is_ours))
        throw protocol_error("version", "this server speaks protocol 1");
    call.server.greeted = true;
    return Object{{"protocol", 1},
                  {"name", server_name},
                  {"version", "1"},
                  {"spec_types", Array{"FullAttentionSpec", "MLAAttentionSpec"}},
                  {"hash_functions", Array{"sha256_cbor"}},
                  {"extra_keys", Array{"tagged", "plain"}},
                  {"features", Array{"prefix_caching", "eagle", "context_parallel", "external_tokens",
                                     "delayed_caching", "deferred_free", "events", "statistics",
                                     "cache_salt", "lora", "multimodal", "prompt_embeddings",
                                     "skip_reading", "drafting", "admission", "eviction_by_id",
                                     "reset", "skipped_removal", "common_prefix",
                                     "unhashed_blocks", "need", "new_block_ids", "stable_lists",
                                     "snapshot"}}};
}

Bytes first_parent(const Value *seed) {  // KV-HASH-3
    if (seed && seed->text()) return sha256(cbor_text(*seed->text()));
    std::random_device source;
    Bytes random;
    while (random.size() < 32) random += big_endian(source(), 4);
    return random;
}

Config read_config(const Value &value) {
    const Array &groups = list_member(value, "groups");
    if (groups.size() != 1) throw unsupported(std::to_string(groups.size()) + " groups");
    const Value &spec = member(groups[0], "spec");
    const std::string &type = text_member(spec, "type");
    if (type != "FullAttentionSpec" && type != "MLAAttentionSpec") throw unsupported(type);
    if (text_member(value, "hash_function") != "sha256_cbor")
        throw unsupported("hash function " + text_member(value, "hash_function"));
    if (value.find("residency_sample_rate") && real_member(value, "residency_sample_rate") > 0)
        throw unsupported("residency samples");
    if (const Value *interval = optional_member(value, "prefix_cache_retention_interval"))
        throw bad_config("prefix_cache_retention_interval", *interval, "null with full attention");
    Config config{};
    config.num_blocks = int_member(value, "num_blocks");
    config.block_size = 1;
    for (std::int64_t factor : {int_member(spec, "block_size"), int_member(value, "dcp_world_size"),
                                int_member(value, "pcp_world_size")}) {
        if (factor < 1 || factor > (std::int64_t{1} << 40) / config.block_size)
            throw bad_config("block_size", factor, "at least 1, and a block of at most 2^40 tokens");
        config.block_size *= factor;
    }
    if (const Value *size = optional_member(value, "scheduler_block_size"))  // KV-CFG-4
        if (!size->integer() || *size->integer() != config.block_size)
            throw bad_config("scheduler_block_size", *size, std::to_string(config.block_size));
    config.max_model_len = int_member(value, "max_model_len");
    config.caching = flag("enable_caching", member(value, "enable_caching"));
    config.eagle = flag("use_eagle", member(value, "use_eagle")) ||
                   flag("is_eagle_group", member(groups[0], "is_eagle_group"));
    config.log_stats = flag("log_stats", member(value, "log_stats"));
    config.events = flag("enable_kv_cache_events", member(value, "enable_kv_cache_events"));
    config.int_event_hashes =
        flag("kv_events_use_int_block_hashes", member(value, "kv_events_use_int_block_hashes"));
    config.watermark = real_member(value, "watermark");
    config.spec_kind = type == "FullAttentionSpec" ? "full_attention" : "mla_attention";
    config.none_hash = first_parent(optional_member(value, "python_hash_seed"));
    const Value *policy = value.find("policy");
    auto chosen = [&](const char *name, const char *usual) {
        const Value *choice = policy ? policy->find(name) : nullptr;
        return !choice || (choice->text() && *choice->text() == usual);
    };
    config.unhashed_to_front = chosen("unhashed_freed_to", "front");
    config.event_per_copy = chosen("removed_event_per", "copy");
    config.tagged = policy && policy->find("extra_keys") && chosen("extra_keys", "tagged");
    return config;
}

Value create_manager(const Call &call) {
    std::int64_t handle = Call::unused(call.server.managers, "manager", call.message);
    Config config = read_config(call.arg("config"));
    call.server.managers.emplace(handle, config);
    return Object{{"scheduler_block_size", config.block_size},
                  {"hash_block_size", config.block_size},
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
    request.hash_size = config.caching ? config.block_size : 0;
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
    request.skips_reading = flag("skip_reading_prefix_cache", call.arg_or("skip_reading_prefix_cache", false));
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

Value get_computed_blocks(const Call &call) {
    std::vector<Block> run = call.manager().longest_hit(call.request());
    auto length = static_cast<std::int64_t>(run.size()) * call.manager().config.block_size;
    return Object{{"blocks", Array{numbers(run)}},
                  {"num_computed_tokens", length},
                  {"num_uncached_common_prefix_tokens", nullptr}};
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
    Value hits = call.arg_or("new_computed_blocks", nullptr);
    if (!hits.is_null()) {
        if (!hits.array() || hits.array()->size() != 1)
            throw invalid("new_computed_blocks", hits, "null, or one list per group (1)");
        demand.hits = call.manager().check_blocks((*hits.array())[0], "new_computed_blocks[0]");
    }
    std::optional<std::vector<Block>> taken = call.manager().allocate(request, demand);
    return taken ? Value(Array{numbers(*taken)}) : Value();
}

Value get_block_ids(const Call &call) {
    std::vector<Block> blocks = call.manager().blocks_of(call.request().id), unhashed;
    for (Block block : blocks)
        if (call.manager().pool.keys[Pool::at(block)].empty()) unhashed.push_back(block);
    return Object{{"blocks", Array{numbers(blocks)}}, {"unhashed", Array{numbers(unhashed)}}};
}

Value get_num_blocks_to_allocate(const Call &call) {
    std::int64_t slots = count("num_tokens", call.arg("num_tokens"));
    count("total_computed_tokens", call.arg("total_computed_tokens"));
    count("num_tokens_main_model", call.arg("num_tokens_main_model"));
    count("num_encoder_tokens", call.arg_or("num_encoder_tokens", 0));
    flag("apply_admission_cap", call.arg_or("apply_admission_cap", false));
    return call.manager().num_needed(call.request().id, slots, {});
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

Value snapshot(const Call &call) {
    const Manager &manager = call.manager();
    const Pool &pool = manager.pool;
    Array keys;
    for (const Bytes &key : pool.keys) keys.push_back(key.empty() ? Array{} : Array{hex(key)});
    Object order, requests;
    for (const auto &[key, blocks] : pool.cached) order.emplace_back(hex(key), numbers(blocks));
    for (const auto &[id, entry] : manager.entries) {
        if (entry.blocks.empty() && !entry.num_cached) continue;
        Value num_cached = entry.num_cached ? Value(*entry.num_cached) : Value();
        requests.emplace_back(id, Object{{"block_ids", Array{numbers(entry.blocks)}},
                                         {"num_cached_blocks", Array{num_cached}},
                                         {"mamba", Array{nullptr}}});
    }
    return Object{{"num_blocks", pool.num_blocks()},
                  {"free_queue", numbers(pool.queue)},
                  {"ref_counts", numbers(pool.references)},
                  {"block_keys", keys},
                  {"lookup_order", order},
                  {"covered_tokens", numbers(pool.covered)},
                  {"none_hash", hex(manager.config.none_hash)},
                  {"requests", requests},
                  {"popped_blocks", numbers(manager.popped)},
                  {"new_block_ids", Array{numbers(manager.new_blocks)}},
                  {"step_keys", Array{Array{}}},
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

using Operation = std::function<Value(const Call &)>;

const std::map<std::string, Operation> operations = {
    {"hello", hello},
    {"create_manager", create_manager},
    {"drop", drop},
    {"make_request", make_request},
    {"append_tokens", append},
    {"get_computed_blocks", get_computed_blocks},
    {"find_longest_cache_hit_per_group",
     [](const Call &) -> Value { throw unsupported("per-group look-ups with one group"); }},
    {"allocate_slots", allocate_slots},
    {"cache_blocks",
     [](const Call &call) {
         call.manager().cache_computed(call.request(), call.arg("num_computed_tokens"));
         return Value();
     }},
    {"cache_partial_block",
     [](const Call &call) -> Value {
         throw invalid("group", call.arg("group"), "a group with blocks larger than a hash's");
     }},
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
    {"remove_skipped_blocks",  // KV-FULL-1: nothing is ever skipped
     [](const Call &call) {
         count("total_computed_tokens", call.arg("total_computed_tokens"));
         call.request();
         return Value();
     }},
    {"evict_blocks",
     [](const Call &call) {
         for (Block block : call.manager().check_blocks(call.arg("block_ids")))
             call.manager().pool.forget(block);
         return Value();
     }},
    {"reset_prefix_cache", [](const Call &call) { return call.manager().reset(); }},
    {"get_num_common_prefix_blocks",
     [](const Call &call) {
         return Array{call.manager().num_common_prefix_blocks(call.request().id)};
     }},
    {"get_block_ids", get_block_ids},
    {"get_num_blocks_to_allocate", get_num_blocks_to_allocate},
    {"take_events", [](const Call &call) { return std::exchange(call.manager().events.queue, {}); }},
    {"take_new_block_ids",
     [](const Call &call) { return numbers(std::exchange(call.manager().new_blocks, {})); }},
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

// --- 9. The conversation -----------------------------------------------------------------------

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
