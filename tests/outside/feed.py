"""Shows a log's checkpoints to a witness with the client of aics-witness, an independent submitter.

    python feed.py URL WITNESS-VKEY LOG-FOLDER

The folder has NAME.note files and a steps.json: a list of {"note": NAME, "old": n or null, "proofs": {"n": [hex…]},
"status": expected}. `old` null lets the client find out by itself, through a 409. Run by the peers' Python.
"""

import json
import sys
from pathlib import Path

from aics_witness import WitnessClient, WitnessRejected  # type: ignore[import-not-found]  # the peers' environment


def main(url: str, vkey: str, folder: str) -> None:
    steps = json.loads(Path(folder, "steps.json").read_text())
    with WitnessClient(url, vkey, max_attempts=1) as client:
        for step in steps:
            print(f"{step['note']}: {submit(client, step, Path(folder, step['note'] + '.note').read_bytes())}")


def submit(client: WitnessClient, step: dict[str, object], note: bytes) -> int:
    proofs = step["proofs"]
    if step["old"] is None:
        client.known_sizes.clear()  # as after a restart of the log
        client._logs_state.clear()
    try:
        lines = client.submit(note, lambda old, size: [bytes.fromhex(part) for part in proofs[str(old)]])  # type: ignore[index]
    except WitnessRejected as error:
        return int(error.status)
    assert lines.count("\n") == 1
    return 200


if __name__ == "__main__":
    main(*sys.argv[1:])
