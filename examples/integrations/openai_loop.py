"""An agent loop with the `openai` package: the model sees the tools that fit the conversation."""

from typing import Any

from openai import OpenAI

from toolfold import open_runtime, sample_catalog
from toolfold.agent.integrations.openai_sdk import answer_chat_sync


def main() -> None:
    client: Any = OpenAI()
    with open_runtime(selection="hybrid", top_k=8) as runtime:
        runtime.registry.add_all(sample_catalog())
        session = runtime.session()
        messages: list[Any] = [
            {"role": "user", "content": "Create an invoice for Halden Ltd over 1,200 euros"}
        ]
        while messages[-1]["role"] != "assistant":
            request = session.request(messages, model="gpt-5.1")
            completion = client.chat.completions.create(
                model="gpt-5.1", messages=request.messages, tools=request.tools
            )
            messages += answer_chat_sync(session, completion)
        print(messages[-1]["content"])


if __name__ == "__main__":
    main()
