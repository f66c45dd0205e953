"""Selection of the tools that a model sees and may call in a turn.

`begin_turn` turns a grant into a Turn, once, before the model is called. Callable is everything that is
granted and available at that moment; visible is a subset. A turn does not change.
"""

from toolfold.turn.answers import BridgeAnswers
from toolfold.turn.assembly import (
    Turn,
    assemble,
    begin_turn,
    copy_definitions,
    render_definitions,
    select_showable,
)
from toolfold.turn.bridge import Bridge, unwrap
from toolfold.turn.conversation import Conversation
from toolfold.turn.disclosure import Disclosure
from toolfold.turn.grant import Grant, GrantCache
from toolfold.turn.planning import plan_turn
from toolfold.turn.selection import Selection, Selector
from toolfold.turn.tokens import count_tokens

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
