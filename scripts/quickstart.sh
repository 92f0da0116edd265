#!/usr/bin/env bash
# From an empty folder to a small ALBERT that fills in masks, in a few minutes on two cores: the English that every
# Python carries -> vocabulary -> examples -> pre-training -> evaluation. The same command again takes up where it stopped.
# usage: bash scripts/quickstart.sh [FOLDER]     (default: output/quickstart in the project's root)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
folder=$(realpath -m "${1:-$PROJECT/output/quickstart}")
prepare_environment requirements.txt
cd "$PROJECT"

say() { printf '\n== %s\n' "$*"; }

examples() { # NAME REPETITIONS: examples of FOLDER/text/NAME.txt in FOLDER/NAME
    python -m src.create_pretraining_data --input_file "$folder/text/$1.txt" --output_file "$folder/$1/$1.mindrecord" \
        --spm_model_file "$folder/train/vocabulary.model" --dupe_factor "$2" \
        --max_seq_length 64 --max_predictions_per_seq 10 --ngram 1
}

say "1/6 text"
if ! [ -e "$folder/text/heldout.txt" ]; then python -m src.quickstart_corpus --output_dir "$folder/text"; fi

say "2/6 vocabulary"
if ! [ -e "$folder/train/vocabulary.model" ]; then
    python -m src.train_vocabulary --input_file "$folder/text/train.txt" --output_prefix "$folder/train/vocabulary" --vocab_size 2000
fi

say "3/6 examples"
examples train 10
examples heldout 2

say "4/6 pre-training"
# Relative positions find the neighbouring words within a few hundred updates; absolute ones take thousands.
python run_pretrain.py --data_dir "$folder/train" --save_checkpoint_path "$folder/run" --train_steps 2000 --batch_size 32 \
    --albert_network albert_tiny --albert_cfg.hidden_size 128 --albert_cfg.num_hidden_layers 2 \
    --albert_cfg.num_attention_heads 4 --albert_cfg.intermediate_size 512 --albert_cfg.max_position_embeddings 64 \
    --albert_cfg.use_relative_positions true --albert_cfg.max_relative_position 16 \
    --optimizer_cfg.AdamWeightDecay.learning_rate 2e-3 --optimizer_cfg.AdamWeightDecay.warmup_steps 100 \
    --optimizer_cfg.AdamWeightDecay.beta2 0.98

say "5/6 evaluation on text that was held out"
python pretrain_eval.py --load_checkpoint_path "$folder/run" --data_dir "$folder/heldout"

say "6/6 three masked sentences"
python -m src.fill_mask --load_checkpoint_path "$folder/run" --text "Return a list of all the [MASK] in the file.
Raise an error if the [MASK] does not exist.
If the argument is not given, the default [MASK] is used."

say "done in $((SECONDS / 60)) min $((SECONDS % 60)) s; the curves are in $folder/run/curves.png"
