"""The parts that `configure` creates with the OpenTelemetry SDK: exporters, pipelines, and the handle to stop them."""
