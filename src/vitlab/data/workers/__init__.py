"""Who does the loader's work: the caller, threads, or processes; and decoded pictures kept between epochs."""
