"""A LangGraph graph whose model sees the tools that fit the conversation."""

import asyncio
from typing import Any

from langchain_openai import ChatOpenAI
from langgraph.graph import END, MessagesState, StateGraph

from toolfold import open_runtime, sample_catalog
from toolfold.agent.integrations.langchain import ToolCallNode, select_definitions


async def main() -> None:
    with open_runtime(selection="hybrid", top_k=8) as runtime:
        runtime.registry.add_all(sample_catalog())
        session, model = runtime.session(), ChatOpenAI(model="gpt-5.1")

        async def call_model(state: MessagesState) -> dict[str, Any]:
            tools = select_definitions(session, state["messages"])
            return {"messages": [await model.bind_tools(tools).ainvoke(state["messages"])]}

        def choose_next(state: MessagesState) -> str:
            return "tools" if state["messages"][-1].tool_calls else END

        graph = StateGraph(MessagesState)
        graph.add_node("model", call_model)
        graph.add_node("tools", ToolCallNode(session))
        graph.set_entry_point("model")
        graph.add_conditional_edges("model", choose_next)
        graph.add_edge("tools", "model")
        message = {"role": "user", "content": "Create an invoice for Halden Ltd over 1,200 euros"}
        print((await graph.compile().ainvoke({"messages": [message]}))["messages"][-1].content)


if __name__ == "__main__":
    asyncio.run(main())
