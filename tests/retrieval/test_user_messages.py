"""Messages learned from users: private by default, shared within a team only as counts, never as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.retrieval.test_learned_messages import HOURS, QUERY, ROUTE, SWIM, Learner, stored
from toolfold.core.types import Caller
from toolfold.selection.retrieval import learned_store, shared_learned
from toolfold.selection.retrieval.learned_messages import MAX_SHARED_GAIN
from toolfold.selection.retrieval.learned_store import (
    MAX_CLIENT_MESSAGES_PER_TOOL,
    MAX_MESSAGES_PER_TOOL,
    PRIVATE_TEXT,
    open_learned,
)
from toolfold.state.database import open_database
from toolfold.state.users import FileUserStore

SECRET = "is the pool of my clinic in Exampletown open for patients tonight"


@pytest.fixture
def users(tmp_path: Path) -> FileUserStore:
    return FileUserStore(tmp_path / "users.json")


@pytest.fixture
def learner(tmp_path: Path, users: FileUserStore) -> Iterator[Learner]:
    learner = Learner(tmp_path / "learned")
    learner.learned.find_sharing = users.find_sharing
    yield learner
    learner.learned.close()


def add_members(users: FileUserStore, *names: str) -> list[str]:
    """Add users to a team and return their names as learners."""
    users.add_team("red")
    found = []
    for name in names:
        found.append(Caller(name, user_id=users.add_user(name).id).learner)
        users.join_team("red", name)
    return found


def share(users: FileUserStore, shares: bool) -> None:
    from dataclasses import replace

    users.change_team("red", lambda team: replace(team, share_learned=shares))


def test_learned_messages_of_a_user_change_the_ranking_only_for_that_user(
    learner: Learner, users: FileUserStore
) -> None:
    ann, bob, cid, dan = add_members(users, "ann", "bob", "cid", "dan")
    for each in (bob, cid, dan):
        learner.learn(HOURS, *SWIM, client=each)
    assert learner.gain(HOURS, client=bob) > 0
    assert learner.gain(HOURS, client=ann) == 0  # the team does not share
    assert learner.gain(HOURS, client="laptop") == 0  # a token without a user
    assert learner.gain(HOURS, client="") == 0
    for each in ("laptop", "desktop", "phone"):
        learner.learn(ROUTE, *SWIM, client=each)
    assert learner.gain(ROUTE, client=ann) == 0


def test_learned_messages_that_a_team_shares_are_used_only_for_its_members(
    learner: Learner, users: FileUserStore
) -> None:
    ann, bob, cid, dan = add_members(users, "ann", "bob", "cid", "dan")
    eve = Caller("eve", user_id=users.add_user("eve").id).learner
    for each in (bob, cid, dan):
        learner.learn(HOURS, *SWIM, client=each)
    share(users, True)
    assert 0 < learner.gain(HOURS, client=ann) <= MAX_SHARED_GAIN
    assert learner.gain(HOURS, client=eve) == 0
    assert learner.gain(HOURS, client="laptop") == 0
    users.leave_team("red", "ann")
    assert learner.gain(HOURS, client=ann) == 0
    users.join_team("red", "ann")
    share(users, False)
    assert learner.gain(HOURS, client=ann) == 0


def test_message_learned_from_only_one_team_member_does_not_change_search_results_of_other_members(
    learner: Learner, users: FileUserStore
) -> None:
    ann, bob, cid = add_members(users, "ann", "bob", "cid")
    share(users, True)
    learner.learn(HOURS, SECRET, *SWIM, client=bob)
    before = {name: hit.similarity for name, hit in learner.search(SECRET, client="nobody").items()}
    guessed = learner.search(SECRET, client=ann)
    assert {name: hit.similarity for name, hit in guessed.items()} == before
    assert all(hit.learned == 0 for hit in guessed.values())
    learner.learn(HOURS, *SWIM, client=cid)
    assert learner.gain(HOURS, QUERY, client=ann) > 0  # two members agree


def test_text_of_messages_learned_from_users_is_hidden_in_search_results_and_lists(
    learner: Learner, users: FileUserStore
) -> None:
    ann, bob, cid = add_members(users, "ann", "bob", "cid")
    share(users, True)
    for each in (bob, cid):
        learner.learn(HOURS, SECRET, *SWIM, client=each)
    assert "Exampletown" not in str(learner.search(SECRET + " please", client=ann).values())
    found = learner.learned.find(HOURS)
    assert {each.shown_text for each in found} == {PRIVATE_TEXT}
    assert learner.learned.summarize(HOURS).clients == 2


def test_search_for_a_client_named_like_a_user_does_not_use_learned_messages_of_the_user(
    learner: Learner, users: FileUserStore
) -> None:
    (ann,) = add_members(users, "ann")
    learner.learn(HOURS, *SWIM, client=ann)
    impostor = Caller(ann)
    assert impostor.learner != ann
    assert learner.gain(HOURS, client=impostor.learner) == 0


def test_learned_messages_of_a_user_are_not_evicted_by_many_messages_of_other_users(
    learner: Learner, users: FileUserStore
) -> None:
    ann, *attackers = add_members(users, "ann", "bob", "cid", "dan")
    learner.learn(HOURS, *SWIM, client=ann)
    places = ("harbour", "museum", "library", "castle", "theatre", "stadium", "garden", "bakery")
    for each in attackers:
        learner.learn(
            HOURS, *(f"when does the {a} near the {b} open" for a in places for b in places), client=each
        )
    rows = learner.learned.find(HOURS)
    assert sum(row.client == ann for row in rows) == len(SWIM)
    assert len(rows) > MAX_MESSAGES_PER_TOOL
    assert all(sum(row.client == each for row in rows) <= MAX_CLIENT_MESSAGES_PER_TOOL for each in attackers)


@pytest.mark.parametrize("kind", ["file", "database"])
def test_every_user_keeps_some_learned_messages_when_the_store_exceeds_its_total_limit(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    for module in (learned_store, shared_learned):
        monkeypatch.setattr(module, "MAX_LEARNED_MESSAGES", 9)
        monkeypatch.setattr(module, "MAX_TOTALS", 12)
    database = open_database(request.getfixturevalue("database_url")) if kind == "database" else None
    ann, bob, cid, dan = (Caller("x", user_id=each).learner for each in ("ann", "bob", "cid", "dan"))
    with closing(open_learned(tmp_path, database)) as store:
        for number in range(2):
            store.add(stored(ann, f"tool{number}", f"of ann {number}", 1.0 + number), expire_before=0)
        for number in range(20):
            store.add(stored(bob, f"tool{number}", f"of bob {number}", 10.0 + number), expire_before=0)
        assert Counter(each.client for each in store.load()) == {ann: 2, bob: 7}
        for number in range(20):
            store.add(stored(cid, f"tool{number}", f"of cid {number}", 40.0 + number), expire_before=0)
        assert Counter(each.client for each in store.load()) in (
            {ann: 2, bob: 3, cid: 4},
            {ann: 2, bob: 4, cid: 3},
        )
        for number in range(20):
            store.add(stored(dan, f"tool{number}", f"of dan {number}", 70.0 + number), expire_before=0)
        left = Counter(each.client for each in store.load())
        assert left[ann] == 2
        assert sum(left.values()) == 9
        assert max(left.values()) == 3
        totals = Counter(client for client, _, _ in store.load_totals())
        assert sum(totals.values()) <= 12
        assert min(totals[each] for each in (ann, bob, cid, dan)) >= 2
    if database is not None:
        database.close()


def test_learned_messages_of_a_team_are_not_used_while_the_users_file_is_damaged(
    learner: Learner, tmp_path: Path
) -> None:
    users = FileUserStore(tmp_path / "users.json")
    ann, bob, cid = add_members(users, "ann", "bob", "cid")
    share(users, True)
    for each in (bob, cid):
        learner.learn(HOURS, *SWIM, client=each)
    assert learner.gain(HOURS, client=ann) > 0
    (tmp_path / "users.json").write_text("damaged")
    assert learner.gain(HOURS, client=ann) == 0
