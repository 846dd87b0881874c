"""The compiled batch functions, or with KBROKER_PURE=1 their twins in Python.

Everything else in this package takes them from here, so a test run on the twins covers it too.
"""

import os

if os.environ.get("KBROKER_PURE") == "1":
    from kbroker.record._pure import (
        check_batch,
        crc32c,
        decode_lz4_frame,
        decode_records,
        encode_record,
        read_header,
        scan_lz4_frame,
        scan_zstd_frame,
        stamp_for_append,
        stamp_log_append_time,
        stamp_max_timestamp,
    )
else:
    from kbroker._ext.base.crc32c import crc32c
    from kbroker._ext.record.codec_frames import decode_lz4_frame, scan_lz4_frame, scan_zstd_frame
    from kbroker._ext.record.record_batch import (
        check_batch,
        read_header,
        stamp_for_append,
        stamp_log_append_time,
        stamp_max_timestamp,
    )
    from kbroker._ext.record.record_codec import decode_records, encode_record

__all__ = [
    "check_batch",
    "crc32c",
    "decode_lz4_frame",
    "decode_records",
    "encode_record",
    "read_header",
    "scan_lz4_frame",
    "scan_zstd_frame",
    "stamp_for_append",
    "stamp_log_append_time",
    "stamp_max_timestamp",
]
