"""Time a pre-training update here and with transformers: python -m benchmarks.train_step --help."""

from typing import ClassVar

from benchmarks.contest import ContestConfig, run_contest
from benchmarks.pretraining import WAYS, ProjectUpdates, TransformersUpdates, num_predictions, random_batch
from model_utils.config import run_main
from model_utils.schema import option
from src.training.flops import forward_flops

TOLERANCES = {"CPU": 1e-5, "GPU": 1e-4, "Ascend": 1e-4}  # by which losses may differ, as a share of the loss
FLOAT16_TOLERANCE = 5e-3


class TrainStepConfig(ContestConfig):
    """Time pre-training updates: python -m benchmarks.train_step."""

    peers: tuple[str, ...] = option(
        ("eager", "compile"),
        "transformers with torch's AdamW: eager, compile (torch.compile), checkpointing (torch's); '': none",
    )
    KNOWN_PEERS: ClassVar[tuple[str, ...]] = WAYS
    recompute: bool = option(False, "this project computes each layer twice, to save memory")
    dropout: float = option(0.0, "in the encoder", minimum=0.0, maximum=0.9)


def main(config: TrainStepConfig) -> int:
    """Measure and print; return 1 if the sides do not compute the same."""
    architecture = config.architecture(config.dropout).replace(recompute=config.recompute)
    columns = random_batch(architecture, config.batch_size, config.length)
    target = config.device_target
    project = (ProjectUpdates, architecture, columns, target, config.fused_layers)
    peers = {f"transformers, {way}": (TransformersUpdates, architecture, columns, way, target) for way in config.peers}
    predictions = num_predictions(config.length)
    operations = 3 * forward_flops(architecture, config.batch_size, config.length, predictions)
    tolerance = FLOAT16_TOLERANCE if architecture.compute_type == "float16" else TOLERANCES[target]
    return run_contest(config, architecture, project, peers, operations, tolerance)


if __name__ == "__main__":
    run_main(main, TrainStepConfig)
