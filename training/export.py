"""Write a tuned encoder as ONNX files that onnxruntime runs without torch.

    python export.py --model /tmp/run --out /tmp/run [--query /tmp/query]

`encoder.lower.onnx` turns token ids into hidden states, `encoder.tool.onnx` states into the vector of a tool
and, with `--query`, `encoder.query.onnx` states into the vector of a message. The graphs are written by hand,
not traced: fused attention and norms, weights as integers with a scale per column (`dynamic`) or per block of
32 (`block`), the embedding table as int8 with a scale per row. They read one text at a time, without a mask.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from encoder import (
    HEADS,
    WIDTH,
    Encoder,
    blend,
    load_base,
    load_exported,
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


def build_lower(model: Encoder, style: str) -> onnx.ModelProto:
    """Return the graph of the embeddings and the lowest layers: `ids` (1, tokens) in, `states` out."""
    weights = _read_weights(model)
    graph = Graph(style)
    x = _add_embedding(graph, weights)
    for layer in range(SHARED):
        x = attended(graph, weights, x, f"blocks.{layer}")
    graph.node("Identity", [x], "states")
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [1, "tokens"])
    return _make_model(graph, ids, {"states": [1, "tokens", WIDTH]})


def build_upper(model: Encoder, style: str) -> onnx.ModelProto:
    """Return the graph of the other layers.

    It reads `states` and returns the unit `vector` (1, 384) and the last states of the `tokens`, whose mean
    has the direction of the vector.
    """
    weights = _read_weights(model)
    graph = Graph(style)
    x = "states"
    for layer in range(SHARED, len(model.blocks)):
        x = attended(graph, weights, x, f"blocks.{layer}")
    graph.node("Identity", [x], "tokens")
    graph.node("ReduceSum", [x, graph.constant("middle", np.array([1]))], "sum", keepdims=0)
    graph.node("LpNormalization", ["sum"], "vector", axis=-1, p=2)  # the mean's length is lost anyway
    states = helper.make_tensor_value_info("states", TensorProto.FLOAT, [1, "tokens", WIDTH])
    return _make_model(graph, states, {"vector": [1, WIDTH], "tokens": [1, "tokens", WIDTH]})


def _read_weights(model: Encoder) -> dict[str, np.ndarray]:
    return {key: value.detach().numpy() for key, value in model.state_dict().items()}


def _make_model(
    graph: Graph, source: onnx.ValueInfoProto, outputs: dict[str, list[int | str]]
) -> onnx.ModelProto:
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()]
    whole = helper.make_graph(graph.nodes, "encoder", [source], made, graph.constants)
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
    graph.node("Shape", ["ids"], "length", start=1, end=2)
    places = graph.constant("places", weights["places.weight"][:256])
    graph.node(
        "Slice",
        [places, graph.constant("zero", np.array([0])), "length", graph.constant("first", np.array([0]))],
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
    mixed = graph.linear(seen, take("mix.weight"), f"{name}.mix")
    x = _add_skip_norm(
        graph, mixed, x, [bias("norm1.weight"), bias("norm1.bias"), bias("mix.bias")], f"{name}.one"
    )
    up = graph.linear(x, take("up.weight"), f"{name}.up", bias("up.bias"))
    bent = graph.node("Gelu", [up], f"{name}.gelu", FUSED)[0]
    down = graph.linear(bent, take("down.weight"), f"{name}.down")
    return _add_skip_norm(
        graph, down, x, [bias("norm2.weight"), bias("norm2.bias"), bias("down.bias")], f"{name}.two"
    )


def _add_skip_norm(graph: Graph, x: str, skip: str, constants: list[str], name: str) -> str:
    return graph.node("SkipLayerNormalization", [x, skip, *constants], name, FUSED, epsilon=EPSILON)[0]


def _load_model(folder: Path | None, share: float) -> Encoder:
    if folder is None:
        return load_base()
    if not (folder / "encoder.safetensors").exists():
        return load_exported(folder)
    return blend(load_tuned(folder), load_base(), share)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--model", type=Path, help="directory that train_encoder.py wrote; default: the base model"
    )
    options.add_argument("--query", type=Path, help="directory that train_query_encoder.py wrote")
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--style", choices=("float", "dynamic", "block"), default="dynamic")
    options.add_argument(
        "--share", type=float, default=1.0, help="weight of the tuned model when averaged with the base model"
    )
    chosen = options.parse_args()
    model = _load_model(chosen.model, chosen.share)
    chosen.out.mkdir(parents=True, exist_ok=True)
    onnx.save(build_lower(model, chosen.style), str(chosen.out / "encoder.lower.onnx"))
    onnx.save(build_upper(model, chosen.style), str(chosen.out / "encoder.tool.onnx"))
    if chosen.query:
        onnx.save(build_upper(load_tuned(chosen.query), chosen.style), str(chosen.out / "encoder.query.onnx"))
    tokenizer = load_tokenizer()
    tokenizer.save(str(chosen.out / "tokenizer.json"), pretty=False)


if __name__ == "__main__":
    main()
