"""The page of verifier/js in a real Chromium: files of the corpus give its verdicts, by http and from a folder."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.outside.tools import HERE, need, peers_python, run
from tests.vectors import corpus
from tests.verifier.test_corpus import content

FOLDER = Path(__file__).resolve().parents[2] / "verifier" / "js"
Case = dict[str, Any]
CASES = [  # of the corpus: name, what the page calls it
    ("accept/envelope-plain", "valid"),
    ("accept/witnessed-2-of-3", "valid"),
    ("accept/private-opened", "valid"),
    ("accept/keys-disowned-consistent", "valid"),
    ("reject/witnessed-1-of-3", "below"),
    ("reject/direct-r-identity", "invalid"),
    ("reject/keys-small-order", "unreadable"),
    ("reject/type-unknown", "indeterminate"),
    ("reject/also-two-roots", "split"),
    ("reject/compare-two-leaves", "split"),
    ("accept/compare-same", "valid"),
]
INPUTS = {"--keys": "keys", "--policy": "policy", "--also": "also", "--private": "texts"}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing on the test's output."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(FOLDER)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


def laid_out(name: str, folder: Path) -> Case:
    """A case of the corpus as a person fills in the form."""
    case = json.loads((corpus.HERE / f"{name}.json").read_bytes())
    folder.mkdir(parents=True)
    for file, value in case["files"].items():
        (folder / file).write_bytes(content(value))
    words, chosen = case["arguments"], "receipt"
    form: Case = {"files": {}, "root": "", "level": "included"}
    for word in words[1:]:
        if word in ("--root", "--level"):
            chosen = word[2:]
        elif word in INPUTS:
            chosen = INPUTS[word]
        elif chosen in ("root", "level"):
            form[chosen] = (folder / word[1:]).read_text("utf-8").strip() if word.startswith("@") else word
        else:
            form["files"].setdefault(chosen, []).append(str(folder / word))
    return form


def checked(url: str, forms: list[Case], folder: Path, *flags: str) -> Any:
    chromium = need(shutil.which("chromium") or shutil.which("chromium-browser"), "chromium")
    (folder / "forms.json").write_text(json.dumps(forms), encoding="utf-8")
    done = run(peers_python(), str(HERE / "browser.py"), chromium, url, str(folder / "forms.json"), *flags)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_page_gives_the_verdicts_of_the_corpus(address: str, tmp_path: Path) -> None:
    forms = [laid_out(name, tmp_path / name) for name, _ in CASES]
    forms.append({**forms[0], "drop": True})
    found = checked(f"{address}verify.html", forms, tmp_path)
    assert [answer["verdict"] for answer in found["answers"]] == [*(verdict for _, verdict in CASES), "valid"]
    assert all(url.startswith(address) for url in found["asked"])  # nothing is fetched from anywhere else
    assert [error for error in found["errors"] if "favicon" not in error and "404" not in error] == []
    plain = found["answers"][0]
    assert plain["sentence"] == "Valid: everything that was asked for holds (level included, asked for included)."
    assert any(sentence.startswith("held from ") for sentence in plain["statement"])
    assert found["answers"][4]["sentence"].startswith("Valid, but less than you asked for (level included")
    assert "Keep both files" in " ".join(found["answers"][8]["findings"])


def test_what_a_file_says_never_becomes_markup(address: str, tmp_path: Path) -> None:
    form = laid_out("accept/private-opened", tmp_path / "files")
    (texts,) = map(Path, form["files"]["texts"])
    value = json.loads(texts.read_bytes())
    value["fields"] = [{"name": "<img src=x onerror=alert(1)>", "salt": None}]
    texts.write_text(json.dumps(value), encoding="utf-8")
    (answer,) = checked(f"{address}verify.html", [form], tmp_path)["answers"]
    assert (answer["verdict"], answer["images"]) == ("invalid", 0)
    assert any("<img src=x onerror=alert(1)>" in sentence for sentence in answer["findings"])


def test_from_a_file_the_page_works_or_says_what_to_do(tmp_path: Path) -> None:
    form = laid_out("accept/envelope-plain", tmp_path / "files")
    url = (FOLDER / "verify.html").as_uri()
    allowed = checked(url, [form], tmp_path, "--allow-file-access-from-files")["answers"][0]
    assert allowed["verdict"] == "valid"
    refused = checked(url, [form], tmp_path)["answers"][0]
    assert refused["verdict"] == "valid" or "python -m http.server" in refused["sentence"]
