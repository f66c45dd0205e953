"""A CrewAI crew whose agent gets the few of 277 tools that fit its task."""

from crewai import LLM, Agent, Crew, Task

from toolfold import open_runtime, sample_catalog
from toolfold.agent.integrations.crewai import make_tools

DESCRIPTION = "Create an invoice for Halden Ltd over 1,200 euros"


def main() -> None:
    with open_runtime(selection="hybrid", top_k=8) as runtime:
        runtime.registry.add_all(sample_catalog())
        agent = Agent(
            role="Clerk",
            goal="Keep the books",
            backstory="Works in accounting.",
            llm=LLM(model="openai/gpt-4o"),
            tools=make_tools(runtime.session(), DESCRIPTION),
        )
        task = Task(description=DESCRIPTION, expected_output="What was done", agent=agent)
        print(Crew(agents=[agent], tasks=[task]).kickoff())


if __name__ == "__main__":
    main()
