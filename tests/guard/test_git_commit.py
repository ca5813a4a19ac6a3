"""Commits with real git: what is staged is compared with the leases of whoever commits."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from tests.guard.world import Tree, World


def test_a_commit_of_what_is_held_names_its_receipts(world: World) -> None:
    tree = world.guarded()
    lease = tree.hold(world.file("a.txt"))
    tree.add("a.txt", "changed\n")
    message = tree.commit()
    trailer = message.splitlines()[-1]
    assert trailer.startswith(f"Tallystick-Receipt: {lease['origin']} ")
    (shown,) = world.covering(message)
    assert shown["type"] == "tallystick/lease.renewed/1"
    assert shown["leaseId"] == lease["leaseId"]


def test_a_commit_lengthens_no_lease(world: World) -> None:
    tree = world.guarded()
    lease = tree.hold(world.file("a.txt"))
    tree.add("a.txt", "changed\n")
    tree.commit()
    (after,) = [row for row in tree.leases() if row["leaseId"] == lease["leaseId"]]
    assert after["expiresAtMs"] == lease["expiresAtMs"]


def test_what_nobody_has_claimed_is_refused_with_what_to_do(world: World) -> None:
    """Scenario 14."""
    tree = world.guarded()
    head = tree.git("rev-parse", "HEAD")
    tree.add("new.txt")
    told = tree.refused("commit", "-m", "m")
    assert f"{world.file('new.txt')} is not claimed" in told
    assert f"tallystick lease acquire {world.file('new.txt')}" in told
    assert tree.is_at(head)


def test_with_claim_a_lease_is_taken_for_the_commit_and_given_back(world: World) -> None:
    """Scenario 14: auto-claim and receipt."""
    tree = world.guarded(unclaimed="claim")
    before = tree.leases()
    tree.add("new.txt")
    tree.add("more.txt")
    message = tree.commit()
    (shown,) = world.covering(message)
    assert shown["resources"] == [world.file("more.txt"), world.file("new.txt")]
    assert tree.leases() == before


def test_two_agents_in_two_worktrees_hold_one_path(world: World) -> None:
    """Scenario 28: the same path in two worktrees is the same resource; the holder is named."""
    alice = world.guarded()
    bob = world.other(alice, "bob")
    lease = bob.hold(world.file("b/**"))
    for tree in (alice, bob):
        tree.add("b/c.txt", f"{tree.path}\n")
    told = alice.refused("commit", "-m", "m")
    assert f"{world.file('b/c.txt')} is held by {lease['actor']}: write on {world.file('b/**')}" in told
    assert str(lease["leaseId"]) in told
    assert "until 20" in told
    assert "Tallystick-Receipt" in bob.commit()


def test_claiming_takes_nothing_from_another(world: World) -> None:
    """Scenario 14: of two new paths one is another's; none is taken, nothing is committed."""
    alice = world.guarded(unclaimed="claim")
    bob = world.other(alice, "bob")
    lease = bob.hold(world.file("mine.txt"))
    before = alice.leases()
    alice.add("free.txt")
    alice.add("mine.txt")
    told = alice.refused("commit", "-m", "m")
    assert f"{world.file('mine.txt')} is held by {lease['actor']}" in told
    assert alice.leases() == before


def test_a_rename_needs_both_of_its_names(world: World) -> None:
    """Scenario 30: a rename frees nobody's lease, and takes nobody's new name."""
    tree = world.guarded()
    tree.git("mv", "a.txt", "z.txt")
    tree.hold(world.file("z.txt"))
    assert f"{world.file('a.txt')} is not claimed" in tree.refused("commit", "-m", "m")
    tree.hold(world.file("a.txt"))
    tree.let_go(world.file("z.txt"))
    assert f"{world.file('z.txt')} is not claimed" in tree.refused("commit", "-m", "m")
    tree.hold(world.file("z.txt"))
    assert "Tallystick-Receipt" in tree.commit()


def test_a_deletion_needs_its_path(world: World) -> None:
    tree = world.guarded()
    tree.git("rm", "-q", "b/c.txt")
    assert f"{world.file('b/c.txt')} is not claimed" in tree.refused("commit", "-m", "m")
    tree.hold(world.file("b/**"))
    assert "Tallystick-Receipt" in tree.commit()


def test_a_repository_may_ask_for_a_mode_of_its_own_for_deletions(world: World) -> None:
    tree = world.guarded()
    tree.git("config", "tallystick.delete", "delete")
    lease = tree.hold(world.file("b/**"))
    tree.git("rm", "-q", "b/c.txt")
    assert f"tallystick lease renew {lease['leaseId']} --mode delete" in tree.refused("commit", "-m", "m")
    assert tree.tallystick("lease", "renew", str(lease["leaseId"]), "--mode", "delete").returncode == 0
    assert "Tallystick-Receipt" in tree.commit()


def test_an_append_lease_lets_a_path_come_and_none_change(world: World) -> None:
    tree = world.guarded()
    tree.hold(world.file("**"), mode="append")
    tree.add("new.txt")
    assert "Tallystick-Receipt" in tree.commit()
    tree.add("new.txt", "other\n")
    assert "--mode write" in tree.refused("commit", "-m", "m")


def test_a_read_lease_lets_nothing_be_written(world: World) -> None:
    tree = world.guarded()
    tree.hold(world.file("**"), mode="read")
    tree.add("a.txt", "other\n")
    assert f"{world.file('a.txt')} is not claimed" in tree.refused("commit", "-m", "m")


def test_another_mode_is_a_change(world: World) -> None:
    tree = world.guarded()
    (tree.path / "a.txt").chmod(0o755)
    tree.git("add", "a.txt")
    assert f"{world.file('a.txt')} is not claimed" in tree.refused("commit", "-m", "m")


def test_a_file_that_becomes_a_link_is_a_change_of_its_path(world: World) -> None:
    """Scenario 29."""
    tree = world.guarded()
    (tree.path / "a.txt").unlink()
    (tree.path / "a.txt").symlink_to("b/c.txt")
    tree.git("add", "a.txt")
    assert f"{world.file('a.txt')} is not claimed" in tree.refused("commit", "-m", "m")
    tree.hold(world.file("a.txt"))
    assert "Tallystick-Receipt" in tree.commit()


@pytest.mark.parametrize("target", ["b/../../outside", "/etc/passwd"])
def test_a_link_out_of_the_work_tree_is_refused(world: World, target: str) -> None:
    """Scenario 29: also for who holds everything."""
    tree = world.guarded()
    tree.hold(world.file("**"))
    (tree.path / "here").symlink_to(target)
    tree.git("add", "here")
    assert f"the link here -> {target}" in tree.refused("commit", "-m", "m")


def test_a_link_that_leads_an_older_one_out_is_refused(world: World) -> None:
    """Scenario 29: the older link was harmless as long as what it goes through was a folder."""
    tree = world.guarded()
    tree.hold(world.file("**"))
    (tree.path / "b" / "d").mkdir()
    tree.add("b/d/e.txt")
    (tree.path / "old").symlink_to("b/d/../../a.txt")
    tree.git("add", "old")
    tree.commit()
    tree.git("rm", "-q", "b/d/e.txt")
    (tree.path / "b" / "d").symlink_to("../b")
    tree.git("add", "b/d")
    assert "the link old ->" in tree.refused("commit", "-m", "m")


def test_a_linked_folder_in_place_of_files_needs_them_all(world: World) -> None:
    """Scenario 29: a link takes the place of a folder; each of its files is gone."""
    tree = world.guarded()
    tree.git("rm", "-q", "-r", "b")
    (tree.path / "b").symlink_to(".")
    tree.git("add", "b")
    tree.hold(world.file("b"))
    assert f"{world.file('b/c.txt')} is not claimed" in tree.refused("commit", "-m", "m")


def test_another_commit_of_a_submodule_is_a_change_though_git_is_told_to_ignore_it(world: World) -> None:
    inner = world.tree("alice", "inner")
    inner.add("i.txt")
    inner.commit()
    tree = world.guarded()
    tree.hold(world.file("**"))
    tree.git("submodule", "--quiet", "add", str(inner.path), "sub")
    tree.git("config", "-f", ".gitmodules", "submodule.sub.ignore", "all")
    tree.git("add", ".gitmodules")
    tree.commit()
    tree.let_go(world.file("**"))
    inner.add("i.txt", "newer\n")
    inner.commit()
    sub = Tree(tree.path / "sub", tree.home)
    sub.git("pull", "-q", "origin", "main")
    tree.git("config", "diff.ignoreSubmodules", "all")
    tree.git("update-index", "--cacheinfo", f"160000,{sub.git('rev-parse', 'HEAD')},sub")
    assert f"{world.file('sub')} is not claimed" in tree.refused("commit", "-m", "m")


HOSTILE = [
    b"ends\nin a new line",
    b"-z",
    b"--cached",
    b"with space",
    b'quote"d',
    b"back\\slash",
    b"star*",
    b"**",
    b"per%cent",
    b"%41",
    b"\xff\xfe",
    "ümlaut".encode(),
    b":(top)magic",
    b"#",
    b"a\tb",
]


def test_no_name_of_a_file_gets_by(world: World) -> None:
    """Scenario 24: each is refused, and each is let pass for who holds the folder around it."""
    tree = world.guarded()
    for name in HOSTILE:
        tree.add(b"odd/" + name)
    told = tree.refused("commit", "-m", "m")
    assert "… and 3 more" in told
    for name in (b"ends%0Ain%20a%20new%20line", b"-z", b"%2525", b"%2A%2A"):
        needed = f"repo:{world.name}/odd/{name.decode()}"
        assert needed in told or name in (b"%2525",)
    tree.hold(world.file("odd/**"))
    assert "Tallystick-Receipt" in tree.commit()


def test_each_odd_name_can_be_held_by_itself(world: World) -> None:
    tree = world.guarded(unclaimed="claim")
    for name in HOSTILE:
        tree.add(name)
    (shown,) = world.covering(tree.commit())
    names = shown["resources"]
    assert len(names) == len(HOSTILE)
    assert not any(name.endswith("/**") for name in names)


def test_a_first_commit_is_compared_as_any_other(world: World) -> None:
    tree = world.tree()
    tree.install("--repository", world.name)
    tree.add("first.txt")
    assert f"{world.file('first.txt')} is not claimed" in tree.refused("commit", "-m", "m")
    tree.hold(world.file("first.txt"))
    assert "Tallystick-Receipt" in tree.commit()


def test_only_what_is_staged_counts(world: World) -> None:
    tree = world.guarded()
    tree.hold(world.file("a.txt"))
    tree.add("a.txt", "staged\n")
    tree.write("a.txt", "not staged\n")
    tree.write("b/c.txt", "not staged\n")
    assert "Tallystick-Receipt" in tree.commit()
    assert "b/c.txt" in tree.refused("commit", "-a", "-m", "m"), "with -a the rest is staged too"
    assert "b/c.txt" in tree.refused("commit", "-m", "m", "--", "b/c.txt"), "named on the command line as well"


def test_an_amended_commit_keeps_its_receipts_and_gets_new_ones(world: World) -> None:
    tree = world.guarded()
    tree.hold(world.file("a.txt"))
    tree.add("a.txt", "changed\n")
    first = tree.commit().splitlines()[-1]
    tree.hold(world.file("b/c.txt"))
    tree.add("b/c.txt", "changed\n")
    tree.git("commit", "-q", "--amend", "--no-edit")
    lines = tree.git("log", "-1", "--format=%B").splitlines()
    assert lines[-2] == first
    assert lines[-1].startswith("Tallystick-Receipt") and lines[-1] != first


def test_a_merge_needs_leases_on_what_neither_side_has(world: World) -> None:
    """A merge takes what others committed as it is; what it makes of both is its own."""
    alice = world.guarded()
    bob = world.other(alice, "bob")
    bob.hold(world.file("b/c.txt"))
    bob.add("b/c.txt", "bob\n")
    bob.commit()
    bob.let_go(world.file("b/c.txt"))
    alice.hold(world.file("a.txt"))
    alice.add("a.txt", "alice\n")
    alice.commit()
    alice.let_go(world.file("a.txt"))
    alice.git("merge", "-q", "--no-edit", "bob")
    assert "Tallystick-Receipt" not in alice.git("log", "-1", "--format=%B"), "nothing of it is new"
    bob.hold(world.file("a.txt"))
    bob.add("a.txt", "bob\n")
    bob.commit()
    bob.let_go(world.file("a.txt"))
    alice.try_git("merge", "-q", "--no-edit", "bob")
    alice.add("a.txt", "both\n")
    assert f"{world.file('a.txt')} is not claimed" in alice.refused("commit", "-m", "m")
    alice.hold(world.file("a.txt"))
    assert "Tallystick-Receipt" in alice.commit()


def test_a_merge_that_git_makes_by_itself_is_compared_too(world: World) -> None:
    alice = world.guarded()
    lines = "".join(f"{number}\n" for number in range(20))
    alice.hold(world.file("**"))
    alice.add("long.txt", lines)
    alice.commit()
    bob = world.other(alice, "bob")
    alice.add("long.txt", "alice\n" + lines)
    alice.commit()
    alice.let_go(world.file("**"))
    bob.hold(world.file("long.txt"))
    bob.add("long.txt", lines + "bob\n")
    bob.commit()
    bob.let_go(world.file("long.txt"))
    assert f"{world.file('long.txt')} is not claimed" in alice.refused("merge", "--no-edit", "bob")


def test_a_lease_that_was_given_back_covers_nothing(world: World) -> None:
    tree = world.guarded()
    tree.hold(world.file("a.txt"))
    tree.add("a.txt", "changed\n")
    tree.let_go(world.file("a.txt"))
    assert f"{world.file('a.txt')} is not claimed" in tree.refused("commit", "-m", "m")


def test_an_empty_message_makes_no_commit(world: World) -> None:
    """The trailer is no word of a message."""
    tree = world.guarded()
    tree.hold(world.file("a.txt"))
    tree.add("a.txt", "changed\n")
    for options in ([], ["-v"]):
        assert "empty commit message" in tree.refused("commit", *options)


def test_a_folder_called_gateway_is_not_run(world: World) -> None:
    tree = world.guarded()
    (tree.path / "gateway").mkdir()
    for name in ("__init__.py", "__main__.py"):
        (tree.path / "gateway" / name).write_text("raise SystemExit(0)\n")
    tree.git("add", "gateway")
    assert "is not claimed" in tree.refused("commit", "-m", "m")


def test_a_commit_that_changes_nothing_asks_nobody(world: World, tmp_path: Path) -> None:
    tree = world.guarded()
    tree.also["TALLYSTICK_HOME"] = str(tmp_path / "nobody")
    tree.git("commit", "-q", "--allow-empty", "-m", "nothing")
    tree.add("a.txt", "changed\n")
    assert "holds no profile" in tree.refused("commit", "-m", "m")


def test_objects_that_stand_in_for_others_hide_nothing(world: World) -> None:
    """refs/replace shows git another HEAD, in which the change is made already."""
    tree = world.guarded()
    tree.add("a.txt", "changed\n")
    forged = tree.git("commit-tree", "-m", "m", tree.git("write-tree"))
    tree.git("replace", "HEAD", forged)
    assert f"{world.file('a.txt')} is not claimed" in tree.refused("commit", "--allow-empty", "-m", "m")


def test_git_config_holds_no_lease_and_no_key(world: World) -> None:
    """Scenario 28: worktrees share the configuration, so nothing of one agent stands there."""
    alice = world.guarded(unclaimed="claim")
    bob = world.other(alice, "bob")
    bob.also["TALLYSTICK_HOME"] = ""  # as if it were not set
    bob.install("--home", str(bob.home))
    bob.add("new.txt")
    bob.commit()
    config = alice.git("config", "--list")
    assert str(bob.home) not in config and str(alice.home) not in config
    assert "did:key" not in config
    (shown,) = world.covering(bob.git("log", "-1", "--format=%B"))
    assert shown["actor"] == bob.hold(world.file("probe"))["actor"]
    assert not os.path.exists(alice.path / ".git" / "tallystick-home")


def test_what_to_do_names_the_profile_that_was_noted(world: World) -> None:
    """A lease of the default profile would cover nothing in this worktree, and bar it instead."""
    tree = world.guarded()
    tree.also["TALLYSTICK_HOME"] = ""
    tree.install("--home", str(tree.home))
    tree.add("new.txt")
    told = tree.refused("commit", "-m", "m")
    assert f"tallystick lease acquire {world.file('new.txt')} --home {shlex.quote(str(tree.home))}\n" in told


def test_a_session_commits_on_its_own_leases_and_not_on_its_agents(world: World) -> None:
    tree = world.guarded()
    opened = json.loads(tree.tallystick("session", "open", "--name", world.name, "--json").stdout)
    session = Tree(tree.path, Path(opened["home"]))
    tree.hold(world.file("a.txt"))
    session.add("a.txt", "changed\n")
    assert f"{world.file('a.txt')} is held by {tree.hold(world.file('a.txt'))['actor']}" in session.refused(
        "commit", "-m", "m"
    )
    tree.let_go(world.file("a.txt"))
    lease = session.hold(world.file("a.txt"))
    (shown,) = world.covering(session.commit())
    assert (shown["actor"], shown["principal"]) == (lease["actor"], lease["principal"])
    assert shown["actor"] != shown["principal"]


def test_what_was_compared_for_another_parent_is_compared_again(world: World) -> None:
    """A commit that was not made leaves its comparison behind; a merge, without pre-commit, may end at that tree."""
    alice = world.guarded()
    lines = "".join(f"{number}\n" for number in range(20))
    alice.hold(world.file("**"))
    alice.add("long.txt", lines)
    alice.commit()
    alice.git("branch", "side")
    alice.add("long.txt", "top\n" + lines)
    alice.commit()
    alice.git("checkout", "-q", "side")
    alice.add("long.txt", lines + "end\n")
    alice.commit()
    alice.add("long.txt", "top\n" + lines + "end\n")
    alice.also["GIT_EDITOR"] = "false"
    alice.refused("commit")
    alice.git("reset", "-q", "--hard")
    alice.let_go(world.file("**"))
    assert f"{world.file('long.txt')} is not claimed" in alice.refused("merge", "--no-edit", "main")


def test_what_a_merge_claimed_is_given_back(world: World) -> None:
    alice = world.guarded(unclaimed="claim")
    lines = "".join(f"{number}\n" for number in range(20))
    alice.add("long.txt", lines)
    alice.commit()
    bob = world.other(alice, "bob")
    for tree, text in ((alice, "alice\n" + lines), (bob, lines + "bob\n")):
        tree.add("long.txt", text)
        tree.commit()
    before = alice.leases()
    alice.git("merge", "-q", "--no-edit", "bob")
    assert "Tallystick-Receipt" in alice.git("log", "-1", "--format=%B")
    assert alice.leases() == before


def test_with_admit_a_path_without_a_name_of_its_own_is_refused(world: World) -> None:
    """Its lease is on the folder around it, and an admission of a folder would ask no rule about the file."""
    tree = world.guarded(admit="yes", unclaimed="claim")
    tree.add("d/" * 40 + "x")
    told = tree.refused("commit", "-q", "-m", "deep")
    assert "too deep for a name of its own" in told and "Traceback" not in told
    assert f"repo:{world.name}/" not in str(tree.leases())
    tree.git("config", "tallystick.admit", "no")
    tree.commit()
