"""Two builds of kbroker side by side, loaded in turns: what a change costs a request.

    python perf/builds.py 0153d3d9                     one1, one16, sat16k: 40 rounds of each
    python perf/builds.py ../before --cells one1 --rounds 80

What is before is a revision, which is built in ``.cache/builds`` once, or a checkout.

The machine's speed varies by a third within a minute. Therefore both brokers stay up, each burst of
one is followed by a burst of the other, and what is compared is the sum of all bursts.
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf.arguments import Arguments, positive
from perf.bars import Figures
from perf.brokers import KbrokerBroker
from perf.cells import CELLS, Size, measure_saturated
from perf.checkouts import BUILD_HELP, checkout_of
from perf.kafka_distribution import ROOT
from perf.runner import turns

SATURATED = {cell.name: cell for cell in CELLS if cell.measure is measure_saturated}
BURST = Size(seconds=1.0, warmup_s=0.2)
# The bursts of a round must not fill the disk, or the memory that stands for it.
OVERRIDES = {"log.segment.delete.delay.ms": "1000"}


class Build(KbrokerBroker):
    """The broker of another checkout, which has been built."""

    def __init__(self, checkout: Path, place: Path | str | None = None) -> None:
        super().__init__(place, OVERRIDES)
        self.checkout = checkout.resolve()


def total(bursts: list[Figures]) -> tuple[float, float]:
    """(CPU in µs per request, median of the bursts' p50 in µs) of all bursts together."""
    sums: Counter[str] = Counter()
    for burst in bursts:
        sums["cpu_s"] += burst["cpu_s"]
        sums["requests"] += burst["cpu_s"] / burst["cpu_us_per_request"] * 1e6
    return sums["cpu_s"] / sums["requests"] * 1e6, median(burst["p50_us"] for burst in bursts)


def compare(name: str, builds: list[Build], rounds: int) -> str:
    """One line: both builds' CPU and p50, and their ratios."""
    bursts: dict[Path, list[Figures]] = {build.checkout: [] for build in builds}
    parameters = SATURATED[name].parameters
    for order in turns(builds[::-1], rounds):
        for build in order:
            bursts[build.checkout].append(measure_saturated(build, parameters, BURST))
    (old_cpu, old_p50), (cpu, p50) = (total(bursts[build.checkout]) for build in builds)
    return (
        f"{name:8} {old_cpu:8.2f} {cpu:8.2f} us of CPU per request {cpu / old_cpu:6.3f}x"
        f"   p50 {old_p50:8.1f} {p50:8.1f} us {p50 / old_p50:6.3f}x"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Arguments(__doc__)
    parser.add_argument("before", help=BUILD_HELP)
    parser.add_argument("--after", type=Path, default=ROOT, help="default: this checkout")
    parser.add_names("--cells", SATURATED, "one1,one16,sat16k")
    parser.add_argument("--rounds", type=positive(int), default=40)
    parser.add_place("/dev/shm")
    options = parser.parse(arguments)
    before = checkout_of(options.before, parser.error)
    for checkout in (before, options.after):
        if not (checkout / "kbroker").is_dir():
            parser.error(f"{checkout} is no checkout of kbroker")
    with ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(dir=options.place))
        builds = [Build(checkout, place) for checkout in (before, options.after)]
        for build in builds:
            stack.enter_context(build)
        print(f"before: {builds[0].checkout}, after: {builds[1].checkout}")
        for name in options.cells:
            print(compare(name, builds, options.rounds), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
