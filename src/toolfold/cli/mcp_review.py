"""`toolfold mcp review`: what has changed about a server's tools, and a person's word on it."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import click

from toolfold.approval.visible import visible_line
from toolfold.cli.app import FAILED, Invocation, json_option
from toolfold.cli.servers import Probe, acquainted, agreed, known, probed, yes_option
from toolfold.cli.show import as_json, counted, out, plain, warn

if TYPE_CHECKING:
    from toolfold.config import Config
    from toolfold.sources.mcp.trust import Held

MAX_SUSPICIONS_SHOWN = 10

_ANSWERS = {"y": "yes", "n": "no", "q": "quit"}
_COLOURS = {"+": "green", "-": "red"}
_SAID = {"new": "is new", "changed": "has changed", "flagged": "looks like it addresses the model"}


@click.command("review", short_help="Show held tools and what has changed; accept them, or not.")
@click.argument("names", nargs=-1)
@click.option("--all", "all_", is_flag=True, help="Ask once about all of them, not one by one.")
@yes_option
@json_option
@click.pass_obj
def review(invocation: Invocation, names: tuple[str, ...], all_: bool, yes: bool, as_json_: bool) -> int:
    """Show held tools with what has changed about them, and accept them, or not.

    A tool that is new or has changed since you added its server is neither shown to models nor called until
    you accept it here. With --json nothing is asked and nothing is accepted.
    """
    if yes and not all_:
        raise click.UsageError("--yes accepts everything that is shown: say so with --all")
    config = invocation.config()
    waiting = _waiting(config, known(config, names))
    if as_json_:
        as_json([_as_json(server, each) for server, each in waiting])
        return 0
    _show_suspicions(config, known(config, names), {each.offer.name for _, each in waiting})
    if not waiting:
        out("no tool waits for review.")
        return 0
    accepted = _all(waiting, yes) if all_ else _one_by_one(waiting)
    for server in dict.fromkeys(server for server, _ in accepted):
        offers = [each.offer for of, each in accepted if of == server]
        acquainted(config, [server]).accept(server, offers)
        out(f"{plain(server)}: {counted(len(offers), 'tool')} accepted")
    left = len(waiting) - len(accepted)
    if left:
        out(f"{counted(left, 'tool')} still held")
    return FAILED if left else 0


def _waiting(config: Config, names: Sequence[str]) -> list[tuple[str, Held]]:
    """What is held of what the servers last listed; a server nobody has asked yet is asked now."""
    from toolfold.sources.mcp.kept import ListingCache

    kept = ListingCache(config.paths.cache_dir / "mcp")
    pinned = [name for name in names if config.mcp.servers[name].trust == "pin"]
    seen = {name: found[0] for name in pinned if (found := kept.read(name, config.mcp.servers[name]))}
    unseen = [name for name in pinned if name not in seen]
    probes = {each.name: each for each in (probed(config, unseen) if unseen else ())}
    trust = acquainted(config, pinned)
    waiting: list[tuple[str, Held]] = []
    for name in pinned:
        held = probes[name].held if name in probes else trust.sift(name, "pin", seen[name].offers).held
        waiting += [(name, each) for each in held]
        _tell_of(probes.get(name))
    return waiting


def _show_suspicions(config: Config, names: Sequence[str], held: Collection[str]) -> None:
    """Warn of tools in use whose wording looks like orders to the model, though that is often a mistake."""
    from toolfold.sources.mcp.kept import ListingCache

    kept, trust = ListingCache(config.paths.cache_dir / "mcp"), acquainted(config, ())
    for name in names:
        server = config.mcp.servers[name]
        found = kept.read(name, server) if server.trust == "pin" else None
        offers = [each for each in found[0].offers if each.name not in held] if found else []
        suspicions = trust.suspicions(name, offers)
        for offer, finding in suspicions[:MAX_SUSPICIONS_SHOWN]:
            warn(visible_line(f"in use, and worth a look: {offer.name} of {name}: {finding}"))
        if len(suspicions) > MAX_SUSPICIONS_SHOWN:
            warn(f"{name}: {len(suspicions) - MAX_SUSPICIONS_SHOWN} more of the kind")


def _tell_of(probe: Probe | None) -> None:
    if probe is not None and probe.problem:
        warn(visible_line(probe.problem))


def _all(waiting: Sequence[tuple[str, Held]], yes: bool) -> list[tuple[str, Held]]:
    for server, each in waiting:
        _show(server, each)
    return list(waiting) if agreed(f"Accept {counted(len(waiting), 'tool')}?", yes) else []


def _one_by_one(waiting: Sequence[tuple[str, Held]]) -> list[tuple[str, Held]]:
    accepted: list[tuple[str, Held]] = []
    for server, each in waiting:
        _show(server, each)
        if not sys.stdin.isatty():
            continue
        words = click.Choice([*_ANSWERS, *_ANSWERS.values()], case_sensitive=False)
        question = f"Accept it? yes, no or quit ({', '.join(_ANSWERS)})"
        said = click.prompt(question, type=words, show_choices=False, default="n", err=True)[0]
        if said == "q":
            break
        if said == "y":
            accepted.append((server, each))
    if not sys.stdin.isatty():
        raise click.ClickException("This needs a terminal. `--all --yes` accepts all of them.")
    return accepted


def _show(server: str, held: Held) -> None:
    from toolfold.sources.mcp.trust import difference

    out(f"\n[bold]{plain(visible_line(held.offer.name))}[/bold] of {plain(server)} {_SAID[held.why]}")
    for finding in held.findings:
        out(f"  [yellow]![/yellow] {plain(visible_line(str(finding)))}")
    for change in held.changes:
        out(f"  [cyan]*[/cyan] {plain(visible_line(change))}")
    for line in map(visible_line, difference(held.before, held.offer)):
        colour = _COLOURS.get(line[:1])
        out(f"  [{colour}]{plain(line)}[/{colour}]" if colour else f"  {plain(line)}")


def _as_json(server: str, held: Held) -> dict[str, Any]:
    from toolfold.sources.mcp.trust import difference

    return {
        "server": server,
        "tool": held.offer.name,
        "why": held.why,
        "findings": [str(each) for each in held.findings],
        "changes": list(held.changes),
        "difference": list(difference(held.before, held.offer)),
    }
