"""One training step for every task: accumulate, reduce, unscale, clip, update.

The graph runs once per micro-batch; the call for the last one of an update also applies it. Weight columns are
normalised over all micro-batches of all ranks before the first call (`normalise_weights`), so losses, metrics and
gradients of micro-batches and ranks are simply added.
"""

import logging
from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from model_utils.config import UPDATES
from src.albert_networks import JointNetwork, Tensors
from src.data.mixed_batches import TASK
from src.nn.dropout import mix_bits
from src.nn.layers import scale_all, square_sum
from src.training.layerwise_gradient import LayerwiseGradient, scaled_loss
from src.training.optimizer import Optimizer, OptimizerSettings, build_optimizer, describe_decay_groups
from src.training.ranks import ALONE, Ranks
from src.training.run_plan import LossScale, Precision, RunPlan
from src.training.training_config import TrainingConfig

logger = logging.getLogger(__name__)
# Distance between the dropout seeds of two ranks, so that none repeats another's masks: update s of a rank never has
# those of update s + d of another, for any d up to UPDATES with at most 21 ranks, for any d below 654,939 with 1,024.
RANK_DISTANCE = UPDATES + 1
# Distance between those of runs with consecutive seeds: 2**31 times the third power of the golden section, so that 20
# seeds in a row are all far apart.
SEED_DISTANCE = 506_952_113


def normalise_weights(
    micro_batches: Sequence[dict[str, np.ndarray]], columns: Sequence[str], ranks: Ranks = ALONE
) -> list[dict[str, np.ndarray]]:
    """Divide each weight column by its sum over all micro-batches of all ranks; a column of zeros stays zero.

    columns: names of the weight columns (network.weight_columns), float32 of any shape. Collective over `ranks`.
    """
    sums = [[batch[column].sum(dtype=np.float64) for column in columns] for batch in micro_batches]
    totals = ranks.sum(np.sum(sums, axis=0), "the start of an update")
    normalised = [dict(batch) for batch in micro_batches]
    for column, total in zip(columns, totals, strict=True):
        for batch in normalised:
            batch[column] = (batch[column] / (total or 1.0)).astype(np.float32)
    return normalised


class TrainStep(nn.Cell):
    """Trains `network` with `optimizer`; every Parameter of this cell together is the state to save.

    Args:
        network: construct(*inputs(batch), dropout_key) -> (loss, ...), scalars that are weighted sums; see
            TrainingNetwork. Of a JointNetwork an update trains one task, and has a graph for it.
        accumulate: True: an update adds up the gradients of any number of micro-batches; False: it has one, and takes
            no memory for sums.
        clip_norm: global norm to which gradients are clipped before the update (google's 1.0); 0 switches it off.
        ranks: processes that train together; gradients and metrics are added up over them once per update.
        seed: of the dropout masks of all ranks, which differ.
    """

    def __init__(
        self,
        network: nn.Cell,
        optimizer: Optimizer,
        loss_scale: LossScale,
        accumulate: bool = False,
        clip_norm: float = 1.0,
        ranks: Ranks = ALONE,
        seed: int = 0,
    ) -> None:
        super().__init__(auto_prefix=False)
        self.network = network
        self.network.set_train(True)
        self.optimizer = optimizer
        self.accumulate = accumulate
        self.clip_norm = clip_norm
        self.ranks = ranks
        self.rank_size = self.ranks.size
        self.seed = self.seed_of_rank(seed)
        self.weights = optimizer.parameters
        self.weight_count = len(self.weights)
        segment_table, row_squares = network.segment_table_and_squares
        names = [weight.name for weight in self.weights]
        self.has_segment_table = segment_table.name in names  # else it is frozen
        self.segment_index = names.index(segment_table.name) if self.has_segment_table else len(names)
        self.differentiated = ParameterTuple([*self.weights, row_squares] if self.has_segment_table else self.weights)
        self.square_sum = square_sum(network.backend)
        self.scale_all = scale_all(len(self.weights), network.backend)
        self.has_tasks = isinstance(network, JointNetwork)
        self.scaling = loss_scale
        self.loss_scale = Parameter(Tensor(loss_scale.start, ms.float32), name="loss_scale", requires_grad=False)
        self.good_steps = Parameter(Tensor(0, ms.int32), name="good_steps", requires_grad=False)
        self.skipped_steps = Parameter(Tensor(0, ms.int32), name="skipped_steps", requires_grad=False)
        if accumulate:
            self.sums = self.differentiated.clone(prefix="accumulated", init="zeros")
            zeros = np.zeros(len(network.metric_names), np.float32)
            self.metric_sums = Parameter(Tensor(zeros), name="accumulated_metrics", requires_grad=False)
        if self.rank_size > 1:
            self.all_reduce = ops.AllReduce()
            # GPUs and Ascend join the operations of one number.
            self.all_reduce_joined = ops.AllReduce().add_prim_attr("fusion", 1)
        self.ready_graphs: set[tuple] = set()  # those that are compiled, as graphs() names them
        if network.recompute_layers:
            self.value_and_grad = LayerwiseGradient(network, self.differentiated)
        else:
            self.value_and_grad = ops.value_and_grad(self.loss, None, self.differentiated, has_aux=True)

    def seed_of_rank(self, seed: int) -> int:
        """Return the seed of this rank's dropout masks."""
        return (SEED_DISTANCE * seed + RANK_DISTANCE * self.ranks.rank) % 2**31

    def restart(self, seed: int) -> None:
        """Reset all state but the network's weights to that of a new run with this seed; compiled graphs stay."""
        self.seed = self.seed_of_rank(seed)
        of_network = set(self.network.parameters_dict())
        for name, parameter in self.parameters_dict().items():
            if name not in of_network:
                ops.assign(parameter, ops.zeros_like(parameter))
        self.restart_scaling()

    def restart_scaling(self) -> None:
        """Set the scale as at the beginning of a run."""
        ops.assign(self.loss_scale, Tensor(self.scaling.start, ms.float32))
        ops.assign(self.good_steps, Tensor(0, ms.int32))

    def loss(self, inputs: Tensors, dropout_key: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scaled loss, to differentiate, and the metrics as one tensor."""
        return scaled_loss(self.network(*inputs, dropout_key), scale)

    def dropout_key(self, seed: Tensor, micro: Tensor) -> Tensor:
        """Return a hash of seed, attempted updates and micro-batch: () int32."""
        return mix_bits(mix_bits(self.updates_tried() + seed) + micro)

    def updates_tried(self) -> Tensor:
        """Return the updates before this one, applied or skipped: () int32."""
        return self.optimizer.global_step + self.skipped_steps

    def sum_over_ranks(self, tensor: Tensor) -> Tensor:
        if self.rank_size == 1:
            return tensor
        return self.all_reduce(tensor)

    def adjust_scale(self, finite: Tensor) -> None:
        """Count the update as good or skipped and move a dynamic scale."""
        good = ops.select(finite, self.good_steps + 1, ops.zeros_like(self.good_steps))
        ops.assign_add(self.skipped_steps, 1 - ops.cast(finite, ms.int32))
        if self.scaling.mode == "dynamic":
            grow = good >= self.scaling.window
            lower = ops.maximum(self.loss_scale / self.scaling.factor, self.scaling.minimum)
            higher = ops.select(grow, self.loss_scale * self.scaling.factor, self.loss_scale)
            ops.assign(self.loss_scale, ops.select(finite, higher, lower))
            good = ops.select(grow, ops.zeros_like(good), good)
        ops.assign(self.good_steps, good)

    def global_norm(self, gradients: Tensors, row_squares: Tensors) -> Tensor:
        """Return google's global norm, in which segment embeddings count per looked-up row (RowSquareSum).

        Not finite if any entry is not. row_squares: squares of the looked-up segment rows of all ranks; () if frozen.
        """
        squares = self.square_sum(gradients[: self.segment_index] + gradients[self.segment_index + 1 :])
        if self.has_segment_table:
            squares = row_squares[0] + squares
        return ops.sqrt(squares)

    def update(self, gradients: Tensors, elapsed: Tensor, rate_factor: Tensor, task: int) -> Tensors:
        """Reduce, unscale, clip and apply gradients; task: index of the task that they are of.

        Returns the gradient norm, whether it was finite, the learning rate, and the loss scale that was used.
        """
        scale = self.loss_scale + 0.0
        reduced = ()
        for gradient in gradients[: self.weight_count]:
            reduced += (gradient if self.rank_size == 1 else self.all_reduce_joined(gradient),)
        row_squares = ()
        if self.has_segment_table:
            row_squares = (self.sum_over_ranks(gradients[-1]),)
        norm = self.global_norm(reduced, row_squares) / scale
        finite = ops.isfinite(norm)
        factor = 1.0 / scale
        if self.clip_norm > 0:
            factor = factor * (self.clip_norm / ops.maximum(norm, self.clip_norm))
        scaled = self.scale_all(reduced, ops.select(finite, factor, ops.zeros_like(factor)))
        rate = self.optimizer(scaled, finite, self.updates_tried() + 1, elapsed, rate_factor, task)
        self.adjust_scale(finite)
        return norm, finite, rate, scale

    def construct(
        self, last: bool, seed: Tensor, micro: Tensor, elapsed: Tensor, rate_factor: Tensor, *inputs: Tensor
    ) -> Tensors:
        """Run one micro-batch and, with `last`, the update. `last` is a constant: two graphs, compiled once each."""
        key = self.dropout_key(seed, micro)
        task = inputs[0] if self.has_tasks else 0
        (_, metrics), gradients = self.value_and_grad(inputs, key, self.loss_scale)
        if not self.accumulate:
            return (self.sum_over_ranks(metrics), *self.update(gradients, elapsed, rate_factor, task))
        if not last:
            for i in range(len(gradients)):
                ops.assign_add(self.sums[i], gradients[i])
            ops.assign_add(self.metric_sums, metrics)
            return (metrics,)
        totals = ()
        for i in range(len(gradients)):
            totals += (self.sums[i] + gradients[i],)
        metrics = self.metric_sums + metrics
        result = self.update(totals, elapsed, rate_factor, task)
        for total in self.sums:
            ops.assign(total, ops.zeros_like(total))
        ops.assign(self.metric_sums, ops.zeros_like(self.metric_sums))
        return (self.sum_over_ranks(metrics), *result)

    def train(
        self, micro_batches: Sequence[dict[str, np.ndarray]], elapsed: float = 0.0, rate_factor: float = 1.0
    ) -> dict[str, Tensor]:
        """Run one update on micro-batches of numpy columns; elapsed and rate_factor as in Optimizer.

        Returns tensors that may still be computing: network.metric_names, grad_norm, finite, learning_rate, loss_scale.
        """
        count = len(micro_batches)
        if count > 1 and not self.accumulate:
            raise ValueError(f"got {count} micro-batches, but an update takes one: accumulate is false")
        if self.rank_size > 1:
            self.compile_for(micro_batches)
        outputs: Tensors = ()
        columns = self.network_of(micro_batches[0]).weight_columns
        for i, batch in enumerate(normalise_weights(micro_batches, columns, self.ranks)):
            if outputs and self.rank_size > 1 and i + 1 == count:
                outputs[0].asnumpy()  # computed, so that the others wait for one micro-batch at most in the collective
                self.ranks.wait("the end of an update")
            outputs = self(*self.arguments(i, i + 1 == count, batch, elapsed, rate_factor))
        metrics, norm, finite, rate, scale = outputs
        self.ready_graphs.update(self.graphs(micro_batches))
        values = {name: metrics[i] for i, name in enumerate(self.network.metric_names)}
        return values | {"grad_norm": norm, "finite": finite, "learning_rate": rate, "loss_scale": scale}

    def network_of(self, batch: dict[str, np.ndarray]) -> nn.Cell:
        """Return the network that a batch trains."""
        return self.network.network_of(batch) if self.has_tasks else self.network

    def arguments(
        self, i: int, last: bool, batch: dict[str, np.ndarray], elapsed: float = 0.0, rate_factor: float = 1.0
    ) -> tuple[Any, ...]:
        """Return the arguments of construct for micro-batch i."""
        inputs = self.network.inputs(batch)
        int_args = [Tensor(value, ms.int32) for value in (self.seed, i)]
        float_args = [Tensor(value, ms.float32) for value in (elapsed, rate_factor)]
        return (last, *int_args, *float_args, *inputs)

    def graphs(self, micro_batches: Sequence[dict[str, np.ndarray]]) -> list[tuple]:
        """Return the graph that each micro-batch of an update runs: (construct's `last`, task, shape of each input)."""
        graphs = []
        for i, batch in enumerate(micro_batches):
            shapes = [batch[name].shape for name in self.network_of(batch).input_columns]
            graphs.append((i + 1 == len(micro_batches), int(batch.get(TASK, 0)), *shapes))
        return graphs

    def compiles(self, micro_batches: Sequence[dict[str, np.ndarray]]) -> bool:
        """Return whether an update of these shapes compiles a graph first."""
        return not self.ready_graphs.issuperset(self.graphs(micro_batches))

    def compile_for(self, micro_batches: Sequence[dict[str, np.ndarray]]) -> None:
        """Compile the graphs of these shapes before ranks synchronise: they take unequal times for it."""
        for i, (batch, graph) in enumerate(zip(micro_batches, self.graphs(micro_batches), strict=True)):
            if graph not in self.ready_graphs:
                self.compile(*self.arguments(i, i + 1 == len(micro_batches), batch))
                self.ready_graphs.add(graph)


def default_learning_rate(hidden_size: int, learning_rate_of_base: float) -> float:
    """Return a learning rate of fine-tuning for this width, from the usual one at 768; 1e-5 to 1e-3.

    It falls with the square of the width: near the best rates found from 256 to 384, and those published up to 2,048.
    """
    return min(1e-3, max(1e-5, learning_rate_of_base * (768 / hidden_size) ** 2))


def build_step(
    config: TrainingConfig, network: nn.Cell, plan: RunPlan, precision: Precision, ranks: Ranks, accumulate: bool
) -> TrainStep:
    """Return the training step of a run with its TrainingConfig's optimizer; raises as build_optimizer."""
    values = config.optimizer_settings()
    if not values["learning_rate"]:
        hidden_size = network.scores.config.hidden_size
        values["learning_rate"] = default_learning_rate(hidden_size, config.learning_rate_of_base)
        logger.info(f"learning rate {values['learning_rate']:.3g}, for a hidden_size of {hidden_size}")
    settings = OptimizerSettings(**values)
    weights = network.weights_to_train()
    owners = [network.owner_of(weight) for weight in weights] if isinstance(network, JointNetwork) else []
    optimizer = build_optimizer(weights, settings, plan.train_steps, owners)
    logger.info(describe_decay_groups(optimizer))
    return TrainStep(network, optimizer, precision.scaling, accumulate, config.clip_norm, ranks, config.seed)
