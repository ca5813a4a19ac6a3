// The ladder of one receipt, steps 1 to 10: envelope, signed request, delegations, evidence, and who signed the tree.
//
// All steps that can be walked are walked, whatever failed before, because an auditor wants every finding.
// Source: docs/protocol.md 14, 16.2, 16.5, 16.10 (ladder), 4 (requests), 28 (delegations), 31 (batches), 38.
import { bodyBytesMax, bodyDifference, checkBody, checkMembers, commandsIn, covers, is, parseLeaf } from "./leaf.mjs";
import { resourcesOf } from "./leaf.mjs";
import {
  Malformed,
  TABLE,
  decodeBase64,
  decodeDecimal,
  decodeDid,
  encodeBase64,
  encodeCanonical,
  hex,
} from "./strict.mjs";
import { isObject, isOnlyMark, isQuorumMet, isValid, knownSeq, latin1, leads, leafHash } from "./strict.mjs";
import { lineCovers } from "./strict.mjs";
import { linesOf, logLines, marks, must, parseCheckpoint, parseConsistency, parseJson, parseProof } from "./strict.mjs";
import { rangesFromInclusion, rootFromInclusion, same, sha256, thumbprint, utf8 } from "./strict.mjs";

const LIMITS = TABLE.limits;
const APPROVING = ["coordination.admit", "approval.ask", "approval.give"];
export const [VALID, INDETERMINATE, INVALID, UNREADABLE, SPLIT] = [0, 1, 2, 3, 4];

// --- envelope: steps 1 and 2 ----------------------------------------------------------------------------------------

const PAYLOAD_TYPE = "application/vnd.tallystick.leaf.v1+json";

function preAuthentication(leaf) {
  const head = utf8(`DSSEv1 ${PAYLOAD_TYPE.length} ${PAYLOAD_TYPE} ${leaf.length} `);
  const message = new Uint8Array(head.length + leaf.length);
  message.set(head);
  message.set(leaf, head.length);
  return message;
}

export const hasExactly = (value, ...names) =>
  encodeCanonical(Object.keys(value).sort()) === encodeCanonical([...names].sort());

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
  must(
    isWhole && envelope.payloadType === PAYLOAD_TYPE,
    "a receipt has exactly payloadType, payload, signatures, proof",
  );
  const [leaf, proof] = [decodeBase64(text(envelope.payload)), utf8(text(envelope.proof))];
  checkSize("leaf", leaf.length, LIMITS.LEAF_BYTES_MAX);
  checkSize("proof", proof.length, LIMITS.PROOF_BYTES_MAX);
  const header = extra.length ? openHeader(envelope.batch) : null;
  return { leaf, proof, header, signature: openSignature(envelope) };
}

function openSignature({ signatures, ...rest }) {
  if (Array.isArray(signatures) && !signatures.length && "batch" in rest) return null;
  const row = Array.isArray(signatures) && signatures.length === 1 ? signatures[0] : null;
  must(isObject(row) && hasExactly(row, "keyid", "sig"), "signatures: exactly one; none at all only with batch");
  return { keyid: text(row.keyid), bytes: decodeBase64(text(row.sig), 64) };
}

function openHeader(part) {
  const isWhole = isObject(part) && hasExactly(part, "leaf", "path") && Array.isArray(part.path);
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

export function parseAnchor(value) {
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
  must(
    signed.components.every((name) => values.has(name)),
    "a covered component has no value in this request",
  );
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
    !(
      parent.resources === undefined ||
      (child.resources !== undefined && isWithin(child.resources, parent.resources))
    ) || !child.verbs.every((verb) => parent.verbs.includes(verb));
  const isLonger = ([child, parent]) =>
    child.notBeforeMs < parent.notBeforeMs || child.expiresAtMs > parent.expiresAtMs;
  const isDeep = chain.length > 2 || chain.slice(0, -1).some((said) => said.maxDepth === 0);
  if (chain.some((said) => said.aud !== origin)) return "delegation_wrong_ledger";
  if (isDeep) return "delegation_too_deep";
  if (links.some(isWider)) return "delegation_wider";
  if (links.some(isLonger)) return "delegation_longer";
  return last.notBeforeMs <= timeMs && timeMs < last.expiresAtMs ? null : "delegation_expired";
}

// --- approvals (protocol 38) ----------------------------------------------------------------------------------------

/** The statements in member `approvals` or `approval` of a body; Malformed with code approval_invalid. */
async function parseApprovals({ approvals, approval }) {
  const good = (isGood, reason) => must(isGood, reason, "approval_invalid");
  if (approvals === undefined && approval === undefined) return [];
  good(approvals === undefined || is(TABLE.rows.approvals, approvals), "member approvals: 1 to 4 signed statements");
  good(approval === undefined || is(TABLE.rows.approval, approval), "member approval: a signed statement");
  const items = approvals ?? [approval];
  for (const { statement: said, signature } of items) {
    checkMembers(said, TABLE.approval, "approval_invalid");
    const lifeMs = said.expiresAtMs - said.notBeforeMs;
    good(lifeMs > 0 && lifeMs <= LIMITS.APPROVAL_MS_MAX, "an approval holds for 1 ms to 7 days");
    const isSigned = await isSignedBy(said.approver, "approval", said, decodeBase64(signature, 64));
    good(isSigned, "an approval is not signed by its approver");
  }
  return items.map((item) => item.statement);
}

const rulesDigestOf = ({ rules, rulesDigest }) => rules?.digest ?? rulesDigest ?? "0".repeat(64);

/** What an entry must state as its actionDigest. */
function actionDigest({ value, principal, origin }) {
  const { operation, mode, cost, argumentsDigest } = value;
  const rulesDigest = rulesDigestOf(value);
  const resources = resourcesOf(value);
  const said = { agent: principal, argumentsDigest, cost, ledger: origin, mode, operation, resources, rulesDigest };
  return hex(hashOf(said));
}

/** Do the leaf's approvals and digests follow from the body's statements and its own members? */
async function approvalRows(leaf, body) {
  const { value, timeMs } = leaf;
  const isDigest = !("actionDigest" in value) || value.actionDigest === actionDigest(leaf);
  const rows = [["action_digest_wrong", isDigest, "actionDigest is not the SHA-256 of what the other members say"]];
  const [used, error] = await attempt(() => parseApprovals(body));
  if (error) return [...rows, [error.code ?? "approval_invalid", false, error.message]];
  if (!leaf.is("admission.allowed", "approval.given")) return rows;
  const isGiven = leaf.is("approval.given");
  const names = (found) => encodeCanonical(found.map((row) => encodeCanonical(row)).sort());
  const said = (isGiven ? [value] : (value.approvals ?? [])).map((row) => [row.approver, row.nonce, row.digest]);
  const sent = used.map((one) => [one.approver, one.nonce, hex(hashOf(one))]);
  const isBound = (one) =>
    one.ledger === leaf.origin && one.genesis === leaf.genesis && (isGiven || isOfAction(leaf, one));
  const isNow = ({ notBeforeMs, expiresAtMs }) => notBeforeMs <= timeMs && timeMs < expiresAtMs;
  const isInside = used.every((one) => one.expiresAtMs >= leaf.number("validUntilMs"));
  return [
    ...rows,
    ["approval_differs", names(said) === names(sent), "the approvals are not the statements in the body"],
    ["approval_wrong", used.every(isBound), "a statement names another ledger, agent or action than the leaf"],
    ["approval_expired", used.every(isNow), "a statement does not hold at timeMs"],
    ["approval_expired", isInside, "validUntilMs is after the end of a statement"],
  ];
}

const isOfAction = ({ value, principal }, one) =>
  one.agent === principal &&
  ["operation", "actionDigest", "argumentsDigest"].every((name) => one[name] === value[name]) &&
  one.rulesDigest === rulesDigestOf(value);

// --- evidence: step 10 ----------------------------------------------------------------------------------------------

function bodyOf(action, source) {
  const body = parseJson(utf8(source), bodyBytesMax(action));
  checkBody(action, body);
  return body;
}

/** The value that `read` returns, or the Malformed it throws, as [value, error]. */
export async function attempt(read) {
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
    const isTarget =
      is(TABLE.rows.authority, evidence.authority) && PATH.test(evidence.path) && QUERY.test(evidence.query);
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
    ...(await askedRows(leaf, body, signed.created)),
    ...(await identityRows(leaf, body)),
    ["wrong_ledger", body.ledger === leaf.origin, "the signed body names another ledger"],
    ["actor_differs", body.actorDid === leaf.actor, "actorDid of the signed body is not the leaf's actor"],
  ];
}

async function askedRows(leaf, body, created) {
  const difference = bodyDifference(leaf, body);
  const isLate = leaf.number("grantedAtMs") >= (created + 1) * 1000;
  const isUnseen = isLate && leaf.is("lease.released") && !("leaseId" in body);
  const isText = !leaf.is("rules.loaded") || leaf.value.digest === hex(sha256(utf8(body.rules)));
  return [
    ["body_differs", difference === null, `member ${difference} of the leaf is not what the body asks for`],
    ["released_unseen", !isUnseen, "without leaseId no lease ends that was granted after the request was signed"],
    ["rules_digest_wrong", isText, "digest is not the SHA-256 of the rules in the body"],
    ...(APPROVING.includes(leaf.action) ? await approvalRows(leaf, body) : []),
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
    encodeCanonical([verbs, scope, expiresAtMs]) ===
    encodeCanonical([last.verbs, last.resources ?? null, last.expiresAtMs]);
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
  return faultsOf(await askedRows(leaf, command.body, read.created));
}

// --- what files show (33.3) -----------------------------------------------------------------------------------------

const begins = (bytes, text) => latin1(bytes.slice(0, text.length)) === text;
const isSpace = (byte) => byte === 0x20 || (byte >= 0x09 && byte <= 0x0d);
export const isReceipt = (bytes) => bytes.find((byte) => !isSpace(byte)) === 0x7b; // begins like one: {
export const readCheckpoint = (bytes) =>
  begins(bytes, "old ") ? parseConsistency(bytes).checkpoint : parseCheckpoint(bytes);

/** What a file shows of a tree before anybody asks who signed it, or null: `ranges` are "start,stop" to hex. */
export function readShown(bytes) {
  try {
    if (isReceipt(bytes)) return readReceipt(bytes);
    const proof = begins(bytes, "old ") ? parseConsistency(bytes) : null;
    const checkpoint = proof?.checkpoint ?? parseCheckpoint(bytes);
    return { checkpoint, ranges: rootOf(checkpoint), leaves: [], proof };
  } catch (error) {
    if (error instanceof Malformed) return null;
    throw error;
  }
}

const rootOf = ({ size, root }) => new Map([[`0,${size}`, hex(root)]]);

function readReceipt(bytes) {
  const envelope = openEnvelope(bytes);
  const { index, path, checkpoint: note } = parseProof(envelope.proof);
  const checkpoint = parseCheckpoint(note);
  const ranges = new Map([...rootOf(checkpoint), ...rangesOf(checkpoint, index, envelope.leaf, path)]);
  const leaves = parsed(envelope.leaf);
  for (const [leaf, part] of envelope.header ? parsed(envelope.header.leaf) : []) {
    for (const [place, hash] of rangesOf(checkpoint, leaf.seq, part, envelope.header.path)) ranges.set(place, hash);
    leaves.push([leaf, part]);
  }
  return { checkpoint, ranges, leaves, proof: null };
}

function parsed(bytes) {
  try {
    return [[parseLeaf(bytes), bytes]];
  } catch (error) {
    if (error instanceof Malformed) return [];
    throw error;
  }
}

/** What an inclusion path shows of a tree; nothing when it does not lead there. */
function rangesOf({ size, root }, index, leaf, path) {
  const led = rootFromInclusion(index, size, leafHash(leaf), path);
  return led && same(led, root) ? rangesFromInclusion(index, size, leafHash(leaf), path) : [];
}

// --- who signed a checkpoint: steps 5 to 7 --------------------------------------------------------------------------

export const finding = (step, code, reason, outcome = INVALID) => ({ step, code, outcome, text: reason });
const marked = (note, rows, keyOf) => Promise.all(rows.map(async (row) => [row, await marks(note, keyOf(row))]));

/** The policy's witnesses with the marks of their lines, and the names of those whose lines are there and good. */
async function readWitnesses(note, policy) {
  const witnesses = await marked(note, [...(policy?.witnesses ?? [])], ([, key]) => key);
  const good = witnesses.filter(([, found]) => found.length && found.every(Boolean)).map(([[name]]) => name);
  return { witnesses, good, isMet: policy !== null && isQuorumMet(policy, good) };
}

/** Judge every signature line of a checkpoint whose key is pinned, each once; `files` are all that is at hand. */
export async function checkSigners(checkpoint, keyring, files) {
  const { note, origin } = checkpoint;
  const logs = await marked(note, logLines(keyring, origin), (line) => line.key);
  const { witnesses, good, isMet } = await readWitnesses(note, keyring.policy);
  const signed = logs.filter(([, found]) => isOnlyMark(found)).map(([line]) => line);
  const findings = [...logFindings(origin, logs), ...(await sizeFindings(checkpoint, keyring, signed, isMet, files))];
  const isSigned = !findings.some(({ outcome }) => outcome > VALID);
  const bad = witnesses.filter(([, found]) => !found.every(Boolean)).map(([[name]]) => name);
  for (const name of bad) findings.push(finding(7, "witness_invalid", `witness ${name}: a line is invalid`));
  const counted = `the policy's quorum is not met: ${good.length} of ${witnesses.length} witnesses signed`;
  if (!isMet) findings.push(finding(7, "not_witnessed", witnesses.length ? counted : "no witness is pinned", VALID));
  const level = isMet ? `witnessed ${good.length}/${witnesses.length}` : "included";
  const known = [...logs, ...witnesses].reduce((sum, [, found]) => sum + found.length, 0);
  return {
    findings,
    isSigned,
    level: isSigned && !bad.length ? level : "none",
    ignoredLines: note.lines.length - known,
  };
}

function logFindings(origin, logs) {
  if (!logs.length)
    return [finding(5, "origin_unknown", `no key is pinned for origin ${origin}; no pinned key, no pass`)];
  const isOdd = logs.some(([, found]) => found.length && !isOnlyMark(found));
  const isMissing = !logs.some(([, found]) => isOnlyMark(found));
  const odd = finding(5, "log_signature_invalid", "a line of a pinned log key does not verify, or is there twice");
  const missing = finding(5, "log_signature_missing", "no valid signature by a pinned log key");
  return [...(isOdd ? [odd] : []), ...(isMissing ? [missing] : [])];
}

/** Step 6: one signing key may speak for this size, a compromised one needs more; and all that are in force did. */
async function sizeFindings(checkpoint, keyring, signed, isMet, files) {
  const bounded = signed.filter((line) => !line.isFree);
  if (signed.length && !bounded.length)
    return [finding(6, "size_not_checked", "key sizes: not checked, a policy does not say them", VALID)];
  const verdicts = [];
  for (const line of bounded) verdicts.push(await maySpeak(checkpoint, line, isMet, keyring, files));
  if (!verdicts.includes(null)) return verdicts.sort((a, b) => a.outcome - b.outcome).slice(0, 1);
  const inForce = linesOf(keyring, "log", checkpoint.origin).filter((line) => lineCovers(line, checkpoint.size));
  const missing = inForce.filter((line) => !signed.includes(line));
  return missing.length ? [missingFinding(checkpoint.size, missing, knownSeq(keyring))] : [];
}

/** A key that is open in the document may have been retired since, unless the document shows newer entries (16.12). */
function missingFinding(size, missing, known) {
  const text = `a log key that is in force at size ${size} has not signed it`;
  if (size - 1 <= known || missing.some((line) => line.to !== null)) return finding(6, "log_line_missing", text);
  const advice = "by a key document that may be older than that key's retirement: get the newest one";
  return finding(6, "log_line_missing", `${text}, ${advice}`, INDETERMINATE);
}

/** Why the signature of `line` does not count at this size, or null when it does (16.10). */
async function maySpeak(checkpoint, line, isMet, keyring, files) {
  const { size, root } = checkpoint;
  if (!lineCovers(line, size))
    return finding(6, "size_outside_key", `size ${size} is outside the sizes that the log key may sign`);
  if (!line.final || isMet) return null;
  const shown = files.map(readShown).filter((one) => one !== null);
  const tree = await finalTree(line, keyring, shown);
  if (!tree) {
    const reason =
      "disowned, unproven: the log key is called compromised, which is not proven, and nothing else speaks";
    return finding(6, "key_compromised", reason, INDETERMINATE);
  }
  if (size === tree.size)
    return same(root, tree.root)
      ? null
      : finding(6, "key_compromised", "disowned: not the tree that its history ends in");
  if (shown.some(({ proof }) => proof && leads(proof, checkpoint, tree))) return null;
  const needs = `needs witnesses, or a consistency proof from size ${size} to ${tree.size}`;
  return finding(6, "key_compromised", `disowned: the log key is compromised; ${needs}`, INDETERMINATE);
}

/** The final tree of a compromised key, if another log key signed it, witnesses saw it, and nothing contradicts. */
async function finalTree(line, keyring, shown) {
  const { tree } = line.final;
  if (!tree || !(await isVouched(tree, line, keyring)) || !(await isWitnessed(tree, keyring))) return null;
  for (const { checkpoint: seen, ranges } of shown) {
    if (seen.origin !== tree.origin || !(await isWitnessed(seen, keyring))) continue;
    const isOther = (ranges.get(`0,${tree.size}`) ?? hex(tree.root)) !== hex(tree.root);
    const isLarger = seen.size > tree.size && isOnlyMark(await marks(seen.note, line.key));
    if (isOther || (isLarger && !(await isVouched(seen, line, keyring)))) return null;
  }
  return tree;
}

const isWitnessed = async ({ note }, { policy }) => policy !== null && (await readWitnesses(note, policy)).isMet;

/** Did another log key of the document, in force at that size, sign this tree? */
async function isVouched(tree, line, keyring) {
  const isOther = (other) => other.key.vkey !== line.key.vkey && lineCovers(other, tree.size);
  const others = linesOf(keyring, "log", tree.origin).filter(isOther);
  return (await marked(tree.note, others, (other) => other.key)).some(([, found]) => isOnlyMark(found));
}

// --- the ladder: steps 1 to 10 --------------------------------------------------------------------------------------

/** What is known so far about one receipt. */
export class Walk {
  findings = [];
  leafBytes = new Uint8Array();
  leaf = null;
  evidenceLeaf = null; // of a command: that of its batch
  checkpoint = null;
  signers = null;
  directSignature = "not_checked";
  level = "none";
  get isLogSigned() {
    return this.signers !== null && this.signers.isSigned;
  }
  say(...parts) {
    this.findings.push(finding(...parts));
  }
  note(step, code, reason) {
    this.say(step, code, reason, VALID);
  }
}

/** Steps 1 to 10; `files` are all that the reader holds, this receipt too. */
export async function walkLadder(bytes, keyring, files) {
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
  const proof = await checkProof(walk, keyring, envelope.proof, files);
  if (leaf) {
    checkLeaf(walk, leaf, keyring, proof);
    await checkRequest(walk, leaf, envelope.header);
  }
  walk.findings.sort((a, b) => a.step - b.step);
  return walk;
}

/** Step 3. */
async function checkDirectSignature(walk, { document, ...keyring }, { leaf, signature }) {
  if (!document)
    return walk.note(3, "signature_not_checked", "direct signature: not checked, no receipt key is pinned");
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
async function checkProof(walk, keyring, bytes, files) {
  const [proof, error] = await attempt(() => {
    const parsed = parseProof(bytes);
    walk.checkpoint = parseCheckpoint(parsed.checkpoint);
    return parsed;
  });
  if (error) return walk.say(4, "proof_malformed", error.message);
  const { size, root } = walk.checkpoint;
  walk.signers = await checkSigners(walk.checkpoint, keyring, files);
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
    if (leaf.origin !== walk.checkpoint.origin)
      walk.say(9, "origin_differs", "the leaf's origin is not the checkpoint's");
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
  walk.evidenceLeaf = header.row ? header : null;
  return walk.evidenceLeaf ?? leaf;
}
