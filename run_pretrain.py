"""Pre-train ALBERT: python run_pretrain.py --data_dir DATA --save_checkpoint_path RUN; --help lists all keys."""

import logging
from dataclasses import replace
from functools import partial

from dataset import create_pretrain_dataset
from model_utils.config import run_main
from model_utils.device import Device, setup_device
from src.data.batches import Loading
from src.model_folder import ModelFolder
from src.pretraining.distillation import build_network
from src.pretraining.pretraining import (
    build_architecture,
    held_out_evaluation,
    initialise,
    learning_check,
    reference_lines,
)
from src.pretraining.pretraining_phases import data_of_phases, identity_of, plan_phases
from src.training.dry_run import dry_run
from src.training.pretrain_config import PretrainConfig
from src.training.ranks import ranks_of
from src.training.recorder import Reporting
from src.training.run_folder import RunFolder, check_run_folder
from src.training.run_plan import RunIdentity, plan_precision, plan_run, teacher_identity
from src.training.train_step import build_step
from src.training.trainer import Trainer
from src.training.utilisation import Utilisation

logger = logging.getLogger(__name__)


def main(config: PretrainConfig) -> None:
    """Train until the run in save_checkpoint_path is finished."""
    device = setup_device(**config.device_settings())
    ranks = ranks_of(device)
    folder = RunFolder(config.save_checkpoint_path, config, ranks)
    if config.dry_run:
        check_run_folder(folder.path, config)
        logger.info(dry_run(build_trainer(config, device, folder)))
        return
    with folder:
        if folder.finished:
            logger.info(f"{folder.path} holds this run and it is finished: nothing to do")
        else:
            build_trainer(config, device, folder).fit()


def build_trainer(config: PretrainConfig, device: Device, folder: RunFolder) -> Trainer:
    """Return the trainer with data, model, optimizer and step, all checked against each other."""
    ranks = folder.ranks
    loading = Loading(config.batch_size, config.seed, config.do_shuffle, rank=ranks.rank, rank_size=ranks.size)
    datasets = [create_pretrain_dataset(**arguments) for arguments in data_of_phases(config, loading)]
    data = datasets[0]
    plan = plan_run(config, config.epoch_size, data.rows_at_once, data.batches_per_epoch)
    tokenizer = data.tokenizer(config.vocab_file, config.spm_model_file)
    weights = str(folder.path) if folder.begun else config.load_checkpoint_path
    precision = plan_precision(config, device)
    architecture = build_architecture(config, data, tokenizer, device, weights)
    phases = plan_phases(config, datasets, architecture, tokenizer)
    network = build_network(config, architecture, datasets, tokenizer)
    step = build_step(config, network, plan, precision, ranks, phases.accumulate)
    folder.artifacts = ModelFolder(architecture, tokenizer, token_counts=data.token_counts)
    evaluation = held_out = None
    if config.eval_steps:
        held_out_loading = replace(loading, shuffle=False, evaluation=True)
        held_out = create_pretrain_dataset(config.eval_data_dir, held_out_loading)
        evaluation = held_out_evaluation(network, architecture, held_out, data, tokenizer, config, ranks)
    lines = reference_lines(architecture, data, held_out, tokenizer, config, ranks)
    return Trainer(
        step,
        phases,
        plan,
        folder,
        RunIdentity(identity_of(datasets) | teacher_identity(config.teacher), precision, architecture.saved_dict()),
        partial(initialise, network, data, config.load_checkpoint_path),
        evaluation,
        Reporting(lines, Utilisation(architecture), learning_check(config, lines, data)),
    )


if __name__ == "__main__":
    run_main(main, PretrainConfig)
