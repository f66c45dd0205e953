"""The order of approval decisions, which no mode and no answer changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shellverdict.verdict import Finding, Severity, Verdict
from tests.approval.cases import SHELL, analysis_of, finding, verdict_on
from tests.cases import check_cases
from toolfold.core.authoring import build_tool
from toolfold.core.types import Answer
from toolfold.safety.approval.allowlist import AllowList
from toolfold.safety.approval.chain import DecidedBy, DecisionChain, Mode
from toolfold.safety.approval.deny_rules import DenyRules
from toolfold.safety.approval.session_grants import SessionGrants

SESSION = "session-1"
COMMAND = "rm -rf build"
HARMLESS = verdict_on(COMMAND)
FLAGGED = verdict_on(COMMAND, finding())
BLOCKED = verdict_on(COMMAND, finding("delete-root", severity=Severity.CRITICAL, blocked=True))
PROTECTED = verdict_on(COMMAND, finding("write-protected", category="self-protection"))
DENIED = verdict_on(COMMAND, finding("deny:shred *", category="denied"))
UNREAD = verdict_on(COMMAND, finding("too-long", category="unreadable"), unread=True)
STARTUP = verdict_on(COMMAND, finding("write-startup", category="persistence"))

EVERYTHING = ("session", "kind", "allow-list")


def chain_with(mode: Mode, grants_given: tuple[str, ...], verdict: Verdict) -> DecisionChain:
    """Return a chain of approval checks with the given grants for the command."""
    analysis = analysis_of(verdict)
    grants = SessionGrants()
    if "session" in grants_given and analysis.key:
        grants.allow(SESSION, analysis.key)
    if "kind" in grants_given:
        grants.allow_kind(SESSION, analysis.rules)
    entries = (COMMAND,) if "allow-list" in grants_given else ()
    return DecisionChain(
        mode=mode, grants=grants, allowlist=AllowList(entries), deny_rules=DenyRules(["shred *"])
    )


NEEDS_APPROVAL = None
TABLE: list[tuple[str, Mode, Verdict, tuple[str, ...], DecidedBy | None]] = [
    ("nothing found runs", "manual", HARMLESS, (), DecidedBy.NOTHING),
    ("nothing found runs in every mode", "off", HARMLESS, (), DecidedBy.NOTHING),
    ("a finding needs approval", "manual", FLAGGED, (), NEEDS_APPROVAL),
    ("a finding needs approval in smart mode", "smart", FLAGGED, (), NEEDS_APPROVAL),
    ("a finding runs if approval is off", "off", FLAGGED, (), DecidedBy.MODE),
    ("a session grant precedes the mode", "off", FLAGGED, ("session",), DecidedBy.SESSION),
    ("a session grant precedes the allow-list", "manual", FLAGGED, EVERYTHING, DecidedBy.SESSION),
    ("a kind grant counts as a session grant", "manual", FLAGGED, ("kind",), DecidedBy.SESSION),
    ("the allow-list precedes the mode", "off", FLAGGED, ("allow-list",), DecidedBy.ALLOWLIST),
    ("the allow-list allows", "manual", FLAGGED, ("allow-list",), DecidedBy.ALLOWLIST),
    ("blocked in every mode", "off", BLOCKED, (), DecidedBy.BLOCKED),
    ("blocked despite all grants", "off", BLOCKED, EVERYTHING, DecidedBy.BLOCKED),
    ("denied despite all grants", "off", DENIED, EVERYTHING, DecidedBy.DENY),
    ("unread needs approval even if approval is off", "off", UNREAD, (), NEEDS_APPROVAL),
    ("no grant covers unread commands", "off", UNREAD, EVERYTHING, NEEDS_APPROVAL),
    ("a startup file needs approval even if approval is off", "off", STARTUP, (), NEEDS_APPROVAL),
    ("runtime files need approval even if approval is off", "off", PROTECTED, (), NEEDS_APPROVAL),
    ("a kind grant does not cover startup files", "manual", STARTUP, ("kind",), NEEDS_APPROVAL),
    ("a session grant covers the same startup file", "manual", STARTUP, ("session",), DecidedBy.SESSION),
]


@pytest.mark.parametrize(
    ("mode", "verdict", "grants_given", "decided_by"), [row[1:] for row in TABLE], ids=[r[0] for r in TABLE]
)
def test_first_matching_step_in_the_documented_approval_order_decides_whether_a_call_is_allowed(
    mode: Mode, verdict: Verdict, grants_given: tuple[str, ...], decided_by: DecidedBy | None
) -> None:
    decision = chain_with(mode, grants_given, verdict).decide(analysis_of(verdict), SESSION)
    assert (decision.decided_by if decision else None) is decided_by
    if decision:
        assert decision.allowed is (decided_by not in (DecidedBy.BLOCKED, DecidedBy.DENY))


def test_always_blocked_commands_are_refused_before_deny_rules_are_checked() -> None:
    both = verdict_on(COMMAND, *BLOCKED.findings, *DENIED.findings)
    decision = DecisionChain(deny_rules=DenyRules(["shred *"])).decide(analysis_of(both), SESSION)
    assert decision is not None
    assert decision.decided_by is DecidedBy.BLOCKED


def test_single_finding_of_a_blocking_rule_blocks_the_whole_command() -> None:
    line = verdict_on(COMMAND, *(finding(f"rule-{n}") for n in range(80)), *BLOCKED.findings)
    decision = chain_with("off", EVERYTHING, line).decide(analysis_of(line), SESSION)
    assert decision is not None
    assert not decision.allowed


@check_cases("entry", ["tool:terminal", "tool:term*", "rule:delete-*", "category:fs-delete"])
def test_deny_rule_can_refuse_calls_by_tool_name_by_matching_danger_rule_or_by_category(entry: str) -> None:
    decision = DecisionChain(mode="off", deny_rules=DenyRules([entry])).decide(analysis_of(FLAGGED), SESSION)
    assert decision is not None
    assert (decision.allowed, decision.decided_by) == (False, DecidedBy.DENY)
    assert entry in decision.reason


def test_harmless_call_of_a_tool_listed_in_a_deny_rule_is_refused() -> None:
    decision = DecisionChain(deny_rules=DenyRules(["tool:terminal"])).decide(analysis_of(HARMLESS), SESSION)
    assert decision is not None
    assert decision.decided_by is DecidedBy.DENY


@check_cases("entry", ["tool:terminals", "rule:delete", "category:disk", "tool:", "", " "])
def test_deny_rule_does_not_refuse_a_call_of_another_tool_or_danger_rule_or_category(
    entry: str,
) -> None:
    decision = DecisionChain(mode="off", deny_rules=DenyRules([entry])).decide(analysis_of(FLAGGED), SESSION)
    assert decision is not None
    assert decision.allowed


@check_cases(
    "command", ["true; rm -rf x", "$(rm -rf x)", "(rm -rf x)", "bash -c 'rm -rf x'", "a |\nrm  -rf x"]
)
def test_deny_rule_refuses_a_command_that_contains_a_denied_command_even_if_analysis_failed(
    command: str,
) -> None:
    unread = verdict_on(command, finding("too-long", category="unreadable"), unread=True)
    decision = DecisionChain(deny_rules=DenyRules(["rm *"])).decide(analysis_of(unread), SESSION)
    assert decision is not None
    assert decision.decided_by is DecidedBy.DENY


class TestOfferedAnswers:
    def offered(self, verdict: Verdict, tmp_path: Path) -> tuple[Answer, ...]:
        return DecisionChain(allowlist=AllowList(file=tmp_path / "config.yaml")).offered_answers(
            analysis_of(verdict)
        )

    def test_approval_question_for_a_fully_analyzed_command_offers_all_answers(self, tmp_path: Path) -> None:
        assert self.offered(FLAGGED, tmp_path) == tuple(Answer)

    def test_command_with_parts_known_only_at_run_time_can_be_approved_for_one_call_only(
        self, tmp_path: Path
    ) -> None:
        shapeless = verdict_on(COMMAND, finding(category="unreadable"), shape="")
        assert self.offered(shapeless, tmp_path) == (Answer.ONCE, Answer.DENY)

    def test_command_that_could_not_be_analyzed_can_be_approved_for_one_call_only(
        self, tmp_path: Path
    ) -> None:
        assert self.offered(UNREAD, tmp_path) == (Answer.ONCE, Answer.DENY)

    @pytest.mark.parametrize("category", ["unreadable", "spoof", "self-protection"])
    def test_unreadable_or_deceptive_or_toolfold_changing_commands_have_no_permanent_approval(
        self, category: str, tmp_path: Path
    ) -> None:
        verdict = verdict_on(COMMAND, finding(), finding("other", category=category))
        assert self.offered(verdict, tmp_path) == (Answer.ONCE, Answer.SESSION, Answer.DENY)

    def test_access_to_protected_files_can_be_approved_only_for_one_call_or_for_the_session(
        self, tmp_path: Path
    ) -> None:
        for verdict in (PROTECTED, STARTUP):
            assert self.offered(verdict, tmp_path) == (Answer.ONCE, Answer.SESSION, Answer.DENY)

    def test_permanent_approval_is_not_offered_without_an_allowlist_file_or_for_overlong_commands(
        self, tmp_path: Path
    ) -> None:
        assert Answer.ALWAYS not in DecisionChain().offered_answers(analysis_of(FLAGGED))
        assert Answer.ALWAYS not in self.offered(verdict_on("rm " + "x" * 2000, finding()), tmp_path)


class TestAnswerCoverage:
    def remember(self, answer: Answer, chain: DecisionChain | None = None) -> DecisionChain:
        chain = chain or DecisionChain()
        chain.remember(analysis_of(FLAGGED), SESSION, answer)
        return chain

    def is_allowed(self, chain: DecisionChain, verdict: Verdict = FLAGGED, session: str = SESSION) -> bool:
        decision = chain.decide(analysis_of(verdict), session)
        return decision is not None and decision.allowed

    def test_command_approved_for_one_call_needs_approval_again_in_the_next_call(self) -> None:
        assert not self.is_allowed(self.remember(Answer.ONCE))

    def test_session_approval_of_a_command_allows_only_the_same_command_in_the_same_session(self) -> None:
        chain = self.remember(Answer.SESSION)
        assert self.is_allowed(chain)
        assert self.is_allowed(chain, verdict_on("rm  -rf 'build'", finding(), shape=COMMAND))
        assert not self.is_allowed(chain, verdict_on("rm -rf src", finding()))
        assert not self.is_allowed(chain, session="session-2")

    def test_session_approval_of_a_command_applies_only_to_the_same_working_directory(self) -> None:
        chain = DecisionChain()
        here = analysis_of(FLAGGED, args={"command": COMMAND, "workdir": "/srv/a"})
        there = analysis_of(FLAGGED, args={"command": COMMAND, "workdir": "/srv/b"})
        chain.remember(here, SESSION, Answer.SESSION)
        assert chain.decide(here, SESSION) is not None
        assert chain.decide(there, SESSION) is None

    def test_approval_of_one_kind_of_risk_does_not_allow_a_command_with_a_second_kind_of_risk(self) -> None:
        chain = self.remember(Answer.KIND)
        assert self.is_allowed(chain, verdict_on("rm -rf src", finding()))
        assert not self.is_allowed(chain, verdict_on("rm -rf src", finding(), finding("delete-home")))
        assert not self.is_allowed(chain, verdict_on("rm -rf src", finding()), session="session-2")

    def test_approval_of_a_kind_of_risk_does_not_allow_blocked_commands(self) -> None:
        chain = self.remember(Answer.KIND)
        blocked = verdict_on("rm -rf /", finding(blocked=True))
        assert not self.is_allowed(chain, blocked)

    def test_permanently_approved_command_needs_no_approval_in_other_sessions(self, tmp_path: Path) -> None:
        chain = self.remember(
            Answer.ALWAYS, DecisionChain(allowlist=AllowList(file=tmp_path / "config.yaml"))
        )
        assert self.is_allowed(chain, session="session-2")
        assert not self.is_allowed(chain, verdict_on("rm -rf src", finding()), session="session-2")


class TestSmartApprovalEligibility:
    def is_eligible(
        self, *findings: Finding, mode: Mode = "smart", unread: bool = False, clears: Severity = Severity.LOW
    ) -> bool:
        analysis = analysis_of(verdict_on(COMMAND, *findings, unread=unread))
        return DecisionChain(mode=mode, clears=clears).can_be_cleared(analysis)

    def test_smart_mode_consults_the_reviewing_model_only_for_findings_of_low_severity(self) -> None:
        assert self.is_eligible(finding())
        assert not self.is_eligible(finding(severity=Severity.MEDIUM))
        assert not self.is_eligible(finding(), finding("other", severity=Severity.HIGH))

    def test_smart_mode_consults_the_reviewing_model_for_medium_severity_if_configured(self) -> None:
        assert self.is_eligible(finding(severity=Severity.MEDIUM), clears=Severity.MEDIUM)
        assert not self.is_eligible(finding(severity=Severity.HIGH), clears=Severity.MEDIUM)

    def test_reviewing_model_is_not_called_in_approval_modes_other_than_smart(self) -> None:
        assert not self.is_eligible(finding(), mode="manual")
        assert not self.is_eligible(finding(), mode="off")

    @check_cases("category", ["unreadable", "spoof", "self-protection"])
    def test_reviewing_model_is_not_called_for_code_that_could_not_be_parsed(self, category: str) -> None:
        assert not self.is_eligible(finding(category=category))
        assert not self.is_eligible(finding(), unread=True)
        assert not self.is_eligible()


def test_session_approval_of_one_tool_does_not_allow_calls_of_another_tool() -> None:
    remote_terminal = build_tool(
        name="remote_terminal",
        toolset="ssh",
        schema={},
        handler=lambda args: args,
        judged_as={"command": "command"},
    )
    chain = DecisionChain()
    chain.remember(analysis_of(FLAGGED, SHELL), SESSION, Answer.SESSION)
    assert chain.decide(analysis_of(FLAGGED, remote_terminal), SESSION) is None


VERDICTS = st.builds(
    lambda findings, unread, shape: Verdict(COMMAND, tuple(findings), shape, unread),
    st.lists(
        st.builds(
            Finding,
            st.sampled_from(["a", "b", "write-startup", "deny:x"]),
            st.sampled_from(["fs-delete", "unreadable", "spoof", "self-protection", "persistence"]),
            st.sampled_from(Severity),
            st.just("why"),
            blocked=st.booleans(),
        ),
        max_size=4,
    ),
    st.booleans(),
    st.sampled_from(["", COMMAND]),
)


@given(VERDICTS, st.lists(VERDICTS, max_size=3), st.sampled_from(["manual", "smart", "off"]), st.data())
def test_blocked_denied_or_unparsable_commands_are_not_allowed_by_any_approval_or_mode(
    verdict: Verdict, earlier: list[Verdict], mode: Mode, data: st.DataObject
) -> None:
    chain = DecisionChain(mode=mode, allowlist=AllowList([COMMAND]))
    for each in earlier:  # earlier approvals of commands with the same words
        before = analysis_of(each)
        offered = [answer for answer in chain.offered_answers(before) if answer is not Answer.ALWAYS]
        chain.remember(before, SESSION, data.draw(st.sampled_from(offered)))
    decision = chain.decide(analysis_of(verdict), SESSION)
    if verdict.blocked or any(each.rule.startswith("deny:") for each in verdict.findings):
        assert decision is not None
        assert not decision.allowed
    elif verdict.unread:
        assert decision is None
    assert not (chain.can_be_cleared(analysis_of(verdict)) and verdict.unread)
