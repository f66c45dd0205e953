"""Hooks check every call; a destructive tool runs only with approval."""

from typing import Any

from toolfold import ApprovalRequest, CallContext, Refused, Tool, ToolResult, open_runtime, tool

deleted: list[str] = []


@tool(toolset="notes", effects=["destructive"])
def delete_note(title: str) -> str:
    """Delete a note permanently."""
    deleted.append(title)
    return f"deleted {title}"


def protect_diary(tool: Tool, args: dict[str, Any], context: CallContext) -> None:
    """Raise Refused to refuse, return new arguments to replace them, or None to continue."""
    if args.get("title") == "diary":
        raise Refused("The diary is never deleted.")


def add_session(tool: Tool, args: dict[str, Any], result: ToolResult, context: CallContext) -> dict[str, Any]:
    return {"result": result.value, "by": context.session_id}


def ask(request: ApprovalRequest) -> bool:
    print(f"may {request.tool.name} run with {request.args}? yes")
    return True


def main() -> None:
    with open_runtime() as runtime:
        runtime.registry.add(delete_note)
        runtime.hooks.add("pre_tool_call", protect_diary)
        runtime.hooks.add("post_tool_call", add_session)

        alone = runtime.session(["notes"])
        print(alone.call_sync("delete_note", {"title": "draft"}).error)  # refused: no approver

        attended = runtime.session(["notes"], approver=ask)
        print(attended.call_sync("delete_note", {"title": "diary"}).error)
        print(attended.call_sync("delete_note", {"title": "draft"}).text.split(",")[0])
        print(f"deleted: {deleted}")


if __name__ == "__main__":
    main()
