"""Plan a turn: decide how tools are shown to the model, select tools for the message, and show them."""

from __future__ import annotations

from dataclasses import replace

from toolfold.selection.turn.assembly import Turn
from toolfold.selection.turn.disclosure import Disclosure
from toolfold.selection.turn.grant import Grant
from toolfold.selection.turn.recent_messages import Conversation
from toolfold.selection.turn.selection import BRIDGE, Selector


def plan_turn(
    grant: Grant,
    available: Turn,
    conversation: Conversation,
    *,
    disclosure: Disclosure,
    selector: Selector,
    context_tokens: int | None = None,
    client: str = "",
    is_incomplete: bool = False,
) -> Turn:
    """Return the turn with the tools that the model sees for a conversation, and why.

    `available` has all tools that are granted and work now. `client` is whose use of tools the ranking
    learns from. `is_incomplete` means that the tools of a server are not known yet.
    """
    decision = disclosure.decide(grant, available, context_tokens, is_incomplete=is_incomplete)
    if not decision.selects or not conversation.user_texts:
        return disclosure(grant, available, decision)
    selection = selector(grant, available, conversation, client=client)
    if selection.leg == BRIDGE:
        decision = disclosure.decide_forced(grant, available)
    chosen = [*(tool.name for tool in selector.pinned(grant)), *selection.names]
    return disclosure(grant, replace(available, selection=selection), decision, chosen)
