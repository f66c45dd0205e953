"""Limit a session to some toolsets, and delegate a part of them to another session."""

from toolfold import open_runtime, sample_catalog
from toolfold.core.errors import UnknownToolset


def main() -> None:
    with open_runtime() as runtime:
        runtime.registry.add_all(sample_catalog())  # 22 fictional services, each with a toolset `mcp-<name>`

        support = runtime.session(["mcp-larkpost", "mcp-brightcart", "mcp-ferrywell"])
        print(f"support may use {len(support.granted())} of {len(runtime.registry.snapshot())} tools")

        parcels = support.delegate(["mcp-ferrywell", "mcp-tillerbank"])  # support has no access to the bank
        print(f"its delegate may use {len(parcels.granted())}, all of them about parcels")

        refused = parcels.call_sync("tillerbank_instruct_payment", {"amount": 5})
        print(refused.text)

        try:
            runtime.session(["mcp-larkpost"], disabled_toolsets=["flie"])
        except UnknownToolset as error:
            print(error)


if __name__ == "__main__":
    main()
