"""The demo never touches what it did not make, and says so before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.demo import __main__ as demo


def test_a_folder_with_strange_contents_is_refused_untouched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "play", lambda *_: pytest.fail("started"))
    (tmp_path / "thesis.txt").write_text("years of work")
    assert demo.main(["--out", str(tmp_path)]) == 1
    assert "'thesis.txt', which no demo made" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").write_text("mine")
    assert demo.main(["--out", str(tmp_path / "out")]) == 1
    assert "is not a folder; choose another" in capsys.readouterr().err
    assert demo.main(["--out", str(tmp_path / "out" / "below")]) == 1
    assert "can't be used (Not a directory); choose another" in capsys.readouterr().err


def test_new_empty_and_own_folders_are_taken(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    assert demo.refusal_of(out) is None
    assert demo.refusal_of(out) is None, "it is empty now"
    for name in demo.KEPT:
        (out / name).touch()
    for name, inner in demo.FOLDERS.items():
        for file in inner:
            (out / name / file).mkdir(parents=True)
    assert demo.refusal_of(out) is None


def test_a_folder_under_one_of_its_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "receipt.json").mkdir()
    assert "'receipt.json'" in str(demo.refusal_of(tmp_path))


def test_a_folder_that_only_bears_the_name_of_the_demos_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tiles").mkdir()
    (tmp_path / "tiles" / "kitchen.jpg").touch()
    assert "'tiles'" in str(demo.refusal_of(tmp_path))
    (tmp_path / "tiles" / "kitchen.jpg").unlink()
    assert demo.refusal_of(tmp_path) is None
    (tmp_path / "audit").symlink_to(tmp_path / "tiles")
    assert "'audit'" in str(demo.refusal_of(tmp_path))


@pytest.mark.parametrize("text", ["0", "-1", "0.09", "100001", "nan", "inf", "fast"])
def test_compression_is_bounded(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        demo.main([f"--compression={text}", "--out", str(tmp_path)])
    assert stopped.value.code == 2
    assert "must be a number from 0.1 to 100,000" in capsys.readouterr().err
