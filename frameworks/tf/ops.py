def run_op(op, arrays, mode): raise NotImplementedError
