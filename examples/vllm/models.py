"""Folders with tiny made-up configurations, under the model names in vLLM's own tests.

    python -m examples.vllm.models FOLDER

Tests that are run in FOLDER find them under their names. A multimodal model has a tokenizer of a
few words and the settings of an image processor, from which vLLM computes the size of an image. The
models are never run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

TEXT = MappingProxyType(
    {
        "num_hidden_layers": 2,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_size": 2048,
        "intermediate_size": 64,
        "torch_dtype": "bfloat16",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072,
    }
)
"""The members that all language models share. Lengths and heads are read; nothing is computed."""

VISION = MappingProxyType(
    {
        "model_type": "clip_vision_model",
        "hidden_size": 1024,
        "intermediate_size": 64,
        "image_size": 336,
        "num_attention_heads": 16,
        "num_hidden_layers": 2,
        "patch_size": 14,
        "projection_dim": 768,
        "vocab_size": 32000,
    }
)

IMAGES = MappingProxyType(
    {
        "image_processor_type": "CLIPImageProcessor",
        "crop_size": {"height": 336, "width": 336},
        "size": {"shortest_edge": 336},
        "do_center_crop": True,
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "rescale_factor": 1 / 255,
        "resample": 3,
    }
)

PATCHES = MappingProxyType(
    {
        "image_processor_type": "Qwen2VLImageProcessor",
        "size": {"shortest_edge": 3136, "longest_edge": 12845056},
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
    }
)
"""The settings of both image processors are those of the models, whose tokens tests count."""


def configurations() -> Mapping[str, Mapping[str, Any]]:
    """`config.json` of each model, by its name."""
    llama = {**TEXT, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    qwen = {**TEXT, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    return {
        "facebook/opt-125m": {
            "architectures": ["OPTForCausalLM"],
            "model_type": "opt",
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "ffn_dim": 3072,
            "max_position_embeddings": 2048,
            "vocab_size": 50272,
            "word_embed_proj_dim": 768,
            "torch_dtype": "float16",
        },
        "meta-llama/Llama-3.2-1B-Instruct": {**llama, "vocab_size": 128256},
        "Qwen/Qwen3-0.6B": {**qwen, "vocab_size": 151936},
        "llava-hf/llava-1.5-7b-hf": {
            "architectures": ["LlavaForConditionalGeneration"],
            "model_type": "llava",
            "image_token_index": 3,
            "projector_hidden_act": "gelu",
            "vision_feature_layer": -2,
            "vision_feature_select_strategy": "default",
            "text_config": {**llama, "max_position_embeddings": 4096, "vocab_size": 32064},
            "vision_config": dict(VISION),
        },
        "Qwen/Qwen2.5-VL-3B-Instruct": {
            **TEXT,
            "architectures": ["Qwen2_5_VLForConditionalGeneration"],
            "model_type": "qwen2_5_vl",
            "vocab_size": 151936,
            "image_token_id": 3,
            "video_token_id": 4,
            "vision_start_token_id": 5,
            "vision_end_token_id": 6,
            "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
            "vision_config": {
                "model_type": "qwen2_5_vl",
                "depth": 2,
                "hidden_size": 1280,
                "num_heads": 16,
                "intermediate_size": 64,
                "out_hidden_size": 2048,
            },
        },
    }


WORDS = ("<unk>", "<s>", "</s>", "<image>", "<video>", "<|vision_start|>", "<|vision_end|>")


def tokenizer() -> Mapping[str, Any]:
    """Return a tokenizer of a few words, in the form of the `tokenizers` library."""
    return {
        "version": "1.0",
        "added_tokens": [
            {
                "id": number,
                "content": word,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for number, word in enumerate(WORDS)
        ],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(WORDS)},
            "unk_token": "<unk>",
        },
    }


def write_models(folder: Path) -> None:
    """Write a folder for each model."""
    for name, config in configurations().items():
        made = folder / name
        made.mkdir(parents=True, exist_ok=True)
        written: dict[str, Mapping[str, Any]] = {"config.json": config}
        if "vision_config" in config:
            images, processor = PATCHES, "Qwen2_5_VLProcessor"
            if config["model_type"] == "llava":
                images, processor = IMAGES, "LlavaProcessor"
            written |= {
                "tokenizer.json": tokenizer(),
                "tokenizer_config.json": {
                    "tokenizer_class": "PreTrainedTokenizerFast",
                    "unk_token": "<unk>",
                    "pad_token": "<unk>",
                    "bos_token": "<s>",
                    "eos_token": "</s>",
                    "image_token": "<image>",
                    "video_token": "<video>",
                },
                "preprocessor_config.json": {**images, "processor_class": processor},
                "processor_config.json": {
                    "processor_class": processor,
                    "patch_size": 14,
                    "vision_feature_select_strategy": "default",
                    "image_token": "<image>",
                    "num_additional_image_tokens": 1,
                },
            }
        for file, content in written.items():
            (made / file).write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    write_models(Path(sys.argv[1]))
