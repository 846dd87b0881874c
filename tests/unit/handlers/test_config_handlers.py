"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from support.network.network_process import NetworkProcess

from kbroker.config.broker_keys import BROKER_KEYS
from kbroker.config.describe import describe_group, describe_topic
from kbroker.config.group_config import GROUP_KEYS
from kbroker.config.topic_keys import TOPIC_KEYS
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers import describe_configs
from kbroker.protocol.messages.alter_configs import AlterConfigsRequest
from kbroker.protocol.messages.describe_configs import DescribeConfigsRequest
from kbroker.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kbroker.protocol.messages.list_config_resources import ListConfigResourcesRequest

pytestmark = pytest.mark.unit

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32


@pytest.fixture
def process() -> NetworkProcess:
    process = NetworkProcess(log_segment_bytes="2000000")
    process.add_topic("t", b"t" * 16, [0], config={"retention.ms": "1000"})
    return process


class TestDescribeConfigs:
    @staticmethod
    def ask(
        process: NetworkProcess,
        version: int,
        kind: int,
        name: str,
        keys: list[str] | None = None,
        **options: Any,
    ) -> Any:
        resource = DescribeConfigsRequest.DescribeConfigsResource
        request = DescribeConfigsRequest(
            resources=[resource(resource_type=kind, resource_name=name, configuration_keys=keys)],
            **options,
        )
        (result,) = process.ask(request, version).results
        assert (result.resource_type, result.resource_name) == (kind, name)
        return result

    @pytest.mark.parametrize("version", range(5))
    def test_describe_configs_of_a_topic_lists_every_setting(
        self, process: NetworkProcess, version: int
    ) -> None:
        result = self.ask(process, version, TOPIC, "t")
        assert (result.error_code, result.error_message) == (0, "")
        configs = {c.name: c for c in result.configs}
        assert set(configs) == set(TOPIC_KEYS)
        own, inherited = configs["retention.ms"], configs["segment.bytes"]
        assert (own.value, inherited.value) == ("1000", "2000000")
        if version == 0:
            assert (own.is_default, inherited.is_default) == (False, True)
        else:
            assert (own.config_source, inherited.config_source) == (1, 4)
        assert not own.synonyms
        if version >= 3:
            assert own.documentation is None
            assert own.config_type == 5

    def test_describe_configs_documents_the_cleanup_policy_as_kafka_begins_to(
        self, process: NetworkProcess
    ) -> None:
        """Matched by the tests of @platformatic/kafka."""
        options = {"include_documentation": True}
        (config,) = self.ask(process, 4, TOPIC, "t", ["cleanup.policy"], **options).configs
        start = "This config designates the retention policy to use on log segments."
        assert config.documentation.startswith(start)

    def test_describe_configs_looks_once_at_settings_that_topics_share(
        self, process: NetworkProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A request for thousands of topics blocked all other clients of the process."""
        for number in range(20):
            config = {"retention.ms": str(number % 2)}
            process.add_topic(f"t{number}", bytes([number]) * 16, [0], config=config)
        looks = []
        monkeypatch.setattr(
            describe_configs,
            "describe_topic",
            lambda *args: looks.append(args) or describe_topic(*args),
        )
        resource = DescribeConfigsRequest.DescribeConfigsResource
        resources = [
            resource(resource_type=TOPIC, resource_name=name, configuration_keys=keys)
            for keys, numbers in (
                (["retention.ms"], range(10)),
                (["segment.bytes"], range(10, 20)),
            )
            for name in [f"t{number}" for number in numbers]
        ]
        results = process.ask(DescribeConfigsRequest(resources=resources), 1).results
        assert len(looks) == 4
        assert [[(c.name, c.value) for c in found.configs] for found in results] == [
            *([("retention.ms", str(number % 2))] for number in range(10)),
            *([("segment.bytes", "2000000")] for _ in range(10)),
        ]

    def test_describe_configs_looks_once_at_settings_that_groups_share(
        self, process: NetworkProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Group names are arbitrary: most in a long request have no configs."""
        process.apply(group_config={"g3": {"consumer.session.timeout.ms": "50000"}})
        looks = []
        monkeypatch.setattr(
            describe_configs,
            "describe_group",
            lambda *args: looks.append(args) or describe_group(*args),
        )
        resource = DescribeConfigsRequest.DescribeConfigsResource
        keys = ["consumer.session.timeout.ms"]
        resources = [
            resource(resource_type=GROUP, resource_name=f"g{number}", configuration_keys=keys)
            for number in range(10)
        ]

        results = process.ask(DescribeConfigsRequest(resources=resources), 1).results

        assert len(looks) == 2
        values = [result.configs[0].value for result in results]
        assert values == [*["45000"] * 3, "50000", *["45000"] * 6]

    def test_describe_configs_of_a_resource_that_is_named_again_is_rejected(
        self, process: NetworkProcess
    ) -> None:
        """A request of 100 kB with one topic 10,000 times had a response of 25 MB."""
        resource = DescribeConfigsRequest.DescribeConfigsResource
        resources = [
            resource(resource_type=kind, resource_name=name, configuration_keys=keys)
            for kind, name, keys in (
                (TOPIC, "t", None),
                (TOPIC, "t", None),
                (TOPIC, "t", ["retention.ms"]),
                (GROUP, "t", None),
            )
        ]

        results = process.ask(DescribeConfigsRequest(resources=resources), 4).results

        rejected = (ErrorCode.INVALID_REQUEST, 0)
        assert [(result.error_code, len(result.configs)) for result in results] == [
            (0, len(TOPIC_KEYS)), rejected, rejected, (0, len(GROUP_KEYS)),
        ]  # fmt: skip

    @pytest.mark.parametrize("version", [1, 3, 4])
    def test_describe_configs_synonyms_and_documentation_when_asked(
        self, process: NetworkProcess, version: int
    ) -> None:
        options = {"include_synonyms": True, "include_documentation": version >= 3}
        result = self.ask(process, version, TOPIC, "t", ["segment.bytes"], **options)
        (config,) = result.configs
        assert [(s.name, s.value, s.source) for s in config.synonyms] == [
            ("log.segment.bytes", "2000000", 4),
            ("log.segment.bytes", "1073741824", 5),
        ]
        assert bool(config.documentation) == (version >= 3)

    def test_describe_configs_only_the_settings_named(self, process: NetworkProcess) -> None:
        result = self.ask(process, 4, TOPIC, "t", ["retention.ms", "no.such.setting"])
        assert [c.name for c in result.configs] == ["retention.ms"]
        assert len(self.ask(process, 4, TOPIC, "t", []).configs) == len(TOPIC_KEYS)

    @pytest.mark.parametrize("version", range(5))
    def test_describe_configs_of_this_broker_lists_every_setting(
        self, process: NetworkProcess, version: int
    ) -> None:
        result = self.ask(process, version, BROKER, "0")
        configs = {c.name: c for c in result.configs}
        assert set(configs) == set(BROKER_KEYS)
        assert configs["log.segment.bytes"].value == "2000000"
        assert configs["ssl.key.password"].is_sensitive
        assert configs["ssl.key.password"].value is None

    def test_describe_configs_follows_dynamic_settings(self, process: NetworkProcess) -> None:
        asked = (process, 4, BROKER, "0", ["log.cleaner.threads"])
        assert self.ask(*asked).configs[0].config_source == 5
        process.apply(broker_config={"default": {"log.cleaner.threads": "2"}})
        (config,) = self.ask(*asked).configs
        assert (config.value, config.config_source) == ("2", 3)
        process.apply(broker_config={"0": {"log.cleaner.threads": "3"}})
        (config,) = self.ask(*asked).configs
        assert (config.value, config.config_source) == ("3", 2)
        (config,) = self.ask(process, 4, BROKER, "").configs
        assert (config.name, config.value) == ("log.cleaner.threads", "2")

    @pytest.mark.parametrize(
        ("kind", "name", "code"),
        [
            (TOPIC, "no", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (TOPIC, "a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
            (TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION),
            (BROKER, "1", ErrorCode.INVALID_REQUEST),
            (BROKER, "zero", ErrorCode.INVALID_REQUEST),
            (GROUP, "", ErrorCode.INVALID_REQUEST),
            (BROKER_LOGGER, "1", ErrorCode.INVALID_REQUEST),
            (BROKER_LOGGER, "", ErrorCode.INVALID_REQUEST),
            (99, "x", ErrorCode.INVALID_REQUEST),
        ],
    )
    @pytest.mark.parametrize("version", range(5))
    def test_describe_configs_of_what_is_not_there_says_why(
        self, process: NetworkProcess, version: int, kind: int, name: str, code: int
    ) -> None:
        result = self.ask(process, version, kind, name)
        assert result.error_code == code
        assert result.error_message
        assert result.configs == []

    def test_describe_configs_of_a_subscription_that_is_not_there_is_empty(
        self, process: NetworkProcess
    ) -> None:
        result = self.ask(process, 4, CLIENT_METRICS, "m")
        assert (result.error_code, result.error_message, result.configs) == (0, "", [])

    def test_describe_configs_of_a_subscription_shows_its_own(
        self, process: NetworkProcess
    ) -> None:
        process.image.client_metrics["m"] = {"interval.ms": "200"}
        result = self.ask(process, 4, CLIENT_METRICS, "m", include_synonyms=True)
        configs = {c.name: (c.value, c.config_source, c.read_only) for c in result.configs}
        assert configs == {
            "interval.ms": ("200", 7, False), "metrics": ("", 5, False), "match": ("", 5, False),
        }  # fmt: skip

    def test_describe_configs_of_loggers_shows_their_levels(self, process: NetworkProcess) -> None:
        logging.getLogger("kbroker.ipc.rpc").setLevel(logging.WARNING)
        try:
            result = self.ask(process, 4, BROKER_LOGGER, "0")
        finally:
            logging.getLogger("kbroker.ipc.rpc").setLevel(logging.NOTSET)
        configs = {c.name: (c.value, c.config_source) for c in result.configs}
        assert configs["kbroker.ipc.rpc"] == ("WARN", 6)
        assert "root" in configs
        assert len(self.ask(process, 4, BROKER_LOGGER, "0", ["root"]).configs) == 1

    @pytest.mark.parametrize("version", range(5))
    def test_describe_configs_of_a_group_shows_its_own_over_the_brokers(
        self, process: NetworkProcess, version: int
    ) -> None:
        options = {"include_synonyms": True} if version >= 1 else {}
        result = self.ask(process, version, GROUP, "not there", **options)
        configs = {c.name: c for c in result.configs}
        assert set(configs) == set(GROUP_KEYS)
        session = configs["consumer.session.timeout.ms"]
        assert (session.value, session.read_only) == ("45000", False)

        process.apply(group_config={"g": {"consumer.session.timeout.ms": "50000"}})
        keys = ["consumer.session.timeout.ms"]
        (session,) = self.ask(process, version, GROUP, "g", keys, **options).configs

        assert session.value == "50000"
        if version == 0:
            assert not session.is_default
            return
        assert session.config_source == 8
        shown = [(one.name, one.value, one.source) for one in session.synonyms]
        assert shown == [
            ("consumer.session.timeout.ms", "50000", 8),
            ("group.consumer.session.timeout.ms", "45000", 5),
        ]


class TestAlterConfigs:
    """Both requests; they differ in the details of each config."""

    @staticmethod
    def replace(*resources: tuple[int, str], validate_only: bool = False) -> Any:
        resource = AlterConfigsRequest.AlterConfigsResource
        config = AlterConfigsRequest.AlterableConfig(name="retention.ms", value="5")
        return AlterConfigsRequest(
            resources=[
                resource(resource_type=kind, resource_name=name, configs=[config])
                for kind, name in resources
            ],
            validate_only=validate_only,
        )

    @staticmethod
    def change(*resources: tuple[int, str], validate_only: bool = False) -> Any:
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource
        config = IncrementalAlterConfigsRequest.AlterableConfig(
            name="retention.ms", config_operation=1, value=None
        )
        return IncrementalAlterConfigsRequest(
            resources=[
                resource(resource_type=kind, resource_name=name, configs=[config])
                for kind, name in resources
            ],
            validate_only=validate_only,
        )

    @pytest.mark.parametrize("version", range(3))
    def test_alter_configs_replaces_by_the_controller(
        self, process: NetworkProcess, version: int
    ) -> None:
        process.set_response("alter_configs", lambda to, **args: [{"error": 0, "message": None}])
        request = self.replace((TOPIC, "t"), validate_only=True)
        (response,) = process.ask(request, version).responses
        assert (response.error_code, response.error_message) == (0, None)
        assert (response.resource_type, response.resource_name) == (TOPIC, "t")
        document = {"type": TOPIC, "name": "t", "configs": [["retention.ms", "5"]]}
        assert process.calls("alter_configs") == [{"resources": [document], "validate_only": True}]

    @pytest.mark.parametrize("version", range(2))
    def test_incremental_alter_configs_changes_by_the_controller(
        self, process: NetworkProcess, version: int
    ) -> None:
        results = [{"error": 40, "message": "no"}, {"error": 0, "message": None}]
        process.set_response("incremental_alter_configs", lambda to, **args: results)
        request = self.change((TOPIC, "t"), (BROKER, ""))
        responses = process.ask(request, version).responses
        assert [(r.resource_name, r.error_code, r.error_message) for r in responses] == [
            ("t", ErrorCode.INVALID_CONFIG, "no"),
            ("", 0, None),
        ]
        (args,) = process.calls("incremental_alter_configs")
        assert args["resources"] == [
            {"type": TOPIC, "name": "t", "configs": [["retention.ms", 1, None]]},
            {"type": BROKER, "name": "", "configs": [["retention.ms", 1, None]]},
        ]
        assert "validate_only" not in args

    @pytest.mark.parametrize("kind", ["replace", "change"])
    def test_alter_configs_rejects_only_what_cannot_be_changed(
        self, process: NetworkProcess, kind: str
    ) -> None:
        done = [{"error": 0, "message": None}]
        process.set_response("alter_configs", lambda to, **args: done)
        process.set_response("incremental_alter_configs", lambda to, **args: done)
        resources = [
            (TOPIC, "no"), (BROKER, "7"), (TOPIC, "t"), (GROUP, ""), (BROKER_LOGGER, "0"),
            (BROKER_LOGGER, "7"), (CLIENT_METRICS, "a b"), (99, "x"),
        ]  # fmt: skip
        responses = process.ask(getattr(self, kind)(*resources), 1).responses
        assert [(r.resource_type, r.resource_name) for r in responses] == resources
        assert [r.error_code for r in responses] == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INVALID_REQUEST,
            0,
            ErrorCode.INVALID_REQUEST,
            # No such logger; and AlterConfigs does not change levels at all.
            ErrorCode.INVALID_CONFIG if kind == "change" else ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REQUEST,
        ]
        (call,) = process.rpc.calls
        assert [r["name"] for r in call[3]["resources"]] == ["t"]

    @pytest.mark.parametrize("kind", ["replace", "change"])
    def test_alter_configs_resource_named_twice_is_not_changed(
        self, process: NetworkProcess, kind: str
    ) -> None:
        responses = process.ask(getattr(self, kind)((TOPIC, "t"), (TOPIC, "t")), 1).responses
        assert [r.error_code for r in responses] == [ErrorCode.INVALID_REQUEST] * 2
        assert process.rpc.calls == []

    @pytest.mark.parametrize("kind", ["replace", "change"])
    def test_alter_configs_controller_away_fails_every_resource(
        self, process: NetworkProcess, kind: str
    ) -> None:
        def away(to: Any, **args: Any) -> Any:
            raise WireError(ErrorCode.REQUEST_TIMED_OUT)

        process.set_response("alter_configs", away)
        process.set_response("incremental_alter_configs", away)
        responses = process.ask(getattr(self, kind)((TOPIC, "t"), (BROKER, "0")), 1).responses
        assert [r.error_code for r in responses] == [ErrorCode.REQUEST_TIMED_OUT] * 2


class TestListConfigResources:
    def test_list_client_metrics_resources_are_none(self, process: NetworkProcess) -> None:
        response = process.ask(ListConfigResourcesRequest(), 0)
        assert (response.error_code, response.config_resources) == (0, [])

    @pytest.mark.parametrize(
        ("types", "expected"),
        [
            ([], [("t", TOPIC), ("0", BROKER)]),
            ([TOPIC], [("t", TOPIC)]),
            ([BROKER, GROUP], [("0", BROKER)]),
            ([CLIENT_METRICS], []),
        ],
    )
    def test_list_config_resources_by_type(
        self, process: NetworkProcess, types: list[int], expected: list[tuple[str, int]]
    ) -> None:
        response = process.ask(ListConfigResourcesRequest(resource_types=types), 1)
        found = [(r.resource_name, r.resource_type) for r in response.config_resources]
        assert found == expected

    def test_list_config_resources_names_groups_with_settings(
        self, process: NetworkProcess
    ) -> None:
        process.apply(group_config={"g": {"consumer.session.timeout.ms": "50000"}})
        response = process.ask(ListConfigResourcesRequest(resource_types=[GROUP]), 1)
        assert [(r.resource_name, r.resource_type) for r in response.config_resources] == [
            ("g", GROUP)
        ]
        process.apply(group_config={"g": None})
        response = process.ask(ListConfigResourcesRequest(resource_types=[GROUP]), 1)
        assert response.config_resources == []

    def test_list_config_resources_unknown_type_is_unsupported(
        self, process: NetworkProcess
    ) -> None:
        response = process.ask(ListConfigResourcesRequest(resource_types=[3]), 1)
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
