"""A random language model small enough to train inside a test, saved as an ordinary Hugging Face directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTEXT_LENGTH = 1024


def build_tiny_model(
    directory: Path,
    *,
    family: Literal["qwen3", "llama"] = "qwen3",
    seed: int = 0,
    initializer_range: float = 0.2,
    context_length: int = CONTEXT_LENGTH,
    words: Sequence[str] = (),
) -> Path:
    """Write a two-layer model of about 90,000 parameters with a byte-level tokenizer, and return `directory`.

    The weights are random but wide enough that its distribution over the next byte is far from uniform, so that a wrong
    log-probability is noticed.  `words` become single tokens beside the bytes.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    tokenizer = _byte_tokenizer()
    tokenizer.add_tokens(list(words))
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": context_length,
        "initializer_range": initializer_range,
        "tie_word_embeddings": True,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(Qwen3Config(**shape)) if family == "qwen3" else LlamaForCausalLM(LlamaConfig(**shape))
    directory.mkdir(parents=True, exist_ok=True)
    model.to(torch.float32).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def _byte_tokenizer():  # type: ignore[no-untyped-def]
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = {symbol: index for index, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    core = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
