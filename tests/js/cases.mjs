// Judges every case of the conformance corpus in this process: {"cases": [{arguments, files: {name: hex}}, …]} on
// standard input, [{exitCode, report}, …] on standard output. Files lie in memory.
import { readFileSync } from "node:fs";
import { run } from "../../verifier/js/verify.mjs";

const answers = [];
for (const { arguments: words, files } of JSON.parse(readFileSync(0, "utf8")).cases) {
  const find = (name) => {
    if (Object.hasOwn(files, name)) return Buffer.from(files[name], "hex");
    throw Object.assign(new Error(`no such file: ${name}`), { syscall: "open" });
  };
  const fs = { readFileSync: find, statSync: (name) => ({ isFile: () => find(name) !== null }) };
  const { exitCode, out } = await run([...words, "--json"], fs);
  answers.push({ exitCode, report: out === undefined ? null : JSON.parse(out) });
}
console.log(JSON.stringify(answers));
