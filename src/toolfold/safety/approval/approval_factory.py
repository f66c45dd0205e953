"""Build the approval components from a configuration."""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from shellverdict.errors import RuleError
from shellverdict.execution_site import ExecutionSite
from shellverdict.interactive.process_input import ProcessInput
from shellverdict.paths import PathClassifier
from shellverdict.paths.own_program import runtime_program_paths
from shellverdict.rules import Rule, Rules, builtin_rules
from shellverdict.shell.earlier_files import NO_EARLIER_FILES, EarlierFiles
from shellverdict.shell.words import NO_VARIABLES, Word
from shellverdict.verdict import Severity, Verdict
from toolfold.config import PROJECT_FILE, Config
from toolfold.config.record import SettingsRecord
from toolfold.core.errors import ConfigError, closest_names, did_you_mean
from toolfold.core.loops import EventLoops
from toolfold.core.types import Approver, Source
from toolfold.safety.approval.allowed_kinds import KIND_PREFIX, RULE_PREFIX, FindingKinds, is_pattern
from toolfold.safety.approval.allowed_tools import build_allowed_tools, is_own_server
from toolfold.safety.approval.allowlist import KEY, AllowList
from toolfold.safety.approval.audit_log import AuditLog, DecisionLog
from toolfold.safety.approval.call_analysis import TOOL_PREFIX, CallAnalyzer
from toolfold.safety.approval.chain import DecisionChain, can_be_allowlisted
from toolfold.safety.approval.configured_rules import add_location, config_error, configured_rules
from toolfold.safety.approval.deny_rules import DenyRules
from toolfold.safety.approval.gate import Approval, QuestionEvents
from toolfold.safety.approval.prompting import Chat
from toolfold.safety.approval.session_files import SessionFiles
from toolfold.safety.approval.smart import ChatModel, Reviewer, SmartApproval
from toolfold.safety.redaction import Redaction
from toolfold.state.database import Database

if TYPE_CHECKING:
    from shellverdict.judging import Judge

log = logging.getLogger(__name__)

__all__ = ["build_allowlist", "build_approval", "build_audit", "ineffective_entries"]

# Long enough for every command that is shown to a model: truncated text could not be judged.
_MAX_REDACTED_CHARS = 20_000


def build_approval(
    config: Config,
    loops: EventLoops,
    *,
    approver: Approver | None = None,
    reviewer: Reviewer | None = None,
    rules: Sequence[Rule] = (),
    sites: Mapping[tuple[Source, str], ExecutionSite] | None = None,
    events: QuestionEvents | None = None,
    database: Database | None = None,
    chat: Chat | None = None,
) -> Approval:
    """Build the approval step of the dispatch pipeline.

    `rules` are added by plugins. `sites` are the execution sites of tools by source and name; the
    commands of all other tools run on this machine. With a `database`, decisions are recorded there. `chat`
    is asked besides the approver.
    """
    settings = config.approval
    deny_rules, files = DenyRules(settings.deny), SessionFiles()
    site_analyzers = {
        tool: _build_analyzer(config, deny_rules, rules, site, files=files)
        for tool, site in (sites or {}).items()
    }
    analyzer = _build_analyzer(config, deny_rules, rules, other_sites=site_analyzers, files=files)
    chain = DecisionChain(
        mode=settings.mode,
        deny_rules=deny_rules,
        allowlist=build_allowlist(config, analyzer, deny_rules, rules),
        isolated=settings.isolated,
        clears=Severity[settings.smart_clears.upper()],
        kinds=FindingKinds.shipped(),
        allowed_tools=build_allowed_tools(config),
    )
    return Approval(
        approver,
        loops,
        timeout=settings.timeout_seconds,
        analyzer=analyzer,
        chain=chain,
        smart=_build_smart_approval(config, loops, reviewer) if settings.mode == "smart" else None,
        audit=build_audit(config, database),
        events=events,
        chat=chat,
    )


def build_allowlist(
    config: Config,
    analyzer: CallAnalyzer | None = None,
    deny_rules: DenyRules | None = None,
    rules: Sequence[Rule] = (),
) -> AllowList:
    """Build the permanent allow-list, which is updated when the user's settings file changes.

    Without `analyzer`, it can be listed and changed, but covers nothing.
    """
    paths = config.paths
    normalizer = analyzer or CallAnalyzer()
    from_file = str(paths.user_file) in config.origins.get(KEY, "")
    return AllowList(
        config.command_allowlist if from_file else _exact_entries(config),
        file=paths.user_file,
        lock_directory_path=paths.state_dir / "allowlist",
        normalize=normalizer.normalize_entry,
        explain_ineffective=lambda entry: _explain_ineffective(
            entry, normalizer, deny_rules, lambda: _known_rules(config, rules)
        ),
        follows_file=from_file or not config.command_allowlist,
        record=SettingsRecord(paths.state_dir),
    )


def ineffective_entries(config: Config) -> dict[str, str]:
    """Return the allow-list entries that can never have an effect on this machine, with the reasons."""
    deny_rules = DenyRules(config.approval.deny)
    analyzer = _build_analyzer(config, deny_rules)
    known = functools.cache(lambda: _known_rules(config))
    reasons = {
        entry: _explain_ineffective(entry, analyzer, deny_rules, known) for entry in config.command_allowlist
    }
    return {entry: why for entry, why in reasons.items() if why}


def build_audit(config: Config, database: Database | None = None) -> DecisionLog:
    """Build the audit log: in the database that gateway replicas share or, without one, in a local file."""
    redact = Redaction(config.secret_values(), max_chars=_MAX_REDACTED_CHARS)
    if database is None:
        return AuditLog(config.paths.state_dir, redact)
    from toolfold.safety.approval.shared_audit import SharedAuditLog

    return SharedAuditLog(database, redact)


def _protected_paths(config: Config) -> list[str]:
    paths = config.paths
    in_project = [paths.project_dir / name for name in (PROJECT_FILE, ".toolfold", "toolfold.lock")]
    project = [paths.project_file] if paths.project_file else []
    program = runtime_program_paths(config.workspace)
    return [str(path) for path in (*config.own_paths, *in_project, *project, *program)]


def _build_analyzer(
    config: Config,
    deny_rules: DenyRules,
    rules: Sequence[Rule] = (),
    site: ExecutionSite | None = None,
    other_sites: Mapping[tuple[Source, str], CallAnalyzer] | None = None,
    files: SessionFiles | None = None,
) -> CallAnalyzer:
    classifier = _build_classifier(config)
    if site:
        classifier = site.classifier_for(classifier, _protected_paths(config))
    judge = _build_judge(config, deny_rules, classifier, rules, site)
    trusted = config.approval.trusted_servers
    return CallAnalyzer(
        judge,
        judge_input=judge.judge_input,
        path_classifier=classifier,
        trusted_servers=trusted,
        own_servers=[name for name in config.mcp.servers if is_own_server(config, name)],
        other_sites=other_sites,
        files=files,
        site=site,
    )


def _exact_entries(config: Config) -> list[str]:
    """Return the allow-list entries for exact calls; warn that entries for rules are ignored.

    Entries for rules are effective only in the user's own settings file.
    """
    for entry in filter(is_pattern, config.command_allowlist):
        log.warning(
            "the allow-list entry %r is ignored: entries for rules are read only from %s",
            entry,
            config.paths.user_file,
        )
    return [entry for entry in config.command_allowlist if not is_pattern(entry)]


def _known_rules(config: Config, more: Sequence[Rule] = ()) -> Mapping[str, Rule]:
    known = (*builtin_rules().rules, *configured_rules(config).rules, *more)
    return {rule.name: rule for rule in known}


def _explain_ineffective_pattern(entry: str, rules: Mapping[str, Rule]) -> str:
    """Return the reason why an allow-list entry for a rule or kind can never match; empty if it can match."""
    kinds = FindingKinds.shipped()
    word, _, name = entry.partition(":")
    known: Collection[str] = rules if f"{word}:" == RULE_PREFIX else kinds.names
    if name not in known:
        return f"there is no {word} {name!r}.{did_you_mean(closest_names(name, known))}"
    named_rules = [
        rules[each]
        for each in ((name,) if f"{word}:" == RULE_PREFIX else kinds.rules_of(name))
        if each in rules
    ]
    if all(rule.blocked for rule in named_rules):
        return f"this is always blocked, even with approval: {entry}"
    if not any(can_be_allowlisted(rule.name, rule.category, rule.severity) for rule in named_rules):
        return "critical, unreadable and runtime-protecting findings need approval each time"
    return ""


def _explain_ineffective(
    entry: str, analyzer: CallAnalyzer, deny_rules: DenyRules | None, rules: Callable[[], Mapping[str, Rule]]
) -> str:
    if is_pattern(entry):
        return _explain_ineffective_pattern(entry, rules())
    kind = "-".join(entry.casefold().split())
    if kind in FindingKinds.shipped().names:
        return f"it is treated as a command; to allow the kind, write {KIND_PREFIX}{kind}"
    if why := analyzer.explain_ineffective(entry):
        return why
    if deny_rules is None or entry.startswith(TOOL_PREFIX):
        return ""
    denied = deny_rules.find(analyzer.analyze_command(entry))
    return f"the setting approval.deny forbids this ({denied})" if denied else ""


def _build_classifier(config: Config) -> PathClassifier:
    home = config.environment.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - it may be unknown
    return PathClassifier(
        home=home if home.startswith("/") else None,
        cwd=str(config.workspace),
        protected=_protected_paths(config),
    )


class _LazyJudge:
    """A command judge that is created on first use, because many processes judge no command."""

    def __init__(self, make: Callable[[], Judge]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._made: Judge | None = None

    def __call__(
        self,
        command: str,
        *,
        cwd: str | None = None,
        variables: Mapping[str, Word] = NO_VARIABLES,
        earlier_files: EarlierFiles = NO_EARLIER_FILES,
    ) -> Verdict:
        return self._judge()(command, cwd=cwd, variables=variables, earlier_files=earlier_files)

    def judge_input(
        self, process_input: ProcessInput, earlier_files: EarlierFiles = NO_EARLIER_FILES
    ) -> Verdict:
        return self._judge().judge_input(process_input, earlier_files)

    def _judge(self) -> Judge:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made


def _build_judge(
    config: Config,
    deny_rules: DenyRules,
    classifier: PathClassifier,
    rules: Sequence[Rule],
    site: ExecutionSite | None,
) -> Judge | _LazyJudge:
    def make() -> Judge:
        from shellverdict.judging import Judge

        return Judge(builtin_rules().merge(own).merge(Rules(deny_rules.rules)), classifier, site)

    try:
        configured = configured_rules(config)
        own = configured.merge(Rules({rule.name: rule for rule in rules}.values()))
        if deny_rules.entries_for("rule") or deny_rules.entries_for("category"):
            deny_rules.check_names(builtin_rules().merge(own).rules)
        return make() if configured.rules else _LazyJudge(make)  # report an invalid rule at startup
    except RuleError as error:
        raise add_location(config_error(error), config) from None
    except ConfigError as error:
        raise add_location(error, config) from None


def _build_smart_approval(
    config: Config, loops: EventLoops, reviewer: Reviewer | None
) -> SmartApproval | None:
    settings = config.approval
    reviewer = reviewer or _build_chat_model(config)
    if reviewer is None:
        log.warning(
            "approval.mode is smart, but approval.smart_model is not set: a person "
            "is asked about every dangerous call"
        )
        return None
    redact = Redaction(config.secret_values(), max_chars=_MAX_REDACTED_CHARS)
    return SmartApproval(reviewer, loops, timeout=settings.smart_timeout_seconds, redact=redact)


def _build_chat_model(config: Config) -> ChatModel | None:
    settings, environment = config.approval, config.environment
    if not settings.smart_model:
        return None
    base = environment.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
    url = settings.smart_endpoint or f"{base.rstrip('/')}/chat/completions"
    key = "" if settings.smart_endpoint else environment.get("OPENAI_API_KEY", "")
    return ChatModel(url, settings.smart_model, key=key, timeout=settings.smart_timeout_seconds)
