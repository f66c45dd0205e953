"""The users page adds and changes users and teams; who may use more is confirmed on a page of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.dashboard.harness import DashboardProcess
from tests.dashboard.test_access import Visitor
from tests.dashboard.test_confirmations import Page, find_token
from toolfold.config.record import SettingsRecord
from toolfold.core.types import Json
from toolfold.state.users import USERS_FILE, FileUserStore


@pytest.fixture
def page(dashboard: DashboardProcess) -> Iterator[Page]:
    found = Page(dashboard)
    yield found
    found.http.close()


@pytest.fixture
def users(dashboard: DashboardProcess) -> FileUserStore:
    """The users as other processes see them."""
    state = dashboard.home / "state"
    return FileUserStore(state / "gateway" / USERS_FILE, SettingsRecord(state))


def list_users(page: Page) -> dict[str, Json]:
    found = page.http.get("/ui/api/users")
    assert found.status_code == 200, found.text
    return {each["name"]: each for each in found.json()["users"]}


def confirm(page: Page, address: str) -> str:
    """Confirm a proposed change, and return the text of its page."""
    text = page.show(address)
    assert page.confirm(address, find_token(text)).status_code == 303
    return text


def test_user_is_added_and_made_an_administrator_only_after_a_confirmation(page: Page) -> None:
    address = page.propose("users/add", name="dana")
    assert "dana" not in list_users(page)
    confirm(page, address)
    assert not list_users(page)["dana"]["is_admin"]
    address = page.propose("users/change", name="dana", change="admin")
    assert not list_users(page)["dana"]["is_admin"]
    confirm(page, address)
    assert list_users(page)["dana"]["is_admin"]
    assert page.post("users/change", {"name": "dana", "change": "no-admin"}).status_code == 200
    assert not list_users(page)["dana"]["is_admin"]


def test_user_is_disabled_at_once_and_enabled_after_a_confirmation(page: Page) -> None:
    confirm(page, page.propose("users/add", name="eve"))
    assert page.post("users/change", {"name": "eve", "change": "disable"}).status_code == 200
    assert list_users(page)["eve"]["is_disabled"]
    address = page.propose("users/change", name="eve", change="enable")
    assert list_users(page)["eve"]["is_disabled"]
    confirm(page, address)
    assert not list_users(page)["eve"]["is_disabled"]


def test_confirmation_of_a_new_team_member_shows_what_the_user_may_use_afterwards(
    page: Page, users: FileUserStore
) -> None:
    confirm(page, page.propose("users/add", name="finn"))
    users.add_team("readers")
    users.change_team("readers", lambda team: replace(team, allowed=("server:notes",)))
    address = page.propose("teams/change", team="readers", user="finn", change="join")
    assert list_users(page)["finn"]["teams"] == []
    assert "finn may use only server:notes from now on" in confirm(page, address)
    found = list_users(page)["finn"]
    assert (found["teams"], found["may_use"]["allowed"]) == (["readers"], ["server:notes"])


def test_change_of_a_team_is_refused_if_its_rules_have_changed_since_the_proposal(
    page: Page, users: FileUserStore
) -> None:
    confirm(page, page.propose("users/add", name="gus"))
    users.add_team("writers")
    address = page.propose("teams/change", team="writers", user="gus", change="join")
    token = find_token(page.show(address))
    users.change_team("writers", lambda team: replace(team, allowed=("all",)))
    response = page.confirm(address, token)
    assert response.status_code == 409
    assert "Repeat the change" in response.text
    assert list_users(page)["gus"]["teams"] == []


def test_token_of_a_user_is_shown_with_the_user_and_removed_with_the_user(page: Page) -> None:
    confirm(page, page.propose("users/add", name="hana"))
    address = page.propose("clients/add", name="hana-laptop", user="hana")
    text = page.show(address)
    assert "hana" in text
    assert "tf_" in page.confirm(address, find_token(text)).text
    (client,) = page.http.get("/ui/api/clients").json()["clients"]
    assert (client["name"], client["user"]) == ("hana-laptop", "hana")
    assert list_users(page)["hana"]["tokens"] == ["hana-laptop"]
    assert page.post("users/change", {"name": "hana", "change": "remove"}).status_code == 200
    assert "hana" not in list_users(page)
    assert page.http.get("/ui/api/clients").json()["clients"] == []


def test_users_are_shown_and_changed_only_after_signing_in(dashboard: DashboardProcess) -> None:
    stranger = Visitor(dashboard)
    assert stranger.http.get("/ui/api/users").status_code == 401
    for path in ("users/add", "users/change", "teams/change"):
        assert stranger.post(path, {"name": "mallory", "change": "remove"}).status_code == 401
    stranger.http.close()
