"""Articles, cleaned and counted: a chain of two streaming jobs over three topics.

    articles (JSON, as feeds deliver it, with repetitions)
        -> job "clean": parsed, each article once                     -> articles-clean
        -> job "count": articles of each section in windows of an hour -> article-counts

Each job is a function from a DataFrame to a DataFrame; what is around it reads and writes. Both
write exactly once, and the second one reads only what is committed, so a crash at any moment
repeats no article and no count. Run each in a process of its own:

    python articles.py clean --bootstrap localhost:9092 --checkpoints /var/lib/articles
    python articles.py count --bootstrap localhost:9092 --checkpoints /var/lib/articles
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from kbroker.spark import read_stream

ARTICLE = "id string, section string, title string, published timestamp"
RAW, CLEAN, COUNTS = "articles", "articles-clean", "article-counts"


def clean(records: DataFrame) -> DataFrame:
    """Records with JSON in ``value`` to one record for each article, its key the section.

    What is no article is dropped. An article is known again for two days after it was published.
    """
    article = f.from_json(f.col("value").cast("string"), ARTICLE)
    return (
        records.select(article.alias("a"))
        .select("a.*")
        .where("id IS NOT NULL AND published IS NOT NULL")
        .withWatermark("published", "2 days")
        .dropDuplicatesWithinWatermark(["id"])
        .select(
            f.col("section").alias("key"),
            f.to_json(f.struct("id", "section", "title", "published")).alias("value"),
        )
    )


def count(records: DataFrame) -> DataFrame:
    """Cleaned records to the number of articles of each section and hour.

    An hour is counted once it is over and ten minutes have passed in the articles' time; what comes
    later than that is left out.
    """
    article = f.from_json(f.col("value").cast("string"), ARTICLE)
    return (
        records.select(article.alias("a"))
        .select("a.*")
        .withWatermark("published", "10 minutes")
        .groupBy(f.window("published", "1 hour").alias("hour"), "section")
        .agg(f.count("*").alias("articles"))
        .select(
            f.concat_ws("|", "section", f.col("hour.start").cast("string")).alias("key"),
            f.to_json(f.struct("section", f.col("hour.start").alias("hour"), "articles")).alias(
                "value"
            ),
        )
    )


JOBS = {"clean": (RAW, clean, CLEAN), "count": (CLEAN, count, COUNTS)}


def run(
    spark: SparkSession, job: str, bootstrap: str, checkpoints: str, *, once: bool = False
) -> None:
    """Run a job until it is stopped; once: only over what is there now."""
    source, transform, target = JOBS[job]
    checkpoint = f"{checkpoints}/{job}"
    records = read_stream(
        spark,
        bootstrap,
        source,
        checkpoint=checkpoint,
        columns="value binary",
        startingOffsets="earliest",
        groupId=f"articles-{job}",
        **{"kafka.isolation.level": "read_committed"},
    )
    writer = (
        transform(records)
        .writeStream.format("kbroker")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("delivery", "exactly-once")
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
    )
    trigger = {"availableNow": True} if once else {"processingTime": "10 seconds"}
    writer.trigger(**trigger).start().awaitTermination()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Clean articles, or count them.")
    parser.add_argument("job", choices=sorted(JOBS))
    parser.add_argument("--bootstrap", required=True, help="host:port of a broker")
    parser.add_argument("--checkpoints", required=True, help="a directory that stays")
    parser.add_argument("--once", action="store_true", help="end when all there is was read")
    given = parser.parse_args()
    spark = SparkSession.builder.appName(f"articles-{given.job}").getOrCreate()
    run(spark, given.job, given.bootstrap, given.checkpoints, once=given.once)


if __name__ == "__main__":
    main()
