"""The fields of the resources that `deploy/kubernetes` uses, as JSON schemas.

`kubectl apply --dry-run` needs an API server, so the tests check the fields against these. They name what we use, and
nothing else. Sources: the operator's v1beta1 types, and those of prometheus-operator, at their releases of 2026.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer"}
SWITCH: Schema = {"type": "boolean"}
ANYTHING: Schema = {"type": "object"}
STRINGS: Schema = {"type": "object", "additionalProperties": STRING}
DURATION: Schema = {"type": "string", "pattern": r"^(\d+(ms|[smhdwy]))+$"}


def one_of(*values: str) -> Schema:
    """Return the schema of a text that is one of `values`."""
    return {"enum": list(values)}


def many(item: Schema) -> Schema:
    """Return the schema of a list that is not empty."""
    return {"type": "array", "items": item, "minItems": 1}


def fields(*required: str, **properties: Schema) -> Schema:
    """Return the schema of an object with `properties` and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def resource(version: str, kind: str, *required: str, **properties: Schema) -> Schema:
    """Return the schema of a resource."""
    metadata = fields("name", name=STRING, namespace=STRING, labels=STRINGS, annotations=STRINGS)
    return fields(
        "apiVersion",
        "kind",
        "metadata",
        *required,
        apiVersion=one_of(version),
        kind=one_of(kind),
        metadata=metadata,
        **properties,
    )


_RESOURCES = fields(requests=STRINGS, limits=STRINGS)
_LABELS = fields(matchLabels=STRINGS)
_CLAIM = fields(
    "metadata",
    "spec",
    metadata=fields("name", name=STRING),
    spec=fields("accessModes", "resources", accessModes=many(STRING), resources=_RESOURCES),
)
_COLLECTOR = fields(
    "config",
    "mode",
    mode=one_of("daemonset", "deployment", "sidecar", "statefulset"),
    image=STRING,
    upgradeStrategy=one_of("none", "automatic"),
    replicas=NUMBER,
    envFrom=many(fields("configMapRef", configMapRef=fields("name", name=STRING))),
    resources=_RESOURCES,
    volumes=many(fields("name", name=STRING, emptyDir=fields(sizeLimit=STRING))),
    volumeMounts=many(fields("name", "mountPath", name=STRING, mountPath=STRING)),
    volumeClaimTemplates=many(_CLAIM),
    persistentVolumeClaimRetentionPolicy=fields(
        whenScaled=one_of("Retain", "Delete"), whenDeleted=one_of("Retain", "Delete")
    ),
    podDisruptionBudget=fields(maxUnavailable=NUMBER, minAvailable=NUMBER),
    autoscaler=fields(
        "maxReplicas",
        minReplicas=NUMBER,
        maxReplicas=NUMBER,
        targetCPUUtilization=NUMBER,
        behavior=fields(
            scaleDown=fields(
                stabilizationWindowSeconds=NUMBER,
                policies=many(
                    fields("type", "value", "periodSeconds", type=one_of("Pods"), value=NUMBER, periodSeconds=NUMBER)
                ),
            )
        ),
    ),
    podSecurityContext=fields(
        runAsNonRoot=SWITCH, runAsUser=NUMBER, fsGroup=NUMBER, seccompProfile=fields("type", type=STRING)
    ),
    securityContext=fields(
        allowPrivilegeEscalation=SWITCH, readOnlyRootFilesystem=SWITCH, capabilities=fields(drop=many(STRING))
    ),
    config=fields(
        "receivers",
        "exporters",
        "service",
        receivers=ANYTHING,
        processors=ANYTHING,
        exporters=ANYTHING,
        connectors=ANYTHING,
        extensions=ANYTHING,
        service=fields("pipelines", pipelines=ANYTHING, extensions=many(STRING), telemetry=ANYTHING),
    ),
)
_RULE = {
    "oneOf": [
        fields("record", "expr", record=STRING, expr=STRING, labels=STRINGS),
        fields(
            "alert",
            "expr",
            "labels",
            "annotations",
            alert=STRING,
            expr=STRING,
            labels=STRINGS,
            annotations=STRINGS,
            **{"for": DURATION, "keep_firing_for": DURATION},
        ),
    ]
}
_PEER = {"oneOf": [fields("podSelector", podSelector=_LABELS), fields("namespaceSelector", namespaceSelector=_LABELS)]}

SCHEMAS = {
    "OpenTelemetryCollector": resource("opentelemetry.io/v1beta1", "OpenTelemetryCollector", "spec", spec=_COLLECTOR),
    "PrometheusRule": resource(
        "monitoring.coreos.com/v1",
        "PrometheusRule",
        "spec",
        spec=fields("groups", groups=many(fields("name", "rules", name=STRING, interval=DURATION, rules=many(_RULE)))),
    ),
    "ServiceMonitor": resource(
        "monitoring.coreos.com/v1",
        "ServiceMonitor",
        "spec",
        spec=fields(
            "selector",
            "endpoints",
            selector=_LABELS,
            endpoints=many(
                fields(
                    "port",
                    port=STRING,
                    interval=DURATION,
                    relabelings=many(fields("targetLabel", targetLabel=STRING, replacement=STRING)),
                )
            ),
        ),
    ),
    "NetworkPolicy": resource(
        "networking.k8s.io/v1",
        "NetworkPolicy",
        "spec",
        spec=fields(
            "podSelector",
            "policyTypes",
            podSelector=_LABELS,
            policyTypes=many(one_of("Ingress")),
            ingress=many(fields("from", "ports", ports=many(fields("port", port=NUMBER)), **{"from": many(_PEER)})),
        ),
    ),
    "Service": resource(
        "v1",
        "Service",
        "spec",
        spec=fields("selector", "ports", selector=STRINGS, ports=many(fields("port", name=STRING, port=NUMBER))),
    ),
    "Namespace": resource("v1", "Namespace"),
    "ConfigMap": resource("v1", "ConfigMap", "data", data=STRINGS),
    "Secret": resource("v1", "Secret", "data", data=STRINGS, type=one_of("Opaque")),
}
