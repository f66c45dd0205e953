"""Notes about tools are found again for messages sent earlier, without storing the messages."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfold.core.types import Json
from toolfold.models import DIALECTS, DialectName, get_dialect
from toolfold.selection.turn.notes import Note, Notes

NOTE = Note("<tools>\nsend_mail(to: string)\n</tools>", lines=frozenset({"send_mail"}))
PARTS = st.lists(st.builds(lambda text: {"type": "text", "text": text}, st.text()), max_size=3)
CONTENTS = st.one_of(st.none(), st.text(), PARTS)


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


def circular() -> Json:
    value: Json = {}
    value["itself"] = value
    return value


@given(CONTENTS, st.sampled_from(sorted(DIALECTS)), st.booleans())
def test_message_with_added_tool_descriptions_is_recognised_as_the_original_message(
    content: Any, form: DialectName, is_there: bool
) -> None:
    message = {"role": "user", "name": "ada"} | ({"content": content} if is_there or content else {})
    notes = Notes()
    written = notes.write(notes.read([message]), NOTE, get_dialect(form))
    assert written != [message]
    history = notes.read(written)
    assert history.plain_messages() == [message]
    assert history.newest_note == NOTE
    assert notes.write(history, Note(), get_dialect(form)) == written


def test_memory_use_of_recorded_tool_descriptions_does_not_grow_with_the_size_of_messages() -> None:
    notes = Notes()
    tracemalloc.start()
    try:
        for number in range(20):
            image = {"type": "image_url", "image_url": {"url": f"data:{number}" + "A" * 500_000}}
            notes.write(notes.read([{"role": "user", "content": [image]}]), NOTE, get_dialect("openai"))
            text = f"{number}" + "B" * 500_000
            notes.write(notes.read([{"role": "user", "content": text}]), NOTE, get_dialect("openai"))
        del image, text
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000


@pytest.mark.parametrize(
    "content", [nested(100_000), [circular()], [{(1, 2): 3}]], ids=["deep", "circular", "key"]
)
def test_error_for_a_history_with_a_message_that_is_not_json_names_its_position(content: Any) -> None:
    messages = [{"role": "user", "content": "hello"}, {"role": "tool", "content": content}]
    with pytest.raises(TypeError, match="message 1 "):
        Notes().read(messages)


def test_tool_descriptions_can_be_added_to_a_history_with_numeric_and_text_dict_keys() -> None:
    notes = Notes()
    messages: list[Json] = [
        {"role": "tool", "content": [{1: 2, "a": 3}]},
        {"role": "user", "content": "hello"},
    ]
    written = notes.write(notes.read(messages), NOTE, get_dialect("openai"))
    assert notes.read(messages).newest_note == NOTE
    assert notes.write(notes.read(messages), Note(), get_dialect("openai")) == written
