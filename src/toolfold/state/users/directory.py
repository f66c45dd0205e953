"""Immutable snapshot of all users and teams, and the validity checks for changes.

Knows nothing of files and databases.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from toolfold.core.errors import ConfigError, UnknownAccount, closest_names
from toolfold.core.naming import matches_pattern
from toolfold.core.types import GrantLimit, Json

MAX_USERS = 100_000
MAX_TEAMS = 10_000
MAX_RULES = 1_000
"""Most rules of one user or team."""
MAX_RULE_CHARS = 300
MODEL_RULE, KEY_RULE = "model:", "key:"
"""Start of rules about models, and about the configured keys of model providers; all others concern tools."""
RULE_PREFIXES = ("server:", "tool:", MODEL_RULE, KEY_RULE)
Meter = Literal["calls_per_minute", "calls_per_day", "searches_per_minute", "tokens_per_day", "cost_per_day"]
METERS: dict[Meter, str] = {
    "calls_per_minute": "calls per minute",
    "calls_per_day": "calls per day",
    "searches_per_minute": "tool searches per minute",
    "tokens_per_day": "tokens per day",
    "cost_per_day": "dollars per day",
}
"""What can be limited, as text."""
MAX_LIMIT = 1e12
DENIED_BY_DEFAULT = "gateway.default_access is deny"
NOTHING = GrantLimit(enabled=())
"""A grant of no tools."""
MAX_IDENTITY_CHARS = 1_000
"""Longest issuer or subject of an external identity."""
_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@+-]{0,127}")


@dataclass(frozen=True, slots=True)
class User:
    """A person or service that uses the gateway with one or more tokens or logins."""

    id: str
    """Random id that is never reused, so that a new user of the same name gets no rights of a removed one."""
    name: str
    issuer: str = ""
    """URL of the identity provider at which the user logs in; empty if there is none."""
    subject: str = ""
    """The user's permanent identifier at the identity provider."""
    is_admin: bool = False
    is_disabled: bool = False
    created: float = 0.0
    allowed: tuple[str, ...] = ()
    """Toolsets, `server:NAME`, `tool:NAME`, `model:PATTERN` and `key:PROVIDER` that the user may use."""
    denied: tuple[str, ...] = ()
    """What the user may not use, even if another rule allows it."""
    limits: Mapping[Meter, float] = field(default_factory=dict)
    """Limits on calls, searches, tokens and cost of the user."""


@dataclass(frozen=True, slots=True)
class Team:
    """A named group of users."""

    name: str
    members: frozenset[str] = frozenset()
    """Ids of the users who are members."""
    share_learned: bool = False
    """True if messages that tool search learns from one member are used for all members."""
    created: float = 0.0
    allowed: tuple[str, ...] = ()
    """What members may use, in addition to what is allowed elsewhere."""
    denied: tuple[str, ...] = ()
    """What members may not use, even if another rule allows it."""
    limits: Mapping[Meter, float] = field(default_factory=dict)
    """Limits on calls, searches, tokens and cost of all members together."""


@dataclass(frozen=True)
class Directory:
    """Immutable snapshot of all users and teams; methods for changes return a new snapshot."""

    users: Mapping[str, User] = field(default_factory=dict)
    """All users by id."""
    teams: Mapping[str, Team] = field(default_factory=dict)
    """All teams by name."""
    denies_by_default: bool = False
    """True if a user may use nothing that no rule allows (`gateway.default_access: deny`)."""

    def find_user(self, name: str) -> User | None:
        """Return the user with this name; None if the user does not exist."""
        return self._users_by_name.get(name)

    def find_identity(self, issuer: str, subject: str) -> User | None:
        """Return the user with this identity at an identity provider, even if the user is disabled."""
        return self._users_by_identity.get((issuer, subject)) if issuer and subject else None

    def find_active(self, user_id: str) -> User | None:
        """Return the user with this id; None if the user was removed or disabled."""
        user = self.users.get(user_id)
        return None if user is None or user.is_disabled else user

    def list_teams(self, user_id: str) -> tuple[Team, ...]:
        """Return the teams of a user, sorted by name."""
        return self._teams_by_member.get(user_id, ())

    def list_levels(self, user_id: str) -> list[tuple[str, User | Team]]:
        """Return the user and the user's teams, each with a label; the rules of all apply to the user."""
        user = self.users[user_id]
        teams = [(f"team {each.name}", each) for each in self.list_teams(user_id)]
        return [(f"user {user.name}", user), *teams]

    def find_limit(self, user_id: str) -> GrantLimit:
        """Return the limit on a user's tools, set by the allow and deny rules of the user and its teams.

        Without a rule that allows tools that is everything, or nothing if access is denied by default. A
        removed or disabled user may use nothing.
        """
        user = self.find_active(user_id)
        if user is None:
            return NOTHING
        levels = [each for _, each in self.list_levels(user_id)]
        allowed = sorted({rule for each in levels for rule in select_tool_rules(each.allowed)})
        denied = sorted({rule for each in levels for rule in select_tool_rules(each.denied)})
        enabled = tuple(allowed) if allowed or self.denies_by_default else None
        return GrantLimit(enabled, tuple(denied))

    def find_model_rules(self, user_id: str, kind: str) -> GrantLimit:
        """Return the model or key rules that apply to a user; `kind` is MODEL_RULE or KEY_RULE.

        No list of allowed ones means that all may be used.
        """
        if self.find_active(user_id) is None:
            return NOTHING
        levels = [each for _, each in self.list_levels(user_id)]
        allowed = sorted({rule for each in levels for rule in each.allowed if rule.startswith(kind)})
        denied = sorted({rule for each in levels for rule in each.denied if rule.startswith(kind)})
        has_list = allowed or (self.denies_by_default and kind == MODEL_RULE)
        return GrantLimit(tuple(allowed) if has_list else None, tuple(denied))

    def limits_models(self, user_id: str) -> bool:
        """Return True if rules restrict the models or provider keys that a user may use."""
        if self.find_active(user_id) is None or self.denies_by_default:
            return True
        rules = (rule for _, each in self.list_levels(user_id) for rule in (*each.allowed, *each.denied))
        return any(rule.startswith((MODEL_RULE, KEY_RULE)) for rule in rules)

    def explain_model_refusal(self, user_id: str, model: str, provider: str = "") -> str:
        """Return why a user may not use a model; empty if the user may use it.

        `provider` is the one whose configured key would be used; empty if the client sends its own key.
        """
        if self.find_active(user_id) is None:
            return "its user was removed or is disabled"
        reason = self.explain_rules(user_id, MODEL_RULE, model)
        return reason or (self.explain_key_refusal(user_id, provider) if provider else "")

    def explain_key_refusal(self, user_id: str, provider: str) -> str:
        """Return why a user may not use the configured key of a provider; empty if the user may use it."""
        if self.find_active(user_id) is None:
            return "its user was removed or is disabled"
        return self.explain_rules(user_id, KEY_RULE, provider)

    def explain_rules(self, user_id: str, kind: str, name: str) -> str:
        """Return why the rules deny a user a model or provider key; empty if they allow it."""
        levels = self.list_levels(user_id)
        for level, each in levels:
            if rule := _find_match(each.denied, kind, name):
                return f"{level} denies {rule}"
        if any(_find_match(each.allowed, kind, name) for _, each in levels):
            return ""
        lists = [level for level, each in levels if any(rule.startswith(kind) for rule in each.allowed)]
        if lists:
            return f"no rule allows {kind}{name} ({', '.join(lists)} may use only what is allowed)"
        is_denied = self.denies_by_default and kind == MODEL_RULE
        return f"no rule allows {kind}{name} ({DENIED_BY_DEFAULT})" if is_denied else ""

    def list_sharing(self, user_id: str) -> frozenset[str]:
        """Return the ids of team members whose learned messages are also used in this user's tool search."""
        teams = [each for each in self.list_teams(user_id) if each.share_learned]
        return frozenset[str]().union(*(each.members for each in teams)) - {user_id}

    def require_user(self, name: str) -> User:
        """Return the user with this name. Raises UnknownAccount."""
        user = self.find_user(name)
        if user is None:
            raise UnknownAccount("user", name, closest_names(name, self._users_by_name))
        return user

    def require_team(self, name: str) -> Team:
        """Return the team with this name. Raises UnknownAccount."""
        team = self.teams.get(name)
        if team is None:
            raise UnknownAccount("team", name, closest_names(name, self.teams))
        return team

    def with_new_user(self, user: User) -> Directory:
        """Return a copy with a new user. Raises ConfigError if the name or identity is invalid or taken."""
        _require_valid_name("user", user.name)
        if self.find_user(user.name):
            raise ConfigError(
                f"a user named {user.name!r} already exists",
                hint="choose another name, or change that user: `toolfold user set`, `toolfold user enable`",
            )
        if len(self.users) >= MAX_USERS:
            raise ConfigError(
                f"there are already {MAX_USERS:,} users, which is the limit", hint="remove some"
            )
        return self.with_user(user)

    def with_user(self, user: User) -> Directory:
        """Return a copy with a user added or replaced. Raises ConfigError if the user's data are invalid."""
        require_valid_rules((*user.allowed, *user.denied))
        _require_valid_limits(user.limits)
        _require_valid_identity(user)
        known = self.find_identity(user.issuer, user.subject)
        if known is not None and known.id != user.id:
            raise ConfigError(
                f"the subject {user.subject!r} of {user.issuer} already belongs to the user {known.name!r}",
                hint=f"change the identity of that user first: toolfold user set {known.name} --issuer "
                "URL --subject ID",
            )
        return replace(self, users={**self.users, user.id: user})

    def without_user(self, user_id: str) -> Directory:
        """Return a copy without a user, also in the teams."""
        users = {key: each for key, each in self.users.items() if key != user_id}
        teams = {key: replace(each, members=each.members - {user_id}) for key, each in self.teams.items()}
        return replace(self, users=users, teams=teams)

    def with_new_team(self, team: Team) -> Directory:
        """Return a copy with a new team. Raises ConfigError if the name is invalid or already used."""
        _require_valid_name("team", team.name)
        if team.name in self.teams:
            raise ConfigError(f"a team named {team.name!r} already exists", hint="choose another name")
        if len(self.teams) >= MAX_TEAMS:
            raise ConfigError(
                f"there are already {MAX_TEAMS:,} teams, which is the limit", hint="remove some"
            )
        return self.with_team(team)

    def with_team(self, team: Team) -> Directory:
        """Return a copy with a team added or replaced. Raises ConfigError if a rule or limit is invalid."""
        require_valid_rules((*team.allowed, *team.denied))
        _require_valid_limits(team.limits)
        return replace(self, teams={**self.teams, team.name: team})

    def without_team(self, name: str) -> Directory:
        """Return a copy without a team; the team's members remain users."""
        return replace(self, teams={key: each for key, each in self.teams.items() if key != name})

    @functools.cached_property
    def _users_by_name(self) -> dict[str, User]:
        return {each.name: each for each in self.users.values()}

    @functools.cached_property
    def _users_by_identity(self) -> dict[tuple[str, str], User]:
        return {(each.issuer, each.subject): each for each in self.users.values() if each.subject}

    @functools.cached_property
    def _teams_by_member(self) -> dict[str, tuple[Team, ...]]:
        found: dict[str, list[Team]] = {}
        for name in sorted(self.teams):
            for member in self.teams[name].members:
                found.setdefault(member, []).append(self.teams[name])
        return {member: tuple(teams) for member, teams in found.items()}


def select_tool_rules(rules: Iterable[str]) -> list[str]:
    """Return the rules about toolsets, servers and tools."""
    return [rule for rule in rules if not rule.startswith((MODEL_RULE, KEY_RULE))]


def _find_match(rules: Iterable[str], kind: str, name: str) -> str:
    """Return the first rule of this kind whose pattern matches the name, ignoring case; empty if none."""
    return next(
        (rule for rule in rules if rule.startswith(kind) and matches_pattern(name, rule.removeprefix(kind))),
        "",
    )


def user_to_json(user: User) -> Json:
    """Convert a user to JSON, without the id."""
    return {
        "name": user.name,
        "issuer": user.issuer,
        "subject": user.subject,
        "admin": user.is_admin,
        "disabled": user.is_disabled,
        "created": user.created,
        "allowed": list(user.allowed),
        "denied": list(user.denied),
        "limits": dict(user.limits),
    }


def user_from_json(user_id: str, value: Mapping[str, Any]) -> User:
    """Read a user from JSON. Raises KeyError, TypeError or ValueError if the JSON is invalid."""
    return User(
        user_id,
        str(value["name"]),
        str(value["issuer"]),
        str(value["subject"]),
        _read_flag(value, "admin"),
        _read_flag(value, "disabled"),
        float(value["created"]),
        _read_rules(value, "allowed"),
        _read_rules(value, "denied"),
        _read_limits(value),
    )


def team_to_json(team: Team) -> Json:
    """Convert a team to JSON, without its name."""
    return {
        "members": sorted(team.members),
        "share_learned": team.share_learned,
        "created": team.created,
        "allowed": list(team.allowed),
        "denied": list(team.denied),
        "limits": dict(team.limits),
    }


def team_from_json(name: str, value: Mapping[str, Any]) -> Team:
    """Read a team from JSON. Raises KeyError, TypeError or ValueError if the JSON is invalid."""
    members = frozenset(map(str, value["members"]))
    return Team(
        name,
        members,
        _read_flag(value, "share_learned"),
        float(value["created"]),
        _read_rules(value, "allowed"),
        _read_rules(value, "denied"),
        _read_limits(value),
    )


def _read_flag(value: Mapping[str, Any], key: str) -> bool:
    flag = value[key]
    if not isinstance(flag, bool):  # "no" must not become True
        raise TypeError(f"{key} must be true or false")
    return flag


def require_valid_rules(rules: Sequence[str]) -> None:
    """Raise ConfigError if there are too many rules or a rule has no name."""
    if len(rules) > MAX_RULES:
        raise ConfigError(
            f"more than {MAX_RULES:,} rules",
            hint="combine tools into a toolset with the setting toolsets.NAME",
        )
    for rule in rules:
        name = rule.partition(":")[2] if rule.startswith(RULE_PREFIXES) else rule
        # A model or key rule with a space would never match, and so deny nothing.
        has_space = rule.startswith((MODEL_RULE, KEY_RULE)) and " " in rule
        if not name or has_space or len(rule) > MAX_RULE_CHARS or not rule.isprintable():
            raise ConfigError(
                f"{rule!r} is no rule",
                hint="write the name of a toolset, server:NAME, tool:NAME, model:PATTERN or key:PROVIDER, "
                "without spaces in patterns and names of providers",
            )


def _read_rules(value: Mapping[str, Any], key: str) -> tuple[str, ...]:
    rules = value.get(key, ())
    if not isinstance(rules, list | tuple) or not all(isinstance(each, str) for each in rules):
        raise TypeError(f"{key} must be a list of names")
    return tuple(rules)


def _read_limits(value: Mapping[str, Any]) -> dict[Meter, float]:
    limits = value.get("limits", {})
    return {meter: float(limits[meter]) for meter in METERS if meter in limits}


def _require_valid_limits(limits: Mapping[Meter, float]) -> None:
    for meter, limit in limits.items():
        if meter not in METERS or not 0 <= limit <= MAX_LIMIT:
            raise ConfigError(
                f"{limit:g} is not a valid limit of {meter}", hint=f"use a number from 0 to {MAX_LIMIT:,.0f}"
            )


def _require_valid_name(kind: str, name: str) -> None:
    if not _NAME_PATTERN.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be the name of a {kind}",
            hint="a name has up to 128 letters, digits, -, _, ., @ and +, and starts with a letter or digit",
        )


def _require_valid_identity(user: User) -> None:
    if bool(user.issuer) != bool(user.subject):
        raise ConfigError(
            "an external identity needs both an issuer and a subject",
            hint="give --issuer URL and --subject ID; the subject is the claim `sub` of the user's tokens."
            " The gateway's log names issuer and subject of each login that it refuses (docs/logins.md)",
        )
    for text in (user.issuer, user.subject):
        if len(text) > MAX_IDENTITY_CHARS or not text.isprintable():
            raise ConfigError(
                f"the issuer and the subject of {user.name!r} must be at most {MAX_IDENTITY_CHARS:,}"
                " printable characters"
            )
