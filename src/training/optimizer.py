"""AdamWeightDecay, LAMB, Adam and Muon with warm-up, a learning rate schedule and decay groups by name of parameter.

The update rules follow google's ALBERT code: epsilon is outside the square root, weight decay is decoupled from the
gradient, and AdamWeightDecay and LAMB have no bias correction by default (Loshchilov and Hutter 2019, algorithm 2; You
et al. 2020, algorithm 2). Adam has no weight decay and always corrects. Bias correction divides the moments, which
start at 0, by 1 - beta^t, where t counts the updates applied (Kingma and Ba 2015, section 3).
"""

import math
import re
from collections.abc import Sequence

import mindspore as ms
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from model_utils.errors import ConfigError
from model_utils.schema import option
from src.albert_networks import HEADS_OF_TASKS
from src.checkpoints.checkpoint_files import BACKBONE
from src.nn import crf
from src.training.training_config import DecayedAdamConfig


class OptimizerSettings(DecayedAdamConfig):
    """Settings of an optimizer; parameters that decay_filter names get neither weight decay nor layer adaptation."""

    name: str = option("AdamWeightDecay", "name of the optimizer")
    warmup_ratio: float = option(0.0, "warm-up as a share of updates or hours; 0: warmup_steps")


class LearningRate(nn.Cell):
    """Learning rate: warm-up, then a schedule, as a function of the update (skipped ones count) and the elapsed time.

    1. step < warmup_steps: learning_rate * step / warmup_steps. warmup_ratio sets warmup_steps as a share of
       train_steps; in a run with a time limit, `elapsed` shortens that warm-up if it is ahead of step / train_steps.
    2. later: end + (learning_rate - end) * f(progress), where progress = max(step / train_steps, elapsed), at most 1,
       and f depends on the schedule:
       polynomial: (1 - progress) ** power; as in google's code it counts from step 0, so that the rate after warm-up
           starts slightly below learning_rate;
       cosine: half a cosine from 1 at warmup_steps / train_steps to 0 (Loshchilov and Hutter 2017, equation 5);
       trapezoid: 1, then a straight line to 0 over the last decay_share of the run (Zhai et al. 2022, section 3.5);
       constant: 1.

    Inputs: step, counted from 1, (); elapsed () float32: share of the run's time limit used, 0 without a limit.

    Raises:
        ConfigError: the warm-up is as long as the run, or overlaps the trapezoid's decay.
    """

    def __init__(self, settings: OptimizerSettings, train_steps: int) -> None:
        super().__init__()
        self.by_ratio = settings.warmup_ratio > 0
        self.warmup_steps = round(settings.warmup_ratio * train_steps) if self.by_ratio else settings.warmup_steps
        warmup = f"optimizer_cfg.{settings.name}.warmup_steps is {self.warmup_steps}"
        if self.by_ratio:
            warmup = f"warmup_ratio is {settings.warmup_ratio:g}, which makes {self.warmup_steps} updates"
        if not 0 <= self.warmup_steps < train_steps:
            raise ConfigError(f"{warmup}, allowed are fewer than the run's {train_steps} updates")
        self.warmup_share = self.warmup_steps / train_steps
        if settings.schedule == "trapezoid" and self.warmup_share + settings.decay_share > 1:
            decay = f"decay_share {settings.decay_share:g} of the run's {train_steps} updates"
            raise ConfigError(f"{warmup}, but the warm-up must end before the decay, {decay}")
        self.settings = settings
        self.train_steps = train_steps

    def construct(self, step: Tensor, elapsed: Tensor) -> Tensor:
        step = ops.cast(step, ms.float32)
        progress = ops.maximum(ops.minimum(step, float(self.train_steps)) / self.train_steps, elapsed)
        peak = self.settings.learning_rate
        end = self.settings.end_learning_rate
        rate = end + (peak - end) * self.decay_factor(progress)
        if self.warmup_steps > 0:
            if self.by_ratio:
                step = ops.maximum(step, elapsed * self.train_steps)
            rate = ops.select(step < self.warmup_steps, peak * step / self.warmup_steps, rate)
        return rate

    def decay_factor(self, progress: Tensor) -> Tensor:
        """Return f(progress) of the class's docstring, () float32; it is computed during the warm-up, too."""
        schedule = self.settings.schedule
        if schedule == "polynomial":
            return ops.pow(1.0 - progress, self.settings.power)
        if schedule == "cosine":
            return 0.5 + 0.5 * ops.cos(math.pi * (progress - self.warmup_share) / (1.0 - self.warmup_share))
        if schedule == "trapezoid":
            return ops.minimum((1.0 - progress) / self.settings.decay_share, 1.0)
        assert schedule == "constant"
        return ops.ones_like(progress)


_OF_CRF = re.compile(rf"({HEADS_OF_TASKS}\.[^.]+\.)?{re.escape(crf.PREFIX)}")  # names of weights
CRF_RATE = 100.0  # times the learning rate: transitions begin at 0, and the rate of trained weights hardly moves them
_fused_adam_weight_decay = ops.AdamWeightDecay()
_fused_adam = ops.Adam()
_matmul_transposed = ops.MatMul(transpose_b=True)
_ENCODER = f"{BACKBONE}encoder."


class Optimizer(nn.Cell):
    """Base of optimizers, which update all parameters; its own Parameters are the moments and `global_step`.

    A skipped update runs with rate 0 and betas 1, which changes nothing: at a branch the host would wait for the
    device. An update of one of several tasks leaves the weights and moments of the other tasks' heads as they are,
    without weight decay, so that a head is trained as if alone, by its share of the updates. Bias correction counts
    these.

    Args:
        owners: for each parameter the index of the task that alone has it, -1 where all tasks have it; (): all.

    Inputs:
        gradients: float32, in the order of `parameters`; all 0 in a skipped update.
        apply_update: () bool; False skips the update.
        step: () int32, update of the run, counted from 1, skipped ones included; `global_step` counts those applied.
        elapsed: () float32, as in LearningRate.
        rate_factor: () float32, multiplies the learning rate.
        task: index of the task that is trained, a constant.

    Output: the learning rate used, () float32, 0 in a skipped update.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        settings: OptimizerSettings,
        train_steps: int,
        owners: Sequence[int] = (),
    ) -> None:
        super().__init__(auto_prefix=False)
        self.parameters = ParameterTuple(parameters)
        self.owners = tuple(owners) or (-1,) * len(parameters)
        self.is_matrix = tuple(p.name.startswith(_ENCODER) and p.ndim == 2 for p in self.parameters)
        self.moments1 = self.parameters.clone(prefix="adam_m", init="zeros")
        self.moments2 = self.second_moments()
        self.global_step = Parameter(Tensor(0, ms.int32), name="global_step")
        heads = range(max(self.owners, default=-1) + 1)
        self.has_heads = len(heads) > 0
        self.head_steps = ParameterTuple(
            [Parameter(Tensor(0, ms.int32), name=f"head_steps.{head}", requires_grad=False) for head in heads]
        )
        self.learning_rate = LearningRate(settings, train_steps)
        self.settings = settings
        self.not_filtered = tuple(not any(word in p.name for word in settings.decay_filter) for p in self.parameters)
        self.decayed = tuple(not_filtered and settings.weight_decay > 0.0 for not_filtered in self.not_filtered)
        self.is_crf = tuple(_OF_CRF.match(p.name) is not None for p in self.parameters)

    def second_moments(self) -> ParameterTuple:
        """Return the second moments of all parameters, 0."""
        return self.parameters.clone(prefix="adam_v", init="zeros")

    def construct(
        self,
        gradients: tuple[Tensor, ...],
        apply_update: Tensor,
        step: Tensor,
        elapsed: Tensor,
        rate_factor: Tensor,
        task: int = 0,
    ) -> Tensor:
        rate = self.learning_rate(step, elapsed) * rate_factor * ops.cast(apply_update, ms.float32)
        beta1, beta2 = self.betas(apply_update)
        for i in range(len(self.decayed)):
            if self.owners[i] == -1 or self.owners[i] == task:
                own_rate = CRF_RATE * rate if self.is_crf[i] else rate
                self.update(i, own_rate, gradients[i], beta1, beta2)
        ops.assign_add(self.global_step, ops.cast(apply_update, ms.int32))
        if self.has_heads:
            ops.assign_add(self.head_steps[task], ops.cast(apply_update, ms.int32))
        return rate

    def betas(self, apply_update: Tensor) -> tuple[Tensor, Tensor]:
        """Return beta1 and beta2, () float32 each; both 1 in a skipped update, which keeps the moments."""
        one = Tensor(1.0, ms.float32)
        beta1 = Tensor(self.settings.beta1, ms.float32)
        beta2 = Tensor(self.settings.beta2, ms.float32)
        return ops.select(apply_update, beta1, one), ops.select(apply_update, beta2, one)

    def decay_powers(self, i: int) -> tuple[Tensor, Tensor]:
        """Return beta1 ** t and beta2 ** t, () float32 each, where t counts parameter i's updates, with this one."""
        owner = self.owners[i]
        applied = ops.cast((self.global_step if owner == -1 else self.head_steps[owner]) + 1, ms.float32)
        beta1 = Tensor(self.settings.beta1, ms.float32)
        beta2 = Tensor(self.settings.beta2, ms.float32)
        return ops.pow(beta1, applied), ops.pow(beta2, applied)

    def update(self, i: int, rate: Tensor, gradient: Tensor, beta1: Tensor, beta2: Tensor) -> None:
        """Update parameter i in place; in a skipped update rate and gradient are 0 and the betas 1."""
        raise TypeError(f"{type(self).__name__} has no update rule")


class AdamWeightDecay(Optimizer):
    """p -= rate * (m / (sqrt(v) + eps) + weight_decay * p), through MindSpore's fused kernel."""

    def update(self, i: int, rate: Tensor, gradient: Tensor, beta1: Tensor, beta2: Tensor) -> None:
        settings = self.settings
        eps = settings.eps
        decay = settings.weight_decay if self.decayed[i] else 0.0
        if settings.bias_correction:  # through the kernel's rate and eps; decay / factor keeps rate * decay unchanged
            power1, power2 = self.decay_powers(i)
            root = ops.sqrt(1.0 - power2)
            factor = root / (1.0 - power1)
            rate = rate * factor
            eps = eps * root
            decay = decay / factor
        _fused_adam_weight_decay(
            self.parameters[i], self.moments1[i], self.moments2[i], rate, beta1, beta2, eps, decay, gradient
        )


class Lamb(Optimizer):
    """AdamWeightDecay's step, scaled per parameter by |p| / |step|; not scaled for names in decay_filter.

    A scaled parameter whose gradient is entirely 0 is not updated, as google's code skips parameters on which the loss
    does not depend; otherwise weight decay alone, scaled, would shrink it by the full learning rate.
    """

    def update(self, i: int, rate: Tensor, gradient: Tensor, beta1: Tensor, beta2: Tensor) -> None:
        settings = self.settings
        parameter = self.parameters[i]
        moment1 = beta1 * self.moments1[i] + (1.0 - settings.beta1) * gradient
        moment2 = beta2 * self.moments2[i] + (1.0 - settings.beta2) * (gradient * gradient)
        corrected1 = moment1
        corrected2 = moment2
        if settings.bias_correction:
            power1, power2 = self.decay_powers(i)
            corrected1 = moment1 * (1.0 / (1.0 - power1))
            corrected2 = moment2 * (1.0 / (1.0 - power2))
        # Not a quotient: on CPU those keep index lists of 16 bytes an entry in memory (src/nn/layers.py, Spread).
        step = corrected1 * (1.0 / (ops.sqrt(corrected2) + settings.eps))
        if self.decayed[i]:
            step = step + settings.weight_decay * parameter
        if self.not_filtered[i] and not self.is_crf[i]:  # transitions have a rate of their own
            parameter_norm = ops.sqrt(ops.reduce_sum(parameter * parameter))
            step_norm = ops.sqrt(ops.reduce_sum(step * step))
            is_scalable = ops.logical_and(parameter_norm > 0.0, step_norm > 0.0)
            safe_norm = ops.select(is_scalable, step_norm, ops.ones_like(step_norm))
            rate = rate * ops.select(is_scalable, parameter_norm / safe_norm, ops.ones_like(step_norm))
            rate = rate * ops.cast(ops.reduce_max(ops.abs(gradient)) > 0.0, ms.float32)
        ops.assign(self.moments1[i], moment1)
        ops.assign(self.moments2[i], moment2)
        ops.assign_sub(parameter, rate * step)


class Adam(Optimizer):
    """Bias-corrected Adam through MindSpore's fused kernel."""

    def update(self, i: int, rate: Tensor, gradient: Tensor, beta1: Tensor, beta2: Tensor) -> None:
        parameter, moment1, moment2 = self.parameters[i], self.moments1[i], self.moments2[i]
        power1, power2 = self.decay_powers(i)
        eps = self.settings.eps * ops.sqrt(1.0 - power2)  # the kernel adds eps before it corrects the root
        _fused_adam(parameter, moment1, moment2, power1, power2, rate, beta1, beta2, eps, gradient)


class Muon(AdamWeightDecay):
    """Momentum, orthogonalised, for the encoder's matrices (Jordan et al. 2024); AdamWeightDecay for the rest.

    m = beta1 * m + (1 - beta1) * g
    p -= rate * (0.2 * sqrt(max(rows, columns)) * orthogonalise(beta1 * m + (1 - beta1) * g) + weight_decay * p)

    The factor gives a step the size of AdamWeightDecay's, so that both share one rate (Liu et al. 2025, section 2.2).
    beta2, eps and bias_correction are AdamWeightDecay's alone: of a matrix only the direction of m counts.
    """

    def second_moments(self) -> ParameterTuple:
        """Return the second moments of all parameters, 0; a scalar for each matrix, which needs none."""
        moments = list(super().second_moments())
        for i, moment in enumerate(moments):
            if self.is_matrix[i]:
                moments[i] = Parameter(ops.zeros((), ms.float32), name=moment.name)
        return ParameterTuple(moments)

    update_elementwise = AdamWeightDecay.update  # graphs know no super()

    def update(self, i: int, rate: Tensor, gradient: Tensor, beta1: Tensor, beta2: Tensor) -> None:
        if not self.is_matrix[i]:
            self.update_elementwise(i, rate, gradient, beta1, beta2)
        else:
            parameter = self.parameters[i]
            moment = beta1 * self.moments1[i] + (1.0 - beta1) * gradient
            step = _orthogonalise(beta1 * moment + (1.0 - beta1) * gradient)
            step = 0.2 * math.sqrt(max(parameter.shape)) * step
            if self.decayed[i]:
                step = step + self.settings.weight_decay * parameter
            ops.assign(self.moments1[i], moment)
            ops.assign_sub(parameter, rate * step)


def _orthogonalise(matrix: Tensor) -> Tensor:
    """Return a matrix with the same singular vectors and singular values near 1: (rows, columns) float32.

    Five Newton-Schulz iterations with the coefficients of Jordan et al. (2024), which end between 0.7 and 1.2.
    """
    is_tall = matrix.shape[0] > matrix.shape[1]
    if is_tall:
        matrix = ops.transpose(matrix, (1, 0))
    matrix = matrix * (1.0 / (ops.sqrt(ops.reduce_sum(matrix * matrix)) + 1e-7))
    for _ in range(5):
        square = _matmul_transposed(matrix, matrix)
        polynomial = -4.7750 * square + 2.0315 * ops.matmul(square, square)
        matrix = 3.4445 * matrix + ops.matmul(polynomial, matrix)
    return ops.transpose(matrix, (1, 0)) if is_tall else matrix


_OPTIMIZER_CLASSES = {kind.__name__: kind for kind in (AdamWeightDecay, Lamb, Adam, Muon)}


def build_optimizer(
    parameters: Sequence[Parameter], settings: OptimizerSettings, train_steps: int, owners: Sequence[int] = ()
) -> Optimizer:
    """Return the optimizer named in `settings`; raise ConfigError for a warm-up that is too long."""
    return _OPTIMIZER_CLASSES[settings.name](parameters, settings, train_steps, owners)


def describe_decay_groups(optimizer: Optimizer) -> str:
    """Return a sentence with the numbers of tensors and values with and without weight decay."""
    groups: dict[bool, list[int]] = {True: [], False: []}
    for parameter, decayed in zip(optimizer.parameters, optimizer.decayed, strict=True):
        groups[decayed].append(parameter.size)
    with_decay, without = (f"{len(sizes)} tensors ({sum(sizes):,} values)" for sizes in groups.values())
    settings = optimizer.settings
    return f"{settings.name}: {with_decay} with weight decay {settings.weight_decay}, {without} without"
