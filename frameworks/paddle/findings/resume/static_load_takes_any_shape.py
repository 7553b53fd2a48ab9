"""paddle.static.load puts weights of another shape into a program without a word."""

import sys
import tempfile

import numpy as np
import paddle

paddle.enable_static()
scope, executor = paddle.static.global_scope(), paddle.static.Executor(paddle.CPUPlace())
folder = tempfile.TemporaryDirectory()
for width in (8, 4):
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.utils.unique_name.guard(), paddle.static.program_guard(main, startup):
        paddle.nn.Linear(width, 4)(paddle.static.data("x", [1, width], "float32"))
    executor.run(startup)
    if width == 8:
        paddle.static.save(main, f"{folder.name}/model")
try:
    paddle.static.load(main, f"{folder.name}/model", executor)
    seen = f"loaded, the weight has shape {np.array(scope.find_var('linear_0.w_0').get_tensor()).shape}"
except Exception as error:
    seen = f"refused ({type(error).__name__})"
print("expected: refused, for the program's weight has shape (4, 4) and the file's (8, 4)")
print(f"seen: {seen}")
sys.exit("refused" not in seen)
