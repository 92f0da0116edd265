#!/usr/bin/env bash
# Pre-train and fine-tune a small ALBERT from scratch, in a few minutes on two cores: English text from Python's own
# documentation -> vocabulary -> examples -> pre-training -> evaluation -> fine-tuning from three starts -> export ->
# predictions. Running the command again continues where it stopped.
# usage: bash scripts/quickstart.sh [FOLDER]     (default: output/quickstart in the project's root)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
show_usage "$@"
folder=$(realpath -m "${1:-$PROJECT/output/quickstart}")
prepare_environment requirements.txt
cd "$PROJECT"

heading() { printf '\n== %s\n' "$*"; }

examples() { # NAME REPETITIONS: writes examples of FOLDER/text/NAME.txt to FOLDER/NAME
    python -m src.create_pretraining_data --input_file "$folder/text/$1.txt" --output_file "$folder/$1/$1.mindrecord" \
        --spm_model_file "$folder/train/vocabulary.model" --dupe_factor "$2" \
        --max_seq_length 64 --max_predictions_per_seq 10 --ngram 1
}

# Relative positions learn to use neighbouring words within a few hundred updates; absolute ones take thousands.
shape=(--albert_network albert_tiny --albert_cfg.hidden_size 128 --albert_cfg.num_hidden_layers 2
    --albert_cfg.num_attention_heads 4 --albert_cfg.intermediate_size 512 --albert_cfg.max_position_embeddings 64
    --albert_cfg.use_relative_positions true --albert_cfg.max_relative_position 16)

finetune() { # FOLDER EPOCHS ARGUMENTS...: trains a classifier of docstrings by part of the standard library
    python run_classifier.py --save_finetune_checkpoint_path "$1" --epoch_num "${@:2}" --data_dir "$folder/parts" \
        --text_a_column docstring --label_column part --feature_dir "$folder/features" --max_seq_length 64
}

heading "1/10 text"
if ! [ -e "$folder/text/heldout.txt" ]; then python -m scripts.quickstart_corpus --output_dir "$folder/text"; fi

heading "2/10 vocabulary"
if ! [ -e "$folder/train/vocabulary.model" ]; then
    python -m src.train_vocabulary --input_file "$folder/text/train.txt" --output_prefix "$folder/train/vocabulary" --vocab_size 2000
fi

heading "3/10 examples"
examples train 10
examples heldout 2

heading "4/10 pre-training"
python run_pretrain.py --data_dir "$folder/train" --save_checkpoint_path "$folder/run" --train_steps 2000 --batch_size 32 \
    "${shape[@]}" \
    --optimizer_cfg.AdamWeightDecay.learning_rate 2e-3 --optimizer_cfg.AdamWeightDecay.warmup_steps 100 \
    --optimizer_cfg.AdamWeightDecay.beta2 0.98

heading "5/10 evaluation on held-out text"
python pretrain_eval.py --load_checkpoint_path "$folder/run" --data_dir "$folder/heldout"

heading "6/10 three masked sentences"
python predict.py --model "$folder/run" --input - --input_format text --output - --top_k 3 <<'END'
Return a list of all the [MASK] in the file.
Raise an error if the [MASK] does not exist.
If the argument is not given, the default [MASK] is used.
END

heading "7/10 fine-tuning: which part of the standard library does a docstring belong to?"
if ! [ -e "$folder/parts/dev.tsv" ]; then python -m scripts.quickstart_parts --output_dir "$folder/parts"; fi
finetune "$folder/warm" 4 --load_pretrain_checkpoint_path "$folder/run"

heading "8/10 fine-tuning without pre-training, with settings for training from scratch"
finetune "$folder/cold" 4 --spm_model_file "$folder/train/vocabulary.model" "${shape[@]}" \
    --albert_cfg.initializer_range 0.03 --optimizer_cfg.AdamWeightDecay.learning_rate 1e-3

heading "9/10 fine-tuning from the small model that is part of the project"
finetune "$folder/small" 2 --load_pretrain_checkpoint_path pretrained/albert_small_en

heading "accuracy on held-out docstrings"
python - "$folder" <<'END'
import json, sys
starts = {"small": "from pretrained/albert_small_en", "warm": "from the pre-training above", "cold": "not pre-trained"}
for name, start in starts.items():
    with open(f"{sys.argv[1]}/{name}/eval_results.json", encoding="utf-8") as file:
        results = json.load(file)
    print(f"{start}: {results['accuracy']:.3f} (always the most frequent part: {results['baselines']['accuracy']:.3f})")
END

heading "10/10 export of the classifier as MINDIR, and its predictions for two sentences"
python export.py --config_path task_classifier_config.yaml --export_ckpt_file "$folder/small" --export_file_name "$folder/export/parts"
python predict.py --model "$folder/export/parts.mindir" --input - --input_format text --output - <<'END'
Wait until all the tasks of the event loop are done.
Return the message's subject, with its headers decoded.
END

heading "done in $((SECONDS / 60)) min $((SECONDS % 60)) s; the curves are in $folder/run/curves.png"
