"""Judge commands before they run; risky ones wait in a queue for a web page, a bot or a gateway."""

import asyncio

from toolfold import Answer, ApprovalQueue, open_runtime, tool

ran: list[str] = []


@tool(toolset="shell", effects=["execute"], judged_as={"command": "command"}, parallel=True)
def shell(command: str) -> str:
    """Record a command instead of running it."""
    ran.append(command)
    return "done"


async def page(queue: ApprovalQueue) -> None:
    """Act like a web page: list the pending questions and answer them."""
    answers = {"rm -rf drafts": Answer.SESSION, "git push --force": Answer.DENY}
    while True:
        for question in queue.pending():
            shown = question.as_json()
            answer = answers[question.request.command]
            print(f"{shown['command']}: {shown['reason']} ({shown['severity']}) -> {answer.value}")
            queue.answer(question.id, answer)
        await asyncio.sleep(0.01)


async def main() -> None:
    queue = ApprovalQueue()
    with open_runtime(approver=queue) as runtime:
        runtime.registry.add(shell)
        session = runtime.session(["shell"])
        answering = asyncio.create_task(page(queue))
        for command in ("ls -la", "rm -rf drafts", "rm  -rf 'drafts'", "git push --force", "rm -rf /"):
            result = await session.call("shell", {"command": command})
            print(f"{command}: {'ran' if result.ok else 'did not run'}")
        answering.cancel()
    print(f"ran: {ran}")


if __name__ == "__main__":
    asyncio.run(main())
