"""Trains with a fault while trackers log: ``tracked.py FOLDER TRACKER...``. It prints JSON: what
each tracker then has."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

STEPS = 8
Log = Callable[[int, float], None]
End = Callable[[], Any]


def tensorboard(folder: Path) -> tuple[Log, End]:
    from torch.utils.tensorboard import SummaryWriter

    other, writer = SummaryWriter(str(folder / "other")), SummaryWriter(str(folder / "board"))
    other.add_scalar("loss", 0.0, 0)
    writer.add_scalar("loss", 0.0, 0)

    def end() -> Any:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        writer.close()
        accumulator = EventAccumulator(str(folder / "board"))
        accumulator.Reload()
        scalars = accumulator.Tags()["scalars"]
        texts = [
            event.tensor_proto.string_val[0].decode()
            for event in accumulator.Tensors("guard/alarm/text_summary")
        ]
        steps = [event.step for event in accumulator.Scalars("loss")]
        count = accumulator.Scalars("guard/alarms")[-1].value
        files = len(list((folder / "board").iterdir()))
        return {"names": scalars, "alarms": texts, "steps": steps, "last": count, "files": files}

    return lambda step, loss: writer.add_scalar("loss", loss, step), end


def wandb(folder: Path) -> tuple[Log, End]:
    import wandb

    run = wandb.init(project="p", dir=str(folder), mode="offline")

    def end() -> Any:
        summary, step = dict(run.summary), run.step
        run.finish()
        names = sorted(name for name in summary if not name.startswith("_"))
        return {"names": names, "last": summary["guard/alarms"], "steps": step}

    return lambda step, loss: run.log({"loss": loss}), end


def mlflow(folder: Path) -> tuple[Log, End]:
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    run = mlflow.start_run()

    def end() -> Any:
        mlflow.end_run()
        data = mlflow.get_run(run.info.run_id).data
        tags = {name: text for name, text in data.tags.items() if name.startswith("guard")}
        return {"names": sorted(data.metrics), "alarms": tags, "last": data.metrics["guard/alarms"]}

    return lambda step, loss: mlflow.log_metric("loss", loss, step), end


def opentelemetry(folder: Path) -> tuple[Log, End]:
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    reader, exporter = InMemoryMetricReader(), InMemorySpanExporter()
    metrics.set_meter_provider(MeterProvider([reader]))
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)

    def end() -> Any:
        measured = {
            metric.name: metric.data.data_points[0]
            for resource in reader.get_metrics_data().resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }
        spans = exporter.get_finished_spans()
        return {
            "names": sorted(measured),
            "alarms": [dict(span.events[0].attributes) for span in spans],
            "last": measured["guard.alarms"].value,
        }

    return lambda step, loss: None, end


def main() -> None:
    folder = Path(sys.argv[1])
    from harness.rank import guard
    from harness.rank.guard.settings import Settings

    guard.start(Settings(every=1, out=str(folder)))
    ways = {name: globals()[name](folder) for name in sys.argv[2:]}
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    rows, targets = torch.randn(16, 8), torch.randint(0, 4, (16,))
    for step in range(STEPS):
        for _ in range(2):  # a fault: two micro-batches, of which no loss is divided by two
            loss = nn.functional.cross_entropy(model(rows), targets)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        for log, _end in ways.values():
            log(step, float(loss.detach()))
        time.sleep(0.05)  # a training's step, in which guard's threads run
    live = guard._guards[0]
    live.close()  # the trackers are read before the process ends
    print(json.dumps({name: end() for name, (_, end) in ways.items()}))


if __name__ == "__main__":
    main()
