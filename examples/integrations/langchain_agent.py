"""A LangChain agent with 277 tools, whose model sees the few that fit the message."""

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

from toolfold import load_config, open_runtime, sample_catalog
from toolfold.integrations.langchain import ToolfoldMiddleware


def main() -> None:
    config = load_config(overrides=["tools.selection=hybrid", "tools.rag_top_k=8"])
    with open_runtime(config) as runtime:
        runtime.registry.add_all(sample_catalog())
        agent = create_agent(ChatOpenAI(model="gpt-5.1"), middleware=[ToolfoldMiddleware(runtime.session())])
        message = {"role": "user", "content": "Create an invoice for Halden Ltd over 1,200 euros"}
        print(agent.invoke({"messages": [message]})["messages"][-1].content)


if __name__ == "__main__":
    main()
