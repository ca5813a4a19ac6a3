"""`tallystick guard git install | uninstall | status | check`. (`run`, which the hooks call, is in git_run.py.)"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gateway.client.agent import Agent
from gateway.client.exits import DONE, REFUSED
from gateway.client.terminal import PROFILE_HELP, command_parser
from gateway.guard.check import Update, check_staged
from gateway.guard.git import Git, GitFailed
from gateway.guard.git_compare import check_push, guarded, staged_needs, told
from gateway.guard.held import Desk
from gateway.guard.hooks import before, hooks_of, install_hooks, is_ours, uninstall_hooks
from gateway.guard.settings import Settings, Unset, home_of, note_home, pin, read_settings, settings_of


def main(argv: Sequence[str]) -> int:
    """Run one verb and return its exit code."""
    arguments = _parser().parse_args(argv)
    return guarded(f"guard git {arguments.verb}", lambda: _VERBS[arguments.verb](_git(), arguments))


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "guard git",
        "Hooks of git that compare what is committed, and pushed, with leases. A path that this worktree's agent holds "
        "no lease on is refused with the holder's name; what covered a commit is written into its message.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="install|uninstall|status|check")
    install = verbs.add_parser("install", help="put the hooks into this repository; into a bare one the server's")
    install.add_argument("--repository", metavar="NAME", help="its name on the ledger; its paths are SCHEME:NAME/…")
    install.add_argument("--scheme", metavar="SCHEME", help="the scheme of its names (default repo)")
    install.add_argument("--unclaimed", choices=("refuse", "claim"), help="what is done about paths nobody has claimed")
    install.add_argument("--since", metavar="REV", help="commits up to this one are from before the guard")
    install.add_argument("--home", type=Path, metavar="DIR", help=f"{PROFILE_HELP} of this worktree alone")
    install.add_argument("--shared-hooks", action="store_true", help="also where other repositories use the folder")
    verbs.add_parser("uninstall", help="take the hooks out and put back what was there before")
    status = verbs.add_parser("status", help="see what is installed, and how this repository is named")
    check = verbs.add_parser("check", help="compare the index, or commits, as the hooks would")
    check.add_argument(
        "commits", nargs="?", metavar="A..B", help="the commits that B has and A has not (default: the index)"
    )
    for verb in (status, check):
        verb.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _git() -> Git:
    """Return the repository around this folder, at its top."""
    here = Git(Path.cwd())
    try:
        return here if here.is_bare else Git(here.top)
    except GitFailed as error:
        raise GitFailed(f"{here.folder} is in no repository of git") from error


async def _install(git: Git, arguments: argparse.Namespace) -> int:
    said = {key: getattr(arguments, key) for key in ("repository", "scheme", "unclaimed") if getattr(arguments, key)}
    if said.get("repository"):
        settings_of(said)
    for key, value in said.items():
        git.run("config", "--local", f"tallystick.{key}", value)
    if arguments.since is not None:
        commit = git.commit_id(arguments.since)
        if commit is None:
            raise GitFailed("--since: there is no such commit")
        git.run("config", "--local", "tallystick.since", commit)
    settings = read_settings(git)
    pin(git, settings)
    if arguments.home is not None:
        note_home(git, arguments.home)
    hooks = install_hooks(git, is_shared=arguments.shared_hooks)
    print(f"{len(hooks)} hooks in {hooks[0].parent}: {' '.join(hook.name for hook in hooks)}")
    for hook in hooks:
        if before(hook) is not None:
            print(f"  {hook.name}: the one that was there runs first")
    print(f"Paths are {settings.place.whole}; {_unclaimed_words(settings)}")
    return DONE


def _unclaimed_words(settings: Settings) -> str:
    return (
        "for what nobody has claimed a lease is taken, for the time of a commit."
        if settings.is_claiming
        else "what this worktree's agent holds no lease on is refused."
    )


async def _uninstall(git: Git, arguments: argparse.Namespace) -> int:
    hooks = uninstall_hooks(git)
    print(f"Took out {' '.join(hook.name for hook in hooks)}." if hooks else "There were no hooks of ours.")
    return DONE


async def _status(git: Git, arguments: argparse.Namespace) -> int:
    missing = [name for name in hooks_of(git) if not is_ours(git.hooks_folder / name)]
    home = home_of(git, is_server=git.is_bare)
    try:
        whole, why = read_settings(git).place.whole, ""
    except Unset as error:
        whole, why = "", str(error)
    is_ok = not missing and not why
    if arguments.json:
        print(json.dumps({"ok": is_ok, "missing": missing, "resources": whole, "home": str(home), "message": why}))
        return DONE if is_ok else REFUSED
    print(f"hooks    {git.hooks_folder}: {'all there' if not missing else 'missing: ' + ' '.join(missing)}")
    print(f"paths    {whole or why}")
    print(f"profile  {home}")
    return DONE if is_ok else REFUSED


async def _check(git: Git, arguments: argparse.Namespace) -> int:
    if arguments.commits is not None:
        return await _check_commits(git, arguments)
    settings = read_settings(git)
    needs = staged_needs(git, settings)
    if not needs:
        return _told(arguments, "Nothing is staged.", [])
    async with Agent.open(home_of(git)) as agent:
        covered = await check_staged(Desk(agent), replace(settings, is_claiming=False), needs)
    return _told(arguments, told(needs, covered), covered.seqs)


async def _check_commits(git: Git, arguments: argparse.Namespace) -> int:
    old, dots, new = arguments.commits.partition("..")
    ids = [git.commit_id(revision or "HEAD") for revision in (old, new)]
    if not dots or None in ids:
        raise GitFailed("name commits as A..B, of commits that are there")
    count = await check_push(git, [Update(arguments.commits, *ids)], (), is_server=git.is_bare)
    return _told(arguments, "1 commit is covered." if count == 1 else f"{count} commits are covered.", [])


def _told(arguments: argparse.Namespace, text: str, seqs: Sequence[int]) -> int:
    print(json.dumps({"ok": True, "message": text, "receipts": list(seqs)}) if arguments.json else text)
    return DONE


_VERBS = {"install": _install, "uninstall": _uninstall, "status": _status, "check": _check}
