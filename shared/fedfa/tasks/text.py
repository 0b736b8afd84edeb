"""`text`: any local sequence classifier of transformers, whole or by LoRA, on one's own tables.

The tables have a column with the text and one with its class, whatever they are called.
"""

from pydantic import Field

from fedfa.errors import InvalidSpec
from fedfa.spec import FederationSpec
from fedfa.tasks import shards, tables
from fedfa.tasks.base import options
from fedfa.tasks.tables import Rows
from fedfa.tasks.transformer import Lora, Sentences, TextClassification, TextOptions


class OwnTextOptions(TextOptions, shards.ShardOptions):
    text: str = Field(default="text", min_length=1, description="the column with the text")
    lora_rank: int | None = Field(
        default=None, ge=1, description="train an adapter of this rank; all of the model without"
    )
    lora_layers: str | None = Field(
        default=None,
        min_length=1,
        description="the layers to adapt, separated by commas; what peft takes if left out",
    )
    lora_alpha: int = Field(default=1, ge=1, description="the update B A is scaled by alpha / rank")


class Text(TextClassification):
    def __init__(self, spec: FederationSpec) -> None:
        chosen = options(spec, OwnTextOptions)
        columns = {chosen.text: tables.text, chosen.label: tables.name}
        found = shards.load(
            spec, chosen, lambda place, more: tables.read(place, {**columns, **more})
        )

        def sentences(rows: Rows) -> Sentences:
            return Sentences(list(rows.columns[chosen.text]), found.labels(rows).tolist())

        super().__init__(
            spec,
            chosen,
            train={client: sentences(rows) for client, rows in found.train.items()},
            test=sentences(found.test),
            classes=found.classes,
            lora=_lora(chosen),
        )


def _lora(chosen: OwnTextOptions) -> Lora | None:
    if chosen.lora_rank is None:
        if chosen.lora_layers is not None:
            raise InvalidSpec("task.options.lora_layers: only with lora_rank; give it, or neither")
        return None
    layers = chosen.lora_layers and tuple(each.strip() for each in chosen.lora_layers.split(","))
    return Lora(chosen.lora_rank, chosen.lora_alpha, layers or None)
