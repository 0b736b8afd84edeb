"""Sentences and their classes, on a pre-trained transformer: `text`, `sent140`, `sst2` share it.

The model is a folder with config.json, model.safetensors and its tokenizer's files. It is only
ever read from there: nothing asks a hub, and nothing unpickles. A client's sentences become tokens
when its first job comes, and stay tokens for the next ones.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from pydantic import Field
from safetensors import SafetensorError
from torch import nn
from torch.utils.data import TensorDataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging as transformers_logging

from fedfa.errors import InvalidData, InvalidSpec
from fedfa.sections import Section
from fedfa.spec import FederationSpec
from fedfa.tasks.base import Batch
from fedfa.tasks.classification import Classification
from fedfa.tasks.data import place

SENTIMENT = ("negative", "positive")
EVALUATION_BATCH = 64

# what it would report is checked below, as errors
transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]


class TextOptions(Section):
    model: str = Field(
        min_length=1,
        description="the pre-trained model's folder: below FEDFA_DATA, or s3://bucket/prefix",
    )
    max_tokens: int = Field(default=64, ge=3, description="longer sentences are cut")


@dataclass(frozen=True, slots=True)
class Lora:
    """A frozen base and trained matrices A, B: a weight changes by (alpha / rank) B A.

    layers: the names, or their ends, of those that change; None: what peft takes for the model.
    """

    rank: int
    alpha: int
    layers: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Sentences:
    """Texts and the numbers of their classes."""

    texts: list[str]
    labels: list[int]


class TextClassification(Classification):
    """A task over sentences, which a subclass reads."""

    def __init__(
        self,
        spec: FederationSpec,
        options: TextOptions,
        *,
        train: Mapping[str, Sentences],
        test: Sentences,
        classes: Sequence[str] = SENTIMENT,
        lora: Lora | None = None,
    ) -> None:
        """train: each client's sentences. test: held out. lora: what is trained; None for all."""
        super().__init__(spec, {client: len(own.labels) for client, own in train.items()})
        self._max_tokens = options.max_tokens
        self._folder = place(options.model)
        self._train, self._test = train, test
        self._classes, self._lora = classes, lora
        self._tokenizer = _tokenizer(self._folder)
        self._shards: dict[str, TensorDataset] = {}
        self._test_batches: list[Batch] = []

    def network(self) -> nn.Module:
        """The whole model, or LoRA on some of its layers.

        The head is trained whole: the classifier, and a pooler that the pre-trained weights lack,
        which nobody could draw again in the same way from the exported adapter alone.
        """
        model, head = self.pretrained()
        if self._lora is None:
            return model
        lora = LoraConfig(
            task_type=TaskType.SEQ_CLS,
            r=self._lora.rank,
            lora_alpha=self._lora.alpha,
            target_modules=None if self._lora.layers is None else list(self._lora.layers),
            modules_to_save=head,
            fan_in_fan_out=any(
                isinstance(each, Conv1D) for each in model.modules()
            ),  # as GPT-2 has
        )
        try:
            return get_peft_model(model, lora)
        except ValueError as error:
            raise InvalidSpec(
                f"task.options.lora_layers: peft cannot adapt them in this "
                f"{model.config.model_type} ({error}); name some that it has, as in q_lin,v_lin"
            ) from error

    def pretrained(self) -> tuple[PreTrainedModel, list[str]]:
        """The classifier, and the names of the modules that pre-training did not make: its head.

        The weights in the folder must otherwise be exactly the model's.
        """
        model, head = _load(self._folder, self._classes)
        size = model.config.vocab_size
        # without its files transformers makes a tokenizer that knows no word
        if not size / 2 <= len(self._tokenizer) <= size:
            raise InvalidData(
                f"{self._folder}: its tokenizer has {len(self._tokenizer)} tokens and its model "
                f"{size}; put the tokenizer.json of the same model there"
            )
        longest = getattr(model.config, "max_position_embeddings", self._max_tokens)
        if self._max_tokens > longest:
            raise InvalidSpec(
                f"task.options.max_tokens: {self._max_tokens}; the model reads at most {longest}"
            )
        if model.config.pad_token_id is None:  # decoders look for the last token before the padding
            model.config.pad_token_id = self._tokenizer.pad_token_id
        return model, head

    def examples(self, client: str) -> TensorDataset:
        """Token ids (n, longest), number of tokens (n,), labels (n,); all int64."""
        if client not in self._shards:
            self._shards[client] = TensorDataset(*self._encoded(self._train[client]))
        return self._shards[client]

    def scores(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """(n, classes). Columns in which every text has ended are cut off first."""
        tokens, num_tokens, _ = batch
        longest = int(num_tokens.max())
        mask = torch.arange(longest, device=tokens.device) < num_tokens[:, None]
        inputs = {"input_ids": tokens[:, :longest], "attention_mask": mask.long()}
        scores: torch.Tensor = model(**inputs).logits
        return scores

    def held_out(self) -> Iterable[Batch]:
        if not self._test_batches:
            columns = self._encoded(self._test)
            order = columns[1].argsort(stable=True)  # batches of one length have no padding
            self._test_batches = list(
                zip(
                    *(torch.split(column[order], EVALUATION_BATCH) for column in columns),
                    strict=True,
                )
            )
        return self._test_batches

    def save(self, model: nn.Module, folder: Path) -> None:
        """What `from_pretrained` of transformers, or of peft, loads; with the tokenizer."""
        if isinstance(model, PeftModel):  # "auto" would look the base model up on a hub
            model.save_pretrained(str(folder), save_embedding_layers=False)
        else:
            model.save_pretrained(folder)  # type: ignore[operator]
        self._tokenizer.save_pretrained(folder)

    def _encoded(self, sentences: Sentences) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        encoded = self._tokenizer(
            sentences.texts,
            truncation=True,
            max_length=self._max_tokens,
            padding=True,
            padding_side="right",
            return_tensors="pt",
        )
        num_tokens = encoded["attention_mask"].sum(1)
        return encoded["input_ids"], num_tokens, torch.tensor(sentences.labels)


def _tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    if not (folder / "config.json").is_file():
        raise InvalidData(
            f"no model at {folder}; put config.json, model.safetensors and tokenizer.json of a "
            "pre-trained model there, or name its folder or s3:// prefix in the spec as "
            "task.options.model; FEDFA_DATA says where names begin"
        )
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, local_files_only=True
        )
    except (OSError, ValueError, KeyError) as error:
        raise InvalidData(f"{folder}: its tokenizer does not load: {error}") from error
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise InvalidData(
                f"{folder}: its tokenizer has no token for padding; set pad_token in "
                "tokenizer_config.json"
            )
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _load(folder: Path, classes: Sequence[str]) -> tuple[PreTrainedModel, list[str]]:
    try:
        model, found = AutoModelForSequenceClassification.from_pretrained(
            folder,
            id2label=dict(enumerate(classes)),
            label2id={name: number for number, name in enumerate(classes)},
            dtype=torch.float32,
            # the fused kernel is faster, but on a GPU its gradients differ from run to run
            attn_implementation="eager" if torch.cuda.is_available() else "sdpa",
            local_files_only=True,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # an error all the same, but one that names them
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise InvalidData(f"{folder}: transformers cannot load it: {error}") from error
    body = model.base_model_prefix + "."
    parts = {name for name, _ in getattr(model, model.base_model_prefix).named_children()}
    lacking = [
        key for key in found["missing_keys"] if key.startswith(body) and ".pooler." not in key
    ]
    foreign = [  # not those of a head that only pre-training needed
        key
        for key in found["unexpected_keys"]
        if key.startswith(body) or key.partition(".")[0] in parts
    ]
    misshapen = [key for key, *_ in found["mismatched_keys"] if key.startswith(body)]
    for key, theirs, _ in found["mismatched_keys"]:
        if not key.startswith(body):
            raise InvalidData(
                f"{folder}: its {key} is made for {theirs[0]} classes, and the data has "
                f"{len(classes)}: {', '.join(classes):.200}; correct the labels, or save the model "
                f"without its head, as in AutoModel.from_pretrained(...).save_pretrained(...)"
            )
    for what, keys in (("lacks", lacking), ("does not know", foreign), ("reshapes", misshapen)):
        if keys:
            raise InvalidData(
                f"{folder}: model.safetensors does not fit config.json, which {what} "
                f"{len(keys)} tensors, first {min(keys)}; put both of one model there"
            )
    return model, sorted({key.rpartition(".")[0] for key in found["missing_keys"]})
