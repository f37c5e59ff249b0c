"""Who does the loader's work: the caller, threads, or processes; and decoded images kept between epochs."""
