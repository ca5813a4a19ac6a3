"""Pushes with real git: what pre-commit did not see is caught by pre-push, and by pre-receive at the other side."""

from __future__ import annotations

import os
from hashlib import sha256

from tests.guard.world import Tree, World


def pushing(world: World, *, is_local: bool = True) -> tuple[Tree, Tree]:
    """A work tree whose first commit was pushed to a guarded bare repository; `is_local`: it has pre-push as well."""
    bare = world.bare()
    tree = world.guarded()
    bare.git("config", "tallystick.since", tree.git("rev-parse", "HEAD"))
    tree.git("remote", "add", "origin", str(bare.path))
    tree.git("push", "-q", "-u", "origin", "main")
    if not is_local:
        (tree.path / ".git" / "hooks" / "pre-push").unlink()
    return tree, bare


def test_a_commit_with_receipts_is_taken(world: World) -> None:
    tree, bare = pushing(world)
    tree.hold(world.file("a.txt"))
    tree.add("a.txt", "changed\n")
    tree.commit()
    tree.git("push", "-q")
    assert bare.is_at(tree.git("rev-parse", "HEAD"))


def test_a_server_reads_with_its_own_profile(world: World) -> None:
    """A variable of whoever pushes may reach it, and leads nowhere."""
    tree, bare = pushing(world)
    tree.hold(world.file("a.txt"))
    tree.add("a.txt", "changed\n")
    tree.commit()
    tree.also["TALLYSTICK_HOME"] = str(world.folder / "nowhere")
    assert "holds no profile" in tree.refused("push")
    tree.git("push", "-q", "--no-verify")
    assert bare.is_at(tree.git("rev-parse", "HEAD"))


def test_receipts_are_enough_after_the_lease_was_given_back(world: World) -> None:
    tree, bare = pushing(world)
    tree.git("config", "tallystick.unclaimed", "claim")
    tree.add("new.txt")
    tree.commit()
    tree.git("push", "-q")
    assert bare.is_at(tree.git("rev-parse", "HEAD"))


def test_a_commit_that_went_past_its_hooks_is_caught_before_it_leaves(world: World) -> None:
    """Scenario 15: `--no-verify`; who holds the lease by now may push it all the same."""
    tree, bare = pushing(world)
    tree.add("a.txt", "changed\n")
    tree.git("commit", "-q", "--no-verify", "-m", "m")
    told = tree.refused("push")
    assert f"changes {world.file('a.txt')}, and no receipt of it covers that" in told
    tree.hold(world.file("a.txt"))
    told = tree.refused("push")
    assert "remote:" in told, "the other side has the commit's receipts only, and there are none"
    assert not bare.is_at(tree.git("rev-parse", "HEAD"))
    tree.git("reset", "-q", "--soft", "HEAD^")
    tree.commit()
    tree.git("push", "-q")


def test_who_goes_past_pre_push_too_is_caught_by_the_other_side(world: World) -> None:
    """Scenario 15."""
    tree, bare = pushing(world)
    tree.add("a.txt", "changed\n")
    tree.git("commit", "-q", "--no-verify", "-m", "m")
    told = tree.refused("push", "--no-verify")
    assert f"changes {world.file('a.txt')}, and no receipt of it covers that" in told
    assert not bare.is_at(tree.git("rev-parse", "HEAD"))


def test_the_other_side_is_not_told_to_look_away(world: World) -> None:
    tree, bare = pushing(world)
    tree.add("a.txt", "changed\n")
    tree.also["TALLYSTICK_GUARD"] = "off"
    tree.git("commit", "-q", "-m", "m")
    assert "Tallystick-Unchecked: TALLYSTICK_GUARD=off" in tree.git("log", "-1", "--format=%B")
    assert "no receipt of it covers that" in tree.refused("push")
    assert not bare.is_at(tree.git("rev-parse", "HEAD"))


def test_a_trailer_of_other_paths_or_of_nothing_covers_nothing(world: World) -> None:
    """Anybody can write a trailer: what the entry says decides."""
    tree, _ = pushing(world, is_local=False)
    lease = tree.hold(world.file("a.txt"))
    origin, seq = lease["origin"], lease["seq"]
    tree.add("b/c.txt", "changed\n")
    for line in (f"{origin} {seq}", f"{origin} 0", f"{origin} 999999", f"elsewhere.example/main {seq}"):
        tree.git("commit", "-q", "--no-verify", "--allow-empty", "-m", f"m\n\nTallystick-Receipt: {line}")
        assert f"changes {world.file('b/c.txt')}, and no receipt" in tree.refused("push")
        tree.git("reset", "-q", "--soft", "HEAD^")


def test_an_entry_covers_no_commit_that_was_made_at_another_time(world: World) -> None:
    """A trailer copied from an older commit: its lease is over."""
    tree, _ = pushing(world, is_local=False)
    lease = tree.hold(world.file("a.txt"))
    tree.add("a.txt", "changed\n")
    for days in (2, -2):
        at_s = int(str(lease["timeMs"])) // 1_000 + days * 86_400
        tree.also.update({"GIT_AUTHOR_DATE": f"{at_s} +0000", "GIT_COMMITTER_DATE": f"{at_s} +0000"})
        message = f"m\n\nTallystick-Receipt: {lease['origin']} {lease['seq']}"
        tree.git("commit", "-q", "--no-verify", "-m", message)
        assert f"changes {world.file('a.txt')}, and no receipt" in tree.refused("push")
        tree.git("reset", "-q", "--soft", "HEAD^")


def test_a_lease_receipt_is_of_paths_and_of_no_content(world: World) -> None:
    """The limit that docs/guards.md tells: without `admit` a copied trailer is taken, with the date of the other commit
    and for what its lease covered; and no further."""
    tree, bare = pushing(world, is_local=False)
    tree.hold(world.file("a.txt"))
    tree.add("a.txt", "changed\n")
    trailer = tree.commit().splitlines()[-1]
    date = tree.git("log", "-1", "--format=%aI")
    tree.let_go(world.file("a.txt"))
    tree.also.update({"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date})
    tree.add("a.txt", "something else\n")
    tree.git("commit", "-q", "--no-verify", "-m", f"m\n\n{trailer}")
    tree.git("push", "-q")
    assert bare.is_at(tree.git("rev-parse", "HEAD"))
    tree.add("b/c.txt", "beside it\n")
    tree.git("commit", "-q", "--no-verify", "-m", f"m\n\n{trailer}")
    assert f"changes {world.file('b/c.txt')}, and no receipt" in tree.refused("push")


def test_what_another_holds_by_now_is_not_pushed(world: World) -> None:
    alice, _ = pushing(world)
    alice.hold(world.file("a.txt"))
    alice.add("a.txt", "changed\n")
    alice.commit()
    alice.let_go(world.file("a.txt"))
    bob = Tree(world.folder, world.home("bob"))
    lease = bob.hold(world.file("a.txt"))
    assert f"{world.file('a.txt')}, now held by {lease['actor']}" in alice.refused("push")
    assert "remote:" in alice.refused("push", "--no-verify")
    bob.let_go(world.file("a.txt"))
    alice.git("push", "-q")


def test_a_forced_push_undoes_nothing_that_it_does_not_hold(world: World) -> None:
    """What others pushed goes away with it, and no commit says so."""
    tree, bare = pushing(world)
    first = tree.git("rev-parse", "HEAD")
    tree.hold(world.file("a.txt"))
    tree.add("a.txt", "changed\n")
    tree.commit()
    tree.git("push", "-q")
    tree.let_go(world.file("a.txt"))
    tree.git("reset", "-q", "--hard", first)
    tree.hold(world.file("b/**"))
    tree.add("b/c.txt", "changed\n")
    tree.commit()
    assert f"refs/heads/main would undo {world.file('a.txt')}" in tree.refused("push", "--force")
    tree.hold(world.file("a.txt"))
    assert "remote: " in tree.refused("push", "--force")
    assert bare.git("show", "main:a.txt") == "changed"


def test_a_merge_that_throws_the_other_side_away_is_seen(world: World) -> None:
    """`merge -s ours` makes what others did undone, and differs from none of its parents alone."""
    tree, bare = pushing(world)
    tree.hold(world.file("a.txt"))
    tree.add("a.txt", "changed\n")
    tree.commit()
    tree.git("push", "-q")
    tree.let_go(world.file("a.txt"))
    tree.git("checkout", "-q", "-b", "mine", "HEAD^")
    tree.hold(world.file("b/**"))
    tree.add("b/c.txt", "changed\n")
    tree.commit()
    tree.git("merge", "-q", "-s", "ours", "--no-edit", "main")
    assert f"would undo {world.file('a.txt')}" in tree.refused("push", "origin", "mine:main")
    assert "remote: " in tree.refused("push", "--no-verify", "origin", "mine:main")
    assert bare.git("show", "main:a.txt") == "changed"


def test_branches_merge_and_go_as_they_are(world: World) -> None:
    """What others committed with receipts is pushed by whoever merges it."""
    alice, bare = pushing(world)
    bob = world.other(alice, "bob")
    bob.hold(world.file("b/c.txt"))
    bob.add("b/c.txt", "bob\n")
    bob.commit()
    bob.let_go(world.file("b/c.txt"))
    alice.hold(world.file("a.txt"))
    alice.add("a.txt", "alice\n")
    alice.commit()
    alice.git("merge", "-q", "--no-edit", "bob")
    alice.git("push", "-q")
    assert bare.is_at(alice.git("rev-parse", "HEAD"))


def test_new_branches_tags_and_branches_that_go(world: World) -> None:
    tree, bare = pushing(world)
    tree.hold(world.file("**"))
    tree.add("a.txt", "changed\n")
    tree.commit()
    tree.git("tag", "-a", "-m", "t", "v1")
    tree.git("push", "-q", "origin", "v1", "main:other")
    tree.git("push", "-q", "origin", ":other")
    assert bare.git("rev-parse", "v1^{commit}") == tree.git("rev-parse", "HEAD")
    tree.add("a.txt", "more\n")
    tree.git("commit", "-q", "--no-verify", "-m", "m")
    tree.git("tag", "-a", "-m", "t", "v2")
    assert "no receipt of it covers" in tree.refused("push", "--no-verify", "origin", "v2")


def test_a_rebased_commit_keeps_its_receipts(world: World) -> None:
    alice, bare = pushing(world)
    alice.hold(world.file("**"))
    alice.add("a.txt", "alice\n")
    alice.commit()
    alice.git("branch", "mine")
    alice.git("reset", "-q", "--hard", "HEAD^")
    alice.add("b/c.txt", "base\n")
    alice.commit()
    alice.git("checkout", "-q", "mine")
    alice.git("rebase", "-q", "main")
    alice.git("push", "-q", "origin", "mine:main")
    assert bare.is_at(alice.git("rev-parse", "HEAD"))


def test_a_link_out_of_the_tree_is_caught_by_the_other_side(world: World) -> None:
    """Scenario 29."""
    tree, _ = pushing(world, is_local=False)
    lease = tree.hold(world.file("**"))
    (tree.path / "out").symlink_to("../../x")
    tree.git("add", "out")
    message = f"m\n\nTallystick-Receipt: {lease['origin']} {lease['seq']}"
    tree.git("commit", "-q", "--no-verify", "-m", message)
    assert "the link out -> ../../x: out leads out of the work tree" in tree.refused("push")


def test_commits_are_compared_without_pushing_them(world: World) -> None:
    tree = world.guarded()
    tree.hold(world.file("a.txt"))
    tree.add("a.txt", "changed\n")
    tree.commit()
    done = tree.guard("check", "HEAD^..HEAD")
    assert (done.returncode, done.stdout) == (0, "1 commit is covered.\n")
    tree.add("b/c.txt", "changed\n")
    assert tree.guard("check").returncode == 1
    tree.git("commit", "-q", "--no-verify", "-m", "m")
    assert tree.guard("check", "HEAD^..HEAD").returncode == 1
    assert os.listdir(tree.path / ".git" / "hooks")


def test_a_server_that_wants_admissions_takes_the_very_tree_only(world: World) -> None:
    """With `admit = yes` a receipt is of one content: the lease's own are not enough, nor is another commit's."""
    tree, bare = pushing(world, is_local=False)
    bare.git("config", "tallystick.admit", "yes")
    tree.hold(world.file("a.txt"))
    tree.hold(world.file("b/**"))
    tree.add("a.txt", "lease only\n")
    tree.commit()
    assert "no receipt of it covers that" in tree.refused("push")
    tree.git("reset", "-q", "--soft", "HEAD^")
    tree.git("config", "tallystick.admit", "yes")
    tree.add("b/c.txt", "admitted\n")
    message = tree.commit()
    admitted = [leaf for leaf in world.covering(message) if leaf["type"] == "tallystick/admission.allowed/1"]
    digest = sha256(tree.git("rev-parse", "HEAD^{tree}").encode()).hexdigest()
    assert {(leaf["operation"], leaf["argumentsDigest"], leaf["mode"]) for leaf in admitted} == {
        ("git.commit", digest, "write")
    }
    assert sorted(leaf["resources"] for leaf in admitted) == [[world.file("a.txt")], [world.file("b/c.txt")]]
    tree.git("push", "-q")
    tree.add("a.txt", "something else\n")
    trailer = message.splitlines()[-1]
    tree.git("commit", "-q", "--no-verify", "-m", f"m\n\n{trailer}")
    assert f"changes {world.file('a.txt')}, and no receipt" in tree.refused("push")
    assert bare.is_at(tree.git("rev-parse", "HEAD^"))
