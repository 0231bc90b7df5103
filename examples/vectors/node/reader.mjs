// @ts-check
// Reads what `kvspec vectors` writes, and has each conversation with a manager of its own.
// The types stand in comments, so TypeScript checks and uses it, and node runs it as it is.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { isDeepStrictEqual } from "node:util";

/**
 * @typedef {{ id: number, op: string, manager?: number, request?: number, set?: any, args?: any }} Message
 * @typedef {{ result?: any, error?: { class: string } }} Given
 * @typedef {(message: Message) => Given} Answer makes the call of a message
 * @typedef {{ message: Message, result?: any, errors?: string[], needs?: string[] }} Line
 * @typedef {{ file: string, [needed: string]: any }} Entry
 * @typedef {{ followed: number, leftOut: number, right: number }} Done
 */

/** @param {string} path */
const read = (path) => readFileSync(path, "utf8").trimEnd().split("\n").map((line) => JSON.parse(line));

/** Whether all that is wanted is offered. @type {(offered?: string[], wanted?: string[]) => boolean} */
const has = (offered = [], wanted = []) => wanted.every((name) => offered.includes(name));

/** @type {(line: Line, given: Given) => boolean} */
function isRight(line, given) {
  if ("result" in line) return !given.error && isDeepStrictEqual(given.result, line.result);
  return line.errors ? line.errors.includes(given.error?.class ?? "") : !given.error;
}

/**
 * One conversation: how many answers were right, 0 for a manager that lacks what it needs.
 * @type {(folder: string, entry: Entry, answer: Answer) => number}
 */
function follow(folder, entry, answer) {
  /** @type {any} */
  let offered = {};
  let right = 0;
  for (const [number, line] of /** @type {Line[]} */ (read(join(folder, entry.file))).entries()) {
    if (!has(offered.features, line.needs)) continue;
    const given = answer(line.message);
    if (number === 0) {
      offered = given.result;
      const needed = ["spec_types", "hash_functions", "features"];
      if (!needed.every((name) => has(offered[name], entry[name]))) return 0;
    }
    if (!isRight(line, given)) {
      const [expected, observed] = [line, given].map((value) => JSON.stringify(value));
      throw new Error(`${entry.file}, line ${number + 1}:\n  expected ${expected}\n  observed ${observed}`);
    }
    right += 1;
  }
  return right;
}

/**
 * All of a folder, each conversation with a manager of its own; throws at the first wrong answer.
 * @type {(folder: string, make: () => Answer) => Done}
 */
export function followAll(folder, make) {
  const [head, ...entries] = read(join(folder, "index.jsonl"));
  if (head.version !== 1) throw new Error("not version 1 of the format");
  const counts = entries.map((entry) => follow(folder, entry, make()));
  const followed = counts.filter((right) => right > 0);
  return {
    followed: followed.length,
    leftOut: counts.length - followed.length,
    right: followed.reduce((sum, right) => sum + right, 0),
  };
}
