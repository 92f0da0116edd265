"""Operations of compiled training graphs; MindSpore is imported late, after it is told to save graphs."""

import os
import re
from collections import Counter
from pathlib import Path

from benchmarks.pretraining import random_batch
from model_utils.backend import Backend
from model_utils.device import setup_device
from src.albert_config import PRESETS

# Other names for the same memory, and the order of things.
MOVE_NO_DATA = ("Reshape", "Depend", "MakeTuple", "TupleGetItem", "Return", "Load", "UpdateState")


class FinalGraphs:
    """Graphs of the loss and its gradients on a GPU, as MindSpore's compiler leaves them in a folder.

    Made in a process of its own, because the compiler reads where to save graphs when MindSpore is loaded.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        os.environ |= {
            "MS_DEV_SAVE_GRAPHS": "1",
            "MS_DEV_SAVE_GRAPHS_PATH": str(folder),
            "MS_DEV_DUMP_IR_PASSES": "validate",
        }

    @staticmethod
    def compile(layers: int, dropout: float) -> None:
        setup_device("CPU")
        import mindspore as ms
        from mindspore import Tensor, ops

        from src.albert_for_pre_training import AlbertForPreTraining

        config = PRESETS["albert_tiny"].replace(
            num_hidden_layers=layers,
            compute_type="float16",
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
            backend=Backend.ACCELERATOR,
        )
        network = AlbertForPreTraining(config, seed=1).set_train(True)
        columns = random_batch(config, 2, 128)
        gradient = ops.value_and_grad(network, None, ms.ParameterTuple(network.trainable_params()), has_aux=True)

        @ms.jit
        def compute(*inputs: Tensor) -> tuple:
            return gradient(*inputs)

        compute(*(Tensor(columns[name]) for name in network.input_columns), Tensor(1, ms.int32))

    def operations(self, layers: int, dropout: float) -> dict[str, int]:
        """Return the number of operations by name."""
        earlier = set(self.folder.glob("*_validate_*.ir"))
        self.compile(layers, dropout)
        (file,) = set(self.folder.glob("*_validate_*.ir")) - earlier
        names = re.findall(r"^\s*%\S+ = (?:Primitive::|PrimFunc_)?(\w+)\(", file.read_text("utf-8"), re.MULTILINE)
        return Counter(name for name in names if name not in MOVE_NO_DATA)
