"""T.Pipelined(num_stages) alone: the pipelined kernel, whose order the compiler decides. There is no Program."""
