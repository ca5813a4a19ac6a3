"""Reads a ledger over HTTP with tlog-scales: checkpoints, roots, entries with proofs, and all pairs of sizes.

    python scales.py LOG-VKEY URL...

Positive cases only: it does not check the length of hashes in a proof. Run by the peers' Python.
"""

import sys

from tlog_scales.backend import HttpBackend  # type: ignore[import-not-found]  # lives in the peers' environment
from tlog_scales.reader import TilesReader  # type: ignore[import-not-found]
from tlog_scales.signing import Vkey  # type: ignore[import-not-found]
from tlog_scales.tiles import leaf_hash  # type: ignore[import-not-found]


def main(vkey: str, urls: list[str]) -> None:
    key = Vkey.from_string(vkey)
    heads = []
    for url in urls:
        backend = HttpBackend(url)
        backend.session.trust_env = False
        reader = TilesReader(backend)
        checkpoint = reader.get_checkpoint()
        checkpoint.verify(key)
        assert checkpoint.origin == key.name
        assert reader.calculate_root_hash() == checkpoint.root_hash
        for index in {0, checkpoint.size // 2, checkpoint.size - 1}:
            proof = reader.get_inclusion_proof(index, checkpoint.size)
            proof.check(leaf_hash(reader.get_entry(index)), checkpoint.root_hash)
        print(f"tlog-scales: {checkpoint.size} entries")
        heads.append((reader, checkpoint))
    pairs = [(new, old) for new in heads for old in heads if old[1].size <= new[1].size]
    for (reader, new), (_, old) in pairs:
        reader.get_consistency_proof(old.size, new.size).check(old.root_hash, new.root_hash)
    print(f"tlog-scales: {len(pairs)} pairs are consistent")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
