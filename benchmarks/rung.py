"""The rungs of a ladder of pre-training recipes: yaml files that say what differs from another rung, and why."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from model_utils.errors import ConfigError
from model_utils.schema import Config, merge, option, section
from model_utils.yaml_files import read_yaml
from src.create_pretraining_data import CreateDataConfig
from src.train_vocabulary import ENTRIES
from src.training.training_config import PretrainConfig

SUFFIX = ".yaml"
LATER = "later"  # data_dir of a phase that reads examples of its own
OF_THE_LADDER = {  # the same on all rungs, or set for each
    "data": ("input_file", "output_file", "vocab_file", "spm_model_file"),
    "pretrain": ("data_dir", "save_checkpoint_path", "train_steps", "max_train_hours", "seed"),
}


class Rung(Config):
    """One recipe, complete."""

    question: str = option("", "what this rung is to show")
    vocab_size: int = option(
        0, "pieces of a vocabulary of the ladder's own text; 0: --spm_model_file", minimum=0, maximum=ENTRIES
    )
    data: CreateDataConfig = section(CreateDataConfig(), "keys of src.create_pretraining_data")
    later_data: CreateDataConfig = section(
        CreateDataConfig(), f"keys that differ from data in the examples of phases whose data_dir is {LATER}"
    )
    pretrain: PretrainConfig = section(PretrainConfig(), "keys of run_pretrain.py")

    def validate(self) -> None:
        if not self.question:
            raise ConfigError("question is empty: say what the rung is to show")
        for name, keys in OF_THE_LADDER.items():
            part = getattr(self, name)
            for key in keys:
                if getattr(part, key) != type(part).model_fields[key].default:
                    raise ConfigError(f"{name}.{key} is the same on all rungs, or set for each: leave it out")
        wrong = [phase.data_dir for phase in self.pretrain.phases if phase.data_dir not in (None, LATER)]
        if wrong:
            raise ConfigError(f"data_dir of a phase is {wrong[0]}, allowed is {LATER}, for examples as in later_data")

    @classmethod
    def read(cls, file: Path) -> Self:
        """The rung of a file, on top of the one that its key `base` names.

        Raises:
            ConfigError: a file is missing, a key or value in it is wrong, or the bases go round in a circle.
        """
        try:
            tree = _tree(file, ())
            if "later_data" in tree:
                tree["later_data"] = merge(tree.get("data", {}), tree["later_data"])
            return cls(**tree)
        except ConfigError as error:
            raise ConfigError(f"{file}: {error}") from None

    @property
    def all_data(self) -> dict[str, CreateDataConfig]:
        """The settings of all its examples, by the data_dir of the phases that read them, "" for those of the run."""
        later = any(phase.data_dir == LATER for phase in self.pretrain.phases)
        return {"": self.data} | ({LATER: self.later_data} if later else {})

    def training(self, folders: Mapping[str, Path], run: Path, updates: int, seed: int) -> PretrainConfig:
        """The configuration of run_pretrain.py with which this rung is trained; folders: with all_data, made."""
        phases = [
            phase.replace(data_dir=folders[phase.data_dir]) if phase.data_dir else phase
            for phase in self.pretrain.phases
        ]
        return self.pretrain.replace(
            data_dir=folders[""],
            phases=tuple(phases),
            save_checkpoint_path=run,
            train_steps=updates,
            seed=seed,
        )


def _tree(file: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    """All keys of a rung; above: the files that are based on it."""
    if file in above:
        raise ConfigError(f"base is {file.stem} again, on which {above[-1].stem} is based already")
    own = read_yaml(file)
    base = own.pop("base", None)
    if base is None:
        return own
    if not isinstance(base, str) or not (below := file.with_name(f"{base}{SUFFIX}")).is_file():
        raise ConfigError(f"base is {base!r}, allowed is the name of a rung in the same folder, without {SUFFIX}")
    tree = _tree(below, (*above, file))
    tree.pop("question", None)  # each rung has its own
    return merge(tree, own)


def find_rungs(places: Sequence[str]) -> dict[str, Rung]:
    """Rungs by name, in the order of the places and, of a folder, of its files' names.

    Args:
        places: yaml files and folders of them.

    Raises:
        ConfigError: as Rung.read; a place is neither, a folder has no rung, or two rungs have one name.
    """
    rungs: dict[str, Rung] = {}
    for place in map(Path, places):
        files = sorted(place.glob(f"*{SUFFIX}"), key=lambda file: file.stem) if place.is_dir() else [place]
        if not files:
            raise ConfigError(f"rungs names {place}, a folder without *{SUFFIX}")
        for file in files:
            if file.stem in rungs:
                raise ConfigError(f"rungs names two files {file.name}: their runs would share a folder")
            rungs[file.stem] = Rung.read(file)
    return rungs
