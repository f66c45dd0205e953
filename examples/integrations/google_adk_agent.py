"""An agent of Google's ADK with 277 tools, whose model sees the few that fit the message."""

import asyncio

from google.adk.agents import LlmAgent
from google.adk.runners import InMemoryRunner

from toolfold import open_runtime, sample_catalog
from toolfold.agent.integrations.google_adk import ToolfoldToolset


async def main() -> None:
    with open_runtime(selection="hybrid", top_k=8) as runtime:
        runtime.registry.add_all(sample_catalog())
        toolset = ToolfoldToolset(runtime.session())
        agent = LlmAgent(name="clerk", model="gemini-2.5-flash", tools=[toolset])
        events = await InMemoryRunner(agent).run_debug(
            "Create an invoice for Halden Ltd over 1,200 euros", quiet=True
        )
        print(events[-1].content.parts[0].text)


if __name__ == "__main__":
    asyncio.run(main())
