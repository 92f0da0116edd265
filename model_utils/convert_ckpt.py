"""The usual name of src/conversion/convert.py.

python -m model_utils.convert_ckpt --source tf|hf|mindspore --target mindspore|hf --input PATH --output PATH
"""

from model_utils.config import run_main
from src.conversion.convert import ConvertConfig, main

if __name__ == "__main__":
    run_main(main, ConvertConfig)
