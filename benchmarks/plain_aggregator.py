"""The protocol served the straightforward way: what `aggregator.py` measures ours against.

One update after the other: boto3 get, the safetensors library, stack and mean tensor by tensor,
save to bytes, boto3 put, a manifest by conditional put, ModelReady, acknowledge. It trusts its
input, and what it commits is not FedFa's manifest; nobody should run this.
"""

import json
from collections import deque

import boto3
import numpy as np
import safetensors.numpy
from botocore.config import Config

from fedfa.broker import Consumer, Publisher
from fedfa.canonical import sha256
from fedfa.messages import InitReady, ModelReady, UpdateReady
from fedfa.settings import BrokerSettings, StoreSettings
from fedfa.topology import BROADCAST, UPDATES_QUEUE

WINDOW = 5


def main() -> None:
    settings, broker = StoreSettings(), BrokerSettings()
    assert settings.access_key
    assert settings.secret_key
    bucket = settings.bucket
    client = boto3.client(
        "s3",
        endpoint_url=settings.endpoint,
        region_name=settings.region,
        aws_access_key_id=settings.access_key.get_secret_value(),
        aws_secret_access_key=settings.secret_key.get_secret_value(),
        config=Config(s3={"addressing_style": "path"}),
    )
    publisher = Publisher(broker, name="plain")
    window: deque[dict[str, np.ndarray]] = deque(maxlen=WINDOW)
    version = 0
    for delivery in Consumer(broker, [(UPDATES_QUEUE, 64)], name="plain"):
        if delivery is None:
            continue
        message = delivery.message()
        assert isinstance(message, InitReady | UpdateReady)
        federation = message.federation
        if isinstance(message, UpdateReady):
            body = client.get_object(Bucket=bucket, Key=message.key)["Body"].read()
            assert sha256(body) == message.digest
            update = safetensors.numpy.load(body)
            assert all(np.isfinite(each).all() for each in update.values())
            window.append(update)
            if len(window) == WINDOW:
                mean = {name: np.stack([each[name] for each in window]).mean(0) for name in update}
                model = safetensors.numpy.save(mean)
                version += 1
                key = f"{federation}/models/{version}-{sha256(model)[:16]}.safetensors"
                client.put_object(Bucket=bucket, Key=key, Body=model)
            client.put_object(
                Bucket=bucket,
                Key=f"{federation}/plain/{message.slot:020d}.json",
                Body=json.dumps({"version": version, "update": message.key}).encode(),
                IfNoneMatch="*",
            )
        ready = ModelReady(
            federation=federation,
            uid=message.uid,
            n=version,
            version=version,
            status="running",
            closed=((message.slot, 1),) if isinstance(message, UpdateReady) else (),
        )
        publisher.publish(ready, BROADCAST, headers={}, timeout_seconds=20)
        delivery.ack()


if __name__ == "__main__":
    main()
