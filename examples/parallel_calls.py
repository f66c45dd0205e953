"""Run several calls of one model reply: in parallel if the tools allow it, with results in order."""

import asyncio

from toolfold import ToolCall, open_runtime, tool

together = asyncio.Barrier(2)


@tool(toolset="shop", parallel=True)
async def price(item: str) -> dict[str, object]:
    """Look up a price."""
    async with asyncio.timeout(5):
        await together.wait()  # continues only if two calls run at the same time
    return {"item": item, "euros": len(item)}


@tool(toolset="shop")
def add_to_basket(item: str) -> str:
    """Put an item into the basket."""
    return f"{item} is in the basket"


async def main() -> None:
    async with open_runtime() as runtime:
        runtime.registry.add_all([price, add_to_basket])
        session = runtime.session(["shop"])
        results = await session.call_all(
            [
                ToolCall("price", {"item": "kettle"}),
                ToolCall("price", {"item": "tea"}),
                ToolCall("add_to_basket", {"item": "tea"}),
            ]
        )
        for result in results:
            print(result.text)


if __name__ == "__main__":
    asyncio.run(main())
