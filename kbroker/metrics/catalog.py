"""Every metric of the broker, one row each; the row decides its place in each process's counters.

Names are Prometheus's, meanings are those of Kafka's metric of the same kind. A row with a label
has one cell for each of ``width`` label values: API keys. Code uses the constants, never a name:

    counters.add(PRODUCE_BYTES, size)
    counters.add(REQUESTS, 1, api_key)

Cython code increments ``cells[metric.index + label]`` itself.
"""

from __future__ import annotations

COUNTER, GAUGE = "counter", "gauge"

# BOUND: label values with a cell of their own; a value outside is counted in the last one.
API_WIDTH = 96
LISTENER_WIDTH = 16


class MetricRow:
    """One row. ``index`` is its first cell; ``label`` is empty for a metric with a single cell."""

    __slots__ = ("help", "index", "kind", "label", "name", "width")

    def __init__(self, index: int, name: str, kind: str, help: str, label: str, width: int) -> None:
        self.index = index
        self.name = name
        self.kind = kind
        self.help = help
        self.label = label
        self.width = width

    def __repr__(self) -> str:
        return f"MetricRow({self.name!r})"


METRICS: list[MetricRow] = []


def _row(name: str, kind: str, help: str, label: str = "", width: int = 1) -> MetricRow:
    index = METRICS[-1].index + METRICS[-1].width if METRICS else 0
    metric = MetricRow(index, name, kind, help, label, width)
    METRICS.append(metric)
    return metric


# -- requests, in network processes
REQUESTS = _row("kbroker_requests_total", COUNTER, "Requests received, by API.", "api", API_WIDTH)
REQUEST_BYTES = _row("kbroker_request_bytes_total", COUNTER, "Bytes received from clients.")
RESPONSE_BYTES = _row("kbroker_response_bytes_total", COUNTER, "Bytes sent to clients.")
INVALID_REQUESTS = _row(
    "kbroker_invalid_requests_total",
    COUNTER,
    "Connections closed because they sent an invalid request.",
)
THROTTLED = _row(
    "kbroker_throttled_responses_total",
    COUNTER,
    "Responses that told a client to wait because it had exceeded a quota of bytes or time.",
)

REQUEST_QUEUE = _row(
    "kbroker_request_queue_size",
    GAUGE,
    "Requests that wait for a process or are worked on, as of up to a second ago; not those that "
    "only wait for data or for replicas.",
)
RESPONSE_QUEUE = _row(
    "kbroker_response_queue_size",
    GAUGE,
    "Responses that are not sent completely, as of up to a second ago.",
)

# -- connections
CONNECTIONS_OPEN = _row("kbroker_connections", GAUGE, "Open client connections.")
LISTENER_CONNECTIONS = _row(
    "kbroker_listener_connections",
    GAUGE,
    "Open client connections, by listener.",
    "listener",
    LISTENER_WIDTH,
)
CONNECTIONS_TAKEN = _row(
    "kbroker_connections_accepted_total", COUNTER, "Connections accepted and handed to a process."
)
CONNECTIONS_CLOSED = _row("kbroker_connections_closed_total", COUNTER, "Connections closed.")
CONNECTIONS_REFUSED = _row(
    "kbroker_connections_refused_total",
    COUNTER,
    "Connections closed at once because of a connection limit.",
)
ACCEPT_PAUSES = _row(
    "kbroker_accept_pauses_total",
    COUNTER,
    "How often accepting connections was paused, because of a limit or a lack of file descriptors.",
)
ACCEPTOR_BLOCKED = _row(
    "kbroker_acceptor_blocked_nanoseconds_total",
    COUNTER,
    "Time for which connections had to wait to be accepted, because of a limit, or until a process "
    "could take them, by listener.",
    "listener",
    LISTENER_WIDTH,
)

AUTHENTICATIONS = _row(
    "kbroker_successful_authentication_total",
    COUNTER,
    "Logins by SASL, and TLS handshakes on listeners without SASL, by listener.",
    "listener",
    LISTENER_WIDTH,
)
FAILED_AUTHENTICATIONS = _row(
    "kbroker_failed_authentication_total",
    COUNTER,
    "Logins and TLS handshakes that failed, by listener.",
    "listener",
    LISTENER_WIDTH,
)
REAUTHENTICATIONS = _row(
    "kbroker_successful_reauthentication_total",
    COUNTER,
    "Logins of clients that had logged in before on the same connection, by listener.",
    "listener",
    LISTENER_WIDTH,
)
FAILED_REAUTHENTICATIONS = _row(
    "kbroker_failed_reauthentication_total",
    COUNTER,
    "Such logins that failed, by listener.",
    "listener",
    LISTENER_WIDTH,
)
EXPIRED_CONNECTIONS = _row(
    "kbroker_expired_connections_killed_total",
    COUNTER,
    "Connections closed because their client did not log in again when its session had ended "
    "(connections.max.reauth.ms), by listener.",
    "listener",
    LISTENER_WIDTH,
)

# -- produce and fetch
PRODUCE_BYTES = _row("kbroker_produce_bytes_total", COUNTER, "Bytes of record batches appended.")
PRODUCE_BATCHES = _row("kbroker_produce_batches_total", COUNTER, "Record batches appended.")
PRODUCE_FAILURES = _row(
    "kbroker_produce_failures_total", COUNTER, "Record batches rejected or not written."
)
PRODUCE_MESSAGES = _row("kbroker_produce_messages_total", COUNTER, "Records appended for clients.")
OWN_BATCHES = _row(
    "kbroker_own_batches_total", COUNTER, "Record batches of coordinators, and markers, appended."
)
OWN_MESSAGES = _row("kbroker_own_messages_total", COUNTER, "Records in these.")
OWN_BYTES = _row("kbroker_own_bytes_total", COUNTER, "Bytes of these.")
PRODUCES_WAITING = _row(
    "kbroker_produces_waiting",
    GAUGE,
    "Batches and other operations that wait until what they appended is committed.",
)
CONSUMER_BYTES = _row(
    "kbroker_consumer_bytes_total", COUNTER, "Bytes of records sent to consumers."
)
PARTITION_READS = _row(
    "kbroker_fetch_partitions_total", COUNTER, "Partitions that were read for Fetch requests."
)
PARTITION_READS_FAILED = _row(
    "kbroker_fetch_partitions_failed_total", COUNTER, "Of these, partitions that got an error."
)
FETCHES_WAITING = _row("kbroker_fetches_waiting", GAUGE, "Fetches that are waiting for data.")
FETCH_PARKED = _row(
    "kbroker_fetches_waited_total", COUNTER, "Fetches that were parked to wait for data."
)
FETCH_SESSIONS = _row(
    "kbroker_fetch_sessions", GAUGE, "Incremental fetch sessions, those of followers included."
)
FETCH_SESSION_EVICTIONS = _row(
    "kbroker_fetch_session_evictions_total",
    COUNTER,
    "Fetch sessions that made room for others (max.incremental.fetch.session.cache.slots).",
)
FOLLOWER_SESSIONS = _row(
    "kbroker_follower_sessions", GAUGE, "Fetch sessions of other brokers that follow partitions."
)
FOLLOWER_BYTES = _row(
    "kbroker_follower_bytes_total", COUNTER, "Bytes of Fetch responses to followers."
)
FETCHES_REDIRECTED = _row(
    "kbroker_fetches_redirected_total",
    COUNTER,
    "Partitions of consumers' fetches that were answered with another replica to read from.",
)
ARENA_USED = _row("kbroker_request_arena_used_bytes", GAUGE, "Request arena bytes in use.")
ARENA_FULL = _row(
    "kbroker_request_arena_full_total",
    COUNTER,
    "How often a socket was not read because the request arena was full.",
)

# -- storage, in io workers
LOGS = _row("kbroker_logs", GAUGE, "Partition logs hosted and open.")
LOG_DIRS_OFFLINE = _row("kbroker_log_dirs_offline", GAUGE, "Log directories that went offline.")
SEGMENTS_DAMAGED = _row(
    "kbroker_log_segments_damaged",
    GAUGE,
    "Segments of open logs with damaged or missing batches; the log names each in an ERROR line.",
)

# -- replication, in io workers
FOLLOWED = _row("kbroker_followed_partitions", GAUGE, "Partitions that follow another broker.")
FOLLOWED_FAILED = _row(
    "kbroker_followed_partitions_failed",
    GAUGE,
    "Followed partitions that are not copied for now; the log names each in an ERROR line.",
)
FOLLOWED_BYTES = _row(
    "kbroker_followed_bytes_total", COUNTER, "Bytes of record batches copied from leaders."
)
FOLLOWER_LAG_MAX = _row(
    "kbroker_follower_max_lag",
    GAUGE,
    "By how many committed records a partition is behind its leader, of those followed here that "
    "are being copied: the most.",
)
COMMITTED_CUTS = _row(
    "kbroker_followed_truncations_total",
    COUNTER,
    "Truncations of followed partitions below their high watermark: records that were committed "
    "and that the leader does not have, as after an unclean election; the log names each.",
)
UNDER_REPLICATED = _row(
    "kbroker_under_replicated_partitions",
    GAUGE,
    "Partitions that are led here and have replicas that are not in sync.",
)
UNDER_MIN_ISR = _row(
    "kbroker_under_min_isr_partitions",
    GAUGE,
    "Partitions that are led here with fewer replicas in sync than min.insync.replicas: produce "
    "requests with acks=all, and what coordinators would write, are rejected.",
)
TAIL_REPAIRS_WAITING = _row(
    "kbroker_tail_repairs_waiting",
    GAUGE,
    "Partitions that are not led yet, until other replicas have been asked for the records that "
    "may be lost here.",
)
TAIL_REPAIRS_INCOMPLETE = _row(
    "kbroker_tail_repairs_incomplete_total",
    COUNTER,
    "Partitions led that may have lost records, and of which some replica could not be asked.",
)
ISR_SHRINKS = _row(
    "kbroker_isr_shrinks_total", COUNTER, "Changes that removed replicas from an ISR led here."
)
ISR_EXPANDS = _row(
    "kbroker_isr_expands_total", COUNTER, "Changes that added replicas to an ISR led here."
)

# -- the cluster, in the controller process
FAST_REMOVALS = _row(
    "kbroker_failover_removals_total",
    COUNTER,
    "Brokers that this controller has replaced before their sessions had ended.",
)
FAST_DEPOSITIONS = _row(
    "kbroker_failover_depositions_total",
    COUNTER,
    "Controllers that were gone, of which this broker has deleted the node in ZooKeeper.",
)
FAST_VETOES = _row(
    "kbroker_failover_vetoes_total",
    COUNTER,
    "Times that a broker seemed to be gone from here, but was still heard from.",
)
FAST_MOVED_MS = _row(
    "kbroker_failover_milliseconds",
    GAUGE,
    "From when the connections of the broker ended that this controller has removed last, until "
    "all others knew the new leaders.",
)
ZOOKEEPER_DISCONNECTED = _row(
    "kbroker_zookeeper_disconnected",
    GAUGE,
    "1 while there is no connection to ZooKeeper: partitions are served, topics cannot be changed.",
)
ZOOKEEPER_SESSIONS_EXPIRED = _row(
    "kbroker_zookeeper_sessions_expired_total",
    COUNTER,
    "ZooKeeper sessions that expired, after which the broker registered again.",
)
ACTIVE_CONTROLLER = _row(
    "kbroker_active_controller", GAUGE, "1 on the broker that is the active controller."
)
CONTROLLER_ELECTIONS = _row(
    "kbroker_controller_elections_total",
    COUNTER,
    "How often this broker has been elected controller.",
)
CLUSTER_BROKERS = _row(
    "kbroker_cluster_brokers", GAUGE, "Registered brokers, on the active controller."
)
OFFLINE_PARTITIONS = _row(
    "kbroker_offline_partitions",
    GAUGE,
    "Partitions without a live leader, on the active controller.",
)
PREFERRED_IMBALANCE = _row(
    "kbroker_preferred_replica_imbalance",
    GAUGE,
    "Partitions whose leader is not the preferred replica, on the active controller.",
)
LEADER_ELECTIONS = _row(
    "kbroker_leader_elections_total",
    COUNTER,
    "Partitions that were given another leader, or none, by this broker as the controller.",
)
UNCLEAN_ELECTIONS = _row(
    "kbroker_unclean_leader_elections_total",
    COUNTER,
    "Of these, partitions whose new leader was not in sync: records may be lost.",
)

# -- transactions, in io workers
TRANSACTIONS_OPEN = _row(
    "kbroker_transactions_open", GAUGE, "Transactions begun and not yet complete."
)
TRANSACTIONS_HANGING = _row(
    "kbroker_transactions_hanging",
    GAUGE,
    "Transactions that need attention: some markers could not be written for ten seconds or "
    "more, or the transaction has been open in a partition for longer than any timeout and five "
    "minutes, so that nothing will end it.",
)
TRANSACTIONS_COMMITTED = _row(
    "kbroker_transactions_committed_total", COUNTER, "Transactions committed."
)
TRANSACTIONS_ABORTED = _row("kbroker_transactions_aborted_total", COUNTER, "Transactions aborted.")
TRANSACTIONS_TIMED_OUT = _row(
    "kbroker_transactions_timed_out_total",
    COUNTER,
    "Transactions aborted because they timed out.",
)

# -- coordinators, in io workers
COORDINATORS_LOADING = _row(
    "kbroker_coordinators_loading",
    GAUGE,
    "Partitions of internal topics that are being loaded and are not served yet.",
)
COORDINATOR_LOADS = _row(
    "kbroker_coordinator_loads_total",
    COUNTER,
    "Partitions of internal topics that have been loaded.",
)
COORDINATOR_LOAD_TIME = _row(
    "kbroker_coordinator_load_microseconds_total",
    COUNTER,
    "Microseconds spent loading partitions of internal topics.",
)
CLASSIC_GROUPS_EMPTY = _row(
    "kbroker_classic_groups_empty", GAUGE, "Groups of the classic protocol without members."
)
CLASSIC_GROUPS_PREPARING = _row(
    "kbroker_classic_groups_preparing_rebalance",
    GAUGE,
    "Groups of the classic protocol that wait for their members to join.",
)
CLASSIC_GROUPS_COMPLETING = _row(
    "kbroker_classic_groups_completing_rebalance",
    GAUGE,
    "Groups of the classic protocol that wait for their leader's assignment.",
)
CLASSIC_GROUPS_STABLE = _row(
    "kbroker_classic_groups_stable",
    GAUGE,
    "Groups of the classic protocol whose members have their assignment.",
)
CLASSIC_REBALANCES = _row(
    "kbroker_classic_group_rebalances_total",
    COUNTER,
    "Rebalances of groups of the classic protocol that ended with an assignment.",
)
CONSUMER_GROUPS_EMPTY = _row(
    "kbroker_consumer_groups_empty", GAUGE, "Groups of the consumer protocol without members."
)
CONSUMER_GROUPS_ASSIGNING = _row(
    "kbroker_consumer_groups_assigning",
    GAUGE,
    "Groups of the consumer protocol that wait for a new target assignment.",
)
CONSUMER_GROUPS_RECONCILING = _row(
    "kbroker_consumer_groups_reconciling",
    GAUGE,
    "Groups of the consumer protocol with members that have not reached their target assignment.",
)
CONSUMER_GROUPS_STABLE = _row(
    "kbroker_consumer_groups_stable",
    GAUGE,
    "Groups of the consumer protocol whose members all have their target assignment.",
)
CONSUMER_REBALANCES = _row(
    "kbroker_consumer_group_rebalances_total",
    COUNTER,
    "New epochs of groups of the consumer protocol.",
)
OFFSETS = _row("kbroker_committed_offsets", GAUGE, "Committed offsets in memory.")
OFFSET_COMMITS = _row("kbroker_offset_commits_total", COUNTER, "Offsets committed, by partition.")
OFFSET_COMMIT_REQUESTS = _row(
    "kbroker_offset_commit_requests_total",
    COUNTER,
    "Offset commits that got a response, including those of transactions.",
)
OFFSET_COMMIT_TIME = _row(
    "kbroker_offset_commit_microseconds_total",
    COUNTER,
    "Microseconds from the receipt of those requests to the commit of their records.",
)
OFFSETS_EXPIRED = _row("kbroker_offsets_expired_total", COUNTER, "Committed offsets that expired.")

# -- compaction, in the cleaner
CLEANER_MAX_DIRTY = _row(
    "kbroker_log_cleaner_max_dirty_percent", GAUGE, "Dirty share of the dirtiest compacted log."
)
CLEANER_LAST_RUN = _row(
    "kbroker_log_cleaner_time_since_last_run_ms",
    GAUGE,
    "Time since the cleaner last looked for a log to compact.",
)
CLEANER_UNCLEANABLE = _row(
    "kbroker_log_cleaner_uncleanable_partitions",
    GAUGE,
    "Partitions that cannot be compacted.",
)
CLEANER_UNCLEANABLE_BYTES = _row(
    "kbroker_log_cleaner_uncleanable_bytes",
    GAUGE,
    "Dirty bytes of the partitions that cannot be compacted.",
)
CLEANER_BUFFER = _row(
    "kbroker_log_cleaner_max_buffer_utilization_percent",
    GAUGE,
    "How full the offset map was in the last run of each thread, as a share of its maximum size; "
    "the fullest of them.",
)
CLEANER_RECOPY = _row(
    "kbroker_log_cleaner_recopy_percent",
    GAUGE,
    "Bytes written in the last run of each thread, as a share of the bytes read.",
)
CLEANER_MAX_TIME = _row(
    "kbroker_log_cleaner_max_clean_time_seconds",
    GAUGE,
    "Duration of the last run of each thread; the longest of them.",
)
CLEANER_MAX_DELAY = _row(
    "kbroker_log_cleaner_max_compaction_delay_seconds",
    GAUGE,
    "By how much max.compaction.lag.ms was exceeded when the last log was chosen.",
)
CLEANER_RUNS = _row("kbroker_log_cleaner_runs_total", COUNTER, "Logs compacted.")
CLEANER_BYTES_READ = _row(
    "kbroker_log_cleaner_read_bytes_total", COUNTER, "Bytes that compaction has read."
)
CLEANER_BYTES_WRITTEN = _row(
    "kbroker_log_cleaner_written_bytes_total", COUNTER, "Bytes that compaction has written."
)

# -- idle time
NETWORK_IDLE = _row(
    "kbroker_network_idle_nanoseconds_total",
    COUNTER,
    "Time for which network processes had nothing to do.",
)
IO_IDLE = _row(
    "kbroker_io_idle_nanoseconds_total", COUNTER, "Time for which io workers had nothing to do."
)

# -- between processes
MESSAGES_DROPPED = _row(
    "kbroker_messages_dropped_total",
    COUNTER,
    "Messages between processes dropped because one of the two was restarted.",
)
PROCESS_RESTARTS = _row(
    "kbroker_process_restarts_total", COUNTER, "Processes restarted by the supervisor."
)

# What alert rules and dashboards of ours ask for: 0 is told, too, so that there is a series from
# the start, and its first increase is one.
TOLD_FROM_START = frozenset(
    {
        ARENA_USED,
        SEGMENTS_DAMAGED,
        TRANSACTIONS_HANGING,
        CLASSIC_REBALANCES,
        CONSUMER_REBALANCES,
        PROCESS_RESTARTS,
    }
)

CELL_COUNT = METRICS[-1].index + METRICS[-1].width
