"""Convert published weights to this project's and this project's to Hugging Face's.

python -m model_utils.convert_ckpt --source tf|hf|mindspore --target mindspore|hf --input PATH --output PATH

The command lives in src/conversion/convert.py; this module keeps its usual name.
"""

from model_utils.config import run_main
from src.conversion.convert import ConvertConfig, main

if __name__ == "__main__":
    run_main(main, ConvertConfig)
