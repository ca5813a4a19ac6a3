// Strict readings of what is signed: bytes, JSON, Ed25519, notes, proofs, policies, key documents.
//
// JSON.parse, atob, Number() and WebCrypto are all lax in some way. Values are decoded here, written again and
// compared; keys and signatures meet the strict rule of protocol 15.1 before WebCrypto sees them.
// Source: docs/protocol.md 2 (encodings), 13 (tree, checkpoints, notes), 14.3 (proofs), 15 (keys), 16.7 (pinning).
import written from "./entries.mjs";

/** The table without the names that every object of JavaScript inherits: a member "constructor" is not known. */
export const TABLE = (function bare(value) {
  if (value !== null && typeof value === "object") Object.values(value).forEach(bare);
  return value === null || typeof value !== "object" || Array.isArray(value)
    ? value
    : Object.setPrototypeOf(value, null);
})(written);

const { INT_MAX, PROOF_BYTES_MAX, TEXT_BYTES_MAX } = TABLE.limits;

/** The bytes are not what they claim to be. `code` is there where a report names one. */
export class Malformed extends Error {
  constructor(text, code) {
    super(text);
    this.code = code;
  }
}

export const must = (isGood, text, code) => {
  if (!isGood) throw new Malformed(text, code);
};

// --- bytes ----------------------------------------------------------------------------------------------------------

export const utf8 = (text) => new TextEncoder().encode(text);
export const latin1 = (bytes) => Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
export const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
const unhex = (text) => Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));
export const same = (a, b) => a.length === b.length && a.every((byte, index) => byte === b[index]);
export const join = (...parts) => Uint8Array.from(parts.flatMap((part) => [...part]));

export const isUtf8 = (bytes) => {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return null;
  }
};

export const encodeBase64 = (bytes) => btoa(latin1(bytes));

/** Padded, canonical RFC 4648 base64; exactly `size` bytes when given. */
export function decodeBase64(text, size) {
  let bytes = null;
  try {
    bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  } catch {}
  const isGood = bytes !== null && encodeBase64(bytes) === text && (size === undefined || bytes.length === size);
  must(isGood, `base64 text must be in its canonical spelling and hold ${size ?? "any number of"} bytes`);
  return bytes;
}

export function decodeDecimal(text, maximum = INT_MAX) {
  const isGood = /^(?:0|[1-9][0-9]{0,15})$/.test(text) && Number(text) <= maximum;
  must(isGood, `a decimal number is 0 to ${maximum} in digits only, without sign, spaces or leading zeros`);
  return Number(text);
}

function decodeText(bytes, bytesMax) {
  const isPlain = bytes.length <= bytesMax && !bytes.some((byte) => byte < 0x20 && byte !== 0x0a);
  must(isPlain, `text has at most ${bytesMax} bytes and no control byte`);
  const text = isUtf8(bytes);
  must(text !== null, "text is not UTF-8");
  return text;
}

const ROUNDS = [];
const FIRST = [];
for (let prime = 2; ROUNDS.length < 64; prime += 1) {
  if (ROUNDS.every((row) => prime % row.prime)) {
    const fraction = (root) => Math.floor((root - Math.floor(root)) * 2 ** 32) | 0;
    if (FIRST.length < 8) FIRST.push(fraction(Math.sqrt(prime)));
    ROUNDS.push({ prime, k: fraction(Math.cbrt(prime)) });
  }
}

/** SHA-256 by FIPS 180-4, because WebCrypto's is asynchronous and hashes are everywhere. */
export function sha256(bytes) {
  const padded = new Uint8Array((((bytes.length + 8) >> 6) + 1) << 6);
  padded.set(bytes);
  padded[bytes.length] = 0x80;
  const view = new DataView(padded.buffer);
  view.setUint32(padded.length - 8, Math.floor(bytes.length / 2 ** 29));
  view.setUint32(padded.length - 4, (bytes.length << 3) >>> 0);
  const state = [...FIRST];
  const w = new Int32Array(64);
  const turn = (x, n) => (x >>> n) | (x << (32 - n));
  for (let block = 0; block < padded.length; block += 64) {
    for (let i = 0; i < 16; i += 1) w[i] = view.getInt32(block + 4 * i);
    for (let i = 16; i < 64; i += 1) {
      const a = turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ (w[i - 15] >>> 3);
      const b = turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ (w[i - 2] >>> 10);
      w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    let [a, b, c, d, e, f, g, h] = state;
    for (let i = 0; i < 64; i += 1) {
      const one = (h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + ROUNDS[i].k + w[i]) | 0;
      const two = ((turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      [a, b, c, d, e, f, g, h] = [(one + two) | 0, a, b, c, (d + one) | 0, e, f, g];
    }
    [a, b, c, d, e, f, g, h].forEach((word, i) => (state[i] = (state[i] + word) | 0));
  }
  const digest = new DataView(new ArrayBuffer(32));
  state.forEach((word, i) => digest.setInt32(4 * i, word));
  return new Uint8Array(digest.buffer);
}

// --- strict JSON ----------------------------------------------------------------------------------------------------

export const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const SURROGATE = /[\ud800-\udfff]/u; // with u: only those without their other half

/** Texts in the order of their code points; JavaScript's own order is that of UTF-16 units. */
export function byCodePoint(a, b) {
  const [x, y] = [[...a], [...b]];
  for (let i = 0; i < Math.min(x.length, y.length); i += 1)
    if (x[i] !== y[i]) return x[i].codePointAt(0) - y[i].codePointAt(0);
  return x.length - y.length;
}

/** Reads one JSON value; JSON.parse would take duplicate members, fractions and integers it can't hold. */
class JsonReader {
  constructor(text, depthMax) {
    [this.text, this.at, this.depthMax] = [text, 0, depthMax];
  }
  take(pattern) {
    pattern.lastIndex = this.at;
    const match = pattern.exec(this.text);
    if (match) this.at += match[0].length;
    return match;
  }
  skip(character) {
    this.take(/[ \t\n\r]*/y);
    const isThere = this.text[this.at] === character;
    if (isThere) this.at += 1;
    return isThere;
  }
  document() {
    const value = this.value(1);
    this.take(/[ \t\n\r]*/y);
    must(this.at === this.text.length, "JSON text goes on behind its value");
    return value;
  }
  value(depth) {
    if (this.skip("{")) return this.object(depth);
    if (this.skip("[")) return this.list(depth);
    if (this.text[this.at] === '"') return this.string();
    const word = this.take(/true|false|null/y);
    if (word) return { true: true, false: false, null: null }[word[0]];
    const number = this.take(/-?[0-9.eE+-]+/y);
    const isInteger = number && /^(?:0|-?[1-9][0-9]{0,15})$/.test(number[0]);
    must(isInteger && Math.abs(Number(number[0])) <= INT_MAX, "JSON: an integer within ±(2^53 - 1), or malformed");
    return Number(number[0]);
  }
  string() {
    const match = this.take(/"(?:[^"\\\u0000-\u001f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"/y);
    must(match, "a JSON string is malformed");
    const value = JSON.parse(match[0]);
    must(!SURROGATE.test(value), "a JSON string holds a lone surrogate");
    return value;
  }
  object(depth) {
    must(depth <= this.depthMax, "JSON text is nested too deep");
    const found = Object.create(null);
    if (this.skip("}")) return found;
    do {
      this.take(/[ \t\n\r]*/y);
      const name = this.string();
      must(!(name in found) && this.skip(":"), "a JSON member name appears twice, or has no colon");
      found[name] = this.value(depth + 1);
    } while (this.skip(","));
    must(this.skip("}"), "a JSON object does not end");
    return found;
  }
  list(depth) {
    must(depth <= this.depthMax, "JSON text is nested too deep");
    const found = [];
    if (this.skip("]")) return found;
    do found.push(this.value(depth + 1));
    while (this.skip(","));
    must(this.skip("]"), "a JSON list does not end");
    return found;
  }
}

/** The one JSON object in `bytes`: its spelling is free, its values are not. */
export function parseJson(bytes, bytesMax = TEXT_BYTES_MAX, depthMax = 8) {
  must(bytes.length <= bytesMax, `JSON text is larger than ${bytesMax} bytes`);
  const text = isUtf8(bytes);
  must(text !== null, "JSON text is not UTF-8");
  const value = new JsonReader(text, depthMax).document();
  must(isObject(value), "JSON text must be an object");
  return value;
}

/** The one RFC 8785 spelling of a value that `parseJson` can read. */
export function encodeCanonical(value) {
  if (Array.isArray(value)) return `[${value.map(encodeCanonical).join(",")}]`;
  if (!isObject(value)) return JSON.stringify(value);
  const names = Object.keys(value).sort(byCodePoint);
  return `{${names.map((name) => `${JSON.stringify(name)}:${encodeCanonical(value[name])}`).join(",")}}`;
}

const hasGoodNames = (value) =>
  value === null ||
  typeof value !== "object" ||
  (Object.values(value).every(hasGoodNames) &&
    (Array.isArray(value) || Object.keys(value).every((name) => /^[a-z][a-zA-Z0-9_]{0,63}$/.test(name))));

/** As `parseJson`, and `bytes` is the canonical spelling with plain member names. */
export function parseCanonical(bytes, bytesMax = TEXT_BYTES_MAX) {
  const value = parseJson(bytes, bytesMax);
  must(same(utf8(encodeCanonical(value)), bytes), "JSON text is not in canonical form (RFC 8785)");
  must(hasGoodNames(value), "a JSON member name must match [a-z][a-zA-Z0-9_]{0,63}");
  return value;
}

// --- strict Ed25519 (protocol 15.1) ---------------------------------------------------------------------------------

const P = 2n ** 255n - 19n;
const L = 2n ** 252n + 27742317777372353535851937790883648493n;
const mod = (number) => ((number % P) + P) % P;

function power(base, exponent) {
  let [result, square] = [1n, base];
  for (let rest = exponent; rest; rest >>= 1n) {
    if (rest & 1n) result = (result * square) % P;
    square = (square * square) % P;
  }
  return result;
}

const D = mod(-121665n * power(121666n, P - 2n));
const ROOT_OF_MINUS_1 = power(2n, (P - 1n) / 4n);
const littleEndian = (bytes) => BigInt(`0x0${hex([...bytes].reverse())}`);
const yOf = (bytes) => littleEndian(bytes) & (2n ** 255n - 1n);

/** The point that 32 canonical bytes name, in extended coordinates, or null. */
function decodePoint(bytes) {
  const y = yOf(bytes);
  const [u, v] = [mod(y * y - 1n), mod(D * y * y + 1n)];
  let x = mod(u * power(v, 3n) * power(u * power(v, 7n), (P - 5n) / 8n));
  if (mod(v * x * x) !== u) x = mod(x * ROOT_OF_MINUS_1);
  if (mod(v * x * x) !== u) return null;
  if ((x & 1n) !== BigInt(bytes[31] >> 7)) x = mod(-x);
  return [x, y, 1n, mod(x * y)];
}

function add([x1, y1, z1, t1], [x2, y2, z2, t2]) {
  const [a, b] = [(y1 - x1) * (y2 - x2), (y1 + x1) * (y2 + x2)];
  const [c, d] = [2n * t1 * t2 * D, 2n * z1 * z2];
  const [e, f, g, h] = [mod(b - a), mod(d - c), mod(d + c), mod(b + a)];
  return [mod(e * f), mod(g * h), mod(f * g), mod(e * h)];
}

function multiply(scalar, point) {
  let [result, doubled] = [[0n, 1n, 1n, 0n], point];
  for (let rest = scalar; rest; rest >>= 1n) {
    if (rest & 1n) result = add(result, doubled);
    doubled = add(doubled, doubled);
  }
  return result;
}

const isIdentity = ([x, y, z]) => x === 0n && y === z;

/** Order 1, 2, 4 or 8, whatever the sign bit: eight times it is the identity. */
function isSmallOrder(bytes) {
  const point = decodePoint(bytes);
  return point !== null && isIdentity(multiply(8n, point));
}

const strictKeys = new Map();

/** 32 bytes, canonical, and of prime order. */
export function isStrictKey(key) {
  const name = hex(key);
  if (!strictKeys.has(name)) strictKeys.set(name, judgeKey(key));
  return strictKeys.get(name);
}

function judgeKey(key) {
  if (key.length !== 32 || yOf(key) >= P) return false;
  const point = decodePoint(key);
  return point !== null && !isIdentity(multiply(8n, point)) && isIdentity(multiply(L, point));
}

/** A strict Ed25519 signature. WebCrypto decides the equation, after what it is lax about was decided here. */
export async function isValid(key, message, signature) {
  if (signature.length !== 64 || littleEndian(signature.slice(32)) >= L) return false;
  const r = signature.slice(0, 32);
  if (yOf(r) >= P || isSmallOrder(r) || !isStrictKey(key)) return false;
  const imported = await crypto.subtle.importKey("raw", key, { name: "Ed25519" }, false, ["verify"]);
  return crypto.subtle.verify("Ed25519", imported, signature, message);
}

// --- names of keys, notes -------------------------------------------------------------------------------------------

const DIGITS = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
const dids = new Map();

/** The key that a did:key names, or null when it is not the one did:key of a strict Ed25519 key. */
export function decodeDid(did) {
  if (!dids.has(did)) dids.set(did, judgeDid(did));
  return dids.get(did);
}

function judgeDid(did) {
  if (!/^did:key:z6Mk[1-9A-HJ-NP-Za-km-z]{44}$/.test(did)) return null;
  const number = [...did.slice(9)].reduce((sum, digit) => sum * 58n + BigInt(DIGITS.indexOf(digit)), 0n);
  const bytes = unhex(number.toString(16).padStart(68, "0"));
  const key = bytes.slice(2);
  return bytes.length === 34 && bytes[0] === 0xed && bytes[1] === 0x01 && isStrictKey(key) ? key : null;
}

const base64url = (bytes) => encodeBase64(bytes).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
export const thumbprint = (key) => base64url(sha256(utf8(`{"crv":"Ed25519","kty":"OKP","x":"${base64url(key)}"}`)));

// Spelled out: \s means other characters in other languages.
const SPACES = "\\u0000-\\u0020\\u007f\\u0085\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const KEY_NAME = new RegExp(`^[^+${SPACES}\\ud800-\\udfff]+$`, "u");
const isKeyName = (name) => KEY_NAME.test(name);
export const [ED25519, COSIGNATURE] = [1, 4];

/** The key of a vkey text, which is split at its first two plus signs: base64 itself holds some. */
export function parseVkey(text) {
  const [name, , rest] = partition(text, "+");
  const [kind, ...key] = decodeBase64(partition(rest, "+")[2]);
  must(isKeyName(name), "a key name is not empty and holds no space, plus sign or control character");
  must(kind === ED25519 || kind === COSIGNATURE, "a vkey must be of kind 1 (Ed25519) or 4 (Ed25519 cosignature)");
  const publicKey = Uint8Array.from(key);
  must(isStrictKey(publicKey), "a vkey must hold an Ed25519 key of the prime-order subgroup in canonical form");
  const id = hex(sha256(join(utf8(`${name}\n`), [kind], publicKey)).slice(0, 4));
  const vkey = `${name}+${id}+${encodeBase64(join([kind], publicKey))}`;
  must(vkey === text, "a vkey is <name>+<key id>+<base64>, and the key id must fit the name and the key");
  return { name, id, kind, publicKey, vkey };
}

function partition(text, mark) {
  const at = text.indexOf(mark);
  return at < 0 ? [text, "", ""] : [text.slice(0, at), mark, text.slice(at + mark.length)];
}

/** A signed note: text, an empty line, 1 to 64 signature lines; only one spelling is accepted. */
export function parseNote(bytes) {
  const whole = decodeText(bytes, TEXT_BYTES_MAX);
  const at = whole.lastIndexOf("\n\n");
  const rows =
    at < 0
      ? whole.split("\n").slice(0, -1)
      : whole
          .slice(at + 2)
          .split("\n")
          .slice(0, -1);
  must(rows.length >= 1 && rows.length <= 64, "a note is a text, an empty line, and 1 to 64 whole signature lines");
  const note = { text: `${at < 0 ? "" : whole.slice(0, at)}\n`, lines: rows.map(parseLine) };
  must(encodeNote(note) === whole, "a note is not in its only accepted spelling");
  return note;
}

export function encodeNote(note) {
  const rows = note.lines.map((line) => `— ${line.name} ${encodeBase64(join(unhex(line.id), line.signature))}\n`);
  return `${note.text}\n${rows.join("")}`;
}

function parseLine(row) {
  const [dash, , rest] = partition(row, " ");
  const [name, , text] = partition(rest, " ");
  const payload = decodeBase64(text);
  const isGood = dash === "—" && isKeyName(name) && payload.length >= 5;
  must(isGood, "a signature line is an em dash, a key name, and base64 of a 4-byte key id and a signature");
  return { name, id: hex(payload.slice(0, 4)), signature: payload.slice(4) };
}

const isBy = (line, key) => line.name === key.name && line.id === key.id;

async function isLineValid(line, key, text) {
  if (key.kind === ED25519) return isValid(key.publicKey, utf8(text), line.signature);
  if (line.signature.length !== 72) return false;
  const timeS = new DataView(line.signature.slice(0, 8).buffer).getBigUint64(0);
  const message = utf8(`cosignature/v1\ntime ${timeS}\n${text}`);
  return timeS < 2n ** 63n && isValid(key.publicKey, message, line.signature.slice(8));
}

/** One boolean per line that claims to be by `key`: does it verify? */
export const marks = (note, key) =>
  Promise.all(note.lines.filter((line) => isBy(line, key)).map((line) => isLineValid(line, key, note.text)));

export const isOnlyMark = (found) => found.length === 1 && found[0];

// --- tree, checkpoint, proof ----------------------------------------------------------------------------------------

const EMPTY_ROOT = sha256(new Uint8Array());
export const leafHash = (bytes) => sha256(join([0], bytes));
const nodeHash = (left, right) => sha256(join([1], left, right));
const bitsOf = (number) => (number === 0n ? 0 : number.toString(2).length);

/** How many levels of a path are not on the tree's right edge, and how many parts a whole path has. */
function shape(place, last) {
  const inner = bitsOf(place ^ last);
  return [inner, inner + (place >> BigInt(inner)).toString(2).replaceAll("0", "").length];
}

const isOnLeft = (place, level, inner) => level >= inner || ((place >> BigInt(level)) & 1n) === 1n;

/** The root of the tree of `size` leaves that holds hash `leaf` at `index`, or null when the path can't fit. */
export function rootFromInclusion(index, size, leaf, path) {
  if (!(index >= 0 && index < size) || [leaf, ...path].some((part) => part.length !== 32)) return null;
  const place = BigInt(index);
  const [inner, count] = shape(place, BigInt(size) - 1n);
  return path.length === count ? climb(leaf, place, path, inner) : null;
}

const climb = (leaf, place, path, inner) =>
  path.reduce(
    (node, part, level) => (isOnLeft(place, level, inner) ? nodeHash(part, node) : nodeHash(node, part)),
    leaf,
  );

/** The hash of every range of leaves that an inclusion proof shows, "start,stop" to hex; its path must fit.
 *
 * The leaf, the siblings, the nodes above it, and the root of every smaller size that follows: a node with all that
 * lies to the left of it is a whole tree.
 */
export function rangesFromInclusion(index, size, leaf, path) {
  const place = BigInt(index);
  const [inner] = shape(place, BigInt(size) - 1n);
  const [found, lefts, nodes] = [new Map(), [], [[index + 1, leaf, 0]]];
  const keep = (from, to, hash) => found.set(`${from},${to}`, hex(hash));
  let [start, stop, node] = [index, index + 1, leaf];
  keep(start, stop, leaf);
  for (const [level, part] of path.entries()) {
    if (isOnLeft(place, level, inner)) {
      const low = Number(BigInt(start) & (BigInt(start) - 1n));
      keep(low, start, part);
      [start, node] = [low, nodeHash(part, node)];
      lefts.push(part);
    } else {
      const high = Math.min(2 * stop - start, size);
      keep(stop, high, part);
      [stop, node] = [high, nodeHash(node, part)];
    }
    keep(start, stop, node);
    nodes.push([stop, node, lefts.length]);
  }
  if (lefts.length) nodes.push([index, lefts[0], 1]);
  for (const [end, top, count] of nodes)
    keep(
      0,
      end,
      lefts.slice(count).reduce((root, part) => nodeHash(part, root), top),
    );
  return found;
}

/** Does `path` prove that the first `size1` leaves of tree (size2, root2) are tree (size1, root1)? */
export function isConsistent(size1, root1, size2, root2, path) {
  if ([root1, root2, ...path].some((part) => part.length !== 32) || !(size1 >= 0 && size1 <= size2)) return false;
  if (size1 === 0 || size1 === size2) return !path.length && same(root1, size1 === size2 ? root2 : EMPTY_ROOT);
  let level = 0n; // of the last complete subtree of the old tree: where the path begins
  while (!((BigInt(size1) >> level) & 1n)) level += 1n;
  const place = (BigInt(size1) - 1n) >> level;
  const [inner, count] = shape(place, (BigInt(size2) - 1n) >> level);
  const [seed, rest] = place ? [path[0], path.slice(1)] : [root1, path];
  if (!seed || rest.length !== count) return false;
  const old = rest.filter((_, at) => isOnLeft(place, at, inner)); // what lies left of the old edge
  return same(climb(seed, -1n, old, 0), root1) && same(climb(seed, place, rest, inner), root2);
}

/** Parsed, unverified: `size` leaves have `root` in the log named `origin`. */
export function parseCheckpoint(bytes) {
  const note = parseNote(bytes);
  const [origin, ...rows] = note.text.slice(0, -1).split("\n");
  const isWhole = rows.length >= 2 && rows.every((row) => row !== "") && isKeyName(origin);
  must(isWhole, "a checkpoint is an origin that can name a key, a size and a root, one a line, no empty line");
  const [size, root] = [decodeDecimal(rows[0]), decodeBase64(rows[1], 32)];
  must(size > 0 || same(root, EMPTY_ROOT), "a checkpoint of size 0 must have the empty root");
  return { origin, size, root, note };
}

const PROOF = /^c2sp\.org\/tlog-proof@v1\n(?:extra ([^\n]+)\n)?index ([^\n]+)\n((?:[^\n]+\n){0,63})\n([^]+)$/;

export function parseProof(bytes) {
  const match = PROOF.exec(decodeText(bytes, PROOF_BYTES_MAX));
  must(match, "a proof is its first line, extra, index, at most 63 hashes, an empty line, a checkpoint");
  const path = match[3]
    .split("\n")
    .slice(0, -1)
    .map((row) => decodeBase64(row, 32));
  if (match[1] !== undefined) decodeBase64(match[1]); // authenticated by nothing
  return { index: decodeDecimal(match[2]), path, checkpoint: utf8(match[4]) };
}

const CONSISTENCY = /^old ([^\n]+)\n((?:[^\n]+\n){0,63})\n([^]+)$/;

/** A consistency proof in a file (33.2), unverified: that the first `oldSize` leaves of `checkpoint` are a tree. */
export function parseConsistency(bytes) {
  const match = CONSISTENCY.exec(decodeText(bytes, PROOF_BYTES_MAX));
  must(match, "a consistency proof is old and a size, at most 63 hashes, an empty line, a checkpoint");
  const path = match[2]
    .split("\n")
    .slice(0, -1)
    .map((row) => decodeBase64(row, 32));
  return { oldSize: decodeDecimal(match[1]), path, checkpoint: parseCheckpoint(utf8(match[3])) };
}

/** Does a consistency proof lead from checkpoint `old` to exactly the tree of `tree`, whoever signed it? */
export function leads({ oldSize, path, checkpoint }, old, tree) {
  const isAbout = oldSize === old.size && checkpoint.origin === old.origin && checkpoint.note.text === tree.note.text;
  return isAbout && isConsistent(old.size, old.root, checkpoint.size, checkpoint.root, path);
}

// --- what a reader pins ---------------------------------------------------------------------------------------------

const equalKeys = (a, b) => a.vkey === b.vkey;

export function parsePolicy(bytes) {
  const raw = latin1(bytes);
  const isPlain = bytes.length <= TEXT_BYTES_MAX && /^(?:[\t\x20-\x7e\x80-\xff]*\n)*$/.test(raw);
  must(isPlain, "a policy is at most 64 KiB, each line ends with a newline, no control bytes");
  const policy = { logs: [], witnesses: new Map(), groups: new Map(), quorums: [], grouped: new Set() };
  for (const row of raw.split("\n")) {
    const words = row
      .split(/[ \t]+/)
      .filter((word) => word !== "")
      .map(policyWord);
    if (words.length && !words[0].startsWith("#")) readPolicyLine(policy, words);
  }
  must(policy.quorums.length === 1, "a policy has exactly one quorum line");
  return { ...policy, quorum: policy.quorums[0] };
}

/** Non-ASCII is opaque: an undecodable byte keeps a visible form, which no vkey's key id can fit. */
function policyWord(raw) {
  const text = isUtf8(Uint8Array.from(raw, (character) => character.charCodeAt(0)));
  return text ?? raw.replace(/[\x80-\xff]/g, (byte) => `\\x${byte.charCodeAt(0).toString(16)}`);
}

function readPolicyLine(policy, [word, ...rest]) {
  const isTaken = (name) => policy.witnesses.has(name) || policy.groups.has(name);
  if (word === "log" && (rest.length === 1 || rest.length === 2)) {
    policy.logs.push(policyKey(rest[0], ED25519, policy.logs));
  } else if (word === "witness" && (rest.length === 2 || rest.length === 3)) {
    must(rest[0] !== "none" && !isTaken(rest[0]), "a witness or group name is taken");
    policy.witnesses.set(rest[0], policyKey(rest[1], COSIGNATURE, [...policy.witnesses.values()]));
  } else if (word === "group" && rest.length >= 3) {
    const [name, count, ...members] = rest;
    must(name !== "none" && !isTaken(name), "a witness or group name is taken");
    for (const member of members) {
      must(isTaken(member), "a name must be a witness or group of an earlier line");
      must(!policy.grouped.has(member), "a name is a member of at most one group, once");
      policy.grouped.add(member);
    }
    const threshold = { any: 1, all: members.length }[count] ?? decodeDecimal(count, members.length);
    must(threshold > 0, "a group needs at least one of its members");
    policy.groups.set(name, { threshold, members });
  } else {
    must(word === "quorum" && rest.length === 1, "expected log, witness, group or quorum with its names");
    must(rest[0] === "none" || isTaken(rest[0]), "a name must be a witness or group of an earlier line");
    policy.quorums.push(rest[0] === "none" ? null : rest[0]);
  }
}

function policyKey(vkey, kind, others) {
  const key = parseVkey(vkey);
  must(key.kind === kind, "the vkey must be of kind 1 for a log, 4 for a witness");
  must(!others.some((other) => same(other.publicKey, key.publicKey)), "the same public key stands on an earlier line");
  return key;
}

export function isQuorumMet(policy, names) {
  const met = new Set([...names].filter((name) => policy.witnesses.has(name)));
  for (const [name, { threshold, members }] of policy.groups)
    if (members.filter((member) => met.has(member)).length >= threshold) met.add(name);
  return policy.quorum !== null && met.has(policy.quorum);
}

const DOCUMENT =
  /^tallystick-keys\/v1\norigin ([^\n]+)\ngenesis ([^\n]+)\nversion ([^\n]+)\nprevious ([^\n]+)\n((?:key [^\n]+\n)*)$/;
const HASH = /^[0-9a-f]{64}$/;

/** The key document in note `bytes`, signed exactly once by `root`. */
export async function openKeyDocument(bytes, root) {
  const note = parseNote(bytes);
  const isSigned = root.kind === ED25519 && isOnlyMark(await marks(note, root));
  must(isSigned, "the key document carries no valid signature of the pinned root key");
  const document = parseKeyDocument(note.text);
  must(root.name === `${document.origin}/root`, "the pinned root key's name is not <origin>/root of the key document");
  return document;
}

function parseKeyDocument(text) {
  const match = DOCUMENT.exec(text);
  must(match && isKeyName(match[1]), "a key document is its first line, origin, genesis, version, previous, key lines");
  const [, origin, genesis, versionText, previous, rows] = match;
  const version = decodeDecimal(versionText);
  must(HASH.test(genesis) && (previous === "-" || HASH.test(previous)), "genesis and previous are 64 hex digits");
  const isFirst = version === 1;
  must(version >= 1 && isFirst === (previous === "-"), "only version 1 has no previous document");
  const texts = rows.split("\n").slice(0, -1);
  must(encodeCanonical(texts) === encodeCanonical([...texts].sort(byCodePoint)), "key lines are sorted");
  const keys = texts.map((row) => parseKeyLine(row.split(" ").slice(1), origin));
  const distinct = new Set(keys.map((line) => hex(line.key.publicKey)));
  must(distinct.size === keys.length, "a key document names one public key twice");
  return { origin, genesis, version, keys };
}

function parseKeyLine(words, origin) {
  must([5, 7, 8].includes(words.length), "a key line has five words, seven with the final tree, eight with its note");
  const [purpose, vkey, from, to, status, finalSize, finalRoot, finalNote] = words;
  const line = { purpose, key: parseVkey(vkey), from: decodeDecimal(from), status, to: null, final: null };
  if (to !== "-") line.to = decodeDecimal(to);
  if (finalSize !== undefined)
    line.final = { size: decodeDecimal(finalSize), root: decodeBase64(finalRoot, 32), tree: null };
  if (finalNote !== undefined) line.final.tree = parseCheckpoint(decodeBase64(finalNote));
  const name = new Map([
    ["log", origin],
    ["receipt", `${origin}/receipt`],
    ["custodial", line.key.name],
  ]).get(purpose);
  must(name !== undefined && line.key.kind === ED25519, "a key line's purpose is log, receipt or custodial, of kind 1");
  const isNamed = line.key.name === name && `${line.key.name}/`.startsWith(`${origin}/`);
  must(isNamed, "a key line's name is the origin for a log, <origin>/receipt, or below <origin>/ if custodial");
  const isEnded = status === "active" || (["retired", "compromised"].includes(status) && line.to !== null);
  must(isEnded && (line.to === null || line.to >= line.from), "a key line's status or its sizes do not fit");
  const isFinal = status === "compromised" && purpose === "log";
  must((line.final !== null) === isFinal, "a final size and root stand exactly on the line of a compromised log key");
  if (line.final) must(line.final.size >= line.to, "a key line's finalSize is below its toSize");
  const { tree } = line.final ?? { tree: null };
  const isOfIt = !tree || (tree.origin === origin && tree.size === line.final.size && same(tree.root, line.final.root));
  must(isOfIt, "a key line's checkpoint is not of its origin, final size and final root");
  return line;
}

/** Everything a reader trusts; one raw public key never stands for two purposes or names. */
export async function openKeyring({ root = null, keys = null, policy = null } = {}) {
  const isWhole = (root === null) === (keys === null) && !(root === null && policy === null);
  must(isWhole, "pin a root key together with its key document, or a policy, or all three");
  const rootKey = root === null ? null : parseVkey(root);
  const document = rootKey === null ? null : await openKeyDocument(keys, rootKey);
  const opened = policy === null ? null : parsePolicy(policy);
  const pinned = rootKey === null ? [] : [["root", rootKey]];
  for (const line of document?.keys ?? []) pinned.push([line.purpose, line.key]);
  for (const key of opened?.logs ?? []) pinned.push(["log", key]);
  for (const key of opened?.witnesses.values() ?? []) pinned.push(["witness", key]);
  const uses = new Map();
  for (const [purpose, key] of pinned) {
    const [raw, use] = [hex(key.publicKey), `${purpose} ${key.vkey}`];
    must((uses.get(raw) ?? use) === use, "one public key is pinned for two purposes or under two names");
    uses.set(raw, use);
  }
  return { document, policy: opened };
}

export const linesOf = (keyring, purpose, origin) =>
  keyring.document?.origin === origin ? keyring.document.keys.filter((line) => line.purpose === purpose) : [];

export function logLines(keyring, origin) {
  const lines = linesOf(keyring, "log", origin);
  const isNew = (key) => key.name === origin && !lines.some((line) => equalKeys(line.key, key));
  const unbounded = (keyring.policy?.logs ?? []).filter(isNew);
  return [...lines, ...unbounded.map((key) => ({ purpose: "log", key, from: 0, to: null, final: null, isFree: true }))];
}

/** The newest entry that the key document shows: up to it, it shows every change of keys (17.8). */
export const knownSeq = ({ document }) =>
  (document?.keys ?? []).reduce((known, { from, to }) => Math.max(known, from - 1, to ?? 0), 0);

export const lineCovers = (line, size) => line.from <= size && (line.to === null || size <= line.to);
