"""Reads a ledger over HTTP with aics-tlog: checkpoints, every tile and bundle, inclusion, and all pairs of sizes.

    python aics.py LOG-VKEY URL...

Run by the Python of the peers' environment; it shares nothing with Tallystick but the bytes on the wire.
"""

import sys

import aics_tlog as aics  # type: ignore[import-not-found]  # lives in the peers' environment


def main(vkey: str, urls: list[str]) -> None:
    key = aics.parse_vkey(vkey)
    heads = []
    for url in urls:
        reader = aics.HttpTileReader(url, proxies={})
        note = aics.parse_note(reader.read_checkpoint())
        result = aics.verify_checkpoint(note, key, expected_origin=key.name)
        assert result.log_ok, result.error
        checkpoint = aics.parse_checkpoint(note.text)
        size, root = checkpoint.size, checkpoint.root
        report = aics.audit_tiles(reader, size, root)
        assert aics.tree_root_from_tiles(reader, size) == root
        for index in {0, size // 2, size - 1}:
            proof = aics.inclusion_proof_from_tiles(reader, index, size)
            assert aics.verify_leaf_inclusion(aics.read_entry(reader, index, size), index, size, proof, root)
        print(f"aics-tlog: {size} entries, {report.tiles} tiles, {report.bundles} bundles")
        heads.append((reader, size, root))
    pairs = [(new, old) for new in heads for old in heads if old[1] <= new[1]]
    for (reader, size, root), (_, old_size, old_root) in pairs:
        proof = aics.consistency_proof_from_tiles(reader, old_size, size)
        assert aics.verify_consistency(old_size, size, old_root, root, proof)
    print(f"aics-tlog: {len(pairs)} pairs are consistent")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
