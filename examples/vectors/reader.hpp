// Reads what `kvspec vectors` writes, and has each conversation with a manager of its own: `make()`
// gives a function that makes the call of a message and returns the protocol's answer to it.

#pragma once

#include <algorithm>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "../cpp/json.hpp"

namespace vectors {

struct Done {
    int followed = 0, left_out = 0, right = 0;
};

inline bool same(const Value &a, const Value &b) {  // whatever the order of members
    const Object *members = a.object(), *others = b.object();
    if (members && others)
        return members->size() == others->size() &&
               std::all_of(members->begin(), members->end(), [&](const auto &member) {
                   const Value *other = b.find(member.first);
                   return other && same(member.second, *other);
               });
    const Array *items = a.array(), *more = b.array();
    if (items && more)
        return std::equal(items->begin(), items->end(), more->begin(), more->end(), same);
    return a == b;
}

inline bool holds(const Value *list, const Value &item) {
    return list && list->array() &&
           std::find(list->array()->begin(), list->array()->end(), item) != list->array()->end();
}

inline bool has(const Value *offered, const Value *wanted) {  // all that is wanted, if anything is
    return !wanted || std::all_of(wanted->array()->begin(), wanted->array()->end(),
                                  [&](const Value &name) { return holds(offered, name); });
}

inline std::vector<Value> lines(const std::string &path) {
    std::ifstream file(path);
    if (!file) throw std::runtime_error(path + " cannot be read");
    std::vector<Value> result;
    for (std::string line; std::getline(file, line);) result.push_back(JsonReader(line).document());
    return result;
}

template <class Answer>
bool follow(const std::string &folder, const Value &entry, Answer answer, Done &done) {
    const std::string &file = *entry.find("file")->text();
    Value offered;
    int number = 0;
    for (const Value &line : lines(folder + "/" + file)) {
        ++number;
        if (!has(offered.find("features"), line.find("needs"))) continue;
        Value given = answer(*line.find("message"));
        const Value *result = given.find("result"), *error = given.find("error");
        if (number == 1) {
            offered = *result;
            for (const char *name : {"spec_types", "hash_functions", "features"})
                if (!has(offered.find(name), entry.find(name))) return false;
        }
        const Value *expected = line.find("result"), *errors = line.find("errors");
        bool right = expected ? result && same(*result, *expected)
                              : errors ? error && holds(errors, *error->find("class")) : !error;
        std::string shown, observed;
        write_json(shown, line), write_json(observed, given);
        if (!right)
            throw std::runtime_error(file + ", line " + std::to_string(number) + ":\n  expected " +
                                     shown + "\n  observed " + observed);
        ++done.right;
    }
    return true;
}

template <class Make>
Done follow_all(const std::string &folder, Make make) {  // throws at the first wrong answer
    std::vector<Value> index = lines(folder + "/index.jsonl");
    if (!same(*index.at(0).find("version"), 1)) throw std::runtime_error("not version 1 of the format");
    Done done;
    for (std::size_t i = 1; i < index.size(); ++i)
        ++(follow(folder, index[i], make(), done) ? done.followed : done.left_out);
    return done;
}

}  // namespace vectors
