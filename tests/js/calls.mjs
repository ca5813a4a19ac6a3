// Answers rows [function, argument, …] of standard input with one JSON list: what the functions of verifier/js say.
import { readFileSync } from "node:fs";
import * as ladder from "../../verifier/js/ladder.mjs";
import * as leaf from "../../verifier/js/leaf.mjs";
import * as strict from "../../verifier/js/strict.mjs";

const v = { ...strict, ...leaf, ...ladder };

const bytes = (text) => Uint8Array.from(Buffer.from(text, "base64"));
const unhex = (text) => Uint8Array.from(Buffer.from(text, "hex"));
const isTaken = async (read) => {
  try {
    await read();
    return true;
  } catch (error) {
    if (error instanceof v.Malformed) return false;
    throw error;
  }
};

const CALLS = {
  key: (key) => v.isStrictKey(unhex(key)),
  signature: (key, message, signature) => v.isValid(unhex(key), unhex(message), unhex(signature)),
  json: (text) => isTaken(() => v.parseJson(bytes(text))),
  canonical: (text) => isTaken(() => v.parseCanonical(bytes(text))),
  vkey: (text) => isTaken(() => v.parseVkey(text)),
  note: (text) => isTaken(() => v.parseNote(bytes(text))),
  checkpoint: (text) => isTaken(() => v.parseCheckpoint(bytes(text))),
  proof: (text) => isTaken(() => v.parseProof(bytes(text))),
  policy: (text) => isTaken(() => v.parsePolicy(bytes(text))),
  quorum: (text, names) => v.isQuorumMet(v.parsePolicy(bytes(text)), names),
  keys: (text, root) => isTaken(() => v.openKeyDocument(bytes(text), v.parseVkey(root))),
  name: (name) => v.isResource(name),
  overlap: (a, b, isFolding) => {
    const [x, y] = [v.keyOf(a, isFolding), v.keyOf(b, isFolding)];
    return [v.overlaps(x, y), v.overlaps(y, x), v.covers(x, y)];
  },
  inclusion: (index, size, leaf, path) => {
    const root = v.rootFromInclusion(index, size, unhex(leaf), path.map(unhex));
    return root && Buffer.from(root).toString("hex");
  },
  consistency: (size1, root1, size2, root2, path) =>
    v.isConsistent(size1, unhex(root1), size2, unhex(root2), path.map(unhex)),
  ranges: (index, size, leaf, path) => [...v.rangesFromInclusion(index, size, unhex(leaf), path.map(unhex))],
  sha256: (text) => Buffer.from(v.sha256(unhex(text))).toString("hex"),
  moment: (ms) => v.moment(ms),
  async delegation(delegations, actor, ledger, timeMs) {
    const bare = v.parseJson(new TextEncoder().encode(JSON.stringify({ delegations }))).delegations;
    try {
      return v.chainFault(await v.parseDelegations(bare, actor), ledger, timeMs);
    } catch (error) {
      if (!(error instanceof v.Malformed)) throw error;
      return error.code;
    }
  },
};

const answers = [];
for (const [name, ...rest] of JSON.parse(readFileSync(0, "utf8"))) answers.push(await CALLS[name](...rest));
console.log(JSON.stringify(answers));
