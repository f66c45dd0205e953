"""A LlamaIndex agent with 277 tools, whose model sees the few that fit the message."""

import asyncio
import os

from llama_index.llms.openai import OpenAI

from toolfold import open_runtime, sample_catalog
from toolfold.agent.integrations.llamaindex import SelectingAgent


async def main() -> None:
    with open_runtime(selection="hybrid", top_k=8) as runtime:
        runtime.registry.add_all(sample_catalog())
        llm = OpenAI(model="gpt-5.1", api_base=os.environ.get("OPENAI_BASE_URL"))
        agent = SelectingAgent(session=runtime.session(), llm=llm)
        print(await agent.run("Create an invoice for Halden Ltd over 1,200 euros"))


if __name__ == "__main__":
    asyncio.run(main())
