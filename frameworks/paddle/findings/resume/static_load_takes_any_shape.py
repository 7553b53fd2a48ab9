"""paddle.static.load puts weights of another shape into a program without a word."""

import sys
import tempfile

import numpy as np
import paddle

paddle.enable_static()
scope, folder = paddle.static.global_scope(), tempfile.TemporaryDirectory()
programs = []
for width in (8, 4):
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.utils.unique_name.guard(), paddle.static.program_guard(main, startup):
        paddle.nn.Linear(width, 4)(paddle.static.data("x", [1, width], "float32"))
    programs.append((main, startup))
executor = paddle.static.Executor(paddle.CPUPlace())
executor.run(programs[0][1])
paddle.static.save(programs[0][0], f"{folder.name}/model")
executor.run(programs[1][1])
try:
    paddle.static.load(programs[1][0], f"{folder.name}/model", executor)
    seen = f"loaded, the weight has shape {np.array(scope.find_var('linear_0.w_0').get_tensor()).shape}"
except Exception as error:
    seen = f"refused ({type(error).__name__})"
print("expected: refused, for the program's weight has shape (4, 4) and the file's (8, 4)")
print(f"seen: {seen}")
sys.exit("refused" not in seen)
