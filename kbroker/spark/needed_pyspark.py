"""The PySpark that is needed, named where there is none or one that is too old."""

from __future__ import annotations

# As in the extra ``spark`` of the package.
NEEDED = "pyspark>=4.2,<4.4"


def unusable(err: ImportError) -> str:
    """What to do about an import of PySpark that has failed."""
    try:
        from pyspark.version import __version__ as why
    except ImportError:
        why = ""
    there = f"this is PySpark {why}" if why else "there is none"
    return (
        f"kbroker needs PySpark 4.2 or 4.3 ({NEEDED}) for Spark, and {there} ({err}): "
        f"pip install '{NEEDED}' 'pyarrow>=18' 'pandas>=2.2,<3'"
    )
