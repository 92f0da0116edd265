#!/usr/bin/env bash
# Makes version_0_1_0.tar.xz: bash tests/golden/make_version_0_1_0.sh CHECKOUT, a checkout of commit 97f6c8e.
# Everything is made in /tmp/albert-0.1.0, and named from there.
set -euo pipefail
old=$(realpath "$1") here=$(realpath "$(dirname "$0")") work=/tmp/albert-0.1.0
python=$old/.venv/bin/python
export PYTHONPATH=$old
mkdir "$work" && cd "$work"
mkdir commands expected

$python - <<'PYTHON'
"""Texts, one telling word in most of them, and the records that are predicted."""
import json
from pathlib import Path
from random import Random

random = Random(7)
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
GOOD, BAD, PEOPLE, PLACES = "fine lovely great".split(), "dull awful poor".split(), "ada bob carl".split(), "rome oslo".split()
OTHER = "the film plot is was a very and in who where sees likes old new red big house tree river dog cat . ?".split()
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = GOOD + BAD + PEOPLE + PLACES + OTHER


def sentence(*telling, least=3, most=12):
    words = random.choices(OTHER[:-2], k=random.randint(least, most))
    for word in telling:
        words.insert(random.randint(0, len(words)), word)
    return words


def write(name, text):
    path = Path("texts") / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_records(name, records):
    Path("records").mkdir(exist_ok=True)
    Path(f"records/{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


write("vocab.txt", "\n".join([*SPECIALS, *WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]) + "\n")
for name, documents in (("train", 60), ("held_out", 10)):
    made = [[" ".join(sentence(random.choice(WORDS))) + " ." for _ in range(8)] for _ in range(documents)]
    write(f"pretrain_{name}.txt", "\n\n".join("\n".join(lines) for lines in made))
write_records("fill_mask", [{"text": "the [MASK] is very old ."}, {"text": "ada likes the [MASK] in [MASK] ."}])

for name, rows in (("train", 96), ("dev", 24)):
    classes = [("good", GOOD), ("bad", BAD), ("none", OTHER)]
    lines = [(label, sentence(random.choice(words))) for label, words in random.choices(classes, k=rows)]
    write(f"classification/{name}.tsv", "review\tstars\n" + "".join(f"{' '.join(w)}\t{label}\n" for label, w in lines))
    lines = []
    for _ in range(rows):
        one, two = sentence(), sentence(most=6)
        lines.append(f"{' '.join(one)}\t{' '.join(two)}\t{len(set(one) & set(two)) + random.random():.3f}\n")
    write(f"regression/{name}.tsv", "text_a\ttext_b\tlabel\n" + "".join(lines))
write_records("classification", [{"text_a": "a great film"}, {"text_a": "the plot is awful and dull"}, {"text_a": "a dog"}])
write_records("regression", [{"text_a": "a great film", "text_b": "a film"}, {"text_a": "the dog", "text_b": "rome"}])

for split, passages in (("train", 12), ("dev", 4)):
    for number in range(passages):
        right = [random.choice(PEOPLE + PLACES) for _ in range(3)]
        options = [random.sample([word for word in PEOPLE + PLACES if word != one], 3) for one in right]
        answers = [random.randrange(4) for _ in right]
        for one, wrong, place in zip(right, options, answers):
            wrong.insert(place, one)
        passage = {
            "id": f"{split}{number}.txt",
            "article": " ".join(sentence(*right, least=12, most=16)),
            "questions": ["who is in the house ?", "where is the dog ?", "who likes the cat ?"],
            "options": options,
            "answers": ["ABCD"[place] for place in answers],
        }
        write(f"race/{split}/middle/{number}.txt", json.dumps(passage))
records = [{"article": "the cat likes bob", "question": "who ?", "options": ["ada", "bob", "rome", "a dog"]}]
write_records("multiple_choice", records + [{**records[0], "article": "the river in rome", "question": "where ?"}])

for version in ("squad_v1", "squad_v2"):
    for name, count in (("train", 32), ("dev", 8)):
        paragraphs = []
        for number in range(count):
            person, place = random.choice(PEOPLE), random.choice(PLACES)
            nobody = version == "squad_v2" and number % 3 == 0
            context = " ".join(sentence(place, *([] if nobody else [person]), least=20, most=50))
            answers = [] if nobody else [{"text": person, "answer_start": context.split().index(person)}]
            for answer in answers:
                answer["answer_start"] = len(" ".join(["", *context.split()[: answer["answer_start"]], ""])) - 1
            question = {"id": f"{name}{number}", "question": "who likes the dog ?", "answers": answers}
            question |= {"is_impossible": nobody} if version == "squad_v2" else {}
            paragraphs.append({"context": context, "qas": [question]})
        write(f"{version}/{name}.json", json.dumps({"version": "test", "data": [{"title": "t", "paragraphs": paragraphs}]}))
    contexts = "in the old house ada sees a river and the tree", "the film was very dull " * 8 + "and bob likes rome"
    write_records(version, [{"context": context, "question": "who likes the dog ?"} for context in contexts])

for name, count in (("train", 64), ("dev", 16)):
    tagged = []
    for _ in range(count):
        words = sentence(random.choice(PEOPLE), random.choice(PLACES))
        tags = ["B-PER" if word in PEOPLE else "B-LOC" if word in PLACES else "O" for word in words]
        tagged.append("\n".join(f"{word} {tag}" for word, tag in zip(words, tags)))
    write(f"ner/{name}.txt", "\n\n".join(tagged) + "\n")
write_records("token_classification", [{"text": "ada likes rome and the river"}, {"text": "bob was in oslo ."}])
PYTHON

run() { # run NAME COMMAND [ARGUMENT ...]: keeps the command, one word a line, beside what it makes
    local name=$1
    shift
    printf '%s\n' "$@" > "commands/$name.txt"
    case $1 in
    *.py) $python "$old/$1" "${@:2}" ;;
    *) $python -m "$@" ;;
    esac
}

# stop NAME STEP COMMAND [ARGUMENT ...]: as run, but asks for a stop when the line of STEP appears
stop() {
    local name=$1 step=$2 code=0
    shift 2
    printf '%s\n' "$@" > "commands/$name.txt"
    $python -c '
import signal, subprocess, sys
process = subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE, text=True)
for line in process.stdout:
    print(line, end="")
    if line.startswith(f"step {sys.argv[1]}/"):
        process.send_signal(signal.SIGTERM)
sys.exit(process.wait())' "$step" "$python" "$old/$1" "${@:2}" || code=$?
    [ "$code" = 143 ] # it was stopped, not finished
}

model=(--config_path /dev/null --device_target CPU --albert_cfg.embedding_size 8 --albert_cfg.hidden_size 16
    --albert_cfg.num_hidden_layers 2 --albert_cfg.num_attention_heads 2 --albert_cfg.intermediate_size 32
    --albert_cfg.max_position_embeddings 48 --albert_cfg.initializer_range 0.5 --optimizer_cfg.AdamWeightDecay.beta2 0.98)
pretrain=(run_pretrain.py "${model[@]}" --data_dir pretrain/train --eval_data_dir pretrain/held_out --batch_size 8
    --train_steps 40 --optimizer_cfg.AdamWeightDecay.warmup_steps 4 --optimizer_cfg.AdamWeightDecay.learning_rate 0.003
    --log_steps 1 --eval_steps 20 --save_checkpoint_steps 10)
finetune=("${model[@]}" --load_pretrain_checkpoint_path runs/pretrain --albert_cfg.classifier_dropout_prob 0
    --max_seq_length 40 --length_buckets 1 --train_batch_size 8 --epoch_num 3 --warmup_ratio 0.1 --log_steps 4
    --optimizer_cfg.AdamWeightDecay.warmup_steps 0 --optimizer_cfg.AdamWeightDecay.learning_rate 0.01)
classification=(--data_dir texts/classification --text_a_column review --label_column stars)

for part in train held_out; do
    run "pretrain_data_$part" src.create_pretraining_data --config_path /dev/null --input_file "texts/pretrain_$part.txt" \
        --output_file "pretrain/$part/$part.mindrecord" --vocab_file texts/vocab.txt --max_seq_length 32 \
        --max_predictions_per_seq 5 --dupe_factor 1 --num_workers 1
done
run pretrain "${pretrain[@]}" --save_checkpoint_path runs/pretrain
stop pretrain_unfinished 13 "${pretrain[@]}" --save_checkpoint_path runs/pretrain_unfinished
run pretrain_eval pretrain_eval.py --config_path /dev/null --device_target CPU --load_checkpoint_path runs/pretrain \
    --data_dir pretrain/held_out --batch_size 8 --output_path expected/pretrain_eval

run classification run_classifier.py "${finetune[@]}" "${classification[@]}" --feature_dir features \
    --save_finetune_checkpoint_path runs/classification
stop classification_unfinished 16 run_classifier.py "${finetune[@]}" "${classification[@]}" --feature_dir features \
    --save_finetune_checkpoint_path runs/classification_unfinished
run vocabulary src.train_vocabulary --input_file texts/pretrain_train.txt --output_prefix texts/sentencepiece --vocab_size 60
run regression run_classifier.py "${finetune[@]}" --load_pretrain_checkpoint_path "" --spm_model_file texts/sentencepiece.model \
    --data_dir texts/regression --text_b_column text_b --num_class 1 --feature_dir other_features \
    --save_finetune_checkpoint_path runs/regression
run multiple_choice run_race.py "${finetune[@]}" --data_dir texts/race --level middle --max_qa_length 16 \
    --feature_dir other_features --save_finetune_checkpoint_path runs/multiple_choice
for version in v1 v2; do
    run "squad_$version" "run_squad_$version.py" "${finetune[@]}" --epoch_num 10 --train_json_path "texts/squad_$version/train.json" \
        --eval_json_path "texts/squad_$version/dev.json" --max_query_length 8 --doc_stride 12 --n_best_size 4 \
        --feature_dir other_features --save_finetune_checkpoint_path "runs/squad_$version"
done
run token_classification run_ner.py "${finetune[@]}" --epoch_num 12 --data_dir texts/ner --feature_dir other_features \
    --save_finetune_checkpoint_path runs/token_classification

for task in fill_mask classification regression multiple_choice squad_v1 squad_v2 token_classification; do
    folder=runs/${task/fill_mask/pretrain}
    run "export_$task" export.py --config_path /dev/null --device_target CPU --export_ckpt_file "$folder" \
        --export_file_name "exports/$task/$task"
    for model in "$folder" "exports/$task/$task.mindir"; do
        form=$([ "$model" = "$folder" ] && echo checkpoint || echo mindir)
        run "predict_${task}_$form" predict.py --device_target CPU --model "$model" --input "records/$task.jsonl" \
            --output "expected/$task.$form.jsonl"
    done
done
run convert model_utils.convert_ckpt --source mindspore --target hf --input runs/classification --output hugging_face

rm -r other_features runs/*/{tensorboard,curves.png,.lock} exports/*/kernel_meta kernel_meta rank_0 2> /dev/null || true
# MindRecord files are mostly zeros: as holes they take no room, neither here nor where they are unpacked.
XZ_OPT=-9e tar --create --sparse --hole-detection=raw --sort=name --owner=0 --group=0 --numeric-owner --xz \
    --file "$here/version_0_1_0.tar.xz" --directory "$work" .
