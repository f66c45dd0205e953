"""`toolfold tools from-openapi` and `remove-api`: add the operations of an API as tools, and remove them."""

from __future__ import annotations

import fnmatch
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

import click

from toolfold.cli.app import EXIT_FAILED, Invocation, json_option
from toolfold.cli.output import (
    NotFound,
    escape_text,
    format_count,
    print_json,
    print_line,
    print_note,
    print_table,
    print_warning,
    show_spinner,
)
from toolfold.cli.server_commands import confirm, yes_option
from toolfold.core.errors import closest_names, did_you_mean, shorten

if TYPE_CHECKING:
    from toolfold.config import Config
    from toolfold.mcp.scan import ScanFinding
    from toolfold.tools.openapi.api_credentials import SecurityScheme
    from toolfold.tools.openapi.api_document import OpenApiDocument
    from toolfold.tools.openapi.operations import ApiOperation, SkippedOperation

MAX_SHOWN = 10
MAX_NAME_CHARS = 32


@dataclass(frozen=True, slots=True)
class ApiPlan:
    """Changes that `from-openapi` plans: the API's name and URL, its tools, and operations left out."""

    name: str
    title: str
    url: str
    operations: Sequence[ApiOperation]
    skipped: Sequence[SkippedOperation]
    flagged: Sequence[tuple[str, ScanFinding]]
    schemes: Sequence[SecurityScheme]
    auth: dict[str, str]
    """For each security scheme of the API, the environment variable with its secret."""

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a JSON value."""
        return {
            "name": self.name,
            "title": self.title,
            "url": self.url,
            "auth": self.auth,
            "tools": [
                {"name": each.name, "method": each.method, "path": each.path} for each in self.operations
            ],
            "skipped": [str(each) for each in self.skipped],
            "flagged": [{"tool": tool, "finding": str(finding)} for tool, finding in self.flagged],
        }


@click.command("from-openapi", short_help="Add the operations of an API as tools.")
@click.argument("source", metavar="FILE|URL")
@click.option(
    "--name",
    help="Name of the API, with which the names of its tools start. Default: derived from "
    "the document's title.",
)
@click.option(
    "--url", "base_url", help="Base URL of requests to the API. Default: the first server in the document."
)
@click.option(
    "--auth",
    multiple=True,
    metavar="SCHEME=VARIABLE",
    help="Environment variable with the credential of a security scheme. Repeatable.",
)
@click.option(
    "--token",
    metavar="VARIABLE",
    help="Environment variable with a bearer token for all operations, if the document "
    "declares no security scheme.",
)
@click.option(
    "--include", multiple=True, metavar="GLOB", help="Add only tools whose name or tag matches. Repeatable."
)
@click.option(
    "--exclude", multiple=True, metavar="GLOB", help="Leave out tools whose name or tag matches. Repeatable."
)
@click.option(
    "--private-network",
    "networks",
    multiple=True,
    metavar="NETWORK",
    help="Allow requests to a private network, such as 192.168.1.0/24. Repeatable.",
)
@click.option(
    "--keep-flagged", is_flag=True, help="Also add tools whose description looks like a prompt injection."
)
@click.option("--dry-run", is_flag=True, help="Show the tools that would be added, and change nothing.")
@yes_option
@json_option
@click.pass_obj
def add_api(
    invocation: Invocation,
    source: str,
    name: str | None,
    base_url: str | None,
    auth: tuple[str, ...],
    token: str | None,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    networks: tuple[str, ...],
    keep_flagged: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Add the operations of an OpenAPI 3.0 or 3.1 document as tools, one per operation.

    Credentials stay in environment variables; the settings contain only the variables' names. All tools
    except those for GET, HEAD and OPTIONS requests need approval. The document is read once: run the command
    again to use a newer version of it.
    """
    config = invocation.load_config()
    with show_spinner("reading the document"):
        document = _read_document(config, source, networks)
        plan = _make_plan(document, source, name, base_url, auth)
        plan = _filter_tools(_add_token(plan, token), include, exclude)
        plan = _drop_flagged(plan, keep_flagged)
    if as_json:
        print_json(plan.to_json())
    else:
        _print_plan(plan, config)
    if not plan.operations:
        raise click.ClickException("the document has no operation that can be used as a tool")
    if dry_run:
        return 0
    if token is None:
        _require_chosen_variables(plan, config, auth)
    question = f"Add {format_count(len(plan.operations), 'tool')} that send requests to {plan.url}?"
    if not confirm(question, yes):
        print_note("nothing was added.")
        return EXIT_FAILED
    _write_api(invocation, config, plan, networks)
    if not as_json:
        print_line(f"added to your settings: apis.{plan.name}. Toolset: api-{plan.name}")
    return 0


@click.command("remove-api", short_help="Remove the tools of an API.")
@click.argument("name")
@click.pass_obj
def remove_api(invocation: Invocation, name: str) -> None:
    """Remove an API that `from-openapi` has added, with all its tools."""
    from toolfold.config import unset_value
    from toolfold.tools.openapi.api_file import locate_api_file

    config = invocation.load_config()
    if name not in config.apis:
        raise NotFound(f"there is no API {name!r}.{did_you_mean(closest_names(name, config.apis))}")
    unset_value(config.paths.user_file, f"apis.{name}", record=invocation.settings_record())
    locate_api_file(config.paths.config_dir, name).unlink(missing_ok=True)
    print_line(f"removed: {escape_text(name)}")


def _read_document(config: Config, source: str, networks: Sequence[str]) -> OpenApiDocument:
    from toolfold.tools.openapi.api_document import MAX_DOCUMENT_BYTES, parse_document

    if source.startswith(("http://", "https://")):
        return parse_document(_fetch(config, source, networks, MAX_DOCUMENT_BYTES))
    try:
        with Path(source).open("rb") as stream:
            return parse_document(stream.read(MAX_DOCUMENT_BYTES + 1))
    except OSError as error:
        raise click.ClickException(f"{source} cannot be read: {error.strerror}") from None


def _fetch(config: Config, url: str, networks: Sequence[str], max_bytes: int) -> bytes:
    import asyncio

    from toolfold.tools.internet.address_policy import AddressPolicy
    from toolfold.tools.internet.fetching import Fetcher, FetchLimits

    try:
        policy = AddressPolicy.allowing((*config.web.private_networks, *networks))
    except ValueError as error:
        raise click.UsageError(f"--private-network: {error}") from None
    fetcher = Fetcher(policy, FetchLimits(config.web.timeout_seconds, max_bytes))
    headers = {"Accept": "application/json, application/yaml;q=0.9, */*;q=0.5"}
    document = asyncio.run(fetcher.fetch(url, headers=headers)).require_success()
    if document.is_truncated:
        raise click.ClickException(f"the document is larger than {max_bytes:,} bytes")
    return document.data


def _make_plan(
    document: OpenApiDocument, source: str, name: str | None, base_url: str | None, auth: Sequence[str]
) -> ApiPlan:
    from toolfold.tools.openapi.api_credentials import read_security_schemes
    from toolfold.tools.openapi.operations import read_operations

    chosen = _choose_name(name, document, source)
    url = _choose_url(document, source, base_url)
    operations, skipped = read_operations(document, prefix=chosen.replace("-", "_"), base_url=url)
    used = {scheme for each in operations for group in each.security for scheme in group}
    schemes = [scheme for scheme in read_security_schemes(document) if scheme.name in used]
    return ApiPlan(
        name=chosen,
        title=shorten(document.title, 100),
        url=url,
        operations=operations,
        skipped=skipped,
        flagged=(),
        schemes=schemes,
        auth=_choose_variables(chosen, schemes, auth),
    )


def _choose_name(name: str | None, document: OpenApiDocument, source: str) -> str:
    from toolfold.tools.openapi.operations import split_words

    if name is not None:
        words = split_words(name)
        if ("-".join(words) != name and "_".join(words) != name) or len(name) > MAX_NAME_CHARS:
            raise click.UsageError(
                f"--name: {name!r} must have at most {MAX_NAME_CHARS} lower-case letters, digits and hyphens"
            )
        return name
    noise = {"api", "apis", "rest", "openapi", "the", "spec", "specification", "v1", "v2", "v3", "public"}
    words = [word for word in split_words(document.title) if word not in noise and not word.isdecimal()]
    words = words or split_words(Path(urlsplit(source).path).stem)
    return "-".join(words[:3])[:MAX_NAME_CHARS].strip("-") or "api"


def _choose_url(document: OpenApiDocument, source: str, base_url: str | None) -> str:
    """Return the base URL for requests: `base_url`, or the document's first server URL made absolute."""
    listed = document.list_servers()
    found = base_url or (listed[0] if listed else "/")
    origin = source if source.startswith(("http://", "https://")) else ""
    url = urljoin(origin, found) if origin else found
    if not url.startswith(("http://", "https://")) or "{" in url or not urlsplit(url).hostname:
        raise click.UsageError(
            f"the document names no complete server URL ({url!r}). Give the URL of the API with --url."
        )
    if "@" in urlsplit(url).netloc:
        raise click.UsageError("the URL must not contain a user name or password. Use --auth.")
    return url.rstrip("/")


def _choose_variables(api: str, schemes: Sequence[SecurityScheme], auth: Sequence[str]) -> dict[str, str]:
    from toolfold.tools.openapi.api_credentials import suggest_variable

    chosen = {scheme.name: suggest_variable(api, scheme, len(schemes) - 1) for scheme in schemes}
    for entry in auth:
        scheme, separator, variable = entry.partition("=")
        if not separator or not variable.isidentifier():
            raise click.UsageError(
                f"--auth needs SCHEME=VARIABLE with the name of an environment variable, not {scheme}=…"
            )
        if scheme not in chosen:
            known = ", ".join(chosen) or "none"
            raise click.UsageError(f"--auth: there is no security scheme {scheme!r}. Schemes: {known}.")
        chosen[scheme] = variable
    return chosen


def _require_chosen_variables(plan: ApiPlan, config: Config, auth: Sequence[str]) -> None:
    """Raise UsageError if a variable whose name was derived from the document is set in the environment.

    The document determines the suggested name by its title, and the URL to which the value is sent: one with
    the title "Github" would get GITHUB_TOKEN.
    """
    named = {entry.partition("=")[0] for entry in auth}
    before = config.apis.get(plan.name)
    accepted = before.auth if before and before.url == plan.url else {}
    for scheme, variable in plan.auth.items():
        if scheme in named or accepted.get(scheme) == variable or not config.environment.get(variable):
            continue
        raise click.UsageError(
            f"the environment variable {variable}, whose name was derived from the document, is "
            f"already set. If its value is meant for {plan.url}, run the command again with --auth "
            f"{shlex.quote(f'{scheme}={variable}')}; otherwise name another variable with --auth."
        )


def _add_token(plan: ApiPlan, variable: str | None) -> ApiPlan:
    """Return the plan with a bearer token for all operations, even if the document declares no login."""
    from toolfold.tools.openapi.api_credentials import SecurityScheme

    if variable is None:
        return plan
    if not variable.isidentifier():
        raise click.UsageError("`--token` needs the name of an environment variable, not the token itself")
    scheme = SecurityScheme("token", "bearer")
    operations = [replace(each, security=((scheme.name,),)) for each in plan.operations]
    return replace(plan, operations=operations, schemes=[scheme], auth={scheme.name: variable})


def _filter_tools(plan: ApiPlan, include: Sequence[str], exclude: Sequence[str]) -> ApiPlan:
    prefix = f"{plan.name.replace('-', '_')}_"

    def matches(operation: ApiOperation, patterns: Sequence[str]) -> bool:
        names = (operation.name, operation.name.removeprefix(prefix), *operation.tags)
        return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)

    kept = [
        each
        for each in plan.operations
        if (not include or matches(each, include)) and not matches(each, exclude)
    ]
    return replace(plan, operations=kept)


def _drop_flagged(plan: ApiPlan, keep: bool) -> ApiPlan:
    """Return the plan without tools whose text looks like instructions to a model."""
    from toolfold.core.types import freeze
    from toolfold.mcp.scan import scan_tools
    from toolfold.mcp.tool_listing import ListedTool

    listed = [
        ListedTool(name=each.name, description=each.description, input_schema=freeze(each.parameters))
        for each in plan.operations
    ]
    found = scan_tools(listed, plan.name, {plan.name: listed})
    flagged = [
        (tool.name, finding)
        for tool, findings in zip(listed, found, strict=True)
        for finding in findings
        if finding.requires_review()
    ]
    names = {name for name, _ in flagged} if not keep else set()
    return replace(
        plan, operations=[each for each in plan.operations if each.name not in names], flagged=flagged
    )


def _print_plan(plan: ApiPlan, config: Config) -> None:
    print_table(
        f"{plan.title or plan.name}: {format_count(len(plan.operations), 'tool')}",
        ("tool", "request"),
        ((each.name, f"{each.method} {shorten(each.path, 80)}") for each in plan.operations[:MAX_SHOWN]),
    )
    if len(plan.operations) > MAX_SHOWN:
        print_line(f"and {len(plan.operations) - MAX_SHOWN:,} more; --json lists all.")
    print_line(f"requests go to {escape_text(plan.url)}")
    for scheme in plan.schemes:
        variable = plan.auth[scheme.name]
        state = "is set" if config.environment.get(variable) else "is not set yet"
        form = ", as USER:PASSWORD" if scheme.kind == "basic" else ""
        print_line(f"credential {escape_text(scheme.name)}: {escape_text(variable)}{form} ({state})")
    if plan.url.startswith("http://") and plan.schemes:
        print_warning("credentials are sent without encryption, because the URL starts with http://")
    for each in plan.skipped[:MAX_SHOWN]:
        print_warning(f"left out: {each}")
    if len(plan.skipped) > MAX_SHOWN:
        print_warning(f"left out: {len(plan.skipped) - MAX_SHOWN:,} more operations; --json lists all")
    for tool, finding in plan.flagged[:MAX_SHOWN]:
        print_warning(f"{tool} looks suspicious: {finding}")


def _write_api(invocation: Invocation, config: Config, plan: ApiPlan, networks: Sequence[str]) -> None:
    from toolfold.config import set_value
    from toolfold.config.atomic import make_private_directory, replace_file
    from toolfold.tools.openapi.api_file import StoredApi, format_api, locate_api_file

    stored = StoredApi(plan.title, plan.operations, {scheme.name: scheme for scheme in plan.schemes})
    content, checksum = format_api(stored)
    file = locate_api_file(config.paths.config_dir, plan.name)
    make_private_directory(file.parent)
    replace_file(file, content, mode=0o600)
    entry: dict[str, Any] = {"url": plan.url, "checksum": checksum}
    if plan.auth:
        entry["auth"] = plan.auth
    if networks:
        entry["private_networks"] = list(networks)
    record = invocation.settings_record()
    for warning in set_value(config.paths.user_file, f"apis.{plan.name}", entry, record=record):
        print_warning(warning)
