"""Single jars from Maven Central, kept below .cache/ (not committed). No Java is needed."""

import fcntl
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def fetch_jar(artifact: str, home: Path) -> Path:
    """The jar ``group:name:version`` in ``home``, downloaded if it is missing, without its
    dependencies.

    Raises RuntimeError.
    """
    group, name, version = artifact.split(":")
    jar = home / f"{name}-{version}.jar"
    if jar.exists():
        return jar
    try:
        from jgo.maven import MavenContext
    except ImportError as err:
        raise RuntimeError(f"to fetch {artifact}: {err}; pip install 'kbroker[test]'") from err
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two test processes one fetches
        if jar.exists():
            return jar
        print(f"fetching {artifact} into {home}", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir=home) as repository:
            context = MavenContext(repo_cache=Path(repository), timeout=60)
            try:
                found = context.project(group, name).at_version(version).artifact().resolve()
            except (OSError, RuntimeError) as err:  # requests' own errors are OSError
                raise RuntimeError(f"{artifact} cannot be fetched: {err}") from err
            found.rename(jar)
    return jar
