"""The policy: one frozen base model, the LoRA adapter that is trained, and a copy of the model that samples.

Training and sampling never touch each other's weights, so answers can be sampled while an update is computed. They
share the frozen base tensors. In float32 the sampling copy holds each adapted weight with the adapter already added
(one matrix product instead of three); in bfloat16 that sum would round small updates away, so the copy carries its
own adapter.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

ADAPTED_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

_PEFT_PREFIX = "base_model.model."


class PolicyModel:
    """Loads a Hugging Face directory once and holds everything both the sampler and the trainer need of it."""

    def __init__(
        self,
        model_path: Path,
        *,
        rank: int,
        alpha: int,
        seed: int,
        device: str = "auto",
        context_length: int = 0,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Load the model, in float32 on a CPU and bfloat16 elsewhere unless `dtype` says otherwise.

        Raises `ValueError` for a directory that is no usable causal language model.
        """
        self.device = choose_device(device)
        self.dtype = dtype or (torch.float32 if self.device.type == "cpu" else torch.bfloat16)
        self.model_path = model_path
        self.rank, self.alpha = rank, alpha
        self.tokenizer = load_tokenizer(model_path)
        base = load_base(model_path, self.dtype)
        base.to(self.device)
        self.vocabulary = int(base.get_input_embeddings().weight.shape[0])
        self.stop_ids = stop_ids(base, self.tokenizer)
        limit = int(getattr(base.config, "max_position_embeddings", 0) or 2**20)
        self.context_length = min(limit, context_length) if context_length else limit
        self._base_weights = adapted_weights(base)
        self.sampling_model: nn.Module = sharing_copy(base)
        self.training_model = self._adapt(base, seed)
        self.initial_adapter = self.trained_adapter()
        self._merges = self.dtype == torch.float32
        if self._merges:
            self._merged = privatise(self.sampling_model, self._base_weights)
        else:
            self.sampling_model = self._adapt(self.sampling_model, seed)
        self.use_for_sampling(None)

    @property
    def identity(self) -> str:
        """Names the base model and the adapter's shape; two services of one identity can exchange checkpoints."""
        config = json.loads((self.model_path / "config.json").read_text(encoding="utf-8"))
        config.pop("_name_or_path", None)
        config.pop("transformers_version", None)
        digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]
        return f"{config.get('architectures', ['model'])[0]} {digest}, LoRA rank {self.rank} alpha {self.alpha}"

    def adapter_config(self) -> dict[str, Any]:
        """The content of `adapter_config.json`; it names the model without its path on this machine."""
        config = self.training_model.peft_config["default"].to_dict()
        config["base_model_name_or_path"] = self.model_path.name
        config["inference_mode"] = True
        plain: dict[str, Any] = json.loads(json.dumps(config, default=_as_json))
        plain["target_modules"] = sorted(plain["target_modules"])
        return plain

    def render(self, messages: Sequence[Mapping[str, str]], template_options: Mapping[str, Any]) -> list[int]:
        """The prompt's token ids by the model's own chat template, ready for the assistant's turn."""
        ids = self.tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tokenize=True,
            add_generation_prompt=True,
            return_dict=False,
            **template_options,
        )
        return [int(token) for token in ids]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of sampled tokens, without special tokens."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))

    def use_for_training(self, adapter: Mapping[str, Tensor] | None) -> None:
        """Put an adapter (None: the initial one) into the model that is trained."""
        load_adapter(self.training_model, self.initial_adapter if adapter is None else adapter)

    def trained_adapter(self) -> dict[str, Tensor]:
        """A copy of the trained model's adapter, under PEFT's names."""
        state = get_peft_model_state_dict(self.training_model)
        return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in sorted(state.items())}

    @torch.no_grad()
    def use_for_sampling(self, adapter: Mapping[str, Tensor] | None) -> None:
        """Put an adapter (None: the initial one) into the model that samples."""
        tensors = self.initial_adapter if adapter is None else adapter
        if not self._merges:
            load_adapter(self.sampling_model, tensors)
            return
        scale = self.alpha / self.rank
        for name, merged in self._merged.items():
            down = tensors[f"{_PEFT_PREFIX}{name}.lora_A.weight"].to(self.device)
            up = tensors[f"{_PEFT_PREFIX}{name}.lora_B.weight"].to(self.device)
            torch.addmm(self._base_weights[name], up, down, alpha=scale, out=merged)

    def _adapt(self, base: nn.Module, seed: int) -> PeftModel:
        config = LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha,
            lora_dropout=0.0,
            target_modules=list(ADAPTED_LAYERS),
            bias="none",
            task_type="CAUSAL_LM",
        )
        devices = [] if self.device.type == "cpu" else [self.device]
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            model = get_peft_model(base, config)
        model.eval()
        return model


def choose_device(name: str) -> torch.device:
    """`auto` takes the first CUDA device when there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, but torch sees no CUDA device; use auto or cpu")
    return torch.device(name)


def load_tokenizer(model_path: Path) -> Any:
    """The directory's tokenizer; raises `ValueError` when it is missing or has no chat template."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(model_path), local_files_only=True)
    except (OSError, ValueError) as error:
        raise ValueError(f"no tokenizer can be loaded from {model_path}: {error}") from error
    if not tokenizer.chat_template:
        raise ValueError(f"the tokenizer in {model_path} has no chat template, which is needed to render messages")
    return tokenizer


def load_base(model_path: Path, dtype: torch.dtype) -> Any:
    """The frozen base model; raises `ValueError` when the directory holds none or it has no layer to adapt."""
    try:
        base: Any = AutoModelForCausalLM.from_pretrained(str(model_path), dtype=dtype, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ValueError(f"no causal language model can be loaded from {model_path}: {error}") from error
    if not adapted_weights(base):
        raise ValueError(
            f"the model in {model_path} ({type(base).__name__}) has none of the layers {', '.join(ADAPTED_LAYERS)}; "
            "Llama-like and Qwen3-like models are supported"
        )
    unusual = sorted(set(getattr(base.config, "layer_types", None) or ()) - {"full_attention"})
    if unusual:
        raise ValueError(f"the model in {model_path} has {', '.join(unusual)} layers; only full attention is supported")
    base.requires_grad_(False)
    base.eval()
    return base


def stop_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens that end an answer: the tokenizer's and the generation config's, which may name several."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    found = [tokenizer.eos_token_id, *(configured if isinstance(configured, list | tuple) else [configured])]
    return frozenset(token for token in found if isinstance(token, int))


def adapted_weights(model: nn.Module) -> dict[str, Tensor]:
    """The frozen weight of every layer that gets an adapter, by module name."""
    return {
        name: module.weight
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name.rsplit(".", 1)[-1] in ADAPTED_LAYERS
    }


def sharing_copy(model: nn.Module) -> nn.Module:
    """A second module tree over the very same tensors."""
    memo = {id(tensor): tensor for tensor in itertools.chain(model.parameters(), model.buffers())}
    return copy.deepcopy(model, memo)


def privatise(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give the named layers of `model` weights of their own, and return those."""
    private: dict[str, Tensor] = {}
    for name, weight in weights.items():
        own = nn.Parameter(weight.detach().clone(), requires_grad=False)
        model.get_submodule(name).weight = own
        private[name] = own.data
    return private


def load_adapter(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy an adapter into a PEFT model; raises `ValueError` when its tensors are not exactly the model's."""
    expected = {name: tensor.shape for name, tensor in get_peft_model_state_dict(model).items()}
    given = {name: tensor.shape for name, tensor in tensors.items()}
    if expected != given:
        raise ValueError(f"the adapter has {len(given)} tensors that do not fit the model's {len(expected)}")
    set_peft_model_state_dict(model, dict(tensors))


def _as_json(value: Any) -> Any:
    return sorted(value) if isinstance(value, set | frozenset) else str(value)
