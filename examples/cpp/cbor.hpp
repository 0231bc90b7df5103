// CBOR: the other framing of messages, and what block hashes are taken over.

#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "values.hpp"

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
        return number_of(take(static_cast<std::uint64_t>(size)));
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
