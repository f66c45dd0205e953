"""Selection of the tools that a model sees and may call in a turn.

`begin_turn` turns a grant into a Turn, once, before the model is called. Callable is everything that is
granted and available at that moment; visible is a subset. A turn does not change.
"""

from toolfold.selection.turn.answers import BridgeAnswers
from toolfold.selection.turn.assembly import (
    Turn,
    assemble,
    begin_turn,
    copy_definitions,
    render_definitions,
    select_showable,
)
from toolfold.selection.turn.bridge import Bridge, unwrap
from toolfold.selection.turn.disclosure import Disclosure
from toolfold.selection.turn.grant import Grant, GrantCache
from toolfold.selection.turn.planning import plan_turn
from toolfold.selection.turn.recent_messages import Conversation
from toolfold.selection.turn.selection import Selection, Selector
from toolfold.selection.turn.tokens import count_tokens

__all__ = [
    "Bridge",
    "BridgeAnswers",
    "Conversation",
    "Disclosure",
    "Grant",
    "GrantCache",
    "Selection",
    "Selector",
    "Turn",
    "assemble",
    "begin_turn",
    "copy_definitions",
    "count_tokens",
    "plan_turn",
    "render_definitions",
    "select_showable",
    "unwrap",
]
