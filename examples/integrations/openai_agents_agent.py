"""An agent of the OpenAI Agents SDK with 277 tools, whose model sees the few that fit the message."""

from agents import Agent, Runner, set_tracing_disabled

from toolfold import open_runtime, sample_catalog
from toolfold.agent.integrations.openai_agents import add_tools


def main() -> None:
    set_tracing_disabled(True)
    with open_runtime(selection="hybrid", top_k=8) as runtime:
        runtime.registry.add_all(sample_catalog())
        agent = add_tools(Agent(name="Clerk", model="gpt-5.1"), runtime.session())
        print(Runner.run_sync(agent, "Create an invoice for Halden Ltd over 1,200 euros").final_output)


if __name__ == "__main__":
    main()
