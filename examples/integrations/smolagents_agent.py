"""A smolagents agent with 277 tools, whose model sees the few that fit the message."""

import os

from smolagents import OpenAIServerModel, ToolCallingAgent

from toolfold import open_runtime, sample_catalog
from toolfold.agent.integrations.smolagents import SelectingModel, make_tools


def main() -> None:
    with open_runtime(selection="hybrid", top_k=8) as runtime:
        runtime.registry.add_all(sample_catalog())
        session = runtime.session()
        model = OpenAIServerModel("gpt-5.1", api_base=os.environ.get("OPENAI_BASE_URL"))
        agent = ToolCallingAgent(make_tools(session), SelectingModel(model, session), verbosity_level=0)
        print(agent.run("Create an invoice for Halden Ltd over 1,200 euros"))


if __name__ == "__main__":
    main()
