"""An agent loop with the `anthropic` package: the model sees the tools that fit the conversation."""

from typing import Any

from anthropic import Anthropic

from toolfold import open_runtime, sample_catalog
from toolfold.agent.integrations.anthropic_sdk import answer_message_sync


def main() -> None:
    client: Any = Anthropic()
    model = "claude-sonnet-4-6"
    with open_runtime(selection="hybrid", top_k=8) as runtime:
        runtime.registry.add_all(sample_catalog())
        session = runtime.session()
        messages: list[Any] = [
            {"role": "user", "content": "Create an invoice for Halden Ltd over 1,200 euros"}
        ]
        while messages[-1]["role"] != "assistant":
            request = session.request(messages, model=model, form="anthropic")
            message = client.messages.create(
                model=model, max_tokens=1000, messages=request.messages, tools=request.tools
            )
            messages += answer_message_sync(session, message)
        print(messages[-1]["content"][0]["text"])


if __name__ == "__main__":
    main()
