// The example in C++ and the vectors: ./check FOLDER, with a folder that `kvspec vectors` wrote.

#include <exception>
#include <iostream>
#include <memory>

#include "../cpp/server.hpp"
#include "reader.hpp"

int main(int argc, char **argv) {
    if (argc != 2) return std::cerr << "usage: check FOLDER\n", 2;
    auto make = [] {
        return [server = std::make_shared<Server>()](const Value &message) {
            return answer(*server, message);
        };
    };
    try {
        vectors::Done done = vectors::follow_all(argv[1], make);
        std::cout << done.followed << " conversations followed, " << done.left_out << " left out, "
                  << done.right << " answers right\n";
        return 0;
    } catch (const std::exception &wrong) {
        std::cerr << wrong.what() << '\n';
        return 1;
    }
}
