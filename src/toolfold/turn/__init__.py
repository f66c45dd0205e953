"""What the model sees this turn, and what it may call.

`assemble` turns a grant into a Turn, once, before the model is called. Callable is everything granted
and available at that moment; visible is a part of it. The turn does not change while it lasts.
"""

from toolfold.turn.assembly import Turn, assemble, definitions
from toolfold.turn.bridge import unwrap
from toolfold.turn.selection import Selection, select
from toolfold.turn.tokens import count_tokens

__all__ = ["Selection", "Turn", "assemble", "count_tokens", "definitions", "select", "unwrap"]
