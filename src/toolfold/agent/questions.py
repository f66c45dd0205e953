"""The `clarify` tool, with which the model asks the user a question.

Knows nothing of terminals and pages: an `Asker` shows the question and returns the answer.
"""

from __future__ import annotations

import logging

from toolfold.core.errors import CallError
from toolfold.core.loops import MAX_CHECK_THREADS, CallTimeout, EventLoops
from toolfold.core.types import Asker, Json, UserQuestion, make_encodable
from toolfold.tools.builtin.agent import NO_ANSWER_ADVICE, NOBODY_CAN_ANSWER

log = logging.getLogger(__name__)

MAX_ANSWER_CHARS = 20_000
_NO_ANSWER = f"The user did not answer. {NO_ANSWER_ADVICE}"
_FAILED = f"The question could not be shown to the user. {NO_ANSWER_ADVICE}"


class UserQuestions:
    """Handler of the `clarify` tool, which asks the user the questions of a session's model."""

    def __init__(self, session_id: str, asker: Asker | None, *, timeout_s: float) -> None:
        self._session_id, self._asker, self._timeout_s = session_id, asker, timeout_s
        self._loops = EventLoops()

    @property
    def can_ask(self) -> bool:
        """Return True if a user can answer the model's questions."""
        return self._asker is not None

    async def run(self, args: Json) -> Json:
        """Ask the user the question of a `clarify` call; return the answer, or why there is none.

        Raises CallError if nobody can be asked.
        """
        if self._asker is None:
            raise CallError(NOBODY_CAN_ANSWER)
        question = UserQuestion(
            text=args["question"], choices=tuple(args.get("choices") or ()), session_id=self._session_id
        )
        try:
            answer = await self._loops.call_with_timeout(
                self._timeout_s, self._asker, question, max_threads=MAX_CHECK_THREADS
            )
        except CallTimeout:
            return {"answer": None, "note": _NO_ANSWER}
        except Exception:
            log.exception("asking the user failed")
            return {"answer": None, "note": _FAILED}
        finally:
            question.withdrawn.set()
        return _describe_answer(answer)


def _describe_answer(answer: object) -> Json:
    if not isinstance(answer, str) or not answer.strip():
        return {"answer": None, "note": _NO_ANSWER}
    text = make_encodable(answer.strip())
    if len(text) <= MAX_ANSWER_CHARS:
        return {"answer": text}
    return {
        "answer": text[:MAX_ANSWER_CHARS],
        "note": f"The answer was cut at {MAX_ANSWER_CHARS:,} characters.",
    }
