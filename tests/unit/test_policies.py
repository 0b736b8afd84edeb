"""The bucket policies in k8s/s3-policies, as they are written; tests/services has them at work."""

import json
from pathlib import Path

POLICIES = Path(__file__).parents[2] / "k8s" / "s3-policies"


def test_every_policy_is_for_one_bucket_alone() -> None:
    for path in POLICIES.glob("*.json"):
        for statement in json.loads(path.read_text())["Statement"]:
            for resource in statement["Resource"]:
                assert resource.split("/")[0] == "arn:aws:s3:::BUCKET"
