"""Write a tuned encoder as an ONNX file that onnxruntime runs without torch.

    python export.py --model /tmp/run --out /tmp/run [--share 0.8]

The graph is written by hand, not traced: fused attention, weights as integers with a scale
per column (`dynamic`) or per block of 32 (`block`), the embedding table as int8 with a scale per row.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from encoder import (
    HEADS,
    LAYERS,
    WIDTH,
    Encoder,
    blend,
    load_base,
    load_tokenizer,
    load_tuned,
)

FUSED = "com.microsoft"
BLOCK = 32
SHARED = 2  # the lowest layers, which training leaves as they are
EPSILON = 1e-12


class Graph:
    """Nodes and constants of an ONNX graph under construction."""

    def __init__(self, style: str) -> None:
        self._style = style
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, value: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(
        self, kind: str, inputs: list[str], name: str, domain: str = "", outputs: int = 1, **facts: object
    ) -> list[str]:
        names = [name] if outputs == 1 else [f"{name}.{place}" for place in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=name, domain=domain, **facts))
        return names

    def linear(self, x: str, weight: np.ndarray, name: str, bias: str = "") -> str:
        """Add x @ weight.T and an optional bias; `weight` is (out, in)."""
        if self._style == "dynamic":
            return self._quantized_linear(x, weight, name, bias)
        if bias:
            return self.node("Add", [self.linear(x, weight, f"{name}.bare"), bias], name)[0]
        if self._style == "float":
            return self.node("MatMul", [x, self.constant(f"{name}.w", weight.T)], name)[0]
        return self._block_linear(x, weight, name)

    def _quantized_linear(self, x: str, weight: np.ndarray, name: str, bias: str) -> str:
        scale = np.abs(weight).max(1) / 127
        whole = np.clip(np.round(weight / scale[:, None]), -127, 127).astype(np.int8).T
        parts = [
            self.constant(f"{name}.w", whole),
            self.constant(f"{name}.s", scale.astype(np.float32)),
            self.constant(f"{name}.z", np.zeros(len(scale), np.int8)),
            *filter(None, [bias]),
        ]
        return self.node("DynamicQuantizeMatMul", [x, *parts], name, FUSED)[0]

    def _block_linear(self, x: str, weight: np.ndarray, name: str) -> str:
        rows, columns = weight.shape
        blocks = weight.reshape(rows, columns // BLOCK, BLOCK)
        scale = np.maximum(np.abs(blocks).max(2), 1e-9) / 127
        whole = (np.clip(np.round(blocks / scale[..., None]), -127, 127) + 128).astype(np.uint8)
        parts = [
            self.constant(f"{name}.w", whole),
            self.constant(f"{name}.s", scale.reshape(-1).astype(np.float32)),
        ]
        facts = {"K": columns, "N": rows, "bits": 8, "block_size": BLOCK, "accuracy_level": 4}
        return self.node("MatMulNBits", [x, *parts], name, FUSED, **facts)[0]


def build(model: Encoder, style: str) -> onnx.ModelProto:
    """Build the whole graph, from token ids to vectors.

    Input: `ids` (rows, tokens), without a mask, so that all texts of a batch have the same number of tokens.
    Outputs: `vectors` (rows, 384) of length one, and the token states of the lowest layers (`states`) and of
    the last layer (`tokens.last`).
    """
    weights = {key: value.detach().numpy() for key, value in model.state_dict().items()}
    graph = Graph(style)
    x = _add_embedding(graph, weights)
    for layer in range(LAYERS):
        x = attended(graph, weights, x, f"blocks.{layer}")
        if layer == SHARED - 1:
            graph.node("Identity", [x], "states")
    graph.node("Identity", [x], "tokens.last")
    _add_pooling(graph, x)
    whole = helper.make_graph(
        graph.nodes,
        "encoder",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["rows", "tokens"])],
        [
            helper.make_tensor_value_info("vectors", TensorProto.FLOAT, ["rows", WIDTH]),
            helper.make_tensor_value_info("states", TensorProto.FLOAT, ["rows", "tokens", WIDTH]),
            helper.make_tensor_value_info("tokens.last", TensorProto.FLOAT, ["rows", "tokens", WIDTH]),
        ],
        graph.constants,
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(FUSED, 1)]
    return helper.make_model(whole, opset_imports=opsets, ir_version=9, producer_name="toolfold")


def _add_embedding(graph: Graph, weights: dict[str, np.ndarray]) -> str:
    table = weights["words.weight"]
    scale = np.maximum(np.abs(table).max(1, keepdims=True), 1e-9) / 127
    whole = np.clip(np.round(table / scale), -127, 127).astype(np.int8)
    graph.node("Gather", [graph.constant("words", whole), "ids"], "words.whole")
    graph.node("Cast", ["words.whole"], "words.float", to=TensorProto.FLOAT)
    graph.node("Gather", [graph.constant("words.s", scale.astype(np.float32)), "ids"], "words.scale")
    graph.node("Mul", ["words.float", "words.scale"], "words.x")
    graph.node("Shape", ["ids"], "tokens", start=1, end=2)
    places = graph.constant("places", weights["places.weight"][:256])
    graph.node(
        "Slice",
        [places, graph.constant("zero", np.array([0])), "tokens", graph.constant("first", np.array([0]))],
        "places.x",
    )
    graph.node("Add", ["words.x", "places.x"], "embedding.sum")
    norm = [graph.constant("norm.w", weights["norm.weight"]), graph.constant("norm.b", weights["norm.bias"])]
    return graph.node("LayerNormalization", ["embedding.sum", *norm], "embedding", axis=-1, epsilon=EPSILON)[
        0
    ]


def attended(graph: Graph, weights: dict[str, np.ndarray], x: str, name: str) -> str:
    """Add one transformer layer."""

    def take(part: str) -> np.ndarray:
        return weights[f"{name}.{part}"]

    def bias(part: str) -> str:
        return graph.constant(f"{name}.{part}", take(part))

    heads = ("query", "key", "value")
    shift = graph.constant(f"{name}.heads.b", np.concatenate([take(f"{head}.bias") for head in heads]))
    turn = np.concatenate([take(f"{head}.weight") for head in heads])
    joint = graph.linear(x, turn, f"{name}.heads", shift)
    sizes = graph.constant(f"{name}.sizes", np.array([WIDTH] * 3))
    split = graph.node("Split", [joint, sizes], f"{name}.split", outputs=3, axis=-1)
    seen = graph.node("MultiHeadAttention", split, f"{name}.seen", FUSED, num_heads=HEADS)[0]
    mixed = graph.linear(seen, take("mix.weight"), f"{name}.mix", bias("mix.bias"))
    x = _add_skip_norm(graph, mixed, x, [bias("norm1.weight"), bias("norm1.bias")], f"{name}.one")
    up = graph.linear(x, take("up.weight"), f"{name}.up", bias("up.bias"))
    bent = graph.node("Gelu", [up], f"{name}.gelu", FUSED)[0]
    down = graph.linear(bent, take("down.weight"), f"{name}.down", bias("down.bias"))
    return _add_skip_norm(graph, down, x, [bias("norm2.weight"), bias("norm2.bias")], f"{name}.two")


def _add_skip_norm(graph: Graph, x: str, skip: str, constants: list[str], name: str) -> str:
    # Two nodes: onnxruntime's SkipLayerNormalization takes three times as long on few tokens.
    graph.node("Add", [x, skip], f"{name}.sum")
    return graph.node("LayerNormalization", [f"{name}.sum", *constants], name, axis=-1, epsilon=EPSILON)[0]


def _add_pooling(graph: Graph, x: str) -> None:
    graph.node("ReduceSum", [x, graph.constant("middle", np.array([1]))], "sum", keepdims=0)
    graph.node("LpNormalization", ["sum"], "vectors", axis=-1, p=2)  # the mean's length is lost anyway


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--model", type=Path, help="directory that train_encoder.py wrote; default: the base model"
    )
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--style", choices=("float", "dynamic", "block"), default="dynamic")
    options.add_argument(
        "--share", type=float, default=1.0, help="weight of the tuned model when averaged with the base model"
    )
    chosen = options.parse_args()
    model = blend(load_tuned(chosen.model), load_base(), chosen.share) if chosen.model else load_base()
    chosen.out.mkdir(parents=True, exist_ok=True)
    made = build(model, chosen.style)
    onnx.save(made, str(chosen.out / "encoder.onnx"))
    tokenizer = load_tokenizer()
    tokenizer.save(str(chosen.out / "tokenizer.json"), pretty=False)


if __name__ == "__main__":
    main()
