//! Text in and out: tokenizer, chat template, streaming detokeniser, stop strings.
