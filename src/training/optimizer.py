"""AdamWeightDecay, LAMB and Adam with warm-up, polynomial decay and decay groups chosen by parameter name.

The update rules are those of google's ALBERT code: no bias correction in AdamWeightDecay and LAMB, epsilon outside
the square root, weight decay decoupled from the gradient (Loshchilov and Hutter 2019, algorithm 2; You et al. 2020,
algorithm 2). Adam is the bias-corrected form (Kingma and Ba 2015, end of section 2) without weight decay.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from model_utils.errors import ConfigError


@dataclass(frozen=True)
class OptimizerSettings:
    """One optimizer's settings; see training_config.DecayedAdamConfig for what each means.

    decay_filter: a parameter whose name contains one of these words gets neither weight decay nor layer adaptation.
    """

    name: str
    learning_rate: float
    end_learning_rate: float
    power: float
    warmup_steps: int
    weight_decay: float
    beta1: float
    beta2: float
    eps: float
    decay_filter: tuple[str, ...]


class LearningRate(nn.Cell):
    """Warm-up, then polynomial decay, over the updates of a run, skipped ones included: the run ends at the last rate.

    1. step < warmup_steps: learning_rate * step / warmup_steps.
    2. later: end + (learning_rate - end) * (1 - progress) ** power, where progress is step / train_steps, at most 1, or
       `elapsed` where that is more. As in google's code the decay counts from step 0, so the rate after warm-up starts
       slightly below learning_rate.

    Inputs: step, counted from 1, (); elapsed () float32: share of the run's time that is over; 0: it is not limited.
    """

    def __init__(self, settings: OptimizerSettings, train_steps: int) -> None:
        super().__init__()
        if not 0 <= settings.warmup_steps < train_steps:
            raise ConfigError(
                f"optimizer_cfg.{settings.name}.warmup_steps is {settings.warmup_steps}, the run has {train_steps} "
                "updates in all: the warm-up must be shorter than the run"
            )
        self.peak, self.end, self.power = settings.learning_rate, settings.end_learning_rate, settings.power
        self.warmup_steps, self.train_steps = settings.warmup_steps, train_steps

    def construct(self, step: Tensor, elapsed: Tensor) -> Tensor:
        step = ops.cast(step, ms.float32)
        progress = ops.maximum(ops.minimum(step, float(self.train_steps)) / self.train_steps, elapsed)
        rate = self.end + (self.peak - self.end) * ops.pow(1.0 - progress, self.power)
        if self.warmup_steps > 0:
            rate = ops.select(step < self.warmup_steps, self.peak * step / self.warmup_steps, rate)
        return rate


_fused_adam_weight_decay = ops.AdamWeightDecay()
_fused_adam = ops.Adam()


class Optimizer(nn.Cell):
    """Applies one update to all parameters; its own Parameters are the moments and `global_step` (updates applied).

    Inputs: a tuple of float32 gradients in the order of `parameters`; () int32 which update of the run this is, counted
    from 1, skipped ones included; () float32 elapsed as in LearningRate. Output: the learning rate used, () float32.
    """

    def __init__(self, parameters: Sequence[Parameter], settings: OptimizerSettings, train_steps: int) -> None:
        super().__init__(auto_prefix=False)
        self.parameters = ParameterTuple(parameters)
        self.moments1 = self.parameters.clone(prefix="adam_m", init="zeros")
        self.moments2 = self.parameters.clone(prefix="adam_v", init="zeros")
        self.global_step = Parameter(Tensor(0, ms.int32), name="global_step")
        self.learning_rate = LearningRate(settings, train_steps)
        self.settings = settings
        self.adapted = tuple(not any(word in p.name for word in settings.decay_filter) for p in self.parameters)
        self.decayed = tuple(adapted and settings.weight_decay > 0.0 for adapted in self.adapted)

    def construct(self, gradients: tuple[Tensor, ...], step: Tensor, elapsed: Tensor) -> Tensor:
        rate = self.learning_rate(step, elapsed)
        for i in range(len(self.decayed)):
            self.update(i, rate, gradients[i])
        ops.assign_add(self.global_step, Tensor(1, ms.int32))
        return rate

    def update(self, i: int, rate: Tensor, gradient: Tensor) -> None:
        """Update parameter number i in place."""
        raise TypeError(f"{type(self).__name__} has no update rule")


class AdamWeightDecay(Optimizer):
    """p -= rate * (m / (sqrt(v) + eps) + weight_decay * p), through MindSpore's fused kernel."""

    def update(self, i: int, rate: Tensor, gradient: Tensor) -> None:
        s = self.settings
        decay = s.weight_decay if self.decayed[i] else 0.0
        _fused_adam_weight_decay(
            self.parameters[i], self.moments1[i], self.moments2[i], rate, s.beta1, s.beta2, s.eps, decay, gradient
        )


class Lamb(Optimizer):
    """AdamWeightDecay's step, scaled per parameter by |p| / |step|; not scaled for names in decay_filter."""

    def update(self, i: int, rate: Tensor, gradient: Tensor) -> None:
        s, parameter = self.settings, self.parameters[i]
        moment1 = s.beta1 * self.moments1[i] + (1.0 - s.beta1) * gradient
        moment2 = s.beta2 * self.moments2[i] + (1.0 - s.beta2) * (gradient * gradient)
        step = moment1 * (1.0 / (ops.sqrt(moment2) + s.eps))  # a quotient of tensors keeps lists of indices (Spread)
        if self.decayed[i]:
            step = step + s.weight_decay * parameter
        if self.adapted[i]:
            parameter_norm = ops.sqrt(ops.reduce_sum(parameter * parameter))
            step_norm = ops.sqrt(ops.reduce_sum(step * step))
            both = ops.logical_and(parameter_norm > 0.0, step_norm > 0.0)
            safe_norm = ops.select(both, step_norm, ops.ones_like(step_norm))
            rate = rate * ops.select(both, parameter_norm / safe_norm, ops.ones_like(step_norm))
        ops.assign(self.moments1[i], moment1)
        ops.assign(self.moments2[i], moment2)
        ops.assign_sub(parameter, rate * step)


class Adam(Optimizer):
    """Bias-corrected Adam through MindSpore's fused kernel."""

    def update(self, i: int, rate: Tensor, gradient: Tensor) -> None:
        s, parameter, moment1, moment2 = self.settings, self.parameters[i], self.moments1[i], self.moments2[i]
        done = ops.cast(self.global_step + 1, ms.float32)
        power1, power2 = ops.pow(Tensor(s.beta1, ms.float32), done), ops.pow(Tensor(s.beta2, ms.float32), done)
        _fused_adam(parameter, moment1, moment2, power1, power2, rate, s.beta1, s.beta2, s.eps, gradient)


OPTIMIZERS = {kind.__name__: kind for kind in (AdamWeightDecay, Lamb, Adam)}


def build_optimizer(parameters: Sequence[Parameter], settings: OptimizerSettings, train_steps: int) -> Optimizer:
    """The optimizer named in `settings`; ConfigError for an unknown one, or a warm-up longer than the run."""
    if settings.name not in OPTIMIZERS:
        raise ConfigError(f"optimizer_cfg.optimizer is {settings.name!r}, allowed are {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[settings.name](parameters, settings, train_steps)


def describe_decay_groups(optimizer: Optimizer) -> str:
    """One sentence with the number of tensors and of values that get weight decay and that do not."""
    counts = {True: [0, 0], False: [0, 0]}
    for parameter, decayed in zip(optimizer.parameters, optimizer.decayed, strict=True):
        counts[decayed][0] += 1
        counts[decayed][1] += int(np.prod(parameter.shape))
    return (
        f"{optimizer.settings.name}: {counts[True][0]} tensors ({counts[True][1]:,} values) with weight decay "
        f"{optimizer.settings.weight_decay}, {counts[False][0]} tensors ({counts[False][1]:,} values) without"
    )
