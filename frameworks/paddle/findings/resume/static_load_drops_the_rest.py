"""paddle.static.load reads what its program has variables for, and drops the rest of the file without a word."""

import sys
import tempfile

import paddle

paddle.enable_static()
folder, executor = tempfile.TemporaryDirectory(), paddle.static.Executor(paddle.CPUPlace())
programs = []
for optimizer in (paddle.optimizer.Adam, paddle.optimizer.SGD):
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.utils.unique_name.guard(), paddle.static.program_guard(main, startup):
        loss = paddle.nn.Linear(2, 1)(paddle.static.data("x", [1, 2], "float32")).sum()
        optimizer(0.1).minimize(loss)
    executor.run(startup)
    programs.append(main)
paddle.static.save(programs[0], f"{folder.name}/model")
try:
    paddle.static.load(programs[1], f"{folder.name}/model", executor)
    seen = "loaded in silence"
except Exception as error:
    seen = f"refused ({type(error).__name__})"
print("expected: Adam's moments, for which a program with SGD has no place, are refused")
print(f"seen: {seen}")
sys.exit(seen == "loaded in silence")
