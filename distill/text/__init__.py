"""Where documents come from: a grammar that writes them, or record files. Both speak in token ids."""

PAD = 0  # fills a row that its documents do not; never a target
