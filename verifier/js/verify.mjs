#!/usr/bin/env node
// A second verifier of Tallystick receipts, in JavaScript: Node 20 or later, and browsers. It depends on nothing.
//
// House rules of this folder:
// * It speaks for itself: every check is written again from docs/protocol.md, so that a mistake of the Python verifier is
//   not repeated here. What both share is the table of entry types (entries.mjs, written from verifier/entries.py) and
//   the conformance corpus in tests/vectors, which both pass.
// * strict.mjs reads bytes, keys and notes, leaf.mjs reads leaves and bodies; this file walks the ladder and is the
//   command line. Codes and step numbers are the protocol's (16.2); sentences are this folder's own.
// * Nothing inside a receipt is a source of trust, and no input ends in an exception.
import { bodyBytesMax, bodyDifference, checkBody, checkMembers, commandsIn, covers, is, moment, parseLeaf } from "./leaf.mjs";
import { resourcesOf, sentences } from "./leaf.mjs";
import { Malformed, TABLE, decodeBase64, decodeDecimal, decodeDid, encodeBase64, encodeCanonical, hex } from "./strict.mjs";
import { isOnlyMark, isQuorumMet, isUtf8, isValid, leafHash, lineCovers, linesOf, logLines, marks, must } from "./strict.mjs";
import { openKeyring, parseCheckpoint, parseJson, parseProof, rootFromInclusion, same, sha256 } from "./strict.mjs";
import { thumbprint, unhex, utf8 } from "./strict.mjs";

export * from "./strict.mjs";
export * from "./leaf.mjs";

const VERSION = "0.1.0.dev0";
const LIMITS = TABLE.limits;
const [VALID, INDETERMINATE, INVALID, UNREADABLE, SPLIT] = [0, 1, 2, 3, 4];
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

// --- envelope: steps 1 and 2 ----------------------------------------------------------------------------------------

const PAYLOAD_TYPE = "application/vnd.tallystick.leaf.v1+json";

function preAuthentication(leaf) {
  const head = utf8(`DSSEv1 ${PAYLOAD_TYPE.length} ${PAYLOAD_TYPE} ${leaf.length} `);
  const message = new Uint8Array(head.length + leaf.length);
  message.set(head);
  message.set(leaf, head.length);
  return message;
}

const hasExactly = (value, ...names) =>
  encodeCanonical(Object.keys(value).sort()) === encodeCanonical([...names].sort());
const isPlain = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

function text(value) {
  must(typeof value === "string", "payload, proof, keyid, sig, and in batch leaf and the parts of path are strings");
  return value;
}

const checkSize = (part, size, max) => must(size <= max, `the ${part} has ${size} bytes, at most ${max}`, "too_large");

/** The parts of a receipt, unverified: exactly the members, exactly one signature. */
function openEnvelope(bytes) {
  checkSize("receipt", bytes.length, LIMITS.RECEIPT_BYTES_MAX);
  const envelope = parseJson(bytes, LIMITS.RECEIPT_BYTES_MAX);
  const extra = "batch" in envelope ? ["batch"] : [];
  const isWhole = hasExactly(envelope, "payloadType", "payload", "signatures", "proof", ...extra);
  must(isWhole && envelope.payloadType === PAYLOAD_TYPE, "a receipt has exactly payloadType, payload, signatures, proof");
  const [leaf, proof] = [decodeBase64(text(envelope.payload)), utf8(text(envelope.proof))];
  checkSize("leaf", leaf.length, LIMITS.LEAF_BYTES_MAX);
  checkSize("proof", proof.length, LIMITS.PROOF_BYTES_MAX);
  const header = extra.length ? openHeader(envelope.batch) : null;
  return { leaf, proof, header, signature: openSignature(envelope) };
}

function openSignature({ signatures, ...rest }) {
  if (Array.isArray(signatures) && !signatures.length && "batch" in rest) return null;
  const row = Array.isArray(signatures) && signatures.length === 1 ? signatures[0] : null;
  must(isPlain(row) && hasExactly(row, "keyid", "sig"), "signatures: exactly one; none at all only with batch");
  return { keyid: text(row.keyid), bytes: decodeBase64(text(row.sig), 64) };
}

function openHeader(part) {
  const isWhole = isPlain(part) && hasExactly(part, "leaf", "path") && Array.isArray(part.path);
  must(isWhole && part.path.length <= 63, "batch: an object with exactly leaf and path, at most 63 hashes");
  const leaf = decodeBase64(text(part.leaf));
  checkSize("leaf of the batch", leaf.length, LIMITS.LEAF_BYTES_MAX);
  return { leaf, path: part.path.map((hash) => decodeBase64(text(hash), 32)) };
}

// --- signed requests (protocol 4) -----------------------------------------------------------------------------------

const COMPONENTS = ["@method", "@authority", "@path", "@query", "tallystick-anchor", "content-type", "content-digest"];
COMPONENTS.push("idempotency-key");
const PARAMETERS = [
  "created=(0|[1-9][0-9]{0,14})",
  "expires=(0|[1-9][0-9]{0,14})",
  'keyid="(did:key:z6Mk[1-9A-HJ-NP-Za-km-z]{44})"',
  'alg="(ed25519)"',
  'nonce="([A-Za-z0-9_-]{22,64})"',
  'tag="(tallystick-v1)"',
];
const ONE = '"@?[a-z][a-z0-9-]{0,31}"';
const INPUT = new RegExp(`^([a-z][a-z0-9_-]{0,31})=(\\((${ONE}(?: ${ONE}){0,15})\\)((?:;[a-z]+=[^; ]+){6}))$`);
const PATH = /^(?!.*(?:\/\/|\/\.))\/[A-Za-z0-9._~/-]{0,254}$/;
const QUERY = /^\?[!"$-~]{0,255}$/;

/** One member of Signature-Input; `params` is its exact value from the parenthesis on. */
function parseSignatureInput(value) {
  const [, , params, covered, rest] = INPUT.exec(value) ?? [];
  must(params !== undefined, "Signature-Input is not label=(components) with six parameters");
  const given = rest.slice(1).split(";");
  const [created, expires, keyid, , nonce] = PARAMETERS.map((grammar) => {
    const found = given.map((one) => new RegExp(`^${grammar}$`).exec(one)).filter((match) => match);
    must(found.length === 1, `Signature-Input: exactly one parameter ${grammar} is needed`);
    return found[0][1];
  });
  const components = covered.slice(1, -1).split('" "');
  must(new Set(components).size === components.length, "Signature-Input: a component appears twice");
  return { params, components, created: Number(created), expires: Number(expires), keyid, nonce };
}

function parseAnchor(value) {
  const parts = value.split(" ");
  must(parts.length === 3 && is(TABLE.rows.origin, parts[0]), "tallystick-anchor: <origin> <size> <base64 root>");
  const anchor = { origin: parts[0], size: decodeDecimal(parts[1]), root: decodeBase64(parts[2], 32) };
  must(anchor.size > 0, "tallystick-anchor: size must be at least 1");
  return anchor;
}

function isInsideWindow({ created, expires }, timeMs) {
  const isShort = expires > created && expires - created <= LIMITS.WINDOW_S_MAX;
  return isShort && created * 1000 - LIMITS.SKEW_MS <= timeMs && timeMs < expires * 1000 + LIMITS.SKEW_MS;
}

/** What was signed (RFC 9421 2.5); the digest is computed from the body, never believed. */
function signatureBase(signed, evidence) {
  const values = new Map([
    ["@method", evidence.method],
    ["@authority", evidence.authority],
    ["@path", evidence.path],
    ["@query", evidence.query],
    ["content-type", evidence.contentType],
    ["content-digest", `sha-256=:${encodeBase64(sha256(utf8(evidence.body)))}:`],
    ["idempotency-key", `"${evidence.idempotencyKey}"`],
    ["tallystick-anchor", evidence.anchor],
  ]);
  must(signed.components.every((name) => values.has(name)), "a covered component has no value in this request");
  const lines = signed.components.map((name) => `"${name}": ${values.get(name)}\n`);
  return utf8(`${lines.join("")}"@signature-params": ${signed.params}`);
}

// --- delegations (protocol 28) --------------------------------------------------------------------------------------

const hashOf = (document) => sha256(utf8(encodeCanonical(document)));
const isSignedBy = (did, label, document, signature) =>
  isValid(decodeDid(did), Uint8Array.from([...utf8(`tallystick.${label}/1\n`), ...hashOf(document)]), signature);

/** The chain in member `delegations` of a body, outermost first; Malformed with code delegation_invalid. */
export async function parseDelegations(value, actor) {
  const good = (isGood, reason) => must(isGood, reason, "delegation_invalid");
  good(is(TABLE.rows.delegations, value), "member delegations: 1 to 3 signed statements");
  const chain = value.map((item) => item.statement);
  for (const [index, said] of chain.entries()) {
    checkMembers(said, TABLE.delegation, "delegation_invalid");
    const lifeMs = said.expiresAtMs - said.notBeforeMs;
    good(lifeMs > 0 && lifeMs <= LIMITS.DELEGATION_MS_MAX, `statement ${index} holds for 1 ms to 7 days`);
    const signature = decodeBase64(value[index].signature, 64);
    good(await isSignedBy(said.iss, "delegation", said, signature), `statement ${index} is not signed by its issuer`);
  }
  good(!("parent" in chain[0]), "the first statement has no member parent");
  for (const [index, said] of chain.slice(1).entries()) {
    good(said.iss === chain[index].sub, "iss is the sub of the statement before");
    good(said.parent === hex(hashOf(chain[index])), "parent is the SHA-256 of the statement before");
  }
  good(chain.at(-1).sub === actor, "sub of the last statement is actorDid");
  return chain;
}

/** The first refusal that such a chain earns at this log time without any ledger state, or null. */
export function chainFault(chain, origin, timeMs) {
  const last = chain.at(-1);
  const links = chain.slice(1).map((child, index) => [child, chain[index]]);
  const isWithin = (names, scope) => names.every((name) => scope.some((around) => covers(around, name)));
  const isWider = ([child, parent]) =>
    !(parent.resources === undefined || (child.resources !== undefined && isWithin(child.resources, parent.resources))) ||
    !child.verbs.every((verb) => parent.verbs.includes(verb));
  const isLonger = ([child, parent]) =>
    child.notBeforeMs < parent.notBeforeMs || child.expiresAtMs > parent.expiresAtMs;
  const isDeep = chain.length > 2 || chain.slice(0, -1).some((said) => said.maxDepth === 0);
  if (chain.some((said) => said.aud !== origin)) return "delegation_wrong_ledger";
  if (isDeep) return "delegation_too_deep";
  if (links.some(isWider)) return "delegation_wider";
  if (links.some(isLonger)) return "delegation_longer";
  return last.notBeforeMs <= timeMs && timeMs < last.expiresAtMs ? null : "delegation_expired";
}

// --- evidence: step 10 ----------------------------------------------------------------------------------------------

function bodyOf(action, source) {
  const body = parseJson(utf8(source), bodyBytesMax(action));
  checkBody(action, body);
  return body;
}

/** The value that `read` returns, or the Malformed it throws, as [value, error]. */
async function attempt(read) {
  try {
    return [await read(), null];
  } catch (error) {
    if (error instanceof Malformed) return [null, error];
    throw error;
  }
}

/** Judge the evidence of one leaf alone: [[code, text], …], and the anchor when it can be read. */
async function checkEvidence(leaf) {
  const evidence = leaf.request;
  if (!evidence) return { faults: [["evidence_missing", "an entry caused by a request carries it as evidence"]] };
  const [read, error] = await attempt(() => {
    const found = { signed: parseSignatureInput(evidence.signatureInput), anchor: parseAnchor(evidence.anchor) };
    found.signature = decodeBase64(evidence.signature, 64);
    must(/^[ !#-[\]-~]{1,255}$/.test(evidence.idempotencyKey), "Idempotency-Key: printable ASCII without quotes");
    const isTarget = is(TABLE.rows.authority, evidence.authority) && PATH.test(evidence.path) && QUERY.test(evidence.query);
    must(isTarget, "authority, path or query is outside the door's grammar");
    return found;
  });
  if (error) return { faults: [["evidence_malformed", error.message]] };
  const { signed, anchor, signature } = read;
  const isCovered = signed.components.length === 8 && COMPONENTS.every((name) => signed.components.includes(name));
  const isTarget = evidence.method === "POST" && evidence.path === TABLE.actions[leaf.action]?.path;
  const isRoot = anchor.size !== 1 || hex(anchor.root) === leaf.genesis;
  const rows = [
    ["components_wrong", isCovered, "not exactly the profile's components"],
    ["target_wrong", isTarget, "method and path are not those of the action this entry type answers"],
    ["content_type_wrong", evidence.contentType === "application/json", "content-type is not application/json"],
    ...(await bodyRows(leaf, evidence.body, signed)),
    ["actor_differs", signed.keyid === leaf.actor, "keyid is not the leaf's actor"],
    await signatureRow(evidence, signed, signature),
    ["anchor_wrong", anchor.origin === leaf.origin, "the request's anchor names another ledger"],
    ["anchor_wrong", anchor.size <= leaf.seq, `the anchor's size ${anchor.size} is above the seq ${leaf.seq}`],
    ["anchor_wrong", isRoot, "the anchor of size 1 is not the genesis"],
    ["outside_window", isInsideWindow(signed, leaf.timeMs), "timeMs is outside created to expires, ± 30 s"],
  ];
  return { faults: faultsOf(rows), anchor };
}

const faultsOf = (rows) => rows.filter(([, isGood]) => !isGood).map(([code, , reason]) => [code, reason]);

async function signatureRow(evidence, signed, signature) {
  const key = decodeDid(signed.keyid);
  const [base, error] = await attempt(() => signatureBase(signed, evidence));
  if (error || key === null) return ["evidence_malformed", false, error?.message ?? "keyid is no strict did:key"];
  const isGood = await isValid(key, base, signature);
  return ["request_signature_invalid", isGood, "the signature does not fit method, target, headers and body"];
}

async function bodyRows(leaf, source, signed) {
  const [body, error] = await attempt(() => bodyOf(leaf.action ?? "", source));
  if (error) return [["body_malformed", false, error.message]];
  return [
    ...askedRows(leaf, body, signed.created),
    ...(await identityRows(leaf, body)),
    ["wrong_ledger", body.ledger === leaf.origin, "the signed body names another ledger"],
    ["actor_differs", body.actorDid === leaf.actor, "actorDid of the signed body is not the leaf's actor"],
  ];
}

function askedRows(leaf, body, created) {
  const difference = bodyDifference(leaf, body);
  const isLate = leaf.number("grantedAtMs") >= (created + 1) * 1000;
  const isUnseen = isLate && leaf.is("lease.released") && !("leaseId" in body);
  return [
    ["body_differs", difference === null, `member ${difference} of the leaf is not what the body asks for`],
    ["released_unseen", !isUnseen, "without leaseId no lease ends that was granted after the request was signed"],
  ];
}

async function identityRows(leaf, body) {
  if (leaf.action === "session.open") {
    const [chain, error] = await attempt(() => parseDelegations(body.delegations, leaf.actor));
    if (error) return [[error.code ?? "delegation_invalid", false, error.message]];
    return leaf.is("session.opened") ? openedRows(leaf, chain) : [];
  }
  if (leaf.action !== "agent.add" || !("proof" in body)) return [];
  const { agent, keyDigest, ledger, proof } = body;
  const isGood = await isSignedBy(agent, "enrolment", { agent, keyDigest, ledger }, decodeBase64(proof, 64));
  return [["proof_invalid", isGood, "proof is not the new key's signature for this ledger and API key"]];
}

/** A session may do what its last statement says, for those whom the chain names. */
function openedRows(leaf, chain) {
  const [last, found] = [chain.at(-1), chainFault(chain, leaf.origin, leaf.timeMs)];
  const { verbs, scope = null, expiresAtMs } = leaf.value;
  const isSaid =
    encodeCanonical([verbs, scope, expiresAtMs]) === encodeCanonical([last.verbs, last.resources ?? null, last.expiresAtMs]);
  const isAlone = chain.length === 1;
  const issuer = isAlone && leaf.principal === leaf.actor ? leaf.onBehalfOf : leaf.principal;
  const isFor = last.iss === issuer && (isAlone || chain[0].iss === leaf.onBehalfOf);
  return [
    [found, found === null, "the chain of statements breaks this rule"],
    ["body_differs", isSaid, "verbs, scope and expiresAtMs of the leaf are not the last statement's"],
    ["issuer_differs", isFor, "principal and onBehalfOf of the leaf are not those who signed the statements"],
  ];
}

/** Compare the answer to a command with the leaf of its batch. */
async function checkCommand(leaf, header) {
  const [batchSeq, index] = leaf.batch;
  const sides = ({ origin, genesis, epoch, timeMs, actor, principal, onBehalfOf, value }) =>
    encodeCanonical([origin, genesis, epoch, timeMs, actor, principal, onBehalfOf, value.custody ?? null]);
  const isItsOwn = header.is("batch.received") && header.seq === batchSeq && index < header.number("count");
  if (!isItsOwn || sides(leaf) !== sides(header))
    return [["batch_differs", "no batch of so many commands, or not of the same ledger, epoch, time and actor"]];
  const [read] = await attempt(() => ({
    commands: commandsIn(bodyOf("batch.submit", header.request?.body ?? "")),
    created: parseSignatureInput(header.request?.signatureInput ?? "").created,
  }));
  const command = read?.commands[index];
  if (!command) return []; // the header's fault, and said there
  if (command.action !== leaf.action) return [["body_differs", `command ${index} asks for another action`]];
  return faultsOf(askedRows(leaf, command.body, read.created));
}

// --- who signed a checkpoint: steps 5 to 7 --------------------------------------------------------------------------

const finding = (step, code, reason, outcome = INVALID) => ({ step, code, outcome, text: reason });

/** Judge every signature line of a checkpoint whose key is pinned, each once. */
async function checkSigners(checkpoint, keyring) {
  const { note, origin } = checkpoint;
  const read = (rows, keyOf) => Promise.all(rows.map(async (row) => [row, await marks(note, keyOf(row))]));
  const logs = await read(logLines(keyring, origin), (line) => line.key);
  const witnesses = await read([...(keyring.policy?.witnesses ?? [])], ([, key]) => key);
  const good = witnesses.filter(([, found]) => found.length && found.every(Boolean)).map(([[name]]) => name);
  const isMet = keyring.policy !== null && isQuorumMet(keyring.policy, good);
  const signed = logs.filter(([, found]) => isOnlyMark(found)).map(([line]) => line);
  const findings = [...logFindings(origin, logs), ...sizeFindings(checkpoint, signed, isMet)];
  const isSigned = !findings.some(({ outcome }) => outcome > VALID);
  const bad = witnesses.filter(([, found]) => !found.every(Boolean)).map(([[name]]) => name);
  for (const name of bad) findings.push(finding(7, "witness_invalid", `witness ${name}: a line is invalid`));
  const counted = `the policy's quorum is not met: ${good.length} of ${witnesses.length} witnesses signed`;
  if (!isMet) findings.push(finding(7, "not_witnessed", witnesses.length ? counted : "no witness is pinned", VALID));
  const level = isMet ? `witnessed ${good.length}/${witnesses.length}` : "included";
  const known = [...logs, ...witnesses].reduce((sum, [, found]) => sum + found.length, 0);
  const ignoredLines = note.lines.length - known;
  return { findings, isSigned, isMet, level: isSigned && !bad.length ? level : "none", ignoredLines };
}

function logFindings(origin, logs) {
  if (!logs.length) return [finding(5, "origin_unknown", `no key is pinned for origin ${origin}; no pinned key, no pass`)];
  const isOdd = logs.some(([, found]) => found.length && !isOnlyMark(found));
  const isMissing = !logs.some(([, found]) => isOnlyMark(found));
  const odd = finding(5, "log_signature_invalid", "a line of a pinned log key does not verify, or is there twice");
  const missing = finding(5, "log_signature_missing", "no valid signature by a pinned log key");
  return [...(isOdd ? [odd] : []), ...(isMissing ? [missing] : [])];
}

function sizeFindings(checkpoint, signed, isMet) {
  const bounded = signed.filter((line) => !line.isFree);
  if (signed.length && !bounded.length)
    return [finding(6, "size_not_checked", "key sizes: not checked, a policy does not say them", VALID)];
  const verdicts = bounded.map((line) => maySpeak(checkpoint, line, isMet));
  if (verdicts.includes(null)) return [];
  return verdicts.sort((a, b) => a.outcome - b.outcome).slice(0, 1);
}

/** Why the signature of `line` does not count at this size, or null when it does. */
function maySpeak({ size, root }, line, isMet) {
  if (!lineCovers(line, size))
    return finding(6, "size_outside_key", `size ${size} is outside the sizes that the log key may sign`);
  if (!line.final) return null;
  if (size > line.final.size || (size === line.final.size && !same(root, line.final.root)))
    return finding(6, "key_compromised", "not in the history that ends at the key's final root");
  if (isMet || size === line.final.size) return null;
  const reason = "disowned, unproven: the log key is compromised; needs witnesses or a proof to its final root";
  return finding(6, "key_compromised", reason, INDETERMINATE);
}

// --- the ladder: steps 1 to 10 --------------------------------------------------------------------------------------

/** What is known so far about one receipt. */
class Walk {
  findings = [];
  leafBytes = new Uint8Array();
  leaf = null;
  checkpoint = null;
  signers = null;
  directSignature = "not_checked";
  level = "none";
  isInPlace = false;
  get isLogSigned() {
    return this.signers !== null && this.signers.isSigned;
  }
  get isLeafProven() {
    return this.directSignature === "valid" || (this.level !== "none" && this.isInPlace);
  }
  say(...parts) {
    this.findings.push(finding(...parts));
  }
  note(step, code, reason) {
    this.say(step, code, reason, VALID);
  }
}

async function walkLadder(bytes, keyring) {
  const walk = new Walk();
  const [envelope, error] = await attempt(() => openEnvelope(bytes));
  if (error) {
    const isSize = error.code === "too_large";
    walk.say(isSize ? 1 : 2, isSize ? "too_large" : "envelope_malformed", error.message);
    return walk;
  }
  walk.leafBytes = envelope.leaf;
  const [leaf, fault] = await attempt(() => parseLeaf(envelope.leaf));
  walk.leaf = leaf;
  if (fault) walk.say(9, "leaf_malformed", fault.message);
  await checkDirectSignature(walk, keyring, envelope);
  const proof = await checkProof(walk, keyring, envelope.proof);
  if (leaf) {
    checkLeaf(walk, leaf, keyring, proof);
    await checkRequest(walk, leaf, envelope.header);
  }
  walk.findings.sort((a, b) => a.step - b.step);
  return walk;
}

/** Step 3. */
async function checkDirectSignature(walk, { document, ...keyring }, { leaf, signature }) {
  if (!document) return walk.note(3, "signature_not_checked", "direct signature: not checked, no receipt key is pinned");
  if (!signature) {
    walk.directSignature = "left_out";
    return walk.note(3, "signature_left_out", "direct signature: left out, as the batch asked; only inclusion speaks");
  }
  const pinned = linesOf({ document, ...keyring }, "receipt", document.origin);
  const line = pinned.find((one) => thumbprint(one.key.publicKey) === signature.keyid);
  walk.directSignature = "invalid";
  if (!line) return walk.say(3, "receipt_key_unknown", "keyid is the thumbprint of no pinned receipt key");
  if (!(await isValid(line.key.publicKey, preAuthentication(leaf), signature.bytes)))
    return walk.say(3, "signature_invalid", "the direct signature does not fit the leaf");
  if (line.status === "compromised") {
    walk.directSignature = "not_checked";
    return walk.note(3, "receipt_key_compromised", "the receipt key is compromised: its signature counts for nothing");
  }
  if (walk.leaf && !lineCovers(line, walk.leaf.seq))
    return walk.say(3, "seq_outside_key", `seq ${walk.leaf.seq} is outside the range that the receipt key may sign`);
  walk.directSignature = "valid";
}

/** Steps 4 to 8. */
async function checkProof(walk, keyring, bytes) {
  const [proof, error] = await attempt(() => {
    const parsed = parseProof(bytes);
    walk.checkpoint = parseCheckpoint(parsed.checkpoint);
    return parsed;
  });
  if (error) return walk.say(4, "proof_malformed", error.message);
  const { size, root } = walk.checkpoint;
  walk.signers = await checkSigners(walk.checkpoint, keyring);
  walk.findings.push(...walk.signers.findings);
  const led = rootFromInclusion(proof.index, size, leafHash(walk.leafBytes), proof.path);
  if (led && same(led, root)) walk.level = walk.signers.level;
  else walk.say(8, "not_included", "the path does not lead from this leaf to the checkpoint's root");
  return proof;
}

/** Step 9: the leaf is of the tree it is in, and of the ledger that is pinned. */
function checkLeaf(walk, leaf, keyring, proof) {
  if (!leaf.row) walk.say(9, "type_unknown", `type ${leaf.type} is not known to this version`, INDETERMINATE);
  if (proof) {
    walk.isInPlace = leaf.origin === walk.checkpoint.origin && leaf.seq === proof.index;
    if (leaf.origin !== walk.checkpoint.origin) walk.say(9, "origin_differs", "the leaf's origin is not the checkpoint's");
    if (leaf.seq !== proof.index) walk.say(9, "seq_differs", "the leaf's seq is not its index in the proof");
  }
  const pinned = keyring.document?.origin === leaf.origin ? keyring.document.genesis : null;
  if (pinned === null) walk.note(9, "genesis_not_checked", "genesis: not checked, no key document of this origin");
  else if (pinned !== (leaf.seq ? leaf.genesis : hex(leafHash(walk.leafBytes))))
    walk.say(9, "genesis_differs", "the leaf belongs to a ledger with another entry 0 than the key document's");
}

/** Step 10, as far as one leaf shows it; the evidence of a command is that of its batch, which comes along. */
async function checkRequest(walk, leaf, part) {
  if ((leaf.batch === null) !== (part === null)) {
    const code = part === null ? "batch_missing" : "batch_unexpected";
    return walk.say(10, code, "a receipt has batch exactly when its leaf answers a command");
  }
  if (!leaf.row || leaf.row.cause === "gateway") return;
  const evidence = await checkEvidence(part === null ? leaf : await openBatch(walk, leaf, part));
  for (const [code, reason] of evidence.faults) walk.say(10, code, reason);
  walk.note(10, "authority_not_checked", "authority list and enrolled agents: not checked, entry 0 not at hand");
  const size = evidence.anchor?.size ?? 0;
  if (size > 1) walk.note(10, "anchor_root_not_checked", `anchor root at size ${size}: not checked, needs the ledger`);
}

/** The leaf of batch.received, which holds the evidence, proven and compared with the command. */
async function openBatch(walk, leaf, part) {
  const [header, error] = await attempt(() => parseLeaf(part.leaf));
  if (error) {
    walk.say(10, "batch_malformed", error.message);
    return leaf;
  }
  for (const [code, reason] of await checkCommand(leaf, header)) walk.say(10, code, reason);
  const tree = walk.checkpoint;
  const led = tree && rootFromInclusion(header.seq, tree.size, leafHash(part.leaf), part.path);
  if (tree && !(led && same(led, tree.root)))
    walk.say(10, "batch_not_included", "the path does not lead from the batch's leaf to the checkpoint's root");
  return header.row ? header : leaf;
}

// --- receipts: steps 11 and 12, and the report ----------------------------------------------------------------------

/** Judge one receipt; `others` are files for step 12, `nowMs` the caller's clock. Never throws on content. */
export async function checkReceipt(bytes, keyring, { level = "included", nowMs = null, others = [] } = {}) {
  const walk = await walkLadder(bytes, keyring);
  if (nowMs !== null && walk.leaf) checkEnd(walk, walk.leaf, nowMs);
  for (const [index, other] of others.entries()) compareWith(walk, await walkOther(other, keyring), index + 1);
  const isWhole = !walk.findings.some(({ outcome }) => outcome >= INVALID);
  const reached = walk.level === "none" && walk.directSignature === "valid" ? "signed" : walk.level;
  const said = isWhole && walk.leaf ? statement(walk.leaf) : [];
  const facts = factsOf(walk, keyring);
  const { findings, directSignature } = walk;
  return report("receipt", findings, { requested: level, level: isWhole ? reached : "none", directSignature, said, facts });
}

/** Step 11. */
function checkEnd(walk, { value, type }, nowMs) {
  if (!TABLE.holding.includes(type)) return walk.note(11, "no_lease", "this entry grants nothing that could end");
  const endMs = value.endsIfIdleAtMs ?? value.expiresAtMs;
  if (nowMs < endMs) return;
  walk.say(11, "expired", `the stated end ${moment(endMs)} is not after --now ${moment(nowMs)}`, INDETERMINATE);
}

async function walkOther(bytes, keyring) {
  if (/^\s*\{/.test(String.fromCharCode(...bytes.slice(0, 64)))) return walkLadder(bytes, keyring);
  const walk = new Walk();
  const [checkpoint, error] = await attempt(() => parseCheckpoint(bytes));
  if (error) walk.say(12, "other_malformed", error.message);
  else [walk.checkpoint, walk.signers] = [checkpoint, await checkSigners(checkpoint, keyring)];
  return walk;
}

/** Step 12: two signed statements of one origin agree, contradict each other, or leave it open. */
function compareWith(walk, other, number) {
  if (!other.isLeafProven && !other.isLogSigned)
    walk.say(12, "other_unusable", `other file ${number} carries no valid signature that is pinned`, INDETERMINATE);
  else if (other.leafBytes.length && !other.isLeafProven)
    walk.note(12, "other_leaf_unproven", `other file ${number}: its leaf is not proven`);
  if (walk.isLeafProven && other.isLeafProven && walk.leaf && other.leaf) {
    const isSamePlace = walk.leaf.origin === other.leaf.origin && walk.leaf.seq === other.leaf.seq;
    if (isSamePlace && !same(walk.leafBytes, other.leafBytes))
      walk.say(12, "two_leaves", `two different leaves were signed as seq ${walk.leaf.seq}`, SPLIT);
  }
  const [mine, theirs] = [walk.checkpoint, other.checkpoint];
  if (!mine || !theirs || mine.origin !== theirs.origin || !walk.isLogSigned || !other.isLogSigned) return;
  const isSize = mine.size === theirs.size;
  if (isSize && same(mine.root, theirs.root)) return;
  if (isSize) return walk.say(12, "two_roots", `the log signed two roots for size ${mine.size}`, SPLIT);
  const reason = `sizes ${mine.size} and ${theirs.size}: consistency not checked, needs a proof or the ledger`;
  walk.note(12, "consistency_not_checked", reason);
}

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
function report(command, findings, { requested = "none", level = "none", directSignature = "not_checked", ...rest } = {}) {
  const { said = [], facts = {}, ...more } = rest;
  const outcome = Math.max(VALID, ...findings.map((one) => one.outcome));
  const grave = findings.filter((one) => one.outcome === outcome && outcome !== VALID);
  const failedStep = grave.length ? Math.min(...grave.map((one) => one.step)) : null;
  const isReached = LEVELS.indexOf(level.split(" ")[0]) >= LEVELS.indexOf(requested);
  const rows = findings.map(({ code, outcome: of, step, text: said }) =>
    JSON.stringify({ clause: TABLE.clauses[code] ?? null, code, outcome: OUTCOMES[of], seq: null, step, text: escape(said) }),
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
  const { minKeysVersion = 0, also = [], level, nowMs = null } = rest;
  const [keyring, error] = await attempt(async () => {
    const opened = await openKeyring({ root, keys, policy });
    const version = opened.document?.version ?? 0;
    must(version >= minKeysVersion, `the key document's version ${version} is below ${minKeysVersion}`);
    return opened;
  });
  if (error) return unreadable(command, error.message, "pins_malformed");
  return checkReceipt(file, keyring, { level, nowMs, others: also });
}

// --- command line ---------------------------------------------------------------------------------------------------

const OPTIONS = {
  "--level": "level",
  "--now": "nowMs",
  "--also": "also",
  "--root": "root",
  "--keys": "keys",
  "--policy": "policy",
  "--min-keys-version": "minKeysVersion",
};
const FILES = { keys: LIMITS.TEXT_BYTES_MAX, policy: LIMITS.TEXT_BYTES_MAX, also: LIMITS.RECEIPT_BYTES_MAX };
const USAGE = `usage: verify.mjs receipt FILE [--level signed|included|witnessed] [--now MS] [--also FILE ...]
                        [--root VKEY|@FILE --keys FILE] [--policy FILE] [--min-keys-version N] [--json]
exit codes:
${VERDICTS.map((when, code) => `  ${code}  ${when}`).join("\n")}`;

class Usage extends Error {}

function parseArguments([command, ...rest]) {
  const options = { command, also: [], isJson: false, positional: [] };
  if (command !== "receipt") throw new Usage(`no command ${command ?? ""}`.trim());
  for (let at = 0; at < rest.length; at += 1) {
    const [name, mark, value] = rest[at].startsWith("--") ? split(rest[at]) : [rest[at], "", ""];
    if (name === "--json" && !mark) options.isJson = true;
    else if (!name.startsWith("-")) options.positional.push(name);
    else if (!OPTIONS[name]) throw new Usage(`no option ${name}`);
    else {
      const values = mark ? [value] : [];
      const isMany = name === "--also";
      while (!mark && at + 1 < rest.length && !rest[at + 1].startsWith("-") && (isMany || !values.length))
        values.push(rest[(at += 1)]);
      if (!values.length) throw new Usage(`${name} needs a value`);
      options[OPTIONS[name]] = isMany ? values : values[0];
    }
  }
  if (options.positional.length !== 1) throw new Usage("exactly one FILE is needed");
  if (options.level !== undefined && LEVELS.indexOf(options.level) < 1) throw new Usage("--level is one of its choices");
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
  return [
    `${found.verdict.toUpperCase()}${at}`,
    `level: ${found.level} (requested: ${found.requestedLevel})`,
    ...(found.command === "receipt" ? [`direct signature: ${found.directSignature.replaceAll("_", " ")}`] : []),
    `completeness: ${found.completeness}`,
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
    const text = isUtf8(bounded(options.root.slice(1), LIMITS.TEXT_BYTES_MAX));
    must(text !== null, "the file of --root is not UTF-8");
    found.root = text.endsWith("\n") ? text.slice(0, -1) : text;
  } else must(!options.root || options.root.includes("+"), "--root is not a verifier key; from a file write @FILE");
  for (const [name, max] of Object.entries(FILES))
    if (typeof options[name] === "string") found[name] = bounded(options[name], max);
    else if (options[name]) found[name] = options[name].map((path) => bounded(path, max));
  found.file = read(options.positional[0], null);
  return found;
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
    const reason = error instanceof Usage ? `${error.message}; see verify.mjs --help` : `${error.stack}\nnothing was judged`;
    return { exitCode: 2, error: `verify.mjs: ${reason}` };
  }
}

async function judgeFiles(options, fs) {
  try {
    return await verify(readFiles(options, fs));
  } catch (error) {
    if (!(error instanceof Malformed) && !error.syscall) throw error;
    const code = error instanceof Malformed ? (error.code ?? "pins_malformed") : "unreadable";
    return unreadable(options.command, error.message, code);
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
