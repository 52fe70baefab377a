"""Reads /metrics as Prometheus does."""

import asyncio
import urllib.request
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


async def scrape(url: str) -> Samples:
    """The samples of a service at `http://host:port`, by name and labels."""

    def fetch() -> str:
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            return answer.read().decode()

    text = await asyncio.to_thread(fetch)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def value(url: str, name: str, **labels: str) -> float | None:
    """One sample; None where it is not there."""
    return (await scrape(url)).get((name, frozenset(labels.items())))
