"""GGUF -> a folder in Hugging Face's format, BF16, which vLLM loads. Runs in vLLM's virtual environment.

usage: vllm_convert.py MODEL.gguf OUT_DIR
"""
import shutil
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(gguf, target):
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16)
    model.hf_quantizer = None  # the weights are plain BF16 now
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    unfinished = target.with_name(target.name + ".part")
    shutil.rmtree(unfinished, ignore_errors=True)
    model.save_pretrained(unfinished)
    AutoTokenizer.from_pretrained(**source).save_pretrained(unfinished)
    unfinished.rename(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
