"""A worker of Rollcall in Python, with a plain client of Kafka: paints the tasks of type image.generate.

    python worker.py 127.0.0.1:9092 [name]
"""
import json
import os
import struct
import sys
import uuid
import zlib

from kafka import KafkaConsumer, KafkaProducer

BROKERS = sys.argv[1]
NAME = sys.argv[2] if len(sys.argv) > 2 else f"python-{os.getpid()}"


def paint(task_id, prompt, width, height):
    """Writes a PNG, a gradient in a colour of the prompt. The same task again writes the same file again."""
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    colour = zlib.crc32(prompt.encode()).to_bytes(4, "big")[:3]
    rows = (bytes(c * (x + y) // (width + height) for x in range(width) for c in colour) for y in range(height))
    header = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    with open(f"{task_id}.png", "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b""))
    return {"file": os.path.abspath(file.name)}


def say(task, trigger, **fields):
    """Sends a worker event, and waits until the broker has it."""
    event = {"trigger": trigger, "taskId": task["taskId"], "attempt": task["attempt"], "worker": NAME,
             "leaseToken": task["leaseToken"], "commandId": str(uuid.uuid4()), **fields}
    key, value = event["taskId"].encode(), json.dumps(event).encode()
    events.send("rollcall.worker-events", key=key, value=value).get(timeout=30)


events = KafkaProducer(bootstrap_servers=BROKERS, acks="all")
tasks = KafkaConsumer("rollcall.tasks.image.generate", bootstrap_servers=BROKERS, auto_offset_reset="earliest",
                      group_id="rollcall.workers.image.generate", enable_auto_commit=False)
for message in tasks:
    task = {**json.loads(message.value), "leaseToken": str(uuid.uuid4())}
    say(task, "START")
    tasks.commit()  # The log owns the task now. Should this process die, the lease ends and the task comes again.
    try:
        say(task, "SUCCEED", result=paint(task["taskId"], **task["payload"]))
    except Exception as error:
        say(task, "FAIL", error={"code": type(error).__name__, "message": str(error)})
