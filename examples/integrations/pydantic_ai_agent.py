"""A Pydantic AI agent with 277 tools, whose model sees the few that fit the message."""

from pydantic_ai import Agent

from toolfold import open_runtime, sample_catalog
from toolfold.agent.integrations.pydantic_ai import ToolfoldTools


def main() -> None:
    with open_runtime(selection="hybrid", top_k=8) as runtime:
        runtime.registry.add_all(sample_catalog())
        agent = Agent("openai-chat:gpt-5.1", capabilities=[ToolfoldTools(runtime.session())])
        print(agent.run_sync("Create an invoice for Halden Ltd over 1,200 euros").output)


if __name__ == "__main__":
    main()
