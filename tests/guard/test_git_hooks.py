"""Hooks put in and taken out again, beside those of others; and what happens when the guard can't do its work."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.guard.git import Git
from gateway.guard.hooks import HooksElsewhere, install_hooks
from tests.guard.world import Tree, World
from tests.system.process import free_port


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_hooks_that_were_there_run_first_and_come_back(world: World) -> None:
    tree = world.tree()
    hooks = tree.path / ".git" / "hooks"
    script(hooks / "pre-commit", "echo theirs >> ran; test ! -e stop")
    script(hooks / "commit-msg", 'echo "$1" >> ran')
    theirs = (hooks / "pre-commit").read_text()
    tree.install("--repository", world.name)
    tree.install("--repository", world.name)
    tree.add("a.txt")
    assert "is not claimed" in tree.refused("commit", "-m", "m")
    tree.hold(world.file("a.txt"))
    tree.write("stop")
    tree.refused("commit", "-m", "m")
    (tree.path / "stop").unlink()
    assert "Tallystick-Receipt" in tree.commit()
    ran = (tree.path / "ran").read_text().splitlines()
    assert ran == ["theirs", "theirs", "theirs", ".git/COMMIT_EDITMSG"]
    assert tree.guard("uninstall").returncode == 0
    assert (hooks / "pre-commit").read_text() == theirs
    assert not list(hooks.glob("*tallystick*"))
    tree.add("b.txt")
    assert "Tallystick-Receipt" not in tree.commit()


def test_what_a_hook_before_ours_stages_is_compared(world: World) -> None:
    """A formatter may change the index; so may what is no formatter."""
    tree = world.guarded()
    tree.hold(world.file("a.txt"))
    script(tree.path / ".git" / "hooks" / "pre-commit.before-tallystick", "echo x > sly.txt; git add sly.txt")
    tree.add("a.txt", "changed\n")
    assert f"{world.file('sly.txt')} is not claimed" in tree.refused("commit", "-m", "m")


def test_a_push_is_told_to_both_hooks(world: World) -> None:
    bare, tree = world.bare(), world.guarded()
    bare.git("config", "tallystick.since", tree.git("rev-parse", "HEAD"))
    script(tree.path / ".git" / "hooks" / "pre-push.before-tallystick", "cat > told")
    tree.git("remote", "add", "origin", str(bare.path))
    tree.git("push", "-q", "origin", "main")
    assert (tree.path / "told").read_text().startswith("refs/heads/main ")
    tree.add("a.txt", "changed\n")
    tree.git("commit", "-q", "--no-verify", "-m", "m")
    assert "no receipt of it covers" in tree.refused("push", "origin", "main")


def test_hooks_go_where_core_hookspath_leads(world: World) -> None:
    tree = world.tree()
    tree.git("config", "core.hooksPath", ".hooks")
    tree.install("--repository", world.name)
    assert sorted(path.name for path in (tree.path / ".hooks").iterdir()) == [
        "commit-msg", "post-commit", "post-merge", "pre-commit", "pre-push",
    ]  # fmt: skip
    tree.add("a.txt")
    assert "is not claimed" in tree.refused("commit", "-m", "m")


def test_hooks_that_other_repositories_share_are_only_touched_when_that_is_meant(world: World) -> None:
    tree, elsewhere = world.guarded(), world.folder / "everybody"
    tree.git("config", "core.hooksPath", str(elsewhere))
    with pytest.raises(HooksElsewhere, match="--shared-hooks"):
        install_hooks(Git(tree.path))
    assert not elsewhere.exists()
    assert len(install_hooks(Git(tree.path), is_shared=True)) == 5


def test_status_tells_what_is_missing(world: World) -> None:
    tree = world.tree()
    told = tree.guard("status")
    assert (told.returncode, "git config tallystick.repository NAME" in told.stdout) == (1, True)
    tree.install("--repository", world.name)
    assert tree.guard("status").returncode == 0
    (tree.path / ".git" / "hooks" / "pre-push").unlink()
    assert "missing: pre-push" in tree.guard("status").stdout


def test_a_committed_file_names_the_repository_and_holds_until_the_next_commit(world: World) -> None:
    """Whoever changes the rules is held to the old ones."""
    tree = world.tree()
    rules = f"[tallystick]\n\trepository = {world.name}\n"
    tree.add(".tallystick", rules)
    tree.set_up()
    tree.hold(world.file("**"))
    tree.commit()
    tree.let_go(world.file("**"))
    tree.add(".tallystick", rules + "\tunclaimed = claim\n")
    assert f"{world.file('.tallystick')} is not claimed" in tree.refused("commit", "-m", "m")
    tree.hold(world.file(".tallystick"))
    tree.commit()
    tree.add("new.txt")
    assert "Tallystick-Receipt" in tree.commit()


def test_a_strangers_branch_does_not_change_what_install_wrote_down(world: World) -> None:
    """Its file would rename the repository, look away and take leases by itself; it runs nothing either."""
    tree = world.guarded(admit="yes")
    tree.install()
    rules = "[tallystick]\n\trepository = other\n\tunclaimed = claim\n\tadmit = no\n\tscheme = file\n"
    rules += "[core]\n\tfsmonitor = touch ran\n\thooksPath = /nowhere\n[include]\n\tpath = ../evil\n"
    tree.write(".tallystick", rules)
    tree.git("add", ".tallystick")
    tree.git("-c", "core.hooksPath=/nowhere", "commit", "-q", "-m", "a stranger's")
    tree.add("a.txt", "changed\n")
    assert f"{world.file('a.txt')} is not claimed" in tree.refused("commit", "-m", "m")
    tree.hold(world.file("a.txt"))
    kinds = [leaf["type"] for leaf in world.covering(tree.commit())]
    assert "tallystick/admission.allowed/1" in kinds and not (tree.path / "ran").exists()


def test_a_committed_file_excuses_no_commits(world: World) -> None:
    tree = world.guarded()
    tree.add(".tallystick", "[tallystick]\n\tsince = HEAD\n")
    tree.git("-c", "core.hooksPath=/nowhere", "commit", "-q", "-m", "m")
    tree.add("a.txt", "changed\n")
    assert "tallystick.since: stands in git's configuration alone" in tree.refused("commit", "-m", "m")


@pytest.mark.parametrize("broken", ['{"claimed": [1]}', '{"seqs": [[]], "making": 1}', "[" * 5_000, '{"x": 1}', "\xff"])
def test_a_broken_note_of_an_earlier_hook_is_no_traceback(world: World, broken: str) -> None:
    tree = world.guarded()
    (tree.path / ".git" / "tallystick-commit.json").write_text(broken)
    tree.add("a.txt", "changed\n")
    told = tree.refused("commit", "-m", "m")
    assert "Traceback" not in told and f"{world.file('a.txt')} is not claimed" in told


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("repository", "a b"), ("repository", "a%20b"), ("repository", ""), ("repository", "a/**"), ("scheme", "Repo"),
        ("unclaimed", "maybe"), ("lease", "L42"), ("repository", "a/" * 16 + "b"),
    ],
)  # fmt: skip
def test_settings_that_can_not_be_used_refuse(world: World, key: str, value: str) -> None:
    tree = world.guarded()
    tree.git("config", f"tallystick.{key}", value)
    tree.add("a.txt", "changed\n")
    assert f"tallystick pre-commit: tallystick.{key if key != 'scheme' else 'repository'}:" in tree.refused(
        "commit", "-m", "m"
    )


def away(world: World, tree: Tree) -> None:
    """Let the agent's profile lead to where nobody listens."""
    home = world.folder / "away"
    home.mkdir()
    for file in tree.home.iterdir():
        if file.is_file():
            (home / file.name).write_bytes(file.read_bytes())
            (home / file.name).chmod(file.stat().st_mode)
    address = (home / "gateway.json").read_text()
    (home / "gateway.json").write_text(address.replace(f":{world.gateway.port}", f":{free_port()}"))
    tree.also["TALLYSTICK_HOME"] = str(home)


def test_a_gateway_that_is_away_lets_nothing_pass_and_the_way_around_is_loud(world: World) -> None:
    tree = world.guarded(unclaimed="claim")
    tree.hold(world.file("a.txt"))
    away(world, tree)
    tree.add("a.txt", "changed\n")
    head = tree.git("rev-parse", "HEAD")
    told = tree.refused("commit", "-m", "m")
    assert "What is not compared is not let pass" in told and "TALLYSTICK_GUARD=off" in told
    assert tree.is_at(head)
    tree.also["TALLYSTICK_GUARD"] = "off"
    done = tree.try_git("commit", "-m", "m")
    assert done.returncode == 0 and b"NOT COMPARED WITH LEASES" in done.stderr
    assert "Tallystick-Unchecked" in tree.git("log", "-1", "--format=%B")


@pytest.mark.parametrize("word", ["", "0", "no", "OFF", "1"])
def test_only_one_word_turns_the_guard_off(world: World, word: str) -> None:
    tree = world.guarded()
    tree.also["TALLYSTICK_GUARD"] = word
    tree.add("a.txt", "changed\n")
    assert "is not claimed" in tree.refused("commit", "-m", "m")


def test_a_guard_that_is_gone_lets_nothing_pass(world: World) -> None:
    """The environment that had the program was removed."""
    tree = world.guarded()
    hook = tree.path / ".git" / "hooks" / "pre-commit"
    hook.write_text(hook.read_text().replace("/bin/python", "/bin/gone-python"))
    tree.add("a.txt", "changed\n")
    tree.refused("commit", "-m", "m")


def test_a_repository_without_a_name_is_not_pushed_to(world: World) -> None:
    bare, tree = world.bare(), world.tree()
    bare.git("config", "--unset", "tallystick.repository")
    tree.add("a.txt")
    tree.commit()
    assert "this repository has no name on the ledger" in tree.refused("push", str(bare.path), "main")
