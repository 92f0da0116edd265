"""How long the updates of a pre-training run take."""

from statistics import median

from model_utils.device import setup_device
from src.training.training_config import PretrainConfig

UNTIMED, UPDATES = 3, 23  # of each phase and width: while it compiles and memory is first touched; in all


class TimedTraining:
    """A run as run_pretrain.py makes it, of which nothing is kept."""

    def __init__(self, config: PretrainConfig) -> None:
        device = setup_device(**config.device_settings() | {"distribute": False, "device_num": 1})
        from run_pretrain import build_trainer
        from src.training.run_folder import RunFolder

        self.trainer = build_trainer(config, device, RunFolder(config.save_checkpoint_path, config))
        self.trainer.initialise()

    def seconds(self) -> float:
        """Of an update, the mean over phases and widths by their shares of the run; of each the median."""
        from src.training.dry_run import timed_update

        mean = 0.0
        for phase in self.trainer.phases.all:
            for start, share in phase.data.width_shares():
                micro_batches = [next(phase.data.batches(0, start))] * phase.accumulation_steps
                seconds = [timed_update(self.trainer, micro_batches) for _ in range(UPDATES)]
                mean += phase.share * share * median(seconds[UNTIMED:])
        return mean
