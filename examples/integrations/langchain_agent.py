"""A LangChain agent with 277 tools, whose model sees the few that fit the message."""

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

from toolfold import open_runtime, sample_catalog
from toolfold.agent.integrations.langchain import ToolfoldMiddleware


def main() -> None:
    with open_runtime(selection="hybrid", top_k=8) as runtime:
        runtime.registry.add_all(sample_catalog())
        agent = create_agent(ChatOpenAI(model="gpt-5.1"), middleware=[ToolfoldMiddleware(runtime.session())])
        message = {"role": "user", "content": "Create an invoice for Halden Ltd over 1,200 euros"}
        print(agent.invoke({"messages": [message]})["messages"][-1].content)


if __name__ == "__main__":
    main()
