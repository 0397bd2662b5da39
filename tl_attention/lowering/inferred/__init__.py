"""The compiler decides the order of the pipelined kernel, which has T.Pipelined(num_stages) alone. There is no Program."""
