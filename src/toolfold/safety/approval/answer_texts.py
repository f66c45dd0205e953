"""Explain what each answer to an approval question permits, in the same words wherever a person is asked.

Texts from a call are shortened and have no invisible characters. Secrets are not removed here.
"""

from __future__ import annotations

from toolfold.core.types import Answer, ApprovalRequest
from toolfold.safety.approval.safe_text import make_visible, shorten_middle

ANSWER_LABELS = {
    Answer.ONCE: "Allow once",
    Answer.SESSION: "Allow in this session",
    Answer.KIND: "Allow this kind in this session",
    Answer.ALWAYS: "Always allow",
    Answer.ALWAYS_KIND: "Always allow this kind",
    Answer.DENY: "Refuse",
}
"""Short names of the answers, the narrowest permission first."""
_MEANINGS = {
    Answer.ONCE: "run it this once",
    Answer.SESSION: "run it, and allow {session_covers} in this session",
    Answer.KIND: "run it, and allow every {kinds} in this session",
    Answer.ALWAYS: "run it, and never ask about {covers} again",
    Answer.ALWAYS_KIND: "run it, and never ask about any {kinds} again, in any session",
    Answer.DENY: "do not run it",
}
_MAX_KIND_CHARS = 80
_MAX_COVERS_CHARS = 200


def explain_answer(answer: Answer, request: ApprovalRequest) -> str:
    """Return a text that says which calls an answer to an approval question permits, and for how long."""
    named = (_show_line(each, _MAX_KIND_CHARS) for each in request.kinds)
    return _MEANINGS[answer].format(
        kinds=" or ".join(named) or "command found by the same rules",
        covers=_show_line(request.covers, _MAX_COVERS_CHARS),
        session_covers=make_visible(request.session_covers) or "the same call again",
    )


def _show_line(text: str, limit: int) -> str:
    return " ".join(make_visible(shorten_middle(text, limit)).split())
