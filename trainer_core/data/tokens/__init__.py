"""Documents to tokens: encoding, what is held out, tokenized files, and the processes that make them."""
