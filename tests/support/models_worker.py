"""A worker of models without PyTorch, which crashes, hangs and refuses as a model's name says."""

import json
import os
import sys
import time

print(json.dumps({"versions": {"transformers": "1.0", "accelerate": "1.0"}}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if "classes" in request:
        print(
            json.dumps({"classes": ["GoodForCausalLM", "CrashForCausalLM", "SlowForCausalLM", "OddForCausalLM"]}),
            flush=True,
        )
        continue
    model = request["model"]
    if "Crash" in model:
        os._exit(3)
    if "Slow" in model:
        time.sleep(60)
    answer = {"model": model, "checks": [], "seconds": 0.5}
    if "Odd" in model:
        answer["not_run"] = "no loss"
    else:
        answer["checks"] = [
            {"clause": "resume.bit-identical", "outcome": "pass", "got": "a", "want": "b", "cause": "", "case": ""}
        ]
    print(json.dumps(answer), flush=True)
