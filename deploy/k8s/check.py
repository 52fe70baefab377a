"""Lints the chart and checks what it renders against Kubernetes' schemas, without a cluster and offline.

    make chart-ci

Needs what check.lock names: Helm and the schemas as packages. Kinds of other projects (KEDA, Prometheus'
operator) have no schema here: of those only the rendering is tried.
"""

import sys
from pathlib import Path
from typing import Any

import helm_python as helm  # pyright: ignore[reportMissingImports] - see above
import kubernetes_validate as schemas  # pyright: ignore[reportMissingImports]
import yaml

CHART = Path(__file__).parent / "upcall"
OTHERS = ("keda.sh/", "monitoring.coreos.com/")
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "one server": {"nats": {"replicas": 1, "syncInterval": "always"}},
    "tls": {"nats": {"tls": {"secret": "upcall-tls"}}},
    "tls, clients verified": {
        "nats": {
            "tls": {"secret": "upcall-tls", "verifyClients": True, "servicesSecret": "upcall-services-tls"}
        }
    },
    "yours": {
        "nats": {"enabled": False, "url": "nats://nats.example:4222"},
        "redis": {"enabled": False, "url": "rediss://redis.example:6379/0"},
    },
    "everything": {
        "autoscaling": {"enabled": True},
        "monitoring": {"enabled": True},
        "networkPolicy": {"agents": {"upcall": "agents"}},
        "imagePullSecrets": [{"name": "registry"}],
    },
}


def problems(chart: Any, values: dict[str, Any]) -> list[str]:
    """What is wrong with the objects that these values give."""
    found, seen = [], 0
    for name, text in chart.render(values, name="rel", namespace="ns").items():
        for document in filter(None, yaml.safe_load_all(text) if name.endswith(".yaml") else ()):
            seen += 1
            if not document["apiVersion"].startswith(OTHERS):
                found += _problem(name, document)
    return found or ([] if seen else ["nothing was rendered"])


def _problem(name: str, document: dict[str, Any]) -> list[str]:
    try:
        schemas.validate(document, schemas.latest_version(), strict=True)
    except schemas.ValidationError as error:
        return [f"{name}: {document['kind']} {document['metadata']['name']}: {error.message}"]
    return []


def main() -> int:
    """0: all is well. 1: it is not."""
    errors = helm.lint(str(CHART), strict=True)["errors"]
    print("lint:", "; ".join(errors) or "ok")
    chart, bad = helm.Chart.load(str(CHART)), len(errors)
    for variant, values in VARIANTS.items():
        found = problems(chart, values)
        bad += len(found)
        print(f"{variant}:", "; ".join(found) or "ok")
    chart.close()
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
