"""What `configure` sets up with the OpenTelemetry SDK: exporters, pipelines, the handle that stops them."""
