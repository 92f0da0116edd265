"""Fine-tune every task with 1, 2 and 4 ranks, with and without accumulation, and compare logs and results.

    PYTHONPATH=. python docs/experiments/2026-11-30-ranks-of-every-task.py DATA RACE OUTPUT [TASK ...]

DATA has glue, ner, squad_v1 and squad_v2; RACE is its unpacked folder. Without dropout, whose masks differ by rank.
"""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

COMMON = (
    "--vocab_file_path pretrained/albert_small_en/vocab.txt --albert_network albert_tiny "
    "--albert_cfg.num_hidden_layers 1 --albert_cfg.hidden_size 48 --albert_cfg.num_attention_heads 2 "
    "--albert_cfg.embedding_size 16 --albert_cfg.intermediate_size 64 --albert_cfg.initializer_range 0.2 "
    "--albert_cfg.hidden_dropout_prob 0 --albert_cfg.attention_probs_dropout_prob 0 --length_buckets 1 "
    "--max_train_samples 192 --epoch_num 1 --log_steps 1 --feature_dir {output}/features "
    "--albert_cfg.classifier_dropout_prob 0 --global_batch_size 16 --threads 1 --device_target CPU "
    "--max_eval_samples 61 --do_predict false"
)
TASKS = {
    "classification": "run_classifier.py --task_name mrpc --data_dir {data}/glue/MRPC --max_seq_length 64",
    "scores": "run_classifier.py --data_dir {output}/scores --num_class 1 --max_seq_length 64",
    "any number of labels": "run_classifier.py --data_dir {output}/labels --multi_label true --max_seq_length 64",
    "taught classification": "run_classifier.py --task_name mrpc --data_dir {data}/glue/MRPC --max_seq_length 64 "
    "--teacher {output}/classification-1x16",
    "multiple choice": "run_race.py --data_dir {race} --level middle --max_seq_length 96",
    "SQuAD v1.1": "run_squad_v1.py --train_json_path {data}/squad_v1/train.json --eval_json_path "
    "{data}/squad_v1/dev.json --max_seq_length 96 --doc_stride 32",
    "SQuAD v2.0": "run_squad_v2.py --train_json_path {data}/squad_v2/train.json --eval_json_path "
    "{data}/squad_v2/dev.json --max_seq_length 96 --doc_stride 32",
    "token classification": "run_ner.py --data_dir {data}/ner/conll2003 --max_seq_length 64",
    "token classification, CRF": "run_ner.py --data_dir {data}/ner/conll2003 --max_seq_length 64 --crf true",
    "several tasks": "run_multitask.py --max_seq_length 64 --tasks '{{mrpc: {{task_name: mrpc, data_dir: "
    "{data}/glue/MRPC}}, ner: {{command: ner, data_dir: {data}/ner/conll2003}}}}'",
}
LAYOUTS = [(1, 16), (2, 8), (4, 4), (1, 4), (2, 4), (4, 2)]  # ranks, examples that each takes at once
TIMES = {"epoch", "examples_per_s", "tokens_per_s", "mfu", "eta_s", "seconds"}


def records(run: Path) -> list[dict]:
    """Return the log without times."""
    lines = (run / "train_log.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in TIMES} for line in lines]


def largest_difference(ours: list[dict], theirs: list[dict]) -> float:
    """Return the largest difference of two logs, relative to the values, of at least 0.01."""
    if [record.keys() for record in ours] != [record.keys() for record in theirs]:
        return np.inf
    numbers = [
        np.array([value for record in log for value in record.values() if not isinstance(value, str)], float)
        for log in (ours, theirs)
    ]
    differences = np.abs(numbers[0] - numbers[1]) / np.maximum(np.abs(numbers[1]), 0.01)
    differences[np.isnan(numbers[0]) & np.isnan(numbers[1])] = 0  # of a task without an update
    return float(differences.max())


def write_tables(sentences: Path, folder: Path) -> None:
    """Write SST-2's sentences with their number of letters as score, and with their vowels as labels."""
    lines = [line.rpartition("\t")[0] for line in sentences.read_text().splitlines()[1:300]]
    rows = {
        "scores": [{"text_a": line, "label": len(line) / 100} for line in lines],
        "labels": [{"text_a": line, "label": sorted({*line} & {*"aeiou"})} for line in lines],
    }
    for name, records in rows.items():
        for split, part in (("train", records[:200]), ("dev", records[200:])):
            file = folder / name / f"{split}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(json.dumps(record) + "\n" for record in part))


def main(data: str, race: str, output: str, *names: str) -> None:
    """Print a row for each task."""
    folder = Path(output).resolve()
    write_tables(Path(data) / "glue/SST-2/train.tsv", folder)
    print("| task | updates |" + "".join(f" {ranks} x {rows} |" for ranks, rows in LAYOUTS[1:]))
    print("|---|---|" + "---|" * len(LAYOUTS[1:]), flush=True)
    for name, command in TASKS.items():
        if names and name not in names:
            continue
        cells, alone = [], []
        for ranks, rows in LAYOUTS:
            run = folder / f"{name.replace(' ', '-')}-{ranks}x{rows}"
            shutil.rmtree(run, ignore_errors=True)
            words = [
                *shlex.split(command.format(data=data, race=race, output=folder)),
                *shlex.split(COMMON.format(output=folder)),
            ]
            words += ["--train_batch_size", str(rows), "--save_finetune_checkpoint_path", str(run)]
            launcher = ["scripts/launch.py", str(ranks), f"{run}-logs"] if ranks > 1 else []
            with Path(f"{run}.log").open("w") as log:
                done = subprocess.run([sys.executable, *launcher, *words], stdout=log, stderr=log, check=False)
            if done.returncode:
                cells.append(f"exit code {done.returncode}")
                continue
            alone = alone or records(run)
            cells.append(f"{largest_difference(records(run), alone):.1e}")
        print(f"| {name} | {len(alone)} | " + " | ".join(cells[1:]) + " |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
