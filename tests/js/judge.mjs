// Reads {"pins": {root, keys, policy}, "receipts": [hex, …]} from standard input and writes the list of reports.
import { readFileSync } from "node:fs";
import { verify } from "../../verifier/js/verify.mjs";

const { pins, receipts } = JSON.parse(readFileSync(0, "utf8"));
const [keys, policy] = [pins.keys, pins.policy].map((text) => new TextEncoder().encode(text));
const reports = [];
for (const receipt of receipts)
  reports.push(
    (await verify({ file: Uint8Array.from(Buffer.from(receipt, "hex")), root: pins.root, keys, policy })).report,
  );
console.log(JSON.stringify(reports));
