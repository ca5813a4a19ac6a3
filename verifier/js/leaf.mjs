// What a leaf or a body may say: the table of entries.mjs, and the rules between members that no table shows.
//
// Kinds of plain shape come over with their bounds; a kind or rule that is a function in verifier/entries.py is a
// function here too, under the same name, and loading fails when one is missing.
// Source: docs/protocol.md 3 (names), 5.2 (bodies), 12 (entries), 15.7 (key statements), 24.5 (cycles), 28 to 31.
import { ED25519, Malformed, TABLE, byCodePoint, decodeBase64, decodeDid, encodeCanonical } from "./strict.mjs";
import { isObject, must, parseCanonical, parseNote, parseVkey, utf8 } from "./strict.mjs";

const LIMITS = TABLE.limits;
const GATEWAY = "gateway";
const VERBS = ["admit", "lease", "transfer"];
const MODES = ["read", "append", "write", "delete"]; // each weaker than the next
const full = (name) => `tallystick/${name}/1`;
const bytesOf = (texts) => utf8(texts.join("")).length;
const equal = (a, b) => encodeCanonical(a ?? null) === encodeCanonical(b ?? null);
const isBase64 = (value, size) => {
  try {
    return typeof value === "string" && decodeBase64(value, size).length === size;
  } catch {
    return false;
  }
};

// --- resource names -------------------------------------------------------------------------------------------------

const RESOURCE = new RegExp(TABLE.kinds.resource.code[0], "u");
const UNSEEN = new RegExp(`${TABLE.ignorable}|[\\p{Cc}\\p{Cf}\\p{Cs}\\p{Co}\\p{Z}]`, "u");

export function isResource(name) {
  if (typeof name !== "string" || !RESOURCE.test(name) || bytesOf([name]) > LIMITS.RESOURCE_BYTES_MAX) return false;
  const path = name.slice(name.indexOf(":") + 1);
  if (UNSEEN.test(path) || path.split("/").some((part) => bytesOf([part]) > 255)) return false;
  return /\p{Cn}/u.test(name) || name.normalize("NFC") === name; // what is unassigned has no known normal form
}

const schemeOf = (name) => name.slice(0, name.indexOf(":"));
const sorted = (names) => [...new Set(names)].sort(byCodePoint);

/** What names are compared by: A to Z lowered where the scheme folds case. */
export const keyOf = (name, isFolding) => (isFolding ? name.replace(/[A-Z]/g, (letter) => letter.toLowerCase()) : name);

export function covers(a, b) {
  if (a === b) return true;
  if (!a.endsWith("**")) return false;
  const inside = a.slice(0, -2); // ends with the slash or the colon
  return b.startsWith(inside) || b === inside.slice(0, -1);
}

export const overlaps = (a, b) => covers(a, b) || covers(b, a);
const mayOverlap = (name, others) =>
  others.some((other) => name === other || overlaps(keyOf(name, true), keyOf(other, true)));
const isModeAllowed = (kind, mode) => kind !== "append-only" || mode === "read" || mode === "append";

/** The resources that a checked body or leaf names, sorted, each once. */
export function resourcesOf(body) {
  if (Array.isArray(body.resources)) return sorted(body.resources);
  return body.resources === undefined && typeof body.resource === "string" ? [body.resource] : [];
}

// --- kinds ----------------------------------------------------------------------------------------------------------

function areResources(value) {
  if (!Array.isArray(value) || value.length < 1 || value.length > LIMITS.RESOURCES_MAX) return false;
  if (!value.every(isResource) || new Set(value).size !== value.length) return false;
  return bytesOf(value) <= LIMITS.RESOURCES_BYTES_MAX && sorted(value.map(schemeOf)).length <= LIMITS.SCHEMES_MAX;
}

const areSorted = (value) => areResources(value) && equal(value, sorted(value));
const mayWait = (names) =>
  names.length <= LIMITS.WAIT_RESOURCES_MAX && bytesOf(names) <= LIMITS.WAIT_RESOURCES_BYTES_MAX;
const isOneObject = (name) => isResource(name) && !name.endsWith("**");
const mayAdmit = (names) => names.length <= LIMITS.ADMIT_RESOURCES_MAX && names.every(isOneObject);
const areFew = (names) => names.length <= LIMITS.SCOPE_RESOURCES_MAX && bytesOf(names) <= LIMITS.SCOPE_BYTES_MAX;
const isDid = (value) => typeof value === "string" && decodeDid(value) !== null;
const jsonBytes = (text) => utf8(JSON.stringify(text)).length;
const isList = (value, least, most, check) =>
  Array.isArray(value) && value.length >= least && value.length <= most && value.every(check);
const isInteger = (value, least, most) => Number.isInteger(value) && value >= least && value <= most;

function isCycle(rows) {
  if (!isList(rows, 2, LIMITS.CYCLE_ROWS_MAX, (row) => is(TABLE.rows.cycle, row))) return false;
  const waitsFor = ["fencingToken", "aheadId", "askId"];
  const isOpen = rows.some((row) => waitsFor.filter((name) => name in row).length !== 1) || "aheadId" in rows.at(-1);
  return !isOpen && bytesOf(rows.map((row) => row.resource)) <= LIMITS.CYCLE_NAME_BYTES_MAX;
}

/** Rows of one kind, sorted by one of their members, each once. */
function areSortedBy(rows, kind, most, by) {
  if (!isList(rows, 1, most, (row) => is(kind, row))) return false;
  const names = rows.map((row) => row[by]);
  return equal(names, sorted(names));
}

// By the name of the kind; the second argument is what the table says of it.
const CODED = {
  boolean: (value) => typeof value === "boolean",
  true: (value) => value === true,
  did: isDid,
  actor: (value) => value === GATEWAY || isDid(value),
  root: (value) => isBase64(value, 32),
  signature: (value) => isBase64(value, 64),
  resource: isResource,
  resources: areResources,
  "sorted resources": areSorted,
  "few sorted resources": (value) => areSorted(value) && mayWait(value),
  scope: (value) => areSorted(value) && areFew(value),
  object: isOneObject,
  "few objects": (value) => areResources(value) && mayWait(value) && mayAdmit(value),
  "few sorted objects": (value) => areSorted(value) && mayWait(value) && mayAdmit(value),
  objects: (value) => areResources(value) && mayAdmit(value),
  "sorted objects": (value) => areSorted(value) && mayAdmit(value),
  schemes: (rows) => areSortedBy(rows, TABLE.rows.scheme, LIMITS.SCHEMES_MAX, "name"),
  "counted schemes": (rows) => areSortedBy(rows, TABLE.rows.counted, LIMITS.SCHEMES_MAX, "name"),
  "approvals used": (rows) => areSortedBy(rows, TABLE.rows.approved, LIMITS.APPROVALS_MAX, "operator"),
  cycle: isCycle,
  "acquire order": (value) =>
    isList(value, 1, LIMITS.CYCLE_ROWS_MAX, isResource) &&
    equal(value, sorted(value)) &&
    bytesOf(value) <= LIMITS.CYCLE_NAME_BYTES_MAX,
  "change of trust": (value) => isInteger(value, -LIMITS.TRUST_CHANGE_MAX, LIMITS.TRUST_CHANGE_MAX) && value !== 0,
  verbs: (value) => isList(value, 1, VERBS.length, (verb) => VERBS.includes(verb)) && equal(value, sorted(value)),
  note: (value, [max]) => typeof value === "string" && jsonBytes(value) <= 2 * max && utf8(value).length <= max,
  "cosigned note": (value, [max]) =>
    typeof value === "string" && [...value].length <= max && jsonBytes(value) <= 2 * max,
  body: (value, [max]) => typeof value === "string" && jsonBytes(value) <= max,
  request: (value) => isObject(value) && fits(value, Object.keys(value).length > 2 ? TABLE.signed : TABLE.commanded),
  delegation: isObject,
  approval: isObject,
  commands: (value) => isList(value, 1, LIMITS.BATCH_COMMANDS_MAX, isObject),
};

function compile(name, row) {
  if (row.integer) return (value) => isInteger(value, ...row.integer);
  if (row.text) {
    const pattern = new RegExp(row.text, "u");
    return (value) => typeof value === "string" && value.length <= row.max && pattern.test(value);
  }
  if (row.choice) return (value) => row.choice.includes(value);
  if (row.list)
    return (value) =>
      isList(value, ...row.count, (item) => is(row.list, item)) && (!row.rises || equal(value, sorted(value)));
  if (row.object) return (value) => isObject(value) && fits(value, row.object);
  if (!CODED[name]) throw new Error(`entries.mjs has a kind that leaf.mjs does not know: ${name}`);
  return (value) => CODED[name](value, row.code);
}

const KINDS = Object.fromEntries(Object.entries(TABLE.kinds).map(([name, row]) => [name, compile(name, row)]));
export const is = (kind, value) => KINDS[kind](value);
const fits = (value, members) => fault(value, members) === null;

/** What breaks the table first: [code, member, text], or null. */
function fault(value, members) {
  for (const [spelled, kind] of Object.entries(members)) {
    const name = spelled.replace("?", "");
    if (!(name in value)) {
      if (name === spelled) return ["member_missing", name, `member ${name} is missing`];
    } else if (!is(kind, value[name]))
      return ["member_invalid", name, `member ${name} is no ${kind}, or out of bounds`];
  }
  const odd = Object.keys(value).find((name) => !(name in members) && !(`${name}?` in members));
  return odd === undefined ? null : ["member_unknown", odd, `member ${odd.slice(0, 64)} is not known here`];
}

/** Malformed unless `value` has exactly these members, each of its kind. */
export function checkMembers(value, members, code) {
  const found = fault(value, members);
  must(found === null, found?.[2], code);
}

// --- bodies ---------------------------------------------------------------------------------------------------------

export const bodyBytesMax = (action) =>
  action === "batch.submit" ? LIMITS.BATCH_BODY_BYTES_MAX : LIMITS.BODY_BYTES_MAX;
const bodyValue = (action, body, name) => (name in body ? body[name] : (TABLE.defaults[action]?.[name] ?? null));

const BODY_RULES = {
  _check_wait(body) {
    const isWaiting = body.wait === true;
    must(isWaiting || !("giveUpMs" in body || "onDeadlock" in body), "giveUpMs, onDeadlock: only with wait true");
    must(!isWaiting || mayWait(resourcesOf(body)), "member resources: too many names to wait for");
  },
  _check_proof: (body) => must("keyDigest" in body === "proof" in body, "members keyDigest, proof: both or neither"),
  _check_api_key: (body) => must(!(body.kind === "trial" && "agent" in body), "a trial key belongs to no agent"),
  _check_commands(body) {
    for (const command of body.commands) {
      must(command.action in TABLE.commands, "a command asks for an action that a batch has");
      checkMembers(command, TABLE.commands[command.action]);
      checkTogether(command.action, command);
    }
  },
  _check_fence: (body) => must("leaseId" in body === "fencingToken" in body, "leaseId, fencingToken: both or neither"),
  _check_quorum: (body) => must((body.quorum ?? 1) <= body.approvers.length, "member quorum: at most the approvers"),
};

function checkOneOf(action, body) {
  const names = TABLE.oneOf[action];
  must(!names || names.filter((name) => name in body).length === 1, `exactly one of ${names} must be there`);
}

/** Malformed unless `body` is a body of `action`. */
export function checkBody(action, body) {
  must(action in TABLE.actions, "no action of this version");
  checkMembers(body, TABLE.actions[action].members);
  checkTogether(action, body);
}

function checkTogether(action, body) {
  checkOneOf(action, body);
  BODY_RULES[TABLE.bodyRules[action]]?.(body);
}

/** Action and body of each command of a checked batch, as the action would have them by itself. */
export const commandsIn = ({ ledger, actorDid, commands }) =>
  commands.map(({ action, ...rest }) => ({ action, body: { ledger, actorDid, ...rest } }));

/** The first member in which a leaf differs from the checked body it answers or the stated default, or null. */
export function bodyDifference(leaf, body) {
  const { action, type, value } = leaf;
  if (!(action in TABLE.actions)) return "action";
  for (const [name, asked] of TABLE.types[type].repeats) {
    const wanted = name === "resources" ? resourcesOf(body) : bodyValue(action, body, asked);
    const isFilledIn = wanted === null && TABLE.filledIn.some((row) => row[0] === type && row[1] === name);
    if (!equal(value[name], wanted) && !isFilledIn) return name;
  }
  if (leaf.is("announcement.refused", "retirement.refused", "disowning.refused"))
    return statedFault(leaf, body.statement) ? "statement" : null;
  if (leaf.is("batch.received", "batch.refused")) {
    if (value.count !== body.commands.length) return "count";
    return leaf.is("batch.received") || body.commands[value.index].action === value.action ? null : "action";
  }
  if (leaf.is("wait.queued") && bodyValue(action, body, "wait") !== true) return "wait";
  if (leaf.is("approval.asked") && value.giveUpByMs - leaf.timeMs !== bodyValue(action, body, "giveUpMs"))
    return "giveUpByMs";
  const hasHardCycle = "cycle" in value && !("softCycle" in value);
  const isWaitedOut = action === "lease.acquire" && bodyValue(action, body, "onDeadlock") === "wait";
  const isOdd = action === "lease.acquire" && hasHardCycle && !leaf.is("wait.queued") === isWaitedOut;
  return isOdd ? "onDeadlock" : null;
}

// --- leaves ---------------------------------------------------------------------------------------------------------

/** One parsed leaf: `value` is the whole object; `batch` is [seq of the header, index] for the answer to a command. */
class Leaf {
  constructor(value) {
    const { type, origin, seq, epoch, timeMs, genesis, actor, principal, onBehalfOf, request } = value;
    Object.assign(this, { value, type, origin, seq, epoch, timeMs, genesis, actor, principal, onBehalfOf });
    const isCommand = isObject(request) && "batch" in request;
    this.batch = isCommand ? [request.batch, request.index] : null;
    this.request = isObject(request) && !isCommand ? request : null;
    this.row = TABLE.types[type] ?? null;
    this.action = this.row && (this.row.action ?? (this.row.cause === "request" ? value.action : null));
  }
  number(name) {
    return typeof this.value[name] === "number" ? this.value[name] : -1;
  }
  is(...names) {
    return names.some((name) => this.type === full(name));
  }
}

/** One leaf by the table: canonical restricted JSON, and nothing in it contradicts the rest. */
export function parseLeaf(bytes) {
  const value = parseCanonical(bytes, LIMITS.LEAF_BYTES_MAX);
  const row = (typeof value.type === "string" && TABLE.types[value.type]) || null;
  const isCommon = (name) => name in TABLE.common || `${name}?` in TABLE.common;
  const common = Object.fromEntries(Object.entries(value).filter(([name]) => isCommon(name)));
  checkMembers(
    row ? value : common,
    row ? Object.assign(Object.create(null), TABLE.common, row.members) : TABLE.common,
  );
  const leaf = new Leaf(value);
  const found = contradiction(leaf);
  must(!found, found);
  return leaf;
}

function contradiction(leaf) {
  const { value, seq, row } = leaf;
  const isFirst = seq === 0;
  if ([value.prev, value.genesis].some((hash) => isFirst !== (hash === "0".repeat(64)))) return "prev, genesis: zeros";
  if (!row) return null;
  if (isFirst !== leaf.is("ledger.opened")) return "member type: ledger.opened is entry 0 and only entry 0";
  const found = row.cause === "gateway" ? gatewayFault(leaf) : requesterFault(leaf);
  if (found) return found;
  if ("error" in value && TABLE.refusals[value.error] !== value.number) return "error, number: of the refusal table";
  return row.rule ? RULES[row.rule](leaf) : null;
}

function gatewayFault({ actor, principal, onBehalfOf, value }) {
  if ([actor, principal, onBehalfOf].some((who) => who !== GATEWAY)) return "actor, principal, onBehalfOf: all gateway";
  return "request" in value || "custody" in value ? "request, custody: not in entries of the gateway" : null;
}

function requesterFault(leaf) {
  const { actor, principal, onBehalfOf, row } = leaf;
  const isAlone = actor === principal && principal === onBehalfOf;
  if ([actor, principal, onBehalfOf].includes(GATEWAY)) return "member actor: gateway exactly where it is the cause";
  if ((onBehalfOf === actor || onBehalfOf === principal) && !isAlone) return "onBehalfOf: equals all, or differs";
  if (row.actor.startsWith("operator") && onBehalfOf !== actor) return "operators and the enroller act for themselves";
  if (row.actor === "session" && onBehalfOf === actor) return "member onBehalfOf: not the session itself";
  if (leaf.request && jsonBytes(leaf.request.body) > bodyBytesMax(leaf.action)) return "member body: too long";
  if (!leaf.batch) return null;
  const isAnswer = TABLE.batchActions.includes(leaf.action) && !leaf.is("wait.queued") && leaf.value.wait !== true;
  if (!isAnswer) return "member request: not a type that answers a command of a batch";
  return leaf.seq === leaf.batch[0] + 1 + leaf.batch[1] ? null : "member request: seq is batch + 1 + index";
}

const isEarlierId = (text, seq) => Number(text.slice(1)) < seq;

function leaseRule(leaf) {
  const { value, seq, timeMs } = leaf;
  const isGrant = TABLE.grants.includes(leaf.type);
  const grantSeq = isGrant ? seq : leaf.number("grantSeq");
  if (value.leaseId !== `L${grantSeq}`) return "member leaseId: L and the seq of the granting entry";
  if (!isGrant && grantSeq >= seq) return "member grantSeq: an earlier entry";
  if ("schemes" in value) {
    const isOfThem = equal(
      value.schemes.map((row) => row.name),
      sorted(resourcesOf(value).map(schemeOf)),
    );
    if (!isOfThem || !value.schemes.every((row) => isModeAllowed(row.class, value.mode))) return "schemes, mode differ";
  }
  const grantedAtMs = isGrant ? timeMs : leaf.number("grantedAtMs");
  if (grantedAtMs > timeMs) return "member grantedAtMs: not after timeMs";
  const above = leaf.number("fencingToken") - grantedAtMs * 1000;
  if (grantedAtMs >= 0 && !(above >= 0 && above <= grantSeq)) return "member fencingToken: from the time of the grant";
  return "ttlMs" in value ? endFault(leaf, isGrant) || idleFault(leaf) : trustFault(leaf);
}

function endFault({ value, timeMs }, isGrant) {
  const endMs = timeMs + value.ttlMs;
  if (isGrant && value.expiresAtMs !== endMs) return "member expiresAtMs: timeMs + ttlMs";
  const isInside = endMs <= value.expiresAtMs && value.expiresAtMs <= timeMs + LIMITS.TTL_MS_MAX;
  return isInside ? null : "member expiresAtMs: at least timeMs + ttlMs, at most an hour";
}

function idleFault(leaf) {
  const { value, actor } = leaf;
  if (!("endsIfIdleAtMs" in value)) return leaf.principal !== actor ? "endsIfIdleAtMs: missing for a session" : null;
  if (leaf.onBehalfOf === actor) return "member endsIfIdleAtMs: only for a session";
  const isInside = leaf.timeMs < value.endsIfIdleAtMs && value.endsIfIdleAtMs <= (value.expiresAtMs ?? LIMITS.INT_MAX);
  return isInside ? null : "member endsIfIdleAtMs: after timeMs, not after expiresAtMs";
}

function trustFault(leaf) {
  const rows = leaf.value.trust ?? [];
  if (rows.some((row) => (row.previousSeq ?? -1) >= leaf.seq)) return "member trust: previousSeq is an earlier entry";
  const isGain = leaf.is("lease.released");
  const isFair = rows.every((row) => (isGain ? row.did === leaf.principal && row.change > 0 : row.change < 0));
  const isOnce = new Set(rows.map((row) => row.did)).size === rows.length;
  return isFair && isOnce ? null : "member trust: a release raises its actor's, an expiry lowers, each once";
}

function delayFault(leaf) {
  const isPast = "delayUntilMs" in leaf.value && leaf.value.delayUntilMs <= leaf.timeMs;
  return isPast ? "member delayUntilMs: after timeMs" : null;
}

function earlierRule(leaf) {
  const { value, seq, timeMs, row } = leaf;
  const late = row.cited.find((name) => leaf.number(name) >= seq);
  if (late) return `member ${late}: an earlier entry`;
  if ("ticketSeq" in value && value.ticketId !== `T${value.ticketSeq}`) return "member ticketId: T and its entry";
  if ("askSeq" in value && value.askId !== `A${value.askSeq}`) return "member askId: A and its entry";
  const past = row.till.find((name) => leaf.number(name) < timeMs);
  return past ? `member ${past}: not before timeMs` : null;
}

const isAsked = (leaf, row) => !("resources" in leaf.value) || resourcesOf(leaf.value).includes(row.resource);

function groupFault(leaf) {
  const [always, perhaps] = TABLE.told[leaf.value.error] ?? [[], []];
  const isOdd = (name) => name in leaf.value !== always.includes(name) && !perhaps.includes(name);
  const odd = TABLE.held.find(isOdd);
  return odd ? `member ${odd}: not as its error says` : null;
}

function waitFault({ value }) {
  const [keptOut, sentAway] = [
    ["already_waiting", "queue_full"],
    ["lease_held", "lock_delayed", "queued"],
  ];
  const isOdd = (value.wait === false ? keptOut : value.wait === true ? sentAway : []).includes(value.error);
  return isOdd ? "members wait, error: exclude each other" : null;
}

function conflictFault(leaf) {
  const { conflict } = leaf.value;
  if (!conflict) return null;
  const isEarlier = isEarlierId(conflict.leaseId, leaf.seq) && conflict.grantedAtMs <= leaf.timeMs;
  if (!isEarlier) return "member conflict: of an earlier entry";
  const isFair = isAsked(leaf, conflict) && mayOverlap(conflict.resource, [conflict.heldAs]);
  return isFair ? null : "member conflict: resource was asked for and overlaps heldAs";
}

function aheadFault(leaf) {
  const { ahead } = leaf.value;
  if (!ahead) return null;
  if (!isEarlierId(ahead.ticketId, leaf.seq) || ahead.queuedAtMs > leaf.timeMs) return "member ahead: an earlier entry";
  return isAsked(leaf, ahead) && ahead.actor !== leaf.actor ? null : "member ahead: another's, and asked for";
}

function cycleFault(leaf) {
  const { value, seq, actor } = leaf;
  const rows = value.cycle ?? [];
  if (!rows.length) return "softCycle" in value ? "member softCycle: only with cycle" : null;
  const isOnce = new Set(rows.map((row) => row.actor)).size === rows.length;
  if (rows[0].actor !== actor || !isOnce) return "member cycle: begins with the actor and has every actor once";
  if (!isAsked(leaf, rows[0]) || rows[0].ticketId !== value.ticketId) return "member cycle: begins with what was asked";
  const ownAsk = leaf.is("approval.refused") ? `A${seq}` : null;
  if (ownAsk && rows[0].askId !== ownAsk) return "member cycle: begins with the ask that is refused";
  const own = [undefined, value.ticketId, ownAsk];
  const ids = rows.flatMap((row) => [row.ticketId, row.aheadId, row.askId]).filter((id) => !own.includes(id));
  if (!ids.every((id) => isEarlierId(id, seq))) return "member cycle: of earlier entries";
  if (rows.some((row) => "aheadId" in row) !== "softCycle" in value) return "member softCycle: exactly with aheadId";
  const names = rows.map((row) => row.resource);
  const isTold = value.waitingOn === names[1] && equal(value.acquireOrder, sorted(names));
  return leaf.is("wait.queued") || isTold ? null : "members waitingOn, acquireOrder: as the cycle says";
}

function refusedRule(leaf) {
  const { value } = leaf;
  const found = groupFault(leaf) || earlierRule(leaf) || waitFault(leaf);
  if (found) return found;
  if (value.holder === leaf.actor) return "member holder: not the actor";
  if ("ticketId" in value && !isEarlierId(value.ticketId, leaf.seq)) return "member ticketId: of an earlier entry";
  const pair = value.error === "stale_fence" ? pairFault(leaf) : null;
  return delayFault(leaf) || pair || conflictFault(leaf) || aheadFault(leaf) || cycleFault(leaf);
}

function pairFault({ value }) {
  const isNamed = "holder" in value;
  const isOdd = isNamed !== "conflict" in value || ("holderName" in value && !isNamed);
  return isOdd ? "members holder, conflict: both or none, and holderName only with them" : null;
}

/** Facts agree with what the leaf itself says. */
function factsFault(leaf) {
  const { facts, schemes, resources, mode } = leaf.value;
  if (!facts) return null;
  const isHeld = "leaseId" in leaf.value;
  const said = [facts.leaseState === "live", facts.leaseMode !== "none", facts.leaseLeftMs > 0];
  if (said.some((one) => one !== isHeld) || (!isHeld && facts.leaseAgeMs !== 0)) return "facts: a lease or none";
  if (isHeld && MODES.indexOf(facts.leaseMode) < MODES.indexOf(mode)) return "facts: leaseMode at least as strong";
  if (leaf.principal !== leaf.actor && facts.actorKind !== "session") return "facts: another one's key is a session";
  const isOfThem = equal(
    schemes.map((row) => row.name),
    sorted(resources.map(schemeOf)),
  );
  return isOfThem && schemes.every((row) => isModeAllowed(row.class, mode)) ? null : "schemes, mode differ";
}

/** What rules in force say is what happens. */
function rulingFault({ value: { rules, error } }) {
  if (!rules || (error === undefined && rules.mode === "shadow")) return null;
  const [decision, isMatched] = TABLE.byRules[error] ?? ["allow", null];
  if (rules.mode !== "enforce" || rules.decision !== decision) return "rules: as the entry itself decides";
  return isMatched === null || isMatched === rules.matched.length > 0 ? null : "rules: matched as the error says";
}

function approvedFault(leaf) {
  const { approvals = [], facts, schemes } = leaf.value;
  if (facts.approvals !== approvals.length) return "members approvals, facts: as many as the rows say";
  if (approvals.some((row) => row.operator === leaf.onBehalfOf)) return "approvals: not of the agent's own operator";
  const isBare = !approvals.length && schemes.some((row) => row.class === "irreversible");
  return isBare ? "member approvals: missing for what is irreversible" : null;
}

const STATEMENT = new RegExp(
  "^tallystick-key/v1\\norigin ([^\\n]+)\\ngenesis ([0-9a-f]{64})\\n" +
    "(announce|retire|compromise) (log|receipt) (\\S+)(?: ([0-9a-f]{64}|-))?\\n$",
);

/** How an entry about a key differs from the root's statement in it; whose signature that bears needs entry 0. */
function statedFault({ value, origin, genesis, type, action }, text) {
  try {
    const note = parseNote(utf8(text));
    const [, named, first, verb, purpose, vkey, next] = STATEMENT.exec(note.text) ?? [];
    must(note.lines.length === 1 && named === origin && first === genesis, "a statement for this ledger, signed once");
    must((verb === "announce") === (next !== undefined), "only an announcement names the next key, or -");
    const key = parseVkey(vkey);
    const name = purpose === "log" ? origin : `${origin}/${purpose}`;
    must(key.kind === ED25519 && key.name === name, "the key is named as its purpose demands");
    must(`key.${verb}` === action, "for another action");
    must(value.purpose === purpose && value.key === vkey, "purpose, key: as the statement says");
    const isNext = type !== full("key.announced") || (value.next ?? "-") === next;
    must(isNext, "next: as the statement says");
    return null;
  } catch (error) {
    if (error instanceof Malformed) return `member statement: ${error.message}`;
    throw error;
  }
}

const RULES = {
  _genesis_rule: ({ value }) => (value.operators.includes(value.enroller) ? "member enroller: no operator" : null),
  _witnessed_rule: ({ value, seq }) => (value.size > 0 && value.size <= seq ? null : "member size: of earlier entries"),
  _key_rule: (leaf) => statedFault(leaf, leaf.value.statement) || earlierRule(leaf),
  _first_grant_rule(leaf) {
    if (leaf.value.holdUntilMs < leaf.timeMs) return "member holdUntilMs: not before the grant";
    return earlierRule(leaf) || leaseRule(leaf);
  },
  _next_lease_rule(leaf) {
    const { fromLeaseId, fromSeq, offerSeq, giver } = leaf.value;
    if (fromLeaseId !== `L${fromSeq}`) return "member fromLeaseId: L and fromSeq";
    if (offerSeq !== undefined && fromSeq >= offerSeq) return "member offerSeq: later than the grant that it offers";
    return giver === leaf.actor ? "member giver: not the receiver" : earlierRule(leaf) || leaseRule(leaf);
  },
  _lease_rule: leaseRule,
  _expired_rule(leaf) {
    if (leaf.value.expiresAtMs > leaf.timeMs) return "member expiresAtMs: no lease expires before its time";
    return delayFault(leaf) || leaseRule(leaf);
  },
  _returned_rule(leaf) {
    if (leaf.value.causeSeq <= leaf.value.grantSeq) return "member causeSeq: later than the grant that it ends";
    return earlierRule(leaf) || delayFault(leaf) || leaseRule(leaf);
  },
  _opened_rule(leaf) {
    const isLong = leaf.value.expiresAtMs > leaf.timeMs + LIMITS.DELEGATION_MS_MAX;
    return isLong ? "member expiresAtMs: seven days at most" : idleFault(leaf);
  },
  _idle_fault: idleFault,
  _ended_rule(leaf) {
    const { reason, trust = [], leases } = leaf.value;
    if ((reason === "revoked") !== "causeSeq" in leaf.value) return "member causeSeq: exactly when revoked";
    const isUnfair = trust.length > 1 || (trust.length && (reason === "revoked" || leases === 0));
    return isUnfair ? "member trust: one row, when leases were not given back" : earlierRule(leaf) || trustFault(leaf);
  },
  _batch_refused_rule: (leaf) =>
    leaf.value.index < leaf.value.count ? refusedRule(leaf) : "member index: below count",
  _broken_rule(leaf) {
    const { seenToken, fencingToken, resource } = leaf.value;
    if (seenToken !== fencingToken) return "member seenToken: the token of the lease that is broken";
    if (!mayOverlap(resource, resourcesOf(leaf.value))) return "member resource: overlaps one of the lease";
    return delayFault(leaf) || leaseRule(leaf);
  },
  _refused_rule: refusedRule,
  _break_refused_rule(leaf) {
    const { value } = leaf;
    const hasHolder = "holder" in value;
    const isOdd = hasHolder !== "conflict" in value || (hasHolder && value.error !== "token_stale");
    if (isOdd || ("holderName" in value && !hasHolder)) return "holder, conflict: both or none, with token_stale";
    if (value.conflict && value.conflict.resource !== value.resource) return "member conflict: on what was named";
    return conflictFault(leaf);
  },
  _ticket_refused_rule(leaf) {
    const isOdd = (leaf.value.error === "ticket_ended") !== "endedSeq" in leaf.value;
    return isOdd ? "member endedSeq: exactly with ticket_ended" : earlierRule(leaf);
  },
  _queued_rule(leaf) {
    const { ticketId, giveUpByMs, giveUpMs } = leaf.value;
    if (ticketId !== `T${leaf.seq}`) return "member ticketId: T and the seq of this entry";
    if (giveUpByMs !== leaf.timeMs + giveUpMs) return "member giveUpByMs: timeMs + giveUpMs";
    return earlierRule(leaf) || cycleFault(leaf);
  },
  _offered_rule(leaf) {
    const { leaseId, grantSeq, toDid, holder } = leaf.value;
    if (leaseId !== `L${grantSeq}`) return "member leaseId: L and the seq of the granting entry";
    return toDid === holder ? "member toDid: not the holder" : earlierRule(leaf);
  },
  _earlier_rule: earlierRule,
  _allowed_rule(leaf) {
    const { leaseId, grantSeq, mode, validUntilMs, facts } = leaf.value;
    const there = ["leaseId", "fencingToken", "grantSeq"].filter((name) => name in leaf.value).length;
    if (there % 3 !== 0) return "members leaseId, fencingToken, grantSeq: all or none";
    if (there && leaseId !== `L${grantSeq}`) return "member leaseId: L and the seq of the granting entry";
    if (!there && mode !== "read") return "member leaseId: missing for what is not a read";
    if (validUntilMs <= leaf.timeMs) return "member validUntilMs: after timeMs";
    if (there && validUntilMs > leaf.timeMs + facts.leaseLeftMs) return "member validUntilMs: not after the lease";
    return earlierRule(leaf) || approvedFault(leaf) || factsFault(leaf) || rulingFault(leaf);
  },
  _denied_rule(leaf) {
    const { value } = leaf;
    if ("leaseId" in value !== "fencingToken" in value) return "members leaseId, fencingToken: both or none";
    const isByRules = Object.hasOwn(TABLE.byRules, value.error);
    if (["facts", "schemes", "rules"].some((name) => name in value !== isByRules)) return "facts, schemes, rules";
    return refusedRule(leaf) || factsFault(leaf) || rulingFault(leaf);
  },
  _asked_rule({ value, seq, timeMs }) {
    if (value.askId !== `A${seq}`) return "member askId: A and the seq of this entry";
    if (value.quorum > value.approvers.length) return "member quorum: at most the approvers";
    const isInside = isInteger(value.giveUpByMs - timeMs, LIMITS.ASK_MS_MIN, LIMITS.ASK_MS_MAX);
    return isInside ? null : "member giveUpByMs: timeMs + giveUpMs";
  },
  _ask_refused_rule(leaf) {
    const { value } = leaf;
    const isDeadlock = value.error === "deadlock";
    if (["waitingOn", "cycle", "acquireOrder"].some((name) => name in value !== isDeadlock)) return "only a deadlock";
    if ("searchBounded" in value && !isDeadlock) return "member searchBounded: only with cycle";
    return cycleFault(leaf);
  },
  _given_rule: (leaf) => (leaf.value.approver === leaf.actor ? earlierRule(leaf) : "member approver: the actor"),
  _ask_call_refused_rule(leaf) {
    const isOdd = "endedSeq" in leaf.value && leaf.value.error !== "ask_ended";
    return isOdd ? "member endedSeq: only when the error is ask_ended" : earlierRule(leaf);
  },
};

for (const { rule } of Object.values(TABLE.types))
  if (rule && !RULES[rule]) throw new Error(`entries.mjs names a rule that leaf.mjs does not know: ${rule}`);
for (const rule of Object.values(TABLE.bodyRules))
  if (!BODY_RULES[rule]) throw new Error(`entries.mjs names a rule that leaf.mjs does not know: ${rule}`);

// --- words ----------------------------------------------------------------------------------------------------------

/** Milliseconds since 1970, and the same in UTC. */
export function moment(ms) {
  const [date, clock] = new Date(ms).toISOString().split("T");
  return `${ms} (${date} ${clock.slice(0, -1)} UTC)`;
}

function inWords(name, member) {
  if (Array.isArray(member)) return member.join(", ");
  if (typeof member !== "number") return member;
  return TABLE.moments.some((end) => name.endsWith(end)) ? moment(member) : String(member);
}

/** What a leaf says in words beside its resources; nothing for an unknown type. */
export function sentences(leaf) {
  const said = leaf.batch ? [`the answer to command ${leaf.batch[1]} of the batch at entry ${leaf.batch[0]}`] : [];
  const fill = (_, name, inner) =>
    inner ? inWords(inner, leaf.value[name]?.[inner]) : inWords(name, leaf.value[name]);
  const topics = [...Object.keys(leaf.value), ...topicsOf(leaf)];
  for (const [about, sentence] of leaf.row ? TABLE.sentences : [])
    if (topics.includes(about)) said.push(sentence.replace(/\{(\w+)(?:\[(\w+)\])?\}/g, fill));
  return said;
}

/** What else a leaf may be asked about than its members: its type, and how the rules stood to an admission. */
function topicsOf(leaf) {
  const { rules } = leaf.value;
  if (!isObject(rules)) return leaf.is("admission.allowed") ? [leaf.type, "unpoliced"] : [leaf.type];
  const lists = ["matched", "obligations"].filter((name) => rules[name].length);
  return [leaf.type, `rules ${rules.mode}`, ...lists];
}
