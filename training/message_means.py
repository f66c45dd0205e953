"""Write the mean vector of the phrasebook's messages, by model: what all example messages have in common.

    python message_means.py --out ../src/toolfold/selection/retrieval/weights/message_means.arrays

The product subtracts it from the vectors of a tool's example messages. Needs numpy and the package itself;
about a minute. Run it again after a change of an embedding model; a longer phrasebook changes it little.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from toolfold.selection.retrieval.embedding import Encoder, LightEmbedder
from toolfold.selection.retrieval.multilingual import MultilingualEmbedder
from toolfold.selection.retrieval.phrasebook import Phrasebook
from toolfold.selection.retrieval.weight_files import save_arrays


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    options = parser.parse_args()
    messages = [message for record in Phrasebook().load() for message in record.messages]
    encoder, light = Encoder(), LightEmbedder()
    share = MultilingualEmbedder(encoder, light).share
    shares = np.array([share(message) for message in messages], np.float32)[:, None]
    means = {
        "encoder": (encoder.embed(messages, "tool") * shares).mean(0),
        "light": light.embed(messages, "tool").mean(0),
    }
    save_arrays(options.out, {model: mean.astype(np.float32) for model, mean in means.items()})
    print(f"{len(messages)} messages")


if __name__ == "__main__":
    main()
