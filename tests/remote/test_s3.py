"""S3 as moto speaks it, through s3fs, with the settings that everything of AWS reads from the environment."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sample_profiles
from profiler.errors import UnreadableError
from profiler.xplane.locate import locate

moto_server = pytest.importorskip("moto.server")
pytest.importorskip("s3fs")

Fetched = Callable[[str], tuple[Path, ...]]
ENV = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client; the bucket is called ``logs``."""
    import boto3
    import s3fs

    for name, value in (ENV | {"AWS_ENDPOINT_URL": endpoint}).items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    client = boto3.client("s3")
    client.create_bucket(Bucket="logs")
    yield client
    for found in client.list_objects_v2(Bucket="logs").get("Contents", []):
        client.delete_object(Bucket="logs", Key=found["Key"])
    client.delete_bucket(Bucket="logs")


def test_the_latest_run_of_a_log_folder(bucket: Any, profile: bytes, fetched: Fetched) -> None:
    for day in ("2026_11_30_10_00_00", "2026_12_01_10_00_00"):
        for host in ("h0", "h1"):
            key = f"train/plugins/profile/{day}/{host}.xplane.pb.gz"
            bucket.put_object(Bucket="logs", Key=key, Body=profile + f"{day}{host}".encode())
    bucket.put_object(Bucket="logs", Key="train/checkpoints/7/state", Body=b"x")
    files = fetched("s3://logs/train")
    assert [file.read_bytes()[len(profile) :] for file in files] == [
        b"2026_12_01_10_00_00h0",
        b"2026_12_01_10_00_00h1",
    ]
    assert locate("s3://logs/train").label == "train"
    assert locate("s3://logs/train").recordings[0].files == files


def test_an_object_alone_and_in_its_folder_is_of_one_version(bucket: Any, profile: bytes, fetched: Fetched) -> None:
    bucket.put_object(Bucket="logs", Key="run/h.xplane.pb.gz", Body=profile)
    one, other = (locate(f"s3://logs/{key}").recordings[0].remote[0] for key in ("run/h.xplane.pb.gz", "run"))
    assert one == other
    (file,) = fetched("s3://logs/run/h.xplane.pb.gz")
    assert file.read_bytes() == profile
    bucket.put_object(Bucket="logs", Key="run/h.xplane.pb.gz", Body=profile[::-1])
    assert fetched("s3://logs/run")[0].read_bytes() == profile[::-1]


def test_an_object_that_changes_under_way_is_refused(bucket: Any, profile: bytes) -> None:
    from profiler.xplane.fetch import fetch

    bucket.put_object(Bucket="logs", Key="h.xplane.pb.gz", Body=profile)
    side = locate("s3://logs/h.xplane.pb.gz")
    bucket.put_object(Bucket="logs", Key="h.xplane.pb.gz", Body=profile[::-1])
    with pytest.raises(UnreadableError, match="changed while it was read"):
        fetch(side.recordings)


@pytest.mark.parametrize("url", ["s3://logs/none.xplane.pb", "s3://no-such-bucket/none.xplane.pb", "s3://logs/none"])
def test_what_is_not_there_is_said(bucket: Any, url: str) -> None:
    with pytest.raises(UnreadableError, match=f"^{url}: no such file or folder"):
        locate(url)


def test_without_credentials_the_remedy_names_those_of_aws(
    bucket: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import s3fs

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(UnreadableError, match=r"no credentials, .* \(sign in with aws configure"):
        locate("s3://logs/h.xplane.pb.gz")


def test_a_summary_names_the_object(
    bucket: Any, endpoint: str, run_cli: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    data = sample_profiles.path("cpu-remat/baseline.xplane.pb.gz").read_bytes()
    bucket.put_object(Bucket="logs", Key="runs/baseline.xplane.pb.gz", Body=data)
    env = ENV | {"AWS_ENDPOINT_URL": endpoint, "PROFILER_CACHE": str(tmp_path / "cache")}
    done = run_cli("summary", "s3://logs/runs/baseline.xplane.pb.gz", "--format", "json", env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["file"] == "s3://logs/runs/baseline.xplane.pb.gz"
    assert not done.stderr
