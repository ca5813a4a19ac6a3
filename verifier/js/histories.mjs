// Two files of one log against each other: what each proves by itself, and where they can't both be true.
//
// Only what a pinned key signed speaks: a tree under a log key that counts for its size, a leaf in such a tree or under
// a receipt key. What a proven leaf says of the history before it is the log's word as well.
// Source: docs/protocol.md 33.
import {
  SPLIT,
  INDETERMINATE,
  VALID,
  Walk,
  attempt,
  checkSigners,
  finding,
  isReceipt,
  parseAnchor,
} from "./ladder.mjs";
import { hasExactly, readCheckpoint, readShown, walkLadder } from "./ladder.mjs";
import { decodeBase64, hex, isObject, leads, leafHash, must, parseJson, sha256, utf8 } from "./strict.mjs";

const EVIDENCE_TYPE = "tallystick/evidence/1";
export const EVIDENCE_BYTES_MAX = 1_048_576;
// The ways in which two signed files can't be of one history, the plainest first.
const SPLITS = ["two_leaves", "two_roots", "two_hashes", "two_geneses", "anchor_differs", "prev_differs"];

/** Judge a receipt, a checkpoint or a consistency proof; `files` are all that is at hand. */
export async function readSide(bytes, keyring, files) {
  if (isReceipt(bytes)) return sideOf(await walkLadder(bytes, keyring, files), bytes);
  const walk = new Walk();
  const [checkpoint, error] = await attempt(() => readCheckpoint(bytes));
  if (error) walk.say(4, "checkpoint_malformed", error.message);
  else {
    [walk.checkpoint, walk.signers] = [checkpoint, await checkSigners(checkpoint, keyring, files)];
    walk.findings.push(...walk.signers.findings);
  }
  return sideOf(walk, bytes);
}

/** What a file, walked before, proves: `ranges` are of a log-signed tree, `leaves` of it or directly signed. */
export function sideOf(walk, bytes) {
  const [shown, tree] = [readShown(bytes), walk.isLogSigned ? walk.checkpoint : null];
  const ranges = new Map(shown && tree ? shown.ranges : []);
  const at = ({ seq }) => `${seq},${seq + 1}`;
  if (walk.directSignature === "valid" && walk.leaf && !ranges.has(at(walk.leaf)))
    ranges.set(at(walk.leaf), hex(leafHash(walk.leafBytes)));
  const known = walk.leaf ? [[walk.leaf, walk.leafBytes]] : [];
  known.push(...(shown?.leaves ?? []).slice(known.length));
  const proven = known.filter(([leaf, encoded]) => ranges.get(at(leaf)) === hex(leafHash(encoded)));
  const origin = tree?.origin ?? proven[0]?.[0].origin ?? null;
  const leaves = proven.filter(([leaf]) => leaf.origin === origin);
  return { walk, tree, ranges, leaves, proof: shown?.proof ?? null, origin };
}

/** What the leaves say of the tree before them, [place, hash, code]: entry 0, and the root their signers had seen. */
function claimsOf({ leaves }) {
  const claims = [];
  for (const [leaf] of leaves) {
    if (leaf.seq) claims.push(["0,1", leaf.genesis, "two_geneses"]);
    try {
      const { origin, size, root } = parseAnchor(leaf.request?.anchor ?? "");
      if (origin === leaf.origin && size <= leaf.seq) claims.push([`0,${size}`, hex(root), "anchor_differs"]);
    } catch {} // its own fault, and said at step 10
  }
  return claims;
}

/** How two sides of one origin contradict each other: [code, sentence], each code once, in the order of SPLITS. */
export function contradictions(a, b) {
  const rows = [];
  const places = [...a.ranges.keys()].filter(
    (place) => b.ranges.has(place) && a.ranges.get(place) !== b.ranges.get(place),
  );
  for (const place of places) rows.push([codeOf(a, b, place), `two different hashes of the entries [${place})`]);
  rows.push(...claimed(a, b), ...claimed(b, a), ...unlinked(a, b), ...unlinked(b, a));
  return SPLITS.map((code) => rows.find((row) => row[0] === code)).filter(Boolean);
}

function codeOf({ tree }, { tree: other }, place) {
  const [start, stop] = place.split(",").map(Number);
  if (stop - start === 1) return "two_leaves";
  return tree && other && tree.size === other.size && place === `0,${tree.size}` ? "two_roots" : "two_hashes";
}

function claimed(a, b) {
  const said = [...b.ranges, ...claimsOf(b).map(([place, hash]) => [place, hash])];
  return claimsOf(a)
    .filter(([place, hash]) => said.some(([where, other]) => where === place && other !== hash))
    .map(([place, , code]) => [code, `a leaf speaks of another tree of the entries [${place}) than the other file`]);
}

/** A leaf that names another one before it than the log signed. */
function unlinked(a, b) {
  const isUnlinked = (leaf, before, encoded) => before.seq + 1 === leaf.seq && hex(sha256(encoded)) !== leaf.value.prev;
  return a.leaves
    .flatMap(([leaf]) => b.leaves.map(([before, encoded]) => [leaf, before, encoded]))
    .filter((row) => isUnlinked(...row))
    .map(([leaf, before]) => ["prev_differs", `entry ${leaf.seq} does not follow the signed entry ${before.seq}`]);
}

/** Are the trees of two sides that don't contradict each other proven to be of one history? */
export function isOneHistory(a, b, proofs) {
  if (!a.tree || !b.tree || a.tree.origin !== b.tree.origin) return false;
  const [older, newer] = a.tree.size <= b.tree.size ? [a, b] : [b, a];
  if (older.tree.size === 0 || newer.ranges.get(`0,${older.tree.size}`) === hex(older.tree.root)) return true;
  const every = [...proofs, a.proof, b.proof].filter(Boolean);
  return every.some((proof) => leads(proof, older.tree, newer.tree));
}

/** What two files prove, the findings about them, and their contradictions; `stated` is the code in evidence. */
export async function compareFiles(a, b, keyring, proofs, files, stated) {
  const sides = [await readSide(a, keyring, files), await readSide(b, keyring, files)];
  const isOfOne = sides[0].origin !== null && sides[0].origin === sides[1].origin;
  const split = isOfOne ? contradictions(...sides) : [];
  const findings = [];
  for (const [name, side] of [
    ["A", sides[0]],
    ["B", sides[1]],
  ])
    for (const { step, code, text, outcome } of side.walk.findings)
      if (step <= 8) findings.push(finding(step, code, `${name}: ${text}`, outcome));
  findings.push(...(split.length ? split.map(splitFinding) : ofBoth(sides, proofs)));
  if (stated !== null && !split.some(([code]) => code === stated))
    findings.push(finding(12, "evidence_differs", "the evidence file states something else than is found", VALID));
  return { sides, findings, split };
}

export const splitFinding = ([code, reason]) => finding(12, code, `the log signed two histories: ${reason}`, SPLIT);

function ofBoth([{ tree: a, ...first }, { tree: b, ...second }], proofs) {
  if (!a || !b) return []; // said already
  const differ = "the files are of two logs, which say nothing about each other";
  if (a.origin !== b.origin) return [finding(12, "origins_differ", differ, INDETERMINATE)];
  if (isOneHistory({ tree: a, ...first }, { tree: b, ...second }, proofs)) return [];
  const reason = `sizes ${a.size} and ${b.size}: nothing contradicts, but only a consistency proof shows one history`;
  return [finding(12, "consistency_not_proven", reason, INDETERMINATE)];
}

/** The two files in an evidence file, and the code that it states. */
export function openEvidence(bytes) {
  const value = isReceipt(bytes) ? parseJson(bytes, EVIDENCE_BYTES_MAX) : Object.create(null);
  const isWhole = hasExactly(value, "type", "code", "origin", "a", "b") && value.type === EVIDENCE_TYPE;
  must(isWhole, "give two files to compare, or one evidence file: type, code, origin, a and b");
  const areTexts = ["a", "b", "code"].every((name) => typeof value[name] === "string");
  must(areTexts, "an evidence file's code, a and b are strings");
  return { a: utf8(value.a), b: utf8(value.b), stated: value.code };
}

// --- private texts (16.11) ------------------------------------------------------------------------------------------

function openPrivate(bytes) {
  const value = parseJson(bytes, 262_144);
  const isWhole = hasExactly(value, "type", "leafHash", "fields") && value.type === "tallystick/private/1";
  must(isWhole && Array.isArray(value.fields), "private texts: exactly type, leafHash and fields, a list");
  must(/^[0-9a-f]{64}$/.test(value.leafHash) && typeof value.leafHash === "string", "leafHash is 64 hex digits");
  return { digest: value.leafHash, fields: value.fields.map(openField) };
}

function openField(row) {
  const known = ["name", "index", "salt", "value"];
  const isWhole =
    isObject(row) && Object.keys(row).every((name) => known.includes(name)) && "name" in row && "salt" in row;
  must(isWhole, "a private field has name, salt, value, perhaps index");
  const { name, index = null, salt, value = null } = row;
  const areTexts = typeof name === "string" && (value === null || typeof value === "string");
  must(areTexts && (index === null || Number.isInteger(index)), "name and value are strings, index is a number");
  must((salt === null) === (value === null) && (index ?? 0) >= 0, "a salt and a value, or salt null and no value");
  return { name, index, salt: salt === null ? null : decodeBase64(typeof salt === "string" ? salt : "", 32), value };
}

/** Step 12 for a file of private texts: say what does not fit, return a sentence for each that does, or is erased. */
export function checkPrivate(walk, bytes) {
  const { digest, fields } = openPrivate(bytes);
  if (!walk.leaf || digest !== hex(leafHash(walk.leafBytes))) {
    walk.say(12, "private_other_leaf", "the private texts belong to another leaf");
    return [];
  }
  const said = [];
  for (const field of fields) {
    const stated = statedDigest(walk.leaf, walk.evidenceLeaf ?? walk.leaf, field);
    if (stated === null) walk.say(12, "private_unknown", `nothing that was signed has a digest ${field.name}`);
    else if (field.salt === null) said.push(`private ${field.name}: erased: not opened`);
    else if (stated !== hex(sha256(Uint8Array.from([...field.salt, ...utf8(field.value)]))))
      walk.say(12, "private_differs", `the text and salt do not give the digest ${field.name}`);
    else said.push(`private ${field.name}: ${field.value}`);
  }
  return said;
}

/** The digest by that name: in the leaf, else in the body that was signed, or in its command. */
function statedDigest(leaf, signed, { name, index: place }) {
  const own = leaf.batch === null ? null : leaf.batch[1];
  const index = place ?? own;
  let asked = own === null || own === index ? bodyOf(signed) : Object.create(null);
  if (index !== null)
    asked = (Array.isArray(asked.commands) ? asked.commands.filter(isObject) : [])[index] ?? Object.create(null);
  const inLeaf = place === null || place === own ? leaf.value[name] : undefined;
  const stated = inLeaf ?? asked[name];
  return typeof stated === "string" ? stated : null;
}

function bodyOf(signed) {
  try {
    return parseJson(utf8(signed.request?.body ?? ""), 40_960);
  } catch {
    return Object.create(null);
  }
}
