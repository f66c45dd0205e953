"""What the model sees this turn, and what it may call.

`assemble` turns a grant into a Turn, once, before the model is called. Callable is everything granted
and available at that moment; visible is a part of it. The turn does not change while it lasts.
"""

from toolfold.turn.answers import Answers
from toolfold.turn.assembly import Turn, assemble, begin, definitions, showable
from toolfold.turn.bridge import Bridge, unwrap
from toolfold.turn.conversation import Conversation
from toolfold.turn.disclosure import Disclosure
from toolfold.turn.grant import Grant, Grants
from toolfold.turn.selection import Selection, Selector
from toolfold.turn.tokens import count_tokens

__all__ = [
    "Answers",
    "Bridge",
    "Conversation",
    "Disclosure",
    "Grant",
    "Grants",
    "Selection",
    "Selector",
    "Turn",
    "assemble",
    "begin",
    "count_tokens",
    "definitions",
    "showable",
    "unwrap",
]
