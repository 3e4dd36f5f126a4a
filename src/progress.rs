//! What a person or a machine sees of long work: bars on a terminal, plain lines in a pipe, the closing table.
