"""What comes from Maven Central, kept below .cache/ (not committed), and that it is out of reach.

Single jars are fetched without Java.
"""

import fcntl
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# What mvn says where a repository does not answer, or a proxy refuses. A version that does not
# exist is told in other words.
_OUT_OF_REACH = re.compile(
    r"Could not transfer (artifact|metadata)|Unknown host|UnknownHostException|Connection refused"
    r"|Network is unreachable|timed out|in offline mode"
)


class MavenUnreachable(RuntimeError):
    """Maven Central, or the mirror that Maven's settings name, cannot be reached. Once that is
    known, nothing is asked of it again in this process.
    """

    is_known = False

    def __init__(self, wanted: str, why: str) -> None:
        super().__init__(f"Maven Central cannot be reached for {wanted}: {why}")


def run_maven(
    wanted: str, command: list[str], environment: dict[str, str], home: Path | None = None
) -> None:
    """Run mvn, which fetches ``wanted``, in ``home``. Raises RuntimeError, MavenUnreachable."""
    if MavenUnreachable.is_known and "-o" not in command:
        raise MavenUnreachable(wanted, "as before")
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, env=environment)
    if done.returncode == 0:
        return
    said = done.stdout + done.stderr
    if "-o" not in command and _OUT_OF_REACH.search(said):
        MavenUnreachable.is_known = True
        raise MavenUnreachable(wanted, said[-2000:])
    raise RuntimeError(f"mvn failed with {done.returncode} for {wanted}:\n{said[-4000:]}")


def fetch_jar(artifact: str, home: Path) -> Path:
    """The jar ``group:name:version`` in ``home``, downloaded if it is missing, without its
    dependencies.

    Raises RuntimeError, MavenUnreachable.
    """
    group, name, version = artifact.split(":")
    jar = home / f"{name}-{version}.jar"
    if jar.exists():
        return jar
    try:
        from jgo.maven import MavenContext
    except ImportError as err:
        raise RuntimeError(f"to fetch {artifact}: {err}; pip install 'kbroker[test]'") from err
    if MavenUnreachable.is_known:
        raise MavenUnreachable(artifact, "as before")
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
            except OSError as err:  # requests' own errors are
                MavenUnreachable.is_known = True
                raise MavenUnreachable(artifact, str(err)) from err
            except RuntimeError as err:
                raise RuntimeError(f"{artifact} cannot be fetched: {err}") from err
            found.rename(jar)
    return jar
