// JSON: one framing of messages.

#pragma once

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "values.hpp"

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
