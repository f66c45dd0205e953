"""The order of the stations, which no mode and no answer changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shellverdict.verdict import Finding, Severity, Verdict
from tests.approval.cases import SHELL, finding, subject_of, verdict_on
from toolfold.approval.allowlist import AllowList
from toolfold.approval.chain import DecidedBy, DecisionChain, Mode
from toolfold.approval.deny_rules import DenyRules
from toolfold.approval.session_grants import SessionGrants
from toolfold.authoring import build_tool
from toolfold.model import Answer

SESSION = "session-1"
COMMAND = "rm -rf build"
HARMLESS = verdict_on(COMMAND)
FLAGGED = verdict_on(COMMAND, finding())
FLOOR = verdict_on(COMMAND, finding("delete-root", severity=Severity.CRITICAL, blocked=True))
SELF = verdict_on(COMMAND, finding("write-protected", category="self-protection"))
DENIED = verdict_on(COMMAND, finding("deny:shred *", category="denied"))
UNREAD = verdict_on(COMMAND, finding("too-long", category="unreadable"), unread=True)
STARTUP = verdict_on(COMMAND, finding("write-startup", category="persistence"))

EVERYTHING = ("session", "kind", "allow-list")


def chain_with(mode: Mode, granted: tuple[str, ...], verdict: Verdict) -> DecisionChain:
    """A chain in which somebody has agreed to this in every way that is named."""
    analysis = subject_of(verdict)
    grants = SessionGrants()
    if "session" in granted and analysis.key:
        grants.allow(SESSION, analysis.key)
    if "kind" in granted:
        grants.allow_kind(SESSION, analysis.rules)
    listed = (COMMAND,) if "allow-list" in granted else ()
    return DecisionChain(
        mode=mode, grants=grants, allowlist=AllowList(listed), deny_rules=DenyRules(["shred *"])
    )


ASKED = None
TABLE: list[tuple[str, Mode, Verdict, tuple[str, ...], DecidedBy | None]] = [
    ("nothing found runs", "manual", HARMLESS, (), DecidedBy.NOTHING),
    ("nothing found runs in every mode", "off", HARMLESS, (), DecidedBy.NOTHING),
    ("a match is asked about", "manual", FLAGGED, (), ASKED),
    ("and before a person, by a model", "smart", FLAGGED, (), ASKED),
    ("and not at all where approval is off", "off", FLAGGED, (), DecidedBy.MODE),
    ("a session grant stands before the mode", "off", FLAGGED, ("session",), DecidedBy.SESSION),
    ("a session grant stands before the list", "manual", FLAGGED, EVERYTHING, DecidedBy.SESSION),
    ("a grant of the kind is one too", "manual", FLAGGED, ("kind",), DecidedBy.SESSION),
    ("the allow-list stands before the mode", "off", FLAGGED, ("allow-list",), DecidedBy.ALLOWLIST),
    ("the allow-list lets pass", "manual", FLAGGED, ("allow-list",), DecidedBy.ALLOWLIST),
    ("the floor holds in every mode", "off", FLOOR, (), DecidedBy.FLOOR),
    ("the floor holds against every grant", "off", FLOOR, EVERYTHING, DecidedBy.FLOOR),
    ("a deny rule holds against every grant", "off", DENIED, EVERYTHING, DecidedBy.DENY),
    ("what was not read is asked about though approval is off", "off", UNREAD, (), ASKED),
    ("and no grant of any kind covers it", "off", UNREAD, EVERYTHING, ASKED),
    ("a start-up file is asked about though approval is off", "off", STARTUP, (), ASKED),
    ("and so is what guards the runtime", "off", SELF, (), ASKED),
    ("no grant of the kind covers it", "manual", STARTUP, ("kind",), ASKED),
    ("the very same may be granted", "manual", STARTUP, ("session",), DecidedBy.SESSION),
]


@pytest.mark.parametrize(
    ("mode", "verdict", "granted", "station"), [row[1:] for row in TABLE], ids=[r[0] for r in TABLE]
)
def test_the_stations_decide_in_their_order(
    mode: Mode, verdict: Verdict, granted: tuple[str, ...], station: DecidedBy | None
) -> None:
    decision = chain_with(mode, granted, verdict).decide(subject_of(verdict), SESSION)
    assert (decision.decided_by if decision else None) is station
    if decision:
        assert decision.allowed is (station not in (DecidedBy.FLOOR, DecidedBy.DENY))


def test_the_floor_stands_before_the_deny_rules() -> None:
    both = verdict_on(COMMAND, *FLOOR.findings, *DENIED.findings)
    decision = DecisionChain(deny_rules=DenyRules(["shred *"])).decide(subject_of(both), SESSION)
    assert decision is not None
    assert decision.decided_by is DecidedBy.FLOOR


def test_one_blocked_part_blocks_the_whole_line() -> None:
    line = verdict_on(COMMAND, *(finding(f"rule-{n}") for n in range(80)), *FLOOR.findings)
    decision = chain_with("off", EVERYTHING, line).decide(subject_of(line), SESSION)
    assert decision is not None
    assert not decision.allowed


@pytest.mark.parametrize("entry", ["tool:terminal", "tool:term*", "rule:delete-*", "category:fs-delete"])
def test_tools_rules_and_categories_can_be_forbidden_by_name(entry: str) -> None:
    decision = DecisionChain(mode="off", deny_rules=DenyRules([entry])).decide(subject_of(FLAGGED), SESSION)
    assert decision is not None
    assert (decision.allowed, decision.decided_by) == (False, DecidedBy.DENY)
    assert entry in decision.reason


def test_a_forbidden_tool_does_not_run_though_nothing_is_wrong_with_the_call() -> None:
    decision = DecisionChain(deny_rules=DenyRules(["tool:terminal"])).decide(subject_of(HARMLESS), SESSION)
    assert decision is not None
    assert decision.decided_by is DecidedBy.DENY


@pytest.mark.parametrize("entry", ["tool:terminals", "rule:delete", "category:disk", "tool:", "", " "])
def test_what_an_entry_does_not_name_it_does_not_forbid(entry: str) -> None:
    decision = DecisionChain(mode="off", deny_rules=DenyRules([entry])).decide(subject_of(FLAGGED), SESSION)
    assert decision is not None
    assert decision.allowed


@pytest.mark.parametrize(
    "command", ["true; rm -rf x", "$(rm -rf x)", "(rm -rf x)", "bash -c 'rm -rf x'", "a |\nrm  -rf x"]
)
def test_in_what_could_not_be_read_a_forbidden_command_is_looked_for_all_the_same(command: str) -> None:
    unread = verdict_on(command, finding("too-long", category="unreadable"), unread=True)
    decision = DecisionChain(deny_rules=DenyRules(["rm *"])).decide(subject_of(unread), SESSION)
    assert decision is not None
    assert decision.decided_by is DecidedBy.DENY


class TestAnswers:
    def answers(self, verdict: Verdict, tmp_path: Path) -> tuple[Answer, ...]:
        return DecisionChain(allowlist=AllowList(file=tmp_path / "config.yaml")).offered_answers(
            subject_of(verdict)
        )

    def test_all_are_offered_for_what_was_read_in_full(self, tmp_path: Path) -> None:
        assert self.answers(FLAGGED, tmp_path) == tuple(Answer)

    def test_without_a_shape_only_once_or_never(self, tmp_path: Path) -> None:
        shapeless = verdict_on(COMMAND, finding(category="unreadable"), shape="")
        assert self.answers(shapeless, tmp_path) == (Answer.ONCE, Answer.DENY)

    def test_what_was_not_read_can_only_be_allowed_once(self, tmp_path: Path) -> None:
        assert self.answers(UNREAD, tmp_path) == (Answer.ONCE, Answer.DENY)

    @pytest.mark.parametrize("category", ["unreadable", "spoof", "self-protection"])
    def test_what_may_hide_anything_is_settled_neither_as_a_kind_nor_for_good(
        self, category: str, tmp_path: Path
    ) -> None:
        verdict = verdict_on(COMMAND, finding(), finding("other", category=category))
        assert self.answers(verdict, tmp_path) == (Answer.ONCE, Answer.SESSION, Answer.DENY)

    def test_nor_is_what_guards_the_runtime(self, tmp_path: Path) -> None:
        for verdict in (SELF, STARTUP):
            assert self.answers(verdict, tmp_path) == (Answer.ONCE, Answer.SESSION, Answer.DENY)

    def test_always_is_offered_only_where_it_can_be_kept(self, tmp_path: Path) -> None:
        assert Answer.ALWAYS not in DecisionChain().offered_answers(subject_of(FLAGGED))
        assert Answer.ALWAYS not in self.answers(verdict_on("rm " + "x" * 2000, finding()), tmp_path)


class TestWhatAnAnswerCovers:
    def after(self, answer: Answer, chain: DecisionChain | None = None) -> DecisionChain:
        chain = chain or DecisionChain()
        chain.remember(subject_of(FLAGGED), SESSION, answer)
        return chain

    def allowed(self, chain: DecisionChain, verdict: Verdict = FLAGGED, session: str = SESSION) -> bool:
        decision = chain.decide(subject_of(verdict), session)
        return decision is not None and decision.allowed

    def test_once_covers_nothing_else(self) -> None:
        assert not self.allowed(self.after(Answer.ONCE))

    def test_session_covers_the_same_shape_in_the_same_session_and_nothing_else(self) -> None:
        chain = self.after(Answer.SESSION)
        assert self.allowed(chain)
        assert self.allowed(chain, verdict_on("rm  -rf 'build'", finding(), shape=COMMAND))
        assert not self.allowed(chain, verdict_on("rm -rf src", finding()))
        assert not self.allowed(chain, session="session-2")

    def test_session_covers_only_the_folder_it_was_given_for(self) -> None:
        chain = DecisionChain()
        here = subject_of(FLAGGED, args={"command": COMMAND, "workdir": "/srv/a"})
        there = subject_of(FLAGGED, args={"command": COMMAND, "workdir": "/srv/b"})
        chain.remember(here, SESSION, Answer.SESSION)
        assert chain.decide(here, SESSION) is not None
        assert chain.decide(there, SESSION) is None

    def test_kind_covers_what_the_same_rules_find_and_no_other_rule(self) -> None:
        chain = self.after(Answer.KIND)
        assert self.allowed(chain, verdict_on("rm -rf src", finding()))
        assert not self.allowed(chain, verdict_on("rm -rf src", finding(), finding("delete-home")))
        assert not self.allowed(chain, verdict_on("rm -rf src", finding()), session="session-2")

    def test_kind_never_covers_the_floor(self) -> None:
        chain = self.after(Answer.KIND)
        blocked = verdict_on("rm -rf /", finding(blocked=True))
        assert not self.allowed(chain, blocked)

    def test_always_covers_every_session(self, tmp_path: Path) -> None:
        chain = self.after(Answer.ALWAYS, DecisionChain(allowlist=AllowList(file=tmp_path / "config.yaml")))
        assert self.allowed(chain, session="session-2")
        assert not self.allowed(chain, verdict_on("rm -rf src", finding()), session="session-2")


class TestWhatAModelMayClear:
    def may(
        self, *findings: Finding, mode: Mode = "smart", unread: bool = False, clears: Severity = Severity.LOW
    ) -> bool:
        analysis = subject_of(verdict_on(COMMAND, *findings, unread=unread))
        return DecisionChain(mode=mode, clears=clears).can_be_cleared(analysis)

    def test_only_what_is_of_low_risk(self) -> None:
        assert self.may(finding())
        assert not self.may(finding(severity=Severity.MEDIUM))
        assert not self.may(finding(), finding("other", severity=Severity.HIGH))

    def test_medium_where_the_configuration_says_so_and_nothing_above(self) -> None:
        assert self.may(finding(severity=Severity.MEDIUM), clears=Severity.MEDIUM)
        assert not self.may(finding(severity=Severity.HIGH), clears=Severity.MEDIUM)

    def test_only_in_that_mode(self) -> None:
        assert not self.may(finding(), mode="manual")
        assert not self.may(finding(), mode="off")

    @pytest.mark.parametrize("category", ["unreadable", "spoof", "self-protection"])
    def test_nothing_that_could_hide_something(self, category: str) -> None:
        assert not self.may(finding(category=category))
        assert not self.may(finding(), unread=True)
        assert not self.may()


def test_a_grant_for_one_tool_is_none_for_another() -> None:
    other_sites = build_tool(
        name="remote_terminal",
        toolset="ssh",
        schema={},
        handler=lambda args: args,
        judged_as={"command": "command"},
    )
    chain = DecisionChain()
    chain.remember(subject_of(FLAGGED, SHELL), SESSION, Answer.SESSION)
    assert chain.decide(subject_of(FLAGGED, other_sites), SESSION) is None


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
def test_no_mode_and_no_earlier_answer_lets_the_floor_a_denied_or_an_unread_command_pass(
    verdict: Verdict, earlier: list[Verdict], mode: Mode, data: st.DataObject
) -> None:
    chain = DecisionChain(mode=mode, allowlist=AllowList([COMMAND]))
    for each in earlier:  # somebody agreed to others of the same words before, in any way that was offered
        before = subject_of(each)
        offered = [answer for answer in chain.offered_answers(before) if answer is not Answer.ALWAYS]
        chain.remember(before, SESSION, data.draw(st.sampled_from(offered)))
    decision = chain.decide(subject_of(verdict), SESSION)
    if verdict.blocked or any(each.rule.startswith("deny:") for each in verdict.findings):
        assert decision is not None
        assert not decision.allowed
    elif verdict.unread:
        assert decision is None
    assert not (chain.can_be_cleared(subject_of(verdict)) and verdict.unread)
