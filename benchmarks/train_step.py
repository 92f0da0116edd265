"""How long a pre-training update takes here, and with transformers: python -m benchmarks.train_step --help."""

import logging
from typing import ClassVar

from benchmarks.contest import ContestConfig, conclude, facts_of, hold
from benchmarks.pretraining import WAYS, OurUpdates, TransformersUpdates, predictions_of, random_batch
from model_utils.config import run_main
from model_utils.schema import option
from src.training.flops import forward_flops

logger = logging.getLogger(__name__)
TOLERANCES = {"CPU": 1e-5, "GPU": 1e-4, "Ascend": 1e-4}  # by which losses may differ, as a share of the loss
ROUNDED = 5e-3  # the same where products are of float16


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
    """Measure and print; code 1 if the sides do not compute the same."""
    architecture = config.architecture(config.dropout).replace(recompute=config.recompute)
    logger.info(facts_of(architecture, config))
    columns = random_batch(architecture, config.batch_size, config.length)
    target = config.device_target
    peers = {f"transformers, {way}": (TransformersUpdates, architecture, columns, way, target) for way in config.peers}
    predictions = predictions_of(config.length)
    operations = 3 * forward_flops(architecture, config.batch_size, config.length, predictions)
    ours = (OurUpdates, architecture, columns, target, config.fused_layers)
    tolerance = ROUNDED if architecture.compute_type == "float16" else TOLERANCES[target]
    return conclude(config, hold(config, ours, peers, operations, tolerance), tolerance)


if __name__ == "__main__":
    run_main(main, TrainStepConfig)
