"""Describe which tools users gain or lose by a change of rules, teams or team members."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from toolfold.state.users.directory import KEY_RULE, MODEL_RULE

if TYPE_CHECKING:
    from toolfold.core.types import GrantLimit
    from toolfold.state.users.directory import Directory


def describe_access_changes(before: Directory, after: Directory) -> list[tuple[str, list[str]]]:
    """Return the users who may use more or less than before, each with phrases that say what."""
    every = (
        (after.users[key].name, _describe_changes(key, before, after))
        for key in before.users
        if key in after.users
    )
    return sorted((name, texts) for name, texts in every if texts)


def _describe_changes(user_id: str, before: Directory, after: Directory) -> list[str]:
    """Return phrases that say which tools, models and keys of model providers a user has gained or lost."""
    found = list(describe_access_change(before.find_limit(user_id), after.find_limit(user_id)))
    for kind, everything in ((MODEL_RULE, "every model"), (KEY_RULE, "every key of a provider")):
        rules = before.find_model_rules(user_id, kind), after.find_model_rules(user_id, kind)
        found += describe_access_change(*rules, everything=everything)
    return found


def describe_access_change(
    before: GrantLimit, after: GrantLimit, *, everything: str = "everything"
) -> Iterator[str]:
    """Yield a phrase for each right that a user has gained or lost, such as `may also use web`."""
    old, new = before.enabled, after.enabled
    if old is None and new is not None:
        usable = set(new) - set(after.disabled)  # a denial wins over the same rule that allows
        only = f"only {_join(usable)}" if usable else "nothing"
        yield f"may use {only} from now on (before: {everything} that is not denied)"
    elif old is not None and new is None:
        yield f"may use {everything} that is not denied from now on (before: only {_join(old)})"
    elif old is not None and new is not None:
        if added := set(new) - set(old) - set(after.disabled):
            yield f"may also use {_join(added)}"
        if removed := set(old) - set(new):
            yield f"may no longer use {_join(removed)}, unless another rule allows it"
    if denied := set(after.disabled) - set(before.disabled):
        yield f"is denied {_join(denied)}"
    if free := set(before.disabled) - set(after.disabled):
        yield f"is no longer denied {_join(free)}"


def _join(rules: Iterable[str]) -> str:
    return ", ".join(sorted(rules)) or "nothing"
