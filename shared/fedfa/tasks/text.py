"""Sentences and two classes, on a pre-trained transformer: what `sent140` and `sst2` share.

The model is a folder with config.json, model.safetensors and its tokenizer's files. It is only
ever read from there: nothing asks a hub, and nothing unpickles. A client's sentences become tokens
when its first job comes, and stay tokens for the next ones.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import Field
from safetensors import SafetensorError
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from fedfa.errors import InvalidData, InvalidSpec
from fedfa.randomness import prf
from fedfa.spec import FederationSpec, Section
from fedfa.tasks.base import Batch, metrics
from fedfa.tasks.data import place

NAMES = {0: "negative", 1: "positive"}
EVALUATION_BATCH = 64

# what it would report is checked below, as errors
transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]


class TextOptions(Section):
    model: str
    max_tokens: int = Field(default=64, ge=3, description="longer sentences are cut")


@dataclass(frozen=True, slots=True)
class Sentences:
    """Texts and their labels, 0 or 1."""

    texts: list[str]
    labels: list[int]


class TextClassification:
    """A task over sentences: a subclass reads them, and may freeze or wrap the network."""

    def __init__(
        self,
        spec: FederationSpec,
        options: TextOptions,
        *,
        train: Mapping[str, Sentences],
        test: Sentences,
    ) -> None:
        """train: each client's sentences. test: held out."""
        self.spec = spec
        self._max_tokens = options.max_tokens
        self._folder = place(options.model)
        self._train, self._test = train, test
        self._tokenizer = _tokenizer(self._folder)
        self._shards: dict[str, TensorDataset] = {}
        self._test_batches: list[Batch] = []

    def network(self) -> nn.Module:
        """The whole model, all of it trained; torch's generator is seeded by the caller."""
        return self.pretrained()[0]

    def pretrained(self) -> tuple[PreTrainedModel, list[str]]:
        """The classifier, and the names of the modules that pre-training did not make: its head.

        The weights in the folder must otherwise be exactly the model's.
        """
        model, head = _load(self._folder)
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
        return model, head

    def model(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(prf(self.spec.seed, "model"))
            return self.network()

    def clients(self) -> Mapping[str, int]:
        return {client: len(sentences.labels) for client, sentences in self._train.items()}

    def shard(self, client: str) -> TensorDataset:
        """Token ids (n, longest), number of tokens (n,), labels (n,); all int64."""
        if client not in self._train:
            raise InvalidData(f"{client}: no such client, there are {len(self._train)}")
        if client not in self._shards:
            self._shards[client] = TensorDataset(*self._encoded(self._train[client]))
        return self._shards[client]

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return functional.cross_entropy(_scores(model, batch), batch[2])

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        if not self._test_batches:
            columns = self._encoded(self._test)
            order = columns[1].argsort(stable=True)  # batches of one length have no padding
            self._test_batches = list(
                zip(
                    *(torch.split(column[order], EVALUATION_BATCH) for column in columns),
                    strict=True,
                )
            )
        device = next(model.parameters()).device

        def scored() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            for batch in self._test_batches:
                moved = tuple(column.to(device) for column in batch)
                yield _scores(model, moved), moved[2]

        return metrics(scored())

    def save(self, model: nn.Module, folder: Path) -> None:
        """What `from_pretrained` of transformers, or of peft, loads; with the tokenizer."""
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


def _scores(model: nn.Module, batch: Batch) -> torch.Tensor:
    """(n, 2). Columns in which every text has ended are cut off first."""
    tokens, num_tokens, _ = batch
    longest = int(num_tokens.max())
    mask = torch.arange(longest, device=tokens.device) < num_tokens[:, None]
    scores: torch.Tensor = model(input_ids=tokens[:, :longest], attention_mask=mask.long()).logits
    return scores


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
    return tokenizer


def _load(folder: Path) -> tuple[PreTrainedModel, list[str]]:
    try:
        model, found = AutoModelForSequenceClassification.from_pretrained(
            folder,
            id2label=NAMES,
            label2id={name: number for number, name in NAMES.items()},
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
    misshapen = [key for key, *_ in found["mismatched_keys"]]
    for what, keys in (("lacks", lacking), ("does not know", foreign), ("reshapes", misshapen)):
        if keys:
            raise InvalidData(
                f"{folder}: model.safetensors does not fit config.json, which {what} "
                f"{len(keys)} tensors, first {min(keys)}; put both of one model there"
            )
    return model, sorted({key.rpartition(".")[0] for key in found["missing_keys"]})
