"""Models of transformers as stages: built from their configuration with random weights, without downloads.

The names are ``hf:LlamaForCausalLM``, ``hf:LlamaConfig`` or ``hf:path/to/config.json``. The model is made small, unless
the name ends with ``?size=full``. One stage is the whole model. Another one has two of its layers that pass only hidden
states.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.files.user_files import is_file
from gradconform.user_input.values import nearest

from .error import StageError
from .libraries import Part, imported, name_and_size

#: What begins the name of such a stage.
PREFIX = "hf:"

#: What a small model has at most, by the name that a configuration has for it.
_SMALL = {
    "hidden_size": 32, "d_model": 32, "n_embd": 32, "intermediate_size": 48, "d_ff": 48, "moe_intermediate_size": 24,
    "head_dim": 8, "d_kv": 8, "num_attention_heads": 4, "num_heads": 4, "n_head": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 3, "n_layer": 3, "num_layers": 2, "num_decoder_layers": 2, "vocab_size": 96,
    "max_position_embeddings": 32, "n_positions": 32, "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "image_size": 16, "patch_size": 4, "pooler_output_size": 32,
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "ffn_dim": 48, "ffn_hidden_size": 48, "q_lora_rank": 16,
    "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "first_k_dense_replace": 1,
    "n_group": 2, "topk_group": 1,
}  # fmt: skip

_ROWS, _TOKENS = 2, 6

_SET_BY_CLASS = {"model_type", "transformers_version"}

#: The classes of a whole model, by what it is for; the first that knows a configuration is taken.
_AUTO = (
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForImageClassification",
    "AutoModelForMaskedLM",
    "AutoModel",
)


def models_of(text: str, description: str) -> Iterator[Part]:
    """Yield the stages of a model.

    Raises :class:`StageError` for a model that transformers does not have, or if it is not installed.
    """
    name, small = name_and_size(text, PREFIX, description)
    try:
        make = _maker(name, description, small=small)
        model = make()
    except StageError:
        raise
    except Exception as error:
        msg = f"{description} cannot be built{' small' if small else ''}: {type(error).__name__}: {error}"
        raise StageError(msg) from error
    example = _example(model)

    def whole() -> nn.Module:
        return _Whole(make(), tuple(example))

    yield "", whole, tuple(example.values())
    layers = _layers(model)
    if layers is not None:
        path, count = layers
        fed = _fed_to(whole(), path, tuple(example.values()))
        if fed is not None:
            hidden, others, named = fed
            first = max(0, count // 2 - 1)
            chosen = tuple(range(first, min(first + 2, count)))

            def between() -> nn.Module:
                return _Between(make().get_submodule(path), chosen, others, named)

            yield "layers", between, (hidden.detach().requires_grad_(),)


class _Whole(nn.Module):
    """A model with positional arguments and tensor outputs, with the model's parameter names."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        """Create a stage from ``model``, whose forward has the arguments ``names``."""
        super().__init__()
        self.__dict__["model_itself"], self.names = model, names
        for name, part in model.named_children():
            self.add_module(name, part)
        for name, parameter in model.named_parameters(recurse=False):
            self.register_parameter(name, parameter)

    def forward(self, *args: Tensor) -> Any:
        """Return the logits or the last hidden state, and the auxiliary loss of a mixture of experts."""
        model: Any = self.__dict__["model_itself"]
        routed = hasattr(model.config, "router_aux_loss_coef")
        given = {"output_router_logits": True} if routed else {}
        cached = {"use_cache": False} if hasattr(model.config, "use_cache") else {}
        found = model(**dict(zip(self.names, args, strict=True)), **given, **cached, return_dict=True)
        result = next(found[key] for key in ("logits", "last_hidden_state") if key in found)
        auxiliary = found.get("aux_loss")
        return result if auxiliary is None else (result, auxiliary)


class _Between(nn.Module):
    """Layers of a model, from hidden states to hidden states; their other arguments stay the same."""

    def __init__(
        self, layers: nn.Module, chosen: tuple[int, ...], others: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        """Store some of ``layers`` and their arguments other than the hidden states."""
        super().__init__()
        self.layers = nn.ModuleDict({str(number): layers[number] for number in chosen})  # type: ignore[index] # a list
        self.held: list[str] = []
        self.others, self.named = self._kept(others), self._kept(named)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden states after the last layer."""
        for layer in self.layers.values():
            found = layer(hidden, *self._given(self.others), **self._given(self.named))
            hidden = found[0] if isinstance(found, tuple) else found
        return hidden

    def _kept(self, tree: Any) -> Any:
        """Return a tree with buffer names instead of tensors: buffers follow the module to its device."""
        if isinstance(tree, Tensor):
            name = f"given_{len(self.held)}"
            self.register_buffer(name, tree.detach().clone(), persistent=False)
            self.held.append(name)
            return _Held(name)
        if isinstance(tree, (tuple, list)):
            return type(tree)(map(self._kept, tree))
        return {key: self._kept(one) for key, one in tree.items()} if isinstance(tree, dict) else tree

    def _given(self, tree: Any) -> Any:
        if isinstance(tree, _Held):
            return getattr(self, tree.name)
        if isinstance(tree, (tuple, list)):
            return type(tree)(map(self._given, tree))
        return {key: self._given(one) for key, one in tree.items()} if isinstance(tree, dict) else tree


class _Held:
    """The position of a buffer among the arguments."""

    def __init__(self, name: str) -> None:
        self.name = name


def _maker(name: str, description: str, *, small: bool) -> Callable[[], nn.Module]:
    """Return the function that builds a model."""
    library = imported("transformers", description)
    if name.endswith(".json"):
        if not is_file(name):
            msg = f"{description}: the file {name!r} does not exist"
            raise StageError(msg)
        config = _shrunk(library.AutoConfig.for_model(**json.loads(Path(name).read_text("utf-8"))), small=small)
        return lambda: _auto(library, config, description)
    found = getattr(library, name, None)
    if not isinstance(found, type) or not (name.endswith("Config") or issubclass(found, library.PreTrainedModel)):
        near = nearest(name, [one for one in dir(library) if one.endswith(("Config", "Model", "LM", "Classification"))])
        msg = f"{description}: transformers has no model or configuration {name!r}; nearest: {near[:200]}"
        raise StageError(msg)
    kind: Any = found
    config = _shrunk(kind() if name.endswith("Config") else kind.config_class(), small=small)
    return (lambda: _auto(library, config, description)) if name.endswith("Config") else (lambda: kind(config))


def _auto(library: Any, config: Any, description: str) -> nn.Module:
    for auto in _AUTO:
        kind = getattr(library, auto, None)
        if kind is not None and type(config) in kind._model_mapping:  # noqa: SLF001 (what an auto class knows has no public name)
            made: nn.Module = kind.from_config(config)
            return made
    msg = f"{description}: {type(config).__name__} works with no class of transformers; tried {', '.join(_AUTO)}"
    raise StageError(msg)


def _shrunk(config: Any, *, small: bool) -> Any:
    """Return a configuration of the same class with small sizes and without a cache."""
    if small:
        kept = {name: one for name, one in config.to_dict().items() if name not in _SET_BY_CLASS}
        sizes = {name: min(kept[name], most) for name, most in _SMALL.items() if type(kept.get(name)) is int}
        if "kv_lora_rank" in sizes:  # latent attention knows no groups of heads
            sizes["num_key_value_heads"] = sizes["num_attention_heads"]
        tokens = {name: 0 for name in ("pad_token_id", "bos_token_id", "eos_token_id") if type(kept.get(name)) is int}
        kinds = list(dict.fromkeys(kept.get("layer_types") or ()))
        several = sizes.get("num_hidden_layers", 0)
        layers = {"layer_types": (kinds * several)[:several]} if kinds else {}
        config = type(config)(**{**kept, **sizes, **tokens, **layers})
    config._experts_implementation = "eager"  # noqa: SLF001 (grouped products have no float64; other releases ignore it)
    if getattr(config, "decoder_start_token_id", 0) is None:
        config.decoder_start_token_id = 0
    return config


def _example(model: Any) -> dict[str, Tensor]:
    """Return the arguments of a model by name."""
    config, generator = model.config, torch.Generator().manual_seed(0)
    if model.main_input_name == "pixel_values":
        side = config.image_size
        sides = (side, side) if isinstance(side, int) else tuple(side)
        return {"pixel_values": torch.randn(_ROWS, config.num_channels, *sides, generator=generator)}
    ids = torch.randint(1, config.vocab_size, (_ROWS, _TOKENS), generator=generator)
    if config.is_encoder_decoder:
        return {"input_ids": ids, "decoder_input_ids": ids.flip(0)}
    return {"input_ids": ids}


def _layers(model: nn.Module) -> tuple[str, int] | None:
    """Return the name and the length of the longest list of layers of one class."""
    lists = [
        (name, len(part))
        for name, part in model.named_modules()
        if isinstance(part, nn.ModuleList) and len(part) > 1 and len({type(one) for one in part}) == 1
    ]
    return max(lists, key=lambda one: one[1], default=None)


def _fed_to(
    whole: nn.Module, path: str, args: tuple[Tensor, ...]
) -> tuple[Tensor, tuple[Any, ...], dict[str, Any]] | None:
    """Return the arguments of the first layer: hidden states, and its others by position and by name."""
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    layer = whole.get_submodule(f"{path}.0")
    handle = layer.register_forward_pre_hook(lambda _, given, named: seen.append((given, named)), with_kwargs=True)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        whole(*args)
    handle.remove()
    if not seen or not seen[0][0] or not isinstance(seen[0][0][0], Tensor):
        return None
    (hidden, *others), named = seen[0]
    return hidden, tuple(others), dict(named)
