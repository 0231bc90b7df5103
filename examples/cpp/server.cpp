// A KV-cache manager for full-attention and sliding-window groups, behind the protocol of
// spec/protocol.md: the conversation.

#include <iostream>
#include <optional>

#include "server.hpp"

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
