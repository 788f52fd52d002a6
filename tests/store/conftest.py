"""A local server of object storage."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", name="s3")
def fixture_s3() -> Iterator[dict[str, str]]:
    """Environment variables with which clients of S3 use a local server, which has the empty bucket `bucket`."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    variables = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret-of-this-test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    client = boto3.client(
        "s3",
        endpoint_url=variables["AWS_ENDPOINT_URL"],
        aws_access_key_id="key",
        aws_secret_access_key="secret-of-this-test",
        region_name="us-east-1",
    )
    client.create_bucket(Bucket="bucket")
    client.close()
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    yield variables
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
    server.stop()
