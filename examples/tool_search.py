"""Find a tool among hundreds as a model does, call it, and show the error of an invalid call."""

import json

from toolfold import count_tokens, open_runtime, sample_catalog


def main() -> None:
    # The small model is enough here, and the search waits until all tools are embedded.
    settings = {"tools.rag_embed_model": "light", "tools.patience_seconds": 60}
    with open_runtime(settings=settings) as runtime:
        runtime.registry.add_all(sample_catalog())  # 277 tools of 22 fictional services
        session = runtime.session(context_tokens=200_000)  # context window of the session's model

        shown = session.definitions()
        everything = runtime.get_tool_definitions(quiet_mode=True)
        print(f"{count_tokens(shown):,} tokens instead of {count_tokens(everything):,}")
        print([definition["function"]["name"] for definition in shown])

        # A model searches, then calls.
        answer = session.call_sync("tool_search", {"query": "cancel an invoice", "limit": 3})
        best = json.loads(answer.text)["matches"][0]
        print(best["name"] + best["signature"])

        call = {"name": best["name"], "arguments": {"invoice_id": "INV-7", "reason": "?"}}
        print(session.call_sync("tool_call", call).error)


if __name__ == "__main__":
    main()
