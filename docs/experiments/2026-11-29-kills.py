"""Kill commands at random moments, start them again until they end, and compare what they wrote.

    PYTHONPATH=. python docs/experiments/2026-11-29-kills.py TEXT GLUE_FOLDER OUTPUT [KILLS [STAGE ...]]

TEXT is a file of text, GLUE_FOLDER has SST-2. Each stage runs once undisturbed, then as often as KILLS kills need. Each
kill is SIGKILL to one random process of the command, after a random share of the undisturbed run's time.
"""

import hashlib
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from src.checkpoints.checkpoint_files import list_checkpoints, read_checkpoint

PRETRAINED = "pretrained/albert_small_en"
TINY = (
    "--albert_network albert_tiny --albert_cfg.num_hidden_layers 1 --albert_cfg.hidden_size 48 "
    "--albert_cfg.num_attention_heads 2 --albert_cfg.embedding_size 16 --albert_cfg.intermediate_size 64"
)
PRETRAIN = (
    f"--data_dir {{input}} {TINY} --train_steps 600 --batch_size 4 --save_checkpoint_steps 20 --threads 1 "
    "--eval_data_dir {input} --eval_steps 100 --eval_batches 4 --save_checkpoint_path {output}"
)
STAGES = {
    "creation of pre-training data": "-m src.create_pretraining_data --input_file {text} "
    f"--vocab_file {PRETRAINED}/vocab.txt --max_seq_length 64 --output_file {{output}}/train.mindrecord",
    "pre-training, one process": f"run_pretrain.py {PRETRAIN}",
    "pre-training, two processes": f"scripts/launch.py 2 {{output}}-logs run_pretrain.py {PRETRAIN}",
    "fine-tuning": "run_classifier.py --task_name sst-2 --data_dir {glue}/SST-2 --max_train_samples 512 "
    "--max_eval_samples 128 --max_seq_length 32 --epoch_num 2 --save_checkpoint_steps 4 --threads 1 "
    f"--load_pretrain_checkpoint_path {PRETRAINED} --do_predict false --save_finetune_checkpoint_path {{output}}",
    "predictions": f"predict.py --model {PRETRAINED} --input {{sentences}} --input_format text --threads 1 "
    "--output {output}/answers.jsonl",
    "conversion": f"-m model_utils.convert_ckpt --source mindspore --target hf --input {PRETRAINED} "
    "--output {output}/hf",
    "export": f"export.py --export_ckpt_file {PRETRAINED} --export_file_name {{output}}/model",
}
VOLATILE = {".lock", "config.yaml", "curves.png", "README.md", "train_results.json"}  # paths and times of the run
SENTENCES = 3000


def descendants(pid: int) -> Iterator[int]:
    """Yield the process and all its descendants."""
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from descendants(int(child))


def start(words: list[str], log: Path) -> subprocess.Popen:
    """Start the command in a session of its own."""
    with log.open("a") as output:
        return subprocess.Popen([sys.executable, *words], stdout=output, stderr=output, start_new_session=True)


def run_until_done(words: list[str], log: Path, seconds: float, quota: int, rng: random.Random) -> int:
    """Start and kill the command until it ends by itself or the quota is used up; return the number of kills."""
    kills = 0
    while True:
        process = start(words, log)
        deadline = time.monotonic() + (rng.uniform(0.1, 1.0) * seconds if kills < quota else 3600)
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if process.poll() is None:
            os.kill(rng.choice(list(descendants(process.pid))), signal.SIGKILL)
            kills += 1
            process.wait()
            wait_for_group(process.pid)
        elif process.returncode == 0:
            return kills
        elif kills == 0:
            raise SystemExit(f"exit code {process.returncode}: see {log}")


def wait_for_group(group: int) -> None:
    """Wait until no process of the group is left: at most 60 s are promised."""
    for _ in range(1200):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise SystemExit(f"processes of group {group} are left after 60 s")


def contents(folder: Path) -> dict[str, str]:
    """Return a digest for each file that a command has left; checkpoints count by their newest weights."""
    digests = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if path.name in VOLATILE or path.suffix in (".ckpt", ".html") or "tfevents" in name:
            continue
        data = path.read_bytes()
        if path.name == "train_log.jsonl":
            records = [json.loads(line) for line in data.splitlines()]
            data = repr([(record["step"], record["loss"]) for record in records]).encode()
        digests[name] = hashlib.sha256(data).hexdigest()
    checkpoints = list_checkpoints(folder)
    if checkpoints:
        newest = max(checkpoints)[1]
        weights = read_checkpoint(newest).values
        digest = hashlib.sha256()
        for name, values in sorted(weights.items()):
            digest.update(name.encode() + values.tobytes())
        digests["weights of " + newest.name] = digest.hexdigest()
    return digests


def main(text: str, glue: str, output: str, kills: str = "30", *stages: str) -> None:
    """Print a row for each stage."""
    folder = Path(output).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    sentences = folder / "sentences.txt"
    lines = [line for line in Path(text).read_text().splitlines() if len(line) > 80][:SENTENCES]
    sentences.write_text("".join(line[:200].replace(line.split()[3], "[MASK]", 1) + "\n" for line in lines))
    places = {"text": text, "glue": glue, "sentences": sentences, "input": folder / "creation-of-pre-training-data"}
    rng = random.Random(0)
    print("| stage | kills | runs that ended | the same |\n|---|---|---|---|", flush=True)
    for stage, command in STAGES.items():
        name = stage.replace(" ", "-").replace(",", "")
        if stages and name not in stages and not name.startswith("creation"):
            continue

        def words(target: Path, command: str = command) -> list[str]:
            target.mkdir()
            return shlex.split(command.format(output=target, **places))

        begin = time.monotonic()
        process = start(words(folder / name), folder / f"{name}.log")
        if process.wait():
            raise SystemExit(f"{stage} failed undisturbed: see {folder / name}.log")
        seconds = time.monotonic() - begin
        wanted = contents(folder / name)
        done, runs, equal = 0, 0, 0
        while done < int(kills):
            target = folder / f"{name}-{runs}"
            done += run_until_done(words(target), folder / f"{name}.log", seconds, int(kills) - done, rng)
            runs += 1
            found = contents(target)
            equal += found == wanted
            if found != wanted:
                different = {key for key in {*found, *wanted} if found.get(key) != wanted.get(key)}
                print(f"{target}: {sorted(different)} differ", file=sys.stderr, flush=True)
        print(f"| {stage}, {seconds:.0f} s | {done} | {runs} | {equal} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
