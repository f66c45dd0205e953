"""A session can see and call what it was granted, and one it delegates to at most the same."""

from toolfold import UnknownToolset, open_runtime, sample_catalog


def main() -> None:
    with open_runtime() as runtime:
        runtime.registry.add_all(sample_catalog())  # 22 imagined services, a toolset `mcp-<name>` each

        support = runtime.session(["mcp-larkpost", "mcp-brightcart", "mcp-ferrywell"])
        print(f"support may use {len(support.granted())} of {len(runtime.registry.snapshot())} tools")

        parcels = support.delegate(["mcp-ferrywell", "mcp-tillerbank"])  # the bank is not support's to give
        print(f"its delegate may use {len(parcels.granted())}, all of them about parcels")

        refused = parcels.call_sync("tillerbank_instruct_payment", {"amount": 5})
        print(refused.text)

        try:
            runtime.session(["mcp-larkpost"], disabled_toolsets=["flie"])
        except UnknownToolset as error:
            print(error)


if __name__ == "__main__":
    main()
