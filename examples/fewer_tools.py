"""Compare the tokens that are sent to a model with and without selection."""

from toolfold import count_tokens, open_runtime, sample_catalog


def main() -> None:
    with open_runtime(selection="hybrid", top_k=5, tool_search=False) as runtime:
        runtime.registry.add_all(sample_catalog())
        session = runtime.session()

        before = count_tokens(session.definitions())
        shown = session.definitions("Create an invoice for Halden Ltd over 1,200 euros")
        print(f"{before:,} tokens before, {count_tokens(shown):,} after")
        print([definition["function"]["name"] for definition in shown])

        # Tools that are not shown are still granted and can be called directly.
        reminder = {"text": "Call Halden Ltd", "trigger": {"at": "2030-03-01T09:00:00Z"}}
        print(session.call_sync("almanac_setReminder", reminder).text)


if __name__ == "__main__":
    main()
