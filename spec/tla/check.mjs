// Runs the checker on one model: reads {source, options} as JSON, writes its answer as JSON.
import { readFileSync } from "node:fs";
import { check_spec_with_options, initSync } from "tla-checker";

const wasm = new URL("./node_modules/tla-checker/tla_checker_bg.wasm", import.meta.url);
initSync({ module: readFileSync(wasm) });
const { source, options } = JSON.parse(readFileSync(0, "utf8"));
process.stdout.write(check_spec_with_options(source, JSON.stringify(options)));
