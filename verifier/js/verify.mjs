#!/usr/bin/env node
// A second verifier of Tallystick receipts, in JavaScript: Node 20 or later, and browsers. It depends on nothing.
//
// House rules of this folder:
// * It speaks for itself: every check is written again from docs/protocol.md, so that a mistake of the Python verifier
//   is not repeated here. What both share is the table of entry types (entries.mjs, written from verifier/entries.py)
//   and the conformance corpus in tests/vectors, which both pass.
// * strict.mjs reads bytes, keys and notes; leaf.mjs leaves and bodies; ladder.mjs walks steps 1 to 10; histories.mjs
//   sets files against each other. This file ends in a report, and is the command line.
// * Codes and step numbers are the protocol's (16.2); sentences are this folder's own.
// * Nothing inside a receipt is a source of trust, and no input ends in an exception.
import {
  EVIDENCE_BYTES_MAX,
  checkPrivate,
  compareFiles,
  contradictions,
  isOneHistory,
  openEvidence,
} from "./histories.mjs";
import { readSide, sideOf, splitFinding } from "./histories.mjs";
import { INDETERMINATE, INVALID, SPLIT, UNREADABLE, VALID, attempt, finding, walkLadder } from "./ladder.mjs";
import { moment, resourcesOf, sentences } from "./leaf.mjs";
import { Malformed, TABLE, decodeDecimal, encodeCanonical, hex, isUtf8, leafHash, must } from "./strict.mjs";
import { openKeyring, parseConsistency } from "./strict.mjs";

const VERSION = "0.1.0.dev0";
const OUTCOMES = ["valid", "indeterminate", "invalid", "unreadable", "split"];
const EXIT_CODES = { [INDETERMINATE]: 3, [INVALID]: 1, [UNREADABLE]: 2, [SPLIT]: 4 };
const LEVELS = ["none", "signed", "included", "witnessed"];
export const VERDICTS = [
  "valid, and the requested level holds",
  "invalid: at least one step failed",
  "usage, or a file or pin that cannot be read; nothing was judged",
  "valid below the requested level, or indeterminate: not enough is known for yes or no",
  "split view proven: the log signed two histories",
];

// --- receipts: steps 11 and 12, and the report ----------------------------------------------------------------------

/** Judge one receipt; `others` are files for steps 6 and 12, `nowMs` the caller's clock. Never throws on content. */
export async function checkReceipt(
  bytes,
  keyring,
  { level = "included", nowMs = null, others = [], texts = null } = {},
) {
  const files = [bytes, ...others];
  const walk = await walkLadder(bytes, keyring, files);
  if (nowMs !== null && walk.leaf) checkEnd(walk, walk.leaf, nowMs);
  const mine = sideOf(walk, bytes);
  for (const [index, other] of others.entries())
    compareWith(walk, mine, await readSide(other, keyring, files), index + 1);
  const [opened, error] = await attempt(() => (texts === null ? [] : checkPrivate(walk, texts)));
  if (error) return unreadable("receipt", error.message, "private_malformed");
  const { findings, directSignature, leaf } = walk;
  const isWhole = !findings.some(({ outcome }) => outcome >= INVALID);
  const reached = walk.level === "none" && directSignature === "valid" ? "signed" : walk.level;
  const said = isWhole && leaf ? [...statement(leaf), ...opened] : [];
  const facts = factsOf(walk, keyring);
  return report("receipt", findings, {
    requested: level,
    level: isWhole ? reached : "none",
    directSignature,
    said,
    facts,
  });
}

/** Step 11. */
function checkEnd(walk, { value, type }, nowMs) {
  if (!TABLE.holding.includes(type) && !("validUntilMs" in value))
    return walk.note(11, "no_lease", "this entry grants nothing that could end");
  const endMs = value.validUntilMs ?? value.endsIfIdleAtMs ?? value.expiresAtMs;
  if (nowMs < endMs) return;
  walk.say(11, "expired", `the stated end ${moment(endMs)} is not after --now ${moment(nowMs)}`, INDETERMINATE);
}

/** Step 12: two signed statements of one origin agree, contradict each other, or leave it open. */
function compareWith(walk, mine, other, number) {
  if (!other.tree && !other.leaves.length && !other.proof)
    walk.say(12, "other_unusable", `other file ${number} carries no valid signature that is pinned`, INDETERMINATE);
  else if (other.walk.leafBytes.length && !other.leaves.length)
    walk.note(12, "other_leaf_unproven", `other file ${number}: its leaf is not proven`);
  if (mine.origin === null || mine.origin !== other.origin) return;
  const found = contradictions(mine, other);
  walk.findings.push(...found.map(splitFinding));
  if (!mine.tree || !other.tree || found.length || isOneHistory(mine, other, [])) return;
  const sizes = `sizes ${mine.tree.size} and ${other.tree.size}`;
  walk.note(12, "consistency_not_checked", `${sizes}: consistency not checked, needs a proof or the ledger`);
}

/** Compare two files, or judge an evidence file (then `b` is null): the report, and the evidence of a split or null. */
export async function checkCompare(a, b, keyring, proof = null) {
  const [opened, error] = await attempt(() => ({
    ...(b === null ? openEvidence(a) : { a, b, stated: null }),
    proofs: proof === null ? [] : [parseConsistency(proof)],
  }));
  if (error) return [unreadable("compare", error.message, "compare_malformed"), null];
  const files = [opened.a, opened.b, ...(proof === null ? [] : [proof])];
  const { sides, findings, split } = await compareFiles(
    opened.a,
    opened.b,
    keyring,
    opened.proofs,
    files,
    opened.stated,
  );
  const signed = sides.map(
    ({ tree, walk }, at) => tree && `${"AB"[at]}: ${tree.origin} at size ${tree.size}, ${walk.signers.level}`,
  );
  const isOne = findings.every(({ outcome }) => outcome === VALID);
  const said = [...signed.filter(Boolean), ...(isOne ? ["A and B are of one history"] : [])];
  const sharedRanges = [...sides[0].ranges.keys()].filter((place) => sides[1].ranges.has(place)).length;
  const facts = { origin: sides[0].origin, sharedRanges, sizes: sides.map(({ tree }) => tree?.size ?? null) };
  const evidence = split.length ? makeEvidence(split[0][0], sides[0].origin, opened.a, opened.b) : null;
  return [report("compare", findings, { said, facts }), evidence];
}

const makeEvidence = (code, origin, a, b) =>
  `${encodeCanonical({ type: "tallystick/evidence/1", code, origin, a: isUtf8(a), b: isUtf8(b) })}\n`;

/** What the receipt says, in words; the claims are the gateway's and the actor's. */
function statement(leaf) {
  const { seq, origin, type, timeMs, actor, principal, onBehalfOf, value } = leaf;
  return [
    `entry ${seq} of ${origin}: ${type} at ${moment(timeMs)} by ${actor}`,
    ...(onBehalfOf === actor ? [] : [`for principal ${principal}, on behalf of operator ${onBehalfOf}`]),
    ...resourcesOf(value).map((name) => `resource ${name}`),
    ...sentences(leaf),
    ...("custody" in value ? ["key held by the gateway: consent not proven"] : []),
  ];
}

const factsOf = (walk, keyring) => ({
  ignoredLines: walk.signers?.ignoredLines ?? 0,
  keysVersion: keyring.document?.version ?? null,
  leafHash: walk.leafBytes.length ? hex(leafHash(walk.leafBytes)) : null,
  origin: walk.leaf?.value.origin ?? null,
  seq: walk.leaf?.value.seq ?? null,
  size: walk.checkpoint?.size ?? null,
  type: walk.leaf?.value.type ?? null,
});

/** Printable ASCII, at most 600 characters: a hostile leaf must not move a cursor or forge a line. */
function escape(source) {
  const characters = [...source];
  const cut = characters.length > 600 ? [...characters.slice(0, 600), "..."] : characters;
  return cut.map(escapeOne).join("");
}

function escapeOne(character) {
  const short = { "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t" }[character];
  const code = character.codePointAt(0);
  if (short || (code >= 0x20 && code < 0x7f)) return short ?? character;
  const [mark, width] = code < 0x100 ? ["x", 2] : code < 0x10000 ? ["u", 4] : ["U", 8];
  return `\\${mark}${code.toString(16).padStart(width, "0")}`;
}

/** Findings to one verdict: the gravest decides, and of those the lowest step is named. */
function report(
  command,
  findings,
  { requested = "none", level = "none", directSignature = "not_checked", ...rest } = {},
) {
  const { said = [], facts = {}, ...more } = rest;
  const outcome = Math.max(VALID, ...findings.map((one) => one.outcome));
  const grave = findings.filter((one) => one.outcome === outcome && outcome !== VALID);
  const failedStep = grave.length ? Math.min(...grave.map((one) => one.step)) : null;
  const isReached = LEVELS.indexOf(level.split(" ")[0]) >= LEVELS.indexOf(requested);
  const rows = findings.map(({ code, outcome: of, step, text: said }) =>
    JSON.stringify({
      clause: TABLE.clauses[code] ?? null,
      code,
      outcome: OUTCOMES[of],
      seq: null,
      step,
      text: escape(said),
    }),
  );
  const escaped = ([name, fact]) => [name, typeof fact === "string" ? escape(fact) : fact];
  return {
    command,
    completeness: "unknown",
    directSignature,
    exitCode: EXIT_CODES[outcome] ?? (isReached ? 0 : 3),
    facts: Object.fromEntries(Object.entries(facts).map(escaped)),
    failedStep,
    findings: [...new Set(rows)].map((row) => JSON.parse(row)),
    level,
    requestedLevel: requested,
    statement: said.map(escape),
    verdict: OUTCOMES[outcome],
    ...more,
  };
}

const unreadable = (command, reason, code) => report(command, [finding(0, code, reason, UNREADABLE)]);

/** Judge files that are at hand as bytes: what the command line and the page both call. */
export async function verify({ command = "receipt", file, root = null, keys = null, policy = null, ...rest }) {
  const { minKeysVersion = 0, also = [], level, nowMs = null, texts = null, other = null, proof = null } = rest;
  const [keyring, error] = await attempt(async () => {
    const opened = await openKeyring({ root, keys, policy });
    const version = opened.document?.version ?? 0;
    must(version >= minKeysVersion, `the key document's version ${version} is below ${minKeysVersion}`);
    return opened;
  });
  if (error) return { report: unreadable(command, error.message, "pins_malformed"), evidence: null };
  if (command === "receipt")
    return { report: await checkReceipt(file, keyring, { level, nowMs, others: also, texts }), evidence: null };
  const [found, evidence] = await checkCompare(file, other, keyring, proof);
  return { report: found, evidence };
}

// --- command line ---------------------------------------------------------------------------------------------------

const PINS = {
  "--root": "root",
  "--keys": "keys",
  "--policy": "policy",
  "--min-keys-version": "minKeysVersion",
};
const OPTIONS = {
  receipt: { ...PINS, "--level": "level", "--now": "nowMs", "--also": "also", "--private": "texts" },
  compare: { ...PINS, "--proof": "proof", "--evidence": "evidence" },
};
const { RECEIPT_BYTES_MAX, TEXT_BYTES_MAX } = TABLE.limits;
const FILES = { keys: TEXT_BYTES_MAX, policy: TEXT_BYTES_MAX, also: RECEIPT_BYTES_MAX, texts: RECEIPT_BYTES_MAX };
FILES.proof = TEXT_BYTES_MAX;
const USAGE = `usage: verify.mjs receipt FILE [--level signed|included|witnessed] [--now MS] [--also FILE ...]
                               [--private FILE]
       verify.mjs compare A [B] [--proof FILE] [--evidence OUT]
pins:  --root VKEY|@FILE --keys FILE, or --policy FILE, or all three; --min-keys-version N; --json
exit codes:
${VERDICTS.map((when, code) => `  ${code}  ${when}`).join("\n")}`;

class Usage extends Error {}

function parseArguments([command, ...rest]) {
  const options = { command, also: [], isJson: false, positional: [] };
  if (!Object.hasOwn(OPTIONS, command ?? "")) throw new Usage("the command is receipt or compare");
  for (let at = 0; at < rest.length; at += 1) {
    const [name, mark, value] = rest[at].startsWith("--") ? split(rest[at]) : [rest[at], "", ""];
    if (name === "--json" && !mark) options.isJson = true;
    else if (!name.startsWith("-")) options.positional.push(name);
    else if (!Object.hasOwn(OPTIONS[command], name)) throw new Usage(`no option ${name}`);
    else {
      const values = mark ? [value] : [];
      const isMany = name === "--also";
      while (!mark && at + 1 < rest.length && !rest[at + 1].startsWith("-") && (isMany || !values.length))
        values.push(rest[(at += 1)]);
      if (!values.length) throw new Usage(`${name} needs a value`);
      options[OPTIONS[command][name]] = isMany ? values : values[0];
    }
  }
  const most = command === "compare" ? 2 : 1;
  if (options.positional.length < 1 || options.positional.length > most) throw new Usage("too few or too many files");
  if (options.level !== undefined && LEVELS.indexOf(options.level) < 1)
    throw new Usage("--level is one of its choices");
  for (const name of ["nowMs", "minKeysVersion"])
    if (options[name] !== undefined) options[name] = number(options[name]);
  return options;
}

function split(argument) {
  const at = argument.indexOf("=");
  return at < 0 ? [argument, "", ""] : [argument.slice(0, at), "=", argument.slice(at + 1)];
}

function number(source) {
  try {
    return decodeDecimal(source);
  } catch (error) {
    throw new Usage(error.message);
  }
}

/** The report for a person. */
export function asText(found) {
  const grave = found.findings.find((one) => one.step === found.failedStep && one.outcome === found.verdict);
  const at = grave ? ` at step ${grave.step}: ${grave.code}` : "";
  const notes = [...found.findings].sort((a, b) => OUTCOMES.indexOf(b.outcome) - OUTCOMES.indexOf(a.outcome));
  const mark = (one) => (one.outcome === "valid" ? "note" : one.outcome.toUpperCase());
  const clause = (one) => (one.clause === null ? "" : ` (protocol ${one.clause})`);
  const reached = [
    `level: ${found.level} (requested: ${found.requestedLevel})`,
    `direct signature: ${found.directSignature.replaceAll("_", " ")}`,
    `completeness: ${found.completeness}`,
  ];
  return [
    `${found.verdict.toUpperCase()}${at}`,
    ...(found.command === "receipt" ? reached : []),
    ...found.statement,
    ...notes.map((one) => `  step ${one.step} ${mark(one)} ${one.code}${clause(one)}: ${one.text}`),
    `exit ${found.exitCode}: ${VERDICTS[found.exitCode]}`,
  ].join("\n");
}

function readFiles(options, fs) {
  const read = (path, max) => {
    must(fs.statSync(path).isFile(), `${path} is no regular file`, "unreadable");
    const bytes = fs.readFileSync(path);
    return max === null || bytes.length <= max ? Uint8Array.from(bytes) : null;
  };
  const bounded = (path, max) => {
    const bytes = read(path, max);
    must(bytes !== null, `${path}: the file is larger than ${max} bytes`);
    return bytes;
  };
  const found = { ...options };
  if (options.root?.startsWith("@")) {
    const text = isUtf8(bounded(options.root.slice(1), TEXT_BYTES_MAX));
    must(text !== null, "the file of --root is not UTF-8");
    found.root = text.endsWith("\n") ? text.slice(0, -1) : text;
  } else must(!options.root || options.root.includes("+"), "--root is not a verifier key; from a file write @FILE");
  for (const [name, max] of Object.entries(FILES))
    if (typeof options[name] === "string") found[name] = bounded(options[name], max);
    else if (options[name]) found[name] = options[name].map((path) => bounded(path, max));
  const [path, other = null] = options.positional;
  if (options.command === "receipt") return { ...found, file: read(path, null) }; // whose bound is step 1
  found.other = other === null ? null : bounded(other, RECEIPT_BYTES_MAX);
  return { ...found, file: bounded(path, other === null ? EVIDENCE_BYTES_MAX : RECEIPT_BYTES_MAX) };
}

/** What the command line `args` comes to: {exitCode, out, error}; `fs` reads the files. */
export async function run(args, fs) {
  if (args[0] === "--version") return { exitCode: 0, out: `tallystick-verify ${VERSION}` };
  if (args.includes("--help") || args.includes("-h")) return { exitCode: 0, out: USAGE };
  try {
    const options = parseArguments(args);
    const found = await judgeFiles(options, fs);
    return { exitCode: found.exitCode, out: options.isJson ? JSON.stringify(found) : asText(found) };
  } catch (error) {
    // A fault of ours must not look like a verdict, which an exception's exit code 1 would.
    const reason =
      error instanceof Usage ? `${error.message}; see verify.mjs --help` : `${error.stack}\nnothing was judged`;
    return { exitCode: 2, error: `verify.mjs: ${reason}` };
  }
}

async function judgeFiles(options, fs) {
  try {
    const { report: found, evidence } = await verify(readFiles(options, fs));
    if (evidence !== null && options.evidence !== undefined) keepEvidence(options.evidence, evidence, fs);
    return found;
  } catch (error) {
    if (!(error instanceof Malformed) && !error.syscall) throw error;
    const code = error instanceof Malformed ? (error.code ?? "pins_malformed") : "unreadable";
    return unreadable(options.command, error.message, code);
  }
}

/** A file that is there already is not written over; the verdict stands either way. */
function keepEvidence(path, evidence, fs) {
  try {
    fs.writeFileSync(path, evidence, { flag: "wx" });
  } catch (error) {
    console.error(`verify.mjs: the evidence was not written: ${error.message}`);
  }
}

async function main(args) {
  process.removeAllListeners("warning"); // Node 20 calls Ed25519 in WebCrypto experimental; what it says is not ours
  const { exitCode, out, error } = await run(args, await import("node:fs"));
  if (out !== undefined) console.log(out);
  if (error !== undefined) console.error(error);
  process.exitCode = exitCode;
}

if (typeof process !== "undefined" && process.argv?.[1]) {
  const { realpathSync } = await import("node:fs");
  const { fileURLToPath } = await import("node:url");
  if (realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) await main(process.argv.slice(2));
}
